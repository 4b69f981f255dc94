//! Control flow in whole models, by the reference evaluator.

mod item;
mod ranks;

use onnxc_proto::build::{self, int, ints, subgraph};
use onnxc_proto::{GraphProto, NodeProto};

use onnxc_import::testing::*;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, Op, Tensor};
use onnxc_ir::interp;
use onnxc_loops as loops;
use onnxc_loops::program::{self, Kernels};
use onnxc_machine::target::Target;

pub(crate) fn vector(values: &[i64]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}

/// Shape and elements of each result.
pub(crate) fn run(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<(Vec<usize>, Vec<i64>)>> {
    let results = interp::run(graph, inputs)?;
    // What is rewritten computes the same.
    let mut optimised = graph.clone();
    onnxc_passes::run_all(&mut optimised, &onnxc_passes::Options::default(), &mut |_, _, _| {})?;
    let program = onnxc_schedule::schedule(&optimised, onnxc_schedule::Options::default())?;
    assert_eq!(interp::run(&optimised, inputs)?, results);
    // So do its loop nests.
    let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), None)?;
    let kernels = Kernels::new(&optimised, &program, &|graph, program, group| {
        let mut kernel = loops::lower::lower(graph, &program.groups[group], "kernel", &target.core)?;
        loops::math::expand(&mut kernel);
        Ok(kernel)
    })?;
    assert_eq!(program::run(&optimised, &program, &kernels, inputs, &loops::interp::run)?, results);
    let integers = |tensor: Tensor| {
        let wide = interp::cast(&tensor, DType::I64, true);
        (tensor.shape, wide.to_i64s().unwrap())
    };
    Ok(results.into_iter().map(integers).collect())
}

pub(crate) fn count(graph: &Graph, name: &str) -> usize {
    graph.order.iter().filter(|&&node| graph.nodes[node].op.name() == name).count()
}

pub(crate) fn choose(then: GraphProto, otherwise: GraphProto) -> NodeProto {
    node("y = If(c)").with(subgraph("then_branch", then)).with(subgraph("else_branch", otherwise))
}

/// The bodies know the facts of a tensor that they take from around them: a known shape is not read from data.
#[test]
fn bodies_know_the_shapes_around_them() {
    let then = graph(&[], nodes(&["t = Expand(k, s)"]), &["t"]);
    let otherwise = graph(&[], nodes(&["e = Neg(x)"]), &["e"]);
    let mut all = nodes(&["s = Shape(x)"]);
    all.push(choose(then, otherwise));
    let whole = graph(&["c: bool[]", "x: i64[n, 2]"], all, &["y"]);
    let model = imported(with_constants(whole, &[("k", &[7], true)]));
    assert_eq!(model.output_ty(0).to_string(), "i64[s0, 2]");
    let bodies = model.order.iter().flat_map(|&node| model.nodes[node].op.bodies());
    assert!(bodies.chain([&model]).all(|graph| graph.data.is_empty()), "{model}");
    let operands = |c: bool| [Tensor::scalar(c), Tensor::from_slice(&[1, 2], &[4i64, 5])];
    assert_eq!(run(&model, &operands(true)).unwrap(), [(vec![1, 2], vec![7, 7])]);
    assert_eq!(run(&model, &operands(false)).unwrap(), [(vec![1, 2], vec![-4, -5])]);
}

#[test]
fn sizes_of_choices_are_known_before_or_after() {
    // The sum of two vectors and one vector of another size: both are known before.
    let then = graph(&[], nodes(&["t = Add(a, a)"]), &["t"]);
    let otherwise = graph(&[], nodes(&["e = Neg(b)"]), &["e"]);
    let inputs = ["c: bool[]", "a: i64[n]", "b: i64[m]"];
    let early = imported(graph(&inputs, vec![choose(then, otherwise)], &["y: i64[k]"]));
    let operands = |c: bool| [Tensor::scalar(c), vector(&[1, 0, 3]), vector(&[4, 5])];
    assert_eq!(run(&early, &operands(true)).unwrap(), [(vec![3], vec![2, 0, 6])]);
    assert_eq!(run(&early, &operands(false)).unwrap(), [(vec![2], vec![-4, -5])]);
    let outputs = |graph: &Graph| {
        let node =
            graph.order.iter().map(|&node| &graph.nodes[node]).find(|node| node.op.is_control()).unwrap();
        node.outputs.len()
    };
    assert_eq!(outputs(&early), 1);
    // Places of what is not zero: one more result has their number.
    let then = graph(&[], nodes(&["w = NonZero(a)", "t = Squeeze(w, z)"]), &["t"]);
    let then = with_constants(then, &[("z", &[0], false)]);
    let otherwise = graph(&[], nodes(&["e = Identity(b)"]), &["e"]);
    let late = imported(graph(&inputs, vec![choose(then, otherwise)], &["y: i64[k]"]));
    assert_eq!(run(&late, &operands(true)).unwrap(), [(vec![2], vec![0, 2])]);
    assert_eq!(run(&late, &operands(false)).unwrap(), [(vec![2], vec![4, 5])]);
    assert_eq!(outputs(&late), 2);
}

