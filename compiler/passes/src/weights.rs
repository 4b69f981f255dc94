//! Weights that a model has as codes of few bits, with a scale for each block of them: which right-hand sides of
//! contractions have that form, through any views and maps of the model.
//!
//! A right-hand side is walked from the contraction down to the codes, `[.., (codes - zero) * scale ..]`. On the way its
//! axes are kept as lists of digits, parts of the axes of the right-hand side: a transpose permutes lists, a reshape joins
//! and splits them, and a broadcast drops digits. What a scale lacks of the digits of the inner axis, from the innermost
//! on, is what the steps of a part share.

use crate::constants::definition;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, MapFn, Op, Tensor, ValueId, code_shift};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

/// Steps of a part, at the least: fewer are not worth a scale of their own.
const LEAST_STEPS: i64 = 8;

/// Steps of a part whose sums of codes times digits, two digits together, 32 bits hold.
const MOST_STEPS: i64 = 256;

/// Operations on the way from a contraction to the codes, at most.
const MAX_DEPTH: usize = 64;

/// A constant, and for each of its axes the digits that it is made of.
struct Leaf {
    value: ValueId,
    axes: Vec<Vec<usize>>,
}

/// What the axes of the right-hand side are made of. Digits 0 and 1 are its two axes; a digit that was split stands for its
/// two halves.
struct Digits {
    extents: Vec<i64>,
    halves: Vec<Option<[usize; 2]>>,
}

/// Weights as they are stored: their codes, and what these mean.
pub(crate) struct Weights {
    digits: Digits,
    codes: Leaf,
    bits: usize,
    signed: bool,
    scales: Vec<Leaf>,
    zeros: Vec<Leaf>,
    /// What is subtracted from the codes, besides.
    bias: usize,
    /// What the weights are rounded to when they are scaled.
    rounded: Option<DType>,
    pub parts: i64,
    pub steps: i64,
}

impl Digits {
    fn new(extents: [i64; 2]) -> Digits {
        Digits { extents: extents.to_vec(), halves: vec![None; 2] }
    }

    /// The digits of a list that are left after all splits.
    fn whole(&self, list: &[usize]) -> Vec<usize> {
        let mut whole = vec![];
        let mut open: Vec<usize> = list.iter().rev().copied().collect();
        while let Some(digit) = open.pop() {
            match self.halves[digit] {
                Some([outer, inner]) => open.extend([inner, outer]),
                None if self.extents[digit] != 1 => whole.push(digit),
                None => {}
            }
        }
        whole
    }

    fn split(&mut self, digit: usize, inner: i64) -> [usize; 2] {
        let first = self.extents.len();
        self.extents.extend([self.extents[digit] / inner, inner]);
        self.halves.extend([None, None]);
        self.halves[digit] = Some([first, first + 1]);
        [first, first + 1]
    }

    /// Digits in row-major order, dealt out to axes of these extents.
    fn deal(&mut self, list: &[usize], shape: &[i64]) -> Option<Vec<Vec<usize>>> {
        let mut left = self.whole(list);
        let mut axes = vec![vec![]; shape.len()];
        for (axis, &extent) in shape.iter().enumerate().rev() {
            let mut wanted = extent;
            while wanted > 1 {
                let digit = left.pop()?;
                let own = self.extents[digit];
                let (taken, rest) = match (wanted % own, own % wanted) {
                    (0, _) => (digit, own),
                    (_, 0) => {
                        let [outer, inner] = self.split(digit, wanted);
                        left.push(outer);
                        (inner, wanted)
                    }
                    _ => return None,
                };
                axes[axis].insert(0, taken);
                wanted /= rest;
            }
        }
        left.is_empty().then_some(axes)
    }

