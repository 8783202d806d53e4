//! How far patterns have come at a directory. There are few states, and each is kept once.

use std::collections::HashMap;

use super::words::{STAR, WordId};

/// The part of a pattern that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Active {
    pub rule: u16,
    pub at: u16,
}

/// A state, good until patterns are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    index: u32,
    pub epoch: u32,
}

/// Patterns that stand at a `**`: they stay there, whatever names come, and begin anew at each.
#[derive(Debug)]
pub struct Loops {
    pub active: Vec<Active>,
    /// What comes after each `**`, by word.
    after: Vec<(WordId, Active)>,
    /// Those that end with it: everything below matches.
    pub ending: Vec<u16>,
    /// Patterns without a beginning are looked for here.
    pub floating: bool,
}

impl Loops {
    /// The patterns that go on with this word.
    pub fn after(&self, word: WordId) -> impl Iterator<Item = Active> {
        let first = self.after.partition_point(|(other, _)| *other < word);
        self.after[first..].iter().take_while(move |(other, _)| *other == word).map(|(_, active)| *active)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub loops: u32,
    /// Patterns that stand at a name.
    pub steps: Vec<Active>,
}

#[derive(Debug, Default)]
pub struct States {
    loops: Vec<Loops>,
    known_loops: HashMap<(bool, Vec<Active>), u32>,
    states: Vec<State>,
    /// Any name whatever moves a pattern on.
    starred: Vec<bool>,
    known: HashMap<State, u32>,
    epoch: u32,
}

impl States {
    pub fn clear(&mut self) {
        let epoch = self.epoch + 1;
        *self = States { epoch, ..States::default() };
    }

    pub fn get(&self, id: StateId) -> (&State, &Loops) {
        let state = &self.states[id.index as usize];
        (state, &self.loops[state.loops as usize])
    }

    pub fn is_starred(&self, id: StateId) -> bool {
        self.starred[id.index as usize]
    }

    pub fn is_current(&self, id: StateId) -> bool {
        id.epoch == self.epoch
    }

    /// `next` says which word comes at a place of a pattern; None is the end of it.
    pub fn loops(&mut self, floating: bool, mut active: Vec<Active>, next: impl Fn(Active) -> Option<WordId>) -> u32 {
        active.sort_unstable();
        active.dedup();
        let key = (floating, active);
        if let Some(known) = self.known_loops.get(&key) {
            return *known;
        }
        let index = self.loops.len() as u32;
        let mut loops = Loops { active: key.1.clone(), after: Vec::new(), ending: Vec::new(), floating };
        for active in &key.1 {
            let beyond = Active { at: active.at + 1, ..*active };
            match next(beyond) {
                Some(word) => loops.after.push((word, beyond)),
                None => loops.ending.push(active.rule),
            }
        }
        loops.after.sort_unstable();
        self.loops.push(loops);
        self.known_loops.insert(key, index);
        index
    }

    pub fn state(&mut self, state: &mut State, next: impl Fn(Active) -> Option<WordId>) -> StateId {
        state.steps.sort_unstable();
        state.steps.dedup();
        let index = match self.known.get(state) {
            Some(index) => *index,
            None => {
                let index = self.states.len() as u32;
                let starred = state.steps.iter().any(|step| next(*step) == Some(STAR));
                self.starred.push(starred || self.loops[state.loops as usize].after(STAR).next().is_some());
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
