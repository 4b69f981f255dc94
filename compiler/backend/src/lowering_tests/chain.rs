//! Attentions of many sizes as chains: against the evaluator, and bit for bit against kernels of their own.

use std::collections::HashMap;

use crate::Backends;
use crate::codegen::testing::Runnable;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Dim, Graph, Op, Origin, OriginId, RhsLayout, Sym, Tensor, TensorType, ValueId};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use onnxc_loops as loops;
use onnxc_loops::{Kernel, program};
use onnxc_machine::target::Target;
use onnxc_machine::vector::ir::Op as VectorOp;
use onnxc_schedule::{GroupKind, Options, Program, schedule};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mask {
    None,
    /// Added to all rows.
    Keys,
    /// Added, an element for each score, minus infinity here and there.
    Full,
    /// Minus infinity in place of the scores above a bound.
    Chosen,
    /// Minus infinity in place of the scores that a condition for each excludes.
    Flags,
}

/// What is made of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Rows {
    Softmax,
    /// Softmax times the scores, which are needed to the end.
    Gated,
    /// The sum of the exponentials and of the scores: another reduction after the row is kept.
    Twice,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    batch: Vec<usize>,
    /// Rows that share keys.
    group: usize,
    q: usize,
    k: usize,
    depth: usize,
    columns: usize,
    symbolic: bool,
    mask: Mask,
    rows: Rows,
    nr: usize,
    /// What an f32 result is rounded to behind the sums.
    rounded: Option<DType>,
    /// Whether both products are of pairs of bf16.
    pairs: bool,
}

/// A graph while it is made, and what it will run on.
struct Draft {
    graph: Graph,
    inputs: Vec<Tensor>,
    seed: u64,
}

impl Draft {
    fn build(&mut self) -> Builder<'_> {
        Builder::new(&mut self.graph, OriginId::from_u32(0))
    }

    fn noise(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    }

    /// Floats in -1..1; every so often minus infinity.
    fn input(&mut self, dtype: DType, sizes: &[(Dim, usize)], infinite: bool) -> ValueId {
        let shape: Vec<usize> = sizes.iter().map(|(_, size)| *size).collect();
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| match self.noise() {
                value if infinite && value > 0.7 => f64::NEG_INFINITY,
                value => value,
            })
            .collect();
        self.inputs.push(interp::cast(&Tensor::from_slice(&shape, &values), dtype, true));
        let name = format!("x{}", self.inputs.len());
        let dims = sizes.iter().map(|(dim, _)| dim.clone()).collect();
        self.build().input(&name, TensorType::new(dtype, dims), None)
    }

    /// Conditions; two thirds of them hold.
    fn flags(&mut self, sizes: &[(Dim, usize)]) -> ValueId {
        let shape: Vec<usize> = sizes.iter().map(|(_, size)| *size).collect();
        let values: Vec<bool> = (0..shape.iter().product()).map(|_| self.noise() > -0.33).collect();
        self.inputs.push(Tensor::from_slice(&shape, &values));
        let name = format!("x{}", self.inputs.len());
        self.build().input(&name, TensorType::new(DType::Bool, dims(sizes)), None)
    }

    fn contract(&mut self, lhs: ValueId, rhs: ValueId, case: &Case) -> ValueId {
        let (batch, n) = (case.batch.len(), self.graph.ty(rhs).shape.last().unwrap().clone());
        let mut b = self.build();
        if case.pairs {
            return pairs(&mut b, lhs, rhs, batch, case.nr);
        }
        let packed = b.emit1(Op::Pack { batch, k: 1, nr: case.nr }, &[rhs]).unwrap();
        let rhs = RhsLayout::Panels { nr: case.nr, depth: 1, n };
        b.emit1(Op::Contract { batch, m: 1, k: 1, rhs }, &[lhs, packed]).unwrap()
    }
}

