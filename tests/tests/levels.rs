//! The versions of kernels of objects for no processor in particular: each level that this machine has runs as it would on a
//! processor without the better ones, and sums of integers are the same at all of them.

#![cfg(target_arch = "x86_64")]

use std::arch::is_x86_feature_detected as has;
use std::collections::HashMap;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc::{Compiled, Options, Precision, Quiet};
use onnxc_backend::codegen::kernels::Kernels;
use onnxc_import::NoExternalData;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::build::{self, int, ints, node};
use onnxc_proto::{ModelProto, TensorProto};
use onnxc_schedule::GroupKind;
use prost::Message;

const U8: i32 = 2;
const I8: i32 = 3;
const I16: i32 = 5;
const I32: i32 = 6;

fn portable() -> Target {
    Target::new(Target::host().unwrap().triple, None).unwrap()
}

fn compile(model: &ModelProto, target: Target, opt_level: u8) -> Compiled {
    compile_as(model, Options { opt_level, ..Options::new("model", target) })
}

fn compile_as(model: &ModelProto, options: Options) -> Compiled {
    let compiled = onnxc::compile(model.encode_to_vec().into(), &NoExternalData, &options, &mut Quiet);
    compiled.unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// Whether the system lets this process use tiles, from now on: kernels that `keep` keeps run without the object's own question.
fn tiles_are_here() -> bool {
    /// Linux: saves a state of the processor for all threads of the process, from now on.
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILES: libc::c_ulong = 18;
    let has_tiles = !Target::host().unwrap().upgrades.is_empty();
    // SAFETY: the call changes what the system saves, and nothing in memory.
    has_tiles && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILES) } == 0
}

/// Whether a processor with all that a level needs is here, and the system lets this process use it.
fn is_here(level: &str) -> bool {
    let v3 = has!("avx2") && has!("fma") && has!("bmi2") && has!("f16c") && has!("lzcnt") && has!("movbe");
    let v4 =
        v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    match level {
        "x86-64" | "native" => true,
        "x86-64-v3" => v3,
        "x86-64-v3+vnni" => v3 && has!("avxvnni"),
        "x86-64-v4" => v4,
        "x86-64-v4+vnni" => v4 && has!("avx512vnni"),
        "x86-64-v4+vbmi" => v4 && has!("avx512vnni") && has!("avx512vbmi"),
        "x86-64-v4+amx" | "native+amx" => v4 && tiles_are_here(),
        _ => panic!("{level}"),
    }
}

/// Keeps of each kernel what a processor runs for which a level is the best one; gives how many are not of the baseline.
fn keep(kernels: &mut Kernels, level: usize, target: &Target) -> usize {
    let levels: Vec<&Target> = target.levels().collect();
    let mut better = 0;
    for kernel in kernels.groups.values_mut() {
        let included = |own: usize| levels[level].includes(levels[own]);
        let best = kernel.versions.iter().rposition(|version| included(version.level)).unwrap();
        let mut version = kernel.versions.swap_remove(best);
        better += usize::from(version.level > 0);
        version.level = 0;
        kernel.versions = vec![version];
    }
    for body in kernels.bodies.values_mut().flatten() {
        better += keep(body, level, target);
    }
    better
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Extremes are frequent: where sums would saturate.
    (0..count)
        .map(|_| if random.bool() { [0, 127, 128, 255][random.usize(0..4)] } else { random.u8(..) })
        .collect()
}

fn constant(name: &str, data_type: i32, dims: &[i64], seed: u64) -> TensorProto {
    let size = if data_type == I16 { 2 } else { 1 };
    let count = dims.iter().product::<i64>() as usize * size;
    TensorProto {
        name: Some(name.into()),
        data_type: Some(data_type),
        dims: dims.to_vec(),
        raw_data: Some(bytes(seed, count).into()),
        ..Default::default()
    }
}

fn tensor(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    Tensor::new(dtype, shape.to_vec(), bytes(seed, shape.iter().product()).into())
}

