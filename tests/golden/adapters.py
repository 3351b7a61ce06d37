"""Adapters on the seeded models of architectures.py, with the logits that PEFT computes: adapters/<name>/.

Made with peft 0.21.2, transformers 4.57.6, torch 2.15.0, safetensors 0.8.0:

    pip install peft==0.21.2 transformers==4.57.6 torch==2.15.0 && python tests/golden/adapters.py

Each folder holds adapter_config.json as PEFT saves it (targets sorted) and expected.json: `base`, the model in
arch/; the seed; `tensors` ([name, shape] of each tensor of adapter_model.safetensors, values from seeded.py,
0.2 u); the input ids; the f32 logits of the last LAST positions, 7 digits. Each case lists `bites`: changes of the
configuration that must change the logits, so that a reader which ignores the setting cannot pass.
"""

import json
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open

import architectures
import seeded

HERE = Path(__file__).parent
SCALE = 0.2
LAST = 8
# What the adapter, and each setting of it, must move at least one logit by.
BITE = 0.05

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# name: (base, seed, settings, bites)
CASES = {
    "llama": (
        "llama",
        21,
        dict(
            r=4,
            lora_alpha=12,
            target_modules=LLAMA,
            # The first pattern that fits holds; one is a regular expression.
            rank_pattern={"layers.1.self_attn.q_proj": 2, "q_proj": 6, r"layers\.[02]\.mlp\.(up|down)_proj": 3},
            alpha_pattern={"model.layers.2.self_attn.v_proj": 20, "o_proj": 5},
        ),
        [dict(alpha_pattern={}), dict(lora_alpha=11), dict(use_rslora=True)],
    ),
    "llama_head": (
        "llama",
        22,
        dict(r=4, lora_alpha=8, target_modules=["lm_head", "k_proj"]),
        [dict(lora_alpha=4)],
    ),
    "gpt2": (
        "gpt2",
        23,
        dict(r=4, lora_alpha=6, use_rslora=True, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]),
        [dict(use_rslora=False), dict(lora_alpha=7)],
    ),
    "qwen2": ("qwen2", 24, dict(r=4, lora_alpha=8, target_modules=LLAMA, layers_to_transform=[0, 2]), []),
    "qwen3": ("qwen3", 25, dict(r=4, lora_alpha=8, target_modules=LLAMA), [dict(lora_alpha=4)]),
    "gemma3": ("gemma3", 26, dict(r=4, lora_alpha=8, target_modules=LLAMA), [dict(lora_alpha=4)]),
}


def adapted(base, seed, settings):
    """The base model with an adapter whose factors come from seeded.py."""
    prefix, base_seed, config, _ = architectures.CASES[base]
    model = architectures.build(prefix, architectures.classes(prefix)[0](**config), base_seed)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            saved = name.replace(".default.", ".")
            values = seeded.tensor(seed, saved, parameter.numel(), SCALE)
            parameter.data = torch.from_numpy(values.reshape(tuple(parameter.shape)))
    return model


def saved(model, seed):
    """What PEFT saves: [name, shape] of each tensor, and the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_embedding_layers=False)
        with safe_open(Path(folder, "adapter_model.safetensors"), "np") as file:
            tensors = sorted([name, list(file.get_slice(name).get_shape())] for name in file.keys())
            for name, shape in tensors:
                values = seeded.tensor(seed, name, file.get_tensor(name).size, SCALE)
                assert (file.get_tensor(name) == values.reshape(shape)).all(), name
        config = json.loads(Path(folder, "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])
    return tensors, config


def main():
    torch.set_num_threads(1)
    for name, (base, seed, settings, bites) in CASES.items():
        ids = json.loads((HERE / "arch" / base / "expected.json").read_text())["ids"]
        model = adapted(base, seed, settings)
        found = architectures.logits(model, ids)
        with model.disable_adapter():
            plain = architectures.logits(model, ids)
        moved = float((found - plain).abs().max())
        assert moved > BITE, f"{name}: the adapter moves no logit by more than {moved:.4f}"
        for change in bites:
            other = architectures.logits(adapted(base, seed, settings | change), ids)
            bite = float((other - found).abs().max())
            assert bite > BITE, f"{name}: {change} moves no logit by more than {bite:.4f}"
            print(f"  {name}: {change} moves a logit by {bite:.2f}")
        tensors, config = saved(model, seed)
        merged = architectures.logits(model.merge_and_unload(), ids)
        print(f"{name}: moves a logit by {moved:.2f}; merged within {float((merged - found).abs().max()):.1e}")
        folder = HERE / "adapters" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        digits = [[float(f"{v:.7g}") for v in row] for row in found[-LAST:].tolist()]
        (folder / "expected.json").write_text(
            "{\n"
            + f'  "base": "{base}",\n  "seed": {seed},\n  "tensors": {architectures.rows(tensors)},\n'
            + f'  "ids": {json.dumps(ids)},\n  "logits": {architectures.rows(digits)}\n}}\n'
        )


if __name__ == "__main__":
    main()