/// The product of both operands as bf16, with zeros up to whole steps of tiles where there are several.
fn pairs(b: &mut Builder<'_>, lhs: ValueId, rhs: ValueId, batch: usize, nr: usize) -> ValueId {
    let (steps, n) = (b.shape(lhs).pop().unwrap(), b.shape(rhs).pop().unwrap());
    let depth = if steps.as_const().is_some_and(|steps| steps < 32) { 2i64 } else { 32 };
    let whole = steps.ceil_div(&Dim::from(depth)).unwrap() * Dim::from(depth);
    let mut narrow = |value: ValueId, axis: usize| {
        let value = b.cast(value, DType::BF16).unwrap();
        let (lo, fill) = (vec![Dim::ZERO; batch + 2], b.scalar(DType::BF16, 0.0));
        let mut hi = lo.clone();
        hi[axis] = whole.clone() - steps.clone();
        if hi[axis] == Dim::ZERO { value } else { b.pad(value, fill, lo, hi).unwrap() }
    };
    let (lhs, rhs) = (narrow(lhs, batch + 1), narrow(rhs, batch));
    let lead = b.shape(lhs)[..batch].to_vec();
    let words = whole.exact_div(&Dim::from(2i64)).unwrap();
    let with = |rest: &[Dim]| [&lead[..], rest].concat();
    let parts = b.reshape(rhs, with(&[words.clone(), Dim::from(2i64), n.clone()])).unwrap();
    let mut perm: Vec<usize> = (0..batch + 3).collect();
    perm.swap(batch + 1, batch + 2);
    let parts = b.transpose(parts, &perm).unwrap();
    let rows = b.reshape(parts, with(&[words, n.clone() * Dim::from(2i64)])).unwrap();
    let packed = b.emit1(Op::Pack { batch, k: 1, nr: nr * 2 }, &[rows]).unwrap();
    b.emit1(Op::Contract { batch, m: 1, k: 1, rhs: RhsLayout::Panels { nr, depth: 2, n } }, &[lhs, packed])
        .unwrap()
}

fn lead(shape: &[(Dim, usize)], rest: &[&(Dim, usize)]) -> Vec<(Dim, usize)> {
    shape.iter().chain(rest.iter().copied()).cloned().collect()
}

fn dims(shape: &[(Dim, usize)]) -> Vec<Dim> {
    shape.iter().map(|(dim, _)| dim.clone()).collect()
}

fn attention(case: &Case, seed: u64) -> Draft {
    let mut graph = Graph { name: "attention".into(), ..Graph::default() };
    graph.origins.push(Origin::new("attention", "Attention", 0));
    let mut draft = Draft { graph, inputs: vec![], seed };
    let fixed = |size: usize| (Dim::from(size), size);
    let mut size = |size: usize| match case.symbolic {
        true => (Dim::sym(draft.build().fresh_symbol()), size),
        false => fixed(size),
    };
    let mut batch: Vec<(Dim, usize)> = case.batch.iter().map(|&size| fixed(size)).collect();
    if let Some(first) = batch.first_mut() {
        *first = size(first.1);
    }
    let (q, k) = (size(case.q), size(case.k));
    let (depth, columns, dtype) = (fixed(case.depth), fixed(case.columns), case.dtype);
    // The heads that share keys are neighbours.
    let mut heads = batch.clone();
    if let Some(last) = heads.last_mut() {
        *last = (last.0.clone() * Dim::from(case.group), last.1 * case.group);
    }
    let grouped = (q.0.clone() * Dim::from(case.group), q.1 * case.group);

    let mut x = draft.input(dtype, &lead(&heads, &[&q, &depth]), false);
    let keys = draft.input(dtype, &lead(&batch, &[&depth, &k]), false);
    if case.group > 1 {
        x = draft.build().reshape(x, dims(&lead(&batch, &[&grouped, &depth]))).unwrap();
    }
    let scores = draft.contract(x, keys, case);
    let mut scores = draft.build().binary_scalar(BinaryFn::Mul, scores, 1.7).unwrap();
    if case.group > 1 {
        scores = draft.build().reshape(scores, dims(&lead(&heads, &[&q, &k]))).unwrap();
    }
    let scores = masked(&mut draft, case, scores, &q, &k);
    let mut weights = weights(&mut draft, case, scores);
    if case.group > 1 {
        weights = draft.build().reshape(weights, dims(&lead(&batch, &[&grouped, &k]))).unwrap();
    }
    let values = draft.input(dtype, &lead(&batch, &[&k, &columns]), false);
    let more = draft.input(dtype, &lead(&heads, &[&q, &columns]), false);
    let y = draft.contract(weights, values, case);
    let mut b = draft.build();
    let y = b.reshape(y, dims(&lead(&heads, &[&q, &columns]))).unwrap();
    let y = b.binary(BinaryFn::Add, y, more).unwrap();
    let y = b.cast(y, case.rounded.unwrap_or(dtype)).unwrap();
    draft.graph.outputs.push(("y".into(), y));
    draft
}

