//! Contractions too large for the loop interpreter, compiled and run, against the evaluator.

use std::collections::HashMap;

use cranelift_entity::EntityRef;

use crate::Backends;
use crate::codegen::Code;
use crate::codegen::testing::Runnable;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::dim::Sym;
use onnxc_ir::graph::tensor::Element;
use onnxc_ir::graph::{
    DOT_DEPTH, DType, Dim, Graph, Op, Origin, RhsLayout, Symbol, Tensor, TensorType, codes_per_word,
};
use onnxc_ir::interp;
use onnxc_loops as loops;
use onnxc_loops::lower::contract::word;
use onnxc_loops::lower::lower;
use onnxc_loops::{Access, Buf, Buffer, Expr, Index, Kernel, Stmt, Var, program, visit};
use onnxc_machine::target::Target;
use onnxc_machine::vector::isa::Isa;
use onnxc_passes as pass;
use onnxc_passes::PackPolicy;
use onnxc_schedule::{Options, schedule};

/// `x`, contracted over all axes but the first `rows` with constant weights in panels of `nr`.
fn product(x: &[usize], rows: usize, columns: usize, nr: usize, weights: &dyn Fn(usize) -> f32) -> Graph {
    let lead = x[..rows].iter().map(|&size| Dim::from(size)).collect();
    product_of(lead, &x[rows..], columns, nr, weights)
}

/// The same for rows of any dims.
fn product_of(
    rows: Vec<Dim>,
    inner: &[usize],
    columns: usize,
    nr: usize,
    weights: &dyn Fn(usize) -> f32,
) -> Graph {
    let mut graph = Graph { name: "product".into(), ..Graph::default() };
    let origin = graph.origins.push(Origin::new("product", "Product", 0));
    let mut b = Builder::new(&mut graph, origin);
    let m = rows.len();
    let mut dims = rows;
    dims.extend(inner.iter().map(|&size| Dim::from(size)));
    let lhs = b.input("x", TensorType::new(DType::F32, dims), None);
    let mut shape = inner.to_vec();
    shape.push(columns);
    let data: Vec<f32> = (0..shape.iter().product()).map(weights).collect();
    let rhs = b.constant(Tensor::from_slice(&shape, &data));
    let k = inner.len();
    let packed = b.emit1(Op::Pack { batch: 0, k, nr }, &[rhs]).unwrap();
    let rhs = RhsLayout::Panels { nr, depth: 1, n: Dim::from(columns) };
    let y = b.emit1(Op::Contract { batch: 0, m, k, rhs }, &[lhs, packed]).unwrap();
    graph.outputs.push(("y".into(), y));
    graph
}

/// Compiles a graph and runs it.
pub(super) fn run(graph: &Graph, inputs: &[Tensor], target: &Target) -> Tensor {
    run_by(graph, inputs, target, &|code, buffers, dims, range| {
        Runnable::new(code, buffers.len()).run(buffers, dims, range)
    })
}

/// Calls a kernel's code on buffers, with these values of the symbols, for a range of its parallel loop.
type Call<'c> = &'c dyn Fn(&Code, &mut [Vec<u8>], &[i64], (i64, i64)) -> i32;

/// Compiles a graph and runs it where `call` does.
fn run_by(graph: &Graph, inputs: &[Tensor], target: &Target, call: Call) -> Tensor {
    let program = schedule(graph, Options::default()).unwrap();
    let backends = Backends::new(target).unwrap();
    let (mut kernels, mut codes) = (Vec::new(), HashMap::new());
    for group in program.groups.keys() {
        let built = backends.build(graph, &program, group).unwrap();
        codes.insert(built.kernel.name.clone(), built.code);
        kernels.push(built.kernel);
    }
    let execute = |kernel: &Kernel, buffers: &mut [Vec<u8>], value: &dyn Fn(Sym) -> Option<i64>| {
        let range = kernel.parallel_range().map_or((0, 0), |(lo, hi)| {
            let value = |dim: &Dim| dim.eval(&|sym| value(sym)).unwrap();
            (value(lo), value(hi))
        });
        let dims: Vec<i64> = graph.symbols.keys().map(|sym| value(sym).unwrap()).collect();
        Ok(call(&codes[&kernel.name], buffers, &dims, range) as u32)
    };
    program::run(graph, &program, &kernels.into(), inputs, &execute).unwrap().remove(0)
}

pub(super) fn noise(at: usize) -> f32 {
    let mixed = (at as u64).wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407) >> 40;
    mixed as f32 / (1u64 << 23) as f32 - 1.0
}

fn targets() -> Vec<Target> {
    let host = Target::host().unwrap();
    vec![host.clone(), Target { wide: None, ..host }]
}

