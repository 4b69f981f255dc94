//! Loop-invariant code motion: what a scan's body computes from captures and constants alone is computed once,
//! before the scan, and captured.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::op::Readings;
use onnxc_ir::graph::{Constant, DType, Def, Graph, Input, MapFn, NodeId, Op, OriginId, Value, ValueId};

/// All but conversions of bytes to more bits: as long as these stand beside the products that read them, `integers` sees that
/// the operands are bytes.
pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    of_all(graph, options, &|body, op, inputs| !widens_bytes(body, op, inputs))
}

/// The rest, too.
pub(crate) fn last(graph: &mut Graph, options: &Options) -> Result<()> {
    of_all(graph, options, &|_, _, _| true)
}

/// Whether a node of a body, of these inputs, may be moved.
type May<'a> = &'a dyn Fn(&Graph, &Op, &[ValueId]) -> bool;

fn widens_bytes(body: &Graph, op: &Op, inputs: &[ValueId]) -> bool {
    let Op::Map(MapFn::Cast { to, .. }) = op else { return false };
    to.is_int() && to.bits() > 8 && inputs.iter().all(|&x| matches!(body.ty(x).dtype, DType::I8 | DType::U8))
}

fn of_all(graph: &mut Graph, options: &Options, may: May<'_>) -> Result<()> {
    let mut changed = false;
    for id in std::mem::take(&mut graph.order) {
        // Inner scans first: what leaves them may leave this one too.
        for body in graph.nodes[id].op.bodies_mut() {
            of_all(body, options, may)?;
        }
        changed |= hoist(graph, id, may)?;
        graph.order.push(id);
    }
    if changed {
        // Captures that only hoisted nodes read are no longer needed.
        dce::run(graph, options)?;
    }
    Ok(())
}

/// Moves the invariants of one scan before it; the nodes built join the end of the graph's order.
fn hoist(graph: &mut Graph, id: NodeId, may: May<'_>) -> Result<bool> {
    let node = &mut graph.nodes[id];
    let (origin, mut operands) = (node.origin, node.inputs.clone());
    let Op::Scan { body, states, scans, .. } = &mut node.op else { return Ok(false) };
    let mut inner = std::mem::take(Arc::make_mut(body));
    let first_capture = *states + *scans;
    let mut outside: HashMap<ValueId, ValueId> = inner.inputs[first_capture..]
        .iter()
        .zip(&operands[first_capture..])
        .map(|(input, &value)| (input.value, value))
        .collect();
    let captures = outside.clone();
    let mut changed = false;
    for at in std::mem::take(&mut inner.order) {
        if lift(graph, &inner, at, origin, may, &mut outside)? {
            changed = true;
        } else {
            inner.order.push(at);
        }
    }
    capture_lifted(&mut inner, &mut operands, &outside, &captures);
    let node = &mut graph.nodes[id];
    node.inputs = operands;
    if let Op::Scan { body, .. } = &mut node.op {
        *body = Arc::new(inner);
    }
    Ok(changed)
}

/// Rebuilds a body node outside if its operands are all there.
fn lift(
    graph: &mut Graph,
    body: &Graph,
    at: NodeId,
    origin: OriginId,
    may: May<'_>,
    outside: &mut HashMap<ValueId, ValueId>,
) -> Result<bool> {
    let node = &body.nodes[at];
    let known = |value: &ValueId| outside.contains_key(value) || body.is_constant(*value);
    // A broadcast or a window would take memory outside; inside it is only a way to read its operand. What can fail must
    // not do so before a loop that never runs.
    let spreads = node.op.is_view() && node.op.readings(0) == Readings::Spread;
    if spreads || node.op.takes_indices() || node.op.is_hosted() || !may(body, &node.op, &node.inputs) {
        return Ok(false);
    }
    if node.inputs.is_empty() || !node.inputs.iter().all(known) || !body.data_symbols(at).is_empty() {
        return Ok(false);
    }
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for &input in &node.inputs {
        inputs.push(copy_outside(graph, body, input, outside));
    }
    let mut b = Builder::new(graph, origin);
    let results = b.emit(node.op.clone(), &inputs)?;
    for (&inner, outer) in node.outputs.iter().zip(results) {
        outside.insert(inner, outer);
    }
    Ok(true)
}

/// The outer value of a capture, a lifted value or a constant of the body; constants are copied on demand.
fn copy_outside(
    graph: &mut Graph,
    body: &Graph,
    value: ValueId,
    outside: &mut HashMap<ValueId, ValueId>,
) -> ValueId {
    let operands = |value: ValueId| match &body.values[value].def {
        Def::Const(Constant::Deferred { inputs, .. }) => inputs.as_slice(),
        _ => &[],
    };
    let mut stack = vec![value];
    while let Some(&top) = stack.last() {
        if outside.contains_key(&top) {
            stack.pop();
            continue;
        }
        let missing = operands(top).iter().copied().filter(|operand| !outside.contains_key(operand));
        let before = stack.len();
        stack.extend(missing);
        if stack.len() > before {
            continue;
        }
        stack.pop();
        let mut copy = body.values[top].clone();
        if let Def::Const(Constant::Deferred { inputs, .. }) = &mut copy.def {
            inputs.iter_mut().for_each(|input| *input = outside[&*input]);
        }
        let outer = graph.values.push(copy);
        outside.insert(top, outer);
    }
    outside[&value]
}

/// Makes each lifted value that the body still reads a capture.
fn capture_lifted(
    body: &mut Graph,
    operands: &mut Vec<ValueId>,
    outside: &HashMap<ValueId, ValueId>,
    captures: &HashMap<ValueId, ValueId>,
) {
    let uses = body.use_counts();
    let mut lifted: Vec<ValueId> = outside
        .keys()
        .copied()
        .filter(|value| !captures.contains_key(value) && matches!(body.values[*value].def, Def::Node(..)))
        .filter(|value| uses[*value] > 0)
        .collect();
    lifted.sort_unstable();
    for value in lifted {
        let def = Def::Input(body.inputs.len());
        let Value { name, .. } = &body.values[value];
        body.inputs.push(Input { name: name.clone(), value, default: None });
        body.values[value].def = def;
        operands.push(outside[&value]);
    }
}
