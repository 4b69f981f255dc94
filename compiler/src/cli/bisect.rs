//! `onnxc verify --bisect`: the first pass, kernel or stage after which results leave the reference.
//!
//! The reference is the evaluator of primitives on the graph as imported. It runs the graph again after every pass. The
//! kernels run one by one in the program's order, loops and choices included, and each is held against the evaluator on
//! the nodes of its group and the operands that it had: what one of them does wrong shows there and nowhere else. Where machine code
//! differs, the interpreters of the loop IR and of the vector IR show whether lowering, selection or emission
//! is to blame. What differs only in the compiled model is the work of the code around the kernels.

#[cfg(all(test, unix))]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Instant;

use crate::cli::args::VerifyArgs;
use crate::cli::data;
use crate::cli::functions::Functions;
use crate::cli::session::{Loaded, Problems, Session, native_options, one, usage};
use crate::cli::shapes::{self, Given};
use crate::native::{self, kernel::LoadedKernel};
use onnxc_backend::{Backends, Built, vector};
use onnxc_ir::borders;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, NodeId, Sym, Tensor, ValueId};
use onnxc_ir::interp;
use onnxc_loops::Kernel;
use onnxc_loops::program::{self, Kernels, Ran};
use onnxc_passes as pass;
use onnxc_passes::PassDef;
use onnxc_schedule as schedule;
use onnxc_schedule::{GroupId, Program};

use crate::{Frontend, Options, Quiet};
use onnxc_loops as loops;
use onnxc_machine::vector::ir::Func;
use onnxc_machine::vector::isa::Isa;

/// Whether no stage differs from the reference, on each set of test data, or on random inputs where there are none.
pub(super) fn run(args: &VerifyArgs) -> std::result::Result<bool, Problems> {
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
    let sets = match &args.data {
        Some(folder) => vec![folder.clone()],
        None => data::test_sets(session.folder()),
    };
    if let Some(first) = sets.first() {
        shapes::from_data(&mut session, &Given::Folder(first)).map_err(one)?;
    }
    let options = native_options(&session, &args.code).map_err(one)?;
    let imported = session.import()?.graph;
    let mut good = true;
    let runs: Vec<Option<PathBuf>> =
        if sets.is_empty() { vec![None] } else { sets.into_iter().map(Some).collect() };
    for set in runs {
        let (what, mut inputs, expected) = match &set {
            Some(set) => {
                let (inputs, expected) = data::test_set(&imported, set).map_err(one)?;
                (set.display().to_string(), inputs, Some(expected))
            }
            None => {
                (format!("random inputs of seed {}", args.random), vec![None; imported.inputs.len()], None)
            }
        };
        if set.is_none() {
            data::fill(&imported, &mut inputs, &args.sizes.sizes, &args.sizes.fill).map_err(one)?;
            data::fill_randomly(&imported, &mut inputs, &args.sizes.sizes, args.random).map_err(one)?;
        }
        let functions = session.functions();
        let (options, rtol) = (&options, args.rtol);
        let subject = Subject { imported: &imported, inputs, expected, options, functions, rtol };
        let report = subject.examine(&Parts::default()).map_err(one)?;
        say!("{what}\n{report}");
        good &= report.culprit.is_none();
    }
    Ok(good)
}

/// What is examined.
struct Subject<'s> {
    imported: &'s Graph,
    inputs: Vec<Option<Tensor>>,
    expected: Option<Vec<Tensor>>,
    options: &'s Options,
    /// Those that compute operators of the user's.
    functions: &'s Functions,
    rtol: Option<f64>,
}

type Build<'b> = &'b dyn Fn(&Backends<'_>, &Graph, &Program, GroupId) -> Result<Built>;

/// Selects a kernel's instructions.
type Select<'s> = &'s dyn Fn(&Kernel, Isa) -> std::result::Result<Func, String>;

/// The compiler's parts, in whose place tests put wrong ones.
struct Parts<'p> {
    passes: Vec<PassDef>,
    build: Build<'p>,
    select: Select<'p>,
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Parts {
            passes: pass::passes().copied().collect(),
            build: &|backends, graph, program, group| backends.build(graph, program, group),
            select: &vector::lower,
        }
    }
}

