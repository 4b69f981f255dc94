//! A part of the hostile models, two of each family. All of them, in a release build:
//! `cargo run --release -p onnxc-tests --bin hostile`.

use std::process::Command;

#[test]
fn hostile_models_are_compiled_or_refused_within_limits() {
    let driver = env!("CARGO_BIN_EXE_onnxc_driver");
    // Builds without optimization take several times as long.
    let arguments = ["--short", "--slack", "6", "--calibrated", "--onnxc", driver];
    let run = Command::new(env!("CARGO_BIN_EXE_hostile")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
}
