//! Graphs whose kernels are leaf kernels: their code against the loop IR interpreter, the reference evaluator and the
//! code of Cranelift.

use super::{decode, has_evex};
use crate::codegen::testing::{Runnable, build_at};
use crate::leaf;
use crate::leaf::x86_64::emulator::Emulator;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Dim, Graph, Op, Origin, OriginId, RhsLayout, Sym, Tensor, TensorType, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use onnxc_ir::{error, interp};
use onnxc_loops as loops;
use onnxc_loops::{Kernel, math, program};
use onnxc_machine::target::{Core, Target};
use onnxc_passes as pass;
use onnxc_passes::PackPolicy;
use onnxc_schedule as schedule;
use onnxc_schedule::{Program, schedule};

/// AVX2 and AVX-512 at all widths, the widest first.
pub(super) fn targets() -> [Target; 5] {
    let target = |cpu, bits| {
        let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some(cpu)).unwrap();
        target.with_vector_width(bits).unwrap()
    };
    let (v3, v4) = ("x86-64-v3", "x86-64-v4");
    [target(v4, 512), target(v4, 256), target(v4, 128), target(v3, 256), target(v3, 128)]
}

/// Why kernels with vectors of 64 bits per element have no form of 128 bits.
const NO_PAIRS: &str = "vectors of two lanes of 64 bits";

pub(super) fn graph(fill: impl FnOnce(&mut Builder<'_>) -> error::Result<ValueId>) -> Graph {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let out = fill(&mut Builder::new(&mut graph, OriginId::from_u32(0))).unwrap();
    graph.outputs.push(("y".into(), out));
    graph
}

pub(super) fn input(b: &mut Builder<'_>, dtype: DType, sizes: &[usize]) -> ValueId {
    b.input("x", TensorType::new(dtype, sizes.iter().map(|&size| Dim::from(size)).collect()), None)
}

/// Small numbers in an order that repeats late.
fn tensor(sizes: &[usize]) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f32> = (0..count).map(|n| ((n * 7919 + 13) % 257) as f32 / 128.0 - 1.0).collect();
    Tensor::from_slice(sizes, &values)
}

/// How close results are.
#[derive(Clone, Copy)]
pub(super) enum Close {
    /// Every bit but for those of NaNs and the sign of zero.
    Exactly,
    /// Within this part of the largest one.
    Within(f64),
}

fn assert_close(found: &Tensor, expected: &Tensor, close: Close, what: &str) {
    assert_eq!((found.dtype, &found.shape), (expected.dtype, &expected.shape));
    let (Some(a), Some(b)) = (found.to_f64s(), expected.to_f64s()) else {
        assert_eq!(found.data, expected.data, "{what}");
        return;
    };
    let scale = b.iter().filter(|x| x.is_finite()).fold(1f64, |scale, x| scale.max(x.abs()));
    for (at, (a, b)) in a.iter().zip(&b).enumerate() {
        let near = match close {
            Close::Exactly => false,
            Close::Within(part) => (a - b).abs() <= part * scale,
        };
        assert!(a == b || a.is_nan() && b.is_nan() || near, "{what}: element {at} is {a}, not {b}");
    }
}

fn lower(graph: &Graph, program: &Program, core: &Core) -> Vec<Kernel> {
    let lower = |(id, group): (schedule::GroupId, &schedule::Group)| {
        let mut kernel = loops::lower::lower(graph, group, &id.to_string(), core).unwrap();
        math::expand(&mut kernel);
        kernel
    };
    program.groups.iter().map(lower).collect()
}

/// Runs a graph on one input for a target, in every way there is. Gives the instructions of its kernels, which are leaf
/// kernels all; none where they are refused for [`NO_PAIRS`].
pub(super) fn check(graph: &Graph, x: &Tensor, target: &Target, close: Close) -> Vec<Vec<Instruction>> {
    check_packed(graph, x, target, target, close)
}

