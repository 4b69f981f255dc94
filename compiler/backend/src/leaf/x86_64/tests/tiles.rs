//! Products on tiles: one kernel through the interpreters of both levels, the emulator and, where this process may, the
//! processor.

use super::*;
use crate::codegen::testing::{Runnable, level_here};
use crate::leaf;
use crate::vector;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Dim, Graph, Op as Primitive, Origin, RhsLayout, Sym, Tensor, TensorType};
use onnxc_loops as loops;
use onnxc_loops::{Kernel, math, program};
use onnxc_machine::target::Target;
use onnxc_schedule as schedule;
use onnxc_schedule::schedule;

/// A processor with tiles, named or that at hand.
fn target(cpu: &str) -> Option<Target> {
    let triple = "x86_64-unknown-linux-gnu".parse().unwrap();
    Target::new(triple, Some(cpu)).unwrap().upgrades.pop()
}

fn sapphirerapids() -> Target {
    target("sapphirerapids").unwrap()
}

/// Whether this process may use tiles. Asking is what grants it.
fn are_here() -> bool {
    let native = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("native")).unwrap();
    !native.upgrades.is_empty() && level_here(&native) == 1
}

/// Random bytes, or those at the ends of both ranges.
fn bytes(count: usize, seed: usize, extreme: bool) -> Vec<u8> {
    let mut state = seed as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as usize
    };
    let ends = [0x80u8, 0xff, 0x7f, 0];
    (0..count).map(|_| if extreme { ends[next() % 4] } else { next() as u8 }).collect()
}

/// Runs a kernel in every way there is; gives the buffers after it, which are the same.
fn run_all(kernel: &Kernel, buffers: &[Vec<u8>], what: &str) -> Vec<Vec<u8>> {
    loops::verify::verify(kernel).unwrap_or_else(|error| panic!("{what}: {error}\n{kernel}"));
    let mut kernel = kernel.clone();
    math::expand(&mut kernel);
    let target = sapphirerapids().leaf().unwrap();
    let none = |_: Sym| None;
    let range =
        kernel.parallel_range().map_or((0, 0), |(lo, hi)| (lo.as_const().unwrap(), hi.as_const().unwrap()));
    let mut wanted = buffers.to_vec();
    assert_eq!(loops::interp::run(&kernel, &mut wanted, &none).unwrap(), 0);
    let func =
        vector::lower(&kernel, target.wide.unwrap()).unwrap_or_else(|why| panic!("{what}: {why}\n{kernel}"));
    assert_eq!(
        func.to_string(),
        onnxc_machine::vector::parse::parse(&func.to_string()).unwrap().to_string(),
        "{what}"
    );
    let mut interpreted = buffers.to_vec();
    assert_eq!(onnxc_machine::vector::interp::run(&func, &mut interpreted, &[], range).unwrap(), 0);
    assert_eq!(wanted, interpreted, "{what}: the vector IR computes something else");
    let code = leaf::compile(&kernel, target.wide.unwrap()).unwrap().unwrap();
    let mut emulated = buffers.to_vec();
    let lengths: Vec<usize> = emulated.iter().map(Vec::len).collect();
    let pointers: Vec<*mut u8> = emulated.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
    assert_eq!(Emulator::new(&code.bytes).call(&pointers, Some(&lengths), &[0; 8], range), 0);
    assert_eq!(wanted, emulated, "{what}: the code computes something else");
    if are_here() {
        let mut native = buffers.to_vec();
        assert_eq!(Runnable::new(&code, native.len()).run(&mut native, &[0; 8], range), 0);
        assert_eq!(wanted, native, "{what}: the processor computes something else");
    }
    wanted
}

