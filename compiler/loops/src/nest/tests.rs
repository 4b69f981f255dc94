//! Every transform on kernels in text form: the same bits before and after.

use crate::nest::Nest;
use crate::parse::parse;
use crate::verify::verify;
use crate::{Kernel, LoopKind, interp};
use onnxc_ir::graph::DType;
use onnxc_machine::target::{Goal, Target};

fn kernel(body: &str) -> Kernel {
    let head = "kernel \"k\" {\n  buffer b0 \"x\" : read f32[96]\n  buffer b1 \"y\" : readwrite f32[96]\n  \
                local r0 \"acc\" : f32[4]\n";
    parse(&format!("{head}{body}}}\n")).unwrap()
}

fn run(kernel: &Kernel) -> Vec<u8> {
    verify(kernel).unwrap_or_else(|error| panic!("{error}\n{kernel}"));
    let data = |seed: u32| -> Vec<u8> {
        (0..96u32).flat_map(|i| ((i * 37 + seed) as f32 / 7.0).sin().to_le_bytes()).collect()
    };
    let mut buffers = vec![data(1), data(2)];
    assert_eq!(kernel.operands().map(|buffer| buffer.dtype).collect::<Vec<_>>(), [DType::F32; 2]);
    assert_eq!(interp::run(kernel, &mut buffers, &|_| None).unwrap(), 0);
    buffers.remove(1)
}

/// Applies a transform to the last statement of a body. `None` where it refuses; else whether the bits agree.
fn agrees(body: &str, change: impl FnOnce(&mut Kernel, &mut Nest) -> Option<()>) -> Option<bool> {
    let before = kernel(body);
    let mut after = before.clone();
    let mut nest = Nest::of(after.body.pop().unwrap());
    change(&mut after, &mut nest)?;
    after.body.extend(nest.into_stmts());
    Some(run(&before) == run(&after))
}

/// Two loops around a statement.
fn two(body: &str) -> String {
    format!("  for i0 in 0..8 {{\n    for i1 in 0..12 {{\n{body}    }}\n  }}\n")
}

#[test]
fn split_takes_divisors_only() {
    let body = two("      b1[i0*12 + i1] = (b0[i0*12 + i1] + b0[mod(i1*7 + i0, 96)])\n");
    for (at, factor) in [(0, 2), (0, 8), (1, 3), (1, 12), (1, 1)] {
        assert_eq!(agrees(&body, |kernel, nest| nest.split(kernel, at, factor)), Some(true));
    }
    for (at, factor) in [(0, 3), (1, 5), (1, 0), (2, 1)] {
        assert_eq!(agrees(&body, |kernel, nest| nest.split(kernel, at, factor)), None);
    }
}

#[test]
fn unroll_takes_constant_extents() {
    let body = two("      b1[i0*12 + i1] = neg(b0[i1])\n");
    assert_eq!(agrees(&body, |_, nest| nest.unroll(1)), Some(true));
    let symbolic = "  for i0 in 0..s0 {\n    b1[i0] = b0[i0]\n  }\n";
    assert_eq!(agrees(symbolic, |_, nest| nest.unroll(0)), None);
}

#[test]
fn fuse_joins_what_counts_as_one() {
    let joined = |body: &str| {
        let mut axes = 0;
        let same = agrees(body, |_, nest| {
            nest.fuse_all(0);
            axes = nest.axes.len();
            Some(())
        });
        assert_eq!(same, Some(true));
        axes
    };
    assert_eq!(joined(&two("      b1[i0*12 + i1] = b0[i0*12 + i1]\n")), 1);
    assert_eq!(joined(&two("      b1[i0*12 + i1] = b0[i1*8 + i0]\n")), 2);
    assert_eq!(joined(&two("      b1[i0*12 + i1] = b0[i1]\n")), 2);
}

#[test]
fn vectorize_leaves_a_tail_and_hoists() {
    let core = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("x86-64-v3")).unwrap().core;
    for (extent, stmt, vectors) in [
        (11, "b1[i0*11 + i1] = (b0[i0*11 + i1] * exp(b0[i0]))", true),
        (12, "b1[i0*12 + i1] = b0[i0*12 + i1]", true),
        (3, "b1[i0*3 + i1] = b0[i0*3 + i1]", false),
        // Turned in a square.
        (8, "b1[i0*8 + i1] = b0[i1*8 + i0]", true),
        (7, "b1[i0*7 + i1] = b0[i1*8 + i0]", false),
        (8, "b1[i1 + 1] = b1[i1]", false),
    ] {
        let before = kernel(&format!(
            "  for i0 in 0..8 {{\n    for i1 in 0..{extent} {{\n      {stmt}\n    }}\n  }}\n"
        ));
        let mut after = before.clone();
        let nest = Nest::of(after.body.pop().unwrap());
        after.body = nest.vectorize(&mut after, &core, Goal::Speed);
        assert_eq!(run(&before), run(&after), "{after}");
        let mut found = false;
        crate::visit::stmts(&after.body, &mut |stmt| {
            found |= matches!(stmt, crate::Stmt::For { kind: LoopKind::Vector, .. });
        });
        assert_eq!(found, vectors, "{after}");
    }
}

