//! State: tensors that stay in the caller's memory from run to run. A small decoder with a cache of keys and values, a tensor
//! that every run replaces, and one that takes the value of another; held against the same model with all of these as inputs and
//! outputs.

use std::str::FromStr;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc::{Compiled, Options, Quiet};
use onnxc_import::state::{Choice, Pair};
use onnxc_ir::graph::{DType, Graph, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::build::{self, f32_value, ints, node};
use onnxc_proto::{GraphProto, ModelProto};
use onnxc_runtime_support::{Options as RunOptions, Status, abi};
use onnxc_tests::interpreted::Interpreted;
use onnxc_tests::object;
use prost::Message;
use std::time::Instant;

const HEADS: usize = 2;
const SIZE: usize = 4;

/// `x: [batch, new, 8]`. Keys and values are tanh and twice of it, by heads; the output is their attention and the sum of `h`.
fn decoder() -> ModelProto {
    let cache = |name: &str, length: &str| f32_value(name, &["batch", "2", length, "4"]);
    let inputs = vec![
        f32_value("x", &["batch", "new", "8"]),
        cache("past.key", "past"),
        f32_value("h_in", &["batch", "8"]),
        cache("past.value", "past"),
        f32_value("older", &["batch", "8"]),
    ];
    let nodes = vec![
        node("Reshape", &["x", "split"], &["heads"]),
        node("Transpose", &["heads"], &["q"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Tanh", &["q"], &["k"]),
        node("Mul", &["q", "two"], &["v"]),
        node("Concat", &["past.key", "k"], &["present.key"]).with(build::int("axis", 2)),
        node("Concat", &["past.value", "v"], &["present.value"]).with(build::int("axis", 2)),
        node("Transpose", &["present.key"], &["columns"]).with(ints("perm", &[0, 1, 3, 2])),
        node("MatMul", &["q", "columns"], &["scores"]),
        node("Softmax", &["scores"], &["weights"]).with(build::int("axis", -1)),
        node("MatMul", &["weights", "present.value"], &["mixed"]),
        node("ReduceMean", &["x"], &["mean"]).with(ints("axes", &[1])).with(build::int("keepdims", 0)),
        node("Add", &["h_in", "mean"], &["sum"]),
        node("Tanh", &["sum"], &["h_out"]),
        node("ReduceSum", &["older"], &["total"]).with(build::int("keepdims", 0)),
        node("Add", &["mixed", "total"], &["y"]),
        node("Identity", &["h_in"], &["newer"]),
    ];
    let outputs = vec![
        cache("present.value", "all"),
        f32_value("y", &["batch", "2", "new", "4"]),
        f32_value("h_out", &["batch", "8"]),
        cache("present.key", "all"),
        f32_value("newer", &["batch", "8"]),
    ];
    let mut graph: GraphProto = build::graph(inputs, nodes, outputs);
    graph.initializer.push(build::i64_tensor("split", &[4], vec![0, 0, HEADS as i64, SIZE as i64]));
    graph.initializer.push(build::f32_tensor("two", &[], vec![2.0]));
    build::model(12, graph)
}

fn choice(pairs: &[&str]) -> Choice {
    Choice { pairs: pairs.iter().map(|text| Pair::from_str(text).unwrap()).collect(), ..Choice::default() }
}

fn all() -> Choice {
    choice(&["past.key=present.key", "past.value=present.value:2", "h_in=h_out", "older=newer"])
}

fn compile(model: &ModelProto, state: Choice, target: Target, opt_level: u8) -> Result<Compiled, String> {
    let import = onnxc_import::ImportOptions { state, ..Default::default() };
    let options = Options { opt_level, import, ..Options::new("model", target) };
    let bytes = model.encode_to_vec().into();
    onnxc::compile(bytes, &onnxc_import::NoExternalData, &options, &mut Quiet)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn native_target() -> Target {
    Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap()
}

fn load(model: &ModelProto, state: Choice) -> Loaded {
    Loaded::new(compile(model, state, native_target(), 3).unwrap(), Instant::now()).unwrap()
}

fn tensor(shape: &[usize], seed: u64) -> Tensor {
    let mut random = fastrand::Rng::with_seed(seed);
    let data: Vec<f32> = (0..shape.iter().product()).map(|_| random.f32() * 2.0 - 1.0).collect();
    Tensor::from_slice(shape, &data)
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
    a.shape == b.shape && x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-5)
}

/// Inputs of the graph by their names; states come last.
fn ordered(graph: &Graph, named: &[(&str, Tensor)]) -> Vec<Option<Tensor>> {
    let of = |name: &str| named.iter().find(|(own, _)| *own == name).map(|(_, tensor)| tensor.clone());
    graph.inputs.iter().map(|input| of(&input.name)).collect()
}

fn named(graph: &Graph, outputs: Vec<Tensor>) -> Vec<(String, Tensor)> {
    graph.outputs.iter().map(|(name, _)| name.clone()).zip(outputs).collect()
}

/// Every way to run the model on one set of inputs gives what the evaluator gives for the model without states.
#[test]
fn every_way_to_run_gives_what_the_model_without_states_gives() {
    let model = decoder();
    let plain = compile(&model, Choice::default(), Target::host().unwrap(), 0).unwrap();
    let targets = [Target::host().unwrap(), native_target()];
    for (batch, new, past) in [(1, 1, 0), (1, 40, 0), (1, 1, 31), (2, 3, 5), (3, 1, 16), (1, 20, 13)] {
        let inputs = [
            ("x", tensor(&[batch, new, 8], 1)),
            ("past.key", tensor(&[batch, HEADS, past, SIZE], 2)),
            ("past.value", tensor(&[batch, HEADS, past, SIZE], 3)),
            ("h_in", tensor(&[batch, 8], 4)),
            ("older", tensor(&[batch, 8], 5)),
        ];
        let given: Vec<Tensor> = ordered(&plain.graph, &inputs).into_iter().flatten().collect();
        let wanted = named(&plain.graph, interp::run(&plain.graph, &given).unwrap());
        for capacity in [None, Some(past + new), Some(past + new + 40)] {
            for (target, level) in targets.iter().flat_map(|target| [(target, 0), (target, 3)]) {
                let compiled = compile(&model, Choice { capacity, ..all() }, target.clone(), level).unwrap();
                let graph = compiled.graph.clone();
                let found = ordered(&graph, &inputs);
                let shapes = native::output_shapes(&graph, &found).unwrap();
                let tensors: Vec<Tensor> = found.iter().flatten().cloned().collect();
                let mut results = vec![("evaluated", interp::run(&graph, &tensors).unwrap())];
                let interpreted = Interpreted::new(&compiled).unwrap();
                results.push(("interpreted", interpreted.run(&found, &shapes).unwrap()));
                if past == 0 {
                    let given = inputs.iter().filter(|(name, _)| !name.starts_with("past")).cloned();
                    let found = ordered(&graph, &given.collect::<Vec<_>>());
                    results.push(("interpreted from nothing", interpreted.run(&found, &shapes).unwrap()));
                }
                drop(interpreted);
                let loaded = Loaded::new(compiled, Instant::now()).unwrap();
                let run = loaded.model().unwrap().run_guarded(&found, &shapes, &Call::default());
                results.push(("compiled", run.unwrap()));
                for (how, outputs) in results {
                    for (name, tensor) in named(&graph, outputs) {
                        let other = &wanted.iter().find(|(own, _)| *own == name).unwrap().1;
                        assert!(
                            close(&tensor, other),
                            "{how} {name} of {batch} x {new} after {past}, room {capacity:?}, -O{level}: {tensor:?}, not {other:?}"
                        );
                    }
                }
            }
        }
    }
}

/// A caller of the C ABI with one state block.
struct Caller<'l> {
    model: native::Model<'l>,
    block: native::GuardedBlock,
    symbols: Vec<i64>,
}

const NEW: &str = "new";

impl<'l> Caller<'l> {
    fn new(loaded: &'l Loaded, batch: i64, capacity: i64) -> Caller<'l> {
        let model = loaded.model().unwrap();
        let value = |name: &String| match name.as_str() {
            "batch" => batch,
            "past.capacity" => capacity,
            _ => 0,
        };
        let symbols: Vec<i64> = model.symbols().iter().map(value).collect();
        let bytes = model.state_bytes(&symbols).unwrap();
        let block = native::Memory::default().block(bytes, native::ALIGNMENT).unwrap();
        let mut caller = Caller { model, block, symbols };
        assert_eq!(caller.reset(), Status::OK);
        caller
    }

    fn reset(&mut self) -> Status {
        let bytes = self.block.bytes();
        self.model.reset_state(&mut self.block.contents_mut()[..bytes], &self.symbols)
    }

    /// Runs on `[batch, new, 8]`; the output, or the status and the message.
    fn step(&mut self, x: &Tensor) -> Result<Tensor, (Status, String)> {
        let bytes = self.block.bytes();
        let state = (self.block.as_mut_ptr(), bytes, bytes as i64);
        self.step_with(x, state, None)
    }

    fn step_with(
        &mut self,
        x: &Tensor,
        (data, bytes, dim): (*mut u8, usize, i64),
        cancel: Option<&i32>,
    ) -> Result<Tensor, (Status, String)> {
        let mut symbols = self.symbols.clone();
        for (at, name) in self.model.symbols().iter().enumerate() {
            match name.as_str() {
                NEW => symbols[at] = x.shape[1] as i64,
                "past" => symbols[at] = self.past().max(0),
                _ => {}
            }
        }
        let workspace = self.model.workspace_bytes(&symbols).unwrap();
        let mut workspace = native::Memory::default().block(workspace, native::ALIGNMENT).unwrap();
        let mut x_data = x.data.to_vec();
        let mut x_dims: Vec<i64> = x.shape.iter().map(|&size| size as i64).collect();
        let mut y = vec![0f32; x.shape.iter().product()];
        let mut y_dims = [0i64, 0, 0, 4];
        y_dims[1] = 2;
        let mut dims = [dim];
        let f32_tensor = |data: *mut u8, bytes: usize, dims: &mut [i64]| abi::Tensor {
            data: data.cast(),
            bytes,
            dtype: DType::F32.to_onnx(),
            rank: dims.len() as i32,
            dims: dims.as_mut_ptr(),
        };
        let state = abi::Tensor {
            data: data.cast(),
            bytes,
            dtype: DType::U8.to_onnx(),
            rank: 1,
            dims: dims.as_mut_ptr(),
        };
        let inputs = [f32_tensor(x_data.as_mut_ptr(), x_data.len(), &mut x_dims), state];
        let mut outputs = [f32_tensor(y.as_mut_ptr().cast(), 4 * y.len(), &mut y_dims)];
        let mut message = [0u8; 256];
        let options = RunOptions {
            message: message.as_mut_ptr().cast(),
            message_capacity: message.len(),
            cancel: cancel.map_or(std::ptr::null(), std::ptr::from_ref),
            ..RunOptions::default()
        };
        // SAFETY: all descriptors point to live buffers of their length, but for the state block, which is what is tried.
        let status = unsafe {
            self.model.run_function()(
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                workspace.as_mut_ptr().cast(),
                workspace.bytes(),
                &options,
            )
        };
        if status == Status::OK {
            let shape: Vec<usize> = y_dims.iter().map(|&size| size as usize).collect();
            return Ok(Tensor::from_slice(&shape, &y));
        }
        let end = message.iter().position(|&byte| byte == 0).unwrap();
        Err((status, String::from_utf8_lossy(&message[..end]).into_owned()))
    }

    /// The word of the symbol `past`.
    fn past(&self) -> i64 {
        let at = self.model.symbols().iter().position(|name| name == "past").unwrap();
        i64::from_le_bytes(self.block.contents()[8 * (1 + at)..][..8].try_into().unwrap())
    }
}

/// The outputs of the model without states for these pieces of a text, its caches fed back.
fn fed_back(pieces: &[Tensor]) -> Vec<Tensor> {
    let plain = compile(&decoder(), Choice::default(), Target::host().unwrap(), 0).unwrap();
    let batch = pieces[0].shape[0];
    let empty = Tensor::from_slice::<f32>(&[batch, HEADS, 0, SIZE], &[]);
    let zeros = Tensor::from_slice(&[batch, 8], &vec![0f32; batch * 8]);
    let (mut key, mut value, mut h, mut older) = (empty.clone(), empty, zeros.clone(), zeros);
    let mut results = vec![];
    for x in pieces {
        let inputs =
            [("x", x.clone()), ("past.key", key), ("past.value", value), ("h_in", h), ("older", older)];
        let given: Vec<Tensor> = ordered(&plain.graph, &inputs).into_iter().flatten().collect();
        let outputs = named(&plain.graph, interp::run(&plain.graph, &given).unwrap());
        let of = |name: &str| outputs.iter().find(|(own, _)| own == name).unwrap().1.clone();
        (key, value, h, older) = (of("present.key"), of("present.value"), of("h_out"), of("newer"));
        results.push(of("y"));
    }
    results
}

fn pieces(batch: usize, lengths: &[usize]) -> Vec<Tensor> {
    lengths.iter().enumerate().map(|(at, &length)| tensor(&[batch, length, 8], 10 + at as u64)).collect()
}

#[test]
fn a_conversation_in_one_block() {
    let loaded = load(&decoder(), all());
    for batch in [1, 2] {
        let pieces = pieces(batch, &[5, 1, 1, 12, 1, 1]);
        let wanted = fed_back(&pieces);
        let mut caller = Caller::new(&loaded, batch as i64, 21);
        for round in 0..2 {
            for (at, (x, wanted)) in pieces.iter().zip(&wanted).enumerate() {
                let y = caller.step(x).unwrap();
                assert!(
                    close(&y, wanted),
                    "step {at} of round {round}, batch {batch}: {y:?}, not {wanted:?}"
                );
            }
            assert_eq!(caller.past(), 21);
            assert_eq!(caller.reset(), Status::OK);
        }
    }
}

#[test]
fn a_block_is_copied_and_taken_back() {
    let loaded = load(&decoder(), all());
    let pieces = pieces(1, &[4, 3, 2, 2]);
    let mut caller = Caller::new(&loaded, 1, 64);
    caller.step(&pieces[0]).unwrap();
    let saved = caller.block.contents().to_vec();
    let one = caller.step(&pieces[1]).unwrap();
    caller.block.contents_mut().copy_from_slice(&saved);
    let other = caller.step(&pieces[2]).unwrap();
    assert!(close(&other, &fed_back(&[pieces[0].clone(), pieces[2].clone()])[1]));
    let mut second = Caller::new(&loaded, 1, 64);
    second.block.contents_mut().copy_from_slice(&saved);
    assert_eq!(second.step(&pieces[1]).unwrap(), one);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let loaded = load(&decoder(), all());
    let mut caller = Caller::new(&loaded, 1, 6);
    caller.step(&tensor(&[1, 4, 8], 1)).unwrap();
    let before = caller.block.contents().to_vec();
    let (status, message) = caller.step(&tensor(&[1, 3, 8], 2)).unwrap_err();
    assert_eq!(status, Status::STATE_FULL);
    assert_eq!(message, "the state is full: `past` would become 7, and there is room for 6");
    // A cancelled run counts for nothing.
    let (block, bytes) = (caller.block.as_mut_ptr(), caller.block.bytes());
    let x = tensor(&[1, 2, 8], 3);
    let (status, _) = caller.step_with(&x, (block, bytes, bytes as i64), Some(&1)).unwrap_err();
    assert_eq!(status, Status::CANCELLED);
    let (status, message) = caller.step(&tensor(&[2, 1, 8], 2)).unwrap_err();
    assert_eq!(status, Status::BAD_DIM);
    assert!(message.contains("dimension 0 is 2, must be 1 (`batch`, as in the state)"), "{message}");
    let refused = [
        ((block, bytes - 64, bytes as i64 - 64), Status::BAD_STATE, "bytes, must be"),
        ((block, bytes, 7), Status::BAD_DIM, "its dimension is 7"),
        ((block, 16, 16), Status::BAD_STATE, "needs at least"),
        ((block.wrapping_add(8), bytes, bytes as i64), Status::MISALIGNED, "not aligned to 64"),
        ((std::ptr::null_mut(), bytes, bytes as i64), Status::NULL_POINTER, "data is null"),
    ];
    for (state, wanted, text) in refused {
        let (status, message) = caller.step_with(&x, state, None).unwrap_err();
        assert_eq!(status, wanted, "{message}");
        assert!(message.starts_with("the state") && message.contains(text), "{message}");
    }
    assert_eq!(caller.block.contents(), before);
    caller.step(&x).unwrap();
    assert_eq!(caller.past(), 6);
    // Words that no run writes.
    let past = caller.model.symbols().iter().position(|name| name == "past").unwrap();
    for (word, value, text) in
        [(1 + past, -1, "negative"), (1 + past, 9, "is 9"), (0, 5, "has not been reset")]
    {
        let saved = caller.block.contents()[8 * word..][..8].to_vec();
        caller.block.contents_mut()[8 * word..][..8].copy_from_slice(&i64::to_le_bytes(value));
        let (status, message) = caller.step(&tensor(&[1, 1, 8], 2)).unwrap_err();
        assert_eq!(status, Status::BAD_STATE, "{message}");
        assert!(message.contains(text), "{message}");
        caller.block.contents_mut()[8 * word..][..8].copy_from_slice(&saved);
    }
}

#[test]
fn a_fixed_capacity_is_no_symbol() {
    let loaded = load(&decoder(), Choice { capacity: Some(9), ..all() });
    assert!(!loaded.model().unwrap().symbols().contains(&"past.capacity".to_string()));
    let pieces = pieces(1, &[4, 4, 1]);
    let mut caller = Caller::new(&loaded, 1, 0);
    for (x, wanted) in pieces.iter().zip(fed_back(&pieces)) {
        assert!(close(&caller.step(x).unwrap(), &wanted));
    }
    assert_eq!(caller.step(&pieces[2]).unwrap_err().0, Status::STATE_FULL);
}

/// States that take each other's values cannot both be copied; every other order can.
#[test]
fn states_that_are_exchanged() {
    let inputs = || vec![f32_value("a", &["3"]), f32_value("b", &["3"]), f32_value("x", &["3"])];
    let outputs = || vec![f32_value("c", &["3"]), f32_value("d", &["3"]), f32_value("y", &["3"])];
    let nodes = |first: &str| {
        vec![
            node("Identity", &["b"], &["c"]),
            node("Identity", &[first], &["d"]),
            node("Add", &["a", "x"], &["y"]),
        ]
    };
    let pairs = choice(&["a=c", "b=d"]);
    let shifted = build::model(12, build::graph(inputs(), nodes("x"), outputs()));
    let loaded = load(&shifted, pairs.clone());
    let [a, b, x] = [1, 2, 3].map(|seed| tensor(&[3], seed));
    let found = [Some(x.clone()), Some(a), Some(b.clone())];
    let shapes = native::output_shapes(&loaded.graph, &found).unwrap();
    let results = loaded.model().unwrap().run_guarded(&found, &shapes, &Call::default()).unwrap();
    assert_eq!(results[1..], [b, x]);
    let exchanged = build::model(12, build::graph(inputs(), nodes("a"), outputs()));
    let error = compile(&exchanged, pairs, Target::host().unwrap(), 3).map(|_| ()).unwrap_err();
    assert!(error.contains("the states c, d take each other's values"), "{error}");
}

/// The tensor before a run and after it, each read by others and given to the caller as well.
#[test]
fn what_reads_a_state_beside_the_append() {
    let inputs = vec![f32_value("x", &["new", "3"]), f32_value("past", &["old", "3"])];
    let sum = |from: &str, to: &str| {
        node("ReduceSum", &[from], &[to]).with(ints("axes", &[0])).with(build::int("keepdims", 0))
    };
    let nodes = vec![
        sum("past", "before"),
        node("Concat", &["past", "x", "x"], &["more"]).with(build::int("axis", 0)),
        sum("more", "after"),
        node("Identity", &["more"], &["again"]),
        node("Identity", &["past"], &["earlier"]),
        node("Relu", &["more"], &["positive"]),
    ];
    let outputs = vec![
        f32_value("again", &["all", "3"]),
        f32_value("before", &["3"]),
        f32_value("more", &["all", "3"]),
        f32_value("earlier", &["old", "3"]),
        f32_value("after", &["3"]),
        f32_value("positive", &["all", "3"]),
    ];
    let model = build::model(12, build::graph(inputs, nodes, outputs));
    let plain = compile(&model, Choice::default(), Target::host().unwrap(), 0).unwrap();
    for (new, old) in [(1, 0), (2, 5), (0, 4), (0, 0)] {
        let inputs = [("x", tensor(&[new, 3], 1)), ("past", tensor(&[old, 3], 2))];
        let given: Vec<Tensor> = ordered(&plain.graph, &inputs).into_iter().flatten().collect();
        let wanted = named(&plain.graph, interp::run(&plain.graph, &given).unwrap());
        for level in [0, 3] {
            let compiled = compile(&model, choice(&["past=more"]), native_target(), level).unwrap();
            let loaded = Loaded::new(compiled, Instant::now()).unwrap();
            let found = ordered(&loaded.graph, &inputs);
            let shapes = native::output_shapes(&loaded.graph, &found).unwrap();
            let run = loaded.model().unwrap().run_guarded(&found, &shapes, &Call::default()).unwrap();
            for (name, tensor) in named(&loaded.graph, run) {
                let other = &wanted.iter().find(|(own, _)| *own == name).unwrap().1;
                assert!(
                    close(&tensor, other),
                    "{name} of {new} after {old} at -O{level}: {tensor:?}, not {other:?}"
                );
            }
        }
    }
}

#[test]
fn what_is_appended_may_not_depend_on_what_is_there() {
    let inputs = vec![f32_value("x", &["1", "3"]), f32_value("past", &["old", "3"])];
    let mean = node("ReduceMean", &["past"], &["mean"]).with(ints("axes", &[0]));
    let nodes = vec![
        mean,
        node("Add", &["x", "mean"], &["next"]),
        node("Concat", &["past", "next"], &["more"]).with(build::int("axis", 0)),
    ];
    let model = build::model(12, build::graph(inputs, nodes, vec![f32_value("more", &["all", "3"])]));
    let error = compile(&model, choice(&["past=more"]), Target::host().unwrap(), 3).map(|_| ()).unwrap_err();
    assert!(error.contains("what is appended depends on what is there"), "{error}");
}

#[test]
fn making_a_state_checks_what_it_is_given() {
    let loaded = load(&decoder(), all());
    let model = loaded.model().unwrap();
    let names = model.symbols();
    let symbols = |batch: i64, capacity: i64| -> Vec<i64> {
        let value = |name: &String| match name.as_str() {
            "batch" => batch,
            "past.capacity" => capacity,
            _ => 0,
        };
        names.iter().map(value).collect()
    };
    for (batch, capacity, status) in [(1, i64::MAX, 10), (i64::MAX, 2, 10), (-1, 2, 5), (1, -1, 5)] {
        let error = model.state_bytes(&symbols(batch, capacity)).unwrap_err().to_string();
        assert!(error.contains(&format!("status {status}")), "{batch}, {capacity}: {error}");
    }
    assert!(model.state_bytes(&symbols(1, 2)[1..]).unwrap_err().to_string().contains("status 2"));
    let bytes = model.state_bytes(&symbols(2, 40)).unwrap();
    let mut block = native::Memory::default().block(bytes + 64, native::ALIGNMENT).unwrap();
    let mut reset = |from: usize, bytes: usize, symbols: &[i64]| {
        model.reset_state(&mut block.contents_mut()[from..from + bytes], symbols)
    };
    assert_eq!(reset(0, bytes, &symbols(2, 40)), Status::OK);
    assert_eq!(reset(0, bytes + 64, &symbols(2, 40)), Status::BAD_STATE);
    assert_eq!(reset(0, bytes, &symbols(2, 80)), Status::BAD_STATE);
    assert_eq!(reset(8, bytes, &symbols(2, 40)), Status::MISALIGNED);
    assert_eq!(reset(0, bytes, &symbols(-2, 40)), Status::BAD_DIM);
    assert_eq!(reset(0, bytes, &symbols(2, 40)[1..]), Status::BAD_COUNT);
    // Room for nothing is a state that no run appends to.
    let mut caller = Caller::new(&loaded, 1, 0);
    assert_eq!(caller.step(&tensor(&[1, 1, 8], 1)).unwrap_err().0, Status::STATE_FULL);
}

#[test]
fn pairs_are_found_by_their_names() {
    let plain = compile(&decoder(), Choice::default(), Target::host().unwrap(), 0).unwrap();
    let found = onnxc_import::state::pairs_of(&plain.graph);
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["past.key=present.key", "past.value=present.value"]);
    let states = compile(&decoder(), Choice { found: true, ..Choice::default() }, Target::host().unwrap(), 3);
    assert_eq!(states.unwrap().graph.states.len(), 2);
}

#[test]
fn pairs_that_are_none() {
    for (pairs, text) in [
        (&["nothing=y"][..], "no input is `nothing`; there are x, past.key, h_in, past.value, older"),
        (&["h_in=nothing"], "no output is `nothing`; there are present.value, y, h_out, present.key, newer"),
        (&["x=y"], "the input is f32[s0, s1, 8], the output f32[s0, 2, s1, 4]"),
        (&["past.key=present.value"], "is not the input with more behind it along axis 2"),
        (&["past.key=present.key:1"], "axis 1 of the input, which is to grow, is 2"),
        (&["past.key=present.key:7"], "the input has rank 4"),
        (&["h_in=h_out", "h_in=newer"], "`h_in` is in more than one pair"),
        (&["h_in=h_out", "older=h_out"], "`h_out` is in more than one pair"),
    ] {
        let error = compile(&decoder(), choice(pairs), Target::host().unwrap(), 3).map(|_| ()).unwrap_err();
        assert!(error.contains(text), "{pairs:?}: {error}");
    }
    for text in ["=a", "a=", ""] {
        assert!(Pair::from_str(text).unwrap_err().to_string().contains("must be INPUT=OUTPUT"));
    }
}

/// `x: [1, new, 8]` attends to its own cache of keys and values, then to those of an encoder, which are inputs alone; their length is
/// a symbol, or a number. The bias of the encoder's scores is given back as it came.
fn with_cross_attention(length: &str) -> ModelProto {
    let cache = |name: &str, length: &str| f32_value(name, &["batch", "2", length, "4"]);
    let bias = |name: &str| f32_value(name, &["1", "2", "1", length]);
    let inputs = vec![
        f32_value("x", &["batch", "new", "8"]),
        cache("past.cross.key", length),
        cache("past.key", "past"),
        cache("past.value", "past"),
        bias("past.bias"),
        cache("past.cross.value", length),
    ];
    let attention = |q: &str, k: &str, v: &str, bias: &str, y: &str| {
        let name = |part: &str| format!("{y}.{part}");
        vec![
            node("Transpose", &[k], &[&name("columns")]).with(ints("perm", &[0, 1, 3, 2])),
            node("MatMul", &[q, &name("columns")], &[&name("products")]),
            node("Add", &[&name("products"), bias], &[&name("scores")]),
            node("Softmax", &[&name("scores")], &[&name("weights")]).with(build::int("axis", -1)),
            node("MatMul", &[&name("weights"), v], &[y]),
        ]
    };
    let mut nodes = vec![
        node("Reshape", &["x", "split"], &["heads"]),
        node("Transpose", &["heads"], &["q"]).with(ints("perm", &[0, 2, 1, 3])),
        node("Tanh", &["q"], &["k"]),
        node("Concat", &["past.key", "k"], &["present.key"]).with(build::int("axis", 2)),
        node("Concat", &["past.value", "q"], &["present.value"]).with(build::int("axis", 2)),
        node("Identity", &["past.bias"], &["present.bias"]),
    ];
    nodes.extend(attention("q", "present.key", "present.value", "zero", "own"));
    nodes.extend(attention("own", "past.cross.key", "past.cross.value", "past.bias", "y"));
    let outputs = vec![
        f32_value("y", &["batch", "2", "new", "4"]),
        bias("present.bias"),
        cache("present.key", "all"),
        cache("present.value", "all"),
    ];
    let mut graph: GraphProto = build::graph(inputs, nodes, outputs);
    graph.initializer.push(build::i64_tensor("split", &[4], vec![0, 0, HEADS as i64, SIZE as i64]));
    graph.initializer.push(build::f32_tensor("zero", &[], vec![0.0]));
    build::model(12, graph)
}

/// What an encoder made stays in the block, keys in panels: every way to run gives what the model without states gives, and leaves
/// them as they were.
#[test]
fn inputs_alone_are_read_where_they_lie() {
    for (length, sizes) in [("frames", &[1, 16, 37][..]), ("21", &[21])] {
        let model = with_cross_attention(length);
        let plain = compile(&model, Choice::default(), Target::host().unwrap(), 0).unwrap();
        let found = onnxc_import::state::pairs_of(&plain.graph);
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        let pairs = [
            "past.key=present.key",
            "past.value=present.value",
            "past.bias=present.bias",
            "past.cross.key",
            "past.cross.value",
        ];
        assert_eq!(text, pairs);
        for (target, level) in [(Target::host().unwrap(), 0), (native_target(), 3)] {
            let compiled = compile(&model, choice(&pairs), target, level).unwrap();
            let graph = compiled.graph.clone();
            let panels = graph.states.iter().map(|state| state.panels.as_ref().map(|panels| panels.axis));
            if level == 3 {
                assert_eq!(panels.collect::<Vec<_>>(), [Some(2), None, None, Some(2), None], "{graph}");
            }
            let interpreted = Interpreted::new(&compiled).unwrap();
            let loaded =
                Loaded::new(compile(&model, choice(&pairs), native_target(), level).unwrap(), Instant::now());
            let loaded = loaded.unwrap();
            for (&frames, (batch, new, past)) in sizes.iter().zip([(1, 1, 6), (2, 3, 0), (1, 17, 2)]) {
                let inputs = [
                    ("x", tensor(&[batch, new, 8], 1)),
                    ("past.key", tensor(&[batch, HEADS, past, SIZE], 2)),
                    ("past.value", tensor(&[batch, HEADS, past, SIZE], 3)),
                    ("past.cross.key", tensor(&[batch, HEADS, frames, SIZE], 4)),
                    ("past.cross.value", tensor(&[batch, HEADS, frames, SIZE], 5)),
                    ("past.bias", tensor(&[1, HEADS, 1, frames], 6)),
                ];
                let given: Vec<Tensor> = ordered(&plain.graph, &inputs).into_iter().flatten().collect();
                let mut wanted = named(&plain.graph, interp::run(&plain.graph, &given).unwrap());
                wanted.extend(inputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())));
                let found = ordered(&graph, &inputs);
                let shapes = native::output_shapes(&graph, &found).unwrap();
                let tensors: Vec<Tensor> = found.iter().flatten().cloned().collect();
                let run = loaded.model().unwrap().run_guarded(&found, &shapes, &Call::default());
                for (how, outputs) in [
                    ("evaluated", interp::run(&graph, &tensors).unwrap()),
                    ("interpreted", interpreted.run(&found, &shapes).unwrap()),
                    ("compiled", run.unwrap()),
                ] {
                    assert_eq!(outputs.len(), 6);
                    for (name, tensor) in named(&graph, outputs) {
                        let other = &wanted.iter().find(|(own, _)| *own == name).unwrap().1;
                        assert!(
                            close(&tensor, other),
                            "{how} {name}, {frames} frames, {batch} x {new} after {past}, -O{level}: {tensor:?}, not {other:?}"
                        );
                    }
                }
            }
        }
    }
}

