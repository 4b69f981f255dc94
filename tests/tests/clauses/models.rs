//! The model: versions, imported operator sets, metadata.

use onnxc_proto::{StringStringEntryProto, build};

use super::*;

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// The model of `RELU` that imports these versions.
fn importing(imports: &'static [(&'static str, i64)]) -> impl FnOnce(&mut ModelProto) {
    move |model| {
        model.opset_import = imports.iter().map(|&(domain, version)| build::opset(domain, version)).collect()
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![
        edited(
            1,
            "Model.ir_version",
            "must be present",
            RELU,
            |m| m.ir_version = None,
            Refused("no ir_version"),
        ),
        edited(
            2,
            "Model.ir_version",
            "0 is none",
            RELU,
            |m| m.ir_version = Some(0),
            Warned("ir_version_zero"),
        ),
        edited(
            15,
            "Versioning",
            "a consumer may take newer IR versions",
            RELU,
            |m| m.ir_version = Some(99),
            Refused("IR version 99"),
        ),
    ];
    for version in 3..=14 {
        let statement = format!("IR version {version} is valid");
        let edit = |m: &mut ModelProto| m.ir_version = Some(version);
        rows.push(edited(version as u32, "Model.ir_version", &statement, RELU, edit, Accepted));
    }
    const SCALER: &str =
        "(float[1, 2] x) => (float[1, 2] y) { y = ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(x) }";
    let unknown_domain: &'static [(&'static str, i64)] = &[("", 22), ("com.acme", 1)];
    rows.extend([
        edited(
            16,
            "Model.opset_import",
            "IR before 3 has none: opset 1",
            RELU,
            |m| {
                m.ir_version = Some(2);
                m.opset_import.clear();
            },
            Accepted,
        ),
        edited(
            17,
            "Model.opset_import",
            "IR before 3 cannot have it",
            RELU,
            |m| m.ir_version = Some(2),
            Warned("opset_before_ir_3"),
        ),
        edited(
            18,
            "Model.opset_import",
            "must name the sets",
            RELU,
            |m| m.opset_import.clear(),
            Refused("imported: nothing"),
        ),
        edited(
            19,
            "Model.opset_import",
            "the default set is imported implicitly",
            RELU,
            importing(&[("ai.onnx.ml", 3)]),
            Warned("domain_not_imported"),
        ),
        edited(
            20,
            "Model.opset_import",
            "ai.onnx names the default domain",
            RELU,
            importing(&[("ai.onnx", 22)]),
            Accepted,
        ),
        edited(
            21,
            "Node.domain",
            "ai.onnx on a node",
            RELU,
            |m| node(m, 0).domain = Some("ai.onnx".into()),
            Accepted,
        ),
        edited(
            22,
            "Model.opset_import",
            "of two versions the highest holds",
            "(float[1, 2] x) => (float[2] y) { y = Squeeze<axes = [0]>(x) }",
            importing(&[("", 11), ("", 13)]),
            Refused("attribute `axes` is not one of Squeeze's"),
        ),
        edited(
            22,
            "Model.opset_import",
            "of two versions the highest holds",
            RELU,
            importing(&[("", 13), ("", 11)]),
            Warned("domain_twice"),
        ),
        edited(23, "Model.opset_import", "version 0", RELU, importing(&[("", 0)]), Refused("opset 0")),
        edited(
            24,
            "Model.opset_import",
            "a negative version",
            RELU,
            importing(&[("", -5)]),
            Refused("version -5"),
        ),
        edited(
            25,
            "Model.opset_import",
            "opset 99",
            RELU,
            importing(&[("", 99)]),
            Noted("opset 99 of ai.onnx is newer"),
        ),
        edited(26, "Model.opset_import", "opset 26", RELU, importing(&[("", 26)]), Accepted),
        edited(
            27,
            "Model.opset_import",
            "an unknown domain that is not used",
            RELU,
            importing(unknown_domain),
            Accepted,
        ),
        row(
            28,
            "Operator",
            "the domain of an operator is not imported",
            SCALER,
            Warned("domain_not_imported"),
        ),
        edited(
            29,
            "Operator",
            "an operator of an unknown vendor",
            "(float[2] x) => (float[2] y) { y = com.acme.Frob(x) }",
            importing(unknown_domain),
            Refused("operator Frob of com.acme"),
        ),
        row(
            30,
            "Operator",
            "names are case-sensitive",
            "(float[2] x) => (float[2] y) { y = relu(x) }",
            Refused("operator relu"),
        ),
        edited(31, "Model.producer_name", "may be absent", RELU, |m| m.producer_name = None, Accepted),
        row(
            32,
            "Model.domain",
            "must be specified",
            RELU,
            Accepted.since("hardly any file has it, and nothing depends on it"),
        ),
        edited(33, "Model.domain", "present", RELU, |m| m.domain = Some("org.acme".into()), Accepted),
        edited(
            34,
            "Model.model_version",
            "SemVer",
            RELU,
            |m| m.model_version = Some(0x0001_0002_0000_0159),
            Accepted,
        ),
        edited(35, "Model.model_version", "a number", RELU, |m| m.model_version = Some(7), Accepted),
        edited(36, "Model.model_version", "negative", RELU, |m| m.model_version = Some(-1), Accepted),
        edited(
            37,
            "Model.doc_string",
            "Markdown, UTF-8",
            RELU,
            |m| m.doc_string = Some("# \u{e9}t\u{e9}".as_bytes().into()),
            Accepted,
        ),
        edited(38, "Model.graph", "must be there", RELU, |m| m.graph = None, Refused("no graph")),
        edited(
            39,
            "Model.metadata_props",
            "standard keys",
            RELU,
            |m| {
                m.metadata_props =
                    vec![entry("model_author", "a"), entry("model_license", "b"), entry("own", "c")];
            },
            Accepted,
        ),
        edited(
            40,
            "Model.metadata_props",
            "keys are distinct",
            RELU,
            |m| m.metadata_props = vec![entry("k", "a"), entry("k", "b")],
            Warned("metadata_keys"),
        ),
        raw(
            41,
            "Model",
            "unknown fields are skipped",
            [text::model(RELU).encode_to_vec(), vec![0xca, 0x3e, 1, 0]].concat(),
            Accepted,
        ),
        raw(42, "Model", "not a protobuf", b"hello world, no model at all".to_vec(), Refused("it is text")),
        raw(43, "Model", "an empty file", vec![], Refused("it is empty")),
    ]);
    rows
}
