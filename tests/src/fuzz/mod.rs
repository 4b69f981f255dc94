//! Mutated models through the whole compiler: for any content of a file there is an object or an error, soon, and within
//! bounded memory.
//!
//! A case is a number; the same number gives the same model. Workers are processes, so that a crash, a hang or an
//! allocation without end is a result like others: the supervisor notes it and starts another worker behind it.

mod mutate;
mod supervise;

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use bytes::Bytes;
use fastrand::Rng;
use onnxc::files::external::ExternalFiles;
use onnxc::{Options, Quiet};
use onnxc_import::ImportOptions;
use onnxc_ir::error::{Error, Kind};
use onnxc_machine::target::Target;
use serde::{Deserialize, Serialize};

use crate::compile::catch_panic;
use crate::suite;

pub use supervise::{Fault, Plan, Position, Summary, Tally, supervise};

/// What became of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    Compiled,
    /// Errors; this stage found the first one.
    Refused(String),
    /// An error that says the compiler is wrong, not the model.
    Internal(String),
    Panic(String),
}

/// How far a model is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Decoded, imported, rewritten and scheduled: all that looks at the model as a whole.
    Schedule,
    /// To the bytes of the object.
    Object,
}

/// The models that cases are made of, and what it takes to make and compile them.
pub struct Fuzzer {
    corpus: Vec<Bytes>,
    operators: Vec<(&'static str, &'static str)>,
    target: Target,
    external: ExternalFiles,
}

impl Fuzzer {
    /// The models of the official suite and of the examples. External data is looked for in `folder`.
    pub fn new(folder: &Path) -> io::Result<Fuzzer> {
        let mut files: Vec<_> = suite::cases()?.iter().map(|case| case.model()).collect();
        files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx"));
        let mut seen = BTreeSet::new();
        let mut corpus = Vec::new();
        for file in files {
            let bytes = fs::read(file)?;
            // Some tests of the suite differ only in their data sets, and their models are the same. Large models are as
            // complicated as small ones, and take longer.
            if bytes.len() <= 64 << 10 && seen.insert(bytes.clone()) {
                corpus.push(Bytes::from(bytes));
            }
        }
        let operators: BTreeSet<_> = onnxc::operators().rows().map(|row| (row.domain, row.name)).collect();
        Ok(Fuzzer {
            corpus,
            operators: operators.into_iter().collect(),
            target: Target::host().map_err(io::Error::other)?,
            external: ExternalFiles::new(folder, None).map_err(io::Error::other)?,
        })
    }

    /// How many models cases are made of.
    pub fn corpus(&self) -> usize {
        self.corpus.len()
    }

    /// The model of a case.
    pub fn model(&self, case: u64) -> Bytes {
        let mut rng = Rng::with_seed(case);
        let at = rng.usize(..self.corpus.len());
        mutate::mutate(&self.corpus, at, &self.operators, &mut rng).into()
    }

    /// Compiles a case, by default as `onnxc check` and `onnxc MODEL` do, the object's bytes included.
    pub fn run(&self, case: u64, depth: Depth) -> Outcome {
        let model = self.model(case);
        match catch_panic(|| self.compile(case, model, depth)) {
            Ok(Ok(())) => Outcome::Compiled,
            Ok(Err(errors)) => outcome(&errors),
            Err(panic) => Outcome::Panic(panic),
        }
    }

    fn compile(&self, case: u64, model: Bytes, depth: Depth) -> Result<(), Vec<Error>> {
        let one = |error| vec![error];
        let options = Options {
            opt_level: if case.is_multiple_of(4) { 0 } else { 3 },
            import: ImportOptions {
                overridable_defaults: case.is_multiple_of(8),
                ..ImportOptions::default()
            },
            ..Options::new("model", self.target.clone())
        };
        if depth == Depth::Schedule {
            return onnxc::frontend(model, &self.external, &options, &mut Quiet).map(drop);
        }
        let compiled = onnxc::compile(model, &self.external, &options, &mut Quiet)?;
        compiled.artifact().and_then(|artifact| artifact.write_object(&mut io::sink())).map_err(one)
    }
}

fn outcome(errors: &[Error]) -> Outcome {
    if let Some(error) = errors.iter().find(|error| error.kind == Kind::Internal) {
        return Outcome::Internal(error.to_string());
    }
    // Both forms of an error must come out.
    let texts: Vec<_> =
        errors.iter().map(|error| (error.to_string(), serde_json::to_value(error).ok())).collect();
    match texts.first() {
        Some((_, Some(first))) => Outcome::Refused(first["stage"].as_str().unwrap_or("no").to_string()),
        _ => Outcome::Internal("refused without an error that serializes".to_string()),
    }
}
