//! ONNX values of every kind outside of a model: read from files, taken apart into the model's inputs, put together from its
//! outputs, compared.

use std::collections::BTreeMap;
use std::path::Path;

use onnxc_proto::{Budget, MapProto, OptionalProto, SequenceProto};
use onnxc_runtime_support::abi::ValueInfo;

use crate::cli::files;
use onnxc_import as import;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Graph, Part, Tensor, TensorType};
use onnxc_ir::interp;

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Tensor(Tensor),
    Sequence(Vec<Tensor>),
    Optional(Option<Box<Value>>),
    Map(Map),
    Records(Vec<Map>),
    /// Elements `[n]` and their indices `[n, rank]`.
    Sparse(Tensor, Tensor),
}

/// Keys and values, of equal numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Map {
    pub keys: Tensor,
    pub values: Tensor,
}

/// An input or output of a model: a part of a value.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the value.
    pub value: String,
    pub part: Part,
    dtype: DType,
    /// Sizes; `None` where they are not known.
    dims: Vec<Option<usize>>,
    pub has_default: bool,
}

impl From<&ValueInfo> for Port {
    fn from(info: &ValueInfo) -> Port {
        let part = usize::try_from(info.part).ok().and_then(|part| Part::ALL.get(part).copied());
        Port {
            value: info.value.clone(),
            part: part.unwrap_or(Part::Whole),
            dtype: DType::from_onnx(info.dtype).unwrap_or(DType::U8),
            dims: info.dims.iter().map(|dim| dim.and_then(|dim| usize::try_from(dim).ok())).collect(),
            has_default: info.has_default,
        }
    }
}

impl Port {
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

fn port(name: &str, part: Option<&(String, Part)>, ty: &TensorType, has_default: bool) -> Port {
    let (value, part) = part.cloned().unwrap_or((name.to_string(), Part::Whole));
    let size = |dim: &onnxc_ir::graph::Dim| dim.as_const().and_then(|size| usize::try_from(size).ok());
    Port { value, part, dtype: ty.dtype, dims: ty.shape.iter().map(size).collect(), has_default }
}

/// The inputs of a graph.
pub fn inputs(graph: &Graph) -> Vec<Port> {
    let of = |(at, input): (usize, &onnxc_ir::graph::Input)| {
        port(&input.name, graph.input_parts.get(&at), graph.input_ty(at), input.default.is_some())
    };
    graph.inputs.iter().enumerate().map(of).collect()
}

/// The outputs of a graph.
pub fn outputs(graph: &Graph) -> Vec<Port> {
    let of = |(at, (name, _)): (usize, &(String, _))| {
        port(name, graph.output_parts.get(&at), graph.output_ty(at), false)
    };
    graph.outputs.iter().enumerate().map(of).collect()
}

/// The ports of each value, in order.
pub fn grouped(ports: &[Port]) -> Vec<&[Port]> {
    let same = |a: &Port, b: &Port| b.part != Part::Whole && a.value == b.value && b.part != first_part(a, b);
    ports.chunk_by(same).collect()
}

/// The extension of files with a value of these ports: `npy` for tensors of numbers, else `pb`.
pub fn form(ports: &[Port]) -> &'static str {
    match ports {
        [port] if port.part == Part::Whole && port.dtype != DType::Str => "npy",
        _ => "pb",
    }
}

/// The part of `b` with which a value begins, if what is before it cannot be of the same one.
fn first_part(a: &Port, b: &Port) -> Part {
    let goes_on = matches!(
        (a.part, b.part),
        (Part::Present, Part::Shapes | Part::Element)
            | (Part::Shapes, Part::Data)
            | (Part::Keys, Part::Values)
            | (Part::Values, Part::Indices)
    );
    if goes_on { Part::Whole } else { b.part }
}

fn parts(ports: &[Port]) -> Vec<Part> {
    ports.iter().map(|port| port.part).collect()
}

