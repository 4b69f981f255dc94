//! Packed elements at the borders of a graph.
//!
//! Callers keep elements smaller than a byte as ONNX stores them: several to a byte, the first in the lowest bits. Inside
//! a graph each has a byte of its own. This step makes inputs and outputs of such types what the caller has, `u8[bytes]`,
//! with the primitives that unpack and pack them, which fuse with what reads and computes the elements.
//! [`Graph::input_ty`] and [`Graph::output_ty`] tell the types that the caller knows.

use bytes::Bytes;

use crate::error::{Error, Result, Stage};
use crate::graph::{Builder, DType, Dim, Graph, MapFn, Op, Origin, OriginId, Tensor, TensorType, ValueId};
use crate::scalar::BinaryFn;

/// Elements of `dtype`, one to a byte, packed as ONNX stores them; bits left over are 0.
pub fn pack_bits(dtype: DType, elements: &[u8]) -> Vec<u8> {
    let bits = dtype.bits();
    let mask = ((1u16 << bits) - 1) as u8;
    let byte = |group: &[u8]| {
        group.iter().enumerate().fold(0, |byte, (at, element)| byte | (element & mask) << (at as u32 * bits))
    };
    elements.chunks((8 / bits) as usize).map(byte).collect()
}

/// The first `count` of packed elements, one to a byte, signed integers with their sign.
pub fn unpack_bits(dtype: DType, packed: &[u8], count: usize) -> Bytes {
    let bits = dtype.bits();
    let per_byte = (8 / bits) as usize;
    let element = |at: usize| {
        let raised = packed[at / per_byte] << (8 - bits - (at % per_byte) as u32 * bits);
        match dtype.is_signed_int() {
            true => (raised as i8 >> (8 - bits)) as u8,
            false => raised >> (8 - bits),
        }
    };
    (0..count).map(element).collect()
}

/// Makes inputs and outputs of packed types what the caller has.
pub fn pack_borders(graph: &mut Graph) -> Result<()> {
    for at in 0..graph.inputs.len() {
        if graph.ty(graph.inputs[at].value).dtype.is_packed() {
            unpack_input(graph, at)?;
        }
    }
    for at in 0..graph.outputs.len() {
        if graph.ty(graph.outputs[at].1).dtype.is_packed() {
            pack_output(graph, at)?;
        }
    }
    Ok(())
}

fn origin(graph: &mut Graph, name: &str, what: &str) -> OriginId {
    graph.origins.push(Origin { name: name.to_string(), op_type: what.to_string(), index: 0 })
}

/// Elements of `dtype` in a byte.
fn per_byte(dtype: DType) -> usize {
    (8 / dtype.bits()) as usize
}

fn unpack_input(graph: &mut Graph, at: usize) -> Result<()> {
    let value = graph.inputs[at].value;
    let ty = graph.ty(value).clone();
    graph.values[value].ty = TensorType::new(DType::U8, vec![ty.stored_bytes()]);
    let name = graph.inputs[at].name.clone();
    let origin = origin(graph, &name, "Unpack");
    let before = graph.order.len();
    let elements = unpack(&mut Builder::new(graph, origin), value, &ty)?;
    // What was there reads the elements, and comes later.
    let added = graph.order.split_off(before);
    for &node in &graph.order {
        for input in graph.nodes[node].inputs.iter_mut().filter(|input| **input == value) {
            *input = elements;
        }
    }
    for (_, output) in graph.outputs.iter_mut().filter(|(_, output)| *output == value) {
        *output = elements;
    }
    graph.order.splice(0..0, added);
    graph.packed_inputs.insert(at, ty);
    Ok(())
}

/// `u8[bytes]` to `ty`.
fn unpack(b: &mut Builder<'_>, packed: ValueId, ty: &TensorType) -> Result<ValueId> {
    let (dtype, per) = (ty.dtype, per_byte(ty.dtype));
    let bytes = ty.stored_bytes();
    let counts: Vec<u8> = (0..per).map(|at| (at as u32 * dtype.bits()) as u8).collect();
    let counts = b.constant(Tensor::from_slice(&[1, per], &counts));
    let column = b.reshape(packed, vec![bytes.clone(), Dim::ONE])?;
    let shifted = b.binary(BinaryFn::Shr, column, counts)?;
    let flat = b.reshape(shifted, vec![bytes * Dim::from(per)])?;
    let flat = b.slice_axis(flat, 0, Dim::ZERO, ty.elements())?;
    let whole = b.reshape(flat, ty.shape.clone())?;
    // The low bits, signed ones with their sign.
    let bits = if dtype.is_int() { dtype } else { DType::U4 };
    let elements = b.cast(whole, bits)?;
    match dtype.is_int() {
        true => Ok(elements),
        false => b.emit1(Op::Map(MapFn::Bitcast { to: dtype }), &[elements]),
    }
}

