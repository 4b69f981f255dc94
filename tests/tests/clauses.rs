//! The clauses of ONNX's documents, each as a small model and what the compiler says of it: accepted, accepted with a warning or a
//! note, refused with a message, or chosen otherwise for a reason. No code is made: it is the import that judges.
//!
//! With ONNXC_CLAUSES_DUMP set to a folder, the models are written there for `tests/python/clauses.py`, which compares the
//! verdicts with those of onnx.checker.

mod bodies;
mod functions;
mod graphs;
mod models;
mod nodes;
mod operators;
mod tensors;
pub(crate) mod text;
mod training;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use onnxc::files::external::ExternalFiles;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::Tensor;
use onnxc_proto::{GraphProto, ModelProto, NodeProto};
use prost::Message;

/// Rows of the review that the numbers of the rows are those of.
const ROWS: u32 = 507;

/// What the compiler says of a model.
#[derive(Clone, Debug)]
enum Verdict {
    /// Nothing.
    Accepted,
    /// A warning of the kind with this id and of no other, which `--strict` makes an error.
    Warned(&'static str),
    /// A note with this text, and no warning.
    Noted(&'static str),
    /// An error with this text.
    Refused(&'static str),
    /// The verdict is not what the clause suggests, for a reason.
    Chosen(Box<Verdict>, &'static str),
}

use Verdict::{Accepted, Noted, Refused, Warned};

impl Verdict {
    /// This verdict, which is chosen for a reason.
    fn since(self, reason: &'static str) -> Verdict {
        Verdict::Chosen(Box::new(self), reason)
    }

    /// Why it is not what the clause suggests, or nothing.
    fn reason(&self) -> &'static str {
        match self {
            Verdict::Chosen(_, reason) => reason,
            _ => "",
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Verdict::Chosen(verdict, _) => verdict.word(),
            Refused(_) => "rejects",
            Warned(_) => "warns",
            Accepted | Noted(_) => "accepts",
        }
    }
}

/// A clause, a model that keeps or breaks it, and the verdict.
struct Row {
    number: u32,
    clause: &'static str,
    statement: String,
    bytes: Vec<u8>,
    options: ImportOptions,
    verdict: Verdict,
    /// Another kind of warning that the model gives.
    allowed: Option<&'static str>,
}

impl Row {
    /// The row, whose model breaks another rule, too.
    fn allows(mut self, rule: &'static str) -> Row {
        self.allowed = Some(rule);
        self
    }

    /// The row, whose functions import the domain of the first one.
    fn importing_locally(mut self) -> Row {
        let mut model = ModelProto::decode(self.bytes.as_slice()).unwrap();
        let domain = model.functions[0].domain().to_string();
        for function in &mut model.functions {
            function.opset_import.push(onnxc_proto::build::opset(&domain, 1));
        }
        self.bytes = model.encode_to_vec();
        self
    }

    fn options(mut self, edit: impl FnOnce(&mut ImportOptions)) -> Row {
        edit(&mut self.options);
        self
    }
}

/// A row whose model is text, see [`text`].
fn row(number: u32, clause: &'static str, statement: &str, model: &str, verdict: Verdict) -> Row {
    of(number, clause, statement, text::model(model), verdict)
}

/// A row whose model is text, and changed.
fn edited(
    number: u32,
    clause: &'static str,
    statement: &str,
    model: &str,
    edit: impl FnOnce(&mut ModelProto),
    verdict: Verdict,
) -> Row {
    let mut model = text::model(model);
    edit(&mut model);
    of(number, clause, statement, model, verdict)
}

fn of(number: u32, clause: &'static str, statement: &str, model: ModelProto, verdict: Verdict) -> Row {
    raw(number, clause, statement, model.encode_to_vec(), verdict)
}

fn raw(number: u32, clause: &'static str, statement: &str, bytes: Vec<u8>, verdict: Verdict) -> Row {
    let statement = statement.to_string();
    Row { number, clause, statement, bytes, options: ImportOptions::default(), verdict, allowed: None }
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

fn node(model: &mut ModelProto, at: usize) -> &mut NodeProto {
    &mut graph(model).node[at]
}

/// `y = Relu(x)`.
const RELU: &str = "(float[2] x) => (float[2] y) { [act] y = Relu(x) }";

/// What the import says: an error, or warnings and notes.
enum Said {
    Errors(Vec<String>),
    Accepted { rules: BTreeSet<&'static str>, notes: Vec<String> },
}

fn said(row: &Row, folder: &Path, strict: bool) -> Said {
    let texts =
        |errors: Vec<onnxc_ir::error::Error>| Said::Errors(errors.iter().map(ToString::to_string).collect());
    let model = match onnxc::decode(Bytes::from(row.bytes.clone())) {
        Ok(model) => model,
        Err(error) => return texts(vec![error]),
    };
    let options = ImportOptions { strict, ..row.options.clone() };
    let external = ExternalFiles::new(folder, None).unwrap();
    match import(&model, &options, &external, onnxc::operators()) {
        Ok(import) => Said::Accepted {
            rules: import.warnings.iter().map(|warning| warning.rule.id()).collect(),
            notes: import.notes,
        },
        Err(errors) => texts(errors),
    }
}

/// How what is said of a row differs from its verdict.
fn difference(row: &Row, folder: &Path) -> Option<String> {
    let verdict = match &row.verdict {
        Verdict::Chosen(verdict, _) => verdict,
        verdict => verdict,
    };
    let right = match (verdict, said(row, folder, false)) {
        (Refused(text), Said::Errors(errors)) if errors.iter().any(|error| error.contains(text)) => true,
        (_, Said::Errors(errors)) => return Some(format!("refused: {}", errors.join(" / "))),
        (Accepted, Said::Accepted { rules, .. }) if rules.is_empty() => true,
        (Noted(text), Said::Accepted { rules, notes }) if rules.is_empty() => {
            notes.iter().any(|note| note.contains(text))
        }
        (Warned(id), Said::Accepted { rules, .. })
            if rules == row.allowed.into_iter().chain([*id]).collect() =>
        {
            matches!(said(row, folder, true), Said::Errors(_))
        }
        (_, Said::Accepted { rules, notes }) => {
            return Some(format!("accepted with warnings {rules:?} and notes {notes:?}"));
        }
    };
    (!right).then(|| "accepted, with other notes, or by --strict, too".to_string())
}

/// The folder that external data are in.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::create_dir(folder.path().join("sub")).unwrap();
    for name in ["w.bin", "sub/w.bin"] {
        fs::write(folder.path().join(name), &data).unwrap();
    }
    folder
}

fn rows() -> Vec<Row> {
    let families = [
        models::rows(),
        graphs::rows(),
        nodes::rows(),
        bodies::rows(),
        functions::rows(),
        tensors::rows(),
        types::rows(),
        training::rows(),
        operators::rows(),
    ];
    families.into_iter().flatten().collect()
}

#[test]
fn each_clause_is_kept_or_chosen_otherwise_for_a_reason() {
    let (rows, folder) = (rows(), folder());
    let mut faults = String::new();
    for row in &rows {
        if let Some(difference) = difference(row, folder.path()) {
            let Row { number, clause, statement, verdict, .. } = row;
            let _ =
                writeln!(faults, "{number} {clause}: {statement}\n    wanted {verdict:?}\n    {difference}");
        }
    }
    if let Some(dump) = std::env::var_os("ONNXC_CLAUSES_DUMP") {
        write(&rows, folder.path(), Path::new(&dump));
    }
    assert!(faults.is_empty(), "{faults}");
}

/// Writes the models of `rows`, their external data, and a table of the verdicts.
fn write(rows: &[Row], data: &Path, dump: &Path) {
    fs::create_dir_all(dump.join("sub")).unwrap();
    for name in ["w.bin", "sub/w.bin"] {
        fs::copy(data.join(name), dump.join(name)).unwrap();
    }
    let mut table = String::new();
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for row in rows {
        let count = counts.entry(row.number).or_default();
        let file = format!(
            "{:03}{}.onnx",
            row.number,
            "abcdefgh".get(*count as usize..*count as usize + 1).unwrap_or("z")
        );
        *count += 1;
        fs::write(dump.join(&file), &row.bytes).unwrap();
        let Row { clause, statement, verdict, .. } = row;
        let _ = writeln!(table, "{file}\t{}\t{clause}\t{statement}\t{}", verdict.word(), verdict.reason());
    }
    fs::write(dump.join("clauses.tsv"), table).unwrap();
}

#[test]
fn every_clause_has_a_row() {
    let numbers: BTreeSet<u32> = rows().iter().map(|row| row.number).collect();
    let missing: Vec<u32> = (1..=ROWS).filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "{} of {ROWS} rows are missing: {missing:?}", missing.len());
}

/// What a model of one input gives, by the reference evaluator.
fn results(model: &str, edit: impl FnOnce(&mut ModelProto), x: &Tensor) -> Tensor {
    let mut model = text::model(model);
    edit(&mut model);
    let import = import(&model, &ImportOptions::default(), &NoExternalData, onnxc::operators()).unwrap();
    onnxc_ir::interp::run(&import.graph, std::slice::from_ref(x)).unwrap().remove(0)
}

/// The definition that counts among two, and the one that is not read, are as the warning says: as in ONNX Runtime, except for two versions
/// of one domain, where they are as in the specification.
#[test]
fn what_is_warned_of_counts_as_the_warning_says() {
    let ones = Tensor::from_slice(&[2], &[1.0f32, 1.0]);
    let given = |model: &str| results(model, |_| {}, &ones).to_f64s().unwrap();
    let of = |nodes: &str, initializers: &str| {
        format!("(float[2] x) => (float[2] y) {initializers} {{ {nodes} }}")
    };
    let constant = |value: i32| format!("c = Constant<value = float[1] {{{value}}}>()");
    let (first, last) = (constant(1), constant(5));
    assert_eq!(given(&of(&format!("{first} y = Add(x, c) {last}"), "")), [6.0, 6.0]);
    assert_eq!(given(&of(&format!("{first} {last} y = Add(x, c)"), "")), [6.0, 6.0]);
    assert_eq!(given(&of(&format!("y = Add(x, c) {last}"), "<float[1] c = {7}>")), [6.0, 6.0]);
    assert_eq!(given(&of("y = Add(x, c)", "<float[1] c = {7}, float[1] c = {9}>")), [10.0, 10.0]);
    assert_eq!(given(&of("y = Relu<bogus = 3>(x)", "")), [1.0, 1.0]);
    let taken = results(
        &of("y = Softmax(z) z = Reshape(x, s)", "<int64[3] s = {1, 2, 1}>"),
        |m| m.opset_import = vec![onnxc_proto::build::opset("", 13), onnxc_proto::build::opset("", 11)],
        &ones,
    );
    assert_eq!(taken.to_f64s().unwrap(), [1.0, 1.0], "along the last axis, as of version 13");
    let image = Tensor::from_slice(&[1, 1, 5, 5], &[1.0f32; 25]);
    for (kind, size) in [("SAME_UPPER", 5), ("VALID", 4)] {
        let text = format!(
            "(float[1, 1, 5, 5] x) => (float[1, 1, ?, ?] y) {{ y = MaxPool<kernel_shape = [2, 2], auto_pad = \"{kind}\", pads = [1, 1, 1, 1]>(x) }}"
        );
        assert_eq!(results(&text, |_| {}, &image).shape, [1, 1, size, size], "{kind}");
    }
}