/// Rows in blocks, panels brought nearer, sums in parts, windows of all that.
#[test]
fn large_products() {
    for (shape, rows, columns, nr) in [
        (vec![1210, 300], 1, 40, 16),
        (vec![1024, 1024], 1, 48, 24),
        (vec![37, 2000], 1, 200, 16),
        (vec![1, 3000], 1, 300, 32),
        (vec![13, 700], 1, 700, 16),
        (vec![5, 9, 3, 521], 2, 70, 16),
        (vec![4, 5, 2, 3, 160], 2, 500, 8),
    ] {
        let graph = product(&shape, rows, columns, nr, &noise);
        let data: Vec<f32> = (0..shape.iter().product()).map(|at| noise(at + 77)).collect();
        let inputs = [Tensor::from_slice(&shape, &data)];
        let wanted = interp::run(&graph, &inputs).unwrap().remove(0).to_f64s().unwrap();
        for target in targets() {
            let got = run(&graph, &inputs, &target).to_f64s().unwrap();
            assert_eq!(wanted.len(), got.len());
            for (at, (wanted, got)) in wanted.iter().zip(&got).enumerate() {
                assert!((wanted - got).abs() < 1e-4, "{shape:?}, element {at}: {got}, not {wanted}");
            }
        }
    }
}

/// Processors whose arithmetic of bytes differs: none, pairs of 16 bits, VNNI; this one as far as it has them.
pub(super) fn byte_targets() -> Vec<Target> {
    let host = Target::host().unwrap();
    let mut targets = targets();
    if let Some(isa) = host.wide {
        let (wide, avx2) = (Isa { dot: None, ..isa }, Isa { vector_bytes: 32, ..isa });
        targets.extend([wide, avx2, Isa::AVX2].map(|isa| Target { wide: Some(isa), ..host.clone() }));
    }
    targets
}

/// `x`, contracted over all axes but the first `rows` with a constant.
fn contraction(dtype: DType, x: &[usize], rows: usize, rhs: Tensor, layout: RhsLayout) -> Graph {
    let mut graph = Graph { name: "integers".into(), ..Graph::default() };
    let origin = Origin::new("integers", "Integers", 0);
    let origin = graph.origins.push(origin);
    let mut b = Builder::new(&mut graph, origin);
    let dims = x.iter().map(|&size| Dim::from(size)).collect();
    let (lhs, rhs) = (b.input("x", TensorType::new(dtype, dims), None), b.constant(rhs));
    let op = Op::Contract { batch: 0, m: rows, k: x.len() - rows, rhs: layout };
    let y = b.emit1(op, &[lhs, rhs]).unwrap();
    graph.outputs.push(("y".into(), y));
    graph
}

/// What a graph gives by the evaluator, and on every processor of `byte_targets`, is what is wanted for each of its inputs.
fn check_everywhere(graph: &Graph, inputs: &[[Tensor; 1]], wanted: &[Tensor]) {
    for (inputs, wanted) in inputs.iter().zip(wanted) {
        let shape = &inputs[0].shape;
        let evaluated = &interp::run(graph, inputs).unwrap()[0];
        assert_eq!(wanted.data, evaluated.data, "{shape:?} by the evaluator");
        for target in byte_targets() {
            assert_eq!(wanted.data, run(graph, inputs, &target).data, "{shape:?} on {:?}", target.wide);
        }
    }
}

/// Sums of products of bytes are exact, at the ends of their ranges too, where pairs of products do not fit 16 bits.
#[test]
fn products_of_bytes() {
    check_products_of_bytes(&[(DType::U8, -128)], &|graph, inputs| {
        byte_targets().into_iter().map(|target| (run(graph, inputs, &target), target)).collect()
    });
}

/// Sums of products of pairs of i16, which wrap.
#[test]
fn products_of_pairs() {
    for (shape, rows, columns) in [
        (vec![1, 64], 1, 40usize),
        (vec![7, 302], 1, 40),
        (vec![130, 256], 1, 50),
        (vec![5, 9, 3, 3, 6], 2, 70),
        (vec![3, 2], 1, 5),
        // No pairs, and no rows.
        (vec![4, 3], 1, 16),
        (vec![0, 8], 1, 5),
    ] {
        let mut weights = shape[rows..].to_vec();
        weights.push(columns);
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let random = |at: usize| (noise(at) * 32768.0) as i16;
        let extreme = |at: usize| if at % 5 == 2 { i16::MAX } else { i16::MIN };
        let rhs: Vec<i16> =
            (0..count(&weights)).map(|at| if at % 3 == 0 { extreme(at) } else { random(at) }).collect();
        let rhs = Tensor::from_slice(&weights, &rhs);
        let mut graph = contraction(DType::I16, &shape, rows, rhs, RhsLayout::Plain);
        assert_eq!(graph.ty(graph.outputs[0].1).dtype, DType::I32);
        let inputs: [Vec<i16>; 2] =
            [(0..count(&shape)).map(extreme).collect(), (0..count(&shape)).map(random).collect()];
        let inputs = inputs.map(|data| [Tensor::from_slice(&shape, &data)]);
        let wanted = inputs.each_ref().map(|inputs| interp::run(&graph, inputs).unwrap().remove(0));
        let options = pass::Options { level: 2, pack: PackPolicy::WIDE, ..pass::Options::default() };
        for name in ["pack", "constants", "dce"] {
            pass::run_one(pass::by_name(name).unwrap(), &mut graph, &options).unwrap();
        }
        let node = &graph.nodes[*graph.order.last().unwrap()];
        let Op::Contract { rhs: RhsLayout::Panels { depth, .. }, .. } = node.op else { panic!("{graph}") };
        assert_eq!(depth, if shape.last() == Some(&3) { 1 } else { 2 });
        check_everywhere(&graph, &inputs, &wanted);
    }
}

