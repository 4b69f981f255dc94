//! Packed elements and strings at the borders of a graph.
//!
//! Callers keep elements smaller than a byte as ONNX stores them: side by side, the first in the lowest bits. Inside
//! a graph each has a byte of its own. This step makes inputs and outputs of such types what the caller has, `u8[bytes]`,
//! with the primitives that unpack and pack them, which fuse with what reads and computes the elements. Strings, which callers
//! keep as an address and a length each, become numbers by calls of the runtime; see [`strings`].
//! [`Graph::input_ty`] and [`Graph::output_ty`] give the types as the caller sees them.

use bytes::Bytes;

use crate::build::Builder;
use crate::error::Result;
use crate::graph::{
    DType, Dim, Graph, MapFn, Op, Origin, OriginId, Tensor, TensorType, ValueId, call, strings,
};
use crate::scalar::BinaryFn;

/// Elements and bytes of the least group of packed elements that fills whole bytes: 4 elements of 6 bits in 3 bytes,
/// elements of 4 or 2 bits in one.
fn group(dtype: DType) -> (usize, usize) {
    let bits = dtype.bits() as usize;
    let mut bytes = 1usize;
    while !(8 * bytes).is_multiple_of(bits) {
        bytes += 1;
    }
    (8 * bytes / bits, bytes)
}

/// Elements of `dtype`, one to a byte, packed as ONNX stores them; bits left over are 0.
pub fn pack_bits(dtype: DType, elements: &[u8]) -> Vec<u8> {
    let bits = dtype.bits() as usize;
    let (count, bytes) = group(dtype);
    let mut packed = Vec::with_capacity(elements.len().div_ceil(count) * bytes);
    for elements in elements.chunks(count) {
        let masked = elements.iter().map(|&element| u32::from(element) & ((1 << bits) - 1));
        let word = masked.enumerate().fold(0, |word, (at, element)| word | element << (at * bits));
        packed.extend_from_slice(&word.to_le_bytes()[..(elements.len() * bits).div_ceil(8)]);
    }
    packed
}

/// The first `count` of packed elements, one to a byte, signed integers with their sign.
pub fn unpack_bits(dtype: DType, packed: &[u8], count: usize) -> Bytes {
    let bits = dtype.bits() as usize;
    let element = |at: usize| {
        let (first, shift) = (at * bits / 8, at * bits % 8);
        // An element of 6 bits may end in the next byte.
        let next = packed.get(first + 1).copied().unwrap_or(0);
        let raised = (u16::from_le_bytes([packed[first], next]) >> shift) as u8;
        let raised = raised << (8 - bits);
        match dtype.is_signed_int() {
            true => (raised as i8 >> (8 - bits)) as u8,
            false => raised >> (8 - bits),
        }
    };
    (0..count).map(element).collect()
}

/// Makes inputs and outputs of packed types and of strings what the caller has.
pub fn pack_borders(graph: &mut Graph) -> Result<()> {
    let has_strings = strings::has_strings(graph);
    let inputs: Vec<TensorType> = graph.inputs.iter().map(|input| graph.ty(input.value).clone()).collect();
    let outputs: Vec<TensorType> = graph.outputs.iter().map(|(_, value)| graph.ty(*value).clone()).collect();
    if has_strings {
        strings::number(graph);
    }
    let converts = |ty: &TensorType| ty.dtype.is_packed() || ty.dtype == DType::Str;
    for (at, ty) in inputs.into_iter().enumerate().filter(|(_, ty)| converts(ty)) {
        unpack_input(graph, at, ty)?;
    }
    for (at, ty) in outputs.into_iter().enumerate().filter(|(_, ty)| converts(ty)) {
        pack_output(graph, at, ty)?;
    }
    Ok(())
}

fn origin(graph: &mut Graph, name: &str, what: &str) -> OriginId {
    graph.origins.push(Origin::new(name, what, 0))
}

