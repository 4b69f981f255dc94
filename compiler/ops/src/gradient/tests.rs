//! Every rule against central differences of the reference evaluator, in f64.

use super::*;
use onnxc_ir::graph::{DType, Graph, MapFn, OriginId, Symbol, Tensor, TensorType};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

/// Distance of the two points of a difference quotient, halved.
const STEP: f64 = 1e-5;

/// What a model computes from its inputs.
type Function<'a> = &'a dyn Fn(&mut Builder<'_>, &[ValueId]) -> Result<ValueId>;

fn builder(graph: &mut Graph) -> Builder<'_> {
    Builder::new(graph, OriginId::from_u32(0))
}

/// Numbers between 0.15 and 0.85, no two near each other, in no order.
fn numbers(count: usize, salt: usize) -> Vec<f64> {
    (0..count).map(|at| 0.15 + 0.7 * ((at * 37 + salt * 11) % 101) as f64 / 101.0).collect()
}

fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn inputs(shapes: &[&[usize]]) -> Vec<Tensor> {
    let drawn = |(salt, shape): (usize, &&[usize])| tensor(shape, &numbers(shape.iter().product(), salt));
    shapes.iter().enumerate().map(drawn).collect()
}

/// A graph that computes a weighted sum of the results of `function`, and its derivatives by all inputs of f64. With `symbolic`
/// no size of them is known in it.
fn differentiated(function: Function<'_>, inputs: &[Tensor], symbolic: bool) -> Result<Graph> {
    let mut graph = Graph::default();
    let mut xs = Vec::new();
    for (at, input) in inputs.iter().enumerate() {
        let mut size = |&size: &usize| match symbolic && input.dtype == DType::F64 {
            true => Dim::sym(graph.symbols.push(Symbol { name: format!("s{at}_{size}") })),
            false => Dim::from(size),
        };
        let shape = input.shape.iter().map(&mut size).collect();
        xs.push(builder(&mut graph).input(&format!("x{at}"), TensorType::new(input.dtype, shape), None));
    }
    let mut b = builder(&mut graph);
    let result = function(&mut b, &xs)?;
    // Each element has a weight of its own.
    let mut y = result;
    for axis in 0..b.rank(result) {
        let mut shape = vec![Dim::ONE; b.rank(result)];
        shape[axis] = b.shape(result)[axis].clone();
        let index = b.iota(shape, axis)?;
        let index = b.cast(index, DType::F64)?;
        let weight = b.binary_scalar(BinaryFn::Mul, index, 0.3)?;
        let weight = b.binary_scalar(BinaryFn::Add, weight, 1.0)?;
        y = b.binary(BinaryFn::Mul, y, weight)?;
    }
    let continuous: Vec<ValueId> = xs.iter().copied().filter(|&x| b.dtype(x) == DType::F64).collect();
    let found = gradients(&mut b, y, &continuous, 0, &mut |_| Ok(()))?;
    let axes: Vec<usize> = (0..b.rank(y)).collect();
    let sum = b.reduce(ReduceFn::Sum, y, &axes)?;
    let sum = b.reshape(sum, vec![])?;
    graph.outputs = [sum].into_iter().chain(found).map(|value| (String::new(), value)).collect();
    match onnxc_ir::verify::verify(&graph) {
        Ok(()) => Ok(graph),
        Err(mut errors) => Err(errors.remove(0)),
    }
}

