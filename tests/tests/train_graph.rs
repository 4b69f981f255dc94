//! `onnxc train-graph`: models that it writes learn as references do, with each loss and optimizer; which tensors learn; factors beside
//! frozen weights; messages about misuse; files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::{Label, Lora, Loss, Optimizer, Options, Quiet, TrainOptions, Trained};
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{ModelProto, StringStringEntryProto, TensorProto, build};
use onnxc_schedule::Recompute;
use onnxc_tests::onnx_env;
use prost::Message;

use crate::clauses::text;
use crate::training_info::program::{State, entry, own, values};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

const SGD: Optimizer = Optimizer::Sgd;
const ADAM: Optimizer = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-8 };
const ADAMW: Optimizer = Optimizer::AdamW { betas: (0.9, 0.999), epsilon: 1e-8 };

fn train(model: &ModelProto, options: &TrainOptions) -> Result<Trained, String> {
    onnxc::train_graph(model.encode_to_vec().into(), &NoExternalData, options)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn load(trained: &Trained) -> Loaded {
    load_with(trained, Recompute::Nothing)
}

fn load_with(trained: &Trained, recompute: Recompute) -> Loaded {
    let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
    let import = ImportOptions { training: true, ..Default::default() };
    let options = Options { import, recompute, ..Options::new("model", target) };
    let compiled = onnxc::compile(trained.model.clone().into(), &NoExternalData, &options, &mut Quiet);
    Loaded::new(compiled.unwrap_or_else(|errors| panic!("{errors:?}")), Instant::now()).unwrap()
}

fn decoded(trained: &Trained) -> ModelProto {
    ModelProto::decode(trained.model.as_slice()).unwrap()
}

/// Numbers between -1 and 1 in no order.
fn numbers(count: usize, salt: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 7919 + salt * 104_729 + 17) % 2003) as f64 / 1001.5 - 1.0).collect()
}

fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_slice(shape, values),
        DType::I64 => {
            Tensor::from_slice(shape, &values.iter().map(|&value| value as i64).collect::<Vec<_>>())
        }
        DType::I32 => {
            Tensor::from_slice(shape, &values.iter().map(|&value| value as i32).collect::<Vec<_>>())
        }
        _ => Tensor::from_slice(shape, &values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
    }
}

fn initializer(kind: &str, name: &str, shape: &[usize], salt: usize, scale: f64) -> String {
    let numbers = numbers(shape.iter().product(), salt);
    let list: Vec<String> = numbers.iter().map(|number| format!("{}", number * scale)).collect();
    format!("{kind}{shape:?} {name} = {{{}}}", list.join(", "))
}

fn assert_near(found: f64, wanted: f64, about: &str) {
    assert!((found - wanted).abs() <= 1e-4 * wanted.abs(), "{about}: {found}, must be {wanted}");
}

/// The loss that a step gives; it is the last output.
fn loss_of(outputs: &[Tensor]) -> f64 {
    values(outputs.last().unwrap())[0]
}

// A layer of 4 behind 3 inputs, with tanh, and one of 3 outputs.
const ROWS: usize = 5;
const SIZES: [usize; 3] = [3, 4, 3];

fn perceptron() -> ModelProto {
    let shapes: [(&str, &[usize]); 4] = [("w1", &[3, 4]), ("b1", &[4]), ("w2", &[4, 3]), ("b2", &[3])];
    let all =
        shapes.iter().enumerate().map(|(salt, (name, shape))| initializer("float", name, shape, salt, 1.0));
    text::model(&format!(
        "(float[n, 3] x) => (float[n, 3] y) <{}> \
         {{ h = Gemm(x, w1, b1) t = Tanh(h) p = MatMul(t, w2) y = Add(p, b2) }}",
        all.collect::<Vec<_>>().join(", ")
    ))
}

/// The same network, its derivatives and optimizers in f64, written out.
struct Reference {
    parameters: [Vec<f64>; 4],
    momenta: [Vec<f64>; 4],
    squares: [Vec<f64>; 4],
    steps: i32,
}

impl Reference {
    fn new() -> Reference {
        let sizes = [12, 4, 12, 3];
        // The initializers are f32.
        let first = |at: usize| numbers(sizes[at], at).iter().map(|&x| f64::from(x as f32)).collect();
        let zeros = || sizes.map(|size| vec![0.0; size]);
        Reference { parameters: [0, 1, 2, 3].map(first), momenta: zeros(), squares: zeros(), steps: 0 }
    }

    /// The loss and its derivatives by the parameters.
    fn gradients(&self, loss: Loss, x: &[f64], target: &[f64]) -> (f64, [Vec<f64>; 4]) {
        let [inner, hidden, outer] = SIZES;
        let [w1, b1, w2, b2] = &self.parameters;
        let mut gradients = self.parameters.clone().map(|values| vec![0.0; values.len()]);
        let mut total = 0.0;
        for row in 0..ROWS {
            let x = &x[row * inner..(row + 1) * inner];
            let h: Vec<f64> = (0..hidden)
                .map(|at| (b1[at] + (0..inner).map(|k| x[k] * w1[k * hidden + at]).sum::<f64>()).tanh())
                .collect();
            let y: Vec<f64> = (0..outer)
                .map(|at| b2[at] + (0..hidden).map(|k| h[k] * w2[k * outer + at]).sum::<f64>())
                .collect();
            let elements = (ROWS * outer) as f64;
            let sum: f64 = y.iter().map(|y| y.exp()).sum();
            let mut dy = vec![0.0; outer];
            for at in 0..outer {
                match loss {
                    Loss::CrossEntropy => {
                        let is_class = if target[row] as usize == at { 1.0 } else { 0.0 };
                        total -= is_class * (y[at].exp() / sum).ln() / ROWS as f64;
                        dy[at] = (y[at].exp() / sum - is_class) / ROWS as f64;
                    }
                    Loss::Mse => {
                        let difference = y[at] - target[row * outer + at];
                        total += difference * difference / elements;
                        dy[at] = 2.0 * difference / elements;
                    }
                    Loss::Bce => {
                        let (p, t) = (1.0 / (1.0 + (-y[at]).exp()), target[row * outer + at]);
                        total -= (t * p.ln() + (1.0 - t) * (1.0 - p).ln()) / elements;
                        dy[at] = (p - t) / elements;
                    }
                }
            }
            for at in 0..outer {
                gradients[3][at] += dy[at];
                (0..hidden).for_each(|k| gradients[2][k * outer + at] += h[k] * dy[at]);
            }
            for at in 0..hidden {
                let dh: f64 =
                    (0..outer).map(|k| dy[k] * w2[at * outer + k]).sum::<f64>() * (1.0 - h[at] * h[at]);
                gradients[1][at] += dh;
                (0..inner).for_each(|k| gradients[0][k * hidden + at] += x[k] * dh);
            }
        }
        (total, gradients)
    }

