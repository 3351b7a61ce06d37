"""LoRA on SmolLM2-135M-Instruct by PEFT, on the weights of the GGUF file that the tests read.

Made with peft 0.21.2, transformers 4.57.6, torch 2.15.0, gguf 0.19.0:

    pip install peft==0.21.2 transformers==4.57.6 torch==2.15.0 gguf==0.19.0
    python tests/golden/lora.py                 writes lora/
    python tests/golden/lora.py RUN RIGEL       compares RUN, made by the program RIGEL, with PEFT

lora/ holds an adapter as PEFT saves it after STEPS steps of torch.optim.AdamW, and expected.json: the batches (ids,
and the id after each or -1 where it is not to be predicted), the loss before each step, and the negative
log-likelihoods of a held-out chat by the model alone and with the adapter. `A` starts from seeded.py, `B` from 0.

RUN is what this makes:

    rigel finetune target/fixtures/SmolLM2-135M-Instruct.Q4_1.gguf --out RUN --data tests/golden/chats/train.jsonl \
        --eval-data tests/golden/chats/held-out.jsonl --lora r=16,alpha=32,targets=q,v --lr 1e-3 --batch 2 --steps 40

Compared are the held-out losses that it measured before the first step and at the end with those that PyTorch and PEFT
compute, chat by chat; the likelihoods of each token of some chats with RUN/adapter; and the same with an adapter that
PEFT trains here.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import seeded

HERE = Path(__file__).parent
FIXTURES, FILE = HERE.parents[1] / "target" / "fixtures", "SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENIZER = HERE.parents[2] / "shared" / "models" / "smollm2_tokenizer.json"
SEED, START = 31, 0.04
STEPS, BATCHES, BATCH = 8, 4, 4
RATE = 0.01
ADAMW = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
TARGETS = ["q_proj", "v_proj", "gate_proj", "down_proj"]
SETTINGS = dict(r=2, lora_alpha=8, use_rslora=True, target_modules=TARGETS, layers_to_transform=[12])
# How far likelihoods and losses may be from each other.
CLOSE = 1e-3


def base():
    """The model, its weights as single-precision numbers."""
    return AutoModelForCausalLM.from_pretrained(FIXTURES, gguf_file=FILE, dtype=torch.float32).eval()


def chats(name):
    """Ids and targets of the chats in a file: the answers, with what ends them, are to be predicted."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    template = (HERE / "chat" / "smollm2.jinja").read_text()
    found = []
    for line in (HERE / "chats" / f"{name}.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"]

        def ids(messages, begin):
            text = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=begin
            )
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        asked, whole = ids(messages[:-1], True), ids(messages, False)
        assert whole[: len(asked)] == asked
        found.append((whole[:-1], [-1] * (len(asked) - 1) + whole[len(asked) :]))
    return found


def batch(sequences):
    """Ids and targets of equal length."""
    longest = max(len(ids) for ids, _ in sequences)
    ids = [ids + [0] * (longest - len(ids)) for ids, _ in sequences]
    targets = [targets + [-1] * (longest - len(targets)) for _, targets in sequences]
    return ids, targets


def loss(model, ids, targets, reduction="mean"):
    logits = model(torch.tensor(ids), use_cache=False).logits.flatten(0, 1)
    return torch.nn.functional.cross_entropy(
        logits, torch.tensor(targets).flatten(), ignore_index=-1, reduction=reduction
    )


def train(model, batches, steps, rate):
    """The losses before each step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, **ADAMW)
    losses = []
    for step in range(steps):
        found = loss(model, *batches[step % len(batches)])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses


def likelihoods(model, ids):
    """Negative log-likelihoods of all ids but the first."""
    with torch.no_grad():
        return loss(model, [ids[:-1]], [ids[1:]], "none").tolist()


def held_out_loss(model, sequences):
    with torch.no_grad():
        total = sum(loss(model, [ids], [targets], "sum").item() for ids, targets in sequences)
    return total / sum(target >= 0 for _, targets in sequences for target in targets)


def golden():
    """Writes lora/."""
    train_on, ids = chats("train"), chats("held-out")[0][0]
    batches = [batch(train_on[i * 83 :: 7][:BATCH]) for i in range(BATCHES)]
    model = base()
    plain = likelihoods(model, ids)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **SETTINGS)).eval()
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            values = seeded.tensor(SEED, name.replace(".default.", "."), parameter.numel(), START)
            parameter.data = torch.from_numpy(values.reshape(tuple(parameter.shape)))
    losses = train(model, batches, STEPS, RATE)
    adapted = likelihoods(model, ids)
    folder = HERE / "lora"
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = FILE
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    digits = lambda values: [float(f"{v:.7g}") for v in values]
    rows = ",\n".join(json.dumps(dict(ids=ids, targets=targets)) for ids, targets in batches)
    rest = dict(losses=digits(losses), ids=ids, plain=digits(plain), adapted=digits(adapted))
    head = dict(seed=SEED, start=START, rate=RATE, betas=ADAMW["betas"])
    (folder / "expected.json").write_text(
        f'{json.dumps(head)[:-1]}, "batches": [\n{rows}\n],\n{json.dumps(rest)[1:]}\n'
    )
    print("losses", digits(losses))
    mean = lambda values: sum(values) / len(values)
    print(f"mean likelihood {mean(plain):.4f}, with the adapter {mean(adapted):.4f}")


def compare(run, rigel):
    """Prints what RUN measured and what PEFT computes."""
    held_out, wrong = chats("held-out"), []

    def check(what, ours, theirs):
        worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        print(f"{what}: {worst:.1e} apart" + (f", {ours[0]:.5f} and {theirs[0]:.5f}" if len(ours) == 1 else ""))
        wrong.extend([what] if worst > CLOSE else [])

    def by_rigel(folder, ids):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(ids, file)
            file.flush()
            adapter = ["--adapter", f"it={folder}"] if folder else []
            command = [rigel, "eval", "--model", FIXTURES / FILE, *adapter, "--ids", file.name, "--json"]
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["nll"]

    def check_tokens(what, model, folder):
        ours, theirs = [], []
        for ids, _ in held_out[::15]:
            ours += by_rigel(folder, ids)
            theirs += likelihoods(model, ids)
        check(f"{len(ours)} likelihoods {what}", ours, theirs)

    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert evaluations[0]["step"] == 0
    model = base()
    check("held-out loss before the first step", [evaluations[0]["loss"]], [held_out_loss(model, held_out)])
    check_tokens("of the model", model, None)
    adapted = PeftModel.from_pretrained(model, run / "adapter").eval()
    check("held-out loss of the adapter in PEFT", [evaluations[-1]["loss"]], [held_out_loss(adapted, held_out)])
    check_tokens("with Rigel's adapter", adapted, run / "adapter")
    model = adapted.unload()
    settings = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, use_rslora=True, target_modules=TARGETS)
    adapted = get_peft_model(model, settings).eval()
    batches = [batch(chats("train")[i::40][:BATCH]) for i in range(BATCHES)]
    losses = train(adapted, batches, BATCHES, RATE / 5)
    print(f"PEFT trained from {losses[0]:.3f} to {losses[-1]:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(folder, save_embedding_layers=False)
        check_tokens("with PEFT's adapter", adapted, folder)
    if wrong:
        sys.exit(f"further apart than {CLOSE}: {', '.join(wrong)}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(1)
    if len(sys.argv) == 1:
        golden()
    else:
        compare(Path(sys.argv[1]), sys.argv[2])
