#!/usr/bin/env python3
"""Loads packages that Rigel wrote into coremltools, and compares their programs with those they were read from.

    python coreml_load.py OUT SOURCES...          (with coremltools 9.0; tests/README.md has the whole command)

Every package in OUT is opened as a model (`skip_model_load=True`) and its program as coremltools' own; the program's
printed form, its constants' values, and the specification's description must equal those of the package of the same
name in one of the folders SOURCES. With `--bare` (for `repack --bare`) a description need only have the same features.
"""

import argparse
import logging
import re
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import coremltools as ct  # noqa: E402
import numpy as np  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load  # noqa: E402
from coremltools.converters.mil.mil import Builder as mb  # noqa: E402


def pymil(spec, weights):
    # coremltools numbers the operations that it adds itself over the life of the process.
    mb.name_count.clear()
    return load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(weights))


def operations(block):
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from operations(inner)


def constants(program):
    """Values of all constants by function and name."""
    return {
        (name, op.name): op.outputs[0].val
        for name, function in program.functions.items()
        for op in operations(function)
        if op.op_type == "const"
    }


def same_value(a, b):
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


def features(description):
    """Names and kinds of inputs, outputs and states; an image is an array to the program."""
    return [
        [(f.name, f.type.WhichOneof("Type").replace("imageType", "multiArrayType")) for f in group]
        for group in [description.input, description.output, description.state]
    ] + [[features(f) for f in getattr(description, "functions", [])]]


def program_text(program):
    """The printed program without what differs in each load: numbers of symbols and blocks, addresses."""
    text = re.sub(r"\bblock\d+\b", "block", str(program))
    text = re.sub(r" object at 0x[0-9a-f]+", "", text)
    return re.sub(r"\bis\d+\b", "is", text)


def compare(written, source, bare):
    """What differs, or None."""
    model = ct.models.MLModel(str(written), skip_model_load=True)
    # The source may have lost an empty folder of weights that its manifest lists; only its model is read.
    data = source / "Data" / "com.apple.CoreML"
    specs = [model.get_spec(), ct.utils.load_spec(str(data / "model.mlmodel"))]
    texts, values = [], []
    for weights, spec in zip([model.weights_dir, data / "weights"], specs):
        program = pymil(spec, weights)
        texts.append(program_text(program))
        values.append(constants(program))
    if texts[0] != texts[1]:
        return "the programs differ"
    if values[0].keys() != values[1].keys():
        return "the constants' names differ"
    for key, value in values[0].items():
        if not same_value(value, values[1][key]):
            return f"constant {key[1]} differs"
    if specs[0].specificationVersion != specs[1].specificationVersion:
        return "the specification's version differs"
    own, theirs = (s.description for s in specs)
    if bare:
        return None if features(own) == features(theirs) else "the features differ"
    return None if own == theirs else "the descriptions differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("written", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--bare", action="store_true")
    args = parser.parse_args()
    loaded, failures = 0, []
    for written in sorted(args.written.glob("*.mlpackage")):
        source = next(p for folder in args.sources if (p := folder / written.name).exists())
        try:
            difference = compare(written, source, args.bare)
        except Exception as e:  # whatever coremltools raises is a failure of this package
            difference = f"{type(e).__name__}: {e}"
        if difference:
            failures.append(f"{written.name}: {difference}")
        else:
            loaded += 1
    print(f"{loaded} packages load and are equal")
    for failure in failures:
        print(failure)
    sys.exit(bool(failures) or not loaded)


if __name__ == "__main__":
    main()
