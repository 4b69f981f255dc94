//! Operators that functions of the user's compute: those that no row knows, and nodes that he computes himself.
//!
//! The attributes of such a node become two constants, words and texts, which `onnxc_op_int` and its kin of `onnxc.h` read. The words:
//! how many attributes there are; for each of them where its name begins in the texts, its `AttributeProto.AttributeType`, how
//! many values or bytes it has, and its value: an integer, the bits of a float as f64, where a text begins in the texts, the number of
//! a tensor, or, of a list, at which word its values begin. An element of a list of texts is two words, where it begins and how long
//! it is. Every text ends with a zero byte, which does not count.

use std::str::FromStr;

use onnxc_proto::NodeProto;

use super::names::named;
use super::names::own_name;
use super::scope::{Binding, Scope};
use super::types::tensor_type;
use super::{Importer, domain_name, normal_domain};
use onnxc_ir::borders;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::data::Says;
use onnxc_ir::graph::external::{Address, Role};
use onnxc_ir::graph::{DType, Dim, External, Op, Tensor, TensorType, ValueId, call};
use onnxc_ops::item::Item;
use onnxc_ops::{Attr, AttrKind};

/// An operator that a C function computes: `DOMAIN.NAME[@NODE]=FUNCTION[,shapes=FUNCTION][,scratch=BYTES][,like=INPUT][,late]`. `::`
/// may stand for the dot before the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CustomOp {
    pub domain: String,
    pub name: String,
    /// The one node that is meant; all of the operator without it.
    pub node: Option<String>,
    /// `int32_t function(const onnxc_op *)`.
    pub function: String,
    /// The function that determines sizes that the model does not declare.
    pub shapes: Option<String>,
    /// Bytes of scratch.
    pub scratch: u64,
    /// Results without a declared type have the type of this input.
    pub like: Option<usize>,
    /// Whether the options of runs compute the function, not one that the linker finds. Without `shapes` they are asked for
    /// `FUNCTION_shapes` where a size is open.
    pub late: bool,
    /// Whether it stands in for an operator that is known.
    pub overrides: bool,
    /// Where functions lie in this process, for evaluation here.
    pub addresses: Vec<(String, Address)>,
}

fn usage<T>(message: String) -> Result<T> {
    Err(crate::usage(message))
}

/// Whether C has such names.
fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| !c.is_ascii_digit())
}

impl FromStr for CustomOp {
    type Err = Error;

    fn from_str(text: &str) -> Result<CustomOp> {
        const FORM: &str =
            "DOMAIN.NAME[@NODE]=FUNCTION[,shapes=FUNCTION][,scratch=BYTES][,like=INPUT][,late]";
        let form = || format!("`{text}` must be {FORM}");
        // A node may have an equals sign in its name, the rest has no name.
        let (rest, options) = match text.split_once(',') {
            Some((rest, options)) => (rest, options.split(',').collect()),
            None => (text, vec![]),
        };
        let Some((target, function)) = rest.rsplit_once('=') else { return usage(form()) };
        let (operator, node) = match target.split_once('@') {
            Some((operator, node)) => (operator, Some(node.to_string())),
            None => (target, None),
        };
        let split = operator.rsplit_once("::").or_else(|| operator.rsplit_once('.'));
        let Some((domain, name)) = split.filter(|(_, name)| !name.is_empty()) else { return usage(form()) };
        let symbol = |what: &str, name: &str| match is_identifier(name) {
            true => Ok(name.to_string()),
            false => usage(format!("`{text}`: the {what} `{name}` is not a valid name of a C function")),
        };
        let mut custom = CustomOp {
            domain: normal_domain(domain).to_string(),
            name: name.to_string(),
            node,
            function: symbol("function", function)?,
            shapes: None,
            scratch: 0,
            like: None,
            late: false,
            overrides: false,
            addresses: vec![],
        };
        for option in options {
            let number = |value: &str| match value.parse::<u64>() {
                Ok(number) if number < 1 << 40 => Ok(number),
                _ => usage(format!("`{text}`: `{value}` must be a number below 2^40")),
            };
            match option.split_once('=') {
                Some(("shapes", value)) => custom.shapes = Some(symbol("function for shapes", value)?),
                Some(("scratch", value)) => custom.scratch = number(value)?,
                Some(("like", value)) => custom.like = Some(number(value)? as usize),
                None if option == "late" => custom.late = true,
                _ => {
                    return usage(format!(
                        "`{text}`: `{option}` must be shapes=FUNCTION, scratch=BYTES, like=INPUT or late"
                    ));
                }
            }
        }
        Ok(custom)
    }
}

