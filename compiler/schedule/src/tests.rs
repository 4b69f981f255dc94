//! Each grouping rule on a small graph, the checker on broken plans, and random graphs.

use cranelift_entity::EntityRef;
use proptest::prelude::*;

use super::testing::*;
use super::*;
mod chain;

use onnxc_ir::build::Builder;
use onnxc_ir::graph::state::State;
use onnxc_ir::graph::{DType, RhsLayout, Symbol, TensorType};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

fn planned(graph: &Graph) -> Program {
    let options = [false, true].map(|in_place| Options { fuse: false, in_place, ..Options::default() });
    for options in options {
        schedule(graph, options).unwrap();
    }
    let kept = schedule(graph, Options::default()).unwrap();
    for recompute in [Recompute::Cheap, Recompute::Within(0)] {
        let again = schedule(graph, Options { recompute, ..Options::default() }).unwrap();
        assert!(estimate(&again.arena) <= estimate(&kept.arena), "{recompute:?}");
    }
    kept
}

/// Kinds of the groups in the order they run, with the names of their nodes.
fn kinds(graph: &Graph) -> Vec<(GroupKind, String)> {
    let program = planned(graph);
    let group = |step: &Step| match step {
        Step::Run(id) => {
            let group = &program.groups[*id];
            let names: Vec<&str> = group.nodes.iter().map(|&node| graph.nodes[node].op.name()).collect();
            Some((group.kind, names.join(" ")))
        }
        _ => None,
    };
    program.steps.iter().filter_map(group).collect()
}

