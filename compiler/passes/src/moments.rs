//! Sums of squared deviations of an image that lies channels-last, row by row of its pixels.
//!
//! A normalization over the pixels of each channel, or of each group of channels, reads the image once for the mean and once more for the
//! deviations from it; a few channels of a group are shorter than a vector. Here each row of pixels has the mean and the sum of squared
//! deviations of each channel, in whole vectors, while it lies in the cache. With `r` the mean of a row of `w` elements and `m` any number
//!
//! ```text
//! sum (x - m)^2 = sum (x - r)^2 + w (r - m)^2
//! ```
//!
//! so that the sum over an image is one over its rows and channels (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
//! for computing sample variances", 1979, where `m` is the mean of all). No difference of large squares is taken: a mean far from zero
//! costs no digits.

use std::collections::{HashMap, HashSet};

use crate::rewrite::{bodies, is_one, producer, rewrite};
use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::{product, volume};
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Node, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};
use onnxc_machine::target::Goal;

/// Elements of a row that stay in a cache between the two sums.
const MOST_ELEMENTS: i64 = 1 << 16;

/// Pixels of a row, and channels that lie side by side, at least.
const LEAST_PIXELS: i64 = 4;
const LEAST_CHANNELS: i64 = 8;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact || options.goal == Goal::Size {
        return Ok(());
    }
    let images: HashSet<(ValueId, Vec<usize>)> = (graph.order.iter())
        .filter_map(|&id| Deviations::of(graph, id).map(|found| (found.x, found.axes)))
        .collect();
    if !images.is_empty() {
        let mut known = HashMap::new();
        rewrite(graph, |b, id| {
            if let Some(found) = Deviations::of(b.graph, id) {
                return found.build(b, &mut known).map(Some);
            }
            let Some((x, axes)) = sum(b.graph, id).map(|(x, axes)| (x, axes.to_vec())) else {
                return Ok(None);
            };
            let key = (x, axes);
            let Some(image) = images.contains(&key).then(|| Image::of(b.graph, key.0, &key.1)).flatten()
            else {
                return Ok(None);
            };
            let rows = Rows::of(b, key, &image, &mut known)?;
            image.sum(b, rows.sums).map(Some)
        })?;
        dce::sweep(graph);
    }
    bodies(graph, options, run)
}

/// What a node sums up, and the axes.
fn sum(graph: &Graph, id: NodeId) -> Option<(ValueId, &[usize])> {
    let Node { op: Op::Reduce { op: ReduceFn::Sum, axes }, inputs, .. } = &graph.nodes[id] else {
        return None;
    };
    Some((inputs[0], axes))
}

/// `sum (x - m)^2` over axes along which `m` is one number.
struct Deviations {
    x: ValueId,
    from: ValueId,
    axes: Vec<usize>,
    image: Image,
}

impl Deviations {
    fn of(graph: &Graph, id: NodeId) -> Option<Deviations> {
        let (squares, axes) = sum(graph, id)?;
        let binary = |value: ValueId, function: BinaryFn| match producer(graph, value)? {
            Node { op: Op::Map(MapFn::Binary(own)), inputs, .. } if *own == function => {
                Some((inputs[0], inputs[1]))
            }
            _ => None,
        };
        let (one, other) = binary(squares, BinaryFn::Mul)?;
        let (x, from) = binary(one, BinaryFn::Sub).filter(|_| one == other)?;
        let (shape, own) = (&graph.ty(x).shape, &graph.ty(from).shape);
        let constant = own.len() == shape.len()
            && own
                .iter()
                .enumerate()
                .all(|(axis, dim)| is_one(dim) || (*dim == shape[axis] && !axes.contains(&axis)));
        if *shape != graph.ty(squares).shape || !constant {
            return None;
        }
        let image = Image::of(graph, x, axes)?;
        Some(Deviations { x, from, axes: axes.to_vec(), image })
    }

