//! Moving elements between the axes of an image: channels, batch, rows, columns.

use super::windows::sizes;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, EvalCx, Value};
use crate::{Dim, OpError, TensorType, Type};

/// How an image `[n, c, h, w]` is taken apart and put together again.
struct Moves {
    /// The axes of `x`, those that a block size divides split.
    split: Vec<usize>,
    /// The order in which they are put together.
    perm: [usize; 6],
    /// The shape of the result.
    shape: Vec<usize>,
}

/// What takes part in a move.
#[derive(Clone, Copy)]
enum Kind {
    /// Blocks of the plane to channels, the places in a block counting more than the channels.
    ToDepth,
    /// The inverse.
    FromDepth,
    /// Blocks of the plane to channels, the channels counting more than the places in a block.
    Unshuffle,
    /// The inverse.
    Shuffle,
    /// Blocks of the plane to images, the places in a block counting more than the images.
    ToBatch,
    /// The inverse.
    FromBatch,
}

impl Kind {
    /// The moves for `x` of `shape` in blocks of `[p, q]`; `None` where they do not divide it.
    fn moves(self, shape: [usize; 4], [p, q]: [usize; 2]) -> Option<Moves> {
        let [n, c, h, w] = shape;
        let divide = |size: usize, by: usize| size.is_multiple_of(by).then(|| size / by);
        let block = p.checked_mul(q)?;
        let (split, perm, shape) = match self {
            Kind::ToDepth | Kind::Unshuffle | Kind::ToBatch => {
                let (rows, columns) = (divide(h, p)?, divide(w, q)?);
                let split = vec![n, c, rows, p, columns, q];
                match self {
                    Kind::ToDepth => (split, [0, 3, 5, 1, 2, 4], [n, c * block, rows, columns]),
                    Kind::Unshuffle => (split, [0, 1, 3, 5, 2, 4], [n, c * block, rows, columns]),
                    _ => (split, [3, 5, 0, 1, 2, 4], [n * block, c, rows, columns]),
                }
            }
            Kind::FromDepth => {
                let c = divide(c, block)?;
                (vec![n, p, q, c, h, w], [0, 3, 4, 1, 5, 2], [n, c, h * p, w * q])
            }
            Kind::Shuffle => {
                let c = divide(c, block)?;
                (vec![n, c, p, q, h, w], [0, 1, 4, 2, 5, 3], [n, c, h * p, w * q])
            }
            Kind::FromBatch => {
                let n = divide(n, block)?;
                (vec![p, q, n, c, h, w], [2, 3, 4, 0, 5, 1], [n, c, h * p, w * q])
            }
        };
        Some(Moves { split, perm, shape: shape.to_vec() })
    }

    fn apply(self, x: &Array, block: [usize; 2]) -> Result<Array, OpError> {
        let mismatch =
            || OpError::invalid(format!("blocks of {block:?} do not divide x {:?}", x.shape));
        let shape = <[usize; 4]>::try_from(&*x.shape).map_err(|_| mismatch())?;
        let moves = self.moves(shape, block).ok_or_else(mismatch)?;
        x.reshaped(&moves.split)?.transposed(&moves.perm).reshaped(&moves.shape)
    }

    /// The type of the result; `extra` is what padding adds to each side of the plane.
    fn infer(self, x: &TensorType, block: [usize; 2]) -> Result<TensorType, OpError> {
        if x.rank() != 4 {
            return Err(OpError::invalid(format!("x {x} is no image [n, c, h, w]")));
        }
        let mismatch = || OpError::invalid(format!("blocks of {block:?} do not divide x {x}"));
        // An unknown size is taken for one that divides, and the result's is then unknown too.
        let area = block[0].checked_mul(block[1]).ok_or_else(mismatch)?;
        let stand_in = [area, area, block[0], block[1]];
        let known = |i: usize| x.shape[i].fixed().unwrap_or(stand_in[i]);
        let moves = self.moves([known(0), known(1), known(2), known(3)], block);
        let moves = moves.ok_or_else(mismatch)?;
        let touched: [bool; 4] = match self {
            Kind::ToBatch | Kind::FromBatch => [true, false, true, true],
            _ => [false, true, true, true],
        };
        let shape = moves.shape.into_iter().enumerate().map(|(i, size)| match &x.shape[i] {
            Dim::Fixed(_) => Dim::Fixed(size),
            unknown if !touched[i] => unknown.clone(),
            _ => Dim::Unknown,
        });
        Ok(TensorType { dtype: x.dtype, shape: shape.collect() })
    }
}

