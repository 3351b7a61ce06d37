//! SentencePiece's `.model`: a protobuf `ModelProto`, of which the fields that decide how text
//! becomes ids are kept.

use std::path::Path;

use prost::Message;

use crate::source::map_file;
use crate::{ImportError, Result};

/// Far beyond every vocabulary. An empty piece of two bytes takes dozens in memory, so that a
/// huge file could exhaust it.
const MAX_MODEL: usize = 256 << 20;

/// A SentencePiece model.
#[derive(Clone, Debug)]
pub struct SentencePiece {
    /// The vocabulary in order of ids.
    pub pieces: Vec<Piece>,
    /// How text is cut.
    pub model_type: ModelType,
    /// Whether a character that is in no piece becomes its UTF-8 bytes' pieces.
    pub byte_fallback: bool,
    /// Whether text gets a space before it.
    pub add_dummy_prefix: bool,
    /// Whether spaces at both ends go and runs of them become one.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces are U+2581 in pieces.
    pub escape_whitespaces: bool,
    /// Whether the space's sign is put behind words, not before them.
    pub treat_whitespace_as_suffix: bool,
    /// Name of the Unicode normalisation, such as `identity` or `nmt_nfkc`.
    pub normalizer: String,
    /// The normalisation as compiled tables; empty for none.
    pub precompiled_charsmap: Vec<u8>,
    /// Id of the unknown piece.
    pub unk_id: Option<u32>,
    /// Id that begins a text.
    pub bos_id: Option<u32>,
    /// Id that ends a text.
    pub eos_id: Option<u32>,
    /// Id that fills a batch.
    pub pad_id: Option<u32>,
}

/// A piece of a SentencePiece vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its text.
    pub text: String,
    /// Logarithm of its probability, or the negative rank of its merge.
    pub score: f32,
    /// What it is for.
    pub piece_type: PieceType,
}

/// What a piece is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceType {
    /// Text.
    Normal,
    /// Stands for what is in no piece.
    Unknown,
    /// Never in text: begin, end, padding.
    Control,
    /// Text that is never cut.
    UserDefined,
    /// Kept out of use.
    Unused,
    /// One byte, called `<0xNN>`.
    Byte,
}

/// How text is cut into pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelType {
    /// The most probable cut.
    Unigram,
    /// Merges of neighbours, the best score first.
    Bpe,
    /// Whole words.
    Word,
    /// Single characters.
    Char,
}

impl SentencePiece {
    /// Reads `path`.
    ///
    /// # Errors
    /// When it cannot be mapped or breaks the format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(path.as_ref(), &map_file(path.as_ref())?)
    }

    /// Reads a file's contents from memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// When the bytes break the format.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: &[u8]) -> Result<Self> {
        let file = name.as_ref();
        if bytes.len() > MAX_MODEL {
            let why = format!("{} bytes, at most {MAX_MODEL} are read", bytes.len());
            return Err(ImportError::limit(file, why));
        }
        let invalid = |why: String| ImportError::invalid(file, why);
        let model = proto::Model::decode(bytes)
            .map_err(|e| invalid(format!("not a SentencePiece model: {e}")))?;
        if model.pieces.is_empty() {
            return Err(invalid("a SentencePiece model without pieces".to_owned()));
        }
        let (trainer, normalizer) =
            (model.trainer.unwrap_or_default(), model.normalizer.unwrap_or_default());
        let model_type = match trainer.model_type() {
            1 => ModelType::Unigram,
            2 => ModelType::Bpe,
            3 => ModelType::Word,
            4 => ModelType::Char,
            n => return Err(invalid(format!("model type {n}")).key("trainer_spec.model_type")),
        };
        let pieces = pieces(model.pieces).map_err(invalid)?;
        let count = pieces.len();
        let id = |key: &str, id: i32| match u32::try_from(id) {
            // A negative number says that there is none.
            Err(_) => Ok(None),
            Ok(id) if (id as usize) < count => Ok(Some(id)),
            Ok(id) => Err(invalid(format!("id {id} in a vocabulary of {count}")).key(key)),
        };
        Ok(SentencePiece {
            pieces,
            model_type,
            byte_fallback: trainer.byte_fallback(),
            add_dummy_prefix: normalizer.add_dummy_prefix(),
            remove_extra_whitespaces: normalizer.remove_extra_whitespaces(),
            escape_whitespaces: normalizer.escape_whitespaces(),
            treat_whitespace_as_suffix: trainer.treat_whitespace_as_suffix(),
            unk_id: id("trainer_spec.unk_id", trainer.unk_id())?,
            bos_id: id("trainer_spec.bos_id", trainer.bos_id())?,
            eos_id: id("trainer_spec.eos_id", trainer.eos_id())?,
            pad_id: id("trainer_spec.pad_id", trainer.pad_id())?,
            normalizer: normalizer.name.unwrap_or_default(),
            precompiled_charsmap: normalizer.precompiled_charsmap.unwrap_or_default(),
        })
    }
}

fn pieces(raw: Vec<proto::Piece>) -> std::result::Result<Vec<Piece>, String> {
    let convert = |(id, raw): (usize, proto::Piece)| {
        let piece_type = match raw.piece_type() {
            1 => PieceType::Normal,
            2 => PieceType::Unknown,
            3 => PieceType::Control,
            4 => PieceType::UserDefined,
            5 => PieceType::Unused,
            6 => PieceType::Byte,
            n => return Err(format!("piece {id} is of type {n}")),
        };
        Ok(Piece { score: raw.score(), text: raw.text.unwrap_or_default(), piece_type })
    };
    raw.into_iter().enumerate().map(convert).collect()
}

/// The messages of `sentencepiece_model.proto`, with the fields that are used here.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Model {
        #[prost(message, repeated, tag = "1")]
        pub(super) pieces: Vec<Piece>,
        #[prost(message, optional, tag = "2")]
        pub(super) trainer: Option<Trainer>,
        #[prost(message, optional, tag = "3")]
        pub(super) normalizer: Option<Normalizer>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Piece {
        #[prost(string, optional, tag = "1")]
        pub(super) text: Option<String>,
        #[prost(float, optional, tag = "2")]
        pub(super) score: Option<f32>,
        #[prost(int32, optional, tag = "3", default = "1")]
        pub(super) piece_type: Option<i32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Trainer {
        #[prost(int32, optional, tag = "3", default = "1")]
        pub(super) model_type: Option<i32>,
        #[prost(bool, optional, tag = "24")]
        pub(super) treat_whitespace_as_suffix: Option<bool>,
        #[prost(bool, optional, tag = "35")]
        pub(super) byte_fallback: Option<bool>,
        #[prost(int32, optional, tag = "40", default = "0")]
        pub(super) unk_id: Option<i32>,
        #[prost(int32, optional, tag = "41", default = "1")]
        pub(super) bos_id: Option<i32>,
        #[prost(int32, optional, tag = "42", default = "2")]
        pub(super) eos_id: Option<i32>,
        #[prost(int32, optional, tag = "43", default = "-1")]
        pub(super) pad_id: Option<i32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Normalizer {
        #[prost(string, optional, tag = "1")]
        pub(super) name: Option<String>,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub(super) precompiled_charsmap: Option<Vec<u8>>,
        #[prost(bool, optional, tag = "3", default = "true")]
        pub(super) add_dummy_prefix: Option<bool>,
        #[prost(bool, optional, tag = "4", default = "true")]
        pub(super) remove_extra_whitespaces: Option<bool>,
        #[prost(bool, optional, tag = "5", default = "true")]
        pub(super) escape_whitespaces: Option<bool>,
    }
}