/// Rows of panels in orders of their own, those whose sums fit 16 bits first, moved or in their places: windows with two axes before the
/// steps, and an element of u8 that makes every sum as large as it can be.
#[test]
fn products_of_bytes_with_short_sums() {
    // Of the pairs of weights, the last are the greatest that fit 16 bits; and those that do not.
    let short = [[0, 0], [64, 64], [-64, -64], [127, 1], [-128, 127], [1, 127], [-127, -1], [-128, 0]];
    let long = [[64, 65], [-65, -64], [127, 127], [-128, -128]];
    for (shape, rows, columns, nr, every, some) in [
        (vec![7, 64], 1, 40usize, 16usize, 3, true),
        (vec![9, 256], 1, 70, 32, 5, true),
        (vec![1, 96], 1, 64, 32, 4, true),
        (vec![3, 5, 3, 2, 48], 2, 40, 16, 2, true),
        (vec![5, 64], 1, 40, 16, 2, false),
    ] {
        let mut weights = shape[rows..].to_vec();
        let k = weights.len();
        weights[k - 1] /= 4;
        weights.insert(0, columns.div_ceil(nr));
        weights.push(4 * nr);
        let pairs = weights.iter().product::<usize>() / 2;
        let data = (0..pairs).flat_map(|at| {
            let (row, mixed) = (at / (2 * nr), (noise(at) * 512.0) as i32);
            let is_long = some && (row + row / 7) % every == 1 && at % 5 == 2;
            let pairs = if is_long { &long[..] } else { &short };
            pairs[mixed.unsigned_abs() as usize % pairs.len()].map(|weight: i32| weight as i8)
        });
        let rhs = Tensor::from_slice(&weights, &data.collect::<Vec<i8>>());
        let layout = RhsLayout::Panels { nr, depth: 4, n: Dim::from(columns) };
        let graph = contraction(DType::U8, &shape, rows, rhs, layout);
        let all = vec![255u8; shape.iter().product()];
        let random: Vec<u8> = (0..all.len()).map(|at| (noise(at + 77) * 512.0) as u8).collect();
        let inputs = [all, random].map(|data| [Tensor::from_slice(&shape, &data)]);
        let wanted = inputs.each_ref().map(|inputs| interp::run(&graph, inputs).unwrap().remove(0));
        // For a machine with AVX2, and for many; some of those have products of bytes by an instruction each.
        let many = PackPolicy { short_sums: false, short_sums_in_place: true, ..PackPolicy::MIXED };
        for (pack, in_place) in [(PackPolicy::WIDE, false), (many, true)] {
            let mut graph = graph.clone();
            order(&mut graph, pack);
            let layouts: Vec<&Op> = graph.order.iter().map(|&node| &graph.nodes[node].op).collect();
            let [Op::Contract { rhs: RhsLayout::Ordered { short, stays, .. }, .. }] = &layouts[..] else {
                panic!("{layouts:?}");
            };
            assert_eq!(*short < weights[k], some, "{shape:?}: {short}");
            assert_eq!(*stays, some && in_place);
            assert_eq!(graph.nodes[graph.order[0]].inputs.len(), if some { 3 } else { 2 });
            check_everywhere(&graph, &inputs, &wanted);
        }
    }
}

/// Runs the pass `order`.
fn order(graph: &mut Graph, pack: PackPolicy) {
    let options = pass::Options { level: 2, pack, ..pass::Options::default() };
    for name in ["order", "dce"] {
        pass::run_one(pass::by_name(name).unwrap(), graph, &options).unwrap();
    }
}

/// Of signed bytes, by SDOT and by the several instructions that stand for it, fewer where no weight is -128.
#[test]
#[cfg(target_os = "linux")]
fn products_of_bytes_on_aarch64() {
    let Some(runner) = onnxc_machine::testing::runner::Runner::new("max") else { return };
    let runner = std::cell::RefCell::new(runner);
    let targets = Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    // Another level has nothing more for bytes.
    let [without, with] = [false, true].map(|has| {
        let level = targets.levels().find(|level| level.wide.is_some_and(|isa| isa.dot.is_some() == has));
        Target { upgrades: vec![], ..level.unwrap().clone() }
    });
    let call = |code: &Code, buffers: &mut [Vec<u8>], dims: &[i64], range: (i64, i64)| {
        runner.borrow_mut().call(&code.bytes, buffers, dims, range)
    };
    check_products_of_bytes(&[(DType::I8, -128), (DType::I8, -127)], &|graph, inputs| {
        let levels = [&without, &with].into_iter();
        levels.map(|target| (run_by(graph, inputs, target, &call), target.clone())).collect()
    });
}

/// Runs a graph on several targets.
type RunOnAll<'r> = &'r dyn Fn(&Graph, &[Tensor]) -> Vec<(Tensor, Target)>;

