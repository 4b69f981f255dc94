//! Lays out the right-hand side of every contraction as column panels, the form that kernels read. Constant
//! right-hand sides are packed when the object is written; others at run time, read through their views.

use std::collections::HashMap;

use crate::error::Result;
use crate::graph::{Builder, DType, Dim, Graph, Node, Op, RhsLayout, ValueId};
use crate::pass::rewrite::{rewrite, scan_bodies};
use crate::pass::{Options, hoist};

/// A row of the panel policy: it holds for contractions of `dtypes` with at most `max_rows` rows and at least
/// `min_columns` columns. A symbolic count meets neither limit.
#[derive(Clone, Copy, Debug)]
pub struct PackRule {
    /// Empty: any.
    pub dtypes: &'static [DType],
    pub max_rows: Option<i64>,
    pub min_columns: Option<i64>,
    /// Columns per panel.
    pub nr: usize,
}

/// Panel widths as data: the first rule that holds decides.
#[derive(Clone, Copy, Debug)]
pub struct PackPolicy {
    pub rules: &'static [PackRule],
    /// Where no rule holds.
    pub nr: usize,
}

impl Default for PackPolicy {
    fn default() -> PackPolicy {
        const RULES: &[PackRule] = &[
            // One row: a wide panel keeps several accumulators busy.
            PackRule { dtypes: &[DType::F32], max_rows: Some(1), min_columns: Some(32), nr: 32 },
            PackRule { dtypes: &[DType::F32], max_rows: None, min_columns: None, nr: 4 },
        ];
        PackPolicy { rules: RULES, nr: 4 }
    }
}

impl PackPolicy {
    /// Columns per panel for a contraction of `m` rows and `n` columns, `None` for symbolic counts. Never
    /// more than twice the columns there are, so that padding stays below the size of the data.
    pub fn nr(&self, dtype: DType, m: Option<i64>, n: Option<i64>) -> usize {
        let holds = |rule: &&PackRule| {
            (rule.dtypes.is_empty() || rule.dtypes.contains(&dtype))
                && rule.max_rows.is_none_or(|limit| m.is_some_and(|m| m <= limit))
                && rule.min_columns.is_none_or(|limit| n.is_some_and(|n| n >= limit))
        };
        let nr = self.rules.iter().find(holds).map_or(self.nr, |rule| rule.nr).max(1);
        match n.and_then(|n| usize::try_from(n).ok()) {
            Some(n) => nr.min(n.max(1).checked_next_power_of_two().unwrap_or(nr)),
            None => nr,
        }
    }
}

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let mut packed: HashMap<(ValueId, usize, usize, usize), ValueId> = HashMap::new();
    rewrite(graph, |b, id| {
        let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
        else {
            return Ok(None);
        };
        let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
        let n = b.ty(rhs).shape[batch + k].clone();
        let rows = crate::graph::dim::product(&b.ty(lhs).shape[batch..batch + m]);
        let nr = options.pack.nr(b.dtype(rhs), rows.as_const(), n.as_const());
        let panels = match packed.get(&(rhs, batch, k, nr)) {
            Some(&panels) => panels,
            None => pack(b, rhs, batch, k, nr)?,
        };
        packed.insert((rhs, batch, k, nr), panels);
        b.emit1(Op::Contract { batch, m, k, rhs: RhsLayout::Panels { nr, n } }, &[lhs, panels]).map(Some)
    })?;
    scan_bodies(graph, options, run)?;
    // Weights that a scan captures are packed once, not in every iteration.
    hoist::run(graph, options)
}

fn pack(b: &mut Builder, rhs: ValueId, batch: usize, k: usize, nr: usize) -> Result<ValueId> {
    let n: Dim = b.ty(rhs).shape[batch + k].clone();
    if nr == 1 && n == Dim::ONE {
        // One panel of one column is the column itself: no copy.
        let mut shape = b.shape(rhs);
        shape.pop();
        shape.insert(batch, Dim::ONE);
        shape.push(Dim::ONE);
        return b.reshape(rhs, shape);
    }
    b.emit1(Op::Pack { batch, k, nr }, &[rhs])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_no_wider_than_the_columns() {
        let policy = PackPolicy::default();
        assert_eq!(policy.nr(DType::F32, Some(64), Some(100)), 4);
        assert_eq!(policy.nr(DType::F32, Some(1), Some(100)), 32);
        assert_eq!(policy.nr(DType::F32, None, Some(100)), 4);
        assert_eq!(policy.nr(DType::F32, Some(64), Some(3)), 4);
        assert_eq!(policy.nr(DType::F32, Some(64), Some(1)), 1);
        assert_eq!(policy.nr(DType::I32, Some(64), None), 4);
    }
}
