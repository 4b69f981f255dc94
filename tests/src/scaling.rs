//! How time and memory of compiling grow with a model: families of models in several sizes.
//!
//! Between two sizes, the exponent `e` with `cost ~ nodes^e` is what a table shows: 1 is linear, 2 is quadratic.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use onnxc_proto::build::{self, f32_tensor, f32_value, int, node, subgraph, untyped};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{GraphProto, ModelProto, NodeProto};
use prost::Message;

use crate::measure::{Ending, measure};

/// Models of one kind.
pub struct Family {
    pub name: &'static str,
    pub sizes: &'static [usize],
    make: fn(usize) -> ModelProto,
}

pub const FAMILIES: &[Family] = &[
    Family { name: "chain", sizes: &[1000, 10_000, 50_000], make: chain },
    Family { name: "residual net", sizes: &[1000, 10_000, 50_000], make: residual },
    Family { name: "chain of MatMul", sizes: &[250, 1000, 4000], make: matmuls },
    Family { name: "initializers", sizes: &[1000, 10_000], make: initializers },
    Family { name: "Concat inputs", sizes: &[1000, 3000, 10_000], make: concat },
    Family { name: "Sum inputs", sizes: &[1000, 3000], make: sum },
    Family { name: "nested Ifs", sizes: &[30, 100, 200], make: nested_ifs },
    Family { name: "chain of NonZero", sizes: &[250, 1000, 4000], make: |n| same(n, "NonZero") },
    Family { name: "chain of Unique", sizes: &[250, 1000], make: |n| same(n, "Unique") },
    Family { name: "calls of a function", sizes: &[1000, 10_000], make: calls },
    Family { name: "outputs of symbolic size", sizes: &[1000, 4000], make: outputs },
    Family { name: "inputs of symbolic size", sizes: &[1000, 4000], make: inputs },
];

/// What compiling one model took.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time of the processor.
    pub seconds: f64,
    /// Most bytes resident at once.
    pub peak: u64,
}

impl Family {
    pub fn write(&self, size: usize, path: &Path) -> io::Result<()> {
        std::fs::write(path, (self.make)(size).encode_to_vec())
    }
}

/// Compiles a model by the program `onnxc`, on one thread; `None` where that fails or takes more than `patience`.
pub fn compile(onnxc: &Path, model: &Path, patience: Duration) -> io::Result<Option<Cost>> {
    let mut command = Command::new(onnxc);
    command.arg(model).arg("-o").arg(model.with_extension("o")).env("RAYON_NUM_THREADS", "1");
    let usage = measure(command, patience, 8 << 30)?;
    let cost = Cost { seconds: usage.busy.as_secs_f64(), peak: usage.peak };
    Ok((usage.ending == Ending::Exit(0)).then_some(cost))
}

/// `e` in `cost ~ size^e` between two sizes.
pub fn exponent((small, less): (usize, f64), (large, more): (usize, f64)) -> f64 {
    (more / less).ln() / (large as f64 / small as f64).ln()
}

fn model(inputs: usize, nodes: Vec<NodeProto>, output: &str) -> ModelProto {
    let inputs = (0..inputs).map(|at| f32_value(&format!("x{at}"), &["4", "8"])).collect();
    build::model(21, build::graph(inputs, nodes, vec![untyped(output)]))
}

fn chain(n: usize) -> ModelProto {
    let ops = ["Relu", "Sigmoid", "Neg", "Tanh"];
    let step = |at: usize| node(ops[at % 4], &[&format!("x{at}")], &[&format!("x{}", at + 1)]);
    model(1, (0..n).map(step).collect(), &format!("x{n}"))
}

fn same(n: usize, op_type: &str) -> ModelProto {
    let step = |at: usize| node(op_type, &[&format!("x{at}")], &[&format!("x{}", at + 1)]);
    model(1, (0..n).map(step).collect(), &format!("x{n}"))
}

fn calls(n: usize) -> ModelProto {
    let call = |at: usize| NodeProto {
        domain: Some("local".into()),
        ..node("f", &[&format!("x{at}")], &[&format!("x{}", at + 1)])
    };
    let mut model = model(1, (0..n).map(call).collect(), &format!("x{n}"));
    model.opset_import.push(build::opset("local", 1));
    model.functions.push(onnxc_proto::FunctionProto {
        name: Some("f".into()),
        domain: Some("local".into()),
        input: build::strings(&["x"]),
        output: build::strings(&["y"]),
        node: vec![node("Relu", &["x"], &["z"]), node("Softmax", &["z"], &["y"])],
        opset_import: vec![build::opset("", 21)],
        ..Default::default()
    });
    model
}

