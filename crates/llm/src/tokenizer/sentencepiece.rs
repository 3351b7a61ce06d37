//! SentencePiece's `.model` and llama2.c's `tokenizer.bin`.

use std::path::Path;

use import::tokenizer_files::{Llama2cVocab, ModelType, PieceType, SentencePiece};

use super::special::Specials;
use super::spm::{Options, Spm};
use super::vocab::{Kind, METASPACE, Spelling, Vocab, byte_piece};
use super::{Encoder, Tokenizer};
use crate::{Error, Result};

/// Reads a SentencePiece model.
pub(super) fn open_model(path: &Path) -> Result<Tokenizer> {
    let model = SentencePiece::open(path)?;
    refuse(&model, path)?;
    let spelling = if model.escape_whitespaces { Spelling::Metaspace } else { Spelling::Plain };
    let mut vocab = Vocab::new(spelling, model.pieces.len());
    for (id, piece) in model.pieces.iter().enumerate() {
        let kind = match (piece.piece_type, byte_piece(piece.text.as_bytes())) {
            (PieceType::Normal, _) => Kind::Normal,
            (PieceType::Unknown | PieceType::Control, _) => Kind::Control,
            (PieceType::UserDefined, _) => Kind::UserDefined,
            (PieceType::Unused, _) => Kind::Unused,
            (PieceType::Byte, Some(byte)) => Kind::Byte(byte),
            (PieceType::Byte, None) => {
                return Err(Error::invalid(path, format!("piece {id} is no byte piece")));
            }
        };
        // User-defined pieces are looked for in the text as it comes.
        match kind {
            Kind::UserDefined => vocab.push(piece.text.replace(METASPACE, " ").as_bytes(), kind),
            _ => vocab.push(piece.text.as_bytes(), kind),
        }
    }
    let options = Options {
        prefix_space: model.add_dummy_prefix,
        prefix_after_user_defined: false,
        escape_spaces: model.escape_whitespaces,
        unknown: model.unk_id,
    };
    let scores = model.pieces.iter().map(|p| p.score).collect();
    let spm = Spm::new(&vocab, scores, options, path)?;
    let encoder = Encoder::Spm(Box::new(spm));
    let mut specials = Specials { bos: model.bos_id, eos: model.eos_id, ..Specials::default() };
    specials.set_adds_bos(true);
    specials.add_ends(encoder.end_ids(&vocab));
    Ok(Tokenizer {
        source: path.into(),
        encoder,
        vocab,
        strips_space: options.prefix_space,
        specials,
    })
}

/// What a model may ask for and Rigel does not do.
fn refuse(model: &SentencePiece, path: &Path) -> Result<()> {
    let refused = if model.model_type != ModelType::Bpe {
        format!("a SentencePiece model of type {:?}; use its tokenizer.json", model.model_type)
    } else if !model.precompiled_charsmap.is_empty() {
        format!("SentencePiece normalisation {:?}; use its tokenizer.json", model.normalizer)
    } else if model.remove_extra_whitespaces {
        "SentencePiece's remove_extra_whitespaces; use its tokenizer.json".to_owned()
    } else if model.treat_whitespace_as_suffix {
        "SentencePiece's treat_whitespace_as_suffix".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::unsupported(path, refused))
}

/// llama2.c's ids: unknown, begin, end, then the bytes.
const LLAMA2C_CONTROL: [&str; 3] = ["<unk>", "<s>", "</s>"];

/// Reads llama2.c's `tokenizer.bin`.
pub(super) fn open_llama2c(path: &Path) -> Result<Tokenizer> {
    let pieces = Llama2cVocab::open(path)?;
    let mut vocab = Vocab::new(Spelling::Plain, pieces.len());
    let first_text = LLAMA2C_CONTROL.len() + 256;
    if pieces.len() < first_text {
        let why = format!("a tokenizer.bin of {} pieces, at least {first_text}", pieces.len());
        return Err(Error::invalid(path, why));
    }
    for (id, (piece, _)) in pieces.pieces().enumerate() {
        match (LLAMA2C_CONTROL.get(id), byte_piece(piece)) {
            // The file surrounds the names with line ends.
            (Some(name), _) => vocab.push(name.as_bytes(), Kind::Control),
            (None, Some(byte)) if id < first_text => vocab.push(piece, Kind::Byte(byte)),
            (None, _) => vocab.push(piece, Kind::Normal),
        }
    }
    let options = Options {
        prefix_space: true,
        prefix_after_user_defined: false,
        escape_spaces: false,
        unknown: Some(0),
    };
    let scores = pieces.pieces().map(|(_, score)| score).collect();
    let spm = Spm::new(&vocab, scores, options, path)?;
    let mut specials = Specials { bos: Some(1), eos: Some(2), ..Specials::default() };
    specials.set_adds_bos(true);
    // llama2.c's models put BOS between texts.
    specials.add_ends([1]);
    let encoder = Encoder::Spm(Box::new(spm));
    Ok(Tokenizer { source: path.into(), encoder, vocab, strips_space: true, specials })
}
