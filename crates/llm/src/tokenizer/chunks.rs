//! A long text cut into chunks that the `tokenizers` library encodes one by one to the ids of the whole.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer as Library,
};

use super::bpe::{GPT2, LLAMA3, QWEN2};

/// Bytes after which a text is cut at the next place. The library takes some 180 bytes of memory for each byte that
/// it is given at once.
const CHUNK: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// Where a text can be cut without another id coming of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Places {
    /// Nowhere that is known.
    Nowhere,
    /// Between any two characters: each is a token of its own.
    Characters,
    /// Before a space that follows no white space: words begin there, whatever is around them.
    Words,
}

impl Places {
    pub(super) fn of(library: &Library) -> Self {
        let added = library.get_added_vocabulary().get_added_tokens_decoder();
        // Tokens that depend on what is beside them.
        let looks = |t: &AddedToken| {
            t.lstrip || t.rstrip || t.single_word || places(&t.content).next().is_some()
        };
        let steps = match library.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::Sequence(steps)) => steps.as_ref(),
            Some(step) => std::slice::from_ref(step),
            None => &[],
        };
        // A space is composed with nothing before it.
        let normal = matches!(library.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)));
        if normal && cuts_words(steps) && !added.values().any(looks) {
            return Places::Words;
        }
        let single = |piece: &String| piece.chars().nth(1).is_none();
        let plain = library.get_normalizer().is_none() && steps.is_empty() && added.is_empty();
        match plain
            && is_alike_everywhere(library.get_model())
            && library.get_vocab(false).keys().all(single)
        {
            true => Places::Characters,
            false => Places::Nowhere,
        }
    }

    /// The chunks of `text`, with where each begins.
    pub(super) fn cut(self, text: &str) -> impl Iterator<Item = (usize, &str)> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = &text[start..];
            let end = self.first(rest).unwrap_or(rest.len());
            let chunk = (start, &rest[..end]);
            start += end;
            (end > 0).then_some(chunk)
        })
    }

    /// The first place in `text` behind a chunk.
    fn first(self, text: &str) -> Option<usize> {
        let from = (CHUNK..text.len()).find(|&i| text.is_char_boundary(i))?;
        match self {
            Places::Nowhere => None,
            Places::Characters => Some(from),
            // The character before is looked at too.
            Places::Words => {
                let before = text[..from].chars().next_back().map_or(0, char::len_utf8);
                places(&text[from - before..]).next().map(|i| from - before + i)
            }
        }
    }
}

/// Whether the ids of a character, if it is not merged with others, are the same wherever it is in a text.
fn is_alike_everywhere(model: &ModelWrapper) -> bool {
    match model {
        ModelWrapper::BPE(bpe) => {
            !bpe.fuse_unk
                && bpe.continuing_subword_prefix.is_none()
                && bpe.end_of_word_suffix.is_none()
        }
        _ => false,
    }
}

/// Where in `text` a space follows a character that is no white space.
fn places(text: &str) -> impl Iterator<Item = usize> {
    let mut before = ' ';
    text.char_indices().filter_map(move |(i, c)| {
        let before = std::mem::replace(&mut before, c);
        (c == ' ' && !before.is_whitespace()).then_some(i)
    })
}

