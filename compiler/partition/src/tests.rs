//! Drawn graphs with drawn shardings: all ranks, run in one process, against one.
//!
//! `ONNXC_RANK_GRAPHS` is how many are drawn.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;

use onnxc_ir::build::Builder;
use onnxc_ir::graph::arrangement::{Arrangement, CutAxis, Sharding};
use onnxc_ir::graph::{
    DType, Dim, Graph, MapFn, Op, Origin, RhsLayout, Symbol, Tensor, TensorType, Transfer, ValueId, parse,
    print,
};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

use crate::partition;

/// Graphs that a test draws where the environment does not say how many.
const DRAWN: u64 = 300;

/// A time that no rank waits for, on however slow a machine.
const HANG: Duration = Duration::from_secs(45 * 60);

/// A graph while it is drawn, and sizes of its symbols.
struct Draw<'r> {
    rng: &'r mut Rng,
    /// Numbers are small integers, so that sums are exact in every order.
    exact: bool,
    pool: Vec<ValueId>,
}

impl Draw<'_> {
    fn number(&mut self) -> f32 {
        match self.exact {
            true => self.rng.i32(-3..=3) as f32,
            false => self.rng.f32() * 2.0 - 1.0,
        }
    }

    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let count = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| self.number()).collect();
        Tensor::from_slice(shape, &numbers)
    }

    fn pick(&mut self) -> ValueId {
        self.pool[self.rng.usize(0..self.pool.len())]
    }

    /// Keeps numbers small.
    fn clamped(&mut self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let (low, high) = (b.scalar(DType::F32, -4.0), b.scalar(DType::F32, 4.0));
        let x = b.emit1(Op::Map(MapFn::Binary(BinaryFn::Max)), &[x, low]).expect("valid");
        b.emit1(Op::Map(MapFn::Binary(BinaryFn::Min)), &[x, high]).expect("valid")
    }

    fn axis(&mut self, b: &Builder<'_>, x: ValueId) -> Option<usize> {
        let rank = b.rank(x);
        (rank > 0).then(|| self.rng.usize(0..rank))
    }

    /// One more value, if what is drawn fits.
    fn step(&mut self, b: &mut Builder<'_>) -> Option<ValueId> {
        let x = self.pick();
        let shape = b.shape(x);
        let rank = shape.len();
        let size = |dim: &Dim| dim.as_const().map(|size| size as usize);
        Some(match self.rng.u32(0..16) {
            0 => b.emit1(Op::Map(MapFn::Unary(UnaryFn::Neg)), &[x]).ok()?,
            1 => {
                let y = self.pick();
                (b.shape(y) == shape).then_some(())?;
                let sum = b.emit1(Op::Map(MapFn::Binary(BinaryFn::Add)), &[x, y]).ok()?;
                self.clamped(b, sum)
            }
            2 => {
                self.axis(b, x)?;
                let bias = self.tensor(&[size(&shape[rank - 1]).unwrap_or(1)]);
                let bias = b.constant(bias);
                let sum = b.emit1(Op::Map(MapFn::Binary(BinaryFn::Add)), &[x, bias]).ok()?;
                self.clamped(b, sum)
            }
            3..=5 => {
                // A product with weights.
                let k = size(shape.last()?)?;
                let n = self.rng.usize(1..9);
                let weights = self.tensor(&[k, n]);
                let weights = b.constant(weights);
                self.pool.push(weights);
                let op = Op::Contract { batch: 0, m: rank - 1, k: 1, rhs: RhsLayout::Plain };
                let product = b.emit1(op, &[x, weights]).ok()?;
                self.clamped(b, product)
            }
            6 => {
                // A batch of products of two values, as of attention.
                (rank == 3).then_some(())?;
                let y = self.pick();
                (b.shape(y) == shape).then_some(())?;
                let y = b.transpose(y, &[0, 2, 1]).ok()?;
                let product = b.matmul(x, y).ok()?;
                self.clamped(b, product)
            }
            7 => {
                let axis = self.axis(b, x)?;
                let op = [ReduceFn::Sum, ReduceFn::Max, ReduceFn::Min, ReduceFn::Prod][self.rng.usize(0..4)];
                // An empty axis gives an infinity, which products of rows then make a NaN of.
                let least = shape[axis].bounds().0.unwrap_or(0);
                (least > 0 || op == ReduceFn::Sum).then_some(())?;
                let reduced = b.emit1(Op::Reduce { op, axes: vec![axis] }, &[x]).ok()?;
                self.clamped(b, reduced)
            }
            8 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                self.rng.shuffle(&mut perm);
                b.transpose(x, &perm).ok()?
            }
            9 => {
                // Heads, and back.
                let axis =
                    (0..rank).find(|&axis| size(&shape[axis]).is_some_and(|size| size > 3 && size % 2 == 0));
                match axis {
                    Some(axis) if rank < 4 => {
                        let half = size(&shape[axis])? / 2;
                        let parts = [[2, half], [half, 2]][self.rng.usize(0..2)];
                        let mut new = shape.clone();
                        new.splice(axis..=axis, parts.map(Dim::from));
                        b.reshape(x, new).ok()?
                    }
                    _ => {
                        let axis = self.rng.usize(0..rank.saturating_sub(1).max(1));
                        (rank > 1).then_some(())?;
                        let mut new = shape.clone();
                        new[axis] = shape[axis].clone() * shape[axis + 1].clone();
                        new.remove(axis + 1);
                        b.reshape(x, new).ok()?
                    }
                }
            }
            10 => {
                let axis = self.axis(b, x)?;
                let length = size(&shape[axis]).filter(|&size| size > 1)?;
                let start = self.rng.usize(0..length - 1);
                b.slice_axis(x, axis, Dim::from(start), Dim::from(self.rng.usize(1..=length - start))).ok()?
            }
            11 => {
                let axis = self.axis(b, x)?;
                b.concat(&[x, x], axis).ok()?
            }
            12 => {
                let axis = self.axis(b, x)?;
                let length = size(&shape[axis]).filter(|&size| size > 0)?;
                let picks: Vec<i64> =
                    (0..self.rng.usize(1..5)).map(|_| self.rng.i64(0..length as i64)).collect();
                let picks = b.i64s(&picks);
                b.emit1(Op::Gather { axis }, &[x, picks]).ok()?
            }
            13 => {
                let axis = self.axis(b, x)?;
                match self.rng.u32(0..3) {
                    0 => {
                        let (sum, exclusive) = (ReduceFn::Sum, self.rng.bool());
                        let op = Op::Cumulate { op: sum, axis, exclusive, reverse: self.rng.bool() };
                        let sum = b.emit1(op, &[x]).ok()?;
                        self.clamped(b, sum)
                    }
                    1 => b.sort(x, axis, self.rng.bool(), shape[axis].clone()).ok()?.0,
                    _ => {
                        let op = Op::ArgReduce { max: self.rng.bool(), axis, last: false };
                        let at = b.emit1(op, &[x]).ok()?;
                        b.emit1(Op::Map(MapFn::Cast { to: DType::F32, saturate: true }), &[at]).ok()?
                    }
                }
            }
            14 => {
                let axis = self.axis(b, x)?;
                let fill = b.scalar(DType::F32, 1.0);
                let mut lo = vec![Dim::ZERO; rank];
                lo[axis] = Dim::from(self.rng.usize(0..3));
                let mut hi = vec![Dim::ZERO; rank];
                hi[axis] = Dim::ONE;
                let padded = b.pad(x, fill, lo, hi).ok()?;
                let length = size(&b.shape(padded)[axis]).filter(|&size| size > 1)?;
                let kernel = self.rng.usize(1..length.min(3));
                let op =
                    Op::Window { first: axis, kernel: vec![kernel], strides: vec![1], dilations: vec![1] };
                (rank < 4).then_some(())?;
                b.emit1(op, &[padded]).ok()?
            }
            _ => {
                // As of a softmax: what is reduced is read beside what it is reduced from.
                let axis = self.axis(b, x)?;
                (shape[axis].bounds().0.unwrap_or(0) > 0).then_some(())?;
                let most = b.emit1(Op::Reduce { op: ReduceFn::Max, axes: vec![axis] }, &[x]).ok()?;
                let less = b.emit1(Op::Map(MapFn::Binary(BinaryFn::Sub)), &[x, most]).ok()?;
                self.clamped(b, less)
            }
        })
    }
}

