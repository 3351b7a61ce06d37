//! Prints the median time of the matrix products of SmolLM2-135M, for each instruction set and thread
//! count, and the median time the calling thread had a core for (Linux), which tells on a busy machine.
//!
//! Arguments: instruction sets (`Avx2`), thread counts (`t2`), input rows (`256`); none means all.
//! With `formats`, each weight type on its own instead.
#![allow(unsafe_code, reason = "the peak is measured with vector instructions")]

use std::time::Instant;

use rigel_kernels::{Isa, Linear, Matrix, Pool, matmul_many};
use tensor::DType;

/// Weights of one layer, grouped by the input they share: (rows, columns).
const LAYER: [&[(usize, usize)]; 4] = [
    &[(576, 576), (192, 576), (192, 576)],
    &[(576, 576)],
    &[(1536, 576), (1536, 576)],
    &[(576, 1536)],
];
const FORMATS: [DType; 14] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Iq4Nl,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];
const LAYERS: usize = 30;
const HEAD: (usize, usize) = (49152, 576);

/// Weights as they lie in a file: one after another in one big allocation.
struct Model {
    bytes: Vec<u8>,
    layer: DType,
    head: DType,
}

impl Model {
    fn new(layer: DType, head: DType) -> Self {
        let shapes = LAYER.concat();
        let size =
            |dtype: DType, (n, k): (usize, usize)| n * k / dtype.block_len() * dtype.block_bytes();
        let total =
            LAYERS * shapes.iter().map(|&s| size(layer, s)).sum::<usize>() + size(head, HEAD);
        Model { bytes: weights(total), layer, head }
    }

    /// One pass of `m` rows through all weights; the head sees the last row only.
    fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [Vec<f32>]) {
        let mut rest = self.bytes.as_slice();
        let mut take = |dtype: DType, (n, k): (usize, usize)| {
            let size = n * k / dtype.block_len() * dtype.block_bytes();
            let (bytes, tail) = rest.split_at(size);
            rest = tail;
            Matrix::new(dtype, n, k, bytes)
        };
        for _ in 0..LAYERS {
            for group in LAYER {
                let k = group[0].1;
                let mut products = Vec::new();
                for (&shape, out) in group.iter().zip(out.iter_mut()) {
                    let Ok(weight) = take(self.layer, shape) else { continue };
                    products.push(Linear { weight, bias: None, out: &mut out[..m * shape.0] });
                }
                matmul_many(pool, &x[..m * k], &mut products);
            }
        }
        if let Ok(weight) = take(self.head, HEAD) {
            let out = &mut out[0][..HEAD.0];
            matmul_many(pool, &x[..HEAD.1], &mut [Linear { weight, bias: None, out }]);
        }
    }
}

/// Small values in every field; whatever bytes stand in for scales or floats are normal numbers.
fn weights(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b | 0x20).collect()
}

/// Seconds that this thread had a core for.
fn core_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).map_or(f64::NAN, |ns: f64| ns / 1e9)
}

