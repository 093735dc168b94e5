"""OpenAI's Python client against a server: chat, completions, responses, models, errors.

usage: openai_python.py URL
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": 'What does "ember" mean?'}]

assert client.models.retrieve(MODEL).id == MODEL

# Chat completions.
whole = client.chat.completions.create(
    model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=24, logprobs=True, top_logprobs=2
)
text = whole.choices[0].message.content
assert "ember" in text, text
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
assert whole.usage.prompt_tokens_details.cached_tokens >= 0
streamed, usage = "", None
for chunk in client.chat.completions.create(
    model=MODEL,
    messages=QUESTION,
    temperature=0,
    max_completion_tokens=24,
    stream=True,
    stream_options={"include_usage": True},
):
    usage = chunk.usage or usage
    if chunk.choices:
        streamed += chunk.choices[0].delta.content or ""
assert streamed == text, (streamed, text)
assert usage.completion_tokens == whole.usage.completion_tokens
several = client.chat.completions.create(model=MODEL, messages=QUESTION, n=3, seed=1, max_tokens=4)
assert [choice.index for choice in several.choices] == [0, 1, 2]
with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
    stream.until_done()
    assert stream.get_final_completion().choices[0].finish_reason == "stop"

# Completions.
scored = client.completions.create(model=MODEL, prompt="An ember is hot.", echo=True, logprobs=2, max_tokens=0)
assert scored.choices[0].text == "An ember is hot."
assert scored.choices[0].logprobs.token_logprobs[0] is None
raw = client.completions.create(model=MODEL, prompt=["a", [1, 2]], max_tokens=3, temperature=0)
assert len(raw.choices) == 2
parts = client.completions.create(model=MODEL, prompt="a", max_tokens=3, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in parts) == raw.choices[0].text

# Responses.
response = client.responses.create(model=MODEL, input='What does "ember" mean?', temperature=0, max_output_tokens=24)
assert response.output_text == text, (response.output_text, text)
deltas, final = "", None
for event in client.responses.create(
    model=MODEL, input='What does "ember" mean?', temperature=0, max_output_tokens=24, stream=True
):
    if event.type == "response.output_text.delta":
        deltas += event.delta
    if event.type in ("response.completed", "response.incomplete"):
        final = event.response
assert deltas == text and final.output_text == text
with client.responses.stream(model=MODEL, input="ember?", max_output_tokens=4) as stream:
    for _ in stream:
        pass


# Errors.
def fails(kind, call, **arguments):
    try:
        call(**arguments)
    except kind as error:
        assert error.body["message"] and error.body["type"] and error.body["code"], error.body
        return error.body
    raise AssertionError(f"{arguments} did not fail")


bad = fails(openai.BadRequestError, client.chat.completions.create, model=MODEL, messages=QUESTION, temperature=-1)
assert bad["param"] == "temperature"
bad = fails(openai.BadRequestError, client.responses.create, model=MODEL, input="x", previous_response_id="resp_1")
assert bad["code"] == "previous_response_not_found"
bad = fails(openai.BadRequestError, client.completions.create, model=MODEL, prompt="x " * 10000)
assert bad["code"] == "context_length_exceeded"
print(f"openai {openai.__version__} for Python: content")
