//! Every operation of the vector IR, interpreted and as machine code, on numbers of all kinds.

use super::*;
use onnxc_machine::vector::interp;
use onnxc_machine::vector::op::{LaneKind, MemUse, SPELLINGS};
use onnxc_machine::vector::verify;

/// Bits of numbers, to fill lanes of any width: small ones and large ones, edges, infinities, NaN.
fn numbers(seed: u64, width: usize) -> Vec<u8> {
    let singles = [0.0f32, -0.0, 1.0, -1.5, 2.5, 3e9, -3e9, 1e20, 1e-40, f32::INFINITY, f32::NAN, 65519.9];
    let ints =
        [0i64, 1, -1, 127, -128, 255, 32767, i64::from(i32::MAX), i64::from(i32::MIN), i64::MAX, i64::MIN];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut element = || match (next() % 3, width) {
        (0, 8) => f64::from(singles[next() % singles.len()]).to_bits(),
        (0, _) => singles[next() % singles.len()].to_bits().into(),
        (1, _) => ints[next() % ints.len()] as u64,
        _ => (next() as u64) << 32 ^ next() as u64,
    };
    (0..64 / width).flat_map(|_| element().to_le_bytes()[..width].to_vec()).collect()
}

/// Ones in place of floats that are NaN.
fn without_nan(buffer: &mut [u8]) {
    for lane in buffer.as_chunks_mut::<4>().0 {
        if f32::from_le_bytes(*lane).is_nan() {
            *lane = 1f32.to_le_bytes();
        }
    }
}

/// Bytes of the result that an operation specifies.
fn specified(op: Op, lanes: Lanes) -> usize {
    match op {
        Op::Convert(Convert::Narrow | Convert::DoubleToInt | Convert::Truncate, _) => 4 * lanes.count(),
        Op::Pack(small, _) | Op::Quantize(small, _) | Op::Saturate(small, _) => small.bytes() * lanes.count(),
        Op::PackBf16(_) => 2 * lanes.count(),
        Op::QuantizePair(small, ..) => 2 * small.bytes() * lanes.count(),
        Op::BroadcastHalf => 16,
        Op::FromGeneral(one) => one.width(),
        _ => lanes.bytes(),
    }
}

/// The mask of what is above 0 at a pointer.
fn positive(b: &mut Build, pointer: Reg, whole: Lanes, lanes: Lanes) -> Reg {
    let value = b.vec_mem(Op::Load(whole), &[], pointer, 0);
    let zero = b.vec(Op::Splat(lanes, 0), &[]);
    b.push(Op::Compare(Compare::IntGt, lanes), Some(Class::Mask), &[value, zero], None).unwrap()
}

/// Loads the operands of `op` from the first four buffers, and stores its result to the last. Integer results are stored
/// in two halves.
fn function(op: Op, lanes: Lanes, isa: Isa, in_memory: bool) -> Func {
    let (mut b, [buffers, ..]) = Build::new();
    let whole = if isa.vector_bytes == 64 { Lanes::X16 } else { Lanes::X8 };
    let pointers = [0, 8, 16, 24, 32].map(|disp| b.load_int(buffers, disp));
    let shape = op.shape();
    let mut uses = Vec::new();
    for (at, class) in shape.uses.iter().enumerate() {
        uses.push(match class {
            // All bits of a lane, or none.
            Class::Vec if matches!(op, Op::MaskOf(_)) => {
                let mask = positive(&mut b, pointers[at], whole, lanes);
                b.vec(Op::MaskBits(lanes), &[mask])
            }
            Class::Vec => {
                let load = match op {
                    // Integers that fit.
                    Op::Pack(small, lanes)
                        if small != Small::F16 && lanes.count() > 1 && lanes.width() == 4 =>
                    {
                        Op::LoadSmall(small, lanes)
                    }
                    _ => Op::Load(whole),
                };
                b.vec_mem(load, &[], pointers[at], 0)
            }
            Class::Int => b.load_int(pointers[at], 8),
            Class::Mask => {
                let from = match op {
                    Op::MaskWiden(lanes) => lanes.narrow(),
                    _ => lanes,
                };
                positive(&mut b, pointers[at], whole, from)
            }
        });
    }
    let last = pointers[shape.uses.len().saturating_sub(1)];
    let mem = match shape.mem {
        MemUse::Always => Some(Mem::at(pointers[3], 0)),
        MemUse::Last if in_memory => {
            uses.pop();
            Some(Mem::at(last, 0))
        }
        _ => None,
    };
    let out = pointers[4];
    let mem = if shape.dst.is_none() { Some(Mem::at(out, 0)) } else { mem };
    match (shape.dst, b.push(op, shape.dst, &uses, mem)) {
        (Some(Class::Mask), Some(mask)) => {
            let lanes = if let Op::MaskNarrow(lanes) = op { lanes.narrow() } else { lanes };
            let bits = b.vec(Op::MaskBits(lanes), &[mask]);
            b.store(lanes, bits, out, 0);
        }
        (Some(Class::Int), Some(value)) => {
            let high = b.int(Op::ShrInt(32), &[value]);
            for (at, half) in [value, high].into_iter().enumerate() {
                let half = b.vec(Op::FromGeneral(Lanes::X1), &[half]);
                b.store(Lanes::X1, half, out, 4 * at as i32);
            }
        }
        (_, Some(value)) => b.store(whole, value, out, 0),
        (_, None) => {}
    }
    b.func
}

