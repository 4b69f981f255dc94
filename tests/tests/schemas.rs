//! The operator table against the schemas of the ONNX package, and of ONNX Runtime for its own domain: each row matches the
//! schema of its exact version, and an operator that has any row has rows for all its versions.

use std::collections::{BTreeMap, BTreeSet};

use onnxc_ir::graph::DType;
use onnxc_ops::item::ItemKind;
use onnxc_ops::{Arity, AttrDefault, OpDef, Param};
use onnxc_tests::onnx_env;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Schema {
    domain: String,
    name: String,
    since: u32,
    inputs: Vec<Parameter>,
    outputs: Vec<Parameter>,
    attributes: Vec<Attribute>,
    types: BTreeMap<String, Vec<i32>>,
    kinds: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Deserialize)]
struct Parameter {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    arity: String,
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    kind: String,
    required: bool,
    default: Value,
}

/// One mismatch per element, each naming row and schema values.
fn compare(row: &OpDef, schema: &Schema) -> Vec<String> {
    let mut problems = Vec::new();
    compare_params("inputs", row.inputs, &schema.inputs, &mut problems);
    compare_params("outputs", row.outputs, &schema.outputs, &mut problems);
    compare_types(row, schema, &mut problems);
    compare_kinds(row, schema, &mut problems);
    compare_attributes(row, schema, &mut problems);
    problems
}

/// The kinds of values that each parameter may be.
fn compare_kinds(row: &OpDef, schema: &Schema, problems: &mut Vec<String>) {
    let name = |kind: &ItemKind| match kind {
        ItemKind::Tensor => "tensor",
        ItemKind::Sequence => "sequence",
        ItemKind::Optional => "optional",
        ItemKind::OptionalSequence => "optional_sequence",
        ItemKind::Map => "map",
        ItemKind::Records => "records",
    };
    for param in row.inputs.iter().chain(row.outputs) {
        let ours: BTreeSet<String> = param.kinds.iter().map(|kind| name(kind).to_string()).collect();
        let theirs = schema.kinds.get(param.ty).cloned().unwrap_or_else(|| ["tensor".to_string()].into());
        if ours != theirs {
            problems.push(format!("{} is of the kinds {ours:?}, not {theirs:?}", param.name));
        }
    }
}

fn compare_params(what: &str, row: &[Param], schema: &[Parameter], problems: &mut Vec<String>) {
    let arity = |arity: Arity| match arity {
        Arity::Required => "Single",
        Arity::Optional => "Optional",
        Arity::Variadic | Arity::Mixed => "Variadic",
    };
    let ours: Vec<_> = row.iter().map(|param| (param.name, param.ty, arity(param.arity))).collect();
    let theirs: Vec<_> =
        schema.iter().map(|param| (param.name.as_str(), param.ty.as_str(), param.arity.as_str())).collect();
    if ours != theirs {
        problems.push(format!("{what} {ours:?}, not {theirs:?}"));
    }
}

/// Element types that a tensor of the graph cannot have (newer than the IR) are left out of the schema.
fn compare_types(row: &OpDef, schema: &Schema, problems: &mut Vec<String>) {
    let ours: BTreeMap<&str, BTreeSet<DType>> =
        row.types.iter().map(|(variable, types)| (*variable, types.iter().copied().collect())).collect();
    let theirs: BTreeMap<&str, BTreeSet<DType>> = schema
        .types
        .iter()
        .map(|(variable, types)| {
            (variable.as_str(), types.iter().filter_map(|&number| DType::from_onnx(number)).collect())
        })
        .collect();
    if ours != theirs {
        problems.push(format!("types {ours:?}, not {theirs:?}"));
    }
}

fn compare_attributes(row: &OpDef, schema: &Schema, problems: &mut Vec<String>) {
    let ours: BTreeMap<&str, &AttrDefault> =
        row.attributes.iter().map(|attribute| (attribute.name, &attribute.default)).collect();
    let theirs: BTreeMap<&str, &Attribute> =
        schema.attributes.iter().map(|attribute| (attribute.name.as_str(), attribute)).collect();
    let names: BTreeSet<&str> = ours.keys().chain(theirs.keys()).copied().collect();
    for name in names {
        match (ours.get(name), theirs.get(name)) {
            (Some(default), Some(attribute)) if agrees(default, attribute) => {}
            (ours, theirs) => {
                let theirs = theirs.map(|theirs| (&theirs.kind, theirs.required, &theirs.default));
                problems.push(format!("attribute {name} {ours:?}, not {theirs:?}"));
            }
        }
    }
}