    /// A constant behind a view of it; `None` where the operation is not a view, or one that these lists cannot say.
    fn behind(&mut self, graph: &Graph, leaf: &Leaf) -> Option<Leaf> {
        let (op, inputs) = definition(graph, leaf.value)?;
        let own = sizes(graph, *inputs.first()?)?;
        let axes = match op {
            Op::Reshape { .. } => self.deal(&leaf.axes.concat(), &own)?,
            Op::Transpose { perm } => {
                let mut axes = vec![vec![]; perm.len()];
                perm.iter().zip(&leaf.axes).for_each(|(&axis, list)| axes[axis] = list.clone());
                axes
            }
            Op::Expand { .. } => broadcast(&own, &leaf.axes)?,
            _ => return None,
        };
        Some(Leaf { value: inputs[0], axes })
    }

    fn count(&self, list: &[usize]) -> i64 {
        self.whole(list).iter().map(|&digit| self.extents[digit]).product()
    }
}

fn sizes(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    Some(graph.ty(value).static_shape()?.into_iter().map(|size| size as i64).collect())
}

fn is_code(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2)
}

/// The digits of an operand that is broadcast to the shape of a result.
fn broadcast(own: &[i64], axes: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    let lead = axes.len().checked_sub(own.len())?;
    Some(
        own.iter()
            .zip(&axes[lead..])
            .map(|(&size, list)| if size == 1 { vec![] } else { list.clone() })
            .collect(),
    )
}

/// Elements of the largest tensor of codes that an expression of constants converts to reals.
fn code_elements(graph: &Graph, value: ValueId) -> i64 {
    let (mut most, mut open, mut seen) = (0, vec![value], 0);
    while let Some(value) = open.pop() {
        let Some((op, inputs)) = definition(graph, value).filter(|_| graph.is_constant(value)) else {
            continue;
        };
        seen += 1;
        if seen > MAX_DEPTH {
            break;
        }
        match op {
            Op::Map(MapFn::Cast { .. }) if is_code(graph.ty(inputs[0]).dtype) => {
                most = most.max(graph.ty(value).elements().as_const().unwrap_or(0));
            }
            _ => open.extend(inputs),
        }
    }
    most
}

/// How many bits the elements of a tensor of codes have, and whether they are signed.
fn bits_of(graph: &Graph, mut value: ValueId) -> (usize, bool) {
    match graph.ty(value).dtype {
        DType::U4 => return (4, false),
        DType::I4 => return (4, true),
        DType::U2 => return (2, false),
        DType::I2 => return (2, true),
        DType::I8 => return (8, true),
        _ => {}
    }
    while let Some((op, inputs)) = definition(graph, value) {
        match op {
            op if op.is_view() => value = inputs[0],
            Op::Map(MapFn::Binary(BinaryFn::BitAnd)) => {
                let mask = inputs.iter().filter_map(|&input| graph.constant_data(input)?.to_i64s());
                return match mask.flatten().max() {
                    Some(0..=3) => (2, false),
                    Some(4..=15) => (4, false),
                    _ => (8, false),
                };
            }
            _ => break,
        }
    }
    (8, false)
}

/// Whether an f32 constant is made of values of a narrower type.
pub(crate) fn holds(graph: &Graph, value: ValueId, dtype: DType) -> bool {
    if let Some((Op::Map(MapFn::Cast { .. }), inputs)) = definition(graph, value) {
        return graph.ty(inputs[0]).dtype == dtype;
    }
    let rounded = |tensor: &Tensor| interp::cast(&interp::cast(tensor, dtype, true), DType::F32, true);
    graph.constant_data(value).is_some_and(|tensor| rounded(tensor).data == tensor.data)
}

/// Whether the elements of a constant plus `least` are integers of 8 bits without a sign.
fn is_bytes(graph: &Graph, value: ValueId, least: usize) -> bool {
    if let Some((Op::Map(MapFn::Cast { .. }), inputs)) = definition(graph, value) {
        let (dtype, most) = (graph.ty(inputs[0]).dtype, 256 - least as i64);
        return match dtype {
            DType::U8 | DType::U4 | DType::U2 => 1i64 << dtype.bits() <= most,
            DType::I8 | DType::I4 | DType::I2 => 1usize << (dtype.bits() - 1) <= least,
            _ => false,
        };
    }
    let values = graph.constant_data(value).and_then(|tensor| tensor.to_f64s());
    let is_byte = |value: &f64| (0.0..=255.0).contains(&(value + least as f64)) && value.fract() == 0.0;
    values.is_some_and(|values| values.iter().all(is_byte))
}

