//! Declared types: to tensor types with symbolic dims, pinned where the user says so.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;

use onnxc_proto::tensor_shape_proto::Dimension;
use onnxc_proto::tensor_shape_proto::dimension::Value as DimProto;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{GraphProto, TypeProto, ValueInfoProto, type_proto};

use super::ImportOptions;
use super::shapes::InputShape;
use super::tensor::dtype;
use crate::usage;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Graph, Sym, Symbol, TensorType};
use onnxc_ir::rules::Rule;
use onnxc_ir::words::{did_you_mean, nearest};

/// A size that the user gives to an input's dim: `SYMBOL=N`, or `INPUT:AXIS=N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimPin {
    /// Name of a symbol of the inputs, or of an input, a colon and an axis.
    pub target: String,
    pub size: i64,
}

impl DimPin {
    /// The input and the axis that the target names, if it is not a symbol.
    pub fn input_axis(&self) -> Option<(&str, usize)> {
        let (input, axis) = self.target.rsplit_once(':')?;
        Some((input, axis.parse().ok()?))
    }
}

impl FromStr for DimPin {
    type Err = Error;

    fn from_str(text: &str) -> Result<DimPin> {
        let parsed = text.rsplit_once('=').and_then(|(target, size)| {
            let size = size.trim().parse::<i64>().ok().filter(|&size| size >= 0)?;
            Some(DimPin { target: target.trim().to_string(), size })
        });
        parsed.filter(|pin| !pin.target.is_empty()).ok_or_else(|| {
            usage(format!("`{text}` must be SYMBOL=N or INPUT:AXIS=N, with a size N of zero or more"))
        })
    }
}

/// A dim as the model writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Declared<'p> {
    Size(i64),
    Symbol(&'p str),
    /// No name and no size. Exporters also write negative sizes and question marks for it.
    Unknown,
}

/// A size that is below zero.
pub(crate) fn negative_size(dim: &Dimension) -> Option<i64> {
    match dim.value {
        Some(DimProto::DimValue(size)) if size < 0 => Some(size),
        _ => None,
    }
}

pub(crate) fn declared_dim(dim: &Dimension) -> Declared<'_> {
    match &dim.value {
        Some(DimProto::DimValue(size)) if *size >= 0 => Declared::Size(*size),
        Some(DimProto::DimParam(name)) if !matches!(name.as_str(), "" | "?" | "-1" | "None") => {
            Declared::Symbol(name)
        }
        _ => Declared::Unknown,
    }
}

/// Symbols and pins of a model: one name is one symbol in all its graphs.
#[derive(Default)]
pub(crate) struct Types {
    /// Shapes that the user gives to inputs, by name.
    shapes: HashMap<String, Vec<Dimension>>,
    symbols: HashMap<String, Dim>,
    symbol_pins: HashMap<String, i64>,
    axis_pins: HashMap<(String, usize), i64>,
    /// Symbols that only graph outputs name: unnamed until inference has not found what they are.
    output_symbols: HashMap<String, Sym>,
}

impl Types {
    /// Takes the shapes and the sizes that the user gives to the inputs of `graph`.
    pub(crate) fn take(&mut self, graph: &GraphProto, options: &ImportOptions) -> Vec<Error> {
        let mut errors: Vec<Error> =
            options.input_shapes.iter().filter_map(|shape| self.take_shape(graph, shape).err()).collect();
        let mut symbols = BTreeSet::new();
        for info in &graph.input {
            for dim in self.dims(info).unwrap_or_default() {
                if let Declared::Symbol(name) = declared_dim(dim) {
                    symbols.insert(name.to_string());
                }
            }
        }
        errors.extend(options.input_dims.iter().filter_map(|pin| self.pin(graph, &symbols, pin).err()));
        errors
    }

