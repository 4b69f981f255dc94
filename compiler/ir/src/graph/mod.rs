//! The tensor IR: a graph of primitives over typed, symbolically shaped values.
//!
//! Every value is defined once, by an input, a constant or a node; `order` is a topological order of
//! the live nodes. Passes change nodes in place and rebuild `order`; dead nodes simply leave it. This module
//! holds the data structure and its text form. It knows no ONNX operator.

pub mod apart;
pub mod arrangement;
mod assumption;
pub mod axes;
pub mod call;
pub mod claim;
pub mod data;
pub mod dim;
pub mod dtype;
pub mod exchange;
pub mod external;
mod format;
pub mod op;
mod order;
pub mod panels;
pub mod parse;
mod part;
pub mod print;
pub mod select;
pub mod signs;
pub mod state;
pub mod strings;
mod symbols;
pub mod taps;
pub mod tensor;
#[cfg(test)]
mod tests;
pub mod trees;
pub mod view;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};

use crate::error::{Error, Kind, NodeRef, Result, Stage};
use crate::scalar::UnaryFn;

pub use apart::Weight;
pub use assumption::{Assumption, Assumptions, Relation, Requirement};
pub use call::Call;
pub use claim::Claim;
pub use data::{Bounds, DataSymbol};
pub use dim::{Dim, Sym};
pub use dtype::DType;
pub use exchange::{Exchange, Rank, RankGroup, Transfer};
pub use external::External;
pub use format::{FloatFormat, Nan};
pub use op::{DOT_DEPTH, MOST_DIGITS, MapFn, Op, PAIR_DEPTH, RhsLayout, code_shift, codes_per_word, inverse};
pub use panels::{PanelLayout, PanelPlaces};
pub use part::Part;
pub use state::{Growth, Panels, State};
pub use strings::Strings;
pub use symbols::{Symbol, Symbols};
pub use tensor::Tensor;
pub use trees::Trees;

/// A value: an edge of the dataflow graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);
entity_impl!(ValueId, "v");

/// A node: one application of a primitive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "n");

/// An ONNX node that primitives come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(u32);
entity_impl!(OriginId, "o");

/// Bytes of an address space of today's processors.
pub const MAX_BYTES: i64 = 1 << 47;

/// Most elements for which known values are tracked: shapes and index vectors, not weights.
pub const MAX_KNOWN: usize = 1024;

/// Deepest nesting of graphs, the outermost one counted. Walks of a graph recurse into its bodies: a graph is only as deep as the caller's
/// stack allows, see `onnxc_import::Limits::nesting`, and never deeper than this.
pub const MAX_NESTING: usize = 512;

/// Axes of a tensor: operations and loops on them take time and stack by axis.
const MAX_RANK: usize = 128;

/// Element type and symbolic shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<Dim>,
}

