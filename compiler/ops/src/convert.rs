//! Conversions of the element type, and operators that pass their input on.

use super::row::*;
use super::strings;
use onnxc_ir::graph::{MapFn, Op};

pub const ROWS: &[OpDef] = &[
    CAST,
    CAST.since(6).attributes(&[required("to", Int)]).lower(cast),
    CAST.since(9).attributes(&[required("to", Int)]).types(&[("T1", CAST_9), ("T2", CAST_9)]).lower(cast),
    CAST.since(13).attributes(&[required("to", Int)]).types(&[("T1", CAST_13), ("T2", CAST_13)]).lower(cast),
    CAST.since(19)
        .attributes(&[int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_19), ("T2", CAST_19)])
        .lower(cast),
    CAST.since(21)
        .attributes(&[int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_21), ("T2", CAST_21)])
        .lower(cast),
    CAST.since(23)
        .attributes(&[int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_23), ("T2", CAST_23)])
        .lower(cast),
    CAST.since(24)
        .attributes(&[string("round_mode", "up"), int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_24), ("T2", CAST_24)])
        .lower(cast),
    CAST.since(25)
        .attributes(&[string("round_mode", "up"), int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_25), ("T2", CAST_25)])
        .lower(cast),
    CAST.since(28)
        .attributes(&[string("round_mode", "up"), int("saturate", 1), required("to", Int)])
        .types(&[("T1", CAST_28), ("T2", CAST_28)])
        .lower(cast),
    CAST_LIKE,
    CAST_LIKE.since(19).attributes(&[int("saturate", 1)]).types(&[("T1", CAST_19), ("T2", CAST_19)]),
    CAST_LIKE.since(21).attributes(&[int("saturate", 1)]).types(&[("T1", CAST_21), ("T2", CAST_21)]),
    CAST_LIKE.since(23).attributes(&[int("saturate", 1)]).types(&[("T1", CAST_23), ("T2", CAST_23)]),
    CAST_LIKE
        .since(24)
        .attributes(&[string("round_mode", "up"), int("saturate", 1)])
        .types(&[("T1", CAST_24), ("T2", CAST_24)]),
    CAST_LIKE
        .since(25)
        .attributes(&[string("round_mode", "up"), int("saturate", 1)])
        .types(&[("T1", CAST_25), ("T2", CAST_25)]),
    op("BitCast", 26, bit_cast)
        .inputs(&[req("input", "T1")])
        .outputs(&[req("output", "T2")])
        .attributes(&[required("to", Int)])
        .types(&[("T1", BITCAST_26), ("T2", BITCAST_26)])
        .doc("The same bits as another element type"),
    IDENTITY,
    IDENTITY.since(13).types(&[("T", ALL_BF16)]),
    IDENTITY
        .since(14)
        .inputs(&[req("input", "V").of(SEQUENCES)])
        .outputs(&[req("output", "V").of(SEQUENCES)])
        .types(&[("V", ALL_BF16)]),
    IDENTITY
        .since(16)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_BF16)]),
    IDENTITY
        .since(19)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_19)]),
    IDENTITY
        .since(21)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_21)]),
    IDENTITY
        .since(23)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_23)]),
    IDENTITY
        .since(24)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_24)]),
    IDENTITY
        .since(25)
        .inputs(&[req("input", "V").of(ALL_KINDS)])
        .outputs(&[req("output", "V").of(ALL_KINDS)])
        .types(&[("V", ALL_25)]),
];

const CAST: OpDef = op("Cast", 1, cast_by_name)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[required("to", Str)])
    .types(&[("T1", NUMERIC_BOOL_NO_BF16), ("T2", NUMERIC_BOOL_NO_BF16)])
    .doc("Conversion to another element type");

const CAST_LIKE: OpDef = op("CastLike", 15, cast_like)
    .inputs(&[req("input", "T1"), req("target_type", "T2")])
    .outputs(&[req("output", "T2")])
    .types(&[("T1", CAST_13), ("T2", CAST_13)])
    .doc("Conversion to the element type of another tensor");

