//! Between host tensors and the packed fp16 data of surfaces.

use std::borrow::Cow;

use exec::Result;
use half::f16;
use half::slice::HalfFloatSliceExt;
use mil::TensorType;
use tensor::{DType, Tensor};

use crate::error::bug;

/// The elements of a tensor in half precision.
fn halves(tensor: &Tensor) -> Result<Cow<'_, [f16]>> {
    let unfit = || bug(format!("{} where the engine takes floats", tensor.dtype()));
    match tensor.dtype() {
        DType::F16 => tensor.as_slice::<f16>().map(Cow::Borrowed).map_err(|_| unfit()),
        DType::F32 => {
            let floats = tensor.as_slice::<f32>().map_err(|_| unfit())?;
            let mut halves = vec![f16::ZERO; floats.len()];
            halves.convert_from_f32_slice(floats);
            Ok(halves.into())
        }
        _ => {
            let floats = mil::eval::tensor_floats(tensor).ok_or_else(unfit)?;
            Ok(floats.into_iter().map(f16::from_f64).collect())
        }
    }
}

/// Writes tokens `[1, T, D]` as `[D, columns]`, columns beyond `T` being 0.
///
/// # Errors
/// When there are more tokens than columns or the surface is too small.
pub(crate) fn pack_tokens(tensor: &Tensor, columns: usize, surface: &mut [u8]) -> Result<usize> {
    let values = halves(tensor)?;
    let tokens = tensor.shape().get(1).copied().unwrap_or(0);
    let width = values.len() / tokens.max(1);
    if tokens > columns || surface.len() < width * columns * 2 {
        return Err(bug(format!("{tokens} tokens of {width} in {columns} columns")));
    }
    let out = &mut surface[..width * columns * 2];
    out.fill(0);
    let (places, _) = out.as_chunks_mut::<2>();
    for (t, token) in values.chunks_exact(width.max(1)).enumerate() {
        for (channel, x) in token.iter().enumerate() {
            places[channel * columns + t] = x.to_le_bytes();
        }
    }
    Ok(out.len())
}

/// Reads the first `tokens` columns of `[D, columns]` as a tensor of type `ty`, whose second axis is
/// the tokens'.
///
/// # Errors
/// When the type is no float or the surface too small.
pub(crate) fn unpack_tokens(
    surface: &[u8],
    ty: &TensorType,
    columns: usize,
    tokens: usize,
) -> Result<Tensor> {
    let rest: Option<Vec<usize>> = ty.shape[2..].iter().map(mil::Dim::fixed).collect();
    let rest = rest.ok_or_else(|| bug(format!("{ty} has no fixed width")))?;
    let width: usize = rest.iter().product();
    let (halves, _) = surface.as_chunks::<2>();
    if halves.len() < width * columns {
        return Err(bug(format!("{ty} in a surface of {} bytes", surface.len())));
    }
    let at = |i: usize| f16::from_le_bytes(halves[i % width * columns + i / width]);
    let shape = [&[1, tokens], &rest[..]].concat();
    let count = tokens * width;
    float_tensor(ty, &shape, (0..count).map(at))
}

/// Writes a tensor's rows, along its last axis, each filled up with zeros to a width `[1, R, 1, W]`.
///
/// # Errors
/// When the tensor has other rows or the surface is too small.
pub(crate) fn pack_rows(tensor: &Tensor, shape: [usize; 4], surface: &mut [u8]) -> Result<usize> {
    let [_, rows, _, filled] = shape;
    let width = tensor.shape().last().copied().unwrap_or(1);
    let values = halves(tensor)?;
    if values.len() != rows * width || width > filled || surface.len() < rows * filled * 2 {
        return Err(bug(format!("{:?} in {rows} rows of {filled}", tensor.shape())));
    }
    let out = &mut surface[..rows * filled * 2];
    out.fill(0);
    let (places, _) = out.as_chunks_mut::<2>();
    for (row, to) in values.chunks_exact(width.max(1)).zip(places.chunks_exact_mut(filled.max(1))) {
        to.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_le_bytes());
    }
    Ok(out.len())
}

