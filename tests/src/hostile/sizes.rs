//! Shape arithmetic, ranks and sizes.

use onnxc_proto::ModelProto;
use onnxc_proto::build::{int, ints};
use onnxc_proto::tensor_proto::DataType;

use super::sketch::{Sketch, refs};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "size_halves_and_thirds", &[10, 20, 40, 200, 2000], halves_and_thirds);
    family(cases, "size_min_and_max", &[20, 40, 400], min_and_max);
    family(cases, "size_remainders", &[20, 40, 400], remainders);
    family(cases, "size_multiplied_by_its_successor", &[5, 20, 60], by_successor);
    family(cases, "size_sum_of_five_squared", &[3, 5, 8, 30], squared_sum);
    family(cases, "size_halved_as_conv_does", &[20, 200, 2000], pooled);
    family(cases, "size_of_unet_that_concatenates", &[10, 30, 60], unet);
    family(cases, "size_concat_of_unlike_symbols", &[100, 1000, 3000], concat_symbols);
    family(cases, "size_flatten_of_symbols", &[10, 100, 1000], flatten_symbols);
    family(cases, "size_flatten_of_padded_symbols", &[8, 12, 16, 24, 100], flatten_padded);
    family(cases, "size_doubled_static", &[30, 60, 64, 200], |n| doubled(n, 3));
    family(cases, "size_doubled_symbolic", &[30, 60, 64, 200], |n| doubled(n, "n"));
    family(cases, "size_arithmetic_of_many_elements", &[100, 1000, 4000], many_elements);
    family(cases, "size_reshape_by_arithmetic", &[10, 40], reshape_by_arithmetic);
    family(cases, "size_ranges_of_arithmetic", &[10, 40], ranges);
    family(cases, "size_slices_by_arithmetic", &[10, 40, 200], slices);
    family(cases, "symbols_added_pairwise", &[100, 1000, 3000], added_symbols);
    family(cases, "symbols_of_unlike_inputs", &[1000, 5000], unlike_inputs);
    family(cases, "rank_of_static_ones", &[64, 1000, 5000, 100_000], |n| rank(vec!["1".to_string(); n]));
    family(cases, "rank_of_static_twos", &[40, 64, 5000], |n| rank(vec!["2".to_string(); n]));
    family(cases, "rank_of_symbols", &[64, 1000, 5000], |n| {
        rank((0..n).map(|at| format!("d{at}")).collect())
    });
    family(cases, "rank_of_one_symbol", &[64, 1000, 5000], |n| rank(vec!["d".to_string(); n]));
    family(cases, "rank_by_reshape", &[64, 4000, 100_000], rank_by_reshape);
    family(cases, "rank_by_unsqueeze", &[64, 1000, 4000], rank_by_unsqueeze);
    family(cases, "rank_reduced", &[30, 1000, 4000], rank_reduced);
    family(cases, "rank_broadcast", &[30, 1000, 4000], rank_broadcast);
    family(cases, "rank_sliced", &[30, 1000, 4000], rank_sliced);
    family(cases, "length_of_const_of_shape", &[1 << 20, 1 << 31, 1 << 46, 1 << 62], const_of_shape);
    family(cases, "length_of_range", &[1 << 20, 1_000_000_000, 1 << 62], range);
    family(cases, "length_of_tile", &[1 << 30, 1 << 62], |n| by_repeats("Tile", n));
    family(cases, "length_of_expand", &[1 << 30, 1 << 62], |n| by_repeats("Expand", n));
    family(cases, "length_of_pad", &[1 << 30, 1 << 62], pad);
    family(cases, "length_of_one_hot", &[1 << 30, 1 << 62], one_hot);
    family(cases, "length_of_dft", &[1 << 16, 1_000_000_000, 1 << 40], dft);
    family(cases, "length_of_window", &[1 << 16, 1_000_000_000, 1 << 40], window);
    family(cases, "length_of_mel_weights", &[1 << 10, 1 << 20, 1 << 40], mel);
    family(cases, "length_of_eye_like", &[1 << 10, 1 << 24, 1 << 31], eye_like);
    family(cases, "length_of_resize", &[1 << 20, 1 << 40], resize);
    family(cases, "length_of_input", &[1 << 31, 1 << 44, i64::MAX as usize], |n| doubled(1, n));
}

/// `x' = f(x)` `n` times over the length of an input, then a tensor of that length.
fn arithmetic(n: usize, step: fn(&mut Sketch, &str) -> String) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n", "m"]);
    let shape = s.op("Shape", &[&x]);
    let zero = s.i64s(&[0]);
    let mut size = s.op("Gather", &[&shape, &zero]);
    for _ in 0..n {
        size = step(&mut s, &size);
    }
    let y = s.op("ConstantOfShape", &[&size]);
    s.giving(&y)
}

fn halves_and_thirds(n: usize) -> ModelProto {
    arithmetic(n, |s, size| {
        let (two, three) = (s.i64s(&[2]), s.i64s(&[3]));
        let (half, third) = (s.op("Div", &[size, &two]), s.op("Div", &[size, &three]));
        s.op("Add", &[&half, &third])
    })
}

