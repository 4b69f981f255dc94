//! Drawn models between quantizations, against the model's formula step by step.

use onnxc_proto::build::{self, int};
use onnxc_proto::{GraphProto, NodeProto, TensorProto};

use super::*;
use crate::{Options, PackPolicy, run_all};
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;

/// Eight bits and a residual of eight bits; not sixteen.
#[test]
fn scales_are_joined_for_few_steps() {
    assert!(may_join(255.0) && may_join(255.0 + 2.0 * 255.0));
    assert!(!may_join(4096.0) && !may_join(65535.0) && !may_join(f64::INFINITY));
}

/// A reproducible source of numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// From `least` to `least * times`, its logarithm evenly distributed.
    fn scale(&mut self, least: f64, times: f64) -> f32 {
        (least * times.powf(self.below(1 << 20) as f64 / (1 << 20) as f64)) as f32
    }

    /// A tensor of integers of a type.
    fn tensor(&mut self, name: &str, dtype: DType, dims: &[i64]) -> TensorProto {
        let count: i64 = dims.iter().product();
        let bytes = (0..count * dtype.size() as i64).map(|_| self.below(256) as u8).collect::<Vec<u8>>();
        TensorProto {
            name: Some(name.into()),
            data_type: Some(dtype.to_onnx()),
            dims: dims.to_vec(),
            raw_data: Some(bytes.into()),
            ..Default::default()
        }
    }
}

const ROWS: i64 = 12;
const COLUMNS: i64 = 32;

/// A model while it is drawn.
struct Draft {
    dice: Dice,
    dtype: DType,
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
}

impl Draft {
    /// A scale and, of one in two, a zero point.
    fn parameters(&mut self, name: &str, scale: f32) -> Vec<String> {
        let (own, zero) = (format!("{name}_s"), format!("{name}_z"));
        self.tensors.push(build::f32_tensor(&own, &[], vec![scale]));
        let mut tensor = self.dice.tensor(&zero, self.dtype, &[]);
        if self.dice.below(2) == 0 {
            // In the middle of what is unsigned, as quantizers choose it.
            let middle = if self.dtype.is_signed_int() { 0u16 } else { 1 << (self.dtype.bits() - 1) };
            tensor.raw_data = Some(middle.to_le_bytes()[..self.dtype.size()].to_vec().into());
        }
        self.tensors.push(tensor);
        vec![own, zero]
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.nodes.push(build::node(op, inputs, &[output]));
    }

    fn convert(&mut self, op: &str, from: &str, to: &str, parameters: &[String]) {
        self.node(op, &[from, &parameters[0], &parameters[1]], to);
    }

    /// `y_q` from `x_q`, by some operations between quantizations; gives the scale and zero point of `y_q`, those of `x_q` being `own`.
    fn layer(&mut self, kind: &str, [x, y]: [&str; 2], own: &[String], scale: f32) -> Vec<String> {
        let to = self.parameters(y, scale);
        let scale = self.dice.scale(f64::from(scale) / 4.0, 16.0);
        let other = self.parameters(&format!("{y}_other"), scale);
        let [float, second, result] = ["f", "o", "r"].map(|part| format!("{y}_{part}"));
        self.convert("DequantizeLinear", &format!("{x}_q"), &float, own);
        match kind {
            "requantized" => self.node("Identity", &[&float], &result),
            "sum" | "difference" | "product" => {
                let op = [("sum", "Add"), ("difference", "Sub"), ("product", "Mul")];
                let op = op.into_iter().find(|(name, _)| *name == kind).map_or("Add", |(_, op)| op);
                self.convert("DequantizeLinear", "b_q", &second, &other);
                self.node(op, &[&float, &second], &result);
            }
            "columns" => {
                let factors = (0..COLUMNS).map(|_| self.dice.scale(0.3, 8.0)).collect();
                self.tensors.push(build::f32_tensor(&second, &[COLUMNS], factors));
                self.node("Mul", &[&float, &second], &result);
            }
            _ => {
                let (weights, by) = (format!("{y}_w"), format!("{y}_ws"));
                let codes = self.dice.tensor(&weights, DType::I8, &[COLUMNS, COLUMNS]);
                let scales = (0..COLUMNS).map(|_| self.dice.scale(2e-3, 4.0)).collect();
                self.tensors.extend([codes, build::f32_tensor(&by, &[COLUMNS], scales)]);
                let wide = build::node("DequantizeLinear", &[&weights, &by], &[&second]).with(int("axis", 1));
                self.nodes.push(wide);
                let sum = format!("{y}_m");
                self.node("MatMul", &[&float, &second], &sum);
                self.tensors.push(build::f32_tensor(
                    &format!("{y}_bias"),
                    &[COLUMNS],
                    vec![0.37; COLUMNS as usize],
                ));
                self.node("Add", &[&sum, &format!("{y}_bias")], &result);
            }
        }
        self.convert("QuantizeLinear", &result, &format!("{y}_q"), &to);
        to
    }