fn only(graph: &Graph) -> (GroupKind, String) {
    let mut all = kinds(graph);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The bound is the sum of what lives at once, each at a multiple of the alignment.
#[test]
fn the_bound_counts_what_lives_at_once() {
    let g = graph(|b| {
        let x = input(b, &[4, 6]);
        let first = costly(b, x);
        let second = costly(b, first);
        let sum = b.binary(BinaryFn::Add, first, second).unwrap();
        vec![costly(b, sum)]
    });
    let program = schedule(&g, Options { fuse: false, in_place: false, ..Options::default() }).unwrap();
    // Of 96 bytes each: both operands of the sum, and the sum.
    assert_eq!((program.arena, program.bound), (Dim::from(3 * 128i64), Dim::from(3 * 128i64)));
}

#[test]
fn a_chain_of_maps_and_views_is_one_kernel() {
    let g = graph(|b| {
        let x = input(b, &[4, 6]);
        let y = silu(b, x);
        let t = b.transpose(y, &[1, 0]).unwrap();
        let e = b.unary(UnaryFn::Exp, t).unwrap();
        vec![silu(b, e)]
    });
    assert_eq!(only(&g), (GroupKind::Map, "sigmoid mul transpose exp sigmoid mul".into()));
}

/// What a forward pass computes and a way back reads in the opposite order: exponentials are computed again before they are read, from
/// what is kept for them, and products only where that is asked for.
#[test]
fn what_is_needed_much_later_is_computed_again() {
    let g = graph(|b| {
        let x = input(b, &[64, 16]);
        let mut kept = vec![];
        let mut y = x;
        for _ in 0..4 {
            y = dense(b, y);
            let first = costly(b, y);
            y = costly(b, first);
            kept.extend([first, y]);
        }
        for of in kept.into_iter().rev() {
            let g = b.binary(BinaryFn::Mul, y, of).unwrap();
            y = dense(b, g);
        }
        vec![y]
    });
    let with = |recompute| schedule(&g, Options { recompute, ..Options::default() }).unwrap();
    let twice = |program: &Program| -> Vec<GroupKind> {
        let mut seen = BTreeSet::new();
        let again = program.steps.iter().filter_map(|step| match step {
            Step::Run(id) if !seen.insert(*id) => Some(program.groups[*id].kind),
            _ => None,
        });
        again.collect()
    };
    let [none, cheap, all] = [Recompute::Nothing, Recompute::Cheap, Recompute::Within(0)].map(with);
    let bytes = |program: &Program| program.arena.as_const().unwrap();
    assert!(twice(&none).is_empty());
    assert!(!twice(&cheap).is_empty() && twice(&cheap).iter().all(|&kind| kind == GroupKind::Map));
    assert!(twice(&all).contains(&GroupKind::Contract), "{}", all.text(&g));
    assert!(bytes(&cheap) * 4 <= bytes(&none) * 3, "{} of {}", bytes(&cheap), bytes(&none));
    assert!(bytes(&all) < bytes(&cheap), "{} of {}", bytes(&all), bytes(&cheap));
    // No more than what is asked for.
    let between = (bytes(&cheap) + bytes(&none)) / 2;
    let some = with(Recompute::Within(between));
    assert!(bytes(&some) <= between && twice(&some).len() < twice(&all).len());
}

/// A weight's gradient reads its left operand row by row where there are many columns to read it for, and as it is where they are few.
#[test]
fn long_columns_are_copied() {
    let product = |steps: [i64; 2], columns: i64| {
        graph(|b| {
            let x = input(b, &[steps[0], steps[1], 64]);
            let panels = dims(&[columns / 8, steps[0], steps[1], 8]);
            let rhs = b.input("w", TensorType::new(DType::F32, panels), None);
            let rows = b.transpose(x, &[2, 0, 1]).unwrap();
            let panels = RhsLayout::Panels { nr: 8, depth: 1, n: Dim::from(columns) };
            vec![b.emit1(Op::Contract { batch: 0, m: 1, k: 2, rhs: panels }, &[rows, rhs]).unwrap()]
        })
    };
    let copied = [(GroupKind::Map, "transpose".into()), (GroupKind::Contract, "contract".into())];
    assert_eq!(kinds(&product([32, 64], 128)), copied);
    for (steps, columns) in [([32, 64], 64), ([2, 64], 128)] {
        assert_eq!(only(&product(steps, columns)), (GroupKind::Contract, "transpose contract".into()));
    }
}

#[test]
fn expensive_values_are_not_computed_twice_and_cheap_ones_are() {
    let both = |f: UnaryFn| {
        graph(|b| {
            let x = input(b, &[64, 64]);
            let e = b.unary(f, x).unwrap();
            let t = b.transpose(e, &[1, 0]).unwrap();
            vec![b.binary(BinaryFn::Add, e, t).unwrap()]
        })
    };
    assert_eq!(kinds(&both(UnaryFn::Exp)).len(), 2);
    assert_eq!(kinds(&both(UnaryFn::Abs)).len(), 1);
    // A row computed once for every row of its reader.
    let g = graph(|b| {
        let (x, row) = (input(b, &[64, 64]), input(b, &[64]));
        let e = b.unary(UnaryFn::Exp, row).unwrap();
        vec![b.binary(BinaryFn::Mul, x, e).unwrap()]
    });
    assert_eq!(kinds(&g).len(), 2);
}

#[test]
fn a_contraction_takes_its_epilogue_up_to_a_shared_value() {
    let g = graph(|b| {
        let (x, bias, residual) = (input(b, &[32, 24]), input(b, &[16]), input(b, &[32, 16]));
        let y = dense(b, x);
        let y = b.binary(BinaryFn::Add, y, bias).unwrap();
        let y = silu(b, y);
        let y = b.binary(BinaryFn::Add, y, residual).unwrap();
        let (left, right) = (b.unary(UnaryFn::Exp, y).unwrap(), b.transpose(y, &[1, 0]).unwrap());
        vec![left, b.unary(UnaryFn::Neg, right).unwrap()]
    });
    let all = kinds(&g);
    assert_eq!(all.len(), 3);
    assert_eq!(all[0], (GroupKind::Contract, "contract add sigmoid mul add".into()));
}

#[test]
fn an_epilogue_ends_with_bytes_that_its_one_reader_dequantizes() {
    let build = |is_output: bool| {
        graph(|b| {
            let x = input(b, &[32, 24]);
            let (first, second) = (dense(b, x), dense(b, x));
            let whole = b.unary(UnaryFn::Round, first).unwrap();
            let bytes = b.cast(whole, DType::U8).unwrap();
            let wide = b.cast(bytes, DType::F32).unwrap();
            let scale = b.constant(onnxc_ir::graph::Tensor::scalar(0.5f32));
            let real = b.binary(BinaryFn::Mul, wide, scale).unwrap();
            let sum = b.binary(BinaryFn::Add, second, real).unwrap();
            if is_output { vec![sum, real] } else { vec![sum] }
        })
    };
    let all =
        |is_output: bool| kinds(&build(is_output)).into_iter().map(|(_, names)| names).collect::<Vec<_>>();
    assert_eq!(all(false), ["contract round cast", "contract cast mul add"]);
    assert_eq!(all(true), ["contract round cast cast mul", "contract add"]);
}

#[test]
fn the_later_of_two_contractions_takes_their_sum_in_place() {
    let g = graph(|b| {
        let x = input(b, &[32, 24]);
        let (left, right) = (dense(b, x), dense(b, x));
        let sum = b.binary(BinaryFn::Add, left, right).unwrap();
        let t = b.transpose(sum, &[1, 0]).unwrap();
        vec![b.unary(UnaryFn::Exp, t).unwrap()]
    });
    let all = kinds(&g);
    assert_eq!(all[0], (GroupKind::Contract, "contract".into()));
    assert_eq!(all[1], (GroupKind::Contract, "contract add".into()));
    assert_eq!(planned(&g).arena, Dim::from(32i64 * 16 * 4), "the sum overwrites the first product");
}

#[test]
fn operands_of_epilogues_and_contractions_are_buffers() {
    let g = graph(|b| {
        let (x, other) = (input(b, &[32, 24]), input(b, &[32, 16]));
        let lhs = silu(b, x);
        let y = dense(b, lhs);
        let other = b.unary(UnaryFn::Exp, other).unwrap();
        vec![b.binary(BinaryFn::Mul, y, other).unwrap()]
    });
    let all = kinds(&g);
    assert_eq!(all.last().unwrap(), &(GroupKind::Contract, "contract mul".into()));
    assert_eq!(all.len(), 3);
}

#[test]
fn heads_are_split_and_transposed_without_copies_and_merged_with_one() {
    let g = graph(|b| {
        let x = input(b, &[10, 32]);
        let x = b.unary(UnaryFn::Exp, x).unwrap();
        let heads = b.reshape(x, dims(&[10, 4, 8])).unwrap();
        let heads = b.transpose(heads, &[1, 0, 2]).unwrap();
        let y = dense(b, heads);
        let back = b.transpose(y, &[1, 0, 2]).unwrap();
        let merged = b.reshape(back, dims(&[10, 64])).unwrap();
        vec![dense(b, merged)]
    });
    let all = kinds(&g);
    let wanted = [
        (GroupKind::Map, "exp"),
        (GroupKind::Contract, "reshape transpose contract"),
        (GroupKind::Map, "transpose"),
        (GroupKind::Contract, "reshape contract"),
    ];
    assert_eq!(all, wanted.map(|(kind, names)| (kind, names.to_string())));
}

#[test]
fn padding_under_a_window_is_a_kernel_and_elsewhere_it_is_not() {
    let build = |window: bool| {
        graph(|b| {
            let (x, fill) = (input(b, &[1, 9, 9, 4]), b.constant(onnxc_ir::graph::Tensor::scalar(0f32)));
            let x = relu(b, x);
            let pads = dims(&[0, 1, 1, 0]);
            let mut y = b.pad(x, fill, pads.clone(), pads).unwrap();
            if window {
                let (kernel, ones) = (vec![3, 3], vec![1, 1]);
                let op = Op::Window { first: 1, kernel, strides: ones.clone(), dilations: ones };
                y = b.emit1(op, &[y]).unwrap();
                y = b.reduce(ReduceFn::Max, y, &[3, 4]).unwrap();
            }
            vec![b.unary(UnaryFn::Exp, y).unwrap()]
        })
    };
    assert_eq!(only(&build(false)), (GroupKind::Map, "max pad exp".into()));
    let all = kinds(&build(true));
    assert_eq!(all[0], (GroupKind::Single, "max pad".into()));
    assert_eq!(all[1], (GroupKind::Reduce, "window reduce exp".into()));
}

#[test]
fn softmax_and_layer_normalization_are_rows() {
    let g = graph(|b| {
        let x = input(b, &[8, 10, 64]);
        let y = relu(b, x);
        vec![softmax(b, y, 2)]
    });
    assert_eq!(only(&g), (GroupKind::Rows, "max reduce sub exp reduce div".into()));
    let g = graph(|b| {
        let x = input(b, &[8, 10, 64]);
        vec![layer_norm(b, x)]
    });
    assert_eq!(only(&g).0, GroupKind::Rows);
    // Statistics of channels, too, but not what is computed of them for whole columns.
    let g = graph(|b| {
        let x = input(b, &[8, 10, 64]);
        let sum = b.reduce(ReduceFn::Sum, x, &[1]).unwrap();
        let deviation = b.binary(BinaryFn::Sub, x, sum).unwrap();
        let square = b.binary(BinaryFn::Mul, deviation, deviation).unwrap();
        vec![b.reduce(ReduceFn::Sum, square, &[1]).unwrap()]
    });
    assert_eq!(only(&g), (GroupKind::Rows, "reduce sub mul reduce".into()));
    // Over other axes it is two reductions and maps.
    let g = graph(|b| {
        let x = input(b, &[8, 10, 64]);
        vec![softmax(b, x, 1)]
    });
    assert!(kinds(&g).iter().all(|(kind, _)| *kind != GroupKind::Rows));
}

#[test]
fn a_residual_sum_is_a_second_output_of_its_normalization() {
    let g = graph(|b| {
        let (x, y) = (input(b, &[10, 16]), input(b, &[10, 16]));
        let sum = b.binary(BinaryFn::Add, x, y).unwrap();
        let normal = layer_norm(b, sum);
        let up = dense(b, normal);
        vec![b.binary(BinaryFn::Add, up, sum).unwrap()]
    });
    let program = planned(&g);
    let rows = program.groups.values().find(|group| group.kind == GroupKind::Rows).unwrap();
    assert_eq!(rows.outputs.len(), 2);
    assert_eq!(program.groups.len(), 2);
}

#[test]
fn a_depthwise_convolution_takes_its_bias_and_activation() {
    let g = depthwise();
    assert_eq!(only(&g), (GroupKind::Reduce, "window mul reduce reshape add mod mul".into()));
}

#[test]
fn a_lone_reduction_keeps_its_epilogue() {
    let g = graph(|b| {
        let x = input(b, &[2, 7, 7, 32]);
        let e = b.unary(UnaryFn::Exp, x).unwrap();
        let sum = b.reduce(ReduceFn::Sum, e, &[1, 2]).unwrap();
        vec![b.unary(UnaryFn::Log, sum).unwrap()]
    });
    assert_eq!(only(&g), (GroupKind::Reduce, "exp reduce log".into()));
    let g = graph(|b| {
        let x = input(b, &[8, 32]);
        let sum = b.reduce(ReduceFn::Sum, x, &[1]).unwrap();
        vec![b.unary(UnaryFn::Log, sum).unwrap()]
    });
    assert_eq!(only(&g), (GroupKind::Reduce, "reduce log".into()));
}

#[test]
fn outputs_are_computed_in_place_or_copied() {
    let g = graph(|b| {
        let x = input(b, &[4, 6]);
        let e = b.unary(UnaryFn::Exp, x).unwrap();
        let flat = b.reshape(e, dims(&[24])).unwrap();
        let same = b.reshape(x, dims(&[24])).unwrap();
        vec![flat, e, x, same]
    });
    let program = planned(&g);
    assert_eq!(program.groups.len(), 1);
    let copies: Vec<usize> = program
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Copy { output, .. } => Some(*output),
            _ => None,
        })
        .collect();
    assert_eq!(copies, [1, 2, 3]);
    assert_eq!(program.arena, Dim::ZERO);
    let flat = g.outputs[0].1;
    assert_eq!(program.places[program.storage(flat)], Some(Storage::Output(0)));
    assert_eq!(program.stats().copies, 3);
    assert!(program.text(&g).contains("map (v1 output 0: f32[4, 6]) = {exp n0}"), "{}", program.text(&g));
}

