//! The text form and the rules of kernels.

use crate::parse::parse;
use crate::verify::verify;
use crate::{Kernel, interp, visit};

/// A kernel around a body, with a buffer of each access and two locals.
fn with(body: &str) -> String {
    format!(
        "kernel \"k\" {{\n  buffer b0 \"x\" : read f32[s0*8]\n  buffer b1 \"y\" : write f32[s0*8]\n  \
         buffer b2 \"z\" : readwrite i64[16]\n  local r0 \"acc\" : f32[2, 8] lanes 4\n  \
         local r1 \"one\" : i64[]\n{body}}}\n"
    )
}

fn read(body: &str) -> Kernel {
    let text = with(body);
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn text_prints_as_it_was_read() {
    let bodies = [
        "",
        "  for i0 \"mt\" in 0..s0 parallel {\n    for i1 in 0..8 vector {\n      b1[i0*8 + i1] = b0[i0*8 + i1]\n    }\n  }\n",
        "  for i3 in 2..floordiv(2 + s0, 4)*4 step 2 {\n    b2[mod(i3*(s0*2) + 1, 16)] = index(-i3*3 + floordiv(i3 + s0, 1 + s0) - 4)\n  }\n",
        "  r0[0, 7] = -1.5:f32\n  r0[0, 7] += (b0[0] * b0[1])\n  r0[1, 0] *= nan:f32\n  r0[1, 0] max= -inf:f32\n  \
         r1[] = -9223372036854775808:i64\n",
        "  let i0 \"t\" : bool = (b0[0] < 0x7fc00001:f32)\n  if or(i0, true:bool) {\n    b2[0] = 0:i64\n  } else {\n    \
         b2[0] = cast(select(i0, exp(b0[1]), fma(b0[0], b0[1], -0:f32)), i64)\n  }\n  \
         fail 3 unless not(i0)\n",
        "  let i8 : i32 = bitcast(pow(b0[0], 2:f32), i32)\n  let i64 : f8e4m3fn = cast(b0[0], f8e4m3fn, unsaturated)\n",
        "  for i0 in 0..8 unrolled {\n    b1[i0 + (-s0 + s0*s1)] = (b0[s0 - 1 + s0*7] - -2:f32)\n  }\n",
    ];
    for body in bodies {
        let kernel = read(body);
        let text = kernel.to_string();
        assert_eq!(parse(&text).unwrap(), kernel, "{text}");
        if !body.contains("s0 - 1") && !body.contains("-s0") {
            assert_eq!(text, with(body));
        }
    }
}

#[test]
fn names_that_nothing_reads_go() {
    let mut kernel = read(
        "  let i0 : f32 = b0[0]\n  let i1 : f32 = (i0 + b0[1])\n  let i2 : i64 = index(3)\n  \
         for i3 in 0..8 {\n    let i4 : i64 = index(i3*2)\n    let i5 : i64 = index(i4 + 1)\n    \
         let i6 : i64 = index(i4 + 2)\n    if (i6 < 4:i64) {\n      let i7 : f32 = b0[1]\n    }\n    \
         b1[mod(i2 + i3, 8)] = 1:f32\n  }\n",
    );
    visit::drop_unused_lets(&mut kernel.body);
    let left = "  let i2 : i64 = index(3)\n  for i3 in 0..8 {\n    let i4 : i64 = index(i3*2)\n    \
                let i6 : i64 = index(i4 + 2)\n    if (i6 < 4:i64) {\n    }\n    b1[mod(i2 + i3, 8)] = 1:f32\n  }\n";
    assert_eq!(kernel.to_string(), with(left));
}

/// Loops of no iterations, and stores to buffers without elements, are gone.
#[test]
fn what_does_nothing_goes() {
    let mut kernel = read(
        "  for i0 in 4..4 {\n    b1[i0] = 1:f32\n  }\n  for i1 in 0..s0 {\n    if true:bool {\n    }\n  }\n  b1[0] = 2:f32\n",
    );
    visit::drop_idle(&mut kernel);
    assert_eq!(kernel.to_string(), with("  b1[0] = 2:f32\n"));
    kernel.buffers.values_mut().for_each(|buffer| buffer.len = onnxc_ir::graph::Dim::ZERO);
    visit::drop_idle(&mut kernel);
    assert!(kernel.body.is_empty());
}

#[test]
fn malformed_text_names_its_place() {
    for (body, message) in [
        ("  b3[0] = 1:f32\n", "line 7, column 3: b3 is not declared"),
        ("  b1[i0] = 1:f32\n", "column 6: i0 is not bound before its use"),
        ("  for i0 in 0..2 {\n  }\n  for i0 in 0..2 {\n  }\n", "i0 is bound twice"),
        ("  for i0 in 0..2 {\n    b1[i0*i0] = 1:f32\n  }\n", "a product of variables"),
        ("  b1[0] = (1:f32 ** 2:f32)\n", "expected an expression"),
        ("  b1[0] = 1.5:i64\n", "not a constant of i64"),
        ("  b1[0] = expp(1:f32)\n", "expected a function"),
        ("  b1[floordiv(s0, 0)] = 1:f32\n", "division by zero"),
        ("  r0[0, 0] maxi= 1:f32\n", "a binary function"),
        ("  for i4000000 in 0..1 {\n  }\n", "too large a number"),
        ("  fail 1 unless\n", "expected an expression"),
    ] {
        let error = parse(&with(body)).unwrap_err().to_string();
        assert!(error.contains(message), "{body}: {error}");
    }
    let deep = format!("  b1[0] = {}1:f32\n", "neg(".repeat(5000));
    assert!(parse(&with(&deep)).unwrap_err().to_string().contains("nest deeper"));
    let deep = format!("  b1[{}0] = 1:f32\n", "(".repeat(5000));
    assert!(parse(&with(&deep)).unwrap_err().to_string().contains("nest deeper"));
}

#[test]
fn rules_are_enforced() {
    let sound = "  for i0 in 0..s0 parallel {\n    for i1 in 0..2 unrolled {\n      for i2 in 0..8 vector {\n        \
                 r0[i1, i2] = b0[i0*8 + i2]\n        r0[i1, i2] max= b0[i0*8 + i2]\n        \
                 b1[i0*8 + i2] = r0[i1, i2]\n      }\n    }\n  }\n";
    verify(&read(sound)).unwrap();
    let first =
        "  for i0 in 0..s0 parallel {\n    if (index(i0) == index(0)) {\n      b1[0] = 1:f32\n    }\n  }\n";
    verify(&read(first)).unwrap();
    for (body, message) in [
        (
            "  for i0 in 0..s0 parallel {\n    if (index(i0) < index(2)) {\n      b1[0] = 1:f32\n    }\n  }\n",
            "iterations of a parallel loop store",
        ),
        ("  if (b0[0] < 0:f32) {\n    let i0 : f32 = b0[0]\n  }\n  b1[0] = i0\n", "not bound"),
        ("  let i0 : f32 = b0[0]\n  b1[0] = b0[i0]\n", "i0: f32 where i64"),
        ("  b1[0] = (b0[0] + 1:f64)\n", "add of f32"),
        ("  b1[0] = 1:i64\n", "store to b1: i64 where f32"),
        ("  let i0 : i32 = 1:i64\n", "let i0: i64 where i32"),
        ("  b0[0] = 1:f32\n", "b0 `x` is stored to"),
        ("  b1[0] = b1[1]\n", "b1 `y` is loaded from"),
        ("  b1[0] = and(b0[0], b0[1])\n", "and of f32"),
        ("  b2[0] = exp(b2[1])\n", "exp of i64"),
        ("  b2[0] = fma(1:i64, 2:i64, 3:i64)\n", "mul_add of"),
        ("  if b0[0] {\n  }\n", "condition b0[0] is f32"),
        ("  fail 0 unless true:bool\n", "code 0"),
        ("  for i0 in 0..2 step 0 {\n  }\n", "step 0"),
        ("  r0[0] = 1:f32\n", "2 axes and 1 indices"),
        ("  r0[0, 8] = 1:f32\n", "in 8..=8"),
        ("  for i0 in 0..2 {\n    r0[i0, 0] = 1:f32\n  }\n", "neither constant nor a lane"),
        ("  r0[0, 0] += 1:f32\n", "r0 is read before it is set"),
        (
            "  r1[] = 0:i64\n  r1[] += 1:i64\n  for i0 in 0..s0 parallel {\n    b2[i0] = r1[]\n  }\n",
            "before it is set",
        ),
        ("  for i0 in 0..2 {\n    for i1 in 0..2 parallel {\n    }\n  }\n", "is inside another"),
        ("  for i0 in 0..s0 parallel {\n    b1[0] = 1:f32\n  }\n", "iterations of a parallel loop store"),
        ("  for i0 in 0..16 parallel {\n    b2[i0] = b2[0]\n  }\n", "is loaded in all iterations"),
        ("  for i0 in 0..s0 vector {\n  }\n", "no constant extent"),
        ("  for i0 in 0..s0 unrolled {\n  }\n", "no constant extent"),
        ("  for i0 in 0..4 vector {\n    for i1 in 0..2 {\n    }\n  }\n", "inside a vector loop"),
        ("  for i0 in 0..4 vector {\n    if true:bool {\n    }\n  }\n", "in a vector loop"),
        ("  for i0 in 0..4 vector {\n    b1[0] = b0[i0]\n  }\n", "all lanes write to b1[0]"),
        ("  b1[0] = 0x100000000:f32\n", "does not fit"),
    ] {
        let error = verify(&read(body)).expect_err(body).to_string();
        assert!(error.contains(message), "{body}: {error}");
    }
    let mut kernel = read(sound);
    kernel.locals.values_mut().next().unwrap().lanes = 3;
    assert!(verify(&kernel).unwrap_err().to_string().contains("vectors of 3"));
    let tile = "kernel \"k\" {\n  buffer b0 \"z\" : readwrite i32[256]\n  tile t0 \"t\" : i32[1, 16]\n  \
                for i0 in 0..16 parallel {\n    zero t0\n    store b0[16*i0] stride 16 = t0\n    \
                let i1 : i32 = b0[0]\n  }\n}\n";
    assert!(verify(&parse(tile).unwrap()).unwrap_err().to_string().contains("is loaded in all iterations"));
    let tiles = |count: usize| {
        let tiles = (0..count).map(|at| format!("  tile t{at} \"t\" : i32[16, 16]\n")).collect::<String>();
        verify(&parse(&format!("kernel \"k\" {{\n{tiles}}}\n")).unwrap())
    };
    assert!(tiles(8).is_ok());
    assert!(tiles(9).unwrap_err().to_string().contains("9 tiles, at most 8"));
}

/// Also where nobody has verified the kernel.
#[test]
fn tiles_are_of_the_type_of_their_buffers() {
    let kernel = |dtype: &str, statement: &str| {
        let text = format!(
            "kernel \"k\" {{\n  buffer b0 \"x\" : readwrite i32[256]\n  tile t0 \"t\" : {dtype}[1, 16]\n  \
             {statement}\n}}\n"
        );
        parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    for statement in ["load t0 = b0[0] stride 16", "zero t0\n  store b0[0] stride 16 = t0"] {
        let run = |dtype: &str| interp::run(&kernel(dtype, statement), &mut [vec![0; 1024]], &|_| None);
        assert_eq!(run("i32").unwrap(), 0, "{statement}");
        let message = run("i8").unwrap_err().message;
        assert!(message.contains("t0 of i8 in b0 of i32"), "{message}");
        assert!(verify(&kernel("i8", statement)).is_err());
    }
}
