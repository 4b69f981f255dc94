//! Random small graphs, scheduled and lowered: their loop nests, interpreted, against the reference evaluator.

#[cfg(all(target_arch = "x86_64", unix))]
use crate::codegen::Code;
#[cfg(all(target_arch = "x86_64", unix))]
use crate::codegen::testing::Runnable;
#[cfg(all(target_arch = "x86_64", unix))]
use crate::leaf;
use crate::vector;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::op::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use onnxc_ir::graph::{DType, Dim, Graph, Op, Origin, OriginId, RhsLayout, Sym, Tensor, TensorType, ValueId};
use onnxc_ir::interp;
use onnxc_loops as loops;
use onnxc_loops::program::{Execute, Kernels};
use onnxc_loops::{Kernel, math, parse, program, verify};
use onnxc_machine::target::{Core, Target};
use onnxc_machine::vector::isa::Encoding;
use onnxc_passes as pass;
use onnxc_schedule as schedule;
use onnxc_schedule::schedule;
use std::cell::Cell;
#[cfg(all(target_arch = "x86_64", unix))]
use std::cell::RefCell;
#[cfg(all(target_arch = "x86_64", unix))]
use std::collections::BTreeMap;
use target_lexicon::Triple;

mod chain;
mod columns;
mod contract;
mod digits;
mod empty;
mod joined;
mod order;
mod rows;
mod shared;
mod sums;
mod winograd;

/// A reproducible source of choices.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Floats in -1..1; small integers; bools.
    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| match dtype {
                _ if dtype.is_float() => self.below(2001) as f64 / 1000.0 - 1.0,
                DType::Bool => self.below(2) as f64,
                _ => self.below(13) as f64 - 6.0,
            })
            .collect();
        interp::cast(&Tensor::from_slice(shape, &values), dtype, true)
    }
}

/// A graph while it is made, and what it will run on.
struct Draft {
    dice: Dice,
    graph: Graph,
    inputs: Vec<Tensor>,
    /// Values to compute with. Inputs come first.
    pool: Vec<ValueId>,
    /// Run-time value of each symbol.
    symbols: Vec<usize>,
    /// Of a hundred dims of inputs, how many are symbols.
    symbolic: usize,
}

impl Draft {
    fn new(seed: u64) -> Draft {
        Draft::with_symbols(seed, 15)
    }

    fn with_symbols(seed: u64, symbolic: usize) -> Draft {
        let mut graph = Graph { name: format!("seed {seed}"), ..Graph::default() };
        graph.origins.push(Origin::new("random", "Random", 0));
        let mut draft =
            Draft { dice: Dice(seed), graph, inputs: vec![], pool: vec![], symbols: vec![], symbolic };
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..5 {
            draft.dice.next();
        }
        let dtype =
            draft.dice.pick(&[DType::F32, DType::F32, DType::F32, DType::F64, DType::I32, DType::I64]);
        for _ in 0..1 + draft.dice.below(3) {
            draft.input(dtype);
        }
        for _ in 0..1 + draft.dice.below(7) {
            // An operation that does not fit the values at hand is left out.
            if let Some(value) = draft.operation() {
                draft.pool.push(value);
            }
        }
        let used: Vec<ValueId> =
            draft.graph.order.iter().flat_map(|&node| draft.graph.nodes[node].inputs.clone()).collect();
        for (at, &value) in draft.pool.clone().iter().enumerate() {
            let last = at + 1 == draft.pool.len();
            if last || (!used.contains(&value) || draft.dice.chance(15)) && at >= draft.inputs.len() {
                draft.graph.outputs.push((format!("y{at}"), value));
            }
        }
        draft
    }

