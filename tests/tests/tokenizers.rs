//! Tokenizers of `ai.onnx.contrib` against what onnxruntime-extensions gives for the lines of `tokenizers/`, which
//! `tests/python/tokenizers.py` wrote: by the interpreter and by machine code.

use std::path::{Path, PathBuf};
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_machine::target::Target;
use onnxc_tests::compile::compile_for;
use onnxc_tests::interpreted::Interpreted;
use serde::Deserialize;

/// An element: a truth value of an input, a whole or another number, a text, or the bytes of what is not UTF-8.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Flag(bool),
    Number(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Deserialize)]
struct Values {
    shape: Vec<usize>,
    values: Vec<Value>,
}

#[derive(Deserialize)]
struct Run {
    inputs: Vec<Values>,
    outputs: Vec<Values>,
}

impl Values {
    fn numbers(&self) -> Option<Vec<i64>> {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        };
        self.values.iter().map(number).collect()
    }

    fn reals(&self) -> Option<Vec<f64>> {
        let real = |value: &Value| match value {
            Value::Number(number) => Some(*number as f64),
            Value::Real(real) => Some(*real),
            _ => None,
        };
        self.values.iter().map(real).collect()
    }

    fn flags(&self) -> Option<Vec<bool>> {
        let flag = |value: &Value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        };
        self.values.iter().map(flag).collect()
    }

    fn texts(&self) -> Option<Vec<&[u8]>> {
        fn text(value: &Value) -> Option<&[u8]> {
            match value {
                Value::Text(text) => Some(text.as_bytes()),
                Value::Bytes(bytes) => Some(bytes.as_slice()),
                Value::Number(_) | Value::Real(_) | Value::Flag(_) => None,
            }
        }
        self.values.iter().map(text).collect()
    }

    /// As an input. Texts are never numbers.
    fn tensor(&self) -> Tensor {
        match (self.numbers(), self.flags(), self.texts()) {
            (Some(numbers), ..) => Tensor::from_slice(&self.shape, &numbers),
            (None, Some(flags), _) => Tensor::from_slice(&self.shape, &flags),
            (None, None, _) if self.reals().is_some() => {
                let reals: Vec<f32> = self.reals().expect("reals").iter().map(|&real| real as f32).collect();
                Tensor::from_slice(&self.shape, &reals)
            }
            (None, None, texts) => Tensor::from_texts(&self.shape, &texts.expect("texts")),
        }
    }

    /// Whether a result is this, whole numbers in any type of integers, others up to errors of rounding.
    fn is(&self, found: &Tensor) -> bool {
        let elements = match found.dtype {
            DType::Str => self.texts().is_some_and(|texts| found.texts() == texts),
            DType::F32 => self.reals().zip(found.to_f64s()).is_some_and(|(wanted, found)| {
                let most = wanted.iter().fold(1.0_f64, |most, real| most.max(real.abs()));
                wanted.len() == found.len()
                    && wanted.iter().zip(found).all(|(wanted, found)| (wanted - found).abs() <= 2e-6 * most)
            }),
            _ => self.numbers() == found.to_i64s(),
        };
        found.shape == self.shape && elements
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tokenizers")
}

/// Runs of a model that differ, by machine code or by the interpreter.
fn wrong(model: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(model.with_extension("json")).unwrap();
    let runs: Vec<Run> = serde_json::from_str(&text).unwrap();
    assert!(runs.len() > 10, "{}: {} runs", model.display(), runs.len());
    let compiled = compile_for(model, "model", &Target::host().unwrap().into());
    let compiled = compiled.unwrap_or_else(|errors| panic!("{}: {errors:?}", model.display()));
    let interpreted = Interpreted::new(&compiled).unwrap();
    let mut found = vec![];
    let mut natively = vec![];
    for (at, run) in runs.iter().enumerate() {
        let inputs: Vec<Option<Tensor>> = run.inputs.iter().map(|values| Some(values.tensor())).collect();
        let shapes = native::output_shapes(&compiled.graph, &inputs).unwrap();
        found.push((at, "interpreted", interpreted.run(&inputs, &shapes)));
        natively.push((inputs, shapes));
    }
    let loaded = Loaded::new(compiled, Instant::now()).unwrap();
    for (at, (inputs, shapes)) in natively.iter().enumerate() {
        found.push((at, "compiled", loaded.model().unwrap().run_with(inputs, shapes, &Call::default())));
    }
    let differs = |(at, how, results): (usize, &str, onnxc_ir::error::Result<Vec<Tensor>>)| {
        let wanted = &runs[at].outputs;
        let results = match results {
            Ok(results) => results,
            Err(error) => return Some(format!("{}, run {at}, {how}: {error}", model.display())),
        };
        let same = results.len() == wanted.len()
            && wanted.iter().zip(&results).all(|(wanted, found)| wanted.is(found));
        (!same).then(|| format!("{}, run {at}, {how}: {results:?}", model.display()))
    };
    found.into_iter().filter_map(differs).collect()
}

#[test]
fn tokens_are_those_of_onnxruntime_extensions() {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    models.sort();
    assert!(models.len() > 10, "{} models", models.len());
    let wrong: Vec<String> = models.iter().flat_map(|model| wrong(model)).collect();
    assert!(wrong.is_empty(), "{} runs differ:\n{}", wrong.len(), wrong.join("\n"));
}