/// Fails where a derivative is not that of the difference quotient.
fn check_with(name: &str, inputs: &[Tensor], function: Function<'_>) {
    for symbolic in [false, true] {
        let graph = match differentiated(function, inputs, symbolic) {
            Ok(graph) => graph,
            Err(error) => panic!("{name}: {error}"),
        };
        let run =
            |inputs: &[Tensor]| interp::run(&graph, inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = run(inputs);
        let continuous = (0..inputs.len()).filter(|&at| inputs[at].dtype == DType::F64);
        for (number, at) in continuous.enumerate() {
            let own = found[number + 1].to_f64s().unwrap();
            assert_eq!(found[number + 1].shape, inputs[at].shape, "{name}");
            let values = inputs[at].to_f64s().unwrap();
            for element in 0..values.len() {
                let moved = |by: f64| {
                    let (mut values, mut inputs) = (values.clone(), inputs.to_vec());
                    values[element] += by;
                    inputs[at] = tensor(&inputs[at].shape, &values);
                    run(&inputs)[0].to_f64s().unwrap()[0]
                };
                let wanted = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let error = (own[element] - wanted).abs();
                assert!(
                    error <= 1e-6 * (1.0 + wanted.abs()),
                    "{name}, symbolic {symbolic}: by element {element} of input {at}: {} and not {wanted}",
                    own[element]
                );
            }
        }
    }
}

fn check(name: &str, shapes: &[&[usize]], function: Function<'_>) {
    check_with(name, &inputs(shapes), function);
}

fn indices(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

#[test]
fn functions_of_one_number() {
    for &function in UnaryFn::ALL {
        let shift = if function == UnaryFn::Acosh { 1.0 } else { 0.0 };
        let name = function.name();
        let graph = differentiated(&|b, x| b.unary(function, x[0]), &inputs(&[&[3]]), false);
        match function {
            UnaryFn::Not | UnaryFn::BitNot | UnaryFn::Swap => {
                assert!(graph.is_err(), "{name} is not a function of real numbers");
                continue;
            }
            UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf => continue,
            _ => {}
        }
        for sign in [1.0, -1.0] {
            let needs_positive = matches!(function, UnaryFn::Sqrt | UnaryFn::Log | UnaryFn::Acosh);
            if sign < 0.0 && needs_positive {
                continue;
            }
            check(name, &[&[5]], &|b, x| {
                let x = b.binary_scalar(BinaryFn::Mul, x[0], sign)?;
                let x = b.binary_scalar(BinaryFn::Add, x, shift)?;
                b.unary(function, x)
            });
        }
    }
}

#[test]
fn functions_of_two_numbers() {
    for &function in BinaryFn::ALL {
        let integers = matches!(
            function,
            BinaryFn::And
                | BinaryFn::Or
                | BinaryFn::Xor
                | BinaryFn::BitAnd
                | BinaryFn::BitOr
                | BinaryFn::BitXor
                | BinaryFn::Shl
                | BinaryFn::Shr
        ) || function.is_dot();
        if integers {
            let graph = differentiated(&|b, x| b.binary(function, x[0], x[1]), &inputs(&[&[3], &[3]]), false);
            assert!(graph.is_err(), "{} is not a function of real numbers", function.name());
            continue;
        }
        // Broadcast one way, the other way, and both ways; ranks that differ; a number with itself.
        let shapes: [[&[usize]; 2]; 5] =
            [[&[2, 3], &[2, 3]], [&[2, 1], &[2, 3]], [&[2, 3], &[3]], [&[2, 1, 3], &[4, 1]], [&[], &[2]]];
        for shapes in shapes {
            check(function.name(), &shapes, &|b, x| b.binary(function, x[0], x[1]));
        }
        check(function.name(), &[&[3]], &|b, x| {
            let square = b.binary(BinaryFn::Mul, x[0], x[0])?;
            b.binary(function, x[0], square)
        });
    }
}

/// With symbols that are different, equal, or 1 in the run.
#[test]
fn symbolic_axes_are_summed_where_the_run_broadcasts_them() {
    for shapes in [[[4usize], [4]], [[1], [4]], [[4], [1]], [[0], [1]], [[1], [0]], [[1], [1]]] {
        let shapes: Vec<&[usize]> = shapes.iter().map(|shape| shape.as_slice()).collect();
        let product: Function<'_> = &|b, x| b.binary(BinaryFn::Mul, x[0], x[1]);
        let graph = differentiated(product, &inputs(&shapes), true).unwrap();
        assert!(graph.nodes.values().any(|node| matches!(node.op, Op::Reduce { .. })));
        check("a product", &shapes, product);
    }
}

#[test]
fn where_elements_are_chosen() {
    let half = |b: &mut Builder<'_>, x: ValueId| {
        let half = b.scalar(DType::F64, 0.5);
        b.compare(CompareFn::Gt, x, half)
    };
    check("select", &[&[6], &[6], &[1]], &|b, x| {
        let condition = half(b, x[0])?;
        let product = b.binary(BinaryFn::Mul, x[1], x[2])?;
        b.select(condition, product, x[2])
    });
    check("mul_add", &[&[2, 3], &[3], &[2, 1]], &|b, x| b.emit1(Op::Map(MapFn::MulAdd), x));
    // What goes through integers does not change with its operand.
    check("cast", &[&[4]], &|b, x| {
        let whole = b.cast(x[0], DType::I64)?;
        let whole = b.cast(whole, DType::F64)?;
        b.binary(BinaryFn::Add, x[0], whole)
    });
    let through = |b: &mut Builder<'_>, x: &[ValueId]| {
        let narrow = b.cast(x[0], DType::F32)?;
        b.cast(narrow, DType::F64)
    };
    let found =
        interp::run(&differentiated(&through, &inputs(&[&[2]]), false).unwrap(), &inputs(&[&[2]])).unwrap();
    assert_eq!(found[1].to_f64s().unwrap(), [1.0, f64::from(1.3f32)]);
}

