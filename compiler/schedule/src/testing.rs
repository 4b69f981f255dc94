//! Graphs for tests of schedules, and of what runs them.

use cranelift_entity::EntityRef;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Dim, Graph, Op, OriginId, RhsLayout, Symbol, TensorType, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};
use proptest::prelude::*;

pub fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

/// Builds a graph, its outputs given by `build`.
pub fn graph(build: impl FnOnce(&mut Builder) -> Vec<ValueId>) -> Graph {
    let mut graph = Graph::default();
    for name in ["s", "t"] {
        graph.symbols.push(Symbol { name: name.into() });
    }
    let outputs = build(&mut Builder::new(&mut graph, OriginId::new(0)));
    graph.outputs = outputs.into_iter().enumerate().map(|(at, value)| (format!("y{at}"), value)).collect();
    graph
}

pub fn input(b: &mut Builder, shape: &[i64]) -> ValueId {
    b.input("x", TensorType::new(DType::F32, dims(shape)), None)
}

pub fn relu(b: &mut Builder, x: ValueId) -> ValueId {
    let zero = b.scalar(b.dtype(x), 0.0);
    b.binary(BinaryFn::Max, x, zero).unwrap()
}

/// `x * sigmoid(x)`: its argument has two readers.
pub fn silu(b: &mut Builder, x: ValueId) -> ValueId {
    let gate = b.unary(UnaryFn::Sigmoid, x).unwrap();
    b.binary(BinaryFn::Mul, x, gate).unwrap()
}

/// A function that is not to be computed twice.
pub fn costly(b: &mut Builder, x: ValueId) -> ValueId {
    match b.dtype(x).is_float() {
        true => b.unary(UnaryFn::Exp, x).unwrap(),
        false => b.binary_scalar(BinaryFn::Mod, x, 1009.0).unwrap(),
    }
}

/// Product with a packed right-hand side of 16 columns, an input.
pub fn dense(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.shape(x);
    let k = shape.last().unwrap().clone();
    let n = Dim::from(16i64);
    let rhs = b.input("w", TensorType::new(b.dtype(x), vec![Dim::from(2i64), k, Dim::from(8i64)]), None);
    let m = shape.len() - 1;
    b.emit1(Op::Contract { batch: 0, m, k: 1, rhs: RhsLayout::Panels { nr: 8, depth: 1, n } }, &[x, rhs])
        .unwrap()
}

pub fn softmax(b: &mut Builder, x: ValueId, axis: usize) -> ValueId {
    let max = b.reduce(ReduceFn::Max, x, &[axis]).unwrap();
    let shifted = b.binary(BinaryFn::Sub, x, max).unwrap();
    let e = costly(b, shifted);
    let sum = b.reduce(ReduceFn::Sum, e, &[axis]).unwrap();
    b.binary(BinaryFn::Div, e, sum).unwrap()
}

pub fn layer_norm(b: &mut Builder, x: ValueId) -> ValueId {
    let axis = b.rank(x) - 1;
    let n = b.input("n", TensorType::new(b.dtype(x), vec![]), None);
    let sum = b.reduce(ReduceFn::Sum, x, &[axis]).unwrap();
    let mean = b.binary(BinaryFn::Div, sum, n).unwrap();
    let d = b.binary(BinaryFn::Sub, x, mean).unwrap();
    let squares = b.binary(BinaryFn::Mul, d, d).unwrap();
    let sum = b.reduce(ReduceFn::Sum, squares, &[axis]).unwrap();
    let variance = b.binary(BinaryFn::Div, sum, n).unwrap();
    let root = if b.dtype(x).is_float() { UnaryFn::Sqrt } else { UnaryFn::Abs };
    let deviation = b.unary(root, variance).unwrap();
    b.binary(BinaryFn::Div, d, deviation).unwrap()
}

#[derive(Clone, Debug)]
pub enum Pick {
    Unary(u8, u8),
    Binary(u8, u8, u8),
    Reduce(u8, u8),
    Softmax(u8),
    Norm(u8),
    Transpose(u8),
    Dense(u8),
    Slice(u8),
    Concat(u8, u8),
    Flatten(u8),
    Pool(u8),
    Cumulate(u8),
    Spread(u8),
    Sort(u8, bool),
}

