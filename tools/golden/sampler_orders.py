"""Golden survivors of chains of samplers, in many orders, by llama.cpp.

usage: sampler_orders.py OUT.json     (needs llama-cpp-python)

For each set of parameters and each order: the tokens that llama.cpp's chain leaves with a probability above 0, and their probabilities,
likeliest first. A result is kept only if it does not hang on rounding: small changes of top-p and min-p leave the same tokens.
"""

import ctypes
import itertools
import json
import random
import sys

from llama_cpp import llama_cpp

LAST = -1


def sampler(name, params):
    """llama.cpp's sampler of that name."""
    if name == "penalties":
        last_n = params["repeat_last_n"]
        return llama_cpp.llama_sampler_init_penalties(
            len(params["logits"]),
            1000 if last_n == LAST else last_n,
            params["repeat_penalty"],
            params["frequency_penalty"],
            params["presence_penalty"],
        )
    if name == "top_k":
        return llama_cpp.llama_sampler_init_top_k(params["top_k"])
    if name == "top_p":
        return llama_cpp.llama_sampler_init_top_p(params["top_p"], 0)
    if name == "min_p":
        return llama_cpp.llama_sampler_init_min_p(params["min_p"], 0)
    assert name == "temperature"
    return llama_cpp.llama_sampler_init_temp_ext(params["temperature"], 0.0, 1.0)


def survivors(order, params):
    """Ids and probabilities behind a chain of samplers, likeliest first."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for name in order:
        llama_cpp.llama_sampler_chain_add(chain, sampler(name, params))
    # The end of llama.cpp's own chains: it makes probabilities of what is left.
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
    for token in params["history"]:
        llama_cpp.llama_sampler_accept(chain, token)
    logits = params["logits"]
    tokens = (llama_cpp.llama_token_data * len(logits))(*[(id, logit, 0.0) for id, logit in enumerate(logits)])
    array = llama_cpp.llama_token_data_array(tokens, len(logits), -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    # Smaller ones are zeros of one of both programs.
    left = [(array.data[i].id, array.data[i].p) for i in range(array.size) if array.data[i].p > 1e-30]
    llama_cpp.llama_sampler_free(chain)
    return sorted(left, key=lambda token: -token[1])


def f32(number):
    return ctypes.c_float(number).value


def cases():
    filters = ["top_k", "top_p", "min_p", "temperature"]
    orders = [list(order) for order in itertools.permutations(filters)]
    orders = [["penalties", *order] for order in orders] + [[*order, "penalties"] for order in orders]
    # In the middle, and some of them.
    orders += [[*order[:place], "penalties", *order[place:]] for order in itertools.permutations(filters) for place in (1, 2, 3)]
    orders += [list(order) for count in range(4) for order in itertools.permutations(filters, count)]
    settings = [
        {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.08},
        {"temperature": 1.6, "top_k": 12, "top_p": 0.8, "min_p": 0.12},
        {"temperature": 0.0, "top_k": 5, "top_p": 0.95, "min_p": 0.05},
    ]
    penalties = {"repeat_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.6, "repeat_last_n": LAST}
    for number, setting in enumerate(settings):
        rng = random.Random(number)
        params = {**setting, **penalties, "repeat_last_n": [LAST, 8, LAST][number]}
        params["logits"] = [f32(round(rng.gauss(0, 2.5), 3)) for _ in range(24)]
        likely = sorted(range(24), key=lambda id: -params["logits"][id])[:8]
        params["history"] = [rng.choice(likely) if rng.random() < 0.6 else rng.randrange(24) for _ in range(12)]
        yield params, orders


def main():
    skipped, groups = 0, []
    for params, orders in cases():
        results = []
        for order in orders:
            left = survivors(order, params)
            near = [{"top_p": params["top_p"] * by, "min_p": params["min_p"] * by} for by in (1 - 1e-4, 1 + 1e-4)]
            ids = [id for id, _ in left]
            if any([id for id, _ in survivors(order, {**params, **change})] != ids for change in near):
                skipped += 1
                continue
            results.append([";".join(order), [[id, float(f"{p:.7g}")] for id, p in left]])
        groups.append({"params": params, "results": results})
    with open(sys.argv[1], "w") as file:
        lines = [
            '{"params": ' + json.dumps(group["params"]) + ', "results": [\n' + ",\n".join(map(json.dumps, group["results"])) + "\n]}"
            for group in groups
        ]
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(sum(len(group["results"]) for group in groups), "results,", skipped, "hang on rounding")


if __name__ == "__main__":
    main()
