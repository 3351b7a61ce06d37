//! What two packages differ in: interface, operations, weights, and the names of what is the same otherwise.

mod changes;
mod hashes;
mod matching;
mod numeric;
mod text;
mod weights;

use mil::package::Package;
use serde::Serialize;

pub use numeric::{
    Compared, Divergence, NumericDiff, NumericOptions, OperationDifference, compare_runs,
};
pub use text::{numeric_text, program_text};
pub use weights::{Stored, WeightChange};

use crate::constants::Scope;
use crate::package_listing::{self, Feature};
use matching::Matching;

/// What changed: from nothing if it was added, to nothing if it was removed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// Of what this is.
    pub what: String,
    /// In the first package.
    pub from: Option<String>,
    /// In the second.
    pub to: Option<String>,
}

/// An operation that only one function has.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Single {
    /// Kind of operation.
    pub kind: String,
    /// Name of its first result.
    pub name: String,
    /// Types of its results.
    pub types: Vec<String>,
    /// Names of the values it uses, constants left out.
    pub uses: Vec<String>,
}

/// An operation that both functions have, differently.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OperationChange {
    /// Kind of operation in the first function.
    pub kind: String,
    /// Name of its first result in the first function.
    pub name: String,
    /// What differs: kind, arguments, attributes, types of results.
    pub changes: Vec<Change>,
}

/// Another name for the same thing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Rename {
    /// In the first function.
    pub from: String,
    /// In the second.
    pub to: String,
}

/// What two functions differ in.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct FunctionDiff {
    /// Name in the first package.
    pub name: String,
    /// Name in the second, if another.
    pub renamed_to: Option<String>,
    /// Operation set, inputs, outputs and states.
    pub interface: Vec<Change>,
    /// Operations that only the first has, in order.
    pub removed: Vec<Single>,
    /// Operations that only the second has, in order.
    pub added: Vec<Single>,
    /// Operations that differ, in order.
    pub changed: Vec<OperationChange>,
    /// Weights that differ in value, type, shape or encoding.
    pub weights: Vec<WeightChange>,
    /// Values and weights of which only the name differs.
    pub renamed: Vec<Rename>,
    /// Operations that are the same.
    pub same: usize,
}

/// What two packages differ in.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ProgramDiff {
    /// Specification, default function, metadata.
    pub package: Vec<Change>,
    /// Functions that only the first has.
    pub removed: Vec<String>,
    /// Functions that only the second has.
    pub added: Vec<String>,
    /// Functions that both have.
    pub functions: Vec<FunctionDiff>,
}

impl FunctionDiff {
    /// Whether nothing differs but names inside of the function.
    pub fn is_same(&self) -> bool {
        self.renamed_to.is_none()
            && self.interface.is_empty()
            && self.removed.is_empty()
            && self.added.is_empty()
            && self.changed.is_empty()
            && self.weights.is_empty()
    }
}

impl ProgramDiff {
    /// Whether nothing differs but names inside of functions.
    pub fn is_same(&self) -> bool {
        self.package.is_empty()
            && self.removed.is_empty()
            && self.added.is_empty()
            && self.functions.iter().all(FunctionDiff::is_same)
    }
}

/// Compares two packages whose programs verify. What a file does not state, as MIL text states no metadata, is not
/// compared.
///
/// # Errors
/// When a weight cannot be decompressed.
pub fn compare(a: &Package, b: &Package) -> mil::Result<ProgramDiff> {
    let (pairs, removed, added) = functions(a, b);
    let mut diff = ProgramDiff { package: package(a, b), removed, added, functions: Vec::new() };
    for (name, other) in pairs {
        let scopes = (Scope::new(&a.program, &name), Scope::new(&b.program, &other));
        let (Some(x), Some(y)) = scopes else { continue };
        let matching = matching::pair(&x, &y);
        let mut function = changes::function(&x, &y, &matching)?;
        function.interface = interface((a, &x), (b, &y), &matching);
        function.renamed_to = (name != other).then_some(other);
        diff.functions.push(function);
    }
    Ok(diff)
}

