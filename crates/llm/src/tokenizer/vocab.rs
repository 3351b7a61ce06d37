//! The pieces of a vocabulary by id, and the bytes of text that each stands for.

use std::borrow::Cow;

use super::byte_level;

/// What an id is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Text.
    Normal,
    /// One byte, written `<0xNN>`, of a character that has no piece.
    Byte(u8),
    /// Text that the tokenizer cuts out before anything else.
    UserDefined,
    /// A control token: no text, shown by its name.
    Control,
    /// No piece has this id.
    Unused,
}

/// How the pieces of a vocabulary write text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spelling {
    /// A printable character for every byte, as GPT-2 does.
    ByteLevel,
    /// UTF-8 with `▁` for a space, as SentencePiece does.
    Metaspace,
    /// UTF-8 as it is, as llama2.c does.
    Plain,
}

/// SentencePiece's sign for a space, U+2581.
pub(super) const METASPACE: &str = "\u{2581}";

/// All pieces in one run of bytes: large vocabularies would otherwise cost an allocation per piece.
pub(super) struct Vocab {
    spelling: Spelling,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<Kind>,
}

impl Vocab {
    pub(super) fn new(spelling: Spelling, capacity: usize) -> Self {
        Vocab {
            spelling,
            bytes: Vec::with_capacity(capacity * 8),
            ends: Vec::with_capacity(capacity),
            kinds: Vec::with_capacity(capacity),
        }
    }

    /// Adds the piece of the next id.
    pub(super) fn push(&mut self, piece: &[u8], kind: Kind) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// How pieces write text.
    pub(super) fn spelling(&self) -> Spelling {
        self.spelling
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// [`Kind::Unused`] for an id beyond the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// The piece as the vocabulary spells it; empty for an id without one.
    pub(super) fn piece(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// The bytes of text that the id stands for; the name of a control token.
    pub(super) fn text(&self, id: u32) -> Cow<'_, [u8]> {
        let piece = self.piece(id);
        match (self.kind(id), self.spelling) {
            (Kind::Byte(byte), _) => Cow::Owned(vec![byte]),
            (Kind::Normal, Spelling::ByteLevel) => Cow::Owned(byte_level::decode(piece)),
            (Kind::Normal | Kind::UserDefined, Spelling::Metaspace) => unescape(piece),
            _ => Cow::Borrowed(piece),
        }
    }
}

/// The byte that a piece of the form `<0xNN>` stands for.
pub(super) fn byte_piece(piece: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = piece else { return None };
    let digit = |c: &u8| char::from(*c).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// `piece` with spaces for [`METASPACE`].
fn unescape(piece: &[u8]) -> Cow<'_, [u8]> {
    let mark = METASPACE.as_bytes();
    if !piece.windows(mark.len()).any(|w| w == mark) {
        return Cow::Borrowed(piece);
    }
    let mut out = Vec::with_capacity(piece.len());
    let mut rest = piece;
    while let Some(&first) = rest.first() {
        match rest.strip_prefix(mark) {
            Some(after) => {
                out.push(b' ');
                rest = after;
            }
            None => {
                out.push(first);
                rest = &rest[1..];
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_each_spelling() {
        let mut vocab = Vocab::new(Spelling::Metaspace, 4);
        vocab.push("▁a▁▁b".as_bytes(), Kind::Normal);
        vocab.push(b"<0xE2>", Kind::Byte(0xe2));
        vocab.push("<▁>".as_bytes(), Kind::Control);
        assert_eq!(&*vocab.text(0), b" a  b");
        assert_eq!(&*vocab.text(1), [0xe2]);
        assert_eq!(&*vocab.text(2), "<▁>".as_bytes());
        assert_eq!((&*vocab.text(3), vocab.kind(3)), (&b""[..], Kind::Unused));
        let mut vocab = Vocab::new(Spelling::ByteLevel, 1);
        vocab.push("ĠÃ©".as_bytes(), Kind::Normal);
        vocab.push("Ġ".as_bytes(), Kind::UserDefined);
        assert_eq!(&*vocab.text(0), " é".as_bytes());
        assert_eq!(&*vocab.text(1), "Ġ".as_bytes());
    }

    #[test]
    fn byte_pieces() {
        assert_eq!(byte_piece(b"<0x0A>"), Some(10));
        for other in [&b"<0xA>"[..], b"<0x+A>", b"0x0A", b"<0x0AB>"] {
            assert_eq!(byte_piece(other), None, "{other:?}");
        }
    }
}
