//! Decision trees: the tests of their nodes as intervals, the votes of their leaves as tables.
//!
//! Every comparison of a feature with a number asks whether it lies in an interval of floats, so that one primitive,
//! [`Op::Leaves`], does for all kinds of trees. NaN lies in no interval; where it must take the first branch, the complement is asked for.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::masks::Masks;
use super::steps::{Columns, Next, steps};
use super::walk::Walk;
use onnxc_ir::graph::{Op, Tensor as Data, Trees, trees};
use onnxc_ops::row::*;
use onnxc_tuning::single::{self as tuning, Leaves};

/// What a node asks of its feature, where that is a number. Where NaN goes, [`Branch::nan_passes`] alone decides.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Test {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    Above(f64),
    Equal(f64),
    NotEqual(f64),
    /// Boxed twice, for branches to be small: there are millions, and few with sets.
    #[expect(clippy::box_collection, reason = "a box of a slice is twice as large")]
    Member(Box<Vec<f64>>),
}

/// The number of a node among its kind; lists of nodes have fewer than [`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NodePlace {
    Branch(u32),
    Leaf(u32),
}

/// A [`NodePlace`] in half of its bytes: below [`MAX_NODES`] a leaf has the top bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Packed(u32);

impl Packed {
    const LEAF: u32 = 1 << 31;

    pub(super) fn get(self) -> NodePlace {
        match self.0 & Packed::LEAF {
            0 => NodePlace::Branch(self.0),
            _ => NodePlace::Leaf(self.0 & !Packed::LEAF),
        }
    }
}

