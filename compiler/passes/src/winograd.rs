//! Convolutions with 3x3 kernels by Winograd's minimal filtering, where that is faster.
//!
//! A window of 3x3 with stride 1, contracted with constant weights, becomes a transform of the input in squares, one
//! product for each element of a square, batched, and a transform of the results. The weights are transformed when
//! the object is written, or by every run: that takes little where a map is large, and the object keeps the weights as they
//! were ([`Filters`]). The sums of floats round differently, by how much depends on the weights: an estimate of it decides which
//! tiles may be taken ([`Estimate`]). Transforms of bytes are exact (see `winograd.rs`), as far as the weights prove that no result is too
//! large: they have 16 bits, and the cost of their products of pairs is compared with the direct products of bytes.

use std::collections::{BTreeSet, HashMap};

use crate::integers::{self, Bytes, LOOKS, Range};
use crate::rewrite::{bodies, producer, rewrite};
use crate::{Options, PackPolicy, dce, products};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{
    Constant, DType, Def, Dim, Graph, Node, NodeId, Op, PAIR_DEPTH, RhsLayout, Tensor, ValueId,
};
use onnxc_ir::interp;
use onnxc_ir::winograd::{KERNEL, Matrices, growth, matrices, tiles};
use onnxc_machine::target::Goal;
use onnxc_tuning::SUM_TERMS;
use onnxc_tuning::products::{FOR_CODE, Rates};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    // Transformed weights are 1.8 to 4 times as large, those of bytes twice as large as that.
    if options.goal == Goal::Size {
        return Ok(());
    }
    let forms = match options.exact {
        true => HashMap::new(),
        false => forms(graph, &options.pack)?,
    };
    rewrite(graph, |b, id| {
        let Some(conv) = Conv::of(b.graph, id) else { return Ok(None) };
        match conv.dtype {
            DType::F32 => forms.get(&id).map(|&form| conv.transformed(b, form, conv.x)).transpose(),
            DType::I32 if options.pack.rates.pairs > 0.0 => conv.of_bytes(b, options.pack.rates),
            _ => Ok(None),
        }
    })?;
    dce::sweep(graph);
    bodies(graph, options, run)
}

/// Bytes of a contraction's code for all levels of x86-64, with that of the nodes around it: 8,000 of the networks of 50 convolutions,
/// 14,000 of squeezenet.
const CODE: f64 = 12e3;
/// The same of one whose result has sizes that only the run knows: 23,000 of deeplab, 55,000 of yolov8n.
const OPEN_CODE: f64 = 24e3;

/// Where the transformed weights of a convolution come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Filters {
    /// The object has them.
    Stored,
    /// Every run makes them of the weights.
    Made,
}

/// How a convolution is computed by minimal filtering: a transformed form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Filtering {
    tile: usize,
    filters: Filters,
}

/// A form that a convolution may take: what it costs, what it saves of the direct one, and bytes that it adds to the object.
#[derive(Clone, Copy)]
struct Choice {
    form: Filtering,
    cost: f64,
    saved: f64,
    added: f64,
}

/// The forms of convolutions of floats, where they are worth it. Weights that are stored transformed add up to no more bytes than there is
/// room for ([`room`]): first those that save most for a byte. The others are made by every run, if that is worth it.
fn forms(graph: &Graph, policy: &PackPolicy) -> Result<HashMap<NodeId, Filtering>> {
    let sources = sources(graph);
    let mut left = policy.transformed.map_or(f64::INFINITY, |shares| room(graph, &sources, shares));
    let (mut chosen, mut stored): (HashMap<NodeId, Choice>, Vec<(NodeId, Choice)>) = Default::default();
    for &id in &graph.order {
        let Some(conv) = Conv::of(graph, id).filter(|conv| conv.dtype == DType::F32) else { continue };
        let (own, made): (Vec<Choice>, Vec<Choice>) = (choices(graph, &conv, policy, &sources)?)
            .into_iter()
            .partition(|choice| choice.form.filters == Filters::Stored);
        chosen.extend(made.into_iter().max_by(|a, b| a.saved.total_cmp(&b.saved)).map(|choice| (id, choice)));
        stored.extend(own.into_iter().map(|choice| (id, choice)));
    }
    // Of what is stored only what it saves beside weights that are made counts.
    let gain = |own: &Choice, known: Option<&Choice>| own.saved - known.map_or(0.0, |known| known.saved);
    stored.retain(|(id, own)| gain(own, chosen.get(id)) > STORED_WORTH * own.cost);
    let for_a_byte = |(id, own): &(NodeId, Choice)| gain(own, chosen.get(id)) / own.added;
    stored.sort_by(|a, b| for_a_byte(b).total_cmp(&for_a_byte(a)));
    for (id, own) in stored {
        let known = chosen.get(&id);
        let more = own.added - known.map_or(0.0, |known| known.added);
        if gain(&own, known) > 0.0 && more <= left {
            left -= more;
            chosen.insert(id, own);
        }
    }
    Ok(chosen.into_iter().map(|(id, own)| (id, own.form)).collect())
}

