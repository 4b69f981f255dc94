//! From a scheduled graph and its kernels' machine code to an object file and its C header.
//!
//! `host` lowers what a model does outside of its kernels to a program of its own; `write` turns that into Cranelift IR.
//! `descriptor` is the constant description of the model, `object` holds the file under construction, and `shared` makes a shared
//! library of an object where no linker is needed. Nothing here knows an operator; kernels come as bytes.

pub mod apart;
mod copy;
mod data;
mod descriptor;
mod func;
mod header;
mod lines;
mod listing;
mod message;
mod object;
pub mod outline;
pub mod shared;
mod trace;
mod weights;
mod write;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use cranelift_entity::PrimaryMap;
use cranelift_module::FuncId;
use target_lexicon::{BinaryFormat, Endianness};

use crate::emit::apart::Layout;
use crate::emit::lines::Lines;
use crate::emit::write::Symbols;
use crate::host;
use crate::host::ir::FunctionKind;
use crate::host::lower::{Before, Calls, KernelUse, Lowered, Plan, symbol_text};
use onnxc_backend::codegen::kernels::{Kernels, MachineCode};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Graph};
use onnxc_machine::target::Target;
use onnxc_schedule::Program;

pub use crate::emit::apart::WeightsFile;
pub use crate::emit::lines::Listing;
pub use crate::host::StepInfo;
pub use crate::host::lower::layout::bound_symbols;
pub use crate::host::message::printable;

#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every symbol and macro; the graph's name if empty. Made a C identifier either way.
    pub name: String,
    /// Call `step_done` of the run's options after every step.
    pub profile: bool,
    /// Inform callers that trace their runs.
    pub trace: bool,
    /// See `onnxc::Options::unwind`.
    pub unwind: bool,
    /// See `onnxc::Options::listing`.
    pub listing: Option<Listing>,
    /// How the model is compiled, as far as the layout of weights that are apart depends on it: lines of a text.
    pub settings: String,
    /// A note that their file keeps, on one line.
    pub note: String,
}

impl Default for Options {
    fn default() -> Options {
        let (name, settings, note) = Default::default();
        Options { name, profile: false, trace: true, unwind: true, listing: None, settings, note }
    }
}

/// Sizes of what was made, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    pub code_bytes: u64,
    pub kernel_bytes: u64,
    pub weight_bytes: u64,
    /// Of those that are apart: the bytes of their file that runs need.
    pub apart_bytes: u64,
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
    /// The text that [`Options::listing`] names a file for.
    pub listing: Option<String>,
    pub stats: Stats,
    pub steps: Vec<StepInfo>,
    /// The weights that are apart.
    pub weights_file: Option<WeightsFile>,
    object: object::Finished,
    weights: Vec<weights::ConstantsPart>,
}

impl Artifact {
    /// Writes the object file. Deferred constants are evaluated here, one at a time, so that no more than one is
    /// in memory; `out` need not be buffered. Errors: a constant cannot be evaluated, or `out` fails.
    pub fn write_object(self, out: &mut dyn Write) -> Result<()> {
        weights::write(self.object, &self.weights, out)
    }
}

/// One program of an object: the model's own, which comes first, or another entry point.
#[derive(Clone, Copy)]
pub struct Source<'g> {
    /// What follows the model's name in the names of its functions; empty for the model's own.
    pub suffix: &'g str,
    pub graph: &'g Arc<Graph>,
    pub program: &'g Program,
    pub kernels: &'g Kernels,
}

/// Lowers a scheduled graph to its host program. Errors: element types, symbols or sizes that the C ABI does not carry
/// yet.
pub fn lower<'g>(
    graph: &'g Graph,
    program: &'g Program,
    kernels: &'g Kernels,
    options: &Options,
) -> Result<Lowered<'g>> {
    let name = symbol_prefix(graph, options);
    let lower = |layout| lower_named(graph, program, kernels, (&name, options), (None, layout));
    if !graph.has_weights_apart() {
        return lower(None);
    }
    let first = lower(Some([0; 32]))?;
    let layout = Layout::new(&options.settings, &[(graph, &first.plan)])?;
    lower(Some(layout.digest))
}

fn symbol_prefix(graph: &Graph, options: &Options) -> String {
    identifier(if options.name.is_empty() { &graph.name } else { &options.name })
}

fn lower_named<'g>(
    graph: &'g Graph,
    program: &'g Program,
    kernels: &'g Kernels,
    (name, options): (&str, &Options),
    others: (Option<Before<'_>>, Option<[u8; 32]>),
) -> Result<Lowered<'g>> {
    for (at, input) in graph.inputs.iter().enumerate() {
        carried(&input.name, graph.input_ty(at).dtype, graph.packed_inputs.contains_key(&at))?;
    }
    for (at, (name, _)) in graph.outputs.iter().enumerate() {
        carried(name, graph.output_ty(at).dtype, graph.packed_outputs.contains_key(&at))?;
    }
    let calls = Calls { profile: options.profile, trace: options.trace };
    host::lower::lower(graph, program, kernels, (name, calls), others)
}

