//! The text form, the verifier, and what the interpreter checks.

use cranelift_entity::EntityRef;

use onnxc_loops as loops;
use onnxc_machine::vector::interp;
use onnxc_machine::vector::ir::{Convert, Func, Lanes, Op, Reg, Small};
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::op::{LaneKind, SPELLINGS};
use onnxc_machine::vector::parse::parse;
use onnxc_machine::vector::verify::{check, verify};

/// The instructions of a function of one block for NEON, after a pass over them.
pub(crate) fn after(body: &[impl AsRef<str>], pass: impl FnOnce(&mut Func)) -> Vec<String> {
    let lines: String = body.iter().map(|line| format!("  {}\n", line.as_ref())).collect();
    let mut func = parse(&format!("function {{\nblock0(g0, g1, g2, g3):\n{lines}  return 0\n}}\n")).unwrap();
    verify(&func).unwrap();
    pass(&mut func);
    verify(&func).and_then(|()| check(&func, Isa::NEON)).unwrap();
    let text = func.to_string();
    let lines = text.lines().skip_while(|line| !line.starts_with("block0(")).skip(1);
    lines.map(|line| line.trim().to_string()).take_while(|line| line != "return 0").collect()
}

/// Adds 1 to floats, eight at a time, and the rest one by one.
const SUM: &str = "function {
block0(g0, g1, g2, g3):
  g4 = load int [g0]
  g5 = load int [g0 + 8]
  g6 = load int [g1]
  g7 = const int 0
  jump block1(g7)
block1(g8):
  g9 = add int 8, g8
  branch ge g6, g9 then block2 else block3
block2:
  g10 = shl int 2, g8
  g11 = add int g4, g10
  g12 = add int g5, g10
  v13 = load b32x8 [g11]
  v14 = add f32x8 v13, 0x3f800000
  store b32x8 v14, [g12]
  jump block1(g9)
block3:
  jump block4(g8)
block4(g15):
  branch lt g15, g6 then block5 else block6
block5:
  g16 = shl int 2, g15
  g17 = add int g4, g16
  v18 = splat b32 0x3f800000
  v19 = add f32 v18, [g17]
  g20 = add int g5, g16
  store b32 v19, [g20]
  g21 = add int 1, g15
  jump block4(g21)
block6:
  return 0
}
";

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_function_is_read_and_runs() {
    let func = parse(SUM).unwrap();
    assert_eq!(func.to_string(), SUM);
    verify(&func).unwrap();
    for count in [0, 1, 7, 8, 21] {
        let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
        let more: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
        let mut buffers = [floats(&values), floats(&vec![0.0; count])];
        assert_eq!(interp::run(&func, &mut buffers, &[count as i64], (0, 0)).unwrap(), 0);
        assert_eq!(buffers, [floats(&values), floats(&more)]);
    }
}

/// Bytes of four places, as lanes: by insertions and one permutation where the machine has these and the bytes lie side by side.
#[test]
fn four_bytes_are_a_lane() {
    let kernel = loops::parse::parse(
        "kernel \"quads\" {
  buffer b0 \"x\" : read u8[64]
  buffer b1 \"w\" : read i8[64]
  buffer b2 \"y\" : write i32[16]
  buffer b3 \"z\" : write i32[16]
  for i0 \"v\" in 0..16 vector {
    b2[i0] = quad(b0[i0], b0[i0 + 16], b0[i0 + 3], b0[i0 + 48])
    b3[i0] = quad(b1[i0], 0:i8, b1[i0 + 5], b1[i0 + 40])
  }
}
",
    )
    .unwrap();
    let bytes: Vec<u8> = (0..64).map(|at| (at * 73 + 19) as u8).collect();
    let buffers = [bytes.clone(), bytes, vec![0; 64], vec![0; 64]];
    let mut expected = buffers.clone();
    loops::interp::run(&kernel, &mut expected, &|_| None).unwrap();
    assert_eq!(expected[2][..4], [buffers[0][0], buffers[0][16], buffers[0][3], buffers[0][48]]);
    let permuting = Isa { has_byte_permute: true, ..Isa::AVX512 };
    for (isa, quarters) in
        [(Isa::CRANELIFT, 0), (Isa::NEON, 0), (Isa::AVX2, 0), (Isa::AVX512, 0), (permuting, 6)]
    {
        let func = super::lower(&kernel, isa).unwrap();
        let insertions = func.to_string().matches("insert_quarter").count();
        assert_eq!(insertions, quarters, "{func}");
        let mut found = buffers.clone();
        interp::run(&func, &mut found, &[], (0, 0)).unwrap();
        assert_eq!(found, expected, "{func}");
    }
}

