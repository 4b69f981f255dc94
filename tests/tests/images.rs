//! Models that decode images: in machine code, in the interpreter of host programs, and in a C program.

use std::path::PathBuf;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::build;
use onnxc_proto::{AttributeProto, NodeProto, attribute_proto::AttributeType};
use onnxc_runtime_images::decode;
use onnxc_runtime_images::image::Format;
use onnxc_tests::compile::{Code, compile_for, compile_to};
use onnxc_tests::interpreted::Interpreted;
use onnxc_tests::object::{images_runtime, run_c, source};
use prost::Message;

const UINT8: i32 = 2;
const BOOL: i32 = 9;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn stream(name: &str) -> Vec<u8> {
    std::fs::read(root().join("runtime-support/images/src/testdata").join(name)).unwrap()
}

fn decoder(output: &str, format: &str) -> NodeProto {
    let format = AttributeProto {
        s: Some(format.as_bytes().to_vec().into()),
        ..build::attribute("pixel_format", AttributeType::String)
    };
    build::node("ImageDecoder", &["stream"], &[output]).with(format)
}

/// An image, its pixels as a batch of planes in another size, and where `gray` holds the sum of its gray pixels.
fn model() -> Vec<u8> {
    let f32 = || build::int("to", 1);
    let axes = |name: &str, values: &[i64]| build::i64_tensor(name, &[values.len() as i64], values.to_vec());
    let branch = |nodes| build::graph(vec![], nodes, vec![build::untyped("sum")]);
    let sum = build::node("ReduceSum", &["floats"], &["sum"]).with(build::int("keepdims", 0));
    let then =
        vec![decoder("grays", "Grayscale"), build::node("Cast", &["grays"], &["floats"]).with(f32()), sum];
    let zero = build::node("ReduceSum", &["resized"], &["sum"]).with(build::int("keepdims", 0));
    let nodes = vec![
        decoder("image", "BGR"),
        build::node("Cast", &["image"], &["reals"]).with(f32()),
        build::node("Transpose", &["reals"], &["planes"]).with(build::ints("perm", &[2, 0, 1])),
        build::node("Unsqueeze", &["planes", "first"], &["batch"]),
        build::node("Resize", &["batch", "", "", "sizes"], &["resized"]),
        build::node("If", &["gray"], &["total"])
            .with(build::subgraph("then_branch", branch(then)))
            .with(build::subgraph("else_branch", branch(vec![zero]))),
    ];
    let inputs = vec![build::value("stream", UINT8, &["n"]), build::value("gray", BOOL, &[] as &[i64])];
    let mut graph = build::graph(inputs, nodes, ["image", "resized", "total"].map(build::untyped).into());
    graph.initializer = vec![axes("first", &[0]), axes("sizes", &[1, 3, 9, 7])];
    build::model(21, graph).encode_to_vec()
}

#[test]
fn a_graph_reads_the_image_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model()).unwrap();
    let target = Target::host().unwrap();
    for code in [Code::from(target.clone()), Code { target, opt_level: 0 }] {
        let compiled = compile_for(&path, "model", &code).unwrap();
        let graph = compiled.graph.clone();
        let interpreted = Interpreted::new(&compiled).unwrap();
        let loaded = Loaded::new(compile_for(&path, "model", &code).unwrap(), Instant::now()).unwrap();
        for name in ["420.jpg", "rgba.png", "palette16.tiff", "gray.jp2", "rgb.webp"] {
            let stream = stream(name);
            let image = decode(&stream).unwrap();
            let [mut bgr, mut gray] = [Format::Bgr, Format::Grayscale]
                .map(|format| vec![0u8; image.height * image.width * format.channels()]);
            image.write(Format::Bgr, &mut bgr);
            image.write(Format::Grayscale, &mut gray);
            for holds in [false, true] {
                let inputs = [
                    Tensor::from_slice(&[stream.len()], &stream),
                    Tensor::new(DType::Bool, vec![], vec![u8::from(holds)].into()),
                ];
                let wanted = interp::run(&graph, &inputs).unwrap();
                assert_eq!(wanted[0], Tensor::from_slice(&[image.height, image.width, 3], &bgr), "{name}");
                if holds {
                    let sum = gray.iter().map(|&pixel| f64::from(pixel)).sum::<f64>();
                    assert_eq!(wanted[2].to_f64s().unwrap(), [sum], "{name}");
                }
                let inputs = inputs.map(Some);
                let shapes = native::output_shapes(&graph, &inputs).unwrap();
                let found = loaded.model().unwrap().run_with(&inputs, &shapes, &Call::default()).unwrap();
                assert_eq!(interpreted.run(&inputs, &shapes).unwrap(), found, "{name}");
                assert_eq!(found[0], wanted[0], "{name}");
                for (found, wanted) in found.iter().zip(&wanted).skip(1) {
                    let (found, wanted) = (found.to_f64s().unwrap(), wanted.to_f64s().unwrap());
                    assert_eq!(found.len(), wanted.len());
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
                    assert!(found.iter().zip(&wanted).all(near), "{name}: {found:?} {wanted:?}");
                }
            }
        }
    }
}

#[test]
fn a_c_program_decodes_images() {
    let folder = tempfile::tempdir().unwrap();
    let input = build::value("stream", UINT8, &["n"]);
    let graph = build::graph(vec![input], vec![decoder("image", "BGR")], vec![build::untyped("image")]);
    let model = folder.path().join("model.onnx");
    std::fs::write(&model, build::model(20, graph).encode_to_vec()).unwrap();
    let object = folder.path().join("images.o");
    if let Err(failure) = compile_to(&model, "images", &Target::host().unwrap().into(), &object) {
        panic!("{failure}");
    }
    let libraries = ["-lpthread", "-ldl", "-lm"];
    assert_eq!(run_c(folder.path(), &source("images.c"), &[object, images_runtime()], &libraries), "good\n");
}