const IDENTITY: OpDef = op("Identity", 1, identity)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL)])
    .doc("The input");

fn identity(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let item = cx.item("input")?;
    cx.give(vec![item])
}

/// The element type of a `DataType` number in an attribute.
pub fn dtype_of(number: i64) -> Result<DType> {
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(dtype) => Ok(dtype),
        None => unsupported(format!("element type number {number}")),
    }
}

fn convert(cx: &mut NodeCx<'_, '_>, to: DType) -> Result<Vec<ValueId>> {
    let mut x = cx.input(0)?;
    match (cx.b.dtype(x), to) {
        (DType::Str, DType::Str) => return Ok(vec![x]),
        (DType::Str, to) => return Ok(vec![strings::parse(cx.b, x, to)?]),
        (_, DType::Str) => return Ok(vec![strings::format(cx.b, x)?]),
        _ => {}
    }
    // Of other types without it, kernels may convert what is out of range, or below the normal numbers, as is fastest.
    let saturate = to.size() > 1 || !cx.has("saturate") || cx.int("saturate")? != 0;
    if to == DType::F8E8M0 && cx.b.dtype(x) != to && cx.has("round_mode") {
        let mode = cx.str("round_mode")?;
        x = match mode.as_str() {
            "up" => x,
            "down" | "nearest" => power_of_two(cx, x, mode == "nearest")?,
            _ => return not_one_of("round_mode", mode, "up, down, nearest"),
        };
    }
    if cx.b.dtype(x) == to {
        if to != DType::F8E5M2 || !saturate {
            return Ok(vec![x]);
        }
        // The one type in which saturation has something to do: its infinities become the greatest numbers.
        x = cx.b.cast(x, DType::F32)?;
    }
    Ok(vec![cx.b.emit1(Op::Map(MapFn::Cast { to, saturate }), &[x])?])
}

/// `x` as an f32 that is a power of two: the one below it or, if `nearest`, the nearest one, the upper of two as near.
/// What is less than the least value of `f8e8m0`, 2^-127, becomes 0, which the cast makes that value.
fn power_of_two(cx: &mut NodeCx<'_, '_>, x: ValueId, nearest: bool) -> Result<ValueId> {
    let b = &mut *cx.b;
    let x = b.cast(x, DType::F32)?;
    let bits = b.emit1(Op::Map(MapFn::Bitcast { to: DType::U32 }), &[x])?;
    let bits = b.binary_scalar(BinaryFn::BitAnd, bits, f64::from(i32::MAX))?;
    let raised = match nearest {
        true => b.binary_scalar(BinaryFn::Add, bits, f64::from(1 << 22))?,
        false => bits,
    };
    let mut power = b.binary_scalar(BinaryFn::BitAnd, raised, f64::from(0xffu32 << 23))?;
    if nearest {
        // Among subnormals the middle between the least value and the next one is 1.5 times the former.
        let (least_normal, middle) = (b.scalar(DType::U32, f64::from(1 << 23)), f64::from(3 << 21));
        let middle = b.scalar(DType::U32, middle);
        let (zero, small) = (b.scalar(DType::U32, 0.0), b.compare(CompareFn::Lt, bits, least_normal)?);
        let low = b.compare(CompareFn::Lt, bits, middle)?;
        let of_small = b.select(low, zero, least_normal)?;
        power = b.select(small, of_small, power)?;
    }
    let power = b.emit1(Op::Map(MapFn::Bitcast { to: DType::F32 }), &[power])?;
    let is_nan = b.unary(UnaryFn::IsNan, x)?;
    b.select(is_nan, x, power)
}

fn cast(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let to = dtype_of(cx.int("to")?)?;
    convert(cx, to)
}

