//! What primitives need of the sizes of their operands, constants or symbols.

use std::sync::Arc;

use super::*;
use crate::graph::{MapFn, Requirement, RhsLayout, Sym};
use crate::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// Types of operands of these sizes, constants or a symbol each.
fn types(dtypes: &[DType], shapes: &[&[usize]], symbolic: bool) -> Vec<TensorType> {
    let mut next = 0u32;
    let mut types = Vec::new();
    for (dtype, sizes) in dtypes.iter().zip(shapes) {
        let mut shape = Vec::new();
        for &size in *sizes {
            shape.push(if symbolic { Dim::sym(Sym::from_u32(next)) } else { Dim::from(size) });
            next += 1;
        }
        types.push(TensorType::new(*dtype, shape));
    }
    types
}

/// Sizes that fit pass, and those that do not are refused: as constants, and as values of symbols.
fn holds(op: &Op, dtypes: &[DType], good: &[&[usize]], bad: &[&[usize]]) {
    for (shapes, fits) in [(good, true), (bad, false)] {
        let constant = types(dtypes, shapes, false);
        let found = infer(op, &constant.iter().collect::<Vec<_>>());
        assert_eq!(found.is_ok(), fits, "{} of {shapes:?}", op.name());
        let symbolic = types(dtypes, shapes, true);
        let Inferred { requirements, .. } = infer(op, &symbolic.iter().collect::<Vec<_>>()).ok().unwrap();
        let sizes: Vec<i64> = shapes.iter().flat_map(|own| own.iter().map(|&size| size as i64)).collect();
        let value = |sym: Sym| sizes.get(sym.as_u32() as usize).copied();
        let all = requirements.iter().all(
            |Stated { requirement: Requirement { left, relation, right }, .. }| {
                relation.holds(left.eval(&value).unwrap(), right.eval(&value).unwrap())
            },
        );
        assert_eq!(all, fits, "{} of symbols that are {shapes:?}", op.name());
    }
}

#[test]
fn operands_must_fit_each_other() {
    use DType::{F32, I64};
    let scatter = Op::ScatterElements { axis: 1, combine: None };
    let three = [F32, I64, F32];
    holds(&scatter, &three, &[&[3, 4], &[2, 9], &[2, 9]], &[&[3, 4], &[5, 2], &[5, 2]]);
    holds(&scatter, &three, &[&[3, 4], &[2, 9], &[2, 9]], &[&[3, 4], &[2, 2], &[2, 1]]);
    let ranks = types(&three, &[&[3, 4], &[2], &[2]], false);
    assert!(infer(&scatter, &ranks.iter().collect::<Vec<_>>()).is_err());
    // An axis that the data do not have is named for any indices.
    let far = types(&three, &[&[3, 4], &[3, 4, 5], &[3, 4, 5]], false);
    for op in [Op::ScatterElements { axis: 2, combine: None }, Op::GatherElements { axis: 2 }] {
        let count = if matches!(op, Op::GatherElements { .. }) { 2 } else { 3 };
        let error = infer(&op, &far.iter().take(count).collect::<Vec<_>>()).err().unwrap();
        assert!(error.message.contains("axis 2 of a tensor of type f32[3, 4]"), "{error}");
    }
    let gather = Op::GatherElements { axis: 0 };
    holds(&gather, &[F32, I64], &[&[3, 4], &[9, 4]], &[&[3, 4], &[3, 5]]);
    holds(&Op::Concat { axis: 0 }, &[F32, F32], &[&[3, 4], &[9, 4]], &[&[3, 4], &[3, 5]]);
    let add = Op::Map(MapFn::Binary(BinaryFn::Add));
    holds(&add, &[F32, F32], &[&[3, 4], &[1, 4]], &[&[3, 4], &[2, 4]]);
    let product = Op::Contract { batch: 1, m: 1, k: 1, rhs: RhsLayout::Plain };
    holds(&product, &[F32, F32], &[&[1, 3, 4], &[5, 4, 2]], &[&[1, 3, 4], &[5, 3, 2]]);
    holds(&Op::Reshape { shape: vec![Dim::from(6usize)] }, &[F32], &[&[2, 3]], &[&[2, 4]]);
    let sort = Op::Sort { axis: 0, descending: false, take: Dim::from(3usize) };
    holds(&sort, &[F32], &[&[3]], &[&[2]]);
    let pick = |start: i64, step: i64, size: i64| Op::Slice {
        starts: vec![Dim::from(start)],
        steps: vec![step],
        sizes: vec![Dim::from(size)],
    };
    holds(&pick(1, 2, 3), &[F32], &[&[6]], &[&[5]]);
    holds(&pick(4, -2, 3), &[F32], &[&[5]], &[&[4]]);
}

