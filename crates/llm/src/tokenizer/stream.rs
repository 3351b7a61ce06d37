//! Text out of ids as they come: characters are held back until all their bytes are there.

use super::Tokenizer;
use super::vocab::Kind;

/// Turns ids into text one by one; what [`DecodeStream::push`] and [`DecodeStream::flush`] return,
/// joined, is what [`Tokenizer::decode`] returns for all ids.
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Whether a leading space of the next text token is the tokenizer's own.
    at_start: bool,
    /// The beginning of a character.
    pending: Vec<u8>,
}

impl<'a> DecodeStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let at_start = tokenizer.strips_space;
        DecodeStream { tokenizer, skip_special: true, at_start, pending: Vec::new() }
    }

    /// Whether control tokens are left out, which is the default, or shown by their names.
    #[must_use]
    pub fn skip_special(mut self, skip: bool) -> Self {
        self.skip_special = skip;
        self
    }

    /// A stream of what follows `prompt`, whose own text is not returned.
    #[must_use]
    pub fn after(mut self, prompt: &[u32]) -> Self {
        for &id in prompt {
            self.push(id);
        }
        self
    }

    /// The text that is complete with `id`; `None` if there is no more of it than before. Bytes that
    /// cannot become UTF-8 are U+FFFD. An id without a piece has no text.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let vocab = &self.tokenizer.vocab;
        if vocab.kind(id) == Kind::Control {
            if !self.skip_special {
                self.pending.extend_from_slice(vocab.piece(id));
            }
        } else {
            let text = vocab.text(id);
            let strip = self.at_start && text.first() == Some(&b' ');
            self.pending.extend_from_slice(&text[usize::from(strip)..]);
            self.at_start &= text.is_empty();
        }
        let text = self.take_complete();
        (!text.is_empty()).then_some(text)
    }

    /// The rest: U+FFFD for a character that was begun and not finished.
    pub fn flush(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    /// Takes all but the beginning of a character from what is pending.
    fn take_complete(&mut self) -> String {
        let incomplete = match self.pending.utf8_chunks().last() {
            Some(chunk) if is_beginning(chunk.invalid()) => chunk.invalid().len(),
            _ => 0,
        };
        let rest = self.pending.split_off(self.pending.len() - incomplete);
        let complete = std::mem::replace(&mut self.pending, rest);
        String::from_utf8_lossy(&complete).into_owned()
    }
}

/// Whether more bytes could make a character of `bytes`.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}