/// Opset 1 names the type as the `DataType` enumeration does.
fn cast_by_name(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let name = cx.str("to")?;
    let to = match name.to_ascii_uppercase().as_str() {
        "FLOAT" => DType::F32,
        "UINT8" => DType::U8,
        "INT8" => DType::I8,
        "UINT16" => DType::U16,
        "INT16" => DType::I16,
        "INT32" => DType::I32,
        "INT64" => DType::I64,
        "BOOL" => DType::Bool,
        "FLOAT16" => DType::F16,
        "DOUBLE" => DType::F64,
        "UINT32" => DType::U32,
        "UINT64" => DType::U64,
        _ => return malformed(format!("to is `{name}`, which names no element type")),
    };
    convert(cx, to)
}

fn cast_like(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let to = cx.b.dtype(cx.input("target_type")?);
    convert(cx, to)
}

fn bit_cast(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, to) = (cx.input("input")?, dtype_of(cx.int("to")?)?);
    if cx.b.dtype(x) == to {
        return Ok(vec![x]);
    }
    Ok(vec![cx.b.emit1(Op::Map(MapFn::Bitcast { to }), &[x])?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;
    use super::*;
    use onnxc_ir::graph::Tensor;
    use onnxc_ir::interp;

    #[test]
    fn casts_by_number_and_by_name() {
        let case = Case::new("Cast", 13).int("to", 7).input(&[3], &[-1.7f32, 2.9, 0.]);
        assert_eq!(case.run().unwrap()[0].dtype, DType::I64);
        case.gives(0, &[3], &[-1., 2., 0.]);
        let case = Case::new("Cast", 1).str("to", "BOOL").input(&[2], &[0.5f32, 0.]);
        assert_eq!(case.run().unwrap()[0].dtype, DType::Bool);
        case.gives(0, &[2], &[1., 0.]);
        use DType::{Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        for (name, dtype) in [
            ("FLOAT", F32),
            ("UINT8", U8),
            ("INT8", I8),
            ("UINT16", U16),
            ("INT16", I16),
            ("INT32", I32),
            ("INT64", I64),
            ("BOOL", Bool),
            ("FLOAT16", F16),
            ("DOUBLE", F64),
            ("UINT32", U32),
            ("UINT64", U64),
        ] {
            let case = Case::new("Cast", 1).str("to", name).input(&[1], &[1f32]);
            assert_eq!(case.run().unwrap()[0].dtype, dtype, "{name}");
        }
        let unknown = Case::new("Cast", 1).str("to", "NUMBER").input(&[1], &[0f32]).run();
        assert!(unknown.unwrap_err().message.contains("NUMBER"));
        let future = Case::new("Cast", 13).int("to", 99).input(&[1], &[0f32]).run();
        assert!(future.unwrap_err().message.contains("99"));
        let like = Case::new("CastLike", 19).input(&[1], &[3.5f32]).input(&[2], &[1u8, 2]);
        assert_eq!(like.run().unwrap()[0].dtype, DType::U8);
    }

    #[test]
    fn infinities_saturate_in_their_own_type() {
        let infinite = interp::cast(&Tensor::from_slice(&[2], &[f32::INFINITY, 2.0]), DType::F8E5M2, false);
        let case = |saturate| {
            let case = Case::new("CastLike", 24).int("saturate", saturate);
            case.operand(infinite.clone(), false, &[]).operand(infinite.clone(), false, &[])
        };
        case(1).gives(0, &[2], &[57344.0, 2.0]);
        case(0).gives(0, &[2], &[f64::INFINITY, 2.0]);
    }

    #[test]
    fn bits_stay() {
        let case = Case::new("BitCast", 26).int("to", 6).input(&[1], &[1f32]);
        case.gives(0, &[1], &[f64::from(0x3f80_0000)]);
        assert!(Case::new("BitCast", 26).int("to", 7).input(&[1], &[1f32]).run().is_err());
    }
}
