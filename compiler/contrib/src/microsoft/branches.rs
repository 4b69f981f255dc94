//! Layers whose tokens have several streams of features, as hyper-connections have in place of one residual: normalization of each
//! stream, and what mixes them before and behind a layer.
//!
//! Streams are `[.., C, H]`, or `[.., C * H]` where `num_branches` is C.

use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::F32;
use onnxc_ir::graph::Op;
use onnxc_ir::graph::dim::product;
use onnxc_ops::norm::by_root_mean_square;
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    own("BranchwiseRMSNorm", branchwise_rms_norm)
        .inputs(&[req("X", "T"), opt("scale", "M")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("epsilon", 1e-5), int("num_branches", 0)])
        .types(&[("T", FLOATS), ("M", FLOATS)])
        .shapes(&[
            "if num_branches = 0: X[D.., C, H]",
            "if num_branches != 0: X[D.., num_branches * H]",
            "if num_branches = 0: scale[C * H|H] | [C, H]",
            "if num_branches != 0: scale[num_branches * H|H] | [num_branches, H]",
        ])
        .doc("division of each stream of features by its root mean square"),
    own("HyperConnectionPreMix", pre_mix)
        .inputs(&[req("streams", "T"), req("pre_mix", "M")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("num_branches", 0), float("reduction_scale", 1.0)])
        .types(&[("T", FLOATS), ("M", FLOATS)])
        .shapes(&[
            "if num_branches = 0: streams[D.., C, H]",
            "if num_branches != 0: streams[D.., num_branches * H]",
            "if num_branches = 0: pre_mix[D.., C] | [D.., C, H|1]",
            "if num_branches != 0: pre_mix[D.., num_branches * H|num_branches] | [D.., num_branches, H|1]",
        ])
        .doc("the weighted sum of streams of features"),
    own("HyperConnectionPostMix", post_mix)
        .inputs(&[
            req("streams", "T"),
            req("block_output", "T"),
            req("post_mix", "M"),
            opt("stream_mix", "M"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[int("num_branches", 0)])
        .types(&[("T", FLOATS), ("M", FLOATS)])
        .shapes(&[
            "if num_branches = 0: streams[D.., C, H]",
            "if num_branches != 0: streams[D.., num_branches * H]",
            "block_output[D.., H]",
            "if num_branches = 0: post_mix[D.., C] | [D.., C, H|1]",
            "if num_branches != 0: post_mix[D.., num_branches] | [D.., num_branches, H|1]",
            "if num_branches = 0: stream_mix[D.., C, C]",
            "if num_branches != 0: stream_mix[D.., num_branches, num_branches]",
        ])
        .doc("streams of features mixed with each other, plus a weighted layer's result"),
    own("EngramGate", engram_gate)
        .inputs(&[
            req("key", "T"),
            req("query", "T"),
            req("value", "T"),
            req("key_norm_scale", "T"),
            req("query_norm_scale", "T"),
            opt("conv_norm_scale", "T"),
        ])
        .outputs(&[req("output", "T"), opt("gated_value_normed", "T")])
        .attributes(&[float("epsilon", 1e-5)])
        .types(&[("T", FLOATS)])
        .shapes(&[
            "key[B, S, C, H]",
            "query[B, S, C, H]",
            "value[B, S, H]",
            "key_norm_scale[C, H]",
            "query_norm_scale[C, H]",
            "conv_norm_scale[C, H]",
        ])
        .doc("values times a gate for each stream, by how alike normalized keys and queries are"),
];

/// Streams in f32 as `[D.., C, H]`.
struct Streams {
    x: ValueId,
    /// `D..`
    lead: Vec<Dim>,
    count: Dim,
    features: Dim,
}

/// The streams that input 0 is.
fn streams(cx: &mut NodeCx<'_, '_>) -> Result<Streams> {
    let (x, count) = (cx.input(0)?, cx.int("num_branches")?);
    if !(0..=0x7fff_ffff).contains(&count) {
        return malformed(format!(
            "num_branches is {count}; it must be 1 or more, or 0 for streams with an axis of their own"
        ));
    }
    let b = &mut *cx.b;
    let mut lead = b.shape(x);
    let Some(features) = lead.pop() else { return malformed("streams without axes") };
    let (count, features) = match count {
        0 => match lead.pop() {
            Some(count) => (count, features),
            None => return malformed(format!("streams {} without an axis of streams", b.ty(x))),
        },
        count => {
            (Dim::from(count), b.divided(&features, count, "features must divide into num_branches streams")?)
        }
    };
    let x = b.cast(x, F32)?;
    let x = b.reshape(x, [lead.as_slice(), &[count.clone(), features.clone()]].concat())?;
    Ok(Streams { x, lead, count, features })
}

impl Streams {
    /// A weight of each stream, `[D.., C]`, or of each of its features, `[D.., C, H or 1]`, in f32 as `[D.., C, H or 1]`; with
    /// `is_flat` the streams' features may be one axis, `[D.., C * H]`.
    fn weight(&self, b: &mut Builder<'_>, weight: ValueId, is_flat: bool) -> Result<ValueId> {
        let weight = b.cast(weight, F32)?;
        let axis = self.lead.len();
        match b.rank(weight) == axis + 1 {
            true if is_flat => of_groups(b, weight, axis, &self.count, &self.features),
            true => b.unsqueeze(weight, &[axis + 1]),
            false => Ok(weight),
        }
    }

    /// A weight that all tokens share, `[C * H]`, `[C, H]` or `[H]`, in f32 as `[C, H]` or `[H]`.
    fn shared_weight(&self, b: &mut Builder<'_>, weight: ValueId) -> Result<ValueId> {
        let weight = b.cast(weight, F32)?;
        let table = vec![self.count.clone(), self.features.clone()];
        let own = match b.shape(weight).as_slice() {
            [own] => own.clone(),
            _ => return Ok(weight),
        };
        match is_whole(&own, &self.features, &self.count) {
            Some(true) => b.reshape(weight, table),
            Some(false) => Ok(weight),
            None => {
                // The streams of the features repeat, those of all features do not.
                let all = b.iota(vec![product(&table)], 0)?;
                let count = b.dim_scalar(&own)?;
                let at = b.binary(BinaryFn::Mod, all, count)?;
                let at = b.reshape(at, table)?;
                b.emit1(Op::Gather { axis: 0 }, &[weight, at])
            }
        }
    }
}

/// Whether there are `few * times` numbers rather than `few`: one of the two holds, and they mean the same if equal. `None` where only the
/// run knows.
fn is_whole(own: &Dim, few: &Dim, times: &Dim) -> Option<bool> {
    let whole = few.clone() * times.clone();
    if own == few || whole == *few {
        return Some(false);
    }
    let tells = own.is_const() && few.is_const() || *own == whole;
    tells.then_some(true)
}

/// `x` whose axis `axis`, its last one, has one number for each of `count` groups, or one for each of the `size` elements of each:
/// `[.., count, 1 or size]`. Agreements ensure that it has one of these numbers.
pub fn of_groups(b: &mut Builder<'_>, x: ValueId, axis: usize, count: &Dim, size: &Dim) -> Result<ValueId> {
    let mut shape = b.shape(x);
    let own = shape[axis].clone();
    let apart = |size: &Dim| [count.clone(), size.clone()];
    match is_whole(&own, count, size) {
        Some(true) => {
            shape.splice(axis.., apart(size));
            b.reshape(x, shape)
        }
        Some(false) => {
            shape.splice(axis.., apart(&Dim::ONE));
            b.reshape(x, shape)
        }
        None => {
            // Element i uses number i, or number i / size where there is one per group.
            let whole = count.clone() * size.clone();
            let all = b.iota(vec![whole.clone()], 0)?;
            let (own, whole) = (b.dim_scalar(&own)?, b.dim_scalar(&whole)?);
            let at = b.binary(BinaryFn::Mul, all, own)?;
            let at = b.binary(BinaryFn::Div, at, whole)?;
            let at = b.reshape(at, apart(size).to_vec())?;
            b.emit1(Op::Gather { axis }, &[x, at])
        }
    }
}

fn branchwise_rms_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, epsilon) = (cx.input("X")?, cx.optional("scale"), cx.float("epsilon")?);
    let streams = streams(cx)?;
    let b = &mut *cx.b;
    let (mut y, _) = by_root_mean_square(b, streams.x, &[streams.lead.len() + 1], epsilon)?;
    if let Some(scale) = scale {
        let scale = streams.shared_weight(b, scale)?;
        y = b.binary(BinaryFn::Mul, y, scale)?;
    }
    let y = b.reshape(y, b.shape(x))?;
    Ok(vec![b.cast(y, b.dtype(x))?])
}

