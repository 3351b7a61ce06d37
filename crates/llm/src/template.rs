//! Chat templates: the Jinja source that a model brings, rendered as Hugging Face renders it.

use std::path::{Path, PathBuf};

use import::ModelFile;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind as JinjaErrorKind};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Tokenizer};

/// One turn of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// What goes into a template apart from the messages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options<'a> {
    /// Whether the text ends with the beginning of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Tool descriptions, as a JSON list. The keys of its objects are rendered in alphabetical order.
    pub tools: Option<&'a serde_json::Value>,
    /// What `bos_token` stands for.
    pub bos_token: &'a str,
    /// What `eos_token` stands for.
    pub eos_token: &'a str,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    file: PathBuf,
    environment: Environment<'static>,
}

/// The role of the messages that a model writes.
const ASSISTANT: &str = "assistant";
/// The name of the one template in the environment.
const NAME: &str = "chat_template";
/// Work that one rendering may do: about as many instructions, or 64 bytes each. Templates come from strangers, and
/// one that does not end or doubles a text without end must fail; this is a second's work, or 256 MB.
const FUEL: u64 = 4_000_000;
/// Bytes that `tojson` may write at once; fuel counts only what a filter returns.
const MAX_JSON: usize = 16 << 20;
/// Spaces that `tojson` may indent by.
const MAX_INDENT: usize = 64;
/// The key of GGUF metadata.
pub(crate) const GGUF_KEY: &str = "tokenizer.chat_template";

impl ChatTemplate {
    /// Compiles `source`; `file` stands for it in errors.
    ///
    /// # Errors
    /// When it is not Jinja.
    pub fn new(file: impl Into<PathBuf>, source: impl Into<String>) -> Result<Self> {
        let file = file.into();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::bug(one_line(&e)))?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", to_json);
        environment.add_function(
            "raise_exception",
            |why: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(JinjaErrorKind::InvalidOperation, why))
            },
        );
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, source.into())
            .map_err(|e| Error::invalid(&file, format!("chat template: {}", one_line(&e))))?;
        Ok(ChatTemplate { file, environment })
    }

    /// The template of `model`: of a GGUF file's metadata, or of `chat_template.jinja` or
    /// `tokenizer_config.json` in its directory.
    ///
    /// # Errors
    /// When the model has none (a base model is not made for chat), or it is broken.
    pub fn for_model(model: &ModelFile) -> Result<Self> {
        let Some((file, source)) = source_in(model)? else {
            let why = "the model has no chat template: it is a base model, made to continue text";
            return Err(Error::invalid(model.path(), why));
        };
        Self::new(file, source)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// When the template refuses the messages, with its own words, or cannot be rendered.
    pub fn render(&self, messages: &[Message], options: &Options<'_>) -> Result<String> {
        let context = minijinja::context! {
            messages => Serde(messages),
            add_generation_prompt => options.add_generation_prompt,
            tools => Serde(options.tools),
            bos_token => options.bos_token,
            eos_token => options.eos_token,
        };
        let rendered = self.environment.get_template(NAME).and_then(|t| t.render(context));
        rendered.map_err(|e| {
            Error::request(format!("{}: chat template: {}", self.file.display(), one_line(&e)))
        })
    }

    /// The ids of a conversation up to the assistant's next turn. The template writes all control tokens, BOS
    /// included; names of control tokens in the messages become those tokens too.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Vec<u32>> {
        let text = self.render_for(tokenizer, messages, true)?;
        tokenizer.encode_with_control(&text, false)
    }

    /// A whole conversation in parts, to be trained on: the text of each, and whether it is the assistant's, with
    /// what ends its turn. What the template writes to begin such a turn belongs to the part before.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`]; `unsupported` when a turn is written otherwise once others follow it,
    /// or does not begin as the template lets an assistant begin.
    pub fn parts(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
    ) -> Result<Vec<(String, bool)>> {
        let whole = self.render_for(tokenizer, messages, false)?;
        let (mut parts, mut done) = (Vec::new(), 0);
        for (i, _) in messages.iter().enumerate().filter(|(_, m)| m.role == ASSISTANT) {
            let before = self.render_for(tokenizer, &messages[..i], true)?;
            let through = self.render_for(tokenizer, &messages[..=i], false)?;
            if !through.starts_with(&before) || !whole.starts_with(&through) {
                let why = format!(
                    "chat template: message {} is written otherwise in the whole conversation, so it is \
                     not known what of it is the assistant's",
                    i + 1
                );
                return Err(Error::unsupported(&self.file, why));
            }
            parts.push((whole[done..before.len()].to_owned(), false));
            parts.push((whole[before.len()..through.len()].to_owned(), true));
            done = through.len();
        }
        parts.push((whole[done..].to_owned(), false));
        parts.retain(|(text, _)| !text.is_empty());
        Ok(parts)
    }

    /// The text of a conversation with the control tokens that `tokenizer` has.
    fn render_for(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let name =
            |id: Option<u32>| id.and_then(|id| tokenizer.id_to_piece(id)).unwrap_or_default();
        let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
        let options =
            Options { add_generation_prompt, tools: None, bos_token: &bos, eos_token: &eos };
        self.render(messages, &options)
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = import::map_file(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|e| Error::invalid(path, e.to_string()))?;
    Ok(text.to_owned())
}

