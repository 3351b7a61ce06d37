//! `rigel convert`: from one form of a Core ML program to another, and from a language model to a Core ML package
//! or a GGUF file.

use std::path::{Path, PathBuf};

use analysis::package_listing;
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use export::{Exported, Options, Precision, Role};
use import::ModelFile;
use llm::{LoadOptions, Model};
use mil::Opset;
use mil::package::Package;
use tensor::DType;

use crate::loading::open_model;
use crate::{destination, interrupt, output, progress};

/// The options of a package made of a language model.
const OF_PACKAGES: &str = "--target, --function, --prefill-length, --context and --precision";

/// Tokens of one call of prefill or score if no number is given.
const DEFAULT_LENGTH: usize = 64;

/// Slots of the cache if no number is given and the model allows as many.
const DEFAULT_CONTEXT: usize = 512;

/// Convert a Core ML program to a package or MIL text, or a language model to a Core ML package or GGUF
///
/// A language model becomes plain MIL with the functions prefill and decode, which share their weights and keep
/// keys and values in the states k_cache and v_cache. They take ids and the position of the first of them. One in
/// the form of Hugging Face becomes a GGUF file as llama.cpp's converter makes it, tokenizer included.
#[derive(Args)]
pub(crate) struct Convert {
    /// Path of a .mlpackage, .mlmodelc, .mlmodel or .mil; or of a language model: path, alias or Hugging Face
    /// repository
    source: String,
    /// What to write: NAME.mlpackage, NAME.mil with its weights in weights/weight.bin beside it, or NAME.gguf
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// Of the matrices in a .gguf [default: as they are]
    #[arg(long, value_enum, value_name = "TYPE")]
    quantize: Option<Quantized>,
    #[command(flatten)]
    model: ModelOptions,
}

/// How a language model is converted.
#[derive(Args, Default)]
#[command(next_help_heading = "Of a language model")]
pub(super) struct ModelOptions {
    /// Oldest system that shall run it: ios18 or ios26; ios15 to ios17 for score alone [default: ios18]
    #[arg(long, value_name = "OS", value_parser = target)]
    target: Option<Opset>,
    /// A function of the package, again for several [default: prefill and decode]; one alone is called main
    #[arg(long, value_enum, value_name = "NAME")]
    function: Vec<Function>,
    /// Tokens that prefill (and score) takes at once [default: 64]
    #[arg(long, value_name = "N")]
    prefill_length: Option<usize>,
    /// Longest sequence in tokens [default: 512]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Of weights and arithmetic [default: fp16]
    #[arg(long, value_enum)]
    precision: Option<Width>,
}

/// A type of matrices in GGUF.
#[derive(Clone, Copy, ValueEnum)]
enum Quantized {
    /// 8 bits and for 32 of them a scale: a quarter of single precision
    #[value(name = "q8_0")]
    Q8_0,
    /// Half precision
    F16,
}

impl From<Quantized> for DType {
    fn from(quantized: Quantized) -> Self {
        match quantized {
            Quantized::Q8_0 => DType::Q8_0,
            Quantized::F16 => DType::F16,
        }
    }
}

/// A function of a language model.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Function {
    /// Takes several tokens, extends the cache, returns the logits of the last
    Prefill,
    /// Takes one token, extends the cache, returns its logits
    Decode,
    /// Takes several tokens, returns the logits of each, without a cache
    Score,
}

impl From<Function> for Role {
    fn from(function: Function) -> Self {
        match function {
            Function::Prefill => Role::Prefill,
            Function::Decode => Role::Decode,
            Function::Score => Role::Score,
        }
    }
}

/// A precision.
#[derive(Clone, Copy, ValueEnum)]
enum Width {
    /// Half, as the Neural Engine computes
    Fp16,
    /// Single, for comparison
    Fp32,
}

fn target(name: &str) -> Result<Opset, String> {
    let known = || Opset::ALL.map(Opset::name).join(", ");
    name.parse().map_err(|()| format!("is none of {}", known()))
}

