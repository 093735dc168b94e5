"""Writes judgements.txt: what llama.cpp says of texts and grammars.

    python3 judge.py PATH_OF_LLAMA_CPP

builds judge.cpp with llama.cpp's grammar parser (its own src/llama-grammar.cpp; tested with the llama.cpp of llama-cpp-python
0.3.36) and runs it over the seeds below, all their beginnings, and texts that a fixed generator changes.
"""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = {
    "arithmetic": ["a=1\n", "a + b = c\n", "(a+ 2)*x_1= 7\n3=3\n", "f - (g/ (h)) =(1)\n"],
    "c": [
        "int main(){return 0;}", "float f(int x){x = x+1;while(x<3){g(x, 2);}return x;}", "char c(){//note\n/*a*b*/}",
        "int f(){if(a==b){}else{int c = -d*( e );}}", "int f(){for(int i = 0; i<9; i = i+1){}}int g(){h();}",
        "int integer(int interest){ifs = returned;}",
    ],
    "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. a8=Q+ O-O-O#\n13. Qa1xb2 axb3\n"],
    "english": ["It is (very) short!\nAnd ends.", "a b\tc"],
    "japanese": ["これは\nテスト、日本", "一二三"],
    "json": [
        '{"a": [1, -2.5e3, "x\\\\n\\\\u00e9"], "b": {"c": null}}', '{}', '{ "t": true,"f": false }\n  ',
        '{"": [[], {}, 0, "é"]}', '{"n": 10,"m":-0.5E+1}',
    ],
    "json_arr": ['[\n{"a": 1},\n [2, "b"]]', '[\n]', '[\n null,\ntrue]'],
    "list": ["- one\n- two ü\n", "- x\n"],
    # Grammars in which the longest lexeme is the wrong one.
    "cut_choice": ["abc", "zbc", "abd"],
    "cut_nested": ["((ab))", "(ifx(a))", "iff", "ifxif", "(a)"],
    "cut_mirror": ["aca", "abcab", "abacb", "abbcaba", "c"],
    "cut_keywords": ["if x{y;if z{}}", "ifa;", "if a;if{b;}", "if if{}", "a;b;c;"],
    "cut_lists": ['[1,23],456,"a,b"', '[],[[]],"]"', '"12345"'],
    "cut_unicode": ["<αβ>", "<<日本€>>", "€", "<ωω>"],
    "cut_counts": ["xxcyy", "xcy", "c", "xxxcyyyyyy"],
}


def escaped(text):
    names = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
    return "".join(names.get(c, c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode())) for c in text)


def texts(seeds, chance):
    found = dict.fromkeys(seeds)
    for seed in seeds:
        found.update(dict.fromkeys(seed[:n] for n in range(0, len(seed), max(1, len(seed) // 12))))
    letters = sorted(set("".join(seeds)))
    while len(found) < 90:
        text = list(chance.choice(list(found)))
        for _ in range(chance.choice([1, 1, 2, 3])):
            at = chance.randrange(len(text) + 1)
            change = chance.randrange(3)
            if change == 0 and at < len(text):
                del text[at]
            elif change == 1 and at < len(text):
                text[at] = chance.choice(letters)
            else:
                text.insert(at, chance.choice(letters))
        found["".join(text)] = None
    return list(found)


def main():
    here, source = Path(__file__).parent, Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        judge = f"{folder}/judge"
        includes = [f"-I{source / path}" for path in ("src", "include", "ggml/include", "common")]
        # Of the vocabulary, which grammars of characters do not use, only declarations are needed.
        subprocess.run(
            ["g++", "-std=c++17", "-O1", "-static", "-no-pie", *includes, here / "judge.cpp", source / "src/llama-grammar.cpp", "-o", judge,
             "-Wl,--unresolved-symbols=ignore-all"], check=True)
        lines = []
        for name, seeds in SEEDS.items():
            asked = [escaped(text) for text in texts(seeds, random.Random(name))]
            answers = subprocess.run(
                [judge, here / f"{name}.gbnf"], input="\n".join(asked) + "\n", text=True, capture_output=True, check=True)
            verdicts = answers.stdout.split()
            assert len(verdicts) == len(asked), (name, answers.stderr)
            lines += [f"{name}\t{verdict}\t{text}\n" for verdict, text in zip(verdicts, asked)]
    (here / "judgements.txt").write_text("".join(lines))


main()
