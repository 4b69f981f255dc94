//! An arrangement for a model that has none: which products to cut by columns, so that the next ones can be cut by rows, and where stages
//! of a pipeline begin.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use onnxc_ir::graph::axes::{Share, ways};
use onnxc_ir::graph::{Graph, NodeId, Op, OriginId, RhsLayout, TensorType, ValueId};

use crate::cost;
use crate::layout::State;

/// A product with weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Each rank has columns of the weights, and so of the result: this axis of it.
    Columns { axis: usize },
    /// Each rank has rows, and part of every sum.
    Rows,
}

/// What is cut, and what is not.
#[derive(Debug, Default)]
pub struct Suggestion {
    pub products: Vec<(OriginId, Role)>,
    /// Tables whose rows ranks share: the operation that gathers from one, and the axis of the rows.
    pub tables: Vec<(OriginId, usize)>,
    /// Products that all ranks compute.
    pub whole: usize,
}

/// A value that is cut, and the products that cut it.
type Cut = (usize, BTreeSet<NodeId>);

/// Products to cut for this number of ranks.
pub fn suggest(graph: &Graph, ranks: usize) -> Suggestion {
    // A product that costs more than it saves is whole, and then others may be.
    const ROUNDS: usize = 4;
    let mut refused = HashSet::new();
    for _ in 0..ROUNDS {
        let walk = Walk::new(graph, ranks, &refused);
        let bad: Vec<NodeId> = walk
            .columns
            .iter()
            .map(|own| own.0)
            .filter(|id| walk.gains.get(id).copied().unwrap_or(0.0) <= 0.0)
            .collect();
        if bad.is_empty() {
            return walk.suggestion();
        }
        refused.extend(bad);
    }
    Walk::new(graph, ranks, &refused).suggestion()
}

struct Walk<'g> {
    graph: &'g Graph,
    ranks: usize,
    cuts: HashMap<ValueId, Cut>,
    gathered: HashSet<ValueId>,
    columns: Vec<(NodeId, usize)>,
    rows: Vec<NodeId>,
    whole: usize,
    /// Seconds that cutting a product saves, less those that exchanges take for it.
    gains: BTreeMap<NodeId, f64>,
}

impl<'g> Walk<'g> {
    fn new(graph: &'g Graph, ranks: usize, refused: &HashSet<NodeId>) -> Walk<'g> {
        let mut walk = Walk {
            graph,
            ranks,
            cuts: HashMap::new(),
            gathered: HashSet::new(),
            columns: vec![],
            rows: vec![],
            whole: 0,
            gains: BTreeMap::new(),
        };
        for &id in &graph.order {
            walk.node(id, !refused.contains(&id));
        }
        for (_, value) in &graph.outputs[..graph.given_outputs()] {
            walk.gather(*value);
        }
        walk
    }

    fn suggestion(self) -> Suggestion {
        let origin = |id: &NodeId| self.graph.nodes[*id].origin;
        let columns = self.columns.iter().map(|(id, axis)| (origin(id), Role::Columns { axis: *axis }));
        let rows = self.rows.iter().map(|id| (origin(id), Role::Rows));
        Suggestion { products: columns.chain(rows).collect(), tables: self.tables(), whole: self.whole }
    }

    /// Tables that are more work to hold than what is gathered from them is to add up.
    fn tables(&self) -> Vec<(OriginId, usize)> {
        let of = |&id: &NodeId| {
            let node = &self.graph.nodes[id];
            let Op::Gather { axis } = node.op else { return None };
            let (table, result) = (self.graph.ty(node.inputs[0]), self.graph.ty(node.outputs[0]));
            let pays = cost::held(table) > cost::combination(result, State::Whole, self.ranks);
            let rows = table.shape[axis].as_const().unwrap_or(0);
            let fits = self.graph.is_constant(node.inputs[0]) && rows >= self.ranks as i64;
            (fits && pays).then_some((node.origin, axis))
        };
        self.graph.order.iter().filter_map(of).collect()
    }

    fn types(&self, values: &[ValueId]) -> Vec<&'g TensorType> {
        values.iter().map(|&value| self.graph.ty(value)).collect()
    }

    /// Shares seconds out among products.
    fn gain(&mut self, sources: &BTreeSet<NodeId>, seconds: f64) {
        for &source in sources {
            *self.gains.entry(source).or_default() += seconds / sources.len() as f64;
        }
    }

    /// All ranks need all of a value.
    fn gather(&mut self, value: ValueId) {
        if let Some((_, sources)) = self.cuts.get(&value).cloned()
            && self.gathered.insert(value)
        {
            let seconds = cost::gathered(self.graph.ty(value), self.ranks);
            self.gain(&sources, -seconds);
        }
    }

    fn saved(&self, id: NodeId) -> f64 {
        let node = &self.graph.nodes[id];
        let work = cost::work(&node.op, &self.types(&node.inputs), &self.types(&node.outputs));
        work * (1.0 - 1.0 / self.ranks as f64)
    }

    /// Whether an axis has the same number of blocks on each rank.
    fn divides(&self, ty: &TensorType, axis: usize, scale: i64) -> bool {
        let size = ty.shape[axis].as_const();
        size.is_some_and(|size| size > 0 && size % (scale * self.ranks as i64) == 0)
    }