/// The same with panels for another level.
fn check_packed(
    graph: &Graph,
    x: &Tensor,
    target: &Target,
    level: &Target,
    close: Close,
) -> Vec<Vec<Instruction>> {
    let expected = interp::run(graph, std::slice::from_ref(x)).unwrap().remove(0);
    let mut graph = graph.clone();
    let pack = PackPolicy::for_target(level);
    let options = pass::Options { pack, ..pass::Options::default() };
    pass::run_all(&mut graph, &options, &mut |_, _, _| {}).unwrap();
    let program = schedule(&graph, schedule::Options { in_place: false, ..Default::default() }).unwrap();
    let leaf = target.leaf().unwrap();
    let inputs = std::slice::from_ref(x);
    let run = |kernels: &[Kernel], execute: program::Execute<'_, Kernel>| {
        program::run(&graph, &program, &kernels.to_vec().into(), inputs, execute).unwrap().remove(0)
    };
    let range = |kernel: &Kernel, symbols: &dyn Fn(Sym) -> Option<i64>| {
        let value = |dim: &Dim| dim.eval(symbols).unwrap();
        kernel.parallel_range().map_or((0, 0), |(lo, hi)| (value(lo), value(hi)))
    };

    let kernels = lower(&graph, &program, &leaf);
    let mut code = Vec::new();
    let mut codes = std::collections::HashMap::new();
    for kernel in &kernels {
        match leaf::compile(kernel, leaf.wide.unwrap()).unwrap() {
            Ok(compiled) => {
                code.push(decode(&compiled.bytes[..compiled.instructions]));
                codes.insert(kernel.name.clone(), compiled);
            }
            Err(why) if leaf.vector_bytes == 16 && why == NO_PAIRS => return vec![],
            Err(why) => panic!("{why}: {kernel}"),
        }
    }
    let interpreted = run(&kernels, &loops::interp::run);
    let emulated = run(&kernels, &|kernel, buffers, symbols| {
        let lengths: Vec<usize> = buffers.iter().map(Vec::len).collect();
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
        let emulator = Emulator::new(&codes[&kernel.name].bytes);
        Ok(emulator.call(&pointers, Some(&lengths), &[0; 8], range(kernel, symbols)) as u32)
    });
    assert_close(&emulated, &interpreted, close, "emulated and interpreted");
    if !leaf.wide.unwrap().evex() {
        let native = run(&kernels, &|kernel, buffers, symbols| {
            let code = Runnable::new(&codes[&kernel.name], buffers.len());
            Ok(code.run(buffers, &[0; 8], range(kernel, symbols)) as u32)
        });
        assert_eq!(native.data, emulated.data, "the emulator computes other bits");
    }
    let tolerance = match close {
        Close::Exactly => Close::Within(1e-6),
        other => other,
    };
    assert_close(&emulated, &expected, tolerance, "emulated and evaluated");
    // Cranelift's kernels have vectors of 128 bits, and panels that were laid out for these ones. They run here.
    let [v4, _, _, v3, _] = targets();
    let narrow = lower(&graph, &program, &v4.core);
    let here = if has_evex() { v4 } else { v3 };
    let cranelift = run(&narrow, &|kernel, buffers, symbols| {
        Ok(build_at(kernel, None, &here).run(buffers, &[0; 8], range(kernel, symbols)) as u32)
    });
    assert_close(&emulated, &cranelift, tolerance, "emulated and Cranelift's");
    code
}

/// Floats at the edges and between them.
fn edges(count: usize) -> Tensor {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-40,
        -1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        0.3,
        -0.7,
        88.9,
        -104.5,
        3.5,
        2.5,
        1e10,
    ];
    let values: Vec<f32> = (0..count).map(|n| values[n % values.len()]).collect();
    Tensor::from_slice(&[count], &values)
}

#[test]
fn functions_of_every_length() {
    use UnaryFn::*;
    for count in (1..=36).chain([63, 64, 79]) {
        let functions = graph(|b| {
            let x = input(b, DType::F32, &[count]);
            let mut parts = Vec::new();
            for function in [Exp, Log, Tanh, Erf, Sigmoid, Sqrt, Floor, Ceil, Round, Trunc, Neg, Abs, Recip] {
                parts.push(b.unary(function, x)?);
            }
            let limit = b.scalar(DType::F32, 0.25);
            let mut sum = parts[0];
            for (n, &part) in parts.iter().enumerate() {
                // Every comparison, and every way to join two of them.
                let function = CompareFn::ALL[n % CompareFn::ALL.len()];
                let first = b.compare(function, x, limit)?;
                let second = b.compare(CompareFn::Lt, part, sum)?;
                let joined = [BinaryFn::And, BinaryFn::Or, BinaryFn::Xor][n % 3];
                let mut both = b.binary(joined, first, second)?;
                if n % 2 == 1 {
                    both = b.unary(Not, both)?;
                }
                let larger = b.binary(if n % 2 == 0 { BinaryFn::Max } else { BinaryFn::Min }, part, sum)?;
                sum = b.select(both, part, larger)?;
            }
            Ok(sum)
        });
        for target in targets() {
            check(&functions, &edges(count), &target, Close::Exactly);
        }
    }
}

