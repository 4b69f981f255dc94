//! What ranks send, counted by the communicator of threads, against the formula that `onnxc inspect` prints.

use std::collections::HashMap;

use onnxc::native::{self, Call};
use onnxc::{Compiled, Grid, Options, Quiet, ShardOptions};
use onnxc_import::state::Choice;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{DType, Dim, Graph, Tensor};
use onnxc_machine::target::Target;
use onnxc_partition::{Holding, partition};
use onnxc_proto::build::{self, f32_value, int, ints, node};
use onnxc_proto::{ModelProto, NodeProto, TensorProto};
use onnxc_runtime_support::ranks::World;
use onnxc_tests::measure::HANG;
use prost::Message;

use super::{close, convolutions, load, numbers, on_all, tensor};

/// A net, and what runs of it take.
struct Net {
    name: &'static str,
    model: ModelProto,
    state: Choice,
    runs: Vec<Run>,
    /// Whether the first axis is that of a batch.
    batch: bool,
}

struct Run {
    inputs: Vec<Tensor>,
    /// The sizes that symbols have.
    sizes: Vec<(&'static str, i64)>,
}

fn weight(name: &str, dims: &[i64], seed: u64) -> TensorProto {
    let values = numbers(dims.iter().product::<i64>() as usize, seed);
    build::f32_tensor(name, dims, values.into_iter().map(|value| 0.3 * value).collect())
}

/// Sentences through an encoder as MiniLM has it: two layers of four heads, layer normalization behind each half.
fn encoder(sentences: &[usize]) -> Net {
    let length = 10;
    const WIDE: i64 = 16;
    let mut nodes: Vec<NodeProto> =
        vec![node("Gather", &["table", "ids"], &["e"]), node("Add", &["e", "places"], &["r0"])];
    let mut weights = vec![
        weight("table", &[23, WIDE], 1),
        weight("places", &[length as i64, WIDE], 2),
        build::i64_tensor("split", &[4], vec![0, 0, 4, WIDE / 4]),
        build::i64_tensor("join", &[3], vec![0, 0, WIDE]),
        build::f32_tensor("half", &[], vec![0.5]),
        build::f32_tensor("one", &[], vec![1.0]),
        build::f32_tensor("root", &[], vec![0.707_106_77]),
    ];
    for layer in 0..2 {
        let own = |name: &str| format!("{name}{layer}");
        let mut add = |op: &str, inputs: &[&str], output: &str| {
            let inputs: Vec<&str> = inputs.to_vec();
            nodes.push(node(op, &inputs, &[output]));
            nodes.len() - 1
        };
        let before = own("r");
        for (at, name) in ["q", "k", "v"].into_iter().enumerate() {
            let [product, sum, split, heads] =
                ["_p", "_s", "_h", ""].map(|suffix| own(&format!("{name}{suffix}_")));
            let (matrix, bias) = (own(&format!("w{name}")), own(&format!("b{name}")));
            add("MatMul", &[&before, &matrix], &product);
            add("Add", &[&product, &bias], &sum);
            add("Reshape", &[&sum, "split"], &split);
            add("Transpose", &[&split], &heads);
            weights.push(weight(&matrix, &[WIDE, WIDE], (10 * layer + at as i64 + 3) as u64));
            weights.push(weight(&bias, &[WIDE], (10 * layer + at as i64 + 30) as u64));
        }
        let [q, k, v] = ["q_", "k_", "v_"].map(own);
        add("Transpose", &[&k], &own("kt"));
        add("MatMul", &[&q, &own("kt")], &own("scores"));
        add("Softmax", &[&own("scores")], &own("shares"));
        add("MatMul", &[&own("shares"), &v], &own("mixed"));
        add("Transpose", &[&own("mixed")], &own("back"));
        add("Reshape", &[&own("back"), "join"], &own("joined"));
        add("MatMul", &[&own("joined"), &own("wo")], &own("o"));
        add("Add", &[&before, &own("o")], &own("a"));
        add("LayerNormalization", &[&own("a"), &own("scale_a"), &own("bias_a")], &own("n"));
        add("MatMul", &[&own("n"), &own("w1")], &own("h0"));
        add("Add", &[&own("h0"), &own("b1")], &own("h1"));
        // Gelu, as it is exported.
        add("Mul", &[&own("h1"), "root"], &own("g0"));
        add("Erf", &[&own("g0")], &own("g1"));
        add("Add", &[&own("g1"), "one"], &own("g2"));
        add("Mul", &[&own("h1"), &own("g2")], &own("g3"));
        add("Mul", &[&own("g3"), "half"], &own("h"));
        add("MatMul", &[&own("h"), &own("w2")], &own("m"));
        add("Add", &[&own("n"), &own("m")], &own("b"));
        let result = if layer == 1 { "y".to_string() } else { "r1".to_string() };
        add("LayerNormalization", &[&own("b"), &own("scale_b"), &own("bias_b")], &result);
        let seed = 50 + 10 * layer as u64;
        weights.extend([
            weight(&own("wo"), &[WIDE, WIDE], seed),
            weight(&own("w1"), &[WIDE, 4 * WIDE], seed + 1),
            weight(&own("b1"), &[4 * WIDE], seed + 2),
            weight(&own("w2"), &[4 * WIDE, WIDE], seed + 3),
            weight(&own("scale_a"), &[WIDE], seed + 4),
            weight(&own("bias_a"), &[WIDE], seed + 5),
            weight(&own("scale_b"), &[WIDE], seed + 6),
            weight(&own("bias_b"), &[WIDE], seed + 7),
        ]);
    }
    for node in &mut nodes {
        if node.op_type() == "Transpose" {
            let perm: &[i64] = if node.output[0].starts_with("kt") { &[0, 1, 3, 2] } else { &[0, 2, 1, 3] };
            *node = node.clone().with(ints("perm", perm));
        }
        if node.op_type() == "LayerNormalization" || node.op_type() == "Softmax" {
            *node = node.clone().with(int("axis", -1));
        }
    }
    let ids = build::value("ids", DType::I64.to_onnx(), &["n".to_string(), length.to_string()]);
    let y = f32_value("y", &["n".to_string(), length.to_string(), WIDE.to_string()]);
    let mut graph = build::graph(vec![ids], nodes, vec![y]);
    graph.initializer = weights;
    let run = |&count: &usize| {
        let tokens: Vec<i64> = (0..count * length).map(|at| (at * 7 % 23) as i64).collect();
        let inputs = vec![Tensor::from_slice(&[count, length], &tokens)];
        Run { inputs, sizes: vec![("n", count as i64)] }
    };
    Net {
        name: "encoder",
        model: build::model(17, graph),
        state: Choice::default(),
        runs: sentences.iter().map(run).collect(),
        batch: true,
    }
}

/// Tokens through a decoder of two blocks with caches, to logits of a vocabulary.
fn decoder(new: &[usize]) -> Net {
    let (heads, wide) = (4, 4);
    let mut nodes = vec![node("Gather", &["table", "ids"], &["x"])];
    let mut weights = vec![weight("table", &[24, wide], 7), weight("head", &[wide, 24], 8)];
    let cache = |name: &str, length: &str| f32_value(name, &["1", &heads.to_string(), length, "4"]);
    let mut inputs = vec![build::value("ids", DType::I64.to_onnx(), &["1", "new"])];
    let mut outputs = vec![f32_value("logits", &["1", "new", "24"])];
    for layer in 0..2 {
        let of = |name: &str| match name {
            "x" if layer == 0 => "x".to_string(),
            "x" => "y.0".to_string(),
            name => match name.split_once('.') {
                Some((time, kind)) => format!("{time}.{layer}.{kind}"),
                None => format!("{name}.{layer}"),
            },
        };
        let (more, tensors) = super::block(heads);
        nodes.extend(more.into_iter().map(|mut node| {
            node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = of(name));
            node
        }));
        weights.extend(tensors.into_iter().map(|mut tensor| {
            tensor.name = Some(of(tensor.name()));
            tensor
        }));
        for kind in ["key", "value"] {
            inputs.push(cache(&of(&format!("past.{kind}")), "past"));
            outputs.push(cache(&of(&format!("present.{kind}")), "all"));
        }
    }
    nodes.push(node("MatMul", &["y.1", "head"], &["logits"]));
    let mut graph = build::graph(inputs, nodes, outputs);
    graph.initializer = weights;
    let run = |&new: &usize| {
        let tokens: Vec<i64> = (0..new).map(|at| (at * 5 % 24) as i64).collect();
        let inputs = vec![Tensor::from_slice(&[1, new], &tokens)];
        Run { inputs, sizes: vec![("new", new as i64), ("past", 0)] }
    };
    Net {
        name: "decoder",
        model: build::model(17, graph),
        state: Choice::parse(&["auto".to_string()], None).unwrap(),
        runs: new.iter().map(run).collect(),
        batch: false,
    }
}

