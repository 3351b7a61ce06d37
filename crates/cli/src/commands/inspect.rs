//! `rigel inspect`: what a model file or a Core ML program holds, and what of a model would not run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use analysis::{graph, package_listing, units};
use anyhow::{Context, Result, bail};
use clap::Args;
use llm::Inspection;
use mil::package::Package;
use serde_json::json;

use crate::loading::open_model;
use crate::output;

/// Longest metadata value shown, in characters.
const SHOWN: usize = 100;

/// List a model file: metadata, tensors, sizes, architecture, and what would not run and why; or a Core ML
/// program: functions, inputs, outputs, states, operations, weights
#[derive(Args)]
pub(crate) struct Inspect {
    /// Path, alias or Hugging Face repository; or .mlpackage, .mlmodelc, .mlmodel, .mil
    file: String,
    /// Print a JSON object: path, format, bytes, metadata, tensors, config, types, problems; of a Core ML program
    /// path, spec_version, minimum_os, default_function, metadata, functions, weights, weight_file_bytes
    #[arg(long)]
    json: bool,
    /// Draw a Core ML program here instead: operations, and the types and shapes of what flows between them. A
    /// .html page moves, zooms and searches, and loads nothing
    #[arg(long, value_name = "FILE.svg|FILE.html", conflicts_with = "json")]
    graph: Option<PathBuf>,
}

/// Tensors of one type.
#[derive(Default, serde::Serialize)]
struct Type {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<()> {
        let recognised = package_listing::recognised(Path::new(&self.file));
        if let Some(out) = &self.graph {
            let none = || format!("{}: no Core ML program, and only those are drawn", self.file);
            return draw(recognised.with_context(none)?, out);
        }
        if let Some(path) = recognised {
            let listing = package_listing::read(path)?;
            return if self.json { output::json(&listing) } else { output::line(&listing.text()) };
        }
        let inspection = llm::inspect(&open_model(&self.file)?);
        let types = types(&inspection);
        if self.json {
            let mut value = serde_json::to_value(&inspection)?;
            value["types"] = json!(types);
            return output::json(&value);
        }
        output::line(&listing(&inspection, &types))
    }
}

/// Writes the drawing of the program at `path` to `out`.
fn draw(path: &Path, out: &Path) -> Result<()> {
    let package = Package::open(path)?;
    mil::verify(&package.program).map_err(|e| e.in_file(path))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let drawn = match out.extension().and_then(|e| e.to_str()) {
        Some("svg") => graph::svg(&package),
        Some("html") => graph::html(&package, &name),
        _ => bail!("{}: a drawing is a .svg or .html file", out.display()),
    };
    let drawn = drawn.with_context(|| path.display().to_string())?;
    Ok(analysis::files::write(out, drawn.as_bytes())?)
}

fn types(inspection: &Inspection) -> BTreeMap<&str, Type> {
    let mut types = BTreeMap::<_, Type>::new();
    for tensor in &inspection.tensors {
        let ty = types.entry(tensor.ty.as_str()).or_default();
        ty.tensors += 1;
        ty.elements += tensor.shape.iter().map(|&d| d as u64).product::<u64>();
        ty.bytes += tensor.bytes.unwrap_or(0) as u64;
    }
    types
}

fn listing(inspection: &Inspection, types: &BTreeMap<&str, Type>) -> String {
    let mut lines = vec![
        format!("{}", inspection.path.display()),
        format!("{}, {} of tensors", inspection.format, units::size(inspection.bytes as u64)),
        String::new(),
        "metadata".to_owned(),
    ];
    for (key, value) in &inspection.metadata {
        lines.push(format!("  {key} = {}", shortened(value)));
    }
    lines.extend([String::new(), format!("tensors ({})", inspection.tensors.len())]);
    for t in &inspection.tensors {
        let bytes = t.bytes.map_or("size unknown".to_owned(), |b| units::size(b as u64));
        lines.push(format!("  {:<40} {:<7} {:?} {bytes}", t.name, t.ty, t.shape));
    }
    lines.extend([String::new(), "types".to_owned()]);
    for (name, ty) in types {
        lines.push(format!(
            "  {name:<7} {:>5} tensors {:>15} elements {:>10}",
            ty.tensors,
            units::thousands(ty.elements),
            units::size(ty.bytes)
        ));
    }
    lines.push(String::new());
    if let Some(c) = &inspection.config {
        lines.push(format!(
            "{}: {} parameters, {} layers, width {}, feed-forward {}, {} heads of {} ({} for keys and \
             values), vocabulary {}, context {}",
            c.arch,
            units::thousands(c.parameters),
            c.layers,
            c.width,
            c.feed_forward,
            c.heads,
            c.head_dim,
            c.kv_heads,
            units::thousands(c.vocab as u64),
            units::thousands(c.max_context as u64)
        ));
    }
    if inspection.problems.is_empty() {
        lines.push("runs".to_owned());
    }
    for problem in &inspection.problems {
        lines.push(format!("does not run: {}: {}", problem.kind, problem.message));
    }
    lines.join("\n")
}

/// A value on one line that is not too long.
fn shortened(value: &str) -> String {
    let line: String = value.chars().take(SHOWN).collect::<String>().replace('\n', "\\n");
    if value.chars().count() > SHOWN { format!("{line}…") } else { line }
}
