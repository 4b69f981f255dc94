//! What the page shows: steps, blocks of memory, code by level.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::cli::bench::{self, Share};
use crate::cli::check::to_json;
use crate::cli::data::{self, Symbols};
use crate::cli::peak::Peak;
use crate::cli::session::Loaded;
use crate::{Options, Precision};
use onnxc_backend::codegen::kernels::Kernels;
use onnxc_ir::graph::{Dim, Graph, Tensor, ValueId};
use onnxc_machine::target::Target;
use onnxc_schedule::{Program, Scratch, Step, Storage};

pub(crate) struct Facts {
    pub model: String,
    /// Processor of the measured object, and the other options of the compiler.
    pub cpu: String,
    pub options: String,
    pub timing: bench::Report,
    pub peak: Peak,
    /// Of a run, where the sizes are known.
    pub gflop: f64,
    pub rows: Vec<KernelRow>,
    pub blocks: Vec<ArenaBlock>,
    /// Of the memory plan, where the sizes are known.
    pub arena: Option<i64>,
    pub bound: Option<i64>,
    pub code_bytes: u64,
    pub kernel_bytes: u64,
    pub weight_bytes: u64,
    pub levels: Vec<Level>,
    /// What was measured, as `onnxc bench --per-node --json` prints it.
    pub json: String,
}

/// A step that computes.
pub(crate) struct KernelRow {
    /// Its place among all steps of the program: the time of the memory plan.
    pub at: usize,
    pub name: String,
    pub nodes: String,
    pub result: String,
    pub timing: Option<Share>,
    /// Rows that it takes results of.
    pub reads: Vec<usize>,
    /// Bytes of the weights that it reads.
    pub weights: i64,
}

/// Bytes of the arena, from step to step.
pub(crate) struct ArenaBlock {
    pub name: String,
    pub offset: i64,
    pub bytes: i64,
    pub from: usize,
    pub to: usize,
}

/// The code that there is for one level of processors.
#[derive(Serialize)]
pub(crate) struct Level {
    pub cpu: String,
    pub kernels: usize,
    pub bytes: u64,
}

/// Code by level, bodies included; equal code lies in the object once.
pub(crate) fn levels(kernels: &Kernels, target: &Target) -> Vec<Level> {
    let mut levels: Vec<Level> =
        target.levels().map(|level| Level { cpu: level.cpu.clone(), kernels: 0, bytes: 0 }).collect();
    let (mut open, mut seen) = (vec![kernels], HashSet::new());
    while let Some(kernels) = open.pop() {
        for version in kernels.groups.values().flat_map(|kernel| &kernel.versions) {
            if let Some(level) = levels.get_mut(version.level) {
                level.kernels += 1;
                if seen.insert(&version.code) {
                    level.bytes += version.code.bytes.len() as u64;
                }
            }
        }
        open.extend(kernels.bodies.values().flatten());
    }
    levels
}

impl Facts {
    pub(crate) fn new(
        model: &str,
        loaded: &Loaded,
        inputs: &[Option<Tensor>],
        mut timing: bench::Report,
        peak: Peak,
        levels: Vec<Level>,
        options: &Options,
    ) -> Facts {
        let (graph, program) = (&loaded.graph, &loaded.program);
        let symbols = data::symbols(graph, inputs);
        let json = to_json(&timing);
        let shares = std::mem::take(&mut timing.nodes);
        let rows = rows(graph, program, loaded, shares, &symbols);
        let size = |dim: &Dim| size(dim, &symbols);
        let flops = program.groups.values().filter_map(|group| size(&group.flops(graph)));
        Facts {
            model: model.to_string(),
            cpu: options.target.cpu.clone(),
            options: options_text(options),
            gflop: flops.map(|flops| flops as f64).sum::<f64>() / 1e9,
            blocks: blocks(graph, program, &symbols),
            arena: size(&program.arena),
            bound: size(&program.bound),
            code_bytes: loaded.stats.code_bytes,
            kernel_bytes: loaded.stats.kernel_bytes,
            weight_bytes: loaded.stats.weight_bytes,
            timing,
            peak,
            rows,
            levels,
            json,
        }
    }
}