#[test]
fn joins_write_their_parts_and_small_ones_are_selects() {
    let build = |rows: i64| {
        graph(|b| {
            let (x, y) = (input(b, &[rows, 8]), input(b, &[rows, 8]));
            let (x, y) = (b.unary(UnaryFn::Exp, x).unwrap(), b.unary(UnaryFn::Exp, y).unwrap());
            let joined = b.concat(&[x, y], 1).unwrap();
            vec![b.unary(UnaryFn::Neg, joined).unwrap()]
        })
    };
    assert_eq!(only(&build(4)), (GroupKind::Map, "exp exp concat neg".into()));
    let all = kinds(&build(400));
    assert_eq!(all[0], (GroupKind::Single, "exp exp concat".into()));
}

#[test]
fn long_chains_are_cut() {
    let g = graph(|b| {
        let mut x = input(b, &[100]);
        for _ in 0..200 {
            x = silu(b, x);
        }
        vec![x]
    });
    let program = planned(&g);
    assert!(program.groups.len() > 4);
    assert!(program.groups.values().all(|group| group.nodes.len() <= 66));
    // All but the last overwrite each other.
    assert_eq!(program.arena, Dim::from(448i64));
}

#[test]
fn scans_hold_a_plan_of_their_own() {
    let mut body = graph(|b| {
        let (state, item) = (input(b, &[16]), input(b, &[16]));
        let sum = b.binary(BinaryFn::Add, state, item).unwrap();
        let t = b.reshape(sum, dims(&[4, 4])).unwrap();
        let e = softmax(b, t, 0);
        let next = b.reshape(e, dims(&[16])).unwrap();
        vec![next, sum]
    });
    body.name = "body".into();
    let g = graph(|b| {
        let (state, items) = (input(b, &[16]), input(b, &[5, 16]));
        let state = b.unary(UnaryFn::Exp, state).unwrap();
        let op = Op::scan(body, Dim::from(5i64), 1, 1, vec![false, true]);
        let results = b.emit(op, &[state, items]).unwrap();
        vec![b.unary(UnaryFn::Neg, results[0]).unwrap(), results[1]]
    });
    let program = planned(&g);
    let Some(Step::Control { node, bodies, .. }) =
        program.steps.iter().find(|step| matches!(step, Step::Control { .. }))
    else {
        panic!("no scan");
    };
    let (states, size) = control_scratch(&g, *node, bodies);
    assert_eq!(states, [Some(bodies[0].arena.clone())]);
    assert!(estimate(&program.arena) >= estimate(&size) + 2 * 64);
}