impl From<NodePlace> for Packed {
    fn from(place: NodePlace) -> Packed {
        match place {
            NodePlace::Branch(at) => Packed(at),
            NodePlace::Leaf(at) => Packed(at | Packed::LEAF),
        }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Branch {
    pub feature: u32,
    pub test: Test,
    /// Whether NaN passes the test.
    pub nan_passes: bool,
    pub pass: Packed,
    pub fail: Packed,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Vote {
    pub target: u32,
    pub weight: f64,
}

/// The votes of each leaf, in one list.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Ballots {
    votes: Vec<Vote>,
    /// Where those of each leaf end.
    ends: Vec<u32>,
}

impl Ballots {
    /// Ballots of `count` leaves. `of` gives the leaf and the vote of each number below `votes`; those of a leaf keep their order.
    pub(super) fn collect(
        count: usize,
        votes: usize,
        mut of: impl FnMut(usize) -> Result<(u32, Vote)>,
    ) -> Result<Ballots> {
        let mut ends = vec![0; count];
        let none = Vote { target: 0, weight: 0.0 };
        let mut sorted = vec![none; votes];
        for at in 0..votes {
            ends[of(at)?.0 as usize] += 1;
        }
        let mut start = 0;
        for end in &mut ends {
            (*end, start) = (start, start + *end);
        }
        for at in 0..votes {
            let (leaf, vote) = of(at)?;
            let place = &mut ends[leaf as usize];
            sorted[*place as usize] = vote;
            *place += 1;
        }
        Ok(Ballots { votes: sorted, ends })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn of(&self, leaf: usize) -> &[Vote] {
        let start = leaf.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.votes[start as usize..self.ends[leaf] as usize]
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &[Vote]> {
        (0..self.len()).map(|leaf| self.of(leaf))
    }

    pub(super) fn votes(&self) -> &[Vote] {
        &self.votes
    }

    pub(super) fn push(&mut self, votes: &[Vote]) {
        self.votes.extend_from_slice(votes);
        self.ends.push(self.votes.len() as u32);
    }
}

/// The numbers of a list's elements, found by their content, without copies of the elements.
struct Numbers {
    /// A number and one, or 0.
    slots: Vec<u32>,
    state: RandomState,
}

impl Numbers {
    /// Room for numbers below `count`.
    fn new(count: usize) -> Numbers {
        Numbers { slots: vec![0; (count + count / 2 + 1).next_power_of_two()], state: RandomState::new() }
    }

    /// The number that is `same` as what has this content, else `new`, which is from now on.
    fn find(&mut self, content: impl std::hash::Hash, new: usize, same: impl Fn(usize) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.state.hash_one(content) as usize & mask;
        loop {
            match self.slots[at] {
                0 => {
                    self.slots[at] = new as u32 + 1;
                    return new;
                }
                number if same(number as usize - 1) => return number as usize - 1,
                _ => at = (at + 1) & mask,
            }
        }
    }
}

/// How the votes of the trees for a target become one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// Trees over the columns of rows of `dtype`, f32 or f64.
pub(super) struct Forest {
    pub dtype: DType,
    pub branches: Vec<Branch>,
    pub leaves: Ballots,
    pub roots: Vec<NodePlace>,
}

/// Nodes, leaves and votes that a forest has fewer of: their numbers are of 32 bits.
pub(super) const MAX_NODES: usize = 1 << 31;
/// Elements that a table of votes has at most.
const MAX_TABLE: usize = 1 << 26;

/// An interval of floats; empty if `low` is above `high`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub(super) const ALL: Interval = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
    const NONE: Interval = Interval { low: f64::INFINITY, high: f64::NEG_INFINITY };

    /// What is not in the interval, if that is one.
    pub(super) fn complement(self, dtype: DType) -> Option<Interval> {
        match (self.low, self.high) {
            (low, high) if low > high => Some(Interval::ALL),
            (f64::NEG_INFINITY, high) => Some(above(high, dtype)),
            (low, f64::INFINITY) => Some(below(low, dtype)),
            _ => None,
        }
    }
}

fn below(bound: f64, dtype: DType) -> Interval {
    match bound {
        f64::NEG_INFINITY => Interval::NONE,
        _ => Interval { high: -next_up(-bound, dtype), ..Interval::ALL },
    }
}

fn above(bound: f64, dtype: DType) -> Interval {
    match bound {
        f64::INFINITY => Interval::NONE,
        _ => Interval { low: next_up(bound, dtype), ..Interval::ALL },
    }
}

/// The least number of the type above `x`, which is one of the type.
fn next_up(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from((x as f32).next_up()),
        _ => x.next_up(),
    }
}

impl Test {
    /// The intervals in which a number passes, of [`Test::NotEqual`] those in which it fails; no number is equal to NaN, or above or
    /// below it.
    pub(super) fn intervals(&self, dtype: DType) -> Vec<Interval> {
        let bound = match self {
            Test::AtMost(bound) | Test::Below(bound) | Test::AtLeast(bound) | Test::Above(bound) => *bound,
            Test::Equal(bound) | Test::NotEqual(bound) => *bound,
            Test::Member(members) => {
                return members.iter().map(|&member| Interval { low: member, high: member }).collect();
            }
        };
        if bound.is_nan() {
            return vec![Interval::NONE];
        }
        vec![match self {
            Test::AtMost(_) => Interval { high: bound, ..Interval::ALL },
            Test::Below(_) => below(bound, dtype),
            Test::AtLeast(_) => Interval { low: bound, ..Interval::ALL },
            Test::Above(_) => above(bound, dtype),
            _ => Interval { low: bound, high: bound },
        }]
    }
}

/// The numbers of nodes in which one comes after all that follow it.
fn post_order(branches: &[Branch], roots: &[NodePlace]) -> Result<Vec<u32>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; branches.len()];
    let mut order = Vec::with_capacity(branches.len());
    let mut stack: Vec<u32> = Vec::new();
    for &root in roots {
        if let NodePlace::Branch(root) = root {
            stack.push(root);
        }
        while let Some(&at) = stack.last() {
            let state = &mut states[at as usize];
            if *state != State::New {
                stack.pop();
                if *state == State::Open {
                    *state = State::Done;
                    order.push(at);
                }
                continue;
            }
            *state = State::Open;
            let branch = &branches[at as usize];
            for place in [branch.fail, branch.pass] {
                match place.get() {
                    NodePlace::Branch(next) if states[next as usize] == State::Open => {
                        return malformed(format!("node {next} of the trees follows itself"));
                    }
                    NodePlace::Branch(next) if states[next as usize] == State::New => stack.push(next),
                    _ => {}
                }
            }
        }
    }
    Ok(order)
}