#[test]
fn a_known_condition_leaves_one_body() {
    let branches = || {
        let then = graph(&[], nodes(&["t = Neg(a)"]), &["t"]);
        choose(then, graph(&[], nodes(&["e = Abs(a)"]), &["e"]))
    };
    let before = nodes(&["c = Equal(one, one)"]);
    let whole = graph(&["a: i64[n]"], [before, vec![branches()]].concat(), &["y: i64[n]"]);
    let known = imported(with_constants(whole, &[("one", &[1], true)]));
    assert_eq!((count(&known, "if"), count(&known, "neg"), count(&known, "abs")), (0, 1, 0));
    let other = choose(graph(&[], vec![], &["a"]), graph(&[], nodes(&["e = Cast(a)"]), &["a", "a"]));
    refused(graph(&["c: bool[]", "a: i64[n]"], vec![other], &["y: i64[n]"]), "2 outputs");
    let with_input = choose(graph(&[], vec![], &["a"]), graph(&["e: i64[n]"], vec![], &["e"]));
    refused(graph(&["c: bool[]", "a: i64[n]"], vec![with_input], &["y: i64[n]"]), "a branch with 1 inputs");
    let kinds = choose(graph(&[], vec![], &["a"]), graph(&[], nodes(&["e = SequenceConstruct(a)"]), &["e"]));
    refused(graph(&["c: bool[]", "a: i64[n]"], vec![kinds], &["y"]), "is due");
}

/// Without a declared rank a result has the one of dims that vary.
#[test]
fn symbolic_dims_stay_where_only_one_rank_is_possible() {
    let mut whole = graph(&["x: i64[n, 1, m]"], nodes(&["s = Squeeze(x)", "y = Concat(s, s)"]), &["y"]);
    whole.node[1] = whole.node[1].clone().with(int("axis", 0));
    let model = imported(whole);
    assert_eq!(model.output_ty(0).rank(), 2);
    let x = Tensor::from_slice(&[2, 1, 2], &[1i64, 2, 3, 4]);
    assert_eq!(run(&model, &[x]).unwrap(), [(vec![4, 2], vec![1, 2, 3, 4, 1, 2, 3, 4])]);
    let one = Tensor::from_slice(&[1, 1, 2], &[1i64, 2]);
    assert!(run(&model, &[one]).is_err());
}

/// An axis that data size, and that has one element at most, has one.
#[test]
fn an_axis_of_at_most_one_element_is_squeezed() {
    let all = nodes(&["v i = TopK(x, k)", "y = Squeeze(v)", "w j = TopK(v, k)"]);
    let model = imported(graph(&["x: i64[1]", "k: i64[1]"], all, &["y", "w"]));
    assert_eq!(model.output_ty(0).rank(), 0);
    let inputs = |k: i64| [Tensor::from_slice(&[1], &[7i64]), Tensor::from_slice(&[1], &[k])];
    assert_eq!(run(&model, &inputs(1)).unwrap(), [(vec![], vec![7]), (vec![1], vec![7])]);
    assert!(run(&model, &inputs(0)).is_err());
}