#[test]
fn index_vectors_must_fit_data() {
    use DType::{F32, I64};
    let batch = |indices: Vec<Dim>, data: Vec<Dim>| {
        let (data, indices) = (TensorType::new(F32, data), TensorType::new(I64, indices));
        infer(&Op::GatherNd { batch: 1 }, &[&data, &indices])
    };
    let (n, one, three) = (Dim::sym(Sym::from_u32(0)), Dim::ONE, Dim::from(3usize));
    assert!(batch(vec![three.clone(), one.clone()], vec![Dim::from(2usize), three.clone()]).is_err());
    let found = batch(vec![n.clone(), one.clone()], vec![three.clone(), three.clone()]).ok().unwrap();
    let requirements: Vec<_> = found.requirements.into_iter().map(|own| own.requirement).collect();
    assert_eq!(requirements, [Requirement::equal(n.clone(), three.clone())]);
    let scatter = |updates: Vec<Dim>| {
        let data = TensorType::new(F32, vec![three.clone(), three.clone()]);
        let indices = TensorType::new(I64, vec![n.clone(), one.clone()]);
        infer(&Op::ScatterNd { combine: None }, &[&data, &indices, &TensorType::new(F32, updates)])
    };
    assert!(scatter(vec![n.clone(), one.clone()]).is_err());
    assert!(scatter(vec![n.clone()]).is_err());
    assert!(scatter(vec![n.clone(), three.clone()]).ok().unwrap().requirements.is_empty());
}

#[test]
fn selects_are_by_conditions() {
    let scalars = |dtypes: [DType; 3]| dtypes.map(|dtype| TensorType::new(dtype, vec![]));
    let found = |types: [TensorType; 3]| infer(&Op::Map(MapFn::Select), &types.iter().collect::<Vec<_>>());
    assert!(found(scalars([DType::Bool, DType::F32, DType::F32])).is_ok());
    assert!(found(scalars([DType::I32, DType::F32, DType::F32])).is_err());
}

#[test]
fn known_elements_are_gathered() {
    let vector = |size: usize| TensorType::new(DType::I64, vec![Dim::from(size)]);
    let known = |values: &[i64]| Some(values.iter().map(|&value| Dim::from(value)).collect::<Arc<[Dim]>>());
    let gather = |indices: &[i64]| {
        let (data, picks) = (known(&[5, 6, 7]), known(indices));
        let types = [vector(3), vector(indices.len())];
        infer_known(&Op::Gather { axis: 0 }, &[&types[0], &types[1]], &[data, picks], &vector(indices.len()))
    };
    assert_eq!(gather(&[2, 0, -2]), known(&[7, 5, 6]));
    // The run refuses them.
    assert_eq!((gather(&[3]), gather(&[-4])), (None, None));
}

/// Shapes are computed by graphs: what is known of elements goes through what moves them.
#[test]
fn known_elements_are_padded() {
    let vector = |size: usize| TensorType::new(DType::I64, vec![Dim::from(size)]);
    let scalar = TensorType::new(DType::I64, vec![]);
    let known = |values: &[i64]| Some(values.iter().map(|&value| Dim::from(value)).collect::<Arc<[Dim]>>());
    for (lo, hi, wanted) in
        [(2usize, 0usize, &[9i64, 9, 5, 6, 7][..]), (0, 1, &[5, 6, 7, 9]), (1, 1, &[9, 5, 6, 7, 9])]
    {
        let op = Op::Pad { lo: vec![Dim::from(lo)], hi: vec![Dim::from(hi)] };
        let found = infer_known(
            &op,
            &[&vector(3), &scalar],
            &[known(&[5, 6, 7]), known(&[9])],
            &vector(wanted.len()),
        );
        assert_eq!(found, known(wanted), "{lo} before, {hi} behind");
    }
}

