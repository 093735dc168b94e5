"""Golden answers with calls of tools: how implementations that are not ours take them apart.

usage: tool_calls.py LLAMA_CPP OUT.json.xz     (needs transformers, sglang's sources without its dependencies, pydantic, orjson,
partial-json-parser)

From llama.cpp: the cases of tests/test-chat.cpp, each with the tools, the text and the message that it expects, and the prompt's
end by transformers.
From SGLang: what its detectors find in the texts below.
"""

import json
import lzma
import pathlib
import re
import sys
import types

# --- llama.cpp: its test is read as a list of C++ expressions, which become Python expressions.

TOKEN = re.compile(
    r"""R"([^\s()]*)\((.*?)\)\1"|"((?:[^"\\]|\\.)*)"|//[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)+'|([A-Za-z_][\w:]*)|(\d[\w.]*)|(\s+)|(.)""", re.S
)


def tokens(source):
    """Pairs of kind and Python text. Strings next to each other stay apart, as Python joins them too."""
    for found in TOKEN.finditer(source):
        delimiter, raw, plain, word, number, space, other = found.groups()
        if raw is not None:
            yield "string", repr(raw)
        elif plain is not None:
            yield "string", '"' + plain + '"'
        elif word:
            yield "word", {"true": "True", "false": "False", "auto": ""}.get(word, word.replace("::", "_"))
        elif number:
            yield "number", number
        elif other:
            yield "other", {"{": "[", "}": "]"}.get(other, other)


def message(content="", reasoning="", name=None, arguments="{}", id=""):
    calls = [] if not name else [[name, arguments, id]]
    return {"content": content, "reasoning": reasoning, "calls": calls}


class Case:
    def __init__(self, template, text):
        self.case = {"template": template, "text": text, "tools": [], "thinking": True, "splits": "NONE", **message()}
        self.skipped = None

    def tools(self, tools):
        self.case["tools"] = [
            {"type": "function", "function": {"name": t[0], "description": t[1], "parameters": json.loads(t[2] or "{}")}} for t in tools
        ]
        return self

    def expect(self, message):
        self.case.update(message)
        return self

    def expect_content(self, content):
        self.case["content"] = content
        return self

    def expect_reasoning(self, reasoning):
        self.case["reasoning"] = reasoning
        return self

    def expect_tool_calls(self, calls):
        self.case["calls"] = calls
        return self

    def enable_thinking(self, value):
        self.case["thinking"] = value
        return self

    def reasoning_format(self, value):
        self.case["splits"] = value
        return self

    def __getattr__(self, name):
        def skip(*_):
            if name in ("is_partial", "continue_final_message", "json_schema", "messages"):
                self.skipped = name
            return self

        return skip


class Names(dict):
    def __missing__(self, name):
        return name


def from_llama_cpp(path):
    source = open(path, encoding="utf-8").read()
    names = Names(
        simple_assist_msg=message,
        message_with_tool_calls=lambda name, arguments: message("", "", name, arguments),
        message_with_tool_calls_and_reasoning=lambda name, arguments, reasoning: message("", reasoning, name, arguments),
        message_with_content_and_tool_call=lambda content, name, arguments: message(content, "", name, arguments),
        message_with_reasoning_and_tool_call=lambda reasoning, name, arguments: message("", reasoning, name, arguments),
        message_with_reasoning_content_and_multiple_tool_calls=lambda reasoning, content, calls: {
            **message(content, reasoning),
            "calls": calls,
        },
    )
    parts = list(tokens(source))
    cases, template, at, skipped = [], None, 0, 0
    while at < len(parts):
        words = [text for _, text in parts[at : at + 4]]
        # static common_chat_tool NAME{ … };  const common_chat_msg NAME = …;
        if words[0] in ("common_chat_tool", "common_chat_msg") and parts[at + 1][0] == "word" and words[2] in ("[", "="):
            end = next(i for i in range(at, len(parts)) if parts[i][1] == ";")
            begin = at + 2 + (words[2] == "=")
            try:
                value = eval(" ".join(text for _, text in parts[begin:end]), {}, names)
                if not (isinstance(value, dict) and words[1] in names):
                    names[words[1]] = value
            except Exception:
                pass
            at = end
        elif words[0] == "peg_tester" and words[1] == "(" and parts[at + 2][0] == "string":
            template = eval(words[2]).rsplit("/")[-1].removesuffix(".jinja")
        elif words[:3] == ["tst", ".", "test"]:
            end = next(i for i in range(at, len(parts)) if parts[i][1] == ";")
            text = " ".join(text for _, text in parts[at:end])
            tester = types.SimpleNamespace(test=lambda text: Case(template, text))
            try:
                case = eval(text, {}, Names({**names, "tst": tester}))
            except Exception as error:
                print("not understood:", template, error, text[:100], file=sys.stderr)
                case = None
            if case is not None and case.skipped is None:
                cases.append({"from": "llama.cpp", **case.case})
            else:
                skipped += 1
            at = end
        at += 1
    return cases


