//! The text form of functions, written. `vector::parse` documents the grammar and reads it.

use std::fmt::{self, Display, Formatter, Write};

use cranelift_entity::EntityRef;

use crate::vector::ir::{
    Address, Binary, Class, Compare, Cond, Convert, End, Func, Inst, Lanes, Logic, Mem, Op, Operand, Reg,
    Signs, Small, TileShape, Unary,
};
use crate::vector::verify::lanes;

/// What an operation takes its lanes for. It gives the letter of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Float,
    Int,
    /// Bits without a type.
    Bits,
    Mask,
    /// A general register: no lanes.
    General,
}

/// How an operation is written: its name, the kind of its lanes, whether a number follows its type, and which operation it
/// is, with such lanes and that number.
pub struct Spelling {
    pub name: &'static str,
    pub kind: Kind,
    pub number: bool,
    pub op: fn(Lanes, u64) -> Op,
}

const fn plain(name: &'static str, kind: Kind, op: fn(Lanes, u64) -> Op) -> Spelling {
    Spelling { name, kind, number: false, op }
}

const fn numbered(name: &'static str, kind: Kind, op: fn(Lanes, u64) -> Op) -> Spelling {
    Spelling { name, kind, number: true, op }
}

use Kind::{Bits, Float, General, Int, Mask};

