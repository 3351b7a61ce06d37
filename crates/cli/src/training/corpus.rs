//! The data of a run: from what the user names to token files and the batches made of them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use import::ModelFile;
use llm::template::{ChatTemplate, Message};
use llm::tokenizer::MadeTokenizer;
use llm::{Tokenizer, interface};
use serde::{Deserialize, Serialize};
use train::data::{
    Dataset, InputNames, Kind, Loader, Packing, Piece, TokenFile, TokenWriter, Tokenization,
    Tokenized, files, texts, tokenize,
};

use super::settings::Settings;
use crate::{output, progress};

/// The ending of token files.
const TOKENS: &str = "bin";

/// What to train on.
#[derive(Args, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataArgs {
    /// Text (.txt, .md, any other), JSON lines (.jsonl: text, prompt and completion, or messages), directories of
    /// those, or token files (.bin) that `rigel data tokenize` made
    #[arg(long, value_name = "PATH", num_args = 1.., required_unless_present = "resume")]
    pub(crate) data: Vec<PathBuf>,
    /// The same to evaluate on, instead of a part of --data
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) eval_data: Vec<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) separator: SeparatorArgs,
}

impl DataArgs {
    /// The same by paths that hold wherever the program is started, where there is something.
    pub(super) fn absolute(&self) -> Self {
        let real = |paths: &[PathBuf]| {
            paths.iter().map(|p| p.canonicalize().unwrap_or_else(|_| p.clone())).collect()
        };
        DataArgs { data: real(&self.data), eval_data: real(&self.eval_data), ..self.clone() }
    }
}

/// What parts documents.
#[derive(Args, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SeparatorArgs {
    /// What parts the documents in a text file, such as <|endoftext|>; else a file is one
    #[arg(long, value_name = "TEXT")]
    pub(crate) separator: Option<String>,
}

impl SeparatorArgs {
    /// # Errors
    /// When a separator is given for data that is no text.
    pub(crate) fn for_text(&self, text: bool) -> Result<()> {
        ensure!(
            text || self.separator.is_none(),
            "--separator is for text, and the data is tokens already"
        );
        Ok(())
    }
}

/// The tokenizer of a new model.
#[derive(Args, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[group(multiple = false, conflicts_with = "resume")]
#[command(next_help_heading = "Data")]
pub(crate) struct TokenizerArgs {
    /// An existing one: tokenizer.json or SentencePiece's tokenizer.model
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A new one of N ids, by byte-level BPE on --data
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// A new one whose tokens are the characters of --data; others, in --eval-data or a prompt, are errors
    #[arg(long)]
    chars: bool,
}

impl TokenizerArgs {
    fn says_nothing(&self) -> bool {
        self.tokenizer.is_none() && self.vocab.is_none() && !self.chars
    }

    /// What is said here, or else what `other` says, unless that makes a tokenizer and the data is tokens already.
    ///
    /// # Errors
    /// As for [`are_tokens`].
    pub(crate) fn or_of<'a>(&'a self, other: &'a Self, data: &[PathBuf]) -> Result<&'a Self> {
        let takes_other = self.says_nothing() && (other.tokenizer.is_some() || !are_tokens(data)?);
        Ok(if takes_other { other } else { self })
    }

    /// Puts the tokenizer's files into the directory `dir` and opens it; `None` where token files are to be
    /// trained on and none is named.
    ///
    /// # Errors
    /// When there is none for text, or it cannot be read, made or written.
    pub(crate) fn place(&self, data: &[PathBuf], dir: &Path) -> Result<Option<Tokenizer>> {
        let place = dir.join("tokenizer.json");
        // On the command line they exclude each other; a file of an architecture can have them all.
        let said = [self.tokenizer.is_some(), self.vocab.is_some(), self.chars];
        ensure!(
            said.iter().filter(|&&said| said).count() < 2,
            "[tokenizer]: of tokenizer, vocab and chars there is one at most"
        );
        if let Some(file) = &self.tokenizer {
            // What it is; a copy under another name would not be found beside the weights.
            Tokenizer::from_file(file)?;
            let bytes = fs::read(file)?;
            let name = match (bytes.first(), bytes.trim_ascii_start().first()) {
                // The first field of SentencePiece's file, of a length.
                (Some(b'\n'), first) if first != Some(&b'{') => "tokenizer.model",
                (_, Some(b'{')) => "tokenizer.json",
                _ => bail!(
                    "{}: only tokenizer.json and SentencePiece's tokenizer.model can stand beside weights",
                    file.display()
                ),
            };
            copy(file, &dir.join(name))?;
            for beside in ["tokenizer_config.json", "chat_template.jinja"] {
                let beside_it = file.with_file_name(beside);
                if beside_it.is_file() {
                    copy(&beside_it, &dir.join(beside))?;
                }
            }
            return Ok(Some(Tokenizer::from_file(dir.join(name))?));
        }
        if are_tokens(data)? {
            let named = if self.chars { Some("--chars") } else { self.vocab.map(|_| "--vocab") };
            if let Some(named) = named {
                bail!("{named} makes a tokenizer from text, and the data is tokens already");
            }
            return Ok(None);
        }
        ensure!(
            self.vocab.is_some() || self.chars,
            "text needs a tokenizer: --tokenizer FILE, --vocab N for a new one, or --chars"
        );
        for path in data {
            let kind = fs::metadata(path).with_context(|| format!("{}", path.display()))?;
            ensure!(
                kind.is_file() || kind.is_dir(),
                "{}: is a pipe or device, which is read once, and a tokenizer is made from the text before that is \
                 tokenized; write it to a file, or name a tokenizer with --tokenizer",
                path.display()
            );
        }
        make(data, self.vocab)?.write(dir)?;
        Ok(Some(Tokenizer::from_file(place)?))
    }
}

