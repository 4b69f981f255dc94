//! File tests: text in, text out. See `filetests/README.md` for the format.
//!
//! `UPDATE_EXPECT=1 cargo test -p onnxc-tests --test suite filetests::` writes what the compiler gives into the files.

mod host_programs;
mod models;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onnxc_backend::vector;
use onnxc_ir::error::Kind;
use onnxc_ir::graph::arrangement::{Arrangement, CutAxis, Sharding};
use onnxc_ir::graph::dim::Sym;
use onnxc_ir::graph::parse::parse;
use onnxc_ir::graph::print::to_text;
use onnxc_ir::graph::{DType, Dim, Graph, Tensor, TensorType, ValueId};
use onnxc_ir::interp;
use onnxc_ir::verify::verify;
use onnxc_loops as loops;
use onnxc_loops::{Kernel, program};
use onnxc_machine::target::{Core, Target};
use onnxc_machine::vector::ir::Func;
use onnxc_object::host;
use onnxc_passes as pass;
use onnxc_passes::{Options, PackPolicy, Precision};
use onnxc_schedule as schedule;
use onnxc_schedule::Program;
use onnxc_tuning::Settings;

/// A file, taken apart.
struct Case {
    /// What stands before the graph: directives.
    header: String,
    action: Action,
    /// Numbers that lowerings take, and those that they must refuse.
    tuning: Vec<Tuning>,
    refused: Vec<Tuning>,
    input: String,
    expected: String,
}

/// The type that an input has when a run begins.
fn found(graph: &Graph, input: usize) -> TensorType {
    TensorType::new(graph.input_ty(input).dtype, graph.found_shape(input))
}

/// What a case does with its graph.
#[derive(Clone, PartialEq, Debug)]
enum Action {
    /// Runs a pass, or the pipeline; for a processor, if one is named.
    Pass { name: String, cpu: Option<String> },
    /// Schedules the graph and lowers its groups for a processor, in its widest vectors if one is named.
    Lower(Option<String>),
    /// Lowers them to the vector IR of a processor.
    Vector(String),
    /// Lowers the graph to its host program; prints all of it, or the functions whose names begin with one of these.
    Host { only: Vec<String> },
    /// Schedules the graph.
    Schedule,
    /// Partitions the graph: see [`arranged`].
    Partition(String),
}

/// Settings of a group of the schedule, or of a stage of one.
struct Tuning {
    /// Such as `g0`.
    group: String,
    stage: Option<usize>,
    settings: Settings,
}

/// Directive that runs all passes instead of one.
const PIPELINE: &str = "pipeline";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests").join(name)
}

fn read_case(path: &Path) -> Result<Case, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let header_lines = text.lines().take_while(|line| line.starts_with(';')).count();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.by_ref().take(header_lines).collect();
    let rest: Vec<&str> = lines.collect();
    let mut action = None;
    let (mut tuning, mut refused) = (vec![], vec![]);
    for line in &header {
        let directive = line.trim_start_matches(';').trim();
        if let Some(rest) = directive.strip_prefix("tuning ") {
            tuning.push(read_tuning(rest)?);
            continue;
        }
        if let Some(rest) = directive.strip_prefix("refused ") {
            refused.push(read_tuning(rest)?);
            continue;
        }
        let found = match directive.split_once(':') {
            Some(("pass", name)) => {
                let (name, cpu) = name.split_once(',').map_or((name, None), |(name, cpu)| (name, Some(cpu)));
                Action::Pass { name: name.trim().into(), cpu: cpu.map(|cpu| cpu.trim().into()) }
            }
            Some(("partition", what)) => Action::Partition(what.trim().to_string()),
            Some(("lower", cpu)) => Action::Lower(Some(cpu.trim().to_string())),
            Some(("vector", cpu)) => Action::Vector(cpu.trim().to_string()),
            None if directive == "lower" => Action::Lower(None),
            Some(("host", only)) => {
                Action::Host { only: only.split(',').map(|name| name.trim().to_string()).collect() }
            }
            None if directive == "schedule" => Action::Schedule,
            None if directive == "host" => Action::Host { only: vec![] },
            _ => return Err(format!("unknown or repeated directive `{directive}`")),
        };
        if action.replace(found).is_some() {
            return Err(format!("unknown or repeated directive `{directive}`"));
        }
    }
    let action = action
        .ok_or("no directive `; pass: NAME`, `; partition: ...`, `; lower`, `; lower: CPU`, `; vector: CPU`, `; schedule` or `; host`")?;
    if let Action::Pass { name, .. } = &action
        && name != PIPELINE
        && pass::by_name(name).is_none()
    {
        return Err(format!("there is no pass {name}"));
    }
    let arrow = rest.iter().position(|line| *line == "=>");
    let has_settings = !tuning.is_empty() || !refused.is_empty();
    if has_settings && !matches!(action, Action::Lower(_)) {
        return Err("settings of groups without `; lower`".into());
    }
    let (input, expected) = match arrow {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (&rest[..], &[][..]),
    };
    Ok(Case {
        header: header.join("\n"),
        action,
        tuning,
        refused,
        input: input.join("\n"),
        expected: expected.join("\n"),
    })
}

