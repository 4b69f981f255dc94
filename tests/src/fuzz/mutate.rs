//! Wrong models made of right ones: the bytes of a file damaged, or a decoded model changed and encoded again.
//!
//! Damaged bytes try the decoder. Changed models are well-formed files, so that they get past it: wrong types, sizes
//! that overflow, operators that get what they never asked for, names that lead nowhere or in circles.

use bytes::Bytes;
use fastrand::Rng;
use onnxc_proto::tensor_shape_proto::dimension::Value as DimValue;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::*;
use prost::Message;

/// Numbers at which sizes, counts and indices go wrong.
const NUMBERS: [i64; 24] = [
    0,
    1,
    2,
    3,
    7,
    16,
    100,
    255,
    4096,
    65_537,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
    -1,
    -2,
    -3,
    -(1 << 31),
];

const FLOATS: [f32; 10] =
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

/// A wrong model made of `corpus[at]`; `names` are operators to put in the place of others.
pub(super) fn mutate(
    corpus: &[Bytes],
    at: usize,
    names: &[(&'static str, &'static str)],
    rng: &mut Rng,
) -> Vec<u8> {
    let seed = &corpus[at];
    if rng.u8(..4) == 0 {
        return damage(seed, &corpus[rng.usize(..corpus.len())], rng);
    }
    let Ok(mut model) = decode(seed.clone(), &Budget::default()) else {
        return damage(seed, seed, rng);
    };
    if rng.bool()
        && let Ok(other) = decode(corpus[rng.usize(..corpus.len())].clone(), &Budget::default())
    {
        graft(&mut model, other, rng);
    }
    // Few changes leave most of a model right, so that the stages behind the importer see it.
    for _ in 0..1 + rng.usize(..2) * rng.usize(..3) {
        change_model(&mut model, names, rng);
    }
    let bytes = model.encode_to_vec();
    if rng.u8(..16) == 0 { damage(&bytes, seed, rng) } else { bytes }
}

/// Another model's nodes behind those of this one, fed with values of this one. Models of one node become models of a
/// few, with something for passes and schedule to do.
fn graft(model: &mut ModelProto, other: ModelProto, rng: &mut Rng) {
    let (Some(graph), Some(mut other)) = (&mut model.graph, other.graph) else { return };
    let rename = |name: &mut String| {
        if !name.is_empty() {
            name.insert_str(0, "g_");
        }
    };
    other.input.iter_mut().filter_map(|value| value.name.as_mut()).for_each(rename);
    other.output.iter_mut().filter_map(|value| value.name.as_mut()).for_each(rename);
    other.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut()).for_each(rename);
    for node in &mut other.node {
        node.input.iter_mut().chain(&mut node.output).for_each(rename);
    }
    let ours: Vec<_> =
        graph.node.iter().flat_map(|node| node.output.clone()).filter(|name| !name.is_empty()).collect();
    if !ours.is_empty() {
        for input in std::mem::take(&mut other.input) {
            let fed = ours[rng.usize(..ours.len())].clone();
            if rng.u8(..4) == 0 {
                other.input.push(input);
                continue;
            }
            let name = input.name();
            for end in other.node.iter_mut().flat_map(|node| &mut node.input) {
                if end == name {
                    end.clone_from(&fed);
                }
            }
        }
    }
    graph.node.append(&mut other.node);
    graph.input.append(&mut other.input);
    graph.initializer.append(&mut other.initializer);
    // What the outputs are declared to be is no longer true.
    for mut output in other.output {
        output.r#type = None;
        graph.output.push(output);
    }
    let newest = model.opset_import.iter_mut().find(|opset| opset.domain().is_empty());
    if let Some(opset) = newest {
        opset.version = Some(opset.version().max(rng.i64(13..27)));
    }
}