#[test]
fn symbolic_sizes_are_planned_as_formulas() {
    let s = Dim::sym(onnxc_ir::graph::Sym::new(0));
    let g = graph(|b| {
        let shape = vec![s.clone(), Dim::from(24i64)];
        let mut x = b.input("x", TensorType::new(DType::F32, shape), None);
        for _ in 0..6 {
            x = dense(b, x);
            x = b.unary(UnaryFn::Tanh, x).unwrap();
        }
        vec![x]
    });
    let program = planned(&g);
    let at = |value: i64| program.arena.eval(&|_| Some(value)).unwrap();
    assert_eq!((at(4), at(100)), (2 * 4 * 64, 2 * 100 * 64));
    assert_eq!(program.bound.eval(&|_| Some(100)), Some(2 * 100 * 64));
}

/// `k` sizes a sum that nothing bounds, and the positive elements of `x` one that `x` bounds.
const LATE: &str = r#"graph "late" {
  symbol s0 "n"
  symbol s1 "?1" = v1[0]
  symbol s2 "?2" = v5[0] <= s0
  input v0 "x" : i64[s0]
  input v1 "k" : i64[1]
  v2 = const i64[] [0]
  v3 = gt v0, v2 : bool[s0] @o0
  v4 = cast v3 {to=i64, saturate=true} : i64[s0] @o0
  v5 = reduce v4 {op=sum, axes=[0]} : i64[1] @o0
  v6 = iota {shape=[s1], axis=0} : i64[s1] @o0
  v7 = cumulate v6 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s1] @o0
  v8 = cumulate v7 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s1] @o0
  v9 = slice v0 {starts=[0], steps=[1], sizes=[s2]} : i64[s2] @o0
  v10 = cumulate v9 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s2] @o0
  v11 = cumulate v10 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s2] @o0
  return v8 "y", v11 "z"
}"#;

