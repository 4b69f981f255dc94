//! Which mutant is active: this file becomes a module of the mutated crate.
//!
//! `ONNXC_MUTANT` names the active mutant. `ONNXC_MUTANTS_REACHED` names a file with a byte for each mutant, where the
//! bytes of those that are reached become 1: written at once, so that a crash loses none, and by child processes too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

struct State {
    active: Option<usize>,
    reached: Option<File>,
}

static STATE: OnceLock<State> = OnceLock::new();

/// Mutants that this process has reached, where that is asked for.
static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// Whether to run the mutant instead of the original.
pub fn on(mutant: usize) -> bool {
    let state = STATE.get_or_init(|| State {
        active: std::env::var("ONNXC_MUTANT").ok().and_then(|number| number.parse().ok()),
        reached: std::env::var_os("ONNXC_MUTANTS_REACHED")
            .map(|path| OpenOptions::new().write(true).open(path).expect("the file for reached mutants")),
    });
    if let Some(file) = &state.reached
        && !SEEN[mutant].swap(true, Ordering::Relaxed)
    {
        file.write_all_at(&[1], mutant as u64).expect("the file for reached mutants");
    }
    state.active == Some(mutant)
}
