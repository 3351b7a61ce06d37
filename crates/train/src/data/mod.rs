//! Data: token files, how they are made from text, and how batches are made from them.

mod dataset;
mod loader;
mod pieces;
mod shuffle;
mod source;
mod token_file;
mod token_writer;

pub use dataset::Dataset;
pub use loader::{InputNames, Loader, Packing, Position};
pub use source::{Encode, Piece, RenderChat, Tokenization, Tokenized, for_each_text, tokenize};
pub use token_file::TokenFile;
pub use token_writer::TokenWriter;
