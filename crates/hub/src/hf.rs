//! Fetching a model from a Hugging Face repository through `hf-hub`.

use std::collections::BTreeSet;
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

/// Fetches the model of repository `id`: `file` if given, else its only GGUF model, else its
/// safetensors with their configuration. Of a split GGUF model all files are fetched. Returns the
/// (first) file, or the directory of the snapshot.
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
    let fetch_all = |names: &[String]| -> Result<Vec<PathBuf>, HubError> {
        names.iter().map(|name| get(id, &repo, &cached, name, progress)).collect()
    };
    if let Some(file) = file {
        let paths = fetch_all(&split_files(file).unwrap_or_else(|| vec![file.to_owned()]))?;
        return paths.into_iter().next().ok_or_else(|| nothing(id, "has no files"));
    }
    let listing = match repo.info() {
        Ok(info) => info.siblings.into_iter().map(|s| s.rfilename).collect::<Vec<_>>(),
        // Without a network a snapshot that is whole in the cache still serves.
        Err(e) => return snapshot(&cached).ok_or_else(|| failed(e)),
    };
    let wanted = choose(id, &listing)?;
    match fetch_all(&wanted)?.into_iter().next() {
        Some(path) if path.extension().is_some_and(|e| e == "gguf") => Ok(path),
        Some(path) => Ok(path.parent().map(PathBuf::from).unwrap_or(path)),
        None => Err(nothing(id, "has no files")),
    }
}

/// The names of all files of the split GGUF model of which `file`, by its name, is one:
/// `NAME-00001-of-00003.gguf` and so on.
fn split_files(file: &str) -> Option<Vec<String>> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    let total: usize = count.parse().ok()?;
    Some((1..=total).map(|n| format!("{name}-{n:05}-of-{count}.gguf")).collect())
}

/// Names to fetch out of a repository's files.
fn choose(id: &str, listing: &[String]) -> Result<Vec<String>, HubError> {
    let top = |ending: &str| -> Vec<String> {
        listing.iter().filter(|f| !f.contains('/') && f.ends_with(ending)).cloned().collect()
    };
    let (gguf, weights) = (top(".gguf"), top(".safetensors"));
    // The files of one split model are one model.
    if let Some(files) = gguf.first().and_then(|first| split_files(first))
        && files.iter().eq(gguf.iter().collect::<BTreeSet<_>>())
    {
        return Ok(files);
    }
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
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(choose("o/r", &listing(&[split[1], "README.md", split[0]])).unwrap(), split);
        assert!(choose("o/r", &listing(&[split[0], split[1], "n.gguf"])).is_err());
    }

    #[test]
    fn names_of_split_models() {
        let all =
            ["q4/m-00001-of-00003.gguf", "q4/m-00002-of-00003.gguf", "q4/m-00003-of-00003.gguf"];
        assert_eq!(split_files(all[1]).unwrap(), all);
        for single in ["m.gguf", "m-1-of-3.gguf", "m-00001-of-00003.bin", "best-of-breed.gguf"] {
            assert_eq!(split_files(single), None, "{single}");
        }
    }
}
