//! Short differential runs: drawn models of every operator against ONNX's reference, and of the operators of com.microsoft
//! against their definitions and ONNX Runtime. `differential` (the program) runs longer ones.

use std::collections::BTreeSet;

use onnxc_machine::target::Target;
use onnxc_tests::differential::{Plan, Summary, run};
use onnxc_tests::harness::Runner;

#[test]
fn drawn_models_agree_with_the_reference() {
    let plan = Plan { seed: 20, first: 0, count: 512, operator: None, python: None, keep: None };
    let runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    let results = run(&plan, &Target::host().unwrap().into(), &runner.into()).unwrap();
    let summary = Summary::new(&results);
    println!("{summary}");
    assert!(summary.passed > 300, "only {} of the cases agree", summary.passed);
    assert_eq!(summary.failures(), 0, "{summary}");
}

#[test]
fn drawn_models_of_microsoft_agree_with_definitions_and_onnx_runtime() {
    let operator = Some("com.microsoft".to_string());
    let plan = Plan { seed: 20, first: 0, count: 640, operator, python: None, keep: None };
    let runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    let results = run(&plan, &Target::host().unwrap().into(), &runner.into()).unwrap();
    let summary = Summary::new(&results);
    println!("{summary}");
    assert_eq!(summary.failures(), 0, "{summary}");
    assert!(summary.passed > 600, "only {} of the cases agree", summary.passed);
    // The definitions are right if ONNX Runtime says the same, or if it is known why it does not. What it computes depends
    // on the processor: without VNNI its sums of products saturate. A third of the operators have no kernel for it.
    assert!(summary.peer_agrees > 360, "ONNX Runtime agrees with {} results", summary.peer_agrees);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512vnni") {
        assert!(summary.peers.is_empty(), "{summary}");
    }
    let operators = onnxc::operators();
    let rows = operators.rows().filter(|row| row.domain == "com.microsoft").map(|row| row.name);
    let drawn: BTreeSet<&str> = summary.covered.iter().filter_map(|pair| pair.split('-').next()).collect();
    // Texts are not drawn: what ONNX Runtime makes of some is among the row's own tests. Of training there are its artifacts.
    let trains = |name: &str| onnxc_contrib::microsoft::training::ROWS.iter().any(|row| row.name == name);
    let rows = rows.filter(|name| *name != "Tokenizer" && !trains(name));
    let missing: Vec<&str> =
        rows.filter(|name| !drawn.contains(format!("com.microsoft.{name}").as_str())).collect();
    assert!(missing.is_empty(), "no case of {missing:?} passed");
}
