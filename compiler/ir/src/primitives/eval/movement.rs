//! Primitives that only move elements: strided copies of the element's bytes, regardless of their meaning.

use bytes::Bytes;

use super::tiles;
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::dim::{dims, sizes};
use crate::graph::{DType, PanelLayout, PanelPlaces, Tensor};

/// Bytes of a tensor; an error when they exceed what can be addressed.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize> {
    // A zero axis makes the tensor empty, however large the others are.
    let bytes = if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
    };
    bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| too_large(dtype, shape))
}

fn too_large(dtype: DType, shape: &[usize]) -> Error {
    Error::new(Stage::Run, Kind::Budget, format!("no memory for a tensor {dtype}{shape:?}"))
}

/// A zeroed buffer for a tensor.
pub(crate) fn zeroed(dtype: DType, shape: &[usize]) -> Result<Vec<u8>> {
    let bytes = byte_len(dtype, shape)?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| too_large(dtype, shape))?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

/// Row-major strides, in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1].max(1) as isize;
    }
    strides
}

/// Where one side of a copy begins and how far apart its elements are along each axis, in elements.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub offset: isize,
    pub strides: Vec<isize>,
}

impl View {
    /// All of a row-major tensor.
    pub(crate) fn whole(shape: &[usize]) -> View {
        View { offset: 0, strides: strides(shape) }
    }
}

/// Steps through a shape in row-major order, keeping the offsets of `N` views.
pub(crate) struct Walk<'a, const N: usize> {
    shape: &'a [usize],
    strides: [&'a [isize]; N],
    index: Vec<usize>,
    pub offsets: [isize; N],
}

impl<'a, const N: usize> Walk<'a, N> {
    pub(crate) fn new(shape: &'a [usize], views: [&'a View; N]) -> Walk<'a, N> {
        Walk {
            shape,
            strides: views.map(|view| &view.strides[..]),
            index: vec![0; shape.len()],
            offsets: views.map(|view| view.offset),
        }
    }

    /// Moves to the next element; after the last one, back to the first.
    pub(crate) fn advance(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            let wrapped = self.index[axis] == self.shape[axis];
            let steps = if wrapped { 1 - self.shape[axis] as isize } else { 1 };
            for (offset, strides) in self.offsets.iter_mut().zip(self.strides) {
                *offset += steps * strides[axis];
            }
            if !wrapped {
                return;
            }
            self.index[axis] = 0;
        }
    }
}

/// Copies `shape` elements of `size` bytes from one view to another. Every element must lie inside.
pub(crate) fn copy(shape: &[usize], size: usize, from: (&[u8], View), to: (&mut [u8], View)) {
    if shape.contains(&0) {
        return;
    }
    let ((source, mut from), (target, mut to)) = (from, to);
    let mut shape = shape.to_vec();
    merge_axes(&mut shape, &mut from.strides, &mut to.strides);
    tiles::copy(&shape, size, (source, from), (target, to));
}

/// Joins neighbouring axes that both sides step through as through one, so that runs are long.
pub(crate) fn merge_axes(shape: &mut Vec<usize>, from: &mut Vec<isize>, to: &mut Vec<isize>) {
    let mut axis = 0;
    while axis + 1 < shape.len() {
        let inner = shape[axis + 1] as isize;
        let joined = from[axis] == from[axis + 1] * inner && to[axis] == to[axis + 1] * inner;
        if joined || shape[axis] == 1 {
            shape[axis + 1] *= shape[axis];
            from.remove(axis);
            to.remove(axis);
            shape.remove(axis);
        } else {
            axis += 1;
        }
    }
}

/// A tensor of `shape` with the elements of a view of `x`.
pub(crate) fn read_view(x: &Tensor, view: View, shape: &[usize]) -> Result<Tensor> {
    let mut data = zeroed(x.dtype, shape)?;
    copy(shape, x.dtype.size(), (&x.data, view), (&mut data, View::whole(shape)));
    Ok(Tensor::new(x.dtype, shape.to_vec(), Bytes::from(data)))
}

