//! `training_info`, compiled: each rule of the specification on a model of its own, what a step leaves in the state, checkpoints, misuse of
//! the further entry points; and all of that on drawn networks.

mod drawn;
pub(crate) mod program;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native;
use onnxc::{Compiled, Options, Quiet};
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_ir::graph::Tensor;
use onnxc_machine::target::Target;
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto, TrainingInfoProto, build};
use onnxc_runtime_support::{Options as RunOptions, Status};
use onnxc_tests::abi::check;
use prost::Message;

use self::program::{Program, State, entry, own, values};
use crate::clauses::text;

fn options(training: bool, opt_level: u8) -> Options {
    Options {
        opt_level,
        import: ImportOptions { training, ..Default::default() },
        ..Options::new(
            "model",
            Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap(),
        )
    }
}

fn compile(model: &ModelProto, options: &Options) -> Result<Compiled, String> {
    onnxc::compile(model.encode_to_vec().into(), &NoExternalData, options, &mut Quiet)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn load(model: &ModelProto, opt_level: u8) -> Loaded {
    let compiled = compile(model, &options(true, opt_level)).unwrap_or_else(|errors| panic!("{errors}"));
    Loaded::new(compiled, Instant::now()).unwrap()
}

fn binding(text: &str) -> StringStringEntryProto {
    let (key, value) = text.split_once('=').unwrap();
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

fn part(text: &str) -> Option<GraphProto> {
    (!text.is_empty()).then(|| text::model(text).graph.unwrap())
}

/// Training information of texts: the initialization and its bindings, the algorithm and its bindings.
fn info(initialization: &str, initial: &[&str], algorithm: &str, update: &[&str]) -> TrainingInfoProto {
    TrainingInfoProto {
        initialization: part(initialization),
        algorithm: part(algorithm),
        initialization_binding: initial.iter().map(|text| binding(text)).collect(),
        update_binding: update.iter().map(|text| binding(text)).collect(),
    }
}

fn model(graph: &str, infos: Vec<TrainingInfoProto>) -> ModelProto {
    let mut model = text::model(graph);
    model.opset_import.push(build::opset("ai.onnx.preview.training", 1));
    model.training_info = infos;
    model
}

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

/// Numbers between -1 and 1 in no order.
fn numbers(shape: &[usize], salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |at: usize| ((at * 7919 + salt * 104_729 + 17) % 2003) as f32 / 1001.5 - 1.0;
    f32s(shape, &(0..count).map(number).collect::<Vec<_>>())
}

const SCALE: &str = "(float[n] x) => (float[n] y) <float[1] w = {3}> { y = Mul(x, w) }";
const STEP: &str = "(float[1] t) => (float[1] w_new) { w_new = Sub(w, t) }";
const INIT: &str = "() => (float[1] w_zero) { w_zero = Constant<value = float[1] {7}>() }";

#[test]
fn what_is_trained_is_read_by_inference() {
    for opt_level in [0, 3] {
        let model = model(SCALE, vec![info(INIT, &["w=w_zero"], STEP, &["w=w_new"])]);
        let loaded = load(&model, opt_level);
        let infer = own(&loaded);
        let (initialize, step) = (entry(&loaded, "train_initialize"), entry(&loaded, "train_step"));
        let mut state = State::new(&infer);
        let x = f32s(&[3], &[1.0, 2.0, -1.0]);
        let infers = |state: &mut State| infer.call(std::slice::from_ref(&x), state)[0].to_f64s().unwrap();
        // A reset gives the initializer's value, an initialization that of its graph.
        assert_eq!(infers(&mut state), [3.0, 6.0, -3.0]);
        assert!(initialize.call(&[], &mut state).is_empty());
        assert_eq!(infers(&mut state), [7.0, 14.0, -7.0]);
        // The step also gives what the graph gives, by the values before it.
        let inputs = [x.clone(), f32s(&[1], &[0.5])];
        assert_eq!(step.call(&inputs, &mut state)[0].to_f64s().unwrap(), [7.0, 14.0, -7.0]);
        let before = state.bytes();
        assert_eq!(infers(&mut state), [6.5, 13.0, -6.5]);
        assert_eq!(state.bytes(), before, "inference changes nothing");
        // Nothing stands between two blocks.
        let mut other = State::new(&infer);
        assert_eq!(infers(&mut other), [3.0, 6.0, -3.0]);
        assert_eq!(infers(&mut state), [6.5, 13.0, -6.5]);
    }
}

/// The algorithm's own initializers: one that a binding changes is state, the other a constant.
#[test]
fn variables_of_the_algorithm() {
    let step = "() => (int64[] t_new, float[1] w_new) <int64[] t = {5}, int64[] one = {1}> \
        { t_new = Add(t, one) f = Cast<to = 1>(t) w_new = Add(w, f) }";
    let init = "() => (int64[] zero) { zero = Constant<value = int64[] {0}>() }";
    let loaded = load(&model(SCALE, vec![info(init, &["t=zero"], step, &["w=w_new", "t=t_new"])]), 3);
    let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
    let names: Vec<&str> =
        step.graph.inputs[step.graph.given_inputs()..].iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["w", "t"]);
    let mut state = State::new(&infer);
    let x = f32s(&[0], &[]);
    for (w, t) in [(8.0, 6.0), (14.0, 7.0)] {
        step.call(std::slice::from_ref(&x), &mut state);
        assert_eq!([state.values(infer.graph, "w"), state.values(infer.graph, "t")], [vec![w], vec![t]]);
    }
    entry(&loaded, "train_initialize").call(&[], &mut state);
    assert_eq!([state.values(infer.graph, "w"), state.values(infer.graph, "t")], [vec![14.0], vec![0.0]]);
    assert_eq!(infer.call(&[f32s(&[1], &[2.0])], &mut state)[0].to_f64s().unwrap(), [28.0]);
}

/// Several entries are functions with numbers; each finds what the one before it has left, and all keep variables of others.
#[test]
fn entries_in_order() {
    let double = "() => (float[1] w_new) <float[1] two = {2}> { w_new = Mul(w, two) }";
    let count = "(float[1] by) => (float[1] t_new, float[1] seen) <float[1] t = {0}> { t_new = Add(t, by) seen = Identity(w) }";
    let init = "() => (float[1] v) { v = Constant<value = float[1] {10}>() }";
    let infos = vec![info("", &[], double, &["w=w_new"]), info(init, &["t=v"], count, &["t=t_new"])];
    let loaded = load(&model(SCALE, infos), 3);
    let names: Vec<&str> = loaded.entries.iter().map(|entry| entry.suffix.as_str()).collect();
    assert_eq!(names, ["train_step_0", "train_initialize_1", "train_step_1"]);
    let (first, second) = (entry(&loaded, "train_step_0"), entry(&loaded, "train_step_1"));
    let mut state = State::new(&own(&loaded));
    let x = f32s(&[1], &[1.0]);
    first.call(std::slice::from_ref(&x), &mut state);
    let seen = second.call(&[x.clone(), f32s(&[1], &[0.25])], &mut state);
    assert_eq!(seen[1].to_f64s().unwrap(), [6.0]);
    entry(&loaded, "train_initialize_1").call(&[], &mut state);
    assert_eq!(state.values(&loaded.graph, "w"), [6.0]);
    assert_eq!(state.values(&loaded.graph, "t"), [10.0]);
}

/// A value of a binding may be an output of the graph, several keys may have one value, a value may be a constant or another variable,
/// and a key may be an input of the graph as well.
#[test]
fn values_of_bindings() {
    let graph = "(float[1] x, float[1] w) => (float[1] y) <float[1] w = {3}, float[1] v = {4}, float[1] u = {5}, float[1] k = {6}> \
        { a = Mul(x, w) y = Add(a, v) }";
    let step = "() => (float[1] z, float[1] c) { z = Add(u, k) c = Constant<value = float[1] {9}>() }";
    let update = ["w=y", "v=z", "u=z", "k=c"];
    for opt_level in [0, 3] {
        let loaded = load(&model(graph, vec![info("", &[], step, &update)]), opt_level);
        let (infer, step) = (own(&loaded), entry(&loaded, "train_step"));
        assert_eq!((infer.graph.given_inputs(), step.graph.given_outputs()), (1, 1));
        let mut state = State::new(&infer);
        let x = f32s(&[1], &[2.0]);
        assert_eq!(step.call(std::slice::from_ref(&x), &mut state)[0].to_f64s().unwrap(), [10.0]);
        let found = ["w", "v", "u", "k"].map(|name| state.values(infer.graph, name)[0]);
        assert_eq!(found, [10.0, 11.0, 11.0, 9.0]);
        assert_eq!(infer.call(&[x], &mut state)[0].to_f64s().unwrap(), [31.0]);
    }
}

/// One variable takes the value that another one had before the step.
#[test]
fn a_variable_that_follows_another() {
    let graph = "(float[1] x) => (float[1] y) <float[1] w = {3}, float[1] last = {0}> { y = Mul(x, w) }";
    let step =
        "() => (float[1] w_new, float[1] now) <float[1] two = {2}> { w_new = Mul(w, two) now = Identity(w) }";
    let loaded = load(&model(graph, vec![info("", &[], step, &["w=w_new", "last=now"])]), 3);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    step.call(&[f32s(&[1], &[1.0])], &mut state);
    assert_eq!(["w", "last"].map(|name| state.values(&loaded.graph, name)[0]), [6.0, 3.0]);
}

/// Types and sizes of variables: none, scalars, no elements, bytes, halves.
#[test]
fn variables_of_any_type() {
    let graph = "(float[1] x) => (float[1] y) <bool[2] b = {1, 0}, uint8[3] u = {1, 2, 3}, double[] d = {0.5}, int64[0] e = {}, \
        int16[5] s = {1, -2, 3, -4, 5}> { y = Neg(x) }";
    let step = "() => (bool[2] b1, uint8[3] u1, double[] d1, int64[0] e1, int16[5] s1) \
        { b1 = Not(b) u1 = Add(u, u) d1 = Neg(d) e1 = Add(e, e) s1 = Neg(s) }";
    let update = ["b=b1", "u=u1", "d=d1", "e=e1", "s=s1"];
    for opt_level in [0, 3] {
        let loaded = load(&model(graph, vec![info("", &[], step, &update)]), opt_level);
        let mut state = State::new(&own(&loaded));
        let step = entry(&loaded, "train_step");
        step.call(&[f32s(&[1], &[1.0])], &mut state);
        let found = ["b", "u", "d", "e", "s"].map(|name| state.values(&loaded.graph, name));
        let wanted: [&[f64]; 5] =
            [&[0.0, 1.0], &[2.0, 4.0, 6.0], &[-0.5], &[], &[-1.0, 2.0, -3.0, 4.0, -5.0]];
        assert_eq!(found, wanted);
    }
}

/// Initial values whose elements are equal are not in the object as often; a reset gives them to every byte, and none beyond.
#[test]
fn initial_values_of_equal_elements() {
    const COUNTS: [usize; 8] = [0, 1, 15, 16, 17, 33, 4096, 50_000];
    type Draw = fn(usize) -> u64;
    let kinds: [(DataType, usize, &str, Draw); 10] = [
        (DataType::Float, 4, "zeros", |_| 0),
        (DataType::Float, 4, "ones", |_| 1f32.to_bits().into()),
        (DataType::Float, 4, "negative zeros", |_| (-0f32).to_bits().into()),
        (DataType::Float, 4, "first", |at| (at == 0).into()),
        (DataType::Float16, 2, "halves", |_| 0x3800),
        (DataType::Uint8, 1, "sevens", |_| 7),
        (DataType::Bool, 1, "truths", |_| 1),
        (DataType::Double, 8, "last", |at| (at % 50_000 == 49_999).into()),
        (DataType::Int64, 8, "counts", |_| 5),
        (DataType::Complex64, 8, "i", |_| 0x3f80_0000 << 32),
    ];
    let (mut graph, mut update, mut different) = (text::model(SCALE).graph.unwrap(), vec![], 0);
    let mut algorithm = text::model("(float[1] t) => (float[1] q) { q = Neg(t) }").graph.unwrap();
    for (kind, width, name, draw) in kinds {
        for count in COUNTS {
            let values = (0..count).flat_map(|at| draw(at).to_le_bytes()[..width].to_vec());
            let values: Vec<u8> = values.collect();
            let uniform = values.chunks(width).all(|element| element == &values[..width]);
            different += if uniform { 0 } else { values.len() };
            let name = format!("{name} {count}");
            algorithm.node.push(build::node("Identity", &[&name], &[&format!("{name} next")]));
            algorithm.output.push(build::value(&format!("{name} next"), kind as i32, &[count]));
            update.push(format!("{name}={name} next"));
            graph.initializer.push(TensorProto {
                data_type: Some(kind as i32),
                dims: vec![count as i64],
                raw_data: Some(values.into()),
                name: Some(name),
                ..Default::default()
            });
        }
    }
    let update: Vec<&str> = update.iter().map(String::as_str).collect();
    let mut info = info("", &[], STEP, &update);
    info.algorithm = Some(algorithm);
    let initializers = graph.initializer.clone();
    let mut model = model(SCALE, vec![info]);
    model.graph = Some(graph);
    for opt_level in [0, 3] {
        let compiled = compile(&model, &options(true, opt_level)).unwrap_or_else(|errors| panic!("{errors}"));
        let mut object = vec![];
        compiled.artifact().unwrap().write_object(&mut object).unwrap();
        let most = different + 150_000;
        assert!(object.len() < most, "{} bytes, at most {most}", object.len());
        let loaded = load(&model, opt_level);
        let program = own(&loaded);
        // Anything may be in a block before its first reset.
        let mut state = State::new(&program);
        state.0.contents_mut().fill(0xa5);
        let symbols = vec![1; program.model.symbols().len()];
        assert_eq!(program.model.reset_state(state.0.contents_mut(), &symbols), Status::OK);
        let mut at = 64;
        for state_of in &program.graph.states {
            let name = &program.graph.inputs[state_of.ports.0].name;
            let wanted = initializers.iter().find(|tensor| tensor.name.as_ref() == Some(name)).unwrap();
            let wanted = wanted.raw_data.as_ref().unwrap();
            let room = &state.bytes()[at..at + wanted.len().next_multiple_of(64)];
            let (found, behind) = room.split_at(wanted.len());
            assert!(found == wanted.as_ref(), "{name} at level {opt_level}");
            assert!(behind.iter().all(|&byte| byte == 0), "behind {name}");
            at += room.len();
        }
        assert_eq!(at, state.bytes().len());
        let (before, inputs) = (state.bytes(), [f32s(&[1], &[3.0]), f32s(&[1], &[2.0])]);
        let (status, _) = entry(&loaded, "train_step").call_with(&inputs, &mut state, RunOptions::default());
        assert_eq!(status, Status::OK);
        assert_eq!(state.bytes(), before);
    }
}

/// Bindings that do not hold, each with what the error says.
#[test]
fn bindings_to_nowhere_and_of_other_types() {
    let other = "(float[1] t) => (float[1] w_new, float[2] two, double[1] d, float[] s) \
        { w_new = Sub(w, t) two = Concat<axis = 0>(w, t) d = Cast<to = 11>(w) s = ReduceSum<keepdims = 0>(w) }";
    let with = |update: &[&str]| vec![info("", &[], other, update)];
    let own_w = "() => (float[1] v) <float[1] q = {1}> { v = Neg(q) }";
    let cases: Vec<(Vec<TrainingInfoProto>, &str)> = vec![
        (
            with(&["nowhere=w_new"]),
            "update_binding of training_info[0] binds `nowhere`, which is not an initializer",
        ),
        (with(&["=w_new"]), "binds ``, which is not an initializer"),
        (with(&["x=w_new"]), "binds `x`, which is not an initializer"),
        (with(&["y=w_new"]), "binds `y`, which is not an initializer"),
        (with(&["w="]), "gives `w` the value ``, which is not among the outputs"),
        (with(&["w=nowhere"]), "gives `w` the value `nowhere`, which is not among the outputs"),
        (with(&["w=x"]), "gives `w` the value `x`, which is not among the outputs"),
        (with(&["w=two"]), "gives `w`, which is f32[1], the value `two`, which is f32[2]"),
        (with(&["w=d"]), "gives `w`, which is f32[1], the value `d`, which is f64[1]"),
        (with(&["w=s"]), "gives `w`, which is f32[1], the value `s`, which is f32[]"),
        (with(&["w=w_new", "w=w_new"]), "binds `w`, which update_binding of training_info[0] binds, too"),
        (
            vec![info("", &[], STEP, &["w=w_new"]), info("", &[], STEP, &["w=w_new"])],
            "update_binding of training_info[1] binds `w`, which update_binding of training_info[0] binds, too",
        ),
        (
            vec![info(INIT, &["w=w_zero", "w=w_zero"], STEP, &["w=w_new"])],
            "initialization_binding of training_info[0] binds `w` twice",
        ),
        (
            vec![info("", &["w=w_zero"], STEP, &["w=w_new"])],
            "gives `w` the value `w_zero`, which is not among the outputs of the initialization",
        ),
        (
            vec![info(INIT, &["w=y"], STEP, &["w=w_new"])],
            "gives `w` the value `y`, which is not among the outputs of the initialization",
        ),
        (
            vec![info(
                "() => (float[2] v) { v = Constant<value = float[2] {0, 0}>() }",
                &["w=v"],
                STEP,
                &["w=w_new"],
            )],
            "initialization_binding of training_info[0] gives `w`, which is f32[1], the value `v`, which is f32[2]",
        ),
        (
            vec![info("(float[1] q) => (float[1] v) { v = Neg(q) }", &["w=v"], STEP, &["w=w_new"])],
            "training_info[0]: the initialization takes `q`; it may take nothing",
        ),
        // An initialization does not see the graph; an algorithm does not see another one.
        (
            vec![info("() => (float[1] v) { v = Neg(w) }", &["w=v"], STEP, &["w=w_new"])],
            "the initialization of training_info[0]: ",
        ),
        (
            vec![
                info("", &[], own_w, &["q=v"]),
                info("", &[], "() => (float[1] w_new) { w_new = Neg(q) }", &["w=w_new"]),
            ],
            "the step of training_info[1]: ",
        ),
        (
            vec![info("", &[], own_w, &["q=v"]), info("", &[], own_w, &[]), info("", &[], own_w, &["q=v"])],
            "update_binding of training_info[2] binds `q`",
        ),
        (
            vec![info("", &[], "() => (float[1] v) <float[1] w = {1}> { v = Neg(w) }", &["w=v"])],
            "the initializer `w` of the algorithm of training_info[0] is a value of the graph, too",
        ),
        (vec![info("", &[], "(float[n] x) => (float[n] v) { v = Neg(x) }", &[])], "`x` is defined twice"),
        (vec![info("", &[], "() => (float[n] y) { y = Neg(x) }", &[])], "`y`"),
        (
            vec![info("", &[], "(float[1] t) => (float[1] v) { v = Nope(w, t) }", &["w=v"])],
            "the step of training_info[0]: ",
        ),
        (vec![], "the model has no training_info"),
    ];
    for (infos, wanted) in cases {
        match compile(&model(SCALE, infos), &options(true, 3)) {
            Ok(_) => panic!("compiled, and not: {wanted}"),
            Err(errors) => assert!(errors.contains(wanted), "{errors}\n    must contain: {wanted}"),
        }
    }
    let text = "(float[1] x) => (float[1] y) <float[1] w = {3}, string[1] s = {\"a\"}> { y = Mul(x, w) }";
    let step = "() => (string[1] v) { v = Identity(s) }";
    let errors = compile(&model(text, vec![info("", &[], step, &["s=v"])]), &options(true, 3)).err().unwrap();
    assert!(
        errors.contains("the variable `s` is str: only tensors of whole bytes can be trained"),
        "{errors}"
    );
    let mut both = options(true, 3);
    both.import.state.found = true;
    let errors = compile(&model(SCALE, vec![info("", &[], STEP, &["w=w_new"])]), &both).err().unwrap();
    assert!(errors.contains("--state beside --training"), "{errors}");
}

/// Sizes of what replaces a variable that only a run knows are held to the variable's by the run.
#[test]
fn symbolic_sizes_of_new_values() {
    let step = "(float[k] t) => (float[k] v) { v = Neg(t) }";
    let loaded = load(&model(SCALE, vec![info("", &[], step, &["w=v"])]), 3);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let x = f32s(&[1], &[1.0]);
    step.call(&[x.clone(), f32s(&[1], &[2.0])], &mut state);
    assert_eq!(state.values(&loaded.graph, "w"), [-2.0]);
    let before = state.bytes();
    let (status, _) = step.call_with(&[x, f32s(&[2], &[2.0, 1.0])], &mut state, RunOptions::default());
    assert_eq!(status, Status::BAD_DIM);
    assert_eq!(state.bytes(), before);
}

/// What no binding changes is a constant; without variables there is no block.
#[test]
fn without_bindings_nothing_is_state() {
    let loaded = load(&model(SCALE, vec![info("", &[], "() => (float[n] z) { z = Neg(y) }", &[])]), 3);
    assert!(loaded.graph.states.is_empty());
    let step = entry(&loaded, "train_step");
    let x = Some(f32s(&[2], &[1.0, 2.0]));
    let shapes = native::output_shapes(step.graph, std::slice::from_ref(&x)).unwrap();
    let found = step.model.run(&[x], &shapes).unwrap();
    assert_eq!(found[1].to_f64s().unwrap(), [-3.0, -6.0]);
}

/// Without being asked, the object of a model with training information is that of the model without.
#[test]
fn inference_alone_is_unchanged() {
    let object = |model: &ModelProto| {
        let artifact = compile(model, &options(false, 3)).unwrap().artifact().unwrap();
        let (header, mut object) = (artifact.header.clone(), vec![]);
        artifact.write_object(&mut object).unwrap();
        (header, object)
    };
    let with = object(&model(SCALE, vec![info(INIT, &["w=w_zero"], STEP, &["w=w_new"])]));
    assert!(with == object(&model(SCALE, vec![])));
}

const INPUTS: usize = 7;
const HIDDEN: usize = 13;
const CLASSES: usize = 5;

/// A perceptron with one hidden layer, and Momentum on the cross entropy.
fn perceptron() -> ModelProto {
    let graph = format!(
        "(float[n, {INPUTS}] x) => (float[n, {CLASSES}] scores) {{ a = MatMul(x, w) b = Add(a, c) h = Relu(b) d = MatMul(h, v) scores = Add(d, e) }}"
    );
    let step = "(int64[n] labels) => (float[] loss, float w_new, float c_new, float v_new, float e_new, float mw_new, float mc_new, \
        float mv_new, float me_new, int64[] t_new) <float[] rate = {0.1}, int64[] t = {0}, int64[] one = {1}> { \
        loss = SoftmaxCrossEntropyLoss(scores, labels) \
        gw, gc, gv, ge = ai.onnx.preview.training.Gradient<xs = [\"w\", \"c\", \"v\", \"e\"], zs = [\"x\", \"labels\"], y = \"loss\">(w, c, v, e, x, labels) \
        w_new, c_new, v_new, e_new, mw_new, mc_new, mv_new, me_new = ai.onnx.preview.training.Momentum<alpha = 0.9, beta = 1.0, \
        mode = \"standard\", norm_coefficient = 0.001>(rate, t, w, c, v, e, gw, gc, gv, ge, mw, mc, mv, me) t_new = Add(t, one) }";
    let step = step.replace("float w_new", "float[?, ?] w_new").replace("float c_new", "float[?] c_new");
    let step = step.replace("float v_new", "float[?, ?] v_new").replace("float e_new", "float[?] e_new");
    let step = step.replace("float mw_new", "float[?, ?] mw_new").replace("float mc_new", "float[?] mc_new");
    let step = step.replace("float mv_new", "float[?, ?] mv_new").replace("float me_new", "float[?] me_new");
    let update = [
        "w=w_new",
        "c=c_new",
        "v=v_new",
        "e=e_new",
        "mw=mw_new",
        "mc=mc_new",
        "mv=mv_new",
        "me=me_new",
        "t=t_new",
    ];
    let mut model = model(&graph, vec![info("", &[], &step, &update)]);
    let shapes: [(&str, &[i64]); 4] = [
        ("w", &[INPUTS as i64, HIDDEN as i64]),
        ("c", &[HIDDEN as i64]),
        ("v", &[HIDDEN as i64, CLASSES as i64]),
        ("e", &[CLASSES as i64]),
    ];
    for (at, (name, shape)) in shapes.into_iter().enumerate() {
        let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        let values: Vec<f32> =
            numbers(&sizes, at).to_f64s().unwrap().iter().map(|&value| value as f32 * 0.5).collect();
        let zeros = vec![0.0; values.len()];
        model.graph.as_mut().unwrap().initializer.push(build::f32_tensor(name, shape, values));
        let algorithm = model.training_info[0].algorithm.as_mut().unwrap();
        algorithm.initializer.push(build::f32_tensor(&format!("m{name}"), shape, zeros));
    }
    model
}

fn batch(count: usize, step: usize) -> [Tensor; 2] {
    let labels: Vec<i64> = (0..count).map(|at| ((at * 3 + step) % CLASSES) as i64).collect();
    let mut x: Vec<f32> =
        numbers(&[count, INPUTS], step).to_f64s().unwrap().iter().map(|&value| value as f32).collect();
    for (at, &label) in labels.iter().enumerate() {
        x[at * INPUTS + label as usize] += 1.5;
    }
    [f32s(&[count, INPUTS], &x), Tensor::from_slice(&[count], &labels)]
}

/// The step of [`perceptron`] written by hand, in f64: parameters, then momenta. Gives the loss.
fn by_hand(parameters: &mut [Vec<f64>; 4], momenta: &mut [Vec<f64>; 4], x: &[f64], labels: &[f64]) -> f64 {
    let n = labels.len();
    let [w, c, v, e] = &*parameters;
    let mut gradients = parameters.each_ref().map(|parameter| vec![0.0; parameter.len()]);
    let mut loss = 0.0;
    for row in 0..n {
        let x = &x[row * INPUTS..][..INPUTS];
        let sums: Vec<f64> =
            (0..HIDDEN).map(|j| c[j] + (0..INPUTS).map(|i| x[i] * w[i * HIDDEN + j]).sum::<f64>()).collect();
        let scores: Vec<f64> = (0..CLASSES)
            .map(|k| e[k] + (0..HIDDEN).map(|j| sums[j].max(0.0) * v[j * CLASSES + k]).sum::<f64>())
            .collect();
        let most = scores.iter().cloned().fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
        let label = labels[row] as usize;
        loss -= (scores[label] - most - total.ln()) / n as f64;
        for k in 0..CLASSES {
            let slope = ((scores[k] - most).exp() / total - f64::from(u8::from(k == label))) / n as f64;
            gradients[3][k] += slope;
            for j in (0..HIDDEN).filter(|&j| sums[j] > 0.0) {
                gradients[2][j * CLASSES + k] += slope * sums[j];
                gradients[1][j] += slope * v[j * CLASSES + k];
                for i in 0..INPUTS {
                    gradients[0][i * HIDDEN + j] += slope * v[j * CLASSES + k] * x[i];
                }
            }
        }
    }
    for at in 0..4 {
        for element in 0..parameters[at].len() {
            let slope = gradients[at][element] + 0.001f32 as f64 * parameters[at][element];
            momenta[at][element] = 0.9f32 as f64 * momenta[at][element] + slope;
            parameters[at][element] -= 0.1f32 as f64 * momenta[at][element];
        }
    }
    loss
}

#[test]
fn steps_of_a_perceptron_are_those_written_by_hand() {
    for opt_level in [0, 3] {
        let loaded = load(&perceptron(), opt_level);
        let step = entry(&loaded, "train_step");
        let mut state = State::new(&own(&loaded));
        let names = ["w", "c", "v", "e"];
        let mut parameters = names.map(|name| state.values(&loaded.graph, name));
        let mut momenta = names.map(|name| state.values(&loaded.graph, &format!("m{name}")));
        let mut losses = vec![];
        for number in 0..60 {
            // Batches of any size, none of no element: their mean has no value.
            let inputs = batch([8, 1, 3, 16][number % 4], number);
            let found = step.call(&inputs, &mut state)[1].to_f64s().unwrap()[0];
            let [x, labels] = inputs.map(|tensor| values(&tensor));
            let wanted = by_hand(&mut parameters, &mut momenta, &x, &labels);
            assert!((found - wanted).abs() < 1e-4, "step {number}: a loss of {found}, must be {wanted}");
            losses.push(found);
        }
        for (name, wanted) in names.iter().zip(&parameters) {
            for (found, wanted) in state.values(&loaded.graph, name).iter().zip(wanted) {
                assert!(
                    (found - wanted).abs() < 1e-4 * (1.0 + wanted.abs()),
                    "{name}: {found}, must be {wanted}"
                );
            }
        }
        assert_eq!(state.values(&loaded.graph, "t"), [60.0]);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[48..]) < 0.5 * mean(&losses[..12]), "{losses:?}");
        // What was learnt is what the object infers with.
        let [x, labels] = batch(40, 99);
        let scores = own(&loaded).call(&[x], &mut state)[0].to_f64s().unwrap();
        let right = scores
            .chunks(CLASSES)
            .zip(values(&labels))
            .filter(|(row, label)| (0..CLASSES).all(|k| row[k] <= row[*label as usize]));
        assert!(right.count() >= 30);
    }
}