impl CustomOp {
    /// The function for shapes of one that is late, unless another one is declared.
    pub fn late_shapes(&self) -> String {
        format!("{}_shapes", self.function)
    }

    fn address(&self, symbol: &str) -> Option<Address> {
        self.addresses.iter().find(|(name, _)| name == symbol).map(|(_, address)| *address)
    }

    fn is_for(&self, node: &NodeProto, index: usize) -> bool {
        (self.domain.as_str(), self.name.as_str()) == (normal_domain(node.domain()), node.op_type())
            && self.node.as_ref().is_none_or(|name| *name == own_name(node, index))
    }

    /// The operator as options write it.
    fn operator(&self) -> String {
        format!("{}.{}", domain_name(&self.domain), self.name)
    }
}

/// The words and texts of attributes, and the tensors among them.
#[derive(Default)]
struct Attributes {
    words: Vec<i64>,
    texts: Vec<u8>,
    tensors: Vec<Tensor>,
}

impl Attributes {
    fn text(&mut self, text: &str) -> i64 {
        let at = self.texts.len() as i64;
        self.texts.extend(text.as_bytes());
        self.texts.push(0);
        at
    }

    /// Words at the end; where they begin.
    fn list(&mut self, words: impl IntoIterator<Item = i64>) -> i64 {
        let at = self.words.len() as i64;
        self.words.extend(words);
        at
    }

    /// How many values an attribute has, and its value.
    fn value(&mut self, name: &str, attr: &Attr<'_>) -> Result<(i64, i64)> {
        let bits = |value: f32| f64::from(value).to_bits() as i64;
        Ok(match attr {
            Attr::Int(value) => (1, *value),
            Attr::Float(value) => (1, bits(*value)),
            Attr::Str(text) => (text.len() as i64, self.text(text)),
            Attr::Bytes(_) => {
                return Err(Error::malformed(Stage::Import, format!("attribute {name} is not UTF-8")));
            }
            Attr::Ints(values) => (values.len() as i64, self.list(values.iter().copied())),
            Attr::Floats(values) => (values.len() as i64, self.list(values.iter().map(|&value| bits(value)))),
            Attr::Strs(texts) => {
                let places: Vec<[i64; 2]> =
                    texts.iter().map(|text| [self.text(text), text.len() as i64]).collect();
                (texts.len() as i64, self.list(places.into_iter().flatten()))
            }
            Attr::Tensor(tensor) => {
                if tensor.dtype.is_packed() || tensor.dtype == DType::Str {
                    let message = format!(
                        "attribute {name} is a tensor of {}, which functions do not take",
                        tensor.dtype
                    );
                    return Err(Error::unsupported(Stage::Import, message));
                }
                self.tensors.push(tensor.clone());
                (1, self.tensors.len() as i64 - 1)
            }
            Attr::Graph(_) | Attr::Type(_) | Attr::Other(_) => {
                let message =
                    format!("attribute {name} is a {}, which functions do not take", attr.kind().name());
                return Err(Error::unsupported(Stage::Import, message));
            }
        })
    }

    fn of(mut attributes: Vec<(String, Attr<'_>)>) -> Result<Attributes> {
        attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut all = Attributes { words: vec![0; 1 + 4 * attributes.len()], ..Attributes::default() };
        all.words[0] = attributes.len() as i64;
        for (at, (name, attr)) in attributes.iter().enumerate() {
            let (count, value) = all.value(name, attr)?;
            let entry = [all.text(name), number(attr.kind()), count, value];
            all.words[1 + 4 * at..][..4].copy_from_slice(&entry);
        }
        Ok(all)
    }
}

/// `AttributeProto.AttributeType`.
fn number(kind: AttrKind) -> i64 {
    match kind {
        AttrKind::Float => 1,
        AttrKind::Int => 2,
        AttrKind::Str => 3,
        AttrKind::Tensor => 4,
        AttrKind::Floats => 6,
        AttrKind::Ints => 7,
        AttrKind::Strs => 8,
        AttrKind::Graph | AttrKind::Graphs | AttrKind::Tensors | AttrKind::SparseTensor | AttrKind::Type => 0,
    }
}

/// A result: its name, and its type as far as it is known.
struct ResultType {
    name: String,
    dtype: DType,
    dims: Vec<Option<Dim>>,
}

impl ResultType {
    fn ty(&self) -> TensorType {
        let dims = self.dims.iter().map(|dim| dim.clone().unwrap_or(Dim::from(-1i64)));
        TensorType::new(self.dtype, dims.collect())
    }
}

impl<'m> Importer<'m> {
    /// The function of the user's that computes a node.
    pub(super) fn custom(&mut self, node: &NodeProto, index: usize) -> Option<&'m CustomOp> {
        let options = self.given.options;
        let at = options.custom_ops.iter().position(|custom| custom.is_for(node, index))?;
        self.used_custom_ops.insert(at);
        Some(&options.custom_ops[at])
    }

