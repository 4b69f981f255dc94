//! What is measured: the models, and for each the inputs that every engine gets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use onnxc::cli::args::{BenchArgs, Cli, Command};
use onnxc::cli::session::Session;
use onnxc::cli::{data, files};
use onnxc::native;
use onnxc_ir::error::Error;
use onnxc_ir::graph::{DType, Graph, Tensor};
use onnxc_ir::interp;
use onnxc_proto::ModelProto;
use onnxc_proto::tensor_shape_proto::dimension::Value;
use onnxc_proto::type_proto;

use super::Result;
use super::engine::InputFile;

/// Sizes of symbolic dims.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Of a dim past the first, which is 1.
    pub dim: usize,
    /// Sizes of the dims in the order in which the inputs name them, one list per row; a list's last one serves all
    /// others. Empty: one row, its dims pinned when the model is compiled.
    pub lists: Vec<Vec<usize>>,
}

/// One model as all engines run it.
#[derive(Debug)]
pub struct Plan {
    pub name: String,
    pub model: PathBuf,
    /// Of onnxc: pins of symbolic dims among them.
    pub flags: Vec<String>,
    /// Sizes of named dims that are pinned.
    pub pins: BTreeMap<String, usize>,
    pub cases: Vec<Case>,
}

/// Inputs of a model.
#[derive(Debug)]
pub struct Case {
    /// Sizes of symbolic dims, such as `8x64`, where a model is run with several.
    pub sizes: Option<String>,
    pub inputs: Vec<InputFile>,
}

/// Every model that the paths name: a file, a folder's `model.onnx`, its `.onnx` files, those of its folders.
pub fn models(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let mut inside = models_in(path);
        for folder in entries(path).into_iter().filter(|entry| entry.is_dir()) {
            inside.extend(models_in(&folder));
        }
        if inside.is_empty() {
            return Err(format!("{}: no model in this folder", path.display()));
        }
        inside.sort();
        found.extend(inside);
    }
    Ok(found)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn models_in(folder: &Path) -> Vec<PathBuf> {
    let is_model = |path: &PathBuf| path.extension().is_some_and(|end| end == "onnx") && path.is_file();
    entries(folder).into_iter().filter(is_model).collect()
}

/// A model's name in tables: the file's, or the folder's of a `model.onnx`.
pub fn name(model: &Path) -> String {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match stem(model) {
        Some(name) if name != "model" => name,
        name => model.parent().and_then(stem).or(name).unwrap_or_default(),
    }
}

/// The arguments of `onnxc bench` for a model with flags of onnxc.
pub fn arguments(model: &Path, flags: &[String]) -> Result<BenchArgs> {
    let mut words = vec!["onnxc".into(), "bench".into(), model.as_os_str().to_owned()];
    words.extend(flags.iter().map(Into::into));
    match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
        Command::Bench(arguments) => Ok(arguments),
        _ => Err("`onnxc bench` is another command".to_string()),
    }
}

/// The first problem, and how many more there are.
pub fn problems(errors: &[Error]) -> String {
    let first = errors.first().map_or(String::new(), Error::to_string);
    if errors.len() > 1 { format!("{first}; and {} more", errors.len() - 1) } else { first }
}

fn one(error: Error) -> String {
    error.to_string()
}

/// Chooses the inputs of a model and writes them as `.npy` files into `folder`. The first data set beside the model has
/// them, unless there are `sizes` for symbolic dims; without, values are seeded: ones for masks, integers below 60,
/// normal floats.
pub fn plan(model: &Path, flags: &[String], sizes: &Sizes, folder: &Path) -> Result<Plan> {
    let session = Session::open(&arguments(model, flags)?.model).map_err(one)?;
    let symbolic = symbolic_dims(&session.decode().map_err(one)?);
    let mut plan = Plan {
        name: name(model),
        model: model.to_path_buf(),
        flags: flags.to_vec(),
        pins: BTreeMap::new(),
        cases: vec![],
    };
    if symbolic.is_empty() || sizes.lists.is_empty() {
        if let Some(tensors) = data_set(&session) {
            let (graph, tensors) = tensors?;
            plan.cases.push(Case { sizes: None, inputs: write(&graph, &tensors, &folder.join("data"))? });
            return Ok(plan);
        }
        for dim in symbolic {
            let usual = if dim.axis == 0 { 1 } else { sizes.dim };
            let size = match dim.name {
                Some(name) => *plan.pins.entry(name).or_insert(usual),
                None => usual,
            };
            plan.flags.extend(["--input-dim".to_string(), format!("{}:{}={size}", dim.input, dim.axis)]);
        }
        let session = Session::open(&arguments(model, &plan.flags)?.model).map_err(one)?;
        let graph = session.import().map_err(|errors| problems(&errors))?.graph;
        let tensors = seeded(&graph, &[])?;
        plan.cases.push(Case { sizes: None, inputs: write(&graph, &tensors, &folder.join("seeded"))? });
        return Ok(plan);
    }
    let graph = session.import().map_err(|errors| problems(&errors))?.graph;
    for list in &sizes.lists {
        let text = list.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let inputs = write(&graph, &seeded(&graph, list)?, &folder.join(&text))?;
        plan.cases.push(Case { sizes: Some(text), inputs });
    }
    Ok(plan)
}