/// Matrix products and convolutions of bytes of both kinds, with odd sizes, zero points, groups and rows of any number.
fn products() -> ModelProto {
    let inputs = vec![
        build::value("a", U8, &["n", "67"]),
        build::value("b", I8, &["n", "64"]),
        build::value("one", U8, &["1", "130"]),
        build::value("x", U8, &["1", "32", "9", "11"]),
        build::value("s", I8, &["1", "5", "7", "8"]),
    ];
    let outputs = ["ab", "ub", "bb", "ob", "wide", "deep", "strided", "signed"];
    let convolution = |name: &'static str, inputs: &[&str], group: i64, strides: i64, pad: i64| {
        let node = node("ConvInteger", inputs, &[name]).with(int("group", group));
        node.with(ints("strides", &[strides; 2])).with(ints("pads", &[pad; 4]))
    };
    let nodes = vec![
        node("MatMulInteger", &["a", "wab", "za"], &["ab"]),
        node("MatMulInteger", &["a", "wub", "za", "zu"], &["ub"]),
        node("MatMulInteger", &["b", "wbb"], &["bb"]),
        node("MatMulInteger", &["one", "wob"], &["ob"]),
        convolution("wide", &["x", "ww", "za"], 1, 1, 1),
        convolution("deep", &["x", "wd", "za"], 32, 1, 1),
        convolution("strided", &["x", "wd", "za"], 32, 2, 0),
        convolution("signed", &["s", "ws"], 1, 1, 0),
    ];
    let typed = outputs.map(|name| build::value(name, I32, rank(name)));
    let mut graph = build::graph(inputs, nodes, typed.to_vec());
    for (name, data_type, dims, seed) in [
        ("wab", I8, &[67, 50][..], 1),
        ("wub", U8, &[67, 33], 2),
        ("wbb", I8, &[64, 96], 3),
        ("wob", I8, &[130, 70], 4),
        ("ww", I8, &[40, 32, 3, 3], 5),
        ("wd", I8, &[32, 1, 3, 3], 6),
        ("ws", I8, &[7, 5, 3, 2], 7),
        ("za", U8, &[], 8),
        ("zu", U8, &[], 9),
    ] {
        graph.initializer.push(constant(name, data_type, dims, seed));
    }
    build::model(21, graph)
}

fn rank(name: &str) -> &'static [&'static str] {
    match name {
        "ab" => &["n", "50"],
        "ub" => &["n", "33"],
        "bb" => &["n", "96"],
        "ob" => &["1", "70"],
        "wide" => &["1", "40", "9", "11"],
        "deep" => &["1", "32", "9", "11"],
        "strided" => &["1", "32", "4", "5"],
        _ => &["1", "7", "5", "7"],
    }
}

#[test]
fn integers_are_the_same_at_every_level() {
    let (model, target) = (products(), portable());
    let plain = compile(&model, target.clone(), 0).graph;
    let mut ran = vec![];
    for (at, level) in target.levels().enumerate() {
        if !is_here(&level.cpu) {
            continue;
        }
        let mut compiled = compile(&model, target.clone(), 3);
        let better = keep(&mut compiled.kernels, at, &target);
        assert_eq!(better > 0, at > 0, "{}", level.cpu);
        ran.push(level.cpu.as_str());
        let graph = compiled.graph.clone();
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        for rows in [0, 1, 3, 16, 40] {
            let inputs = [
                tensor(DType::U8, &[rows, 67], 10),
                tensor(DType::I8, &[rows, 64], 11),
                tensor(DType::U8, &[1, 130], 12),
                tensor(DType::U8, &[1, 32, 9, 11], 13),
                tensor(DType::I8, &[1, 5, 7, 8], 14),
            ];
            let wanted = interp::run(&plain, &inputs).unwrap();
            let inputs = inputs.map(Some);
            let shapes = native::output_shapes(&graph, &inputs).unwrap();
            let found = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
            for ((name, _), (found, wanted)) in graph.outputs.iter().zip(found.iter().zip(&wanted)) {
                assert_eq!(found, wanted, "{name} of {rows} rows at {}", level.cpu);
            }
        }
    }
    assert!(ran.contains(&"x86-64"), "{ran:?}");
}

/// The object itself takes a version that this processor has, and its results are those.
#[test]
fn objects_find_their_level() {
    let (model, target) = (products(), portable());
    let inputs = [
        tensor(DType::U8, &[5, 67], 20),
        tensor(DType::I8, &[5, 64], 21),
        tensor(DType::U8, &[1, 130], 22),
        tensor(DType::U8, &[1, 32, 9, 11], 23),
        tensor(DType::I8, &[1, 5, 7, 8], 24),
    ];
    let wanted = interp::run(&compile(&model, target.clone(), 0).graph, &inputs).unwrap();
    let names: Vec<String> = target.levels().map(|level| level.cpu.clone()).collect();
    let pairs = names.iter().flat_map(|least| names.iter().map(move |other| [least.clone(), other.clone()]));
    let inputs = inputs.map(Some);
    let pairs = pairs.filter(|[least, other]| is_here(least) && least != other).map(|pair| pair.to_vec());
    for levels in pairs.chain([names.clone()]) {
        // Not every pair is one of an object: that of Alder Lake and of Skylake.
        let Ok(target) = target.clone().with_levels(&levels) else { continue };
        if !is_here(&target.cpu) {
            continue;
        }
        let compiled = compile(&model, target, 3);
        let graph = compiled.graph.clone();
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        let shapes = native::output_shapes(&graph, &inputs).unwrap();
        let found = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
        assert_eq!(found, wanted, "{levels:?}");
    }
}