    fn take_shape(&mut self, graph: &GraphProto, shape: &InputShape) -> Result<()> {
        let name = &shape.input;
        if !graph.input.iter().any(|info| info.name() == name) {
            let inputs: Vec<&str> = graph.input.iter().map(|info| info.name()).collect();
            let hint = did_you_mean(name, inputs.iter().copied());
            let inputs = inputs.join(", ");
            return Err(usage(format!(
                "--input-shape {shape}: no input is `{name}`{hint}; there are {inputs}"
            )));
        }
        let dims = shape.to_proto();
        match self.shapes.insert(name.clone(), dims.clone()) {
            Some(other) if other != dims => {
                Err(usage(format!("--input-shape gives input `{name}` two shapes; the last one is {shape}")))
            }
            _ => Ok(()),
        }
    }

    /// The shape that the user gives to an input.
    pub(crate) fn given_shape(&self, info: &ValueInfoProto) -> Option<&[Dimension]> {
        self.shapes.get(info.name()).map(Vec::as_slice)
    }

    /// Dims of an input: those that the user gives, else those that a dense tensor is declared with.
    fn dims<'p>(&'p self, info: &'p ValueInfoProto) -> Option<&'p [Dimension]> {
        self.given_shape(info).or_else(|| tensor_dims(info))
    }

    /// How the shape that the user gives to an input contradicts the one that the model declares.
    pub(crate) fn overridden(&self, info: &ValueInfoProto) -> Option<String> {
        let (given, declared) = (self.given_shape(info)?, tensor_dims(info)?);
        let differs = |(a, b): (&Dimension, &Dimension)| match (declared_dim(a), declared_dim(b)) {
            (Declared::Size(a), Declared::Size(b)) => a != b,
            _ => false,
        };
        let contradicts = given.len() != declared.len() || given.iter().zip(declared).any(differs);
        let declared = info.r#type.as_ref().map(describe).unwrap_or_default();
        let name = info.name();
        contradicts.then(|| {
            format!("`{name}` is declared as {declared}; --input-shape gives it {}", describe_dims(given))
        })
    }

    fn pin(&mut self, graph: &GraphProto, symbols: &BTreeSet<String>, pin: &DimPin) -> Result<()> {
        if symbols.contains(&pin.target) {
            return unlike(pin, self.symbol_pins.insert(pin.target.clone(), pin.size));
        }
        let axis = pin
            .input_axis()
            .and_then(|(name, axis)| Some((graph.input.iter().find(|info| info.name() == name)?, axis)));
        let Some((info, axis)) = axis else {
            let inputs: Vec<&str> = graph.input.iter().map(|info| info.name()).collect();
            let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
            let hint = match pin.input_axis() {
                Some((name, axis)) => {
                    nearest(name, inputs.iter().copied()).map(|name| format!("{name}:{axis}"))
                }
                None => nearest(&pin.target, symbols.iter().copied()).map(String::from),
            };
            return Err(usage(format!(
                "`{}` is neither a symbol ({}) nor INPUT:AXIS of an input ({}){}",
                pin.target,
                symbols.join(", "),
                inputs.join(", "),
                hint.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
            )));
        };
        let name = info.name();
        let Some(dims) = self.dims(info) else {
            let message = match tensor_type(info) {
                Ok(_) => format!("--input-dim {}={}: {}", pin.target, pin.size, unknown_rank(name)),
                Err(_) => format!("input `{name}` is not a tensor, and has no axes"),
            };
            return Err(usage(message));
        };
        let rank = dims.len();
        let Some(dim) = dims.get(axis) else {
            return Err(usage(format!("input `{name}` has no axis {axis}: its rank is {rank}")));
        };
        match declared_dim(dim) {
            Declared::Size(size) if size == pin.size => Ok(()),
            Declared::Size(size) => Err(usage(format!(
                "`{}` is {size}, not {}; --input-shape gives an input another shape than the declared one",
                pin.target, pin.size
            ))),
            Declared::Symbol(symbol) => {
                let symbol = symbol.to_string();
                unlike(pin, self.symbol_pins.insert(symbol, pin.size))
            }
            Declared::Unknown => unlike(pin, self.axis_pins.insert((name.to_string(), axis), pin.size)),
        }
    }

