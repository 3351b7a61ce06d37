//! Generation over a model whose every answer is known: endings, text, overflow, reuse of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fake::{CHAOS, Fake, byte_tokenizer, bytes, chaos, script};
use rigel_llm::generate::{FinishReason, GenerateOptions, Generated, Overflow, Session};
use rigel_llm::sample::SamplingParams;

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        ..GenerateOptions::default()
    }
}

/// Runs to the end; the steps' texts and ids must add up to the result.
fn run(
    session: &mut Session,
    prompt: &[u32],
    options: GenerateOptions,
) -> (Vec<String>, Generated) {
    let tokenizer = byte_tokenizer();
    let mut generation = session.generate(&tokenizer, prompt, options).unwrap();
    let steps: Vec<_> = generation.by_ref().map(Result::unwrap).collect();
    let result = generation.finish();
    let ids: Vec<u32> = steps.iter().filter_map(|s| s.id).collect();
    assert_eq!(ids, result.ids);
    let texts: Vec<String> = steps.into_iter().map(|s| s.text).collect();
    assert_eq!(texts.concat(), result.text);
    (texts, result)
}

fn says(text: &str, options: GenerateOptions) -> (Vec<String>, Generated) {
    run(&mut script("?", text), &bytes("?"), options)
}

#[test]
fn a_script_is_said_until_its_end_token() {
    let (texts, result) = says("Hi.", greedy(100));
    assert_eq!(texts, ["H", "i", "."]);
    assert_eq!((result.text.as_str(), result.finish_reason), ("Hi.", FinishReason::Eos));
    assert_eq!(result.ids, bytes("Hi."));
    assert_eq!(result.logprobs, None);
}

#[test]
fn the_number_of_tokens_is_exact() {
    for (most, text) in [(0, ""), (2, "He")] {
        let (_, result) = says("Hello", greedy(most));
        assert_eq!((result.text.as_str(), result.finish_reason), (text, FinishReason::Length));
    }
}

#[test]
fn end_tokens_can_be_ignored() {
    let (_, result) = says("Hi", GenerateOptions { ignore_end: true, ..greedy(4) });
    assert_eq!((result.ids.len(), result.finish_reason), (4, FinishReason::Length));
    // A control token has no text.
    assert!(result.text.starts_with("Hi"));
}

#[test]
fn characters_come_whole() {
    let (texts, result) = says("a🦀b", greedy(100));
    assert_eq!(texts, ["a", "", "", "", "🦀", "b"]);
    assert_eq!(result.ids.len(), 6);
    // Cut within the crab: its bytes are not lost silently.
    let (texts, _) = says("a🦀b", greedy(3));
    assert_eq!(texts, ["a", "", "\u{fffd}"]);
}

#[test]
fn stop_strings_are_found_across_tokens_and_not_shown() {
    let stop = |s: &str| GenerateOptions { stop: vec![s.to_owned()], ..greedy(100) };
    let (texts, result) = says("One\nUser: two", stop("\nUser:"));
    assert_eq!(result.finish_reason, FinishReason::Stop);
    assert_eq!(texts, ["O", "n", "e", "", "", "", "", "", ""]);
    // The tokens of the stop string were generated.
    assert_eq!(result.ids, bytes("One\nUser:"));
    // What only looked like one is shown when it is none.
    let (texts, result) = says("a\nUp", stop("\nUser:"));
    assert_eq!(texts, ["a", "", "", "\nUp"]);
    assert_eq!(result.finish_reason, FinishReason::Eos);
    // Held back at the end of the tokens, and within a character.
    let (texts, _) = says("a🦀🦀", GenerateOptions { stop: vec!["🦀🦀🦀".into()], ..greedy(100) });
    assert_eq!(texts.concat(), "a🦀🦀");
    assert_eq!(texts.last().unwrap(), "🦀🦀");
}

#[test]
fn logprobs_are_given_for_every_token() {
    let (_, result) = says("Hi", GenerateOptions { logprobs: Some(2), ..greedy(100) });
    let logprobs = result.logprobs.unwrap();
    assert_eq!(logprobs.iter().map(|l| l.id).collect::<Vec<_>>(), result.ids);
    assert!(logprobs.iter().all(|l| l.logprob < 0.0 && l.top.len() == 2 && l.top[0].0 == l.id));
}

#[test]
fn a_prompt_beyond_the_context_is_an_error_naming_both() {
    let mut session = chaos(8);
    let tokenizer = byte_tokenizer();
    let mut message =
        |prompt: &[u32]| session.generate(&tokenizer, prompt, greedy(1)).err().unwrap().to_string();
    let nine = message(&[1; 9]);
    assert!(nine.contains("9 tokens") && nine.contains("only 8"), "{nine}");
    assert!(message(&[]).contains("empty"));
    assert!(
        message(&[1, 300]).contains("token 300") && message(&[300]).contains("vocabulary of 257")
    );
}

#[test]
fn a_full_context_ends_the_generation() {
    // A prompt that fills the context still has one token after it.
    for (prompt, expected) in [(8, 1), (5, 4)] {
        let (_, result) = run(&mut chaos(8), &vec![1; prompt], greedy(100));
        assert_eq!((result.ids.len(), result.finish_reason), (expected, FinishReason::Context));
    }
}

