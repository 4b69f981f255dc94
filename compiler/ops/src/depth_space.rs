//! DepthToSpace and SpaceToDepth: pure movement between channels and pixels.

use super::AttrDefault::{Required, Str};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, req};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Dim, ValueId};

pub const ROWS: &[OpDef] = &[
    DEPTH_TO_SPACE,
    DEPTH_TO_SPACE_11,
    DEPTH_TO_SPACE_13,
    DEPTH_TO_SPACE_13.since(28),
    SPACE_TO_DEPTH,
    SPACE_TO_DEPTH_13,
    SPACE_TO_DEPTH_13
        .since(28)
        .attributes(&[attr("blocksize", Required(AttrKind::Int)), attr("mode", Str("DCR"))]),
];

const DEPTH_TO_SPACE: OpDef = op("DepthToSpace", 1, depth_to_space)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("blocksize", Required(AttrKind::Int))])
    .types(&[("T", ALL)])
    .shapes(&["input[_, blocksize * blocksize * C, _, _]"])
    .doc("blocks of channels to blocks of pixels");

const DEPTH_TO_SPACE_11: OpDef = DEPTH_TO_SPACE
    .since(11)
    .attributes(&[attr("blocksize", Required(AttrKind::Int)), attr("mode", Str("DCR"))]);

const DEPTH_TO_SPACE_13: OpDef = DEPTH_TO_SPACE_11.since(13).types(&[("T", ALL_BF16)]);

const SPACE_TO_DEPTH: OpDef = op("SpaceToDepth", 1, space_to_depth)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("blocksize", Required(AttrKind::Int))])
    .types(&[("T", ALL)])
    .shapes(&["input[_, _, blocksize * H, blocksize * W]"])
    .doc("blocks of pixels to blocks of channels");

const SPACE_TO_DEPTH_13: OpDef = SPACE_TO_DEPTH.since(13).types(&[("T", ALL_BF16)]);

/// Block size, and whether channels vary slower than positions inside a block (`CRD`).
fn block(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<(Dim, bool)> {
    let size = cx.int("blocksize")?;
    let mode = if cx.has("mode") { cx.str("mode")? } else { "DCR".to_string() };
    if !["DCR", "CRD"].contains(&mode.as_str()) {
        return super::not_one_of("mode", mode, "DCR, CRD");
    }
    if cx.b.rank(x) != 4 || !(1..=1 << 20).contains(&size) {
        return Err(Error::malformed(Stage::Infer, format!("blocks of {size} of {}", cx.b.ty(x))));
    }
    Ok((Dim::from(size), mode == "CRD"))
}

fn depth_to_space(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let (size, channels_first) = block(cx, x)?;
    let shape = cx.b.shape(x);
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| shape[axis].clone());
    let depth = cx.b.divided(&channels, size.clone() * size.clone(), "channels must divide into blocks")?;
    let (split, perm) = match channels_first {
        true => (vec![batch.clone(), depth.clone(), size.clone(), size.clone()], [0, 1, 4, 2, 5, 3]),
        false => (vec![batch.clone(), size.clone(), size.clone(), depth.clone()], [0, 3, 4, 1, 5, 2]),
    };
    let split = [split, vec![height.clone(), width.clone()]].concat();
    let y = cx.b.reshape(x, split)?;
    let y = cx.b.transpose(y, &perm)?;
    Ok(vec![cx.b.reshape(y, vec![batch, depth, height * size.clone(), width * size])?])
}

fn space_to_depth(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let (size, channels_first) = block(cx, x)?;
    let shape = cx.b.shape(x);
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| shape[axis].clone());
    let height = cx.b.divided(&height, size.clone(), "the height must divide into blocks")?;
    let width = cx.b.divided(&width, size.clone(), "the width must divide into blocks")?;
    let split =
        vec![batch.clone(), channels.clone(), height.clone(), size.clone(), width.clone(), size.clone()];
    let perm = if channels_first { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    let y = cx.b.reshape(x, split)?;
    let y = cx.b.transpose(y, &perm)?;
    Ok(vec![cx.b.reshape(y, vec![batch, channels * size.clone() * size, height, width])?])
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, ramp};

    #[test]
    fn both_modes_and_back() {
        let case = Case::new("DepthToSpace", 11)
            .symbolic(&["n", "", "h", "w"], &[1, 8, 1, 2], &ramp(16, 1))
            .int("blocksize", 2)
            .str("mode", "DCR");
        case.gives(
            0,
            &[1, 2, 2, 4],
            &[-0.5, 1.0, 1.25, 0.0, -0.25, 1.25, -1.25, 0.25, 0.25, -1.0, -0.75, 0.75, 0.5, -0.75, -0.5, 1.0],
        );
        let case = Case::new("DepthToSpace", 11)
            .symbolic(&["n", "", "h", "w"], &[1, 8, 1, 2], &ramp(16, 1))
            .int("blocksize", 2)
            .str("mode", "CRD");
        case.gives(
            0,
            &[1, 2, 2, 4],
            &[-0.5, 0.25, 1.25, -0.75, 1.0, -1.0, 0.0, 0.75, -0.25, 0.5, -1.25, -0.5, 1.25, -0.75, 0.25, 1.0],
        );
        let case = Case::new("SpaceToDepth", 13).ramp(&[1, 2, 2, 4], 1).int("blocksize", 2);
        case.gives(
            0,
            &[1, 8, 1, 2],
            &[-0.5, 0.25, -0.25, 0.5, 1.25, -0.75, -1.25, -0.5, 1.0, -1.0, 1.25, -0.75, 0.0, 0.75, 0.25, 1.0],
        );
    }
}
