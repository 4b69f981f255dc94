use super::*;
use crate::PackPolicy;
use onnxc_ir::graph::{Constant, Def, Dim, Origin, TensorType, Weight};

/// `cast(clamp(round(x * scale + offset) + zero))` of i32, by the operations that quantized models become.
struct Quantization<'a> {
    scale: Tensor,
    offset: Option<Tensor>,
    /// Added to the rounded value, with its limits.
    zero: f64,
    limits: [f64; 2],
    to: DType,
    /// Of what is scaled, and what is taken away from it.
    from: (DType, f64),
    x: &'a [i64],
}

impl Quantization<'_> {
    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("q", "QuantizeLinear", 0));
        let mut b = Builder::new(&mut graph, origin);
        let channels = self.scale.len().max(self.offset.as_ref().map_or(1, Tensor::len));
        let shape = vec![Dim::from(self.x.len()), Dim::from(channels)];
        let x = b.input("x", TensorType::new(self.from.0, shape), None);
        let mut value = b.cast(x, DType::F32).unwrap();
        if self.from.1 != 0.0 {
            value = b.binary_scalar(BinaryFn::Sub, value, self.from.1).unwrap();
        }
        let scale = b.constant(self.scale.clone());
        value = match &self.offset {
            Some(offset) => {
                let offset = b.constant(offset.clone());
                b.emit1(Op::Map(MapFn::MulAdd), &[value, scale, offset]).unwrap()
            }
            None => b.binary(BinaryFn::Mul, value, scale).unwrap(),
        };
        value = b.unary(UnaryFn::Round, value).unwrap();
        if self.zero != 0.0 {
            value = b.binary_scalar(BinaryFn::Add, value, self.zero).unwrap();
        }
        value = b.binary_scalar(BinaryFn::Max, value, self.limits[0]).unwrap();
        value = b.binary_scalar(BinaryFn::Min, value, self.limits[1]).unwrap();
        let result = b.cast(value, self.to).unwrap();
        graph.outputs.push(("y".into(), result));
        graph
    }

    /// Whether the pass takes it; then every result is the exact one: the real number, rounded to the nearest integer and to the even one
    /// of two, clamped.
    fn holds(&self) -> bool {
        let mut graph = self.graph();
        let pack = PackPolicy { integer_scales: true, ..PackPolicy::NARROW };
        run(&mut graph, &Options { pack, ..Options::default() }).unwrap();
        crate::dce::sweep(&mut graph);
        onnxc_ir::verify::verify(&graph).unwrap();
        let has = |wanted: fn(&Op) -> bool| graph.order.iter().any(|&id| wanted(&graph.nodes[id].op));
        let is_taken = has(|op| matches!(op, Op::Map(MapFn::Requantize { .. })));
        assert_eq!(is_taken, !has(|op| matches!(op, Op::Map(MapFn::Unary(UnaryFn::Round)))));
        if !is_taken {
            return false;
        }
        let scales = self.scale.values::<f32>();
        let offsets = self.offset.as_ref().map_or(vec![0.0], Tensor::values::<f32>);
        let channels = scales.len().max(offsets.len());
        let all: Vec<i64> = self.x.iter().flat_map(|&x| vec![x; channels]).collect();
        let input = interp::cast(&Tensor::from_slice(&[self.x.len(), channels], &all), self.from.0, false);
        let found = interp::run(&graph, &[input]).unwrap().remove(0).to_i64s().unwrap();
        for (at, (&x, found)) in all.iter().zip(found).enumerate() {
            let [scale, offset] =
                [scales[at % channels % scales.len()], offsets[at % channels % offsets.len()]];
            let rounded = exact(x - self.from.1 as i64, scale, offset);
            let wanted = (rounded + self.zero as i128).clamp(self.limits[0] as i128, self.limits[1] as i128);
            assert_eq!(i128::from(found), wanted, "{x} * {scale:e} + {offset:e}");
        }
        true
    }
}

/// `x * scale + offset`, rounded once. In units of 2^-70: f32 of 2^-46 and more are whole.
fn exact(x: i64, scale: f32, offset: f32) -> i128 {
    const BITS: i32 = 70;
    let units = |number: f32| {
        let units = f64::from(number) * f64::from(BITS).exp2();
        assert!(number == 0.0 || number.abs() > f32::powi(2.0, -46));
        units as i128
    };
    let (value, one) = (i128::from(x) * units(scale) + units(offset), 1i128 << BITS);
    let (below, rest) = (value.div_euclid(one), value.rem_euclid(one));
    below + i128::from(rest > one / 2 || rest == one / 2 && below % 2 != 0)
}

fn scalar(number: f32) -> Tensor {
    Tensor::scalar(number)
}

/// `x * scale` to signed bytes.
fn scaled(scale: Tensor, x: &[i64]) -> Quantization<'_> {
    let (limits, from) = ([-128.0, 127.0], (DType::I32, 0.0));
    Quantization { scale, offset: None, zero: 0.0, limits, to: DType::I8, from, x }
}

/// Sums of all sizes, up to those that no results of i32 have.
fn sums() -> Vec<i64> {
    let mut sums: Vec<i64> = (-4000..4000).collect();
    sums.extend((0..31).flat_map(|bit| [1i64 << bit, -(1 << bit), (1 << bit) - 3, 5 - (1 << bit)]));
    sums.extend([i32::MIN, i32::MAX].map(i64::from));
    sums
}

