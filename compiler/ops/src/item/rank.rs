//! Tensors of several ranks: what an If gives whose branches give tensors of unlike ranks. No operator takes one. What reads such
//! a value is imported in both branches, where it has one rank each (`import::fork`); only a result of the model that nothing
//! reads is left, which a caller gets with the rank of the run.
//!
//! Inside the graph the data is a tensor of the highest rank: axes of size 1 stand behind those that a branch's tensor has.
//! Beside it goes the number of those that count. Row-major elements lie the same with and without these axes, so that
//! nothing is moved.

use super::{Item, ItemType, Layout};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, ValueId};

impl ItemType {
    /// The type of tensors of either type: one of several ranks, where theirs differ. `None` where one is not a tensor.
    pub fn of_any_rank(&self, other: &ItemType) -> Option<ItemType> {
        let ([least, most], [other_least, other_most]) = (self.ranks()?, other.ranks()?);
        let layout = Layout::AnyRank { least: least.min(other_least), most: most.max(other_most) };
        let unlike = [least, most, other_least, other_most].iter().any(|&rank| rank != least);
        Some(if unlike { ItemType { layout, columns: vec![] } } else { self.clone() })
    }

    /// The least and the highest rank of a tensor.
    fn ranks(&self) -> Option<[usize; 2]> {
        match (&self.layout, self.columns.as_slice()) {
            (Layout::Tensor, [ty]) => Some([ty.rank(); 2]),
            (Layout::AnyRank { least, most }, _) => Some([*least, *most]),
            _ => None,
        }
    }
}

impl Item {
    /// The columns of a tensor as one of ranks up to `most`.
    pub(super) fn with_rank(&self, b: &mut Builder<'_>, most: usize) -> Result<Vec<ValueId>> {
        let (rank, data) = match *self.columns() {
            [rank, data] => (rank, data),
            [data, ..] => (b.scalar(DType::I64, b.rank(data) as f64), data),
            [] => return Ok(vec![]),
        };
        let behind: Vec<usize> = (b.rank(data)..most).collect();
        Ok(vec![rank, b.unsqueeze(data, &behind)?])
    }
}