fn convolutional(images: &[usize]) -> Net {
    let mut model = convolutions(&|_| {}, 1);
    model.configuration.clear();
    Net {
        name: "convolutions",
        model,
        state: Choice::default(),
        runs: images
            .iter()
            .map(|&images| Run {
                inputs: vec![tensor(&[images, 3, 9, 7], 5)],
                sizes: vec![("n", images as i64)],
            })
            .collect(),
        batch: true,
    }
}

/// A mixture of four experts, each with two layers, by the two best of a router.
fn mixture(rows: &[usize]) -> Net {
    let nodes = vec![
        node("MatMul", &["x", "router"], &["scores"]),
        node("Softmax", &["scores"], &["all"]).with(int("axis", -1)),
        node("TopK", &["all", "two"], &["best", "which"]).with(int("axis", -1)),
        node("ReduceMin", &["best"], &["least"]).with(ints("axes", &[-1])),
        node("GreaterOrEqual", &["all", "least"], &["chosen"]),
        node("Where", &["chosen", "all", "none"], &["gates"]),
        node("Transpose", &["gates"], &["columns"]).with(ints("perm", &[1, 0])),
        node("Unsqueeze", &["columns", "last"], &["factors"]),
        node("MatMul", &["x", "w1"], &["h0"]),
        node("Relu", &["h0"], &["h"]),
        node("MatMul", &["h", "w2"], &["m"]),
        node("Mul", &["m", "factors"], &["weighed"]),
        node("ReduceSum", &["weighed", "first"], &["y"]).with(int("keepdims", 0)),
    ];
    let mut graph = build::graph(vec![f32_value("x", &["n", "8"])], nodes, vec![f32_value("y", &["n", "8"])]);
    graph.initializer = vec![
        weight("router", &[8, 4], 1),
        weight("w1", &[4, 8, 12], 2),
        weight("w2", &[4, 12, 8], 3),
        build::f32_tensor("none", &[], vec![0.0]),
        build::i64_tensor("two", &[1], vec![2]),
        build::i64_tensor("last", &[1], vec![2]),
        build::i64_tensor("first", &[1], vec![0]),
    ];
    Net {
        name: "mixture",
        model: build::model(17, graph),
        state: Choice::default(),
        runs: rows
            .iter()
            .map(|&rows| Run { inputs: vec![tensor(&[rows, 8], 6)], sizes: vec![("n", rows as i64)] })
            .collect(),
        batch: true,
    }
}

