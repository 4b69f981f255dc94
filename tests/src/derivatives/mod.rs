//! Derivatives of models against difference quotients.
//!
//! A model gets a Gradient of the squares of each of its outputs by all of its inputs of floats. What it imports to is
//! widened to f64 and interpreted, so that a difference quotient is exact to some ten digits, also of operators that take
//! f32 alone. In elements where a function has no derivative its two one-sided quotients differ.

pub mod networks;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use onnxc_import::{ImportOptions, NoExternalData, dense_tensor};
use onnxc_ir::error::Error;
use onnxc_ir::graph::op::MapFn;
use onnxc_ir::graph::{Constant, DType, Def, Graph, Op, Tensor};
use onnxc_ir::interp;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, build, type_proto};
use prost::Message;

const TRAINING: &str = "ai.onnx.preview.training";

/// What is added to an element to find its difference quotient.
pub const STEP: f64 = 1e-5;

/// Largest relative error of a derivative.
pub const TOLERANCE: f64 = 1e-4;

/// Elements of an input that are varied.
const ELEMENTS: usize = 6;

/// Operators that round: a quotient shows the jumps, and no derivative has these.
const ROUNDING: &[&str] = &["DynamicQuantize", "QuantizeLinear"];

/// What came of a model.
#[derive(Debug, Default)]
pub struct Found {
    /// Elements for which derivative and quotient agree.
    pub elements: usize,
    /// Of these, the ones with another derivative than 0.
    pub slopes: usize,
    /// Elements in which the function has no derivative.
    pub corners: usize,
}

/// Why nothing was compared.
#[derive(Debug)]
pub enum Skip {
    /// The derivative is refused: the message.
    Refused(String),
    /// The model has no float to derive by, no float to derive, or is not for this test.
    Not(String),
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(value.as_bytes().to_vec().into()),
        ..build::attribute(name, AttributeType::String)
    }
}

fn texts(name: &str, values: &[String]) -> AttributeProto {
    let strings = values.iter().map(|value| value.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..build::attribute(name, AttributeType::Strings) }
}

fn element_type(info: &ValueInfoProto) -> Option<DType> {
    match info.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => DType::from_onnx(tensor.elem_type?),
        _ => None,
    }
}

/// Whether Gradient takes it.
fn is_derivable(dtype: Option<DType>) -> bool {
    matches!(dtype, Some(DType::F16 | DType::F32 | DType::F64))
}

/// The model with derivatives in place of its outputs: of each float output its squares, then for each of these the derivatives of their
/// sum by each float input. Gives the model, and how many there are of both.
pub fn differentiated(model: &ModelProto) -> Result<(ModelProto, usize, usize), Skip> {
    let mut model = model.clone();
    let Some(graph) = &mut model.graph else { return Err(Skip::Not("no graph".into())) };
    let constants: Vec<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let inputs = graph.input.iter().filter(|input| !constants.contains(&input.name()));
    let (xs, zs): (Vec<_>, Vec<_>) = inputs.partition(|input| is_derivable(element_type(input)));
    let names =
        |list: &[&ValueInfoProto]| list.iter().map(|info| info.name().to_string()).collect::<Vec<_>>();
    let (xs, zs) = (names(&xs), names(&zs));
    let outputs: Vec<String> = graph
        .output
        .iter()
        .filter(|output| is_derivable(element_type(output)))
        .map(|output| output.name().to_string())
        .collect();
    if xs.is_empty() || outputs.is_empty() {
        return Err(Skip::Not("no float to derive by, or none to derive".into()));
    }
    let squares: Vec<String> = outputs.iter().map(|name| format!("{name}.squares")).collect();
    let mut given = squares.clone();
    for (output, square) in outputs.iter().zip(&squares) {
        graph.node.push(build::node("Mul", &[output, output], &[square]));
    }
    for square in &squares {
        let results: Vec<String> = xs.iter().map(|x| format!("{square}.{x}")).collect();
        let mut gradient = NodeProto {
            domain: Some(TRAINING.into()),
            input: [xs.clone(), zs.clone()].concat(),
            output: results.clone(),
            ..build::node("Gradient", &[], &[])
        }
        .with(texts("xs", &xs))
        .with(text("y", square));
        if !zs.is_empty() {
            gradient = gradient.with(texts("zs", &zs));
        }
        graph.node.push(gradient);
        given.extend(results);
    }
    graph.output = given.iter().map(|name| build::untyped(name)).collect();
    model.opset_import.push(build::opset(TRAINING, 1));
    Ok((model, squares.len(), xs.len()))
}

