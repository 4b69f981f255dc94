//! Chains: the three groups of an attention as one. A contraction gives scores, a rows group turns each row of
//! them into weights, and a second contraction sums values by these weights. Nothing else reads scores or weights, and
//! all three go row by row, so one kernel takes them a block of rows at a time and never stores the whole of either: its
//! memory is a few rows, where scores and weights grow with the square of a sequence.
//!
//! Products of bf16 have scores of f32 and weights of bf16, which may have zeros behind them so that their number is one of whole
//! steps of a kernel.

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};

use crate::grouper::Grouping;
use crate::{ALIGN, Group, GroupId, GroupKind, estimate_at};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Graph, NodeId, Op, TensorType, ValueId};
use onnxc_tuning::chain::{self as tuning, LONG_SEQUENCE};

/// How the rows of scores are dealt out, and where they lie in the scratch.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocks {
    /// Parts, each with a slot in the scratch.
    pub parts: Dim,
    /// Rows of a block.
    pub rows: Dim,
    /// Whole blocks per element of the batch, then one of `rest` rows.
    pub whole: Dim,
    pub rest: Dim,
    /// Rows that a slot has room for.
    pub room: Dim,
    /// Where scores are, and weights if they are narrower: otherwise these take the place of scores.
    pub scores: Slots,
    pub weights: Option<Slots>,
}

/// The slots of values of one type.
#[derive(Clone, PartialEq, Debug)]
pub struct Slots {
    /// Elements from a row of a slot to the next, and from a slot to the next.
    pub stride: Dim,
    pub slot: Dim,
    element_bytes: i64,
}

impl Slots {
    fn of(ty: &TensorType, rows: &Dim) -> Option<Slots> {
        let element_bytes = ty.dtype.size() as i64;
        // An odd number of cache lines: a power of two would have all rows meet in the same few places of a cache.
        let line = Dim::from(ALIGN / element_bytes);
        let pair = line.clone() * Dim::from(2i64);
        let stride = ty.shape.last()?.ceil_div(&pair)? * pair + line;
        Some(Slots { slot: rows.clone() * stride.clone(), stride, element_bytes })
    }
}

impl Blocks {
    /// For scores `[batch.., q, k]` and the left operand of the second contraction; `None` without these axes.
    pub fn of(scores: &TensorType, lhs: &TensorType, chain: tuning::ChainBlocks) -> Option<Blocks> {
        let [batch @ .., q, _] = scores.shape.as_slice() else { return None };
        let rows = Dim::from(chain.block_rows);
        let whole = q.floor_div(&rows)?;
        let rest = q.clone() - whole.clone() * rows.clone();
        let blocks = if rest == Dim::ZERO { whole.clone() } else { whole.clone() + Dim::ONE };
        let parts =
            (product(batch) * blocks).as_const().map_or(chain.parts, |blocks| blocks.clamp(1, chain.parts));
        let room = q.min_dim(&rows);
        let weights = if is_split(scores, lhs) { Some(Slots::of(lhs, &room)?) } else { None };
        let scores = Slots::of(scores, &room)?;
        Some(Blocks { parts: Dim::from(parts), rows, whole, rest, room, scores, weights })
    }

    /// The blocks of a chain as they are scheduled.
    pub fn of_group(graph: &Graph, group: &Group) -> Option<Blocks> {
        let [first, _, last] = group.stages.as_slice() else { return None };
        let (&[scores], lhs) = (first.outputs.as_slice(), graph.nodes[last.anchor].inputs[0]) else {
            return None;
        };
        let (scores, lhs) = (graph.ty(scores), graph.ty(lhs));
        Blocks::of(scores, lhs, tuning::ChainBlocks::chosen(is_split(scores, lhs)))
    }

    /// Elements of the scratch's buffers of one kind.
    pub fn elements(&self, slots: &Slots) -> Dim {
        self.parts.clone() * slots.slot.clone()
    }

    /// Bytes of the buffers that the scratch is made of.
    pub fn buffers(&self) -> Vec<Dim> {
        let bytes = |slots: &Slots| self.elements(slots) * Dim::from(slots.element_bytes);
        [Some(&self.scores), self.weights.as_ref()].into_iter().flatten().map(bytes).collect()
    }

    /// Bytes of the scratch.
    pub fn bytes(&self) -> Dim {
        self.buffers().into_iter().fold(Dim::ZERO, |sum, bytes| sum + bytes)
    }
}

/// Whether weights cannot be where scores were.
pub fn is_split(scores: &TensorType, lhs: &TensorType) -> bool {
    scores.dtype != lhs.dtype
}

