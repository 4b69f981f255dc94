//! Steps of drawn networks, with the loops and conditions of their derivatives: they find what the evaluator finds, in guarded memory and
//! with no byte of workspace to spare; misuse is refused; and a step that is cancelled, wherever it looks, or that finds no memory leaves
//! the state as it was.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Arguments, Call};
use onnxc::{Loss, Optimizer, Options, Quiet, TrainOptions};
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_ir::graph::Tensor;
use onnxc_machine::target::Target;
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{ModelProto, TensorProto, build};
use onnxc_runtime_support::{Options as RunOptions, Status};
use onnxc_tests::abi::check;
use onnxc_tests::derivatives::networks::{self, LAYERS};
use prost::Message;
use rayon::prelude::*;

use super::program::{Program, State, entry, own, values};

/// The seed of all networks.
const SEED: u64 = 7;

/// How many networks are drawn; more by the variable of the environment.
fn count() -> usize {
    std::env::var("ONNXC_NETWORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(LAYERS.len())
}

/// A drawn network with its training: all inputs but the first one learn.
struct Learner {
    name: String,
    loaded: Loaded,
    /// Inputs of a step: those of the network, and what is wanted of its output.
    inputs: Vec<Tensor>,
}

impl Learner {
    /// The error where nothing in the network learns.
    fn draw(number: usize) -> Result<Learner, String> {
        let network = networks::draw(SEED, number);
        let name = format!("network {number}, {}", network.layers.join(", "));
        let mut model = network.model;
        let graph = model.graph.as_mut().unwrap();
        let mut given = vec![];
        for (input, tensor) in std::mem::take(&mut graph.input).into_iter().zip(&network.inputs) {
            if given.is_empty() && network.inputs.len() > 1 {
                given.push(tensor.clone());
                graph.input.push(input);
                continue;
            }
            let dims = tensor.shape.iter().map(|&size| size as i64).collect();
            graph.initializer.push(TensorProto {
                name: input.name,
                dims,
                data_type: Some(tensor.dtype.to_onnx()),
                raw_data: Some(tensor.data.clone()),
                ..Default::default()
            });
        }
        Learner::new(name, &model, given, number)
    }

    /// A loop that runs as often as an input says: the size of what its iterations keep for the way back is known to the run alone.
    fn by_data(turns: i64) -> Learner {
        let nodes = vec![
            build::node("MatMul", &["h", "w"], &["product"]),
            build::node("Tanh", &["product"], &["next"]),
            build::node("Identity", &["goes_on"], &["still"]),
        ];
        let names = |names: &[&str]| names.iter().map(|name| build::untyped(name)).collect();
        let body = build::graph(names(&["number", "goes_on", "h"]), nodes, names(&["still", "next"]));
        let turn = build::node("Loop", &["turns", "", "x"], &["y"]).with(build::subgraph("body", body));
        let inputs = vec![
            build::f32_value("x", &[2, 3]),
            build::value("turns", DataType::Int64 as i32, &[] as &[usize]),
        ];
        let mut graph = build::graph(inputs, vec![turn], vec![build::f32_value("y", &[2, 3])]);
        let weights = (0..9).map(|at| (at * 4 % 9) as f32 / 9.0 - 0.4).collect();
        graph.initializer.push(build::f32_tensor("w", &[3, 3], weights));
        let given = vec![
            Tensor::from_slice(&[2, 3], &[0.5f32, -0.3, 0.8, 0.1, -0.9, 0.2]),
            Tensor::from_slice(&[], &[turns]),
        ];
        Learner::new(format!("{turns} turns"), &build::model(22, graph), given, turns as usize).unwrap()
    }

    /// `given` are the inputs of the model.
    fn new(name: String, model: &ModelProto, given: Vec<Tensor>, number: usize) -> Result<Learner, String> {
        let optimizer = match number % 2 {
            0 => Optimizer::Sgd,
            _ => Optimizer::Momentum { momentum: 0.9, nesterov: false },
        };
        let options = TrainOptions { learning_rate: Some(0.01), ..TrainOptions::new(Loss::Mse, optimizer) };
        let trained = onnxc::train_graph(model.encode_to_vec().into(), &NoExternalData, &options);
        let trained = trained.map_err(|errors| format!("{name}: {errors:?}"))?;
        assert!(!trained.parameters.is_empty(), "{name}");
        let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
        let import = ImportOptions { training: true, ..Default::default() };
        let options = Options {
            import,
            profile: true,
            opt_level: if number.is_multiple_of(5) { 0 } else { 3 },
            ..Options::new("model", target)
        };
        let compiled = onnxc::compile(trained.model.into(), &NoExternalData, &options, &mut Quiet);
        let compiled = compiled.unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        let mut inputs = given;
        let step = entry(&loaded, "train_step");
        for at in inputs.len()..step.graph.given_inputs() {
            let shape: Vec<usize> =
                step.graph.input_ty(at).shape.iter().map(|dim| dim.as_const().unwrap() as usize).collect();
            let values: Vec<f32> =
                (0..shape.iter().product()).map(|at| (at * 5 % 7) as f32 / 7.0 - 0.4).collect();
            inputs.push(Tensor::from_slice(&shape, &values));
        }
        Ok(Learner { name, loaded, inputs })
    }

    fn step(&self) -> Program<'_> {
        entry(&self.loaded, "train_step")
    }

    /// How a step with these options ends on the state.
    fn run(&self, state: &mut State, change: impl FnOnce(&mut Arguments)) -> Status {
        let step = self.step();
        let mut given: Vec<Option<Tensor>> = self.inputs.iter().cloned().map(Some).collect();
        given.extend(vec![None; step.graph.states.len()]);
        let shapes = native::output_shapes(step.graph, &given).unwrap();
        let mut prepared = step.model.prepare(&given, &shapes).unwrap();
        let mut arguments = prepared.arguments(&Call::default());
        let mut dims = [0];
        arguments.use_state(&mut state.0, &mut dims);
        change(&mut arguments);
        // SAFETY: the arguments are those of a good call, but for the block, which is alive and has its bytes, and for options of callers
        // that are alive.
        let status = unsafe { arguments.run(&step.model) };
        prepared.check_guards().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        status
    }

    /// Results and states of two steps are those of the evaluator.
    fn agrees(&self) {
        let (step, mut state) = (self.step(), State::new(&own(&self.loaded)));
        for _ in 0..2 {
            let wanted = step.reference(&self.inputs, &state);
            let (status, found) = step.call_with(&self.inputs, &mut state, RunOptions::default());
            assert_eq!(status, Status::OK, "{}", self.name);
            let names = step.graph.inputs[step.graph.given_inputs()..].iter().map(|input| &input.name);
            let left: Vec<Tensor> = names.map(|name| state.get(step.graph, name)).collect();
            assert_eq!(found.len() + left.len(), wanted.len(), "{}", self.name);
            for (at, (found, wanted)) in found.iter().chain(&left).zip(&wanted).enumerate() {
                assert_eq!(found.shape, wanted.shape, "{}, result {at}", self.name);
                let [found, wanted] = [found, wanted].map(values);
                let scale = wanted.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
                for (one, other) in found.iter().zip(&wanted) {
                    let near = (one - other).abs() <= 1e-3 * scale;
                    assert!(near, "{}, result {at}: {one}, not {other}", self.name);
                }
            }
        }
    }

    /// Guard pages around all buffers, the exact workspace, and calls that are wrong in every way, for all entry points.
    fn refuses_misuse(&self) {
        let entries = self.loaded.entries.iter().map(|own| entry(&self.loaded, &own.suffix));
        for program in entries.chain([own(&self.loaded)]) {
            let count = program.graph.given_inputs();
            let mut given: Vec<Option<Tensor>> = self.inputs[..count].iter().cloned().map(Some).collect();
            given.extend(vec![None; program.graph.states.len()]);
            let shapes = native::output_shapes(program.graph, &given).unwrap();
            let found = check(&program.model, &given, &shapes);
            let found = found.unwrap_or_else(|fault| panic!("{}: {fault}", self.name));
            assert!(found.refused > 10, "{}: {}", self.name, found.refused);
        }
    }

    /// Ends steps early at every place where that can be; gives the number of cancelled ones, and of those that found no memory.
    fn ends_early(&self) -> [usize; 2] {
        let mut state = State::new(&own(&self.loaded));
        let before = state.bytes();
        let whole = Caller::new(End::Never);
        assert_eq!(self.run(&mut state, |arguments| whole.watch(arguments)), Status::OK, "{}", self.name);
        let after = state.bytes();
        let [steps, allocations] =
            [&whole.steps, &whole.allocations].map(|count| count.load(Ordering::Relaxed));
        let stride = (steps / 60).max(1) as usize;
        let ends = (0..steps).step_by(stride).map(End::CancelBehindStep);
        let ends = ends.chain((0..allocations).map(End::CancelAtAllocation));
        let ends: Vec<End> = ends.chain((0..allocations).map(End::NoMemory)).collect();
        let mut early = [0; 2];
        for end in ends {
            state.0.contents_mut().copy_from_slice(&before);
            let caller = Caller::new(end);
            let status = self.run(&mut state, |arguments| caller.watch(arguments));
            assert_eq!(caller.blocks.load(Ordering::Relaxed), 0, "{}: {end:?} leaks", self.name);
            let left = match status {
                Status::OK => &after,
                Status::CANCELLED => &before,
                status => {
                    assert_eq!(status, Status::OUT_OF_MEMORY, "{}: {end:?}", self.name);
                    &before
                }
            };
            assert!(state.bytes() == *left, "{}: {end:?} ends with {status:?}", self.name);
            match end {
                // It may be behind the last place that looks.
                End::CancelBehindStep(at) => assert!(at > 0 || status == Status::CANCELLED, "{}", self.name),
                End::NoMemory(_) => assert_eq!(status, Status::OUT_OF_MEMORY, "{}: {end:?}", self.name),
                _ => {}
            }
            early[0] += usize::from(status == Status::CANCELLED);
            early[1] += usize::from(status == Status::OUT_OF_MEMORY);
        }
        early
    }
}

