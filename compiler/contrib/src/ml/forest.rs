//! Decision trees: the tests of their nodes as intervals, the votes of their leaves as tables.
//!
//! Every comparison of a feature with a number asks whether it lies in an interval of floats, so that one primitive,
//! [`Op::Leaves`], does for all kinds of trees. NaN lies in no interval; where it must take the first branch, the complement is asked for.

use std::collections::HashMap;

use super::masks::Masks;
use super::steps::{Columns, Next, TreeStep, steps};
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
    Member(Vec<f64>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NodePlace {
    Branch(usize),
    Leaf(usize),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Branch {
    pub feature: usize,
    pub test: Test,
    /// Whether NaN passes the test.
    pub nan_passes: bool,
    pub pass: NodePlace,
    pub fail: NodePlace,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Vote {
    pub target: usize,
    pub weight: f64,
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
    /// The votes of each leaf.
    pub leaves: Vec<Vec<Vote>>,
    pub roots: Vec<NodePlace>,
}

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
fn post_order(branches: &[Branch], roots: &[NodePlace]) -> Result<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; branches.len()];
    let mut order = Vec::with_capacity(branches.len());
    let mut stack: Vec<usize> = Vec::new();
    for &root in roots {
        if let NodePlace::Branch(root) = root {
            stack.push(root);
        }
        while let Some(&at) = stack.last() {
            if states[at] != State::New {
                stack.pop();
                if states[at] == State::Open {
                    states[at] = State::Done;
                    order.push(at);
                }
                continue;
            }
            states[at] = State::Open;
            for place in [branches[at].fail, branches[at].pass] {
                match place {
                    NodePlace::Branch(next) if states[next] == State::Open => {
                        return malformed(format!("node {next} of the trees follows itself"));
                    }
                    NodePlace::Branch(next) if states[next] == State::New => stack.push(next),
                    _ => {}
                }
            }
        }
    }
    Ok(order)
}

/// What a place is: equal places are one.
#[derive(PartialEq, Eq, Hash)]
enum Content {
    Leaf(Vec<(usize, u64)>),
    Branch { feature: usize, kind: u8, bounds: Vec<u64>, nan_passes: bool, pass: NodePlace, fail: NodePlace },
}

impl Content {
    fn of(branch: &Branch) -> Content {
        let (kind, bounds) = match &branch.test {
            Test::AtMost(bound) => (0, std::slice::from_ref(bound)),
            Test::Below(bound) => (1, std::slice::from_ref(bound)),
            Test::AtLeast(bound) => (2, std::slice::from_ref(bound)),
            Test::Above(bound) => (3, std::slice::from_ref(bound)),
            Test::Equal(bound) => (4, std::slice::from_ref(bound)),
            Test::NotEqual(bound) => (5, std::slice::from_ref(bound)),
            Test::Member(bounds) => (6, bounds.as_slice()),
        };
        let bounds = bounds.iter().map(|bound| bound.to_bits()).collect();
        let Branch { feature, nan_passes, pass, fail, .. } = *branch;
        Content::Branch { feature, kind, bounds, nan_passes, pass, fail }
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
    fn simplified(&self) -> Result<Forest> {
        let mut known: HashMap<Content, NodePlace> = HashMap::new();
        let mut simple = Forest { dtype: self.dtype, branches: vec![], leaves: vec![], roots: vec![] };
        let mut places: Vec<NodePlace> = vec![NodePlace::Leaf(0); self.branches.len()];
        let leaves: Vec<NodePlace> = self
            .leaves
            .iter()
            .map(|votes| {
                let content = votes.iter().map(|vote| (vote.target, vote.weight.to_bits())).collect();
                *known.entry(Content::Leaf(content)).or_insert_with(|| {
                    simple.leaves.push(votes.clone());
                    NodePlace::Leaf(simple.leaves.len() - 1)
                })
            })
            .collect();
        let new = |places: &[NodePlace], place: NodePlace| match place {
            NodePlace::Branch(at) => places[at],
            NodePlace::Leaf(at) => leaves[at],
        };
        for at in post_order(&self.branches, &self.roots)? {
            let old = &self.branches[at];
            let mut branch =
                Branch { pass: new(&places, old.pass), fail: new(&places, old.fail), ..old.clone() };
            if let NodePlace::Branch(next) = branch.fail
                && let next = &simple.branches[next]
                && (next.feature, next.nan_passes, next.pass)
                    == (branch.feature, branch.nan_passes, branch.pass)
                && let (Some(some), Some(others)) = (members(&branch.test), members(&next.test))
            {
                (branch.test, branch.fail) = (Test::Member([some, others].concat()), next.fail);
            }
            places[at] = match branch.pass == branch.fail {
                true => branch.pass,
                false => *known.entry(Content::of(&branch)).or_insert_with(|| {
                    simple.branches.push(branch);
                    NodePlace::Branch(simple.branches.len() - 1)
                }),
            };
        }
        simple.roots = self.roots.iter().map(|&root| new(&places, root)).collect();
        Ok(simple)
    }

    /// The votes of all trees for each row of the node's first input, `[n, f]`: `[n, targets]` in the forest's type.
    pub(super) fn scores(
        &self,
        cx: &mut NodeCx<'_, '_>,
        targets: usize,
        aggregate: Aggregate,
    ) -> Result<ValueId> {
        if let Some(vote) = self.leaves.iter().flatten().find(|vote| vote.target >= targets) {
            return malformed(format!("a leaf votes for target {} of {targets}", vote.target));
        }
        if self.roots.is_empty() {
            return malformed("there are no trees".to_string());
        }
        let x = cx.input(0)?;
        let x = cx.b.cast(x, self.dtype)?;
        let simple = self.simplified()?;
        let order = post_order(&simple.branches, &simple.roots)?;
        simple.sum(cx, x, targets, aggregate, &order)
    }

    fn sum(
        &self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        targets: usize,
        aggregate: Aggregate,
        order: &[usize],
    ) -> Result<ValueId> {
        let rows = cx.b.shape(x)[0].clone();
        let function = match aggregate {
            Aggregate::Sum | Aggregate::Average => ReduceFn::Sum,
            Aggregate::Min => ReduceFn::Min,
            Aggregate::Max => ReduceFn::Max,
        };
        // Trees that vote for one target each, with equal numbers of trees per target, are added up target by target.
        let single = self.targets_of_trees(order).filter(|of| {
            let mut counts = vec![0; targets];
            of.iter().for_each(|&target| counts[target] += 1);
            counts.iter().all(|&count| count == counts[0])
        });
        let mut scores = match single {
            Some(of) => {
                let leaves = self.reached(cx, x, order, Some(&of))?;
                let weights: Vec<f64> =
                    self.leaves.iter().map(|votes| combined(votes, None, function)).collect();
                let weights = self.constant(cx, &[weights.len()], &weights);
                let each = cx.b.emit1(Op::Gather { axis: 0 }, &[weights, leaves])?;
                let per_target = Dim::from(self.roots.len() / targets);
                let each = cx.b.reshape(each, vec![rows.clone(), Dim::from(targets), per_target])?;
                cx.b.reduce(function, each, &[2])?
            }
            None => {
                if self.leaves.len().saturating_mul(targets) > MAX_TABLE {
                    let count = self.leaves.len();
                    return unsupported(format!("a table of {count} leaves by {targets} targets"));
                }
                let leaves = self.reached(cx, x, order, None)?;
                let weights: Vec<f64> = self
                    .leaves
                    .iter()
                    .flat_map(|votes| (0..targets).map(|target| combined(votes, Some(target), function)))
                    .collect();
                let weights = self.constant(cx, &[self.leaves.len(), targets], &weights);
                let each = cx.b.emit1(Op::Gather { axis: 0 }, &[weights, leaves])?;
                cx.b.reduce(function, each, &[1])?
            }
        };
        scores = cx.b.reshape(scores, vec![rows, Dim::from(targets)])?;
        match aggregate {
            Aggregate::Sum => Ok(scores),
            Aggregate::Average => cx.b.binary_scalar(BinaryFn::Div, scores, self.roots.len() as f64),
            Aggregate::Min | Aggregate::Max => {
                // What no leaf votes for is 0.
                let none = combined(&[], None, function);
                let (none, zero) = (cx.b.scalar(self.dtype, none), cx.b.scalar(self.dtype, 0.0));
                let is_none = cx.b.compare(CompareFn::Eq, scores, none)?;
                cx.b.select(is_none, zero, scores)
            }
        }
    }

    /// The leaf that each row reaches in each tree; the trees `of` each target side by side, if these are given.
    fn reached(
        &self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        order: &[usize],
        of: Option<&[usize]>,
    ) -> Result<ValueId> {
        let (steps, roots, columns) = steps(self, order);
        let levels = Walk::levels(&steps, &roots);
        // Trees that are walked side by side take the steps of the deepest one.
        let mut trees: Vec<usize> = (0..roots.len()).collect();
        trees.sort_by_key(|&tree| (of.map(|of| of[tree]), levels[tree]));
        let roots: Vec<Next> = trees.iter().map(|&tree| roots[tree]).collect();
        let levels: Vec<i32> = trees.iter().map(|&tree| levels[tree]).collect();
        let walk = Walk::of(&steps, &roots, &levels, &columns);
        self.emit(cx, x, (&steps, &roots), &walk, &columns)
    }

    fn emit(
        &self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        (steps, roots): (&[TreeStep], &[Next]),
        walk: &Walk,
        columns: &Columns,
    ) -> Result<ValueId> {
        let count = walk.levels.iter().map(|&levels| levels as usize).sum();
        // One row at a time is walked.
        let several = cx.b.shape(x)[0].as_const().is_none_or(|rows| rows > 1);
        let masks = match several && self.dtype == DType::F32 {
            true => Masks::of(steps, columns, roots),
            false => None,
        };
        let masks = masks.filter(|masks| {
            Leaves::may_pay(&tuning::Forest {
                trees: roots.len() as u64,
                steps: count as u64,
                tests: masks.places.len() as u64,
                intervals: masks.intervals,
                columns: columns.count() as u64,
            })
        });
        let list =
            |cx: &mut NodeCx<'_, '_>, list: &[i32]| cx.b.constant(Data::from_slice(&[list.len()], list));
        let bounds = |cx: &mut NodeCx<'_, '_>, list: &[f64]| self.constant(cx, &[list.len()], list);
        let operands = trees::Operands {
            x,
            columns: list(cx, &columns.features()),
            limits: list(cx, &columns.limits()),
            roots: list(cx, &walk.roots),
            levels: list(cx, &walk.levels),
            leaves: list(cx, &walk.leaves),
            places: list(cx, &walk.places),
            next: list(cx, &walk.next),
            lows: bounds(cx, &walk.lows),
            highs: walk.highs.as_ref().map(|highs| bounds(cx, highs)),
            starts: walk.starts.as_ref().map(|starts| list(cx, starts)),
            masks: masks.as_ref().map(|masks| trees::Masks {
                trees: list(cx, &masks.trees),
                words: list(cx, &masks.words),
                bases: list(cx, &masks.bases),
                order: list(cx, &masks.order),
                places: list(cx, &masks.places),
                bits: list(cx, &masks.bits),
                lows: bounds(cx, &masks.lows),
                highs: masks.intervals.then(|| bounds(cx, &masks.highs)),
            }),
        };
        let trees = Trees {
            features: columns.features().iter().max().map_or(0, |&most| most as usize + 1),
            steps: count,
            plain: columns.plain.len(),
            categories: columns.categories.len(),
            copied: columns.copied(),
            two_sided: columns.intervals,
            masks: masks.map(|masks| masks.intervals),
        };
        cx.b.emit1(Op::Leaves(trees), &operands.inputs())
    }

    /// The target that each tree votes for, if all leaves of a tree vote for the same one, once.
    fn targets_of_trees(&self, order: &[usize]) -> Option<Vec<usize>> {
        let of_leaf = |leaf: usize| match self.leaves[leaf].as_slice() {
            [vote] => Some(vote.target),
            _ => None,
        };
        let mut of_branches: Vec<Option<usize>> = vec![None; self.branches.len()];
        let of = |of_branches: &[Option<usize>], place: NodePlace| match place {
            NodePlace::Branch(at) => of_branches[at],
            NodePlace::Leaf(at) => of_leaf(at),
        };
        for &at in order {
            let branch = &self.branches[at];
            let (pass, fail) = (of(&of_branches, branch.pass), of(&of_branches, branch.fail));
            of_branches[at] = pass.filter(|_| pass == fail);
        }
        self.roots.iter().map(|&root| of(&of_branches, root)).collect()
    }

    /// Numbers in the forest's type.
    pub(super) fn constant(&self, cx: &mut NodeCx<'_, '_>, shape: &[usize], numbers: &[f64]) -> ValueId {
        let data = Data::from_slice(shape, numbers);
        cx.b.constant(onnxc_ir::interp::cast(&data, self.dtype, true))
    }
}

/// The votes for a target, or all, as one; without any what changes no other. Sums begin with +0, so that one without votes is +0.
fn combined(votes: &[Vote], target: Option<usize>, function: ReduceFn) -> f64 {
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

    /// Whether a value passes, by the steps that a branch becomes.
    fn passes(test: &Test, nan_passes: bool, dtype: DType, value: f64) -> bool {
        let (pass, fail) = (NodePlace::Leaf(0), NodePlace::Leaf(1));
        let branch = Branch { feature: 0, test: test.clone(), nan_passes, pass, fail };
        let root = NodePlace::Branch(0);
        let forest = Forest { dtype, branches: vec![branch], leaves: vec![vec![]; 2], roots: vec![root] };
        let (steps, roots, columns) = steps(&forest, &[0]);
        let mut at = roots[0];
        while let Next::Step(step) = at {
            let step = &steps[step];
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
                    (Test::Member(vec![3.0, bound, -1.0]), |x, bound| x == bound || x == 3.0 || x == -1.0),
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
        assert!(!passes(&Test::Member(vec![]), false, DType::F32, 0.0));
        assert!(passes(&Test::Member(vec![]), true, DType::F32, f64::NAN));
    }

    /// As exporters write a set: each member is asked for by itself, with a copy of what follows.
    #[test]
    fn chains_of_equalities_with_copies_are_sets() {
        let vote = |weight| vec![Vote { target: 0, weight }];
        let ask = |feature, test, pass, fail| Branch { feature, test, nan_passes: false, pass, fail };
        let (a, b) = (NodePlace::Leaf(0), NodePlace::Leaf(1));
        let other =
            |at: usize| ask(1, Test::AtMost(0.5), NodePlace::Leaf(2 * at), NodePlace::Leaf(2 * at + 1));
        let branches = vec![
            ask(0, Test::Equal(3.0), NodePlace::Branch(2), NodePlace::Branch(1)),
            ask(0, Test::Equal(5.0), NodePlace::Branch(3), b),
            other(0),
            other(1),
            ask(0, Test::Equal(5.0), a, a),
        ];
        let leaves = vec![vote(1.0), vote(2.0), vote(1.0), vote(2.0)];
        let roots = vec![NodePlace::Branch(0), NodePlace::Branch(4)];
        let simple = Forest { dtype: DType::F32, branches, leaves, roots }.simplified().unwrap();
        let set = ask(0, Test::Member(vec![3.0, 5.0]), NodePlace::Branch(0), b);
        assert_eq!(simple.branches[simple.branches.len() - 1], set);
        let NodePlace::Branch(root) = simple.roots[0] else { panic!("{:?}", simple.roots) };
        assert_eq!((&simple.branches[root], simple.roots[1]), (&set, a));
        assert_eq!(simple.leaves, [vote(1.0), vote(2.0)]);
    }

    #[test]
    fn a_node_that_follows_itself_is_found() {
        let branch =
            |pass, fail| Branch { feature: 0, test: Test::AtMost(0.0), nan_passes: false, pass, fail };
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
