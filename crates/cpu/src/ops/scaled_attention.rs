//! MIL's scaled dot-product attention: every query over all keys, with a mask.

use kernels::Pool;
use mil::OpError;
use tensor::DType;

use super::for_each_item;
use super::matmul::{Matrices, MatrixPlaces, multiply};
use super::strided::strides_in;
use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Queries whose scores are held at a time.
const QUERIES: usize = 32;

/// Binds `scaled_dot_product_attention`.
pub(crate) fn attention(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (_, out) = cx.result(0)?;
    let query = cx.float("query")?;
    let queries = Matrices::new(query, &out);
    let (keys, values) = (Matrices::stored(cx, "key", &out)?, Matrices::stored(cx, "value", &out)?);
    let (width, span) = (queries.cols, keys.rows);
    if width == 0 || span == 0 || values.cols == 0 {
        return Err("rows without elements".into());
    }
    let mut inputs = vec![queries.operand.clone(), keys.operand.clone(), values.operand.clone()];
    let mask = match cx.opt("attn_mask")? {
        None => None,
        Some(mask) => {
            let scores = [&out[..out.len() - 1], &[span]].concat();
            let steps = strides_in(&mask.shape, &scores);
            let bools = mask.dtype == DType::Bool;
            inputs.push(if bools { mask } else { cx.as_float(mask, "attn_mask")? });
            Some(Mask { shape: scores, steps, bools })
        }
    };
    let scale = (width as f32).sqrt().recip();
    let kernel = ScaledAttention {
        queries: queries.places(),
        keys: keys.places(),
        values: values.places(),
        mask,
        scale,
    };
    Ok(Native::floats(kernel, inputs))
}

/// Where a score's mask lies.
struct Mask {
    /// Of the scores.
    shape: Vec<usize>,
    /// In the mask, 0 where it is repeated.
    steps: Vec<usize>,
    bools: bool,
}

impl Mask {
    /// Adds to `scores` of query `query`, numbered through all matrices, what hides them or not.
    fn add(&self, mask: &[u8], query: usize, scores: &mut [f32]) {
        let last = self.shape.len() - 1;
        let (mut at, mut n) = (0, query);
        for axis in (0..last).rev() {
            at += n % self.shape[axis] * self.steps[axis];
            n /= self.shape[axis];
        }
        let places = (0..).map(|k| at + k * self.steps[last]);
        if self.bools {
            for (score, at) in scores.iter_mut().zip(places) {
                if mask[at] == 0 {
                    *score = f32::NEG_INFINITY;
                }
            }
        } else {
            let mask = f32s(mask);
            scores.iter_mut().zip(places).for_each(|(score, at)| *score += mask[at]);
        }
    }
}

struct ScaledAttention {
    queries: MatrixPlaces,
    keys: MatrixPlaces,
    values: MatrixPlaces,
    mask: Option<Mask>,
    scale: f32,
}

impl ScaledAttention {
    /// The attention of one matrix of queries, of which the first is number `first` of all.
    fn matrix(
        &self,
        pool: &Pool,
        (queries, keys, values): (&[f32], kernels::Matrix<'_>, kernels::Matrix<'_>),
        mask: Option<&[u8]>,
        first: usize,
        out: &mut [f32],
    ) {
        let (span, width, wide) = (keys.rows(), self.queries.cols, values.cols());
        let mut scores = vec![0f32; QUERIES.min(self.queries.rows) * span];
        let mut weights = scores.clone();
        let blocks = queries.chunks(QUERIES * width).zip(out.chunks_mut(QUERIES * wide));
        for (block, (queries, out)) in blocks.enumerate() {
            let rows = queries.len() / width;
            let (scores, weights) = (&mut scores[..rows * span], &mut weights[..rows * span]);
            kernels::matmul(pool, queries, keys, None, scores);
            kernels::scale_in_place(pool, scores, self.scale);
            if let (Some(by), Some(mask)) = (&self.mask, mask) {
                for (row, scores) in scores.chunks_exact_mut(span).enumerate() {
                    by.add(mask, first + block * QUERIES + row, scores);
                }
            }
            kernels::softmax(pool, scores, span, weights);
            multiply(pool, weights, values, true, out);
        }
    }
}

impl Kernel for ScaledAttention {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (keys, values) = (self.keys.over(ins[1])?, self.values.over(ins[2])?);
        let (queries, mask) = (f32s(ins[0]), ins.get(3).copied());
        let (rows, width) = (self.queries.rows, self.queries.cols);
        for_each_item(cx.pool, f32s_mut(outs[0]), rows * self.values.cols, |n, out| {
            let first = |of: &MatrixPlaces| of.of(n) * of.rows;
            let queries = &queries[first(&self.queries) * width..][..rows * width];
            let keys = keys.slice(first(&self.keys)..first(&self.keys) + self.keys.rows);
            let values = values.slice(first(&self.values)..first(&self.values) + self.values.rows);
            self.matrix(cx.pool, (queries, keys, values), mask, n * rows, out);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_repeated() {
        let mask = Mask { shape: vec![2, 3, 4], steps: vec![0, 4, 1], bools: false };
        let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut scores = [1f32; 4];
        mask.add(bytemuck::cast_slice(&values), 5, &mut scores);
        assert_eq!(scores, [9.0, 10.0, 11.0, 12.0]);
    }
}
