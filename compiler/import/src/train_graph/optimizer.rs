//! One step of an optimizer for all parameters.

use onnxc_ir::graph::DType;
use onnxc_proto::build;

use super::writer::{Writer, float, text, zeros};

/// How parameters follow their gradients `g`, each with the weight decay that [`super::TrainOptions`] has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Optimizer {
    /// `x - rate * g`
    Sgd,
    /// By `v = momentum * v + g`; Nesterov's by `g + momentum * v`.
    Momentum { momentum: f64, nesterov: bool },
    /// Kingma and Ba's; decay is that of the gradient.
    Adam { betas: (f64, f64), epsilon: f64 },
    /// Adam with decoupled weight decay: `x * (1 - rate * decay)` before the step.
    AdamW { betas: (f64, f64), epsilon: f64 },
    /// By the root of the sum of all squares of the gradient.
    Adagrad { decay: f64, epsilon: f64 },
}

/// A tensor that is trained.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Parameter {
    pub name: String,
    /// f32 or f64.
    pub dtype: DType,
    pub dims: Vec<i64>,
}

/// What a step changes.
#[derive(Default)]
pub(super) struct Updates {
    /// Name of a variable, its type and dims, and the name of its new value.
    pub bound: Vec<(Parameter, String)>,
    /// Those of the variables that an initialization sets to zero.
    pub zeroed: Vec<Parameter>,
}

/// Writes the step. `rate` is a scalar of f32; `gradients` are those of the parameters, in their order.
pub(super) fn write(
    w: &mut Writer<'_>,
    optimizer: Optimizer,
    (rate, weight_decay): (&str, f64),
    parameters: &[Parameter],
    gradients: &[String],
) -> Updates {
    let mut updates = Updates::default();
    let next: Vec<String> =
        parameters.iter().map(|own| w.names.fresh(&format!("{}.next", own.name))).collect();
    let names: Vec<String> = parameters.iter().map(|own| own.name.clone()).collect();
    let bound = parameters.iter().cloned().zip(next.iter().cloned());
    updates.bound.extend(bound);
    let state = |w: &mut Writer<'_>, updates: &mut Updates, suffix: &str| -> [Vec<String>; 2] {
        let (mut old, mut new) = (vec![], vec![]);
        for own in parameters {
            let name = w.names.fresh(&format!("{}.{suffix}", own.name));
            w.graph.initializer.push(zeros(own.dtype, &name, &own.dims));
            let changed = w.names.fresh(&format!("{name}.next"));
            let own = Parameter { name: name.clone(), ..own.clone() };
            updates.zeroed.push(own.clone());
            updates.bound.push((own, changed.clone()));
            old.push(name);
            new.push(changed);
        }
        [old, new]
    };
    match optimizer {
        Optimizer::Sgd => sgd(w, rate, weight_decay, parameters, gradients, &next),
        Optimizer::Momentum { momentum, nesterov } => {
            let [v, v_next] = state(w, &mut updates, "momentum");
            let [count, _] = counter(w, &mut updates);
            let attributes = vec![
                float("alpha", momentum),
                // The gradient as it is, in the first step and in others.
                float("beta", 1.0),
                text("mode", if nesterov { "nesterov" } else { "standard" }),
                float("norm_coefficient", weight_decay),
            ];
            let inputs = [&[rate.to_string(), count], &names[..], gradients, &v].concat();
            w.training("Momentum", &inputs, &[next, v_next].concat(), attributes);
        }
        Optimizer::Adam { betas, epsilon } | Optimizer::AdamW { betas, epsilon } => {
            let decoupled = matches!(optimizer, Optimizer::AdamW { .. });
            let [v, v_next] = state(w, &mut updates, "mean");
            let [h, h_next] = state(w, &mut updates, "square");
            // The operator takes the number of the update, from 1 on where its means are to be without bias from the first.
            let [_, count] = counter(w, &mut updates);
            let decayed = match decoupled && weight_decay != 0.0 {
                true => decayed(w, rate, weight_decay, parameters),
                false => names,
            };
            let attributes = vec![
                float("alpha", betas.0),
                float("beta", betas.1),
                float("epsilon", epsilon),
                float("norm_coefficient", if decoupled { 0.0 } else { weight_decay }),
            ];
            let inputs = [&[rate.to_string(), count], &decayed[..], gradients, &v, &h].concat();
            w.training("Adam", &inputs, &[next, v_next, h_next].concat(), attributes);
        }
        Optimizer::Adagrad { decay, epsilon } => {
            let [h, h_next] = state(w, &mut updates, "square");
            let [count, _] = counter(w, &mut updates);
            let attributes = vec![
                float("decay_factor", decay),
                float("epsilon", epsilon),
                float("norm_coefficient", weight_decay),
            ];
            let inputs = [&[rate.to_string(), count], &names[..], gradients, &h].concat();
            w.training("Adagrad", &inputs, &[next, h_next].concat(), attributes);
        }
    }
    updates
}