fn masked(draft: &mut Draft, case: &Case, scores: ValueId, q: &(Dim, usize), k: &(Dim, usize)) -> ValueId {
    let mask = match case.mask {
        Mask::None => return scores,
        Mask::Keys => draft.input(case.dtype, std::slice::from_ref(k), true),
        Mask::Full => draft.input(case.dtype, &[q.clone(), k.clone()], true),
        Mask::Chosen => {
            let mut b = draft.build();
            let most = b.scalar(case.dtype, 0.8);
            let allowed = b.compare(CompareFn::Le, scores, most).unwrap();
            let never = b.scalar(case.dtype, f64::NEG_INFINITY);
            return b.select(allowed, scores, never).unwrap();
        }
        Mask::Flags => {
            let allowed = draft.flags(&[q.clone(), k.clone()]);
            let mut b = draft.build();
            let never = b.scalar(case.dtype, f64::NEG_INFINITY);
            return b.select(allowed, scores, never).unwrap();
        }
    };
    draft.build().binary(BinaryFn::Add, scores, mask).unwrap()
}

fn weights(draft: &mut Draft, case: &Case, scores: ValueId) -> ValueId {
    let axis = draft.graph.ty(scores).shape.len() - 1;
    let mut b = draft.build();
    let most = b.reduce(ReduceFn::Max, scores, &[axis]).unwrap();
    // All of a row may be masked.
    let most = b.binary_scalar(BinaryFn::Max, most, -100.0).unwrap();
    let below = b.binary(BinaryFn::Sub, scores, most).unwrap();
    let powers = b.unary(UnaryFn::Exp, below).unwrap();
    let sum = b.reduce(ReduceFn::Sum, powers, &[axis]).unwrap();
    let sum = b.binary_scalar(BinaryFn::Add, sum, 0.5).unwrap();
    let weights = b.binary(BinaryFn::Div, powers, sum).unwrap();
    match case.rows {
        Rows::Softmax => weights,
        Rows::Gated => {
            let bounded = b.binary_scalar(BinaryFn::Max, scores, -2.0).unwrap();
            b.binary(BinaryFn::Mul, weights, bounded).unwrap()
        }
        Rows::Twice => {
            let bounded = b.binary_scalar(BinaryFn::Max, scores, -2.0).unwrap();
            let total = b.reduce(ReduceFn::Sum, bounded, &[axis]).unwrap();
            b.binary(BinaryFn::Mul, weights, total).unwrap()
        }
    }
}

fn planned(graph: &Graph, chain_above: Option<i64>) -> Program {
    schedule(graph, Options { chain_above, ..Options::default() }).unwrap()
}

fn chains(program: &Program) -> usize {
    program.groups.values().filter(|group| group.kind == GroupKind::Chain).count()
}

/// Runs a program's machine code, the parallel loop of each kernel in `parts` parts, the last part first.
fn compiled(
    graph: &Graph,
    program: &Program,
    inputs: &[Tensor],
    target: &Target,
    parts: &[i64],
) -> Vec<Vec<Tensor>> {
    let backends = Backends::new(target).unwrap();
    let (mut kernels, mut codes) = (Vec::new(), HashMap::new());
    for group in program.groups.keys() {
        let built = backends.build(graph, program, group).unwrap();
        let (kind, output) = (program.groups[group].kind, program.groups[group].outputs[0]);
        if kind == GroupKind::Chain && graph.ty(output).dtype == DType::F32 {
            assert_eq!(built.refusal, None, "{}", built.kernel);
        }
        codes.insert(built.kernel.name.clone(), built.code);
        kernels.push(built.kernel);
    }
    let kernels = kernels.into();
    let run = |&parts: &i64| {
        let execute = |kernel: &Kernel, buffers: &mut [Vec<u8>], symbols: &dyn Fn(Sym) -> Option<i64>| {
            let value = |dim: &Dim| dim.eval(symbols).unwrap();
            let (lo, hi) = kernel.parallel_range().map_or((0, 1), |(lo, hi)| (value(lo), value(hi)));
            let parts = if kernel.parallel_range().is_some() { parts } else { 1 };
            let dims: Vec<i64> = (0..8).map(|number| symbols(Sym::from_u32(number)).unwrap_or(0)).collect();
            let runnable = Runnable::new(&codes[&kernel.name], buffers.len());
            let code = (0..parts).rev().map(|part| {
                let end = |part: i64| lo + (hi - lo) * part / parts;
                runnable.run(buffers, &dims, (end(part), end(part + 1)))
            });
            Ok(code.max().unwrap() as u32)
        };
        program::run(graph, program, &kernels, inputs, &execute).unwrap()
    };
    parts.iter().map(run).collect()
}

