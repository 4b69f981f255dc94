//! The interpreter of host programs against machine code: results, refusals and their messages are the same, bit for bit.
//! The whole official suite runs in the interpreter in `conformance`.

use onnxc::native::{self, Models};
use onnxc_import::{NoExternalData, import};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Graph, Origin, Tensor, TensorType};
use onnxc_proto::build;
use onnxc_tests::compile::compile_for;
use onnxc_tests::interpreted::Interpreted;
use onnxc_tests::misuse;
use onnxc_tests::object::{host, write};
use onnxc_tests::sample_models::any_rank;
use prost::Message;

/// The graph of a file test.
fn graph(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests/host");
    let text = std::fs::read_to_string(folder.join(format!("{name}.onnxir"))).unwrap();
    let graph = text.split("\n=>").next().unwrap();
    graph.lines().filter(|line| !line.starts_with(';')).map(|line| format!("{line}\n")).collect()
}

fn with_both(text: &str, body: impl Fn(&native::Model<'_>, &Interpreted<'_>)) {
    with_graph(onnxc_ir::graph::parse::parse(text).unwrap(), body);
}

fn with_graph(graph: Graph, body: impl Fn(&native::Model<'_>, &Interpreted<'_>)) {
    let options = onnxc::Options::new("model", host());
    let (graph, program) = onnxc::optimize(graph, &options, &mut onnxc::Quiet).unwrap();
    let frontend = onnxc::Frontend { graph, program, notes: vec![], warnings: vec![], entries: vec![] };
    let compiled = onnxc::backend(frontend, &options, &mut onnxc::Quiet).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let object = write(compiled.artifact().unwrap(), dir.path());
    let library = dir.path().join("model.so");
    native::link(&[object], &library).unwrap();
    let models = Models::load(&library).unwrap();
    body(&models.get("model").unwrap(), &Interpreted::new(&compiled).unwrap());
}

fn given(tensors: &[Tensor]) -> Vec<Option<Tensor>> {
    tensors.iter().cloned().map(Some).collect()
}

/// A run of both gives the same: outputs, or a message.
fn same(
    model: &native::Model<'_>,
    interpreted: &Interpreted<'_>,
    inputs: &[Tensor],
    shapes: &[Option<Vec<usize>>],
) -> Result<Vec<Tensor>, String> {
    let inputs = given(inputs);
    let native = model.run(&inputs, shapes).map_err(|error| error.message);
    let outcome = interpreted.call(interpreted.model.arguments(&inputs, shapes).unwrap()).unwrap();
    let here = if outcome.status == 0 { Ok(outcome.outputs) } else { Err(outcome.message) };
    assert_eq!(here, native);
    here
}

fn vector(values: &[i64]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}

#[test]
fn sizes_that_data_decide() {
    with_both(&graph("data_sized"), |model, interpreted| {
        let x = vector(&[1, 2, 3]);
        for count in [0, 1, 5, -1, i64::MIN, i64::MAX, i64::MAX / 24 + 1] {
            let inputs = [x.clone(), vector(&[count])];
            let result = same(model, interpreted, &inputs, &[None, Some(vec![3])]);
            assert_eq!(result.is_ok(), (0..=5).contains(&count), "{count}");
        }
    });
}

#[test]
fn ranks_that_the_run_decides() {
    let graph = import(&any_rank(), &Default::default(), &NoExternalData, onnxc::operators()).unwrap().graph;
    with_graph(graph, |model, interpreted| {
        for n in 0..4 {
            let x = Tensor::from_slice(&[2, n, 3], &(0..6 * n as i64).collect::<Vec<_>>());
            for whole in [false, true] {
                let inputs = [x.clone(), Tensor::scalar(whole)];
                let found = same(model, interpreted, &inputs, &[None, None]).unwrap();
                let shapes = found.iter().map(|tensor| tensor.shape.clone()).collect::<Vec<_>>();
                let y = if n == 1 { vec![2, 3] } else { vec![2, n, 3] };
                assert_eq!(shapes, [y, if whole { vec![] } else { vec![3] }]);
                let given: Vec<_> = shapes.into_iter().map(Some).collect();
                assert_eq!(same(model, interpreted, &inputs, &given).unwrap(), found);
                assert_eq!(
                    model.run_guarded(&self::given(&inputs), &given, &Default::default()).unwrap(),
                    found
                );
            }
        }
    });
}

#[test]
fn loops_and_choices() {
    with_both(&graph("loop_with_growing_state"), |model, interpreted| {
        for (x, limit, flag) in
            [(&[1, 0, 2][..], 20, true), (&[0, 0], 9, false), (&[5, 6, 7], 0, true), (&[], 0, false)]
        {
            let inputs = [vector(x), Tensor::scalar(limit as i64), Tensor::scalar(flag)];
            same(model, interpreted, &inputs, &[None, None, None, None]).unwrap();
        }
    });
    with_both(&graph("if_with_sizes_of_its_own"), |model, interpreted| {
        for (values, shorten) in [(&[7, 8, 9][..], true), (&[7], false), (&[], false), (&[], true)] {
            let inputs = [vector(values), Tensor::scalar(shorten)];
            let result = same(model, interpreted, &inputs, &[Some(vec![1])]);
            assert_eq!(result.is_err(), values.is_empty() && shorten, "{result:?}");
        }
    });
}

