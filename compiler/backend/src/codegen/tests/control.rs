//! Loops, indices, locals, conditions and checks.

use cranelift_entity::EntityRef;

use super::*;
use crate::codegen::isa::{Opt, isa};
use onnxc_ir::graph::Sym;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

fn sym(number: usize) -> Dim {
    Dim::sym(Sym::new(number))
}

fn add(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Add, a, b)
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 * 0.5 - 3.0).collect()
}

/// Kernels that run at both levels of optimization give the same; every one also compiles for AArch64 and for
/// the least x86-64.
fn run(kernel: &Kernel, buffers: &[Vec<u8>], dims: &[i64]) -> Vec<Vec<u8>> {
    let mut results = vec![];
    for opt in [Opt::None, Opt::Speed] {
        let mut buffers = buffers.to_vec();
        build_at(kernel, Some(opt), &target()).run_ok(&mut buffers, dims);
        results.push(buffers);
    }
    assert_eq!(results[0], results[1]);
    compile_elsewhere(kernel);
    results.remove(0)
}

/// `y[i] = x[i] * 2 + 1` for a run-time `n`: vectors, then what is left.
#[test]
fn vector_loop_with_tail() {
    let mut kernel = Kernel::new("axpy");
    let x = buffer(&mut kernel, "x", DType::F32, sym(0), Access::Read);
    let y = buffer(&mut kernel, "y", DType::F32, sym(0), Access::Write);
    let [i, v, t] = ["i", "v", "t"].map(|name| kernel.loop_var(name));
    let body = |at: Index| Stmt::Store {
        buf: y,
        index: at.clone(),
        value: Expr::Fma {
            a: Box::new(load(x, at)),
            b: Box::new(Expr::constant(DType::F32, 2.0)),
            c: Box::new(Expr::constant(DType::F32, 1.0)),
        },
    };
    let whole = sym(0).floor_div(&Dim::from(8i64)).unwrap();
    let lanes = for_(v, 0i64, 8i64, LoopKind::Vector, vec![body(scaled(i, 8i64).add(&Index::var(v)))]);
    kernel.body = vec![
        for_(i, 0i64, whole.clone(), LoopKind::Serial, vec![lanes]),
        for_(t, whole * Dim::from(8i64), sym(0), LoopKind::Serial, vec![body(Index::var(t))]),
    ];
    for n in [0usize, 1, 7, 8, 23] {
        let input = ramp(n);
        let out = run(&kernel, &[f32_bytes(&input), vec![0; 4 * n]], &[n as i64]);
        assert_eq!(f32s(&out[1]), input.iter().map(|x| x * 2.0 + 1.0).collect::<Vec<_>>());
    }
}

/// A transpose of `[s0, s1]`: strided loads in vector form, symbolic strides.
#[test]
fn transpose_with_symbolic_strides() {
    let mut kernel = Kernel::new("transpose");
    let (rows, columns) = (sym(0), sym(1));
    let x = buffer(&mut kernel, "x", DType::I32, rows.clone() * columns.clone(), Access::Read);
    let y = buffer(&mut kernel, "y", DType::I32, rows.clone() * columns.clone(), Access::Write);
    let [j, i, v] = ["j", "i", "v"].map(|name| kernel.loop_var(name));
    let row = scaled(i, 4i64).add(&Index::var(v));
    let body = Stmt::Store {
        buf: y,
        index: Index::var(j).scale(&rows).add(&row),
        value: load(x, row.scale(&columns).add(&Index::var(j))),
    };
    let lanes = for_(v, 0i64, 4i64, LoopKind::Vector, vec![body]);
    let blocks = for_(i, 0i64, rows.floor_div(&Dim::from(4i64)).unwrap(), LoopKind::Serial, vec![lanes]);
    kernel.body = vec![for_(j, 0i64, columns, LoopKind::Parallel, vec![blocks])];
    let (m, n) = (8usize, 5usize);
    let input: Vec<i32> = (0..(m * n) as i32).collect();
    let code = build(&kernel);
    let mut buffers = vec![bytes_of(&input, i32::to_le_bytes), vec![0; 4 * m * n]];
    assert_eq!(code.run(&mut buffers, &[m as i64, n as i64], (0, n as i64)), 0);
    let want: Vec<i32> = (0..n * m).map(|at| input[at % m * n + at / m]).collect();
    assert_eq!(buffers[1], bytes_of(&want, i32::to_le_bytes));
}

