//! A byte-level BPE as GGUF holds it.

use import::gguf::Value;
use serde_json::Value as Json;

use super::bpe::Cut;
use super::gguf::{MERGES, MODEL, PRE, TOKENS, TYPES};
use super::special::Specials;
use super::vocab::{Kind, Spelling};
use super::{Encoder, Tokenizer};
use crate::{Error, Result};

/// Names of cuts, of those that are alike the one that llama.cpp's converter writes.
const CUTS: &[&str] = &["gpt-2", "llama-bpe", "qwen2", "smollm"];

impl Tokenizer {
    /// The metadata of a GGUF file with this tokenizer, for a model of `vocab` rows; what ids are more than
    /// pieces have names and are not used. Unicode's composition (NFC) before the cut has no form there and is
    /// left out, as llama.cpp's converter does.
    ///
    /// # Errors
    /// `unsupported` unless it comes from a `tokenizer.json` with a byte-level BPE whose way of cutting text
    /// into words has a name in llama.cpp.
    pub(crate) fn gguf_metadata(&self, vocab: usize) -> Result<Vec<(&'static str, Value)>> {
        let unsupported = |what: &str| {
            Err(Error::unsupported(&self.source, format!("{what} has no form in GGUF")))
        };
        let is_json = self.source.extension().is_some_and(|e| e == "json");
        if !is_json || !matches!(self.encoder, Encoder::Library(_)) {
            return unsupported("a tokenizer that is no tokenizer.json");
        }
        let json: Json = import::read_json(&self.source)?;
        let model = &json["model"];
        let byte_level = self.vocab.spelling() == Spelling::ByteLevel;
        if !byte_level || model["type"].as_str().is_some_and(|ty| ty != "BPE") {
            return unsupported("a tokenizer that is no byte-level BPE");
        }
        if !matches!(json["normalizer"]["type"].as_str(), None | Some("NFC")) {
            return unsupported("the tokenizer's normalizer");
        }
        let Specials { bos, eos, prefix, suffix, .. } = &self.specials;
        let at_most = |ids: &[u32], one: &Option<u32>| ids.is_empty() || ids == one.as_slice();
        if !at_most(prefix, bos) || !at_most(suffix, eos) {
            return unsupported("what the tokenizer puts around a text");
        }
        let Some(words) = words(&json["pre_tokenizer"]) else {
            return unsupported("the tokenizer's pre_tokenizer");
        };
        let whole = model["ignore_merges"].as_bool().unwrap_or(false);
        let is_it = |name: &&&str| {
            Cut::named(name, &self.source)
                .is_ok_and(|cut| cut.is(&words.patterns, words.digits, whole))
        };
        let Some(cut) = CUTS.iter().find(is_it) else {
            return unsupported("the tokenizer's way of cutting text into words");
        };
        let Some(merges) = merges(&model["merges"]) else {
            return Err(Error::invalid(&self.source, "merges that are not of two pieces"));
        };
        let mut tokens = Vec::with_capacity(vocab);
        let mut types = Vec::with_capacity(vocab);
        for id in 0..vocab as u32 {
            let known = (id as usize) < self.vocab.len();
            let kind = if known { self.vocab.kind(id) } else { Kind::Unused };
            let piece = known.then(|| std::str::from_utf8(self.vocab.piece(id)).ok()).flatten();
            tokens.push(match (kind, piece) {
                (Kind::Unused, _) | (_, None) => format!("[PAD{id}]"),
                (_, Some(piece)) => piece.to_owned(),
            });
            types.push(match kind {
                Kind::Normal => 1i32,
                Kind::Control => 3,
                Kind::UserDefined => 4,
                Kind::Unused => 5,
                Kind::Byte(_) => 6,
            });
        }
        fn strings(of: &[String]) -> Value {
            Value::from(&of.iter().map(String::as_str).collect::<Vec<_>>()[..])
        }
        let mut metadata = vec![
            (MODEL, Value::from("gpt2")),
            (PRE, Value::from(*cut)),
            (TOKENS, strings(&tokens)),
            (TYPES, Value::from(&types[..])),
            (MERGES, strings(&merges)),
            ("tokenizer.ggml.add_bos_token", Value::from(!prefix.is_empty())),
            ("tokenizer.ggml.add_eos_token", Value::from(!suffix.is_empty())),
        ];
        let roles = [("tokenizer.ggml.bos_token_id", *bos), ("tokenizer.ggml.eos_token_id", *eos)];
        metadata.extend(roles.into_iter().filter_map(|(key, id)| Some((key, Value::U32(id?)))));
        Ok(metadata)
    }
}

/// How a `pre_tokenizer` cuts text.
struct Words {
    patterns: Vec<String>,
    /// Whether every digit is cut off first.
    digits: bool,
}

/// `None` for what does anything else than to cut by patterns and to spell bytes.
fn words(json: &Json) -> Option<Words> {
    let steps = match json["type"].as_str()? {
        "Sequence" => json["pretokenizers"].as_array()?.clone(),
        _ => vec![json.clone()],
    };
    let mut words = Words { patterns: Vec::new(), digits: false };
    for step in steps {
        match step["type"].as_str()? {
            "Digits" if step["individual_digits"] == true && words.patterns.is_empty() => {
                words.digits = true;
            }
            "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
                words.patterns.push(step["pattern"]["Regex"].as_str()?.to_owned());
            }
            "ByteLevel" if step["add_prefix_space"] != true => {
                if step["use_regex"] != false {
                    words.patterns.push(super::bpe::GPT2.to_owned());
                }
            }
            _ => return None,
        }
    }
    Some(words)
}

/// Merges as two pieces with a space between, from either form that the library writes.
fn merges(json: &Json) -> Option<Vec<String>> {
    let one = |merge: &Json| match merge {
        Json::String(pair) => Some(pair.clone()),
        Json::Array(pair) => match pair.as_slice() {
            [left, right] => Some(format!("{} {}", left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    };
    json.as_array()?.iter().map(one).collect()
}
