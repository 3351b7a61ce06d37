//! Text to token ids and back, for every kind of tokenizer file.

mod bpe;
mod byte_level;
mod chunks;
mod gguf;
mod gguf_write;
mod huggingface;
mod made;
mod pipeline;
mod sentencepiece;
mod special;
mod spm;
mod stream;
mod vocab;

use std::path::{Path, PathBuf};

use import::{Gguf, ModelFile};
use mil::ErrorKind;

use crate::{Error, Result};
pub use made::MadeTokenizer;
use pipeline::Pipeline;
use special::{END_NAMES, Specials};
use spm::Spm;
pub use stream::DecodeStream;
use vocab::{Kind, Vocab};

/// A model may have more embedding rows than its tokenizer has ids, up to this fraction: rows are padded for speed.
const MAX_PADDING: f64 = 0.1;

/// Text to ids.
enum Encoder {
    Library(Box<Pipeline>),
    Spm(Box<Spm>),
}

impl Encoder {
    fn token_to_id(&self, piece: &str) -> Option<u32> {
        match self {
            Encoder::Library(pipeline) => pipeline.token_to_id(piece),
            Encoder::Spm(spm) => spm.token_to_id(piece),
        }
    }

    /// The first of `names` that is a control token.
    fn control_id(&self, vocab: &Vocab, names: &[&str]) -> Option<u32> {
        names
            .iter()
            .filter_map(|name| self.token_to_id(name))
            .find(|&id| vocab.kind(id) == Kind::Control)
    }

    /// Control tokens whose names say that they end a text or a turn.
    fn end_ids(&self, vocab: &Vocab) -> Vec<u32> {
        END_NAMES.iter().filter_map(|name| self.control_id(vocab, &[name])).collect()
    }
}

/// A tokenizer with its special tokens.
pub struct Tokenizer {
    source: PathBuf,
    encoder: Encoder,
    vocab: Vocab,
    /// Whether encoding puts a space before a text, which decoding takes away.
    strips_space: bool,
    specials: Specials,
}