/// Without the pass that removes them, nodes may be left that nothing reads.
#[test]
fn sizes_of_dead_nodes_are_not_computed() {
    let g = onnxc_ir::graph::parse::parse(&LATE.replace(r#", v11 "z""#, "")).unwrap();
    let program = planned(&g);
    check(&g, &program).unwrap();
    let bound = program.steps.iter().filter(|step| matches!(step, Step::Bind(_))).count();
    assert_eq!(bound, 1, "{}", program.text(&g));
}

#[test]
fn what_data_size_is_placed_by_its_bound_or_allocated() {
    let g = onnxc_ir::graph::parse::parse(LATE).unwrap();
    let program = planned(&g);
    let place = |value: u32| program.places[ValueId::from_u32(value)].clone();
    assert!(matches!(place(7), Some(Storage::Heap(_))), "{}", program.text(&g));
    assert!(matches!(place(10), Some(Storage::Arena { .. })), "{}", program.text(&g));
    assert_eq!(program.heap.values().map(|block| block.bytes.to_string()).collect::<Vec<_>>(), ["s1*8"]);
    program.arena.visit_symbols(&mut |sym| assert_eq!(sym.as_u32(), 0, "{}", program.arena));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = program.clone();
        change(&mut program);
        check(&g, &program).unwrap_err().message
    };
    let first = |wanted: &dyn Fn(&Step) -> bool| program.steps.iter().position(wanted).unwrap();
    let bind = first(&|step| matches!(step, Step::Bind(sym) if sym.as_u32() == 2));
    let allocate = first(&|step| matches!(step, Step::Allocate(_)));
    let release = first(&|step| matches!(step, Step::Release(_)));
    let without = |at: usize| broken(&|program| drop(program.steps.remove(at)));
    assert!(without(bind).contains("needs s2 before it is read"));
    assert!(without(allocate).contains("h0"));
    assert!(without(release).contains("h0 is never given back"));
    assert!(broken(&|program| program.steps.rotate_right(1)).len() > 1);
    assert!(broken(&|program| program.steps.swap(allocate, release)).contains("h0"));
    let small = |program: &mut Program| {
        if let Some(Storage::Arena { size, .. }) = &mut program.places[ValueId::from_u32(10)] {
            *size = Dim::from(64i64);
        }
    };
    assert!(broken(&small).contains("v10"));
}

/// That `v2` has the four elements of `v4` is known when the run reads `s1`.
const VIEWED: &str = r#"graph "viewed" {
  symbol s0 "n"
  symbol s1 "?1" = v1[0]
  assume s0 = s1
  assume s1 = 4
  input v0 "x" : f32[s0]
  input v1 "count" : i64[1]
  v2 = exp v0 : f32[s0] @o0
  v3 = reshape v2 {shape=[s1]} : f32[s1] @o0
  v4 = reshape v3 {shape=[2, 2]} : f32[2, 2] @o0
  v5 = reshape v0 {shape=[s1]} : f32[s1] @o0
  v6 = reshape v5 {shape=[2, 2]} : f32[2, 2] @o0
  v7 = neg v6 : f32[2, 2] @o0
  return v4 "y", v7 "z"
}"#;

#[test]
fn views_are_used_when_their_sizes_are_known() {
    let g = onnxc_ir::graph::parse::parse(VIEWED).unwrap();
    let program = planned(&g);
    let [exponential, view] = [2, 4].map(ValueId::from_u32);
    assert!(matches!(program.places[exponential], Some(Storage::Arena { .. })), "{}", program.text(&g));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = program.clone();
        change(&mut program);
        check(&g, &program).unwrap_err().message
    };
    // Computed in the output.
    let late = broken(&|program| {
        program.places[exponential] = Some(Storage::Output(0));
        program.steps.retain(|step| !matches!(step, Step::Copy { .. }));
        assert_eq!(program.storage(view), exponential);
    });
    assert!(late.contains("before the run knows"), "{late}");
    // The size is read last.
    let late = broken(&|program| {
        let at = program.steps.iter().position(|step| matches!(step, Step::Bind(_))).unwrap();
        let bind = program.steps.remove(at);
        program.steps.push(bind);
    });
    assert!(late.contains("before the run knows"), "{late}");
}

/// `v7` reads rows of `v2`, as its kernel could; but how long the sum `v6` is depends on all of them.
const SIZED_BY_ROWS: &str = r#"graph "sized_by_rows" {
  symbol s0 "?0" = v4[0]
  input v0 "x" : i64[4, 8]
  v1 = reduce v0 {op=max, axes=[1]} : i64[4, 1] @o0
  v2 = sub v1, v0 : i64[4, 8] @o0
  v3 = reduce v2 {op=max, axes=[0, 1]} : i64[1, 1] @o0
  v4 = reshape v3 {shape=[1]} : i64[1] @o0
  v5 = iota {shape=[s0], axis=0} : i64[s0] @o0
  v6 = reduce v5 {op=sum, axes=[0]} : i64[1] @o0
  v7 = add v2, v6 : i64[4, 8] @o0
  return v7 "y"
}"#;

