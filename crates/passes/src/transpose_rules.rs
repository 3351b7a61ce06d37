//! How operations run on operands that were not transposed yet.
//!
//! A value `v` that is `transpose(x = base, perm = p)` has its axis `i` where `base` has axis `p[i]`. A rule
//! says which operation on the bases gives a base of the result.

use mil::eval::Array;
use mil::{Arg, Dim, Literal, OpKind, OpView, TensorType, ValueId};
use tensor::DType;

/// Where each axis of a value is in its base.
pub(crate) type Perm = Vec<usize>;

/// An operation on bases.
pub(crate) struct Rule {
    /// The permutations that make its results from their bases.
    pub(crate) results: Vec<Perm>,
    /// Parameters of which every value is replaced by its base.
    pub(crate) operands: Vec<&'static str>,
    /// Parameters with another constant.
    pub(crate) constants: Vec<(&'static str, Literal)>,
}

/// What a rule may ask about.
pub(crate) struct Question<'a> {
    /// The operation.
    pub(crate) op: OpView<'a>,
    /// Types of its results.
    pub(crate) results: Vec<&'a TensorType>,
    /// The permutation of a value that has a base of its own.
    pub(crate) perm: &'a dyn Fn(ValueId) -> Option<Perm>,
    /// Whether a constant may be held a second time, transposed.
    pub(crate) may_copy: &'a dyn Fn(&Arg, &Literal) -> bool,
}

/// Whether the permutation changes nothing.
pub(crate) fn is_identity(perm: &[usize]) -> bool {
    perm.iter().copied().eq(0..perm.len())
}

/// The permutation that undoes `perm`.
pub(crate) fn inverse(perm: &[usize]) -> Perm {
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    back
}

/// The permutation of first `inner`, then `outer`.
pub(crate) fn composed(inner: &[usize], outer: &[usize]) -> Perm {
    outer.iter().map(|&p| inner[p]).collect()
}

/// The permutation of a transpose.
pub(crate) fn permutation(op: &OpView<'_>) -> Option<Perm> {
    let rank = op.tensor("x").ok()?.rank();
    op.ints("perm").ok()??.iter().map(|&a| op.axis(a, rank).ok()).collect()
}