/// Makes one group of the three of each attention whose scores are more than `above` bytes larger than its keys.
pub(super) fn merge(graph: &Graph, grouping: &mut Grouping, above: i64) {
    let chains: Vec<Chain> = {
        let finder = Finder::new(graph, grouping);
        let ids = grouping.groups.keys();
        ids.filter_map(|id| finder.chain(id)).filter(|chain| pays(graph, grouping, chain, above)).collect()
    };
    let mut taken: EntitySet<GroupId> = EntitySet::new();
    let mut merged: SecondaryMap<GroupId, Option<Group>> = SecondaryMap::new();
    for chain in chains {
        // The second contraction of one chain may be the first of another.
        if chain.groups.iter().any(|&id| taken.contains(id)) {
            continue;
        }
        for id in chain.groups.into_iter().chain(chain.padding.map(|(id, _)| id)) {
            taken.insert(id);
        }
        let Some(group) = chain.group(graph, grouping) else { continue };
        for value in chain.between(graph) {
            grouping.materialised[value] = false;
            grouping.alias[value] = None;
        }
        merged[chain.groups[2]] = Some(group);
    }
    let groups = std::mem::take(&mut grouping.groups);
    let kept = groups.into_iter().filter_map(|(id, group)| match merged[id].take() {
        Some(chain) => Some(chain),
        None => (!taken.contains(id)).then_some(group),
    });
    grouping.groups = kept.collect::<PrimaryMap<GroupId, Group>>();
}

/// Whether the scores outgrow the caches, and what it takes to do without them: keys and values are needed at once, where
/// three kernels have them one after the other.
fn pays(graph: &Graph, grouping: &Grouping, chain: &Chain, above: i64) -> bool {
    let first = grouping.groups[chain.groups[0]].anchor;
    let bytes = |value: ValueId| estimate_at(&graph.ty(value).bytes(), &|_| LONG_SEQUENCE);
    bytes(chain.scores).saturating_sub(bytes(graph.nodes[first].inputs[1])) > above
}

/// Three groups that follow each other, and what they hand on.
struct Chain {
    groups: [GroupId; 3],
    /// What the first contraction writes, and what the rows group reads: the same, or a reshape of it.
    scores: ValueId,
    read: ValueId,
    /// What the rows group writes, and what the second contraction reads.
    weights: ValueId,
    lhs: ValueId,
    /// The reshapes and the padding between.
    views: Vec<NodeId>,
    /// The group that pads the weights, and with what.
    padding: Option<(GroupId, ValueId)>,
}

impl Chain {
    fn group(&self, graph: &Graph, grouping: &Grouping) -> Option<Group> {
        let mut stages: Vec<Group> = self.groups.iter().map(|&id| grouping.groups[id].clone()).collect();
        let handed: Vec<ValueId> = self.between(graph);
        for (stage, reads) in stages.iter_mut().zip([None, Some(self.read), Some(self.lhs)]) {
            stage.nodes.retain(|node| !self.views.contains(node));
            stage.inputs.retain(|value| !handed.contains(value));
            stage.inputs.extend(reads);
        }
        let mut nodes: Vec<NodeId> =
            stages.iter().flat_map(|stage| &stage.nodes).chain(&self.views).copied().collect();
        let mut position: SecondaryMap<NodeId, usize> = SecondaryMap::new();
        graph.order.iter().enumerate().for_each(|(at, &node)| position[node] = at);
        nodes.sort_by_key(|&node| position[node]);
        nodes.dedup();
        let mut inputs: Vec<ValueId> = stages.iter().flat_map(|stage| stage.inputs.clone()).collect();
        inputs.retain(|value| !handed.contains(value));
        inputs.extend(self.padding.map(|(_, fill)| fill));
        inputs.sort();
        inputs.dedup();
        let [_, _, last] = stages.as_slice() else { return None };
        let (anchor, outputs) = (last.anchor, last.outputs.clone());
        let (kind, settings) = (GroupKind::Chain, Default::default());
        let mut group = Group { kind, nodes, anchor, inputs, outputs, stages, scratch: Dim::ZERO, settings };
        group.scratch = Blocks::of_group(graph, &group)?.bytes();
        Some(group)
    }

    /// Everything from the scores to the left operand of the second contraction that one stage hands to the next: it needs no
    /// buffers any more.
    fn between(&self, graph: &Graph) -> Vec<ValueId> {
        let viewed = self.views.iter().map(|&node| graph.nodes[node].outputs[0]);
        [self.scores, self.read, self.weights, self.lhs].into_iter().chain(viewed).collect()
    }
}

