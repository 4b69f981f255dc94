//! Sharing between threads for a batch of unknown size, which mostly is 1.

use super::*;
use onnxc_ir::graph;
use onnxc_tuning::SHARED_TURNS;

/// A batch of `s0` images or rows each, and what is done with it: none has fewer rows than threads need.
const GRAPHS: [(&str, &str, &str); 14] = [
    (
        "convolution",
        "f32[s0, 11, 6, 3]",
        "input v1 \"w\" : f32[2, 2, 3, 8]
  v2 = window v0 {first=1, kernel=[2, 2], strides=[1, 1], dilations=[1, 1]} : f32[s0, 10, 5, 2, 2, 3] @o0(0 \"Net\" \"net\")
  v3 = pack v1 {batch=0, k=3, nr=8} : f32[1, 2, 2, 3, 8] @o0
  v4 = contract v2, v3 {batch=0, m=3, k=3, nr=8, n=8} : f32[s0, 10, 5, 8] @o0
  return v4 \"y\"",
    ),
    (
        "long rows of a convolution",
        "f32[s0, 11, 21, 16]",
        "input v1 \"w\" : f32[2, 2, 16, 8]
  v2 = window v0 {first=1, kernel=[2, 2], strides=[1, 1], dilations=[1, 1]} : f32[s0, 10, 20, 2, 2, 16] @o0(0 \"Net\" \"net\")
  v3 = pack v1 {batch=0, k=3, nr=8} : f32[1, 2, 2, 16, 8] @o0
  v4 = contract v2, v3 {batch=0, m=3, k=3, nr=8, n=8} : f32[s0, 10, 20, 8] @o0
  return v4 \"y\"",
    ),
    (
        "products of a batch",
        "f32[s0, 4, 3, 64]",
        "input v1 \"k\" : f32[s0, 4, 20, 64]
  v2 = transpose v1 {perm=[0, 1, 3, 2]} : f32[s0, 4, 64, 20] @o0(0 \"Net\" \"net\")
  v3 = pack v2 {batch=2, k=1, nr=8} : f32[s0, 4, 3, 64, 8] @o0
  v4 = contract v0, v3 {batch=2, m=1, k=1, nr=8, n=20} : f32[s0, 4, 3, 20] @o0
  return v4 \"y\"",
    ),
    (
        "depthwise",
        "f32[s0, 12, 6, 4]",
        "input v1 \"w\" : f32[3, 3, 4]
  v2 = window v0 {first=1, kernel=[3, 3], strides=[1, 1], dilations=[1, 1]} : f32[s0, 10, 4, 3, 3, 4] @o0(0 \"Net\" \"net\")
  v3 = mul v2, v1 : f32[s0, 10, 4, 3, 3, 4] @o0
  v4 = reduce v3 {op=sum, axes=[3, 4]} : f32[s0, 10, 4, 1, 1, 4] @o0
  return v4 \"y\"",
    ),
    (
        "depthwise of many channels",
        "f32[s0, 12, 14, 384]",
        "input v1 \"w\" : f32[3, 3, 384]
  v2 = window v0 {first=1, kernel=[3, 3], strides=[1, 1], dilations=[1, 1]} : f32[s0, 10, 12, 3, 3, 384] @o0(0 \"Net\" \"net\")
  v3 = mul v2, v1 : f32[s0, 10, 12, 3, 3, 384] @o0
  v4 = reduce v3 {op=sum, axes=[3, 4]} : f32[s0, 10, 12, 1, 1, 384] @o0
  return v4 \"y\"",
    ),
    (
        "sums of planes",
        "f32[s0, 10, 6, 9]",
        "v1 = reduce v0 {op=sum, axes=[2, 3]} : f32[s0, 10, 1, 1] @o0(0 \"Net\" \"net\")
  return v1 \"y\"",
    ),
    (
        "softmax",
        "f32[s0, 10, 12]",
        "v1 = reduce v0 {op=max, axes=[2]} : f32[s0, 10, 1] @o0(0 \"Net\" \"net\")
  v2 = sub v0, v1 : f32[s0, 10, 12] @o0
  v3 = exp v2 : f32[s0, 10, 12] @o0
  v4 = reduce v3 {op=sum, axes=[2]} : f32[s0, 10, 1] @o0
  v5 = div v3, v4 : f32[s0, 10, 12] @o0
  return v5 \"y\"",
    ),
    (
        "elementwise",
        "f32[s0, 10, 100, 8]",
        "v1 = abs v0 : f32[s0, 10, 100, 8] @o0(0 \"Net\" \"net\")
  return v1 \"y\"",
    ),
    (
        "transposed",
        "f32[s0, 5, 2, 100, 8]",
        "v1 = transpose v0 {perm=[0, 2, 1, 4, 3]} : f32[s0, 2, 5, 8, 100] @o0(0 \"Net\" \"net\")
  return v1 \"y\"",
    ),
    (
        "padded",
        "f32[s0, 10, 600]",
        "v1 = const f32[] [0.5]
  v2 = pad v0, v1 {lo=[0, 1, 2], hi=[0, 0, 4]} : f32[s0, 11, 606] @o0(0 \"Net\" \"net\")
  return v2 \"y\"",
    ),
    (
        "joined",
        "f32[s0, 10, 600]",
        "input v1 \"b\" : f32[s0, 10, 3]
  v2 = concat v0, v1 {axis=2} : f32[s0, 10, 603] @o0(0 \"Net\" \"net\")
  return v2 \"y\"",
    ),
    (
        "places of the largest",
        "f32[s0, 10, 9]",
        "v1 = argreduce v0 {max=true, axis=2, last=false} : i64[s0, 10, 1] @o0(0 \"Net\" \"net\")
  return v1 \"y\"",
    ),
    (
        "sums so far",
        "f32[s0, 5, 10]",
        "v1 = cumulate v0 {op=sum, axis=1, exclusive=false, reverse=true} : f32[s0, 5, 10] @o0(0 \"Net\" \"net\")
  return v1 \"y\"",
    ),
    (
        "squares of Winograd's",
        "f32[s0, 22, 6, 8]",
        "v1 = winograd_input v0 {tile=2} : f32[s0, 10, 2, 16, 8] @o0(0 \"Net\" \"net\")
  v2 = transpose v1 {perm=[3, 0, 1, 2, 4]} : f32[16, s0, 10, 2, 8] @o0
  v3 = winograd_output v2 {tile=2, height=19, width=4} : f32[s0, 19, 4, 8] @o0
  return v3 \"y\"",
    ),
];

#[test]
fn batches_of_one() {
    let mut dice = Dice(55);
    for (name, input, body) in GRAPHS {
        let text =
            format!("graph \"{name}\" {{\n  symbol s0 \"batch\"\n  input v0 \"x\" : {input}\n  {body}\n}}\n");
        let graph = graph::parse::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for batch in [1, 3, 0] {
            let size = |dim: &Dim| dim.eval(&|_| Some(batch)).unwrap() as usize;
            let inputs: Vec<Tensor> = graph
                .inputs
                .iter()
                .map(|input| graph.ty(input.value))
                .map(|ty| dice.tensor(ty.dtype, &ty.shape.iter().map(size).collect::<Vec<_>>()))
                .collect();
            check(&graph, &inputs, true, &fixed_target().core, &loops::interp::run)
                .unwrap_or_else(|error| panic!("{name}, {batch}: {error}"));
        }
        let program = schedule(&graph, Default::default()).unwrap();
        for group in program.groups.values() {
            let kernel = loops::lower::lower(&graph, group, "g", &fixed_target().core).unwrap();
            if kernel.buffers.values().all(|buffer| buffer.len.is_const()) {
                // Weights, which models have as constants.
                continue;
            }
            let turns = kernel.parallel_range().map(|(_, hi)| hi.eval(&|_| Some(1)).unwrap());
            assert!(
                turns >= Some(SHARED_TURNS),
                "{name}: threads share {turns:?} turns for a batch of 1\n{kernel}"
            );
        }
    }
}
