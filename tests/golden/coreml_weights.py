"""Golden weights: what coremltools makes of the compressed packages in ../shared/coreml.

Each package is decompressed by `coremltools.optimize.coreml.decompress_weights`. A line in
coreml_weights.txt has, for the weight of each `linear` operation in order, the package, the shape of the
half-precision weight and the 64-bit FNV-1a hash of its bytes.

Run with coremltools 9.0 and scikit-learn: python coreml_weights.py ../../../shared/coreml
"""

import sys
import tempfile
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil.frontend.milproto import load


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def operations(package: Path):
    model = ct.models.MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    program = load.load(spec, spec.specificationVersion, model.weights_dir)
    return list(program.functions["main"].operations)


def weights(package: Path):
    model = cto.decompress_weights(ct.models.MLModel(str(package), skip_model_load=True))
    with tempfile.TemporaryDirectory() as folder:
        dense = Path(folder) / "dense.mlpackage"
        model.save(str(dense))
        for op in operations(dense):
            if op.op_type == "linear":
                value = np.ascontiguousarray(op.weight.val)
                assert value.dtype == np.float16
                yield f"{package.stem} {'x'.join(map(str, value.shape))} {fnv1a(value.tobytes()):016x}"


def main() -> None:
    lines = []
    for text in sorted(Path(sys.argv[1]).glob("*.mil")):
        if "constexpr_" in text.read_text(encoding="utf-8"):
            lines += weights(text.with_suffix(".mlpackage"))
    target = Path(__file__).with_name("coreml_weights.txt")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
