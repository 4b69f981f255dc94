//! Real models, where the folder with them exists beside the repository: each verifies with its dynamic dims left
//! dynamic, or is on the list of what is not supported yet; and what is missing is listed in full.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use onnxc::cli::data;
use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_import::state::{Choice, Pair};
use onnxc_machine::target::Target;
use onnxc_proto::NodeProto;
use onnxc_tests::compile::{Code, compile, compile_with_state};
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::suite;
use rayon::prelude::*;

/// Models that must verify: they may not be on the list.
const REQUIRED: &[&str] = &[
    "acasxu_1_1",
    "cct2_cifar_fp32_op20",
    "dtln_model_1",
    "dtln_model_2",
    "fastestdet",
    "go1_policy",
    "kws_m_static_fp32",
    "magika_fast_v2_1",
    "mnist_cntk",
    "mnist_pytorch",
    "point_history_lstm",
    "ppocr_cls",
    "super_resolution_pytorch",
    "t5_random_decoder_vespa",
    "t5_random_encoder_vespa",
    "tfl_helloworld_sine",
    "tinybert_tribuo",
    "ultraface_rfb320",
    "ultraface_slim320_simplified",
    "yolox_nano",
];

#[test]
fn zoo() {
    run_zoo(&[]);
}

#[test]
fn zoo_without_leaf_kernels() {
    run_zoo(&["--without-leaf-kernels"]);
}

#[test]
fn zoo_in_vectors_of_128_bits() {
    run_zoo(&["--vector-width", "128"]);
}

#[test]
fn zoo_without_optimization() {
    run_zoo(&["-O", "0"]);
}

/// Holds every model against its data, compiled with these flags of `verify_model`.
fn run_zoo(flags: &[&str]) {
    let Some(root) = suite::models_folder() else { return };
    let mut models: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("model.onnx").exists())
        .collect();
    models.sort();
    let outcomes: BTreeMap<String, Outcome> = models
        .par_iter()
        .map(|folder| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let outcome = match verify(folder, flags) {
                Outcome::Unsupported(reason) if REQUIRED.contains(&name.as_str()) => {
                    Outcome::Failed(format!("is required, and not supported: {reason}"))
                }
                outcome => outcome,
            };
            (name, outcome)
        })
        .collect();
    let passed = outcomes.values().filter(|outcome| matches!(outcome, Outcome::Passed)).count();
    println!("zoo {passed}/{}", outcomes.len());
    let missing: Vec<&&str> = REQUIRED.iter().filter(|name| !outcomes.contains_key(**name)).collect();
    assert!(missing.is_empty(), "required models that are not there: {missing:?}");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("zoo/expected_failures.txt");
    if let Err(problems) = expected::check(&list, &outcomes) {
        panic!("{problems}");
    }
}

/// Models that read a stream keep what they carry from piece to piece as state: found without names, or by them.
#[test]
fn states_of_streaming_models() {
    let Some(root) = suite::models_folder() else { return };
    let models = [
        ("dtln_model_1", None),
        // An LSTM in single operations, with a state that its names do not identify.
        ("dtln_model_2", Some("input_5=tf_op_layer_stack_5")),
        ("silero_vad_v6", None),
        ("silero_vad_16k_op15", None),
    ];
    for (name, pair) in models {
        let folder = root.join(name);
        let pairs: Vec<Pair> = pair.iter().map(|text| Pair::from_str(text).unwrap()).collect();
        let state = Choice { found: pairs.is_empty(), pairs, capacity: None };
        let code = Code::from(Target::host().unwrap());
        let compiled = compile_with_state(&folder.join("model.onnx"), "model", &code, state);
        let compiled = compiled.unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        assert_eq!(compiled.graph.states.len(), 1, "{name}");
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        let sets = data::test_sets(&folder);
        assert!(!sets.is_empty(), "{name}");
        for set in sets {
            let (inputs, wanted) = data::test_set(&loaded.graph, &set).unwrap();
            let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
            let outputs = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
            for (((output, _), tensor), wanted) in loaded.graph.outputs.iter().zip(&outputs).zip(&wanted) {
                let (found, wanted) = (tensor.to_f64s().unwrap(), wanted.to_f64s().unwrap());
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 + 1e-3 * b.abs();
                assert!(
                    found.len() == wanted.len() && found.iter().zip(&wanted).all(near),
                    "{name}: {output}"
                );
            }
        }
    }
}

#[test]
fn check_lists_every_missing_operator() {
    let Some(root) = suite::models_folder() else { return };
    for folder in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        let path = folder.join("model.onnx");
        if !path.exists() {
            continue;
        }
        let missing = missing_operators(&std::fs::read(&path).unwrap());
        let listed: BTreeSet<(String, String)> = match compile(&path, "model") {
            Ok(_) => BTreeSet::new(),
            Err(errors) => errors
                .iter()
                .filter(|error| error.message.starts_with("operator "))
                .filter_map(|error| error.node.as_ref())
                .map(|node| (node.domain.clone(), node.op_type.clone()))
                .collect(),
        };
        assert_eq!(listed, missing, "{}", path.display());
    }
}

/// Operators of a model, its functions and its subgraphs that have no row: found without the importer's help.
fn missing_operators(model: &[u8]) -> BTreeSet<(String, String)> {
    let model = onnxc::decode(model.to_vec().into()).unwrap();
    let functions: BTreeSet<(&str, &str)> =
        model.functions.iter().map(|function| (function.domain(), function.name())).collect();
    let mut open: Vec<&NodeProto> = model.graph.iter().flat_map(|graph| &graph.node).collect();
    open.extend(model.functions.iter().flat_map(|function| &function.node));
    let mut missing = BTreeSet::new();
    while let Some(node) = open.pop() {
        let known =
            onnxc::operators().rows().any(|row| (row.domain, row.name) == (node.domain(), node.op_type()));
        if !known && !functions.contains(&(node.domain(), node.op_type())) {
            missing.insert((node.domain().to_string(), node.op_type().to_string()));
        }
        let bodies = node
            .attribute
            .iter()
            .flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs));
        open.extend(bodies.flat_map(|body| &body.node));
    }
    missing
}

/// Runs the `verify_model` program: a crash of generated code ends only that.
fn verify(folder: &Path, flags: &[&str]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_verify_model"))
        .arg(folder.join("model.onnx"))
        .args(flags)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    match (output.status.code(), text.strip_prefix("unsupported: ")) {
        (Some(0), _) => Outcome::Passed,
        (Some(1), Some(reason)) => Outcome::Unsupported(reason.to_string()),
        (Some(1), None) => Outcome::Failed(text),
        _ => {
            Outcome::Failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}