/// For left-hand sides of these types and weights of these and greater numbers, on what `run` makes code for.
fn check_products_of_bytes(kinds: &[(DType, i32)], run: RunOnAll) {
    let random = |at: usize, from: i32| (noise(at) * 128.0).floor() as i32 + from;
    let extreme = |at: usize, least: i32| if at % 7 == 3 { least } else { least + 255 };
    for (shape, rows, columns, nr) in [
        (vec![1, 64], 1, 40usize, 32usize),
        (vec![7, 300], 1, 40, 16),
        (vec![130, 1024], 1, 50, 32),
        (vec![5, 9, 3, 3, 16], 2, 70, 16),
        (vec![3, 4], 1, 5, 4),
        (vec![0, 8], 1, 5, 8),
    ] {
        for (extremes, &(dtype, least)) in
            [false, true].iter().flat_map(|e| kinds.iter().map(move |k| (*e, k)))
        {
            let number: &dyn Fn(usize, i32) -> i32 =
                if extremes { &extreme } else { &|at, least| random(at, least + 128) };
            let inner: usize = shape[rows..].iter().product();
            let graph = {
                let mut graph = Graph { name: "bytes".into(), ..Graph::default() };
                let origin = Origin::new("bytes", "Bytes", 0);
                let origin = graph.origins.push(origin);
                let mut b = Builder::new(&mut graph, origin);
                let dims: Vec<Dim> = shape.iter().map(|&size| Dim::from(size)).collect();
                let lhs = b.input("x", TensorType::new(dtype, dims), None);
                let mut weights = shape[rows..].to_vec();
                let k = weights.len();
                weights[k - 1] /= 4;
                weights.insert(0, columns.div_ceil(nr));
                weights.push(4 * nr);
                let data: Vec<i8> =
                    (0..weights.iter().product()).map(|at| number(at, -128).max(least) as i8).collect();
                let rhs = b.constant(Tensor::from_slice(&weights, &data));
                let layout = RhsLayout::Panels { nr, depth: 4, n: Dim::from(columns) };
                let y = b.emit1(Op::Contract { batch: 0, m: rows, k, rhs: layout }, &[lhs, rhs]).unwrap();
                graph.outputs.push(("y".into(), y));
                graph
            };
            // Of signed bytes, the ends of the range have the highest bit the other way round.
            let sign = if dtype == DType::I8 { 0x80 } else { 0 };
            let data: Vec<u8> =
                (0..shape.iter().product()).map(|at| number(at + 77, 0) as u8 ^ sign).collect();
            let inputs = [Tensor { dtype, ..Tensor::from_slice(&shape, &data) }];
            let wanted = interp::run(&graph, &inputs).unwrap().remove(0);
            if extremes && dtype == DType::U8 && !data.is_empty() {
                let most = wanted.to_i64s().unwrap().into_iter().map(i64::abs).max();
                assert!(most > Some(20_000 * inner as i64), "{most:?} of {inner} terms");
            }
            for (got, target) in run(&graph, &inputs) {
                assert_eq!(wanted.data, got.data, "{shape:?} on {:?}", target.wide);
            }
        }
    }
}

/// Bytes that are not side by side where they lie: a transposed operand, one of every other column, one whose rows follow
/// each other in parts.
#[test]
fn bytes_through_views() {
    let int = |size: usize| Dim::from(size);
    let views: [(&[usize], Vec<Op>); 4] = [
        (&[8, 5], vec![Op::Transpose { perm: vec![1, 0] }]),
        (&[4, 5], vec![Op::Transpose { perm: vec![1, 0] }]),
        (
            &[5, 16],
            vec![Op::Slice { starts: vec![int(0), int(1)], steps: vec![1, 2], sizes: vec![int(5), int(8)] }],
        ),
        (
            &[5, 4, 2],
            vec![Op::Transpose { perm: vec![0, 2, 1] }, Op::Reshape { shape: vec![int(5), int(8)] }],
        ),
    ];
    for (shape, view) in views {
        let mut graph = Graph { name: "bytes".into(), ..Graph::default() };
        let origin = Origin::new("bytes", "Bytes", 0);
        let origin = graph.origins.push(origin);
        let mut b = Builder::new(&mut graph, origin);
        let dims = shape.iter().map(|&size| int(size)).collect();
        let x = b.input("x", TensorType::new(DType::U8, dims), None);
        let lhs = view.into_iter().fold(x, |x, op| b.emit1(op, &[x]).unwrap());
        let steps = b.shape(lhs)[1].as_const().unwrap() as usize;
        let data: Vec<i8> = (0..steps * 8).map(|at| (at * 37 % 251) as u8 as i8).collect();
        let rhs = b.constant(Tensor::from_slice(&[1, steps / 4, 32], &data));
        let layout = RhsLayout::Panels { nr: 8, depth: 4, n: int(7) };
        let y = b.emit1(Op::Contract { batch: 0, m: 1, k: 1, rhs: layout }, &[lhs, rhs]).unwrap();
        graph.outputs.push(("y".into(), y));
        let data: Vec<u8> = (0..shape.iter().product()).map(|at| (at * 91 % 256) as u8).collect();
        let inputs = [Tensor::from_slice(shape, &data)];
        let wanted = interp::run(&graph, &inputs).unwrap().remove(0);
        for target in byte_targets() {
            assert_eq!(wanted.data, run(&graph, &inputs, &target).data, "{shape:?}");
        }
    }
}

