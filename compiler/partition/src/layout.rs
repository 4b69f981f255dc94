//! How a value lies on the ranks of a stage: for each axis of the mesh, whether it is cut.

use onnxc_ir::error::Result;
use onnxc_ir::graph::arrangement::Sharding;
use onnxc_ir::graph::{Dim, TensorType};

use crate::mesh::Mesh;

/// What an axis of the mesh does to a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum State {
    /// All ranks along it have the same.
    Whole,
    /// Each has a range along an axis of the value, in multiples of `unit`.
    Cut { axis: usize, unit: i64 },
}

/// One for each axis of the mesh. Several may cut one axis of the value: the later ones cut what the earlier ones leave.
pub(crate) type Layout = Vec<State>;

pub(crate) fn whole(mesh: &Mesh) -> Layout {
    vec![State::Whole; mesh.radices.len()]
}

/// The layout that a sharding asks for.
pub(crate) fn asked(mesh: &Mesh, sharding: &Sharding, ty: &TensorType) -> Result<Layout> {
    let mut layout = whole(mesh);
    for ((axis, stride, parts), cut) in mesh.strides(sharding)?.into_iter().zip(&sharding.axes) {
        let unit = match (ty.shape[axis].as_const(), cut.blocks) {
            (Some(size), Some(blocks)) => size / blocks,
            _ => 1,
        };
        for (dim, state) in layout.iter_mut().enumerate() {
            if (stride..stride * parts).contains(&mesh.stride(dim)) && mesh.radices[dim] > 1 {
                *state = State::Cut { axis, unit };
            }
        }
    }
    Ok(layout)
}

/// Where part number `at` of `parts` begins.
fn offset(size: &Dim, unit: i64, parts: usize, at: usize) -> Dim {
    if at == 0 {
        return Dim::ZERO;
    }
    if at == parts {
        return size.clone();
    }
    let blocks = size.exact_div(&Dim::from(unit));
    let (blocks, unit) = blocks.map_or_else(|| (size.clone(), 1), |blocks| (blocks, unit));
    let first = (blocks * Dim::from(at)).floor_div(&Dim::from(parts)).unwrap_or(Dim::ZERO);
    first * Dim::from(unit)
}

/// The bounds of all parts.
pub(crate) fn bounds(size: &Dim, unit: i64, parts: usize) -> Vec<Dim> {
    (0..=parts).map(|at| offset(size, unit, parts, at)).collect()
}

/// The axes of the mesh that cut an axis of a value.
pub(crate) fn cuts(layout: &Layout, axis: usize) -> impl DoubleEndedIterator<Item = (usize, i64)> {
    layout.iter().enumerate().filter_map(move |(dim, state)| match *state {
        State::Cut { axis: own, unit } if own == axis => Some((dim, unit)),
        _ => None,
    })
}

/// Where the range of a rank begins along an axis, and how long it is.
pub(crate) fn range(mesh: &Mesh, layout: &Layout, digits: &[usize], axis: usize, size: &Dim) -> (Dim, Dim) {
    let (mut start, mut length) = (Dim::ZERO, size.clone());
    for (dim, unit) in cuts(layout, axis) {
        let parts = mesh.radices[dim];
        let [low, high] = [0, 1].map(|more| offset(&length, unit, parts, digits[dim] + more));
        start = start + low.clone();
        length = high - low;
    }
    (start, length)
}

/// The type of a rank's share.
pub(crate) fn local(mesh: &Mesh, layout: &Layout, digits: &[usize], ty: &TensorType) -> TensorType {
    let size = |(axis, size): (usize, &Dim)| range(mesh, layout, digits, axis, size).1;
    TensorType::new(ty.dtype, ty.shape.iter().enumerate().map(size).collect())
}

/// Whether the ranges of all ranks are the same under both.
pub(crate) fn equal(mesh: &Mesh, a: &Layout, b: &Layout, ty: &TensorType) -> bool {
    a == b
        || (0..ty.rank()).all(|axis| {
            cuts(a, axis).map(|(dim, _)| dim).eq(cuts(b, axis).map(|(dim, _)| dim))
                && mesh.positions().all(|digits| {
                    range(mesh, a, &digits, axis, &ty.shape[axis])
                        == range(mesh, b, &digits, axis, &ty.shape[axis])
                })
        })
}
