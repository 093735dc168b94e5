"""Anthropic's Python client against a server: messages, tools, streaming, counting, errors.

usage: anthropic_python.py URL
"""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
QUESTION = [{"role": "user", "content": 'What does "ember" mean?'}]
arguments = dict(model="any", messages=QUESTION, max_tokens=24, extra_body={"temperature": 0})

message = client.messages.create(**arguments)
text = message.content[0].text
assert "ember" in text, text
assert message.usage.output_tokens > 0
with client.messages.stream(**arguments) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.stop_reason == message.stop_reason and final.content[0].text == text

count = client.messages.count_tokens(model="any", messages=QUESTION)
assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)

history = [
    *QUESTION,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "ember"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a piece of coal"}]},
]
schema = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 8}},
    "required": ["word"],
    "additionalProperties": False,
}
tools = [{"name": "look_up", "input_schema": schema, "strict": True}]
client.messages.create(model="any", messages=history, tools=tools, max_tokens=4)
asked = dict(arguments, tools=tools, tool_choice={"type": "any"}, max_tokens=60)
called = client.messages.create(**asked)
assert called.stop_reason == "tool_use" and called.content[-1].type == "tool_use", called
with client.messages.stream(**asked) as stream:
    assert stream.get_final_message().content[-1].input == called.content[-1].input
failed = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "no such word"}], "is_error": True}
again = [*history[:2], {"role": "user", "content": [failed, {"type": "text", "text": "Try again."}]}]
client.messages.create(model="any", messages=again, tools=tools, max_tokens=4, thinking={"type": "disabled"})
stopped = client.messages.create(**{**arguments, "stop_sequences": [text.split()[2]]})
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text.split()[2]

# Models, in pages, and documents of text.
models = list(client.models.list(limit=1))
assert models and models[0].type == "model" and models[0].created_at.year > 2000, models
assert client.models.retrieve(models[0].id).id == models[0].id
document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "An ember is a piece of coal."}}
read = [{"role": "user", "content": [document, {"type": "text", "text": "What is an ember?"}]}]
assert client.messages.create(**{**arguments, "messages": read}).usage.input_tokens > 0
try:
    client.messages.batches.list()
except anthropic.NotFoundError as error:
    assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body
else:
    raise AssertionError("there are batches")
cut = client.messages.create(**{**asked, "max_tokens": 8})
assert cut.stop_reason == "max_tokens", cut
assert all(block.input == {} for block in cut.content if block.type == "tool_use"), cut

picture = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
# Nobody can correct an earlier call that was cut off.
broken = {"type": "tool_use", "id": "t1", "name": "look_up", "input": "{"}
client.messages.create(model="any", messages=[*QUESTION, {"role": "assistant", "content": [broken]}], max_tokens=2)
for wrong, param in [
    ({"extra_body": {"temperature": -1}}, "temperature"),
    ({"messages": [{"role": "user", "content": [picture]}]}, "messages[0].content[0].type"),
]:
    try:
        client.messages.create(**{"model": "any", "messages": QUESTION, "max_tokens": 4, **wrong})
    except anthropic.BadRequestError as error:
        told = error.body["error"]
        assert told["type"] == "invalid_request_error" and told["param"] == param and told["code"], error.body
    else:
        raise AssertionError(f"{wrong} did not fail")
print(f"anthropic {anthropic.__version__} for Python: content")
