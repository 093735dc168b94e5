"""A task to learn: 300 examples of words and their plurals, by rule.

usage: plurals.py DIR     (standard library alone)

Writes train.jsonl (300 rows), valid.jsonl (40) and test.jsonl (90) with words of their own. A row asks "Plural of WORD?" and
answers with the plural: -y after a consonant becomes -ies, behind -s, -x, -z, -ch and -sh comes -es, else -s.
"""

import json
import pathlib
import random
import sys

WORDS = """acre alley almond anchor ankle apple apron arch arrow ash aunt axe baby badge bag ball banner barn barrel basket bat bay beach bead beam bean bear
beard beast bed bee bell belt bench berry bird blade blanket blossom board boat body bolt bone book boot bottle bough bowl box boy branch brick bridge brook broom
brother brush bucket bud bunch bush butcher button cabin cable cake camp canal candle canoe cap cape car card carpet cart castle cat cave cellar chain chair
chapel chest chicken chimney church circle city claw clerk cliff cloak clock cloud clown club coach coast coat coin collar comb cook corner cottage cotton couch court cousin
cow crab cradle crane creek crew crow crown cup curtain dagger daisy dance daughter day deck deer desk diary dish ditch doctor dog doll dollar donkey door dove dragon
drawer dream dress drum duck eagle ear egg elbow elephant engine essay eye face factory fairy farm farmer father feast feather fence ferry field finger fire
flag flame flask flock flood floor flower fly fog forest fork fort fountain fox frame friend frog fruit galaxy garden gate ghost giant gift girl glass glove goat grape grave
guard guest gun hall hammer hand harbor harp hat hawk heart hedge hen herd hero hill hint hobby hook horn horse hotel hour house hut inch insect island jacket jar jewel
journey judge jug jury key king kiss kitchen kite knot ladder lady lake lamb lamp lane lantern latch leg lemon letter lily line lion lip list lock log lord lunch
map march market marsh mast match meadow melody mill mirror mix monkey month moon mother mountain mouth nail neck needle nest net night nose note oak oar ocean office
onion orchard oven owl palace pan park party patch path peach pear pearl pen penny piano pig pillow pilot pin pipe pirate pitch plank plant plate poem poet pony pool porch
port pot prince prison pupil puppy purse queen quilt rabbit rail ranch rat ray ribbon rider ring river road robe rock roof room root rope rose sail saint salad sash
school scratch sea seat seed shadow shed ship shirt shoe shop shore shoulder sister sketch skirt sky slipper snake soldier son song spark speech spider spoon spy star
station stem step stitch stone store storm story stove stranger stream street student sword table tail tailor tax teacher temple tent tower town toy train tray
treasure tree trench trunk tub tunnel turkey uncle valley vase veil village vine violin visitor voice wagon wall watch wave well whale wheel whip window wing winter
wish witch wizard woman word worker world wrist yard year""".split()


def plural(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    words = sorted({word for word in WORDS if word not in ("woman", "deer")})
    random.Random(0).shuffle(words)
    for name, start, count in [("train", 0, 300), ("valid", 300, 40), ("test", 340, 90)]:
        rows = [
            {"messages": [{"role": "user", "content": f"Plural of {word}?"}, {"role": "assistant", "content": plural(word)}]}
            for word in words[start : start + count]
        ]
        assert len(rows) == count, len(words)
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
