//! Recurrent layers. The input projections of all steps are one contraction before the loop; the loop's body
//! multiplies the state by the transposed recurrence weights, which it captures whole.

mod memory;

use self::memory::Memory;
use super::AttrDefault::{Int, Optional, Str, Strs};
use super::activation::softplus_of;
use super::quantize::{dynamically_quantized, scaled_product};
use super::row::indices_or_fault;
use super::sample::constant_dim;
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::I32;
use onnxc_ir::graph::{DType, Dim, Graph, Op, RhsLayout, TensorType, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    LSTM,
    LSTM_7,
    LSTM_14,
    LSTM_14.since(22).types(&[("T", FLOATS), ("T1", &[I32])]),
    GRU,
    GRU_3,
    GRU_7,
    GRU_14,
    GRU_14.since(22).types(&[("T", FLOATS), ("T1", &[I32])]),
    RNN,
    RNN_7,
    RNN_14,
    RNN_14.since(22).types(&[("T", FLOATS), ("T1", &[I32])]),
];

const LSTM: OpDef = op("LSTM", 1, lstm)
    .inputs(&[
        req("X", "T"),
        req("W", "T"),
        req("R", "T"),
        opt("B", "T"),
        opt("sequence_lens", "T1"),
        opt("initial_h", "T"),
        opt("initial_c", "T"),
        opt("P", "T"),
    ])
    .outputs(&[opt("Y", "T"), opt("Y_h", "T"), opt("Y_c", "T")])
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Optional(AttrKind::Strs)),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("forward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("input_forget", Int(0)),
        attr("output_sequence", Int(0)),
    ])
    .types(&[("T", FLOATS_F16), ("T1", &[I32])])
    .shapes(&[
        "X[T, N, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, 4 * H, I]",
        "R[D, 4 * H, H]",
        "H = hidden_size",
        "B[D, 8 * H]",
        "sequence_lens[N]",
        "initial_h[D, N, H]",
        "initial_c[D, N, H]",
        "P[D, 3 * H]",
    ])
    .doc("long short-term memory layer");

const LSTM_7: OpDef = LSTM.since(7).attributes(&[
    attr("activation_alpha", Optional(AttrKind::Floats)),
    attr("activation_beta", Optional(AttrKind::Floats)),
    attr("activations", Optional(AttrKind::Strs)),
    attr("clip", Optional(AttrKind::Float)),
    attr("direction", Str("forward")),
    attr("hidden_size", Optional(AttrKind::Int)),
    attr("input_forget", Int(0)),
]);

const LSTM_14: OpDef = LSTM_7
    .since(14)
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Optional(AttrKind::Strs)),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("forward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("input_forget", Int(0)),
        attr("layout", Int(0)),
    ])
    .shapes(&[
        "if layout = 0: X[T, N, I]",
        "if layout = 1: X[N, T, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, 4 * H, I]",
        "R[D, 4 * H, H]",
        "H = hidden_size",
        "B[D, 8 * H]",
        "sequence_lens[N]",
        "if layout = 0: initial_h[D, N, H]",
        "if layout = 1: initial_h[N, D, H]",
        "if layout = 0: initial_c[D, N, H]",
        "if layout = 1: initial_c[N, D, H]",
        "P[D, 3 * H]",
    ]);

const GRU: OpDef = op("GRU", 1, gru)
    .inputs(&[
        req("X", "T"),
        req("W", "T"),
        req("R", "T"),
        opt("B", "T"),
        opt("sequence_lens", "T1"),
        opt("initial_h", "T"),
    ])
    .outputs(&[opt("Y", "T"), req("Y_h", "T")])
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Optional(AttrKind::Strs)),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("foward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("output_sequence", Int(0)),
    ])
    .types(&[("T", FLOATS_F16), ("T1", &[I32])])
    .shapes(&[
        "X[T, N, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, 3 * H, I]",
        "R[D, 3 * H, H]",
        "H = hidden_size",
        "B[D, 6 * H]",
        "sequence_lens[N]",
        "initial_h[D, N, H]",
    ])
    .doc("gated recurrent unit layer");

const GRU_3: OpDef = GRU.since(3).outputs(&[opt("Y", "T"), opt("Y_h", "T")]).attributes(&[
    attr("activation_alpha", Optional(AttrKind::Floats)),
    attr("activation_beta", Optional(AttrKind::Floats)),
    attr("activations", Optional(AttrKind::Strs)),
    attr("clip", Optional(AttrKind::Float)),
    attr("direction", Str("forward")),
    attr("hidden_size", Optional(AttrKind::Int)),
    attr("linear_before_reset", Int(0)),
    attr("output_sequence", Int(0)),
]);

const GRU_7: OpDef = GRU_3.since(7).attributes(&[
    attr("activation_alpha", Optional(AttrKind::Floats)),
    attr("activation_beta", Optional(AttrKind::Floats)),
    attr("activations", Optional(AttrKind::Strs)),
    attr("clip", Optional(AttrKind::Float)),
    attr("direction", Str("forward")),
    attr("hidden_size", Optional(AttrKind::Int)),
    attr("linear_before_reset", Int(0)),
]);

const GRU_14: OpDef = GRU_7
    .since(14)
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Optional(AttrKind::Strs)),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("forward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("layout", Int(0)),
        attr("linear_before_reset", Int(0)),
    ])
    .shapes(&[
        "if layout = 0: X[T, N, I]",
        "if layout = 1: X[N, T, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, 3 * H, I]",
        "R[D, 3 * H, H]",
        "H = hidden_size",
        "B[D, 6 * H]",
        "sequence_lens[N]",
        "if layout = 0: initial_h[D, N, H]",
        "if layout = 1: initial_h[N, D, H]",
    ]);

