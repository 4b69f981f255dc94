//! The reference evaluator: what each primitive means, written for clarity. Constant folding runs it, and
//! tests hold every other implementation against it.
//!
//! Choices where a primitive leaves room: sums and products of floats accumulate in f64 and round once;
//! f16, bf16 and smaller floats compute in f32; results of 8-bit and smaller floats saturate. Arithmetic on
//! complex numbers and strings is unsupported; movement of them is not.

mod call;
mod control;
pub(super) mod dequantize;
pub(super) mod elementwise;
mod erf;
mod external;
mod float;
pub(super) mod index;
mod lane;
pub(super) mod leaves;
pub(crate) mod movement;
pub(super) mod reduce;
pub(crate) mod run;
mod scalar;
mod sort;
pub(super) mod suppress;
#[cfg(test)]
mod tests;
mod tiles;
mod typed;
pub(super) mod winograd;
mod work;

pub use call::{call, invoke};
pub use control::run_bodies;
pub use elementwise::{Single, cast, map_single};
pub use erf::erf;
pub use external::call as call_external;
pub use run::{Symbols, run_nodes};
pub use work::{Budget, work};

use std::collections::HashMap;

use bytes::Bytes;

use super::{infer::infer, value};
use crate::error::{Error, Result, Stage};
use crate::graph::claim::Operand;
use crate::graph::{Constant, DType, Def, Dim, Graph, Op, Tensor, TensorType, ValueId, Weight};

pub(super) fn internal<T>(message: String) -> Result<T> {
    Err(Error::internal(Stage::Run, message))
}

/// Type of a tensor.
pub(crate) fn type_of(tensor: &Tensor) -> TensorType {
    TensorType::new(tensor.dtype, tensor.shape.iter().map(|&size| Dim::from(size)).collect())
}

/// Dims that must be numbers by now.
pub(super) fn numbers(dims: &[Dim], what: &str) -> Result<Vec<i64>> {
    dims.iter()
        .map(|dim| match dim.as_const() {
            Some(value) => Ok(value),
            None => internal(format!("{what} {dims:?}: the value of {dim} is not known")),
        })
        .collect()
}

/// Evaluates one operation on concrete tensors. Dims of the operation must be constants.
pub fn eval(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    eval_named(op, inputs, &Operand::new("the indices"))
}

/// As [`eval`]; `indices` is what an error calls the indices of a gather or scatter.
pub fn eval_named(op: &Op, inputs: &[&Tensor], indices: &Operand) -> Result<Vec<Tensor>> {
    for tensor in inputs {
        if movement::byte_len(tensor.dtype, &tensor.shape)? != tensor.data.len() {
            let (dtype, shape, bytes) = (tensor.dtype, &tensor.shape, tensor.data.len());
            return internal(format!("a tensor {dtype}{shape:?} has {bytes} bytes of data"));
        }
    }
    let types: Vec<TensorType> = inputs.iter().map(|tensor| type_of(tensor)).collect();
    let results = infer(op, &types.iter().collect::<Vec<_>>())?.results;
    if op.is_control() {
        return control::control(op, inputs);
    }
    if let Op::Sort { axis, descending, take } = op {
        return sort::sort(inputs[0], *axis, *descending, numbers(std::slice::from_ref(take), "sort")?[0]);
    }
    let Some(shape) = results[0].static_shape() else {
        return internal(format!("{} with the unknown result shape {:?}", op.name(), results[0].shape));
    };
    movement::byte_len(results[0].dtype, &shape)?;
    Ok(vec![value(op, inputs, &shape, indices)?])
}

pub(super) fn iota(shape: &[usize], axis: usize) -> Result<Tensor> {
    let mut data = movement::zeroed(DType::I64, shape)?;
    let inner: usize = shape[axis + 1..].iter().product();
    for (at, element) in data.chunks_exact_mut(8).enumerate() {
        element.copy_from_slice(&((at / inner % shape[axis]) as i64).to_le_bytes());
    }
    Ok(Tensor::new(DType::I64, shape.to_vec(), Bytes::from(data)))
}

