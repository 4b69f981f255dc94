//! Weights that lie apart from the code: what an object without weights accepts and refuses, from C; files of other trainings of a model,
//! which must give what that training gives where it is compiled alone; and that processes share their pages.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use onnxc::cli::data;
use onnxc::cli::functions::Functions;
use onnxc::cli::session::Loaded;
use onnxc::native;
use onnxc::{Compiled, Options, Quiet, WeightsApart};
use onnxc_import::NoExternalData;
use onnxc_ir::graph::Tensor;
use onnxc_machine::target::Target;
use onnxc_object::emit::apart::difference;
use onnxc_proto::build::{self, int, node};
use onnxc_proto::{ModelProto, TensorProto};
use onnxc_tests::object::{host, include_dir, must, runtime, source, write};
use onnxc_tests::source::plain_target;
use prost::Message;

fn options(name: &str, target: Target, apart: bool) -> Options {
    let weights_apart = apart.then(WeightsApart::default);
    Options { weights_apart, ..Options::new(name, target) }
}

fn compile(model: &[u8], options: &Options) -> Compiled {
    let model = Bytes::copy_from_slice(model);
    onnxc::compile(model, &NoExternalData, options, &mut Quiet).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// A model and the weights that it was trained to.
fn example(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    fs::read(root.join(name)).unwrap()
}

/// Another training of a model: other weights of floats and of bytes, with the same seed the same.
fn tuned(model: &[u8], seed: u64) -> Vec<u8> {
    let mut model = ModelProto::decode(model).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let graph = model.graph.as_mut().unwrap();
    let constants = graph.node.iter_mut().filter(|node| node.op_type() == "Constant");
    let constants = constants.flat_map(|node| &mut node.attribute).filter_map(|own| own.t.as_deref_mut());
    graph.initializer.iter_mut().chain(constants).for_each(|tensor| tune(tensor, &mut random));
    model.encode_to_vec()
}

fn tune(tensor: &mut TensorProto, random: &mut fastrand::Rng) {
    const FLOAT: i32 = 1;
    const BYTES: [i32; 2] = [2, 3];
    if tensor.dims.iter().product::<i64>() < 2 {
        return;
    }
    let mut other = |value: f32| value + (random.f32() - 0.5) * (value.abs() * 0.25 + 1e-3);
    match tensor.data_type() {
        FLOAT if tensor.raw_data.is_some() => {
            let data = tensor.raw_data().chunks_exact(4);
            let data = data.map(|bits| f32::from_le_bytes(bits.try_into().unwrap()));
            tensor.raw_data =
                Some(data.flat_map(|value| other(value).to_le_bytes()).collect::<Vec<u8>>().into());
        }
        FLOAT => tensor.float_data.iter_mut().for_each(|value| *value = other(*value)),
        // Zeros are zero points.
        kind if BYTES.contains(&kind) && tensor.raw_data().iter().any(|&byte| byte != 0) => {
            let data: Vec<u8> = tensor.raw_data().iter().map(|&byte| byte ^ random.u8(0..64)).collect();
            tensor.raw_data = Some(data.into());
        }
        _ => {}
    }
}

fn write_weights(compiled: &Compiled, folder: &Path, name: &str) -> PathBuf {
    let file = compiled.artifact().unwrap().weights_file.expect("weights apart");
    let path = folder.join(name);
    let out = File::create(&path).unwrap();
    file.write(&out).unwrap();
    // Pages that are not on the disk yet do not count as clean.
    out.sync_all().unwrap();
    path
}

/// A copy of a file, changed.
fn changed(file: &Path, name: &str, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    let path = file.with_file_name(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// A C program with an object or a source of C.
fn program(folder: &Path, code: &Path) -> PathBuf {
    let program = folder.join("weights");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(include_dir())
        .arg("-I")
        .arg(folder);
    compiler.arg("-I").arg(source("")).arg(source("weights.c")).arg(code).arg(runtime());
    must(compiler.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program));
    program
}

fn output(command: &mut Command) -> String {
    String::from_utf8(must(command).stdout).unwrap()
}

/// Objects and C, with the files of two trainings and with files of others.
#[test]
fn programs_bind_files_and_refuse_others() {
    let digits = example("digits/digits.onnx");
    let other = tuned(&digits, 7);
    for is_source in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let target = if is_source { plain_target() } else { host() };
        let compiled = compile(&digits, &options("net", target.clone(), true));
        let (code, file, tuned) = if is_source {
            let outline = compiled.outline().unwrap();
            compiled.write_source(&outline, &mut File::create(at("net.c")).unwrap()).unwrap();
            fs::write(at("net.h"), &outline.header).unwrap();
            outline.weights_file.unwrap().write(File::create(at("net.weights")).unwrap()).unwrap();
            let tuned = compile(&other, &options("tuned", target.clone(), true));
            let file = tuned.outline().unwrap().weights_file.unwrap();
            file.write(File::create(at("tuned.weights")).unwrap()).unwrap();
            (at("net.c"), at("net.weights"), at("tuned.weights"))
        } else {
            let object = write(compiled.artifact().unwrap(), folder.path());
            let tuned = compile(&other, &options("tuned", target.clone(), true));
            let files = [(&compiled, "net.weights"), (&tuned, "tuned.weights")]
                .map(|(own, name)| write_weights(own, folder.path(), name));
            let [file, tuned] = files;
            (object, file, tuned)
        };
        let chat = compile(&example("train/digits.onnx"), &options("other", host(), true));
        let foreign = write_weights(&chat, folder.path(), "other.weights");
        let cut = changed(&file, "cut.weights", |bytes| bytes.truncate(1000));
        let damaged = changed(&file, "damaged.weights", |bytes| bytes[500] ^= 1);
        let program = program(folder.path(), &code);
        let run = |file: &Path| {
            output(Command::new(&program).arg("weights").args([file, &foreign, &cut, &damaged]))
        };
        let results = [run(&file), run(&tuned)];
        assert_ne!(results[0], results[1]);
        // Each as it is where the model is compiled alone.
        let image: Vec<f32> = (0..64).map(|at| (at % 7) as f32 / 8.0).collect();
        let image = [Some(Tensor::from_slice(&[1, 1, 8, 8], &image))];
        for (model, found) in [&digits, &other].into_iter().zip(&results) {
            let loaded =
                Loaded::new(compile(model, &options("model", host(), false)), Instant::now()).unwrap();
            let wanted = loaded.model().unwrap().run(&image, &[Some(vec![1, 10])]).unwrap();
            if is_source {
                let found = found
                    .split_whitespace()
                    .map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap()));
                let close = |(found, wanted): (f32, f32)| (found - wanted).abs() < 1e-5;
                assert!(found.zip(wanted[0].values::<f32>()).all(close));
            } else {
                let wanted = wanted[0].values::<f32>();
                let wanted: String =
                    wanted.into_iter().map(|value| format!("{:08x} ", value.to_bits())).collect();
                assert_eq!(found.trim_end_matches('\n'), wanted);
            }
        }
        if !is_source {
            let program = folder.path().join("cpp");
            let mut compiler = Command::new("c++");
            compiler
                .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-I"])
                .arg(include_dir());
            compiler.arg("-I").arg(include_dir().join("../cpp")).arg("-I").arg(folder.path());
            compiler.arg(source("weights.cpp")).arg(&code).arg(runtime()).args([
                "-lpthread",
                "-ldl",
                "-lm",
                "-o",
            ]);
            must(compiler.arg(&program));
            let greatest = output(Command::new(&program).args([&file, &foreign]));
            let found = results[0]
                .split_whitespace()
                .map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap()));
            assert_eq!(greatest.trim().parse::<f32>().unwrap(), found.fold(0.0, f32::max));
            let whole = compile(&digits, &options("net", host(), false)).artifact().unwrap();
            let apart = compiled.artifact().unwrap();
            assert_eq!(whole.stats.apart_bytes, 0);
            assert!(apart.stats.weight_bytes < 64, "{} bytes stay", apart.stats.weight_bytes);
            assert!(apart.stats.apart_bytes + 512 > whole.stats.weight_bytes);
            let symbols = output(Command::new("nm").arg(&code));
            let writable =
                symbols.lines().filter(|line| line.contains(" b ") || line.contains(" d ")).count();
            assert!(writable <= 1 && !symbols.contains(" D ") && !symbols.contains(" B "), "{symbols}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn processes_share_the_pages_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = compile(&example("digits/digits.onnx"), &options("net", host(), true));
    let object = write(compiled.artifact().unwrap(), folder.path());
    let file = write_weights(&compiled, folder.path(), "net.weights");
    let program = program(folder.path(), &object);
    let pages = || -> [u64; 2] {
        let text = output(Command::new(&program).arg("pages").arg(&file));
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    let kilobytes = fs::metadata(&file).unwrap().len().div_ceil(4096) * 4;
    // Alone, then while another process has the file mapped.
    let [shared, private] = pages();
    assert_eq!((shared, private > 0), (0, true));
    let mut other = Command::new(&program);
    let mut other =
        other.arg("hold").arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let [shared, private] = pages();
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(other.wait().unwrap().success());
    assert_eq!((shared, private), (kilobytes, 0));
}

/// A quantized layer of two: QDQ with a scale for each column, a zero point for the input, and a bias of 32 bits.
fn quantized() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(3);
    let floats = |name: &str, dims: &[i64], values: Vec<f32>| build::f32_tensor(name, dims, values);
    let mut bytes = |name: &str, dims: &[i64], kind: i32| TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(kind),
        raw_data: Some(
            (0..dims.iter().product::<i64>()).map(|_| random.u8(..) & 0x7f).collect::<Vec<u8>>().into(),
        ),
        ..TensorProto::default()
    };
    let mut zeros = bytes("zeros", &[5], 3);
    zeros.raw_data = Some(vec![0; 5].into());
    let mut zero = bytes("zero", &[], 2);
    zero.raw_data = Some(vec![128].into());
    let initializers = vec![
        bytes("w", &[33, 5], 3),
        zeros,
        zero,
        floats("scale", &[], vec![0.02]),
        floats("scales", &[5], vec![0.011, 0.013, 0.017, 0.019, 0.023]),
        floats("bias", &[5], vec![0.5, -0.25, 0.125, 1.0, -1.0]),
    ];
    let nodes = vec![
        node("QuantizeLinear", &["x", "scale", "zero"], &["xq"]),
        node("DequantizeLinear", &["xq", "scale", "zero"], &["xd"]),
        node("DequantizeLinear", &["w", "scales", "zeros"], &["wd"]).with(int("axis", 1)),
        node("MatMul", &["xd", "wd"], &["m"]),
        node("Add", &["m", "bias"], &["s"]),
        node("Relu", &["s"], &["y"]),
    ];
    let mut graph = build::graph(
        vec![build::value("x", 1, &["3", "33"])],
        nodes,
        vec![build::value("y", 1, &["3", "5"])],
    );
    graph.initializer = initializers;
    build::model(20, graph).encode_to_vec()
}