#[test]
fn rows_that_decide_a_size_are_computed_before_what_has_it() {
    let g = onnxc_ir::graph::parse::parse(SIZED_BY_ROWS).unwrap();
    let program = planned(&g);
    check(&g, &program).unwrap();
    let rows = program.groups.values().find(|group| group.kind == GroupKind::Rows).unwrap();
    assert_eq!(rows.outputs, [ValueId::from_u32(2)], "{}", program.text(&g));
}

#[test]
fn rows_that_wait_for_each_other_are_kernels_of_their_own() {
    let g = onnxc_ir::graph::parse::parse(CROSSED_ROWS).unwrap();
    let program = planned(&g);
    check(&g, &program).unwrap();
    let rows = program.groups.values().filter(|group| group.kind == GroupKind::Rows);
    let mut outputs: Vec<_> = rows.map(|group| group.outputs.clone()).collect();
    outputs.sort();
    let wanted: [Vec<ValueId>; 2] =
        [vec![3, 8], vec![6]].map(|values| values.into_iter().map(ValueId::from_u32).collect());
    assert_eq!(outputs, wanted, "{}", program.text(&g));
}

/// The loop reads nothing but an input, and stands before the end of the kernel that decides its length.
const COUNTED_LOOP: &str = r#"graph "counted_loop" {
  symbol s0 "?0" = v1[0]
  input v0 "x" : i64[8]
  v1 = reduce v0 {op=max, axes=[0]} : i64[1] @o0
  v2 = scan v0 {trip=s0, states=1, scans=0, reverse=[], body=graph "body" {
    symbol s0 "?0"
    input v0 "state" : i64[8]
    v1 = neg v0 : i64[8] @o0
    return v1 "next"
  }} : i64[8] @o0
  v3 = sub v0, v1 : i64[8] @o0
  return v2 "y", v3 "z"
}"#;

#[test]
fn a_loop_waits_for_its_length() {
    let g = onnxc_ir::graph::parse::parse(COUNTED_LOOP).unwrap();
    let program = planned(&g);
    check(&g, &program).unwrap();
    let place = |wanted: fn(&Step) -> bool| program.steps.iter().position(wanted).unwrap();
    let bound = place(|step| matches!(step, Step::Bind(_)));
    assert!(bound < place(|step| matches!(step, Step::Control { .. })), "{}", program.text(&g));
}

#[test]
fn bounds_that_no_machine_has_are_allocated() {
    let g = onnxc_ir::graph::parse::parse(include_str!("../../../tests/c/multiplied.onnxir")).unwrap();
    let program = planned(&g);
    assert_eq!(
        program.heap.values().map(|block| block.bytes.to_string()).collect::<Vec<_>>(),
        ["s0*s0*s0*8"; 2]
    );
    assert!(program.arena.as_const().is_some_and(|bytes| bytes < 128 << 20), "{}", program.arena);
}

#[test]
fn an_arena_that_no_machine_has_is_refused_by_node() {
    let g = graph(|b| {
        let x = input(b, &[1 << 15, 1]);
        let y = b.transpose(x, &[1, 0]).unwrap();
        let product = b.binary(BinaryFn::Mul, x, y).unwrap();
        let mut sums = vec![];
        for axis in 0..2 {
            let op = Op::Cumulate { op: ReduceFn::Sum, axis, exclusive: false, reverse: false };
            let sum = b.emit1(op, &[product]).unwrap();
            let wide =
                b.reshape(sum, [1 << 15, 1, 1 << 15].map(|size: i64| Dim::from(size)).to_vec()).unwrap();
            sums.push(wide);
        }
        let turned = b.transpose(sums[1], &[1, 0, 2]).unwrap();
        let cube = b.binary(BinaryFn::Mul, sums[0], turned).unwrap();
        let op = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false };
        let first = b.emit1(op.clone(), &[cube]).unwrap();
        vec![b.emit1(op, &[first]).unwrap()]
    });
    let error = schedule(&g, Options::default()).unwrap_err();
    assert!(error.node.is_some() && error.message.contains("the largest, 140737488355328 bytes"), "{error}");
}

/// Each size is known, but their sum is not.
#[test]
fn an_arena_of_too_many_terms_is_refused() {
    let terms = |first: u32| -> Dim {
        (first..first + 30)
            .map(|at| Dim::sym(onnxc_ir::graph::Sym::from_u32(at)))
            .fold(Dim::ZERO, |sum, sym| sum + sym)
    };
    let g = graph(|b| {
        for at in 2..30 * 17 {
            b.graph.symbols.push(Symbol { name: format!("s{at}") });
        }
        let mut all = vec![];
        for at in 1..17 {
            let x = b.input("x", TensorType::new(DType::F32, vec![terms(0), terms(30 * at)]), None);
            let x = costly(b, x);
            all.push((x, b.reduce(ReduceFn::Sum, x, &[0, 1]).unwrap()));
        }
        let sum = all.iter().map(|own| own.1).reduce(|a, c| b.binary(BinaryFn::Add, a, c).unwrap()).unwrap();
        all.iter().map(|own| b.binary(BinaryFn::Mul, own.0, sum).unwrap()).collect()
    });
    let error = schedule(&g, Options { fuse: false, in_place: false, ..Options::default() }).unwrap_err();
    assert!(error.message.contains("the size of all intermediate values"), "{error}");
}