#[test]
fn sliding_equals_a_fresh_run_over_what_remains() {
    let keep = 2;
    let prompt = [3, 1, 4, 1, 5];
    let options = GenerateOptions { overflow: Overflow::Slide { keep }, ..greedy(40) };
    let (_, slid) = run(&mut chaos(8), &prompt, options);
    assert_eq!((slid.ids.len(), slid.finish_reason), (40, FinishReason::Length));
    let mut window = prompt.to_vec();
    let mut slides = 0;
    for &id in &slid.ids {
        if window.len() > 8 {
            // Seven beyond those kept: the older four go.
            window = [&window[..keep], &window[keep + 4..]].concat();
            slides += 1;
        }
        let (_, fresh) = run(&mut chaos(8), &window, greedy(1));
        assert_eq!(fresh.ids, [id]);
        window.push(id);
    }
    assert!(slides > 5);
    let message = |keep| {
        let options = GenerateOptions { overflow: Overflow::Slide { keep }, ..greedy(1) };
        let mut session = chaos(8);
        session.generate(&byte_tokenizer(), &[1], options).err().map(|e| e.to_string())
    };
    assert_eq!(message(6), None);
    assert!(message(7).unwrap().contains("keeping 7 tokens"));
}

#[test]
fn a_reused_prefix_equals_a_fresh_run_and_is_not_computed_again() {
    let mut session = chaos(64);
    let (_, first) = run(&mut session, &[1, 2, 3, 4], greedy(5));
    let longer = [&[1, 2, 3, 4][..], &first.ids, &[9, 9]].concat();
    let prompts = [&longer[..], &[1, 2, 7], &[1, 2, 7], &[5], &longer];
    // The last of a prompt is always computed; of what was generated, the last token was not run.
    for (prompt, computed) in prompts.into_iter().zip([3, 1, 1, 1, 11]) {
        let (_, reused) = run(&mut session, prompt, greedy(5));
        let (_, fresh) = run(&mut chaos(64), prompt, greedy(5));
        assert_eq!(reused.ids, fresh.ids);
        assert_eq!(reused.timings.prefill_tokens, computed, "{prompt:?}");
        assert_eq!(reused.timings.decode_tokens, 4);
    }
}

#[test]
fn a_long_prompt_is_computed_in_chunks() {
    let prompt: Vec<u32> = (0..1300).map(|i| i % 251).collect();
    let (fake, calls) = Fake::chaos();
    let mut session = Session::new(Box::new(fake), 2048, CHAOS).unwrap();
    let (_, result) = run(&mut session, &prompt, greedy(1));
    assert_eq!(*calls.lock().unwrap(), [("prefill", 512), ("prefill", 512), ("prefill", 276)]);
    assert_eq!(result.timings.prefill_tokens, 1300);
}

#[test]
fn cancelling_ends_between_chunks_and_between_tokens() {
    let cancel = Arc::new(AtomicBool::new(false));
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..greedy(100) };
    let tokenizer = byte_tokenizer();
    let mut session = script("?", "Hello");
    let mut generation = session.generate(&tokenizer, &bytes("?"), options.clone()).unwrap();
    assert_eq!(generation.next().unwrap().unwrap().text, "H");
    cancel.store(true, Ordering::Relaxed);
    assert!(generation.next().is_none());
    let result = generation.finish();
    assert_eq!((result.text.as_str(), result.finish_reason), ("H", FinishReason::Cancelled));

    let (fake, calls) = Fake::chaos();
    let fake = fake.after_each_call(move || cancel.store(true, Ordering::Relaxed));
    options.cancel.as_ref().unwrap().store(false, Ordering::Relaxed);
    let mut session = Session::new(Box::new(fake), 2048, CHAOS).unwrap();
    let (_, result) = run(&mut session, &vec![1; 1300], options);
    assert_eq!((result.ids.len(), result.finish_reason), (0, FinishReason::Cancelled));
    assert_eq!(calls.lock().unwrap().len(), 1);
    // What was computed is kept for the next try.
    assert_eq!(session.cached().len(), 512);
}

#[test]
fn the_repetition_penalty_sees_the_prompt() {
    // The script would repeat its prompt.
    let (_, plain) = run(&mut script("a", "a"), &bytes("a"), greedy(1));
    assert_eq!(plain.text, "a");
    let sampling = SamplingParams { repetition_penalty: 100.0, ..SamplingParams::greedy() };
    let (_, penalised) =
        run(&mut script("a", "a"), &bytes("a"), GenerateOptions { sampling, ..greedy(1) });
    assert_ne!(penalised.text, "a");
}

#[test]
fn useless_options_are_refused() {
    let tokenizer = byte_tokenizer();
    let mut session = chaos(8);
    let options = GenerateOptions { stop: vec![String::new()], ..greedy(1) };
    let message = session.generate(&tokenizer, &[1], options).err().unwrap().to_string();
    assert!(message.contains("stop string is empty"), "{message}");
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    let options = GenerateOptions { sampling, ..greedy(1) };
    assert!(session.generate(&tokenizer, &[1], options).is_err());
}

#[test]
fn a_failed_run_ends_the_generation_and_empties_the_cache() {
    let (fake, _) = Fake::chaos();
    let mut session = Session::new(Box::new(fake.failing_at(5)), 8, CHAOS).unwrap();
    let tokenizer = byte_tokenizer();
    let mut generation = session.generate(&tokenizer, &[1, 2, 3, 4], greedy(9)).unwrap();
    let steps: Vec<bool> = generation.by_ref().map(|s| s.is_ok()).collect();
    assert_eq!(steps, [true, true, false]);
    assert!(session.cached().is_empty());
}