fn bad(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(Stage::Io, Kind::Usage, format!("{}: {what}", path.display()))
}

/// A value in a file, for these ports: of a tensor see [`files::read_tensor`], else the protobuf message of its kind, or a list of
/// maps as JSON.
pub fn read(path: &Path, ports: &[Port]) -> Result<Value> {
    if let [port] = ports
        && port.part == Part::Whole
    {
        return files::read_tensor(path, Some(port.dtype)).map(Value::Tensor);
    }
    let (bytes, budget) = (crate::files::Mapped::open(path)?.bytes(), Budget::default());
    if path.extension().is_some_and(|form| form == "json") {
        return maps_of_json(&bytes, ports).map_err(|error| bad(path, error.message));
    }
    let refused = |what: &'static str| move |error| bad(path, format!("no {what}: {error}"));
    let value = match parts(ports).as_slice() {
        [Part::Shapes, Part::Data] => {
            let proto = onnxc_proto::decode_sequence(bytes, &budget).map_err(refused("SequenceProto"))?;
            sequence(&proto).map(Value::Sequence)
        }
        [Part::Present, ..] => {
            let proto = onnxc_proto::decode_optional(bytes, &budget).map_err(refused("OptionalProto"))?;
            optional(&proto)
        }
        [Part::Keys, Part::Values] if ports[1].dims.len() == 2 => {
            let proto = onnxc_proto::decode_sequence(bytes, &budget).map_err(refused("SequenceProto"))?;
            proto.map_values.iter().map(map).collect::<Result<_>>().map(Value::Records)
        }
        [Part::Keys, Part::Values] => {
            let proto = onnxc_proto::decode_map(bytes, &budget).map_err(refused("MapProto"))?;
            map(&proto).map(Value::Map)
        }
        _ => {
            let proto = onnxc_proto::decode_sparse_tensor(bytes, &budget);
            import::sparse_parts(&proto.map_err(refused("SparseTensorProto"))?)
                .map(|(values, indices)| Value::Sparse(values, indices))
        }
    };
    value.map_err(|error| bad(path, error.message))
}

/// The values in the files `PREFIX_0.pb`, `PREFIX_1.pb`, ... of a folder of test data, as far as there are ports for them.
pub fn read_numbered(folder: &Path, prefix: &str, groups: &[&[Port]]) -> Result<Vec<Value>> {
    let paths = files::numbered(folder, prefix);
    if paths.len() > groups.len() {
        let (found, most) = (paths.len(), groups.len());
        return usage(format!(
            "{}: {found} of `{prefix}_*.pb`, where the model has {most}",
            folder.display()
        ));
    }
    paths.iter().zip(groups).map(|(path, own)| read(path, own)).collect()
}

/// What a folder of test data holds for inputs: for all, or for those without a default.
pub fn test_inputs(ports: &[Port], folder: &Path) -> Result<Vec<Option<Tensor>>> {
    let groups = grouped(ports);
    let found = files::numbered(folder, "input").len();
    let all = found == groups.len();
    let given: Vec<&[Port]> = groups.iter().copied().filter(|own| all || !own[0].has_default).collect();
    if found != given.len() {
        let (folder, needed) = (folder.display(), given.len());
        return usage(format!("{folder}: {found} inputs, where the model takes {needed}"));
    }
    let mut values = read_numbered(folder, "input", &given)?.into_iter();
    let mut tensors = vec![];
    for own in groups {
        let is_given = all || !own[0].has_default;
        match if is_given { values.next() } else { None } {
            Some(value) => tensors.extend(pack(&value, own)?.into_iter().map(Some)),
            None => tensors.extend(own.iter().map(|_| None)),
        }
    }
    Ok(tensors)
}

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(Stage::Io, Kind::Usage, message))
}

