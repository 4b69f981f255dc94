//! Runs the compiler on hostile models, each in a process of its own under limits.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Case, Limits};
use crate::measure::{Ending, Usage, measure, slowness};

/// How many times the time that a model may take it gets before it is ended.
const PATIENCE: f64 = 4.0;

/// How a model was handled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Compiled,
    /// Refused, with the first line of the error.
    Refused(String),
    /// What no model may bring about.
    Fault(String),
}

/// A model, what was done with it, and what that took.
pub struct Finding {
    pub name: String,
    pub command: &'static str,
    pub file_bytes: u64,
    pub usage: Usage,
    pub verdict: Verdict,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, mib) = (self.usage.busy.as_secs_f64(), self.usage.peak >> 20);
        write!(f, "{:40} {:8} {seconds:7.2} s {mib:5} MiB  ", self.name, self.command)?;
        match &self.verdict {
            Verdict::Compiled => f.write_str("compiled"),
            Verdict::Refused(error) => write!(f, "refused: {}", shortened(error)),
            Verdict::Fault(fault) => write!(f, "FAULT: {}", shortened(fault)),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}

/// Handles one case by each of these commands of `onnxc`. `write` makes the file of a case in a process of its own, so that this one stays
/// small: the system counts its memory for its children until they run a program.
pub fn run(
    case: &Case,
    commands: &[&'static str],
    onnxc: &Path,
    limits: Limits,
    folder: &Path,
    write: &dyn Fn(&Case, &Path) -> io::Result<()>,
) -> io::Result<Vec<Finding>> {
    let file = folder.join("hostile.onnx");
    write(case, &file)?;
    let file_bytes = file.metadata()?.len();
    let memory = limits.memory + limits.per_byte * file_bytes;
    let object: PathBuf = folder.join("hostile.o");
    let mut findings = Vec::new();
    for &command in commands {
        let mut process = Command::new(onnxc);
        process.arg(command).arg(&file);
        if command == "compile" {
            process.arg("-o").arg(&object);
        }
        let usage = measure(process, limits.time.mul_f64(PATIENCE * limits.slowness.unwrap_or(1.0)), memory)?;
        let time = match limits.slowness {
            Some(before) if usage.busy > limits.time => limits.time.mul_f64(before.max(slowness())),
            _ => limits.time,
        };
        let verdict = judge(&usage, time, memory);
        findings.push(Finding { name: case.name.clone(), command, file_bytes, usage, verdict });
    }
    Ok(findings)
}

fn judge(usage: &Usage, time: Duration, memory: u64) -> Verdict {
    let words = || usage.words.lines().find(|line| !line.trim().is_empty()).unwrap_or("").to_string();
    let slow = || Verdict::Fault(format!("takes more than {} s", time.as_secs_f64()));
    match usage.ending {
        Ending::Signal(signal) => Verdict::Fault(format!("died of signal {signal}: {}", words())),
        Ending::Killed => slow(),
        _ if usage.busy > time => slow(),
        _ if usage.peak > memory => {
            Verdict::Fault(format!("takes {} MiB of {} allowed", usage.peak >> 20, memory >> 20))
        }
        _ if usage.words.contains("internal error") => Verdict::Fault(words()),
        Ending::Exit(0) => Verdict::Compiled,
        Ending::Exit(1) if !words().is_empty() => Verdict::Refused(words()),
        Ending::Exit(code) => Verdict::Fault(format!("ended with code {code}: {}", words())),
    }
}
