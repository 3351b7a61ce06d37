"""Small seeded models of each family, with the logits that Hugging Face's own classes compute: arch/<name>/.

With transformers 4 it writes config.json (the form that published checkpoints have) and expected.json.
With transformers 5 it loads those configurations, checks that the logits agree, and writes config.v5.json,
the form that newer checkpoints have (`rope_parameters` in place of `rope_theta` and `rope_scaling`).

expected.json holds the seed, `tensors` ([name, shape] of each tensor of model.safetensors, tied heads left out;
values from seeded.py), the input ids, the f32 logits of every position (eager attention, 7 digits) and the
greedy continuation. Each case lists `bites`: changes of the configuration that must change the logits,
so that an engine which ignores the feature cannot pass.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open

import seeded

HERE = Path(__file__).parent
SEQ, VOCAB, EOS, NEW = 24, 96, 2, 8
# What a feature must move at least one logit by (tanh and exact GELU are this close, so compare within 2e-4),
# and the least gap between the two best logits of a greedy step.
BITE, GAP = 5e-4, 0.05

# head_dim is not hidden_size / num_attention_heads, and kv heads are shared, wherever the family allows it.
COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=EOS,
    pad_token_id=None,
)
LLAMA3_SCALING = dict(
    # With head_dim 16 and base 1e4 the wavelengths are 6, 20, 63, 199, ...: two kept, one blended, five stretched.
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
)

# name: (class prefix, seed, configuration, bites)
CASES = {
    "gpt2": (
        "GPT2",
        5,
        dict(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=EOS),
        [dict(activation_function="gelu"), dict(layer_norm_epsilon=1e-2), dict(n_head=6)],
    ),
    "llama": (
        "Llama",
        1,
        COMMON | dict(head_dim=16, rope_theta=10000.0, tie_word_embeddings=False),
        [dict(rope_theta=20000.0), dict(hidden_act="gelu"), dict(rms_norm_eps=1e-2)],
    ),
    "llama3_rope": (
        "Llama",
        5,
        COMMON
        | dict(head_dim=16, rope_theta=10000.0, rope_scaling=LLAMA3_SCALING, max_position_embeddings=1024)
        | dict(tie_word_embeddings=True),
        [dict(rope_scaling=None), dict(rope_scaling=LLAMA3_SCALING | dict(high_freq_factor=2.0))],
    ),
    "mistral": (
        "Mistral",
        2,
        COMMON | dict(head_dim=16, rope_theta=10000.0, sliding_window=7, tie_word_embeddings=False),
        [dict(sliding_window=None), dict(sliding_window=6), dict(sliding_window=8)],
    ),
    "qwen2": (
        "Qwen2",
        7,
        COMMON | dict(rope_theta=1000000.0, tie_word_embeddings=True),
        [dict(rope_theta=10000.0), dict(rms_norm_eps=1e-2)],
    ),
    "qwen3": (
        "Qwen3",
        8,
        COMMON | dict(head_dim=16, rope_theta=1000000.0, tie_word_embeddings=False),
        [dict(rope_theta=10000.0), dict(rms_norm_eps=1e-2)],
    ),
    "gemma3": (
        "Gemma3",
        15,
        # Layer 5 is global; 6 is a sliding layer after it. Both the window and the two rope bases show.
        COMMON
        | dict(head_dim=16, num_hidden_layers=7, num_key_value_heads=1, sliding_window=6, query_pre_attn_scalar=24)
        | dict(rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window_pattern=6, tie_word_embeddings=True),
        [
            dict(sliding_window=5),
            dict(sliding_window=64),
            dict(rope_theta=10000.0),
            dict(rope_local_base_freq=1000000.0),
            dict(query_pre_attn_scalar=16),
            dict(sliding_window_pattern=7),
            dict(hidden_activation="gelu"),
        ],
    ),
}


def classes(prefix):
    """The family's configuration and causal-LM classes."""
    text = "TextConfig" if prefix == "Gemma3" else "Config"
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    return getattr(transformers, prefix + text), getattr(transformers, prefix + head)


