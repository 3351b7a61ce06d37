//! From text, JSON lines and chats to token files.

use std::fs;
use std::path::Path;

use rigel_train::data::{Piece, TokenFile, TokenWriter, Tokenization, Tokenized, tokenize};
use serde_json::Value;

/// Bytes are ids; `<s>` in special text is 256.
fn encode(text: &str, special: bool) -> Result<Vec<u32>, String> {
    if text.contains('\u{1}') {
        return Err("a control character".to_owned());
    }
    let bytes = |s: &str| s.bytes().map(u32::from).collect::<Vec<_>>();
    if !special {
        return Ok(bytes(text));
    }
    Ok(text.split("<s>").map(bytes).collect::<Vec<_>>().join(&256))
}

fn render(messages: &Value) -> Result<Vec<Piece>, String> {
    let messages = messages.as_array().ok_or("no list")?;
    let piece = |m: &Value| {
        let text = format!("<s>{}", m["content"].as_str().unwrap_or_default());
        Piece { text, counts: m["role"] == "assistant" }
    };
    Ok(messages.iter().map(piece).collect())
}

fn run(
    dir: &Path,
    paths: &[&str],
    chat: bool,
    separator: Option<&str>,
) -> Result<(Tokenized, Vec<String>), String> {
    let out = dir.join("out.bin");
    let mut writer = TokenWriter::new(&out, 300, None).unwrap();
    let how = Tokenization {
        encode: &encode,
        chat: chat.then_some(&render),
        begin: Some(257),
        end: Some(258),
        separator,
    };
    let paths: Vec<_> = paths.iter().map(|p| dir.join(p)).collect();
    let done = tokenize(&paths, &how, &mut writer).map_err(|e| e.to_string())?;
    writer.finish().map_err(|e| e.to_string())?;
    let file = TokenFile::open(&out).unwrap();
    // Ids that do not count in brackets.
    let show = |t: usize| {
        let id = file.id(t).unwrap();
        let text = match id {
            256 => "<s>".to_owned(),
            257 => "^".to_owned(),
            258 => "$".to_owned(),
            _ => char::from(id as u8).to_string(),
        };
        if file.counts(t) { text } else { format!("({text})") }
    };
    let documents = (0..file.documents()).map(|d| file.document(d).map(show).collect());
    Ok((done, documents.collect()))
}

#[test]
fn every_source() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir_all(at.join("in/deep")).unwrap();
    fs::write(at.join("in/b.txt"), "ab|c<s>|").unwrap();
    fs::write(at.join("in/deep/a.md"), "de").unwrap();
    fs::write(at.join("in/deep/skipped.rs"), "no").unwrap();
    fs::write(
        at.join("in/c.jsonl"),
        "{\"text\": \"f\"}\n\n{\"prompt\": \"gh\", \"completion\": \"i\"}\n\
         {\"messages\": [{\"role\": \"user\", \"content\": \"j\"}, {\"role\": \"assistant\", \"content\": \"kl\"}]}\n",
    )
    .unwrap();
    let (done, documents) = run(at, &["in"], true, Some("|")).unwrap();
    assert_eq!(documents, ["^ab$", "^c<s>$", "^f$", "(^)(g)(h)i$", "(<s>)(j)<s>kl", "^de$"]);
    assert_eq!(done, Tokenized { files: 3, documents: 6, tokens: 27, counted: 22 });
    let (_, whole) = run(at, &["in/b.txt"], false, None).unwrap();
    assert_eq!(whole, ["^ab|c<s>|$"]);
}

#[test]
fn errors_say_which_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let cases = [
        ("{\"text\": \"a\"}\n{\"other\": 1}", "line 2: has neither text"),
        ("{\"text\": \"a\"\n", "line 1: EOF"),
        ("{\"text\": \"\\u0001\"}", "line 1: a control character"),
        ("{\"messages\": []}", "line 1: is a chat, and there is no chat template"),
        ("{\"text\": 3}", "line 1: has neither text"),
        ("", "there is no document to write"),
    ];
    for (text, expected) in cases {
        fs::write(at.join("in.jsonl"), text).unwrap();
        let error = run(at, &["in.jsonl"], false, None).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(run(at, &["absent.txt"], false, None).unwrap_err().contains("absent.txt"));
}