/// Indices with divisions: `y[i] = x[i / 3 % 5 * 2 + i / s0]`, in scalar and vector loops.
#[test]
fn divided_indices() {
    for (kind, n) in [(LoopKind::Serial, 37i64), (LoopKind::Vector, 8), (LoopKind::Unrolled, 11)] {
        let mut kernel = Kernel::new("divided");
        let x = buffer(&mut kernel, "x", DType::F32, 64i64, Access::Read);
        let y = buffer(&mut kernel, "y", DType::F32, 48i64, Access::Write);
        let [o, i] = ["o", "i"].map(|name| kernel.loop_var(name));
        let none = |_: Var| None;
        let at = Index::var(i).add(&Index::var(o));
        let source = at
            .floor_div(&Dim::from(3i64), &none)
            .modulo(&Dim::from(5i64), &none)
            .scale(&Dim::from(2i64))
            .add(&at.floor_div(&sym(0), &none))
            .add(&at.modulo(&Dim::from(8i64), &none));
        let body = Stmt::Store { buf: y, index: at, value: load(x, source) };
        let inner = for_(i, 0i64, n, kind, vec![body]);
        kernel.body = vec![for_(o, 0i64, 3i64, LoopKind::Serial, vec![inner])];
        let input = ramp(64);
        let out = run(&kernel, &[f32_bytes(&input), vec![0; 4 * 48]], &[7]);
        for (at, got) in f32s(&out[1]).iter().take(n as usize + 2).enumerate() {
            assert_eq!(*got, input[at / 3 % 5 * 2 + at / 7 + at % 8], "{kind:?} {at}");
        }
    }
}

/// Rows picked by loaded indices, checked against the table's size; negative ones count from its end.
#[test]
fn gather_with_bounds_check() {
    let mut kernel = Kernel::new("gather");
    let table = buffer(&mut kernel, "table", DType::F32, sym(0) * Dim::from(4i64), Access::Read);
    let index = buffer(&mut kernel, "index", DType::I64, sym(1), Access::Read);
    let y = buffer(&mut kernel, "y", DType::F32, sym(1) * Dim::from(4i64), Access::Write);
    let [i, v] = ["i", "v"].map(|name| kernel.loop_var(name));
    let raw = kernel.let_var("raw", DType::I64);
    let row = kernel.let_var("row", DType::I64);
    let size = || Expr::Index(Index::dim(sym(0)));
    let zero = || Expr::constant(DType::I64, 0.0);
    let wrapped = Expr::select(
        Expr::compare(CompareFn::Lt, Expr::Var(raw), zero()),
        add(Expr::Var(raw), size()),
        Expr::Var(raw),
    );
    let inside = Expr::binary(
        BinaryFn::And,
        Expr::compare(CompareFn::Ge, Expr::Var(row), zero()),
        Expr::compare(CompareFn::Lt, Expr::Var(row), size()),
    );
    let copy = Stmt::Store {
        buf: y,
        index: scaled(i, 4i64).add(&Index::var(v)),
        value: load(table, scaled(row, 4i64).add(&Index::var(v))),
    };
    kernel.body = vec![for_(
        i,
        0i64,
        sym(1),
        LoopKind::Serial,
        vec![
            Stmt::Let { var: raw, value: load(index, Index::var(i)) },
            Stmt::Let { var: row, value: wrapped },
            Stmt::Check { condition: inside, code: 77 },
            for_(v, 0i64, 4i64, LoopKind::Vector, vec![copy]),
        ],
    )];
    let data = ramp(20);
    let picks = [3i64, -1, 0, 2];
    let buffers = [f32_bytes(&data), i64_bytes(&picks), vec![0; 64]];
    let out = run(&kernel, &buffers, &[5, 4]);
    let want: Vec<f32> = [3, 4, 0, 2].iter().flat_map(|&row| data[row * 4..row * 4 + 4].to_vec()).collect();
    assert_eq!(f32s(&out[2]), want);
    for bad in [5i64, -6] {
        let mut buffers = vec![f32_bytes(&data), i64_bytes(&[1, bad]), vec![0; 32]];
        assert_eq!(build(&kernel).run(&mut buffers, &[5, 2], (0, 0)), 77);
    }
}