impl Branch {
    /// The kind of the test, and its bounds.
    fn asks(&self) -> (u8, &[f64]) {
        match &self.test {
            Test::AtMost(bound) => (0, std::slice::from_ref(bound)),
            Test::Below(bound) => (1, std::slice::from_ref(bound)),
            Test::AtLeast(bound) => (2, std::slice::from_ref(bound)),
            Test::Above(bound) => (3, std::slice::from_ref(bound)),
            Test::Equal(bound) => (4, std::slice::from_ref(bound)),
            Test::NotEqual(bound) => (5, std::slice::from_ref(bound)),
            Test::Member(bounds) => (6, bounds.as_slice()),
        }
    }

    /// Equal branches are one: by bits, as numbers of either sign of zero differ.
    fn is(&self, other: &Branch) -> bool {
        let ((kind, bounds), (other_kind, others)) = (self.asks(), other.asks());
        let of = |branch: &Branch| (branch.feature, branch.nan_passes, branch.pass, branch.fail);
        let bits = |bound: &f64| bound.to_bits();
        of(self) == of(other) && kind == other_kind && bounds.iter().map(bits).eq(others.iter().map(bits))
    }
}

impl Hash for Branch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (kind, bounds) = self.asks();
        (self.feature, self.nan_passes, self.pass, self.fail, kind).hash(state);
        bounds.iter().for_each(|bound| bound.to_bits().hash(state));
    }
}

/// What a test lists, if it is for equality.
fn members(test: &Test) -> Option<&[f64]> {
    match test {
        Test::Equal(member) => Some(std::slice::from_ref(member)),
        Test::Member(members) => Some(members),
        _ => None,
    }
}

impl Forest {
    /// The forest with equal parts of trees as one, and with sets in place of chains of equalities, as which exporters write them.
    /// Its branches come after those that follow them.
    fn simplified(mut self) -> Result<Forest> {
        let mut simple =
            Forest { dtype: self.dtype, branches: vec![], leaves: Ballots::default(), roots: vec![] };
        // Taken, for what it held to be gone before there are more branches.
        let leaves = simple.leaves_of(std::mem::take(&mut self.leaves));
        let mut known = Numbers::new(self.branches.len());
        let mut places: Vec<Packed> = vec![NodePlace::Leaf(0).into(); self.branches.len()];
        let new = |places: &[Packed], place: NodePlace| match place {
            NodePlace::Branch(at) => places[at as usize],
            NodePlace::Leaf(at) => NodePlace::Leaf(leaves[at as usize]).into(),
        };
        for at in post_order(&self.branches, &self.roots)? {
            let old = &self.branches[at as usize];
            let (pass, fail) = (new(&places, old.pass.get()), new(&places, old.fail.get()));
            let mut branch = Branch { pass, fail, ..old.clone() };
            if let NodePlace::Branch(next) = fail.get()
                && let next = &simple.branches[next as usize]
                && (next.feature, next.nan_passes, next.pass)
                    == (branch.feature, branch.nan_passes, branch.pass)
                && let (Some(some), Some(others)) = (members(&branch.test), members(&next.test))
            {
                (branch.test, branch.fail) = (Test::Member([some, others].concat().into()), next.fail);
            }
            places[at as usize] = match branch.pass == branch.fail {
                true => branch.pass,
                false => {
                    let count = simple.branches.len();
                    let number = known.find(&branch, count, |other| simple.branches[other].is(&branch));
                    if number == count {
                        simple.branches.push(branch);
                    }
                    NodePlace::Branch(number as u32).into()
                }
            };
        }
        simple.roots = self.roots.iter().map(|&root| new(&places, root).get()).collect();
        Ok(simple)
    }

