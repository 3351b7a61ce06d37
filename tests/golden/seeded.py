"""Deterministic model weights from (seed, tensor name, length), the same to the bit as crates/testkit/src/seeded.rs.

One stream per tensor: splitmix64 whose state starts at fnv1a64(utf8 name) XOR seed. The top 24 bits m of its
k-th output give the unit value u_k = (m - 2^23) / 2^23, in [-1, 1) and exact in f32. The element is
f32(f32(u_k * scale) + offset): one f32 multiplication and, for norms only, one f32 addition. Elements
follow the row-major order of the shape under which Hugging Face stores the tensor (GPT-2's Conv1D: [in, out]).

Scale and offset come from the name alone: the `weight` of a norm (its module's name contains `norm` or
starts with `ln_`) is 1 + 0.1 u; everything else, biases too, is 0.3 u. At width 48 a matrix of 0.3 u has a
gain of about 1.2, so attention scores and logits spread over a few units and a wrong position, mask or head shows.

Run as a program it prints the values that the Rust unit tests hold.
"""

import numpy as np

NORM = (np.float32(1.0), np.float32(0.1))
OTHER = (np.float32(0.0), np.float32(0.3))


def fnv1a64(text: str) -> int:
    """64-bit FNV-1a of the text's UTF-8 bytes."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def splitmix64(state: int, count: int) -> np.ndarray:
    """The first `count` outputs of splitmix64 from `state`."""
    z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def unit(seed: int, name: str, count: int) -> np.ndarray:
    """`count` f32 values in [-1, 1) for this tensor."""
    with np.errstate(over="ignore"):
        top = splitmix64(fnv1a64(name) ^ seed, count) >> np.uint64(40)
    return (top.astype(np.float32) - np.float32(2**23)) / np.float32(2**23)


def tensor(seed: int, name: str, count: int, scale: float) -> np.ndarray:
    """`count` f32 values in [-scale, scale)."""
    return unit(seed, name, count) * np.float32(scale)


def offset_and_scale(name: str) -> tuple[np.float32, np.float32]:
    """What the name says of a weight: the offset and the scale of its values."""
    module, last = ([""] + name.split("."))[-2:]
    is_norm = last == "weight" and ("norm" in module or module.startswith("ln_"))
    return NORM if is_norm else OTHER


def weight(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The f32 weight of this name and shape."""
    offset, scale = offset_and_scale(name)
    values = tensor(seed, name, int(np.prod(shape)), scale)
    if offset != 0:
        values = values + offset
    return values.reshape(shape)


if __name__ == "__main__":
    print("fnv1a64", [(s, hex(fnv1a64(s))) for s in ("", "a", "model.norm.weight")])
    print("splitmix64(0)", [hex(x) for x in splitmix64(0, 3)])
    for seed, name in [
        (0, "model.embed_tokens.weight"),
        (7, "model.layers.1.self_attn.q_norm.weight"),
        (7, "transformer.h.0.ln_1.bias"),
        (2**64 - 1, "名.norm.weight"),
    ]:
        values = weight(seed, name, (1000,))
        bits = [f"0x{b:08x}" for b in values[[0, 1, 2, 999]].view(np.uint32)]
        print(seed, name, offset_and_scale(name), bits, values[:3], "mean", values.mean())
