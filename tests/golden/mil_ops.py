"""Golden signatures: the operations that coremltools registers.

A line in mil_ops.txt has an operation, the first operation set that has it, and the names of its
parameters in any operation set, sorted.

Run with coremltools 9.0: python mil_ops.py
"""

from pathlib import Path

from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

# Parameters that stand for nested blocks or for Python's sake.
INTERNAL = {"_true_fn", "_false_fn", "_cond", "_body", "_existing_blocks", "val"}


def main() -> None:
    lines = []
    for name, versions in sorted(SSAOpRegistry.core_ops.items()):
        if name.startswith("_"):
            continue
        first = min(versions, key=lambda target: target.value)
        names = {name for op in versions.values() for name in op.input_spec.input_types}
        lines.append(" ".join([name, first.name.lower(), *sorted(names - INTERNAL)]))
    target = Path(__file__).with_name("mil_ops.txt")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
