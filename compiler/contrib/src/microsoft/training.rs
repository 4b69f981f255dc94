//! What the training graphs of ONNX Runtime are made of: derivatives of operators, accumulators of gradients, and optimizers.
//! There these write into their inputs; here what they would write is an output.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{BF16, F16, F32, F64, I32, I64};
use onnxc_ir::graph::Op;
use onnxc_ops::activation::{exact_gelu, fast_gelu, swish_of};
use onnxc_ops::conv::{self, convolve, plan};
use onnxc_ops::gradient::pulled_back;
use onnxc_ops::loss::likelihood_loss;
use onnxc_ops::norm::batch_normalization;
use onnxc_ops::pool::averaged;
use onnxc_ops::row::*;
use onnxc_ops::softmax::on_rows_of;
use onnxc_ops::spatial::{channels_first, channels_last};

const T: &[(&str, &[DType])] = &[("T", &[F16, BF16, F32, F64])];
const T_I: &[(&str, &[DType])] = &[("T", &[F16, BF16, F32, F64]), ("I", &[I32, I64])];
const DX: &[Param] = &[req("dX", "T")];
const OF_X: &[Param] = &[req("dY", "T"), req("X", "T")];
const OF_Y: &[Param] = &[req("dY", "T"), req("Y", "T")];
const SAME_X: &[&str] = &["dY[S..]", "X[S..]"];
const SAME_Y: &[&str] = &["dY[S..]", "Y[S..]"];
const S: &[ItemKind] = &[ItemKind::Sequence];

const MAX_POOL: &[AttrDef] = &[
    string("auto_pad", "NOTSET"),
    int("ceil_mode", 0),
    optional("dilations", Ints),
    required("kernel_shape", Ints),
    optional("pads", Ints),
    int("storage_order", 0),
    optional("strides", Ints),
];

const AVERAGE_POOL: &[AttrDef] = &[
    string("auto_pad", "NOTSET"),
    int("ceil_mode", 0),
    int("count_include_pad", 0),
    required("kernel_shape", Ints),
    optional("pads", Ints),
    optional("strides", Ints),
];

const LOSS: &[AttrDef] = &[optional("ignore_index", Int), string("reduction", "mean")];