#[test]
fn every_result_is_the_exact_one() {
    let x = sums();
    let mut taken = 0;
    let mut state = 7u32;
    let mut next = |bound: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % bound
    };
    for _ in 0..60 {
        let channels = [1, 3, 8][next(3) as usize];
        let mut numbers = |least: f32, span: u32| {
            let numbers: Vec<f32> =
                (0..channels).map(|_| least * (1.0 + next(span * 1000) as f32 / 777.0)).collect();
            Tensor::from_slice(&[channels], &numbers)
        };
        let (scale, offset) = (numbers(0.000_31, 90), numbers(-7.3, 6));
        let is_signed = channels != 3;
        let quantization = Quantization {
            offset: (channels != 8).then_some(offset),
            zero: if is_signed { 5.0 } else { 131.0 },
            limits: if is_signed { [-128.0, 127.0] } else { [0.0, 255.0] },
            to: if is_signed { DType::I8 } else { DType::U8 },
            ..scaled(scale, &x)
        };
        taken += usize::from(quantization.holds());
    }
    assert_eq!(taken, 60);
}

/// The zero point of bytes is in the addend; scales may be 1 and more, as their products are small.
#[test]
fn bytes_may_be_scaled_up() {
    let x: Vec<i64> = (-128..128).collect();
    for scale in [0.013f32, 0.731, 1.370_804_1, 3.3, 41.7] {
        let from = (DType::I8, -29.0);
        let offset = Some(Tensor::from_slice(&[4], &[0.0f32, -3.004_714_7, 0.491, 61.2]));
        let quantization = Quantization { offset, zero: -128.0, from, ..scaled(scalar(scale), &x) };
        assert!(quantization.holds(), "{scale}");
    }
    // The largest sums would have no place.
    assert!(!scaled(scalar(3.3), &x).holds());
}

/// Powers of two have ties: between an even integer below and an odd one above, or the other way round, or both.
#[test]
fn real_ties_go_to_the_even_integer() {
    let x: Vec<i64> = (-300..300).collect();
    let from = (DType::I16, 0.0);
    let of = |scale: f32, offset: f32| {
        Quantization { offset: Some(scalar(offset)), from, ..scaled(scalar(scale), &x) }.holds()
    };
    // 2x + 0.5: the even one is always below; 2x + 1.5: above.
    assert!(of(2.0, 0.5) && of(2.0, 1.5));
    // x + 0.5 and x / 4: either.
    assert!(!of(1.0, 0.5) && !of(0.25, 0.0));
    // No half is reached.
    assert!(of(0.25, 0.125) && of(1.0, 0.25));
    // Of channels, too, each by itself.
    let offset = Some(Tensor::from_slice(&[3], &[0.5f32, 1.5, 0.25]));
    assert!(Quantization { offset, from, ..scaled(scalar(2.0), &x) }.holds());
}

#[test]
fn what_has_no_factor_stays() {
    let x = [0, 1, -1, 77];
    for scale in [0.0, -0.01, f32::NAN, f32::INFINITY, 1e-38] {
        assert!(!scaled(scalar(scale), &x).holds(), "{scale}");
    }
    for offset in [f32::NAN, f32::INFINITY, 1e30] {
        let offset = Some(scalar(offset));
        assert!(!Quantization { offset, ..scaled(scalar(0.01), &x) }.holds());
    }
    // A limit with a fraction.
    let limits = [-128.0, 6.5];
    assert!(!Quantization { limits, ..scaled(scalar(0.01), &x) }.holds());
    // A channel of zeros beside others has a factor of 0.
    let scale = Tensor::from_slice(&[2], &[0.0f32, 0.03]);
    assert!(Quantization { offset: Some(scalar(3.2)), ..scaled(scale, &x) }.holds());
    // One whose factor would have too few bits.
    let scale = Tensor::from_slice(&[2], &[1e-7f32, 0.3]);
    assert!(!scaled(scale, &x).holds());
}

/// Weights that programs exchange: no code depends on their values.
#[test]
fn scales_that_are_apart_stay_floats() {
    let mut graph = scaled(Tensor::from_slice(&[2], &[0.01f32, 0.03]), &[1]).graph();
    let is_scale = |def: &Def| matches!(def, Def::Const(Constant::Data(tensor)) if tensor.len() == 2);
    let scale = graph.values.values_mut().find(|value| is_scale(&value.def)).unwrap();
    let Def::Const(Constant::Data(tensor)) = &scale.def else { unreachable!() };
    scale.def = Def::Const(Constant::Apart(Weight::new(0, tensor.clone())));
    let before = format!("{graph}");
    let pack = PackPolicy { integer_scales: true, ..PackPolicy::NARROW };
    run(&mut graph, &Options { pack, ..Options::default() }).unwrap();
    assert_eq!(format!("{graph}"), before);
}

#[test]
fn nothing_changes_without_the_policy_or_exactly() {
    for (integer_scales, exact) in [(false, false), (true, true)] {
        let mut graph = scaled(scalar(0.01), &[1]).graph();
        let before = format!("{graph}");
        let pack = PackPolicy { integer_scales, ..PackPolicy::NARROW };
        run(&mut graph, &Options { pack, exact, ..Options::default() }).unwrap();
        assert_eq!(format!("{graph}"), before);
    }
}