/// Cancels a run once it has done a number of steps of its program.
struct Cancel {
    left: i64,
    flag: i32,
}

unsafe extern "C" fn count(context: *mut std::ffi::c_void, _: i64) {
    // SAFETY: the context is the test's, which outlives the run.
    let cancel = unsafe { &mut *context.cast::<Cancel>() };
    cancel.left -= 1;
    if cancel.left <= 0 {
        cancel.flag = 1;
    }
}

#[test]
fn a_step_that_is_cancelled_leaves_the_state_as_it_was() {
    let mut options = options(true, 3);
    options.profile = true;
    let loaded = Loaded::new(compile(&perceptron(), &options).unwrap(), Instant::now()).unwrap();
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let inputs = batch(6, 1);
    step.call(&inputs, &mut state);
    let before = state.bytes();
    let mut cancelled = 0;
    for steps in 0.. {
        let mut cancel = Cancel { left: steps, flag: i32::from(steps == 0) };
        let context = &raw mut cancel;
        let options = RunOptions {
            // SAFETY: the field is of a local that outlives the run.
            cancel: unsafe { &raw const (*context).flag },
            step_done: Some(count),
            step_context: context.cast(),
            ..RunOptions::default()
        };
        let (status, _) = step.call_with(&inputs, &mut state, options);
        if status == Status::OK {
            break;
        }
        assert_eq!(status, Status::CANCELLED);
        assert_eq!(state.bytes(), before, "cancelled after {steps} steps");
        cancelled += 1;
    }
    assert!(cancelled > 3, "{cancelled}");
    assert_ne!(state.bytes(), before);
}

