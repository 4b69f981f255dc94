//! Low-rank factors beside weights that stay as they are (Hu and others, "LoRA", 2021): `x W` becomes `x W + alpha / r * (x A') B'`.

use std::collections::{HashMap, HashSet};

use onnxc_ir::error::Result;
use onnxc_ir::graph::DType;
use onnxc_ir::words::did_you_mean;
use onnxc_proto::{GraphProto, NodeProto, TensorProto, build};

use super::initialize::First;
use super::names::{Names, matches};
use super::optimizer::Parameter;
use super::parameters::{constant, permuted};
use super::writer::{Writer, floats, zeros};
use crate::normal_domain;
use crate::scope::definers;
use crate::usage;

#[derive(Clone, PartialEq, Debug)]
pub struct Lora {
    pub rank: i64,
    /// What the product of the factors is scaled by is this over the rank; the rank, where it is `None`.
    pub alpha: Option<f64>,
    /// Patterns of names of weights or nodes; all weights of products, if there are none.
    pub weights: Vec<String>,
}

/// The factors of all weights, with their first values.
pub(super) type Factors = Vec<(Parameter, First)>;

/// A product with a constant weight of one matrix.
struct Site {
    node: usize,
    /// What names the weight.
    weight: String,
    /// `[in, out]`.
    dims: (i64, i64),
    /// Of the activations.
    dtype: DType,
}