/// Each lane its own loaded index.
#[test]
fn gather_by_lane() {
    let mut kernel = Kernel::new("lanes");
    let x = buffer(&mut kernel, "x", DType::F32, 32i64, Access::Read);
    let index = buffer(&mut kernel, "index", DType::I64, 8i64, Access::Read);
    let y = buffer(&mut kernel, "y", DType::F32, 8i64, Access::Write);
    let v = kernel.loop_var("v");
    let pick = kernel.let_var("pick", DType::I64);
    kernel.body = vec![for_(
        v,
        0i64,
        8i64,
        LoopKind::Vector,
        vec![
            Stmt::Let { var: pick, value: load(index, Index::var(v)) },
            Stmt::Store {
                buf: y,
                index: Index::var(v),
                value: Expr::unary(
                    UnaryFn::Neg,
                    load(x, scaled(pick, 3i64).add(&Index::var(v)).add(&Index::int(1))),
                ),
            },
        ],
    )];
    let picks = [4i64, 0, 7, 7, 1, 2, 6, 5];
    let out = run(&kernel, &[f32_bytes(&ramp(32)), i64_bytes(&picks), vec![0; 32]], &[]);
    let want: Vec<f32> = (0..8).map(|v| -ramp(32)[picks[v] as usize * 3 + v + 1]).collect();
    assert_eq!(f32s(&out[2]), want);
}

/// A sum in lanes, then of the lanes: single elements of vector registers.
#[test]
fn horizontal_sum_of_a_vector_local() {
    for (dtype, lanes) in [(DType::F32, 4usize), (DType::F16, 4), (DType::F64, 2), (DType::I32, 4)] {
        let mut kernel = Kernel::new("sum");
        let x = buffer(&mut kernel, "x", dtype, 64i64, Access::Read);
        let y = buffer(&mut kernel, "y", dtype, 1i64, Access::Write);
        let parts = kernel.local("parts", dtype, &[lanes * 2], lanes);
        let total = kernel.local("total", dtype, &[], 1);
        let [i, v, w, u] = ["i", "v", "w", "u"].map(|name| kernel.loop_var(name));
        let width = lanes as i64 * 2;
        let clear = Stmt::Set { local: parts, at: vec![Index::var(w)], value: Expr::constant(dtype, 0.0) };
        let part = Stmt::Accumulate {
            local: parts,
            at: vec![Index::var(v)],
            op: BinaryFn::Add,
            value: load(x, scaled(i, width).add(&Index::var(v))),
        };
        let gather = Stmt::Accumulate {
            local: total,
            at: vec![],
            op: BinaryFn::Add,
            value: Expr::Get { local: parts, at: vec![Index::var(u)] },
        };
        kernel.body = vec![
            for_(w, 0i64, width, LoopKind::Vector, vec![clear]),
            for_(
                i,
                0i64,
                64 / width,
                LoopKind::Serial,
                vec![for_(v, 0i64, width, LoopKind::Vector, vec![part])],
            ),
            Stmt::Set { local: total, at: vec![], value: Expr::constant(dtype, 1.0) },
            for_(u, 0i64, width, LoopKind::Unrolled, vec![gather]),
            Stmt::Store { buf: y, index: Index::zero(), value: Expr::Get { local: total, at: vec![] } },
        ];
        let values = onnxc_ir::graph::Tensor::new(
            DType::F32,
            vec![64],
            f32_bytes(&(0..64).map(|i| i as f32).collect::<Vec<_>>()).into(),
        );
        let input = onnxc_ir::interp::cast(&values, dtype, true);
        let out = run(&kernel, &[tensor_bytes(&input), vec![0; dtype.size()]], &[]);
        let want = onnxc_ir::interp::cast(&onnxc_ir::graph::Tensor::scalar(2017.0f64), dtype, true);
        assert_eq!(out[1], tensor_bytes(&want), "{dtype}");
    }
}

