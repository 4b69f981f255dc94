//! What each primitive is: facts that passes, schedule and lowering ask for. Each function lists all primitives, so that a new one does
//! not compile until it has answered.

use std::borrow::Cow;

use crate::error::Result;
use crate::graph::axes::{Source, broadcast, shifted};
use crate::graph::{Dim, MapFn, Op, RhsLayout, TensorType};
use crate::scalar::CompareFn;

/// Where the elements of results come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nature {
    /// The first operand, rearranged with addresses affine in the index.
    View,
    /// Elements of operands, moved or chosen.
    Moved,
    /// Computed from elements of operands.
    Computed,
    /// Indices of elements or boxes that are chosen, and these elements.
    Ranked,
    /// Attributes and indices alone.
    Made,
    /// Given by bodies, other ranks or functions that the host program calls.
    Hosted,
}

/// The kernel that a primitive is the root of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelForm {
    /// None: the host program carries it out.
    Hosted,
    Contract,
    Winograd,
    Reduce,
    /// A loop nest of its own, with nothing fused behind it.
    Nest,
    /// A loop nest of its own, which writes its operands one after the other; an expression where it is short.
    Joined,
    /// An expression in the kernels that read it; a nest that writes borders apart where it has a buffer.
    Padded,
    /// An expression in the kernels that read it.
    Expression,
}

/// What a kernel needs an operand to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Anything: an element is computed where it is read.
    Expression,
    /// The same, but for what is padded, which would test the border for each element that is read.
    Unpadded,
    /// A buffer with a stride for each axis.
    Strided,
    /// The same, and not padded.
    StridedUnpadded,
    /// Panels of a right-hand side, in a buffer; several steps of the left operand are read at once for a depth above 1.
    Panels { depth: usize },
    /// A buffer of its own.
    Buffer,
}

/// How often elements of an operand are read for one reading of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readings {
    Once,
    /// More than once where the result has more elements than the operand.
    Spread,
    Again,
}

/// What the elements of the second operand pick in the first one; out of range is an error of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Picks {
    /// Each is an index along an axis.
    Index { axis: usize },
    /// Those along the last axis are indices of the axes from `first` on, one of each.
    Tuple { first: usize },
}

/// What the number of a dim among the attributes is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimRole {
    /// A size of the result, which is not negative.
    Size,
    /// A place, a count, or a size that is checked elsewhere.
    Number,
}

