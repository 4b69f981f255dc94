//! The whole pipeline on networks built the way operators lower: it keeps their meaning, and what should
//! be gone is gone. The meaning is the reference evaluator's.

use cranelift_entity::PrimaryMap;

use crate::{Options, run_all};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{
    DType, Dim, Graph, MapFn, Op, Origin, OriginId, RhsLayout, Tensor, TensorType, ValueId,
};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// Reproducible numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    }

    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.next()).collect();
        Tensor::from_slice(shape, &values)
    }
}

/// Builds channels-first networks as the operator table lowers them.
struct Net {
    graph: Graph,
    origin: OriginId,
    noise: Noise,
}

fn dims(sizes: &[usize]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

impl Net {
    fn new() -> Net {
        let mut origins = PrimaryMap::new();
        let origin = origins.push(Origin::new("net", "Net", 0));
        Net { graph: Graph { origins, ..Graph::default() }, origin, noise: Noise(7) }
    }

    fn b(&mut self) -> Builder<'_> {
        Builder::new(&mut self.graph, self.origin)
    }

    fn input(&mut self, shape: &[usize]) -> ValueId {
        self.b().input("x", TensorType::new(DType::F32, dims(shape)), None)
    }

    fn weights(&mut self, shape: &[usize]) -> ValueId {
        let tensor = self.noise.tensor(shape);
        self.b().constant(tensor)
    }

    fn windows(&mut self, x: ValueId, first: usize, kernel: usize, stride: usize) -> Result<ValueId> {
        let pad = (kernel - 1) / 2;
        let mut amounts = vec![Dim::ZERO; 4];
        (first..first + 2).for_each(|axis| amounts[axis] = Dim::from(pad));
        let fill = self.b().scalar(DType::F32, 0.0);
        let x = self.b().pad(x, fill, amounts.clone(), amounts)?;
        let op =
            Op::Window { first, kernel: vec![kernel; 2], strides: vec![stride; 2], dilations: vec![1; 2] };
        self.b().emit1(op, &[x])
    }

    fn conv(&mut self, x: ValueId, out: usize, kernel: usize, stride: usize) -> Result<ValueId> {
        let channels = self.graph.ty(x).static_shape().unwrap()[1];
        let (weights, bias) = (self.weights(&[kernel, kernel, channels, out]), self.weights(&[out]));
        let x = self.b().transpose(x, &[0, 2, 3, 1])?;
        let x = self.windows(x, 1, kernel, stride)?;
        let op = Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain };
        let y = self.b().emit1(op, &[x, weights])?;
        let y = self.b().binary(BinaryFn::Add, y, bias)?;
        self.b().transpose(y, &[0, 3, 1, 2])
    }

    fn depthwise(&mut self, x: ValueId, kernel: usize) -> Result<ValueId> {
        let channels = self.graph.ty(x).static_shape().unwrap()[1];
        let weights = self.weights(&[kernel, kernel, channels]);
        let x = self.b().transpose(x, &[0, 2, 3, 1])?;
        let x = self.windows(x, 1, kernel, 1)?;
        let y = self.b().binary(BinaryFn::Mul, x, weights)?;
        let y = self.b().reduce(ReduceFn::Sum, y, &[3, 4])?;
        let y = self.b().squeeze(y, &[3, 4])?;
        self.b().transpose(y, &[0, 3, 1, 2])
    }

    fn batch_norm(&mut self, x: ValueId) -> Result<ValueId> {
        let channels = self.graph.ty(x).static_shape().unwrap()[1];
        let (mean, scale, shift) = (
            self.weights(&[channels, 1, 1]),
            self.weights(&[channels, 1, 1]),
            self.weights(&[channels, 1, 1]),
        );
        let y = self.b().binary(BinaryFn::Sub, x, mean)?;
        let y = self.b().binary(BinaryFn::Mul, y, scale)?;
        self.b().binary(BinaryFn::Add, y, shift)
    }

    /// As exporters write it: an instance normalization of a reshaped image.
    fn group_norm(&mut self, x: ValueId, groups: usize) -> Result<ValueId> {
        let shape = self.graph.ty(x).static_shape().unwrap();
        let inner = shape[1..].iter().product::<usize>() / groups;
        let (scale, shift) = (self.weights(&[shape[1], 1, 1]), self.weights(&[shape[1], 1, 1]));
        let y = self.b().reshape(x, dims(&[shape[0], groups, inner]))?;
        let mean = self.b().mean(y, &[2])?;
        let y = self.b().binary(BinaryFn::Sub, y, mean)?;
        let square = self.b().binary(BinaryFn::Mul, y, y)?;
        let variance = self.b().mean(square, &[2])?;
        let variance = self.b().binary_scalar(BinaryFn::Add, variance, 1e-5)?;
        let deviation = self.b().unary(UnaryFn::Sqrt, variance)?;
        let y = self.b().binary(BinaryFn::Div, y, deviation)?;
        let y = self.b().reshape(y, dims(&shape))?;
        let y = self.b().binary(BinaryFn::Mul, y, scale)?;
        self.b().binary(BinaryFn::Add, y, shift)
    }

    fn relu(&mut self, x: ValueId) -> Result<ValueId> {
        self.b().binary_scalar(BinaryFn::Max, x, 0.0)
    }

    fn hard_swish(&mut self, x: ValueId) -> Result<ValueId> {
        let y = self.b().binary_scalar(BinaryFn::Add, x, 3.0)?;
        let y = self.b().binary_scalar(BinaryFn::Max, y, 0.0)?;
        let y = self.b().binary_scalar(BinaryFn::Min, y, 6.0)?;
        let y = self.b().binary(BinaryFn::Mul, x, y)?;
        self.b().binary_scalar(BinaryFn::Div, y, 6.0)
    }

    fn max_pool(&mut self, x: ValueId) -> Result<ValueId> {
        let y = self.windows(x, 2, 3, 2)?;
        let y = self.b().reduce(ReduceFn::Max, y, &[4, 5])?;
        self.b().squeeze(y, &[4, 5])
    }

    fn dense(&mut self, x: ValueId, out: usize) -> Result<ValueId> {
        let inner = *self.graph.ty(x).static_shape().unwrap().last().unwrap();
        let (weights, bias) = (self.weights(&[inner, out]), self.weights(&[out]));
        let rank = self.graph.ty(x).rank();
        let op = Op::Contract { batch: 0, m: rank - 1, k: 1, rhs: RhsLayout::Plain };
        let y = self.b().emit1(op, &[x, weights])?;
        self.b().binary(BinaryFn::Add, y, bias)
    }

    fn squeeze_excite(&mut self, x: ValueId) -> Result<ValueId> {
        let channels = self.graph.ty(x).static_shape().unwrap()[1];
        let pooled = self.b().mean(x, &[2, 3])?;
        let y = self.conv(pooled, channels / 2, 1, 1)?;
        let y = self.relu(y)?;
        let y = self.conv(y, channels, 1, 1)?;
        let y = self.b().unary(UnaryFn::Sigmoid, y)?;
        self.b().binary(BinaryFn::Mul, x, y)
    }

    fn classify(&mut self, x: ValueId, classes: usize) -> Result<ValueId> {
        let shape = self.graph.ty(x).static_shape().unwrap();
        let pooled = self.b().mean(x, &[2, 3])?;
        let flat = self.b().reshape(pooled, dims(&shape[..2]))?;
        self.dense(flat, classes)
    }

    /// Optimises; the outputs must stay the same on random inputs. Gives the optimised graph.
    fn optimised(mut self, outputs: &[ValueId]) -> Graph {
        for (at, &value) in outputs.iter().enumerate() {
            self.graph.outputs.push((format!("y{at}"), value));
        }
        let inputs: Vec<Tensor> = (self.graph.inputs.iter())
            .map(|input| self.noise.tensor(&self.graph.ty(input.value).static_shape().unwrap()))
            .collect();
        let expected = interp::run(&self.graph, &inputs).unwrap();
        for level in [0, 3] {
            let mut graph = self.graph.clone();
            let options = Options { level, ..Options::default() };
            run_all(&mut graph, &options, &mut |_, _, _| {}).unwrap();
            let actual = interp::run(&graph, &inputs).unwrap();
            for (expected, actual) in expected.iter().zip(&actual) {
                assert_close(expected, actual);
            }
            if level == 3 {
                self.graph = graph;
            }
        }
        self.graph
    }
}

