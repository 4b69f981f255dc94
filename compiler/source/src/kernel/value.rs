//! Values as C expressions, of single numbers and of vectors.

use crate::helpers::numbers::{computed, held};
use crate::helpers::{c_name, element_bytes};
use crate::kernel::{Bound, Facts, Formed, MASK_BYTES, Printer, memory_type};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use onnxc_loops::{Buf, Expr, Index, Local};

/// A value: an expression of C.
#[derive(Clone, Debug)]
pub(crate) struct Val {
    pub text: String,
    pub dtype: DType,
    /// 1 of a single number.
    pub lanes: usize,
    /// Bytes of an element of a mask: a vector of truth values.
    pub mask: usize,
    /// The code of a float of 16 bits or less, where it is at hand.
    pub code: Option<String>,
    pub facts: Facts,
    pub is_factor: bool,
}

impl Val {
    pub(crate) fn new(text: String, dtype: DType, lanes: usize) -> Val {
        let is_factor = is_factor(&text);
        Val { text, dtype, lanes, mask: 0, code: None, facts: Facts::default(), is_factor }
    }

    fn masked(text: String, lanes: usize, mask: usize) -> Val {
        Val { mask, ..Val::new(text, DType::Bool, lanes) }
    }

    /// The text as an operand of anything.
    pub(crate) fn factor(&self) -> String {
        if self.is_factor { self.text.clone() } else { format!("({})", self.text) }
    }
}

/// Whether a text is a name, a number, a call, or an element.
fn is_factor(text: &str) -> bool {
    let (mut depth, mut closed) = (0, false);
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ if depth == 0 && !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')) => return false,
            _ if depth == 0 && closed => return false,
            _ => {}
        }
        // `(a)b` is a cast, not an operand.
        closed = closed || (depth == 0 && c == ')' && text.starts_with('('));
    }
    true
}