const RNN: OpDef = op("RNN", 1, rnn)
    .inputs(&[
        req("X", "T"),
        req("W", "T"),
        req("R", "T"),
        opt("B", "T"),
        opt("sequence_lens", "T1"),
        opt("initial_h", "T"),
    ])
    .outputs(&[opt("Y", "T"), opt("Y_h", "T")])
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Strs(&["Tanh", "Tanh"])),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("forward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("output_sequence", Int(0)),
    ])
    .types(&[("T", FLOATS_F16), ("T1", &[I32])])
    .shapes(&[
        "X[T, N, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, H, I]",
        "R[D, H, H]",
        "H = hidden_size",
        "B[D, 2 * H]",
        "sequence_lens[N]",
        "initial_h[D, N, H]",
    ])
    .doc("simple recurrent layer");

const RNN_7: OpDef = RNN.since(7).attributes(&[
    attr("activation_alpha", Optional(AttrKind::Floats)),
    attr("activation_beta", Optional(AttrKind::Floats)),
    attr("activations", Strs(&["Tanh", "Tanh"])),
    attr("clip", Optional(AttrKind::Float)),
    attr("direction", Str("forward")),
    attr("hidden_size", Optional(AttrKind::Int)),
]);

const RNN_14: OpDef = RNN_7
    .since(14)
    .attributes(&[
        attr("activation_alpha", Optional(AttrKind::Floats)),
        attr("activation_beta", Optional(AttrKind::Floats)),
        attr("activations", Strs(&["Tanh", "Tanh"])),
        attr("clip", Optional(AttrKind::Float)),
        attr("direction", Str("forward")),
        attr("hidden_size", Optional(AttrKind::Int)),
        attr("layout", Int(0)),
    ])
    .shapes(&[
        "if layout = 0: X[T, N, I]",
        "if layout = 1: X[N, T, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, H, I]",
        "R[D, H, H]",
        "H = hidden_size",
        "B[D, 2 * H]",
        "sequence_lens[N]",
        "if layout = 0: initial_h[D, N, H]",
        "if layout = 1: initial_h[N, D, H]",
    ]);

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// An activation function with its constants.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    kind: ActivationKind,
    alpha: f64,
    beta: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ActivationKind {
    Relu,
    Tanh,
    Sigmoid,
    Affine,
    LeakyRelu,
    ThresholdedRelu,
    ScaledTanh,
    HardSigmoid,
    Elu,
    Softsign,
    Softplus,
}

/// (lower-case name, kind, default alpha, default beta); `None` where the function has no such constant.
const ACTIVATIONS: &[(&str, ActivationKind, Option<f64>, Option<f64>)] = &[
    ("relu", ActivationKind::Relu, None, None),
    ("tanh", ActivationKind::Tanh, None, None),
    ("sigmoid", ActivationKind::Sigmoid, None, None),
    ("affine", ActivationKind::Affine, Some(1.0), Some(0.0)),
    ("leakyrelu", ActivationKind::LeakyRelu, Some(0.01), None),
    ("thresholdedrelu", ActivationKind::ThresholdedRelu, Some(1.0), None),
    ("scaledtanh", ActivationKind::ScaledTanh, Some(1.0), Some(1.0)),
    ("hardsigmoid", ActivationKind::HardSigmoid, Some(0.2), Some(0.5)),
    ("elu", ActivationKind::Elu, Some(1.0), None),
    ("softsign", ActivationKind::Softsign, None, None),
    ("softplus", ActivationKind::Softplus, None, None),
];

/// The activations of all directions; constants are consumed in order by the functions that take them.
fn activations(cx: &NodeCx<'_, '_>, defaults: &[&str], directions: usize) -> Result<Vec<Activation>> {
    let names = match cx.strs("activations")? {
        Some(names) if names.len() == defaults.len() * directions => names,
        // The default of RNN lists two functions, for both directions.
        Some(names)
            if names.len() > defaults.len() * directions && !cx.attributes.contains_key("activations") =>
        {
            names[..defaults.len() * directions].to_vec()
        }
        Some(names) if !names.is_empty() => {
            return malformed(format!(
                "activations {}: {directions} directions take {}",
                names.join(", "),
                defaults.len() * directions
            ));
        }
        _ => defaults.iter().cycle().take(defaults.len() * directions).map(|name| name.to_string()).collect(),
    };
    let mut alphas = cx.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = cx.floats("activation_beta")?.unwrap_or_default().into_iter();
    let take = |given: &mut dyn Iterator<Item = f32>, default: Option<f64>| match default {
        None => 0.0,
        Some(default) => given.next().map_or(default, f64::from),
    };
    let mut found = Vec::with_capacity(names.len());
    for name in &names {
        let lower = name.to_ascii_lowercase();
        let Some(&(_, kind, alpha, beta)) = ACTIVATIONS.iter().find(|row| row.0 == lower) else {
            let known: Vec<&str> = ACTIVATIONS.iter().map(|row| row.0).collect();
            return super::not_one_of("an activation", name, &known.join(", "));
        };
        found.push(Activation { kind, alpha: take(&mut alphas, alpha), beta: take(&mut betas, beta) });
    }
    Ok(found)
}

impl Activation {
    /// The function of a name in lower case, with its constants or their defaults.
    pub fn named(name: &str, alpha: Option<f32>, beta: Option<f32>) -> Option<Activation> {
        let &(_, kind, own_alpha, own_beta) = ACTIVATIONS.iter().find(|row| row.0 == name)?;
        let or = |given: Option<f32>, own: Option<f64>| given.map(f64::from).or(own).unwrap_or(0.0);
        Some(Activation { kind, alpha: or(alpha, own_alpha), beta: or(beta, own_beta) })
    }

