//! From text, JSON lines and chats to token files.

use std::fs;
use std::path::Path;

use rigel_train::data::{
    DataFile, Kind, Piece, TokenFile, TokenWriter, Tokenization, Tokenized, files, texts, tokenize,
};
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
        ("{\"text\": \"a\"}\n{\"text\": \"b\"\n", "line 2, column 12: EOF while parsing an object"),
        ("{\"text\": \"\\u0001\"}", "line 1: a control character"),
        ("{\"messages\": []}", "line 1: is a chat, and there is no chat template"),
        ("{\"text\": 3}", "line 1: text is a number, not a string"),
        ("{\"messages\": \"a\"}", "line 1: messages is a string, not an array"),
        ("[1]", "line 1: is an array, not an object"),
        ("{\"prompt\": \"a\", \"text\": null}", "line 1: has a prompt and no completion"),
        ("{\"completion\": \"a\"}", "line 1: has a completion and no prompt"),
        ("{\"text\": \"a\", \"messages\": []}", "line 1: has more than one of"),
        ("{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}", "has more than one of"),
        ("{\"text\": \"\"}", "there is no document to write"),
        ("", "there is no document to write"),
    ];
    for (text, expected) in cases {
        fs::write(at.join("in.jsonl"), text).unwrap();
        let error = run(at, &["in.jsonl"], false, None).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains(" at line "), "{error}");
    }
    let cases: [(&str, &[u8], &str); 5] = [
        ("a.txt", b"ab\ncd\xe9f", "a.txt: line 2: not UTF-8: byte 0xe9 at offset 5"),
        ("b.txt", b"\xff\xfea\0", "b.txt: is UTF-16"),
        ("c.txt", b"RIGELTOK", "c.txt: is a token file"),
        ("d.jsonl", b"{}\n", "line 1: has neither"),
        ("e.jsonl", b"{\"text\": \"a\"}\n{\xe9", "line 2: not UTF-8: byte 0xe9 at offset 15"),
    ];
    for (name, bytes, expected) in cases {
        fs::write(at.join(name), bytes).unwrap();
        let error = run(at, &[name], false, None).unwrap_err();
        assert!(error.contains(expected), "{error}");
        let error = texts(&[at.join(name)]).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(run(at, &["a.txt"], false, Some("")).unwrap_err().contains("separator"));
    assert!(run(at, &["absent.txt"], false, None).unwrap_err().contains("absent.txt"));
}

/// Windows' programs begin a text so.
#[test]
fn a_byte_order_mark_is_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("a.txt"), "\u{feff}ab").unwrap();
    fs::write(
        at.join("b.jsonl"),
        "\u{feff}{\"text\": \"c\"}\r\n{\"prompt\": \"d\", \"completion\": \"e\"}",
    )
    .unwrap();
    let (_, documents) = run(at, &["a.txt", "b.jsonl"], false, None).unwrap();
    assert_eq!(documents, ["^ab$", "^c$", "(^)(d)e$"]);
    let texts: Vec<String> =
        texts(&[at.join("a.txt"), at.join("b.jsonl")]).unwrap().map(Result::unwrap).collect();
    assert_eq!(texts, ["ab", "c", "d", "e"]);
}

#[test]
fn files_by_their_endings() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir_all(at.join("in/deep")).unwrap();
    fs::create_dir_all(at.join("other")).unwrap();
    let names = ["B.TXT", "c.JsonL", "a.csv", "d.json", ".hidden.txt", "deep/z.Bin", "deep/y.md"];
    for name in names {
        fs::write(at.join("in").join(name), "a").unwrap();
    }
    fs::write(at.join("other/a.csv"), "a").unwrap();
    let found = |path: &str| files(&[at.join(path)]).map_err(|e| e.to_string());
    let file = |name: &str, kind| DataFile { path: at.join(name), kind };
    let expected = [
        file("in/B.TXT", Kind::Text),
        file("in/c.JsonL", Kind::JsonLines),
        file("in/deep/y.md", Kind::Text),
        file("in/deep/z.Bin", Kind::Tokens),
    ];
    assert_eq!(found("in").unwrap(), expected);
    // What is named itself is text where nothing else is said.
    assert_eq!(found("in/a.csv").unwrap(), [file("in/a.csv", Kind::Text)]);
    assert!(found("in/d.json").unwrap_err().contains("one object a line"));
    assert!(found("other").unwrap_err().contains("no file there ends in .txt, .md, .jsonl"));
    let tokens = run(at, &["in/deep/z.Bin"], false, None).unwrap_err();
    assert!(tokens.contains("is tokens already"), "{tokens}");
    #[cfg(unix)]
    {
        // To open it would wait for ever.
        let pipe = std::process::Command::new("mkfifo").arg(at.join("other/p.txt")).status();
        assert!(pipe.unwrap().success());
        assert!(found("other").unwrap_err().contains("p.txt: is a pipe"));
    }
}

/// A set of files is there whole or not at all, and what is there is not joined.
#[test]
fn files_that_fail_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let names = || {
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let path = dir.path().join("part.bin");
    let write = |last: u32| {
        let mut writer = TokenWriter::new(&path, 10, Some(2))?;
        for id in [1, 2, 3, 4, last] {
            writer.document(&[id], None)?;
        }
        writer.finish()
    };
    assert!(write(10).unwrap_err().to_string().contains("document 4: id 10"));
    assert_eq!(names(), [""; 0]);
    let files = ["part-00000.bin", "part-00001.bin", "part-00002.bin"];
    let written = write(5).unwrap();
    assert_eq!(written, files.map(|name| dir.path().join(name)));
    assert_eq!(names(), files);
    assert!(write(5).unwrap_err().to_string().contains("part-00000.bin: is there already"));
    // A later one of another set is in the way.
    fs::remove_file(&written[0]).unwrap();
    assert!(write(5).unwrap_err().to_string().contains("part-00001.bin: is there already"));
    assert_eq!(names(), files[1..]);
}
