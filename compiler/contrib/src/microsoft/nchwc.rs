//! The domain `com.microsoft.nchwc`: what ONNX Runtime's last level of optimization saves. Between ReorderInput and
//! ReorderOutput lie values whose channels are in blocks, `[N, C / block, H, W, block]`, under the declared shape
//! `[N, C, H, W]`. The lowerings undo the blocks, compute as the standard operators do, and make the blocks again; passes
//! cancel what lies between two of them.

use super::fused::conv_activation;
use super::gates::shaped_as;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Kind;
use onnxc_ops::conv::biased;
use onnxc_ops::pool::{averaged, max_pool_of};
use onnxc_ops::resize::enlarged;
use onnxc_ops::row::*;
use onnxc_ops::spatial::{channels_first, channels_last};

/// A row of the domain, in its only version.
const fn blocked(name: &'static str, lower: onnxc_ops::LowerFn) -> OpDef {
    op(name, 1, lower).domain("com.microsoft.nchwc").outputs(OUTPUTS).types(TYPES)
}

const OUTPUTS: &[Param] = &[req("Y", "T")];
const TYPES: &[(&str, &[DType])] = &[("T", F32S)];

pub const ROWS: &[OpDef] = &[
    blocked("ReorderInput", reorder_input)
        .inputs(&[req("X", "T")])
        .attributes(&[int("channels_last", 0)])
        .shapes(&["X[_, _, _, _]"])
        .doc("channels put into blocks, the last filled up with zeros"),
    blocked("ReorderOutput", reorder_output)
        .inputs(&[req("X", "T")])
        .attributes(&[int("channels", 0), int("channels_last", 0)])
        .shapes(&["X[_, C, _, _]", "channels <= C"])
        .doc("channels taken out of their blocks"),
    blocked("Conv", conv)
        .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T"), opt("Sum", "T")])
        .attributes(&[
            optional("activation", Str),
            optional("activation_params", Floats),
            string("auto_pad", "NOTSET"),
            optional("dilations", Ints),
            int("group", 1),
            optional("kernel_shape", Ints),
            optional("pads", Ints),
            optional("strides", Ints),
        ])
        .shapes(&[
            "X[N, C, _, _]",
            "W[M, G, K, L]",
            "C = G * group",
            "M % group = 0",
            "B[M]",
            "Sum[N, M, _, _]",
        ])
        .doc("activation of a convolution plus bias plus Sum, channels in blocks"),
    blocked("MaxPool", |cx| in_blocks(cx, |cx, x| Ok(max_pool_of(cx, x)?.remove(0))))
        .inputs(&[req("X", "T")])
        .attributes(&[
            string("auto_pad", "NOTSET"),
            int("ceil_mode", 0),
            optional("dilations", Ints),
            required("kernel_shape", Ints),
            optional("pads", Ints),
            int("storage_order", 0),
            optional("strides", Ints),
        ])
        .shapes(POOL_SHAPES)
        .doc("maximum over sliding windows, channels in blocks"),
    blocked("AveragePool", |cx| in_blocks(cx, averaged))
        .inputs(&[req("X", "T")])
        .attributes(&[
            string("auto_pad", "NOTSET"),
            int("ceil_mode", 0),
            int("count_include_pad", 0),
            optional("dilations", Ints),
            required("kernel_shape", Ints),
            optional("pads", Ints),
            optional("strides", Ints),
        ])
        .shapes(POOL_SHAPES)
        .doc("mean over sliding windows, channels in blocks"),
    blocked("GlobalMaxPool", |cx| in_blocks(cx, |cx, x| cx.b.reduce(ReduceFn::Max, x, &[2, 3])))
        .inputs(&[req("X", "T")])
        .shapes(&["X[_, _, _, _]"])
        .doc("maximum over the spatial axes, channels in blocks"),
    blocked("GlobalAveragePool", |cx| in_blocks(cx, |cx, x| cx.b.mean(x, &[2, 3])))
        .inputs(&[req("X", "T")])
        .shapes(&["X[_, _, _, _]"])
        .doc("mean over the spatial axes, channels in blocks"),
    blocked("Upsample", upsample)
        .inputs(&[req("X", "T")])
        .attributes(&[
            string("coordinate_transformation_mode", "asymmetric"),
            string("mode", "nearest"),
            optional("scales", Ints),
        ])
        .shapes(&["X[_, _, _, _]"])
        .doc("an image enlarged by whole numbers, channels in blocks"),
];

const POOL_SHAPES: &[&str] = &["X[_, _, D..]", "len(D) = 2", "len(kernel_shape) = 2"];

/// Channels per block. Where it does not follow from the weights of the model, only the caller knows it.
fn block(cx: &mut NodeCx<'_, '_>) -> Result<usize> {
    cx.bodies.block().ok_or_else(|| {
        let message = "the model was saved in the layout of one machine, and does not say how many channels its blocks have: \
                       give --nchwc-block 16 if that was x86-64 with AVX-512 or aarch64, 8 if it was other x86-64";
        Error::new(Stage::Import, Kind::Usage, message)
    })
}

/// How many blocks a number of channels has.
fn blocks(b: &mut Builder<'_>, channels: &Dim, block: usize, what: &str) -> Result<Dim> {
    b.divided(channels, block, &format!("{what} must divide into blocks of {block}"))
}

