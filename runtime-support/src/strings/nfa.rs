//! Searches for regular expressions that find where groups are: all ways through an automaton at once, in the order in which Perl would
//! try them (Pike's algorithm, as in <https://swtch.com/~rsc/regexp/regexp2.html>). A search takes time by the length of the text times
//! the states of the automaton.
//!
//! All numbers of a program are little-endian words of 4 bytes behind the first 8 bytes:
//!
//! | words | what |
//! |---|---|
//! | 2 | [`MAGIC`] |
//! | 5 | states, transitions, alternates, slots, the state where texts begin |
//! | 3 per state | its [`kind`], and two numbers |
//! | 2 per transition | the first byte, 256 times the last, and the next state; in the order of bytes |
//! | 1 per alternate | the next state; the first is preferred |

use crate::abi::Status;

use super::memory::{Array, List, Memory};

pub(super) const MAGIC: [u8; 8] = *b"onnxcrg1";

/// What a state is. Its numbers:
pub(super) mod kind {
    /// The first of its transitions, and how many there are.
    pub(in super::super) const BYTES: u32 = 0;
    /// The condition, and the next state.
    pub(in super::super) const LOOK: u32 = 1;
    /// The first of its alternates, and how many there are.
    pub(in super::super) const UNION: u32 = 2;
    /// The slot where the place is noted, and the next state.
    pub(in super::super) const CAPTURE: u32 = 3;
    pub(in super::super) const MATCH: u32 = 4;
    pub(in super::super) const FAIL: u32 = 5;
}

/// Conditions.
pub(super) mod look {
    pub(in super::super) const START: u32 = 0;
    pub(in super::super) const END: u32 = 1;
    pub(in super::super) const LINE_START: u32 = 2;
    pub(in super::super) const LINE_END: u32 = 3;
    /// Between a letter of a word and none, of ASCII.
    pub(in super::super) const WORD: u32 = 4;
    pub(in super::super) const NO_WORD: u32 = 5;
}

type Words<'p> = &'p [[u8; 4]];

fn word(words: Words<'_>, at: usize) -> Option<u32> {
    words.get(at).map(|word| u32::from_le_bytes(*word))
}

/// A program whose parts lie within its bytes.
#[derive(Clone, Copy)]
pub(super) struct Program<'p> {
    states: &'p [[u8; 12]],
    transitions: &'p [[u8; 8]],
    alternates: Words<'p>,
    slots: usize,
    start: u32,
}

impl<'p> Program<'p> {
    pub(super) fn of(program: &'p [u8]) -> Option<Program<'p>> {
        let words = program.strip_prefix(&MAGIC)?.as_chunks::<4>().0;
        let count = |at: usize| word(words, at).map(|count| count as usize);
        let (states, transitions, alternates) = (count(0)?, count(1)?, count(2)?);
        let (states, rest) = words.get(5..)?.split_at_checked(states.checked_mul(3)?)?;
        let (transitions, rest) = rest.split_at_checked(transitions.checked_mul(2)?)?;
        let alternates = rest.get(..alternates)?;
        let (states, transitions) =
            (states.as_flattened().as_chunks().0, transitions.as_flattened().as_chunks().0);
        // The whole match has two slots.
        let slots = count(3).filter(|slots| (2..=256).contains(slots))?;
        Some(Program { states, transitions, alternates, slots, start: word(words, 4)? })
    }

    fn state(&self, at: u32) -> Option<[u32; 3]> {
        let words = self.states.get(at as usize)?.as_chunks::<4>().0;
        Some([word(words, 0)?, word(words, 1)?, word(words, 2)?])
    }

    /// Where a state leads by a byte.
    fn step(&self, [_, first, count]: [u32; 3], byte: u8) -> Option<u32> {
        let some = self.transitions.get(first as usize..)?.get(..count as usize)?;
        let place = some.partition_point(|one| one.get(1).is_some_and(|&last| last < byte));
        let words = some.get(place)?.as_chunks::<4>().0;
        let begins = word(words, 0)? & 0xff <= u32::from(byte);
        if begins { word(words, 1) } else { None }
    }

    /// Whether a condition holds at a place of a text.
    fn holds(&self, condition: u32, text: &[u8], at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|before| text.get(before)).copied();
        let behind = text.get(at).copied();
        let is_word =
            |byte: Option<u8>| byte.is_some_and(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
        match condition {
            look::START => before.is_none(),
            look::END => behind.is_none(),
            look::LINE_START => before.is_none_or(|byte| byte == b'\n'),
            look::LINE_END => behind.is_none_or(|byte| byte == b'\n'),
            look::WORD => is_word(before) != is_word(behind),
            look::NO_WORD => is_word(before) == is_word(behind),
            _ => false,
        }
    }
}

/// A place that is none.
const NOWHERE: usize = usize::MAX;

/// States in the order of preference, and what each has noted.
struct Threads<'m> {
    order: List<'m, u32>,
    /// Of each state where it is in `order`, if it is there.
    places: Array<'m, u32>,
    slots: Array<'m, usize>,
}

