//! `onnxc check`: every problem of a model, or of many and what they have in common. `onnxc ops`: the operator table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::args::{CheckArgs, CodeArgs, Level, ModelArgs, OpsArgs};
use crate::cli::session::{Problems, Progress, Session, one};
use crate::files::io_error;
use onnxc_import::Warning;
use onnxc_import::diagnostics;
use onnxc_ir::error::Error;
use onnxc_passes::Precision;

/// Models that a reason names.
const NAMED: usize = 3;

/// What is said of one model.
#[derive(Serialize)]
struct Report {
    problems: Vec<Problem>,
    /// Numbers of further problems, by the text that they have in common.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    more_problems: BTreeMap<String, usize>,
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

/// Whether no model has a problem. They are compiled whole: what only a later stage can find out is a problem too.
pub(super) fn run(args: &CheckArgs) -> Result<bool, Problems> {
    if args.more.is_empty() && !args.model.model.is_dir() {
        let found = check(&args.model)?;
        let good = found.errors.is_empty();
        match args.json {
            true => say!("{}", to_json(&Report::from(found))),
            false => {
                found.lines().iter().for_each(|line| say!("{line}"));
                match found.errors.len() {
                    0 => say!("no problems"),
                    1 => say!("1 problem"),
                    count => say!("{count} problems"),
                }
            }
        }
        return Ok(good);
    }
    let mut files = BTreeSet::new();
    for path in std::iter::once(&args.model.model).chain(&args.more) {
        match path.is_dir() {
            true => models_beneath(path, &mut files).map_err(one)?,
            false => drop(files.insert(path.clone())),
        }
    }
    many(args, files.into_iter().collect())
}

/// What checking a model finds.
struct Found {
    errors: Problems,
    warnings: Vec<Warning>,
    notes: Vec<String>,
}

impl Found {
    /// A line for each.
    fn lines(&self) -> Vec<String> {
        let errors = diagnostics::lines(&self.errors).into_iter().map(|line| format!("error: {line}"));
        let warnings = self.warnings.iter().flat_map(|warning| {
            let more = (warning.more > 0).then(|| {
                format!("warning: and {} more of this kind: {}", warning.more, warning.rule.entry().text)
            });
            std::iter::once(format!("warning: {}", warning.problem)).chain(more)
        });
        errors.chain(warnings).chain(self.notes.iter().map(|note| format!("note: {note}"))).collect()
    }
}

impl From<Found> for Report {
    fn from(found: Found) -> Report {
        let groups = diagnostics::groups(&found.errors);
        let more = groups.iter().filter(|group| group.more > 0);
        let more_problems = more.map(|group| (group.reason.clone(), group.more)).collect();
        let mut shown: Vec<usize> = groups.into_iter().flat_map(|group| group.shown).collect();
        shown.sort_unstable();
        let problem = |at: usize| {
            let error = found.errors[at].clone();
            Problem { text: error.to_string(), error }
        };
        let listed = |warning: Warning| ListedWarning { text: warning.problem.to_string(), warning };
        Report {
            problems: shown.into_iter().map(problem).collect(),
            more_problems,
            warnings: found.warnings.into_iter().map(listed).collect(),
            notes: found.notes,
        }
    }
}

fn check(model: &ModelArgs) -> Result<Found, Problems> {
    let session = Session::open(model).map_err(one)?;
    let code = CodeArgs {
        opt_level: Level::Two,
        exact: false,
        precision: Precision::F32,
        target: None,
        mcpu: None,
        levels: None,
        vector_width: None,
        no_unwind: false,
        no_trace: false,
        recompute: None,
        weights_file: None,
        weights_from: 8,
    };
    let options = session.options(&code, "model").map_err(one)?;
    let mut progress = Progress::new(false, false, vec![]);
    let compiled = session.compile(&options, &mut progress);
    drop(progress);
    Ok(match compiled {
        Ok(compiled) => Found {
            errors: compiled.artifact().err().into_iter().collect(),
            warnings: compiled.warnings,
            notes: compiled.notes,
        },
        Err(errors) => Found { errors, warnings: vec![], notes: vec![] },
    })
}

/// The .onnx files of a folder and of the folders inside; links to folders are not followed.
fn models_beneath(folder: &Path, files: &mut BTreeSet<PathBuf>) -> onnxc_ir::error::Result<()> {
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| io_error(&folder, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| io_error(&folder, &error))?;
            let kind = entry.file_type().map_err(|error| io_error(&entry.path(), &error))?;
            let path = entry.path();
            if kind.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "onnx") && !path.is_dir() {
                files.insert(path);
            }
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct File {
    path: String,
    accepted: bool,
    #[serde(flatten)]
    report: Report,
}

#[derive(Serialize)]
struct Summary {
    files: usize,
    accepted: usize,
    /// Those of `accepted` that have warnings.
    with_warnings: usize,
    refused: usize,
    /// Why models are refused, and what is warned of: the most frequent first.
    refusals: Vec<Reason>,
    warnings: Vec<Reason>,
}

/// What several diagnostics have in common.
#[derive(Serialize)]
struct Reason {
    /// The message without the names and the numbers of one model.
    reason: String,
    /// The id in the table of the book, if it is a kind of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    /// The operator it is said of, as `domain.Name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
    count: u64,
    /// Models that have it, and the first of these.
    files: usize,
    named: Vec<String>,
}

/// Reasons by the text that they have in common.
#[derive(Default)]
struct Reasons(BTreeMap<(String, Option<String>), Reason>);

impl Reasons {
    fn add(&mut self, error: &Error, count: u64, path: &str) {
        let operator = error.node.as_ref().map(|node| {
            let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
            format!("{domain}.{}", node.op_type)
        });
        let reason = || match error.rule.and_then(onnxc_ir::rules::by_id) {
            Some(entry) => entry.text.to_string(),
            None => error.reason(),
        };
        let reason = self.0.entry((reason(), operator.clone())).or_insert_with_key(|(reason, _)| Reason {
            reason: reason.clone(),
            rule: error.rule,
            operator,
            count: 0,
            files: 0,
            named: vec![],
        });
        reason.count += count;
        // Models come one after the other.
        if reason.files == 0 || reason.named.last().is_none_or(|last| last != path) {
            reason.files += 1;
            reason.named.push(path.to_string());
        }
    }