/// Maps from a list of objects, the keys ascending.
fn maps_of_json(bytes: &[u8], ports: &[Port]) -> Result<Value> {
    let ([Part::Keys, Part::Values], [keys, values]) = (parts(ports).as_slice(), ports) else {
        return usage("JSON is for lists of maps only");
    };
    let objects: Vec<BTreeMap<String, f64>> = match serde_json::from_slice(bytes) {
        Ok(objects) => objects,
        Err(error) => return usage(format!("no list of maps to numbers: {error}")),
    };
    let map = |object: BTreeMap<String, f64>| {
        let mut entries: Vec<(Option<i64>, String, f64)> =
            object.into_iter().map(|(key, value)| (key.parse().ok(), key, value)).collect();
        let keys = match keys.dtype {
            DType::Str => {
                let texts: Vec<&str> = entries.iter().map(|(_, text, _)| text.as_str()).collect();
                Tensor::from_texts(&[texts.len()], &texts)
            }
            dtype => {
                entries.sort_by_key(|(number, ..)| *number);
                let Some(numbers) = entries.iter().map(|(number, ..)| *number).collect::<Option<Vec<i64>>>()
                else {
                    return usage(format!("a key that is no {dtype}"));
                };
                interp::cast(&Tensor::from_slice(&[numbers.len()], &numbers), dtype, true)
            }
        };
        let numbers: Vec<f64> = entries.iter().map(|(.., value)| *value).collect();
        let values = interp::cast(&Tensor::from_slice(&[numbers.len()], &numbers), values.dtype, true);
        Ok(Map { keys, values })
    };
    objects.into_iter().map(map).collect::<Result<_>>().map(Value::Records)
}

fn sequence(proto: &SequenceProto) -> Result<Vec<Tensor>> {
    let others = proto.sparse_tensor_values.len()
        + proto.sequence_values.len()
        + proto.map_values.len()
        + proto.optional_values.len();
    if others > 0 {
        return usage("a sequence of other values than tensors");
    }
    proto.tensor_values.iter().map(import::dense_tensor).collect()
}

fn optional(proto: &OptionalProto) -> Result<Value> {
    let element = match (&proto.tensor_value, &proto.sequence_value) {
        (Some(tensor), None) => Some(Value::Tensor(import::dense_tensor(tensor)?)),
        (None, Some(elements)) => Some(Value::Sequence(sequence(elements)?)),
        (None, None) if proto.sparse_tensor_value.is_none() && proto.map_value.is_none() => None,
        _ => return usage("an optional of another value than a tensor or a sequence"),
    };
    Ok(Value::Optional(element.map(Box::new)))
}

fn map(proto: &MapProto) -> Result<Map> {
    let dtype = DType::from_onnx(proto.key_type()).unwrap_or(DType::I64);
    let keys = match dtype {
        DType::Str => Tensor::from_texts(&[proto.string_keys.len()], &proto.string_keys),
        dtype => interp::cast(&Tensor::from_slice(&[proto.keys.len()], &proto.keys), dtype, true),
    };
    let values = match &proto.values {
        Some(values) => sequence(values)?,
        None => vec![],
    };
    // Each value is a tensor of one element.
    let dtype = values.first().map_or(DType::F32, |value| value.dtype);
    if values.len() != keys.len() || values.iter().any(|value| value.len() != 1 || value.dtype != dtype) {
        return usage("a map whose values are not one element for each key");
    }
    Ok(Map { keys, values: Tensor::joined(dtype, &values) })
}

