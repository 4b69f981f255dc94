//! Types: sequences, maps, optional values, sparse and opaque ones.

use onnxc_proto::{TensorAnnotation, build};

use super::*;

pub(crate) fn rows() -> Vec<Row> {
    const LIST: &str = "not a value that a compiled model takes: sequences and maps hold tensors";
    let annotate = |name: &'static str| {
        move |m: &mut ModelProto| {
            graph(m).quantization_annotation = vec![TensorAnnotation {
                tensor_name: Some(name.into()),
                quant_parameter_tensor_names: vec![],
            }];
        }
    };
    vec![
        row(345, "Type.Sequence", "an input", "(seq(float[N]) s, int64[] i) => (float[?] y) { y = SequenceAt(s, i) }", Accepted),
        row(346, "Type.Sequence", "elements of unlike sizes", "(seq(float[?]) s) => (float[?] y) { y = ConcatFromSequence<axis = 0>(s) }", Accepted),
        row(347, "Type.Sequence", "all elements have one shape", "(seq(float[N]) s) => (float[?] y) { y = ConcatFromSequence<axis = 0>(s) }", Accepted.since("a run checks no sizes of elements; ONNX Runtime does not either")),
        row(348, "Type.Sequence", "elements of unlike ranks", "(seq(float[*]) s) => (seq(float[*]) y) { y = Identity(s) }", Accepted),
        row(349, "Type.Sequence", "has elements", "(seq() s) => (float[?] y) { y = ConcatFromSequence<axis = 0>(s) }", Refused("the type of its elements is missing")),
        row(350, "Type.Sequence", "of sequences", "(seq(seq(float[2])) s) => (seq(seq(float[2])) y) { y = Identity(s) }", Refused("an element of the sequence is").since(LIST)),
        edited(351, "Type.Map", "an input", "(map(int64, float[]) d) => (float[?, ?] y) { y = ai.onnx.ml.DictVectorizer<int64_vocabulary = [1, 2]>(d) }", |m| m.opset_import.push(build::opset("ai.onnx.ml", 3)), Accepted),
        edited(352, "Type.Map", "ZipMap", "(float[N, 2] x) => (seq(map(int64, float[])) y) { y = ai.onnx.ml.ZipMap<classlabels_int64s = [1, 2]>(x) }", |m| m.opset_import.push(build::opset("ai.onnx.ml", 3)), Accepted),
        row(353, "Type.Map.key_type", "integral or a string", "(map(float, float[]) d) => (map(float, float[]) y) { y = Identity(d) }", Refused("map")),
        row(354, "Type.Map", "of maps", "(map(int64, map(int64, float[])) d) => (map(int64, map(int64, float[])) y) { y = Identity(d) }", Refused("a value of the map is").since(LIST)),
        row(355, "Type.Map.value_type", "must be there", "(map(int64, ) d) => (float[?] y) { y = Identity(d) }", Refused("the type of its elements is missing")),
        row(356, "Type.Optional", "present", "(optional(float[2]) o) => (bool[] y) { y = OptionalHasElement(o) }", Accepted),
        row(357, "Type.Optional", "none", "(optional(float[2]) o) => (bool[] y) { y = OptionalHasElement(o) }", Accepted),
        row(358, "Type.Optional", "its element", "(optional(float[2]) o) => (float[2] y) { y = OptionalGetElement(o) }", Accepted),
        row(359, "Type.Optional", "the element of none is an error of the run", "(optional(float[2]) o) => (float[2] y) { y = OptionalGetElement(o) }", Accepted),
        row(360, "Type.Optional", "is another type", "(optional(float[2]) o) => (float[2] y) { y = Relu(o) }", Refused("is an optional tensor")),
        row(361, "Type.Optional", "of a sequence", "(optional(seq(float[2])) o) => (bool[] y) { y = OptionalHasElement(o) }", Accepted),
        row(362, "Type.Optional", "of a map", "(optional(map(int64, float[])) o) => (bool[] y) { y = OptionalHasElement(o) }", Refused("the element of the optional is").since(LIST)),
        row(363, "Type.SparseTensor", "in and out", "(sparse(float[4]) s) => (sparse(float[4]) y) { y = Identity(s) }", Refused("a sparse tensor may be an input or a constant, and no output").since("no operator gives one")),
        row(364, "Type.Opaque", "an input", "(opaque o) => (float[2] y) { y = Identity(o) }", Refused("opaque").since("opaque values belong to one engine")),
        edited(365, "Type.Tensor.elem_type", "UNDEFINED", RELU, |m| graph(m).input[0] = build::value("x", 0, &["2"]), Refused("the element type is missing")),
        edited(366, "Type.Tensor.elem_type", "unknown", RELU, |m| graph(m).input[0] = build::value("x", 99, &["2"]), Refused("element type number 99")),
        row(367, "Type", "strings", "(string[2] x) => (string[2] y) { y = Identity(x) }", Accepted),
        row(368, "Type", "complex numbers are moved", "(complex64[2] x) => (complex64[2] y) { y = Identity(x) }", Accepted),
        edited(369, "Graph.quantization_annotation", "of a value", RELU, annotate("x"), Noted("quantization annotation of `x` is ignored")),
        edited(370, "Graph.quantization_annotation", "of nothing", RELU, annotate("nowhere"), Warned("quantization_target")),
        row(505, "Type", "an overridable default of strings", "(string[2] x, string[2] w) => (string[2] y) <string[2] w = {\"a\", \"b\"}> { y = StringConcat(x, w) }", Accepted).options(|options| options.overridable_defaults = true),
        row(506, "Type", "a default of strings", "(string[2] x, string[2] w) => (string[2] y) <string[2] w = {\"a\", \"b\"}> { y = StringConcat(x, w) }", Noted("are constants: w")),
        row(507, "Type", "a sequence in a sequence", "(seq(float[2]) s) => (seq(float[2]) y) { y = SequenceInsert(s, s) }", Refused("is a sequence; it must be a tensor")),
    ]
}
