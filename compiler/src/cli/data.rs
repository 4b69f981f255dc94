//! Inputs and outputs of runs: files matched to a model's inputs, random tensors, values as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::files;
use crate::cli::session::usage;
use crate::cli::values::{self, Value};
use onnxc_import::DimPin;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Graph, Sym, Tensor, TensorType};
use onnxc_ir::interp;
use onnxc_ir::words::did_you_mean;

/// Tensors for the graph's inputs from arguments: `FILE` is for the next value without one, `NAME=FILE` for the value or the
/// input of the name. What is missing stays `None`.
pub fn inputs_from(graph: &Graph, arguments: &[String]) -> Result<Vec<Option<Tensor>>> {
    let ports = values::inputs(graph);
    let groups = values::grouped(&ports);
    let mut inputs: Vec<Option<Tensor>> = vec![None; ports.len()];
    let first = |group: usize| groups[..group].iter().map(|own| own.len()).sum::<usize>();
    let twice = |name: &str| Err(usage(format!("input `{name}` is given twice")));
    let mut rest = Vec::new();
    for argument in arguments {
        let Some((name, file)) = argument.split_once('=') else {
            rest.push(argument);
            continue;
        };
        if let Some(at) = graph.inputs.iter().position(|input| input.name == name) {
            let dtype = graph.ty(graph.inputs[at].value).dtype;
            let tensor = files::read_tensor(Path::new(file), Some(dtype))?;
            check_type(name, ports[at].dtype(), &tensor, Path::new(file))?;
            if inputs[at].replace(tensor).is_some() {
                return twice(name);
            }
        } else if let Some(group) = groups.iter().position(|own| own[0].value == name) {
            let value = read(Path::new(file), groups[group])?;
            for (at, tensor) in (first(group)..).zip(values::pack(&value, groups[group])?) {
                if inputs[at].replace(tensor).is_some() {
                    return twice(name);
                }
            }
        } else if Path::new(argument).exists() {
            rest.push(argument);
        } else {
            let names: Vec<&str> = groups.iter().map(|own| own[0].value.as_str()).collect();
            return Err(usage(no_input(name, &names)));
        }
    }
    for path in rest {
        let free = |group: &usize| inputs[first(*group)].is_none();
        let Some(group) = (0..groups.len()).find(free) else {
            let names: Vec<&str> = groups.iter().map(|own| own[0].value.as_str()).collect();
            return Err(usage(format!("no input is left for `{path}`; there are {}", names.join(", "))));
        };
        let value = read(Path::new(path), groups[group])?;
        for (at, tensor) in (first(group)..).zip(values::pack(&value, groups[group])?) {
            inputs[at] = Some(tensor);
        }
    }
    Ok(inputs)
}

/// The value in a file, which has the type of its input.
fn read(path: &Path, ports: &[values::Port]) -> Result<Value> {
    let value = values::read(path, ports)?;
    if let (Value::Tensor(tensor), [port]) = (&value, ports) {
        check_type(&port.value, port.dtype(), tensor, path)?;
    }
    Ok(value)
}

fn check_type(input: &str, dtype: DType, tensor: &Tensor, path: &Path) -> Result<()> {
    match tensor.dtype == dtype {
        true => Ok(()),
        false => {
            Err(usage(format!("input `{input}` takes {dtype}, and {} has {}", path.display(), tensor.dtype)))
        }
    }
}

/// That a model has no input of a name.
fn no_input(name: &str, names: &[&str]) -> String {
    let hint = did_you_mean(name, names.iter().copied());
    let there = if names.is_empty() { "no inputs".to_string() } else { names.join(", ") };
    format!("the model has no input `{name}`{hint}; it has {there}")
}

/// Inputs and expected outputs of a folder of test data, for the graph's inputs and outputs.
pub fn test_set(graph: &Graph, folder: &Path) -> Result<(Vec<Option<Tensor>>, Vec<Tensor>)> {
    let (inputs, wanted) = test_values(graph, folder)?;
    let ports = values::outputs(graph);
    let packed = wanted.iter().zip(values::grouped(&ports)).map(|(value, own)| values::pack(value, own));
    Ok((inputs, packed.collect::<Result<Vec<_>>>()?.concat()))
}

