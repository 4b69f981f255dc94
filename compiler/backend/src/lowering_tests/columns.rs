//! Statistics of the rows of an image that lies channels-last, in one kernel for several of them.

use super::*;

/// Sums, means, squared deviations from them and the greatest deviation of each channel of a row; some of these are results.
fn statistics(sizes: [usize; 4], symbolic: [bool; 4], dtype: DType, outputs: usize) -> Graph {
    let mut graph = Graph { name: format!("{sizes:?} {symbolic:?} {dtype:?} {outputs}"), ..Graph::default() };
    graph.origins.push(Origin::new("rows", "Rows", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let dims = sizes.iter().zip(symbolic);
    let dims = dims.map(|(&size, open)| if open { Dim::sym(b.fresh_symbol()) } else { Dim::from(size) });
    let dims: Vec<Dim> = dims.collect();
    let x = b.input("x", TensorType::new(dtype, dims.clone()), None);
    let channels = b.input("scale", TensorType::new(dtype, vec![dims[3].clone()]), None);
    let scaled = b.binary(BinaryFn::Mul, x, channels).unwrap();
    let sums = b.reduce(ReduceFn::Sum, scaled, &[2]).unwrap();
    let share = b.scalar(dtype, if dtype.is_float() { 0.25 } else { 3.0 });
    let means = b.binary(BinaryFn::Mul, sums, share).unwrap();
    let deviations = b.binary(BinaryFn::Sub, scaled, means).unwrap();
    let squares = b.binary(BinaryFn::Mul, deviations, deviations).unwrap();
    let squares = b.reduce(ReduceFn::Sum, squares, &[2]).unwrap();
    let most = b.binary(BinaryFn::Sub, x, means).unwrap();
    let most = b.reduce(ReduceFn::Max, most, &[2]).unwrap();
    let all = [squares, most, sums, means];
    graph.outputs = all[..outputs].iter().map(|value| (value.to_string(), *value)).collect();
    graph
}

/// Channels around whole vectors and several of them, rows of one pixel and of none, open sizes.
fn check_statistics(core: &Core, execute: Execute<'_, Kernel>) {
    let mut dice = Dice(7);
    for channels in [2, 5, 8, 16, 31, 64, 67, 130] {
        // Two partial sums and a rest, where that takes no longer.
        let long = if channels < 32 { 300 } else { 19 };
        for (lead, pixels) in [([1, 1], 1), ([2, 3], 7), ([1, 1], long), ([1, 5], 0), ([0, 2], 3)] {
            let dtype = dice.pick(&[DType::F32, DType::F32, DType::F64, DType::I32]);
            let outputs = 2 + dice.below(3);
            let sizes = [lead[0], lead[1], pixels, channels];
            let open = [dice.chance(50), dice.chance(50), dice.chance(50) || pixels < 2, dice.chance(20)];
            let graph = statistics(sizes, open, dtype, outputs);
            let program = schedule(&graph, schedule::Options::default()).unwrap();
            let kinds: Vec<_> = program.groups.values().map(|group| group.kind).collect();
            assert_eq!(kinds, [schedule::GroupKind::Rows], "{graph}");
            let inputs = [dice.tensor(dtype, &sizes), dice.tensor(dtype, &sizes[3..])];
            let result = check(&graph, &inputs, true, core, execute);
            assert!(result.is_ok(), "{graph}{}", result.unwrap_err());
        }
    }
}

#[test]
fn statistics_of_rows() {
    let arm = Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    let riscv = Target::parse("riscv64gc-unknown-linux-gnu", None).unwrap();
    let wide = Target::new(fixed_target().triple, Some("x86-64-v4")).unwrap();
    for target in
        [fixed_target().core, fixed_target().leaf().unwrap(), wide.leaf().unwrap(), arm.core, riscv.core]
    {
        check_statistics(&target, &loops::interp::run);
    }
}

/// As machine code of each width: no kernel is refused.
#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn statistics_of_rows_as_leaf_kernels() {
    let wide = Target::new(fixed_target().triple, Some("x86-64-v4")).unwrap();
    for target in [fixed_target(), wide.clone(), wide.with_vector_width(256).unwrap()] {
        let target = target.leaf().unwrap();
        check_statistics(&target, &|kernel, buffers, symbols| {
            let code = leaf::compile(kernel, target.wide.unwrap())?
                .unwrap_or_else(|reason| panic!("{reason}\n{kernel}"));
            let (dims, range) = run_sizes(kernel, symbols);
            Ok(emulate(&code, buffers, &dims, range) as u32)
        });
    }
}

/// The variances of channels, or of groups of `parts` neighbours, as a normalization computes them.
fn variances(sizes: &[usize], parts: usize) -> Graph {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("norm", "InstanceNormalization", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let mut dims: Vec<Dim> = sizes.iter().map(|&size| Dim::from(size)).collect();
    let x = b.input("x", TensorType::new(DType::F32, dims.clone()), None);
    let last = dims.len() - 1;
    dims.splice(last.., [Dim::from(sizes[last] / parts), Dim::from(parts)]);
    let x = b.reshape(x, dims).unwrap();
    let axes: Vec<usize> = (1..last).chain([last + 1]).collect();
    let mean = b.mean(x, &axes).unwrap();
    let deviations = b.binary(BinaryFn::Sub, x, mean).unwrap();
    let squares = b.binary(BinaryFn::Mul, deviations, deviations).unwrap();
    let variance = b.mean(squares, &axes).unwrap();
    graph.outputs = vec![("variance".into(), variance)];
    graph
}

/// A mean that is a thousand times the deviation leaves the variance its digits, and one that lies beside zero; the mean of squares
/// less the square of the mean has none left.
#[test]
fn variances_far_from_zero() {
    let wide = Target::new(fixed_target().triple, Some("x86-64-v4")).unwrap();
    for target in [wide.leaf().unwrap(), fixed_target().core] {
        for (sizes, parts) in [
            (&[1usize, 40, 33, 15][..], 5),
            (&[2, 17, 20, 12], 1),
            (&[1, 9, 7, 9, 16], 4),
            (&[1, 600, 24], 3),
        ] {
            for (shift, most) in [(0.0, 2e-6), (1000.0, 2e-4)] {
                let before = variances(sizes, parts);
                let mut graph = before.clone();
                let pass = pass::by_name("moments").unwrap();
                pass::run_one(pass, &mut graph, &pass::Options::default()).unwrap();
                assert_ne!(before.to_string(), graph.to_string());
                let mut dice = Dice(3);
                let count: usize = sizes.iter().product();
                let values: Vec<f32> =
                    (0..count).map(|_| (shift + dice.below(2001) as f64 / 1000.0 - 1.0) as f32).collect();
                let channels = sizes[sizes.len() - 1];
                let groups = channels / parts;
                let exact = |image: usize, group: usize| {
                    let own = |at: &usize| at / (count / sizes[0]) == image && at % channels / parts == group;
                    let own: Vec<f64> = (0..count).filter(own).map(|at| f64::from(values[at])).collect();
                    let mean = own.iter().sum::<f64>() / own.len() as f64;
                    let variance =
                        own.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / own.len() as f64;
                    let mut sums = [0f32; 2];
                    own.iter().for_each(|&x| {
                        (sums[0], sums[1]) = (sums[0] + x as f32, sums[1] + x as f32 * x as f32)
                    });
                    let [mean, squares] = sums.map(|sum| f64::from(sum) / own.len() as f64);
                    (variance, squares - mean * mean)
                };
                let input = Tensor::from_slice(sizes, &values);
                let (found, text) = outputs(&graph, &[input], true, &target, &loops::interp::run).unwrap();
                let found = found[0].to_f64s().unwrap();
                assert_eq!(found.len(), sizes[0] * groups);
                for (at, found) in found.into_iter().enumerate() {
                    let (variance, naive) = exact(at / groups, at % groups);
                    let error = (found - variance).abs() / variance;
                    assert!(error <= most, "{sizes:?}: {found} for {variance}, {error:e}\n{text}");
                    assert!(shift == 0.0 || (naive - variance).abs() / variance > 50.0 * most);
                }
            }
        }
    }
}