/// Bytes and floats in one vector loop: quantization and its inverse.
#[test]
fn mixed_widths() {
    let mut kernel = Kernel::new("quantize");
    let x = buffer(&mut kernel, "x", DType::F32, 16i64, Access::Read);
    let scale = buffer(&mut kernel, "scale", DType::F32, 1i64, Access::Read);
    let q = buffer(&mut kernel, "q", DType::U8, 16i64, Access::Write);
    let back = buffer(&mut kernel, "back", DType::F64, 16i64, Access::Write);
    let v = kernel.loop_var("v");
    let code = kernel.let_var("code", DType::U8);
    let factor = || load(scale, Index::zero());
    let scaled_value =
        Expr::unary(UnaryFn::Round, Expr::binary(BinaryFn::Div, load(x, Index::var(v)), factor()));
    let shifted = add(scaled_value, Expr::constant(DType::F32, 128.0));
    let low = Expr::binary(BinaryFn::Max, shifted, Expr::constant(DType::F32, 0.0));
    let clamped = Expr::binary(BinaryFn::Min, low, Expr::constant(DType::F32, 255.0));
    let wide = Expr::cast(DType::F64, Expr::cast(DType::I32, Expr::Var(code)));
    kernel.body = vec![for_(
        v,
        0i64,
        16i64,
        LoopKind::Vector,
        vec![
            Stmt::Let { var: code, value: Expr::cast(DType::U8, clamped) },
            Stmt::Store { buf: q, index: Index::var(v), value: Expr::Var(code) },
            Stmt::Store { buf: back, index: Index::var(v), value: wide },
        ],
    )];
    let input: Vec<f32> = (0..16).map(|i| (i as f32 - 8.0) * 9.3).collect();
    let out = run(&kernel, &[f32_bytes(&input), f32_bytes(&[0.5]), vec![0; 16], vec![0; 128]], &[]);
    for (at, x) in input.iter().enumerate() {
        let want = ((x / 0.5).round_ties_even() + 128.0).clamp(0.0, 255.0) as u8;
        assert_eq!(out[2][at], want, "{x}");
        let wide = f64::from_le_bytes(out[3][at * 8..at * 8 + 8].try_into().unwrap());
        assert_eq!(wide, f64::from(want));
    }
}

