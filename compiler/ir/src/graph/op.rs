//! The closed set of primitives. Below the operator table nothing else exists: passes, schedule and
//! loops never see an ONNX operator name.
//!
//! Every primitive states its shape rule here, and what it is: facts that passes, schedule and lowering ask for. Each of these functions
//! lists all primitives, so that a new one does not compile until it has answered. `infer` enforces the rule as `build` adds nodes, and
//! `verify` rechecks it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Result;
use crate::graph::axes::{Source, broadcast, shifted};
use crate::graph::{Call, DType, Dim, Exchange, External, Graph, TensorType, Trees};
pub use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// What one element of a [`Op::Map`] computes from one element of each input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapFn {
    /// `(x: T) -> T`; the `is*` functions give bool.
    Unary(UnaryFn),
    /// `(a: T, b: T) -> T`
    Binary(BinaryFn),
    /// `(a: T, b: T) -> bool`
    Compare(CompareFn),
    /// `(condition: bool, then: T, otherwise: T) -> T`
    Select,
    /// `(a: T, b: T, c: T) -> T` of floats: `a * b + c`, rounded once where the processor does that in one operation, else twice.
    MulAdd,
    /// `(x: i32, factor: i32, offset: i64) -> i32`: the floor of `(x * factor + offset) / 2^shift`, computed in i64. `shift` is 1 to 62;
    /// what does not fit its type wraps. With a factor of `scale * 2^shift`, and half of `2^shift` in the offset, this is a
    /// multiplication by a scale and a rounding, without floats.
    Requantize { shift: u8 },
    /// `(x: T) -> to`. Floats to integers truncate and, like C on x86-64 out of range, are unspecified;
    /// to bool: `x != 0`. `saturate` applies to the 8-bit and smaller floats (ONNX `Cast.saturate`); of f32 to bf16 without it,
    /// numbers below the normal ones may become zeros, as which products of bf16 take them. A complex number
    /// becomes its real part, in that part's type, which becomes one without imaginary part.
    Cast { to: DType, saturate: bool },
    /// `(x: T) -> to`: the same bits; both types have one size, or one is u8 and holds a code of the other, of 6 bits.
    Bitcast { to: DType },
}

/// Layout of the right-hand operand of [`Op::Contract`]; where panels have their elements is what [`super::PanelLayout`] says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RhsLayout {
    /// `[batch.., k.., n]`
    Plain,
    /// Column panels as [`Op::Pack`] makes them: `[batch.., ceil(n/nr), k.., nr * depth]`; `n` is the true count.
    ///
    /// A row of a panel holds `depth` steps of the last inner axis, those of each column side by side; that axis of the
    /// left-hand side is `depth` times as long. A depth of 4 is for products of bytes, one of 2 for those of i16 and of bf16.
    Panels { nr: usize, depth: usize, n: Dim },
    /// As `Panels` of depth [`DOT_DEPTH`], for u8 on the left. In the first `short` rows along the last inner axis, neither the
    /// products of the first two bytes of a column with bytes of u8 nor those of the last two have a sum beyond 16 bits,
    /// for all values of these bytes. Those rows come first in an order that each panel has for itself: `order`, the contraction's
    /// third input, u16 `[batch.., ceil(n/nr), k..]`, gives the place of each row along that axis. Without this input they are in
    /// place; and with it where `stays` holds: then the order says which rows to read first, and who needs none may ignore it.
    /// `passes/order.rs` makes it.
    Ordered { nr: usize, n: Dim, short: usize, stays: bool },
}

impl RhsLayout {
    /// The same with `columns` columns in all, if it is panels.
    pub fn with_columns(&self, columns: Dim) -> RhsLayout {
        let mut layout = self.clone();
        if let RhsLayout::Panels { n, .. } | RhsLayout::Ordered { n, .. } = &mut layout {
            *n = columns;
        }
        layout
    }
}

/// Steps of the inner axis that [`crate::scalar::BinaryFn::Dot`] adds up at once.
pub const DOT_DEPTH: usize = 4;

/// The same of [`crate::scalar::BinaryFn::DotPairs`] and [`crate::scalar::BinaryFn::DotBf16`].
pub const PAIR_DEPTH: usize = 2;