/// The value of a constant of one element.
fn scalar(graph: &Graph, value: ValueId) -> Option<f64> {
    let values = graph.constant_data(value).filter(|tensor| tensor.len() == 1)?.to_f64s()?;
    values.first().copied()
}

impl Weights {
    /// A right-hand side `[k, n]` as codes, if it is a constant made of codes. Weights that are dequantized to the 16
    /// bits of their scales are not rounded to them, unless `exact`.
    pub(crate) fn of(graph: &Graph, rhs: ValueId, exact: bool) -> Option<Weights> {
        let [k, n] = sizes(graph, rhs)?.try_into().ok()?;
        if !graph.is_constant(rhs) {
            return None;
        }
        let mut weights = Weights {
            digits: Digits::new([k, n]),
            codes: Leaf { value: rhs, axes: vec![vec![0], vec![1]] },
            bits: 8,
            signed: false,
            scales: vec![],
            zeros: vec![],
            bias: 0,
            rounded: None,
            parts: 1,
            steps: k,
        };
        weights.walk(graph, exact)?;
        weights.cut(graph)?;
        Some(weights)
    }

    /// Follows the right-hand side to the codes.
    fn walk(&mut self, graph: &Graph, exact: bool) -> Option<()> {
        for _ in 0..MAX_DEPTH {
            let value = self.codes.value;
            let (op, inputs) = definition(graph, value)?;
            // What is computed in fewer bits is rounded to them.
            if exact && graph.ty(value).dtype != DType::F32 {
                return None;
            }
            match op {
                Op::Map(MapFn::Cast { .. }) if is_code(graph.ty(inputs[0]).dtype) => {
                    self.codes.value = inputs[0];
                    (self.bits, self.signed) = bits_of(graph, inputs[0]);
                    return Some(());
                }
                Op::Map(MapFn::Cast { to, .. }) => {
                    let rounds = matches!(to, DType::F16 | DType::BF16) && !exact && self.scales.is_empty();
                    let float = graph.ty(inputs[0]).dtype.is_float();
                    if !float || !(rounds || *to == DType::F32) {
                        return None;
                    }
                    if rounds {
                        self.rounded = Some(*to);
                    }
                    self.codes.value = inputs[0];
                }
                Op::Map(MapFn::Binary(function @ (BinaryFn::Mul | BinaryFn::Sub))) => {
                    let elements = [0, 1].map(|side| code_elements(graph, inputs[side]));
                    let side = usize::from(elements[1] > elements[0]);
                    let other = inputs[1 - side];
                    let axes = broadcast(&sizes(graph, other)?, &self.codes.axes)?;
                    let mut parameter = Leaf { value: other, axes };
                    while let Some(behind) = self.digits.behind(graph, &parameter) {
                        parameter = behind;
                    }
                    match function {
                        BinaryFn::Mul if self.zeros.is_empty() && self.bias == 0 => {
                            self.scales.push(parameter)
                        }
                        BinaryFn::Sub if side == 0 => self.subtract(graph, parameter),
                        _ => return None,
                    }
                    let axes = broadcast(&sizes(graph, inputs[side])?, &self.codes.axes)?;
                    self.codes = Leaf { value: inputs[side], axes };
                }
                _ => self.codes = self.digits.behind(graph, &self.codes)?,
            }
        }
        None
    }

    fn subtract(&mut self, graph: &Graph, zero: Leaf) {
        match scalar(graph, zero.value) {
            Some(value) if value.fract() == 0.0 && (0.0..=255.0).contains(&value) => {
                self.bias += value as usize
            }
            _ => self.zeros.push(zero),
        }
    }

