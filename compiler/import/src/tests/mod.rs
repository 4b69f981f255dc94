//! Tests of the importer, on models made here and a small table of operators.

mod bodies;
mod forks;
mod functions;
mod graphs;
mod lengths;
mod nodes;
mod operators;
mod ranks;
mod tensors;
mod tolerances;

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{
    self, attribute, graph, int as a_int, ints as a_ints, node, opset, strings, subgraph as a_graph, typed,
    untyped,
};
use onnxc_proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};

use super::*;
use onnxc_ir::graph::{DType, Dim, Op, Tensor, ValueId};
use onnxc_ir::rules::Rule;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_ops::AttrDefault::{Int, Optional, Required};
use onnxc_ops::types::NUMERIC;
use onnxc_ops::unreleased::Tolerated;
use onnxc_ops::{AttrKind, NodeCx, OpDef, attr, opt, req, var};

type Outcome = std::result::Result<Import, Vec<Error>>;

const ANY: &[(&str, &[DType])] = &[("T", NUMERIC), ("V", NUMERIC), ("B", &[DType::Bool])];

/// Rows enough to see every rule of the importer.
static ROWS: &[OpDef] = &[
    row("Neg", 1, &[req("X", "T")], &[req("Y", "T")], &[], |cx| {
        let x = cx.input(0)?;
        Ok(vec![cx.b.unary(UnaryFn::Neg, x)?])
    }),
    row("Neg", 13, &[req("X", "T")], &[req("Y", "T")], &[], |cx| {
        let x = cx.input(0)?;
        let once = cx.b.unary(UnaryFn::Neg, x)?;
        Ok(vec![cx.b.unary(UnaryFn::Abs, once)?])
    }),
    // Z is an output that this version's attributes never bring about.
    row("Same", 1, &[req("X", "T")], &[req("Y", "T"), opt("Z", "T")], &[], |cx| Ok(vec![cx.input(0)?])),
    row("Late", 18, &[req("X", "T")], &[req("Y", "T")], &[], |cx| Ok(vec![cx.input(0)?])),
    row("Novel", 18, &[req("X", "T")], &[req("Y", "T")], &[], |cx| Ok(vec![cx.input(0)?])),
    OpDef {
        types: &[("F", &[DType::F32])],
        ..row("Floats", 1, &[req("X", "F")], &[req("Y", "F")], &[], |cx| Ok(vec![cx.input(0)?]))
    },
    row("Add", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], |cx| {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        Ok(vec![cx.b.binary(BinaryFn::Add, a, b)?])
    }),
    row("Each", 1, &[var("X", "T")], &[var("Y", "T")], &[], |cx| cx.all_inputs()),
    row("AddN", 1, &[var("X", "T")], &[req("Y", "T")], &[], |cx| {
        let inputs = cx.all_inputs()?;
        let mut sum = inputs[0];
        for &x in &inputs[1..] {
            sum = cx.b.binary(BinaryFn::Add, sum, x)?;
        }
        Ok(vec![sum])
    }),
    // x between the bounds that are given, twice.
    row(
        "Clamp",
        1,
        &[req("X", "T"), opt("lo", "T"), opt("hi", "T")],
        &[req("Y", "T"), opt("Z", "T")],
        &[],
        |cx| {
            let mut x = cx.input(0)?;
            for (at, function) in [(1, BinaryFn::Max), (2, BinaryFn::Min)] {
                if let Some(bound) = cx.optional(at) {
                    x = cx.b.binary(function, x, bound)?;
                }
            }
            Ok(vec![x, x])
        },
    ),
    row(
        "Transpose",
        1,
        &[req("X", "T")],
        &[req("Y", "T")],
        &[
            attr("perm", Required(AttrKind::Ints)),
            attr("times", Int(1)),
            attr("scale", Optional(AttrKind::Float)),
        ],
        |cx| {
            let perm: Vec<usize> =
                cx.ints("perm")?.unwrap_or_default().iter().map(|&axis| axis as usize).collect();
            let mut x = cx.input(0)?;
            for _ in 0..cx.int("times")? {
                x = cx.b.transpose(x, &perm)?;
            }
            Ok(vec![x])
        },
    ),
    row(
        "Const",
        1,
        &[],
        &[req("Y", "T")],
        &[attr("value", Optional(AttrKind::Tensor)), attr("sparse_value", Optional(AttrKind::SparseTensor))],
        |cx| {
            let tensor = cx.tensor("value")?.or(cx.tensor("sparse_value")?);
            Ok(vec![cx.b.constant(tensor.ok_or_else(|| Error::malformed(Stage::Import, "no value"))?)])
        },
    ),
    row("Pick", 1, &[req("X", "T"), req("at", "tensor(int64)")], &[req("Y", "T")], &[], |cx| {
        let (x, at) = (cx.input(0)?, cx.input(1)?);
        Ok(vec![cx.b.emit1(Op::Gather { axis: 0 }, &[x, at])?])
    }),
    // Reshapes to what the model declares.
    row("Free", 1, &[req("X", "T")], &[req("Y", "T")], &[], |cx| {
        let x = cx.input(0)?;
        let Some(Some(ty)) = cx.declared.first().cloned() else {
            return Err(Error::unsupported(Stage::Infer, "nothing is declared"));
        };
        Ok(vec![cx.b.reshape(x, ty.shape)?])
    }),
    // Both branches in place.
    row(
        "Choose",
        1,
        &[req("condition", "B")],
        &[var("Y", "V")],
        &[attr("then", Required(AttrKind::Graph)), attr("else", Required(AttrKind::Graph))],
        |cx| {
            let condition = cx.input(0)?;
            let (then, otherwise) = (cx.graph("then")?, cx.graph("else")?);
            let (then, otherwise) = (cx.inline(&then, &[])?, cx.inline(&otherwise, &[])?);
            let (then, otherwise) = (onnxc_ops::item::columns(&then), onnxc_ops::item::columns(&otherwise));
            let pairs = then.into_iter().zip(otherwise);
            pairs.map(|(a, b)| cx.b.select(condition, a, b)).collect()
        },
    ),
    // A body over states, run `times` times.
    row(
        "Repeat",
        1,
        &[var("states", "V")],
        &[var("Y", "V")],
        &[attr("body", Required(AttrKind::Graph)), attr("times", Int(3))],
        |cx| {
            let states = cx.all_inputs()?;
            let types: Vec<_> = states.iter().map(|&state| cx.b.ty(state).clone().into()).collect();
            let body = cx.graph("body")?;
            let body = cx.body(&body, &types)?;
            let op = Op::scan(body.graph, Dim::from(cx.int("times")?), states.len(), 0, vec![]);
            let inputs: Vec<ValueId> = states.into_iter().chain(body.captures).collect();
            cx.b.emit(op, &inputs)
        },
    ),
    // Imports the body, fails, and takes the input instead.
    row("Try", 1, &[req("X", "T")], &[req("Y", "T")], &[attr("body", Required(AttrKind::Graph))], |cx| {
        let x = cx.input(0)?;
        let body = cx.graph("body")?;
        assert!(cx.inline(&body, &[]).is_err());
        Ok(vec![x])
    }),
];

