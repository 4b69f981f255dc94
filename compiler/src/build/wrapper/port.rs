//! One input or output of a model in its wrapper: its Rust type, its sizes, and what a run is given for it.

use std::fmt::Write as _;

use super::names::line;
use onnxc_ir::graph::dim::Atom;
use onnxc_ir::graph::{DType, Dim, Sym, TensorType};

pub(super) struct Port<'g> {
    pub name: &'g str,
    pub ty: &'g TensorType,
    pub has_default: bool,
    /// Of an output: whether the run decides its rank.
    pub any_rank: bool,
    pub ident: String,
    /// Of an output the field of its dims, of an input the variable of its texts' addresses.
    pub beside: String,
    pub holds: Holds,
    /// Per dim its value in the function `shapes`, an `Option<i64>`; 0 for one that only the run knows.
    pub sizes: Vec<String>,
}

/// How Rust holds the elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The number in the type.
    Array(i64),
    /// The product of the dims.
    Slice,
    /// A number that the run decides, in memory that it allocates: an output.
    Late,
}

impl<'g> Port<'g> {
    /// An input, if arguments decide all of its sizes. `value` names the argument of a symbol, which `shapes` knows as an
    /// `Option<i64>`.
    pub(super) fn input(
        name: &'g str,
        ty: &'g TensorType,
        names: [String; 2],
        value: &dyn Fn(Sym) -> Option<String>,
    ) -> Option<Port<'g>> {
        let [ident, beside] = names;
        let sizes = ty.shape.iter().map(|dim| expression(dim, value)).collect::<Option<Vec<_>>>()?;
        let count = if ty.dtype.is_packed() { ty.stored_bytes() } else { ty.elements() };
        let holds = count.as_const().map_or(Holds::Slice, Holds::Array);
        Some(Port { name, ty, has_default: false, any_rank: false, ident, beside, holds, sizes })
    }

    /// An output. It is late if the run determines its sizes, its rank, or the bytes of its texts.
    pub(super) fn output(
        name: &'g str,
        (ty, any_rank): (&'g TensorType, bool),
        names: [String; 2],
        value: &dyn Fn(Sym) -> Option<String>,
    ) -> Port<'g> {
        let known = Port::input(name, ty, names.clone(), value);
        let known = known.filter(|_| ty.dtype != DType::Str && !any_rank);
        known.unwrap_or_else(|| {
            let late = |dim| expression(dim, value).unwrap_or_else(|| "Some(0)".into());
            let ([ident, beside], sizes) = (names, ty.shape.iter().map(late).collect());
            Port { name, ty, has_default: false, any_rank, ident, beside, holds: Holds::Late, sizes }
        })
    }

    /// Rust type of an element. Those of 16 bits are their bits; packed ones are the bytes that hold them.
    pub(super) fn element(&self) -> &'static str {
        match self.ty.dtype {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 | DType::BF16 | DType::U16 => "u16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
            DType::C64 => "[f32; 2]",
            DType::C128 => "[f64; 2]",
            DType::Str if self.holds == Holds::Late => "String",
            DType::Str => "&str",
            _ => "u8",
        }
    }

    /// Bits of each element of a packed type, else 0: a count of elements that are whole.
    fn packed_bits(&self) -> u32 {
        if self.ty.dtype.is_packed() { self.ty.dtype.bits() } else { 0 }
    }

    /// The elements in memory of the caller.
    fn data(&self) -> String {
        match self.holds {
            Holds::Array(count) => format!("[{}; {count}]", self.element()),
            Holds::Slice => format!("[{}]", self.element()),
            Holds::Late => format!("Vec<{}>", self.element()),
        }
    }

    fn has_dims(&self) -> bool {
        !matches!(self.holds, Holds::Array(_))
    }

    /// The fields of `Outputs`.
    pub(super) fn fields(&self) -> String {
        let (ident, element) = (&self.ident, self.element());
        let data = match self.holds {
            Holds::Array(_) => format!("Box<{}>", self.data()),
            Holds::Slice | Holds::Late => format!("Vec<{element}>"),
        };
        let mut out = format!("        pub {ident}: {data},\n");
        if self.has_dims() {
            let _ = writeln!(out, "        pub {}: {},", self.beside, self.dims());
        }
        out
    }

    /// Rust type of the dims.
    fn dims(&self) -> String {
        match self.any_rank {
            true => "Vec<usize>".to_string(),
            false => format!("[usize; {}]", self.ty.rank()),
        }
    }

    /// Rust text of an axis' size in a function of `Outputs`.
    pub(super) fn size(&self, axis: usize) -> String {
        match self.ty.shape[axis].as_const() {
            Some(size) => size.to_string(),
            None => format!("self.{}[{axis}]", self.beside),
        }
    }

    /// Those fields before a run.
    pub(super) fn fresh_fields(&self) -> String {
        let (ident, bits) = (&self.ident, self.packed_bits());
        let data = match self.holds {
            Holds::Array(count) => format!("array::<{}, {count}>(&shapes.{ident}, {bits})?", self.element()),
            Holds::Slice => format!("elements(&shapes.{ident}, {bits})?"),
            Holds::Late => "Vec::new()".into(),
        };
        let mut out = format!("                {ident}: {data},\n");
        if self.has_dims() {
            let dims = &self.beside;
            let fresh = match self.any_rank {
                true => "Vec::new()".to_string(),
                false => format!("shapes.{ident}.map(|size| size as usize)"),
            };
            let _ = writeln!(out, "                {dims}: {fresh},");
        }
        out
    }

    /// The parameter of an input.
    pub(super) fn input_parameter(&self) -> String {
        match self.has_default {
            true => format!("{}: Option<&{}>", self.ident, self.data()),
            false => format!("{}: &{}", self.ident, self.data()),
        }
    }

    /// The parameters of an output of `run_into`.
    pub(super) fn output_parameter(&self) -> String {
        let data = format!("{}: &mut {}", self.ident, self.data());
        match self.holds {
            Holds::Late => format!("{data}, {}: &mut {}", self.beside, self.dims()),
            _ => data,
        }
    }

    /// The arguments for them, from fields of `outputs`.
    pub(super) fn output_argument(&self) -> String {
        let data = format!("&mut outputs.{}", self.ident);
        match self.holds {
            Holds::Late => format!("{data}, &mut outputs.{}", self.beside),
            _ => data,
        }
    }

    /// The length of a slice against its dims; an array's is right by its type.
    pub(super) fn check(&self) -> String {
        if self.holds != Holds::Slice {
            return String::new();
        }
        let (ident, name, bits) = (&self.ident, line(self.name), self.packed_bits());
        let call = |data: &str| format!("check({name:?}, {data}.len(), &shapes.{ident}, {bits})?");
        match self.has_default {
            true => format!("            if let Some(data) = {ident} {{ {} }}\n", call("data")),
            false => format!("            {};\n", call(ident)),
        }
    }

    /// Makes the addresses and lengths of an input's texts.
    pub(super) fn views(&self) -> String {
        match self.ty.dtype {
            DType::Str => format!(
                "            let {}: Vec<Text> = {}.iter().map(|text| Text::of(text)).collect();\n",
                self.beside, self.ident
            ),
            _ => String::new(),
        }
    }

    pub(super) fn input_tensor(&self) -> String {
        let (ident, dtype) = (&self.ident, self.ty.dtype.to_onnx());
        let data = match (self.ty.dtype, self.has_default, self.holds) {
            (DType::Str, ..) => format!("Some(&{}[..])", self.beside),
            (_, true, Holds::Array(_)) => format!("{ident}.map(|data| &data[..])"),
            (_, true, _) => ident.to_string(),
            (_, false, _) => format!("Some(&{ident}[..])"),
        };
        format!("                Tensor::input({data}, {dtype}, &mut shapes.{ident}),\n")
    }

    pub(super) fn output_tensor(&self) -> String {
        let (ident, dtype) = (&self.ident, self.ty.dtype.to_onnx());
        match self.holds {
            Holds::Late => format!("                Tensor::late({dtype}, &mut shapes.{ident}),\n"),
            _ => format!("                Tensor::output(&mut {ident}[..], {dtype}, &mut shapes.{ident}),\n"),
        }
    }

    /// Copies what a run allocated for a late output, which is in `late[at]`.
    pub(super) fn taken(&self, at: usize) -> String {
        let (ident, dims) = (&self.ident, &self.beside);
        let data = match self.ty.dtype {
            DType::Str => format!("late[{at}].texts(&shapes.{ident})?"),
            _ => format!("late[{at}].elements(&shapes.{ident}, {})?", self.packed_bits()),
        };
        let sizes = match self.any_rank {
            true => format!("shapes.{ident}[..late[{at}].rank].iter().map(|&size| size as usize).collect()"),
            false => format!("shapes.{ident}.map(|size| size as usize)"),
        };
        format!("            *{ident} = {data};\n            *{dims} = {sizes};\n")
    }
}

