//! Tests of the text form and the verifier.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::parse::parse;
use super::print::to_text;
use super::*;
use crate::build::Builder;
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use crate::verify::verify;

fn message(text: &str) -> String {
    parse(text).unwrap_err().message
}

fn problems(graph: &Graph) -> String {
    let errors = verify(graph).unwrap_err();
    errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join("; ")
}

fn good(text: &str) -> Graph {
    let graph = parse(text).unwrap();
    assert_eq!(verify(&graph), Ok(()));
    graph
}

/// Printing and parsing gives the same graph and the same text.
fn assert_round_trip(graph: &Graph) {
    let text = to_text(graph);
    let again = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(to_text(&again), text);
    assert_eq!(again, *graph, "{text}");
}

/// Every operation, written as it prints.
const ALL_OPERATIONS: &str = r#"graph "all \"ops\"\n" {
  symbol s0 "batch"
  symbol s1 "?1"
  metadata "producer" "a tool"
  input v0 "x" : f32[s0, 4]
  input v1 "y" named "renamed" : f32[4] = f32[4] [1, -0.5, nan, -inf]
  input v2 "at" : i64[2] known [s0, 2 + s0*s1*3]
  v3 = add v0, v1 : f32[s0, 4] @o0(7 "Add" "layer/add")
  v4 "negated" = neg v3 : f32[s0, 4] @o0
  v5 = lt v3, v4 : bool[s0, 4] @o0
  v6 = select v5, v3, v4 : f32[s0, 4] @o0
  v7 = cast v6 {to=f8e4m3fn, saturate=false} : f8e4m3fn[s0, 4] @o0
  v8 = bitcast v6 {to=i32} : i32[s0, 4] @o0
  v9 = reduce v6 {op=max, axes=[0, 1]} : f32[1, 1] @o0
  v10 = argreduce v6 {max=true, axis=1, last=false} : i64[s0, 1] @o0
  v11 = const f32[4, 2] [1, 2, 3, 4, 5, 6, 7.5, 1e30]
  v12 = const pack v11 {batch=0, k=1, nr=8} : f32[1, 4, 8]
  v13 = contract v6, v12 {batch=0, m=1, k=1, nr=8, n=2} : f32[s0, 2] @o0
  v14 = contract v6, v11 {batch=0, m=1, k=1} : f32[s0, 2] @o0
  v15 = reshape v14 {shape=[s0*2]} : f32[s0*2] @o0
  v16 = transpose v14 {perm=[1, 0]} : f32[2, s0] @o0
  v17 = expand v15 {shape=[3, s0*2]} : f32[3, s0*2] @o0
  v18 = slice v16 {starts=[1, 0], steps=[-1, 1], sizes=[2, floordiv(1 + s0, 2)]} : f32[2, floordiv(1 + s0, 2)] @o0
  v19 = const f32[] [0]
  v20 = pad v16, v19 {lo=[0, 1], hi=[0, s1]} : f32[2, 1 + s0 + s1] @o0
  v21 = concat v16, v16 {axis=0} : f32[4, s0] @o0
  v22 = window v20 {first=1, kernel=[2], strides=[2], dilations=[1]} : f32[2, 1 + floordiv(-1 + s0 + s1, 2), 2] @o0
  v23 = gather v16, v2 {axis=0} : f32[2, s0] @o0
  v24 = gather_elements v6, v10 {axis=1} : f32[s0, 1] @o0
  v25 = gather_nd v6, v2 {batch=0} : f32[] @o0
  v26 = scatter_elements v6, v10, v24 {axis=1} : f32[s0, 4] @o0
  v27 = scatter_elements v6, v10, v24 {axis=1, combine=max} : f32[s0, 4] @o0
  v28 = scatter_nd v6, v2, v25 : f32[s0, 4] @o0
  v29 = scatter_nd v6, v2, v25 {combine=add} : f32[s0, 4] @o0
  v30 = iota {shape=[s0, 2], axis=0} : i64[s0, 2] @o0
  v31 = dim_values {dims=[min(s0, 3), max(s0, s1), mod(s0, 2), broadcast(s0, s1)]} : i64[4] known [min(s0, 3), max(s0, s1), mod(s0, 2), broadcast(s0, s1)] @o0
  v32 = cumulate v6 {op=sum, axis=0, exclusive=true, reverse=false} : f32[s0, 4] @o0
  v37, v38 = sort v6 {axis=1, descending=true, take=2} : f32[s0, 2], i64[s0, 2] @o0
  v39 = suppress v6, v3, v3, v6, v5, v19 {take=2} : i64[s0, 2] @o0
  v33, v34 "stacked" = scan v25, v6, v11 {trip=s0, states=1, scans=1, reverse=[false, true], body=graph "step" {
    input v0 "h" : f32[]
    input v1 "x" : f32[4]
    input v2 "w" : f32[4, 2]
    v3 = contract v1, v2 {batch=0, m=0, k=1} : f32[2] @o0(0 "MatMul" "")
    return v0 "h", v3 "out"
  }} : f32[], f32[s0, 2] @o1(9 "RNN" "cell")
  v35 = const f32[17] 0x0000803f000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000cdcc4c3e
  v36 = const u4[2] 0x0f01
  return v33 "h", v35 "table", v36 "nibbles"
}
"#;