    /// One step, as PyTorch documents its optimizers.
    fn step(&mut self, optimizer: Optimizer, (rate, decay): (f64, f64), gradients: &[Vec<f64>]) {
        self.steps += 1;
        for (which, gradient) in gradients.iter().enumerate() {
            for (at, &gradient) in gradient.iter().enumerate() {
                let x = &mut self.parameters[which][at];
                let (v, h) = (&mut self.momenta[which][at], &mut self.squares[which][at]);
                let decoupled = matches!(optimizer, Optimizer::AdamW { .. });
                let g = if decoupled { gradient } else { gradient + decay * *x };
                match optimizer {
                    Optimizer::Sgd => *x -= rate * g,
                    Optimizer::Momentum { momentum, nesterov } => {
                        *v = momentum * *v + g;
                        *x -= rate * if nesterov { g + momentum * *v } else { *v };
                    }
                    Optimizer::Adam { betas, epsilon } | Optimizer::AdamW { betas, epsilon } => {
                        if decoupled {
                            *x -= rate * decay * *x;
                        }
                        *v = betas.0 * *v + (1.0 - betas.0) * g;
                        *h = betas.1 * *h + (1.0 - betas.1) * g * g;
                        let mean = *v / (1.0 - betas.0.powi(self.steps));
                        let correction = (1.0 - betas.1.powi(self.steps)).sqrt();
                        *x -= rate * mean * correction / (h.sqrt() + epsilon);
                    }
                    Optimizer::Adagrad { decay, epsilon } => {
                        *h += g * g;
                        *x -= rate / (1.0 + f64::from(self.steps - 1) * decay) * g / (h.sqrt() + epsilon);
                    }
                }
            }
        }
    }
}

#[test]
fn each_optimizer_with_each_loss_follows_a_reference() {
    let optimizers = [
        (SGD, 0.5, 0.0),
        (SGD, 0.5, 0.1),
        (Optimizer::Momentum { momentum: 0.9, nesterov: false }, 0.1, 0.0),
        (Optimizer::Momentum { momentum: 0.8, nesterov: true }, 0.1, 0.05),
        (ADAM, 0.05, 0.0),
        (Optimizer::Adam { betas: (0.8, 0.95), epsilon: 1e-8 }, 0.05, 0.1),
        (ADAMW, 0.05, 0.3),
        (Optimizer::Adagrad { decay: 0.0, epsilon: 1e-10 }, 0.3, 0.0),
        (Optimizer::Adagrad { decay: 0.1, epsilon: 1e-10 }, 0.3, 0.02),
    ];
    let x: Vec<f64> = numbers(ROWS * SIZES[0], 9).iter().map(|&x| f64::from(x as f32)).collect();
    for loss in [Loss::CrossEntropy, Loss::Mse, Loss::Bce] {
        let target: Vec<f64> = match loss {
            Loss::CrossEntropy => vec![0.0, 2.0, 1.0, 1.0, 2.0],
            Loss::Mse => numbers(15, 11).iter().map(|&t| f64::from(t as f32)).collect(),
            Loss::Bce => (0..15).map(|at| [0.0, 1.0, 0.25][at % 3]).collect(),
        };
        for (optimizer, rate, weight_decay) in optimizers {
            let options = TrainOptions {
                learning_rate: Some(rate),
                weight_decay,
                ..TrainOptions::new(loss, optimizer)
            };
            let about = format!("{loss:?} {optimizer:?} {weight_decay}");
            let trained = train(&perceptron(), &options).unwrap();
            assert_eq!(trained.parameters, ["w1", "b1", "w2", "b2"]);
            let loaded = load(&trained);
            let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
            let (mut state, mut reference) = (State::new(&infer), Reference::new());
            let target = match loss {
                Loss::CrossEntropy => tensor(DType::I64, &[ROWS], &target),
                _ => tensor(DType::F32, &[ROWS, 3], &target),
            };
            let wanted = values(&target);
            let inputs = [tensor(DType::F32, &[ROWS, 3], &x), target];
            let mut first = None;
            for at in 0..20 {
                let found = loss_of(&step.call(&inputs, &mut state));
                let (loss, gradients) = reference.gradients(loss, &x, &wanted);
                assert_near(found, loss, &format!("{about}, step {at}"));
                reference.step(optimizer, (rate, weight_decay), &gradients);
                first.get_or_insert(found);
            }
            let (last, _) = reference.gradients(loss, &x, &wanted);
            assert!(last < first.unwrap() * 0.9, "{about}: from {first:?} to {last}");
            // Adam divides rounding by gradients that may be near 0.
            for (name, wanted) in ["w1", "b1", "w2", "b2"].iter().zip(&reference.parameters) {
                for (found, wanted) in state.values(infer.graph, name).iter().zip(wanted) {
                    assert!(
                        (found - wanted).abs() < 1e-4 * (1.0 + wanted.abs()),
                        "{about}: {name} {found} {wanted}"
                    );
                }
            }
        }
    }
}

/// Trains by a model and, beside it, by difference quotients of the loss that its step gives, in f64.
fn follows_quotients(model: &ModelProto, options: &TrainOptions, inputs: &[Tensor], steps: usize) {
    let trained = train(model, options).unwrap();
    let loaded = load(&trained);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let given = step.graph.given_inputs();
    let mut all: Vec<Tensor> = inputs.to_vec();
    all.extend(step.graph.inputs[given..].iter().map(|input| state.get(step.graph, &input.name)));
    let at = |name: &str| step.graph.inputs.iter().position(|input| input.name == name).unwrap();
    let places: Vec<usize> = trained.parameters.iter().map(|name| at(name)).collect();
    let last = step.graph.given_outputs() - 1;
    let loss = |all: &[Tensor]| values(&interp::run(step.graph, all).unwrap()[last])[0];
    let Some(rate) = options.learning_rate else { panic!() };
    let mut sizes = vec![];
    for number in 0..steps {
        let wanted = loss(&all);
        let found = loss_of(&step.call(inputs, &mut state));
        assert!(
            (found - wanted).abs() <= 1e-7 * (1.0 + wanted.abs()),
            "step {number}: {found}, must be {wanted}"
        );
        let mut next = all.clone();
        for &place in &places {
            let own = values(&all[place]);
            let mut changed = own.clone();
            for at in 0..own.len() {
                const H: f64 = 1e-5;
                let moved = |by: f64| {
                    let (mut all, mut own) = (all.clone(), own.clone());
                    own[at] += by;
                    all[place] = tensor(DType::F64, &all[place].shape, &own);
                    loss(&all)
                };
                let quotient = (moved(H) - moved(-H)) / (2.0 * H);
                sizes.push(quotient.abs());
                changed[at] -= rate * quotient;
            }
            next[place] = tensor(DType::F64, &all[place].shape, &changed);
        }
        all = next;
    }
    assert!(sizes.iter().cloned().fold(0.0, f64::max) > 0.01, "nothing has a derivative");
    for (&place, name) in places.iter().zip(&trained.parameters) {
        for (found, wanted) in state.values(step.graph, name).iter().zip(values(&all[place])) {
            assert!((found - wanted).abs() < 1e-6, "{name}: {found}, must be {wanted}");
        }
    }
}

fn sgd(loss: Loss, rate: f64) -> TrainOptions {
    TrainOptions { learning_rate: Some(rate), ..TrainOptions::new(loss, SGD) }
}