    fn build(&mut self) -> Builder<'_> {
        Builder::new(&mut self.graph, OriginId::from_u32(0))
    }

    fn input(&mut self, dtype: DType) {
        // A shape of its own, or one that broadcasts against an earlier input.
        let mut sizes: Vec<(Dim, usize)> = Vec::new();
        if !self.pool.is_empty() && self.dice.chance(80) {
            let of = self.pool[self.dice.below(self.pool.len())];
            for dim in self.graph.ty(of).shape.clone() {
                let one = self.dice.chance(25);
                let size = self.size(&dim);
                sizes.push(if one { (Dim::ONE, 1) } else { (dim, size) });
            }
            let keep = self.dice.below(sizes.len() + 1);
            sizes.drain(..sizes.len() - keep.max(1).min(sizes.len()));
        } else {
            for _ in 0..1 + self.dice.below(4) {
                let size = 1 + self.dice.below(9);
                let dim = match self.dice.chance(self.symbolic) {
                    true => {
                        self.symbols.push(size);
                        Dim::sym(self.build().fresh_symbol())
                    }
                    false => Dim::from(size),
                };
                sizes.push((dim, size));
            }
        }
        let ty = TensorType::new(dtype, sizes.iter().map(|(dim, _)| dim.clone()).collect());
        let shape: Vec<usize> = sizes.iter().map(|(_, size)| *size).collect();
        let tensor = self.dice.tensor(dtype, &shape);
        self.inputs.push(tensor);
        let name = format!("x{}", self.inputs.len());
        let value = self.build().input(&name, ty, None);
        self.pool.push(value);
    }

    fn size(&self, dim: &Dim) -> usize {
        let value = dim.eval(&|sym| self.symbols.get(sym.as_u32() as usize).map(|&size| size as i64));
        value.unwrap_or(0) as usize
    }

    /// Whether the dims that were taken to agree do for these inputs; a compiled model checks that before it runs.
    fn fits(&self) -> bool {
        interp::run(&self.graph, &self.inputs).is_ok()
    }

    fn operand(&mut self) -> ValueId {
        // Recent values more often: chains, with side branches.
        let count = self.pool.len();
        let back = self.dice.below(count).min(self.dice.below(count));
        self.pool[count - 1 - back]
    }

    fn operation(&mut self) -> Option<ValueId> {
        let x = self.operand();
        let shape = self.graph.ty(x).shape.clone();
        let dtype = self.graph.ty(x).dtype;
        let rank = shape.len();
        let axis = if rank == 0 { 0 } else { self.dice.below(rank) };
        let kind = self.dice.below(21);
        if rank == 0 && kind > 5 {
            return None;
        }
        match kind {
            0 | 1 => self.unary(x, dtype),
            2..=4 => {
                let y = self.operand();
                let function = self.dice.pick(&[
                    BinaryFn::Add,
                    BinaryFn::Sub,
                    BinaryFn::Mul,
                    BinaryFn::Max,
                    BinaryFn::Min,
                ]);
                self.build().binary(function, x, y).ok()
            }
            5 => {
                let (a, b) = (self.operand(), self.operand());
                // Of inputs, whose bits no rounding changes.
                let first = self.pool[0];
                let dtype = self.graph.ty(first).dtype;
                let limit = self.build().scalar(dtype, 0.0);
                let condition = self.build().compare(CompareFn::Lt, first, limit).ok()?;
                self.build().select(condition, a, b).ok()
            }
            6..=8 => {
                let axes: Vec<usize> = (0..rank).filter(|_| self.dice.chance(50)).collect();
                let axes = if axes.is_empty() { vec![axis] } else { axes };
                let op = self.dice.pick(&[ReduceFn::Sum, ReduceFn::Max, ReduceFn::Min]);
                self.build().reduce(op, x, &axes).ok()
            }
            9 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                (0..rank).for_each(|at| perm.swap(at, self.dice.below(rank)));
                self.build().transpose(x, &perm).ok()
            }
            10 => self.reshape(x, &shape),
            11 => self.slice(x, &shape),
            12 => {
                let fill = self.build().scalar(dtype, 2.0);
                let mut border = || (0..rank).map(|_| Dim::from(self.dice.below(3))).collect::<Vec<Dim>>();
                let (lo, hi) = (border(), border());
                self.build().pad(x, fill, lo, hi).ok()
            }
            13 => {
                let y = self.operand();
                self.build().concat(&[x, y, x], axis).ok()
            }
            14 => self.contract(x, &shape, dtype),
            15 => self.window(x, &shape),
            16 => {
                let op = self.dice.pick(&[ReduceFn::Sum, ReduceFn::Max]);
                let (exclusive, reverse) = (self.dice.chance(50), self.dice.chance(50));
                self.build().emit1(Op::Cumulate { op, axis, exclusive, reverse }, &[x]).ok()
            }
            17 => {
                // Of an input: what is not finite spreads otherwise in another order of sums.
                let x = self.pool[0];
                let (shape, dtype) = (self.graph.ty(x).shape.clone(), self.graph.ty(x).dtype);
                self.winograd(x, &shape, dtype)
            }
            18 => {
                let extent = shape[axis].as_const()?;
                let picks: Vec<i64> = (0..1 + self.dice.below(3))
                    .map(|_| self.dice.below(2 * extent as usize) as i64 - extent)
                    .collect();
                let indices = self.build().i64s(&picks);
                self.build().emit1(Op::Gather { axis }, &[x, indices]).ok()
            }
            19 => {
                // Of an input: rounding may change an order.
                let x = self.pool[0];
                let shape = self.graph.ty(x).shape.clone();
                let axis = self.dice.below(shape.len());
                let take = match shape[axis].as_const() {
                    Some(extent) => Dim::from(1 + self.dice.below(extent as usize)),
                    None => shape[axis].clone(),
                };
                let descending = self.dice.chance(50);
                let (keys, places) = self.build().sort(x, axis, descending, take).ok()?;
                if self.dice.chance(50) { Some(keys) } else { self.build().cast(places, dtype).ok() }
            }
            _ => {
                // Of an input: the place of the best of computed values may change with rounding.
                let x = self.pool[0];
                let axis = self.dice.below(self.graph.ty(x).rank().max(1));
                let (max, last) = (self.dice.chance(50), self.dice.chance(50));
                let place = self.build().emit1(Op::ArgReduce { max, axis, last }, &[x]).ok()?;
                self.build().cast(place, dtype).ok()
            }
        }
    }

    /// Transforms of a Winograd convolution: that of weights, or both others without the products between them.
    fn winograd(&mut self, x: ValueId, shape: &[Dim], dtype: DType) -> Option<ValueId> {
        let mut shape = shape.to_vec();
        while shape.len() < 4 {
            shape.insert(0, Dim::ONE);
        }
        let tile = self.dice.pick(&[2, 4]);
        if self.dice.chance(25) {
            let taps = [&[Dim::from(9usize)], &shape[..]].concat();
            let x = self.build().expand(x, taps).ok()?;
            let squares = self.build().emit1(Op::WinogradFilter { tile }, &[x]).ok()?;
            return self.build().cast(squares, dtype).ok();
        }
        let (h, w) = (shape[1].as_const()? as usize, shape[2].as_const()? as usize);
        let counts = [h, w].map(|extent| extent.saturating_sub(2).div_ceil(tile).max(1));
        let x = self.build().reshape(x, shape).ok()?;
        let own = if dtype == DType::I32 { self.dice.pick(&[DType::I8, DType::U8]) } else { dtype };
        let x = self.build().cast(x, own).ok()?;
        let fill = self.build().scalar(own, 0.0);
        let hi = [0, counts[0] * tile + 2 - h, counts[1] * tile + 2 - w, 0].map(Dim::from).to_vec();
        let x = self.build().pad(x, fill, vec![Dim::ZERO; 4], hi).ok()?;
        let squares = self.build().emit1(Op::WinogradInput { tile }, &[x]).ok()?;
        let squares = self.build().transpose(squares, &[3, 0, 1, 2, 4]).ok()?;
        // Those of bytes are i16.
        let squares = self.build().cast(squares, dtype).ok()?;
        let [height, width] = counts.map(|count| Dim::from(count * tile - self.dice.below(tile)));
        self.build().emit1(Op::WinogradOutput { tile, height, width }, &[squares]).ok()
    }

    fn unary(&mut self, x: ValueId, dtype: DType) -> Option<ValueId> {
        let function = match dtype.is_float() {
            true => {
                self.dice.pick(&[UnaryFn::Neg, UnaryFn::Abs, UnaryFn::Tanh, UnaryFn::Sigmoid, UnaryFn::Erf])
            }
            false => self.dice.pick(&[UnaryFn::Neg, UnaryFn::Abs]),
        };
        self.build().unary(function, x).ok()
    }

    /// Neighbouring axes merged, or an axis split.
    fn reshape(&mut self, x: ValueId, shape: &[Dim]) -> Option<ValueId> {
        let mut shape = shape.to_vec();
        if self.dice.chance(30) {
            let count = shape.iter().try_fold(1i64, |count, dim| Some(count * dim.as_const()?))?;
            let parts: Vec<i64> = (1..=count).filter(|part| count % part == 0).collect();
            let part = self.dice.pick(&parts);
            return self.build().reshape(x, vec![Dim::from(part), Dim::from(count / part)]).ok();
        }
        let at = self.dice.below(shape.len());
        if self.dice.chance(50) && at + 1 < shape.len() {
            let next = shape.remove(at + 1);
            shape[at] = shape[at].clone() * next;
        } else {
            let extent = shape[at].as_const()?;
            let parts: Vec<i64> = (1..=extent).filter(|part| extent % part == 0).collect();
            let part = self.dice.pick(&parts);
            shape[at] = Dim::from(part);
            shape.insert(at + 1, Dim::from(extent / part));
        }
        self.build().reshape(x, shape).ok()
    }

    fn slice(&mut self, x: ValueId, shape: &[Dim]) -> Option<ValueId> {
        let (mut starts, mut steps, mut sizes) = (vec![], vec![], vec![]);
        for dim in shape {
            let (start, step, size) = match dim.as_const() {
                Some(extent) if extent > 0 => {
                    let extent = extent as usize;
                    let step = 1 + self.dice.below(2);
                    let start = self.dice.below(extent);
                    let size = 1 + self.dice.below((extent - start).div_ceil(step));
                    match self.dice.chance(30) {
                        true => (start + (size - 1) * step, -(step as i64), Dim::from(size)),
                        false => (start, step as i64, Dim::from(size)),
                    }
                }
                _ => (0, 1, dim.clone()),
            };
            starts.push(Dim::from(start));
            steps.push(step);
            sizes.push(size);
        }
        self.build().emit1(Op::Slice { starts, steps, sizes }, &[x]).ok()
    }

    /// Some leading axes as batch, some trailing ones as inner axes, against a constant or a computed right side.
    fn contract(&mut self, x: ValueId, shape: &[Dim], dtype: DType) -> Option<ValueId> {
        let rank = shape.len();
        let k = 1 + self.dice.below(rank.min(2));
        let batch = self.dice.below(rank - k + 1);
        let m = rank - k - batch;
        let n = 1 + self.dice.below(20);
        let mut rhs: Vec<Dim> = shape[..batch].to_vec();
        let narrow = self.dice.chance(20);
        if narrow {
            rhs.iter_mut().for_each(|dim| *dim = Dim::ONE);
        }
        rhs.extend_from_slice(&shape[batch + m..]);
        rhs.push(Dim::from(n));
        let sizes: Vec<usize> = rhs.iter().map(|dim| self.size(dim)).collect();
        let tensor = self.dice.tensor(dtype, &sizes);
        let fixed = rhs.iter().all(Dim::is_const) && self.dice.chance(50);
        let y = if fixed {
            self.build().constant(tensor)
        } else {
            self.inputs.push(tensor);
            let name = format!("x{}", self.inputs.len());
            self.build().input(&name, TensorType::new(dtype, rhs), None)
        };
        let nr = self.dice.pick(&[4, 8, 16]);
        let packed = self.build().emit1(Op::Pack { batch, k, nr }, &[y]).ok()?;
        let rhs = RhsLayout::Panels { nr, depth: 1, n: Dim::from(n) };
        let result = self.build().emit1(Op::Contract { batch, m, k, rhs }, &[x, packed]).ok()?;
        // Keeps values small.
        let result = self.build().binary_scalar(BinaryFn::Max, result, -2.0).ok()?;
        match self.dice.chance(30) && m > 0 {
            true => self.in_border(result, m),
            false => Some(result),
        }
    }

    /// The rows of a contraction's result inside a border, under a window.
    fn in_border(&mut self, x: ValueId, rows: usize) -> Option<ValueId> {
        let rank = self.graph.ty(x).rank();
        let first = rank - 1 - rows;
        let mut border = || {
            (0..rank)
                .map(|axis| Dim::from(if axis < rank - 1 { self.dice.below(3) } else { 0 }))
                .collect::<Vec<Dim>>()
        };
        let (lo, hi) = (border(), border());
        let dtype = self.graph.ty(x).dtype;
        let fill = self.build().scalar(dtype, 1.0);
        let x = self.build().pad(x, fill, lo, hi).ok()?;
        let ones = || vec![1; rows];
        let op = Op::Window { first, kernel: vec![2; rows], strides: ones(), dilations: ones() };
        let window = self.build().emit1(op, &[x]).ok()?;
        let axes: Vec<usize> = (first + rows..first + 2 * rows).collect();
        self.build().reduce(ReduceFn::Max, window, &axes).ok()
    }

    fn window(&mut self, x: ValueId, shape: &[Dim]) -> Option<ValueId> {
        let rank = shape.len();
        let first = self.dice.below(rank);
        let axes = 1 + self.dice.below((rank - first).min(2));
        let mut draw = |most: usize| (0..axes).map(|_| 1 + self.dice.below(most)).collect::<Vec<usize>>();
        let (kernel, strides, dilations) = (draw(3), draw(2), draw(2));
        // Tensors without elements are drawn elsewhere.
        let reach = |at: usize| ((kernel[at] - 1) * dilations[at] + 1) as i64;
        let fits = |at: usize| shape[first + at].as_const().is_none_or(|extent| reach(at) <= extent);
        if !(0..axes).all(fits) {
            return None;
        }
        let window = self.build().emit1(Op::Window { first, kernel, strides, dilations }, &[x]).ok()?;
        let reduced: Vec<usize> = (first + axes..first + 2 * axes).collect();
        let op = self.dice.pick(&[ReduceFn::Sum, ReduceFn::Max]);
        self.build().reduce(op, window, &reduced).ok()
    }
}

