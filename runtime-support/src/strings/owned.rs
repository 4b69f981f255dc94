//! A table of strings for Rust programs, with memory of its own.

use crate::abi::Options;
use crate::alloc::{onnxc_allocate, onnxc_release};

use super::table::State;

/// Strings and their numbers, in memory of `onnxc_allocate`.
pub struct Table {
    state: Box<State>,
    /// What the state refers to. No box: moving one would end the pointer that the state has.
    _constants: Vec<u8>,
}

// SAFETY: all that the state refers to belongs to this value alone, and the allocator takes memory back on any thread.
unsafe impl Send for Table {}

impl Default for Table {
    fn default() -> Table {
        Table::new(&[])
    }
}

impl Table {
    /// A table in which texts have the numbers of their places here; they are distinct.
    pub fn new(constants: &[&[u8]]) -> Table {
        let constants = super::constants(constants);
        let options =
            Options { allocate: Some(onnxc_allocate), release: Some(onnxc_release), ..Options::default() };
        // SAFETY: that is an allocator; the table keeps the constants, where they are.
        let state = unsafe { State::open(&options, constants.as_ptr()) };
        // The blob was just made as it is to be.
        Table { state: Box::new(state.expect("constants")), _constants: constants }
    }

    /// The number of a text.
    ///
    /// # Panics
    /// Without memory, as collections do.
    pub fn intern(&self, text: &[u8]) -> i64 {
        self.state.intern(text).expect("memory for a string")
    }

    /// The text of a number.
    pub fn text(&self, number: i64) -> Option<&[u8]> {
        self.state.text(number)
    }

    /// The functions on strings.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// For the functions of the C ABI, but not those that open and close it.
    pub fn state_ptr(&self) -> *mut State {
        // All that they change is in cells.
        (&raw const *self.state).cast_mut()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.state.close();
    }
}