/// The medians of `runs` times and core times, in seconds.
fn times(runs: usize, mut run: impl FnMut()) -> (f64, f64) {
    let mut times = Vec::new();
    let mut core = Vec::new();
    for _ in 0..runs {
        let (start, core_start) = (Instant::now(), core_seconds());
        run();
        core.push(core_seconds() - core_start);
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    core.sort_by(f64::total_cmp);
    (times[runs / 2], core[runs / 2])
}

/// Independent multiply-adds in registers: what the matrix products are measured against.
#[cfg(target_arch = "x86_64")]
fn peak(isa: Isa) -> Option<f64> {
    use std::arch::x86_64::*;
    const STEPS: usize = 10_000_000;
    macro_rules! chains {
        ($name:ident, $features:literal, $set:ident, $fma:ident) => {
            #[target_feature(enable = $features)]
            fn $name() {
                let factor = $set(std::hint::black_box(0.5));
                let mut sums = [$set(std::hint::black_box(1.0)); 10];
                for _ in 0..STEPS {
                    sums.iter_mut().for_each(|s| *s = $fma(*s, factor, factor));
                }
                std::hint::black_box(sums);
            }
        };
    }
    chains!(avx512, "avx512f", _mm512_set1_ps, _mm512_fmadd_ps);
    chains!(avx2, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps);
    let lanes = match isa {
        Isa::Avx512 | Isa::Amx => 16,
        Isa::Avx2 => 8,
        _ => return None,
    };
    let (_, core) = times(3, || match isa {
        // SAFETY: the caller passes an instruction set that is available.
        Isa::Avx512 | Isa::Amx => unsafe { avx512() },
        // SAFETY: as above.
        _ => unsafe { avx2() },
    });
    Some((2 * lanes * 10 * STEPS) as f64 / core / 1e9)
}

#[cfg(not(target_arch = "x86_64"))]
fn peak(_: Isa) -> Option<f64> {
    None
}

/// Every weight type on its own, one input row, one thread: weights that stay in the second-level cache
/// and weights that come from memory.
fn formats(isas: &[Isa], x: &[f32], out: &mut [f32]) {
    const COLUMNS: usize = 1536;
    println!("isa        type        ns/1024 weights: cached  memory   GB/s: cached  memory");
    for &isa in isas {
        let pool = Pool::with_isa(1, isa);
        for dtype in FORMATS {
            let row = COLUMNS / dtype.block_len() * dtype.block_bytes();
            let [cached, memory] = [256 * row, 1 << 26].map(|size| {
                let n = size / row;
                let bytes = weights(n * row);
                let run = || {
                    let start = Instant::now();
                    let Ok(weight) = Matrix::new(dtype, n, COLUMNS, &bytes) else {
                        return f64::NAN;
                    };
                    let linear = Linear { weight, bias: None, out: &mut out[..n] };
                    matmul_many(&pool, &x[..COLUMNS], &mut [linear]);
                    start.elapsed().as_secs_f64()
                };
                // The best of many short runs is one that was not interrupted.
                let runs = if n > 256 { 15 } else { 300 };
                std::iter::repeat_with(run).take(runs).fold(f64::INFINITY, f64::min) / n as f64
            });
            println!(
                "{:9} {:6} {:28.1} {:7.1} {:14.1} {:7.1}",
                format!("{isa:?}"),
                dtype.to_string(),
                cached * 1e9 / COLUMNS as f64 * 1024.0,
                memory * 1e9 / COLUMNS as f64 * 1024.0,
                row as f64 / cached / 1e9,
                row as f64 / memory / 1e9,
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |what: &str| arguments.iter().any(|a| a == what);
    let rows: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let rows = if rows.is_empty() { vec![1, 4, 8, 32, 256] } else { rows };
    let mut isas = Isa::available().to_vec();
    if isas.iter().any(|i| chosen(&format!("{i:?}"))) {
        isas.retain(|i| chosen(&format!("{i:?}")));
    }
    let mut threads = vec![1, 2];
    if threads.iter().any(|t| chosen(&format!("t{t}"))) {
        threads.retain(|t| chosen(&format!("t{t}")));
    }
    for &isa in &isas {
        if let Some(peak) = peak(isa) {
            println!("{isa:?}: {peak:.0} GFLOP/s multiply-add peak of one core");
        }
    }
    let x: Vec<f32> = (0..512 * 1536).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut out = vec![vec![0f32; 512 * 1536]; 3];
    let weights = LAYERS * LAYER.concat().iter().map(|(n, k)| n * k).sum::<usize>();
    if chosen("formats") {
        return formats(&isas, &x, &mut out[0]);
    }
    println!("isa       threads  types        rows        ms   core ms     GB/s  GFLOP/s");
    for (layer, head) in
        [(DType::Q4_1, DType::Q8_0), (DType::Q4_0, DType::Q8_0), (DType::F16, DType::F16)]
    {
        let model = Model::new(layer, head);
        for &isa in &isas {
            for &threads in &threads {
                let pool = Pool::with_isa(threads, isa);
                for &m in &rows {
                    let runs = if m == 1 { 15 } else { 5 };
                    let (s, core) = times(runs, || model.forward(&pool, &x, m, &mut out));
                    let flops = 2.0 * (weights * m + HEAD.0 * HEAD.1) as f64;
                    println!(
                        "{:9} {threads:7}  {:12} {m:4} {:9.3} {:9.3} {:8.2} {:8.1}",
                        format!("{isa:?}"),
                        format!("{layer}/{head}"),
                        s * 1e3,
                        core * 1e3,
                        model.bytes.len() as f64 / s / 1e9,
                        flops / s / 1e9,
                    );
                }
            }
        }
    }
}