pub const ROWS: &[OpDef] = &[
    own("ReluGrad", relu).inputs(OF_X).outputs(DX).types(T).shapes(SAME_X).doc("The derivative of Relu"),
    own("SigmoidGrad", sigmoid)
        .inputs(OF_Y)
        .outputs(DX)
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of Sigmoid, by its result"),
    own("TanhGrad", tanh)
        .inputs(OF_Y)
        .outputs(DX)
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of Tanh, by its result"),
    own("LeakyReluGrad", leaky_relu)
        .inputs(OF_Y)
        .outputs(DX)
        .attributes(&[float("alpha", 0.01)])
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of LeakyRelu, by its result"),
    own("GeluGrad", |cx| of_function(cx, |cx, x| exact_gelu(cx.b, x)))
        .inputs(OF_X)
        .outputs(DX)
        .types(T)
        .shapes(SAME_X)
        .doc("The derivative of Gelu"),
    own("FastGeluGrad", |cx| of_function(cx, |cx, x| fast_gelu(cx.b, x)))
        .inputs(OF_X)
        .outputs(DX)
        .types(T)
        .shapes(SAME_X)
        .doc("The derivative of Gelu by way of tanh"),
    own("QuickGeluGrad", |cx| of_function(cx, quick_gelu))
        .inputs(OF_X)
        .outputs(DX)
        .attributes(&[float("alpha", 1.702)])
        .types(T)
        .shapes(SAME_X)
        .doc("The derivative of QuickGelu"),
    own("AbsGrad", |cx| of_function(cx, |cx, x| cx.b.unary(UnaryFn::Abs, x)))
        .inputs(OF_X)
        .outputs(DX)
        .types(T)
        .shapes(SAME_X)
        .doc("The derivative of Abs"),
    own("LogGrad", |cx| of_function(cx, |cx, x| cx.b.unary(UnaryFn::Log, x)))
        .inputs(OF_X)
        .outputs(DX)
        .types(T)
        .shapes(SAME_X)
        .doc("The derivative of Log"),
    own("SoftmaxGrad_13", |cx| softmax(cx, false, false))
        .inputs(OF_Y)
        .outputs(DX)
        .attributes(&[int("axis", -1)])
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of Softmax, by its result"),
    own("SoftmaxGrad", |cx| softmax(cx, true, false))
        .inputs(OF_Y)
        .outputs(DX)
        .attributes(&[int("axis", 1)])
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of Softmax before opset 13, by its result"),
    own("LogSoftmaxGrad_13", |cx| softmax(cx, false, true))
        .inputs(OF_Y)
        .outputs(DX)
        .attributes(&[int("axis", -1)])
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of LogSoftmax, by its result"),
    own("LogSoftmaxGrad", |cx| softmax(cx, true, true))
        .inputs(OF_Y)
        .outputs(DX)
        .attributes(&[int("axis", 1)])
        .types(T)
        .shapes(SAME_Y)
        .doc("The derivative of LogSoftmax before opset 13, by its result"),
    own("Scale", scale)
        .inputs(&[req("input", "T"), req("scale", "S")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("scale_down", 0)])
        .types(&[("T", &[F16, BF16, F32, F64]), ("S", &[F16, BF16, F32, F64, I32, I64])])
        .shapes(&["count(scale) = 1"])
        .doc("A tensor times or by a scalar"),
    own("SoftmaxCrossEntropyLossGrad", |cx| cross_entropy(cx, None))
        .inputs(&[req("dY", "T"), req("log_prob", "T"), req("label", "I"), opt("weight", "T")])
        .outputs(&[req("d_logits", "T")])
        .attributes(LOSS)
        .types(T_I)
        .shapes(&["log_prob[N, C, D..]", "label[N, D..]", "weight[C]"])
        .doc("The derivative of SoftmaxCrossEntropyLoss"),
    own("SoftmaxCrossEntropyLossInternal", internal_loss)
        .inputs(&[
            req("scores", "T"),
            req("labels", "I"),
            opt("weights", "T"),
            opt("ignore_index", "tensor(int64)"),
        ])
        .outputs(&[req("output", "T"), opt("log_prob", "T")])
        .attributes(&[string("reduction", "mean"), optional("output_type", Int)])
        .types(T_I)
        .shapes(&["scores[N, C, D..]", "labels[N, D..]", "weights[C]", "count(ignore_index) = 1"])
        .doc("SoftmaxCrossEntropyLoss with an input that says which class is ignored"),
    own("SoftmaxCrossEntropyLossInternalGrad", |cx| cross_entropy(cx, Some(4)))
        .inputs(&[
            req("dY", "T"),
            req("log_prob", "T"),
            req("label", "I"),
            opt("weight", "T"),
            opt("ignore_index", "tensor(int64)"),
        ])
        .outputs(&[req("d_logits", "T")])
        .attributes(&[string("reduction", "mean"), optional("output_type", Int)])
        .types(T_I)
        .shapes(&["log_prob[N, C, D..]", "label[N, D..]", "weight[C]", "count(ignore_index) = 1"])
        .doc("The derivative of SoftmaxCrossEntropyLossInternal"),
    own("LayerNormalizationGrad", |cx| layer_normalization(cx, true))
        .inputs(&[
            req("Y_grad", "T"),
            req("X", "T"),
            req("scale", "T"),
            req("mean", "U"),
            req("inv_std_dev", "U"),
        ])
        .outputs(&[req("X_grad", "T"), req("scale_grad", "T"), req("bias_grad", "T")])
        .attributes(&[int("axis", -1), float("epsilon", 1e-5), int("stash_type", 1)])
        .types(&[("T", &[F16, BF16, F32, F64]), ("U", &[F32, F64])])
        .shapes(&["Y_grad[S..]", "X[S..]"])
        .doc("The derivatives of LayerNormalization, by its statistics"),
    own("SimplifiedLayerNormalizationGrad", |cx| layer_normalization(cx, false))
        .inputs(&[req("Y_grad", "T"), req("X", "T"), req("scale", "T"), req("inv_std_var", "U")])
        .outputs(&[req("X_grad", "T"), req("scale_grad", "T")])
        .attributes(&[int("axis", -1), float("epsilon", 1e-5), int("stash_type", 1)])
        .types(&[("T", &[F16, BF16, F32, F64]), ("U", &[F32, F64])])
        .shapes(&["Y_grad[S..]", "X[S..]"])
        .doc("The derivatives of SimplifiedLayerNormalization, by its statistics"),
    own("BatchNormInternal", batch_internal)
        .inputs(&[
            req("X", "T"),
            req("scale", "T"),
            req("B", "T"),
            req("input_mean", "T"),
            req("input_var", "T"),
        ])
        .outputs(&[
            req("Y", "T"),
            opt("running_mean", "T"),
            opt("running_var", "T"),
            opt("saved_mean", "T"),
            opt("saved_inv_std", "T"),
        ])
        .attributes(&[float("epsilon", 1e-5), float("momentum", 0.9), int("training_mode", 0)])
        .types(T)
        .shapes(&["X[N, C, ..]", "scale[C]", "B[C]", "input_mean[C]", "input_var[C]"])
        .doc("BatchNormalization that also gives the statistics of the batch"),
    own("BatchNormalizationGrad", batch_gradient)
        .inputs(&[req("dY", "T"), req("X", "T"), req("scale", "T"), req("mean", "T"), req("inv_std", "T")])
        .outputs(&[req("X_grad", "T"), req("scale_grad", "T"), req("bias_grad", "T")])
        .attributes(&[float("epsilon", 1e-5)])
        .types(T)
        .shapes(&["dY[N, C, R..]", "X[N, C, R..]", "scale[C]", "mean[C]", "inv_std[C]"])
        .doc("The derivatives of BatchNormalization in training, by the statistics of the batch"),
    own("ConvGrad", convolution)
        .inputs(&[req("dY", "T"), req("X", "T"), req("W", "T")])
        .outputs(&[opt("dX", "T"), req("dW", "T"), opt("dB", "T")])
        .attributes(conv::ATTRIBUTES)
        .types(T)
        .shapes(&["X[N, C, D..]", "W[M, G, K..]", "len(K) = len(D)", "C = G * group"])
        .doc("The derivatives of Conv"),
    own("MaxPoolGrad", max_pool)
        .inputs(&[req("dY", "T"), req("Indices", "I")])
        .outputs(DX)
        .attributes(MAX_POOL)
        .types(T_I)
        .shapes(&["dY[R..]", "Indices[R..]"])
        .doc("The derivative of MaxPool, by its indices")
        .domain("")
        .since(9),
    own("AveragePoolGrad", average_pool)
        .inputs(&[req("dY", "T")])
        .outputs(DX)
        .attributes(AVERAGE_POOL)
        .types(T)
        .doc("The derivative of AveragePool")
        .domain("")
        .since(9),
    own("GatherGrad", |cx| gathered(cx, [0, 1, 2]))
        .inputs(&[req("shape", "tensor(int64)"), req("indices", "I"), req("dY", "T")])
        .outputs(DX)
        .attributes(&[int("axis", 0)])
        .types(T_I)
        .shapes(&["shape[_]"])
        .doc("The derivative of Gather"),
    own("GatherElementsGrad", |cx| gathered(cx, [1, 2, 0]))
        .inputs(&[req("dY", "T"), req("shape", "tensor(int64)"), req("indices", "I")])
        .outputs(DX)
        .attributes(&[int("axis", 0)])
        .types(T_I)
        .shapes(&["shape[_]"])
        .doc("The derivative of GatherElements"),
    own("GatherNDGrad", |cx| gathered(cx, [0, 1, 2]))
        .inputs(&[req("shape", "tensor(int64)"), req("indices", "I"), req("update", "T")])
        .outputs(DX)
        .attributes(&[int("batch_dims", 0)])
        .types(T_I)
        .shapes(&["shape[_]"])
        .doc("The derivative of GatherND"),
    own("DropoutGrad", dropout)
        .inputs(&[req("dy", "T"), req("mask", "B"), opt("ratio", "T1"), opt("training_mode", "B")])
        .outputs(&[req("dx", "T")])
        .types(&[("T", &[F16, BF16, F32, F64]), ("T1", &[F16, BF16, F32, F64]), ("B", BOOL)])
        .shapes(&["dy[S..]", "mask[S..]", "count(ratio) = 1", "count(training_mode) = 1"])
        .doc("The derivative of Dropout, by its mask"),
    own("ConcatTraining", concat)
        .inputs(&[var("inputs", "T")])
        .outputs(&[req("concat_result", "T"), opt("per_input_length", "tensor(int64)")])
        .attributes(&[required("axis", Int)])
        .types(&[("T", ALL_BF16)])
        .doc("Concat that also gives the size of each input"),
    own("InPlaceAccumulatorV2", accumulator)
        .inputs(&[req("accumulation_buffer", "T"), req("value", "U"), opt("overwrite_flag", "B")])
        .outputs(&[req("updated_flag", "B"), opt("accumulation_buffer_out", "T")])
        .types(&[("T", &[F16, BF16, F32]), ("U", &[F16, BF16, F32]), ("B", BOOL)])
        .shapes(&["accumulation_buffer[S..]", "value[S..]", "count(overwrite_flag) = 1"])
        .doc("A sum of gradients; a flag lets it begin anew"),
    own("InPlaceAccumulator", accumulated)
        .inputs(&[req("old_sum", "T"), req("value", "U"), opt("update_signal", "B")])
        .outputs(&[req("new_sum", "T")])
        .types(&[("T", &[F16, BF16, F32]), ("U", &[F16, BF16, F32]), ("B", BOOL)])
        .shapes(&["old_sum[S..]", "value[S..]", "count(update_signal) = 1"])
        .doc("A sum of gradients"),
    own("AdamWOptimizer", adam_w)
        .inputs(&[
            req("lr", "R"),
            req("step", "tensor(int64)"),
            req("weights", "S").of(S),
            req("gradients", "S").of(S),
            req("momentums_1", "S").of(S),
            req("momentums_2", "S").of(S),
            opt("update_signal", "B"),
        ])
        .outputs(&[
            req("updated_flag", "B"),
            opt("updated_weights", "S").of(S),
            opt("updated_momentums_1", "S").of(S),
            opt("updated_momentums_2", "S").of(S),
        ])
        .attributes(&[
            int("adam_mode", 0),
            float("alpha", 0.9),
            float("beta", 0.999),
            int("correct_bias", 1),
            float("epsilon", 1e-8),
            float("weight_decay", 0.01),
        ])
        .types(&[("R", &[F32]), ("S", &[F32]), ("B", BOOL)])
        .shapes(&["count(lr) = 1", "count(step) = 1", "count(update_signal) = 1"])
        .doc("One step of AdamW for all weights"),
    own("SGDOptimizerV2", sgd)
        .inputs(&[
            req("lr", "R"),
            req("weights", "S").of(S),
            req("gradients", "S").of(S),
            opt("update_signal", "B"),
        ])
        .outputs(&[req("updated_flag", "B"), opt("updated_weights", "S").of(S)])
        .types(&[("R", &[F32]), ("S", &[F32]), ("B", BOOL)])
        .shapes(&["count(lr) = 1", "count(update_signal) = 1"])
        .doc("One step along the gradients for all weights"),
];