    /// Adds these leaves, equal ones as one; gives the number of each.
    fn leaves_of(&mut self, leaves: Ballots) -> Vec<u32> {
        let mut known = Numbers::new(leaves.len());
        let bits = |vote: &Vote| (vote.target, vote.weight.to_bits());
        let add = |votes: &[Vote]| {
            let content: Vec<(u32, u64)> = votes.iter().map(bits).collect();
            let same = |other: usize| self.leaves.of(other).iter().map(bits).eq(content.iter().copied());
            let count = self.leaves.len();
            let number = known.find(&content, count, same);
            if number == count {
                self.leaves.push(votes);
            }
            number as u32
        };
        leaves.each().map(add).collect()
    }

    /// The votes of all trees for each row of the node's first input, `[n, f]`: `[n, targets]` in the forest's type.
    pub(super) fn scores(
        self,
        cx: &mut NodeCx<'_, '_>,
        targets: usize,
        aggregate: Aggregate,
    ) -> Result<ValueId> {
        if let Some(vote) = self.leaves.votes().iter().find(|vote| vote.target as usize >= targets) {
            return malformed(format!("a leaf votes for target {} of {targets}", vote.target));
        }
        if self.roots.is_empty() {
            return malformed("there are no trees".to_string());
        }
        let x = cx.input(0)?;
        let x = cx.b.cast(x, self.dtype)?;
        let simple = self.simplified()?;
        let order = post_order(&simple.branches, &simple.roots)?;
        simple.sum(cx, x, targets, aggregate, order)
    }

    fn sum(
        mut self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        targets: usize,
        aggregate: Aggregate,
        order: Vec<u32>,
    ) -> Result<ValueId> {
        let (dtype, trees) = (self.dtype, self.roots.len());
        let rows = cx.b.shape(x)[0].clone();
        let function = match aggregate {
            Aggregate::Sum | Aggregate::Average => ReduceFn::Sum,
            Aggregate::Min => ReduceFn::Min,
            Aggregate::Max => ReduceFn::Max,
        };
        // Trees that vote for one target each, with equal numbers of trees per target, are added up target by target.
        let single = self.targets_of_trees(&order).filter(|of| {
            let mut counts = vec![0; targets];
            of.iter().for_each(|&target| counts[target as usize] += 1);
            counts.iter().all(|&count| count == counts[0])
        });
        if single.is_none() && self.leaves.len().saturating_mul(targets) > MAX_TABLE {
            let count = self.leaves.len();
            return unsupported(format!("a table of {count} leaves by {targets} targets"));
        }
        let leaves = std::mem::take(&mut self.leaves);
        let mut scores = match single {
            Some(of) => {
                let weights: Vec<f64> = leaves.each().map(|votes| combined(votes, None, function)).collect();
                drop(leaves);
                let reached = self.reached(cx, x, order, Some(&of))?;
                let weights = constant(cx, dtype, &[weights.len()], weights);
                let each = cx.b.emit1(Op::Gather { axis: 0 }, &[weights, reached])?;
                let per_target = Dim::from(trees / targets);
                let each = cx.b.reshape(each, vec![rows.clone(), Dim::from(targets), per_target])?;
                cx.b.reduce(function, each, &[2])?
            }
            None => {
                let reached = self.reached(cx, x, order, None)?;
                let weights: Vec<f64> = leaves
                    .each()
                    .flat_map(|votes| {
                        (0..targets as u32).map(|target| combined(votes, Some(target), function))
                    })
                    .collect();
                let weights = constant(cx, dtype, &[leaves.len(), targets], weights);
                let each = cx.b.emit1(Op::Gather { axis: 0 }, &[weights, reached])?;
                cx.b.reduce(function, each, &[1])?
            }
        };
        scores = cx.b.reshape(scores, vec![rows, Dim::from(targets)])?;
        match aggregate {
            Aggregate::Sum => Ok(scores),
            Aggregate::Average => cx.b.binary_scalar(BinaryFn::Div, scores, trees as f64),
            Aggregate::Min | Aggregate::Max => {
                // What no leaf votes for is 0.
                let none = combined(&[], None, function);
                let (none, zero) = (cx.b.scalar(dtype, none), cx.b.scalar(dtype, 0.0));
                let is_none = cx.b.compare(CompareFn::Eq, scores, none)?;
                cx.b.select(is_none, zero, scores)
            }
        }
    }