/// Reads `g0: rows=4` or `g0 stage 1: rows=4`.
fn read_tuning(text: &str) -> Result<Tuning, String> {
    let (owner, settings) = text.split_once(':').ok_or("settings come after the group and a colon")?;
    let (group, stage) = match owner.split_whitespace().collect::<Vec<_>>().as_slice() {
        [group] => (group.to_string(), None),
        [group, "stage", stage] => (group.to_string(), Some(stage.parse().map_err(|_| "no stage")?)),
        _ => return Err(format!("`{owner}` is not a group")),
    };
    let settings = Settings::parse(settings).map_err(|error| error.to_string())?;
    Ok(Tuning { group, stage, settings })
}

fn checked(graph: &Graph, when: &str) -> Result<(), String> {
    verify(graph).map_err(|errors| {
        let messages: Vec<String> = errors.iter().map(|error| error.to_string()).collect();
        format!("{when} the pass: {}\n{graph}", messages.join("; "))
    })
}

fn run_pass(name: &str, cpu: Option<&str>, graph: &mut Graph) -> Result<(), String> {
    let mut options = Options::default();
    if ["products", "rounded"].contains(&name) {
        options.precision = Precision::Bf16;
    }
    if let Some(cpu) = cpu {
        options.pack = PackPolicy::for_target(&named_target(cpu)?);
    }
    let result = match pass::by_name(name) {
        Some(row) => pass::run_one(row, graph, &options),
        None => pass::run_all(graph, &options, &mut |_, _, _| {}),
    };
    result.map_err(|error| error.to_string())
}

/// Runs a case; gives the text of the result.
fn run_case(case: &Case) -> Result<String, String> {
    let before = parse(&case.input).map_err(|error| error.to_string())?;
    checked(&before, "before")?;
    match &case.action {
        Action::Pass { name, cpu } => run_pass_case(name, cpu.as_deref(), &before),
        Action::Lower(cpu) => run_lower_case(&before, cpu.as_deref(), case),
        Action::Vector(cpu) => run_vector_case(&before, cpu),
        Action::Host { only } => run_host_case(&before, only),
        Action::Schedule => run_schedule_case(&before),
        Action::Partition(what) => run_partition_case(what, &before),
    }
}

/// The graph after a pass, with values numbered in order of appearance.
fn run_pass_case(pass: &str, cpu: Option<&str>, before: &Graph) -> Result<String, String> {
    let mut after = before.clone();
    run_pass(pass, cpu, &mut after)?;
    checked(&after, "after")?;
    for seed in 1..=2 {
        same_meaning(before, &|inputs| interp::run(&after, inputs), seed)?;
    }
    Ok(renumbered(&to_text(&after)))
}