fn unpack_input(graph: &mut Graph, at: usize, ty: TensorType) -> Result<()> {
    let value = graph.inputs[at].value;
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

/// The type in which a group of packed elements is shifted.
fn word_type(dtype: DType) -> DType {
    if group(dtype).1 == 1 { DType::U8 } else { DType::U32 }
}

/// The positions of a group's elements, or bytes, of this many bits in its word.
fn positions(b: &mut Builder<'_>, word: DType, count: usize, bits: usize) -> Result<ValueId> {
    let places: Vec<u8> = (0..count).map(|at| (at * bits) as u8).collect();
    let places = b.constant(Tensor::from_slice(&[1, count], &places));
    b.cast(places, word)
}

/// `u8[bytes]` to `ty`.
fn unpack(b: &mut Builder<'_>, packed: ValueId, ty: &TensorType) -> Result<ValueId> {
    let dtype = ty.dtype;
    if dtype == DType::Str {
        let result = TensorType::new(DType::I64, ty.shape.clone());
        let numbers = vec![ty.elements()];
        return b.call(&call::INTERN, &[packed], numbers, result);
    }
    let word = word_type(dtype);
    let words = words(b, packed, ty)?;
    let (per, _) = group(dtype);
    let places = positions(b, word, per, dtype.bits() as usize)?;
    let shifted = b.binary(BinaryFn::Shr, words, places)?;
    let all = b.ty(shifted).elements();
    let flat = b.reshape(shifted, vec![all])?;
    let flat = b.slice_axis(flat, 0, Dim::ZERO, ty.elements())?;
    let whole = b.reshape(flat, ty.shape.clone())?;
    if dtype.is_int() {
        // The low bits, signed ones with their sign.
        return b.cast(whole, dtype);
    }
    let code = b.binary_scalar(BinaryFn::BitAnd, whole, f64::from((1u32 << dtype.bits()) - 1))?;
    let code = b.cast(code, code_type(dtype))?;
    b.emit1(Op::Map(MapFn::Bitcast { to: dtype }), &[code])
}

/// `u8[bytes]`, packed elements of `ty`, as `[groups, 1]`: a word for each group.
fn words(b: &mut Builder<'_>, packed: ValueId, ty: &TensorType) -> Result<ValueId> {
    let (per, bytes) = group(ty.dtype);
    let stored = ty.stored_bytes();
    if bytes == 1 {
        return b.reshape(packed, vec![stored, Dim::ONE]);
    }
    let groups = ty.elements().ceil_div(&Dim::from(per)).unwrap_or(Dim::ZERO);
    let zero = b.scalar(DType::U8, 0.0);
    let missing = groups.clone() * Dim::from(bytes) - stored;
    let filled = b.pad(packed, zero, vec![Dim::ZERO], vec![missing])?;
    let rows = b.reshape(filled, vec![groups, Dim::from(bytes)])?;
    let word = word_type(ty.dtype);
    let rows = b.cast(rows, word)?;
    joined(b, rows, bytes, 8)
}

/// `[n, count]` to `[n, 1]`: the numbers of a row of `bits` bits each side by side, the first in the lowest bits.
fn joined(b: &mut Builder<'_>, rows: ValueId, count: usize, bits: usize) -> Result<ValueId> {
    let mut joined = b.slice_axis(rows, 1, Dim::ZERO, Dim::ONE)?;
    for lane in 1..count {
        let column = b.slice_axis(rows, 1, Dim::from(lane), Dim::ONE)?;
        let column = b.binary_scalar(BinaryFn::Shl, column, (lane * bits) as f64)?;
        joined = b.binary(BinaryFn::BitOr, joined, column)?;
    }
    Ok(joined)
}

/// The integers that a packed float's bits are.
fn code_type(dtype: DType) -> DType {
    if dtype.bits() == 4 { DType::U4 } else { DType::U8 }
}

fn pack_output(graph: &mut Graph, at: usize, ty: TensorType) -> Result<()> {
    let (name, value) = graph.outputs[at].clone();
    let origin = origin(graph, &name, "Pack");
    let packed = pack(&mut Builder::new(graph, origin), value, &ty)?;
    graph.outputs[at].1 = packed;
    graph.packed_outputs.insert(at, ty);
    Ok(())
}

/// `ty` to `u8[bytes]`.
fn pack(b: &mut Builder<'_>, value: ValueId, ty: &TensorType) -> Result<ValueId> {
    let dtype = ty.dtype;
    if dtype == DType::Str {
        return spell(b, value, ty);
    }
    let (word, (per, bytes)) = (word_type(dtype), group(dtype));
    let bits = match dtype.is_int() {
        true => value,
        false => b.emit1(Op::Map(MapFn::Bitcast { to: code_type(dtype) }), &[value])?,
    };
    let raw = b.cast(bits, DType::U8)?;
    let raw = b.binary_scalar(BinaryFn::BitAnd, raw, f64::from((1u32 << dtype.bits()) - 1))?;
    let flat = b.reshape(raw, vec![ty.elements()])?;
    let groups = ty.elements().ceil_div(&Dim::from(per)).unwrap_or(Dim::ZERO);
    let zero = b.scalar(DType::U8, 0.0);
    let missing = groups.clone() * Dim::from(per) - ty.elements();
    let flat = b.pad(flat, zero, vec![Dim::ZERO], vec![missing])?;
    let rows = b.reshape(flat, vec![groups.clone(), Dim::from(per)])?;
    let rows = b.cast(rows, word)?;
    let words = joined(b, rows, per, dtype.bits() as usize)?;
    if bytes == 1 {
        return b.reshape(words, vec![groups]);
    }
    let places = positions(b, word, bytes, 8)?;
    let shifted = b.binary(BinaryFn::Shr, words, places)?;
    let split = b.binary_scalar(BinaryFn::BitAnd, shifted, 255.0)?;
    let split = b.cast(split, DType::U8)?;
    let flat = b.reshape(split, vec![groups * Dim::from(bytes)])?;
    // The last group has no bytes that only its missing elements would have.
    b.slice_axis(flat, 0, Dim::ZERO, ty.stored_bytes())
}

/// Numbers of strings to what callers and functions get: the address and the length of each text, then the texts, `u8[bytes]`.
pub fn spell(b: &mut Builder<'_>, value: ValueId, ty: &TensorType) -> Result<ValueId> {
    let total = TensorType::new(DType::I64, vec![]);
    let total = b.call(&call::TEXT_BYTES, &[value], vec![ty.elements()], total)?;
    let bytes = ty.stored_bytes() + b.sizes(total, &|_| None)?.remove(0);
    let result = TensorType::new(DType::U8, vec![bytes.clone()]);
    let numbers = vec![ty.elements(), bytes];
    b.call(&call::SPELL, &[value], numbers, result)
}

/// The addresses and lengths of the texts of a tensor, which are kept as long as these.
pub fn views(tensor: &Tensor) -> Bytes {
    let texts = tensor.texts();
    let length = 16 * texts.len() + texts.iter().map(Bytes::len).sum::<usize>();
    let mut data = Vec::with_capacity(length);
    let mut at = data.as_ptr() as u64 + 16 * texts.len() as u64;
    for text in &texts {
        data.extend([at, text.len() as u64].map(u64::to_le_bytes).as_flattened());
        at += text.len() as u64;
    }
    texts.iter().for_each(|text| data.extend_from_slice(text));
    // A part of the allocation keeps all of it.
    Bytes::from(data).slice(..16 * texts.len())
}

/// A tensor from what [`stored`] gives, or from what a model gives its caller.
pub fn unstored(dtype: DType, shape: Vec<usize>, data: &Bytes) -> Tensor {
    let count: usize = shape.iter().product();
    match dtype {
        DType::Str => {}
        _ if dtype.is_packed() => return Tensor::new(dtype, shape, unpack_bits(dtype, data, count)),
        _ => return Tensor::new(dtype, shape, data.clone()),
    }
    // The texts lie behind the views, in their order.
    let mut at = 16 * count;
    let texts: Vec<Bytes> = data[..at]
        .chunks_exact(16)
        .map(|view| {
            let first = at;
            at += u64::from_le_bytes(view[8..].try_into().expect("half of a view")) as usize;
            data.slice(first..at)
        })
        .collect();
    Tensor::from_texts(&shape, &texts)
}

/// A tensor as the caller keeps it: packed elements and strings as `u8[bytes]`, others as they are.
pub fn stored(tensor: &Tensor) -> Tensor {
    if tensor.dtype == DType::Str {
        let views = views(tensor);
        return Tensor::new(DType::U8, vec![views.len()], views);
    }
    if !tensor.dtype.is_packed() {
        return tensor.clone();
    }
    let packed = Bytes::from(pack_bits(tensor.dtype, &tensor.data));
    Tensor::new(DType::U8, vec![packed.len()], packed)
}

/// The default of an input as an object holds it: as the caller would, but strings are views `i64[n, 2]` of constants, see
/// [`call::INTERN`]. They have no address, which only a linker knows.
pub fn stored_default(graph: &Graph, default: &Tensor) -> Tensor {
    let Some(strings) = graph.strings.as_ref().filter(|_| default.dtype == DType::Str) else {
        return stored(default);
    };
    let table = strings.table();
    let views: Vec<i64> = default.texts().iter().flat_map(|text| [0, !table.intern(text)]).collect();
    Tensor::from_slice(&[default.len(), 2], &views)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Symbol;
    use crate::interp;
    use crate::scalar::UnaryFn;
    use crate::verify::verify;

    #[test]
    fn bits_round_trip() {
        for dtype in [DType::I2, DType::U2, DType::I4, DType::U4, DType::F4E2M1] {
            let packed = [0b1101_0010u8, 0b0000_0111];
            let count = 2 * group(dtype).0 - 1;
            let elements = unpack_bits(dtype, &packed, count);
            let last = 8 - dtype.bits();
            assert_eq!(pack_bits(dtype, &elements), [packed[0], packed[1] << (8 - last) >> (8 - last)]);
        }
        // The first element is the low one.
        assert_eq!(unpack_bits(DType::U4, &[0x21], 2)[..], [1, 2]);
        assert_eq!(unpack_bits(DType::I4, &[0x8f], 2)[..], [0xff, 0xf8]);
        assert_eq!(pack_bits(DType::I2, &[1, 0xff, 0xfe, 0, 1]), [0b0010_1101, 1]);
    }

    #[test]
    fn four_elements_of_six_bits_fill_three_bytes() {
        let elements: Vec<u8> = (0..9).map(|at| at * 29 % 64).collect();
        // As `onnx.numpy_helper` packs them.
        let packed = [64, 167, 95, 116, 228, 46, 40];
        for dtype in [DType::F6E2M3, DType::F6E3M2] {
            for count in 0..=9usize {
                let bytes = (count * 6).div_ceil(8);
                let found = pack_bits(dtype, &elements[..count]);
                assert_eq!(found.len(), bytes, "{count} elements");
                assert_eq!(unpack_bits(dtype, &found, count)[..], elements[..count]);
                let ty = TensorType::new(dtype, vec![Dim::from(count)]);
                assert_eq!(ty.stored_bytes().as_const(), Some(bytes as i64));
            }
            assert_eq!(pack_bits(dtype, &elements), packed);
        }
    }

    /// What the graph computes on packed tensors is what it computed on those inside.
    #[test]
    fn packed_graphs_compute_the_same() {
        for dtype in [DType::I2, DType::U2, DType::I4, DType::U4, DType::F4E2M1, DType::F6E2M3, DType::F6E3M2]
        {
            for count in [0usize, 1, 2, 3, 4, 7] {
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
