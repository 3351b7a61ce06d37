#!/usr/bin/env python3
"""Right results of the two programs of the zoo whose recorded ones are wrong.

    venv/bin/python tests/golden/zoo_corrections.py ../shared/coreml/zoo       (numpy alone)

The zoo's results are those of coremltools' value inference. For `concat` it takes no notice of `interleave`, for
`scatter_along_axis` none of `mode`, here "add". coremltools documents both (iOS 15 and iOS 17 operation sets): with
`interleave` the inputs' slices along the axis alternate, x[0], y[0], x[1], y[1]; with mode "add" updates are added to
the data. This script shows that the recorded results are those without the two, and computes those with them by numpy
into zoo_corrections.npz. The arguments that are constants of the programs are repeated here; the test reads them from
the programs.
"""

import sys
from pathlib import Path

import numpy as np


def interleaved(x, y, recorded):
    assert np.array_equal(recorded, np.concatenate([x, y])), "recorded: one after the other"
    return np.stack([x, y], axis=1).reshape(-1, x.shape[1])


def added(x, recorded):
    indices = np.array([[0, 1, 2], [3, 3, 0]])
    updates = np.ones((2, 3), np.float32)
    replaced = x.copy()
    np.put_along_axis(replaced, indices, updates, axis=0)
    assert np.array_equal(recorded, replaced), "recorded: updates in place of data"
    result = x.copy()
    np.add.at(result, (indices, np.arange(3)), updates)
    return result


def main():
    zoo = Path(sys.argv[1])
    concat = np.load(zoo / "concat_interleave.io.npz")
    scatter = np.load(zoo / "scatter_along_axis.io.npz")
    corrected = {
        "concat_interleave": interleaved(concat["in_x"], concat["in_y"], concat["out0"]),
        "scatter_along_axis": added(scatter["in_x"], scatter["out0"]),
    }
    np.savez(Path(__file__).with_name("zoo_corrections.npz"), **corrected)


if __name__ == "__main__":
    main()