/// Reads rows of `[1, R, 1, W]` as a tensor of type `ty`, of fixed size.
///
/// # Errors
/// When the type is no float or the surface too small.
pub(crate) fn unpack_rows(surface: &[u8], ty: &TensorType, multiple: usize) -> Result<Tensor> {
    let shape = ty.fixed_shape().ok_or_else(|| bug(format!("{ty} has no fixed size")))?;
    let width = shape.last().copied().unwrap_or(1).max(1);
    let (filled, count) = (width.next_multiple_of(multiple), shape.iter().product::<usize>());
    let (halves, _) = surface.as_chunks::<2>();
    if halves.len() < count / width * filled {
        return Err(bug(format!("{ty} in a surface of {} bytes", surface.len())));
    }
    let rows = halves.chunks_exact(filled).take(count / width);
    float_tensor(ty, &shape, rows.flat_map(|row| &row[..width]).copied().map(f16::from_le_bytes))
}

/// A tensor of floats in the type that the host wants.
fn float_tensor(
    ty: &TensorType,
    shape: &[usize],
    values: impl Iterator<Item = f16>,
) -> Result<Tensor> {
    let made = match ty.dtype {
        DType::F16 => Tensor::from_slice(shape, &values.collect::<Vec<_>>()),
        DType::F32 => Tensor::from_slice(shape, &values.map(f16::to_f32).collect::<Vec<_>>()),
        other => return Err(bug(format!("{other} where the engine gives floats"))),
    };
    made.map_err(|e| bug(e.to_string()))
}

/// Writes a tensor's elements in their order as fp16.
///
/// # Errors
/// When it is no float or the surface is too small.
pub(crate) fn pack_raw(tensor: &Tensor, surface: &mut [u8]) -> Result<usize> {
    let bytes = tensor.len() * 2;
    let room = surface.len();
    let out = surface
        .get_mut(..bytes)
        .ok_or_else(|| bug(format!("{bytes} bytes in a surface of {room}")))?;
    let values = halves(tensor)?;
    out.as_chunks_mut::<2>().0.iter_mut().zip(&*values).for_each(|(to, x)| *to = x.to_le_bytes());
    Ok(bytes)
}

/// Writes a cache `[1, heads, slots, dim]` of type `dtype` as `[heads, dim, slots]`.
pub(crate) fn pack_state(
    data: &[u8],
    dtype: DType,
    [heads, dim, slots]: [usize; 3],
    surface: &mut [u8],
) {
    let (out, _) = surface.as_chunks_mut::<2>();
    for h in 0..heads {
        for s in 0..slots {
            for d in 0..dim {
                let from = (h * slots + s) * dim + d;
                out[(h * dim + d) * slots + s] = match dtype {
                    DType::F32 => f16::from_f32(f32::from_le_bytes(data.as_chunks::<4>().0[from]))
                        .to_le_bytes(),
                    _ => data.as_chunks::<2>().0[from],
                };
            }
        }
    }
}

/// The reverse of [`pack_state`].
pub(crate) fn unpack_state(
    surface: &[u8],
    dtype: DType,
    [heads, dim, slots]: [usize; 3],
    data: &mut [u8],
) {
    let (from, _) = surface.as_chunks::<2>();
    for h in 0..heads {
        for s in 0..slots {
            for d in 0..dim {
                let half = from[(h * dim + d) * slots + s];
                let to = (h * slots + s) * dim + d;
                match dtype {
                    DType::F32 => {
                        data.as_chunks_mut::<4>().0[to] =
                            f16::from_le_bytes(half).to_f32().to_le_bytes();
                    }
                    _ => data.as_chunks_mut::<2>().0[to] = half,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_caches_come_back() {
        let values: Vec<f32> = (0..6).map(|i| i as f32 - 2.5).collect();
        let tokens = Tensor::from_slice(&[1, 2, 3], &values).unwrap();
        let mut surface = vec![0xff; 3 * 4 * 2 + 10];
        assert_eq!(pack_tokens(&tokens, 4, &mut surface).unwrap(), 24);
        // Channel first: the second token's first element follows the first token's.
        assert_eq!(surface[2..4], f16::from_f32(0.5).to_le_bytes());
        assert_eq!(surface[4..8], [0; 4]);
        let ty = TensorType::new(DType::F32, [1usize, 2, 3]);
        let back = unpack_tokens(&surface, &ty, 4, 2).unwrap();
        assert_eq!(back.as_slice::<f32>().unwrap(), values);
        assert!(pack_tokens(&tokens, 1, &mut surface).is_err());

        let cache: Vec<u8> =
            (0..24).map(|i: u16| f16::from_f32(i.into())).flat_map(f16::to_le_bytes).collect();
        let mut surface = vec![0; 48];
        pack_state(&cache, DType::F16, [2, 3, 4], &mut surface);
        let mut back = vec![0; 48];
        unpack_state(&surface, DType::F16, [2, 3, 4], &mut back);
        assert_eq!(back, cache);
        assert_ne!(surface, cache);
    }
}
