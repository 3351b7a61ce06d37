#!/usr/bin/env python3
"""Makes seeds for the fuzz targets: small whole files of every format, in corpus/TARGET.

Usage: python3 fuzz/seeds.py [SHARED]

The files of models are made here, a few bytes each. Programs and packages are copied from the shared
Core ML artefacts in SHARED (by default ../shared beside the repository), if they are there.
"""

import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Longer ones slow the fuzzer more than they teach it.
LONGEST = 4096


def put(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def gguf():
    def string(s, size="Q"):
        return struct.pack("<" + size, len(s)) + s

    scalars = [
        (0, "B", 1), (1, "b", -1), (2, "H", 2), (3, "h", -2), (4, "I", 3), (5, "i", -3),
        (6, "f", 0.5), (7, "B", 1), (10, "Q", 4), (11, "q", -4), (12, "d", 0.25),
    ]
    values = [
        string(b"v%d" % kind) + struct.pack("<I" + form, kind, value) for kind, form, value in scalars
    ]
    values.append(string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama"))
    values.append(string(b"general.alignment") + struct.pack("<II", 4, 32))
    strings = b"".join(string(s) for s in (b"a", b"", "é".encode()))
    values.append(string(b"tokens") + struct.pack("<IIQ", 9, 8, 3) + strings)
    values.append(string(b"floats") + struct.pack("<IIQ2f", 9, 6, 2, 1, 2))
    inner = struct.pack("<IQ2I", 4, 2, 1, 2)
    values.append(string(b"nested") + struct.pack("<IIQ", 9, 9, 1) + inner)
    # Type, bytes of a block, elements of a block.
    types = [(0, 4, 1), (1, 2, 1), (2, 18, 32), (3, 20, 32), (6, 22, 32), (7, 24, 32), (8, 34, 32),
             (12, 144, 256), (14, 210, 256), (16, 66, 256), (30, 2, 1)]
    for version in (2, 3):
        infos, data = b"", b""
        for kind, size, block in types:
            infos += string(b"t%d" % kind) + struct.pack("<I2QIQ", 2, block, 2, kind, len(data))
            data += bytes(2 * size)
            data += bytes(-len(data) % 32)
        head = b"GGUF" + struct.pack("<IQQ", version, len(types), len(values))
        head += b"".join(values) + infos
        put("gguf", f"all_types.{version}.gguf", head + bytes(-len(head) % 32) + data)
    put("gguf", "empty.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))


def safetensors():
    def file(header, data):
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
             "BOOL": 1, "F8_E4M3": 1}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": name, "shape": [2, 1], "data_offsets": [at, at + 2 * size]}
        at += 2 * size
    header["scalar"] = {"dtype": "F32", "shape": [], "data_offsets": [at, at + 4]}
    header["none"] = {"dtype": "F32", "shape": [0, 7], "data_offsets": [at + 4, at + 4]}
    put("safetensors", "all_types.safetensors", file(header, bytes(at + 4)))
    put("safetensors", "empty.safetensors", file({}, b""))


def llama2c():
    dim, hidden, layers, heads, kv_heads, vocab, length = 4, 4, 1, 2, 1, 3, 2
    head = dim // heads
    kv = kv_heads * head
    matrices = vocab * dim + layers * (2 * dim * dim + 2 * dim * kv + 3 * dim * hidden)
    norms = (2 * layers + 1) * dim
    sizes = (dim, hidden, layers, heads, kv_heads)
    # The legacy file ends with two tables of rotations, and with the output matrix if that is no
    # other's.
    old = 4 * (matrices + norms + length * head)
    put("llama2c", "shared.0.bin", struct.pack("<7i", *sizes, vocab, length) + bytes(old))
    own = old + 4 * vocab * dim
    put("llama2c", "own.0.bin", struct.pack("<7i", *sizes, -vocab, length) + bytes(own))
    for version in (1, 2):
        for shared in (0, 1):
            header = struct.pack("<II7iB", 0x616B3432, version, *sizes, vocab, length, shared)
            if version == 2:
                header += struct.pack("<i", 4)
            count = matrices + (0 if shared else vocab * dim)
            body = 4 * (count + norms) if version == 1 else 4 * norms + count + 4 * (count // 4)
            name = f"{'shared' if shared else 'own'}.{version}.bin"
            put("llama2c", name, header.ljust(256, b"\0") + bytes(body))


def tokenizer_files():
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b" ", b"a", "é".encode(), b"<0x0A>", b" a"]
    body = b"".join(struct.pack("<fi", -i, len(p)) + p for i, p in enumerate(pieces))
    put("tokenizer_files", "llama2c.bin", struct.pack("<i", max(map(len, pieces))) + body)

    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    def piece(text, score, kind):
        return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))

    kinds = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3), (b"<0x0A>", 6), ("▁a".encode(), 1), (b"u", 4),
             (b"x", 5)]
    model = b"".join(piece(text, -i, kind) for i, (text, kind) in enumerate(kinds))
    for kind in (1, 2):
        # Trainer: kind of model, byte fallback; normaliser: name, dummy prefix, whitespace.
        trainer = field(2, bytes([0x18, kind, 0x98, 0x02, 1]))
        normaliser = field(3, field(1, b"identity") + bytes([0x18, 1, 0x20, 0, 0x28, 1]))
        put("tokenizer_files", f"sentencepiece.{kind}.model", model + trainer + normaliser)


def programs(shared):
    for text in sorted(shared.glob("coreml/**/*.mil")):
        name = text.name.removesuffix(".mil")
        if text.stat().st_size <= LONGEST:
            put("mil_text", text.name, text.read_bytes())
        package = text.with_suffix(".mlpackage") / "Data" / "com.apple.CoreML"
        model, weights = package / "model.mlmodel", package / "weights" / "weight.bin"
        if model.stat().st_size <= LONGEST:
            put("mil_package", f"{name}.mlmodel", model.read_bytes())
        if weights.exists() and weights.stat().st_size <= LONGEST:
            put("mil_blob", f"{name}.bin", weights.read_bytes())
    for blobs in shared.glob("coreml/blobs/*.bin"):
        if blobs.stat().st_size <= LONGEST:
            put("mil_blob", blobs.name, blobs.read_bytes())


if __name__ == "__main__":
    gguf()
    safetensors()
    llama2c()
    tokenizer_files()
    programs(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / "shared")