/// The graph with numbers of 64 bits in place of all floats of 16 and 32.
pub fn widened(graph: &Graph) -> Result<Graph, String> {
    let is_float = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    let wide = |dtype: DType| if is_float(dtype) { DType::F64 } else { dtype };
    let tensor = |tensor: &Tensor| match is_float(tensor.dtype) {
        true => interp::cast(tensor, DType::F64, true),
        false => tensor.clone(),
    };
    let op = |op: &Op| -> Result<Op, String> {
        Ok(match op {
            Op::Map(MapFn::Bitcast { .. }) => return Err("it computes with the bits of floats".into()),
            Op::Map(MapFn::Cast { to, saturate }) => {
                Op::Map(MapFn::Cast { to: wide(*to), saturate: *saturate })
            }
            Op::Dequantize { .. } | Op::Suppress { .. } | Op::Leaves(_) | Op::Call(_) | Op::External(_) => {
                return Err(format!("{} takes f32 alone", op.name()));
            }
            Op::Scan { body, trip, conditional, states, scans, reverse, shapes } => Op::Scan {
                body: Arc::new(widened(body)?),
                trip: trip.clone(),
                conditional: *conditional,
                states: *states,
                scans: *scans,
                reverse: reverse.clone(),
                shapes: shapes.clone(),
            },
            Op::If { bodies, shapes } => Op::If {
                bodies: Arc::new([widened(&bodies[0])?, widened(&bodies[1])?]),
                shapes: shapes.clone(),
            },
            other => other.clone(),
        })
    };
    let mut graph = graph.clone();
    // Sines and their kin are chosen by the bits of their operands.
    for node in graph.order.clone() {
        let own = &graph.nodes[node];
        if let [y] = own.outputs[..]
            && let Some(&(function, x)) = graph.functions.get(&y)
        {
            graph.nodes[node].op = Op::Map(MapFn::Unary(function));
            graph.nodes[node].inputs = vec![x];
        }
    }
    graph.keep_reachable();
    for value in graph.values.values_mut() {
        value.ty.dtype = wide(value.ty.dtype);
        if let Def::Const(constant) = &mut value.def {
            *constant = match &*constant {
                Constant::Data(data) => Constant::Data(tensor(data)),
                Constant::Apart(weight) => Constant::Data(tensor(&weight.tensor)),
                Constant::Deferred { op: old, inputs } => {
                    Constant::Deferred { op: Arc::new(op(old)?), inputs: inputs.clone() }
                }
            };
        }
    }
    for node in graph.order.clone() {
        graph.nodes[node].op = op(&graph.nodes[node].op)?;
    }
    Ok(graph)
}

/// Imports a model with derivatives.
pub fn imported(model: &ModelProto) -> Result<Graph, Skip> {
    let failed = |errors: Vec<Error>| {
        let text = errors.first().map_or(String::new(), |error| error.to_string());
        match text.contains("derivative") {
            true => Skip::Refused(text),
            false => Skip::Not(format!("not imported: {text}")),
        }
    };
    let import = onnxc_import::import(model, &ImportOptions::default(), &NoExternalData, onnxc::operators())
        .map_err(failed)?;
    onnxc_ir::verify::verify(&import.graph).map_err(failed)?;
    Ok(import.graph)
}