def build(prefix, config, seed):
    """The model under this configuration with every weight from seeded.py."""
    config._attn_implementation = "eager"
    model = classes(prefix)[1](config).eval()
    state = {n: torch.from_numpy(seeded.weight(seed, n, tuple(p.shape))) for n, p in model.named_parameters()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model


def logits(model, ids):
    """f32 logits [len(ids), vocab] of one sequence."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, ids):
    """The next NEW ids, recomputing the whole sequence each step; the same through the model's own cache."""
    seen = list(ids)
    for step in range(NEW):
        best = logits(model, seen)[-1].topk(2)
        gap = float(best.values[0] - best.values[1])
        assert gap > GAP, f"step {step}: the two best logits are only {gap:.4f} apart; choose another seed"
        seen.append(int(best.indices[0]))
    new = seen[len(ids) :]
    assert EOS not in new and len(set(new)) >= 6, f"a dull continuation, {new}; choose another seed"
    model.generation_config.eos_token_id = None
    kept = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=NEW, do_sample=False, use_cache=True
    )
    assert kept[0].tolist() == seen, "cached and uncached greedy continuations differ"
    return new


def saved(model, seed):
    """What the model saves: [name, shape] of every tensor of model.safetensors, and the text of config.json."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(os.path.join(folder, "model.safetensors"), "np") as file:
            tensors = [[name, list(file.get_slice(name).get_shape())] for name in file.keys()]
        config = Path(folder, "config.json").read_text()
    for name, shape in tensors:
        held = model.get_parameter(name).detach().numpy()
        assert list(held.shape) == shape and np.array_equal(held, seeded.weight(seed, name, tuple(shape)))
    return sorted(tensors), config


def rows(values):
    """A JSON list with one element a line."""
    return "[\n    " + ",\n    ".join(json.dumps(v, separators=(",", ":")) for v in values) + "\n  ]"


def write(out, name, prefix, seed, settings, bites):
    """Makes arch/<name> with transformers 4."""
    config_class = classes(prefix)[0]
    model = build(prefix, config_class(**settings), seed)
    ids = np.random.default_rng(seed).integers(3, VOCAB, SEQ).tolist()
    found = logits(model, ids)
    for change in bites:
        moved = float((logits(build(prefix, config_class(**(settings | change)), seed), ids) - found).abs().max())
        assert moved > BITE, f"{name}: {change} moves no logit by more than {moved:.4f}"
        print(f"  {name}: {change} moves a logit by {moved:.1e}")
    tensors, config = saved(model, seed)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    digits = [[float(f"{v:.7g}") for v in row] for row in found.tolist()]
    (folder / "expected.json").write_text(
        "{\n"
        + f'  "seed": {seed},\n  "tensors": {rows(tensors)},\n  "ids": {json.dumps(ids)},\n'
        + f'  "greedy": {json.dumps(greedy(model, ids))},\n  "logits": {rows(digits)}\n}}\n'
    )
    error = float((model.double()(torch.tensor([ids])).logits[0] - found).abs().max())
    print(f"{name}: logits {found.min():.2f}..{found.max():.2f}, std {found.std():.2f}; f32 against f64 {error:.1e}")


def recheck(out, name, prefix):
    """Reads arch/<name> with transformers 5, compares, and writes config.v5.json."""
    folder = out / name
    expected = json.loads((folder / "expected.json").read_text())
    model = build(prefix, classes(prefix)[0].from_pretrained(folder), expected["seed"])
    moved = float((logits(model, expected["ids"]) - torch.tensor(expected["logits"])).abs().max())
    assert moved < 1e-4, f"{name}: differs by {moved} from the stored logits"
    tensors, config = saved(model, expected["seed"])
    assert tensors == [list(t) for t in expected["tensors"]], f"{name}: another list of tensors"
    assert greedy(model, expected["ids"]) == expected["greedy"]
    (folder / "config.v5.json").write_text(config)
    print(f"{name}: agrees to {moved:.1e}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, default=HERE / "arch")
    out = args.parse_args().out
    torch.set_num_threads(1)
    for name, (prefix, seed, settings, bites) in CASES.items():
        if int(transformers.__version__.split(".")[0]) >= 5:
            recheck(out, name, prefix)
        else:
            write(out, name, prefix, seed, settings, bites)


if __name__ == "__main__":
    main()
