//! Drawn networks: layers behind each other, recurrent ones, loops and conditions among them.

use fastrand::Rng;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, build};

use super::text;

const MICROSOFT: &str = "com.microsoft";

/// A model, and values for its inputs.
pub struct Network {
    pub model: ModelProto,
    pub inputs: Vec<Tensor>,
    /// The layers, in order.
    pub layers: Vec<&'static str>,
}

/// A value of the network: its name and its shape.
type Value = (String, Vec<usize>);

/// A layer: a value behind it, or none where the shape does not suit.
pub type Layer = fn(&mut Drawing, Value) -> Option<Value>;

/// All layers that networks are made of.
pub const LAYERS: &[(&str, Layer)] = &[
    ("LSTM", lstm),
    ("GRU", gru),
    ("RNN", rnn),
    ("Scan", scan),
    ("Loop", counted),
    ("Loop by data", conditional),
    ("If", choice),
    ("nested", nested),
    ("CumSum", |net, x| cumulated(net, x, "CumSum")),
    ("CumProd", |net, x| cumulated(net, x, "CumProd")),
    ("MatMul", matmul),
    ("Gemm", gemm),
    ("Einsum", einsum),
    ("elementwise", elementwise),
    ("two operands", two_operands),
    ("Softmax", softmax),
    ("reduction", reduction),
    ("LayerNormalization", layer_normalization),
    ("BatchNormalization", batch_normalization),
    ("GroupNormalization", group_normalization),
    ("Conv", convolution),
    ("ConvTranspose", transposed_convolution),
    ("DeformConv", deformed_convolution),
    ("pool", pool),
    ("Resize", resize),
    ("GridSample", grid_sample),
    ("RoiAlign", roi_align),
    ("Det", det),
    ("TopK", top_k),
    ("gather", gather),
    ("scatter", scatter),
    ("movement", movement),
    ("Attention", attention),
    ("RotaryEmbedding", rotary),
    ("MultiHeadAttention", multi_head_attention),
    ("com.microsoft.Attention", packed_attention),
    ("GroupQueryAttention", group_query_attention),
    ("fused", fused),
    ("SkipLayerNormalization", skip_normalization),
    ("FusedMatMul", fused_matmul),
    ("loss", loss),
];

/// A network while it is drawn.
pub struct Drawing {
    rng: Rng,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    inputs: Vec<(String, Tensor)>,
    names: usize,
}

/// Network number `number` of a seed: `count` layers; the first goes through all kinds in order.
pub fn draw(seed: u64, number: usize) -> Network {
    let rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    let mut net = Drawing { rng, nodes: vec![], constants: vec![], inputs: vec![], names: 0 };
    let shape = [net.rng.usize(2..4), net.rng.usize(2..4), net.rng.usize(2..5)].to_vec();
    let mut x = net.parameter(&shape, 1.0);
    let mut layers = vec![];
    let count = net.rng.usize(1..4);
    let (mut at, mut tries) = (number % LAYERS.len(), 0);
    while layers.len() < count && tries < 20 {
        let (name, layer) = LAYERS[at];
        let before = (net.nodes.len(), net.constants.len(), net.inputs.len());
        match layer(&mut net, x.clone()).filter(|(_, shape)| shape.iter().product::<usize>() <= 160) {
            Some(found) => {
                x = found;
                layers.push(name);
            }
            None => {
                net.nodes.truncate(before.0);
                net.constants.truncate(before.1);
                net.inputs.truncate(before.2);
            }
        }
        at = net.rng.usize(..LAYERS.len());
        tries += 1;
    }
    let inputs = net.inputs.iter().map(|(name, tensor)| build::f32_value(name, &tensor.shape)).collect();
    let mut graph = build::graph(inputs, net.nodes, vec![build::f32_value(&x.0, &x.1)]);
    graph.initializer = net.constants;
    let mut model = build::model(26, graph);
    model.ir_version = Some(13);
    model.opset_import.push(build::opset(MICROSOFT, 1));
    Network { model, inputs: net.inputs.into_iter().map(|input| input.1).collect(), layers }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..build::attribute(name, AttributeType::Float) }
}

fn strings(name: &str, values: &[&str]) -> AttributeProto {
    let strings = values.iter().map(|value| value.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..build::attribute(name, AttributeType::Strings) }
}

fn of_microsoft(node: NodeProto) -> NodeProto {
    NodeProto { domain: Some(MICROSOFT.into()), ..node }
}

impl Drawing {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    /// Numbers of both signs, none of them near 0 and no two near each other.
    fn numbers(&mut self, count: usize, scale: f64) -> Vec<f32> {
        let mut order: Vec<usize> = (0..count).collect();
        self.rng.shuffle(&mut order);
        let mut number = |place: usize| {
            let magnitude = (place as f64 + 0.3 + 0.4 * self.rng.f64()) / count as f64;
            let signed = if self.rng.bool() { magnitude } else { -magnitude };
            (signed * scale) as f32
        };
        order.into_iter().map(&mut number).collect()
    }

    /// An input that learns.
    fn parameter(&mut self, shape: &[usize], scale: f64) -> Value {
        let values = self.numbers(shape.iter().product(), scale);
        self.input(shape, &values)
    }