/// What puts bytes in any order adds versions of depthwise convolutions only, which join bytes; VNNI adds some of all products.
#[test]
fn levels_have_versions_of_what_they_add() {
    // Channels are last, as passes put them in networks.
    let inputs = vec![build::value("a", U8, &["64", "256"]), build::value("x", U8, &["1", "56", "56", "64"])];
    let outputs =
        vec![build::value("ab", I32, &["64", "128"]), build::value("y", I32, &["1", "54", "54", "64"])];
    let nodes = vec![
        node("MatMulInteger", &["a", "w"], &["ab"]),
        node("Transpose", &["x"], &["planes"]).with(ints("perm", &[0, 3, 1, 2])),
        node("ConvInteger", &["planes", "wd"], &["deep"]).with(int("group", 64)),
        node("Transpose", &["deep"], &["y"]).with(ints("perm", &[0, 2, 3, 1])),
    ];
    let mut graph = build::graph(inputs, nodes, outputs);
    graph.initializer.push(constant("w", I8, &[256, 128], 1));
    graph.initializer.push(constant("wd", I8, &[64, 1, 3, 3], 2));
    let target = portable();
    let names: Vec<String> = target.levels().map(|level| level.cpu.clone()).collect();
    let compiled = compile(&build::model(21, graph), target, 3);
    let levels = |kind: GroupKind| -> Vec<&str> {
        let groups = compiled.program.groups.iter().filter(|(_, group)| group.kind == kind);
        let versions = groups.flat_map(|(group, _)| &compiled.kernels.groups[group].versions);
        versions.map(|version| names[version.level].as_str()).collect()
    };
    let products = levels(GroupKind::Contract);
    assert_eq!(
        products,
        ["x86-64", "x86-64-v3", "x86-64-v3+vnni", "x86-64-v4", "x86-64-v4+vnni", "x86-64-v4+amx"]
    );
    assert_eq!(levels(GroupKind::Reduce), ["x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4+vbmi"]);
}

const F32: i32 = 1;

/// Attention of some heads, with a mask that is added or without, of `n` rows and keys or of an open number. `all`: the weights are a
/// result as well.
fn attention(heads: usize, n: Option<usize>, masked: bool, all: bool) -> ModelProto {
    let (heads, n) = (heads.to_string(), n.map_or("n".to_string(), |n| n.to_string()));
    let (heads, n) = (heads.as_str(), n.as_str());
    let mut inputs = vec![
        build::value("q", F32, &["1", heads, n, "64"]),
        build::value("k", F32, &["1", heads, "64", n]),
        build::value("v", F32, &["1", heads, n, "64"]),
    ];
    let mut nodes = vec![node("MatMul", &["q", "k"], &["scores"])];
    if masked {
        inputs.push(build::value("mask", F32, &[n, n]));
        nodes.push(node("Add", &["scores", "mask"], &["masked"]));
    }
    let scores = if masked { "masked" } else { "scores" };
    nodes.push(node("Softmax", &[scores], &["weights"]).with(int("axis", -1)));
    nodes.push(node("MatMul", &["weights", "v"], &["y"]));
    let mut outputs = vec![build::value("y", F32, &["1", heads, n, "64"])];
    if all {
        outputs.push(build::value("weights", F32, &["1", heads, n, n]));
    }
    build::model(21, build::graph(inputs, nodes, outputs))
}

fn floats(shape: &[usize], seed: u64) -> Tensor {
    let mut random = fastrand::Rng::with_seed(seed);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.f32() * 2.0 - 1.0).collect();
    Tensor::from_slice(shape, &values)
}