/// Both arms of a condition on a run-time size, and one on loaded data, with a local across them.
#[test]
fn conditions() {
    let mut kernel = Kernel::new("if");
    let x = buffer(&mut kernel, "x", DType::F32, sym(0), Access::Read);
    let y = buffer(&mut kernel, "y", DType::F32, 2i64, Access::Write);
    let i = kernel.loop_var("i");
    let [positive, count] = ["positive", "count"].map(|name| kernel.local(name, DType::F32, &[], 1));
    let get = |local| Expr::Get { local, at: vec![] };
    let set = |local, value| Stmt::Set { local, at: vec![], value };
    let one = || Expr::constant(DType::F32, 1.0);
    let above = Expr::compare(CompareFn::Gt, load(x, Index::var(i)), Expr::constant(DType::F32, 0.0));
    let large =
        Expr::compare(CompareFn::Gt, Expr::Index(Index::dim(sym(0))), Expr::constant(DType::I64, 3.0));
    let body = vec![
        Stmt::If {
            condition: above,
            then: vec![set(positive, add(get(positive), load(x, Index::var(i))))],
            otherwise: vec![],
        },
        Stmt::If {
            condition: large,
            then: vec![set(count, add(get(count), one()))],
            otherwise: vec![set(count, Expr::constant(DType::F32, -1.0))],
        },
    ];
    kernel.body = vec![
        set(positive, Expr::constant(DType::F32, 0.0)),
        set(count, Expr::constant(DType::F32, 0.0)),
        for_(i, 0i64, sym(0), LoopKind::Serial, body),
        Stmt::Store { buf: y, index: Index::zero(), value: get(positive) },
        Stmt::Store { buf: y, index: Index::int(1), value: get(count) },
    ];
    let input = [1.0f32, -2.0, 3.0, 0.5, -7.0];
    let out = run(&kernel, &[f32_bytes(&input), vec![0; 8]], &[5]);
    assert_eq!(f32s(&out[1]), [4.5, 5.0]);
    let out = run(&kernel, &[f32_bytes(&input[..2]), vec![0; 8]], &[2]);
    assert_eq!(f32s(&out[1]), [1.0, -1.0]);
}

/// What a branch leaves in a local is read behind it.
#[test]
fn locals_change_in_branches() {
    let mut kernel = Kernel::new("if");
    let y = buffer(&mut kernel, "y", DType::F32, 1i64, Access::Write);
    let i = kernel.loop_var("i");
    let sum = kernel.local("sum", DType::F32, &[], 1);
    let get = || Expr::Get { local: sum, at: vec![] };
    let set = |value| Stmt::Set { local: sum, at: vec![], value };
    let by = |value| set(add(get(), Expr::constant(DType::F32, value)));
    let few = Expr::compare(CompareFn::Lt, Expr::Index(Index::var(i)), Expr::constant(DType::I64, 3.0));
    let few_by_index = Expr::compare(CompareFn::Lt, Expr::Index(Index::var(i)), Expr::Index(Index::int(3)));
    for condition in [few, few_by_index] {
        kernel.body = vec![
            set(Expr::constant(DType::F32, 0.0)),
            for_(
                i,
                0i64,
                sym(0),
                LoopKind::Serial,
                vec![
                    Stmt::If { condition, then: vec![by(1.0)], otherwise: vec![by(10.0)] },
                    set(add(get(), Expr::constant(DType::F32, 100.0))),
                ],
            ),
            Stmt::Store { buf: y, index: Index::zero(), value: get() },
        ];
        for (count, sum) in [(0, 0.0), (2, 202.0), (5, 523.0)] {
            assert_eq!(f32s(&run(&kernel, &[vec![0; 4]], &[count])[0]), [sum]);
        }
    }
}

/// Indices as values, in lanes, and offsets beyond 32 bits that nothing reads.
#[test]
fn indices_are_values() {
    let mut kernel = Kernel::new("iota");
    let y = buffer(&mut kernel, "y", DType::I64, 24i64, Access::Write);
    let [i, v] = ["i", "v"].map(|name| kernel.loop_var(name));
    let at = scaled(i, 8i64).add(&Index::var(v));
    let value = Expr::Index(at.scale(&(sym(0) + Dim::ONE)).add(&Index::int(5)));
    let body = vec![Stmt::Store { buf: y, index: at, value }];
    let lanes = for_(v, 0i64, 8i64, LoopKind::Vector, body);
    kernel.body = vec![for_(i, 0i64, 3i64, LoopKind::Serial, vec![lanes])];
    let out = run(&kernel, &[vec![0; 8 * 24]], &[2]);
    let want: Vec<i64> = (0..24).map(|i| i * 3 + 5).collect();
    assert_eq!(out[0], i64_bytes(&want));
}

