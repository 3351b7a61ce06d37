"""GGUF block formats: random blocks and what the `gguf` package decodes them to: blocks/<TYPE>.json.

`bytes_hex` is the stored bytes of four blocks (of 32 values for F16 and BF16), `f32_bits_hex` the little-endian
f32 of every element in order. The package computes in f32 without fused multiply-add, so a decoder that
does the same operations in the same order agrees to the bit. Quants, packed sub-scales and high bits are
uniformly random; the f16 scales of the blocks are one of each kind: ordinary, negative, subnormal, large.

`encoded/Q8_0.json` is the other way: `f32_bits_hex` is random values, `bytes_hex` what the package encodes them to.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize, GGML_QUANT_SIZES

# Where each block holds its f16 scales, in bytes from its start.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
}
BLOCKS = 4
# f16 scales of the four blocks; the second of a pair takes them in reverse.
KINDS = np.array([0.0123, -0.875, 5.0e-6, 96.5], dtype="<f2")


def floats(rng, name):
    """Finite 16-bit floats of every exponent, among them both zeros, subnormals and the extremes."""
    exponents, mantissa = (31, 10) if name == "F16" else (255, 7)
    bits = rng.integers(0, exponents, 32) << mantissa | rng.integers(0, 1 << mantissa, 32) | rng.integers(0, 2, 32) << 15
    bits[:6] = [0, 1 << 15, 1, (1 << mantissa) - 1, (exponents << mantissa) - 1, 1 << 15 | (exponents << mantissa) - 1]
    return bits.astype("<u2").view(np.uint8)


def blocks(rng, name):
    """Random blocks of a quantised type, with sane scales."""
    size = GGML_QUANT_SIZES[Type[name]][1]
    data = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for place, order in zip(SCALES[name], (KINDS, KINDS[::-1].copy())):
        data[:, place : place + 2] = order.view(np.uint8).reshape(BLOCKS, 2)
    return data.reshape(-1)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, default=Path(__file__).parent / "blocks")
    out = args.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in ["F16", "BF16", *SCALES]:
        rng = np.random.default_rng(list(name.encode()))
        data = blocks(rng, name) if name in SCALES else floats(rng, name)
        values = dequantize(data, Type[name]).astype("<f4")
        assert np.isfinite(values).all()
        text = json.dumps({"bytes_hex": data.tobytes().hex(), "f32_bits_hex": values.tobytes().hex()}, indent=2)
        (out / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {data.size} bytes, {values.size} values, {values.min():.4g}..{values.max():.4g}")
    rng = np.random.default_rng(8)
    values = rng.standard_normal((BLOCKS, 32)).astype("<f4") * np.array([[1], [1e-3], [0], [300]], dtype="<f4")
    values[0, 0] = 127  # A scale of 1, so that halves are met:
    values[0, 1:5] = [0.5, -0.5, 1.5, 2.5]
    encoded = quantize(values.reshape(-1), Type.Q8_0)
    text = json.dumps({"bytes_hex": encoded.tobytes().hex(), "f32_bits_hex": values.tobytes().hex()}, indent=2)
    (out / "encoded").mkdir(exist_ok=True)
    (out / "encoded" / "Q8_0.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