/// A graph and a run's inputs.
fn drawn(rng: &mut Rng, exact: bool) -> (Graph, Vec<Tensor>, Vec<ValueId>) {
    let mut graph = Graph { name: "drawn".into(), ..Graph::default() };
    let origin = graph.origins.push(Origin::new("node", "Op", 0));
    let symbol = graph.symbols.push(Symbol { name: "n".into() });
    let length = rng.usize(0..6);
    let mut inputs = vec![];
    let mut draw = Draw { rng, exact, pool: vec![] };
    let mut b = Builder::new(&mut graph, origin);
    for number in 0..draw.rng.usize(1..4) {
        let mut shape: Vec<Dim> = vec![];
        let mut sizes = vec![];
        for _ in 0..draw.rng.usize(1..4) {
            let size = draw.rng.usize(1..9);
            let is_symbol = draw.rng.u32(0..4) == 0;
            shape.push(if is_symbol { Dim::sym(symbol) } else { Dim::from(size) });
            sizes.push(if is_symbol { length } else { size });
        }
        let value = b.input(&format!("x{number}"), TensorType::new(DType::F32, shape), None);
        draw.pool.push(value);
        inputs.push(draw.tensor(&sizes));
    }
    for _ in 0..draw.rng.usize(3..14) {
        if let Some(value) = draw.step(&mut b) {
            // Later values are read more often: graphs are deep.
            draw.pool.extend([value, value]);
        }
    }
    let last = *draw.pool.last().expect("there are inputs");
    let other = draw.pick();
    let pool = draw.pool.clone();
    graph.outputs = vec![("y".into(), last), ("z".into(), other)];
    graph.keep_reachable();
    (graph, inputs, pool)
}