/// Equal type and shape; floats within 1e-4 of the largest one, those of 16 bits within what they resolve.
fn same(expected: &Tensor, actual: &Tensor) -> bool {
    if (expected.dtype, &expected.shape) != (actual.dtype, &actual.shape) {
        return false;
    }
    if !expected.dtype.is_float() {
        return expected.data == actual.data;
    }
    let (Some(a), Some(b)) = (expected.to_f64s(), actual.to_f64s()) else { return false };
    let scale = a.iter().filter(|value| value.is_finite()).fold(1f64, |scale, value| scale.max(value.abs()));
    let most = scale * if expected.dtype == DType::F16 { 4e-3 } else { 1e-4 };
    a.iter().zip(&b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= most)
}

/// Lowers a graph and runs it against the evaluator; the message says what went wrong.
fn check(
    graph: &Graph,
    inputs: &[Tensor],
    fuse: bool,
    core: &Core,
    execute: Execute<'_, Kernel>,
) -> Result<(), String> {
    let expected = interp::run(graph, inputs).map_err(|error| error.to_string())?;
    check_against(&expected, graph, inputs, fuse, core, execute)
}

/// As `check`, for a graph that must compute what another one does.
fn check_against(
    expected: &[Tensor],
    graph: &Graph,
    inputs: &[Tensor],
    fuse: bool,
    core: &Core,
    execute: Execute<'_, Kernel>,
) -> Result<(), String> {
    let (actual, kernels) = outputs(graph, inputs, fuse, core, execute)?;
    for ((name, _), (expected, actual)) in graph.outputs.iter().zip(expected.iter().zip(&actual)) {
        if !same(expected, actual) {
            return Err(format!("{name} is {actual:?}, not {expected:?}\n{kernels}"));
        }
    }
    Ok(())
}

