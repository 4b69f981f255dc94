use super::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{AnyRank, DType, Dim, Origin, Symbol, Tensor, TensorType};

fn ty(dtype: DType, shape: &[Dim]) -> TensorType {
    TensorType::new(dtype, shape.to_vec())
}

/// A graph with these inputs (name, type, default) that gives them all, in this order, as outputs.
fn graph(symbols: &[&str], inputs: &[(&str, TensorType, Option<Tensor>)]) -> Graph {
    let mut graph = Graph { name: "demo\nmodel".into(), ..Graph::default() };
    for name in symbols {
        graph.symbols.push(Symbol { name: name.to_string() });
    }
    let index = graph.origins.len();
    let origin = graph.origins.push(Origin::new("o", "Identity", index));
    let mut values = vec![];
    for (name, ty, default) in inputs {
        let value = Builder::new(&mut graph, origin).input(name, ty.clone(), default.clone());
        values.push((name.to_string(), value));
    }
    graph.outputs = values;
    graph
}

fn has(text: &str, wanted: &[&str]) {
    for line in wanted {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}

#[test]
fn static_shapes_are_arrays() {
    let shape = [Dim::from(1i64), Dim::from(8i64), Dim::from(8i64)];
    let graph = graph(&[], &[("image", ty(DType::F32, &shape), None), ("type", ty(DType::Bool, &[]), None)]);
    let text = text(&graph, &[], "net_9", Some(128), WrapperForm::Plain).unwrap();
    has(
        &text,
        &[
            "/// Model `demo?model`, compiled by onnxc.",
            "pub mod net_9 {",
            "pub struct Net9 {",
            "pub const WORKSPACE_BYTES: usize = 128;",
            "pub fn run(&mut self, image: &[f32; 64], type_2: &[bool; 1], ) -> Result<Outputs, Error>",
            "pub image_2: Box<[f32; 64]>,",
            "/// - `image`: input `image`, f32[1, 8, 8]",
            "#[link_name = \"net_9_run\"]",
            "image: [size(Some(1))?, size(Some(8))?, size(Some(8))?],",
        ],
    );
    assert!(!text.contains("check(\""), "arrays need no check:\n{text}");
}

#[test]
fn symbolic_shapes_are_slices_with_checked_sizes() {
    let sym = |at: u32| Dim::sym(Sym::from_u32(at));
    let half = sym(0).floor_div(&Dim::from(2i64)).unwrap();
    let shape = [sym(0), sym(1), Dim::from(4i64)];
    let bias = Tensor::from_slice(&[2], &[1i64, 2]);
    let graph = graph(
        &["batch size", "x"],
        &[
            ("x", ty(DType::F16, &shape), None),
            ("half", ty(DType::F32, &[half]), None),
            ("both", ty(DType::F32, &[sym(0).broadcast(&sym(1))]), None),
            ("bias", ty(DType::I64, &[Dim::from(2i64)]), Some(bias)),
        ],
    );
    let text = text(&graph, &[], "demo", None, WrapperForm::Plain).unwrap();
    has(
        &text,
        &[
            "pub fn run(&mut self, batch_size: usize, x: usize, x_2: &[u16], half: &[f32], \
             both: &[f32], bias: Option<&[i64; 2]>, )",
            "let symbols: [i64; 2] = [symbol(\"batch size\", batch_size)?, symbol(\"x\", x)?];",
            "x_2: [size(batch_size)?, size(x)?, size(Some(4))?],",
            "half: [size(floor_div(batch_size, Some(2)))?],",
            "both: [size(broadcast(batch_size, x))?],",
            "check(\"x\", x_2.len(), &shapes.x_2, 0)?;",
            "pub x_3: Vec<u16>,",
            "pub x_3_dims: [usize; 3],",
            "demo { workspace: Vec::new() }".replace("demo", "Demo").as_str(),
        ],
    );
    assert!(!text.contains("WORKSPACE_BYTES"));
}

/// An output that two symbols decide which no input has is late.
#[test]
fn what_only_a_run_knows_is_a_vector() {
    let mut graph = graph(&["n", "found"], &[("x", ty(DType::C64, &[Dim::sym(Sym::from_u32(0))]), None)]);
    let found = ty(DType::U4, &[Dim::sym(Sym::from_u32(1)), Dim::from(3i64)]);
    let origin = graph.origins.keys().next().unwrap();
    let late = Builder::new(&mut graph, origin).input("late", found, None);
    graph.inputs.pop();
    graph.outputs.push(("late".into(), late));
    let text = text(&graph, &[], "m", Some(0), WrapperForm::Plain).unwrap();
    has(
        &text,
        &[
            "pub fn run(&mut self, n: usize, x: &[[f32; 2]], ) -> Result<Outputs, Error>",
            "late_2: &mut Vec<u8>, late_2_dims: &mut [usize; 2]) -> Result<(), Error>",
            "late_2: [size(Some(0))?, size(Some(3))?],",
            "let late = [Late::of(&outputs[1])];",
            "*late_2 = late[0].elements(&shapes.late_2, 4)?;",
        ],
    );
}

/// Though all of its sizes are known, the dims of an output whose rank the run decides are a vector.
#[test]
fn a_rank_that_only_a_run_knows_is_that_of_a_vector() {
    let shape = [Dim::from(2i64), Dim::from(3i64)];
    let mut graph = graph(&["rank"], &[("y", ty(DType::F32, &shape), None)]);
    let rank = Dim::sym(Sym::from_u32(0));
    graph.any_rank.insert(0, AnyRank { rank, least: 1 });
    let text = text(&graph, &[], "m", Some(0), WrapperForm::Plain).unwrap();
    has(
        &text,
        &[
            "/// `y`: f32[2, 3]; the run decides its rank, 1 or 2",
            "pub y_2: Vec<f32>,",
            "pub y_2_dims: Vec<usize>,",
            "y_2_dims: Vec::new(),",
            "y_2: &mut Vec<f32>, y_2_dims: &mut Vec<usize>) -> Result<(), Error>",
            "*y_2_dims = shapes.y_2[..late[0].rank].iter().map(|&size| size as usize).collect();",
        ],
    );
}

#[test]
fn what_rust_cannot_carry_is_unsupported() {
    // Only an input with a default has the symbol: nothing given by the caller decides it.
    let loose = Tensor::from_slice(&[2], &[1i64, 2]);
    let free = graph(&["n"], &[("x", ty(DType::I64, &[Dim::sym(Sym::from_u32(0))]), Some(loose))]);
    assert!(
        text(&free, &[], "m", Some(0), WrapperForm::Plain).unwrap_err().message.contains("the sizes [n]")
    );
}

#[test]
fn without_std_all_is_static() {
    let shape = [Dim::from(1i64), Dim::from(8i64)];
    let seen = graph(&[], &[("image", ty(DType::F32, &shape), None)]);
    let text_of = |graph: &Graph, workspace| text(graph, &[], "net", workspace, WrapperForm::Bare);
    let text = text_of(&seen, Some(128)).unwrap();
    has(
        &text,
        &[
            "pub const WORKSPACE_BYTES: usize = 128;",
            "pub const fn new() -> Net {",
            "pub fn run_into(&mut self, image: &[f32; 8], image_2: &mut [f32; 8]) -> Result<(), Error> {",
            "image: [1, 8],",
        ],
    );
    for word in ["std::", "Vec", "Box", "String"] {
        assert!(!text.contains(word), "`{word}` in\n{text}");
    }
    assert!(text_of(&seen, None).unwrap_err().message.contains("a workspace whose size"));
    let open = graph(&["n"], &[("x", ty(DType::F32, &[Dim::sym(Sym::from_u32(0))]), None)]);
    assert!(
        text_of(&open, Some(0)).unwrap_err().message.contains("`x`: f32[n], with sizes that are not static")
    );
}

#[test]
fn threads_are_those_of_a_pool() {
    let seen = graph(&[], &[("x", ty(DType::F32, &[Dim::from(8i64)]), None)]);
    let text = text(&seen, &[], "pool", Some(0), WrapperForm::Threads).unwrap();
    has(
        &text,
        &[
            "use onnxc_runtime_support::pool::{Pool, onnxc_pool_parallel_for};",
            "pub pool: Option<std::sync::Arc<Pool>>,",
            "pub struct PoolModel {",
            "shapes.bytes, Services::of(&self.pool, &self.trace, &self.weights))",
        ],
    );
}

#[test]
fn what_trains_is_a_module_of_its_own() {
    let n = Dim::sym(Sym::from_u32(0));
    let graph = graph(&["n"], &[("x", ty(DType::F32, &[n]), None)]);
    let text = text(&graph, &[("train_step_0", &graph)], "net", None, WrapperForm::Threads).unwrap();
    has(
        &text,
        &[
            "pub mod train_step_0 {",
            "use super::*;",
            "pub struct TrainStep0 {",
            "#[link_name = \"net_train_step_0\"]",
            "#[link_name = \"net_train_step_0_workspace\"]",
            "#[link_name = \"net_run\"]",
        ],
    );
    assert_eq!(text.matches("execute(model_run, ").count(), 2, "{text}");
    assert_eq!(text.matches("pub pool: Option").count(), 2, "{text}");
}
