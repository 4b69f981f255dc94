//! `onnxc run --train`: initializes a model, trains it on batches from files, and prints how the loss goes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::args::RunArgs;
use crate::cli::check::to_json;
use crate::cli::session::{
    Loaded, LoadedEntry, Problems, Session, native_options, one, print_warnings, usage,
};
use crate::cli::{archive, data, files, output};
use crate::files::{Mapped, io_error};
use crate::native::{self, ALIGNMENT, Call, GuardedBlock, Memory};
use onnxc_import::training::Role;
use onnxc_ir::error::{Error, Result};
use onnxc_ir::graph::{DType, Dim, Graph, State, Tensor};
use onnxc_ir::words::did_you_mean;
use onnxc_object::host::lower::state::StateLayout;

/// Of an epoch.
#[derive(Serialize)]
struct Epoch {
    epoch: u64,
    /// Means of the outputs that are one float, by their names; with the name of the step before it where there are several.
    means: BTreeMap<String, f64>,
}

pub(super) fn run(args: &RunArgs) -> std::result::Result<(), Problems> {
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
    let mut options = native_options(&session, &args.code).map_err(one)?;
    options.import.training = true;
    let loaded = session.load(&options)?;
    print_warnings(&loaded.warnings, &loaded.notes);
    train(args, &loaded).map_err(one)
}

fn train(args: &RunArgs, loaded: &Loaded) -> Result<()> {
    let steps: Vec<&LoadedEntry> = loaded.entries.iter().filter(|entry| entry.role == Role::Step).collect();
    if steps.is_empty() {
        return Err(usage("--train: no entry of the model's training_info has an algorithm".to_string()));
    }
    let batches = batches(args, &steps)?;
    let mut state = begin(args, loaded)?;
    let mut epochs = vec![];
    // Another one for each step, so that none draws the same numbers again.
    let mut seed = args.seed;
    for epoch in 1..=args.epochs {
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for batch in &batches {
            for (step, inputs) in steps.iter().zip(batch) {
                seed = seed.wrapping_add(1);
                let outputs = call(loaded, step, inputs, state.as_mut(), seed)?;
                for ((name, _), tensor) in step.graph.outputs.iter().zip(&outputs) {
                    let Some(&[value]) = tensor.to_f64s().as_deref() else { continue };
                    let name = match steps.len() {
                        1 => name.clone(),
                        _ => format!("{}.{name}", step.suffix),
                    };
                    *sums.entry(name).or_default() += value;
                }
            }
        }
        let means: BTreeMap<String, f64> =
            sums.into_iter().map(|(name, sum)| (name, sum / batches.len() as f64)).collect();
        if !args.json {
            let texts: Vec<String> = means.iter().map(|(name, mean)| format!("{name} {mean:.6}")).collect();
            say!("epoch {epoch}: {}", texts.join(", "));
        }
        epochs.push(Epoch { epoch, means });
    }
    if let Some(path) = &args.save {
        let Some(state) = &state else {
            return Err(usage("--save: the model has no state, as its bindings change nothing".to_string()));
        };
        let tensors = if archive::is_archive(path) { Some(values(&loaded.graph, state)?) } else { None };
        let mut write = |file: &mut std::fs::File| match &tensors {
            Some(tensors) => archive::write(file, path, tensors),
            None => std::io::Write::write_all(file, state.contents()).map_err(|error| io_error(path, &error)),
        };
        output::write_file(path, &mut write)?;
    }
    if args.json {
        say!("{}", to_json(&serde_json::json!({ "batches": batches.len(), "epochs": epochs })));
    }
    Ok(())
}

/// The state that training begins with: that of a file, or of the initializations.
fn begin(args: &RunArgs, loaded: &Loaded) -> Result<Option<GuardedBlock>> {
    let model = loaded.model()?;
    let mut state = None;
    if !loaded.graph.states.is_empty() {
        let symbols = vec![0; model.symbols().len()];
        let bytes = model.state_bytes(&symbols)?;
        let block = Memory::default().block(bytes, ALIGNMENT);
        let mut block = block.ok_or_else(|| usage(format!("no memory for a state of {bytes} bytes")))?;
        let status = model.reset_state(block.contents_mut(), &symbols);
        if status.0 != 0 {
            return Err(usage(format!("the state cannot be reset: status {}", status.0)));
        }
        state = Some(block);
    }
    let archived = args.restore.as_deref().filter(|path| archive::is_archive(path));
    if let Some(path) = args.restore.as_deref().filter(|_| archived.is_none()) {
        let bytes = Mapped::open(path)?.bytes();
        let block = state.as_mut().ok_or_else(no_state)?;
        if bytes.len() != block.bytes() || bytes[..8] != block.contents()[..8] {
            let (path, found, wanted) = (path.display(), bytes.len(), block.bytes());
            let why = if found == wanted {
                "it is of another model".to_string()
            } else {
                format!("{found} bytes, must be {wanted}")
            };
            return Err(usage(format!("{path} is not a state of this model: {why}")));
        }
        block.contents_mut().copy_from_slice(&bytes);
        return Ok(state);
    }
    for entry in loaded.entries.iter().filter(|entry| entry.role == Role::Initialize) {
        call(loaded, entry, &[], state.as_mut(), args.seed)?;
    }
    if let Some(path) = archived {
        let block = state.as_mut().ok_or_else(no_state)?;
        set_variables(&loaded.graph, block, path)?;
    }
    Ok(state)
}