/// Puts factors beside the weights that are meant, among those of nodes that a loss depends on.
pub(super) fn insert(
    graph: &mut GraphProto,
    reached: &HashSet<String>,
    lora: &Lora,
    seed: u64,
    names: &mut Names,
    opset: i64,
) -> Result<Factors> {
    let (sites, refused) = sites(graph, reached);
    let is_meant = |weight: &str, node: &NodeProto, pattern: &String| {
        matches(pattern, weight) || matches(pattern, node.name())
    };
    let mut meant = vec![];
    for site in &sites {
        let of = |pattern: &&String| is_meant(&site.weight, &graph.node[site.node], pattern);
        if lora.weights.is_empty() || lora.weights.iter().any(|pattern| of(&pattern)) {
            meant.push(site);
        }
    }
    for pattern in &lora.weights {
        if meant.iter().any(|site| is_meant(&site.weight, &graph.node[site.node], pattern)) {
            continue;
        }
        let known = sites.iter().flat_map(|site| [site.weight.as_str(), graph.node[site.node].name()]);
        let known = known.filter(|name| !name.is_empty());
        let refused = refused.iter().find(|(at, weight, _)| is_meant(weight, &graph.node[*at], pattern));
        return Err(usage(match refused {
            Some((_, weight, why)) => format!("--lora-for {pattern}: `{weight}` takes no factors: {why}"),
            None => format!(
                "--lora-for {pattern}: no product has a weight, or a name, of this kind{}",
                did_you_mean(pattern, known)
            ),
        }));
    }
    if meant.is_empty() {
        return Err(usage(
            "--lora: the output depends on no MatMul, Gemm or MatMulNBits with a constant matrix".to_string(),
        ));
    }
    let mut factors: Factors = vec![];
    // Factors of a weight that several nodes read, in one direction or the other.
    let mut of_weight: HashMap<(&str, (i64, i64)), [String; 2]> = HashMap::new();
    let mut behind: HashMap<usize, Vec<NodeProto>> = HashMap::new();
    let mut renamed: HashMap<usize, String> = HashMap::new();
    let mut made = vec![];
    for site in meant {
        let (inner, outer) = site.dims;
        let rank = lora.rank;
        if rank > inner.min(outer) {
            return Err(usage(format!(
                "--lora {rank}: `{}` is {inner}x{outer}, and factors of rank {rank} are no smaller than it",
                site.weight
            )));
        }
        let [a, b] = of_weight
            .entry((&site.weight, site.dims))
            .or_insert_with(|| {
                let [a, b] = ["lora_A", "lora_B"].map(|kind| names.fresh(&format!("{}.{kind}", site.weight)));
                let most = 1.0 / (inner as f64).sqrt();
                let count = (rank * inner) as usize;
                let number = seed.wrapping_add(factors.len() as u64);
                made.push(floats(DType::F32, &a, &[rank, inner], &uniform(number, most, count)));
                made.push(zeros(DType::F32, &b, &[outer, rank]));
                let own = |name: &String, dims: [i64; 2]| Parameter {
                    name: name.clone(),
                    dtype: DType::F32,
                    dims: dims.to_vec(),
                };
                factors.push((own(&a, [rank, inner]), First::Uniform(most)));
                factors.push((own(&b, [outer, rank]), First::All(0.0)));
                [a, b]
            })
            .clone();
        let node = &graph.node[site.node];
        let Some((x, y)) = node.input.first().zip(node.output.first()) else { continue };
        let mut w = Writer::new("", names, opset);
        let of = |kind: &str| format!("{y}.{kind}");
        // Factors are f32 also beside weights of 16 bits: steps are too small for these.
        let x = if site.dtype == DType::F32 { x.clone() } else { w.cast(x, DType::F32, &of("lora_x")) };
        let swapped = || vec![build::ints("perm", &[1, 0])];
        let a = w.node("Transpose", &[&a], swapped(), &of("lora_A"));
        let b = w.node("Transpose", &[&b], swapped(), &of("lora_B"));
        let low = w.node("MatMul", &[&x, &a], vec![], &of("lora_low"));
        let mut sum = w.node("MatMul", &[&low, &b], vec![], &of("lora_product"));
        let scale = lora.alpha.map_or(1.0, |alpha| alpha / rank as f64);
        if scale != 1.0 {
            let scale = w.floats(DType::F32, &[], &[scale], &of("lora_scale"));
            sum = w.node("Mul", &[&sum, &scale], vec![], &of("lora_scaled"));
        }
        if site.dtype != DType::F32 {
            sum = w.cast(&sum, site.dtype, &of("lora_cast"));
        }
        let frozen = w.names.fresh(&of("frozen"));
        w.push(build::node("Add", &[&frozen, &sum], &[y]));
        made.extend(w.graph.initializer);
        behind.insert(site.node, w.graph.node);
        renamed.insert(site.node, frozen);
    }
    let nodes = std::mem::take(&mut graph.node);
    for (at, mut node) in nodes.into_iter().enumerate() {
        if let Some(frozen) = renamed.remove(&at) {
            node.output[0] = frozen;
        }
        graph.node.push(node);
        graph.node.extend(behind.remove(&at).into_iter().flatten());
    }
    graph.initializer.extend(made);
    Ok(factors)
}

/// A product that takes no factors: its node, its weight and why.
type Refused = (usize, String, String);

fn sites(graph: &GraphProto, reached: &HashSet<String>) -> (Vec<Site>, Vec<Refused>) {
    let weights = Weights::new(graph);
    let (mut sites, mut refused) = (vec![], vec![]);
    for (at, node) in graph.node.iter().enumerate() {
        if !node.output.first().is_some_and(|name| reached.contains(name)) {
            continue;
        }
        let found = match (normal_domain(node.domain()), node.op_type()) {
            ("", "MatMul" | "Gemm") => weights.matrix(node),
            ("com.microsoft", "MatMulNBits") => weights.blocked(node),
            _ => None,
        };
        match found {
            Some((weight, Ok((dims, dtype)))) => sites.push(Site { node: at, weight, dims, dtype }),
            Some((weight, Err(why))) => refused.push((at, weight, why)),
            None => {}
        }
    }
    (sites, refused)
}

/// Dims as `[in, out]` and the type of activations, or why there are no factors.
type Matrix = std::result::Result<((i64, i64), DType), String>;

struct Weights<'g> {
    graph: &'g GraphProto,
    tensors: HashMap<&'g str, &'g TensorProto>,
    definers: HashMap<&'g str, usize>,
}

