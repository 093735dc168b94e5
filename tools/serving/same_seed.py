"""Counts the sampled tokens that two servers of one model draw alike.

    python tools/serving/same_seed.py URL OTHER_URL [--texts 8] [--tokens 128]

The first server writes texts, each of a seed of its own. The other draws every token of them anew, each behind the same tokens and with
the same seed, so that one token that differs changes no other. Prints how many are alike, and those that are not.
"""

import argparse
import json
import urllib.request

PROMPTS = ["A word for a small house", "The river", "What is the opposite of", "noun: a", "Once", "The meaning of light is", "To walk", "Three"]


def ask(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["tokens"]


def completion(url, prompt, seed, tokens):
    unfiltered = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    body = {"prompt": prompt, "seed": seed, "n_predict": tokens, "ignore_eos": True, "return_tokens": True, "cache_prompt": True}
    return ask(url, "/completion", body | unfiltered)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("other")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    alike = drawn = 0
    for seed in range(options.texts):
        prompt = ask(options.url, "/tokenize", {"content": PROMPTS[seed % len(PROMPTS)], "add_special": True})
        text = completion(options.url, prompt, seed, options.tokens)
        for place, token in enumerate(text):
            [other] = completion(options.other, prompt + text[:place], seed, 1)
            drawn += 1
            alike += token == other
            if token != other:
                print(f"seed {seed}, token {place}: {token}, and {other}")
    print(f"{alike} of {drawn} tokens are alike")


if __name__ == "__main__":
    main()
