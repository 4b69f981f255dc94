//! Evaluates the nodes of a graph, one after the other, with the symbols that they define.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use cranelift_entity::SecondaryMap;

use super::{call, constant, control, eval_named, external, type_of};
use crate::error::{Error, Kind, NodeRef, Result, Stage};
use crate::graph::claim::{Operand, rendered};
use crate::graph::dim::Sym;
use crate::graph::exchange::{Exchange, Ranks, token};
use crate::graph::op::DimRole;
use crate::graph::{Dim, Graph, NodeId, Op, Tensor, ValueId};

/// Sizes of the symbols, as far as they are known.
pub type Symbols = SecondaryMap<Sym, Option<i64>>;

/// Runs some nodes of a graph, in topological order; `values` holds what they read and none of them computes, and then
/// their results.
pub fn run_nodes(
    graph: &Graph,
    nodes: &[NodeId],
    values: &mut HashMap<ValueId, Tensor>,
    symbols: &Symbols,
) -> Result<()> {
    for &id in nodes {
        let node = &graph.nodes[id];
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            operands.push(match values.get(&input) {
                Some(tensor) => tensor.clone(),
                None => constant(graph, input)?,
            });
        }
        let op = substitute(&node.op, symbols)?;
        let operands_of = operands.iter().collect::<Vec<_>>();
        let results = eval_named(op.as_ref(), &operands_of, &indices_of(graph, id, symbols));
        let results = results.map_err(|error| error.at(node_ref(graph, id, &operands)))?;
        values.extend(node.outputs.iter().copied().zip(results));
    }
    Ok(())
}

/// What messages call the indices of a gather or scatter, and by which shape they count their places.
fn indices_of(graph: &Graph, id: NodeId, symbols: &Symbols) -> Operand {
    let node = &graph.nodes[id];
    if !node.op.takes_indices() {
        return Operand::new("");
    }
    let value = graph.moved_indices(node.inputs[1]).last();
    let size = |dim: &Dim| dim.eval(&|sym| symbols[sym]).and_then(|size| usize::try_from(size).ok());
    let shape =
        value.and_then(|value| graph.ty(value).shape.iter().map(size).collect::<Option<Vec<usize>>>());
    Operand { shape: shape.map(Arc::from), ..graph.indices_of(id) }
}

/// What inference took to hold, where it mentions a symbol that `concerns` and all its symbols have values.
pub(crate) fn check_assumptions(
    graph: &Graph,
    symbols: &Symbols,
    concerns: &dyn Fn(Sym) -> bool,
) -> Result<()> {
    for assumption in graph.assumptions.iter() {
        let requirement = &assumption.requirement;
        let mut concerned = false;
        assumption.visit_dims(&mut |dim| dim.visit_symbols(&mut |sym| concerned |= concerns(sym)));
        let value = |dim: &Dim| dim.eval(&|sym| symbols[sym]);
        let is_known = assumption.claim.values.iter().all(|dim| value(dim).is_some());
        if concerned
            && is_known
            && let (Some(left), Some(right)) = (value(&requirement.left), value(&requirement.right))
            && !requirement.relation.holds(left, right)
        {
            let text = |dim: &Dim| value(dim).map_or_else(|| graph.dim_words(dim), |size| size.to_string());
            return usage(assumption.sentence(&text));
        }
    }
    Ok(())
}

/// Live data symbols by the value that defines them.
type Sources = HashMap<ValueId, Vec<Sym>>;

fn sources(graph: &Graph) -> Sources {
    let mut sources = Sources::new();
    for sym in graph.live_data_symbols() {
        sources.entry(graph.data[&sym].value).or_default().push(sym);
    }
    sources
}

/// Gives the symbols that `value` defines their values.
fn bind_data(
    graph: &Graph,
    sources: &Sources,
    value: ValueId,
    tensor: &Tensor,
    symbols: &mut Symbols,
) -> Result<()> {
    let Some(defined) = sources.get(&value) else { return Ok(()) };
    let elements = tensor.to_i64s().unwrap_or_default();
    for &sym in defined {
        let data = &graph.data[&sym];
        let Some(&size) = elements.get(data.element) else {
            let message = format!("{sym} is element {} of {}", data.element, type_of(tensor));
            return Err(Error::internal(Stage::Run, message));
        };
        let bound = data.bound.as_ref().and_then(|bound| bound.eval(&|sym| symbols[sym]));
        if size < 0 || bound.is_some_and(|bound| size > bound) {
            let sentence = data.sentence("");
            let numbers: Vec<i64> = [size].into_iter().chain(bound).collect();
            return usage(rendered(&sentence, &numbers));
        }
        symbols[sym] = Some(size);
    }
    check_assumptions(graph, symbols, &|sym| defined.contains(&sym))
}