    /// One of numbers between `low` and `high`.
    fn between(&mut self, shape: &[usize], low: f64, high: f64) -> Value {
        let values: Vec<f32> = self
            .numbers(shape.iter().product(), 1.0)
            .iter()
            .map(|x| (low + f64::from(x.abs()) * (high - low)) as f32)
            .collect();
        self.input(shape, &values)
    }

    fn input(&mut self, shape: &[usize], values: &[f32]) -> Value {
        let name = format!("p{}", self.inputs.len());
        self.inputs.push((name.clone(), Tensor::from_slice(shape, values)));
        (name, shape.to_vec())
    }

    fn ints(&mut self, shape: &[usize], values: &[i64]) -> String {
        let name = self.name();
        let dims: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        self.constants.push(build::i64_tensor(&name, &dims, values.to_vec()));
        name
    }

    fn int32s(&mut self, shape: &[usize], values: &[i32]) -> String {
        let name = self.name();
        self.constants.push(TensorProto {
            name: Some(name.clone()),
            dims: shape.iter().map(|&size| size as i64).collect(),
            data_type: Some(DType::I32.to_onnx()),
            int32_data: values.to_vec(),
            ..Default::default()
        });
        name
    }

    fn floats(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.name();
        let dims: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        self.constants.push(build::f32_tensor(&name, &dims, values.to_vec()));
        name
    }

    /// The result of one more node.
    fn emit(&mut self, node: NodeProto) -> String {
        let name = self.name();
        self.push(NodeProto { output: vec![name.clone()], ..node });
        name
    }

    fn push(&mut self, node: NodeProto) {
        self.nodes.push(node);
    }

    fn op(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.emit(build::node(op_type, inputs, &[]))
    }

    fn reshaped(&mut self, (x, own): Value, shape: &[usize]) -> Value {
        if own == shape {
            return (x, own);
        }
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let sizes = self.ints(&[shape.len()], &sizes);
        (self.op("Reshape", &[&x, &sizes]), shape.to_vec())
    }

    /// The value with this number of axes.
    fn of_rank(&mut self, x: Value, rank: usize) -> Value {
        let mut shape = x.1.clone();
        while shape.len() < rank {
            shape.insert(0, 1);
        }
        while shape.len() > rank {
            let first = shape.remove(0);
            shape[0] *= first;
        }
        self.reshaped(x, &shape)
    }

    /// An image `[1, c, h, w]` with `h` and `w` of `least` at least.
    fn image(&mut self, x: Value, least: usize) -> Option<Value> {
        let x = self.of_rank(x, 4);
        let [n, c, h, w] = x.1[..] else { return None };
        if h >= least && w >= least && n * c <= 6 {
            return Some(x);
        }
        let count = x.1.iter().product::<usize>();
        let side = (least..=5).find(|side| count % (side * side) == 0 && count / (side * side) <= 4);
        match side {
            Some(side) => Some(self.reshaped(x, &[1, count / (side * side), side, side])),
            None => {
                // A product makes it large enough.
                let flat = self.reshaped(x, &[1, count]);
                let weights = self.parameter(&[count, 2 * least * least], 0.7);
                let product = self.op("MatMul", &[&flat.0, &weights.0]);
                Some(self.reshaped((product, vec![1, 2 * least * least]), &[1, 2, least, least]))
            }
        }
    }

    fn flag(&mut self) -> bool {
        self.rng.bool()
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.rng.usize(..list.len())]
    }
}

const ACTIVATIONS: &[&str] =
    &["Tanh", "Sigmoid", "Softsign", "Softplus", "Elu", "HardSigmoid", "Affine", "ScaledTanh", "LeakyRelu"];

fn lstm(net: &mut Drawing, x: Value) -> Option<Value> {
    recurrent(net, x, "LSTM", 4, 3)
}

fn gru(net: &mut Drawing, x: Value) -> Option<Value> {
    recurrent(net, x, "GRU", 3, 2)
}

fn rnn(net: &mut Drawing, x: Value) -> Option<Value> {
    recurrent(net, x, "RNN", 1, 1)
}