/// Lowers a graph and runs it; gives the outputs and the kernels' text.
fn outputs(
    graph: &Graph,
    inputs: &[Tensor],
    fuse: bool,
    core: &Core,
    execute: Execute<'_, Kernel>,
) -> Result<(Vec<Tensor>, String), String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let program =
        schedule(graph, schedule::Options { fuse, in_place: false, ..Default::default() }).map_err(text)?;
    let build = |graph: &Graph, program: &schedule::Program, id: schedule::GroupId| {
        let mut kernel = loops::lower::lower(graph, &program.groups[id], &id.to_string(), core)?;
        verify::verify(&kernel)?;
        let printed = kernel.to_string();
        let read = parse::parse(&printed)?;
        assert_eq!(read.to_string(), printed, "read and printed again");
        math::expand(&mut kernel);
        verify::verify(&kernel)?;
        Ok(kernel)
    };
    let kernels = Kernels::new(graph, &program, &build).map_err(text)?;
    let actual = program::run(graph, &program, &kernels, inputs, execute).map_err(text)?;
    Ok((actual, kernels.groups.iter().map(|kernel| kernel.to_string()).collect()))
}

fn fixed_target() -> Target {
    let triple: Triple = "x86_64-unknown-linux-gnu".parse().unwrap();
    Target::new(triple, Some("x86-64-v3")).unwrap()
}

