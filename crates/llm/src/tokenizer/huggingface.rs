//! `tokenizer.json` and the small JSON files beside it.

use std::path::Path;

use serde_json::Value;
use tokenizers::{DecoderWrapper, Tokenizer as Library};

use super::pipeline::Pipeline;
use super::special::{BOS_NAMES, Specials};
use super::vocab::{Kind, METASPACE, Spelling, Vocab, byte_piece};
use super::{Encoder, Tokenizer};
use crate::{Error, Result};

/// Ids are indices of tables; a file must not make them large with one number.
pub(super) const MAX_ID: u32 = 1 << 24;

/// Reads `path`, a `tokenizer.json`.
pub(super) fn open(path: &Path) -> Result<Tokenizer> {
    let bytes = import::map_file(path)?;
    let mut library = Library::from_bytes(&*bytes)
        .map_err(|e| Error::invalid(path, format!("not a usable tokenizer.json: {e}")))?;
    // A model's own context is the limit here, not the length of the examples it was trained on.
    library.with_truncation(None).map_err(|e| Error::bug(e.to_string()))?;
    library.with_padding(None);
    let decoding = Decoding::of(library.get_decoder(), path)?;
    let vocab = read_vocab(&library, decoding, path)?;
    let pipeline = Pipeline::new(library);
    let around = pipeline.around(path)?;
    let encoder = Encoder::Library(Box::new(pipeline));
    let specials = read_specials(around, &encoder, &vocab, path)?;
    Ok(Tokenizer {
        source: path.into(),
        encoder,
        vocab,
        strips_space: decoding.strips_space,
        specials,
    })
}

/// How pieces become text.
#[derive(Clone, Copy)]
struct Decoding {
    spelling: Spelling,
    /// Whether `<0xNN>` is a byte.
    bytes: bool,
    strips_space: bool,
}

impl Decoding {
    /// The library decodes whole sequences only; the decoders in use are the same function of each piece,
    /// apart from a space at the start, and that is what streaming needs.
    fn of(decoder: Option<&DecoderWrapper>, path: &Path) -> Result<Self> {
        let unsupported =
            |what: &str| Error::unsupported(path, format!("tokenizer decoder {what}"));
        let Some(decoder) = decoder else { return Err(unsupported("null")) };
        let json = serde_json::to_value(decoder).map_err(|e| Error::bug(e.to_string()))?;
        let mut decoding =
            Decoding { spelling: Spelling::Plain, bytes: false, strips_space: false };
        let steps = match json["type"].as_str() {
            Some("Sequence") => json["decoders"].as_array().cloned().unwrap_or_default(),
            _ => vec![json],
        };
        for step in &steps {
            match step["type"].as_str().unwrap_or_default() {
                "ByteLevel" => decoding.spelling = Spelling::ByteLevel,
                "Metaspace" if step["replacement"] == METASPACE => {
                    decoding.spelling = Spelling::Metaspace;
                    decoding.strips_space |= step["prepend_scheme"] != "never";
                }
                "Replace" if step["pattern"]["String"] == METASPACE && step["content"] == " " => {
                    decoding.spelling = Spelling::Metaspace;
                }
                "ByteFallback" => decoding.bytes = true,
                "Fuse" => {}
                "Strip" if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                    decoding.strips_space = true;
                }
                _ => return Err(unsupported(&step.to_string())),
            }
        }
        Ok(decoding)
    }
}

fn read_vocab(library: &Library, decoding: Decoding, path: &Path) -> Result<Vocab> {
    let mut pieces: Vec<(u32, String)> =
        library.get_vocab(true).into_iter().map(|(piece, id)| (id, piece)).collect();
    pieces.sort_unstable();
    let added = library.get_added_vocabulary().get_added_tokens_decoder();
    let mut vocab = Vocab::new(decoding.spelling, pieces.len());
    for (id, piece) in &pieces {
        if *id > MAX_ID {
            return Err(Error::invalid(path, format!("token {piece:?} has id {id}")));
        }
        if (*id as usize) < vocab.len() {
            return Err(Error::invalid(path, format!("two tokens have id {id}")));
        }
        while vocab.len() < *id as usize {
            vocab.push(b"", Kind::Unused);
        }
        let kind = match (added.get(id), byte_piece(piece.as_bytes())) {
            (Some(token), _) if token.special => Kind::Control,
            (Some(_), _) => Kind::UserDefined,
            (None, Some(byte)) if decoding.bytes => Kind::Byte(byte),
            (None, _) => Kind::Normal,
        };
        vocab.push(piece.as_bytes(), kind);
    }
    Ok(vocab)
}

/// The roles of tokens, from the post-processor, the files beside `path`, and well-known names.
fn read_specials(
    mut specials: Specials,
    encoder: &Encoder,
    vocab: &Vocab,
    path: &Path,
) -> Result<Specials> {
    let config = read_json(path, "config.json")?;
    let generation = read_json(path, "generation_config.json")?;
    let tokenizer = read_json(path, "tokenizer_config.json")?;
    let map = read_json(path, "special_tokens_map.json")?;

    // A token is written as text, or as an object that holds the text.
    let named = |json: &Value, key: &str| {
        let value = &json[key];
        let name = value.as_str().or_else(|| value["content"].as_str())?;
        encoder.token_to_id(name)
    };
    // Ids are one number or a list.
    let numbered = |json: &Value, key: &str| -> Vec<u32> {
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        match &json[key] {
            Value::Array(ids) => ids.iter().filter_map(id).collect(),
            one => id(one).into_iter().collect(),
        }
    };
    let by_role = |role: &str| {
        named(&tokenizer, &format!("{role}_token"))
            .or_else(|| named(&map, &format!("{role}_token")))
    };

    specials.bos = by_role("bos")
        .or_else(|| numbered(&config, "bos_token_id").first().copied())
        .or_else(|| encoder.control_id(vocab, BOS_NAMES));
    specials.eos = by_role("eos").or_else(|| numbered(&config, "eos_token_id").first().copied());
    let mut ends = numbered(&generation, "eos_token_id");
    ends.extend(numbered(&config, "eos_token_id"));
    ends.extend(encoder.end_ids(vocab));
    specials.add_ends(ends);
    if let Some(adds) = tokenizer["add_bos_token"].as_bool() {
        specials.set_adds_bos(adds);
    }
    Ok(specials)
}

/// The JSON file `name` beside `path`, or null if there is none.
fn read_json(path: &Path, name: &str) -> Result<Value> {
    let path = path.with_file_name(name);
    if !path.exists() {
        return Ok(Value::Null);
    }
    let bytes = import::map_file(&path)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::invalid(&path, e.to_string()))
}