/// The files of several trainings with one object, bit by bit what each gives where it is compiled alone.
fn exchange(name: &str, model: &[u8], opt_levels: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let native = || Target::parse(&host().triple.to_string(), Some("native")).unwrap();
    for &opt_level in opt_levels {
        let options = |apart| Options { opt_level, ..options("model", native(), apart) };
        let trainings = [model.to_vec(), tuned(model, 1), tuned(model, 2)];
        let mut results: Vec<Vec<Tensor>> = vec![];
        for training in &trainings {
            let file = write_weights(&compile(training, &options(true)), folder.path(), "other.weights");
            let compiled = compile(model, &options(true));
            let mut inputs = vec![None; compiled.graph.inputs.len()];
            data::fill_randomly(&compiled.graph, &mut inputs, &[], 5).unwrap();
            let shapes = native::output_shapes(&compiled.graph, &inputs).unwrap();
            let loaded =
                Loaded::with_weights(compiled, (&Functions::default(), Some(&file)), Instant::now()).unwrap();
            let found = loaded.model().unwrap().run_guarded(&inputs, &shapes, &Default::default()).unwrap();
            let alone = Loaded::new(compile(training, &options(false)), Instant::now()).unwrap();
            let wanted = alone.model().unwrap().run(&inputs, &shapes).unwrap();
            assert_eq!(found, wanted, "{name} at -O{opt_level}");
            assert!(!results.contains(&found), "{name}: the trainings are equal");
            results.push(found);
        }
    }
}