fn assert_close(expected: &Tensor, actual: &Tensor) {
    assert_eq!((expected.dtype, &expected.shape), (actual.dtype, &actual.shape));
    let (expected, actual) = (expected.to_f64s().unwrap(), actual.to_f64s().unwrap());
    let scale = expected.iter().fold(0f64, |scale, value| scale.max(value.abs()));
    for (at, (e, a)) in expected.iter().zip(&actual).enumerate() {
        assert!((e - a).abs() <= 1e-5 * (e.abs() + scale), "element {at}: {e} became {a}");
    }
}

/// How many live nodes have the name.
fn count(graph: &Graph, name: &str) -> usize {
    graph.order.iter().filter(|&&id| graph.nodes[id].op.name() == name).count()
}

#[test]
fn residual_network_runs_channels_last() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 16, 16]);
    let x = net.conv(x, 8, 7, 2)?;
    let x = net.batch_norm(x)?;
    let x = net.relu(x)?;
    let mut x = net.max_pool(x)?;
    for stride in [1, 2] {
        let y = net.conv(x, 8, 3, stride)?;
        let y = net.batch_norm(y)?;
        let y = net.relu(y)?;
        let y = net.conv(y, 8, 1, 1)?;
        let y = net.batch_norm(y)?;
        let skip = if stride == 1 { x } else { net.conv(x, 8, 1, 2)? };
        let sum = net.b().binary(BinaryFn::Add, y, skip)?;
        x = net.relu(sum)?;
    }
    let y = net.classify(x, 5)?;
    let graph = net.optimised(&[y]);
    assert_eq!(count(&graph, "transpose"), 1);
    // The batch norms are in weights and biases; the pooled mean is a multiplication.
    assert_eq!((count(&graph, "sub"), count(&graph, "mul")), (0, 1));
    // One bias per convolution and dense layer, two residual sums.
    assert_eq!(count(&graph, "add"), 7 + 2);
    Ok(())
}