/// Reads `2, v3 1, n4`: two ranks (the first word), value 3 cut along its axis 1 over the ranks of a stage, a stage that begins at
/// node 4. `v3 1 stage 1` is about that stage.
fn arranged(text: &str) -> Result<Arrangement, String> {
    let wrong = || format!("`{text}` is not `RANKS, vVALUE AXIS, nNODE`");
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let mut parts = text.split(',').map(|part| part.split_whitespace().collect::<Vec<&str>>());
    let Some([ranks]) = parts.next().as_deref().map(|first| [first[0]]) else { return Err(wrong()) };
    let ranks = number(ranks)?;
    let (mut starts, mut cuts) = (vec![0], vec![]);
    for part in parts {
        match part[..] {
            [node] if node.starts_with('n') => starts.push(number(&node[1..])?),
            [value, axis] if value.starts_with('v') => cuts.push((number(&value[1..])?, number(axis)?, 0)),
            [value, axis, "stage", stage] if value.starts_with('v') => {
                cuts.push((number(&value[1..])?, number(axis)?, number(stage)?));
            }
            _ => return Err(wrong()),
        }
    }
    let mut arrangement = Arrangement { name: "c".into(), ranks, ..Arrangement::default() };
    let each = ranks / starts.len();
    let ends = starts[1..].iter().copied().chain([usize::MAX]);
    if starts.len() > 1 {
        let ranges = starts.iter().zip(ends).enumerate();
        arrangement.stages = ranges.map(|(stage, (&start, end))| (start..end, stage as i64)).collect();
    }
    for (value, axis, stage) in cuts {
        let parts = (0..each).map(|at| vec![(stage * each + at) as i64]).collect();
        let axes = vec![CutAxis { axis, parts: each, blocks: None }];
        arrangement
            .shardings
            .push((ValueId::from_u32(value as u32), Sharding { place: format!("v{value}"), parts, axes }));
    }
    Ok(arrangement)
}

/// The graphs of all ranks, which together give what the graph gives.
fn run_partition_case(what: &str, before: &Graph) -> Result<String, String> {
    let partition =
        onnxc_partition::partition(before, &arranged(what)?).map_err(|error| error.to_string())?;
    let graphs = &partition.graphs;
    let mut text = String::new();
    for graph in graphs {
        checked(graph, "after")?;
        let printed = to_text(graph);
        if to_text(&parse(&printed).map_err(|error| error.to_string())?) != printed {
            return Err(format!("what is printed is read as something else:\n{printed}"));
        }
        // The digest of the whole is another one with each change of the text form.
        let plan = graph.rank.map_or(0, |own| own.plan);
        text += &renumbered(&printed).replace(&format!("{plan:016x}"), "...");
    }
    for seed in 1..=2 {
        for rank in 0..graphs.len() {
            let run = |inputs: &[Tensor]| {
                let all = vec![inputs.to_vec(); graphs.len()];
                Ok(interp::run_ranks(graphs, &all, 0, Duration::from_secs(20))?.swap_remove(rank))
            };
            same_meaning(before, &run, seed)?;
        }
    }
    Ok(text)
}

/// An x86-64 processor, aarch64 or one of its processors, s390x, or a microcontroller, with its widest vectors.
fn named_target(cpu: &str) -> Result<Target, String> {
    let target = match cpu {
        "aarch64" => Target::parse("aarch64-unknown-linux-gnu", None),
        "cortex-a76" | "neoverse-n2" => Target::parse("aarch64-unknown-linux-gnu", Some(cpu)),
        "s390x" => Target::parse("s390x-unknown-linux-gnu", None),
        "cortex-m4" => Target::parse("thumbv7em-none-eabi", Some(cpu)).map(Target::for_source),
        // The level of a processor's tiles is one of its upgrades.
        cpu => {
            let (cpu, tiles) = cpu.strip_suffix("+amx").map_or((cpu, false), |cpu| (cpu, true));
            let target = Target::parse("x86_64-unknown-linux-gnu", Some(cpu));
            target.map(|target| {
                target.levels().find(|level| level.has_tiles() == tiles).unwrap_or(&target).clone()
            })
        }
    };
    let target = target.map_err(|error| error.to_string())?;
    Ok(Target { upgrades: vec![], ..target })
}

/// That, as loop nests are lowered for it: for leaf kernels, if it has any.
fn wide_core(cpu: &str) -> Result<Core, String> {
    named_target(cpu).map(|target| target.leaf().unwrap_or(target.core))
}