    pub fn apply(self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
        let Activation { kind, alpha, beta } = self;
        match kind {
            ActivationKind::Relu => b.binary_scalar(BinaryFn::Max, x, 0.0),
            ActivationKind::Tanh => b.unary(UnaryFn::Tanh, x),
            ActivationKind::Sigmoid => b.unary(UnaryFn::Sigmoid, x),
            ActivationKind::Affine => {
                let scaled = b.binary_scalar(BinaryFn::Mul, x, alpha)?;
                b.binary_scalar(BinaryFn::Add, scaled, beta)
            }
            ActivationKind::LeakyRelu => {
                let scaled = b.binary_scalar(BinaryFn::Mul, x, alpha)?;
                select_by_sign(b, x, x, scaled)
            }
            ActivationKind::ThresholdedRelu => {
                let (zero, limit) = (b.scalar(b.dtype(x), 0.0), b.scalar(b.dtype(x), alpha));
                let above = b.compare(CompareFn::Gt, x, limit)?;
                b.select(above, x, zero)
            }
            ActivationKind::ScaledTanh => {
                let scaled = b.binary_scalar(BinaryFn::Mul, x, beta)?;
                let tanh = b.unary(UnaryFn::Tanh, scaled)?;
                b.binary_scalar(BinaryFn::Mul, tanh, alpha)
            }
            ActivationKind::HardSigmoid => {
                let scaled = b.binary_scalar(BinaryFn::Mul, x, alpha)?;
                let line = b.binary_scalar(BinaryFn::Add, scaled, beta)?;
                let low = b.binary_scalar(BinaryFn::Max, line, 0.0)?;
                b.binary_scalar(BinaryFn::Min, low, 1.0)
            }
            ActivationKind::Elu => {
                let exp = b.unary(UnaryFn::Expm1, x)?;
                let scaled = b.binary_scalar(BinaryFn::Mul, exp, alpha)?;
                select_by_sign(b, x, x, scaled)
            }
            ActivationKind::Softsign => {
                let magnitude = b.unary(UnaryFn::Abs, x)?;
                let divisor = b.binary_scalar(BinaryFn::Add, magnitude, 1.0)?;
                b.binary(BinaryFn::Div, x, divisor)
            }
            ActivationKind::Softplus => softplus_of(b, x),
        }
    }
}

fn select_by_sign(b: &mut Builder<'_>, x: ValueId, positive: ValueId, negative: ValueId) -> Result<ValueId> {
    let zero = b.scalar(b.dtype(x), 0.0);
    let is_negative = b.compare(CompareFn::Lt, x, zero)?;
    b.select(is_negative, negative, positive)
}

/// Which cell, and how its gates share weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Rnn,
    Gru { linear_before_reset: bool },
    Lstm { input_forget: bool },
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
        }
    }

    fn states(self) -> usize {
        if matches!(self, Cell::Lstm { .. }) { 2 } else { 1 }
    }

    fn default_activations(self) -> &'static [&'static str] {
        match self {
            Cell::Rnn => &["Tanh"],
            Cell::Gru { .. } => &["Sigmoid", "Tanh"],
            Cell::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// The node, decoded; values are time-major.
struct Layer {
    cell: Cell,
    activations: Vec<Activation>,
    clip: Option<f64>,
    hidden: usize,
    /// `[T, B, I]`
    x: ValueId,
    steps: Dim,
    batch: Dim,
    dtype: DType,
    /// Valid steps per batch row, i64 `[B, 1]`.
    lengths: Option<ValueId>,
    /// Whether the outputs of all steps are wanted.
    stacked: bool,
    /// Whether it attends to a memory; see [`memory`].
    attends: bool,
    /// Whether weights are integers, in the order `[I, gates * H]`, and what they multiply is quantised by its range.
    quantized: bool,
}

fn rnn(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    recurrent(cx, Cell::Rnn, false)
}

fn gru(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let linear_before_reset = cx.has("linear_before_reset") && cx.int("linear_before_reset")? != 0;
    recurrent(cx, Cell::Gru { linear_before_reset }, false)
}

/// Also of integer weights, whose scales and zero points come after the other inputs.
pub fn lstm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let input_forget = cx.int("input_forget")? != 0;
    recurrent(cx, Cell::Lstm { input_forget }, false)
}

/// An LSTM that attends to a memory, whose parameters come after the other inputs.
pub fn attending_lstm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let input_forget = cx.int("input_forget")? != 0;
    recurrent(cx, Cell::Lstm { input_forget }, true)
}

fn recurrent(cx: &mut NodeCx<'_, '_>, cell: Cell, attends: bool) -> Result<Vec<ValueId>> {
    let direction = cx.str("direction")?;
    // The schema of GRU's first version misspells its default.
    let reverses: &[bool] = match direction.as_str() {
        "forward" | "foward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return super::not_one_of("direction", other, "forward, reverse, bidirectional"),
    };
    let batch_major = cx.has("layout") && cx.int("layout")? != 0;
    let layer = Layer { attends, ..layer(cx, cell, reverses.len(), batch_major)? };
    let mut sequences = Vec::new();
    let mut finals = vec![Vec::new(); cell.states()];
    for (at, &reverse) in reverses.iter().enumerate() {
        let mut results = one_direction(cx, &layer, at, reverse, batch_major)?;
        for (state, value) in finals.iter_mut().zip(results.drain(..cell.states())) {
            state.push(value);
        }
        // What was seen last is nobody's.
        results.drain(..usize::from(attends));
        sequences.extend(results);
    }
    let b = &mut *cx.b;
    let mut outputs = Vec::with_capacity(3);
    for state in finals {
        let axis = usize::from(batch_major);
        let parts = state.iter().map(|&value| b.unsqueeze(value, &[axis])).collect::<Result<Vec<_>>>()?;
        outputs.push(b.concat(&parts, axis)?);
    }
    // Where no output of all steps is wanted, its slot holds a value that nobody reads.
    let mut y = outputs[0];
    if layer.stacked {
        let parts = sequences.iter().map(|&value| b.unsqueeze(value, &[1])).collect::<Result<Vec<_>>>()?;
        y = b.concat(&parts, 1)?;
        if batch_major {
            y = b.transpose(y, &[2, 0, 1, 3])?;
        }
    }
    outputs.insert(0, y);
    Ok(outputs)
}