/// Between two sides whose slopes differ the derivative is their mean, which is what a central difference is.
#[test]
fn corners_have_the_mean_slope() {
    let zeros = [tensor(&[2], &[0.0, 0.0])];
    check_with("abs", &zeros, &|b, x| b.unary(UnaryFn::Abs, x[0]));
    for function in [BinaryFn::Max, BinaryFn::Min] {
        check_with(function.name(), &zeros, &|b, x| b.binary_scalar(function, x[0], 0.0));
        let equal = [tensor(&[2], &[0.5, 0.5]), tensor(&[2], &[0.5, 0.5])];
        check_with(function.name(), &equal, &|b, x| b.binary(function, x[0], x[1]));
    }
    // Softplus as max(x, 0) + log1p(exp(-|x|)).
    check_with("softplus", &zeros, &|b, x| {
        let positive = b.binary_scalar(BinaryFn::Max, x[0], 0.0)?;
        let size = b.unary(UnaryFn::Abs, x[0])?;
        let negative = b.unary(UnaryFn::Neg, size)?;
        let exp = b.unary(UnaryFn::Exp, negative)?;
        let log = b.unary(UnaryFn::Log1p, exp)?;
        b.binary(BinaryFn::Add, positive, log)
    });
}

#[test]
fn powers_at_zero() {
    let graph =
        differentiated(&|b, x| b.binary(BinaryFn::Pow, x[0], x[1]), &inputs(&[&[3], &[3]]), false).unwrap();
    let found =
        interp::run(&graph, &[tensor(&[3], &[0.0, 0.0, 2.0]), tensor(&[3], &[0.0, 2.0, 0.0])]).unwrap();
    assert_eq!(found[1].to_f64s().unwrap(), [0.0, 0.0, 0.0]);
    assert_eq!(found[2].to_f64s().unwrap(), [0.0, 0.0, 1.6 * 2f64.ln()]);
}

#[test]
fn reductions() {
    for &function in ReduceFn::ALL {
        if matches!(function, ReduceFn::And | ReduceFn::Or) {
            continue;
        }
        for axes in [&[0][..], &[1], &[0, 2], &[0, 1, 2]] {
            check(function.name(), &[&[2, 3, 4]], &|b, x| {
                let y = b.reduce(function, x[0], axes)?;
                b.binary(BinaryFn::Mul, y, y)
            });
        }
    }
    // A product with zeros: none, one and two of them.
    let values = [0.5, 0.25, 2.0, 0.0, 3.0, 0.5, 0.0, 0.0, 4.0];
    check_with("a product with zeros", &[tensor(&[3, 3], &values)], &|b, x| {
        b.reduce(ReduceFn::Prod, x[0], &[1])
    });
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        check("cumulate", &[&[3, 4]], &|b, x| {
            b.emit1(Op::Cumulate { op: ReduceFn::Sum, axis: 1, exclusive, reverse }, &[x[0]])
        });
        for op in [ReduceFn::Prod, ReduceFn::Max, ReduceFn::Min] {
            // Without the identity, which an exclusive one begins with.
            let (from, size) =
                if reverse { (0, 3 - usize::from(exclusive)) } else { (usize::from(exclusive), 3) };
            let (from, size) = (Dim::from(from), Dim::from(size) - Dim::from(if reverse { 0 } else { from }));
            check("cumulate", &[&[3, 4]], &|b, x| {
                let y = b.emit1(Op::Cumulate { op, axis: 0, exclusive, reverse }, &[x[0]])?;
                b.slice_axis(y, 0, from.clone(), size.clone())
            });
        }
        // With zeros.
        check_with("a running product", &[tensor(&[4], &[0.5, 0.0, 2.0, 0.0])], &|b, x| {
            b.emit1(Op::Cumulate { op: ReduceFn::Prod, axis: 0, exclusive, reverse }, &[x[0]])
        });
    }
    check("softmax", &[&[3, 4]], &|b, x| {
        let most = b.reduce(ReduceFn::Max, x[0], &[1])?;
        let less = b.binary(BinaryFn::Sub, x[0], most)?;
        let exp = b.unary(UnaryFn::Exp, less)?;
        let sum = b.reduce(ReduceFn::Sum, exp, &[1])?;
        b.binary(BinaryFn::Div, exp, sum)
    });
}