/// `[N, C, H, W]` with channels in blocks, as one with plain channels.
fn from_blocks(b: &mut Builder<'_>, x: ValueId, block: usize) -> Result<ValueId> {
    let shape = b.shape(x);
    let count = blocks(b, &shape[1], block, "channels")?;
    let [n, _, h, w] = &shape[..] else { return malformed(format!("{} has no 4 axes", b.ty(x))) };
    let x = b.reshape(x, vec![n.clone(), count, h.clone(), w.clone(), Dim::from(block)])?;
    let x = b.transpose(x, &[0, 1, 4, 2, 3])?;
    b.reshape(x, shape)
}

/// The other way around.
fn to_blocks(b: &mut Builder<'_>, x: ValueId, block: usize) -> Result<ValueId> {
    let shape = b.shape(x);
    let count = blocks(b, &shape[1], block, "channels")?;
    let [n, _, h, w] = &shape[..] else { return malformed(format!("{} has no 4 axes", b.ty(x))) };
    let x = b.reshape(x, vec![n.clone(), count, Dim::from(block), h.clone(), w.clone()])?;
    let x = b.transpose(x, &[0, 1, 3, 4, 2])?;
    b.reshape(x, shape)
}

fn in_blocks(
    cx: &mut NodeCx<'_, '_>,
    lower: fn(&mut NodeCx<'_, '_>, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let (x, block) = (cx.input(0)?, block(cx)?);
    let x = from_blocks(cx.b, x, block)?;
    let y = lower(cx, x)?;
    Ok(vec![to_blocks(cx.b, y, block)?])
}

fn reorder_input(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, block) = (cx.input(0)?, block(cx)?);
    let x = if cx.int("channels_last")? != 0 { channels_first(cx.b, x)? } else { x };
    let channels = cx.b.shape(x)[1].clone();
    let size = Dim::from(block);
    let whole = channels.ceil_div(&size).unwrap_or(Dim::ZERO) * size;
    let zero = cx.b.scalar(DType::F32, 0.0);
    let mut added = vec![Dim::ZERO; 4];
    added[1] = whole - channels;
    let x = cx.b.pad(x, zero, vec![Dim::ZERO; 4], added)?;
    Ok(vec![to_blocks(cx.b, x, block)?])
}

fn reorder_output(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, block) = (cx.input(0)?, block(cx)?);
    let channels = cx.int("channels")?;
    if channels < 1 {
        return malformed(format!("channels is {channels}; it must be at least 1"));
    }
    let x = from_blocks(cx.b, x, block)?;
    let y = cx.b.slice_axis(x, 1, Dim::ZERO, Dim::from(channels))?;
    Ok(vec![if cx.int("channels_last")? != 0 { channels_last(cx.b, y)? } else { y }])
}

/// Filters are `[M, C / group, h, w]` in blocks: of their number, and of the channels that they read, where these are.
fn conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w, block) = (cx.input(0)?, cx.input(1)?, block(cx)?);
    let shape = cx.b.shape(w);
    let [filters, channels, height, width] = &shape[..] else {
        return malformed(format!("weights {}", cx.b.ty(w)));
    };
    let (groups, each) = (cx.int("group")?, channels.as_const().unwrap_or(0));
    let size = Dim::from(block);
    let count = blocks(cx.b, filters, block, "filters")?;
    // So few channels are read as they are, or one by one.
    let (x, w) = if each < block as i64 {
        let depthwise = each == 1 && Dim::from(groups) == *filters;
        if groups != 1 && !depthwise {
            return unsupported(format!("{groups} groups of {each} channels, fewer than a block of {block}"));
        }
        let x = if depthwise { from_blocks(cx.b, x, block)? } else { x };
        let parts = vec![count, channels.clone(), height.clone(), width.clone(), size];
        let w = cx.b.reshape(w, parts)?;
        (x, cx.b.transpose(w, &[0, 4, 1, 2, 3])?)
    } else {
        let inner = blocks(cx.b, channels, block, "channels of a filter")?;
        let parts = vec![count, inner, height.clone(), width.clone(), size.clone(), size];
        let w = cx.b.reshape(w, parts)?;
        (from_blocks(cx.b, x, block)?, cx.b.transpose(w, &[0, 5, 1, 4, 2, 3])?)
    };
    let w = cx.b.reshape(w, shape)?;
    let mut y = biased(cx, x, w)?;
    if let Some(addend) = cx.optional(3) {
        let addend = from_blocks(cx.b, addend, block)?;
        let addend = channels_last(cx.b, addend)?;
        shaped_as(cx, "Sum", addend, y)?;
        y = cx.b.binary(BinaryFn::Add, y, addend)?;
    }
    let y = conv_activation(cx, y)?;
    let y = channels_first(cx.b, y)?;
    Ok(vec![to_blocks(cx.b, y, block)?])
}

fn upsample(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let scales = cx.ints("scales")?.unwrap_or_else(|| vec![1; 4]);
    if scales.len() != 4 || scales[..2] != [1, 1] || scales.iter().any(|&scale| scale < 1) {
        return malformed(format!("scales is {scales:?}; it must be 1, 1 and two numbers of at least 1"));
    }
    let (x, block) = (cx.input(0)?, block(cx)?);
    let x = from_blocks(cx.b, x, block)?;
    let y = enlarged(cx, x, &scales)?;
    Ok(vec![to_blocks(cx.b, y, block)?])
}