/// Every mix of signs and sizes of all kinds, by way of the frame.
#[test]
fn products_of_every_sign() {
    for (rows, steps, columns) in [(1, 1, 1), (16, 16, 16), (7, 5, 3), (16, 1, 16), (13, 16, 9), (2, 15, 16)]
    {
        for (a, b) in [("u8", "u8"), ("u8", "i8"), ("i8", "u8"), ("i8", "i8")] {
            for extreme in [false, true] {
                // Rows lie further apart than they are long.
                let (x, y, z) = (4 * steps + 3, 4 * columns + 1, columns + 2);
                let (lhs, rhs, out) = (rows * x, steps * y, rows * z);
                let text = format!(
                    r#"kernel "dot" {{
                      buffer b0 "x" : read {a}[{lhs}]
                      buffer b1 "y" : read {b}[{rhs}]
                      buffer b2 "z" : readwrite i32[{out}]
                      buffer b3 "sums" : frame i32[256]
                      tile t0 "sum" : i32[{rows}, {columns}]
                      tile t1 "a" : {a}[{rows}, {}]
                      tile t2 "b" : {b}[{steps}, {}]
                      load t1 = b0[1] stride {x}
                      load t2 = b1[0] stride {y}
                      zero t0
                      dot t0 += t1 * t2
                      store b3[0] stride 16 = t0
                      load t0 = b2[0] stride {z}
                      dot t0 += t1 * t2
                      store b2[0] stride {z} = t0
                      for i0 in 0..{rows} {{
                        b2[{z}*i0 + {columns}] = b3[16*i0]
                      }}
                    }}"#,
                    4 * steps,
                    4 * columns
                );
                let kernel = loops::parse::parse(&text).unwrap();
                assert_eq!(kernel, loops::parse::parse(&kernel.to_string()).unwrap());
                let data = [lhs, rhs, 4 * out];
                let data: Vec<Vec<u8>> =
                    data.iter().enumerate().map(|(n, &len)| bytes(len, n + 1, extreme)).collect();
                let found = run_all(&kernel, &data, &format!("{a} {b} {rows} {steps} {columns}"));
                // Against the definition.
                let byte = |data: &[u8], at: usize, of: &str| match of {
                    "i8" => i32::from(data[at] as i8),
                    _ => i32::from(data[at]),
                };
                let sum =
                    |data: &[u8], at: usize| i32::from_le_bytes(data[4 * at..4 * at + 4].try_into().unwrap());
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let products = (0..4 * steps).map(|s| {
                        byte(&data[0], 1 + row * x + s, a) * byte(&data[1], s / 4 * y + 4 * column + s % 4, b)
                    });
                    let dot: i32 = products.sum();
                    let at = row * z + column;
                    assert_eq!(sum(&found[2], at), sum(&data[2], at).wrapping_add(dot), "{text}");
                    if column == 0 {
                        assert_eq!(sum(&found[2], row * z + columns), dot, "{text}");
                    }
                }
            }
        }
    }
}

/// Numbers of bf16 of all kinds but NaN, or small integers; sums of the former round, become infinite, and are flushed to zero.
fn bf16s(count: usize, seed: usize, drawn: bool) -> Vec<half::bf16> {
    let drawn_bits = |[low, high]: [u8; 2]| match half::bf16::from_bits(u16::from_le_bytes([low, high])) {
        number if number.is_finite() => number,
        _ => half::bf16::MIN_POSITIVE / half::bf16::from_f32(4.0),
    };
    let small = |[low, _]: [u8; 2]| half::bf16::from_f32(f32::from(low as i8 / 16));
    let pairs = bytes(2 * count, seed, false);
    pairs.as_chunks().0.iter().map(|&pair| if drawn { drawn_bits(pair) } else { small(pair) }).collect()
}