/// What settings were refused with, and the kernels of a graph, one after the other.
fn run_lower_case(graph: &Graph, cpu: Option<&str>, case: &Case) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let core = match cpu {
        Some(cpu) => wide_core(cpu)?,
        None => host_target().map_err(text)?.core,
    };
    let mut printed = String::new();
    for tuning in &case.refused {
        let program = scheduled(graph, std::slice::from_ref(tuning))?;
        let result = program
            .groups
            .iter()
            .try_for_each(|(id, group)| loops::lower::lower(graph, group, &id.to_string(), &core).map(drop));
        match result {
            Err(error) if error.kind == Kind::Usage => {
                writeln!(printed, "// refused: {error}").map_err(|e| e.to_string())?
            }
            other => return Err(format!("{:?} gave {other:?}", tuning.settings)),
        }
    }
    printed.push_str(&loops_text(graph, &core, &case.tuning)?);
    Ok(printed)
}

/// The kernels of a graph and of its bodies, one after the other; read again, and run.
fn loops_text(graph: &Graph, core: &Core, tuning: &[Tuning]) -> Result<String, String> {
    let program = scheduled(graph, tuning)?;
    let printed = RefCell::new(String::new());
    let kernels = program::Kernels::new(graph, &program, &|graph, program, group| {
        let kernel = verified(graph, program, group, core)?;
        let once = kernel.to_string();
        let again = loops::parse::parse(&once)?.to_string();
        if again != once {
            return Err(broken(format!("{once}was read as\n{again}")));
        }
        printed.borrow_mut().push_str(&once);
        Ok(kernel)
    });
    let kernels = kernels.map_err(|error| error.to_string())?;
    for seed in 1..=2 {
        let run = |inputs: &[Tensor]| program::run(graph, &program, &kernels, inputs, &loops::interp::run);
        same_meaning(graph, &run, seed)?;
    }
    Ok(printed.into_inner())
}

fn broken(text: String) -> onnxc_ir::error::Error {
    onnxc_ir::error::Error::internal(onnxc_ir::error::Stage::Loops, text)
}

/// The loop nest of a group.
fn verified(
    graph: &Graph,
    program: &Program,
    group: schedule::GroupId,
    core: &Core,
) -> onnxc_ir::error::Result<Kernel> {
    let kernel = loops::lower::lower(graph, &program.groups[group], &group.to_string(), core)?;
    loops::verify::verify(&kernel).map_err(|error| broken(format!("{error}\n{kernel}")))?;
    Ok(kernel)
}

/// The schedule of a graph, whose memory plan is checked; its groups, interpreted one after the other, give what the graph gives.
fn run_schedule_case(graph: &Graph) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let program = scheduled(graph, &[])?;
    schedule::check(graph, &program).map_err(text)?;
    let core = host_target().map_err(text)?.core;
    let kernels = program::Kernels::new(graph, &program, &|graph, program, group| {
        verified(graph, program, group, &core)
    });
    let kernels = kernels.map_err(text)?;
    for seed in 1..=2 {
        let run = |inputs: &[Tensor]| program::run(graph, &program, &kernels, inputs, &loops::interp::run);
        same_meaning(graph, &run, seed)?;
    }
    Ok(program.text(graph))
}

/// The schedule of a graph, some of whose groups have settings.
fn scheduled(graph: &Graph, tuning: &[Tuning]) -> Result<Program, String> {
    let mut program =
        schedule::schedule(graph, schedule::Options::default()).map_err(|error| error.to_string())?;
    for Tuning { group: name, stage, settings } in tuning {
        let group = program.groups.iter_mut().find(|(id, _)| id.to_string() == *name).map(|(_, group)| group);
        let group = match (group, stage) {
            (Some(group), Some(stage)) => group.stages.get_mut(*stage),
            (group, _) => group,
        };
        group.ok_or(format!("there is no group {name}, stage {stage:?}"))?.settings = settings.clone();
    }
    Ok(program)
}

