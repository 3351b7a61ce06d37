//! Joins the states of equal layers into one.

use std::collections::{BTreeMap, HashMap};

use mil::{
    Arg, Dim, Function, FunctionBuilder, Literal, OpId, OpKind, OpView, Operation, Program,
    TensorType, Type, ValueDef, ValueId,
};
use tensor::{DType, WeightStore};

use crate::rewrite::{self, Replacements};
use crate::{Pass, Property};

/// Joins the states of equal layers into one.
pub(crate) struct MergeStates;

impl Pass for MergeStates {
    fn name(&self) -> &'static str {
        "merge_states"
    }

    fn doc(&self) -> &'static str {
        "Joins states whose names differ in a number at the end and that are of one type into one state, \
         along the first axis in the order of the numbers: the Neural Engine runs programs of few states \
         only. It is called what the names have in common. The interface changes in that alone. Rows \
         written one after another, from a place known when running, become one update in place.\n\
         before: r = read_state(input = k_1); write_state(input = k_1, data = d) -> (r)\n\
         after:  a = read_state(input = k); r = slice_by_index(x = a, begin = [1, 0], ...); \
         b = read_state(input = k); c = slice_update(x = b, update = d, begin = [1, 0], ...); \
         write_state(input = k, data = c) -> (r)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Some(function) = program.functions.get(name) else { return Ok(0) };
        let groups = groups(program, name, function);
        if groups.is_empty() {
            return Ok(0);
        }
        let old = function.clone();
        let weights = program.weights.clone();
        let new = merged((name, &old), &weights, &groups, &mut program.weights)?;
        program.functions.insert(name.to_owned(), new);
        Ok(groups.iter().map(|g| g.members.len()).sum())
    }
}

/// States to be joined.
struct Group {
    /// What their names have in common.
    name: String,
    /// In order.
    members: Vec<ValueId>,
    /// The type of each.
    ty: TensorType,
    /// Size of the first axis of each.
    lead: usize,
}

impl Group {
    fn merged_type(&self) -> TensorType {
        let mut ty = self.ty.clone();
        ty.shape[0] = Dim::Fixed(self.lead * self.members.len());
        ty
    }
}

/// States of a function by what their names have in common before `_` and a number.
fn families(function: &Function) -> BTreeMap<&str, BTreeMap<u32, ValueId>> {
    let mut families = BTreeMap::<&str, BTreeMap<u32, ValueId>>::new();
    for &v in function.inputs.iter().filter(|&&v| function.ty(v).as_state().is_some()) {
        let name = &function.values[v].name;
        if let Some((stem, number)) = name.rsplit_once('_')
            && !stem.is_empty()
            && let Ok(number) = number.parse()
        {
            families.entry(stem).or_default().insert(number, v);
        }
    }
    families
}

fn groups(program: &Program, name: &str, function: &Function) -> Vec<Group> {
    let groups = families(function).into_iter().filter_map(|(stem, members)| {
        let types: Vec<&TensorType> =
            members.values().filter_map(|&v| function.ty(v).as_state()).collect();
        let (first, rest) = types.split_first()?;
        let lead = first.shape.first()?.fixed()?;
        let equal = !rest.is_empty() && rest.iter().all(|ty| ty == first);
        let group = Group {
            name: stem.to_owned(),
            members: members.values().copied().collect(),
            ty: TensorType::clone(first),
            lead,
        };
        let free = function.values.values().all(|v| v.name != stem);
        let simple = group.members.iter().all(|&v| simple(function, v));
        let others = program.functions.iter().filter(|(other, _)| *other != name);
        let agree = others.into_iter().all(|(_, other)| agrees(function, other, &group));
        (equal && free && simple && agree).then_some(group)
    });
    groups.collect()
}

/// Whether a state is only read and written by operations of the body.
fn simple(function: &Function, state: ValueId) -> bool {
    let known = |id: OpId| {
        matches!(function.ops[id].kind, OpKind::ReadState | OpKind::WriteState)
            && function.body.ops.contains(&id)
    };
    function.ops.keys().all(|id| {
        let mut uses = false;
        function.ops[id].for_each_arg_value(|v| uses |= v == state);
        !uses || known(id)
    })
}

/// Whether another function shares all states of the group or none, or has them joined already.
fn agrees(function: &Function, other: &Function, group: &Group) -> bool {
    let named = |f: &Function, members: Vec<ValueId>| -> Vec<(String, Type)> {
        members.into_iter().map(|v| (f.values[v].name.clone(), f.ty(v).clone())).collect()
    };
    let theirs = families(other).remove(&*group.name).unwrap_or_default();
    let joined = other.input(&group.name).map(|v| other.ty(v).clone());
    match joined {
        None if theirs.is_empty() => true,
        None => {
            let theirs: Vec<ValueId> = theirs.into_values().collect();
            // It must be able to follow, or the two would no longer share their memory.
            let follows = other.values.values().all(|v| v.name != group.name)
                && theirs.iter().all(|&v| simple(other, v));
            follows && named(other, theirs) == named(function, group.members.clone())
        }
        Some(ty) => theirs.is_empty() && ty == Type::State(group.merged_type()),
    }
}