#[test]
fn every_operation_prints_and_parses() {
    let graph = good(ALL_OPERATIONS);
    assert_eq!(to_text(&graph), ALL_OPERATIONS);
    assert_round_trip(&graph);
    assert_eq!(graph.nodes.len(), 30);
    assert!(graph.inputs[1].default.as_ref().unwrap().values::<f32>()[2].is_nan());
}

#[test]
fn large_constants_are_elided_for_people_only() {
    let text = good(ALL_OPERATIONS).to_string();
    assert!(text.contains("v35 = const f32[17] #"), "{text}");
    assert!(message(&text).contains("leaves out the data of constants"));
}

#[test]
fn numbers_that_the_text_skips_are_kept() {
    let text = "graph \"\" {\n  input v5 \"x\" : f32[]\n  v9 = neg v5 : f32[] @o3(1 \"Neg\" \"n\")\n  return v9 \"y\"\n}\n";
    let graph = good(text);
    assert_eq!((graph.values.len(), graph.origins.len()), (10, 4));
    assert_eq!(to_text(&graph), text);
    let spaced = text.replace('\n', " // comment\n\n").replace("graph \"\" {", "graph\"\"{");
    assert_eq!(parse(&spaced).unwrap(), graph);
}

#[test]
fn constants_keep_every_bit() {
    let odd_nan = f32::from_bits(0x7fc0_0001);
    let tensors = [
        Tensor::from_slice(&[2], &[f32::NAN, -0.0]),
        Tensor::from_slice(&[1], &[odd_nan]),
        Tensor::from_slice(&[3], &[f64::MIN_POSITIVE / 8.0, f64::MAX, 0.1]),
        Tensor::from_slice(&[2], &[half::f16::from_bits(1), half::f16::NEG_INFINITY]),
        Tensor::from_slice(&[1], &[half::bf16::from_f32(3.0e38)]),
        Tensor::from_slice(&[2], &[i64::MIN, i64::MAX]),
        Tensor::from_slice(&[1], &[u64::MAX]),
        Tensor::from_slice(&[2], &[true, false]),
        Tensor::from_slice::<i8>(&[0, 3], &[]),
        Tensor::new(DType::C64, vec![], Bytes::from(vec![1; 8])),
    ];
    for tensor in tensors {
        let mut graph = Graph::default();
        let mut builder = Builder::new(&mut graph, cranelift_entity::EntityRef::new(0));
        let value = builder.constant(tensor.clone());
        graph.outputs.push(("c".to_string(), value));
        let text = to_text(&graph);
        let again = parse(&text).unwrap();
        let data = again.constant_data(again.outputs[0].1).unwrap();
        assert_eq!(
            (data.dtype, &data.shape, &data.data),
            (tensor.dtype, &tensor.shape, &tensor.data),
            "{text}"
        );
        assert_eq!(again.values[value].known, graph.values[value].known, "{text}");
    }
}