impl Printer<'_> {
    pub(crate) fn value(&mut self, expr: &Expr) -> Formed<Val> {
        match expr {
            Expr::Const { dtype, bits } => Ok(self.constant_value(*dtype, *bits)),
            Expr::Index(index) => self.index_value(index),
            Expr::Var(var) => match self.bound.get(var).cloned() {
                Some(Bound::Named(name)) => {
                    let dtype = self.kernel.vars[*var].dtype;
                    let text = match name.is_index {
                        true => format!("(int64_t){}", name.text),
                        false => name.text,
                    };
                    let value = Val::new(text, dtype, name.lanes);
                    Ok(Val { mask: name.mask, facts: name.facts, ..value })
                }
                _ => self.index_value(&Index::var(*var)),
            },
            Expr::Load { buf, index } => self.load(*buf, index),
            Expr::Word { buf, index } => {
                if self.differs(index) {
                    return Err("words of lanes".into());
                }
                self.helpers.word();
                let (own, at) = (self.buffer(*buf), self.index(index)?);
                Ok(Val::new(format!("ox_word({own} + {})", paren(&at.text)), DType::I32, 1))
            }
            Expr::Quad { bytes } => {
                let mut words = vec![];
                for (at, byte) in bytes.iter().enumerate() {
                    let byte = self.value(byte)?;
                    if byte.lanes > 1 {
                        return Err("quads of lanes".into());
                    }
                    words.push(format!("(uint32_t)(uint8_t){} << {}", byte.factor(), 8 * at));
                }
                Ok(Val::new(format!("(int32_t)({})", words.join(" | ")), DType::I32, 1))
            }
            Expr::Get { local, at } => self.get(*local, at),
            Expr::Unary { op, x } => {
                let x = self.value(x)?;
                self.unary(*op, x)
            }
            Expr::Binary { op, a, b } => {
                let dtype = self.kernel.dtype(a);
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.binary(*op, dtype, a, b)
            }
            Expr::Fma { a, b, c } => {
                let dtype = self.kernel.dtype(a);
                let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
                self.fused(dtype, a, b, c)
            }
            Expr::Compare { op, a, b } => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.compare(*op, a, b)
            }
            Expr::Select { condition, then, otherwise } => {
                let condition = self.value(condition)?;
                let (then, otherwise) = (self.value(then)?, self.value(otherwise)?);
                self.choose(condition, then, otherwise)
            }
            Expr::Cast { to, saturate, x } => {
                let x = self.value(x)?;
                self.cast(*to, *saturate, x)
            }
            Expr::Bitcast { to, x } => {
                let x = self.value(x)?;
                self.bitcast(*to, x)
            }
        }
    }

    fn constant_value(&mut self, dtype: DType, bits: u64) -> Val {
        let (text, float) = match dtype {
            DType::F32 => (self.float(bits), Some(f64::from(f32::from_bits(bits as u32)))),
            DType::F64 => (self.double(bits), Some(f64::from_bits(bits))),
            DType::C64 => {
                self.helpers.complex("c64");
                (format!("ox_c64_of({}, {})", self.float(bits & 0xffff_ffff), self.float(bits >> 32)), None)
            }
            DType::C128 => {
                self.helpers.complex("c128");
                (format!("ox_c128_of({}, 0.0)", self.double(bits)), None)
            }
            DType::Bool => (u64::from(bits != 0).to_string(), None),
            _ if dtype.is_float() => {
                let tensor = onnxc_ir::graph::Tensor::new(
                    dtype,
                    vec![],
                    bits.to_le_bytes()[..dtype.size()].to_vec().into(),
                );
                let wide = onnxc_ir::interp::cast(&tensor, DType::F32, true);
                let mut single = [0; 8];
                single[..4].copy_from_slice(&wide.data[..4]);
                let single = u64::from_le_bytes(single);
                (self.float(single), Some(f64::from(f32::from_bits(single as u32))))
            }
            _ => (integer(dtype, bits), None),
        };
        let mut value = Val::new(text, dtype, 1);
        value.is_factor |= value.text.starts_with('-') && is_factor(&value.text[1..]);
        if let Some(float) = float {
            let (above, below) = (float >= -2_147_483_648.0, float <= 2_147_483_520.0);
            value.facts = Facts { above, below, not_nan: !float.is_nan() };
        }
        if dtype.is_float() && dtype.size() <= 2 {
            value.code = Some(format!("{bits:#x}u"));
        }
        value
    }

    fn float(&mut self, bits: u64) -> String {
        let value = f32::from_bits(bits as u32);
        if value.is_finite() {
            return format!("{value:?}f");
        }
        self.helpers.bits("f32");
        format!("ox_f32_of_bits({:#x}u)", bits as u32)
    }

    fn double(&mut self, bits: u64) -> String {
        let value = f64::from_bits(bits);
        if value.is_finite() {
            return format!("{value:?}");
        }
        self.helpers.bits("f64");
        format!("ox_f64_of_bits(UINT64_C({bits:#x}))")
    }

    /// All lanes of a value.
    pub(crate) fn spread(&mut self, value: Val) -> Val {
        let Some((_, lanes)) = self.group else { return value };
        if value.lanes > 1 {
            return value;
        }
        if value.dtype == DType::Bool {
            let mask = 4;
            self.helpers.mask(mask, lanes);
            let splat = self.helpers.splat("i32", lanes);
            return Val::masked(format!("{splat}(-({}))", value.text), lanes, mask);
        }
        let splat = self.helpers.splat(held(value.dtype), lanes);
        let spread = Val::new(format!("{splat}({})", value.text), value.dtype, lanes);
        Val { facts: value.facts, ..spread }
    }

    /// Two operands of one operation: vectors, if one is.
    pub(crate) fn pair(&mut self, a: Val, b: Val) -> (Val, Val) {
        if a.lanes == b.lanes { (a, b) } else { (self.spread(a), self.spread(b)) }
    }

    /// A mask for lanes of this number of bytes.
    pub(crate) fn fit(&mut self, mask: Val, bytes: usize) -> Val {
        if mask.lanes == 1 || mask.mask == bytes {
            return mask;
        }
        let ty = self.helpers.mask(bytes, mask.lanes);
        Val::masked(format!("__builtin_convertvector({}, {ty})", mask.text), mask.lanes, bytes)
    }

    /// A value as the type holds it, after arithmetic that is wider.
    fn round(&mut self, value: Val, dtype: DType) -> Formed<Val> {
        let value = Val { dtype, ..value };
        match dtype {
            DType::F16 | DType::BF16 => {
                let (code, float) = match value.lanes {
                    1 => {
                        self.helpers.narrow(dtype);
                        (format!("ox_{dtype}_of({})", value.text), format!("ox_f32_of_{dtype}"))
                    }
                    lanes => {
                        let narrowed = self.helpers.narrowed(dtype, lanes);
                        (format!("{narrowed}({})", value.text), self.helpers.widened(dtype, lanes))
                    }
                };
                let rounded = Val::new(format!("{float}({code})"), dtype, value.lanes);
                Ok(Val { code: Some(code), ..rounded })
            }
            _ if dtype.is_float() && dtype.size() == 1 => self.narrow_float(value, dtype, true),
            DType::I2 | DType::I4 | DType::U2 | DType::U4 => {
                if value.lanes > 1 {
                    return Err(format!("vectors of {dtype}"));
                }
                self.helpers.few_bits(dtype);
                Ok(Val::new(format!("ox_low_{dtype}({})", value.text), dtype, 1))
            }
            _ => Ok(value),
        }
    }

    /// An f32 as a float of 8 bits or less, or of 16.
    fn narrow_float(&mut self, value: Val, dtype: DType, saturate: bool) -> Formed<Val> {
        if dtype.size() == 2 {
            return self.round(value, dtype);
        }
        if value.lanes > 1 {
            return Err(format!("vectors of {dtype}"));
        }
        self.helpers.narrow(dtype);
        let code = format!("ox_{dtype}_of({}, {})", value.text, i32::from(saturate));
        let rounded = Val::new(format!("ox_f32_of_{dtype}({code})"), dtype, 1);
        Ok(Val { code: Some(code), ..rounded })
    }

    /// The code of a narrow float.
    fn code_of(&mut self, value: &Val) -> Formed<String> {
        if let Some(code) = &value.code {
            return Ok(code.clone());
        }
        let dtype = value.dtype;
        Ok(match (dtype.size(), value.lanes) {
            (2, 1) => {
                self.helpers.narrow(dtype);
                format!("ox_{dtype}_of({})", value.text)
            }
            (2, lanes) => format!("{}({})", self.helpers.narrowed(dtype, lanes), value.text),
            (_, 1) => {
                self.helpers.narrow(dtype);
                format!("ox_{dtype}_of({}, 1)", value.text)
            }
            _ => return Err(format!("vectors of {dtype}")),
        })
    }

    fn load(&mut self, buf: Buf, index: &Index) -> Formed<Val> {
        let dtype = self.kernel.buffers[buf].dtype;
        let own = self.buffer(buf);
        if let Some(index) = self.uniform(index) {
            let at = self.index(&index)?;
            return self.loaded(format!("{own}[{}]", at.text), dtype);
        }
        let (_, lanes) = self.group.ok_or("no lanes")?;
        let element = match dtype {
            DType::Bool => "u8",
            DType::F16 | DType::BF16 => "u16",
            DType::C64 | DType::C128 | DType::I2 | DType::I4 | DType::U2 | DType::U4 => {
                return Err(format!("vectors of {dtype}"));
            }
            _ if dtype.is_float() && dtype.size() == 1 => return Err(format!("vectors of {dtype}")),
            _ => held(dtype),
        };
        let vector = self.helpers.vector(element, lanes);
        let text = match self.contiguous(index) {
            Some(first) => {
                let at = self.index(&first)?;
                format!("*(const {vector}_u *)({own} + {})", paren(&at.text))
            }
            None => {
                let mut all = Vec::with_capacity(lanes);
                for lane in 0..lanes {
                    let index = self.at_lane(index, lane)?;
                    let at = self.index(&index)?;
                    all.push(format!("{own}[{}]", at.text));
                }
                format!("({vector}){{{}}}", all.join(", "))
            }
        };
        match dtype {
            DType::Bool => {
                let mask = self.helpers.mask(1, lanes);
                Ok(Val::masked(format!("({mask})(({text}) != 0)"), lanes, 1))
            }
            DType::F16 | DType::BF16 => {
                let widened = self.helpers.widened(dtype, lanes);
                let value = Val::new(format!("{widened}({text})"), dtype, lanes);
                Ok(Val { code: Some(text), ..value })
            }
            _ => Ok(Val::new(text, dtype, lanes)),
        }
    }

    /// A single element that was read.
    fn loaded(&mut self, text: String, dtype: DType) -> Formed<Val> {
        match dtype {
            DType::Bool => Ok(Val::new(format!("{text} != 0"), dtype, 1)),
            DType::C64 => {
                self.helpers.complex("c64");
                Ok(Val::new(text, dtype, 1))
            }
            DType::C128 => {
                self.helpers.complex("c128");
                Ok(Val::new(text, dtype, 1))
            }
            _ if dtype.is_float() && dtype.size() <= 2 => {
                self.helpers.narrow(dtype);
                let value = Val::new(format!("ox_f32_of_{dtype}({text})"), dtype, 1);
                Ok(Val { code: Some(text), ..value })
            }
            _ if dtype.is_packed() => self.round(Val::new(text, dtype, 1), dtype),
            _ => Ok(Val::new(text, dtype, 1)),
        }
    }

    pub(crate) fn store(&mut self, buf: Buf, index: &Index, value: Val) -> Formed<()> {
        let dtype = self.kernel.buffers[buf].dtype;
        let own = self.buffer(buf);
        if self.group.is_none() || (!self.differs(index) && value.lanes == 1) {
            let at = self.index(index)?;
            let text = match dtype {
                _ if dtype.is_float() && dtype.size() <= 2 => {
                    let code = self.code_of(&value)?;
                    format!("({})({code})", memory_type(dtype))
                }
                DType::Bool => format!("({})({})", memory_type(dtype), value.text),
                _ => value.text,
            };
            self.line(&format!("{own}[{}] = {text};", at.text));
            return Ok(());
        }
        let (_, lanes) = self.group.ok_or("no lanes")?;
        if self.kernel.buffers[buf].dtype.size() > 8 || dtype.is_packed() || dtype == DType::C64 {
            return Err(format!("vectors of {dtype}"));
        }
        let value = self.spread(value);
        let (element, text) = match dtype {
            DType::Bool => {
                let value = self.fit(value, 1);
                ("i8", format!("{} & 1", value.factor()))
            }
            DType::F16 | DType::BF16 => ("u16", self.code_of(&value)?),
            _ if dtype.is_float() && dtype.size() == 1 => return Err(format!("vectors of {dtype}")),
            _ => (held(dtype), value.text),
        };
        let vector = self.helpers.vector(element, lanes);
        match self.contiguous(index) {
            Some(first) => {
                let at = self.index(&first)?;
                self.line(&format!("*({vector}_u *)({own} + {}) = {text};", paren(&at.text)));
            }
            None => {
                self.line("{");
                self.line(&format!("    const {vector} lanes = {text};"));
                for lane in 0..lanes {
                    let index = self.at_lane(index, lane)?;
                    let at = self.index(&index)?;
                    self.line(&format!("    {own}[{}] = ({})lanes[{lane}];", at.text, memory_type(dtype)));
                }
                self.line("}");
            }
        }
        Ok(())
    }

    fn get(&mut self, local: Local, at: &[Index]) -> Formed<Val> {
        let dtype = self.kernel.locals[local].dtype;
        let (text, vector) = self.register(local, at)?;
        let lanes = self.group.map_or(1, |(_, lanes)| lanes);
        let value = Val::new(text, dtype, if vector { lanes } else { 1 });
        match dtype {
            DType::Bool if vector => Ok(Val { mask: MASK_BYTES, ..value }),
            // A lane of a mask is -1 or 0.
            DType::Bool if self.kernel.locals[local].lanes > 1 => {
                Ok(Val::new(format!("{} != 0", value.text), dtype, 1))
            }
            _ => Ok(value),
        }
    }

    fn unary(&mut self, op: UnaryFn, x: Val) -> Formed<Val> {
        let (dtype, lanes) = (x.dtype, x.lanes);
        let element = held(dtype);
        let float = element.starts_with('f');
        let make = |text: String| Val::new(text, dtype, lanes);
        if matches!(op, UnaryFn::Swap) {
            let name = memory_type(dtype);
            return Ok(make(format!("{name}_of({0}.im, {0}.re)", x.factor())));
        }
        if dtype == DType::Bool {
            return match (op, lanes) {
                (UnaryFn::Not, 1) => Ok(make(format!("!{}", x.factor()))),
                (UnaryFn::Not, _) => Ok(Val { mask: x.mask, ..make(format!("~{}", x.factor())) }),
                _ => Err(format!("`{op}` of {dtype}")),
            };
        }
        if float {
            return self.float_unary(op, x);
        }
        let value = match op {
            UnaryFn::Neg if lanes == 1 => {
                make(format!("({})(0u - ({}){})", c_name(element), computed(element), x.factor()))
            }
            UnaryFn::Neg => make(format!("-{}", x.factor())),
            UnaryFn::BitNot if lanes == 1 => make(format!("({})~{}", c_name(element), x.factor())),
            UnaryFn::BitNot => make(format!("~{}", x.factor())),
            UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc => x,
            UnaryFn::Abs | UnaryFn::Sign => {
                let name = if op == UnaryFn::Abs { "abs" } else { "sign" };
                self.helpers.int_unary(name, element);
                let scalar = format!("ox_{name}_{element}");
                make(self.call(&scalar, element, element, &[&x]))
            }
            _ => return Err(format!("`{op}` of {dtype}")),
        };
        self.round(value, dtype)
    }

    /// A call of a function of single numbers, lane by lane where they are vectors.
    fn call(&mut self, scalar: &str, from: &str, to: &str, operands: &[&Val]) -> String {
        let args: Vec<String> = operands.iter().map(|value| value.text.clone()).collect();
        let function = match operands.first().map_or(1, |value| value.lanes) {
            1 => scalar.to_string(),
            lanes => self.helpers.lane_by_lane(scalar, &vec![from; operands.len()], to, lanes),
        };
        format!("{function}({})", args.join(", "))
    }

    fn float_unary(&mut self, op: UnaryFn, x: Val) -> Formed<Val> {
        let (dtype, lanes) = (x.dtype, x.lanes);
        let element = held(dtype);
        let width = element_bytes(element);
        let facts = Facts { not_nan: x.facts.not_nan, ..Facts::default() };
        let make = |text: String| Val { facts, ..Val::new(text, dtype, lanes) };
        let name = match op {
            UnaryFn::Neg => "neg",
            UnaryFn::Abs => "abs",
            UnaryFn::Sign => "sign",
            UnaryFn::Floor => "floor",
            UnaryFn::Ceil => "ceil",
            UnaryFn::Trunc => "trunc",
            UnaryFn::Round => "round",
            UnaryFn::Sqrt => "sqrt",
            UnaryFn::Recip => "recip",
            UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf => {
                self.helpers.bits(element);
                let negative = op == UnaryFn::IsNegInf;
                let infinity = match element {
                    "f64" => format!("ox_f64_of_bits(UINT64_C({:#x}))", f64::INFINITY.to_bits()),
                    _ => format!("ox_f32_of_bits({:#x}u)", f32::INFINITY.to_bits()),
                };
                let infinity = if negative { format!("-{infinity}") } else { infinity };
                let text = match op {
                    UnaryFn::IsNan => format!("{0} != {0}", x.factor()),
                    _ => format!("{} == {infinity}", x.factor()),
                };
                return Ok(match lanes {
                    1 => Val::new(text, DType::Bool, 1),
                    lanes => {
                        let mask = self.helpers.mask(width, lanes);
                        Val::masked(format!("({mask})({text})"), lanes, width)
                    }
                });
            }
            _ => return Err(format!("`{op}` of {dtype}")),
        };
        let one = if element == "f64" { "1.0" } else { "1.0f" };
        let value = match (name, lanes) {
            ("neg", _) if x.text.starts_with('-') => make(format!("-({})", x.text)),
            ("neg", _) => make(format!("-{}", x.factor())),
            ("recip", _) => make(format!("{one} / {}", x.factor())),
            ("abs", 2..) => {
                let words = self.helpers.vector(if width == 8 { "i64" } else { "i32" }, lanes);
                let vector = self.helpers.vector(element, lanes);
                let most = if width == 8 { "INT64_MAX" } else { "INT32_MAX" };
                make(format!("({vector})(({words}){} & {most})", x.factor()))
            }
            ("sqrt", 2..) => {
                let function = self.helpers.vector_sqrt(element, lanes);
                make(format!("{function}({})", x.text))
            }
            _ => {
                self.helpers.float_unary(name, element);
                let text = self.call(&format!("ox_{name}_{element}"), element, element, &[&x]);
                let kept = matches!(name, "floor" | "ceil" | "trunc" | "round");
                let facts = if kept { x.facts } else { facts };
                Val { facts, ..make(text) }
            }
        };
        match op {
            UnaryFn::Sqrt | UnaryFn::Recip => self.round(value, dtype),
            // Types of 8 bits and fewer may lack a sign, or saturate infinities.
            _ if dtype.size() == 1 => self.round(value, dtype),
            _ => Ok(value),
        }
    }

    /// `a * b + c`
    fn fused(&mut self, dtype: DType, a: Val, b: Val, c: Val) -> Formed<Val> {
        let element = held(dtype);
        if !element.starts_with('f') {
            let product = self.binary(BinaryFn::Mul, dtype, a, b)?;
            return self.binary(BinaryFn::Add, dtype, product, c);
        }
        let value = if [&a, &b, &c].iter().any(|value| value.lanes > 1) {
            let (a, b, c) = (self.spread(a), self.spread(b), self.spread(c));
            Val::new(format!("{} * {} + {}", a.factor(), b.factor(), c.factor()), dtype, a.lanes)
        } else {
            self.helpers.fma(element);
            Val::new(format!("ox_fma_{element}({}, {}, {})", a.text, b.text, c.text), dtype, 1)
        };
        self.round(value, dtype)
    }

    pub(crate) fn binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Formed<Val> {
        let (a, b) = self.pair(a, b);
        let lanes = a.lanes;
        let element = held(dtype);
        match dtype {
            DType::Bool => return self.truth(op, a, b),
            DType::C64 | DType::C128 => {
                let name = memory_type(dtype);
                self.helpers.complex(&name[3..]);
                return match op {
                    BinaryFn::BitOr => {
                        Ok(Val::new(format!("ox_or_{}({}, {})", &name[3..], a.text, b.text), dtype, 1))
                    }
                    _ => Err(format!("`{op}` of {dtype}")),
                };
            }
            _ => {}
        }
        let value = match element.starts_with('f') {
            true => self.float_binary(op, dtype, a, b)?,
            false => self.int_binary(op, dtype, a, b)?,
        };
        match op {
            BinaryFn::Max | BinaryFn::Min | BinaryFn::BitAnd | BinaryFn::BitOr | BinaryFn::BitXor => {
                Ok(Val { lanes, ..value })
            }
            _ => self.round(value, dtype),
        }
    }

    fn truth(&mut self, op: BinaryFn, a: Val, b: Val) -> Formed<Val> {
        let operator = match op {
            BinaryFn::And | BinaryFn::BitAnd | BinaryFn::Min | BinaryFn::Mul => "&",
            BinaryFn::Or | BinaryFn::BitOr | BinaryFn::Max => "|",
            BinaryFn::Xor | BinaryFn::BitXor => "^",
            _ => return Err(format!("`{op}` of bool")),
        };
        let mask = a.mask.max(b.mask);
        let (a, b) = (self.fit(a, mask), self.fit(b, mask));
        // clang takes `&` and `|` of truth values for `&&` and `||`, where a function is called behind them, but not those of integers.
        let int = if a.lanes == 1 && b.text.contains("ox_") { "(int)" } else { "" };
        let text = format!("{int}{} {operator} {int}{}", a.factor(), b.factor());
        Ok(Val { mask, ..Val::new(text, DType::Bool, a.lanes) })
    }

    fn float_binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Formed<Val> {
        let (lanes, element) = (a.lanes, held(dtype));
        let make = |text: String| Val::new(text, dtype, lanes);
        let operator = match op {
            BinaryFn::Add => "+",
            BinaryFn::Sub => "-",
            BinaryFn::Mul => "*",
            BinaryFn::Div => "/",
            BinaryFn::Max | BinaryFn::Min => return self.float_extreme(op, dtype, a, b),
            BinaryFn::Rem | BinaryFn::Mod => {
                let name = if op == BinaryFn::Rem { "rem" } else { "mod" };
                self.helpers.float_rest(name, element);
                return Ok(make(self.call(&format!("ox_{name}_{element}"), element, element, &[&a, &b])));
            }
            BinaryFn::DotBf16 => {
                if lanes > 1 {
                    return Err("vectors of pairs of bf16".into());
                }
                self.helpers.bits("f32");
                let part = |value: &Val, high: bool| match high {
                    true => format!("ox_f32_of_bits(ox_bits_of_f32({}) & 0xffff0000u)", value.text),
                    false => format!("ox_f32_of_bits(ox_bits_of_f32({}) << 16)", value.text),
                };
                return Ok(make(format!(
                    "{} * {} + {} * {}",
                    part(&a, true),
                    part(&b, true),
                    part(&a, false),
                    part(&b, false)
                )));
            }
            _ => return Err(format!("`{op}` of {dtype}")),
        };
        Ok(make(format!("{} {operator} {}", a.factor(), b.factor())))
    }

    /// NaN if either is NaN.
    fn float_extreme(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Formed<Val> {
        let (lanes, element) = (a.lanes, held(dtype));
        let (name, sign) = if op == BinaryFn::Max { ("max", '>') } else { ("min", '<') };
        let (x, y) = (a.facts, b.facts);
        let (above, below) = match op {
            BinaryFn::Max => (x.above || y.above, x.below && y.below),
            _ => (x.above && y.above, x.below || y.below),
        };
        let facts = Facts { above, below, not_nan: x.not_nan && y.not_nan };
        if lanes == 1 {
            self.helpers.float_extreme(name, element);
            let text = format!("ox_{name}_{element}({}, {})", a.text, b.text);
            return Ok(Val { facts, ..Val::new(text, dtype, 1) });
        }
        let select = self.helpers.select(element, lanes);
        let mask = self.helpers.mask(element_bytes(element), lanes);
        // The first operand is named twice: it has to be a name.
        let (first, second) = if y.not_nan { (b, a) } else { (a, b) };
        let first = self.named("extreme", first);
        let second = self.named("extreme", second);
        let greater = format!("({mask})({first} {sign} {second})");
        let text = match x.not_nan || y.not_nan {
            true => format!("{select}({greater}, {first}, {second})"),
            false => format!("{select}({greater} | ({mask})({first} != {first}), {first}, {second})"),
        };
        Ok(Val { facts, ..Val::new(text, dtype, lanes) })
    }

    /// A name for a vector that an expression has twice.
    fn named(&mut self, what: &str, value: Val) -> String {
        if value.text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return value.text;
        }
        let ty = self.type_of(&value);
        let name = format!("{what}_{}", self.fresh());
        self.line(&format!("const {ty} {name} = {};", value.text));
        name
    }

    fn int_binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Formed<Val> {
        let (lanes, element) = (a.lanes, held(dtype));
        let (ty, wide) = (c_name(element), computed(element));
        let make = |text: String| Val::new(text, dtype, lanes);
        let wrapped = |operator: &str| match lanes {
            1 => format!("({ty})(({wide}){} {operator} ({wide}){})", a.factor(), b.factor()),
            _ => {
                let (own, plain) = (
                    crate::helpers::vector_name(element, lanes),
                    crate::helpers::vector_name(&format!("u{}", &element[1..]), lanes),
                );
                format!("({own})(({plain}){} {operator} ({plain}){})", a.factor(), b.factor())
            }
        };
        if lanes > 1 {
            self.helpers.vector(&format!("u{}", &element[1..]), lanes);
            self.helpers.vector(element, lanes);
        }
        let name = match op {
            BinaryFn::Add => return Ok(make(wrapped("+"))),
            BinaryFn::Sub => return Ok(make(wrapped("-"))),
            BinaryFn::Mul => return Ok(make(wrapped("*"))),
            BinaryFn::BitAnd => return Ok(make(self.bitwise("&", ty, lanes, &a, &b))),
            BinaryFn::BitOr => return Ok(make(self.bitwise("|", ty, lanes, &a, &b))),
            BinaryFn::BitXor => return Ok(make(self.bitwise("^", ty, lanes, &a, &b))),
            BinaryFn::Dot
            | BinaryFn::DotSigned
            | BinaryFn::DotNarrow
            | BinaryFn::DotShort
            | BinaryFn::DotPairs => {
                let exact = match op {
                    BinaryFn::Dot | BinaryFn::DotShort => "dot",
                    BinaryFn::DotPairs => "dot_pairs",
                    _ => "dot_signed",
                };
                if lanes > 1 {
                    let function = self.helpers.vector_dot(op.name(), lanes);
                    return Ok(make(format!("{function}({}, {})", a.text, b.text)));
                }
                self.helpers.dot(exact);
                return Ok(make(format!("ox_{exact}_i32({}, {})", a.text, b.text)));
            }
            BinaryFn::Div => "div",
            BinaryFn::Mod => "mod",
            BinaryFn::Rem => "rem",
            BinaryFn::Pow => "pow",
            BinaryFn::Max => "max",
            BinaryFn::Min => "min",
            BinaryFn::Shl => "shl",
            BinaryFn::Shr => "shr",
            _ => return Err(format!("`{op}` of {dtype}")),
        };
        // Shifts count against the bits of the type, which may be fewer than those of what holds it.
        if matches!(name, "shl" | "shr") && dtype.is_packed() {
            let bits = dtype.bits();
            self.helpers.int_binary(name, element);
            return Ok(make(format!(
                "({wide}){0} < {bits}u ? ox_{name}_{element}({1}, {0}) : 0",
                b.factor(),
                a.text
            )));
        }
        if lanes > 1 && matches!(name, "max" | "min") {
            let select = self.helpers.select(element, lanes);
            let mask = self.helpers.mask(element_bytes(element), lanes);
            let (first, second) = (self.named("extreme", a), self.named("extreme", b));
            let sign = if name == "max" { '>' } else { '<' };
            return Ok(make(format!("{select}(({mask})({first} {sign} {second}), {first}, {second})")));
        }
        self.helpers.int_binary(name, element);
        Ok(make(self.call(&format!("ox_{name}_{element}"), element, element, &[&a, &b])))
    }

    fn bitwise(&mut self, operator: &str, ty: String, lanes: usize, a: &Val, b: &Val) -> String {
        let text = format!("{} {operator} {}", a.factor(), b.factor());
        if lanes == 1 { format!("({ty})({text})") } else { text }
    }

    fn compare(&mut self, op: CompareFn, a: Val, b: Val) -> Formed<Val> {
        let (a, b) = self.pair(a, b);
        let operator = match op {
            CompareFn::Eq => "==",
            CompareFn::Ne => "!=",
            CompareFn::Lt => "<",
            CompareFn::Le => "<=",
            CompareFn::Gt => ">",
            CompareFn::Ge => ">=",
        };
        if a.lanes == 1 {
            return match a.dtype {
                DType::C64 | DType::C128 => Err(format!("a comparison of {}", a.dtype)),
                _ => Ok(Val::new(format!("{} {operator} {}", a.factor(), b.factor()), DType::Bool, 1)),
            };
        }
        let lanes = a.lanes;
        let (a, b, bytes) = match a.dtype {
            DType::Bool => {
                let mask = a.mask.max(b.mask);
                // Yes is -1 in a mask: the order is the other one.
                let (a, b) = (self.fit(a, mask), self.fit(b, mask));
                (b, a, mask)
            }
            dtype => (a, b, element_bytes(held(dtype))),
        };
        let mask = self.helpers.mask(bytes, lanes);
        Ok(Val::masked(format!("({mask})({} {operator} {})", a.factor(), b.factor()), lanes, bytes))
    }

    fn choose(&mut self, condition: Val, then: Val, otherwise: Val) -> Formed<Val> {
        let (x, y) = (then.facts, otherwise.facts);
        let facts =
            Facts { above: x.above && y.above, below: x.below && y.below, not_nan: x.not_nan && y.not_nan };
        let dtype = then.dtype;
        if condition.lanes == 1 {
            let (then, otherwise) = self.pair(then, otherwise);
            let code = match (&then.code, &otherwise.code) {
                (Some(a), Some(b)) if then.lanes == 1 => {
                    Some(format!("({} ? {a} : {b})", condition.factor()))
                }
                _ => None,
            };
            let (then, otherwise) = match dtype {
                DType::Bool => {
                    let mask = then.mask.max(otherwise.mask);
                    (self.fit(then, mask), self.fit(otherwise, mask))
                }
                _ => (then, otherwise),
            };
            let text = match then.lanes {
                1 => format!("{} ? {} : {}", condition.factor(), then.factor(), otherwise.factor()),
                _ => {
                    let ty = self.type_of(&then);
                    let (a, b) = (then.factor(), otherwise.factor());
                    format!("{} ? ({ty}){a} : ({ty}){b}", condition.factor())
                }
            };
            return Ok(Val { facts, code, mask: then.mask, ..Val::new(text, dtype, then.lanes) });
        }
        let lanes = condition.lanes;
        let (then, otherwise) = (self.spread(then), self.spread(otherwise));
        if dtype == DType::Bool {
            let bytes = condition.mask.max(then.mask).max(otherwise.mask);
            let condition = self.fit(condition, bytes);
            let (then, otherwise) = (self.fit(then, bytes), self.fit(otherwise, bytes));
            let condition = self.named("choice", condition);
            let text = format!("({condition} & {}) | (~{condition} & {})", then.factor(), otherwise.factor());
            return Ok(Val::masked(text, lanes, bytes));
        }
        if matches!(dtype, DType::C64 | DType::C128) || dtype.is_packed() {
            return Err(format!("vectors of {dtype}"));
        }
        let element = held(dtype);
        let condition = self.fit(condition, element_bytes(element));
        let select = self.helpers.select(element, lanes);
        let code = match (&then.code, &otherwise.code) {
            (Some(a), Some(b)) => {
                let condition = self.fit(condition.clone(), 2);
                let select = self.helpers.select("u16", lanes);
                Some(format!("{select}({}, {a}, {b})", condition.text))
            }
            _ => None,
        };
        let text = format!("{select}({}, {}, {})", condition.text, then.text, otherwise.text);
        Ok(Val { facts, code, ..Val::new(text, dtype, lanes) })
    }

    fn cast(&mut self, to: DType, saturate: bool, x: Val) -> Formed<Val> {
        let (from, lanes) = (x.dtype, x.lanes);
        if from == to {
            return Ok(x);
        }
        let make = |text: String| Val::new(text, to, lanes);
        match (from, to) {
            (DType::C64, DType::F32) | (DType::C128, DType::F64) => {
                return Ok(make(format!("{}.re", x.factor())));
            }
            (DType::F32, DType::C64) | (DType::F64, DType::C128) => {
                let (name, zero) = if to == DType::C64 { ("c64", "0.0f") } else { ("c128", "0.0") };
                self.helpers.complex(name);
                return Ok(make(format!("ox_{name}_of({}, {zero})", x.text)));
            }
            _ => {}
        }
        let (before, after) = (held(from), held(to));
        let (from_float, to_float) = (from.is_float(), to.is_float());
        let c_type = c_name(after);
        match (from, to) {
            (_, DType::Bool) if lanes == 1 => Ok(make(format!("{} != 0", x.factor()))),
            (_, DType::Bool) => {
                let bytes = element_bytes(before);
                let mask = self.helpers.mask(bytes, lanes);
                Ok(Val::masked(format!("({mask})({} != 0)", x.factor()), lanes, bytes))
            }
            (DType::Bool, _) if lanes == 1 => {
                self.round_cast(make(format!("({c_type}){}", x.factor())), to, saturate)
            }
            (DType::Bool, _) => {
                let bytes = element_bytes(after);
                let x = self.fit(x, bytes);
                let ones = self.helpers.splat(after, lanes);
                let (vector, mask) = (self.helpers.vector(after, lanes), self.helpers.mask(bytes, lanes));
                let one = if to_float { if after == "f64" { "1.0" } else { "1.0f" } } else { "1" };
                Ok(make(format!("({vector})({} & ({mask}){ones}({one}))", x.factor())))
            }
            _ if from_float && to_float => {
                if from == DType::F64 && to == DType::F16 {
                    if lanes > 1 {
                        return Err("vectors of f64 to f16".into());
                    }
                    self.helpers.f16_of_f64();
                    let code = format!("ox_f16_of_f64({})", x.text);
                    let value = make(format!("ox_f32_of_f16({code})"));
                    return Ok(Val { code: Some(code), ..value });
                }
                let value = match (before == after, lanes) {
                    (true, _) => Val { dtype: to, code: None, ..x },
                    (false, 1) => make(format!("({c_type}){}", x.factor())),
                    (false, _) => {
                        let vector = self.helpers.vector(after, lanes);
                        make(format!("__builtin_convertvector({}, {vector})", x.text))
                    }
                };
                self.round_cast(value, to, saturate)
            }
            _ if from_float => {
                let (signed, long) = (to.is_signed_int(), element_bytes(after) == 8);
                let text = match lanes {
                    1 if !long && x.facts.above && x.facts.below && x.facts.not_nan => {
                        format!("({c_type})(int32_t){}", x.factor())
                    }
                    1 => {
                        self.helpers.int_of_float(before, signed, long);
                        let (kind, bits) = (if signed { 'i' } else { 'u' }, if long { 64 } else { 32 });
                        let call = format!("ox_{kind}{bits}_of_{before}({})", x.text);
                        if element_bytes(after) < 4 { format!("({c_type}){call}") } else { call }
                    }
                    _ => {
                        let fits = x.facts.above && x.facts.below;
                        let function = self.helpers.vector_to_int(before, after, lanes, fits);
                        format!("{function}({})", x.text)
                    }
                };
                self.round(make(text), to)
            }
            _ => {
                let value = match (before == after, lanes) {
                    (true, _) => Val { dtype: to, ..x },
                    (false, 1) => make(format!("({c_type}){}", x.factor())),
                    (false, _) => {
                        let vector = self.helpers.vector(after, lanes);
                        make(format!("__builtin_convertvector({}, {vector})", x.text))
                    }
                };
                match to_float {
                    true => self.round_cast(value, to, saturate),
                    false => self.round(value, to),
                }
            }
        }
    }

    /// Rounds to a narrow float as a cast does.
    fn round_cast(&mut self, value: Val, to: DType, saturate: bool) -> Formed<Val> {
        match to {
            _ if to.is_float() && to.size() <= 2 => self.narrow_float(value, to, saturate),
            _ => self.round(value, to),
        }
    }

    fn bitcast(&mut self, to: DType, x: Val) -> Formed<Val> {
        let (from, lanes) = (x.dtype, x.lanes);
        if from == to {
            return Ok(x);
        }
        let complex = |dtype: DType| matches!(dtype, DType::C64 | DType::C128);
        if complex(from) || complex(to) {
            return Err(format!("the bits of {from} as {to}"));
        }
        let narrow = |dtype: DType| dtype.is_float() && dtype.size() <= 2;
        if lanes > 1 {
            if narrow(from) || narrow(to) {
                let code = if narrow(from) { self.code_of(&x)? } else { x.text.clone() };
                let codes = self.helpers.vector("u16", lanes);
                if from.size() != 2 {
                    return Err(format!("the bits of {from} as {to}"));
                }
                return match narrow(to) {
                    true => {
                        let widened = self.helpers.widened(to, lanes);
                        let code = format!("({codes})({code})");
                        let value = Val::new(format!("{widened}({code})"), to, lanes);
                        Ok(Val { code: Some(code), ..value })
                    }
                    false => {
                        let vector = self.helpers.vector(held(to), lanes);
                        Ok(Val::new(format!("({vector})({code})"), to, lanes))
                    }
                };
            }
            if from == DType::Bool || to == DType::Bool {
                return Err(format!("the bits of {from} as {to}"));
            }
            let vector = self.helpers.vector(held(to), lanes);
            return Ok(Val::new(format!("({vector}){}", x.factor()), to, lanes));
        }
        // By way of an integer.
        let bits = match from {
            _ if narrow(from) => self.code_of(&x)?,
            DType::F32 | DType::F64 => {
                self.helpers.bits(held(from));
                format!("ox_bits_of_{}({})", held(from), x.text)
            }
            _ => x.factor(),
        };
        match to {
            DType::F32 | DType::F64 => {
                let float = held(to);
                self.helpers.bits(float);
                let ty = if to == DType::F64 { "uint64_t" } else { "uint32_t" };
                Ok(Val::new(format!("ox_{float}_of_bits(({ty}){})", paren(&bits)), to, 1))
            }
            _ if narrow(to) => {
                self.helpers.narrow(to);
                let ty = if to.size() == 2 { "uint16_t" } else { "uint8_t" };
                let code = format!("({ty}){}", paren(&bits));
                let value = Val::new(format!("ox_f32_of_{to}({code})"), to, 1);
                Ok(Val { code: Some(code), ..value })
            }
            DType::Bool => Ok(Val::new(format!("{} != 0", paren(&bits)), to, 1)),
            _ => {
                let value = Val::new(format!("({}){}", c_name(held(to)), paren(&bits)), to, 1);
                self.round(value, to)
            }
        }
    }
}

fn paren(text: &str) -> String {
    if is_factor(text) { text.to_string() } else { format!("({text})") }
}

/// An integer of C.
fn integer(dtype: DType, bits: u64) -> String {
    let value = match dtype {
        DType::I64 | DType::Str => bits as i64,
        DType::U64 => return format!("UINT64_C({bits})"),
        DType::U32 => return format!("{}u", bits as u32),
        DType::I32 => i64::from(bits as i32),
        DType::I16 => i64::from(bits as i16),
        DType::I8 | DType::I4 | DType::I2 => i64::from(bits as i8),
        _ => return format!("{}", bits as u16),
    };
    let wide = matches!(dtype, DType::I64 | DType::Str);
    match value {
        i64::MIN => "INT64_MIN".into(),
        -2_147_483_648 if !wide => "INT32_MIN".into(),
        _ if wide => format!("INT64_C({value})"),
        _ => value.to_string(),
    }
}
