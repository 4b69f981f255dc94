//! The identities of arithmetic that passes use, on all floats of 16 bits: each expression is computed as it is built and behind the
//! passes, by the evaluator, and must have the same bits. Which NaN a NaN is does not count. `book/src/floats.md` lists them.
//!
//! Pairs are those of numbers at the ends of all ranges. All pairs, 2^32 of each expression, are tried by
//! `ONNXC_ALL_PAIRS=1 cargo test --release -p onnxc --lib -- identities::of_pairs`.

use crate::{Options, run_all};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{
    DType, Dim, Graph, MapFn, Op, Origin, OriginId, RhsLayout, Tensor, TensorType, ValueId,
};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

type Make1 = Box<dyn Fn(&mut Builder<'_>, ValueId) -> Result<ValueId>>;
type Make2 = Box<dyn Fn(&mut Builder<'_>, ValueId, ValueId) -> Result<Vec<ValueId>>>;

/// An expression of one value, and the number of its nodes behind the passes in f32, where it is checked.
struct Expression {
    name: String,
    left: Option<usize>,
    make: Make1,
}

fn of(
    name: impl Into<String>,
    left: Option<usize>,
    make: impl Fn(&mut Builder<'_>, ValueId) -> Result<ValueId> + 'static,
) -> Expression {
    Expression { name: name.into(), left, make: Box::new(make) }
}

/// `function(x, number)`, `function(number, x)`.
fn with_numbers() -> Vec<Expression> {
    use BinaryFn::*;
    let mut all = Vec::new();
    let mut add = |function: BinaryFn, number: f64, right: usize, left: usize| {
        all.push(of(format!("{function}(x, {number})"), Some(right), move |b, x| {
            b.binary_scalar(function, x, number)
        }));
        all.push(of(format!("{function}({number}, x)"), Some(left), move |b, x| {
            let number = b.scalar(b.dtype(x), number);
            b.binary(function, number, x)
        }));
    };
    add(Add, 0.0, 1, 1);
    add(Add, -0.0, 0, 0);
    add(Sub, 0.0, 0, 1);
    add(Sub, -0.0, 1, 1);
    add(Mul, 1.0, 0, 0);
    add(Mul, -1.0, 1, 1);
    add(Mul, 0.0, 1, 1);
    add(Mul, -0.0, 1, 1);
    add(Div, 1.0, 0, 1);
    add(Div, -1.0, 1, 1);
    add(Div, 0.0, 1, 1);
    for number in [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY] {
        add(Max, number, 1, 1);
        add(Min, number, 1, 1);
    }
    for exponent in (-16..=16).chain([-126, 126, 127, 128]) {
        add(Div, 2f64.powi(exponent), usize::from(exponent != 0), 1);
        add(Div, -(2f64.powi(exponent)), 1, 1);
    }
    all
}

fn with_one_operand() -> Vec<Expression> {
    use UnaryFn::*;
    let twice = |function: UnaryFn, left: usize| {
        of(format!("{function}({function}(x))"), Some(left), move |b, x| {
            let x = b.unary(function, x)?;
            b.unary(function, x)
        })
    };
    let mut all: Vec<Expression> =
        [Abs, Ceil, Floor, Round, Trunc, Sign].map(|function| twice(function, 1)).into();
    all.push(twice(Neg, 0));
    all.push(of("abs(neg(x))", Some(1), |b, x| {
        let x = b.unary(Neg, x)?;
        b.unary(Abs, x)
    }));
    // +0 is added to what is never -0, and to what may be.
    for (function, left) in
        [(Abs, 1), (Exp, 1), (Sigmoid, 1), (Sign, 1), (Neg, 2), (Ceil, 2), (Floor, 2), (Tanh, 2)]
    {
        all.push(of(format!("{function}(x) + 0"), Some(left), move |b, x| {
            let x = b.unary(function, x)?;
            b.binary_scalar(BinaryFn::Add, x, 0.0)
        }));
    }
    for function in [BinaryFn::Sub, BinaryFn::Div, BinaryFn::Max, BinaryFn::Min] {
        let left = usize::from(!matches!(function, BinaryFn::Max | BinaryFn::Min));
        all.push(of(format!("{function}(x, x)"), Some(left), move |b, x| b.binary(function, x, x)));
    }
    all.push(of("x * x + 0", Some(1), |b, x| {
        let x = b.binary(BinaryFn::Mul, x, x)?;
        b.binary_scalar(BinaryFn::Add, x, 0.0)
    }));
    all.push(of("x + 0 + 0", Some(1), |b, x| {
        let x = b.binary_scalar(BinaryFn::Add, x, 0.0)?;
        b.binary_scalar(BinaryFn::Add, x, 0.0)
    }));
    all.push(of("max(max(x, 0), 0)", None, |b, x| {
        let x = b.binary_scalar(BinaryFn::Max, x, 0.0)?;
        b.binary_scalar(BinaryFn::Max, x, 0.0)
    }));
    all.push(of("x < 0 ? x : x", Some(0), |b, x| {
        let zero = b.scalar(b.dtype(x), 0.0);
        let less = b.compare(CompareFn::Lt, x, zero)?;
        b.select(less, x, x)
    }));
    all.push(of("not(x < 0) ? x : -x", Some(3), |b, x| {
        let (zero, negative) = (b.scalar(b.dtype(x), 0.0), b.unary(Neg, x)?);
        let less = b.compare(CompareFn::Lt, x, zero)?;
        let not = b.unary(Not, less)?;
        b.select(not, x, negative)
    }));
    // Zeros in a vector, and repeated ones.
    for (number, left) in [(0.0, 1), (-0.0, 0)] {
        all.push(of(format!("x + [{number} ..]"), Some(left), move |b, x| {
            let zero = b.scalar(b.dtype(x), number);
            let zeros = b.expand(zero, b.shape(x))?;
            b.binary(BinaryFn::Add, x, zeros)
        }));
    }
    all
}

fn of_casts_and_reductions() -> Vec<Expression> {
    let mut all = Vec::new();
    for between in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32, DType::F8E5M2] {
        all.push(of(format!("x as {between} and back"), None, move |b, x| {
            let narrow = b.cast(x, between)?;
            b.cast(narrow, b.dtype(x))
        }));
    }
    for op in [ReduceFn::Sum, ReduceFn::Prod, ReduceFn::Max, ReduceFn::Min] {
        all.push(of(format!("{op} of one element"), None, move |b, x| {
            let column = b.unsqueeze(x, &[1])?;
            b.reduce(op, column, &[1])
        }));
        all.push(of(format!("{op} of one element of 1 + x"), None, move |b, x| {
            let sum = b.binary_scalar(BinaryFn::Add, x, 1.0)?;
            let column = b.unsqueeze(sum, &[1])?;
            b.reduce(op, column, &[1])
        }));
    }
    all.push(of("mean of one element", None, |b, x| {
        let column = b.unsqueeze(x, &[1])?;
        b.mean(column, &[1])
    }));
    all.push(of("x quantized and dequantized", None, |b, x| {
        let scaled = b.binary_scalar(BinaryFn::Div, x, 0.5)?;
        let rounded = b.unary(UnaryFn::Round, scaled)?;
        let above = b.binary_scalar(BinaryFn::Max, rounded, -128.0)?;
        let clamped = b.binary_scalar(BinaryFn::Min, above, 127.0)?;
        let code = b.cast(clamped, DType::I8)?;
        let number = b.cast(code, b.dtype(x))?;
        b.binary_scalar(BinaryFn::Mul, number, 0.5)
    }));
    all
}

fn powers(dtype: DType) -> Vec<Expression> {
    let of_all = |exponent: f64| {
        of(format!("x^{exponent}"), None, move |b, x| b.binary_scalar(BinaryFn::Pow, x, exponent))
    };
    let of_clear = |exponent: f64| {
        of(format!("abs(x)^{exponent}"), None, move |b, x| {
            let x = b.unary(UnaryFn::Abs, x)?;
            b.binary_scalar(BinaryFn::Pow, x, exponent)
        })
    };
    let mut all: Vec<Expression> = [1.0, 2.0, 0.5, -0.5, 0.0, 4.0].map(of_all).into();
    // The evaluator's power, of f64, may be off by a unit in these.
    if dtype != DType::F64 {
        all.extend([of_all(-1.0), of_clear(0.5)]);
    }
    // Rounded twice in wider types.
    if dtype.size() == 2 {
        all.push(of_all(3.0));
    }
    all
}

fn unary_expressions(dtype: DType) -> Vec<Expression> {
    let parts = [with_numbers(), with_one_operand(), of_casts_and_reductions(), powers(dtype)];
    parts.into_iter().flatten().collect()
}

/// All values of a type of 16 bits; of others what f16 has, and the ends of their ranges.
fn values(dtype: DType) -> Tensor {
    let every =
        |dtype| Tensor::new(dtype, vec![1 << 16], (0..=u16::MAX).flat_map(u16::to_le_bytes).collect());
    if dtype.size() == 2 {
        return every(dtype);
    }
    let mut numbers = interp::cast(&every(DType::F16), DType::F64, true).to_f64s().unwrap_or_default();
    let limits: [f64; 2] = match dtype {
        DType::F32 => [f32::MIN_POSITIVE.into(), f32::MAX.into()],
        _ => [f64::MIN_POSITIVE, f64::MAX],
    };
    for factor in [1.0, 0.5, 1.0 / 3.0, 2f64.powi(-20), 0.999] {
        numbers.extend(limits.iter().flat_map(|limit| [limit * factor, -limit * factor]));
    }
    interp::cast(&Tensor::from_slice(&[numbers.len()], &numbers), dtype, true)
}

/// The bits of elements; those of every NaN are the same.
fn bits(tensor: &Tensor) -> Vec<u64> {
    let wide = interp::cast(tensor, DType::F64, true).to_f64s().unwrap_or_default();
    wide.into_iter().map(|element| if element.is_nan() { u64::MAX } else { element.to_bits() }).collect()
}

/// Makes each operation a node of the model of its own, whose results are rounded.
fn apart(graph: &mut Graph) {
    for (index, &id) in graph.order.iter().enumerate() {
        let casts = matches!(graph.nodes[id].op, Op::Map(MapFn::Cast { .. }));
        let op_type = if casts { "Cast" } else { "Node" }.to_string();
        graph.nodes[id].origin = graph.origins.push(Origin::new(index.to_string(), op_type, index));
    }
}

/// Runs a graph before and behind the passes.
fn compare(name: &str, graph: &Graph, options: &Options, inputs: &[Tensor]) -> Graph {
    let wanted = interp::run(graph, inputs).unwrap();
    let mut after = graph.clone();
    run_all(&mut after, options, &mut |_, _, _| {}).unwrap();
    let found = interp::run(&after, inputs).unwrap();
    for (wanted, found) in wanted.iter().zip(&found) {
        let (wanted, found) = (bits(wanted), bits(found));
        if let Some(at) = (0..wanted.len()).find(|&at| wanted[at] != found[at]) {
            let [wanted, found] = [wanted[at], found[at]].map(f64::from_bits);
            panic!("{name}: element {at} is {found:?}, not {wanted:?}\n{graph}{after}");
        }
    }
    after
}

fn exact() -> Options {
    Options { exact: true, ..Options::default() }
}

#[test]
fn of_every_value() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let x = values(dtype);
        for Expression { name, left, make } in unary_expressions(dtype) {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let input = b.input("x", TensorType::new(dtype, vec![Dim::from(x.len())]), None);
            let y = make(&mut b, input).unwrap();
            graph.outputs = vec![("y".into(), y)];
            apart(&mut graph);
            let name = format!("{name} of {dtype}");
            let after = compare(&name, &graph, &exact(), std::slice::from_ref(&x));
            if let Some(left) = left.filter(|_| dtype == DType::F32) {
                assert_eq!(after.order.len(), left, "{name}: {after}");
            }
            if dtype.size() > 2 {
                compare(&name, &graph, &Options::default(), std::slice::from_ref(&x));
            }
        }
    }
}