#[test]
fn the_checker_finds_broken_plans() {
    let g = graph(|b| {
        let x = input(b, &[32, 24]);
        let (left, right) = (dense(b, x), dense(b, x));
        let left = softmax(b, left, 1);
        let right = softmax(b, right, 1);
        vec![b.binary(BinaryFn::Add, left, right).unwrap()]
    });
    let good = planned(&g);
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = good.clone();
        change(&mut program);
        check(&g, &program).unwrap_err().message
    };
    let arena: Vec<ValueId> =
        good.places.keys().filter(|&v| matches!(good.places[v], Some(Storage::Arena { .. }))).collect();
    // All at offset 0: something is overwritten.
    let message = broken(&|program| {
        for &value in &arena {
            if let Some(Storage::Arena { offset, .. }) = &mut program.places[value] {
                *offset = Dim::ZERO;
            }
        }
    });
    assert!(message.contains("over") || message.contains("hold"), "{message}");
    assert!(broken(&|program| program.arena = Dim::from(64i64)).contains("of the arena"));
    assert!(broken(&|program| program.steps.reverse()).contains("does not hold"));
    assert!(broken(&|program| drop(program.steps.pop())).contains("does not run"));
    let misaligned = |program: &mut Program| {
        if let Some(Storage::Arena { offset, .. }) = &mut program.places[arena[0]] {
            *offset = offset.clone() + Dim::from(4i64);
        }
        program.arena = program.arena.clone() + Dim::from(64i64);
    };
    assert!(broken(&misaligned).contains("of the arena"));
    let missing = |program: &mut Program| {
        let id = program.groups.keys().next().unwrap();
        program.groups[id].inputs.pop();
    };
    assert!(broken(&missing).contains("neither computed nor read"));
    // A softmax may not overwrite its operand: it reads whole rows.
    let rows = good.groups.values().find(|group| group.kind == GroupKind::Rows).unwrap();
    let alias = |program: &mut Program| {
        program.places[rows.outputs[0]] = Some(Storage::Alias(rows.inputs[0]));
    };
    assert!(broken(&alias).contains("over its operand"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_graphs_pass_the_check(
        picks in prop::collection::vec(pick(), 1..60),
        outputs in prop::collection::vec(any::<u16>(), 1..4),
        symbolic in any::<bool>(),
    ) {
        let g = random_graph(&picks, &outputs, lead(symbolic), DType::F32);
        let program = planned(&g);
        if !symbolic {
            let (arena, bound) = (program.arena.as_const().unwrap(), program.bound.as_const().unwrap());
            prop_assert!(arena >= bound && arena as f64 <= 1.25 * bound as f64, "{arena} for {bound}");
        }
    }
}

/// A loop that stacks what an inner loop of unknown but bounded length stacked.
const BOUNDED: &str = r#"graph "bounded" {
  symbol s0 "n" = v4[0]
  input v0 "go" : bool[]
  v1 = const i64[1] [0]
  v2 = const i64[1] [0]
  v3, v4, v5 = scan v1, v2, v0 {trip=3, states=2, scans=0, reverse=[false], at=[2], shapes=[[3, s0]], body=graph "body" {
    symbol s0 "n"
    symbol s1 "?1" = v4[0] <= 4
    input v0 "sizes" : i64[1]
    input v1 "before" : i64[1]
    input v2 "go" : bool[]
    v3, v4, v5 = scan v2, v1 {trip=4, conditional=true, states=2, scans=0, reverse=[false], at=[2], shapes=[[s1]], body=graph "body" {
      symbol s0 "n"
      symbol s1 "?1"
      input v0 "go" : bool[]
      input v1 "count" : i64[1]
      v2 = const i64[] [1]
      v3 = add v1, v2 : i64[1] @o0
      v4 = reshape v1 {shape=[]} : i64[] @o0
      return v0 "", v3 "", v4 ""
    }} : bool[], i64[1], i64[s1] @o0
    v6 = dim_values {dims=[s1]} : i64[1] known [s1] @o0
    return v6 "", v6 "", v5 ""
  }} : i64[1], i64[1], i64[3, s0] @o0
  return v5 "y"
}"#;

#[test]
fn what_is_handed_over_and_bounded_is_copied_into_its_block() {
    let g = onnxc_ir::graph::parse::parse(BOUNDED).unwrap();
    let program = planned(&g);
    let bodies = program.steps.iter().find_map(|step| match step {
        Step::Control { bodies, .. } => Some(bodies),
        _ => None,
    });
    let body = &bodies.unwrap()[0];
    let place = body.places[ValueId::from_u32(5)].clone();
    assert!(matches!(place, Some(Storage::Arena { .. })), "{}", program.text(&g));
    assert!(body.handed.contains_key(&2), "{}", program.text(&g));
}

