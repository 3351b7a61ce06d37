//! The model that needs no fetching.

use std::path::Path;

/// A model whose file is part of the program.
#[derive(Debug)]
pub struct Embedded {
    /// The name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its licence.
    pub license: &'static str,
    /// Its file: GGUF with the tokenizer inside.
    pub bytes: &'static [u8],
}

/// Continues a story; `docs/stories/README.md` says what it was made of and what it cannot do.
pub static STORIES: Embedded = Embedded {
    name: "rigel-stories",
    about: "Rigel's own model of stories for children, Q8_0 (Llama architecture, English, no chat)",
    license: "MIT or Apache-2.0",
    bytes: include_bytes!("../assets/rigel-stories.gguf"),
};

/// The embedded model called `name`, unless a file or directory is called so.
pub fn embedded(name: &str) -> Option<&'static Embedded> {
    (name == STORIES.name && !Path::new(name).exists()).then_some(&STORIES)
}
