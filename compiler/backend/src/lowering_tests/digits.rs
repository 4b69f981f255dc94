//! Products of codes with left-hand sides as digits, compiled and run, against the evaluator and sums in f64.

use super::contract::{byte_targets, noise, run};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{
    DType, Dim, Graph, MOST_DIGITS, Op, Origin, RhsLayout, Tensor, TensorType, code_shift,
};
use onnxc_ir::interp;
use onnxc_loops::lower::lower;
use onnxc_machine::target::Target;
use onnxc_passes::digits::digits;
use onnxc_schedule::{Options, schedule};

/// A product of `rows` with weights of `bits` in parts, per part and column a scale and, if `zero`, a zero.
struct Case {
    rows: Vec<usize>,
    parts: usize,
    steps: usize,
    columns: usize,
    nr: usize,
    bits: usize,
    zero: bool,
    /// Instead of codes of all kinds.
    all: Option<usize>,
}

impl Case {
    fn inner(&self) -> usize {
        self.parts * self.steps
    }

    fn bias(&self) -> usize {
        if self.zero { 0 } else { 1 << (self.bits - 1) }
    }

    fn code(&self, part: usize, step: usize, column: usize) -> usize {
        if let Some(code) = self.all {
            return code;
        }
        let at = ((part * self.steps + step) * self.columns + column) as u64;
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % (1 << self.bits)
    }

    fn scale(&self, part: usize, column: usize) -> f32 {
        noise(5 + part * self.columns + column) * 0.25
    }

    fn zero(&self, part: usize, column: usize) -> usize {
        if self.zero { (part * 7 + column * 3) % (1 << self.bits) } else { self.bias() }
    }

    fn graph(&self, count: usize) -> Graph {
        let mut graph = Graph { name: "digits".into(), ..Graph::default() };
        let origin = Origin::new("digits", "Digits", 0);
        let origin = graph.origins.push(origin);
        let mut b = Builder::new(&mut graph, origin);
        let shape = [&self.rows[..], &[self.parts, self.steps]].concat();
        let dims = shape.iter().map(|&size| Dim::from(size)).collect();
        let lhs = b.input("x", TensorType::new(DType::F32, dims), None);
        let (panels, per_word) = (self.columns.div_ceil(self.nr), 32 / self.bits);
        let (mut words, mut scales, mut zeros) = (vec![], vec![], vec![]);
        for (panel, part) in (0..panels).flat_map(|panel| (0..self.parts).map(move |part| (panel, part))) {
            let columns = panel * self.nr..(panel + 1) * self.nr;
            for word in 0..self.steps / per_word {
                words.extend(columns.clone().map(|column| {
                    let code = |place: usize| match column < self.columns {
                        true => self.code(part, word * per_word + place, column) as u32,
                        false => 0,
                    };
                    (0..per_word).fold(0, |sum, at| sum | code(at) << code_shift(self.bits, at)) as i32
                }));
            }
            scales.extend(columns.clone().map(|column| self.scale(part, column)));
            zeros.extend(columns.map(|column| self.zero(part, column) as u8));
        }
        let shape = [panels, self.parts, self.nr];
        let codes = [panels, self.parts, self.steps / per_word, self.nr];
        let mut inputs = vec![b.constant(Tensor::from_slice(&codes, &words))];
        inputs.push(b.constant(Tensor::from_slice(&shape, &scales)));
        if self.zero {
            inputs.push(b.constant(Tensor::from_slice(&shape, &zeros)));
        }
        let op = Op::Dequantize { bits: self.bits, bias: self.bias() };
        let weights = b.emit1(op, &inputs).unwrap();
        let rhs = RhsLayout::Panels { nr: self.nr, depth: 1, n: Dim::from(self.columns) };
        let operands = [vec![lhs, weights], digits(&mut b, lhs, count).unwrap()].concat();
        let op = Op::Contract { batch: 0, m: self.rows.len(), k: 2, rhs };
        let y = b.emit1(op, &operands).unwrap();
        graph.outputs.push(("y".into(), y));
        graph
    }

    /// The product in f64 and, for each element, the sum of the largest term of each part times its number of steps.
    fn exact(&self, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let (mut sums, mut sizes) = (vec![], vec![]);
        for row in x.chunks(self.inner()) {
            for column in 0..self.columns {
                let (mut sum, mut size) = (0.0, 0.0);
                for (part, x) in row.chunks(self.steps).enumerate() {
                    let scale = f64::from(self.scale(part, column));
                    let largest = x.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
                    for (step, &x) in x.iter().enumerate() {
                        let code = self.code(part, step, column) as f64 - self.zero(part, column) as f64;
                        sum += code * scale * f64::from(x);
                        size += code.abs() * scale.abs() * largest;
                    }
                }
                sums.push(sum);
                sizes.push(size);
            }
        }
        (sums, sizes)
    }

