//! Sorts by digits, and suppression of boxes in their order.

use super::*;

fn graph_of(name: &str) -> Graph {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new(name, name, 0));
    graph
}

/// A dim of a size, or a symbol for it.
fn size(b: &mut Builder<'_>, size: usize, symbolic: bool) -> Dim {
    if symbolic { Dim::sym(b.fresh_symbol()) } else { Dim::from(size) }
}

/// Sorts `x` and holds all of it against the evaluator; gives the kernels' text.
fn sort(x: &Tensor, axis: usize, descending: bool, take: usize, symbolic: bool) -> String {
    let mut graph = graph_of("sort");
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let mut shape: Vec<Dim> = x.shape.iter().map(|&extent| Dim::from(extent)).collect();
    shape[axis] = size(&mut b, x.shape[axis], symbolic);
    let input = b.input("x", TensorType::new(x.dtype, shape.clone()), None);
    let take = if symbolic { shape[axis].clone() - Dim::from(x.shape[axis] - take) } else { Dim::from(take) };
    let (keys, places) = b.sort(input, axis, descending, take).unwrap();
    graph.outputs = vec![("keys".into(), keys), ("places".into(), places)];
    check(&graph, std::slice::from_ref(x), true, &fixed_target().core, &loops::interp::run).unwrap();
    let program = schedule(&graph, Default::default()).unwrap();
    let group = program.groups.values().next().unwrap();
    loops::lower::lower(&graph, group, "sort", &fixed_target().core).unwrap().to_string()
}

#[test]
fn many_of_long_rows() {
    let mut dice = Dice(11);
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30, -1e-30];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::I8, DType::U16] {
        for (shape, axis, take) in [([2, 700], 1, 700), ([600, 3], 0, 40), ([1, 512], 1, 33)] {
            let count = shape[0] * shape[1];
            let mut values: Vec<f64> = (0..count).map(|_| dice.below(4001) as f64 - 2000.0).collect();
            if dtype.is_float() {
                (0..60).for_each(|at| values[dice.below(count)] = special[at % special.len()]);
            }
            let x = interp::cast(&Tensor::from_slice(&shape, &values), dtype, true);
            for descending in [false, true] {
                for symbolic in [false, true] {
                    let kernel = sort(&x, axis, descending, take, symbolic);
                    assert!(kernel.contains("\"digit\""), "{dtype} by a heap\n{kernel}");
                    assert_eq!(kernel.contains("\"hole\""), symbolic, "{kernel}");
                }
            }
        }
    }
}

/// Sizes for which only a run knows that a heap is better.
#[test]
fn few_of_rows_of_unknown_length() {
    let mut dice = Dice(12);
    for (extent, take) in [(600, 2), (40, 40), (1, 1), (1, 0), (512, 32), (512, 31)] {
        let values: Vec<f32> = (0..3 * extent).map(|_| dice.below(100) as f32).collect();
        sort(&Tensor::from_slice(&[3, extent], &values), 1, true, take, true);
    }
}

#[test]
fn few_elements_and_long_keys_go_to_a_heap() {
    let values: Vec<f64> = (0..1024).map(|at| (at * 7 % 1024) as f64).collect();
    let wide = Tensor::from_slice(&[1024], &values);
    let short = interp::cast(&wide, DType::F32, true);
    for (x, take) in [(&wide, 1024), (&short, 63)] {
        assert!(!sort(x, 0, true, take, false).contains("\"digit\""), "{} {take}", x.dtype);
    }
    assert!(sort(&short, 0, true, 64, false).contains("\"digit\""));
}

/// Boxes in clusters within `spread` of the origin, some without extent, some that are none.
fn boxes(dice: &mut Dice, count: usize, spread: usize) -> [Vec<f32>; 4] {
    let mut ends = [const { Vec::new() }; 4];
    for _ in 0..count {
        let mut corner = || dice.below(spread) as f32;
        let (y, x) = (corner(), corner());
        let (mut height, mut width) = (dice.below(7) as f32, dice.below(7) as f32);
        if dice.chance(5) {
            (height, width) = (-1.0 - height, -1.0 - width);
        }
        for (end, value) in ends.iter_mut().zip([y, y + height, x, x + width]) {
            let odd = [f32::NAN, f32::INFINITY, f32::MAX, -f32::MAX, 1e-40];
            end.push(if dice.chance(1) { odd[dice.below(odd.len())] } else { value });
        }
    }
    ends
}

#[test]
fn boxes_that_overlap_a_better_one() {
    let mut dice = Dice(13);
    let limits = [0.5, 0.0, 0.25, 1.0 / 3.0, 0.9, -0.5, 1.0, f32::NAN, f32::INFINITY];
    for (case, limit) in limits.into_iter().cycle().take(18).enumerate() {
        let rows = [1 + dice.below(2), 1 + dice.below(3)];
        let count = [140, 1, 70, 0, 500][case % 5];
        let take = if case % 3 == 0 { count } else { dice.below(count + 1) };
        let all = rows[0] * rows[1] * count;
        let mut graph = graph_of("suppress");
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let last = size(&mut b, count, case % 2 == 1);
        let shape = vec![Dim::from(rows[0]), Dim::from(rows[1]), last.clone()];
        let sizes = [rows[0], rows[1], count];
        let (mut operands, mut inputs) = (vec![], vec![]);
        for ends in boxes(&mut dice, all, [12, 90][case % 2]) {
            operands.push(b.input("end", TensorType::new(DType::F32, shape.clone()), None));
            inputs.push(Tensor::from_slice(&sizes, &ends));
        }
        operands.push(b.input("candidate", TensorType::new(DType::Bool, shape), None));
        let candidates: Vec<bool> = (0..all).map(|_| dice.chance(90)).collect();
        inputs.push(Tensor::from_slice(&sizes, &candidates));
        operands.push(b.input("limit", TensorType::new(DType::F32, vec![]), None));
        inputs.push(Tensor::from_slice(&[], &[limit]));
        let take = if last.is_const() { Dim::from(take) } else { last - Dim::from(count - take) };
        let picks = b.emit1(Op::Suppress { take }, &operands).unwrap();
        graph.outputs = vec![("picks".into(), picks)];
        check(&graph, &inputs, true, &fixed_target().core, &loops::interp::run)
            .unwrap_or_else(|error| panic!("case {case}, limit {limit}: {error}"));
    }
}