#[test]
fn parse_errors_say_where_and_what() {
    let body = |statement: &str| {
        message(&format!("graph \"\" {{\n  input v0 \"x\" : f32[2]\n  {statement}\n  return\n}}"))
    };
    let dim = message("graph \"\" {\n  symbol s0 \"n\"\n  input v0 \"x\" : f32[2*(1 + s0]\n  return\n}");
    assert_eq!(dim, "line 3, column 31: expected `)`, found `]`");
    let state = |panels: &str| {
        message(&format!(
            "graph \"\" {{\n  input v0 \"x\" : f32[2]\n  state 0, 0 {panels}\n  return v0 \"y\"\n}}"
        ))
    };
    assert_eq!(state("panels 16"), "line 3, column 21: expected `of`, found `16`");
    assert_eq!(state("panels of 16 along 1 2"), "line 3, column 35: expected `of`, found `2`");
    assert_eq!(message(""), "line 1, column 1: expected `graph`, found the end of the text");
    assert_eq!(message("graph \"\" {\n  return ? }"), "line 2, column 10: unexpected character '?'");
    assert_eq!(body("v1 = neg v7 : f32[2]"), "line 3, column 12: v7 is not defined before its use");
    assert_eq!(body("v0 = neg v0 : f32[2]"), "line 3, column 3: v0 is defined twice");
    assert_eq!(body("v1 = nag v0 : f32[2]"), "line 3, column 8: there is no operation nag");
    assert_eq!(
        body("v1 = transpose v0 {perm=[0], axis=1} : f32[2]"),
        "line 3, column 8: transpose has no attribute axis"
    );
    assert_eq!(
        body("v1 = gather v0, v0 : f32[2]"),
        "line 3, column 8: gather needs the attribute axis: a number"
    );
    assert_eq!(
        body("v1 = concat v0 {axis=true} : f32[2]"),
        "line 3, column 8: expected a number as attribute axis of concat"
    );
    assert_eq!(
        body("v1 = neg v0 : f33[2]"),
        "line 3, column 17: expected an element type such as f32, found `f33`"
    );
    assert_eq!(body("v1 = neg v0 : f32[s4]"), "line 3, column 21: the symbol s4 is not declared");
    assert_eq!(body("v1 = const i8[1] [128]"), "line 3, column 21: expected an element of i8, found `128`");
    assert_eq!(body("v1 = const i8[2] [1]"), "line 3, column 14: i8[2] takes 2 bytes, not 1");
    assert_eq!(
        body("v1 = const i8[1] 0x123"),
        "line 3, column 20: expected two hex digits per byte, found hex data"
    );
    assert_eq!(body("v1 = const i8[-1] []"), "line 3, column 14: i8[-1] is not the type of a constant");
    assert_eq!(
        body("v4000000000 = neg v0 : f32[2]"),
        "line 3, column 3: expected a value such as v0, found `v4000000000`"
    );
    assert_eq!(body("v900000000 = neg v0 : f32[2]"), "line 3, column 3: v900000000 is too large a number");
    assert_eq!(body("v1 = neg v0 : f32[floordiv(3, 0)]"), "line 3, column 21: floordiv by zero");
    assert!(body("v1 \"open = 3").contains("a string without end"));
    assert!(body(&format!("v1 = neg v0 : f32[{}", "(".repeat(1000))).contains("nest deeper than 64"));
    let deep = "graph \"\" { v0 = scan {body=".repeat(100);
    assert!(message(&deep).contains("graphs nest deeper than 64"));
}

#[test]
fn extreme_dims_do_not_overflow() {
    let text = "graph \"\" {\n  v0 = dim_values {dims=[-9223372036854775808, floordiv(-9223372036854775808, -1), \
                mod(-9223372036854775808, -1)]} : i64[3]\n  return v0 \"y\"\n}";
    let Op::DimValues { dims } = &good(text).nodes[cranelift_entity::EntityRef::new(0)].op.clone() else {
        panic!("not dim_values")
    };
    assert_eq!(*dims, [Dim::from(i64::MIN), Dim::from(i64::MAX), Dim::ZERO]);
}

#[test]
fn the_verifier_accepts_what_the_builder_makes() {
    let graph = good(ALL_OPERATIONS);
    assert_eq!(verify(&graph), Ok(()));
}