/// Every operation. Those that change the width of lanes are named with the type that has the wider ones.
pub const SPELLINGS: &[Spelling] = &[
    numbered("splat", Bits, Op::Splat),
    numbered("ramp", Float, Op::Ramp),
    plain("load", Bits, |lanes, _| Op::Load(lanes)),
    plain("broadcast", Bits, |lanes, _| Op::Broadcast(lanes)),
    plain("store", Bits, |lanes, _| Op::Store(lanes)),
    plain("load_i8", Int, |lanes, _| Op::LoadSmall(Small::I8, lanes)),
    plain("load_u8", Int, |lanes, _| Op::LoadSmall(Small::U8, lanes)),
    plain("load_i16", Int, |lanes, _| Op::LoadSmall(Small::I16, lanes)),
    plain("load_u16", Int, |lanes, _| Op::LoadSmall(Small::U16, lanes)),
    plain("load_f16", Float, |lanes, _| Op::LoadSmall(Small::F16, lanes)),
    plain("load_halves_i8", Int, |lanes, _| Op::LoadHalves(Small::I8, lanes)),
    plain("load_halves_u8", Int, |lanes, _| Op::LoadHalves(Small::U8, lanes)),
    plain("broadcast_f16", General, |_, _| Op::BroadcastHalf),
    plain("unpack_f16", Float, |lanes, _| Op::Unpack(lanes)),
    plain("pack_i8", Int, |lanes, _| Op::Pack(Small::I8, lanes)),
    plain("pack_u8", Int, |lanes, _| Op::Pack(Small::U8, lanes)),
    plain("pack_i16", Int, |lanes, _| Op::Pack(Small::I16, lanes)),
    plain("pack_u16", Int, |lanes, _| Op::Pack(Small::U16, lanes)),
    plain("quantize_i8", Float, |lanes, _| Op::Quantize(Small::I8, lanes)),
    plain("quantize_u8", Float, |lanes, _| Op::Quantize(Small::U8, lanes)),
    plain("quantize_i16", Float, |lanes, _| Op::Quantize(Small::I16, lanes)),
    plain("quantize_u16", Float, |lanes, _| Op::Quantize(Small::U16, lanes)),
    numbered("insert_quarter", Bits, |lanes, at| Op::InsertQuarter(at as u8, lanes)),
    plain("interleave", Bits, |lanes, _| Op::Interleave(lanes)),
    plain("saturate_i8", Int, |lanes, _| Op::Saturate(Small::I8, lanes)),
    plain("saturate_u8", Int, |lanes, _| Op::Saturate(Small::U8, lanes)),
    numbered("quantize_pair_i8", Float, |lanes, adds| Op::QuantizePair(Small::I8, adds as u8, lanes)),
    numbered("quantize_pair_u8", Float, |lanes, adds| Op::QuantizePair(Small::U8, adds as u8, lanes)),
    plain("pack_bf16", Float, |lanes, _| Op::PackBf16(lanes)),
    plain("pack_f16", Float, |lanes, _| Op::Pack(Small::F16, lanes)),
    plain("prefetch", General, |_, _| Op::Prefetch),
    plain("add", Float, |lanes, _| Op::Binary(Binary::Add, lanes)),
    plain("sub", Float, |lanes, _| Op::Binary(Binary::Sub, lanes)),
    plain("mul", Float, |lanes, _| Op::Binary(Binary::Mul, lanes)),
    plain("div", Float, |lanes, _| Op::Binary(Binary::Div, lanes)),
    plain("min", Float, |lanes, _| Op::Binary(Binary::Min, lanes)),
    plain("max", Float, |lanes, _| Op::Binary(Binary::Max, lanes)),
    plain("minimum", Float, |lanes, _| Op::Binary(Binary::Minimum, lanes)),
    plain("maximum", Float, |lanes, _| Op::Binary(Binary::Maximum, lanes)),
    plain("rem", Float, |lanes, _| Op::Binary(Binary::Rem, lanes)),
    plain("and", Bits, |lanes, _| Op::Binary(Binary::And, lanes)),
    plain("or", Bits, |lanes, _| Op::Binary(Binary::Or, lanes)),
    plain("xor", Bits, |lanes, _| Op::Binary(Binary::Xor, lanes)),
    plain("add", Int, |lanes, _| Op::Binary(Binary::IntAdd, lanes)),
    plain("sub", Int, |lanes, _| Op::Binary(Binary::IntSub, lanes)),
    plain("mul", Int, |lanes, _| Op::Binary(Binary::IntMul, lanes)),
    plain("min", Int, |lanes, _| Op::Binary(Binary::IntMin, lanes)),
    plain("max", Int, |lanes, _| Op::Binary(Binary::IntMax, lanes)),
    plain("mul_low", Int, |lanes, _| Op::Binary(Binary::LowMul, lanes)),
    plain("div", Int, |lanes, _| Op::Binary(Binary::IntDiv, lanes)),
    plain("div_unsigned", Int, |lanes, _| Op::Binary(Binary::UnsignedDiv, lanes)),
    plain("shl", Int, |lanes, _| Op::Binary(Binary::ShlBy, lanes)),
    plain("shr", Int, |lanes, _| Op::Binary(Binary::ShrBy, lanes)),
    plain("shr_arith", Int, |lanes, _| Op::Binary(Binary::ShrArithBy, lanes)),
    plain("dot_pairs", Int, |lanes, _| Op::Binary(Binary::DotPairs, lanes)),
    plain("dot_bytes", Int, |lanes, _| Op::Binary(Binary::DotBytes, lanes)),
    plain("dot_halves", Int, |lanes, _| Op::Binary(Binary::DotHalves, lanes)),
    plain("add_halves", Int, |lanes, _| Op::Binary(Binary::AddHalves, lanes)),
    plain("sqrt", Float, |lanes, _| Op::Unary(Unary::Sqrt, lanes)),
    plain("floor", Float, |lanes, _| Op::Unary(Unary::Floor, lanes)),
    plain("ceil", Float, |lanes, _| Op::Unary(Unary::Ceil, lanes)),
    plain("trunc", Float, |lanes, _| Op::Unary(Unary::Trunc, lanes)),
    plain("nearest", Float, |lanes, _| Op::Unary(Unary::Nearest, lanes)),
    plain("to_i32", Float, |lanes, _| match lanes.width() {
        8 => Op::Convert(Convert::DoubleToInt, lanes),
        _ => Op::Unary(Unary::ToInt, lanes),
    }),
    plain("to_nearest_i32", Float, |lanes, _| Op::Unary(Unary::ToIntNearest, lanes)),
    plain("from_i32", Float, |lanes, _| match lanes.width() {
        8 => Op::Convert(Convert::IntToDouble, lanes),
        _ => Op::Unary(Unary::FromInt, lanes),
    }),
    plain("round_bf16", Float, |lanes, _| Op::Unary(Unary::RoundBf16, lanes)),
    plain("to_i64", Float, |lanes, _| Op::Convert(Convert::DoubleToLong, lanes)),
    plain("saturate_i64", Float, |lanes, _| Op::Convert(Convert::SaturateToLong, lanes)),
    plain("from_i64", Float, |lanes, _| Op::Convert(Convert::LongToDouble, lanes)),
    plain("widen", Float, |lanes, _| Op::Convert(Convert::Widen, lanes)),
    plain("narrow", Float, |lanes, _| Op::Convert(Convert::Narrow, lanes)),
    plain("extend", Int, |lanes, _| Op::Convert(Convert::Extend, lanes)),
    plain("truncate", Int, |lanes, _| Op::Convert(Convert::Truncate, lanes)),
    numbered("shl", Int, |lanes, count| Op::Unary(Unary::Shl(count as u8), lanes)),
    numbered("shr", Int, |lanes, count| Op::Unary(Unary::Shr(count as u8), lanes)),
    numbered("shr_arith", Int, |lanes, count| Op::Unary(Unary::ShrArith(count as u8), lanes)),
    numbered("shr_halves", Int, |lanes, count| Op::Unary(Unary::ShrHalves(count as u8), lanes)),
    numbered("shr_arith_halves", Int, |lanes, count| Op::Unary(Unary::ShrArithHalves(count as u8), lanes)),
    plain("fma", Float, |lanes, _| Op::Fma(lanes)),
    plain("fma_neg", Float, |lanes, _| Op::FmaNeg(lanes)),
    plain("mul_add", Float, |lanes, _| Op::MulAdd(lanes)),
    numbered("fma_lane", Float, |lanes, lane| Op::FmaLane(lane as u8, lanes)),
    plain("dot", Int, |lanes, _| Op::Dot(Signs::UNSIGNED_SIGNED, lanes)),
    plain("dot_signed", Int, |lanes, _| Op::Dot(Signs::SIGNED, lanes)),
    plain("add_dot_pairs", Int, |lanes, _| Op::AddDotPairs(lanes)),
    plain("dot_bf16", Float, |lanes, _| Op::DotBf16(lanes)),
    numbered("dot_lane", Int, |lanes, lane| Op::DotLane(lane as u8, Signs::UNSIGNED_SIGNED, lanes)),
    numbered("dot_lane_signed", Int, |lanes, lane| Op::DotLane(lane as u8, Signs::SIGNED, lanes)),
    numbered("mul_add_halves", Int, |lanes, part| Op::MulAddHalves(part as u8, lanes)),
    numbered("mul_halves", Int, |lanes, part| Op::MulHalves(part as u8, lanes)),
    plain("permute", Bits, |lanes, _| Op::Permute(lanes)),
    plain("blend", Bits, |lanes, _| Op::Blend(lanes)),
    plain("swap_bytes", Bits, |lanes, _| Op::SwapBytes(lanes)),
    plain("splat_lane", Bits, |lanes, _| Op::SplatLane(lanes)),
    plain("upper_half", Bits, |lanes, _| Op::UpperHalf(lanes)),
    numbered("extract", Bits, |lanes, lane| Op::Extract(lane as u8, lanes)),
    numbered("insert", Bits, |lanes, lane| Op::Insert(lane as u8, lanes)),
    plain("eq", Float, |lanes, _| Op::Compare(Compare::Eq, lanes)),
    plain("ne", Float, |lanes, _| Op::Compare(Compare::Ne, lanes)),
    plain("lt", Float, |lanes, _| Op::Compare(Compare::Lt, lanes)),
    plain("le", Float, |lanes, _| Op::Compare(Compare::Le, lanes)),
    plain("eq", Int, |lanes, _| Op::Compare(Compare::IntEq, lanes)),
    plain("gt", Int, |lanes, _| Op::Compare(Compare::IntGt, lanes)),
    plain("and", Mask, |lanes, _| Op::Mask(Logic::And, lanes)),
    plain("or", Mask, |lanes, _| Op::Mask(Logic::Or, lanes)),
    plain("xor", Mask, |lanes, _| Op::Mask(Logic::Xor, lanes)),
    plain("not", Mask, |lanes, _| Op::MaskNot(lanes)),
    plain("bits", Mask, |lanes, _| Op::MaskBits(lanes)),
    plain("mask", Bits, |lanes, _| Op::MaskOf(lanes)),
    plain("widen", Mask, |lanes, _| Op::MaskWiden(lanes)),
    plain("narrow", Mask, |lanes, _| Op::MaskNarrow(lanes)),
    plain("from_general", Int, |lanes, _| Op::FromGeneral(lanes)),
    plain("to_general", Int, |lanes, _| Op::ToGeneral(lanes)),
    numbered("tile_zero", General, |_, tile| Op::TileZero(tile as u8)),
    numbered("tile_load", General, |_, tile| Op::TileLoad(tile as u8)),
    numbered("tile_store", General, |_, tile| Op::TileStore(tile as u8)),
    numbered("tile_dot_u8_u8", General, |_, tiles| dot_of(false, false, tiles)),
    numbered("tile_dot_u8_i8", General, |_, tiles| dot_of(false, true, tiles)),
    numbered("tile_dot_i8_u8", General, |_, tiles| dot_of(true, false, tiles)),
    numbered("tile_dot_i8_i8", General, |_, tiles| dot_of(true, true, tiles)),
    numbered("tile_dot_bf16", General, |_, tiles| Op::TileDotBf16(digits(tiles))),
    numbered("frame", General, |_, at| Op::Frame(at as i32)),
    numbered("const", General, |_, value| Op::Int(value as i64)),
    plain("load", General, |_, _| Op::LoadInt),
    plain("load_i32", General, |_, _| Op::LoadInt32),
    plain("load_i8", General, |_, _| Op::LoadPart(Small::I8)),
    plain("load_u8", General, |_, _| Op::LoadPart(Small::U8)),
    plain("load_i16", General, |_, _| Op::LoadPart(Small::I16)),
    plain("load_u16", General, |_, _| Op::LoadPart(Small::U16)),
    plain("load_f16", General, |_, _| Op::LoadPart(Small::F16)),
    plain("store_i8", General, |_, _| Op::StorePart(Small::I8)),
    plain("store_u8", General, |_, _| Op::StorePart(Small::U8)),
    plain("store_i16", General, |_, _| Op::StorePart(Small::I16)),
    plain("store_u16", General, |_, _| Op::StorePart(Small::U16)),
    plain("store_f16", General, |_, _| Op::StorePart(Small::F16)),
    plain("add", General, |_, _| Op::Add),
    plain("sub", General, |_, _| Op::Sub),
    plain("mul", General, |_, _| Op::Mul),
    plain("mul_high", General, |_, _| Op::MulHigh),
    plain("div", General, |_, _| Op::DivInt),
    plain("min", General, |_, _| Op::MinInt),
    plain("max", General, |_, _| Op::MaxInt),
    numbered("add", General, |_, value| Op::AddInt(value as i32)),
    numbered("mul", General, |_, value| Op::MulInt(value as i32)),
    numbered("shl", General, |_, count| Op::ShlInt(count as u8)),
    numbered("shr", General, |_, count| Op::ShrInt(count as u8)),
];

