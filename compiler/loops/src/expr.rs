//! Expressions of the loop IR: what they are made of, what they read, their types.
//!
//! All that walks over expressions asks here: an expression is one row of `parts`, which lists its operands and its indices, and has
//! a type by [`Expr::result`]. What it computes is in `interp.rs`, its text in `text.rs`, its instructions in
//! `backend/vector/select/value.rs`; functions that the graph has as well ([`Expr::function`]) need no row in the first.

use crate::{Buf, Index, Kernel, Local, Var};
use onnxc_ir::graph::{DType, MapFn, Op, TensorType};
use onnxc_ir::infer::infer;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

/// A value of one element (or of one vector of elements inside a vector loop).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// A constant of a dtype, given by its bits (zero-extended).
    Const {
        dtype: DType,
        bits: u64,
    },
    /// An index as an i64 value.
    Index(Index),
    /// A let-bound variable.
    Var(Var),
    Load {
        buf: Buf,
        index: Index,
    },
    /// Four neighbouring elements of 8 bits, or two of 16, from this one on, as the parts of an i32: the first is the lowest.
    Word {
        buf: Buf,
        index: Index,
    },
    /// Four integers of 8 bits as the parts of an i32: the first is the lowest.
    Quad {
        bytes: Box<[Expr; 4]>,
    },
    Get {
        local: Local,
        at: Vec<Index>,
    },
    Unary {
        op: UnaryFn,
        x: Box<Expr>,
    },
    Binary {
        op: BinaryFn,
        a: Box<Expr>,
        b: Box<Expr>,
    },
    /// `a * b + c` of floats, with one rounding where the target has the instruction, else two.
    Fma {
        a: Box<Expr>,
        b: Box<Expr>,
        c: Box<Expr>,
    },
    Compare {
        op: CompareFn,
        a: Box<Expr>,
        b: Box<Expr>,
    },
    Select {
        condition: Box<Expr>,
        then: Box<Expr>,
        otherwise: Box<Expr>,
    },
    Cast {
        to: DType,
        saturate: bool,
        x: Box<Expr>,
    },
    Bitcast {
        to: DType,
        x: Box<Expr>,
    },
}

/// What an expression is made of: expressions that are computed first, and the indices that it has itself.
struct Parts<E, I> {
    operands: Vec<E>,
    indices: Vec<I>,
}

/// The parts of an expression, to be read (`iter`) or to be changed (`iter_mut`).
macro_rules! parts {
    ($expr:expr, $iter:ident) => {
        match $expr {
            Expr::Const { .. } | Expr::Var(_) => Parts { operands: vec![], indices: vec![] },
            Expr::Index(index) | Expr::Load { index, .. } | Expr::Word { index, .. } => {
                Parts { operands: vec![], indices: vec![index] }
            }
            Expr::Quad { bytes } => Parts { operands: bytes.$iter().collect(), indices: vec![] },
            Expr::Get { at, .. } => Parts { operands: vec![], indices: at.$iter().collect() },
            Expr::Unary { x, .. } | Expr::Cast { x, .. } | Expr::Bitcast { x, .. } => {
                Parts { operands: vec![x], indices: vec![] }
            }
            Expr::Binary { a, b, .. } | Expr::Compare { a, b, .. } => {
                Parts { operands: vec![a, b], indices: vec![] }
            }
            Expr::Fma { a, b, c } => Parts { operands: vec![a, b, c], indices: vec![] },
            Expr::Select { condition, then, otherwise } => {
                Parts { operands: vec![condition, then, otherwise], indices: vec![] }
            }
        }
    };
}

/// Neighbouring elements of a buffer that an expression reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reads<'e> {
    pub buf: Buf,
    /// The first one.
    pub index: &'e Index,
    /// Whether they are those of a word, or this one alone.
    pub is_word: bool,
}

impl Expr {
    /// A constant of a float, integer or bool dtype; `value` is rounded to it.
    pub fn constant(dtype: DType, value: f64) -> Expr {
        let tensor = onnxc_ir::interp::cast(&onnxc_ir::graph::Tensor::scalar(value), dtype, true);
        let mut bits = [0u8; 8];
        bits[..dtype.size()].copy_from_slice(&tensor.data);
        Expr::Const { dtype, bits: u64::from_le_bytes(bits) }
    }