/// What is written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Package,
    Text,
    Gguf,
}

impl Convert {
    pub(super) fn run(&self) -> Result<()> {
        let form = form(&self.output)?;
        if form == Form::Gguf {
            return self.gguf();
        }
        ensure!(self.quantize.is_none(), "--quantize is for .gguf files");
        let package = match package_listing::recognised(Path::new(&self.source)) {
            Some(source) => {
                destination::check(&self.output, form == Form::Text, source, self.force)?;
                self.model.refuse_any()?;
                let package = Package::open(source)?;
                mil::verify(&package.program).map_err(|e| e.in_file(source))?;
                package
            }
            None => {
                let source = open_model(&self.source)?;
                destination::check(&self.output, form == Form::Text, source.path(), self.force)?;
                let exported = progress::spin("converting", || self.model.export(source))?;
                exported.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
                exported.package
            }
        };
        progress::spin("writing", || {
            interrupt::after(|| match form {
                Form::Text => package.save_text(&self.output),
                Form::Package | Form::Gguf => package.save(&self.output),
            })
        })?;
        output::remark(&format!("wrote {}", self.output.display()));
        Ok(())
    }

    /// Writes a language model as GGUF.
    fn gguf(&self) -> Result<()> {
        if let Some(program) = package_listing::recognised(Path::new(&self.source)) {
            bail!("{}: a Core ML program has no form in GGUF", program.display());
        }
        ensure!(!self.model.is_given(), "{OF_PACKAGES} are for Core ML packages");
        let source = open_model(&self.source)?;
        destination::check(&self.output, false, source.path(), self.force)?;
        progress::spin("writing", || {
            let model = Model::from_file(source, LoadOptions::default())?;
            let tokenizer = model.tokenizer(None)?;
            let matrices = self.quantize.map(DType::from);
            interrupt::after(|| model.write_gguf(&tokenizer, matrices, &self.output))
        })?;
        output::remark(&format!("wrote {}", self.output.display()));
        Ok(())
    }
}

impl ModelOptions {
    fn is_given(&self) -> bool {
        self.target.is_some()
            || !self.function.is_empty()
            || self.prefill_length.is_some()
            || self.context.is_some()
            || self.precision.is_some()
    }

    fn refuse_any(&self) -> Result<()> {
        ensure!(
            !self.is_given(),
            "{OF_PACKAGES} are for language models; a Core ML program is converted as it is"
        );
        Ok(())
    }

    /// Converts the language model in `source`.
    pub(super) fn export(&self, source: ModelFile) -> Result<Exported> {
        let (precision, cache_dtype) = match self.precision {
            None | Some(Width::Fp16) => (Precision::Fp16, DType::F16),
            Some(Width::Fp32) => (Precision::Fp32, DType::F32),
        };
        let model = Model::from_file(source, LoadOptions { cache_dtype })?;
        let max = model.config().max_context;
        let mut functions: Vec<Role> = self.function.iter().map(|&f| f.into()).collect();
        if functions.is_empty() {
            functions = vec![Role::Prefill, Role::Decode];
        }
        let context = self.context.unwrap_or(DEFAULT_CONTEXT.min(max));
        let options = Options {
            target: self.target.unwrap_or(Opset::Ios18),
            functions,
            length: self.prefill_length.unwrap_or(DEFAULT_LENGTH.min(context)),
            context,
            precision,
        };
        Ok(export::export(&model, &options)?)
    }
}

/// What the ending of the destination's name asks for.
fn form(path: &Path) -> Result<Form> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("mlpackage") => Ok(Form::Package),
        Some("mil") => Ok(Form::Text),
        Some("gguf") => Ok(Form::Gguf),
        Some("mlmodelc") => {
            bail!("{}: only Apple's compiler makes .mlmodelc; write a .mlpackage", path.display())
        }
        _ => bail!("{}: must end with .mlpackage, .mil or .gguf", path.display()),
    }
}
