//! Data: token files, how they are made from text, and how batches are made from them.

mod dataset;
mod loader;
mod paths;
mod pieces;
mod shuffle;
mod source;
mod text;
mod token_file;
mod token_writer;

pub use dataset::Dataset;
pub use loader::{InputNames, Loader, Packing, Position};
pub use paths::{DataFile, Kind, files};
pub use source::{Encode, Piece, RenderChat, Tokenization, Tokenized, tokenize};
pub use text::texts;
pub use token_file::TokenFile;
pub use token_writer::TokenWriter;
