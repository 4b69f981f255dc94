//! What a long run says while it goes on: every graph that fails as it is found, and now and then how far it is.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::driver::Line;

const INTERVAL: Duration = Duration::from_secs(30);

/// Prints failing graphs on standard output, and lines of progress on standard error.
pub struct Progress {
    stop: bool,
    most: Option<Duration>,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    graphs: u64,
    failures: u64,
    told: Instant,
}

impl Progress {
    /// `stop`: the first graph that fails is the last; `most`: time after which no other graph begins.
    pub fn new(stop: bool, most: Option<Duration>) -> Progress {
        let start = Instant::now();
        Progress { stop, most, start, state: Mutex::new(State { graphs: 0, failures: 0, told: start }) }
    }

    /// Hears of a graph that is done.
    pub fn add(&self, line: &Line) -> ControlFlow<()> {
        let mut state = self.state.lock().unwrap();
        state.graphs += 1;
        let failure = line.failure();
        if let Some(text) = &failure {
            state.failures += 1;
            println!("fails: {text}");
        }
        if state.told.elapsed() >= INTERVAL {
            state.told = Instant::now();
            eprintln!("{}", self.report(&state));
        }
        let over = self.most.is_some_and(|most| self.start.elapsed() > most);
        match over || self.stop && failure.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn report(&self, state: &State) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let State { graphs, failures, .. } = state;
        format!(
            "{graphs} graphs in {seconds:.0} s, {:.1} per second; {failures} fail",
            *graphs as f64 / seconds
        )
    }
}
