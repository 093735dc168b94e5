"""A stand-in for the package mlx-lm, without a model: it answers a text with the text turned around, a character a token.

Prompts that begin with `!` are commands, and show how the script fares with what packages do.
"""

import os
import sys
import time

from . import sample_utils

# As packages do.
print("Fetching 11 files: 100%")
os.write(1, b"written past Python\n")

END = 0


class Response:
    def __init__(self, text, token, finish_reason=None):
        self.text, self.token, self.finish_reason = text, token, finish_reason


class Arguments:
    vocab_size, hidden_size = 1114112, 16


class Model:
    model_type, args, layers = "qwen2", Arguments(), [None, None]


class Tokenizer:
    def encode(self, text, add_special_tokens=True):
        return [ord(character) for character in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "".join(f"<{message['role']}:{message['content']}>" for message in messages)


def load(path):
    assert os.path.isdir(path), path
    if os.environ.get("BRASA_STAND_IN_FAILS"):
        raise ValueError("Model type qwen2 not supported.")
    return Model(), Tokenizer()


def stream_generate(model, tokenizer, prompt, max_tokens, sampler, prompt_progress_callback):
    import mlx.core as mx

    assert sys.stdin.read() == "", "there is something to read"
    print("generating")
    text = "".join(map(chr, prompt))
    prompt_progress_callback(0, len(prompt))
    while text == "!prefill":
        prompt_progress_callback(1, len(prompt))
        time.sleep(0.001)
    prompt_progress_callback(len(prompt), len(prompt))
    answers = {
        "!show": f"{sampler} seed={mx.random.state} max_tokens={max_tokens}",
        "!half": "\ud83d",
        "!endless": iter(lambda: "a", None),
        "!fail": "ab",
    }
    for count, character in enumerate(answers.get(text, text[::-1]), 1):
        if text == "!fail" and count == 2:
            raise RuntimeError("half of it")
        last = count == max_tokens
        yield Response(character, ord(character), "length" if last else None)
        if last:
            return
    # The end token comes with the text that was held back, here none.
    yield Response("", END, "stop")
