"""Gradients of all parameters of the small seeded models by PyTorch's autograd: grad/<name>.json.

Made with torch 2.15.0 and transformers 4.57.6 (CPU), from the configurations in arch/ and the weights of seeded.py.

The loss is the mean cross-entropy over the targets that are not -1. Two batches for each model:
- "plain": two sequences of 12 ids; some targets are -1.
- "packed": two sequences of two documents each, which PyTorch computes one by one. `segments` says which document
  a row is of. A sequence that holds both must give the same.

For each parameter `norm` (Euclidean), `max` (the largest magnitude) and `sample`: the elements at `index`, which
are spread evenly over the row-major parameter in the shape under which Hugging Face stores it. The model runs in
double precision (its norms, softmax and rotary tables stay in single precision, as Hugging Face has them).
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

import architectures

HERE = Path(__file__).parent
ROWS, SAMPLES = 12, 5


def sequence(rng, length):
    """Ids of a sequence, and the id after each; a few targets do not count."""
    ids = rng.integers(3, architectures.VOCAB, length + 1)
    targets = ids[1:].copy()
    targets[rng.random(length) < 0.2] = -1
    return ids[:-1], targets


def batches(seed):
    """Both batches: lists of sequences, each a list of documents (ids, targets)."""
    rng = np.random.default_rng(seed)
    plain = [[sequence(rng, ROWS)] for _ in range(2)]
    packed = [[sequence(rng, first), sequence(rng, ROWS - first)] for first in (5, 8)]
    return {"plain": plain, "packed": packed}


def gradients(model, batch):
    """The loss of a batch and the gradient of each parameter."""
    model.zero_grad()
    loss, count = 0.0, 0
    for ids, targets in (document for documents in batch for document in documents):
        logits = model(torch.tensor(ids[None]), use_cache=False).logits[0]
        loss = loss + torch.nn.functional.cross_entropy(logits, torch.tensor(targets), ignore_index=-1, reduction="sum")
        count += int((targets >= 0).sum())
    loss = loss / count
    loss.backward()
    return loss, {name: p.grad.detach().clone().reshape(-1) for name, p in model.named_parameters()}


def rounded(value):
    """Nine digits."""
    return float(f"{value.item():.9g}")


def described(batch, loss, grads):
    """What is stored of a batch."""
    parameters = {}
    for name, grad in grads.items():
        index = np.linspace(0, len(grad) - 1, SAMPLES).astype(int).tolist()
        sample = [rounded(grad[i]) for i in index]
        norm, largest = rounded(grad.norm()), rounded(grad.abs().max())
        parameters[name] = {"norm": norm, "max": largest, "index": index, "sample": sample}
    joined = lambda part: [np.concatenate([d[part] for d in documents]).tolist() for documents in batch]
    segments = [np.repeat(np.arange(len(ds)), [len(d[0]) for d in ds]).tolist() for ds in batch]
    return {
        "ids": joined(0),
        "targets": joined(1),
        "segments": segments,
        "loss": rounded(loss),
        "parameters": parameters,
    }


def main():
    torch.set_num_threads(1)
    folder = HERE / "grad"
    folder.mkdir(exist_ok=True)
    for name, (prefix, seed, settings, _) in architectures.CASES.items():
        model = architectures.build(prefix, architectures.classes(prefix)[0](**settings), seed)
        stored, worst = {}, 0.0
        for kind, batch in batches(seed).items():
            single = gradients(model.float(), batch)[1]
            loss, grads = gradients(model.double(), batch)
            worst = max([worst] + [float((single[n] - g).norm() / g.norm()) for n, g in grads.items()])
            stored[kind] = described(batch, loss, grads)
        lines = []
        for kind, data in stored.items():
            parameters = data.pop("parameters")
            rows = ",\n      ".join(f"{json.dumps(n)}: {json.dumps(p)}" for n, p in parameters.items())
            head = json.dumps(data)[1:-1]
            lines.append(f'  "{kind}": {{{head},\n    "parameters": {{\n      {rows}\n    }}}}')
        (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{name}: {len(grads)} parameters; float32 is within {worst:.1e} of double")


if __name__ == "__main__":
    assert transformers.__version__.startswith("4."), "the configurations are transformers 4's"
    main()