fn options_text(options: &Options) -> String {
    let small = options.goal == onnxc_machine::target::Goal::Size;
    let level = if small { "s".to_string() } else { options.opt_level.to_string() };
    let exact = if options.exact { " --exact" } else { "" };
    let precision =
        (options.precision != Precision::F32).then(|| format!(" --precision {}", options.precision));
    format!("-O{level}{exact}{}", precision.unwrap_or_default())
}

fn size(dim: &Dim, symbols: &Symbols) -> Option<i64> {
    dim.eval(&|symbol| symbols[symbol])
}

fn rows(
    graph: &Graph,
    program: &Program,
    loaded: &Loaded,
    shares: Vec<Share>,
    symbols: &Symbols,
) -> Vec<KernelRow> {
    let mut shares: HashMap<usize, Share> = shares.into_iter().map(|share| (share.step, share)).collect();
    // The model's own steps are numbered in their order, with those of bodies between them.
    let numbers =
        loaded.steps.iter().enumerate().filter(|(_, info)| info.scope == 0).map(|(number, _)| number);
    let mut rows: Vec<KernelRow> = Vec::new();
    let mut writers: HashMap<ValueId, usize> = HashMap::new();
    for ((at, step), number) in program.steps.iter().enumerate().zip(numbers) {
        let (inputs, outputs) = match step {
            Step::Run(group) => {
                let group = &program.groups[*group];
                (group.inputs.clone(), group.outputs.clone())
            }
            Step::Control { node, .. } => {
                (graph.nodes[*node].inputs.to_vec(), graph.nodes[*node].outputs.to_vec())
            }
            _ => continue,
        };
        let info = &loaded.steps[number];
        let timing = shares.remove(&number);
        let mut reads: Vec<usize> =
            inputs.iter().filter_map(|&value| writers.get(&program.storage(value)).copied()).collect();
        reads.sort_unstable();
        reads.dedup();
        let constant = |value: &&ValueId| matches!(program.place(**value), Some(Storage::Constant));
        let weights =
            inputs.iter().filter(constant).filter_map(|&value| size(&graph.ty(value).bytes(), symbols));
        let name = timing.as_ref().map_or_else(|| info.kernel.clone(), Share::short_name);
        let row = KernelRow {
            at,
            name,
            nodes: info.nodes.join("\n"),
            result: info.result.clone().unwrap_or_default(),
            weights: weights.sum(),
            timing,
            reads,
        };
        outputs.iter().for_each(|&value| {
            writers.insert(program.storage(value), rows.len());
            writers.insert(value, rows.len());
        });
        rows.push(row);
    }
    rows
}

/// Bytes of the arena, each from the step that writes it first to the last that reads it.
fn blocks(graph: &Graph, program: &Program, symbols: &Symbols) -> Vec<ArenaBlock> {
    let mut blocks: Vec<ArenaBlock> = Vec::new();
    let mut of_value: HashMap<ValueId, usize> = HashMap::new();
    for (at, step) in program.steps.iter().enumerate() {
        let (mut used, mut scratch) = (vec![], None);
        match step {
            Step::Run(id) => {
                let group = &program.groups[*id];
                used.extend(group.inputs.iter().chain(&group.outputs).copied());
                if let Some(Scratch::Arena(offset)) = &program.scratch[*id] {
                    scratch = size(offset, symbols).zip(size(&group.scratch, symbols));
                }
            }
            Step::Control { node, .. } => {
                let node = &graph.nodes[*node];
                used.extend(node.inputs.iter().chain(&node.outputs).copied());
            }
            Step::Copy { from, .. } => used.push(*from),
            _ => {}
        }
        if let Some((offset, bytes)) = scratch {
            blocks.push(ArenaBlock { name: "scratch".into(), offset, bytes, from: at, to: at });
        }
        for value in used {
            let storage = program.storage(value);
            let Some(Storage::Arena { offset, size: bytes }) = program.place(storage) else { continue };
            if let Some(&block) = of_value.get(&storage) {
                blocks[block].to = at;
                continue;
            }
            let (Some(offset), Some(bytes)) = (size(offset, symbols), size(bytes, symbols)) else { continue };
            let node = graph.producer(storage).map(|node| graph.node_ref(node).name);
            of_value.insert(storage, blocks.len());
            blocks.push(ArenaBlock { name: node.unwrap_or_default(), offset, bytes, from: at, to: at });
        }
    }
    blocks
}
