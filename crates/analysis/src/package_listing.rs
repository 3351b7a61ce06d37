//! What a Core ML package, compiled model or MIL text holds, for people and programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use mil::package::{Kind, Package, Shapes};
use mil::{Cost, Function, OpKind, OpView, Payload, Type, ValueId};
use serde::Serialize;

use crate::constants::{Scope, is_constant};
use crate::encoding::encoding;
use crate::error::{Context, Result};
use crate::inputs::described;
use crate::units;

/// Where weights that text names by `@model_path` lie.
const MODEL_PATH: &str = "@model_path/";

/// Deepest directory in a package that is searched for weight files.
const DEPTH: usize = 8;

/// What is said of a package.
#[derive(Serialize)]
pub struct Listing {
    path: String,
    spec_version: i32,
    minimum_os: Option<&'static str>,
    default_function: Option<String>,
    metadata: BTreeMap<String, String>,
    functions: BTreeMap<String, Signature>,
    /// Stored weights by element type, all functions' together.
    weights: BTreeMap<String, Weights>,
    weight_file_bytes: u64,
}

/// What is said of a function.
#[derive(Serialize)]
pub(crate) struct Signature {
    pub(crate) opset: &'static str,
    pub(crate) inputs: Vec<Feature>,
    pub(crate) outputs: Vec<Feature>,
    pub(crate) states: Vec<Feature>,
    /// Operations by kind, those of nested blocks too, constants apart.
    operations: BTreeMap<&'static str, usize>,
    constants: usize,
    /// Elements of its weights, decompressed.
    parameters: u64,
    /// Its weights by how they are stored.
    encodings: BTreeMap<String, Weights>,
    /// Floating-point operations of one call, a multiply-add being two; open sizes count 1, and nested blocks once.
    flops: u64,
    /// Bytes that the operations of one call read and write, counted likewise.
    bytes_moved: u64,
}

/// An input, output or state.
#[derive(Serialize)]
pub(crate) struct Feature {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) ty: String,
    /// Shapes that the type leaves open, or an image's form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) allowed: String,
    /// Whether it is an image, which only a package's description says.
    #[serde(skip)]
    pub(crate) image: bool,
}

/// Weights of one element type.
#[derive(Default, Serialize)]
struct Weights {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// The path, if what is there is, or should be by its name, a Core ML program.
pub fn recognised(path: &Path) -> Option<&Path> {
    let names = ["mlpackage", "mlmodelc", "mlmodel", "mil"];
    let named = path.extension().is_some_and(|e| names.iter().any(|n| e == *n));
    let holds = |name| path.join(name).is_file();
    (path.exists() && (named || holds("Manifest.json") || holds("model.mil"))).then_some(path)
}

/// What the package at `path` holds.
///
/// # Errors
/// Those of opening it, and of looking for its weight files.
pub fn read(path: &Path) -> Result<Listing> {
    let package = Package::open(path)?;
    let program = &package.program;
    let mut weights = BTreeMap::<String, Weights>::new();
    for (_, weight) in program.weights.iter() {
        let of_type = weights.entry(weight.tensor.dtype().name().to_owned()).or_default();
        of_type.tensors += 1;
        of_type.elements += weight.tensor.len() as u64;
        of_type.bytes += weight.tensor.bytes().len() as u64;
    }
    let function = |(name, f): (&String, &Function)| (name.clone(), of_function(&package, name, f));
    Ok(Listing {
        path: path.display().to_string(),
        spec_version: package.spec_version,
        minimum_os: minimum_os(package.spec_version),
        default_function: package.default_function().map(str::to_owned),
        metadata: metadata(&package),
        functions: program.functions.iter().map(function).collect(),
        weights,
        weight_file_bytes: weight_file_bytes(path, &package)?,
    })
}

/// The oldest systems that load a specification.
fn minimum_os(spec_version: i32) -> Option<&'static str> {
    Some(match spec_version {
        6 => "iOS 15, macOS 12",
        7 => "iOS 16, macOS 13",
        8 => "iOS 17, macOS 14",
        9 => "iOS 18, macOS 15",
        10 => "iOS 26, macOS 26",
        _ => return None,
    })
}