/// The forms of a convolution of floats that are worth it and accurate enough.
fn choices(graph: &Graph, conv: &Conv, policy: &PackPolicy, sources: &MadeOf) -> Result<Vec<Choice>> {
    let size = |values: &BTreeSet<ValueId>| {
        values.iter().filter_map(|&value| graph.ty(value).bytes().as_const()).max().unwrap_or(0) as f64
    };
    let before = sources.get(&conv.weights).map_or(0.0, size);
    // Weights of 16 bits and less would become wider in the object.
    let stays = graph.ty(conv.weights).bytes().as_const().is_some_and(|bytes| bytes as f64 <= before);
    let floats = Arithmetic { memory_byte: policy.rates.memory_byte, ..Arithmetic::FLOATS };
    let mut worth: Vec<Choice> = conv.worth(floats).collect();
    worth.retain(|choice| choice.form.filters == Filters::Stored || policy.transforms && stays);
    if worth.is_empty() {
        return Ok(worth);
    }
    let weights = interp::constant(graph, conv.weights)?;
    let estimates: HashMap<usize, Estimate> = (tiles())
        .filter(|&tile| worth.iter().any(|choice| choice.form.tile == tile))
        .filter_map(|tile| Some((tile, Estimate::of(tile, &weights, [conv.channels, conv.filters])?)))
        .collect();
    worth.retain(|Choice { form: Filtering { tile, filters }, .. }| {
        estimates.get(tile).is_some_and(|estimate| estimate.error(*filters) <= MOST_ERROR)
    });
    for Choice { form, added, .. } in &mut worth {
        if form.filters == Filters::Stored {
            *added = (conv.elements(form.tile) * SUM_BYTES - before).max(1.0);
        }
    }
    Ok(worth)
}

/// The bytes that transformed weights may add to an object; see [`PackPolicy::transformed`].
fn room(graph: &Graph, sources: &MadeOf, shares: [f64; 2]) -> f64 {
    let [mut bytes, mut wide] = [0.0; 2];
    for &value in sources.values().flatten().collect::<BTreeSet<_>>() {
        let own = graph.ty(value).bytes().as_const().unwrap_or(0) as f64;
        bytes += own;
        wide += if graph.ty(value).dtype == DType::F32 { own } else { 0.0 };
    }
    let is_contraction = |node: &&Node| matches!(node.op, Op::Contract { .. });
    let code_of = |node: &Node| {
        let is_open = node.outputs.iter().any(|&result| graph.ty(result).static_shape().is_none());
        if is_open { OPEN_CODE } else { CODE }
    };
    let nodes = graph.order.iter().map(|&id| &graph.nodes[id]);
    let code: f64 = nodes.filter(is_contraction).map(code_of).sum();
    wide * shares[0] + (bytes - wide) * shares[1] + (bytes * FOR_CODE - code).max(0.0)
}

/// The model's constants that each constant which nodes read is made of.
type MadeOf = HashMap<ValueId, BTreeSet<ValueId>>;

fn sources(graph: &Graph) -> MadeOf {
    let mut sources = MadeOf::new();
    let read = graph.order.iter().flat_map(|&id| &graph.nodes[id].inputs);
    for &value in read.filter(|value| graph.is_constant(**value)) {
        if sources.contains_key(&value) {
            continue;
        }
        let (mut open, mut seen) = (vec![value], BTreeSet::from([value]));
        let mut own = BTreeSet::new();
        while let Some(value) = open.pop() {
            match &graph.values[value].def {
                Def::Const(Constant::Data(_) | Constant::Apart(_)) => drop(own.insert(value)),
                Def::Const(Constant::Deferred { inputs, .. }) => {
                    open.extend(inputs.iter().copied().filter(|&input| seen.insert(input)));
                }
                _ => {}
            }
        }
        sources.insert(value, own);
    }
    sources
}

/// What the transformed form may cost of the direct one: the estimate is not that good.
const WORTH: f64 = 0.9;

// The costs of a convolution, counted in fused multiply-adds of a core. Measured on cores with 256-bit vectors; what
// matters is their relation, which is much the same on others.

/// Of a byte that goes through the second-level cache, or the third.
const CACHED_BYTE: f64 = 1.5;
/// Of storing a result, in steps of its inner sum.
const STORE_STEPS: f64 = 7.0;

/// Of a sum.
const SUM_BYTES: f64 = 4.0;

