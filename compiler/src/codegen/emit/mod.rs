//! From a scheduled graph and its kernels' machine code to an object file and its C header.
//!
//! `entry` writes the public functions: `run` checks all that the caller gives before anything is written,
//! `steps` the calls of the kernels, `descriptor` the constant description of the model, `object` holds the
//! file under construction, `layout` decides what lies where. Nothing here knows an operator; kernels come as bytes.

pub mod abi;
mod control;
mod descriptor;
mod dynamic;
mod entry;
mod func;
mod header;
mod layout;
mod message;
mod object;
mod size;
mod steps;
mod weights;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use cranelift_entity::PrimaryMap;

use crate::codegen::Threads;
use crate::error::{Error, Result, Stage};
use crate::graph::{DType, Dim, Graph, NodeId};
use crate::schedule::{GroupId, Program};
use crate::target::Target;

pub(crate) use layout::bound_symbols;
pub(crate) use message::printable;
pub use object::MachineCode;

/// The compiled kernel of one group. Its buffers are the group's inputs, then its outputs.
#[derive(Clone)]
pub struct KernelCode {
    /// For profiles and debuggers; need not be unique.
    pub name: String,
    /// From the least level up. The first is of level 0: it runs wherever the object does.
    pub versions: Vec<KernelVersion>,
}

/// A kernel's machine code for one level of the target. All versions of a kernel compute the same from the same
/// buffers, up to rounding.
#[derive(Clone)]
pub struct KernelVersion {
    /// The least of the target's levels, as [`Target::levels`] numbers them, that this runs on.
    pub level: usize,
    pub code: MachineCode,
    /// Range of the parallel loop, whose parts may run on several threads.
    pub range: Option<(Dim, Dim)>,
    /// When several threads share that range.
    pub threads: Threads,
}

impl KernelCode {
    /// The version of level 0.
    pub fn baseline(&self) -> Result<&KernelVersion> {
        match self.versions.first() {
            Some(version) if version.level == 0 => Ok(version),
            _ => Err(Error::internal(Stage::Emit, format!("kernel `{}` has no baseline", self.name))),
        }
    }
}

/// The kernels of a program: one per group, and those of the bodies of its control flow.
#[derive(Clone, Default)]
pub struct Kernels {
    pub groups: PrimaryMap<GroupId, KernelCode>,
    pub bodies: HashMap<NodeId, Vec<Kernels>>,
}

impl Kernels {
    /// Whether there is anything to choose when the object runs.
    pub fn has_upgrades(&self) -> bool {
        let mut open = vec![self];
        while let Some(kernels) = open.pop() {
            if kernels.groups.values().any(|kernel| kernel.versions.len() > 1) {
                return true;
            }
            open.extend(kernels.bodies.values().flatten());
        }
        false
    }
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Prefix of every symbol and macro; the graph's name if empty. Made a C identifier either way.
    pub name: String,
    /// Call `step_done` of the run's options after every step.
    pub profile: bool,
}

/// What one step of the compiled program does; its number is what `step_done` is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepInfo {
    /// Name of the kernel, or `copy` or `scan`.
    pub kernel: String,
    /// The ONNX nodes computed, as `name (OpType)`.
    pub nodes: Vec<String>,
    /// 0 for the model's own steps, else the number of the scan body.
    pub scope: usize,
}

/// Sizes of what was made, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    pub code_bytes: u64,
    pub kernel_bytes: u64,
    pub weight_bytes: u64,
    /// Stack of a run, without what the caller's functions and the C library's take.
    pub stack_bytes: u32,
    /// Workspace of one run, where it does not depend on the inputs.
    pub workspace_bytes: Option<i64>,
}

/// A compiled model: the header's text, and an object that [`Artifact::write_object`] writes.
pub struct Artifact {
    /// Symbol prefix.
    pub name: String,
    pub header: String,
    pub stats: Stats,
    pub steps: Vec<StepInfo>,
    object: object::Finished,
    graph: Arc<Graph>,
    weights: Vec<layout::Weight>,
}

impl Artifact {
    /// Writes the object file. Deferred constants are evaluated here, one at a time, so that no more than one is
    /// in memory; `out` need not be buffered. Errors: a constant cannot be evaluated, or `out` fails.
    pub fn write_object(self, out: &mut dyn Write) -> Result<()> {
        weights::write(self.object, &self.graph, &self.weights, out)
    }
}

/// Makes the object of a scheduled graph. Errors: element types, symbols or sizes that the C ABI does not
/// carry yet, or a target without object format.
pub fn emit(
    model: &Arc<Graph>,
    program: &Program,
    kernels: &Kernels,
    target: &Target,
    options: &Options,
) -> Result<Artifact> {
    let graph: &Graph = model;
    for (at, input) in graph.inputs.iter().enumerate() {
        carried(&input.name, graph.input_ty(at).dtype, graph.packed_inputs.contains_key(&at))?;
    }
    for (at, (name, _)) in graph.outputs.iter().enumerate() {
        carried(name, graph.output_ty(at).dtype, graph.packed_outputs.contains_key(&at))?;
    }
    let name = identifier(if options.name.is_empty() { &graph.name } else { &options.name });
    let scope = layout::Scope { graph, program, kernels, index: 0 };
    let plan = layout::Plan::new(scope)?;
    let mut unit = object::Unit::new(&name, target)?;
    unit.declare_weights(plan.weight_bytes)?;
    if kernels.has_upgrades() {
        unit.define_level(target)?;
    }
    let message = message::define(&mut unit)?;
    let levels = target.levels().map(|level| level.cpu.clone()).collect();
    let mut shared = steps::Shared::new(&mut unit, message, levels, options.profile)?;
    let functions = steps::emit(&mut unit, &plan, &scope, &mut shared)?;
    let entries = entry::define(&mut unit, &plan, &scope, message, &functions)?;
    let (descriptor, links) = descriptor::build(graph, &plan, &name, &entries);
    let globals = [
        (format!("{name}_model"), entries.model),
        (format!("{name}_workspace"), entries.workspace),
        (format!("{name}_run"), entries.run),
    ];
    let object = unit.finish(&descriptor, &links, &globals)?;
    let stats = Stats {
        code_bytes: object.code_bytes,
        kernel_bytes: shared.kernel_bytes,
        weight_bytes: plan.weight_bytes,
        stack_bytes: object.stack_bytes,
        workspace_bytes: plan.workspace.as_const(),
    };
    let header = header::text(graph, &plan, &name);
    Ok(Artifact {
        name,
        header,
        stats,
        steps: shared.infos,
        object,
        graph: model.clone(),
        weights: plan.weights,
    })
}

fn carried(name: &str, dtype: DType, packed: bool) -> Result<()> {
    match dtype {
        DType::Str => Err(Error::unsupported(Stage::Emit, format!("`{name}`: strings in the C ABI"))),
        _ if dtype.is_packed() && !packed => {
            Err(Error::internal(Stage::Emit, format!("`{name}`: elements of {dtype} that are not packed")))
        }
        _ => Ok(()),
    }
}

/// A C identifier made of a name: other characters become `_`, a leading digit gets one before it, and
/// what would be reserved or empty becomes `model`.
pub fn identifier(name: &str) -> String {
    let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if text.chars().all(|c| c == '_') {
        return "model".to_string();
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        text.insert(0, 'm');
    }
    text
}