    fn build(self, b: &mut Builder, known: &mut HashMap<(ValueId, Vec<usize>), Rows>) -> Result<ValueId> {
        let Deviations { x, from, axes, image } = self;
        let rows = Rows::of(b, (x, axes), &image, known)?;
        let apart = image.apart();
        let (means, squares) = (b.reshape(rows.means, apart.clone())?, b.reshape(rows.squares, apart)?);
        let shift = b.binary(BinaryFn::Sub, means, from)?;
        let shift = b.binary(BinaryFn::Mul, shift, shift)?;
        let shift = b.binary(BinaryFn::Mul, shift, rows.count)?;
        let squares = b.binary(BinaryFn::Add, squares, shift)?;
        image.sum(b, squares)
    }
}

/// A value whose pixels are summed up, along `row` and others. Its channels lie side by side behind that axis.
struct Image {
    shape: Vec<Dim>,
    row: usize,
    /// The other axes that are summed up.
    others: Vec<usize>,
}

impl Image {
    fn of(graph: &Graph, x: ValueId, axes: &[usize]) -> Option<Image> {
        let ty = graph.ty(x);
        let shape = ty.shape.clone();
        let mut behind = shape.len();
        while behind > 0 && axes.contains(&(behind - 1)) {
            behind -= 1;
        }
        let parts = behind < shape.len();
        while behind > 0 && !axes.contains(&(behind - 1)) {
            behind -= 1;
        }
        let row = behind.checked_sub(1)?;
        let channels = product(&shape[behind..]);
        let size = volume(&shape[row..]);
        let fits = matches!(ty.dtype, DType::F32 | DType::F64)
            && !shape.contains(&Dim::ZERO)
            && shape[row].as_const().is_none_or(|pixels| pixels >= LEAST_PIXELS)
            && channels.as_const().is_some_and(|channels| channels >= LEAST_CHANNELS)
            && (parts || size.is_none_or(|size| size <= MOST_ELEMENTS));
        let others = axes.iter().copied().filter(|&axis| axis != row).collect();
        fits.then_some(Image { shape, row, others })
    }

    /// The shape of what each row has for each channel.
    fn apart(&self) -> Vec<Dim> {
        let mut shape = self.shape.clone();
        shape[self.row] = Dim::ONE;
        shape
    }

    /// The sum over what rows have.
    fn sum(&self, b: &mut Builder, rows: ValueId) -> Result<ValueId> {
        let rows = b.reshape(rows, self.apart())?;
        b.reduce(ReduceFn::Sum, rows, &self.others)
    }
}

/// What the rows of an image have for each channel, and their length.
#[derive(Clone, Copy)]
struct Rows {
    sums: ValueId,
    means: ValueId,
    squares: ValueId,
    count: ValueId,
}

impl Rows {
    fn of(
        b: &mut Builder,
        key: (ValueId, Vec<usize>),
        image: &Image,
        known: &mut HashMap<(ValueId, Vec<usize>), Rows>,
    ) -> Result<Rows> {
        if let Some(&rows) = known.get(&key) {
            return Ok(rows);
        }
        let row = image.row;
        let mut shape = image.shape[..=row].to_vec();
        shape.push(product(&image.shape[row + 1..]));
        let x = b.reshape(whole(b.graph, key.0, &shape), shape)?;
        let sums = b.reduce(ReduceFn::Sum, x, &[row])?;
        let dtype = b.dtype(x);
        // Of no pixels there is no mean, and no deviation from it.
        let count = match image.shape[row].as_const() {
            Some(count) => b.scalar(dtype, count as f64),
            None => {
                let count = b.dim_scalar(&image.shape[row].max_dim(&Dim::ONE))?;
                b.cast(count, dtype)?
            }
        };
        let means = b.binary(BinaryFn::Div, sums, count)?;
        let deviations = b.binary(BinaryFn::Sub, x, means)?;
        let squares = b.binary(BinaryFn::Mul, deviations, deviations)?;
        let squares = b.reduce(ReduceFn::Sum, squares, &[row])?;
        let rows = Rows { sums, means, squares, count };
        known.insert(key, rows);
        Ok(rows)
    }
}

/// What has this shape already behind reshapes of it.
fn whole(graph: &Graph, value: ValueId, shape: &[Dim]) -> ValueId {
    match producer(graph, value) {
        Some(Node { op: Op::Reshape { .. }, inputs, .. }) if graph.ty(inputs[0]).shape == shape => inputs[0],
        _ => value,
    }
}
