//! Planes of fewer samples to rows of the image: linearly where the factor is 2, as libjpeg does, else by repetition.

use super::frame::{Component, Frame, Plane};

/// Row `y` of the image, of one component. Of `out` at least as much is written as the image is wide.
pub(super) fn row(frame: &Frame, component: &Component, plane: &Plane, y: usize, out: &mut [u8]) {
    let (across, down) = (frame.max_h / component.h, frame.max_v / component.v);
    let last = plane.height - 1;
    let here = plane.row(y / down);
    // The next row on the side on which the sample lies; at the borders it is the same one again.
    let beside = |y: usize| match y % 2 {
        0 => plane.row((y / 2).saturating_sub(1)),
        _ => plane.row((y / 2 + 1).min(last)),
    };
    match (across, down) {
        (1, 1) => out[..plane.width].copy_from_slice(here),
        (2, 1) if plane.width > 2 => h2v1(here, out),
        (1, 2) => {
            let bias = if y.is_multiple_of(2) { 1 } else { 2 };
            for ((out, &a), &b) in out.iter_mut().zip(here).zip(beside(y)) {
                *out = ((3 * u32::from(a) + u32::from(b) + bias) >> 2) as u8;
            }
        }
        (2, 2) if plane.width > 2 => h2v2(here, beside(y), out),
        _ => {
            for (out, &sample) in out.chunks_mut(across).zip(here) {
                out.fill(sample);
            }
        }
    }
}

/// Each sample becomes two, 3/4 of it and 1/4 of its neighbour: the left one rounded down where it lies between, the right one up.
fn h2v1(x: &[u8], out: &mut [u8]) {
    let last = x.len() - 1;
    let at = |at: usize| u32::from(x[at]);
    for (column, out) in out.as_chunks_mut::<2>().0.iter_mut().take(x.len()).enumerate() {
        let this = 3 * at(column);
        out[0] = if column == 0 { x[0] } else { ((this + at(column - 1) + 1) >> 2) as u8 };
        out[1] = if column == last { x[last] } else { ((this + at(column + 1) + 2) >> 2) as u8 };
    }
}

/// The same in both directions, rounded once.
fn h2v2(near: &[u8], far: &[u8], out: &mut [u8]) {
    let last = near.len() - 1;
    let sum = |at: usize| 3 * u32::from(near[at]) + u32::from(far[at]);
    for (column, out) in out.as_chunks_mut::<2>().0.iter_mut().take(near.len()).enumerate() {
        let this = sum(column);
        let before = if column == 0 { this } else { sum(column - 1) };
        let behind = if column == last { this } else { sum(column + 1) };
        *out = [((3 * this + before + 8) >> 4) as u8, ((3 * this + behind + 7) >> 4) as u8];
    }
}
