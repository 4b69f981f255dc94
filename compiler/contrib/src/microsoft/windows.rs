//! Quantised convolutions and pools, channels first or last.

use super::elementwise::quantized_mean;
use super::{BYTES, DOMAIN, own, quantized, scalar, shifted};
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType::F32;
use onnxc_ir::graph::ValueId;
use onnxc_ir::scalar::BinaryFn;
use onnxc_ops::AttrDefault::{Int, Optional, Required, Str};
use onnxc_ops::pool::{averaged, spatial_axes};
use onnxc_ops::quantize::QLINEAR_CONV;
use onnxc_ops::spatial::{channels_first, channels_last};
use onnxc_ops::{AttrKind, NodeCx, OpDef, attr, opt, req};

pub const ROWS: &[OpDef] = &[
    QLINEAR_CONV
        .domain(DOMAIN)
        .since(1)
        .attributes(&[
            attr("auto_pad", Str("NOTSET")),
            attr("channels_last", Int(0)),
            attr("dilations", Optional(AttrKind::Ints)),
            attr("group", Int(1)),
            attr("kernel_shape", Optional(AttrKind::Ints)),
            attr("pads", Optional(AttrKind::Ints)),
            attr("strides", Optional(AttrKind::Ints)),
        ])
        .shapes(&[
            "if channels_last = 0: x[N, C, D..]",
            "if channels_last != 0: x[N, D.., C]",
            "w[M, G, K..]",
            "w[_, _, kernel_shape..]",
            "len(K) = len(D)",
            "C = G * group",
            "M % group = 0",
            "B[M]",
            "count(x_scale) = 1",
            "count(x_zero_point) = 1",
            "w_scale[] | [M|1]",
            "w_zero_point[] | [M|1]",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
        ])
        .doc("quantized convolution plus bias, channels first or last"),
    own("QLinearAveragePool", qlinear_average_pool)
        .inputs(&[
            req("X", "T"),
            req("x_scale", "tensor(float)"),
            opt("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            opt("y_zero_point", "T"),
        ])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            attr("auto_pad", Str("NOTSET")),
            attr("ceil_mode", Int(0)),
            attr("channels_last", Int(0)),
            attr("count_include_pad", Int(0)),
            attr("kernel_shape", Required(AttrKind::Ints)),
            attr("pads", Optional(AttrKind::Ints)),
            attr("strides", Optional(AttrKind::Ints)),
        ])
        .types(&[("T", BYTES)])
        .shapes(&[
            "if channels_last = 0: X[_, _, D..]",
            "if channels_last != 0: X[_, D.., _]",
            "len(kernel_shape) = len(D)",
            "count(x_scale) = 1",
            "count(x_zero_point) = 1",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
        ])
        .doc("quantized mean over sliding windows"),
    own("QLinearGlobalAveragePool", qlinear_global_average_pool)
        .inputs(&[
            req("X", "T"),
            req("x_scale", "tensor(float)"),
            req("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T"),
        ])
        .outputs(&[req("Y", "T")])
        .attributes(&[attr("channels_last", Int(0))])
        .types(&[("T", BYTES)])
        .shapes(&[
            "X[_, _, ..]",
            "count(x_scale) = 1",
            "count(x_zero_point) = 1",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
        ])
        .doc("quantized mean over the spatial axes"),
];

fn qlinear_average_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, x_scale, x_zero) = (cx.input("X")?, cx.input("x_scale")?, cx.optional("x_zero_point"));
    let (y_scale, y_zero) = (cx.input("y_scale")?, cx.optional("y_zero_point"));
    let is_last = cx.int("channels_last")? != 0;
    let to = cx.b.dtype(x);
    let x = if is_last { channels_first(cx.b, x)? } else { x };
    let x = shifted(cx.b, x, x_zero, F32)?;
    let means = averaged(cx, x)?;
    let b = &mut *cx.b;
    let x_scale = scalar(b, x_scale)?;
    let means = b.binary(BinaryFn::Mul, means, x_scale)?;
    let y = quantized(b, means, y_scale, y_zero, to)?;
    Ok(vec![if is_last { channels_last(b, y)? } else { y }])
}

fn qlinear_global_average_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scales) = (cx.input("X")?, [cx.input("x_scale")?, cx.input("y_scale")?]);
    let zero_points = [Some(cx.input("x_zero_point")?), Some(cx.input("y_zero_point")?)];
    let is_last = cx.int("channels_last")? != 0;
    let b = &mut *cx.b;
    let mut axes = spatial_axes(b, x)?;
    if is_last {
        axes.iter_mut().for_each(|axis| *axis -= 1);
    }
    Ok(vec![quantized_mean(b, x, &axes, scales, zero_points)?])
}