/// Runs a net on a grid of ranks; what each exchanges.
fn check(net: &Net, grid: Grid) -> Vec<Vec<&'static str>> {
    let (ranks, about) = (grid.ranks(), format!("{} as {grid:?}", net.name));
    let options = ShardOptions { name: "ranks".into(), grid, shard_optimizer: false };
    let bytes = net.model.encode_to_vec();
    let sharded = onnxc::shard(bytes.into(), &NoExternalData, &options).unwrap();
    let own = ImportOptions {
        state: net.state.clone(),
        configuration: Some("ranks".into()),
        ..ImportOptions::default()
    };
    // The formula, as a program that prints it has it.
    let proto = ModelProto::decode(sharded.model.as_slice()).unwrap();
    let imported = import(&proto, &own, &NoExternalData, onnxc::operators()).unwrap();
    let parts = partition(&imported.graph, &imported.devices.unwrap()).unwrap();
    let holdings: Vec<(&Graph, Holding)> =
        parts.graphs.iter().map(|graph| (graph, Holding::of(graph).unwrap())).collect();
    let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
    let plain = ImportOptions { configuration: None, state: Choice::default(), ..own.clone() };
    let compile = |import: &ImportOptions, rank: Option<usize>| -> Compiled {
        let options = Options { import: import.clone(), rank, ..Options::new("model", target.clone()) };
        onnxc::compile(sharded.model.clone().into(), &NoExternalData, &options, &mut Quiet).unwrap()
    };
    let whole = compile(&plain, None);
    let whole_graph = whole.graph.clone();
    let whole = load(whole);
    let compiled: Vec<Compiled> = (0..ranks).map(|rank| compile(&own, Some(rank))).collect();
    let graphs: Vec<_> = compiled.iter().map(|own| own.graph.clone()).collect();
    let found = graphs.iter().map(|graph| super::exchanges(graph)).collect();
    let loaded: Vec<_> = compiled.into_iter().map(load).collect();
    for run in &net.runs {
        let sizes: HashMap<&str, i64> = run.sizes.iter().copied().collect();
        let number = |graph: &Graph, dim: &Dim| {
            dim.eval(&|sym| sizes.get(graph.symbols[sym].name.as_str()).copied())
                .unwrap_or_else(|| panic!("{about}: {}", graph.dim_text(dim)))
        };
        // One process, whose caches are empty inputs.
        let mut all: Vec<Option<Tensor>> = run.inputs.iter().cloned().map(Some).collect();
        for input in &whole_graph.inputs[all.len()..] {
            let shape = &whole_graph.ty(input.value).shape;
            let shape: Vec<usize> = shape.iter().map(|dim| number(&whole_graph, dim) as usize).collect();
            all.push(Some(Tensor::from_slice::<f32>(&shape, &[])));
        }
        let shapes = native::output_shapes(&whole_graph, &all).unwrap();
        let wanted = whole.model().unwrap().run_guarded(&all, &shapes, &Call::default()).unwrap();
        let world = World::new(ranks, HANG);
        let results = on_all(&world, ranks, |rank, communicator| {
            let graph = &graphs[rank];
            let mut given: Vec<Option<Tensor>> = run.inputs.iter().cloned().map(Some).collect();
            given.extend(vec![None; graph.states.len()]);
            let outputs = wanted[..graph.given_outputs()].iter().map(|own| Some(own.shape.clone()));
            let states = graph.states.iter().map(|state| {
                let grown = state.growth.as_ref().map(|growth| growth.axis);
                let size = |(axis, dim): (usize, &Dim)| match grown == Some(axis) {
                    true => sizes["new"] as usize,
                    false => number(graph, dim) as usize,
                };
                Some(state.ty.shape.iter().enumerate().map(size).collect())
            });
            let shapes: Vec<Option<Vec<usize>>> = outputs.chain(states).collect();
            let call = Call { communicator: Some(communicator), ..Call::default() };
            loaded[rank].model().unwrap().run_guarded(&given, &shapes, &call).unwrap()
        });
        for (rank, result) in results.iter().enumerate() {
            for (own, wanted) in result.iter().zip(&wanted).take(graphs[rank].given_outputs()) {
                assert!(close(own, wanted), "{about}, rank {rank}: {own:?}, not {wanted:?}");
            }
            // Two runs, and before the first one the number of the model to each other rank.
            let sent = world.bytes(rank) as i64 - 8 * (ranks as i64 - 1);
            let (graph, holding) = &holdings[rank];
            let formula: i64 = holding.exchanged.iter().map(|own| number(graph, &own.bytes)).sum();
            assert_eq!(sent, 2 * formula, "{about} with {:?}, rank {rank}", run.sizes);
        }
    }
    found
}

fn grid(stages: usize, batches: usize, tensors: usize) -> Grid {
    Grid { stages, batches, tensors }
}

#[test]
fn bytes_are_those_of_the_formula() {
    let mut seen = std::collections::BTreeSet::new();
    // Sums of few bytes are sent whole, and those of more than 16 KiB in shares: both are among these sizes.
    let nets =
        [encoder(&[1, 3, 30]), decoder(&[1, 6, 1500]), convolutional(&[0, 1, 7]), mixture(&[0, 1, 5, 700])];
    for net in nets {
        let mut grids = vec![grid(1, 1, 2), grid(1, 1, 4), grid(2, 1, 2)];
        if net.batch {
            grids.extend([grid(1, 3, 1), grid(1, 2, 2)]);
        }
        for grid in grids {
            seen.extend(check(&net, grid).into_iter().flatten());
        }
    }
    for kind in ["all_reduce", "all_gather", "send", "receive", "broadcast"] {
        assert!(seen.contains(kind), "no {kind}: {seen:?}");
    }
}