    /// Functions for nodes that the model does not have.
    pub(super) fn unused_custom_ops(&self) -> Vec<Error> {
        let unused = self
            .given
            .options
            .custom_ops
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.used_custom_ops.contains(at));
        let message = |custom: &CustomOp| match &custom.node {
            Some(node) => format!("no node `{node}` of operator {} is in the model", custom.operator()),
            None => format!("no node of operator {} is in the model", custom.operator()),
        };
        unused.map(|(_, custom)| Error::new(Stage::Import, Kind::Usage, message(custom))).collect()
    }

    /// Emits the call of a function for a node. `standard` has what the row gives whose place the function takes.
    pub(super) fn external(
        &mut self,
        b: &mut Builder<'_>,
        custom: &CustomOp,
        node: &NodeProto,
        inputs: &[Binding],
        standard: &[Binding],
        scope: &Scope<'_>,
    ) -> Result<Vec<Binding>> {
        let mut attributes: Vec<(String, Attr<'_>)> =
            self.attributes(node.attribute.iter(), scope)?.into_iter().collect();
        let attributes = Attributes::of(std::mem::take(&mut attributes))?;
        if inputs.contains(&Binding::Poisoned) {
            return Ok(vec![]);
        }
        let (mut operands, mut values) = (vec![], vec![]);
        for (at, input) in inputs.iter().enumerate() {
            let Binding::Value(item) = input else {
                operands.push(None);
                continue;
            };
            let (operand, value) = operand(b, at, item)?;
            operands.push(Some(operand));
            values.push(value);
        }
        let results = self.result_types(b, custom, node, (inputs, standard), scope)?;
        let (words, texts) = (attributes.words, attributes.texts);
        values.push(b.constant(Tensor::from_slice(&[words.len()], &words)));
        values.push(b.constant(Tensor::from_slice(&[texts.len()], &texts)));
        values.extend(attributes.tensors.into_iter().map(|tensor| b.constant(tensor)));
        let call = External {
            symbol: custom.function.as_str().into(),
            late: custom.late,
            role: Role::Compute,
            operands,
            results: results.iter().map(ResultType::ty).collect(),
            scratch: Dim::from(custom.scratch as i64),
            address: custom.address(&custom.function),
        };
        let is_open = || results.iter().any(|result| result.dims.contains(&None));
        let shapes = match &custom.shapes {
            None if custom.late && is_open() => Some(custom.late_shapes()),
            shapes => shapes.clone(),
        };
        let call = match &shapes {
            Some(shapes) => with_shapes(b, call, (shapes, custom.address(shapes)), &results, &values)?,
            None => closed(call, &results)?,
        };
        let made = b.emit(Op::External(Box::new(call.clone())), &values)?;
        let scratch = made[call.results.len()];
        // Texts may lie in scratch, and be those of inputs.
        let is_text = |operand: &TensorType| operand.dtype == DType::Str;
        let of_texts: Vec<ValueId> = call
            .operands
            .iter()
            .flatten()
            .zip(&values)
            .filter(|(operand, _)| is_text(operand))
            .map(|(_, &value)| value)
            .collect();
        let mut given = vec![];
        for (&value, ty) in made.iter().zip(&call.results) {
            let mut value = value;
            if is_text(ty) {
                value = b.call(&call::INTERN_COPY, &[value, scratch], vec![ty.elements()], ty.clone())?;
                for &texts in &of_texts {
                    value = b.call(&call::KEEP, &[value, texts], vec![ty.elements()], ty.clone())?;
                }
            }
            given.push(Binding::Value(Item::Tensor(value)));
        }
        Ok(given)
    }

    /// The types of a node's results: as the row gives them if the operator is known, as the model declares them, or as an input has them.
    fn result_types(
        &mut self,
        b: &Builder<'_>,
        custom: &CustomOp,
        node: &NodeProto,
        (inputs, standard): (&[Binding], &[Binding]),
        scope: &Scope<'_>,
    ) -> Result<Vec<ResultType>> {
        let mut results = vec![];
        for (at, name) in node.output[..named(&node.output)].iter().enumerate() {
            let known = |ty: &TensorType| (ty.dtype, ty.shape.iter().cloned().map(Some).collect::<Vec<_>>());
            let of_row = standard.get(at).and_then(Binding::tensor).map(|value| known(b.ty(value)));
            let declared = || {
                let info = scope.declared.get(name.as_str())?;
                self.types.declared_dims(info).filter(|_| tensor_type(info).is_ok())
            };
            let like = || {
                let input = inputs.get(custom.like?)?.tensor()?;
                Some(known(b.ty(input)))
            };
            if name.is_empty() && of_row.is_none() {
                let message = format!(
                    "output {at} has no name, and another one behind it has: a function gives all or none"
                );
                return Err(Error::unsupported(Stage::Import, message));
            }
            let Some((dtype, dims)) = of_row.or_else(declared).or_else(like) else {
                let message = format!(
                    "value_info declares no element type and rank of output `{name}`, which the function {} computes; like=INPUT gives it those of an input",
                    custom.function
                );
                return Err(Error::unsupported(Stage::Import, message));
            };
            if dtype.is_packed() {
                let message = format!("output `{name}` is of type {dtype}, which functions do not give");
                return Err(Error::unsupported(Stage::Import, message));
            }
            results.push(ResultType { name: name.clone(), dtype, dims });
        }
        Ok(results)
    }
}

