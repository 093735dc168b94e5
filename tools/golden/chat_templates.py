"""Golden conversations: what transformers' apply_chat_template makes of them with published chat templates.

usage: chat_templates.py TEMPLATES_DIR OUT.json.xz     (needs transformers, jinja2)

TEMPLATES_DIR holds NAME.jinja files. The output lists, for each template, conversation and setting, the text, or null
where the template refuses the conversation by raise_exception; conversations on which it crashes are left out. The clock is stopped at 2024-07-26 12:34:56.
"""

import datetime as real
import json
import lzma
import pathlib
import sys

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils


class Stopped(real.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 34, 56)


chat_template_utils.datetime = Stopped

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a <city> & \"surroundings\".\nReturns degrees.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. 東京 or São Paulo"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "description": "How many days"},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limits": {"type": "array", "items": {"type": "number"}, "default": [1.5, 2, 0.25]},
                "exact": {"type": ["boolean", "null"], "default": None},
                "filter": {"type": "object", "properties": {"site": {"type": "string"}}, "additionalProperties": False},
            },
            "required": ["query", "exact"],
        },
    },
}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text=None, **more):
    return {"role": "assistant", **({} if text is None else {"content": text}), **more}


CONVERSATIONS = {
    "one": [user("Hello!")],
    "system": [system("You are terse."), user("Name a colour.")],
    "turns": [
        system("  Speak\nlike a pirate.  "),
        user("What's 2+2?"),
        assistant("Arr, 4."),
        user("And 'x' × \"y\"?"),
    ],
    "no_system_turns": [user("  spaces around \n"), assistant("\tYes & <no>  \n"), user("日本語 🙂 \\n"), assistant("ok"), user("…")],
    "ends_with_assistant": [user("Hi"), assistant("Hello. How are you?")],
    "thinking": [
        user("Is 7 prime?"),
        assistant("Yes.", reasoning_content="7 has no divisors.\nSo it is."),
        user("Is 9?"),
    ],
    "thinking_inline": [
        user("Is 7 prime?"),
        assistant("<think>\n7 has no divisors.\n</think>\n\nYes."),
        user("Is 9?"),
        assistant("<think>3 × 3</think>No."),
        user("Thanks"),
    ],
    "tool_call": [
        system("Use tools."),
        user("Weather in Paris?"),
        assistant(tool_calls=[call("get_weather", {"city": "Paris", "days": 2, "unit": None})]),
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"temp": 21.5, "sky": "clear"}'},
        assistant("It is 21.5 °C."),
        user("Thanks!"),
    ],
    "tool_call_open": [
        user("Weather in Paris and Rome?"),
        assistant(
            "Let me look.",
            reasoning_content="Two calls.",
            tool_calls=[call("get_weather", {"city": "Paris"}), call("get_weather", {"city": "Rome \"x\"", "days": 1}, "call00002")],
        ),
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "21"},
        {"role": "tool", "tool_call_id": "call00002", "name": "get_weather", "content": "25"},
    ],
    "tool_call_text_arguments": [
        user("Search cats"),
        assistant("", tool_calls=[call("search", '{"query": "cats", "exact": true}')]),
        {"role": "tool", "tool_call_id": "call00001", "name": "search", "content": "found"},
    ],
    "tool_call_nested": [
        user("Search"),
        assistant("", tool_calls=[call("search", {"query": "é\n", "exact": False, "limits": [1, 2.5, -3e20], "filter": {"site": "a.b"}})]),
        {"role": "tool", "tool_call_id": "call00001", "name": "search", "content": "[1, 2]"},
        user("So?"),
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "First part. "}, {"type": "text", "text": "Second part."}]},
    ],
    "user_twice": [user("One"), user("Two")],
    "developer": [{"role": "developer", "content": "Be kind."}, user("Hi")],
    "unknown_role": [{"role": "oracle", "content": "Hm."}, user("Hi")],
}

SETTINGS = {
    "plain": {},
    "closed": {"add_generation_prompt": False},
    "thinking_on": {"enable_thinking": True},
    "thinking_off": {"enable_thinking": False},
    "tools": {"tools": [WEATHER, SEARCH]},
    "tools_thinking_off": {"tools": [WEATHER], "enable_thinking": False},
}


def main():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}, unk_token="<unk>")), **TOKENS
    )
    cases = []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for conversation, messages in CONVERSATIONS.items():
            for setting, options in SETTINGS.items():
                try:
                    text = tokenizer.apply_chat_template(
                        messages, chat_template=source, tokenize=False, **{"add_generation_prompt": True, **options}
                    )
                except jinja2.exceptions.TemplateError as error:
                    if type(error) is not jinja2.exceptions.TemplateError:
                        continue  # the template is at fault
                    text = None  # the template refuses the conversation
                except (TypeError, ValueError, AttributeError, KeyError, RecursionError):
                    continue
                cases.append([path.stem, conversation, setting, text])
    golden = {"tokens": TOKENS, "conversations": CONVERSATIONS, "settings": SETTINGS, "cases": cases}
    packed = lzma.compress(json.dumps(golden, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME)
    pathlib.Path(sys.argv[2]).write_bytes(packed)
    failed = sum(case[3] is None for case in cases)
    print(f"{len(cases)} cases, {failed} of them errors, {len(packed)} bytes")


main()