/// Holds random graphs against the evaluator. `LOWER_CASES` and `LOWER_FIRST` choose other seeds, to look for trouble at
/// length.
fn check_random_graphs(core: &Core, execute: Execute<'_, Kernel>) {
    check_graphs(core, 1, 400, execute);
}

/// The same for `count` graphs from number `first` on; `LOWER_FIRST` and `LOWER_CASES` choose others.
fn check_graphs(core: &Core, first: u64, count: u64, execute: Execute<'_, Kernel>) {
    let count: u64 = std::env::var("LOWER_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(count);
    let first: u64 = std::env::var("LOWER_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(first);
    let (mut failures, mut refused) = (Vec::new(), 0);
    for seed in first..first + count {
        let draft = Draft::new(seed);
        if !draft.fits() {
            refused += 1;
            continue;
        }
        // Of the graph as drawn: the passes, too, must keep it.
        let expected = interp::run(&draft.graph, &draft.inputs).unwrap();
        for (fuse, optimize) in [(true, false), (false, false), (true, true)] {
            let mut graph = draft.graph.clone();
            let result = match optimize {
                true => run_passes(&mut graph, &mut |_, _| {})
                    .map_err(|error| error.to_string())
                    .and_then(|()| check_against(&expected, &graph, &draft.inputs, fuse, core, execute)),
                false => check_against(&expected, &graph, &draft.inputs, fuse, core, execute),
            };
            if let Err(message) = result {
                let message: String = message.chars().take(4000).collect();
                failures.push(format!("seed {seed}, fuse {fuse}, passes {optimize}\n{graph}\n{message}"));
                break;
            }
        }
    }
    assert!(refused * 20 <= count, "{refused} of {count} graphs do not fit their inputs");
    assert!(
        failures.is_empty(),
        "{} of {count} graphs failed\n{}",
        failures.len(),
        failures[..failures.len().min(6)].join("\n\n")
    );
}

/// The pipeline. Many drawn graphs have what only its later phases make, panels among it: those run through the passes one by one.
fn run_passes(graph: &mut Graph, observer: &mut dyn FnMut(&str, &Graph)) -> onnxc_ir::error::Result<()> {
    let options = pass::Options::default();
    if pass::facts::verify(graph, pass::PHASES[0].requires).is_ok() {
        return pass::run_all(graph, &options, &mut |pass, graph, _| observer(pass, graph));
    }
    for pass in pass::passes() {
        pass::run_one(pass, graph, &options)?;
        observer(pass.name, graph);
    }
    Ok(())
}

/// The first pass after which a random graph computes something else.
#[test]
fn passes_keep_what_random_graphs_compute() {
    let mut changed = Vec::new();
    for draft in (1..=3000).map(Draft::new).filter(Draft::fits) {
        let expected = interp::run(&draft.graph, &draft.inputs).unwrap();
        let mut wrong = None;
        let mut graph = draft.graph.clone();
        let result = run_passes(&mut graph, &mut |pass, graph| {
            let actual = interp::run(graph, &draft.inputs);
            let is_right = actual.as_ref().is_ok_and(|actual| {
                actual.len() == expected.len() && expected.iter().zip(actual).all(|(e, a)| same(e, a))
            });
            if !is_right && wrong.is_none() {
                wrong = Some(format!("{}after pass {pass}\n{graph}{actual:?}\n{expected:?}", draft.graph));
            }
        });
        changed.extend(result.err().map(|error| format!("{}{error}", draft.graph)));
        changed.extend(wrong);
    }
    let shown = changed[..changed.len().min(3)].join("\n\n");
    assert!(changed.is_empty(), "{} graphs changed\n{shown}", changed.len());
}

#[test]
fn random_graphs_compute_what_the_evaluator_computes() {
    check_random_graphs(&fixed_target().core, &loops::interp::run);
}

#[test]
fn random_graphs_in_wide_vectors() {
    check_random_graphs(&fixed_target().leaf().unwrap(), &loops::interp::run);
}

/// The same bytes, but for those of NaNs.
#[cfg(unix)]
fn same_bits(a: &[u8], b: &[u8], dtype: DType) -> bool {
    let element = |bytes: &[u8]| Tensor::new(dtype, vec![], bytes.to_vec().into()).to_f64s().unwrap()[0];
    let size = dtype.size();
    a.len() == b.len()
        && a.chunks(size)
            .zip(b.chunks(size))
            .all(|(a, b)| a == b || dtype.is_float() && element(a).is_nan() && element(b).is_nan())
}

/// The loop IR's and the vector IR's interpreters agree, but that the one rounds a product before it is added; what is
/// selected prints, is read and is verified.
#[test]
fn random_graphs_as_vector_functions() {
    let x86 = |cpu| Target::new(fixed_target().triple, Some(cpu)).unwrap();
    let arm = Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    let v4 = x86("x86-64-v4");
    let leaves = [fixed_target(), v4.clone(), v4.with_vector_width(256).unwrap(), arm.clone()];
    let leaves = leaves.map(|target| (target.leaf().unwrap(), target.wide.unwrap()));
    let narrow = [x86("x86-64"), x86("x86-64-v2"), fixed_target(), arm];
    let narrow = narrow.map(|target| (target.core, target.narrow));
    // Each with graphs of its own: two interpreters take long.
    for ((target, isa), first) in leaves.into_iter().chain(narrow).zip((1..).step_by(150)) {
        let taken = Cell::new(0);
        check_graphs(&target, first, 150, &|kernel, buffers, symbols| {
            let func = match vector::lower(kernel, isa) {
                Ok(func) => func,
                Err(_) if isa.encoding != Encoding::Cranelift => {
                    return loops::interp::run(kernel, buffers, symbols);
                }
                Err(reason) => panic!("{reason}: there is no other way\n{kernel}"),
            };
            taken.set(taken.get() + 1);
            let text = func.to_string();
            let read =
                onnxc_machine::vector::parse::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(read.to_string(), text);
            onnxc_machine::vector::verify::verify(&read)
                .and_then(|()| onnxc_machine::vector::verify::check(&read, isa))
                .unwrap();
            let mut expected = buffers.to_vec();
            let code = loops::interp::run(kernel, &mut expected, symbols)?;
            let (dims, range) = run_sizes(kernel, symbols);
            let found = onnxc_machine::vector::interp::run(&read, buffers, &dims, range)?;
            assert_eq!(found as u32, code, "{kernel}{text}");
            for ((found, expected), buffer) in buffers.iter().zip(&expected).zip(kernel.buffers.values()) {
                let tensor = |bytes: &[u8]| {
                    let shape = vec![bytes.len() / buffer.dtype.size()];
                    Tensor::new(buffer.dtype, shape, bytes.to_vec().into())
                };
                let same = same(&tensor(expected), &tensor(found));
                assert!(same, "{}: {found:?}, not {expected:?}\n{kernel}{text}", buffer.name);
            }
            Ok(code)
        });
        assert!(taken.get() > 200, "{} kernels taken", taken.get());
    }
}

/// Holds leaf kernels of a target against the evaluator, and against what their vector IR computes, bit for bit. What
/// they refuse is interpreted.
#[cfg(unix)]
fn check_leaf_kernels(core: &Core, call: LeafCall<'_>) {
    let (taken, refused) = (Cell::new(0), RefCell::new(BTreeMap::new()));
    let isa = core.wide.unwrap();
    check_random_graphs(core, &|kernel, buffers, symbols| match leaf::compile(kernel, isa)? {
        Ok(code) => {
            taken.set(taken.get() + 1);
            let (dims, range) = run_sizes(kernel, symbols);
            let mut others = buffers.to_vec();
            let func = vector::lower(kernel, isa).unwrap();
            let expected = onnxc_machine::vector::interp::run(&func, &mut others, &dims, range)?;
            assert_eq!(call(&code, buffers, &dims, range), expected);
            for ((found, expected), buffer) in buffers.iter().zip(&others).zip(kernel.buffers.values()) {
                let same = same_bits(found, expected, buffer.dtype);
                assert!(same, "{}: {found:?}, not {expected:?}\n{kernel}{func}", buffer.name);
            }
            Ok(expected as u32)
        }
        Err(reason) => {
            *refused.borrow_mut().entry(reason).or_insert(0) += 1;
            loops::interp::run(kernel, buffers, symbols)
        }
    });
    let refused = refused.into_inner();
    let count: i32 = refused.values().sum();
    println!("{} kernels taken, {count} refused: {refused:?}", taken.get());
    assert!(taken.get() > 500, "{} kernels taken, {count} refused: {refused:?}", taken.get());
}

/// The values of a kernel's symbols, and the turns of its parallel loop.
fn run_sizes(kernel: &Kernel, symbols: &dyn Fn(Sym) -> Option<i64>) -> (Vec<i64>, (i64, i64)) {
    let value = |dim: &Dim| dim.eval(symbols).unwrap();
    let range = kernel.parallel_range().map_or((0, 0), |(lo, hi)| (value(lo), value(hi)));
    ((0..64).map(|number| symbols(Sym::from_u32(number)).unwrap_or(0)).collect(), range)
}

/// Runs code on buffers.
#[cfg(unix)]
type LeafCall<'c> = &'c dyn Fn(&Code, &mut [Vec<u8>], &[i64], (i64, i64)) -> i32;

#[cfg(all(target_arch = "x86_64", unix))]
fn emulate(code: &Code, buffers: &mut [Vec<u8>], dims: &[i64], range: (i64, i64)) -> i32 {
    let lengths: Vec<usize> = buffers.iter().map(Vec::len).collect();
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
    leaf::x86_64::emulator::Emulator::new(&code.bytes).call(&pointers, Some(&lengths), dims, range)
}

/// On this processor and on the emulator, which agree on every bit.
#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn random_graphs_as_leaf_kernels() {
    check_leaf_kernels(&fixed_target().leaf().unwrap(), &|code, buffers, dims, range| {
        let mut others = buffers.to_vec();
        let result = Runnable::new(code, buffers.len()).run(buffers, dims, range);
        assert_eq!(emulate(code, &mut others, dims, range), result);
        assert!(others == buffers, "the emulator computes other bits");
        result
    });
}

#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn random_graphs_as_leaf_kernels_of_512_bits() {
    let target = Target::new(fixed_target().triple, Some("x86-64-v4")).unwrap();
    check_leaf_kernels(&target.leaf().unwrap(), &emulate);
    let target = target.with_vector_width(256).unwrap();
    check_leaf_kernels(&target.leaf().unwrap(), &emulate);
}