/// The vector IR of a graph's kernels. It is read again, verified and, if it is little-endian, run.
fn run_vector_case(graph: &Graph, cpu: &str) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let (target, core) = (named_target(cpu)?, wide_core(cpu)?);
    let isa = target.wide.unwrap_or(target.narrow);
    let program = scheduled(graph, &[])?;
    let printed = RefCell::new(String::new());
    let functions = program::Kernels::new(graph, &program, &|graph, program, group| {
        let mut kernel = verified(graph, program, group, &core)?;
        loops::math::expand(&mut kernel);
        let once = vector::lower(&kernel, isa).map_err(broken)?.to_string();
        let func = onnxc_machine::vector::parse::parse(&once)?;
        let again = func.to_string();
        if again != once {
            return Err(broken(format!("{once}was read as\n{again}")));
        }
        onnxc_machine::vector::verify::verify(&func)
            .and_then(|()| onnxc_machine::vector::verify::check(&func, isa))
            .map_err(broken)?;
        printed.borrow_mut().push_str(&format!("// {}\n{once}", kernel.name));
        Ok((kernel, func))
    });
    let functions = functions.map_err(text)?;
    let printed = printed.into_inner();
    if isa.is_big_endian {
        // The interpreter's memory is little-endian; `machines.rs` runs such code.
        return Ok(printed);
    }
    let execute: program::Execute<'_, (Kernel, Func)> = &|(kernel, func), buffers, symbols| {
        let value = |dim: &Dim| dim.eval(symbols).unwrap_or_default();
        let range = kernel.parallel_range().map_or((0, 0), |(lo, hi)| (value(lo), value(hi)));
        let dims: Vec<i64> = (0..16).map(|number| symbols(Sym::from_u32(number)).unwrap_or(0)).collect();
        Ok(onnxc_machine::vector::interp::run(func, buffers, &dims, range)? as u32)
    };
    for seed in 1..=2 {
        same_meaning(graph, &|inputs| program::run(graph, &program, &functions, inputs, execute), seed)?;
    }
    Ok(printed)
}

fn host_target() -> onnxc_ir::error::Result<Target> {
    Target::parse("x86_64-unknown-linux-gnu", Some("x86-64-v3"))
}

fn compiled_for_host(graph: &Graph) -> onnxc_ir::error::Result<onnxc::Compiled> {
    let options = onnxc::Options::new("model", host_target()?);
    let program = schedule::schedule(graph, schedule::Options::default())?;
    let frontend =
        onnxc::Frontend { graph: graph.clone(), program, notes: vec![], warnings: vec![], entries: vec![] };
    onnxc::backend(frontend, &options, &mut onnxc::Quiet)
}

/// The host program of a graph, for x86-64-v3. It is read again, verified and run, its kernels as loop nests.
fn run_host_case(graph: &Graph, only: &[String]) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let core = host_target().map_err(text)?.core;
    let compiled = compiled_for_host(graph).map_err(text)?;
    let mut model = compiled.interpreted().map_err(text)?;
    let once = model.program.to_string();
    let read = host::parse::parse(&once).map_err(text)?;
    let again = read.to_string();
    if again != once {
        return Err(format!("{once}was read as\n{again}"));
    }
    host::verify::verify(&read)?;
    model.program = read;
    let mut kernels: Vec<Kernel> = vec![];
    for id in model.program.kernels.keys() {
        kernels.push(model.nest(id, &core).map_err(text)?);
    }
    let run: host::interp::model::RunKernel<'_> = &|(id, _), buffers, words, _| {
        let value = |sym: Sym| words.get(sym.as_u32() as usize).copied();
        let kernel = &kernels[id.as_u32() as usize];
        onnxc_loops::interp::run(kernel, buffers, &value).map(|code| code as i32)
    };
    for seed in 1..=2 {
        same_meaning(
            graph,
            &|inputs| {
                let inputs: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
                let shapes = onnxc::native::output_shapes(graph, &inputs)?;
                let outcome = model.call(model.arguments(&inputs, &shapes)?, run)?;
                match outcome.status {
                    0 => Ok(outcome.outputs),
                    status => Err(onnxc_ir::error::Error::internal(
                        onnxc_ir::error::Stage::Run,
                        format!("status {status}: {}", outcome.message),
                    )),
                }
            },
            seed,
        )?;
    }
    Ok(abridged(&once, only))
}

