//! Every shared Core ML package: read, printed, read from that text, written and read again.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use mil::package::Package;
use mil::package::blob::BlobFile;
use mil::text::{Dialect, parse};
use mil::{Error, ErrorKind, OpKind};
use prost::Message;

use crate::common::{artefacts, same_program, weights_of};

/// Packages whose operations must all be in the catalogue; to be raised as it grows.
const AT_LEAST: usize = 296;

fn packages() -> Vec<PathBuf> {
    artefacts().into_iter().map(|p| p.with_extension("mlpackage")).collect()
}

/// The operations of a package that the catalogue lacks, found without the reader.
fn missing(package: &std::path::Path) -> BTreeSet<String> {
    fn walk(block: &mil::package::proto::Block, names: &mut BTreeSet<String>) {
        for op in &block.operations {
            names.insert(op.r#type.clone());
            op.blocks.iter().for_each(|b| walk(b, names));
        }
    }
    let bytes = fs::read(package.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
    let model = mil::package::proto::Model::decode(&bytes[..]).unwrap();
    let mut names = BTreeSet::new();
    for f in model.ml_program.unwrap().functions.values() {
        f.block_specializations.values().for_each(|b| walk(b, &mut names));
    }
    names.retain(|n| OpKind::from_name(n).is_none());
    names
}

/// The text without its second line, which names the tool that wrote it.
pub(crate) fn without_build_info(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with('['), "{}", lines[1]);
    lines.remove(1);
    lines.join("\n")
}

fn assert_refused(error: &Error, missing: &BTreeSet<String>, name: &str) {
    let names: Vec<&str> = missing.iter().map(String::as_str).collect();
    let message = format!("operations that Rigel does not have: {}", names.join(", "));
    assert_eq!((error.kind, &error.message), (ErrorKind::Unsupported, &message), "{name}");
    assert!(error.file.as_ref().is_some_and(|f| f.ends_with("model.mlmodel")), "{name}");
}

#[test]
fn read_printed_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.mlpackage");
    let (mut whole, mut failures) = (0, Vec::new());
    let all = packages();
    for path in &all {
        let name = path.file_stem().unwrap().display().to_string();
        let missing = missing(path);
        let package = match Package::open(path) {
            Err(e) if !missing.is_empty() => {
                assert_refused(&e, &missing, &name);
                continue;
            }
            Err(e) => {
                failures.push(e.to_string());
                continue;
            }
            Ok(package) => package,
        };
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
        match chain(&package, path, &copy) {
            Ok(()) => whole += 1,
            Err(e) => failures.push(format!("{name}: {e}")),
        }
    }
    println!("{whole} of {} packages", all.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(whole >= AT_LEAST, "only {whole} packages have no operation that is missing");
}

fn chain(package: &Package, path: &std::path::Path, copy: &std::path::Path) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let mil = path.with_extension("mil");
    let printed = package.text().map_err(text)?;
    let (own, expected) =
        (without_build_info(&printed), without_build_info(&fs::read_to_string(&mil).unwrap()));
    if let Some(difference) = own.lines().zip(expected.lines()).find(|(a, b)| a != b) {
        return Err(format!("text differs: {difference:?}"));
    }
    assert_eq!(own, expected);
    let parsed = through_text_and_file(package, &weights_of(&mil), copy)?;
    assert_eq!(parsed, package.dialect());
    derived(package)
}

/// Prints the program, reads the text and compares; writes the package to `copy`, reads it and compares.
/// The dialect of the text.
pub(crate) fn through_text_and_file(
    package: &Package,
    weights: &BlobFile,
    copy: &std::path::Path,
) -> Result<Dialect, String> {
    let text = |e: Error| e.to_string();
    mil::verify(&package.program).map_err(text)?;
    let parsed = parse(&package.text().map_err(text)?, weights).map_err(text)?;
    same_program(&package.program, &parsed.program)?;
    package.save(copy).map_err(text)?;
    let again = Package::open(copy).map_err(text)?;
    same_program(&package.program, &again.program)?;
    assert_eq!(again.spec_version, package.spec_version);
    assert_eq!(again.description, package.description);
    let text_copy = copy.with_extension("mil");
    package.save_text(&text_copy).map_err(text)?;
    let again = Package::open(&text_copy).map_err(text)?;
    same_program(&package.program, &again.program)?;
    Ok(parsed.dialect)
}

/// The description that the signatures imply says what the stated one does, images aside.
fn derived(package: &Package) -> Result<(), String> {
    let mut bare = package.clone();
    bare.description = None;
    for name in package.program.functions.keys() {
        let stated = package.interface(name).map_err(|e| e.to_string())?;
        let implied = bare.interface(name).map_err(|e| e.to_string())?;
        let image = |f: &mil::package::Feature| matches!(f.kind, mil::package::Kind::Image(_));
        if stated.inputs.iter().any(image) {
            continue;
        }
        if stated != implied {
            return Err(format!("{stated:?} stated, {implied:?} implied"));
        }
    }
    Ok(())
}