/// One line of the report.
#[derive(Debug)]
struct StageRow {
    stage: &'static str,
    name: String,
    /// The largest distance of an element by the largest magnitude of its tensor, over what the stage gives.
    error: f64,
    allowed: f64,
    /// Further facts about a difference.
    about: String,
}

#[derive(Debug, Default)]
struct Report {
    rows: Vec<StageRow>,
    /// The first row whose error is not allowed.
    culprit: Option<usize>,
}

impl Report {
    fn add(&mut self, stage: &'static str, name: &str, found: Found, about: impl FnOnce() -> String) {
        let Found { error, allowed } = found;
        let is_wrong = found.is_wrong();
        if is_wrong && self.culprit.is_none() {
            self.culprit = Some(self.rows.len());
        }
        let about = if is_wrong { about() } else { String::new() };
        self.rows.push(StageRow { stage, name: name.to_string(), error, allowed, about });
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.rows {
            let verdict = if row.error <= row.allowed { "" } else { "  WRONG" };
            writeln!(f, "  {:<8} {:<width$}  {:.3e}{verdict}", row.stage, row.name, row.error)?;
        }
        match self.culprit.map(|at| &self.rows[at]) {
            None => write!(f, "no stage differs from the reference"),
            Some(StageRow { stage, name, error, allowed, about }) => write!(
                f,
                "first difference: {stage} `{name}`, an error of {error:.3e} where {allowed:.1e} is allowed{about}"
            ),
        }
    }
}

/// How far results are from what they should be.
#[derive(Clone, Copy, Debug)]
struct Found {
    error: f64,
    allowed: f64,
}

impl Found {
    const NOTHING: Found = Found { error: 0.0, allowed: 0.0 };

    fn is_wrong(&self) -> bool {
        self.error.is_nan() || self.error > self.allowed
    }

    /// The worse of two, relative to the allowed difference.
    fn or(self, other: Found) -> Found {
        if other.is_wrong() && !self.is_wrong()
            || (other.is_wrong() == self.is_wrong() && other.error > self.error)
        {
            other
        } else {
            self
        }
    }
}

/// What rounding may do to one kernel's results of a type; a whole model's may be ten times as far off.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F16 => 4.0 * half::f16::EPSILON.to_f64(),
        DType::BF16 => 4.0 * half::bf16::EPSILON.to_f64(),
        _ if dtype.is_float() && dtype != DType::F32 => 0.25,
        // An element may be rounded the other way.
        _ if dtype.is_int() && dtype.size() == 1 => 2e-2,
        _ => 1e-4,
    }
}

/// Distance of two tensors in the maximum norm, by that of the second. Infinite where types, shapes, NaN or infinities differ.
fn distance(got: &Tensor, wanted: &Tensor) -> f64 {
    if (got.dtype, &got.shape) != (wanted.dtype, &wanted.shape) {
        return f64::INFINITY;
    }
    let numbers = |tensor: &Tensor| {
        let dtype = tensor.dtype.part().unwrap_or(tensor.dtype);
        let flat = Tensor::new(dtype, vec![tensor.data.len() / dtype.size().max(1)], tensor.data.clone());
        (dtype != DType::Str).then(|| interp::cast(&flat, DType::F64, true).values::<f64>())
    };
    let Some((got, wanted)) = numbers(got).zip(numbers(wanted)) else {
        return if got.data == wanted.data { 0.0 } else { f64::INFINITY };
    };
    let (mut most, mut scale) = (0f64, 0f64);
    for (a, b) in got.into_iter().zip(wanted) {
        if b.is_finite() {
            scale = scale.max(b.abs());
        }
        if a == b || a.is_nan() && b.is_nan() {
            continue;
        }
        most = most.max(if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY });
    }
    if most == 0.0 || scale == 0.0 { most } else { most / scale }
}

