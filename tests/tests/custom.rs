//! Operators that functions of the program compute: `tests/c/custom.c`, and functions in Rust. Compiled models with guard pages around
//! their buffers, at each level of optimization, with threads and without, against what is expected and the evaluation of the graph.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use onnxc::cli::functions::Functions;
use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc::{Compiled, Options, Precision, Quiet};
use onnxc_import::{CustomOp, ImportOptions, NoExternalData};
use onnxc_ir::graph::external::Address;
use onnxc_ir::graph::{self, DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, f32_value, int, ints, node};
use onnxc_proto::{AttributeProto, ModelProto, NodeProto, ValueInfoProto};
use onnxc_runtime_support::{Pool, Status, custom};
use prost::Message;

/// A shared library of `tests/c/custom.c`, made once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &LIBRARY.get_or_init(|| built("cc", &["-std=c99", "-O1"], "custom.c")).1
}

/// The same in C++, of `tests/c/custom.cpp`.
fn cpp_library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let options = ["-std=c++17", "-O1", "-pedantic", "-Wshadow", "-Wconversion"];
    &LIBRARY.get_or_init(|| built("c++", &options, "custom.cpp")).1
}

fn built(compiler: &str, options: &[&str], source: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(format!("lib{source}.so"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(compiler);
    command.args(options).args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    for include in ["include", "cpp"] {
        command.arg("-I").arg(root.join("../runtime-support").join(include));
    }
    command.arg(root.join("c").join(source)).arg("-o").arg(&library);
    assert!(command.status().unwrap().success());
    (folder, library)
}

fn functions() -> Functions {
    Functions::open(&[library().to_path_buf(), cpp_library().to_path_buf()]).unwrap()
}

fn mine(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("mine".into()), ..node(name, inputs, outputs) }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..build::attribute(name, AttributeType::Float) }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(value.as_bytes().to_vec().into()),
        ..build::attribute(name, AttributeType::String)
    }
}

fn strings(name: &str, dims: &[&str]) -> ValueInfoProto {
    build::value(name, DType::Str.to_onnx(), dims)
}

fn model(
    inputs: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
    between: Vec<ValueInfoProto>,
) -> ModelProto {
    let mut graph = build::graph(inputs, nodes, outputs);
    graph.value_info = between;
    let mut model = build::model(20, graph);
    let mut own = model.opset_import[0].clone();
    (own.domain, own.version) = (Some("mine".into()), Some(1));
    model.opset_import.push(own);
    model
}

fn custom_ops(own: &[&str], overrides: &[&str]) -> Vec<CustomOp> {
    let own = own.iter().map(|text| text.parse::<CustomOp>().unwrap());
    let overrides = overrides.iter().map(|text| CustomOp { overrides: true, ..text.parse().unwrap() });
    let mut all: Vec<CustomOp> = own.chain(overrides).collect();
    functions().resolve(&mut all).unwrap();
    all
}

fn options(custom_ops: Vec<CustomOp>, opt_level: u8) -> Options {
    let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
    let import = ImportOptions { custom_ops, ..Default::default() };
    Options { opt_level, import, ..Options::new("model", target) }
}