fn agrees(ours: &AttrDefault, theirs: &Attribute) -> bool {
    let default = &theirs.default;
    let ints = || default.as_array().map(|items| items.iter().filter_map(Value::as_i64).collect::<Vec<_>>());
    let strs = || default.as_array().map(|items| items.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let kind = theirs.kind.as_str();
    match *ours {
        AttrDefault::Required(ours) => theirs.required && ours.name() == kind,
        AttrDefault::Optional(ours) => !theirs.required && default.is_null() && ours.name() == kind,
        AttrDefault::Int(value) => kind == "INT" && default.as_i64() == Some(value),
        AttrDefault::Float(value) => {
            kind == "FLOAT" && default.as_f64().map(|wide| wide as f32) == Some(value)
        }
        AttrDefault::Str(text) => kind == "STRING" && default.as_str() == Some(text),
        AttrDefault::Ints(values) => kind == "INTS" && ints().as_deref() == Some(values),
        AttrDefault::Strs(texts) => kind == "STRINGS" && strs().as_deref() == Some(texts),
    }
}

#[test]
fn rows_agree_with_the_schemas() {
    let text = onnx_env::run_script("dump_schemas.py", &[]).expect("the ONNX package lists its schemas");
    assert!(compare_all(&text) > 400);
}

#[test]
fn rows_of_microsoft_agree_with_the_schemas_of_onnx_runtime() {
    let text = onnx_env::PEERS.run_script("dump_schemas.py", &["com.microsoft"]);
    assert!(compare_all(&text.expect("ONNX Runtime lists its schemas")) >= 22);
}

/// What ONNX Runtime takes beyond the standard: its own schemas of `ai.onnx`, up to the version in which it drops them.
#[test]
fn tolerated_rows_agree_with_the_schemas_of_onnx_runtime() {
    let text = onnx_env::PEERS.run_script("dump_schemas.py", &[""]).expect("ONNX Runtime lists its schemas");
    let schemas: Vec<Schema> = serde_json::from_str(&text).expect("the list parses");
    let mut problems = Vec::new();
    for onnxc_ops::unreleased::Tolerated { row, until } in onnxc_ops::unreleased::ROWS {
        let versions = || schemas.iter().filter(|schema| schema.name == row.name);
        let Some(schema) = versions().find(|schema| schema.since == row.since) else {
            problems.push(format!("{}: there is no such schema", row.name));
            continue;
        };
        let mut found = Vec::new();
        compare_params("inputs", row.inputs, &schema.inputs, &mut found);
        compare_params("outputs", row.outputs, &schema.outputs, &mut found);
        compare_attributes(row, schema, &mut found);
        // The types of an operator that the standard has are what ONNX Runtime does not check.
        if onnxc::operators().lookup("", row.name, row.since).is_none() {
            compare_types(row, schema, &mut found);
        }
        problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", row.name)));
        let next = versions().map(|schema| schema.since).filter(|&since| since > row.since).min();
        let last = next.map_or(u32::MAX - 1, |next| next - 1);
        if last != *until {
            problems.push(format!("{}: holds until {until}, not {last}", row.name));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Holds the rows of all domains that schemas are of against them; gives their number.
fn compare_all(text: &str) -> usize {
    let schemas: Vec<Schema> = serde_json::from_str(text).expect("the list parses");
    let domains: BTreeSet<&str> = schemas.iter().map(|schema| schema.domain.as_str()).collect();
    let of_schemas: BTreeMap<(&str, &str, u32), &Schema> = schemas
        .iter()
        .map(|schema| ((schema.domain.as_str(), schema.name.as_str(), schema.since), schema))
        .collect();
    // Rows of other domains have no schema here, nor have those of ONNX Runtime's package for training.
    let trains = |row: &&OpDef| {
        let rows = onnxc_contrib::microsoft::training::ROWS.iter();
        rows.into_iter().any(|other| (other.domain, other.name) == (row.domain, row.name))
    };
    let of_rows: BTreeMap<(&str, &str, u32), &OpDef> = onnxc::operators()
        .rows()
        .filter(|row| domains.contains(row.domain) && !trains(row))
        .map(|row| ((row.domain, row.name, row.since), row))
        .collect();
    let operators: BTreeSet<(&str, &str)> = of_rows.keys().map(|key| (key.0, key.1)).collect();
    let mut problems = Vec::new();
    for (key, row) in &of_rows {
        match of_schemas.get(key) {
            Some(schema) => {
                problems.extend(compare(row, schema).into_iter().map(|problem| format!("{key:?}: {problem}")))
            }
            None => problems.push(format!("{key:?}: there is no such version")),
        }
    }
    for key in of_schemas.keys() {
        if operators.contains(&(key.0, key.1)) && !of_rows.contains_key(key) {
            problems.push(format!("{key:?}: the version has no row"));
        }
    }
    assert!(problems.is_empty(), "{} disagreements:\n{}", problems.len(), problems.join("\n"));
    of_rows.len()
}

/// The page that the README links is what the table prints. `UPDATE_EXPECT=1` writes it.
#[test]
fn the_page_of_operators_is_up_to_date() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../OPERATORS.md");
    let text = onnxc::operators().markdown();
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
        std::fs::write(&page, &text).unwrap();
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(found == text, "OPERATORS.md is not up to date: run with UPDATE_EXPECT=1");
}
