//! Models give the same bits for any number of threads: the digits example, random products and convolutions, and
//! the real models where the folder with them exists beside the repository.

use std::path::{Path, PathBuf};
use std::time::Instant;

use onnxc::cli::data;
use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::Tensor;
use onnxc_proto::ModelProto;
use onnxc_proto::build::{self, f32_value, ints, node};
use onnxc_runtime_support::Pool;
use onnxc_tests::compile::compile;
use onnxc_tests::suite;
use prost::Message;

/// Numbers of threads compared with the caller's alone: that of parts of small loops, more, and one that divides nothing.
const THREADS: [usize; 3] = [2, 3, 7];

/// Runs a model on pools of several sizes; `None` if it does not compile.
fn same_bits(model: &Path) -> Option<()> {
    let start = Instant::now();
    let loaded = Loaded::new(compile(model, "model").ok()?, start).unwrap();
    let graph = &loaded.graph;
    let folder = model.parent().unwrap();
    let from_set = data::test_sets(folder).first().and_then(|set| data::test_set(graph, set).ok());
    let inputs = from_set.map(|(inputs, _)| inputs).unwrap_or_else(|| {
        let mut inputs = vec![None; graph.inputs.len()];
        data::fill_randomly(graph, &mut inputs, &[], 7).unwrap();
        inputs
    });
    let shapes = native::output_shapes(graph, &inputs).unwrap();
    let run = |pool: Option<&Pool>| -> Vec<Tensor> {
        // Fresh buffers each time: what a thread left out would show.
        let mut prepared = loaded.model().unwrap().prepare(&inputs, &shapes).unwrap();
        prepared.run(&Call { pool, ..Call::default() }).unwrap();
        prepared.check_guards().unwrap();
        prepared.outputs().unwrap()
    };
    let alone = run(None);
    for threads in THREADS {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..3 {
            assert!(run(Some(&pool)) == alone, "{}: {threads} threads", model.display());
        }
    }
    Some(())
}

#[test]
fn the_example() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    same_bits(&model).unwrap();
}

#[test]
fn real_models() {
    let Some(root) = suite::models_folder() else { return };
    let mut models: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path().join("model.onnx")).collect();
    models.retain(|model| model.exists());
    let same = models.iter().filter_map(|model| same_bits(model)).count();
    assert!(same >= 20, "{same} models ran");
}

/// Runs of each model in the test below: a few here, 10,000 as in tests/README.md.
fn runs() -> usize {
    std::env::var("ONNXC_THREAD_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(160)
}

/// Eight threads run one model at once, with pools of 1, 2, 3 and 8 threads: half of them share a pool, each of the
/// others has one of its own.
fn same_bits_at_once(model: &Path) {
    const CALLERS: usize = 8;
    let loaded = Loaded::new(compile(model, "model").unwrap(), Instant::now()).unwrap();
    let graph = &loaded.graph;
    let mut inputs = vec![None; graph.inputs.len()];
    data::fill_randomly(graph, &mut inputs, &[], 11).unwrap();
    let shapes = native::output_shapes(graph, &inputs).unwrap();
    let run = |pool: Option<&Pool>, times: usize, expected: Option<&[Tensor]>| -> Vec<Tensor> {
        let mut prepared = loaded.model().unwrap().prepare(&inputs, &shapes).unwrap();
        for _ in 0..times {
            prepared.run(&Call { pool, ..Call::default() }).unwrap();
            let outputs = prepared.outputs().unwrap();
            assert!(expected.is_none_or(|expected| outputs == expected), "{}", model.display());
        }
        prepared.check_guards().unwrap();
        prepared.outputs().unwrap()
    };
    let alone = run(None, 1, None);
    for threads in [1, 2, 3, 8] {
        let shared = Pool::new(threads).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (shared, alone, run) = (&shared, &alone, &run);
                scope.spawn(move || {
                    let own = (caller % 2 == 1).then(|| Pool::new(threads).unwrap());
                    run(Some(own.as_ref().unwrap_or(shared)), runs().div_ceil(4 * CALLERS), Some(alone));
                });
            }
        });
    }
}

#[test]
fn eight_threads_at_once() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    same_bits_at_once(&digits);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    let model = random_model(&mut fastrand::Rng::with_seed(5));
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    same_bits_at_once(&path);
}

/// A convolution of few or many channels, a pooling and a padding joined with its like, a product with a softmax.
fn random_model(random: &mut fastrand::Rng) -> ModelProto {
    let (channels, filters) = (random.i64(1..9), random.i64(1..70));
    let (height, width) = (random.i64(20..60), random.i64(20..60));
    let columns = random.i64(1..90);
    let weight = |name: &str, dims: &[i64], random: &mut fastrand::Rng| {
        build::f32_tensor(name, dims, (0..dims.iter().product()).map(|_| random.f32() - 0.5).collect())
    };
    let size = random.i64(0..2) * 2 + 1;
    let kernel = weight("w", &[filters, channels, size, size], random);
    let product = weight("m", &[width, columns], random);
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]).with(ints("pads", &[size / 2; 4])),
        node("MaxPool", &["c"], &["p"]).with(ints("kernel_shape", &[3, 3])).with(ints("pads", &[1; 4])),
        node("Concat", &["p", "c"], &["j"]).with(build::int("axis", 1)),
        node("MatMul", &["j", "m"], &["t"]),
        node("Softmax", &["t"], &["y"]),
    ];
    let x = f32_value("x", &[1, channels, height, width]);
    let y = f32_value("y", &[1, 2 * filters, height, columns]);
    let mut graph = build::graph(vec![x], nodes, vec![y]);
    graph.initializer = vec![kernel, product];
    build::model(17, graph)
}

#[test]
fn random_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    for seed in 0..12 {
        let model = random_model(&mut fastrand::Rng::with_seed(seed));
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        assert!(same_bits(&path).is_some(), "seed {seed}: {:?}", compile(&path, "model").err());
    }
}
