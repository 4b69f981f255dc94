//! Chains: which groups become one, and what a plan with scratch must keep.

use super::*;
use onnxc_ir::graph::Sym;

/// What may come between scores and weights, and between weights and their sums.
type Between<'a> = &'a dyn Fn(&mut Builder, ValueId) -> ValueId;

fn contract(b: &mut Builder, x: ValueId, y: ValueId) -> ValueId {
    let (batch, n) = (b.rank(x) - 2, b.shape(y)[b.rank(y) - 1].clone());
    let packed = b.emit1(Op::Pack { batch, k: 1, nr: 16 }, &[y]).unwrap();
    let rhs = RhsLayout::Panels { nr: 16, depth: 1, n };
    b.emit1(Op::Contract { batch, m: 1, k: 1, rhs }, &[x, packed]).unwrap()
}

/// Attention of `heads` heads over `q` rows and `k` keys.
fn attention(b: &mut Builder, heads: i64, q: &Dim, k: &Dim, before: Between, after: Between) -> ValueId {
    let mut input = |shape: &[&Dim]| {
        let shape = std::iter::once(Dim::from(heads)).chain(shape.iter().map(|&dim| dim.clone()));
        b.input("x", TensorType::new(DType::F32, shape.collect()), None)
    };
    let depth = Dim::from(64i64);
    let (x, y, z) = (input(&[q, &depth]), input(&[&depth, k]), input(&[k, &depth]));
    let scores = contract(b, x, y);
    let scores = before(b, scores);
    let axis = b.rank(scores) - 1;
    let weights = softmax(b, scores, axis);
    let weights = after(b, weights);
    contract(b, weights, z)
}

fn same(_: &mut Builder, x: ValueId) -> ValueId {
    x
}

fn chains(graph: &Graph) -> usize {
    planned(graph).stats().chain
}

fn plain(heads: i64, q: i64, k: i64) -> Graph {
    graph(|b| vec![attention(b, heads, &Dim::from(q), &Dim::from(k), &same, &same)])
}

#[test]
fn attention_is_one_kernel() {
    let g = plain(12, 128, 128);
    let program = planned(&g);
    let id = program.groups.keys().find(|&id| program.groups[id].kind == GroupKind::Chain).unwrap();
    let chain = &program.groups[id];
    let kinds: Vec<GroupKind> = chain.stages.iter().map(|stage| stage.kind).collect();
    assert_eq!(kinds, [GroupKind::Contract, GroupKind::Rows, GroupKind::Contract]);
    // Two packed operands beside it.
    assert_eq!((program.groups.len(), chain.inputs.len()), (3, 3));
    assert!(program.text(&g).contains(" scratch ["), "{}", program.text(&g));
    // Slots of whole blocks for 16 parts, each row and another cache line.
    assert_eq!(chain.scratch, Dim::from(16 * 24 * (128 + 16) * 4i64));
}

/// The second product of one attention as the scores of the next: a group is part of one chain.
#[test]
fn chains_share_no_product() {
    let (long, size) = (Dim::from(2048i64), Dim::from(512i64));
    let g = graph(|b| {
        let mut input = |shape: &[&Dim]| {
            let shape = std::iter::once(Dim::ONE).chain(shape.iter().map(|&dim| dim.clone()));
            b.input("x", TensorType::new(DType::F32, shape.collect()), None)
        };
        let depth = Dim::from(64i64);
        let (x, y) = (input(&[&long, &depth]), input(&[&depth, &size]));
        let (z, last) = (input(&[&size, &size]), input(&[&size, &depth]));
        let mut rows = contract(b, x, y);
        for operand in [z, last] {
            let weights = softmax(b, rows, 2);
            rows = contract(b, weights, operand);
        }
        vec![rows]
    });
    let program = planned(&g);
    // Three packed operands, and what the chain leaves: a softmax and a product.
    assert_eq!((program.stats().chain, program.groups.len()), (1, 6), "{}", program.text(&g));
}

/// Where data decide how many rows there are, so do they the bytes of the slots.
#[test]
fn scratch_of_data_sizes_is_a_block() {
    let g = graph(|b| {
        let count = b.input("n", TensorType::new(DType::I64, vec![]), None);
        let q = b.sizes(count, &|_| None).unwrap().remove(0);
        vec![attention(b, 12, &q, &q, &same, &same)]
    });
    let program = planned(&g);
    let id = program.groups.keys().find(|&id| program.groups[id].kind == GroupKind::Chain).unwrap();
    assert!(matches!(program.scratch[id], Some(Scratch::Heap(_))), "{}", program.text(&g));
}

