//! `onnxc run`: compile, run once, show or write the outputs.

use std::path::PathBuf;

use crate::cli::args::RunArgs;
use crate::cli::check::to_json;
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Session, native_options, one, print_warnings, usage};
use crate::cli::shapes::{self, Given};
use crate::cli::values::{self, Value};
use crate::cli::{data, files, is_quiet, protos, train};
use crate::files::io_error;
use crate::native::{self, Call};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, Input, Tensor};

pub(super) fn run(args: &RunArgs) -> std::result::Result<(), Problems> {
    if args.train {
        return train::run(args);
    }
    // What is said of random inputs asks for them.
    let asked = !(args.sizes.sizes.is_empty() && args.sizes.fill.is_empty());
    let random = args.random.or(asked.then_some(0));
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
    let given = args.data.as_deref().map_or(Given::Files(&args.inputs), Given::Folder);
    shapes::from_data(&mut session, &given).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    print_warnings(&loaded.warnings, &loaded.notes);
    let once = || -> Result<()> {
        let graph = &loaded.graph;
        let mut inputs = match &args.data {
            Some(folder) => data::test_inputs(graph, folder)?,
            None => data::inputs_from(graph, &args.inputs)?,
        };
        if let Some(seed) = random {
            data::fill(graph, &mut inputs, &args.sizes.sizes, &args.sizes.fill)?;
            data::fill_randomly(graph, &mut inputs, &args.sizes.sizes, seed)?;
        }
        check_given(graph, &inputs)?;
        if let Some(folder) = &args.output {
            std::fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
        }
        let places = places(graph, args)?;
        let call = Call { seed: args.seed, ..Call::default() };
        let outputs = loaded.model()?.run_with(&inputs, &native::output_shapes(graph, &inputs)?, &call)?;
        let named = values::unpack_all(&outputs, &values::outputs(graph))?;
        let described = || to_json(&serde_json::json!({ "outputs": described(&named, &places) }));
        let Some(first) = places.first() else {
            if args.json {
                say!("{}", described());
                return Ok(());
            }
            for (name, value) in &named {
                if !matches!(value, Value::Tensor(_)) {
                    say!("{name}: {}", value.outline());
                }
                value.tensors(name).iter().for_each(|(name, tensor)| say!("{}", data::text(name, tensor)));
            }
            return Ok(());
        };
        let mut files = Outputs::beside(first)?;
        for (place, (_, value)) in places.iter().zip(&named) {
            files.write(place, &mut |file| match value {
                Value::Tensor(tensor) if tensor.dtype != DType::Str => {
                    files::write_npy_to(file, place, tensor)
                }
                value => protos::write_to(file, place, value),
            })?;
        }
        files.commit()?;
        if args.json {
            say!("{}", described());
            return Ok(());
        }
        for ((name, value), place) in named.iter().zip(&places).filter(|_| !is_quiet()) {
            let what = match value {
                Value::Tensor(tensor) => format!("{}{:?}", tensor.dtype, tensor.shape),
                value => value.outline(),
            };
            say!("{name}: {what} in {}", place.display());
        }
        Ok(())
    };
    once().map_err(one)
}

/// Fails where an input that must be given is not.
fn check_given(graph: &Graph, inputs: &[Option<Tensor>]) -> Result<()> {
    let given = graph.inputs.iter().zip(inputs).take(graph.given_inputs());
    let is_missing = |(_, (input, tensor)): &(usize, (&Input, &Option<Tensor>))| {
        tensor.is_none() && input.default.is_none()
    };
    let Some((at, (input, _))) = given.enumerate().find(is_missing) else { return Ok(()) };
    let name = graph.input_parts.get(&at).map_or(&input.name, |(value, _)| value);
    let mut symbols: Vec<&str> = graph
        .input_ty(at)
        .shape
        .iter()
        .filter_map(Dim::as_sym)
        .map(|symbol| graph.symbols[symbol].name.as_str())
        .collect();
    symbols.dedup();
    let sizes: Vec<String> = symbols.iter().map(|symbol| format!("--size {symbol}=N")).collect();
    let sizes = if sizes.is_empty() { String::new() } else { format!("{}, ", sizes.join(" ")) };
    Err(usage(format!(
        "input `{name}` is missing: give --input {name}=FILE, {sizes}or --random SEED for random numbers"
    )))
}

/// The outputs for JSON: elements, or the file that they are written to.
fn described(named: &[(String, Value)], places: &[PathBuf]) -> Vec<serde_json::Value> {
    let mut outputs = vec![];
    for (at, (name, value)) in named.iter().enumerate() {
        if let Some(place) = places.get(at) {
            outputs.push(serde_json::json!({ "name": name, "file": place }));
            continue;
        }
        for (name, tensor) in value.tensors(name) {
            let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
            let elements = data::json(tensor);
            outputs.push(
                serde_json::json!({ "name": name, "dtype": dtype, "shape": shape, "elements": elements }),
            );
        }
    }
    outputs
}

/// Where the outputs are written; empty if they are not. Fails where that would replace something else.
fn places(graph: &Graph, args: &RunArgs) -> Result<Vec<PathBuf>> {
    let Some(folder) = &args.output else { return Ok(vec![]) };
    let mut read = vec![args.model.model.clone()];
    for argument in &args.inputs {
        read.push(PathBuf::from(argument));
        read.extend(argument.split_once('=').map(|(_, file)| PathBuf::from(file)));
    }
    let mut places: Vec<PathBuf> = Vec::new();
    for ports in values::grouped(&values::outputs(graph)) {
        let place = folder.join(format!("{}.{}", file_name(&ports[0].value), values::form(ports)));
        output::check_place(&place, &read)?;
        if places.contains(&place) {
            return Err(usage(format!("two outputs would be written to {}", place.display())));
        }
        places.push(place);
    }
    Ok(places)
}

/// A value's name without what file systems do not take.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