    /// The leaf that each row reaches in each tree; the trees `of` each target side by side, if these are given.
    fn reached(
        self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        order: Vec<u32>,
        of: Option<&[u32]>,
    ) -> Result<ValueId> {
        let (steps, roots, columns) = steps(&self, &order);
        let dtype = self.dtype;
        drop((self, order));
        let levels = Walk::levels(&steps, &roots);
        // Trees of like depths are walked side by side.
        let mut trees: Vec<usize> = (0..roots.len()).collect();
        trees.sort_by_key(|&tree| (of.map(|of| of[tree]), levels[tree]));
        let roots: Vec<Next> = trees.iter().map(|&tree| roots[tree]).collect();
        let levels = Walk::taken(&trees.iter().map(|&tree| levels[tree]).collect::<Vec<_>>());
        // One row at a time is walked.
        let several = cx.b.shape(x)[0].as_const().is_none_or(|rows| rows > 1);
        let masks = match several && dtype == DType::F32 {
            true => Masks::of(&steps, &columns, &roots),
            false => None,
        };
        // Before there is a walk: of millions of nodes, masks that do not pay take as much memory.
        let masks = masks.filter(|masks| {
            Leaves::may_pay(&tuning::Forest {
                trees: roots.len() as u64,
                steps: count(&levels) as u64,
                tests: masks.places.len() as u64,
                intervals: masks.intervals,
                columns: columns.count() as u64,
            })
        });
        let walk = Walk::of(&steps, &roots, levels, &columns);
        drop(steps);
        emit(cx, (x, dtype), walk, masks, &columns)
    }

    /// The target that each tree votes for, if all leaves of a tree vote for the same one, once.
    fn targets_of_trees(&self, order: &[u32]) -> Option<Vec<u32>> {
        let of_leaf = |leaf: u32| match self.leaves.of(leaf as usize) {
            [vote] => Some(vote.target),
            _ => None,
        };
        let mut of_branches: Vec<Option<u32>> = vec![None; self.branches.len()];
        let of = |of_branches: &[Option<u32>], place: NodePlace| match place {
            NodePlace::Branch(at) => of_branches[at as usize],
            NodePlace::Leaf(at) => of_leaf(at),
        };
        for &at in order {
            let branch = &self.branches[at as usize];
            let (pass, fail) = (of(&of_branches, branch.pass.get()), of(&of_branches, branch.fail.get()));
            of_branches[at as usize] = pass.filter(|_| pass == fail);
        }
        self.roots.iter().map(|&root| of(&of_branches, root)).collect()
    }
}

fn count(levels: &[i32]) -> usize {
    levels.iter().map(|&levels| levels as usize).sum()
}