/// Several equal extremes have equal parts of the adjoint.
#[test]
fn equal_extremes_share() {
    let graph = differentiated(&|b, x| b.reduce(ReduceFn::Max, x[0], &[0]), &inputs(&[&[4]]), false).unwrap();
    let found = interp::run(&graph, &[tensor(&[4], &[1.0, 3.0, 3.0, 2.0])]).unwrap();
    assert_eq!(found[1].to_f64s().unwrap(), [0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn contractions() {
    let shapes: [([&[usize]; 2], [usize; 3]); 6] = [
        ([&[2, 3], &[3, 4]], [0, 1, 1]),
        ([&[3], &[3, 4]], [0, 0, 1]),
        ([&[2, 3, 4], &[3, 4, 2]], [0, 1, 2]),
        ([&[2, 3, 4, 2], &[2, 4, 2, 3]], [1, 1, 2]),
        ([&[2, 1, 3, 4], &[1, 3, 4, 2]], [2, 1, 1]),
        ([&[2, 3, 4], &[2, 5]], [1, 2, 0]),
    ];
    for (shapes, [batch, m, k]) in shapes {
        let op = Op::Contract { batch, m, k, rhs: RhsLayout::Plain };
        check(&format!("a contraction {batch} {m} {k}"), &shapes, &|b, x| b.emit1(op.clone(), x));
    }
    check("a product with itself", &[&[3, 3]], &|b, x| b.matmul(x[0], x[0]));
}

#[test]
fn what_is_moved() {
    check("reshape", &[&[2, 6]], &|b, x| {
        let y = b.reshape(x[0], vec![Dim::from(3usize), Dim::from(4usize)])?;
        b.binary(BinaryFn::Mul, y, y)
    });
    check("transpose", &[&[2, 3, 4]], &|b, x| b.transpose(x[0], &[2, 0, 1]));
    check("expand", &[&[3, 1]], &|b, x| {
        b.expand(x[0], vec![Dim::from(2usize), Dim::from(3usize), Dim::from(4usize)])
    });
    for (start, step, size) in
        [(0i64, 1, 3i64), (2, 1, 5), (1, 2, 3), (6, -1, 7), (5, -2, 3), (3, 1, 0), (6, 3, 1)]
    {
        check(&format!("a slice {start} {step} {size}"), &[&[7, 2]], &|b, x| {
            let (starts, sizes) =
                (vec![Dim::from(start), Dim::ZERO], vec![Dim::from(size), b.shape(x[0])[1].clone()]);
            b.emit1(Op::Slice { starts, steps: vec![step, 1], sizes }, &[x[0]])
        });
    }
    // Neighbouring slices of one value, in any order: with gaps, overlaps, and what reads all of it.
    for parts in [
        &[(0i64, 2i64), (2, 3), (5, 2)][..],
        &[(5, 2), (0, 2), (2, 3)],
        &[(2, 2), (4, 1)],
        &[(0, 3), (4, 3)],
        &[(0, 4), (2, 5), (4, 3)],
        &[(1, 2), (1, 2), (3, 1)],
        &[(0, 7), (0, 3), (3, 4)],
    ] {
        check(&format!("slices {parts:?}"), &[&[2, 7]], &|b, x| {
            let mut sum = None;
            for (number, &(start, size)) in parts.iter().enumerate() {
                let part = b.slice_axis(x[0], 1, Dim::from(start), Dim::from(size))?;
                let part = b.binary_scalar(BinaryFn::Mul, part, 0.7 + number as f64)?;
                let square = b.binary(BinaryFn::Mul, part, part)?;
                let own = b.reduce(ReduceFn::Sum, square, &[1])?;
                sum = Some(match sum {
                    Some(sum) => b.binary(BinaryFn::Mul, sum, own)?,
                    None => own,
                });
            }
            Ok(sum.unwrap())
        });
    }
    check("a reversed axis", &[&[5]], &|b, x| {
        let sizes = b.shape(x[0]);
        b.emit1(Op::Slice { starts: vec![sizes[0].clone() - Dim::ONE], steps: vec![-1], sizes }, &[x[0]])
    });
    check("pad", &[&[2, 3], &[]], &|b, x| {
        b.pad(x[0], x[1], vec![Dim::ONE, Dim::ZERO], vec![Dim::from(2usize), Dim::ONE])
    });
    check("concat", &[&[2, 3], &[2, 1]], &|b, x| b.concat(&[x[0], x[1], x[0]], 1));
}

#[test]
fn windows() {
    let window = |first: usize, kernel: &[usize], strides: &[usize], dilations: &[usize]| {
        let [kernel, strides, dilations] = [kernel, strides, dilations].map(<[usize]>::to_vec);
        Op::Window { first, kernel, strides, dilations }
    };
    let cases: [(&[usize], Op); 6] = [
        (&[7], window(0, &[3], &[1], &[1])),
        (&[2, 9, 2], window(1, &[3], &[2], &[1])),
        (&[9], window(0, &[2], &[3], &[2])),
        (&[8], window(0, &[2], &[2], &[1])),
        (&[2, 6, 7, 3], window(1, &[3, 2], &[1, 2], &[2, 1])),
        (&[5, 6, 5], window(0, &[2, 3, 2], &[2, 1, 1], &[1, 2, 1])),
    ];
    for (shape, op) in cases {
        check(&format!("{op:?}"), &[shape], &|b, x| {
            let y = b.emit1(op.clone(), &[x[0]])?;
            b.binary(BinaryFn::Mul, y, y)
        });
    }
}

/// A plain convolution of images `[n, h, w, c]` and one by channel, whose derivatives by the images are convolutions too.
#[test]
fn convolutions() {
    let cases = [
        ([1, 5, 4, 9], [3, 2], [1, 1], [1, 1]),
        ([2, 6, 7, 8], [2, 3], [1, 1], [2, 1]),
        ([1, 7, 6, 8], [3, 3], [2, 1], [1, 2]),
        ([1, 5, 5, 2], [3, 3], [1, 1], [1, 1]),
        ([1, 4, 6, 8], [1, 1], [1, 2], [1, 1]),
        ([1, 3, 8, 8], [1, 5], [1, 1], [1, 1]),
    ];
    std::thread::scope(|scope| {
        for (shape, kernel, strides, dilations) in cases {
            scope.spawn(move || convolutions_of(shape, kernel, strides, dilations));
        }
    });
}

fn convolutions_of(shape: [usize; 4], kernel: [usize; 2], strides: [usize; 2], dilations: [usize; 2]) {
    let windows = |b: &mut Builder<'_>, x: ValueId| {
        let [kernel, strides, dilations] = [kernel, strides, dilations].map(|list| list.to_vec());
        b.emit1(Op::Window { first: 1, kernel, strides, dilations }, &[x])
    };
    let name = format!("{shape:?}, kernel {kernel:?}, strides {strides:?}, dilations {dilations:?}");
    let weights = [kernel[0], kernel[1], shape[3], 3];
    check(&format!("{name}, whole"), &[&shape, &weights], &|b, x| {
        let windows = windows(b, x[0])?;
        let op = Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain };
        let y = b.emit1(op, &[windows, x[1]])?;
        b.binary(BinaryFn::Mul, y, y)
    });
    let padded = |b: &mut Builder<'_>, x: ValueId| {
        let fill = b.scalar(DType::F64, 0.0);
        let [lo, hi] =
            [[0, 1, 2, 0], [0, 2, 0, 0]].map(|list| list.map(|size: i64| Dim::from(size)).to_vec());
        b.pad(x, fill, lo, hi)
    };
    check(&format!("{name}, padded"), &[&shape, &weights], &|b, x| {
        let images = padded(b, x[0])?;
        let windows = windows(b, images)?;
        let op = Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain };
        let y = b.emit1(op, &[windows, x[1]])?;
        b.binary(BinaryFn::Mul, y, y)
    });
    check(&format!("{name}, padded, by channel"), &[&shape, &weights[..3]], &|b, x| {
        let images = padded(b, x[0])?;
        let windows = windows(b, images)?;
        let products = b.binary(BinaryFn::Mul, windows, x[1])?;
        let y = b.reduce(ReduceFn::Sum, products, &[3, 4])?;
        b.binary(BinaryFn::Mul, y, y)
    });
    for exchanged in [false, true] {
        check(&format!("{name}, by channel"), &[&shape, &weights[..3]], &|b, x| {
            let windows = windows(b, x[0])?;
            let [l, r] = if exchanged { [x[1], windows] } else { [windows, x[1]] };
            let products = b.binary(BinaryFn::Mul, l, r)?;
            let y = b.reduce(ReduceFn::Sum, products, &[3, 4])?;
            b.binary(BinaryFn::Mul, y, y)
        });
    }
}