/// Shardings of some of the values on this many ranks.
fn arranged(rng: &mut Rng, graph: &Graph, pool: &[ValueId], ranks: usize) -> Arrangement {
    let staged = ranks.is_multiple_of(2) && rng.u32(0..3) == 0;
    let stages = if staged { 2 } else { 1 };
    let each = ranks / stages;
    let mut arrangement = Arrangement { name: "drawn".into(), ranks, ..Arrangement::default() };
    if staged {
        let count = graph.nodes.len();
        let middle = rng.usize(0..=count);
        // A stage may also give to an earlier one.
        let (first, second) = if rng.u32(0..4) == 0 { (1, 0) } else { (0, 1) };
        arrangement.stages = vec![(0..middle, first), (middle..count, second)];
        if middle == 0 || middle == count {
            arrangement.stages = vec![(0..count, 0), (count..count + 1, 1)];
        }
    }
    let grid: Vec<usize> = match each {
        4 => [vec![4], vec![2, 2]][rng.usize(0..2)].clone(),
        each => vec![each],
    };
    let mut done = BTreeSet::new();
    for _ in 0..rng.usize(1..6) {
        let value = pool[rng.usize(0..pool.len())];
        let ty = graph.ty(value);
        if !done.insert(value) || ty.rank() == 0 {
            continue;
        }
        let mut axes: Vec<usize> = (0..ty.rank()).collect();
        rng.shuffle(&mut axes);
        // The parts of each position: along axes of the grid that cut an axis of the value.
        let mut cuts = vec![];
        for (dim, &parts) in grid.iter().enumerate() {
            if rng.u32(0..3) > 0
                && parts > 1
                && let Some(axis) = axes.pop()
            {
                cuts.push((dim, CutAxis { axis, parts, blocks: None }));
            }
        }
        let stage = rng.usize(0..stages);
        let mut parts: Vec<Vec<i64>> = vec![vec![]; cuts.iter().map(|(_, cut)| cut.parts).product()];
        for position in 0..each {
            let digit = |dim: usize| position / grid[dim + 1..].iter().product::<usize>() % grid[dim];
            let part = cuts.iter().fold(0, |part, (dim, cut)| part * cut.parts + digit(*dim));
            parts[part].push((stage * each + position) as i64);
        }
        let axes = cuts.iter().map(|(_, cut)| *cut).collect();
        arrangement.shardings.push((value, Sharding { place: format!("{value}"), parts, axes }));
    }
    arrangement
}