/// A loop that a reshape divides becomes one over blocks, whose steps run in vectors; one without such steps stays.
#[test]
fn divisions_split_loops() {
    let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("x86-64-v4")).unwrap();
    let core = target.leaf().unwrap();
    // (statement, extents of the loops that are left)
    for (stmt, loops) in [
        ("b1[i1] = b0[floordiv(i1, 16)*16 + mod(i1, 16)]", vec![6, 16]),
        ("b1[i1] = b0[floordiv(i1, 16) + mod(i1, 16)*6]", vec![96]),
        ("b1[i1] = b0[floordiv(i1, 16)*8 + mod(i1, 16)]", vec![6, 16]),
        ("b1[i1] = (b0[mod(i1, 16)] + b0[floordiv(i1, 48)])", vec![6, 16]),
        ("b1[i1] = (b0[mod(i1, 24)] * b0[floordiv(i1, 8)])", vec![12, 8]),
        ("b1[i1] = b0[mod(i1, 3)]", vec![96]),
        ("b1[i1] = b0[mod(i1, 7)]", vec![96]),
        // Two steps of four of the second loop to a block.
        ("b1[i1] = b0[mod(i1*2, 32)]", vec![96]),
        ("b1[i1] = b0[mod(i1*4, 64)*1]", vec![96]),
    ] {
        let body = format!("  for i1 in 0..96 {{\n    {stmt}\n  }}\n");
        let mut left = Vec::new();
        let same = agrees(&body, |kernel, nest| {
            let mut extents = nest.axes.iter().map(|axis| (axis.var, axis.extent.clone())).collect();
            nest.split_divisions(kernel, &core, &mut extents);
            left = nest.axes.iter().map(|axis| axis.extent.as_const().unwrap()).collect();
            Some(())
        });
        assert_eq!((same, left), (Some(true), loops), "{stmt}");
    }
}

/// Wide vectors leave long rests, which narrower ones take, and so do loops that are shorter than a whole vector.
#[test]
fn rests_and_short_loops_run_in_narrower_vectors() {
    let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("x86-64-v4")).unwrap();
    let core = target.leaf().unwrap();
    for (extent, widths) in [(3, vec![]), (4, vec![4]), (7, vec![4]), (12, vec![8, 4]), (30, vec![16, 8, 4])]
    {
        let before = kernel(&format!("  for i0 in 0..{extent} {{\n    b1[i0] = b0[i0 + 1]\n  }}\n"));
        let mut after = before.clone();
        let nest = Nest::of(after.body.pop().unwrap());
        after.body = nest.vectorize(&mut after, &core, Goal::Size);
        assert_eq!(run(&before), run(&after), "{after}");
        let mut found = vec![];
        crate::visit::stmts(&after.body, &mut |stmt| {
            if let crate::Stmt::For { kind: LoopKind::Vector, hi, .. } = stmt {
                found.extend(hi.as_int());
            }
        });
        assert_eq!(found, widths, "{after}");
    }
}

/// A short loop without vectors is written out, but not in small code, nor where threads share it.
#[test]
fn short_loops_are_written_out() {
    let core = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), Some("x86-64-v3")).unwrap().core;
    for (extent, goal, kind, wanted) in [
        (3, Goal::Speed, "", LoopKind::Unrolled),
        (4, Goal::Speed, "", LoopKind::Unrolled),
        (5, Goal::Speed, "", LoopKind::Serial),
        (1, Goal::Speed, "", LoopKind::Serial),
        (3, Goal::Size, "", LoopKind::Serial),
        (3, Goal::Speed, " parallel", LoopKind::Parallel),
    ] {
        let before = kernel(&format!("  for i0 in 0..{extent}{kind} {{\n    b1[i0*2] = b0[i0*7]\n  }}\n"));
        let mut after = before.clone();
        let nest = Nest::of(after.body.pop().unwrap());
        after.body = nest.vectorize(&mut after, &core, goal);
        assert_eq!(run(&before), run(&after), "{after}");
        let [crate::Stmt::For { kind, .. }] = after.body[..] else { panic!("{after}") };
        assert_eq!(kind, wanted, "{after}");
    }
}

/// A copy of a body beside the body, each with variables of its own, in every place that a statement has.
#[test]
fn copies_of_bodies_bind_their_own_variables() {
    let body = two("      let i2 : f32 = b0[i0]\n      if (i2 < b0[i1]) {\n        let i3 : f32 = b0[i1]\n\
         \x20       b1[i0*12 + i1] = (i2 + i3)\n      } else {\n        r0[0] = neg(i2)\n        b1[i0*12 + i1] = r0[0]\n      }\n");
    let before = kernel(&body);
    let mut after = before.clone();
    let mut copy = after.body.clone();
    let bound = after.vars.len();
    super::rename_lets(&mut after, &mut copy);
    after.body = copy;
    let own = after.to_string();
    assert!(["i0", "i1", "i2", "i3"].iter().all(|var| !own.contains(var)), "{own}");
    assert_eq!((bound, after.vars.len()), (4, 8));
    assert_eq!(run(&before), run(&after));
}