    /// The type of a graph input. `default` is the shape of its initializer, which serves where the model
    /// declares none.
    pub(crate) fn input(
        &mut self,
        graph: &mut Graph,
        info: &ValueInfoProto,
        default: Option<&[usize]>,
    ) -> Result<TensorType> {
        let (dtype, _) = tensor_type(info).map_err(|error| of_value("input", info, error))?;
        let shape = match (self.dims(info).map(<[Dimension]>::to_vec), default) {
            (Some(dims), _) => {
                dims.iter().enumerate().map(|(axis, dim)| self.input_dim(graph, info, axis, dim)).collect()
            }
            (None, Some(shape)) => shape.iter().map(|&size| Dim::from(size)).collect(),
            (None, None) => {
                let error = Error::unsupported(Stage::Import, unknown_rank(info.name()));
                return Err(of_value("input", info, error));
            }
        };
        let ty = TensorType::new(dtype, shape);
        ty.check_size(Stage::Import).map_err(|error| of_value("input", info, error))?;
        Ok(ty)
    }

    /// The last axis of an input, if neither the model nor the user gives its size.
    pub(crate) fn open_last_axis(&self, info: &ValueInfoProto) -> Option<usize> {
        let (dim, before) = self.dims(info)?.split_last()?;
        self.pinned_dim(info, before.len(), dim).is_none().then_some(before.len())
    }

    /// The size that the model or the user gives a dim of an input.
    pub(crate) fn pinned_dim(&self, info: &ValueInfoProto, axis: usize, dim: &Dimension) -> Option<i64> {
        match declared_dim(dim) {
            Declared::Size(size) => Some(size),
            Declared::Symbol(name) => self.symbol_pins.get(name).copied(),
            Declared::Unknown => self.axis_pins.get(&(info.name().to_string(), axis)).copied(),
        }
    }

    fn input_dim(&mut self, graph: &mut Graph, info: &ValueInfoProto, axis: usize, dim: &Dimension) -> Dim {
        match declared_dim(dim) {
            Declared::Size(size) => Dim::from(size),
            Declared::Symbol(name) => self.symbol(graph, name),
            Declared::Unknown => match self.axis_pins.get(&(info.name().to_string(), axis)) {
                Some(&size) => Dim::from(size),
                None => Dim::sym(unnamed_symbol(graph)),
            },
        }
    }

    fn symbol(&mut self, graph: &mut Graph, name: &str) -> Dim {
        if let Some(dim) = self.symbols.get(name) {
            return dim.clone();
        }
        let dim = match self.symbol_pins.get(name) {
            Some(&size) => Dim::from(size),
            None => Dim::sym(graph.symbols.push(Symbol { name: name.to_string() })),
        };
        self.symbols.insert(name.to_string(), dim.clone());
        dim
    }

    /// The declared type of an intermediate value, where the model's inputs give meaning to all its dims.
    pub(crate) fn declared(&self, info: &ValueInfoProto) -> Option<TensorType> {
        let (dtype, dims) = self.declared_dims(info)?;
        Some(TensorType::new(dtype, dims.into_iter().collect::<Option<_>>()?))
    }

    /// The declared element type of a value, and those of its dims that the model's inputs give meaning to.
    pub(crate) fn declared_dims(&self, info: &ValueInfoProto) -> Option<(DType, Vec<Option<Dim>>)> {
        let (dtype, dims) = tensor_type(info).ok()?;
        let dim = |dim| match declared_dim(dim) {
            Declared::Size(size) => Some(Dim::from(size)),
            Declared::Symbol(name) => self.symbols.get(name).cloned(),
            Declared::Unknown => None,
        };
        Some((dtype, dims?.iter().map(dim).collect()))
    }