/// The derivative by weights that a product reads transposed is a product alone.
#[test]
fn transposed_weights() {
    let product = |b: &mut Builder<'_>, x: &[ValueId]| {
        let weights = b.transpose(x[1], &[1, 0])?;
        let m = b.rank(x[0]) - 1;
        let y = b.emit1(Op::Contract { batch: 0, m, k: 1, rhs: RhsLayout::Plain }, &[x[0], weights])?;
        b.binary(BinaryFn::Mul, y, y)
    };
    for shape in [&[3, 4][..], &[2, 3, 4]] {
        check("a product with transposed weights", &[shape, &[5, 4]], &product);
    }
    let graph = differentiated(&product, &inputs(&[&[3, 4], &[5, 4]]), false).unwrap();
    let last = graph.producer(graph.outputs[2].1).unwrap();
    assert!(matches!(graph.nodes[last].op, Op::Contract { .. }), "{:?}", graph.nodes[last].op);
}

#[test]
fn what_is_taken_by_index() {
    let data = |shape: &[usize]| tensor(shape, &numbers(shape.iter().product(), 3));
    for axis in 0..3 {
        let inputs = [data(&[3, 4, 3]), indices(&[2, 2], &[0, 2, -1, 2])];
        check_with("gather", &inputs, &|b, x| b.emit1(Op::Gather { axis }, x));
    }
    check_with("a scalar index", &[data(&[3, 2]), indices(&[], &[1])], &|b, x| {
        b.emit1(Op::Gather { axis: 1 }, x)
    });
    for axis in 0..2 {
        let inputs = [data(&[2, 3]), indices(&[2, 2], &[1, 0, 1, -2])];
        check_with("gather_elements", &inputs, &|b, x| b.emit1(Op::GatherElements { axis }, x));
    }
    check_with("gather_nd", &[data(&[2, 3, 2]), indices(&[3, 2], &[0, 1, 1, -1, 0, 1])], &|b, x| {
        b.emit1(Op::GatherNd { batch: 0 }, x)
    });
    check_with("gather_nd by batch", &[data(&[2, 3, 2]), indices(&[2, 1], &[2, 0])], &|b, x| {
        b.emit1(Op::GatherNd { batch: 1 }, x)
    });
    let combines = [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Max, BinaryFn::Min];
    for combine in combines.into_iter().map(Some) {
        // Several updates of one element.
        let updates =
            [data(&[2, 3]), indices(&[2, 3], &[1, 0, 1, 1, -2, 2]), tensor(&[2, 3], &numbers(6, 5))];
        check_with("scatter_elements", &updates, &|b, x| {
            b.emit1(Op::ScatterElements { axis: 1, combine }, x)
        });
        let updates = [data(&[3, 2]), indices(&[4, 1], &[2, 0, 2, -1]), tensor(&[4, 2], &numbers(8, 5))];
        check_with("scatter_nd", &updates, &|b, x| b.emit1(Op::ScatterNd { combine }, x));
    }
    // Factors that are 0: none, one and two of an element.
    let combine = Some(BinaryFn::Mul);
    for zeros in [[0.5, 0.25, 2.0], [0.0, 0.25, 2.0], [0.0, 0.0, 2.0], [0.5, 0.25, 0.0]] {
        for first in [0.0, 0.75] {
            let inputs = [tensor(&[2], &[first, 0.5]), indices(&[3], &[0, 0, 1]), tensor(&[3], &zeros)];
            check_with("a scattered product", &inputs, &|b, x| {
                b.emit1(Op::ScatterElements { axis: 0, combine }, x)
            });
        }
    }
    for combine in [None, Some(BinaryFn::Add)] {
        let inputs = [data(&[2, 3]), indices(&[2, 2], &[1, 0, 2, 1]), data(&[2, 2])];
        check_with("scatter_elements", &inputs, &|b, x| b.emit1(Op::ScatterElements { axis: 1, combine }, x));
        let inputs = [data(&[3, 2]), indices(&[2, 1], &[2, 0]), data(&[2, 2])];
        check_with("scatter_nd", &inputs, &|b, x| b.emit1(Op::ScatterNd { combine }, x));
    }
    for (descending, take) in [(false, 4usize), (true, 2)] {
        check("sort", &[&[2, 4]], &|b, x| Ok(b.sort(x[0], 1, descending, Dim::from(take))?.0));
    }
    // Where nothing is read of what is floating, the positions alone.
    check("argsort", &[&[4]], &|b, x| {
        let order = b.sort(x[0], 0, false, Dim::from(4usize))?.1;
        let order = b.cast(order, DType::F64)?;
        b.binary(BinaryFn::Mul, order, x[0])
    });
}

