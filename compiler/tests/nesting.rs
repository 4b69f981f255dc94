//! The library recurses on its caller's stack, down to the nesting of bodies that [`onnxc_import::Limits::nesting`] allows. Its
//! default must do with 2 MiB, which is what a thread gets; without optimization, with the 8 MiB of a process's first thread.

use onnxc::Options;
use onnxc_import::{Limits, NoExternalData};
use onnxc_ir::error::Error;
use onnxc_machine::target::Target;
use onnxc_proto::build::{self, subgraph, untyped, value};
use onnxc_proto::{FunctionProto, GraphProto, ModelProto, NodeProto};
use prost::Message;

const STACK: usize = if cfg!(debug_assertions) { 8 << 20 } else { 2 << 20 };

const BOOL: i32 = 9;
const I64: i32 = 7;

/// What a level of nesting is made of: puts `inner`, which makes `y` of `x`, into a body of a node that does the same.
type Nest = fn(inner: Vec<NodeProto>) -> NodeProto;

fn choice(inner: Vec<NodeProto>) -> NodeProto {
    let body = |nodes| build::graph(vec![], nodes, vec![untyped("y")]);
    let otherwise = body(vec![build::node("Neg", &["x"], &["y"])]);
    build::node("If", &["c"], &["y"])
        .with(subgraph("then_branch", body(inner)))
        .with(subgraph("else_branch", otherwise))
}

fn repetition(inner: Vec<NodeProto>) -> NodeProto {
    let inputs = vec![value("i", I64, &[] as &[&str]), value("d", BOOL, &[] as &[&str]), untyped("x")];
    let body = build::graph(inputs, inner, vec![untyped("d"), untyped("y")]);
    build::node("Loop", &["trips", "", "x"], &["y"]).with(subgraph("body", body))
}

/// As deep as `functions`, each around `bodies`. (A message of bodies alone may not be as deep.)
fn model(functions: usize, bodies: usize, nest: Nest) -> Vec<u8> {
    let parameters = ["x", "c", "trips"];
    let call = |at: usize| NodeProto {
        domain: Some("local".into()),
        ..build::node(&format!("f{at}"), &parameters, &["y"])
    };
    let function = |at: usize| {
        let innermost = if at + 1 == functions { build::node("Relu", &["x"], &["y"]) } else { call(at + 1) };
        FunctionProto {
            name: Some(format!("f{at}")),
            domain: Some("local".into()),
            input: build::strings(&parameters),
            output: build::strings(&["y"]),
            node: (0..bodies).fold(vec![innermost], |inner, _| vec![nest(inner)]),
            opset_import: vec![build::opset("", 21), build::opset("local", 1)],
            ..Default::default()
        }
    };
    let scalar = |name, dtype| value(name, dtype, &[] as &[&str]);
    let inputs = vec![build::f32_value("x", &["n"]), scalar("c", BOOL), scalar("trips", I64)];
    let graph: GraphProto = build::graph(inputs, vec![call(0)], vec![untyped("y")]);
    let mut model =
        ModelProto { functions: (0..functions).map(function).collect(), ..build::model(21, graph) };
    model.opset_import.push(build::opset("local", 1));
    model.encode_to_vec()
}

/// Bytes of the object, made on a thread whose stack is small.
fn compile(model: Vec<u8>) -> Result<usize, Vec<Error>> {
    let work = move || {
        let options = Options::new("deep", Target::host().unwrap());
        let compiled = onnxc::compile(model.into(), &NoExternalData, &options, &mut onnxc::Quiet)?;
        assert!(compiled.graph.to_string().len() > 1000);
        let mut object = Vec::new();
        compiled.artifact().map_err(|error| vec![error])?.write_object(&mut object).unwrap();
        Ok(object.len())
    };
    std::thread::Builder::new().stack_size(STACK).spawn(work).unwrap().join().unwrap()
}

#[test]
fn the_deepest_models_do_with_the_stack_of_a_thread() {
    for nest in [choice as Nest, repetition] {
        assert!(compile(model(3, 20, nest)).unwrap() > 1000);
    }
}

#[test]
fn deeper_models_are_refused() {
    let most = Limits::default().nesting;
    for (functions, bodies) in [(4, 20), (40, 1), (1000, 3)] {
        let errors = compile(model(functions, bodies, choice)).unwrap_err();
        let message = format!("functions and bodies nest deeper than {most}");
        assert!(errors.iter().all(|error| error.message == message), "{errors:?}");
    }
}
