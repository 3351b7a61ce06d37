//! `cargo xtask tidy`: the rules of the repository that no compiler or linter checks.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::graph;

/// Lines a Rust file may have; a longer one does more than one job.
const MAX_LINES: usize = 800;

/// Crates whose code may be `unsafe`: byte views, vector kernels, the foreign interface and, for its tests, what is on
/// the other side of it.
const UNSAFE: [&str; 4] = ["tensor", "kernels", "ane-port", "mini-objc"];

/// Names of model families, which only `llm` may know (`import` knows file formats named so).
const FAMILIES: [&str; 7] = ["llama", "gpt2", "qwen", "gemma", "mistral", "smollm", "tinyllama"];

/// Checks everything and prints one line for each problem.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut problems = Vec::new();
    graph::check(&mut problems)?;
    let files = Command::new("git").args(["ls-files", "-z"]).output().context("git ls-files")?;
    for file in String::from_utf8(files.stdout)?.split_terminator('\0') {
        let extension = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or("");
        if !["rs", "md", "toml", "py", "sh", "yml"].contains(&extension)
            || !Path::new(file).exists()
        {
            continue;
        }
        let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
        whitespace(file, &text, &mut problems);
        match extension {
            "rs" => rust(file, &text, &mut problems),
            "md" => links(file, &text, &mut problems),
            _ => {}
        }
    }
    commands(&mut problems)?;
    for problem in &problems {
        eprintln!("{problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn whitespace(file: &str, text: &str, problems: &mut Vec<String>) {
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(format!("{file}:{}: space at the end of the line", i + 1));
        }
    }
    if !text.ends_with('\n') || text.ends_with("\n\n") {
        problems.push(format!("{file}: does not end with exactly one newline"));
    }
}

fn rust(file: &str, text: &str, problems: &mut Vec<String>) {
    let mut problem =
        |line: usize, what: &str| problems.push(format!("{file}:{}: {what}", line + 1));
    if !text.starts_with("//!") {
        problem(0, "the first line does not say the file's job (`//! …`)");
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problem(0, &format!("{lines} lines, more than {MAX_LINES}: split it by job"));
    }
    let mut parts = file.split('/');
    let crate_name = match (parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some(name), Some("src")) => name,
        _ => "",
    };
    // Tests and examples too.
    let owner = file.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("");
    let library = !matches!(crate_name, "" | "cli" | "testkit" | "mini-objc");
    let family_blind =
        !matches!(crate_name, "" | "cli" | "testkit" | "mini-objc" | "llm" | "import" | "hub");
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        // What follows is tests, which may name what they like.
        if code.trim() == "#[cfg(test)]" {
            break;
        }
        if code.contains(concat!("#[", "ignore")) {
            problem(i, "an ignored test");
        }
        if code.contains(concat!("allow(", "unsafe_code)")) && !UNSAFE.contains(&owner) {
            problem(i, "unsafe code outside the crates that may have it");
        }
        let prints = ["println!(", "print!("].iter().any(|p| code.contains(p));
        if library && (prints || code.contains("env::var")) {
            problem(i, "only cli prints and reads the environment");
        }
        let lower = code.to_lowercase();
        if family_blind && let Some(name) = FAMILIES.iter().find(|f| lower.contains(**f)) {
            problem(i, &format!("names a model family ({name}); only llm/src/arch knows those"));
        }
    }
}

/// Relative links in Markdown must lead somewhere.
fn links(file: &str, text: &str, problems: &mut Vec<String>) {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    for rest in text.split("](").skip(1) {
        let target = rest.split([')', '#']).next().unwrap_or("");
        if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
            problems.push(format!("{file}: link to {target}, which does not exist"));
        }
    }
}

/// The commands in the README's `sh` blocks are those that CI runs, word for word.
fn commands(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let (readme, ci) = (std::fs::read_to_string("README.md")?, std::fs::read_to_string(".ci/run")?);
    for block in readme.split("```sh\n").skip(1) {
        for line in block.split("```").next().unwrap_or("").lines() {
            if !line.is_empty() && !ci.lines().any(|l| l.trim() == line) {
                problems.push(format!("README.md: CI does not run `{line}`"));
            }
        }
    }
    Ok(())
}