/// What is computed with sizes when a kernel runs.
#[test]
fn sizes_of_two_symbols() {
    let (a, b) = (sym(0), sym(1));
    let few = Dim::from(3i64);
    let dims = [
        a.min_dim(&b),
        a.max_dim(&b),
        a.broadcast(&b),
        b.broadcast(&few.min_dim(&a)),
        a.modulo(&few).unwrap(),
        (a.clone() - b.clone()).floor_div(&few).unwrap(),
    ];
    let mut kernel = Kernel::new("sizes");
    let y = buffer(&mut kernel, "y", DType::I64, dims.len() as i64, Access::Write);
    let store = |(at, dim): (usize, &Dim)| Stmt::Store {
        buf: y,
        index: Index::int(at as i64),
        value: Expr::Index(Index::dim(dim.clone())),
    };
    kernel.body = dims.iter().enumerate().map(store).collect();
    for sizes in [[0, 1], [1, 0], [0, 0], [1, 7], [7, 1], [5, 5], [1, 1]] {
        let out = run(&kernel, &[vec![0; 8 * dims.len()]], &sizes);
        let wanted = dims.each_ref().map(|dim| dim.eval(&|sym| Some(sizes[sym.index()])).unwrap());
        assert_eq!(out[0], i64_bytes(&wanted), "{sizes:?}");
    }
}

/// An element that all lanes read is not the vector that begins with it.
#[test]
fn one_element_and_all_lanes() {
    for first in [true, false] {
        let mut kernel = Kernel::new("differences");
        let x = buffer(&mut kernel, "x", DType::F64, 2i64, Access::Read);
        let y = buffer(&mut kernel, "y", DType::F64, 2i64, Access::Write);
        let v = kernel.loop_var("v");
        let (one, all) = (load(x, Index::zero()), load(x, Index::var(v)));
        let (a, b) = if first { (one, all) } else { (all, one) };
        let value = Expr::binary(BinaryFn::Sub, a, b);
        let body = vec![Stmt::Store { buf: y, index: Index::var(v), value }];
        kernel.body = vec![for_(v, 0i64, 2i64, LoopKind::Vector, body)];
        let f64_bytes = |values: [f64; 2]| bytes_of(&values, f64::to_le_bytes);
        let out = run(&kernel, &[f64_bytes([1.0, 4.0]), vec![0; 16]], &[]);
        assert_eq!(out[1], f64_bytes(if first { [0.0, -3.0] } else { [0.0, 3.0] }));
    }
}

/// What is checked may be wider than what is stored.
#[test]
fn checks_of_all_lanes() {
    let mut kernel = Kernel::new("positive");
    let x = buffer(&mut kernel, "x", DType::I64, 16i64, Access::Read);
    let y = buffer(&mut kernel, "y", DType::U8, 16i64, Access::Write);
    let v = kernel.loop_var("v");
    let zero = Expr::constant(DType::I64, 0.0);
    let condition = Expr::compare(CompareFn::Gt, load(x, Index::var(v)), zero);
    let store = Stmt::Store { buf: y, index: Index::var(v), value: Expr::constant(DType::U8, 3.0) };
    let body = vec![Stmt::Check { condition, code: 77 }, store];
    kernel.body = vec![for_(v, 0i64, 16i64, LoopKind::Vector, body)];
    let out = run(&kernel, &[i64_bytes(&[1 << 40; 16]), vec![0; 16]], &[]);
    assert_eq!(out[1], [3; 16]);
    let code = build(&kernel);
    for bad in 0..16 {
        let mut values = [1 << 40; 16];
        values[bad] = -1;
        assert_eq!(code.run(&mut [i64_bytes(&values), vec![0; 16]], &[], (0, 0)), 77, "{bad}");
    }
}