/// Bytes of constants that are evaluated side by side, unless one alone has more.
const TOGETHER: u64 = 16 << 20;

/// Runs of constants that may be evaluated side by side, by their bytes, in order.
pub fn side_by_side<T>(mut all: &[T], bytes: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut together = 0u64;
        let fits = |one: &&T| {
            together = together.saturating_add(bytes(one));
            together <= TOGETHER
        };
        let count = all.iter().take_while(fits).count().max(1);
        let (first, rest) = all.split_at_checked(count)?;
        all = rest;
        Some(first)
    })
}

/// The data of a constant value, computed now if it is deferred. Intermediate results live only until
/// the last of their uses is computed.
pub fn constant(graph: &Graph, value: ValueId) -> Result<Tensor> {
    if let Some(tensor) = present(graph, value) {
        return Ok(tensor.clone());
    }
    let order = deferred_order(graph, value)?;
    let mut uses: HashMap<ValueId, usize> = HashMap::from([(value, 1)]);
    for &value in &order {
        for &input in deferred(graph, value)?.1 {
            *uses.entry(input).or_insert(0) += 1;
        }
    }
    let mut done: HashMap<ValueId, Tensor> = HashMap::new();
    for &at in &order {
        let (op, inputs) = deferred(graph, at)?;
        let mut operands = Vec::with_capacity(inputs.len());
        for input in inputs {
            match present(graph, *input).or_else(|| done.get(input)) {
                Some(tensor) => operands.push(tensor),
                None => return internal(format!("constant {at} needs {input}, which is none")),
            }
        }
        let Ok([result]) = <[Tensor; 1]>::try_from(eval(op, &operands)?) else {
            return internal(format!("constant {at} is an operation with more than one result"));
        };
        for input in inputs {
            if let Some(count) = uses.get_mut(input) {
                *count -= 1;
                if *count == 0 {
                    done.remove(input);
                }
            }
        }
        done.insert(at, result);
    }
    match done.remove(&value) {
        Some(tensor) => Ok(tensor),
        None => internal(format!("{value} is not a constant")),
    }
}

/// The data of a constant that is not deferred.
fn present(graph: &Graph, value: ValueId) -> Option<&Tensor> {
    match &graph.values[value].def {
        Def::Const(Constant::Data(tensor) | Constant::Apart(Weight { tensor, .. })) => Some(tensor),
        _ => None,
    }
}

/// The operation of a deferred constant.
fn deferred(graph: &Graph, value: ValueId) -> Result<(&Op, &[ValueId])> {
    match graph.values.get(value).map(|value| &value.def) {
        Some(Def::Const(Constant::Deferred { op, inputs })) => Ok((op, inputs)),
        _ => internal(format!("{value} is not a deferred constant")),
    }
}

/// The deferred constants that `value` needs, itself last, each after what it reads.
fn deferred_order(graph: &Graph, value: ValueId) -> Result<Vec<ValueId>> {
    #[derive(PartialEq)]
    enum Mark {
        Open,
        Closed,
    }
    let mut marks: HashMap<ValueId, Mark> = HashMap::new();
    let mut order = Vec::new();
    // (value, whether its inputs are already in the order)
    let mut stack = vec![(value, false)];
    while let Some((at, ready)) = stack.pop() {
        if ready {
            marks.insert(at, Mark::Closed);
            order.push(at);
            continue;
        }
        match marks.get(&at) {
            Some(Mark::Closed) => continue,
            Some(Mark::Open) => return internal(format!("constant {at} depends on itself")),
            None => {}
        }
        let (_, inputs) = deferred(graph, at)?;
        marks.insert(at, Mark::Open);
        stack.push((at, true));
        for &input in inputs {
            if graph.values.get(input).is_none() || present(graph, input).is_none() {
                stack.push((input, false));
            }
        }
    }
    Ok(order)
}