/// A graph `y = neg(x + c)` to break.
fn victim() -> Graph {
    good(
        "graph \"\" { symbol s0 \"n\" input v0 \"x\" : f32[2] = f32[2] [1, 2] v1 = const f32[2] [1, 2] \
         v2 = add v0, v1 : f32[2] v3 = neg v2 : f32[2] return v3 \"y\" }",
    )
}

fn v(index: usize) -> ValueId {
    cranelift_entity::EntityRef::new(index)
}

fn n(index: usize) -> NodeId {
    cranelift_entity::EntityRef::new(index)
}

/// What the verifier says after `damage`.
fn broken(damage: impl FnOnce(&mut Graph)) -> String {
    let mut graph = victim();
    damage(&mut graph);
    problems(&graph)
}

#[test]
fn the_verifier_finds_broken_structure() {
    assert_eq!(broken(|g| g.order.swap(0, 1)), "n1 (neg) uses v2 before it is defined");
    assert_eq!(broken(|g| g.order.push(n(0))), "the order names n0 twice");
    assert_eq!(broken(|g| g.order.push(n(9))), "the order names n9, which does not exist");
    assert!(broken(|g| g.order.truncate(1)).contains("output \"y\" uses v3 before it is defined"));
    assert!(broken(|g| g.outputs[0].1 = v(9)).contains("v9, which does not exist"));
    assert!(broken(|g| g.nodes[n(1)].inputs[0] = v(9)).contains("n1 (neg) names v9"));
    assert!(broken(|g| g.inputs[0].value = v(9)).contains("input 0 names v9"));
    assert!(broken(|g| g.nodes[n(1)].outputs[0] = v(2)).contains("v2 is defined twice"));
    assert!(broken(|g| g.values[v(3)].def = Def::Node(n(0), 0)).contains("v3 is Node(n1, 0)"));
    assert!(broken(|g| g.values[v(0)].def = Def::Input(1)).contains("v0 is Input(0)"));
}

#[test]
fn the_verifier_finds_broken_types_and_data() {
    let f32s = |dims: &[i64]| TensorType::new(DType::F32, dims.iter().map(|&dim| Dim::from(dim)).collect());
    assert_eq!(broken(|g| g.values[v(3)].ty = f32s(&[3])), "n1 (neg) has results f32[3], not f32[2]");
    assert!(broken(|g| g.values[v(3)].ty = f32s(&[-3])).contains("negative dim -3"));
    assert!(broken(|g| g.nodes[n(0)].op = Op::Concat { axis: 7 }).contains("axis 7"));
    let sym = Dim::sym(cranelift_entity::EntityRef::new(1));
    assert!(broken(|g| g.values[v(0)].ty.shape[0] = sym).contains("the symbol s1, which is not declared"));
    let reduce = Op::Reduce { op: ReduceFn::Sum, axes: vec![1, 0] };
    assert!(broken(|g| g.nodes[n(1)].op = reduce).contains("not sorted and distinct"));
    let known: Arc<[Dim]> = vec![Dim::ONE].into();
    assert!(broken(|g| g.values[v(2)].known = Some(known.clone())).contains("has 1 known elements"));
    let wrong: Arc<[Dim]> = vec![Dim::ONE, Dim::ONE].into();
    assert!(broken(|g| g.values[v(1)].known = Some(wrong)).contains("that are not its data"));
    let short = Tensor { dtype: DType::F32, shape: vec![2], data: Bytes::from(vec![0; 7]) };
    let data = |tensor: &Tensor| Def::Const(Constant::Data(tensor.clone()));
    assert!(broken(|g| g.values[v(1)].def = data(&short)).contains("has 7 bytes of data for f32[2]"));
    let ints = Tensor::from_slice(&[2], &[1i32, 2]);
    assert!(broken(|g| g.values[v(1)].def = data(&ints)).contains("the data of v1 are i32[2]"));
    assert!(broken(|g| g.inputs[0].default = Some(ints)).contains("the default of input \"x\" is i32[2]"));
    let bad = Tensor { dtype: DType::Bool, shape: vec![1], data: Bytes::from(vec![2]) };
    assert!(broken(|g| g.inputs[0].default = Some(bad)).contains("the byte 0x02, which is not a bool"));
}

