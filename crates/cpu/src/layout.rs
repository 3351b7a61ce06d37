//! Decides where the buffers of a plan lie: in place of one another, in an output, in the arena.

use std::ops::Range;

use mil::ValueId;

use crate::lower::{Draft, Drafted, Owner, Slot};
use crate::memory::{self, Buffer};
use crate::plan::Place;

/// Lives of buffers, and which share memory.
pub(crate) struct Layout {
    buffers: Vec<Buffer>,
    /// The buffer whose memory a buffer takes over; itself if none.
    shares: Vec<usize>,
    steps: usize,
}

impl Layout {
    /// The lives of buffers of the given lengths.
    pub(crate) fn new(
        lens: &[usize],
        drafts: &[Draft],
        outputs: &[(ValueId, Option<Slot>)],
    ) -> Self {
        let steps = drafts.len();
        let mut buffers: Vec<Buffer> =
            lens.iter().map(|&len| Buffer { len, life: steps..0 }).collect();
        let mut touch = |buffer: Option<usize>, step: usize| {
            if let Some(b) = buffer {
                let life = &mut buffers[b].life;
                *life = life.start.min(step)..life.end.max(step + 1);
            }
        };
        for (step, draft) in drafts.iter().enumerate() {
            match draft {
                Draft::Unused => {}
                Draft::Native(Drafted { ins, outs, .. }) => {
                    ins.iter().for_each(|slot| touch(slot.buffer(), step));
                    outs.iter().for_each(|&b| touch(Some(b), step));
                }
                Draft::Interpreted(draft) => {
                    let results = draft.results.iter().filter_map(|(_, slot)| slot.as_ref());
                    let slots = draft.uses.iter().map(|(_, slot)| slot).chain(results);
                    slots.for_each(|slot| touch(slot.buffer(), step));
                }
            }
        }
        outputs.iter().flat_map(|(_, slot)| slot).for_each(|slot| touch(slot.buffer(), steps));
        Layout { buffers, shares: (0..lens.len()).collect(), steps }
    }

    /// Lets first outputs take over the memory of inputs that are read for the last time, where the
    /// kernel can do that; says which input for each step.
    pub(crate) fn share_in_place(&mut self, drafts: &[Draft]) -> Vec<Option<usize>> {
        drafts.iter().enumerate().map(|(step, draft)| self.shared_input(step, draft)).collect()
    }

    fn shared_input(&mut self, step: usize, draft: &Draft) -> Option<usize> {
        let Draft::Native(Drafted { kernel, ins, outs, .. }) = draft else { return None };
        let &out = outs.first()?;
        for &candidate in kernel.in_place() {
            let Some(slot) = ins.get(candidate) else { continue };
            let Some(buffer) = slot.buffer().map(|b| self.shares[b]) else { continue };
            let same = |s: &Slot| s.buffer().map(|b| self.shares[b]) == Some(buffer);
            let whole = slot.len == self.buffers[buffer].len && slot.len == self.buffers[out].len;
            let last = self.buffers[buffer].life.end == step + 1;
            if whole && last && ins.iter().filter(|s| same(s)).count() == 1 {
                self.shares[out] = buffer;
                self.buffers[buffer].life.end = self.buffers[out].life.end;
                return Some(candidate);
            }
        }
        None
    }

    /// Puts whole outputs of the function into memory of their own, and the rest into the arena.
    /// `states` has the state of each read of one.
    pub(crate) fn place(self, outputs: &[(ValueId, Option<Slot>)], states: Vec<usize>) -> Places {
        let Layout { buffers, shares, steps } = self;
        let mut direct: Vec<Option<usize>> = vec![None; buffers.len()];
        let mut direct_lens = Vec::new();
        for slot in outputs.iter().flat_map(|(_, slot)| slot) {
            let Some(b) = slot.buffer().map(|b| shares[b]) else { continue };
            if slot.len == buffers[b].len && direct[b].is_none() {
                direct[b] = Some(direct_lens.len());
                direct_lens.push(slot.len);
            }
        }
        debug_assert!(buffers.iter().all(|b| b.life.end <= steps + 1));
        let in_arena: Vec<usize> =
            (0..buffers.len()).filter(|&b| shares[b] == b && direct[b].is_none()).collect();
        let lives: Vec<Buffer> = in_arena.iter().map(|&b| buffers[b].clone()).collect();
        let (offsets, arena_bytes) = memory::place(&lives);
        let mut places: Vec<Place> = buffers
            .iter()
            .enumerate()
            .map(|(b, buffer)| Place::Direct(direct[b].unwrap_or(0), 0..buffer.len))
            .collect();
        for (&b, &offset) in in_arena.iter().zip(&offsets) {
            places[b] = Place::Arena(offset..offset + buffers[b].len);
        }
        let places = shares.iter().map(|&b| places[b].clone()).collect();
        Places { places, states, arena_bytes, direct_lens }
    }
}

/// Where each buffer lies.
pub(crate) struct Places {
    places: Vec<Place>,
    /// The state of each read of one.
    states: Vec<usize>,
    /// Bytes of the arena.
    pub(crate) arena_bytes: usize,
    /// Bytes of the outputs that steps write directly.
    pub(crate) direct_lens: Vec<usize>,
}

impl Places {
    /// The place of a whole buffer.
    pub(crate) fn buffer(&self, b: usize) -> Place {
        self.places[b].clone()
    }

    /// The place of a tensor.
    pub(crate) fn of(&self, slot: &Slot) -> Place {
        let range = slot.start..slot.start + slot.len;
        match slot.owner {
            Owner::Const(i) => Place::Const(i, range),
            Owner::Input(i) => Place::Input(i, range),
            Owner::State(read) => Place::State(self.states[read], range),
            Owner::Buffer(b) => match &self.places[b] {
                Place::Arena(whole) => Place::Arena(within(whole, range)),
                Place::Direct(i, whole) => Place::Direct(*i, within(whole, range)),
                other => other.clone(),
            },
        }
    }
}

fn within(whole: &Range<usize>, part: Range<usize>) -> Range<usize> {
    whole.start + part.start..whole.start + part.end
}
