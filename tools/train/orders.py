"""A task to learn: orders in plain words, answered as JSON. 300 examples.

usage: orders.py DIR     (standard library alone)

A row is an order such as "Please send three red apples to David." and the answer
{"item": "apple", "count": 3, "colour": "red", "name": "David"}. Written are

- train.jsonl (300 rows), valid.jsonl (40), test.jsonl (100): orders of the same 40 things and 20 names; no order is in two files;
- unseen.jsonl (100): orders whose things and names are in none of the other files.
"""

import json
import pathlib
import random
import sys

THINGS = """apple arrow axe bag ball basket bed bell bird boat book bottle bow box bridge candle cat chain chair coat crown cup dog door
dress egg fish flag flower gate hat horse house key knife lamp ring rope sword table""".split()
UNSEEN_THINGS = """banner barrel bean belt blanket bone bowl brick broom bucket button cake camel cap carpet cart cloak coin curtain desk
drum feather fork fountain goat gun hammer jar kettle ladder lemon lock mirror nail needle net orange pen picture pillow plate shirt shoe spoon
stone ticket towel trumpet wagon wheel""".split()
NAMES = """Aaron Abraham Adam Anna Benjamin Caleb Daniel David Eli Esther Isaac Jacob Jonathan Joseph Joshua Mary Moses Peter Ruth Saul""".split()
UNSEEN_NAMES = """Andrew Deborah Elijah Elisha Ezra Gideon Hannah Isaiah Jeremiah John Leah Luke Mark Martha Noah Paul Rachel Samuel Sarah Simon""".split()
COLOURS = "red blue green white black yellow brown purple gray golden".split()
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12}
SENTENCES = [
    "Please send {number} {colour} {things} to {name}.",
    "{name} wants {number} {colour} {things}.",
    "I need {number} {colour} {things} for {name}.",
    "Bring {name} {number} {colour} {things}.",
    "{name} asks for {number} {things}, all of them {colour}.",
]


def plural(thing: str) -> str:
    if thing == "knife":
        return "knives"
    return thing + ("es" if thing.endswith(("s", "x", "z", "ch", "sh")) else "s")


def orders(chance: random.Random, count: int, things: list[str], names: list[str]) -> list[str]:
    """Distinct rows. Each thing comes about as often as any other."""
    rows: dict[str, str] = {}
    while len(rows) < count:
        for thing in chance.sample(things, len(things)):
            number, colour, name = chance.choice(list(NUMBERS)), chance.choice(COLOURS), chance.choice(names)
            text = chance.choice(SENTENCES).format(number=number, colour=colour, things=plural(thing), name=name)
            answer = json.dumps({"item": thing, "count": NUMBERS[number], "colour": colour, "name": name})
            messages = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
            rows[text] = json.dumps({"messages": messages}) + "\n"
    return list(rows.values())[:count]


def write(out: pathlib.Path) -> None:
    """Writes the four files into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    known = orders(chance, 440, THINGS, NAMES)
    files = {
        "train": known[:300],
        "valid": known[300:340],
        "test": known[340:],
        "unseen": orders(chance, 100, UNSEEN_THINGS, UNSEEN_NAMES),
    }
    for name, rows in files.items():
        (out / f"{name}.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
