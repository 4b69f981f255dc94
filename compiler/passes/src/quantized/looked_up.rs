//! Bytes that are computed of one byte each, by expensive functions: a table has the result for each of the 256.
//!
//! So are activations between two quantizations, such as GELU and SiLU. The table is made by the evaluator, in the arithmetic that
//! the model would use.

use std::collections::HashMap;

use super::MAX_STEPS;
use crate::rewrite::operation;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, MapFn, Node, NodeId, Op, Tensor, ValueId};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// A conversion to bytes, read from a table if it is worth it.
pub(super) fn looked_up(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { inputs, outputs, .. } = &b.graph.nodes[id];
    let (result, input) = (outputs[0], inputs[0]);
    let Some(chain) = Elementwise::behind(b, input) else { return Ok(None) };
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let mut known =
        HashMap::from([(chain.bytes, Tensor::new(b.dtype(chain.bytes), vec![all.len()], all.into()))]);
    for &value in chain.values.iter().chain([&result]) {
        let Some((op, inputs)) = operation(b.graph, value) else { return Ok(None) };
        let operands = inputs.iter().map(|&input| operand(b, &known, input)).collect::<Option<Vec<_>>>();
        let Some(operands) = operands else { return Ok(None) };
        let results = interp::eval(op, &operands.iter().collect::<Vec<_>>())?;
        known.extend(results.into_iter().next().map(|tensor| (value, tensor)));
    }
    let Some(table) = known.remove(&result) else { return Ok(None) };
    let table = b.constant(table);
    let bytes = match b.dtype(chain.bytes) {
        DType::U8 => chain.bytes,
        _ => b.emit1(Op::Map(MapFn::Bitcast { to: DType::U8 }), &[chain.bytes])?,
    };
    b.emit1(Op::Gather { axis: 0 }, &[table, bytes]).map(Some)
}

/// What is evaluated so far, or a constant.
fn operand(b: &Builder, known: &HashMap<ValueId, Tensor>, value: ValueId) -> Option<Tensor> {
    let constant = || {
        let tensor = b.graph.constant_data(value)?;
        let shape = vec![tensor.len()];
        Some(Tensor { shape, ..tensor.clone() })
    };
    known.get(&value).cloned().or_else(constant)
}

/// Operations element by element between bytes and what is made of them.
struct Elementwise {
    bytes: ValueId,
    /// Operands before what reads them.
    values: Vec<ValueId>,
}

impl Elementwise {
    /// All that `value` is made of, where that is the bytes of one tensor, scalar constants and other tables, and one of these or an
    /// expensive function is among the operations.
    fn behind(b: &Builder, value: ValueId) -> Option<Elementwise> {
        let (mut leaf, mut values, mut expensive) = (None, Vec::new(), false);
        // A value is left behind what it is made of.
        let mut pending = vec![(value, false)];
        while let Some((value, left)) = pending.pop() {
            if left {
                values.push(value);
                continue;
            }
            if values.contains(&value) {
                continue;
            }
            let is_byte = matches!(b.dtype(value), DType::I8 | DType::U8);
            let inputs = match operation(b.graph, value) {
                Some((Op::Gather { axis: 0 }, &[table, ref place @ ..])) if is_table(b, table, place) => {
                    expensive = true;
                    place
                }
                // Its bits are those of the bytes that it reads.
                Some((Op::Map(MapFn::Bitcast { .. }), inputs)) if is_byte => inputs,
                Some((Op::Map(function), inputs)) if !is_byte => {
                    expensive |= is_expensive(*function);
                    inputs
                }
                _ if is_byte && leaf.is_none_or(|leaf| leaf == value) => {
                    leaf = Some(value);
                    continue;
                }
                _ => return None,
            };
            pending.push((value, true));
            for &input in inputs {
                if b.graph.is_constant(input) && b.ty(input).elements() == Dim::ONE {
                    continue;
                }
                if b.ty(input).shape != b.ty(value).shape {
                    return None;
                }
                pending.push((input, false));
            }
            if values.len() + pending.len() > 4 * MAX_STEPS {
                return None;
            }
        }
        Some(Elementwise { bytes: leaf?, values }).filter(|_| expensive)
    }
}

/// Whether a constant has an element for each byte and is read by bytes: other indices may be out of range for some.
fn is_table(b: &Builder, table: ValueId, place: &[ValueId]) -> bool {
    matches!(&b.shape(table)[..], [size] if size.as_const() == Some(256))
        && b.graph.constant_data(table).is_some()
        && place.iter().all(|&place| b.dtype(place) == DType::U8)
}