/// The function that runs a program: `<name>_run` of the model's own, the name itself of another entry point.
fn run_symbol(name: &str, is_own: bool) -> String {
    if is_own { format!("{name}_run") } else { name.to_string() }
}

/// Lowers all programs of an object; gives the prefix of its symbols, and the layout of weights that are apart, too. `own` is the first.
fn lower_all<'g>(
    own: &Source<'g>,
    programs: &[Source<'g>],
    options: &Options,
) -> Result<(String, Vec<Lowered<'g>>, Option<Layout>)> {
    if !programs.iter().any(|source| source.graph.has_weights_apart()) {
        let (name, all) = lower_with(own, programs, options, None)?;
        return Ok((name, all, None));
    }
    // What code checks of the layout is not part of it.
    let (_, first) = lower_with(own, programs, options, Some([0; 32]))?;
    let plans: Vec<(&Graph, &Plan)> =
        programs.iter().zip(&first).map(|(source, lowered)| (&**source.graph, &lowered.plan)).collect();
    let layout = Layout::new(&options.settings, &plans)?;
    let (name, all) = lower_with(own, programs, options, Some(layout.digest))?;
    Ok((name, all, Some(layout)))
}

fn lower_with<'g>(
    own: &Source<'g>,
    programs: &[Source<'g>],
    options: &Options,
    layout: Option<[u8; 32]>,
) -> Result<(String, Vec<Lowered<'g>>)> {
    let model = symbol_prefix(own.graph, options);
    let mut all: Vec<Lowered<'g>> = vec![];
    for source in programs {
        let name = match source.suffix {
            "" => model.clone(),
            suffix => format!("{model}_{suffix}"),
        };
        let before = all.first().zip(all.last());
        let before = before.map(|(first, last)| Before { first: &first.plan, last: &last.plan });
        let others = (before, layout);
        let lowered = lower_named(source.graph, source.program, source.kernels, (&name, options), others)?;
        if let Some(first) = all.first() {
            same_state((&first.plan, own.graph), (&lowered.plan, source))?;
        }
        all.push(lowered);
    }
    Ok((model, all))
}

/// The header of the lowered programs, and what their runs need `options->allocate` for, if anything.
fn interface(programs: &[Source<'_>], all: &[Lowered<'_>]) -> (String, Option<String>) {
    let header = header::text(programs.iter().zip(all).map(|(source, lowered)| header::Described {
        graph: source.graph,
        plan: &lowered.plan,
        name: &lowered.program.name,
        is_own: source.suffix.is_empty(),
    }));
    (header, all.iter().find_map(|lowered| lowered.plan.dynamic.needs_allocator.clone()))
}

