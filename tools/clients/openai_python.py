"""OpenAI's Python client against a server: chat, tools, schemas, completions, responses, embeddings, models, errors.

usage: openai_python.py URL
"""

import asyncio
import json
import sys

import openai
import pydantic

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

# Tools and schemas.
PARAMETERS = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 8}},
    "required": ["word"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS, "strict": True}}
asked = dict(model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=60)
called = client.chat.completions.create(**asked).choices[0]
call = called.message.tool_calls[0]
assert called.finish_reason == "tool_calls" and call.function.name == "look_up"
assert list(json.loads(call.function.arguments)) == ["word"]
with client.chat.completions.stream(**asked) as stream:
    stream.until_done()
    grown = stream.get_final_completion().choices[0].message.tool_calls[0]
assert grown.function.arguments == call.function.arguments
history = [
    *QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
    {"role": "tool", "tool_call_id": call.id, "content": "a piece of coal"},
]
client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=4)


class Entry(pydantic.BaseModel):
    degrees: int
    is_hot: bool


parsed = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Entry, max_tokens=200, temperature=0)
assert isinstance(parsed.choices[0].message.parsed, Entry)


async def many():
    own = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    requests = [own.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24) for _ in range(8)]
    return [answer.choices[0].message.content for answer in await asyncio.gather(*requests)]


assert asyncio.run(many()) == [text] * 8

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
expected = set("""id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools
    tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning usage
    max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key""".split())
assert expected <= set(response.to_dict()), expected - set(response.to_dict())
assert response.status == "incomplete" and response.output[-1].status == "incomplete", response
# Fields of other servers: one that is honoured, and one that is not.
extra = client.completions.create(model=MODEL, prompt="An ember is", max_tokens=3, extra_body={"return_token_ids": True})
assert len(extra.choices[0].token_ids) == 3, extra
hint = {"type": "content", "content": text}
client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, prediction=hint)
try:
    client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, extra_body={"use_beam_search": True})
except openai.BadRequestError as error:
    assert error.body["param"] == "use_beam_search", error.body
else:
    raise AssertionError("use_beam_search was passed over")
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
function = {"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": True}
called = client.responses.create(
    model=MODEL, input="ember?", tools=[function], tool_choice="required", temperature=0, max_output_tokens=60
)
assert called.output[0].type == "function_call" and list(json.loads(called.output[0].arguments)) == ["word"]
items = [{"role": "user", "content": "ember?"}, called.output[0].model_dump(exclude_none=True)]
items.append({"type": "function_call_output", "call_id": called.output[0].call_id, "output": "a piece of coal"})
client.responses.create(model=MODEL, input=items, tools=[function], max_output_tokens=4)
parsed = client.responses.parse(model=MODEL, input="ember?", text_format=Entry, max_output_tokens=200, temperature=0)
assert isinstance(parsed.output_parsed, Entry)
count = client.responses.input_tokens.count(model=MODEL, input='What does "ember" mean?')
assert count.input_tokens == response.usage.input_tokens

# Embeddings, which the client asks for in base64.
vectors = client.embeddings.create(model=MODEL, input=["ember", "coal"])
numbers = client.embeddings.create(model=MODEL, input="ember", encoding_format="float").data[0].embedding
assert len(vectors.data) == 2 and vectors.usage.prompt_tokens > 0
assert max(abs(a - b) for a, b in zip(vectors.data[0].embedding, numbers, strict=True)) < 1e-6
assert abs(sum(x * x for x in numbers) - 1) < 1e-4


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
bad = fails(openai.BadRequestError, client.embeddings.create, model=MODEL, input="x", dimensions=7)
assert bad["param"] == "dimensions" and bad["code"] == "unsupported_field"
broken = [*QUESTION, {"role": "assistant", "tool_calls": [{**call.model_dump(), "function": {"name": "f", "arguments": "{"}}]}]
# Nobody can correct an earlier call that was cut off.
client.chat.completions.create(model=MODEL, messages=broken, max_tokens=2)
fails(openai.NotFoundError, client.files.list)
print(f"openai {openai.__version__} for Python: content")
