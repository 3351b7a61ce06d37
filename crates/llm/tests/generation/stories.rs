//! Generation with a real model on the reference interpreter.

use exec::Backend;
use mil::eval::Arithmetic;
use rigel_llm::generate::{GenerateOptions, Overflow, Session};
use rigel_llm::sample::SamplingParams;
use rigel_llm::{LoadOptions, Model, Tokenizer};
use tensor::DType;
use testkit::{InterpreterBackend, shared_dir};

/// The stories model with an fp32 cache.
fn session(context: usize) -> Session {
    let options = LoadOptions { cache_dtype: DType::F32 };
    let model = Model::load_with(shared_dir().join("models/stories260K.bin"), options).unwrap();
    let program = model.specialize(context).unwrap();
    let runnable = InterpreterBackend::new(Arithmetic::F32).prepare(&program).unwrap();
    Session::new(runnable, context, model.config().vocab).unwrap()
}

fn greedy_ids() -> Vec<u32> {
    let path = shared_dir().join("models/stories260K.greedy_ids.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn generate(session: &mut Session, prompt: &[u32], tokens: usize, overflow: Overflow) -> Vec<u32> {
    let tokenizer = Tokenizer::from_file(shared_dir().join("models/tok512.bin")).unwrap();
    let sampling = SamplingParams::greedy();
    let max_tokens = Some(tokens);
    let options = GenerateOptions { sampling, max_tokens, overflow, ..GenerateOptions::default() };
    let mut generation = session.generate(&tokenizer, prompt, options).unwrap();
    assert!(generation.by_ref().all(|step| step.is_ok()));
    generation.finish().ids
}

#[track_caller]
fn assert_close(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() < 1e-4, "logit {i}: {a} is not {e}");
    }
}

#[test]
fn greedy_ids_are_the_references() {
    let expected = greedy_ids();
    assert_eq!(generate(&mut session(64), &[1], 32, Overflow::Stop), expected[1..33]);
    // From the middle: prefill gives what decode gave.
    assert_eq!(generate(&mut session(64), &expected[..20], 12, Overflow::Stop), expected[20..32]);
}

#[test]
fn a_reused_cache_gives_the_logits_of_a_fresh_one() {
    let ids = greedy_ids();
    let mut reused = session(64);
    for prompt in [&ids[..12], &ids[..30], &ids[..5], &[&ids[..5], &ids[20..30]].concat()] {
        let logits = reused.logits_after(prompt).unwrap();
        assert_close(&logits, &session(64).logits_after(prompt).unwrap());
    }
}

#[test]
fn a_slid_context_gives_the_tokens_of_a_fresh_one() {
    let slid = generate(&mut session(12), &[1], 24, Overflow::Slide { keep: 1 });
    let mut window = vec![1];
    for &id in &slid {
        if window.len() > 12 {
            window.drain(1..7);
        }
        assert_eq!(generate(&mut session(12), &window, 1, Overflow::Stop), [id]);
        window.push(id);
    }
}

#[test]
fn score_gives_the_logits_after_every_token() {
    let ids = &greedy_ids()[..16];
    let mut session = session(32);
    let before = session.logits_after(&ids[..4]).unwrap();
    let scores = session.score(ids).unwrap();
    let rows: Vec<&[f32]> = scores.as_slice::<f32>().unwrap().chunks(session.vocab()).collect();
    assert_eq!(rows.len(), 16);
    // The cache is as it was.
    assert_eq!(session.cached(), &ids[..4]);
    assert_close(rows[3], &before);
    for n in 1..=16 {
        assert_close(rows[n - 1], &session.logits_after(&ids[..n]).unwrap());
    }
}