pub(crate) fn metadata(package: &Package) -> BTreeMap<String, String> {
    let described = package.description.as_ref().and_then(|d| d.metadata.as_ref());
    let Some(m) = described else { return BTreeMap::new() };
    let known = [
        ("description", &m.short_description),
        ("version", &m.version_string),
        ("author", &m.author),
        ("license", &m.license),
    ];
    let known = known.into_iter().map(|(k, v)| (k.to_owned(), v.clone()));
    let own = m.user_defined.iter().map(|(k, v)| (k.clone(), v.clone()));
    own.chain(known).filter(|(_, v)| !v.is_empty()).collect()
}

pub(crate) fn of_function(package: &Package, name: &str, function: &Function) -> Signature {
    let interface = package.interface(name).unwrap_or_default();
    let features = interface.inputs.iter().chain(&interface.states);
    let kinds: BTreeMap<&str, &Kind> = features.map(|f| (f.name.as_str(), &f.kind)).collect();
    let feature = |&v: &ValueId| {
        let name = function.values[v].name.clone();
        let kind = kinds.get(name.as_str());
        let allowed = kind.map(|kind| allowed(kind)).unwrap_or_default();
        let image = matches!(kind, Some(Kind::Image(_)));
        Feature { name, ty: function.ty(v).to_string(), allowed, image }
    };
    let is_state = |v: &&ValueId| matches!(function.ty(**v), Type::State(_));
    let mut operations = BTreeMap::new();
    for op in function.ops.values() {
        *operations.entry(op.kind.name()).or_default() += 1;
    }
    let constants = operations.remove(OpKind::Const.name()).unwrap_or(0);
    let cost = cost(package, function);
    Signature {
        opset: function.opset.name(),
        inputs: function.inputs.iter().filter(|v| !is_state(v)).map(feature).collect(),
        outputs: function.body.outputs.iter().map(feature).collect(),
        states: function.inputs.iter().filter(is_state).map(feature).collect(),
        operations,
        constants,
        parameters: parameters(function),
        encodings: Scope::new(&package.program, name).map(|s| encodings(&s)).unwrap_or_default(),
        flops: cost.flops as u64,
        bytes_moved: cost.bytes as u64,
    }
}

/// Work of all operations that are no constants.
fn cost(package: &Package, function: &Function) -> Cost {
    let mut sum = Cost::default();
    for op in function.ops.values().filter(|op| !is_constant(op.kind)) {
        let results: Vec<Type> = op.outputs.iter().map(|&v| function.ty(v).clone()).collect();
        let view = OpView::new(function, &package.program.weights, op);
        let own = op.kind.def().cost(&view, &results);
        (sum.flops, sum.bytes) = (sum.flops + own.flops, sum.bytes + own.bytes);
    }
    sum
}

fn encodings(scope: &Scope<'_>) -> BTreeMap<String, Weights> {
    let mut encodings = BTreeMap::<String, Weights>::new();
    for constant in scope.weights() {
        let weights = encodings.entry(encoding(scope, constant)).or_default();
        let shape = scope.ty(constant).as_tensor().and_then(mil::TensorType::fixed_shape);
        weights.tensors += 1;
        weights.elements += shape.and_then(|s| tensor::element_count(&s)).unwrap_or(0) as u64;
        weights.bytes += scope.stored_bytes(constant);
    }
    encodings
}

fn allowed(kind: &Kind) -> String {
    match kind {
        Kind::Array(_, Shapes::Fixed(_)) | Kind::State(_, Shapes::Fixed(_)) => String::new(),
        Kind::Array(_, shapes) | Kind::State(_, shapes) => described(Some(shapes)),
        Kind::Image(i) => {
            let flexible = if i.flexible { ", other sizes too" } else { "" };
            format!("{} image of {} x {}{flexible}", i.colors, i.width, i.height)
        }
        Kind::Int64 | Kind::Double | Kind::String | Kind::Dictionary { .. } | Kind::Other => {
            String::new()
        }
    }
}