#[test]
fn normalized_groups_of_channels_run_channels_last() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 9, 7]);
    let x = net.conv(x, 12, 3, 1)?;
    let y = net.group_norm(x, 4)?;
    let y = net.relu(y)?;
    let y = net.conv(y, 12, 3, 1)?;
    let y = net.group_norm(y, 2)?;
    let y = net.b().binary(BinaryFn::Add, x, y)?;
    let y = net.classify(y, 5)?;
    let graph = net.optimised(&[y]);
    assert_eq!(count(&graph, "transpose"), 1);
    Ok(())
}

#[test]
fn inverted_residual_with_attention_over_channels() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 8, 8]);
    let x = net.conv(x, 8, 3, 1)?;
    let y = net.conv(x, 16, 1, 1)?;
    let y = net.batch_norm(y)?;
    let y = net.hard_swish(y)?;
    let y = net.depthwise(y, 3)?;
    let y = net.batch_norm(y)?;
    let y = net.squeeze_excite(y)?;
    let y = net.hard_swish(y)?;
    let y = net.conv(y, 8, 1, 1)?;
    let y = net.batch_norm(y)?;
    let y = net.b().binary(BinaryFn::Add, x, y)?;
    let y = net.classify(y, 4)?;
    let graph = net.optimised(&[y]);
    assert_eq!(count(&graph, "transpose"), 1);
    assert_eq!(count(&graph, "sub"), 0);
    Ok(())
}

#[test]
fn flattened_feature_map_permutes_the_dense_weights() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 8, 8]);
    let x = net.conv(x, 4, 3, 2)?;
    let x = net.relu(x)?;
    let x = net.b().reshape(x, dims(&[2, 64]))?;
    let y = net.dense(x, 5)?;
    let graph = net.optimised(&[y]);
    assert_eq!(count(&graph, "transpose"), 1);
    Ok(())
}

#[test]
fn concatenated_branches_and_shuffled_channels() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[1, 4, 6, 6]);
    let x = net.conv(x, 8, 3, 1)?;
    let (left, right) = (net.conv(x, 4, 1, 1)?, net.conv(x, 8, 3, 1)?);
    let x = net.b().concat(&[left, right], 1)?;
    let x = net.relu(x)?;
    let x = net.b().reshape(x, dims(&[1, 3, 4, 6, 6]))?;
    let x = net.b().transpose(x, &[0, 2, 1, 3, 4])?;
    let x = net.b().reshape(x, dims(&[1, 12, 6, 6]))?;
    let x = net.depthwise(x, 3)?;
    let graph = net.optimised(&[x]);
    // Into channels-last, the shuffle, out again.
    assert_eq!(count(&graph, "transpose"), 3);
    Ok(())
}