/// A host program with the functions whose names begin with one of `only`; of the others the first line alone.
fn abridged(text: &str, only: &[String]) -> String {
    let mut out = String::new();
    let mut hidden = false;
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("  function \"") {
            hidden = !only.is_empty() && !only.iter().any(|name| function.starts_with(name.as_str()));
            if hidden {
                out += &format!("{line} ... }}\n");
            }
        }
        if !hidden {
            out += line;
            out.push('\n');
        }
        hidden &= line != "  }";
    }
    out
}

/// The text with each value number replaced by its order of appearance. Numbers of one graph stay distinct.
fn renumbered(text: &str) -> String {
    let mut numbers: Vec<&str> = Vec::new();
    let mut out = String::with_capacity(text.len());
    let mut quoted = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if length == 0 {
            quoted ^= first == '"';
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(length);
        rest = after;
        let is_value =
            word.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if is_value && !quoted {
            let at = numbers.iter().position(|known| *known == word).unwrap_or_else(|| {
                numbers.push(word);
                numbers.len() - 1
            });
            write!(out, "v{at}").expect("writing to a string cannot fail");
        } else {
            out.push_str(word);
        }
    }
    out
}

/// Reproducible inputs: floats in -1..1, small whole numbers, bools.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    fn tensor(&mut self, ty: &TensorType) -> Result<Tensor, String> {
        let size = |sym: Sym| Some(2 + i64::from(sym.as_u32() % 3));
        let shape: Option<Vec<usize>> = ty
            .shape
            .iter()
            .map(|dim| dim.eval(&size).and_then(|value| usize::try_from(value).ok()))
            .collect();
        let shape = shape.ok_or_else(|| format!("no sizes for an input of type {ty}"))?;
        let count = shape.iter().product();
        let values: Vec<f64> = (0..count)
            .map(|_| match ty.dtype {
                dtype if dtype.is_float() => 2.0 * self.next() - 1.0,
                _ => (self.next() * 2.0).floor(),
            })
            .collect();
        Ok(interp::cast(&Tensor::from_slice(&shape, &values), ty.dtype, true))
    }
}

/// Whether `after` gives what the graph gives, on random inputs.
fn same_meaning(
    before: &Graph,
    after: &dyn Fn(&[Tensor]) -> onnxc_ir::error::Result<Vec<Tensor>>,
    seed: u64,
) -> Result<(), String> {
    let mut noise = Noise(seed);
    let inputs: Result<Vec<Tensor>, String> =
        (0..before.inputs.len()).map(|at| noise.tensor(&found(before, at))).collect();
    let inputs = inputs?;
    let expected = interp::run(before, &inputs).map_err(|error| error.to_string())?;
    let actual = after(&inputs).map_err(|error| error.to_string())?;
    if expected.len() != actual.len() {
        return Err(format!("{} outputs became {}", expected.len(), actual.len()));
    }
    for ((name, _), (expected, actual)) in before.outputs.iter().zip(expected.iter().zip(&actual)) {
        close(expected, actual).map_err(|message| format!("output {name}: {message}"))?;
    }
    Ok(())
}

