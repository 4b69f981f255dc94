//! The register-tiled matrix product: the loop that everything dense ends in.

use super::*;
use crate::scalar::BinaryFn;

const MR: i64 = 6;
const NR: i64 = 8;

/// `C[m, n] = A[m, k] * B`, B packed in panels of 8 columns.
fn gemm(m: i64, n: i64, k: Dim, unroll: i64) -> Kernel {
    let mut kernel = Kernel::new("gemm");
    let a = buffer(&mut kernel, "a", DType::F32, k.clone() * Dim::from(m), Access::Read);
    let b = buffer(&mut kernel, "b", DType::F32, k.clone() * Dim::from(n), Access::Read);
    let c = buffer(&mut kernel, "c", DType::F32, m * n, Access::Write);
    let acc = kernel.local("acc", DType::F32, &[MR as usize, NR as usize], 4);
    let [mt, nt, kk, ku, mi, ni] = ["mt", "nt", "k", "ku", "mi", "ni"].map(|name| kernel.loop_var(name));

    let tile = |body: Stmt| {
        for_(mi, 0i64, MR, LoopKind::Unrolled, vec![for_(ni, 0i64, NR, LoopKind::Vector, vec![body])])
    };
    let at = || vec![Index::var(mi), Index::var(ni)];
    let clear = tile(Stmt::Set { local: acc, at: at(), value: Expr::constant(DType::F32, 0.0) });
    let row = scaled(mt, MR).add(&Index::var(mi));
    let depth = Index::var(kk).add(&Index::var(ku));
    let a_index = row.scale(&k).add(&depth);
    let b_index =
        scaled(nt, k.clone() * Dim::from(NR)).add(&depth.scale(&Dim::from(NR))).add(&Index::var(ni));
    let product = Expr::binary(BinaryFn::Mul, load(a, a_index), load(b, b_index));
    let step = tile(Stmt::Accumulate { local: acc, at: at(), op: BinaryFn::Add, value: product });
    let reduce = Stmt::For {
        var: kk,
        lo: Index::zero(),
        hi: Index::dim(k),
        step: unroll,
        kind: LoopKind::Serial,
        body: vec![for_(ku, 0i64, unroll, LoopKind::Unrolled, vec![step])],
    };
    let c_index = row.scale(&Dim::from(n)).add(&scaled(nt, NR)).add(&Index::var(ni));
    let store = tile(Stmt::Store { buf: c, index: c_index, value: Expr::Get { local: acc, at: at() } });
    let columns = for_(nt, 0i64, n / NR, LoopKind::Serial, vec![clear, reduce, store]);
    kernel.body = vec![for_(mt, 0i64, m / MR, LoopKind::Parallel, vec![columns])];
    kernel
}

fn inputs(m: i64, n: i64, k: i64) -> Vec<Vec<u8>> {
    let fill = |len: i64, seed: i64| -> Vec<f32> {
        (0..len).map(|i| ((i * seed + 3) % 17) as f32 * 0.25 - 2.0).collect()
    };
    vec![f32_bytes(&fill(m * k, 7)), f32_bytes(&fill(k * n, 5)), vec![0; (m * n * 4) as usize]]
}

fn expected(m: i64, n: i64, k: i64, a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut c = vec![];
    for row in 0..m {
        for column in 0..n {
            let panel = column / NR * k * NR + column % NR;
            c.push((0..k).map(|i| a[(row * k + i) as usize] * b[(panel + i * NR) as usize]).sum());
        }
    }
    c
}

fn check(kernel: &Kernel, m: i64, n: i64, k: i64, dims: &[i64]) {
    let mut buffers = inputs(m, n, k);
    let rows = m / MR;
    let code = build(kernel);
    // Two parts of the parallel range, as two threads would run them.
    assert_eq!(code.run(&mut buffers, dims, (0, 1)), 0);
    assert_eq!(code.run(&mut buffers, dims, (1, rows)), 0);
    // Small multiples of 1/16: sums are exact in any order.
    assert_eq!(f32s(&buffers[2]), expected(m, n, k, &f32s(&buffers[0]), &f32s(&buffers[1])));
}

#[test]
fn packed_product_is_right() {
    check(&gemm(18, 24, Dim::from(20i64), 4), 18, 24, 20, &[]);
}

#[test]
fn depth_may_be_a_run_time_size() {
    let kernel = gemm(18, 24, Dim::sym(cranelift_entity::EntityRef::new(1)), 1);
    check(&kernel, 18, 24, 13, &[-1, 13]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn inner_loop_is_fused_multiply_adds_without_spills() {
    let text = assembly(&gemm(48, 64, Dim::from(256i64), 4));
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("vfmadd"), 4 * 12, "{text}");
    assert_eq!(count("vbroadcastss"), 4 * 6, "{text}");
    let spills = text.lines().filter(|l| l.contains("rsp") && (l.contains("xmm"))).count();
    assert_eq!(spills, 0, "{text}");
}

/// Timing: run with `--ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let (m, n, k) = (96, 128, 256);
    for unroll in [1, 2, 4, 8] {
        let code = build(&gemm(m, n, Dim::from(k), unroll));
        let mut buffers = inputs(m, n, k);
        let mut best = 0.0f64;
        for _ in 0..200 {
            let start = std::time::Instant::now();
            for _ in 0..10 {
                code.run(&mut buffers, &[], (0, m / MR));
            }
            let flops = 2.0 * (m * n * k * 10) as f64;
            best = best.max(flops / start.elapsed().as_secs_f64() / 1e9);
        }
        println!("unroll {unroll}: {best:.1} GFLOP/s");
    }
}