#[test]
fn attention_keeps_its_head_views() -> Result<()> {
    let mut net = Net::new();
    let (length, heads, depth) = (6, 2, 4);
    let x = net.input(&[2, length, heads * depth]);
    let mut split = Vec::new();
    for _ in 0..3 {
        let y = net.dense(x, heads * depth)?;
        let y = net.b().reshape(y, dims(&[2, length, heads, depth]))?;
        split.push(net.b().transpose(y, &[0, 2, 1, 3])?);
    }
    let query = net.b().binary_scalar(BinaryFn::Div, split[0], 2.0)?;
    let keys = net.b().transpose(split[1], &[0, 1, 3, 2])?;
    let scores = net.b().matmul(query, keys)?;
    let max = net.b().reduce(ReduceFn::Max, scores, &[3])?;
    let scores = net.b().binary(BinaryFn::Sub, scores, max)?;
    let scores = net.b().unary(UnaryFn::Exp, scores)?;
    let sum = net.b().reduce(ReduceFn::Sum, scores, &[3])?;
    let scores = net.b().binary(BinaryFn::Div, scores, sum)?;
    let y = net.b().matmul(scores, split[2])?;
    let y = net.b().transpose(y, &[0, 2, 1, 3])?;
    let y = net.b().reshape(y, dims(&[2, length, heads * depth]))?;
    let y = net.dense(y, heads * depth)?;
    let y = net.b().binary(BinaryFn::Add, x, y)?;
    let graph = net.optimised(&[y]);
    // Query, keys, values and the merge of heads; the scale is in the query's weights, and the product is that of the softmax.
    assert_eq!((count(&graph, "transpose"), count(&graph, "mul")), (4, 1));
    Ok(())
}

/// A recurrence `h' = tanh(x_t W + h R)` whose weights are captured.
#[test]
fn recurrent_weights_are_packed_outside_the_loop() -> Result<()> {
    let mut net = Net::new();
    // Rows that are whole panels would not be packed.
    let (steps, inner, hidden) = (5, 3, 6);
    let xs = net.input(&[steps, 2, inner]);
    let recurrent = net.input(&[hidden, hidden]);
    let initial = net.weights(&[2, hidden]);
    let weights = net.weights(&[inner, hidden]);
    let mut body = Net::new();
    let (h, x) = (body.input(&[2, hidden]), body.input(&[2, inner]));
    let (w, r) = (body.input(&[inner, hidden]), body.input(&[hidden, hidden]));
    let unused = body.input(&[2, hidden]);
    let a = body.b().matmul(x, w)?;
    let doubled = body.b().binary(BinaryFn::Add, r, r)?;
    let c = body.b().matmul(h, doubled)?;
    let sum = body.b().binary(BinaryFn::Add, a, c)?;
    let next = body.b().unary(UnaryFn::Tanh, sum)?;
    let wasted = body.b().binary(BinaryFn::Mul, next, unused)?;
    body.graph.outputs = vec![("h".into(), next), ("y".into(), next), ("z".into(), wasted)];
    let op = Op::scan(body.graph, Dim::from(steps), 1, 1, vec![false; 3]);
    let results = net.b().emit(op, &[initial, xs, weights, recurrent, initial])?;
    let graph = net.optimised(&results[..2]);
    let scan = graph.order.iter().find(|&&id| graph.nodes[id].op.name() == "scan").unwrap();
    let Op::Scan { body, .. } = &graph.nodes[*scan].op else { panic!("not a scan") };
    assert_eq!((count(body, "pack"), count(&graph, "pack")), (0, 1));
    assert_eq!((body.order.len(), body.outputs.len(), body.inputs.len()), (4, 2, 4));
    Ok(())
}