/// Convolutions with normalizations of groups and of channels behind them, of images of any size.
fn normalizations() -> ModelProto {
    let image = |channels: &'static str| ["n", channels, "h", "w"];
    let convolution = |inputs: &[&str], name: &'static str| node("Conv", inputs, &[name]);
    let nodes = vec![
        convolution(&["x", "first"], "a"),
        node("GroupNormalization", &["a", "scale", "shift"], &["b"]).with(int("num_groups", 8)),
        convolution(&["b", "second"], "c"),
        node("InstanceNormalization", &["c", "own", "shifts"], &["d"]),
        convolution(&["d", "third"], "y"),
    ];
    let inputs = vec![build::value("x", F32, &image("9"))];
    let mut graph = build::graph(inputs, nodes, vec![build::value("y", F32, &image("5"))]);
    for (name, dims, seed) in [
        ("first", &[40, 9, 1, 1][..], 1),
        ("second", &[19, 40, 1, 1], 2),
        ("third", &[5, 19, 1, 1], 3),
        ("scale", &[40], 4),
        ("shift", &[40], 5),
        ("own", &[19], 6),
        ("shifts", &[19], 7),
    ] {
        let values = floats(&dims.iter().map(|&dim| dim as usize).collect::<Vec<_>>(), seed);
        graph.initializer.push(TensorProto {
            name: Some(name.into()),
            data_type: Some(F32),
            dims: dims.to_vec(),
            raw_data: Some(values.data.to_vec().into()),
            ..Default::default()
        });
    }
    build::model(21, graph)
}

/// Deviations row by row, at each level: of images of one pixel and of none, and of those whose mean is far from zero.
#[test]
fn normalizations_of_images_at_every_level() {
    let (model, target) = (normalizations(), portable());
    let plain = compile(&model, target.clone(), 0).graph;
    let mut ran = 0;
    for (at, level) in target.levels().enumerate() {
        if !is_here(&level.cpu) {
            continue;
        }
        let mut compiled = compile(&model, target.clone(), 3);
        keep(&mut compiled.kernels, at, &target);
        let graph = compiled.graph.clone();
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        for (images, height, width, shift) in [
            (1, 33, 20, 0.0),
            (2, 5, 67, 100.0),
            (1, 1, 1, 0.0),
            (1, 1, 300, 3.0),
            (1, 0, 4, 0.0),
            (3, 2, 0, 0.0),
        ] {
            let sizes = [images, 9, height, width];
            let mut random = fastrand::Rng::with_seed(9);
            let count = sizes.iter().product();
            let values: Vec<f32> = (0..count).map(|_| random.f32() * 2.0 + shift).collect();
            let inputs = [Tensor::from_slice(&sizes, &values)];
            let wanted = interp::run(&plain, &inputs).unwrap()[0].to_f64s().unwrap();
            let inputs = inputs.map(Some);
            let shapes = native::output_shapes(&graph, &inputs).unwrap();
            let found = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
            let found = found[0].to_f64s().unwrap();
            assert_eq!(found.len(), wanted.len());
            for (found, wanted) in found.into_iter().zip(wanted) {
                let near = (found - wanted).abs() <= 2e-3 * wanted.abs().max(1.0);
                assert!(near, "{found} for {wanted}: {sizes:?} at {}", level.cpu);
            }
        }
        ran += 1;
    }
    assert!(ran > 0);
}

/// Two convolutions whose results are joined, and a pooling in a border: both are read by further convolutions only.
fn poolings() -> ModelProto {
    let padded =
        |inputs: &[&str], name: &'static str| node("Conv", inputs, &[name]).with(ints("pads", &[1; 4]));
    let nodes = vec![
        padded(&["x", "first"], "a"),
        node("Relu", &["a"], &["b"]),
        padded(&["x", "second"], "c"),
        node("Concat", &["b", "c"], &["d"]).with(int("axis", 1)),
        node("MaxPool", &["d"], &["e"])
            .with(ints("kernel_shape", &[3; 2]))
            .with(ints("strides", &[2; 2]))
            .with(ints("pads", &[1; 4])),
        padded(&["e", "third"], "pooled"),
        node("Conv", &["d", "fourth"], &["whole"]),
    ];
    let results = vec![
        build::value("pooled", F32, &["n", "9", "p", "q"]),
        build::value("whole", F32, &["n", "16", "h", "w"]),
    ];
    let mut graph = build::graph(vec![build::value("x", F32, &["n", "16", "h", "w"])], nodes, results);
    for (name, dims, seed) in [
        ("first", [24, 16, 3, 3], 1),
        ("second", [33, 16, 3, 3], 2),
        ("third", [9, 57, 3, 3], 3),
        ("fourth", [16, 57, 1, 1], 4),
    ] {
        graph.initializer.push(TensorProto {
            name: Some(name.into()),
            data_type: Some(F32),
            dims: dims.to_vec(),
            raw_data: Some(floats(&dims.map(|dim| dim as usize), seed).data.to_vec().into()),
            ..Default::default()
        });
    }
    build::model(21, graph)
}

