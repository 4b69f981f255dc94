//! What a run has found so far, in a file: one that was cut short goes on where it ended, as long as the
//! programs are the same.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::rewrite::Mutant;
use crate::suite::{self, Suite, Test, Verdict};

pub(crate) struct State {
    path: PathBuf,
    content: Value,
}

impl State {
    /// What is known of these mutants and suites. A suite whose program has changed is not known, nor is what it caught.
    pub(crate) fn open(work: &Path, mutants: &[Mutant], suites: &[Suite]) -> Result<State, Box<dyn Error>> {
        let path = work.join("state.json");
        let old: Option<Value> = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // Verdicts go by the numbers of the mutants.
        let mut hasher = DefaultHasher::new();
        mutants.iter().for_each(|mutant| mutant.key().hash(&mut hasher));
        let all = json!(hasher.finish());
        let old = old.filter(|old| old["mutants"] == all);
        let fresh = || json!({"mutants": all, "stamps": {}, "tests": {}, "verdicts": {}});
        let mut content = old.unwrap_or_else(fresh);
        for suite in suites {
            let mut hasher = DefaultHasher::new();
            suite.program.hash(&mut hasher);
            fs::metadata(&suite.program)?.modified()?.hash(&mut hasher);
            let stamp = json!(hasher.finish());
            if content["stamps"][&suite.name] != stamp {
                content["stamps"][&suite.name] = stamp;
                content["tests"][&suite.name] = Value::Null;
                if let Some(verdicts) = content["verdicts"].as_object_mut() {
                    verdicts.retain(|_, verdict| {
                        verdict["suite"].is_string() && verdict["suite"] != suite.name.as_str()
                    });
                }
            }
        }
        Ok(State { path, content })
    }

    fn save(&self) -> std::io::Result<()> {
        fs::write(&self.path, serde_json::to_vec(&self.content)?)
    }

    /// The suites' tests; measured once.
    pub(crate) fn tests(
        &mut self,
        suites: &[Suite],
        mutants: usize,
        work: &Path,
    ) -> Result<Vec<Test>, Box<dyn Error>> {
        let mut tests = Vec::new();
        for (number, suite) in suites.iter().enumerate() {
            if self.content["tests"][&suite.name].is_null() {
                let found = suite::measure(suite, mutants, work, &mut |line| eprintln!("{line}"))?;
                self.content["tests"][&suite.name] = found.iter().map(to_json).collect();
                self.save()?;
            }
            for test in self.content["tests"][&suite.name].as_array().into_iter().flatten() {
                tests.push(from_json(number, mutants, test).ok_or("state.json is damaged")?);
            }
        }
        Ok(tests)
    }

    /// The verdict on a mutant, if it is known.
    pub(crate) fn verdict(&self, mutant: usize) -> Option<Verdict> {
        let known = &self.content["verdicts"][&mutant.to_string()];
        match known["suite"].as_str() {
            Some(suite) => {
                let timed_out = known["timed_out"] == true;
                Some(Verdict::Caught { suite: suite.to_string(), timed_out })
            }
            None => known["reached"].as_bool().map(|reached| Verdict::Survived { reached }),
        }
    }

    pub(crate) fn set_verdict(&mut self, mutant: usize, verdict: &Verdict) -> std::io::Result<()> {
        self.content["verdicts"][mutant.to_string()] = match verdict {
            Verdict::Caught { suite, timed_out } => json!({"suite": suite, "timed_out": timed_out}),
            Verdict::Survived { reached } => json!({"reached": reached}),
        };
        self.save()
    }
}

fn to_json(test: &Test) -> Value {
    let reached: Vec<usize> = (0..test.reached.len()).filter(|&mutant| test.reached[mutant]).collect();
    json!({"names": test.names, "seconds": test.time.as_secs_f64(), "reached": reached})
}

fn from_json(suite: usize, mutants: usize, value: &Value) -> Option<Test> {
    let mut reached = vec![false; mutants];
    for mutant in value["reached"].as_array()? {
        *reached.get_mut(mutant.as_u64()? as usize)? = true;
    }
    let time = Duration::from_secs_f64(value["seconds"].as_f64()?);
    let names: Option<Vec<String>> =
        value["names"].as_array()?.iter().map(|name| name.as_str().map(str::to_string)).collect();
    Some(Test { suite, names: names?, time, reached })
}
