//! Runs a scheduled graph through its kernels, one buffer per materialised value: what the loop nests of a whole graph
//! compute, to be held against the reference evaluator. Loops and choices run as the evaluator runs them, their bodies
//! as programs. Nothing here places values in an arena or checks what inference assumed of sizes.

use std::collections::{BTreeMap, HashMap};

use cranelift_entity::SecondaryMap;

use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Def, Dim, Graph, NodeId, Op, Sym, Tensor, ValueId};
use onnxc_ir::interp::{self, Symbols, constant};
use onnxc_schedule::{GroupId, Program, Step};

fn fail<T>(message: String) -> Result<T> {
    Err(Error::internal(Stage::Loops, message))
}

/// What runs the groups of a program, one `K` for each: a kernel, or machine code; and that of the bodies of its control
/// flow.
#[derive(Debug)]
pub struct Kernels<K> {
    pub groups: Vec<K>,
    pub bodies: BTreeMap<NodeId, Vec<Kernels<K>>>,
}

impl<K> Kernels<K> {
    /// One `build` makes for each group of a program and of the programs in it.
    pub fn new(
        graph: &Graph,
        program: &Program,
        build: &dyn Fn(&Graph, &Program, GroupId) -> Result<K>,
    ) -> Result<Kernels<K>> {
        let groups =
            program.groups.keys().map(|group| build(graph, program, group)).collect::<Result<_>>()?;
        let mut all = BTreeMap::new();
        for step in &program.steps {
            if let Step::Control { node, bodies, .. } = step {
                let graphs = graph.nodes[*node].op.bodies();
                let kernels =
                    graphs.iter().zip(bodies).map(|(body, program)| Kernels::new(body, program, build));
                all.insert(*node, kernels.collect::<Result<_>>()?);
            }
        }
        Ok(Kernels { groups, bodies: all })
    }
}

/// Of a program without control flow.
impl<K> From<Vec<K>> for Kernels<K> {
    fn from(groups: Vec<K>) -> Kernels<K> {
        Kernels { groups, bodies: BTreeMap::new() }
    }
}

/// Runs one kernel on its buffers, given the values of the graph's symbols; gives the kernel's code.
pub type Execute<'e, K> = &'e dyn Fn(&K, &mut [Vec<u8>], &dyn Fn(Sym) -> Option<i64>) -> Result<u32>;

/// A group that has run, in the program of the graph or of a body.
pub struct Ran<'r, K> {
    pub graph: &'r Graph,
    pub program: &'r Program,
    pub group: GroupId,
    pub kernel: &'r K,
    pub symbols: &'r Symbols,
    /// Values of the group's inputs and outputs.
    pub inputs: &'r [Tensor],
    pub outputs: &'r [Tensor],
}

