//! Attributes, constants that fold, and data outside the model file.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{attribute, f32_tensor, int, ints, node};
use onnxc_proto::tensor_proto::{DataLocation, DataType};
use onnxc_proto::{AttributeProto, ModelProto, SparseTensorProto, StringStringEntryProto, TensorProto};

use super::sketch::Sketch;
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "attributes_empty", &[100_000, 2_000_000], attributes_empty);
    family(cases, "attributes_of_one_name", &[100_000], attributes_alike);
    family(cases, "attribute_of_integers", &[1_000_000], attribute_integers);
    family(cases, "attribute_of_strings", &[1_000_000], attribute_strings);
    family(cases, "attribute_of_graphs", &[100_000], attribute_graphs);
    family(cases, "attribute_kernel", &[1 << 16, 1 << 31, 1 << 62], |n| pool(n as i64, 1, 1, 0));
    family(cases, "attribute_strides", &[0, 1 << 62], |n| pool(2, n as i64, 1, 0));
    family(cases, "attribute_dilations", &[0, 1 << 62], |n| pool(2, 1, n as i64, 0));
    family(cases, "attribute_pads", &[1 << 31, 1 << 62], |n| pool(2, 1, 1, n as i64));
    family(cases, "attribute_kernel_of_many_axes", &[50, 3000], many_axes);
    family(cases, "attribute_groups", &[0, 1 << 40], groups);
    family(cases, "attribute_split_outputs", &[1 << 40], split_outputs);
    family(cases, "attribute_hidden_size", &[1 << 20, 1 << 40], hidden);
    family(cases, "attribute_perm", &[1_000_000], perm);
    family(cases, "attribute_block_size", &[1 << 20, 1 << 62], block_size);
    family(cases, "fold_matmul", &[1000, 20_000], fold_matmul);
    family(cases, "fold_conv", &[1000], fold_conv);
    family(cases, "fold_chain", &[30], fold_chain);
    family(cases, "fold_chain_of_deferred", &[1000, 5000, 20_000], fold_deferred);
    family(cases, "fold_reduction", &[1 << 28, 1 << 36], |n| fold("ReduceSum", n));
    family(cases, "fold_nonzero", &[1 << 24, 1 << 32], |n| fold("NonZero", n));
    family(cases, "fold_unique", &[1 << 24], |n| fold("Unique", n));
    family(cases, "fold_softmax", &[1 << 26, 1 << 36], |n| fold("Softmax", n));
    family(cases, "fold_cumsum", &[1 << 26], fold_cumsum);
    family(cases, "fold_range_then_gather", &[1 << 26], fold_range);
    family(cases, "fold_tile", &[1 << 26, 1 << 36], fold_tile);
    family(cases, "fold_top_k", &[1 << 22], fold_top_k);
    family(cases, "tensor_of_absurd_dims", &[1, 2, 3, 4], absurd_dims);
    family(cases, "tensor_of_zero_times_much", &[1000], zero_times);
    family(cases, "tensor_sparse", &[1 << 20, 1 << 33, 1 << 50], sparse);
    family(cases, "external_data", &[0, 1, 2, 3, 4, 5, 6, 7], external);
}

fn many(n: usize, attribute: AttributeProto) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    let mut relu = node("Relu", &[&x], &["y"]);
    relu.attribute = vec![attribute; n];
    s.node(relu);
    s.giving("y")
}

fn attributes_empty(n: usize) -> ModelProto {
    many(n, AttributeProto::default())
}

fn attributes_alike(n: usize) -> ModelProto {
    many(n, int("axis", 1))
}

/// One node with one attribute.
fn one(op_type: &str, dims: &[&str], attribute: AttributeProto) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(dims);
    let y = s.op_with(op_type, &[&x], vec![attribute]);
    s.giving(&y)
}

fn attribute_integers(n: usize) -> ModelProto {
    one("ReduceSum", &["4", "4"], ints("axes", &vec![0; n]))
}

fn attribute_strings(n: usize) -> ModelProto {
    let strings = AttributeProto {
        strings: vec![Default::default(); n],
        ..attribute("activations", AttributeType::Strings)
    };
    one("RNN", &["4", "4", "4"], strings)
}

fn attribute_graphs(n: usize) -> ModelProto {
    let graphs =
        AttributeProto { graphs: vec![Default::default(); n], ..attribute("body", AttributeType::Graphs) };
    one("Loop", &["4"], graphs)
}

fn pool(kernel: i64, stride: i64, dilation: i64, pad: i64) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1", "1", "n", "n"]);
    let attributes = vec![
        ints("kernel_shape", &[kernel; 2]),
        ints("strides", &[stride; 2]),
        ints("dilations", &[dilation; 2]),
        ints("pads", &[pad; 4]),
    ];
    let y = s.op_with("MaxPool", &[&x], attributes);
    s.giving(&y)
}

fn many_axes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&vec![3; n + 2]);
    let y = s.op_with("MaxPool", &[&x], vec![ints("kernel_shape", &vec![2; n])]);
    s.giving(&y)
}

fn groups(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&[1, 4, 8, 8]);
    let w = s.f32s(&[4, 4, 1, 1], vec![1.0; 16]);
    let y = s.op_with("Conv", &[&x, &w], vec![int("group", n as i64)]);
    s.giving(&y)
}

