//! A short differential run: drawn models of every operator against ONNX's reference. `differential` (the program) runs
//! longer ones.

use onnxc::target::Target;
use onnxc_tests::differential::{Plan, Summary, run};
use onnxc_tests::harness::Runner;

#[test]
fn drawn_models_agree_with_the_reference() {
    let plan = Plan { seed: 20, first: 0, count: 512, operator: None, python: None, keep: None };
    let runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    let results = run(&plan, &Target::host().unwrap().into(), &runner).unwrap();
    let summary = Summary::new(&results);
    println!("{summary}");
    assert!(summary.passed > 300, "only {} of the cases agree", summary.passed);
    assert_eq!(summary.failures(), 0, "{summary}");
}