fn min_and_max(n: usize) -> ModelProto {
    arithmetic(n, |s, size| {
        let (two, many) = (s.i64s(&[2]), s.i64s(&[1000]));
        let half = s.op("Div", &[size, &two]);
        let (low, high) = (s.op("Min", &[&half, &many]), s.op("Max", &[size, &many]));
        s.op("Add", &[&low, &high])
    })
}

fn remainders(n: usize) -> ModelProto {
    arithmetic(n, |s, size| {
        let (seven, eleven) = (s.i64s(&[7]), s.i64s(&[11]));
        let (a, b) = (s.op("Mod", &[size, &seven]), s.op("Mod", &[size, &eleven]));
        let sum = s.op("Add", &[&a, &b]);
        s.op("Add", &[&sum, size])
    })
}

fn by_successor(n: usize) -> ModelProto {
    arithmetic(n, |s, size| {
        let one = s.i64s(&[1]);
        let next = s.op("Add", &[size, &one]);
        s.op("Mul", &[size, &next])
    })
}

fn squared_sum(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let inputs: Vec<String> = ["a", "b", "c", "d", "e"].iter().map(|&name| s.input(&[name])).collect();
    let all = s.op_with("Concat", &refs(&inputs), vec![int("axis", 0)]);
    let mut size = s.op("Shape", &[&all]);
    for _ in 0..n {
        size = s.op("Mul", &[&size, &size]);
    }
    let y = s.op("ConstantOfShape", &[&size]);
    s.giving(&y)
}

fn pooled(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1", "1", "h", "w"]);
    for _ in 0..n {
        let pads = ints("pads", &[1, 1, 1, 1]);
        x = s.op_with("MaxPool", &[&x], vec![ints("kernel_shape", &[3, 3]), ints("strides", &[2, 2]), pads]);
    }
    s.giving(&x)
}

/// The length becomes that of a half and a third of it, put together.
fn unet(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1", "1", "n"]);
    for _ in 0..n {
        let by = |by| vec![ints("kernel_shape", &[by]), ints("strides", &[by])];
        let (a, b) = (s.op_with("MaxPool", &[&x], by(2)), s.op_with("MaxPool", &[&x], by(3)));
        x = s.op_with("Concat", &[&a, &b], vec![int("axis", 2)]);
    }
    s.giving(&x)
}

fn concat_symbols(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let inputs: Vec<String> = (0..n).map(|at| s.input(&[format!("n{at}")])).collect();
    let y = s.op_with("Concat", &refs(&inputs), vec![int("axis", 0)]);
    s.giving(&y)
}

fn flatten_symbols(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&(0..n).map(|at| format!("n{at}")).collect::<Vec<_>>());
    let y = s.op_with("Flatten", &[&x], vec![int("axis", 0)]);
    s.giving(&y)
}

/// A product of sums: one term per subset of the symbols.
fn flatten_padded(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&(0..n).map(|at| format!("n{at}")).collect::<Vec<_>>());
    let pads = s.i64s(&vec![1; 2 * n]);
    let padded = s.op("Pad", &[&x, &pads]);
    let y = s.op_with("Flatten", &[&padded], vec![int("axis", 0)]);
    s.giving(&y)
}

fn doubled(n: usize, size: impl ToString) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&[size]);
    for _ in 0..n {
        x = s.op_with("Concat", &[&x, &x], vec![int("axis", 0)]);
    }
    s.giving(&x)
}

fn many_elements(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n", "m"]);
    let shape = s.op("Shape", &[&x]);
    let count = s.i64s(&[n as i64]);
    let mut size = s.op("Tile", &[&shape, &count]);
    for _ in 0..40 {
        let three = s.i64s(&[3]);
        let third = s.op("Div", &[&size, &three]);
        size = s.op("Add", &[&size, &third]);
    }
    let y = s.op_with("ReduceSum", &[&size], vec![int("keepdims", 1)]);
    let y = s.op("ConstantOfShape", &[&y]);
    s.giving(&y)
}

/// Every step reshapes to a size computed from the last.
fn reshape_by_arithmetic(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n"]);
    for _ in 0..n {
        let shape = s.op("Shape", &[&x]);
        let (two, rest) = (s.i64s(&[2]), s.i64s(&[-1]));
        let half = s.op("Div", &[&shape, &two]);
        let to = s.op_with("Concat", &[&half, &rest], vec![int("axis", 0)]);
        let pair = s.op("Reshape", &[&x, &to]);
        let sum = s.op_with("ReduceSum", &[&pair], vec![int("keepdims", 0)]);
        let expanded = s.op("Expand", &[&sum, &half]);
        x = s.op_with("Concat", &[&expanded, &x], vec![int("axis", 0)]);
    }
    s.giving(&x)
}

