//! LinearAttention and CausalConvWithState, from which those of ai.onnx came: these have more attributes. And the convolution over
//! tokens of several requests.

use super::sequences::{Carried, Sequences};
use super::{FLOATS, own};
use onnxc_ir::graph::DType::{F32, I32};
use onnxc_ir::graph::Op;
use onnxc_ops::activation::swish_of;
use onnxc_ops::linear_attention::{LINEAR_ATTENTION_SHAPES, causal_convolution, is_swish, linear_attention};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    own("LinearAttention", of_one_state)
        .inputs(&[
            req("query", "T"),
            req("key", "T"),
            req("value", "T"),
            opt("past_state", "S"),
            opt("decay", "T"),
            opt("beta", "T"),
        ])
        .outputs(&[req("output", "T"), req("present_state", "S")])
        .attributes(&[
            int("chunk_size", 64),
            required("kv_num_heads", Int),
            required("q_num_heads", Int),
            float("scale", 0.0),
            int("state_window", 0),
            string("update_rule", "gated_delta"),
        ])
        .types(&[("T", FLOATS), ("S", FLOATS)])
        .shapes(LINEAR_ATTENTION_SHAPES)
        .doc("attention by a matrix state that decays and is corrected at each step"),
    own("CausalConvWithState", convolution)
        .inputs(&[req("input", "T"), req("weight", "T"), opt("bias", "T"), opt("past_state", "T")])
        .outputs(&[req("output", "T"), req("present_state", "T"), opt("state_update", "T")])
        .attributes(&[
            string("activation", "none"),
            int("channels_last", 0),
            int("dilation", 1),
            int("input_channel_offset", 0),
            int("input_channels", 0),
            int("ndim", 1),
            int("state_channels_last", -1),
            int("state_length", 0),
            int("state_update_capacity", 0),
            int("state_window", 0),
        ])
        .types(&[("T", FLOATS)])
        .shapes(&["input[B, C, L]", "weight[C, 1, K]", "bias[C]", "past_state[B, C, (K - 1) * dilation]"])
        .doc("depthwise convolution along time, with what came before as state"),
    own("VarlenCausalConvWithState", packed_convolution)
        .inputs(&[
            req("input", "T"),
            req("weight", "T"),
            req("cumulative_sequence_length", "M"),
            opt("bias", "T"),
            req("initial_state", "T"),
            opt("capture_count", "M"),
            opt("kernel_delta", "T"),
            opt("previous_mask", "T"),
        ])
        .outputs(&[req("output", "T"), req("final_state", "T"), opt("state_update", "T")])
        .attributes(&[
            string("activation", "none"),
            int("delta_offset", 0),
            int("dilation", 1),
            int("group_size", 1),
            int("state_update_capacity", 0),
        ])
        .types(&[("T", FLOATS), ("M", &[I32])])
        .shapes(&[
            "input[N, C]",
            "weight[C, 1, K]",
            "bias[C]",
            "initial_state[B, C, (K - 1) * dilation]",
            "cumulative_sequence_length[B + 1]",
            "capture_count[B]",
        ])
        .doc("CausalConvWithState of packed requests of unlike lengths"),
];

/// Refuses attributes that have another value than the one that is computed.
fn only(cx: &NodeCx<'_, '_>, wanted: &[(&str, i64)]) -> Result<()> {
    for &(name, value) in wanted {
        let found = cx.int(name)?;
        if found != value {
            return unsupported(format!("{name} {found}"));
        }
    }
    Ok(())
}

fn of_one_state(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    only(cx, &[("state_window", 0)])?;
    linear_attention(cx)
}

fn convolution(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let state = [("state_length", 0), ("state_update_capacity", 0), ("state_window", 0)];
    let layout = [("channels_last", 0), ("input_channel_offset", 0), ("input_channels", 0), ("ndim", 1)];
    only(cx, &state)?;
    only(cx, &layout)?;
    if cx.int("state_channels_last")? > 0 {
        return unsupported(format!("state_channels_last {}", cx.int("state_channels_last")?));
    }
    let dilation = dilation(cx)?;
    causal_convolution(cx, dilation)
}

fn dilation(cx: &NodeCx<'_, '_>) -> Result<usize> {
    match cx.int("dilation")? {
        dilation @ 1..=0xffff => Ok(dilation as usize),
        other => malformed(format!("dilation {other}; it must be from 1 to 65535")),
    }
}

/// How many steps a node gives back of each request, from `state_update_capacity`; 0 is none, where there is no `capture_count`.
pub(super) fn capacity(cx: &NodeCx<'_, '_>, counts: Option<ValueId>) -> Result<Dim> {
    let capacity = match cx.int("state_update_capacity")? {
        capacity @ 0..=8 => capacity,
        other => return malformed(format!("state_update_capacity is {other}; it may be from 0 to 8")),
    };
    if counts.is_some() != (capacity != 0) {
        let given = if counts.is_some() { "" } else { "out" };
        return malformed(format!("state_update_capacity {capacity} with{given} capture_count"));
    }
    Ok(Dim::from(capacity))
}