/// Rows of two axes are tiled as one; where they follow each other at one stride, nothing is divided to find them.
#[test]
fn rows_at_one_stride_take_no_division() {
    let symbol = |at: u32| Dim::sym(Sym::from_u32(at));
    for (rows, columns) in [
        (vec![symbol(0), symbol(1)], 48),
        (vec![symbol(0), Dim::from(7usize), symbol(1)], 40),
        (vec![Dim::from(8usize), Dim::from(9usize)], 16),
    ] {
        let graph = product_of(rows, &[32], columns, 16, &noise);
        let program = schedule(&graph, Options::default()).unwrap();
        let target = Target::host().unwrap();
        for group in program.groups.values() {
            let kernel = lower(&graph, group, "product", &target.core).unwrap();
            let (mut names, mut divisions) = (0, 0);
            visit::stmts(&kernel.body, &mut |stmt| match stmt {
                Stmt::Let { value: Expr::Index(index), .. } => names += usize::from(index.divides()),
                Stmt::Store { index, .. } => divisions += usize::from(index.divides()),
                _ => {}
            });
            visit::exprs(&kernel.body, &mut |expr| {
                if let Expr::Load { index, .. } = expr {
                    divisions += usize::from(index.divides());
                }
            });
            // The panel and the part of its rows are found by division, once for all tiles of a part.
            assert!(names <= 2 && divisions == 0, "{kernel}");
        }
    }
}

/// `2^24 + 1 + 1 + ..` in f32 stays at `2^24`, one term at a time.
#[test]
fn long_sums_are_made_of_short_ones() {
    let large = |at: usize| if at < 16 { 16_777_216.0 } else { 1.0 };
    for shape in [vec![6, 1024], vec![6, 4, 256], vec![6, 2, 3, 512]] {
        let terms: usize = shape[1..].iter().product();
        let graph = product(&shape, 1, 16, 16, &large);
        let ones = Tensor::from_slice(&shape, &vec![1f32; 6 * terms]);
        for target in targets() {
            for sum in run(&graph, std::slice::from_ref(&ones), &target).to_f64s().unwrap() {
                // What shares a part with the large term is lost.
                assert!(sum >= 16_777_216.0 + (terms - 256) as f64, "{shape:?}: {sum}");
            }
        }
    }
}

/// A tensor whose element number `at` is `value(at)`.
fn drawn<T: Element>(shape: &[usize], value: impl Fn(usize) -> T) -> Tensor {
    let values: Vec<T> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_slice(shape, &values)
}

fn known([height, width, channels]: [usize; 3]) -> ([Dim; 2], usize) {
    ([height, width].map(Dim::from), channels)
}

/// A window of an image in a border of `fill`, with gaps between its taps, contracted over its taps and channels. The weights are
/// `[3, 3, channels, 40]`: floats, or i8 for an image of u8.
fn dilated(
    (sizes, channels): ([Dim; 2], usize),
    stride: usize,
    dilation: usize,
    fill: Tensor,
    weights: Tensor,
) -> Graph {
    let mut graph = Graph { name: "dilated".into(), ..Graph::default() };
    let origin = graph.origins.push(Origin::new("dilated", "Conv", 0));
    for name in sizes.iter().filter(|size| !size.is_const()).map(Dim::to_string) {
        graph.symbols.push(Symbol { name });
    }
    let mut b = Builder::new(&mut graph, origin);
    let [height, width] = sizes;
    let x = vec![Dim::ONE, height, width, Dim::from(channels)];
    let x = b.input("x", TensorType::new(fill.dtype, x), None);
    let border = vec![Dim::ZERO, Dim::from(dilation), Dim::from(dilation), Dim::ZERO];
    let fill = b.constant(fill);
    let padded = b.pad(x, fill, border.clone(), border).unwrap();
    let (strides, dilations) = (vec![stride; 2], vec![dilation; 2]);
    let windows = Op::Window { first: 1, kernel: vec![3, 3], strides, dilations };
    let windows = b.emit1(windows, &[padded]).unwrap();
    let depth = if weights.dtype == DType::I8 { DOT_DEPTH } else { 1 };
    let shape = |dims: &[usize]| dims.iter().map(|&dim| Dim::from(dim)).collect::<Vec<_>>();
    let rhs = b.constant(weights);
    let rhs = b.reshape(rhs, shape(&[3, 3, channels / depth, depth, 40])).unwrap();
    let rhs = b.transpose(rhs, &[0, 1, 2, 4, 3]).unwrap();
    let rhs = b.reshape(rhs, shape(&[3, 3, channels / depth, 40 * depth])).unwrap();
    let packed = b.emit1(Op::Pack { batch: 0, k: 3, nr: 16 * depth }, &[rhs]).unwrap();
    let rhs = RhsLayout::Panels { nr: 16, depth, n: Dim::from(40usize) };
    let y = b.emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs }, &[windows, packed]).unwrap();
    graph.outputs.push(("y".into(), y));
    graph
}