/// What storing transformed weights must save of what the form costs where they are made by every run: their bytes are worth no less.
const STORED_WORTH: f64 = 1.0 / 16.0;

/// How products are computed: bytes of an element of either operand, and multiplications in the time of one of floats.
#[derive(Clone, Copy)]
struct Arithmetic {
    bytes: f64,
    rate: f64,
    /// Cost of a byte of weights, which come from memory.
    memory_byte: f64,
}

impl Arithmetic {
    const FLOATS: Arithmetic = Arithmetic { bytes: 4.0, rate: 1.0, memory_byte: 0.0 };
}

/// A height or width of the model's images that only the run knows, as costs take it. The layers' sizes follow from it, and show which
/// have large maps. Costs are in proportion to a size of 16 or more: twice as much of it changes little.
const TYPICAL_SIZE: i64 = 640;
/// A small one, for which weights that every run transforms must be worth it, too.
const SMALL_SIZE: i64 = 160;
/// Images of a batch that only the run knows: one shows what weights from memory cost.
const TYPICAL_IMAGES: usize = 1;

/// A size, where images have `size`; `None` if it is none.
fn sized(dim: &Dim, size: i64) -> Option<usize> {
    usize::try_from(dim.eval(&|_| Some(size))?).ok()
}

/// Results of the whole tiles from which those of a size are cut.
fn covered(results: &Dim, tile: usize) -> Dim {
    let tile = Dim::from(tile);
    results.ceil_div(&tile).unwrap_or(Dim::ZERO) * tile
}

/// The error of the transformed form, relative to that of the direct sum, that is given up for speed, at most. With tiles of 4, weights
/// drawn alike for all taps have 2 to 5, kernels whose weights lie in a corner, or are all alike, up to 6.7.
const MOST_ERROR: f64 = 5.5;

/// Roundings of an element's transforms, beside those of the sum over channels.
const TRANSFORM_ROUNDINGS: f64 = 4.0;
/// Those of a weight's transform by the run.
const FILTER_ROUNDINGS: f64 = 2.0;

/// A convolution that could be transformed.
struct Conv {
    /// Of what is multiplied.
    dtype: DType,
    x: ValueId,
    weights: ValueId,
    /// Of the result, where it is known, else as costs take it.
    images: usize,
    /// Of the result.
    height: Dim,
    width: Dim,
    channels: usize,
    filters: usize,
}

impl Conv {
    fn of(graph: &Graph, id: NodeId) -> Option<Conv> {
        let Node {
            op: Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, inputs, outputs, ..
        } = &graph.nodes[id]
        else {
            return None;
        };
        let window = producer(graph, inputs[0])?;
        let Op::Window { first: 1, kernel, strides, dilations } = &window.op else { return None };
        // Products of bf16 are faster than what minimal filtering saves of those of f32.
        if products::is_rounded(graph, window.inputs[0]) {
            return None;
        }
        let simple = kernel[..] == [KERNEL; 2] && strides[..] == [1; 2] && dilations[..] == [1; 2];
        if !simple || !graph.is_constant(inputs[1]) {
            return None;
        }
        let [images, height, width, filters] = &graph.ty(outputs[0]).shape[..] else { return None };
        let channels = graph.ty(window.inputs[0]).shape[3].as_const()?;
        let filters = usize::try_from(filters.as_const()?).ok()?;
        let channels = usize::try_from(channels).ok()?;
        // Whole tiles are sizes that can be computed with.
        let is_covered = |dim: &Dim| tiles().all(|tile| !covered(dim, tile).is_overgrown());
        if !is_covered(height) || !is_covered(width) {
            return None;
        }
        let images = images.as_const().map_or(Some(TYPICAL_IMAGES), |images| usize::try_from(images).ok())?;
        let [rows, columns] = [height, width].map(|dim| sized(dim, TYPICAL_SIZE));
        let parts = [images, rows?, columns?, channels, filters];
        // The product of all parts, with room for the squares and bytes, must fit a usize; the run checks what is open.
        let size = parts.iter().try_fold(256usize, |size, &part| size.checked_mul(part))?;
        (size > 0 && size < 1 << 50).then_some(Conv {
            dtype: graph.ty(inputs[0]).dtype,
            x: window.inputs[0],
            weights: inputs[1],
            images,
            height: height.clone(),
            width: width.clone(),
            channels,
            filters,
        })
    }