/// A product of no sizes is 1, as it is of a scalar's shape.
#[test]
fn known_elements_are_reduced() {
    let vector = |size: usize| TensorType::new(DType::I64, vec![Dim::from(size)]);
    let known = |values: &[i64]| Some(values.iter().map(|&value| Dim::from(value)).collect::<Arc<[Dim]>>());
    let reduce = |op: ReduceFn, values: &[i64]| {
        let op = Op::Reduce { op, axes: vec![0] };
        infer_known(&op, &[&vector(values.len())], &[known(values)], &vector(1))
    };
    assert_eq!(reduce(ReduceFn::Prod, &[2, 3, 7]), known(&[42]));
    assert_eq!((reduce(ReduceFn::Prod, &[]), reduce(ReduceFn::Sum, &[])), (known(&[1]), known(&[0])));
    assert_eq!(reduce(ReduceFn::Max, &[]), None);
}

/// Of symbols it is known where none is negative.
#[test]
fn absolute_values_of_known_elements() {
    let ty = TensorType::new(DType::I64, vec![Dim::from(2usize)]);
    let absolute = |values: [Dim; 2]| {
        infer_known(&Op::Map(MapFn::Unary(UnaryFn::Abs)), &[&ty], &[Some(Arc::from(values))], &ty)
    };
    let n = Dim::sym(Sym::from_u32(0));
    let numbers = |values: [i64; 2]| values.map(Dim::from);
    assert_eq!(absolute(numbers([-3, 4])), Some(Arc::from(numbers([3, 4]))));
    assert_eq!(absolute([n.clone(), Dim::from(-1i64)]), Some(Arc::from([n.clone(), Dim::ONE])));
    assert_eq!(absolute([n.clone() - Dim::ONE, n]), None);
}

/// A size as a condition is whether it is zero, and known where it is a number.
#[test]
fn conditions_of_known_elements() {
    let of = |dtype| TensorType::new(dtype, vec![Dim::from(3usize)]);
    let condition = |values: [Dim; 3]| {
        let op = Op::Map(MapFn::Cast { to: DType::Bool, saturate: true });
        infer_known(&op, &[&of(DType::I64)], &[Some(Arc::from(values))], &of(DType::Bool))
    };
    let numbers = |values: [i64; 3]| values.map(Dim::from);
    assert_eq!(condition(numbers([0, 1, -7])), Some(Arc::from(numbers([0, 1, 1]))));
    assert_eq!(condition([Dim::ONE, Dim::ONE, Dim::sym(Sym::from_u32(0))]), None);
}

/// Sizes stay known as other integers and floats, and as the smaller and the larger of two.
#[test]
fn known_elements_of_other_types() {
    let ty = |dtype| TensorType::new(dtype, vec![Dim::from(2usize)]);
    let (n, m) = (Dim::sym(Sym::from_u32(0)), Dim::sym(Sym::from_u32(1)));
    let own: [Dim; 2] = [n.clone(), Dim::from(7i64)];
    for to in [DType::I32, DType::I64, DType::F32, DType::F64] {
        let op = Op::Map(MapFn::Cast { to, saturate: true });
        let found = infer_known(&op, &[&ty(DType::I64)], &[Some(Arc::from(own.clone()))], &ty(to));
        assert_eq!(found, Some(Arc::from(own.clone())), "{to}");
    }
    let other: [Dim; 2] = [m.clone(), Dim::from(3i64)];
    let of_both = |function| {
        let op = Op::Map(MapFn::Binary(function));
        let (ty, known) = (ty(DType::I64), [&own, &other].map(|values| Some(Arc::from(values.clone()))));
        infer_known(&op, &[&ty, &ty], &known, &ty)
    };
    assert_eq!(of_both(BinaryFn::Min), Some(Arc::from([n.min_dim(&m), Dim::from(3i64)])));
    assert_eq!(of_both(BinaryFn::Max), Some(Arc::from([n.max_dim(&m), Dim::from(7i64)])));
}