/// The same on every target as by the interpreter. Gives whether there are branches around taps.
fn check_taps(graph: &Graph, input: Tensor) -> bool {
    let inputs = [input];
    let wanted = interp::run(graph, &inputs).unwrap().remove(0);
    let floats = |tensor: &Tensor| match tensor.dtype {
        DType::I32 => tensor.values::<i32>().into_iter().map(f64::from).collect(),
        _ => tensor.to_f64s().unwrap(),
    };
    for target in targets() {
        let got = run(graph, &inputs, &target);
        let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-4 || a.is_nan() && b.is_nan();
        assert!(floats(&wanted).iter().zip(&floats(&got)).all(same), "{:?}", inputs[0].shape);
    }
    let program = schedule(graph, Options::default()).unwrap();
    let group = program.groups.values().find(|group| group.kind == onnxc_schedule::GroupKind::Contract);
    let kernel = lower(graph, group.unwrap(), "dilated", &Target::host().unwrap().core).unwrap();
    // The last columns of a panel have a branch with another comparison.
    kernel.to_string().contains(">= index(")
}

/// Taps that read padding only are left out, for images smaller and larger than the gaps of the window, and not where a
/// weight is infinite.
#[test]
fn taps_that_read_padding_are_left_out() {
    let infinite = |at: usize| if at == 7 { f32::INFINITY } else { noise(at) };
    for (image, stride, dilation) in [
        ([16, 16, 300], 1, 12),
        ([5, 40, 8], 1, 24),
        ([40, 5, 8], 1, 24),
        ([17, 23, 8], 2, 3),
        ([1, 1, 260], 1, 36),
        ([2, 15, 8], 1, 2),
        ([9, 31, 8], 3, 7),
        ([3, 20, 8], 1, 1),
        ([2, 33, 20], 2, 1),
    ] {
        let input = drawn(&[1, image[0], image[1], image[2]], |at| noise(at + 77));
        for finite in [true, false] {
            let weights = |at| if finite { noise(at) } else { infinite(at) };
            let weights = drawn(&[3, 3, image[2], 40], weights);
            let zero = Tensor::from_slice(&[], &[0f32]);
            let branches = check_taps(&dilated(known(image), stride, dilation, zero, weights), input.clone());
            // Where tiles hold all rows of an image, they need none.
            let few = image == [2, 33, 20];
            assert!(if finite { branches || few } else { !branches }, "{image:?} {finite}");
        }
    }
}

/// Images of sizes known and known only at run time, without memory for the padding.
#[test]
fn images_padded_without_memory() {
    let symbols = [0, 1].map(|at| Dim::sym(Sym::from_u32(at)));
    for (image, stride, dilation) in [
        ([16, 16, 300], 1, 12),
        ([5, 40, 8], 1, 24),
        ([40, 5, 8], 1, 24),
        ([17, 23, 8], 2, 7),
        ([1, 1, 260], 1, 36),
        ([9, 31, 8], 3, 7),
        ([13, 14, 8], 1, 6),
        ([30, 3, 1], 1, 6),
        ([0, 9, 8], 1, 6),
    ] {
        let input = drawn(&[1, image[0], image[1], image[2]], |at| noise(at + 77));
        let weights = drawn(&[3, 3, image[2], 40], noise);
        for sizes in [known(image).0, symbols.clone()] {
            // Steps of more than 1 leave the order of more than two places open.
            let implicit = (sizes[0].is_const() || stride == 1) && image[2] > 1;
            let zero = Tensor::from_slice(&[], &[0f32]);
            let mut graph = dilated((sizes, image[2]), stride, dilation, zero, weights.clone());
            pass::run_one(pass::by_name("implicit_padding").unwrap(), &mut graph, &pass::Options::default())
                .unwrap();
            let live = graph.order.iter().map(|node| &graph.nodes[*node].op);
            assert_eq!(live.clone().any(|op| matches!(op, Op::ImplicitPad { .. })), implicit);
            assert!(check_taps(&graph, input.clone()), "{image:?}");
        }
    }
}

/// The same of bytes, whose border is the zero point: only where that is 0.
#[test]
fn taps_of_bytes_that_read_padding_are_left_out() {
    let byte = |at: usize| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8;
    for (image, stride, dilation) in [
        ([5, 40, 8], 1, 24),
        ([17, 23, 8], 2, 3),
        ([3, 20, 8], 1, 1),
        ([14, 14, 8], 1, 1),
        ([2, 33, 20], 2, 1),
    ] {
        let input = drawn(&[1, image[0], image[1], image[2]], |at| byte(at + 77));
        for zero_point in [0u8, 3] {
            let weights = drawn(&[3, 3, image[2], 40], |at| byte(at) as i8);
            let fill = Tensor::from_slice(&[], &[zero_point]);
            let branches = check_taps(&dilated(known(image), stride, dilation, fill, weights), input.clone());
            let few = image == [2, 33, 20];
            assert!(if zero_point == 0 { branches || few } else { !branches }, "{image:?} {zero_point}");
        }
    }
}

