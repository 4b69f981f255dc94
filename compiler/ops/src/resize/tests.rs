use crate::node_case::{Case, ComplexPart, close, computes_parts, elements, ramp};
use onnxc_ir::graph::{Dim, Op};

/// "length_resized > 1 ? (x_resized + 0.5) / scale - 0.5 : 0": a single element is at 0, where `asymmetric` has it.
#[test]
fn a_single_element_of_pytorch_half_pixel_is_at_zero() {
    let resized = |coordinates: &str, antialias: i64| {
        let case = Case::new("Resize", 19).ramp(&[1, 1, 6, 5], 1).missing().missing();
        let case = case.constant::<i64>(&[4], &[1, 1, 1, 1]).str("mode", "cubic").int("antialias", antialias);
        case.int("exclude_outside", 1).str("coordinate_transformation_mode", coordinates).run().unwrap()
    };
    for antialias in [0, 1] {
        assert_eq!(resized("pytorch_half_pixel", antialias), resized("asymmetric", antialias));
        assert_ne!(resized("pytorch_half_pixel", antialias), resized("half_pixel", antialias));
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let resized = |shape: &[usize], sizes: &[i64]| {
        let case = Case::new("Resize", 19).ramp(shape, 1).missing().missing();
        case.constant::<i64>(&[sizes.len()], sizes).run().unwrap_err().message
    };
    let message = resized(&[1, 1, 2, 2], &[1, 1, -4, 4]);
    assert!(message.contains("sizes [1, 1, -4, 4] of axes"), "{message}");
    let message = resized(&[1, 1, 0, 2], &[1, 1, 4, 4]);
    assert!(message.contains("resampling of the empty f32[1, 1, 0, 2]"), "{message}");
}

#[test]
fn nearest_in_all_roundings() {
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 1, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
        .str("coordinate_transformation_mode", "half_pixel")
        .str("mode", "nearest")
        .str("nearest_mode", "round_prefer_floor");
    case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 0.25, 0.25, -0.75]);
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 1, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
        .str("coordinate_transformation_mode", "half_pixel")
        .str("mode", "nearest")
        .str("nearest_mode", "round_prefer_ceil");
    case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 0.25, 0.25, -0.75]);
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 1, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
        .str("coordinate_transformation_mode", "half_pixel")
        .str("mode", "nearest")
        .str("nearest_mode", "floor");
    case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 1.25, 0.25, 0.25]);
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 1, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
        .str("coordinate_transformation_mode", "half_pixel")
        .str("mode", "nearest")
        .str("nearest_mode", "ceil");
    case.gives(0, &[1, 1, 1, 6], &[-0.5, 1.25, 0.25, 0.25, -0.75, -0.75]);
}

#[test]
fn nearest_by_an_integer_of_symbolic_extents() {
    let case = Case::new("Resize", 11)
        .symbolic(&["n", "", "h", "w"], &[1, 1, 2, 2], &ramp(4, 1))
        .constant::<f32>(&[0], &[])
        .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 3.0])
        .str("coordinate_transformation_mode", "asymmetric")
        .str("mode", "nearest")
        .str("nearest_mode", "floor");
    case.gives(
        0,
        &[1, 1, 4, 6],
        &[
            -0.5, -0.5, -0.5, 1.25, 1.25, 1.25, -0.5, -0.5, -0.5, 1.25, 1.25, 1.25, 0.25, 0.25, 0.25, -0.75,
            -0.75, -0.75, 0.25, 0.25, 0.25, -0.75, -0.75, -0.75,
        ],
    );
    let case = Case::new("Upsample", 9)
        .symbolic(&["n", "", "h", "w"], &[1, 1, 2, 2], &ramp(4, 1))
        .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 2.0])
        .str("mode", "nearest");
    case.gives(
        0,
        &[1, 1, 4, 4],
        &[-0.5, -0.5, 1.25, 1.25, -0.5, -0.5, 1.25, 1.25, 0.25, 0.25, -0.75, -0.75, 0.25, 0.25, -0.75, -0.75],
    );
}

