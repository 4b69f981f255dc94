//! A short run of mutated models. The long one: `cargo run --release -p onnxc-tests --bin fuzz -- --cases 200000`.

use std::process::Command;

#[test]
fn mutated_models_compile_or_are_refused() {
    // Time is for slow machines; how many cases it allows is in the output.
    let arguments = ["--cases", "6000", "--seconds", "60", "--patience", "20"];
    let run = Command::new(env!("CARGO_BIN_EXE_fuzz")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
}
