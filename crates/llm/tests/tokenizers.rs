//! Tokenizers against the reference libraries' ids, llama.cpp's vectors, and themselves.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use rigel_llm::Tokenizer;
use testkit::{shared_dir, workspace_dir};

fn model(name: &str) -> PathBuf {
    shared_dir().join("models").join(name)
}

fn open(path: &Path) -> Tokenizer {
    Tokenizer::from_file(path).unwrap_or_else(|e| panic!("{e}"))
}

/// Texts and ids by a reference library, from tests/golden/tokenizer_ids.py.
fn golden(name: &str) -> Vec<(String, Vec<u32>)> {
    let path = workspace_dir().join("tests/golden/tokenizers").join(name);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let id = |v: &serde_json::Value| v.as_u64().unwrap() as u32;
    let case = |c: &serde_json::Value| {
        (
            c["text"].as_str().unwrap().to_owned(),
            c["ids"].as_array().unwrap().iter().map(id).collect(),
        )
    };
    json.as_array().unwrap().iter().map(case).collect()
}

/// Fails naming all texts whose ids differ.
fn check_ids(cases: &[(String, Vec<u32>)], encode: impl Fn(&str) -> Vec<u32>) {
    let wrong: Vec<String> = cases
        .iter()
        .map(|(text, ids)| (text, ids, encode(text)))
        .filter(|(_, ids, found)| *ids != found)
        .map(|(text, ids, found)| format!("{text:?}\n  expected {ids:?}\n  found    {found:?}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn tokenizer_json_gives_the_ids_of_the_reference() {
    let tokenizer = open(&model("smollm2_tokenizer.json"));
    let cases = golden("smollm2.json");
    check_ids(&cases, |text| tokenizer.encode_with_control(text, false).unwrap());
    for (text, ids) in cases {
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

#[test]
fn control_tokens_in_a_text_count_only_when_asked() {
    let tokenizer = open(&model("smollm2_tokenizer.json"));
    let text = "<|im_start|>user\n<|im_end|>";
    let plain = tokenizer.encode(text, false).unwrap();
    assert!(plain.iter().all(|&id| !tokenizer.is_special(id)), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain, true), text);
    let control = tokenizer.encode_with_control(text, false).unwrap();
    assert_eq!(control, [1, 4093, 198, 2]);
    assert_eq!(tokenizer.decode(&control, true), "user\n");
    assert_eq!(tokenizer.decode(&control, false), text);
    assert_eq!(tokenizer.end_ids(), [0, 2]);
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.id_to_piece(4093).as_deref(), Some("user"));
    assert_eq!(tokenizer.id_to_piece(49152), None);
}

#[test]
fn a_stream_holds_back_the_beginning_of_a_character() {
    let tokenizer = open(&model("smollm2_tokenizer.json"));
    let text = "a 👨‍👩‍👧 🏴󠁧󠁢󠁳󠁣󠁴󠁿 b";
    let ids = tokenizer.encode(text, false).unwrap();
    let mut stream = tokenizer.decode_stream();
    let parts: Vec<Option<String>> = ids.iter().map(|&id| stream.push(id)).collect();
    assert!(parts.iter().any(Option::is_none), "an emoji is several tokens");
    assert!(parts.iter().flatten().all(|p| !p.contains('\u{fffd}')));
    assert_eq!(parts.into_iter().flatten().collect::<String>(), text);
    assert_eq!(stream.flush(), None);

    let emoji = tokenizer.encode("👨", false).unwrap();
    let (cut, rest) = emoji.split_at(emoji.len() - 1);
    let mut stream = tokenizer.decode_stream().after(cut);
    assert_eq!(stream.push(rest[0]).as_deref(), Some("👨"));
    let mut stream = tokenizer.decode_stream();
    assert!(cut.iter().all(|&id| stream.push(id).is_none()));
    assert_eq!(stream.flush().as_deref(), Some("\u{fffd}"));
    assert_eq!(tokenizer.decode(cut, true), "\u{fffd}");
}
