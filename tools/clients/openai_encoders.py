"""OpenAI's Python client against a server with a text encoder: vectors by sentence-transformers, encodings, lengths, errors.

usage: openai_encoders.py URL FOLDER...

The folders are those of the served checkpoints, in the server's order; `embeddings.json` in each holds the expected vectors.
"""

import json
import math
import pathlib
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
folders = [pathlib.Path(folder) for folder in sys.argv[2:]]
models = [model.id for model in client.models.list().data]
assert models == [folder.name for folder in folders], models


def near(found: list, expected: list) -> None:
    """Vectors of one direction."""
    product = sum(a * b for a, b in zip(found, expected))
    lengths = math.hypot(*found) * math.hypot(*expected)
    assert product / lengths > 0.9995, product / lengths


def default_prompt(folder: pathlib.Path) -> str | None:
    """The name of the prompt that texts get without being asked."""
    path = folder / "config_sentence_transformers.json"
    return json.loads(path.read_text())["default_prompt_name"] if path.exists() else None


for folder in folders:
    golden = json.loads((folder / "embeddings.json").read_text())
    cut = {"truncate": True}
    # The client asks for base64 and decodes it, unless told otherwise.
    for encoding in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model=folder.name, input=golden["texts"], extra_body=cut, **encoding)
        assert answer.model == folder.name and answer.usage.prompt_tokens == answer.usage.total_tokens > 0
        expected = golden["vectors"]
        if default_prompt(folder):
            expected = golden["query"]
        for item, vector in zip(answer.data, expected, strict=True):
            near(item.embedding, vector)
    lengths = json.loads((folder / "config.json").read_text()).get("matryoshka_dimensions", [])
    for length in lengths:
        vector = client.embeddings.create(model=folder.name, input="x", dimensions=length).data[0].embedding
        assert len(vector) == length and abs(math.hypot(*vector) - 1) < 1e-5
    for wrong in ({"dimensions": 7}, {"input": "ember " * 200}, {"input": []}):
        try:
            client.embeddings.create(**{"model": folder.name, "input": "x", **wrong})
        except openai.BadRequestError as error:
            assert error.code in ("unsupported_field", "context_length_exceeded", "invalid_value"), error.code
        else:
            raise AssertionError(f"{wrong} was not refused")
    try:
        client.chat.completions.create(model=folder.name, messages=[{"role": "user", "content": "Hello"}])
    except openai.BadRequestError as error:
        assert error.code == "wrong_model_kind" and folder.name in error.message, error
    else:
        raise AssertionError("an encoder chats")
print("the OpenAI client is content with encoders")