fn recurrent(net: &mut Drawing, x: Value, op_type: &str, gates: usize, functions: usize) -> Option<Value> {
    let x = net.of_rank(x, 3);
    let batch_major = net.flag();
    let [steps, batch] = if batch_major { [x.1[1], x.1[0]] } else { [x.1[0], x.1[1]] };
    let (width, hidden) = (x.1[2], net.rng.usize(1..4));
    let direction = net.pick(&["forward", "reverse", "bidirectional"]);
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let w = net.parameter(&[directions, gates * hidden, width], 0.8).0;
    let r = net.parameter(&[directions, gates * hidden, hidden], 0.8).0;
    let mut inputs = vec![x.0, w, r];
    let bias = net.flag();
    inputs.push(if bias { net.parameter(&[directions, 2 * gates * hidden], 0.5).0 } else { String::new() });
    let lengths: Vec<i32> = (0..batch).map(|_| net.rng.i32(1..=steps as i32)).collect();
    let given = net.flag();
    inputs.push(if given { net.int32s(&[batch], &lengths) } else { String::new() });
    let state = if batch_major { [batch, directions, hidden] } else { [directions, batch, hidden] };
    let states = if op_type == "LSTM" { 2 } else { 1 };
    for _ in 0..states {
        let given = net.flag();
        inputs.push(if given { net.parameter(&state, 0.5).0 } else { String::new() });
    }
    if op_type == "LSTM" && net.flag() {
        inputs.push(net.parameter(&[directions, 3 * hidden], 0.5).0);
    }
    let mut node = build::node(op_type, &inputs.iter().map(String::as_str).collect::<Vec<_>>(), &[])
        .with(build::int("hidden_size", hidden as i64))
        .with(build::int("layout", i64::from(batch_major)))
        .with(text("direction", direction));
    if net.flag() {
        let activations: Vec<&str> = (0..functions * directions).map(|_| net.pick(ACTIVATIONS)).collect();
        node = node.with(strings("activations", &activations));
    }
    if op_type == "GRU" {
        node = node.with(build::int("linear_before_reset", i64::from(net.flag())));
    }
    if op_type == "LSTM" {
        node = node.with(build::int("input_forget", i64::from(net.flag())));
    }
    if net.rng.usize(..4) == 0 {
        node = node.with(float("clip", 0.8));
    }
    let (all, last) = (net.name(), net.name());
    node.output = vec![all.clone(), last.clone()];
    let cell = (op_type == "LSTM").then(|| net.name());
    node.output.extend(cell.clone());
    net.push(node);
    let count = directions * batch * hidden;
    match net.rng.usize(..3) {
        0 => Some((last, state.to_vec())),
        1 if cell.is_some() => Some((cell?, state.to_vec())),
        _ => Some(net.reshaped((all, vec![steps * count]), &[steps, batch, directions * hidden])),
    }
}

/// A body: nodes, its inputs by name, its outputs by name.
fn body(nodes: Vec<NodeProto>, inputs: &[&str], outputs: &[&str]) -> GraphProto {
    let untyped = |names: &[&str]| names.iter().map(|name| build::untyped(name)).collect();
    GraphProto { name: Some("body".into()), ..build::graph(untyped(inputs), nodes, untyped(outputs)) }
}

fn scan(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (steps, width) = (x.1[0], x.1[1]);
    let (start, w) = (net.parameter(&[width], 0.6).0, net.parameter(&[width, width], 0.6).0);
    let nodes = vec![
        build::node("MatMul", &["h", &w], &["moved"]),
        build::node("Add", &["moved", "slice"], &["sum"]),
        build::node("Tanh", &["sum"], &["next"]),
        build::node("Mul", &["next", "h"], &["part"]),
    ];
    let attribute = build::subgraph("body", body(nodes, &["h", "slice"], &["next", "part"]));
    let (last, parts) = (net.name(), net.name());
    let directions = [i64::from(net.flag()), i64::from(net.flag())];
    net.push(
        build::node("Scan", &[&start, &x.0], &[&last, &parts])
            .with(attribute)
            .with(build::int("num_scan_inputs", 1))
            .with(build::ints("scan_input_directions", &directions[..1]))
            .with(build::ints("scan_output_directions", &directions[1..])),
    );
    match net.flag() {
        true => Some((last, vec![width])),
        false => Some((parts, vec![steps, width])),
    }
}

/// A loop that runs as often as a constant says.
fn counted(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let w = net.parameter(&x.1.clone(), 0.9).0;
    let steps = net.rng.i64(0..4);
    let most = net.ints(&[], &[steps]);
    let nodes = vec![
        build::node("Cast", &["number"], &["turn"]).with(build::int("to", 1)),
        build::node("Mul", &["state", &w], &["product"]),
        build::node("Sin", &["product"], &["wave"]),
        build::node("Add", &["wave", "turn"], &["shifted"]),
        build::node("Mul", &["shifted", "state"], &["next"]),
        build::node("Identity", &["goes_on"], &["still"]),
    ];
    let inside = body(nodes, &["number", "goes_on", "state"], &["still", "next", "wave"]);
    let (last, parts) = (net.name(), net.name());
    net.push(build::node("Loop", &[&most, "", &x.0], &[&last, &parts]).with(build::subgraph("body", inside)));
    if steps > 0 && net.flag() {
        let sum = net.ints(&[1], &[0]);
        let total = net.op("ReduceSum", &[&parts, &sum]);
        return Some(net.reshaped((total, vec![1, x.1[0], x.1[1]]), &x.1));
    }
    Some((last, x.1))
}

