//! LinearAttention and CausalConvWithState, from which those of ai.onnx came: these have more attributes.

use super::DOMAIN;
use crate::op::linear_attention::{LINEAR_ATTENTION_SHAPES, causal_convolution, linear_attention};
use crate::op::row::*;

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    OpDef { domain: DOMAIN, ..row("LinearAttention", 1,
        &[req("query", "T"), req("key", "T"), req("value", "T"), opt("past_state", "S"), opt("decay", "T"),
          opt("beta", "T")],
        &[req("output", "T"), req("present_state", "S")],
        &[int("chunk_size", 64), required("kv_num_heads", Int), required("q_num_heads", Int), float("scale", 0.0),
          int("state_window", 0), string("update_rule", "gated_delta")],
        &[("T", super::FLOATS), ("S", super::FLOATS)], LINEAR_ATTENTION_SHAPES, of_one_state,
        "attention by a matrix state that decays and is corrected at each step") },
    OpDef { domain: DOMAIN, ..row("CausalConvWithState", 1,
        &[req("input", "T"), req("weight", "T"), opt("bias", "T"), opt("past_state", "T")],
        &[req("output", "T"), req("present_state", "T"), opt("state_update", "T")],
        &[string("activation", "none"), int("channels_last", 0), int("dilation", 1), int("input_channel_offset", 0),
          int("input_channels", 0), int("ndim", 1), int("state_channels_last", -1), int("state_length", 0),
          int("state_update_capacity", 0), int("state_window", 0)],
        &[("T", super::FLOATS)],
        &["input[B, C, L]", "weight[C, 1, K]", "bias[C]", "past_state[B, C, (K - 1) * dilation]"], convolution,
        "depthwise convolution along time, with what came before as state") },
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
    let dilation = match cx.int("dilation")? {
        dilation @ 1..=0xffff => dilation as usize,
        other => return malformed(format!("dilation {other}; it must be from 1 to 65535")),
    };
    causal_convolution(cx, dilation)
}
