//! Packs weights so that they take fewer slots of a program: into one file where files count, else convolutions of
//! one input into one convolution whose channels are sliced, and weights that fit together into one constant of which
//! slices are taken.

use std::collections::{BTreeMap, HashMap};

use ane_model::CheckOptions;
use ane_model::chip::{Acceptance, SlotUnit};
use mil::{
    Arg, Dim, Function, Literal, OpError, OpId, OpKind, Payload, Program, Result, TensorType,
    ValueId,
};
use tensor::{Bytes, Tensor, WeightStore};

use super::Attempt;
use super::emit::{Emit, again, element_bytes};
use crate::rebuild::{Results, Site, rebuild};

/// What becomes one weight.
struct Group {
    form: Form,
    /// The convolutions, or the consts, in the order of the function.
    members: Vec<OpId>,
    /// Of each the weight's size along `axis`.
    sizes: Vec<usize>,
    /// The axis of the weights that grows.
    axis: usize,
}

/// How weights are packed, what is best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Form {
    /// Convolutions of one input, whose weights stay constants.
    Convolutions,
    /// Operands, of which slices are taken.
    Operands,
    /// Weights of convolutions, which are computed by a slice then.
    Computed,
}

/// Packs until what is left fits the chip's slots, one for scalar operands kept free.
///
/// # Errors
/// When an operation cannot be made.
pub(super) fn apply(program: &mut Program, options: &CheckOptions<'_>) -> Result<Attempt> {
    let mut attempt = Attempt::default();
    let chip = options.chip;
    let unit = chip.switches.slot_unit.as_ref().map(|u| u.value);
    if unit == Some(SlotUnit::Files) {
        program.blobs.clear();
        let (program, what) = ("the program".to_owned(), "all in one file".to_owned());
        attempt.applied.push((program, "weights".to_owned(), what));
        return Ok(attempt);
    }
    let Some(slots) = &chip.runtime.weight_slots else { return Ok(attempt) };
    let scalars = chip.runtime.scalar_slots.as_ref().map_or(0, |s| s.value) as usize;
    let budget = (slots.value as usize).saturating_sub(scalars);
    let used = weights_used(program);
    let mut excess = used.saturating_sub(budget);
    let mut found: Vec<(String, Group)> = Vec::new();
    for (name, function) in &program.functions {
        let groups = groups(function, &program.weights, options);
        found.extend(groups.into_iter().map(|g| (name.clone(), g)));
    }
    found.sort_by_key(|(_, g)| (g.form, usize::MAX - g.members.len()));
    let mut chosen: BTreeMap<String, Vec<Group>> = BTreeMap::new();
    for (name, group) in found {
        if excess > 0 {
            excess = excess.saturating_sub(group.members.len() - 1);
            chosen.entry(name).or_default().push(group);
        }
    }
    // The slot kept free is needed beside a scalar operand alone: whether there is one, the rule says.
    if excess > scalars {
        let left = budget + excess;
        let why = format!(
            "{left} weights are left when those that fit together are one; cut the program"
        );
        attempt.refused.insert((None, None), why);
        return Ok(attempt);
    }
    for (name, groups) in &chosen {
        pack(program, name, groups, &mut attempt)?;
    }
    Ok(attempt)
}

/// References to weights in all functions, as the rule counts them.
fn weights_used(program: &Program) -> usize {
    crate::rewrite::weight_uses(program).values().sum()
}

/// A weight that may be packed, with the const that makes it.
struct Weight<'a> {
    constant: OpId,
    tensor: &'a Tensor,
    /// The operations that use it, with the parameter.
    uses: Vec<(OpId, &'static str)>,
}

