//! Models that several ranks run together: objects of all ranks on threads of one process, against the object of one; and what happens
//! when a rank is missing, lags, fails or runs another model.

mod bytes;
mod faults;
mod rules;
mod training;

use std::time::{Duration, Instant};

use onnxc::cli::session::Loaded;
use onnxc::native::Call;
use onnxc::{Compiled, Options, Quiet};
use onnxc_import::state::Choice;
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_ir::graph::{Graph, Op, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::build::{self, f32_value, int, ints, node};
use onnxc_proto::simple_sharded_dim_proto::Dim;
use onnxc_proto::{
    DeviceConfigurationProto, IntIntListEntryProto, ModelProto, NodeDeviceConfigurationProto, NodeProto,
    ShardedDimProto, ShardingSpecProto, SimpleShardedDimProto,
};
use onnxc_runtime_support::Status;
use onnxc_runtime_support::ranks::{Communicator, World};
use onnxc_tests::measure::HANG;
use prost::Message;

/// Where a value lies: its name, groups of devices, axes with their parts.
type Lies<'l> = (&'l str, &'l [&'l [i64]], &'l [(i64, i64)]);

/// A node with what it says for the configuration `c`.
fn placed(mut own: NodeProto, stage: Option<i32>, values: &[Lies<'_>]) -> NodeProto {
    let spec = |&(name, devices, axes): &Lies<'_>| {
        let is_group = devices.iter().any(|group| group.len() > 1);
        let keys: Vec<i64> = match is_group {
            true => (0..devices.len() as i64).map(|at| -1 - at).collect(),
            false => devices.concat(),
        };
        let groups = keys.iter().zip(devices).filter(|_| is_group);
        ShardingSpecProto {
            tensor_name: Some(name.into()),
            index_to_device_group_map: groups
                .map(|(&key, group)| IntIntListEntryProto { key: Some(key), value: group.to_vec() })
                .collect(),
            device: keys,
            sharded_dim: axes
                .iter()
                .map(|&(axis, parts)| ShardedDimProto {
                    axis: Some(axis),
                    simple_sharding: vec![SimpleShardedDimProto { dim: None, num_shards: Some(parts) }],
                })
                .collect(),
        }
    };
    own.device_configurations.push(NodeDeviceConfigurationProto {
        configuration_id: Some("c".into()),
        sharding_spec: values.iter().map(spec).collect(),
        pipeline_stage: stage,
    });
    own
}

fn configured(mut model: ModelProto, devices: i32) -> ModelProto {
    model.ir_version = Some(11);
    model.configuration.push(DeviceConfigurationProto {
        name: Some("c".into()),
        num_devices: Some(devices),
        device: vec![],
    });
    model
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_slice(shape, &numbers(shape.iter().product(), seed))
}