/// Holds derivatives to quotients. The outputs are those of [`differentiated`].
pub fn check(graph: &Graph, inputs: &[Tensor], ys: usize, xs: usize) -> Result<Found, String> {
    let run = |inputs: &[Tensor]| interp::run(graph, inputs).map_err(|error| error.to_string());
    let wide = inputs.iter().zip(&graph.inputs).map(|(tensor, input)| match graph.ty(input.value).dtype {
        DType::F64 => interp::cast(tensor, DType::F64, true),
        _ => tensor.clone(),
    });
    let wide: Vec<Tensor> = wide.collect();
    let floats: Vec<usize> = (0..wide.len()).filter(|&at| is_derivable(Some(inputs[at].dtype))).collect();
    if floats.len() != xs {
        return Err(format!("{} inputs of floats, and derivatives by {xs}", floats.len()));
    }
    let found = run(&wide)?;
    let total = |outputs: &[Tensor], y: usize| outputs[y].to_f64s().unwrap_or_default().iter().sum::<f64>();
    let mut counts = Found::default();
    for (number, &at) in floats.iter().enumerate() {
        let values = wide[at].to_f64s().unwrap_or_default();
        // Some elements, the first and the last among them.
        let step = (values.len().saturating_sub(1)).div_ceil(ELEMENTS - 1).max(1);
        for element in (0..values.len()).step_by(step).chain(values.len().checked_sub(1)) {
            let size = STEP * values[element].abs().max(1.0);
            let moved = |by: f64| {
                let (mut values, mut inputs) = (values.clone(), wide.clone());
                values[element] += by;
                inputs[at] = Tensor::from_slice(&inputs[at].shape, &values);
                run(&inputs)
            };
            let (above, below) = (moved(size)?, moved(-size)?);
            for y in 0..ys {
                let own = &found[ys + y * xs + number];
                if own.shape != wide[at].shape {
                    return Err(format!("the derivative by input {at} has shape {:?}", own.shape));
                }
                let own = own.to_f64s().unwrap_or_default()[element];
                let (right, left) = (
                    (total(&above, y) - total(&found, y)) / size,
                    (total(&found, y) - total(&below, y)) / size,
                );
                let wanted = (right + left) / 2.0;
                let scale = wanted.abs().max(own.abs());
                let noise = 1e-10 * total(&found, y).abs() / size;
                if !wanted.is_finite() || (right - left).abs() > 1e-2 * (wanted.abs() + 1e-2) + noise {
                    counts.corners += 1;
                    continue;
                }
                if (own - wanted).abs() > TOLERANCE * (scale + 1e-3) + noise || !own.is_finite() {
                    return Err(format!(
                        "output {y} by element {element} of input {at}{:?}: {own}, and the quotient is {wanted} ({left}, {right})",
                        wide[at].shape
                    ));
                }
                counts.elements += 1;
                counts.slopes += usize::from(wanted.abs() > noise + 1e-9);
            }
        }
    }
    Ok(counts)
}

/// The same of a model of its own with the inputs of its folder.
pub fn check_folder(folder: &Path) -> Outcome {
    let bytes = std::fs::read(folder.join("model.onnx")).map_err(|error| Skip::Not(error.to_string()))?;
    let model = onnxc::decode(bytes.into()).map_err(|error| Skip::Not(error.to_string()))?;
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let rounds = |node: &&NodeProto| ROUNDING.iter().any(|name| node.op_type().starts_with(name));
    if let Some(node) = nodes.into_iter().find(rounds) {
        return Err(Skip::Not(format!("{} rounds", node.op_type())));
    }
    let mut inputs = vec![];
    for at in 0.. {
        let path = folder.join(format!("test_data_set_0/input_{at}.pb"));
        let Ok(bytes) = std::fs::read(path) else { break };
        let tensor = TensorProto::decode(&bytes[..]).ok().and_then(|proto| dense_tensor(&proto).ok());
        inputs.push(tensor.ok_or_else(|| Skip::Not("an input that is not a tensor".into()))?);
    }
    let (model, ys, xs) = differentiated(&model)?;
    let graph = widened(&imported(&model)?).map_err(Skip::Not)?;
    // Constants of the derivative are rounded to 16 bits, where numbers have so few.
    if inputs.iter().any(|tensor| matches!(tensor.dtype, DType::F16 | DType::BF16)) {
        return Err(Skip::Not("numbers of 16 bits".into()));
    }
    Ok(check(&graph, &inputs, ys, xs))
}

/// What came of a model: how it agrees or how it differs; or why it was not compared.
pub type Outcome = Result<Result<Found, String>, Skip>;

/// What came of many models.
#[derive(Debug, Default)]
pub struct Summary {
    pub agree: BTreeMap<String, Found>,
    pub differ: Vec<String>,
    pub refused: BTreeMap<String, String>,
    pub skipped: BTreeMap<String, String>,
}

impl Summary {
    pub fn new(results: Vec<(String, Outcome)>) -> Summary {
        let mut summary = Summary::default();
        for (subject, result) in results {
            match result {
                Ok(Ok(found)) => drop(summary.agree.insert(subject, found)),
                Ok(Err(text)) => summary.differ.push(format!("{subject}: {text}")),
                Err(Skip::Refused(text)) => drop(summary.refused.insert(subject, text)),
                Err(Skip::Not(text)) => drop(summary.skipped.insert(subject, text)),
            }
        }
        summary
    }

    /// Elements compared, and how many of them have another derivative than 0.
    pub fn elements(&self) -> (usize, usize) {
        let of = |count: fn(&Found) -> usize| self.agree.values().map(count).sum();
        (of(|found| found.elements), of(|found| found.slopes))
    }
}