#[test]
fn branches_of_unlike_ranks_go_on_apart() {
    // An axis of size 1 is removed; the sum over what is left is of one rank again.
    let then = with_constants(graph(&[], nodes(&["t = Squeeze(a, zero)"]), &["t"]), &[("zero", &[0], false)]);
    let body = choose(then, graph(&[], nodes(&["e = Identity(a)"]), &["e"]));
    let after = node("z = ReduceSum(y)").with(int("keepdims", 0));
    let model = imported(graph(&["c: bool[]", "a: i64[n, 2]"], vec![body.clone(), after], &["z: i64[]"]));
    let operands = |c: bool, rows: usize| {
        [Tensor::scalar(c), Tensor::from_slice(&[rows, 2], &(0..2 * rows as i64).collect::<Vec<_>>())]
    };
    assert_eq!(run(&model, &operands(true, 1)).unwrap(), [(vec![], vec![1])]);
    assert_eq!(run(&model, &operands(false, 3)).unwrap(), [(vec![], vec![15])]);
    // What follows takes one of the ranks only: the condition must be that one's.
    let after = node("z = Add(y, matrix)");
    let last = node("w = Transpose(z)").with(ints("perm", &[1, 0]));
    let inputs = ["c: bool[]", "a: i64[n, 2]", "matrix: i64[2]"];
    let model = imported(graph(&inputs, vec![body, after, last], &["w: i64[2, n]"]));
    let operands = |c: bool| {
        let [c, a] = operands(c, 1);
        [c, a, vector(&[10, 20])]
    };
    assert_eq!(run(&model, &operands(false)).unwrap(), [(vec![2, 1], vec![10, 21])]);
    let message = run(&model, &operands(true)).unwrap_err().message;
    assert!(message.contains("cond is true, and what follows takes the rank of `else_branch`"), "{message}");
}

#[test]
fn axes_that_may_be_one_go_on_apart() {
    // Both ranks have a meaning, and the sum is of one rank again.
    let after = node("z = ReduceSum(y)").with(int("keepdims", 0));
    let squeezed = |rest: Vec<NodeProto>| [nodes(&["y = Squeeze(a)"]), rest].concat();
    let inputs = ["a: i64[n, 1, 3]"];
    let rows = |count: usize| Tensor::from_slice(&[count, 1, 3], &(0..3 * count as i64).collect::<Vec<_>>());
    let model = imported(graph(&inputs, squeezed(vec![after]), &["z: i64[]"]));
    assert_eq!(run(&model, &[rows(1)]).unwrap(), [(vec![], vec![3])]);
    assert_eq!(run(&model, &[rows(2)]).unwrap(), [(vec![], vec![15])]);
    // What follows takes one rank only, and a second such axis is the same dim.
    let rest = nodes(&["u = Squeeze(a)", "v = Concat(y, u)", "z = Neg(v)"]);
    let mut rest: Vec<NodeProto> = rest;
    rest[1] = rest[1].clone().with(int("axis", 1));
    let model = imported(graph(&inputs, squeezed(rest), &["z: i64[n, 6]"]));
    assert_eq!(
        run(&model, &[rows(2)]).unwrap(),
        [(vec![2, 6], vec![0, -1, -2, 0, -1, -2, -3, -4, -5, -3, -4, -5])]
    );
    let message = run(&model, &[rows(1)]).unwrap_err().message;
    assert!(message.contains("`Squeeze_0`") && message.contains("a symbolic axis has size 1"), "{message}");
    // The declared rank of a value with the shape of the result gives it as well.
    let model = imported(graph(&inputs, squeezed(nodes(&["z = Neg(y)"])), &["z: i64[m]"]));
    assert_eq!(run(&model, &[rows(1)]).unwrap(), [(vec![3], vec![0, -1, -2])]);
    assert!(run(&model, &[rows(2)]).is_err());
    // Neither rank is the one that follows.
    let last = node("z = Transpose(y)").with(ints("perm", &[0, 2, 1]));
    refused(graph(&inputs, squeezed(vec![last]), &["z: i64[k]"]), "may be 1");
    // Each of many dims doubles what follows.
    let many = ["a: i64[p, q, r, s, t, u]"];
    let last = node("z = ReduceSum(y)").with(int("keepdims", 0));
    refused(graph(&many, squeezed(vec![last]), &["z: i64[]"]), "may be 1");
}

pub(crate) fn repeat(inputs: &str, outputs: &str, body: GraphProto) -> NodeProto {
    node(&format!("{outputs} = Loop({inputs})")).with(subgraph("body", body))
}