#[test]
fn small_scores_are_stored() {
    assert_eq!(chains(&plain(1, 64, 64)), 0);
    assert_eq!(chains(&plain(1, 256, 256)), 0);
    assert_eq!(chains(&plain(1, 512, 512)), 1);
    // Fewer rows than keys have columns.
    assert_eq!(chains(&plain(12, 32, 2048)), 0);
    assert_eq!(chains(&plain(12, 128, 2048)), 1);
    let s = Dim::sym(Sym::new(0));
    assert_eq!(chains(&graph(|b| vec![attention(b, 1, &Dim::ONE, &s, &same, &same)])), 0);
    assert_eq!(chains(&graph(|b| vec![attention(b, 1, &s, &s, &same, &same)])), 1);
    let never = Options { chain_above: None, ..Options::default() };
    assert_eq!(schedule(&plain(1, 512, 512), never).unwrap().stats().chain, 0);
}

#[test]
fn integers_between_are_apart() {
    let s = Dim::from(512i64);
    let causal = |b: &mut Builder, x: ValueId| {
        let row = b.iota(vec![s.clone(), Dim::ONE], 0).unwrap();
        let column = b.iota(vec![s.clone()], 0).unwrap();
        let allowed = b.compare(onnxc_ir::scalar::CompareFn::Le, column, row).unwrap();
        let never = b.scalar(DType::F32, f64::NEG_INFINITY);
        b.select(allowed, x, never).unwrap()
    };
    // The heads share the mask, which is a buffer of conditions then.
    assert_eq!(chains(&graph(|b| vec![attention(b, 2, &s, &s, &causal, &same)])), 1);
    let rounded = |b: &mut Builder, x: ValueId| {
        let whole = b.cast(x, DType::I64).unwrap();
        b.cast(whole, DType::F32).unwrap()
    };
    assert_eq!(chains(&graph(|b| vec![attention(b, 2, &s, &s, &rounded, &same)])), 0);
    // What is rounded behind the sums is part of the last product.
    for dtype in [DType::BF16, DType::F16] {
        let behind = |b: &mut Builder| {
            let y = attention(b, 2, &s, &s, &same, &same);
            vec![b.cast(y, dtype).unwrap()]
        };
        assert_eq!(chains(&graph(behind)), 1);
    }
    let masked = |b: &mut Builder, x: ValueId| {
        let mask = b.input("mask", TensorType::new(DType::F32, vec![s.clone(), s.clone()]), None);
        b.binary(BinaryFn::Add, x, mask).unwrap()
    };
    assert_eq!(chains(&graph(|b| vec![attention(b, 2, &s, &s, &masked, &same)])), 1);
    let allowed = |b: &mut Builder, x: ValueId| {
        let allowed = b.input("allowed", TensorType::new(DType::Bool, vec![s.clone(), s.clone()]), None);
        let never = b.scalar(DType::F32, f64::NEG_INFINITY);
        b.select(allowed, x, never).unwrap()
    };
    assert_eq!(chains(&graph(|b| vec![attention(b, 2, &s, &s, &allowed, &same)])), 1);
}

#[test]
fn what_something_else_reads_is_stored() {
    let size = Dim::from(300i64);
    for at in 0..2 {
        let g = graph(|b| {
            let kept = std::cell::Cell::new(None);
            let keep = |here: bool, x: ValueId| {
                kept.set(if here { Some(x) } else { kept.get() });
                x
            };
            let y = attention(b, 2, &size, &size, &|_, x| keep(at == 0, x), &|_, x| keep(at == 1, x));
            vec![y, kept.get().unwrap()]
        });
        assert_eq!(chains(&g), 0);
    }
}

#[test]
fn rows_must_stay_rows() {
    let size = Dim::from(300i64);
    let one = |before: Between, after: Between| {
        chains(&graph(|b| vec![attention(b, 2, &size, &size, before, after)]))
    };
    let split = |shape: &'static [i64]| move |b: &mut Builder, x: ValueId| b.reshape(x, dims(shape)).unwrap();
    // Other leading axes, as for heads that share keys.
    assert_eq!(one(&split(&[2, 4, 75, 300]), &split(&[2, 300, 300])), 1);
    // Columns that become rows.
    assert_eq!(one(&same, &|b, x| b.transpose(x, &[0, 2, 1]).unwrap()), 0);
    assert_eq!(one(&|b, x| b.transpose(x, &[0, 2, 1]).unwrap(), &same), 0);
    // Rows of another length between, then of this one again.
    assert_eq!(one(&split(&[2, 600, 150]), &split(&[2, 300, 300])), 0);
    // Neighbouring rows.
    let shifted = |b: &mut Builder, x: ValueId| {
        let (head, tail) = (
            b.slice_axis(x, 1, Dim::ZERO, Dim::ONE).unwrap(),
            b.slice_axis(x, 1, Dim::ZERO, Dim::from(299i64)).unwrap(),
        );
        let moved = b.concat(&[head, tail], 1).unwrap();
        b.binary(BinaryFn::Add, x, moved).unwrap()
    };
    assert_eq!(one(&shifted, &same), 0);
}