/// Tiles of a product as one number, with a digit for each: the accumulator's comes first.
fn dot_of(a: bool, b: bool, tiles: u64) -> Op {
    Op::TileDot(Signs { a, b }, digits(tiles))
}

fn digits(tiles: u64) -> [u8; 3] {
    [100, 10, 1].map(|by| (tiles / by % 10) as u8)
}

/// The number in an operation.
fn number(op: Op) -> Option<u64> {
    match op {
        Op::Splat(_, bits) | Op::Ramp(_, bits) => Some(bits),
        Op::Extract(lane, _) | Op::Insert(lane, _) | Op::FmaLane(lane, _) | Op::DotLane(lane, ..) => {
            Some(lane.into())
        }
        Op::MulAddHalves(part, _) | Op::MulHalves(part, _) | Op::InsertQuarter(part, _) => Some(part.into()),
        Op::QuantizePair(_, adds, _) => Some(adds.into()),
        Op::Unary(
            Unary::Shl(count)
            | Unary::Shr(count)
            | Unary::ShrArith(count)
            | Unary::ShrArithHalves(count)
            | Unary::ShrHalves(count),
            _,
        ) => Some(count.into()),
        Op::TileZero(tile) | Op::TileLoad(tile) | Op::TileStore(tile) => Some(tile.into()),
        Op::TileDot(_, tiles) | Op::TileDotBf16(tiles) => {
            Some(tiles.iter().fold(0, |number, &tile| 10 * number + u64::from(tile)))
        }
        Op::Frame(at) => Some(at as u64),
        Op::Int(value) => Some(value as u64),
        Op::AddInt(value) | Op::MulInt(value) => Some(i64::from(value) as u64),
        Op::ShlInt(count) | Op::ShrInt(count) => Some(count.into()),
        _ => None,
    }
}