/// Of bf16, sizes of all kinds, in the order in which the processor adds up.
#[test]
fn products_of_bf16() {
    for (rows, steps, columns) in [(1, 1, 1), (16, 16, 16), (7, 5, 3), (16, 1, 16), (13, 16, 9), (2, 15, 16)]
    {
        for (drawn, seed) in [(false, 1), (true, 2), (true, 3), (true, 4)] {
            let (x, y, z) = (2 * steps + 3, 2 * columns + 1, columns + 2);
            let (lhs, rhs, out) = (rows * x, steps * y, rows * z);
            let text = format!(
                r#"kernel "dot" {{
                  buffer b0 "x" : read bf16[{lhs}]
                  buffer b1 "y" : read bf16[{rhs}]
                  buffer b2 "z" : readwrite f32[{out}]
                  tile t0 "sum" : f32[{rows}, {columns}]
                  tile t1 "a" : bf16[{rows}, {}]
                  tile t2 "b" : bf16[{steps}, {}]
                  load t1 = b0[1] stride {x}
                  load t2 = b1[0] stride {y}
                  load t0 = b2[0] stride {z}
                  dot t0 += t1 * t2
                  store b2[0] stride {z} = t0
                }}"#,
                2 * steps,
                2 * columns
            );
            let kernel = loops::parse::parse(&text).unwrap();
            let [a, b] = [(lhs, seed), (rhs, 7 * seed)].map(|(count, seed)| bf16s(count, seed, drawn));
            let sums: Vec<f32> = bf16s(out, 3 * seed, drawn).into_iter().map(half::bf16::to_f32).collect();
            let data = [a, b].map(|values| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
            let [lhs, rhs] = data;
            let before: Vec<u8> = sums.iter().flat_map(|x| x.to_le_bytes()).collect();
            let found = run_all(&kernel, &[lhs, rhs, before], &format!("bf16 {rows} {steps} {columns}"));
            if drawn {
                continue;
            }
            // Of small integers the sums are exact.
            let [a, b] =
                [(x * rows, seed), (y * steps, 7 * seed)].map(|(count, seed)| bf16s(count, seed, drawn));
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let products = (0..2 * steps)
                    .map(|s| a[1 + row * x + s].to_f32() * b[s / 2 * y + 2 * column + s % 2].to_f32());
                let (dot, at) = (products.sum::<f32>(), row * z + column);
                let result = f32::from_le_bytes(found[2][4 * at..4 * at + 4].try_into().unwrap());
                assert_eq!(result, sums[at] + dot, "{text}");
            }
        }
    }
}

/// The contraction of `x`, a view of bytes, with random weights of `columns` columns.
fn contraction(
    shape: Vec<Dim>,
    view: &[Primitive],
    rows: usize,
    columns: usize,
    extreme: bool,
    after: &dyn Fn(&mut Builder<'_>, onnxc_ir::graph::ValueId) -> onnxc_ir::graph::ValueId,
) -> Graph {
    let mut graph = Graph { name: "bytes".into(), ..Graph::default() };
    let origin = graph.origins.push(Origin::new("bytes", "Bytes", 0));
    let mut b = Builder::new(&mut graph, origin);
    let x = b.input("x", TensorType::new(DType::U8, shape), None);
    let lhs = view.iter().fold(x, |x, op| b.emit1(op.clone(), &[x]).unwrap());
    let mut weights: Vec<usize> =
        b.shape(lhs)[rows..].iter().map(|dim| dim.as_const().unwrap() as usize).collect();
    let k = weights.len();
    let nr = if columns > 16 { 32 } else { 16 };
    weights[k - 1] /= 4;
    weights.insert(0, columns.div_ceil(nr));
    weights.push(4 * nr);
    let data: Vec<i8> =
        bytes(weights.iter().product(), columns, extreme).into_iter().map(|byte| byte as i8).collect();
    let rhs = b.constant(Tensor::from_slice(&weights, &data));
    let layout = RhsLayout::Panels { nr, depth: 4, n: Dim::from(columns) };
    let y = b.emit1(Primitive::Contract { batch: 0, m: rows, k, rhs: layout }, &[lhs, rhs]).unwrap();
    let y = after(&mut b, y);
    graph.outputs.push(("y".into(), y));
    graph
}

fn known(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&size| Dim::from(size)).collect()
}

