//! Which tensors of a model are parameters, and what they are to the nodes that read them.

use std::collections::{HashMap, HashSet};

use onnxc_ir::error::Result;
use onnxc_ir::graph::DType;
use onnxc_ir::words::did_you_mean;
use onnxc_proto::{GraphProto, NodeProto, TensorProto};

use super::names::{is_exact, matches};
use super::optimizer::Parameter;
use crate::normal_domain;
use crate::scope::free_names;
use crate::scope::{bodies, definers};
use crate::usage;

/// What a tensor is to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A factor of products in sums, with the number of products in one.
    Weight(i64),
    /// Rows that are picked, of this length.
    Table(i64),
    /// A factor for each channel.
    Scale,
    /// What is added to each channel.
    Shift,
    /// The slope of a PRelu.
    Slope,
    Unknown,
    /// Nothing that is learnt, and why.
    Fixed(&'static str),
}

/// A tensor that is to learn.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub own: Parameter,
    pub role: Role,
    /// Named by the caller: where it cannot learn, that is an error.
    pub named: bool,
}

/// Names that a value depends on, and itself.
pub(super) fn reached<'g>(graph: &'g GraphProto, value: &'g str) -> HashSet<&'g str> {
    let definers = definers(&graph.node);
    let mut found: HashSet<&str> = HashSet::new();
    let mut open = vec![value];
    while let Some(name) = open.pop() {
        if name.is_empty() || !found.insert(name) {
            continue;
        }
        if let Some(&at) = definers.get(name) {
            let node = &graph.node[at];
            open.extend(node.input.iter().map(String::as_str));
            open.extend(bodies(node).flat_map(free_names));
        }
    }
    found
}

/// The tensor of a Constant node.
pub(super) fn constant(node: &NodeProto) -> Option<&TensorProto> {
    let is_constant = node.op_type() == "Constant" && normal_domain(node.domain()).is_empty();
    let value = node.attribute.iter().find(|attribute| attribute.name() == "value");
    value.filter(|_| is_constant)?.t.as_deref()
}

/// Makes initializers of the Constant nodes that patterns name: only these can change.
pub(super) fn promote(graph: &mut GraphProto, patterns: &[String]) {
    let mut made = vec![];
    graph.node.retain(|node| {
        let Some((tensor, name)) = constant(node).zip(node.output.first()) else { return true };
        let is_float = parameter_type(tensor.data_type()).is_ok();
        if !is_float || !patterns.iter().any(|pattern| matches(pattern, name)) {
            return true;
        }
        made.push(TensorProto { name: Some(name.clone()), ..tensor.clone() });
        false
    });
    graph.initializer.extend(made);
}

/// The type of a tensor that can be trained, or why it cannot.
fn parameter_type(kind: i32) -> std::result::Result<DType, String> {
    match crate::tensor::dtype(kind) {
        Ok(dtype @ (DType::F32 | DType::F64)) => Ok(dtype),
        Ok(dtype) => Err(format!("it is {dtype}, and what learns is f32 or f64")),
        Err(error) => Err(error.message),
    }
}

/// Names of tensors that do not learn, and why.
pub(super) type Left = Vec<(String, String)>;

/// What the caller names.
pub(super) struct Choice<'o> {
    pub learn: &'o [String],
    pub freeze: &'o [String],
    /// Tensors that learn without being named; the others do only where they are. Without it all do that are weights.
    pub only: Option<&'o HashSet<String>>,
}

