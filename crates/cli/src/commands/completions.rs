//! `rigel completions`: scripts that complete the command line.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, output};

/// Write a shell's completion script
///
/// For bash: `rigel completions bash > ~/.local/share/bash-completion/completions/rigel`
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "rigel", &mut script);
        output::piece(&String::from_utf8(script)?)
    }
}
