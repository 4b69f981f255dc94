//! A build does what its features name, and refuses the rest with the feature's name.

use std::fs;
use std::process::Command;

use onnxc_proto::build;
use prost::Message;

#[test]
fn parts_that_are_left_out_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    let node = build::node("ImageDecoder", &["stream"], &["image"]);
    let stream = build::value("stream", 2, &["n"]);
    let graph = build::graph(vec![stream], vec![node], vec![build::value("image", 2, &["h", "w", "3"])]);
    let decoder = folder.path().join("decoder.onnx");
    fs::write(&decoder, build::model(20, graph).encode_to_vec()).unwrap();
    // The smallest image that decoders take: one grey pixel.
    let pixel = folder.path().join("pixel.pb");
    let bytes = b"P5 1 1 255\n\x40".to_vec();
    let tensor = onnxc_proto::TensorProto {
        dims: vec![bytes.len() as i64],
        data_type: Some(2),
        raw_data: Some(bytes.into()),
        ..Default::default()
    };
    fs::write(&pixel, tensor.encode_to_vec()).unwrap();
    let mut fast = build::node("FastGelu", &["x"], &["y"]);
    fast.domain = Some("com.microsoft".into());
    let graph =
        build::graph(vec![build::f32_value("x", &["n"])], vec![fast], vec![build::f32_value("y", &["n"])]);
    let mut model = build::model(20, graph);
    model.opset_import.push(build::opset("com.microsoft", 1));
    fs::write(folder.path().join("fast.onnx"), model.encode_to_vec()).unwrap();
    let decoder = decoder.to_str().unwrap();
    for (feature, is_in, arguments) in [
        ("manual", cfg!(feature = "manual"), &["man"][..]),
        ("manual", cfg!(feature = "manual"), &["completions", "bash"]),
        ("disasm", cfg!(feature = "disasm"), &[digits, "--emit", "asm", "-o", "-"]),
        ("contrib", cfg!(feature = "contrib"), &["check", "fast.onnx"]),
        ("images", cfg!(feature = "images"), &["run", decoder, "--input", pixel.to_str().unwrap()]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onnxc"));
        let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_in, "{arguments:?}: {text}");
        if !is_in {
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
            let named = text.contains(&format!("(feature `{feature}`)"));
            assert!(named && text.contains(&format!("--features {feature}`")), "{arguments:?}: {text}");
        }
    }
    // Compiling needs no decoder.
    let mut command = Command::new(env!("CARGO_BIN_EXE_onnxc"));
    let output = command.args([decoder, "-o", "decoder.o"]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