impl TensorType {
    pub fn new(dtype: DType, shape: Vec<Dim>) -> TensorType {
        TensorType { dtype, shape }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> Dim {
        dim::product(&self.shape)
    }

    /// Bytes of a contiguous buffer of this type.
    pub fn bytes(&self) -> Dim {
        self.elements() * Dim::from(self.dtype.size())
    }

    /// Bytes of a tensor of this type where callers keep it: elements smaller than a byte share bytes.
    pub fn stored_bytes(&self) -> Dim {
        // In units of two bits, so that elements of 4 and 2 bits are counted by the byte.
        let (pairs, unit) = match self.dtype.bits() {
            6 => (Dim::from(3usize), Dim::from(4usize)),
            bits => (Dim::ONE, Dim::from((8 / bits.min(8)) as usize)),
        };
        match self.dtype.is_packed() {
            true => (self.elements() * pairs).ceil_div(&unit).unwrap_or(Dim::ZERO),
            false => self.bytes(),
        }
    }

    /// Fails with a budget error for a tensor of more axes or of longer size expressions than there may be, and for one
    /// that no address space holds. Symbols may be anything from zero up; the least that the dims can be must fit.
    pub fn check_size(&self, stage: Stage) -> Result<()> {
        if self.rank() > MAX_RANK {
            let message = format!("a tensor of rank {}: the most is {MAX_RANK}", self.rank());
            return Err(Error::new(stage, Kind::Budget, message));
        }
        if self.elements().is_overgrown() {
            return Err(dim::overgrown(stage, "the number of elements of a tensor"));
        }
        let sizes = self.shape.iter().map(|dim| dim.bounds().0.unwrap_or(1).max(1));
        let bytes = sizes.fold(self.dtype.size() as i64, i64::saturating_mul);
        if bytes <= MAX_BYTES {
            return Ok(());
        }
        Err(Error::new(stage, Kind::Budget, format!("{self} is larger than {MAX_BYTES} bytes")))
    }

    /// The shape, when no dim is symbolic.
    pub fn static_shape(&self) -> Option<Vec<usize>> {
        dim::sizes(&self.shape)
    }
}

/// Text form: `f32[1, 3, s0, 224]`.
impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Where a value comes from.
#[derive(Clone, PartialEq, Debug)]
pub enum Def {
    /// Graph input number.
    Input(usize),
    Const(Constant),
    /// Output number of a node.
    Node(NodeId, usize),
}

/// A value known at compile time. Large constants that passes transform stay deferred: they are computed
/// one at a time when the object is written, so a model's weights are never in memory twice.
#[derive(Clone, PartialEq, Debug)]
pub enum Constant {
    Data(Tensor),
    /// `op` applied to constant values of the same graph; evaluated by `interp::constant`.
    Deferred {
        op: Arc<Op>,
        inputs: Vec<ValueId>,
    },
    /// A weight that lies apart from the code: see [`apart`].
    Apart(Weight),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// The ONNX name where there is one, for messages and profiles; may be empty, need not be unique.
    pub name: String,
    pub ty: TensorType,
    pub def: Def,
    /// Elements, in row-major order, of a small integer tensor (or of a float tensor that holds integers)
    /// that is made of constants and dims; this is how exported shape arithmetic disappears.
    pub known: Option<Arc<[Dim]>>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub origin: OriginId,
}

/// The ONNX node behind primitives.
#[derive(Clone, Eq, Debug, Default)]
pub struct Origin {
    /// Node name, or `OpType_index` where the model gives none.
    pub name: String,
    pub op_type: String,
    /// Position in the model's (or function's) node list.
    pub index: usize,
    /// What messages call the operands that its gathers and scatters take indices from: ``indices `x` ``. Neither the text form
    /// nor a comparison has them.
    pub indices: Vec<claim::Operand>,
}

impl Origin {
    pub fn new(name: impl Into<String>, op_type: impl Into<String>, index: usize) -> Origin {
        Origin { name: name.into(), op_type: op_type.into(), index, indices: vec![] }
    }
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        (&self.name, &self.op_type, self.index) == (&other.name, &other.op_type, other.index)
    }
}

/// A graph input.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    pub name: String,
    pub value: ValueId,
    /// The initializer of the same name: what a caller that passes nothing gets.
    pub default: Option<Tensor>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    pub name: String,
    pub symbols: Symbols,
    /// Symbols computed by nodes of this graph. All others, except [`Graph::seed`], come from dims of inputs or from an enclosing graph.
    pub data: BTreeMap<Sym, DataSymbol>,
    /// The symbol that stands for the seed of the run, in a graph that draws random numbers: its lower 63 bits.
    pub seed: Option<Sym>,
    pub values: PrimaryMap<ValueId, Value>,
    pub nodes: PrimaryMap<NodeId, Node>,
    pub origins: PrimaryMap<OriginId, Origin>,
    /// Live nodes in a topological order.
    pub order: Vec<NodeId>,
    pub inputs: Vec<Input>,
    /// (ONNX name, value)
    pub outputs: Vec<(String, ValueId)>,
    /// What must hold of dims for the operands of nodes to fit; checked at run time.
    pub assumptions: Assumptions,
    /// `metadata_props` of the model.
    pub metadata: Vec<(String, String)>,
    /// Types that callers know of inputs, by number, whose elements are packed or strings; see [`borders`](crate::borders).
    pub packed_inputs: BTreeMap<usize, TensorType>,
    /// The same of outputs.
    pub packed_outputs: BTreeMap<usize, TensorType>,
    /// Those inputs, by number, that are parts of an ONNX value: its name, and which part it is.
    pub input_parts: BTreeMap<usize, (String, Part)>,
    /// The same of outputs.
    pub output_parts: BTreeMap<usize, (String, Part)>,
    /// Outputs, by number, with a rank that only the run decides: their type has the highest rank, and the axes that the run's tensor lacks
    /// come last, of size 1.
    pub any_rank: BTreeMap<usize, AnyRank>,
    /// Those of the last inputs and outputs that are one tensor, which the caller keeps.
    pub states: Vec<State>,
    /// The constant strings, once strings are numbers; see [`strings`]. Graphs inside this one share them.
    pub strings: Option<Strings>,
    /// Results that are one function of a value, though a choice computes them; derivatives go by the function.
    pub functions: BTreeMap<ValueId, (UnaryFn, ValueId)>,
    /// Which rank of a partitioned model this is.
    pub rank: Option<Rank>,
}

/// The rank of an output that only the run decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnyRank {
    pub rank: Dim,
    /// The least that it may be; the highest is the rank of the output's type.
    pub least: usize,
}

