//! Losses, as nodes behind a value of the model.

use onnxc_ir::error::Result;
use onnxc_ir::graph::DType;
use onnxc_proto::{ValueInfoProto, build};

use super::writer::Writer;

/// What training makes small. All are means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Of scores and classes: over all but the axis of classes, the negative logarithm of what softmax gives the right one.
    CrossEntropy,
    /// The square of the difference.
    Mse,
    /// Of scores and numbers between 0 and 1: binary cross entropy behind a sigmoid.
    Bce,
}

/// The type of what a caller gives beside the inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    Int32,
    Int64,
    /// That in which the loss is computed: f64 for outputs of f64, else f32.
    Float,
}

/// A value of the model: dims are sizes, names of symbols, or `?`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chosen {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<String>,
}

/// A loss that is written.
pub(super) struct Written {
    pub loss: String,
    pub dtype: DType,
    /// The input with what is wanted.
    pub target: ValueInfoProto,
}

/// The version of `ai.onnx` that has SoftmaxCrossEntropyLoss.
const HAS_LOSS: i64 = 12;
/// The version that has OneHot.
const HAS_ONE_HOT: i64 = 9;

fn usage<T>(message: String) -> Result<T> {
    Err(crate::usage(message))
}

/// Writes the loss of a value. `class_axis` counts from the end where it is negative.
pub(super) fn write(
    w: &mut Writer<'_>,
    loss: Loss,
    of: &Chosen,
    label: Option<Label>,
    class_axis: i64,
) -> Result<Written> {
    let dtype = if of.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = match of.dtype == dtype {
        true => of.name.clone(),
        false => w.cast(&of.name, dtype, "scores.float"),
    };
    let label = label.unwrap_or(if loss == Loss::CrossEntropy { Label::Int64 } else { Label::Float });
    let target = w.names.fresh("target");
    let kind = match label {
        Label::Int32 => DType::I32,
        Label::Int64 => DType::I64,
        Label::Float => dtype,
    };
    let (loss, dims) = match loss {
        Loss::CrossEntropy => {
            let axis = class_axis_of(of, class_axis)?;
            let dims = |whole: bool| {
                let kept = of.dims.iter().enumerate().filter(|&(at, _)| whole || at != axis);
                kept.map(|(_, dim)| dim.clone()).collect::<Vec<_>>()
            };
            match label {
                Label::Float => (likelihood(w, &x, of, axis, dtype, &target, label), dims(true)),
                _ if w.opset >= HAS_LOSS => (classes(w, &x, of, axis, &target), dims(false)),
                _ if w.opset >= HAS_ONE_HOT => {
                    (likelihood(w, &x, of, axis, dtype, &target, label), dims(false))
                }
                _ => {
                    return usage(format!(
                        "the model imports version {} of ai.onnx, and cross entropy of class numbers needs {HAS_ONE_HOT} or newer: convert the model, or give probabilities by --label-type float",
                        w.opset
                    ));
                }
            }
        }
        Loss::Mse | Loss::Bce => {
            let t = match label {
                Label::Float => target.clone(),
                _ => w.cast(&target, dtype, "target.float"),
            };
            let loss = if loss == Loss::Mse { squares(w, &x, &t) } else { binary(w, &x, &t, dtype) };
            (loss, of.dims.clone())
        }
    };
    Ok(Written { loss, dtype, target: build::value(&target, kind.to_onnx(), &dims) })
}

/// The axis of classes of scores.
pub(super) fn class_axis_of(of: &Chosen, class_axis: i64) -> Result<usize> {
    let (rank, shown) = (of.dims.len(), format!("`{}` is {}[{}]", of.name, of.dtype, of.dims.join(", ")));
    if rank < 2 {
        return usage(format!(
            "{shown}: cross entropy takes scores of rank 2 or more, with an axis of classes; --output names another value"
        ));
    }
    let axis = if class_axis < 0 { class_axis + rank as i64 } else { class_axis };
    match usize::try_from(axis) {
        Ok(axis) if axis < rank && of.dims[axis] == "1" => usage(format!(
            "{shown}: it has one class along axis {axis}, so cross entropy is always 0; use bce or mse, or name another --class-axis"
        )),
        Ok(axis) if axis < rank => Ok(axis),
        _ => usage(format!("{shown}: it has no axis {class_axis}, which --class-axis names")),
    }
}

