//! Epilogues: the elementwise nodes that a contraction or a reduction computes on its result while the result
//! is in registers.

use crate::grouper::Grouper;
use crate::inline::EPILOGUE_OPS;
use crate::{GroupKind, estimate};
use onnxc_ir::graph::{Dim, NodeId, Op, ValueId};

/// Elementwise nodes in an epilogue, operands they may read, and the size of their expression as a tree.
const MAX_EPILOGUE: usize = 64;
const MAX_OPERANDS: usize = 16;
const MAX_TREE: u32 = 256;

impl Grouper<'_> {
    /// Contractions from the last to the first, so that a sum of two contractions is the epilogue of
    /// the later one: the earlier result is there by then.
    pub(super) fn claim_contractions(&mut self) {
        for at in (0..self.live.len()).rev() {
            let node = self.live[at];
            let kind = match self.op(node) {
                Op::Contract { .. } => GroupKind::Contract,
                Op::WinogradOutput { .. } => GroupKind::Winograd,
                _ => continue,
            };
            let mut claimed = self.epilogue(node);
            if kind == GroupKind::Contract {
                claimed.extend(self.border(&claimed));
            }
            self.claim(Some(kind), node, claimed);
        }
    }

    pub(super) fn claim_reductions(&mut self) {
        for at in (0..self.live.len()).rev() {
            let node = self.live[at];
            if matches!(self.op(node), Op::Reduce { .. }) && self.unit_of[node].is_none() {
                let claimed = self.epilogue(node);
                self.claim(Some(GroupKind::Reduce), node, claimed);
            }
        }
    }

    /// The anchor and the longest run of elementwise nodes of its shape after it, such that only the last
    /// value is read elsewhere. Reshapes between them may add and remove axes of size 1. Readers join in topological order, so no operand
    /// from outside can depend on a node inside.
    fn epilogue(&self, anchor: NodeId) -> Vec<NodeId> {
        let shape = self.long_axes(self.out(anchor));
        let mut nodes = vec![anchor];
        let mut trees = vec![1u32];
        let (mut ends, mut operands) = (vec![1], 0);
        while nodes.len() <= MAX_EPILOGUE {
            let next = nodes
                .iter()
                .flat_map(|&node| &self.users[self.out(node)])
                .filter(|user| !nodes.contains(user))
                .min_by_key(|&&user| self.position[user]);
            let Some(&next) = next else { break };
            let squeeze = matches!(self.op(next), Op::Reshape { .. });
            if self.unit_of[next].is_some()
                || !(squeeze || matches!(self.op(next), Op::Map(_)))
                || self.long_axes(self.out(next)) != shape
            {
                break;
            }
            let (mut tree, mut in_step) = (1u32, true);
            for &input in self.inputs(next) {
                match nodes.iter().position(|&node| self.out(node) == input) {
                    Some(at) => {
                        tree = tree.saturating_add(trees[at]);
                        in_step &=
                            squeeze || self.graph.ty(input).shape == self.graph.ty(self.out(next)).shape;
                    }
                    None => operands += 1,
                }
            }
            if !in_step || tree > MAX_TREE || operands > MAX_OPERANDS {
                break;
            }
            nodes.push(next);
            trees.push(tree);
            let inner = &nodes[..nodes.len() - 1];
            // A reshape at the end is better an alias of the result.
            if !squeeze
                && !inner.iter().any(|&node| self.escapes(self.out(node), &|user| nodes.contains(&user)))
            {
                ends.push(nodes.len());
            }
            if self.forced[self.out(next)] {
                break;
            }
        }
        nodes.truncate(self.end(&nodes, &ends));
        nodes
    }

    /// Where an epilogue ends, of the numbers of nodes after which it may: after the last, or where the result has fewer
    /// bytes, if the one reader can compute what is left. Bytes are stored, and dequantized by who adds them to others.
    fn end(&self, nodes: &[NodeId], ends: &[usize]) -> usize {
        let &[.., last] = ends else { return nodes.len() };
        let size = |end: usize| estimate(&self.graph.ty(self.out(nodes[end - 1])).bytes());
        let result = self.out(nodes[last - 1]);
        // Products read what they multiply in place.
        let moves = |&user: &NodeId| !matches!(self.op(user), Op::Contract { .. } | Op::Pack { .. });
        if let [.., before, _] = *ends
            && before + 1 == last
            && self.widens(nodes[before])
            && !self.forced[result]
            && self.users[result].iter().all(moves)
        {
            return before;
        }
        match self.users[result].as_slice() {
            &[reader] if matches!(self.op(reader), Op::Map(_)) && !self.forced[result] => {}
            _ => return last,
        }
        let light = |end: usize| {
            let rest = &nodes[end..last];
            let inside = |input: &ValueId| nodes[end - 1..last].iter().any(|&node| self.out(node) == *input);
            let scalar = |input: &ValueId| self.graph.is_constant(*input) && self.elements(*input) == 1;
            let reads = |&node: &NodeId| self.inputs(node).iter().all(|input| inside(input) || scalar(input));
            rest.len() <= EPILOGUE_OPS as usize
                && rest.iter().all(|node| matches!(self.op(*node), Op::Map(_)) && reads(node))
        };
        let shorter = ends.iter().copied().filter(|&end| end < last && size(end) < size(last) && light(end));
        shorter.min_by_key(|&end| (size(end), last - end)).unwrap_or(last)
    }

    /// The padding that is the only use of what a contraction's nodes compute: its result then goes into the middle of
    /// a buffer, around which the contraction fills the border. Channels are not padded.
    fn border(&self, nodes: &[NodeId]) -> Option<NodeId> {
        let value = self.out(*nodes.last()?);
        let &[pad] = self.users[value].as_slice() else { return None };
        let (Op::Pad { lo, hi }, &[x, fill]) = (self.op(pad), self.inputs(pad)) else { return None };
        let rank = lo.len();
        let same_axes = self.graph.ty(value).shape == self.graph.ty(self.out(nodes[0])).shape;
        let channels = rank > 1 && lo[rank - 1] == Dim::ZERO && hi[rank - 1] == Dim::ZERO;
        let fits = x == value
            && fill != value
            && same_axes
            && channels
            && self.forced[self.out(pad)]
            && !self.forced[value]
            && self.unit_of[pad].is_none()
            && self.has_buffer(fill)
            && matches!(self.op(nodes[0]), Op::Contract { batch: 0, .. });
        fits.then_some(pad)
    }

    /// The sizes of a value's axes but those of size 1.
    fn long_axes(&self, value: ValueId) -> Vec<&Dim> {
        self.graph.ty(value).shape.iter().filter(|size| **size != Dim::ONE).collect()
    }
}
