//! Chat templates against what jinja2 renders, from tests/golden/chat_templates.py.
#![allow(clippy::unwrap_used, reason = "a test")]

use rigel_llm::Tokenizer;
use rigel_llm::template::{ChatTemplate, Message, Options};
use serde_json::Value;
use testkit::{fixtures_dir, workspace_dir};

#[test]
fn templates_render_as_jinja2_renders_them() {
    let folder = workspace_dir().join("tests/golden/chat");
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 50);
    for case in cases {
        let path = folder.join(case["template"].as_str().unwrap());
        let template = ChatTemplate::new(&path, std::fs::read_to_string(&path).unwrap()).unwrap();
        let field = |m: &Value, key: &str| m[key].as_str().unwrap().to_owned();
        let message = |m: &Value| Message::new(field(m, "role"), field(m, "content"));
        let messages: Vec<Message> =
            case["messages"].as_array().unwrap().iter().map(message).collect();
        let options = Options {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            tools: Some(&case["tools"]).filter(|t| !t.is_null()),
            bos_token: "<s>",
            eos_token: "</s>",
        };
        match (template.render(&messages, &options), case["error"].as_str()) {
            (Ok(text), None) => assert_eq!(text, case["text"].as_str().unwrap(), "{case}"),
            (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{error}"),
            (found, _) => panic!("{found:?} for {case}"),
        }
    }
}

#[test]
fn smollm2_brings_its_own() {
    let path = fixtures_dir().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "no SmolLM2: run `python3 tests/fetch.py`");
    let model = import::open(&path).unwrap();
    let template = ChatTemplate::for_model(&model).unwrap();
    let tokenizer = Tokenizer::for_model(&model, None).unwrap();
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    let ids = template.encode(&tokenizer, &messages).unwrap();
    assert_eq!(
        tokenizer.decode(&ids, false),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 3);
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 2);
}

#[test]
fn what_is_missing_or_broken_is_said() {
    let error = ChatTemplate::new("t.jinja", "{% for %}").unwrap_err().to_string();
    assert!(error.starts_with("t.jinja: chat template: "), "{error}");
    let stories = testkit::shared_dir().join("models/stories260K.bin");
    let error = ChatTemplate::for_model(&import::open(&stories).unwrap()).unwrap_err().to_string();
    assert!(error.contains("stories260K.bin: the model has no chat template"), "{error}");
}

#[test]
fn json_is_written_as_python_writes_it() {
    let source = "{{ messages[0] | tojson }} {{ messages | tojson(indent=2) }} {{ strftime_now('%Y') | length }}";
    let template = ChatTemplate::new("t", source).unwrap();
    let text = template.render(&[Message::new("user", "<é>")], &Options::default()).unwrap();
    assert_eq!(
        text,
        "{\"role\": \"user\", \"content\": \"<é>\"} [\n  {\n    \"role\": \"user\",\n    \"content\": \"<é>\"\n  }\n] 4"
    );
}
