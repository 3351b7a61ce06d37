//! Adapters of a model: low-rank changes of its linear layers, from a file's names and order of rows to
//! the model's own, and several of them in slots of one size so that they can take turns.

mod made;

use std::collections::BTreeMap;

use import::PeftAdapter;
use import::peft::LowRank;
use tensor::Tensor;

use crate::arch::AdaptedLayer;
use crate::{Error, Model, Result};

/// The name of no adapter, which stands for the model as it is.
pub const NONE: &str = "none";

/// Modules that an error names before it counts.
const NAMED: usize = 3;

/// What changes one linear layer: `y += B (A x)`.
#[derive(Clone, Debug)]
pub struct Factors {
    /// `[rank, in]`, fp32.
    pub a: Tensor,
    /// `[out, rank]`, fp32, the adapter's factor included.
    pub b: Tensor,
}

/// The changes of an adapter by the names of the weights in its model's program.
#[derive(Clone, Debug)]
pub struct Adapter {
    layers: BTreeMap<String, Factors>,
}

impl Adapter {
    /// The changes by the names of weights.
    pub fn layers(&self) -> &BTreeMap<String, Factors> {
        &self.layers
    }
}

impl Model {
    /// Fits an adapter to this model: finds the layers that it changes, cuts what is one layer in Hugging
    /// Face's model and three in this one, and orders rows as this model's file has them.
    ///
    /// # Errors
    /// `unsupported` when the model has no linear layers of the names that the adapter changes; `invalid`
    /// when a factor's shape does not fit its layer, or its numbers are beyond fp32.
    pub fn adapter(&self, file: &PeftAdapter) -> Result<Adapter> {
        let mut layers = BTreeMap::new();
        let mut unknown = Vec::new();
        let places = self.adapted_layers(file.layers().iter().map(|l| l.module.as_str()))?;
        for (change, place) in file.layers().iter().zip(places) {
            let Some(place) = place else {
                unknown.push(change.module.as_str());
                continue;
            };
            let fitted = self.fitted(change, &place).map_err(|why| {
                Error::invalid(file.path(), format!("adapter of {}: {why}", change.module))
            })?;
            for (weight, factors) in fitted {
                if layers.insert(weight, factors).is_some() {
                    let why = format!("changes {} by two names", change.module);
                    return Err(Error::invalid(file.path(), why));
                }
            }
        }
        if unknown.is_empty() {
            return Ok(Adapter { layers });
        }
        let mut names = unknown[..unknown.len().min(NAMED)].join(", ");
        if unknown.len() > NAMED {
            names += &format!(" and {} more", unknown.len() - NAMED);
        }
        let why = format!("changes {names}: no linear layers of this {} model", self.config().arch);
        Err(Error::unsupported(file.path(), why))
    }

    /// The factors of a change for each weight that it concerns.
    fn fitted(
        &self,
        change: &LowRank,
        place: &AdaptedLayer,
    ) -> Result<Vec<(String, Factors)>, String> {
        let weights = &self.program().weights;
        let mut shapes = Vec::with_capacity(place.weights.len());
        for name in &place.weights {
            let weight = weights.find(name).and_then(|id| weights.get(id));
            let shape = weight.map(|w| w.tensor.shape().to_vec());
            match shape.as_deref() {
                Some(&[out, inner]) => shapes.push((out, inner)),
                _ => return Err(format!("there is no matrix {name:?}")),
            }
        }
        let out: usize = shapes.iter().map(|s| s.0).sum();
        let inner = shapes.first().map_or(0, |s| s.1);
        let rank = change.rank();
        if change.a.shape() != [rank, inner] || change.b.shape() != [out, rank] {
            let (a, b) = (change.a.shape(), change.b.shape());
            return Err(format!("A {a:?} and B {b:?} do not fit a weight [{out}, {inner}]"));
        }
        let a = floats(&change.a, 1.0)?;
        let b = floats(&change.b, change.scale)?;
        let a = Tensor::from_slice(&[rank, inner], &a).map_err(|e| e.to_string())?;
        let mut found = Vec::with_capacity(shapes.len());
        let mut first = 0;
        for (name, (out, _)) in place.weights.iter().zip(shapes) {
            let rows = |row: usize| {
                let from = first + place.head.map_or(row, |dim| row_of_halves(row, dim));
                b[from * rank..(from + 1) * rank].iter().copied()
            };
            let cut: Vec<f32> = (0..out).flat_map(rows).collect();
            let b = Tensor::from_slice(&[out, rank], &cut).map_err(|e| e.to_string())?;
            found.push((name.clone(), Factors { a: a.clone(), b }));
            first += out;
        }
        Ok(found)
    }
}

/// Which row of a matrix whose heads of `dim` rows are rotated by halves is row `row` of the matrix whose
/// heads are rotated by neighbours: GGUF's and llama2.c's order of Llama's queries and keys.
pub(crate) fn row_of_halves(row: usize, dim: usize) -> usize {
    let within = row % dim;
    row - within + within % 2 * (dim / 2) + within / 2
}

/// The elements times `scale`, rounded once.
fn floats(tensor: &Tensor, scale: f64) -> Result<Vec<f32>, String> {
    let values = mil::eval::tensor_floats(tensor).ok_or("factors are not of floats")?;
    let values: Vec<f32> = values.iter().map(|x| (x * scale) as f32).collect();
    match values.iter().all(|x| x.is_finite()) {
        true => Ok(values),
        false => Err("a factor is not finite, or becomes so in fp32".to_owned()),
    }
}