fn compile(model: &ModelProto, state: &Choice, rank: Option<usize>) -> Result<Compiled, String> {
    let configuration = rank.map(|_| "c".to_string());
    let import = ImportOptions { state: state.clone(), configuration, ..Default::default() };
    let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
    let options = Options { import, rank, ..Options::new("model", target) };
    onnxc::compile(model.encode_to_vec().into(), &NoExternalData, &options, &mut Quiet)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn load(compiled: Compiled) -> Loaded {
    Loaded::new(compiled, Instant::now()).unwrap()
}

/// A block of a decoder with `heads` heads of 4: attention over a cache, then two layers.
fn block(heads: usize) -> (Vec<NodeProto>, Vec<onnxc_proto::TensorProto>) {
    let wide = 4 * heads as i64;
    let nodes = vec![
        node("MatMul", &["x", "wq"], &["q0"]),
        node("MatMul", &["x", "wk"], &["k0"]),
        node("MatMul", &["x", "wv"], &["v0"]),
        node("Reshape", &["q0", "split"], &["q1"]),
        node("Reshape", &["k0", "split"], &["k1"]),
        node("Reshape", &["v0", "split"], &["v1"]),
        node("Transpose", &["q1"], &["q"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Transpose", &["k1"], &["k"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Transpose", &["v1"], &["v"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Concat", &["past.key", "k"], &["present.key"]).with(int("axis", 2)),
        node("Concat", &["past.value", "v"], &["present.value"]).with(int("axis", 2)),
        node("Transpose", &["present.key"], &["columns"]).with(ints("perm", &[0, 1, 3, 2])),
        node("MatMul", &["q", "columns"], &["scores"]),
        node("Softmax", &["scores"], &["weights"]).with(int("axis", -1)),
        node("MatMul", &["weights", "present.value"], &["mixed"]),
        node("Transpose", &["mixed"], &["back"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Reshape", &["back", "join"], &["joined"]),
        node("MatMul", &["joined", "wo"], &["o"]),
        node("Add", &["x", "o"], &["r"]),
        node("MatMul", &["r", "w1"], &["h0"]),
        node("Relu", &["h0"], &["h"]),
        node("MatMul", &["h", "w2"], &["m"]),
        node("Add", &["r", "m"], &["y"]),
    ];
    let weight = |name: &str, rows: i64, columns: i64, seed| {
        let scaled = numbers((rows * columns) as usize, seed).into_iter().map(|value| 0.3 * value);
        build::f32_tensor(name, &[rows, columns], scaled.collect())
    };
    let weights = vec![
        weight("wq", 4, wide, 1),
        weight("wk", 4, wide, 2),
        weight("wv", 4, wide, 3),
        weight("wo", wide, 4, 4),
        weight("w1", 4, 41, 5),
        weight("w2", 41, 4, 6),
        build::i64_tensor("split", &[4], vec![0, 0, heads as i64, 4]),
        build::i64_tensor("join", &[3], vec![0, 0, wide]),
    ];
    (nodes, weights)
}

fn decoder(heads: usize, devices: i32, place: &dyn Fn(&mut Vec<NodeProto>)) -> ModelProto {
    let (mut nodes, weights) = block(heads);
    place(&mut nodes);
    let cache = |name: &str, length: &str| f32_value(name, &["1", &heads.to_string(), length, "4"]);
    let inputs =
        vec![f32_value("x", &["1", "new", "4"]), cache("past.key", "past"), cache("past.value", "past")];
    let outputs =
        vec![f32_value("y", &["1", "new", "4"]), cache("present.key", "all"), cache("present.value", "all")];
    let mut graph = build::graph(inputs, nodes, outputs);
    graph.initializer = weights;
    configured(build::model(17, graph), devices)
}

/// Replaces the node that gives this value.
fn at(nodes: &mut [NodeProto], output: &str, stage: Option<i32>, values: &[Lies<'_>]) {
    let own = nodes.iter_mut().find(|node| node.output[0] == output).unwrap();
    *own = placed(own.clone(), stage, values);
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
    a.shape == b.shape && x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-4 * (1.0 + y.abs()))
}

/// Runs all ranks, each on a thread; gives what each returns.
fn on_all<T: Send>(world: &World, ranks: usize, run: impl Fn(usize, &Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |rank: usize| {
            let run = &run;
            // SAFETY: each thread has the communicator of its own rank, and the world lives longer.
            scope.spawn(move || run(rank, unsafe { &*world.communicator(rank).unwrap() }))
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn exchanges(graph: &Graph) -> Vec<&'static str> {
    let of = |&id: &_| match &graph.nodes[id].op {
        Op::Exchange(exchange) => Some(exchange.name()),
        _ => None,
    };
    graph.order.iter().filter_map(of).collect()
}

/// Three runs with the caches that the ones before leave, on one rank and on several.
fn check_decoder(model: &ModelProto, heads: usize, ranks: usize) -> Vec<Vec<&'static str>> {
    let state = Choice::parse(&["auto".to_string()], None).unwrap();
    let plain = compile(model, &Choice::default(), None).unwrap();
    let all: Vec<Compiled> = (0..ranks).map(|rank| compile(model, &state, Some(rank)).unwrap()).collect();
    let found = all.iter().map(|own| exchanges(&own.graph)).collect();
    let graphs: Vec<_> = all.iter().map(|own| own.graph.clone()).collect();
    let loaded: Vec<Loaded> = all.into_iter().map(load).collect();
    let mut caches = vec![Tensor::from_slice::<f32>(&[1, heads, 0, 4], &[]); 2];
    let mut kept: Vec<Vec<Option<Tensor>>> =
        graphs.iter().map(|graph| vec![None; graph.states.len()]).collect();
    let world = World::new(ranks, HANG);
    for (step, new) in [3, 1, 2].into_iter().enumerate() {
        let x = tensor(&[1, new, 4], 20 + step as u64);
        let inputs = vec![x.clone(), caches[0].clone(), caches[1].clone()];
        let wanted = interp::run(&plain.graph, &inputs).unwrap();
        let results = on_all(&world, ranks, |rank, communicator| {
            let given: Vec<Option<Tensor>> =
                [Some(x.clone())].into_iter().chain(kept[rank].clone()).collect();
            let length = wanted[1].shape[2];
            let shapes = graphs[rank].states.iter().map(|state| {
                let heads = state.ty.shape[1].as_const().unwrap() as usize;
                Some(vec![1, heads, length, 4])
            });
            let shapes: Vec<_> = [Some(wanted[0].shape.clone())].into_iter().chain(shapes).collect();
            let call = Call { communicator: Some(communicator), ..Call::default() };
            let model = loaded[rank].model().unwrap();
            // Two runs in different memory exchange twice: all ranks do.
            model.run_guarded(&given, &shapes, &call).unwrap()
        });
        for (rank, result) in results.into_iter().enumerate() {
            assert!(close(&result[0], &wanted[0]), "rank {rank}: {:?}, not {:?}", result[0], wanted[0]);
            kept[rank] = result.into_iter().skip(1).map(Some).collect();
        }
        caches = wanted[1..].to_vec();
    }
    // Every rank has the same heads at the end that the whole model has.
    let mut parts = vec![0; 2];
    for (graph, kept) in graphs.iter().zip(&kept) {
        let names: Vec<&str> = graph.outputs.iter().map(|(name, _)| name.as_str()).collect();
        for (name, own) in names[graph.given_outputs()..].iter().zip(kept) {
            parts[usize::from(name.contains("value"))] += own.as_ref().unwrap().shape[1];
        }
    }
    assert!(parts.iter().all(|&part| part >= heads), "{parts:?}");
    found
}

const TWO: &[&[i64]] = &[&[0], &[1]];

#[test]
fn tensor_parallel_decoder_with_caches() {
    for (heads, ranks) in [(2, 2), (3, 2), (3, 3), (4, 4)] {
        let devices: Vec<Vec<i64>> = (0..ranks as i64).map(|rank| vec![rank]).collect();
        let devices: Vec<&[i64]> = devices.iter().map(Vec::as_slice).collect();
        let parts = ranks as i64;
        let model = decoder(heads, ranks as i32, &|nodes| {
            for output in ["q1", "k1", "v1"] {
                at(nodes, output, None, &[(output, &devices, &[(2, parts)])]);
            }
            at(nodes, "o", None, &[("wo", &devices, &[(0, parts)])]);
            at(nodes, "h0", None, &[("w1", &devices, &[(-1, parts)])]);
        });
        let found = check_decoder(&model, heads, ranks);
        // A sum behind the attention, and one behind the layers.
        for own in &found {
            assert_eq!(*own, ["all_reduce", "all_reduce"], "{heads} heads on {ranks}");
        }
        let small = compile(&model, &Choice::default(), Some(0)).unwrap();
        let whole = compile(&model, &Choice::default(), None).unwrap();
        assert!(weights(&small.graph) < weights(&whole.graph));
    }
}

fn weights(graph: &Graph) -> i64 {
    let mut seen = std::collections::BTreeSet::new();
    let all = graph.order.iter().flat_map(|&id| graph.nodes[id].inputs.clone());
    let own = all.filter(|&value| graph.is_constant(value) && seen.insert(value));
    own.map(|value| graph.ty(value).bytes().as_const().unwrap()).sum()
}

#[test]
fn pipeline_of_tensor_parallel_stages() {
    let model = decoder(2, 4, &|nodes| {
        let first = nodes.iter().position(|node| node.output[0] == "r").unwrap();
        for (number, own) in nodes.iter_mut().enumerate() {
            *own = placed(own.clone(), Some(i32::from(number > first)), &[]);
        }
        let own = nodes.iter_mut().find(|node| node.output[0] == "q1").unwrap();
        own.device_configurations.clear();
        *own = placed(own.clone(), Some(0), &[("q1", TWO, &[(2, 2)])]);
        let own = nodes.iter_mut().find(|node| node.output[0] == "h0").unwrap();
        own.device_configurations.clear();
        *own = placed(own.clone(), Some(1), &[("h0", &[&[2], &[3]], &[(2, 2)])]);
    });
    let found = check_decoder(&model, 2, 4);
    for own in &found[..2] {
        assert!(own.contains(&"send") && own.contains(&"all_reduce"), "{found:?}");
    }
    for own in &found[2..] {
        assert!(own.contains(&"receive") && own.contains(&"all_reduce"), "{found:?}");
    }
}

/// Two convolutions and a row of numbers for each image.
fn convolutions(place: &dyn Fn(&mut Vec<NodeProto>), devices: i32) -> ModelProto {
    let mut nodes = vec![
        node("Conv", &["x", "w1", "b1"], &["c1"]).with(ints("pads", &[1, 1, 1, 1])),
        node("Relu", &["c1"], &["r1"]),
        node("MaxPool", &["r1"], &["p1"]).with(ints("kernel_shape", &[2, 2])).with(ints("strides", &[2, 2])),
        node("Conv", &["p1", "w2"], &["c2"]).with(ints("pads", &[1, 1, 1, 1])),
        node("GlobalAveragePool", &["c2"], &["g"]),
        node("Flatten", &["g"], &["f"]),
        node("Gemm", &["f", "w3", "b3"], &["y"]).with(int("transB", 1)),
    ];
    place(&mut nodes);
    let weight = |name: &str, dims: &[i64], seed| {
        build::f32_tensor(name, dims, numbers(dims.iter().product::<i64>() as usize, seed))
    };
    let mut graph =
        build::graph(vec![f32_value("x", &["n", "3", "9", "7"])], nodes, vec![f32_value("y", &["n", "5"])]);
    graph.initializer = vec![
        weight("w1", &[7, 3, 3, 3], 1),
        weight("b1", &[7], 2),
        weight("w2", &[6, 7, 3, 3], 3),
        weight("w3", &[5, 6], 4),
        weight("b3", &[5], 5),
    ];
    configured(build::model(17, graph), devices)
}

fn check(model: &ModelProto, ranks: usize, inputs: &[Tensor]) {
    check_runs(model, ranks, &[inputs.to_vec()]);
}

/// Runs on ranks, each against the evaluator of the whole model.
fn check_runs(model: &ModelProto, ranks: usize, runs: &[Vec<Tensor>]) {
    let plain = compile(model, &Choice::default(), None).unwrap();
    let all: Vec<Loaded> =
        (0..ranks).map(|rank| load(compile(model, &Choice::default(), Some(rank)).unwrap())).collect();
    for inputs in runs {
        let wanted = interp::run(&plain.graph, inputs).unwrap();
        let world = World::new(ranks, HANG);
        let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
        let shapes: Vec<_> = wanted.iter().map(|tensor| Some(tensor.shape.clone())).collect();
        let results = on_all(&world, ranks, |rank, communicator| {
            let call = Call { communicator: Some(communicator), ..Call::default() };
            all[rank].model().unwrap().run_guarded(&given, &shapes, &call).unwrap()
        });
        for (rank, result) in results.iter().enumerate() {
            for (own, wanted) in result.iter().zip(&wanted) {
                assert!(close(own, wanted), "rank {rank}: {own:?}, not {wanted:?}");
            }
        }
    }
}

#[test]
fn convolutions_by_batch_and_by_channels() {
    for batch in [0, 1, 3, 4] {
        let x = tensor(&[batch, 3, 9, 7], 9);
        // Seven channels on two and three ranks, then images; both at once on four.
        for ranks in [2, 3] {
            let devices: Vec<Vec<i64>> = (0..ranks as i64).map(|rank| vec![rank]).collect();
            let devices: Vec<&[i64]> = devices.iter().map(Vec::as_slice).collect();
            let place = |nodes: &mut Vec<NodeProto>| {
                at(nodes, "c1", None, &[("c1", &devices, &[(1, ranks as i64)])]);
            };
            check(&convolutions(&place, ranks), ranks as usize, std::slice::from_ref(&x));
            let place = |nodes: &mut Vec<NodeProto>| {
                at(nodes, "c1", None, &[("x", &devices, &[(0, ranks as i64)])]);
            };
            check(&convolutions(&place, ranks), ranks as usize, std::slice::from_ref(&x));
        }
        let place = |nodes: &mut Vec<NodeProto>| {
            at(nodes, "c1", None, &[("c1", &[&[0], &[1], &[2], &[3]], &[(0, 2), (1, 2)])]);
            at(nodes, "y", None, &[("w3", &[&[0, 2], &[1, 3]], &[(0, 2)])]);
        };
        check(&convolutions(&place, 4), 4, &[x]);
    }
}

fn gathered(devices: i32) -> ModelProto {
    let nodes = vec![
        placed(node("MatMul", &["x", "w"], &["h"]), None, &[("h", TWO, &[(1, 2)])]),
        node("Gather", &["h", "at"], &["y"]),
    ];
    let at = build::value("at", onnxc_ir::graph::DType::I64.to_onnx(), &["2"]);
    let mut graph =
        build::graph(vec![f32_value("x", &["3", "4"]), at], nodes, vec![f32_value("y", &["2", "6"])]);
    graph.initializer = vec![build::f32_tensor("w", &[4, 6], numbers(24, 7))];
    configured(build::model(17, graph), devices)
}

/// How runs end, and what they say.
fn run(loaded: &Loaded, at: i64, communicator: Option<&Communicator>) -> (Status, String) {
    let model = loaded.model().unwrap();
    let inputs = [Some(tensor(&[3, 4], 1)), Some(Tensor::from_slice(&[2], &[0, at]))];
    let mut prepared = model.prepare(&inputs, &[Some(vec![2, 6])]).unwrap();
    let mut message = [0u8; 300];
    let mut arguments = prepared.arguments(&Call { communicator, ..Call::default() });
    arguments.options.message = message.as_mut_ptr().cast();
    arguments.options.message_capacity = message.len();
    // SAFETY: the buffers are those of the model.
    let status = unsafe { arguments.run(&model) };
    let text = std::ffi::CStr::from_bytes_until_nul(&message).unwrap().to_string_lossy().into_owned();
    (status, text)
}

#[test]
fn what_goes_wrong_is_a_status_on_all_ranks() {
    let model = gathered(2);
    let load = |rank| load(compile(&model, &Choice::default(), Some(rank)).unwrap());
    let all = [load(0), load(1)];
    let own = World::new(2, HANG);
    assert_eq!(on_all(&own, 2, |rank, c| run(&all[rank], 1, Some(c)).0), [Status::OK; 2]);
    // Again, over the same communicator.
    assert_eq!(on_all(&own, 2, |rank, c| run(&all[rank], 2, Some(c)).0), [Status::OK; 2]);

    let (status, text) = run(&all[1], 1, None);
    assert_eq!(status, Status::NEEDS_COMMUNICATOR);
    assert!(text.contains("rank 1 of 2"), "{text}");
    let swapped = on_all(&own, 2, |rank, c| run(&all[1 - rank], 1, Some(c)));
    for (rank, (status, text)) in swapped.iter().enumerate() {
        assert_eq!(*status, Status::WRONG_RANK);
        assert!(text.contains(&format!("rank {} of 2", 1 - rank)), "{text}");
        assert!(text.contains(&format!("is rank {rank} of 2")), "{text}");
    }
    // Nothing was exchanged, and the communicator is good.
    assert_eq!(on_all(&own, 2, |rank, c| run(&all[rank], 1, Some(c)).0), [Status::OK; 2]);

    // A rank that fails by itself takes the others with it: nobody waits until the time is over.
    let failed = on_all(&own, 2, |rank, c| run(&all[rank], if rank == 0 { 9 } else { 1 }, Some(c)));
    assert_eq!(failed[0].0, Status::OUT_OF_RANGE, "{failed:?}");
    assert!(matches!(failed[1].0, Status::RANK_FAILED | Status::OK), "{failed:?}");
    let after = on_all(&own, 2, |rank, c| run(&all[rank], 1, Some(c)).0);
    assert_eq!(after, [Status::RANK_FAILED; 2]);

    // A rank that does not come.
    let slow = World::new(2, Duration::from_millis(200));
    let lag =
        on_all(
            &slow,
            2,
            |rank, c| if rank == 0 { run(&all[0], 1, Some(c)) } else { (Status::OK, String::new()) },
        );
    assert_eq!(lag[0].0, Status::TIMEOUT);
    assert!(lag[0].1.contains("does not answer"), "{lag:?}");

    // Another model of the same ranks.
    let mut other = gathered(2);
    other.graph.as_mut().unwrap().initializer[0] = build::f32_tensor("w", &[4, 6], numbers(24, 8));
    let other = [self::load(compile(&other, &Choice::default(), Some(0)).unwrap()), load(1)];
    let differ = on_all(&World::new(2, HANG), 2, |rank, c| run(&other[rank], 1, Some(c)));
    for (status, text) in &differ {
        assert_eq!(*status, Status::OTHER_MODEL);
        assert!(text.contains("another model"), "{text}");
    }
}

#[test]
fn what_cannot_be_followed_is_an_error_that_names_it() {
    // Devices, an axis and its shards.
    let cases = [
        ([0, 5], (1, 2), "device 5 is not one of the 2 devices"),
        ([0, 0], (1, 2), "device 0 is listed twice"),
        ([0, 1], (1, 3), "2 devices or groups for 3 shards"),
        ([0, 1], (2, 2), "axis 2 is sharded, and the value has 2"),
        ([1, 0], (1, 2), "not in the order of the devices"),
    ];
    for ([first, second], axis, wanted) in cases {
        let (devices, axes): (&[&[i64]], _) = (&[&[first], &[second]], &[axis]);
        let mut model = gathered(2);
        let nodes = &mut model.graph.as_mut().unwrap().node;
        nodes[0].device_configurations.clear();
        nodes[0] = placed(nodes[0].clone(), None, &[("h", devices, axes)]);
        let error = compile(&model, &Choice::default(), Some(0)).err().unwrap();
        assert!(error.contains(wanted) && error.contains("`h`"), "{error}");
    }
    let model = gathered(2);
    let error = compile(&model, &Choice::default(), Some(2)).err().unwrap();
    assert!(error.contains("no rank 2") && error.contains("has 2"), "{error}");
    let import = ImportOptions { configuration: Some("d".into()), ..Default::default() };
    let options = Options { import, rank: Some(0), ..Options::new("model", Target::host().unwrap()) };
    let errors =
        onnxc::compile(model.encode_to_vec().into(), &NoExternalData, &options, &mut Quiet).err().unwrap();
    assert!(errors[0].message.contains("no device configuration `d`; the model has `c`"), "{errors:?}");
    // Of a value that has blocks, none is cut.
    let mut model = gathered(2);
    let own = &mut model.graph.as_mut().unwrap().node[0].device_configurations[0].sharding_spec[0];
    own.sharded_dim[0].simple_sharding[0].dim = Some(Dim::DimValue(3));
    let compiled = compile(&model, &Choice::default(), Some(0)).unwrap();
    assert!(compiled.graph.rank.is_some());
    check(&model, 2, &[tensor(&[3, 4], 1), Tensor::from_slice(&[2], &[0i64, 2])]);
}

/// Puts the nodes of a model into two stages, one after the other.
fn stage_all(model: &mut ModelProto) {
    let nodes = &mut model.graph.as_mut().unwrap().node;
    for (number, own) in nodes.iter_mut().enumerate() {
        *own = placed(own.clone(), Some(i32::from(number > 3)), &[]);
    }
    let staged = configured(model.clone(), 2);
    *model = staged;
}

/// An MPI of this machine: its compiler, its launcher and what flags that takes.
struct Mpi {
    cc: String,
    run: String,
    flags: Vec<&'static str>,
}

impl Mpi {
    /// Those that are installed: Open MPI and MPICH by their own names, or what is there without one.
    fn all() -> Vec<Mpi> {
        let own = [".openmpi", ".mpich"].iter().filter_map(|suffix| Mpi::found(suffix));
        let mut all: Vec<Mpi> = own.collect();
        if all.is_empty() {
            all.extend(Mpi::found(""));
        }
        if all.is_empty() {
            println!("skipped: there is no mpicc or mpirun");
        }
        all
    }

    fn found(suffix: &str) -> Option<Mpi> {
        let (cc, run) = (format!("mpicc{suffix}"), format!("mpirun{suffix}"));
        let output = |program: &str| {
            let output = std::process::Command::new(program).arg("--version").output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        output(&cc)?;
        // Whoever runs it and however few cores there are. MPICH knows no such flags and needs none.
        let version = output(&run)?;
        let flags = match version.contains("Open MPI") || version.contains("OpenRTE") {
            true => vec!["--allow-run-as-root", "--oversubscribe"],
            false => vec![],
        };
        Some(Mpi { cc, run, flags })
    }

    fn run(&self, processes: usize) -> std::process::Command {
        let mut command = std::process::Command::new(&self.run);
        // What MPICH stands on reports messages that nobody came for, among what the program prints.
        command.env("UCX_LOG_LEVEL", "error");
        command.args(&self.flags).arg("-n").arg(processes.to_string());
        command
    }
}

#[test]
fn communicators_over_mpi() {
    Mpi::all().iter().for_each(communicator);
}

fn communicator(mpi: &Mpi) {
    let dir = tempfile::tempdir().unwrap();
    let (program, root) = (dir.path().join("ranks"), std::path::Path::new(env!("CARGO_MANIFEST_DIR")));
    let support = root.join("../runtime-support");
    let mut cc = std::process::Command::new(&mpi.cc);
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L", "-O1", "-I"]);
    cc.arg(support.join("include")).arg("-I").arg(support.join("mpi"));
    cc.arg(root.join("c/ranks_mpi.c"))
        .arg(support.join("mpi/onnxc_mpi.c"))
        .arg(onnxc_tests::object::runtime());
    onnxc_tests::object::must(cc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program));
    for ranks in [2, 4] {
        let output = onnxc_tests::object::must(mpi.run(ranks).arg(&program));
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let mut wanted = vec![];
        for rank in 0..ranks {
            let last = rank == ranks - 1;
            let status = |status: Status| if last { 0 } else { status.0 };
            wanted.extend(["begin", "sums", "gathers", "again"].map(|name| format!("{rank} {name} 0")));
            wanted.push(format!("{rank} other {}", Status::OTHER_MODEL.0));
            wanted.push(format!("{rank} failed {}", status(Status::RANK_FAILED)));
            wanted.push(format!("{rank} lags {}", status(Status::TIMEOUT)));
        }
        wanted.sort_unstable();
        assert_eq!(lines, wanted);
    }
}

#[test]
fn the_example_gives_the_text_of_one_process() {
    let all = Mpi::all();
    for (at, (tensors, stages)) in [(2, 1), (2, 2)].into_iter().enumerate() {
        if all.is_empty() {
            return;
        }
        let mpi = &all[at % all.len()];
        let dir = tempfile::tempdir().unwrap();
        let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ranks");
        let mut make = std::process::Command::new("make");
        make.arg("-C").arg(example).arg(format!("ONNXC={}", env!("CARGO_BIN_EXE_onnxc_driver")));
        make.arg(format!("BUILD={}", dir.path().display()));
        make.arg(format!("RUNTIME={}", onnxc_tests::object::runtime().display()));
        make.arg(format!("TENSOR={tensors}"))
            .arg(format!("PIPELINE={stages}"))
            .arg("ONNXCFLAGS=--mcpu native");
        make.arg(format!("MPICC={}", mpi.cc)).arg(format!("MPIRUN={}", mpi.run));
        make.arg(format!("MPIFLAGS={}", mpi.flags.join(" ")));
        make.args(["CFLAGS=-O1 -Werror", "--silent", "--no-print-directory", "check"]);
        onnxc_tests::object::must(&mut make);
        let text = std::fs::read_to_string(dir.path().join("several.txt")).unwrap();
        assert_eq!(text.lines().count(), 43, "{text}");
    }
}

#[test]
fn rows_of_a_table_on_several_ranks() {
    const ROWS: usize = 2000;
    let rows = |axis: i64, ranks: i64, shape: &[i64]| {
        let devices: Vec<Vec<i64>> = (0..ranks).map(|rank| vec![rank]).collect();
        let devices: Vec<&[i64]> = devices.iter().map(Vec::as_slice).collect();
        let gather = node("Gather", &["table", "ids"], &["y"]).with(int("axis", axis));
        let nodes = vec![placed(gather, None, &[("table", &devices, &[(axis, ranks)])])];
        let ids = build::value("ids", onnxc_ir::graph::DType::I64.to_onnx(), &["n", "2"]);
        let mut dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
        dims.splice(axis as usize..=axis as usize, ["n".to_string(), "2".to_string()]);
        let mut graph = build::graph(vec![ids], nodes, vec![f32_value("y", &dims)]);
        let mut values = numbers(shape.iter().product::<i64>() as usize, 7);
        values.iter_mut().step_by(3).for_each(|value| *value = -0.0);
        graph.initializer = vec![build::f32_tensor("table", shape, values)];
        configured(build::model(17, graph), ranks as i32)
    };
    let last = ROWS as i64 - 1;
    let ids = [0, -1, 1, last, last / 2, -(ROWS as i64), 1000, 999, 666, 1333];
    for (axis, shape) in [(0, [ROWS as i64, 30]), (1, [30, ROWS as i64])] {
        for ranks in [2, 3, 4] {
            let model = rows(axis, ranks, &shape);
            let plain = compile(&model, &Choice::default(), None).unwrap();
            let all: Vec<Loaded> = (0..ranks as usize)
                .map(|rank| {
                    let own = compile(&model, &Choice::default(), Some(rank)).unwrap();
                    assert_eq!(exchanges(&own.graph), ["all_reduce"]);
                    assert!(weights(&own.graph) < weights(&plain.graph) / (ranks - 1).max(1) + 100);
                    load(own)
                })
                .collect();
            let run = |ids: &[i64]| {
                let given = Tensor::from_slice(&[ids.len() / 2, 2], ids);
                let world = World::new(ranks as usize, HANG);
                on_all(&world, ranks as usize, |rank, communicator| {
                    let model = all[rank].model().unwrap();
                    let mut shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
                    shape.splice(axis as usize..=axis as usize, given.shape.iter().copied());
                    let mut prepared = model.prepare(&[Some(given.clone())], &[Some(shape)]).unwrap();
                    let call = Call { communicator: Some(communicator), ..Call::default() };
                    let mut arguments = prepared.arguments(&call);
                    // SAFETY: the buffers are those of the model.
                    let status = unsafe { arguments.run(&model) };
                    (status, prepared.outputs().unwrap().swap_remove(0))
                })
            };
            for count in [0, 2, ids.len()] {
                let given = Tensor::from_slice(&[count / 2, 2], &ids[..count]);
                let wanted = interp::run(&plain.graph, &[given]).unwrap();
                for (status, found) in run(&ids[..count]) {
                    assert_eq!(status, Status::OK);
                    // The same bits, also of zeros.
                    assert!(found.shape == wanted[0].shape && found.data == wanted[0].data, "{ranks} ranks");
                }
            }
            for wrong in [ROWS as i64, -(ROWS as i64) - 1, i64::MAX, i64::MIN] {
                let found = run(&[0, wrong]);
                assert!(found.iter().all(|(status, _)| *status == Status::OUT_OF_RANGE), "{wrong}");
            }
        }
    }
}