    /// The forms that are worth it.
    fn worth(&self, direct: Arithmetic) -> impl Iterator<Item = Choice> {
        let forms = tiles()
            .flat_map(|tile| [Filters::Stored, Filters::Made].map(|filters| Filtering { tile, filters }));
        forms.filter_map(move |form| {
            let [own, whole] = [self.cost(form, direct, TYPICAL_SIZE), self.direct(direct, TYPICAL_SIZE)];
            let is_worth = |size: i64| self.cost(form, direct, size) < WORTH * self.direct(direct, size);
            let sizes: &[i64] = match form.filters {
                Filters::Stored => &[TYPICAL_SIZE],
                Filters::Made => &[TYPICAL_SIZE, SMALL_SIZE],
            };
            let choice = Choice { form, cost: own, saved: whole - own, added: 0.0 };
            sizes.iter().all(|&size| is_worth(size)).then_some(choice)
        })
    }

    /// Of integers that are bytes less a zero point, and weights that are known. The products are those of the bytes, and the
    /// zero point's part is taken away behind them.
    fn of_bytes(&self, b: &mut Builder<'_>, rates: Rates) -> Result<Option<ValueId>> {
        let memory_byte = rates.memory_byte;
        let bytes = Arithmetic { bytes: 1.0, rate: rates.bytes, memory_byte };
        let pairs = Arithmetic { bytes: 2.0, rate: rates.pairs, memory_byte };
        let stored = |tile: usize| Filtering { tile, filters: Filters::Stored };
        let cost = |tile: usize| (self.cost(stored(tile), pairs, TYPICAL_SIZE), tile);
        let is_known = !b.graph.is_apart(self.weights) && self.channels.is_multiple_of(PAIR_DEPTH);
        if !is_known || self.best(bytes, tiles().map(cost)).is_none() {
            return Ok(None);
        }
        let Some(Bytes { value, zero }) = integers::bytes(b, self.x, None, &mut { LOOKS })? else {
            return Ok(None);
        };
        let Some(range) = Range::of(b.dtype(value)) else { return Ok(None) };
        let weights = Weights::of(&interp::constant(b.graph, self.weights)?, self.filters, range);
        let fits = tiles().filter(|&tile| matrices(tile, false).is_some_and(|by| weights.fit(&by, range)));
        let Some(tile) = self.best(bytes, fits.map(cost)) else { return Ok(None) };
        let sum = self.transformed(b, stored(tile), value)?;
        match zero {
            Some(zero) => integers::less_columns(b, sum, self.weights, [0, 3, 3], zero).map(Some),
            None => Ok(Some(sum)),
        }
    }

    /// The cheapest of some transformed forms, by their cost, if it is worth it.
    fn best(&self, direct: Arithmetic, tiles: impl Iterator<Item = (f64, usize)>) -> Option<usize> {
        let (cost, tile) = tiles.min_by(|a, b| a.0.total_cmp(&b.0))?;
        (cost < WORTH * self.direct(direct, TYPICAL_SIZE)).then_some(tile)
    }

    /// Cost of the direct form, where images have `size`.
    fn direct(&self, arithmetic: Arithmetic, size: i64) -> f64 {
        let [height, width] = self.sized(size);
        let rows = (self.images * height * width) as f64;
        self.products(arithmetic, 1.0, rows, (KERNEL * KERNEL * self.channels) as f64)
    }

    /// Of products over `rows` rows, or of the weights they read: one hides the other.
    fn products(&self, arithmetic: Arithmetic, count: f64, rows: f64, inner: f64) -> f64 {
        let filters = self.filters as f64;
        let steps = count * rows * filters * (inner / arithmetic.rate + STORE_STEPS);
        steps.max(arithmetic.memory_byte * arithmetic.bytes * count * inner * filters)
    }

    /// Height and width, where images have `size`.
    fn sized(&self, size: i64) -> [usize; 2] {
        [&self.height, &self.width].map(|dim| sized(dim, size).unwrap_or(0))
    }

    /// Elements of the transformed weights.
    fn elements(&self, tile: usize) -> f64 {
        ((tile + KERNEL - 1).pow(2) * self.channels * self.filters) as f64
    }

    /// Cost of a transformed form, where images have `size`.
    fn cost(&self, Filtering { tile, filters }: Filtering, arithmetic: Arithmetic, size: i64) -> f64 {
        let [th, tw] = self.sized(size).map(|size| size.div_ceil(tile));
        let squares = ((tile + KERNEL - 1) * (tile + KERNEL - 1)) as f64;
        let count = (self.images * th * tw) as f64;
        let (channels, sum_bytes) = (self.channels as f64, SUM_BYTES * self.filters as f64);
        let bytes = 2.0 * squares * count * (arithmetic.bytes * channels + sum_bytes);
        // Weights that are made are read from a cache.
        let (making, memory_byte) = match filters {
            Filters::Stored => (0.0, arithmetic.memory_byte),
            Filters::Made => (self.making(tile, arithmetic), 0.0),
        };
        let products = self.products(Arithmetic { memory_byte, ..arithmetic }, squares, count, channels);
        making + products + CACHED_BYTE * bytes
    }