/// As [`test_set`], with the outputs as the values that they are parts of.
pub fn test_values(graph: &Graph, folder: &Path) -> Result<(Vec<Option<Tensor>>, Vec<Value>)> {
    let outputs = values::outputs(graph);
    let groups = values::grouped(&outputs);
    // Files are numbered as the model's values are; states come last here.
    let mut order = in_model(&groups, &graph.output_numbers());
    // Inputs alone that are state have no file: they are to be left as they are.
    let alone =
        order.split_off(order.len() - (0..graph.states.len()).filter(|&at| graph.is_alone(at)).count());
    let ordered: Vec<&[values::Port]> = order.iter().map(|&group| groups[group]).collect();
    let read = values::read_numbered(folder, "output", &ordered)?;
    let mut wanted: Vec<(usize, Value)> = order.into_iter().zip(read).collect();
    let found = test_inputs(graph, folder)?;
    for group in alone {
        let input = values::inputs(graph).iter().position(|input| input.value == groups[group][0].value);
        let tensor = input.and_then(|at| found[at].clone());
        wanted.extend(tensor.map(|tensor| (group, Value::Tensor(tensor))));
    }
    wanted.sort_by_key(|(group, _)| *group);
    let wanted: Vec<Value> = wanted.into_iter().map(|(_, value)| value).collect();
    let count = groups.len();
    if wanted.len() != count {
        let found = wanted.len();
        return Err(usage(format!("{}: {found} outputs, where the model has {count}", folder.display())));
    }
    Ok((found, wanted))
}

/// Inputs of a folder of test data, for the graph's inputs. Files are numbered as in the model.
pub fn test_inputs(graph: &Graph, folder: &Path) -> Result<Vec<Option<Tensor>>> {
    if files::numbered(folder, "input").is_empty() && !graph.inputs.is_empty() {
        let sets = test_sets(folder);
        let inside = sets.first().map_or(String::new(), |first| format!("; there is {}", first.display()));
        return Err(usage(format!("{}: no input_0.pb{inside}", folder.display())));
    }
    let inputs = values::inputs(graph);
    let numbers = graph.input_numbers();
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|&at| numbers[at]);
    let ordered: Vec<values::Port> = order.iter().map(|&at| inputs[at].clone()).collect();
    let mut found = vec![None; inputs.len()];
    for (at, tensor) in order.into_iter().zip(values::test_inputs(&ordered, folder)?) {
        found[at] = tensor;
    }
    Ok(found)
}

/// The values in the model's order; `numbers` are those of their ports there.
fn in_model(groups: &[&[values::Port]], numbers: &[usize]) -> Vec<usize> {
    let first = |group: usize| groups[..group].iter().map(|own| own.len()).sum::<usize>();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| numbers[first(group)]);
    order
}

/// Every `test_data_set_*` beneath a folder, in the order of their names.
pub fn test_sets(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_data_set_"))
        })
        .collect();
    folders.sort();
    folders
}

/// Fills what is missing with random values: floats in [-1, 1), integers 0 or 1. Symbolic dims have the size from `sizes` or a given input,
/// otherwise 1. The same seed gives the same tensors on every machine.
pub fn fill_randomly(
    graph: &Graph,
    inputs: &mut [Option<Tensor>],
    sizes: &[String],
    seed: u64,
) -> Result<()> {
    let symbols = sizes_of(graph, inputs, sizes)?;
    let mut state = seed;
    for (at, (input, slot)) in graph.inputs.iter().zip(inputs).enumerate() {
        if slot.is_some() || input.default.is_some() {
            continue;
        }
        let ty = graph.input_ty(at);
        let shape = shape_of(graph, at, &symbols)?;
        *slot = Some(random(&input.name, ty, &shape, &mut state)?);
    }
    Ok(())
}

