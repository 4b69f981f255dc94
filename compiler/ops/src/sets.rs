//! Sets of element types that one or a few operators accept, named by their use and the opset that
//! introduced them (`NO_BF16`: before bf16 was added). Sets of general use are in [`super::types`].

use onnxc_ir::graph::DType::{self, *};

pub const F32S: &[DType] = &[F32];
pub const F32_F64: &[DType] = &[F32, F64];
pub const FLOATS_F8: &[DType] = &[F32, F16, F64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ];
pub const INTS: &[DType] = &[U8, I8, U16, I16, I32, I64, U32, U64];
pub const UINTS: &[DType] = &[U8, U16, U32, U64];
pub const SIGNED_NO_BF16: &[DType] = &[F32, I8, I16, I32, I64, F16, F64];
pub const SIGNED: &[DType] = &[F32, I8, I16, I32, I64, F16, F64, BF16];
/// ONNX calls these high-precision: floats, and integers of 32 bits or more.
pub const WIDE_NO_BF16: &[DType] = &[F32, I32, I64, F16, F64, U32, U64];
pub const WIDE: &[DType] = &[F32, I32, I64, F16, F64, U32, U64, BF16];
pub const WIDE_I8_NO_BF16: &[DType] = &[F32, U8, I8, I32, I64, F16, F64, U32, U64];
pub const WIDE_I8: &[DType] = &[F32, U8, I8, I32, I64, F16, F64, U32, U64, BF16];
pub const WIDE_I8_BOOL: &[DType] = &[F32, U8, I8, I32, I64, Bool, F16, F64, U32, U64, BF16];
pub const WIDE_NO_16_BIT: &[DType] = &[F32, I32, I64, F64, U32, U64];
pub const POW_BASES_12: &[DType] = &[F32, I32, I64, F16, F64];
pub const POW_BASES_13: &[DType] = &[F32, I32, I64, F16, F64, BF16];
pub const RANGE_11: &[DType] = &[F32, I16, I32, I64, F64];
pub const RANGE_27: &[DType] = &[F32, I16, I32, I64, F16, F64, BF16];
pub const INDICES_BOOL: &[DType] = &[I32, I64, Bool];
pub const NUMERIC_BOOL_NO_BF16: &[DType] = &[F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64];
pub const NUMERIC_BOOL: &[DType] = &[F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16];
/// What Cast converts: all but complex numbers.
pub const CAST_9: &[DType] = &[F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64];
pub const CAST_13: &[DType] = &[F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16];
pub const CAST_19: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ,
];
pub const CAST_21: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4,
];
pub const CAST_23: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1,
];
pub const CAST_24: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0,
];
pub const CAST_25: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2,
];
pub const CAST_28: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2, F6E2M3, F6E3M2,
];
/// What ConstantOfShape fills with: all but strings and complex numbers.
pub const FILL_20: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ,
];
pub const FILL_21: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4,
];
pub const FILL_23: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1,
];
pub const FILL_24: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0,
];
pub const FILL_25: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2,
];
/// Every type of a tensor.
pub const ALL_19: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ,
];
pub const ALL_21: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, U4, I4,
];
pub const ALL_23: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, U4, I4, F4E2M1,
];
pub const ALL_24: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0,
];
pub const ALL_25: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2,
];
pub const ALL_28: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Str, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2, F6E2M3, F6E3M2,
];
pub const BITCAST_26: &[DType] = &[
    F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2,
];
