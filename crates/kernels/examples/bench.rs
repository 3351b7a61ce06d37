//! Prints the median and the best time of the matrix products of SmolLM2-135M, for each instruction set and thread count.

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
        // Small values in every field; whatever bytes stand in for scales are finite then.
        let bytes =
            (0..total).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b).collect();
        Model { bytes, layer, head }
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

/// The median and the least of `runs` times, in seconds.
fn times(runs: usize, mut run: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[runs / 2], times[0])
}

fn main() {
    let rows: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let rows = if rows.is_empty() { vec![1, 4, 8, 32, 256] } else { rows };
    let x: Vec<f32> = (0..512 * 1536).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut out = vec![vec![0f32; 512 * 1536]; 3];
    let weights = LAYERS * LAYER.concat().iter().map(|(n, k)| n * k).sum::<usize>();
    println!("isa       threads  types        rows        ms   best ms     GB/s  GFLOP/s");
    for (layer, head) in
        [(DType::Q4_1, DType::Q8_0), (DType::Q4_0, DType::Q6K), (DType::F16, DType::F16)]
    {
        let model = Model::new(layer, head);
        for &isa in Isa::available() {
            for threads in [1, 2] {
                let pool = Pool::with_isa(threads, isa);
                for &m in &rows {
                    let runs = if m == 1 { 15 } else { 5 };
                    let (s, best) = times(runs, || model.forward(&pool, &x, m, &mut out));
                    let flops = 2.0 * (weights * m + HEAD.0 * HEAD.1) as f64;
                    println!(
                        "{:9} {threads:7}  {:12} {m:4} {:9.3} {:9.3} {:8.2} {:8.1}",
                        format!("{isa:?}"),
                        format!("{layer}/{head}"),
                        s * 1e3,
                        best * 1e3,
                        model.bytes.len() as f64 / best / 1e9,
                        flops / best / 1e9,
                    );
                }
            }
        }
    }
}