/// The same bits, but for those of NaNs of an operation on floats.
fn same(a: &[u8], b: &[u8], float: bool, width: usize) -> bool {
    a == b
        || float
            && a.chunks(width).zip(b.chunks(width)).all(|(a, b)| {
                let nan = |bytes: &[u8]| match width {
                    8 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    _ => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                };
                a == b || a.len() == width && nan(a) && nan(b)
            })
}

#[test]
fn every_operation_as_the_machine_does_it() {
    let mut count = 0;
    for platform in platforms().into_iter().filter(|platform| platform.emulated) {
        let isa = platform.isa;
        let ops = SPELLINGS.iter().flat_map(|one| {
            // With a number there are several.
            let numbers: &[u64] = if one.number { &[1, 7, 0x1234] } else { &[0] };
            numbers
                .iter()
                .flat_map(move |&number| Lanes::ALL.map(|lanes| (one.kind, (one.op)(lanes, number))))
        });
        for (kind, op) in ops {
            let lanes = op.written_lanes();
            // Quotients have operands of their own, below.
            if op == Op::DivInt {
                continue;
            }
            for in_memory in [false, true] {
                let func = function(op, lanes, isa, in_memory);
                if verify::verify(&func).and_then(|()| verify::check(&func, isa)).is_err() {
                    continue;
                }
                let machine = Emulator::new(&compile(&func, isa).unwrap());
                for seed in 1..=8 {
                    let mut buffers: Vec<Vec<u8>> =
                        (0..4).map(|at| numbers(seed * 5 + at, lanes.width())).collect();
                    if matches!(op, Op::Quantize(Small::I8, _) | Op::QuantizePair(Small::I8, ..))
                        || matches!(op, Op::QuantizePair(_, 1, _))
                    {
                        // What NaN becomes is not specified.
                        buffers.iter_mut().for_each(|buffer| without_nan(buffer));
                    }
                    buffers.push(vec![0; 64]);
                    let mut others = buffers.clone();
                    let code = interp::run(&func, &mut buffers, &[], (0, 0)).unwrap();
                    let lengths = [64; 5];
                    let pointers: Vec<*mut u8> =
                        others.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
                    assert_eq!(machine.call(&pointers, Some(&lengths), &[0; 8], (0, 0)), code);
                    let bytes = specified(op, lanes);
                    let width = if let Op::Convert(Convert::Narrow, _) = op { 4 } else { lanes.width() };
                    let float = kind == LaneKind::Float
                        && !matches!(op, Op::Pack(..) | Op::Quantize(..) | Op::QuantizePair(..));
                    assert!(
                        same(&buffers[4][..bytes], &others[4][..bytes], float, width),
                        "{op:?} on {platform:?}, seed {seed}\n{func}{:x?}\n{:x?}",
                        &buffers[4][..bytes],
                        &others[4][..bytes]
                    );
                    count += 1;
                }
            }
        }
    }
    assert!(count > 5000, "{count} runs");
}