/// The tensors of a value for its ports.
pub fn pack(value: &Value, ports: &[Port]) -> Result<Vec<Tensor>> {
    let kinds = parts(ports);
    match (value, kinds.as_slice()) {
        (Value::Tensor(tensor), [Part::Whole]) => Ok(vec![tensor.clone()]),
        (Value::Sequence(elements), [Part::Shapes, Part::Data]) => Ok(pack_sequence(elements, ports).into()),
        (Value::Optional(element), [Part::Present, ..]) => {
            let rest = &ports[1..];
            let absent = || match rest {
                [element] => vec![zeros(element)],
                _ => pack_sequence(&[], rest).into(),
            };
            let columns = match element.as_deref() {
                None => absent(),
                Some(Value::Tensor(tensor)) if rest.len() == 1 => vec![tensor.clone()],
                Some(Value::Sequence(elements)) if rest.len() == 2 => pack_sequence(elements, rest).into(),
                Some(_) => return usage("an optional with an element of another kind"),
            };
            Ok([vec![Tensor::scalar(element.is_some())], columns].concat())
        }
        // A value where the model takes an optional is one that is there.
        (Value::Tensor(_) | Value::Sequence(_), [Part::Present, ..]) => {
            pack(&Value::Optional(Some(Box::new(value.clone()))), ports)
        }
        (Value::Map(map), [Part::Keys, Part::Values]) => Ok(vec![map.keys.clone(), map.values.clone()]),
        (Value::Records(maps), [Part::Keys, Part::Values]) => pack_records(maps, ports),
        (Value::Sparse(values, indices), [Part::Values, Part::Indices]) => {
            Ok(vec![values.clone(), indices.clone()])
        }
        _ => usage(format!("a value of another kind than `{}`", ports[0].value)),
    }
}

/// `shapes` and `data`; an element with fewer axes than others has -1 in place of them.
fn pack_sequence(elements: &[Tensor], ports: &[Port]) -> [Tensor; 2] {
    let most = elements.iter().map(|element| element.shape.len()).max().unwrap_or(0);
    let axes = ports[0].dims.get(1).copied().flatten().unwrap_or(most).max(most);
    let row = |element: &Tensor| {
        let mut row: Vec<i64> = element.shape.iter().map(|&size| size as i64).collect();
        row.resize(axes, -1);
        row
    };
    let rows: Vec<i64> = elements.iter().flat_map(row).collect();
    let dtype = elements.first().map_or(ports[1].dtype, |element| element.dtype);
    [Tensor::from_slice(&[elements.len(), axes], &rows), Tensor::joined(dtype, elements)]
}

fn pack_records(maps: &[Map], ports: &[Port]) -> Result<Vec<Tensor>> {
    let Some(first) = maps.first() else { return Ok(ports.iter().map(zeros).collect()) };
    if maps.iter().any(|map| map.keys != first.keys) {
        return usage(format!("the maps of `{}` have unlike keys", ports[0].value));
    }
    let values = Tensor::joined(first.values.dtype, maps.iter().map(|map| &map.values));
    let shape = vec![maps.len(), first.keys.len()];
    Ok(vec![first.keys.clone(), Tensor { shape, ..values }])
}

/// What stands for a value that is not there.
fn zeros(port: &Port) -> Tensor {
    let shape: Vec<usize> = port.dims.iter().map(|dim| dim.unwrap_or(0)).collect();
    Tensor::zeros(port.dtype, &shape)
}

/// The value that these tensors of its ports make up.
pub fn unpack(tensors: &[Tensor], ports: &[Port]) -> Result<Value> {
    match (parts(ports).as_slice(), tensors) {
        ([Part::Whole], [tensor]) => Ok(Value::Tensor(tensor.clone())),
        ([Part::Shapes, Part::Data], [shapes, data]) => Ok(Value::Sequence(unpack_sequence(shapes, data)?)),
        ([Part::Present, ..], [present, rest @ ..]) => {
            let element = match rest {
                _ if present.data.first() == Some(&0) => None,
                [tensor] => Some(Value::Tensor(tensor.clone())),
                [shapes, data] => Some(Value::Sequence(unpack_sequence(shapes, data)?)),
                _ => return usage("an optional without ports of an element"),
            };
            Ok(Value::Optional(element.map(Box::new)))
        }
        ([Part::Keys, Part::Values], [keys, values]) if values.shape.len() == 2 => {
            let count = keys.len();
            let map = |at: usize| Map { keys: keys.clone(), values: values.part(at * count, &[count]) };
            Ok(Value::Records((0..values.shape[0]).map(map).collect()))
        }
        ([Part::Keys, Part::Values], [keys, values]) => {
            Ok(Value::Map(Map { keys: keys.clone(), values: values.clone() }))
        }
        _ => usage(format!("`{}` has parts of no known kind", ports[0].value)),
    }
}