/// Whether a contraction is computed on tiles; its results are exact, on them and on vectors.
fn check(graph: &Graph, shape: &[usize], extreme: bool) -> bool {
    let program = schedule(graph, schedule::Options::default()).unwrap();
    let x = bytes(shape.iter().product(), 99, extreme);
    let inputs = [Tensor::from_slice(shape, &x)];
    let wanted = onnxc_ir::interp::run(graph, &inputs).unwrap().remove(0);
    let mut taken = false;
    for target in [sapphirerapids(), Target { upgrades: vec![], ..target_without() }] {
        let leaf = target.leaf().unwrap();
        let kernels: Vec<Kernel> = (program.groups.iter())
            .map(|(id, group)| loops::lower::lower(graph, group, &id.to_string(), &leaf).unwrap())
            .collect();
        taken |= kernels.iter().any(|kernel| !kernel.tiles.is_empty());
        let execute = |kernel: &Kernel, buffers: &mut [Vec<u8>], _: &dyn Fn(Sym) -> Option<i64>| {
            let after = run_all(kernel, buffers, &format!("{shape:?}"));
            buffers.iter_mut().zip(after).for_each(|(buffer, after)| *buffer = after);
            Ok(0)
        };
        let found = program::run(graph, &program, &kernels.into(), &inputs, &execute).unwrap().remove(0);
        assert_eq!(wanted.data, found.data, "{shape:?} for {}", target.cpu);
    }
    taken
}

/// The same processor as its vectors alone have it.
fn target_without() -> Target {
    Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("sapphirerapids")).unwrap()
}

fn as_it_is(_: &mut Builder<'_>, y: onnxc_ir::graph::ValueId) -> onnxc_ir::graph::ValueId {
    y
}

#[test]
fn products_of_every_size() {
    let (mut taken, mut count) = (0, 0);
    let mut product = |rows: usize, columns: usize, steps: usize, extreme: bool| {
        let graph = contraction(known(&[rows, steps]), &[], 1, columns, extreme, &as_it_is);
        taken += u32::from(check(&graph, &[rows, steps], extreme));
        count += 1;
    };
    (1..=33).for_each(|rows| product(rows, 33, 132, false));
    (1..=33).for_each(|columns| product(18, columns, 68, true));
    (1..=33).for_each(|words| product(35, 20, 4 * words, words % 2 == 0));
    for (rows, columns, steps) in [(49, 64, 512), (65, 16, 200), (100, 48, 60)] {
        product(rows, columns, steps, true);
    }
    assert!(taken > 85 && taken < count, "{taken} of {count}");
}

/// Windows of images, whose rows are neighbours in a row of the image: side by side, and every other one.
#[test]
fn windows_of_images() {
    for (height, width, channels, stride) in [(9, 9, 64, 1), (9, 18, 32, 1), (15, 15, 64, 2), (6, 21, 20, 1)]
    {
        let window = Primitive::Window {
            first: 1,
            kernel: vec![3, 3],
            strides: vec![stride; 2],
            dilations: vec![1, 1],
        };
        let shape = [1, height, width, channels];
        let graph = contraction(known(&shape), &[window], 3, 40, true, &as_it_is);
        assert!(check(&graph, &shape, true), "{shape:?}");
    }
}

/// Two blocks of rows have their sums at once, of three and of four; a rest of rows follows them.
#[test]
fn blocks_behind_the_last_row_are_left_out() {
    for rows in [97, 112, 128] {
        let graph = contraction(known(&[rows, 64]), &[], 1, 32, false, &as_it_is);
        assert!(check(&graph, &[rows, 64], false), "{rows} rows");
    }
}

/// Threads share the rows of a panel: what is left behind whole blocks of rows is one thread's.
#[test]
fn rows_of_one_panel_are_shared() {
    let leaf = sapphirerapids().leaf().unwrap();
    for rows in [Dim::sym(Sym::from_u32(0)), Dim::from(4001usize), Dim::from(4016usize)] {
        let graph = contraction(vec![rows.clone(), Dim::from(64usize)], &[], 1, 32, false, &as_it_is);
        let program = schedule(&graph, schedule::Options::default()).unwrap();
        for (id, group) in program.groups.iter() {
            let kernel = loops::lower::lower(&graph, group, &id.to_string(), &leaf).unwrap();
            assert!(!kernel.tiles.is_empty() && kernel.parallel_range().is_some(), "{rows} rows\n{kernel}");
            assert_eq!(loops::verify::verify(&kernel), Ok(()), "{rows} rows\n{kernel}");
        }
    }
}