fn layer(cx: &mut NodeCx<'_, '_>, cell: Cell, directions: usize, batch_major: bool) -> Result<Layer> {
    let (x, w, r) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let activations = activations(cx, cell.default_activations(), directions)?;
    let clip = cx.optional_float("clip")?.map(f64::from).filter(|&clip| clip > 0.0);
    let stated = cx.optional_int("hidden_size")?;
    let lengths = cx.optional(4);
    let stacked = cx.wants(0);
    let b = &mut *cx.b;
    let (x_ty, w_ty, r_ty) = (b.ty(x).clone(), b.ty(w).clone(), b.ty(r).clone());
    if [x_ty.rank(), w_ty.rank(), r_ty.rank()] != [3; 3] {
        return malformed(format!("X {x_ty}, W {w_ty}, R {r_ty} must have three axes each"));
    }
    let hidden = match r_ty.dtype.is_float() {
        true => r_ty.shape[2].as_const(),
        false => r_ty.shape[1].as_const(),
    };
    let hidden = hidden.or(stated);
    let Some(hidden) = hidden.and_then(|size| usize::try_from(size).ok()).filter(|&size| size < 1 << 30)
    else {
        return Err(Error::unsupported(Stage::Infer, format!("a hidden size that is unknown from R {r_ty}")));
    };
    let rows = Dim::from(cell.gates() * hidden);
    let quantized = !w_ty.dtype.is_float();
    let gates = if quantized { 2 } else { 1 };
    let fits = |ty: &TensorType| {
        [(0, Dim::from(directions)), (gates, rows.clone())]
            .iter()
            .all(|(axis, wanted)| !ty.shape[*axis].is_const() || ty.shape[*axis] == *wanted)
    };
    if !fits(&w_ty) || !fits(&r_ty) || stated.is_some_and(|stated| stated != hidden as i64) {
        let stated = stated.map_or(String::new(), |size| format!(" and hidden_size {size}"));
        return malformed(format!("W {w_ty} and R {r_ty} do not agree with {directions} directions{stated}"));
    }
    let x = if batch_major { b.transpose(x, &[1, 0, 2])? } else { x };
    let shape = b.shape(x);
    let (steps, batch) = (shape[0].clone(), shape[1].clone());
    let lengths = match lengths {
        None => None,
        Some(lengths) => {
            let lengths = lengths_within(b, lengths, &steps)?;
            Some(b.reshape(lengths, vec![batch.clone(), Dim::ONE])?)
        }
    };
    let dtype = x_ty.dtype;
    let attends = false;
    Ok(Layer {
        cell,
        activations,
        clip,
        hidden,
        x,
        steps,
        batch,
        dtype,
        lengths,
        stacked,
        attends,
        quantized,
    })
}

/// Lengths of sequences as i64; the run ends with a status where one is not within `[0, steps]`. They are looked up in a table of
/// the lengths that there are.
fn lengths_within(b: &mut Builder<'_>, lengths: ValueId, steps: &Dim) -> Result<ValueId> {
    let name = b.operand_text(lengths).unwrap_or_else(|| "sequence_lens".into());
    let most = steps.as_const().map_or("the number of steps".to_string(), |steps| steps.to_string());
    let lengths = b.cast(lengths, DType::I64)?;
    // A negative index would count from the end.
    let (zero, last) = (b.scalar(DType::I64, 0.0), constant_dim(b, steps)?);
    let low = b.compare(CompareFn::Ge, lengths, zero)?;
    let high = b.compare(CompareFn::Le, lengths, last)?;
    let valid = b.binary(BinaryFn::And, low, high)?;
    let says = (name.to_string(), format!("it must be between 0 and {most}"));
    let index = indices_or_fault(b, [valid, lengths, lengths], says, true)?;
    let table = b.iota(vec![steps.clone() + Dim::ONE], 0)?;
    b.emit1(Op::Gather { axis: 0 }, &[table, index])
}

/// Entry `direction` of a parameter's first axis, which goes away.
fn part(b: &mut Builder<'_>, value: ValueId, axis: usize, direction: usize) -> Result<ValueId> {
    let part = b.slice_axis(value, axis, Dim::from(direction), Dim::ONE)?;
    b.squeeze(part, &[axis])
}

/// The product of `x`, quantised by its range, and of weights `[k, n]` with one scale and zero point, or one per column.
fn quantized_product(
    b: &mut Builder<'_>,
    x: ValueId,
    weights: ValueId,
    scale: ValueId,
    zero_point: ValueId,
) -> Result<ValueId> {
    let [x, x_scale, x_zero] = dynamically_quantized(b, x)?;
    scaled_product(b, (x, x_scale, Some(x_zero)), (weights, scale, Some(zero_point)), None)
}