/// Functions of both by their names; those that only the first has; those that only the second has. A single one
/// left on each side is a pair.
fn functions(a: &Package, b: &Package) -> (Vec<(String, String)>, Vec<String>, Vec<String>) {
    let (x, y) = (&a.program.functions, &b.program.functions);
    let mut pairs: Vec<_> =
        x.keys().filter(|n| y.contains_key(*n)).map(|n| (n.clone(), n.clone())).collect();
    let mut removed: Vec<_> = x.keys().filter(|n| !y.contains_key(*n)).cloned().collect();
    let mut added: Vec<_> = y.keys().filter(|n| !x.contains_key(*n)).cloned().collect();
    if let (1, 1) = (removed.len(), added.len()) {
        pairs.extend(removed.pop().zip(added.pop()));
    }
    (pairs, removed, added)
}

/// The change of `what`, if there is one.
fn change<T: PartialEq + ToString>(what: &str, from: Option<T>, to: Option<T>) -> Option<Change> {
    let text = |x: Option<T>| x.map(|x| x.to_string());
    (from != to).then(|| Change { what: what.to_owned(), from: text(from), to: text(to) })
}

fn package(a: &Package, b: &Package) -> Vec<Change> {
    let mut changes = Vec::new();
    if a.description.is_none() || b.description.is_none() {
        return changes;
    }
    changes.extend(change("specification", Some(a.spec_version), Some(b.spec_version)));
    let several = a.program.functions.len().max(b.program.functions.len()) > 1;
    if several {
        changes.extend(change("default function", a.default_function(), b.default_function()));
    }
    let [x, y] = [a, b].map(package_listing::metadata);
    let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
    let metadata = |key: &String| change(&format!("metadata {key}"), x.get(key), y.get(key));
    changes.extend(keys.into_iter().filter_map(metadata));
    changes
}

/// A feature's type and allowed shapes; of an image that only if `images`.
fn described(feature: &Feature, images: bool) -> String {
    if feature.allowed.is_empty() || feature.image && !images {
        return feature.ty.clone();
    }
    format!("{} {}", feature.ty, feature.allowed)
}

fn interface(
    (a, x): (&Package, &Scope<'_>),
    (b, y): (&Package, &Scope<'_>),
    matching: &Matching,
) -> Vec<Change> {
    let own = package_listing::of_function(a, x.name, x.function);
    let other = package_listing::of_function(b, y.name, y.function);
    let mut changes: Vec<Change> =
        change("operation set", Some(own.opset), Some(other.opset)).into_iter().collect();
    let images = a.description.is_some() && b.description.is_some();
    let described = |feature: &Feature| described(feature, images);
    let input = |scope: &Scope<'_>, v| scope.function.values[v].name.clone();
    let inputs: Vec<(String, String)> =
        matching.params.iter().map(|(&v, &w)| (input(x, v), input(y, w))).collect();
    let output = |s: &Scope<'_>, i: usize| s.function.body.outputs.get(i).map(|&v| input(s, v));
    let outputs: Vec<(String, String)> = changes::pair_outputs(x, y, matching)
        .into_iter()
        .filter_map(|(i, j)| output(x, i).zip(output(y, j)))
        .collect();
    let parts = [
        ("input", &own.inputs, &other.inputs, &inputs),
        ("state", &own.states, &other.states, &inputs),
        ("output", &own.outputs, &other.outputs, &outputs),
    ];
    for (what, from, to, pairs) in parts {
        let mut left: Vec<&Feature> = to.iter().collect();
        for feature in from {
            let partner = pairs.iter().find(|(name, _)| *name == feature.name).map(|(_, n)| n);
            let partner =
                left.iter().position(|f| Some(&f.name) == partner).map(|i| left.remove(i));
            let what = format!("{what} {}", feature.name);
            let to = partner.map(&described);
            changes.extend(change(&what, Some(described(feature)), to));
            let renamed = partner.filter(|p| p.name != feature.name).map(|p| p.name.clone());
            if let Some(name) = renamed {
                let what = format!("name of {what}");
                changes.extend(change(&what, Some(feature.name.clone()), Some(name)));
            }
        }
        for feature in left {
            let what = format!("{what} {}", feature.name);
            changes.extend(change(&what, None, Some(described(feature))));
        }
    }
    changes
}
