//! Strided copies. Weights are laid out anew by them, so they run at the speed of memory rather than by the element.

use super::movement::{View, Walk};

/// Elements of a tile's sides: the lines of both sides stay in the first-level cache.
const SIDE: usize = 32;

/// Copies `shape` elements of `size` bytes from one view to another. No axis is empty, and every element lies inside.
pub(super) fn copy(shape: &[usize], size: usize, from: (&[u8], View), to: (&mut [u8], View)) {
    let ((source, mut from), (target, mut to)) = (from, to);
    let mut shape = shape.to_vec();
    let mut width = size;
    let is_run = |view: &View| view.strides.last() == Some(&1);
    if is_run(&from) && is_run(&to) {
        // What both sides have in one piece is an element of its own.
        width *= shape.pop().unwrap_or(1);
        from.strides.pop();
        to.strides.pop();
    }
    let bytes = |view: View| View {
        offset: view.offset * size as isize,
        strides: view.strides.iter().map(|stride| stride * size as isize).collect(),
    };
    let (from, to) = (bytes(from), bytes(to));
    match width {
        1 => walk(&shape, &from, &to, |at, into| move_one::<1>(source, at, target, into)),
        2 => walk(&shape, &from, &to, |at, into| move_one::<2>(source, at, target, into)),
        4 => walk(&shape, &from, &to, |at, into| move_one::<4>(source, at, target, into)),
        8 => walk(&shape, &from, &to, |at, into| move_one::<8>(source, at, target, into)),
        16 => walk(&shape, &from, &to, |at, into| move_one::<16>(source, at, target, into)),
        _ => walk(&shape, &from, &to, |at, into| {
            target[into..into + width].copy_from_slice(&source[at..at + width]);
        }),
    }
}

fn move_one<const SIZE: usize>(source: &[u8], at: usize, target: &mut [u8], into: usize) {
    target[into..into + SIZE].copy_from_slice(&source[at..at + SIZE]);
}

/// Calls `visit` with the places of every element on both sides, in bytes: in tiles of the last axis and of the one along which the
/// source's elements are nearest to one another.
fn walk(shape: &[usize], from: &View, to: &View, mut visit: impl FnMut(usize, usize)) {
    let Some(last) = shape.len().checked_sub(1) else {
        return visit(from.offset as usize, to.offset as usize);
    };
    let nearest = (0..last).filter(|&axis| shape[axis] > 1).min_by_key(|&axis| from.strides[axis].abs());
    let rows = nearest.filter(|&axis| from.strides[axis].abs() < from.strides[last].abs());
    let steps = |axis: Option<usize>| axis.map_or([0, 0], |axis| [from.strides[axis], to.strides[axis]]);
    let (row_steps, column_steps) = (steps(rows), steps(Some(last)));
    let (row_count, column_count) = (rows.map_or(1, |axis| shape[axis]), shape[last]);
    // All other axes.
    let kept: Vec<usize> = (0..last).filter(|axis| Some(*axis) != rows).collect();
    let outer = |view: &View| View {
        offset: view.offset,
        strides: kept.iter().map(|&axis| view.strides[axis]).collect(),
    };
    let outer_shape: Vec<usize> = kept.iter().map(|&axis| shape[axis]).collect();
    let views = [outer(from), outer(to)];
    let mut places = Walk::new(&outer_shape, [&views[0], &views[1]]);
    let side = if rows.is_some() { SIDE } else { column_count };
    for _ in 0..outer_shape.iter().product() {
        for top in (0..row_count).step_by(SIDE) {
            for left in (0..column_count).step_by(side) {
                for row in top..(top + SIDE).min(row_count) {
                    let place = |side: usize| {
                        places.offsets[side]
                            + row as isize * row_steps[side]
                            + left as isize * column_steps[side]
                    };
                    let (mut at, mut into) = (place(0), place(1));
                    for _ in left..(left + side).min(column_count) {
                        visit(at as usize, into as usize);
                        at += column_steps[0];
                        into += column_steps[1];
                    }
                }
            }
        }
        places.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::super::movement::strides;
    use super::*;

    #[test]
    fn tiles_copy_what_an_element_at_a_time_copies() {
        let shapes: [&[usize]; 7] =
            [&[], &[1], &[70, 33], &[33, 1, 65], &[2, 40, 3, 37], &[3, 5, 2, 4], &[1, 64, 64]];
        for shape in shapes {
            let count: usize = shape.iter().product();
            let rank = shape.len();
            for turn in 0..rank.max(1) {
                for backwards in [false, true] {
                    // The axes of the source are those of the target, rotated; some are read from their end.
                    let own: Vec<usize> = (0..rank).map(|axis| (axis + turn) % rank).collect();
                    let held: Vec<usize> = own.iter().map(|&axis| shape[axis]).collect();
                    let held = strides(&held);
                    let mut from = View { offset: 0, strides: vec![0; rank] };
                    own.iter().zip(&held).for_each(|(&axis, &stride)| from.strides[axis] = stride);
                    if backwards && rank > 0 {
                        from.offset = from.strides[0] * (shape[0] as isize - 1);
                        from.strides[0] *= -1;
                    }
                    for size in [1, 2, 4, 8, 16] {
                        let source: Vec<u8> = (0..count * size).map(|at| (at * 7 + at / 251) as u8).collect();
                        let to = View::whole(shape);
                        let mut want = vec![0; count * size];
                        let mut each = Walk::new(shape, [&from, &to]);
                        for _ in 0..count {
                            let [at, into] = each.offsets.map(|offset| offset as usize * size);
                            want[into..into + size].copy_from_slice(&source[at..at + size]);
                            each.advance();
                        }
                        let mut got = vec![0; count * size];
                        copy(shape, size, (&source, from.clone()), (&mut got, to));
                        assert!(
                            got == want,
                            "{shape:?} turned by {turn}, {size} bytes, backwards: {backwards}"
                        );
                    }
                }
            }
        }
    }
}