/// A value with several readers, one that the result does not depend on, and the result itself.
#[test]
fn sums_over_readers() {
    check("readers", &[&[3], &[3]], &|b, x| {
        let product = b.binary(BinaryFn::Mul, x[0], x[1])?;
        let sum = b.binary(BinaryFn::Add, product, x[0])?;
        b.binary(BinaryFn::Mul, sum, product)
    });
    check("one that is not read", &[&[3], &[2]], &|b, x| b.unary(UnaryFn::Exp, x[0]));
    check("the input itself", &[&[3]], &|_, x| Ok(x[0]));
    check("nothing", &[&[0, 3], &[3]], &|b, x| b.binary(BinaryFn::Mul, x[0], x[1]));
    // Twice: the second derivative.
    check("of a derivative", &[&[4]], &|b, x| {
        let first = b.graph.order.len();
        let cube = b.unary(UnaryFn::Tanh, x[0])?;
        Ok(gradients(b, cube, &[x[0]], first, &mut |_| Ok(()))?[0])
    });
}

/// A carried value that grows has no derivative: what iterations keep would have no common shape.
#[test]
fn what_has_no_rule_is_named() {
    let longer = |b: &mut Builder<'_>, x: &[ValueId]| {
        let (mut graph, origin) = b.body();
        let size = b.fresh_symbol();
        graph.adopt_symbols(b.graph);
        let mut inner = Builder::new(&mut graph, origin);
        let sizes = inner.input("", TensorType::new(DType::I64, vec![Dim::ONE]), None);
        let state = inner.input("", TensorType::new(DType::F64, vec![Dim::sym(size)]), None);
        let next = inner.concat(&[state, state], 0)?;
        let next = inner.unary(UnaryFn::Sin, next)?;
        let dims = vec![Dim::sym(size) * Dim::from(2usize)];
        let now = inner.emit1(Op::DimValues { dims }, &[])?;
        graph.data.insert(size, onnxc_ir::graph::DataSymbol::new(sizes, 0, None));
        graph.outputs = vec![(String::new(), now), (String::new(), next)];
        let last = b.fresh_symbol();
        let op = Op::Scan {
            body: graph.into(),
            trip: Dim::from(2usize),
            conditional: false,
            states: 2,
            scans: 0,
            reverse: vec![],
            shapes: [(1, vec![Dim::sym(last)])].into(),
        };
        let first = b.i64s(&[3]);
        let results = b.emit(op, &[first, x[0]])?;
        b.graph.define_symbol(last, results[0], 0, None);
        Ok(results[1])
    };
    let error = differentiated(&longer, &inputs(&[&[3]]), false).unwrap_err();
    assert!(error.message.starts_with("the derivative of `scan` with result"), "{}", error.message);
    assert!(error.message.ends_with("values of other sizes than they are given"), "{}", error.message);
}