/// `onnxc_state_set` and `onnxc_state_get`, and where elements lie.
#[test]
fn tensors_in_a_block_in_c() {
    let import = onnxc_import::ImportOptions {
        state: Choice { found: true, ..Choice::default() },
        ..Default::default()
    };
    let target = native_target();
    let options = Options { import, ..Options::new("state", target) };
    let model = with_cross_attention("frames").encode_to_vec().into();
    let compiled = onnxc::compile(model, &onnxc_import::NoExternalData, &options, &mut Quiet).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let object = object::write(compiled.artifact().unwrap(), dir.path());
    assert_eq!(object::run_c(dir.path(), &object::source("state.c"), &[object], &[]), "ok");
}

/// A run packs nothing and copies nothing of what is only read: its workspace does not depend on how much there is.
#[test]
fn what_is_only_read_is_not_copied() {
    let model = with_cross_attention("frames");
    let kernels = |choice: Choice| {
        let compiled = compile(&model, choice, native_target(), 3).unwrap();
        let text = compiled.graph.to_string();
        (text.matches(" = pack ").count(), text.matches(" = append ").count())
    };
    assert_eq!(kernels(Choice::default()), (2, 0));
    assert_eq!(kernels(Choice { found: true, ..Choice::default() }), (0, 2));
}