/// Of class numbers.
fn classes(w: &mut Writer<'_>, x: &str, of: &Chosen, axis: usize, target: &str) -> String {
    let x = moved(w, x, of.dims.len(), axis, 1, "scores.classes");
    w.node("SoftmaxCrossEntropyLoss", &[&x, target], vec![], "loss")
}

/// Of a probability for each class, which class numbers become as well. Classes come last, where LogSoftmax means the
/// same in all versions.
fn likelihood(
    w: &mut Writer<'_>,
    x: &str,
    of: &Chosen,
    axis: usize,
    dtype: DType,
    target: &str,
    label: Label,
) -> String {
    let rank = of.dims.len();
    let last = rank - 1;
    let x = moved(w, x, rank, axis, last, "scores.classes");
    let logs = w.node("LogSoftmax", &[&x], vec![build::int("axis", last as i64)], "scores.log");
    // The number of classes: as a scalar that the mean is taken times, and for OneHot.
    let (count, depth) = match of.dims[axis].parse::<i64>() {
        Ok(size) => {
            (w.floats(dtype, &[], &[size as f64], "classes"), w.integers(&[], &[size], "classes.depth"))
        }
        Err(_) => {
            let shape = w.node("Shape", &[&x], vec![], "scores.shape");
            let at = w.integers(&[], &[last as i64], "classes.axis");
            let depth = w.node("Gather", &[&shape, &at], vec![], "classes.depth");
            (w.cast(&depth, dtype, "classes"), depth)
        }
    };
    let targets = if label == Label::Float {
        moved(w, target, rank, axis, last, "target.classes")
    } else {
        let values = w.floats(dtype, &[2], &[0.0, 1.0], "target.values");
        w.node("OneHot", &[target, &depth, &values], vec![], "target.classes")
    };
    let products = w.node("Mul", &[&logs, &targets], vec![], "target.log");
    let mean = w.mean(&products, "target.mean");
    let sum = w.node("Mul", &[&mean, &count], vec![], "target.likelihood");
    w.node("Neg", &[&sum], vec![], "loss")
}

/// The value with one axis moved to another place.
fn moved(w: &mut Writer<'_>, x: &str, rank: usize, from: usize, to: usize, wanted: &str) -> String {
    if from == to {
        return x.to_string();
    }
    let mut perm: Vec<i64> = (0..rank as i64).filter(|&axis| axis != from as i64).collect();
    perm.insert(to, from as i64);
    w.node("Transpose", &[x], vec![build::ints("perm", &perm)], wanted)
}

fn squares(w: &mut Writer<'_>, x: &str, target: &str) -> String {
    let difference = w.node("Sub", &[x, target], vec![], "loss.difference");
    let square = w.node("Mul", &[&difference, &difference], vec![], "loss.square");
    w.mean(&square, "loss")
}

/// `max(x, 0) - x * t + log(1 + exp(-|x|))`, which is exact for scores of any size.
fn binary(w: &mut Writer<'_>, x: &str, target: &str, dtype: DType) -> String {
    let one = w.floats(dtype, &[], &[1.0], "loss.one");
    let positive = w.node("Relu", &[x], vec![], "loss.positive");
    let product = w.node("Mul", &[x, target], vec![], "loss.product");
    let size = w.node("Abs", &[x], vec![], "loss.size");
    let size = w.node("Neg", &[&size], vec![], "loss.size.negative");
    let power = w.node("Exp", &[&size], vec![], "loss.power");
    let sum = w.node("Add", &[&power, &one], vec![], "loss.power.one");
    let log = w.node("Log", &[&sum], vec![], "loss.log");
    let rest = w.node("Sub", &[&positive, &product], vec![], "loss.rest");
    let each = w.node("Add", &[&rest, &log], vec![], "loss.each");
    w.mean(&each, "loss")
}
