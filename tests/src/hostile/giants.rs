//! Operators whose attributes or constants ask for giant results.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{attribute, f32_tensor, i64_tensor, int, ints};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{AttributeProto, ModelProto, SparseTensorProto};

use super::sketch::{Sketch, floats, text};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "giant_hidden_size_of_lstm", &[1 << 12, 1 << 30, 1 << 60], |n| recurrent("LSTM", 4, n));
    family(cases, "giant_hidden_size_of_gru", &[1 << 12, 1 << 30, 1 << 60], |n| recurrent("GRU", 3, n));
    family(cases, "giant_sequence_of_rnn", &[1 << 20, 1 << 40], long_sequence);
    family(cases, "giant_strides_of_conv_transpose", &[1 << 10, 1 << 20, 1 << 40], |n| {
        transposed("strides", n)
    });
    family(cases, "giant_output_of_conv_transpose", &[1 << 10, 1 << 40], |n| transposed("output_shape", n));
    family(cases, "giant_scale_of_resize", &[1 << 20, 1 << 40], scales);
    family(cases, "giant_output_of_max_unpool", &[1 << 16, 1 << 40], max_unpool);
    family(cases, "giant_output_of_col2im", &[1 << 16, 1 << 40], col2im);
    family(cases, "giant_output_of_roi_align", &[1 << 10, 1 << 40], roi_align);
    family(cases, "giant_grid", &[1 << 10, 1 << 31], affine_grid);
    family(cases, "giant_crop", &[1 << 31, 1 << 62], center_crop);
    family(cases, "giant_random_numbers", &[1 << 31, 1 << 62], random);
    family(cases, "giant_range_of_floats", &[1 << 20, 1 << 40], float_range);
    family(cases, "giant_frame_of_stft", &[1 << 12, 1 << 40], stft);
    family(cases, "giant_sparse_constant", &[1 << 20, 1 << 40, 1 << 62], sparse_constant);
    family(cases, "giant_trilu", &[1 << 10, 1 << 31], trilu);
    family(cases, "giant_k_of_top_k", &[1 << 20, 1 << 62], top_k);
    family(cases, "giant_local_response", &[1 << 20, 1 << 62], local_response);
    family(cases, "giant_power_of_lp_pool", &[1 << 10, 1 << 62], lp_pool);
}

fn recurrent(op_type: &str, gates: usize, hidden: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4", "1", "4"]);
    let rows = gates.saturating_mul(hidden).min(i64::MAX as usize);
    let (w, r) = (s.input(&[1, rows, 4]), s.input(&[1, rows, hidden]));
    let y = s.op_with(op_type, &[&x, &w, &r], vec![int("hidden_size", hidden as i64)]);
    s.giving(&y)
}

fn long_sequence(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, w, r) = (s.input(&[n, 1, 4]), s.input(&[1, 4, 4]), s.input(&[1, 4, 4]));
    let y = s.op_with("RNN", &[&x, &w, &r], vec![int("hidden_size", 4)]);
    s.giving(&y)
}

fn transposed(name: &str, n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, w) = (s.input(&[1, 1, 4, 4]), s.f32s(&[1, 1, 3, 3], vec![1.0; 9]));
    let y = s.op_with("ConvTranspose", &[&x, &w], vec![ints(name, &[n as i64; 2])]);
    s.giving(&y)
}

fn scales(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, scales) = (s.input(&["1", "1", "h", "w"]), s.f32s(&[4], vec![1.0, 1.0, n as f32, 1e-30]));
    let y = s.op_with("Resize", &[&x, "", &scales], vec![text("mode", "cubic")]);
    s.giving(&y)
}

fn max_unpool(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, places) = (s.input(&[1, 1, 2, 2]), s.input_of(DataType::Int64, &[1, 1, 2, 2]));
    let shape = s.i64s(&[1, 1, n as i64, n as i64]);
    let y = s.op_with("MaxUnpool", &[&x, &places, &shape], vec![ints("kernel_shape", &[2, 2])]);
    s.giving(&y)
}

fn col2im(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1", "4", "l"]);
    let (image, block) = (s.i64s(&[n as i64; 2]), s.i64s(&[2, 2]));
    let y = s.op("Col2Im", &[&x, &image, &block]);
    s.giving(&y)
}

fn roi_align(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, regions) = (s.input(&["1", "1", "h", "w"]), s.input(&["r", "4"]));
    let batches = s.input_of(DataType::Int64, &["r"]);
    let sizes = ["output_height", "output_width", "sampling_ratio"].map(|name| int(name, n as i64));
    let y = s.op_with("RoiAlign", &[&x, &regions, &batches], sizes.to_vec());
    s.giving(&y)
}

fn affine_grid(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (theta, size) = (s.input(&["1", "2", "3"]), s.i64s(&[1, 1, n as i64, n as i64]));
    let grid = s.op("AffineGrid", &[&theta, &size]);
    let x = s.input(&["1", "1", "h", "w"]);
    let y = s.op("GridSample", &[&x, &grid]);
    s.giving(&y)
}

fn center_crop(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, shape) = (s.input(&["h", "w"]), s.i64s(&[n as i64; 2]));
    let y = s.op("CenterCropPad", &[&x, &shape]);
    s.giving(&y)
}

fn random(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1"]);
    let numbers = s.op_with("RandomNormal", &[], vec![ints("shape", &[n as i64; 3])]);
    let y = s.op("Add", &[&x, &numbers]);
    s.giving(&y)
}

fn float_range(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1"]);
    let (start, end) = (s.f32s(&[], vec![0.0]), s.f32s(&[], vec![1.0]));
    let step = s.f32s(&[], vec![1.0 / n as f32]);
    let range = s.op("Range", &[&start, &end, &step]);
    let y = s.op("Mul", &[&x, &range]);
    s.giving(&y)
}

fn stft(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, step, length) = (s.input(&["1", "n", "1"]), s.i64(1), s.i64(n as i64));
    let y = s.op("STFT", &[&x, &step, "", &length]);
    s.giving(&y)
}

fn sparse_constant(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1"]);
    let tensor = SparseTensorProto {
        values: Some(f32_tensor("values", &[2], vec![1.0; 2])),
        indices: Some(i64_tensor("indices", &[2], vec![0, n as i64 - 1])),
        dims: vec![n as i64],
    };
    let sparse = AttributeProto {
        sparse_tensor: Some(Box::new(tensor)),
        ..attribute("sparse_value", AttributeType::SparseTensor)
    };
    let constant = s.op_with("Constant", &[], vec![sparse]);
    let y = s.op("Add", &[&x, &constant]);
    s.giving(&y)
}

fn trilu(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let shape = s.i64s(&[n as i64; 2]);
    let (ones, x) = (s.op("ConstantOfShape", &[&shape]), s.input(&["1"]));
    let lower = s.op("Trilu", &[&ones]);
    let y = s.op("Add", &[&lower, &x]);
    s.giving(&y)
}

fn top_k(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, k) = (s.input(&[n]), s.i64s(&[n as i64]));
    let results = s.ops("TopK", &[&x, &k], vec![], 2);
    s.giving(&results[0])
}

fn local_response(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1", "8", "h", "w"]);
    let y = s.op_with("LRN", &[&x], vec![int("size", n as i64), floats("unknown", vec![])]);
    s.giving(&y)
}

fn lp_pool(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["1", "1", "h", "w"]);
    let y = s.op_with("LpPool", &[&x], vec![int("p", n as i64), ints("kernel_shape", &[2, 2])]);
    s.giving(&y)
}
