//! New tokenizers, made from text: byte-level BPE (Sennrich et al. 2016, Radford et al. 2019), and one whose
//! tokens are single characters.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mil::ErrorKind;
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer as Library, TokenizerBuilder, Trainer,
};

use super::chunks::Places;
use super::huggingface::MAX_ID;
use crate::{Error, Result};

/// The token that ends a document, and so begins the next one.
const END: &str = "<|endoftext|>";

/// Tokens that byte-level BPE has before any text was seen: the bytes and [`END`].
const LEAST: usize = 257;

/// A tokenizer in the form of Hugging Face's `tokenizers`.
pub struct MadeTokenizer {
    library: Library,
    config: Value,
}

impl MadeTokenizer {
    /// Byte-level BPE of at most `vocab` ids with GPT-2's pre-tokenizer, its merges the commonest pairs of
    /// `texts`. Fewer ids come of texts that have no more pairs. Id 0 is `<|endoftext|>`.
    ///
    /// # Errors
    /// `invalid` when `vocab` is less than 257, or there are no texts; `limit` when it is more than a file may hold.
    pub fn byte_level_bpe<T>(texts: T, vocab: usize) -> Result<Self>
    where
        T: IntoIterator<Item: AsRef<str>, IntoIter: Send>,
    {
        if vocab < LEAST {
            let why = format!("{vocab} ids; the bytes and {END} alone take {LEAST}");
            return Err(Error::request(why));
        }
        if vocab > MAX_ID as usize {
            return Err(Error::limit(format!("{vocab} ids; a tokenizer has at most {MAX_ID}")));
        }
        let bytes = ByteLevel::new(false, true, true);
        let mut trainer = BpeTrainerBuilder::new()
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(vec![AddedToken::from(END, true)])
            .build();
        let mut length = 0;
        let chunks = texts.into_iter().flat_map(|text| {
            let text = text.as_ref();
            length += text.len();
            // Words are counted, which are the same in the chunks.
            Places::Words.cut(text).map(|(_, chunk)| chunk.to_owned()).collect::<Vec<_>>()
        });
        trainer.feed(chunks, |chunk| words(bytes, chunk)).map_err(bug)?;
        if length == 0 {
            return Err(Error::request("no text to make a tokenizer from"));
        }
        // The library takes memory for all ids before it makes the first.
        trainer.vocab_size = vocab.min(LEAST + length);
        let mut model = BPE::default();
        let special = trainer.train(&mut model).map_err(bug)?;
        let mut tokenizer = TokenizerBuilder::new()
            .with_model(model)
            .with_normalizer(None::<tokenizers::NormalizerWrapper>)
            .with_pre_tokenizer(Some(bytes))
            .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
            .with_decoder(Some(bytes))
            .build()
            .map_err(bug)?;
        tokenizer.add_special_tokens(special).map_err(bug)?;
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "clean_up_tokenization_spaces": false,
        });
        Ok(MadeTokenizer { library: tokenizer.into(), config })
    }

    /// The characters of `texts` in the order of their code points. A text with others is refused when it is
    /// encoded; no token ends a document.
    ///
    /// # Errors
    /// When there are no texts.
    pub fn characters(texts: impl IntoIterator<Item: AsRef<str>>) -> Result<Self> {
        let mut characters = BTreeSet::new();
        texts.into_iter().for_each(|text| characters.extend(text.as_ref().chars()));
        if characters.is_empty() {
            return Err(Error::request("no text to make a tokenizer from"));
        }
        let ids = characters.iter().zip(0u32..).map(|(c, id)| (c.to_string(), id.into()));
        let vocab: Map<String, Value> = ids.collect();
        let file = json!({
            "version": "1.0",
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
            "decoder": { "type": "Fuse" },
        });
        let library = Library::from_bytes(file.to_string()).map_err(bug)?;
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
        });
        Ok(MadeTokenizer { library, config })
    }

    /// Number of ids.
    pub fn vocab_size(&self) -> usize {
        self.library.get_vocab_size(true)
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` into the directory `dir`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let json = self.library.to_string(true).map_err(bug)?;
        let config = format!("{:#}", self.config);
        for (name, text) in [("tokenizer.json", json), ("tokenizer_config.json", config)] {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|e| Error::Model {
                message: format!("cannot write: {e}"),
                file: path,
                kind: ErrorKind::Limit,
            })?;
        }
        Ok(())
    }
}

/// The words of `text`, in whose inside pairs are counted.
fn words(bytes: ByteLevel, text: &str) -> tokenizers::Result<Vec<String>> {
    let mut parts = PreTokenizedString::from(text);
    bytes.pre_tokenize(&mut parts)?;
    let splits = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.into_iter().map(|(word, ..)| word.to_owned()).collect())
}

fn bug(error: impl std::fmt::Display) -> Error {
    Error::bug(error.to_string())
}
