//! What the bits of narrow floats mean.
//!
//! Formats are those of the ONNX specification ("Float stored in 8 bits", "6 bit floating point", "4 bit floating point"), of the OCP
//! Microscaling formats and of IEEE 754: a sign, a biased exponent and a mantissa, with subnormals.

use super::DType;

/// A float of a sign, an exponent and a mantissa, in 16 bits or fewer. Codes are without sign but where said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloatFormat {
    /// Bits of the mantissa field.
    pub mantissa: u8,
    pub bias: i32,
    /// Position of the sign.
    pub sign: u8,
    /// Code of the largest finite value.
    pub max: u16,
    /// Code of infinity, where there is one.
    pub infinity: Option<u16>,
    pub nan: Nan,
}

/// How a format encodes NaN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nan {
    /// Codes above that of infinity; a conversion keeps the highest bits of the NaN.
    Payload,
    /// This code, with either sign.
    Code(u16),
    /// The code of negative zero, which the format lacks.
    NegativeZero,
    /// Not at all: a conversion gives zero with the opposite sign, as `ml_dtypes` does.
    Absent,
}

impl FloatFormat {
    /// The bit of the sign.
    pub fn sign_code(&self) -> u16 {
        1 << self.sign
    }
}

impl DType {
    /// The format of f16 and of floats of 8 bits and fewer that have a mantissa; bf16 is the upper half of f32, and `f8e8m0` an exponent.
    pub fn float_format(self) -> Option<FloatFormat> {
        let row = |mantissa, bias, sign, max, infinity, nan| {
            Some(FloatFormat { mantissa, bias, sign, max, infinity, nan })
        };
        match self {
            DType::F16 => row(10, 15, 15, 0x7bff, Some(0x7c00), Nan::Payload),
            DType::F8E4M3FN => row(3, 7, 7, 0x7e, None, Nan::Code(0x7f)),
            DType::F8E4M3FNUZ => row(3, 8, 7, 0x7f, None, Nan::NegativeZero),
            DType::F8E5M2 => row(2, 15, 7, 0x7b, Some(0x7c), Nan::Code(0x7e)),
            DType::F8E5M2FNUZ => row(2, 16, 7, 0x7f, None, Nan::NegativeZero),
            DType::F6E2M3 => row(3, 1, 5, 0x1f, None, Nan::Absent),
            DType::F6E3M2 => row(2, 3, 5, 0x1f, None, Nan::Absent),
            DType::F4E2M1 => row(1, 1, 3, 0x07, None, Nan::Absent),
            _ => None,
        }
    }

    /// The format of a float whose codes are bytes.
    pub fn byte_format(self) -> Option<FloatFormat> {
        self.float_format().filter(|format| format.sign < 8)
    }
}
