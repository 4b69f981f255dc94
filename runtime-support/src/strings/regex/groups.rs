//! Automata that find where groups of a match are.

use regex_automata::nfa::thompson::{self, NFA, State, Transition, WhichCaptures};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::{PatternID, StateID};
use regex_automata::util::syntax;

use super::{AUTOMATON, NESTING, PROGRAM, cause, re2, too_large};
use crate::strings::nfa::{MAGIC, kind, look};

/// An expression that is searched for in texts.
pub struct Search {
    /// What `nfa.rs` runs.
    pub program: Vec<u8>,
    /// Groups of the expression, without the whole.
    pub groups: usize,
    /// Whether it matches the empty text.
    pub matches_nothing: bool,
}

/// The search for an expression, which finds the first `groups` groups, or what is wrong with the expression.
pub fn search(pattern: &str, groups: usize) -> Result<Search, String> {
    let translated = re2::translate(pattern, true)?;
    let config = syntax::Config::new().utf8(false).nest_limit(NESTING);
    let expression = syntax::parse_with(&translated, &config).map_err(|error| cause(&error))?;
    let config = thompson::Config::new()
        .utf8(false)
        .nfa_size_limit(Some(AUTOMATON))
        .which_captures(WhichCaptures::All);
    let automaton =
        thompson::Compiler::new().configure(config).build_from_hir(&expression).map_err(|_| too_large())?;
    let found = automaton.group_info().group_len(PatternID::ZERO).saturating_sub(1);
    let program = program(&automaton, 2 * (1 + groups.min(found)))?;
    let matches_nothing = expression.properties().minimum_len() == Some(0);
    if program.len() > PROGRAM {
        Err(too_large())
    } else {
        Ok(Search { program, groups: found, matches_nothing })
    }
}

/// The format of `nfa.rs`.
fn program(automaton: &NFA, slots: usize) -> Result<Vec<u8>, String> {
    let (mut transitions, mut alternates, mut states) = (vec![], vec![], vec![]);
    for state in automaton.states() {
        let number = |state: StateID| state.as_u32();
        let mut bytes = |some: &mut dyn Iterator<Item = Transition>| {
            let first = transitions.len() as u32;
            transitions
                .extend(some.map(|one| [u32::from(one.start) | u32::from(one.end) << 8, number(one.next)]));
            [kind::BYTES, first, transitions.len() as u32 - first]
        };
        let mut union = |some: &[StateID]| {
            let first = alternates.len() as u32;
            alternates.extend(some.iter().map(|&state| number(state)));
            [kind::UNION, first, some.len() as u32]
        };
        states.push(match state {
            State::ByteRange { trans } => bytes(&mut [*trans].into_iter()),
            State::Sparse(sparse) => bytes(&mut sparse.transitions.iter().copied()),
            State::Dense(dense) => {
                let by =
                    |byte: u8| Some(Transition { start: byte, end: byte, next: dense.matches_byte(byte)? });
                bytes(&mut (0..=u8::MAX).filter_map(by))
            }
            State::Look { look, next } => [kind::LOOK, place(*look)?, number(*next)],
            State::Union { alternates } => union(alternates),
            State::BinaryUnion { alt1, alt2 } => union(&[*alt1, *alt2]),
            State::Capture { next, slot, .. } if slot.as_usize() < slots => {
                [kind::CAPTURE, slot.as_u32(), number(*next)]
            }
            State::Capture { next, .. } => union(&[*next]),
            State::Fail => [kind::FAIL, 0, 0],
            State::Match { .. } => [kind::MATCH, 0, 0],
        });
    }
    let header = [states.len(), transitions.len(), alternates.len(), slots].map(|count| count as u32);
    let words = header.into_iter().chain([automaton.start_anchored().as_u32()]);
    let words =
        words.chain(states.into_iter().flatten()).chain(transitions.into_iter().flatten()).chain(alternates);
    Ok(MAGIC.into_iter().chain(words.flat_map(u32::to_le_bytes)).collect())
}

fn place(look: Look) -> Result<u32, String> {
    Ok(match look {
        Look::Start => look::START,
        Look::End => look::END,
        Look::StartLF => look::LINE_START,
        Look::EndLF => look::LINE_END,
        Look::WordAscii => look::WORD,
        Look::WordAsciiNegate => look::NO_WORD,
        _ => return Err("a look around that RE2 does not have".to_owned()),
    })
}