/// What can be packed in a function, each weight once.
fn groups(function: &Function, weights: &WeightStore, options: &CheckOptions<'_>) -> Vec<Group> {
    let found = packable(function, weights);
    let mut groups = Vec::new();
    let mut taken: Vec<OpId> = Vec::new();
    for mut members in siblings(function, &found) {
        members.sort_by_key(|(conv, _)| function.body.ops.iter().position(|op| op == conv));
        taken.extend(members.iter().map(|(_, w)| w.constant));
        groups.push(Group {
            form: Form::Convolutions,
            sizes: members.iter().map(|(_, w)| w.tensor.shape()[0]).collect(),
            members: members.iter().map(|(conv, _)| *conv).collect(),
            axis: 0,
        });
    }
    let switch = options.chip.switches.dynamic_conv.as_ref();
    let computed = switch.is_none_or(|s| s.value == Acceptance::Accepted);
    let longest = options.chip.limits.width.as_ref().map_or(usize::MAX, |w| w.value as usize);
    let mut stacks: BTreeMap<(Form, &str, usize, Vec<usize>), Vec<&Weight<'_>>> = BTreeMap::new();
    for weight in found.iter().filter(|w| !taken.contains(&w.constant)) {
        let conv = weight.uses.iter().any(|(_, param)| *param == "weight");
        if conv && !computed {
            continue;
        }
        let form = if conv { Form::Computed } else { Form::Operands };
        let mut rest = weight.tensor.shape().to_vec();
        let axis = rest.iter().position(|&n| n != 1).unwrap_or(0);
        rest.remove(axis);
        let key = (form, weight.tensor.dtype().name(), axis, rest);
        stacks.entry(key).or_default().push(weight);
    }
    for ((form, _, axis, _), members) in stacks {
        let mut group = Group { form, members: Vec::new(), sizes: Vec::new(), axis };
        for weight in members {
            let size = weight.tensor.shape()[axis];
            if group.sizes.iter().sum::<usize>() + size > longest {
                let full = Group { form, members: Vec::new(), sizes: Vec::new(), axis };
                groups.push(std::mem::replace(&mut group, full));
            }
            group.members.push(weight.constant);
            group.sizes.push(size);
        }
        groups.push(group);
    }
    groups.retain(|g| g.members.len() > 1);
    groups
}

/// The arguments of a convolution but its weight, constants by value.
type Arguments = Vec<Option<Arg>>;

/// Convolutions with the weights that they take.
type Siblings<'a, 'w> = Vec<(OpId, &'a Weight<'w>)>;

/// Convolutions that agree in all but their weight, with it; those of which there are several.
fn siblings<'a, 'w>(function: &Function, found: &'a [Weight<'w>]) -> Vec<Siblings<'a, 'w>> {
    let mut alike: Vec<(Arguments, Siblings<'a, 'w>)> = Vec::new();
    for weight in found {
        let [(conv, "weight")] = weight.uses[..] else { continue };
        let Some(rest) = like(function, conv, weight) else { continue };
        match alike.iter_mut().find(|(other, _)| *other == rest) {
            Some((_, members)) => members.push((conv, weight)),
            None => alike.push((rest, vec![(conv, weight)])),
        }
    }
    alike.into_iter().map(|(_, members)| members).filter(|m| m.len() > 1).collect()
}

/// Weights that consts of the body make and that operations take which need no constant there.
fn packable<'a>(function: &Function, weights: &'a WeightStore) -> Vec<Weight<'a>> {
    let mut found = Vec::new();
    for &id in &function.body.ops {
        let op = &function.ops[id];
        let Some(Payload::Weight(weight)) = op.const_value().map(|l| &l.payload) else { continue };
        let (Some(weight), [v]) = (weights.get(*weight), &op.outputs[..]) else { continue };
        let tensor = &weight.tensor;
        let whole = element_bytes(tensor.dtype()).is_some() && !tensor.shape().is_empty();
        let uses = uses(function, *v);
        if let Some(uses) = uses.filter(|uses| whole && !uses.is_empty()) {
            found.push(Weight { constant: id, tensor, uses });
        }
    }
    found
}

/// Where a value is used, if everywhere a computed one would do as well.
fn uses(function: &Function, v: ValueId) -> Option<Vec<(OpId, &'static str)>> {
    let mut uses = Vec::new();
    let mut fine = !function.body.outputs.contains(&v);
    for (id, op) in &function.ops {
        fine &= op.blocks.iter().all(|b| !b.outputs.contains(&v));
        for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
            let mut used = false;
            arg.iter().for_each(|a| a.for_each_value(&mut |u| used |= u == v));
            if used {
                fine &= takes_computed(op.kind, param.name);
                uses.push((id, param.name));
            }
        }
    }
    fine.then_some(uses)
}

/// Whether an operation of the engine takes a computed tensor as this argument.
fn takes_computed(kind: OpKind, param: &str) -> bool {
    use OpKind::*;
    match kind {
        Add | Sub | Mul | RealDiv | Maximum | Minimum | Matmul => true,
        Conv => param == "weight",
        _ => false,
    }
}

