//! A model as writers of other forms than objects take it: host programs and descriptions, names, header and constants.

use std::collections::HashMap;

use target_lexicon::Endianness;

use crate::emit::apart::WeightsFile;
use crate::emit::weights::{self, ConstantsPart};
use crate::emit::{Options, Source, descriptor, interface, lower_all, run_symbol};
use crate::host::StepInfo;
use crate::host::ir::{FunctionKind, Program};
use crate::host::lower::{KernelUse, Lowered};
use onnxc_ir::error::{Error, Result, Stage};

pub use crate::emit::weights::Constant;

/// Bytes of `struct onnxc_model`, with which each description begins.
pub const MODEL_BYTES: usize = descriptor::MODEL_BYTES;

/// Bytes behind it for pointers to functions: `ONNXC_MODEL_POINTERS`.
pub const POINTER_BYTES: usize = 40;

/// A model before it is written.
pub struct Outline<'g> {
    /// Prefix of every symbol.
    pub name: String,
    /// What a run needs `options->allocate` for, if anything.
    pub needs_allocator: Option<String>,
    pub header: String,
    /// Of the model's own program.
    pub steps: Vec<StepInfo>,
    /// The model's own first.
    pub programs: Vec<Outlined<'g>>,
    pub weight_bytes: u64,
    /// The weights that are apart.
    pub weights_file: Option<WeightsFile>,
    /// Where it does not depend on the inputs.
    pub workspace_bytes: Option<i64>,
    weights: Vec<ConstantsPart>,
}

/// One program of a model.
pub struct Outlined<'g> {
    pub host: Program,
    pub kernels: Vec<KernelUse<'g>>,
    /// The constant description, without its links.
    pub description: Vec<u8>,
    /// Offsets in the description of the 32-bit fields that lead to functions.
    pub links: Vec<(u32, FunctionKind)>,
    /// The names by which programs call functions.
    pub public: HashMap<FunctionKind, String>,
}

/// Offset of the field that leads to the next program.
pub const NEXT: u32 = descriptor::NEXT;
pub use descriptor::field;

impl Outline<'_> {
    /// The constants in the order of their offsets.
    pub fn constants(&self) -> Result<Vec<Constant>> {
        weights::constants(&self.weights)
    }

    /// Evaluates the constants, one at a time, in that order: their bytes, with numbers little-endian.
    pub fn each_constant(&self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        weights::each(&self.weights, visit)
    }
}

/// Lowers the programs of a model. Errors are those of [`super::emit`].
pub fn outline<'g>(programs: &[Source<'g>], order: Endianness, options: &Options) -> Result<Outline<'g>> {
    let Some(own) = programs.first() else {
        return Err(Error::internal(Stage::Emit, "a model without programs"));
    };
    let (name, all, layout) = lower_all(own, programs, options)?;
    let (header, needs_allocator) = interface(programs, &all);
    let weight_bytes = all.last().map_or(0, |last| last.plan.weight_bytes);
    let workspace_bytes = all[0].plan.workspace.as_const();
    let (mut outlined, mut weights, mut steps, mut plans) = (vec![], vec![], None, vec![]);
    for (source, lowered) in programs.iter().zip(all) {
        let Lowered { program: host, mut plan, kernels, steps: own_steps } = lowered;
        steps.get_or_insert(own_steps);
        let is_own = source.suffix.is_empty();
        let description = descriptor::build(source.graph, &plan, &host.name, (order, POINTER_BYTES));
        let description = description.into_parts().0.to_vec();
        let named = |suffix: &str| format!("{}_{suffix}", host.name);
        let mut public = HashMap::from([
            (FunctionKind::Model, named("model")),
            (FunctionKind::Workspace, named("workspace")),
            (FunctionKind::Run, run_symbol(&host.name, is_own)),
        ]);
        let mut links =
            vec![(descriptor::RUN, FunctionKind::Run), (descriptor::WORKSPACE, FunctionKind::Workspace)];
        if plan.state.is_some() {
            links.push((descriptor::STATE_BYTES, FunctionKind::StateBytes));
            links.push((descriptor::STATE_RESET, FunctionKind::StateReset));
            // One block serves all programs.
            if is_own {
                public.insert(FunctionKind::StateBytes, named("state_bytes"));
                public.insert(FunctionKind::StateReset, named("state_reset"));
            }
        }
        weights
            .push(ConstantsPart { graph: source.graph.clone(), weights: std::mem::take(&mut plan.weights) });
        plans.push((source.graph.clone(), plan));
        outlined.push(Outlined { host, kernels, description, links, public });
    }
    let steps = steps.unwrap_or_default();
    let weights_file = layout.map(|layout| WeightsFile::new((&name, &options.note), &layout, plans, order));
    Ok(Outline {
        name,
        needs_allocator,
        header,
        steps,
        programs: outlined,
        weight_bytes,
        weights_file,
        workspace_bytes,
        weights,
    })
}