#[test]
fn a_network_of_convolutions_takes_other_trainings() {
    exchange("digits", &example("digits/digits.onnx"), &[0, 3]);
}

#[test]
fn a_quantized_network_takes_other_trainings() {
    exchange("quantized", &quantized(), &[0, 3]);
}

#[test]
fn a_transformer_takes_other_trainings() {
    exchange("encoder", &example("speech/encoder.onnx"), &[3]);
}

/// Models of the zoo, where that is: a quantized one of convolutions, one with batch norms, a transformer.
#[test]
fn models_of_the_zoo_take_other_trainings() {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    for name in ["kws_m_qdq", "mnist_pytorch", "gpt2_tiny_random_past_fp32"] {
        match fs::read(zoo.join(name).join("model.onnx")) {
            Ok(model) => exchange(name, &model, &[3]),
            Err(_) => eprintln!("NOT TESTED: {name} is not there"),
        }
    }
}

/// Files of models whose code would be other code are for other objects, and what differs is named.
#[test]
fn what_code_depends_on_is_not_exchanged() {
    let model = quantized();
    let file = |model: &[u8]| {
        let compiled = compile(model, &options("model", host(), true));
        compiled.artifact().unwrap().weights_file.unwrap()
    };
    let own = file(&model);
    let change = |change: &dyn Fn(&mut ModelProto)| {
        let mut other = ModelProto::decode(&model[..]).unwrap();
        change(&mut other);
        let other = file(&other.encode_to_vec());
        (own.layout == other.layout, difference(&other.listing, &own.listing).unwrap_or_default())
    };
    let initializer = |model: &mut ModelProto, name: &str, change: &dyn Fn(&mut TensorProto)| {
        let graph = model.graph.as_mut().unwrap();
        change(graph.initializer.iter_mut().find(|own| own.name() == name).unwrap());
    };
    assert_eq!(change(&|_| {}), (true, String::new()));
    // Names, documentation and metadata are not part of code.
    let named = |model: &mut ModelProto| {
        let graph = model.graph.as_mut().unwrap();
        graph.node.iter_mut().for_each(|node| node.name = Some(format!("other {}", node.op_type())));
        graph.name = Some("other".into());
        model.producer_name = Some("other".into());
    };
    assert_eq!(change(&named), (true, String::new()));
    // A scalar is part of the code, and zero points that are all 0 as well.
    let (same, what) = change(&|model| {
        initializer(model, "scale", &|own| own.float_data = vec![0.03]);
    });
    // Its reciprocal comes first.
    assert!(!same && what.contains("33.33") && what.contains("50"), "{what}");
    let (same, what) = change(&|model| {
        initializer(model, "zeros", &|own| own.raw_data = Some(vec![0, 0, 1, 0, 0].into()));
    });
    assert!(!same && what.starts_with("this one has "), "{what}");
    // Infinite weights keep kernels from leaving out products with zero.
    let (same, what) = change(&|model| {
        initializer(model, "bias", &|own| own.float_data[2] = f32::INFINITY);
    });
    assert!(!same && what.contains("finite") && what.contains("`bias`"), "{what}");
    // An operator, and a shape.
    let (same, what) = change(&|model| {
        model.graph.as_mut().unwrap().node.last_mut().unwrap().op_type = Some("Sigmoid".into());
    });
    assert!(!same && what.contains("Sigmoid") && what.contains("Relu"), "{what}");
    let (same, what) = change(&|model| {
        initializer(model, "w", &|own| {
            own.dims[0] = 32;
            own.raw_data = Some(own.raw_data()[..160].to_vec().into());
        });
        let graph = model.graph.as_mut().unwrap();
        graph.input = vec![build::value("x", 1, &["3", "32"])];
    });
    assert!(!same && what.contains("[3, 32]") && what.contains("[3, 33]"), "{what}");
}
