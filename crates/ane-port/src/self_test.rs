//! A program's whole life through a port, with numbers that show a mistake: for the first run on a new machine.

use std::io;
use std::path::{Path, PathBuf};

use exec::port::{MODEL_FILE, MODEL_PATH, Port, PortError, Qos, WeightFile};
use half::f16;

/// Channels and columns of every tensor. A surface of 64 KiB is above the smallest that engines take.
const CHANNELS: usize = 256;
const COLUMNS: usize = 128;
const ELEMENTS: usize = CHANNELS * COLUMNS;
const WEIGHTS: &str = "@model_path/weights/weight.bin";

/// y = a * w - b. The parameters are not in the order of their names, which is the one that counts.
const TEXT: &str = r#"program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3500.14.1"}, {"coremlc-version", "3500.32.1"}})]
{
    func main<ios18>(tensor<fp16, [1, 256, 1, 128]> b, tensor<fp16, [1, 256, 1, 128]> a) {
        tensor<fp16, [1, 256, 1, 1]> w = const()[name = string("w"), val = tensor<fp16, [1, 256, 1, 1]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
        tensor<fp16, [1, 256, 1, 128]> scaled = mul(x = a, y = w)[name = string("scaled")];
        tensor<fp16, [1, 256, 1, 128]> y = sub(x = scaled, y = b)[name = string("y")];
    } -> (y);
}
"#;

/// Why a self-test failed.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// A verb failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The program's directory could not be written or removed.
    #[error("{path}: {error}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A surface was not zeroed when it was made.
    #[error("a new surface is not zeroed")]
    NotZeroed,
    /// The engine computed something else.
    #[error("element {index} of a * w - b is {found}, not {expected}")]
    Wrong {
        /// Which element.
        index: usize,
        /// What the engine wrote.
        found: f16,
        /// What it should have written; every value is exact in fp16.
        expected: f16,
    },
}

/// Describes, compiles, loads, evaluates twice and unloads a program of one weight, two inputs and one output, and
/// compares every element. Leaves nothing behind.
///
/// # Errors
/// The first thing that went wrong.
pub fn self_test<P: Port>(port: &P) -> Result<(), SelfTestError> {
    let file = weight_file();
    let model = port.model(TEXT.as_bytes(), &[WeightFile { key: WEIGHTS, data: &file }])?;
    let directory = port.directory(&model);
    let written = write(&directory, &file);
    let outcome = written.and_then(|()| compile_and_run(port, &model));
    let removed = at(&directory, std::fs::remove_dir_all(&directory));
    outcome.and(removed)
}

fn at<T>(path: &Path, outcome: io::Result<T>) -> Result<T, SelfTestError> {
    outcome.map_err(|error| SelfTestError::Io { path: path.to_owned(), error })
}

/// What the compiler reads.
fn write(directory: &Path, weights: &[u8]) -> Result<(), SelfTestError> {
    let (text, file) =
        (directory.join(MODEL_FILE), directory.join(WEIGHTS.trim_start_matches(MODEL_PATH)));
    let folder = file.parent().unwrap_or(directory);
    at(folder, std::fs::create_dir_all(folder))?;
    at(&text, std::fs::write(&text, TEXT))?;
    at(&file, std::fs::write(&file, weights))
}

fn weight(channel: usize) -> f32 {
    (channel % 4 + 2) as f32
}

/// A weight file of one fp16 blob: header, record, values.
fn weight_file() -> Vec<u8> {
    let values = (0..CHANNELS).flat_map(|channel| f16::from_f32(weight(channel)).to_le_bytes());
    let mut file = vec![0_u8; 128];
    file[0] = 1; // one blob
    file[4] = 2; // version of the format
    file[64..68].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    file[68] = 1; // fp16
    file[72..80].copy_from_slice(&(2 * CHANNELS as u64).to_le_bytes());
    file[80] = 128; // where the values are
    file.extend(values);
    file
}

fn compile_and_run<P: Port>(port: &P, model: &P::Model) -> Result<(), SelfTestError> {
    let qos = Qos::default();
    port.compile(model, qos)?;
    port.load(model, qos)?;
    let outcome = run(port, model, qos);
    // Whatever happened, the engine gets its program back.
    let unloaded = port.unload(model, qos);
    outcome.and(unloaded.map_err(SelfTestError::Port))
}

fn run<P: Port>(port: &P, model: &P::Model, qos: Qos) -> Result<(), SelfTestError> {
    let a = |i: usize| (i % 16) as f32;
    let b = |i: usize| (i % 3) as f32;
    let surface = || port.surface(2 * ELEMENTS);
    let (in_a, in_b, out) = (surface()?, surface()?, surface()?);
    put(port, &in_a, a)?;
    put(port, &in_b, b)?;
    let request = port.request(&[&in_a, &in_b], &[&out])?;
    // Twice, because requests are reused.
    port.evaluate(model, &request, qos)?;
    port.evaluate(model, &request, qos)?;
    let mut wrong = None;
    port.access(&out, &mut |bytes| {
        let found = bytes.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]]));
        wrong = found.enumerate().find_map(|(index, found)| {
            let expected = f16::from_f32(a(index) * weight(index / COLUMNS) - b(index));
            (found != expected).then_some(SelfTestError::Wrong { index, found, expected })
        });
    })?;
    wrong.map_or(Ok(()), Err)
}

fn put<P: Port>(
    port: &P,
    surface: &P::Surface,
    value: impl Fn(usize) -> f32,
) -> Result<(), SelfTestError> {
    let mut is_zeroed = false;
    port.access(surface, &mut |bytes| {
        is_zeroed = bytes.iter().all(|byte| *byte == 0);
        for (index, place) in bytes.chunks_exact_mut(2).enumerate() {
            place.copy_from_slice(&f16::from_f32(value(index)).to_le_bytes());
        }
    })?;
    if is_zeroed { Ok(()) } else { Err(SelfTestError::NotZeroed) }
}