/// Functions that take more instructions than reading a table does.
fn is_expensive(function: MapFn) -> bool {
    use UnaryFn::*;
    match function {
        MapFn::Unary(Exp | Log | Log1p | Expm1 | Erf | Sigmoid) => true,
        MapFn::Unary(Sin | Cos | Tan | Asin | Acos | Atan) => true,
        MapFn::Unary(Sinh | Cosh | Tanh | Asinh | Acosh | Atanh) => true,
        MapFn::Binary(op) => op == BinaryFn::Pow,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, PackPolicy, by_name, run_one};
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Op, Origin, Tensor, TensorType, ValueId};
    use onnxc_ir::interp;
    use onnxc_ir::scalar::{BinaryFn, UnaryFn};

    fn dequantized(b: &mut Builder, bytes: ValueId, zero: f32, scale: f32) -> ValueId {
        let float = b.cast(bytes, DType::F32).unwrap();
        let shifted = b.binary_scalar(BinaryFn::Sub, float, zero.into()).unwrap();
        b.binary_scalar(BinaryFn::Mul, shifted, scale.into()).unwrap()
    }

    fn quantized(b: &mut Builder, x: ValueId, zero: f32, scale: f32, dtype: DType) -> ValueId {
        let (least, most) = if dtype == DType::I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
        let divided = b.binary_scalar(BinaryFn::Div, x, scale.into()).unwrap();
        let rounded = b.emit1(Op::Map(MapFn::Unary(UnaryFn::Round)), &[divided]).unwrap();
        let sum = b.binary_scalar(BinaryFn::Add, rounded, zero.into()).unwrap();
        let above = b.binary_scalar(BinaryFn::Max, sum, least).unwrap();
        let clamped = b.binary_scalar(BinaryFn::Min, above, most).unwrap();
        b.cast(clamped, dtype).unwrap()
    }

    /// GELU of dequantized bytes, whose part under the error function is quantized, too; and `other`, which is added.
    fn gelu(from: DType, to: DType, function: UnaryFn, other: bool) -> Graph {
        let mut graph = Graph { name: "gelu".into(), ..Graph::default() };
        let origin = graph.origins.push(Origin::new("gelu", "Gelu", 0));
        let mut b = Builder::new(&mut graph, origin);
        let ty = TensorType::new(from, vec![Dim::from(16usize), Dim::from(16usize)]);
        let bytes = b.input("x", ty.clone(), None);
        let x = dequantized(&mut b, bytes, 3.0, 0.05);
        let part = b.emit1(Op::Map(MapFn::Unary(function)), &[x]).unwrap();
        let inner = quantized(&mut b, part, 100.0, 0.01, DType::U8);
        let part = dequantized(&mut b, inner, 100.0, 0.01);
        let sum = match other {
            true => {
                let other = b.input("other", ty, None);
                let other = dequantized(&mut b, other, 0.0, 0.25);
                b.binary(BinaryFn::Add, part, other).unwrap()
            }
            false => b.binary_scalar(BinaryFn::Add, part, 1.0).unwrap(),
        };
        let product = b.binary(BinaryFn::Mul, x, sum).unwrap();
        let y = quantized(&mut b, product, -5.0, 0.04, to);
        graph.outputs.push(("y".into(), y));
        graph
    }

    fn optimized(graph: &Graph) -> Graph {
        let mut graph = graph.clone();
        let options = Options { pack: PackPolicy::WIDE, ..Options::default() };
        for name in ["quantized", "dce"] {
            run_one(by_name(name).unwrap(), &mut graph, &options).unwrap();
        }
        graph
    }

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.order.iter().map(|&node| graph.nodes[node].op.name()).collect()
    }

    #[test]
    fn activations_between_bytes_are_tables() {
        for (from, to) in [(DType::U8, DType::U8), (DType::I8, DType::U8), (DType::U8, DType::I8)] {
            let graph = gelu(from, to, UnaryFn::Erf, false);
            let table = optimized(&graph);
            let wanted: &[&str] = if from == DType::I8 { &["bitcast", "gather"] } else { &["gather"] };
            assert_eq!(names(&table), wanted);
            let all = Tensor::new(from, vec![16, 16], (0..=u8::MAX).collect::<Vec<_>>().into());
            let results =
                [&graph, &table].map(|graph| interp::run(graph, std::slice::from_ref(&all)).unwrap());
            assert_eq!(results[0], results[1], "{from} to {to}");
        }
    }

    /// Of two tensors a table has no place; a cheap function is computed.
    #[test]
    fn others_are_computed() {
        let two = names(&optimized(&gelu(DType::U8, DType::U8, UnaryFn::Erf, true)));
        assert_eq!(two.iter().filter(|name| **name == "gather").count(), 1, "{two:?}");
        assert_ne!(two.last(), Some(&"gather"));
        let cheap = names(&optimized(&gelu(DType::U8, DType::U8, UnaryFn::Abs, false)));
        assert!(!cheap.contains(&"gather"), "{cheap:?}");
    }
    /// Places that are out of range for some bytes: only the run knows whether these occur.
    #[test]
    fn tables_of_the_model_keep_their_checks() {
        let mut graph = Graph { name: "table".into(), ..Graph::default() };
        let origin = graph.origins.push(Origin::new("table", "Gather", 0));
        let mut b = Builder::new(&mut graph, origin);
        let bytes = b.input("x", TensorType::new(DType::U8, vec![Dim::from(16usize)]), None);
        let wide = b.cast(bytes, DType::I64).unwrap();
        let place = b.binary_scalar(BinaryFn::Add, wide, 1.0).unwrap();
        let table = b.constant(Tensor::from_slice(&[256], &[0.5f32; 256]));
        let picked = b.emit1(Op::Gather { axis: 0 }, &[table, place]).unwrap();
        let y = quantized(&mut b, picked, 0.0, 0.04, DType::U8);
        graph.outputs.push(("y".into(), y));
        assert!(names(&optimized(&graph)).contains(&"add"));
    }
}