fn relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, x) = (cx.input("dY")?, cx.input("X")?);
    let zero = cx.b.scalar(cx.b.dtype(x), 0.0);
    let above = cx.b.compare(CompareFn::Gt, x, zero)?;
    Ok(vec![cx.b.select(above, g, zero)?])
}

fn leaky_relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, y) = (cx.input("dY")?, cx.input("Y")?);
    let alpha = f64::from(cx.float("alpha")?);
    let zero = cx.b.scalar(cx.b.dtype(y), 0.0);
    let (above, scaled) =
        (cx.b.compare(CompareFn::Gt, y, zero)?, cx.b.binary_scalar(BinaryFn::Mul, g, alpha)?);
    Ok(vec![cx.b.select(above, g, scaled)?])
}

/// `dY * Y * (1 - Y)`
fn sigmoid(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, y) = (cx.input("dY")?, cx.input("Y")?);
    let one = cx.b.scalar(cx.b.dtype(y), 1.0);
    let rest = cx.b.binary(BinaryFn::Sub, one, y)?;
    let slope = cx.b.binary(BinaryFn::Mul, y, rest)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, g, slope)?])
}

/// `dY * (1 - Y^2)`
fn tanh(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, y) = (cx.input("dY")?, cx.input("Y")?);
    let one = cx.b.scalar(cx.b.dtype(y), 1.0);
    let square = cx.b.binary(BinaryFn::Mul, y, y)?;
    let slope = cx.b.binary(BinaryFn::Sub, one, square)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, g, slope)?])
}

