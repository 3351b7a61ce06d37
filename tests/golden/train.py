"""Training by PyTorch: train/<model>.json, 20 steps of small seeded models, and train/optimizers.json, bare updates.

Made with torch 2.15.0 and transformers 4.57.6 (CPU), from the configurations of architectures.py and the weights
of seeded.py.

A model takes 20 steps of torch.optim.AdamW on four batches of random ids (as grad.py makes them), with
torch.nn.utils.clip_grad_norm_, weight decay on what has more than one axis (GPT-2: without its two tables), and
the learning rate peak * (step + 1) / (warmup + 1) before `warmup`, then half a cosine down to floor * peak at
`total`. Stored of each step are the batch, the loss before it, the norm before clipping and the learning rate; and
of each parameter its norm after the last. All in double precision, as in grad.py.

The bare updates are four steps of single-precision optimisers on 1,000 weights with seeded gradients; stored
are some weights after each.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import transformers

import architectures
import grad
import seeded

HERE = Path(__file__).parent
STEPS, BATCHES, BATCH = 20, 4, 2
SCHEDULE = dict(peak=3e-3, warmup=5, total=STEPS, floor=0.1)
ADAMW = dict(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
CLIP = 4.0

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
    "adamw_plain": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def learning_rate(step):
    """Of the step after `step` others."""
    peak, warmup, total, floor = (SCHEDULE[k] for k in ("peak", "warmup", "total", "floor"))
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    left = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    return peak * floor + (peak - peak * floor) * left


def trained(model, rng, tables):
    """The steps of a model."""
    named = list(model.named_parameters())
    spared = [] if tables else ["transformer.wte.weight", "transformer.wpe.weight"]
    decays = [n for n, p in named if p.dim() > 1 and n not in spared]
    groups = [
        dict(params=[p for n, p in named if n in decays], weight_decay=ADAMW["weight_decay"]),
        dict(params=[p for n, p in named if n not in decays], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"])
    batches = [[grad.sequence(rng, grad.ROWS) for _ in range(BATCH)] for _ in range(BATCHES)]
    steps = []
    for step in range(STEPS):
        batch = batches[step % BATCHES]
        ids, targets = (np.stack([sequence[i] for sequence in batch]) for i in (0, 1))
        logits = model(torch.tensor(ids), use_cache=False).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets).flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        measured = dict(loss=grad.rounded(loss), norm=grad.rounded(norm), learning_rate=learning_rate(step))
        steps.append(dict(ids=ids.tolist(), targets=targets.tolist()) | measured)
    return steps, sorted(decays), {n: grad.rounded(p.detach().norm()) for n, p in named}


def updates(make):
    """Some weights after each of four steps."""
    weight = torch.nn.Parameter(torch.tensor(seeded.tensor(1, "weight", 1000, 1.0)))
    optimizer, found = make([weight]), []
    for step in range(4):
        weight.grad = torch.tensor(seeded.tensor(2, f"gradient{step}", 1000, 0.1))
        optimizer.step()
        found.append([float(f"{v:.9g}") for v in weight.detach()[::100].tolist()])
    return found


def main():
    torch.set_num_threads(1)
    folder = HERE / "train"
    folder.mkdir(exist_ok=True)
    for name, tables in (("llama", True), ("gpt2", False)):
        prefix, seed, settings, _ = architectures.CASES[name]
        model = architectures.build(prefix, architectures.classes(prefix)[0](**settings), seed).double()
        steps, decays, norms = trained(model, np.random.default_rng(seed), tables)
        head = dict(schedule=SCHEDULE, adamw=ADAMW, clip=CLIP, decay_embeddings=tables, decays=decays, norms=norms)
        lines = ",\n".join(json.dumps(step) for step in steps)
        (folder / f"{name}.json").write_text(json.dumps(head)[:-1] + f', "steps": [\n{lines}\n]}}\n')
        losses, grads = [s["loss"] for s in steps], [s["norm"] for s in steps]
        print(f"{name}: losses {losses[0]:.4f} to {losses[-1]:.4f}, norms {min(grads):.2f} to {max(grads):.2f}")
    found = {name: updates(make) for name, make in OPTIMIZERS.items()}
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    (folder / "optimizers.json").write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    assert transformers.__version__.startswith("4."), "the configurations are transformers 4's"
    main()