fn split_outputs(n: usize) -> ModelProto {
    one("Split", &["n"], int("num_outputs", n as i64))
}

fn hidden(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4", "1", "4"]);
    let (w, r) = (s.input(&["1", "a", "4"]), s.input(&["1", "a", "b"]));
    let y = s.op_with("LSTM", &[&x, &w, &r], vec![int("hidden_size", n as i64)]);
    s.giving(&y)
}

fn perm(n: usize) -> ModelProto {
    one("Transpose", &["4", "4"], ints("perm", &(0..n as i64).collect::<Vec<_>>()))
}

fn block_size(n: usize) -> ModelProto {
    one("SpaceToDepth", &["1", "1", "n", "n"], int("blocksize", n as i64))
}

/// A constant of `dims` that the file holds no data of.
fn filled(s: &mut Sketch, dims: &[i64]) -> String {
    let shape = s.i64s(dims);
    s.op("ConstantOfShape", &[&shape])
}

fn fold_matmul(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (a, b) = (filled(&mut s, &[n as i64; 2]), filled(&mut s, &[n as i64; 2]));
    let y = s.op("MatMul", &[&a, &b]);
    s.giving(&y)
}

fn fold_conv(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = filled(&mut s, &[1, 64, n as i64, n as i64]);
    let w = filled(&mut s, &[64, 64, 5, 5]);
    let y = s.op("Conv", &[&x, &w]);
    s.giving(&y)
}

/// Constants that are small one by one, and whose sizes multiply.
fn fold_chain(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = filled(&mut s, &[2]);
    let repeats = s.i64s(&[2]);
    for _ in 0..n {
        let e = s.op("Exp", &[&x]);
        x = s.op("Tile", &[&e, &repeats]);
    }
    let y = s.op("ReduceSum", &[&x]);
    s.giving(&y)
}

/// A constant too large to be computed at once, changed many times.
fn fold_deferred(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.f32s(&[8192], vec![0.5; 8192]);
    for _ in 0..n {
        x = s.op("Sin", &[&x]);
    }
    s.giving(&x)
}

fn fold(op_type: &str, n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = filled(&mut s, &[n as i64]);
    let y = s.op(op_type, &[&x]);
    s.giving(&y)
}

fn fold_cumsum(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, axis) = (filled(&mut s, &[n as i64]), s.i64(0));
    let y = s.op("CumSum", &[&x, &axis]);
    s.giving(&y)
}

fn fold_range(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (start, end, step) = (s.i64(0), s.i64(n as i64), s.i64(1));
    let range = s.op("Range", &[&start, &end, &step]);
    let y = s.op("Gather", &[&range, &range]);
    s.giving(&y)
}

fn fold_tile(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, repeats) = (s.f32s(&[2], vec![1.0, 2.0]), s.i64s(&[n as i64]));
    let tiled = s.op("Tile", &[&x, &repeats]);
    let y = s.op("Exp", &[&tiled]);
    s.giving(&y)
}

fn fold_top_k(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, k) = (filled(&mut s, &[n as i64]), s.i64s(&[n as i64]));
    let results = s.ops("TopK", &[&x, &k], vec![], 2);
    s.giving(&results[0])
}

/// `x + tensor` for a tensor as the file has it.
fn plus(tensor: TensorProto) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    let name = tensor.name().to_string();
    let y = s.op("Add", &[&x, &name]);
    let mut model = s.giving(&y);
    if let Some(graph) = &mut model.graph {
        graph.initializer.push(tensor);
    }
    model
}

fn absurd_dims(n: usize) -> ModelProto {
    let dims: &[i64] = match n {
        1 => &[i64::MAX],
        2 => &[i64::MAX, i64::MAX],
        3 => &[-1],
        _ => &[1 << 32, 1 << 32],
    };
    plus(f32_tensor("w", dims, vec![1.0]))
}

fn zero_times(n: usize) -> ModelProto {
    let mut dims = vec![1 << 30; n];
    dims[0] = 0;
    plus(f32_tensor("w", &dims, vec![]))
}

fn sparse(n: usize) -> ModelProto {
    let mut model = plus(f32_tensor("unused", &[1], vec![1.0]));
    let indices = onnxc_proto::build::i64_tensor("i", &[1], vec![0]);
    let tensor = SparseTensorProto {
        values: Some(f32_tensor("sparse", &[1], vec![1.0])),
        indices: Some(indices),
        dims: vec![n as i64],
    };
    if let Some(graph) = &mut model.graph {
        graph.sparse_initializer.push(tensor);
        graph.node[0].input[1] = "sparse".into();
    }
    model
}

/// Places of data that are none.
fn external(n: usize) -> ModelProto {
    let places: [&[(&str, &str)]; 8] = [
        &[("location", "missing.bin")],
        &[("location", "../../../../etc/passwd")],
        &[("location", "/dev/zero")],
        &[("location", ".")],
        &[("location", "")],
        &[
            ("location", "missing.bin"),
            ("offset", "18446744073709551615"),
            ("length", "18446744073709551615"),
        ],
        &[("location", "missing.bin"), ("offset", "-1")],
        &[],
    ];
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    plus(TensorProto {
        data_type: Some(DataType::Float as i32),
        dims: vec![1 << 40],
        name: Some("w".into()),
        data_location: Some(DataLocation::External as i32),
        external_data: places[n].iter().map(entry).collect(),
        ..Default::default()
    })
}