/// The constant block size `name`, of rows and columns.
fn block(op: &OpView<'_>, name: &str) -> Result<[usize; 2], OpError> {
    let size = sizes(op, name, 1, 1, 1)?[0];
    Ok([size, size])
}

/// Defines moves between the channels and the plane of an image by blocks of one constant size.
macro_rules! moves {
    ($($(#[$doc:meta])* $kind:ident $name:literal $opset:ident $param:literal $moves:ident;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn opset(&self) -> crate::Opset {
                    crate::Opset::$opset
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("x", Domain::Float),
                            Param::new($param, Domain::Int).constant(),
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    Ok(vec![Kind::$moves.infer(op.tensor("x")?, block(op, $param)?)?.into()])
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let block = block(&cx.op, $param)?;
                    Ok(vec![Kind::$moves.apply(&*cx.array("x")?, block)?.into()])
                }

                fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
                    0.0
                }
            }
        )*
    };
}

moves! {
    /// `x` `[n, c b b, h, w]` as `[n, c, h b, w b]`, `b` being the constant `block_size`: channel
    /// `(i b + j) c + k` becomes the places `[i, j]` of the blocks of channel `k`.
    DepthToSpace "depth_to_space" Ios15 "block_size" FromDepth;
    /// `x` `[n, c, h b, w b]` as `[n, c b b, h, w]`: the inverse of `depth_to_space`.
    SpaceToDepth "space_to_depth" Ios15 "block_size" ToDepth;
    /// `x` `[n, c f f, h, w]` as `[n, c, h f, w f]`, `f` being the constant `upscale_factor`: channel
    /// `k f f + i f + j` becomes the places `[i, j]` of the blocks of channel `k`.
    PixelShuffle "pixel_shuffle" Ios15 "upscale_factor" Shuffle;
    /// `x` `[n, c, h f, w f]` as `[n, c f f, h, w]`, `f` being the constant `downscale_factor`: the
    /// inverse of `pixel_shuffle`.
    PixelUnshuffle "pixel_unshuffle" Ios16 "downscale_factor" Unshuffle;
}

/// The constant `block_shape` `[2]` and the pairs of the constant `name` `[2, 2]`.
fn batch_options(op: &OpView<'_>, name: &str) -> Result<([usize; 2], [usize; 4]), OpError> {
    let ty = op.tensor(name)?;
    if ty.fixed_shape().as_deref() != Some(&[2, 2]) {
        return Err(OpError::invalid(format!("{name} {ty} is not of shape [2, 2]")));
    }
    let (block, pairs) = (sizes(op, "block_shape", 2, 1, 1)?, sizes(op, name, 4, 0, 0)?);
    Ok(([block[0], block[1]], [pairs[0], pairs[1], pairs[2], pairs[3]]))
}

/// `x` with the sizes of the last two axes changed by `change`; those unknown stay so.
fn resized(
    x: &TensorType,
    change: impl Fn(usize, usize) -> Option<usize>,
) -> Result<TensorType, OpError> {
    if x.rank() != 4 {
        return Err(OpError::invalid(format!("x {x} is no image [n, c, h, w]")));
    }
    let mut out = x.clone();
    for (axis, dim) in out.shape[2..].iter_mut().enumerate() {
        *dim = match dim.fixed() {
            Some(n) => Dim::Fixed(change(axis, n).ok_or_else(|| {
                OpError::invalid(format!("x {x} is too small or too large for this"))
            })?),
            None => Dim::Unknown,
        };
    }
    Ok(out)
}