/// One to four wounds to the bytes of a file.
fn damage(bytes: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + rng.usize(..4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(..bytes.len());
        let end = (at + 1 + rng.usize(..16)).min(bytes.len());
        match rng.u8(..8) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            6 => {
                // A length or number of up to ten bytes.
                let number = NUMBERS[rng.usize(..NUMBERS.len())];
                let mut varint = Vec::new();
                prost::encoding::encode_varint(number as u64, &mut varint);
                bytes.splice(at..(at + 1).min(bytes.len()), varint);
            }
            _ => {
                let from = rng.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

fn change_model(model: &mut ModelProto, names: &[(&'static str, &'static str)], rng: &mut Rng) {
    match rng.u8(..24) {
        0 => model.ir_version = Some(number(rng)),
        1 => {
            if let Some(opset) = pick(&mut model.opset_import, rng) {
                opset.version = Some(if rng.bool() { rng.i64(0..30) } else { number(rng) });
            }
        }
        2 => {
            // The body of a function in the place of the graph's, or the other way round.
            if let Some(graph) = &mut model.graph
                && let Some(function) = pick(&mut model.functions, rng)
            {
                std::mem::swap(&mut graph.node, &mut function.node);
            }
        }
        3 => {
            if let Some(function) = pick(&mut model.functions, rng) {
                change_function(function, rng);
            }
        }
        _ => {
            let Some(graph) = &mut model.graph else { return };
            change_graph(graph, names, rng);
        }
    }
}

fn change_function(function: &mut FunctionProto, rng: &mut Rng) {
    match rng.u8(..4) {
        // A function that calls functions, or itself.
        0 => {
            let (name, domain) = (function.name.clone(), function.domain.clone());
            if let Some(node) = pick(&mut function.node, rng) {
                (node.op_type, node.domain) = (name, domain);
            }
        }
        1 => drop_one(&mut function.input, rng),
        2 => drop_one(&mut function.output, rng),
        _ => {
            if let Some(node) = pick(&mut function.node, rng) {
                change_node(node, &[], rng);
            }
        }
    }
}

fn change_graph(graph: &mut GraphProto, names: &[(&'static str, &'static str)], rng: &mut Rng) {
    match rng.u8(..16) {
        0 => {
            if let Some(value) = pick(&mut graph.input, rng) {
                change_value(value, rng);
            }
        }
        1 => {
            if let Some(value) = pick(&mut graph.output, rng) {
                change_value(value, rng);
            }
        }
        2 => {
            if let Some(value) = pick(&mut graph.value_info, rng) {
                change_value(value, rng);
            }
        }
        3 | 4 => {
            if let Some(tensor) = pick(&mut graph.initializer, rng) {
                change_tensor(tensor, rng);
            }
        }
        5 => graph.node.reverse(),
        6 => drop_one(&mut graph.node, rng),
        7 => {
            if let Some(node) = pick(&mut graph.node, rng) {
                let node = node.clone();
                graph.node.push(node);
            }
        }
        8 => turn_into_constant(graph, rng),
        9 => reconnect(graph, rng),
        10 => {
            // One more node behind the last, and its result as the result of all.
            let (Some(last), false) = (graph.node.last(), names.is_empty()) else { return };
            let (domain, name) = names[rng.usize(..names.len())];
            let mut node = last.clone();
            (node.domain, node.op_type) = (Some(domain.into()), Some(name.into()));
            node.input = last.output.clone();
            if rng.bool() {
                node.input.extend_from_slice(&last.input);
            }
            node.output = vec!["mutated".into()];
            if rng.bool() {
                node.attribute.clear();
            }
            graph.node.push(node);
            if let Some(output) = graph.output.first_mut() {
                *output = ValueInfoProto { name: Some("mutated".into()), ..Default::default() };
            }
        }
        _ => {
            if let Some(node) = pick(&mut graph.node, rng) {
                change_node(node, names, rng);
            }
        }
    }
}

/// An input becomes an initializer that holds small numbers, as the sizes, axes and indices of real models do.
fn turn_into_constant(graph: &mut GraphProto, rng: &mut Rng) {
    let Some(input) = pick(&mut graph.input, rng) else { return };
    let Some(TypeValue::TensorType(ty)) = input.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else {
        return;
    };
    let dims: Vec<i64> = ty
        .shape
        .iter()
        .flat_map(|shape| &shape.dim)
        .map(|dim| match dim.value {
            Some(DimValue::DimValue(size)) => size,
            _ => 1,
        })
        .collect();
    let count = dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim)).unwrap_or(0);
    let mut tensor = TensorProto { name: input.name.clone(), dims, ..Default::default() };
    tensor.data_type = ty.elem_type;
    let count = count.clamp(0, 4096) as usize;
    if ty.elem_type == Some(tensor_proto::DataType::Int64 as i32) {
        tensor.int64_data =
            (0..count).map(|_| if rng.u8(..4) == 0 { number(rng) } else { rng.i64(-4..8) }).collect();
    } else {
        let kind = ty.elem_type;
        let width = if kind == Some(tensor_proto::DataType::Double as i32) { 8 } else { 4 };
        tensor.raw_data = Some((0..count * width).map(|_| rng.u8(..)).collect::<Vec<u8>>().into());
    }
    if rng.bool() {
        let name = input.name.clone();
        graph.input.retain(|input| input.name != name);
    }
    graph.initializer.push(tensor);
}

/// An edge leads elsewhere: to another value, to the node itself, to a name that nothing has.
fn reconnect(graph: &mut GraphProto, rng: &mut Rng) {
    let mut values: Vec<String> = graph.node.iter().flat_map(|node| node.output.clone()).collect();
    values.extend(graph.input.iter().chain(&graph.output).filter_map(|value| value.name.clone()));
    values.extend(graph.initializer.iter().filter_map(|tensor| tensor.name.clone()));
    values.extend([String::new(), "nowhere".to_string()]);
    let value = values[rng.usize(..values.len())].clone();
    let Some(node) = pick(&mut graph.node, rng) else { return };
    let ends = if rng.u8(..4) == 0 { &mut node.output } else { &mut node.input };
    match pick(ends, rng) {
        Some(end) if rng.u8(..4) > 0 => *end = value,
        _ => ends.push(value),
    }
}

fn change_node(node: &mut NodeProto, names: &[(&'static str, &'static str)], rng: &mut Rng) {
    match rng.u8(..10) {
        0 | 1 if !names.is_empty() => {
            let (domain, name) = names[rng.usize(..names.len())];
            (node.domain, node.op_type) = (Some(domain.into()), Some(name.into()));
        }
        2 => drop_one(&mut node.input, rng),
        3 => drop_one(&mut node.output, rng),
        4 => drop_one(&mut node.attribute, rng),
        5 => {
            if node.input.len() > 1 {
                let (a, b) = (rng.usize(..node.input.len()), rng.usize(..node.input.len()));
                node.input.swap(a, b);
            }
        }
        _ => {
            if let Some(attribute) = pick(&mut node.attribute, rng) {
                change_attribute(attribute, names, rng);
            }
        }
    }
}

fn change_attribute(attribute: &mut AttributeProto, names: &[(&'static str, &'static str)], rng: &mut Rng) {
    if rng.u8(..12) == 0 {
        attribute.r#type = Some(rng.i32(0..16));
    }
    if let Some(graph) = &mut attribute.g {
        return change_graph(graph, names, rng);
    }
    if let Some(tensor) = &mut attribute.t {
        return change_tensor(tensor, rng);
    }
    if attribute.i.is_some() {
        attribute.i = Some(if rng.bool() { number(rng) } else { rng.i64(-4..20) });
    } else if attribute.f.is_some() {
        attribute.f = Some(FLOATS[rng.usize(..FLOATS.len())]);
    } else if !attribute.ints.is_empty() {
        match rng.u8(..4) {
            0 => drop_one(&mut attribute.ints, rng),
            1 => attribute.ints.push(number(rng)),
            _ => {
                let value = if rng.bool() { number(rng) } else { rng.i64(-4..20) };
                let at = rng.usize(..attribute.ints.len());
                attribute.ints[at] = value;
            }
        }
    } else if !attribute.floats.is_empty() {
        let at = rng.usize(..attribute.floats.len());
        attribute.floats[at] = FLOATS[rng.usize(..FLOATS.len())];
    } else if let Some(text) = &attribute.s {
        let mut text = text.to_vec();
        match text.first_mut() {
            Some(first) => *first ^= rng.u8(..),
            None => text.push(rng.u8(..)),
        }
        attribute.s = Some(text.into());
    }
}

fn change_tensor(tensor: &mut TensorProto, rng: &mut Rng) {
    match rng.u8(..8) {
        0 => tensor.data_type = Some(rng.i32(0..30)),
        1 => {
            let at = rng.usize(..=tensor.dims.len());
            tensor.dims.insert(at, number(rng));
        }
        2 => drop_one(&mut tensor.dims, rng),
        3 => {
            if let Some(dim) = pick(&mut tensor.dims, rng) {
                *dim = number(rng);
            }
        }
        4 => {
            let raw = tensor.raw_data.take().unwrap_or_default();
            tensor.raw_data = Some(raw.slice(..raw.len() - raw.len().min(1 + rng.usize(..8))));
        }
        5 => {
            // The values are where the file says, which is nowhere or out of the folder.
            let entry = |key: &str, value: &str| StringStringEntryProto {
                key: Some(key.into()),
                value: Some(value.into()),
            };
            let places = ["weights.bin", "../weights.bin", "/etc/passwd", "", "/dev/zero", "."];
            tensor.external_data = vec![entry("location", places[rng.usize(..places.len())])];
            if rng.bool() {
                tensor.external_data.push(entry("offset", &number(rng).to_string()));
            }
            tensor.data_location = Some(1);
            tensor.raw_data = None;
        }
        6 => {
            if let Some(value) = pick(&mut tensor.int64_data, rng) {
                *value = number(rng);
            }
        }
        _ => {
            let mut raw = tensor.raw_data.take().unwrap_or_default().to_vec();
            if raw.len() >= 8 {
                // Integers first of all: sizes and axes are.
                let at = rng.usize(..raw.len() / 8) * 8;
                raw[at..at + 8].copy_from_slice(&number(rng).to_le_bytes());
            }
            tensor.raw_data = Some(raw.into());
        }
    }
}

fn change_value(value: &mut ValueInfoProto, rng: &mut Rng) {
    let Some(TypeValue::TensorType(ty)) = value.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else {
        value.r#type = None;
        return;
    };
    let Some(shape) = &mut ty.shape else {
        ty.shape = Some(TensorShapeProto::default());
        return;
    };
    let size = |value| tensor_shape_proto::Dimension { value, ..Default::default() };
    match rng.u8(..8) {
        0 => ty.elem_type = Some(rng.i32(0..30)),
        1 => ty.shape = None,
        2 => drop_one(&mut shape.dim, rng),
        3 => {
            let at = rng.usize(..=shape.dim.len());
            shape.dim.insert(at, size(Some(DimValue::DimValue(number(rng)))));
        }
        4 => {
            // The same name for several dims ties them.
            for dim in &mut shape.dim {
                *dim = size(Some(DimValue::DimParam("n".into())));
            }
        }
        5 => {
            if let Some(dim) = pick(&mut shape.dim, rng) {
                *dim = size(None);
            }
        }
        _ => {
            if let Some(dim) = pick(&mut shape.dim, rng) {
                *dim = size(Some(DimValue::DimValue(number(rng))));
            }
        }
    }
}

fn number(rng: &mut Rng) -> i64 {
    NUMBERS[rng.usize(..NUMBERS.len())]
}

fn pick<'a, T>(list: &'a mut [T], rng: &mut Rng) -> Option<&'a mut T> {
    if list.is_empty() { None } else { Some(&mut list[rng.usize(..list.len())]) }
}

fn drop_one<T>(list: &mut Vec<T>, rng: &mut Rng) {
    if !list.is_empty() {
        list.remove(rng.usize(..list.len()));
    }
}
