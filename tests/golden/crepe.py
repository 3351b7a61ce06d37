#!/usr/bin/env python3
"""Golden outputs of CREPE, a network that finds the pitch of a sound, by its authors' PyTorch port.

    python3 -m venv venv && venv/bin/pip install torchcrepe==0.0.24 'numpy==2.3.5'
    venv/bin/python tests/golden/crepe.py

crepe.npz has `frames` [4, 1024], two moments of a sound and two of noise as the network takes them, and for each size of
network, `tiny` and `full`, the probabilities [4, 360] of the pitches. `tiny_rounded` and `full_rounded` are those of the
network with its weights as the Core ML package has them: in half precision, but for the one normalisation, of `full`,
with a weight beyond its range. (Made with torch 2.15.0, on the CPU; the rounded ones in double precision.)
"""

from pathlib import Path

import numpy as np
import torch
import torchcrepe

RATE = 16000


def sound():
    """A gliding tone with overtones, in noise, getting quieter."""
    time = np.arange(RATE) / RATE
    phase = 2 * np.pi * (110 * time + 400 * time**2)
    tone = sum(np.sin(k * phase) / k for k in range(1, 6))
    noise = np.random.default_rng(1).standard_normal(RATE)
    return (tone * (1 - 0.8 * time) + 0.05 * noise).astype(np.float32)


def frames():
    audio = torch.from_numpy(sound())[None]
    moments = next(torchcrepe.preprocess(audio, RATE, hop_length=RATE // 2, pad=False))[:2]
    noise = np.random.default_rng(2).standard_normal((2, 1024)).astype(np.float32)
    return np.concatenate([moments.numpy(), noise])


def rounded(network):
    """The network with its weights in half precision, in layers where all fit."""
    for layer in network.children():
        values = {name: value for name, value in layer.state_dict().items() if value.is_floating_point()}
        if all(torch.isfinite(value.half()).all() for value in values.values()):
            layer.load_state_dict({name: value.half() for name, value in values.items()}, strict=False)
            if hasattr(layer, "eps"):
                layer.eps = float(np.float16(layer.eps))
    return network.double()


def main():
    arrays = {"frames": frames()}
    given = torch.from_numpy(arrays["frames"])
    for size in ["tiny", "full"]:
        with torch.no_grad():
            arrays[size] = torchcrepe.infer(given, size, device="cpu").numpy()
            network = rounded(torchcrepe.infer.model)
            arrays[f"{size}_rounded"] = network(given.double()).float().numpy()
        print(size, "rounding its weights changes", np.abs(arrays[size] - arrays[f"{size}_rounded"]).max(axis=1))
    np.savez(Path(__file__).with_name("crepe.npz"), **arrays)
    for name, array in arrays.items():
        print(name, array.shape, array.dtype, np.abs(array).max())


if __name__ == "__main__":
    main()
