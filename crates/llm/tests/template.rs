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

/// Templates come from strangers: neither time nor memory is theirs to take.
#[test]
fn templates_without_end_fail() {
    for source in [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}many many words{% endfor %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ 'x' | indent(100000000000) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ [1] | tojson(indent=10000000000) }}",
        "{{ ([1] * 90000) | map('string') | list | tojson(indent=64) | length }}{{ ([[1] * 90000] * 1000) | tojson }}",
    ] {
        let template = ChatTemplate::new("t.jinja", source).unwrap();
        let error = template.render(&[], &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with("t.jinja: chat template: ") && error.len() < 200, "{error}");
    }
}

#[test]
fn a_long_conversation_is_far_from_the_bound() {
    let path = workspace_dir().join("tests/golden/chat/smollm2.jinja");
    let template = ChatTemplate::new(&path, std::fs::read_to_string(&path).unwrap()).unwrap();
    let turn = |i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(400));
    let messages: Vec<Message> = (0..1000).map(turn).collect();
    assert!(template.render(&messages, &Options::default()).unwrap().len() > 2_000_000);
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

#[test]
fn what_an_assistant_says_is_told_apart() {
    let path = fixtures_dir().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = import::open(&path).unwrap();
    let tokenizer = Tokenizer::for_model(&model, None).unwrap();
    let said = |role: &str, text: &str| Message::new(role, text);
    let messages = [
        said("system", "Be brief."),
        said("user", "Hi"),
        said("assistant", "Hello."),
        said("user", "Bye"),
        said("assistant", "Bye."),
    ];
    let template = ChatTemplate::for_model(&model).unwrap();
    let parts = template.parts(&tokenizer, &messages).unwrap();
    let answers: Vec<&str> = parts.iter().filter(|p| p.1).map(|p| &*p.0).collect();
    assert_eq!(answers, ["Hello.<|im_end|>\n", "Bye.<|im_end|>\n"]);
    let whole: String = parts.iter().map(|p| &*p.0).collect();
    let options =
        Options { bos_token: "<|im_start|>", eos_token: "<|im_end|>", ..Options::default() };
    assert_eq!(whole, template.render(&messages, &options).unwrap());
    // What a model is asked to continue is what comes before an answer.
    let before: String = parts[..3].iter().map(|p| &*p.0).collect();
    let ids = template.encode(&tokenizer, &messages[..4]).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), before);

    let last_alone = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}";
    let template = ChatTemplate::new("t.jinja", last_alone).unwrap();
    let error = template.parts(&tokenizer, &messages).unwrap_err().to_string();
    assert!(error.contains("message 3 is written otherwise"), "{error}");
}
