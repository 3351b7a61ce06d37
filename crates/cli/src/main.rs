//! The `rigel` command: parses arguments, runs one subcommand, reports its error.

#![allow(rustdoc::broken_intra_doc_links, reason = "doc comments of arguments are help text")]

mod adapters;
mod chips;
mod commands;
mod destination;
mod devices;
mod environment;
mod executor;
mod failure;
mod interrupt;
mod loading;
mod output;
mod progress;
mod sampling_args;
mod scratch;
mod training;

use std::process::ExitCode;

use clap::Parser;

const ABOUT: &str = "Run and train small language models from GGUF, safetensors and llama2.c files, and run Core ML programs";

const AFTER_HELP: &str = "\
Examples:
  rigel generate \"Once upon a time\"
  rigel generate --model smollm2-135m \"The capital of France is\"
  rigel generate --chat --temperature 0 \"Name three colours.\"
  rigel chat --model smollm2-135m --system \"You answer briefly.\"
  rigel eval --model model.gguf --text wiki.test.raw --max-tokens 2048
  rigel inspect model.gguf
  rigel run model.mlpackage --input x=random --arithmetic fp16 --locate-nan
  rigel diff old.mlpackage new.mlpackage --input random --ops
  rigel check model.mlpackage --chip m4 --os macos15
  rigel convert smollm2-135m -o smollm2.mlpackage
  rigel train --arch tiny --data shakespeare.txt --out run
  rigel finetune smollm2-135m --data chats.jsonl --out run --lora r=16,alpha=32,targets=q,v

A model is named by a path (a .gguf or llama2.c file, or a directory with safetensors and
config.json), by an alias (see `rigel models`; rigel-stories is part of this program) or by a Hugging Face repository OWNER/REPOSITORY[:FILE].

Environment:
  RIGEL_CACHE    Where models fetched by alias and the history of chats are kept
  RIGEL_PYTHON   Python whose pip fetches them (default python3)
  HF_HOME, HF_ENDPOINT, HF_TOKEN   As for Hugging Face's own tools
  NO_COLOR       No colours, even on a terminal

Results go to standard output, all else to standard error.
Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted, 143 terminated; of diff 0 the same, 1 different, 2 failure;
of check 0 nothing denied, 1 something denied, 2 failure.";

/// The whole command line.
#[derive(Parser)]
#[command(name = "rigel", version, about = ABOUT, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let code = interrupt::handle().and_then(|()| command.run());
    let code = code.unwrap_or_else(|error| failure::report(&error));
    scratch::remove();
    code
}