impl Question<'_> {
    /// The rule for the operation; `None` if it needs its operands as they are.
    pub(crate) fn rule(&self) -> Option<Rule> {
        use OpKind::*;
        match self.op.kind {
            Abs | Acos | Asin | Atan | Atanh | Ceil | Cos | Cosh | Erf | Exp | Exp2 | Floor
            | Relu | Relu6 | Round | Sigmoid | Sign | Silu | Sin | Sinh | Softplus | Softsign
            | Sqrt | Square | Tan | Tanh | Inverse | Log | Rsqrt | Clip | LogicalNot | Identity
            | Cast | Gelu | ClampedRelu | Elu | LeakyRelu | LinearActivation | ScaledTanh
            | SigmoidHard | Threshold | ThresholdedRelu => self.same(&["x"], Vec::new()),
            Add | Sub | Mul | RealDiv | FloorDiv | Mod | Pow | Maximum | Minimum | Equal
            | NotEqual | Less | LessEqual | Greater | GreaterEqual | LogicalAnd | LogicalOr
            | LogicalXor => self.elementwise(&["x", "y"]),
            Select => self.elementwise(&["cond", "a", "b"]),
            Softmax => self.along_axis("x", -1),
            Split => self.along_axis("x", 0),
            Cumsum => self.along_axis("x", 0),
            Concat => self.along_axis("values", 0),
            Reverse => self.along_axes(false),
            LayerNorm => self.along_axes(true),
            ReduceL1Norm | ReduceL2Norm | ReduceLogSum | ReduceLogSumExp | ReduceMax
            | ReduceMean | ReduceMin | ReduceProd | ReduceSum | ReduceSumSquare => self.reduction(),
            SliceByIndex => self.slice_by_index(),
            SliceBySize => self.same(&["x"], vec![self.axes("begin")?, self.axes("size")?]),
            Tile => self.same(&["x"], vec![self.axes("reps")?]),
            Pad => self.padding(),
            Matmul => self.matmul(),
            _ => None,
        }
    }

    /// The permutation of the operands that have a base; `None` without one, or if there are two.
    fn common(&self, names: &[&'static str]) -> Option<Perm> {
        let mut perms = Vec::new();
        for name in names {
            self.op.arg(name)?.for_each_value(&mut |v| perms.extend((self.perm)(v)));
        }
        let first = perms.iter().find(|p| !is_identity(p))?.clone();
        perms.iter().all(|p| *p == first).then_some(first)
    }

    /// A rule where every value among `names` has a base, results are transposed like it, and some
    /// parameters have other constants.
    fn same(
        &self,
        names: &[&'static str],
        constants: Vec<(&'static str, Literal)>,
    ) -> Option<Rule> {
        let perm = self.common(names)?;
        let mut all = true;
        for name in names {
            let arg = self.op.arg(name)?;
            arg.for_each_value(&mut |v| all &= (self.perm)(v).is_some());
            arg.for_each_literal(&mut |_| all = false);
        }
        let results = vec![perm; self.results.len()];
        all.then(|| Rule { results, operands: names.to_vec(), constants })
    }

    /// Operands of one shape, numbers that broadcast, and constants.
    fn elementwise(&self, names: &[&'static str]) -> Option<Rule> {
        let perm = self.common(names)?;
        let rank = perm.len();
        let (mut operands, mut constants) = (Vec::new(), Vec::new());
        for &name in names {
            let arg = self.op.arg(name)?;
            let ty = self.op.tensor(name).ok()?;
            let one = ty.rank() <= rank && ty.shape.iter().all(|d| *d == Dim::Fixed(1));
            match arg {
                Arg::Value(v) if (self.perm)(*v).is_some() => operands.push(name),
                _ if one => {}
                _ => constants.push((name, self.turned(name, &perm)?)),
            }
        }
        let whole = self.results.iter().all(|t| t.rank() == rank);
        whole.then(|| Rule { results: vec![perm; self.results.len()], operands, constants })
    }

    /// The constant argument `name`, of at most as many axes as `perm`, for operands before `perm`.
    fn turned(&self, name: &str, perm: &[usize]) -> Option<Literal> {
        let literal = self.op.literal(name)?;
        let tensor = literal.resolve(self.op.weights)?;
        let plain = matches!(tensor.dtype(), DType::F16 | DType::F32 | DType::I32 | DType::Bool);
        let missing = perm.len().checked_sub(tensor.shape().len())?;
        if !plain || !(self.may_copy)(self.op.arg(name)?, literal) {
            return None;
        }
        let shape = [&vec![1; missing][..], tensor.shape()].concat();
        let array = Array::from_tensor(tensor).ok()?.reshaped(&shape).ok()?;
        Some(Literal::tensor(array.transposed(&inverse(perm)).to_tensor().ok()?))
    }

    /// An operation along the one constant `axis`.
    fn along_axis(&self, operand: &'static str, default: i64) -> Option<Rule> {
        if self.op.kind == OpKind::Concat && self.op.bool_or("interleave", false).ok()? {
            return None;
        }
        let perm = self.common(&[operand])?;
        let axis = self.op.int("axis").ok()?.unwrap_or(default);
        let axis = perm[self.op.axis(axis, perm.len()).ok()?];
        self.same(&[operand], vec![("axis", Literal::scalar(axis as i32))])
    }

    /// The constant `axes` of `x`, all by default, in the base; `None` if they come in another order
    /// there and order matters.
    fn mapped_axes(&self, perm: &[usize], ordered: bool) -> Option<Vec<i32>> {
        let given = match self.op.ints("axes").ok()? {
            Some(given) => given,
            None => (0..perm.len() as i64).collect(),
        };
        let mut axes = given.iter().map(|&a| self.op.axis(a, perm.len()).ok());
        let mut axes = axes.by_ref().collect::<Option<Vec<usize>>>()?;
        axes.sort_unstable();
        let mut mapped: Vec<usize> = axes.into_iter().map(|a| perm[a]).collect();
        if ordered && !mapped.is_sorted() {
            return None;
        }
        mapped.sort_unstable();
        Some(mapped.into_iter().map(|a| a as i32).collect())
    }

    fn along_axes(&self, ordered: bool) -> Option<Rule> {
        let axes = self.mapped_axes(&self.common(&["x"])?, ordered)?;
        self.same(&["x"], vec![("axes", Literal::vector(&axes))])
    }

    /// Sums in another order would round differently: the axes must keep theirs.
    fn reduction(&self) -> Option<Rule> {
        let perm = self.common(&["x"])?;
        let axes = self.mapped_axes(&perm, true)?;
        let constants = vec![("axes", Literal::vector(&axes))];
        let mut rule = self.same(&["x"], constants)?;
        if !self.op.bool_or("keep_dims", false).ok()? {
            let left = |a: &usize| !axes.contains(&(*a as i32));
            let kept: Vec<usize> = perm.into_iter().filter(left).collect();
            let rank = |a: &usize| kept.iter().filter(|other| *other < a).count();
            rule.results = vec![kept.iter().map(rank).collect()];
        }
        Some(rule)
    }

    /// A constant with a number for each axis, in the order of the base's axes.
    fn axes(&self, name: &'static str) -> Option<(&'static str, Literal)> {
        let perm = self.common(&["x"])?;
        let given = self.op.ints(name).ok()??;
        let mut moved = vec![0; perm.len()];
        if given.len() != perm.len() {
            return None;
        }
        for (&p, &n) in perm.iter().zip(&given) {
            moved[p] = i32::try_from(n).ok()?;
        }
        Some((name, Literal::vector(&moved)))
    }

    fn slice_by_index(&self) -> Option<Rule> {
        let perm = self.common(&["x"])?;
        if self.op.bools("squeeze_mask").ok()?.is_some_and(|m| m.contains(&true)) {
            return None;
        }
        let mut constants = vec![self.axes("begin")?, self.axes("end")?];
        if self.op.arg("stride").is_some() {
            constants.push(self.axes("stride")?);
        }
        for name in ["begin_mask", "end_mask"] {
            let Some(given) = self.op.bools(name).ok()? else { continue };
            let mut moved = vec![false; perm.len()];
            if given.len() != perm.len() {
                return None;
            }
            perm.iter().zip(&given).for_each(|(&p, &m)| moved[p] = m);
            constants.push((name, Literal::bool_vector(&moved)));
        }
        self.same(&["x"], constants)
    }

    /// Only padding with a constant knows no order of axes.
    fn padding(&self) -> Option<Rule> {
        let perm = self.common(&["x"])?;
        let given = self.op.ints("pad").ok()??;
        let missing = (2 * perm.len()).checked_sub(given.len())?;
        if self.op.str("mode").ok()?.unwrap_or("constant") != "constant" {
            return None;
        }
        let given = [&vec![0; missing][..], &given].concat();
        let mut moved = vec![0; 2 * perm.len()];
        for (&p, pair) in perm.iter().zip(given.as_chunks::<2>().0) {
            moved[2 * p] = i32::try_from(pair[0]).ok()?;
            moved[2 * p + 1] = i32::try_from(pair[1]).ok()?;
        }
        self.same(&["x"], vec![("pad", Literal::vector(&moved))])
    }

    /// A product of matrices takes operands whose last two axes are swapped.
    fn matmul(&self) -> Option<Rule> {
        let (mut operands, mut constants) = (Vec::new(), Vec::new());
        for (name, flag) in [("x", "transpose_x"), ("y", "transpose_y")] {
            let Some(Arg::Value(v)) = self.op.arg(name) else { continue };
            let Some(perm) = (self.perm)(*v).filter(|p| !is_identity(p)) else { continue };
            let n = perm.len();
            let swaps = n >= 2 && is_identity(&perm[..n - 2]) && perm[n - 2] == n - 1;
            if !swaps {
                return None;
            }
            operands.push(name);
            constants.push((flag, Literal::bool(!self.op.bool_or(flag, false).ok()?)));
        }
        let rank = self.results.first()?.rank();
        (!operands.is_empty()).then(|| Rule {
            results: vec![(0..rank).collect()],
            operands,
            constants,
        })
    }
}
