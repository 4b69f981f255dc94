//! Every triple that the Rust compiler knows is compiled for or refused in words.

use std::process::Command;

use bytes::Bytes;
use onnxc::{Options, Quiet};
use onnxc_import::NoExternalData;
use onnxc_ir::error::Kind;
use onnxc_machine::target::Target;
use onnxc_proto::build;
use prost::Message;

#[test]
fn every_triple_compiles_or_is_refused_with_what_there_is() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let list = Command::new(rustc).args(["--print", "target-list"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let model = model();
    let (mut compiled, mut refused) = (0, 0);
    for triple in list.lines() {
        match Target::parse(triple, None) {
            Ok(target) => {
                assert_compiles(&model, target, triple);
                compiled += 1;
            }
            Err(error) => {
                assert_eq!(error.kind, Kind::Usage, "{error}");
                assert!(error.message.contains(&format!("target `{triple}")), "{triple}: {error}");
                assert!(
                    error.message.contains("riscv64gc-unknown-linux-gnu and s390x-unknown-linux-gnu"),
                    "{triple}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(compiled > 40 && refused > 100, "{compiled} compiled, {refused} refused");
}

fn assert_compiles(model: &Bytes, target: Target, triple: &str) {
    let target = if target.is_source_only() { target.for_source() } else { target };
    let is_source = target.is_source;
    let options = Options::new("m", target);
    let compiled = onnxc::compile(model.clone(), &NoExternalData, &options, &mut Quiet);
    let compiled = compiled.unwrap_or_else(|errors| panic!("{triple}: {}", errors[0]));
    let mut object = Vec::new();
    if is_source {
        let outline = compiled.outline().unwrap_or_else(|error| panic!("{triple}: {error}"));
        compiled.write_source(&outline, &mut object).unwrap_or_else(|error| panic!("{triple}: {error}"));
        assert!(String::from_utf8(object).unwrap().contains("int32_t m_run("), "{triple}");
        return;
    }
    compiled
        .artifact()
        .unwrap()
        .write_object(&mut object)
        .unwrap_or_else(|error| panic!("{triple}: {error}"));
    assert!(!object.is_empty(), "{triple}");
}

/// A product with weights, and a function of its rows: code that refers to weights and to the workspace.
fn model() -> Bytes {
    let nodes = vec![build::node("MatMul", &["x", "w"], &["p"]), build::node("Softmax", &["p"], &["y"])];
    let mut graph = build::graph(
        vec![build::f32_value("x", &["rows", "4"])],
        nodes,
        vec![build::f32_value("y", &["rows", "4"])],
    );
    graph.initializer.push(build::f32_tensor("w", &[4, 4], (0..16).map(|at| at as f32).collect()));
    build::model(17, graph).encode_to_vec().into()
}
