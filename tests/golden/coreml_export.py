#!/usr/bin/env python3
"""Loads packages of language models that Rigel wrote into coremltools.

    python3 -m venv venv && venv/bin/pip install coremltools==9.0 'numpy==2.3.5'
    cargo run --release -- convert ../shared/models/stories260K.bin -o OUT/stories260K.mlpackage
    venv/bin/python tests/golden/coreml_export.py OUT/*.mlpackage

Each is opened as a model (`skip_model_load=True`) and its program as coremltools' own, which checks every operation
against the operation set. Every function must have its states in the description and in the program, with one type;
no constant of several functions may be stored twice.
"""

import argparse
import collections
import logging
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import coremltools as ct  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load  # noqa: E402


def functions(description):
    """Descriptions of functions by name; that of a package of one function is the model's."""
    several = {f.name: f for f in description.functions}
    return several or {"main": description}


def blobs(spec):
    """Offsets and sizes of the constants in the weight file, by function."""
    found = {}
    for name, function in spec.mlProgram.functions.items():
        block = function.block_specializations[function.opset]
        values = [op.attributes["val"] for op in block.operations if op.type == "const"]
        found[name] = {v.blobFileValue.offset for v in values if v.WhichOneof("value") == "blobFileValue"}
    return found


def check(path):
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(model.weights_dir))
    described = functions(spec.description)
    assert described.keys() == program.functions.keys(), f"{described.keys()} and {program.functions.keys()}"
    print(f"{path.name}: specification {spec.specificationVersion}")
    for name, function in program.functions.items():
        counts = collections.Counter(op.op_type for op in function.operations if op.op_type != "const")
        description = described[name]
        states = {s.name: tuple(s.type.stateType.arrayType.shape) for s in description.state}
        inputs = {i.name: tuple(i.type.multiArrayType.shape) for i in description.input}
        for state, shape in states.items():
            assert tuple(function.inputs[state].sym_type.wrapped_type().get_shape()) == shape, state
        assert set(function.inputs) == {*states, *inputs}, function.inputs.keys()
        outputs = [o.name for o in function.outputs]
        print(f"  {name} ({function.opset_version.name}): {inputs} {states} -> {outputs}")
        print(f"    {sum(counts.values())} operations: {dict(counts.most_common())}")
    offsets = blobs(spec)
    size = (Path(model.weights_dir) / "weight.bin").stat().st_size
    shared = set.intersection(*offsets.values())
    print(f"  weights: {size:,} bytes; {len(shared)} of {len(set.union(*offsets.values()))} in every function")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", type=Path, nargs="+")
    failed = False
    for path in parser.parse_args().packages:
        try:
            check(path)
        except Exception as e:  # whatever coremltools raises is a failure of this package
            print(f"{path.name}: {type(e).__name__}: {e}")
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
