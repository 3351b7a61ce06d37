//! The tokenizer inside a GGUF file.

use import::Gguf;
use import::gguf::Metadata;

use super::bpe::{self, Cut};
use super::special::{BOS_NAMES, Specials};
use super::spm::{Options, Spm};
use super::vocab::{Kind, Spelling, Vocab, byte_piece};
use super::{Encoder, Tokenizer};
use crate::{Error, Result};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Reads the tokenizer of `gguf`.
pub(super) fn open(gguf: &Gguf) -> Result<Tokenizer> {
    let (file, meta) = (gguf.path(), gguf.metadata());
    match meta.find::<&str>(MODEL)? {
        Some("gpt2") => open_bpe(gguf),
        Some("llama") => open_spm(gguf),
        Some(other) => {
            Err(Error::unsupported(file, format!("tokenizer model {other:?} (key {MODEL:?})")))
        }
        None => Err(Error::invalid(file, "the file has no tokenizer; name one with --tokenizer")),
    }
}

fn open_bpe(gguf: &Gguf) -> Result<Tokenizer> {
    let (file, meta) = (gguf.path(), gguf.metadata());
    let cut = Cut::named(meta.find(PRE)?.unwrap_or("default"), file)?;
    let vocab = read_vocab(meta, Spelling::ByteLevel)?;
    let merges: Vec<&str> = meta.get(MERGES)?;
    let encoder = Encoder::Library(Box::new(bpe::build(&vocab, &merges, &cut, file)?));
    let mut specials = Specials {
        bos: find_id(meta, &vocab, "bos")?,
        eos: find_id(meta, &vocab, "eos")?,
        ..Specials::default()
    };
    specials.bos = specials.bos.or_else(|| encoder.control_id(&vocab, BOS_NAMES));
    finish(gguf, encoder, vocab, specials, cut.adds_bos, false)
}

fn open_spm(gguf: &Gguf) -> Result<Tokenizer> {
    let (file, meta) = (gguf.path(), gguf.metadata());
    let vocab = read_vocab(meta, Spelling::Metaspace)?;
    let options = Options {
        prefix_space: meta.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        prefix_after_user_defined: true,
        escape_spaces: true,
        unknown: find_id(meta, &vocab, "unknown")?.or(Some(0)),
    };
    let spm = Spm::new(&vocab, meta.get("tokenizer.ggml.scores")?, options, file)?;
    let encoder = Encoder::Spm(Box::new(spm));
    // Llama's ids are those of files that do not say.
    let llama = |id: u32| Some(id).filter(|&id| vocab.kind(id) == Kind::Control);
    let specials = Specials {
        bos: find_id(meta, &vocab, "bos")?.or(llama(1)),
        eos: find_id(meta, &vocab, "eos")?.or(llama(2)),
        ..Specials::default()
    };
    finish(gguf, encoder, vocab, specials, true, options.prefix_space)
}

/// What both kinds have in common.
fn finish(
    gguf: &Gguf,
    encoder: Encoder,
    vocab: Vocab,
    mut specials: Specials,
    adds_bos: bool,
    strips_space: bool,
) -> Result<Tokenizer> {
    let meta = gguf.metadata();
    specials.set_adds_bos(meta.find("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos));
    if meta.find("tokenizer.ggml.add_eos_token")?.unwrap_or(false) {
        specials.suffix.extend(specials.eos);
    }
    let mut ends = encoder.end_ids(&vocab);
    for role in ["eot", "eom"] {
        ends.extend(find_id(meta, &vocab, role)?);
    }
    specials.add_ends(ends);
    Ok(Tokenizer { source: gguf.path().into(), encoder, vocab, strips_space, specials })
}

/// The id that has this role, if the file names one.
fn find_id(meta: &Metadata, vocab: &Vocab, role: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{role}_token_id");
    let id: Option<u32> = meta.find(&key)?;
    match id {
        Some(id) if id as usize >= vocab.len() => {
            Err(meta.error(&key, format!("id {id} in a vocabulary of {}", vocab.len())).into())
        }
        id => Ok(id),
    }
}

fn read_vocab(meta: &Metadata, spelling: Spelling) -> Result<Vocab> {
    let tokens: Vec<&[u8]> = meta.get(TOKENS)?;
    let types: Vec<i32> = meta.find(TYPES)?.unwrap_or_else(|| vec![1; tokens.len()]);
    if types.len() != tokens.len() {
        let why = format!("{} types for {} tokens", types.len(), tokens.len());
        return Err(meta.error(TYPES, why).into());
    }
    let mut vocab = Vocab::new(spelling, tokens.len());
    for (id, (token, token_type)) in tokens.into_iter().zip(types).enumerate() {
        // The numbers are those of SentencePiece's piece types. The unknown token is no text.
        let kind = match (token_type, byte_piece(token)) {
            (1, _) => Kind::Normal,
            (2 | 3, _) => Kind::Control,
            (4, _) => Kind::UserDefined,
            (0 | 5, _) => Kind::Unused,
            (6, Some(byte)) => Kind::Byte(byte),
            (6, None) => {
                return Err(meta.error(TYPES, format!("token {id} is no byte token")).into());
            }
            (other, _) => {
                return Err(meta.error(TYPES, format!("token {id} is of type {other}")).into());
            }
        };
        vocab.push(token, kind);
    }
    Ok(vocab)
}