/// A long sequence's memory grows with its length, not with its square.
#[test]
fn no_memory_for_scores() {
    let s = Dim::sym(Sym::new(0));
    let g = graph(|b| vec![attention(b, 12, &s, &s, &same, &same)]);
    let program = planned(&g);
    let at = |value: i64| program.arena.eval(&|_| Some(value)).unwrap();
    // Packed keys and values, and 16 slots of 24 rows.
    let rows = |length: i64| 16 * 24 * (length + 16) * 4;
    assert_eq!(at(4096), 2 * 12 * 4096 * 64 * 4 + rows(4096));
    assert_eq!(at(8192), 2 * 12 * 8192 * 64 * 4 + rows(8192));
    let fixed = planned(&plain(12, 4096, 4096));
    assert_eq!(fixed.arena, Dim::from(at(4096)));
}

#[test]
fn the_checker_finds_broken_chains() {
    let g = plain(12, 128, 128);
    let good = planned(&g);
    let id = good.groups.keys().find(|&id| good.groups[id].kind == GroupKind::Chain).unwrap();
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = good.clone();
        change(&mut program);
        check(&g, &program).unwrap_err().message
    };
    let chain = &good.groups[id];
    let packed =
        chain.inputs.iter().find(|&&v| matches!(good.places[v], Some(Storage::Arena { .. }))).unwrap();
    let Some(Storage::Arena { offset, .. }) = &good.places[*packed] else { panic!("not in the arena") };
    let at = |program: &mut Program, offset: &Dim| program.scratch[id] = Some(Scratch::Arena(offset.clone()));
    assert!(broken(&|program| at(program, offset)).contains("overlaps its"));
    assert!(broken(&|program| program.scratch[id] = None).contains("has no scratch"));
    assert!(broken(&|program| at(program, &program.arena.clone())).contains("the scratch of"));
    assert!(broken(&|program| at(program, &Dim::from(4i64))).contains("the scratch of"));
    assert!(broken(&|program| program.groups[id].scratch = Dim::from(64i64)).contains("has scratch of 64"));
    assert!(broken(&|program| program.groups[id].stages.reverse()).contains("hands on"));
    assert!(broken(&|program| drop(program.groups[id].stages.pop())).contains("stages of the chain"));
    let weights = chain.stages[1].outputs[0];
    let stored = |program: &mut Program| {
        program.places[weights] = Some(Storage::Arena { offset: Dim::ZERO, size: Dim::from(1i64 << 20) });
    };
    assert!(broken(&stored).contains("has a place"));
    // Scratch holds nothing afterwards: what was there before is gone.
    let other = graph(|b| {
        let (q, k) = (Dim::from(128i64), Dim::from(128i64));
        let x = input(b, &[64, 64]);
        let x = costly(b, x);
        let y = attention(b, 12, &q, &k, &same, &same);
        let x = dense(b, x);
        vec![x, y]
    });
    let mut program = planned(&other);
    let id = program.groups.keys().find(|&id| program.groups[id].kind == GroupKind::Chain).unwrap();
    let live = program.groups.values().find(|group| group.kind == GroupKind::Map).unwrap().outputs[0];
    let map = program.groups.iter().find(|(_, group)| group.kind == GroupKind::Map).unwrap().0;
    // The map first, then the chain, then what reads the map's result.
    let first = program.steps.iter().position(|step| *step == Step::Run(map)).unwrap();
    let step = program.steps.remove(first);
    program.steps.insert(0, step);
    let reader = program.groups.iter().find(|(_, group)| group.inputs.contains(&live)).unwrap().0;
    let at = program.steps.iter().position(|step| *step == Step::Run(reader)).unwrap();
    let step = program.steps.remove(at);
    program.steps.push(step);
    let end = program.arena.clone();
    program.places[live] = Some(Storage::Arena { offset: end.clone(), size: Dim::from(64 * 64 * 4i64) });
    program.arena = end.clone() + program.groups[id].scratch.clone();
    check(&other, &program).unwrap();
    program.scratch[id] = Some(Scratch::Arena(end));
    assert!(check(&other, &program).unwrap_err().message.contains("does not hold"));
}