    pub fn unary(op: UnaryFn, x: Expr) -> Expr {
        Expr::Unary { op, x: Box::new(x) }
    }

    pub fn binary(op: BinaryFn, a: Expr, b: Expr) -> Expr {
        Expr::Binary { op, a: Box::new(a), b: Box::new(b) }
    }

    pub fn compare(op: CompareFn, a: Expr, b: Expr) -> Expr {
        Expr::Compare { op, a: Box::new(a), b: Box::new(b) }
    }

    pub fn select(condition: Expr, then: Expr, otherwise: Expr) -> Expr {
        Expr::Select { condition: Box::new(condition), then: Box::new(then), otherwise: Box::new(otherwise) }
    }

    pub fn cast(to: DType, x: Expr) -> Expr {
        Expr::Cast { to, saturate: true, x: Box::new(x) }
    }

    pub fn bitcast(to: DType, x: Expr) -> Expr {
        Expr::Bitcast { to, x: Box::new(x) }
    }

    pub fn quad(bytes: [Expr; 4]) -> Expr {
        Expr::Quad { bytes: Box::new(bytes) }
    }

    pub fn fma(a: Expr, b: Expr, c: Expr) -> Expr {
        Expr::Fma { a: Box::new(a), b: Box::new(b), c: Box::new(c) }
    }

    /// A function of the graph, of operands that inference has checked the number of.
    pub fn apply(function: MapFn, operands: Vec<Expr>) -> Expr {
        let mut operands = operands.into_iter();
        let mut next = || operands.next().expect("inference checked the number of operands");
        match function {
            MapFn::Unary(op) => Expr::unary(op, next()),
            MapFn::Binary(op) => Expr::binary(op, next(), next()),
            MapFn::Compare(op) => Expr::compare(op, next(), next()),
            MapFn::Select => Expr::select(next(), next(), next()),
            MapFn::MulAdd => Expr::fma(next(), next(), next()),
            MapFn::Requantize { shift } => {
                let [x, factor] = [next(), next()].map(|word| Expr::cast(DType::I64, word));
                let sum = Expr::binary(BinaryFn::Add, Expr::binary(BinaryFn::Mul, x, factor), next());
                let shift = Expr::constant(DType::I64, shift.into());
                Expr::cast(DType::I32, Expr::binary(BinaryFn::Shr, sum, shift))
            }
            MapFn::Cast { to, saturate } => Expr::Cast { to, saturate, x: Box::new(next()) },
            MapFn::Bitcast { to } => Expr::bitcast(to, next()),
        }
    }

    /// The function of the graph that this is.
    pub fn function(&self) -> Option<MapFn> {
        match self {
            Expr::Unary { op, .. } => Some(MapFn::Unary(*op)),
            Expr::Binary { op, .. } => Some(MapFn::Binary(*op)),
            Expr::Compare { op, .. } => Some(MapFn::Compare(*op)),
            Expr::Select { .. } => Some(MapFn::Select),
            Expr::Fma { .. } => Some(MapFn::MulAdd),
            Expr::Cast { to, saturate, .. } => Some(MapFn::Cast { to: *to, saturate: *saturate }),
            Expr::Bitcast { to, .. } => Some(MapFn::Bitcast { to: *to }),
            Expr::Const { .. }
            | Expr::Index(_)
            | Expr::Var(_)
            | Expr::Load { .. }
            | Expr::Word { .. }
            | Expr::Quad { .. }
            | Expr::Get { .. } => None,
        }
    }

    /// The expressions that it is computed from, in the order of evaluation.
    pub fn operands(&self) -> Vec<&Expr> {
        let parts: Parts<&Expr, &Index> = parts!(self, iter);
        parts.operands
    }

    /// See [`Expr::operands`].
    pub fn operands_mut(&mut self) -> Vec<&mut Expr> {
        let parts: Parts<&mut Expr, &mut Index> = parts!(self, iter_mut);
        parts.operands
    }

    /// The indices that it has itself, not those of its operands.
    pub fn indices(&self) -> Vec<&Index> {
        let parts: Parts<&Expr, &Index> = parts!(self, iter);
        parts.indices
    }

    /// See [`Expr::indices`].
    pub fn indices_mut(&mut self) -> Vec<&mut Index> {
        let parts: Parts<&mut Expr, &mut Index> = parts!(self, iter_mut);
        parts.indices
    }