#[test]
fn operations_take_as_many_operands_as_they_have() {
    let ty = TensorType::new(DType::F32, vec![Dim::from(2usize), Dim::from(3usize)]);
    let shape = || vec![Dim::from(2usize), Dim::from(3usize)];
    let unary = [
        Op::Reshape { shape: shape() },
        Op::Transpose { perm: vec![1, 0] },
        Op::Expand { shape: shape() },
        Op::Slice { starts: vec![Dim::ZERO; 2], steps: vec![1; 2], sizes: shape() },
        Op::Window { first: 0, kernel: vec![1], strides: vec![1], dilations: vec![1] },
        Op::Pack { batch: 0, k: 1, nr: 8 },
        Op::Reduce { op: ReduceFn::Sum, axes: vec![0] },
        Op::ArgReduce { max: true, axis: 0, last: false },
        Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false },
        Op::Sort { axis: 0, descending: false, take: Dim::ONE },
        Op::Map(MapFn::Unary(UnaryFn::Neg)),
    ];
    for op in unary {
        assert!(infer(&op, &[&ty]).is_ok(), "{}", op.name());
        assert!(infer(&op, &[&ty, &ty]).is_err(), "{}", op.name());
    }
}

#[test]
fn an_axis_that_a_tensor_lacks_is_named() {
    let ty = TensorType::new(DType::F32, vec![Dim::from(3usize), Dim::from(4usize)]);
    for op in [
        Op::Reduce { op: ReduceFn::Sum, axes: vec![0, 2] },
        Op::ArgReduce { max: true, axis: 2, last: false },
        Op::Cumulate { op: ReduceFn::Sum, axis: 2, exclusive: false, reverse: false },
        Op::Sort { axis: 2, descending: false, take: Dim::ONE },
        Op::Concat { axis: 2 },
    ] {
        let error = infer(&op, &[&ty]).err().unwrap();
        assert!(error.message.contains("axis 2 of a tensor of type f32[3, 4]"), "{}: {error}", op.name());
    }
}

#[test]
fn elements_beyond_a_tensor_are_refused() {
    let ty = TensorType::new(DType::F32, vec![Dim::from(5usize)]);
    let slice = |start: i64, step: i64, size: i64| {
        let op =
            Op::Slice { starts: vec![Dim::from(start)], steps: vec![step], sizes: vec![Dim::from(size)] };
        infer(&op, &[&ty]).map(drop)
    };
    for (start, step, size) in [(0, 1, 5), (4, -2, 3), (9, 1, 0)] {
        assert!(slice(start, step, size).is_ok(), "{size} from {start}");
    }
    for (start, step, size) in [(0, 1, 6), (5, 1, 1), (1, 2, 3), (4, -2, 4), (-1, 1, 1), (0, 1, -1)] {
        let message = format!("slice of axis 0 of f32[5]: {size} elements from {start}");
        assert_eq!(slice(start, step, size).unwrap_err().message, message);
    }
    let scalar = |dtype| TensorType::new(dtype, vec![]);
    let pad = |lo: usize, hi: usize, fill: &TensorType| {
        let op = Op::Pad { lo: vec![Dim::ONE; lo], hi: vec![Dim::ONE; hi] };
        infer(&op, &[&ty, fill]).is_ok()
    };
    assert!(pad(1, 1, &scalar(DType::F32)));
    assert!(!pad(2, 1, &scalar(DType::F32)) && !pad(1, 0, &scalar(DType::F32)));
    assert!(!pad(1, 1, &scalar(DType::I32)) && !pad(1, 1, &ty));
}

