//! The generator against the vectors of its authors, and the distributions by their statistics. All seeds are fixed, so that a
//! test that passes always does; bounds are those that chance passes in all but one of 10,000 cases.

use super::*;
use crate::node_case::{Case, elements};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Origin, Tensor};
use onnxc_ir::interp;

const COUNT: usize = 20_000;

/// The largest distance of an empirical distribution from its own is above `2.23 / sqrt(n)` once in 10,000 cases (Kolmogorov).
fn limit(count: usize) -> f64 {
    2.23 / (count as f64).sqrt()
}

/// The largest distance of the empirical distribution of `values`, which lie on a grid of width `step`, from `cumulative`.
fn distance(mut values: Vec<f64>, step: f64, cumulative: impl Fn(f64) -> f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let at = |(at, &value): (usize, &f64)| {
        let (below, above) = (cumulative(value - step), cumulative(value + step));
        // Between the steps around the value on a grid; at the value without one.
        let (found, next) = (at as f64 / count, (at + 1) as f64 / count);
        (below - next).max(found - above).max(0.0)
    };
    values.iter().enumerate().map(at).fold(0.0, f64::max)
}

fn outputs_of(case: &Case, seed: u64) -> Vec<Tensor> {
    let (graph, data) = case.lower().unwrap();
    interp::run_seeded(&graph, &data, seed, &mut |_, _| {}).unwrap()
}

fn values(case: &Case) -> Vec<f64> {
    elements(&outputs_of(case, 7)[0])
}

