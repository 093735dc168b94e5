"""Golden survivors of llama.cpp's samplers typical-p, top-n-sigma, XTC, DRY and dynamic temperature, in random orders.

usage: sampler_rules.py OUT.json     (needs llama-cpp-python)

For each set of parameters, logits and history, and an order: the tokens that llama.cpp's samplers leave with a probability above 0, and
their probabilities, likeliest first. Logits are coarse in one of three cases, so that there are ties. A result is kept only if it does not
hang on rounding: small changes of the parameters leave the same tokens.

Each sampler gets the tokens that the samplers before it have left. llama.cpp's own chain also passes on the tokens that top-n-sigma has set to
a logit of -inf: typical-p then computes with NaN, and the dynamic temperature counts them. XTC has a probability of 1, since its random
numbers are not ours.
"""

import ctypes
import json
import random
import sys

from llama_cpp import llama_cpp

STAGES = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
HANG = ["top_p", "min_p", "typ_p", "top_n_sigma", "xtc_threshold"]


class Vector(ctypes.Structure):
    """A std::vector in memory: where it begins, where it ends, where its memory ends."""

    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p)]


def vector(array):
    begin = ctypes.addressof(array)
    end = begin + ctypes.sizeof(array)
    return Vector(begin, end, end)


def dry(params):
    """llama.cpp's DRY with breakers as tokens. The function is the one of llama.cpp's own tests, so it has no C name."""
    init = llama_cpp._lib["_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"]
    init.restype = ctypes.c_void_p
    init.argtypes = [ctypes.c_float, ctypes.c_float, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
    rows = [(ctypes.c_int32 * len(tokens))(*tokens) for tokens in params["dry_breakers"]]
    vectors = (Vector * len(rows))(*[vector(row) for row in rows])
    breakers = vector(vectors)
    multiplier, base, length = params["dry_multiplier"], params["dry_base"], params["dry_allowed_length"]
    return init(multiplier, base, length, params["dry_penalty_last_n"], ctypes.byref(breakers))


def sampler(name, params):
    """llama.cpp's sampler of that name."""
    if name == "penalties":
        return llama_cpp.llama_sampler_init_penalties(
            len(params["logits"]),
            params["repeat_last_n"],
            params["repeat_penalty"],
            params["frequency_penalty"],
            params["presence_penalty"],
        )
    if name == "dry":
        return dry(params)
    if name == "top_n_sigma":
        return llama_cpp.llama_sampler_init_top_n_sigma(params["top_n_sigma"])
    if name == "top_k":
        return llama_cpp.llama_sampler_init_top_k(params["top_k"])
    if name == "typ_p":
        return llama_cpp.llama_sampler_init_typical(params["typ_p"], 0)
    if name == "top_p":
        return llama_cpp.llama_sampler_init_top_p(params["top_p"], 0)
    if name == "min_p":
        return llama_cpp.llama_sampler_init_min_p(params["min_p"], 0)
    if name == "xtc":
        return llama_cpp.llama_sampler_init_xtc(1.0, params["xtc_threshold"], 0, 1)
    assert name == "temperature"
    return llama_cpp.llama_sampler_init_temp_ext(params["temperature"], params["dynatemp_range"], params["dynatemp_exponent"])


def survivors(order, params):
    """Ids and probabilities behind the samplers, likeliest first; None if typical-p computes with NaN."""
    left = list(enumerate(params["logits"]))
    # The end of llama.cpp's own chains makes probabilities of what is left.
    for name in [*order, "dist"]:
        # Of a probability that is 0 in f32 it takes the logarithm.
        if name == "typ_p" and min(logit for _, logit in left) < max(logit for _, logit in left) - 80:
            return None
        made = llama_cpp.llama_sampler_init_dist(1) if name == "dist" else sampler(name, params)
        for token in params["history"]:
            llama_cpp.llama_sampler_accept(made, token)
        tokens = (llama_cpp.llama_token_data * len(left))(*[(id, logit, 0.0) for id, logit in left])
        array = llama_cpp.llama_token_data_array(tokens, len(left), -1, False)
        llama_cpp.llama_sampler_apply(made, ctypes.byref(array))
        found = [array.data[i] for i in range(array.size)]
        probabilities = [(token.id, token.p) for token in found if token.p > 1e-30]
        left = [(token.id, token.logit) for token in found if token.logit > -float("inf")]
        llama_cpp.llama_sampler_free(made)
    return sorted(probabilities, key=lambda token: (-token[1], token[0]))


def f32(number):
    return ctypes.c_float(number).value


def case(rng):
    count = rng.choice([3, 12, 24, 24])
    coarse, spread = rng.random() < 1 / 3, rng.choice([0.5, 2.5, 5.0])
    logits = [rng.gauss(0, spread) for _ in range(count)]
    letters = rng.choice([2, 4, 24])
    history = [rng.randrange(min(letters, count)) for _ in range(rng.choice([0, 6, 16]))]
    if rng.random() < 0.5:
        history += history[: rng.randrange(1, 8)]
    params = {
        "temperature": rng.choice([0.5, 1.0, 1.6]),
        "dynatemp_range": rng.choice([0.0, 0.4, 1.0]),
        "dynatemp_exponent": rng.choice([1.0, 0.5, 2.0]),
        "top_k": rng.choice([2, 9, 12]),
        "top_p": rng.choice([0.9, 0.6]),
        "min_p": rng.choice([0.02, 0.1]),
        "typ_p": rng.choice([0.95, 0.7, 0.3]),
        "top_n_sigma": rng.choice([0.7, 1.0, 2.0]),
        "xtc_threshold": rng.choice([0.02, 0.1, 0.3]),
        "dry_multiplier": rng.choice([0.8, 2.0]),
        "dry_base": rng.choice([1.0, 1.75]),
        "dry_allowed_length": rng.choice([0, 1, 2]),
        "dry_penalty_last_n": rng.choice([1000, 10]),
        "dry_breakers": [[rng.randrange(count) for _ in range(rng.choice([1, 1, 2]))] for _ in range(rng.choice([0, 1, 3]))],
        "repeat_penalty": 1.4,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.6,
        "repeat_last_n": rng.choice([1000, 8]),
        "logits": [f32(round(z * 2) / 2 if coarse else round(z, 3)) for z in logits],
        "history": history,
    }
    own = ["dry", "top_n_sigma", "typ_p", "xtc", "temperature"]
    order = rng.choice([STAGES, rng.sample(own, 1), rng.sample(own, 3), rng.sample(STAGES, len(STAGES)), rng.sample(STAGES, 5)])
    # Which of equal tokens stays is for each program to say; a penalty behind the choice would show it.
    return params, sorted(order, key=lambda name: name not in ("penalties", "dry")) if coarse else list(order)


def main():
    rng = random.Random(2026)
    lines, skipped = [], 0
    while len(lines) < 300:
        params, order = case(rng)
        left = survivors(order, params)
        # A single token says little.
        if left is None or (len(left) == 1 and rng.random() < 0.9):
            continue
        logits = [params["logits"][id] for id, _ in left]
        hangs = False
        for by in (1 - 1e-4, 1 + 1e-4):
            changed = {**params, **{name: params[name] * by for name in HANG}}
            hangs |= [params["logits"][id] for id, _ in survivors(order, changed) or []] != logits
        if hangs:
            skipped += 1
            continue
        tokens = [[id, float(f"{p:.6g}")] for id, p in left]
        lines.append(json.dumps({"params": params, "order": ";".join(order), "left": tokens}, separators=(",", ":")))
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(lines), "results,", skipped, "hang on rounding")


if __name__ == "__main__":
    main()