/// Digits of the left-hand side of an [`Op::Contract`], at most.
pub const MOST_DIGITS: usize = 4;

/// Codes of `bits` bits per element, of type `element`, of the input of [`Op::Dequantize`]; `None` for types that it does not read.
pub fn codes_per_word(bits: usize, element: DType) -> Option<usize> {
    match (bits, element) {
        (8, DType::I8 | DType::U8) => Some(1),
        (2 | 4 | 8, DType::I32) => Some(32 / bits),
        _ => None,
    }
}

/// The lowest bit of code number `place` in a word. Neighbours lie in neighbouring bytes, so that a shift and a mask leave
/// the codes of [`DOT_DEPTH`] steps as the bytes of the word.
pub fn code_shift(bits: usize, place: usize) -> usize {
    8 * (place % DOT_DEPTH) + bits * (place / DOT_DEPTH)
}

/// How [`Op::ScatterElements`] and [`Op::ScatterNd`] combine an update with what is there.
pub type ScatterFn = Option<BinaryFn>;

/// Result shapes that cannot be inferred from the bodies, by number of the result: symbols of the graph around stand for sizes that differ
/// between bodies or iterations. Element type and rank are those of the bodies.
pub type Shapes = BTreeMap<usize, Vec<Dim>>;

/// A primitive operation of the tensor IR.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Elementwise function of 1 to 3 inputs, broadcast against each other as in NumPy.
    Map(MapFn),
    /// `x` reduced over `axes` (sorted, distinct), which stay with size 1. An empty axis gives the identity. Sums and
    /// products are computed in their own type; [`crate::build::Builder::reduce`] widens f16 and bf16.
    Reduce { op: ReduceFn, axes: Vec<usize> },
    /// Index along `axis` of the first (`last`: last) extreme element, i64; the axis stays with size 1. A NaN is more
    /// extreme than any number; an empty axis gives 0.
    ArgReduce { max: bool, axis: usize, last: bool },
    /// `out[b.., m.., n] = sum over k.. of lhs[b.., m.., k..] * rhs[b.., k.., n]`.
    ///
    /// `lhs` has `batch + m + k` axes, `rhs` `batch + k + 1` in the plain layout. Batch axes broadcast
    /// (size 1 against n). Of bytes with i8, and of i16, over at least one inner axis, the sums are
    /// i32; of f32 with f16 or bf16 they are f32, and so they are of pairs of bf16, in panels of depth 2. Floats accumulate in their own
    /// type (f16 and bf16 in f32), integers wrap. A convolution is a `Contract` whose `lhs` is a [`Op::Window`] with `k` = kernel axes +
    /// channels.
    ///
    /// Further inputs, of a product with [`Op::Dequantize`] over the inner axes part and step, say in another form what `lhs`
    /// is: `(lhs, rhs, unit, total0, .., digit0, ..)` with `unit` f32 `[m.., parts]`, up to [`MOST_DIGITS`] digits, i8
    /// `[m.., parts, steps]`, and for each two of them (the last may be alone) their total, i32 `[m.., parts]`. Where `unit` is
    /// finite, `lhs` is about `unit * (digit0 + 256 digit1 + ..)`, and `total0` is the sum over the steps of
    /// `digit0 + 256 digit1`, and so on. A kernel may read this form in place of `lhs`; `passes/digits.rs` makes it.
    Contract { batch: usize, m: usize, k: usize, rhs: RhsLayout },
    /// `[batch.., k.., n] -> [batch.., ceil(n/nr), k.., nr]`, zero-filled: the panel layout of a
    /// contraction's right-hand side. `k` counts the axes between.
    Pack { batch: usize, k: usize, nr: usize },
    /// Inputs `(codes, scale)` or `(codes, scale, zero)`, the weights of a contraction as few bits, in panels:
    /// `out[lead.., part, step, column] = (code - bias - zero[lead.., part, column]) * scale[lead.., part, column]`, f32.
    ///
    /// Codes of 8 bits are i8 or u8 `[lead.., parts, steps, columns]`. Or codes of 2, 4 or 8 bits, unsigned, lie in words, i32
    /// `[lead.., parts, steps / per_word, columns]`; see [`codes_per_word`] and [`code_shift`].
    /// `scale` and `zero` are f32, f16 or bf16, `zero` may be u8. Never folded: contractions read it as an expression.
    Dequantize { bits: usize, bias: usize },
    /// The same elements in row-major order under another shape.
    Reshape { shape: Vec<Dim> },
    /// `out.shape[i] = in.shape[perm[i]]`
    Transpose { perm: Vec<usize> },
    /// NumPy broadcast of the input to `shape`.
    Expand { shape: Vec<Dim> },
    /// `out[i..] = in[starts + i*steps ..]`, one entry per axis; `sizes` is the result's shape. Steps may
    /// be negative; every index read lies inside the input.
    Slice { starts: Vec<Dim>, steps: Vec<i64>, sizes: Vec<Dim> },
    /// Inputs `(x, fill)`: `lo`/`hi` elements of the scalar `fill` before/after each axis; never negative.
    Pad { lo: Vec<Dim>, hi: Vec<Dim> },
    /// `x` with `lo`/`hi` zeros before/after each axis that have no memory: a view. Its only reader is a [`Op::Window`] that only a
    /// [`Op::Contract`] reads, which leaves out the steps that would read a zero. `passes/implicit_padding.rs` makes it.
    ImplicitPad { lo: Vec<Dim>, hi: Vec<Dim> },
    /// One or more inputs joined along `axis`.
    Concat { axis: usize },
    /// Inputs `(state, new)`: `state` with `new` in place of its elements from `at` on along `axis`. The first input is a state of
    /// the graph that nothing else reads, the result is that state's output (see [`super::State`]): the two are one tensor in the
    /// caller's memory, where nothing but `new` is written.
    ///
    /// With `panel` the state lies in panels of `panel` elements along the axis: `new[lead.., i, rest..]` goes to
    /// `[lead.., (at + i) / panel, rest.., (at + i) % panel]`. That is the layout of [`Op::Pack`] where those elements are the
    /// columns of a right-hand side.
    Append { axis: usize, at: Dim, panel: Option<usize> },
    /// Sliding windows over the axes `first..first+kernel.len()`, without padding:
    /// `[lead.., s.., tail..] -> [lead.., out.., kernel.., tail..]` with
    /// `out = (s - (kernel-1)*dilation - 1) / stride + 1`, and
    /// `result[l.., o.., k.., t..] = in[l.., o*stride + k*dilation .., t..]`. A view: it copies nothing.
    Window { first: usize, kernel: Vec<usize>, strides: Vec<usize>, dilations: Vec<usize> },
    /// `x: [n, h, w, c]` in overlapping squares of `tile + 2`, each `B^T d B` (see `winograd.rs`):
    /// `[n, th, tw, (tile+2)^2, c]`, where `h = th*tile + 2` and `w = tw*tile + 2`. Of bytes they are i16.
    WinogradInput { tile: usize },
    /// Weights of 3x3 kernels `[9, ..]`, each kernel `G g G^T`: `[(tile+2)^2, ..]`. Of i32 they are i16.
    WinogradFilter { tile: usize },
    /// Products `[(tile+2)^2, n, th, tw, c]` in squares, each `A^T m A`, joined and cut to `height` and `width`:
    /// `[n, height, width, c]`. Those of i32 are divided by the square of the scale, see [`crate::winograd::Quotient`].
    WinogradOutput { tile: usize, height: Dim, width: Dim },
    /// Inputs `(data, indices)`, ONNX `Gather`: `data.shape[..axis] ++ indices.shape ++ data.shape[axis+1..]`.
    /// Indices are u8, i32 or i64, negative ones count from the end; out of range is a run-time error.
    Gather { axis: usize },
    /// Inputs `(data, indices)`, ONNX `GatherElements`; the result has the shape of `indices`.
    GatherElements { axis: usize },
    /// Inputs `(data, indices)`, ONNX `GatherND`.
    GatherNd { batch: usize },
    /// Inputs `(data, indices, updates)`, ONNX `ScatterElements`.
    ScatterElements { axis: usize, combine: ScatterFn },
    /// Inputs `(data, indices, updates)`, ONNX `ScatterND`.
    ScatterNd { combine: ScatterFn },
    /// No inputs: the index along `axis`, as i64, in a tensor of `shape`.
    Iota { shape: Vec<Dim>, axis: usize },
    /// No inputs: the run-time values of `dims`, as an i64 vector.
    DimValues { dims: Vec<Dim> },
    /// Running combination along `axis`: `cumsum`, `cumprod` and their kin.
    Cumulate { op: ReduceFn, axis: usize, exclusive: bool, reverse: bool },
    /// The first `take` elements along `axis` in ascending (`descending`: descending) order, and their indices
    /// along it as i64. Stable: of equal elements the one with the lower index comes first. NaNs are equal to each
    /// other and above all numbers, as NumPy sorts them.
    Sort { axis: usize, descending: bool, take: Dim },
    /// Boxes in the order of preference; a box that overlaps one kept before is dropped.
    ///
    /// Inputs `(y_lo, y_hi, x_lo, x_hi, candidate, limit)`: coordinates f32 `[rows.., m]`, bool `[rows.., m]`, f32 scalar.
    /// Result: i64 `[rows.., take]`, the positions of the first `take` boxes of each row that are kept, rising, then -1.
    /// A box is kept if it is a candidate and its `common / union` with no box kept before is above `limit`, where
    /// `area = (y_hi - y_lo) * (x_hi - x_lo)`, `common` is the area of what two boxes share, and `union` the sum of their
    /// areas less `common`. Boxes overlap only where all of these are above 0.
    Suppress { take: Dim },
    /// The leaf that each row reaches in each of several decision trees.
    ///
    /// Inputs: [`Operands`](super::trees::Operands). Result: i32 `[n, trees]`. From a tree's root on, each step goes to the right or to the
    /// left by the value of a column of the row, for the length of the tree's longest path. With `masks` there are tables
    /// that say the same in another way. The lowering of operators makes sure that all nodes, columns and leaves exist.
    Leaves(Trees),
    /// A loop over time: `body` runs `trip` times.
    ///
    /// Inputs: `states` initial states, `scans` scanned tensors `[trip, ..]`, then captures (passed
    /// whole to every iteration). Body inputs: states, one slice `[..]` of each scanned tensor, captures.
    /// Body outputs: next states, then one element per stacked output. Results: final states, then
    /// stacked outputs `[trip, ..]`. `reverse[i]` runs scanned input or stacked output `i` (scans first)
    /// from its end.
    ///
    /// With `conditional` the first state is one bool, and the loop ends before an iteration in which it is false;
    /// stacked outputs are then as long as there were iterations, nothing is scanned, and nothing runs from its end. A
    /// state whose result has a shape of its own in `shapes` may change its sizes from one iteration to the next.
    Scan {
        body: Arc<Graph>,
        trip: Dim,
        conditional: bool,
        states: usize,
        scans: usize,
        reverse: Vec<bool>,
        shapes: Shapes,
    },
    /// Inputs `(condition, captures..)`, the condition one bool: the results of the first body where it is true,
    /// of the second where it is not. Both bodies take all captures.
    If { bodies: Arc<[Graph; 2]>, shapes: Shapes },
    /// A function of the runtime. Never folded: what it gives are places in a table that a run makes.
    Call(Call),
    /// A function of the user's own. Never folded: what it does is known to the run alone.
    External(Box<External>),
    /// An exchange with other ranks. Never folded, merged or moved: its token says where it comes.
    Exchange(Box<Exchange>),
}

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