    /// Cost of transforming the weights.
    fn making(&self, tile: usize, arithmetic: Arithmetic) -> f64 {
        let weights = (KERNEL * KERNEL * self.channels * self.filters) as f64;
        let read = weights * arithmetic.memory_byte.max(CACHED_BYTE);
        arithmetic.bytes * (read + 2.0 * self.elements(tile) * CACHED_BYTE)
    }

    /// The sums of `x` in tiles.
    fn transformed(&self, b: &mut Builder<'_>, form: Filtering, x: ValueId) -> Result<ValueId> {
        let tile = form.tile;
        let x = self.whole_tiles(b, x, [covered(&self.height, tile), covered(&self.width, tile)])?;
        let input = b.emit1(Op::WinogradInput { tile }, &[x])?;
        let input = b.transpose(input, &[3, 0, 1, 2, 4])?;
        let weights = self.filters(b, form)?;
        let op = Op::Contract { batch: 1, m: 3, k: 1, rhs: RhsLayout::Plain };
        let products = b.emit1(op, &[input, weights])?;
        let (height, width) = (self.height.clone(), self.width.clone());
        b.emit1(Op::WinogradOutput { tile, height, width }, &[products])
    }

    /// The padded input with more behind it, as far as the tiles reach that the result is cut from: zeros in place of floats, so
    /// that nothing is NaN which has no part in a result, and any integers.
    fn whole_tiles(&self, b: &mut Builder<'_>, mut x: ValueId, results: [Dim; 2]) -> Result<ValueId> {
        let dtype = b.dtype(x);
        let more: Vec<Dim> = results
            .iter()
            .zip(&b.ty(x).shape[1..3])
            .map(|(results, have)| results.clone() + Dim::from(KERNEL - 1) - have.clone())
            .collect();
        if more.iter().all(|dim| *dim == Dim::ZERO) {
            return Ok(x);
        }
        let mut hi = vec![Dim::ZERO, more[0].clone(), more[1].clone(), Dim::ZERO];
        let mut lo = vec![Dim::ZERO; 4];
        let mut fill = b.scalar(dtype, 0.0);
        if let Some(Node { op: Op::Pad { lo: before, hi: after }, inputs, .. }) = producer(b.graph, x)
            && (!dtype.is_float() || is_zero(b.graph, inputs[1]))
        {
            let both: Vec<Dim> =
                hi.iter().zip(after).map(|(more, after)| more.clone() + after.clone()).collect();
            if !both.iter().any(Dim::is_overgrown) {
                (lo, hi) = (before.clone(), both);
                (x, fill) = (inputs[0], inputs[1]);
            }
        }
        b.emit1(Op::Pad { lo, hi }, &[x, fill])
    }

    /// The transformed weights: `[3, 3, c, f] -> [(tile+2)^2, c, f]`. The compiler rounds them once.
    fn filters(&self, b: &mut Builder<'_>, Filtering { tile, filters }: Filtering) -> Result<ValueId> {
        let shape = b.shape(self.weights);
        let taps = vec![Dim::from(KERNEL * KERNEL), shape[2].clone(), shape[3].clone()];
        let weights = b.reshape(self.weights, taps)?;
        let op = Op::WinogradFilter { tile };
        match filters {
            Filters::Stored => b.emit1(op, &[weights]),
            Filters::Made => b.unfolded(op, &[weights]),
        }
    }
}

fn is_zero(graph: &Graph, value: ValueId) -> bool {
    graph.constant_data(value).is_some_and(|fill| fill.data.iter().all(|&byte| byte == 0))
}

/// The root of the mean squared rounding error of sums by minimal filtering, relative to that of direct sums, over all filters: inputs
/// are taken for independent and of one variance, roundings for independent.
///
/// A sum of `n` terms of variance `v` that are added up one by one has an error of variance `u^2 v n^2 / 2`, that is `n / 2` times the
/// variance of the sum. The direct sum has `9 c` terms `g d`. Of the transformed one each of the products `(G g G^T) (B^T d B)` is summed
/// over `c` channels, and `A^T` from either side adds up these sums, which cancel each other for the most part: their variances, times the
/// squares of its factors, are those of the errors.
struct Estimate {
    /// The mean of the variances of what is added up, relative to the direct ones.
    variance: f64,
    channels: usize,
}