#[test]
fn a_step_that_fails_leaves_the_state_as_it_was() {
    let loaded = load(&perceptron(), 3);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    let [x, _] = batch(3, 1);
    let before = state.bytes();
    let labels = Tensor::from_slice(&[3], &[1i64, 77, 0]);
    let (status, _) = step.call_with(&[x.clone(), labels], &mut state, RunOptions::default());
    assert_eq!(status, Status::OUT_OF_RANGE);
    assert_eq!(state.bytes(), before);
    let labels = Tensor::from_slice(&[3], &[1i64, 2, 0]);
    step.call(&[x, labels], &mut state);
    assert_ne!(state.bytes(), before);
}

/// Guard pages around all buffers, the exact workspace, and calls of each entry point that are wrong in every way.
#[test]
fn misuse_of_the_entry_points() {
    let init = format!("() => (float[{CLASSES}] r) {{ r = RandomNormal<shape = [{CLASSES}]>() }}");
    let mut model = perceptron();
    model.training_info[0].initialization = part(&init);
    model.training_info[0].initialization_binding = vec![binding("e=r")];
    for opt_level in [0, 3] {
        let loaded = load(&model, opt_level);
        let mut programs: Vec<Program<'_>> =
            loaded.entries.iter().map(|own| entry(&loaded, &own.suffix)).collect();
        programs.push(own(&loaded));
        assert_eq!(programs.len(), 3);
        for (count, program) in programs.iter().flat_map(|program| [(5, program), (1, program)]) {
            let inputs = match program.graph.given_inputs() {
                0 => vec![],
                1 => vec![batch(count, 2)[0].clone()],
                _ => batch(count, 2).to_vec(),
            };
            let mut given: Vec<Option<Tensor>> = inputs.into_iter().map(Some).collect();
            given.extend(vec![None; program.graph.states.len()]);
            let shapes = native::output_shapes(program.graph, &given).unwrap();
            let found = check(&program.model, &given, &shapes).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(found.refused > 15, "{}", found.refused);
        }
    }
}