    /// Cuts the inner axis into parts whose steps share all parameters.
    fn cut(&mut self, graph: &Graph) -> Option<()> {
        let inner = self.digits.whole(&[0]);
        // Every element of the right-hand side has a code of its own.
        if self.digits.count(&self.codes.axes.concat()) != self.digits.count(&[0, 1]) {
            return None;
        }
        let shared = |leaf: &Leaf| {
            let own = self.digits.whole(&leaf.axes.concat());
            inner.iter().rposition(|digit| own.contains(digit)).map_or(0, |at| at + 1)
        };
        let outer = self.scales.iter().chain(&self.zeros).map(shared).max().unwrap_or(0);
        self.steps = self.digits.count(&inner[outer..]);
        self.parts = self.digits.count(&inner[..outer]);
        if !(self.steps as usize).is_multiple_of(32 / self.bits) {
            self.bits = 8;
        }
        // Where the scales have more bits, it is the model that rounds.
        if let Some(to) = self.rounded
            && !self.scales.iter().any(|scale| holds(graph, scale.value, to))
        {
            return None;
        }
        // Of bytes that are not scaled there are contractions of bytes.
        (self.steps >= LEAST_STEPS && !self.scales.is_empty()).then_some(())
    }

    /// The type that stands for the codes where panel widths are chosen.
    pub(crate) fn dtype(&self) -> DType {
        if self.bits == 8 { DType::U8 } else { DType::U4 }
    }

    /// What is added to signed codes so that they have no sign.
    fn least(&self) -> usize {
        if self.signed { 1 << (self.bits - 1) } else { 0 }
    }

    /// Whether the codes can be those of exact sums of bytes, `digits` of them for each step of the left-hand side: whole
    /// words, integral zeros, and sums that 32 bits hold.
    pub(crate) fn as_bytes(&self, graph: &Graph) -> bool {
        (self.steps as usize).is_multiple_of(DOT_DEPTH)
            && self.steps <= MOST_STEPS
            && self.zeros.len() <= 1
            && self.zeros.iter().all(|zero| is_bytes(graph, zero.value, self.least()))
    }

    /// The weights in panels of `nr` columns: `[panels, parts, steps, nr]`. If `words`, codes of 8 bits too lie in words, and
    /// zeros are bytes; see [`Weights::as_bytes`].
    pub(crate) fn pack(&self, b: &mut Builder, nr: usize, words: bool) -> Result<ValueId> {
        let [parts, steps] = [self.parts, self.steps].map(Dim::from);
        let n = Dim::from(self.digits.count(&[1]));
        let codes = self.in_order(b, &self.codes, &[0, 1])?;
        let codes = b.reshape(codes, vec![parts, steps, n])?;
        let codes = b.emit1(Op::Pack { batch: 0, k: 2, nr }, &[codes])?;
        let (codes, bias) = self.words(b, codes, words)?;
        let mut inputs = vec![codes];
        for (leaves, join) in [(&self.scales, BinaryFn::Mul), (&self.zeros, BinaryFn::Add)] {
            let narrow = match (join, &leaves[..]) {
                (BinaryFn::Mul, [only]) => {
                    [DType::BF16, DType::F16].into_iter().find(|to| holds(b.graph, only.value, *to))
                }
                (BinaryFn::Add, [_]) if words => Some(DType::U8),
                _ => None,
            };
            let mut all = None;
            for leaf in leaves {
                let own = self.parameter(b, leaf)?;
                all = Some(match all {
                    Some(before) => b.binary(join, before, own)?,
                    None => own,
                });
            }
            if let Some(mut parameter) = all {
                if narrow == Some(DType::U8) && self.signed {
                    parameter = b.binary_scalar(BinaryFn::Add, parameter, self.least() as f64)?;
                }
                if let Some(narrow) = narrow {
                    parameter = b.cast(parameter, narrow)?;
                }
                inputs.push(b.emit1(Op::Pack { batch: 0, k: 1, nr }, &[parameter])?);
            }
        }
        b.emit1(Op::Dequantize { bits: self.bits, bias }, &inputs)
    }

