//! GPT-2's alphabet: one printable character for each byte, so that a vocabulary of byte strings can be
//! written as text.

use std::sync::LazyLock;

/// Bytes that stand for themselves: the printable ones of ISO 8859-1. The others, in order, are
/// U+0100 and up.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte of each character below U+0144.
static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut table = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if is_printable(byte) {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
});

/// The bytes that `piece` stands for; `piece` itself if it is not written in the alphabet.
pub(super) fn decode(piece: &[u8]) -> Vec<u8> {
    let byte = |c: char| BYTES.get(c as usize).copied().flatten();
    let decoded = std::str::from_utf8(piece).ok().and_then(|s| s.chars().map(byte).collect());
    decoded.unwrap_or_else(|| piece.to_vec())
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn the_alphabet_is_that_of_the_library() {
        let mut bytes: Vec<u8> = ByteLevel::alphabet()
            .into_iter()
            .flat_map(|c| decode(c.to_string().as_bytes()))
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(decode("ĠaĊ".as_bytes()), b" a\n");
        assert_eq!(decode("a b".as_bytes()), b"a b");
        assert_eq!(decode(b"\xff\xfe"), b"\xff\xfe");
    }
}
