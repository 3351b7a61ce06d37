//! What the environment says: directories, tokens, threads.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use hub::Hub;

/// The directory for fetched models: `RIGEL_CACHE`, or `rigel` in the platform's cache directory.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("RIGEL_CACHE").filter(|d| !d.is_empty()) {
        return Ok(dir.into());
    }
    let base = dirs::cache_dir().context(
        "this system names no cache directory; set RIGEL_CACHE to where models shall be kept",
    )?;
    Ok(base.join("rigel"))
}

/// The hub with the user's caches, token and Python.
pub(crate) fn hub() -> Result<Hub> {
    let text = |name: &str| env::var(name).ok().filter(|v| !v.is_empty());
    Ok(Hub {
        cache: cache_dir()?,
        python: text("RIGEL_PYTHON").unwrap_or_else(|| "python3".to_owned()),
        hf_home: env::var_os("HF_HOME").filter(|v| !v.is_empty()).map(PathBuf::from),
        hf_endpoint: text("HF_ENDPOINT"),
        hf_token: text("HF_TOKEN"),
    })
}

/// Processors that this process may use.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Processes that were started together with this one, itself among them, as the launchers of Open MPI and of MPICH
/// tell it; 0 if it was started alone.
pub(crate) fn processes() -> usize {
    let told = |name: &str| env::var(name).ok()?.parse().ok();
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(told).unwrap_or(0)
}
