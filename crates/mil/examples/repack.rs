//! Reads Core ML packages and writes them again: `repack SOURCE... DESTINATION`, where DESTINATION is
//! a folder. Packages with operations that the catalogue lacks are named and left out. With
//! `--bare` descriptions are left out too and follow from the programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rigel_mil::package::Package;
use rigel_mil::{Error, ErrorKind};

fn main() -> ExitCode {
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut bare = false;
    for arg in std::env::args_os().skip(1) {
        if arg == "--bare" {
            bare = true;
        } else {
            paths.push(arg.into());
        }
    }
    let Some((folder, sources)) = paths.split_last().filter(|(_, sources)| !sources.is_empty())
    else {
        eprintln!("usage: repack [--bare] SOURCE... DESTINATION");
        return ExitCode::from(2);
    };
    let mut failed = false;
    for source in sources {
        match repack(source, folder, bare) {
            Ok(()) => {}
            Err(e) if e.kind == ErrorKind::Unsupported => println!("left out: {e}"),
            Err(e) => {
                eprintln!("{e}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn repack(source: &Path, folder: &Path, bare: bool) -> Result<(), Error> {
    let mut package = Package::open(source)?;
    if bare {
        package.description = None;
    }
    // The stem may have dots, which `with_extension` would take for an extension.
    let mut name = source.file_stem().unwrap_or_default().to_owned();
    name.push(".mlpackage");
    package.save(folder.join(name))
}