#[test]
fn linear_in_all_coordinate_modes() {
    let case = Case::new("Resize", 19)
        .ramp(&[1, 1, 2, 3], 1)
        .missing()
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 5])
        .str("coordinate_transformation_mode", "half_pixel")
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 5],
        &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
    );
    let case = Case::new("Resize", 19)
        .ramp(&[1, 1, 2, 3], 1)
        .missing()
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 5])
        .str("coordinate_transformation_mode", "half_pixel_symmetric")
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 5],
        &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
    );
    let case = Case::new("Resize", 19)
        .ramp(&[1, 1, 2, 3], 1)
        .missing()
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 5])
        .str("coordinate_transformation_mode", "pytorch_half_pixel")
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 5],
        &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
    );
    let case = Case::new("Resize", 19)
        .ramp(&[1, 1, 2, 3], 1)
        .missing()
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 5])
        .str("coordinate_transformation_mode", "align_corners")
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 5],
        &[-0.5, 0.375, 1.25, 0.75, 0.25, -0.625, 0.25, 1.125, 0.625, 0.125, -0.75, 0.125, 1.0, 0.5, 0.0],
    );
    let case = Case::new("Resize", 19)
        .ramp(&[1, 1, 2, 3], 1)
        .missing()
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 5])
        .str("coordinate_transformation_mode", "asymmetric")
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 5],
        &[
            -0.5, 0.55, 1.05, 0.45, 0.25, -0.666667, 0.383333, 0.883333, 0.283333, 0.083333, -0.75, 0.3, 0.8,
            0.2, 0.0,
        ],
    );
    let case = Case::new("Resize", 11)
        .symbolic(&["", "", "h", "w"], &[1, 1, 2, 3], &ramp(6, 1))
        .constant::<f32>(&[0], &[])
        .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 2.0])
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 4, 6],
        &[
            -0.5, -0.0625, 0.8125, 1.0, 0.5, 0.25, -0.5625, -0.125, 0.75, 0.9375, 0.4375, 0.1875, -0.6875,
            -0.25, 0.625, 0.8125, 0.3125, 0.0625, -0.75, -0.3125, 0.5625, 0.75, 0.25, 0.0,
        ],
    );
}

#[test]
fn cubic_with_and_without_the_outside() {
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 3, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.5])
        .float("cubic_coeff_a", -0.5)
        .int("exclude_outside", 0)
        .str("mode", "cubic");
    case.gives(
        0,
        &[1, 1, 4, 2],
        &[0.430266, -0.319734, 0.588867, -0.268555, 0.398583, -0.144531, -0.686777, 0.075087],
    );
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 3, 4], 1)
        .missing()
        .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.5])
        .float("cubic_coeff_a", -0.5)
        .int("exclude_outside", 1)
        .str("mode", "cubic");
    case.gives(
        0,
        &[1, 1, 4, 2],
        &[0.368808, -0.35178, 0.562284, -0.25346, 0.41587, -0.093721, -0.660639, 0.052356],
    );
}

#[test]
fn crop_extrapolates() {
    let case = Case::new("Resize", 13)
        .ramp(&[1, 1, 4, 4], 1)
        .constant::<f32>(&[8], &[0.0, 0.0, 0.2, -0.1, 1.0, 1.0, 0.8, 1.1])
        .missing()
        .constant::<i64>(&[4], &[1, 1, 3, 3])
        .str("coordinate_transformation_mode", "tf_crop_and_resize")
        .float("extrapolation_value", 7.0)
        .str("mode", "linear");
    case.gives(0, &[1, 1, 3, 3], &[7.0, -0.0, 7.0, 7.0, -0.4375, 7.0, 7.0, -0.325, 7.0]);
}

