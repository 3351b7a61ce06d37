//! Short programs: a notation that is expanded to MIL text, and weights of zeros.

use mil::text::{BlobSource, parse};
use mil::{OpError, Program, TensorType};
use rigel_ane_model::{CheckOptions, Chip, Diagnostic, Path, check};
use tensor::Tensor;

/// Weight files of zeros, of any size.
struct Zeros;

impl BlobSource for Zeros {
    fn tensor(&self, _: &str, _: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let shape = ty.fixed_shape().ok_or_else(|| OpError::invalid("an open shape"))?;
        Tensor::zeros(ty.dtype, &shape).map_err(|e| OpError::invalid(e.to_string()))
    }
}

/// A program from text, or from `inputs | body | outputs` in short notation:
/// `h[2, 3]` is `tensor<fp16, [2, 3]>`, `f[…]` fp32, `i[…]` int32, `b[…]` bool, `q[…]` int8; a line
/// `weight w h[2, 3];` a constant in the weight file; `weight@128` one at that offset.
pub(crate) fn program(short: &str) -> Program {
    let text =
        if short.trim_start().starts_with("program") { short.to_owned() } else { expand(short) };
    let header = "program(1.3)\n[buildInfo = dict<string, string>({{\"emitter\", \"a test\"}})]\n";
    let text = types(&weights(&text.replacen("program(1.3)\n", header, 1)));
    parse(&text, &Zeros).unwrap_or_else(|e| panic!("{e}\n{text}")).program
}

fn expand(short: &str) -> String {
    let parts: Vec<&str> = short.split('|').collect();
    let [inputs, body, outputs] = parts[..] else { panic!("three parts are needed: {short}") };
    format!("program(1.3)\n{{\nfunc main<ios18>({inputs}) {{\n{body}\n}} -> ({outputs});\n}}\n")
}

/// Expands the lines of weights.
fn weights(text: &str) -> String {
    let mut offset = 0;
    let line = |line: &str| {
        let Some(rest) = line.trim_start().strip_prefix("weight") else { return line.to_owned() };
        let (at, rest) = rest.split_once(' ').unwrap();
        let (name, ty) = rest.trim().trim_end_matches(';').split_once(' ').unwrap();
        offset += if offset == 0 { 64 } else { 4096 };
        let at = at.strip_prefix('@').map_or(offset, |n| n.parse().unwrap());
        format!(
            "{ty} {name} = const()[val = {ty}(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), \
             offset = uint64({at})))];"
        )
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Expands the short types.
fn types(text: &str) -> String {
    let mut out = String::new();
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let name = match c {
            'h' => "fp16",
            'f' => "fp32",
            'i' => "int32",
            'b' => "bool",
            'q' => "int8",
            _ => "",
        };
        let word = before.is_alphanumeric() || before == '_';
        if !name.is_empty() && !word && chars.peek() == Some(&'[') {
            let dims: String = chars.by_ref().take_while(|&c| c != ']').collect();
            out.push_str(&format!("tensor<{name}, {dims}]>"));
            before = '>';
        } else {
            out.push(c);
            before = c;
        }
    }
    out
}

pub(crate) fn chip(name: &str) -> &'static Chip {
    Chip::find(name).unwrap_or_else(|| panic!("no chip {name}"))
}

pub(crate) fn findings(short: &str, chip: &Chip, path: Path, os: &str) -> Vec<Diagnostic> {
    let os = (!os.is_empty()).then(|| os.parse().unwrap());
    check(&program(short), &CheckOptions { chip, path, os })
}
