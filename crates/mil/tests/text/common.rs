//! What the tests share: the real files, and when two programs are the same.

use std::fs;
use std::path::{Path, PathBuf};

use mil::package::blob::BlobFile;
use mil::{Arg, Block, Function, Literal, Payload, Program, ValueId};
use tensor::Bytes;

/// Every `.mil` beside the shared packages, sorted.
pub(crate) fn artefacts() -> Vec<PathBuf> {
    let root = testkit::shared_dir().join("coreml");
    let mut found = Vec::new();
    for dir in [root.join("zoo"), root] {
        let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let paths = entries.map(|e| e.unwrap().path());
        found.extend(paths.filter(|p| p.extension().is_some_and(|e| e == "mil")));
    }
    found.sort();
    found
}

/// The weight file of the package beside a `.mil`; an empty one if the package has none.
pub(crate) fn weights_of(mil: &Path) -> BlobFile {
    let package = mil.with_extension("mlpackage");
    let path = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let bytes = fs::read(path).unwrap_or_else(|_| {
        let mut header = vec![0; 64];
        header[4] = 2;
        header
    });
    BlobFile::new(Bytes::copy_from(&bytes)).unwrap()
}

/// Whether two programs are the same up to the numbers of ids and the order of inputs.
pub(crate) fn same_program(a: &Program, b: &Program) -> Result<(), String> {
    let same = Same { a, b };
    same.literals("attributes", &a.attributes, &b.attributes)?;
    if !a.functions.keys().eq(b.functions.keys()) {
        return Err(format!("functions {:?} and {:?}", a.functions.keys(), b.functions.keys()));
    }
    for (name, f) in &a.functions {
        same.function(f, &b.functions[name]).map_err(|e| format!("function {name}: {e}"))?;
    }
    Ok(())
}

struct Same<'p> {
    a: &'p Program,
    b: &'p Program,
}

type Literals = mil::Attributes;

impl Same<'_> {
    fn function(&self, f: &Function, g: &Function) -> Result<(), String> {
        if f.opset != g.opset {
            return Err(format!("opsets {} and {}", f.opset, g.opset));
        }
        self.literals("attributes", &f.attributes, &g.attributes)?;
        let names = |f: &Function, values: &[ValueId]| {
            let typed = |&v: &ValueId| format!("{} {}", f.ty(v), f.values[v].name);
            let mut names: Vec<String> = values.iter().map(typed).collect();
            names.sort();
            names
        };
        if names(f, &f.inputs) != names(g, &g.inputs) {
            return Err("inputs differ".into());
        }
        self.block(f, &f.body, g, &g.body)
    }

    fn block(&self, f: &Function, a: &Block, g: &Function, b: &Block) -> Result<(), String> {
        values(f, &a.params, g, &b.params)?;
        if a.ops.len() != b.ops.len() {
            return Err(format!("{} and {} operations", a.ops.len(), b.ops.len()));
        }
        for (&x, &y) in a.ops.iter().zip(&b.ops) {
            let (p, q) = (&f.ops[x], &g.ops[y]);
            let place = |e| format!("{}: {e}", f.describe(x));
            if p.kind != q.kind || p.args.len() != q.args.len() || p.blocks.len() != q.blocks.len()
            {
                return Err(place(format!("became {}", g.describe(y))));
            }
            for (a, b) in p.args.iter().zip(&q.args) {
                let equal = match (a, b) {
                    (Some(a), Some(b)) => self.arg(f, a, g, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                if !equal {
                    return Err(place("arguments differ".into()));
                }
            }
            values(f, &p.outputs, g, &q.outputs).map_err(place)?;
            self.literals("attributes", &p.attributes, &q.attributes).map_err(place)?;
            for (a, b) in p.blocks.iter().zip(&q.blocks) {
                self.block(f, a, g, b).map_err(place)?;
            }
        }
        values(f, &a.outputs, g, &b.outputs)
    }

    fn arg(&self, f: &Function, a: &Arg, g: &Function, b: &Arg) -> bool {
        match (a, b) {
            (Arg::Value(a), Arg::Value(b)) => f.values[*a].name == g.values[*b].name,
            (Arg::Literal(a), Arg::Literal(b)) => self.literal(a, b),
            (Arg::List(a), Arg::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.arg(f, a, g, b))
            }
            _ => false,
        }
    }

    fn literals(&self, what: &str, a: &Literals, b: &Literals) -> Result<(), String> {
        let equal = a.len() == b.len()
            && a.iter().zip(b).all(|((k, a), (l, b))| k == l && self.literal(a, b));
        if equal { Ok(()) } else { Err(format!("{what} differ: {a:?} and {b:?}")) }
    }

    fn literal(&self, a: &Literal, b: &Literal) -> bool {
        a.ty == b.ty && self.payload(&a.payload, &b.payload)
    }

    fn payload(&self, a: &Payload, b: &Payload) -> bool {
        match (a, b) {
            (Payload::Weight(a), Payload::Weight(b)) => {
                let (a, b) = (self.a.weights.get(*a).unwrap(), self.b.weights.get(*b).unwrap());
                Payload::Tensor(a.tensor.clone()) == Payload::Tensor(b.tensor.clone())
            }
            _ => a == b,
        }
    }
}

fn values(f: &Function, a: &[ValueId], g: &Function, b: &[ValueId]) -> Result<(), String> {
    let describe = |f: &Function, values: &[ValueId]| {
        let typed = |&v: &ValueId| format!("{} {}", f.ty(v), f.values[v].name);
        values.iter().map(typed).collect::<Vec<_>>().join(", ")
    };
    let (a, b) = (describe(f, a), describe(g, b));
    if a == b { Ok(()) } else { Err(format!("({a}) became ({b})")) }
}