#[test]
fn antialias_and_axes_and_aspect_ratio() {
    let case = Case::new("Resize", 18)
        .ramp(&[1, 1, 4, 6], 1)
        .missing()
        .constant::<f32>(&[2], &[0.5, 0.5])
        .int("antialias", 1)
        .ints("axes", &[2, 3])
        .str("mode", "linear");
    case.gives(0, &[1, 1, 2, 3], &[0.109375, -0.089844, 0.011719, 0.265625, -0.191406, 0.082031]);
    let case = Case::new("Resize", 18)
        .ramp(&[1, 1, 2, 4], 1)
        .missing()
        .missing()
        .constant::<i64>(&[2], &[5, 6])
        .ints("axes", &[2, 3])
        .str("keep_aspect_ratio_policy", "not_larger")
        .str("mode", "nearest");
    case.gives(
        0,
        &[1, 1, 3, 6],
        &[
            -0.5, -0.5, 1.25, 0.25, 0.25, -0.75, -0.5, -0.5, 1.25, 0.25, 0.25, -0.75, 1.0, 1.0, 0.0, -1.0,
            -1.0, 0.75,
        ],
    );
}

#[test]
fn enormous_factors_take_no_time() {
    let case = Case::new("Resize", 19)
        .ramp(&[1, 4], 1)
        .missing()
        .missing()
        .constant::<i64>(&[2], &[1 << 40, 0])
        .str("coordinate_transformation_mode", "asymmetric")
        .str("mode", "nearest")
        .str("nearest_mode", "round_prefer_ceil");
    // Whoever counts up to such a size does not come to an end.
    let (graph, _) = case.lower().unwrap();
    assert_eq!(graph.ty(graph.outputs[0].1).shape, [Dim::from(1i64 << 40), Dim::ZERO]);
}

/// What data decide gives what constants do.
#[test]
fn scales_and_sizes_that_data_decide() {
    let run = |build: &dyn Fn(Case) -> Case, late: bool, at: usize, values: &[f32]| {
        let mut case = build(Case::new("Resize", 19).ramp(&[1, 2, 4, 5], 3));
        for missing in 1..4 {
            case = match (missing == at, at, late) {
                (false, ..) => case.missing(),
                (_, 2, true) => case.input(&[4], values),
                (_, 2, false) => case.constant(&[4], values),
                (_, _, true) => case.input(&[4], &values.iter().map(|&v| v as i64).collect::<Vec<_>>()),
                _ => case.constant(&[4], &values.iter().map(|&v| v as i64).collect::<Vec<_>>()),
            };
        }
        case.run().unwrap().remove(0)
    };
    let builds: &[&dyn Fn(Case) -> Case] = &[
        &|case| case.str("mode", "nearest"),
        &|case| case.str("mode", "linear"),
        &|case| case.str("mode", "cubic").int("exclude_outside", 1),
        &|case| case.str("mode", "linear").str("coordinate_transformation_mode", "align_corners"),
        &|case| case.str("mode", "linear").str("coordinate_transformation_mode", "half_pixel_symmetric"),
        &|case| case.str("mode", "linear").int("antialias", 1),
        &|case| case.str("mode", "cubic").int("antialias", 1),
        &|case| case.str("mode", "cubic").int("antialias", 1).int("exclude_outside", 1),
    ];
    for (number, build) in builds.iter().enumerate() {
        for (at, values) in [(2, [1., 1., 0.6, 1.5]), (2, [1., 1., 2., 0.5]), (3, [1., 2., 3., 8.])] {
            let (wanted, found) = (run(build, false, at, &values), run(build, true, at, &values));
            assert_eq!(found.shape, wanted.shape, "{number}: {values:?}");
            let pairs = crate::node_case::elements(&found);
            let wanted = crate::node_case::elements(&wanted);
            for (found, wanted) in pairs.iter().zip(&wanted) {
                assert!(
                    crate::node_case::close(*found, *wanted, 1e-4),
                    "{number}, {values:?}: {found} is not {wanted}"
                );
            }
        }
    }
    for policy in ["not_larger", "not_smaller"] {
        let build = |case: Case| {
            let case = case.str("mode", "nearest").str("keep_aspect_ratio_policy", policy);
            case.ints("axes", &[0, 1, 2, 3])
        };
        let shape = |late| run(&build, late, 3, &[1., 2., 3., 8.]).shape;
        assert_eq!(shape(true), shape(false), "{policy}");
    }
}

