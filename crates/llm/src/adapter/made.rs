//! Adapters that are made here: first factors for chosen layers, trained factors in PEFT's form, and
//! weights that an adapter was added to.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use import::peft::LowRank;
use tensor::Tensor;

use super::{Adapter, Factors, floats, row_of_halves};
use crate::arch::AdaptedLayer;
use crate::{Error, Model, Result};

/// Short names of the layers that most families have, and how their paths end.
const SHORT: &[(&str, &str)] = &[
    ("q", "q_proj"),
    ("k", "k_proj"),
    ("v", "v_proj"),
    ("o", "o_proj"),
    ("gate", "gate_proj"),
    ("up", "up_proj"),
    ("down", "down_proj"),
];

/// Where the output layer is in Hugging Face's models.
const OUTPUT_LAYER: &str = "lm_head";

impl Model {
    /// The targets of [`Model::new_adapter`] that are usual: queries and values, or the one layer that makes
    /// them together with the keys.
    ///
    /// # Errors
    /// When the weights are not as the family has them.
    pub fn usual_targets(&self) -> Result<&'static [&'static str]> {
        let apart = self.linear_layers()?.iter().any(|path| path.ends_with("q_proj"));
        Ok(if apart { &["q", "v"] } else { &["c_attn"] })
    }

    /// An adapter that changes nothing yet, of `rank`, for the linear layers whose paths in Hugging Face's
    /// model end in one of `targets`, such as `q_proj` or its short form `q`.
    ///
    /// `A` is uniform within `1 / sqrt(in)`, `B` is zero: PEFT's first values (He et al. 2015 with a slope of
    /// the root of 5).
    ///
    /// # Errors
    /// When a target is no layer of the model or its output layer, or the rank is 0 or more than a layer has inputs or outputs.
    pub fn new_adapter(&self, targets: &[&str], rank: usize, seed: u64) -> Result<Adapter> {
        let mut paths = self.linear_layers()?;
        // Training has no product of the output layer alone: it is one with the loss.
        paths.retain(|path| path != OUTPUT_LAYER);
        let mut chosen = BTreeSet::new();
        for target in targets {
            let end = SHORT.iter().find(|(short, _)| short == target).map_or(*target, |(_, p)| p);
            let is_it = |p: &&String| {
                p.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            if *target == OUTPUT_LAYER {
                return Err(Error::unsupported(
                    self.file().path(),
                    format!("an adapter of the output layer, {OUTPUT_LAYER}"),
                ));
            }
            chosen.extend(paths.iter().filter(is_it).map(String::as_str));
            if !paths.iter().any(|p| is_it(&p)) {
                let ends: BTreeSet<&str> =
                    paths.iter().map(|p| p.rsplit('.').next().unwrap_or(p)).collect();
                let ends = ends.into_iter().collect::<Vec<_>>().join(", ");
                return Err(Error::request(format!(
                    "no linear layer of this {} model is called {target:?}; there are {ends}",
                    self.config().arch
                )));
            }
        }
        let mut rng = Rng::with_seed(seed);
        let mut layers = BTreeMap::new();
        for place in self.adapted_layers(chosen.into_iter())?.into_iter().flatten() {
            for name in place.weights {
                let [out, inner] = self.matrix(&name)?;
                if rank == 0 || rank > inner.min(out) {
                    let why = format!("rank {rank} for {name}, which is [{out}, {inner}]");
                    return Err(Error::request(why));
                }
                let bound = (inner as f32).sqrt().recip();
                let a: Vec<f32> =
                    (0..rank * inner).map(|_| (2.0 * rng.f32() - 1.0) * bound).collect();
                let a = tensor(&[rank, inner], &a)?;
                layers
                    .insert(name, Factors { a, b: tensor(&[out, rank], &vec![0.0; out * rank])? });
            }
        }
        Ok(Adapter { layers })
    }

    /// Trained factors as PEFT saves them: by paths in Hugging Face's model and with its order of rows.
    /// `factors` are by the names of weights, `B` without the factor `scale`. Three layers that are one
    /// there become one of three times their rank.
    ///
    /// # Errors
    /// When a name or a shape is none of the model's.
    pub fn low_rank(
        &self,
        factors: &BTreeMap<String, Factors>,
        scale: f64,
    ) -> Result<Vec<LowRank>> {
        let paths = self.linear_layers()?;
        let places = self.adapted_layers(paths.iter().map(String::as_str))?;
        let mut left: BTreeSet<&str> = factors.keys().map(String::as_str).collect();
        let mut found = Vec::new();
        for (module, place) in paths.iter().zip(places) {
            let Some(place) = place else { continue };
            if place.weights.iter().any(|w| factors.contains_key(w)) {
                left.retain(|name| !place.weights.iter().any(|w| w == name));
                let (a, b) = self.whole(&place, factors)?;
                found.push(LowRank { module: module.clone(), a, b, scale });
            }
        }
        match left.first() {
            None => Ok(found),
            Some(name) => Err(Error::request(format!("{name} is no linear layer of this model"))),
        }
    }

    /// The factors of a layer of Hugging Face's model: those of its parts in blocks along a diagonal.
    fn whole(
        &self,
        place: &AdaptedLayer,
        factors: &BTreeMap<String, Factors>,
    ) -> Result<(Tensor, Tensor)> {
        let parts = place.weights.iter().map(|name| Ok((self.matrix(name)?, factors.get(name))));
        let parts: Vec<([usize; 2], Option<&Factors>)> = parts.collect::<Result<_>>()?;
        let rank_of =
            |f: &Option<&Factors>| f.map_or(0, |f| f.a.shape().first().copied().unwrap_or(0));
        let rank: usize = parts.iter().map(|(_, f)| rank_of(f)).sum();
        let inner = parts.first().map_or(0, |([_, inner], _)| *inner);
        let rows: usize = parts.iter().map(|([out, _], _)| out).sum();
        let (mut a, mut b) = (Vec::with_capacity(rank * inner), vec![0.0f32; rows * rank]);
        let (mut row, mut column) = (0, 0);
        for ([out, inner], factors) in &parts {
            if let Some(Factors { a: own_a, b: own_b }) = factors {
                let own = rank_of(factors);
                if own_a.shape() != [own, *inner] || own_b.shape() != [*out, own] {
                    let shapes = format!("A {:?} and B {:?}", own_a.shape(), own_b.shape());
                    return Err(Error::request(format!("{shapes} for [{out}, {inner}]")));
                }
                a.extend(floats(own_a, 1.0).map_err(Error::request)?);
                let values = floats(own_b, 1.0).map_err(Error::request)?;
                for (i, from) in values.chunks_exact(own.max(1)).enumerate() {
                    let to = row + place.head.map_or(i, |dim| row_of_halves(i, dim));
                    b[to * rank + column..][..own].copy_from_slice(from);
                }
                column += own;
            }
            row += out;
        }
        Ok((tensor(&[rank, inner], &a)?, tensor(&[rows, rank], &b)?))
    }

    /// The weights that `adapter` changes, changed: `W + B A`, in fp32.
    ///
    /// # Errors
    /// When an adapted weight is the embedding too, which the adapter does not change.
    pub fn merged(&self, adapter: &Adapter) -> Result<BTreeMap<String, Tensor>> {
        let mut merged = BTreeMap::new();
        for (name, Factors { a, b }) in adapter.layers() {
            let ([out, inner], weight) = (self.matrix(name)?, self.weight(name)?);
            let rank = a.shape().first().copied().unwrap_or(0);
            if a.shape() != [rank, inner] || b.shape() != [out, rank] {
                let shapes = format!("A {:?} and B {:?}", a.shape(), b.shape());
                return Err(Error::request(format!(
                    "{shapes} for {name}, which is [{out}, {inner}]"
                )));
            }
            if self.config().tied && self.is_embedding(name) {
                let why = format!("{name} is the embedding too, which the adapter does not change");
                return Err(Error::request(why));
            }
            let not_floats = || Error::request(format!("{name} is {}", weight.dtype()));
            let (a, b) = (floats(a, 1.0), floats(b, 1.0));
            let (a, b) = (a.map_err(Error::request)?, b.map_err(Error::request)?);
            let mut values = mil::eval::tensor_floats(weight).ok_or_else(not_floats)?;
            for (row, b) in values.chunks_exact_mut(inner).zip(b.chunks_exact(rank.max(1))) {
                for (a, &factor) in a.chunks_exact(inner).zip(b) {
                    row.iter_mut()
                        .zip(a)
                        .for_each(|(w, &a)| *w += f64::from(a) * f64::from(factor));
                }
            }
            let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            merged.insert(name.clone(), tensor(weight.shape(), &values)?);
        }
        Ok(merged)
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        let weights = &self.program().weights;
        let weight = weights.find(name).and_then(|id| weights.get(id));
        let missing = || Error::request(format!("the model has no weight {name}"));
        weight.map(|w| &w.tensor).ok_or_else(missing)
    }

    fn matrix(&self, name: &str) -> Result<[usize; 2]> {
        let shape = self.weight(name)?.shape();
        shape.try_into().map_err(|_| Error::request(format!("{name} is no matrix but {shape:?}")))
    }
}

fn tensor(shape: &[usize], values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(shape, values).map_err(|e| Error::bug(e.to_string()))
}