/// Input projections plus biases `[T, B, gates * H]`, and the recurrence bias of a gate that adds it late.
fn projections(
    cx: &mut NodeCx<'_, '_>,
    layer: &Layer,
    direction: usize,
) -> Result<(ValueId, Option<ValueId>)> {
    let (w, bias) = (cx.input(1)?, cx.optional(3));
    let parameters = if layer.quantized { Some((cx.input(8)?, cx.input(9)?)) } else { None };
    let b = &mut *cx.b;
    let w = part(b, w, 0, direction)?;
    let product = match parameters {
        Some((scale, zero_point)) => {
            let (scale, zero_point) = (part(b, scale, 0, direction)?, part(b, zero_point, 0, direction)?);
            let rows = b.shape(w)[0].clone();
            let w = b.reshape(w, vec![rows, Dim::from(layer.cell.gates() * layer.hidden)])?;
            quantized_product(b, layer.x, w, scale, zero_point)?
        }
        None => {
            let w = match layer.attends {
                // Weights of what is seen come after those of the input.
                true => b.slice_axis(w, 1, Dim::ZERO, b.shape(layer.x)[2].clone())?,
                false => w,
            };
            // A symbolic number of rows is this one, which is checked when the model runs.
            let columns = b.shape(w)[1].clone();
            let w = b.reshape(w, vec![Dim::from(layer.cell.gates() * layer.hidden), columns])?;
            let w = b.transpose(w, &[1, 0])?;
            let op = Op::Contract { batch: 0, m: 2, k: 1, rhs: RhsLayout::Plain };
            b.emit1(op, &[layer.x, w])?
        }
    };
    let Some(bias) = bias else { return Ok((product, None)) };
    let rows = layer.cell.gates() * layer.hidden;
    let bias = part(b, bias, 0, direction)?;
    let input = b.slice_axis(bias, 0, Dim::ZERO, Dim::from(rows))?;
    let recurrent = b.slice_axis(bias, 0, Dim::from(rows), Dim::from(rows))?;
    if layer.cell != (Cell::Gru { linear_before_reset: true }) {
        let sum = b.binary(BinaryFn::Add, input, recurrent)?;
        return Ok((b.binary(BinaryFn::Add, product, sum)?, None));
    }
    // The reset gate multiplies the candidate's recurrence bias, so that one stays in the loop.
    let early = Dim::from(2 * layer.hidden);
    let late = b.slice_axis(recurrent, 0, early.clone(), Dim::from(layer.hidden))?;
    let recurrent = b.slice_axis(recurrent, 0, Dim::ZERO, early)?;
    let zero = b.scalar(layer.dtype, 0.0);
    let recurrent = b.pad(recurrent, zero, vec![Dim::ZERO], vec![Dim::from(layer.hidden)])?;
    let sum = b.binary(BinaryFn::Add, input, recurrent)?;
    Ok((b.binary(BinaryFn::Add, product, sum)?, Some(late)))
}

/// The initial state `[B, H]` from an optional input, zeros without it.
fn initial(
    cx: &mut NodeCx<'_, '_>,
    layer: &Layer,
    input: usize,
    direction: usize,
    batch_major: bool,
) -> Result<ValueId> {
    let given = cx.optional(input);
    let b = &mut *cx.b;
    let shape = vec![layer.batch.clone(), Dim::from(layer.hidden)];
    match given {
        Some(given) => {
            let state = part(b, given, usize::from(batch_major), direction)?;
            b.reshape(state, shape)
        }
        None => {
            let zero = b.scalar(layer.dtype, 0.0);
            b.expand(zero, shape)
        }
    }
}

/// Runs one direction: final states, then the outputs of all steps if they are wanted.
fn one_direction(
    cx: &mut NodeCx<'_, '_>,
    layer: &Layer,
    direction: usize,
    reverse: bool,
    batch_major: bool,
) -> Result<Vec<ValueId>> {
    let (projected, late_bias) = projections(cx, layer, direction)?;
    let mut states = vec![initial(cx, layer, 5, direction, batch_major)?];
    if layer.cell.states() == 2 {
        states.push(initial(cx, layer, 6, direction, batch_major)?);
    }
    let (r, peepholes) = (cx.input(2)?, if layer.cell.states() == 2 { cx.optional(7) } else { None });
    let parameters = if layer.quantized { vec![cx.input(10)?, cx.input(11)?] } else { vec![] };
    let memory = if layer.attends { Some(Memory::new(cx, layer, direction)?) } else { None };
    let b = &mut *cx.b;
    if let Some(memory) = &memory {
        let zero = b.scalar(layer.dtype, 0.0);
        states.push(b.expand(zero, vec![layer.batch.clone(), memory.size.clone()])?);
    }
    let mut scans = vec![projected];
    if layer.lengths.is_some() {
        scans.push(b.iota(vec![layer.steps.clone()], 0)?);
    }
    let r = part(b, r, 0, direction)?;
    let (rows, columns) = (Dim::from(layer.hidden), Dim::from(layer.cell.gates() * layer.hidden));
    let r = match layer.quantized {
        true => b.reshape(r, vec![rows, columns])?,
        false => {
            let r = b.reshape(r, vec![columns, rows])?;
            b.transpose(r, &[1, 0])?
        }
    };
    let mut captures = recurrences(b, layer, r)?;
    for parameter in parameters {
        captures.push(part(b, parameter, 0, direction)?);
    }
    let weights = captures.len();
    captures.extend(memory.iter().flat_map(|memory| &memory.values));
    captures.extend(layer.lengths);
    captures.extend(late_bias);
    let hidden = Dim::from(layer.hidden);
    if let Some(peepholes) = peepholes {
        let flat = part(b, peepholes, 0, direction)?;
        for gate in 0..3 {
            captures.push(b.slice_axis(flat, 0, Dim::from(gate * layer.hidden), hidden.clone())?);
        }
    }
    let each = layer.cell.default_activations().len();
    let step = TimeStep {
        layer,
        activations: &layer.activations[direction * each..(direction + 1) * each],
        weights,
        memory: memory.as_ref(),
        late_bias: late_bias.is_some(),
        peepholes: peepholes.is_some(),
    };
    let body = step.body(b, &states, &scans, &captures)?;
    let reverse = vec![reverse; scans.len() + usize::from(layer.stacked)];
    let op = Op::scan(body, layer.steps.clone(), states.len(), scans.len(), reverse);
    let inputs = [states, scans, captures].concat();
    b.emit(op, &inputs)
}

