//! The register-tiled matrix product: the loop that everything dense ends in.

use super::*;
use onnxc_ir::scalar::BinaryFn;

/// Rows and columns of the register tile.
type Tile = (i64, i64);

/// One vector wide: each broadcast element is used once, and what fused multiply-adds overwrite on x86-64 is
/// the broadcast. Wider tiles reuse it and need copies.
const TILE: Tile = (10, 4);
/// A tile that uses broadcasts twice.
const WIDE: Tile = (6, 8);

/// `C[m, n] = A[m, k] * B`, B packed in panels of a tile's columns.
fn gemm((mr, nr): Tile, m: i64, n: i64, k: Dim, unroll: i64) -> Kernel {
    let mut kernel = Kernel::new("gemm");
    let a = buffer(&mut kernel, "a", DType::F32, k.clone() * Dim::from(m), Access::Read);
    let b = buffer(&mut kernel, "b", DType::F32, k.clone() * Dim::from(n), Access::Read);
    let c = buffer(&mut kernel, "c", DType::F32, m * n, Access::Write);
    let acc = kernel.local("acc", DType::F32, &[mr as usize, nr as usize], 4);
    let [mt, nt, kk, ku, mi, ni] = ["mt", "nt", "k", "ku", "mi", "ni"].map(|name| kernel.loop_var(name));

    let tile = |body: Stmt| {
        for_(mi, 0i64, mr, LoopKind::Unrolled, vec![for_(ni, 0i64, nr, LoopKind::Vector, vec![body])])
    };
    let at = || vec![Index::var(mi), Index::var(ni)];
    let clear = tile(Stmt::Set { local: acc, at: at(), value: Expr::constant(DType::F32, 0.0) });
    let row = scaled(mt, mr).add(&Index::var(mi));
    let depth = Index::var(kk).add(&Index::var(ku));
    let a_index = row.scale(&k).add(&depth);
    let b_index =
        scaled(nt, k.clone() * Dim::from(nr)).add(&depth.scale(&Dim::from(nr))).add(&Index::var(ni));
    // What all rows of the tile read is loaded once for them.
    let column = kernel.let_var("b", DType::F32);
    let product = Expr::binary(BinaryFn::Mul, load(a, a_index), Expr::Var(column));
    let sum = Stmt::Accumulate { local: acc, at: at(), op: BinaryFn::Add, value: product };
    let step = vec![
        Stmt::Let { var: column, value: load(b, b_index) },
        for_(mi, 0i64, mr, LoopKind::Unrolled, vec![sum]),
    ];
    let step = for_(ni, 0i64, nr, LoopKind::Vector, step);
    let reduce = Stmt::For {
        var: kk,
        lo: Index::zero(),
        hi: Index::dim(k),
        step: unroll,
        kind: LoopKind::Serial,
        body: vec![for_(ku, 0i64, unroll, LoopKind::Unrolled, vec![step])],
    };
    let c_index = row.scale(&Dim::from(n)).add(&scaled(nt, nr)).add(&Index::var(ni));
    let store = tile(Stmt::Store { buf: c, index: c_index, value: Expr::Get { local: acc, at: at() } });
    let columns = for_(nt, 0i64, n / nr, LoopKind::Serial, vec![clear, reduce, store]);
    kernel.body = vec![for_(mt, 0i64, m / mr, LoopKind::Parallel, vec![columns])];
    kernel
}

fn inputs(m: i64, n: i64, k: i64) -> Vec<Vec<u8>> {
    let fill = |len: i64, seed: i64| -> Vec<f32> {
        (0..len).map(|i| ((i * seed + 3) % 17) as f32 * 0.25 - 2.0).collect()
    };
    vec![f32_bytes(&fill(m * k, 7)), f32_bytes(&fill(k * n, 5)), vec![0; (m * n * 4) as usize]]
}

fn expected(nr: i64, m: i64, n: i64, k: i64, a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut c = vec![];
    for row in 0..m {
        for column in 0..n {
            let panel = column / nr * k * nr + column % nr;
            c.push((0..k).map(|i| a[(row * k + i) as usize] * b[(panel + i * nr) as usize]).sum());
        }
    }
    c
}

