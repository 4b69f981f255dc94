//! `onnxc run`: compile, run once, show or write the outputs.

use std::path::PathBuf;

use crate::cli::args::RunArgs;
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Session, native_options, one, tell, usage};
use crate::cli::shapes::{self, Given};
use crate::cli::values::{self, Value};
use crate::cli::{data, files, protos};
use crate::error::Result;
use crate::files::io_error;
use crate::graph::{DType, Graph};
use crate::native::{self, Call};

pub fn run(args: &RunArgs) -> std::result::Result<(), Problems> {
    for (flag, values) in [("size", &args.sizes.sizes), ("fill", &args.sizes.fill)] {
        if args.random.is_none() && !values.is_empty() {
            let message = format!("--{flag} is for random inputs, which --random SEED asks for");
            return Err(one(usage(message)));
        }
    }
    let mut session = Session::open(&args.model).map_err(one)?;
    let given = args.data.as_deref().map_or(Given::Files(&args.inputs), Given::Folder);
    shapes::from_data(&mut session, &given).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    tell(&loaded.warnings, &loaded.notes);
    let once = || -> Result<()> {
        let graph = &loaded.graph;
        let mut inputs = match &args.data {
            Some(folder) => data::test_inputs(graph, folder)?,
            None => data::inputs_from(graph, &args.inputs)?,
        };
        if let Some(seed) = args.random {
            data::fill(graph, &mut inputs, &args.sizes.sizes, &args.sizes.fill)?;
            data::fill_randomly(graph, &mut inputs, &args.sizes.sizes, seed)?;
        }
        if let Some(folder) = &args.output {
            std::fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
        }
        let places = places(graph, args)?;
        let call = Call { seed: args.seed, ..Call::default() };
        let outputs = loaded.model()?.run_with(&inputs, &native::output_shapes(graph, &inputs)?, &call)?;
        let named = values::unpack_all(&outputs, &values::outputs(graph))?;
        let Some(first) = places.first() else {
            for (name, value) in named {
                if !matches!(value, Value::Tensor(_)) {
                    say!("{name}: {}", value.outline());
                }
                value.tensors(&name).iter().for_each(|(name, tensor)| say!("{}", data::text(name, tensor)));
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
        for ((name, value), place) in named.iter().zip(&places) {
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
