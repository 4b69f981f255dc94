//! `Map`: one element of the result from one element of each broadcast operand.

use bytes::Bytes;

use super::integers;
use super::lane::{Lane, reader, writer};
use super::movement::{expand, zeroed};
use super::scalar::{Work, classify};
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
            $crate::eval::elementwise::with_wide_lane!(dtype, $name, $lane => $body)
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
            $crate::eval::elementwise::undefined($name, dtype)
        }
    }};
}
pub(super) use with_wide_lane;

/// `shape` is the inferred shape of the result.
pub(super) fn map(function: MapFn, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let operands = inputs.iter().map(|x| expand(x, shape)).collect::<Result<Vec<_>>>()?;
    match (function, operands.as_slice()) {
        (MapFn::Unary(UnaryFn::Swap), [x]) if x.dtype.part().is_some() => Ok(swap(x)),
        (MapFn::Binary(BinaryFn::BitOr), [a, b]) if a.dtype.part().is_some() => {
            let data = a.data.iter().zip(&b.data[..]).map(|(a, b)| a | b).collect();
            Ok(Tensor::new(a.dtype, a.shape.clone(), data))
        }
        (MapFn::Binary(function), [a, b]) => {
            with_lane!(a.dtype, function.name(), lane => binary_in(lane, function, a, b))
        }
        (MapFn::Unary(function), [x]) => unary(function, x),
        (MapFn::Compare(function), [a, b]) => {
            with_lane!(a.dtype, function.name(), lane => compare_in(lane, function, a, b))
        }
        (MapFn::Select, [condition, then, otherwise]) => select(condition, then, otherwise),
        (MapFn::MulAdd, [a, b, c]) => mul_add(a, b, c),
        (MapFn::Cast { to, saturate }, [x]) => match (x.dtype, to) {
            (DType::Str | DType::C64 | DType::C128, _) | (_, DType::Str | DType::C64 | DType::C128)
                if x.dtype != to && x.dtype.part() != Some(to) && to.part() != Some(x.dtype) =>
            {
                undefined(&format!("cast to {to}"), x.dtype)
            }
            _ => Ok(cast(x, to, saturate)),
        },
        (MapFn::Bitcast { to }, [x]) if to.size() == x.dtype.size() => {
            Ok(Tensor { dtype: to, shape: x.shape.clone(), data: x.data.clone() })
        }
        _ => Err(Error::internal(Stage::Run, format!("{function:?} of {} inputs", inputs.len()))),
    }
}

/// With one rounding.
fn mul_add(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<Tensor> {
    let mut data = zeroed(a.dtype, &a.shape)?;
    if let Some(lane) = Lane::<f32>::f32(a.dtype) {
        let operands = lane.read(a).zip(lane.read(b)).zip(lane.read(c));
        for (((a, b), c), out) in operands.zip(data.chunks_exact_mut(lane.size)) {
            (lane.store)(a.mul_add(b, c), out);
        }
    } else if let Some(lane) = Lane::<f64>::f64(a.dtype) {
        let operands = lane.read(a).zip(lane.read(b)).zip(lane.read(c));
        for (((a, b), c), out) in operands.zip(data.chunks_exact_mut(lane.size)) {
            (lane.store)(a.mul_add(b, c), out);
        }
    } else {
        return undefined("mul_add", a.dtype);
    }
    Ok(Tensor::new(a.dtype, a.shape.clone(), Bytes::from(data)))
}

/// The parts of complex numbers exchanged.
fn swap(x: &Tensor) -> Tensor {
    let size = x.dtype.size();
    let swapped = |at: usize| x.data[at / size * size + (at + size / 2) % size];
    let data = (0..x.data.len()).map(swapped).collect();
    Tensor::new(x.dtype, x.shape.clone(), data)
}

fn unary(function: UnaryFn, x: &Tensor) -> Result<Tensor> {
    if let Some(test) = classify(function) {
        let Some(lane) = Lane::f64(x.dtype) else { return undefined(function.name(), x.dtype) };
        let data: Bytes = lane.read(x).map(|value| u8::from(test(value))).collect();
        return Ok(Tensor::new(DType::Bool, x.shape.clone(), data));
    }
    with_lane!(x.dtype, function.name(), lane => unary_in(lane, function, x))
}

fn unary_in<W: Work>(lane: Lane<W>, function: UnaryFn, x: &Tensor) -> Result<Tensor> {
    let Some(apply) = W::unary(function) else { return undefined(function.name(), x.dtype) };
    let mut data = zeroed(x.dtype, &x.shape)?;
    for (value, out) in lane.read(x).zip(data.chunks_exact_mut(lane.size)) {
        (lane.store)(apply(value), out);
    }
    Ok(Tensor::new(x.dtype, x.shape.clone(), Bytes::from(data)))
}

fn binary_in<W: Work>(lane: Lane<W>, function: BinaryFn, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let Some(apply) = W::binary(function) else { return undefined(function.name(), a.dtype) };
    let mut data = zeroed(a.dtype, &a.shape)?;
    let bits = a.dtype.bits();
    for ((x, y), out) in lane.read(a).zip(lane.read(b)).zip(data.chunks_exact_mut(lane.size)) {
        (lane.store)(apply(x, y, bits), out);
    }
    Ok(Tensor::new(a.dtype, a.shape.clone(), Bytes::from(data)))
}

fn compare_in<W: Work>(lane: Lane<W>, function: CompareFn, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let test = W::compare(function);
    let data: Bytes = lane.read(a).zip(lane.read(b)).map(|(x, y)| u8::from(test(x, y))).collect();
    Ok(Tensor::new(DType::Bool, a.shape.clone(), data))
}

fn select(condition: &Tensor, then: &Tensor, otherwise: &Tensor) -> Result<Tensor> {
    let mut data = zeroed(then.dtype, &then.shape)?;
    let size = then.dtype.size();
    let choices = then.data.chunks_exact(size).zip(otherwise.data.chunks_exact(size));
    for ((pick, (then, otherwise)), out) in
        condition.data.iter().zip(choices).zip(data.chunks_exact_mut(size))
    {
        out.copy_from_slice(if *pick != 0 { then } else { otherwise });
    }
    Ok(Tensor::new(then.dtype, then.shape.clone(), Bytes::from(data)))
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
    let (from_part, from_stride) = real_part(tensor.dtype);
    let (to_part, to_stride) = real_part(to);
    let mut data = vec![0; tensor.len() * to_stride];
    if integers::cast(tensor.dtype, &tensor.data, to, &mut data) {
        return Tensor::new(to, tensor.shape.clone(), Bytes::from(data));
    }
    if let (Some(read), Some(write)) = (reader(from_part), writer(to_part, saturate)) {
        let (from_size, to_size) = (from_part.size(), to_part.size());
        for (from, to) in tensor.data.chunks_exact(from_stride).zip(data.chunks_exact_mut(to_stride)) {
            write(read(&from[..from_size]), &mut to[..to_size]);
        }
    }
    Tensor::new(to, tensor.shape.clone(), Bytes::from(data))
}

/// Type of an element's real part, which comes first, and the size of the whole element.
fn real_part(dtype: DType) -> (DType, usize) {
    match dtype {
        DType::C64 => (DType::F32, 8),
        DType::C128 => (DType::F64, 16),
        _ => (dtype, dtype.size()),
    }
}