/// Hears of every group that has run.
pub type Observe<'o, K> = &'o mut dyn FnMut(Ran<'_, K>) -> Result<()>;

/// Runs `kernels` on concrete inputs; gives the graph's outputs. A failed check is an error with its code.
pub fn run<K>(
    graph: &Graph,
    program: &Program,
    kernels: &Kernels<K>,
    inputs: &[Tensor],
    execute: Execute<'_, K>,
) -> Result<Vec<Tensor>> {
    run_with(graph, program, kernels, inputs, execute, &mut |_| Ok(()))
}

/// As [`run`], heard by `observe`. Inputs of packed elements have one element a byte; the seed of random numbers is 0.
pub fn run_with<K>(
    graph: &Graph,
    program: &Program,
    kernels: &Kernels<K>,
    inputs: &[Tensor],
    execute: Execute<'_, K>,
    observe: Observe<'_, K>,
) -> Result<Vec<Tensor>> {
    let mut symbols = SecondaryMap::new();
    for (input, tensor) in graph.inputs.iter().zip(inputs) {
        for (dim, &size) in graph.ty(input.value).shape.iter().zip(&tensor.shape) {
            if let Some(sym) = dim.as_sym() {
                symbols[sym] = Some(size as i64);
            }
        }
    }
    if let Some(seed) = graph.seed {
        symbols[seed] = Some(0);
    }
    ProgramRun { graph, program, kernels, inputs, symbols, buffers: HashMap::new(), execute, observe }.run()
}

struct ProgramRun<'a, 'o, K> {
    graph: &'a Graph,
    program: &'a Program,
    kernels: &'a Kernels<K>,
    inputs: &'a [Tensor],
    symbols: Symbols,
    /// Bytes of computed values.
    buffers: HashMap<ValueId, Vec<u8>>,
    execute: Execute<'a, K>,
    observe: Observe<'o, K>,
}

impl<K> ProgramRun<'_, '_, K> {
    fn run(mut self) -> Result<Vec<Tensor>> {
        let program = self.program;
        for step in &program.steps {
            match step {
                Step::Run(group) => self.group(*group)?,
                // Every value has a buffer of its own.
                Step::Copy { .. } | Step::Allocate(_) | Step::Release(_) => {}
                Step::Bind(sym) => self.bind(*sym)?,
                Step::Control { node, bodies, .. } => self.control(*node, bodies)?,
            }
        }
        let output = |(at, (_, value)): (usize, &(String, ValueId))| {
            let tensor = self.tensor(*value)?;
            let Some(own) = self.graph.any_rank.get(&at) else { return Ok(tensor) };
            let trimmed = own.trimmed(&tensor, &|sym| self.symbols[sym]);
            trimmed.map_or_else(|| fail(format!("output {at} has not the rank {}", own.rank)), Ok)
        };
        self.graph.outputs.iter().enumerate().map(output).collect()
    }

    fn size(&self, dim: &Dim) -> Result<usize> {
        let size = dim.eval(&|sym| self.symbols[sym]).and_then(|size| usize::try_from(size).ok());
        match size {
            Some(size) => Ok(size),
            None => fail(format!("the dim {dim} has no size")),
        }
    }

    /// Bytes of a value; those of a computed value are cut to its own size, as a shared buffer may be larger.
    fn bytes(&self, value: ValueId) -> Result<Vec<u8>> {
        let storage = self.program.storage(value);
        match &self.graph.values[storage].def {
            Def::Input(number) => Ok(self.inputs[*number].data.to_vec()),
            Def::Const(_) => Ok(constant(self.graph, storage)?.data.to_vec()),
            Def::Node(..) => match self.buffers.get(&storage) {
                Some(bytes) => {
                    Ok(bytes[..self.size(&self.graph.ty(value).bytes())?.min(bytes.len())].to_vec())
                }
                None => fail(format!("{value} is read before it is computed")),
            },
        }
    }

    fn tensor(&self, value: ValueId) -> Result<Tensor> {
        let ty = self.graph.ty(value);
        let shape = ty.shape.iter().map(|dim| self.size(dim)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::new(ty.dtype, shape, self.bytes(value)?.into()))
    }

    /// Reads a data symbol.
    fn bind(&mut self, sym: Sym) -> Result<()> {
        let data = &self.graph.data[&sym];
        let bytes = self.bytes(data.value)?;
        let element = bytes.get(8 * data.element..).and_then(|rest| rest.first_chunk::<8>());
        let size = element.map(|bytes| i64::from_le_bytes(*bytes));
        let bound = data.bound.as_ref().and_then(|bound| bound.eval(&|sym| self.symbols[sym]));
        match size {
            Some(size) if size >= 0 && bound.is_none_or(|bound| size <= bound) => {
                self.symbols[sym] = Some(size);
                Ok(())
            }
            _ => fail(format!("{sym} is {size:?}, at most {bound:?}")),
        }
    }

    fn group(&mut self, id: GroupId) -> Result<()> {
        let group = &self.program.groups[id];
        let kernel = &self.kernels.groups[id.as_u32() as usize];
        let mut buffers = group.inputs.iter().map(|&input| self.bytes(input)).collect::<Result<Vec<_>>>()?;
        for &output in &group.outputs {
            // Bytes that no kernel may count on.
            buffers.push(vec![0xa5; self.size(&self.graph.ty(output).bytes())?]);
        }
        for bytes in group.scratch_buffers(self.graph) {
            buffers.push(vec![0xa5; self.size(&bytes)?]);
        }
        let inputs = group.inputs.iter().map(|&input| self.tensor(input)).collect::<Result<Vec<_>>>()?;
        let code = (self.execute)(kernel, &mut buffers, &|sym| self.symbols[sym])?;
        if code != 0 {
            let origin = &self.graph.origins[self.graph.nodes[group.anchor].origin];
            return fail(format!(
                "{id} of node `{}` ({}) failed with code {code}",
                origin.name, origin.op_type
            ));
        }
        let outputs = buffers.drain(group.inputs.len()..);
        for (&output, bytes) in group.outputs.iter().zip(outputs) {
            self.buffers.insert(self.program.storage(output), bytes);
        }
        let outputs = group.outputs.iter().map(|&output| self.tensor(output)).collect::<Result<Vec<_>>>()?;
        let (inputs, outputs) = (inputs.as_slice(), outputs.as_slice());
        let (graph, program, symbols) = (self.graph, self.program, &self.symbols);
        (self.observe)(Ran { graph, program, group: id, kernel, symbols, inputs, outputs })
    }

    /// A call, a loop or a choice. Sizes that its bodies decide are data of this graph, bound by steps that follow.
    fn control(&mut self, node: NodeId, bodies: &[Program]) -> Result<()> {
        let data = &self.graph.nodes[node];
        let inputs = data.inputs.iter().map(|&input| self.tensor(input)).collect::<Result<Vec<_>>>()?;
        if let Op::Call(call) = &data.op {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let result = interp::call(call, self.graph.strings.as_ref(), &inputs, &self.symbols)?;
            self.buffers.insert(self.program.storage(data.outputs[0]), result.data.to_vec());
            return Ok(());
        }
        if let Op::External(external) = &data.op {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let results = interp::call_external(external, &inputs, &self.symbols)?;
            for (&output, result) in data.outputs.iter().zip(results) {
                self.buffers.insert(self.program.storage(output), result.data.to_vec());
            }
            return Ok(());
        }
        if let Op::Exchange(exchange) = &data.op {
            return fail(format!("{} of {} ranks in a run of one", exchange.name(), exchange.group.count));
        }
        let Some(kernels) = self.kernels.bodies.get(&node) else {
            return fail(format!("{node} has no kernels"));
        };
        let graphs = data.op.bodies();
        let (execute, observe) = (self.execute, &mut *self.observe);
        let results = interp::run_bodies(
            &data.op,
            &inputs.iter().collect::<Vec<_>>(),
            &self.symbols,
            &mut |number, inputs, symbols| {
                let (graph, program, kernels) = (&graphs[number], &bodies[number], &kernels[number]);
                let (symbols, buffers) = (symbols.clone(), HashMap::new());
                let observe = &mut *observe;
                ProgramRun { graph, program, kernels, inputs: &inputs, symbols, buffers, execute, observe }
                    .run()
            },
        )?;
        for (&output, result) in data.outputs.iter().zip(results) {
            self.buffers.insert(self.program.storage(output), result.data.to_vec());
        }
        Ok(())
    }
}