#[test]
fn a_convolutional_network_follows_difference_quotients() {
    let all = [
        initializer("double", "k", &[2, 1, 2, 2], 1, 1.0),
        initializer("double", "kb", &[2], 2, 0.1),
        initializer("double", "scale", &[2], 3, 1.0),
        initializer("double", "shift", &[2], 4, 1.0),
        initializer("double", "mean", &[2], 5, 0.1),
        "double[2] var = {1.5, 0.5}".to_string(),
        initializer("double", "w", &[8, 3], 6, 0.5),
        initializer("double", "b", &[3], 7, 0.5),
    ];
    let model = text::model(&format!(
        "(double[n, 1, 5, 5] x) => (double[n, 3] probabilities) <{}> {{ c = Conv(x, k, kb) \
         f = BatchNormalization(c, scale, shift, mean, var) r = Sigmoid(f) \
         p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(r) l = Flatten(p) \
         y = Gemm(l, w, b) probabilities = Softmax(y) }}",
        all.join(", ")
    ));
    let options = sgd(Loss::CrossEntropy, 0.5);
    let trained = train(&model, &options).unwrap();
    assert_eq!(trained.parameters, ["k", "kb", "scale", "shift", "w", "b"]);
    assert!(
        trained.notes.iter().any(|note| note.contains("`mean`: it is a running statistic")),
        "{:?}",
        trained.notes
    );
    assert!(trained.notes.iter().any(|note| note.contains("the loss is that of `y`")), "{:?}", trained.notes);
    let inputs =
        [tensor(DType::F64, &[3, 1, 5, 5], &numbers(75, 20)), tensor(DType::I64, &[3], &[2.0, 0.0, 1.0])];
    follows_quotients(&model, &options, &inputs, 4);
}

/// Token embeddings, attention with two heads, a norm and a feed-forward layer; classes come last.
#[test]
fn a_transformer_block_follows_difference_quotients() {
    let all = [
        initializer("double", "table", &[5, 4], 1, 1.0),
        initializer("double", "q", &[4, 4], 2, 0.7),
        initializer("double", "kv", &[4, 8], 3, 0.7),
        initializer("double", "scale", &[4], 4, 1.0),
        initializer("double", "shift", &[4], 5, 1.0),
        initializer("double", "up", &[4, 6], 6, 0.5),
        initializer("double", "up_bias", &[6], 7, 0.5),
        initializer("double", "head", &[6, 5], 8, 0.5),
        "int64[4] split = {0, 0, 2, 2}, int64[3] joined = {0, 0, 4}, double half = {0.7}".to_string(),
    ];
    let model = text::model(&format!(
        "(int64[n, t] tokens) => (double[n, t, 5] y) <{}> {{ e = Gather(table, tokens) \
         q0 = MatMul(e, q) kv0 = MatMul(e, kv) k0, v0 = Split<axis = 2, num_outputs = 2>(kv0) \
         q1 = Reshape(q0, split) k1 = Reshape(k0, split) v1 = Reshape(v0, split) \
         q2 = Transpose<perm = [0, 2, 1, 3]>(q1) k2 = Transpose<perm = [0, 2, 3, 1]>(k1) v2 = Transpose<perm = [0, 2, 1, 3]>(v1) \
         s0 = MatMul(q2, k2) s1 = Mul(s0, half) s2 = Softmax<axis = -1>(s1) a0 = MatMul(s2, v2) \
         a1 = Transpose<perm = [0, 2, 1, 3]>(a0) a2 = Reshape(a1, joined) r = Add(a2, e) \
         l = LayerNormalization(r, scale, shift) u0 = MatMul(l, up) u1 = Add(u0, up_bias) u2 = Gelu(u1) y = MatMul(u2, head) }}",
        all.join(", ")
    ));
    let options = TrainOptions { class_axis: -1, ..sgd(Loss::CrossEntropy, 0.2) };
    let tokens = tensor(DType::I64, &[2, 3], &[0.0, 3.0, 2.0, 4.0, 1.0, 0.0]);
    let next = tensor(DType::I64, &[2, 3], &[3.0, 2.0, 4.0, 1.0, 0.0, 2.0]);
    let trained = train(&model, &options).unwrap();
    // The factor of the scores is a scalar.
    assert_eq!(trained.parameters, ["table", "q", "kv", "scale", "shift", "up", "up_bias", "head"]);
    follows_quotients(&model, &options, &[tokens, next], 2);
}

/// A step that computes values again leaves the same bits in less memory.
#[test]
fn what_is_computed_again_has_the_same_bits() {
    const LAYERS: usize = 4;
    let (mut nodes, mut initializers, mut last) = (String::new(), vec![], "x".to_string());
    for layer in 0..LAYERS {
        initializers.push(initializer("float", &format!("w{layer}"), &[16, 16], layer, 0.3));
        nodes += &format!(
            "p{layer} = MatMul({last}, w{layer}) t{layer} = Tanh(p{layer}) g{layer} = Gelu(t{layer}) "
        );
        last = format!("g{layer}");
    }
    let model = text::model(&format!(
        "(float[64, 16] x) => (float[64, 16] y) <{}> {{ {nodes} y = Add({last}, x) }}",
        initializers.join(", ")
    ));
    let trained =
        train(&model, &TrainOptions { learning_rate: Some(0.1), ..TrainOptions::new(Loss::Mse, ADAM) });
    let trained = trained.unwrap();
    let all = [Recompute::Nothing, Recompute::Cheap, Recompute::Within(0)].map(|recompute| {
        let loaded = load_with(&trained, recompute);
        let step = entry(&loaded, "train_step");
        let mut state = State::new(&own(&loaded));
        let tensors = [1, 2].map(|salt| tensor(DType::F32, &[64, 16], &numbers(64 * 16, salt)));
        for _ in 0..3 {
            step.call(&tensors, &mut state);
        }
        (state.bytes(), step.model.workspace_bytes(&[]).unwrap())
    });
    let [kept, cheap, least] = &all;
    assert!(kept.0 == cheap.0 && kept.0 == least.0);
    assert!(least.1 < cheap.1 && cheap.1 < kept.1, "{} {} {}", least.1, cheap.1, kept.1);
}

/// A loss of one step, for models with the inputs `x` and `target`.
fn first_loss(model: &ModelProto, options: &TrainOptions, x: Tensor, target: Tensor) -> f64 {
    let trained = train(model, options).unwrap_or_else(|error| panic!("{error}"));
    let loaded = load(&trained);
    let mut state = State::new(&own(&loaded));
    loss_of(&entry(&loaded, "train_step").call(&[x, target], &mut state))
}