#[test]
fn antialias_down_to_nothing_is_refused() {
    let case = Case::new("Resize", 19)
        .ramp(&[1, 4], 1)
        .missing()
        .missing()
        .constant::<i64>(&[2], &[1, 0])
        .int("antialias", 1)
        .str("mode", "cubic");
    assert_eq!(case.lower().unwrap_err().message, "a filter of inf taps");
}

#[test]
fn old_versions_are_asymmetric() {
    let case = Case::new("Resize", 10)
        .ramp(&[1, 1, 2, 4], 1)
        .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.6])
        .str("mode", "nearest");
    case.gives(0, &[1, 1, 3, 2], &[-0.5, 0.25, -0.5, 0.25, 1.0, -1.0]);
    let case = Case::new("Resize", 10)
        .ramp(&[1, 1, 2, 4], 1)
        .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.6])
        .str("mode", "linear");
    case.gives(0, &[1, 1, 3, 2], &[-0.5, 0.583333, 0.5, -0.25, 1.0, -0.666667]);
    let case = Case::new("Upsample", 9)
        .ramp(&[1, 1, 2, 2], 1)
        .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 2.0])
        .str("mode", "linear");
    case.gives(
        0,
        &[1, 1, 3, 4],
        &[-0.5, 0.375, 1.25, 1.25, 0.0, -0.041667, -0.083333, -0.083333, 0.25, -0.25, -0.75, -0.75],
    );
}

/// Axes that gathers of the lowered `case` resample, in their order.
fn resampled(case: &Case) -> Vec<usize> {
    let (graph, _) = case.lower().unwrap();
    let mut axes: Vec<usize> = graph
        .nodes
        .iter()
        .filter_map(|(_, node)| match node.op {
            Op::Gather { axis } => Some(axis),
            _ => None,
        })
        .collect();
    axes.dedup();
    axes
}

#[test]
fn what_shrinks_comes_first_then_the_innermost_that_grows() {
    let order = |scales: &[f32]| {
        let case = Case::new("Resize", 19).ramp(&[1, 2, 8, 8], 1).missing();
        resampled(&case.constant::<f32>(&[4], scales).str("mode", "linear"))
    };
    assert_eq!(order(&[1.0, 1.0, 1.5, 2.5]), [3, 2]);
    assert_eq!(order(&[1.0, 1.0, 0.5, 2.5]), [2, 3]);
    assert_eq!(order(&[1.0, 1.0, 1.5, 0.5]), [3, 2]);
    assert_eq!(order(&[1.0, 1.0, 0.5, 0.5]), [2, 3]);
    assert_eq!(order(&[1.0, 1.5, 0.5, 2.5]), [2, 3, 1]);
}

/// Each axis is resampled alone: two of them at once equal one after the other, in either order.
#[test]
fn two_axes_at_once_are_one_after_the_other() {
    const SIZE: [usize; 4] = [1, 2, 6, 5];
    let resized = |shape: &[usize], values: &[f32], sizes: [i64; 4], modes: [&str; 2], antialias: i64| {
        let case = Case::new("Resize", 19).input(shape, values).missing().missing();
        let case = case.constant::<i64>(&[4], &sizes).str("mode", modes[0]).int("antialias", antialias);
        let result = case.str("coordinate_transformation_mode", modes[1]).run().unwrap().remove(0);
        elements(&result).iter().map(|&value| value as f32).collect::<Vec<f32>>()
    };
    let x = ramp(SIZE.iter().product(), 1);
    for (mode, antialias) in [("nearest", 0), ("linear", 0), ("cubic", 0), ("linear", 1), ("cubic", 1)] {
        for coordinates in ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"] {
            for [h, w] in [[9, 8], [9, 3], [4, 8], [4, 3], [1, 8], [12, 1]] {
                let modes = [mode, coordinates];
                let both = resized(&SIZE, &x, [1, 2, h, w], modes, antialias);
                let high = resized(&SIZE, &x, [1, 2, h, 5], modes, antialias);
                let h_then_w = resized(&[1, 2, h as usize, 5], &high, [1, 2, h, w], modes, antialias);
                let wide = resized(&SIZE, &x, [1, 2, 6, w], modes, antialias);
                let w_then_h = resized(&[1, 2, 6, w as usize], &wide, [1, 2, h, w], modes, antialias);
                for other in [h_then_w, w_then_h] {
                    let same = both.iter().zip(&other).all(|(&a, &b)| close(a.into(), b.into(), 1e-5));
                    assert!(
                        same && both.len() == other.len(),
                        "{modes:?} {antialias} to {h}x{w}: {both:?} {other:?}"
                    );
                }
            }
        }
    }
}