fn quick_gelu(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let alpha = cx.float("alpha")?;
    swish_of(cx.b, x, alpha)
}

/// The derivative of a function of input 1, by the adjoint in input 0.
fn of_function(
    cx: &mut NodeCx<'_, '_>,
    function: fn(&mut NodeCx<'_, '_>, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let (g, x) = (cx.input(0)?, cx.input(1)?);
    pulled_back(cx, g, &[x], |cx, x| function(cx, x[0]))
}

/// `Y * (dY - sum(dY * Y))`, or, of logarithms, `dY - exp(Y) * sum(dY)`, along an axis, or all from it on.
fn softmax(cx: &mut NodeCx<'_, '_>, coerced: bool, logarithmic: bool) -> Result<Vec<ValueId>> {
    let (g, y, axis) = (cx.input(0)?, cx.input(1)?, cx.int("axis")?);
    let total: fn(&mut Builder<'_>, ValueId, usize) -> Result<ValueId> = |b, x, axis| {
        let sum = b.reduce(ReduceFn::Sum, x, &[axis])?;
        b.expand(sum, b.shape(x))
    };
    if logarithmic {
        let (sum, exp) = (on_rows_of(cx.b, g, axis, coerced, total)?, cx.b.unary(UnaryFn::Exp, y)?);
        let product = cx.b.binary(BinaryFn::Mul, exp, sum)?;
        return Ok(vec![cx.b.binary(BinaryFn::Sub, g, product)?]);
    }
    let product = cx.b.binary(BinaryFn::Mul, g, y)?;
    let sum = on_rows_of(cx.b, product, axis, coerced, total)?;
    let rest = cx.b.binary(BinaryFn::Sub, g, sum)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, rest, y)?])
}