/// The count of updates before the step, and with it.
fn counter(w: &mut Writer<'_>, updates: &mut Updates) -> [String; 2] {
    let count = w.integers(&[], &[0], "steps");
    let one = w.integers(&[], &[1], "steps.one");
    let next = w.node("Add", &[&count, &one], vec![], "steps.next");
    let own = Parameter { name: count.clone(), dtype: DType::I64, dims: vec![] };
    updates.zeroed.push(own.clone());
    updates.bound.push((own, next.clone()));
    [count, next]
}

/// A scalar of f32 in the type of each parameter.
fn in_type(w: &mut Writer<'_>, single: &str, double: &mut Option<String>, dtype: DType) -> String {
    match dtype {
        DType::F64 => double.get_or_insert_with(|| w.cast(single, DType::F64, "rate.double")).clone(),
        _ => single.to_string(),
    }
}

fn sgd(
    w: &mut Writer<'_>,
    rate: &str,
    weight_decay: f64,
    parameters: &[Parameter],
    gradients: &[String],
    next: &[String],
) {
    let decay = (weight_decay != 0.0).then(|| w.floats(DType::F32, &[], &[weight_decay], "weight_decay"));
    let (mut double, mut double_decay) = (None, None);
    for ((own, gradient), next) in parameters.iter().zip(gradients).zip(next) {
        let mut gradient = gradient.clone();
        if let Some(decay) = &decay {
            let decay = in_type(w, decay, &mut double_decay, own.dtype);
            let term = w.node("Mul", &[&own.name, &decay], vec![], &format!("{}.decay", own.name));
            gradient = w.node("Add", &[&gradient, &term], vec![], &format!("{}.regularized", own.name));
        }
        let rate = in_type(w, rate, &mut double, own.dtype);
        let step = w.node("Mul", &[&rate, &gradient], vec![], &format!("{}.step", own.name));
        w.push(build::node("Sub", &[&own.name, &step], &[next]));
    }
}

/// The parameters times `1 - rate * decay`.
fn decayed(w: &mut Writer<'_>, rate: &str, weight_decay: f64, parameters: &[Parameter]) -> Vec<String> {
    let one = w.floats(DType::F32, &[], &[1.0], "weight_decay.one");
    let decay = w.floats(DType::F32, &[], &[weight_decay], "weight_decay");
    let share = w.node("Mul", &[rate, &decay], vec![], "weight_decay.share");
    let factor = w.node("Sub", &[&one, &share], vec![], "weight_decay.factor");
    let mut double = None;
    let of = |own: &Parameter| {
        let factor = in_type(w, &factor, &mut double, own.dtype);
        w.node("Mul", &[&own.name, &factor], vec![], &format!("{}.decayed", own.name))
    };
    parameters.iter().map(of).collect()
}