/// More vectors are live than there are registers: the stack has room for the others.
#[test]
fn the_stack_of_a_kernel_holds_what_registers_do_not() {
    /// Vector registers of AArch64, which has more than x86-64 without AVX-512.
    const REGISTERS: i64 = 32;
    let mut kernel = Kernel::new("sums");
    let count = 4 * 2 * REGISTERS;
    let x = buffer(&mut kernel, "x", DType::F32, sym(0) * Dim::from(count), Access::Read);
    let y = buffer(&mut kernel, "y", DType::F32, count, Access::Write);
    let sums = kernel.local("sums", DType::F32, &[count as usize], 4);
    let [i, v, w, u] = ["i", "v", "w", "u"].map(|name| kernel.loop_var(name));
    let clear = Stmt::Set { local: sums, at: vec![Index::var(w)], value: Expr::constant(DType::F32, 0.0) };
    let sum = Stmt::Accumulate {
        local: sums,
        at: vec![Index::var(v)],
        op: BinaryFn::Add,
        value: load(x, scaled(i, count).add(&Index::var(v))),
    };
    let value = Expr::Get { local: sums, at: vec![Index::var(u)] };
    let store = Stmt::Store { buf: y, index: Index::var(u), value };
    let lanes = |var: Var, stmt: Stmt| for_(var, 0i64, count, LoopKind::Vector, vec![stmt]);
    kernel.body =
        vec![lanes(w, clear), for_(i, 0i64, sym(0), LoopKind::Serial, vec![lanes(v, sum)]), lanes(u, store)];
    let target = target();
    for opt in [Opt::None, Opt::Speed] {
        let code = super::super::compile(&kernel, &*isa(&target, opt).unwrap(), &target).unwrap();
        assert!(i64::from(code.stack) >= 16 * REGISTERS, "{} bytes", code.stack);
    }
}

#[test]
fn mistakes_are_errors() {
    let target = target();
    let isa = isa(&target, Opt::None).unwrap();
    let compile = |kernel: &Kernel| super::super::compile(kernel, &*isa, &target).unwrap_err().message;
    let mut kernel = Kernel::new("k");
    let x = buffer(&mut kernel, "x", DType::F32, 4i64, Access::ReadWrite);
    let i = kernel.loop_var("i");
    let local = kernel.local("r", DType::F32, &[2], 1);
    let store = |index: Index, value: Expr| Stmt::Store { buf: x, index, value };

    kernel.body = vec![store(Index::var(i), Expr::constant(DType::F32, 1.0))];
    assert!(compile(&kernel).contains("not in scope"));
    kernel.body = vec![store(Index::zero(), Expr::Get { local, at: vec![Index::int(2)] })];
    assert!(compile(&kernel).contains("a local without a value"));
    kernel.body = vec![for_(i, 0i64, sym(0), LoopKind::Unrolled, vec![])];
    assert!(compile(&kernel).contains("unrolled"));
    buffer(&mut kernel, "c", DType::Str, 1i64, Access::Read);
    assert!(compile(&kernel).contains("str"));
}

/// A number whose bytes differ, in vectors of every number of lanes of every type.
#[test]
fn constants_fill_every_lane() {
    let types =
        [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I16, DType::I8];
    for dtype in types.into_iter().chain([DType::U64, DType::U32, DType::U16, DType::U8, DType::Bool]) {
        for lanes in [1i64, 2, 4, 8, 16] {
            let mut kernel = Kernel::new("fill");
            let y = buffer(&mut kernel, "y", dtype, Dim::from(lanes), Access::Write);
            let v = kernel.loop_var("v");
            let value = Expr::constant(dtype, if dtype == DType::Bool { 1.0 } else { 100.0 });
            let Expr::Const { bits, .. } = value else { unreachable!("it is a constant") };
            let store = Stmt::Store { buf: y, index: Index::var(v), value };
            kernel.body = vec![for_(v, 0i64, lanes, LoopKind::Vector, vec![store])];
            let out = run(&kernel, &[vec![0x55; dtype.size() * lanes as usize]], &[]);
            let element = &bits.to_le_bytes()[..dtype.size()];
            assert_eq!(out[0], element.repeat(lanes as usize), "{lanes} of {dtype}");
        }
    }
}