/// What a C program prints that trains and saves, from an object of this model.
fn c_program(folder: &Path) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let artifact = compile(&perceptron(), &Options { name: "net".into(), ..options(true, 3) })
        .unwrap()
        .artifact()
        .unwrap();
    std::fs::write(folder.join("net.h"), &artifact.header).unwrap();
    artifact.write_object(&mut std::fs::File::create(folder.join("net.o")).unwrap()).unwrap();
    let program = folder.join("train");
    let output = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(folder)
        .arg("-I")
        .arg(root.join("runtime-support/include"))
        .arg(root.join("tests/c/train.c"))
        .arg(folder.join("net.o"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A block that is saved after 50 steps and restored by another process holds the same bits after 100 as one that was never saved, in C and
/// in this process.
#[test]
fn checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let program = c_program(folder.path());
    let run = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["0", "100", "-", "whole"]);
    run(&["0", "50", "-", "half"]);
    run(&["50", "100", "half", "restored"]);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_ne!(read("half"), read("whole"));
    assert!(read("restored") == read("whole"));
    let loaded = load(&perceptron(), 3);
    let step = entry(&loaded, "train_step");
    let mut state = State::new(&own(&loaded));
    state.0.contents_mut().copy_from_slice(&read("half"));
    for number in 50..100 {
        step.call(&batch(8, number), &mut state);
    }
    assert!(state.bytes() == read("whole"));
}