    /// What it reads of a buffer.
    pub fn reads(&self) -> Option<Reads<'_>> {
        match self {
            Expr::Load { buf, index } => Some(Reads { buf: *buf, index, is_word: false }),
            Expr::Word { buf, index } => Some(Reads { buf: *buf, index, is_word: true }),
            Expr::Const { .. }
            | Expr::Index(_)
            | Expr::Var(_)
            | Expr::Quad { .. }
            | Expr::Get { .. }
            | Expr::Unary { .. }
            | Expr::Binary { .. }
            | Expr::Fma { .. }
            | Expr::Compare { .. }
            | Expr::Select { .. }
            | Expr::Cast { .. }
            | Expr::Bitcast { .. } => None,
        }
    }

    /// Type of a value that is computed from operands of these types, or read from elements of the type in `operands[0]`. An
    /// error says what is wrong with them.
    ///
    /// Constants, indices, variables and registers, have the types of their declarations.
    pub fn result(&self, operands: &[DType]) -> Result<DType, String> {
        if let Some(function) = self.function() {
            return result_of(function, operands);
        }
        let Some(&first) = operands.first() else { return Err(format!("{self} without operands")) };
        match self {
            Expr::Load { .. } => Ok(first),
            Expr::Word { .. } if matches!(first, DType::I8 | DType::U8 | DType::I16 | DType::BF16) => {
                Ok(DType::I32)
            }
            Expr::Word { .. } => Err(format!("a word of {first} in {self}")),
            Expr::Quad { .. } => match operands {
                [DType::U8 | DType::I8, rest @ ..] if rest.iter().all(|other| *other == first) => {
                    Ok(DType::I32)
                }
                _ => Err(format!("four bytes of {operands:?} in {self}")),
            },
            Expr::Const { .. }
            | Expr::Index(_)
            | Expr::Var(_)
            | Expr::Get { .. }
            | Expr::Unary { .. }
            | Expr::Binary { .. }
            | Expr::Fma { .. }
            | Expr::Compare { .. }
            | Expr::Select { .. }
            | Expr::Cast { .. }
            | Expr::Bitcast { .. } => Err(format!("{self} is not a value of operands")),
        }
    }
}

/// Type of what a function of the graph gives for operands of these types; an error says what is wrong with them.
pub fn result_of(function: MapFn, operands: &[DType]) -> Result<DType, String> {
    let first = operands[0];
    let fits = match function {
        MapFn::Unary(op) => unary_fits(op, first),
        MapFn::Binary(BinaryFn::And | BinaryFn::Or | BinaryFn::Xor) => first == DType::Bool,
        MapFn::Binary(BinaryFn::BitOr) if first.part().is_some() => true,
        MapFn::Binary(
            BinaryFn::BitAnd | BinaryFn::BitOr | BinaryFn::BitXor | BinaryFn::Shl | BinaryFn::Shr,
        ) => first.is_int(),
        MapFn::Binary(BinaryFn::Atan2) => first.is_float(),
        MapFn::Binary(BinaryFn::DotBf16) => first == DType::F32,
        MapFn::Binary(op) if op.is_dot() => first == DType::I32,
        _ => true,
    };
    let op = Op::Map(function);
    if !fits {
        return Err(format!("{} of {first}", op.name()));
    }
    let types: Vec<TensorType> = operands.iter().map(|dtype| TensorType::new(*dtype, vec![])).collect();
    let types: Vec<&TensorType> = types.iter().collect();
    infer(&op, &types).map(|inferred| inferred.results[0].dtype).map_err(|error| error.message)
}

fn unary_fits(op: UnaryFn, dtype: DType) -> bool {
    use UnaryFn::*;
    match op {
        Not => dtype == DType::Bool,
        BitNot => dtype.is_int(),
        Swap => dtype.part().is_some(),
        Neg | Abs | Sign => dtype.is_float() || dtype.is_int(),
        Ceil | Floor | Round | Trunc => dtype.is_float() || dtype.is_int(),
        _ => dtype.is_float(),
    }
}

