//! Measures how fast MIL text is parsed and printed: `parse_speed [FILE...]`, by default of a made-up
//! program like a transformer's text. Prints megabytes a second, the best of several runs, and for parsing those of the first, which
//! finds no memory prepared.

use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Instant;

use rigel_mil::text::{BlobSource, parse, print};
use rigel_mil::{Error, OpError, TensorType};
use tensor::{Bytes, Tensor};

/// Windows of one buffer of zeros, as weight files give windows of a map.
struct Zeros(Bytes);

impl BlobSource for Zeros {
    fn tensor(&self, _: &str, _: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let shape = ty.fixed_shape().unwrap_or_default();
        let len = tensor::element_count(&shape).and_then(|n| ty.dtype.byte_len(n));
        let window = len.and_then(|n| self.0.slice(0..n));
        let window = window.ok_or_else(|| OpError::limit("a weight of more than 64 MB"))?;
        Tensor::new(ty.dtype, &shape, window).map_err(|e| OpError::invalid(e.to_string()))
    }
}

/// A program of `layers` times some operations with constants in place, in weight files and by name.
fn program(layers: usize) -> String {
    let mut text = String::from(
        "program(1.3)\n[buildInfo = dict<string, string>({{\"a\", \"b\"}})]\n{\n    \
         func main<ios18>(tensor<fp16, [1, 64, 1, 32]> x) {\n",
    );
    let mut last = String::from("x");
    for i in 0..layers {
        let mut line = |s: String| writeln!(text, "            {s}").unwrap_or_default();
        line(format!(
            "tensor<fp16, [64, 64, 1, 1]> layers_{i}_weight_to_fp16 = const()[name = string(\"layers_{i}_weight_to_fp16\"), \
             val = tensor<fp16, [64, 64, 1, 1]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), \
             offset = uint64({})))];",
            64 * (i + 1)
        ));
        line(format!(
            "string var_{i}_pad_type_0 = const()[name = string(\"var_{i}_pad_type_0\"), val = string(\"valid\")];"
        ));
        line(format!(
            "tensor<int32, [2]> var_{i}_strides_0 = const()[name = string(\"var_{i}_strides_0\"), val = tensor<int32, [2]>([1, 1])];"
        ));
        line(format!(
            "tensor<int32, [4]> var_{i}_pad_0 = const()[name = string(\"var_{i}_pad_0\"), val = tensor<int32, [4]>([0, 0, 0, 0])];"
        ));
        line(format!(
            "int32 var_{i}_groups_0 = const()[name = string(\"var_{i}_groups_0\"), val = int32(1)];"
        ));
        line(format!(
            "tensor<fp16, [1, 64, 1, 32]> var_{i}_cast_fp16 = conv(dilations = var_{i}_strides_0, groups = var_{i}_groups_0, \
             pad = var_{i}_pad_0, pad_type = var_{i}_pad_type_0, strides = var_{i}_strides_0, weight = layers_{i}_weight_to_fp16, \
             x = {last})[name = string(\"op_{i}_cast_fp16\")];"
        ));
        line(format!(
            "fp16 var_{i}_promoted_to_fp16 = const()[name = string(\"op_{i}_promoted_to_fp16\"), val = fp16(0x1.5p-17)];"
        ));
        line(format!(
            "tensor<fp16, [1, 64, 1, 32]> out_{i} = add(x = var_{i}_cast_fp16, y = var_{i}_promoted_to_fp16)[name = string(\"out_{i}\")];"
        ));
        last = format!("out_{i}");
    }
    write!(text, "        }} -> ({last});\n}}").unwrap_or_default();
    text
}

/// Seconds that this thread has computed (Linux), which other processes do not disturb; or the time.
fn seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = stat.and_then(|s| s.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// Megabytes of `text` a second that `f` takes, at best; what it returns is dropped off the clock.
fn best<T>(text: &str, f: impl Fn() -> Result<T, Error>) -> Result<f64, Error> {
    // Short texts are taken several times, for a clock that ticks slowly.
    let times = (4_000_000 / text.len()).max(1);
    let mut best = f64::INFINITY;
    for _ in 0..9 {
        let start = seconds();
        let results = (0..times).map(|_| f()).collect::<Result<Vec<T>, Error>>()?;
        best = best.min(seconds() - start);
        drop(results);
    }
    Ok((times * text.len()) as f64 / 1e6 / best)
}

fn measure(name: &str, text: &str) -> Result<(), Error> {
    let zeros = Zeros(Bytes::copy_from(&vec![0; 64 << 20]));
    let start = seconds();
    let parsed = parse(text, &zeros)?;
    let first = text.len() as f64 / 1e6 / (seconds() - start);
    let read = best(text, || parse(text, &zeros))?;
    let written = best(text, || print(&parsed.program, parsed.dialect))?;
    let size = text.len() as f64 / 1e6;
    println!(
        "{name}: {size:.2} MB, parsed at {read:.0} MB/s (at first at {first:.0}), printed at {written:.0} MB/s"
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        return Ok(measure("made up", &program(4000))?);
    }
    for file in files {
        measure(&file.to_string_lossy(), &std::fs::read_to_string(&file)?)?;
    }
    Ok(())
}