pub(crate) fn transpose(x: &Tensor, perm: &[usize], shape: &[usize]) -> Result<Tensor> {
    let strides = strides(&x.shape);
    read_view(x, View { offset: 0, strides: perm.iter().map(|&axis| strides[axis]).collect() }, shape)
}

/// Strides that read a tensor of shape `from` as if broadcast to `to`.
pub(crate) fn broadcast_view(from: &[usize], to: &[usize]) -> View {
    let own = strides(from);
    let mut result = vec![0; to.len()];
    let lead = to.len() - from.len();
    for axis in 0..from.len() {
        result[lead + axis] = if from[axis] == 1 { 0 } else { own[axis] };
    }
    View { offset: 0, strides: result }
}

/// `x` broadcast to `shape`; no copy where it has that shape.
pub(crate) fn expand(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if x.shape == shape { Ok(x.clone()) } else { read_view(x, broadcast_view(&x.shape, shape), shape) }
}

/// `starts` and `steps` have been checked: each index they reach lies inside `x`.
pub(crate) fn slice(x: &Tensor, starts: &[i64], steps: &[i64], shape: &[usize]) -> Result<Tensor> {
    if shape.contains(&0) {
        return Ok(Tensor::new(x.dtype, shape.to_vec(), Bytes::new()));
    }
    let own = strides(&x.shape);
    let offset = own.iter().zip(starts).map(|(stride, &start)| stride * start as isize).sum();
    // The step of an axis of one element is never taken, and may be any number.
    let step = |axis: usize| if shape[axis] == 1 { 0 } else { own[axis] * steps[axis] as isize };
    read_view(x, View { offset, strides: (0..own.len()).map(step).collect() }, shape)
}

pub(crate) fn window(
    x: &Tensor,
    first: usize,
    strides_of: &[usize],
    dilations: &[usize],
    shape: &[usize],
) -> Result<Tensor> {
    let own = strides(&x.shape);
    let rank = strides_of.len();
    let scaled = |by: &[usize]| -> Vec<isize> {
        own[first..first + rank]
            .iter()
            .zip(by)
            .map(|(stride, &by)| stride.wrapping_mul(by as isize))
            .collect()
    };
    let mut all = own[..first].to_vec();
    all.extend(scaled(strides_of));
    all.extend(scaled(dilations));
    all.extend_from_slice(&own[first + rank..]);
    // Axes of one position are not stepped along, so their strides do not matter.
    all.iter_mut().zip(shape).filter(|(_, size)| **size == 1).for_each(|(stride, _)| *stride = 0);
    read_view(x, View { offset: 0, strides: all }, shape)
}

pub(crate) fn pad(x: &Tensor, fill: &Tensor, lo: &[i64], shape: &[usize]) -> Result<Tensor> {
    let mut data = zeroed(x.dtype, shape)?;
    if fill.data.iter().any(|&byte| byte != 0) {
        data.chunks_exact_mut(x.dtype.size()).for_each(|element| element.copy_from_slice(&fill.data));
    }
    let mut view = View::whole(shape);
    view.offset = view.strides.iter().zip(lo).map(|(stride, &lo)| stride.wrapping_mul(lo as isize)).sum();
    copy(&x.shape, x.dtype.size(), (&x.data, View::whole(&x.shape)), (&mut data, view));
    Ok(Tensor::new(x.dtype, shape.to_vec(), Bytes::from(data)))
}

pub(crate) fn concat(inputs: &[&Tensor], axis: usize, shape: &[usize]) -> Result<Tensor> {
    let dtype = inputs[0].dtype;
    let mut data = zeroed(dtype, shape)?;
    let mut view = View::whole(shape);
    for x in inputs {
        copy(&x.shape, dtype.size(), (&x.data, View::whole(&x.shape)), (&mut data, view.clone()));
        view.offset += view.strides[axis] * x.shape[axis] as isize;
    }
    Ok(Tensor::new(dtype, shape.to_vec(), Bytes::from(data)))
}

