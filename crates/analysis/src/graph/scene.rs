//! From functions to boxes and edges with places.

use std::collections::{HashMap, HashSet};

use mil::{Arg, Block, Function, Literal, OpId, OpView, Program, Type, ValueId};

use super::family::Family;
use super::layout::{self, Graph, Layout};
use crate::constants::{Constant, Scope, is_constant};
use crate::encoding::encoding;
use crate::units;
use crate::written::literal;

/// Width of a character and height of a line, of the size of the kind and of the size of what else is written.
pub(super) const TITLE: (f64, f64) = (7.8, 18.0);
pub(super) const SMALL: (f64, f64) = (6.2, 14.0);
/// Free space inside of a box.
pub(super) const PADDING: f64 = 9.0;
/// Characters of a line; the middle of longer ones is left out.
const LONGEST: usize = 34;
/// An edge over more ranks is drawn as a mark at its end that names the value.
const FARTHEST: usize = 12;

/// A function.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) scene: Scene,
}

/// What is drawn of a block.
pub(super) struct Scene {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
    pub(super) layout: Layout,
}

/// A box.
pub(super) struct Node {
    pub(super) family: Family,
    /// Kind of operation, or name.
    pub(super) title: String,
    /// What else is written.
    pub(super) lines: Vec<String>,
    /// What is shown of it when pointed at.
    pub(super) details: String,
    pub(super) size: (f64, f64),
    /// Nested blocks by title.
    pub(super) blocks: Vec<(String, Scene)>,
    /// Whether this stands for a value that is made far above.
    pub(super) mark: bool,
}

/// An edge.
pub(super) struct Edge {
    /// The type of what flows, at the first edge from a value.
    pub(super) label: Option<String>,
    /// Whether the box it comes from makes several values, so that the label belongs to the other end.
    pub(super) several: bool,
}

/// The functions of a program, drawn.
pub(super) fn sections(program: &Program) -> Vec<Section> {
    let scopes = program.functions.keys().filter_map(|name| Scope::new(program, name));
    let section = |scope: Scope<'_>| {
        let f = scope.function;
        let real = f.ops.values().filter(|op| !is_constant(op.kind)).count();
        let inputs = f.inputs.clone();
        let drawing = Drawing { scope: &scope };
        Section {
            title: scope.name.to_owned(),
            subtitle: format!("{}, {real} operations", f.opset),
            scene: drawing.block(&f.body, &inputs),
        }
    };
    scopes.map(section).collect()
}

struct Drawing<'a> {
    scope: &'a Scope<'a>,
}

/// Boxes and edges that have no place yet.
#[derive(Default)]
struct Sketch {
    nodes: Vec<Node>,
    edges: Vec<(usize, usize)>,
    /// Of each edge the value.
    values: Vec<ValueId>,
    makers: HashMap<ValueId, usize>,
}

impl Sketch {
    fn connect(&mut self, v: ValueId, to: usize) {
        let Some(&from) = self.makers.get(&v) else { return };
        // The edges to `to` come last.
        let same = |(edge, w): (&(usize, usize), &ValueId)| *edge == (from, to) && *w == v;
        let known = self.edges.iter().zip(&self.values).rev();
        if !known.take_while(|(edge, _)| edge.1 == to).any(same) {
            self.edges.push((from, to));
            self.values.push(v);
        }
    }
}

