//! Prints the rate of the products of a training step, each by its way of lying: forward, by the input, by
//! the weight; in single precision and in bfloat16. The rate is that of the time for which the calling
//! thread had a core (Linux), which tells on a busy machine; one thread.
//!
//! Arguments: numbers of tokens; 256 and 1024 by default.

use rigel_kernels::{
    AttentionGrad, Matrix, Pool, Precision, Sequence, attention_grad, matmul, matmul_columns,
    matmul_turned,
};
use tensor::DType;

/// Outputs and inputs of the linear layers of Stories110M.
const LAYERS: [(usize, usize); 3] = [(768, 768), (2048, 768), (768, 2048)];
const RUNS: usize = 7;

/// Seconds for which the calling thread had a core so far.
fn core_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.unwrap_or(f64::NAN) / 1e9
}

/// The median seconds of a run. The system tells the time of a core in steps of some milliseconds, so many
/// are timed together.
fn median(mut run: impl FnMut()) -> f64 {
    const ENOUGH: f64 = 0.1;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let (start, mut count) = (core_seconds(), 0);
        while core_seconds() - start < ENOUGH {
            run();
            count += 1;
        }
        times.push((core_seconds() - start) / f64::from(count));
    }
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

fn matrix(x: &[f32], rows: usize, cols: usize) -> Result<Matrix<'_>, rigel_kernels::KernelError> {
    Matrix::new(DType::F32, rows, cols, bytemuck::cast_slice(x))
}

fn attention(pool: &Pool, tokens: usize) -> f64 {
    let (heads, dim, len) = (12, 64, tokens * 768);
    let x = numbers(len);
    let visible = (0..tokens).map(|t| 0..t + 1).collect();
    let sequences = &[Sequence { order: (0..tokens).collect(), visible }];
    let args = AttentionGrad {
        q: &x,
        keys: &x,
        values: &x,
        grad: &x,
        heads,
        kv_heads: heads,
        dim,
        sequences,
        scale: 0.125,
        softcap: None,
    };
    let mut by = [vec![0f32; len], vec![0f32; len], vec![0f32; len]];
    let seconds = median(|| attention_grad(pool, &args, by.each_mut().map(|v| &mut v[..])));
    // Five products, of which half is seen.
    5.0 * (tokens * tokens * 768) as f64 / seconds / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let tokens = if tokens.is_empty() { vec![256, 1024] } else { tokens };
    for precision in [Precision::Single, Precision::Bf16] {
        let pool = Pool::new(1).with_precision(precision);
        for &m in &tokens {
            for (n, k) in LAYERS {
                let (x, w, y) = (numbers(m * k), numbers(n * k), numbers(m * n));
                let (xm, wm, ym) = (matrix(&x, m, k)?, matrix(&w, n, k)?, matrix(&y, m, n)?);
                let (mut out, mut by_x, mut by_w) =
                    (vec![0f32; m * n], vec![0f32; m * k], vec![0f32; n * k]);
                let flops = 2.0 * (m * n * k) as f64 / 1e9;
                println!(
                    "{precision:?} {m:5} tokens, {n:4} x {k:4}: forward {:4.0}, by input {:4.0}, by weight \
                     {:4.0} GFLOP/s",
                    flops / median(|| matmul(&pool, &x, wm, None, &mut out)),
                    flops / median(|| matmul_columns(&pool, ym, wm, &mut by_x)),
                    flops / median(|| matmul_turned(&pool, &y, xm, false, &mut by_w)),
                );
            }
            println!("{precision:?} {m:5} tokens, attention: {:4.0} GFLOP/s", attention(&pool, m));
        }
    }
    Ok(())
}