#[test]
fn integers_of_every_length() {
    for count in (1..=36).chain([79]) {
        let functions = graph(|b| {
            let x = input(b, DType::I32, &[count]);
            let three = b.scalar(DType::I32, 3.0);
            let mut y = b.binary(BinaryFn::Mul, x, three)?;
            for (n, &function) in CompareFn::ALL.iter().enumerate() {
                let condition = b.compare(function, x, three)?;
                let part = [BinaryFn::Add, BinaryFn::Sub, BinaryFn::Max, BinaryFn::Min][n % 4];
                let part = b.binary(part, y, x)?;
                y = b.select(condition, part, y)?;
            }
            Ok(y)
        });
        let values: Vec<i32> =
            (0..count).map(|n| [3, -3, 4, i32::MAX, i32::MIN, 0, 1, -1, 2][n % 9]).collect();
        let x = Tensor::from_slice(&[count], &values);
        for target in targets() {
            check(&functions, &x, &target, Close::Exactly);
        }
    }
}

/// Of rows that end anywhere.
#[test]
fn softmax_rows() {
    for columns in (1..=20).chain([31, 32, 33, 63, 64, 100, 197]) {
        let softmax = graph(|b| {
            let x = input(b, DType::F32, &[3, columns]);
            let most = b.reduce(ReduceFn::Max, x, &[1])?;
            let shifted = b.binary(BinaryFn::Sub, x, most)?;
            let powers = b.unary(UnaryFn::Exp, shifted)?;
            let sum = b.reduce(ReduceFn::Sum, powers, &[1])?;
            b.binary(BinaryFn::Div, powers, sum)
        });
        let mut values: Vec<f32> =
            tensor(&[3, columns]).to_f64s().unwrap().iter().map(|&x| x as f32).collect();
        // One row with minus infinity, one with NaN.
        values[0] = f32::NEG_INFINITY;
        values[2 * columns] = f32::NAN;
        let x = Tensor::from_slice(&[3, columns], &values);
        for target in targets() {
            check(&softmax, &x, &target, Close::Within(1e-6));
        }
    }
}

fn product(m: usize, k: usize, n: usize) -> Graph {
    graph(|b| {
        let x = input(b, DType::F32, &[m, k]);
        let (weights, bias) = (b.constant(tensor(&[k, n])), b.constant(tensor(&[n])));
        let y = b.matmul(x, weights)?;
        let y = b.binary(BinaryFn::Add, y, bias)?;
        b.binary_scalar(BinaryFn::Max, y, 0.0)
    })
}

#[test]
fn matrix_products() {
    // Whole tiles; a rest of rows and columns; one row; few columns; panels of three vectors; shapes of one.
    for (m, k, n) in
        [(28, 64, 96), (33, 70, 77), (1, 100, 130), (5, 9, 3), (20, 31, 144), (1, 1, 1), (15, 17, 16)]
    {
        for target in targets() {
            check(&product(m, k, n), &tensor(&[m, k]), &target, Close::Within(1e-5));
        }
    }
}