/// The template of a model as it stands in its file, and which that is.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn source_in(model: &ModelFile) -> Result<Option<(PathBuf, String)>> {
    Ok(match model {
        ModelFile::Gguf(gguf) => gguf
            .metadata()
            .find::<&str>(GGUF_KEY)?
            .map(|source| (gguf.path().to_owned(), source.to_owned())),
        ModelFile::HuggingFace(dir) => {
            let files = dir.side_files();
            match (&files.chat_template, &files.tokenizer_config) {
                (Some(path), _) => Some((path.clone(), read_text(path)?)),
                (None, Some(path)) => of_config(path)?.map(|source| (path.clone(), source)),
                (None, None) => None,
            }
        }
        ModelFile::Llama2c(_) => None,
    })
}

/// The template in a `tokenizer_config.json`: a string, or the default of a list of named ones.
fn of_config(path: &Path) -> Result<Option<String>> {
    let config: serde_json::Value = import::read_json(path)?;
    let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
    Ok(match &config["chat_template"] {
        serde_json::Value::Array(named) => {
            let default = named.iter().find(|t| t["name"] == "default");
            default.and_then(|t| text(&t["template"]))
        }
        one => text(one),
    })
}

fn one_line(error: &minijinja::Error) -> String {
    if error.kind() == JinjaErrorKind::OutOfFuel {
        return "does not end, or makes more text than a conversation can have".to_owned();
    }
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let place = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{detail}{place}").replace('\n', " ")
}

/// The time of day by a `strftime` format.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    let now = jiff::ZonedDateTime::now();
    jiff::fmt::strtime::format(format, &now)
        .map_err(|e| minijinja::Error::new(JinjaErrorKind::InvalidOperation, e.to_string()))
}

/// JSON as Python's `json.dumps` writes it, with `ensure_ascii` off: Jinja's own filter escapes HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // What else `json.dumps` takes is of no consequence here.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut out = Bounded(Vec::new());
    let bad = |e: serde_json::Error| {
        minijinja::Error::new(JinjaErrorKind::BadSerialization, e.to_string())
    };
    match indent {
        Some(width) if width > MAX_INDENT => {
            let why = format!("tojson indents by {width}, at most {MAX_INDENT}");
            return Err(minijinja::Error::new(JinjaErrorKind::InvalidOperation, why));
        }
        Some(width) => {
            let pad = " ".repeat(width);
            let pretty = serde_json::ser::PrettyFormatter::with_indent(pad.as_bytes());
            let mut json = serde_json::Serializer::with_formatter(&mut out, pretty);
            value.serialize(&mut json).map_err(bad)?;
        }
        None => {
            let mut json = serde_json::Serializer::with_formatter(&mut out, Spaced);
            value.serialize(&mut json).map_err(bad)?;
        }
    }
    String::from_utf8(out.0)
        .map_err(|e| minijinja::Error::new(JinjaErrorKind::BadSerialization, e.to_string()))
}

/// Takes bytes up to [`MAX_JSON`].
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_JSON {
            return Err(std::io::Error::other(format!("tojson makes over {MAX_JSON} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One line with a space after `,` and `:`.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W>(&mut self, out: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W>(&mut self, out: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W>(&mut self, out: &mut W) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        out.write_all(b": ")
    }
}