    fn finish(self) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = self.0.into_values().collect();
        reasons.sort_by_key(|reason| (std::cmp::Reverse(reason.files), std::cmp::Reverse(reason.count)));
        reasons.iter_mut().for_each(|reason| reason.named.truncate(NAMED));
        reasons
    }
}

/// Checks several models, and says what their problems have in common.
fn many(args: &CheckArgs, paths: Vec<PathBuf>) -> Result<bool, Problems> {
    let mut files = Vec::new();
    let (mut refusals, mut warnings) = (Reasons::default(), Reasons::default());
    let (mut accepted, mut with_warnings) = (0, 0);
    let count = paths.len();
    for path in paths {
        let shown = path.display().to_string();
        let model = ModelArgs { model: path, ..args.model.clone() };
        // A file that cannot be read is a reason as well; the others are checked all the same.
        let found = check(&model).unwrap_or_else(|errors| Found { errors, warnings: vec![], notes: vec![] });
        found.errors.iter().for_each(|error| refusals.add(error, 1, &shown));
        found.warnings.iter().for_each(|warning| warnings.add(&warning.problem, 1 + warning.more, &shown));
        let good = found.errors.is_empty();
        accepted += usize::from(good);
        with_warnings += usize::from(good && !found.warnings.is_empty());
        if args.json {
            files.push(File { path: shown, accepted: good, report: found.into() });
            continue;
        }
        match (found.errors.len(), found.warnings.len()) {
            (0, 0) => say!("{shown}: no problems"),
            (0, _) => say!("{shown}: accepted with warnings"),
            _ => say!("{shown}: refused"),
        }
        found.lines().iter().for_each(|line| say!("  {line}"));
    }
    let refused = count - accepted;
    let summary = Summary {
        files: count,
        accepted,
        with_warnings,
        refused,
        refusals: refusals.finish(),
        warnings: warnings.finish(),
    };
    match args.json {
        true => say!("{}", to_json(&serde_json::json!({ "files": files, "summary": summary }))),
        false => summary.say(),
    }
    Ok(refused == 0)
}

impl Summary {
    fn say(&self) {
        let Summary { files, accepted, with_warnings, refused, .. } = self;
        say!("{files} models: {accepted} accepted, {with_warnings} of them with warnings; {refused} refused");
        for (what, reasons) in [("refused", &self.refusals), ("warned of", &self.warnings)] {
            for Reason { reason, operator, count, files, named, .. } in reasons {
                let operator = operator.as_ref().map_or(String::new(), |operator| format!(" {operator}:"));
                let more = if *files > named.len() { ", ..." } else { "" };
                say!("{what}, {count} in {files} models:{operator} {reason} ({}{more})", named.join(", "));
            }
        }
    }
}

pub(super) fn ops(args: &OpsArgs) {
    if args.json {
        say!("{}", to_json(&crate::operators().json()));
    } else if args.markdown {
        say!("{}", crate::operators().markdown().trim_end());
    } else {
        for row in crate::operators().rows() {
            let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
            say!("{domain}.{} since {}: {}", row.name, row.since, row.doc);
        }
    }
}

/// Pretty JSON of values that cannot fail to serialize: no maps with other keys than strings.
pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serializes")
}