/// Where a state went: the joined one, and the first of its rows there.
#[derive(Clone, Copy)]
struct Place<'a> {
    group: &'a Group,
    state: ValueId,
    first: usize,
}

/// The function with the groups' states joined.
fn merged(
    (name, old): (&str, &Function),
    old_weights: &WeightStore,
    groups: &[Group],
    weights: &mut WeightStore,
) -> mil::Result<Function> {
    let mut b = FunctionBuilder::reopen(name, old.clone(), weights);
    let mut places: HashMap<ValueId, Place<'_>> = HashMap::new();
    for group in groups {
        let state = b.input(&group.name, Type::State(group.merged_type()));
        let members = group.members.iter().enumerate();
        places.extend(members.map(|(i, &v)| (v, Place { group, state, first: i * group.lead })));
    }
    let mut map = Replacements::new();
    for &id in &old.body.ops {
        let op = &old.ops[id];
        let state = match op.arg("input") {
            Some(Arg::Value(v)) => places.get(v),
            _ => None,
        };
        match state {
            Some(&place) if op.kind == OpKind::ReadState => {
                map.insert(op.outputs[0], read(&mut b, place)?);
            }
            Some(&place) => match (op.arg("data"), rows_written(old, old_weights, id)) {
                (_, Some(rows)) => write_rows(&mut b, place, &rows)?,
                (Some(data), None) => write(&mut b, place, data)?,
                (None, None) => b.keep(id),
            },
            None => b.keep(id),
        }
    }
    let mut function = b.finish(old.body.outputs.clone());
    // A joined state stands where its first member stood.
    let joined = |v: &ValueId| match places.get(v) {
        None => Some(*v),
        Some(place) => (place.first == 0).then_some(place.state),
    };
    function.inputs = old.inputs.iter().filter_map(joined).collect();
    for (&was, &new) in &map {
        let name = std::mem::take(&mut function.values[was].name);
        function.values[was].name = std::mem::replace(&mut function.values[new].name, name);
    }
    rewrite::replace_values(&mut function, &map);
    Ok(function)
}

/// The content of a state: its rows of the joined one.
fn read(b: &mut FunctionBuilder<'_>, place: Place<'_>) -> mil::Result<ValueId> {
    let content = content(b, place)?;
    let (begin, end, whole) = block(place);
    let slice =
        b.op(OpKind::SliceByIndex).arg("x", content).name(format!("{}_slice", place.group.name));
    slice
        .arg("begin", begin)
        .arg("end", end)
        .arg("begin_mask", whole.clone())
        .arg("end_mask", whole)
        .result()
}

/// Makes `data` the content of a state.
fn write(b: &mut FunctionBuilder<'_>, place: Place<'_>, data: &Arg) -> mil::Result<()> {
    let (begin, end, whole) = block(place);
    update(b, place, data, (begin.into(), end.into()), whole)
}

fn content(b: &mut FunctionBuilder<'_>, place: Place<'_>) -> mil::Result<ValueId> {
    let name = format!("{}_content", place.group.name);
    b.op(OpKind::ReadState).arg("input", place.state).name(name).result()
}

/// Begin, end and masks of a member's rows in the joined state, the other axes whole.
fn block(place: Place<'_>) -> (Literal, Literal, Literal) {
    let rank = place.group.ty.rank();
    let at = |first: usize| {
        let mut at = vec![0i32; rank];
        at[0] = first as i32;
        Literal::vector(&at)
    };
    let whole: Vec<bool> = (0..rank).map(|axis| axis > 0).collect();
    (at(place.first), at(place.first + place.group.lead), Literal::bool_vector(&whole))
}

fn update(
    b: &mut FunctionBuilder<'_>,
    place: Place<'_>,
    data: &Arg,
    (begin, end): (Arg, Arg),
    whole: Literal,
) -> mil::Result<()> {
    let content = content(b, place)?;
    let updated = b
        .op(OpKind::SliceUpdate)
        .arg("x", content)
        .arg("update", data.clone())
        .arg("begin", begin)
        .arg("end", end)
        .arg("begin_mask", whole.clone())
        .arg("end_mask", whole)
        .name(format!("{}_updated", place.group.name))
        .result()?;
    b.op(OpKind::WriteState).arg("input", place.state).arg("data", updated).results()?;
    Ok(())
}

/// Consecutive slices along an axis that are all that a write changes.
struct Rows {
    axis: usize,
    /// The number of the first, int32 `[1]`.
    first: ValueId,
    count: usize,
    updates: Arg,
}

