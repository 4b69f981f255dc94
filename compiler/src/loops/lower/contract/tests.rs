//! Contractions too large for the loop interpreter, compiled and run, against the evaluator.

use std::collections::HashMap;

use crate::backend::Backends;
use crate::codegen::testing::Runnable;
use crate::graph::dim::Sym;
use crate::graph::{Builder, DType, Dim, Graph, Op, Origin, RhsLayout, Tensor, TensorType};
use crate::interp;
use crate::loops::lower::lower;
use crate::loops::{Expr, Stmt, program, visit};
use crate::schedule::{Options, schedule};
use crate::target::Target;

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
    let origin = graph.origins.push(Origin { name: "product".into(), op_type: "Product".into(), index: 0 });
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
    let rhs = RhsLayout::Panels { nr, n: Dim::from(columns) };
    let y = b.emit1(Op::Contract { batch: 0, m, k, rhs }, &[lhs, packed]).unwrap();
    graph.outputs.push(("y".into(), y));
    graph
}

/// Compiles a graph and runs it.
fn run(graph: &Graph, inputs: &[Tensor], target: &Target) -> Tensor {
    let program = schedule(graph, Options::default()).unwrap();
    let backends = Backends::new(target).unwrap();
    let (mut kernels, mut codes) = (Vec::new(), HashMap::new());
    for group in program.groups.keys() {
        let built = backends.build(graph, &program, group).unwrap();
        codes.insert(built.kernel.name.clone(), built.code);
        kernels.push(built.kernel);
    }
    let execute = |kernel: &crate::loops::Kernel, buffers: &mut [Vec<u8>], _: &dyn Fn(Sym) -> Option<i64>| {
        let range = kernel.parallel_range().map_or((0, 0), |(lo, hi)| {
            let value = |dim: &Dim| dim.as_const().unwrap();
            (value(lo), value(hi))
        });
        Ok(Runnable::new(&codes[&kernel.name], buffers.len()).run(buffers, &[], range) as u32)
    };
    program::run(graph, &program, &kernels.into(), inputs, &execute).unwrap().remove(0)
}

fn noise(at: usize) -> f32 {
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
            let kernel = lower(&graph, group, "product", &target).unwrap();
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
