//! Memory that compiling takes, in bytes of the heap: large models must fit the machines that compile them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, ModelProto, build};

/// The system's allocator with a meter.
struct Metered;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Metered = Metered;

fn taken(bytes: usize) {
    PEAK.fetch_max(USED.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every block comes from the system's allocator and goes back to it with the layout it came with.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }

    // The system moves large blocks without a copy: only what is added counts.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        USED.fetch_sub(layout.size(), Relaxed);
        taken(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// A regressor of trees with 256 leaves each, as LightGBM's exporter writes it: all numbers and votes differ.
fn forest(trees: i64) -> ModelProto {
    const LEAVES: i64 = 256;
    let nodes = || (0..trees).flat_map(|tree| (0..2 * LEAVES - 1).map(move |node| (tree, node)));
    let leaves = || nodes().filter(|&(_, node)| node >= LEAVES - 1);
    let ints = |name: &str, of: &dyn Fn(i64, i64) -> i64| {
        build::ints(name, &nodes().map(|(tree, node)| of(tree, node)).collect::<Vec<_>>())
    };
    let of_leaves = |name: &str, of: &dyn Fn(i64, i64) -> i64| {
        build::ints(name, &leaves().map(|(tree, node)| of(tree, node)).collect::<Vec<_>>())
    };
    let floats = |name: &str, values: Vec<f32>| AttributeProto {
        floats: values,
        ..build::attribute(name, AttributeType::Floats)
    };
    let is_leaf = |node: i64| node >= LEAVES - 1;
    let below = |side: i64| move |_, node| if is_leaf(node) { 0 } else { 2 * node + side };
    let number = |tree: i64, node: i64| (tree * 2 * LEAVES + node) as f32;
    let modes = AttributeProto {
        strings: nodes().map(|(_, node)| if is_leaf(node) { "LEAF" } else { "BRANCH_LEQ" }.into()).collect(),
        ..build::attribute("nodes_modes", AttributeType::Strings)
    };
    let mut node = build::node("TreeEnsembleRegressor", &["x"], &["y"])
        .with(ints("nodes_treeids", &|tree, _| tree))
        .with(ints("nodes_nodeids", &|_, node| node))
        .with(ints("nodes_featureids", &|_, node| node % 28))
        .with(ints("nodes_truenodeids", &below(1)))
        .with(ints("nodes_falsenodeids", &below(2)))
        .with(ints("nodes_missing_value_tracks_true", &|_, node| node % 2))
        .with(floats("nodes_values", nodes().map(|(tree, node)| number(tree, node)).collect()))
        .with(floats("nodes_hitrates", nodes().map(|_| 1.0).collect()))
        .with(modes)
        .with(of_leaves("target_treeids", &|tree, _| tree))
        .with(of_leaves("target_nodeids", &|_, node| node))
        .with(of_leaves("target_ids", &|_, _| 0))
        .with(floats("target_weights", leaves().map(|(tree, node)| number(tree, node)).collect()))
        .with(build::int("n_targets", 1));
    node.domain = Some("ai.onnx.ml".into());
    let x = build::f32_value("x", &["n", "28"]);
    let mut model =
        build::model(17, build::graph(vec![x], vec![node], vec![build::f32_value("y", &["n", "1"])]));
    model.opset_import.push(build::opset("ai.onnx.ml", 3));
    model
}

/// LightGBM models of 4.8 million nodes are used. A node takes about 100 bytes decoded, and copies of the lists, maps with nodes as keys
/// or blocks of the heap per node or leaf take more than are left.
#[test]
fn trees_take_bytes_per_node() {
    let trees = 400;
    let nodes = trees * 511;
    let bytes = bytes::Bytes::from(onnxc_proto::encode(&forest(trees as i64)));
    let options = onnxc::Options::new("trees", onnxc_tests::object::host());
    let before = USED.load(Relaxed);
    PEAK.store(before, Relaxed);
    let front = onnxc::frontend(bytes, &onnxc_import::NoExternalData, &options, &mut onnxc::Quiet).unwrap();
    let each = (PEAK.load(Relaxed) - before) / nodes;
    println!("{each} bytes a node");
    drop(front);
    assert!(each < 220, "{each} bytes a node");
}