/// The rows that `id` writes, if it writes its state's content with consecutive rows updated along
/// another axis than the first.
fn rows_written(function: &Function, weights: &WeightStore, id: OpId) -> Option<Rows> {
    let write = &function.ops[id];
    let (scatter_id, scatter) = maker(function, write.arg("data")?)?;
    let view = OpView::new(function, weights, scatter);
    if scatter.kind != OpKind::Scatter || view.str("mode").ok()?? != "update" {
        return None;
    }
    let (read_id, read) = maker(function, scatter.arg("data")?)?;
    let same = read.kind == OpKind::ReadState && read.arg("input") == write.arg("input");
    if !same || !unchanged_between(function, read_id, scatter_id, id) {
        return None;
    }
    let rank = view.tensor("data").ok()?.rank();
    let axis = view.axis(view.int("axis").ok()?.unwrap_or(0), rank).ok().filter(|&a| a > 0)?;
    let Arg::Value(indices) = scatter.arg("indices")? else { return None };
    let (first, count) = consecutive(function, weights, *indices)?;
    Some(Rows { axis, first, count, updates: scatter.arg("updates")?.clone() })
}

/// The operation of the body that makes a value.
fn maker<'a>(function: &'a Function, arg: &Arg) -> Option<(OpId, &'a Operation)> {
    let Arg::Value(v) = arg else { return None };
    match function.values[*v].def {
        ValueDef::Result(id, _) => Some((id, &function.ops[id])),
        ValueDef::Param => None,
    }
}

/// Whether `read`, `scatter` and `write` follow each other in the body and the state is not written
/// in between.
fn unchanged_between(function: &Function, read: OpId, scatter: OpId, write: OpId) -> bool {
    let place = |id| function.body.ops.iter().position(|&op| op == id);
    let (Some(read), Some(_), Some(end)) = (place(read), place(scatter), place(write)) else {
        return false;
    };
    let state = function.ops[write].arg("input");
    read < end
        && function.body.ops[read..end].iter().all(|&id| {
            let op = &function.ops[id];
            op.kind != OpKind::WriteState || op.arg("input") != state
        })
}

/// The first of consecutive int32 numbers, as a value `[1]`, and how many there are: one number, or
/// one number plus the constants 0, 1, 2 and so on.
fn consecutive(function: &Function, weights: &WeightStore, v: ValueId) -> Option<(ValueId, usize)> {
    let single = |v: ValueId| {
        function.tensor_ty(v).is_some_and(|t| *t == TensorType::new(DType::I32, [1usize]))
    };
    if single(v) {
        return Some((v, 1));
    }
    let (_, add) = maker(function, &v.into()).filter(|(_, op)| op.kind == OpKind::Add)?;
    let (x, y) = (add.arg("x")?, add.arg("y")?);
    let run = |arg: &Arg| {
        let tensor = function.const_arg(arg)?.resolve(weights)?;
        let numbers = mil::eval::tensor_ints(tensor)?;
        let counts = numbers.iter().copied().eq(0..numbers.len() as i64);
        (tensor.dtype() == DType::I32 && tensor.shape().len() == 1 && counts)
            .then_some(numbers.len())
    };
    let (start, count) = match (run(x), run(y)) {
        (None, Some(n)) => (x, n),
        (Some(n), None) => (y, n),
        _ => return None,
    };
    match start {
        Arg::Value(v) if single(*v) => Some((*v, count)),
        _ => None,
    }
}

/// Writes rows of a state in place.
fn write_rows(b: &mut FunctionBuilder<'_>, place: Place<'_>, rows: &Rows) -> mil::Result<()> {
    let count = Literal::vector(&[rows.count as i32]);
    let last = b.op(OpKind::Add).arg("x", rows.first).arg("y", count).name("rows_end").result()?;
    let rank = place.group.ty.rank();
    let mut corner = |row: ValueId, first: usize, name: &str| {
        let at = |axis| match axis {
            0 => Literal::vector(&[first as i32]).into(),
            a if a == rows.axis => row.into(),
            _ => Literal::vector(&[0i32]).into(),
        };
        let values: Vec<Arg> = (0..rank)
            .map(|axis| match at(axis) {
                Arg::Literal(l) => b.constant("corner", *l).into(),
                other => other,
            })
            .collect();
        b.op(OpKind::Concat)
            .arg("values", Arg::List(values))
            .arg("axis", Literal::scalar(0i32))
            .arg("interleave", Literal::bool(false))
            .name(name)
            .result()
    };
    let begin = corner(rows.first, place.first, "rows_corner_begin")?;
    let end = corner(last, place.first + place.group.lead, "rows_corner_end")?;
    let whole: Vec<bool> = (0..rank).map(|axis| axis > 0 && axis != rows.axis).collect();
    update(b, place, &rows.updates, (begin.into(), end.into()), Literal::bool_vector(&whole))
}
