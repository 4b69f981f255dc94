//! `onnxc inspect`: what a model is and what it will cost.

use crate::cli::args::InspectArgs;
use crate::cli::check::to_json;
use crate::cli::report::facts::{self, Level};
use crate::cli::session::{Problems, Progress, Session, one};
use crate::cli::weights;
use crate::{EntryFrontend, Frontend, Options};
use onnxc_import as import;
use onnxc_import::state;
use onnxc_ir::graph::external::{self, Function, Role};
use onnxc_ir::graph::{AnyRank, Constant, DType, Def, Dim, Graph, NodeId, Op, State, TensorType, ValueId};
use onnxc_ir::winograd::KERNEL;
use onnxc_object::host::lower::state::StateLayout;
use onnxc_proto::{AttributeProto, GraphProto, ModelProto};
use onnxc_schedule as schedule;
use onnxc_schedule::{Program, Step};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Serialize)]
struct Report {
    inputs: Vec<ValueReport>,
    outputs: Vec<ValueReport>,
    /// Tensors that stay in the caller's memory.
    states: Vec<StateReport>,
    /// Bytes of the block of all states.
    state_bytes: Option<String>,
    /// Pairs of inputs and outputs that may be state by their names, where none are: arguments of `--state`.
    possible_states: Vec<String>,
    parameters: u64,
    parameter_bytes: u64,
    /// Nodes per operator, those of functions and bodies once each.
    operators: BTreeMap<String, usize>,
    /// Of one run, as an expression over the dims: two per multiply-add of a contraction, one per element of a
    /// reduction's operand and of a float map's result.
    flops: String,
    arena_bytes: String,
    /// The least any order-keeping plan could need.
    arena_bound_bytes: String,
    /// Arena by bound, where both are numbers.
    arena_ratio: Option<f64>,
    kernels: usize,
    /// Functions of the program's own that the object calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<FunctionReport>,
    /// Kernels that read constants only, each with the bytes that keep its result out of the object.
    constant_kernels: Vec<String>,
    /// Processors that there is code for, from the least up; an object chooses among them when it runs.
    levels: Vec<String>,
    /// Their code, where it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    versions: Option<VersionsReport>,
    /// Convolutions by minimal filtering, if there are any; `-Os` does without.
    #[serde(skip_serializing_if = "Option::is_none")]
    winograd: Option<WinogradReport>,
    /// What trains the model, with --training.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<EntryReport>,
    /// How ranks are arranged, and what each holds and sends, with --configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<String>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

/// A function that programs which link the object must have.
#[derive(Serialize)]
struct FunctionReport {
    name: String,
    /// Its declaration in C.
    signature: String,
    /// The nodes that it computes, or determines the sizes of.
    nodes: Vec<String>,
}

fn functions(frontend: &Frontend) -> Vec<FunctionReport> {
    let graphs = [&frontend.graph].into_iter().chain(frontend.entries.iter().map(|entry| &entry.graph));
    let report = |(name, function): (Arc<str>, Function)| FunctionReport {
        signature: match function.role {
            _ if function.late => format!("options->function(options->function_context, \"{name}\", op)"),
            Role::Compute => format!("int32_t {name}(const onnxc_op *op);"),
            Role::Shapes => format!("int32_t {name}(onnxc_op *op);"),
        },
        name: name.to_string(),
        nodes: function.nodes,
    };
    external::functions(graphs).into_iter().map(report).collect()
}

/// A program beside the one that infers.
#[derive(Serialize)]
struct EntryReport {
    name: String,
    inputs: Vec<ValueReport>,
    outputs: Vec<ValueReport>,
    /// The states that it replaces.
    changes: Vec<String>,
    flops: String,
    arena_bytes: String,
    kernels: usize,
}

impl EntryReport {
    fn new(entry: &EntryFrontend) -> EntryReport {
        let graph = &entry.graph;
        let states = &graph.inputs[graph.given_inputs()..];
        let changed = states.iter().enumerate().filter(|&(at, _)| !graph.is_kept(at));
        let (inputs, outputs) = ports(graph);
        EntryReport {
            name: entry.suffix.clone(),
            inputs,
            outputs,
            changes: changed.map(|(_, input)| input.name.clone()).collect(),
            flops: graph.dim_text(&flops(graph)),
            arena_bytes: graph.dim_text(&entry.program.arena),
            kernels: entry.program.stats().groups(),
        }
    }
}

/// Inputs and outputs that callers give tensors for.
fn ports(graph: &Graph) -> (Vec<ValueReport>, Vec<ValueReport>) {
    let value = |name: &str, ty: &TensorType, has_default, any_rank: Option<&AnyRank>| ValueReport {
        name: name.to_string(),
        dtype: ty.dtype.name(),
        dims: ty.shape.iter().map(|dim| graph.dim_text(dim)).collect(),
        has_default,
        least_rank: any_rank.map(|own| own.least),
        rank_text: any_rank.map_or(String::new(), |own| format!("; {}", own.text(ty.rank()))),
    };
    let inputs = graph.inputs.iter().enumerate().take(graph.given_inputs());
    let outputs = graph.outputs.iter().enumerate().take(graph.given_outputs());
    (
        inputs.map(|(at, own)| value(&own.name, graph.input_ty(at), own.default.is_some(), None)).collect(),
        outputs
            .map(|(at, (name, _))| value(name, graph.output_ty(at), false, graph.any_rank.get(&at)))
            .collect(),
    )
}

#[derive(Serialize)]
struct VersionsReport {
    /// Of the kernels and of what calls them; equal code lies in the object once.
    code_bytes: u64,
    levels: Vec<Level>,
    kernels: Vec<KernelReport>,
}

#[derive(Serialize)]
struct KernelReport {
    name: String,
    /// Level and bytes of each version.
    versions: Vec<(String, usize)>,
}

#[derive(Serialize)]
struct WinogradReport {
    convolutions: usize,
    /// Of these, every run transforms the weights.
    of_runs: usize,
    /// Transformed weights in the object, and what they were before.
    weight_bytes: i64,
    plain_bytes: i64,
}

#[derive(Serialize)]
struct ValueReport {
    name: String,
    dtype: &'static str,
    /// A number, or the name or formula of a symbolic dim.
    dims: Vec<String>,
    has_default: bool,
    /// Of an output whose rank the run decides, the least; the highest has all of the dims.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_rank: Option<usize>,
    #[serde(skip)]
    rank_text: String,
}

#[derive(Serialize)]
struct StateReport {
    input: String,
    output: String,
    dtype: &'static str,
    /// With the room for what is appended.
    dims: Vec<String>,
    /// Of one that grows: the axis, and its size before and after a run; of one in panels the axis, and the elements to a panel.
    axis: Option<usize>,
    size: Option<String>,
    next: Option<String>,
    panel: Option<usize>,
    /// Runs only read it.
    kept: bool,
}

fn states(graph: &Graph) -> Vec<StateReport> {
    let inputs = &graph.inputs[graph.given_inputs()..];
    let outputs = &graph.outputs[graph.given_outputs()..];
    let report = |(at, state): (usize, &State)| {
        let growth = state.growth.as_ref();
        StateReport {
            input: inputs[at].name.clone(),
            output: outputs[at].0.clone(),
            dtype: state.ty.dtype.name(),
            dims: state.ty.shape.iter().map(|dim| graph.dim_text(dim)).collect(),
            axis: state.axis(),
            size: growth.map(|growth| graph.symbols[growth.size].name.clone()),
            next: growth.map(|growth| graph.dim_text(&growth.next)),
            panel: state.panels.as_ref().map(|panels| panels.width),
            kept: graph.is_kept(at),
        }
    };
    graph.states.iter().enumerate().map(report).collect()
}

/// The versions of all kernels, those of bodies included.
fn versions(session: &Session, options: &Options) -> Result<VersionsReport, Problems> {
    let compiled = session.compile(options, &mut Progress::new(false, false, vec![]))?;
    let names: Vec<&str> = options.target.levels().map(|level| level.cpu.as_str()).collect();
    let mut report = VersionsReport {
        code_bytes: compiled.artifact().map_err(one)?.stats.code_bytes,
        levels: facts::levels(&compiled.kernels, &options.target),
        kernels: vec![],
    };
    let mut open = vec![&compiled.kernels];
    while let Some(kernels) = open.pop() {
        for kernel in kernels.groups.values() {
            let level = |at: usize| names.get(at).copied().unwrap_or_default().to_string();
            let versions = kernel.versions.iter();
            let versions = versions.map(|own| (level(own.level), own.code.bytes.len())).collect();
            report.kernels.push(KernelReport { name: kernel.name.clone(), versions });
        }
        open.extend(kernels.bodies.values().flatten());
    }
    Ok(report)
}

pub(super) fn run(args: &InspectArgs) -> Result<(), Problems> {
    if weights::is_file(&args.model.model) {
        say!("{}", weights::describe(&args.model.model).map_err(one)?.trim_end());
        return Ok(());
    }
    let session = Session::open(&args.model).map_err(one)?;
    let mut options = session.options(&args.code, "model").map_err(one)?;
    options.import.configuration.clone_from(&args.ranks.configuration);
    options.rank = args.ranks.configuration.as_ref().map(|_| args.ranks.rank.unwrap_or(0));
    let ranks = session.ranks(&options)?;
    let proto = session.decode().map_err(one)?;
    let frontend = session.frontend(&options, &mut Progress::new(false, false, vec![]))?;
    let (graph, program) = (&frontend.graph, &frontend.program);
    let (parameters, parameter_bytes) = parameters(&proto);
    let (inputs, outputs) = ports(graph);
    let (arena, bound) = (&program.arena, &program.bound);
    let ratio = match (arena.as_const(), bound.as_const()) {
        (Some(arena), Some(bound)) if bound > 0 => Some(arena as f64 / bound as f64),
        _ => None,
    };
    let report = Report {
        inputs,
        outputs,
        states: states(graph),
        state_bytes: StateLayout::new(graph).map(|layout| graph.dim_text(&layout.bytes)),
        possible_states: match graph.states.is_empty() {
            true => state::pairs_of(graph).iter().map(ToString::to_string).collect(),
            false => vec![],
        },
        parameters,
        parameter_bytes,
        operators: operators(&proto),
        flops: graph.dim_text(&flops(graph)),
        arena_bytes: graph.dim_text(arena),
        arena_bound_bytes: graph.dim_text(bound),
        arena_ratio: ratio,
        kernels: program.stats().groups(),
        functions: functions(&frontend),
        constant_kernels: constant_kernels(graph, program),
        versions: args.versions.then(|| versions(&session, &options)).transpose()?,
        levels: options.target.levels().map(|level| level.cpu.clone()).collect(),
        winograd: winograd(graph),
        entries: frontend.entries.iter().map(EntryReport::new).collect(),
        ranks,
        warnings: import::summary(&frontend.warnings),
        notes: frontend.notes,
    };
    if args.json {
        say!("{}", to_json(&report))
    } else {
        print(&report)
    }
    Ok(())
}

fn print_ports(prefix: &str, inputs: &[ValueReport], outputs: &[ValueReport]) {
    for (what, values) in [("input", inputs), ("output", outputs)] {
        for value in values {
            let default = if value.has_default { " (has a default)" } else { "" };
            let ValueReport { name, dtype, dims, rank_text, .. } = value;
            say!("{prefix}{what} {name}: {dtype}[{}]{default}{rank_text}", dims.join(", "));
        }
    }
}

fn print(report: &Report) {
    report.ranks.iter().for_each(|line| say!("{line}"));
    print_ports("", &report.inputs, &report.outputs);
    for state in &report.states {
        let how = match (&state.axis, &state.size, &state.next) {
            (Some(axis), Some(size), Some(next)) => format!("grows along axis {axis} from {size} to {next}"),
            _ if state.kept => "is only read".to_string(),
            _ => "is replaced".to_string(),
        };
        let panels = state.panel.map_or(String::new(), |panel| format!(", in panels of {panel}"));
        let output = match state.output == state.input {
            true => String::new(),
            false => format!(" = {}", state.output),
        };
        say!("state {}{output}: {}[{}], {how}{panels}", state.input, state.dtype, state.dims.join(", "));
    }
    if let Some(bytes) = &report.state_bytes {
        say!("state block: {bytes} bytes");
    }
    if !report.possible_states.is_empty() {
        say!("possible state (--state auto): {}", report.possible_states.join(", "));
    }
    say!("parameters: {} ({} bytes)", report.parameters, report.parameter_bytes);
    say!("FLOPs: {}", report.flops);
    let ratio = report.arena_ratio.map_or(String::new(), |ratio| format!(" (ratio {ratio:.3})"));
    say!("arena: {} bytes, liveness bound {}{ratio}", report.arena_bytes, report.arena_bound_bytes);
    say!("kernels: {}, for {}", report.kernels, report.levels.join(", "));
    if let Some(VersionsReport { code_bytes, levels, kernels }) = &report.versions {
        say!("code: {code_bytes} bytes");
        for facts::Level { cpu, kernels, bytes } in levels {
            say!("  {kernels:>5} kernels for {cpu}: {bytes} bytes");
        }
        say!("versions, with their bytes:");
        for KernelReport { name, versions } in kernels {
            let texts: Vec<String> =
                versions.iter().map(|(level, bytes)| format!("{level} {bytes}")).collect();
            say!("  {name}: {}", texts.join(", "));
        }
    }
    if let Some(WinogradReport { convolutions, of_runs, weight_bytes, plain_bytes }) = report.winograd {
        say!(
            "Winograd: {convolutions} convolutions by minimal filtering; the object has {weight_bytes} bytes of transformed weights in \
             place of {plain_bytes}, and a run transforms those of {of_runs} convolutions; -Os does without"
        );
    }
    for FunctionReport { signature, nodes, .. } in &report.functions {
        say!("calls {signature} for {}", nodes.join(", "));
    }
    report.constant_kernels.iter().for_each(|kernel| say!("reads constants only: {kernel}"));
    say!("operators:");
    for (operator, count) in &report.operators {
        say!("  {count:>5} {operator}");
    }
    for entry in &report.entries {
        let EntryReport { name, inputs, outputs, changes, flops, arena_bytes, kernels } = entry;
        say!("{name}:");
        print_ports("  ", inputs, outputs);
        say!("  changes: {}", if changes.is_empty() { "nothing".to_string() } else { changes.join(", ") });
        say!("  FLOPs: {flops}");
        say!("  arena: {arena_bytes} bytes; kernels: {kernels}");
    }
    report.warnings.iter().for_each(|warning| say!("warning: {warning}"));
    report.notes.iter().for_each(|note| say!("note: {note}"));
}

/// Convolutions whose results come from a Winograd transform, and their weights.
fn winograd(graph: &Graph) -> Option<WinogradReport> {
    let mut report = WinogradReport { convolutions: 0, of_runs: 0, weight_bytes: 0, plain_bytes: 0 };
    let mut open = vec![graph];
    while let Some(graph) = open.pop() {
        let producer = |value: ValueId| graph.producer(value).map(|node: NodeId| &graph.nodes[node]);
        for &id in &graph.order {
            let node = &graph.nodes[id];
            open.extend(node.op.bodies());
            let Op::WinogradOutput { tile, .. } = node.op else { continue };
            let mut products = producer(node.inputs[0]);
            while let Some(node) = products.filter(|node| !matches!(node.op, Op::Contract { .. })) {
                products = node.inputs.first().and_then(|&input| producer(input));
            }
            let weights = products.map(|node| node.inputs[1]);
            let Some((value, weights)) =
                weights.and_then(|value| Some((value, graph.ty(value).bytes().as_const()?)))
            else {
                continue;
            };
            report.convolutions += 1;
            if graph.producer(value).is_some() {
                report.of_runs += 1;
                continue;
            }
            // Those of bytes have 16 bits.
            let of_byte = if graph.ty(value).dtype == DType::I16 { 2 } else { 1 };
            let elements = of_byte * (tile + KERNEL - 1).pow(2) as i64;
            let plain = weights / elements * (KERNEL * KERNEL) as i64;
            report.weight_bytes += weights;
            report.plain_bytes += plain.min(made_of(graph, value).unwrap_or(plain));
        }
    }
    (report.convolutions > 0).then_some(report)
}

/// Bytes of the largest constant of the model that one which is computed when the object is written is made of: weights of 16
/// bits become f32 before they are transformed.
fn made_of(graph: &Graph, value: ValueId) -> Option<i64> {
    match &graph.values[value].def {
        Def::Const(Constant::Deferred { inputs, .. }) => {
            inputs.iter().filter_map(|&input| made_of(graph, input)).max()
        }
        Def::Const(Constant::Data(_) | Constant::Apart(_)) => graph.ty(value).bytes().as_const(),
        _ => None,
    }
}

/// See [`Report::constant_kernels`].
fn constant_kernels(graph: &Graph, program: &Program) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![(graph, program)];
    while let Some((graph, program)) = open.pop() {
        for id in program.constant_groups(graph) {
            let group = &program.groups[id];
            let bytes = |values: &[ValueId]| {
                let sum = values.iter().fold(Dim::ZERO, |sum, &value| sum + graph.ty(value).bytes());
                graph.dim_text(&sum)
            };
            let (read, written) = (bytes(&group.inputs), bytes(&group.outputs));
            let node = graph.node_ref(group.anchor);
            found.push(format!("{} ({}): computes {written} bytes from {read}", node.name, node.op_type));
        }
        for step in &program.steps {
            if let Step::Control { node, bodies, .. } = step {
                open.extend(graph.nodes[*node].op.bodies().iter().zip(bodies));
            }
        }
    }
    found
}