/// Constants of constants are copied out of a body with what they are made of.
#[test]
fn constants_of_constants_leave_the_loop() -> Result<()> {
    let mut body = Net::new();
    let (h, w) = (body.input(&[4]), body.input(&[4]));
    let first = body.weights(&[4]);
    let negative = body.b().unary(UnaryFn::Neg, first)?;
    let factors = body.b().binary(BinaryFn::Add, negative, first)?;
    let product = body.b().binary(BinaryFn::Mul, w, factors)?;
    let next = body.b().binary(BinaryFn::Add, h, product)?;
    body.graph.outputs = vec![("h".into(), next)];
    let mut net = Net::new();
    let (initial, w) = (net.input(&[4]), net.input(&[4]));
    let op = Op::scan(body.graph, Dim::from(3usize), 1, 0, vec![]);
    let results = net.b().emit(op, &[initial, w])?;
    net.graph.outputs = vec![("y".into(), results[0])];
    let inputs = [1.0f32, -2.0].map(|value| Tensor::from_slice(&[4], &[value, 0.5, 0.25, -value]));
    let before = interp::run(&net.graph, &inputs)?;
    super::hoist::run(&mut net.graph, &Options::default())?;
    assert_eq!(count(&net.graph, "mul"), 1, "{}", net.graph);
    assert_eq!(interp::run(&net.graph, &inputs)?, before);
    Ok(())
}

/// What is moved twice is moved once, where that has a meaning. Here the sizes between must be those of both, which no run
/// can have: it is for the run to say so.
#[test]
fn movements_that_contradict_each_other_are_left() -> Result<()> {
    let one = |size: i64| vec![Dim::from(size)];
    let slice = |start: i64, size: Dim| Op::Slice { starts: one(start), steps: vec![1], sizes: vec![size] };
    let pairs: [&dyn Fn(Dim) -> [Op; 2]; 3] = [
        &|size| [Op::Reshape { shape: vec![size] }, Op::Reshape { shape: vec![] }],
        &|size| [Op::Expand { shape: vec![size] }, Op::Expand { shape: one(5) }],
        &|size| [slice(0, size), slice(4, Dim::ONE)],
    ];
    for pair in pairs {
        let mut net = Net::new();
        let (x, shape) = (net.input(&[3]), net.b().fresh_symbol());
        let [first, second] = pair(Dim::sym(shape));
        let between = net.b().emit1(first, &[x])?;
        let y = net.b().emit1(second, &[between])?;
        net.graph.outputs = vec![("y".into(), y)];
        let names = |graph: &Graph| -> Vec<&str> {
            graph.order.iter().map(|&id| graph.nodes[id].op.name()).collect()
        };
        let before = names(&net.graph);
        run_all(&mut net.graph, &Options::default(), &mut |_, _, _| {})?;
        assert_eq!(names(&net.graph), before);
    }
    Ok(())
}

/// A slice checks nothing when it runs, as a gather does.
#[test]
fn gathers_beyond_the_axis_stay() -> Result<()> {
    for values in [&[4i64, 7][..], &[-7, -4], &[6, 7], &[-1, 1, 9]] {
        let mut net = Net::new();
        let x = net.input(&[6, 2]);
        let indices = net.b().i64s(values);
        let y = net.b().emit1(Op::Gather { axis: 0 }, &[x, indices])?;
        net.graph.outputs = vec![("y".into(), y)];
        run_all(&mut net.graph, &Options::default(), &mut |_, _, _| {})?;
        assert_eq!(count(&net.graph, "gather"), 1, "{values:?}");
    }
    Ok(())
}

/// Indices of two axes make two axes, however evenly they are spaced.
#[test]
fn gathers_by_evenly_spaced_indices() -> Result<()> {
    for (shape, values, kept) in [
        (&[3usize][..], &[1i64, 3, 5][..], 0),
        (&[3], &[5, 3, 1], 0),
        (&[3], &[1, 2, 5], 1),
        (&[2, 2], &[1, 2, 3, 4], 1),
        (&[], &[4], 0),
    ] {
        let mut net = Net::new();
        let x = net.input(&[6, 2]);
        let indices = net.b().constant(Tensor::from_slice(shape, values));
        let y = net.b().emit1(Op::Gather { axis: 0 }, &[x, indices])?;
        let y = net.relu(y)?;
        let graph = net.optimised(&[y]);
        assert_eq!(count(&graph, "gather"), kept, "{values:?}");
    }
    Ok(())
}

