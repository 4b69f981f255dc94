//! From a scheduled graph to a host program: what lies where, what is checked, and in which order steps run.
//!
//! `layout` decides where constants, sizes and pointers are, `dynamic` what each read of a size that data decide
//! completes. `steps` writes the step functions, `control` the loops and choices in them, `bind` those reads; `run` the
//! public functions, `checks` what they check first, `state` the block in which a caller keeps tensors from run to run. Nothing here knows
//! an operator or a machine.

mod bind;
mod builder;
mod checks;
mod control;
mod dynamic;
mod exchange;
mod external;
pub(crate) mod layout;
mod run;
mod sizes;
pub mod state;
mod steps;
mod text;

use crate::host::StepInfo;
use crate::host::ir::Program;
use onnxc_backend::codegen::kernels::{Explanation, KernelCode, Kernels};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_loops::Kernel;
use onnxc_machine::target::Core;
use onnxc_schedule as schedule;
use onnxc_schedule::Group;

pub(crate) use layout::{Before, Plan, Scope};
pub(crate) use steps::symbol_text;

/// A host program, and what it refers to.
pub struct Lowered<'g> {
    pub program: Program,
    pub(crate) plan: Plan,
    /// Code of the program's kernels, by their numbers.
    pub kernels: Vec<KernelUse<'g>>,
    /// What each step is, in the order of their numbers.
    pub steps: Vec<StepInfo>,
}

/// What a program informs its caller of, where that asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// Each step that is done.
    pub profile: bool,
    /// Each step that begins.
    pub trace: bool,
}

/// A kernel of the program.
#[derive(Clone, Copy)]
pub struct KernelUse<'g> {
    pub code: &'g KernelCode,
    /// The group that it computes, and its graph.
    pub graph: &'g Graph,
    pub group: &'g Group,
    /// Of one that rather explains why the group's kernel failed.
    pub explains: Option<&'g Explanation>,
}

impl KernelUse<'_> {
    /// Its loop nest.
    pub fn nest(&self, name: &str, core: &Core) -> Result<Kernel> {
        let Some(explanation) = self.explains else {
            return onnxc_loops::lower::lower(self.graph, self.group, name, core);
        };
        let lost = &explanation.lost;
        let found = onnxc_loops::lower::explain::explain(self.graph, self.group, lost, name, core)?;
        found.map(|found| found.kernel).ok_or_else(|| internal(format!("{name} explains nothing")))
    }

    /// The ONNX nodes that it computes, each as `name (OpType)`.
    pub fn nodes(&self) -> Vec<String> {
        steps::node_texts(self.graph, self.group)
    }
}

/// Lowers a schedule. Constants lie behind those of the programs before, where the program is one of several of an object, and the initial
/// values of states where the first has them; of weights that are apart, `layout` is the digest of what theirs depends on. Errors: symbols
/// or sizes that the C ABI does not carry.
pub(crate) fn lower<'g>(
    graph: &'g Graph,
    program: &'g schedule::Program,
    kernels: &'g Kernels,
    (name, calls): (&str, Calls),
    (before, layout): (Option<Before<'_>>, Option<[u8; 32]>),
) -> Result<Lowered<'g>> {
    let scope = Scope { graph, program, kernels, index: 0 };
    let plan = Plan::new(scope, before, layout)?;
    let program = Program {
        name: name.to_string(),
        inputs: graph.given_inputs() + usize::from(!graph.states.is_empty()),
        outputs: graph.given_outputs(),
        weights: plan.weight_bytes,
        sizes: plan.size_texts(graph),
        slots: plan.dynamic.slots.clone(),
        keeps_outputs: plan.dynamic.keeps_outputs(),
        frames: plan.frames.clone(),
        buffers: plan.buffers,
        strings: plan.strings.map(|(at, _)| at),
        arena: plan.arena_at,
        ..Program::default()
    };
    let mut lowered = Lowered { program, plan: Plan::default(), kernels: vec![], steps: vec![] };
    run::part(&mut lowered.program);
    let steps = steps::lower(&mut lowered, &plan, &scope, calls)?;
    run::lower(&mut lowered, &plan, &scope, (&steps, calls.trace))?;
    if cfg!(debug_assertions) {
        crate::host::verify::verify(&lowered.program).map_err(internal)?;
    }
    Ok(Lowered { plan, ..lowered })
}

pub(crate) fn internal(message: String) -> Error {
    Error::internal(Stage::Codegen, message)
}