/// The lanes that an operation is written with, where it has any.
fn written_lanes(op: Op) -> Lanes {
    match op {
        Op::Extract(_, one) => one,
        _ => lanes(op).unwrap_or(Lanes::X1),
    }
}

fn spelling(op: Op) -> Option<&'static Spelling> {
    let (lanes, number) = (written_lanes(op), number(op));
    let is =
        |one: &&Spelling| one.number == number.is_some() && (one.op)(lanes, number.unwrap_or_default()) == op;
    SPELLINGS.iter().find(is)
}

/// Such as `f32x8`; one lane is `f32`.
pub(super) fn type_name(kind: Kind, lanes: Lanes) -> String {
    let letter = match kind {
        Kind::Float => 'f',
        Kind::Int => 'i',
        Kind::Bits => 'b',
        Kind::Mask => 'm',
        Kind::General => return "int".to_string(),
    };
    match lanes.count() {
        1 => format!("{letter}{}", 8 * lanes.width()),
        count => format!("{letter}{}x{count}", 8 * lanes.width()),
    }
}

pub(super) fn class_letter(class: Class) -> char {
    match class {
        Class::Int => 'g',
        Class::Vec => 'v',
        Class::Mask => 'm',
    }
}

pub(super) fn cond_name(cond: Cond) -> &'static str {
    match cond {
        Cond::Lt => "lt",
        Cond::Ge => "ge",
        Cond::Eq => "eq",
        Cond::Ne => "ne",
    }
}

