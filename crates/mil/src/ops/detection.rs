//! Choosing among overlapping boxes.

use tensor::DType;

use super::windows::sizes;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, Opset, TensorType, Type};

/// Non-maximum suppression: of each image, boxes are taken in descending order of their best score
/// over the `K` classes, the first of equals first, unless their intersection over union with one
/// taken before is above `iou_threshold`.
///
/// `boxes` `[n, B, 4]` are middles and sizes, columns first; `scores` are `[n, B, K]`. From iOS 17 on
/// the last two axes of both, and of the results, are swapped. Constants: `iou_threshold`; before iOS
/// 17 `score_threshold`, below which boxes do not count; `max_boxes` `M`; `per_class_suppression`
/// (false): only boxes of one best class suppress each other.
///
/// Results: the boxes `[n, M, 4]`, their scores `[n, M, K]` and indices `[n, M]`, and, before iOS 17,
/// how many they are `[n]`. Behind them stand zeros, as indices -1.
pub(super) struct NonMaximumSuppression;

/// The constant options.
struct Options {
    iou: f64,
    score: f64,
    max_boxes: usize,
    per_class: bool,
    /// Whether boxes are along the last axis.
    swapped: bool,
}

impl Options {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let swapped = op.function.opset >= Opset::Ios17;
        let score = op.float("score_threshold")?;
        if swapped == score.is_some() {
            let opset = op.function.opset;
            return Err(OpError::invalid(match swapped {
                true => format!("argument \"score_threshold\" is not of {opset}"),
                false => "argument \"score_threshold\" is missing".into(),
            }));
        }
        Ok(Options {
            iou: op.float("iou_threshold")?.unwrap_or_default(),
            score: score.unwrap_or(f64::NEG_INFINITY),
            max_boxes: sizes(op, "max_boxes", 1, 1, 1)?[0],
            per_class: op.bool_or("per_class_suppression", false)?,
            swapped,
        })
    }

    /// The last two of three sizes, boxes first.
    fn order<T: Clone>(&self, a: &T, b: &T) -> [T; 2] {
        if self.swapped { [b.clone(), a.clone()] } else { [a.clone(), b.clone()] }
    }

    /// The indices of the boxes that are taken.
    fn choose(&self, boxes: &[f64], scores: &[f64], classes: usize) -> Vec<usize> {
        let best: Vec<(usize, f64)> = scores
            .chunks_exact(classes.max(1))
            .map(|row| {
                let better = |a: (usize, f64), b: (usize, f64)| if b.1 > a.1 { b } else { a };
                let first = (0, row[0]);
                row.iter().copied().enumerate().fold(first, better)
            })
            .collect();
        let mut order: Vec<usize> = (0..best.len()).filter(|&i| best[i].1 >= self.score).collect();
        order.sort_by(|&a, &b| best[b].1.total_cmp(&best[a].1));
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            let overlaps = |&j: &usize| {
                let rivals = !self.per_class || best[i].0 == best[j].0;
                rivals && iou(&boxes[i * 4..][..4], &boxes[j * 4..][..4]) > self.iou
            };
            if taken.len() < self.max_boxes && !taken.iter().any(overlaps) {
                taken.push(i);
            }
        }
        taken
    }
}

/// Intersection over union of two boxes given by middle and size.
fn iou(a: &[f64], b: &[f64]) -> f64 {
    let overlap = |axis: usize| {
        let ends = |v: &[f64]| (v[axis] - v[axis + 2] / 2.0, v[axis] + v[axis + 2] / 2.0);
        let ((a0, a1), (b0, b1)) = (ends(a), ends(b));
        (a1.min(b1) - a0.max(b0)).max(0.0)
    };
    let both = overlap(0) * overlap(1);
    let union = a[2] * a[3] + b[2] * b[3] - both;
    if union > 0.0 { both / union } else { 0.0 }
}

