//! Tokens of MIL text, as slices of the source.

use crate::{Error, ErrorKind};

/// Results of reading: an error is boxed, so that a token, of which there are very many, is returned in
/// registers.
pub(super) type Result<T> = std::result::Result<T, Box<Error>>;

/// A token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'s> {
    /// An identifier; operations of the dialect have a dot inside.
    Name(&'s str),
    /// A number, decimal or hexadecimal, with its sign; also `-inf`.
    Number(&'s str),
    /// What stands between two quotes, escapes unresolved.
    Str(&'s str),
    /// One of `( ) [ ] { } < > , ; = ? .`
    Punct(u8),
    /// `->`
    Arrow,
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// How an error names the token.
    pub(super) fn describe(self) -> String {
        match self {
            Token::Name(s) | Token::Number(s) => format!("\"{}\"", shortened(s)),
            Token::Str(s) => format!("the string \"{}\"", shortened(s)),
            Token::Punct(c) => format!("\"{}\"", char::from(c)),
            Token::Arrow => "\"->\"".into(),
            Token::End => "the end of the text".into(),
        }
    }
}

/// At most 40 characters of `s`.
pub(super) fn shortened(s: &str) -> String {
    match s.char_indices().nth(40) {
        Some((at, _)) => format!("{}...", &s[..at]),
        None => s.to_owned(),
    }
}

/// What a byte can be part of.
const SPACE: u8 = 1;
const NAME_START: u8 = 2;
const NAME: u8 = 4;
const DIGIT: u8 = 8;
const PUNCT: u8 = 16;

const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = match b as u8 {
            b' ' | b'\t' | b'\r' | b'\n' => SPACE,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => NAME_START | NAME,
            b'0'..=b'9' => DIGIT | NAME,
            b'@' => NAME,
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b';' | b'=' | b'?'
            | b'.' => PUNCT,
            _ => 0,
        };
        b += 1;
    }
    table
};

fn is(byte: u8, class: u8) -> bool {
    CLASS[usize::from(byte)] & class != 0
}

/// Whether `name` is an identifier from its first to its last character.
pub(super) fn is_name(name: &str) -> bool {
    let mut lexer = Lexer::new(name);
    matches!(lexer.next(), Ok((Token::Name(found), 0)) if found.len() == name.len())
}

