//! Tokenizers against the reference libraries' ids, llama.cpp's vectors, and themselves.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rigel_llm::Tokenizer;
use rigel_llm::tokenizer::MadeTokenizer;
use testkit::{fixtures_dir, shared_dir, workspace_dir};

fn model(name: &str) -> PathBuf {
    shared_dir().join("models").join(name)
}

/// A file that tests/fetch.py downloads, whose absence is a failure.
fn fixture(name: &str) -> PathBuf {
    let path = fixtures_dir().join(name);
    assert!(
        path.exists(),
        "{name} is not there: run `python3 tests/fetch.py` (Gemma: with `--gemma`)"
    );
    path
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
fn sentencepiece_gives_the_ids_of_the_reference() {
    let tokenizer = open(&model("llama2_tokenizer.model"));
    let cases = golden("llama2_spm.json");
    check_ids(&cases, |text| tokenizer.encode(text, false).unwrap());
    for (text, ids) in cases {
        assert_eq!(tokenizer.decode(&ids, false), text.replace('▁', " "));
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.encode("Hi", true).unwrap(), [1, 6324]);
}

/// llama.cpp's vectors for one of its vocabularies.
fn check_vectors(vocab: &str) {
    let path = fixture(&format!("vocab/ggml-vocab-{vocab}.gguf"));
    let beside = |end: &str| std::fs::read_to_string(format!("{}{end}", path.display())).unwrap();
    let (texts, lines) = (beside(".inp"), beside(".out"));
    let texts = texts.split("\n__ggml_vocab_test__\n");
    // The last text and its line are empty.
    let ids =
        lines.split('\n').map(|l| l.split_whitespace().map(|id| id.parse().unwrap()).collect());
    let cases: Vec<(String, Vec<u32>)> = texts.map(str::to_owned).zip(ids).collect();
    assert_eq!(cases.len(), 47);
    let tokenizer = open(&path);
    check_ids(&cases, |text| tokenizer.encode(text, false).unwrap());
    for (text, ids) in cases {
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

#[test]
fn gguf_gpt2_gives_llama_cpps_ids() {
    check_vectors("gpt-2");
}

#[test]
fn gguf_llama_bpe_gives_llama_cpps_ids() {
    check_vectors("llama-bpe");
}

#[test]
fn gguf_llama_spm_gives_llama_cpps_ids() {
    check_vectors("llama-spm");
}

#[test]
fn gguf_qwen2_gives_llama_cpps_ids() {
    check_vectors("qwen2");
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

/// Every file of ../shared/corpora.
fn corpora() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(shared_dir().join("corpora"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.into_iter().map(|p| (p.clone(), std::fs::read_to_string(&p).unwrap())).collect()
}

#[test]
fn corpora_come_back_as_they_were() {
    let files = [
        model("smollm2_tokenizer.json"),
        model("llama2_tokenizer.model"),
        model("tok512.bin"),
        fixture("SmolLM2-135M-Instruct.Q4_1.gguf"),
        #[cfg(feature = "gemma")]
        fixture("gemma-3-270m-q4_k_m.gguf"),
        fixture("vocab/ggml-vocab-gpt-2.gguf"),
        fixture("vocab/ggml-vocab-llama-bpe.gguf"),
        fixture("vocab/ggml-vocab-llama-spm.gguf"),
        fixture("vocab/ggml-vocab-qwen2.gguf"),
    ];
    let corpora = corpora();
    for file in files {
        let tokenizer = open(&file);
        for (path, text) in &corpora {
            let ids = tokenizer.encode(text, true).unwrap();
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            assert!(tokenizer.decode(&ids, true) == *text, "{} {}", file.display(), path.display());
        }
    }
}

#[test]
fn smollm2_is_the_same_from_gguf_and_from_json() {
    let gguf = open(&fixture("SmolLM2-135M-Instruct.Q4_1.gguf"));
    let json = open(&model("smollm2_tokenizer.json"));
    for (path, text) in corpora() {
        assert!(
            gguf.encode(&text, false).unwrap() == json.encode(&text, false).unwrap(),
            "{}",
            path.display()
        );
    }
    for (text, ids) in golden("smollm2.json") {
        assert_eq!(gguf.encode_with_control(&text, false).unwrap(), ids, "{text:?}");
    }
    assert_eq!(gguf.vocab_size(), json.vocab_size());
    assert!((0..gguf.vocab_size() as u32).all(|id| gguf.id_to_piece(id) == json.id_to_piece(id)));
    assert_eq!((gguf.bos(), gguf.eos(), gguf.adds_bos()), (Some(1), Some(2), false));
    assert_eq!(gguf.end_ids(), [0, 2]);
}

#[test]
fn llama2c_tokenizer_encodes_and_decodes_as_llama2c() {
    let tokenizer = open(&model("tok512.bin"));
    let read = |name: &str| std::fs::read_to_string(model(name)).unwrap();
    let ids: Vec<u32> = serde_json::from_str(&read("stories260K.greedy_ids.json")).unwrap();
    let text = read("stories260K.greedy256.txt");
    // The ids are those of the beginning.
    assert!(ids.len() > 100 && text.starts_with(&tokenizer.decode(&ids, true)));
    assert_eq!(tokenizer.encode(&tokenizer.decode(&ids, true), true).unwrap()[..40], ids[..40]);
    assert_eq!((tokenizer.bos(), tokenizer.end_ids()), (Some(1), &[1, 2][..]));
    let mut stream = tokenizer.decode_stream().after(&ids[..3]);
    let rest: String = ids[3..].iter().filter_map(|&id| stream.push(id)).collect();
    assert_eq!(tokenizer.decode(&ids[..3], true) + &rest, tokenizer.decode(&ids, true));
}

#[cfg(feature = "gemma")]
#[test]
fn gemma_keeps_spaces_and_line_ends() {
    let tokenizer = open(&fixture("gemma-3-270m-q4_k_m.gguf"));
    for text in [" a", "a   b\n\n\nc", "▁ 🙂 \u{1}", "<bos><start_of_turn>"] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), text.replace('▁', " "));
    }
    assert_eq!(tokenizer.encode("<bos>a", true).unwrap()[0], 2);
    assert_eq!(tokenizer.encode_with_control("<bos>", false).unwrap(), [2]);
    let ids: Vec<u32> = golden_ids("golden_gemma_wiki256.json");
    let text = tokenizer.decode(&ids, true);
    let again = tokenizer.encode(&text, true).unwrap();
    assert_eq!(again[..ids.len() - 2], ids[..ids.len() - 2]);
}

/// The ids of one of the evaluation goldens.
#[cfg(feature = "gemma")]
fn golden_ids(name: &str) -> Vec<u32> {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(model(name)).unwrap()).unwrap();
    serde_json::from_value(json["ids"].clone()).unwrap()
}

#[test]
fn a_tokenizer_that_is_not_the_models_is_refused() {
    let tokenizer = open(&model("tok512.bin"));
    tokenizer.check_vocab(512).unwrap();
    tokenizer.check_vocab(520).unwrap();
    for model_vocab in [400, 49152] {
        let error = tokenizer.check_vocab(model_vocab).unwrap_err().to_string();
        assert!(error.contains("tok512.bin: tokenizer of 512 tokens"), "{error}");
        assert!(error.contains(&model_vocab.to_string()), "{error}");
    }
    let stories = import::open(model("stories260K.bin")).unwrap();
    let error = Tokenizer::for_model(&stories, None).err().unwrap().to_string();
    assert!(error.contains("--tokenizer"), "{error}");
    let explicit = model("tok512.bin");
    assert_eq!(Tokenizer::for_model(&stories, Some(&explicit)).unwrap().vocab_size(), 512);
}

#[test]
fn broken_files_are_one_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokenizer");
    let read = |name: &str| std::fs::read(model(name)).unwrap();
    let bin = read("tok512.bin");
    let spm = read("llama2_tokenizer.model");
    let cases: [(&str, Vec<u8>); 7] = [
        ("not a tokenizer.json, SentencePiece", b"IQ== 0\nIg== 1\n".to_vec()),
        ("not a usable tokenizer.json", b"{\"model\": 1}".to_vec()),
        ("file ends inside", bin[..bin.len() - 1].to_vec()),
        (
            "of 100 pieces",
            bin[..4].iter().copied().chain([0, 0, 0, 0, 1, 0, 0, 0, b'a'].repeat(100)).collect(),
        ),
        ("SentencePiece", spm[..spm.len() - 1].to_vec()),
        ("file is empty", Vec::new()),
        ("magic", b"GGUF\x03\0\0\0".to_vec()),
    ];
    for (why, bytes) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = Tokenizer::from_file(&path).err().unwrap().to_string();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        assert!(error.contains(why) || why == "magic", "{why}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

/// What is made here reads the same in the library that Hugging Face's tools use.
#[test]
fn made_tokenizers_are_the_library_s_too() {
    let text = std::fs::read_to_string(shared_dir().join("corpora/tinyshakespeare.txt")).unwrap();
    let texts: Vec<String> = text.lines().take(4000).map(|l| format!("{l}\n")).collect();
    let characters: BTreeSet<char> = texts.iter().flat_map(|t| t.chars()).collect();
    let foreign = "ROMEO: naïve 🦀 don't\t\t12345  <|endoftext|>\r\n";
    for (made, vocab, sample) in [
        (MadeTokenizer::byte_level_bpe(&texts, 1000).unwrap(), 1000, foreign),
        (MadeTokenizer::characters(&texts).unwrap(), characters.len(), "What, Romeo?\n"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        made.write(dir.path()).unwrap();
        let path = dir.path().join("tokenizer.json");
        let own = open(&path);
        assert_eq!((made.vocab_size(), own.vocab_size()), (vocab, vocab));
        let library = tokenizers::Tokenizer::from_file(&path).unwrap();
        for text in texts.iter().map(String::as_str).take(500).chain([sample]) {
            let wanted = library.encode(text, false).unwrap();
            let ids = own.encode_with_control(text, true).unwrap();
            assert_eq!(ids, wanted.get_ids(), "{text:?}");
            assert_eq!(own.decode(&ids, false), text);
            assert_eq!(library.decode(&ids, false).unwrap(), text);
        }
        assert_eq!(own.eos().is_some(), vocab == 1000);
        if vocab != 1000 {
            let error = own.encode("Of ROMEO,\nnaïve 🦀", false).unwrap_err().to_string();
            let why = "the tokenizer has no token for 'ï' (line 2, column 3)";
            assert!(error.ends_with(why), "{error}");
        }
    }
    assert!(MadeTokenizer::byte_level_bpe(&texts, 256).is_err());
    let many = MadeTokenizer::byte_level_bpe(&texts, 1 << 40).err().unwrap();
    assert_eq!(many.kind(), mil::ErrorKind::Limit);
    // Memory is taken for what can come of the text, not for what is asked.
    let few = MadeTokenizer::byte_level_bpe(["ab ab"], 1 << 24).unwrap();
    assert_eq!(few.vocab_size(), 258);
    for none in [&[][..], &[String::new()]] {
        assert!(MadeTokenizer::byte_level_bpe(none, 300).is_err());
        assert!(MadeTokenizer::characters(none).is_err());
    }
}