impl OpDef for NonMaximumSuppression {
    fn name(&self) -> &'static str {
        "non_maximum_suppression"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("boxes", Domain::Float),
                Param::new("scores", Domain::Float),
                Param::new("iou_threshold", Domain::Float).constant(),
                Param::new("score_threshold", Domain::Float).optional().constant(),
                Param::new("max_boxes", Domain::Int).constant(),
                Param::new("per_class_suppression", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (boxes, scores) = (op.tensor("boxes")?, op.tensor("scores")?);
        let options = Options::of(op)?;
        let mismatch = || OpError::invalid(format!("boxes {boxes} and scores {scores}"));
        let ([n, a, b], [m, c, d]) = (&*boxes.shape, &*scores.shape) else {
            return Err(mismatch());
        };
        let ([count, four], [scored, classes]) = (options.order(a, b), options.order(c, d));
        let fits = n.compatible(m) && count.compatible(&scored) && four == Dim::Fixed(4);
        if !fits {
            return Err(mismatch());
        }
        let max = Dim::Fixed(options.max_boxes);
        let result = |dtype, last: &Dim| {
            let [a, b] = options.order(&max, last);
            Type::from(TensorType { dtype, shape: vec![n.clone(), a, b] })
        };
        let mut types = vec![result(boxes.dtype, &four), result(scores.dtype, &classes)];
        types.push(TensorType { dtype: DType::I32, shape: vec![n.clone(), max.clone()] }.into());
        if !options.swapped {
            types.push(TensorType { dtype: DType::I32, shape: vec![n.clone()] }.into());
        }
        Ok(types)
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let options = Options::of(&cx.op)?;
        let rows = |name: &str| {
            let array = cx.array(name)?;
            match (array.shape.len(), options.swapped) {
                (3, true) => Ok(array.transposed(&[0, 2, 1])),
                (3, false) => Ok((*array).clone()),
                _ => Err(OpError::invalid(format!("{name} {:?}", array.shape))),
            }
        };
        let (boxes, scores) = (rows("boxes")?, rows("scores")?);
        let (&[n, count, 4], &[m, scored, classes]) = (&*boxes.shape, &*scores.shape) else {
            return Err(OpError::invalid(format!("boxes {:?}", boxes.shape)));
        };
        if (n, count) != (m, scored) || classes == 0 {
            return Err(OpError::invalid(format!("scores {:?} do not fit", scores.shape)));
        }
        let max = options.max_boxes;
        bounded(&[n, max, classes.max(4)])?;
        let (b, s) = (boxes.floats()?, scores.floats()?);
        let mut chosen = (vec![0.0; n * max * 4], vec![0.0; n * max * classes], vec![-1; n * max]);
        let mut counts = Vec::with_capacity(n);
        for image in 0..n {
            let b = &b[image * count * 4..][..count * 4];
            let s = &s[image * count * classes..][..count * classes];
            let taken = options.choose(b, s, classes);
            for (i, &j) in taken.iter().enumerate() {
                let at = image * max + i;
                chosen.0[at * 4..][..4].copy_from_slice(&b[j * 4..][..4]);
                chosen.1[at * classes..][..classes].copy_from_slice(&s[j * classes..][..classes]);
                chosen.2[at] = j as i64;
            }
            counts.push(taken.len() as i64);
        }
        let floats = |like: &Array, last: usize, values: Vec<f64>| {
            let (shape, data) = (vec![n, max, last], Data::Float(values));
            let array = Array { dtype: like.dtype, shape, data };
            Value::from(if options.swapped { array.transposed(&[0, 2, 1]) } else { array })
        };
        let ints = |shape: Vec<usize>, values: Vec<i64>| {
            Value::from(Array { dtype: DType::I32, shape, data: Data::Int(values) })
        };
        let mut results = vec![floats(&boxes, 4, chosen.0), floats(&scores, classes, chosen.1)];
        results.push(ints(vec![n, max], chosen.2));
        if !options.swapped {
            results.push(ints(vec![n], counts));
        }
        Ok(results)
    }
}