    /// The declared type of an output of the model; dims of its own become symbols.
    pub(crate) fn declared_output(&mut self, graph: &mut Graph, info: &ValueInfoProto) -> Option<TensorType> {
        let (dtype, dims) = tensor_type(info).ok()?;
        let dim = |dim| match declared_dim(dim) {
            Declared::Size(size) => Dim::from(size),
            Declared::Unknown => Dim::sym(unnamed_symbol(graph)),
            Declared::Symbol(name) => match self.symbols.get(name) {
                Some(dim) => dim.clone(),
                None => Dim::sym(
                    *self.output_symbols.entry(name.to_string()).or_insert_with(|| unnamed_symbol(graph)),
                ),
            },
        };
        Some(TensorType::new(dtype, dims?.iter().map(dim).collect()))
    }

    /// Gives symbols without a name those that a graph output declares. Where the declared type contradicts the one that
    /// inference found, the latter holds; see [`deviation`].
    pub(crate) fn name_symbols(&mut self, graph: &mut Graph, info: &ValueInfoProto, found: &TensorType) {
        let Some(dims) = tensor_dims(info).filter(|dims| dims.len() == found.rank()) else { return };
        for (dim, found) in dims.iter().zip(&found.shape) {
            if let (Declared::Symbol(name), Some(sym)) = (declared_dim(dim), found.as_sym())
                && graph.symbols[sym].name.starts_with('?')
                && !self.symbols.contains_key(name)
            {
                graph.symbols.rename(sym, name.to_string());
                self.symbols.insert(name.to_string(), Dim::sym(sym));
            }
        }
    }
}

/// Fails where a target has been pinned to another size.
fn unlike(pin: &DimPin, earlier: Option<i64>) -> Result<()> {
    match earlier {
        Some(size) if size != pin.size => {
            Err(usage(format!("`{}` is pinned to both {size} and {}", pin.target, pin.size)))
        }
        _ => Ok(()),
    }
}

fn unnamed_symbol(graph: &mut Graph) -> Sym {
    let name = format!("?{}", graph.symbols.len());
    graph.symbols.push(Symbol { name })
}

/// Whether declared dims contradict what was found.
fn differ(dims: &[Dimension], found: &TensorType) -> bool {
    let differ = |(dim, found): (&Dimension, &Dim)| match (declared_dim(dim), found.as_const()) {
        (Declared::Size(size), Some(found)) => size != found,
        _ => false,
    };
    dims.len() != found.rank() || dims.iter().zip(&found.shape).any(differ)
}

/// How a declared type contradicts the one that inference found, which holds: tools that edit models leave such
/// declarations behind.
pub(crate) fn deviation(info: &ValueInfoProto, found: &TensorType) -> Option<(Rule, String)> {
    let rule = match tensor_type(info) {
        Ok((dtype, _)) if dtype != found.dtype => Rule::DeclaredType,
        Ok((_, Some(dims))) if differ(dims, found) => Rule::DeclaredShape,
        Err(_) if !is_untyped(info) => Rule::DeclaredType,
        _ => return None,
    };
    let declared = info.r#type.as_ref().map(describe).unwrap_or_default();
    let message =
        format!("`{}` is declared as {declared}, and its type is {found}, which holds", info.name());
    Some((rule, message))
}

/// Whether a value says nothing about its type. Tools that cut models apart leave outputs so.
pub(crate) fn is_untyped(info: &ValueInfoProto) -> bool {
    match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        None => true,
        Some(TypeValue::TensorType(tensor)) => tensor.elem_type() == 0,
        Some(_) => false,
    }
}

pub(crate) fn of_value(what: &str, info: &ValueInfoProto, error: Error) -> Error {
    let ty = info.r#type.as_ref().map(describe).unwrap_or_default();
    error.reworded(|message| format!("{what} `{}` of type {ty}: {message}", info.name()))
}

