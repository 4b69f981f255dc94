//! The hunter of cliffs: what it calls one, and a short hunt.

use onnxc_tests::onnx_env::{PEERS, target_dir};

#[test]
fn the_hunter_knows_cliffs_and_shrinks_them() {
    PEERS.run_script("cliffs/main_test.py", &[]).unwrap();
}

/// Prints what it finds. Times of a busy machine decide nothing; a case that is refused fails.
#[test]
fn a_short_hunt_refuses_nothing() {
    let folder = target_dir().join("cliffs");
    std::fs::create_dir_all(&folder).unwrap();
    let out = folder.join("cliffs.md");
    let onnxc = env!("CARGO_BIN_EXE_onnxc_driver");
    let arguments = ["--onnxc", onnxc, "--cases", "12", "--seconds", "0.002", "--no-shrinking"];
    let found = PEERS
        .run_script("cliffs/main.py", &[&arguments[..], &["--out", out.to_str().unwrap()]].concat())
        .unwrap();
    println!("{found}");
    assert!(found.contains("12 cases timed"), "{found}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), found.strip_suffix('\n').unwrap());
}
