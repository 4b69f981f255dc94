//! The nodes of trees as they are walked: the nodes on both sides of a step are neighbours, so that a test gives the next one without a
//! branch.

use onnxc_ir::graph::Trees;

use super::steps::{Ask, Columns, Next, TreeStep};

/// The lists that [`onnxc_ir::graph::Op::Leaves`] has for this.
pub(super) struct Walk {
    pub roots: Vec<i32>,
    pub levels: Vec<i32>,
    pub leaves: Vec<i32>,
    pub places: Vec<i32>,
    pub next: Vec<i32>,
    pub lows: Vec<f64>,
    pub highs: Option<Vec<f64>>,
    pub starts: Option<Vec<i32>>,
}

impl Walk {
    /// Steps of the longest path of each tree. Steps come after those that follow them.
    pub(super) fn levels(steps: &[TreeStep], roots: &[Next]) -> Vec<i32> {
        let mut depths = Vec::with_capacity(steps.len());
        let of = |depths: &[i32], next: Next| match next {
            Next::Step(next) => depths[next as usize],
            Next::Leaf(_) => 0,
        };
        for step in steps {
            depths.push(1 + of(&depths, step.left).max(of(&depths, step.right)));
        }
        roots.iter().map(|&root| of(&depths, root)).collect()
    }

    /// Steps that each tree takes, given the length of its longest path. Trees side by side take the steps of the deepest one.
    pub(super) fn taken(levels: &[i32]) -> Vec<i32> {
        let most = |group: &[i32]| vec![group.iter().copied().max().unwrap_or(0); group.len()];
        levels.chunks(Trees::SIDE_BY_SIDE).flat_map(most).collect()
    }

    /// `levels`: the steps that each tree takes.
    pub(super) fn of(steps: &[TreeStep], roots: &[Next], levels: Vec<i32>, columns: &Columns) -> Walk {
        let mut nodes = vec![];
        // Where what follows a step is; before it there is a root.
        let mut pairs = vec![0u32; steps.len()];
        let mut next: Vec<i32> = vec![];
        let mut firsts = Vec::with_capacity(roots.len());
        // Tree by tree, the upper levels first.
        for &root in roots {
            firsts.push(nodes.len() as i32);
            nodes.push(root);
            while let Some(&node) = nodes.get(next.len()) {
                let here = next.len();
                let after = match node {
                    Next::Leaf(_) => here,
                    Next::Step(step) => {
                        let pair = &mut pairs[step as usize];
                        if *pair == 0 {
                            *pair = nodes.len() as u32;
                            nodes.extend([steps[step as usize].left, steps[step as usize].right]);
                        }
                        *pair as usize
                    }
                };
                next.push(after as i32);
            }
        }
        let mut walk = Walk {
            roots: firsts,
            levels,
            leaves: vec![],
            places: vec![],
            next,
            lows: vec![],
            highs: columns.intervals.then(Vec::new),
            starts: (!columns.categories.is_empty()).then(Vec::new),
        };
        drop(pairs);
        walk.fill(steps, &nodes, columns);
        walk
    }

    fn fill(&mut self, steps: &[TreeStep], nodes: &[Next], columns: &Columns) {
        // No number is at least NaN: leaves are followed by themselves, for any column that they compare.
        let most = columns.categories.values().max().map_or(0, |&limit| limit + 2);
        let of_leaves = if self.starts.is_some() { most } else { 0 };
        self.bounds(vec![(f64::NAN, f64::NAN); of_leaves]);
        for &node in nodes {
            let step = match node {
                Next::Leaf(leaf) => {
                    self.leaves.push(leaf as i32);
                    self.places.push(0);
                    match &mut self.starts {
                        Some(starts) => starts.push(0),
                        None => self.bounds(vec![(f64::NAN, f64::NAN)]),
                    }
                    continue;
                }
                Next::Step(step) => &steps[step as usize],
            };
            self.leaves.push(0);
            self.places
                .push(if columns.copied() { columns.place(step) } else { step.feature as usize } as i32);
            let start = self.lows.len() as i32;
            if let Some(starts) = &mut self.starts {
                starts.push(start);
            }
            self.bounds(match &step.ask {
                Ask::Interval(interval) => {
                    let interval = columns.bounds(*interval);
                    vec![(interval.low, interval.high)]
                }
                Ask::Category(numbers) => (0..columns.entries(step.feature))
                    .map(|number| if numbers.of(number) { 0.0 } else { f64::NAN })
                    .map(|low| (low, f64::INFINITY))
                    .collect(),
            });
        }
    }

    fn bounds(&mut self, bounds: Vec<(f64, f64)>) {
        self.lows.extend(bounds.iter().map(|bound| bound.0));
        if let Some(highs) = &mut self.highs {
            highs.extend(bounds.iter().map(|bound| bound.1));
        }
    }
}
