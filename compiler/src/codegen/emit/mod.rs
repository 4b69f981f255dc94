//! From a scheduled graph and its kernels' machine code to an object file and its C header.
//!
//! `host` lowers what a model does outside of its kernels to a program of its own; `write` turns that into Cranelift IR.
//! `descriptor` is the constant description of the model, `object` holds the file under construction, and `shared` makes a shared
//! library of an object where no linker is needed. Nothing here knows an operator; kernels come as bytes.

mod copy;
mod data;
mod descriptor;
mod func;
mod header;
mod message;
mod object;
pub mod shared;
mod weights;
mod write;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use cranelift_entity::PrimaryMap;
use cranelift_module::FuncId;
use target_lexicon::Endianness;

use crate::codegen::emit::write::Symbols;
use crate::codegen::kernels::{Kernels, MachineCode};
use crate::error::{Error, Result, Stage};
use crate::graph::{DType, Graph};
use crate::host;
use crate::host::ir::FunctionKind;
use crate::host::lower::layout::Weight;
use crate::host::lower::{KernelUse, Lowered, Plan, symbol_text};
use crate::schedule::Program;
use crate::target::Target;

pub use crate::host::StepInfo;
pub(crate) use crate::host::lower::layout::bound_symbols;
pub(crate) use crate::host::message::printable;

#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every symbol and macro; the graph's name if empty. Made a C identifier either way.
    pub name: String,
    /// Call `step_done` of the run's options after every step.
    pub profile: bool,
    /// See [`crate::Options::unwind`].
    pub unwind: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { name: String::new(), profile: false, unwind: true }
    }
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
    /// What a run needs `options->allocate` for, if anything.
    pub needs_allocator: Option<String>,
    pub header: String,
    pub stats: Stats,
    pub steps: Vec<StepInfo>,
    object: object::Finished,
    graph: Arc<Graph>,
    weights: Vec<Weight>,
}

impl Artifact {
    /// Writes the object file. Deferred constants are evaluated here, one at a time, so that no more than one is
    /// in memory; `out` need not be buffered. Errors: a constant cannot be evaluated, or `out` fails.
    pub fn write_object(self, out: &mut dyn Write) -> Result<()> {
        weights::write(self.object, &self.graph, &self.weights, out)
    }
}

/// Lowers a scheduled graph to its host program. Errors: element types, symbols or sizes that the C ABI does not carry
/// yet.
pub(crate) fn lower<'g>(
    graph: &'g Graph,
    program: &'g Program,
    kernels: &'g Kernels,
    options: &Options,
) -> Result<Lowered<'g>> {
    for (at, input) in graph.inputs.iter().enumerate() {
        carried(&input.name, graph.input_ty(at).dtype, graph.packed_inputs.contains_key(&at))?;
    }
    for (at, (name, _)) in graph.outputs.iter().enumerate() {
        carried(name, graph.output_ty(at).dtype, graph.packed_outputs.contains_key(&at))?;
    }
    let name = identifier(if options.name.is_empty() { &graph.name } else { &options.name });
    host::lower::lower(graph, program, kernels, &name, options.profile)
}

