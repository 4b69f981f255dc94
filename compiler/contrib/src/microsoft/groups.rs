//! Group normalization as diffusion models have it: an activation behind it, and a sum before.

use super::own;
use onnxc_ir::graph::DType::{F16, F32};
use onnxc_ops::activation::swish_of;
use onnxc_ops::norm::{normalized_groups, scale_and_shift};
use onnxc_ops::row::*;
use onnxc_ops::spatial::{channels_first, channels_last};

pub const ROWS: &[OpDef] = &[
    GROUP_NORM,
    GROUP_NORM
        .name("SkipGroupNorm")
        .inputs(&[req("X", "T"), req("gamma", "M"), req("beta", "M"), req("skip", "T"), opt("bias", "T")])
        .outputs(&[req("Y", "T"), opt("S", "T")])
        .shapes(&[
            "if channels_last != 0: X[N, H, W, C]",
            "if channels_last = 0: X[N, C, H, W]",
            "C % groups = 0",
            "gamma[C]",
            "beta[C]",
            "if channels_last != 0: skip[N, H|1, W|1, C] | [N, C]",
            "if channels_last = 0: skip[N, C, H|1, W|1] | [N, C]",
            "bias[C]",
        ])
        .doc("group normalization of a sum of two images and a bias"),
];

const GROUP_NORM: OpDef = own("GroupNorm", group_norm)
    .inputs(&[req("X", "T"), req("gamma", "M"), req("beta", "M")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        required("activation", Int),
        int("channels_last", 1),
        float("epsilon", 1e-5),
        required("groups", Int),
    ])
    .types(&[("T", &[F16, F32]), ("M", &[F16, F32])])
    .shapes(&[
        "if channels_last != 0: X[_, _, _, C]",
        "if channels_last = 0: X[_, C, _, _]",
        "C % groups = 0",
        "gamma[C]",
        "beta[C]",
    ])
    .doc("group normalization, and x * sigmoid(x) of it");

fn group_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, gamma, beta) = (cx.input("X")?, cx.input("gamma")?, cx.input("beta")?);
    let (skip, bias) = (cx.optional(3), cx.optional(4));
    let is_last = cx.int("channels_last")? != 0;
    let (groups, epsilon) = (cx.int("groups")?, cx.float("epsilon")?);
    let silu = match cx.int("activation")? {
        0 => false,
        1 => true,
        other => return not_one_of("activation", other, "0 (none), 1 (SiLU)"),
    };
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let mut sum = b.cast(x, F32)?;
    if let Some(mut skip) = skip {
        if b.rank(skip) == 2 {
            skip = b.unsqueeze(skip, if is_last { &[1, 2] } else { &[2, 3] })?;
        }
        let skip = b.cast(skip, F32)?;
        sum = b.binary(BinaryFn::Add, sum, skip)?;
    }
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        let bias = if is_last { bias } else { b.unsqueeze(bias, &[1, 2])? };
        sum = b.binary(BinaryFn::Add, sum, bias)?;
    }
    let first = if is_last { channels_first(b, sum)? } else { sum };
    let shape = b.shape(first);
    let y = normalized_groups(b, first, groups, epsilon)?;
    let y = b.reshape(y, shape)?;
    let mut y = scale_and_shift(b, y, gamma, beta)?;
    if silu {
        y = swish_of(b, y, 1.0)?;
    }
    let y = if is_last { channels_last(b, y)? } else { y };
    Ok(vec![b.cast(y, dtype)?, b.cast(sum, dtype)?].into_iter().take(cx.def.outputs.len()).collect())
}