/// `next = v + i`, gathered; goes on while `next < 10`.
fn adding(more: &str) -> GraphProto {
    let steps =
        ["next = Add(v, i)", "less = Less(next, ten)", "same = Identity(next)", "go = Identity(keep)"];
    let body = graph(&["i: i64[]", "keep: bool[]", "v: i64[]"], nodes(&steps), &[more, "next", "same"]);
    with_constants(body, &[("ten", &[10], true)])
}

#[test]
fn loops_end_by_count_or_condition() {
    let inputs = ["m: i64[]", "c: bool[]", "v0: i64[]"];
    let model = |wires: &str, more: &str| {
        let outputs = ["last: i64[]", "all: i64[k]"];
        imported(graph(&inputs, vec![repeat(wires, "last all", adding(more))], &outputs))
    };
    let operands = |m: i64, c: bool| [Tensor::scalar(m), Tensor::scalar(c), Tensor::scalar(0i64)];
    let sums = |count: usize| -> Vec<i64> { (0..count as i64).map(|i| i * (i + 1) / 2).collect() };
    let result =
        |count: usize| [(vec![], vec![*sums(count).last().unwrap_or(&0)]), (vec![count], sums(count))];
    let both = model("m, c, v0", "less");
    for (m, c, turns) in [(3, true, 3), (100, true, 5), (i64::MAX, true, 5), (3, false, 0), (-2, true, 0)] {
        assert_eq!(run(&both, &operands(m, c)).unwrap(), result(turns), "{m} {c}");
    }
    let condition_only = model(", c, v0", "less");
    assert_eq!(run(&condition_only, &operands(1, true)).unwrap(), result(5));
    // Without a condition the specification has the body's answer ignored.
    let count_only = model("m, , v0", "less");
    assert_eq!(run(&count_only, &operands(7, false)).unwrap(), result(7));
    // A condition that is handed on says whether there are iterations, and then the count how many.
    let handed_on = model("m, c, v0", "go");
    assert_eq!(run(&handed_on, &operands(7, false)).unwrap(), result(0));
    assert_eq!(run(&handed_on, &operands(7, true)).unwrap(), result(7));
    let conditional = |graph: &Graph| {
        graph.nodes.values().any(|node| matches!(node.op, Op::Scan { conditional: true, .. }))
    };
    assert_eq!(
        [&both, &condition_only, &count_only, &handed_on].map(conditional),
        [true, true, false, false]
    );
}

/// A size that data inside a body decide is nothing that the graph around knows, least of all when the loop is gone.
#[test]
fn what_a_body_assumes_of_its_own_sizes_stays_inside() {
    let body = graph(
        &["i: i64[]", "keep: bool[]", "v: i64[4]"],
        vec![
            node("end = ReduceMax(v)"),
            node("part = Slice(v, zero, end)"),
            node("sum = ReduceSum(part)"),
            node("next = Add(v, sum)"),
            node("go = Identity(keep)"),
        ],
        &["go", "next"],
    );
    let model = |outputs: &[&str]| {
        let body = with_constants(body.clone(), &[("zero", &[0], false)]);
        let nodes = vec![repeat("m, , v0", "last", body), node("y = Neg(v0)")];
        imported(graph(&["m: i64[]", "v0: i64[4]"], nodes, outputs))
    };
    for outputs in [&["y: i64[4]"][..], &["y: i64[4]", "last: i64[4]"]] {
        let graph = model(outputs);
        assert_eq!(graph.assumptions.iter().count(), 0, "{outputs:?}");
    }
    let read = model(&["last: i64[4]"]);
    let assumed = |graph: &Graph| {
        graph.nodes.values().flat_map(|node| node.op.bodies()).any(|body| body.assumptions.iter().count() > 0)
    };
    assert!(assumed(&read), "the slice must lie inside");
    let operands = |v: [i64; 4]| [Tensor::scalar(1i64), Tensor::from_slice(&[4], &v)];
    assert_eq!(run(&read, &operands([1, 2, 0, 0])).unwrap(), [(vec![4], vec![4, 5, 3, 3])]);
}