/// Makes an object of one or several scheduled graphs, which have their states in common. The first is the model's own. Errors are those of
/// [`lower`], a target without object format, and states that would lie elsewhere in each program.
pub fn emit(programs: &[Source<'_>], target: &Target, options: &Options) -> Result<Artifact> {
    let Some(own) = programs.first() else {
        return Err(Error::internal(Stage::Emit, "an object without programs"));
    };
    let (model, mut all, layout) = lower_all(own, programs, options)?;
    let weight_bytes = all.last().map_or(0, |last| last.plan.weight_bytes);
    let mut unit = object::Unit::new(&model, target, options.unwind)?;
    unit.declare_weights(weight_bytes)?;
    if programs.iter().any(|source| source.kernels.has_upgrades()) {
        unit.define_level(target, &programs.iter().flat_map(|source| source.kernels.levels()).collect())?;
    }
    let message = message::define(&mut unit)?;
    let is_traced = all.iter().any(|lowered| lowered.program.is_traced());
    let trace = is_traced.then(|| trace::define(&mut unit, message)).transpose()?;
    if options.listing.is_some() && target.triple.binary_format != BinaryFormat::Elf {
        let message = format!("line tables are for ELF objects, and those of {} are not", target.triple);
        return Err(Error::new(Stage::Emit, Kind::Usage, message));
    }
    let mut lines = options.listing.as_ref().map(|_| Lines::new(&model, &target.triple.to_string()));
    let mut known = HashMap::new();
    let (mut globals, mut described) = (vec![], vec![]);
    // The function of each program that gives its description.
    let mut models = vec![];
    for (source, lowered) in programs.iter().zip(&all) {
        let (host, plan) = (&lowered.program, &lowered.plan);
        unit.begin(&host.name);
        let placed = place_kernels(&mut unit, host, (&lowered.kernels, &mut known), target)?;
        let symbols = Symbols::new(&mut unit, host, placed, (message, trace))?;
        symbols.write(&mut unit)?;
        if let Some(lines) = &mut lines {
            listing::program(lines, &symbols, lowered);
        }
        let entry = |kind: FunctionKind| match host.function_of(kind) {
            Some(id) => Ok(symbols.functions[id]),
            None => Err(Error::internal(Stage::Emit, format!("there is no function of kind {kind:?}"))),
        };
        let is_own = source.suffix.is_empty();
        models.push(entry(FunctionKind::Model)?);
        let named = |suffix: &str| format!("{}_{suffix}", host.name);
        globals.push((named("model"), entry(FunctionKind::Model)?));
        let mut links = vec![
            (descriptor::RUN, Some(run_symbol(&host.name, is_own)), FunctionKind::Run),
            (descriptor::WORKSPACE, Some(named("workspace")), FunctionKind::Workspace),
        ];
        if plan.state.is_some() {
            // One block serves all programs.
            let public = |suffix| is_own.then(|| named(suffix));
            links.push((descriptor::STATE_BYTES, public("state_bytes"), FunctionKind::StateBytes));
            links.push((descriptor::STATE_RESET, public("state_reset"), FunctionKind::StateReset));
        }
        let mut linked = vec![];
        for (field, public, kind) in links {
            let id = entry(kind)?;
            linked.push((field, id));
            globals.extend(public.map(|public| (public, id)));
        }
        let data = descriptor::build(source.graph, plan, &host.name, (unit.order, 0));
        described.push(object::Described { id: unit.descriptor_symbol()?, data, links: linked });
    }
    for (at, next) in models.into_iter().enumerate().skip(1) {
        described[at - 1].links.push((descriptor::NEXT, next));
    }
    unit.begin(&model);
    unit.check_externals(&globals)?;
    let object = unit.finish(&described, &globals, options.listing.as_ref().zip(lines.as_ref()))?;
    let kernel_bytes = known.keys().map(|code: &&MachineCode| code.bytes.len() as u64).sum();
    let stats = Stats {
        code_bytes: object.code_bytes,
        kernel_bytes,
        weight_bytes,
        apart_bytes: all.last().and_then(|last| last.plan.apart.as_ref()).map_or(0, |apart| apart.bytes),
        stack_bytes: object.stack_bytes,
        workspace_bytes: all[0].plan.workspace.as_const(),
    };
    let (header, needs_allocator) = interface(programs, &all);
    // Profiles are of the model's own program.
    let steps = std::mem::take(&mut all[0].steps);
    let part = |(source, lowered): (&Source<'_>, &mut Lowered<'_>)| weights::ConstantsPart {
        graph: source.graph.clone(),
        weights: std::mem::take(&mut lowered.plan.weights),
    };
    let weights = programs.iter().zip(&mut all).map(part).collect();
    let order = target.byte_order()?;
    let weights_file =
        layout.map(|layout| weights_file((&model, &options.note), &layout, programs, all, order));
    let listing = lines.map(|lines| lines.text);
    Ok(Artifact {
        name: model,
        needs_allocator,
        header,
        listing,
        stats,
        steps,
        weights_file,
        object,
        weights,
    })
}

fn weights_file(
    name: (&str, &str),
    layout: &Layout,
    programs: &[Source<'_>],
    all: Vec<Lowered<'_>>,
    order: Endianness,
) -> WeightsFile {
    let plans = programs.iter().zip(all).map(|(source, lowered)| (source.graph.clone(), lowered.plan));
    WeightsFile::new(name, layout, plans.collect(), order)
}

/// Fails where a program would find its states elsewhere in the block than the first one: the block has a word for each symbol.
fn same_state((first, own): (&Plan, &Graph), (plan, source): (&Plan, &Source<'_>)) -> Result<()> {
    let place = |plan: &Plan| {
        plan.state.as_ref().map(|state| (state.tag, state.offsets.clone(), state.bytes.clone()))
    };
    if place(first) == place(plan) {
        return Ok(());
    }
    let counts = [bound_symbols(own).len(), bound_symbols(source.graph).len()];
    Err(Error::unsupported(
        Stage::Emit,
        format!(
            "the model has {} symbolic sizes and `{}` has {}, which is too unlike for a state in common: fix some (--input-dim)",
            counts[0], source.suffix, counts[1]
        ),
    ))
}

/// The contents of a program's weights, little-endian as all that is interpreted.
pub fn weight_bytes(graph: &Graph, lowered: &Lowered<'_>) -> Result<Vec<u8>> {
    let plan = &lowered.plan;
    weights::bytes(graph, &plan.weights, plan.weight_bytes, Endianness::Little)
}

/// Places the versions of every kernel that are not among the known ones; gives their functions. Where the machine code of several is
/// equal, as in the equal layers of a network, it lies in the object once, under the name of the first.
fn place_kernels<'g>(
    unit: &mut object::Unit,
    host: &host::ir::Program,
    (codes, known): (&[KernelUse<'g>], &mut HashMap<&'g MachineCode, FuncId>),
    target: &Target,
) -> Result<write::KernelFunctions> {
    let levels: Vec<String> = target.levels().map(|level| level.cpu.clone()).collect();
    let signature = write::kernel_signature(unit);
    let mut placed = PrimaryMap::new();
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
    Ok(placed)
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
