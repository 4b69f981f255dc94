//! Checks of a model of many tensors, in functions of their own.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Checks, Given, given};
use crate::host::abi::status;
use crate::host::ir::{Compare, Operand, Port};
use crate::host::lower::layout::Plan;
use crate::host::message::V;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Graph, Sym, TensorType};

/// Tensors that a function checks: the register allocator takes more than linear time for a long one.
const CHECKS_PER_FUNCTION: usize = 64;

/// Tensors of a model that has many: functions of their own check them. Of inputs with defaults, outputs that data size, and what
/// has the sizes of a state `run` keeps the checks.
pub(in crate::host::lower) struct Apart {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    all: HashSet<Port>,
    /// The first lone dim of an input that is a symbol, which decides it.
    deciders: HashMap<Sym, (Port, usize)>,
}

impl Apart {
    pub(crate) fn new(plan: &Plan, graph: &Graph) -> Apart {
        let mut deciders = HashMap::new();
        let given = graph.inputs.iter().enumerate().take(graph.given_inputs());
        let given: Vec<usize> =
            given.filter(|(_, input)| input.default.is_none()).map(|(at, _)| at).collect();
        for &at in &given {
            for (axis, dim) in graph.input_ty(at).shape.iter().enumerate() {
                if let Some(sym) = dim.as_sym() {
                    deciders.entry(sym).or_insert((Port::Input(at as u32), axis));
                }
            }
        }
        let is_decided = |ty: &TensorType| {
            let mut known = true;
            let mut note = |sym: Sym| known &= plan.state.is_none() && deciders.contains_key(&sym);
            ty.shape.iter().for_each(|dim| dim.visit_symbols(&mut note));
            known
        };
        let late: HashSet<usize> = plan.dynamic.outputs.iter().map(|(output, _)| *output).collect();
        let outputs = (0..graph.given_outputs()).filter(|at| !late.contains(at));
        let outputs = outputs.filter(|&at| is_decided(graph.output_ty(at)));
        let mut outputs: Vec<Port> = outputs.map(|at| Port::Output(at as u32)).collect();
        let inputs = given.into_iter().filter(|&at| is_decided(graph.input_ty(at)));
        let mut inputs: Vec<Port> = inputs.map(|at| Port::Input(at as u32)).collect();
        if inputs.len() + outputs.len() <= 2 * CHECKS_PER_FUNCTION {
            inputs.clear();
            outputs.clear();
        }
        let all = inputs.iter().chain(&outputs).copied().collect();
        Apart { inputs, outputs, all, deciders }
    }

    pub(crate) fn has(&self, port: Port) -> bool {
        self.all.contains(&port)
    }

    /// The tensors of each function that checks some. The first functions check types and decide the symbols of inputs; the next ones
    /// rely on these and check the rest of the inputs; the last ones check outputs.
    pub(crate) fn functions(&self) -> [(Verified, std::slice::Chunks<'_, Port>); 3] {
        [
            (Verified::Types, self.inputs.chunks(CHECKS_PER_FUNCTION)),
            (Verified::Inputs, self.inputs.chunks(CHECKS_PER_FUNCTION)),
            (Verified::Outputs, self.outputs.chunks(CHECKS_PER_FUNCTION)),
        ]
    }
}

/// What functions check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::host::lower) enum Verified {
    Types,
    Inputs,
    Outputs,
}

impl Checks<'_, '_> {
    /// A part of the checks of some tensors, in a function of their own.
    pub(crate) fn check_apart(&mut self, verified: Verified, ports: &[Port]) -> Result<()> {
        let graph = self.scope.graph;
        for &port in ports {
            let ty = match port {
                Port::Input(at) => graph.input_ty(at as usize),
                Port::Output(at) => graph.output_ty(at as usize),
            };
            let given = given(graph, port);
            match verified {
                Verified::Types => {
                    self.check_type(&given, ty);
                    self.decide(&given, ty);
                    continue;
                }
                Verified::Inputs => self.load_symbols(ty),
                Verified::Outputs => {
                    self.check_type(&given, ty);
                    self.load_symbols(ty);
                }
            }
            let (exact, dims) = (verified == Verified::Inputs, self.dims(ty)?);
            // A caller need not fill in the symbolic dims of an output.
            self.check_dims(&given, ty, &dims, |_, dim| exact || dim.is_const());
            let bytes = self.bytes(&given, ty)?;
            self.check_data(&given, ty, bytes, exact);
        }
        Ok(())
    }

    /// The values of a type's symbols; another function has checked that they can be read.
    pub(super) fn load_symbols(&mut self, ty: &TensorType) {
        let mut symbols = BTreeSet::new();
        ty.shape.iter().for_each(|dim| dim.visit_symbols(&mut |sym| symbols.extend([sym])));
        for sym in symbols {
            if let Some(&(port, axis)) = self.apart.deciders.get(&sym)
                && !self.deciders.contains_key(&sym)
            {
                let decider = given(self.scope.graph, port);
                let value = self.dim(&decider, axis);
                self.decided(sym, value, &decider, axis);
            }
        }
    }

    fn decided(&mut self, sym: Sym, value: Operand, decider: &Given, axis: usize) {
        self.sizes.symbols.insert(sym, value);
        self.deciders.insert(sym, format!("dimension {axis} of {}", decider.what));
    }

    /// The lone symbolic dims of an input that decide symbols, which are not negative.
    pub(super) fn decide(&mut self, given: &Given, ty: &TensorType) {
        for (axis, dim) in ty.shape.iter().enumerate() {
            let Some(sym) = dim.as_sym() else { continue };
            if self.apart.deciders.get(&sym) != Some(&(given.port, axis)) || self.deciders.contains_key(&sym)
            {
                continue;
            }
            let value = self.dim(given, axis);
            let negative = self.b.compare(Compare::Lt, value, 0);
            let template = format!("{}: dimension {axis} is {V}, which is negative", given.what);
            self.b.fail_if(negative, status::BAD_DIM, &template, &[value]);
            self.decided(sym, value, given, axis);
        }
    }
}