/// Indices of two axes do not become a slice, which would ask for a size that is not negative before anything runs.
#[test]
fn gathers_that_stay_assume_nothing() -> Result<()> {
    let text = r#"graph "gathered" {
  symbol s0 "n"
  input v0 "x" : f32[s0]
  v1 = const f32[] [1]
  v2 = expand v1 {shape=[-3 + s0, 6]} : f32[-3 + s0, 6] @o0
  v3 = cumulate v2 {op=sum, axis=1, exclusive=false, reverse=false} : f32[-3 + s0, 6] @o0
  v4 = const i64[2, 2] [1, 2, 3, 4]
  v5 = gather v3, v4 {axis=1} : f32[-3 + s0, 2, 2] @o0
  return v5 "y"
}"#;
    let mut graph = onnxc_ir::graph::parse::parse(text)?;
    run_all(&mut graph, &Options::default(), &mut |_, _, _| {})?;
    assert_eq!(count(&graph, "gather"), 1);
    assert_eq!(graph.assumptions.iter().count(), 0, "{graph}");
    Ok(())
}

/// Tensors without elements along the axis are left out of a concatenation, unless there are no others.
#[test]
fn concatenations_without_elements() -> Result<()> {
    let text = r#"graph "nothing" {
  input v0 "x" : f32[2, 0]
  input v1 "y" : f32[2, 0]
  v2 = concat v0, v1 {axis=1} : f32[2, 0] @o0(0 "Net" "net")
  return v2 "z"
}"#;
    let mut graph = onnxc_ir::graph::parse::parse(text)?;
    super::movement::run(&mut graph, &Options::default())?;
    let empty = Tensor::from_slice::<f32>(&[2, 0], &[]);
    let results = interp::run(&graph, &[empty.clone(), empty.clone()])?;
    assert_eq!(results, [empty]);
    Ok(())
}

#[test]
fn exact_identities_only() -> Result<()> {
    let mut net = Net::new();
    let x = net.input(&[3, 4]);
    let plain = net.b().binary_scalar(BinaryFn::Pow, x, 0.5)?;
    let squared = net.b().binary_scalar(BinaryFn::Pow, x, 2.0)?;
    let shifted = net.b().binary_scalar(BinaryFn::Add, squared, 0.25)?;
    let root = net.b().binary_scalar(BinaryFn::Pow, shifted, -0.5)?;
    let halved = net.b().binary_scalar(BinaryFn::Div, root, 2.0)?;
    let third = net.b().binary_scalar(BinaryFn::Div, halved, 3.0)?;
    let zero = net.b().binary_scalar(BinaryFn::Mul, third, 0.0)?;
    let wide = net.b().cast(zero, DType::F64)?;
    let narrow = net.b().emit1(Op::Map(MapFn::Cast { to: DType::F32, saturate: true }), &[wide])?;
    let graph = {
        net.graph.outputs = vec![("plain".into(), plain), ("y".into(), narrow)];
        let mut graph = net.graph;
        run_all(&mut graph, &Options::default(), &mut |_, _, _| {})?;
        graph
    };
    let names: Vec<&str> = graph.order.iter().map(|&id| graph.nodes[id].op.name()).collect();
    assert_eq!(names, ["pow", "mul", "add", "sqrt", "recip", "mul", "div", "mul"]);
    Ok(())
}

/// A convolution of bytes less a zero point, with weights from `weight`, and its result: `x` is padded by the zero point.
fn conv_of_bytes(
    dtype: DType,
    zero: i32,
    [extent, channels, filters]: [usize; 3],
    weight: &dyn Fn(usize) -> i8,
) -> Result<Graph> {
    let mut net = Net::new();
    let x = net.b().input("x", TensorType::new(dtype, dims(&[1, extent, extent, channels])), None);
    let x = net.b().cast(x, DType::I32)?;
    let zero = net.b().constant(Tensor::scalar(zero));
    let x = net.b().binary(BinaryFn::Sub, x, zero)?;
    let fill = net.b().scalar(DType::I32, 0.0);
    let border = dims(&[0, 1, 1, 0]);
    let x = net.b().pad(x, fill, border.clone(), border)?;
    let op = Op::Window { first: 1, kernel: vec![3; 2], strides: vec![1; 2], dilations: vec![1; 2] };
    let x = net.b().emit1(op, &[x])?;
    let weights: Vec<i8> = (0..9 * channels * filters).map(weight).collect();
    let weights = net.b().constant(Tensor::from_slice(&[3, 3, channels, filters], &weights));
    let weights = net.b().cast(weights, DType::I32)?;
    let y = net.b().emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, &[x, weights])?;
    net.graph.outputs = vec![("y".into(), y)];
    Ok(net.graph)
}

