//! Strings of compiled models.
//!
//! Inside a model a string is a number, an i64. Equal strings have equal numbers, so comparing, gathering and moving
//! strings is what integer kernels do; only what looks at letters comes here. A table, one per run, maps numbers to texts: the first
//! numbers are the model's constant strings, further ones are given as texts come that have
//! none. What the functions make is copied into chunks of the table; texts of inputs, and parts of other texts, are
//! referred to where they are.
//!
//! The table's state lies in the run's workspace. Opening it allocates nothing, all memory comes from the caller's
//! allocator, and closing gives all of it back. Nothing here panics or unwinds, for any content of the constants and programs that a
//! compiler made.

mod arguments;
mod calls;
mod case;
mod chunks;
mod constants;
mod decimal;
mod dfa;
mod ignorable;
mod index;
mod kept;
mod memory;
mod nfa;
mod number;
mod order;
mod owned;
mod probe;
#[cfg(feature = "compile")]
pub mod regex;
mod replace;
mod small;
mod split;
mod table;
pub mod tokenizers;
mod tokens;

pub use calls::*;
pub use case::Case;
pub use constants::constants;
pub use number::Number;
pub use owned::Table;
pub use replace::Replacement;
pub use table::{STATE_BYTES, State};
pub use tokens::Tokens;
