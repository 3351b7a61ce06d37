//! `rigel chat`: a conversation, line by line.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use llm::Tokenizer;
use llm::adapter::NONE;
use llm::generate::{FinishReason, GenerateOptions, Generated, Overflow};
use llm::template::{ChatTemplate, Message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::generate::summary;
use crate::interrupt::{self, Heeded};
use crate::loading::{Loaded, ModelArgs};
use crate::sampling_args::SamplingArgs;
use crate::{environment, failure, output};

const HELP: &str = "\
/reset         begin a new conversation
/adapter NAME  answer with another adapter, or with none; without NAME, list them
/help          this
/quit          leave (also Ctrl-D)
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
        self.model.one_adapter()?;
        let mut loaded = self.model.load_for_chat()?;
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
                "/help" => output::note(HELP),
                "/reset" => messages = begin(),
                command if command.split_whitespace().next() == Some("/adapter") => {
                    let name = command.split_whitespace().nth(1);
                    if let Err(e) = adapter(&mut loaded, name) {
                        failure::show(&e);
                    }
                }
                command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                    output::note(&format!("no command {command}; /help lists them"));
                }
                message => {
                    messages.push(Message::new("user", message));
                    let prompt = template.encode(&tokenizer, &messages).map_err(Into::into);
                    let answer =
                        prompt.and_then(|prompt| self.answer(&mut loaded, &tokenizer, &prompt));
                    match answer {
                        Ok(answer)
                            if answer.finish_reason == FinishReason::Cancelled
                                && !input.is_terminal() =>
                        {
                            return Ok(interrupt::status());
                        }
                        Ok(answer) => messages.push(Message::new("assistant", answer.text)),
                        // A person can say something else; a script would not know.
                        Err(e) if input.is_terminal() && !failure::reader_is_gone(&e) => {
                            failure::show(&e);
                            messages.pop();
                        }
                        Err(e) => return Err(e),
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
    ) -> Result<Generated> {
        let heeded = Heeded::new();
        let options = GenerateOptions {
            sampling: self.sampling.params(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            overflow: Overflow::Stop,
            cancel: Some(heeded.flag()),
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
            output::note("note: the context is full; /reset begins a new conversation");
        }
        Ok(generated)
    }
}

/// Changes to adapter `name`, or lists them, the one in use with a star.
fn adapter(loaded: &mut Loaded, name: Option<&str>) -> Result<()> {
    if let Some(name) = name {
        return loaded.use_adapter(name);
    }
    let used = loaded.adapter().unwrap_or(NONE);
    for name in loaded.adapter_names().iter().map(String::as_str).chain([NONE]) {
        output::note(&format!("{}{name}", if name == used { "* " } else { "  " }));
    }
    Ok(())
}

/// Where messages come from.
enum Input {
    /// A terminal, with the file of earlier lines; `None` where there can be none.
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    /// Anything else.
    Lines,
}

impl Input {
    fn open() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Lines);
        }
        let mut editor = Box::new(DefaultEditor::new()?);
        let history = open_history(&mut editor).map_err(|e| without_history(&e)).ok();
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
                        let added = editor.add_history_entry(&line)?;
                        if let Some(path) = history.as_ref().filter(|_| added)
                            && let Err(e) = editor.save_history(path)
                        {
                            without_history(&anyhow!(e).context(path.display().to_string()));
                            *history = None;
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

/// Loads the earlier lines and returns their file.
fn open_history(editor: &mut DefaultEditor) -> Result<PathBuf> {
    let directory = environment::cache_dir()?;
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let history = directory.join("chat-history.txt");
    if history.exists() {
        editor.load_history(&history).with_context(|| history.display().to_string())?;
    }
    Ok(history)
}

/// A conversation is worth having even where its lines cannot be kept.
fn without_history(error: &anyhow::Error) {
    output::note(&format!("note: lines are not kept: {error:#}"));
}
