//! Rows whose values have several readers, some of them outputs: a value kept in an output's place must be there
//! until its last reader has read it.

use super::*;

/// A row group with side outputs.
struct Rows {
    dice: Dice,
    graph: Graph,
    input: Tensor,
}

impl Rows {
    fn new(seed: u64) -> Rows {
        let mut dice = Dice(seed);
        for _ in 0..5 {
            dice.next();
        }
        let mut graph = Graph { name: format!("rows {seed}"), ..Graph::default() };
        graph.origins.push(Origin::new("rows", "Rows", 0));
        let dtype = dice.pick(&[DType::F32, DType::F32, DType::F16, DType::F64]);
        let sizes = [1 + dice.below(4), 2 + dice.below(20)];
        let input = dice.tensor(dtype, &sizes);
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let shape = sizes.map(|size| match dice.chance(40) {
            true => Dim::sym(b.fresh_symbol()),
            false => Dim::from(size),
        });
        let x = b.input("x", TensorType::new(dtype, shape.to_vec()), None);
        let mut values = vec![];
        let mut row = x;
        if dice.chance(60) {
            row = b.unary(UnaryFn::Tanh, row).unwrap();
            values.push(row);
        }
        for _ in 0..1 + dice.below(2) {
            row = Rows::softmax(&mut b, &mut dice, row, &mut values);
        }
        for _ in 0..dice.below(4) {
            let (x, y) = (dice.pick(&values), dice.pick(&values));
            let value = match dice.below(4) {
                0 => b.unary(UnaryFn::Neg, x),
                1 => b.unary(UnaryFn::Sigmoid, x),
                2 => b.binary(BinaryFn::Mul, x, y),
                _ => b.binary(BinaryFn::Sub, x, y),
            };
            values.push(value.unwrap());
        }
        // A reduction of values made of rows, some of them results.
        if dice.chance(40) {
            let full = |value: &ValueId| b.graph.ty(*value).shape == b.graph.ty(x).shape;
            let rows: Vec<ValueId> = values.iter().copied().filter(full).collect();
            let (read, again) = (dice.pick(&rows), dice.pick(&rows));
            let read = b.binary(BinaryFn::Sub, read, again).unwrap();
            let max = b.reduce(ReduceFn::Max, read, &[1]).unwrap();
            values.extend([read, max]);
        }
        let mut outputs: Vec<ValueId> = values.iter().copied().filter(|_| dice.chance(35)).collect();
        outputs.push(row);
        outputs.push(*values.last().unwrap());
        outputs.sort();
        outputs.dedup();
        graph.outputs = outputs.into_iter().map(|value| (value.to_string(), value)).collect();
        Rows { dice, graph, input }
    }

    /// The softmax of each row; `values` gets what it computes on the way.
    fn softmax(b: &mut Builder<'_>, dice: &mut Dice, x: ValueId, values: &mut Vec<ValueId>) -> ValueId {
        let max = b.reduce(ReduceFn::Max, x, &[1]).unwrap();
        let shifted = b.binary(BinaryFn::Sub, x, max).unwrap();
        let e = b.unary(UnaryFn::Exp, shifted).unwrap();
        let e = if dice.chance(30) { b.unary(UnaryFn::Sqrt, e).unwrap() } else { e };
        let sum = b.reduce(ReduceFn::Sum, e, &[1]).unwrap();
        let result = b.binary(BinaryFn::Div, e, sum).unwrap();
        values.extend([max, shifted, e, sum, result]);
        result
    }
}

#[test]
fn rows_with_several_readers_and_outputs() {
    let fixed = fixed_target();
    let wide = fixed.leaf().unwrap();
    let (mut failures, mut several) = (vec![], 0);
    for seed in 1..=600 {
        let mut rows = Rows::new(seed);
        let core = if rows.dice.chance(50) { &wide } else { &fixed.core };
        let program = schedule(&rows.graph, schedule::Options::default()).unwrap();
        let is_shared =
            |group: &schedule::Group| group.kind == schedule::GroupKind::Rows && group.outputs.len() > 1;
        several += usize::from(program.groups.values().any(is_shared));
        if let Err(message) = check(&rows.graph, &[rows.input], true, core, &loops::interp::run) {
            failures.push(format!("seed {seed}\n{}\n{message}", rows.graph));
        }
    }
    assert!(several > 200, "{several} graphs have rows with several outputs");
    let count = failures.len();
    assert!(failures.is_empty(), "{count} graphs failed\n{}", failures[..count.min(3)].join("\n\n"));
}

/// `a = softmax(x)` and what reads it: the exponentials are kept in an output's place, and both outputs need them.
#[test]
fn a_softmax_and_its_negation() {
    for dtype in [DType::F32, DType::F16] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let x = b.input("x", TensorType::new(dtype, vec![Dim::from(4usize), Dim::from(5usize)]), None);
        let a = Rows::softmax(&mut b, &mut Dice(3), x, &mut vec![]);
        let y = b.unary(UnaryFn::Neg, a).unwrap();
        graph.outputs = vec![("a".into(), a), ("y".into(), y)];
        let input = Dice(1).tensor(dtype, &[4, 5]);
        check(&graph, &[input], true, &fixed_target().core, &loops::interp::run).unwrap();
    }
}
