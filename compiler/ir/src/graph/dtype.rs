//! Element types of tensors: every data type of the ONNX IR that a dense tensor can hold.

use std::fmt;

/// Element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F6E2M3,
    F6E3M2,
    F4E2M1,
    I2,
    I4,
    I8,
    I16,
    I32,
    I64,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    Bool,
    C64,
    C128,
    Str,
}

use DType::*;

/// (type, text name, value of `TensorProto.DataType`, bits per element).
const TABLE: &[(DType, &str, i32, u32)] = &[
    (F32, "f32", 1, 32),
    (U8, "u8", 2, 8),
    (I8, "i8", 3, 8),
    (U16, "u16", 4, 16),
    (I16, "i16", 5, 16),
    (I32, "i32", 6, 32),
    (I64, "i64", 7, 64),
    (Str, "str", 8, 128),
    (Bool, "bool", 9, 8),
    (F16, "f16", 10, 16),
    (F64, "f64", 11, 64),
    (U32, "u32", 12, 32),
    (U64, "u64", 13, 64),
    (C64, "c64", 14, 64),
    (C128, "c128", 15, 128),
    (BF16, "bf16", 16, 16),
    (F8E4M3FN, "f8e4m3fn", 17, 8),
    (F8E4M3FNUZ, "f8e4m3fnuz", 18, 8),
    (F8E5M2, "f8e5m2", 19, 8),
    (F8E5M2FNUZ, "f8e5m2fnuz", 20, 8),
    (U4, "u4", 21, 4),
    (I4, "i4", 22, 4),
    (F4E2M1, "f4e2m1", 23, 4),
    (F8E8M0, "f8e8m0", 24, 8),
    (U2, "u2", 25, 2),
    (I2, "i2", 26, 2),
    (F6E2M3, "f6e2m3", 27, 6),
    (F6E3M2, "f6e3m2", 28, 6),
];

impl DType {
    fn row(self) -> &'static (DType, &'static str, i32, u32) {
        TABLE.iter().find(|row| row.0 == self).expect("every dtype has a row")
    }

    /// All element types, in the order of their ONNX numbers.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type of `TensorProto.DataType` number `number`; `None` for 0 and numbers of the future.
    pub fn from_onnx(number: i32) -> Option<DType> {
        TABLE.iter().find(|row| row.2 == number).map(|row| row.0)
    }

    /// Number in `TensorProto.DataType`.
    pub fn to_onnx(self) -> i32 {
        self.row().2
    }

    /// Text-form name, such as `f32`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Bits one element takes in ONNX raw data. Types below 8 bits are packed there.
    pub fn bits(self) -> u32 {
        self.row().3
    }

    /// Bytes one element takes in a buffer. Sub-byte types are packed in raw data and at the C ABI;
    /// this is the size of the *unpacked* element there, 1.
    pub fn size(self) -> usize {
        (self.bits() as usize).div_ceil(8)
    }

    /// Whether several elements share a byte.
    pub fn is_packed(self) -> bool {
        self.bits() < 8
    }

    pub fn is_float(self) -> bool {
        let small =
            matches!(self, F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 | F6E2M3 | F6E3M2 | F4E2M1);
        small || matches!(self, F32 | F64 | F16 | BF16)
    }

    /// The type of a complex number's parts.
    pub fn part(self) -> Option<DType> {
        match self {
            C64 => Some(F32),
            C128 => Some(F64),
            _ => None,
        }
    }

    pub fn is_signed_int(self) -> bool {
        matches!(self, I2 | I4 | I8 | I16 | I32 | I64)
    }

    pub fn is_unsigned_int(self) -> bool {
        matches!(self, U2 | U4 | U8 | U16 | U32 | U64)
    }

    pub fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for dtype in DType::all() {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_onnx(dtype.to_onnx()), Some(dtype));
        }
        assert_eq!(DType::from_onnx(0), None);
    }
}
