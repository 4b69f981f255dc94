//! Recurrent layers with quantised weights, and with a memory.

use super::{BYTES, own};
use onnxc_ir::graph::DType::{F32, F64, I32};
use onnxc_ops::AttrDefault::{Int, Optional, Str};
use onnxc_ops::recurrent::{attending_lstm, lstm};
use onnxc_ops::{AttrKind, OpDef, attr, opt, req};

pub const ROWS: &[OpDef] = &[DYNAMIC_QUANTIZE_LSTM, ATTN_LSTM];

const DYNAMIC_QUANTIZE_LSTM: OpDef = own("DynamicQuantizeLSTM", lstm)
    .inputs(&[
        req("X", "T"),
        req("W", "T2"),
        req("R", "T2"),
        opt("B", "T"),
        opt("sequence_lens", "T1"),
        opt("initial_h", "T"),
        opt("initial_c", "T"),
        opt("P", "T"),
        req("W_scale", "T"),
        req("W_zero_point", "T2"),
        req("R_scale", "T"),
        req("R_zero_point", "T2"),
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
    ])
    .types(&[("T", &[F32]), ("T1", &[I32]), ("T2", BYTES)])
    .shapes(&[
        "X[T, N, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "W[D, I, 4 * H]",
        "R[D, H, 4 * H]",
        "H = hidden_size",
        "B[D, 8 * H]",
        "sequence_lens[N]",
        "initial_h[D, N, H]",
        "initial_c[D, N, H]",
        "P[D, 3 * H]",
        "W_scale[D] | [D, 4 * H]",
        "W_zero_point[D] | [D, 4 * H]",
        "R_scale[D] | [D, 4 * H]",
        "R_zero_point[D] | [D, 4 * H]",
    ])
    .doc("LSTM with 8-bit weights; inputs and states are quantized by their ranges");

const ATTN_LSTM: OpDef = DYNAMIC_QUANTIZE_LSTM
    .name("AttnLSTM")
    .inputs(&[
        req("X", "T"),
        req("W", "T"),
        req("R", "T"),
        opt("B", "T"),
        opt("sequence_lens", "T1"),
        opt("initial_h", "T"),
        opt("initial_c", "T"),
        opt("P", "T"),
        opt("QW", "T"),
        opt("MW", "T"),
        opt("V", "T"),
        opt("M", "T"),
        opt("memory_seq_lens", "T1"),
        opt("AW", "T"),
    ])
    .types(&[("T", &[F32, F64]), ("T1", &[I32])])
    .shapes(&[
        "X[T, N, I]",
        "if direction != bidirectional: W[1, ..]",
        "if direction = bidirectional: W[2, ..]",
        "R[D, 4 * H, H]",
        "H = hidden_size",
        "B[D, 8 * H]",
        "sequence_lens[N]",
        "initial_h[D, N, H]",
        "initial_c[D, N, H]",
        "P[D, 3 * H]",
        "QW[D, H, K]",
        "MW[D, E, K]",
        "V[D, K]",
        "M[N, _, E]",
        "memory_seq_lens[N]",
        "AW[D, E + H, A]",
        "W[D, 4 * H, I + (A else E)]",
    ])
    .lower(attending_lstm)
    .doc("LSTM whose input has what its state attends to in a memory");
