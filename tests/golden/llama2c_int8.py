"""A small llama2.c int8 checkpoint (version 2) and the f32 weights it stands for: llama2c_int8.json.

The layout is that of llama2.c's int8 runtime: `ak42`, version, seven dimensions, the shared-classifier flag, the
group size, zeros up to byte 256; then the norms in f32 (all attention norms, all feed-forward norms, the last
norm); then embedding, query, key, value, output, gate, down and up matrices kind by kind, layer by layer, and the
classifier, each as its int8 weights followed by one f32 scale for every group of consecutive weights. A weight is
its int8 times its group's scale, one f32 multiplication.

`file_hex` is the checkpoint; `tensors` maps the name that Hugging Face's Llama gives a weight to its shape and the
little-endian f32 of every element in row-major order.
"""

import json
import struct
from pathlib import Path

import numpy as np

import seeded

SEED = 20
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ = 8, 12, 2, 2, 1, 6, 16
GROUP = 4
KV_DIM = DIM // HEADS * KV_HEADS

MATRICES = [
    ("self_attn.q_proj", (DIM, DIM)),
    ("self_attn.k_proj", (KV_DIM, DIM)),
    ("self_attn.v_proj", (KV_DIM, DIM)),
    ("self_attn.o_proj", (DIM, DIM)),
    ("mlp.gate_proj", (HIDDEN, DIM)),
    ("mlp.down_proj", (DIM, HIDDEN)),
    ("mlp.up_proj", (HIDDEN, DIM)),
]


def quantize(values):
    """Symmetric int8 in [-127, 127] with a scale for each group, and the values they stand for."""
    groups = values.reshape(-1, GROUP)
    scales = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    quants = np.round(groups / scales).astype(np.int8)
    restored = quants.astype(np.float32) * scales
    return quants.tobytes() + scales.astype("<f4").tobytes(), restored.reshape(values.shape)


def main():
    header = b"24ka" + struct.pack("<8iBi", 2, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ, 0, GROUP)
    chunks, tensors = [header.ljust(256, b"\0")], {}

    def add(name, shape):
        values = seeded.weight(SEED, name, shape)
        if len(shape) == 1:
            stored = values.astype("<f4").tobytes()
        else:
            stored, values = quantize(values)
        chunks.append(stored)
        tensors[name] = {"shape": list(shape), "f32_hex": values.astype("<f4").tobytes().hex()}

    for norm in ("input_layernorm", "post_attention_layernorm"):
        for layer in range(LAYERS):
            add(f"model.layers.{layer}.{norm}.weight", (DIM,))
    add("model.norm.weight", (DIM,))
    add("model.embed_tokens.weight", (VOCAB, DIM))
    for kind, shape in MATRICES:
        for layer in range(LAYERS):
            add(f"model.layers.{layer}.{kind}.weight", shape)
    add("lm_head.weight", (VOCAB, DIM))

    out = Path(__file__).parent / "llama2c_int8.json"
    golden = {"group_size": GROUP, "file_hex": b"".join(chunks).hex(), "tensors": tensors}
    out.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