/// The sums stay exact, also where those of the transforms wrap; what weights do not prove to be small enough has smaller
/// tiles, or none, and so has what fills none.
#[test]
fn convolutions_of_bytes_by_minimal_filtering() -> Result<()> {
    let random = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as i8;
    let most = |_: usize| i8::MAX;
    let alternating = |at: usize| if at.is_multiple_of(2) { i8::MAX } else { i8::MIN };
    type Case<'w> = (DType, i32, [usize; 3], &'w dyn Fn(usize) -> i8, Option<usize>);
    let cases: [Case<'_>; 7] = [
        (DType::U8, 128, [16, 32, 32], &random, Some(4)),
        (DType::I8, -3, [16, 32, 32], &random, Some(4)),
        (DType::U8, 0, [13, 32, 40], &alternating, Some(4)),
        // Of the greatest sums, 2^25 is less than those of 130 channels.
        (DType::U8, 7, [16, 114, 16], &most, Some(4)),
        (DType::U8, 7, [16, 130, 16], &most, Some(2)),
        // Pairs of channels.
        (DType::U8, 7, [16, 33, 32], &random, None),
        (DType::U8, 7, [4, 2, 4], &random, None),
    ];
    for (dtype, zero, sizes, weight, tile) in cases {
        let graph = conv_of_bytes(dtype, zero, sizes, weight)?;
        let options = Options { pack: crate::PackPolicy::WIDE, exact: true, ..Options::default() };
        let mut optimised = graph.clone();
        run_all(&mut optimised, &options, &mut |_, _, _| {})?;
        let tiles: Vec<usize> = optimised
            .order
            .iter()
            .filter_map(|&node| match optimised.nodes[node].op {
                Op::WinogradOutput { tile, .. } => Some(tile),
                _ => None,
            })
            .collect();
        assert_eq!(tiles, Vec::from_iter(tile), "{dtype} {sizes:?}");
        let shape = [1, sizes[0], sizes[0], sizes[1]];
        let count: usize = shape.iter().product();
        for extreme in [false, true] {
            let bytes: Vec<u8> =
                (0..count).map(|at| if extreme { 255 } else { random(at + 99) as u8 }).collect();
            let x = Tensor::new(dtype, shape.to_vec(), bytes.into());
            let wanted = interp::run(&graph, std::slice::from_ref(&x))?;
            assert!(interp::run(&optimised, &[x])? == wanted, "{dtype} {sizes:?}");
        }
    }
    // Where bytes have products of their own, or size matters more.
    let options = |pack, goal| Options { pack, goal, ..Options::default() };
    for options in [
        options(crate::PackPolicy::NARROW, onnxc_machine::target::Goal::Speed),
        options(crate::PackPolicy::WIDE, onnxc_machine::target::Goal::Size),
    ] {
        let mut graph = conv_of_bytes(DType::U8, 0, [16, 32, 32], &random)?;
        run_all(&mut graph, &options, &mut |_, _, _| {})?;
        assert_eq!(count(&graph, "winograd_input"), 0);
    }
    Ok(())
}

#[test]
fn convolutions_by_minimal_filtering() -> Result<()> {
    for (extents, channels, tile) in [([16, 16], 16, 4), ([14, 9], 24, 4), ([7, 7], 128, 2)] {
        let mut net = Net::new();
        let x = net.input(&[1, channels, extents[0], extents[1]]);
        let y = net.conv(x, channels, 3, 1)?;
        let y = net.relu(y)?;
        // No padding, and a stride.
        let y = net.conv(y, channels, 3, 2)?;
        let mut exact = net.graph.clone();
        let graph = net.optimised(&[y]);
        let of_tile = |id: &&onnxc_ir::graph::NodeId| matches!(graph.nodes[**id].op, Op::WinogradOutput { tile: size, .. } if size == tile);
        assert_eq!(graph.order.iter().filter(of_tile).count(), 1, "{extents:?}");
        assert_eq!((count(&graph, "winograd_input"), count(&graph, "window")), (1, 1));
        exact.outputs = vec![("y".into(), y)];
        run_all(&mut exact, &Options { exact: true, ..Options::default() }, &mut |_, _, _| {})?;
        assert_eq!((count(&exact, "winograd_input"), count(&exact, "window")), (0, 2));
    }
    Ok(())
}