/// The arguments of a convolution but its weight, constants by value, if it can be one with others that have the
/// same.
fn like(function: &Function, conv: OpId, weight: &Weight<'_>) -> Option<Arguments> {
    let op = &function.ops[conv];
    let plain = op.kind == OpKind::Conv && function.body.ops.contains(&conv);
    let groups = op.arg("groups").map(|g| function.const_arg(g).cloned());
    let single = groups.is_none_or(|g| g == Some(Literal::scalar(1i32)));
    if !plain || !single || op.arg("bias").is_some() {
        return None;
    }
    let index = op.kind.param_index("weight")?;
    let by_value = |arg: &Arg| function.const_arg(arg).map_or(arg.clone(), |l| l.clone().into());
    let mut rest: Arguments = op.args.iter().map(|a| a.as_ref().map(by_value)).collect();
    // Of the weight its type has to agree, and its sizes, outputs apart.
    let mut ty = TensorType::new(weight.tensor.dtype(), weight.tensor.shape().iter().copied());
    ty.shape[0] = Dim::Unknown;
    rest[index] = Some(Literal::string(ty.to_string()).into());
    Some(rest)
}

fn pack(program: &mut Program, name: &str, groups: &[Group], attempt: &mut Attempt) -> Result<()> {
    let place: HashMap<OpId, (usize, usize)> = groups
        .iter()
        .enumerate()
        .flat_map(|(g, group)| group.members.iter().enumerate().map(move |(m, &id)| (id, (g, m))))
        .collect();
    let mut whole: Vec<Option<ValueId>> = vec![None; groups.len()];
    rebuild(program, name, &mut |site| {
        let Some(&(number, member)) = place.get(&site.id) else { return Ok(None) };
        let group = &groups[number];
        let all = match whole[number] {
            Some(all) => all,
            None => group.all(site)?,
        };
        whole[number] = Some(all);
        group.part(site, all, member).map(Some)
    })?;
    for group in groups {
        let what = match group.form {
            Form::Convolutions => "one convolution, whose channels are sliced",
            Form::Operands | Form::Computed => "slices of one weight",
        };
        let subject = format!("{} weights", group.members.len());
        attempt.applied.push((name.to_owned(), subject, what.to_owned()));
    }
    Ok(())
}

impl Group {
    /// The convolution, or the constant, that stands for all members.
    fn all(&self, site: &mut Site<'_, '_>) -> Result<ValueId, OpError> {
        let literals = self.members.iter().map(|&id| {
            let op = &site.function.ops[id];
            match self.form {
                Form::Convolutions => op.arg("weight").and_then(|a| site.function.const_arg(a)),
                Form::Operands | Form::Computed => op.const_value(),
            }
        });
        let literals: Vec<&Literal> =
            literals.collect::<Option<_>>().ok_or_else(|| OpError::invalid("no weight"))?;
        let tensors: Option<Vec<&Tensor>> =
            literals.iter().map(|l| l.resolve(site.weights)).collect();
        let stacked = tensors.and_then(|tensors| stacked(&tensors, self.axis));
        let stacked = stacked.ok_or_else(|| OpError::invalid("weights do not fit together"))?;
        let weight = Emit::at(site).tensor("packed", stacked, literals[0])?;
        match self.form {
            Form::Convolutions => {
                Ok(again(site, &["weight"], "all").arg("weight", weight).result()?)
            }
            Form::Operands | Form::Computed => Ok(weight),
        }
    }

    /// The member's part of `all`.
    fn part(
        &self,
        site: &mut Site<'_, '_>,
        all: ValueId,
        member: usize,
    ) -> Result<Results, OpError> {
        let shape = site.b.ty(all).as_tensor().and_then(TensorType::fixed_shape);
        let mut end = shape.ok_or_else(|| OpError::unsupported("its sizes are not known"))?;
        let mut begin = vec![0; end.len()];
        // Outputs of a convolution are its second axis.
        let axis = if self.form == Form::Convolutions { 1 } else { self.axis };
        begin[axis] = self.sizes[..member].iter().sum();
        end[axis] = begin[axis] + self.sizes[member];
        Ok(vec![Some(Emit::at(site).slice(all, &begin, &end, "part")?)])
    }
}

/// Tensors one after another along `axis`.
fn stacked(tensors: &[&Tensor], axis: usize) -> Option<Tensor> {
    let first = tensors.first()?;
    let outer: usize = first.shape().get(..axis)?.iter().product();
    let mut bytes = Vec::new();
    for i in 0..outer {
        for tensor in tensors {
            let row = tensor.bytes().len() / outer.max(1);
            bytes.extend_from_slice(tensor.bytes().get(i * row..(i + 1) * row)?);
        }
    }
    let mut shape = first.shape().to_vec();
    shape[axis] = tensors.iter().map(|t| t.shape()[axis]).sum();
    Tensor::new(first.dtype(), &shape, Bytes::copy_from(&bytes)).ok()
}