/// A product of `rows` with weights of `bits` in `parts` of `steps`, per column a scale and, if `zero`, a zero for each part.
fn product_of_codes(
    rows: &[Dim],
    [parts, steps, columns, nr]: [usize; 4],
    bits: usize,
    zero: bool,
    scale: DType,
) -> Graph {
    let mut graph = Graph { name: "codes".into(), ..Graph::default() };
    let origin = graph.origins.push(Origin::new("codes", "Codes", 0));
    let mut b = Builder::new(&mut graph, origin);
    let mut dims = rows.to_vec();
    dims.extend([parts, steps].map(Dim::from));
    let lhs = b.input("x", TensorType::new(DType::F32, dims), None);
    let (panels, per_word) =
        (columns.div_ceil(nr), codes_per_word(bits, if bits == 8 { DType::I8 } else { DType::I32 }).unwrap());
    let shape = [panels, parts, steps / per_word, nr];
    let word = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let count = shape.iter().product();
    let codes = match bits {
        8 => Tensor::from_slice(&shape, &(0..count).map(|at| word(at) as i8).collect::<Vec<_>>()),
        _ => Tensor::from_slice(&shape, &(0..count).map(|at| word(at) as i32).collect::<Vec<_>>()),
    };
    let shape = [panels, parts, nr];
    let mut parameter = |from: usize, by: f32| {
        let values: Vec<f32> = (0..panels * parts * nr).map(|at| noise(at + from) * by).collect();
        let value = interp::cast(&Tensor::from_slice(&shape, &values), scale, true);
        b.constant(value)
    };
    let mut parameters = vec![parameter(5, 0.25)];
    if zero {
        parameters.push(parameter(11, 7.0));
    }
    let inputs = [&[b.constant(codes)], &parameters[..]].concat();
    let bias = if bits == 8 { 0 } else { 1 << (bits - 1) };
    let weights = b.emit1(Op::Dequantize { bits, bias }, &inputs).unwrap();
    let rhs = RhsLayout::Panels { nr, depth: 1, n: Dim::from(columns) };
    let y = b.emit1(Op::Contract { batch: 0, m: rows.len(), k: 2, rhs }, &[lhs, weights]).unwrap();
    graph.outputs.push(("y".into(), y));
    graph
}

/// Holds what the machine computes against the evaluator, relative to the size of the terms.
fn check(graph: &Graph, shape: &[usize], scale: f64, what: &str) {
    let data: Vec<f32> = (0..shape.iter().product()).map(|at| noise(at + 77)).collect();
    let inputs = [Tensor::from_slice(shape, &data)];
    let wanted = interp::run(graph, &inputs).unwrap().remove(0).to_f64s().unwrap();
    for target in byte_targets() {
        let got = run(graph, &inputs, &target).to_f64s().unwrap();
        assert_eq!(wanted.len(), got.len());
        for (at, (wanted, got)) in wanted.iter().zip(&got).enumerate() {
            assert!((wanted - got).abs() <= 1e-6 * scale, "{what}, element {at}: {got}, not {wanted}");
        }
    }
}

/// Weights of few bits, for one row, for few, and for enough rows to widen them in blocks.
#[test]
fn weights_of_few_bits() {
    for (rows, [parts, steps, columns, nr], bits, zero, scale) in [
        (vec![1], [28, 32, 200, 64], 4, false, DType::F32),
        (vec![1], [3, 16, 5, 8], 4, true, DType::F16),
        (vec![3], [2, 16, 64, 16], 2, true, DType::F32),
        (vec![2], [5, 24, 70, 32], 8, true, DType::BF16),
        (vec![37], [28, 32, 200, 64], 4, true, DType::F32),
        (vec![2, 33], [7, 128, 40, 16], 4, false, DType::F16),
        (vec![64], [1, 1000, 33, 32], 8, false, DType::F32),
        (vec![29], [6, 48, 12, 8], 2, false, DType::F32),
        (vec![0], [2, 16, 20, 16], 4, false, DType::F32),
        (vec![130], [3, 40, 100, 64], 8, true, DType::F32),
    ] {
        let dims: Vec<Dim> = rows.iter().map(|&size| Dim::from(size)).collect();
        let graph = product_of_codes(&dims, [parts, steps, columns, nr], bits, zero, scale);
        let shape = [rows.clone(), vec![parts, steps]].concat();
        let terms = (parts * steps) as f64 * f64::from(1 << bits);
        check(&graph, &shape, terms, &format!("{rows:?} x {parts} x {steps} x {columns}, {bits} bits"));
    }
}

