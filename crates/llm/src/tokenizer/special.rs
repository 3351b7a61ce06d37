//! Which ids begin and end a text, a turn, or generation.

/// Names of control tokens that end a text or a turn, in the vocabularies of the families that Rigel runs:
/// several files name only one of theirs as EOS.
pub(super) const END_NAMES: &[&str] = &[
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// Names of tokens that begin a text, for files that do not say.
pub(super) const BOS_NAMES: &[&str] =
    &["<s>", "<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>"];

/// The ids with a role.
#[derive(Default, Debug)]
pub(super) struct Specials {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    /// Ascending.
    pub(super) end: Vec<u32>,
    /// What is put before a text.
    pub(super) prefix: Vec<u32>,
    /// What is put after a text.
    pub(super) suffix: Vec<u32>,
}

impl Specials {
    /// Adds `ids` and EOS to the ids that end generation, and takes EOS from them if it is unknown.
    pub(super) fn add_ends(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.end.extend(ids.into_iter().chain(self.eos));
        self.end.sort_unstable();
        self.end.dedup();
        self.eos = self.eos.or(self.end.first().copied());
    }

    /// Adds or removes BOS before a text, as a setting says that speaks of it alone.
    pub(super) fn set_adds_bos(&mut self, adds: bool) {
        let Some(bos) = self.bos else { return };
        match (adds, self.prefix.first() == Some(&bos)) {
            (true, false) => self.prefix.insert(0, bos),
            (false, true) => drop(self.prefix.remove(0)),
            _ => {}
        }
    }
}