/// A loop that ends when the sum of its state is above a limit.
fn conditional(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (w, limit) = (net.between(&x.1.clone(), 0.2, 0.7).0, net.floats(&[], &[12.0]));
    let most = net.ints(&[], &[9]);
    let yes = net.op("Not", &[]);
    net.nodes.pop();
    net.constants.push(TensorProto {
        name: Some(yes.clone()),
        data_type: Some(DType::Bool.to_onnx()),
        int32_data: vec![1],
        ..Default::default()
    });
    let nodes = vec![
        build::node("Mul", &["state", &w], &["product"]),
        build::node("Exp", &["product"], &["grown"]),
        build::node("Add", &["state", "grown"], &["next"]),
        build::node("Abs", &["next"], &["size"]),
        build::node("ReduceSum", &["size"], &["sum"]).with(build::int("keepdims", 0)),
        build::node("Less", &["sum", &limit], &["still"]),
    ];
    let stacks = net.flag();
    let outputs: &[&str] = if stacks { &["still", "next", "product"] } else { &["still", "next"] };
    let inside = body(nodes, &["number", "goes_on", "state"], outputs);
    let mut node = build::node("Loop", &[&most, &yes, &x.0], &[]).with(build::subgraph("body", inside));
    let (last, parts) = (net.name(), net.name());
    node.output = vec![last.clone()];
    node.output.extend(stacks.then(|| parts.clone()));
    net.push(node);
    if stacks {
        let first = net.ints(&[1], &[0]);
        let total = net.op("ReduceSum", &[&parts, &first]);
        let total = net.reshaped((total, vec![1, x.1[0], x.1[1]]), &x.1);
        let last = net.op("Tanh", &[&last]);
        return Some((net.op("Add", &[&last, &total.0]), x.1));
    }
    Some((net.op("Tanh", &[&last]), x.1))
}

/// The nodes of two branches of one shape.
fn branches(net: &mut Drawing, x: &str, shape: &[usize]) -> [GraphProto; 2] {
    let (a, b) = (net.parameter(shape, 0.8).0, net.parameter(shape, 0.8).0);
    let then = vec![build::node("Mul", &[x, &a], &["t"]), build::node("Sigmoid", &["t"], &["then_y"])];
    let otherwise = vec![
        build::node("Sub", &[x, &b], &["e"]),
        build::node("Mul", &["e", "e"], &["ee"]),
        build::node("Mul", &["ee", &a], &["else_y"]),
    ];
    [body(then, &[], &["then_y"]), body(otherwise, &[], &["else_y"])]
}

fn choice(net: &mut Drawing, x: Value) -> Option<Value> {
    let limit = net.floats(&[], &[0.05]);
    let sum = net.emit(build::node("ReduceSum", &[&x.0], &[]).with(build::int("keepdims", 0)));
    let condition = net.op("Greater", &[&sum, &limit]);
    let [then, otherwise] = branches(net, &x.0, &x.1);
    let node = build::node("If", &[&condition], &[])
        .with(build::subgraph("then_branch", then))
        .with(build::subgraph("else_branch", otherwise));
    Some((net.emit(node), x.1))
}

/// A choice in a loop in a scan.
fn nested(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (steps, width) = (x.1[0], x.1[1]);
    let (start, most, limit) = (net.parameter(&[width], 0.6).0, net.ints(&[], &[2]), net.floats(&[], &[0.1]));
    let [then, otherwise] = branches(net, "state", &[width]);
    let inner = vec![
        build::node("ReduceSum", &["state"], &["sum"]).with(build::int("keepdims", 0)),
        build::node("Greater", &["sum", &limit], &["is_large"]),
        build::node("If", &["is_large"], &["chosen"])
            .with(build::subgraph("then_branch", then))
            .with(build::subgraph("else_branch", otherwise)),
        build::node("Sub", &["chosen", "slice"], &["inner_next"]),
        build::node("Identity", &["goes_on"], &["still"]),
    ];
    let inner = body(inner, &["number", "goes_on", "state"], &["still", "inner_next"]);
    let outer = vec![
        build::node("Loop", &[&most, "", "h"], &["moved"]).with(build::subgraph("body", inner)),
        build::node("Sin", &["moved"], &["next"]),
        build::node("Mul", &["moved", "slice"], &["part"]),
    ];
    let outer = build::subgraph("body", body(outer, &["h", "slice"], &["next", "part"]));
    let (last, parts) = (net.name(), net.name());
    net.push(
        build::node("Scan", &[&start, &x.0], &[&last, &parts])
            .with(outer)
            .with(build::int("num_scan_inputs", 1)),
    );
    let sum = net.op("Add", &[&parts, &last]);
    Some((sum, vec![steps, width]))
}

fn cumulated(net: &mut Drawing, x: Value, op_type: &str) -> Option<Value> {
    let axis = net.rng.usize(..x.1.len()) as i64;
    let axis = net.ints(&[], &[axis]);
    let (exclusive, reverse) = (net.flag(), net.flag());
    let node = build::node(op_type, &[&x.0, &axis], &[])
        .with(build::int("exclusive", i64::from(exclusive)))
        .with(build::int("reverse", i64::from(reverse)));
    Some((net.emit(node), x.1))
}

fn matmul(net: &mut Drawing, (x, mut shape): Value) -> Option<Value> {
    let (inner, columns) = (*shape.last()?, net.rng.usize(1..5));
    let w = net.parameter(&[inner, columns], 0.8).0;
    *shape.last_mut()? = columns;
    Some((net.op("MatMul", &[&x, &w]), shape))
}

fn gemm(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let columns = net.rng.usize(1..5);
    let (w, c) = (net.parameter(&[columns, x.1[1]], 0.8).0, net.parameter(&[columns], 0.8).0);
    let node = build::node("Gemm", &[&x.0, &w, &c], &[])
        .with(build::int("transB", 1))
        .with(float("alpha", 0.75))
        .with(float("beta", 0.5));
    Some((net.emit(node), vec![x.1[0], columns]))
}

