//! Weights in files of their own: what is written, exchanged, used and refused.

use std::fs;
use std::path::Path;

use onnxc_proto::build;
use prost::Message;

use crate::{folder, onnxc};

/// `y = relu(x w + b)`, with weights of this training.
fn write_net(path: &Path, columns: i64, training: u32, operator: &str) {
    let values =
        |count: i64, first: u32| (0..count).map(move |at| ((at as u32 * 7 + first) % 11) as f32 - 5.0);
    let nodes = vec![
        build::node("MatMul", &["x", "w"], &["m"]),
        build::node("Add", &["m", "b"], &["s"]),
        build::node(operator, &["s"], &["y"]),
    ];
    let (input, output) =
        (build::f32_value("x", &["2", "3"]), build::f32_value("y", &["2", &columns.to_string()]));
    let mut graph = build::graph(vec![input], nodes, vec![output]);
    graph.initializer.push(build::f32_tensor("w", &[3, columns], values(3 * columns, training).collect()));
    graph.initializer.push(build::f32_tensor("b", &[columns], values(columns, training + 3).collect()));
    fs::write(path, build::model(20, graph).encode_to_vec()).unwrap();
}

#[test]
fn weights_are_written_exchanged_and_used() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_net(&at("net.onnx"), 5, 0, "Relu");
    write_net(&at("tuned.onnx"), 5, 4, "Relu");
    let good = |arguments: &str| {
        let run = onnxc(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{arguments}");
        run.out
    };
    let json = good("net.onnx -o net.o --weights-file net.weights --mcpu native --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let files: Vec<&str> =
        json["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files, ["net.weights", "net.h", "net.o"]);
    assert!(fs::read_to_string(at("net.h")).unwrap().contains("net_bind_weights"));
    good("net.onnx -o whole.o --mcpu native");
    assert!(!fs::read_to_string(at("whole.h")).unwrap().contains("bind_weights"));
    good("weights tuned.onnx --for net.weights -o tuned.weights");
    // Of the same kind as the first, and so a file to begin with.
    good("weights net.onnx --for tuned.weights -o again.weights");
    let constants = |name: &str| fs::read(at(name)).unwrap()[256..600].to_vec();
    assert_eq!(constants("net.weights"), constants("again.weights"));
    assert_ne!(constants("net.weights"), constants("tuned.weights"));
    for (model, file) in [("net", "net"), ("net", "again"), ("tuned", "tuned")] {
        let alone = good(&format!("run {model}.onnx --random 2"));
        assert_eq!(good(&format!("run net.onnx --random 2 --weights-file {file}.weights")), alone);
    }
    let text = good("inspect tuned.weights");
    for part in ["weights of `tuned`", "layout ", "content ", "--mcpu=native", "`b` at", "`w` at", "f32["] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for arguments in ["-o net.c", "-o libnet.a", "-o net.so"] {
        good(&format!("net.onnx {arguments} --weights-file other.weights"));
        good("weights tuned.onnx --for other.weights -o others.weights");
    }
    let bench = "bench net.onnx --seconds 0.01 --weights-file net.weights";
    assert_eq!(onnxc(folder.path(), &bench.split(' ').collect::<Vec<_>>()).code, 0);
}

#[test]
fn weights_of_other_models_are_refused() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    write_net(&at("net.onnx"), 5, 0, "Relu");
    write_net(&at("wide.onnx"), 6, 0, "Relu");
    write_net(&at("other.onnx"), 5, 0, "Sigmoid");
    let run = |arguments: &str| onnxc(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run("net.onnx -o net.o --weights-file net.weights").code, 0);
    let before = fs::read(at("net.weights")).unwrap();
    let refused = |arguments: &str, parts: &[&str]| {
        let run = run(arguments);
        assert_eq!(run.code, 2, "{arguments}: {}", run.err);
        for part in parts {
            assert!(run.err.contains(part), "{arguments}: {part}: {}", run.err);
        }
    };
    let is_not = "is not another training of the model of net.weights: ";
    refused("weights wide.onnx --for net.weights -o x.weights", &["wide.onnx", is_not, "[3, 6]", "[3, 5]"]);
    refused("weights other.onnx --for net.weights -o x.weights", &["other.onnx", is_not, "Sigmoid", "Relu"]);
    assert!(!at("x.weights").exists());
    refused("weights net.onnx --for net.onnx -o x.weights", &["net.onnx: it is not a file of weights"]);
    refused("weights net.onnx --for none.weights -o x.weights", &["none.weights"]);
    refused(
        "run wide.onnx --random 1 --weights-file net.weights",
        &["net.weights", "`net`", "`model`", "layout"],
    );
    fs::write(at("cut.weights"), &before[..before.len() / 2]).unwrap();
    refused("run net.onnx --random 1 --weights-file cut.weights", &["cut.weights", "bytes"]);
    let mut damaged = before.clone();
    damaged[300] ^= 4;
    fs::write(at("damaged.weights"), damaged).unwrap();
    refused("inspect damaged.weights", &["damaged.weights: it is damaged"]);
    refused("net.onnx -o net.wasm --weights-file x.weights", &["module of WebAssembly"]);
    refused(
        "net.onnx -o net.o --weights-file x.weights --weights-from 100000",
        &["no weights that could be apart"],
    );
    assert_ne!(run("net.onnx -o net.o --weights-file net.onnx").code, 0);
    assert_ne!(run("weights net.onnx --for net.weights -o net.onnx").code, 0);
    assert_ne!(run("net.onnx -o net.o --weights-from 8").code, 0);
    assert_eq!(fs::read(at("net.weights")).unwrap(), before);
}
