//! The whole table, with the rows of ONNX's own domains, and rows that belong to both.

use std::collections::HashSet;

use onnxc_ops::agreement::testing::{assert_enforced, assert_named, without_agreements};
use onnxc_ops::node_case::Case;
use onnxc_ops::{OpDef, Table};

use super::FAMILIES;

pub(crate) fn table() -> Table {
    Table::new(onnxc_ops::FAMILIES.iter().chain(FAMILIES).copied())
}

/// A node of one of these domains.
pub(crate) fn case(domain: &'static str, name: &'static str, opset: u32) -> Case {
    Case::of(FAMILIES, domain, name, opset)
}

fn own() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().copied().flatten()
}

#[test]
fn texts_name_what_their_rows_have() {
    assert_named(own());
}

#[test]
fn every_agreement_of_every_row_is_enforced() {
    let lowered = assert_enforced(own());
    assert!(lowered > 30, "{lowered} rows were lowered over symbolic shapes");
}

#[test]
fn rows_without_agreements() {
    assert_eq!(without_agreements(own()), [""; 0]);
}

#[test]
fn every_row_is_complete() {
    let mut seen = HashSet::new();
    for row in table().rows() {
        let label = format!("{}.{}-{}", row.domain, row.name, row.since);
        assert!(seen.insert((row.domain, row.name, row.since)), "{label} occurs twice");
        assert!(row.since > 0 && !row.doc.is_empty() && !row.outputs.is_empty(), "{label} is incomplete");
        for params in [row.inputs, row.outputs] {
            for (at, param) in params.iter().enumerate() {
                let variable = row.types.iter().find(|(variable, _)| *variable == param.ty);
                let fixed = param.ty.starts_with("tensor(");
                assert!(fixed || variable.is_some(), "{label}: {}", param.ty);
                let last = at + 1 == params.len();
                assert!(!param.arity.is_variadic() || last, "{label}: {} is not last", param.name);
            }
        }
        let variables: HashSet<_> = row.types.iter().map(|(variable, _)| variable).collect();
        assert_eq!(variables.len(), row.types.len(), "{label}: a type variable occurs twice");
        let names: HashSet<_> = row.attributes.iter().map(|attribute| attribute.name).collect();
        assert_eq!(names.len(), row.attributes.len(), "{label}: an attribute occurs twice");
    }
}

#[test]
fn documents_hold_every_row() {
    let (text, tree) = (table().markdown(), table().json());
    for row in table().rows() {
        let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
        let versions = tree[domain][row.name].as_array().expect("versions of an operator");
        let entry = versions.iter().find(|entry| entry["since"] == row.since).expect("the version");
        assert_eq!(entry["inputs"].as_array().map(Vec::len), Some(row.inputs.len()));
        let section = text.split("## ").find(|section| section.lines().next() == Some(domain));
        let mut lines = section.expect("a section of the domain").lines();
        let line = lines.find(|line| line.starts_with(&format!("| {} |", row.name)));
        let versions = line.and_then(|line| line.split('|').nth(2)).expect("a line with versions");
        assert!(versions.split(',').any(|since| since.trim() == row.since.to_string()), "{}", row.name);
    }
    let relu = text.lines().find(|line| line.starts_with("| Relu |")).unwrap();
    assert_eq!(relu, "| Relu | 1, 6, 13, 14 | T: f32 i8 i16 i32 i64 f16 f64 bf16 | max(x, 0) |");
}
#[test]
fn labels_of_strings() {
    const ML: &str = "ai.onnx.ml";
    let x = &["b", "a", "?"];
    let encoder = case(ML, "LabelEncoder", 2)
        .texts(&["n"], &[3], x)
        .strs("keys_strings", &["a", "b", "a"])
        .ints("values_int64s", &[1, 2, 3])
        .int("default_int64", -7);
    encoder.gives(0, &[3], &[2., 1., -7.]);
    let texts = case(ML, "LabelEncoder", 2)
        .input(&[3], &[1i64, 5, 2])
        .ints("keys_int64s", &[1, 2])
        .strs("values_strings", &["one", "two"]);
    texts.gives_texts(0, &[3], &["one", "_Unused", "two"]);
    let first = case(ML, "LabelEncoder", 1).texts(&[], &[3], x).strs("classes_strings", &["a", "b"]);
    first.gives(0, &[3], &[1., 0., -1.]);
    let back = case(ML, "LabelEncoder", 1).input(&[2], &[1i64, 9]).strs("classes_strings", &["a", "b"]);
    back.gives_texts(0, &[2], &["b", "_Unused"]);
    let mapper = case(ML, "CategoryMapper", 1)
        .texts(&[], &[3], x)
        .strs("cats_strings", &["a", "b"])
        .ints("cats_int64s", &[10, 20]);
    mapper.gives(0, &[3], &[20., 10., -1.]);
    let hot = |zeros| {
        case(ML, "OneHotEncoder", 1)
            .texts(&["n"], &[3], x)
            .strs("cats_strings", &["a", "b"])
            .int("zeros", zeros)
    };
    hot(1).gives(0, &[3, 2], &[0., 1., 1., 0., 0., 0.]);
    assert!(hot(0).run().is_err());
    let classifier = case(ML, "LinearClassifier", 1)
        .input(&[2, 1], &[1f32, -1.])
        .floats("coefficients", &[1., -1.])
        .floats("intercepts", &[0., 0.])
        .strs("classlabels_strings", &["up", "down"])
        .outputs(2);
    classifier.gives_texts(0, &[2], &["up", "down"]);
}