impl<'m> Threads<'m> {
    fn of(program: &Program<'_>, memory: &'m Memory) -> Result<Threads<'m>, Status> {
        let states = program.states.len();
        let slots = states.checked_mul(program.slots).ok_or(Status::BAD_SIZE)?;
        Ok(Threads {
            order: List::new(memory),
            places: memory.array(states, 0)?,
            slots: memory.array(slots, NOWHERE)?,
        })
    }

    fn has(&self, state: u32) -> bool {
        let place = self.places.get(state as usize);
        place.is_some_and(|&place| self.order.get(place as usize) == Some(&state))
    }

    fn add(&mut self, state: u32) -> Result<(), Status> {
        let place = self.places.get_mut(state as usize).ok_or(Status::BAD_SIZE)?;
        *place = self.order.len() as u32;
        self.order.push(state)
    }

    fn slots_of(&mut self, state: u32, count: usize) -> Option<&mut [usize]> {
        let from = (state as usize).checked_mul(count)?;
        self.slots.get_mut(from..from.checked_add(count)?)
    }
}

/// What is to be done yet while states without bytes are followed.
#[derive(Clone, Copy)]
enum Follow {
    State(u32),
    /// A slot gets back what it had.
    Restore(u32, usize),
}

/// Memory of searches, which is used again and again.
pub(super) struct Search<'p, 'm> {
    program: Program<'p>,
    threads: Threads<'m>,
    next: Threads<'m>,
    follow: List<'m, Follow>,
    /// What a way has noted.
    current: Array<'m, usize>,
    /// What the match has noted: from, to, then of each group, `NOWHERE` where it is none.
    found: Array<'m, usize>,
}

impl<'p, 'm> Search<'p, 'm> {
    pub(super) fn of(program: Program<'p>, memory: &'m Memory) -> Result<Search<'p, 'm>, Status> {
        Ok(Search {
            program,
            threads: Threads::of(&program, memory)?,
            next: Threads::of(&program, memory)?,
            follow: List::new(memory),
            current: memory.array(program.slots, NOWHERE)?,
            found: memory.array(program.slots, NOWHERE)?,
        })
    }

    /// Where group `at` of the match that was found is; 0 is the whole.
    pub(super) fn group(&self, at: usize) -> Option<(usize, usize)> {
        let (from, to) = (*self.found.get(2 * at)?, *self.found.get(2 * at + 1)?);
        (from <= to && to != NOWHERE).then_some((from, to))
    }

    /// Finds the first match that begins at `from` or behind it: of those that begin at one place the preferred one.
    pub(super) fn find(&mut self, text: &[u8], from: usize) -> Result<bool, Status> {
        let program = self.program;
        let mut found = false;
        self.threads.order.clear();
        for at in from..=text.len() {
            if found && self.threads.order.is_empty() {
                break;
            }
            if !found {
                self.current.fill(NOWHERE);
                follow(
                    &program,
                    &mut self.threads,
                    &mut self.follow,
                    &mut self.current,
                    program.start,
                    text,
                    at,
                )?;
            }
            self.next.order.clear();
            for place in 0..self.threads.order.len() {
                let state = self.threads.order.get(place).copied().unwrap_or_default();
                let parts = program.state(state).ok_or(Status::BAD_SIZE)?;
                let slots = self.threads.slots_of(state, program.slots).ok_or(Status::BAD_SIZE)?;
                match parts {
                    [kind::MATCH, ..] => {
                        self.found.copy_from_slice(slots);
                        found = true;
                        // What is behind is not preferred.
                        break;
                    }
                    [kind::BYTES, ..] => {
                        let next = text.get(at).and_then(|&byte| program.step(parts, byte));
                        if let Some(next) = next {
                            self.current.copy_from_slice(slots);
                            follow(
                                &program,
                                &mut self.next,
                                &mut self.follow,
                                &mut self.current,
                                next,
                                text,
                                at + 1,
                            )?;
                        }
                    }
                    _ => {}
                }
            }
            std::mem::swap(&mut self.threads, &mut self.next);
        }
        Ok(found)
    }
}

/// Adds a state, and all that it leads to without a byte.
fn follow(
    program: &Program<'_>,
    threads: &mut Threads<'_>,
    stack: &mut List<'_, Follow>,
    current: &mut [usize],
    state: u32,
    text: &[u8],
    at: usize,
) -> Result<(), Status> {
    stack.clear();
    stack.push(Follow::State(state))?;
    while let Some(&top) = stack.last() {
        stack.truncate(stack.len() - 1);
        let state = match top {
            Follow::State(state) => state,
            Follow::Restore(slot, before) => {
                if let Some(slot) = current.get_mut(slot as usize) {
                    *slot = before;
                }
                continue;
            }
        };
        if threads.has(state) {
            continue;
        }
        threads.add(state)?;
        match program.state(state).ok_or(Status::BAD_SIZE)? {
            [kind::LOOK, condition, next] => {
                if program.holds(condition, text, at) {
                    stack.push(Follow::State(next))?;
                }
            }
            [kind::UNION, first, count] => {
                let some =
                    program.alternates.get(first as usize..).and_then(|some| some.get(..count as usize));
                for next in some.ok_or(Status::BAD_SIZE)?.iter().rev() {
                    stack.push(Follow::State(u32::from_le_bytes(*next)))?;
                }
            }
            [kind::CAPTURE, slot, next] => {
                let place = current.get_mut(slot as usize).ok_or(Status::BAD_SIZE)?;
                let before = std::mem::replace(place, at);
                stack.push(Follow::Restore(slot, before))?;
                stack.push(Follow::State(next))?;
            }
            _ => {
                let slots = threads.slots_of(state, program.slots).ok_or(Status::BAD_SIZE)?;
                slots.copy_from_slice(current);
            }
        }
    }
    Ok(())
}
