//! Fetching a model from a Hugging Face repository through `hf-hub`.

use std::path::PathBuf;

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo};

use crate::{Hub, HubError, Progress};

/// Files beside the weights that a model directory needs or may have.
const SIDE_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Fetches the model of repository `id`: `file` if given, else its only GGUF file, else its
/// safetensors with their configuration. Returns the file, or the directory of the snapshot.
pub(crate) fn fetch(
    hub: &Hub,
    id: &str,
    file: Option<&str>,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    let failed =
        |e: ApiError| HubError::Fetch { what: format!("repository {id}"), message: describe(&e) };
    let cache = match &hub.hf_home {
        Some(home) => Cache::new(home.join("hub")),
        None => Cache::default(),
    };
    let mut builder = ApiBuilder::from_cache(cache.clone()).with_progress(false).with_retries(3);
    if let Some(endpoint) = &hub.hf_endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if let Some(token) = &hub.hf_token {
        builder = builder.with_token(Some(token.clone()));
    }
    let cached = cache.model(id.to_owned());
    let repo = builder.build().map_err(failed)?.model(id.to_owned());
    if let Some(file) = file {
        return get(id, &repo, &cached, file, progress);
    }
    let listing = match repo.info() {
        Ok(info) => info.siblings.into_iter().map(|s| s.rfilename).collect::<Vec<_>>(),
        // Without a network a snapshot that is whole in the cache still serves.
        Err(e) => return snapshot(&cached).ok_or_else(|| failed(e)),
    };
    let wanted = choose(id, &listing)?;
    let mut paths = Vec::new();
    for name in &wanted {
        paths.push(get(id, &repo, &cached, name, progress)?);
    }
    match (&wanted[..], paths.pop()) {
        ([single], Some(path)) if single.ends_with(".gguf") => Ok(path),
        (_, Some(path)) => Ok(path.parent().map(PathBuf::from).unwrap_or(path)),
        (_, None) => Err(nothing(id, "has no files")),
    }
}

/// Names to fetch out of a repository's files.
fn choose(id: &str, listing: &[String]) -> Result<Vec<String>, HubError> {
    let top = |ending: &str| -> Vec<String> {
        listing.iter().filter(|f| !f.contains('/') && f.ends_with(ending)).cloned().collect()
    };
    let (gguf, weights) = (top(".gguf"), top(".safetensors"));
    match (&gguf[..], weights.is_empty()) {
        ([single], _) => Ok(vec![single.clone()]),
        (_, false) => {
            let sharded = listing.iter().any(|f| f == "model.safetensors.index.json");
            let keep = |f: &String| {
                SIDE_FILES.contains(&f.as_str())
                    || f == "model.safetensors.index.json"
                    || (f.starts_with("model")
                        && weights.contains(f)
                        && (sharded || f == "model.safetensors"))
            };
            Ok(listing.iter().filter(|f| keep(f)).cloned().collect())
        }
        ([], true) => Err(nothing(id, "has neither a .gguf file nor .safetensors weights")),
        (several, true) => Err(nothing(
            id,
            &format!("has several GGUF files; name one as {id}:FILE, of {}", several.join(", ")),
        )),
    }
}

fn nothing(id: &str, message: &str) -> HubError {
    HubError::Repository { repository: id.to_owned(), message: message.to_owned() }
}

/// The snapshot directory of a repository whose configuration and weights are in the cache.
fn snapshot(cached: &CacheRepo) -> Option<PathBuf> {
    let config = cached.get("config.json")?;
    cached.get("model.safetensors").or_else(|| cached.get("model.safetensors.index.json"))?;
    config.parent().map(PathBuf::from)
}

/// One file, from the cache or the network. Interrupted downloads continue where they stopped.
fn get(
    id: &str,
    repo: &ApiRepo,
    cached: &CacheRepo,
    file: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    if let Some(path) = cached.get(file) {
        return Ok(path);
    }
    repo.download_with_progress(file, Adapter { progress, begun: false })
        .map_err(|e| HubError::Fetch { what: format!("{id}:{file}"), message: describe(&e) })
}

fn describe(e: &ApiError) -> String {
    let text = e.to_string();
    if text.contains("401") || text.contains("403") {
        return format!(
            "access denied ({text}); a private or gated repository needs a token in HF_TOKEN"
        );
    }
    if text.contains("404") {
        return format!("not found ({text})");
    }
    text
}

/// Our progress in the downloader's form, which begins anew after each retry.
struct Adapter<'a> {
    progress: &'a dyn Progress,
    begun: bool,
}

impl hf_hub::api::Progress for Adapter<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !std::mem::replace(&mut self.begun, true) {
            self.progress.begin(filename, Some(size as u64));
        }
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {
        self.progress.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[&str]) -> Vec<String> {
        files.iter().map(|f| (*f).to_owned()).collect()
    }

    #[test]
    fn choice_of_files() {
        let one = listing(&["README.md", "m.Q4_K_M.gguf"]);
        assert_eq!(choose("o/r", &one).unwrap(), ["m.Q4_K_M.gguf"]);
        let hf = listing(&[
            "config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "tokenizer.json",
            "flax.msgpack",
            "model.fp32.safetensors",
        ]);
        assert_eq!(
            choose("o/r", &hf).unwrap(),
            ["config.json", "model.safetensors", "tokenizer.json"]
        );
        let several = choose("o/r", &listing(&["a.gguf", "b.gguf"])).unwrap_err().to_string();
        assert!(several.contains("o/r:FILE") && several.contains("a.gguf, b.gguf"), "{several}");
        assert!(choose("o/r", &listing(&["README.md"])).is_err());
    }
}