#[test]
fn the_verifier_checks_deferred_constants() {
    let neg = Arc::new(Op::Map(MapFn::Unary(UnaryFn::Neg)));
    let deferred = |input: usize| Def::Const(Constant::Deferred { op: neg.clone(), inputs: vec![v(input)] });
    let message = |input: usize| {
        broken(|g| {
            g.values[v(1)].known = None;
            g.values[v(1)].def = deferred(input);
        })
    };
    assert_eq!(message(0), "the constant v1 reads v0, which is none");
    assert_eq!(message(1), "the constant v1 depends on itself");
    assert_eq!(message(77), "the constant v1 reads v77, which is none");
    let mistyped = broken(|g| {
        let ty = TensorType::new(DType::I8, vec![]);
        let def = Def::Const(Constant::Deferred { op: neg.clone(), inputs: vec![v(1)] });
        let value = g.values.push(Value { name: String::new(), ty, def, known: None });
        g.outputs.push(("z".to_string(), value));
    });
    assert_eq!(mistyped, "the constant v4 is of type i8[], not f32[2]");
}

#[test]
fn the_verifier_enters_bodies() {
    let mut graph = good(ALL_OPERATIONS);
    let scan = *graph.order.last().unwrap();
    let Op::Scan { states, .. } = &mut graph.nodes[scan].op else { panic!("the last node is the scan") };
    *states = 9;
    assert!(problems(&graph).contains("scan"));
    let Op::Scan { body: inner, states, .. } = &mut graph.nodes[scan].op else { panic!("a scan") };
    *states = 1;
    Arc::make_mut(inner).values[v(3)].ty.shape[0] = Dim::from(5i64);
    assert!(problems(&graph).contains("body \"step\": n0 (contract) has results f32[5], not f32[2]"));
}

#[test]
fn nesting_is_finite() {
    let mut graph = Graph::default();
    for _ in 0..MAX {
        let op = Op::scan(graph, Dim::ONE, 0, 0, vec![]);
        graph = Graph::default();
        let node = Node { op, inputs: vec![], outputs: vec![], origin: cranelift_entity::EntityRef::new(0) };
        graph.order.push(graph.nodes.next_key());
        graph.nodes.push(node);
    }
    assert!(problems(&graph).contains(&format!("graphs nest deeper than {MAX}")));
}

const MAX: usize = MAX_NESTING;

/// `y = iota(k[0])`, and `z` the first `n` elements of `x`, where `n` counts its positive ones.
const LATE: &str = r#"graph "late" {
  symbol s0 "n"
  symbol s1 "?1" = v1[0]
  symbol s2 "?2" = v5[0] <= s0
  input v0 "x" : i64[s0]
  input v1 "k" : i64[1]
  v2 = const i64[] [0]
  v3 = gt v0, v2 : bool[s0] @o0(0 "Net" "net")
  v4 = cast v3 {to=i64, saturate=true} : i64[s0] @o0
  v5 = reduce v4 {op=sum, axes=[0]} : i64[1] @o0
  v6 = iota {shape=[s1], axis=0} : i64[s1] @o0
  v7 = slice v0 {starts=[0], steps=[1], sizes=[s2]} : i64[s2] @o0
  return v6 "y", v7 "z"
}
"#;

#[test]
fn symbols_that_data_define() {
    let graph = parse(LATE).unwrap();
    assert_eq!(verify(&graph), Ok(()));
    assert_eq!(to_text(&graph), LATE);
    let x = Tensor::from_slice(&[3], &[5i64, -1, 7]);
    let results = |count: i64| crate::interp::run(&graph, &[x.clone(), Tensor::from_slice(&[1], &[count])]);
    let found: Vec<_> = results(2).unwrap().iter().map(|tensor| tensor.to_i64s().unwrap()).collect();
    assert_eq!(found, [vec![0, 1], vec![5, -1]]);
    assert!(results(-1).unwrap_err().message.contains("-1"));
    let broken = |from: &str, to: &str| problems(&parse(&LATE.replace(from, to)).unwrap());
    assert!(broken("v5[0] <= s0", "v5[1] <= s0").contains("s2 is element 1 of v5"));
    assert!(broken("v5[0] <= s0", "v5[0] <= s2").contains("the bound of s2 mentions s2"));
    assert!(broken("= v5[0]", "= v7[0]").contains("v7"));
    assert!(parse(&LATE.replace("v5[0]", "v9[0]")).unwrap_err().message.contains("v9"));
}