#[test]
fn states_change_their_sizes_and_swap() {
    // a, b = b, a ++ b
    let body = graph(
        &["i", "keep", "a", "b"],
        vec![
            node("joined = Concat(a, b)").with(int("axis", 0)),
            node("go = Identity(keep)"),
            node("next = Identity(b)"),
        ],
        &["go", "next", "joined"],
    );
    let outer = graph(
        &["m: i64[]", "a0: i64[p]", "b0: i64[q]"],
        vec![repeat("m, , a0, b0", "x y", body)],
        &["x: i64[j]", "y: i64[k]"],
    );
    let model = imported(outer);
    let operands = |m: i64| [Tensor::scalar(m), vector(&[1]), vector(&[2, 3])];
    assert_eq!(run(&model, &operands(0)).unwrap(), [(vec![1], vec![1]), (vec![2], vec![2, 3])]);
    assert_eq!(run(&model, &operands(1)).unwrap(), [(vec![2], vec![2, 3]), (vec![3], vec![1, 2, 3])]);
    let third = [(vec![5], vec![2, 3, 1, 2, 3]), (vec![8], vec![1, 2, 3, 2, 3, 1, 2, 3])];
    assert_eq!(run(&model, &operands(3)).unwrap(), third);
    let ranks =
        graph(&["i", "keep", "a"], nodes(&["go = Identity(keep)", "b = Unsqueeze(a, i1)"]), &["go", "b"]);
    let ranks = with_constants(ranks, &[("i1", &[0], false)]);
    refused(
        graph(&["m: i64[]", "a0: i64[p]"], vec![repeat("m, , a0", "x", ranks)], &["x"]),
        "loop-carried value 0: the body takes `a` as i64[s0] and gives `b` for it, i64[1, s0]; its rank must stay the same",
    );
    let wide = graph(&["i", "keep", "a"], nodes(&["go = Identity(keep)", "b = Equal(a, a)"]), &["go", "b"]);
    refused(
        graph(&["m: i64[]", "a0: i64[p]"], vec![repeat("m, , a0", "x", wide)], &["x"]),
        "the body takes `a` as i64[s0] and gives `b` for it, bool[s0]; its element type must stay the same",
    );
    let step = graph(&["s", "e"], nodes(&["t = Add(s, e)"]), &["t"]);
    let scan = node("y = Scan(x, m)").with(subgraph("body", step)).with(int("num_scan_inputs", 1));
    refused(
        graph(&["x: i64[]", "m: i64[3, 2]"], vec![scan], &["y"]),
        "loop-carried value 0: the body takes `s` as i64[] and gives `t` for it, i64[2]",
    );
    // Sequences of sequences.
    for text in ["t = SequenceConstruct(s, s)", "t = SequenceInsert(s, s)"] {
        refused(graph(&["s: seq(i64[k])"], nodes(&[text]), &["t"]), "is a sequence; it must be a tensor");
    }
}

#[test]
fn bodies_inside_bodies_see_everything_around() {
    // v + (i is 1 ? outer : i) in each of three turns
    let then = graph(&[], nodes(&["t = Identity(outer)"]), &["t"]);
    let inner = choose(then, graph(&[], nodes(&["e = Identity(i)"]), &["e"]));
    let mut steps = nodes(&["c = Equal(i, one)"]);
    steps.push(inner);
    steps.extend(nodes(&["next = Add(v, y)", "go = Identity(keep)"]));
    let body = graph(&["i: i64[]", "keep: bool[]", "v: i64[]"], steps, &["go", "next"]);
    let body = with_constants(body, &[("one", &[1], true)]);
    let outer =
        graph(&["v0: i64[]", "outer: i64[]"], vec![repeat("three, , v0", "last", body)], &["last: i64[]"]);
    let model = imported(with_constants(outer, &[("three", &[3], true)]));
    let results = run(&model, &[Tensor::scalar(10i64), Tensor::scalar(100i64)]).unwrap();
    assert_eq!(results, [(vec![], vec![112])]);
}

#[test]
fn a_value_from_around_decides_a_size_inside() {
    // `r` is read for the size alone.
    let then = graph(&[], nodes(&["t = Tile(x, r)"]), &["t"]);
    let otherwise = graph(&[], nodes(&["s = Tile(x, r)", "t = Neg(s)"]), &["t"]);
    let inputs = ["c: bool[]", "x: i64[2]", "r: i64[1]"];
    let choice = imported(graph(&inputs, vec![choose(then, otherwise)], &["y: i64[m]"]));
    let values = |taken: bool| [Tensor::scalar(taken), vector(&[1, 2]), vector(&[2])];
    assert_eq!(run(&choice, &values(true)).unwrap(), [(vec![4], vec![1, 2, 1, 2])]);
    assert_eq!(run(&choice, &values(false)).unwrap(), [(vec![4], vec![-1, -2, -1, -2])]);
}