pub fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        4 => (any::<u8>(), any::<u8>()).prop_map(|(f, x)| Pick::Unary(f, x)),
        6 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(f, x, y)| Pick::Binary(f, x, y)),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(x, axis)| Pick::Reduce(x, axis)),
        1 => any::<u8>().prop_map(Pick::Softmax),
        1 => any::<u8>().prop_map(Pick::Norm),
        2 => any::<u8>().prop_map(Pick::Transpose),
        3 => any::<u8>().prop_map(Pick::Dense),
        1 => any::<u8>().prop_map(Pick::Slice),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(x, y)| Pick::Concat(x, y)),
        1 => any::<u8>().prop_map(Pick::Flatten),
        1 => any::<u8>().prop_map(Pick::Pool),
        1 => any::<u8>().prop_map(Pick::Cumulate),
        1 => any::<u8>().prop_map(Pick::Spread),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(x, keys)| Pick::Sort(x, keys)),
    ]
}

/// Applies a pick to earlier values; `None` where shapes do not fit.
fn apply(b: &mut Builder, values: &[ValueId], pick: &Pick) -> Option<ValueId> {
    let at = |index: u8| values[values.len() - 1 - usize::from(index) % values.len().min(8)];
    let unary = [UnaryFn::Abs, UnaryFn::Neg];
    let binary = [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Div, BinaryFn::Sub];
    match *pick {
        Pick::Unary(f, x) if f % 4 < 2 => b.unary(unary[usize::from(f) % 2], at(x)).ok(),
        Pick::Unary(_, x) => Some(costly(b, at(x))),
        Pick::Binary(f, x, y) => {
            let (a, c) = (b.shape(at(x)), b.shape(at(y)));
            let agree = |(a, c): (&Dim, &Dim)| {
                a == c || (a.is_const() && c.is_const()) || *a == Dim::ONE || *c == Dim::ONE
            };
            let agree = a.iter().rev().zip(c.iter().rev()).all(agree);
            agree.then(|| b.binary(binary[usize::from(f) % 4], at(x), at(y)).ok()).flatten()
        }
        Pick::Reduce(x, axis) => {
            let axis = usize::from(axis) % b.rank(at(x)).max(1);
            b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: vec![axis] }, &[at(x)]).ok()
        }
        Pick::Softmax(x) => (b.rank(at(x)) > 0).then(|| softmax(b, at(x), b.rank(at(x)) - 1)),
        Pick::Norm(x) => (b.rank(at(x)) > 0).then(|| layer_norm(b, at(x))),
        Pick::Transpose(x) => b.transpose(at(x), &(0..b.rank(at(x))).rev().collect::<Vec<_>>()).ok(),
        Pick::Dense(x) => (b.rank(at(x)) > 0).then(|| dense(b, at(x))),
        Pick::Slice(x) => {
            let size = b.shape(at(x)).first()?.as_const().filter(|&size| size > 2)?;
            b.slice_axis(at(x), 0, Dim::ONE, Dim::from(size - 2)).ok()
        }
        Pick::Concat(x, y) => (b.rank(at(x)) > 0 && b.shape(at(x)) == b.shape(at(y)))
            .then(|| b.concat(&[at(x), at(y)], 0).ok())
            .flatten(),
        Pick::Flatten(x) => b.reshape(at(x), vec![b.ty(at(x)).elements()]).ok(),
        Pick::Pool(x) => {
            let (rank, last) = (b.rank(at(x)), b.shape(at(x)).last()?.as_const()?);
            if last < 3 {
                return None;
            }
            let zero = b.scalar(b.dtype(at(x)), 0.0);
            let mut pads = vec![Dim::ZERO; rank];
            pads[rank - 1] = Dim::ONE;
            let x = b.pad(at(x), zero, pads.clone(), pads).ok()?;
            let window =
                Op::Window { first: rank - 1, kernel: vec![3], strides: vec![1], dilations: vec![1] };
            let x = b.emit1(window, &[x]).ok()?;
            let x = b.reduce(ReduceFn::Max, x, &[rank]).ok()?;
            b.squeeze(x, &[rank]).ok()
        }
        Pick::Cumulate(x) => {
            let op = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false };
            b.emit1(op, &[at(x)]).ok()
        }
        Pick::Sort(x, keys) => {
            let axis = b.rank(at(x)).checked_sub(1)?;
            let extent = b.shape(at(x))[axis].clone();
            let take = Dim::from(extent.as_const()?.min(5));
            let (sorted, places) = b.sort(at(x), axis, keys, take).ok()?;
            if keys { Some(sorted) } else { b.cast(places, b.dtype(at(x))).ok() }
        }
        Pick::Spread(x) => {
            let shape = [vec![Dim::from(2i64)], b.shape(at(x))].concat();
            (b.rank(at(x)) < 4).then(|| b.expand(at(x), shape).ok()).flatten()
        }
    }
}

