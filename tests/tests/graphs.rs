//! Random graphs: a short run, and the smallest graphs that once failed. `graphs` (the program) runs longer ones.

use std::path::Path;

use onnxc_tests::graphs::driver::{Kind, Plan, Summary, UNWATCHED, replay, run};

fn plan(count: u64) -> Plan {
    Plan {
        kind: Kind::Any,
        seed: 14,
        first: 0,
        count,
        python: None,
        keep: None,
        worker: env!("CARGO_BIN_EXE_graphs").into(),
        jobs: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        shrink: false,
    }
}

#[test]
fn random_graphs_agree_in_every_way() {
    let plan = plan(320);
    let summary = Summary::new(&run(&plan, Vec::new(), UNWATCHED).unwrap());
    println!("{summary}\n{}", summary.markdown(&plan));
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.share_fused() >= 0.8, "fusion has too little to decide: {}", summary.share_fused());
    assert!(summary.operators.len() > 100, "{} operators", summary.operators.len());
    assert!(summary.pairs.len() > 800, "{} pairs of operators", summary.pairs.len());
    let others = [summary.texts, summary.items, summary.vendor];
    assert!(others.iter().all(|&graphs| graphs >= 10), "strings, sequences, com.microsoft: {others:?}");
}

#[test]
fn quantized_models_are_off_by_a_step_at_most() {
    let plan = Plan { kind: Kind::Quantized, ..plan(120) };
    let summary = Summary::new(&run(&plan, Vec::new(), UNWATCHED).unwrap());
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.operators.len() >= 14, "{:?}", summary.operators);
}

#[test]
fn graphs_that_once_failed_agree() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("graphs");
    let summary = Summary::new(&replay(&plan(1), &folder).unwrap());
    assert!(summary.graphs > 0, "no graphs in {}", folder.display());
    assert!(summary.failures.is_empty(), "{summary}");
}

/// Infinite results are held against infinite ones; 16-bit floats between nodes may be rounded or not, and nothing else.
#[test]
fn the_oracle_accepts_what_rounding_explains() {
    // Operators of com.microsoft have the schemas of ONNX Runtime.
    onnxc_tests::onnx_env::PEERS.run_script("graphs/compare_test.py", &[]).unwrap();
}