/// Elements and bytes of all initializers, those of bodies included.
fn parameters(model: &ModelProto) -> (u64, u64) {
    let (mut elements, mut bytes) = (0u64, 0u64);
    each_graph(model, &mut |graph| {
        for tensor in &graph.initializer {
            let sizes = tensor.dims.iter().map(|&size| u64::try_from(size).unwrap_or(0));
            let count = sizes.fold(1u64, u64::saturating_mul);
            let bits = DType::from_onnx(tensor.data_type()).map_or(0, |dtype| u64::from(dtype.bits()));
            elements = elements.saturating_add(count);
            bytes = bytes.saturating_add(count.saturating_mul(bits).div_ceil(8));
        }
    });
    (elements, bytes)
}

fn operators(model: &ModelProto) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |domain: &str, name: &str| {
        let key = if domain.is_empty() { name.to_string() } else { format!("{domain}.{name}") };
        *counts.entry(key).or_insert(0) += 1;
    };
    each_graph(model, &mut |graph| {
        graph.node.iter().for_each(|node| count(node.domain(), node.op_type()));
    });
    for function in &model.functions {
        function.node.iter().for_each(|node| count(node.domain(), node.op_type()));
    }
    counts
}

/// Visits the main graph and the bodies in it.
fn each_graph<'m>(model: &'m ModelProto, visit: &mut dyn FnMut(&'m GraphProto)) {
    let mut open: Vec<&GraphProto> = model.graph.iter().collect();
    while let Some(graph) = open.pop() {
        visit(graph);
        let attributes = graph.node.iter().flat_map(|node| &node.attribute);
        open.extend(
            attributes.flat_map(|AttributeProto { g, graphs, .. }| g.as_deref().into_iter().chain(graphs)),
        );
    }
}

/// Floating-point operations of one run; see [`Report::flops`].
fn flops(graph: &Graph) -> Dim {
    let mut total = Dim::ZERO;
    let mut open = vec![(graph, Dim::ONE)];
    while let Some((graph, times)) = open.pop() {
        for &id in &graph.order {
            let op = &graph.nodes[id].op;
            // Both bodies of a choice; a condition may end a loop before.
            if op.is_control() {
                let turns = match op {
                    Op::Scan { trip, .. } => times.clone() * trip.clone(),
                    _ => times.clone(),
                };
                open.extend(op.bodies().iter().map(|body| (body, turns.clone())));
                continue;
            }
            total = total + schedule::flops(graph, id) * times.clone();
        }
    }
    total
}
