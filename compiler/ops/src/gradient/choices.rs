//! The rule of choices: a choice by the same condition. Each of its bodies computes again what its own way back needs.

use std::sync::Arc;

use super::{Rule, adjoints, zeros};
use crate::control::iterate::as_type;
use crate::inner::used_values;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::op::Shapes;
use onnxc_ir::graph::{Graph, Op, ValueId};

impl Rule<'_, '_> {
    pub(super) fn chosen(&mut self, bodies: &Arc<[Graph; 2]>) -> Result<Vec<Option<ValueId>>> {
        let given: Vec<usize> =
            (0..self.of_results.len()).filter(|&at| self.of_results[at].is_some()).collect();
        let wanted: Vec<usize> = (1..self.wanted.len()).filter(|&at| self.wanted[at]).collect();
        let mut backs = vec![];
        for body in bodies.iter() {
            backs.push(self.branch_back(body, &given, &wanted)?);
        }
        // A body that does not read a captured value gives zeros, where the other one does.
        let is_any = |at: &usize| backs.iter().any(|back| back.found[*at].is_some());
        let found: Vec<usize> = (0..wanted.len()).filter(is_any).collect();
        if found.is_empty() {
            return Ok(vec![None; self.node.inputs.len()]);
        }
        let mut used = vec![false; self.node.inputs.len() - 1];
        for (back, body) in backs.iter_mut().zip(bodies.iter()) {
            let origin = back.graph.origins.push(self.b.source());
            let mut b = Builder::new(&mut back.graph, origin);
            let mut outputs = vec![];
            for &at in &found {
                let x = body.inputs[wanted[at] - 1].value;
                let adjoint = match back.found[at] {
                    Some(adjoint) => adjoint,
                    None => {
                        let (dtype, shape) = (b.dtype(x), b.shape(x));
                        zeros(&mut b, dtype, shape)?
                    }
                };
                outputs.push((String::new(), adjoint));
            }
            back.graph.outputs = outputs;
            back.graph.keep_reachable();
            let read = used_values(&back.graph);
            for (slot, input) in used.iter_mut().zip(&body.inputs) {
                *slot |= read.contains(&input.value);
            }
        }
        let captures: Vec<usize> = (0..used.len()).filter(|&at| used[at]).collect();
        let mut operands = vec![self.operand(0)];
        operands.extend(captures.iter().map(|&at| self.operand(at + 1)));
        operands.extend(given.iter().filter_map(|&at| self.of_results[at]));
        let graphs = backs.into_iter().zip(bodies.iter()).map(|(back, body)| {
            let Back { mut graph, adjoints, .. } = back;
            let own = captures.iter().map(|&at| body.inputs[at].value);
            graph.set_inputs(&own.chain(adjoints).collect::<Vec<_>>());
            graph.adopt_symbols(self.b.graph);
            graph
        });
        let Ok(graphs) = <[Graph; 2]>::try_from(graphs.collect::<Vec<_>>()) else { return self.unknown() };
        let results = self.b.emit(Op::If { bodies: Arc::new(graphs), shapes: Shapes::new() }, &operands)?;
        let mut of_operands = vec![None; self.node.inputs.len()];
        for (at, result) in found.into_iter().zip(results) {
            of_operands[wanted[at]] = Some(result);
        }
        Ok(of_operands)
    }

    fn branch_back(&mut self, body: &Graph, given: &[usize], wanted: &[usize]) -> Result<Back> {
        let mut graph = Graph { outputs: vec![], ..body.clone() };
        graph.adopt_symbols(self.b.graph);
        let nodes = graph.order.clone();
        let origin = graph.origins.push(self.b.source());
        let mut b = Builder::new(&mut graph, origin);
        let (mut inputs, mut seeds) = (vec![], vec![]);
        for &at in given {
            let (value, ty) = (body.outputs[at].1, self.b.ty(self.node.outputs[at]).clone());
            let input = b.input("", ty, None);
            inputs.push(input);
            seeds.push((value, as_type(&mut b, input, &body.ty(value).shape)?));
        }
        let xs: Vec<ValueId> = wanted.iter().map(|&at| body.inputs[at - 1].value).collect();
        let found = adjoints(&mut b, &nodes, &seeds, &xs, &mut |_| Ok(()))?;
        self.b.graph.adopt_symbols(&graph);
        Ok(Back { graph, adjoints: inputs, found })
    }
}

/// One body of the way back.
struct Back {
    graph: Graph,
    /// Inputs that are the adjoints of results.
    adjoints: Vec<ValueId>,
    /// Adjoints of the captured values that are wanted.
    found: Vec<Option<ValueId>>,
}
