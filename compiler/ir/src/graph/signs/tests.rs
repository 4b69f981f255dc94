use super::*;
use crate::build::Builder;
use crate::graph::{Dim, OriginId, TensorType};
use crate::interp;

/// All values of f16.
fn every() -> Tensor {
    Tensor::new(DType::F16, vec![1 << 16], (0..=u16::MAX).flat_map(u16::to_le_bytes).collect())
}

/// Zeros, the ends of the ranges of numbers, their neighbours, and some between.
fn some() -> Tensor {
    let codes: [u16; 14] =
        [0, 1, 2, 0x3ff, 0x400, 0x1000, 0x3800, 0x3bff, 0x3c00, 0x3e00, 0x4248, 0x7bff, 0x7c00, 0x7e00];
    let codes: Vec<u16> = codes.iter().flat_map(|&code| [code, code | 0x8000]).collect();
    let data = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
    Tensor::new(DType::F16, vec![codes.len()], data)
}

type Make = fn(&mut Builder<'_>, ValueId) -> ValueId;

/// Values without a known sign, without -0, and of at least +0.
const SOURCES: [Make; 3] = [
    |_, x| x,
    |b, x| b.binary_scalar(BinaryFn::Add, x, 0.0).unwrap(),
    |b, x| b.unary(UnaryFn::Abs, x).unwrap(),
];

/// Holds what is said of a result against its elements. Gives whether something is said.
fn holds(graph: &Graph, value: ValueId, inputs: &[Tensor]) -> bool {
    let (clear, other) = (are_clear(graph, value), has_no_minus_zero(graph, value));
    let mut run = graph.clone();
    run.outputs = vec![("y".into(), value)];
    let result = interp::run(&run, inputs).unwrap().remove(0);
    if !graph.ty(value).dtype.is_float() {
        return false;
    }
    for element in interp::cast(&result, DType::F64, true).to_f64s().unwrap() {
        assert!(!clear || element.is_nan() || element.is_sign_positive(), "{element}\n{graph}");
        assert!(!other || element != 0.0 || element.is_sign_positive(), "{element}\n{graph}");
    }
    clear || other
}

fn graph_of(names: &[&str], length: usize) -> (Graph, Vec<ValueId>) {
    let mut graph = Graph::default();
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let shape = |at: usize| if at == 0 { vec![Dim::from(length), Dim::ONE] } else { vec![Dim::from(length)] };
    let ty = |at: usize| TensorType::new(DType::F16, shape(at));
    let inputs = names.iter().enumerate().map(|(at, name)| b.input(name, ty(at), None)).collect();
    (graph, inputs)
}

/// Each function of all values of f16, and of those that no -0 or none below is among.
#[test]
fn functions_of_every_value() {
    let x = every();
    let x = Tensor::new(x.dtype, vec![1 << 16, 1], x.data);
    let casts = DType::all().filter(|to| to.is_float() || to.is_int());
    let casts = casts.map(|to| MapFn::Cast { to, saturate: true });
    let mut said = 0;
    for function in UnaryFn::ALL.iter().map(|&function| MapFn::Unary(function)).chain(casts) {
        for source in SOURCES {
            let (mut graph, inputs) = graph_of(&["x"], 1 << 16);
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let value = source(&mut b, inputs[0]);
            let Ok(value) = b.emit1(Op::Map(function), &[value]) else { continue };
            if interp::eval(&Op::Map(function), &[&some()]).is_ok() {
                said += usize::from(holds(&graph, value, std::slice::from_ref(&x)));
            }
        }
    }
    assert!(said > 20, "something is said of {said} functions only");
}

/// Each function of pairs, and sums, moves and choices of them.
#[test]
fn functions_of_pairs() {
    let y = some();
    let x = Tensor::new(DType::F16, vec![y.len(), 1], y.data.clone());
    let functions: Vec<Make2> = BinaryFn::ALL
        .iter()
        .map(|&function| -> Make2 { Box::new(move |b, x, y| b.binary(function, x, y).ok()) })
        .chain([
            Box::new(|b: &mut Builder<'_>, x, y| {
                let less = b.compare(crate::scalar::CompareFn::Lt, x, y).ok()?;
                b.select(less, x, y).ok()
            }) as Make2,
            Box::new(|b: &mut Builder<'_>, x, y| {
                let both = b.binary(BinaryFn::Add, x, y).ok()?;
                let wide = b.cast(both, DType::F32).ok()?;
                b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: vec![1] }, &[wide]).ok()
            }),
            Box::new(|b: &mut Builder<'_>, x, y| {
                let product = b.binary(BinaryFn::Mul, x, y).ok()?;
                b.emit1(Op::Reduce { op: ReduceFn::Max, axes: vec![0] }, &[product]).ok()
            }),
            Box::new(|b: &mut Builder<'_>, x, y| {
                let pads = |size: i64| vec![Dim::ZERO, Dim::from(size)];
                let wide = b.binary(BinaryFn::Max, x, y).ok()?;
                let fill = b.scalar(DType::F16, -0.0);
                b.pad(wide, fill, pads(0), pads(2)).ok()
            }),
        ])
        .collect();
    let mut said = 0;
    for function in &functions {
        for (left, right) in SOURCES.iter().flat_map(|left| SOURCES.iter().map(move |right| (left, right))) {
            let (mut graph, inputs) = graph_of(&["x", "y"], y.len());
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let (a, c) = (left(&mut b, inputs[0]), right(&mut b, inputs[1]));
            let Some(value) = function(&mut b, a, c) else { continue };
            let mut probe = graph.clone();
            probe.outputs = vec![("y".into(), value)];
            if interp::run(&probe, &[x.clone(), y.clone()]).is_ok() {
                said += usize::from(holds(&graph, value, &[x.clone(), y.clone()]));
            }
        }
    }
    assert!(said > 20, "something is said of {said} functions only");
}

