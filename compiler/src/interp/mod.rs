//! The reference evaluator: what each primitive means, written for clarity. Constant folding runs it, and
//! tests hold every other implementation against it.

use crate::error::Result;
use crate::graph::{DType, Graph, Op, Tensor, ValueId};

/// Evaluates one operation on concrete tensors.
pub fn eval(_op: &Op, _inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    todo!()
}

/// Converts elements as `MapFn::Cast` does.
pub fn cast(_tensor: &Tensor, _to: DType, _saturate: bool) -> Tensor {
    todo!()
}

/// The data of a constant value, computed now if it is deferred.
pub fn constant(_graph: &Graph, _value: ValueId) -> Result<Tensor> {
    todo!()
}

/// Runs a graph on concrete inputs (one per graph input, defaults filled in by the caller); gives its outputs.
pub fn run(_graph: &Graph, _inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    todo!()
}

/// The lowest (`lowest`) or highest value of a dtype, infinities for floats: the identity of max and min.
pub fn extreme(_dtype: DType, _lowest: bool) -> Tensor {
    todo!()
}
