"""Anthropic's Python client against a server: messages, streaming, counting, errors.

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
tools = [{"name": "look_up", "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}}}]
client.messages.create(model="any", messages=history, tools=tools, max_tokens=4)
stopped = client.messages.create(**{**arguments, "stop_sequences": [text.split()[2]]})
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text.split()[2]

try:
    client.messages.create(model="any", messages=QUESTION, max_tokens=4, extra_body={"temperature": -1})
except anthropic.BadRequestError as error:
    assert error.body["error"]["type"] == "invalid_request_error", error.body
else:
    raise AssertionError("a wrong request did not fail")
print(f"anthropic {anthropic.__version__} for Python: content")