# Templates of that test, and the name that Brasa has for their form. Other templates are left out.
FORMATS = {
    None: "lfm2",
    "ByteDance-Seed-OSS": "seed-oss",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "Kimi-K2-Thinking": "kimi-k2",
    "LFM2.5-8B-A1B": "lfm2",
    "MiniMax-M2": "minimax-m2",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron-nano",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek",
    "google-gemma-4-31B-it": "gemma-4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3",
    "ibm-granite-granite-4.0": "hermes",
    "llama-cpp-deepseek-r1": "deepseek",
    "meta-llama-Llama-3.1-8B-Instruct": "llama-3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "openai-gpt-oss-120b": "gpt-oss",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}

STARTS = ("<|channel|>analysis<|message|>", "<|channel>thought", "[THINK]", "<seed:think>", "<|START_THINKING|>", "<think>")


def with_prompt(case, folder, tokenizer):
    """The case with the mark of its template's thoughts, and with the end of the prompt that it answers."""
    if case.pop("splits").endswith("NONE"):
        return case
    name = case["template"] or "LFM2.5-8B-A1B"
    source = (folder / f"models/templates/{name}.jinja").read_text(encoding="utf-8")
    case["thoughts"] = next((start for start in STARTS if start in source), None)
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=True, enable_thinking=case["thinking"]
    )
    return {**case, "prompt": prompt[-40:]}


# --- SGLang: its detectors run on texts.


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("get_weather", city=STRING, days=INTEGER, metric={"type": "boolean"}),
    tool("write_file", path=STRING, text=STRING),
    tool("plan", steps={"type": "array"}, options={"type": "object"}, note={"type": ["string", "null"]}),
    tool("ns.now"),
]
CODE = 'fn main() {\n    println!("</b> {}", "\\n");\n}\n'
PLAN = {"steps": [{"do": "a, b", "n": [1, 2.5, -3e2]}, {}, []], "options": {"x": None, "y": {"z": True}}, "note": "é 🙂 \"q\""}
ARGUMENTS = [
    ("get_weather", {"city": "Paris"}),
    ("get_weather", {"city": "San José, \"CR\"", "days": -3, "metric": False}),
    ("write_file", {"path": "a/b.rs", "text": CODE}),
    ("plan", PLAN),
    ("ns.now", {}),
]


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def tagged(open, close, arguments):
    return open + "".join(arguments) + close


def plain(value):
    return value if isinstance(value, str) else dumps(value)


def gemma(value):
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else dumps(value)


