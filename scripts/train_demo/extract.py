"""Extraction by the demonstration model with a schema, and without: a name, a number and a colour of a sentence.

    python extract.py --url http://127.0.0.1:8000

Two kinds of sentence, drawn with a seed: with the names of the fields in it, as in the task `json`, and one that only tells it,
in the form of the task `reading`. Each is asked for free, under the schema, and under an expression of the same language without
spaces behind colons and commas, which the model was not trained on. Needs only Python's standard library.
"""

import argparse
import json
import random
import re

import facts
from evaluate import over_http

NAME = "[A-Z][a-z]+"
SCHEMA = {"type": "object",
          "properties": {"name": {"type": "string", "pattern": f"^{NAME}$"}, "count": {"type": "integer", "minimum": 0, "maximum": 999},
                         "color": {"enum": facts.COLORS}},
          "required": ["name", "count", "color"], "additionalProperties": False}
COMPACT = r'\{"name":"%s","count":(0|[1-9][0-9]{0,2}),"color":"(%s)"\}' % (NAME, "|".join(facts.COLORS))
WAYS = {"free": {}, "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "things", "schema": SCHEMA}}},
        "compact": {"structured_outputs": {"regex": COMPACT}}}
SENTENCES = {"named": "The name is {name}, the count is {count} and the color is {color}.", "told": "{name} has {count} {color} {things}."}
PROMPT = "Make JSON from {sentence}"


def draw(kind, n, seed):
    """Prompts, in the form of `evaluate.py`, and what is to be extracted."""
    r = random.Random(seed)
    for _ in range(n):
        wanted = {"name": r.choice(facts.NAMES), "count": r.randint(2, 50), "color": r.choice(facts.COLORS)}
        thing = r.choice(facts.OBJECTS)
        sentence = SENTENCES[kind].format(**wanted, things=thing + ("es" if thing.endswith("x") else "s"))
        yield {"messages": [{"role": "user", "content": PROMPT.format(sentence=sentence)}]}, wanted


def parsed(text):
    """The object that `text` is, or None if the schema does not allow it."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    fits = (isinstance(value, dict) and set(value) == set(SCHEMA["required"]) and isinstance(value["name"], str) and re.fullmatch(NAME, value["name"])
            and type(value["count"]) is int and 0 <= value["count"] <= 999 and value["color"] in facts.COLORS)
    return value if fits else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", required=True)
    p.add_argument("--concurrency", type=int, default=4)
    p.add_argument("--sentences", type=int, default=200, help="of each kind")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--show", type=int, default=0, help="print so many wrong answers of each row")
    a = p.parse_args()
    print("| sentence | answer | valid | exact | name | count | color |\n| --- | --- | --- | --- | --- | --- | --- |")
    for kind in SENTENCES:
        entries, wanted = zip(*draw(kind, a.sentences, a.seed))
        for way, extra in WAYS.items():
            texts = [text for text, *_ in over_http(entries, a.url, a.concurrency, None, 96, extra)]
            values = [parsed(text) for text in texts]
            counts = [sum(v is not None for v in values), sum(v == w for v, w in zip(values, wanted))]
            counts += [sum(v is not None and v[key] == w[key] for v, w in zip(values, wanted)) for key in SCHEMA["required"]]
            print(f"| {kind} | {way} |", *(f"{count} |" for count in counts), flush=True)
            wrong = [(e["messages"][0]["content"], text) for e, text, v, w in zip(entries, texts, values, wanted) if v != w]
            for prompt, text in wrong[:a.show]:
                print(f"  {prompt!r} -> {text!r}")


if __name__ == "__main__":
    main()
