//! How a model is to be spread over several devices, as its device configurations say it: what `import` reads and `partition` follows.

use std::ops::Range;

use crate::graph::ValueId;

/// A device configuration, and what nodes say for it. Devices are ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrangement {
    pub name: String,
    pub ranks: usize,
    pub shardings: Vec<(ValueId, Sharding)>,
    /// Nodes, by their numbers, and the stage of the pipeline that they are in.
    pub stages: Vec<(Range<usize>, i64)>,
}

/// How a value lies on ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharding {
    /// The value and the node, for messages.
    pub place: String,
    /// For each part, in row-major order of the axes that are cut, the ranks that hold it. Empty: it is on all.
    pub parts: Vec<Vec<i64>>,
    pub axes: Vec<CutAxis>,
}

/// An axis that is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutAxis {
    pub axis: usize,
    pub parts: usize,
    /// The axis is made of this number of blocks, which stay whole.
    pub blocks: Option<i64>,
}

impl Arrangement {
    /// The stage that a node says it is in.
    pub fn stage(&self, node: usize) -> Option<i64> {
        self.stages.iter().find(|(nodes, _)| nodes.contains(&node)).map(|&(_, stage)| stage)
    }
}
