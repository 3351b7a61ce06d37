//! Encoding by the `tokenizers` library, with control tokens in the text switchable at every call.

use std::path::Path;

use tokenizers::{
    AddedVocabulary, Encoding, Model, ModelWrapper, OffsetReferential, OffsetType, PostProcessor,
    PreTokenizedString, PreTokenizer, Token, Tokenizer as Library,
};

use super::chunks::Places;
use super::special::Specials;
use crate::{Error, Result};

pub(super) struct Pipeline {
    library: Library,
    /// The added tokens, of which control tokens are not looked for in a text.
    without_control: AddedVocabulary,
    /// Whether a character of a text that is no piece would be lost: BPE of characters, not of bytes, without a
    /// piece for what is unknown.
    loses: bool,
    /// Where a long text is cut, to be encoded in chunks.
    pub(super) places: Places,
}

impl Pipeline {
    pub(super) fn new(mut library: Library) -> Self {
        library.set_encode_special_tokens(false);
        let mut without_control = library.get_added_vocabulary().clone();
        without_control.set_encode_special_tokens(true);
        let whole = library.get_normalizer().is_none() && library.get_pre_tokenizer().is_none();
        let loses = match library.get_model() {
            ModelWrapper::BPE(bpe) => whole && bpe.unk_token.is_none() && !bpe.byte_fallback,
            _ => false,
        };
        let places = Places::of(&library);
        Pipeline { library, without_control, loses, places }
    }

    pub(super) fn token_to_id(&self, piece: &str) -> Option<u32> {
        self.library.token_to_id(piece)
    }

    /// The ids of `text`, with nothing around them.
    pub(super) fn encode(&self, text: &str, control: bool) -> Result<Vec<u32>> {
        let added =
            if control { self.library.get_added_vocabulary() } else { &self.without_control };
        let mut ids = Vec::new();
        for (start, chunk) in self.places.cut(text) {
            let parts = added.extract_and_normalize(self.library.get_normalizer(), chunk);
            if self.loses {
                self.check(&parts, text, start)?;
            }
            let failed = |e| Error::limit(format!("cannot tokenize the text: {e}"));
            ids.extend(self.ids(parts).map_err(failed)?);
        }
        Ok(ids)
    }

    fn ids(&self, mut parts: PreTokenizedString) -> tokenizers::Result<Vec<u32>> {
        if let Some(pre_tokenizer) = self.library.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        self.library.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// Refuses a character of `parts`, which begin at `start` of `text`, that is no piece, outside of added tokens.
    fn check(&self, parts: &PreTokenizedString, text: &str, start: usize) -> Result<()> {
        let is_piece = |c: char| self.library.token_to_id(c.encode_utf8(&mut [0; 4])).is_some();
        let splits = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let unknown = splits.iter().filter(|split| split.2.is_none()).find_map(|split| {
            let (at, c) = split.0.char_indices().find(|(_, c)| !is_piece(*c))?;
            Some((start + split.1.0 + at, c))
        });
        let Some((at, c)) = unknown else { return Ok(()) };
        let before = &text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let why = format!("the tokenizer has no token for {c:?} (line {line}, column {column})");
        Err(Error::request(why))
    }

    /// The ids that the library's post-processor puts before and after a text.
    pub(super) fn around(&self, file: &Path) -> Result<Specials> {
        let Some(post) = self.library.get_post_processor() else { return Ok(Specials::default()) };
        // A token that no vocabulary has marks the text's place.
        const MARK: u32 = u32::MAX;
        let text = Encoding::from_tokens(vec![Token::new(MARK, String::new(), (0, 0))], 0);
        let around = post
            .process(text, None, true)
            .map_err(|e| Error::invalid(file, format!("post-processor: {e}")))?;
        let mut parts = around.get_ids().split(|&id| id == MARK);
        let (Some(prefix), Some(suffix), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Error::invalid(file, "post-processor does not keep the text"));
        };
        Ok(Specials { prefix: prefix.to_vec(), suffix: suffix.to_vec(), ..Specials::default() })
    }
}