impl AnyRank {
    /// An output of the highest rank as the tensor of the run's rank; `None` where the axes behind are not of size 1.
    pub fn trimmed(&self, output: &Tensor, value: &dyn Fn(Sym) -> Option<i64>) -> Option<Tensor> {
        let rank = usize::try_from(self.rank.eval(value)?).ok()?;
        let (shape, behind) = output.shape.split_at_checked(rank)?;
        let is_trimmed = rank >= self.least && behind.iter().all(|&size| size == 1);
        is_trimmed.then(|| Tensor { shape: shape.to_vec(), ..output.clone() })
    }

    /// Which ranks the output may have, for people.
    pub fn text(&self, most: usize) -> String {
        let between = if self.least + 1 == most { "or" } else { "to" };
        format!("the run decides its rank, {} {between} {most}", self.least)
    }
}

/// The value of the symbol that stands for a seed: no size is negative.
pub fn seed_value(seed: u64) -> i64 {
    (seed & i64::MAX as u64) as i64
}

/// Primitives that a body counts as beside those in it: it has a plan, an arena and functions of its own.
const COST_OF_BODY: u64 = 12;

/// Symbols that count as a primitive in a body, which holds all of the graphs around it.
const SYMBOLS_PER_PRIMITIVE: u64 = 32;

impl Graph {
    /// How many primitives there are from number `first` on, those of bodies counted, and what a body itself counts as.
    pub fn primitives_from(&self, first: usize) -> u64 {
        let of_symbols = |body: &Graph| body.symbols.len() as u64 / SYMBOLS_PER_PRIMITIVE;
        let of_body = |body: &Graph| COST_OF_BODY + of_symbols(body) + body.primitives_from(0);
        let of_node = |node: &Node| 1 + node.op.bodies().iter().map(of_body).sum::<u64>();
        self.nodes.values().skip(first).map(of_node).sum()
    }

    /// Takes over what `other`, a body or the graph around this one, has of symbols beyond those of both.
    pub fn adopt_symbols(&mut self, other: &Graph) {
        if other.symbols.len() > self.symbols.len() {
            debug_assert!(self.symbols.values().eq(other.symbols.values().take(self.symbols.len())));
            self.symbols = other.symbols.clone();
        }
        self.seed = self.seed.or(other.seed);
    }

    /// A dim with the names that the model gives its symbols.
    pub fn dim_text(&self, dim: &Dim) -> String {
        dim.text(&|sym| self.symbols.get(sym).map_or_else(|| sym.to_string(), |symbol| symbol.name.clone()))
    }

    /// A dim for messages: a symbol that the model does not name is called by a dimension that it is, `x.shape[1]`.
    pub fn dim_words(&self, dim: &Dim) -> String {
        let named = |sym: Sym| {
            let own = self.symbols.get(sym).map_or("", |symbol| symbol.name.as_str());
            if !own.is_empty() && !own.starts_with('?') {
                return own.to_string();
            }
            let of_input = |at: usize| {
                if self.inputs[at].name.is_empty() {
                    return None;
                }
                let axis = self.found_shape(at).iter().position(|dim| dim.as_sym() == Some(sym))?;
                Some(format!("{}.shape[{axis}]", self.inputs[at].name))
            };
            let found = (0..self.inputs.len()).find_map(of_input);
            found.unwrap_or_else(|| "(a size that data decide)".to_string())
        };
        claim::printable(&dim.text(&named))
    }

    /// What messages call the indices of a gather or scatter.
    pub fn indices_of(&self, node: NodeId) -> claim::Operand {
        let node = &self.nodes[node];
        let all = self.origins.get(node.origin).map_or(&[][..], |origin| &origin.indices[..]);
        let name = node.inputs.get(1).map_or("", |&value| self.values[value].name.as_str());
        match all {
            [] if name.is_empty() => claim::Operand::new("the indices"),
            [] => claim::Operand::new(format!("indices `{}`", claim::printable(name))),
            [only] => only.clone(),
            several => {
                let quoted = format!("`{}`", claim::printable(name));
                let own = several.iter().find(|operand| !name.is_empty() && operand.name.ends_with(&quoted));
                let names: Vec<&str> = several.iter().map(|operand| &*operand.name).collect();
                own.cloned().unwrap_or_else(|| claim::Operand::new(names.join(" or ")))
            }
        }
    }