#[test]
#[cfg(target_os = "linux")]
fn random_graphs_as_leaf_kernels_of_aarch64() {
    let Some(runner) = onnxc_machine::testing::runner::Runner::new("max") else { return };
    let runner = RefCell::new(runner);
    let target = Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    check_leaf_kernels(&target.leaf().unwrap(), &|code, buffers, dims, range| {
        runner.borrow_mut().call(&code.bytes, buffers, dims, range)
    });
}

/// Columns of every number around the blocks that are computed together, and channels around several vectors; sizes that
/// are constants and sizes that are not.
#[test]
fn reductions_that_keep_the_last_axis_at_every_size() {
    let target = fixed_target().leaf().unwrap();
    let mut dice = Dice(5);
    for (columns, channels) in (1..=13).flat_map(|columns| [1, 8, 37, 72].map(|channels| (columns, channels)))
    {
        for (symbolic, batch, kernel) in
            [(false, 2, 2), (true, 2, 2), (true, 1, 3), (false, 1, 40), (true, 2, 40)]
        {
            let sizes = [batch, columns + kernel - 1, channels];
            let mut graph = Graph::default();
            graph.origins.push(Origin::new("test", "Test", 0));
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let mut shape: Vec<Dim> = sizes.iter().map(|&size| Dim::from(size)).collect();
            if symbolic {
                shape[1] = Dim::sym(b.fresh_symbol());
            }
            let x = b.input("x", TensorType::new(DType::F32, shape), None);
            let op = Op::Window { first: 1, kernel: vec![kernel], strides: vec![1], dilations: vec![1] };
            let window = b.emit1(op, &[x]).unwrap();
            let sum = b.reduce(ReduceFn::Sum, window, &[2]).unwrap();
            graph.outputs.push(("sum".into(), sum));
            let input = dice.tensor(DType::F32, &sizes);
            let result = check(&graph, &[input], true, &target, &loops::interp::run);
            assert!(result.is_ok(), "{sizes:?}, window {kernel}: {}", result.unwrap_err());
        }
    }
}