impl Kernel {
    /// Element type of an expression that keeps the rules.
    pub fn dtype(&self, expr: &Expr) -> DType {
        match expr {
            Expr::Const { dtype, .. } => *dtype,
            Expr::Index(_) => DType::I64,
            Expr::Var(var) => self.vars[*var].dtype,
            Expr::Load { buf, .. } => self.buffers[*buf].dtype,
            Expr::Word { .. } | Expr::Quad { .. } => DType::I32,
            Expr::Get { local, .. } => self.locals[*local].dtype,
            Expr::Unary { op: UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf, .. } => DType::Bool,
            Expr::Unary { x, .. } => self.dtype(x),
            Expr::Binary { a, .. } | Expr::Fma { a, .. } => self.dtype(a),
            Expr::Compare { .. } => DType::Bool,
            Expr::Select { then, .. } => self.dtype(then),
            Expr::Cast { to, .. } | Expr::Bitcast { to, .. } => *to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::scalar::UnaryFn;

    fn var(number: u32) -> Expr {
        Expr::Var(Var::from_u32(number))
    }

    #[test]
    fn functions_of_the_graph_are_taken_apart_and_made_again() {
        let functions = [
            MapFn::Unary(UnaryFn::Neg),
            MapFn::Binary(BinaryFn::Add),
            MapFn::Compare(CompareFn::Lt),
            MapFn::Select,
            MapFn::Cast { to: DType::F16, saturate: false },
            MapFn::Bitcast { to: DType::I32 },
            MapFn::MulAdd,
        ];
        for (function, count) in functions.into_iter().zip([1, 2, 2, 3, 1, 1, 3]) {
            let operands: Vec<Expr> = (0..count).map(var).collect();
            let expr = Expr::apply(function, operands.clone());
            assert_eq!(expr.function(), Some(function));
            assert_eq!(expr.operands(), operands.iter().collect::<Vec<_>>());
            assert!(expr.indices().is_empty() && expr.reads().is_none());
        }
    }

    #[test]
    fn parts_can_be_changed() {
        let mut expr = Expr::fma(var(0), var(1), var(2));
        expr.operands_mut().into_iter().for_each(|operand| *operand = var(7));
        assert_eq!(expr, Expr::fma(var(7), var(7), var(7)));
        let mut expr = Expr::quad([0, 1, 2, 3].map(var));
        expr.operands_mut().into_iter().for_each(|operand| *operand = var(7));
        assert_eq!(expr, Expr::quad([7; 4].map(var)));
        let (buf, local) = (Buf::from_u32(0), Local::from_u32(0));
        for mut expr in [
            Expr::Index(Index::int(3)),
            Expr::Load { buf, index: Index::int(3) },
            Expr::Word { buf, index: Index::int(3) },
            Expr::Get { local, at: vec![Index::int(3)] },
        ] {
            assert_eq!(expr.indices(), [&Index::int(3)]);
            expr.indices_mut().into_iter().for_each(|index| *index = Index::int(4));
            assert_eq!(expr.indices(), [&Index::int(4)]);
            let reads = expr.reads().map(|reads| (reads.buf, reads.is_word));
            let wanted = match expr {
                Expr::Load { .. } => Some((buf, false)),
                Expr::Word { .. } => Some((buf, true)),
                _ => None,
            };
            assert_eq!(reads, wanted);
        }
    }

    #[test]
    fn operands_decide_the_type() {
        use DType::*;
        let word = Expr::Word { buf: Buf::from_u32(0), index: Index::zero() };
        assert!([U8, I8, I16].iter().all(|dtype| word.result(&[*dtype]) == Ok(I32)));
        assert!(word.result(&[F32]).unwrap_err().contains("a word of f32"));
        let quad = Expr::quad([0, 1, 2, 3].map(var));
        assert_eq!(quad.result(&[U8; 4]), Ok(I32));
        assert!(quad.result(&[U8, U8, U8, I8]).unwrap_err().contains("four bytes"));
        let fma = Expr::fma(var(0), var(1), var(2));
        assert_eq!(fma.result(&[F64, F64, F64]), Ok(F64));
        assert!(fma.result(&[F64, F64, F32]).is_err() && fma.result(&[I32, I32, I32]).is_err());
        assert_eq!(Expr::compare(CompareFn::Lt, var(0), var(1)).result(&[F32, F32]), Ok(Bool));
        assert!(Expr::unary(UnaryFn::Not, var(0)).result(&[F32]).is_err());
    }
}