fn binary_expressions() -> Vec<(&'static str, Make2)> {
    use BinaryFn::*;
    let of = |name, make: fn(&mut Builder<'_>, ValueId, ValueId) -> Result<Vec<ValueId>>| {
        (name, Box::new(make) as Make2)
    };
    vec![
        of("x + (-y), x - (-y)", |b, x, y| {
            let negative = b.unary(UnaryFn::Neg, y)?;
            Ok(vec![b.binary(Add, x, negative)?, b.binary(Sub, x, negative)?])
        }),
        of("(x + y) + 0, (x - y) + 0, (x * y) + 0", |b, x, y| {
            [Add, Sub, Mul]
                .into_iter()
                .map(|function| {
                    let z = b.binary(function, x, y)?;
                    b.binary_scalar(Add, z, 0.0)
                })
                .collect()
        }),
        of("x + y and y + x, x * y and y * x", |b, x, y| {
            let pairs = [(Add, x, y), (Add, y, x), (Mul, x, y), (Mul, y, x)];
            pairs.into_iter().map(|(function, x, y)| b.binary(function, x, y)).collect()
        }),
        of("the greater and the lesser, in both orders", |b, x, y| {
            let pairs = [(Max, x, y), (Max, y, x), (Min, x, y), (Min, y, x)];
            let each = pairs.into_iter().map(|(function, x, y)| b.binary(function, x, y));
            let each = each.collect::<Result<Vec<_>>>()?;
            each.into_iter().map(|value| b.unary(UnaryFn::Recip, value)).collect()
        }),
        of("(x < y ? x : y) + 0, (max(x, y)) + 0", |b, x, y| {
            let less = b.compare(CompareFn::Lt, x, y)?;
            let (chosen, most) = (b.select(less, x, y)?, b.binary(Max, x, y)?);
            Ok(vec![b.binary_scalar(Add, chosen, 0.0)?, b.binary_scalar(Add, most, 0.0)?])
        }),
        of("|x| * |y| + 0, |x| / |y| + 0, max(|x|, y) + 0", |b, x, y| {
            let (x, size) = (b.unary(UnaryFn::Abs, x)?, b.unary(UnaryFn::Abs, y)?);
            [(Mul, size), (Div, size), (Max, y)]
                .into_iter()
                .map(|(function, y)| {
                    let z = b.binary(function, x, y)?;
                    b.binary_scalar(Add, z, 0.0)
                })
                .collect()
        }),
        of("the sum of x * y of one element", |b, x, y| {
            let product = b.binary(Mul, x, y)?;
            let shape = [b.shape(product), vec![Dim::ONE]].concat();
            let column = b.reshape(product, shape)?;
            Ok(vec![b.reduce(ReduceFn::Sum, column, &[2])?])
        }),
    ]
}

