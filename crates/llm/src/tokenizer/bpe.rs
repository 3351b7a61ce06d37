//! GPT-2's BPE as GGUF holds it: a vocabulary, merges, and the name of the pattern that cuts text into
//! words first.

use std::path::Path;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer as Library};

use super::pipeline::Pipeline;
use super::vocab::{Kind, Vocab};
use crate::{Error, Result};

/// GPT-2's pattern: a contraction's end, or a run of letters, digits or other signs with the space before it,
/// or white space without the space before a word.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's: contractions in any case, one sign before a word, digits by threes, line ends with what is
/// before them.
pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's: as Llama 3's, with single digits.
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut into words, and what goes with it.
pub(super) struct Cut {
    /// Patterns, each of which cuts what the ones before it left.
    patterns: &'static [&'static str],
    /// Whether every digit is a word of its own, before the patterns.
    single_digits: bool,
    /// Whether a word that is a piece is taken whole, even where merges would not make it.
    whole_words: bool,
    /// Whether text begins with BOS unless the file says otherwise.
    pub(super) adds_bos: bool,
}

impl Cut {
    /// The cut that `tokenizer.ggml.pre` names.
    pub(super) fn named(pre: &str, file: &Path) -> Result<Self> {
        let plain =
            Cut { patterns: &[], single_digits: false, whole_words: false, adds_bos: false };
        Ok(match pre {
            "gpt-2" | "mpt" => Cut { patterns: &[GPT2], ..plain },
            "llama-bpe" | "llama3" | "llama-v3" => {
                Cut { patterns: &[LLAMA3], whole_words: true, adds_bos: true, ..plain }
            }
            "qwen2" | "deepseek-r1-qwen" => Cut { patterns: &[QWEN2], ..plain },
            "smollm" | "starcoder" | "refact" | "command-r" => {
                Cut { patterns: &[GPT2], single_digits: true, ..plain }
            }
            // What llama.cpp does with files of before the key: punctuation apart, digits by threes.
            "default" => Cut {
                patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
                ..plain
            },
            other => {
                let why = format!("pre-tokenizer {other:?} (key \"tokenizer.ggml.pre\")");
                return Err(Error::unsupported(file, why));
            }
        })
    }

    /// Whether text is cut by these patterns and in this way.
    pub(super) fn is(&self, patterns: &[String], digits: bool, whole_words: bool) -> bool {
        self.patterns == patterns && (self.single_digits, self.whole_words) == (digits, whole_words)
    }

    fn pre_tokenizer(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        if self.single_digits {
            steps.push(Digits::new(true).into());
        }
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}

/// A tokenizer of `vocab` with `merges`, each of two pieces with a space between. Bytes without a piece are
/// left out of texts, as the reference tokenizers do: SmolLM2 has none for some control characters.
pub(super) fn build(vocab: &Vocab, merges: &[&str], cut: &Cut, file: &Path) -> Result<Pipeline> {
    let invalid = |why: String| Error::invalid(file, why);
    let (mut ids, mut added) = (Vec::with_capacity(vocab.len()), Vec::new());
    for id in 0..vocab.len() as u32 {
        let piece = std::str::from_utf8(vocab.piece(id))
            .map_err(|_| invalid(format!("token {id} is not UTF-8")))?;
        match vocab.kind(id) {
            Kind::Control => added.push(AddedToken::from(piece, true)),
            Kind::UserDefined => added.push(AddedToken::from(piece, false).normalized(false)),
            Kind::Normal | Kind::Byte(_) | Kind::Unused => {}
        }
        ids.push((piece.to_owned(), id));
    }
    let ids: tokenizers::models::bpe::Vocab = ids.into_iter().collect();
    let pair = |merge: &&str| {
        let (left, right) = merge.split_once(' ').filter(|(_, right)| !right.contains(' '))?;
        Some((left.to_owned(), right.to_owned()))
    };
    let merges = merges
        .iter()
        .map(|merge| {
            pair(merge).ok_or_else(|| invalid(format!("merge {merge:?} is not of two tokens")))
        })
        .collect::<Result<Vec<_>>>()?;
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(cut.whole_words)
        .build()
        .map_err(|e| invalid(format!("merges: {e}")))?;
    let mut library = Library::new(model);
    library.with_pre_tokenizer(Some(cut.pre_tokenizer().map_err(|e| Error::bug(e.to_string()))?));
    library.add_tokens(added).map_err(|e| invalid(e.to_string()))?;
    Ok(Pipeline::new(library))
}