/// The tensors that are to learn, in the order of the initializers, and for those of the others that might be meant why they do not.
pub(super) fn choose(
    graph: &GraphProto,
    reached: &HashSet<&str>,
    choice: &Choice<'_>,
) -> Result<(Vec<Candidate>, Left)> {
    let readers = Readers::new(graph, reached);
    let (mut chosen, mut left) = (vec![], vec![]);
    let mut used: HashSet<&str> = HashSet::new();
    let mut frozen: HashSet<&str> = HashSet::new();
    let mut why_not: HashMap<&str, String> = HashMap::new();
    let mut seen: HashSet<&str> = HashSet::new();
    // The last one of a name counts.
    let mut tensors: Vec<&TensorProto> =
        graph.initializer.iter().rev().filter(|tensor| seen.insert(tensor.name())).collect();
    tensors.reverse();
    for tensor in &tensors {
        let name = tensor.name();
        let of = |patterns: &'_ [String]| -> Vec<usize> {
            (0..patterns.len()).filter(|&at| matches(&patterns[at], name)).collect()
        };
        let named_by = of(choice.learn);
        let frozen_by = of(choice.freeze);
        let named = named_by.iter().any(|&at| is_exact(&choice.learn[at]));
        let wanted = match choice.only {
            Some(only) => only.contains(name) || !named_by.is_empty(),
            None => choice.learn.is_empty() || !named_by.is_empty(),
        };
        let role = readers.role(tensor);
        let dtype = parameter_type(tensor.data_type());
        let reason = match (&dtype, role) {
            (Err(reason), _) => Some(reason.clone()),
            _ if !reached.contains(name) => Some("the loss does not depend on it".to_string()),
            _ if named => None,
            _ if tensor.dims.is_empty() => Some("it is a scalar".to_string()),
            (_, Role::Fixed(reason)) => Some(reason.to_string()),
            _ => None,
        };
        // A constant such as a list of axes can be frozen by a pattern, too, that means no harm.
        frozen.extend(frozen_by.iter().map(|&at| choice.freeze[at].as_str()));
        match reason {
            Some(reason) => {
                let floats = tensor.data_type() == DType::F16.to_onnx()
                    || tensor.data_type() == DType::BF16.to_onnx()
                    || dtype.is_ok() && !tensor.dims.is_empty();
                if wanted && frozen_by.is_empty() && floats {
                    left.push((name.to_string(), reason.clone()));
                }
                for &at in &named_by {
                    why_not
                        .entry(&choice.learn[at])
                        .or_insert_with(|| format!("`{name}` does not learn: {reason}"));
                }
            }
            None => {
                used.extend(named_by.iter().map(|&at| choice.learn[at].as_str()));
                if let (true, true, Ok(dtype)) = (wanted, frozen_by.is_empty(), dtype) {
                    let own = Parameter { name: name.to_string(), dtype, dims: tensor.dims.clone() };
                    chosen.push(Candidate { own, role, named });
                }
            }
        }
    }
    let names = || tensors.iter().map(|tensor| tensor.name());
    if let Some(pattern) = choice.learn.iter().find(|pattern| !used.contains(pattern.as_str())) {
        return Err(usage(match why_not.get(pattern.as_str()) {
            Some(reason) if is_exact(pattern) => format!("--learn {pattern}: {reason}"),
            Some(reason) => format!("--learn {pattern}: nothing that it matches learns; {reason}"),
            None => {
                format!("--learn {pattern}: no initializer has such a name{}", did_you_mean(pattern, names()))
            }
        }));
    }
    if let Some(pattern) = choice.freeze.iter().find(|pattern| !frozen.contains(pattern.as_str())) {
        let hint = did_you_mean(pattern, names());
        return Err(usage(format!("--freeze {pattern}: no initializer has such a name{hint}")));
    }
    Ok((chosen, left))
}

/// The nodes that read each value.
struct Readers<'g> {
    graph: &'g GraphProto,
    of: HashMap<&'g str, Vec<(usize, usize)>>,
    definers: HashMap<&'g str, usize>,
    /// Names that bodies take from around them.
    captured: HashSet<&'g str>,
}

/// Nodes that a tensor is followed through.
const MAX_STEPS: u32 = 8;