impl<'g> Weights<'g> {
    fn new(graph: &'g GraphProto) -> Weights<'g> {
        let constants =
            graph.node.iter().filter_map(|node| Some((node.output.first()?.as_str(), constant(node)?)));
        let tensors = graph.initializer.iter().map(|tensor| (tensor.name(), tensor));
        Weights { graph, tensors: constants.chain(tensors).collect(), definers: definers(&graph.node) }
    }

    /// The weight of a product: the tensor that it comes from, also through a DequantizeLinear.
    fn matrix(&self, node: &NodeProto) -> Option<(String, Matrix)> {
        let (weight, dims, dtype) = self.traced(node.input.get(1)?, 8)?;
        let flag = |name: &str| node.attribute.iter().any(|own| own.name() == name && own.i() != 0);
        let found = match (&dims[..], dtype) {
            _ if flag("transA") => Err("its left-hand side is transposed".to_string()),
            (&[outer, inner], Ok(dtype)) if flag("transB") => Ok(((inner, outer), dtype)),
            (&[inner, outer], Ok(dtype)) => Ok(((inner, outer), dtype)),
            (&[_, _], Err(why)) => Err(why),
            _ => Err(format!("it has {} axes, and must have 2", dims.len())),
        };
        Some((weight, found))
    }

    /// Name and dims of the tensor behind a value, and the value's type.
    fn traced(
        &self,
        name: &str,
        steps: u32,
    ) -> Option<(String, Vec<i64>, std::result::Result<DType, String>)> {
        if let Some(tensor) = self.tensors.get(name) {
            return Some((name.to_string(), tensor.dims.clone(), activation(tensor.data_type())));
        }
        let node = &self.graph.node[*self.definers.get(name)?];
        if steps == 0 || !["", "com.microsoft"].contains(&normal_domain(node.domain())) {
            return None;
        }
        let (weight, dims, dtype) = self.traced(node.input.first()?, steps - 1)?;
        match node.op_type() {
            "Identity" => Some((weight, dims, dtype)),
            "Transpose" => Some((weight, permuted(node, &dims)?, dtype)),
            "Cast" => {
                let to = node.attribute.iter().find(|own| own.name() == "to")?.i();
                Some((weight, dims, activation(i32::try_from(to).ok()?)))
            }
            "DequantizeLinear" => {
                let stated = node.attribute.iter().find(|own| own.name() == "output_dtype" && own.i() != 0);
                let kind = match stated {
                    Some(own) => i32::try_from(own.i()).ok()?,
                    None => self.tensors.get(node.input.get(1)?.as_str())?.data_type(),
                };
                Some((weight, dims, activation(kind)))
            }
            _ => None,
        }
    }

    /// The weight of a MatMulNBits.
    fn blocked(&self, node: &NodeProto) -> Option<(String, Matrix)> {
        let size = |name: &str| node.attribute.iter().find(|own| own.name() == name).map(|own| own.i());
        let (inner, outer) = (size("K")?, size("N")?);
        let scales = self.tensors.get(node.input.get(2)?.as_str())?;
        Some((
            node.input.get(1)?.clone(),
            activation(scales.data_type()).map(|dtype| ((inner, outer), dtype)),
        ))
    }
}

fn activation(kind: i32) -> std::result::Result<DType, String> {
    match crate::tensor::dtype(kind) {
        Ok(dtype @ (DType::F32 | DType::F64 | DType::F16 | DType::BF16)) => Ok(dtype),
        Ok(dtype) => Err(format!("products of it are of {dtype}, which have no derivative")),
        Err(error) => Err(error.message),
    }
}

/// Numbers from `-most` to `most` (Steele and others, "Fast splittable pseudorandom number generators", 2014).
fn uniform(seed: u64, most: f64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        (2.0 * unit - 1.0) * most
    };
    (0..count).map(|_| next()).collect()
}
