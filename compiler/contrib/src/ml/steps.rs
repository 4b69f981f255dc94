//! Trees as steps: each goes to the left or to the right by one test of one column.

use std::collections::{BTreeMap, BTreeSet};

use super::forest::{Branch, Forest, Interval, NodePlace, Test};
use onnxc_ir::graph::DType;

/// Categories of a feature are numbers below this.
const MAX_CATEGORIES: usize = 256;
/// Columns that a kernel's frame has room for.
const MAX_COPIED: usize = 1024;

/// What a step asks.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Ask {
    /// To the right where the feature is in the interval, which NaN is not.
    Interval(Interval),
    /// To the right by the number of a category. Boxed, for steps to be small.
    Category(Box<Categories>),
}

/// Which categories go to the right: those that are listed or, `inverted`, the others; and whether NaN does.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Categories {
    listed: BTreeSet<usize>,
    inverted: bool,
    nan: bool,
    /// The number that stands for NaN.
    nan_index: usize,
}

impl Categories {
    pub(super) fn of(&self, index: usize) -> bool {
        if index == self.nan_index { self.nan } else { self.listed.contains(&index) != self.inverted }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Next {
    Step(u32),
    Leaf(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct TreeStep {
    pub feature: u32,
    pub ask: Ask,
    pub left: Next,
    pub right: Next,
}

/// The columns that steps compare: features, their opposites, and the numbers of categories.
#[derive(Default, Debug)]
pub(super) struct Columns {
    /// Whether steps have bounds from both sides. Else a bound from above is one from below of the feature's opposite.
    pub intervals: bool,
    pub plain: Vec<u32>,
    pub opposite: Vec<u32>,
    /// Features and how many categories they have; other numbers count as one more, and NaN as another.
    pub categories: BTreeMap<u32, usize>,
}

fn is_opposite(interval: &Interval) -> bool {
    interval.high != f64::INFINITY
}

impl Columns {
    fn of(steps: &[TreeStep], categories: BTreeMap<u32, usize>, copied: bool) -> Columns {
        let bounds = || {
            steps.iter().filter_map(|step| match step.ask {
                Ask::Interval(interval) => Some((step.feature, interval)),
                Ask::Category(_) => None,
            })
        };
        let opposite =
            |interval: &Interval| is_opposite(interval) && (!copied || interval.low != f64::NEG_INFINITY);
        let intervals = bounds().any(|(_, interval)| opposite(&interval));
        let of = |opposite: bool| {
            let wanted = bounds().filter(|(_, interval)| opposite == (!intervals && is_opposite(interval)));
            let features: BTreeSet<u32> = wanted.map(|(feature, _)| feature).collect();
            features.into_iter().collect()
        };
        let (plain, opposite) = (of(false), of(true));
        Columns { intervals, plain, opposite, categories }
    }

    /// Whether a row's columns are not those of the input alone.
    pub(super) fn copied(&self) -> bool {
        !(self.opposite.is_empty() && self.categories.is_empty())
    }

    /// The features of all columns.
    pub(super) fn features(&self) -> Vec<i32> {
        let features = self.plain.iter().chain(&self.opposite).chain(self.categories.keys());
        features.map(|&feature| feature as i32).collect()
    }

    /// How many categories there are of each feature that has some.
    pub(super) fn limits(&self) -> Vec<i32> {
        self.categories.values().map(|&limit| limit as i32).collect()
    }

    /// The number of a feature's category.
    #[cfg(test)]
    pub(super) fn category(&self, feature: u32, value: f64) -> usize {
        let limit = self.categories[&feature];
        if value.is_nan() { limit + 1 } else { category(value).map_or(limit, |number| number.min(limit)) }
    }

    pub(super) fn count(&self) -> usize {
        self.plain.len() + self.opposite.len() + self.categories.len()
    }

    /// Numbers that the column of a feature's categories has.
    pub(super) fn entries(&self, feature: u32) -> usize {
        self.categories[&feature] + 2
    }

    /// The column that a step compares.
    pub(super) fn place(&self, step: &TreeStep) -> usize {
        let position = |of: &[u32]| of.binary_search(&step.feature).expect("columns hold every feature");
        match step.ask {
            Ask::Category(_) => {
                self.plain.len() + self.opposite.len() + self.categories.range(..step.feature).count()
            }
            Ask::Interval(interval) if !self.intervals && is_opposite(&interval) => {
                self.plain.len() + position(&self.opposite)
            }
            Ask::Interval(_) => position(&self.plain),
        }
    }

    /// The bounds of the column for an interval of the feature.
    pub(super) fn bounds(&self, interval: Interval) -> Interval {
        if !self.intervals && is_opposite(&interval) {
            return Interval { low: -interval.high, high: f64::INFINITY };
        }
        interval
    }
}

/// Number of a category, if it is one that a list can hold.
fn category(value: f64) -> Option<usize> {
    let number = value as usize;
    (number < MAX_CATEGORIES && number as f64 == value).then_some(number)
}

/// The categories that a test lists, and whether they fail.
fn listed(test: &Test) -> Option<(BTreeSet<usize>, bool)> {
    let (values, inverted) = match test {
        Test::Equal(value) => (std::slice::from_ref(value), false),
        Test::NotEqual(value) => (std::slice::from_ref(value), true),
        Test::Member(values) => (values.as_slice(), false),
        _ => return None,
    };
    Some((values.iter().map(|&value| category(value)).collect::<Option<_>>()?, inverted))
}

/// The steps of a forest's branches, given in an order in which each comes after those that follow it; where each tree begins; and
/// the columns.
pub(super) fn steps(forest: &Forest, order: &[u32]) -> (Vec<TreeStep>, Vec<Next>, Columns) {
    let found = steps_of(forest, order, true);
    // Without a copy of the columns there are no categories.
    if found.2.count() <= MAX_COPIED || !found.2.copied() {
        return found;
    }
    drop(found);
    steps_of(forest, order, false)
}

fn steps_of(forest: &Forest, order: &[u32], copied: bool) -> (Vec<TreeStep>, Vec<Next>, Columns) {
    let listed = |test: &Test| listed(test).filter(|_| copied);
    let mut categories: BTreeMap<u32, usize> = BTreeMap::new();
    for &at in order {
        let branch = &forest.branches[at as usize];
        if let Some((listed, _)) = listed(&branch.test) {
            let count = categories.entry(branch.feature).or_default();
            *count = listed.last().map_or(0, |&last| last + 1).max(*count);
        }
    }
    let mut steps = Vec::with_capacity(order.len());
    let mut firsts = vec![Next::Leaf(0); forest.branches.len()];
    let next = |firsts: &[Next], place: NodePlace| match place {
        NodePlace::Branch(at) => firsts[at as usize],
        NodePlace::Leaf(leaf) => Next::Leaf(leaf),
    };
    for &at in order {
        let branch = &forest.branches[at as usize];
        let (pass, fail) = (next(&firsts, branch.pass.get()), next(&firsts, branch.fail.get()));
        firsts[at as usize] = match listed(&branch.test) {
            Some((listed, inverted)) => {
                let nan_index = categories[&branch.feature] + 1;
                let nan = branch.nan_passes;
                let ask = Ask::Category(Box::new(Categories { listed, inverted, nan, nan_index }));
                push(&mut steps, branch, ask, fail, pass)
            }
            None => add(&mut steps, branch, forest.dtype, pass, fail),
        };
    }
    let roots = forest.roots.iter().map(|&root| next(&firsts, root)).collect();
    let columns = Columns::of(&steps, categories, copied);
    (steps, roots, columns)
}

fn push(steps: &mut Vec<TreeStep>, branch: &Branch, ask: Ask, left: Next, right: Next) -> Next {
    steps.push(TreeStep { feature: branch.feature, ask, left, right });
    Next::Step(steps.len() as u32 - 1)
}

/// Adds what a branch asks, as intervals.
fn add(steps: &mut Vec<TreeStep>, branch: &Branch, dtype: DType, pass: Next, fail: Next) -> Next {
    let mut intervals = branch.test.intervals(dtype);
    intervals.retain(|interval| interval.low <= interval.high);
    let mut ask = |interval: Interval, left: Next, right: Next| {
        push(steps, branch, Ask::Interval(interval), left, right)
    };
    if let Test::NotEqual(_) = branch.test {
        let differs = intervals.first().map_or(pass, |&interval| ask(interval, pass, fail));
        return if branch.nan_passes { differs } else { ask(Interval::ALL, fail, differs) };
    }
    if branch.nan_passes
        && let [interval] = intervals.as_slice()
        && let Some(outside) = interval.complement(dtype)
    {
        // Of all numbers nothing is outside.
        return if outside.low <= outside.high { ask(outside, pass, fail) } else { pass };
    }
    let first = intervals.iter().rev().fold(fail, |after, &interval| ask(interval, after, pass));
    // NaN, which is in none of them, is asked for first.
    if branch.nan_passes { ask(Interval::ALL, pass, first) } else { first }
}
