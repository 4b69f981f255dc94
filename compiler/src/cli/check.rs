//! `onnxc check`: every problem of a model. `onnxc ops`: the operator table.

use serde::Serialize;

use crate::cli::args::{CheckArgs, CodeArgs, Level, OpsArgs};
use crate::cli::session::{Problems, Progress, Session, one};
use crate::error::Error;
use crate::import::Warning;
use crate::op;

#[derive(Serialize)]
struct Report {
    problems: Vec<Problem>,
    warnings: Vec<ListedWarning>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Problem {
    /// The problem as a sentence.
    text: String,
    #[serde(flatten)]
    error: Error,
}

#[derive(Serialize)]
struct ListedWarning {
    text: String,
    #[serde(flatten)]
    warning: Warning,
}

/// Whether the model has no problem. It is compiled whole: what only a later stage can tell is a problem too.
pub fn run(args: &CheckArgs) -> Result<bool, Problems> {
    let session = Session::open(&args.model).map_err(one)?;
    let code =
        CodeArgs { opt_level: Level::Three, exact: false, target: None, mcpu: None, vector_width: None };
    let options = session.options(&code, "model").map_err(one)?;
    let mut progress = Progress::new(false, false, vec![]);
    let compiled = session.compile(&options, &mut progress);
    drop(progress);
    let (errors, warnings, notes) = match compiled {
        Ok(compiled) => (compiled.artifact().err().into_iter().collect(), compiled.warnings, compiled.notes),
        Err(errors) => (errors, vec![], vec![]),
    };
    let good = errors.is_empty();
    if args.json {
        let problem = |error: Error| Problem { text: error.to_string(), error };
        let listed = |warning: Warning| ListedWarning { text: warning.problem.to_string(), warning };
        let (problems, warnings) =
            (errors.into_iter().map(problem).collect(), warnings.into_iter().map(listed).collect());
        let report = Report { problems, warnings, notes };
        say!("{}", to_json(&report));
    } else {
        errors.iter().for_each(|error| say!("error: {error}"));
        warnings.iter().for_each(|warning| say!("warning: {}", warning.problem));
        notes.iter().for_each(|note| say!("note: {note}"));
        match errors.len() {
            0 => say!("no problems"),
            1 => say!("1 problem"),
            count => say!("{count} problems"),
        }
    }
    Ok(good)
}

pub fn ops(args: &OpsArgs) {
    if args.json {
        say!("{}", to_json(&op::json()));
    } else if args.markdown {
        say!("{}", op::markdown().trim_end());
    } else {
        for row in op::rows() {
            let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
            say!("{domain}.{} since {}: {}", row.name, row.since, row.doc);
        }
    }
}

/// Pretty JSON of values that cannot fail to serialize: no maps with other keys than strings.
pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serializes")
}
