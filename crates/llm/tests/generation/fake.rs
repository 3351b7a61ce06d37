//! Models whose logits are known, and a tokenizer of single bytes.

use std::sync::{Arc, Mutex};

use exec::{ExecError, Fallback, Runnable, State, Tensors};
use mil::Program;
use rigel_llm::Tokenizer;
use rigel_llm::generate::Session;
use serde_json::json;
use tensor::Tensor;

/// Vocabulary of all models here: the bytes and an end token.
pub(crate) const CHAOS: usize = 257;
/// The end token.
pub(crate) const END: u32 = 256;

/// Function and number of tokens of each run.
type Calls = Arc<Mutex<Vec<(&'static str, usize)>>>;

/// Logits `[vocab]` after the tokens seen so far.
type Logits = Box<dyn Fn(&[i32]) -> Vec<f32> + Send>;

/// A model that remembers every token in its slot, as a cache does, and answers from what it remembers.
pub(crate) struct Fake {
    slots: Vec<i32>,
    logits: Logits,
    calls: Calls,
    after: Box<dyn Fn() + Send>,
    failing_at: usize,
}

impl Fake {
    fn new(logits: Logits) -> (Self, Calls) {
        let calls = Calls::default();
        let (slots, after) = (Vec::new(), Box::new(|| ()));
        (Fake { slots, logits, calls: calls.clone(), after, failing_at: usize::MAX }, calls)
    }

    /// Logits that depend on every token and its position, and look random. Never the end token.
    pub(crate) fn chaos() -> (Self, Calls) {
        Fake::new(Box::new(|seen| {
            let seed = seen.iter().fold(7u64, |h, &id| {
                (h ^ id.cast_unsigned() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            });
            let logit = |i: u64| (seed.wrapping_mul(2 * i + 1) >> 40) as f32 / 1e6;
            (0..CHAOS as u64).map(|i| if i == 256 { -50.0 } else { logit(i) }).collect()
        }))
    }

    /// Calls `after` behind every run.
    pub(crate) fn after_each_call(self, after: impl Fn() + Send + 'static) -> Self {
        Fake { after: Box::new(after), ..self }
    }

    /// Fails to run the token at a position.
    pub(crate) fn failing_at(self, position: usize) -> Self {
        Fake { failing_at: position, ..self }
    }
}

impl Runnable for Fake {
    fn new_state(&self) -> exec::Result<State> {
        State::new(&Program::default())
    }

    fn run(&mut self, function: &str, inputs: &Tensors, _: &mut State) -> exec::Result<Tensors> {
        let ids = inputs["ids"].as_slice::<i32>().unwrap();
        let positions = inputs["positions"].as_slice::<i32>().unwrap();
        assert_eq!((inputs["ids"].shape(), positions.len()), (&[1, ids.len()][..], ids.len()));
        let function = match function {
            "prefill" => "prefill",
            "decode" if ids.len() == 1 => "decode",
            "score" => "score",
            other => return Err(ExecError::NoFunction(other.to_owned())),
        };
        self.calls.lock().unwrap().push((function, ids.len()));
        // `score` neither reads nor changes the cache.
        let mut seen =
            if function == "score" { Vec::new() } else { std::mem::take(&mut self.slots) };
        let mut rows = Vec::new();
        for (&id, &position) in ids.iter().zip(positions) {
            let position = usize::try_from(position).unwrap();
            assert!(position <= seen.len(), "a hole in the cache");
            if position == self.failing_at {
                return Err(ExecError::NoFunction("failing".into()));
            }
            seen.truncate(position);
            seen.push(id);
            rows.push((self.logits)(&seen));
        }
        if function != "score" {
            self.slots = seen;
            rows.drain(..rows.len() - 1);
        }
        (self.after)();
        let logits = Tensor::from_slice(&[1, rows.len(), CHAOS], &rows.concat()).unwrap();
        Ok(Tensors::from([("logits".to_owned(), logits)]))
    }

    fn fallbacks(&self) -> &[Fallback] {
        &[]
    }
}

/// A session over [`Fake::chaos`].
pub(crate) fn chaos(context: usize) -> Session {
    Session::new(Box::new(Fake::chaos().0), context, CHAOS).unwrap()
}

/// A session whose model, after `prompt`, says `text` and ends.
pub(crate) fn script(prompt: &str, text: &str) -> Session {
    let (start, text) = (prompt.len(), bytes(text));
    let (fake, _) = Fake::new(Box::new(move |seen| {
        let next = text.get(seen.len() - start).copied().unwrap_or(END);
        (0..CHAOS as u32).map(|i| if i == next { 4.0 } else { 0.5 }).collect()
    }));
    Session::new(Box::new(fake), 64, CHAOS).unwrap()
}

/// The ids of a text.
pub(crate) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// A byte-level tokenizer without merges, in which a byte's id is its value.
pub(crate) fn byte_tokenizer() -> Tokenizer {
    // GPT-2's printable stand-ins: bytes that are no visible Latin-1 character move to U+0100 and up.
    let mut moved = 0x100;
    let vocab: serde_json::Map<_, _> = (0u32..256)
        .map(|byte| {
            let stands = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let shown = if stands { byte } else { moved };
            moved += u32::from(!stands);
            (char::from_u32(shown).unwrap().to_string(), json!(byte))
        })
        .chain([("</s>".to_owned(), json!(END))])
        .collect();
    let end = json!({
        "id": END, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true
    });
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).unwrap();
    Tokenizer::from_file(&path).unwrap()
}
