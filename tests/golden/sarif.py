"""Holds Rigel's SARIF to the schema of SARIF 2.1.0.

    python3 tests/golden/sarif.py [FILE...]

Without arguments it judges the report that the tests of the crate `analysis` record; with arguments, files that
`rigel check --format sarif` wrote. The schema comes from the crate `serde-sarif`, which cargo fetches, and is not
committed. Needs `jsonschema` (4.26). Prints one line a file; fails on the first error of the schema.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema

CRATE = "serde-sarif", "=0.8.0"
SNAPSHOT = "crates/analysis/tests/snapshots/check__sarif.snap"


def schema():
    """The schema in the crate's sources."""
    name, version = CRATE
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "src").mkdir()
        (root / "src/lib.rs").write_text("")
        manifest = f'[package]\nname = "schema"\nedition = "2021"\n[dependencies]\n{name} = "{version}"\n'
        (root / "Cargo.toml").write_text(manifest)
        metadata = subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--manifest-path", root / "Cargo.toml"],
            check=True,
            capture_output=True,
        )
        packages = json.loads(metadata.stdout)["packages"]
        (package,) = [p for p in packages if p["name"] == name]
        return json.loads((Path(package["manifest_path"]).parent / "src/schema.json").read_text())


def report(path):
    """The report in a file, behind the header of a snapshot if it has one."""
    text = Path(path).read_text()
    return json.loads(text.split("\n---\n", 1)[1] if text.startswith("---\n") else text)


def main():
    root = Path(__file__).resolve().parents[2]
    files = sys.argv[1:] or [root / SNAPSHOT]
    rules = schema()
    validator = jsonschema.validators.validator_for(rules)(rules)
    for path in files:
        found = report(path)
        validator.validate(found)
        print(f"{path}: {len(found['runs'][0]['results'])} results, valid")


if __name__ == "__main__":
    main()