impl<'g> Readers<'g> {
    fn new(graph: &'g GraphProto, reached: &HashSet<&str>) -> Readers<'g> {
        let mut of: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
        let mut captured = HashSet::new();
        let used = |node: &NodeProto| node.output.iter().any(|name| reached.contains(name.as_str()));
        for (at, node) in graph.node.iter().enumerate().filter(|(_, node)| used(node)) {
            for (input, name) in node.input.iter().enumerate() {
                of.entry(name).or_default().push((at, input));
            }
            captured.extend(bodies(node).flat_map(free_names));
        }
        Readers { graph, of, definers: definers(&graph.node), captured }
    }

    /// What a tensor is to the first node that has a use for it that is learnt.
    fn role(&self, tensor: &TensorProto) -> Role {
        let mut roles = vec![];
        self.roles(tensor.name(), &tensor.dims, MAX_STEPS, &mut roles);
        let learnt = roles.iter().find(|role| !matches!(role, Role::Fixed(_)));
        let found = learnt.or(roles.first()).copied().unwrap_or(Role::Unknown);
        match found {
            Role::Fixed(_) if self.captured.contains(tensor.name()) => Role::Unknown,
            found => found,
        }
    }

    fn roles(&self, name: &str, dims: &[i64], steps: u32, roles: &mut Vec<Role>) {
        for &(at, input) in self.of.get(name).into_iter().flatten() {
            let node = &self.graph.node[at];
            let (own, result) = (normal_domain(node.domain()).is_empty(), node.output.first());
            let passed = match (node.op_type(), result) {
                ("Identity" | "Cast", Some(result)) if own => Some((result, dims.to_vec())),
                ("Transpose", Some(result)) if own => permuted(node, dims).map(|dims| (result, dims)),
                _ => None,
            };
            match passed {
                Some((result, dims)) if steps > 0 => self.roles(result, &dims, steps - 1, roles),
                _ => roles.push(self.role_in(node, input, dims)),
            }
        }
    }

    fn role_in(&self, node: &NodeProto, input: usize, dims: &[i64]) -> Role {
        let is_one = dims.iter().product::<i64>() == 1;
        let behind = |from: usize| dims.iter().skip(from).product::<i64>();
        let from_end =
            |back: usize| dims.len().checked_sub(back).and_then(|at| dims.get(at)).copied().unwrap_or(1);
        let flag = |name: &str| node.attribute.iter().any(|own| own.name() == name && own.i() != 0);
        match (node.op_type(), input) {
            ("MatMul", 0) => Role::Weight(from_end(1)),
            ("MatMul", 1) => Role::Weight(from_end(2)),
            ("Gemm", 0) => Role::Weight(from_end(if flag("transA") { 2 } else { 1 })),
            ("Gemm", 1) => Role::Weight(from_end(if flag("transB") { 1 } else { 2 })),
            ("Conv" | "DeformConv" | "ConvTranspose", 1) => Role::Weight(behind(1)),
            ("LSTM" | "GRU" | "RNN", 1 | 2) => Role::Weight(from_end(1)),
            ("LSTM" | "GRU" | "RNN", 3) | ("LSTM", 7) => Role::Shift,
            ("Gemm" | "Conv" | "ConvTranspose", 2) => Role::Shift,
            ("Gather", 0) => Role::Table(from_end(1)),
            ("BatchNormalization", 3 | 4) => Role::Fixed("it is a running statistic"),
            ("SkipLayerNormalization" | "SkipSimplifiedLayerNormalization", 2) => Role::Scale,
            ("SkipLayerNormalization", 3 | 4) => Role::Shift,
            (op, 1) if op.ends_with("Normalization") => Role::Scale,
            (op, 2) if op.ends_with("Normalization") => Role::Shift,
            ("PRelu", 1) => Role::Slope,
            ("Add", _) if self.is_product(&node.input[1 - input.min(1)]) => Role::Shift,
            (_, _) if is_one => Role::Fixed("it is one number, and no weight or bias of a layer"),
            ("Add", _) if dims.len() == 1 => Role::Shift,
            ("Mul", _) if dims.len() == 1 => Role::Scale,
            ("Resize" | "Upsample" | "Clip" | "Pad" | "Dropout" | "TopK" | "OneHot" | "Pow", 1..) => {
                Role::Fixed("it is a setting of an operator")
            }
            (
                "NonMaxSuppression" | "Range" | "ConstantOfShape" | "Tile" | "Expand" | "RoiAlign"
                | "CastLike",
                1..,
            ) => Role::Fixed("it is a setting of an operator"),
            ("QuantizeLinear", _)
            | ("DequantizeLinear" | "MatMulNBits" | "GatherBlockQuantized" | "DynamicQuantizeLSTM", 1..) => {
                Role::Fixed("it is of a quantized tensor")
            }
            (op, _)
                if op.starts_with("QLinear") || op.ends_with("Integer") || op.ends_with("IntegerToFloat") =>
            {
                Role::Fixed("it is of a quantized tensor")
            }
            (
                "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "ArgMax" | "ArgMin"
                | "Floor" | "Ceil" | "Round" | "Sign" | "Shape" | "Size" | "IsNaN" | "IsInf",
                _,
            ) => Role::Fixed("all that reads it is constant between steps, without a derivative"),
            _ => Role::Unknown,
        }
    }

    /// Whether a value comes from a layer, whose bias is added behind it.
    fn is_product(&self, name: &str) -> bool {
        let definer = self.definers.get(name).map(|&at| self.graph.node[at].op_type());
        matches!(definer, Some("MatMul" | "MatMulNBits" | "Gemm" | "Conv" | "ConvTranspose"))
    }
}

/// The dims behind a Transpose.
pub(super) fn permuted(node: &NodeProto, dims: &[i64]) -> Option<Vec<i64>> {
    let perm = node.attribute.iter().find(|own| own.name() == "perm");
    match perm {
        None => Some(dims.iter().rev().copied().collect()),
        Some(perm) => {
            let dim = |&axis: &i64| usize::try_from(axis).ok().and_then(|axis| dims.get(axis)).copied();
            perm.ints.iter().map(dim).collect::<Option<Vec<i64>>>().filter(|found| found.len() == dims.len())
        }
    }
}