fn unpack_sequence(shapes: &Tensor, data: &Tensor) -> Result<Vec<Tensor>> {
    let dims = shapes.to_i64s().unwrap_or_default();
    let axes = shapes.shape.get(1).copied().unwrap_or(0);
    let (mut elements, mut start) = (vec![], 0usize);
    for at in 0..shapes.shape[0] {
        let row = &dims[at * axes..(at + 1) * axes];
        let shape: Vec<usize> = row.iter().map_while(|&size| usize::try_from(size).ok()).collect();
        let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        let end = count.and_then(|count| start.checked_add(count)).filter(|&end| end <= data.len());
        let Some(end) = end else { return usage("the shapes of a sequence exceed its data") };
        elements.push(data.part(start, &shape));
        start = end;
    }
    Ok(elements)
}

/// The values of a model's outputs, with their names.
pub fn unpack_all(tensors: &[Tensor], ports: &[Port]) -> Result<Vec<(String, Value)>> {
    let (mut values, mut rest) = (vec![], tensors);
    for own in grouped(ports) {
        let (tensors, left) = rest.split_at(own.len().min(rest.len()));
        values.push((own[0].value.clone(), unpack(tensors, own)?));
        rest = left;
    }
    Ok(values)
}

impl Value {
    /// The tensors of a value, each with a name: `x`, `x[1]`.
    pub fn tensors(&self, name: &str) -> Vec<(String, &Tensor)> {
        match self {
            Value::Tensor(tensor) => vec![(name.to_string(), tensor)],
            Value::Sequence(elements) => {
                elements.iter().enumerate().map(|(at, element)| (format!("{name}[{at}]"), element)).collect()
            }
            Value::Optional(element) => {
                element.as_deref().map(|element| element.tensors(name)).unwrap_or_default()
            }
            Value::Map(map) => map.tensors(name).into(),
            Value::Records(maps) => {
                maps.iter().enumerate().flat_map(|(at, map)| map.tensors(&format!("{name}[{at}]"))).collect()
            }
            Value::Sparse(values, indices) => {
                vec![(format!("{name}.values"), values), (format!("{name}.indices"), indices)]
            }
        }
    }

    /// What it is besides its tensors: `a sequence of 3`.
    pub fn outline(&self) -> String {
        match self {
            Value::Tensor(_) => "a tensor".to_string(),
            Value::Sequence(elements) => format!("a sequence of {}", elements.len()),
            Value::Optional(None) => "an optional without an element".to_string(),
            Value::Optional(Some(element)) => format!("an optional: {}", element.outline()),
            Value::Map(_) => "a map".to_string(),
            Value::Records(maps) => format!("a sequence of {} maps", maps.len()),
            Value::Sparse(..) => "a sparse tensor".to_string(),
        }
    }
}

impl Map {
    fn tensors(&self, name: &str) -> [(String, &Tensor); 2] {
        [(format!("{name}.keys"), &self.keys), (format!("{name}.values"), &self.values)]
    }
}

/// The tensors of two values that correspond, with names; an error where the values are of unlike kinds or lengths.
pub fn pairs<'v>(
    name: &str,
    got: &'v Value,
    wanted: &'v Value,
) -> std::result::Result<Vec<(String, &'v Tensor, &'v Tensor)>, String> {
    if got.outline() != wanted.outline() {
        return Err(format!("{} where {} is expected", got.outline(), wanted.outline()));
    }
    let pairs = got.tensors(name).into_iter().zip(wanted.tensors(name));
    Ok(pairs.map(|((name, got), (_, wanted))| (name, got, wanted)).collect())
}