fn einsum(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 3);
    let (a, b, c) = (x.1[0], x.1[1], x.1[2]);
    let (w, equation, shape) = match net.rng.usize(..3) {
        0 => (net.parameter(&[c, 3], 0.8).0, "abc,cd->abd", vec![a, b, 3]),
        1 => (net.parameter(&[a, 2, c], 0.8).0, "abc,adc->bad", vec![b, a, 2]),
        _ => (net.parameter(&[b, c], 0.8).0, "abc,bc->ac", vec![a, c]),
    };
    let node = build::node("Einsum", &[&x.0, &w], &[]).with(text("equation", equation));
    Some((net.emit(node), shape))
}

fn elementwise(net: &mut Drawing, (x, shape): Value) -> Option<Value> {
    const FUNCTIONS: &[&str] = &[
        "Tanh",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Sin",
        "Cos",
        "Erf",
        "Exp",
        "Relu",
        "Elu",
        "Selu",
        "Celu",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Mish",
        "LeakyRelu",
        "Abs",
        "Neg",
        "Atan",
        "Asinh",
        "Sinh",
        "Cosh",
        "Swish",
        "Tan",
        "ThresholdedRelu",
        "Shrink",
    ];
    let function = net.pick(FUNCTIONS);
    Some((net.op(function, &[&x]), shape))
}

fn two_operands(net: &mut Drawing, (x, shape): Value) -> Option<Value> {
    let mut other = shape.clone();
    if net.flag() && !other.is_empty() {
        let axis = net.rng.usize(..other.len());
        other[axis] = 1;
    }
    let function = net.pick(&["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Mean", "Sum", "Pow"]);
    let own = if ["Div", "Pow"].contains(&function) {
        net.between(&other, 0.5, 1.5)
    } else {
        net.parameter(&other, 0.9)
    };
    if function == "Pow" {
        return Some((net.op(function, &[&own.0, &x]), shape));
    }
    Some((net.op(function, &[&x, &own.0]), shape))
}

fn softmax(net: &mut Drawing, (x, shape): Value) -> Option<Value> {
    let function = net.pick(&["Softmax", "LogSoftmax", "LpNormalization", "Softmax"]);
    let axis = net.rng.usize(..shape.len()) as i64;
    Some((net.emit(build::node(function, &[&x], &[]).with(build::int("axis", axis))), shape))
}

fn reduction(net: &mut Drawing, (x, mut shape): Value) -> Option<Value> {
    const FUNCTIONS: &[&str] = &[
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceSumSquare",
    ];
    let function = net.pick(FUNCTIONS);
    let axis = net.rng.usize(..shape.len());
    let axes = net.ints(&[1], &[axis as i64]);
    shape[axis] = 1;
    Some((net.op(function, &[&x, &axes]), shape))
}

fn layer_normalization(net: &mut Drawing, (x, shape): Value) -> Option<Value> {
    let width = *shape.last().filter(|&&size| size > 1)?;
    let (scale, bias) = (net.between(&[width], 0.5, 1.5).0, net.parameter(&[width], 0.5).0);
    match net.rng.usize(..3) {
        0 => Some((net.op("RMSNormalization", &[&x, &scale]), shape)),
        1 => Some((
            net.emit(build::node("MeanVarianceNormalization", &[&x], &[]).with(build::ints("axes", &[-1]))),
            shape,
        )),
        _ => Some((net.op("LayerNormalization", &[&x, &scale, &bias]), shape)),
    }
}

/// In training mode, with running statistics, or in the other one.
fn batch_normalization(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 3);
    let channels = x.1[1];
    if x.1[0] * x.1[2] < 2 {
        return None;
    }
    let (scale, bias) = (net.between(&[channels], 0.5, 1.5).0, net.parameter(&[channels], 0.5).0);
    let (mean, variance) = (net.parameter(&[channels], 0.5).0, net.between(&[channels], 0.5, 1.5).0);
    let training = net.flag();
    let (y, running_mean, running_variance) = (net.name(), net.name(), net.name());
    let mut node = build::node("BatchNormalization", &[&x.0, &scale, &bias, &mean, &variance], &[&y])
        .with(build::int("training_mode", i64::from(training)));
    if training {
        node.output.extend([running_mean.clone(), running_variance.clone()]);
    }
    net.push(node);
    if training && net.flag() {
        // The statistics are a result as well.
        let statistics = net.op("Mul", &[&running_mean, &running_variance]);
        let statistics = net.reshaped((statistics, vec![channels]), &[1, channels, 1]);
        return Some((net.op("Add", &[&y, &statistics.0]), x.1));
    }
    Some((y, x.1))
}

fn group_normalization(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 3);
    let channels = x.1[1];
    if x.1[2] < 2 {
        return None;
    }
    let (scale, bias) = (net.between(&[channels], 0.5, 1.5).0, net.parameter(&[channels], 0.5).0);
    if net.flag() {
        return Some((net.op("InstanceNormalization", &[&x.0, &scale, &bias]), x.1));
    }
    let node = build::node("GroupNormalization", &[&x.0, &scale, &bias], &[]);
    let groups = if channels.is_multiple_of(2) { 2 } else { 1 };
    Some((net.emit(node.with(build::int("num_groups", groups))), x.1))
}