fn ranges(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input_of(DataType::Int64, &["n"]);
    for _ in 0..n {
        let shape = s.op("Shape", &[&x]);
        let empty = s.i64s(&[]);
        let size = s.op("Reshape", &[&shape, &empty]);
        let (zero, three) = (s.i64(0), s.i64(3));
        let range = s.op("Range", &[&zero, &size, &three]);
        x = s.op_with("Concat", &[&range, &x], vec![int("axis", 0)]);
    }
    s.giving(&x)
}

fn slices(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n"]);
    for at in 0..n {
        let shape = s.op("Shape", &[&x]);
        let three = s.i64s(&[3 + at as i64]);
        let (start, axis, step) = (s.op("Div", &[&shape, &three]), s.i64s(&[0]), s.i64s(&[1]));
        x = s.op("Slice", &[&x, &start, &shape, &axis, &step]);
    }
    s.giving(&x)
}

/// `x0 + x1 + ..` where every operand has a symbol of its own as its length.
fn added_symbols(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut sum = s.input(&["n0"]);
    for at in 1..n {
        let x = s.input(&[format!("n{at}")]);
        sum = s.op("Add", &[&sum, &x]);
    }
    s.giving(&sum)
}

fn unlike_inputs(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    for at in 0..n {
        let x = s.input(&[format!("n{at}")]);
        let y = s.op("Relu", &[&x]);
        let z = s.op("Softmax", &[&y]);
        s.output(&z);
    }
    s.model()
}

fn rank(dims: Vec<String>) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&dims);
    let y = s.op("Relu", &[&x]);
    let y = s.op("Transpose", &[&y]);
    s.giving(&y)
}

fn rank_by_reshape(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n"]);
    let mut dims = vec![1; n];
    dims[n / 2] = -1;
    let shape = s.i64s(&dims);
    let y = s.op("Reshape", &[&x, &shape]);
    let y = s.op("Exp", &[&y]);
    s.giving(&y)
}

fn rank_by_unsqueeze(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "3"]);
    let axis = s.i64s(&[1]);
    for _ in 0..n {
        x = s.op("Unsqueeze", &[&x, &axis]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn rank_reduced(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&vec!["n"; n]);
    let axes = s.i64s(&(0..n as i64).step_by(2).collect::<Vec<_>>());
    let y = s.op("ReduceSum", &[&x, &axes]);
    s.giving(&y)
}

fn rank_broadcast(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let odd: Vec<&str> = (0..n).map(|at| if at % 2 == 0 { "a" } else { "1" }).collect();
    let even: Vec<&str> = (0..n).map(|at| if at % 2 == 0 { "1" } else { "b" }).collect();
    let (a, b) = (s.input(&odd), s.input(&even));
    let y = s.op("Add", &[&a, &b]);
    s.giving(&y)
}

fn rank_sliced(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&vec!["n"; n]);
    let (starts, ends) = (s.i64s(&vec![1; n]), s.i64s(&vec![i64::MAX; n]));
    let y = s.op("Slice", &[&x, &starts, &ends]);
    s.giving(&y)
}

fn const_of_shape(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1"]);
    let shape = s.i64s(&[n as i64]);
    let ones = s.op("ConstantOfShape", &[&shape]);
    let y = s.op("Add", &[&ones, &x]);
    s.giving(&y)
}

fn range(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::Int64, &["1"]);
    let (start, end, step) = (s.i64(0), s.i64(n as i64), s.i64(1));
    let range = s.op("Range", &[&start, &end, &step]);
    let y = s.op("Add", &[&range, &x]);
    s.giving(&y)
}

fn by_repeats(op_type: &str, n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1"]);
    let repeats = s.i64s(&[n as i64]);
    let y = s.op(op_type, &[&x, &repeats]);
    s.giving(&y)
}

fn pad(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n"]);
    let pads = s.i64s(&[n as i64, n as i64]);
    let y = s.op("Pad", &[&x, &pads]);
    s.giving(&y)
}

fn one_hot(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::Int64, &["n"]);
    let (depth, values) = (s.i64(n as i64), s.f32s(&[2], vec![0.0, 1.0]));
    let y = s.op("OneHot", &[&x, &depth, &values]);
    s.giving(&y)
}

fn dft(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1".to_string(), n.to_string(), "1".to_string()]);
    let y = s.op("DFT", &[&x]);
    s.giving(&y)
}

fn window(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let size = s.i64(n as i64);
    let y = s.op("HannWindow", &[&size]);
    s.giving(&y)
}

fn mel(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (bins, length, rate) = (s.i64(n as i64), s.i64(n as i64), s.i64(16000));
    let (low, high) = (s.f32s(&[], vec![0.0]), s.f32s(&[], vec![8000.0]));
    let y = s.op("MelWeightMatrix", &[&bins, &length, &rate, &low, &high]);
    s.giving(&y)
}

fn eye_like(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&[n, n]);
    let y = s.op("EyeLike", &[&x]);
    s.giving(&y)
}

fn resize(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1", "1", "8", "8"]);
    let sizes = s.i64s(&[1, 1, n as i64, n as i64]);
    let y = s.op("Resize", &[&x, "", "", &sizes]);
    s.giving(&y)
}
