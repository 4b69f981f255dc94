//! The process that compiles and runs random graphs, for whoever writes requests to its standard input: a crash, a panic
//! or a hang is the one request's failure.
//!
//! Requests and replies are frames: the lengths of a JSON text and of a blob as little-endian u32, the text, the blob. Before
//! each step that may crash a reply `{"at": ...}` says what it is; the last reply of a request is a `Reply`.

use std::io::{self, Error, Read, Write};
use std::path::Path;

use bytes::Bytes;
use onnxc::native::Models;
use onnxc::{Compiled, Options, Quiet, native};
use onnxc_import::{DimPin, ImportOptions, NoExternalData};
use onnxc_ir::graph::{Graph, Op, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_schedule::{Program, Step};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::run::{Ending, Output, run};
use crate::compile::{Failure, catch_panic};

/// A model to be compiled in several ways, each run on several sets of inputs.
#[derive(Deserialize)]
struct Request {
    /// Bytes of the model in the blob.
    model: usize,
    ways: Vec<Way>,
    /// Per set the bytes of each input, a `TensorProto`, which follow the model.
    sets: Vec<Vec<usize>>,
}

/// How a model is compiled and run.
#[derive(Deserialize)]
struct Way {
    name: String,
    /// Processor; `interpreter` for the graph's interpreter.
    cpu: String,
    /// Bits of the widest vectors, where not the processor's.
    width: Option<usize>,
    level: u8,
    exact: bool,
    /// Sizes given to symbols.
    pins: Vec<(String, i64)>,
    /// The sets to run.
    sets: Vec<usize>,
}

#[derive(Serialize, Default)]
struct Reply {
    ways: Vec<Report>,
}

/// How one way went.
#[derive(Serialize, Default)]
struct Report {
    /// Why there is no code: the kinds of the errors, and their text.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<(String, String)>,
    /// Nodes other than views, per fusion group.
    groups: Vec<usize>,
    runs: Vec<Run>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Run {
    /// Element type, dims and bytes of each output; the bytes, of strings the texts behind their lengths, are in the blob, in
    /// this order.
    Outputs(Vec<(i32, Vec<i64>, usize)>),
    Refused {
        status: i32,
        message: String,
        untouched: bool,
    },
    Broken(String),
}

/// Serves requests until standard input ends.
pub fn serve() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut number = 0u64;
    while let Some((text, blob)) = read_frame(&mut input)? {
        let request: Request = serde_json::from_slice(&text).map_err(Error::other)?;
        number += 1;
        let (reply, data) = answer(&request, Bytes::from(blob), folder.path(), number, &mut output)?;
        write_frame(&mut output, &reply, &data)?;
    }
    Ok(())
}

fn read_frame(input: &mut impl Read) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut lengths = [0u8; 8];
    match input.read_exact(&mut lengths) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| lengths[at + byte])) as usize;
    let (mut text, mut blob) = (vec![0; length(0)], vec![0; length(4)]);
    input.read_exact(&mut text)?;
    input.read_exact(&mut blob)?;
    Ok(Some((text, blob)))
}

fn write_frame(output: &mut impl Write, value: &impl Serialize, blob: &[u8]) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    output.write_all(&(text.len() as u32).to_le_bytes())?;
    output.write_all(&(blob.len() as u32).to_le_bytes())?;
    output.write_all(&text)?;
    output.write_all(blob)?;
    output.flush()
}

/// A model compiled in one way.
enum Code {
    Graph(Box<Graph>),
    /// Symbol prefix in the library.
    Native(Box<Compiled>, String),
}

fn answer(
    request: &Request,
    blob: Bytes,
    folder: &Path,
    number: u64,
    output: &mut impl Write,
) -> io::Result<(Reply, Vec<u8>)> {
    let model = blob.slice(..request.model);
    let mut at = request.model;
    let mut tensor = |length: &usize| {
        let bytes = blob.slice(at..at + length);
        at += length;
        let proto = onnxc_proto::TensorProto::decode(bytes).map_err(Error::other)?;
        onnxc_import::dense_tensor(&proto).map_err(Error::other)
    };
    let sets =
        request.sets.iter().map(|set| set.iter().map(&mut tensor).collect::<io::Result<Vec<Tensor>>>());
    let sets = sets.collect::<io::Result<Vec<_>>>()?;
    let (mut codes, mut objects) = (Vec::new(), Vec::new());
    for (at, way) in request.ways.iter().enumerate() {
        write_frame(output, &serde_json::json!({"at": format!("compiling {}", way.name)}), &[])?;
        let name = format!("w{at}");
        let object = folder.join(format!("{number}-{at}.o"));
        let compiled = catch_panic(|| prepare(model.clone(), way, &name, &object));
        codes.push(compiled.map_err(Failure::Panic).and_then(|result| result.map_err(Failure::Errors)));
        if let Some(Ok(Code::Native(..))) = codes.last() {
            objects.push(object);
        }
    }
    let path = folder.join(format!("{number}.so"));
    let library = match objects.is_empty() {
        true => None,
        false => {
            native::link(&objects, &path).map_err(Error::other)?;
            Some(Models::load(&path).map_err(Error::other)?)
        }
    };
    let (mut reply, mut data) = (Reply::default(), Vec::new());
    for (way, code) in request.ways.iter().zip(codes) {
        let mut report = Report::default();
        match code {
            Err(failure) => report.failure = Some(describe(&failure)),
            Ok(code) => {
                if let Code::Native(compiled, _) = &code {
                    group_sizes(&compiled.graph, &compiled.program, &mut report.groups);
                }
                for &set in &way.sets {
                    write_frame(
                        output,
                        &serde_json::json!({"at": format!("running {} on set {set}", way.name)}),
                        &[],
                    )?;
                    report.runs.push(run_set(&code, library.as_ref(), &sets[set], &mut data));
                }
            }
        }
        reply.ways.push(report);
    }
    drop(library);
    objects.iter().chain([&path]).for_each(|file| drop(std::fs::remove_file(file)));
    Ok((reply, data))
}

