//! SentencePiece's BPE: of all neighbours that make a piece, those of the best score are merged first.
//!
//! This is not a table of merges: any two neighbours may merge whose joined text is a piece, however that
//! piece was made in training. So it is written here and not mapped onto a library's merge table.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{AddedToken, AddedVocabulary, NormalizerWrapper, OffsetReferential, OffsetType};

use super::vocab::{Kind, METASPACE, Vocab};
use crate::{Error, Result};

/// What a vocabulary does not say itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Whether text gets a space before it.
    pub(super) prefix_space: bool,
    /// Whether it also gets one after a user-defined token, as llama.cpp does and SentencePiece does not.
    pub(super) prefix_after_user_defined: bool,
    /// Whether spaces are [`METASPACE`] in pieces.
    pub(super) escape_spaces: bool,
    /// Stands for a character that is in no piece, where there are no byte pieces.
    pub(super) unknown: Option<u32>,
}

pub(super) struct Spm {
    options: Options,
    ids: HashMap<Box<[u8]>, u32>,
    scores: Vec<f32>,
    bytes: Option<Box<[u32; 256]>>,
    longest: usize,
    pairs: Pairs,
    added: AddedVocabulary,
    added_without_control: AddedVocabulary,
}

impl Spm {
    /// A tokenizer of `vocab`, whose pieces have these `scores`.
    pub(super) fn new(
        vocab: &Vocab,
        scores: Vec<f32>,
        options: Options,
        file: &Path,
    ) -> Result<Self> {
        if scores.len() != vocab.len() {
            let why = format!("{} scores for {} tokens", scores.len(), vocab.len());
            return Err(Error::invalid(file, why));
        }
        let mut ids = HashMap::with_capacity(vocab.len());
        let mut bytes = [None; 256];
        let (mut longest, mut pairs, mut added) = (0, Pairs::new(), Vec::new());
        for id in 0..vocab.len() as u32 {
            let piece = vocab.piece(id);
            ids.entry(piece.into()).or_insert(id);
            match vocab.kind(id) {
                Kind::Byte(byte) => bytes[usize::from(byte)] = Some(id),
                Kind::Normal => {
                    longest = longest.max(piece.len());
                    pairs.add(piece);
                }
                kind @ (Kind::Control | Kind::UserDefined) => {
                    // The library's text is UTF-8, so no other name can be found in it.
                    if let Ok(name) = std::str::from_utf8(piece) {
                        added.push((name.to_owned(), id, kind == Kind::Control));
                    }
                }
                Kind::Unused => {}
            }
        }
        let bytes: Option<Vec<u32>> = bytes.into_iter().collect();
        let added = added_vocabulary(added).map_err(|e| Error::invalid(file, e.to_string()))?;
        let mut added_without_control = added.clone();
        added_without_control.set_encode_special_tokens(true);
        Ok(Spm {
            options,
            ids,
            scores,
            bytes: bytes.and_then(|b| b.try_into().ok().map(Box::new)),
            longest,
            pairs,
            added,
            added_without_control,
        })
    }

    pub(super) fn token_to_id(&self, piece: &str) -> Option<u32> {
        self.ids.get(piece.as_bytes()).copied()
    }