/// A processor with AVX2 that converts no halves has none of what takes them.
#[test]
fn halves_take_their_conversions() {
    let halves = |lanes| [Op::LoadSmall(Small::F16, lanes), Op::Pack(Small::F16, lanes), Op::Unpack(lanes)];
    for (has_f16c, isa) in [(true, Isa::AVX2), (false, Isa { has_f16c: false, ..Isa::AVX2 })] {
        for op in halves(Lanes::X8) {
            assert_eq!(isa.has(op), has_f16c, "{op:?}");
        }
    }
}

/// Cranelift widens and narrows lanes of 64 bits; others are selected lane by lane.
#[test]
fn cranelift_converts_lanes_of_64_bits() {
    let converted =
        |lanes| [Op::Convert(Convert::Extend, lanes), Op::MaskWiden(lanes), Op::MaskNarrow(lanes)];
    for (lanes, has) in [(Lanes::D2, true), (Lanes::X4, false)] {
        for op in converted(lanes) {
            assert_eq!(Isa::CRANELIFT.has(op), has, "{op:?}");
        }
    }
}

#[test]
fn an_instruction_is_missing() {
    let error = parse("function {\nblock0(g0):\n  v1 = load b32x4 }").unwrap_err();
    assert!(error.to_string().contains("an operation"), "{error}");
}

/// What selection makes for machines of the other byte order only.
#[test]
fn bytes_of_lanes_are_swapped() {
    let text = "function { block0(g0): g1 = load int [g0] g2 = load int [g0 + 8] v3 = load b32x4 [g1]
        v4 = swap_bytes b32x4 v3 store b32x4 v4, [g2] return 0 }";
    let func = parse(text).unwrap();
    verify(&func).unwrap();
    let mut buffers = [(0..16).collect(), vec![0u8; 16]];
    interp::run(&func, &mut buffers, &[], (0, 0)).unwrap();
    assert_eq!(buffers[1], [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12]);
}

#[test]
fn accesses_outside_of_a_buffer_are_told() {
    let func = parse(SUM).unwrap();
    let mut buffers = [floats(&[1.0; 9]), floats(&[0.0; 8])];
    let error = interp::run(&func, &mut buffers, &[9], (0, 0)).unwrap_err();
    assert!(error.to_string().contains("4 bytes at 32 of buffer 1, which has 32 bytes"), "{error}");
    let error = interp::run(&func, &mut buffers[..1], &[9], (0, 0)).unwrap_err();
    assert!(error.to_string().contains("of 1 pointers"), "{error}");
}

/// Each operation is found again by its name, and no two names are alike.
#[test]
fn spellings_are_unique() {
    for one in SPELLINGS {
        let alike = |other: &&_| {
            let other: &onnxc_machine::vector::op::Spelling = other;
            (other.name, other.kind, other.number) == (one.name, one.kind, one.number)
        };
        assert_eq!(SPELLINGS.iter().filter(alike).count(), 1, "{} {:?}", one.name, one.kind);
        let op = (one.op)(Lanes::D4, 3);
        assert_eq!(op.lanes().is_none() && one.name != "extract", one.kind == LaneKind::General, "{op:?}");
    }
}