/// How a caller ends a run.
#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    /// Cancelled once this number of steps of the program is done.
    CancelBehindStep(i64),
    /// Cancelled at the allocation with this number.
    CancelAtAllocation(i64),
    /// That allocation fails.
    NoMemory(i64),
}

/// What watches a run and ends it.
struct Caller {
    end: End,
    own: std::cell::Cell<RunOptions>,
    cancel: AtomicI32,
    /// Steps and allocations so far, and blocks that the run has.
    steps: AtomicI64,
    allocations: AtomicI64,
    blocks: AtomicI64,
}

impl Caller {
    fn new(end: End) -> Caller {
        let [steps, allocations, blocks] = [0; 3].map(AtomicI64::new);
        let cancel = AtomicI32::new(i32::from(matches!(end, End::CancelBehindStep(0))));
        Caller { end, own: Default::default(), cancel, steps, allocations, blocks }
    }

    fn watch(&self, arguments: &mut Arguments) {
        let context = std::ptr::from_ref(self).cast_mut().cast();
        self.own.set(arguments.options);
        arguments.options.allocate = Some(Caller::allocate);
        arguments.options.release = Some(Caller::release);
        arguments.options.allocator = context;
        arguments.options.step_done = Some(Caller::step_done);
        arguments.options.step_context = context;
        arguments.options.cancel = self.cancel.as_ptr();
    }