def python(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


# For each form: the detector, and a call's text.
FORMS = {
    "hermes": ("qwen25_detector.Qwen25Detector", lambda n, a: '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (n, dumps(a))),
    "qwen3-coder": (
        "qwen3_coder_detector.Qwen3CoderDetector",
        lambda n, a: f"<tool_call>\n<function={n}>\n"
        + "".join(f"<parameter={k}>\n{plain(v)}\n</parameter>\n" for k, v in a.items())
        + "</function>\n</tool_call>",
    ),
    "glm": (
        "glm4_moe_detector.Glm4MoeDetector",
        lambda n, a: f"<tool_call>{n}\n"
        + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{plain(v)}</arg_value>\n" for k, v in a.items())
        + "</tool_call>",
    ),
    "minimax-m2": (
        "minimax_m2.MinimaxM2Detector",
        lambda n, a: f'<minimax:tool_call>\n<invoke name="{n}">\n'
        + "".join(f'<parameter name="{k}">{plain(v)}</parameter>\n' for k, v in a.items())
        + "</invoke>\n</minimax:tool_call>",
    ),
    "gemma-4": ("gemma4_detector.Gemma4Detector", lambda n, a: f"<|tool_call>call:{n}{gemma(a)}<tool_call|>"),
    "llama-3": ("llama32_detector.Llama32Detector", lambda n, a: '<|python_tag|>{"name": "%s", "parameters": %s}' % (n, dumps(a))),
    "lfm2": ("lfm2_detector.Lfm2Detector", lambda n, a: f"<|tool_call_start|>[{python(n, a)}]<|tool_call_end|>"),
    "mistral": ("mistral_detector.MistralDetector", lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}"),
    "deepseek": (
        "deepseekv31_detector.DeepSeekV31Detector",
        lambda n, a: f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi-k2": (
        "kimik2_detector.KimiK2Detector",
        lambda n, a: "<|tool_calls_section_begin|><|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>%s<|tool_call_end|>"
        "<|tool_calls_section_end|>" % (n, dumps(a)),
    ),
}

# Texts that are not made of one form's parts.
MORE = [
    ("llama-3", "llama32_detector.Llama32Detector", '{"name": "get_weather", "parameters": {"city": "Paris"}}'),
    (
        "llama-3",
        "llama32_detector.Llama32Detector",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}};{"name": "get_weather", "parameters": {"city": "Rome"}}',
    ),
    ("llama-3", "pythonic_detector.PythonicDetector", "[get_weather(city='Paris', days=2), write_file(path=\"a\", text='it\\'s\\n')]"),
    ("llama-3", "pythonic_detector.PythonicDetector", "[plan(steps=[{'a': (1, 2)}, None], options={\"k\": {'x': True}}, note=None)]"),
    (
        "mistral",
        "mistral_detector.MistralDetector",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ns.now", "arguments": {}}]',
    ),
    (
        "mistral",
        "mistral_detector.MistralDetector",
        'Two. [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "[TOOL_CALLS] ]"}}]',
    ),
    (
        "deepseek",
        "deepseekv3_detector.DeepSeekV3Detector",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ns.now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
]


def detectors():
    """SGLang's detectors, without the rest of SGLang."""
    import importlib
    import os

    import pydantic

    root = next(path for path in sys.path if os.path.isdir(f"{path}/sglang"))
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai"):
        module = types.ModuleType(name)
        module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        sys.modules[name] = module

    class Function(pydantic.BaseModel):
        name: str
        description: str | None = None
        parameters: dict | None = None
        strict: bool = False

    class Tool(pydantic.BaseModel):
        type: str = "function"
        function: Function

    class Off:
        def __getattr__(self, _):
            return Off()

        def get(self):
            return False

    protocol = types.ModuleType("sglang.srt.entrypoints.openai.protocol")
    protocol.Tool, protocol.Function, protocol.ToolChoice = Tool, Function, object
    environ = types.ModuleType("sglang.srt.environ")
    environ.envs = Off()
    sys.modules[protocol.__name__] = protocol
    sys.modules[environ.__name__] = environ

    def detect(path, text):
        module, name = path.split(".")
        detector = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), name)()
        found = detector.detect_and_parse(text, [Tool(**tool) for tool in TOOLS])
        return found.normal_text, [[call.name, call.parameters, ""] for call in found.calls]

    return detect


def from_sglang():
    detect = detectors()
    cases = []

    def add(format, path, text):
        content, calls = detect(path, text)
        cases.append({"from": "sglang", "format": format, "text": text, "content": content, "reasoning": "", "calls": calls})

    for format, (path, write) in FORMS.items():
        calls = [write(name, arguments) for name, arguments in ARGUMENTS]
        for call in calls:
            add(format, path, call)
        add(format, path, "No call here: 1 < 2, [x] and {y}.\nDone.")
        # Llama calls nothing behind text.
        add(format, path, "Let me look.\n\n" + calls[0])
        if format not in ("llama-3", "deepseek", "kimi-k2", "lfm2"):
            add(format, path, "\n".join([calls[0], calls[2], calls[4]]))
    for format, path, text in MORE:
        add(format, path, text)
    return cases


def main():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    folder = pathlib.Path(sys.argv[1])
    cases = []
    for case in from_llama_cpp(folder / "tests/test-chat.cpp"):
        # Brasa always takes thoughts apart. Its streams do not show Command R's marks around text, and it takes gpt-oss's
        # channels for thoughts unless they are calls.
        text, splits = case["text"], not case["splits"].endswith("NONE")
        other = not splits and ("THINK" in text.upper() or "thought" in text)
        other = other or "_RESPONSE|>" in text or ("<|message|>" in text and not case["calls"])
        if case["template"] in FORMATS and not other:
            cases.append({**with_prompt(case, folder, tokenizer), "format": FORMATS[case["template"]]})
    cases += from_sglang()
    golden = {"tools": TOOLS, "cases": cases}
    packed = lzma.compress(json.dumps(golden, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME)
    pathlib.Path(sys.argv[2]).write_bytes(packed)
    called = sum(bool(case["calls"]) for case in cases)
    print(f"{len(cases)} cases, {called} of them with calls, {len(packed)} bytes")


main()
