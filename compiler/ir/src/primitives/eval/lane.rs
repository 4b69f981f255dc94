//! How the elements of each dtype are read into, and written from, the types that arithmetic uses.

use half::{bf16, f16};

use super::float;
use crate::graph::{DType, Tensor};

/// Access to the elements of one dtype as values of `W`: f32 or f64 for floats, i64 and u64 for integers,
/// bool. Writing rounds floats (8-bit and smaller ones saturate) and wraps integers.
#[derive(Clone, Copy)]
pub(super) struct Lane<W> {
    /// Bytes of an element.
    pub size: usize,
    pub load: fn(&[u8]) -> W,
    pub store: fn(W, &mut [u8]),
}

/// The bytes as an array; callers pass exactly one element.
fn bytes<const N: usize>(element: &[u8]) -> [u8; N] {
    element.try_into().expect("one element")
}

macro_rules! native {
    ($work:ty, $rust:ty) => {
        Lane::<$work> {
            size: size_of::<$rust>(),
            load: |element| <$rust>::from_le_bytes(bytes(element)) as $work,
            store: |value, element| element.copy_from_slice(&(value as $rust).to_le_bytes()),
        }
    };
}

macro_rules! halves {
    ($work:ty, $rust:ty, $from:ident, $to:ident) => {
        Lane::<$work> {
            size: 2,
            load: |element| <$rust>::from_le_bytes(bytes(element)).$to(),
            store: |value, element| element.copy_from_slice(&<$rust>::$from(value).to_le_bytes()),
        }
    };
}

macro_rules! small_floats {
    ($work:ty, $dtype:expr, $($variant:ident),*) => {
        match $dtype {
            $(DType::$variant => Some(Lane::<$work> {
                size: 1,
                load: |element| float::decode(DType::$variant, element[0]) as $work,
                store: |value, element| element[0] = float::encode(DType::$variant, value as f32, true),
            }),)*
            _ => None,
        }
    };
}

/// Sub-byte integers live in the low bits of a byte, sign-extended where signed.
macro_rules! small_ints {
    ($work:ty, $byte:ty, $bits:expr) => {
        Lane::<$work> {
            size: 1,
            load: |element| ((element[0] << (8 - $bits)) as $byte >> (8 - $bits)) as $work,
            store: |value, element| {
                element[0] = (((value as u8) << (8 - $bits)) as $byte >> (8 - $bits)) as u8
            },
        }
    };
}

impl Lane<f32> {
    /// Floats up to 32 bits.
    pub(super) fn f32(dtype: DType) -> Option<Lane<f32>> {
        match dtype {
            DType::F32 => Some(native!(f32, f32)),
            DType::F16 => Some(halves!(f32, f16, from_f32, to_f32)),
            DType::BF16 => Some(halves!(f32, bf16, from_f32, to_f32)),
            _ => small_floats!(
                f32, dtype, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F6E2M3, F6E3M2, F4E2M1
            ),
        }
    }
}

impl Lane<f64> {
    /// Every float type.
    pub(super) fn f64(dtype: DType) -> Option<Lane<f64>> {
        match dtype {
            DType::F64 => Some(native!(f64, f64)),
            DType::F32 => Some(native!(f64, f32)),
            DType::F16 => Some(halves!(f64, f16, from_f64, to_f64)),
            // As in ONNX's reference (and the `ml_dtypes` it uses), these are rounded by way of f32.
            DType::BF16 => Some(Lane {
                size: 2,
                load: |element| bf16::from_le_bytes(bytes(element)).to_f64(),
                store: |value, element| element.copy_from_slice(&bf16::from_f32(value as f32).to_le_bytes()),
            }),
            _ => small_floats!(
                f64, dtype, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F6E2M3, F6E3M2, F4E2M1
            ),
        }
    }
}

impl Lane<i64> {
    /// Signed integers.
    pub(super) fn i64(dtype: DType) -> Option<Lane<i64>> {
        Some(match dtype {
            DType::I64 => native!(i64, i64),
            DType::I32 => native!(i64, i32),
            DType::I16 => native!(i64, i16),
            DType::I8 => native!(i64, i8),
            DType::I4 => small_ints!(i64, i8, 4),
            DType::I2 => small_ints!(i64, i8, 2),
            _ => return None,
        })
    }
}