impl Display for Func {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "function {{")?;
        if self.frame > 0 {
            writeln!(f, "frame {}", self.frame)?;
        }
        for (number, TileShape { rows, bytes }) in self.tiles.iter().enumerate() {
            writeln!(f, "tile {number} {rows} {bytes}")?;
        }
        for (id, block) in &self.blocks {
            write!(f, "{id}")?;
            if !block.params.is_empty() {
                write!(f, "({})", self.names(&block.params))?;
            }
            writeln!(f, ":")?;
            for inst in &block.insts {
                writeln!(f, "  {}", self.inst(inst))?;
            }
            writeln!(f, "  {}", self.end(&block.end))?;
        }
        writeln!(f, "}}")
    }
}

impl Func {
    /// A register with the letter of its class.
    fn name(&self, reg: Reg) -> String {
        let letter = self.regs.get(reg).map_or('?', |&class| class_letter(class));
        format!("{letter}{}", reg.index())
    }

    fn names(&self, regs: &[Reg]) -> String {
        regs.iter().map(|&reg| self.name(reg)).collect::<Vec<_>>().join(", ")
    }

    fn inst(&self, inst: &Inst) -> String {
        let mut text = String::new();
        if let Some(dst) = inst.dst {
            let _ = write!(text, "{} = ", self.name(dst));
        }
        match spelling(inst.op) {
            Some(one) => {
                let _ = write!(text, "{} {}", one.name, type_name(one.kind, written_lanes(inst.op)));
            }
            None => text.push_str(&format!("{:?}", inst.op)),
        }
        let number = number(inst.op).map(|number| match inst.op {
            Op::Splat(..) | Op::Ramp(..) => format!("0x{number:x}"),
            _ => (number as i64).to_string(),
        });
        let uses = inst.uses.iter().map(|&reg| self.name(reg));
        let mem = inst.mem.map(|mem| match mem {
            Mem::At(address) => self.address(address),
            Mem::Each(address) => format!("each {}", self.address(address)),
            Mem::Constant(bits) => format!("0x{bits:x}"),
        });
        let operands: Vec<String> = number.into_iter().chain(uses).chain(mem).collect();
        if !operands.is_empty() {
            let _ = write!(text, " {}", operands.join(", "));
        }
        text
    }

    fn address(&self, Address { base, scaled, disp }: Address) -> String {
        let base = self.name(base);
        let scaled =
            scaled.map_or(String::new(), |(reg, log)| format!(" + {} * {}", self.name(reg), 1u32 << log));
        match disp {
            0 => format!("[{base}{scaled}]"),
            1.. => format!("[{base}{scaled} + {disp}]"),
            _ => format!("[{base}{scaled} - {}]", disp.unsigned_abs()),
        }
    }

    fn end(&self, end: &End) -> String {
        match end {
            End::Jump(to, args) if args.is_empty() => format!("jump {to}"),
            End::Jump(to, args) => format!("jump {to}({})", self.names(args)),
            End::Branch { cond, a, b, then, otherwise } => {
                let b = match b {
                    Operand::Reg(b) => self.name(*b),
                    Operand::Imm(b) => b.to_string(),
                };
                format!("branch {} {}, {b} then {then} else {otherwise}", cond_name(*cond), self.name(*a))
            }
            End::Return(code) => format!("return {code}"),
        }
    }
}