/// Adapters of one model that can take turns: each layer that any of them changes has a slot of the
/// largest rank among them.
#[derive(Clone, Debug)]
pub struct Adapters {
    names: Vec<String>,
    /// By name and then by slot; padded to the slots' ranks.
    factors: BTreeMap<String, Vec<Factors>>,
    slots: Vec<(String, usize)>,
    /// The change that is none, by slot.
    zeros: Vec<Factors>,
}

impl Adapters {
    /// Adapters by name.
    ///
    /// # Errors
    /// When two have one name, one is called [`NONE`], or two change a layer with factors of different
    /// shapes, being of different models.
    pub fn new(adapters: Vec<(String, Adapter)>) -> Result<Self> {
        let mut shapes: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for (name, adapter) in &adapters {
            for (weight, Factors { a, b }) in &adapter.layers {
                let (&[rank, inner], &[out, _]) = (a.shape(), b.shape()) else {
                    return Err(Error::bug(format!("adapter {name}: factors are no matrices")));
                };
                let [slot, ins, outs] = shapes.entry(weight).or_insert([rank, inner, out]);
                if (*ins, *outs) != (inner, out) {
                    let why = format!("adapter {name:?} is for another model than those before");
                    return Err(Error::request(why));
                }
                *slot = rank.max(*slot);
            }
        }
        let zeros = shapes.values().map(|&s| padded(None, s)).collect::<Result<Vec<_>>>()?;
        let slots = shapes.iter().map(|(&weight, s)| (weight.to_owned(), s[0])).collect();
        let mut factors = BTreeMap::new();
        let mut names = Vec::new();
        for (name, adapter) in &adapters {
            let own = shapes.iter().map(|(&weight, &s)| padded(adapter.layers.get(weight), s));
            let own = own.collect::<Result<Vec<_>>>()?;
            if name == NONE || factors.insert(name.clone(), own).is_some() {
                let why = match name == NONE {
                    true => format!("{NONE:?} is no name for an adapter"),
                    false => format!("two adapters are called {name:?}"),
                };
                return Err(Error::request(why));
            }
            names.push(name.clone());
        }
        Ok(Adapters { names, factors, slots, zeros })
    }

    /// The adapters' names as they were given.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The layers' weights and the ranks of their slots.
    pub fn slots(&self) -> &[(String, usize)] {
        &self.slots
    }

    /// The factors in every slot under adapter `name`, or under none.
    ///
    /// # Errors
    /// When there is no adapter of that name.
    pub fn factors(&self, name: Option<&str>) -> Result<&[Factors]> {
        let Some(name) = name else { return Ok(&self.zeros) };
        self.factors.get(name).map(Vec::as_slice).ok_or_else(|| {
            let known = self.names.join(", ");
            Error::request(format!("there is no adapter {name:?}; there are {known} and {NONE}"))
        })
    }
}

/// Factors lengthened with zeros to a slot of `[rank, in, out]`.
fn padded(factors: Option<&Factors>, [rank, inner, out]: [usize; 3]) -> Result<Factors> {
    let mut a = vec![0.0f32; rank * inner];
    let mut b = vec![0.0f32; out * rank];
    if let Some(factors) = factors {
        let own = factors.a.shape()[0];
        let slices = factors.a.as_slice::<f32>().and_then(|a| Ok((a, factors.b.as_slice()?)));
        let (from_a, from_b) = slices.map_err(|e| Error::bug(e.to_string()))?;
        a[..from_a.len()].copy_from_slice(from_a);
        let rows = b.chunks_exact_mut(rank.max(1)).zip(from_b.chunks_exact(own.max(1)));
        rows.for_each(|(to, from): (_, &[f32])| to[..own].copy_from_slice(from));
    }
    let tensor = |shape: &[usize], values: &[f32]| {
        Tensor::from_slice(shape, values).map_err(|e| Error::bug(e.to_string()))
    };
    Ok(Factors { a: tensor(&[rank, inner], &a)?, b: tensor(&[out, rank], &b)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(rank: usize, value: f32) -> Adapter {
        let a = Tensor::from_slice(&[rank, 3], &vec![value; rank * 3]).unwrap();
        let b = Tensor::from_slice(&[2, rank], &vec![value; 2 * rank]).unwrap();
        Adapter { layers: BTreeMap::from([("w".to_owned(), Factors { a, b })]) }
    }

    #[test]
    fn adapters_of_different_ranks_share_a_slot() {
        let both = vec![("one".to_owned(), adapter(1, 1.0)), ("two".to_owned(), adapter(2, 2.0))];
        let set = Adapters::new(both.clone()).unwrap();
        assert_eq!(set.slots(), [("w".to_owned(), 2)]);
        let one = &set.factors(Some("one")).unwrap()[0];
        assert_eq!(one.a.as_slice::<f32>().unwrap(), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(one.b.as_slice::<f32>().unwrap(), [1.0, 0.0, 1.0, 0.0]);
        assert!(
            set.factors(None).unwrap()[0].b.as_slice::<f32>().unwrap().iter().all(|&x| x == 0.0)
        );
        let e = set.factors(Some("three")).unwrap_err().to_string();
        assert_eq!(e, "there is no adapter \"three\"; there are one, two and none");
        for (name, message) in [
            ("one", "two adapters are called \"one\""),
            (NONE, "\"none\" is no name for an adapter"),
        ] {
            let wrong = vec![both[0].clone(), (name.to_owned(), adapter(1, 0.0))];
            assert_eq!(Adapters::new(wrong).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn rows_of_halves_are_a_permutation_of_each_head() {
        let rows: Vec<usize> = (0..8).map(|row| row_of_halves(row, 4)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