    fn graph(mut self, layers: usize, kind: &str) -> GraphProto {
        let step = 2.0 / 2f64.powi(self.dtype.bits() as i32);
        let scale = self.dice.scale(step, 12.0);
        let mut parameters = self.parameters("v0", scale);
        for at in 0..layers {
            // Finer or coarser from layer to layer.
            let (scale, names) = (self.dice.scale(step, 12.0), [at, at + 1].map(|at| format!("v{at}")));
            parameters = self.layer(kind, [&names[0], &names[1]], &parameters, scale);
        }
        let ty = self.dtype.to_onnx();
        let inputs = ["v0_q", "b_q"].map(|name| build::value(name, ty, &["12", "32"]));
        let uses_both = self.nodes.iter().any(|node| node.input.iter().any(|name| name == "b_q"));
        let inputs = inputs.into_iter().take(1 + usize::from(uses_both)).collect();
        let mut graph = build::graph(inputs, self.nodes, vec![build::untyped(&format!("v{layers}_q"))]);
        graph.initializer = self.tensors;
        graph
    }
}

/// Numbers of elements by their distance in steps, the last for all larger distances.
fn differences(dtype: DType, kind: &str, seed: u64, pack: PackPolicy) -> [usize; 3] {
    let mut draft = Draft { dice: Dice(seed), dtype, nodes: vec![], tensors: vec![] };
    for _ in 0..8 {
        draft.dice.below(2);
    }
    let values: Vec<Tensor> = (0..2)
        .map(|_| {
            let tensor = draft.dice.tensor("x", dtype, &[ROWS, COLUMNS]);
            Tensor::new(dtype, vec![ROWS as usize, COLUMNS as usize], tensor.raw_data.unwrap_or_default())
        })
        .collect();
    let layers = 1 + draft.dice.below(3) as usize;
    let model = build::model(21, draft.graph(layers, kind));
    let before = import(&model, &ImportOptions::default(), &NoExternalData, &onnxc_ops::Table::standard())
        .unwrap()
        .graph;
    let mut after = before.clone();
    run_all(&mut after, &Options { pack, ..Options::default() }, &mut |_, _, _| {}).unwrap();
    let values = &values[..before.inputs.len()];
    let [wanted, found] = [&before, &after].map(|graph| interp::run(graph, values).unwrap().remove(0));
    let (wanted, found) = (wanted.to_i64s().unwrap(), found.to_i64s().unwrap());
    let mut counts = [0; 3];
    wanted.iter().zip(&found).for_each(|(a, b)| counts[(a - b).unsigned_abs().min(2) as usize] += 1);
    counts
}

/// Of 16 bits every integer is that of the model's formula, for any operations between two quantizations and any fineness of their steps.
#[test]
fn sixteen_bits_follow_the_formula() {
    for dtype in [DType::I16, DType::U16] {
        for kind in ["requantized", "sum", "difference", "product", "columns", "weights"] {
            for seed in 0..12 {
                for pack in [PackPolicy::NARROW, PackPolicy::WIDE, PackPolicy::SOURCE] {
                    let counts = differences(dtype, kind, seed, pack);
                    assert_eq!(counts[1..], [0, 0], "{dtype} {kind}, seed {seed}");
                }
            }
        }
    }
}

/// Of 8 bits, with joined scales, few are next to a tie, and no further.
#[test]
fn eight_bits_are_one_step_off_at_most() {
    let mut all = [0; 3];
    for dtype in [DType::I8, DType::U8] {
        for kind in ["requantized", "sum", "difference", "product", "columns", "weights"] {
            for seed in 0..24 {
                for pack in [PackPolicy::WIDE, PackPolicy::SOURCE] {
                    let counts = differences(dtype, kind, seed, pack);
                    (0..3).for_each(|at| all[at] += counts[at]);
                }
            }
        }
    }
    // A difference may meet a finer step behind it: a few in a hundred thousand.
    assert!(all[1] + all[2] <= (all[0]) / 500 && all[2] <= all[0] / 5000, "{all:?}");
}