/// Cuts a text into tokens.
pub(super) struct Lexer<'s> {
    text: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(text: &'s str) -> Self {
        Lexer { text, at: 0 }
    }

    /// Byte offset one past the last token.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    /// The next token and the byte offset of its start.
    pub(super) fn next(&mut self) -> Result<(Token<'s>, usize)> {
        let bytes = self.text.as_bytes();
        let start = self.after_space();
        let at = start;
        let Some(&first) = bytes.get(at) else {
            self.at = at;
            return Ok((Token::End, start));
        };
        if is(first, NAME_START) {
            self.at = self.name_end(at + 1);
            return Ok((Token::Name(&self.text[start..self.at]), start));
        }
        if is(first, PUNCT) {
            self.at = at + 1;
            return Ok((Token::Punct(first), start));
        }
        match (first, bytes.get(at + 1)) {
            (b'"', _) => self.string(start),
            (b'-', Some(b'>')) => {
                self.at = at + 2;
                Ok((Token::Arrow, start))
            }
            (b'-', Some(&second)) if is(second, NAME) => Ok(self.number(start)),
            _ if is(first, DIGIT) => Ok(self.number(start)),
            _ => {
                let c = self.text[at..].chars().next().unwrap_or('\u{fffd}');
                Err(self.error(ErrorKind::Invalid, at, format!("unexpected character {c:?}")))
            }
        }
    }

    /// Where the next token starts.
    fn after_space(&self) -> usize {
        let bytes = self.text.as_bytes();
        let mut at = self.at;
        // Operations are indented by twelve spaces and more.
        while bytes.get(at..at + 4) == Some(b"    ") {
            at += 4;
        }
        while at < bytes.len() && is(bytes[at], SPACE) {
            at += 1;
        }
        at
    }

    /// The byte that the next token starts with.
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.after_space()).copied()
    }

    /// The end of a name whose characters continue at `at`; a dot belongs to it before a letter.
    fn name_end(&self, mut at: usize) -> usize {
        let bytes = self.text.as_bytes();
        loop {
            while at < bytes.len() && is(bytes[at], NAME) {
                at += 1;
            }
            let dot = bytes.get(at) == Some(&b'.');
            if !dot || !bytes.get(at + 1).is_some_and(|&n| is(n, NAME_START)) {
                return at;
            }
            at += 1;
        }
    }

    fn number(&mut self, start: usize) -> (Token<'s>, usize) {
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        while let Some(&b) = bytes.get(at) {
            let after_exponent = matches!(bytes[at - 1], b'p' | b'P' | b'e' | b'E');
            let sign = matches!(b, b'+' | b'-') && after_exponent;
            if !is(b, NAME) && b != b'.' && !sign {
                break;
            }
            at += 1;
        }
        self.at = at;
        (Token::Number(&self.text[start..at]), start)
    }

    fn string(&mut self, start: usize) -> Result<(Token<'s>, usize)> {
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        loop {
            match bytes.get(at) {
                None => {
                    return Err(self.error(ErrorKind::Invalid, start, "a string has no end"));
                }
                Some(b'"') => break,
                // The escaped character, if a quote, does not end the string.
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
            }
        }
        self.at = at + 1;
        Ok((Token::Str(&self.text[start + 1..at]), start))
    }

    /// An error at byte `offset`.
    #[cold]
    pub(super) fn error(
        &self,
        kind: ErrorKind,
        offset: usize,
        message: impl Into<String>,
    ) -> Box<Error> {
        let mut error = Box::new(Error::new(kind, message));
        error.position = Some(position(self.text, offset));
        error
    }
}

/// Line and column (in characters) of a byte, both from 1.
fn position(text: &str, offset: usize) -> (u32, u32) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1);
    // Continuation bytes of UTF-8 start no character.
    let column = before[start..].iter().filter(|&&b| b & 0xc0 != 0x80).count() as u32 + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text);
        let mut found = Vec::new();
        loop {
            match lexer.next().unwrap().0 {
                Token::End => return found,
                token => found.push(token),
            }
        }
    }

    #[test]
    fn every_kind() {
        use Token::{Arrow, Name, Number, Punct, Str};
        assert_eq!(
            tokens(r#"llm.x(1.0, -0x1.5p-17, -inf, 1e-5) -> "a\"b" x@1 [?];"#),
            [
                Name("llm.x"),
                Punct(b'('),
                Number("1.0"),
                Punct(b','),
                Number("-0x1.5p-17"),
                Punct(b','),
                Number("-inf"),
                Punct(b','),
                Number("1e-5"),
                Punct(b')'),
                Arrow,
                Str(r#"a\"b"#),
                Name("x@1"),
                Punct(b'['),
                Punct(b'?'),
                Punct(b']'),
                Punct(b';'),
            ]
        );
    }

    #[test]
    fn errors_have_line_and_column() {
        let error = |text| {
            let mut lexer = Lexer::new(text);
            loop {
                match lexer.next() {
                    Ok((Token::End, _)) => panic!("no error in {text:?}"),
                    Ok(_) => {}
                    Err(e) => return e.to_string(),
                }
            }
        };
        assert_eq!(error("a\n\"é\" %"), "line 2, column 5: unexpected character '%'");
        assert_eq!(error("x \"é\\\""), "line 1, column 3: a string has no end");
        assert_eq!(error("-"), "line 1, column 1: unexpected character '-'");
        assert_eq!(error("é"), "line 1, column 1: unexpected character 'é'");
    }
}