/// Rust text of a dim: an `Option<i64>`, `None` where it does not fit. `None` here: a symbol without value.
pub(super) fn expression(dim: &Dim, value: &dyn Fn(Sym) -> Option<String>) -> Option<String> {
    let mut sum: Option<String> = None;
    for (monomial, coefficient) in dim.terms() {
        let mut term = (coefficient != 1 || monomial.is_empty()).then(|| format!("Some({coefficient})"));
        for atom in monomial.iter() {
            let factor = match atom {
                Atom::Sym(sym) => value(*sym)?,
                Atom::FloorDiv(a, b) => call("floor_div", a, b, value)?,
                Atom::Mod(a, b) => call("modulo", a, b, value)?,
                Atom::Min(a, b) => call("min", a, b, value)?,
                Atom::Max(a, b) => call("max", a, b, value)?,
                Atom::Broadcast(a, b) => call("broadcast", a, b, value)?,
                Atom::Overgrown => return None,
            };
            term = Some(match term {
                Some(term) => format!("mul({term}, {factor})"),
                None => factor,
            });
        }
        let term = term?;
        sum = Some(match sum {
            Some(sum) => format!("add({sum}, {term})"),
            None => term,
        });
    }
    Some(sum.unwrap_or_else(|| "Some(0)".to_string()))
}

fn call(function: &str, a: &Dim, b: &Dim, value: &dyn Fn(Sym) -> Option<String>) -> Option<String> {
    Some(format!("{function}({}, {})", expression(a, value)?, expression(b, value)?))
}
