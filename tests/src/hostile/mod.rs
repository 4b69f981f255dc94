//! Hostile models: small files that ask for much time, memory or stack. Each must be compiled, or refused with an error,
//! within [`Limits`]. They are made here, by name, and never kept as files.
//!
//! A model is made in one process and compiled in another, whose time and memory are measured from outside.

mod control;
mod giants;
mod notes;
mod run;
mod sizes;
mod sketch;
mod structure;
mod tensors;
mod texts;
mod views;
mod wire;

use std::time::Duration;

pub use run::{Finding, Verdict, run};

/// What handling a model may take. Times are for release builds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time of the processors.
    pub time: Duration,
    /// Where the time is for the machine that [`slowness`](crate::measure::slowness) compares with: how many times as long this
    /// one took before the first model.
    pub slowness: Option<f64>,
    /// Bytes of memory beyond [`Limits::per_byte`] of the file.
    pub memory: u64,
    /// Bytes of memory for each byte of the file.
    pub per_byte: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { time: Duration::from_secs(10), slowness: None, memory: 256 << 20, per_byte: 4 }
    }
}

/// A hostile model: what it attacks, which of its kind it is, and how its file is made.
pub struct Case {
    pub name: String,
    /// What a short run does with it: nothing, if others stand for its family.
    pub short: &'static [&'static str],
    make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl Case {
    pub fn bytes(&self) -> Vec<u8> {
        (self.make)()
    }
}

/// What a run does with a case: reads the model, and makes an object of it.
pub const COMMANDS: &[&str] = &["check", "compile"];

/// Cases of one family: `name` made for each of `parameters`, which rise. Short runs compile the smallest model, which is refused
/// the latest and does all that a check does, and check the next one.
fn family<M: prost::Message + 'static>(
    cases: &mut Vec<Case>,
    name: &str,
    parameters: &[usize],
    make: fn(usize) -> M,
) {
    for (at, &n) in parameters.iter().enumerate() {
        let short = match at {
            0 => &COMMANDS[1..],
            1 => &COMMANDS[..1],
            _ => &[],
        };
        cases.push(Case {
            name: format!("{name}_{n}"),
            short,
            make: Box::new(move || make(n).encode_to_vec()),
        });
    }
}

/// Every case, in a fixed order; names are unique.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    sizes::add(&mut cases);
    views::add(&mut cases);
    structure::add(&mut cases);
    tensors::add(&mut cases);
    wire::add(&mut cases);
    control::add(&mut cases);
    giants::add(&mut cases);
    notes::add(&mut cases);
    texts::add(&mut cases);
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn there_are_enough_cases_and_their_names_are_unique() {
        let cases = super::cases();
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.len() >= 422, "{}", cases.len());
    }
}