/// Relative widths of the grids that uniform numbers of a type lie on.
fn grid(number: i64) -> f64 {
    match number {
        10 => 2f64.powi(-11),
        16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

#[test]
fn philox_gives_the_words_of_its_authors() {
    // kat_vectors of Random123, philox4x32 with 10 rounds: counter and key of zeros, and of the digits of pi.
    let of = |counter: [i64; 4], key: i64| {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("t", "t", 0));
        let mut b = Builder::new(&mut graph, origin);
        let def = crate::Table::standard().lookup("", "RandomUniform", 22).unwrap();
        let (key, index) = (b.constant(Data::scalar(key)), counter[0] | counter[1] << 32);
        let mut cx = NodeCx {
            b: &mut b,
            def,
            opset: 22,
            inputs: vec![],
            compounds: Default::default(),
            given: Vec::new(),
            attributes: &Default::default(),
            outputs: 1,
            wanted: &[true],
            declared: &[None],
            ranks: &[None],
            bodies: &mut crate::NoBodies,
            tolerated: Vec::new(),
        };
        let key = [low(cx.b, key).unwrap(), high(cx.b, key).unwrap()];
        let start = cx.b.constant(Data::scalar(index));
        let generator = Generator { key, stream: [counter[2], counter[3]] };
        let words = generator.words_at(&mut cx, start).unwrap();
        graph.outputs = words.map(|word| ("w".to_string(), word)).into();
        let found = interp::run(&graph, &[]).unwrap();
        found.iter().map(|tensor| tensor.to_i64s().unwrap()[0] as u32).collect::<Vec<u32>>()
    };
    assert_eq!(of([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let pi = [0x243f_6a88, 0x85a3_08d3_u32 as i64, 0x1319_8a2e, 0x0370_7344];
    let key = 0xa409_3822_i64 | 0x299f_31d0 << 32;
    assert_eq!(of(pi, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

/// `RandomState(0).rand(1000)`, as multiples of 2^-53, at both ends and where a block of words ends.
#[test]
fn the_twister_gives_the_numbers_of_numpy() {
    let wanted = [
        (0, 4_943_272_583_565_992u64),
        (1, 6_441_853_127_788_339),
        (2, 5_429_209_831_737_675),
        (311, 1_323_577_714_936_947),
        (312, 716_271_243_010_878),
        (623, 7_323_338_151_106_812),
        (624, 8_793_059_068_320_278),
        (999, 6_099_145_208_594_882),
    ];
    for symbolic in [false, true] {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("t", "t", 0));
        let mut b = Builder::new(&mut graph, origin);
        let n = if symbolic { Dim::sym(b.fresh_symbol()) } else { Dim::from(1000usize) };
        let x = b.input("x", onnxc_ir::graph::TensorType::new(DType::F64, vec![n.clone()]), None);
        let u = mersenne::below_one(&mut b, 0, n).unwrap();
        let y = b.binary(BinaryFn::Add, x, u).unwrap();
        graph.outputs = vec![("y".to_string(), y)];
        let y = &interp::run(&graph, &[Tensor::from_slice(&[1000], &[0f64; 1000])]).unwrap()[0];
        let y = y.to_f64s().unwrap();
        for (at, number) in wanted {
            assert_eq!(y[at] * 2f64.powi(53), number as f64, "element {at}");
        }
    }
}

#[test]
fn uniform_numbers_of_every_type() {
    for number in [1, 10, 11, 16] {
        let of = || Case::new("RandomUniform", 22).ints("shape", &[100, 200]).int("dtype", number);
        let found = values(&of());
        assert!(found.len() == COUNT && found.iter().all(|&u| (0.0..1.0).contains(&u)));
        let far = distance(found, grid(number), |u| u.clamp(0.0, 1.0));
        assert!(far < limit(COUNT), "type {number}: {far}");
        let found = values(&of().float("low", -3.0).float("high", 5.0));
        let far = distance(found, 16.0 * grid(number), |u| ((u + 3.0) / 8.0).clamp(0.0, 1.0));
        assert!(far < limit(COUNT), "type {number}: {far}");
    }
}

#[test]
fn all_bits_of_uniform_numbers_are_random() {
    // A chi-square test of the lowest byte that a type has: 255 degrees of freedom, mean 255, deviation sqrt(510).
    for (number, bits) in [(1, 24), (11, 53)] {
        let found = values(&Case::new("RandomUniform", 22).ints("shape", &[51_200]).int("dtype", number));
        let mut counts = [0f64; 256];
        found.iter().for_each(|u| counts[(u * 2f64.powi(bits)) as u64 as usize % 256] += 1.0);
        let square: f64 = counts.iter().map(|count| (count - 200.0).powi(2) / 200.0).sum();
        assert!((170.0..350.0).contains(&square), "type {number}: {square}");
    }
}

#[test]
fn neighbours_are_not_correlated() {
    let u = values(&Case::new("RandomUniform", 22).ints("shape", &[COUNT as i64]).int("dtype", 11));
    for lag in [1, 2, 4, 64] {
        let sum: f64 = u.iter().zip(&u[lag..]).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum();
        let correlation = 12.0 * sum / COUNT as f64;
        assert!(correlation.abs() < 4.0 / (COUNT as f64).sqrt(), "lag {lag}: {correlation}");
    }
}

/// The normal distribution, by the series of the error function (Abramowitz and Stegun 7.1.6).
fn gaussian(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x < 0.0 { 0.0 } else { 1.0 };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / (2 * n + 1) as f64;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

#[test]
fn normal_numbers_of_every_type() {
    for (number, step) in [(1, 1e-6), (10, 2e-3), (11, 1e-12), (16, 2e-2)] {
        let of = || Case::new("RandomNormal", 22).ints("shape", &[COUNT as i64]).int("dtype", number);
        let far = distance(values(&of()), step, gaussian);
        assert!(far < limit(COUNT), "type {number}: {far}");
        let moved = values(&of().float("mean", 2.0).float("scale", 0.5));
        let far = distance(moved, 2.0 * step, |x| gaussian((x - 2.0) / 0.5));
        assert!(far < limit(COUNT), "type {number}: {far}");
    }
}

#[test]
fn like_forms_take_shape_and_type() {
    let x = [1f64; 6];
    let like = |name| Case::new(name, 22).symbolic(&["n", ""], &[2, 3], &x);
    for name in ["RandomUniformLike", "RandomNormalLike"] {
        let of = |case: &Case| (outputs_of(case, 1)[0].dtype, outputs_of(case, 1)[0].shape.clone());
        assert_eq!(of(&like(name)), (DType::F64, vec![2, 3]));
        assert_eq!(of(&like(name).int("dtype", 10)), (DType::F16, vec![2, 3]));
        let integers = Case::new(name, 22).input(&[2], &[1i64, 2]);
        assert!(integers.run().unwrap_err().message.contains("i64"));
        assert_eq!(of(&integers.int("dtype", 1)), (DType::F32, vec![2]));
    }
}

/// Versions differ in the types that they allow.
#[test]
fn older_versions_draw_the_same() {
    let shaped = |name| Case::new(name, 22).ints("shape", &[3, 5]);
    let like = |name| Case::new(name, 22).input(&[2, 3], &[0.5f32; 6]);
    for (first, case) in [
        (1, shaped("RandomUniform")),
        (1, shaped("RandomNormal")),
        (1, like("RandomUniformLike")),
        (1, like("RandomNormalLike")),
        (7, like("Multinomial").int("sample_size", 9)),
        (15, like("Bernoulli")),
    ] {
        let newest = outputs_of(&case, 3)[0].clone();
        assert_eq!(outputs_of(&case.at(first), 3)[0], newest);
    }
}

#[test]
fn seeds_and_streams() {
    let of = || Case::new("RandomUniform", 22).ints("shape", &[64]);
    let bits = |case: &Case, seed| outputs_of(case, seed)[0].data.clone();
    assert_eq!(bits(&of(), 5), bits(&of(), 5));
    assert_ne!(bits(&of(), 5), bits(&of(), 6));
    assert_ne!(bits(&of(), 5), bits(&of(), 5 | 1 << 40), "all words of a seed count");
    assert_eq!(bits(&of(), 5), bits(&of(), 5 | 1 << 63), "but for the topmost bit");
    let seeded = |seed: f32| bits(&of().float("seed", seed), 5);
    assert_eq!(seeded(1.5), bits(&of().float("seed", 1.5), 99), "the run's seed does not matter");
    assert_ne!(seeded(1.5), seeded(1.25));
    assert_ne!(seeded(f32::from_bits(5)), bits(&of(), 5), "an attribute is not a seed of a run");
    assert!(of().float("seed", 1.5).lower().unwrap().0.seed.is_none());
}

#[test]
fn bernoulli_hits_as_often_as_it_should() {
    for (chance, wanted) in [(0.0f32, 0.0), (0.125, 0.125), (0.9, 0.9), (1.0, 1.0)] {
        for number in [1, 7, 9] {
            let case = Case::new("Bernoulli", 22).input(&[COUNT], &vec![chance; COUNT]).int("dtype", number);
            let hits: f64 = values(&case).iter().sum();
            let deviation = (COUNT as f64 * wanted * (1.0 - wanted)).sqrt();
            assert!((hits - COUNT as f64 * wanted).abs() <= 4.0 * deviation, "{chance}: {hits}");
        }
    }
}

#[test]
fn classes_are_drawn_as_likely_as_their_weights() {
    let weights = [3f64, 0.0, 1.0, 4.0, 0.0];
    let logs: Vec<f32> = weights.iter().map(|weight| weight.ln() as f32).collect();
    let rows: Vec<f32> = logs.iter().chain(logs.iter().rev()).copied().collect();
    let case = || Case::new("Multinomial", 22).input(&[2, 5], &rows).int("sample_size", 8000).int("dtype", 7);
    let found = values(&case());
    for (row, classes) in found.chunks(8000).enumerate() {
        let mut counts = [0f64; 5];
        classes.iter().for_each(|&class| counts[class as usize] += 1.0);
        if row == 1 {
            counts.reverse();
        }
        let expected = weights.map(|weight| weight * 1000.0);
        assert!(counts[1] == 0.0 && counts[4] == 0.0, "{counts:?}");
        let terms = counts.iter().zip(expected).filter(|(_, wanted)| *wanted > 0.0);
        let square: f64 = terms.map(|(count, wanted)| (count - wanted).powi(2) / wanted).sum();
        // Two degrees of freedom: 18.4 once in 10,000 cases.
        assert!(square < 18.4, "{counts:?}");
    }
    assert_ne!(found[..100], found[8000..8100]);
    assert_eq!(outputs_of(&Case::new("Multinomial", 7).input(&[1, 1], &[0f32]), 0)[0].dtype, DType::I32);
    assert!(case().int("sample_size", 0).run().unwrap_err().message.contains("sample_size is 0"));
}

#[test]
fn dropout_keeps_what_it_scales() {
    let x: Vec<f32> = (1..=COUNT).map(|at| at as f32).collect();
    let check = |case: Case, ratio: f64| {
        let outputs = outputs_of(&case.outputs(2), 3);
        let (y, mask) = (elements(&outputs[0]), elements(&outputs[1]));
        let mut kept = 0.0;
        for ((x, y), mask) in x.iter().zip(y).zip(mask) {
            let wanted = if mask == 0.0 { 0.0 } else { f64::from(*x) / (1.0 - ratio) };
            assert!((y - wanted).abs() <= 1e-5 * wanted.abs(), "{x}: {y} {mask}");
            kept += mask;
        }
        let deviation = (COUNT as f64 * ratio * (1.0 - ratio)).sqrt();
        assert!((kept - COUNT as f64 * (1.0 - ratio)).abs() <= 4.0 * deviation, "{ratio}: {kept}");
    };
    let new = || Case::new("Dropout", 13).input(&[COUNT], &x);
    check(new().constant(&[], &[0.25f32]).constant(&[], &[true]), 0.25);
    check(new().input(&[], &[0.75f32]).input(&[1], &[true]).int("seed", 3), 0.75);
    check(new().missing().constant(&[], &[true]), 0.5);
    check(Case::new("Dropout", 6).input(&[COUNT], &x), 0.5);
    let all = new().constant(&[], &[1f32]).constant(&[], &[true]);
    assert!(values(&all).iter().all(|&y| y == 0.0));
}

#[test]
fn dropout_passes_on_outside_of_training() {
    let old = || Case::new("Dropout", 6).input(&[2], &[1f32, 2.]);
    old().int("is_test", 1).gives(0, &[2], &[1., 2.]);
    old().float("ratio", 0.0).gives(0, &[2], &[1., 2.]);
    Case::new("Dropout", 10).symbolic(&["n"], &[2], &[1f32, 2.]).outputs(2).gives(1, &[2], &[1., 1.]);
    let new = || Case::new("Dropout", 13).input(&[2], &[1f32, 2.]).outputs(2);
    new().gives(0, &[2], &[1., 2.]);
    new().input(&[], &[0.5f32]).constant(&[], &[false]).gives(0, &[2], &[1., 2.]);
    new().constant(&[], &[0f32]).constant(&[], &[true]).gives(0, &[2], &[1., 2.]);
    let late = |ratio: f32, training: bool| new().input(&[], &[ratio]).input(&[], &[training]);
    late(0.5, false).gives(0, &[2], &[1., 2.]);
    late(0.5, false).gives(1, &[2], &[1., 1.]);
    late(0., true).gives(0, &[2], &[1., 2.]);
}
