//! Automata as small tables: states that cannot be distinguished are one, and so are bytes.

use std::collections::HashMap;

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;

use crate::strings::dfa::{HEADER, MAGIC, NONE};

/// Most steps that merging states may take: rounds times the elements of a table. Tables that take more stay as they are.
const STEPS: usize = 1 << 27;

/// An automaton. Its first state is where texts begin.
pub(super) struct Table {
    /// The class of each byte.
    classes: Vec<usize>,
    /// Whether a text that ends in a state matches.
    ends: Vec<bool>,
    /// Per state and class of bytes the next state.
    next: Vec<Vec<usize>>,
}

/// Numbers things by their keys, from 0 on in the order in which they come.
fn number<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> (Vec<usize>, usize) {
    let mut numbers = HashMap::new();
    let numbered = keys
        .map(|key| {
            let fresh = numbers.len();
            *numbers.entry(key).or_insert(fresh)
        })
        .collect();
    (numbered, numbers.len())
}

impl Table {
    /// All states that texts reach. A match shows one step after its last byte.
    pub(super) fn of(automaton: &dense::DFA<Vec<u32>>) -> Result<Table, String> {
        let bytes = automaton.byte_classes();
        let classes: Vec<usize> = (0..=u8::MAX).map(|byte| usize::from(bytes.get(byte))).collect();
        let mut samples = vec![0; classes.iter().max().map_or(0, |most| most + 1)];
        (0..=u8::MAX).for_each(|byte| samples[classes[usize::from(byte)]] = byte);
        let start = automaton
            .start_state(&start::Config::new().anchored(Anchored::Yes))
            .map_err(|error| error.to_string())?;
        let mut numbers: HashMap<StateID, usize> = HashMap::from([(start, 0)]);
        let mut states = vec![start];
        let (mut ends, mut next) = (Vec::new(), Vec::new());
        while let Some(&state) = states.get(next.len()) {
            ends.push(automaton.is_match_state(automaton.next_eoi_state(state)));
            let row = samples.iter().map(|&byte| {
                let target = automaton.next_state(state, byte);
                *numbers.entry(target).or_insert_with(|| {
                    states.push(target);
                    states.len() - 1
                })
            });
            next.push(row.collect());
        }
        Ok(Table { classes, ends, next })
    }

    /// The table with the fewest states and classes: states are distinguished by whether texts may end there, then by the states that
    /// follow, round by round until nothing changes.
    pub(super) fn minimal(self) -> Table {
        let elements = self.next.len() * self.next.first().map_or(0, Vec::len);
        let (mut groups, mut count) = number(self.ends.iter());
        for round in 1.. {
            if round * elements > STEPS {
                return self.with_fewest_classes();
            }
            let row = |state: usize| self.next[state].iter().map(|&next| groups[next]).collect::<Vec<_>>();
            let (finer, finer_count) = number((0..groups.len()).map(|state| (groups[state], row(state))));
            let done = finer_count == count;
            (groups, count) = (finer, finer_count);
            if done {
                break;
            }
        }
        // The first state of each group stands for it; the first of all is in the first group.
        let mut states: Vec<usize> = vec![usize::MAX; count];
        (0..groups.len()).rev().for_each(|state| states[groups[state]] = state);
        let row = |state: usize| self.next[state].iter().map(|&next| groups[next]).collect();
        Table {
            ends: states.iter().map(|&state| self.ends[state]).collect(),
            next: states.iter().map(|&state| row(state)).collect(),
            classes: self.classes,
        }
        .with_fewest_classes()
    }

    fn with_fewest_classes(self) -> Table {
        let old = self.next.first().map_or(0, Vec::len);
        let (classes, count) =
            number((0..old).map(|class| self.next.iter().map(|row| row[class]).collect::<Vec<_>>()));
        let mut samples = vec![0; count];
        (0..old).for_each(|class| samples[classes[class]] = class);
        Table {
            classes: self.classes.iter().map(|&class| classes[class]).collect(),
            ends: self.ends,
            next: self.next.iter().map(|row| samples.iter().map(|&class| row[class]).collect()).collect(),
        }
    }

    /// The format of `dfa.rs`.
    pub(super) fn program(&self) -> Vec<u8> {
        let states = self.next.len();
        let wide = states > 1 << 16;
        let is_dead =
            |&state: &usize| !self.ends[state] && self.next[state].iter().all(|&next| next == state);
        let dead = (0..states).find(is_dead).map_or(NONE, |state| state as u32);
        let class_count = self.next.first().map_or(0, Vec::len);
        let mut program = Vec::with_capacity(HEADER + 256 + states * (1 + 4 * class_count));
        program.extend(MAGIC);
        for word in [states as u32, class_count as u32, if wide { 4 } else { 2 }, dead] {
            program.extend(word.to_le_bytes());
        }
        program.extend(self.classes.iter().map(|&class| class as u8));
        program.extend(self.ends.iter().map(|&end| u8::from(end)));
        for &next in self.next.iter().flatten() {
            if wide {
                program.extend((next as u32).to_le_bytes());
            } else {
                program.extend((next as u16).to_le_bytes());
            }
        }
        program
    }
}
