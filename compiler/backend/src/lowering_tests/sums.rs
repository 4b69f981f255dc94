//! Long sums of floats: their rounding errors grow with the terms of a partial sum and with the number of these, not with all.

use super::*;
use onnxc_tuning::Settings;

/// The relative error that sums of elements which are all alike may have: twice that of 256 terms and 256 partial sums.
const MOST: f64 = 1024.0 / (1u32 << 24) as f64;

/// The largest relative error of sums over `axes` of a tensor whose elements are `value`, and the kernels' text.
fn error(shape: &[usize], axes: &[usize], symbolic: bool, value: f32, core: &Core) -> (f64, String) {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("sum", "ReduceSum", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let dims = shape.iter().map(|&size| if symbolic { Dim::sym(b.fresh_symbol()) } else { Dim::from(size) });
    let dims: Vec<Dim> = dims.collect();
    let x = b.input("x", TensorType::new(DType::F32, dims), None);
    let sum = b.reduce(ReduceFn::Sum, x, axes).unwrap();
    graph.outputs.push(("sum".into(), sum));
    let count: usize = shape.iter().product();
    let x = Tensor::from_slice(shape, &vec![value; count]);
    let (found, text) = outputs(&graph, &[x], true, core, &loops::interp::run).unwrap();
    let terms: usize = axes.iter().map(|&axis| shape[axis]).product();
    let wanted = f64::from(value) * terms as f64;
    let sums = found[0].to_f64s().unwrap();
    assert_eq!(sums.len(), count / terms);
    (sums.iter().map(|sum| ((sum - wanted) / wanted).abs()).fold(0.0, f64::max), text)
}

#[test]
fn long_sums_are_made_of_short_ones() {
    let riscv = Target::parse("riscv64gc-unknown-linux-gnu", None).unwrap();
    let targets = [fixed_target().leaf().unwrap(), fixed_target().core, riscv.core];
    // Means of images, planes first and channels first; rows; axes around another; a length that nothing divides; three levels.
    let cases: [(&[usize], &[usize]); 8] = [
        (&[1, 92, 240, 5], &[1, 2]),
        (&[1, 20011, 3], &[1]),
        (&[1, 80000, 2], &[1]),
        (&[2, 300, 700], &[1, 2]),
        (&[1, 200003], &[1]),
        (&[700, 2, 300], &[0, 2]),
        (&[300, 8, 300], &[0, 2]),
        (&[1, 1, 60000], &[0, 1, 2]),
    ];
    for target in &targets {
        for (shape, axes) in cases {
            for (symbolic, value) in [(false, 0.1), (true, -1.7)] {
                let (error, text) = error(shape, axes, symbolic, value, target);
                assert!(error <= MOST, "{shape:?} over {axes:?}: {error:e}\n{text}");
                assert!(text.contains("sum_terms=256"), "{text}");
            }
        }
    }
}

/// Added up one by one, these sums are not as near: the test above would notice.
#[test]
fn one_sum_of_all_is_not_as_near() {
    for terms in [20011, 92 * 240] {
        let sum = (0..terms).fold(0f32, |sum, _| sum + 0.1);
        let wanted = f64::from(0.1f32) * f64::from(terms);
        assert!((f64::from(sum) - wanted).abs() / wanted > MOST, "{terms}");
    }
}

/// However few terms a part shall have, there are fewer parts.
#[test]
fn parts_of_few_terms() {
    let target = fixed_target().leaf().unwrap();
    for (shape, axes) in [([2, 90, 31, 5], [1, 2]), ([3, 7, 300, 41], [2, 3])] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("sum", "ReduceSum", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let dims = shape.iter().map(|&size| Dim::from(size)).collect();
        let x = b.input("x", TensorType::new(DType::F32, dims), None);
        let sum = b.reduce(ReduceFn::Sum, x, &axes).unwrap();
        graph.outputs.push(("sum".into(), sum));
        let x = Dice(9).tensor(DType::F32, &shape);
        let expected = interp::run(&graph, std::slice::from_ref(&x)).unwrap();
        let mut program = schedule(&graph, Default::default()).unwrap();
        for terms in [1, 2, 3, 7, 8, 9, 100] {
            let ids: Vec<_> = program.groups.keys().collect();
            for id in ids {
                program.groups[id].settings = Settings::parse(&format!("sum_terms={terms}")).unwrap();
            }
            let build = |graph: &Graph, program: &schedule::Program, id: schedule::GroupId| {
                let mut kernel = loops::lower::lower(graph, &program.groups[id], "sum", &target)?;
                verify::verify(&kernel)?;
                math::expand(&mut kernel);
                Ok(kernel)
            };
            let kernels = Kernels::new(&graph, &program, &build).unwrap();
            let found =
                program::run(&graph, &program, &kernels, std::slice::from_ref(&x), &loops::interp::run)
                    .unwrap();
            assert!(same(&expected[0], &found[0]), "{terms}");
        }
    }
}

/// A long sum beside an extreme, as in Softmax, is one group with it.
#[test]
fn extremes_beside_long_sums_are_whole() {
    let mut dice = Dice(3);
    for symbolic in [false, true] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("softmax", "Softmax", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let length = if symbolic { Dim::sym(b.fresh_symbol()) } else { Dim::from(20011usize) };
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(2usize), length]), None);
        let most = b.reduce(ReduceFn::Max, x, &[1]).unwrap();
        let most = b.reshape(most, vec![Dim::from(2usize), Dim::ONE]).unwrap();
        let less = b.binary(BinaryFn::Sub, x, most).unwrap();
        let power = b.unary(UnaryFn::Exp, less).unwrap();
        let sum = b.reduce(ReduceFn::Sum, power, &[1]).unwrap();
        let sum = b.reshape(sum, vec![Dim::from(2usize), Dim::ONE]).unwrap();
        let y = b.binary(BinaryFn::Div, power, sum).unwrap();
        graph.outputs.extend([("y".into(), y), ("most".into(), most), ("sum".into(), sum)]);
        let x = interp::cast(&dice.tensor(DType::F32, &[2, 20011]), DType::F32, true);
        let values: Vec<f32> = x.to_f64s().unwrap().iter().map(|value| *value as f32 - 4.0).collect();
        let x = Tensor::from_slice(&[2, 20011], &values);
        for core in [fixed_target().leaf().unwrap(), fixed_target().core] {
            check(&graph, std::slice::from_ref(&x), true, &core, &loops::interp::run).unwrap();
        }
    }
}

/// Short sums, those of integers, and extremes have no parts; infinities and NaN come through them.
#[test]
fn what_has_no_parts_and_what_is_not_finite() {
    let core = fixed_target().leaf().unwrap();
    assert!(!error(&[2, 7, 7, 8], &[1, 2], false, 0.1, &core).1.contains("sum_terms"));
    for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for (shape, axes) in [([2, 600, 8], [1]), ([2, 8, 20000], [2])] {
            let mut graph = Graph::default();
            graph.origins.push(Origin::new("sum", "ReduceSum", 0));
            let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
            let dims = shape.iter().map(|&size| Dim::from(size)).collect();
            let x = b.input("x", TensorType::new(DType::F32, dims), None);
            for (name, op) in [("sum", ReduceFn::Sum), ("max", ReduceFn::Max)] {
                let value = b.reduce(op, x, &axes).unwrap();
                b.graph.outputs.push((name.into(), value));
            }
            let mut values = vec![0.25f32; shape.iter().product()];
            values[shape.iter().product::<usize>() / 2 + 77] = special;
            check(&graph, &[Tensor::from_slice(&shape, &values)], true, &core, &loops::interp::run).unwrap();
        }
    }
}