impl Op {
    pub fn nature(&self) -> Nature {
        match self {
            Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::ImplicitPad { .. }
            | Op::Window { .. } => Nature::View,
            Op::Map(MapFn::Select | MapFn::Bitcast { .. })
            | Op::Pack { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Append { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { combine: None, .. }
            | Op::ScatterNd { combine: None } => Nature::Moved,
            Op::Map(
                MapFn::Unary(_) | MapFn::Binary(_) | MapFn::Compare(_) | MapFn::MulAdd | MapFn::Cast { .. },
            )
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Dequantize { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradOutput { .. }
            | Op::Cumulate { .. }
            | Op::Leaves(_)
            | Op::ScatterElements { combine: Some(_), .. }
            | Op::ScatterNd { combine: Some(_) } => Nature::Computed,
            Op::Sort { .. } | Op::Suppress { .. } => Nature::Ranked,
            Op::Iota { .. } | Op::DimValues { .. } => Nature::Made,
            Op::Scan { .. } | Op::If { .. } | Op::Call(_) | Op::External(_) | Op::Exchange(_) => {
                Nature::Hosted
            }
        }
    }

    /// Whether the result only rearranges elements of the input, with addresses affine in the index.
    pub fn is_view(&self) -> bool {
        self.nature() == Nature::View
    }

    /// Whether elements of the results are computed from those of the operands, rather than chosen or moved.
    pub fn computes(&self) -> bool {
        self.nature() == Nature::Computed
    }

    /// Whether the host program carries it out, rather than a kernel.
    pub fn is_hosted(&self) -> bool {
        self.nature() == Nature::Hosted
    }

    /// Whether it may be of strings: all that moves or chooses them, or asks whether they are equal.
    pub fn takes_strings(&self) -> bool {
        match self.nature() {
            Nature::View => true,
            // States have no strings.
            Nature::Moved => !matches!(self, Op::Append { .. }),
            Nature::Computed => matches!(self, Op::Map(MapFn::Compare(CompareFn::Eq | CompareFn::Ne))),
            Nature::Ranked | Nature::Made => false,
            Nature::Hosted => !matches!(self, Op::External(_) | Op::Exchange(_)),
        }
    }

    /// The kernel that it is the root of.
    pub fn form(&self) -> KernelForm {
        match self {
            Op::Scan { .. } | Op::If { .. } | Op::Call(_) | Op::External(_) | Op::Exchange(_) => {
                KernelForm::Hosted
            }
            Op::Contract { .. } => KernelForm::Contract,
            Op::WinogradOutput { .. } => KernelForm::Winograd,
            Op::Reduce { .. } => KernelForm::Reduce,
            Op::ArgReduce { .. }
            | Op::Cumulate { .. }
            | Op::Pack { .. }
            | Op::WinogradInput { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Append { .. }
            | Op::Leaves(_)
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. } => KernelForm::Nest,
            Op::Concat { .. } => KernelForm::Joined,
            Op::Pad { .. } => KernelForm::Padded,
            Op::Map(_)
            | Op::Dequantize { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::ImplicitPad { .. }
            | Op::Window { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. } => KernelForm::Expression,
        }
    }

    /// What its kernel needs an operand to be.
    pub fn need(&self, operand: usize) -> Need {
        match self {
            Op::Contract { rhs, .. } => match (operand, rhs) {
                (0, _) | (1, RhsLayout::Plain) => Need::Strided,
                (1, rhs) => Need::Panels { depth: rhs.depth() },
                _ => Need::Buffer,
            },
            Op::Pack { .. } => Need::Strided,
            Op::WinogradInput { .. } | Op::WinogradOutput { .. } => Need::StridedUnpadded,
            Op::Dequantize { .. }
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => Need::Buffer,
            Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => match operand {
                0 => Need::Unpadded,
                _ => Need::Expression,
            },
            Op::Window { kernel, .. } => match kernel.iter().any(|&size| size > 1) {
                true => Need::Unpadded,
                false => Need::Expression,
            },
            Op::Map(_)
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::ImplicitPad { .. }
            | Op::Concat { .. }
            | Op::Append { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. }
            | Op::Cumulate { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_) => Need::Expression,
        }
    }

    /// Whether results have buffers, whoever reads them.
    pub fn fills_buffers(&self) -> bool {
        // Both results of a sort are where the elements taken so far are kept.
        self.is_hosted() || matches!(self, Op::Sort { .. })
    }

    /// How often elements of an operand are read where the result is an expression.
    pub fn readings(&self, operand: usize) -> Readings {
        match self {
            Op::Map(_) | Op::Expand { .. } | Op::Window { .. } => Readings::Spread,
            Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => match operand {
                0 => Readings::Again,
                _ => Readings::Spread,
            },
            // The coordinates of an update, and what is around the operand.
            Op::ScatterNd { .. } | Op::Pad { .. } => match operand {
                1 => Readings::Again,
                _ => Readings::Once,
            },
            // What has a kernel of its own evaluates its operands there.
            Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Pack { .. }
            | Op::Dequantize { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::ImplicitPad { .. }
            | Op::Concat { .. }
            | Op::Append { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradOutput { .. }
            | Op::ScatterElements { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. }
            | Op::Cumulate { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_)
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => Readings::Once,
        }
    }

    /// What the second operand picks in the first one, where it is indices.
    pub fn picks(&self) -> Option<Picks> {
        match self {
            Op::Gather { axis } | Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
                Some(Picks::Index { axis: *axis })
            }
            Op::GatherNd { batch } => Some(Picks::Tuple { first: *batch }),
            Op::ScatterNd { .. } => Some(Picks::Tuple { first: 0 }),
            Op::Map(_)
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Pack { .. }
            | Op::Dequantize { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::ImplicitPad { .. }
            | Op::Concat { .. }
            | Op::Append { .. }
            | Op::Window { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradOutput { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. }
            | Op::Cumulate { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_)
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => None,
        }
    }

    /// Where the place along each axis of an operand comes from.
    pub fn sources(&self, operand: usize, inputs: &[&TensorType], result: &TensorType) -> Vec<Source> {
        let shape = &inputs[operand].shape[..];
        let rank = shape.len();
        // But for what the operation looks for, moves or adds up along some axes, operand and result have the same ones.
        let but = |own: &dyn Fn(usize) -> bool| {
            (0..rank).map(|axis| if own(axis) { Source::All } else { Source::axis(axis) }).collect()
        };
        match self {
            Op::Map(_) | Op::Expand { .. } => broadcast(shape, &result.shape),
            Op::Transpose { perm } => {
                let mut sources = vec![Source::All; rank];
                perm.iter().enumerate().for_each(|(to, &from)| sources[from] = Source::axis(to));
                sources
            }
            Op::Slice { starts, steps, .. } => (starts.iter().zip(steps).enumerate())
                .map(|(axis, (start, &by))| Source::Along { offset: start.clone(), terms: vec![(axis, by)] })
                .collect(),
            Op::Pad { lo, .. } if operand == 0 => shifted(lo),
            Op::ImplicitPad { lo, .. } => shifted(lo),
            Op::Window { first, kernel, strides, dilations } => {
                let behind = first + kernel.len();
                let of = |axis: usize| match axis {
                    axis if axis < *first => Source::axis(axis),
                    axis if axis < behind => {
                        let [by, apart] = [strides, dilations].map(|steps| steps[axis - first] as i64);
                        Source::Along {
                            offset: Dim::ZERO,
                            terms: vec![(axis, by), (axis + kernel.len(), apart)],
                        }
                    }
                    axis => Source::axis(axis + kernel.len()),
                };
                (0..rank).map(of).collect()
            }
            Op::Gather { axis } => {
                let count = inputs[1].rank();
                let of = |at: usize| match (operand, at) {
                    (0, at) if at < *axis => Source::axis(at),
                    (0, at) if at == *axis => Source::Picked,
                    (0, at) => Source::axis(at - 1 + count),
                    (_, at) => Source::axis(axis + at),
                };
                (0..rank).map(of).collect()
            }
            Op::GatherElements { axis } => {
                let of =
                    |at: usize| if operand == 0 && at == *axis { Source::Picked } else { Source::axis(at) };
                (0..rank).map(of).collect()
            }
            Op::GatherNd { batch } => {
                // The indices along the last axis of the second operand pick one each.
                let lead = inputs[1].rank() - 1;
                let picked = inputs[1].shape.last().and_then(Dim::as_const).unwrap_or(0) as usize;
                let of = |at: usize| match (operand, at) {
                    (0, at) if at < *batch => Source::axis(at),
                    (0, at) if at < batch + picked => Source::Picked,
                    (0, at) => Source::axis(at + lead - batch - picked),
                    (_, at) if at < lead => Source::axis(at),
                    _ => Source::All,
                };
                (0..rank).map(of).collect()
            }
            Op::Reduce { axes, .. } => but(&|axis| axes.contains(&axis)),
            Op::ArgReduce { axis: own, .. }
            | Op::Cumulate { axis: own, .. }
            | Op::Sort { axis: own, .. }
            | Op::Concat { axis: own }
            | Op::Append { axis: own, panel: None, .. }
            | Op::ScatterElements { axis: own, .. } => but(&|axis| axis == *own),
            Op::Contract { batch, m, k, rhs } => {
                let mut sources = match operand {
                    0 | 1 => broadcast(&shape[..*batch], &result.shape[..*batch]),
                    _ => vec![],
                };
                match (operand, rhs) {
                    (0, _) => {
                        sources.extend((*batch..batch + m).map(Source::axis));
                        sources.extend(vec![Source::All; *k]);
                    }
                    (1, RhsLayout::Plain) => {
                        sources.extend(vec![Source::All; *k]);
                        sources.push(Source::axis(batch + m));
                    }
                    _ => {}
                }
                sources.resize(rank, Source::All);
                sources
            }
            Op::Pad { .. }
            | Op::Reshape { .. }
            | Op::Append { .. }
            | Op::Pack { .. }
            | Op::Dequantize { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradOutput { .. }
            | Op::ScatterNd { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_)
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => vec![Source::All; rank],
        }
    }

    /// Whether the second operand is indices that must lie within the first one.
    pub fn takes_indices(&self) -> bool {
        self.picks().is_some()
    }

    /// Whether a run may do without a body: that of a choice, or of a loop that may not turn once. What such a body needs
    /// of sizes is checked before it runs, and only then.
    pub fn may_skip_bodies(&self) -> bool {
        match self {
            Op::If { .. } => true,
            Op::Scan { trip, conditional, .. } => *conditional || trip.bounds().0.is_none_or(|low| low < 1),
            // Where there are bodies, they run.
            op => op.is_control(),
        }
    }

    /// Dims among the operation's attributes.
    pub fn dims(&self) -> Vec<&Dim> {
        match self {
            Op::Reshape { shape } | Op::Expand { shape } | Op::Iota { shape, .. } => shape.iter().collect(),
            Op::Slice { starts, steps: _, sizes } => starts.iter().chain(sizes).collect(),
            Op::Pad { lo, hi } | Op::ImplicitPad { lo, hi } => lo.iter().chain(hi).collect(),
            Op::DimValues { dims } => dims.iter().collect(),
            Op::Contract { rhs, .. } => rhs.columns().into_iter().collect(),
            Op::Sort { take, .. } | Op::Suppress { take } => vec![take],
            Op::Append { at, .. } => vec![at],
            Op::WinogradOutput { tile: _, height, width } => vec![height, width],
            Op::Scan { trip, shapes, .. } => shapes.values().flatten().chain([trip]).collect(),
            Op::If { shapes, .. } => shapes.values().flatten().collect(),
            Op::Call(call) => call.numbers.iter().chain(&call.result.shape).collect(),
            Op::External(external) => external.dims().collect(),
            Op::Exchange(exchange) => exchange.ty.shape.iter().collect(),
            Op::Map(_)
            | Op::Reduce { op: _, axes: _ }
            | Op::ArgReduce { max: _, axis: _, last: _ }
            | Op::Pack { batch: _, k: _, nr: _ }
            | Op::Dequantize { bits: _, bias: _ }
            | Op::Transpose { perm: _ }
            | Op::Concat { axis: _ }
            | Op::Window { first: _, kernel: _, strides: _, dilations: _ }
            | Op::WinogradInput { tile: _ }
            | Op::Gather { axis: _ }
            | Op::GatherElements { axis: _ }
            | Op::GatherNd { batch: _ }
            | Op::ScatterElements { axis: _, combine: _ }
            | Op::ScatterNd { combine: _ }
            | Op::Cumulate { op: _, axis: _, exclusive: _, reverse: _ }
            | Op::Leaves(_) => vec![],
        }
    }

    /// The operation with other dims in place of its own, those of [`Op::dims`]; but loops, choices and calls keep them: these
    /// take theirs as they are carried out.
    pub fn with_dims(&self, number: &mut dyn FnMut(&Dim, DimRole) -> Result<Dim>) -> Result<Cow<'_, Op>> {
        let mut all = |dims: &[Dim], role: DimRole| -> Result<Vec<Dim>> {
            dims.iter().map(|dim| number(dim, role)).collect()
        };
        Ok(Cow::Owned(match self {
            Op::Reshape { shape } => Op::Reshape { shape: all(shape, DimRole::Size)? },
            Op::Expand { shape } => Op::Expand { shape: all(shape, DimRole::Size)? },
            Op::Iota { shape, axis } => Op::Iota { shape: all(shape, DimRole::Size)?, axis: *axis },
            Op::Slice { starts, steps, sizes } => Op::Slice {
                starts: all(starts, DimRole::Number)?,
                steps: steps.clone(),
                sizes: all(sizes, DimRole::Size)?,
            },
            Op::Pad { lo, hi } => Op::Pad { lo: all(lo, DimRole::Number)?, hi: all(hi, DimRole::Number)? },
            Op::ImplicitPad { lo, hi } => {
                Op::ImplicitPad { lo: all(lo, DimRole::Number)?, hi: all(hi, DimRole::Number)? }
            }
            Op::DimValues { dims } => Op::DimValues { dims: all(dims, DimRole::Number)? },
            Op::Contract { batch, m, k, rhs } => match rhs.columns() {
                Some(n) => {
                    let rhs = rhs.with_columns(number(n, DimRole::Number)?);
                    Op::Contract { batch: *batch, m: *m, k: *k, rhs }
                }
                None => return Ok(Cow::Borrowed(self)),
            },
            Op::Sort { axis, descending, take } => {
                Op::Sort { axis: *axis, descending: *descending, take: number(take, DimRole::Number)? }
            }
            Op::Suppress { take } => Op::Suppress { take: number(take, DimRole::Number)? },
            Op::Append { axis, at, panel } => {
                Op::Append { axis: *axis, at: number(at, DimRole::Number)?, panel: *panel }
            }
            Op::WinogradOutput { tile, height, width } => Op::WinogradOutput {
                tile: *tile,
                height: number(height, DimRole::Size)?,
                width: number(width, DimRole::Size)?,
            },
            Op::Exchange(exchange) => {
                let mut exchange = exchange.clone();
                exchange.ty.shape = all(&exchange.ty.shape, DimRole::Size)?;
                Op::Exchange(exchange)
            }
            Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Pack { .. }
            | Op::Dequantize { .. }
            | Op::Transpose { .. }
            | Op::Concat { .. }
            | Op::Window { .. }
            | Op::WinogradInput { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Cumulate { .. }
            | Op::Leaves(_) => return Ok(Cow::Borrowed(self)),
        }))
    }
}