/// Weights of 16 bits, widened in registers or, for many rows, in blocks: whole inner axes and parts of one.
#[test]
fn weights_of_16_bits() {
    for (shape, rows, columns, nr) in [
        (vec![1, 300], 1, 40, 32),
        (vec![27, 300], 1, 40, 32),
        (vec![28, 2000], 1, 70, 32),
        (vec![29, 1024], 1, 40, 32),
        (vec![197, 1024], 1, 70, 32),
        (vec![3, 142, 512], 2, 40, 32),
        (vec![61, 1024], 1, 100, 16),
        (vec![3, 41, 3, 3, 64], 2, 70, 32),
        (vec![40, 2, 2, 17], 1, 33, 16),
        (vec![100, 31], 1, 20, 16),
        (vec![40, 0], 1, 20, 16),
        (vec![500, 96], 1, 20, 16),
        (vec![1, 13, 13, 48], 3, 64, 32),
        (vec![1, 55, 55, 64], 3, 16, 16),
    ] {
        for dtype in [DType::F16, DType::BF16] {
            let mut graph = Graph { name: "halves".into(), ..Graph::default() };
            let origin = Origin::new("halves", "Halves", 0);
            let origin = graph.origins.push(origin);
            let mut b = Builder::new(&mut graph, origin);
            let dims: Vec<Dim> = shape.iter().map(|&size: &usize| Dim::from(size)).collect();
            let lhs = b.input("x", TensorType::new(DType::F32, dims), None);
            let mut own = shape[rows..].to_vec();
            own.push(columns);
            let data: Vec<f32> = (0..own.iter().product()).map(noise).collect();
            let weights = b.constant(interp::cast(&Tensor::from_slice(&own, &data), dtype, true));
            let k = own.len() - 1;
            let packed = b.emit1(Op::Pack { batch: 0, k, nr }, &[weights]).unwrap();
            let rhs = RhsLayout::Panels { nr, depth: 1, n: Dim::from(columns) };
            let y = b.emit1(Op::Contract { batch: 0, m: rows, k, rhs }, &[lhs, packed]).unwrap();
            graph.outputs.push(("y".into(), y));
            let terms = shape[rows..].iter().product::<usize>() as f64;
            check(&graph, &shape, terms, &format!("{shape:?} x {columns} in {dtype}"));
        }
    }
}

/// Bytes are one word where they lie side by side in one buffer.
#[test]
fn words_are_neighbours_of_one_buffer() {
    let at = |buf: usize, index: i64| Expr::Load {
        buf: Buf::new(buf),
        index: Index::var(Var::new(0)).add(&Index::int(index)),
    };
    let bytes = |step: i64| [0, 1, 2, 3].map(|byte| at(1, 5 + step * byte));
    let Expr::Load { buf, index } = at(1, 5) else { unreachable!() };
    assert_eq!(word(&bytes(1)), Some(Expr::Word { buf, index }));
    for step in [-1, 0, 2] {
        assert_eq!(word(&bytes(step)), None, "steps of {step}");
    }
    let [a, b, c, d] = bytes(1);
    assert_eq!(word(&[a.clone(), c.clone(), b.clone(), d]), None);
    assert_eq!(word(&[a, b, c, at(0, 8)]), None);
}

/// A kernel that widens its weights for many rows, and its tasks.
fn staged_product(rows: usize, inner: usize, columns: usize) -> (Kernel, i64) {
    let nr = 32;
    let rhs = Tensor::zeros(DType::F16, &[columns.div_ceil(nr), inner, nr]);
    let layout = RhsLayout::Panels { nr, depth: 1, n: Dim::from(columns) };
    let graph = contraction(DType::F32, &[rows, inner], 1, rhs, layout);
    let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("x86-64-v4")).unwrap();
    let target = target.leaf().unwrap();
    let program = schedule(&graph, Options::default()).unwrap();
    let kernel = lower(&graph, program.groups.values().next().unwrap(), "parts", &target).unwrap();
    assert!(kernel.buffers.values().any(|buffer| buffer.name == "panel"), "{rows} rows are not staged");
    // A single task needs no loop.
    let tasks = kernel.parallel_range().map_or(1, |(_, hi)| hi.as_const().unwrap());
    (kernel, tasks)
}

/// Products that widen their weights for many rows are shared among threads, also where there are few columns.
#[test]
fn staged_products_have_parts() {
    let tasks = |rows, columns| staged_product(rows, 144, columns).1;
    assert_eq!([tasks(784, 24), tasks(196, 96), tasks(100, 24)], [8, 6, 1]);
}

/// Each part has the same number of rows, also where the sums of all rows would fit in memory together.
#[test]
fn parts_of_staged_products_are_alike() {
    let (mut kernel, tasks) = staged_product(140, 258, 24);
    assert!(kernel.buffers.values().any(|buffer| buffer.name == "sums"), "the panel is widened as a whole");
    let rows_of_tasks = (0..tasks).map(|task| {
        let [Stmt::For { lo, hi, .. }] = &mut kernel.body[..] else { panic!("a single task") };
        (*lo, *hi) = (Index::int(task), Index::int(task + 1));
        let fill = |buffer: &Buffer| {
            let byte = if buffer.access == Access::Read { 0 } else { u8::MAX };
            vec![byte; buffer.len.as_const().unwrap() as usize * buffer.dtype.size()]
        };
        let mut buffers: Vec<Vec<u8>> = kernel.buffers.values().map(fill).collect();
        loops::interp::run(&kernel, &mut buffers, &|_| None).unwrap();
        let result = kernel.buffers.values().position(|buffer| buffer.access == Access::Write).unwrap();
        buffers[result].chunks(4).filter(|bytes| **bytes != [u8::MAX; 4]).count() / 24
    });
    assert_eq!(rows_of_tasks.collect::<Vec<usize>>(), [70, 70]);
}
