//! Dense tensor values: constants of the graph, and what the reference evaluator computes.

use std::sync::Arc;

use bytes::Bytes;

use crate::graph::{DType, Dim, MAX_KNOWN};

/// A dense tensor in row-major order, little endian, one element per [`DType::size`] bytes (sub-byte types
/// unpacked, one per byte; bools 0 or 1). The data may be a slice of a mapped model file. Strings are their ends, in bytes
/// from the first text on, 8 bytes each, and then all texts.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Bytes,
}

/// Rust types that are the element of a dtype.
pub trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, out: &mut Vec<u8>);
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            fn read(bytes: &[u8]) -> Self {
                <$rust>::from_le_bytes(bytes.try_into().expect("chunks have the element's size"))
            }
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
elements!(f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16,
    u32 => U32, u64 => U64, half::f16 => F16, half::bf16 => BF16);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}

impl Tensor {
    /// A tensor over `data`, whose length must be the product of `shape` times the element size.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Bytes) -> Tensor {
        let tensor = Tensor { dtype, shape, data };
        let bytes = match dtype {
            DType::Str => 8 * tensor.len() + tensor.text_end(tensor.len()),
            _ => tensor.len() * dtype.size(),
        };
        assert_eq!(tensor.data.len(), bytes, "data of a {dtype} tensor {:?}", tensor.shape);
        tensor
    }

    /// A tensor of strings; the product of `shape` is the number of texts.
    pub fn from_texts(shape: &[usize], texts: &[impl AsRef<[u8]>]) -> Tensor {
        let (mut data, mut end) = (vec![], 0);
        for text in texts {
            end += text.as_ref().len() as u64;
            data.extend_from_slice(&end.to_le_bytes());
        }
        texts.iter().for_each(|text| data.extend_from_slice(text.as_ref()));
        Tensor::new(DType::Str, shape.to_vec(), data.into())
    }

    /// Where text number `at - 1` ends, behind the ends.
    fn text_end(&self, at: usize) -> usize {
        match at.checked_sub(1) {
            Some(last) => u64::read(&self.data[8 * last..8 * at]) as usize,
            None => 0,
        }
    }

    /// Whether the data of a tensor of strings are where its texts end, in order, and the texts.
    pub fn has_whole_texts(&self) -> bool {
        let Some(ends) = self.data.get(..8 * self.len()) else { return false };
        let ends: Vec<u64> = ends.chunks_exact(8).map(u64::read).collect();
        ends.is_sorted()
            && self.data.len() as u64 - 8 * ends.len() as u64 == ends.last().copied().unwrap_or(0)
    }

    /// The texts of a tensor of strings.
    pub fn texts(&self) -> Vec<Bytes> {
        assert_eq!(self.dtype, DType::Str);
        let first = 8 * self.len();
        (0..self.len())
            .map(|at| self.data.slice(first + self.text_end(at)..first + self.text_end(at + 1)))
            .collect()
    }

    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Tensor {
        let mut data = Vec::with_capacity(std::mem::size_of_val(values));
        values.iter().for_each(|value| value.write(&mut data));
        Tensor::new(T::DTYPE, shape.to_vec(), Bytes::from(data))
    }

    /// Zeros, or empty strings.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        match dtype {
            DType::Str => Tensor::from_texts(shape, &vec![""; count]),
            dtype => Tensor::new(dtype, shape.to_vec(), vec![0; count * dtype.size()].into()),
        }
    }

    /// The elements of tensors of one type, one behind the other, as a vector.
    pub fn joined<'t>(dtype: DType, tensors: impl IntoIterator<Item = &'t Tensor>) -> Tensor {
        if dtype == DType::Str {
            let texts: Vec<Bytes> = tensors.into_iter().flat_map(Tensor::texts).collect();
            return Tensor::from_texts(&[texts.len()], &texts);
        }
        let data: Vec<u8> = tensors.into_iter().flat_map(|tensor| tensor.data.iter().copied()).collect();
        Tensor::new(dtype, vec![data.len() / dtype.size()], data.into())
    }

    /// The elements from number `first` on that fill `shape`.
    pub fn part(&self, first: usize, shape: &[usize]) -> Tensor {
        let end = first + shape.iter().product::<usize>();
        if self.dtype == DType::Str {
            return Tensor::from_texts(shape, &self.texts()[first..end]);
        }
        let size = self.dtype.size();
        Tensor::new(self.dtype, shape.to_vec(), self.data.slice(first * size..end * size))
    }

    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value])
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether every element is 0.
    pub fn is_zero(&self) -> bool {
        match self.to_f64s() {
            Some(all) => all.iter().all(|value| *value == 0.0),
            None => self.data.iter().all(|byte| *byte == 0),
        }
    }

    /// Whether no element is infinite or not a number; of integers, none is.
    pub fn is_finite(&self) -> bool {
        match self.to_f64s() {
            Some(all) => all.iter().all(|value| value.is_finite()),
            None => self.dtype.is_int(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements; `T` must be the element of the tensor's dtype.
    pub fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(T::DTYPE, self.dtype);
        self.data.chunks_exact(self.dtype.size()).map(T::read).collect()
    }

    /// The elements of an integer or bool tensor as i64 (u64 wraps); `None` for other types.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        Some(match self.dtype {
            DType::I64 => self.values(),
            DType::U64 => self.values::<u64>().into_iter().map(|v| v as i64).collect(),
            DType::I32 => self.values::<i32>().into_iter().map(i64::from).collect(),
            DType::U32 => self.values::<u32>().into_iter().map(i64::from).collect(),
            DType::I16 => self.values::<i16>().into_iter().map(i64::from).collect(),
            DType::U16 => self.values::<u16>().into_iter().map(i64::from).collect(),
            DType::I8 => self.values::<i8>().into_iter().map(i64::from).collect(),
            DType::U8 | DType::U4 | DType::U2 => self.data.iter().map(|&v| i64::from(v)).collect(),
            DType::I4 | DType::I2 => self.data.iter().map(|&v| i64::from(v as i8)).collect(),
            DType::Bool => self.data.iter().map(|&v| i64::from(v != 0)).collect(),
            _ => return None,
        })
    }

    /// The elements of an f32, f64, f16 or bf16 tensor as f64; `None` for other types.
    pub fn to_f64s(&self) -> Option<Vec<f64>> {
        Some(match self.dtype {
            DType::F32 => self.values::<f32>().into_iter().map(f64::from).collect(),
            DType::F64 => self.values(),
            DType::F16 => self.values::<half::f16>().into_iter().map(f64::from).collect(),
            DType::BF16 => self.values::<half::bf16>().into_iter().map(f64::from).collect(),
            _ => return None,
        })
    }

    /// The elements of a small integer or bool tensor, or of a small float tensor that holds integers only.
    pub fn known_elements(&self) -> Option<Arc<[Dim]>> {
        if self.len() > MAX_KNOWN {
            return None;
        }
        if let Some(values) = self.to_i64s() {
            return Some(values.into_iter().map(Dim::from).collect());
        }
        let exact = |value: f64| {
            (value.fract() == 0.0 && value.abs() < 1e15 && (value != 0.0 || value.is_sign_positive()))
                .then_some(Dim::from(value as i64))
        };
        match self.dtype {
            DType::F32 | DType::F64 => self.to_f64s()?.into_iter().map(exact).collect(),
            _ => None,
        }
    }
}