/// What only products of bf16 read is stored as bf16, at each level: up to sums that round to a neighbour, results are those of rounding
/// at each product.
#[test]
fn results_that_products_read_are_rounded_at_every_level() {
    let model = poolings();
    let mut ran = 0;
    for target in [portable(), Target::host().unwrap()] {
        let options = || Options { precision: Precision::Bf16, ..Options::new("model", target.clone()) };
        let plain = compile_as(&model, Options { opt_level: 0, ..options() }).graph;
        // First as it is, then each level by itself.
        let levels = target.levels().map(|level| level.cpu.as_str()).enumerate();
        for (at, cpu) in std::iter::once((None, "all")).chain(levels.map(|(at, cpu)| (Some(at), cpu))) {
            if at > Some(0) && !is_here(cpu) {
                continue;
            }
            let mut compiled = compile_as(&model, options());
            if let Some(at) = at {
                keep(&mut compiled.kernels, at, &target);
            }
            let graph = compiled.graph.clone();
            let loaded = Loaded::new(compiled, Instant::now()).unwrap();
            for [images, height, width] in [[1, 17, 20], [2, 1, 5], [1, 9, 64], [0, 4, 4]] {
                let inputs = [floats(&[images, 16, height, width], 9)];
                let wanted = interp::run(&plain, &inputs).unwrap();
                let inputs = inputs.map(Some);
                let shapes = native::output_shapes(&graph, &inputs).unwrap();
                let found = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
                for (found, wanted) in found.iter().zip(&wanted) {
                    let (found, wanted) = (found.to_f64s().unwrap(), wanted.to_f64s().unwrap());
                    assert_eq!(found.len(), wanted.len());
                    let most = wanted.iter().fold(0f64, |most, value| most.max(value.abs())) * 2f64.powi(-8);
                    let off = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(off <= most, "{off} for {most}: {height} x {width} at {cpu}");
                }
            }
            ran += 1;
        }
    }
    assert!(ran > 1, "{ran}");
}

/// Ones below the diagonal and on it can be read; minus infinity is what others get.
fn causal(n: usize) -> Tensor {
    let value = |at: usize| if at % n > at / n { f32::NEG_INFINITY } else { 0.0 };
    Tensor::from_slice(&[n, n], &(0..n * n).map(value).collect::<Vec<_>>())
}

/// Attention of bf16 as one kernel: what the graph says, but for weights that round to a neighbour, at each level and by the tiles of
/// this processor; of sizes that fill blocks and tiles or do not.
#[test]
fn attention_of_bf16_is_the_same_at_every_level() {
    let cases = [
        (4, Some(161), false, false, &[161][..]),
        (3, Some(288), true, false, &[288]),
        (2, None, false, false, &[0, 1, 2, 16, 33, 70]),
        // Something else reads the weights.
        (3, None, true, true, &[1, 31, 64, 100]),
    ];
    for (heads, n, masked, all, sizes) in cases {
        let model = attention(heads, n, masked, all);
        let mut ran = 0;
        for target in [portable(), Target::host().unwrap()] {
            let mut expected: HashMap<usize, Vec<Tensor>> = HashMap::new();
            // First as it is, then each level by itself.
            let levels = target.levels().map(|level| level.cpu.as_str()).enumerate();
            for (at, cpu) in std::iter::once((None, "all")).chain(levels.map(|(at, cpu)| (Some(at), cpu))) {
                if at > Some(0) && !is_here(cpu) {
                    continue;
                }
                let options = Options { precision: Precision::Bf16, ..Options::new("model", target.clone()) };
                let mut compiled = compile_as(&model, options);
                if let Some(at) = at {
                    keep(&mut compiled.kernels, at, &target);
                }
                let graph = compiled.graph.clone();
                let loaded = Loaded::new(compiled, Instant::now()).unwrap();
                for &n in sizes {
                    let heads = [1, heads];
                    let of = |rest: &[usize], seed| floats(&[&heads[..], rest].concat(), seed);
                    let mut inputs = vec![of(&[n, 64], 1), of(&[64, n], 2), of(&[n, 64], 3)];
                    if masked {
                        inputs.push(causal(n));
                    }
                    let wanted = expected.entry(n).or_insert_with(|| interp::run(&graph, &inputs).unwrap());
                    let inputs: Vec<_> = inputs.into_iter().map(Some).collect();
                    let shapes = native::output_shapes(&graph, &inputs).unwrap();
                    let found =
                        loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap();
                    for (found, wanted) in found.iter().zip(wanted.iter()) {
                        let (found, wanted) = (found.to_f64s().unwrap(), wanted.to_f64s().unwrap());
                        assert_eq!(found.len(), wanted.len());
                        let off = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                        assert!(off <= 2f64.powi(-8), "{off} for {n} rows, {heads:?}, at {cpu}");
                    }
                }
                ran += 1;
            }
        }
        assert!(ran > 1, "{ran}");
    }
}