impl Drawing<'_> {
    fn function(&self) -> &Function {
        self.scope.function
    }

    /// A block whose parameters are `params`.
    fn block(&self, block: &Block, params: &[ValueId]) -> Scene {
        let mut sketch = Sketch::default();
        for &v in params {
            let data = &self.function().values[v];
            let family =
                if matches!(data.ty, Type::State(_)) { Family::State } else { Family::Input };
            let details = format!("{}\n{}", data.name, data.ty);
            sketch.makers.insert(v, sketch.nodes.len());
            sketch.nodes.push(node(family, &data.name, Vec::new(), details));
        }
        for &id in &block.ops {
            let op = &self.function().ops[id];
            if is_constant(op.kind) {
                continue;
            }
            let at = sketch.nodes.len();
            self.function().for_each_use(id, &mut |v| sketch.connect(v, at));
            sketch.nodes.push(self.operation(id));
            sketch.makers.extend(op.outputs.iter().map(|&v| (v, at)));
        }
        for &v in &block.outputs {
            let data = &self.function().values[v];
            let at = sketch.nodes.len();
            sketch.connect(v, at);
            let details = format!("{}\n{}", data.name, data.ty);
            sketch.nodes.push(node(Family::Output, &data.name, Vec::new(), details));
        }
        self.placed(sketch)
    }

    /// Gives everything its place; edges over many ranks become marks.
    fn placed(&self, mut sketch: Sketch) -> Scene {
        let ranks = layout::ranks(sketch.nodes.len(), &sketch.edges);
        for (edge, &v) in sketch.edges.iter_mut().zip(&sketch.values) {
            if ranks[edge.1].saturating_sub(ranks[edge.0]) > FARTHEST {
                let data = &self.function().values[v];
                let family = sketch.nodes[edge.0].family;
                let details = format!("{}\n{}\nmade further up", data.name, data.ty);
                edge.0 = sketch.nodes.len();
                let mark = node(family, &data.name, vec![short_type(&data.ty)], details);
                sketch.nodes.push(Node { mark: true, ..mark });
            }
        }
        let sizes = sketch.nodes.iter().map(|n| n.size).collect();
        let layout = layout::layout(&Graph { sizes, edges: sketch.edges.clone() });
        let mut made = HashMap::<usize, HashSet<ValueId>>::new();
        for (&(from, _), &v) in sketch.edges.iter().zip(&sketch.values) {
            made.entry(from).or_default().insert(v);
        }
        let mut labelled = HashSet::new();
        let edges = sketch.edges.iter().zip(&sketch.values).map(|(&(from, _), &v)| {
            let first = labelled.insert((from, v)) && !sketch.nodes[from].mark;
            let several = made.get(&from).is_some_and(|values| values.len() > 1);
            Edge { label: first.then(|| short_type(self.function().ty(v))), several }
        });
        Scene { edges: edges.collect(), nodes: sketch.nodes, layout }
    }

    fn operation(&self, id: OpId) -> Node {
        let (scope, function) = (self.scope, self.function());
        let op = &function.ops[id];
        let name = op.outputs.first().map_or("", |&v| &*function.values[v].name);
        let label = op.attributes.get("name").and_then(Literal::as_str).unwrap_or_default();
        let mut lines = vec![elided(name)];
        let mut details = vec![format!("{} {name}", op.kind.name())];
        if !label.is_empty() && label != name {
            details.push(format!("name {label}"));
        }
        for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
            let Some(arg) = arg else { continue };
            details.push(format!("{} = {}", param.name, self.argument(arg)));
            if let Some(constant) = scope.constant(arg).filter(|&c| scope.is_weight(c)) {
                lines.push(elided(&format!("{} {}", param.name, self.weight(constant))));
            }
        }
        for (name, literal) in op.attributes.iter().filter(|(name, _)| *name != "name") {
            details.push(format!("{name} = {}", self.constant(Constant::Literal(literal))));
        }
        let types: Vec<Type> = op.outputs.iter().map(|&v| function.ty(v).clone()).collect();
        let results = op.outputs.iter().zip(&types);
        details.extend(results.map(|(&v, ty)| format!("→ {}: {ty}", function.values[v].name)));
        let view = OpView::new(function, &scope.program.weights, op);
        let cost = op.kind.def().cost(&view, &types);
        let size = units::size(cost.bytes as u64);
        details.push(format!(
            "{} operations on numbers, {size} moved",
            units::thousands(cost.flops as u64)
        ));
        let blocks: Vec<(String, Scene)> = op
            .blocks
            .iter()
            .enumerate()
            .map(|(i, b)| (format!("block {i}"), self.block(b, &b.params)))
            .collect();
        let mut node = node(Family::of(op.kind), op.kind.name(), lines, details.join("\n"));
        if !blocks.is_empty() {
            let inner: f64 = blocks.iter().map(|(_, s)| s.layout.width + 2.0 * PADDING).sum();
            let tallest = blocks.iter().map(|(_, s)| s.layout.height).fold(0.0, f64::max);
            let width = node.size.0.max(inner + PADDING * (blocks.len() + 1) as f64);
            node.size = (width, node.size.1 + TITLE.1 + tallest + 4.0 * PADDING);
            node.blocks = blocks;
        }
        node
    }

    fn argument(&self, arg: &Arg) -> String {
        match (self.scope.constant(arg), arg) {
            (Some(constant), Arg::Value(v)) if self.scope.is_weight(constant) => {
                format!("{} ({})", self.function().values[*v].name, self.constant(constant))
            }
            (Some(constant), _) => self.constant(constant),
            (None, Arg::Value(v)) => {
                format!("{}: {}", self.function().values[*v].name, self.function().ty(*v))
            }
            (None, Arg::List(items)) => {
                let items: Vec<String> = items.iter().map(|a| self.argument(a)).collect();
                format!("({})", items.join(", "))
            }
            (None, Arg::Literal(_)) => String::new(),
        }
    }

    fn constant(&self, constant: Constant<'_>) -> String {
        match constant {
            Constant::Literal(l) if !self.scope.is_weight(constant) => {
                literal(&self.scope.program.weights, l, false)
            }
            _ => {
                let bytes = units::size(self.scope.stored_bytes(constant));
                format!("{}, {bytes}", self.weight(constant))
            }
        }
    }

    /// Shape and encoding.
    fn weight(&self, constant: Constant<'_>) -> String {
        let ty = self.scope.ty(constant);
        let encoding = encoding(self.scope, constant);
        match ty.as_tensor().map(|t| t.dtype.to_string()) {
            Some(dtype) if dtype == encoding => short_type(ty),
            _ => format!("{} {encoding}", short_type(ty)),
        }
    }
}

/// A type as edges have it: `fp16 4×128`.
fn short_type(ty: &Type) -> String {
    let tensor = |t: &mil::TensorType| {
        let sizes: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
        format!("{} {}", t.dtype, sizes.join("×")).trim_end().to_owned()
    };
    match ty {
        Type::Tensor(t) => tensor(t),
        Type::State(t) => format!("state {}", tensor(t)),
        _ => elided(&ty.to_string()),
    }
}

/// The text with its middle left out if it is long.
fn elided(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= LONGEST {
        return text.to_owned();
    }
    let half = (LONGEST - 1) / 2;
    let ends = [&chars[..half], &['…'], &chars[chars.len() - half..]];
    ends.concat().into_iter().collect()
}

fn node(family: Family, title: &str, mut lines: Vec<String>, details: String) -> Node {
    let title = elided(title);
    lines.retain(|line| !line.is_empty());
    let width = |text: &str, size: (f64, f64)| text.chars().count() as f64 * size.0;
    let widest = lines.iter().map(|l| width(l, SMALL)).fold(width(&title, TITLE), f64::max);
    let height = TITLE.1 + SMALL.1 * lines.len() as f64;
    let size = (widest + 2.0 * PADDING, height + 1.2 * PADDING);
    Node { family, title, lines, details, size, blocks: Vec::new(), mark: false }
}