impl Estimate {
    /// Of weights `[3, 3, c, f]`, f32; `None` without such tiles, or where they are not of f32.
    fn of(tile: usize, weights: &Tensor, [channels, filters]: [usize; 2]) -> Option<Estimate> {
        let Matrices { input, filter, output, .. } = matrices(tile, true)?;
        let weights = weights.to_f64s().filter(|_| weights.dtype == DType::F32)?;
        // The variance of each product's part of a result, for a transformed weight of 1: the mean over a tile.
        let gains = input.iter().enumerate().map(|(at, row)| {
            let squares = output.iter().map(|row| row[at] * row[at]).sum::<f64>() / tile as f64;
            squares * row.iter().map(|factor| factor * factor).sum::<f64>()
        });
        let gains: Vec<f64> = gains.collect();
        let (mut direct, mut transformed) = (vec![0.0; filters], vec![0.0; filters]);
        for channel in 0..channels {
            for (at, (direct, transformed)) in direct.iter_mut().zip(&mut transformed).enumerate() {
                let taps: [f64; KERNEL * KERNEL] =
                    std::array::from_fn(|tap| weights[(tap * channels + channel) * filters + at]);
                *direct += taps.iter().map(|tap| tap * tap).sum::<f64>();
                for (left, gain) in filter.iter().zip(&gains) {
                    let rows: [f64; KERNEL] = std::array::from_fn(|column| {
                        left.iter().zip(taps.chunks(KERNEL)).map(|(by, taps)| by * taps[column]).sum()
                    });
                    for (right, other) in filter.iter().zip(&gains) {
                        let weight: f64 = right.iter().zip(&rows).map(|(by, row)| by * row).sum();
                        *transformed += gain * other * weight * weight;
                    }
                }
            }
        }
        let ratios: Vec<f64> = (direct.iter().zip(&transformed))
            .filter(|(direct, _)| **direct > 0.0)
            .map(|(direct, transformed)| transformed / direct)
            .collect();
        let variance = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        Some(Estimate { variance, channels })
    }

    /// The error, relative to that of the direct sum.
    fn error(&self, filters: Filters) -> f64 {
        let roundings = |terms: usize| terms.min(SUM_TERMS as usize) as f64 / 2.0;
        let transforms = match filters {
            Filters::Stored => TRANSFORM_ROUNDINGS,
            Filters::Made => TRANSFORM_ROUNDINGS + FILTER_ROUNDINGS,
        };
        let relation =
            (roundings(self.channels) + transforms) / (roundings(KERNEL * KERNEL * self.channels) + 1.0);
        (relation * self.variance).sqrt()
    }
}

/// What is known of weights that are integers.
struct Weights {
    /// The greatest magnitude.
    largest: f64,
    /// The greatest magnitude of a result.
    reach: i64,
}

impl Weights {
    /// Of weights `[3, 3, c, f]`, i32, and an input within a range.
    fn of(weights: &Tensor, filters: usize, range: Range) -> Weights {
        let (mut largest, mut sums) = (0u32, vec![(0i64, 0i64); filters]);
        for row in weights.data.chunks_exact(4 * filters) {
            for (weight, (least, most)) in row.chunks_exact(4).zip(&mut sums) {
                let weight = weight.try_into().map_or(0, i32::from_le_bytes);
                largest = largest.max(weight.unsigned_abs());
                let weight = i64::from(weight);
                let products = [weight.saturating_mul(range.least), weight.saturating_mul(range.most)];
                *least = least.saturating_add(products[0].min(products[1]));
                *most = most.saturating_add(products[0].max(products[1]));
            }
        }
        let reach = sums.iter().map(|(least, most)| least.saturating_neg().max(*most)).max();
        Weights { largest: largest.into(), reach: reach.unwrap_or(0) }
    }

    /// Whether all that is stored of either transform fits 16 bits, and results stay within the range that the exact division covers.
    fn fit(&self, matrices: &Matrices, input: Range) -> bool {
        let most = f64::from(i16::MAX);
        self.largest * growth(&matrices.filter) <= most
            && input.largest() as f64 * growth(&matrices.input) <= most
            && self.reach <= matrices.quotient().limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from a seed, with mean 0 and about variance 1.
    fn drawn(seed: &mut u64) -> f64 {
        let mut uniform = || {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 40) as f64 / (1 << 24) as f64 - 0.5
        };
        (0..12).map(|_| uniform()).sum()
    }

    /// `[3, 3, c, f]`; `of` gives the taps by row and column.
    fn weights([channels, filters]: [usize; 2], mut of: impl FnMut(usize, usize) -> f64) -> Tensor {
        let mut values = Vec::new();
        for tap in 0..9 {
            values.extend((0..channels * filters).map(|_| of(tap / 3, tap % 3) as f32));
        }
        Tensor::from_slice(&[3, 3, channels, filters], &values)
    }

