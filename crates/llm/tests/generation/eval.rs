//! Evaluation over a model whose every answer is known.

use crate::fake::{CHAOS, bytes, chaos, script};
use rigel_llm::agreement;
use rigel_llm::eval::{Evaluation, Scoring, Text, largest_window};
use rigel_llm::generate::Session;
use rigel_llm::sample::logprobs;

/// Scores by `score`, and makes sure that the cache's way gives the same.
fn evaluate(
    session: &mut Session,
    ids: &[u32],
    window: usize,
    bos: Option<u32>,
    top: usize,
    progress: impl FnMut(usize),
) -> rigel_llm::Result<Evaluation> {
    use rigel_llm::eval::evaluate;
    let text = Text { ids, window, bos };
    let whole = evaluate(session, Scoring::Whole, &text, top, progress)?;
    session.reset();
    assert_eq!(evaluate(session, Scoring::Cached, &text, top, |_| ())?, whole);
    Ok(whole)
}

/// Likelihoods one by one, by the logits after each window's beginning.
fn one_by_one(session: &mut Session, seen: &[u32], target: u32) -> f64 {
    -logprobs(&session.logits_after(seen).unwrap(), target, 0).unwrap().logprob
}

#[test]
fn likelihoods_in_closed_form() {
    // The script's next token has logit 4, the 256 others 0.5.
    let normaliser = (4f64.exp() + 256.0 * 0.5f64.exp()).ln();
    let (right, wrong) = (normaliser - 4.0, normaliser - 0.5);
    let result = evaluate(&mut script("?", "abc"), &bytes("?axc"), 64, None, 2, |_| ()).unwrap();
    let expected = [right, wrong, right];
    assert!(result.nll.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-9));
    let mean = (2.0 * right + wrong) / 3.0;
    assert!((result.mean_nll() - mean).abs() < 1e-9);
    assert!((result.perplexity() - mean.exp()).abs() < 1e-9);
    // After the script comes the end token; of the others, all equal, the lowest id.
    assert_eq!(result.top.iter().map(|t| t.0).collect::<Vec<_>>(), [crate::fake::END, 0]);
    assert!((result.top[0].1 + right).abs() < 1e-9);
}

#[test]
fn windows_give_every_token_at_least_half_a_window() {
    let ids: Vec<u32> = (0..30).map(|i| i * 7 % 256).collect();
    let mut session = chaos(16);
    let mut done = Vec::new();
    let result = evaluate(&mut session, &ids, 8, None, 1, |n| done.push(n)).unwrap();
    assert_eq!(done, [8, 12, 16, 20, 24, 28, 30]);
    for (i, nll) in result.nll.iter().enumerate() {
        let target = i + 1;
        // The window's end, for the windows above, and its eight tokens.
        let end = *done.iter().find(|&&end| target < end).unwrap();
        let expected = one_by_one(&mut session, &ids[end - 8..target], ids[target]);
        assert!((nll - expected).abs() < 1e-9, "token {target}");
    }
    let last = logprobs(&session.logits_after(&ids[22..]).unwrap(), 0, 1).unwrap();
    assert_eq!(result.top, last.top);
    // A text that fits needs one window.
    let whole = evaluate(&mut chaos(30), &ids, 30, None, 0, |_| ()).unwrap();
    assert_eq!(whole.nll[..7], result.nll[..7]);
    assert_ne!(whole.nll[9], result.nll[9]);
}

#[test]
fn later_windows_begin_with_the_texts_bos() {
    let ids: Vec<u32> = (0..12).collect();
    let mut session = chaos(8);
    let result = evaluate(&mut session, &ids, 8, Some(0), 0, |_| ()).unwrap();
    let expected = one_by_one(&mut session, &[0, 5, 6, 7, 8, 9], 10);
    assert!((result.nll[9] - expected).abs() < 1e-9);
    let without = evaluate(&mut session, &ids, 8, Some(1), 0, |_| ()).unwrap();
    assert_ne!(without.nll[9], result.nll[9]);
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let message = |ids: &[u32], window| {
        evaluate(&mut chaos(16), ids, window, None, 0, |_| ()).err().map(|e| e.to_string())
    };
    assert!(message(&[], 8).unwrap().contains("no tokens"));
    assert!(message(&[1, 999], 8).unwrap().contains("token 999"));
    assert!(message(&[1; 9], 3).unwrap().contains("windows of 3 tokens"));
    assert!(message(&[1; 40], 32).unwrap().contains("windows of 32 tokens"));
    assert!(message(&[1], 8).unwrap().contains("one token, which nothing predicts"));
    assert_eq!(largest_window(&chaos(16)), 16);
    assert_eq!(largest_window(&chaos(1 << 20)), (64 << 20) / CHAOS);
}

#[test]
fn agreement_over_windows() {
    let ids: Vec<u32> = (0..30).map(|i| i * 7 % 256).collect();
    let text = Text { ids: &ids, window: 8, bos: None };
    let mut other = chaos(16);
    let wanted = evaluate(&mut other, &ids, 8, None, 0, |_| ()).unwrap();
    let found =
        agreement::compare((&mut chaos(16), Scoring::Cached), &mut other, &text, |_| ()).unwrap();
    assert_eq!(
        found.positions.iter().map(|p| p.index).collect::<Vec<_>>(),
        (1..30).collect::<Vec<_>>()
    );
    assert_eq!(found.positions.iter().map(|p| p.nll).collect::<Vec<_>>(), wanted.nll);
    assert_eq!(found.mean_nlls(), [wanted.mean_nll(); 2]);
    assert_eq!((found.fraction(), found.largest_difference), (1.0, 0.0));
    let [smallest, median] = found.margins().unwrap();
    assert!(0.0 < smallest && smallest < median);
}