    /// Packed codes `[panels, parts, steps, nr]` in the elements that they are read from, and their bias.
    fn words(&self, b: &mut Builder, codes: ValueId, words: bool) -> Result<(ValueId, usize)> {
        let per_word = 32 / self.bits;
        if self.bits == 8 && !words {
            let to = if self.signed { DType::I8 } else { DType::U8 };
            return Ok((b.cast(codes, to)?, self.bias));
        }
        let mut codes = b.cast(codes, DType::I32)?;
        let mut bias = self.bias;
        if self.signed {
            codes = b.binary_scalar(BinaryFn::Add, codes, self.least() as f64)?;
            // Zeros that are bytes have it added.
            bias += if words && !self.zeros.is_empty() { 0 } else { self.least() };
        }
        let mut shape = b.shape(codes);
        let steps = Dim::from(self.steps as usize / per_word);
        shape.splice(2..3, [steps.clone(), Dim::from(per_word)]);
        let codes = b.reshape(codes, shape.clone())?;
        let shifts: Vec<i32> = (0..per_word).map(|place| code_shift(self.bits, place) as i32).collect();
        let shifts = b.constant(Tensor::from_slice(&[per_word, 1], &shifts));
        let codes = b.binary(BinaryFn::Shl, codes, shifts)?;
        let words = b.reduce(ReduceFn::Sum, codes, &[3])?;
        shape.remove(3);
        Ok((b.reshape(words, shape)?, bias))
    }

    /// A parameter as `[parts, n]`.
    fn parameter(&self, b: &mut Builder, leaf: &Leaf) -> Result<ValueId> {
        let inner = self.digits.whole(&[0]);
        let outer: Vec<usize> = {
            let mut count = 1;
            let parts = |digit: &&usize| {
                let before = count < self.parts;
                count *= self.digits.extents[**digit];
                before
            };
            inner.iter().take_while(parts).copied().collect()
        };
        let wanted = [outer, self.digits.whole(&[1])].concat();
        let value = self.in_order(b, leaf, &wanted)?;
        let own = self.digits.whole(&leaf.axes.concat());
        let extents = |all: bool| -> Vec<Dim> {
            let size =
                |digit: &usize| if all || own.contains(digit) { self.digits.extents[*digit] } else { 1 };
            wanted.iter().map(|digit| Dim::from(size(digit))).collect()
        };
        let value = b.reshape(value, extents(false))?;
        let value = b.expand(value, extents(true))?;
        b.reshape(value, [self.parts, self.digits.count(&[1])].map(Dim::from).to_vec())
    }

    /// The elements of a leaf in the order of those of `wanted` that it has.
    fn in_order(&self, b: &mut Builder, leaf: &Leaf, wanted: &[usize]) -> Result<ValueId> {
        let own = self.digits.whole(&leaf.axes.concat());
        let wanted = self.digits.whole(wanted);
        let extents = own.iter().map(|&digit| Dim::from(self.digits.extents[digit])).collect();
        let value = b.reshape(leaf.value, extents)?;
        let perm: Vec<usize> =
            wanted.iter().filter_map(|digit| own.iter().position(|own| own == digit)).collect();
        b.transpose(value, &perm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the output of a graph is codes times scales.
    fn is_found(text: &str, exact: bool) -> bool {
        let graph = onnxc_ir::graph::parse::parse(text).unwrap();
        Weights::of(&graph, graph.outputs[0].1, exact).is_some()
    }

    /// Weights in f16 are codes times scales if the scales are of f16, too: else the model rounds what they give.
    #[test]
    fn scales_of_more_bits_than_the_weights() {
        let found = |scale: &str, exact: bool| {
            let codes = (0..32).map(|at| (at * 7 % 256).to_string()).collect::<Vec<_>>().join(", ");
            let text = format!(
                r#"graph "weights" {{
  v0 = const u8[16, 2] [{codes}]
  v1 = const cast v0 {{to=f32, saturate=true}} : f32[16, 2]
  v2 = const f32[] [{scale}]
  v3 = const mul v1, v2 : f32[16, 2]
  v4 = const cast v3 {{to=f16, saturate=true}} : f16[16, 2]
  v5 = const cast v4 {{to=f32, saturate=true}} : f32[16, 2]
  return v5 "y"
}}"#
            );
            is_found(&text, exact)
        };
        assert!(found("0.375", false));
        assert!(!found("0.1", false));
        assert!(!found("0.375", true));
    }