const fn row(
    name: &'static str,
    since: u32,
    inputs: &'static [onnxc_ops::Param],
    outputs: &'static [onnxc_ops::Param],
    attributes: &'static [onnxc_ops::AttrDef],
    lower: fn(&mut NodeCx<'_, '_>) -> Result<Vec<ValueId>>,
) -> OpDef {
    OpDef { domain: "", name, since, inputs, outputs, attributes, types: ANY, shapes: &[], lower, doc: "" }
}

/// `Novel` before its row holds, and `Floats` of other types.
static TOLERATED: &[Tolerated] = &[
    Tolerated {
        row: row("Novel", 1, &[req("X", "T")], &[req("Y", "T")], &[], |cx| Ok(vec![cx.input(0)?])),
        until: 17,
    },
    Tolerated {
        row: OpDef {
            types: &[("F", NUMERIC)],
            ..row("Floats", 1, &[req("X", "F")], &[req("Y", "F")], &[], |cx| Ok(vec![cx.input(0)?]))
        },
        until: 17,
    },
];

fn table() -> Table {
    Table::with([ROWS], TOLERATED)
}

fn run(model: &ModelProto) -> Outcome {
    run_with(model, &ImportOptions::default())
}

fn run_with(model: &ModelProto, options: &ImportOptions) -> Outcome {
    import(model, options, &NoExternalData, &table())
}

fn graph_of(model: &ModelProto) -> Graph {
    match run(model) {
        Ok(import) => import.graph,
        Err(errors) => panic!("{errors:#?}"),
    }
}

fn errors_of(model: &ModelProto) -> Vec<Error> {
    run(model).expect_err("the model should be refused")
}

/// The only problem of a model.
fn error_of(model: &ModelProto) -> Error {
    let mut errors = errors_of(model);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors.remove(0)
}

/// Checks that the only problem says `text`.
fn refuses(model: &ModelProto, kind: Kind, text: &str) {
    let error = error_of(model);
    assert!(error.kind == kind && error.to_string().contains(text), "{error:?} does not say `{text}`");
}

/// Checks that a model gives one warning of a kind, and that `strict` makes it a problem.
fn warns(model: &ModelProto, rule: Rule, text: &str) {
    let warnings = match run(model) {
        Ok(import) => import.warnings,
        Err(errors) => panic!("{errors:#?}"),
    };
    let found: Vec<&Warning> = warnings.iter().filter(|warning| warning.rule == rule).collect();
    assert_eq!(found.len(), 1, "{warnings:#?}");
    let problem = &found[0].problem;
    assert!(problem.to_string().contains(text), "{problem}");
    let errors = run_with(model, &ImportOptions { strict: true, ..Default::default() }).unwrap_err();
    assert!(errors.contains(problem), "{errors:#?}");
}

/// Primitives of a graph in order, by name.
fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.order.iter().map(|&node| graph.nodes[node].op.name()).collect()
}

/// Types of a graph's inputs as text.
fn input_types(graph: &Graph) -> Vec<String> {
    graph.inputs.iter().map(|input| format!("{}: {}", input.name, graph.ty(input.value))).collect()
}

// Builders of protobuf structs.

fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

fn a_tensor(name: &str, tensor: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(Box::new(tensor)), ..attribute(name, AttributeType::Tensor) }
}

fn a_ref(name: &str, of: &str, ty: AttributeType) -> AttributeProto {
    AttributeProto { ref_attr_name: Some(of.into()), ..attribute(name, ty) }
}

fn f32s(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    build::f32_tensor(name, dims, values.to_vec())
}

fn value(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    build::value(name, dtype.to_onnx(), dims)
}

fn f32v(name: &str, dims: &[&str]) -> ValueInfoProto {
    build::f32_value(name, dims)
}

fn model_of(graph: GraphProto) -> ModelProto {
    build::model(13, graph)
}

/// A model from `x: f32[N, 4]` to `y: f32[N, 4]`.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    model_of(graph(vec![f32v("x", &["N", "4"])], nodes, vec![f32v("y", &["N", "4"])]))
}

fn with_initializers(mut model: ModelProto, tensors: Vec<TensorProto>) -> ModelProto {
    if let Some(graph) = &mut model.graph {
        graph.initializer = tensors;
    }
    model
}
