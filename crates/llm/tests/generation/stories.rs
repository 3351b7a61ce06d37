//! Generation with a real model on the reference interpreter.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use exec::Backend;
use mil::eval::Arithmetic;
use rigel_llm::generate::{FinishReason, GenerateOptions, Overflow, Session};
use rigel_llm::sample::SamplingParams;
use rigel_llm::{LoadOptions, Model, Tokenizer};
use tensor::DType;
use testkit::{InterpreterBackend, shared_dir};

/// The stories model with an fp32 cache.
fn session(context: usize) -> Session {
    several(1, context)
}

/// A session of several sequences.
fn several(sequences: usize, context: usize) -> Session {
    let options = LoadOptions { cache_dtype: DType::F32 };
    let model = Model::load_with(shared_dir().join("models/stories260K.bin"), options).unwrap();
    let program = model.specialize_several(context, sequences).unwrap();
    let runnable = InterpreterBackend::new(Arithmetic::F32).prepare(&program).unwrap();
    Session::several(runnable, sequences, context, model.config().vocab).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(shared_dir().join("models/tok512.bin")).unwrap()
}

fn greedy_ids() -> Vec<u32> {
    let path = shared_dir().join("models/stories260K.greedy_ids.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn generate(session: &mut Session, prompt: &[u32], tokens: usize, overflow: Overflow) -> Vec<u32> {
    let tokenizer = tokenizer();
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

/// With what makes some end before others: a stop string, a number of tokens, a full context.
#[test]
fn several_continuations_are_those_of_sessions_of_their_own() {
    let (tokenizer, ids) = (tokenizer(), greedy_ids());
    let all = GenerateOptions {
        sampling: SamplingParams { temperature: 1.3, seed: 11, ..SamplingParams::default() },
        logprobs: Some(2),
        ..GenerateOptions::default()
    };
    let stop = GenerateOptions { stop: vec!["ed".into()], max_tokens: Some(8), ..all.clone() };
    let mut together = several(3, 24);
    let mut reasons = Vec::new();
    // The second prompt begins like the first, which is in the cache by then.
    for (prompt, options) in [(&ids[..5], &stop), (&ids[..9], &all), (&ids[..9], &stop)] {
        let found = together.generate_several(&tokenizer, prompt, options).unwrap();
        assert_eq!(found.len(), 3);
        for (found, seed) in found.into_iter().zip(11..) {
            let sampling = SamplingParams { seed, ..options.sampling.clone() };
            let options = GenerateOptions { sampling, ..options.clone() };
            let mut alone = session(24);
            let mut generation = alone.generate(&tokenizer, prompt, options).unwrap();
            assert!(generation.by_ref().all(|step| step.is_ok()));
            let alone = generation.finish();
            assert_eq!((&found.ids, &found.text), (&alone.ids, &alone.text));
            assert_eq!(found.finish_reason, alone.finish_reason);
            assert_eq!(found.logprobs, alone.logprobs);
            assert_eq!(found.timings.decode_tokens, alone.timings.decode_tokens);
            reasons.push(found.finish_reason);
        }
    }
    for reason in [FinishReason::Stop, FinishReason::Length, FinishReason::Context] {
        assert!(reasons.contains(&reason), "{reason:?} is not in {reasons:?}");
    }
}

#[test]
fn several_sequences_neither_slide_nor_go_alone() {
    let (tokenizer, mut together) = (tokenizer(), several(2, 8));
    let slide =
        GenerateOptions { overflow: Overflow::Slide { keep: 1 }, ..GenerateOptions::default() };
    let error = together.generate_several(&tokenizer, &[1], &slide).unwrap_err();
    assert!(error.to_string().contains("do not slide"), "{error}");
    assert!(together.generate(&tokenizer, &[1], GenerateOptions::default()).is_err());
    let none = GenerateOptions { max_tokens: Some(0), ..GenerateOptions::default() };
    let found = together.generate_several(&tokenizer, &[1], &none).unwrap();
    assert!(found.iter().all(|one| one.ids.is_empty() && one.text.is_empty()));
    let cancelled = Arc::new(AtomicBool::new(true));
    let options = GenerateOptions { cancel: Some(cancelled), ..GenerateOptions::default() };
    let found = together.generate_several(&tokenizer, &[1], &options).unwrap();
    assert!(found.iter().all(|one| one.finish_reason == FinishReason::Cancelled));
}
