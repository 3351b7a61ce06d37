#!/usr/bin/env python3
"""Makes the text that the stories model is trained on: SmolLM2-135M-Instruct writes it, and this cleans it.

    python3 docs/stories/write.py --rigel RIGEL --out DIR [--prompts 144]

For each prompt RIGEL continues it 32 times at once (`rigel generate --samples`); DIR/raw.jsonl keeps what came, and a
prompt that is in it already is not asked again, so that a run which was stopped goes on. Then all of it is cleaned:
stories end at their last whole sentence, before a sentence that they have said already; those that speak of themselves,
are short, or hold digits or signs of markup are dropped. The stories of every 32nd prompt go to DIR/held-out.jsonl, the
others to DIR/stories.jsonl.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path

SAMPLES = 32
HELD_OUT = 32
SHORTEST = 200

PERSONS = """a girl named Anna; a boy named Tom; a girl named Lily; a boy named Ben; a girl named Mia; a boy named Max; a girl
named Lucy; a boy named Jack; a girl named Rose; a boy named Sam; two friends, Emma and Leo; a grandmother and her grandson;
a king; a queen; a princess; a farmer; a baker; an old fisherman; a young shepherd; a little fox; a small rabbit; a brown bear;
a duck; an owl; a grey mouse; a cat; a puppy; a pony; a hen; a frog; a bee; a squirrel; a hedgehog; a bird with a blue
feather; an old turtle; a kind dragon; a small robot; a snowman; a witch who is nice; a wooden toy horse"""
DEEDS = """finds a key; loses a hat; wants to fly; helps a friend; is afraid of the dark; gets lost in the forest; finds a
little boat; plants a seed; bakes a cake; learns to swim; sees the sea for the first time; hears a strange noise at night;
makes a new friend; finds an egg; wants to see the moon; climbs a tall tree; shares an apple; is alone and sad; cannot sleep;
waits for the snow; builds a house; says sorry; looks for a lost ball; learns to sing; finds a red balloon; is kind to a
stranger; wakes up early; crosses a river; tells a lie; gives a gift to mother; goes to the market; has a birthday; helps in
the garden; finds a map; hides from the rain; makes soup; wins a race; loses a shoe; meets a giant; catches a star"""
PLACES = "in a garden; in a village; near a river; on a farm; in the forest; by the sea; in a small house; on a hill"
PROMPT = (
    "Write a very short story for a little child, in easy words and short sentences. It is about {person} who {deed} "
    "{place}. Begin with: {begin}"
)
BEGINNINGS = ["Once upon a time", "Once upon a time", "Once upon a time", "One day", "There was once"]
SAMPLING = ["--temperature", "0.6", "--repetition-penalty", "1.05", "--max-tokens", "240", "--precision", "bf16"]

PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": " - ", "–": "-", "…": "..."})
OF_ITSELF = re.compile(r"\b(story|stories|tale|AI|assistant|title|chapter|paragraph|characters?)\b|[*_#<>\[\]{}@/\\]|:\n", re.I)
# A sentence with what follows it, its closing quotation mark included.
SENTENCE = re.compile(r'.*?[.!?]+"?(?=\s|$)\s*', re.S)


def prompts(number):
    """Prompts, no two alike."""
    words = [[" ".join(word.split()) for word in text.split(";")] for text in (PERSONS, DEEDS, PLACES)]
    draw = random.Random(5)
    found = []
    while len(found) < number:
        person, deed, place = (draw.choice(of) for of in words)
        prompt = PROMPT.format(person=person, deed=deed, place=place, begin=draw.choice(BEGINNINGS))
        if prompt not in found:
            found.append(prompt)
    return found


def ask(rigel, prompt, seed):
    """What the model writes, SAMPLES times."""
    command = [rigel, "generate", "--chat", "--model", "smollm2-135m", "--json", *SAMPLING]
    command += ["--samples", str(SAMPLES), "--seed", str(seed), "--", prompt]
    answers = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [answer["text"] for answer in answers]


def clean(text):
    """The story in `text`, or nothing."""
    text = text.translate(PLAIN).strip().strip('"').strip()
    text = re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n\n", text))
    said, kept = set(), []
    for sentence in SENTENCE.findall(text):
        words = " ".join(re.findall(r"[a-z']+", sentence.lower()))
        if words in said:
            break
        said.add(words)
        kept.append(sentence)
    story = "".join(kept).strip()
    if story.count('"') % 2:
        # A speech that has no end.
        story = story[: story.rindex('"')].rstrip(' ,')
        story = story[: max(story.rfind(mark) for mark in ".!?") + 1]
    fine = len(story) >= SHORTEST and story.isascii() and story[0].isupper() and not OF_ITSELF.search(story)
    return story if fine and not re.search(r"\d", story) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rigel", required=True, help="the program")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=144)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    raw = given.out / "raw.jsonl"
    answers = {}
    if raw.exists():
        # A line without an end was cut off.
        whole = [line for line in raw.read_text().splitlines(keepends=True) if line.endswith("\n")]
        raw.write_text("".join(whole))
        answers = {line["prompt"]: line["answers"] for line in map(json.loads, whole)}
    wanted = prompts(given.prompts)
    for seed, prompt in enumerate(wanted):
        if prompt not in answers:
            answers[prompt] = ask(given.rigel, prompt, 1000 * seed)
            with raw.open("a") as file:
                file.write(json.dumps({"prompt": prompt, "answers": answers[prompt]}) + "\n")
            print(f"{seed + 1} of {len(wanted)}", flush=True)
    held_out, trained = [], []
    for number, prompt in enumerate(wanted):
        part = held_out if number % HELD_OUT == HELD_OUT - 1 else trained
        part += filter(None, map(clean, answers[prompt]))
    trained = [story for story in trained if story not in held_out]
    for name, part in [("stories", trained), ("held-out", held_out)]:
        lines = "".join(json.dumps({"text": story}) + "\n" for story in part)
        (given.out / f"{name}.jsonl").write_text(lines)
        print(f"{name}: {len(part)} stories, {sum(map(len, part)):,} characters")


if __name__ == "__main__":
    main()
