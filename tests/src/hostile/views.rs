//! Chains of views, and values that are read in many ways at once.

use onnxc_proto::ModelProto;
use onnxc_proto::build::{int, ints};
use onnxc_proto::tensor_proto::DataType;

use super::sketch::{Sketch, refs};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "views_transposed_and_reshaped", &[10, 30, 300, 3000], reshaped);
    family(cases, "views_reshaped_symbolic", &[10, 30, 300], reshaped_symbolic);
    family(cases, "views_sliced", &[300, 3000], sliced);
    family(cases, "views_sliced_by_a_symbol", &[30, 300, 3000], sliced_by_symbol);
    family(cases, "views_reversed", &[1000], reversed);
    family(cases, "views_expanded", &[12, 40], expanded);
    family(cases, "views_padded", &[10, 30, 300], padded);
    family(cases, "views_gathered", &[10, 100, 1000], gathered);
    family(cases, "views_halves_swapped", &[10, 30, 300], halves_swapped);
    family(cases, "views_concatenated_with_itself", &[10, 20], concatenated);
    family(cases, "views_split_to_pieces", &[100, 1000, 3000], split);
    family(cases, "views_of_windows", &[3, 6], windows);
    family(cases, "views_depth_to_space", &[5, 12], depth_to_space);
    family(cases, "diamond_of_sums", &[30, 64, 1000, 10_000], |n| diamond(n, |_, x| x.to_string()));
    family(cases, "diamond_with_transpose", &[20, 60, 1000], |n| diamond(n, |s, x| s.op("Transpose", &[x])));
    family(cases, "diamond_with_reshape", &[20, 60, 300], |n| diamond(n, flattened));
    family(cases, "diamond_with_reverse", &[20, 60, 1000], |n| diamond(n, flipped));
    family(cases, "diamond_with_reduction", &[20, 60, 1000], |n| diamond(n, |s, x| s.op("ReduceMax", &[x])));
    family(cases, "diamond_with_where", &[20, 60, 300], where_diamond);
    family(cases, "diamond_with_pad", &[20, 60, 300], |n| diamond(n, shifted));
    family(cases, "diamond_with_tile", &[8], tiled);
    family(cases, "readers_of_one_value", &[1000, 5000], readers);
    family(cases, "dense_net_of_sums", &[50, 150], dense);
    family(cases, "einsum_of_letters", &[10, 26, 52], einsum);
}