fn targets() -> Vec<Target> {
    let host = Target::host().unwrap();
    vec![host.clone(), Target { wide: None, ..host }]
}

fn close(wanted: &Tensor, got: &Tensor, by: f64) -> bool {
    let (a, b) = (wanted.to_f64s().unwrap(), got.to_f64s().unwrap());
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= by * (1.0 + a.abs()))
}

/// One kernel computes what the evaluator does, and bit for bit what several kernels do.
fn check(case: &Case, seed: u64) {
    let Draft { graph, inputs, .. } = attention(case, seed);
    let (one, several) = (planned(&graph, Some(i64::MIN)), planned(&graph, None));
    // A softmax of half precision computes in f32, and a chain is of one type.
    let chained = usize::from(case.dtype != DType::F16);
    assert_eq!((chains(&one), chains(&several)), (chained, 0), "{case:?}\n{}", one.text(&graph));
    let wanted = interp::run(&graph, &inputs).unwrap();
    let by = if case.dtype == DType::F16 || case.rounded.is_some() || case.pairs { 1e-2 } else { 1e-4 };
    for target in targets() {
        let expected = compiled(&graph, &several, &inputs, &target, &[1]).remove(0);
        let mut runs = compiled(&graph, &one, &inputs, &target, &[1, 2, 3, 5, 16]);
        assert!(runs.iter().all(|got| *got == runs[0]), "{case:?}: other bits with other threads");
        let got = runs.remove(0);
        assert!(close(&wanted[0], &got[0], by), "{case:?}: {:?}, not {:?}", got[0], wanted[0]);
        // The processor's tiles add up in another order than vectors, which take the rows that are too few for tiles.
        let by_tiles = case.pairs && target.wide.is_some_and(|isa| isa.has(VectorOp::TileZero(0)));
        assert!(
            by_tiles && !case.q.is_multiple_of(32) || expected == got,
            "{case:?}: other bits than three kernels"
        );
        if by_tiles {
            assert!(close(&expected[0], &got[0], by), "{case:?}: {:?}, not {:?}", got[0], expected[0]);
        }
    }
}

fn plain(q: usize, k: usize) -> Case {
    Case {
        dtype: DType::F32,
        batch: vec![2],
        group: 1,
        q,
        k,
        depth: 8,
        columns: 16,
        symbolic: false,
        mask: Mask::None,
        rows: Rows::Softmax,
        nr: 16,
        rounded: None,
        pairs: false,
    }
}

/// Scores of f32 and weights of bf16, in slots of their own: of even, odd and whole numbers of steps, of few rows and of several
/// blocks.
#[test]
fn products_of_pairs() {
    let sizes = [
        (1, 40),
        (15, 33),
        (16, 64),
        (17, 31),
        (32, 96),
        (33, 65),
        (47, 257),
        (64, 100),
        (75, 160),
        (96, 515),
    ];
    for (at, (q, k)) in sizes.into_iter().enumerate() {
        let symbolic = at % 3 == 2;
        check(&Case { symbolic, depth: 64, columns: 64, nr: 32, pairs: true, ..plain(q, k) }, at as u64);
    }
    let long = Case { depth: 64, columns: 40, nr: 32, pairs: true, ..plain(70, 130) };
    for mask in [Mask::Keys, Mask::Full, Mask::Chosen, Mask::Flags] {
        check(&Case { mask, ..long.clone() }, 5);
    }
    for rows in [Rows::Gated, Rows::Twice] {
        check(&Case { rows, batch: vec![2, 2], ..long.clone() }, 6);
    }
    for (depth, columns, nr) in [(10, 17, 16), (31, 70, 32), (80, 33, 32), (6, 9, 8)] {
        check(&Case { depth, columns, nr, batch: vec![], ..long.clone() }, 7);
    }
    check(&Case { rounded: Some(DType::BF16), ..long }, 9);
}

#[test]
fn rows_around_the_size_of_a_block() {
    for (at, q) in [1, 2, 5, 6, 23, 24, 25, 47, 48, 49, 53, 72].into_iter().enumerate() {
        for symbolic in [false, true] {
            check(&Case { symbolic, ..plain(q, 17 + at) }, at as u64);
        }
    }
}