/// What computing an element takes, beyond what its operands take, where it is an expression in the kernels that read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expense {
    /// Nothing: it is made of the index.
    None,
    /// Nothing, and fewer bytes than its operand has are read if the result has fewer.
    View,
    /// An operation of this function.
    Function(MapFn),
    /// A test of the index.
    Test,
    /// So much that no kernel repeats it unless it must.
    Search,
    /// A kernel of its own, or the host program, which nothing repeats.
    Kernel,
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

/// The permutation that undoes `perm`, of [`Op::Transpose`].
pub fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    inverse
}

impl Op {
    /// A loop over time that runs `trip` times, every state of one shape.
    pub fn scan(body: Graph, trip: Dim, states: usize, scans: usize, reverse: Vec<bool>) -> Op {
        let (body, shapes) = (Arc::new(body), Shapes::new());
        Op::Scan { body, trip, conditional: false, states, scans, reverse, shapes }
    }

    /// Name in the text form, in `inspect` and in profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Map(MapFn::Unary(function)) => function.name(),
            Op::Map(MapFn::Binary(function)) => function.name(),
            Op::Map(MapFn::Compare(function)) => function.name(),
            Op::Map(MapFn::Select) => "select",
            Op::Map(MapFn::MulAdd) => "mul_add",
            Op::Map(MapFn::Requantize { .. }) => "requantize",
            Op::Map(MapFn::Cast { .. }) => "cast",
            Op::Map(MapFn::Bitcast { .. }) => "bitcast",
            Op::Reduce { .. } => "reduce",
            Op::ArgReduce { .. } => "argreduce",
            Op::Contract { .. } => "contract",
            Op::Pack { .. } => "pack",
            Op::Dequantize { .. } => "dequantize",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Expand { .. } => "expand",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::ImplicitPad { .. } => "implicit_pad",
            Op::Concat { .. } => "concat",
            Op::Append { .. } => "append",
            Op::Window { .. } => "window",
            Op::WinogradInput { .. } => "winograd_input",
            Op::WinogradFilter { .. } => "winograd_filter",
            Op::WinogradOutput { .. } => "winograd_output",
            Op::Gather { .. } => "gather",
            Op::GatherElements { .. } => "gather_elements",
            Op::GatherNd { .. } => "gather_nd",
            Op::ScatterElements { .. } => "scatter_elements",
            Op::ScatterNd { .. } => "scatter_nd",
            Op::Iota { .. } => "iota",
            Op::DimValues { .. } => "dim_values",
            Op::Cumulate { .. } => "cumulate",
            Op::Sort { .. } => "sort",
            Op::Suppress { .. } => "suppress",
            Op::Leaves(_) => "leaves",
            Op::Scan { .. } => "scan",
            Op::If { .. } => "if",
            Op::Call(_) => "call",
            Op::External(_) => "external",
            Op::Exchange(exchange) => exchange.name(),
        }
    }

    /// The graphs inside the operation.
    pub fn bodies(&self) -> &[Graph] {
        match self {
            Op::Scan { body, .. } => std::slice::from_ref(body),
            Op::If { bodies, .. } => &**bodies,
            _ => &[],
        }
    }

    /// See [`Op::bodies`].
    pub fn bodies_mut(&mut self) -> &mut [Graph] {
        match self {
            Op::Scan { body, .. } => std::slice::from_mut(Arc::make_mut(body)),
            Op::If { bodies, .. } => &mut Arc::make_mut(bodies)[..],
            _ => &mut [],
        }
    }

    /// Whether graphs are inside the operation.
    pub fn is_control(&self) -> bool {
        !self.bodies().is_empty()
    }

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
                MapFn::Unary(_)
                | MapFn::Binary(_)
                | MapFn::Compare(_)
                | MapFn::MulAdd
                | MapFn::Requantize { .. }
                | MapFn::Cast { .. },
            )
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Dequantize { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradFilter { .. }
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
            | Op::WinogradFilter { .. }
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
            Op::Pack { .. } | Op::WinogradFilter { .. } => Need::Strided,
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
            | Op::WinogradFilter { .. }
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

    /// What an element takes where it is an expression.
    pub fn expense(&self) -> Expense {
        match self {
            Op::Map(function) => Expense::Function(*function),
            Op::Pad { .. } => Expense::Test,
            Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::ImplicitPad { .. }
            | Op::Window { .. } => Expense::View,
            Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } | Op::Concat { .. } => {
                Expense::Search
            }
            Op::Iota { .. } | Op::DimValues { .. } => Expense::None,
            Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Pack { .. }
            | Op::Dequantize { .. }
            | Op::Append { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradFilter { .. }
            | Op::WinogradOutput { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Cumulate { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_)
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => Expense::Kernel,
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
            | Op::WinogradFilter { .. }
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
            Op::WinogradFilter { .. } => but(&|axis| axis == 0),
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
            | Op::WinogradFilter { tile: _ }
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
            | Op::WinogradFilter { .. }
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