    fn numbers(&self, number: impl Fn(usize) -> f32) -> Vec<f32> {
        (0..self.rows.iter().product::<usize>() * self.inner()).map(number).collect()
    }

    fn input(&self, x: &[f32]) -> [Tensor; 1] {
        [Tensor::from_slice(&[&self.rows[..], &[self.parts, self.steps]].concat(), x)]
    }

    fn name(&self) -> String {
        let Case { rows, parts, steps, columns, bits, zero, .. } = self;
        format!("{rows:?} x {parts} x {steps} x {columns}, {bits} bits, zero {zero}")
    }
}

fn cases() -> Vec<Case> {
    let case = |rows: &[usize], [parts, steps, columns, nr]: [usize; 4], bits, zero| Case {
        rows: rows.to_vec(),
        parts,
        steps,
        columns,
        nr,
        bits,
        zero,
        all: None,
    };
    let mut cases = vec![];
    for steps in [16, 32, 64, 128, 256] {
        for bits in [2, 4, 8] {
            for zero in [false, true] {
                cases.push(case(&[1], [3, steps, 70, 64], bits, zero));
            }
        }
    }
    cases.extend([
        case(&[2], [28, 32, 130, 64], 4, false),
        case(&[5], [4, 32, 33, 32], 4, true),
        case(&[3], [5, 24, 40, 16], 8, true),
        case(&[7], [5, 32, 24, 8], 2, true),
        case(&[1, 6], [4, 64, 20, 16], 4, false),
        case(&[64], [28, 32, 70, 64], 4, true),
        case(&[0], [2, 32, 20, 16], 4, false),
    ]);
    cases
}

/// Sums of codes times digits are those of floats, and with three digits at least as near to the exact ones: what a part
/// rounds to is as far off as its largest element's last bits.
#[test]
fn digits_times_codes() {
    for case in cases() {
        let x = case.numbers(|at| noise(at + 77) * [1.0, 0.01, 300.0][at / case.steps % 3]);
        let (exact, sizes) = case.exact(&x);
        for count in 1..=MOST_DIGITS {
            let graph = case.graph(count);
            let evaluated = interp::run(&graph, &case.input(&x)).unwrap().remove(0).to_f64s().unwrap();
            for target in byte_targets() {
                let got = run(&graph, &case.input(&x), &target).to_f64s().unwrap();
                assert_eq!(got.len(), exact.len(), "{}", case.name());
                let own = 2f64.powi(1 - 8 * count as i32) + 2f64.powi(-23);
                for (at, ((exact, size), got)) in exact.iter().zip(&sizes).zip(&got).enumerate() {
                    let what = format!("{} with {count} digits, element {at}", case.name());
                    assert!((exact - got).abs() <= own * size + 1e-30, "{what}: {got}, not {exact}");
                    assert!(
                        (exact - evaluated[at]).abs() <= 1e-5 * size,
                        "{what}: the evaluator gives {evaluated:?}"
                    );
                }
            }
        }
    }
}

/// Sums as far from zero as codes and digits can make them, which 32 bits hold.
#[test]
fn largest_sums() {
    // Just below what the next power of two would be taken for.
    let largest = 1.984;
    for (steps, bits) in [(32, 4), (64, 4), (256, 4), (256, 8), (256, 2), (16, 4)] {
        for (zero, code) in [(false, 0), (false, (1 << bits) - 1), (true, 0), (true, (1 << bits) - 1)] {
            for (rows, nr) in [(1, 64), (2, 64), (6, 32), (5, 16)] {
                let case =
                    Case { rows: vec![rows], parts: 2, steps, columns: 40, nr, bits, zero, all: Some(code) };
                let x =
                    case.numbers(|at| if (at / case.inner()).is_multiple_of(2) { largest } else { -largest });
                let (exact, sizes) = case.exact(&x);
                let graph = case.graph(3);
                for target in byte_targets() {
                    let got = run(&graph, &case.input(&x), &target).to_f64s().unwrap();
                    for (at, (exact, got)) in exact.iter().zip(&got).enumerate() {
                        // Many rows may be computed in floats, whose terms all round the same way here.
                        let near = (exact - got).abs() <= sizes[at] * 2f64.powi(-16) + 1e-30;
                        let name = case.name();
                        assert!(
                            near,
                            "{name}, codes {code}, element {at}, {:?}: {got}, not {exact}",
                            target.wide
                        );
                    }
                }
            }
        }
    }
}