#[test]
fn convolutions() {
    let convolution = graph(|b| {
        let x = input(b, DType::F32, &[1, 9, 11, 5]);
        let (weights, bias) = (b.constant(tensor(&[3, 3, 5, 40])), b.constant(tensor(&[40])));
        let fill = b.scalar(DType::F32, 0.0);
        let amounts: Vec<Dim> = [0i64, 1, 1, 0].map(Dim::from).to_vec();
        let x = b.pad(x, fill, amounts.clone(), amounts)?;
        let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![2; 2], dilations: vec![1; 2] };
        let x = b.emit1(op, &[x])?;
        let y = b.emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, &[x, weights])?;
        b.binary(BinaryFn::Add, y, bias)
    });
    let depthwise = |sizes: &[usize; 4]| {
        graph(|b| {
            let x = input(b, DType::F32, sizes);
            let weights = b.constant(tensor(&[3, 3, sizes[3]]));
            let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
            let x = b.emit1(op, &[x])?;
            let weights = b.transpose(weights, &[0, 1, 2])?;
            let y = b.binary(BinaryFn::Mul, x, weights)?;
            b.reduce(ReduceFn::Sum, y, &[3, 4])
        })
    };
    for target in targets() {
        check(&convolution, &tensor(&[1, 9, 11, 5]), &target, Close::Within(1e-5));
        // The second one's channels come in blocks.
        for sizes in [[1, 8, 9, 37], [2, 5, 30, 160]] {
            check(&depthwise(&sizes), &tensor(&sizes), &target, Close::Within(1e-5));
        }
    }
}

/// The innermost loop of a large product: sums, factors and nothing else.
#[test]
fn large_product_keeps_its_sums_in_registers() {
    let [v4, ..] = targets();
    let kernels = check(&product(28, 64, 96), &tensor(&[28, 64]), &v4, Close::Within(1e-5));
    let insts = kernels.iter().max_by_key(|insts| insts.len()).unwrap();
    let fused = |i: &&Instruction| i.mnemonic() == Mnemonic::Vfmadd231ps;
    let sums: std::collections::BTreeSet<Register> =
        insts.iter().filter(fused).map(|i| i.op0_register()).collect();
    assert_eq!(sums.len(), 28, "14 rows of two vectors: {}", super::text(insts));
    assert!(sums.iter().all(|reg| (Register::ZMM0..=Register::ZMM31).contains(reg)));
    // The jumps back to somewhere around a product span loops; the innermost is the shortest.
    let loops = insts.iter().enumerate().filter(|(_, i)| i.op0_kind() == OpKind::NearBranch64).filter_map(
        |(end, i)| {
            let start = insts.iter().position(|to| to.ip() == i.near_branch_target())?;
            insts.get(start..=end).filter(|body| body.iter().any(|i| fused(&i)))
        },
    );
    let body = loops.min_by_key(|body| body.len()).unwrap();
    let count = |mnemonic| body.iter().filter(|i| i.mnemonic() == mnemonic).count();
    let steps = count(Mnemonic::Vfmadd231ps) / 28;
    assert!(steps >= 5, "{}", super::text(body));
    assert_eq!(count(Mnemonic::Vfmadd231ps), 28 * steps);
    assert_eq!((count(Mnemonic::Vmovups), count(Mnemonic::Vbroadcastss)), (2 * steps, 14 * steps));
    // The rest moves the pointers, counts and jumps.
    assert!(body.len() < 44 * steps + 12, "{}", super::text(body));
    assert!(!body.iter().any(super::uses_stack), "{}", super::text(body));
}

/// One vector of columns: each element of the left-hand side is used once, as an operand of the product.
#[test]
fn narrow_product_has_its_factors_in_memory() {
    let [v4, ..] = targets();
    let kernels = check(&product(10, 64, 16), &tensor(&[10, 64]), &v4, Close::Within(1e-5));
    let products = kernels.iter().flatten().filter(|i| i.mnemonic() == Mnemonic::Vfmadd231ps);
    let (count, folded) =
        products.fold((0, 0), |(n, folded), i| (n + 1, folded + usize::from(i.is_broadcast())));
    assert!(count >= 50 && folded == count, "{folded} of {count}");
}

/// The sums of the tile that most instructions are about.
fn sums(kernels: &[Vec<Instruction>]) -> std::collections::BTreeSet<Register> {
    let insts = kernels.iter().max_by_key(|insts| insts.len()).unwrap();
    let fused = insts.iter().filter(|i| i.mnemonic() == Mnemonic::Vfmadd231ps);
    fused.map(|i| i.op0_register()).collect()
}