/// The ends of all ranges of numbers of f16 and what lies next to them: signs by exponents by some mantissas.
fn corners() -> Vec<u16> {
    let mantissas = [0u16, 1, 0x1ff, 0x200, 0x3ff];
    let of = |high: u16| mantissas.into_iter().map(move |mantissa| high << 10 | mantissa);
    (0..64).flat_map(of).collect()
}

#[test]
fn of_pairs() {
    let tensor = |codes: &[u16], shape: Vec<usize>| {
        Tensor::new(DType::F16, shape, codes.iter().flat_map(|code| code.to_le_bytes()).collect())
    };
    let all = std::env::var_os("ONNXC_ALL_PAIRS").is_some_and(|value| value == "1");
    let y: Vec<u16> = if all { (0..=u16::MAX).collect() } else { corners() };
    let rows = if all { 16 } else { y.len() };
    for (name, make) in binary_expressions() {
        for dtype in [DType::F16, DType::F32] {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let ty = |shape: [usize; 2]| TensorType::new(DType::F16, shape.map(Dim::from).to_vec());
            let inputs = [b.input("x", ty([rows, 1]), None), b.input("y", ty([1, y.len()]), None)];
            let [left, right] = inputs.map(|input| b.cast(input, dtype).unwrap());
            for (at, value) in make(&mut b, left, right).unwrap().into_iter().enumerate() {
                graph.outputs.push((format!("z{at}"), value));
            }
            apart(&mut graph);
            for x in y.chunks(rows) {
                let inputs = [tensor(x, vec![rows, 1]), tensor(&y, vec![1, y.len()])];
                compare(name, &graph, &exact(), &inputs);
            }
        }
    }
}