/// Gives inputs the value from `fills` (`INPUT=NUMBER`) in every element; sizes are those of [`fill_randomly`].
pub fn fill(graph: &Graph, inputs: &mut [Option<Tensor>], sizes: &[String], fills: &[String]) -> Result<()> {
    let symbols = sizes_of(graph, inputs, sizes)?;
    for text in fills {
        let parts =
            text.rsplit_once('=').and_then(|(name, number)| Some((name, number.parse::<f64>().ok()?)));
        let Some((name, number)) = parts else {
            return Err(usage(format!("--fill {text}: must be INPUT=NUMBER")));
        };
        let Some(at) = graph.inputs.iter().position(|input| input.name == name) else {
            let names: Vec<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
            return Err(usage(format!("--fill {text}: {}", no_input(name, &names))));
        };
        let (ty, shape) = (graph.input_ty(at), shape_of(graph, at, &symbols)?);
        if ty.dtype == DType::Str {
            return Err(usage(format!("--fill {text}: the input is of strings")));
        }
        let values = vec![number; shape.iter().product()];
        inputs[at] = Some(interp::cast(&Tensor::from_slice(&shape, &values), ty.dtype, true));
    }
    Ok(())
}

/// Values of the symbols of open dims from `sizes` or given inputs.
pub type Symbols = cranelift_entity::SecondaryMap<Sym, Option<i64>>;

fn sizes_of(graph: &Graph, inputs: &[Option<Tensor>], sizes: &[String]) -> Result<Symbols> {
    let mut symbols = Symbols::new();
    for text in sizes {
        let size: DimPin = text.parse()?;
        symbols[open_dim(graph, &size)?] = Some(size.size);
    }
    for (symbol, size) in given_sizes(graph, inputs) {
        symbols[symbol] = Some(size as i64);
    }
    Ok(symbols)
}

/// Sizes of the symbols that follow from inputs.
pub fn symbols(graph: &Graph, inputs: &[Option<Tensor>]) -> Symbols {
    let mut symbols = Symbols::new();
    given_sizes(graph, inputs).for_each(|(symbol, size)| symbols[symbol] = Some(size as i64));
    symbols
}

/// Dims of an input for a run; unknown ones are 1.
fn shape_of(graph: &Graph, at: usize, symbols: &Symbols) -> Result<Vec<usize>> {
    let size = |dim: &onnxc_ir::graph::Dim| dim.eval(&|symbol| Some(symbols[symbol].unwrap_or(1)));
    let size = |dim| size(dim).and_then(|size| usize::try_from(size).ok());
    let shape: Option<Vec<usize>> = graph.found_shape(at).iter().map(size).collect();
    shape.ok_or_else(|| {
        let (name, ty) = (&graph.inputs[at].name, graph.input_ty(at));
        usage(format!("input `{name}` of type {ty}: its sizes are not known; --size gives them"))
    })
}

/// Sizes of the open dims that inputs have, by the names of their symbols.
pub fn open_sizes(graph: &Graph, inputs: &[Option<Tensor>]) -> BTreeMap<String, usize> {
    given_sizes(graph, inputs).map(|(symbol, size)| (graph.symbols[symbol].name.clone(), size)).collect()
}

/// The symbols of the inputs that are given, each with the size that it has there.
fn given_sizes(graph: &Graph, inputs: &[Option<Tensor>]) -> impl Iterator<Item = (Sym, usize)> {
    let given = inputs.iter().enumerate().filter_map(|(at, tensor)| Some((at, tensor.as_ref()?)));
    given
        .flat_map(|(at, tensor)| graph.found_shape(at).into_iter().zip(&tensor.shape))
        .filter_map(|(dim, &size)| Some((dim.as_sym()?, size)))
}

/// The symbol that a size is of: named, or that of an input's axis.
fn open_dim(graph: &Graph, size: &DimPin) -> Result<Sym> {
    let dims = || {
        (0..graph.inputs.len())
            .flat_map(|at| graph.found_shape(at).into_iter().filter_map(|dim| dim.as_sym()))
    };
    if let Some(symbol) = dims().find(|&symbol| graph.symbols[symbol].name == size.target) {
        return Ok(symbol);
    }
    let axis = size.input_axis().and_then(|(input, axis)| {
        let at = graph.inputs.iter().position(|known| known.name == input)?;
        graph.found_shape(at).into_iter().nth(axis)
    });
    axis.and_then(|dim| dim.as_sym()).ok_or_else(|| {
        let mut open: Vec<&str> = dims().map(|symbol| graph.symbols[symbol].name.as_str()).collect();
        open.sort_unstable();
        open.dedup();
        let hint = did_you_mean(&size.target, open.iter().copied());
        let open = if open.is_empty() {
            "no open dims".into()
        } else {
            format!("these open dims: {}", open.join(", "))
        };
        usage(format!("size of `{}`: the inputs have {open}{hint}", size.target))
    })
}

