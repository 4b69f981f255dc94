//! The tests that are run against mutants. Each is run alone once, without a mutant, to learn which mutants it reaches and how
//! long it takes; a mutant then meets only tests that reach it, the quickest first.

use std::error::Error;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests of one program.
pub(crate) struct Suite {
    /// Its name in reports.
    pub name: String,
    pub program: PathBuf,
    pub form: Form,
    /// Where it runs, and with which variables.
    pub folder: PathBuf,
    pub variables: Vec<(String, String)>,
    /// Time of the processors that a process of a run has at least, however short it is without a mutant.
    pub patience: Duration,
}

/// How a program takes its tests.
pub(crate) enum Form {
    /// As Rust's test programs: `--list`, and `--exact` with names. Tests whose name begins with the prefix, in groups of `together`.
    Listed { prefix: String, together: usize },
    /// One test: the program with these arguments.
    Whole(Vec<String>),
}

/// A test that passes without mutants, or some that are run together.
pub(crate) struct Test {
    /// Index of its suite.
    pub suite: usize,
    pub names: Vec<String>,
    pub time: Duration,
    /// Whether it reaches each mutant.
    pub reached: Vec<bool>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum End {
    Passed,
    Failed,
    TimedOut,
}

/// Most memory of a test's process. A mutant may ask for any amount.
const MEMORY_KIB: u64 = 8 << 20;

/// The signal by which the system ends a process whose time is up.
const SIGXCPU: i32 = 24;

/// Time by the clock after which a process that does not end is taken to wait for what never comes.
const HANG: Duration = Duration::from_secs(1800);

impl Suite {
    /// Names of its tests, as they are run together.
    pub(crate) fn list(&self) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
        let Form::Listed { prefix, together } = &self.form else { return Ok(vec![vec![self.name.clone()]]) };
        let list = ["--list".into(), "--format".into(), "terse".into()];
        let output = self.command(&list, HANG).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_string);
        let names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
        Ok(names.chunks(*together).map(<[String]>::to_vec).collect())
    }

    /// A process that the system ends by a signal once it has had this time of the processors.
    fn command(&self, arguments: &[String], limit: Duration) -> Command {
        // The shell sets the limits, and becomes the program.
        let limits = format!("ulimit -c 0; ulimit -v {MEMORY_KIB}; ulimit -S -t {}", limit.as_secs() + 1);
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limits}; exec \"$@\""), "sh"])
            .arg(&self.program)
            .args(arguments)
            .current_dir(&self.folder)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null());
        command
    }

    /// Runs these tests, with a mutant or with a file for those reached. `limit` is the time of the processors that a process
    /// has; what rests is ended by the clock, much later.
    pub(crate) fn run(
        &self,
        tests: &[&str],
        variable: (&str, &str),
        limit: Duration,
    ) -> std::io::Result<End> {
        let arguments: Vec<String> = match &self.form {
            Form::Whole(arguments) => arguments.clone(),
            Form::Listed { .. } => {
                let options = ["--exact", "--test-threads=1"];
                options.iter().chain(tests).map(|text| text.to_string()).collect()
            }
        };
        let mut command = self.command(&arguments, limit);
        command.env(variable.0, variable.1).stdout(Stdio::null()).stderr(Stdio::null());
        // Of a process group of its own, so that its children end with it.
        let mut child = command.process_group(0).spawn()?;
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(match (status.success(), status.signal()) {
                    (true, _) => End::Passed,
                    (_, Some(SIGXCPU)) => End::TimedOut,
                    _ => End::Failed,
                });
            }
            if start.elapsed() > HANG.max(limit) {
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
                child.wait()?;
                return Ok(End::TimedOut);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// The tests of a suite that pass without a mutant; `told` hears of the others. Of tests that are run together and do not all
/// pass, each is a test of its own. The suite's number is not set.
pub(crate) fn measure(
    suite: &Suite,
    mutants: usize,
    work: &Path,
    told: &mut dyn FnMut(&str),
) -> Result<Vec<Test>, Box<dyn Error>> {
    let file = work.join("reached");
    let variable = ("ONNXC_MUTANTS_REACHED", file.to_str().ok_or("the path is not UTF-8")?);
    let mut tests = Vec::new();
    let begun = Instant::now();
    let mut open = suite.list()?;
    open.reverse();
    while let Some(names) = open.pop() {
        fs::write(&file, vec![0; mutants])?;
        let start = Instant::now();
        let end = suite.run(&as_strs(&names), variable, Duration::from_secs(600))?;
        if end != End::Passed && names.len() > 1 {
            open.extend(names.into_iter().rev().map(|name| vec![name]));
            continue;
        }
        if end != End::Passed {
            told(&format!("{} {} is left out: {end:?} without a mutant", suite.name, names.join(" ")));
            continue;
        }
        let time = start.elapsed();
        let reached = fs::read(&file)?.iter().map(|&byte| byte != 0).collect();
        tests.push(Test { suite: 0, names, time, reached });
    }
    told(&format!("{}: {} tests in {:.0?}", suite.name, tests.len(), begun.elapsed()));
    Ok(tests)
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// What the tests made of a mutant.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// By tests of this suite, or by their time limit.
    Caught { suite: String, timed_out: bool },
    /// No test notices; whether any reaches it.
    Survived { reached: bool },
}

/// Runs tests that reach the mutant, suite by suite, until one fails. Each suite has a `budget` of time, as measured without a
/// mutant; where that does not suffice, tests are drawn by
/// `seed`.
pub(crate) fn try_mutant(
    suites: &[Suite],
    tests: &[Test],
    mutant: usize,
    budget: Duration,
    seed: u64,
) -> std::io::Result<Verdict> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut reached = false;
    for (number, suite) in suites.iter().enumerate() {
        let mut chosen: Vec<&Test> =
            tests.iter().filter(|test| test.suite == number && test.reached[mutant]).collect();
        reached |= !chosen.is_empty();
        rng.shuffle(&mut chosen);
        let mut spent = Duration::ZERO;
        chosen.retain(|test| {
            let fits = spent.is_zero() || spent + test.time <= budget;
            spent += if fits { test.time } else { Duration::ZERO };
            fits
        });
        chosen.sort_by_key(|test| test.time);
        let mut share = Duration::from_millis(500);
        while !chosen.is_empty() {
            let mut time = Duration::ZERO;
            let mut count = 0;
            while count < chosen.len() && (count == 0 || time + chosen[count].time <= share) {
                time += chosen[count].time;
                count += 1;
            }
            let names: Vec<&str> = chosen.drain(..count).flat_map(|test| as_strs(&test.names)).collect();
            let limit = suite.patience + 8 * time;
            let end = suite.run(&names, ("ONNXC_MUTANT", &mutant.to_string()), limit)?;
            if end != End::Passed {
                return Ok(Verdict::Caught { suite: suite.name.clone(), timed_out: end == End::TimedOut });
            }
            share *= 4;
        }
    }
    Ok(Verdict::Survived { reached })
}