fn no_state() -> Error {
    usage("--restore: the model has no state, as its bindings change nothing".to_string())
}

/// A variable, and where it is in the block.
struct Variable<'g> {
    name: &'g str,
    dtype: DType,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl<'g> Variable<'g> {
    /// `None` where its size is not known before a run.
    fn new(name: &'g str, state: &State, offset: &Dim) -> Option<Variable<'g>> {
        let known = |dim: &Dim| dim.as_const().and_then(|size| usize::try_from(size).ok());
        let (start, count) = (known(offset)?, known(&state.ty.bytes())?);
        let shape = state.ty.shape.iter().map(known).collect::<Option<Vec<usize>>>()?;
        Some(Variable { name, dtype: state.ty.dtype, shape, bytes: start..start + count })
    }
}

fn variables(graph: &Graph) -> Result<Vec<Variable<'_>>> {
    let Some(layout) = StateLayout::new(graph) else { return Ok(vec![]) };
    let inputs = graph.inputs[graph.given_inputs()..].iter();
    let states = inputs.zip(&graph.states).zip(&layout.offsets);
    let unknown = |name: &str| {
        usage(format!("`{name}` has no size before the model runs, so that .npz cannot hold it"))
    };
    states
        .map(|((input, state), offset)| {
            Variable::new(&input.name, state, offset).ok_or_else(|| unknown(&input.name))
        })
        .collect()
}

/// The values of all variables, as they are in the block.
fn values(graph: &Graph, block: &GuardedBlock) -> Result<Vec<(String, Tensor)>> {
    let tensor = |variable: Variable<'_>| {
        let data = block.contents()[variable.bytes].to_vec();
        (variable.name.to_string(), Tensor::new(variable.dtype, variable.shape, data.into()))
    };
    Ok(variables(graph)?.into_iter().map(tensor).collect())
}

/// Sets those variables that a file has.
fn set_variables(graph: &Graph, block: &mut GuardedBlock, path: &Path) -> Result<()> {
    let variables = variables(graph)?;
    let find = |name: &str| variables.iter().find(|variable| variable.name == name);
    for (name, tensor) in archive::read(path, &|name| find(name).map(|variable| variable.dtype))? {
        let file = path.display();
        let Some(variable) = find(&name) else {
            let hint = did_you_mean(&name, variables.iter().map(|variable| variable.name));
            return Err(usage(format!("{file}: the model has no variable `{name}`{hint}")));
        };
        if tensor.dtype != variable.dtype || tensor.shape != variable.shape {
            let found = format!("{}{:?}", tensor.dtype, tensor.shape);
            let wanted = format!("{}{:?}", variable.dtype, variable.shape);
            return Err(usage(format!("{file}: `{name}` is {found}, must be {wanted}")));
        }
        block.contents_mut()[variable.bytes.clone()].copy_from_slice(&tensor.data);
    }
    Ok(())
}

fn call(
    loaded: &Loaded,
    entry: &LoadedEntry,
    inputs: &[Option<Tensor>],
    state: Option<&mut GuardedBlock>,
    seed: u64,
) -> Result<Vec<Tensor>> {
    let mut all = inputs.to_vec();
    all.resize(entry.graph.inputs.len(), None);
    let shapes = native::output_shapes(&entry.graph, &all)?;
    let mut prepared = loaded.entry(entry)?.prepare(&all, &shapes)?;
    prepared.run_on(state, &Call { seed, ..Call::default() })?;
    prepared.check_guards()?;
    prepared.given_outputs()
}

/// For each batch the inputs of each step.
type Batches = Vec<Vec<Vec<Option<Tensor>>>>;