/// A convolution of an image whose batch, height and width only the run knows.
fn open_conv(channels: usize, strides: usize, dilations: usize) -> Result<Graph> {
    let mut net = Net::new();
    let [batch, height, width] = [0; 3].map(|_| Dim::sym(net.b().fresh_symbol()));
    let shape = vec![batch, height, width, Dim::from(channels)];
    let x = net.b().input("x", TensorType::new(DType::F32, shape), None);
    let (fill, pad) = (net.b().scalar(DType::F32, 0.0), Dim::from(dilations));
    let border = vec![Dim::ZERO, pad.clone(), pad, Dim::ZERO];
    let x = net.b().pad(x, fill, border.clone(), border)?;
    let (strides, dilations) = (vec![strides; 2], vec![dilations; 2]);
    let x = net.b().emit1(Op::Window { first: 1, kernel: vec![3; 2], strides, dilations }, &[x])?;
    let weights = net.weights(&[3, 3, channels, channels]);
    let y = net.b().emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, &[x, weights])?;
    let y = net.relu(y)?;
    net.graph.outputs = vec![("y".into(), y)];
    Ok(net.graph)
}

#[test]
fn open_convolutions_by_minimal_filtering() -> Result<()> {
    for (channels, strides, dilations, wanted) in [(16, 1, 1, 1), (16, 2, 1, 0), (16, 1, 2, 0), (2, 1, 1, 0)]
    {
        let graph = open_conv(channels, strides, dilations)?;
        let mut optimised = graph.clone();
        run_all(&mut optimised, &Options::default(), &mut |_, _, _| {})?;
        let what = format!("{channels} channels, strides of {strides}, dilations of {dilations}");
        assert_eq!(count(&optimised, "winograd_output"), wanted, "{what}");
        let mut noise = Noise(3);
        for batch in [0, 1, 2] {
            for [height, width] in [[0, 3], [1, 1], [2, 5], [3, 2], [5, 0], [17, 3], [5, 17]] {
                let x = noise.tensor(&[batch, height, width, channels]);
                let wanted = interp::run(&graph, std::slice::from_ref(&x))?;
                let found = interp::run(&optimised, &[x])?;
                assert_eq!(wanted[0].shape, found[0].shape, "{what}");
                assert_close(&wanted[0], &found[0]);
            }
        }
    }
    Ok(())
}

/// Without a border an image of one row has no results, and is refused as before.
#[test]
fn open_convolutions_refuse_what_is_too_small() -> Result<()> {
    let mut net = Net::new();
    let [height, width] = [0; 2].map(|_| Dim::sym(net.b().fresh_symbol()));
    let x = net.b().input(
        "x",
        TensorType::new(DType::F32, vec![Dim::ONE, height, width, Dim::from(16usize)]),
        None,
    );
    let (strides, dilations) = (vec![1; 2], vec![1; 2]);
    let x = net.b().emit1(Op::Window { first: 1, kernel: vec![3; 2], strides, dilations }, &[x])?;
    let weights = net.weights(&[3, 3, 16, 16]);
    let y = net.b().emit1(Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, &[x, weights])?;
    net.graph.outputs = vec![("y".into(), y)];
    let plain = net.graph.clone();
    run_all(&mut net.graph, &Options::default(), &mut |_, _, _| {})?;
    assert_eq!(count(&net.graph, "winograd_output"), 1);
    for (size, fits) in [([1, 1], false), ([0, 0], false), ([2, 2], true), ([3, 9], true), ([7, 3], true)] {
        let x = Noise(5).tensor(&[1, size[0], size[1], 16]);
        let results = [&plain, &net.graph].map(|graph| interp::run(graph, std::slice::from_ref(&x)));
        assert_eq!(results.each_ref().map(|found| found.is_ok()), [fits; 2], "{size:?}");
        if let [Ok(wanted), Ok(found)] = results {
            assert_close(&wanted[0], &found[0]);
        }
    }
    Ok(())
}
