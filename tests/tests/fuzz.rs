//! A short run of mutated models. The long one: `cargo run --release -p onnxc-tests --bin fuzz -- --cases 200000`.

use std::process::Command;

#[test]
fn mutated_models_compile_or_are_refused() {
    let arguments = ["--cases", "3000", "--patience", "30"];
    let run = Command::new(env!("CARGO_BIN_EXE_fuzz")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
}