/// Makes the object of a scheduled graph. Errors are those of [`lower`], and a target without object format.
pub fn emit(
    model: &Arc<Graph>,
    program: &Program,
    kernels: &Kernels,
    target: &Target,
    options: &Options,
) -> Result<Artifact> {
    let Lowered { program: host, plan, kernels: codes, steps } = lower(model, program, kernels, options)?;
    let mut unit = object::Unit::new(&host.name, target, options.unwind)?;
    unit.declare_weights(plan.weight_bytes)?;
    if kernels.has_upgrades() {
        unit.define_level(target, &kernels.levels())?;
    }
    let message = message::define(&mut unit)?;
    let (placed, kernel_bytes) = place_kernels(&mut unit, &host, &codes, target)?;
    let symbols = Symbols::new(&mut unit, &host, placed, message)?;
    symbols.write(&mut unit)?;
    let entry = |kind: FunctionKind| match host.function_of(kind) {
        Some(id) => Ok(symbols.functions[id]),
        None => Err(Error::internal(Stage::Emit, format!("there is no function of kind {kind:?}"))),
    };
    let mut globals = vec![("model", entry(FunctionKind::Model)?)];
    let mut links = vec![
        (descriptor::RUN, "run", FunctionKind::Run),
        (descriptor::WORKSPACE, "workspace", FunctionKind::Workspace),
    ];
    if plan.state.is_some() {
        links.push((descriptor::STATE_BYTES, "state_bytes", FunctionKind::StateBytes));
        links.push((descriptor::STATE_RESET, "state_reset", FunctionKind::StateReset));
    }
    let mut linked = vec![];
    for (field, public, kind) in links {
        linked.push((field, entry(kind)?));
        globals.push((public, entry(kind)?));
    }
    let descriptor = descriptor::build(model, &plan, &host.name, unit.order);
    let globals: Vec<_> =
        globals.into_iter().map(|(public, id)| (format!("{}_{public}", host.name), id)).collect();
    let object = unit.finish(&descriptor, &linked, &globals)?;
    let stats = Stats {
        code_bytes: object.code_bytes,
        kernel_bytes,
        weight_bytes: plan.weight_bytes,
        stack_bytes: object.stack_bytes,
        workspace_bytes: plan.workspace.as_const(),
    };
    let header = header::text(model, &plan, &host.name);
    Ok(Artifact {
        name: host.name,
        needs_allocator: plan.dynamic.needs_allocator,
        header,
        stats,
        steps,
        object,
        graph: model.clone(),
        weights: plan.weights,
    })
}

/// The contents of a program's weights, little-endian as all that is interpreted.
pub(crate) fn weight_bytes(graph: &Graph, plan: &Plan) -> Result<Vec<u8>> {
    weights::bytes(graph, &plan.weights, plan.weight_bytes, Endianness::Little)
}

/// Places the versions of every kernel; gives their functions, and the bytes of all. Where the machine code of several is equal, as
/// in the equal layers of a network, it lies in the object once, under the name of the first.
fn place_kernels(
    unit: &mut object::Unit,
    host: &host::ir::Program,
    codes: &[KernelUse<'_>],
    target: &Target,
) -> Result<(write::KernelFunctions, u64)> {
    let levels: Vec<String> = target.levels().map(|level| level.cpu.clone()).collect();
    let signature = write::kernel_signature(unit);
    let mut placed = PrimaryMap::new();
    let mut known: HashMap<&MachineCode, FuncId> = HashMap::new();
    for (kernel, used) in host.kernels.values().zip(codes) {
        let mut functions = Vec::with_capacity(used.code.versions.len());
        for version in &used.code.versions {
            let sizes = 8 * i64::from(version.first_symbol);
            if let Some(&id) = known.get(&version.code) {
                functions.push((id, sizes));
                continue;
            }
            let level = match levels.get(version.level) {
                _ if version.level == 0 => String::new(),
                Some(level) => format!(".{}", symbol_text(level)),
                None => {
                    let message = format!("kernel `{}` has an unknown level", used.code.name);
                    return Err(Error::internal(Stage::Emit, message));
                }
            };
            let id = unit.declare(&format!("{}{level}", kernel.name), &signature)?;
            unit.place(id, &version.code)?;
            known.insert(&version.code, id);
            functions.push((id, sizes));
        }
        placed.push(functions);
    }
    let bytes = known.keys().map(|code| code.bytes.len() as u64).sum();
    Ok((placed, bytes))
}

fn carried(name: &str, dtype: DType, packed: bool) -> Result<()> {
    match dtype {
        _ if (dtype.is_packed() || dtype == DType::Str) && !packed => Err(Error::internal(
            Stage::Emit,
            format!("`{name}`: elements of {dtype} as they are inside a graph"),
        )),
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
