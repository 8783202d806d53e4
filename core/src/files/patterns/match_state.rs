//! The progress of patterns at a directory. There are few states, and each is stored once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::prefix_tree::{PrefixId, PrefixTree};

/// A state, valid until patterns are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    index: u32,
    pub epoch: u32,
}

/// Patterns that are at a `**`: they stay there for any name, and begin again at each.
#[derive(Debug)]
pub struct Loops {
    pub active: Vec<PrefixId>,
    /// Patterns that end with `**`: everything below matches.
    pub ending: Vec<PrefixId>,
    /// Patterns without a beginning apply here.
    pub floating: bool,
    starred: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PatternState {
    pub loops: u32,
    /// Patterns that are at a name.
    pub steps: Vec<PrefixId>,
}

#[derive(Debug, Default)]
pub struct PatternStates {
    loops: Vec<Loops>,
    known_loops: StateTable<(bool, Vec<PrefixId>)>,
    states: Vec<PatternState>,
    /// Does every name advance a pattern?
    starred: Vec<bool>,
    known: StateTable<PatternState>,
    epoch: u32,
}

type StateTable<K> = HashMap<K, u32, BuildHasherDefault<Fnv>>;

/// FNV-1a, over numbers that only the plan chooses.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl PatternStates {
    pub fn clear(&mut self) {
        let epoch = self.epoch + 1;
        *self = PatternStates { epoch, ..PatternStates::default() };
    }

    pub fn get(&self, id: StateId) -> (&PatternState, &Loops) {
        let state = &self.states[id.index as usize];
        (state, &self.loops[state.loops as usize])
    }

    pub fn is_starred(&self, id: StateId) -> bool {
        self.starred[id.index as usize]
    }

    pub fn is_current(&self, id: StateId) -> bool {
        id.epoch == self.epoch
    }

    pub fn loops(&mut self, floating: bool, mut active: Vec<PrefixId>, stems: &PrefixTree) -> u32 {
        active.sort_unstable();
        active.dedup();
        let key = (floating, active);
        if let Some(known) = self.known_loops.get(&key) {
            return *known;
        }
        let index = self.loops.len() as u32;
        let active = key.1.clone();
        let ending = active.iter().copied().filter(|stem| !stems.kinds(*stem).is_empty()).collect();
        let starred = active.iter().any(|stem| stems.is_starred(*stem));
        self.loops.push(Loops { active, ending, floating, starred });
        self.known_loops.insert(key, index);
        index
    }

    pub fn state(&mut self, state: &mut PatternState, stems: &PrefixTree) -> StateId {
        state.steps.sort_unstable();
        state.steps.dedup();
        let index = match self.known.get(state) {
            Some(index) => *index,
            None => {
                let index = self.states.len() as u32;
                let starred = state.steps.iter().any(|stem| stems.is_starred(*stem));
                self.starred.push(starred || self.loops[state.loops as usize].starred);
                self.states.push(state.clone());
                self.known.insert(state.clone(), index);
                index
            }
        };
        StateId { index, epoch: self.epoch }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.states.len()
    }
}