fn reshaped(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["6", "10"]);
    let shapes = [s.i64s(&[4, 15]), s.i64s(&[10, 6]), s.i64s(&[15, 4]), s.i64s(&[6, 10])];
    for at in 0..n {
        let turned = s.op("Transpose", &[&x]);
        x = s.op("Reshape", &[&turned, &shapes[at % shapes.len()]]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn reshaped_symbolic(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "12"]);
    let shapes = [s.i64s(&[-1, 4]), s.i64s(&[3, -1]), s.i64s(&[-1, 6]), s.i64s(&[2, -1])];
    for at in 0..n {
        let turned = s.op("Transpose", &[&x]);
        x = s.op("Reshape", &[&turned, &shapes[at % shapes.len()]]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn sliced(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[100_000]);
    let (start, end, axis, step) = (s.i64s(&[1]), s.i64s(&[-1]), s.i64s(&[0]), s.i64s(&[1]));
    for _ in 0..n {
        x = s.op("Slice", &[&x, &start, &end, &axis, &step]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn sliced_by_symbol(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "m"]);
    let (start, end, axis, step) = (s.i64s(&[1]), s.i64s(&[-1]), s.i64s(&[0]), s.i64s(&[2]));
    for _ in 0..n {
        let part = s.op("Slice", &[&x, &start, &end, &axis, &step]);
        x = s.op("Transpose", &[&part]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn flipped(s: &mut Sketch, x: &str) -> String {
    let (start, end, axis, step) = (s.i64s(&[-1]), s.i64s(&[i64::MIN]), s.i64s(&[0]), s.i64s(&[-1]));
    s.op("Slice", &[x, &start, &end, &axis, &step])
}

fn reversed(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n"]);
    for _ in 0..n {
        x = flipped(&mut s, &x);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn expanded(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["3", "1"]);
    for at in 0..n {
        let (wide, flat) = (s.i64s(&[3 << at, 2]), s.i64s(&[3 << (at + 1), 1]));
        let repeated = s.op("Expand", &[&x, &wide]);
        x = s.op("Reshape", &[&repeated, &flat]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn padded(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "m"]);
    let pads = s.i64s(&[1, 0, 0, 1]);
    for _ in 0..n {
        x = s.op("Pad", &[&x, &pads]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn gathered(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[100]);
    let picks = s.input_of(DataType::Int64, &[100]);
    for _ in 0..n {
        x = s.op("Gather", &[&x, &picks]);
    }
    s.giving(&x)
}

fn halves_swapped(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[64, 64]);
    for at in 0..n {
        let axis = int("axis", (at % 2) as i64);
        let halves = s.ops("Split", &[&x], vec![axis.clone(), int("num_outputs", 2)], 2);
        x = s.op_with("Concat", &[&halves[1], &halves[0]], vec![axis]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn concatenated(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[4]);
    for _ in 0..n {
        let e = s.op("Exp", &[&x]);
        x = s.op_with("Concat", &[&e, &x], vec![int("axis", 0)]);
    }
    s.giving(&x)
}

fn split(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&[n, 4]);
    let parts = s.ops("Split", &[&x], vec![int("axis", 0), int("num_outputs", n as i64)], n);
    for part in &parts {
        s.output(part);
    }
    s.model()
}

fn windows(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1", "2", "h", "w"]);
    for _ in 0..n {
        let kernel = ints("kernel_shape", &[3, 3]);
        x = s.op_with("AveragePool", &[&x], vec![kernel, ints("pads", &[1, 1, 1, 1])]);
        x = s.op_with("LpPool", &[&x], vec![ints("kernel_shape", &[2, 2])]);
    }
    s.giving(&x)
}

fn depth_to_space(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1", "16", "h", "w"]);
    for _ in 0..n {
        let up = s.op_with("DepthToSpace", &[&x], vec![int("blocksize", 2)]);
        x = s.op_with("SpaceToDepth", &[&up], vec![int("blocksize", 2)]);
        x = s.op_with("Transpose", &[&x], vec![ints("perm", &[0, 1, 3, 2])]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

/// `x' = x + view(x)`, `n` times: as an expression of `x`, it has 2^n terms.
fn diamond(n: usize, view: fn(&mut Sketch, &str) -> String) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[16, 16]);
    for _ in 0..n {
        let other = view(&mut s, &x);
        x = s.op("Add", &[&x, &other]);
    }
    s.giving(&x)
}

fn flattened(s: &mut Sketch, x: &str) -> String {
    let (flat, turned) = (s.i64s(&[8, 32]), s.i64s(&[16, 16]));
    let x = s.op("Reshape", &[x, &flat]);
    let x = s.op("Transpose", &[&x]);
    s.op("Reshape", &[&x, &turned])
}

fn shifted(s: &mut Sketch, x: &str) -> String {
    let pads = s.i64s(&[1, 0, -1, 0]);
    s.op("Pad", &[x, &pads])
}

fn where_diamond(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[16, 16]);
    for _ in 0..n {
        let turned = s.op("Transpose", &[&x]);
        let less = s.op("Less", &[&x, &turned]);
        x = s.op("Where", &[&less, &turned, &x]);
    }
    s.giving(&x)
}

fn tiled(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "2"]);
    let repeats = s.i64s(&[2, 2]);
    for _ in 0..n {
        let e = s.op("Tanh", &[&x]);
        x = s.op("Tile", &[&e, &repeats]);
    }
    s.giving(&x)
}

fn readers(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&[64]);
    let shared = s.op("Exp", &[&x]);
    for at in 0..n {
        let by = s.f32s(&[], vec![at as f32]);
        let y = s.op("Mul", &[&shared, &by]);
        s.output(&y);
    }
    s.model()
}

/// Every node reads all before it.
fn dense(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut all = vec![s.input(&[8, 8])];
    for _ in 0..n {
        let sum = s.op("Sum", &refs(&all));
        let turned = s.op("Transpose", &[&sum]);
        all.push(s.op("Tanh", &[&turned]));
    }
    let last = all.pop().unwrap_or_default();
    s.giving(&last)
}

fn einsum(n: usize) -> ModelProto {
    let letters: String = ('a'..='z').chain('A'..='Z').take(n).collect();
    let mut s = Sketch::new();
    let (a, b) = (s.input(&vec![2; n]), s.input(&vec![2; n]));
    let reversed: String = letters.chars().rev().collect();
    let equation = format!("{letters},{reversed}->{}", &letters[..n / 2]);
    let equation = onnxc_proto::AttributeProto {
        s: Some(equation.into_bytes().into()),
        ..onnxc_proto::build::attribute("equation", onnxc_proto::attribute_proto::AttributeType::String)
    };
    let y = s.op_with("Einsum", &[&a, &b], vec![equation]);
    s.giving(&y)
}