type Make2 = Box<dyn Fn(&mut Builder<'_>, ValueId, ValueId) -> Option<ValueId>>;

/// Kernels add products that underflow with one rounding: -0.
#[test]
fn sums_of_products_may_be_minus_zero() {
    let (mut graph, inputs) = graph_of(&["x", "y"], 4);
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let [x, y] = [inputs[0], inputs[1]].map(|value| b.cast(value, DType::F32).unwrap());
    let product = b.binary(BinaryFn::Mul, x, y).unwrap();
    let turned = b.transpose(product, &[1, 0]).unwrap();
    let sum = b.reduce(ReduceFn::Sum, turned, &[1]).unwrap();
    let square = b.binary(BinaryFn::Mul, x, x).unwrap();
    let squares = b.reduce(ReduceFn::Sum, square, &[0]).unwrap();
    let plain = b.reduce(ReduceFn::Sum, x, &[0]).unwrap();
    assert!(!has_no_minus_zero(&graph, sum));
    assert!(has_no_minus_zero(&graph, squares) && are_clear(&graph, squares));
    assert!(has_no_minus_zero(&graph, plain) && !are_clear(&graph, plain));
}

/// A walk through operands ends, however long the chain is.
#[test]
fn signs_are_sought_a_few_operations_deep() {
    let (mut graph, inputs) = graph_of(&["x"], 1);
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let mut value = b.unary(UnaryFn::Abs, inputs[0]).unwrap();
    assert!(are_clear(b.graph, value));
    for deep in 1..20 {
        value = b.unary(UnaryFn::Ceil, value).unwrap();
        assert_eq!(are_clear(b.graph, value), deep < DEPTH, "{deep}");
    }
}

/// Constants are looked at through views.
#[test]
fn elements_of_constants() {
    let mut graph = Graph::default();
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    for (values, clear, other) in [
        ([0.0f32, 1.0, f32::NAN], true, true),
        ([0.0, -1.0, 2.0], false, true),
        ([0.0, -0.0, 2.0], false, false),
        ([1.0, 2.0, f32::INFINITY], true, true),
    ] {
        let constant = b.constant(Tensor::from_slice(&[3], &values));
        let wide = b.expand(constant, vec![Dim::from(1000usize), Dim::from(3usize)]).unwrap();
        for value in [constant, wide] {
            assert_eq!(
                (are_clear(b.graph, value), has_no_minus_zero(b.graph, value)),
                (clear, other),
                "{values:?}"
            );
        }
    }
}