#[test]
fn scans_by_axis_and_direction() {
    let body = || graph(&["s: i64[]", "x: i64[]"], nodes(&["t = Add(s, x)", "p = Identity(t)"]), &["t", "p"]);
    let scan = |axes: &[i64], reverse: &[i64], out: &[i64]| {
        let scan =
            node("last all = Scan(s0, x0)").with(subgraph("body", body())).with(int("num_scan_inputs", 1));
        let scan = scan.with(ints("scan_input_axes", axes));
        let scan = scan.with(ints("scan_input_directions", reverse));
        let scan = scan.with(ints("scan_output_directions", out));
        imported(graph(&["s0: i64[]", "x0: i64[n]"], vec![scan], &["last: i64[]", "all: i64[n]"]))
    };
    let operands = [Tensor::scalar(0i64), vector(&[1, 2, 4])];
    assert_eq!(run(&scan(&[0], &[0], &[0]), &operands).unwrap()[1].1, [1, 3, 7]);
    assert_eq!(run(&scan(&[-1], &[1], &[0]), &operands).unwrap()[1].1, [4, 6, 7]);
    assert_eq!(run(&scan(&[0], &[1], &[1]), &operands).unwrap()[1].1, [7, 6, 4]);
    // Parts whose number only the body determines, gathered from the back.
    let found = graph(&["x: i64[2]"], nodes(&["w = NonZero(x)"]), &["w"]);
    let scan = node("all = Scan(x0)").with(subgraph("body", found)).with(int("num_scan_inputs", 1));
    let scan = scan.with(ints("scan_output_directions", &[1]));
    let model = imported(graph(&["x0: i64[n, 2]"], vec![scan], &["all: i64[n, 1, k]"]));
    let rows = |values: &[i64]| [Tensor::from_slice(&[values.len() / 2, 2], values)];
    assert_eq!(run(&model, &rows(&[5, 0, 0, 7])).unwrap(), [(vec![2, 1, 1], vec![1, 0])]);
    assert!(run(&model, &rows(&[5, 0, 6, 7])).is_err(), "parts of two sizes");
}

/// Slices without elements count like the others.
#[test]
fn what_is_scanned_together_is_equally_long() {
    let body = graph(
        &["s: i64[]", "x: i64[]", "e: i64[q]"],
        nodes(&["t = Add(s, x)", "p = Identity(e)"]),
        &["t", "p"],
    );
    let scan =
        node("last all = Scan(s0, x0, e0)").with(subgraph("body", body)).with(int("num_scan_inputs", 2));
    let inputs = ["s0: i64[]", "x0: i64[n]", "e0: i64[m, q]"];
    let model = imported(graph(&inputs, vec![scan], &["last: i64[]", "all: i64[k, q]"]));
    let operands =
        |slices: usize| [Tensor::scalar(1i64), vector(&[2, 3]), Tensor::from_slice::<i64>(&[slices, 0], &[])];
    assert_eq!(run(&model, &operands(2)).unwrap(), [(vec![], vec![6]), (vec![2, 0], vec![])]);
    assert!(run(&model, &operands(3)).is_err());
}

#[test]
fn sequences_of_a_batch_have_lengths_of_their_own() {
    let body = graph(&["s: i64[]", "x: i64[]"], nodes(&["t = Add(s, x)", "p = Identity(t)"]), &["t", "p"]);
    let scan =
        node("last all = Scan(lens, s0, x0)").with(subgraph("body", body)).with(int("num_scan_inputs", 1));
    let scan = scan.with(ints("directions", &[1]));
    let inputs = ["lens: i64[b]", "s0: i64[b]", "x0: i64[b, n]"];
    let model = imported_at(8, graph(&inputs, vec![scan], &["last: i64[b]", "all: i64[b, n]"])).unwrap();
    let operands =
        |lens: &[i64]| [vector(lens), vector(&[0, 100]), Tensor::from_slice(&[2, 3], &[1i64, 2, 4, 1, 2, 4])];
    let expected = [(vec![2], vec![7, 103]), (vec![2, 3], vec![4, 6, 7, 102, 103, 0])];
    assert_eq!(run(&model, &operands(&[3, 2])).unwrap(), expected);
    assert!(run(&model, &operands(&[3, 4])).is_err(), "longer than the sequence");
}

