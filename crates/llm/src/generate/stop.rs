//! Stop strings: found across the borders of tokens, and never shown even in part.

use crate::{Error, Result};

/// Lets text through up to the first stop string, holding back what may be the beginning of one.
pub(super) struct StopMatcher {
    stops: Vec<String>,
    /// Text not let through yet: the longest suffix so far that begins a stop string.
    held: String,
}

/// What became of some text.
#[derive(Debug, PartialEq)]
pub(super) struct Passed {
    /// Text that belongs to the result.
    pub(super) text: String,
    /// The stop string that came after it, if one did.
    pub(super) stop: Option<String>,
}

impl StopMatcher {
    /// # Errors
    /// When a stop string is empty: every text contains it.
    pub(super) fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::request("a stop string is empty"));
        }
        Ok(StopMatcher { stops: stops.to_vec(), held: String::new() })
    }

    /// Takes the next piece of text. Among stop strings found, the one that begins first counts, the
    /// longest if several begin there.
    pub(super) fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|s| Some((self.held.find(s.as_str())?, s)))
            .min_by_key(|(at, s)| (*at, std::cmp::Reverse(s.len())));
        if let Some((at, stop)) = found {
            let stop = Some(stop.clone());
            self.held.truncate(at);
            return Passed { text: std::mem::take(&mut self.held), stop };
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// What was held back, once no more text can come.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest suffix of `text` that is a prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let borders = stop.char_indices().map(|(i, _)| i).skip(1);
    borders.filter(|&n| text.ends_with(&stop[..n])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn passed(text: &str, stop: Option<&str>) -> Passed {
        Passed { text: text.into(), stop: stop.map(Into::into) }
    }

    #[test]
    fn text_is_held_only_while_it_may_become_a_stop_string() {
        let mut m = matcher(&["\n\nUser:", "END"]);
        assert_eq!(m.push("Hello\n"), passed("Hello", None));
        assert_eq!(m.push("\nUs"), passed("", None));
        assert_eq!(m.push("age"), passed("\n\nUsage", None));
        assert_eq!(m.push(" E"), passed(" ", None));
        assert_eq!(m.push("ND. More"), passed("", Some("END")));
    }

    #[test]
    fn the_first_and_then_the_longest_counts() {
        assert_eq!(matcher(&["b", "abc"]).push("xabc"), passed("x", Some("abc")));
        assert_eq!(matcher(&["ab", "abc"]).push("xabc"), passed("x", Some("abc")));
        // The shorter one is complete before the longer could be.
        assert_eq!(matcher(&["ab", "abc"]).push("xab"), passed("x", Some("ab")));
    }

    #[test]
    fn what_is_held_comes_out_at_the_end() {
        let mut m = matcher(&["🦀🦀"]);
        assert_eq!(m.push("a🦀"), passed("a", None));
        assert_eq!(m.flush(), "🦀");
        assert!(StopMatcher::new(&[String::new()]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[ab🦀]{0,30}", stop in "[ab🦀]{1,4}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(chars.len() + 1)).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let mut m = matcher(&[&stop]);
            let mut shown = String::new();
            let mut stopped = false;
            for w in cuts.windows(2) {
                let piece: String = chars[w[0]..w[1]].iter().collect();
                let p = m.push(&piece);
                shown += &p.text;
                if p.stop.is_some() {
                    stopped = true;
                    break;
                }
            }
            if !stopped {
                shown += &m.flush();
            }
            let expected = text.find(&stop).map_or(&text[..], |at| &text[..at]);
            prop_assert_eq!(shown, expected);
            prop_assert_eq!(stopped, text.contains(&stop));
        }
    }
}
