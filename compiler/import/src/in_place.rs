//! Operators of ONNX Runtime's training that write into their inputs. In its artifacts their results are flags alone: what is learnt
//! is in the tensors that they are given. Here nothing is written into inputs, and each such tensor becomes an output of its own.

use std::collections::HashSet;

use onnxc_proto::{ModelProto, NodeProto, ValueInfoProto};

/// Per operator, outputs and the inputs that they are what is written into.
const WRITERS: &[(&str, &[(usize, usize)])] = &[
    ("AdamWOptimizer", &[(1, 2), (2, 4), (3, 5)]),
    ("InPlaceAccumulatorV2", &[(1, 0)]),
    ("SGDOptimizerV2", &[(1, 1)]),
];

fn writes(node: &NodeProto) -> &'static [(usize, usize)] {
    let row = WRITERS.iter().find(|row| node.domain() == "com.microsoft" && node.op_type() == row.0);
    row.map_or(&[], |row| row.1)
}

/// The model with an output for each of its inputs that a node would write into and has no name for. A note says so of each.
pub(super) fn with_outputs(model: &ModelProto) -> Option<(ModelProto, Vec<String>)> {
    let graph = model.graph.as_ref()?;
    if !graph.node.iter().any(|node| !writes(node).is_empty()) {
        return None;
    }
    let mut model = model.clone();
    let graph = model.graph.as_mut()?;
    let names = graph.node.iter().flat_map(|node| node.output.iter().chain(&node.input));
    let mut taken: HashSet<String> =
        names.chain(graph.input.iter().flat_map(|info| &info.name)).cloned().collect();
    let (mut outputs, mut notes) = (vec![], vec![]);
    for node in &mut graph.node {
        for &(output, input) in writes(node) {
            let named = node.output.get(output).is_some_and(|name| !name.is_empty());
            let info =
                graph.input.iter().find(|info| node.input.get(input).is_some_and(|name| info.name() == name));
            let Some(info) = info.filter(|_| !named) else { continue };
            let mut name = format!("{}.next", info.name());
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            if node.output.len() <= output {
                node.output.resize(output + 1, String::new());
            }
            node.output[output].clone_from(&name);
            let (operator, written) = (node.op_type(), info.name());
            notes.push(format!(
                "{operator} would write into `{written}`; output `{name}` is what it would write"
            ));
            outputs.push(ValueInfoProto { name: Some(name), ..info.clone() });
        }
    }
    graph.output.extend(outputs);
    Some((model, notes))
}