/// `x` `[n, c, h, w]`, padded by zeros as the constant `paddings` `[2, 2]` says (before and after
/// rows, before and after columns), with the blocks of the constant `block_shape` `[p, q]` spread over
/// `n p q` images: image `(i q + j) n + k` has the places `[i, j]` of the blocks of image `k`.
pub(super) struct SpaceToBatch;

impl OpDef for SpaceToBatch {
    fn name(&self) -> &'static str {
        "space_to_batch"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("block_shape", Domain::Int).constant(),
                Param::new("paddings", Domain::Int).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (block, pad) = batch_options(op, "paddings")?;
        let padded = resized(op.tensor("x")?, |axis, n| {
            n.checked_add(pad[2 * axis])?.checked_add(pad[2 * axis + 1])
        })?;
        Ok(vec![Kind::ToBatch.infer(&padded, block)?.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (block, [top, bottom, left, right]) = batch_options(&cx.op, "paddings")?;
        let x = cx.array("x")?;
        let &[n, c, h, w] = &*x.shape else {
            return Err(OpError::invalid(format!("x {:?} is no image", x.shape)));
        };
        let shape = [n, c, h + top + bottom, w + left + right];
        crate::eval::bounded(&shape)?;
        let mut out = vec![0.0; shape.iter().product()];
        for (i, row) in x.floats()?.chunks_exact(w.max(1)).enumerate() {
            let (plane, y) = (i / h, i % h);
            let start = (plane * shape[2] + top + y) * shape[3] + left;
            out[start..][..w].copy_from_slice(row);
        }
        let data = crate::eval::Data::Float(out);
        let padded = Array { dtype: x.dtype, shape: shape.to_vec(), data };
        Ok(vec![Kind::ToBatch.apply(&padded, block)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The inverse of `space_to_batch`: the images of `x` `[n p q, c, h, w]` as the places of blocks of
/// the constant `block_shape` `[p, q]`, cropped as the constant `crops` `[2, 2]` says.
pub(super) struct BatchToSpace;

impl OpDef for BatchToSpace {
    fn name(&self) -> &'static str {
        "batch_to_space"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("block_shape", Domain::Int).constant(),
                Param::new("crops", Domain::Int).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (block, crops) = batch_options(op, "crops")?;
        let whole = Kind::FromBatch.infer(op.tensor("x")?, block)?;
        let cropped = resized(&whole, |axis, n| {
            n.checked_sub(crops[2 * axis])?.checked_sub(crops[2 * axis + 1])
        })?;
        Ok(vec![cropped.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (block, crops) = batch_options(&cx.op, "crops")?;
        let whole = Kind::FromBatch.apply(&*cx.array("x")?, block)?;
        Ok(vec![cropped(&whole, crops)?.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` without as many rows and columns at its four sides.
pub(super) fn cropped(x: &Array, [top, bottom, left, right]: [usize; 4]) -> Result<Array, OpError> {
    let too_small = || OpError::invalid(format!("x {:?} is too small to be cropped", x.shape));
    let [outer @ .., h, w] = &*x.shape else { return Err(too_small()) };
    let less = |n: &usize, a: usize, b: usize| n.checked_sub(a).and_then(|n| n.checked_sub(b));
    let rows = less(h, top, bottom).ok_or_else(too_small)?;
    let columns = less(w, left, right).ok_or_else(too_small)?;
    let planes: usize = outer.iter().product();
    let starts = (0..planes).flat_map(|p| (0..rows).map(move |r| (p * h + top + r) * w + left));
    let shape = [outer, &[rows, columns]].concat();
    Ok(x.pick(shape, starts.flat_map(|start| start..start + columns)))
}
