//! Variants of official tests: the same data, with what the model knows of its inputs changed.

use std::fs;
use std::io::{self, Error};
use std::path::Path;

use onnxc_proto::tensor_shape_proto::dimension::Value as DimValue;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{GraphProto, ModelProto, TensorProto, ValueInfoProto};
use prost::Message;
use serde_json::{Value, json};

use crate::suite::Case;

/// What is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// Every dim of every input is a symbol of its own.
    Symbolic,
    /// Inputs are initializers of the first data set's values, so that all is computed at compile time.
    Constant,
}

impl Variant {
    /// Writes the variant of `case` into `folder`; `None` where there is none, as the test has no inputs or no data.
    pub fn apply(self, case: &Case, folder: &Path) -> io::Result<Option<Case>> {
        let mut meta: Value = serde_json::from_slice(&fs::read(case.folder.join("meta.json"))?)?;
        let mut model = ModelProto::decode(fs::read(case.model())?.as_slice()).map_err(Error::other)?;
        let Some(graph) = model.graph.as_mut() else { return Ok(None) };
        if graph.input.is_empty() || meta["data_sets"].as_array().is_none_or(Vec::is_empty) {
            return Ok(None);
        }
        match self {
            Variant::Symbolic => make_symbolic(graph),
            Variant::Constant => {
                let set = &meta["data_sets"][0];
                let Some(kinds) = set[0].as_array() else { return Ok(None) };
                if kinds.iter().any(|kind| kind != "tensor") {
                    return Ok(None);
                }
                make_constant(graph, &case.folder.join("test_data_set_0"), kinds.len())?;
                meta["data_sets"] = json!([[[], set[1].clone()]]);
            }
        }
        let target = folder.join(&case.symbol);
        let sets = meta["data_sets"].as_array().map_or(0, Vec::len);
        for at in 0..sets {
            let name = format!("test_data_set_{at}");
            fs::create_dir_all(target.join(&name))?;
            for entry in fs::read_dir(case.folder.join(&name))? {
                let entry = entry?;
                let mut file = entry.file_name().to_string_lossy().into_owned();
                if self == Variant::Constant {
                    file = file.replace("input", "constant");
                }
                fs::copy(entry.path(), target.join(&name).join(file))?;
            }
        }
        fs::write(target.join("meta.json"), serde_json::to_vec(&meta)?)?;
        fs::write(target.join("model.onnx"), model.encode_to_vec())?;
        Ok(Some(Case { folder: target, ..case.clone() }))
    }
}

/// Results have the type and rank they had, and what sizes they come out with.
fn forget_shapes(graph: &mut GraphProto) {
    graph.value_info.clear();
    for output in &mut graph.output {
        if let Some(TypeValue::TensorType(tensor)) = output.r#type.as_mut().and_then(|ty| ty.value.as_mut()) {
            let dims = tensor.shape.iter_mut().flat_map(|shape| shape.dim.iter_mut());
            dims.for_each(|dim| dim.value = None);
        }
    }
}

fn make_symbolic(graph: &mut GraphProto) {
    forget_shapes(graph);
    let constants: Vec<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    for (at, input) in graph.input.iter_mut().enumerate() {
        if constants.contains(&input.name()) {
            continue;
        }
        let Some(TypeValue::TensorType(tensor)) = input.r#type.as_mut().and_then(|ty| ty.value.as_mut())
        else {
            continue;
        };
        for (axis, dim) in tensor.shape.iter_mut().flat_map(|shape| shape.dim.iter_mut()).enumerate() {
            dim.value = Some(DimValue::DimParam(format!("s{at}_{axis}")));
        }
    }
}

fn make_constant(graph: &mut GraphProto, data: &Path, count: usize) -> io::Result<()> {
    forget_shapes(graph);
    let given: Vec<String> = graph.initializer.iter().map(|tensor| tensor.name().to_string()).collect();
    // As test data does: with files for all inputs, or for those without initializer.
    let all = count == graph.input.len();
    let wanted = |info: &ValueInfoProto| all || !given.iter().any(|name| name == info.name());
    let names: Vec<String> =
        graph.input.iter().filter(|info| wanted(info)).map(|info| info.name().to_string()).collect();
    for (at, name) in names.iter().enumerate() {
        let bytes = fs::read(data.join(format!("input_{at}.pb")))?;
        let mut tensor = TensorProto::decode(bytes.as_slice()).map_err(Error::other)?;
        tensor.name = Some(name.clone());
        graph.initializer.retain(|other| other.name() != name);
        graph.initializer.push(tensor);
    }
    graph.input.retain(|info| !names.iter().any(|name| name == info.name()));
    Ok(())
}