/// Rows of windows share rows of many channels, which come in blocks: constant and symbolic numbers of rows and columns, several images,
/// windows that do not share rows.
#[test]
fn windows_of_many_channels() {
    let target = fixed_target().leaf().unwrap();
    let mut dice = Dice(11);
    for (sizes, symbolic, stride, channels) in [
        ([1, 5, 30, 160], [false; 3], 1, Some(40)),
        ([2, 7, 30, 160], [false; 3], 2, Some(40)),
        ([2, 5, 30, 160], [true, true, false], 1, Some(40)),
        ([1, 6, 31, 48], [false, true, true], 1, Some(16)),
        ([3, 4, 9, 48], [true; 3], 2, Some(16)),
        // One row; all channels fit; a number of them that vectors do not divide; rows that are not shared.
        ([1, 3, 30, 160], [false; 3], 1, None),
        ([1, 5, 30, 32], [false; 3], 1, Some(0)),
        ([1, 5, 30, 164], [false; 3], 1, Some(0)),
        ([1, 7, 30, 160], [false; 3], 3, None),
    ] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let mut shape: Vec<Dim> = sizes.iter().map(|&size: &usize| Dim::from(size)).collect();
        for axis in (0..3).filter(|&axis| symbolic[axis]) {
            shape[axis] = Dim::sym(b.fresh_symbol());
        }
        let x = b.input("x", TensorType::new(DType::F32, shape), None);
        let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![stride; 2], dilations: vec![1; 2] };
        let window = b.emit1(op, &[x]).unwrap();
        let weights = b.constant(dice.tensor(DType::F32, &[3, 3, sizes[3]]));
        let product = b.binary(BinaryFn::Mul, window, weights).unwrap();
        let sum = b.reduce(ReduceFn::Sum, product, &[3, 4]).unwrap();
        graph.outputs.push(("sum".into(), sum));
        let input = dice.tensor(DType::F32, &sizes);
        let result = check(&graph, &[input], true, &target, &loops::interp::run);
        assert!(result.is_ok(), "{sizes:?}, step {stride}: {}", result.unwrap_err());
        let program = schedule(&graph, schedule::Options::default()).unwrap();
        let kernel =
            loops::lower::lower(&graph, program.groups.values().next().unwrap(), "sum", &target).unwrap();
        let chosen = channels.map(|channels| format!("channels={channels}"));
        let (tuning, none) = (kernel.to_string(), "channels=".to_string());
        let found = tuning.contains(chosen.as_ref().unwrap_or(&none));
        assert_eq!(found, chosen.is_some(), "{sizes:?}, step {stride}: {tuning}");
    }
}

