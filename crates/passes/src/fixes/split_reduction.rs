//! Writes a product by a constant as the sum of products over parts of what it sums over: parts that are not read at
//! the chip's notch, and of which none is longer than it takes.

use ane_model::chip::Verdict;
use ane_model::rules::{Product, in_notch};
use ane_model::{CheckOptions, Path};
use mil::{Literal, OpError, OpKind, OpView, ValueId};
use tensor::Tensor;

use super::emit::{Emit, again, part, sizes};
use super::operations::Rewritten;
use crate::rebuild::Site;

/// Parts beyond this cost more calls of the engine's units than they save.
const MOST_PARTS: usize = 16;

/// Parts are as even as multiples of this allow: shorter steps would leave columns of the engine empty.
const STEP: usize = 32;

/// A product that can be split.
struct Split<'a> {
    product: Product,
    /// The constant's name among the arguments, and what it is.
    weight: (&'static str, &'a Literal, &'a Tensor),
    /// The axis of the constant that is summed over.
    weight_axis: usize,
    /// The axis of `x` that is summed over.
    axis: usize,
    /// The sizes of `x`.
    shape: Vec<usize>,
}

pub(super) fn rewrite(
    site: &mut Site<'_, '_>,
    options: &CheckOptions<'_>,
) -> Result<Rewritten, OpError> {
    let view = site.view();
    let split = match Split::of(&view) {
        Ok(split) => split,
        Err(why) => return Ok(Rewritten::Kept(why)),
    };
    let length = split.shape[split.axis];
    let fits = |n: usize| fits(&view, &Product { inputs: n as u64, ..split.product }, options);
    let Some(parts) = parts(length, &fits) else {
        return Ok(Rewritten::Kept(format!("no parts of {length} fit")));
    };
    let (mut begin, mut total): (usize, Option<ValueId>) = (0, None);
    for (i, &count) in parts.iter().enumerate() {
        let y = split.part(site, (begin, begin + count), i)?;
        let mut e = Emit::at(site);
        total = Some(match total {
            None => y,
            Some(sum) => e.binary(OpKind::Add, sum, y, &format!("sum_{i}"))?,
        });
        begin += count;
    }
    let lengths = parts.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
    let what = format!("the sum of {} products over {lengths}", parts.len());
    Ok(Rewritten::Done(total.into_iter().collect(), what))
}

impl<'a> Split<'a> {
    /// Why not, if it cannot be split.
    fn of(view: &OpView<'a>) -> Result<Split<'a>, String> {
        let shape = sizes(view, "x").ok_or("its sizes are not known")?;
        let rank = shape.len();
        let flag = |name| view.bool_or(name, false).map_err(|e| e.message);
        let name = if view.kind == OpKind::Matmul { "y" } else { "weight" };
        let literal = view.literal(name).ok_or("its weight is computed or compressed")?;
        let tensor = literal.resolve(view.weights).ok_or("its weight is no tensor")?;
        let weight = tensor.shape();
        let size = |axis: usize| weight.get(axis).copied().unwrap_or(1) as u64;
        let (weight_axis, axis, outputs, taps) = match view.kind {
            OpKind::Conv if view.int("groups").ok().flatten().unwrap_or(1) != 1 => {
                return Err("its channels are in groups".to_owned());
            }
            OpKind::Conv => {
                (1, 1, size(0), weight.iter().skip(2).map(|&n| n as u64).product::<u64>())
            }
            OpKind::Linear => (1, rank - 1, size(0), 1),
            OpKind::Matmul if rank >= 2 && weight.len() >= 2 => {
                let last = weight.len() - 1;
                let along = if flag("transpose_y")? { last } else { last - 1 };
                let across = 2 * last - 1 - along;
                (along, rank - if flag("transpose_x")? { 2 } else { 1 }, size(across), 1)
            }
            _ => return Err(format!("{} is no product that can be split", view.kind.name())),
        };
        if weight.get(weight_axis) != shape.get(axis) || part(tensor, weight_axis, 0, 0).is_none() {
            return Err("its weight cannot be cut".to_owned());
        }
        let product = Product { outputs, inputs: shape[axis] as u64, taps };
        Ok(Split { product, weight: (name, literal, tensor), weight_axis, axis, shape })
    }

    /// The product over `begin..end`, with the bias if it is the first.
    fn part(
        &self,
        site: &mut Site<'_, '_>,
        (begin, end): (usize, usize),
        number: usize,
    ) -> Result<ValueId, OpError> {
        let (name, literal, tensor) = self.weight;
        let x = site.view().required("x")?.clone();
        let mut e = Emit::at(site);
        let mut from = vec![0; self.shape.len()];
        let mut to = self.shape.clone();
        (from[self.axis], to[self.axis]) = (begin, end);
        let x = e.slice(x, &from, &to, &format!("x_{number}"))?;
        let cut = part(tensor, self.weight_axis, begin, end);
        let cut = cut.ok_or_else(|| OpError::invalid("its weight cannot be cut"))?;
        let weight = e.tensor(&format!("weight_{number}"), cut, literal)?;
        let without: &[&str] = if number == 0 { &["x", name] } else { &["x", name, "bias"] };
        let op = again(site, without, &format!("part_{number}"));
        Ok(op.arg("x", x).arg(name, weight).result()?)
    }
}

/// Whether the chip takes such a part, and reads it at full speed.
fn fits(view: &OpView<'_>, product: &Product, options: &CheckOptions<'_>) -> bool {
    let limits = &options.chip.limits;
    let n = product.inputs;
    let refused = limits.direct_conv_inputs_refused.as_ref().is_some_and(|limit| {
        let least = limit.claims.iter().map(|c| c.value).chain([limit.value]).min();
        view.kind == OpKind::Conv && options.path == Path::Direct && least.is_some_and(|l| n >= l)
    });
    let deep = |limit: &ane_model::chip::Fact<u64>| limit.verdict(n) != Verdict::Within;
    let deep = view.kind != OpKind::Conv && limits.reduction.as_ref().is_some_and(deep);
    !refused && !deep && !in_notch(options.chip, product.core_bytes())
}

/// Lengths that make up `length`, as few and as even as can be, each of which fits: all alike but the last.
fn parts(length: usize, fits: &dyn Fn(usize) -> bool) -> Option<Vec<usize>> {
    (2..=MOST_PARTS).find_map(|count| {
        let step = if length / count >= 2 * STEP { STEP } else { 1 };
        let even = length.div_ceil(count).div_ceil(step) * step;
        let away = (0..=length / step)
            .flat_map(|i| [even.checked_add(i * step), even.checked_sub(i * step)]);
        away.flatten().find_map(|n| {
            let last = length.checked_sub(n * (count - 1))?;
            let fine = n > 0 && last > 0 && fits(n) && fits(last);
            fine.then(|| [vec![n; count - 1], vec![last]].concat())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_few_even_and_whole() {
        assert_eq!(parts(4096, &|_| true), Some(vec![2048, 2048]));
        assert_eq!(parts(4096, &|n| n != 2048), Some(vec![2080, 2016]));
        assert_eq!(parts(100, &|n| n <= 40), Some(vec![34, 34, 32]));
        assert_eq!(parts(100, &|n| n <= 5), None);
        assert_eq!(parts(1, &|_| true), None);
    }
}