impl Lane<u64> {
    /// Unsigned integers.
    pub(super) fn u64(dtype: DType) -> Option<Lane<u64>> {
        Some(match dtype {
            DType::U64 => native!(u64, u64),
            DType::U32 => native!(u64, u32),
            DType::U16 => native!(u64, u16),
            DType::U8 => native!(u64, u8),
            DType::U4 => small_ints!(u64, u8, 4),
            DType::U2 => small_ints!(u64, u8, 2),
            _ => return None,
        })
    }
}

impl Lane<bool> {
    pub(super) fn bool(dtype: DType) -> Option<Lane<bool>> {
        (dtype == DType::Bool).then_some(Lane {
            size: 1,
            load: |element| element[0] != 0,
            store: |value, element| element[0] = u8::from(value),
        })
    }
}

impl<W: Copy> Lane<W> {
    /// All elements, in order.
    pub(super) fn read<'a>(&self, tensor: &'a Tensor) -> impl Iterator<Item = W> + use<'a, W> {
        self.elements(&tensor.data)
    }

    /// The elements of `data`, in order.
    pub(super) fn elements<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = W> + use<'a, W> {
        data.chunks_exact(self.size).map(self.load)
    }

    /// Element number `at` of `data`.
    pub(super) fn get(&self, data: &[u8], at: usize) -> W {
        (self.load)(&data[at * self.size..(at + 1) * self.size])
    }

    pub(super) fn put(&self, data: &mut [u8], at: usize, value: W) {
        (self.store)(value, &mut data[at * self.size..(at + 1) * self.size]);
    }
}

/// A numeric element of any dtype, without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    Float(f64),
    Int(i64),
    Uint(u64),
}

/// Reads one element.
pub(super) type Reader = Box<dyn Fn(&[u8]) -> Scalar>;

/// Writes one element.
pub(super) type Writer = Box<dyn Fn(Scalar, &mut [u8])>;

/// Reads an element of a real numeric dtype or bool; `None` for complex numbers and strings.
pub(super) fn reader(dtype: DType) -> Option<Reader> {
    if let Some(lane) = Lane::f64(dtype) {
        Some(Box::new(move |element| Scalar::Float((lane.load)(element))))
    } else if let Some(lane) = Lane::i64(dtype) {
        Some(Box::new(move |element| Scalar::Int((lane.load)(element))))
    } else if let Some(lane) = Lane::u64(dtype) {
        Some(Box::new(move |element| Scalar::Uint((lane.load)(element))))
    } else {
        let lane = Lane::bool(dtype)?;
        Some(Box::new(move |element| Scalar::Uint(u64::from((lane.load)(element)))))
    }
}

/// Writes an element as ONNX `Cast` to `dtype` does; `None` for complex numbers and strings.
pub(super) fn writer(dtype: DType, saturate: bool) -> Option<Writer> {
    if dtype == DType::F64 || dtype == DType::F16 {
        let lane = Lane::f64(dtype)?;
        Some(Box::new(move |value, element| {
            let value = match value {
                Scalar::Float(value) => value,
                Scalar::Int(value) => value as f64,
                Scalar::Uint(value) => value as f64,
            };
            (lane.store)(value, element);
        }))
    } else if let Some(lane) = Lane::f32(dtype) {
        let small = dtype.size() == 1;
        Some(Box::new(move |value, element| {
            let value = match value {
                Scalar::Float(value) => value as f32,
                Scalar::Int(value) => value as f32,
                Scalar::Uint(value) => value as f32,
            };
            if small {
                element[0] = float::encode(dtype, value, saturate);
            } else {
                (lane.store)(value, element);
            }
        }))
    } else if let Some(lane) = Lane::i64(dtype) {
        Some(Box::new(move |value, element| {
            let value = match value {
                Scalar::Float(value) => value as i64,
                Scalar::Int(value) => value,
                Scalar::Uint(value) => value as i64,
            };
            (lane.store)(value, element);
        }))
    } else if let Some(lane) = Lane::u64(dtype) {
        Some(Box::new(move |value, element| {
            let value = match value {
                // Negative values go by way of i64, so that their higher bits are discarded like an integer's.
                Scalar::Float(value) if value < 0.0 => value as i64 as u64,
                Scalar::Float(value) => value as u64,
                Scalar::Int(value) => value as u64,
                Scalar::Uint(value) => value,
            };
            (lane.store)(value, element);
        }))
    } else {
        let lane = Lane::bool(dtype)?;
        Some(Box::new(move |value, element| {
            let value = match value {
                Scalar::Float(value) => value != 0.0,
                Scalar::Int(value) => value != 0,
                Scalar::Uint(value) => value != 0,
            };
            (lane.store)(value, element);
        }))
    }
}
