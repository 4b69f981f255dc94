//! The line on a terminal that shows how far compiling is.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Counter;

/// How long compiling may take before it shows.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two drawings.
const TICK: Duration = Duration::from_millis(100);
/// Moves to the start of the line, and erases it.
const ERASE: &str = "\r\x1b[2K";

/// A line that a thread draws while this lives.
pub(super) struct Line {
    shared: Arc<Mutex<State>>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    last: String,
    is_drawn: bool,
}

impl Line {
    /// `None` where standard error is not a terminal, or a thread cannot be had.
    pub(super) fn new(counter: Arc<Counter>) -> Option<Line> {
        if !std::io::stderr().is_terminal() || super::is_quiet() {
            return None;
        }
        let shared = Arc::<Mutex<State>>::default();
        let (end, ended) = channel::<()>();
        let state = shared.clone();
        let draw = move || {
            let mut wait = PATIENCE;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = TICK;
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let line = text(counter.get(), &state.last);
                // What cannot be shown harms nobody.
                let _ = write!(std::io::stderr(), "{ERASE}{line}");
                state.is_drawn = true;
            }
        };
        let thread = std::thread::Builder::new().spawn(draw).ok()?;
        Some(Line { shared, end: Some(end), thread: Some(thread) })
    }

    /// What was done last.
    pub(super) fn set(&self, last: String) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).last = last;
    }

    /// Prints a line of its own in place of this one, which is drawn again below.
    pub(super) fn print(&self, text: &str) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let erase = if std::mem::take(&mut state.is_drawn) { ERASE } else { "" };
        let _ = writeln!(std::io::stderr(), "{erase}{text}");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end = None;
        let _ = self.thread.take().map(JoinHandle::join);
        if self.shared.lock().unwrap_or_else(PoisonError::into_inner).is_drawn {
            let _ = write!(std::io::stderr(), "{ERASE}");
        }
    }
}

/// The line once `done` of `total` kernels are compiled; `last` is the stage or the pass that ended last.
fn text((done, total): (usize, usize), last: &str) -> String {
    match total {
        0 => format!("compiling ({last})"),
        _ if done < total => format!("compiling {:>3}% ({done} of {total} kernels)", done * 100 / total),
        _ => "compiling 100% (writing the object)".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_kernels() {
        let counter = Counter::default();
        assert_eq!(text(counter.get(), "pass dce done"), "compiling (pass dce done)");
        counter.expect(8);
        counter.count();
        assert_eq!(text(counter.get(), ""), "compiling  12% (1 of 8 kernels)");
        (0..7).for_each(|_| counter.count());
        assert_eq!(text(counter.get(), ""), "compiling 100% (writing the object)");
    }
}
