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

/// With `--exact`, signs of zeros, infinities and NaN among them; but for what `python/graphs/exact.py` names.
#[test]
fn exact_results_have_the_same_bits_at_every_level() {
    let plan = Plan { kind: Kind::Exact, ..plan(48) };
    let summary = Summary::new(&run(&plan, Vec::new(), UNWATCHED).unwrap());
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{summary}");
    assert!(summary.compiled >= 30 && summary.operators.len() > 60, "{} graphs", summary.compiled);
}

#[test]
fn graphs_that_once_failed_agree() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("graphs");
    let summary = Summary::new(&replay(&plan(1), &folder).unwrap());
    assert!(summary.graphs > 0, "no graphs in {}", folder.display());
    assert!(summary.failures.is_empty(), "{summary}");
}

/// A graph at which ONNX Runtime crashes runs once more without it. A script stands for Python.
#[cfg(unix)]
#[test]
fn a_graph_runs_where_onnx_runtime_crashes() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    let script = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --first) at=$2 ;;
        --count) end=$((at + $2)) ;;
        --no-peer) alone=yes ;;
    esac
    shift
done
while [ $at -lt $end ]; do
    if [ $at = 1 ] && [ -z "$alone" ] || [ $at = 2 ]; then kill -SEGV $$; fi
    echo "{\"number\": $at, \"runs\": 7}"
    at=$((at + 1))
done
"#;
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let plan = Plan { python: Some(python), jobs: 1, ..plan(4) };
    let lines = run(&plan, Vec::new(), UNWATCHED).unwrap();
    let found: Vec<_> = lines.iter().map(|line| (line.number, line.runs, line.peer.as_str())).collect();
    assert_eq!(found, [(0, 7, ""), (1, 7, "crashes or hangs"), (2, 0, "crashes or hangs"), (3, 7, "")]);
}

/// Infinite results are held against infinite ones; 16-bit floats between nodes may be rounded or not, and nothing else.
#[test]
fn the_oracle_accepts_what_rounding_explains() {
    // Operators of com.microsoft have the schemas of ONNX Runtime.
    onnxc_tests::onnx_env::PEERS.run_script("graphs/compare_test.py", &[]).unwrap();
}