fn emit(
    cx: &mut NodeCx<'_, '_>,
    (x, dtype): (ValueId, DType),
    walk: Walk,
    masks: Option<Masks>,
    columns: &Columns,
) -> Result<ValueId> {
    let steps = count(&walk.levels);
    fn list(cx: &mut NodeCx<'_, '_>, list: Vec<i32>) -> ValueId {
        cx.b.constant(Data::from_slice(&[list.len()], &list))
    }
    let bounds = |cx: &mut NodeCx<'_, '_>, list: Vec<f64>| constant(cx, dtype, &[list.len()], list);
    let masked = masks.as_ref().map(|masks| masks.intervals);
    let operands = trees::Operands {
        x,
        columns: list(cx, columns.features()),
        limits: list(cx, columns.limits()),
        roots: list(cx, walk.roots),
        levels: list(cx, walk.levels),
        leaves: list(cx, walk.leaves),
        places: list(cx, walk.places),
        next: list(cx, walk.next),
        lows: bounds(cx, walk.lows),
        highs: walk.highs.map(|highs| bounds(cx, highs)),
        starts: walk.starts.map(|starts| list(cx, starts)),
        masks: masks.map(|masks| trees::Masks {
            trees: list(cx, masks.trees),
            words: list(cx, masks.words),
            bases: list(cx, masks.bases),
            order: list(cx, masks.order),
            places: list(cx, masks.places),
            bits: list(cx, masks.bits),
            lows: bounds(cx, masks.lows),
            highs: masks.intervals.then(|| bounds(cx, masks.highs)),
        }),
    };
    let trees = Trees {
        features: columns.features().iter().max().map_or(0, |&most| most as usize + 1),
        steps,
        plain: columns.plain.len(),
        categories: columns.categories.len(),
        copied: columns.copied(),
        two_sided: columns.intervals,
        masks: masked,
    };
    cx.b.emit1(Op::Leaves(trees), &operands.inputs())
}

/// Numbers in the forest's type.
pub(super) fn constant(cx: &mut NodeCx<'_, '_>, dtype: DType, shape: &[usize], numbers: Vec<f64>) -> ValueId {
    let data = Data::from_slice(shape, &numbers);
    drop(numbers);
    cx.b.constant(onnxc_ir::interp::cast(&data, dtype, true))
}

