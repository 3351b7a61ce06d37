//! The subcommands: one file each.

mod bench;
mod chat;
mod check;
mod completions;
mod convert;
mod data;
mod diff;
mod eval;
mod finetune;
mod generate;
mod inspect;
mod merge;
mod models;
mod opt;
mod plot;
mod pull;
mod run;
mod tokenize;
mod tokenizer;
mod train;

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Generate(generate::Generate),
    Chat(chat::Chat),
    Eval(eval::Eval),
    Tokenize(tokenize::Tokenize),
    Inspect(inspect::Inspect),
    Run(run::Run),
    Diff(diff::Diff),
    Opt(opt::Opt),
    Check(check::Check),
    Convert(convert::Convert),
    Bench(bench::Bench),
    Train(train::Train),
    Finetune(finetune::Finetune),
    Merge(merge::Merge),
    Plot(plot::Plot),
    #[command(subcommand)]
    Data(data::Data),
    #[command(subcommand)]
    Tokenizer(tokenizer::Tokenizer),
    Pull(pull::Pull),
    Models(models::Models),
    Completions(completions::Completions),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match self {
            Command::Generate(c) => return c.run(),
            Command::Chat(c) => return c.run(),
            Command::Opt(c) => c.run()?,
            Command::Diff(c) => return c.run(),
            Command::Check(c) => return c.run(),
            Command::Train(c) => return c.run(),
            Command::Finetune(c) => return c.run(),
            Command::Eval(c) => c.run()?,
            Command::Tokenize(c) => c.run()?,
            Command::Inspect(c) => c.run()?,
            Command::Run(c) => c.run()?,
            Command::Convert(c) => c.run()?,
            Command::Bench(c) => c.run()?,
            Command::Merge(c) => c.run()?,
            Command::Plot(c) => c.run()?,
            Command::Data(c) => c.run()?,
            Command::Tokenizer(c) => c.run()?,
            Command::Pull(c) => c.run()?,
            Command::Models(c) => c.run()?,
            Command::Completions(c) => c.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A text argument: `-` stands for standard input, whose last line end does not count.
fn text_or_stdin(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input as UTF-8")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
