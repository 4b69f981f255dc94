//! Decision trees: the tests of their nodes as intervals, the votes of their leaves as tables.
//!
//! Whatever compares a feature with a number asks whether it lies in an interval of floats, so that one primitive,
//! [`Op::Leaves`], walks all kinds of trees. What follows a node for NaN, which lies in no interval, is told by asking for the
//! complement where it must be the first branch.

use crate::graph::{Op, Tensor as Data};
use crate::op::row::*;

/// What a node asks of its feature.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    Above(f64),
    Equal(f64),
    /// NaN is not equal to any number.
    NotEqual(f64),
    Member(Vec<f64>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    Branch(usize),
    Leaf(usize),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Branch {
    pub feature: usize,
    pub test: Test,
    /// Whether NaN passes the test.
    pub nan_passes: bool,
    pub pass: Place,
    pub fail: Place,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Vote {
    pub target: usize,
    pub weight: f64,
}

/// How the votes of the trees for a target become one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// Trees over the columns of rows of `dtype`, f32 or f64.
pub struct Forest {
    pub dtype: DType,
    pub branches: Vec<Branch>,
    /// The votes of each leaf.
    pub leaves: Vec<Vec<Vote>>,
    pub roots: Vec<Place>,
}

/// Elements that a table of votes has at most.
const MAX_TABLE: usize = 1 << 26;

/// An interval of floats; empty if `low` is above `high`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Interval {
    low: f64,
    high: f64,
}

impl Interval {
    const ALL: Interval = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
    const NONE: Interval = Interval { low: f64::INFINITY, high: f64::NEG_INFINITY };

    /// What is not in the interval, if that is one.
    fn complement(self, dtype: DType) -> Option<Interval> {
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
    /// The intervals in which a number passes; none passes a comparison with NaN.
    fn intervals(&self, dtype: DType) -> Vec<Interval> {
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

/// Nodes of [`Op::Leaves`]: leaves first, numbered as in the forest.
struct Nodes {
    features: Vec<i32>,
    intervals: Vec<Interval>,
    next: Vec<[i32; 2]>,
}

impl Nodes {
    fn new(leaves: usize) -> Nodes {
        Nodes {
            features: vec![0; leaves],
            intervals: vec![Interval::NONE; leaves],
            next: (0..leaves as i32).map(|leaf| [leaf, leaf]).collect(),
        }
    }

    fn push(&mut self, feature: usize, interval: Interval, next: [i32; 2]) -> i32 {
        self.features.push(feature as i32);
        self.intervals.push(interval);
        self.next.push(next);
        self.features.len() as i32 - 1
    }

    /// Adds what a branch asks, with the nodes that follow; the number of its first node.
    fn add(&mut self, branch: &Branch, dtype: DType, pass: i32, fail: i32) -> i32 {
        let feature = branch.feature;
        if let Test::NotEqual(_) = branch.test {
            let interval = branch.test.intervals(dtype)[0];
            return self.push(feature, interval, [fail, pass]);
        }
        let intervals = branch.test.intervals(dtype);
        if branch.nan_passes
            && let [interval] = intervals.as_slice()
            && let Some(outside) = interval.complement(dtype)
        {
            return self.push(feature, outside, [fail, pass]);
        }
        // From the last one on: what is in none of them fails, but for NaN, if that passes.
        let last = match branch.nan_passes {
            true => self.push(feature, Interval::ALL, [fail, pass]),
            false => fail,
        };
        match intervals.as_slice() {
            [] => self.push(feature, Interval::NONE, [pass, last]),
            intervals => intervals
                .iter()
                .rev()
                .fold(last, |after, &interval| self.push(feature, interval, [pass, after])),
        }
    }
}

/// The numbers of nodes in which one comes after all that follow it.
fn post_order(branches: &[Branch], roots: &[Place]) -> Result<Vec<usize>> {
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
        if let Place::Branch(root) = root {
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
                    Place::Branch(next) if states[next] == State::Open => {
                        return malformed(format!("node {next} of the trees follows itself"));
                    }
                    Place::Branch(next) if states[next] == State::New => stack.push(next),
                    _ => {}
                }
            }
        }
    }
    Ok(order)
}

impl Forest {
    /// The votes of all trees for each row of the node's first input, `[n, f]`: `[n, targets]` in the forest's type.
    pub fn scores(&self, cx: &mut NodeCx<'_, '_>, targets: usize, aggregate: Aggregate) -> Result<ValueId> {
        if let Some(vote) = self.leaves.iter().flatten().find(|vote| vote.target >= targets) {
            return malformed(format!("a leaf votes for target {} of {targets}", vote.target));
        }
        if self.roots.is_empty() {
            return malformed("there are no trees".to_string());
        }
        let x = cx.input(0)?;
        let x = cx.b.cast(x, self.dtype)?;
        let rows = cx.b.shape(x)[0].clone();
        let order = post_order(&self.branches, &self.roots)?;
        let function = match aggregate {
            Aggregate::Sum | Aggregate::Average => ReduceFn::Sum,
            Aggregate::Min => ReduceFn::Min,
            Aggregate::Max => ReduceFn::Max,
        };
        // Trees that vote for one target each, as many for each target, are added up target by target.
        let single = self.targets_of_trees(&order).filter(|of| {
            let mut counts = vec![0; targets];
            of.iter().for_each(|&target| counts[target] += 1);
            counts.iter().all(|&count| count == counts[0])
        });
        let mut scores = match single {
            Some(of) => {
                let mut trees: Vec<usize> = (0..self.roots.len()).collect();
                trees.sort_by_key(|&tree| of[tree]);
                let roots: Vec<Place> = trees.iter().map(|&tree| self.roots[tree]).collect();
                let leaves = self.reached(cx, x, &order, &roots)?;
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
                let leaves = self.reached(cx, x, &order, &self.roots)?;
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

    /// The leaf that each row reaches in each tree.
    fn reached(
        &self,
        cx: &mut NodeCx<'_, '_>,
        x: ValueId,
        order: &[usize],
        roots: &[Place],
    ) -> Result<ValueId> {
        let mut nodes = Nodes::new(self.leaves.len());
        // Steps to the end of the longest path, of nodes; the first node of each branch.
        let mut steps = vec![0i32; self.leaves.len()];
        let mut firsts: Vec<i32> = vec![0; self.branches.len()];
        let number = |firsts: &[i32], place: Place| match place {
            Place::Branch(at) => firsts[at],
            Place::Leaf(at) => at as i32,
        };
        for &at in order {
            let branch = &self.branches[at];
            let (pass, fail) = (number(&firsts, branch.pass), number(&firsts, branch.fail));
            firsts[at] = nodes.add(branch, self.dtype, pass, fail);
            for node in steps.len()..nodes.next.len() {
                let [a, b] = nodes.next[node].map(|next| steps[next as usize]);
                steps.push(1 + a.max(b));
            }
        }
        let roots: Vec<i32> = roots.iter().map(|&root| number(&firsts, root)).collect();
        let levels: Vec<i32> = roots.iter().map(|&root| steps[root as usize]).collect();
        let inner = &nodes.intervals[self.leaves.len()..];
        let two_sided = inner.iter().any(|interval| interval.low != f64::NEG_INFINITY);
        let features = nodes.features.iter().max().map_or(0, |&most| most as usize + 1);
        let count = nodes.next.len();
        let next: Vec<i32> = nodes.next.iter().flatten().copied().collect();
        let highs: Vec<f64> = nodes.intervals.iter().map(|interval| interval.high).collect();
        let mut inputs = vec![
            x,
            cx.b.constant(Data::from_slice(&[roots.len()], &roots)),
            cx.b.constant(Data::from_slice(&[levels.len()], &levels)),
            cx.b.constant(Data::from_slice(&[count], &nodes.features)),
            cx.b.constant(Data::from_slice(&[count, 2], &next)),
            self.constant(cx, &[count], &highs),
        ];
        if two_sided {
            let lows: Vec<f64> = nodes.intervals.iter().map(|interval| interval.low).collect();
            inputs.push(self.constant(cx, &[count], &lows));
        }
        cx.b.emit1(Op::Leaves { features, two_sided }, &inputs)
    }

    /// The target that each tree votes for, if all leaves of a tree vote for the same one, once.
    fn targets_of_trees(&self, order: &[usize]) -> Option<Vec<usize>> {
        let of_leaf = |leaf: usize| match self.leaves[leaf].as_slice() {
            [vote] => Some(vote.target),
            _ => None,
        };
        let mut of_branches: Vec<Option<usize>> = vec![None; self.branches.len()];
        let of = |of_branches: &[Option<usize>], place: Place| match place {
            Place::Branch(at) => of_branches[at],
            Place::Leaf(at) => of_leaf(at),
        };
        for &at in order {
            let branch = &self.branches[at];
            let (pass, fail) = (of(&of_branches, branch.pass), of(&of_branches, branch.fail));
            of_branches[at] = pass.filter(|_| pass == fail);
        }
        self.roots.iter().map(|&root| of(&of_branches, root)).collect()
    }

    /// Numbers in the forest's type.
    pub fn constant(&self, cx: &mut NodeCx<'_, '_>, shape: &[usize], numbers: &[f64]) -> ValueId {
        let data = Data::from_slice(shape, numbers);
        cx.b.constant(crate::interp::cast(&data, self.dtype, true))
    }
}

/// The votes for a target, or all, as one; without any what changes no other.
fn combined(votes: &[Vote], target: Option<usize>, function: ReduceFn) -> f64 {
    let votes = votes.iter().filter(|vote| target.is_none_or(|target| vote.target == target));
    let weights = votes.map(|vote| vote.weight);
    match function {
        ReduceFn::Min => weights.fold(f64::INFINITY, f64::min),
        ReduceFn::Max => weights.fold(f64::NEG_INFINITY, f64::max),
        _ => weights.sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a value passes, by the nodes that a branch becomes.
    fn passes(test: &Test, nan_passes: bool, dtype: DType, value: f64) -> bool {
        let mut nodes = Nodes::new(2);
        let (pass, fail) = (Place::Leaf(0), Place::Leaf(1));
        let branch = Branch { feature: 0, test: test.clone(), nan_passes, pass, fail };
        let mut at = nodes.add(&branch, dtype, 0, 1) as usize;
        while at > 1 {
            let Interval { low, high } = nodes.intervals[at];
            at = nodes.next[at][usize::from(!(low <= value && value <= high))] as usize;
        }
        at == 0
    }

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
                let cases: [(Test, fn(f64, f64) -> bool); 7] = [
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
                            let wanted = wanted(value, bound) || nan_passes && value.is_nan();
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

    #[test]
    fn a_node_that_follows_itself_is_found() {
        let branch =
            |pass, fail| Branch { feature: 0, test: Test::AtMost(0.0), nan_passes: false, pass, fail };
        let leaf = Place::Leaf(0);
        let shared =
            [branch(Place::Branch(1), Place::Branch(2)), branch(Place::Branch(2), leaf), branch(leaf, leaf)];
        assert_eq!(post_order(&shared, &[Place::Branch(0), Place::Branch(1)]).unwrap(), [2, 1, 0]);
        let ring = [branch(Place::Branch(1), leaf), branch(leaf, Place::Branch(0))];
        let error = post_order(&ring, &[Place::Branch(0)]).unwrap_err();
        assert!(error.message.contains("follows itself"), "{error}");
    }
}