fn describe(failure: &Failure) -> (String, String) {
    let kind = match failure {
        Failure::Panic(_) => "panic".to_string(),
        Failure::Errors(errors) => {
            let mut kinds: Vec<String> =
                errors.iter().map(|error| format!("{:?}", error.kind).to_lowercase()).collect();
            kinds.dedup();
            kinds.join(" ")
        }
    };
    (kind, failure.to_string())
}

fn prepare(model: Bytes, way: &Way, name: &str, object: &Path) -> Result<Code, Vec<onnxc_ir::error::Error>> {
    let one = |error| vec![error];
    let pins = way.pins.iter().map(|(target, size)| DimPin { target: target.clone(), size: *size });
    let import = ImportOptions { input_dims: pins.collect(), ..ImportOptions::default() };
    if way.cpu == "interpreter" {
        let proto = onnxc::decode(model).map_err(one)?;
        return Ok(Code::Graph(Box::new(
            onnxc_import::import(&proto, &import, &NoExternalData, onnxc::operators())?.graph,
        )));
    }
    let target = Target::host().and_then(|host| Target::new(host.triple, Some(way.cpu.as_str())));
    let target = target.and_then(|target| match way.width {
        Some(bits) => target.with_vector_width(bits),
        None => Ok(target),
    });
    let options = Options {
        opt_level: way.level,
        exact: way.exact,
        import,
        ..Options::new(name, target.map_err(one)?)
    };
    let compiled = onnxc::compile(model, &NoExternalData, &options, &mut Quiet)?;
    let mut bytes = Vec::new();
    compiled.artifact().and_then(|artifact| artifact.write_object(&mut bytes)).map_err(one)?;
    std::fs::write(object, bytes).map_err(|error| {
        one(onnxc_ir::error::Error::new(
            onnxc_ir::error::Stage::Io,
            onnxc_ir::error::Kind::Io,
            error.to_string(),
        ))
    })?;
    Ok(Code::Native(Box::new(compiled), name.to_string()))
}

/// Nodes that compute something, of every group and of those of bodies.
fn group_sizes(graph: &Graph, program: &Program, sizes: &mut Vec<usize>) {
    let computes = |op: &Op| !op.is_view();
    for group in program.groups.values() {
        sizes.push(group.nodes.iter().filter(|&&node| computes(&graph.nodes[node].op)).count());
    }
    for step in &program.steps {
        if let Step::Control { node, bodies, .. } = step {
            for (body, program) in graph.nodes[*node].op.bodies().iter().zip(bodies) {
                group_sizes(body, program, sizes);
            }
        }
    }
}

fn run_set(code: &Code, library: Option<&Models>, inputs: &[Tensor], data: &mut Vec<u8>) -> Run {
    let ending = match (code, library) {
        (Code::Graph(graph), _) => interpret(graph, inputs),
        (Code::Native(compiled, name), Some(library)) => {
            let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
            // Where the sizes of inputs contradict each other, nobody knows the outputs': the run is to say so.
            let shapes = native::output_shapes(&compiled.graph, &given)
                .unwrap_or_else(|_| vec![None; compiled.graph.outputs.len()]);
            run(library, name, inputs, &shapes)
        }
        (Code::Native(..), None) => Ending::Broken("nothing was linked".to_string()),
    };
    match ending {
        Ending::Refused { status, message, untouched } => Run::Refused { status, message, untouched },
        Ending::Broken(what) => Run::Broken(what),
        Ending::Outputs(outputs) => Run::Outputs(
            outputs
                .into_iter()
                .map(|Output { dtype, dims, data: bytes }| {
                    data.extend_from_slice(&bytes);
                    (dtype, dims, bytes.len())
                })
                .collect(),
        ),
    }
}

fn interpret(graph: &Graph, inputs: &[Tensor]) -> Ending {
    match catch_panic(|| interp::run(graph, inputs)) {
        Err(message) => Ending::Broken(format!("panic: {message}")),
        Ok(Err(error)) if error.kind == onnxc_ir::error::Kind::Internal => Ending::Broken(error.to_string()),
        Ok(Err(error)) => Ending::Refused { status: 0, message: error.to_string(), untouched: true },
        Ok(Ok(outputs)) => Ending::Outputs(outputs.iter().map(Output::of).collect()),
    }
}