/// Sums `[2, 3] x [3, 2]` times a scale for each column, and a shift behind it.
fn scaled(weights: [f32; 6], scale: [f32; 2], shift: Option<[f32; 2]>) -> Graph {
    let mut graph = Graph::default();
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(2i64), Dim::from(3i64)]), None);
    let weights = b.constant(Tensor::from_slice(&[3, 2], &weights));
    let op = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
    let mut y = b.emit1(op, &[x, weights]).unwrap();
    for (function, by) in [(BinaryFn::Mul, Some(scale)), (BinaryFn::Add, shift)] {
        if let Some(by) = by {
            let by = b.constant(Tensor::from_slice(&[2], &by));
            y = b.binary(function, y, by).unwrap();
        }
    }
    graph.outputs = vec![("y".into(), y)];
    graph
}

/// A scale that is folded into weights changes no sign of a zero and no range: such ones stay.
#[test]
fn scales_are_folded_where_zeros_keep_their_signs() {
    let x = Tensor::from_slice(&[2, 3], &[0f32, -0.0, 0.0, 1.0, 2.0, 3.0]);
    let (small, large) = ([1f32, 2.0, 3.0, -4.0, 5.0, 6.0], [2f32.powi(100); 6]);
    let muls = |graph: &Graph| {
        let is_mul =
            |id: &&onnxc_ir::graph::NodeId| graph.nodes[**id].op == Op::Map(MapFn::Binary(BinaryFn::Mul));
        graph.order.iter().filter(is_mul).count()
    };
    for (weights, scale, shift, folds) in [
        (small, [2.0, 0.5], None, true),
        (small, [-2.0, 0.5], None, false),
        (small, [0.0, 0.5], None, false),
        (small, [-2.0, 0.5], Some([0.0, 1.0]), true),
        (small, [-2.0, 0.0], Some([3.0, 0.0]), true),
        (small, [-2.0, 0.5], Some([-0.0, 1.0]), false),
        (large, [2f32.powi(30), 1.0], None, false),
        (large, [2f32.powi(20), 1.0], Some([1.0, 1.0]), true),
    ] {
        let graph = scaled(weights, scale, shift);
        let after = compare("scale", &graph, &Options::default(), std::slice::from_ref(&x));
        assert_eq!(muls(&after) == 0, folds, "{scale:?} {shift:?}: {after}");
        let after = compare("scale", &graph, &exact(), std::slice::from_ref(&x));
        assert_eq!(muls(&after), 1, "with exact: {after}");
    }
}
