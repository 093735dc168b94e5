"""Golden cuts: how llama.cpp's patterns cut texts on which pre-tokenizers part.

usage: pre_tokenizers.py llama.cpp/src/llama-vocab.cpp OUT.json     (needs regex)

Reads the patterns of every `tokenizer.ggml.pre` out of llama.cpp's source (made with the copy in llama-cpp-python 0.3.36) and
cuts the texts with Python's `regex`: each pattern isolates its matches in the pieces that the one before it left. Names whose
cuts are the same are listed together.
"""

import ast
import json
import re
import sys

import regex

TEXTS = [
    "Don't  STOP'LL he'll 'stop it'sa",
    "1234567 x2001y 12",
    "٣٤٥٦ ½²³ १२३४",
    "!\n\n//\n/ ?!\r\n",
    "a  \n \t b\n\n\nc   ",
    "HelloWORLDabc iPhoneX Été",
    "漢字かなカナ한국어ㄱㄴ 中文。、！",
    "nai\u0308ve e\u0301te\u0301 \u0301x",
    "ไทยລາວខ្មែរ ကာ",
    "a.b,c;d (e) [f] {g}",
    "f(x) | y، z。w۔v",
    "<sentinel:12>IMGIMGABZ\tq    r  s",
    "$5+<=>^~|`#%&@ €π",
    "I will a e i o u",
    " lead x\u00a0y\u3000z",
    "12345!abc'll've 'S",
    "x_y-z.w 3.14 1,000,000 v2",
    "🙂🙂 ♥️ »q«",
    "Ünïcödé ß ſt ǅ ʼn",
    "line one\nline two\n\nend",
]


# Patterns that llama.cpp writes as code: digits in threes from the right, and the one in Kimi K2's own tokenizer.
LETTERS = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
BEFORE, BEHIND = "[^\\r\\n\\p{L}\\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
AS_CODE = {
    "\\p{AFMoE_digits}": "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
    "\\p{Han}+": "(?V1)\\p{Han}+|%s%s*%s+%s|%s%s+%s*%s" % ((BEFORE, *LETTERS, BEHIND) * 2)
    + "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
}


def patterns(source):
    """Patterns by enumerator, names by enumerator."""
    body = source[source.index("switch (vocab.get_pre_type())") :]
    found, waiting = {}, []
    for part in re.split(r"(case LLAMA_VOCAB_PRE_TYPE_\w+:|default:)", body[: body.index("default:") + 2000]):
        if label := re.match(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):|default:", part):
            waiting.append(label[1] or "DEFAULT")
        elif listed := re.search(r"regex_exprs = \{(.*?)\n\s*\};", part, re.S):
            lines = [line for line in listed[1].splitlines() if not line.strip().startswith("//")]
            strings = re.findall(r'"(?:[^"\\]|\\.)*"', "\n".join(lines))
            # Neighbouring strings are one; a comma ends it.
            parts = re.split(r",\s*(?=\n|$)", re.sub(r'//[^"\n]*$', "", "\n".join(lines), flags=re.M))
            texts = ["".join(unescape(s) for s in re.findall(r'"(?:[^"\\]|\\.)*"', part)) for part in parts]
            assert sum(map(len, strings)) >= sum(map(len, texts))
            # llama.cpp's own form of these takes marks for no letters; the models' form stands beside it as a comment.
            original = re.search(r'// original regex from tokenizer.json\n\s*// ?("(?:[^"\\]|\\.)*")', part)
            if original and {"TEKKEN", "GPT4O"} & set(waiting):
                texts = [unescape(original[1])]
            for name in waiting:
                found.setdefault(name, [text for text in texts if text])
            waiting = []
    names = {}
    names_of = re.compile(r"((?:\s*\|?\|?\s*tokenizer_pre == \"[^\"]+\"\s*)+)\)\s*\{\s*pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);")
    for group, kind in names_of.findall(source):
        for name in re.findall(r'"([^"]+)"', group):
            names[name] = kind
    return found, names


def unescape(literal):
    # A C string: its escapes are Python's, but bytes are UTF-8 already.
    return ast.literal_eval(re.sub(r'[^\x00-\x7f]', lambda c: f"\\U{ord(c[0]):08x}", literal))


def cut(text, expressions):
    pieces = [text]
    for expression in expressions:
        compiled, cuts = regex.compile(AS_CODE.get(expression, expression)), []
        for piece in pieces:
            done = 0
            for found in compiled.finditer(piece):
                if found.end() > found.start():
                    cuts += [piece[done : found.start()], found[0]]
                    done = found.end()
                elif found.start() > done:
                    # An empty match cuts between two characters.
                    cuts.append(piece[done : found.start()])
                    done = found.start()
            cuts.append(piece[done:])
        pieces = [piece for piece in cuts if piece]
    return pieces


def main():
    source = open(sys.argv[1], encoding="utf-8").read()
    by_kind, names = patterns(source)
    groups = {}
    for name, kind in sorted(names.items()):
        if kind not in by_kind:
            kind = "DEFAULT"
        cuts = [cut(text, by_kind[kind]) for text in TEXTS]
        groups.setdefault(json.dumps(cuts, ensure_ascii=False), []).append(name)
    out = [{"names": names, "cuts": json.loads(cuts)} for cuts, names in groups.items()]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"texts": TEXTS, "groups": out}, file, ensure_ascii=False, indent=1)
        file.write("\n")
    print(len(names), "names,", len(out), "ways to cut")


main()