/// Of boxes without a limit, no memory is planned for more than there are.
#[test]
fn all_boxes_that_there_are_is_no_size() {
    use onnxc_ops::node_case::Case;
    let all = Case::new("NonMaxSuppression", 11)
        .input::<f32>(&[1, 6, 4], &[0.0; 24])
        .input::<f32>(&[1, 1, 6], &[0.5; 6])
        .constant::<i64>(&[1], &[i64::MAX])
        .constant::<f32>(&[1], &[0.5])
        .input::<f32>(&[1], &[0.4]);
    let (graph, _) = all.lower().unwrap();
    let program = schedule(&graph, Default::default()).unwrap();
    assert!(program.arena.as_const().is_some_and(|bytes| bytes < 1 << 16), "{}", program.arena);
}

/// A graph with inputs of one shape whose last ones are states; `build` gives their new values, and other outputs before these.
fn stateful(
    inputs: usize,
    states: usize,
    build: impl FnOnce(&mut Builder, &[ValueId]) -> Vec<ValueId>,
) -> Graph {
    let mut g = graph(|b| {
        let given: Vec<ValueId> = (0..inputs + states).map(|_| input(b, &[4, 64])).collect();
        build(b, &given)
    });
    let outputs = g.outputs.len() - states;
    for at in 0..states {
        let ty = g.ty(g.inputs[inputs + at].value).clone();
        g.states.push(State { ports: (inputs + at, outputs + at), ty, growth: None, panels: None });
    }
    g
}

/// `decay * old + g`
fn blended(b: &mut Builder, old: ValueId, g: ValueId) -> ValueId {
    let old = b.binary_scalar(BinaryFn::Mul, old, 0.5).unwrap();
    b.binary(BinaryFn::Add, old, g).unwrap()
}

/// Groups that run, each with the number of its outputs; and how many states are copied.
fn updates(g: &Graph) -> (Vec<usize>, usize) {
    let program = planned(g);
    let copies = program.steps.iter().filter(|step| matches!(step, Step::Copy { .. })).count();
    let run = |step: &Step| match step {
        Step::Run(id) => Some(program.groups[*id].outputs.len()),
        _ => None,
    };
    (program.steps.iter().filter_map(run).collect(), copies)
}

#[test]
fn an_optimizer_replaces_what_it_keeps_and_the_parameter_in_one_kernel() {
    let g = stateful(1, 3, |b, x| {
        let g = costly(b, x[0]);
        let first = blended(b, x[1], g);
        let squares = b.binary(BinaryFn::Mul, g, g).unwrap();
        let second = blended(b, x[2], squares);
        let root = b.unary(UnaryFn::Sqrt, second).unwrap();
        let step = b.binary(BinaryFn::Div, first, root).unwrap();
        vec![g, first, second, b.binary(BinaryFn::Sub, x[3], step).unwrap()]
    });
    // What is an output as well comes before.
    assert_eq!(updates(&g), (vec![1, 3], 0));
    let program = planned(&g);
    let Some(Step::Run(last)) = program.steps.last() else { panic!("{:?}", program.steps) };
    assert!(program.replaces_states(&g, *last));
    let places: Vec<_> = program.groups[*last].outputs.iter().map(|&out| program.place(out)).collect();
    let wanted: Vec<Storage> = [1, 2, 3].map(Storage::Output).to_vec();
    assert!(wanted.iter().all(|place| places.contains(&Some(place))), "{places:?}");
}

#[test]
fn states_that_others_read_are_replaced_at_the_end() {
    // Another one is made of it.
    let read = |b: &mut Builder, x: &[ValueId]| {
        let first = costly(b, x[0]);
        let sum = b.binary(BinaryFn::Add, x[0], x[1]).unwrap();
        vec![first, costly(b, sum)]
    };
    assert_eq!(updates(&stateful(0, 2, read)), (vec![1, 1], 1));
    // It is an output itself, before the run.
    let given = |b: &mut Builder, x: &[ValueId]| vec![x[0], costly(b, x[0])];
    assert_eq!(updates(&stateful(0, 1, given)), (vec![1], 2));
    // Its new value is one too.
    let twice = |b: &mut Builder, x: &[ValueId]| {
        let new = costly(b, x[0]);
        vec![new, new]
    };
    assert_eq!(updates(&stateful(0, 1, twice)).1, 1);
    // It is read elsewhere than where the new one is written.
    let turned = |b: &mut Builder, x: &[ValueId]| {
        let turned = b.reshape(x[0], dims(&[64, 4])).unwrap();
        let turned = b.transpose(turned, &[1, 0]).unwrap();
        let sum = b.binary(BinaryFn::Add, turned, x[0]).unwrap();
        vec![costly(b, sum)]
    };
    assert_eq!(updates(&stateful(0, 1, turned)).1, 1);
    // What computes it may fail: only the other one is written in place, behind what still reads it.
    let taken = |b: &mut Builder, x: &[ValueId]| {
        let rows = b.constant(onnxc_ir::graph::Tensor::from_slice(&[4], &[3i64, 2, 1, 0]));
        vec![b.emit1(Op::Gather { axis: 0 }, &[x[1], rows]).unwrap(), costly(b, x[0])]
    };
    assert_eq!(updates(&stateful(0, 2, taken)), (vec![1, 1], 1));
}