fn pre_mix(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (mix, scale) = (cx.input("pre_mix")?, cx.float("reduction_scale")?);
    let (to, is_flat) = (cx.b.dtype(cx.input("streams")?), cx.int("num_branches")? != 0);
    let streams = streams(cx)?;
    let b = &mut *cx.b;
    let mix = streams.weight(b, mix, is_flat)?;
    let axis = streams.lead.len();
    let y = b.binary(BinaryFn::Mul, streams.x, mix)?;
    let y = b.reduce(ReduceFn::Sum, y, &[axis])?;
    let mut y = b.squeeze(y, &[axis])?;
    if scale != 1.0 {
        y = b.binary_scalar(BinaryFn::Mul, y, f64::from(scale))?;
    }
    Ok(vec![b.cast(y, to)?])
}

fn post_mix(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, result, injected, mix) =
        (cx.input("streams")?, cx.input("block_output")?, cx.input("post_mix")?, cx.optional("stream_mix"));
    let streams = streams(cx)?;
    let b = &mut *cx.b;
    let axis = streams.lead.len();
    let mut y = streams.x;
    if let Some(mix) = mix {
        let mix = b.cast(mix, F32)?;
        // Stream k of the result takes column k.
        let columns: Vec<usize> = (0..axis).chain([axis + 1, axis]).collect();
        let mix = b.transpose(mix, &columns)?;
        y = b.matmul(mix, y)?;
    }
    let injected = streams.weight(b, injected, false)?;
    let result = b.cast(result, F32)?;
    let result = b.unsqueeze(result, &[axis])?;
    let part = b.binary(BinaryFn::Mul, injected, result)?;
    let y = b.binary(BinaryFn::Add, y, part)?;
    let y = b.reshape(y, b.shape(x))?;
    Ok(vec![b.cast(y, b.dtype(x))?])
}

