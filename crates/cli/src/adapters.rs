//! Adapters from the command line: their directories, their slots in a program, and which is in use.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use exec::Tensors;
use import::PeftAdapter;
use llm::Model;
use llm::adapter::{Adapters, NONE};
use mil::Program;
use passes::ane::AdapterSlot;
use passes::low_rank::{input_names, low_rank_inputs};

use crate::devices::Device;

/// Which adapters.
#[derive(Args)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct AdapterArgs {
    /// A low-rank adapter (LoRA) as PEFT saves it, a directory; may be given several times
    #[arg(long = "adapter", value_name = "NAME=DIR", value_parser = named)]
    adapters: Vec<(String, PathBuf)>,
    /// The adapter in use, by default the first; none for the model as it is. `generate` takes several
    /// and answers once with each, from the same seed
    #[arg(long = "use", value_name = "NAME", requires = "adapters")]
    used: Vec<String>,
}

fn named(argument: &str) -> Result<(String, PathBuf), String> {
    match argument.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => {
            Ok((name.to_owned(), dir.into()))
        }
        _ => Err("not of the form NAME=DIR".to_owned()),
    }
}

/// Adapters that fit the model at hand.
pub(crate) struct Slots {
    adapters: Adapters,
    slots: Vec<AdapterSlot>,
}

impl AdapterArgs {
    /// The names to be used one after the other, if there are adapters.
    pub(crate) fn used(&self) -> Vec<&str> {
        match self.used.is_empty() {
            true => self.adapters.first().map(|(name, _)| name.as_str()).into_iter().collect(),
            false => self.used.iter().map(String::as_str).collect(),
        }
    }

    /// Reads the adapters and fits them to `model`; `None` where there are none.
    ///
    /// # Errors
    /// When one cannot be read or is for another model, or --use names none of them.
    pub(crate) fn open(&self, model: &Model) -> Result<Option<Slots>> {
        if self.adapters.is_empty() {
            return Ok(None);
        }
        let open = |(name, dir): &(String, PathBuf)| {
            Ok((name.clone(), model.adapter(&PeftAdapter::open(dir)?)?))
        };
        let adapters = self.adapters.iter().map(open).collect::<Result<Vec<_>>>()?;
        let adapters = Adapters::new(adapters)?;
        for name in self.used() {
            adapters.factors(chosen(name))?;
        }
        let slot =
            |(weight, rank): &(String, usize)| AdapterSlot { weight: weight.clone(), rank: *rank };
        let slots = adapters.slots().iter().map(slot).collect();
        Ok(Some(Slots { adapters, slots }))
    }
}

/// An adapter by the name that people give; `None` for the model as it is.
pub(crate) fn chosen(name: &str) -> Option<&str> {
    Some(name).filter(|n| *n != NONE)
}

impl Slots {
    /// The slots, for a device.
    pub(crate) fn slots(&self) -> &[AdapterSlot] {
        &self.slots
    }

    /// The names of adapters.
    pub(crate) fn names(&self) -> &[String] {
        self.adapters.names()
    }

    /// Prepares a program; functions that are `on_host` take factors as inputs.
    ///
    /// # Errors
    /// When an operation is invalid.
    pub(crate) fn prepare(
        &self,
        program: &mut Program,
        on_host: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        Ok(low_rank_inputs(program, &self.slots, 1.0, on_host)?)
    }

    /// The further inputs of a function under adapter `name`.
    ///
    /// # Errors
    /// When there is no such adapter.
    pub(crate) fn inputs(&self, name: Option<&str>) -> Result<Tensors> {
        let factors = self.adapters.factors(name)?.iter().enumerate();
        let both = factors.flat_map(|(slot, f)| {
            let [a, b] = input_names(slot);
            [(a, f.a.clone()), (b, f.b.clone())]
        });
        Ok(both.collect())
    }

    /// Gives `device` adapter `name`.
    ///
    /// # Errors
    /// When there is no such adapter.
    pub(crate) fn give(&self, device: &Device, name: Option<&str>) -> Result<()> {
        let factors = self.slots.iter().zip(self.adapters.factors(name)?);
        let factors: BTreeMap<_, _> =
            factors.map(|(s, f)| (s.weight.clone(), (f.a.clone(), f.b.clone()))).collect();
        device.adapt(factors)
    }
}