    /// The values that have the same elements as these indices in the same order, up to the operand of the ONNX node.
    pub fn moved_indices(&self, picks: ValueId) -> impl Iterator<Item = ValueId> {
        let step = move |&value: &ValueId| {
            if !self.values[value].name.is_empty() {
                return None;
            }
            let node = &self.nodes[self.producer(value)?];
            let is_same = matches!(node.op, Op::Reshape { .. } | Op::Map(MapFn::Cast { .. }));
            is_same.then(|| node.inputs[0])
        };
        std::iter::successors(step(&picks), step)
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value].ty
    }

    /// Type of input number `at` as callers know it.
    pub fn input_ty(&self, at: usize) -> &TensorType {
        match self.state_of_input(at) {
            Some(state) => &state.ty,
            None => self.packed_inputs.get(&at).unwrap_or_else(|| self.ty(self.inputs[at].value)),
        }
    }

    /// Type of output number `at` as callers know it.
    pub fn output_ty(&self, at: usize) -> &TensorType {
        match self.state_of_output(at) {
            Some(state) => &state.ty,
            None => self.packed_outputs.get(&at).unwrap_or_else(|| self.ty(self.outputs[at].1)),
        }
    }

    /// The node that computes a value; `None` for inputs and constants.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        match self.values[value].def {
            Def::Node(node, _) => Some(node),
            _ => None,
        }
    }

    /// The ONNX node behind a node, for messages.
    pub fn node_ref(&self, id: NodeId) -> NodeRef {
        let node = &self.nodes[id];
        let origin = self.origins.get(node.origin);
        let text = |&value: &ValueId| match self.values[value].name.as_str() {
            "" => self.ty(value).to_string(),
            name => format!("{name}: {}", self.ty(value)),
        };
        NodeRef {
            name: origin.map_or_else(|| id.to_string(), |origin| origin.name.clone()),
            domain: String::new(),
            op_type: origin.map_or_else(|| node.op.name().to_string(), |origin| origin.op_type.clone()),
            version: None,
            index: origin.map_or(id.index(), |origin| origin.index),
            inputs: node.inputs.iter().map(text).collect(),
        }
    }

    pub fn is_constant(&self, value: ValueId) -> bool {
        matches!(self.values[value].def, Def::Const(_))
    }

    /// The data of a constant that is not deferred, and that code may depend on.
    pub fn constant_data(&self, value: ValueId) -> Option<&Tensor> {
        match &self.values[value].def {
            Def::Const(Constant::Data(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// Whether a value is a constant made of tensors for which `holds`, by moving their elements. Of weights that lie apart that is not
    /// known.
    pub fn is_made_of(&self, value: ValueId, holds: &dyn Fn(&Tensor) -> bool) -> bool {
        self.is_made(value, holds, &|_| false)
    }

    /// Whether a value is a constant whose elements are finite.
    pub fn is_finite(&self, value: ValueId) -> bool {
        self.is_made(value, &Tensor::is_finite, &Weight::is_finite)
    }

    /// [`Graph::is_made_of`], with what must hold of weights that lie apart.
    pub fn is_made(
        &self,
        value: ValueId,
        holds: &dyn Fn(&Tensor) -> bool,
        apart: &dyn Fn(&Weight) -> bool,
    ) -> bool {
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            let holds = match &self.values[value].def {
                Def::Const(Constant::Data(tensor)) => holds(tensor),
                Def::Const(Constant::Apart(weight)) => apart(weight),
                Def::Const(Constant::Deferred { op, inputs }) if !op.computes() => {
                    pending.extend(inputs);
                    true
                }
                _ => false,
            };
            if !holds {
                return false;
            }
        }
        true
    }

    /// Makes these values the inputs, in this order. Those of before that are not among them are nothing any more.
    pub fn set_inputs(&mut self, values: &[ValueId]) {
        self.inputs = values
            .iter()
            .map(|&value| Input { name: self.values[value].name.clone(), value, default: None })
            .collect();
        for (at, &value) in values.iter().enumerate() {
            self.values[value].def = Def::Input(at);
        }
    }

    /// Drops the nodes that no output needs from `order`.
    pub fn keep_reachable(&mut self) {
        let mut open: Vec<_> = self.outputs.iter().map(|output| output.1).collect();
        open.extend(self.output_needs());
        let mut live = HashSet::new();
        while let Some(value) = open.pop() {
            if let Some(node) = self.producer(value)
                && live.insert(node)
            {
                open.extend_from_slice(&self.nodes[node].inputs);
                open.extend(self.needs(node));
            }
        }
        self.order.retain(|node| live.contains(node));
    }

    /// For every value, how often live nodes, graph outputs and data symbols use it.
    pub fn use_counts(&self) -> cranelift_entity::SecondaryMap<ValueId, u32> {
        let mut counts = cranelift_entity::SecondaryMap::new();
        for &node in &self.order {
            for &input in &self.nodes[node].inputs {
                counts[input] += 1;
            }
        }
        for (_, value) in &self.outputs {
            counts[*value] += 1;
        }
        for value in self.data_sources() {
            counts[value] += 1;
        }
        counts
    }
}