struct Finder<'a> {
    graph: &'a Graph,
    grouping: &'a Grouping,
    writer: SecondaryMap<ValueId, Option<GroupId>>,
    /// Groups that read a storage; something else that does counts twice.
    readers: SecondaryMap<ValueId, u32>,
}

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph, grouping: &'a Grouping) -> Finder<'a> {
        let (mut writer, mut readers) = (SecondaryMap::new(), SecondaryMap::new());
        for (id, group) in grouping.groups.iter() {
            for &value in &group.outputs {
                writer[value] = Some(id);
            }
            for &value in &group.inputs {
                readers[grouping.storage(value)] += 1;
            }
        }
        let outputs = graph.outputs.iter().map(|(_, value)| value);
        let controlled = grouping.controls.iter().flat_map(|&node| &graph.nodes[node].inputs);
        for &value in outputs.chain(controlled) {
            readers[grouping.storage(value)] += 2;
        }
        Finder { graph, grouping, writer, readers }
    }

    fn op(&self, node: NodeId) -> &'a Op {
        &self.graph.nodes[node].op
    }

    fn shape(&self, value: ValueId) -> &'a [Dim] {
        &self.graph.ty(value).shape
    }

    /// The chain that ends with a group.
    fn chain(&self, last: GroupId) -> Option<Chain> {
        let product = &self.grouping.groups[last];
        let lhs = self.contraction(product)?;
        let mut views = vec![];
        let mut weights = self.written(lhs, &mut views)?;
        let padded = self.padded(weights);
        self.only_reader(weights, product, lhs, &views)?;
        let mut padding = None;
        if let Some((group, pad, of)) = padded {
            // Zeros behind each row: it is in a place of its own, which has them.
            if self.readers[self.grouping.storage(of)] != 1 {
                return None;
            }
            (padding, weights) =
                (Some((group, self.graph.nodes[pad].inputs[1])), self.written(of, &mut views)?);
            views.push(pad);
        }

        let rows_id = self.writer[weights]?;
        let rows = &self.grouping.groups[rows_id];
        let Op::Reduce { axes, .. } = self.op(rows.anchor) else { return None };
        let full = self.shape(self.graph.nodes[rows.anchor].inputs[0]);
        let by_rows = rows.kind == GroupKind::Rows
            && rows.outputs == [weights]
            && axes.as_slice() == [full.len().checked_sub(1)?]
            && self.shape(weights) == full
            && (padding.is_some() || full.last() == self.shape(lhs).last());
        if !by_rows {
            return None;
        }
        rows.inputs.iter().find_map(|&input| {
            let mut views = views.clone();
            let scores = self.written(input, &mut views)?;
            let read = self.reshaped_inside(input, rows, &mut views);
            let first = self.writer[scores]?;
            let contraction = &self.grouping.groups[first];
            self.contraction(contraction)?;
            let (given, taken) = (self.graph.ty(scores), self.graph.ty(lhs));
            let lead = |ty: &'a TensorType| ty.shape.split_last().map(|(_, lead)| lead);
            // In the place of scores, or narrower in their own.
            let narrow = padding.is_some() || given.dtype != taken.dtype;
            let narrows = given.dtype == DType::F32 && taken.dtype == DType::BF16;
            let fits = contraction.outputs == [scores]
                && if narrow { narrows } else { given == taken }
                && lead(given) == lead(taken)
                && given.shape.last() == full.last()
                && taken.dtype == self.graph.ty(weights).dtype
                && self.shape(self.graph.nodes[contraction.anchor].outputs[0]) == given.shape
                && self.shape(read) == full
                && self.readers[self.grouping.storage(scores)] == 1
                && self.stays_in_row(read, rows);
            let groups = [first, rows_id, last];
            let types = [given.dtype, DType::Bool, DType::BF16];
            // What the last one computes of its sums may be rounded behind them.
            let rounded = [given.dtype, DType::Bool, DType::BF16, DType::F16];
            let allowed = [&types[..], &types, &rounded];
            let fits = fits
                && groups
                    .iter()
                    .zip(allowed)
                    .all(|(&id, types)| self.is_of(types, &self.grouping.groups[id]));
            fits.then_some(Chain { groups, scores, read, weights, lhs, views, padding })
        })
    }

    /// The group, the node and the operand of a padding of a value's last axis with zeros.
    fn padded(&self, value: ValueId) -> Option<(GroupId, NodeId, ValueId)> {
        let id = self.writer[value]?;
        let group = &self.grouping.groups[id];
        let node = &self.graph.nodes[group.anchor];
        let Op::Pad { lo, hi } = &node.op else { return None };
        let (_, kept) = hi.split_last()?;
        let fill = self.graph.constant_data(node.inputs[1]);
        let fits = group.kind == GroupKind::Single
            && group.nodes == [group.anchor]
            && node.outputs == [value]
            && lo.iter().chain(kept).all(|size| *size == Dim::ZERO)
            && fill.is_some_and(|fill| fill.data.iter().all(|byte| *byte == 0));
        fits.then_some((id, group.anchor, node.inputs[0]))
    }

    /// Whether a group reads and computes values of these types only. A kernel is compiled as a whole: a stage
    /// that computes conditions from indices would keep the contractions from the widest vectors.
    fn is_of(&self, types: &[DType], group: &Group) -> bool {
        let is = |value: &ValueId| types.contains(&self.graph.ty(*value).dtype);
        group.inputs.iter().all(is)
            && group.nodes.iter().all(|&node| self.graph.nodes[node].outputs.iter().all(is))
    }

    /// The left operand of a contraction with one row axis whose result has the batch axes of that operand, and no
    /// border.
    fn contraction(&self, group: &Group) -> Option<ValueId> {
        let node = &self.graph.nodes[group.anchor];
        let Op::Contract { batch, m: 1, .. } = &node.op else { return None };
        let &[output] = group.outputs.as_slice() else { return None };
        let from = self.graph.producer(output)?;
        let (lhs, result) = (node.inputs[0], node.outputs[0]);
        let fits = group.kind == GroupKind::Contract
            && !matches!(self.op(from), Op::Pad { .. })
            && lhs != node.inputs[1];
        (fits && self.shape(result).len() == batch + 2).then_some(lhs)
    }

    /// The value of a group's own that `value` is, or is a reshape of.
    fn written(&self, mut value: ValueId, reshapes: &mut Vec<NodeId>) -> Option<ValueId> {
        while self.writer[value].is_none() {
            let node = self.graph.producer(value)?;
            if !matches!(self.op(node), Op::Reshape { .. }) {
                return None;
            }
            reshapes.push(node);
            value = self.graph.nodes[node].inputs[0];
        }
        Some(value)
    }

    /// The reshape of `value` that a group makes of it where that is all it does with it.
    fn reshaped_inside(&self, mut value: ValueId, group: &Group, reshapes: &mut Vec<NodeId>) -> ValueId {
        while let [node] = self.readers_inside(value, group).as_slice()
            && matches!(self.op(*node), Op::Reshape { .. })
        {
            reshapes.push(*node);
            value = self.graph.nodes[*node].outputs[0];
        }
        value
    }

    fn readers_inside(&self, value: ValueId, group: &Group) -> Vec<NodeId> {
        let reads = |node: &&NodeId| self.graph.nodes[**node].inputs.contains(&value);
        group.nodes.iter().filter(reads).copied().collect()
    }

    /// Whether only the left operand of a contraction is made of `value`, and nothing else reads it.
    fn only_reader(&self, value: ValueId, group: &Group, lhs: ValueId, reshapes: &[NodeId]) -> Option<()> {
        let node = &self.graph.nodes[group.anchor];
        let mut made: Vec<ValueId> = reshapes.iter().map(|&node| self.graph.nodes[node].outputs[0]).collect();
        made.push(value);
        let inside = made.iter().flat_map(|&value| self.readers_inside(value, group));
        let alone = inside.into_iter().all(|reader| reader == group.anchor || reshapes.contains(&reader));
        let batch = node.outputs[0];
        let (result, operand) = (self.shape(batch), self.shape(lhs));
        let rows = result.len() - 1;
        // One inner axis, and the same batch and rows.
        let fits = operand.len() == result.len() && operand[..rows] == result[..rows];
        let read_once = self.readers[self.grouping.storage(value)] == 1;
        (alone && fits && read_once && !made.contains(&node.inputs[1])).then_some(())
    }

    /// Whether a rows group reads each row of `value` only while it computes the same row of its result: all that
    /// depends on it is elementwise, or a reduction of the row.
    fn stays_in_row(&self, value: ValueId, group: &Group) -> bool {
        let full = self.shape(value);
        let Some(last) = full.len().checked_sub(1) else { return false };
        let mut reduced = full.to_vec();
        reduced[last] = Dim::ONE;
        let mut local: EntitySet<ValueId> = EntitySet::new();
        local.insert(value);
        group.nodes.iter().all(|&node| {
            let data = &self.graph.nodes[node];
            if !data.inputs.iter().any(|&input| local.contains(input)) {
                return true;
            }
            let result = data.outputs[0];
            local.insert(result);
            let shape = self.shape(result);
            match &data.op {
                Op::Map(_) => shape == full || shape == reduced,
                Op::Reduce { axes, .. } => axes.as_slice() == [last] && self.shape(data.inputs[0]) == full,
                _ => false,
            }
        })
    }
}