/// Equal type and data; floats within 1e-5 of the largest one, those of 16 bits within two of their own steps there.
fn close(expected: &Tensor, actual: &Tensor) -> Result<(), String> {
    if (expected.dtype, &expected.shape) != (actual.dtype, &actual.shape) {
        return Err(format!("{expected:?} became {actual:?}"));
    }
    let floats = matches!(expected.dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
    let most = match expected.dtype {
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        _ => 1e-5,
    };
    let (Some(expected), Some(actual), true) = (expected.to_f64s(), actual.to_f64s(), floats) else {
        return if expected == actual { Ok(()) } else { Err(format!("{expected:?} became {actual:?}")) };
    };
    let scale = expected.iter().filter(|value| value.is_finite()).fold(0f64, |s, value| s.max(value.abs()));
    for (at, (e, a)) in expected.iter().zip(&actual).enumerate() {
        // A NaN or an infinity is close to its like only.
        let same = e == a || (e.is_nan() && a.is_nan()) || (e - a).abs() <= most * scale;
        if !same {
            return Err(format!("element {at}: {e} became {a}"));
        }
    }
    Ok(())
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of file tests");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    paths.sort();
    paths
}

fn updates() -> bool {
    std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1")
}

/// Runs each file of a folder; gives how many there are. Fails with what every failing file says.
fn run_files(folder: &Path, mut run: impl FnMut(&Path) -> Result<(), String>) -> usize {
    let paths = paths(folder);
    let mut failures = Vec::new();
    for path in &paths {
        if let Err(message) = run(path) {
            failures.push(format!("{}: {message}", path.display()));
        }
    }
    let all = paths.len();
    assert!(failures.is_empty(), "{} of {all} files failed\n{}", failures.len(), failures.join("\n\n"));
    all
}

/// Holds what a case gives against what its file expects, or writes it there: behind the header and the text.
fn hold(path: &Path, [header, text, expected]: [&str; 3], actual: &str) -> Result<(), String> {
    if updates() {
        let file = format!("{header}\n{}\n=>\n{actual}", text.trim_end());
        return std::fs::write(path, file).map_err(|error| error.to_string());
    }
    match actual.trim_end() == expected.trim_end() {
        true => Ok(()),
        false => Err(format!("expected\n{expected}\ngot\n{actual}")),
    }
}

/// Runs the cases of a folder; gives what they did.
fn run_folder(name: &str) -> Vec<Action> {
    let mut tested = Vec::new();
    run_files(&folder(name), |path| {
        if path.extension().is_none_or(|extension| extension != "onnxir") {
            return Err("not a file test: its name does not end in .onnxir".to_string());
        }
        let case = read_case(path)?;
        let actual = run_case(&case)?;
        tested.push(case.action.clone());
        hold(path, [&case.header, &case.input, &case.expected], &actual)
    });
    tested
}

#[test]
fn passes() {
    let tested = run_folder("passes");
    let missing: Vec<&str> = pass::passes()
        .map(|pass| pass.name)
        .filter(|pass| {
            !tested.iter().any(|action| matches!(action, Action::Pass { name, .. } if name == pass))
        })
        .collect();
    assert!(missing.is_empty(), "no file test for {}", missing.join(", "));
}

/// What separates the graphs of a file in `untouched`.
const SEPARATOR: &str = "---";

/// Runs a pass on each graph of a file that it must leave as it is; gives the number of graphs.
fn leave_untouched(text: &str, pass: &str) -> Result<usize, String> {
    let (directive, graphs) = text.split_once('\n').ok_or("a file without graphs")?;
    let (name, cpu) =
        directive.split_once(',').map_or((directive, None), |(name, cpu)| (name, Some(cpu.trim())));
    if name.trim() != format!("; not: {pass}") {
        return Err(format!("the first line is `{directive}`, not `; not: {pass}`"));
    }
    let graphs: Vec<String> =
        graphs.split(&format!("\n{SEPARATOR}\n")).map(|graph| graph.trim().to_string()).collect();
    for graph in &graphs {
        let before = parse(graph).map_err(|error| format!("{error}\n{graph}"))?;
        checked(&before, "before")?;
        let mut after = before.clone();
        run_pass(pass, cpu, &mut after)?;
        checked(&after, "after")?;
        let (before, after) = (renumbered(&to_text(&before)), renumbered(&to_text(&after)));
        if before != after {
            return Err(format!("the pass changes\n{before}to\n{after}"));
        }
    }
    Ok(graphs.len())
}

/// Each pass has at least five cases, and among them graphs that look as what it is for and that it must leave alone.
#[test]
fn passes_leave_alone_what_is_not_theirs() {
    let (mut failures, mut cases) = (vec![], BTreeMap::<String, usize>::new());
    for entry in std::fs::read_dir(folder("passes")).expect("the folder of file tests") {
        if let Ok(Case { action: Action::Pass { name, .. }, .. }) =
            read_case(&entry.expect("an entry").path())
        {
            *cases.entry(name).or_default() += 1;
        }
    }
    let mut names: Vec<&str> = pass::passes().map(|pass| pass.name).collect();
    names.sort();
    names.dedup();
    for name in names {
        let text = std::fs::read_to_string(folder("untouched").join(format!("{name}.onnxir")));
        match text.map_err(|error| error.to_string()).and_then(|text| leave_untouched(&text, name)) {
            Ok(count) => {
                let all = count + cases.get(name).copied().unwrap_or(0);
                if count < 2 || all < 5 {
                    failures.push(format!(
                        "{name}: {all} cases, {count} of them negative; there must be 5 and 2"
                    ));
                }
            }
            Err(message) => failures.push(format!("{name}: {message}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let files = std::fs::read_dir(folder("untouched")).expect("the folder").count();
    assert_eq!(
        files,
        pass::passes().map(|pass| pass.name).collect::<BTreeSet<_>>().len(),
        "files for no pass"
    );
}

#[test]
fn loops_of_every_kind_of_group() {
    let tested = run_folder("loops");
    assert!(tested.iter().all(|action| matches!(action, Action::Lower(_))));
}

#[test]
fn vector_functions() {
    let tested = run_folder("vector");
    assert!(tested.iter().all(|action| matches!(action, Action::Vector(_))));
}

/// The host programs of graphs, and programs that are written by hand: together they have every kind of operation, place and function.
#[test]
fn host_programs() {
    let tested = run_folder("host");
    assert!(tested.iter().all(|action| matches!(action, Action::Host { .. })));
    let mut seen = BTreeSet::new();
    for path in paths(&folder("host")) {
        let case = read_case(&path).expect("a file that was tested");
        let graph = parse(&case.input).expect("a graph that was tested");
        let compiled = compiled_for_host(&graph).expect("a graph that was tested");
        host_programs::note_kinds(&compiled.host().expect("a graph that was tested"), &mut seen);
    }
    let (written, negative) = host_programs::run_folder(&folder("host_programs"), &mut seen);
    let missing = host_programs::kinds_without_a_file(&seen);
    assert!(missing.is_empty(), "no host program with {}", missing.join(", "));
    let all = tested.len() + written;
    assert!(all >= 30 && negative >= 8, "{all} host programs, {negative} of them with refused changes");
}

#[test]
fn malformed_files_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = |text: &str, reason: &str| {
        let path = folder.path().join("case.onnxir");
        std::fs::write(&path, text).expect("a temporary file");
        let message = read_case(&path).err().unwrap_or_default();
        assert!(message.contains(reason), "{text:?} gave {message:?}");
    };
    refused("graph \"\" {\n  return\n}\n", "no directive");
    refused("; pass: polish\n", "there is no pass polish");
    refused("; pass: dce\n; level: 2\n", "unknown or repeated directive");
    refused("; pass: dce\n; pass: cse\n", "unknown or repeated directive");
    refused("; pass: dce\n; tuning g0: rows=2\n", "settings of groups without `; lower`");
    refused("; lower\n; tuning g0: rows\n", "`rows` is not a setting");
    refused("; lower\n; tuning g0: rows=2 rows=3\n", "`rows` is set twice");
    refused("; lower\n; tuning g0 rows=2\n", "after the group and a colon");
}

#[test]
fn renumbering_follows_appearance() {
    assert_eq!(renumbered("v7 = neg v3 \"v9 v3\" : v3, v12"), "v0 = neg v1 \"v9 v3\" : v1, v2");
}

/// Models as text and the graphs that they are imported as, or what is said of them.
#[test]
fn imports() {
    let (positive, negative) = models::run_imports(&folder("imports"));
    assert!(
        positive + negative >= 12 && negative >= 2,
        "{positive} imports, {negative} of models that are refused"
    );
}

/// Small networks at every level.
#[test]
fn networks() {
    models::run_networks(&folder("networks"));
}

#[test]
fn schedules() {
    let tested = run_folder("schedule");
    assert!(tested.iter().all(|action| *action == Action::Schedule));
    assert!(tested.len() >= 12, "{} schedules", tested.len());
}

#[test]
fn partition() {
    let tested = run_folder("partition");
    assert!(tested.iter().all(|action| matches!(action, Action::Partition(_))));
}