#[test]
fn bounds_that_are_overgrown_are_refused() {
    let text = r#"graph "bounded" {
  symbol s0 "n"
  symbol s1 "m"
  input v0 "k" : i64[1]
  input v1 "x" : f32[s0, s1]
  return v1 "y"
}"#;
    let mut graph = parse(text).unwrap();
    let mut bound = Dim::sym(Sym::from_u32(0)) + Dim::sym(Sym::from_u32(1));
    while !bound.is_overgrown() {
        bound = bound.clone() * (bound + Dim::ONE);
    }
    let origin = graph.origins.next_key();
    let message = Builder::new(&mut graph, origin)
        .sizes(ValueId::from_u32(0), &|_| Some(bound.clone()))
        .unwrap_err()
        .message;
    assert!(
        message.contains("the bound of a size that data decides is an expression of more than"),
        "{message}"
    );
}

#[test]
fn symbols_of_attributes_are_dims_of_their_operation() {
    let n = Dim::sym(Sym::from_u32(0));
    let sort = Op::Sort { axis: 0, descending: false, take: n.clone() };
    let append = Op::Append { axis: 0, at: n.clone(), panel: None };
    for op in [sort, append, Op::Suppress { take: n.clone() }, Op::Reshape { shape: vec![n.clone()] }] {
        assert_eq!(op.dims(), [&n], "{op:?}");
    }
}

#[test]
fn bounds_come_from_definitions_and_assumptions() {
    let mut graph = parse(LATE).unwrap();
    let [n, free, bound] = [0, 1, 2].map(|number| Dim::sym(Sym::from_u32(number)));
    let upper = |graph: &Graph, dim: &Dim| Bounds::new(graph).upper(dim);
    assert_eq!(upper(&graph, &(bound.clone() * n.clone())), Some(n.clone() * n.clone()));
    assert_eq!(upper(&graph, &free), None);
    assert_eq!(n.min_dim(&Dim::from(i64::MAX)), n);
    assert_eq!(Dim::from(i64::MAX).min_dim(&n), n);
    assert_eq!(upper(&graph, &free.min_dim(&n)), Some(n.clone()));
    assert_eq!(upper(&graph, &(n.clone() - bound.clone())), Some(n.clone()));
    graph.assumptions.insert(Assumption {
        requirement: Requirement::equal(n.clone() * Dim::from(8i64), free.clone() * Dim::from(2i64)),
        node: "".into(),
        claim: Claim::new("", Vec::<Dim>::new()),
    });
    assert_eq!(upper(&graph, &(free.clone() * Dim::from(3i64))), Some(n * Dim::from(12i64)));
}

/// Pairs and triples of the positive elements of `x`, at most 2048, or `n`.
const MULTIPLIED: &str = include_str!("../../../../tests/c/multiplied.onnxir");

#[test]
fn bounds_out_of_proportion_are_not_reserved() {
    let fixed = parse(MULTIPLIED).unwrap();
    let count = Dim::sym(Sym::from_u32(0));
    let reserved = |graph: &Graph, count: &Dim, power: usize| {
        let bytes = (0..power).fold(Dim::from(8usize), |product, _| product * count.clone());
        Bounds::new(graph).reserved(&bytes)
    };
    assert_eq!(reserved(&fixed, &count, 1), Some(Dim::from(8 * 2048usize)));
    assert_eq!(reserved(&fixed, &count, 2), Some(Dim::from(8 * 2048 * 2048usize)));
    assert_eq!(reserved(&fixed, &count, 3), None);
    // A bound mentions symbols of lower numbers.
    let open = MULTIPLIED.replace("s0", "s1").replace("<= 2048", "<= s0").replace("[2048]", "[s0]");
    let open = parse(&open.replace("  symbol s1", "  symbol s0 \"n\"\n  symbol s1")).unwrap();
    let (n, count) = (Dim::sym(Sym::from_u32(0)), Dim::sym(Sym::from_u32(1)));
    assert_eq!(reserved(&open, &count, 1), Some(n.clone() * Dim::from(8usize)));
    assert_eq!(
        reserved(&open, &count, 2),
        None,
        "as large as all pairs of the elements of an input of any size"
    );
    // A size that follows from the inputs is never allocated by the run, however large.
    assert_eq!(Bounds::new(&open).reserved(&(n.clone() * n.clone())), Some(n.clone() * n));
}

