//! `Map`: one element of the result from one element of each broadcast operand.

use bytes::Bytes;

use super::lane::{Lane, reader, writer};
use super::movement::{expand, zeroed};
use super::scalar::{Work, classify};
use super::typed;
use crate::error::{Error, Result, Stage};
use crate::graph::{DType, MapFn, Tensor};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

/// The error for a function that has no meaning on a dtype.
pub(super) fn undefined<T>(function: &str, dtype: DType) -> Result<T> {
    Err(Error::unsupported(Stage::Run, format!("{function} of {dtype} elements")))
}

/// Runs `$body` with `$lane` bound to the lane in which arithmetic on `$dtype` happens: f32 for floats up
/// to 32 bits, f64, i64, u64 or bool. Complex numbers and strings have none.
macro_rules! with_lane {
    ($dtype:expr, $name:expr, $lane:ident => $body:expr) => {{
        let dtype = $dtype;
        if let Some($lane) = Lane::f32(dtype) {
            $body
        } else {
            $crate::primitives::eval::elementwise::with_wide_lane!(dtype, $name, $lane => $body)
        }
    }};
}
pub(super) use with_lane;

/// As `with_lane!`, with all floats in f64.
macro_rules! with_wide_lane {
    ($dtype:expr, $name:expr, $lane:ident => $body:expr) => {{
        let dtype = $dtype;
        if let Some($lane) = Lane::f64(dtype) {
            $body
        } else if let Some($lane) = Lane::i64(dtype) {
            $body
        } else if let Some($lane) = Lane::u64(dtype) {
            $body
        } else if let Some($lane) = Lane::bool(dtype) {
            $body
        } else {
            $crate::primitives::eval::elementwise::undefined($name, dtype)
        }
    }};
}
pub(super) use with_wide_lane;

/// One element of a dtype other than strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Single {
    pub dtype: DType,
    /// Its bytes come first.
    bytes: [u8; 16],
}

impl Single {
    pub fn zero(dtype: DType) -> Single {
        Single { dtype, bytes: [0; 16] }
    }

    /// `data`: the bytes of one element.
    pub fn new(dtype: DType, data: &[u8]) -> Single {
        let mut single = Single::zero(dtype);
        single.bytes[..dtype.size()].copy_from_slice(data);
        single
    }

    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.dtype.size()]
    }
}

/// An operand: its type, and its elements.
type Operand<'a> = (DType, &'a [u8]);

/// One element of a `Map` from one element of each operand, as [`super::eval`] gives those of tensors. Errors: a function that has no
/// meaning on the operands' types, and operands that are not those of the function.
pub fn map_single(function: MapFn, operands: &[Single]) -> Result<Single> {
    let mut types = operands.iter().map(|operand| operand.dtype);
    let is_typed = match function {
        MapFn::Select => {
            types.next() == Some(DType::Bool) && operands.len() == 3 && operands[1].dtype == operands[2].dtype
        }
        _ => types.next().is_some_and(|first| types.all(|dtype| dtype == first)),
    };
    if !is_typed || operands.len() > 3 {
        return mismatch(function, operands.len());
    }
    let mut views = [(DType::Bool, &[][..]); 3];
    for (view, operand) in views.iter_mut().zip(operands) {
        *view = (operand.dtype, operand.data());
    }
    let views = &views[..operands.len()];
    let dtype = result_type(function, views)?;
    let mut result = Single::zero(dtype);
    compute(function, views, &mut result.bytes[..dtype.size()])?;
    Ok(result)
}

/// `shape` is the inferred shape of the result.
pub(in crate::primitives) fn map(function: MapFn, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let operands = inputs.iter().map(|x| expand(x, shape)).collect::<Result<Vec<_>>>()?;
    let views: Vec<Operand<'_>> = operands.iter().map(|x| (x.dtype, &x.data[..])).collect();
    let dtype = result_type(function, &views)?;
    if let (MapFn::Bitcast { .. }, [x]) = (function, operands.as_slice())
        && dtype.size() == x.dtype.size()
    {
        return Ok(Tensor { dtype, shape: shape.to_vec(), data: x.data.clone() });
    }
    let mut data = zeroed(dtype, shape)?;
    compute(function, &views, &mut data)?;
    Ok(Tensor::new(dtype, shape.to_vec(), Bytes::from(data)))
}

fn mismatch<T>(function: MapFn, count: usize) -> Result<T> {
    Err(Error::internal(Stage::Run, format!("{function:?} of {count} inputs")))
}