/// An operand as a function has it: its type, and the value for the primitive.
fn operand(b: &mut Builder<'_>, at: usize, item: &Item) -> Result<(TensorType, ValueId)> {
    let unsupported = |what: String| {
        Err(Error::unsupported(Stage::Import, format!("input {at} is {what}, which functions do not take")))
    };
    let Some(value) = item.tensor() else { return unsupported(item.text(b)) };
    let ty = b.ty(value).clone();
    if ty.dtype.is_packed() {
        return unsupported(format!("of type {}", ty.dtype));
    }
    let given = if ty.dtype == DType::Str { borders::spell(b, value, &ty)? } else { value };
    Ok((ty, given))
}

/// A call whose sizes are all known.
fn closed(call: External, results: &[ResultType]) -> Result<External> {
    for result in results {
        if let Some(axis) = result.dims.iter().position(Option::is_none) {
            let message = format!(
                "size {axis} of output `{}` follows from no input: a function for shapes (shapes=FUNCTION) determines it",
                result.name
            );
            return Err(Error::unsupported(Stage::Import, message));
        }
    }
    Ok(call)
}

/// A call with the sizes that a function for shapes gives when the model runs.
fn with_shapes(
    b: &mut Builder<'_>,
    call: External,
    (symbol, address): (&str, Option<Address>),
    results: &[ResultType],
    values: &[ValueId],
) -> Result<External> {
    let asked = External { symbol: symbol.into(), role: Role::Shapes, address, ..call.clone() };
    let sizes = b.emit(Op::External(Box::new(asked)), values)?[0];
    let size = |b: &mut Builder<'_>, at: usize, name: String| -> Result<Dim> {
        let element = b.slice_axis(sizes, 0, Dim::from(at), Dim::ONE)?;
        Ok(b.saying(Says::Name(name.into()), |b| b.sizes(element, &|_| None))?.remove(0))
    };
    let (mut types, mut next) = (vec![], 0..);
    for result in results {
        let mut shape = vec![];
        for ((axis, dim), at) in result.dims.iter().enumerate().zip(&mut next) {
            shape.push(match dim {
                Some(dim) => dim.clone(),
                None => size(b, at, format!("size {axis} of `{}` as {symbol} gives it", result.name))?,
            });
        }
        types.push(TensorType::new(result.dtype, shape));
    }
    let scratch = size(b, call.sizes(), format!("the bytes of scratch as {symbol} gives them"))?;
    Ok(External { results: types, scratch, ..call })
}
