//! Constant data, in the byte order of the target.
//!
//! The compiler keeps numbers little-endian. What goes into a section says what it is, as a tensor, as bytes or field by field:
//! there is no other way to make [`Data`], so that nothing reaches a big-endian target as it lies in the compiler.

use std::io::{self, Write};

use bytes::Bytes;
use target_lexicon::Endianness;

use crate::host::lower::internal;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Tensor};

/// Bytes that are turned around at once while data are written.
const CHUNK: usize = 1 << 16;

/// Numbers of one width, or bytes, which are numbers of width 1.
pub(super) struct Data {
    /// Little-endian.
    bytes: Bytes,
    width: usize,
}

impl Data {
    /// Texts, and formats that fix their own byte order.
    pub(super) fn bytes(bytes: Bytes) -> Data {
        Data { bytes, width: 1 }
    }

    /// The elements of a tensor. An error for strings, which no section holds as tensors.
    pub(super) fn tensor(tensor: &Tensor) -> Result<Data> {
        let width = match tensor.dtype {
            DType::Str => return Err(internal("a constant tensor of strings".into())),
            dtype => dtype.part().unwrap_or(dtype).size(),
        };
        Ok(Data { bytes: tensor.data.clone(), width })
    }

    /// The first bytes alone.
    pub(super) fn beginning(mut self, bytes: u64) -> Data {
        self.bytes.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        self
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes, little-endian, and the bytes of a number.
    pub(super) fn into_parts(self) -> (Bytes, usize) {
        (self.bytes, self.width)
    }

    /// Writes the data as a target of this byte order reads them.
    pub(super) fn write(&self, order: Endianness, out: &mut impl Write) -> io::Result<()> {
        if order == Endianness::Little || self.width == 1 {
            return out.write_all(&self.bytes);
        }
        let mut turned = Vec::with_capacity(CHUNK.min(self.bytes.len()));
        for chunk in self.bytes.chunks(CHUNK) {
            turned.clear();
            turned.extend(chunk.chunks(self.width).flat_map(|number| number.iter().rev()));
            out.write_all(&turned)?;
        }
        Ok(())
    }

    /// The data as a target of this byte order reads them.
    pub(super) fn in_order(&self, order: Endianness) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        self.write(order, &mut out).expect("a vector takes all bytes");
        out
    }
}

/// Data of several types, in the byte order of a target from the start: fields that are set, and what is appended behind
/// them.
pub(super) struct Record {
    order: Endianness,
    bytes: Vec<u8>,
}

impl Record {
    /// Zeros.
    pub(super) fn new(order: Endianness, bytes: usize) -> Record {
        Record { order, bytes: vec![0; bytes] }
    }

    pub(super) fn finish(self) -> Data {
        Data::bytes(self.bytes.into())
    }

    /// Where the next item starts, at a multiple of `align`.
    pub(super) fn start(&mut self, align: usize) -> i32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        self.bytes.len() as i32
    }

    pub(super) fn set(&mut self, at: usize, value: i32) {
        self.bytes[at..at + 4].copy_from_slice(&ordered(self.order, value.to_le_bytes()));
    }

    pub(super) fn set_long(&mut self, at: usize, value: i64) {
        self.bytes[at..at + 8].copy_from_slice(&ordered(self.order, value.to_le_bytes()));
    }

    /// A zero-terminated string; it ends at its first zero.
    pub(super) fn string(&mut self, text: &str) -> i32 {
        let at = self.start(1);
        self.bytes.extend(text.bytes().take_while(|&byte| byte != 0));
        self.bytes.push(0);
        at
    }

    pub(super) fn ints(&mut self, values: &[i32]) -> i32 {
        let at = self.start(4);
        let order = self.order;
        self.bytes.extend(values.iter().flat_map(|&value| ordered(order, value.to_le_bytes())));
        at
    }

    pub(super) fn longs(&mut self, values: &[i64]) -> i32 {
        let at = self.start(8);
        let order = self.order;
        self.bytes.extend(values.iter().flat_map(|&value| ordered(order, value.to_le_bytes())));
        at
    }
}

/// The bytes of a number, which are little-endian, as a target of this byte order has them.
fn ordered<const N: usize>(order: Endianness, mut bytes: [u8; N]) -> [u8; N] {
    if order == Endianness::Big {
        bytes.reverse();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements whose bytes are all different, of each type that a tensor may have.
    #[test]
    fn each_type_is_turned_by_its_numbers() {
        for dtype in DType::all().filter(|&dtype| dtype != DType::Str) {
            let data: Vec<u8> = (1..=2 * dtype.size() as u8).collect();
            let data = Data::tensor(&Tensor::new(dtype, vec![2], data.into())).unwrap();
            let little: Vec<u8> = (1..=2 * dtype.size() as u8).collect();
            let big: &[u8] = match dtype {
                DType::F16 | DType::BF16 | DType::I16 | DType::U16 => &[2, 1, 4, 3],
                DType::F32 | DType::I32 | DType::U32 => &[4, 3, 2, 1, 8, 7, 6, 5],
                // A real part, then an imaginary one.
                DType::C64 => &[4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13],
                DType::F64 | DType::I64 | DType::U64 => {
                    &[8, 7, 6, 5, 4, 3, 2, 1, 16, 15, 14, 13, 12, 11, 10, 9]
                }
                DType::C128 => &[
                    8, 7, 6, 5, 4, 3, 2, 1, 16, 15, 14, 13, 12, 11, 10, 9, 24, 23, 22, 21, 20, 19, 18, 17,
                    32, 31, 30, 29, 28, 27, 26, 25,
                ],
                _ => &[1, 2],
            };
            assert_eq!(data.in_order(Endianness::Little), little, "{dtype}");
            assert_eq!(data.in_order(Endianness::Big), big, "{dtype}");
        }
        assert!(Data::tensor(&Tensor::from_texts(&[1], &["a"])).is_err());
        assert_eq!(Data::bytes(Bytes::from_static(b"text")).in_order(Endianness::Big), b"text");
    }

    /// No number lies across two chunks.
    #[test]
    fn long_data_are_turned_in_chunks() {
        let values: Vec<i64> = (0..CHUNK as i64).map(|at| at * 0x0102_0304_0506).collect();
        let data = Data::tensor(&Tensor::from_slice(&[values.len()], &values)).unwrap();
        let big: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        assert!(data.in_order(Endianness::Big) == big);
    }

    #[test]
    fn fields_are_in_the_order_of_the_target() {
        let record = |order| {
            let mut record = Record::new(order, 12);
            record.set(0, 0x0102_0304);
            record.set_long(4, -2);
            assert_eq!(record.string("ab\0c"), 12);
            assert_eq!(record.ints(&[5]), 16);
            assert_eq!(record.longs(&[6]), 24);
            record.finish().in_order(order)
        };
        let little = [
            4, 3, 2, 1, 0xfe, 255, 255, 255, 255, 255, 255, 255, b'a', b'b', 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6,
            0, 0, 0, 0, 0, 0, 0,
        ];
        let big = [
            1, 2, 3, 4, 255, 255, 255, 255, 255, 255, 255, 0xfe, b'a', b'b', 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 6,
        ];
        assert_eq!(record(Endianness::Little), little);
        assert_eq!(record(Endianness::Big), big);
    }
}