/// `sigmoid(sign(d) * sqrt(max(|d|, 1e-6)))` of `d = sum(key * query) / sqrt(H)`, both normalized, times the value.
fn engram_gate(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (key, query, value) = (cx.input("key")?, cx.input("query")?, cx.input("value")?);
    let (key_scale, query_scale, last) =
        (cx.input("key_norm_scale")?, cx.input("query_norm_scale")?, cx.optional("conv_norm_scale"));
    let (epsilon, wants_norm) = (cx.float("epsilon")?, cx.wants(1));
    let b = &mut *cx.b;
    let to = b.dtype(key);
    let mut scaled = |x: ValueId, scale: ValueId| {
        let (x, scale) = (b.cast(x, F32)?, b.cast(scale, F32)?);
        let (x, _) = by_root_mean_square(b, x, &[3], epsilon)?;
        b.binary(BinaryFn::Mul, x, scale)
    };
    let (key, query) = (scaled(key, key_scale)?, scaled(query, query_scale)?);
    let products = b.binary(BinaryFn::Mul, key, query)?;
    let alike = b.reduce(ReduceFn::Sum, products, &[3])?;
    let size = b.dim_scalar(&b.shape(key)[3].clone())?;
    let size = b.cast(size, F32)?;
    let root = b.unary(UnaryFn::Sqrt, size)?;
    let alike = b.binary(BinaryFn::Div, alike, root)?;
    let (sign, magnitude) = (b.unary(UnaryFn::Sign, alike)?, b.unary(UnaryFn::Abs, alike)?);
    let magnitude = b.binary_scalar(BinaryFn::Max, magnitude, f64::from(1e-6f32))?;
    let magnitude = b.unary(UnaryFn::Sqrt, magnitude)?;
    let gate = b.binary(BinaryFn::Mul, sign, magnitude)?;
    let gate = b.unary(UnaryFn::Sigmoid, gate)?;
    let value = b.cast(value, F32)?;
    let value = b.unsqueeze(value, &[2])?;
    let y = b.binary(BinaryFn::Mul, gate, value)?;
    let mut results = vec![b.cast(y, to)?];
    match last {
        Some(scale) => {
            let (normed, _) = by_root_mean_square(b, y, &[3], epsilon)?;
            let scale = b.cast(scale, F32)?;
            let normed = b.binary(BinaryFn::Mul, normed, scale)?;
            results.push(b.cast(normed, to)?);
        }
        None if wants_norm => {
            return malformed("the output gated_value_normed without conv_norm_scale, by which it is scaled");
        }
        None => {}
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;
    use onnxc_ops::node_case::{Case, ramp};

    fn case(name: &'static str) -> Case {
        crate::tests::case(DOMAIN, name, 1)
    }

    fn refusal(case: Case) -> String {
        case.lower().unwrap_err().message
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn streams_are_normalized_one_by_one() {
        let flat = case("BranchwiseRMSNorm").symbolic(&["n", ""], &[2, 4], &ramp(8, 1)).ramp(&[4], 2);
        let wanted = [-0.131306, -0.984793, 0.447206, 0.0, 0.35355, 0.0, -1.13136, 0.0];
        flat.int("num_branches", 2).gives(0, &[2, 4], &wanted);
        let grouped = case("BranchwiseRMSNorm").ramp(&[2, 2, 2], 1).ramp(&[2], 2).float("epsilon", 0.5);
        let wanted = [-0.105409, -0.790569, 0.0693375, 0.624038, 0.25, 0.0, -0.220863, -0.496942];
        grouped.gives(0, &[2, 2, 2], &wanted);
    }

    #[test]
    fn scales_of_another_number_are_refused() {
        let of = |width: usize, count: i64| {
            let case = case("BranchwiseRMSNorm").ramp(&[2, width], 1).ramp(&[3], 2);
            refusal(case.int("num_branches", count))
        };
        assert!(of(4, 2).contains("which is 4 or 2"), "{}", of(4, 2));
        assert!(of(5, 2).contains("must be a multiple of num_branches"), "{}", of(5, 2));
        assert!(of(4, -1).contains("num_branches is -1"), "{}", of(4, -1));
    }

    /// Two numbers are of the features, four of all streams: the run decides.
    #[test]
    fn scales_of_a_number_that_the_run_tells() {
        let of = |count: usize| {
            let case = case("BranchwiseRMSNorm").ramp(&[1, 2, 2], 1);
            case.symbolic(&["k"], &[count], &ramp(4, 2)[..count])
        };
        let [few, all] = [2, 4].map(|count| of(count).run().unwrap().remove(0).to_f64s().unwrap());
        let known = case("BranchwiseRMSNorm").ramp(&[1, 2, 2], 1);
        known.input::<f32>(&[2], &ramp(4, 2)[..2]).gives(0, &[1, 2, 2], &few);
        let known = case("BranchwiseRMSNorm").ramp(&[1, 2, 2], 1);
        known.input::<f32>(&[4], &ramp(4, 2)).gives(0, &[1, 2, 2], &all);
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn streams_are_summed_with_weights() {
        let flat = case("HyperConnectionPreMix").symbolic(&["n", ""], &[2, 4], &ramp(8, 1)).ramp(&[2, 4], 2);
        let flat = flat.int("num_branches", 2).float("reduction_scale", 0.5);
        flat.gives(0, &[2, 2], &[0.0625, -0.46875, -0.375, -0.46875]);
        flat.float("reduction_scale", 0.0).gives(0, &[2, 2], &[0.0; 4]);
        let grouped =
            case("HyperConnectionPreMix").ramp(&[2, 2, 2], 1).symbolic(&["n", "k"], &[2, 2], &ramp(4, 2));
        grouped.gives(0, &[2, 2], &[-0.3125, 0.875, 1.0, 0.0]);
        let message = refusal(case("HyperConnectionPreMix").ramp(&[2, 2, 2], 1).ramp(&[2, 4], 2));
        assert!(message.contains("pre_mix"), "{message}");
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn streams_are_mixed_and_injected_into() {
        let mixed = case("HyperConnectionPostMix").ramp(&[1, 2, 2], 1).ramp(&[1, 2], 2).ramp(&[1, 2], 3);
        mixed.ramp(&[1, 2, 2], 4).gives(0, &[1, 2, 2], &[0.6875, -1.8125, -0.6875, 1.875]);
        let flat = case("HyperConnectionPostMix").ramp(&[1, 4], 1).ramp(&[1, 2], 2).ramp(&[1, 2, 2], 3);
        flat.int("num_branches", 2).gives(0, &[1, 4], &[-0.25, 1.25, 0.0, -1.3125]);
        let message =
            refusal(case("HyperConnectionPostMix").ramp(&[1, 2, 2], 1).ramp(&[1, 3], 2).ramp(&[1, 2], 3));
        assert!(
            message.contains(
                "dimension 1 of block_output `x` is 3; it must be dimension 2 of streams `x`, which is 2"
            ),
            "{message}"
        );
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn gates_of_keys_and_queries() {
        let case = || {
            let case = case("EngramGate").ramp(&[1, 1, 2, 2], 1).ramp(&[1, 1, 2, 2], 2).ramp(&[1, 1, 2], 3);
            case.ramp(&[2, 2], 4).ramp(&[2, 2], 5)
        };
        let both = case().ramp(&[2, 2], 6).outputs(2);
        both.gives(0, &[1, 1, 2, 2], &[0.742932, 0.0, 0.441166, 0.0]);
        both.gives(1, &[1, 1, 2, 2], &[0.707094, 0.0, 1.76768, 0.0]);
        let message = refusal(case().outputs(2));
        assert!(message.contains("gated_value_normed without conv_norm_scale"), "{message}");
    }

    /// Keys and queries that have nothing in common open the gate half.
    #[test]
    fn a_gate_of_nothing_in_common() {
        let zeros = case("EngramGate").input::<f32>(&[1, 1, 1, 2], &[0.0; 2]).ramp(&[1, 1, 1, 2], 2);
        let zeros = zeros.input::<f32>(&[1, 1, 2], &[1.0, 3.0]).ramp(&[1, 2], 1).ramp(&[1, 2], 2);
        zeros.gives(0, &[1, 1, 1, 2], &[0.5, 1.5]);
    }
}
