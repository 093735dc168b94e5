"""The Python clients against a server with TLS and the key `secret`.

usage: SSL_CERT_FILE=CERTIFICATE with_key.py URL
"""

import os
import ssl
import sys

import anthropic
import openai

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": 'What does "ember" mean?'}]
trusted = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])


def clients(key):
    return (
        openai.OpenAI(
            base_url=URL + "/v1", api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(verify=trusted)
        ),
        anthropic.Anthropic(
            base_url=URL, api_key=key, max_retries=0, http_client=anthropic.DefaultHttpxClient(verify=trusted)
        ),
    )


one, other = clients("secret")
text = one.chat.completions.create(model="any", messages=QUESTION, temperature=0, max_tokens=24).choices[0].message.content
assert "ember" in text, text
with other.messages.stream(model="any", messages=QUESTION, max_tokens=24, extra_body={"temperature": 0}) as stream:
    assert "".join(stream.text_stream) == text

one, other = clients("guess")
try:
    one.models.list()
except openai.AuthenticationError as error:
    assert error.body["type"] == "authentication_error" and error.body["code"] == "invalid_api_key", error.body
else:
    raise AssertionError("a wrong key opened the server")
try:
    other.messages.create(model="any", messages=QUESTION, max_tokens=1)
except anthropic.AuthenticationError as error:
    assert error.body["error"]["type"] == "authentication_error", error.body
else:
    raise AssertionError("a wrong key opened the server")
# A connection outlives a wrong key, also in front of a body that nobody reads.
with openai.DefaultHttpxClient(verify=trusted) as kept:
    for _ in range(10):
        for key, status in (("guess", 401), ("secret", 200)):
            text = "ember" if status == 200 else "x" * 300_000
            answer = kept.post(f"{URL}/tokenize", json={"content": text}, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text
print("Python clients: TLS and a key")