/// Long rows are looked at in blocks, which NaN must not hide from.
#[test]
fn the_first_of_long_rows() {
    let mut dice = Dice(7);
    let (rows, extent) = (2, 3000);
    for descending in [false, true] {
        for (dtype, with_nan) in
            [(DType::F32, false), (DType::F32, true), (DType::I64, false), (DType::U8, false)]
        {
            let mut values: Vec<f64> = (0..rows * extent).map(|_| dice.below(251) as f64).collect();
            if with_nan {
                (0..12).for_each(|_| values[dice.below(rows * extent)] = f64::NAN);
            }
            let x = interp::cast(&Tensor::from_slice(&[rows, extent], &values), dtype, true);
            let mut graph = Graph::default();
            graph.origins.push(Origin::new("sort", "TopK", 0));
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let ty = TensorType::new(dtype, vec![Dim::from(rows), Dim::from(extent)]);
            let input = b.input("x", ty, None);
            let (keys, places) = b.sort(input, 1, descending, Dim::from(9usize)).unwrap();
            graph.outputs = vec![("keys".into(), keys), ("places".into(), places)];
            check(&graph, &[x], true, &fixed_target().core, &loops::interp::run).unwrap();
        }
    }
}

/// Sums whose results are none, as an axis that is kept is empty.
#[test]
fn sums_over_rows_of_which_there_are_none() {
    let target = fixed_target().leaf().unwrap();
    for (sizes, axes) in
        [([0, 4, 8], vec![1]), ([2, 4, 0], vec![1]), ([4, 0, 8], vec![0]), ([0, 8, 8], vec![1, 2])]
    {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let shape = sizes.iter().map(|&size| Dim::from(i64::from(size))).collect();
        let x = b.input("x", TensorType::new(DType::F32, shape), None);
        let sum = b.reduce(ReduceFn::Sum, x, &axes).unwrap();
        graph.outputs.push(("sum".into(), sum));
        let input = Tensor::from_slice::<f32>(&sizes.map(|size| size as usize), &[]);
        for target in [&target, &fixed_target().core] {
            let result = check(&graph, std::slice::from_ref(&input), true, target, &loops::interp::run);
            assert!(result.is_ok(), "{sizes:?}: {}", result.unwrap_err());
        }
    }
}

/// A concatenation of empty tensors, which what follows pads.
#[test]
fn concatenation_of_nothing() {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let empty = || TensorType::new(DType::F32, vec![Dim::ZERO, Dim::from(3i64)]);
    let (x, y) = (b.input("x", empty(), None), b.input("y", empty(), None));
    let joined = b.emit1(Op::Concat { axis: 0 }, &[x, y]).unwrap();
    let fill = b.scalar(DType::F32, 2.0);
    let padded = b.pad(joined, fill, vec![Dim::ONE, Dim::ZERO], vec![Dim::ONE, Dim::ZERO]).unwrap();
    graph.outputs = vec![("joined".into(), joined), ("padded".into(), padded)];
    let inputs = [0, 1].map(|_| Tensor::from_slice::<f32>(&[0, 3], &[]));
    check(&graph, &inputs, true, &fixed_target().core, &loops::interp::run).unwrap();
}

/// Indices that data decide: the last ones that there are, from either end, and those past them. Of a long axis every byte is one.
#[test]
fn indices_out_of_range_end_the_kernel() {
    let check_index = |extent: i64, at: Tensor, expected: Option<i64>| {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(extent)]), None);
        let index = b.input("at", TensorType::new(at.dtype, vec![Dim::ONE]), None);
        let picked = b.emit1(Op::Gather { axis: 0 }, &[x, index]).unwrap();
        graph.outputs.push(("picked".into(), picked));
        let values: Vec<f32> = (0..extent).map(|value| 5.0 + value as f32).collect();
        let what = format!("{at:?} of {extent}");
        let inputs = [Tensor::from_slice(&[extent as usize], &values), at];
        let expected = expected.map(|at| Tensor::from_slice(&[1], &[5.0 + at as f32]));
        let result = check_against(
            expected.as_slice(),
            &graph,
            &inputs,
            true,
            &fixed_target().core,
            &loops::interp::run,
        );
        match expected {
            Some(_) => assert_eq!(result, Ok(()), "{what}"),
            None => assert!(result.is_err_and(|text| text.contains("code 1")), "{what}"),
        }
    };
    for extent in [3, 300] {
        for (at, expected) in
            [(extent - 1, Some(extent - 1)), (-extent, Some(0)), (extent, None), (-extent - 1, None)]
        {
            check_index(extent, Tensor::from_slice(&[1], &[at]), expected);
        }
    }
    check_index(300, Tensor::from_slice(&[1], &[255u8]), Some(255));
    check_index(255, Tensor::from_slice(&[1], &[255u8]), None);
}