/// A new tokenizer from the text in `data`: byte-level BPE of `vocab` ids, or one of characters.
///
/// # Errors
/// When something cannot be read, or no tokenizer comes of it.
pub(crate) fn make(data: &[PathBuf], vocab: Option<usize>) -> Result<MadeTokenizer> {
    let mut failed = None;
    let texts = texts(data)?.map_while(|text| text.map_err(|e| failed = Some(e)).ok());
    let made = progress::spin("making a tokenizer", || match vocab {
        Some(vocab) => MadeTokenizer::byte_level_bpe(texts, vocab),
        None => MadeTokenizer::characters(texts),
    });
    if let Some(failed) = failed {
        return Err(failed.into());
    }
    let made = made?;
    if let Some(vocab) = vocab.filter(|&vocab| vocab > made.vocab_size()) {
        let ids = made.vocab_size();
        output::note(&format!(
            "note: {ids} ids come of the text, not {vocab}: it has no more pairs"
        ));
    }
    Ok(made)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{}: cannot copy", from.display()))?;
    Ok(())
}

/// Whether the files at `paths` are token files; all must be alike.
///
/// # Errors
/// When some are and others not, or one is not there.
pub(crate) fn are_tokens(paths: &[PathBuf]) -> Result<bool> {
    let files = files(paths)?;
    let find = |tokens: bool| files.iter().find(|f| (f.kind == Kind::Tokens) == tokens);
    if let (Some(text), Some(tokens)) = (find(false), find(true)) {
        let [text, tokens] = [text, tokens].map(|file| file.path.display());
        bail!(
            "some of the data is text ({text}) and some is tokens ({tokens}); tokenize all or none"
        );
    }
    Ok(find(true).is_some())
}

/// The ids of the token files at `paths`.
///
/// # Errors
/// When one cannot be read.
pub(crate) fn vocab_of(paths: &[PathBuf]) -> Result<usize> {
    let mut vocab = 0;
    for file in files(paths)? {
        vocab = vocab.max(TokenFile::open(&file.path)?.vocab());
    }
    Ok(vocab)
}

/// How text becomes tokens.
pub(crate) struct Words<'a> {
    /// The tokenizer.
    pub(crate) tokenizer: &'a Tokenizer,
    /// The model, which may bring a chat template.
    pub(crate) model: Option<&'a ModelFile>,
    /// Ids of the model.
    pub(crate) vocab: usize,
    /// What parts documents.
    pub(crate) separator: Option<&'a str>,
}