/// Elements of the weights of `function`: constants in a weight file, and what is decompressed from them in
/// place of these.
fn parameters(function: &Function) -> u64 {
    let mut compressed = BTreeSet::new();
    for op in function.ops.values().filter(|op| op.kind.is_constexpr()) {
        op.for_each_arg_value(|v| {
            compressed.insert(v);
        });
    }
    let mut elements = 0;
    for op in function.ops.values() {
        let stored = op.const_value().is_some_and(|l| matches!(l.payload, Payload::Weight(_)));
        if !stored && !op.kind.is_constexpr() {
            continue;
        }
        for v in op.outputs.iter().filter(|v| !compressed.contains(v)) {
            let shape = function.tensor_ty(*v).and_then(mil::TensorType::fixed_shape);
            let count = shape.and_then(|s| tensor::element_count(&s)).unwrap_or(0);
            elements += count as u64;
        }
    }
    elements
}

/// Size of the weight files that the program names.
fn weight_file_bytes(path: &Path, package: &Package) -> Result<u64> {
    let refs =
        package.program.weights.iter().filter_map(|(id, _)| package.program.blobs[id].as_ref());
    let names: BTreeSet<&str> =
        refs.map(|r| r.path.strip_prefix(MODEL_PATH).unwrap_or(&r.path)).collect();
    let mut bytes = 0;
    for name in names {
        bytes += if path.is_dir() {
            find(path, Path::new(name), DEPTH).with_context(|| path.display().to_string())?
        } else {
            let file = path.parent().unwrap_or(Path::new(".")).join(name);
            fs::metadata(&file).with_context(|| file.display().to_string())?.len()
        };
    }
    Ok(bytes)
}

/// Size of the files in `dir`, at most `depth` directories down, whose paths end in `name`.
fn find(dir: &Path, name: &Path, depth: usize) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, ty) = (entry.path(), entry.file_type()?);
        if ty.is_dir() && depth > 0 {
            bytes += find(&path, name, depth - 1)?;
        } else if path.ends_with(name) && path.is_file() {
            bytes += fs::metadata(&path)?.len();
        }
    }
    Ok(bytes)
}

impl Listing {
    /// The listing for people.
    pub fn text(&self) -> String {
        let os = self.minimum_os.map(|os| format!(", {os} or later")).unwrap_or_default();
        let mut lines =
            vec![self.path.clone(), format!("Core ML specification {}{os}", self.spec_version)];
        if !self.metadata.is_empty() {
            lines.extend([String::new(), "metadata".to_owned()]);
            lines.extend(self.metadata.iter().map(|(k, v)| format!("  {k} = {v}")));
        }
        for (name, f) in &self.functions {
            let default = self.functions.len() > 1 && self.default_function.as_ref() == Some(name);
            let default = if default { ", run by default" } else { "" };
            lines.extend([String::new(), format!("function {name} ({}{default})", f.opset)]);
            for (kind, features) in
                [("input", &f.inputs), ("state", &f.states), ("output", &f.outputs)]
            {
                for Feature { name, ty, allowed, .. } in features {
                    let allowed =
                        if allowed.is_empty() { String::new() } else { format!("  {allowed}") };
                    lines.push(format!("  {kind:<6} {name:<24} {ty}{allowed}"));
                }
            }
            let count: usize = f.operations.values().sum();
            lines.push(format!(
                "  {count} operations, {} constants, {} parameters",
                f.constants,
                units::thousands(f.parameters)
            ));
            let mut sorted: Vec<_> = f.operations.iter().collect();
            sorted.sort_by_key(|&(name, &n)| (std::cmp::Reverse(n), name));
            lines.extend(sorted.iter().map(|(name, n)| format!("    {n:>5} {name}")));
            lines.push(format!(
                "  {} floating-point operations and {} moved in a call",
                units::thousands(f.flops),
                units::size(f.bytes_moved)
            ));
            lines.extend(f.encodings.iter().map(|(name, w)| format!("  {}", listed(name, w))));
        }
        let size = units::size(self.weight_file_bytes);
        lines.extend([String::new(), format!("weights ({size} of files)")]);
        for (name, ty) in &self.weights {
            lines.push(format!("  {}", listed(name, ty)));
        }
        lines.join("\n")
    }
}

/// Weights of one type or encoding on one line.
fn listed(name: &str, weights: &Weights) -> String {
    format!(
        "{name:<7} {:>5} tensors {:>15} elements {:>10}",
        weights.tensors,
        units::thousands(weights.elements),
        units::size(weights.bytes)
    )
}