/// An ONNX node in words.
fn node_text(graph: &Graph, node: NodeId) -> String {
    let origin = &graph.origins[graph.nodes[node].origin];
    format!("{} `{}` ({})", origin.index, origin.name, origin.op_type)
}

/// The ONNX nodes that some nodes come from, each once, in order.
fn nodes_text(graph: &Graph, nodes: &[NodeId]) -> String {
    let origins: BTreeSet<_> =
        nodes.iter().map(|&node| (graph.origins[graph.nodes[node].origin].index, node)).collect();
    let mut texts: Vec<String> = origins.into_iter().map(|(_, node)| node_text(graph, node)).collect();
    texts.dedup();
    texts.join(", ")
}

impl Subject<'_> {
    fn examine(&self, parts: &Parts<'_>) -> Result<Report> {
        let mut report = Report::default();
        let (reference, named) = self.evaluate(self.imported)?;
        if let Some(expected) = &self.expected {
            let found = self.compare(&reference, expected, 10.0);
            report.add("import", "graph", found, || {
                ": the imported graph gives other results than expected".into()
            });
        }
        let mut graph = self.imported.clone();
        borders::pack_borders(&mut graph)?;
        let options = crate::pipeline::pass_options(self.options);
        for row in parts.passes.iter().filter(|row| row.min_level <= options.level) {
            pass::run_one(row, &mut graph, &options)?;
            let (results, values) = self.evaluate(&graph)?;
            let found = self.compare(&results, &reference, 10.0);
            report.add("pass", row.name, found, || self.first_value(&graph, &named, &values));
        }
        let program = schedule::schedule(&graph, crate::pipeline::schedule_options(self.options))?;
        let (results, _) = self.evaluate(&graph)?;
        self.kernels(&mut report, &graph, &program, &results, parts)?;
        if self.runs_here() {
            let shapes = native::output_shapes(&graph, &self.inputs)?;
            let frontend = Frontend { graph, program, notes: vec![], warnings: vec![], entries: vec![] };
            let compiled = crate::backend(frontend, self.options, &mut Quiet)?;
            let loaded = Loaded::with(compiled, self.functions, Instant::now())?;
            let got = loaded.model()?.run(&self.inputs, &shapes)?;
            let found = self.compare(&got, &results, 10.0);
            report.add("model", "compiled", found, || {
                ": the kernels give what they should; sizes, places in memory or control flow do not".into()
            });
        }
        Ok(report)
    }

    /// Whether what is compiled runs in this process.
    fn runs_here(&self) -> bool {
        self.options.target.triple.architecture == target_lexicon::Triple::host().architecture
    }

    /// Inputs with their defaults.
    fn filled(&self) -> Result<Vec<Tensor>> {
        let inputs = self.inputs.iter().zip(&self.imported.inputs);
        let filled = inputs.map(|(tensor, input)| {
            let tensor = tensor.clone().or_else(|| input.default.clone());
            tensor.ok_or_else(|| usage(format!("input `{}` is missing", input.name)))
        });
        filled.collect()
    }

    /// Outputs by the evaluator, and the values that have a name.
    fn evaluate(&self, graph: &Graph) -> Result<(Vec<Tensor>, HashMap<ValueId, Tensor>)> {
        let mut named = HashMap::new();
        let results = interp::run_with(graph, &self.filled()?, &mut |node, results| {
            for (&value, tensor) in graph.nodes[node].outputs.iter().zip(results) {
                if !graph.values[value].name.is_empty() {
                    named.insert(value, tensor.clone());
                }
            }
        })?;
        Ok((results, named))
    }

    /// The worst of some results; `scale` multiplies the rounding error allowed for one kernel.
    fn compare(&self, got: &[Tensor], wanted: &[Tensor], scale: f64) -> Found {
        let each = got.iter().zip(wanted).map(|(got, wanted)| {
            let allowed = self.rtol.unwrap_or(scale * rounding(wanted.dtype));
            Found { error: distance(got, wanted), allowed }
        });
        each.fold(Found::NOTHING, Found::or)
    }

    /// The first value, in the order of a rewritten graph, that differs from the one of its name in the imported graph.
    fn first_value(
        &self,
        graph: &Graph,
        reference: &HashMap<ValueId, Tensor>,
        values: &HashMap<ValueId, Tensor>,
    ) -> String {
        let by_name: HashMap<&str, &Tensor> = reference
            .iter()
            .map(|(&value, tensor)| (self.imported.values[value].name.as_str(), tensor))
            .collect();
        for &node in &graph.order {
            for value in &graph.nodes[node].outputs {
                let name = graph.values[*value].name.as_str();
                let Some((got, wanted)) = values.get(value).zip(by_name.get(name)) else { continue };
                // A value may have been given another layout.
                if got.shape == wanted.shape
                    && self.compare(std::slice::from_ref(got), std::slice::from_ref(wanted), 10.0).is_wrong()
                {
                    return format!("; first at `{name}` of node {}", node_text(graph, node));
                }
            }
        }
        String::new()
    }

    /// A row for every kernel, and one for what they give together.
    fn kernels(
        &self,
        report: &mut Report,
        graph: &Graph,
        program: &Program,
        wanted: &[Tensor],
        parts: &Parts<'_>,
    ) -> Result<()> {
        let backends = Backends::new(&self.options.target)?;
        let native = self.runs_here();
        let kernels = Kernels::new(graph, program, &|graph, program, group| {
            let built = (parts.build)(&backends, graph, program, group)?;
            let loaded = LoadedKernel::new(&built.code.bytes, built.kernel.buffers.len())?;
            Ok((built, loaded))
        })?;
        let symbols = symbol_count(graph) as u32;
        let execute = |(built, loaded): &(Built, LoadedKernel), buffers: &mut [Vec<u8>], value: Value<'_>| {
            if !native {
                return loops::interp::run(&built.kernel, buffers, value);
            }
            let (dims, range) = arguments(&built.kernel, symbols, value);
            Ok(loaded.call(buffers, &dims, range) as u32)
        };
        // A kernel of a loop's body runs in every turn; its worst counts.
        let rows: RefCell<Vec<(String, Found, String)>> = RefCell::default();
        let mut observe = |ran: Ran<'_, (Built, LoadedKernel)>| {
            let group = &ran.program.groups[ran.group];
            let mut values: HashMap<ValueId, Tensor> =
                group.inputs.iter().copied().zip(ran.inputs.iter().cloned()).collect();
            interp::run_nodes(ran.graph, &group.nodes, &mut values, ran.symbols)?;
            let wanted: Vec<Tensor> = group.outputs.iter().map(|output| values[output].clone()).collect();
            let found = self.compare(ran.outputs, &wanted, 1.0);
            let about = match found.is_wrong() {
                true => self.blame(&ran, &wanted, symbols, parts.select),
                false => String::new(),
            };
            let name = format!("{} ({:?})", ran.kernel.0.kernel.name, group.kind);
            let mut rows = rows.borrow_mut();
            match rows.iter_mut().find(|row| row.0 == name) {
                Some(row) if found.is_wrong() && !row.1.is_wrong() => *row = (name, found, about),
                Some(row) => row.1 = row.1.or(found),
                None => rows.push((name, found, about)),
            }
            Ok(())
        };
        let stored = self.filled()?.into_iter().enumerate().map(|(at, tensor)| {
            if graph.packed_inputs.contains_key(&at) { borders::stored(&tensor) } else { tensor }
        });
        let inputs: Vec<Tensor> = stored.collect();
        let results = program::run_with(graph, program, &kernels, &inputs, &execute, &mut observe)?;
        for (name, found, about) in rows.into_inner() {
            report.add("kernel", &name, found, || about);
        }
        let plain = (0..wanted.len()).filter(|at| !graph.packed_outputs.contains_key(at));
        let found = plain
            .map(|at| self.compare(&results[at..=at], &wanted[at..=at], 10.0))
            .fold(Found::NOTHING, Found::or);
        report.add("program", "schedule", found, || {
            ": each kernel gives what it should, all of them do not".into()
        });
        Ok(())
    }

    /// Which level a kernel's difference comes from, and what it computes.
    fn blame(
        &self,
        ran: &Ran<'_, (Built, LoadedKernel)>,
        wanted: &[Tensor],
        symbols: u32,
        select: Select<'_>,
    ) -> String {
        let (built, group) = (&ran.kernel.0, &ran.program.groups[ran.group]);
        let value = |sym: Sym| ran.symbols[sym];
        // What is wrong with what an interpreter makes of the kernel.
        let wrong = |run: &dyn Fn(&mut [Vec<u8>]) -> Result<u32>| {
            let mut buffers: Vec<Vec<u8>> = ran.inputs.iter().map(|tensor| tensor.data.to_vec()).collect();
            buffers.extend(ran.outputs.iter().map(|tensor| vec![0xa5; tensor.data.len()]));
            for bytes in group.scratch_buffers(ran.graph) {
                buffers.push(vec![0xa5; bytes.eval(&value).unwrap_or(0) as usize]);
            }
            if let Err(error) = run(&mut buffers) {
                return Some(format!(": {}", error.message));
            }
            let results = ran.outputs.iter().zip(&buffers[group.inputs.len()..]);
            let results: Vec<Tensor> = results
                .map(|(tensor, bytes)| Tensor::new(tensor.dtype, tensor.shape.clone(), bytes.clone().into()))
                .collect();
            self.compare(&results, wanted, 1.0).is_wrong().then(String::new)
        };
        let level = || {
            if let Some(text) = wrong(&|buffers| loops::interp::run(&built.kernel, buffers, &value)) {
                return format!("its loop nest is wrong (lowering){text}");
            }
            let isa = self.options.target.wide.filter(|_| built.refusal.is_none());
            let Some(func) = isa.and_then(|isa| select(&built.kernel, isa).ok()) else {
                return "its loop nest is right, its machine code is not (Cranelift)".to_string();
            };
            let (dims, range) = arguments(&built.kernel, symbols, &value);
            let run = |buffers: &mut [Vec<u8>]| {
                onnxc_machine::vector::interp::run(&func, buffers, &dims, range).map(|code| code as u32)
            };
            match wrong(&run) {
                Some(text) => format!("its loop nest is right, its vector IR is not (selection){text}"),
                None => "its vector IR is right, its machine code is not (emission)".to_string(),
            }
        };
        format!(": {}; it computes {}", level(), nodes_text(ran.graph, &group.nodes))
    }
}

/// Values of all symbols, and the whole of the parallel range: what a kernel is called with.
fn arguments(kernel: &Kernel, symbols: u32, value: Value<'_>) -> (Vec<i64>, (i64, i64)) {
    let bound = |dim: &Dim| dim.eval(&|sym| value(sym)).unwrap_or(0);
    let range = kernel.parallel_range().map_or((0, 0), |(lo, hi)| (bound(lo), bound(hi)));
    ((0..symbols).map(|at| value(Sym::from_u32(at)).unwrap_or(0)).collect(), range)
}

/// Values of symbols.
type Value<'v> = &'v dyn Fn(Sym) -> Option<i64>;

/// Symbols of a graph and of the bodies in it.
fn symbol_count(graph: &Graph) -> usize {
    let bodies = graph.nodes.values().flat_map(|node| node.op.bodies());
    bodies.map(symbol_count).fold(graph.symbols.len(), usize::max)
}
