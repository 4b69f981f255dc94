//! Floats that are quantized to bytes of the type that products do not take: for products they are quantized to the other type
//! as well, and the readers that the model has read that, less 128. A sum that is quantized to both types would be kept in floats for
//! both, four times the bytes. Likewise where the other type needs no zero point, as after a ReLU: nothing is added then before
//! the bytes are made, and nothing subtracted where they are read.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;

use super::bytes::Quantized;
use crate::rewrite::{operation, rewrite, splat};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, MapFn, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;

/// `wanted` is the type of bytes that products take.
pub(super) fn run(graph: &mut Graph, wanted: DType) -> Result<()> {
    let (other, shift) = match wanted {
        DType::U8 => (DType::I8, 128.0),
        _ => (DType::U8, -128.0),
    };
    let mut found: HashMap<(ValueId, i64), ([bool; 2], ValueId)> = HashMap::new();
    // Both as the zero point of the type that is wanted.
    let key = |graph: &Graph, value: ValueId| {
        let dtype = graph.ty(value).dtype;
        let is_wanted = dtype == wanted;
        if !is_wanted && dtype != other {
            return None;
        }
        let Quantized { rounded, zero } = Quantized::of(graph, value)?;
        let zero = if is_wanted { zero } else { zero + shift };
        Some((rounded, zero as i64, is_wanted))
    };
    for &node in &graph.order {
        for &value in &graph.nodes[node].outputs {
            if let Some((rounded, zero, is_wanted)) = key(graph, value) {
                found.entry((rounded, zero)).or_insert(([false; 2], value)).0[usize::from(is_wanted)] = true;
            }
        }
    }
    let only_cast = read_as_numbers(graph);
    found.retain(|(_, zero), &mut (types, value)| types == [true, true] || *zero == 0 && only_cast[value]);
    if found.is_empty() {
        return Ok(());
    }
    // The one that is made, and what the others read instead of their own.
    let mut made: HashMap<(ValueId, i64), ValueId> = HashMap::new();
    let mut replaced: HashMap<ValueId, ValueId> = HashMap::new();
    // Numbers that are bytes less the shift, and these bytes.
    let mut shifted: HashMap<ValueId, ValueId> = HashMap::new();
    rewrite(graph, |b, id| {
        let value = b.graph.nodes[id].outputs[0];
        match operation(b.graph, value) {
            Some((Op::Map(MapFn::Cast { to: to @ (DType::F32 | DType::I32), .. }), &[x])) => {
                let (to, Some(&bytes)) = (*to, replaced.get(&x)) else { return Ok(None) };
                let wide = b.cast(bytes, to)?;
                let number = b.binary_scalar(BinaryFn::Sub, wide, shift)?;
                shifted.insert(number, bytes);
                return Ok(Some(number));
            }
            // Less a zero point, which becomes one with the shift: whole numbers of few bits, exact in f32 as well.
            Some((Op::Map(MapFn::Binary(BinaryFn::Sub)), &[x, c])) => {
                let (Some(&bytes), Some(zero)) = (shifted.get(&x), splat(b.graph, c)) else {
                    return Ok(None);
                };
                if zero.fract() != 0.0 || zero.abs() > 255.0 {
                    return Ok(None);
                }
                let wide = b.cast(bytes, b.dtype(x))?;
                return match shift + zero {
                    0.0 => Ok(Some(wide)),
                    all => b.binary_scalar(BinaryFn::Sub, wide, all).map(Some),
                };
            }
            _ => {}
        }
        let Some((rounded, zero, is_wanted)) = key(b.graph, value) else { return Ok(None) };
        if !found.contains_key(&(rounded, zero)) {
            return Ok(None);
        }
        let bytes = match made.get(&(rounded, zero)) {
            Some(&bytes) => bytes,
            None if is_wanted => value,
            None => {
                let own = Quantized { rounded, zero: zero as f64 };
                let Some(bytes) = own.shifted_to(b, wanted, 0.0)? else { return Ok(None) };
                bytes
            }
        };
        made.insert((rounded, zero), bytes);
        if is_wanted {
            return Ok((bytes != value).then_some(bytes));
        }
        let wide = b.cast(bytes, DType::I32)?;
        let own = b.binary_scalar(BinaryFn::Sub, wide, shift)?;
        let own = b.cast(own, other)?;
        replaced.insert(own, bytes);
        Ok(Some(own))
    })?;
    Ok(())
}

/// Whether all that reads a value casts it to numbers.
fn read_as_numbers(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut all = SecondaryMap::with_default(true);
    for &node in &graph.order {
        let node = &graph.nodes[node];
        if !matches!(node.op, Op::Map(MapFn::Cast { to: DType::F32 | DType::I32, .. })) {
            node.inputs.iter().for_each(|&input| all[input] = false);
        }
    }
    graph.outputs.iter().for_each(|&(_, value)| all[value] = false);
    all
}