fn check(tile: Tile, k: Dim, unroll: i64, depth: i64, dims: &[i64]) {
    let (rows, m, n) = (3, 3 * tile.0, 3 * tile.1);
    let code = build(&gemm(tile, m, n, k, unroll));
    let mut buffers = inputs(m, n, depth);
    // Two parts of the parallel range, as two threads would run them.
    assert_eq!(code.run(&mut buffers, dims, (0, 1)), 0);
    assert_eq!(code.run(&mut buffers, dims, (1, rows)), 0);
    // Small multiples of 1/16: sums are exact in any order.
    let (a, b) = (f32s(&buffers[0]), f32s(&buffers[1]));
    assert_eq!(f32s(&buffers[2]), expected(tile.1, m, n, depth, &a, &b));
}

#[test]
fn packed_product_is_right() {
    check(TILE, Dim::from(20i64), 4, 20, &[]);
    check(WIDE, Dim::from(20i64), 2, 20, &[]);
}

#[test]
fn depth_may_be_a_run_time_size() {
    let k = Dim::sym(cranelift_entity::EntityRef::new(1));
    check(TILE, k.clone(), 1, 13, &[-1, 13]);
    check(WIDE, k, 1, 13, &[-1, 13]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn inner_loop_is_broadcasts_and_fused_multiply_adds() {
    let (rows, unroll) = (TILE.0 as usize, 8);
    let text = assembly(&gemm(TILE, 40, 64, Dim::from(256i64), unroll as i64));
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("vfmadd213ps"), unroll * rows, "{text}");
    // Broadcasts straight from memory.
    let broadcasts = text.lines().filter(|l| l.contains("vbroadcastss") && l.contains('(')).count();
    assert_eq!(broadcasts, unroll * rows, "{text}");
    let spills = text.lines().filter(|l| l.contains("rsp") && l.contains("xmm")).count();
    assert_eq!(spills, 0, "{text}");
}

/// Multiply-adds of registers alone: what the machine gives at this vector width.
fn peak() -> Kernel {
    let mut kernel = Kernel::new("peak");
    let out = buffer(&mut kernel, "out", DType::F32, 48i64, Access::ReadWrite);
    let acc = kernel.local("acc", DType::F32, &[12, 4], 4);
    let factor = kernel.local("factor", DType::F32, &[4], 4);
    let [i, m, n] = ["i", "m", "n"].map(|name| kernel.loop_var(name));
    let all = |body: Stmt| {
        for_(m, 0i64, 12i64, LoopKind::Unrolled, vec![for_(n, 0i64, 4i64, LoopKind::Vector, vec![body])])
    };
    let at = || vec![Index::var(m), Index::var(n)];
    let get = || Expr::Get { local: acc, at: at() };
    let one = || Expr::Get { local: factor, at: vec![Index::var(n)] };
    let fma = Expr::Fma { a: Box::new(get()), b: Box::new(one()), c: Box::new(one()) };
    kernel.body = vec![
        for_(
            n,
            0i64,
            4i64,
            LoopKind::Vector,
            vec![Stmt::Set { local: factor, at: vec![Index::var(n)], value: load(out, Index::var(n)) }],
        ),
        all(Stmt::Set { local: acc, at: at(), value: load(out, Index::var(n)) }),
        for_(i, 0i64, 10_000i64, LoopKind::Serial, vec![all(Stmt::Set { local: acc, at: at(), value: fma })]),
        all(Stmt::Store { buf: out, index: scaled(m, 4i64).add(&Index::var(n)), value: get() }),
    ];
    kernel
}

/// Timing: run with `--ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let code = build(&peak());
    let mut best = 0.0f64;
    for _ in 0..300 {
        let start = std::time::Instant::now();
        code.run(&mut [vec![0; 256]], &[], (0, 0));
        best = best.max(2.0 * 48.0 * 10_000.0 / start.elapsed().as_secs_f64() / 1e9);
    }
    println!("registers alone: {best:.1} GFLOP/s");
    let k = 256;
    for tile in [TILE, (8, 4), (12, 4), (4, 8), WIDE] {
        for unroll in [1, 4, 8] {
            let (m, n) = (tile.0 * 12, tile.1 * 12);
            let kernel = gemm(tile, m, n, Dim::from(k), unroll);
            let code = build(&kernel);
            let mut buffers = inputs(m, n, k);
            let mut best = 0.0f64;
            for _ in 0..300 {
                let start = std::time::Instant::now();
                for _ in 0..5 {
                    code.run(&mut buffers, &[], (0, m / tile.0));
                }
                let flops = 2.0 * (m * n * k * 5) as f64;
                best = best.max(flops / start.elapsed().as_secs_f64() / 1e9);
            }
            println!("tile {tile:?} unroll {unroll}: {best:.1} GFLOP/s");
        }
    }
}