/// `floor(size * scale)` with the product in f32, as of a static size, for any scale and size.
#[test]
fn any_scale_of_a_symbolic_size_is_that_of_a_static_one() {
    let resized = |opset: i64, scale: f32, size: usize, symbol: &str| {
        let x = ramp(size, 1);
        let case = Case::new(if opset == 9 { "Upsample" } else { "Resize" }, opset as u32);
        let case = case.symbolic(&["", symbol], &[1, size], &x);
        let case = if opset == 19 { case.missing() } else { case };
        case.constant::<f32>(&[2], &[1.0, scale]).run().unwrap().remove(0)
    };
    let scales =
        [1.0 / 300.0, 0.7, 1.0 / 3.0, 2.0 / 3.0, 0.1, 1.1, 1.0 / 49.0, 2.3, 1.5, 300.0 / 7.0, 0.999_999_9];
    for opset in [9, 10, 19] {
        for scale in scales.into_iter().filter(|&scale| opset > 9 || scale >= 1.0) {
            for size in [1usize, 2, 3, 7, 10, 29, 49, 98, 147, 299, 300, 301, 600, 900] {
                if (size as f32 * scale).floor() == 0.0 {
                    continue;
                }
                let (here, there) = (resized(opset, scale, size, ""), resized(opset, scale, size, "n"));
                assert_eq!(here.shape, [1, (size as f32 * scale).floor() as usize]);
                assert_eq!(here, there, "{size} by {scale} at {opset}");
            }
        }
    }
}

/// Small fractions stand for the scales that give the same sizes.
#[test]
fn scales_that_are_formulas_give_the_products_of_f32() {
    let mut found = 0;
    for denominator in 1..=64 {
        for numerator in 1..=2 * denominator {
            let scale = numerator as f32 / denominator as f32;
            let Some((p, q)) = super::small_fraction(scale) else { continue };
            found += 1;
            for size in (1..3000i64).chain(60_000..61_000) {
                let wanted = (size as f32 * scale).floor() as i64;
                assert_eq!(size * p / q, wanted, "{size} by {numerator}/{denominator}");
            }
        }
    }
    assert!(found > 1000, "{found} of the scales are formulas");
}

/// Interpolation is linear: of complex numbers it is that of their parts. What lies outside is a real number.
#[test]
fn complex_numbers_are_resampled_by_parts() {
    for mode in ["nearest", "linear", "cubic"] {
        for coordinates in ["half_pixel", "tf_crop_and_resize"] {
            let case = |case: Case, part: ComplexPart| {
                let case = case.constant::<f32>(&[4], &[0.0, -0.5, 1.0, 0.8]);
                let case = case.constant::<f32>(&[2], &[1.0, 1.6]).str("mode", mode);
                let outside = if part == ComplexPart::Imaginary { 0.0 } else { 7.0 };
                case.str("coordinate_transformation_mode", coordinates).float("extrapolation_value", outside)
            };
            computes_parts(&[2, 5], case, "Resize", 13);
        }
    }
    for opset in [9, 10] {
        let name = if opset == 9 { "Upsample" } else { "Resize" };
        let case = |case: Case, _| case.constant::<f32>(&[2], &[1.0, 1.5]).str("mode", "linear");
        computes_parts(&[2, 5], case, name, opset);
    }
}
