//! `Sort`: a stable sort of index lists, cut to the elements that are wanted.

use std::cmp::Ordering;

use bytes::Bytes;

use super::internal;
use super::lane::Lane;
use super::movement::zeroed;
use crate::error::Result;
use crate::graph::{DType, Tensor};

/// The first `take` elements along `axis` in order, and their indices. Inference has checked the axis and that there
/// are that many.
pub(super) fn sort(x: &Tensor, axis: usize, descending: bool, take: i64) -> Result<Vec<Tensor>> {
    let up = |order: Ordering| if descending { order.reverse() } else { order };
    if let Some(lane) = Lane::f64(x.dtype) {
        let values: Vec<f64> = lane.read(x).collect();
        let order = |a: usize, b: usize| {
            let (a, b) = (values[a], values[b]);
            up(a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())))
        };
        sorted(x, axis, take, &order)
    } else if let Some(lane) = Lane::i64(x.dtype) {
        let values: Vec<i64> = lane.read(x).collect();
        sorted(x, axis, take, &|a, b| up(values[a].cmp(&values[b])))
    } else if let Some(lane) = Lane::u64(x.dtype) {
        let values: Vec<u64> = lane.read(x).collect();
        sorted(x, axis, take, &|a, b| up(values[a].cmp(&values[b])))
    } else if let Some(lane) = Lane::bool(x.dtype) {
        let values: Vec<bool> = lane.read(x).collect();
        sorted(x, axis, take, &|a, b| up(values[a].cmp(&values[b])))
    } else {
        super::elementwise::undefined("sort", x.dtype)
    }
}

/// `order` compares elements by their place in the whole tensor.
fn sorted(
    x: &Tensor,
    axis: usize,
    take: i64,
    order: &dyn Fn(usize, usize) -> Ordering,
) -> Result<Vec<Tensor>> {
    let extent = x.shape[axis];
    let Some(take) = usize::try_from(take).ok().filter(|&take| take <= extent) else {
        return internal(format!("{take} elements of {extent} along axis {axis}"));
    };
    let (outer, inner): (usize, usize) =
        (x.shape[..axis].iter().product(), x.shape[axis + 1..].iter().product());
    let mut shape = x.shape.clone();
    shape[axis] = take;
    let (mut keys, mut places) = (zeroed(x.dtype, &shape)?, zeroed(DType::I64, &shape)?);
    let size = x.dtype.size();
    for row in 0..outer * inner {
        let (lead, tail) = (row / inner, row % inner);
        let at = |index: usize| (lead * extent + index) * inner + tail;
        let mut indices: Vec<usize> = (0..extent).collect();
        indices.sort_by(|&a, &b| order(at(a), at(b)));
        for (to, &from) in indices[..take].iter().enumerate() {
            let to = (lead * take + to) * inner + tail;
            let source = at(from) * size;
            keys[to * size..(to + 1) * size].copy_from_slice(&x.data[source..source + size]);
            places[to * 8..(to + 1) * 8].copy_from_slice(&(from as i64).to_le_bytes());
        }
    }
    Ok(vec![
        Tensor::new(x.dtype, shape.clone(), Bytes::from(keys)),
        Tensor::new(DType::I64, shape, Bytes::from(places)),
    ])
}