fn packed_convolution(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, weight, bounds, bias) = (
        cx.input("input")?,
        cx.input("weight")?,
        cx.input("cumulative_sequence_length")?,
        cx.optional("bias"),
    );
    let (state, counts) = (cx.input("initial_state")?, cx.optional("capture_count"));
    if cx.optional("kernel_delta").is_some() || cx.optional("previous_mask").is_some() {
        return unsupported("kernel_delta and previous_mask, by which each token has weights of its own");
    }
    let (dilation, swish, capacity) = (dilation(cx)?, is_swish(cx)?, capacity(cx, counts)?);
    let captures = cx.wants(2);
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let ([tokens, channels], [_, _, kernel]) = (&b.shape(x)[..], &b.shape(weight)[..]) else {
        return malformed(format!("convolution of {} with {}", b.ty(x), b.ty(weight)));
    };
    let sequences = Sequences::new(b, bounds, "cumulative_sequence_length", tokens, 0)?;
    let behind = (kernel.clone() - Dim::ONE) * Dim::from(dilation);
    let batch = sequences.count.clone();
    let rows = Carried { sequences: &sequences, behind: behind.clone() };
    let states = b.transpose(state, &[0, 2, 1])?;
    let states = b.reshape(states, vec![batch.clone() * behind.clone(), channels.clone()])?;
    let zero = b.scalar(to, 0.0);
    let zeros = b.expand(zero, vec![Dim::ONE, channels.clone()])?;
    let all = b.concat(&[states, x, zeros], 0)?;

    // The states, the tokens and a row of zeros are what rows are taken from: of each token that of each tap, [N, K].
    let sequence = sequences.of_tokens(b)?;
    let place = sequences.places(b, sequence)?;
    let start = b.emit1(Op::Gather { axis: 0 }, &[sequences.starts, sequence])?;
    let [sequence, place, start] = [sequence, place, start].map(|each| b.unsqueeze(each, &[1]));
    let tap = b.iota(vec![Dim::ONE, kernel.clone()], 1)?;
    let ahead = b.binary_scalar(BinaryFn::Mul, tap, dilation as f64)?;
    let reach = b.dim_scalar(&behind)?;
    let back = b.binary(BinaryFn::Sub, reach, ahead)?;
    let place = b.binary(BinaryFn::Sub, place?, back)?;
    let taps = rows.row(b, sequence?, start?, place)?;
    let windows = b.emit1(Op::Gather { axis: 0 }, &[all, taps])?;
    let windows = b.cast(windows, F32)?;
    let weight = b.reshape(weight, vec![channels.clone(), kernel.clone()])?;
    let weight = b.transpose(weight, &[1, 0])?;
    let weight = b.cast(weight, F32)?;
    let products = b.binary(BinaryFn::Mul, windows, weight)?;
    let sum = b.reduce(ReduceFn::Sum, products, &[1])?;
    let mut y = b.squeeze(sum, &[1])?;
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    if swish {
        y = swish_of(b, y, 1.0)?;
    }

    let last = rows.last(b)?;
    let present = b.emit1(Op::Gather { axis: 0 }, &[all, last])?;
    let mut results = vec![b.cast(y, to)?, b.transpose(present, &[0, 2, 1])?];
    if captures {
        let slots = vec![batch, capacity.clone(), channels.clone()];
        results.push(match counts {
            Some(counts) => {
                let is_asked = sequences.asked(b, counts, &capacity)?;
                let slot = b.iota(vec![Dim::ONE, capacity], 1)?;
                let (number, starts) = rows.numbers(b)?;
                let token = rows.row(b, number, starts, slot)?;
                let none = b.dim_scalar(&(b.shape(all)[0].clone() - Dim::ONE))?;
                let token = b.select(is_asked, token, none)?;
                b.emit1(Op::Gather { axis: 0 }, &[all, token])?
            }
            None => b.expand(zero, slots)?,
        });
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;
    use onnxc_ops::node_case::{Case, ramp};

    /// Numbers of ONNX Runtime 1.32.
    fn case(bounds: &[i32], symbols: [&str; 2]) -> Case {
        let [n, b] = symbols;
        crate::tests::case(DOMAIN, "VarlenCausalConvWithState", 1)
            .symbolic(&[n, ""], &[4, 2], &ramp(8, 1))
            .ramp(&[2, 1, 2], 2)
            .input::<i32>(&[3], bounds)
            .ramp(&[2], 3)
            .symbolic(&[b, "", ""], &[2, 2, 2], &ramp(8, 4))
            .input::<i32>(&[2], &[3, 2])
            .int("dilation", 2)
            .str("activation", "silu")
            .int("state_update_capacity", 2)
            .outputs(3)
    }

    #[test]
    fn a_convolution_of_packed_requests() {
        for symbols in [["", ""], ["n", "b"]] {
            let case = case(&[0, 1, 4], symbols);
            let y = [0.849279, -0.109456, 0.673682, 0.971625, 0.0664012, 0.140544, 1.55814, -0.240616];
            case.gives(0, &[4, 2], &y);
            case.gives(1, &[2, 2, 2], &[0.75, -0.5, -1.25, 1.25, 1.0, -1.0, 0.0, 0.75]);
            case.gives(2, &[2, 2, 2], &[-0.5, 1.25, 0.0, 0.0, 0.25, -0.75, 1.0, 0.0]);
        }
    }

    /// A request without tokens keeps its state.
    #[test]
    fn a_request_of_no_tokens() {
        let wanted = [1.0, -1.0, 0.0, 0.75, 0.5, -0.5, 1.25, 0.25];
        case(&[0, 4, 4], ["n", "b"]).gives(1, &[2, 2, 2], &wanted);
    }

    #[test]
    fn bounds_that_are_none_fail() {
        let message = |case: Case| case.run().unwrap_err().message;
        let found = message(case(&[0, 5, 4], ["", ""]));
        assert!(found.contains("is 1 too small; it must be at least 0 above the one before"), "{found}");
        let found = message(case(&[0, 1, 3], ["", ""]));
        assert!(found.contains("is 3; it must be the number of tokens, which is 4"), "{found}");
        let found = message(case(&[0, 1, 4], ["", ""]).int("dilation", 3));
        assert!(found.contains("initial_state"), "{found}");
        let found = message(case(&[0, 1, 4], ["", ""]).ramp(&[4, 2, 1], 1).ramp(&[4, 1], 2));
        assert!(found.contains("kernel_delta"), "{found}");
    }
}
