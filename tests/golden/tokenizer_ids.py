"""Token ids by the reference tokenizers: tokenizers/smollm2.json (Hugging Face BPE) and tokenizers/llama2_spm.json (SentencePiece).

Each file is a list of {text, ids}; no BOS or EOS is added. In the Hugging Face file special tokens inside a
text become their own ids, as that library does by default; SentencePiece treats them as text.
"""

import argparse
import json
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[2] / "shared" / "models"

TEXTS = [
    "",
    " ",
    "  ",
    "Hello, world!",
    " Hello",
    "Hello ",
    "The capital of France is",
    # Markdown.
    "## Title",
    "# A\n\nSome *text* and **bold**.\n\n- one\n- two\n  - three\n",
    "### A #b",
    "#hashtag #Two_Words #3",
    "> quote\n\n```rust\nfn main() {}\n```\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |",
    # Emoji: with a variation selector, joined, with a skin tone, flags, a keycap.
    "🙂",
    "I ❤️ 🦀!",
    "👨‍👩‍👧‍👦 family",
    "👍🏽👋🏿",
    "🇫🇷🇯🇵🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "5️⃣",
    # White space.
    " " * 7 + "seven" + " " * 33 + "end",
    "\n",
    "\n\n\n\nafter four\n\n",
    "a\n \n  \n   b",
    "\t\tindented\t\ttwice\t",
    " \t \n\t \r\n\r\n x",
    "no\u00a0break\u2003em\u3000ideographic\u200bzero",
    # Digits.
    "1234567890",
    "3.14159, 1,000,000 and 0x1F; 12:34 on 2024-02-29",
    "a1b22c333 ٣٤ ４２ ½ Ⅳ",
    # Contractions.
    "I'm, you're, he's, we'll, they'd, I've, don't",
    "I'M YOU'RE HE'S WE'LL THEY'D I'VE DON'T 's'ss",
    "it’s the ‘best’ “quote” — isn’t it…",
    # Scripts.
    "你好，世界。今天天气很好！",
    "日本語のテキストとカタカナ、한국어 문장",
    "مرحبا بالعالم، كيف حالك؟",
    "Привет, мир! Ελληνικά שָׁלוֹם नमस्ते ภาษาไทย",
    # Combining marks, composed and not; a ligature and a full-width letter that normalisation would change.
    "café cafe\u0301 Z͑ͫ̓a̴l̷g̸o",
    "ﬁne Ａ ①",
    # Control characters and what is not a character.
    "a\u0000b\u0001c\u007fd\u0085e",
    "\ufeffBOM \ufffd replacement \u202ertl\u202c",
    # Special tokens, whole, broken and joined.
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a <|endoftext|> b<|endoftext|><|im_end|>c",
    "<|im_start | <|im_end> <s>x</s> <unk> <0x41>",
    "▁ lower one eighth ▁▁ block",
    "Ġ and Ċ are letters",
    # Code.
    "def f(x: int) -> int:\n    return x**2  # square\n\n\nif __name__ == '__main__':\n\tprint(f(3))\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0.5f; } // loop",
    '{"key": [1, 2.5e-3, null, true], "s": "\\"q\\""}',
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    # Long words and repeats.
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism CamelCaseIdentifier snake_case_name SCREAMING",
    "----------====....!!!!????",
]


def huggingface(path):
    """ids of every text by the `tokenizers` package."""
    tokenizer = Tokenizer.from_file(str(path))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def sentencepiece(path):
    """ids of every text by the `sentencepiece` package."""
    return SentencePieceProcessor(model_file=str(path)).encode(TEXTS, add_bos=False, add_eos=False)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--smollm2", type=Path, default=MODELS / "smollm2_tokenizer.json")
    args.add_argument("--llama2", type=Path, default=MODELS / "llama2_tokenizer.model")
    args.add_argument("--out", type=Path, default=HERE / "tokenizers")
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, ids in [("smollm2", huggingface(args.smollm2)), ("llama2_spm", sentencepiece(args.llama2))]:
        lines = [json.dumps({"text": text, "ids": found}, separators=(",", ":")) for text, found in zip(TEXTS, ids)]
        (args.out / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
        print(f"{name}: {len(lines)} texts, {sum(map(len, ids))} ids")


if __name__ == "__main__":
    main()
