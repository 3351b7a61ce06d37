"""Times a training step in PyTorch and in Rigel in turns: forward, backward and AdamW of Stories110M's dimensions.

    LD_PRELOAD=libtcmalloc_minimal.so.4 python train_step.py RIGEL [--sequences 4] [--rounds 5] [PEER ...]

RIGEL is the built example `train_step` of crates/train. Peers are torch-MATMUL-HOW and rigel-MATMUL, where MATMUL is
fp32 or bf16 (autocast in PyTorch) and HOW is eager or compile; all by default. Each runs in a process of its own, which
does one step for each line it is sent, so that only one works at a time. Printed for each: the median of the wall
clock and of the time its threads had a core for, tokens a second by both, and the peak of its memory. On a machine
that is shared only the ratios of one run mean anything, and those of the processor's time the most.

Made with torch 2.15.0 (CPU).
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

VOCAB, WIDTH, LAYERS, HEADS, HIDDEN, TOKENS = 32_000, 768, 12, 12, 2048, 256


def processor_time():
    """Seconds for which the threads of this process had a core."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def peak_memory():
    """Megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def torch_step(matmul, how, sequences, threads):
    """A function that does one step and returns the loss."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(110)

    class Block(nn.Module):
        """A layer of Llama."""

        def __init__(self):
            super().__init__()
            linear = lambda n, m: nn.Linear(n, m, bias=False)
            self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
            self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
            self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

        def forward(self, x, cos, sin):
            """`x` [B, T, d]; the angles [T, d / heads]."""
            rows = self.attention_norm(x)
            heads = lambda y: y.view(*y.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)

            def turned(y):
                a, b = y.chunk(2, -1)
                return y * cos + torch.cat([-b, a], -1) * sin

            q, k, v = heads(self.q(rows)), heads(self.k(rows)), heads(self.v(rows))
            y = F.scaled_dot_product_attention(turned(q).to(v.dtype), turned(k).to(v.dtype), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(x.shape))
            rows = self.mlp_norm(x)
            return x + self.down(F.silu(self.gate(rows)) * self.up(rows))

    class Model(nn.Module):
        """Llama with a tied output layer."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
            frequencies = 10000.0 ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
            angles = torch.arange(TOKENS)[:, None] * torch.cat([frequencies, frequencies])
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, ids, targets):
            """The mean loss."""
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = F.linear(self.norm(x), self.embedding.weight)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    model = Model()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    ids, targets = torch.randint(VOCAB, (2, sequences, TOKENS))
    run = torch.compile(model) if how == "compile" else model
    rules = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rules)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=matmul == "bf16"):
            loss = run(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def work(peer, sequences, threads):
    """Does a step for each line of the input."""
    _, matmul, how = peer.split("-")
    step = torch_step(matmul, how, sequences, threads)
    for _ in range(2):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        clock, processor = time.perf_counter(), processor_time()
        loss = step()
        print(time.perf_counter() - clock, processor_time() - processor, loss, flush=True)
    print(f"peak memory {peak_memory():.0f} MB", flush=True)


class Worker:
    """A process that does steps."""

    def __init__(self, peer, args):
        command = [sys.executable, __file__, args.rigel, "--worker", peer, "--sequences", str(args.sequences)]
        environment = dict(os.environ)
        if peer.startswith("rigel"):
            sizes = [f"sequences={args.sequences}", f"tokens={TOKENS}", f"threads={args.threads}"]
            command = [args.rigel, "lines", f"matmul={peer.split('-')[1]}", *sizes]
            environment.pop("LD_PRELOAD", None)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.peer, self.times = peer, []
        while self.process.stdout.readline().strip() != "ready":
            if self.process.poll() is not None:
                raise RuntimeError(f"{peer} ended")

    def step(self):
        """One step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append([float(x) for x in self.process.stdout.readline().split()])

    def finish(self):
        """The median times, and the last lines."""
        rest, _ = self.process.communicate()
        clock, processor = (statistics.median(t[i] for t in self.times) for i in (0, 1))
        return clock, processor, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rigel")
    parser.add_argument("peers", nargs="*")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker, args.sequences, args.threads)
    torch = [f"torch-{matmul}-{how}" for matmul in ("fp32", "bf16") for how in ("eager", "compile")]
    workers = [Worker(peer, args) for peer in args.peers or [*torch, "rigel-fp32", "rigel-bf16"]]
    for _ in range(args.rounds):
        for worker in workers:
            worker.step()
    tokens = args.sequences * TOKENS
    for worker in workers:
        clock, processor, rest = worker.finish()
        peak = next(line for line in rest.splitlines() if line.startswith("peak memory"))
        print(
            f"{worker.peer:20} {clock:7.3f} s {tokens / clock:6.0f} tok/s; of the processor {processor:7.3f} s, "
            f"{args.threads * tokens / processor:6.0f} tok/s on {args.threads} cores; {peak}; loss {worker.times[-1][2]:.4f}"
        )
        if worker.peer.startswith("rigel"):
            print(rest)


if __name__ == "__main__":
    main()
