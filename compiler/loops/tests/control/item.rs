//! Sequences in whole models, by the reference evaluator.

use onnxc_proto::build::{int, subgraph};
use onnxc_proto::{AttributeProto, GraphProto, NodeProto};

use crate::*;
use onnxc_ir::graph::{Graph, Tensor};

mod kinds;

type Results = Vec<(Vec<usize>, Vec<i64>)>;

fn matrix(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

/// The columns of a sequence of vectors.
fn vectors(elements: &[&[i64]]) -> [Tensor; 2] {
    let lengths: Vec<i64> = elements.iter().map(|element| element.len() as i64).collect();
    [matrix(&[elements.len(), 1], &lengths), vector(&elements.concat())]
}

fn columns(elements: &[&[i64]]) -> Results {
    vectors(elements).iter().map(|tensor| (tensor.shape.clone(), tensor.to_i64s().unwrap())).collect()
}

fn scalar(value: i64) -> Results {
    vec![(vec![], vec![value])]
}

fn model(inputs: &[&str], texts: &[&str], outputs: &[&str], constants: &[(&str, &[i64], bool)]) -> Graph {
    imported(with_constants(graph(inputs, nodes(texts), outputs), constants))
}

fn ran(graph: &Graph, inputs: &[Tensor]) -> Results {
    run(graph, inputs).unwrap()
}

fn joined(inputs: Vec<Vec<Tensor>>) -> Vec<Tensor> {
    inputs.concat()
}

const ONE: &[(&str, &[i64], bool)] = &[("one", &[1], true), ("minus", &[-1], true), ("five", &[5], true)];

#[test]
fn lists_cost_nothing() {
    let texts = ["s = SplitToSequence(x, parts)", "y = SequenceAt(s, one)"];
    let constants = [ONE, &[("parts", &[2, 3], false)]].concat();
    let split = model(&["x: i64[5, 2]"], &texts, &["y: i64[3, 2]"], &constants);
    assert_eq!(split.output_ty(0).to_string(), "i64[3, 2]");
    assert_eq!(split.order.len(), 1, "{split}");
    let x = matrix(&[5, 2], &(0..10).collect::<Vec<_>>());
    assert_eq!(ran(&split, &[x]), [(vec![3, 2], vec![4, 5, 6, 7, 8, 9])]);
    // An element that is put in and taken out is the element.
    let texts = [
        "e = SequenceEmpty()",
        "c = Cast(x)",
        "s = SequenceInsert(e, c)",
        "t = SequenceInsert(s, d, minus)",
        "u = SequenceErase(t)",
        "n = SequenceLength(u)",
        "y = SequenceAt(u, minus)",
    ];
    let mut all = nodes(&texts);
    all[1] = all[1].clone().with(int("to", 1));
    let whole = graph(&["x: i64[k]", "d: f32[3]"], all, &["y: f32[3]", "n: i64[]"]);
    let model = imported(with_constants(whole, ONE));
    assert!(model.order.is_empty(), "{model}");
}

#[test]
fn elements_by_a_position_of_the_run() {
    let texts = ["y = SequenceAt(s, p)", "n = SequenceLength(s)", "z = Neg(y)"];
    let at = model(&["s: seq(i64[k])", "p: i64[]"], &texts, &["z: i64[m]", "n: i64[]"], &[]);
    let of = |p: i64| joined(vec![vectors(&[&[1], &[2, 3, 4], &[]]).to_vec(), vec![Tensor::scalar(p)]]);
    let expected = |values: &[i64]| -> Results {
        [vec![(vec![values.len()], values.iter().map(|value| -value).collect())], scalar(3)].concat()
    };
    for (p, values) in [(0, &[1][..]), (1, &[2, 3, 4]), (2, &[]), (-1, &[]), (-2, &[2, 3, 4]), (-3, &[1])] {
        assert_eq!(ran(&at, &of(p)), expected(values), "{p}");
    }
    for p in [3, -4, i64::MAX, i64::MIN] {
        let message = run(&at, &of(p)).unwrap_err().message;
        assert!(message.contains("it must be between -3 and 2, of a sequence of 3 elements"), "{message}");
    }
    // Of a list too, whose elements have one shape here.
    let texts = ["s = SequenceConstruct(a, b)", "y = SequenceAt(s, p)"];
    let at = model(&["a: i64[2]", "b: i64[2]", "p: i64[]"], &texts, &["y: i64[2]"], &[]);
    assert_eq!(at.output_ty(0).to_string(), "i64[2]");
    let of = |p: i64| [vector(&[1, 2]), vector(&[3, 4]), Tensor::scalar(p)];
    assert_eq!(ran(&at, &of(-1)), [(vec![2], vec![3, 4])]);
    assert!(run(&at, &of(2)).is_err());
    let texts = ["s = SequenceConstruct(a, a)", "y = SequenceAt(s, five)"];
    refused(
        with_constants(graph(&["a: i64[2]"], nodes(&texts), &["y"]), ONE),
        "position `five` is 5; it must be between -2 and 1",
    );
}

#[test]
fn elements_are_put_in_and_taken_out() {
    let inputs = ["s: seq(i64[k])", "x: i64[m]", "p: i64[]"];
    let model_of = |texts: &[&str]| model(&inputs, texts, &["t: seq(i64[k])"], ONE);
    let of = |p: i64| {
        joined(vec![vectors(&[&[1], &[2, 3]]).to_vec(), vec![vector(&[7, 8, 9]), Tensor::scalar(p)]])
    };
    let insert = model_of(&["t = SequenceInsert(s, x, p)"]);
    for (p, expected) in [
        (0, columns(&[&[7, 8, 9], &[1], &[2, 3]])),
        (1, columns(&[&[1], &[7, 8, 9], &[2, 3]])),
        (2, columns(&[&[1], &[2, 3], &[7, 8, 9]])),
        (-1, columns(&[&[1], &[7, 8, 9], &[2, 3]])),
        (-2, columns(&[&[7, 8, 9], &[1], &[2, 3]])),
    ] {
        assert_eq!(ran(&insert, &of(p)), expected, "{p}");
    }
    assert!(run(&insert, &of(3)).is_err() && run(&insert, &of(-3)).is_err());
    let erase = model_of(&["t = SequenceErase(s, p)"]);
    for (p, left) in [(0, &[2, 3][..]), (1, &[1]), (-1, &[1]), (-2, &[2, 3])] {
        assert_eq!(ran(&erase, &of(p)), columns(&[left]), "{p}");
    }
    assert!(run(&erase, &of(2)).is_err() && run(&erase, &of(-3)).is_err());
    assert_eq!(ran(&model_of(&["t = SequenceErase(s)"]), &of(0)), columns(&[&[1]]));
    assert_eq!(ran(&model_of(&["t = SequenceInsert(s, x)"]), &of(0)), columns(&[&[1], &[2, 3], &[7, 8, 9]]));
    assert_eq!(
        ran(&model_of(&["t = SequenceInsert(s, x, one)"]), &of(0)),
        columns(&[&[1], &[7, 8, 9], &[2, 3]])
    );
    let twice = model_of(&["u = SequenceErase(s)", "t = SequenceErase(u)"]);
    assert_eq!(ran(&twice, &of(0)), [(vec![0, 1], vec![]), (vec![0], vec![])]);
    let message =
        run(&model_of(&["u = SequenceErase(s)", "v = SequenceErase(u)", "t = SequenceErase(v)"]), &of(0));
    assert!(message.unwrap_err().message.contains("the number of elements of the sequence is 0"));
    refused(
        graph(&["s: seq(f32[k])", "x: i64[m]"], nodes(&["t = SequenceInsert(s, x)"]), &["t"]),
        "a tensor of i64 for a sequence of f32",
    );
    refused(
        graph(&["s: seq(f32[k])"], nodes(&["t = Relu(s)"]), &["t"]),
        "input 0 (X) is a sequence; it must be a tensor",
    );
}

fn split(x: &str, sizes: &str, axis: i64, keep: i64) -> NodeProto {
    node(&format!("s = SplitToSequence({x}, {sizes})")).with(int("axis", axis)).with(int("keepdims", keep))
}

#[test]
fn tensors_are_split_and_joined() {
    let x = matrix(&[2, 5], &(0..10).collect::<Vec<_>>());
    let concat = |axis: i64| node("y = ConcatFromSequence(s)").with(int("axis", axis));
    for (shape, name) in [("x: i64[2, 5]", "known"), ("x: i64[a, b]", "symbolic")] {
        // Parts of one size, the last one smaller, whose size may be data.
        for (sizes, axis, wanted) in [
            (
                2i64,
                1,
                vec![(vec![3, 2], vec![2, 2, 2, 2, 2, 1]), (vec![10], vec![0, 1, 5, 6, 2, 3, 7, 8, 4, 9])],
            ),
            (2, 0, vec![(vec![1, 2], vec![2, 5]), (vec![10], (0..10).collect())]),
            (5, -1, vec![(vec![1, 2], vec![2, 5]), (vec![10], (0..10).collect())]),
            (7, 1, vec![(vec![1, 2], vec![2, 5]), (vec![10], (0..10).collect())]),
        ] {
            let known = graph(&[shape], vec![split("x", "c", axis, 1)], &["s: seq(i64[i, j])"]);
            let known = imported(with_constants(known, &[("c", &[sizes], true)]));
            assert_eq!(ran(&known, std::slice::from_ref(&x)), wanted, "{name} {sizes} {axis}");
            let late = graph(&[shape, "c: i64[]"], vec![split("x", "c", axis, 1)], &["s: seq(i64[i, j])"]);
            let inputs = [x.clone(), Tensor::scalar(sizes)];
            assert_eq!(ran(&imported(late), &inputs), wanted, "{name} late {sizes} {axis}");
            // Joined again along the same axis.
            let back =
                graph(&[shape, "c: i64[]"], vec![split("x", "c", axis, 1), concat(axis)], &["y: i64[i, j]"]);
            assert_eq!(
                ran(&imported(back), &inputs),
                [(vec![2, 5], (0..10).collect())],
                "{name} {sizes} {axis}"
            );
        }
        let late = graph(&[shape, "c: i64[]"], vec![split("x", "c", 1, 1)], &["s: seq(i64[i, j])"]);
        assert!(run(&imported(late), &[x.clone(), Tensor::scalar(0i64)]).is_err());
        // Parts of sizes of their own; the run determines their number.
        for inputs in [[shape, "c: i64[3]"], [shape, "c: i64[n]"]] {
            let parts = graph(&inputs, vec![split("x", "c", 1, 1)], &["s: seq(i64[i, j])"]);
            let parts = imported(parts);
            let of = |sizes: &[i64]| [x.clone(), vector(sizes)];
            let wanted =
                [(vec![3, 2], vec![2, 1, 2, 0, 2, 4]), (vec![10], vec![0, 5, 1, 2, 3, 4, 6, 7, 8, 9])];
            assert_eq!(ran(&parts, &of(&[1, 0, 4])), wanted, "{inputs:?}");
            assert!(run(&parts, &of(&[1, 0, 3])).is_err() && run(&parts, &of(&[6, -1, 0])).is_err());
            let back = graph(&inputs, vec![split("x", "c", 1, 1), concat(1)], &["y: i64[i, j]"]);
            assert_eq!(ran(&imported(back), &of(&[1, 0, 4])), [(vec![2, 5], (0..10).collect())]);
        }
        // Parts of size 1, with the axis and without it.
        let one = |axis: i64, keep: i64, ty: &str| {
            let output = format!("s: seq({ty})");
            ran(
                &imported(graph(&[shape], vec![split("x", "", axis, keep)], &[&output])),
                std::slice::from_ref(&x),
            )
        };
        let columns: Vec<i64> = (0..5).flat_map(|at| [at, at + 5]).collect();
        assert_eq!(one(1, 1, "i64[i, j]"), [(vec![5, 2], [2, 1].repeat(5)), (vec![10], columns.clone())]);
        assert_eq!(one(1, 0, "i64[i]"), [(vec![5, 1], vec![2; 5]), (vec![10], columns)]);
        assert_eq!(one(0, 0, "i64[i]"), [(vec![2, 1], vec![5; 2]), (vec![10], (0..10).collect())]);
        // Stacked along a new axis.
        let stack = node("y = ConcatFromSequence(s)").with(int("axis", 1)).with(int("new_axis", 1));
        let whole = graph(&[shape], vec![split("x", "", 0, 0), stack], &["y: i64[i, j]"]);
        let wanted: Vec<i64> = (0..5).flat_map(|at| [at, at + 5]).collect();
        assert_eq!(ran(&imported(whole), std::slice::from_ref(&x)), [(vec![5, 2], wanted)]);
    }
}

#[test]
fn sequences_of_the_caller_are_joined() {
    let rows = |shapes: &[i64], data: &[i64]| [matrix(&[shapes.len() / 2, 2], shapes), vector(data)];
    let model_of = |axis: i64, new_axis: i64, rank: usize| {
        let concat =
            node("y = ConcatFromSequence(s)").with(int("axis", axis)).with(int("new_axis", new_axis));
        let output = ["y: i64[i, j]", "y: i64[i, j, k]"][rank - 2];
        imported(graph(&["s: seq(i64[a, b])"], vec![concat], &[output]))
    };
    let two = rows(&[1, 2, 3, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(ran(&model_of(0, 0, 2), &two), [(vec![4, 2], (1..9).collect())]);
    assert!(run(&model_of(1, 0, 2), &two).is_err(), "1 and 3 rows");
    let wide = rows(&[2, 1, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(ran(&model_of(-1, 0, 2), &wide), [(vec![2, 4], vec![1, 3, 4, 5, 2, 6, 7, 8])]);
    let same = rows(&[1, 2, 1, 2], &[1, 2, 3, 4]);
    assert_eq!(ran(&model_of(-1, 1, 3), &same), [(vec![1, 2, 2], vec![1, 3, 2, 4])]);
    assert!(run(&model_of(0, 1, 3), &two).is_err());
}

fn appending(item: &str) -> GraphProto {
    let steps = [format!("next = SequenceInsert(s, {item})"), "go = Identity(keep)".to_string()];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    graph(&["i: i64[]", "keep: bool[]", "s"], nodes(&steps), &["go", "next"])
}

#[test]
fn sequences_grow_in_loops() {
    // From nothing: the body determines what the elements are.
    let all = |body: GraphProto, rest: &[&str]| {
        [nodes(&["e = SequenceEmpty()"]), vec![repeat("m, , e", "last", body)], nodes(rest)].concat()
    };
    let mut typed = all(appending("i"), &[]);
    typed[0] = typed[0].clone().with(int("dtype", 7));
    let counted = imported(graph(&["m: i64[]"], typed.clone(), &["last: seq(i64[])"]));
    assert_eq!(ran(&counted, &[Tensor::scalar(3i64)]), [(vec![3, 0], vec![]), (vec![3], vec![0, 1, 2])]);
    assert_eq!(ran(&counted, &[Tensor::scalar(0i64)]), [(vec![0, 0], vec![]), (vec![0], vec![])]);
    // Vectors that grow with the turn; one is taken and all are joined afterwards.
    let mut body = appending("v");
    body.node
        .splice(0..0, nodes(&["size = Add(i, one)", "shape = Reshape(size, flat)", "v = Expand(i, shape)"]));
    let body = with_constants(body, &[("one", &[1], true), ("flat", &[1], false)]);
    let mut typed =
        all(body, &["n = SequenceLength(last)", "w = SequenceAt(last, p)", "y = ConcatFromSequence(last)"]);
    typed[0] = typed[0].clone().with(int("dtype", 7));
    let end = typed.len() - 1;
    typed[end] = typed[end].clone().with(int("axis", 0));
    let grown = imported(graph(&["m: i64[]", "p: i64[]"], typed, &["n: i64[]", "w: i64[k]", "y: i64[l]"]));
    let of = |m: i64, p: i64| [Tensor::scalar(m), Tensor::scalar(p)];
    let wanted = [(vec![], vec![3]), (vec![2], vec![1, 1]), (vec![6], vec![0, 1, 1, 2, 2, 2])];
    assert_eq!(ran(&grown, &of(3, -2)), wanted);
    assert!(run(&grown, &of(3, 3)).is_err());
    // On top of what the caller gives.
    let more = graph(
        &["m: i64[]", "s0: seq(i64[])"],
        vec![repeat("m, , s0", "last", appending("i"))],
        &["last: seq(i64[])"],
    );
    let given = [Tensor::scalar(2i64), matrix(&[2, 0], &[]), vector(&[7, 8])];
    assert_eq!(ran(&imported(more), &given), [(vec![4, 0], vec![]), (vec![4], vec![7, 8, 0, 1])]);
    // A state that shrinks, and one that keeps its shape.
    let body = graph(
        &["i: i64[]", "keep: bool[]", "s", "sum: i64[2]"],
        nodes(&[
            "x = SequenceAt(s, last_one)",
            "t = SequenceErase(s)",
            "next = Add(sum, x)",
            "go = Identity(keep)",
        ]),
        &["go", "t", "next"],
    );
    let body = with_constants(body, &[("last_one", &[-1], true)]);
    let whole = graph(
        &["m: i64[]", "s0: seq(i64[a])", "z: i64[2]"],
        vec![repeat("m, , s0, z", "left sum", body)],
        &["sum: i64[2]", "left: seq(i64[a])"],
    );
    let of = |m: i64| {
        joined(vec![
            vec![Tensor::scalar(m)],
            vectors(&[&[1, 2], &[3, 4], &[5, 6]]).to_vec(),
            vec![vector(&[0, 0])],
        ])
    };
    let popped = imported(whole);
    let wanted = [vec![(vec![2], vec![8, 10])], columns(&[&[1, 2]])].concat();
    assert_eq!(ran(&popped, &of(2)), wanted);
    assert!(run(&popped, &of(4)).is_err(), "one element too many");
}

/// Elements of several ranks are handed on; who takes one must know its rank.
#[test]
fn elements_may_have_several_ranks() {
    let first = repeat("m, , s0", "last", {
        let mut body = appending("v");
        body.node.splice(0..0, nodes(&["v = Reshape(i, flat)"]));
        with_constants(body, &[("flat", &[1], false)])
    });
    let mixed = imported(graph(&["m: i64[]", "s0: seq(i64[])"], vec![first], &["last: seq(i64*)"]));
    let given = |m: i64| [Tensor::scalar(m), matrix(&[1, 0], &[]), vector(&[9])];
    assert_eq!(ran(&mixed, &given(2)), [(vec![3, 1], vec![-1, 1, 1]), (vec![3], vec![9, 0, 1])]);
    let texts = ["y = SequenceAt(s, p)"];
    let inputs = ["s: seq(i64*)", "p: i64[]"];
    let at = model(&inputs, &texts, &["y: i64[a]"], &[]);
    let of = |p: i64| [matrix(&[3, 2], &[-1, -1, 2, -1, 1, 2]), vector(&[1, 2, 3, 4, 5]), Tensor::scalar(p)];
    assert_eq!(ran(&at, &of(1)), [(vec![2], vec![2, 3])]);
    let matrices = model(&inputs, &texts, &["y: i64[a, b]"], &[]);
    assert_eq!(ran(&matrices, &of(2)), [(vec![1, 2], vec![4, 5])]);
    for p in [0, 2] {
        let message = run(&at, &of(p)).unwrap_err().message;
        assert!(message.contains("it must be the declared one, which is 1"), "{message}");
    }
    refused(graph(&inputs, nodes(&texts), &["y"]), "the rank of the sequence's elements is unknown");
    let grown = model(&["s: seq(i64*)", "x: i64[2]"], &["t = SequenceInsert(s, x)"], &["t: seq(i64*)"], &[]);
    let of = [matrix(&[1, 0], &[]), vector(&[5]), vector(&[6, 7])];
    assert_eq!(ran(&grown, &of), [(vec![2, 1], vec![-1, 2]), (vec![3], vec![5, 6, 7])]);
}

#[test]
fn branches_give_values_of_every_kind() {
    // Two captured lists; one is chosen, and one element and the whole list are read.
    let then = graph(&[], nodes(&["t = SequenceInsert(s, a)"]), &["t"]);
    let otherwise = graph(&[], nodes(&["e = SequenceErase(s)"]), &["e"]);
    let texts = [
        vec![node("s = SequenceConstruct(a, b)"), choose(then, otherwise)],
        nodes(&["z = SequenceAt(y, first)"]),
    ];
    let whole =
        graph(&["c: bool[]", "a: i64[n]", "b: i64[m]"], texts.concat(), &["y: seq(i64[k])", "z: i64[k]"]);
    let chosen = imported(with_constants(whole, &[("first", &[0], true)]));
    let of = |c: bool| [Tensor::scalar(c), vector(&[1]), vector(&[2, 3])];
    let wanted = |elements: &[&[i64]]| [columns(elements), vec![(vec![1], vec![1])]].concat();
    assert_eq!(ran(&chosen, &of(true)), wanted(&[&[1], &[2, 3], &[1]]));
    assert_eq!(ran(&chosen, &of(false)), wanted(&[&[1]]));
    // Nothing in one branch.
    let then = graph(&[], vec![node("t = SequenceEmpty()").with(int("dtype", 7))], &["t"]);
    let otherwise = graph(&[], nodes(&["e = SequenceConstruct(a, a)"]), &["e"]);
    let some =
        imported(graph(&["c: bool[]", "a: i64[n]"], vec![choose(then, otherwise)], &["y: seq(i64[k])"]));
    assert_eq!(ran(&some, &of(true)[..2]), columns(&[]));
    assert_eq!(ran(&some, &of(false)[..2]), columns(&[&[1], &[1]]));
    let then = graph(&[], nodes(&["t = SequenceConstruct(a)"]), &["t"]);
    let otherwise = graph(&[], nodes(&["e = Neg(a)"]), &["e"]);
    refused(
        graph(&["c: bool[]", "a: i64[n]"], vec![choose(then, otherwise)], &["y"]),
        "a tensor where a sequence is due",
    );
}

#[test]
fn bodies_run_for_each_element() {
    let mapped = |inputs: &str, outputs: &str, body: GraphProto| {
        node(&format!("{outputs} = SequenceMap({inputs})")).with(subgraph("body", body))
    };
    let body = graph(
        &["a: i64[k]", "b: i64[]"],
        nodes(&["sum = Add(a, b)", "more = Add(sum, extra)", "size = Shape(a)"]),
        &["more: i64[k]", "size: i64[1]"],
    );
    let inputs = ["s: seq(i64[k])", "t: i64[]", "extra: i64[]"];
    let outputs = ["y: seq(i64[k])", "z: seq(i64[1])"];
    let with_tensor = imported(graph(&inputs, vec![mapped("s, t", "y z", body.clone())], &outputs));
    let of = |elements: &[&[i64]]| {
        joined(vec![vectors(elements).to_vec(), vec![Tensor::scalar(10i64), Tensor::scalar(100i64)]])
    };
    let wanted = [columns(&[&[111], &[112, 113]]), columns(&[&[1], &[2]])].concat();
    assert_eq!(ran(&with_tensor, &of(&[&[1], &[2, 3]])), wanted);
    assert_eq!(ran(&with_tensor, &of(&[])), [columns(&[]), columns(&[])].concat());
    // Of none, whose type is unknown.
    let inputs = ["t: i64[]", "extra: i64[]"];
    let nodes = vec![node("s = SequenceEmpty()").with(int("dtype", 7)), mapped("s, t", "y z", body.clone())];
    let none = imported(graph(&inputs, nodes, &["y: seq(i64[k])"]));
    let given = [Tensor::scalar(10i64), Tensor::scalar(100i64)];
    assert_eq!(ran(&none, &given), [(vec![0, 0], vec![]), (vec![0], vec![])]);
    // Two sequences; the second must have the length of the first.
    let inputs = ["s: seq(i64[k])", "t: seq(i64[])", "extra: i64[]"];
    let pairs = imported(graph(&inputs, vec![mapped("s, t", "y z", body)], &outputs));
    let of = |values: &[i64]| {
        let second = vec![matrix(&[values.len(), 0], &[]), vector(values), Tensor::scalar(0i64)];
        joined(vec![vectors(&[&[1], &[2, 3]]).to_vec(), second])
    };
    assert_eq!(ran(&pairs, &of(&[10, 20]))[1], (vec![3], vec![11, 22, 23]));
    let message = run(&pairs, &of(&[10])).unwrap_err().message;
    assert!(message.contains("is 1; it must be that of the first sequence, which is 2"), "{message}");
}

/// Names inside a function are others than those of the call; what is left out is left out.
#[test]
fn functions_take_and_give_values_of_every_kind() {
    use onnxc_proto::{FunctionProto, build};
    let function = FunctionProto {
        name: Some("Rotate".into()),
        domain: Some("own".into()),
        input: build::strings(&["s", "o"]),
        output: build::strings(&["t", "h"]),
        node: nodes(&[
            "e = SequenceAt(s, zero)",
            "u = SequenceErase(s, zero)",
            "t = SequenceInsert(u, e)",
            "h = OptionalHasElement(o)",
        ]),
        opset_import: vec![build::opset("", 18)],
        ..Default::default()
    };
    let mut function = function;
    function.node.insert(0, node("zero = Constant()").with(int("value_int", 0)));
    let call = |text: &str| NodeProto { domain: Some("own".into()), ..node(text) };
    let whole = graph(
        &["s: seq(i64[k])", "o: optional(i64[])"],
        vec![call("a g = Rotate(s, o)"), call("b h = Rotate(a)")],
        &["b: seq(i64[k])", "g: bool[]", "h: bool[]"],
    );
    let mut model = build::model(18, whole);
    model.functions.push(function);
    model.opset_import.push(build::opset("own", 1));
    let import = onnxc_import::import(
        &model,
        &Default::default(),
        &onnxc_import::NoExternalData,
        &onnxc_ops::Table::standard(),
    )
    .unwrap();
    let inputs = joined(vec![
        vectors(&[&[1], &[2, 3], &[]]).to_vec(),
        vec![Tensor::scalar(true), Tensor::scalar(5i64)],
    ]);
    let wanted = [columns(&[&[], &[1], &[2, 3]]), scalar(1), scalar(0)].concat();
    assert_eq!(ran(&import.graph, &inputs), wanted);
}