/// The rank that a value is declared to have.
pub(crate) fn rank(info: &ValueInfoProto) -> Option<usize> {
    tensor_dims(info).map(<[Dimension]>::len)
}

fn tensor_dims(info: &ValueInfoProto) -> Option<&[Dimension]> {
    tensor_type(info).ok()?.1
}

/// Element type and dims (`None`: unknown rank) of a value that must be a dense tensor.
pub(crate) fn tensor_type(info: &ValueInfoProto) -> Result<(DType, Option<&[Dimension]>)> {
    let value = info.r#type.as_ref().and_then(|ty| ty.value.as_ref());
    let tensor = match value {
        Some(TypeValue::TensorType(tensor)) => tensor,
        Some(_) => return Err(Error::unsupported(Stage::Import, "it is not a tensor")),
        None => return Err(Error::malformed(Stage::Import, "the type is missing")),
    };
    let dtype = dtype(tensor.elem_type())?;
    Ok((dtype, tensor.shape.as_ref().map(|shape| shape.dim.as_slice())))
}

/// A type for messages: `seq(f32[N, 3])`.
pub(crate) fn describe(ty: &TypeProto) -> String {
    // Types nest as unary wrappers, so the text is a list of openings and the same number of closings.
    let (mut text, mut closings, mut ty) = (String::new(), 0, Some(ty));
    while let Some(value) = ty.and_then(|ty| ty.value.as_ref()) {
        ty = match value {
            TypeValue::TensorType(type_proto::Tensor { elem_type, shape }) => {
                text += &describe_tensor(elem_type.unwrap_or(0), shape.as_ref());
                break;
            }
            TypeValue::SparseTensorType(type_proto::SparseTensor { elem_type, shape }) => {
                text += "sparse(";
                closings += 1;
                text += &describe_tensor(elem_type.unwrap_or(0), shape.as_ref());
                break;
            }
            TypeValue::OpaqueType(opaque) => {
                text += &format!("opaque({}.{})", opaque.domain(), opaque.name());
                break;
            }
            TypeValue::SequenceType(sequence) => {
                text += "seq(";
                sequence.elem_type.as_deref()
            }
            TypeValue::OptionalType(optional) => {
                text += "optional(";
                optional.elem_type.as_deref()
            }
            TypeValue::MapType(map) => {
                text += &format!("map({}, ", describe_tensor(map.key_type(), None));
                map.value_type.as_deref()
            }
        };
        closings += 1;
    }
    if text.is_empty() {
        text.push_str("unknown");
    }
    text + &")".repeat(closings)
}

fn describe_tensor(elem_type: i32, shape: Option<&onnxc_proto::TensorShapeProto>) -> String {
    let mut text = DType::from_onnx(elem_type)
        .map_or_else(|| format!("type{elem_type}"), |dtype| dtype.name().to_string());
    if let Some(shape) = shape {
        text += &describe_dims(&shape.dim);
    }
    text
}

fn describe_dims(dims: &[Dimension]) -> String {
    let text = |dim| match declared_dim(dim) {
        Declared::Size(size) => size.to_string(),
        Declared::Symbol(name) => name.to_string(),
        Declared::Unknown => "?".to_string(),
    };
    format!("[{}]", dims.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// What is wrong with an input without a shape, and what to do.
pub(crate) fn unknown_rank(name: &str) -> String {
    format!("its rank is unknown: give its shape, --input-shape {name}=DIM,...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_dims_are_zero_or_more() {
        let pin = |text: &str| text.parse::<DimPin>().ok().map(|pin| (pin.target, pin.size));
        assert_eq!(pin("batch=0"), Some(("batch".to_string(), 0)));
        assert_eq!(pin(" x:1 = 8 "), Some(("x:1".to_string(), 8)));
        for text in ["batch", "batch=-1", "=4", "batch=", "batch=four"] {
            assert_eq!(pin(text), None, "{text}");
        }
    }
}