fn scale(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, by) = (cx.input(0)?, cx.input(1)?);
    let by = to_scalar(cx, by)?;
    let by = cx.b.cast(by, cx.b.dtype(x))?;
    let function = if cx.int("scale_down")? != 0 { BinaryFn::Div } else { BinaryFn::Mul };
    Ok(vec![cx.b.binary(function, x, by)?])
}

/// The class that input `at` says is ignored: a constant, if it is given.
fn ignored(cx: &NodeCx<'_, '_>, at: usize) -> Result<Option<i64>> {
    match cx.optional(at) {
        Some(_) => Ok(cx.const_input(at)?.first().copied()),
        None => Ok(None),
    }
}

fn internal_loss(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (scores, labels, weights) = (cx.input("scores")?, cx.input("labels")?, cx.optional("weights"));
    let ignored = ignored(cx, 3)?;
    let log_probabilities = onnxc_ops::softmax::log_softmax_along(cx.b, scores, 1)?;
    Ok(vec![likelihood_loss(cx, log_probabilities, labels, weights, ignored)?, log_probabilities])
}

/// By way of the logarithms: `d - exp(log_prob) * sum(d)`, where `d` is the derivative by these.
fn cross_entropy(cx: &mut NodeCx<'_, '_>, at: Option<usize>) -> Result<Vec<ValueId>> {
    let (g, log, labels, weights) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.optional(3));
    let ignored = match at {
        Some(at) => ignored(cx, at)?,
        // ONNX Runtime writes -1 where no class is ignored.
        None => cx.optional_int("ignore_index")?.filter(|&class| class != -1),
    };
    let found = pulled_back(cx, g, &[log], |cx, x| likelihood_loss(cx, x[0], labels, weights, ignored))?;
    let sum = cx.b.reduce(ReduceFn::Sum, found[0], &[1])?;
    let exp = cx.b.unary(UnaryFn::Exp, log)?;
    let product = cx.b.binary(BinaryFn::Mul, exp, sum)?;
    Ok(vec![cx.b.binary(BinaryFn::Sub, found[0], product)?])
}

/// The derivatives of `n * scale + bias` by `x`, scale and bias, where `n` is `(x - mean) * inverse`, or `x * inverse`, and the
/// statistics are those along `axes`.
fn normalization(
    b: &mut Builder<'_>,
    [g, x, scale, inverse]: [ValueId; 4],
    mean: Option<ValueId>,
    axes: &[usize],
) -> Result<[ValueId; 3]> {
    let centred = match mean {
        Some(mean) => b.binary(BinaryFn::Sub, x, mean)?,
        None => x,
    };
    let normal = b.binary(BinaryFn::Mul, centred, inverse)?;
    let of_scale = b.binary(BinaryFn::Mul, g, normal)?;
    let scaled = b.binary(BinaryFn::Mul, g, scale)?;
    let product = b.binary(BinaryFn::Mul, scaled, normal)?;
    let along = b.mean(product, axes)?;
    let along = b.binary(BinaryFn::Mul, normal, along)?;
    let mut rest = b.binary(BinaryFn::Sub, scaled, along)?;
    if mean.is_some() {
        let shift = b.mean(scaled, axes)?;
        rest = b.binary(BinaryFn::Sub, rest, shift)?;
    }
    Ok([b.binary(BinaryFn::Mul, rest, inverse)?, of_scale, g])
}

fn layer_normalization(cx: &mut NodeCx<'_, '_>, centred: bool) -> Result<Vec<ValueId>> {
    let (g, x, scale) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let statistics = (3..cx.inputs.len()).map(|at| cx.input(at)).collect::<Result<Vec<_>>>()?;
    let rank = cx.b.rank(x);
    let axis = normalize_axis(cx.int("axis")?, rank)?;
    let axes: Vec<usize> = (axis..rank).collect();
    let (dtype, parameter) = (cx.b.dtype(x), cx.b.ty(scale).clone());
    let b = &mut *cx.b;
    let [g, x, wide] = [b.widened(g)?, b.widened(x)?, b.widened(scale)?];
    let mut shape = b.shape(x);
    shape[axis..].fill(Dim::ONE);
    let mut aligned = vec![];
    for value in statistics {
        let value = b.reshape(value, shape.clone())?;
        aligned.push(b.cast(value, b.dtype(x))?);
    }
    let mean = if centred { aligned.first().copied() } else { None };
    let Some(&inverse) = aligned.last() else { return malformed("no statistics") };
    let [of_x, of_scale, of_bias] = normalization(b, [g, x, wide, inverse], mean, &axes)?;
    let lead: Vec<usize> = (0..axis).collect();
    let mut outputs = vec![b.cast(of_x, dtype)?];
    for own in if centred { vec![of_scale, of_bias] } else { vec![of_scale] } {
        let sum = b.reduce(ReduceFn::Sum, own, &lead)?;
        let sum = b.reshape(sum, parameter.shape.clone())?;
        outputs.push(b.cast(sum, parameter.dtype)?);
    }
    Ok(outputs)
}