fn result_type(function: MapFn, operands: &[Operand<'_>]) -> Result<DType> {
    Ok(match (function, operands) {
        (MapFn::Unary(function), [_]) if classify(function).is_some() => DType::Bool,
        (MapFn::Compare(_), [_, _]) => DType::Bool,
        (MapFn::Unary(_), [x]) | (MapFn::Binary(_), [x, _]) | (MapFn::MulAdd, [x, _, _]) => x.0,
        (MapFn::Requantize { .. }, [x, _, _]) => x.0,
        (MapFn::Select, [_, then, _]) => then.0,
        (MapFn::Cast { to, .. } | MapFn::Bitcast { to }, [_]) => to,
        _ => return mismatch(function, operands.len()),
    })
}

/// Writes the elements of the result; each operand has the same number of elements.
fn compute(function: MapFn, operands: &[Operand<'_>], out: &mut [u8]) -> Result<()> {
    match (function, operands) {
        (MapFn::Unary(UnaryFn::Swap), [(dtype, x)]) if dtype.part().is_some() => {
            swap(dtype.size(), x, out);
            Ok(())
        }
        (MapFn::Binary(BinaryFn::BitOr), [(dtype, a), (_, b)]) if dtype.part().is_some() => {
            out.iter_mut().zip(*a).zip(*b).for_each(|((out, a), b)| *out = a | b);
            Ok(())
        }
        (MapFn::Binary(function), [(dtype, a), (_, b)]) => {
            if typed::binary(function, *dtype, [a, b], out) {
                return Ok(());
            }
            with_lane!(*dtype, function.name(), lane => binary_in(lane, function, *dtype, [a, b], out))
        }
        (MapFn::Unary(function), [x]) => unary(function, *x, out),
        (MapFn::Compare(function), [(dtype, a), (_, b)]) => {
            with_lane!(*dtype, function.name(), lane => compare_in(lane, function, [a, b], out))
        }
        (MapFn::Select, [(_, condition), (dtype, then), (_, otherwise)]) => {
            select(dtype.size(), condition, [then, otherwise], out);
            Ok(())
        }
        (MapFn::MulAdd, [(dtype, a), (_, b), (_, c)]) => mul_add(*dtype, [a, b, c], out),
        (MapFn::Requantize { shift }, [(DType::I32, x), (DType::I32, factor), (DType::I64, offset)]) => {
            requantize(shift, [x, factor], offset, out);
            Ok(())
        }
        (MapFn::Cast { to, saturate }, [(dtype, x)]) => match (*dtype, to) {
            (DType::Str | DType::C64 | DType::C128, _) | (_, DType::Str | DType::C64 | DType::C128)
                if *dtype != to && dtype.part() != Some(to) && to.part() != Some(*dtype) =>
            {
                undefined(&format!("cast to {to}"), *dtype)
            }
            _ => {
                convert((*dtype, x), to, saturate, out);
                Ok(())
            }
        },
        (MapFn::Bitcast { to }, [(dtype, x)]) if to.size() == dtype.size() => {
            out.copy_from_slice(x);
            Ok(())
        }
        _ => mismatch(function, operands.len()),
    }
}

/// With one rounding.
fn mul_add(dtype: DType, [a, b, c]: [&[u8]; 3], out: &mut [u8]) -> Result<()> {
    if let Some(lane) = Lane::<f32>::f32(dtype) {
        let operands = lane.elements(a).zip(lane.elements(b)).zip(lane.elements(c));
        for (((a, b), c), out) in operands.zip(out.chunks_exact_mut(lane.size)) {
            (lane.store)(a.mul_add(b, c), out);
        }
    } else if let Some(lane) = Lane::<f64>::f64(dtype) {
        let operands = lane.elements(a).zip(lane.elements(b)).zip(lane.elements(c));
        for (((a, b), c), out) in operands.zip(out.chunks_exact_mut(lane.size)) {
            (lane.store)(a.mul_add(b, c), out);
        }
    } else {
        return undefined("mul_add", dtype);
    }
    Ok(())
}

/// See [`MapFn::Requantize`].
fn requantize(shift: u8, [x, factor]: [&[u8]; 2], offset: &[u8], out: &mut [u8]) {
    let word = |bytes: &[u8; 4]| i64::from(i32::from_le_bytes(*bytes));
    let products = x.as_chunks().0.iter().zip(factor.as_chunks().0).map(|(x, factor)| word(x) * word(factor));
    let offsets = offset.as_chunks().0.iter().map(|offset| i64::from_le_bytes(*offset));
    for ((product, offset), out) in products.zip(offsets).zip(out.as_chunks_mut().0) {
        *out = ((product.wrapping_add(offset) >> shift) as i32).to_le_bytes();
    }
}

/// The parts of complex numbers exchanged; each has `size` bytes.
fn swap(size: usize, x: &[u8], out: &mut [u8]) {
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = x[at / size * size + (at + size / 2) % size];
    }
}

fn unary(function: UnaryFn, (dtype, x): Operand<'_>, out: &mut [u8]) -> Result<()> {
    if let Some(test) = classify(function) {
        let Some(lane) = Lane::f64(dtype) else { return undefined(function.name(), dtype) };
        lane.elements(x).zip(out).for_each(|(value, out)| *out = u8::from(test(value)));
        return Ok(());
    }
    with_lane!(dtype, function.name(), lane => unary_in(lane, function, dtype, x, out))
}

fn unary_in<W: Work>(lane: Lane<W>, function: UnaryFn, dtype: DType, x: &[u8], out: &mut [u8]) -> Result<()> {
    let Some(apply) = W::unary(function) else { return undefined(function.name(), dtype) };
    for (value, out) in lane.elements(x).zip(out.chunks_exact_mut(lane.size)) {
        (lane.store)(apply(value), out);
    }
    Ok(())
}

pub(super) fn binary_in<W: Work>(
    lane: Lane<W>,
    function: BinaryFn,
    dtype: DType,
    [a, b]: [&[u8]; 2],
    out: &mut [u8],
) -> Result<()> {
    let Some(apply) = W::binary(function) else { return undefined(function.name(), dtype) };
    let bits = dtype.bits();
    for ((x, y), out) in lane.elements(a).zip(lane.elements(b)).zip(out.chunks_exact_mut(lane.size)) {
        (lane.store)(apply(x, y, bits), out);
    }
    Ok(())
}

fn compare_in<W: Work>(lane: Lane<W>, function: CompareFn, [a, b]: [&[u8]; 2], out: &mut [u8]) -> Result<()> {
    let test = W::compare(function);
    let operands = lane.elements(a).zip(lane.elements(b));
    operands.zip(out).for_each(|((x, y), out)| *out = u8::from(test(x, y)));
    Ok(())
}

/// Elements of `size` bytes.
fn select(size: usize, condition: &[u8], [then, otherwise]: [&[u8]; 2], out: &mut [u8]) {
    let choices = then.chunks_exact(size).zip(otherwise.chunks_exact(size));
    for ((pick, (then, otherwise)), out) in condition.iter().zip(choices).zip(out.chunks_exact_mut(size)) {
        out.copy_from_slice(if *pick != 0 { then } else { otherwise });
    }
}

/// Converts elements as `MapFn::Cast` does, by the rules of ONNX `Cast`:
///
/// - to floats: round to nearest, ties to even; bf16 and 8-bit and smaller floats by way of f32. Out of
///   range gives infinity, except that 8-bit floats follow `saturate`, and those of 6 and 4 bits always saturate;
///   `f8e8m0` rounds up;
/// - integers to integers: the low bits;
/// - floats to integers: truncated to 64 bits (NaN gives 0, out of range the nearest), then the low bits.
///   ONNX leaves values out of the range of the type undefined;
/// - to bool: whether the element is not zero (NaN is not).
///
/// A complex number converts by its real part, and a real one to that real part. Strings have no numeric
/// form: from or to them, every element becomes empty (`eval` refuses such a cast instead).
pub fn cast(tensor: &Tensor, to: DType, saturate: bool) -> Tensor {
    if tensor.dtype == to {
        return tensor.clone();
    }
    let mut data = vec![0; tensor.len() * real_part(to).1];
    convert((tensor.dtype, &tensor.data), to, saturate, &mut data);
    Tensor::new(to, tensor.shape.clone(), Bytes::from(data))
}

/// As [`cast`], into memory of zeros.
fn convert((from, data): Operand<'_>, to: DType, saturate: bool, out: &mut [u8]) {
    if from == to {
        return out.copy_from_slice(data);
    }
    if typed::cast(from, data, to, out) {
        return;
    }
    let (from_part, from_stride) = real_part(from);
    let (to_part, to_stride) = real_part(to);
    if let (Some(read), Some(write)) = (reader(from_part), writer(to_part, saturate)) {
        let (from_size, to_size) = (from_part.size(), to_part.size());
        for (from, to) in data.chunks_exact(from_stride).zip(out.chunks_exact_mut(to_stride)) {
            write(read(&from[..from_size]), &mut to[..to_size]);
        }
    }
}

/// Type of an element's real part, which comes first, and the size of the whole element.
fn real_part(dtype: DType) -> (DType, usize) {
    match dtype {
        DType::C64 => (DType::F32, 8),
        DType::C128 => (DType::F64, 16),
        _ => (dtype, dtype.size()),
    }
}
