//! `rigel chat`: a conversation, line by line.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Args;
use llm::Tokenizer;
use llm::generate::{FinishReason, GenerateOptions, Overflow};
use llm::template::{ChatTemplate, Message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::generate::summary;
use crate::interrupt;
use crate::loading::{Loaded, ModelArgs};
use crate::sampling_args::SamplingArgs;
use crate::{environment, failure, output};

const HELP: &str = "\
/reset  begin a new conversation
/help   this
/quit   leave (also Ctrl-D)
Ctrl-C ends an answer. Anything else is a message.";

/// Talk with a model
///
/// On a terminal lines can be edited and earlier ones recalled. Otherwise every line of standard input is a
/// message, and only the answers are printed. /help lists commands.
#[derive(Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "S")]
    system: Option<String>,
    /// Most tokens of an answer; by default as many as the context takes
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// End an answer at this string; may be given several times
    #[arg(long, value_name = "S")]
    stop: Vec<String>,
}

impl Chat {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let cancel = interrupt::flag()?;
        let mut loaded = self.model.load()?;
        let tokenizer = loaded.tokenizer()?;
        let template = ChatTemplate::for_model(&loaded.file)?;
        loaded.introduce();
        let mut input = Input::open()?;
        if input.is_terminal() {
            output::remark("/help lists commands");
        }
        let begin =
            || self.system.as_deref().map(|s| Message::new("system", s)).into_iter().collect();
        let mut messages: Vec<Message> = begin();
        while let Some(line) = input.line()? {
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => break,
                "/help" => eprintln!("{HELP}"),
                "/reset" => messages = begin(),
                command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                    eprintln!("no command {command}; /help lists them");
                }
                message => {
                    messages.push(Message::new("user", message));
                    cancel.store(false, Ordering::Relaxed);
                    let prompt = template.encode(&tokenizer, &messages)?;
                    match self.answer(&mut loaded, &tokenizer, &prompt, &cancel) {
                        Ok(answer) => messages.push(Message::new("assistant", answer)),
                        // Whoever sits there can still /reset, or say something shorter.
                        Err(error) if input.is_terminal() => {
                            failure::report(&error);
                            messages.pop();
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the model's answer as it comes, and returns it.
    fn answer(
        &self,
        loaded: &mut Loaded,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        cancel: &Arc<AtomicBool>,
    ) -> Result<String> {
        let options = GenerateOptions {
            sampling: self.sampling.params(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            overflow: Overflow::Stop,
            cancel: Some(cancel.clone()),
            ..GenerateOptions::default()
        };
        let generation = loaded.session.generate(tokenizer, prompt, options);
        let mut generation =
            generation.context("this message does not fit; /reset begins a new conversation")?;
        for step in generation.by_ref() {
            output::piece(&step?.text)?;
        }
        output::line("")?;
        let generated = generation.finish();
        output::remark(&summary(&generated));
        if generated.finish_reason == FinishReason::Context {
            eprintln!("note: the context is full; /reset begins a new conversation");
        }
        Ok(generated.text)
    }
}

/// Where messages come from.
enum Input {
    /// A terminal, with the file of earlier lines.
    Terminal { editor: Box<DefaultEditor>, history: PathBuf },
    /// Anything else.
    Lines,
}

impl Input {
    fn open() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Lines);
        }
        let mut editor = Box::new(DefaultEditor::new()?);
        let directory = environment::cache_dir()?;
        std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let history = directory.join("chat-history.txt");
        if history.exists() {
            editor.load_history(&history).with_context(|| history.display().to_string())?;
        }
        Ok(Input::Terminal { editor, history })
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Lines => {
                let mut line = String::new();
                let read = io::stdin().lock().read_line(&mut line);
                let read = read.context("cannot read standard input as UTF-8")?;
                Ok((read > 0).then_some(line))
            }
            Input::Terminal { editor, history } => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        if editor.add_history_entry(&line)? {
                            editor
                                .save_history(history)
                                .with_context(|| history.display().to_string())?;
                        }
                        return Ok(Some(line));
                    }
                    // Clears the line, as in a shell.
                    Err(ReadlineError::Interrupted) => {}
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(e) => return Err(e.into()),
                }
            },
        }
    }
}