fn batches(args: &RunArgs, steps: &[&LoadedEntry]) -> Result<Batches> {
    let Some(folder) = &args.data else { return cut(args, steps) };
    let [step] = steps else {
        return Err(usage("--data: the model has several steps; give their inputs by --input".to_string()));
    };
    let mut folders: Vec<PathBuf> = vec![];
    for entry in std::fs::read_dir(folder).map_err(|error| io_error(folder, &error))? {
        let path = entry.map_err(|error| io_error(folder, &error))?.path();
        if path.is_dir() && !files::numbered(&path, "input").is_empty() {
            folders.push(path);
        }
    }
    folders.sort();
    if !files::numbered(folder, "input").is_empty() {
        folders.push(folder.clone());
    }
    if folders.is_empty() {
        let folder = folder.display();
        return Err(usage(format!("{folder}: neither input_0.pb nor folders that have one")));
    }
    let read = |folder: &PathBuf| Ok(vec![data::test_inputs(&step.graph, folder)?]);
    folders.iter().map(read).collect()
}

/// Batches of rows of the tensors in files.
fn cut(args: &RunArgs, steps: &[&LoadedEntry]) -> Result<Batches> {
    let mut given: BTreeMap<String, Tensor> = BTreeMap::new();
    let names: Vec<&str> = steps
        .iter()
        .flat_map(|step| step.graph.inputs.iter().take(step.graph.given_inputs()))
        .map(|input| input.name.as_str())
        .collect();
    for argument in &args.inputs {
        let Some((name, file)) = argument.split_once('=') else {
            return Err(usage(format!("--input {argument}: with --train it must be NAME=FILE")));
        };
        if !names.contains(&name) {
            let hint = did_you_mean(name, names.iter().copied());
            return Err(usage(format!(
                "no step has an input `{name}`{hint}; there are {}",
                names.join(", ")
            )));
        }
        let tensor = files::read_tensor(Path::new(file), None)?;
        if given.insert(name.to_string(), tensor).is_some() {
            return Err(usage(format!("input `{name}` is given twice")));
        }
    }
    let mut rows: Option<(&str, usize)> = None;
    for (name, tensor) in &given {
        let Some(&count) = tensor.shape.first() else { continue };
        match rows {
            Some((other, rows)) if rows != count => {
                return Err(usage(format!("`{name}` has {count} rows, and `{other}` has {rows}")));
            }
            _ => rows = Some((name, count)),
        }
    }
    let rows = rows.map_or(1, |(_, rows)| rows);
    let size = usize::try_from(args.batch).unwrap_or(usize::MAX);
    let starts = (0..rows).step_by(size);
    let batches: Batches = starts
        .map(|start| {
            let count = size.min(rows - start);
            steps.iter().map(|step| inputs_of(&step.graph, &given, (start, count))).collect::<Result<_>>()
        })
        .collect::<Result<_>>()?;
    match batches.is_empty() {
        true => Err(usage("--train: the inputs have no rows".to_string())),
        false => Ok(batches),
    }
}

fn inputs_of(
    graph: &Graph,
    given: &BTreeMap<String, Tensor>,
    rows: (usize, usize),
) -> Result<Vec<Option<Tensor>>> {
    let inputs = graph.inputs.iter().enumerate().take(graph.given_inputs());
    inputs
        .map(|(at, input)| match given.get(&input.name) {
            Some(tensor) => {
                let wanted = graph.input_ty(at);
                if tensor.dtype != wanted.dtype || tensor.shape.len() != wanted.rank() {
                    let (name, found) = (&input.name, format!("{}{:?}", tensor.dtype, tensor.shape));
                    return Err(usage(format!("input `{name}` is {wanted}, and the file has {found}")));
                }
                Ok(Some(part(tensor, rows)))
            }
            None if input.default.is_some() => Ok(None),
            None => {
                let name = &input.name;
                Err(usage(format!(
                    "input `{name}` of the step is missing: --input {name}=FILE, or --data DIR"
                )))
            }
        })
        .collect()
}

/// Rows of a tensor; a scalar as it is.
fn part(tensor: &Tensor, (start, count): (usize, usize)) -> Tensor {
    let Some((&rows, behind)) = tensor.shape.split_first() else { return tensor.clone() };
    let row = tensor.data.len() / rows.max(1);
    let shape: Vec<usize> = std::iter::once(count).chain(behind.iter().copied()).collect();
    Tensor::new(tensor.dtype, shape, tensor.data.slice(start * row..(start + count) * row))
}