/// The body of a loop: a state `h` of 3 numbers, a slice of 3 numbers, weights that it captures. What it gives is the next state and a
/// part.
fn cell(outer: &Builder<'_>, state: &TensorType) -> Graph {
    let (mut graph, origin) = outer.body();
    let mut b = Builder::new(&mut graph, origin);
    let weights = TensorType::new(DType::F64, vec![Dim::from(3usize), Dim::from(3usize)]);
    let h = b.input("h", state.clone(), None);
    let x = b.input("x", state.clone(), None);
    let w = b.input("w", weights, None);
    let scale = b.input("scale", state.clone(), None);
    let mut emit = || -> Result<[ValueId; 2]> {
        let row = b.unsqueeze(h, &[0])?;
        let product = b.matmul(row, w)?;
        let product = b.reshape(product, b.shape(h))?;
        let sum = b.binary(BinaryFn::Add, product, x)?;
        let next = b.unary(UnaryFn::Tanh, sum)?;
        let scaled = b.binary(BinaryFn::Mul, next, scale)?;
        Ok([next, b.binary(BinaryFn::Mul, scaled, h)?])
    };
    let outputs = emit().unwrap();
    graph.outputs = outputs.into_iter().map(|value| (String::new(), value)).collect();
    graph
}

/// A loop of that body over `x[1]`, from `x[0]` on, by the weights `x[2]` and `x[3]`, forwards or backwards.
fn looped(b: &mut Builder<'_>, x: &[ValueId], reverse: [bool; 2]) -> Result<[ValueId; 2]> {
    let (ty, trip) = (b.ty(x[0]).clone(), b.shape(x[1])[0].clone());
    let slice = TensorType::new(DType::F64, b.shape(x[1])[1..].to_vec());
    let x1 = if slice == ty { x[1] } else { b.reshape(x[1], vec![trip.clone(), ty.shape[0].clone()])? };
    let scale = b.reshape(x[3], ty.shape.clone())?;
    let three = Dim::from(3usize);
    let w = b.reshape(x[2], vec![three.clone(), three])?;
    let body = cell(b, &ty);
    let results = b.emit(Op::scan(body, trip, 1, 1, reverse.to_vec()), &[x[0], x1, w, scale])?;
    Ok([results[0], results[1]])
}

#[test]
fn loops() {
    let shapes: [&[usize]; 4] = [&[3], &[4, 3], &[3, 3], &[3]];
    for reverse in [[false, false], [true, false], [false, true], [true, true]] {
        check("the last state", &shapes, &|b, x| {
            let h = b.reshape(x[0], vec![Dim::from(3usize)])?;
            Ok(looped(b, &[h, x[1], x[2], x[3]], reverse)?[0])
        });
        check("what is stacked", &shapes, &|b, x| {
            let h = b.reshape(x[0], vec![Dim::from(3usize)])?;
            Ok(looped(b, &[h, x[1], x[2], x[3]], reverse)?[1])
        });
    }
    check("no iteration", &[&[3], &[0, 3], &[3, 3], &[3]], &|b, x| {
        let h = b.reshape(x[0], vec![Dim::from(3usize)])?;
        let [last, parts] = looped(b, &[h, x[1], x[2], x[3]], [false, true])?;
        let last = b.unsqueeze(last, &[0])?;
        b.concat(&[last, parts], 0)
    });
    check("both results, twice differentiated", &shapes, &|b, x| {
        let first = b.graph.order.len();
        let h = b.reshape(x[0], vec![Dim::from(3usize)])?;
        let [last, parts] = looped(b, &[h, x[1], x[2], x[3]], [true, false])?;
        let last = b.unsqueeze(last, &[0])?;
        let both = b.concat(&[last, parts], 0)?;
        let squares = b.binary(BinaryFn::Mul, both, both)?;
        Ok(gradients(b, squares, &[x[2]], first, &mut |_| Ok(()))?[0])
    });
}