/// Panels that were made for vectors of 256 bits are read in the widest vectors that they are a multiple of, and tiles
/// are as tall as 32 registers let them be.
#[test]
fn panels_for_narrower_vectors() {
    let [v4, _, _, v3, _] = targets();
    let close = Close::Within(1e-5);
    for (n, count, first) in
        [(48, 14, Register::ZMM0), (72, 27, Register::YMM0), (8, 10, Register::YMM0), (4, 10, Register::XMM0)]
    {
        let m = if n == 72 { 27 } else { 140 };
        let kernels = check_packed(&product(m, 64, n), &tensor(&[m, 64]), &v4, &v3, close);
        let sums = sums(&kernels);
        assert_eq!(sums.len(), count, "{n} columns: {sums:?}");
        let registers = first as usize..first as usize + 32;
        assert!(sums.iter().all(|&reg| registers.contains(&(reg as usize))), "{n} columns: {sums:?}");
    }
    // Rests of rows and of columns, and a row alone.
    for (m, k, n) in [(33, 70, 77), (15, 17, 24), (28, 9, 33), (1, 100, 130), (1, 33, 1000), (1, 64, 72)] {
        check_packed(&product(m, k, n), &tensor(&[m, k]), &v4, &v3, close);
    }
}

/// Targets, and levels that their panels are made for: AVX-512 also reads those of AVX2.
fn targets_and_panels() -> [(Target, Target); 3] {
    let [v4, _, _, v3, _] = targets();
    [(v3.clone(), v3.clone()), (v4.clone(), v4.clone()), (v4, v3)]
}

/// More weights than the second-level cache keeps: each tile asks for a part of the panel that comes next. The cache is small, so that
/// there is little to emulate.
#[test]
fn large_weights_are_prefetched() {
    for (mut target, level) in targets_and_panels() {
        target.core.l2_bytes = 32 << 10;
        let graph = product(15, 65, 128);
        let kernels = check_packed(&graph, &tensor(&[15, 65]), &target, &level, Close::Within(1e-5));
        let asks = kernels.iter().flatten().filter(|i| i.mnemonic() == Mnemonic::Prefetcht1).count();
        assert!(asks > 0, "{} with panels for {}", target.cpu, level.cpu);
    }
}

#[test]
fn convolutions_by_minimal_filtering() {
    let (channels, filters) = (24, 40);
    let convolution = graph(|b| {
        let x = input(b, DType::F32, &[1, 14, 14, channels]);
        let (weights, bias) =
            (b.constant(tensor(&[3, 3, channels, filters])), b.constant(tensor(&[filters])));
        let fill = b.scalar(DType::F32, 0.0);
        let amounts: Vec<Dim> = [0i64, 1, 1, 0].map(Dim::from).to_vec();
        let x = b.pad(x, fill, amounts.clone(), amounts)?;
        let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
        let x = b.emit1(op, &[x])?;
        let y = b.emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, &[x, weights])?;
        let y = b.binary(BinaryFn::Add, y, bias)?;
        b.binary_scalar(BinaryFn::Max, y, 0.0)
    });
    for (target, level) in targets_and_panels() {
        let x = tensor(&[1, 14, 14, channels]);
        let kernels = check_packed(&convolution, &x, &target, &level, Close::Within(1e-5));
        assert!(kernels.len() > 2, "the transforms are kernels of their own: {}", kernels.len());
    }
}

/// A register that one side of a branch changes is read behind the branch.
#[test]
fn registers_change_in_branches() {
    let text = "kernel \"k\" {\n  buffer b0 \"x\" : read f32[1]\n  buffer b1 \"y\" : write f32[1]\n  local r0 \"sum\" : f32[]\n  \
                r0[] = b0[0]\n  for i0 in 0..5 {\n    if (index(i0) < index(3)) {\n      r0[] += 1:f32\n    } else {\n      \
                r0[] *= 2:f32\n    }\n    r0[] += 100:f32\n  }\n  b1[0] = r0[]\n}\n";
    let kernel = loops::parse::parse(text).unwrap();
    loops::verify::verify(&kernel).unwrap();
    for target in targets() {
        let leaf = target.leaf().unwrap();
        let code = leaf::compile(&kernel, leaf.wide.unwrap())
            .unwrap()
            .unwrap_or_else(|why| panic!("{why}: {kernel}"));
        let mut buffers = [7f32.to_le_bytes().to_vec(), vec![0; 4]];
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
        Emulator::new(&code.bytes).call(&pointers, Some(&[4, 4]), &[0; 8], (0, 0));
        // Three times one and a hundred more, then twice doubled with a hundred more.
        assert_eq!(buffers[1], 1540f32.to_le_bytes());
    }
}
