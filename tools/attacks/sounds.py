"""Sounds, and the forms that carry them."""

import json
import math
import struct


def wav(seconds=1.0, rate=16000):
    """A tone as a WAV file."""
    data = b"".join(struct.pack("<h", int(3000 * math.sin(at / 20))) for at in range(int(seconds * rate)))
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data


def form(fields, sound):
    """The body and the headers of a form with a sound."""
    parts = [f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    file = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + sound + b"\r\n--x--\r\n"
    return b"".join(parts) + file, {"content-type": "multipart/form-data; boundary=x"}


def slow_schema(tag):
    """A schema whose automata take longer to build than any client may ask for."""
    parts = [{"type": "string", "pattern": f".*{chr(97 + at)}.{{{at + 3}}}.*"} for at in range(20)]
    return {"allOf": [*parts, {"type": "string", "description": tag}]}


def slow_grammar(tag):
    """The schema as a grammar."""
    return "%llguidance {}\nstart: %json " + json.dumps(slow_schema(tag))
