//! Stages of the pipeline together.

use onnxc_ir::graph::{DType, Tensor};
use onnxc_object::host::abi::status;
use onnxc_object::host::verify::verify;

use super::*;

/// The shape of an input that is left out is that of its default, which the others may contradict.
#[test]
fn defaults_have_the_sizes_of_the_other_inputs() {
    let text = r#"graph "defaults" {
  symbol s0 "n"
  input v0 "x" : f32[s0]
  input v1 "b" : f32[s0] = f32[3] [1, 2, 3]
  v2 = add v0, v1 : f32[s0] @o0(0 "Add" "add")
  return v2 "y"
}"#;
    let graph = onnxc_ir::graph::parse::parse(text).unwrap();
    assert_eq!(onnxc_ir::verify::verify(&graph), Ok(()));
    let options = Options::new("defaults", Target::parse("x86_64-unknown-linux-gnu", None).unwrap());
    let (graph, program) = optimize(graph, &options, &mut Quiet).unwrap();
    let frontend = Frontend { graph, program, notes: vec![], warnings: vec![], entries: vec![] };
    let compiled = backend(frontend, &options, &mut Quiet).unwrap();
    let model = compiled.interpreted().unwrap();
    verify(&model.program).unwrap();
    let run = |size: usize, default: Option<usize>| {
        let zeros = |size: usize| Tensor::zeros(DType::F32, &[size]);
        let inputs = [Some(zeros(size)), default.map(zeros)];
        let arguments = model.arguments(&inputs, &[Some(vec![size])]).unwrap();
        model.call(arguments, &|_, _, _, _| Ok(0)).unwrap()
    };
    assert_eq!(run(3, None).status, status::OK);
    assert_eq!(run(2, Some(2)).status, status::OK);
    for size in [2, 4] {
        let outcome = run(size, None);
        assert_eq!(outcome.status, status::BAD_DIM);
        let claim =
            format!("dimension 0 of its default is 3, must be {size} (`n`, as in dimension 0 of input 0");
        assert!(outcome.message.contains(&claim), "{}", outcome.message);
    }
}