#[test]
fn kinds_of_labels_and_versions_of_the_operators() {
    let x = || tensor(DType::F32, &[2, 3], &[1.0, 2.0, -1.0, 0.5, 0.0, 3.0]);
    let at = |version: i64, graph: &str| {
        let mut model = text::model(graph);
        model.opset_import = vec![build::opset("", version)];
        model.ir_version = Some(if version < 10 { 4 } else { 8 });
        model
    };
    let scale = "(float[n, 3] x) => (float[n, 3] y) <float[3] w = {1, 2, 0.5}> { y = Mul(x, w) }";
    let rows = [[1.0f64, 4.0, -0.5], [0.5, 0.0, 1.5]];
    let likelihood =
        |row: usize, class: usize| rows[row][class] - rows[row].iter().map(|y| y.exp()).sum::<f64>().ln();
    let wanted = -(likelihood(0, 1) + likelihood(1, 2)) / 2.0;
    for version in [9, 11, 12, 13, 18, 22] {
        let model = at(version, scale);
        for (label, dtype) in [(Label::Int64, DType::I64), (Label::Int32, DType::I32)] {
            let options = TrainOptions { label: Some(label), ..sgd(Loss::CrossEntropy, 0.1) };
            let classes = tensor(dtype, &[2], &[1.0, 2.0]);
            assert_near(first_loss(&model, &options, x(), classes), wanted, &format!("opset {version}"));
        }
        let options = TrainOptions { label: Some(Label::Float), ..sgd(Loss::CrossEntropy, 0.1) };
        let soft = tensor(DType::F32, &[2, 3], &[0.0, 0.5, 0.5, 0.25, 0.0, 0.75]);
        let of_soft = -(likelihood(0, 1) * 0.5
            + likelihood(0, 2) * 0.5
            + likelihood(1, 0) * 0.25
            + likelihood(1, 2) * 0.75)
            / 2.0;
        assert_near(first_loss(&model, &options, x(), soft), of_soft, &format!("opset {version}"));
    }
    let old = train(&at(8, scale), &sgd(Loss::CrossEntropy, 0.1)).unwrap_err();
    assert!(old.contains("version 8 of ai.onnx") && old.contains("--label-type float"), "{old}");
    let old = train(&at(6, scale), &sgd(Loss::Mse, 0.1)).unwrap_err();
    assert!(old.contains("version 6 of ai.onnx"), "{old}");
    // Whole numbers for a loss of floats.
    let options = TrainOptions { label: Some(Label::Int64), ..sgd(Loss::Mse, 0.1) };
    let squares =
        rows.iter().flatten().zip([1.0, 2.0, 0.0, 0.0, 1.0, 3.0]).map(|(y, t)| (y - t) * (y - t) / 6.0);
    let target = tensor(DType::I64, &[2, 3], &[1.0, 2.0, 0.0, 0.0, 1.0, 3.0]);
    assert_near(first_loss(&at(8, scale), &options, x(), target), squares.sum(), "whole numbers");
    // A sigmoid is part of the loss, whose scores may be large: log(1 - p) in f32 would be infinite.
    let sigmoid =
        "(float[n, 3] x) => (float[n, 3] p) <float[3] w = {100, 2, 0.5}> { y = Mul(x, w) p = Sigmoid(y) }";
    let target = tensor(DType::F32, &[2, 3], &[0.0; 6]);
    let scores = [100.0f64, 4.0, -0.5, 50.0, 0.0, 1.5];
    let wanted: f64 = scores.iter().map(|y| (y.max(0.0) + (-y.abs()).exp().ln_1p()) / 6.0).sum();
    assert_near(first_loss(&at(22, sigmoid), &sgd(Loss::Bce, 0.1), x(), target), wanted, "sigmoid");
    // An output of 16 bits, its loss in f32.
    let half = "(float[n, 3] x) => (float16[n, 3] y) <float[3] w = {1, 2, 0.5}> { s = Mul(x, w) y = Cast<to = 10>(s) }";
    let target = tensor(DType::I64, &[2], &[1.0, 2.0]);
    let wanted = -(likelihood(0, 1) + likelihood(1, 2)) / 2.0;
    assert_near(first_loss(&at(22, half), &sgd(Loss::CrossEntropy, 0.1), x(), target), wanted, "16 bits");
}

/// Classes along an axis that is neither the first nor the last, and last ones under a softmax.
#[test]
fn the_axis_of_classes() {
    let graph = |end: &str| {
        text::model(&format!(
            "(float[n, 2, 3] x) => (float[n, 2, 3] y) <float[3] w = {{1, 2, 0.5}}> {{ {end} }}"
        ))
    };
    let x = numbers(12, 3);
    let scores: Vec<f64> = x.iter().enumerate().map(|(at, x)| x * [1.0, 2.0, 0.5][at % 3]).collect();
    let score = |n: usize, a: usize, b: usize| scores[n * 6 + a * 3 + b];
    let input = || tensor(DType::F32, &[2, 2, 3], &x);
    let plain = graph("y = Mul(x, w)");
    let mut wanted = 0.0;
    let classes = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
    for (at, class) in classes.iter().enumerate() {
        let (n, b) = (at / 3, at % 3);
        let sum: f64 = (0..2).map(|a| score(n, a, b).exp()).sum();
        wanted -= (score(n, *class as usize, b) - sum.ln()) / 6.0;
    }
    let target = tensor(DType::I64, &[2, 3], &classes);
    assert_near(first_loss(&plain, &sgd(Loss::CrossEntropy, 0.1), input(), target), wanted, "axis 1");
    let mut wanted = 0.0;
    let classes = [2.0, 1.0, 0.0, 1.0];
    for (at, class) in classes.iter().enumerate() {
        let (n, a) = (at / 2, at % 2);
        let sum: f64 = (0..3).map(|b| score(n, a, b).exp()).sum();
        wanted -= (score(n, a, *class as usize) - sum.ln()) / 4.0;
    }
    let softmax = graph("s = Mul(x, w) y = Softmax(s)");
    for model in [&plain, &softmax] {
        for class_axis in [2, -1] {
            let options = TrainOptions { class_axis, ..sgd(Loss::CrossEntropy, 0.1) };
            let target = tensor(DType::I64, &[2, 2], &classes);
            assert_near(first_loss(model, &options, input(), target), wanted, "axis 2");
        }
    }
    let wrong = train(&softmax, &sgd(Loss::CrossEntropy, 0.1)).unwrap_err();
    assert!(wrong.contains("softmax along axis 2") && wrong.contains("--class-axis"), "{wrong}");
}

fn learns(model: &ModelProto, learn: &[&str], freeze: &[&str]) -> Result<Vec<String>, String> {
    let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let options = TrainOptions { learn: list(learn), freeze: list(freeze), ..sgd(Loss::Mse, 0.1) };
    train(model, &options).map(|trained| trained.parameters)
}

