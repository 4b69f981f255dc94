//! Runs a scheduled graph through its kernels, one buffer per materialised value: what the loop nests of a whole graph
//! compute, to be held against the reference evaluator. Nothing here places values in an arena or checks what
//! inference assumed of sizes.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;

use crate::error::{Error, Result, Stage};
use crate::graph::{Def, Dim, Graph, Sym, Tensor, ValueId};
use crate::interp::constant;
use crate::loops::Kernel;
use crate::schedule::{GroupId, Program, Step};

fn fail<T>(message: String) -> Result<T> {
    Err(Error::internal(Stage::Loops, message))
}

/// Runs one kernel on its buffers, given the values of the graph's symbols; gives the kernel's code.
pub type Execute<'e> = &'e dyn Fn(&Kernel, &mut [Vec<u8>], &dyn Fn(Sym) -> Option<i64>) -> Result<u32>;

/// Runs `kernels`, one per group of `program`, on concrete inputs; gives the graph's outputs. A failed check is an
/// error with its code. Control flow is unsupported: bodies are programs of their own.
pub fn run(
    graph: &Graph,
    program: &Program,
    kernels: &[Kernel],
    inputs: &[Tensor],
    execute: Execute<'_>,
) -> Result<Vec<Tensor>> {
    let mut symbols = SecondaryMap::new();
    for (input, tensor) in graph.inputs.iter().zip(inputs) {
        for (dim, &size) in graph.ty(input.value).shape.iter().zip(&tensor.shape) {
            if let Some(sym) = dim.as_sym() {
                symbols[sym] = Some(size as i64);
            }
        }
    }
    let mut machine = Machine { graph, program, inputs, symbols, buffers: HashMap::new(), execute };
    for step in &program.steps {
        match step {
            Step::Run(group) => machine.group(*group, kernels)?,
            Step::Copy { .. } | Step::Allocate(_) | Step::Release(_) => {}
            Step::Bind(sym) => machine.bind(*sym)?,
            Step::Control { node, .. } => {
                return Err(Error::unsupported(
                    Stage::Loops,
                    format!("the control flow {node} in a program of kernels"),
                ));
            }
        }
    }
    graph.outputs.iter().map(|(_, value)| machine.tensor(*value)).collect()
}

struct Machine<'a> {
    graph: &'a Graph,
    program: &'a Program,
    inputs: &'a [Tensor],
    symbols: SecondaryMap<Sym, Option<i64>>,
    /// Bytes of computed values.
    buffers: HashMap<ValueId, Vec<u8>>,
    execute: Execute<'a>,
}

impl Machine<'_> {
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

    fn group(&mut self, id: GroupId, kernels: &[Kernel]) -> Result<()> {
        let group = &self.program.groups[id];
        let kernel = &kernels[id.as_u32() as usize];
        let mut buffers = group.inputs.iter().map(|&input| self.bytes(input)).collect::<Result<Vec<_>>>()?;
        for &output in &group.outputs {
            // Bytes that no kernel may count on.
            buffers.push(vec![0xa5; self.size(&self.graph.ty(output).bytes())?]);
        }
        if group.has_scratch() {
            buffers.push(vec![0xa5; self.size(&group.scratch)?]);
        }
        let code = (self.execute)(kernel, &mut buffers, &|sym| self.symbols[sym])?;
        if code != 0 {
            return fail(format!("kernel `{}` failed with code {code}", kernel.name));
        }
        let outputs = buffers.drain(group.inputs.len()..);
        for (&output, bytes) in group.outputs.iter().zip(outputs) {
            self.buffers.insert(self.program.storage(output), bytes);
        }
        Ok(())
    }
}