#[test]
fn more_outputs_than_the_body_gives_are_refused() {
    let body = || graph(&["s: i64[]", "x: i64[]"], nodes(&["t = Add(s, x)", "p = Identity(t)"]), &["t", "p"]);
    let scan = node("last all more = Scan(s0, x0)");
    let scan = scan.with(subgraph("body", body())).with(int("num_scan_inputs", 1));
    let model = graph(&["s0: i64[]", "x0: i64[n]"], vec![scan], &["last: i64[]"]);
    refused(model, "3 outputs are named; the body gives 2: states 1, scan outputs 1");
    let scan = node("last all more = Scan(, s0, x0)");
    let scan = scan.with(subgraph("body", body())).with(int("num_scan_inputs", 1));
    let model = graph(&["s0: i64[b]", "x0: i64[b, n]"], vec![scan], &["last: i64[b]"]);
    let errors = imported_at(8, model).unwrap_err();
    assert!(errors[0].to_string().contains("3 outputs are named; the body gives 2"), "{errors:?}");
    let body = graph(&["i: i64[]", "c: bool[]", "s: i64[]"], nodes(&["t = Add(s, i)"]), &["c", "t"]);
    let repeat = node("last more = Loop(n, , s0)").with(subgraph("body", body));
    let model = graph(&["n: i64[]", "s0: i64[]"], vec![repeat], &["last: i64[]"]);
    refused(model, "2 outputs are named; the body gives 1: states 1, scan outputs 0");
}

/// The named results of a node are those that it has where every output is named.
#[test]
fn results_without_a_name_keep_their_places() {
    let branch =
        |p: &str, q: &str| graph(&[], nodes(&[&format!("p = {p}(x)"), &format!("q = {q}(x)")]), &["p", "q"]);
    let choice = node("OUT = If(c)").with(subgraph("then_branch", branch("Neg", "Abs")));
    let choice = choice.with(subgraph("else_branch", branch("Abs", "Neg")));
    let step = graph(
        &["i", "k", "s", "t"],
        nodes(&["k2 = Identity(k)", "s2 = Add(s, x)", "t2 = Neg(t)", "u = Neg(s)", "w = Abs(s)"]),
        &["k2", "s2", "t2", "u", "w"],
    );
    let turn = graph(
        &["s", "t", "e"],
        nodes(&["s2 = Add(s, e)", "t2 = Neg(t)", "u = Neg(s)", "w = Abs(e)"]),
        &["s2", "t2", "u", "w"],
    );
    let every = [
        (choice, 2),
        (node("OUT = Loop(three, c, x, x)").with(subgraph("body", step)), 4),
        (node("OUT = Scan(x, x, m)").with(subgraph("body", turn)).with(int("num_scan_inputs", 1)), 4),
    ];
    let inputs =
        [Tensor::scalar(true), vector(&[3, -5]), Tensor::from_slice(&[3, 2], &[1i64, -2, 3, -4, 5, -6])];
    for (own, count) in every {
        let results = |named: &dyn Fn(usize) -> bool| {
            let names: Vec<String> = (0..count).map(|at| format!("o{at}")).collect();
            let outputs = (0..count).filter(|&at| named(at)).map(|at| names[at].as_str()).collect::<Vec<_>>();
            let mut own = own.clone();
            own.output =
                (0..count).map(|at| if named(at) { names[at].clone() } else { String::new() }).collect();
            let whole = graph(&["c: bool[]", "x: i64[2]", "m: i64[3, 2]"], vec![own], &outputs);
            run(&imported(with_constants(whole, &[("three", &[3], true)])), &inputs).unwrap()
        };
        let all = results(&|_| true);
        for mask in 1..(1 << count) - 1 {
            let named = |at: usize| mask >> at & 1 == 1;
            let kept: Vec<_> = (0..count).filter(|&at| named(at)).map(|at| all[at].clone()).collect();
            assert_eq!(results(&named), kept, "{} {mask:b}", own.op_type());
        }
    }
}