/// `state` with `new` in place of its elements from `at` on along `axis`, where they lie in panels of `panel`.
pub(crate) fn append(
    state: &Tensor,
    new: &Tensor,
    (axis, at): (usize, i64),
    panel: Option<usize>,
) -> Result<Tensor> {
    let layout = panel.map(|width| PanelLayout::of_room(&state.shape, axis, width));
    let Some(places) = layout.map(|layout| layout?.places()).map_or(Some(None), |places| places.map(Some))
    else {
        return super::internal(format!("{:?} in panels along axis {axis}", state.shape));
    };
    let fits = |of: usize| {
        let room = places.filter(|_| of == axis).map_or(state.shape[of], |places| places.n);
        let start = if of == axis { at } else { 0 };
        start >= 0 && start + new.shape[of] as i64 <= room as i64
    };
    if !(0..new.shape.len()).all(fits) {
        let (new, state) = (&new.shape, &state.shape);
        return super::internal(format!("{new:?} appended to {state:?} at {at} of axis {axis}"));
    }
    let mut data = state.data.to_vec();
    let (from, mut to) = (View::whole(&new.shape), View::whole(&state.shape));
    if panel.is_some() {
        to.strides.pop();
    }
    let mut shape = new.shape.clone();
    let count = std::mem::replace(&mut shape[axis], 1);
    for i in 0..count {
        let place = at as usize + i;
        let (mut from, mut to) = (from.clone(), to.clone());
        from.offset = from.strides[axis] * i as isize;
        to.offset = places.map_or(to.strides[axis] * place as isize, |places| places.at(0, place) as isize);
        copy(&shape, state.dtype.size(), (&new.data, from), (&mut data, to));
    }
    Ok(Tensor::new(state.dtype, state.shape.clone(), Bytes::from(data)))
}

/// What lies in panels without them, with all the columns that there is room for.
pub(crate) fn from_panels(state: &Tensor, layout: &PanelLayout) -> Result<Tensor> {
    let whole = layout.columns_first().map(|view| (sizes(&view.from), view.perm, sizes(&view.to)));
    let Some((Some(from), perm, Some(to))) = whole.filter(|(from, ..)| *from == Some(state.shape.clone()))
    else {
        return super::internal(format!("{:?} in {layout:?}", state.shape));
    };
    let moved: Vec<usize> = perm.iter().map(|&axis| from[axis]).collect();
    Ok(Tensor::new(state.dtype, to, transpose(state, &perm, &moved)?.data))
}

/// A right-hand side in panels of this shape.
pub(crate) fn pack(x: &Tensor, batch: usize, nr: usize, shape: &[usize]) -> Result<Tensor> {
    let mut data = zeroed(x.dtype, shape)?;
    let columns = x.shape.len() - 1;
    let layout = PanelLayout::of_plain(&dims(&x.shape), batch, columns, nr);
    let Some(to) = layout.and_then(|layout| layout.places()) else {
        return super::internal(format!("pack of {:?} into {shape:?}", x.shape));
    };
    let from = PanelPlaces::plain(to.rows, to.n);
    let lead: usize = x.shape[..batch].iter().product();
    let view = |places: PanelPlaces, column: usize| View {
        offset: places.at(0, column) as isize,
        strides: [places.len(), places.nr, 1].map(|stride| stride as isize).to_vec(),
    };
    for panel in 0..to.panels {
        let column = panel * nr;
        let moved = [lead, to.rows, to.columns_of(panel)];
        copy(&moved, x.dtype.size(), (&x.data, view(from, column)), (&mut data, view(to, column)));
    }
    Ok(Tensor::new(x.dtype, shape.to_vec(), Bytes::from(data)))
}