fn batch_internal(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let epsilon = f64::from(cx.float("epsilon")?);
    let mut outputs = batch_normalization(cx)?;
    if let Some(variance) = outputs.get_mut(4) {
        let shifted = cx.b.binary_scalar(BinaryFn::Add, *variance, epsilon)?;
        let deviation = cx.b.unary(UnaryFn::Sqrt, shifted)?;
        *variance = cx.b.unary(UnaryFn::Recip, deviation)?;
    }
    Ok(outputs)
}

fn batch_gradient(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let inputs = cx.all_inputs()?;
    let b = &mut *cx.b;
    let (rank, dtype, channels) = (b.rank(inputs[1]), b.dtype(inputs[1]), b.shape(inputs[2]));
    let mut shape = vec![Dim::ONE; rank];
    shape[1] = channels[0].clone();
    let mut wide = vec![];
    for (at, value) in inputs.into_iter().enumerate() {
        let value = b.widened(value)?;
        wide.push(if at < 2 { value } else { b.reshape(value, shape.clone())? });
    }
    let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let found = normalization(b, [wide[0], wide[1], wide[2], wide[4]], Some(wide[3]), &axes)?;
    let mut outputs = vec![b.cast(found[0], dtype)?];
    for own in &found[1..] {
        let sum = b.reduce(ReduceFn::Sum, *own, &axes)?;
        let sum = b.reshape(sum, channels.clone())?;
        outputs.push(b.cast(sum, dtype)?);
    }
    Ok(outputs)
}

fn convolution(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, x, w) = (cx.input("dY")?, cx.input("X")?, cx.input("W")?);
    let mut outputs = pulled_back(cx, g, &[x, w], |cx, operands| {
        let plan = plan(cx, operands[0], operands[1])?;
        let y = convolve(cx.b, operands[0], operands[1], &plan)?;
        channels_first(cx.b, y)
    })?;
    let last = channels_last(cx.b, g)?;
    let axes: Vec<usize> = (0..cx.b.rank(last) - 1).collect();
    let sum = cx.b.reduce(ReduceFn::Sum, last, &axes)?;
    outputs.push(cx.b.squeeze(sum, &axes)?);
    Ok(outputs)
}

/// Zeros of the shape that the model declares for the result.
fn declared(cx: &mut NodeCx<'_, '_>, dtype: DType) -> Result<ValueId> {
    let Some(Some(ty)) = cx.declared.first() else {
        return unsupported("the shape of dX, which no input gives: the model must declare it");
    };
    let zero = cx.b.scalar(dtype, 0.0);
    cx.b.expand(zero, ty.shape.clone())
}

fn max_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, places) = (cx.input("dY")?, cx.input("Indices")?);
    if cx.int("storage_order")? != 0 {
        return unsupported("indices in column-major order");
    }
    let zeros = declared(cx, cx.b.dtype(g))?;
    let b = &mut *cx.b;
    let (shape, count) = (b.shape(zeros), b.ty(zeros).elements());
    let flat = b.reshape(zeros, vec![count])?;
    let each = b.ty(g).elements();
    let (g, places) = (b.reshape(g, vec![each.clone()])?, b.reshape(places, vec![each])?);
    let op = Op::ScatterElements { axis: 0, combine: Some(BinaryFn::Add) };
    let sums = b.emit1(op, &[flat, places, g])?;
    Ok(vec![b.reshape(sums, shape)?])
}

fn average_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let g = cx.input("dY")?;
    let zeros = declared(cx, cx.b.dtype(g))?;
    pulled_back(cx, g, &[zeros], |cx, x| averaged(cx, x[0]))
}

/// The adjoint is added where elements were taken; `places` are the inputs that are shape, indices and adjoint.
fn gathered(cx: &mut NodeCx<'_, '_>, [shape, indices, g]: [usize; 3]) -> Result<Vec<ValueId>> {
    let (sizes, indices, g) = (cx.sizes_input(shape)?, cx.input(indices)?, cx.input(g)?);
    let zero = cx.b.scalar(cx.b.dtype(g), 0.0);
    let zeros = cx.b.expand(zero, sizes.clone())?;
    let op = match cx.def.name {
        "GatherNDGrad" => match usize::try_from(cx.int("batch_dims")?) {
            Ok(batch) => Op::GatherNd { batch },
            Err(_) => return malformed("batch_dims is negative"),
        },
        name => {
            let axis = normalize_axis(cx.int("axis")?, sizes.len())?;
            if name == "GatherGrad" { Op::Gather { axis } } else { Op::GatherElements { axis } }
        }
    };
    pulled_back(cx, g, &[zeros], |cx, x| cx.b.emit1(op, &[x[0], indices]))
}