fn convolution(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 3)?;
    let [n, c, h, w] = x.1[..] else { return None };
    let (out, stride) = (net.rng.usize(1..3), net.rng.usize(1..3));
    let (weights, bias) = (net.parameter(&[out, c, 3, 2], 0.6).0, net.parameter(&[out], 0.6).0);
    let node = build::node("Conv", &[&x.0, &weights, &bias], &[])
        .with(build::ints("pads", &[1, 0, 1, 0]))
        .with(build::ints("strides", &[stride as i64, 1]));
    Some((net.emit(node), vec![n, out, (h - 1) / stride + 1, w - 1]))
}

fn transposed_convolution(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 2)?;
    let [n, c, h, w] = x.1[..] else { return None };
    let weights = net.parameter(&[c, 1, 2, 2], 0.6).0;
    let node = build::node("ConvTranspose", &[&x.0, &weights], &[]).with(build::ints("strides", &[2, 1]));
    Some((net.emit(node), vec![n, 1, 2 * h, w + 1]))
}

fn deformed_convolution(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 3)?;
    let [n, c, h, w] = x.1[..] else { return None };
    let (oh, ow) = (h - 1, w - 1);
    let weights = net.parameter(&[2, c, 2, 2], 0.6).0;
    let offsets = net.parameter(&[n, 8, oh, ow], 0.45).0;
    let bias = net.parameter(&[2], 0.5).0;
    let mask = net.between(&[n, 4, oh, ow], 0.4, 1.0).0;
    let node = build::node("DeformConv", &[&x.0, &weights, &offsets, &bias, &mask], &[])
        .with(build::ints("kernel_shape", &[2, 2]));
    Some((net.emit(node), vec![n, 2, oh, ow]))
}

fn pool(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 2)?;
    let [n, c, h, w] = x.1[..] else { return None };
    let shape = vec![n, c, h - 1, w - 1];
    let kernel = build::ints("kernel_shape", &[2, 2]);
    match net.rng.usize(..5) {
        0 => Some((net.emit(build::node("AveragePool", &[&x.0], &[]).with(kernel)), shape)),
        1 => Some((net.emit(build::node("LpPool", &[&x.0], &[]).with(kernel)), shape)),
        2 => Some((net.op("GlobalAveragePool", &[&x.0]), vec![n, c, 1, 1])),
        3 => Some((net.emit(build::node("MaxPool", &[&x.0], &[]).with(kernel)), shape)),
        _ => {
            // The places, and back by them: windows that do not overlap, as no element has two values.
            let (y, places) = (net.name(), net.name());
            let strides = build::ints("strides", &[2, 2]);
            net.push(
                build::node("MaxPool", &[&x.0], &[&y, &places]).with(kernel.clone()).with(strides.clone()),
            );
            let node = build::node("MaxUnpool", &[&y, &places], &[]).with(kernel).with(strides);
            Some((net.emit(node), vec![n, c, h / 2 * 2, w / 2 * 2]))
        }
    }
}

fn resize(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 2)?;
    let mode = net.pick(&["nearest", "linear", "cubic"]);
    let (n, c, h, w) = (x.1[0], x.1[1], x.1[2] + 1, x.1[3] * 2);
    let sizes = net.ints(&[4], &[n as i64, c as i64, h as i64, w as i64]);
    let node = build::node("Resize", &[&x.0, "", "", &sizes], &[]).with(text("mode", mode));
    Some((net.emit(node), vec![n, c, h, w]))
}

fn grid_sample(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 2)?;
    let (n, c) = (x.1[0], x.1[1]);
    let grid = net.parameter(&[n, 2, 3, 2], 0.9).0;
    let mode = net.pick(&["linear", "cubic", "nearest"]);
    let padding = net.pick(&["zeros", "border", "reflection"]);
    let node = build::node("GridSample", &[&x.0, &grid], &[])
        .with(text("mode", mode))
        .with(text("padding_mode", padding));
    Some((net.emit(node), vec![n, c, 2, 3]))
}

fn roi_align(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.image(x, 3)?;
    let (c, mode) = (x.1[1], net.pick(&["avg", "max"]));
    let rois = net.input(&[2, 4], &[0.13, 0.21, 1.87, 1.91, 0.43, 0.07, 2.31, 1.67]).0;
    let places = net.ints(&[2], &[0, 0]);
    let node = build::node("RoiAlign", &[&x.0, &rois, &places], &[])
        .with(build::int("output_height", 2))
        .with(build::int("output_width", 2))
        .with(build::int("sampling_ratio", 2))
        .with(text("mode", mode));
    Some((net.emit(node), vec![2, c, 2, 2]))
}

fn det(net: &mut Drawing, x: Value) -> Option<Value> {
    let count = x.1.iter().product::<usize>();
    let w = net.parameter(&[count, 9], 0.8).0;
    let flat = net.reshaped(x, &[1, count]);
    let product = net.op("MatMul", &[&flat.0, &w]);
    let square = net.reshaped((product, vec![1, 9]), &[1, 3, 3]);
    Some((net.op("Det", &[&square.0]), vec![1]))
}

