//! State that several graphs have in common, such as the parameters that one graph trains and another one reads. Each of them has all of
//! these tensors, in the same order, so that one block serves all; those that it does not replace it only reads.
//!
//! Such a tensor has an initial value, which is the default of its input: a reset of the block puts it there. It never lies in panels, as
//! each graph may read it in its own way.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::claim::{Stated, printable};
use onnxc_ir::graph::state::select;
use onnxc_ir::graph::{Assumption, Dim, Graph, Requirement, State, Tensor, TensorType, ValueId};

/// A tensor of the common state.
#[derive(Clone, Debug)]
pub struct Shared {
    pub name: String,
    pub initial: Tensor,
}

impl Shared {
    pub fn ty(&self) -> TensorType {
        let shape = self.initial.shape.iter().map(|&size| Dim::from(size)).collect();
        TensorType::new(self.initial.dtype, shape)
    }
}

/// What a graph does with the tensors, by their numbers.
#[derive(Default)]
pub struct Uses {
    /// Those that are inputs of the graph.
    pub read: BTreeSet<usize>,
    /// The output that replaces a tensor, and what the model says of that, for messages.
    pub replaced: BTreeMap<usize, (String, String)>,
    /// Outputs that callers are not given.
    pub hidden: BTreeSet<String>,
}

/// Makes the tensors state of a graph. Errors: an output that is a compound, or of another type than the tensor that it replaces.
pub fn share(graph: &mut Graph, tensors: &[Shared], uses: &Uses) -> std::result::Result<(), Vec<Error>> {
    if tensors.is_empty() {
        return Ok(());
    }
    let (mut errors, mut inputs, mut after) = (vec![], vec![], vec![]);
    let places: HashMap<String, usize> =
        graph.inputs.iter().enumerate().rev().map(|(at, input)| (input.name.clone(), at)).collect();
    let results: HashMap<String, ValueId> = graph.outputs.iter().rev().cloned().collect();
    for (number, tensor) in tensors.iter().enumerate() {
        let found = places.get(&tensor.name).copied();
        let input = match found.filter(|_| uses.read.contains(&number)) {
            Some(at) => at,
            None => {
                let origin = graph.origins.next_key();
                Builder::new(graph, origin).input(&tensor.name, tensor.ty(), None);
                graph.inputs.len() - 1
            }
        };
        graph.inputs[input].default = Some(tensor.initial.clone());
        inputs.push(input);
        let mut value = graph.inputs[input].value;
        if let Some((output, about)) = uses.replaced.get(&number) {
            let checked = match results.get(output).copied() {
                Some(given) => {
                    check(graph, tensor, &graph.ty(given).clone(), (output, about)).map(|()| given)
                }
                None => {
                    Err(Error::malformed(Stage::Import, format!("{about}: `{output}` is not a dense tensor")))
                }
            };
            match checked {
                Ok(given) => value = given,
                Err(error) => errors.push(error),
            }
        }
        after.push((tensor.name.clone(), value));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let shared: HashSet<usize> = inputs.iter().copied().collect();
    let kept_inputs = (0..graph.inputs.len()).filter(|at| !shared.contains(at));
    let order: Vec<usize> = kept_inputs.chain(inputs.iter().copied()).collect();
    let given = order.len() - tensors.len();
    let mut outputs: Vec<usize> =
        (0..graph.outputs.len()).filter(|&at| !uses.hidden.contains(&graph.outputs[at].0)).collect();
    let first = outputs.len();
    outputs.extend(graph.outputs.len()..graph.outputs.len() + after.len());
    graph.outputs.extend(after);
    select(graph, &order, &outputs);
    let state = |(number, tensor): (usize, &Shared)| State {
        ports: (given + number, first + number),
        ty: tensor.ty(),
        growth: None,
        panels: None,
    };
    graph.states = tensors.iter().enumerate().map(state).collect();
    graph.keep_reachable();
    Ok(())
}

/// Holds the type of what replaces a tensor to that of the tensor; where sizes are symbols, each run does so.
fn check(
    graph: &mut Graph,
    tensor: &Shared,
    found: &TensorType,
    (output, about): (&str, &str),
) -> Result<()> {
    let (wanted, name) = (tensor.ty(), &tensor.name);
    let differs = |(left, right): (&Dim, &Dim)| left != right && left.is_const() && right.is_const();
    if found.dtype != wanted.dtype
        || found.rank() != wanted.rank()
        || found.shape.iter().zip(&wanted.shape).any(differs)
    {
        let dims: Vec<String> = found.shape.iter().map(|dim| graph.dim_text(dim)).collect();
        return Err(Error::malformed(
            Stage::Import,
            format!(
                "{about} gives `{name}`, which is {wanted}, the value `{output}`, which is {}[{}]",
                found.dtype,
                dims.join(", ")
            ),
        ));
    }
    if found.shape.iter().any(|dim| graph.is_data_dim(dim)) {
        let message =
            format!("{about} gives `{name}` the value `{output}`, whose size only the data decides");
        return Err(Error::unsupported(Stage::Import, message));
    }
    for (axis, (left, right)) in
        found.shape.iter().zip(&wanted.shape).enumerate().filter(|(_, (a, b))| a != b)
    {
        let node = format!("the new value of `{}`", printable(name)).into();
        let what = format!("dimension {axis} of `{}`", printable(output));
        let Stated { requirement, claim } =
            Requirement::equal(left.clone(), right.clone()).says(what, "that of what it replaces");
        graph.assumptions.insert(Assumption { requirement, node, claim });
    }
    Ok(())
}