#[test]
fn branches_give_equally_many_results() {
    let text = r#"graph "choice" {
  input v0 "c" : bool[]
  v1 = if v0 {then=graph "then" {
    v0 = const i64[] [1]
    return v0 "a"
  }, else=graph "else" {
    v0 = const i64[] [1]
    v1 = const i64[] [2]
    return v0 "a", v1 "b"
  }} : i64[] @o0(0 "If" "if")
  return v1 "y"
}"#;
    let found = match crate::graph::parse::parse(text) {
        Ok(graph) => format!("{:?}", crate::verify::verify(&graph)),
        Err(error) => error.to_string(),
    };
    assert!(found.contains("bodies of 1 and of 2 results"), "{found}");
}

#[test]
fn bodies_of_loops_take_what_they_are_given() {
    let text = r#"graph "rows" {
  input v0 "x" : f32[4, 2]
  v1 = scan v0 {trip=4, states=0, scans=1, reverse=[false, false], body=graph "step" {
    input v0 "row" : f32[2]
    v1 = neg v0 : f32[2] @o0(0 "Neg" "")
    return v1 "y"
  }} : f32[4, 2] @o0(0 "Scan" "")
  return v1 "y"
}"#;
    let graph = crate::graph::parse::parse(text).unwrap();
    let op = &graph.nodes[graph.order[0]].op;
    let of = |dtype, sizes: &[i64]| {
        infer(op, &[&TensorType::new(dtype, sizes.iter().map(|&n| Dim::from(n)).collect())])
    };
    of(DType::F32, &[4, 2]).unwrap();
    for (dtype, sizes) in [(DType::F32, &[3, 2]), (DType::F32, &[4, 3]), (DType::F64, &[4, 2])] {
        let message = of(dtype, sizes).err().unwrap().message;
        assert!(
            message.contains("scan input 0 is") && message.contains("its body takes f32[4, 2]"),
            "{message}"
        );
    }
}

#[test]
fn suppression_compares_with_a_number() {
    let ty =
        |dtype: DType, sizes: &[i64]| TensorType::new(dtype, sizes.iter().map(|&n| Dim::from(n)).collect());
    let (side, candidate) = (ty(DType::F32, &[3]), ty(DType::Bool, &[3]));
    let fits = |limit: TensorType| {
        let operands = [&side, &side, &side, &side, &candidate, &limit];
        infer(&Op::Suppress { take: Dim::ONE }, &operands).is_ok()
    };
    assert!(fits(ty(DType::F32, &[])));
    assert!(!fits(ty(DType::F64, &[])) && !fits(ty(DType::F32, &[1])));
}

#[test]
fn suppression_takes_rows_of_boxes() {
    let ty =
        |dtype: DType, sizes: &[i64]| TensorType::new(dtype, sizes.iter().map(|&n| Dim::from(n)).collect());
    let limit = ty(DType::F32, &[]);
    let fit = |sides: [&TensorType; 4], candidate: &TensorType| {
        let operands = [sides[0], sides[1], sides[2], sides[3], candidate, &limit];
        infer(&Op::Suppress { take: Dim::ONE }, &operands).is_ok()
    };
    let fits = |side: TensorType, candidate: TensorType| fit([&side; 4], &candidate);
    // One of another type or rank is enough.
    let (side, candidate) = (ty(DType::F32, &[3]), ty(DType::Bool, &[3]));
    for other in [ty(DType::F64, &[3]), ty(DType::F32, &[2, 3])] {
        for at in 0..4 {
            let mut sides = [&side; 4];
            sides[at] = &other;
            assert!(!fit(sides, &candidate), "{other} as side {at}");
        }
    }
    assert!(fits(ty(DType::F32, &[2, 3]), ty(DType::Bool, &[2, 3])));
    for (side, candidate) in [
        (ty(DType::F64, &[3]), ty(DType::Bool, &[3])),
        (ty(DType::F32, &[2, 3]), ty(DType::Bool, &[3])),
        (ty(DType::F32, &[3]), ty(DType::U8, &[3])),
        (ty(DType::F32, &[]), ty(DType::Bool, &[])),
    ] {
        assert!(!fits(side.clone(), candidate.clone()), "{side}, {candidate}");
    }
}