/// Whether `steps` begin a word at every such place, by nothing but what follows, and end the word before it there
/// by nothing but what precedes. A regular expression can look anywhere, so they are known ones.
fn cuts_words(steps: &[PreTokenizerWrapper]) -> bool {
    let mut words = false;
    for (i, step) in steps.iter().enumerate() {
        match step {
            PreTokenizerWrapper::Digits(_) => {}
            // What comes after it would see its alphabet.
            PreTokenizerWrapper::ByteLevel(bytes) if i + 1 == steps.len() => {
                words |= bytes.use_regex;
            }
            PreTokenizerWrapper::Split(Split {
                pattern: SplitPattern::Regex(pattern),
                behavior: SplitDelimiterBehavior::Isolated,
                invert: false,
                ..
            }) if [GPT2, LLAMA3, QWEN2].contains(&pattern.as_str()) => words = true,
            _ => return false,
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use testkit::{fixtures_dir, shared_dir};

    use super::super::{Encoder, MadeTokenizer, Tokenizer};
    use super::*;

    /// Text of what patterns and normalisation treat apart.
    fn random_text(random: &mut fastrand::Rng) -> String {
        const PARTS: [&str; 32] = [
            " ",
            " ",
            " ",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\u{a0}",
            "\u{2000}",
            "\u{3000}",
            "a",
            "word",
            "Wort",
            "\u{301}",
            "e",
            "\u{e9}",
            "'s",
            "'LL",
            "'",
            "1",
            "234",
            "\u{b2}",
            "...",
            "$+",
            "\u{4e2d}",
            "\u{939}\u{93f}",
            "\u{1f980}",
            "\u{200d}",
            "<|im_end|>",
            "<|endoftext|>",
            "\u{0}",
        ];
        (0..20_000).map(|_| PARTS[random.usize(..PARTS.len())]).collect()
    }

    #[test]
    fn the_ids_are_those_of_the_whole() {
        let corpora = ["tinyshakespeare.txt", "wiki.test.raw"];
        let corpora = corpora.map(|c| shared_dir().join("corpora").join(c));
        let read = |path| std::fs::read_to_string(path).unwrap();
        let mut texts: Vec<String> = corpora.iter().map(read).collect();
        let mut random = fastrand::Rng::with_seed(5);
        texts.extend((0..4).map(|_| random_text(&mut random)));
        let made = tempfile::tempdir().unwrap();
        MadeTokenizer::byte_level_bpe(&texts[..1], 600).unwrap().write(made.path()).unwrap();
        let vocab = |name: &str| fixtures_dir().join(format!("vocab/ggml-vocab-{name}.gguf"));
        let files = [
            shared_dir().join("models/smollm2_tokenizer.json"),
            made.path().join("tokenizer.json"),
            fixtures_dir().join("SmolLM2-135M-Instruct.Q4_1.gguf"),
            vocab("gpt-2"),
            vocab("llama-bpe"),
            vocab("qwen2"),
        ];
        for file in files {
            let Encoder::Library(mut pipeline) = Tokenizer::from_file(&file).unwrap().encoder
            else {
                panic!("{}", file.display())
            };
            assert_eq!(pipeline.places, Places::Words, "{}", file.display());
            let all = |pipeline: &super::super::Pipeline| -> Vec<Vec<u32>> {
                let encode = |text| pipeline.encode(text, true).unwrap();
                texts.iter().map(|text| encode(text)).collect()
            };
            let chunked = all(&pipeline);
            pipeline.places = Places::Nowhere;
            assert!(all(&pipeline) == chunked, "{}", file.display());
        }
    }

    #[test]
    fn chunks_are_the_text() {
        let text = random_text(&mut fastrand::Rng::with_seed(6));
        for (places, least) in
            [(Places::Nowhere, 1), (Places::Words, 500), (Places::Characters, text.len() / 70)]
        {
            let chunks: Vec<(usize, &str)> = places.cut(&text).collect();
            assert!(chunks.len() >= least, "{places:?}: {}", chunks.len());
            let mut at = 0;
            for (start, chunk) in chunks {
                assert_eq!((start, chunk), (at, &text[at..at + chunk.len()]));
                at += chunk.len();
            }
            assert_eq!(at, text.len());
        }
        assert_eq!(Places::Words.cut("").count(), 0);
    }

    #[test]
    fn what_cuts_no_words_is_not_cut() {
        let json = |pre: &str, added: &str| {
            let model = r#"{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}"#;
            format!(
                r#"{{"version":"1.0","model":{model},"pre_tokenizer":{pre},"added_tokens":[{added}]}}"#
            )
        };
        let bytes = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":REGEX}"#;
        let (with, without) = (bytes.replace("REGEX", "true"), bytes.replace("REGEX", "false"));
        let token = |content: &str, rstrip: bool| {
            format!(
                r#"{{"id":3,"content":"{content}","single_word":false,"lstrip":false,"rstrip":{rstrip},"normalized":false,"special":true}}"#
            )
        };
        let cases = [
            (&with, token("<a>", false), Places::Words),
            (&with, token("a b", false), Places::Nowhere),
            (&with, token("<a>", true), Places::Nowhere),
            (&without, token("<a>", false), Places::Nowhere),
            (&"null".to_owned(), String::new(), Places::Nowhere),
        ];
        for (pre, added, expected) in cases {
            let library = Library::from_bytes(json(pre, &added)).unwrap();
            assert_eq!(Places::of(&library), expected, "{pre} {added}");
        }
        // Characters are tokens of their own only where the model does not look around them.
        let models = [
            (r#""type":"BPE","merges":[]"#, Places::Characters),
            (r#""type":"BPE","merges":[],"unk_token":"b""#, Places::Characters),
            (r#""type":"BPE","merges":[],"unk_token":"b","fuse_unk":true"#, Places::Nowhere),
            (r##""type":"BPE","merges":[],"continuing_subword_prefix":"#""##, Places::Nowhere),
            (r#""type":"BPE","merges":[],"end_of_word_suffix":"b""#, Places::Nowhere),
            (r#""type":"WordLevel","unk_token":"b""#, Places::Nowhere),
            (
                r###""type":"WordPiece","unk_token":"b","continuing_subword_prefix":"##","max_input_chars_per_word":9"###,
                Places::Nowhere,
            ),
        ];
        for (model, expected) in models {
            let json =
                format!(r#"{{"version":"1.0","model":{{{model},"vocab":{{"a":0,"b":1}}}}}}"#);
            let library = Library::from_bytes(json).unwrap();
            assert_eq!(Places::of(&library), expected, "{model}");
        }
        let made = tempfile::tempdir().unwrap();
        let texts = ["the characters".to_owned()];
        MadeTokenizer::characters(&texts).unwrap().write(made.path()).unwrap();
        let library = Library::from_file(made.path().join("tokenizer.json")).unwrap();
        assert_eq!(Places::of(&library), Places::Characters);
    }
}