/// Every kind of misuse, and memory that runs out at every allocation: status and message are the same.
#[test]
fn refusals() {
    let x = Tensor::from_slice(&[4, 8], &[0.5f32; 32]);
    let refused = |name: &str, inputs: &[Tensor], shapes: &[Option<Vec<usize>>]| {
        with_both(&graph(name), |model, interpreted| {
            let result = misuse::compare(model, interpreted, &given(inputs), shapes);
            assert!(result.as_ref().is_ok_and(|&calls| calls >= 30), "{name}: {result:?}");
        });
    };
    let any_rank =
        import(&any_rank(), &Default::default(), &NoExternalData, onnxc::operators()).unwrap().graph;
    let inputs = [Tensor::from_slice(&[2, 1, 3], &[5i64; 6]), Tensor::scalar(false)];
    with_graph(any_rank, |model, interpreted| {
        let shapes = [Some(vec![2, 3]), Some(vec![3])];
        let calls = misuse::compare(model, interpreted, &given(&inputs), &shapes);
        assert!(calls.as_ref().is_ok_and(|&calls| calls >= 30), "{calls:?}");
    });
    refused("static", std::slice::from_ref(&x), &[Some(vec![4, 8])]);
    refused("symbolic", &[x], &[Some(vec![4, 8]), Some(vec![4, 1])]);
    refused("data_sized", &[vector(&[1, 2]), vector(&[4])], &[Some(vec![4, 3]), Some(vec![2])]);
    refused("data_sized", &[vector(&[1, 2]), vector(&[4])], &[None, Some(vec![2])]);
    refused("if_with_sizes_of_its_own", &[vector(&[1, 2]), Tensor::scalar(true)], &[Some(vec![1])]);
    let looped = [vector(&[1, 0, 2]), Tensor::scalar(9i64), Tensor::scalar(true)];
    refused("loop_with_growing_state", &looped, &[None, None, None, None]);
}

/// The interpreter hands the texts of a run, of any number, to the functions on strings.
#[test]
fn many_texts() {
    const STRING: i32 = 8;
    let nodes = vec![build::node("StringConcat", &["x", "x"], &["y"])];
    let graph = build::graph(vec![build::value("x", STRING, &["n"])], nodes, vec![build::untyped("y")]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, build::model(20, graph).encode_to_vec()).unwrap();
    let compiled = compile_for(&path, "model", &host().into()).unwrap();
    let interpreted = Interpreted::new(&compiled).unwrap();
    let texts: Vec<String> = (0..100).map(|at| format!("text {at}, {}", "long".repeat(at % 7))).collect();
    let twice: Vec<String> = texts.iter().map(|text| text.repeat(2)).collect();
    let x = Tensor::from_texts(&[100], &texts);
    assert_eq!(interpreted.run(&[Some(x)], &[None]).unwrap(), [Tensor::from_texts(&[100], &twice)]);
}

/// What a caller leaves out is the default of its input: also of elements smaller than a byte, and of texts.
#[test]
fn inputs_of_every_type_have_defaults() {
    let tensor = |dtype: DType, at: usize| match dtype {
        DType::Str => Tensor::from_texts(&[3], &[["a", "", "ä"], ["b", "a", "a longer one"]][at]),
        _ => {
            // Bits that are elements of every type.
            let bytes = (0..3 * dtype.size()).map(|byte| u8::from((byte + at).is_multiple_of(2)));
            Tensor::new(dtype, vec![3], bytes.collect::<Vec<u8>>().into())
        }
    };
    let mut graph = Graph::default();
    let origin = graph.origins.push(Origin::new("test", "Test", 0));
    for dtype in DType::all() {
        let ty = TensorType::new(dtype, vec![3usize.into()]);
        let value = Builder::new(&mut graph, origin).input(&dtype.to_string(), ty, Some(tensor(dtype, 0)));
        graph.outputs.push((format!("{dtype}_out"), value));
    }
    let types: Vec<DType> = DType::all().collect();
    let given = |at: usize| types.iter().map(|&dtype| tensor(dtype, at)).collect::<Vec<Tensor>>();
    with_graph(graph, |model, interpreted| {
        let shapes = vec![Some(vec![3]); types.len()];
        let cases = [
            (vec![None; types.len()], given(0)),
            (given(1).into_iter().map(Some).collect::<Vec<_>>(), given(1)),
        ];
        for (inputs, wanted) in cases {
            assert_eq!(model.run(&inputs, &shapes).unwrap(), wanted);
            let outcome = interpreted.call(interpreted.model.arguments(&inputs, &shapes).unwrap()).unwrap();
            assert_eq!((outcome.status, outcome.outputs), (0, wanted));
        }
    });
}