pub(crate) fn usage<T>(message: String) -> Result<T> {
    Err(Error::new(Stage::Run, Kind::Usage, message))
}

/// What the symbols of a dim stand for, such as ` (s0 "batch" = 3)`; empty for a constant.
pub(crate) fn describe(graph: &Graph, dim: &Dim, symbols: &Symbols) -> String {
    let mut parts: Vec<String> = Vec::new();
    dim.visit_symbols(&mut |sym| {
        let name = graph.symbols.get(sym).map_or("", |symbol| symbol.name.as_str());
        let value = symbols[sym].map_or("unknown".to_string(), |value| value.to_string());
        let part = format!("{sym} {name:?} = {value}");
        if !parts.contains(&part) {
            parts.push(part);
        }
    });
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Constants of a graph that runs many times, computed once.
pub(crate) type Constants = SecondaryMap<ValueId, Option<Tensor>>;

/// Runs one graph (the outermost, or a body). Values leave memory after their last use.
pub(crate) fn run_graph(
    graph: &Graph,
    inputs: Vec<Tensor>,
    symbols: &mut Symbols,
    (constants, ranks): (Option<&Constants>, &mut dyn Ranks),
    depth: usize,
    observe: &mut dyn FnMut(NodeId, &[Tensor]),
) -> Result<Vec<Tensor>> {
    let mut uses = graph.use_counts();
    let mut live: SecondaryMap<ValueId, Option<Tensor>> = SecondaryMap::new();
    let sources = sources(graph);
    for (input, tensor) in graph.inputs.iter().zip(inputs) {
        bind_data(graph, &sources, input.value, &tensor, symbols)?;
        live[input.value] = Some(tensor);
    }
    for &value in sources.keys().filter(|&&value| graph.is_constant(value)) {
        let tensor = read(graph, value, &mut live, constants)?;
        bind_data(graph, &sources, value, &tensor, symbols)?;
    }
    for &id in &graph.order {
        let Some(node) = graph.nodes.get(id) else {
            return Err(Error::internal(Stage::Run, format!("the order names {id}, which does not exist")));
        };
        let mut operands = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            operands.push(read(graph, input, &mut live, constants)?);
        }
        let results = substitute(&node.op, symbols)
            .and_then(|op| {
                let operands: Vec<&Tensor> = operands.iter().collect();
                match op.as_ref() {
                    Op::Call(called) => {
                        Ok(vec![call::call(called, graph.strings.as_ref(), &operands, symbols)?])
                    }
                    Op::External(called) => external::call(called, &operands, symbols),
                    Op::Exchange(exchange) => exchanged(graph, id, exchange, &operands, ranks),
                    op if op.is_control() => control::run_in(op, &operands, symbols, depth),
                    op => eval_named(op, &operands, &indices_of(graph, id, symbols)),
                }
            })
            .and_then(|results| {
                // First, since a result may have sizes that another one defines.
                for (&output, result) in node.outputs.iter().zip(&results) {
                    bind_data(graph, &sources, output, result, symbols)?;
                }
                check_results(graph, &node.outputs, results, symbols)
            })
            .map_err(|error| error.at(node_ref(graph, id, &operands)))?;
        observe(id, &results);
        for (&output, result) in node.outputs.iter().zip(results) {
            if uses[output] > 0 {
                live[output] = Some(result);
            }
        }
        for &input in &node.inputs {
            uses[input] = uses[input].saturating_sub(1);
            if uses[input] == 0 {
                live[input] = None;
            }
        }
    }
    graph.outputs.iter().map(|(_, value)| read(graph, *value, &mut live, constants)).collect()
}

