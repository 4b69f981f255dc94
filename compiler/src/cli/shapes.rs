//! Ranks of inputs that the model declares without a shape: those of the data that it is to run on.

use std::path::{Path, PathBuf};

use onnxc_proto::GraphProto;

use crate::cli::files;
use crate::cli::session::Session;
use onnxc_import::{InputDim, InputShape, open_inputs};
use onnxc_ir::error::Result;

/// Where a run has its data.
pub(super) enum Given<'a> {
    /// `FILE` or `INPUT=FILE`, as [`data::inputs_from`](super::data::inputs_from) takes them.
    Files(&'a [String]),
    /// A folder of test data.
    Folder(&'a Path),
}

/// Gives inputs without a shape the ranks of the data. Their sizes stay open, so that other data will do, too; where the model can
/// only be compiled for known sizes, they are those of the data.
pub(super) fn from_data(session: &mut Session, given: &Given<'_>) -> Result<()> {
    // What is wrong with the model is reported when it is compiled.
    let Ok(proto) = session.decode() else { return Ok(()) };
    let options = session.import_options();
    let Some(graph) = &proto.graph else { return Ok(()) };
    let open = open_inputs(graph, &options.input_shapes);
    if open.is_empty() {
        return Ok(());
    }
    let (mut ranks, mut shapes) = (vec![], vec![]);
    for (name, path) in files_of(graph, options.overridable_defaults, given) {
        if !open.contains(&name) {
            continue;
        }
        let shape = files::read_tensor(&path, None)?.shape;
        ranks.push(InputShape::of_rank(name, shape.len()));
        let dims = shape.into_iter().map(|size| InputDim::Size(size as i64)).collect();
        shapes.push(InputShape { input: name.to_string(), dims });
    }
    session.set_shapes(ranks);
    if let Err(problems) = session.import() {
        let ranks = session.set_shapes(shapes);
        if session.import().is_err_and(|more| more.len() >= problems.len()) {
            session.set_shapes(ranks);
        }
    }
    Ok(())
}

/// The files of inputs, by the inputs' names.
fn files_of<'m>(graph: &'m GraphProto, overridable: bool, given: &Given<'_>) -> Vec<(&'m str, PathBuf)> {
    let has_default = |name: &str| graph.initializer.iter().any(|tensor| tensor.name() == name);
    let all: Vec<&str> = graph.input.iter().map(|info| info.name()).collect();
    let without: Vec<&str> = all.iter().copied().filter(|name| !has_default(name)).collect();
    match given {
        Given::Folder(folder) => {
            let paths = files::numbered(folder, "input");
            let names = if overridable && paths.len() == all.len() { all } else { without };
            names.into_iter().zip(paths).collect()
        }
        Given::Files(arguments) => {
            let mut names = if overridable { all } else { without };
            let (mut found, mut rest) = (vec![], vec![]);
            for argument in *arguments {
                let named = argument
                    .split_once('=')
                    .and_then(|(name, file)| Some((names.iter().position(|known| *known == name)?, file)));
                match named {
                    Some((at, file)) => found.push((names.remove(at), PathBuf::from(file))),
                    None => rest.push(PathBuf::from(argument)),
                }
            }
            found.extend(names.into_iter().zip(rest));
            found
        }
    }
}