/// The votes for a target, or all, as one; without any what changes no other. Sums begin with +0, so that one without votes is +0.
fn combined(votes: &[Vote], target: Option<u32>, function: ReduceFn) -> f64 {
    let votes = votes.iter().filter(|vote| target.is_none_or(|target| vote.target == target));
    let weights = votes.map(|vote| vote.weight);
    match function {
        ReduceFn::Min => weights.fold(f64::INFINITY, f64::min),
        ReduceFn::Max => weights.fold(f64::NEG_INFINITY, f64::max),
        _ => weights.fold(0.0, |sum, weight| sum + weight),
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::Ask;
    use super::*;

    fn ballots(leaves: &[&[Vote]]) -> Ballots {
        let mut ballots = Ballots::default();
        leaves.iter().for_each(|votes| ballots.push(votes));
        ballots
    }

    /// Whether a value passes, by the steps that a branch becomes.
    fn passes(test: &Test, nan_passes: bool, dtype: DType, value: f64) -> bool {
        let (pass, fail) = (NodePlace::Leaf(0), NodePlace::Leaf(1));
        let branch =
            Branch { feature: 0, test: test.clone(), nan_passes, pass: pass.into(), fail: fail.into() };
        let root = NodePlace::Branch(0);
        let leaves = ballots(&[&[], &[]]);
        let forest = Forest { dtype, branches: vec![branch], leaves, roots: vec![root] };
        let (steps, roots, columns) = steps(&forest, &[0]);
        let mut at = roots[0];
        while let Next::Step(step) = at {
            let step = &steps[step as usize];
            let right = match &step.ask {
                Ask::Interval(interval) => interval.low <= value && value <= interval.high,
                Ask::Category(numbers) => numbers.of(columns.category(0, value)),
            };
            at = if right { step.right } else { step.left };
        }
        at == Next::Leaf(0)
    }

    type Compare = fn(f64, f64) -> bool;

    #[test]
    fn tests_as_intervals_are_comparisons() {
        let bounds = [
            0.0,
            -0.0,
            1.5,
            -2.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            f64::from(f32::MAX),
            f64::from(1e-45f32),
        ];
        for dtype in [DType::F32, DType::F64] {
            let near = |bound: f64| [bound, next_up(bound, dtype), -next_up(-bound, dtype)];
            let values: Vec<f64> = bounds.iter().flat_map(|&bound| near(bound)).collect();
            for bound in bounds {
                let cases: [(Test, Compare); 7] = [
                    (Test::AtMost(bound), |x, bound| x <= bound),
                    (Test::Below(bound), |x, bound| x < bound),
                    (Test::AtLeast(bound), |x, bound| x >= bound),
                    (Test::Above(bound), |x, bound| x > bound),
                    (Test::Equal(bound), |x, bound| x == bound),
                    (Test::NotEqual(bound), |x, bound| x != bound),
                    (Test::Member(vec![3.0, bound, -1.0].into()), |x, bound| {
                        x == bound || x == 3.0 || x == -1.0
                    }),
                ];
                for (test, wanted) in cases {
                    for &value in &values {
                        for nan_passes in [false, true] {
                            let wanted = if value.is_nan() { nan_passes } else { wanted(value, bound) };
                            let found = passes(&test, nan_passes, dtype, value);
                            assert_eq!(found, wanted, "{value} {test:?}, NaN passes: {nan_passes}, {dtype}");
                        }
                    }
                }
            }
        }
        assert!(!passes(&Test::Member(vec![].into()), false, DType::F32, 0.0));
        assert!(passes(&Test::Member(vec![].into()), true, DType::F32, f64::NAN));
    }

    /// As exporters write a set: each member is asked for by itself, with a copy of what follows.
    #[test]
    fn chains_of_equalities_with_copies_are_sets() {
        let vote = |weight| Vote { target: 0, weight };
        let ask = |feature, test, pass: NodePlace, fail: NodePlace| {
            let (pass, fail) = (pass.into(), fail.into());
            Branch { feature, test, nan_passes: false, pass, fail }
        };
        let (a, b) = (NodePlace::Leaf(0), NodePlace::Leaf(1));
        let other = |at: u32| ask(1, Test::AtMost(0.5), NodePlace::Leaf(2 * at), NodePlace::Leaf(2 * at + 1));
        let branches = vec![
            ask(0, Test::Equal(3.0), NodePlace::Branch(2), NodePlace::Branch(1)),
            ask(0, Test::Equal(5.0), NodePlace::Branch(3), b),
            other(0),
            other(1),
            ask(0, Test::Equal(5.0), a, a),
        ];
        let leaves = ballots(&[&[vote(1.0)], &[vote(2.0)], &[vote(1.0)], &[vote(2.0)]]);
        let roots = vec![NodePlace::Branch(0), NodePlace::Branch(4)];
        let simple = Forest { dtype: DType::F32, branches, leaves, roots }.simplified().unwrap();
        let set = ask(0, Test::Member(vec![3.0, 5.0].into()), NodePlace::Branch(0), b);
        assert_eq!(simple.branches[simple.branches.len() - 1], set);
        let NodePlace::Branch(root) = simple.roots[0] else { panic!("{:?}", simple.roots) };
        assert_eq!((&simple.branches[root as usize], simple.roots[1]), (&set, a));
        assert_eq!(simple.leaves, ballots(&[&[vote(1.0)], &[vote(2.0)]]));
    }

    #[test]
    fn a_node_that_follows_itself_is_found() {
        let branch = |pass: NodePlace, fail: NodePlace| {
            let (pass, fail) = (pass.into(), fail.into());
            Branch { feature: 0, test: Test::AtMost(0.0), nan_passes: false, pass, fail }
        };
        let leaf = NodePlace::Leaf(0);
        let shared = [
            branch(NodePlace::Branch(1), NodePlace::Branch(2)),
            branch(NodePlace::Branch(2), leaf),
            branch(leaf, leaf),
        ];
        assert_eq!(post_order(&shared, &[NodePlace::Branch(0), NodePlace::Branch(1)]).unwrap(), [2, 1, 0]);
        let ring = [branch(NodePlace::Branch(1), leaf), branch(leaf, NodePlace::Branch(0))];
        let error = post_order(&ring, &[NodePlace::Branch(0)]).unwrap_err();
        assert!(error.message.contains("follows itself"), "{error}");
    }
}