fn top_k(net: &mut Drawing, (x, mut shape): Value) -> Option<Value> {
    let axis = net.rng.usize(..shape.len());
    let take = net.rng.usize(1..=shape[axis]);
    let count = net.ints(&[1], &[take as i64]);
    let (values, places) = (net.name(), net.name());
    let largest = i64::from(net.flag());
    net.push(
        build::node("TopK", &[&x, &count], &[&values, &places])
            .with(build::int("axis", axis as i64))
            .with(build::int("largest", largest)),
    );
    shape[axis] = take;
    Some((values, shape))
}

fn gather(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (a, b) = (x.1[0], x.1[1]);
    let index = |net: &mut Drawing, size: usize| net.rng.i64(-(size as i64)..size as i64);
    match net.rng.usize(..3) {
        0 => {
            let picks: Vec<i64> = (0..4).map(|_| index(net, b)).collect();
            let picks = net.ints(&[4], &picks);
            Some((
                net.emit(build::node("Gather", &[&x.0, &picks], &[]).with(build::int("axis", 1))),
                vec![a, 4],
            ))
        }
        1 => {
            let picks: Vec<i64> = (0..3 * b).map(|_| index(net, a)).collect();
            let picks = net.ints(&[3, b], &picks);
            Some((net.op("GatherElements", &[&x.0, &picks]), vec![3, b]))
        }
        _ => {
            let picks: Vec<i64> = (0..4).flat_map(|_| [index(net, a), index(net, b)]).collect();
            let picks = net.ints(&[4, 2], &picks);
            Some((net.op("GatherND", &[&x.0, &picks]), vec![4]))
        }
    }
}

fn scatter(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (a, b) = (x.1[0], x.1[1]);
    let reduction = net.pick(&["none", "add", "mul", "max", "min"]);
    if net.flag() {
        // Without a combination no element is written twice.
        let rows = if reduction == "none" { 1 } else { 3 };
        let picks: Vec<i64> = (0..rows * b).map(|_| net.rng.i64(0..a as i64)).collect();
        let (picks, updates) = (net.ints(&[rows, b], &picks), net.parameter(&[rows, b], 0.9).0);
        let node = build::node("ScatterElements", &[&x.0, &picks, &updates], &[]);
        return Some((net.emit(node.with(text("reduction", reduction))), x.1));
    }
    let rows = if reduction == "none" { 1 } else { 3 };
    let picks: Vec<i64> = (0..rows).map(|_| net.rng.i64(0..a as i64)).collect();
    let (picks, updates) = (net.ints(&[rows, 1], &picks), net.parameter(&[rows, b], 0.9).0);
    let node = build::node("ScatterND", &[&x.0, &picks, &updates], &[]);
    Some((net.emit(node.with(text("reduction", reduction))), x.1))
}

fn movement(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 3);
    let (a, b, c) = (x.1[0], x.1[1], x.1[2]);
    match net.rng.usize(..7) {
        0 => Some((
            net.emit(build::node("Transpose", &[&x.0], &[]).with(build::ints("perm", &[2, 0, 1]))),
            vec![c, a, b],
        )),
        1 => {
            let (pads, fill) = (net.ints(&[6], &[1, 0, 0, 0, 1, 2]), net.parameter(&[], 0.5).0);
            Some((net.op("Pad", &[&x.0, &pads, &fill]), vec![a + 1, b + 1, c + 2]))
        }
        2 => {
            let pads = net.ints(&[6], &[0, 0, 1, 0, 0, 1]);
            let mode = if c > 1 { net.pick(&["reflect", "edge", "wrap"]) } else { "edge" };
            Some((
                net.emit(build::node("Pad", &[&x.0, &pads], &[]).with(text("mode", mode))),
                vec![a, b, c + 2],
            ))
        }
        3 => {
            let own = net.parameter(&[a, 1, c], 0.7).0;
            Some((
                net.emit(build::node("Concat", &[&x.0, &own, &x.0], &[]).with(build::int("axis", 1))),
                vec![a, 2 * b + 1, c],
            ))
        }
        4 => {
            let [starts, ends, axes, steps] = [-1, i64::MIN, 2, -2].map(|value| net.ints(&[1], &[value]));
            Some((net.op("Slice", &[&x.0, &starts, &ends, &axes, &steps]), vec![a, b, c.div_ceil(2)]))
        }
        5 => {
            let repeats = net.ints(&[3], &[1, 2, 1]);
            Some((net.op("Tile", &[&x.0, &repeats]), vec![a, 2 * b, c]))
        }
        _ => {
            let (own, zero) = (net.parameter(&x.1.clone(), 0.7).0, net.floats(&[], &[0.0]));
            let condition = net.op("Greater", &[&own, &zero]);
            Some((net.op("Where", &[&condition, &x.0, &own]), x.1))
        }
    }
}

/// A value `[batch, length, 4]`.
fn tokens(net: &mut Drawing, x: Value) -> Value {
    let x = net.of_rank(x, 3);
    let w = net.parameter(&[x.1[2], 4], 0.8).0;
    (net.op("MatMul", &[&x.0, &w]), vec![x.1[0], x.1[1], 4])
}