#[test]
fn features_of_the_last_axis() {
    let of =
        |shape: &[usize]| case("ai.onnx.ml", "ArrayFeatureExtractor", 1).input(shape, &[1f32, 2., 3., 4.]);
    of(&[2, 2]).input(&[1, 3], &[1i64, 0, 1]).gives(0, &[2, 3], &[2., 1., 2., 4., 3., 4.]);
    of(&[4]).input(&[2, 1], &[3i64, 0]).gives(0, &[1, 2], &[4., 1.]);
    assert!(
        case("ai.onnx.ml", "ArrayFeatureExtractor", 1)
            .input(&[], &[1f32])
            .input(&[1], &[0i64])
            .run()
            .is_err()
    );
}

/// Of static sizes as of symbolic ones, and of convolutions as of pools: where a window is too wide by less than a stride, the
/// formula for the number of its places gives 0.
#[test]
fn windows_wider_than_the_data_have_no_place() {
    let of = |name: &'static str, size: usize, is_static: bool| {
        let n = if is_static { "" } else { "n" };
        let bytes = ["ConvInteger", "QLinearConv", "QLinearAveragePool", "NhwcMaxPool"].contains(&name);
        let nhwc = name == "NhwcMaxPool";
        let (shape, dims) = if nhwc { ([1, size, 1], ["", n, ""]) } else { ([1, 1, size], ["", "", n]) };
        let microsoft = nhwc || name == "QLinearAveragePool";
        let case = if microsoft { case("com.microsoft", name, 1) } else { Case::new(name, 10) };
        let case = match bytes {
            true => case.symbolic(&dims, &shape, &vec![1u8; size]),
            false => case.symbolic(&dims, &shape, &vec![1f32; size]),
        };
        match name {
            "Conv" => case.constant::<f32>(&[1, 1, 3], &[1.0; 3]),
            "ConvInteger" => case.constant::<u8>(&[1, 1, 3], &[1; 3]),
            "QLinearConv" => {
                let case = case.constant::<f32>(&[], &[1.0]).constant::<u8>(&[], &[0]);
                let case = case.constant::<u8>(&[1, 1, 3], &[1; 3]);
                let case = case.constant::<f32>(&[], &[1.0]).constant::<u8>(&[], &[0]);
                case.constant::<f32>(&[], &[1.0]).constant::<u8>(&[], &[0])
            }
            "QLinearAveragePool" => {
                let case = case.constant::<f32>(&[], &[1.0]).constant::<u8>(&[], &[0]);
                case.constant::<f32>(&[], &[1.0]).constant::<u8>(&[], &[0]).ints("kernel_shape", &[3])
            }
            _ => case.ints("kernel_shape", &[3]),
        }
    };
    let names = [
        "MaxPool",
        "AveragePool",
        "LpPool",
        "Conv",
        "ConvInteger",
        "QLinearConv",
        "QLinearAveragePool",
        "NhwcMaxPool",
    ];
    for name in names {
        for is_static in [true, false] {
            // floor((2 - 3) / 1) + 1 and floor((1 - 3) / 2) + 1
            for (size, stride) in [(2, 1), (1, 2), (2, 2)] {
                let found = of(name, size, is_static).ints("strides", &[stride]).run();
                let found = found.unwrap_or_else(|error| panic!("{name} of {size}: {error}"));
                let wanted = if name == "NhwcMaxPool" { [1, 0, 1] } else { [1, 1, 0] };
                assert_eq!(found[0].shape, wanted, "{name} of {size} by {stride}");
            }
            assert!(of(name, 1, is_static).run().is_err(), "{name}");
        }
        let message = of(name, 1, true).lower().unwrap_err().message;
        assert!(message.contains("a window of 3 does not fit spatial axis 0 of size 1"), "{name}: {message}");
        assert!(message.contains("with stride 1 it would have -1 places"), "{message}");
    }
    // Indices of no windows, dilations, and a last window of `ceil_mode`, which reaches beyond the data.
    let pool = |size: usize| Case::new("MaxPool", 10).ramp(&[1, 1, size], 1).ints("kernel_shape", &[3]);
    pool(2).outputs(2).gives(1, &[1, 1, 0], &[]);
    pool(4).ints("dilations", &[2]).ints("strides", &[2]).gives(0, &[1, 1, 0], &[]);
    pool(2).int("ceil_mode", 1).gives(0, &[1, 1, 0], &[]);
    pool(2).int("ceil_mode", 1).ints("strides", &[2]).gives(0, &[1, 1, 1], &[1.25]);
}