/// What has no form as digits comes through as floats have it, without changing other rows: infinities, NaN, numbers near
/// the limits of f32 and below them.
#[test]
fn extreme_left_hand_sides() {
    let case =
        Case { rows: vec![5], parts: 3, steps: 32, columns: 70, nr: 64, bits: 4, zero: false, all: None };
    let plain = case.numbers(|at| noise(at + 77));
    let row = case.inner();
    let set = |changes: &[(usize, f32)]| {
        let mut x = plain.clone();
        changes.iter().for_each(|&(at, value)| x[at] = value);
        x
    };
    for (what, x) in [
        ("infinity", set(&[(3, f32::INFINITY)])),
        ("both infinities", set(&[(row + 3, f32::INFINITY), (row + 40, f32::NEG_INFINITY)])),
        ("NaN", set(&[(2 * row + 50, f32::NAN)])),
        ("zeros", vec![0.0; plain.len()]),
        ("negative zeros", vec![-0.0; plain.len()]),
        ("large", plain.iter().map(|x| x * 1e30).collect()),
        ("a part with the largest", set(&[(4 * row, 1e36), (4 * row + 33, -1e36)])),
        ("small", plain.iter().map(|x| x * 1e-36).collect()),
        ("denormal", plain.iter().map(|x| x * 1e-41).collect()),
        ("an outlier", set(&[(1, 4096.0)])),
    ] {
        let graph = case.graph(3);
        let input = case.input(&x);
        let wanted = interp::run(&graph, &input).unwrap().remove(0).to_f64s().unwrap();
        let sizes = case.exact(&x).1;
        for target in byte_targets() {
            let got = run(&graph, &input, &target).to_f64s().unwrap();
            for (at, (wanted, got)) in wanted.iter().zip(&got).enumerate() {
                let near = (wanted - got).abs() <= sizes[at] * 2f64.powi(-22) + 1e-43;
                let same = wanted == got || wanted.is_nan() && got.is_nan() || wanted.is_finite() && near;
                assert!(same, "{what}, element {at} on {:?}: {got}, not {wanted}", target.wide);
            }
        }
    }
}

/// Codes of 4 bits are widened for many rows only where products of digits take several instructions each; codes of 8 bits
/// everywhere.
#[test]
fn many_rows_are_digits_where_bytes_have_products() {
    let widens = |cpu: &str, bits: usize| {
        let case =
            Case { rows: vec![40], parts: 3, steps: 32, columns: 64, nr: 64, bits, zero: false, all: None };
        let graph = case.graph(3);
        let program = schedule(&graph, Options::default()).unwrap();
        let target =
            Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some(cpu)).unwrap().leaf().unwrap();
        let kernels = program.groups.values().map(|group| lower(&graph, group, "digits", &target).unwrap());
        kernels.filter(|kernel| kernel.buffers.values().any(|buffer| buffer.name == "panel")).count()
    };
    for (cpu, bits, wanted) in
        [("x86-64-v4", 4, 1), ("x86-64-v4", 8, 1), ("icelake-server", 4, 0), ("icelake-server", 8, 1)]
    {
        assert_eq!(widens(cpu, bits), wanted, "{bits} bits on {cpu}");
    }
}

/// Integers of so few bits that the digits hold them give sums without any rounding.
#[test]
fn integers_are_exact() {
    // One row is nowhere computed with weights that are widened, and rounded, before.
    let case =
        Case { rows: vec![1], parts: 2, steps: 32, columns: 16, nr: 16, bits: 4, zero: true, all: None };
    let x = case.numbers(|at| ((at * 7919) % 4001) as f32 - 2000.0);
    let graph = case.graph(3);
    for target in byte_targets() {
        let got = run(&graph, &case.input(&x), &target).to_f64s().unwrap();
        for (row, x) in x.chunks(case.inner()).enumerate() {
            for column in 0..case.columns {
                let part = |part: usize| {
                    let steps = case.steps;
                    let term = |(step, x): (usize, &f32)| {
                        (case.code(part, step, column) as i64 - case.zero(part, column) as i64) * *x as i64
                    };
                    x[part * steps..(part + 1) * steps].iter().enumerate().map(term).sum::<i64>() as f32
                };
                let wanted = part(1).mul_add(case.scale(1, column), part(0) * case.scale(0, column));
                let twice = part(0) * case.scale(0, column) + part(1) * case.scale(1, column);
                let got = got[row * case.columns + column] as f32;
                let what = format!("row {row}, column {column} on {:?}", target.wide);
                assert!(got == wanted || got == twice, "{what}: {got:?}, not {wanted:?} or {twice:?}");
            }
        }
    }
}