/// One step of a random graph: which operation, and which values it reads.
type Step = (u8, prop::sample::Index, prop::sample::Index);

/// A graph that the builder makes of arbitrary steps; steps that do not type are skipped.
fn random_graph(steps: &[Step], constants: &[(i32, bool)]) -> Graph {
    let mut graph = Graph { name: "random".to_string(), ..Graph::default() };
    let n = Dim::sym(graph.symbols.push(Symbol { name: "n".to_string() }));
    let origin = graph.origins.push(Origin::new("é\u{7}", "Op", 2));
    let mut b = Builder::new(&mut graph, origin);
    let mut values = vec![
        b.input("x", TensorType::new(DType::F32, vec![n.clone(), Dim::from(2usize)]), None),
        b.input("n", TensorType::new(DType::I64, vec![]), Some(Tensor::scalar(3i64))),
    ];
    values.push(b.unary(UnaryFn::Neg, values[0]).expect("any float has a negative"));
    for &(value, wide) in constants {
        let shape: &[usize] = if wide { &[20, 2] } else { &[2] };
        values.push(b.constant(Tensor::from_slice(shape, &vec![value as f32 / 3.0; shape.iter().product()])));
    }
    for (kind, first, second) in steps {
        let (x, y) = (*first.get(&values), *second.get(&values));
        let rank = b.rank(x);
        let result = match kind % 8 {
            0 => b.binary(BinaryFn::Mul, x, y),
            1 => b.unary(UnaryFn::Abs, x),
            2 => b.transpose(x, &(0..rank).rev().collect::<Vec<_>>()),
            3 => b.reduce(ReduceFn::Max, x, &[rank.saturating_sub(1)]),
            4 => b.concat(&[x, y], 0),
            5 => b.cast(x, DType::F16),
            6 => b.compare(CompareFn::Le, x, y),
            _ => b
                .unsqueeze(x, &[0])
                .and_then(|x| b.expand(x, [vec![n.clone() + Dim::ONE], b.shape(x)[1..].to_vec()].concat())),
        };
        if let Ok(value) = result {
            values.push(value);
        }
    }
    graph.outputs = values.iter().map(|&value| (format!("out {value}"), value)).collect();
    graph
}

proptest! {
    #[test]
    fn random_graphs_print_and_parse(
        steps in prop::collection::vec(any::<Step>(), 0..12),
        constants in prop::collection::vec(any::<(i32, bool)>(), 1..4),
    ) {
        let graph = random_graph(&steps, &constants);
        prop_assert_eq!(verify(&graph), Ok(()));
        assert_round_trip(&graph);
    }

    #[test]
    fn damaged_texts_never_panic(at in any::<prop::sample::Index>(), with in "[ -~é\n]{0,3}", cut in 0usize..5) {
        let mut text: Vec<char> = ALL_OPERATIONS.chars().collect();
        let at = at.index(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, with.chars());
        if let Ok(graph) = parse(&text.into_iter().collect::<String>()) {
            let _ = verify(&graph);
            let printed = to_text(&graph);
            prop_assert_eq!(to_text(&parse(&printed).unwrap()), printed);
        }
    }
}

/// Of a scan that names no shapes for its results a state keeps its sizes.
#[test]
fn states_of_a_scan_keep_their_sizes() {
    let text = "graph \"\" {\n  input v0 \"x\" : f32[2]\n  \
                v1 = scan v0 {trip=3, states=1, scans=0, reverse=[], body=graph \"b\" {\n    \
                input v0 \"h\" : f32[2]\n    v1 = const f32[3] [1, 2, 3]\n    return v1 \"h\"\n  \
                }} : f32[2] @o0(0 \"Scan\" \"s\")\n  return v1 \"y\"\n}";
    let message = match parse(text) {
        Ok(graph) => problems(&graph),
        Err(error) => error.message,
    };
    assert!(message.contains("scan state 0 changes from f32[2] to f32[3]"), "{message}");
}
