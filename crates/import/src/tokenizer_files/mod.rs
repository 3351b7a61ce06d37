//! The raw contents of tokenizer files; what they mean is the business of those who tokenize.

mod llama2c;
mod sentencepiece;

pub use llama2c::Llama2cVocab;
pub use sentencepiece::{ModelType, Piece, PieceType, SentencePiece};