/// The results of an exchange, whose dims are known.
fn exchanged(
    graph: &Graph,
    id: NodeId,
    exchange: &Exchange,
    operands: &[&Tensor],
    ranks: &mut dyn Ranks,
) -> Result<Vec<Tensor>> {
    let inputs = &graph.nodes[id].inputs;
    let given = exchange.given(inputs, graph).map(|_| operands[0]);
    let counts = operands.iter().zip(inputs).skip(1).filter(|(_, input)| !graph.is_token(**input));
    let counts = counts.map(|(counts, _)| counts.to_i64s().unwrap_or_default()).collect::<Vec<_>>();
    let result = ranks.exchange(exchange, given, &counts)?;
    let token = token();
    let token = Tensor::zeros(token.dtype, &token.static_shape().unwrap_or_default());
    Ok(result.into_iter().chain([token]).collect())
}

/// A value that has been computed, or a constant, which then stays for its other uses.
fn read(
    graph: &Graph,
    value: ValueId,
    live: &mut SecondaryMap<ValueId, Option<Tensor>>,
    constants: Option<&Constants>,
) -> Result<Tensor> {
    if let Some(tensor) = live[value].as_ref().or_else(|| constants.and_then(|all| all[value].as_ref())) {
        return Ok(tensor.clone());
    }
    if graph.values.get(value).is_none() || !graph.is_constant(value) {
        return Err(Error::internal(Stage::Run, format!("{value} is used before it is computed")));
    }
    let tensor = constant(graph, value)?;
    live[value] = Some(tensor.clone());
    Ok(tensor)
}

/// Holds results against the declared types. A symbol that no input determines is bound here, where a
/// result first has it as its dim.
fn check_results(
    graph: &Graph,
    outputs: &[ValueId],
    results: Vec<Tensor>,
    symbols: &mut Symbols,
) -> Result<Vec<Tensor>> {
    if outputs.len() != results.len() {
        let message = format!("{} results for {} outputs", results.len(), outputs.len());
        return Err(Error::internal(Stage::Run, message));
    }
    for (&output, result) in outputs.iter().zip(&results) {
        let ty = graph.ty(output);
        let mut fits = ty.dtype == result.dtype && ty.rank() == result.shape.len();
        for (dim, &size) in ty.shape.iter().zip(&result.shape) {
            if let Some(sym) = dim.as_sym() {
                symbols[sym].get_or_insert(size as i64);
            }
            fits &= dim.eval(&|sym| symbols[sym]).is_none_or(|wanted| wanted == size as i64);
        }
        if !fits {
            let dims: String = ty.shape.iter().map(|dim| describe(graph, dim, symbols)).collect();
            let message = format!("{output} is computed as {}, its type is {ty}{dims}", type_of(result));
            return Err(Error::new(Stage::Run, Kind::Usage, message));
        }
    }
    Ok(results)
}

/// The ONNX node behind a node, with the types of its operands in this run.
fn node_ref(graph: &Graph, id: NodeId, operands: &[Tensor]) -> NodeRef {
    let inputs = graph.nodes[id].inputs.iter().zip(operands);
    let inputs = inputs.map(|(value, tensor)| format!("{value}: {}", type_of(tensor)));
    NodeRef { inputs: inputs.collect(), ..graph.node_ref(id) }
}

/// The operation with every symbol replaced by its size; an error names a symbol without one.
fn substitute<'a>(op: &'a Op, symbols: &Symbols) -> Result<Cow<'a, Op>> {
    let one = |dim: &Dim| -> Result<Dim> {
        match dim.eval(&|sym| symbols[sym]) {
            Some(value) => Ok(Dim::from(value)),
            None => {
                let mut parts = Vec::new();
                dim.visit_symbols(&mut |sym| {
                    let value = symbols[sym].map_or("unknown".to_string(), |value| value.to_string());
                    parts.push(format!("{sym} = {value}"));
                });
                usage(format!("{} needs {dim}, which has no value where {}", op.name(), parts.join(", ")))
            }
        }
    };
    op.with_dims(&mut |dim, role| {
        let size = one(dim)?;
        match (role, size.as_const()) {
            (DimRole::Size, Some(number)) if number < 0 => {
                usage(format!("{} has a result with a dim {dim} = {number}", op.name()))
            }
            _ => Ok(size),
        }
    })
}