/// `dy * mask / (1 - ratio)` in training, else `dy`.
fn dropout(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (g, mask) = (cx.input("dy")?, cx.input("mask")?);
    let dtype = cx.b.dtype(g);
    let ratio = match cx.optional("ratio") {
        Some(ratio) => to_scalar(cx, ratio)?,
        None => cx.b.scalar(dtype, 0.5),
    };
    let ratio = cx.b.cast(ratio, dtype)?;
    let (zero, one) = (cx.b.scalar(dtype, 0.0), cx.b.scalar(dtype, 1.0));
    let kept = cx.b.binary(BinaryFn::Sub, one, ratio)?;
    let scaled = cx.b.binary(BinaryFn::Div, g, kept)?;
    let result = cx.b.select(mask, scaled, zero)?;
    let Some(training) = cx.optional("training_mode") else { return Ok(vec![result]) };
    let training = to_scalar(cx, training)?;
    Ok(vec![cx.b.select(training, result, g)?])
}

fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let parts = cx.all_inputs()?;
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(parts[0]))?;
    let dims = parts.iter().filter_map(|&part| cx.b.shape(part).get(axis).cloned()).collect();
    let sizes = cx.b.emit1(Op::DimValues { dims }, &[])?;
    Ok(vec![cx.b.concat(&parts, axis)?, sizes])
}

/// A flag that says that something was done: of input `at`, where it is given.
fn flag(cx: &mut NodeCx<'_, '_>, at: Option<usize>) -> Result<ValueId> {
    let signal = match at.and_then(|at| cx.optional(at)) {
        Some(signal) => signal,
        None => cx.b.constant(onnxc_ir::graph::Tensor::scalar(true)),
    };
    cx.b.reshape(signal, vec![Dim::ONE])
}

fn accumulator(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (sum, value) = (cx.input("accumulation_buffer")?, cx.input("value")?);
    let value = cx.b.cast(value, cx.b.dtype(sum))?;
    let mut next = cx.b.binary(BinaryFn::Add, sum, value)?;
    if let Some(anew) = cx.optional("overwrite_flag") {
        let anew = to_scalar(cx, anew)?;
        next = cx.b.select(anew, value, next)?;
    }
    Ok(vec![flag(cx, None)?, next])
}

fn accumulated(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (sum, value) = (cx.input("old_sum")?, cx.input("value")?);
    let value = cx.b.cast(value, cx.b.dtype(sum))?;
    let next = cx.b.binary(BinaryFn::Add, sum, value)?;
    let Some(signal) = cx.optional("update_signal") else { return Ok(vec![next]) };
    let signal = to_scalar(cx, signal)?;
    Ok(vec![cx.b.select(signal, next, sum)?])
}

/// The tensors of inputs that are sequences of equally many, by place.
fn lists(cx: &NodeCx<'_, '_>, inputs: &[usize]) -> Result<Vec<Vec<ValueId>>> {
    let mut all: Vec<Vec<ValueId>> = vec![];
    for &at in inputs {
        let item = cx.item(at)?;
        let Some(elements) = item.listed() else {
            let name = cx.operand_name(at);
            return unsupported(format!(
                "{name} is a sequence of unknown length; it must be made by SequenceConstruct"
            ));
        };
        if all.first().is_some_and(|first| first.len() != elements.len()) {
            let (name, count, wanted) = (cx.operand_name(at), elements.len(), all[0].len());
            return malformed(format!("{name} has {count} tensors, and the weights are {wanted}"));
        }
        all.push(elements.to_vec());
    }
    for (number, &weight) in all[0].iter().enumerate() {
        for (list, &at) in all.iter().zip(inputs).skip(1) {
            if cx.b.ty(list[number]) != cx.b.ty(weight) {
                let (name, ty, wanted) = (cx.operand_name(at), cx.b.ty(list[number]), cx.b.ty(weight));
                return malformed(format!("tensor {number} of {name} is {ty}, and the weight is {wanted}"));
            }
        }
    }
    Ok(all)
}

