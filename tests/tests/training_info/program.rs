//! Programs of a model with its training in this process, and the state that they share.

use onnxc::cli::session::{Loaded, LoadedEntry};
use onnxc::native::{self, Call, GuardedBlock, Memory, Model};
use onnxc_ir::graph::{DType, Graph, Tensor};
use onnxc_ir::interp;
use onnxc_runtime_support::{Options as RunOptions, Status};

/// A program of a model in this process: its own, or an entry.
pub(crate) struct Program<'l> {
    pub graph: &'l Graph,
    pub model: Model<'l>,
}

pub(crate) fn own(loaded: &Loaded) -> Program<'_> {
    Program { graph: &loaded.graph, model: loaded.model().unwrap() }
}

pub(crate) fn entry<'l>(loaded: &'l Loaded, suffix: &str) -> Program<'l> {
    let names: Vec<&str> = loaded.entries.iter().map(|entry| entry.suffix.as_str()).collect();
    let found = loaded.entries.iter().find(|entry| entry.suffix == suffix);
    let found: &LoadedEntry = found.unwrap_or_else(|| panic!("no {suffix} among {names:?}"));
    Program { graph: &found.graph, model: loaded.entry(found).unwrap() }
}

/// The state block of a caller.
pub(crate) struct State(pub GuardedBlock);

impl State {
    pub(crate) fn new(own: &Program<'_>) -> State {
        let symbols = vec![1; own.model.symbols().len()];
        let bytes = own.model.state_bytes(&symbols).unwrap();
        let mut block = Memory::default().block(bytes, native::ALIGNMENT).unwrap();
        assert_eq!(own.model.reset_state(block.contents_mut(), &symbols), Status::OK);
        State(block)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.contents().to_vec()
    }

    /// The tensor of this name as it lies in the block.
    pub(crate) fn get(&self, graph: &Graph, name: &str) -> Tensor {
        let mut at = 64;
        for (number, state) in graph.states.iter().enumerate() {
            let shape: Vec<usize> =
                state.ty.shape.iter().map(|dim| dim.as_const().unwrap() as usize).collect();
            let bytes = shape.iter().product::<usize>() * state.ty.dtype.size();
            if graph.inputs[graph.given_inputs() + number].name == name {
                return Tensor::new(state.ty.dtype, shape, self.bytes()[at..at + bytes].to_vec().into());
            }
            at += bytes.next_multiple_of(64);
        }
        panic!("no state is `{name}`");
    }

    pub(crate) fn values(&self, graph: &Graph, name: &str) -> Vec<f64> {
        values(&self.get(graph, name))
    }
}

impl Program<'_> {
    /// What a call of this gives and leaves by the evaluator.
    pub(crate) fn reference(&self, inputs: &[Tensor], state: &State) -> Vec<Tensor> {
        let first = self.graph.given_inputs();
        let states = self.graph.inputs[first..].iter().map(|input| state.get(self.graph, &input.name));
        let all: Vec<Tensor> = inputs.iter().cloned().chain(states).collect();
        interp::run(self.graph, &all).unwrap()
    }

    /// One call on the caller's block. Its results are those of the evaluator, and so is what it leaves in the block.
    pub(crate) fn call(&self, inputs: &[Tensor], state: &mut State) -> Vec<Tensor> {
        let wanted = self.reference(inputs, state);
        let (status, outputs) = self.call_with(inputs, state, RunOptions::default());
        assert_eq!(status, Status::OK);
        let given = self.graph.given_outputs();
        let left = self.graph.inputs[self.graph.given_inputs()..].iter();
        let left = left.map(|input| state.get(self.graph, &input.name));
        for (found, wanted) in outputs.iter().cloned().chain(left).zip(&wanted) {
            assert_eq!(found.shape, wanted.shape);
            for (found, wanted) in values(&found).iter().zip(values(wanted)) {
                assert!((found - wanted).abs() <= 2e-5 * (1.0 + wanted.abs()), "{found}, must be {wanted}");
            }
        }
        assert_eq!(outputs.len(), given);
        outputs
    }

    pub(crate) fn call_with(
        &self,
        inputs: &[Tensor],
        state: &mut State,
        options: RunOptions,
    ) -> (Status, Vec<Tensor>) {
        let mut given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
        given.extend(vec![None; self.graph.states.len()]);
        let shapes = native::output_shapes(self.graph, &given).unwrap();
        let mut prepared = self.model.prepare(&given, &shapes).unwrap();
        let mut arguments = prepared.arguments(&Call::default());
        let mut dims = [0];
        if !self.graph.states.is_empty() {
            arguments.use_state(&mut state.0, &mut dims);
        }
        arguments.options.cancel = options.cancel;
        arguments.options.step_done = options.step_done;
        arguments.options.step_context = options.step_context;
        // SAFETY: the arguments are those of a prepared call, but for the block, which is alive and has its bytes.
        let status = unsafe { arguments.run(&self.model) };
        prepared.check_guards().unwrap();
        let outputs = prepared.outputs().unwrap().into_iter().take(self.graph.given_outputs()).collect();
        (status, outputs)
    }
}

/// Elements of a tensor of any type.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.data.as_ref();
    match tensor.dtype {
        DType::I64 => {
            bytes.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as f64).collect()
        }
        DType::I16 => {
            bytes.chunks(2).map(|bytes| i16::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
        }
        DType::U8 | DType::Bool => bytes.iter().map(|&byte| byte.into()).collect(),
        _ => tensor.to_f64s().unwrap(),
    }
}