    /// A convolution of maps of `size` beside a product, whose weights decide what the share for code leaves: its form.
    fn form_beside(
        rows: Option<usize>,
        columns: usize,
        size: usize,
        shares: Option<[f64; 2]>,
    ) -> Option<Filtering> {
        let mut graph = Graph::default();
        let origin = graph.origins.push(onnxc_ir::graph::Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, origin);
        let ty = |shape: &[usize]| {
            let shape = shape.iter().map(|&size| Dim::from(size)).collect();
            onnxc_ir::graph::TensorType::new(DType::F32, shape)
        };
        let x = b.input("x", ty(&[1, size + 2, size + 2, 64]), None);
        let rows = rows.map_or_else(|| Dim::sym(b.fresh_symbol()), Dim::from);
        let y = onnxc_ir::graph::TensorType::new(DType::F32, vec![rows, Dim::from(64usize)]);
        let y = b.input("y", y, None);
        let mut seed = 7;
        let conv = b.constant(weights([64, 64], |_, _| drawn(&mut seed)));
        let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
        let window = b.emit1(op, &[x]).unwrap();
        let product = |m, k| Op::Contract { batch: 0, m, k, rhs: RhsLayout::Plain };
        let found = b.emit1(product(3, 3), &[window, conv]).unwrap();
        let other = b.constant(Tensor::zeros(DType::F32, &[64, columns]));
        let other = b.emit1(product(1, 1), &[y, other]).unwrap();
        graph.outputs = vec![("a".into(), found), ("b".into(), other)];
        let policy = PackPolicy { transformed: shares, ..PackPolicy::WIDE };
        forms(&graph, &policy).unwrap().into_values().next()
    }

    #[test]
    fn what_code_leaves_is_spent() {
        let form = |rows, columns, shares| form_beside(rows, columns, 12, Some(shares));
        let stored = |tile| Some(Filtering { tile, filters: Filters::Stored });
        let made = Some(Filtering { tile: 4, filters: Filters::Made });
        // Tiles of 2 add 7 * 64 * 64 * 4 bytes, 114,688, tiles of 4 add 442,368. Two products have 24,000 of code.
        assert_eq!(form(Some(1), 64, [0.0; 2]), made);
        assert_eq!(form(Some(1), 64, [0.8, 0.0]), stored(2));
        assert_eq!(form(Some(1), 4 << 10, [0.0; 2]), made);
        assert_eq!(form(Some(1), 12 << 10, [0.0; 2]), stored(2));
        assert_eq!(form(Some(1), 48 << 10, [0.0; 2]), stored(4));
        // 5% of 2,899,968 bytes, less the code: 120,998, and 108,998 where the product has any number of rows.
        assert_eq!(form(Some(1), 10_752, [0.0; 2]), stored(2));
        assert_eq!(form(None, 10_752, [0.0; 2]), made);
    }

    /// Runs transform weights where that takes little of the time, also where there is room to store them; else those that are not
    /// stored, if it is worth it.
    #[test]
    fn weights_of_large_maps_are_not_stored() {
        let form = |tile, filters| Some(Filtering { tile, filters });
        for shares in [None, Some([9.0; 2]), Some([0.0; 2])] {
            assert_eq!(form_beside(Some(1), 64, 112, shares), form(4, Filters::Made), "{shares:?}");
        }
        assert_eq!(form_beside(Some(1), 64, 16, Some([0.0; 2])), form(4, Filters::Made));
        assert_eq!(form_beside(Some(1), 64, 16, None), form(4, Filters::Stored));
        assert_eq!(form_beside(Some(1), 64, 6, Some([0.0; 2])), None);
    }

