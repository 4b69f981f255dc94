//! What a long run says while it goes on: every graph that fails as it is found, and now and then how far it is.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
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

/// What is said about graphs, kept in a file, one JSON object a line, so that a run that was cut off goes on where it was.
pub struct Journal {
    file: File,
}

impl Journal {
    /// Opens or makes a journal; gives the lines it has. A last line that was cut off is dropped.
    pub fn open(path: &Path) -> io::Result<(Journal, Vec<Line>)> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..whole]
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)?;
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole as u64)?;
        Ok((Journal { file }, lines))
    }

    fn add(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())
    }
}

struct State {
    journal: Option<Journal>,
    graphs: u64,
    failures: u64,
    told: Instant,
}

impl Progress {
    /// `stop`: the first graph that fails is the last; `most`: time after which no other graph begins.
    pub fn new(stop: bool, most: Option<Duration>, journal: Option<Journal>) -> Progress {
        let start = Instant::now();
        let state = State { journal, graphs: 0, failures: 0, told: start };
        Progress { stop, most, start, state: Mutex::new(state) }
    }

    /// Hears of a graph that is done.
    pub fn add(&self, line: &Line) -> ControlFlow<()> {
        let mut state = self.state.lock().unwrap();
        state.graphs += 1;
        let kept = state.journal.as_mut().map_or(Ok(()), |journal| journal.add(line));
        kept.expect("the journal can be written");
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
