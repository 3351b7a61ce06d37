//! Matrix products of every type and instruction set against sums in double precision.

use proptest::prelude::*;
use rigel_kernels::{Linear, Matrix, Pool, decode, gather, matmul, matmul_many};
use tensor::{DType, dequantize};

use crate::common::{Random, WEIGHT_TYPES, pools};

/// Bytes that start at an odd address within their buffer.
struct Unaligned(Vec<u8>);

impl Unaligned {
    fn new(bytes: &[u8]) -> Self {
        let mut buffer: Vec<u8> = Vec::with_capacity(bytes.len() + 2);
        let odd = if buffer.as_ptr().addr().is_multiple_of(2) { 1 } else { 2 };
        buffer.resize(odd, 0);
        buffer.extend_from_slice(bytes);
        Unaligned(buffer)
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.0[self.0.len() - len..]
    }
}

/// The plain product in double precision, and the sum of magnitudes that bounds its rounding.
fn naive(x: &[f32], w: &[f32], bias: Option<&[f32]>, m: usize, n: usize) -> Vec<(f64, f64)> {
    let k = x.len().checked_div(m).unwrap_or(0);
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            let b = bias.map_or(0.0, |b| f64::from(b[j]));
            let terms = (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l]));
            let (mut sum, mut size) = (b, b.abs());
            for t in terms {
                sum += t;
                size += t.abs();
            }
            out.push((sum, size));
        }
    }
    out
}

/// Checks one product on all instruction sets, and that two threads give the same bits as one.
fn check(dtype: DType, m: usize, n: usize, k: usize, biased: bool, seed: u64) {
    let mut random = Random::new(seed);
    let x = random.floats(m * k);
    let bytes = random.weights(dtype, n * k);
    let bias = biased.then(|| random.floats(n));
    let mut w = vec![0f32; n * k];
    assert!(dequantize(dtype, &bytes, &mut w));
    let expected = naive(&x, &w, bias.as_deref(), m, n);
    let unaligned = Unaligned::new(&bytes);
    let matrix = Matrix::new(dtype, n, k, unaligned.bytes(bytes.len())).unwrap();
    for (one, two) in pools(1).iter().zip(pools(2)) {
        let mut out = vec![f32::NAN; m * n];
        matmul(one, &x, matrix, bias.as_deref(), &mut out);
        for (i, (got, (want, size))) in out.iter().zip(&expected).enumerate() {
            // The minimum of a group is a sum of its own that the values may cancel: hence 16.
            let bound = 16.0 * f64::from(f32::EPSILON) * (size + 1e-3);
            assert!(
                (f64::from(*got) - want).abs() <= bound,
                "{dtype} [{m}, {k}] x [{n}, {k}] on {:?}: element {i} is {got}, not {want}",
                one.isa()
            );
        }
        let mut again = vec![f32::NAN; m * n];
        matmul(&two, &x, matrix, bias.as_deref(), &mut again);
        assert_eq!(out, again, "{dtype} [{m}, {k}] x [{n}, {k}] on {:?}", one.isa());
    }
}

#[test]
fn every_type_at_every_number_of_rows() {
    for (i, dtype) in WEIGHT_TYPES.into_iter().enumerate() {
        for m in [1, 2, 3, 4, 5, 8, 9, 17, 33] {
            check(dtype, m, 13, 512, m % 2 == 0, (i * 100 + m) as u64);
        }
    }
}

#[test]
fn no_rows_and_no_inputs() {
    check(DType::Q4_1, 0, 5, 64, true, 1);
    check(DType::F32, 3, 0, 7, false, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_shape(
        dtype in prop::sample::select(WEIGHT_TYPES.to_vec()),
        m in 1usize..40,
        n in 1usize..70,
        k in 1usize..700,
        biased: bool,
        seed: u64,
    ) {
        check(dtype, m, n, k.next_multiple_of(dtype.block_len()), biased, seed);
    }
}

#[test]
fn decoding_is_exact() {
    for dtype in WEIGHT_TYPES {
        let mut random = Random::new(7);
        let (rows, cols) = (9, if dtype.block_len() == 1 { 77 } else { 512 });
        let bytes = random.weights(dtype, rows * cols);
        let mut expected = vec![0f32; rows * cols];
        assert!(dequantize(dtype, &bytes, &mut expected));
        let unaligned = Unaligned::new(&bytes);
        let matrix = Matrix::new(dtype, rows, cols, unaligned.bytes(bytes.len())).unwrap();
        for pool in pools(2) {
            let mut out = vec![f32::NAN; rows * cols];
            decode(&pool, matrix, &mut out);
            assert_eq!(out, expected, "{dtype} on {:?}", pool.isa());
            let mut picked = vec![f32::NAN; 3 * cols];
            gather(&pool, matrix, &[8, 0, 8], &mut picked).unwrap();
            assert_eq!(picked[..cols], expected[8 * cols..]);
            assert_eq!(picked[cols..2 * cols], expected[..cols]);
            assert_eq!(picked[2 * cols..], expected[8 * cols..]);
        }
    }
}

#[test]
fn gather_refuses_rows_that_are_not_there() {
    let pool = Pool::new(1);
    let table = Matrix::new(DType::F32, 2, 1, &[0; 8]).unwrap();
    for index in [-1, 2] {
        let error = gather(&pool, table, &[0, index], &mut [0.0; 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("row {index} asked for at position 1, but the table has 2 rows")
        );
    }
}

#[test]
fn several_products_are_the_single_ones() {
    let mut random = Random::new(3);
    for m in [1, 3, 20] {
        let k = 256;
        let x = random.floats(m * k);
        let (a, b) = (random.weights(DType::Q4K, 50 * k), random.weights(DType::Q6K, 7 * k));
        let a = Matrix::new(DType::Q4K, 50, k, &a).unwrap();
        let b = Matrix::new(DType::Q6K, 7, k, &b).unwrap();
        for pool in pools(2) {
            let (mut a1, mut a2) = (vec![0f32; m * 50], vec![0f32; m * 50]);
            let (mut b1, mut b2) = (vec![0f32; m * 7], vec![0f32; m * 7]);
            matmul(&pool, &x, a, None, &mut a1);
            matmul(&pool, &x, b, None, &mut b1);
            let products = &mut [
                Linear { weight: a, bias: None, out: &mut a2 },
                Linear { weight: b, bias: None, out: &mut b2 },
            ];
            matmul_many(&pool, &x, products);
            assert_eq!((a1, b1), (a2, b2));
        }
    }
}

#[test]
fn a_matrix_must_fit_its_bytes() {
    let error = Matrix::new(DType::Q4_0, 2, 40, &[0; 45]).unwrap_err();
    assert!(error.to_string().contains("[2, 40] matrix of"), "{error}");
    let error = Matrix::new(DType::I32, 1, 1, &[0; 4]).unwrap_err();
    assert!(error.to_string().contains("not supported"), "{error}");
}