fn close(a: &Tensor, b: &Tensor) -> bool {
    let (a, b) = (a.to_f64s().unwrap_or_default(), b.to_f64s().unwrap_or_default());
    a.len() == b.len()
        && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()) || a.is_nan() && b.is_nan())
}

fn count() -> u64 {
    std::env::var("ONNXC_RANK_GRAPHS").ok().and_then(|count| count.parse().ok()).unwrap_or(DRAWN)
}

#[test]
fn drawn_graphs_on_several_ranks_give_what_one_gives() {
    let (mut exchanges, mut primitives) = (BTreeSet::new(), BTreeSet::new());
    let (mut compared, mut split) = (0, 0);
    for seed in 0..count() {
        let rng = &mut Rng::with_seed(seed);
        let exact = rng.u32(0..4) > 0;
        let (graph, inputs, pool) = drawn(rng, exact);
        let Ok(wanted) = interp::run(&graph, &inputs) else { continue };
        let ranks = [2, 3, 4][seed as usize % 3];
        let arrangement = arranged(rng, &graph, &pool, ranks);
        let partition = match partition(&graph, &arrangement) {
            Ok(partition) => partition,
            Err(error) => panic!("seed {seed}: {error}\n{arrangement:?}\n{graph}"),
        };
        let text = || -> String {
            let graphs: Vec<String> = partition.graphs.iter().map(ToString::to_string).collect();
            format!("seed {seed}\n{arrangement:?}\n{graph}\n{}", graphs.join("\n"))
        };
        let all = vec![inputs.clone(); ranks];
        let results = match interp::run_ranks(&partition.graphs, &all, 0, HANG) {
            Ok(results) => results,
            Err(error) => panic!("{error}\n{}", text()),
        };
        let mut sums = false;
        for own in &partition.graphs {
            assert_eq!(&parse::parse(&print::to_text(own)).expect("it parses").rank, &own.rank);
            for &id in &own.order {
                primitives.insert(own.nodes[id].op.name());
                if let Op::Exchange(exchange) = &own.nodes[id].op {
                    exchanges.insert(exchange.name());
                    sums |= matches!(
                        exchange.transfer,
                        Transfer::AllReduce(ReduceFn::Sum | ReduceFn::Prod)
                            | Transfer::ReduceScatter(ReduceFn::Sum | ReduceFn::Prod)
                    );
                }
            }
        }
        split += u64::from(sums);
        for (rank, result) in results.iter().enumerate() {
            for (own, wanted) in result.iter().zip(&wanted) {
                let same = own.shape == wanted.shape
                    && (own.data == wanted.data || sums && !exact && close(own, wanted));
                assert!(same, "rank {rank}: {own:?}\nwanted {wanted:?}\n{}", text());
            }
        }
        compared += 1;
    }
    assert!(compared * 10 > count() * 9, "{compared} of {} graphs ran", count());
    if count() >= DRAWN {
        let all =
            ["all_gather", "all_reduce", "all_to_all", "broadcast", "receive", "reduce_scatter", "send"];
        assert_eq!(exchanges.into_iter().collect::<Vec<_>>(), all);
        assert!(split > 0 && primitives.len() > 15, "{primitives:?}");
    }
}