#[test]
fn patterns_choose_what_learns() {
    let model = perceptron();
    assert_eq!(learns(&model, &["w?"], &[]).unwrap(), ["w1", "w2"]);
    assert_eq!(learns(&model, &["*2", "b1"], &[]).unwrap(), ["b1", "w2", "b2"]);
    assert_eq!(learns(&model, &[], &["*1"]).unwrap(), ["w2", "b2"]);
    assert_eq!(learns(&model, &["w*"], &["w2"]).unwrap(), ["w1"]);
    for (learn, freeze, wanted) in [
        (&["w9"][..], &[][..], "--learn w9: no initializer has such a name"),
        (&[], &["v*"], "--freeze v*: no initializer has such a name"),
        (&[], &["*"], "nothing that `y` depends on learns"),
    ] {
        let found = learns(&model, learn, freeze).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
    // What is frozen keeps its bits, and does not become state.
    let options = TrainOptions { freeze: vec!["w1".into()], ..sgd(Loss::Mse, 0.1) };
    let trained = train(&model, &options).unwrap();
    assert_eq!(decoded(&trained).graph.unwrap().initializer, model.graph.unwrap().initializer);
    let loaded = load(&trained);
    let states: Vec<&str> = loaded.graph.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(states, ["x", "b1", "w2", "b2", "learning_rate"]);
}

/// Scalars, settings, statistics and constants learn where they are named in full.
#[test]
fn tensors_that_learn_only_by_name() {
    let model = text::model(
        "(float[n, 2, 4] x, bool c) => (float[n, 2, 4] y) <float gain = {2}, float[1] one = {1.5}, float[2] s = {1, 1}, float[2] b = {0, 0}, \
         float[2] m = {0, 0}, float[2] v = {1, 1}, float low = {-1}, float16[4] h = {1, 1, 1, 1}, float[4] unused = {1, 1, 1, 1}, \
         int64[1] i = {0}, float[3] sizes = {1, 1, 1}> \
         { k = Constant<value = float[4] {1, 2, 3, 4}>() g = Mul(x, gain) o = Mul(g, one) a = BatchNormalization(o, s, b, m, v) \
         d = Cast<to = 1>(h) e = Add(a, d) f = Mul(e, k) r = Resize(f, \"\", sizes) y = Clip(r, low) }",
    );
    assert_eq!(learns(&model, &[], &[]).unwrap(), ["s", "b"]);
    assert_eq!(learns(&model, &["gain", "m", "one", "v"], &[]).unwrap(), ["gain", "one", "m", "v"]);
    // A Constant node becomes an initializer.
    assert_eq!(learns(&model, &["k"], &[]).unwrap(), ["k"]);
    for (name, wanted) in [
        ("h", "--learn h: `h` does not learn: it is f16"),
        ("i", "--learn i: `i` does not learn: it is i64"),
        ("unused", "--learn unused: `unused` does not learn: the loss does not depend on it"),
        ("ga*", "--learn ga*: nothing that it matches learns; `gain` does not learn: it is a scalar"),
    ] {
        let found = learns(&model, &[name], &[]).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
}

/// A parameter that no derivative reaches does not learn, with a note; named, it is an error. Both name the node.
#[test]
fn parameters_without_a_derivative() {
    let mut model = text::model(
        "(float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {2, 1, 0, 3}, float[2, 2] v = {1, 2, 3, 4}> \
         { a = MatMul(x, w) grown = Identity(v) d = ReduceSum(grown) y = Mul(a, d) }",
    );
    // A loop whose state has more rows in each iteration.
    let dtype = |dtype: DType| dtype.to_onnx();
    let rows = |name: &str, rows: &str| build::value(name, dtype(DType::F32), &[rows, "2"]);
    let condition = |name: &str| build::value(name, dtype(DType::Bool), &[] as &[&str]);
    let turn = build::value("turn", dtype(DType::I64), &[] as &[&str]);
    let body = build::graph(
        vec![turn, condition("go"), rows("rows", "m")],
        vec![
            build::node("Identity", &["go"], &["on"]),
            build::node("Concat", &["rows", "rows"], &["more"]).with(build::int("axis", 0)),
        ],
        vec![condition("on"), rows("more", "n")],
    );
    let graph = model.graph.as_mut().unwrap();
    graph.initializer.push(build::i64_tensor("trip", &[], vec![2]));
    graph.node[1] = build::node("Loop", &["trip", "", "v"], &["grown"]).with(build::subgraph("body", body));
    let trained = train(&model, &sgd(Loss::Mse, 0.1)).unwrap();
    assert_eq!(trained.parameters, ["w"]);
    assert!(trained.notes.iter().any(|note| note.contains("do not learn: `v`: ")), "{:?}", trained.notes);
    let found = learns(&model, &["v"], &[]).unwrap_err();
    assert!(found.contains("`v` cannot learn") && found.contains("Loop"), "{found}");
}

#[test]
fn misuse_is_named() {
    let model = |text: &str| text::model(text);
    let one = "(float[n, 3] x) => (float[n, 3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }";
    let two = "(float[n, 3] x) => (float[n, 3] y, int64[n] classes) <float[3] w = {1, 2, 3}> \
        { y = Mul(x, w) classes = ArgMax<axis = 1, keepdims = 0>(y) }";
    let of = |name: &str, options: TrainOptions| TrainOptions { output: Some(name.into()), ..options };
    let entropy = || sgd(Loss::CrossEntropy, 0.1);
    let factors = |rank: i64, weights: &[&str]| TrainOptions {
        lora: Some(Lora {
            rank,
            alpha: None,
            weights: weights.iter().map(|name| name.to_string()).collect(),
        }),
        ..sgd(Loss::Mse, 0.1)
    };
    let mut trained = decoded(&train(&model(one), &entropy()).unwrap());
    let again = train(&trained, &entropy()).unwrap_err();
    assert!(
        again.contains("training_info already (1 entry, the first with the algorithm `train_step`)"),
        "{again}"
    );
    trained.training_info.clear();
    assert!(train(&trained, &entropy()).is_ok());
    for (text, options, wanted) in [
        (two, entropy(), "the model has 2 outputs (`y`, `classes`); --output names the one"),
        (two, of("classes", entropy()), "`classes` is i64[n], and a loss is of f32"),
        (one, of("z", entropy()), "--output z: neither an output nor another result of a node"),
        (one, TrainOptions { class_axis: 2, ..entropy() }, "`y` is f32[n, 3]: it has no axis 2"),
        (
            "(float[n] x) => (float[n] y) <float[1] w = {1}> { y = Mul(x, w) }",
            entropy(),
            "`y` is f32[n]: cross entropy takes scores of rank 2 or more",
        ),
        (
            "(float[n, 1] x) => (float[n, 1] y) <float[1] w = {1}> { y = Mul(x, w) }",
            entropy(),
            "it has one class along axis 1",
        ),
        (
            "(float[n, 3] x) => (float[n, 3] y) { y = Neg(x) }",
            entropy(),
            "nothing that `y` depends on learns: it depends on no weights that are initializers",
        ),
        (
            "(float[n, 3] x) => (float[n, 3] y) <float w = {1}> { y = Mul(x, w) }",
            entropy(),
            "nothing that `y` depends on learns",
        ),
        (one, factors(2, &[]), "--lora: the output depends on no MatMul"),
    ] {
        let found = train(&model(text), &options).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
    let perceptron = perceptron();
    for (rank, weights, wanted) in [
        (2, &["w3"][..], "--lora-for w3: no product has a weight, or a name, of this kind"),
        (9, &["w1"], "--lora 9: `w1` is 3x4"),
    ] {
        let found = train(&perceptron, &factors(rank, weights)).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
    // Targets of another shape are refused by the run.
    let loaded = load(&train(&perceptron, &sgd(Loss::Mse, 0.1)).unwrap());
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let inputs = [tensor(DType::F32, &[2, 3], &[0.0; 6]), tensor(DType::F32, &[3, 3], &[0.0; 9])];
    let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    assert!(
        onnxc::native::output_shapes(step.graph, &given).is_err() || {
            let (status, _) = step.call_with(&inputs, &mut state, Default::default());
            status.0 != 0
        }
    );
}

/// Names of the model that the step would take for its own, also inside of a body.
#[test]
fn names_do_not_clash() {
    let model = text::model(
        "(float[n, 3] target, bool c) => (float[n, 3] loss) <float[3] w = {1, 2, 3}, float[3] learning_rate = {1, 1, 1}> \
         { \"w.next\" = Mul(target, w) steps = Mul(\"w.next\", learning_rate) \
         z = If<then_branch = () => (float[n, 3] \"w.gradient\") { \"w.gradient\" = Neg(target) }, \
         else_branch = () => (float[n, 3] e) { e = Identity(target) }>(c) loss = Add(steps, z) }",
    );
    let trained =
        train(&model, &TrainOptions { learn: vec!["w".into()], ..TrainOptions::new(Loss::Mse, ADAM) })
            .unwrap();
    let info = &decoded(&trained).training_info[0];
    let inputs: Vec<&str> = info.algorithm.as_ref().unwrap().input.iter().map(|info| info.name()).collect();
    assert_eq!(inputs, ["target_2"]);
    let bound = |entry: &StringStringEntryProto| format!("{}={}", entry.key(), entry.value());
    let bindings: Vec<String> = info.update_binding.iter().map(bound).collect();
    assert_eq!(
        bindings,
        [
            "w=w.next_2",
            "w.mean=w.mean.next",
            "w.square=w.square.next",
            "steps_2=steps.next",
            "learning_rate_2=learning_rate_2.next"
        ]
    );
    let loaded = load(&trained);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let x = tensor(DType::F32, &[1, 3], &[1.0, 2.0, 3.0]);
    let inputs = [x.clone(), Tensor::new(DType::Bool, vec![], vec![1].into()), x];
    let first = loss_of(&step.call(&inputs, &mut state));
    (0..10).for_each(|_| drop(step.call(&inputs, &mut state)));
    assert!(loss_of(&step.call(&inputs, &mut state)) < first);
}

/// The rate is a variable that callers may change between steps, or an input.
#[test]
fn the_learning_rate() {
    let model = text::model("(float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }");
    let x = tensor(DType::F32, &[1, 2], &[1.0, 1.0]);
    let target = tensor(DType::F32, &[1, 2], &[0.0, 0.0]);
    // The gradient of the mean of w^2 is w.
    let loaded = load(&train(&model, &TrainOptions { learning_rate: None, ..sgd(Loss::Mse, 0.0) }).unwrap());
    let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
    let mut state = State::new(&infer);
    for (rate, wanted) in [(0.5, [0.5, 1.0]), (0.0, [0.5, 1.0]), (1.0, [0.0, 0.0])] {
        step.call(&[x.clone(), target.clone(), tensor(DType::F32, &[], &[rate])], &mut state);
        assert_eq!(state.values(infer.graph, "w"), wanted);
    }
    let loaded = load(&train(&model, &sgd(Loss::Mse, 0.5)).unwrap());
    let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
    let mut state = State::new(&infer);
    let inputs = [x, target];
    step.call(&inputs, &mut state);
    assert_eq!(state.values(infer.graph, "w"), [0.5, 1.0]);
    assert_eq!(state.values(infer.graph, "learning_rate"), [0.5]);
    // The second tensor of the block.
    state.0.contents_mut()[128..132].copy_from_slice(&1f32.to_le_bytes());
    assert_eq!(state.values(infer.graph, "learning_rate"), [1.0]);
    step.call(&inputs, &mut state);
    assert_eq!(state.values(infer.graph, "w"), [0.0, 0.0]);
    assert_eq!(state.values(infer.graph, "learning_rate"), [1.0]);
}

#[test]
fn an_initialization_draws_by_the_kind_of_weight() {
    let wide = |name: &str, shape: &[usize]| initializer("float", name, shape, 1, 5.0);
    let model = text::model(&format!(
        "(float[n, 2, 40] x) => (float[n, 2, 30] y) <{}, {}, {}, {}, {}, {}> \
         {{ a = MatMul(x, w) s = Add(a, bias) l = LayerNormalization(s, scale, shift) p = PRelu(l, slope) y = Einsum<equation = \"abc,c->abc\">(p, other) }}",
        wide("w", &[40, 30]),
        wide("bias", &[30]),
        wide("scale", &[30]),
        wide("shift", &[30]),
        wide("slope", &[30]),
        wide("other", &[30]),
    ));
    let options = TrainOptions { initialize: true, ..TrainOptions::new(Loss::Mse, ADAM) };
    let trained = train(&model, &options).unwrap();
    let note = "--initialize leaves `other` as they are";
    assert!(trained.notes.iter().any(|text| text.contains(note)), "{:?}", trained.notes);
    let loaded = load(&trained);
    let (infer, initialize, step) =
        (own(&loaded), entry(&loaded, "train_initialize"), entry(&loaded, "train_step"));
    let mut state = State::new(&infer);
    let inputs =
        [tensor(DType::F32, &[1, 2, 40], &numbers(80, 1)), tensor(DType::F32, &[1, 2, 30], &numbers(60, 2))];
    let other = state.values(infer.graph, "other");
    step.call(&inputs, &mut state);
    let moved = state.values(infer.graph, "other");
    assert_ne!(moved, other);
    initialize.call_with(&[], &mut state, onnxc_runtime_support::Options { seed: 7, ..Default::default() });
    let drawn = state.values(infer.graph, "w");
    let variance = drawn.iter().map(|w| w * w).sum::<f64>() / drawn.len() as f64;
    assert!((variance - 2.0 / 40.0).abs() < 0.1 * 2.0 / 40.0, "{variance}");
    for (name, wanted) in
        [("bias", 0.0), ("scale", 1.0), ("shift", 0.0), ("slope", 0.25), ("w.mean", 0.0), ("steps", 0.0)]
    {
        assert!(state.values(infer.graph, name).iter().all(|&found| found == wanted), "{name}");
    }
    assert_eq!(state.values(infer.graph, "other"), moved);
    assert!((state.values(infer.graph, "learning_rate")[0] - 0.001).abs() < 1e-8);
}

fn raw(name: &str, kind: DataType, dims: &[i64], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(kind as i32),
        dims: dims.to_vec(),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

/// Factors learn beside weights of 32 bits, of 8 and 4 bits behind DequantizeLinear, and of MatMulNBits; these keep their bits.
#[test]
fn factors_learn_beside_frozen_weights() {
    let mut model = text::model(
        "(float[n, 3, 6] x) => (float[n, 3, 4] y) <float[6, 5] w1 = {0}, float[5] b1 = {0.1, 0.2, 0.3, 0.4, 0.5}, float s8 = {0.02}, \
         float[6] s4 = {0.1, 0.2, 0.1, 0.2, 0.1, 0.2}> \
         { a = MatMul(x, w1) h = Add(a, b1) t = Tanh(h) d8 = DequantizeLinear(w8, s8) [second] b = MatMul(t, d8) u = Tanh(b) \
         d4 = DequantizeLinear<axis = 1>(w4, s4) c = MatMul(u, d4) v = Tanh(c) y = MatMul(v, q) }",
    );
    let graph = model.graph.as_mut().unwrap();
    let bytes = |count: usize, salt: usize| -> Vec<u8> {
        numbers(count, salt).iter().map(|x| (x * 100.0) as i8 as u8).collect()
    };
    graph.initializer[0] =
        build::f32_tensor("w1", &[6, 5], numbers(30, 1).iter().map(|&x| x as f32).collect());
    graph.initializer.push(raw("w8", DataType::Int8, &[5, 6], bytes(30, 2)));
    graph.initializer.push(raw("w4", DataType::Int4, &[6, 6], bytes(18, 3)));
    graph.initializer.push(raw("q", DataType::Uint8, &[4, 1, 8], bytes(32, 4)));
    graph.initializer.push(build::f32_tensor("sq", &[4], vec![0.1, 0.05, 0.2, 0.1]));
    let last = graph.node.last_mut().unwrap();
    *last = build::node("MatMulNBits", &["v", "q", "sq"], &["y"]);
    last.domain = Some("com.microsoft".into());
    for (name, value) in [("K", 6), ("N", 4), ("bits", 4), ("block_size", 16)] {
        last.attribute.push(build::int(name, value));
    }
    model.opset_import.push(build::opset("com.microsoft", 1));
    let lora = |weights: &[&str]| {
        Some(Lora {
            rank: 2,
            alpha: Some(4.0),
            weights: weights.iter().map(|name| name.to_string()).collect(),
        })
    };
    let options = |weights: &[&str], initialize| TrainOptions {
        learning_rate: Some(0.02),
        lora: lora(weights),
        initialize,
        ..TrainOptions::new(Loss::Mse, ADAMW)
    };
    let plain = train(&model, &options(&["second", "q"], false)).unwrap();
    assert_eq!(plain.parameters, ["w8.lora_A", "w8.lora_B", "q.lora_A", "q.lora_B"]);
    let with_bias = TrainOptions { learn: vec!["b*".into()], ..options(&["w1"], false) };
    assert_eq!(train(&model, &with_bias).unwrap().parameters, ["b1", "w1.lora_A", "w1.lora_B"]);
    let trained = train(&model, &options(&[], true)).unwrap();
    let names = ["w1", "w8", "w4", "q"].map(|name| [format!("{name}.lora_A"), format!("{name}.lora_B")]);
    assert_eq!(trained.parameters, names.concat());
    let graph = decoded(&trained).graph.unwrap();
    for tensor in &model.graph.as_ref().unwrap().initializer {
        assert!(graph.initializer.contains(tensor), "{}", tensor.name());
    }
    let a = graph.initializer.iter().find(|tensor| tensor.name() == "w8.lora_A").unwrap();
    assert_eq!(a.dims, [2, 5]);
    let b = graph.initializer.iter().find(|tensor| tensor.name() == "w8.lora_B").unwrap();
    assert_eq!(b.dims, [6, 2]);
    let loaded = load(&trained);
    let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
    let mut state = State::new(&infer);
    let x = tensor(DType::F32, &[2, 3, 6], &numbers(36, 5));
    // Nothing is added yet.
    let before = plain_outputs(&model, &x);
    let infers = |state: &mut State| values(&infer.call(std::slice::from_ref(&x), state)[0]);
    for (found, wanted) in infers(&mut state).iter().zip(&before) {
        assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
    }
    let target = tensor(DType::F32, &[2, 3, 4], &numbers(24, 6));
    let inputs = [x.clone(), target];
    let first = loss_of(&step.call(&inputs, &mut state));
    (0..60).for_each(|_| drop(step.call(&inputs, &mut state)));
    let last = loss_of(&step.call(&inputs, &mut state));
    assert!(last < 0.5 * first, "{first} {last}");
    for name in &trained.parameters {
        assert!(state.values(infer.graph, name).iter().any(|&value| value != 0.0), "{name}");
    }
    // `A` drawn anew, `B` nothing: the model as it was.
    entry(&loaded, "train_initialize").call(&[], &mut state);
    for (found, wanted) in infers(&mut state).iter().zip(&before) {
        assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
    }
    assert!(state.values(infer.graph, "w8.lora_A").iter().all(|a| a.abs() <= 1.0 / 5f64.sqrt()));
}

fn plain_outputs(model: &ModelProto, x: &Tensor) -> Vec<f64> {
    let options = ImportOptions::default();
    let graph = onnxc_import::import(model, &options, &NoExternalData, onnxc::operators()).unwrap().graph;
    values(&interp::run(&graph, std::slice::from_ref(x)).unwrap()[0])
}

/// A weight that two nodes read has one pair of factors.
#[test]
fn factors_compute_what_the_definition_says() {
    let model = text::model(
        "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> \
         { a = Gemm<transB = 1>(x, w) y = Gemm<transB = 1, alpha = 2.0>(a, w) }",
    );
    let lora = Some(Lora { rank: 1, alpha: Some(3.0), weights: vec![] });
    let trained = train(&model, &TrainOptions { lora, ..sgd(Loss::Mse, 0.1) }).unwrap();
    assert_eq!(trained.parameters, ["w.lora_A", "w.lora_B"]);
    let mut proto = decoded(&trained);
    proto.training_info.clear();
    let set = |proto: &mut ModelProto, name: &str, values: [f32; 2]| {
        let tensors = &mut proto.graph.as_mut().unwrap().initializer;
        let own = tensors.iter_mut().find(|tensor| tensor.name() == name).unwrap();
        *own = build::f32_tensor(name, &own.dims.clone(), values.to_vec());
    };
    set(&mut proto, "w.lora_A", [1.0, -1.0]);
    set(&mut proto, "w.lora_B", [0.5, 2.0]);
    let found = plain_outputs(&proto, &tensor(DType::F32, &[1, 2], &[1.0, 3.0]));
    // a = [7, 15] + 3 * (1 - 3) * [0.5, 2] = [4, 3]; y = 2 * [10, 24] + 3 * (4 - 3) * [0.5, 2]
    assert_eq!(found, [21.5, 54.0]);
}

/// Factors of f32 beside weights of 16 bits, and beside bytes that are transposed behind their DequantizeLinear.
#[test]
fn factors_beside_weights_of_other_types() {
    // The bits of 1 to 6.
    let half = text::model(
        "(float[n, 3] x) => (float16[n, 2] y) <float16[3, 2] w = {15360, 16384, 16896, 17408, 17664, 17920}> { h = Cast<to = 10>(x) y = MatMul(h, w) }",
    );
    let bytes = text::model(
        "(float[n, 3] x) => (float[n, 2] y) <int8[2, 3] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> \
         { d = DequantizeLinear(w, s) t = Transpose<perm = [1, 0]>(d) y = Gemm(x, t) }",
    );
    let x = numbers(12, 1);
    for model in [half, bytes] {
        let lora = Some(Lora { rank: 1, alpha: Some(2.0), weights: vec!["w".into()] });
        let options = TrainOptions { lora, learning_rate: Some(0.05), ..TrainOptions::new(Loss::Mse, ADAM) };
        let trained = train(&model, &options).unwrap();
        assert_eq!(trained.parameters, ["w.lora_A", "w.lora_B"]);
        let graph = decoded(&trained).graph.unwrap();
        let found = |name: &str| graph.initializer.iter().find(|tensor| tensor.name() == name).unwrap();
        assert_eq!([found("w.lora_A").dims.clone(), found("w.lora_B").dims.clone()], [[1, 3], [2, 1]]);
        assert_eq!(found("w.lora_A").data_type(), DType::F32.to_onnx());
        assert_eq!(found("w"), &model.graph.as_ref().unwrap().initializer[0]);
        let loaded = load(&trained);
        let step = entry(&loaded, "train_step");
        let mut state = State::new(&own(&loaded));
        let inputs = [tensor(DType::F32, &[4, 3], &x), tensor(DType::F32, &[4, 2], &[0.0; 8])];
        let mut losses = vec![];
        for _ in 0..40 {
            let (status, outputs) = step.call_with(&inputs, &mut state, Default::default());
            assert_eq!(status.0, 0);
            losses.push(loss_of(&outputs));
        }
        assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    }
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(ONNXC).args(arguments).current_dir(folder).output().unwrap()
}

fn must(folder: &Path, arguments: &[&str]) -> String {
    let done = run(folder, arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn refused(folder: &Path, arguments: &[&str], code: i32) -> String {
    let done = run(folder, arguments);
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{arguments:?}: {text}");
    text
}

/// What the command writes is a model to ONNX's own checker and to `check`, and `run --train` trains it.
#[test]
fn the_command_writes_models_that_others_accept() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("net.onnx"), perceptron().encode_to_vec()).unwrap();
    let lists = [
        "--loss cross-entropy --optimizer adamw --initialize",
        "--loss mse --optimizer adagrad --rate-decay 0.1 --learning-rate input --initialize",
        "--loss bce --optimizer momentum --nesterov --momentum 0.5 --freeze w1 --weight-decay 0.1",
        "--loss mse --optimizer adam --betas 0.8,0.9 --epsilon 1e-6 --lora 2,alpha=4 --lora-for w2 --seed 3",
        "--loss cross-entropy --label-type float --optimizer sgd --learn w* --output y --class-axis -1",
    ];
    let mut files = vec![];
    for (at, list) in lists.iter().enumerate() {
        let file = format!("trained{at}.onnx");
        let mut arguments = vec!["train-graph", "net.onnx", "-o", &file, "--json"];
        arguments.extend(list.split(' '));
        let written: serde_json::Value = serde_json::from_str(&must(folder, &arguments)).unwrap();
        assert_eq!(written["files"], serde_json::json!([file]), "{list}");
        assert!(!written["parameters"].as_array().unwrap().is_empty());
        must(folder, &["check", "--training", &file]);
        must(folder, &["check", "--strict", &file]);
        files.push(folder.join(&file));
    }
    let script = folder.join("check.py");
    fs::write(
        &script,
        "import sys, onnx\nfor path in sys.argv[1:]:\n    onnx.checker.check_model(onnx.load(path))\n",
    )
    .unwrap();
    let python = onnx_env::ONNX.interpreter().unwrap();
    let done = Command::new(python).arg(&script).args(&files).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // The same arguments write the same bytes.
    let again = "train-graph net.onnx -o again.onnx --quiet --loss mse --optimizer adam --betas 0.8,0.9 --epsilon 1e-6 \
        --lora 2,alpha=4 --lora-for w2 --seed 3";
    must(folder, &again.split_whitespace().collect::<Vec<_>>());
    assert_eq!(fs::read(folder.join("again.onnx")).unwrap(), fs::read(&files[3]).unwrap());
    let write = |name: &str, proto: TensorProto| fs::write(folder.join(name), proto.encode_to_vec()).unwrap();
    let x = numbers(60, 1).iter().map(|&x| x as f32).collect();
    write("x.pb", build::f32_tensor("x", &[20, 3], x));
    write("t.pb", build::i64_tensor("target", &[20], (0..20).map(|at| at % 3).collect()));
    let line = "run trained0.onnx --train --input x=x.pb --input target=t.pb --epochs 60 --batch 10 --json";
    let json: serde_json::Value =
        serde_json::from_str(&must(folder, &line.split(' ').collect::<Vec<_>>())).unwrap();
    let losses: Vec<f64> = json["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|epoch| epoch["means"]["loss"].as_f64().unwrap())
        .collect();
    assert!(losses[59] < losses[0], "{losses:?}");
}

#[test]
fn the_command_refuses_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("net.onnx"), perceptron().encode_to_vec()).unwrap();
    for (list, wanted) in [
        ("--loss mse --optimizer sgd --betas 0.9,0.9", "--betas: this optimizer has no such option"),
        ("--loss mse --optimizer adam --betas 0.9", "--betas: 1 numbers, must be 2"),
        ("--loss mse --optimizer adam --betas 0.9,1.0", "from 0 to below 1"),
        ("--loss mse --optimizer adam --weight-decay=-1", "not negative"),
        (
            "--loss mse --optimizer adam --learning-rate fast",
            "--learning-rate fast: it must be a number or `input`",
        ),
        ("--loss mse --optimizer adam --lora 0", "--lora 0: it must be RANK"),
        ("--loss mse --optimizer adam --lora 2,beta=1", "it must be RANK"),
        ("--loss mse --optimizer adam --lora-for w1", "--lora"),
        ("--loss hinge --optimizer adam", "cross-entropy"),
        ("--loss mse --optimizer sgd --learn q", "--learn q: no initializer has such a name"),
    ] {
        let mut arguments = vec!["train-graph", "net.onnx", "-o", "out.onnx"];
        arguments.extend(list.split(' '));
        let found = refused(folder, &arguments, 2);
        assert!(found.contains(wanted), "{found}");
        assert!(!folder.join("out.onnx").exists());
    }
    let over = ["train-graph", "net.onnx", "-o", "net.onnx", "--loss", "mse", "--optimizer", "sgd"];
    assert!(refused(folder, &over, 2).contains("would replace the input"));
}

/// External data stays where it is if the output lies beside the model, and is copied otherwise, but not over another file.
#[test]
fn external_data_follows_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let mut model = perceptron();
    let bytes: Vec<u8> = numbers(12, 0).iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let w1 = &mut model.graph.as_mut().unwrap().initializer[0];
    w1.float_data.clear();
    w1.data_location = Some(1);
    w1.external_data = vec![entry("location", "data/w.bin"), entry("offset", "16"), entry("length", "48")];
    fs::create_dir(folder.join("data")).unwrap();
    fs::write(folder.join("data/w.bin"), [vec![0; 16], bytes].concat()).unwrap();
    fs::write(folder.join("net.onnx"), model.encode_to_vec()).unwrap();
    let line = |output: &str| format!("train-graph net.onnx --loss mse --optimizer sgd -o {output}");
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
    let go = |output: &str| {
        let words = words(&line(output));
        must(folder, &words.iter().map(String::as_str).collect::<Vec<_>>());
    };
    go("beside.onnx");
    assert_eq!(fs::read_dir(folder.join("data")).unwrap().count(), 1);
    must(folder, &["check", "--training", "beside.onnx"]);
    fs::create_dir(folder.join("else")).unwrap();
    go("else/trained.onnx");
    assert_eq!(
        fs::read(folder.join("else/data/w.bin")).unwrap(),
        fs::read(folder.join("data/w.bin")).unwrap()
    );
    must(folder, &["check", "--training", "else/trained.onnx"]);
    // Again, as the copy is the same; then with another file in its place.
    go("else/trained.onnx");
    fs::remove_file(folder.join("else/trained.onnx")).unwrap();
    fs::write(folder.join("else/data/w.bin"), "another").unwrap();
    let words = words(&line("else/trained.onnx"));
    let found = refused(folder, &words.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(found.contains("another file is in its place"), "{found}");
    assert!(!folder.join("else/trained.onnx").exists());
    assert_eq!(fs::read(folder.join("else/data/w.bin")).unwrap(), b"another");
}