    unsafe extern "C" fn step_done(caller: *mut c_void, _: i64) {
        // SAFETY: the caller outlives the run.
        let caller = unsafe { &*caller.cast::<Caller>() };
        let done = caller.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if matches!(caller.end, End::CancelBehindStep(steps) if done >= steps) {
            caller.cancel.store(1, Ordering::Relaxed);
        }
    }

    unsafe extern "C" fn allocate(caller: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
        // SAFETY: the caller outlives the run.
        let caller = unsafe { &*caller.cast::<Caller>() };
        let number = caller.allocations.fetch_add(1, Ordering::Relaxed);
        match caller.end {
            End::NoMemory(own) if own == number => return std::ptr::null_mut(),
            End::CancelAtAllocation(own) if own == number => caller.cancel.store(1, Ordering::Relaxed),
            _ => {}
        }
        caller.blocks.fetch_add(1, Ordering::Relaxed);
        let own = caller.own.get();
        // SAFETY: what the run asks for.
        unsafe { own.allocate.unwrap()(own.allocator, bytes, alignment) }
    }

    unsafe extern "C" fn release(caller: *mut c_void, memory: *mut c_void, bytes: usize, alignment: usize) {
        // SAFETY: as above.
        let caller = unsafe { &*caller.cast::<Caller>() };
        caller.blocks.fetch_sub(1, Ordering::Relaxed);
        let own = caller.own.get();
        // SAFETY: what the run gives back.
        unsafe { own.release.unwrap()(own.allocator, memory, bytes, alignment) }
    }
}

#[test]
fn steps_of_drawn_networks_keep_the_promises() {
    let results: Vec<Result<[usize; 2], String>> = (0..count())
        .into_par_iter()
        .map(|number| {
            let learner = Learner::draw(number)?;
            learner.agrees();
            learner.refuses_misuse();
            Ok(learner.ends_early())
        })
        .collect();
    let refused: Vec<&String> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(10 * refused.len() <= results.len(), "{refused:#?}");
    let early: Vec<[usize; 2]> = results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
    let cancelled: usize = early.iter().map(|counts| counts[0]).sum();
    println!("{} networks, {cancelled} steps cancelled; {refused:#?}", early.len());
    assert!(early.iter().all(|counts| counts[0] > 0) && cancelled > 5 * early.len(), "{early:?}");
}

#[test]
fn steps_that_allocate_keep_the_promises() {
    for turns in [0, 1, 5] {
        let learner = Learner::by_data(turns);
        learner.agrees();
        learner.refuses_misuse();
        let [cancelled, without_memory] = learner.ends_early();
        assert!(cancelled > 3 && without_memory > 0, "{turns} turns: {cancelled}, {without_memory}");
    }
}
