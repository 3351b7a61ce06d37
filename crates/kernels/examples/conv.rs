//! Prints the speed of convolutions beside that of the matrix product of the same size, in GFLOP/s:
//! each the best of several runs, taken in turns.
//!
//! Argument: the number of threads, 1 by default.

use std::time::Instant;

use rigel_kernels::{Axis, Conv, Matrix, Pool, conv, matmul};
use tensor::DType;

const RUNS: usize = 7;

/// Name, input channels, output channels, groups, height and width, kernel, stride.
const LAYERS: [(&str, usize, usize, usize, usize, usize, usize); 7] = [
    ("1x1", 256, 256, 1, 28, 1, 1),
    ("1x1 to many", 512, 2048, 1, 14, 1, 1),
    ("1x1 of one place", 2048, 2048, 1, 1, 1, 1),
    ("3x3", 128, 128, 1, 28, 3, 1),
    ("3x3 strided", 64, 128, 1, 56, 3, 2),
    ("7x7 strided", 3, 64, 1, 224, 7, 2),
    ("3x3 depthwise", 256, 256, 256, 28, 3, 1),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |n| n.parse())?;
    let pool = Pool::new(threads);
    println!("{:<18}{:>10}{:>10}{:>8}", "convolution", "conv", "product", "ratio");
    for (name, channels, outputs, groups, side, kernel, stride) in LAYERS {
        let before = kernel / 2;
        let out = (side + 2 * before - kernel) / stride + 1;
        let axis = Axis { size: side, kernel, out, before, stride, dilation: 1 };
        let single = Axis { size: 1, kernel: 1, out: 1, before: 0, stride: 1, dilation: 1 };
        let inputs = channels / groups;
        let args = Conv {
            batch: 1,
            groups,
            inputs,
            outputs: outputs / groups,
            axes: [single, axis, axis],
        };
        let depth = inputs * kernel * kernel;
        let weights = vec![0.01f32; outputs * depth];
        let bytes: Vec<u8> = weights.iter().flat_map(|v| v.to_le_bytes()).collect();
        let weight = Matrix::new(DType::F32, outputs, depth, &bytes)?;
        let x = vec![0.5f32; channels * side * side];
        let rows = vec![0.5f32; out * out * depth];
        let (mut y, mut z) = (vec![0f32; outputs * out * out], vec![0f32; outputs * out * out]);
        let (mut best, mut product) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            let start = Instant::now();
            conv(&pool, &args, &x, weight, None, &mut y);
            best = best.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            matmul(&pool, &rows, weight, None, &mut z);
            product = product.min(start.elapsed().as_secs_f64());
        }
        let flops = 2.0 * (outputs * depth * out * out) as f64;
        let (conv, gemm) = (flops / best / 1e9, flops / product / 1e9);
        println!("{name:<18}{conv:>10.1}{gemm:>10.1}{:>8.2}", conv / gemm);
    }
    Ok(())
}