fn attention(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (batch, length) = (x.1[0], x.1[1]);
    let shared = net.flag();
    let width = if shared { 2 } else { 4 };
    let (k, v) = (net.parameter(&[batch, 3, width], 0.8).0, net.parameter(&[batch, 3, width], 0.8).0);
    let mut node = build::node("Attention", &[&x.0, &k, &v], &[])
        .with(build::int("q_num_heads", 2))
        .with(build::int("kv_num_heads", if shared { 1 } else { 2 }))
        .with(build::int("is_causal", i64::from(net.flag())));
    if net.flag() {
        node = node.with(float("softcap", 0.7));
    }
    if net.flag() {
        let mask = net.parameter(&[length, 3], 0.5).0;
        node.input.push(mask);
    }
    Some((net.emit(node), x.1))
}

fn rotary(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (batch, length) = (x.1[0], x.1[1]);
    let (cos, sin) = (net.parameter(&[batch, length, 1], 0.9).0, net.parameter(&[batch, length, 1], 0.9).0);
    let node = build::node("RotaryEmbedding", &[&x.0, &cos, &sin], &[])
        .with(build::int("num_heads", 2))
        .with(build::int("interleaved", i64::from(net.flag())));
    Some((net.emit(node), x.1))
}

fn multi_head_attention(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (k, v) = (net.parameter(&[x.1[0], 3, 4], 0.8).0, net.parameter(&[x.1[0], 3, 4], 0.8).0);
    let bias = net.parameter(&[12], 0.4).0;
    let node =
        build::node("MultiHeadAttention", &[&x.0, &k, &v, &bias], &[]).with(build::int("num_heads", 2));
    Some((net.emit(of_microsoft(node)), x.1))
}

fn packed_attention(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (w, bias) = (net.parameter(&[4, 12], 0.6).0, net.parameter(&[12], 0.4).0);
    let node = build::node("Attention", &[&x.0, &w, &bias], &[])
        .with(build::int("num_heads", 2))
        .with(build::int("unidirectional", i64::from(net.flag())));
    Some((net.emit(of_microsoft(node)), x.1))
}

fn group_query_attention(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (batch, length) = (x.1[0], x.1[1]);
    let (k, v) = (net.parameter(&[batch, length, 2], 0.8).0, net.parameter(&[batch, length, 2], 0.8).0);
    let last: Vec<i32> = (0..batch).map(|_| length as i32 - 1).collect();
    let (last, total) = (net.int32s(&[batch], &last), net.int32s(&[], &[length as i32]));
    let mut node = build::node("GroupQueryAttention", &[&x.0, &k, &v, "", "", &last, &total], &[])
        .with(build::int("num_heads", 2))
        .with(build::int("kv_num_heads", 1));
    let (y, key, value) = (net.name(), net.name(), net.name());
    node.output = vec![y.clone(), key, value];
    net.push(of_microsoft(node));
    Some((y, x.1))
}

fn fused(net: &mut Drawing, (x, shape): Value) -> Option<Value> {
    let width = *shape.last()?;
    let function = net.pick(&["Gelu", "FastGelu", "QuickGelu", "BiasGelu"]);
    let node = match function {
        "FastGelu" | "BiasGelu" => {
            let bias = net.parameter(&[width], 0.5).0;
            build::node(function, &[&x, &bias], &[])
        }
        _ => build::node(function, &[&x], &[]),
    };
    Some((net.emit(of_microsoft(node)), shape))
}

fn skip_normalization(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = tokens(net, x);
    let (skip, gain) = (net.parameter(&x.1.clone(), 0.7).0, net.between(&[4], 0.5, 1.5).0);
    let node = match net.flag() {
        true => {
            let beta = net.parameter(&[4], 0.4).0;
            build::node("SkipLayerNormalization", &[&x.0, &skip, &gain, &beta], &[])
        }
        false => build::node("SkipSimplifiedLayerNormalization", &[&x.0, &skip, &gain], &[]),
    };
    Some((net.emit(of_microsoft(node)), x.1))
}

fn fused_matmul(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let w = net.parameter(&[3, x.1[0]], 0.7).0;
    let node = build::node("FusedMatMul", &[&x.0, &w], &[])
        .with(build::int("transA", 1))
        .with(build::int("transB", 1))
        .with(float("alpha", 0.5));
    Some((net.emit(of_microsoft(node)), vec![x.1[1], 3]))
}

fn loss(net: &mut Drawing, x: Value) -> Option<Value> {
    let x = net.of_rank(x, 2);
    let (n, classes) = (x.1[0], x.1[1]);
    let labels: Vec<i64> = (0..n).map(|_| net.rng.i64(0..classes as i64)).collect();
    let labels = net.ints(&[n], &labels);
    let weights = net.between(&[classes], 0.5, 1.5).0;
    let reduction = net.pick(&["mean", "sum", "none"]);
    let shape = if reduction == "none" { vec![n] } else { vec![] };
    let name = match net.flag() {
        true => net.emit(
            build::node("SoftmaxCrossEntropyLoss", &[&x.0, &labels, &weights], &[])
                .with(text("reduction", reduction)),
        ),
        false => {
            let scores = net.emit(build::node("LogSoftmax", &[&x.0], &[]).with(build::int("axis", 1)));
            let node = build::node("NegativeLogLikelihoodLoss", &[&scores, &labels, &weights], &[]);
            net.emit(node.with(text("reduction", reduction)))
        }
    };
    Some(net.reshaped((name, shape), &[if reduction == "none" { n } else { 1 }]))
}
