//! `onnxc run`: compile, run once, show or write the outputs.

use crate::cli::args::RunArgs;
use crate::cli::session::{Problems, Session, io_error, native_options, one, usage};
use crate::cli::{data, files};
use crate::error::Result;
use crate::native;

pub fn run(args: &RunArgs) -> std::result::Result<(), Problems> {
    if args.random.is_none() && !args.sizes.sizes.is_empty() {
        return Err(one(usage("--size is for random inputs, which --random SEED asks for".to_string())));
    }
    let session = Session::open(&args.model).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    loaded.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let once = || -> Result<()> {
        let graph = &loaded.graph;
        let mut inputs = data::inputs_from(graph, &args.inputs)?;
        if let Some(seed) = args.random {
            data::fill_randomly(graph, &mut inputs, &args.sizes.sizes, seed)?;
        }
        let outputs = loaded.model()?.run(&inputs, &native::output_shapes(graph, &inputs)?)?;
        if let Some(folder) = &args.output {
            std::fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
        }
        for ((name, _), tensor) in graph.outputs.iter().zip(&outputs) {
            match &args.output {
                None => say!("{}", data::text(name, tensor)),
                Some(folder) => {
                    let path = folder.join(format!("{}.npy", file_name(name)));
                    files::write_npy(&path, tensor)?;
                    say!("{name}: {}{:?} in {}", tensor.dtype, tensor.shape, path.display());
                }
            }
        }
        Ok(())
    };
    once().map_err(one)
}

/// A value's name without what file systems do not take.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