/// Flag and lists as results: where a signal says so, the old tensors.
fn updated(
    cx: &mut NodeCx<'_, '_>,
    signal: usize,
    old: &[Vec<ValueId>],
    new: Vec<Vec<ValueId>>,
) -> Result<Vec<ValueId>> {
    let mut results = vec![Item::Tensor(flag(cx, Some(signal))?)];
    for (old, mut new) in old.iter().zip(new) {
        if let Some(signal) = cx.optional(signal) {
            let signal = to_scalar(cx, signal)?;
            for (old, new) in old.iter().zip(&mut new) {
                *new = cx.b.select(signal, *new, *old)?;
            }
        }
        results.push(Item::list(F32, new));
    }
    cx.give(results)
}

/// `M1' = alpha * M1 + (1 - alpha) * g`, `M2' = beta * M2 + (1 - beta) * g^2`. In mode 0 (PyTorch's) weights decay first, and the root's
/// bias is corrected before epsilon is added; in mode 1 (Hugging Face's) they decay last, and it is corrected after.
fn adam_w(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let all = lists(cx, &[2, 3, 4, 5])?;
    let (rate, step) = (cx.input("lr")?, cx.input("step")?);
    let (rate, step) = (to_scalar(cx, rate)?, to_scalar(cx, step)?);
    let [alpha, beta, epsilon, decay] =
        [cx.float("alpha")?, cx.float("beta")?, cx.float("epsilon")?, cx.float("weight_decay")?]
            .map(f64::from);
    let mode = cx.int("adam_mode")?;
    if ![0, 1].contains(&mode) {
        return malformed(format!("adam_mode is {mode}; it must be 0 or 1"));
    }
    let corrects = cx.int("correct_bias")? != 0;
    let b = &mut *cx.b;
    let count = b.cast(step, F64)?;
    let one = b.scalar(F64, 1.0);
    let mut corrections = vec![];
    for base in [alpha, beta] {
        let base = b.scalar(F64, base);
        let power = b.binary(BinaryFn::Pow, base, count)?;
        let correction = b.binary(BinaryFn::Sub, one, power)?;
        let correction = if corrects { correction } else { one };
        corrections.push(correction);
    }
    let root = b.unary(UnaryFn::Sqrt, corrections[1])?;
    let (first, root) = (b.cast(corrections[0], F32)?, b.cast(root, F32)?);
    let size = b.binary(BinaryFn::Div, rate, first)?;
    let decayed = b.binary_scalar(BinaryFn::Mul, rate, decay)?;
    let mut new = vec![vec![]; 3];
    let moments = all[2].iter().zip(&all[3]);
    for ((&weight, &g), (&m, &v)) in all[0].iter().zip(&all[1]).zip(moments) {
        let mut w = weight;
        let blend = |b: &mut Builder<'_>, by: f64, old: ValueId, own: ValueId| {
            let old = b.binary_scalar(BinaryFn::Mul, old, by)?;
            let own = b.binary_scalar(BinaryFn::Mul, own, 1.0 - by)?;
            b.binary(BinaryFn::Add, old, own)
        };
        let m = blend(b, alpha, m, g)?;
        let square = b.binary(BinaryFn::Mul, g, g)?;
        let v = blend(b, beta, v, square)?;
        let deviation = b.unary(UnaryFn::Sqrt, v)?;
        let shrink = |b: &mut Builder<'_>, w: ValueId| {
            let part = b.binary(BinaryFn::Mul, w, decayed)?;
            b.binary(BinaryFn::Sub, w, part)
        };
        let move_by = |b: &mut Builder<'_>, w: ValueId, size: ValueId, divisor: ValueId| {
            let divisor = b.binary_scalar(BinaryFn::Add, divisor, epsilon)?;
            let quotient = b.binary(BinaryFn::Div, m, divisor)?;
            let step = b.binary(BinaryFn::Mul, size, quotient)?;
            b.binary(BinaryFn::Sub, w, step)
        };
        if mode == 0 {
            w = shrink(b, w)?;
            let divisor = b.binary(BinaryFn::Div, deviation, root)?;
            w = move_by(b, w, size, divisor)?;
        } else {
            let size = b.binary(BinaryFn::Mul, size, root)?;
            w = move_by(b, w, size, deviation)?;
            w = shrink(b, w)?;
        }
        for (list, value) in new.iter_mut().zip([w, m, v]) {
            list.push(value);
        }
    }
    updated(cx, 6, &[all[0].clone(), all[2].clone(), all[3].clone()], new)
}

fn sgd(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let all = lists(cx, &[1, 2])?;
    let rate = cx.input("lr")?;
    let rate = to_scalar(cx, rate)?;
    let mut new = vec![];
    for (&w, &g) in all[0].iter().zip(&all[1]) {
        let step = cx.b.binary(BinaryFn::Mul, rate, g)?;
        new.push(cx.b.binary(BinaryFn::Sub, w, step)?);
    }
    updated(cx, 3, &all[..1], vec![new])
}