fn random(name: &str, ty: &TensorType, shape: &[usize], state: &mut u64) -> Result<Tensor> {
    const CHUNK: usize = 4096;
    if ty.dtype == DType::Str {
        return Err(usage(format!("input `{name}` is of strings: give a file, there are no random ones")));
    }
    let component = match ty.dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        dtype => dtype,
    };
    let bytes = shape.iter().try_fold(ty.dtype.size(), |product, &size| product.checked_mul(size));
    let mut data = Vec::new();
    let Some(bytes) = bytes.filter(|&bytes| data.try_reserve_exact(bytes).is_ok()) else {
        let message = format!("no memory for input `{name}` of shape {shape:?} and type {}", ty.dtype);
        return Err(Error::new(Stage::Run, Kind::Budget, message));
    };
    let mut next = || {
        // SplitMix64 (Steele, Lea and Flood 2014).
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let parts = bytes / component.size();
    for start in (0..parts).step_by(CHUNK) {
        let values: Vec<f64> = (start..parts.min(start + CHUNK))
            .map(|_| match component.is_float() {
                true => (next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0,
                false => (next() >> 63) as f64,
            })
            .collect();
        let wide = Tensor::from_slice(&[values.len()], &values);
        data.extend_from_slice(&interp::cast(&wide, component, true).data);
    }
    Ok(Tensor::new(ty.dtype, shape.to_vec(), data.into()))
}

/// A tensor's type and elements; many elements are cut in the middle.
pub fn text(name: &str, tensor: &Tensor) -> String {
    const SHOWN: usize = 32;
    let shown = if tensor.len() > SHOWN {
        let tail = tensor.len() - SHOWN / 2;
        [elements(tensor, 0..SHOWN / 2), vec!["...".into()], elements(tensor, tail..tensor.len())].concat()
    } else {
        elements(tensor, 0..tensor.len())
    };
    let shown = shown.join(", ");
    format!("{name}: {}{:?} = {shown}", tensor.dtype, tensor.shape)
}

/// All elements of a tensor for JSON, which has no infinities and no NaN: these are texts, and so are complex numbers and others
/// that JSON has no form for.
pub fn json(tensor: &Tensor) -> Vec<serde_json::Value> {
    if tensor.dtype == DType::Str {
        return tensor.texts().iter().map(|text| String::from_utf8_lossy(text).into()).collect();
    }
    let value = |text: String| serde_json::from_str(&text).unwrap_or_else(|_| text.into());
    elements(tensor, 0..tensor.len()).into_iter().map(value).collect()
}

/// Some elements of a tensor as text.
fn elements(tensor: &Tensor, range: std::ops::Range<usize>) -> Vec<String> {
    let part = tensor.part(range.start, &[range.len()]);
    if part.dtype == DType::Str {
        return part.texts().iter().map(|text| format!("{:?}", String::from_utf8_lossy(text))).collect();
    }
    match (part.to_i64s(), part.dtype) {
        (_, DType::Bool) => part.data.iter().map(|&byte| (byte != 0).to_string()).collect(),
        (_, DType::U64) => part.values::<u64>().iter().map(u64::to_string).collect(),
        (Some(integers), _) => integers.iter().map(i64::to_string).collect(),
        (None, DType::F32) => part.values::<f32>().iter().map(f32::to_string).collect(),
        (None, dtype) if dtype.is_float() => {
            interp::cast(&part, DType::F64, true).values::<f64>().iter().map(f64::to_string).collect()
        }
        (None, dtype) => part.data.chunks(dtype.size()).map(|bytes| format!("{bytes:02x?}")).collect(),
    }
}