/// Outputs of a size that the caller decides, each checked by the run.
fn outputs(n: usize) -> ModelProto {
    let nodes = (0..n).map(|at| node("Exp", &["x"], &[&format!("y{at}")])).collect();
    let outputs = (0..n).map(|at| untyped(&format!("y{at}"))).collect();
    build::model(21, build::graph(vec![f32_value("x", &["n"])], nodes, outputs))
}

fn inputs(n: usize) -> ModelProto {
    let nodes = (0..n).map(|at| node("Exp", &[&format!("x{at}")], &[&format!("y{at}")])).collect();
    let inputs = (0..n).map(|at| f32_value(&format!("x{at}"), &["n"])).collect();
    let outputs = (0..n).map(|at| untyped(&format!("y{at}"))).collect();
    build::model(21, build::graph(inputs, nodes, outputs))
}

/// Blocks of three nodes: `x + tanh(softmax(x))`.
fn residual(n: usize) -> ModelProto {
    let block = |at: usize| {
        let (x, a, b) = (format!("x{at}"), format!("a{at}"), format!("b{at}"));
        let y = format!("x{}", at + 1);
        [node("Softmax", &[&x], &[&a]), node("Tanh", &[&a], &[&b]), node("Add", &[&x, &b], &[&y])]
    };
    model(1, (0..n / 3).flat_map(block).collect(), &format!("x{}", n / 3))
}

fn matmuls(n: usize) -> ModelProto {
    let step = |at: usize| node("MatMul", &[&format!("x{at}"), "w"], &[&format!("x{}", at + 1)]);
    let mut model = model(1, (0..n).map(step).collect(), &format!("x{n}"));
    let weights = f32_tensor("w", &[8, 8], (0..64).map(|at| at as f32 / 64.0).collect());
    model.graph.iter_mut().for_each(|graph| graph.initializer.push(weights.clone()));
    model
}

fn initializers(n: usize) -> ModelProto {
    let step = |at: usize| {
        let op = if at.is_multiple_of(2) { "Mul" } else { "Max" };
        node(op, &[&format!("x{at}"), &format!("w{at}")], &[&format!("x{}", at + 1)])
    };
    let mut model = model(1, (0..n).map(step).collect(), &format!("x{n}"));
    let weights = (0..n).map(|at| f32_tensor(&format!("w{at}"), &[8], vec![at as f32; 8]));
    model.graph.iter_mut().for_each(|graph| graph.initializer.extend(weights.clone()));
    model
}

fn variadic(op_type: &str, n: usize) -> NodeProto {
    let names: Vec<String> = (0..n).map(|at| format!("x{at}")).collect();
    node(op_type, &names.iter().map(String::as_str).collect::<Vec<_>>(), &["y"])
}

fn concat(n: usize) -> ModelProto {
    model(n, vec![variadic("Concat", n).with(int("axis", 0))], "y")
}

fn sum(n: usize) -> ModelProto {
    model(n, vec![variadic("Sum", n)], "y")
}

/// Functions whose body is an If that calls the next: messages of the file may nest at most 100 deep.
fn nested_ifs(n: usize) -> ModelProto {
    let body = |output: &str, inner: NodeProto| GraphProto {
        name: Some("body".into()),
        node: vec![inner],
        output: vec![untyped(output)],
        ..Default::default()
    };
    let call = |at: usize, inputs: &[&str], output: &str| NodeProto {
        domain: Some("local".into()),
        ..node(&format!("f{at}"), inputs, &[output])
    };
    let mut nested = model(1, vec![call(0, &["x0", "c"], "y")], "y");
    nested.opset_import.push(build::opset("local", 1));
    let condition = build::value("c", DataType::Bool as i32, &[] as &[&str]);
    nested.graph.iter_mut().for_each(|graph| graph.input.push(condition.clone()));
    for at in 0..n {
        let inner = if at + 1 == n { node("Relu", &["x"], &["a"]) } else { call(at + 1, &["x", "c"], "a") };
        let choice = node("If", &["c"], &["y"])
            .with(subgraph("then_branch", body("a", inner)))
            .with(subgraph("else_branch", body("b", node("Neg", &["x"], &["b"]))));
        nested.functions.push(onnxc_proto::FunctionProto {
            name: Some(format!("f{at}")),
            domain: Some("local".into()),
            input: build::strings(&["x", "c"]),
            output: build::strings(&["y"]),
            node: vec![choice],
            opset_import: vec![build::opset("", 21), build::opset("local", 1)],
            ..Default::default()
        });
    }
    nested
}
