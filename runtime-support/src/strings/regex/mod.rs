//! Regular expressions at compile time: from RE2's syntax to the tables that `dfa.rs` walks through, and the automata that `nfa.rs` runs
//! where groups matter.

mod class;
mod groups;
mod re2;
mod table;

use std::error::Error;

use regex_automata::MatchKind;
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;

use table::Table;

/// Most bytes of a program.
const PROGRAM: usize = 1 << 20;

/// Most groups within each other.
const NESTING: u32 = 200;

/// Most bytes on the way there. Tables shrink when states are merged.
const AUTOMATON: usize = 16 << 20;

/// The program of an expression that is to match whole texts, or what is wrong with the expression.
pub fn compile(pattern: &str) -> Result<Vec<u8>, String> {
    let translated = re2::translate(pattern, false)?;
    // A pattern may ask for bytes that are not UTF-8.
    let config = syntax::Config::new().utf8(false).nest_limit(NESTING);
    let expression =
        syntax::parse_with(&format!(r"\A(?:{translated})\z"), &config).map_err(|error| cause(&error))?;
    // What fails from here on is too large: there is nothing in an expression that automata cannot do.
    let config = thompson::Config::new().utf8(false).nfa_size_limit(Some(AUTOMATON));
    let automaton = thompson::Compiler::new().configure(config).build_from_hir(&expression);
    // All matches count, and only one is asked for: that of the whole text.
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(AUTOMATON))
        .determinize_size_limit(Some(AUTOMATON));
    let automaton = automaton.map_err(|_| too_large())?;
    let automaton =
        dense::Builder::new().configure(config).build_from_nfa(&automaton).map_err(|_| too_large())?;
    let program = Table::of(&automaton)?.minimal().program();
    if program.len() > PROGRAM { Err(too_large()) } else { Ok(program) }
}

pub use groups::{Search, search};

fn too_large() -> String {
    format!(
        "it takes a table of more than {} KiB; shorter repetitions or smaller classes take less",
        PROGRAM >> 10
    )
}

/// The innermost of an error's causes, which says what the matter is.
fn cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // Parsers print the expression first, then their message.
    text.lines().last().unwrap_or(&text).trim_start_matches("error: ").to_owned()
}