impl Tokenizer {
    /// Reads a tokenizer file, told by its content: `tokenizer.json`, SentencePiece's `.model`, llama2.c's
    /// `tokenizer.bin`, or a GGUF file.
    ///
    /// # Errors
    /// When the file cannot be read, breaks its format, or needs what Rigel does not have.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = import::map_file(path)?;
        match &bytes[..] {
            [b'G', b'G', b'U', b'F', ..] => Self::from_gguf(&Gguf::open(path)?),
            // The length of the longest piece, as a little-endian number.
            [_, _, 0, 0, ..] => sentencepiece::open_llama2c(path),
            // The tag of the first piece.
            [b'\n', ..] => sentencepiece::open_model(path),
            text if text.trim_ascii_start().first() == Some(&b'{') => huggingface::open(path),
            _ => Err(Error::unsupported(
                path,
                "not a tokenizer.json, SentencePiece model, llama2.c tokenizer.bin or GGUF file",
            )),
        }
    }

    /// The tokenizer inside a GGUF file.
    ///
    /// # Errors
    /// `unsupported` for a kind of tokenizer or a pre-tokenizer that Rigel does not have; `invalid` when there
    /// is none, or its parts contradict each other.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        gguf::open(gguf)
    }

    /// The tokenizer of `model`: the file `explicit` if given, else the one inside a GGUF file or beside the
    /// weights.
    ///
    /// # Errors
    /// `invalid` when there is none; else as for [`Tokenizer::from_file`].
    pub fn for_model(model: &ModelFile, explicit: Option<&Path>) -> Result<Self> {
        if let Some(path) = explicit {
            return Self::from_file(path);
        }
        let none = |why: &str| Err(Error::invalid(model.path(), why));
        match model {
            ModelFile::Gguf(gguf) => Self::from_gguf(gguf),
            ModelFile::HuggingFace(dir) => {
                let files = dir.side_files();
                match files.tokenizer_json.as_ref().or(files.tokenizer_model.as_ref()) {
                    Some(path) => Self::from_file(path),
                    None => none(
                        "no tokenizer.json or tokenizer.model beside the weights; name one with --tokenizer",
                    ),
                }
            }
            ModelFile::Llama2c(_) => none(
                "a llama2.c checkpoint holds no tokenizer; name its tokenizer.bin with --tokenizer",
            ),
        }
    }

    /// The ids of `text`, in which control tokens have no meaning: `<|im_end|>` typed by a user is text.
    /// `add_special` adds what the model expects around a text, such as BOS.
    ///
    /// # Errors
    /// `limit` when the tokenizer's pattern gives up on the text; `invalid` when the vocabulary has no
    /// piece for a character and no substitute.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_as(text, add_special, false)
    }

    /// As [`Tokenizer::encode`], but the names of control tokens in `text` become those tokens. For text
    /// of our own, such as what a chat template renders.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_with_control(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_as(text, add_special, true)
    }

    fn encode_as(&self, text: &str, add_special: bool, control: bool) -> Result<Vec<u32>> {
        let body = match &self.encoder {
            Encoder::Library(pipeline) => pipeline.encode(text, control)?,
            Encoder::Spm(spm) => spm.encode(&self.vocab, text, control)?,
        };
        if !add_special {
            return Ok(body);
        }
        Ok([&self.specials.prefix, &body[..], &self.specials.suffix].concat())
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD; an id without a piece has no text.
    /// `skip_special` leaves control tokens out, else they are shown by their names.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.decode_stream().skip_special(skip_special);
        let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        text.extend(stream.flush());
        text
    }

    /// Decodes ids as they come.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// The id of a piece, in the vocabulary's own spelling.
    pub fn token_to_id(&self, piece: &str) -> Option<u32> {
        self.encoder.token_to_id(piece)
    }

    /// The piece of an id, in the vocabulary's own spelling.
    pub fn id_to_piece(&self, id: u32) -> Option<String> {
        let known = self.vocab.kind(id) != Kind::Unused;
        known.then(|| String::from_utf8_lossy(self.vocab.piece(id)).into_owned())
    }

    /// Whether `id` is a control token, which has no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.kind(id) == Kind::Control
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.specials.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.specials.eos
    }

    /// The tokens that end generation: end of text, of a turn, of a message.
    pub fn end_ids(&self) -> &[u32] {
        &self.specials.end
    }

    /// Whether `id` ends generation.
    pub fn is_end(&self, id: u32) -> bool {
        self.specials.end.contains(&id)
    }

    /// Whether BOS is among what `add_special` adds.
    pub fn adds_bos(&self) -> bool {
        self.specials.bos.is_some() && self.specials.prefix.first() == self.specials.bos.as_ref()
    }

    /// The file that the tokenizer came from.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Checks that a model with `model_vocab` embedding rows can be the tokenizer's. Control tokens beyond
    /// them do not count: text never yields one.
    ///
    /// # Errors
    /// `invalid` when the tokenizer has text for an id that the model lacks, or far fewer ids.
    pub fn check_vocab(&self, model_vocab: usize) -> Result<()> {
        let beyond =
            |id: usize| !matches!(self.vocab.kind(id as u32), Kind::Control | Kind::Unused);
        let too_many = (model_vocab..self.vocab_size()).any(beyond);
        let unused = model_vocab.saturating_sub(self.vocab_size());
        if too_many || unused as f64 > MAX_PADDING * model_vocab as f64 {
            let why = format!(
                "tokenizer of {} tokens does not belong to a model with a vocabulary of {model_vocab}",
                self.vocab_size()
            );
            return Err(Error::Model {
                file: self.source.clone(),
                kind: ErrorKind::Invalid,
                message: why,
            });
        }
        Ok(())
    }
}