fn pack_output(graph: &mut Graph, at: usize) -> Result<()> {
    let (name, value) = graph.outputs[at].clone();
    let ty = graph.ty(value).clone();
    let origin = origin(graph, &name, "Pack");
    let packed = pack(&mut Builder::new(graph, origin), value, &ty)?;
    graph.outputs[at].1 = packed;
    graph.packed_outputs.insert(at, ty);
    Ok(())
}

/// `ty` to `u8[bytes]`.
fn pack(b: &mut Builder<'_>, value: ValueId, ty: &TensorType) -> Result<ValueId> {
    let (dtype, per) = (ty.dtype, per_byte(ty.dtype));
    let bytes = ty.stored_bytes();
    let bits = match dtype.is_int() {
        true => value,
        false => b.emit1(Op::Map(MapFn::Bitcast { to: DType::U4 }), &[value])?,
    };
    let raw = b.cast(bits, DType::U8)?;
    let raw = b.binary_scalar(BinaryFn::BitAnd, raw, f64::from((1u32 << dtype.bits()) - 1))?;
    let flat = b.reshape(raw, vec![ty.elements()])?;
    let zero = b.scalar(DType::U8, 0.0);
    let missing = bytes.clone() * Dim::from(per) - ty.elements();
    let flat = b.pad(flat, zero, vec![Dim::ZERO], vec![missing])?;
    let rows = b.reshape(flat, vec![bytes.clone(), Dim::from(per)])?;
    let mut joined = None;
    for lane in 0..per {
        let column = b.slice_axis(rows, 1, Dim::from(lane), Dim::ONE)?;
        let shift = f64::from(lane as u32 * dtype.bits());
        let column = b.binary_scalar(BinaryFn::Shl, column, shift)?;
        joined = Some(match joined {
            None => column,
            Some(others) => b.binary(BinaryFn::BitOr, others, column)?,
        });
    }
    match joined {
        Some(joined) => b.reshape(joined, vec![bytes]),
        None => Err(Error::internal(Stage::Import, format!("{dtype} has no elements in a byte"))),
    }
}

/// A tensor as the caller keeps it: packed elements as `u8[bytes]`, others as they are.
pub fn stored(tensor: &Tensor) -> Tensor {
    if !tensor.dtype.is_packed() {
        return tensor.clone();
    }
    let packed = Bytes::from(pack_bits(tensor.dtype, &tensor.data));
    Tensor::new(DType::U8, vec![packed.len()], packed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Symbol;
    use crate::graph::verify::verify;
    use crate::interp;
    use crate::scalar::UnaryFn;

    #[test]
    fn bits_round_trip() {
        for dtype in [DType::I2, DType::U2, DType::I4, DType::U4, DType::F4E2M1] {
            let packed = [0b1101_0010u8, 0b0000_0111];
            let count = 2 * per_byte(dtype) - 1;
            let elements = unpack_bits(dtype, &packed, count);
            let last = 8 - dtype.bits();
            assert_eq!(pack_bits(dtype, &elements), [packed[0], packed[1] << (8 - last) >> (8 - last)]);
        }
        // The first element is the low one.
        assert_eq!(unpack_bits(DType::U4, &[0x21], 2)[..], [1, 2]);
        assert_eq!(unpack_bits(DType::I4, &[0x8f], 2)[..], [0xff, 0xf8]);
        assert_eq!(pack_bits(DType::I2, &[1, 0xff, 0xfe, 0, 1]), [0b0010_1101, 1]);
    }

    /// What the graph computes on packed tensors is what it computed on those inside.
    #[test]
    fn packed_graphs_compute_the_same() {
        for dtype in [DType::I2, DType::U2, DType::I4, DType::U4, DType::F4E2M1] {
            for count in [0usize, 1, 4, 7] {
                let mut graph = Graph::default();
                let sym = graph.symbols.push(Symbol { name: "n".into() });
                let origin = origin(&mut graph, "test", "Test");
                let mut b = Builder::new(&mut graph, origin);
                let x = b.input("x", TensorType::new(dtype, vec![Dim::sym(sym)]), None);
                let wide = b.cast(x, DType::F32).unwrap();
                let moved = b.unary(UnaryFn::Neg, wide).unwrap();
                let y = b.cast(moved, dtype).unwrap();
                graph.outputs = vec![("y".into(), y), ("x".into(), x)];
                let data: Vec<u8> = (0..count).map(|at| (at * 5 + 3) as u8).collect();
                let x = Tensor::new(dtype, vec![count], unpack_bits(dtype, &pack_bits(dtype, &data), count));
                let wanted = interp::run(&graph, std::slice::from_ref(&x)).unwrap();
                pack_borders(&mut graph).unwrap();
                assert!(verify(&graph).is_ok());
                assert_eq!(graph.input_ty(0).dtype, dtype);
                assert_eq!(graph.ty(graph.inputs[0].value).dtype, DType::U8);
                let found = interp::run(&graph, &[x]).unwrap();
                assert_eq!(found, wanted, "{dtype} of {count}");
            }
        }
    }
}