#[test]
fn all_kinds_of_attention() {
    let mut seed = 9u64;
    let mut pick = |most: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % most
    };
    for number in 0..40 {
        let symbolic = pick(2) == 0;
        let batch = match pick(3) {
            0 if !symbolic => vec![],
            1 => vec![1 + pick(3)],
            _ => vec![1 + pick(2), 1 + pick(3)],
        };
        let group = if batch.len() == 2 { 1 + pick(3) } else { 1 };
        let case = Case {
            dtype: [DType::F32, DType::F32, DType::F32, DType::F64, DType::F16][pick(5)],
            batch,
            group,
            q: 1 + pick(60),
            // A row of one known element does not count as a row.
            k: 1 + pick(69) + usize::from(!symbolic),
            depth: 1 + pick(20),
            columns: 1 + pick(40),
            symbolic,
            mask: [Mask::None, Mask::Keys, Mask::Full, Mask::Chosen, Mask::Flags][pick(5)],
            rows: [Rows::Softmax, Rows::Softmax, Rows::Gated, Rows::Twice][pick(4)],
            nr: [8, 16, 32][pick(3)],
            rounded: None,
            pairs: false,
        };
        check(&case, number);
    }
}

#[test]
fn long_rows() {
    // Sums in parts, and rows a power of two apart.
    check(&Case { depth: 512, columns: 20, ..plain(30, 1024) }, 1);
    check(&Case { columns: 33, symbolic: true, mask: Mask::Chosen, ..plain(61, 700) }, 2);
    check(&Case { mask: Mask::Flags, ..plain(40, 300) }, 3);
    for rounded in [DType::BF16, DType::F16] {
        check(&Case { columns: 33, rounded: Some(rounded), ..plain(40, 300) }, 4);
    }
}

/// Every access of the loop nests is checked by the interpreter.
#[test]
fn loop_nests_stay_inside_their_buffers() {
    let cases = [
        Case { mask: Mask::Full, ..plain(26, 5) },
        Case { symbolic: true, mask: Mask::Chosen, ..plain(25, 7) },
        Case { batch: vec![1, 2], group: 3, rows: Rows::Gated, ..plain(9, 6) },
        Case { batch: vec![], rows: Rows::Twice, ..plain(1, 33) },
        Case { depth: 64, columns: 20, nr: 32, pairs: true, ..plain(37, 45) },
        Case { depth: 9, nr: 32, pairs: true, symbolic: true, mask: Mask::Full, ..plain(19, 33) },
    ];
    for case in cases {
        let Draft { graph, inputs, .. } = attention(&case, 5);
        let program = planned(&graph, Some(i64::MIN));
        assert_eq!(chains(&program), 1);
        let wanted = interp::run(&graph, &inputs).unwrap();
        let with_tiles = Target::parse("x86_64-unknown-linux-gnu", Some("sapphirerapids")).unwrap();
        let with_tiles = with_tiles.levels().find(|level| level.has_tiles()).unwrap().clone();
        for target in targets().into_iter().chain([with_tiles]) {
            let core = target.leaf().unwrap_or(target.core);
            let kernels: Vec<Kernel> = program
                .groups
                .iter()
                .map(|(id, group)| {
                    let mut kernel = loops::lower::lower(&graph, group, &id.to_string(), &core).unwrap();
                    loops::verify::verify(&kernel).unwrap();
                    let on_tiles = case.pairs && target.has_tiles() && group.kind == GroupKind::Chain;
                    assert_eq!(kernel.tiles.is_empty(), !on_tiles, "{kernel}");
                    let text = kernel.to_string();
                    assert_eq!(loops::parse::parse(&text).unwrap().to_string(), text);
                    loops::math::expand(&mut kernel);
                    loops::verify::verify(&kernel).unwrap();
                    kernel
                })
                .collect();
            let kernels = kernels.into();
            let got = program::run(&graph, &program, &kernels, &inputs, &loops::interp::run).unwrap();
            let by = if case.pairs { 1e-2 } else { 1e-4 };
            assert!(close(&wanted[0], &got[0], by), "{case:?}: {:?}, not {:?}", got[0], wanted[0]);
            // Kernels do what their loop nests say: the same weights round up, and the same down.
            if case.pairs && target.wide == Target::host().unwrap().wide {
                let compiled = compiled(&graph, &program, &inputs, &Target::host().unwrap(), &[1]).remove(0);
                assert!(close(&compiled[0], &got[0], 1e-5), "{case:?}: {:?}, not {:?}", compiled[0], got[0]);
            }
        }
    }
}