    /// Of open convolutions with the same weights, that of the larger map gets the bytes that there are, unless each run transforms
    /// its weights; that takes little for large maps alone.
    #[test]
    fn large_maps_come_first() {
        let mut graph = Graph::default();
        let origin = graph.origins.push(onnxc_ir::graph::Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, origin);
        let size = Dim::sym(b.fresh_symbol());
        let mut seed = 7;
        let mut results = vec![];
        for by in [64usize, 32, 1] {
            let padded = size.floor_div(&Dim::from(by)).unwrap() + Dim::from(KERNEL - 1);
            let shape = vec![Dim::ONE, padded.clone(), padded, Dim::from(64usize)];
            let x = b.input(&format!("x{by}"), onnxc_ir::graph::TensorType::new(DType::F32, shape), None);
            let weights = b.constant(weights([64, 64], |_, _| drawn(&mut seed)));
            let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
            let window = b.emit1(op, &[x]).unwrap();
            let op = Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain };
            results.push(b.emit1(op, &[window, weights]).unwrap());
        }
        graph.outputs =
            results.iter().zip(["least", "small", "large"]).map(|(&y, name)| (name.into(), y)).collect();
        // 0.3 of 442,368 bytes: tiles of 2 of one of them.
        let policy = PackPolicy { transformed: Some([0.3, 0.0]), ..PackPolicy::WIDE };
        let chosen = forms(&graph, &policy).unwrap();
        let found = results.iter().map(|&y| chosen.get(&graph.producer(y).unwrap()).copied());
        let form = |tile, filters| Some(Filtering { tile, filters });
        let wanted = [None, form(2, Filters::Stored), form(4, Filters::Made)];
        assert_eq!(found.collect::<Vec<_>>(), wanted);
    }

    /// Kernels that lie in a corner cost accuracy in tiles of 4, where many channels are added up; tiles of 2 serve.
    #[test]
    fn weights_decide_the_tile() {
        let mut seed = 5;
        for channels in [16, 64, 256, 512] {
            let of = |tile, weights: &Tensor| {
                Estimate::of(tile, weights, [channels, 4]).unwrap().error(Filters::Stored)
            };
            let alike = weights([channels, 4], |_, _| drawn(&mut seed));
            let corner = weights([channels, 4], |row, column| f64::from(u8::from((row, column) == (0, 0))));
            assert!(of(4, &alike) < MOST_ERROR && of(2, &alike) < 2.5 && of(2, &corner) < 2.5);
            assert_eq!(of(4, &corner) > MOST_ERROR, channels >= 256, "{channels}");
        }
    }

    /// `M x M^T` of a square, each operation rounded to f32.
    fn both_sides(matrix: &onnxc_ir::winograd::Matrix, x: &[f32], size: usize) -> Vec<f32> {
        let dot = |row: &[f64], of: &dyn Fn(usize) -> f32| {
            row.iter().enumerate().fold(0f32, |sum, (at, factor)| sum + *factor as f32 * of(at))
        };
        let rows: Vec<Vec<f32>> =
            matrix.iter().map(|row| (0..size).map(|j| dot(row, &|i| x[i * size + j])).collect()).collect();
        rows.iter().flat_map(|left| matrix.iter().map(|row| dot(row, &|i| left[i]))).collect()
    }

    /// The estimate is within a half of what tiles that are computed in f32 show.
    #[test]
    fn estimates_are_near() {
        for filters in [Filters::Stored, Filters::Made] {
            let (found, estimate) = errors(filters);
            assert!((0.5..1.5).contains(&(found / estimate)), "{filters:?}: {found}, not {estimate}");
        }
    }

    /// Of tiles with drawn weights, from somewhere: the error relative to that of direct sums, and its estimate.
    fn errors(from: Filters) -> (f64, f64) {
        let (tile, channels, mut seed) = (4, 64, 3);
        let by = matrices(tile, true).unwrap();
        let size = tile + KERNEL - 1;
        let (mut direct, mut transformed) = (0f64, 0f64);
        let mut all = Vec::new();
        for _ in 0..24 {
            let mut sums = vec![0f32; size * size];
            let (mut exact, mut one_by_one) = (vec![0f64; tile * tile], vec![0f32; tile * tile]);
            for _ in 0..channels {
                let g: Vec<f32> = (0..9).map(|_| drawn(&mut seed) as f32).collect();
                let d: Vec<f32> = (0..size * size).map(|_| drawn(&mut seed) as f32).collect();
                let wide: Vec<f64> = (0..size * KERNEL)
                    .map(|at| (0..3).map(|i| by.filter[at / 3][i] * f64::from(g[i * 3 + at % 3])).sum())
                    .collect();
                let once = |at: usize| {
                    (0..3).map(|j| by.filter[at % size][j] * wide[at / size * 3 + j]).sum::<f64>() as f32
                };
                let kernel = match from {
                    Filters::Stored => (0..size * size).map(once).collect(),
                    Filters::Made => both_sides(&by.filter, &g, KERNEL),
                };
                let input = both_sides(&by.input, &d, size);
                for ((sum, g), d) in sums.iter_mut().zip(kernel).zip(input) {
                    *sum = g.mul_add(d, *sum);
                }
                for at in 0..tile * tile {
                    for (tap, &weight) in g.iter().enumerate() {
                        let x = d[(at / tile + tap / 3) * size + at % tile + tap % 3];
                        exact[at] += f64::from(x) * f64::from(weight);
                        one_by_one[at] = x.mul_add(weight, one_by_one[at]);
                    }
                }
                all.push(g);
            }
            let found = both_sides(&by.output, &sums, size);
            let distance = |found: &[f32]| -> f64 {
                found.iter().zip(&exact).map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum()
            };
            direct += distance(&one_by_one);
            transformed += distance(&found);
        }
        let [channels, filters] = [channels, 24];
        let tensor = weights([channels, filters], {
            let mut at = 0;
            let all = &all;
            move |row, column| {
                let (channel, filter) = (at / filters % channels, at % filters);
                at += 1;
                f64::from(all[filter * channels + channel][row * 3 + column])
            }
        });
        let estimate = Estimate::of(tile, &tensor, [channels, filters]).unwrap();
        ((transformed / direct).sqrt(), estimate.error(from))
    }
}