fn compile_with(model: &ModelProto, options: &Options) -> Result<Compiled, String> {
    onnxc::compile(model.encode_to_vec().into(), &NoExternalData, options, &mut Quiet)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn compile(model: &ModelProto, custom_ops: Vec<CustomOp>, opt_level: u8) -> Result<Compiled, String> {
    compile_with(model, &options(custom_ops, opt_level))
}

/// Compiles a model with and without passes, runs it with and without threads, and evaluates its graph: all must give what is
/// expected.
fn check(model: &ModelProto, own: &[&str], overrides: &[&str], inputs: &[Tensor], expected: &[Tensor]) {
    let pool = Pool::new(2).unwrap();
    for opt_level in [0, 3] {
        // Addresses are those of the library for as long as it is loaded.
        let functions = functions();
        let custom_ops = custom_ops(own, overrides);
        let compiled = compile(model, custom_ops, opt_level).unwrap();
        let graph = compiled.graph.clone();
        let text = graph::print::to_text(&graph);
        assert!(text.contains("external "), "{text}");
        assert_eq!(graph::print::to_text(&graph::parse::parse(&text).unwrap()), text);
        let host = compiled.host().unwrap();
        let printed = host.to_string();
        assert_eq!(onnxc_object::host::parse::parse(&printed).unwrap().to_string(), printed);
        let loaded = Loaded::with(compiled, &functions, Instant::now()).unwrap();
        let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
        for pool in [None, Some(&pool)] {
            let shapes: Vec<Option<Vec<usize>>> = loaded
                .model()
                .unwrap()
                .outputs()
                .iter()
                .zip(expected)
                .map(|(info, expected)| {
                    let late = info.dtype == DType::Str.to_onnx();
                    (!late).then(|| expected.shape.clone())
                })
                .collect();
            let call = Call { pool, ..Call::default() };
            let got = loaded.model().unwrap().run_guarded(&given, &shapes, &call).unwrap();
            assert_eq!(texts(&got), texts(expected), "level {opt_level}");
        }
        let evaluated = interp::run(&import(model, own, overrides), inputs).unwrap();
        assert_eq!(texts(&evaluated), texts(expected), "evaluated");
    }
}

fn import(model: &ModelProto, own: &[&str], overrides: &[&str]) -> graph::Graph {
    let options = ImportOptions { custom_ops: custom_ops(own, overrides), ..Default::default() };
    onnxc_import::import(model, &options, &NoExternalData, onnxc::operators()).unwrap().graph
}

/// Shapes and elements, to be compared.
fn texts(tensors: &[Tensor]) -> Vec<String> {
    let elements = |tensor: &Tensor| match tensor.dtype {
        DType::Str => format!("{:?}", tensor.texts()),
        DType::I64 => format!("{:?}", tensor.values::<i64>()),
        _ => format!("{:?}", tensor.to_f64s().unwrap()),
    };
    tensors.iter().map(|tensor| format!("{:?} {}", tensor.shape, elements(tensor))).collect()
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

#[test]
fn elementwise_with_attributes_and_threads() {
    let mut scale = mine("Scale", &["h", ""], &["s"])
        .with(float("alpha", 2.5))
        .with(ints("steps", &[7, -3]))
        .with(text("ignored", "x"));
    let offset = build::f32_tensor("", &[1], vec![0.5]);
    scale.attribute.push(AttributeProto {
        t: Some(Box::new(offset)),
        ..build::attribute("offset", AttributeType::Tensor)
    });
    let nodes = vec![node("Neg", &["x"], &["h"]), scale, node("Relu", &["s"], &["y"])];
    // What the function reads is a result, too, and so is what it gives.
    let outputs = vec![f32_value("y", &["n", "3"]), f32_value("h", &["n", "3"]), f32_value("s", &["n", "3"])];
    let model = model(vec![f32_value("x", &["n", "3"])], nodes, outputs, vec![]);
    for rows in [0, 1, 5000] {
        let x: Vec<f32> = (0..3 * rows).map(|at| at as f32 - 4.0).collect();
        let h: Vec<f32> = x.iter().map(|x| -x).collect();
        let s: Vec<f32> = h.iter().map(|h| 2.5 * h - 2.5).collect();
        let y: Vec<f32> = s.iter().map(|s| s.max(0.0)).collect();
        let tensor = |values: &[f32]| floats(&[rows, 3], values);
        let expected = [tensor(&y), tensor(&h), tensor(&s)];
        for function in ["test_scale", "cpp_scale"] {
            check(&model, &[&format!("mine.Scale={function}")], &[], &[tensor(&x)], &expected);
        }
    }
}

#[test]
fn reductions_with_two_results_in_a_loop() {
    // Within a body the function is called once for each iteration.
    let body_nodes = vec![
        node("Add", &["state", "x"], &["next"]),
        mine("RowSums", &["next"], &["sums", "columns"]),
        node("Identity", &["go"], &["on"]),
    ];
    let condition = |name: &str| build::value(name, DType::Bool.to_onnx(), &[] as &[&str]);
    let mut body = build::graph(
        vec![
            build::value("turn", DType::I64.to_onnx(), &[] as &[&str]),
            condition("go"),
            f32_value("state", &["2", "m"]),
        ],
        body_nodes,
        vec![
            condition("on"),
            f32_value("next", &["2", "m"]),
            f32_value("sums", &["2"]),
            build::value("columns", DType::I64.to_onnx(), &["1"]),
        ],
    );
    body.value_info = vec![];
    let node = node("Loop", &["trip", "", "x"], &["last", "all_sums", "all_columns"])
        .with(build::subgraph("body", body));
    let outputs = vec![
        f32_value("all_sums", &["t", "2"]),
        build::value("all_columns", DType::I64.to_onnx(), &["t", "1"]),
    ];
    let mut model = model(vec![f32_value("x", &["2", "m"])], vec![node], outputs, vec![]);
    model.graph.as_mut().unwrap().initializer.push(build::i64_tensor("trip", &[], vec![3]));
    let x = floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let sums = floats(&[3, 2], &[6.0, 14.0, 9.0, 21.0, 12.0, 28.0]);
    let columns = Tensor::from_slice(&[3, 1], &[2i64, 2, 2]);
    for function in ["test_row_sums", "cpp_row_sums"] {
        let own = format!("mine.RowSums={function}");
        check(&model, &[&own], &[], std::slice::from_ref(&x), &[sums.clone(), columns.clone()]);
    }
}

#[test]
fn scratch_that_is_asked_for_when_compiling() {
    let model = model(
        vec![f32_value("x", &["n"])],
        vec![mine("Reverse", &["x"], &["y"]), mine("Reverse", &["y"], &["z"])],
        vec![f32_value("z", &["n"])],
        // The type of `y` is that of the input.
        vec![],
    );
    let x: Vec<f32> = (0..41).map(|at| at as f32).collect();
    let expected = [floats(&[41], &x)];
    for function in ["test_reverse", "cpp_reverse"] {
        let own = format!("mine::Reverse={function},scratch=64,like=0");
        check(&model, &[&own], &[], &[floats(&[41], &x)], &expected);
    }
}

#[test]
fn sizes_that_only_data_decide() {
    let nodes = vec![mine("Positive", &["x"], &["y"]), node("Exp", &["y"], &["z"])];
    let model = model(
        vec![f32_value("x", &["n"])],
        nodes,
        vec![f32_value("z", &["m"])],
        vec![f32_value("y", &["m"])],
    );
    let own = [
        "mine.Positive=test_positive,shapes=test_positive_shapes",
        "mine.Positive=cpp_positive,shapes=cpp_positive_shapes",
    ];
    for x in [vec![-1.0, 0.0, 0.0, 0.0], vec![], vec![-1.0, -2.0]] {
        let kept: Vec<f32> = x.iter().filter(|&&x| x > 0.0).map(|x: &f32| x.exp()).collect();
        for own in own {
            check(&model, &[own], &[], &[floats(&[x.len()], &x)], &[floats(&[kept.len()], &kept)]);
        }
    }
}

#[test]
fn strings_go_in_and_out() {
    let twice = mine("Twice", &["x"], &["y"]).with(text("between", "+"));
    let nodes = vec![twice, node("StringConcat", &["y", "x"], &["z"])];
    let outputs = vec![strings("z", &["n"]), strings("y", &["n"])];
    let model = model(vec![strings("x", &["n"])], nodes, outputs, vec![]);
    let own =
        ["mine.Twice=test_twice,shapes=test_twice_shapes", "mine.Twice=cpp_twice,shapes=cpp_twice_shapes"];
    let x = ["ab", "", "été", "ab"];
    let y = x.map(|x| format!("{x}+{x}"));
    let z: Vec<String> = y.iter().zip(x).map(|(y, x)| format!("{y}{x}")).collect();
    let expected = [Tensor::from_texts(&[4], &z), Tensor::from_texts(&[4], &y)];
    let none = Tensor::from_texts(&[0], &[] as &[&str]);
    for own in own {
        check(&model, &[own], &[], &[Tensor::from_texts(&[4], &x)], &expected);
        check(&model, &[own], &[], std::slice::from_ref(&none), &[none.clone(), none.clone()]);
    }
}

/// What computes functions of the caller: those of the library with these names, by a context.
struct Given {
    functions: Vec<(&'static str, Address)>,
    calls: AtomicI32,
}

unsafe extern "C" fn given(context: *mut c_void, name: *const c_char, op: *mut custom::RawOp) -> i32 {
    // SAFETY: the model gives the context of the options and a name that ends with a zero.
    let (given, name) = unsafe { (&*context.cast::<Given>(), CStr::from_ptr(name)) };
    given.calls.fetch_add(1, Ordering::Relaxed);
    match given.functions.iter().find(|(known, _)| known.as_bytes() == name.to_bytes()) {
        // SAFETY: the library has the function, which takes what it is called with.
        Some((_, address)) => unsafe {
            let function: unsafe extern "C" fn(*mut custom::RawOp) -> i32 = std::mem::transmute(address.0);
            function(op)
        },
        None => 77,
    }
}

#[test]
fn functions_of_the_options() {
    let twice = mine("Twice", &["t"], &["u"]).with(text("between", "+"));
    let nodes = vec![mine("Positive", &["x"], &["y"]), node("Exp", &["y"], &["z"]), twice];
    let inputs = vec![f32_value("x", &["n"]), strings("t", &["k"])];
    let outputs = vec![f32_value("z", &["m"]), strings("u", &["k"])];
    let model = model(inputs, nodes, outputs, vec![f32_value("y", &["m"])]);
    let x = [1.0f32, -2.0, 3.0, 0.0];
    let inputs = [Some(floats(&[4], &x)), Some(Tensor::from_texts(&[2], &["ab", "c"]))];
    let expected = [floats(&[2], &[1f32.exp(), 3f32.exp()]), Tensor::from_texts(&[2], &["ab+ab", "c+c"])];
    let functions = functions();
    let own = ["mine.Positive=positive,late", "mine.Twice=twice,shapes=twice_sizes,late"];
    let declared: Vec<CustomOp> = own.iter().map(|text| text.parse().unwrap()).collect();
    let names = [
        ("positive", "test_positive"),
        ("positive_shapes", "test_positive_shapes"),
        ("twice", "test_twice"),
        ("twice_sizes", "test_twice_shapes"),
    ];
    let mut found: Vec<CustomOp> =
        names.iter().map(|(_, symbol)| format!("mine.Any={symbol}").parse().unwrap()).collect();
    functions.resolve(&mut found).unwrap();
    let known = names.iter().zip(&found).map(|((name, _), custom)| (*name, custom.addresses[0].1));
    let mut all = Given { functions: known.collect(), calls: AtomicI32::new(0) };
    for opt_level in [0, 3] {
        let compiled = compile(&model, declared.clone(), opt_level).unwrap();
        let printed = graph::print::to_text(&compiled.graph);
        assert!(printed.contains("late=true"), "{printed}");
        assert_eq!(graph::print::to_text(&graph::parse::parse(&printed).unwrap()), printed);
        let printed = compiled.host().unwrap().to_string();
        assert!(printed.contains("late positive_shapes(") && printed.contains("NEEDS_FUNCTION"), "{printed}");
        assert_eq!(onnxc_object::host::parse::parse(&printed).unwrap().to_string(), printed);
        // No library but those of texts: nothing of the object is left for a linker to find.
        let loaded = Loaded::with(compiled, &Functions::default(), Instant::now()).unwrap();
        let run = |call: &Call<'_>| {
            loaded
                .model()
                .unwrap()
                .run_guarded(&inputs, &[None, None], call)
                .map_err(|error| error.to_string())
        };
        let context = std::ptr::from_ref(&all).cast_mut().cast();
        let got = run(&Call { function: Some((given, context)), ..Call::default() }).unwrap();
        assert_eq!(texts(&got), texts(&expected), "level {opt_level}");
        assert!(all.calls.swap(0, Ordering::Relaxed) >= 4);
        let message = run(&Call::default()).unwrap_err();
        assert!(message.contains("needs the function `positive`, and the options have none"), "{message}");
        // What another caller gives is its own: one without a function fails at it.
        let twice = all.functions.remove(2);
        let other = Given { functions: all.functions.clone(), calls: AtomicI32::new(0) };
        let context = std::ptr::from_ref(&other).cast_mut().cast();
        let message = run(&Call { function: Some((given, context)), ..Call::default() }).unwrap_err();
        assert!(message.contains("(Twice): the function `twice` failed and gave 77"), "{message}");
        all.functions.insert(2, twice);
    }
    // Commands that run a model have the functions of libraries, by their own names.
    let late = "mine.Positive=test_positive,late".parse::<CustomOp>().unwrap();
    let mut one = [late];
    functions.resolve(&mut one).unwrap();
    assert!(!one[0].late && one[0].shapes.as_deref() == Some("test_positive_shapes"), "{one:?}");
}

#[test]
fn functions_take_the_place_of_known_operators() {
    let nodes = vec![
        node("Exp", &["x"], &["y"]),
        NodeProto { name: Some("second".into()), ..node("Exp", &["y"], &["z"]) },
    ];
    let model = model(vec![f32_value("x", &["n"])], nodes, vec![f32_value("z", &["n"])], vec![]);
    let mut model = model;
    model.opset_import.pop();
    let x = floats(&[3], &[0.0, 0.0, 0.0]);
    check(
        &model,
        &[],
        &["ai.onnx::Exp@second=test_exp_less_one"],
        std::slice::from_ref(&x),
        &[floats(&[3], &[0.0; 3])],
    );
    check(&model, &[], &["ai.onnx::Exp=test_exp_less_one"], &[x], &[floats(&[3], &[-2.0; 3])]);
}

/// Runs a model and gives the message of its failure.
fn failure(model: &ModelProto, own: &[&str], input: Tensor) -> String {
    let compiled = compile(model, custom_ops(own, &[]), 3).unwrap();
    let loaded = Loaded::with(compiled, &functions(), Instant::now()).unwrap();
    let inputs = [Some(input)];
    let shapes = vec![None; loaded.model().unwrap().outputs().len()];
    let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap_or(shapes);
    loaded.model().unwrap().run_guarded(&inputs, &shapes, &Call::default()).unwrap_err().to_string()
}

#[test]
fn failures_are_statuses_with_the_node_and_the_number() {
    let fail = |status: i64| {
        let node =
            NodeProto { name: Some("it".into()), ..mine("Fail", &["x"], &["y"]).with(int("status", status)) };
        model(vec![f32_value("x", &["n"])], vec![node], vec![f32_value("y", &["n"])], vec![])
    };
    for status in [7, -12] {
        let message = failure(&fail(status), &["mine.Fail=test_fail"], floats(&[2], &[1.0, 2.0]));
        let wanted = format!("node `it` (Fail): the function `test_fail` failed and gave {status}");
        assert!(message.contains(&wanted), "{message}");
    }
    let positive = mine("Positive", &["x"], &["y"]).with(int("wrong", 1));
    let open = model(vec![f32_value("x", &["n"])], vec![positive], vec![f32_value("y", &["m"])], vec![]);
    let own = ["mine.Positive=test_positive,shapes=test_positive_shapes"];
    let message = failure(&open, &own, floats(&[2], &[1.0, 2.0]));
    assert!(
        message.contains("size 0 of `y` as test_positive_shapes gives it") && message.contains("-2"),
        "{message}"
    );
}

/// What `onnxc_op.hpp` finds where a function in C++ does not fit its node, or throws.
#[test]
fn functions_in_cpp_that_do_not_fit() {
    let any = model(
        vec![f32_value("x", &["n"])],
        vec![mine("Any", &["x"], &["y"])],
        vec![f32_value("y", &["n"])],
        vec![],
    );
    let statuses = [
        ("cpp_wrong_type", 102),
        ("cpp_other_type", 102),
        ("cpp_second_input", 101),
        ("cpp_second_output", 101),
        ("cpp_no_input", 101),
        ("cpp_throws", 103),
        ("cpp_throws_in_parts", 103),
    ];
    for (function, status) in statuses {
        let message = failure(&any, &[&format!("mine.Any={function}")], floats(&[2], &[1.0, 2.0]));
        let wanted = format!("(Any): the function `{function}` failed and gave {status}");
        assert!(message.contains(&wanted), "{message}");
    }
    let x = floats(&[2], &[1.0, -0.0]);
    check(&any, &["mine.Any=cpp_copy"], &[], std::slice::from_ref(&x), std::slice::from_ref(&x));
    // An input more than the function takes, and an output.
    let two = model(
        vec![f32_value("x", &["n"])],
        vec![mine("Any", &["x", "x"], &["y", "z"])],
        vec![f32_value("y", &["n"]), f32_value("z", &["n"])],
        vec![],
    );
    for function in ["cpp_copy", "cpp_second_input", "cpp_second_output"] {
        let message = failure(&two, &[&format!("mine.Any={function}")], floats(&[2], &[1.0, 2.0]));
        assert!(message.contains(&format!("`{function}` failed and gave 101")), "{message}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let plain = |outputs| {
        model(vec![f32_value("x", &["n"])], vec![mine("Positive", &["x"], &["y"])], outputs, vec![])
    };
    let open = plain(vec![f32_value("y", &["m"])]);
    let refused = |model: &ModelProto, own: &[&str], overrides: &[&str]| {
        compile(model, custom_ops(own, overrides), 3).map(|_| ()).unwrap_err()
    };
    let contains = |message: String, text: &str| assert!(message.contains(text), "{message}");
    contains(refused(&open, &[], &[]), "--custom-op mine.Positive=FUNCTION");
    contains(
        refused(&open, &["mine.Positive=test_positive"], &[]),
        "size 0 of output `y` follows from no input",
    );
    contains(
        refused(
            &open,
            &["mine.Positive=test_positive,shapes=test_positive_shapes", "mine.Other=test_fail"],
            &[],
        ),
        "no node of operator mine.Other is in the model",
    );
    contains(
        refused(&open, &["mine.Positive@there=test_positive"], &[]),
        "no node `there` of operator mine.Positive",
    );
    contains(
        refused(&open, &[], &["mine::Positive=test_positive"]),
        "mine.Positive is not known: --custom-op",
    );
    let inner = model(
        vec![f32_value("x", &["n"])],
        vec![mine("Fail", &["x"], &["h"]), node("Relu", &["h"], &["y"])],
        vec![f32_value("y", &["n"])],
        vec![],
    );
    contains(refused(&inner, &["mine.Fail=test_fail"], &[]), "no element type and rank of output `h`");
    let known = model(
        vec![f32_value("x", &["n"])],
        vec![node("Exp", &["x"], &["y"])],
        vec![f32_value("y", &["n"])],
        vec![],
    );
    contains(refused(&known, &["ai.onnx.Exp=test_fail"], &[]), "ai.onnx.Exp is known: --override");
    let small = model(
        vec![build::value("x", DType::I4.to_onnx(), &["n"])],
        vec![mine("Fail", &["x"], &["y"])],
        vec![f32_value("y", &["n"])],
        vec![],
    );
    contains(refused(&small, &["mine.Fail=test_fail"], &[]), "input 0 is of type i4");
    for (text, wanted) in [
        ("mine.Op", "must be DOMAIN.NAME"),
        ("Op=f", "must be DOMAIN.NAME"),
        ("mine.Op=f g", "is not a valid name of a C function"),
        ("mine.Op=f,shapes=1", "is not a valid name of a C function"),
        ("mine.Op=f,scratch=-1", "must be a number below"),
        ("mine.Op=f,other=1", "must be shapes=FUNCTION"),
    ] {
        contains(text.parse::<CustomOp>().unwrap_err().to_string(), wanted);
    }
    let mut unknown = vec!["mine.Op=no_such_function".parse().unwrap()];
    contains(functions().resolve(&mut unknown).unwrap_err().to_string(), "no function `no_such_function`");
    let compiled =
        compile(&open, vec!["mine.Positive=absent,shapes=also_absent".parse().unwrap()], 3).unwrap();
    contains(
        Loaded::new(compiled, Instant::now()).map(|_| ()).unwrap_err().to_string(),
        "--custom-library FILE",
    );
}

#[test]
fn texts_of_inputs_and_constants_are_results() {
    // Memory with the texts of the input must not be used again before they are copied.
    let nodes = vec![
        mine("TurnRound", &["x"], &["turned", "same"]),
        node("StringConcat", &["turned", "same"], &["equal"]),
        node("StringConcat", &["equal", "x"], &["y"]),
    ];
    let between = vec![strings("turned", &["n"]), strings("same", &["n"])];
    let model = model(vec![strings("x", &["n"])], nodes, vec![strings("y", &["n"])], between);
    for n in [0, 1, 70] {
        let x: Vec<String> = (0..n).map(|at| format!("text {at} of more than a few bytes")).collect();
        let y: Vec<String> = x.iter().rev().zip(&x).map(|(turned, x)| format!("{turned}={x}")).collect();
        let expected = [Tensor::from_texts(&[n], &y)];
        check(&model, &["mine.TurnRound=test_turn_round"], &[], &[Tensor::from_texts(&[n], &x)], &expected);
    }
}

#[test]
fn elements_of_16_bits() {
    for dtype in [DType::F16, DType::BF16] {
        let value = |name: &str| build::value(name, dtype.to_onnx(), &["n"]);
        let nodes = vec![
            node("Add", &["x", "x"], &["twice"]),
            mine("Negate", &["twice"], &["h"]),
            node("Add", &["h", "x"], &["y"]),
        ];
        let model = model(vec![value("x")], nodes, vec![value("y"), value("h")], vec![]);
        for n in [0, 1, 37] {
            let x: Vec<f32> = (0..n).map(|at| at as f32 / 2.0 - 4.25).collect();
            let tensor = |factor: f32| {
                let values: Vec<f32> = x.iter().map(|x| factor * x).collect();
                interp::cast(&floats(&[n], &values), dtype, true)
            };
            check(
                &model,
                &["mine.Negate=test_negate,like=0"],
                &[],
                &[tensor(1.0)],
                &[tensor(-1.0), tensor(-2.0)],
            );
        }
    }
}

/// Passes may have tensors in other layouts and types, which functions do not see.
#[test]
fn functions_get_plain_tensors_between_convolutions() {
    const CHANNELS: usize = 32;
    let weights: Vec<f32> = (0..CHANNELS * CHANNELS * 9).map(|at| ((at * 7) % 5) as f32 - 2.0).collect();
    let nodes = vec![
        node("Conv", &["x", "w"], &["a"]).with(ints("pads", &[1; 4])),
        mine("Negate", &["a"], &["b"]),
        node("Conv", &["b", "w"], &["y"]).with(ints("pads", &[1; 4])),
    ];
    let dims = ["1", "32", "9", "9"];
    let mut own =
        model(vec![f32_value("x", &dims)], nodes, vec![f32_value("y", &dims)], vec![f32_value("a", &dims)]);
    let graph = own.graph.as_mut().unwrap();
    graph.initializer.push(build::f32_tensor("w", &[32, 32, 3, 3], weights));
    let mut plain = own.clone();
    plain.graph.as_mut().unwrap().node[1] = node("Neg", &["a"], &["b"]);
    // Integers, and sums that f32 and, but for the operands of the second product, bf16 have.
    let x: Vec<f32> = (0..CHANNELS * 81).map(|at| f32::from(at % 11 == 0)).collect();
    let x = floats(&[1, CHANNELS, 9, 9], &x);
    let expected = interp::run(&import(&plain, &[], &[]), std::slice::from_ref(&x)).unwrap();
    check(&own, &["mine.Negate=test_negate,like=0"], &[], std::slice::from_ref(&x), &expected);
    for precision in [Precision::F32, Precision::Bf16] {
        let run = |model: &ModelProto, own: &[&str]| {
            let options = Options { precision, ..options(custom_ops(own, &[]), 3) };
            let compiled = compile_with(model, &options).unwrap();
            let loaded = Loaded::with(compiled, &functions(), Instant::now()).unwrap();
            let shapes = [Some(vec![1, CHANNELS, 9, 9])];
            loaded.model().unwrap().run(&[Some(x.clone())], &shapes).unwrap()
        };
        assert_eq!(texts(&run(&own, &["mine.Negate=test_negate,like=0"])), texts(&run(&plain, &[])));
    }
}

#[test]
fn lists_among_the_attributes() {
    let values =
        AttributeProto { floats: vec![0.5, -1.5], ..build::attribute("floats", AttributeType::Floats) };
    let list = AttributeProto {
        strings: [&b"first"[..], b"last"].iter().map(|text| text.to_vec().into()).collect(),
        ..build::attribute("texts", AttributeType::Strings)
    };
    let node = mine("Lists", &["x"], &["y"]).with(values).with(list);
    let model = model(vec![f32_value("x", &["n"])], vec![node], vec![f32_value("y", &["8"])], vec![]);
    let expected = floats(&[8], &[0.5, -1.5, 0.0, 2.0, 4.0, 108.0, -1.0, 1.0]);
    check(&model, &["mine.Lists=test_lists"], &[], &[floats(&[1], &[0.0])], &[expected]);
}

/// How a run ends, and whether the flag of the run is set.
fn status(model: &ModelProto, own: &[&str]) -> Status {
    let loaded =
        Loaded::with(compile(model, custom_ops(own, &[]), 3).unwrap(), &functions(), Instant::now()).unwrap();
    let model = loaded.model().unwrap();
    let mut prepared = model.prepare(&[Some(floats(&[2], &[1.0, 2.0]))], &[Some(vec![2])]).unwrap();
    let mut arguments = prepared.arguments(&Call::default());
    let cancel = AtomicI32::new(0);
    arguments.options.cancel = cancel.as_ptr();
    // SAFETY: the arguments are those of a good call, and the flag outlives it.
    unsafe { arguments.run(&model) }
}

#[test]
fn a_run_is_cancelled_between_functions() {
    let two = |first: &str, second: &str| {
        let nodes = vec![mine(first, &["x"], &["h"]), mine(second, &["h"], &["y"])];
        model(vec![f32_value("x", &["n"])], nodes, vec![f32_value("y", &["n"])], vec![])
    };
    let own = ["mine.Cancel=test_cancel,like=0", "mine.Fail=test_fail,like=0"];
    assert_eq!(status(&two("Cancel", "Fail"), &own), Status::CANCELLED);
    assert_eq!(status(&two("Fail", "Cancel"), &own), Status::FUNCTION_FAILED);
}

#[test]
fn runs_on_several_threads_call_functions_at_once() {
    let scale = mine("Scale", &["x", ""], &["y"]).with(float("alpha", 2.0)).with(ints("steps", &[1]));
    let nodes = vec![scale, mine("Positive", &["y"], &["z"])];
    let outputs = vec![f32_value("z", &["m"])];
    let model = model(vec![f32_value("x", &["n"])], nodes, outputs, vec![f32_value("y", &["n"])]);
    let own = ["mine.Scale=test_scale", "mine.Positive=test_positive,shapes=test_positive_shapes"];
    let compiled = compile(&model, custom_ops(&own, &[]), 3).unwrap();
    let loaded = Loaded::with(compiled, &functions(), Instant::now()).unwrap();
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (loaded, pool) = (&loaded, &pool);
            scope.spawn(move || {
                for turn in 0..40 {
                    let n = 1 + 700 * thread + turn;
                    let x: Vec<f32> = (0..n).map(|at| (at + thread + turn) as f32 % 5.0 - 2.0).collect();
                    let z: Vec<f32> = x.iter().map(|x| 2.0 * x + 1.0).filter(|&y| y > 0.0).collect();
                    let call = Call { pool: (thread > 0).then_some(pool), ..Call::default() };
                    let shapes = [Some(vec![z.len()])];
                    let model = loaded.model().unwrap();
                    let got = model.run_with(&[Some(floats(&[n], &x))], &shapes, &call).unwrap();
                    assert_eq!(texts(&got), texts(&[floats(&[z.len()], &z)]));
                }
            });
        }
    });
}