    /// A product in f16 is rounded to it, which `--exact` keeps.
    #[test]
    fn what_is_scaled_in_fewer_bits() {
        let found = |exact: bool| {
            let text = r#"graph "weights" {
  v0 = const u8[16, 1] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255]
  v1 = const cast v0 {to=f16, saturate=true} : f16[16, 1]
  v2 = const f16[] [0.375]
  v3 = const mul v1, v2 : f16[16, 1]
  v4 = const cast v3 {to=f32, saturate=true} : f32[16, 1]
  return v4 "y"
}"#;
            is_found(text, exact)
        };
        assert!(found(false));
        assert!(!found(true));
    }

    /// Between two scales the model rounds, which no scale of codes stands for.
    #[test]
    fn what_is_rounded_between_two_scales() {
        let found = |between: &str| {
            let text = format!(
                r#"graph "weights" {{
  v0 = const u8[16, 1] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255]
  v1 = const cast v0 {{to=f32, saturate=true}} : f32[16, 1]
  v2 = const f32[] [0.1]
  v3 = const mul v1, v2 : f32[16, 1]
  v4 = const cast v3 {{to={between}, saturate=true}} : {between}[16, 1]
  v5 = const cast v4 {{to=f32, saturate=true}} : f32[16, 1]
  v6 = const f32[] [0.375]
  v7 = const mul v5, v6 : f32[16, 1]
  return v7 "y"
}}"#
            );
            is_found(&text, false)
        };
        assert!(found("f32"));
        assert!(!found("f16"));
    }

    /// Scales of two digits of the inner axis, that of the parts, are laid out by both of them.
    #[test]
    fn scales_of_parts_and_of_their_parts() {
        let list = |count: usize, number: fn(usize) -> usize| {
            (0..count).map(|at| number(at).to_string()).collect::<Vec<_>>().join(", ")
        };
        let text = format!(
            r#"graph "weights" {{
  v0 = const u8[4, 2, 16, 2] [{}]
  v1 = const cast v0 {{to=f32, saturate=true}} : f32[4, 2, 16, 2]
  v2 = const f32[4, 1, 1, 2] [{}]
  v3 = const mul v1, v2 : f32[4, 2, 16, 2]
  v4 = const f32[2, 1, 1] [0.5, 2]
  v5 = const mul v3, v4 : f32[4, 2, 16, 2]
  v6 = const reshape v5 {{shape=[128, 2]}} : f32[128, 2]
  return v6 "y"
}}"#,
            list(256, |at| at * 7 % 256),
            list(8, |at| at + 1)
        );
        let mut graph = onnxc_ir::graph::parse::parse(&text).unwrap();
        let value = graph.outputs[0].1;
        let whole = onnxc_ir::interp::run(&graph, &[]).unwrap().remove(0);
        let weights = Weights::of(&graph, value, false).unwrap();
        assert_eq!((weights.parts, weights.steps), (8, 16));
        let origin = cranelift_entity::EntityRef::new(0);
        let packed = weights.pack(&mut Builder::new(&mut graph, origin), 2, false).unwrap();
        // It stays as the codes and the scales.
        assert!(!graph.is_constant(packed));
        graph.outputs[0].1 = packed;
        let found = onnxc_ir::interp::run(&graph, &[]).unwrap().remove(0);
        assert_eq!(found.to_f64s(), whole.to_f64s());
    }
}