/// A graph of picks over two inputs of `[lead, 16]` and one of `[16]`.
pub fn random_graph(picks: &[Pick], outputs: &[u16], lead: Dim, dtype: DType) -> Graph {
    graph(|b| {
        let shape = vec![lead, Dim::from(16i64)];
        let mut values = vec![
            b.input("x", TensorType::new(dtype, shape.clone()), None),
            b.input("y", TensorType::new(dtype, shape), None),
            b.input("z", TensorType::new(dtype, dims(&[16])), None),
        ];
        for pick in picks {
            if let Some(value) = apply(b, &values, pick) {
                values.push(value);
            }
        }
        outputs.iter().map(|&at| values[values.len() - 1 - usize::from(at) % values.len()]).collect()
    })
}

pub fn lead(symbolic: bool) -> Dim {
    if symbolic { Dim::sym(onnxc_ir::graph::Sym::new(0)) } else { Dim::from(6i64) }
}

/// A convolution with one channel per group, its bias and activation.
pub fn depthwise() -> Graph {
    graph(|b| {
        let (x, w) =
            (b.input("x", TensorType::new(DType::I32, dims(&[2, 9, 8, 12])), None), dims(&[3, 3, 12]));
        let (w, bias) = (b.input("w", TensorType::new(DType::I32, w), None), dims(&[12]));
        let bias = b.input("b", TensorType::new(DType::I32, bias), None);
        let window = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
        let taps = b.emit1(window, &[x]).unwrap();
        let products = b.binary(BinaryFn::Mul, taps, w).unwrap();
        let sum = b.reduce(ReduceFn::Sum, products, &[3, 4]).unwrap();
        let sum = b.squeeze(sum, &[3, 4]).unwrap();
        let sum = b.binary(BinaryFn::Add, sum, bias).unwrap();
        let gate = costly(b, sum);
        let y = b.binary(BinaryFn::Mul, sum, gate).unwrap();
        vec![b.reshape(y, dims(&[2, 7 * 6 * 12])).unwrap()]
    })
}

/// `v9` reads rows of `v6`, as its kernel could, and `v4`: of a kernel that began before and goes on with rows of `v6`.
pub const CROSSED_ROWS: &str = r#"graph "crossed_rows" {
  input v0 "x" : i32[4, 8]
  input v1 "w" : i32[8, 4]
  v2 = reduce v0 {op=max, axes=[1]} : i32[4, 1] @o0
  v3 = sub v0, v2 : i32[4, 8] @o0
  v4 = reshape v3 {shape=[8, 4]} : i32[8, 4] @o0
  v5 = reduce v1 {op=max, axes=[1]} : i32[8, 1] @o0
  v6 = sub v1, v5 : i32[8, 4] @o0
  v7 = reshape v6 {shape=[4, 8]} : i32[4, 8] @o0
  v8 = add v3, v7 : i32[4, 8] @o0
  v9 = add v6, v4 : i32[8, 4] @o0
  return v8 "y", v9 "z"
}"#;