/// A loop in the body of a loop, with states of both.
#[test]
fn loops_inside_each_other() {
    let shapes: [&[usize]; 4] = [&[3], &[2, 3], &[3, 3], &[3]];
    check("nested", &shapes, &|b, x| {
        let three = Dim::from(3usize);
        let h = b.reshape(x[0], vec![three.clone()])?;
        let xs = b.reshape(x[1], vec![Dim::from(2usize), three.clone()])?;
        let w = b.reshape(x[2], vec![three.clone(), three.clone()])?;
        let scale = b.reshape(x[3], vec![three.clone()])?;
        let (mut graph, origin) = b.body();
        let mut inner = Builder::new(&mut graph, origin);
        let types = [h, xs, w, scale].map(|value| b.ty(value).clone());
        let inputs = types.map(|ty| inner.input("", ty, None));
        let [last, parts] = looped(&mut inner, &inputs, [false, true])?;
        let sum = inner.reduce(ReduceFn::Sum, parts, &[0])?;
        let sum = inner.reshape(sum, vec![three])?;
        let next = inner.binary(BinaryFn::Add, last, sum)?;
        graph.outputs = vec![(String::new(), next), (String::new(), last)];
        let results = b.emit(Op::scan(graph, Dim::from(3usize), 1, 0, vec![false]), &[h, xs, w, scale])?;
        let last = b.unsqueeze(results[0], &[0])?;
        b.concat(&[last, results[1]], 0)
    });
}

/// A loop that runs while its state is below a limit, and one that counts its iterations itself.
#[test]
fn loops_that_data_end() {
    check("a condition", &[&[2], &[2]], &|b, x| {
        let two = Dim::from(2usize);
        let (h, w) = (b.reshape(x[0], vec![two.clone()])?, b.reshape(x[1], vec![two.clone()])?);
        let (mut graph, origin) = b.body();
        let mut inner = Builder::new(&mut graph, origin);
        let of = TensorType::new(DType::F64, vec![two]);
        inner.input("goes_on", TensorType::new(DType::Bool, vec![]), None);
        let (state, by) = (inner.input("h", of.clone(), None), inner.input("w", of, None));
        let scaled = inner.binary(BinaryFn::Mul, state, by)?;
        let grown = inner.unary(UnaryFn::Exp, scaled)?;
        let next = inner.binary(BinaryFn::Add, state, grown)?;
        let sum = inner.reduce(ReduceFn::Sum, next, &[0])?;
        let sum = inner.reshape(sum, vec![])?;
        let limit = inner.scalar(DType::F64, 20.0);
        let goes_on = inner.compare(CompareFn::Lt, sum, limit)?;
        graph.outputs = vec![(String::new(), goes_on), (String::new(), next)];
        let op = Op::Scan {
            body: graph.into(),
            trip: Dim::from(50usize),
            conditional: true,
            states: 2,
            scans: 0,
            reverse: vec![],
            shapes: Default::default(),
        };
        let start = b.constant(Tensor::scalar(true));
        Ok(b.emit(op, &[start, h, w])?[1])
    });
}

#[test]
fn choices() {
    for (way, value) in [(true, 3.0), (false, 0.1)] {
        let inputs = [tensor(&[3], &numbers(3, 1)), tensor(&[3], &numbers(3, 2)), tensor(&[], &[value])];
        check_with(&format!("a choice {way}"), &inputs, &|b, x| {
            let (first, second) = (b.ty(x[0]).clone(), b.ty(x[1]).clone());
            let mut bodies = vec![];
            for which in 0..2 {
                let (mut graph, origin) = b.body();
                let mut inner = Builder::new(&mut graph, origin);
                let (p, q) = (inner.input("p", first.clone(), None), inner.input("q", second.clone(), None));
                // One body reads both values, the other one only the first.
                let squares = inner.binary(BinaryFn::Mul, p, p)?;
                let result = match which {
                    0 => {
                        let sum = inner.reduce(ReduceFn::Sum, q, &[0])?;
                        inner.binary(BinaryFn::Mul, squares, sum)?
                    }
                    _ => inner.unary(UnaryFn::Sin, squares)?,
                };
                graph.outputs = vec![(String::new(), result)];
                bodies.push(graph);
            }
            let bodies: [Graph; 2] = bodies.try_into().unwrap();
            let limit = b.scalar(DType::F64, 1.0);
            let condition = b.compare(CompareFn::Gt, x[2], limit)?;
            let op = Op::If { bodies: bodies.into(), shapes: Default::default() };
            b.emit1(op, &[condition, x[0], x[1]])
        });
    }
}
