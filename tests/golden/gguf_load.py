#!/usr/bin/env python3
"""Loads a GGUF file that Rigel wrote in llama.cpp and compares tokens and a greedy continuation.

    python3 -m venv target/llama && target/llama/bin/pip install llama-cpp-python==0.3.36
    rigel convert DIR -o MODEL.gguf
    rigel generate -m DIR --temperature 0 -n 16 --json TEXT > REPORT.json
    target/llama/bin/python tests/golden/gguf_load.py MODEL.gguf REPORT.json TEXT
"""

import json
import sys

import numpy as np
from llama_cpp import Llama

model, report, text = sys.argv[1:]
with open(report) as file:
    expected = json.load(file)
llama = Llama(model, n_ctx=256, verbose=False, logits_all=True)
ids = llama.tokenize(text.encode(), add_bos=False, special=False)
assert ids == expected["prompt_ids"], (ids, expected["prompt_ids"])
llama.eval(ids)
found = []
for _ in expected["ids"]:
    found.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
    llama.eval(found[-1:])
assert found == expected["ids"], (found, expected["ids"])
print(f"{len(ids)} tokens and {len(found)} of a continuation are equal")