    fn node(&mut self, id: NodeId, may_cut: bool) {
        let node = &self.graph.nodes[id];
        let (inputs, outputs) = (node.inputs.clone(), node.outputs.clone());
        if let Op::Contract { batch, m, k, rhs: RhsLayout::Plain } = node.op
            && inputs.len() == 2
            && self.graph.is_constant(inputs[1])
        {
            match self.cuts.get(&inputs[0]).cloned() {
                Some((axis, sources)) if (batch + m..batch + m + k).contains(&axis) => {
                    self.rows.push(id);
                    let seconds = 2.0 * cost::gathered(self.graph.ty(outputs[0]), self.ranks);
                    self.gain(&sources, self.saved(id) - seconds);
                    return;
                }
                None => {
                    let (axis, ty) = (batch + m, self.graph.ty(outputs[0]));
                    if may_cut && self.divides(ty, axis, 1) {
                        self.columns.push((id, axis));
                        self.gain(&BTreeSet::from([id]), self.saved(id));
                        self.cuts.insert(outputs[0], (axis, BTreeSet::from([id])));
                    } else {
                        self.whole += 1;
                    }
                    return;
                }
                Some(_) => {}
            }
        }
        let cut: Vec<Option<Cut>> = inputs.iter().map(|input| self.cuts.get(input).cloned()).collect();
        if cut.iter().all(Option::is_none) {
            return;
        }
        let sources: BTreeSet<NodeId> = cut.iter().flatten().flat_map(|own| own.1.iter().copied()).collect();
        let fits = |share: &Share, value: ValueId, cut: &Option<Cut>| match (share, cut) {
            (Share::Range { axis, scale }, Some((own, _))) => {
                axis == own && self.divides(self.graph.ty(value), *axis, *scale)
            }
            (Share::Range { axis, scale }, None) => self.divides(self.graph.ty(value), *axis, *scale),
            (_, None) => true,
            (_, Some(_)) => false,
        };
        let all = ways(&node.op, &self.types(&inputs), &self.types(&outputs));
        let way = all.into_iter().find(|way| {
            let mut operands = way.operands.iter().zip(&inputs).zip(&cut);
            operands.all(|((share, &value), cut)| fits(share, value, cut))
        });
        let Some(way) = way else {
            inputs.iter().for_each(|&input| self.gather(input));
            return;
        };
        self.gain(&sources, self.saved(id));
        for (share, &output) in way.results.iter().zip(&outputs) {
            match share {
                Share::Range { axis, .. } => drop(self.cuts.insert(output, (*axis, sources.clone()))),
                _ => {
                    let seconds = 2.0 * cost::gathered(self.graph.ty(output), self.ranks);
                    self.gain(&sources, -seconds);
                }
            }
        }
    }
}

/// The stage of each node of the model: as much work in each as goes, cut where little is handed over.
pub fn stages(graph: &Graph, count: usize) -> Vec<(OriginId, usize)> {
    let mut origins: Vec<OriginId> = vec![];
    let mut place: HashMap<OriginId, usize> = HashMap::new();
    let mut work: Vec<f64> = vec![];
    // Bytes that go from one node of the model to the next ones: what begins and what ends at each.
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    let mut first: HashMap<ValueId, usize> = HashMap::new();
    for &id in &graph.order {
        let node = &graph.nodes[id];
        let at = *place.entry(node.origin).or_insert_with(|| {
            origins.push(node.origin);
            work.push(0.0);
            origins.len() - 1
        });
        let types = |values: &[ValueId]| -> Vec<&TensorType> {
            values.iter().map(|&value| graph.ty(value)).collect()
        };
        work[at] += cost::work(&node.op, &types(&node.inputs), &types(&node.outputs));
        first.extend(node.outputs.iter().map(|&output| (output, at)));
        for &input in node.inputs.iter().filter(|&&input| graph.producer(input).is_some()) {
            let own = last.entry(input).or_insert(at);
            *own = at.max(*own);
        }
    }
    let mut change = vec![0.0; origins.len() + 1];
    for (value, &end) in &last {
        let begin = first.get(value).copied().unwrap_or(0);
        if begin < end {
            change[begin] += cost::bytes(graph.ty(*value));
            change[end] -= cost::bytes(graph.ty(*value));
        }
    }
    let total: f64 = work.iter().sum();
    let (mut done, mut over) = (0.0, 0.0);
    // After each node: the share of the work, and the bytes that go over.
    let cuts: Vec<(f64, f64)> = work
        .iter()
        .zip(&change)
        .map(|(work, change)| {
            done += work;
            over += change;
            (done / total.max(f64::MIN_POSITIVE), over)
        })
        .collect();
    let each = 1.0 / count as f64;
    let mut ends = vec![];
    for stage in 1..count {
        let wanted = stage as f64 * each;
        let price = |&(share, bytes): &(f64, f64)| {
            let off = (share - wanted).abs() / each;
            // A fifth of a stage more or less is worth a smaller message.
            if off > 0.2 { f64::INFINITY } else { bytes * (1.0 + off) }
        };
        let least = ends.last().map_or(0, |end| end + 1);
        let near = |cut: &(f64, f64)| (cut.0 - wanted).abs();
        let best = (least..cuts.len()).min_by(|&a, &b| {
            price(&cuts[a]).total_cmp(&price(&cuts[b])).then(near(&cuts[a]).total_cmp(&near(&cuts[b])))
        });
        ends.extend(best);
    }
    let stage = |at: usize| ends.iter().filter(|&&end| at > end).count();
    origins.into_iter().enumerate().map(|(at, origin)| (origin, stage(at))).collect()
}