/// A dim of an input that has no size in the file.
struct SymbolicDim {
    input: String,
    axis: usize,
    name: Option<String>,
}

fn symbolic_dims(model: &ModelProto) -> Vec<SymbolicDim> {
    let Some(graph) = &model.graph else { return vec![] };
    let mut found = Vec::new();
    for input in &graph.input {
        let name = input.name();
        let tensor = match input.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
            Some(type_proto::Value::TensorType(tensor)) => tensor,
            _ => continue,
        };
        if graph.initializer.iter().any(|constant| constant.name() == name) {
            continue;
        }
        for (axis, dim) in tensor.shape.iter().flat_map(|shape| &shape.dim).enumerate() {
            let name = match &dim.value {
                Some(Value::DimValue(size)) if *size >= 0 => continue,
                Some(Value::DimParam(name)) if !name.is_empty() => Some(name.clone()),
                _ => None,
            };
            found.push(SymbolicDim { input: input.name().to_string(), axis, name });
        }
    }
    found
}

type Inputs = Vec<Option<Tensor>>;

/// The graph and the inputs of the first data set beside the model, if there is one that fits it.
fn data_set(session: &Session) -> Option<Result<(Graph, Inputs)>> {
    let set = data::test_sets(session.folder()).into_iter().next()?;
    let graph = match session.import() {
        Ok(import) => import.graph,
        Err(errors) => return Some(Err(problems(&errors))),
    };
    let (inputs, _) = data::test_set(&graph, &set).ok()?;
    native::output_shapes(&graph, &inputs).ok()?;
    Some(Ok((graph, inputs)))
}

/// Seeded inputs; symbols take `sizes` in the order in which the inputs name them.
fn seeded(graph: &Graph, sizes: &[usize]) -> Result<Inputs> {
    let mut symbols = Vec::new();
    let mut random = fastrand::Rng::with_seed(0);
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        if input.default.is_some() {
            inputs.push(None);
            continue;
        }
        let ty = graph.ty(input.value);
        for symbol in ty.shape.iter().filter_map(|dim| dim.as_sym()) {
            if !symbols.contains(&symbol) {
                symbols.push(symbol);
            }
        }
        let size = |symbol| {
            let at = symbols.iter().position(|&known| known == symbol)?;
            sizes.get(at).or(sizes.last()).map(|&size| size as i64)
        };
        let shape: Option<Vec<usize>> =
            ty.shape.iter().map(|dim| usize::try_from(dim.eval(&size)?).ok()).collect();
        let shape = shape.ok_or_else(|| format!("input `{}` of type {ty} has no size", input.name))?;
        let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let count = count.filter(|&count| count <= 1 << 30);
        let count = count.ok_or_else(|| format!("input `{}` of shape {shape:?} is too large", input.name))?;
        let values: Vec<f64> = (0..count).map(|_| element(&input.name, ty.dtype, &mut random)).collect();
        inputs.push(Some(interp::cast(&Tensor::from_slice(&shape, &values), ty.dtype, true)));
    }
    Ok(inputs)
}

fn element(input: &str, dtype: DType, random: &mut fastrand::Rng) -> f64 {
    if input.contains("mask") {
        return 1.0;
    }
    match dtype {
        DType::Bool => f64::from(random.bool()),
        dtype if dtype.is_float() => {
            // Box and Muller (1958).
            let (radius, angle) = (1.0 - random.f64(), random.f64());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        }
        _ => f64::from(random.u8(0..60)),
    }
}

fn write(graph: &Graph, tensors: &Inputs, folder: &Path) -> Result<Vec<InputFile>> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut written = Vec::new();
    for (at, (input, tensor)) in graph.inputs.iter().zip(tensors).enumerate() {
        let file = match tensor {
            None => None,
            Some(tensor) => {
                let file = folder.join(format!("{at}.npy"));
                files::write_npy(&file, tensor).map_err(one)?;
                Some(file)
            }
        };
        let dtype = graph.ty(input.value).dtype.to_onnx();
        written.push(InputFile { name: input.name.clone(), file, dtype });
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_after_their_file_or_folder() {
        assert_eq!(name(Path::new("a/minilm.onnx")), "minilm");
        assert_eq!(name(Path::new("zoo/mnist_cntk/model.onnx")), "mnist_cntk");
        assert_eq!(name(Path::new("model.onnx")), "model");
    }

    #[test]
    fn folders_give_their_models_in_order() {
        let root = tempfile::tempdir().unwrap();
        for file in ["b.onnx", "a.onnx", "notes.txt", "c/model.onnx"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = models(&[root.path().to_path_buf()]).unwrap();
        let names: Vec<String> = found.iter().map(|path| name(path)).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(models(&[root.path().join("c"), root.path().join("missing.onnx")]).is_ok());
        std::fs::remove_file(root.path().join("c/model.onnx")).unwrap();
        assert!(models(&[root.path().join("c")]).unwrap_err().contains("no model"));
    }
}