/// The recurrence weights `[H, gates * H]`, in one operand per product of a step.
fn recurrences(b: &mut Builder<'_>, layer: &Layer, r: ValueId) -> Result<Vec<ValueId>> {
    if layer.cell != (Cell::Gru { linear_before_reset: false }) {
        return Ok(vec![r]);
    }
    let hidden = layer.hidden;
    let gates = b.slice_axis(r, 1, Dim::ZERO, Dim::from(2 * hidden))?;
    let candidate = b.slice_axis(r, 1, Dim::from(2 * hidden), Dim::from(hidden))?;
    Ok(vec![gates, candidate])
}

/// One step of the loop, and where its captures are.
struct TimeStep<'a> {
    layer: &'a Layer,
    activations: &'a [Activation],
    weights: usize,
    memory: Option<&'a Memory>,
    late_bias: bool,
    peepholes: bool,
}

/// The values that the body of the loop works on.
struct Inputs {
    states: Vec<ValueId>,
    projected: ValueId,
    weights: Vec<ValueId>,
    late_bias: Option<ValueId>,
    /// Input, output and forget gate.
    peepholes: Option<[ValueId; 3]>,
}

impl TimeStep<'_> {
    fn body(
        &self,
        outer: &Builder<'_>,
        states: &[ValueId],
        scans: &[ValueId],
        captures: &[ValueId],
    ) -> Result<Graph> {
        let (mut body, origin) = outer.body();
        let mut b = Builder::new(&mut body, origin);
        let states: Vec<ValueId> =
            states.iter().map(|&state| b.input("state", outer.ty(state).clone(), None)).collect();
        let mut slices = Vec::with_capacity(scans.len());
        for &scan in scans {
            let mut ty = outer.ty(scan).clone();
            ty.shape.remove(0);
            slices.push(b.input("step", ty, None));
        }
        let captures: Vec<ValueId> =
            captures.iter().map(|&capture| b.input("capture", outer.ty(capture).clone(), None)).collect();
        let mut rest = captures.into_iter();
        let weights: Vec<ValueId> = rest.by_ref().take(self.weights).collect();
        let memory: Vec<ValueId> =
            rest.by_ref().take(self.memory.map_or(0, |memory| memory.values.len())).collect();
        let lengths = if self.layer.lengths.is_some() { rest.next() } else { None };
        let late_bias = if self.late_bias { rest.next() } else { None };
        let peepholes = match (self.peepholes, rest.next(), rest.next(), rest.next()) {
            (true, Some(input), Some(output), Some(forget)) => Some([input, output, forget]),
            _ => None,
        };
        let mut projected = slices[0];
        if let (Some(&weights), Some(&seen)) = (memory.first(), states.last()) {
            let seen = b.matmul(seen, weights)?;
            projected = b.binary(BinaryFn::Add, projected, seen)?;
        }
        let inputs = Inputs { states: states.clone(), projected, weights, late_bias, peepholes };
        let mut next = match self.layer.cell {
            Cell::Rnn => self.rnn(&mut b, &inputs)?,
            Cell::Gru { linear_before_reset } => self.gru(&mut b, &inputs, linear_before_reset)?,
            Cell::Lstm { input_forget } => self.lstm(&mut b, &inputs, input_forget)?,
        };
        let mut y = next[0];
        if let Some(own) = self.memory {
            next.push(own.seen(&mut b, &memory, y)?);
        }
        if let (Some(lengths), Some(&step)) = (lengths, slices.get(1)) {
            // Past the end of a row's sequence its states stand still and its outputs are zero.
            let valid = b.compare(CompareFn::Lt, step, lengths)?;
            let zero = b.scalar(self.layer.dtype, 0.0);
            y = b.select(valid, y, zero)?;
            for (state, &old) in next.iter_mut().zip(&states) {
                *state = b.select(valid, *state, old)?;
            }
        }
        if self.layer.stacked {
            next.push(y);
        }
        body.outputs = next.into_iter().map(|value| (String::new(), value)).collect();
        Ok(body)
    }

    /// The activation of gate `at` on `x`, clipped.
    fn activate(&self, b: &mut Builder<'_>, at: usize, x: ValueId) -> Result<ValueId> {
        let x = match self.layer.clip {
            None => x,
            Some(clip) => {
                let low = b.binary_scalar(BinaryFn::Max, x, -clip)?;
                b.binary_scalar(BinaryFn::Min, low, clip)?
            }
        };
        self.activations[at].apply(b, x)
    }

    fn gate(&self, b: &mut Builder<'_>, gates: ValueId, at: usize, count: usize) -> Result<ValueId> {
        let hidden = self.layer.hidden;
        b.slice_axis(gates, 1, Dim::from(at * hidden), Dim::from(count * hidden))
    }

    fn rnn(&self, b: &mut Builder<'_>, inputs: &Inputs) -> Result<Vec<ValueId>> {
        let recurrent = b.matmul(inputs.states[0], inputs.weights[0])?;
        let sum = b.binary(BinaryFn::Add, inputs.projected, recurrent)?;
        Ok(vec![self.activate(b, 0, sum)?])
    }

    /// Gates z (update), r (reset), h (candidate): `H' = (1 - z) * h + z * H`.
    fn gru(&self, b: &mut Builder<'_>, inputs: &Inputs, linear_before_reset: bool) -> Result<Vec<ValueId>> {
        let state = inputs.states[0];
        let recurrent = b.matmul(state, inputs.weights[0])?;
        let projected = self.gate(b, inputs.projected, 0, 2)?;
        let gates = self.gate(b, recurrent, 0, 2)?;
        let sum = b.binary(BinaryFn::Add, projected, gates)?;
        let both = self.activate(b, 0, sum)?;
        let (update, reset) = (self.gate(b, both, 0, 1)?, self.gate(b, both, 1, 1)?);
        let late = if linear_before_reset {
            let mut linear = self.gate(b, recurrent, 2, 1)?;
            if let Some(bias) = inputs.late_bias {
                linear = b.binary(BinaryFn::Add, linear, bias)?;
            }
            b.binary(BinaryFn::Mul, reset, linear)?
        } else {
            let kept = b.binary(BinaryFn::Mul, reset, state)?;
            b.matmul(kept, inputs.weights[1])?
        };
        let projected = self.gate(b, inputs.projected, 2, 1)?;
        let sum = b.binary(BinaryFn::Add, projected, late)?;
        let candidate = self.activate(b, 1, sum)?;
        let one = b.scalar(self.layer.dtype, 1.0);
        let rest = b.binary(BinaryFn::Sub, one, update)?;
        let new = b.binary(BinaryFn::Mul, rest, candidate)?;
        let old = b.binary(BinaryFn::Mul, update, state)?;
        Ok(vec![b.binary(BinaryFn::Add, new, old)?])
    }

    /// Gates i (input), o (output), f (forget), c (cell): `C' = f * C + i * c`, `H' = o * h(C')`.
    fn lstm(&self, b: &mut Builder<'_>, inputs: &Inputs, input_forget: bool) -> Result<Vec<ValueId>> {
        let (state, cell) = (inputs.states[0], inputs.states[1]);
        let recurrent = match inputs.weights[..] {
            [weights, scale, zero_point] => quantized_product(b, state, weights, scale, zero_point)?,
            _ => b.matmul(state, inputs.weights[0])?,
        };
        let sum = b.binary(BinaryFn::Add, inputs.projected, recurrent)?;
        let peep = |b: &mut Builder<'_>, gate: ValueId, at: usize, cell: ValueId| match inputs.peepholes {
            None => Ok(gate),
            Some(weights) => {
                let seen = b.binary(BinaryFn::Mul, weights[at], cell)?;
                b.binary(BinaryFn::Add, gate, seen)
            }
        };
        let gate = self.gate(b, sum, 0, 1)?;
        let gate = peep(b, gate, 0, cell)?;
        let input = self.activate(b, 0, gate)?;
        let forget = if input_forget {
            let one = b.scalar(self.layer.dtype, 1.0);
            b.binary(BinaryFn::Sub, one, input)?
        } else {
            let gate = self.gate(b, sum, 2, 1)?;
            let gate = peep(b, gate, 2, cell)?;
            self.activate(b, 0, gate)?
        };
        let gate = self.gate(b, sum, 3, 1)?;
        let candidate = self.activate(b, 1, gate)?;
        let old = b.binary(BinaryFn::Mul, forget, cell)?;
        let new = b.binary(BinaryFn::Mul, input, candidate)?;
        let next = b.binary(BinaryFn::Add, old, new)?;
        let gate = self.gate(b, sum, 1, 1)?;
        let gate = peep(b, gate, 1, next)?;
        let output = self.activate(b, 0, gate)?;
        // The clip bounds what gates receive; the cell itself is free.
        let squashed = self.activations[2].apply(b, next)?;
        Ok(vec![b.binary(BinaryFn::Mul, output, squashed)?, next])
    }
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, elements};

    #[test]
    fn sequences_are_no_longer_than_the_input() {
        let case = |op, gates: usize, lengths: &[i32]| {
            let case = Case::new(op, 14).ramp(&[3, 2, 2], 1).constant_ramp(&[1, gates * 2, 2], 2);
            let case = case.constant_ramp(&[1, gates * 2, 2], 3).missing().input::<i32>(&[2], lengths);
            case.int("hidden_size", 2).run()
        };
        for (op, gates) in [("RNN", 1), ("GRU", 3), ("LSTM", 4)] {
            assert!(case(op, gates, &[3, 0]).is_ok());
            for wrong in [[3, 4], [-1, 3], [i32::MIN, 0]] {
                let message = case(op, gates, &wrong).unwrap_err().message;
                assert!(message.contains("it must be between 0 and"), "{op}, {wrong:?}: {message}");
            }
        }
    }

    #[test]
    fn lstm_both_directions_peepholes_lengths_and_states() {
        let case = Case::new("LSTM", 14)
            .ramp(&[3, 2, 2], 1)
            .constant_ramp(&[2, 8, 2], 2)
            .constant_ramp(&[2, 8, 2], 3)
            .constant_ramp(&[2, 16], 4)
            .input::<i32>(&[2], &[3, 2])
            .ramp(&[2, 2, 2], 5)
            .ramp(&[2, 2, 2], 6)
            .constant_ramp(&[2, 6], 7)
            .str("direction", "bidirectional")
            .int("hidden_size", 2)
            .outputs(3);
        case.gives(
            0,
            &[3, 2, 2, 2],
            &[
                0.269897, -0.008644, 0.159506, 0.309005, -0.827848, 0.047339, -0.405058, 0.088072, 0.015829,
                0.060163, 0.361036, 0.004898, -0.606752, 0.168867, -0.352383, -0.010067, -0.055443, 0.392759,
                0.0, 0.0, -0.275162, 0.538686, 0.0, 0.0,
            ],
        );
        case.gives(
            1,
            &[2, 2, 2],
            &[-0.055443, 0.392759, 0.361036, 0.004898, -0.827848, 0.047339, -0.405058, 0.088072],
        );
        case.gives(
            2,
            &[2, 2, 2],
            &[-0.190552, 0.876948, 0.718764, 0.095684, -1.240944, 0.766831, -0.755531, 0.298238],
        );
    }

    #[test]
    fn lstm_couples_gates_and_clips() {
        let case = Case::new("LSTM", 7)
            .ramp(&[2, 1, 2], 1)
            .constant_ramp(&[1, 8, 2], 2)
            .constant_ramp(&[1, 8, 2], 3)
            .float("clip", 0.25)
            .str("direction", "reverse")
            .int("hidden_size", 2)
            .int("input_forget", 1)
            .outputs(3);
        case.gives(0, &[2, 1, 1, 2], &[0.016763, -0.013055, -0.059905, 0.076919]);
        case.gives(1, &[1, 1, 2], &[0.016763, -0.013055]);
        case.gives(2, &[1, 1, 2], &[0.029826, -0.029826]);
    }

    /// The third is the output's, as in ONNX Runtime.
    #[test]
    fn lstm_has_three_activations() {
        let case = Case::new("LSTM", 14).ramp(&[2, 1, 2], 1).constant_ramp(&[1, 8, 2], 2);
        let case = case.constant_ramp(&[1, 8, 2], 3).strs("activations", &["Sigmoid", "Tanh", "Relu"]);
        let case = case.int("hidden_size", 2).outputs(3);
        case.gives(0, &[2, 1, 1, 2], &[0.192044, 0.0, 0.0, 0.151169]);
        case.gives(2, &[1, 1, 2], &[-0.348262, 0.208416]);
    }

    /// A bound of 0 is none, as in ONNX Runtime.
    #[test]
    fn a_bound_of_zero_clips_nothing() {
        let case = || {
            let case = Case::new("RNN", 14).ramp(&[2, 1, 2], 1).constant_ramp(&[1, 2, 2], 2);
            case.constant_ramp(&[1, 2, 2], 3).int("hidden_size", 2)
        };
        let [plain, clipped] = [case(), case().float("clip", 0.0)].map(|case| case.run().unwrap().remove(0));
        assert!(elements(&plain).iter().all(|element| element.abs() > 0.01), "{plain:?}");
        assert_eq!(clipped, plain);
    }

    #[test]
    fn gru_with_both_places_of_the_reset_gate() {
        let case = Case::new("GRU", 7)
            .ramp(&[3, 2, 2], 1)
            .constant_ramp(&[1, 6, 2], 2)
            .constant_ramp(&[1, 6, 2], 3)
            .constant_ramp(&[1, 12], 4)
            .input::<i32>(&[2], &[1, 3])
            .str("direction", "reverse")
            .int("hidden_size", 2)
            .int("linear_before_reset", 0)
            .outputs(2);
        case.gives(
            0,
            &[3, 1, 2, 2],
            &[
                -0.248213, -0.357941, 0.207178, -0.737123, 0.0, 0.0, -0.002315, -0.638765, 0.0, 0.0,
                0.244336, -0.138934,
            ],
        );
        case.gives(1, &[1, 2, 2], &[-0.248213, -0.357941, 0.207178, -0.737123]);
        let case = Case::new("GRU", 7)
            .ramp(&[3, 2, 2], 1)
            .constant_ramp(&[1, 6, 2], 2)
            .constant_ramp(&[1, 6, 2], 3)
            .constant_ramp(&[1, 12], 4)
            .input::<i32>(&[2], &[1, 3])
            .str("direction", "reverse")
            .int("hidden_size", 2)
            .int("linear_before_reset", 1)
            .outputs(2);
        case.gives(
            0,
            &[3, 1, 2, 2],
            &[
                -0.248213, -0.282435, 0.215254, -0.691041, 0.0, 0.0, -0.006722, -0.594926, 0.0, 0.0,
                0.244336, -0.092962,
            ],
        );
        case.gives(1, &[1, 2, 2], &[-0.248213, -0.282435, 0.215254, -0.691041]);
    }

    #[test]
    fn rnn_activations_take_their_constants_in_order() {
        let case = Case::new("RNN", 14)
            .ramp(&[2, 1, 2], 1)
            .constant_ramp(&[2, 2, 2], 2)
            .constant_ramp(&[2, 2, 2], 3)
            .constant_ramp(&[2, 4], 4)
            .floats("activation_alpha", &[0.3, 0.4])
            .floats("activation_beta", &[0.6])
            .strs("activations", &["LeakyRelu", "HardSigmoid"])
            .str("direction", "bidirectional")
            .int("hidden_size", 2)
            .outputs(2);
        case.gives(0, &[2, 2, 1, 2], &[-0.69375, -0.3, 1.0, 0.0, -0.395625, 0.21875, 0.975, 0.85]);
        case.gives(1, &[2, 1, 2], &[-0.395625, 0.21875, 1.0, 0.0]);
    }

    #[test]
    fn layout_puts_the_batch_first() {
        let case = Case::new("RNN", 14)
            .ramp(&[2, 3, 2], 1)
            .constant_ramp(&[1, 2, 2], 2)
            .constant_ramp(&[1, 2, 2], 3)
            .int("hidden_size", 2)
            .int("layout", 1)
            .outputs(2);
        case.gives(
            0,
            &[2, 3, 1, 2],
            &[
                -0.786619, -0.462117, -0.160226, 0.598002, 0.089533, 0.922972, -0.670967, -0.761594,
                0.201248, -0.149108, 0.605159, 0.184774,
            ],
        );
        case.gives(1, &[2, 1, 2], &[0.089533, 0.922972, 0.605159, 0.184774]);
    }
}