    /// The ids of `text`, with nothing around them.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, control: bool) -> Result<Vec<u32>> {
        let added = if control { &self.added } else { &self.added_without_control };
        let parts = added.extract_and_normalize::<NormalizerWrapper>(None, text);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut prefix = self.options.prefix_space;
        for (part, _, tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::None) {
            if let Some(tokens) = tokens {
                ids.extend(tokens.iter().map(|t| t.id));
                prefix = self.options.prefix_space
                    && tokens.iter().all(|t| {
                        self.options.prefix_after_user_defined || vocab.kind(t.id) == Kind::Control
                    });
            } else if !part.is_empty() {
                self.encode_part(vocab, part, prefix, &mut ids)?;
                prefix = false;
            }
        }
        Ok(ids)
    }

    fn encode_part(
        &self,
        vocab: &Vocab,
        part: &str,
        prefix: bool,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let mut text = String::with_capacity(part.len() + 1);
        if prefix {
            text.push(' ');
        }
        text.push_str(part);
        if self.options.escape_spaces {
            text = text.replace(' ', METASPACE);
        }
        let first = ids.len();
        // Words repeat: the ids of a stretch that was met before are copied.
        let mut met: HashMap<&str, Range<usize>> = HashMap::new();
        for stretch in self.pairs.cut(&text) {
            let start = ids.len();
            if let Some(known) = met.get(stretch) {
                ids.extend_from_within(known.clone());
                continue;
            }
            for (symbol, id) in self.merge(vocab, stretch) {
                match (id, &self.bytes, self.options.unknown) {
                    (Some(id), ..) => ids.push(id),
                    (None, Some(bytes), _) => {
                        ids.extend(symbol.bytes().map(|b| bytes[usize::from(b)]));
                    }
                    (None, None, Some(unknown)) => ids.push(unknown),
                    (None, None, None) => {
                        let why = format!("the tokenizer has no token for {symbol:?}");
                        return Err(Error::request(why));
                    }
                }
            }
            met.insert(stretch, start..ids.len());
        }
        if let (None, Some(unknown)) = (&self.bytes, self.options.unknown) {
            // Neighbours without a piece are one unknown.
            let mut part = ids.split_off(first);
            part.dedup_by(|a, b| a == b && *a == unknown);
            ids.append(&mut part);
        }
        Ok(())
    }

    /// The id of a piece that text can become.
    fn piece_id(&self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        self.ids.get(text).copied().filter(|&id| vocab.kind(id) == Kind::Normal)
    }

    /// Cuts `text` into characters and merges them; each symbol comes with its id, if it is a piece.
    fn merge<'t>(&self, vocab: &Vocab, text: &'t str) -> Vec<(&'t str, Option<u32>)> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            let id = self.piece_id(vocab, &text.as_bytes()[start..end]);
            let at = symbols.len();
            symbols.push(Symbol { start, end, id, prev: at.wrapping_sub(1), next: at + 1 });
        }
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        let candidate = |symbols: &[Symbol], left: usize, right: usize| -> Option<Merge> {
            let (from, to) = (symbols.get(left)?.start, symbols.get(right)?.end);
            let id = self.piece_id(vocab, &text.as_bytes()[from..to])?;
            Some(Merge { score: self.scores[id as usize], left, right, len: to - from, id })
        };
        for left in 0..symbols.len() {
            queue.extend(candidate(&symbols, left, left + 1));
        }
        while let Some(Merge { left, right, len, id, .. }) = queue.pop() {
            // A side that has merged meanwhile is empty or longer than it was.
            let (from, to) = (&symbols[left], &symbols[right]);
            if from.is_empty() || to.is_empty() || to.end - from.start != len {
                continue;
            }
            let (end, next) = (to.end, to.next);
            symbols[left] = Symbol { end, id: Some(id), next, ..symbols[left] };
            symbols[right].end = symbols[right].start;
            if let Some(after) = symbols.get_mut(next) {
                after.prev = left;
            }
            queue.extend(candidate(&symbols, symbols[left].prev, left));
            queue.extend(candidate(&symbols, left, next));
        }
        let left = symbols.iter().filter(|s| !s.is_empty());
        left.map(|s| (&text[s.start..s.end], s.id)).collect()
    }
}

/// The pairs of characters that are neighbours in some piece. Between all others no merge can happen, so text
/// may be cut there.
struct Pairs {
    ascii: Vec<bool>,
    others: HashSet<(char, char)>,
}

impl Pairs {
    fn new() -> Self {
        Pairs { ascii: vec![false; 128 * 128], others: HashSet::new() }
    }

    /// Where in `ascii` a pair is.
    fn index(left: char, right: char) -> Option<usize> {
        (left.is_ascii() && right.is_ascii()).then_some(left as usize * 128 + right as usize)
    }

    fn add(&mut self, piece: &[u8]) {
        // A piece that is no text does not come out of a merge of texts.
        let Ok(piece) = std::str::from_utf8(piece) else { return };
        for (left, right) in piece.chars().zip(piece.chars().skip(1)) {
            match Self::index(left, right) {
                Some(at) => self.ascii[at] = true,
                None => drop(self.others.insert((left, right))),
            }
        }
    }

    fn contains(&self, left: char, right: char) -> bool {
        match Self::index(left, right) {
            Some(at) => self.ascii[at],
            None => self.others.contains(&(left, right)),
        }
    }

    /// The stretches of `text` within which merges happen.
    fn cut<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let mut left = rest.chars().next()?;
            let end = rest.char_indices().skip(1).find(|&(_, right)| {
                let cut = !self.contains(left, right);
                left = right;
                cut
            });
            let (stretch, after) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
            rest = after;
            Some(stretch)
        })
    }
}

/// A stretch of text; empty once it is part of the symbol to its left.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    id: Option<u32>,
    prev: usize,
    next: usize,
}

impl Symbol {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Two neighbours that make a piece. The greatest is the one to do first: the best score, then the leftmost.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
    id: u32,
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Merge {}

/// The library's search for added tokens, given as (name, id, whether it is a control token).
fn added_vocabulary(tokens: Vec<(String, u32, bool)>) -> tokenizers::Result<AddedVocabulary> {
    // The library takes the ids of added tokens from a model's vocabulary.
    let vocab = tokens.iter().map(|(name, id, _)| (name.clone(), *id)).collect();
    let model = WordLevel::builder().vocab(vocab).build()?;
    let tokens = tokens
        .into_iter()
        .map(|(name, _, control)| AddedToken::from(name, control).normalized(false));
    let mut added = AddedVocabulary::new();
    added.add_tokens::<NormalizerWrapper>(tokens, &model, None)?;
    Ok(added)
}