/// A folder with a model of one node `it` of `mine.Positive`.
fn folder_with_a_model() -> tempfile::TempDir {
    let nodes = vec![NodeProto { name: Some("it".into()), ..mine("Positive", &["x"], &["y"]) }];
    let model = model(vec![f32_value("x", &["n"])], nodes, vec![f32_value("y", &["m"])], vec![]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    folder
}

/// Whether the command succeeds, and what it prints.
fn command(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_onnxc_driver"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .unwrap();
    let text = [run.stdout, run.stderr].concat();
    (run.status.success(), String::from_utf8_lossy(&text).into_owned())
}

const POSITIVE: &str = "--custom-op=mine.Positive=test_positive,shapes=test_positive_shapes";

#[test]
fn commands_that_run_models_load_the_library() {
    let folder = folder_with_a_model();
    let library = format!("--custom-library={}", library().display());
    std::fs::write(
        folder.path().join("ops.txt"),
        "# Those of the model.\nmine.Positive=test_positive,shapes=test_positive_shapes # by its values\n",
    )
    .unwrap();
    let set = folder.path().join("test_data_set_0");
    std::fs::create_dir(&set).unwrap();
    for (file, values) in [("input_0.pb", vec![-1.0, 2.0, 0.0, 3.0]), ("output_0.pb", vec![2.0, 3.0])] {
        let tensor = build::f32_tensor("", &[values.len() as i64], values);
        std::fs::write(set.join(file), tensor.encode_to_vec()).unwrap();
    }
    let run = |arguments: &[&str]| command(folder.path(), arguments);
    for arguments in [
        &["verify", "model.onnx", POSITIVE, &library][..],
        &["verify", "model.onnx", "--per-node", POSITIVE, &library],
        &["verify", "model.onnx", "--bisect", POSITIVE, &library],
        &["verify", "model.onnx", "--custom-ops-file=ops.txt", &library],
        &["bench", "model.onnx", "--size=n=5", "--seconds=0.01", POSITIVE, &library],
    ] {
        let (good, text) = run(arguments);
        assert!(good, "{arguments:?}: {text}");
    }
    let (good, text) = run(&["verify", "model.onnx", POSITIVE]);
    assert!(!good && text.contains("--custom-library FILE"), "{text}");
    std::fs::write(folder.path().join("ops.txt"), "\nmine.Positive\n").unwrap();
    let (good, text) = run(&["check", "model.onnx", "--custom-ops-file=ops.txt"]);
    assert!(!good && text.contains("ops.txt line 2: `mine.Positive` must be DOMAIN.NAME"), "{text}");
    let (good, text) = run(&["inspect", "model.onnx", POSITIVE]);
    assert!(good, "{text}");
    assert!(text.contains("calls int32_t test_positive(const onnxc_op *op); for it\n"), "{text}");
    assert!(text.contains("calls int32_t test_positive_shapes(onnxc_op *op); for it\n"), "{text}");
}

#[test]
fn linkers_name_a_function_that_is_missing() {
    let folder = folder_with_a_model();
    let (good, text) = command(folder.path(), &["model.onnx", POSITIVE, "-o", "model.o"]);
    assert!(good, "{text}");
    let main = "#include \"model.h\"\nint main(void) { return model_model() == NULL; }\n";
    std::fs::write(folder.path().join("main.c"), main).unwrap();
    let link = |more: &[&Path]| {
        let mut cc = Command::new("cc");
        cc.current_dir(folder.path()).args(["main.c", "model.o", "-o", "main", "-I"]);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/include")).args(more);
        let output = cc.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (good, text) = link(&[]);
    assert!(!good && text.contains("test_positive_shapes"), "{text}");
    let (good, text) = link(&[library()]);
    assert!(good, "{text}");
    for (function, name) in [("memcpy", "model"), ("model_run", "model"), ("my_model", "my")] {
        let own = format!("--custom-op=mine.Positive={function},shapes=test_positive_shapes");
        let (good, text) = command(folder.path(), &["model.onnx", &own, "--name", name, "-o", "other.o"]);
        let wanted =
            format!("the function `{function}`, which computes an operator, has the name of another one");
        assert!(!good && text.contains(&wanted), "{text}");
    }
}

/// Objects and C source whose functions the options have: they link alone, and say before a run what is missing.
#[test]
fn functions_of_the_options_in_c() {
    let folder = folder_with_a_model();
    let main = r#"
        #include <stdlib.h>
        #include <string.h>
        #include "model.h"
        static void *allocate(void *allocator, size_t bytes, size_t alignment) {
            (void)allocator;
            return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
        }
        static void release(void *allocator, void *memory, size_t bytes, size_t alignment) {
            (void)allocator;
            (void)bytes;
            (void)alignment;
            free(memory);
        }
        typedef struct { int calls; float above; } own;
        static int32_t compute(void *context, const char *function, onnxc_op *op) {
            own *mine = context;
            const float *x = op->inputs[0].data;
            int64_t i, count = 0;
            mine->calls++;
            for (i = 0; i < op->inputs[0].dims[0]; i++) {
                if (x[i] > mine->above) {
                    if (op->outputs[0].data != NULL) {
                        ((float *)op->outputs[0].data)[count] = x[i];
                    }
                    count++;
                }
            }
            if (strcmp(function, "keep_shapes") == 0) {
                op->outputs[0].dims[0] = count;
                return 0;
            }
            return strcmp(function, "keep") == 0 ? 0 : 5;
        }
        int main(void) {
            static float x[4] = { -1, 2, 0, 3 }, y[4];
            static int64_t four = 4, size;
            static char memory[65536 + 64];
            void *workspace = (void *)(((uintptr_t)memory + 63) / 64 * 64);
            onnxc_options options = ONNXC_OPTIONS_INIT;
            onnxc_tensor input = { x, sizeof x, ONNXC_FLOAT, 1, &four }, output = { y, sizeof y, ONNXC_FLOAT, 1, &size };
            own mine = { 0, 2 };
            char message[200] = "";
            int32_t status = model_run(&input, 1, &output, 1, workspace, 65536, NULL);
            if (status != ONNXC_NEEDS_FUNCTION) {
                return 1;
            }
            options.allocate = allocate;
            options.release = release;
            options.message = message;
            options.message_capacity = sizeof message;
            options.struct_size = offsetof(onnxc_options, function);
            if (model_run(&input, 1, &output, 1, workspace, 65536, &options) != ONNXC_NEEDS_FUNCTION
                || strstr(message, "needs the function `keep`") == NULL) {
                return 2;
            }
            options.struct_size = sizeof options;
            options.function = compute;
            options.function_context = &mine;
            if (model_run(&input, 1, &output, 1, workspace, 65536, &options) != ONNXC_OK) {
                return 3;
            }
            return mine.calls == 2 && size == 1 && y[0] == 3 ? 0 : 4;
        }"#;
    let model: ModelProto =
        ModelProto::decode(&std::fs::read(folder.path().join("model.onnx")).unwrap()[..]).unwrap();
    assert_eq!(model.graph.unwrap().node[0].op_type(), "Positive");
    std::fs::write(folder.path().join("main.c"), main).unwrap();
    for output in ["model.o", "model.c"] {
        let own = "--custom-op=mine.Positive=keep,late";
        let (good, text) = command(folder.path(), &["model.onnx", own, "-o", output]);
        assert!(good, "{text}");
        let mut cc = Command::new("cc");
        cc.current_dir(folder.path()).args(["main.c", output, "-o", "main", "-lm", "-I"]);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/include"));
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let status = Command::new(folder.path().join("main")).status().unwrap();
        assert_eq!(status.code(), Some(0));
    }
    let (good, text) =
        command(folder.path(), &["inspect", "model.onnx", "--custom-op=mine.Positive=keep,late"]);
    assert!(good && text.contains("options->function(options->function_context, \"keep\", op)"), "{text}");
}

unsafe extern "C" fn clip(op: *mut custom::RawOp) -> i32 {
    // SAFETY: the evaluation gives what `onnxc.h` says.
    unsafe {
        custom::run(op, |op| {
            let limit = op.float("limit").unwrap_or(1.0) as f32;
            let x = op.input::<f32>(0)?;
            assert!(x.iter().all(|x| !x.is_nan()), "a NaN");
            assert_eq!(op.input::<i64>(0).unwrap_err(), custom::status::TYPE);
            assert_eq!(op.input::<f32>(1).unwrap_err(), custom::status::ABSENT);
            assert_eq!((op.input_dims(0), op.output_dims(0)), (Some(&[3][..]), Some(&[3][..])));
            assert_eq!((op.ints("steps"), op.bytes("name")), (Some(&[1, 2][..]), Some(&b"n"[..])));
            for (y, x) in op.output::<f32>(0)?.iter_mut().zip(x) {
                *y = x.min(limit);
            }
            Ok(())
        })
    }
}

#[test]
fn functions_in_rust_have_a_safe_wrapper() {
    let node = mine("Clip", &["x"], &["y"])
        .with(float("limit", 2.0))
        .with(ints("steps", &[1, 2]))
        .with(text("name", "n"));
    let model = model(vec![f32_value("x", &["3"])], vec![node], vec![f32_value("y", &["3"])], vec![]);
    let mut custom: CustomOp = "mine.Clip=clip".parse().unwrap();
    custom.addresses = vec![("clip".into(), Address(clip as *const () as usize))];
    let options = ImportOptions { custom_ops: vec![custom], ..Default::default() };
    let graph = onnxc_import::import(&model, &options, &NoExternalData, onnxc::operators()).unwrap().graph;
    let run = |x: [f32; 3]| interp::run(&graph, &[floats(&[3], &x)]);
    assert_eq!(texts(&run([1.0, 2.0, 3.0]).unwrap()), texts(&[floats(&[3], &[1.0, 2.0, 2.0])]));
    let message = run([1.0, f32::NAN, 3.0]).unwrap_err().to_string();
    assert!(message.contains("clip gave status 103"), "{message}");
}