#[test]
fn what_is_no_function_is_refused_with_its_place() {
    for (text, message) in [
        ("function { block1: return 0 }", "line 1, column 12: block0 comes next"),
        ("function { block0: v1 = add f32x7 v2, v3 return 0 }", "a type such as f32x8"),
        ("function { block0: v1 = fly f32x8 v2 return 0 }", "there is no `fly f32x8`"),
        ("function { block0: v1 = add f32x8 4, v2 return 0 }", "there is no `add f32x8` with a number"),
        ("function { block0: v1 = add f32x8 v2, g1 return 0 }", "register 1 is v1 elsewhere"),
        ("function { block0: jump block0 } x", "the end of the text"),
        ("function { block0: g1 = load int [g2 + 4294967296] return 0 }", "more than 32 bits"),
        ("function { block0: branch of g1, g2 then block0 else block0 }", "`lt`, `ge`, `eq` or `ne`"),
        ("function { block0: g4000000000 = const int 1 return 0 }", "a type such as f32x8"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

fn refused(body: &str, message: &str) {
    let func = parse(&format!("function {{ {body} }}")).unwrap();
    let error = verify(&func).unwrap_err();
    assert!(error.contains(message), "{body}: {error}");
}

#[test]
fn the_verifier_refuses() {
    refused("block0(g0): v1 = add f32x8 v2, v2 return 0", "%2 may be read before it is defined");
    refused("block0(g0): g0 = const int 1 return 0", "is defined in block0 and again in block0");
    refused("block0(g0): g1 = add int g0 return 0", "1 register operands, expected 2");
    refused("block0(g0): v1 = splat b32x8 0x1 v2 = add f32x8 v1, each [v1] return 0", "expected Int");
    refused("block0(g0): v1 = load b32x8 each [g0] return 0", "not a place for a vector");
    refused("block0(g0): store b32x8 g0, [g0] return 0", "expected Vec");
    refused("block0(g0): load b32x8 [g0] return 0", "the result is missing");
    refused("block0(g0): g1 = shl int 64, g0 return 0", "a shift by 64");
    refused("block0: jump block1 block1: jump block0", "a jump to the entry");
    refused("block0(g0): jump block1(g0) block1: return 0", "1 arguments for 0 parameters");
    refused("block0(g0): return 0 block1: return 0", "block1 is never reached");
    refused("block0(g0): jump block7", "block7 does not exist");
    refused(
        "block0(g0): branch lt g0, 1 then block1 else block2 block1: jump block2 block2: return 0",
        "the edge from block0 to block2 is critical",
    );
}

/// A definition on one of two paths is none where they meet; one before them is, and one in a loop is none behind it
/// that comes after its test.
#[test]
fn definitions_dominate_uses() {
    let diamond = |first: &str, left: &str, last: &str| {
        format!(
            "block0(g0): {first} branch lt g0, 1 then block1 else block2 block1: {left} jump block3 \\
             block2: jump block3 block3: {last} return 0"
        )
        .replace('\\', "")
    };
    refused(&diamond("", "g1 = const int 1", "g2 = add int 1, g1"), "block3: %1 may be read before");
    let text = format!("function {{ {} }}", diamond("g1 = const int 1", "", "g2 = add int 1, g1"));
    verify(&parse(&text).unwrap()).unwrap();
    let in_loop = |body: &str, after: &str| {
        format!(
            "block0(g0): jump block1(g0) block1(g1): branch lt g1, 9 then block2 else block3 \\
             block2: {body} g2 = add int 1, g1 jump block1(g2) block3: {after} return 0"
        )
        .replace('\\', "")
    };
    refused(&in_loop("", "g3 = add int 1, g2"), "block3: %2 may be read before");
    refused(&in_loop("g4 = add int 1, g2", ""), "block2: %2 may be read before");
    let text = format!("function {{ {} }}", in_loop("", "g3 = add int 1, g1"));
    let func = parse(&text).unwrap();
    verify(&func).unwrap();
    assert_eq!(func.regs.len(), Reg::new(3).index() + 1);
}
