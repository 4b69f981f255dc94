//! From a graph of primitives to a program: fusion groups on a petgraph DAG, an order that keeps peak memory
//! low, and one arena planned from liveness.
//!
//! A *group* becomes one kernel. A value is *materialised* (it has a buffer) or *inlined* (it exists only
//! as an expression inside the groups that read it). The result of this room, [`Program`], is all that
//! lowering and code generation read.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};

use crate::graph::{Dim, NodeId, ValueId};

/// A fusion group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u32);
entity_impl!(GroupId, "g");

/// How a group is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupKind {
    /// One loop nest over the (common) shape of the outputs; every other node is inlined in it.
    Map,
    /// A `Contract` over packed panels, then the elementwise nodes after it as epilogue on the register tile.
    Contract,
    /// A reduction whose operand is inlined, then an elementwise epilogue on the result.
    Reduce,
    /// Elementwise nodes and reductions over the last axis that share their leading axes: one pass per row, the
    /// row hot in cache (softmax, layer normalization and their kin).
    Rows,
    /// One of the primitives with a loop nest of its own: scatter, cumulate, argreduce, concat, pad, pack.
    Single,
}

/// Nodes that one kernel computes.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    pub kind: GroupKind,
    /// All nodes computed in the kernel, in topological order, views and inlined nodes included. A view or a cheap
    /// node may be in several groups.
    pub nodes: Vec<NodeId>,
    /// The node that gives the loop nest its form: the contraction or the (first) reduction; for `Map`, the
    /// last node.
    pub anchor: NodeId,
    /// Materialised values it reads, each once (inputs, constants and other groups' outputs).
    pub inputs: Vec<ValueId>,
    /// Materialised values it writes.
    pub outputs: Vec<ValueId>,
}

/// Where a materialised value lives.
#[derive(Clone, PartialEq, Debug)]
pub enum Place {
    /// Not materialised.
    None,
    /// Graph input number.
    Input(usize),
    /// Graph output number; the caller's buffer.
    Output(usize),
    /// Constant data of the object.
    Constant,
    /// Bytes `[offset, offset + size)` of the arena; offsets are multiples of [`ALIGN`].
    Arena { offset: Dim, size: Dim },
    /// The same bytes as another value, from its start: a reshape, or a map computed in place.
    Alias(ValueId),
}

/// Alignment of everything in the arena, bytes.
pub const ALIGN: i64 = 64;

/// One step of a program.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Run(GroupId),
    /// Copies a materialised value into another's place (an input or a constant that is also an output,
    /// two outputs of one value, a scan's states).
    Copy {
        from: ValueId,
        to: ValueId,
    },
    /// Runs a body `trip` times; see `Op::Scan`. The body's values live in `body`'s own plan, whose arena is
    /// placed at `arena` (bytes) inside this program's arena.
    Scan {
        node: NodeId,
        body: Box<Program>,
        arena: Dim,
    },
}

/// A scheduled graph.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    pub groups: PrimaryMap<GroupId, Group>,
    pub steps: Vec<Step>,
    pub places: SecondaryMap<ValueId, Option<Place>>,
    /// Bytes of the arena.
    pub arena: Dim,
    /// The liveness bound, bytes: the largest sum of the sizes of simultaneously live arena values.
    pub bound: Dim,
}