impl Words<'_> {
    /// Writes the documents in `paths` to token files named after `to`, of at least `shard` tokens if that is
    /// given, and returns them.
    ///
    /// # Errors
    /// When something cannot be read, tokenized or written.
    pub(crate) fn write(
        &self,
        paths: &[PathBuf],
        to: &Path,
        shard: Option<usize>,
    ) -> Result<(Vec<PathBuf>, Tokenized)> {
        let tokenizer = self.tokenizer;
        let encode = |text: &str, control: bool| {
            let ids = match control {
                true => tokenizer.encode_with_control(text, false),
                false => tokenizer.encode(text, false),
            };
            ids.map_err(|e| e.to_string())
        };
        let template = self.model.map(ChatTemplate::for_model);
        let render = |messages: &serde_json::Value| {
            let template = match &template {
                Some(Ok(template)) => template,
                Some(Err(e)) => return Err(e.to_string()),
                None => return Err("is a chat, and there is no chat template".to_owned()),
            };
            let messages = Vec::<Message>::deserialize(messages).map_err(|e| e.to_string())?;
            let parts = template.parts(tokenizer, &messages).map_err(|e| e.to_string())?;
            Ok(parts.into_iter().map(|(text, counts)| Piece { text, counts }).collect())
        };
        let how = Tokenization {
            encode: &encode,
            chat: Some(&render),
            begin: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
            end: tokenizer.eos(),
            separator: self.separator,
        };
        let mut writer = TokenWriter::new(to, self.vocab, shard)?;
        let done = progress::spin("tokenizing", || tokenize(paths, &how, &mut writer))?;
        let files = writer.finish()?;
        Ok((files, done))
    }

    /// The token files at `paths`, or those made of the text there, as `NAME.bin` in `data/` of the run that is
    /// being made in `run`; named from there.
    ///
    /// # Errors
    /// As for [`Words::write`].
    pub(crate) fn place(&self, paths: &[PathBuf], run: &Path, name: &str) -> Result<Vec<PathBuf>> {
        if paths.is_empty() || are_tokens(paths)? {
            return tokens(paths);
        }
        let at = Path::new("data").join(name).with_extension(TOKENS);
        fs::create_dir_all(run.join("data"))?;
        let (_, done) = self.write(paths, &run.join(&at), None)?;
        output::remark(&said(&done));
        Ok(vec![at])
    }
}

/// The token files at `paths`, by names that hold wherever the program is started.
///
/// # Errors
/// When one is not there.
pub(crate) fn tokens(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let real = |p: &PathBuf| p.canonicalize().with_context(|| format!("{}", p.display()));
    paths.iter().map(real).collect()
}

/// A line about what was tokenized.
pub(crate) fn said(done: &Tokenized) -> String {
    let Tokenized { files, documents, tokens, counted } = done;
    let some =
        if counted < tokens { format!(", {counted} to be predicted") } else { String::new() };
    format!("{tokens} tokens{some}, documents: {documents}, files: {files}")
}

/// The batches of a run.
pub(crate) struct Batches {
    /// To train on.
    pub(crate) train: Loader,
    /// To evaluate on.
    pub(crate) held_out: Option<Loader>,
    /// Tokens to train on, and to evaluate on.
    pub(crate) tokens: [usize; 2],
    /// Whether a sequence may hold several documents.
    pub(crate) documents: bool,
    /// Documents to train on that no sequence holds whole, of how many.
    pub(crate) cut: [usize; 2],
}

impl Batches {
    /// The batches of the run in `dir`, for a model of `vocab` ids and the process `rank` of the run's.
    ///
    /// # Errors
    /// When a file is missing or damaged, or there is too little in it.
    pub(crate) fn open(dir: &Path, settings: &Settings, vocab: usize, rank: usize) -> Result<Self> {
        let open = |paths: &[PathBuf]| {
            let paths: Vec<PathBuf> = paths.iter().map(|p| dir.join(p)).collect();
            Dataset::open(&paths, vocab)
        };
        let recipe = &settings.recipe;
        let whole = open(&settings.data)?;
        let (data, held_out) = match &settings.eval_data[..] {
            [] if recipe.held_out == 0.0 => (whole, None),
            [] => {
                let (data, held_out) = whole.split(recipe.held_out)?;
                (data, Some(held_out))
            }
            paths => (whole, Some(open(paths)?)),
        };
        // A single document fills sequences by itself, and attention need not be kept inside of it.
        let documents =
            data.documents() > 1 || held_out.as_ref().is_some_and(|d| d.documents() > 1);
        let names = InputNames {
            ids: interface::IDS.to_owned(),
            targets: interface::TARGETS.to_owned(),
            positions: interface::POSITIONS.to_owned(),
            segments: documents.then(|| interface::SEGMENTS.to_owned()),
        };
        let packing = Packing {
            sequences: recipe.batch,
            tokens: recipe.seq_len,
            seed: Some(recipe.seed),
            rank: (rank, settings.processes),
            names,
        };
        let longer = if documents { data.longer_than(recipe.seq_len) } else { 0 };
        let cut = [longer, data.documents()];
        let evaluated = Packing { seed: None, ..packing.clone() };
        let tokens = [data.tokens(), held_out.as_ref().map_or(0, Dataset::tokens)];
        let held_out = held_out
            .map(|d| Loader::held_out(d, evaluated))
            .transpose()
            .context("held-out data (--held-out, --eval-data)")?;
        Ok(Batches { train: Loader::new(data, packing)?, held_out, tokens, documents, cut })
    }
}
