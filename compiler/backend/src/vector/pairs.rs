//! Stores of bytes that floats are quantized to: two vectors that lie side by side are rounded, packed and stored together.
//!
//! What is stored first waits for its neighbour. Between the two, nothing reads or writes where it goes.

use std::collections::{HashMap, HashSet};

use super::fold::readers;
use super::memory::Buffers;
use onnxc_machine::vector::ir::{
    Address, Binary, Block, Class, Func, Inst, Lanes, Mem, Op, Reg, Small, Unary,
};

/// Instructions between two stores, at most: as long, floats take registers.
const NEAR: usize = 256;

/// For vectors of `lanes`.
pub fn run(func: &mut Func, buffers: &Buffers<'_>, lanes: Lanes) {
    let readers = readers(func);
    let mut blocks = std::mem::take(&mut func.blocks);
    for block in blocks.values_mut() {
        let stores = stores(block, &readers, lanes);
        let pairs = pairs(block, &stores, buffers, lanes);
        if !pairs.is_empty() {
            join(block, func, &stores, &pairs, lanes);
        }
    }
    func.blocks = blocks;
}

/// A vector of floats that is stored as bytes.
struct Store {
    at: usize,
    address: Address,
    small: Small,
    /// The floats, before they are rounded.
    floats: Reg,
    zero: i16,
    /// The instructions that round and pack them, which nothing else reads the results of.
    steps: Vec<usize>,
}

fn stores(block: &Block, readers: &HashMap<Reg, u32>, lanes: Lanes) -> Vec<Store> {
    let defined: HashMap<Reg, usize> =
        block.insts.iter().enumerate().filter_map(|(at, inst)| Some((inst.dst?, at))).collect();
    // The instruction whose result an operand is, if nothing else reads it.
    let step = |reg: Reg| {
        let at = *defined.get(&reg).filter(|_| readers[&reg] == 1)?;
        Some((at, &block.insts[at]))
    };
    let store = |(at, inst): (usize, &Inst)| {
        let (Op::Store(own), Some(Mem::At(address))) = (inst.op, inst.mem) else { return None };
        let (quantized, by) = step(inst.uses[0])?;
        let Op::Quantize(small @ (Small::I8 | Small::U8), of) = by.op else { return None };
        if of != lanes || Some(own) != Lanes::stored(lanes.count()) {
            return None;
        }
        let (mut steps, mut floats, mut zero) = (vec![quantized], by.uses[0], 0);
        if let Some((added, sum)) = step(floats)
            && let (Op::Binary(Binary::Add, of), Some(Mem::Constant(bits))) = (sum.op, sum.mem)
            && of == lanes
            && let number = f32::from_bits(bits as u32)
            && number.fract() == 0.0
            && number.abs() <= 255.0
            && let Some((rounded, nearest)) = step(sum.uses[0])
            && (nearest.op, nearest.mem) == (Op::Unary(Unary::Nearest, lanes), None)
        {
            steps.extend([added, rounded]);
            (floats, zero) = (nearest.uses[0], number as i16);
        }
        address.scaled.is_none().then_some(Store { at, address, small, floats, zero, steps })
    };
    block.insts.iter().enumerate().filter_map(store).collect()
}

/// Pairs of stores, the one of the lower bytes first.
fn pairs(block: &Block, stores: &[Store], buffers: &Buffers<'_>, lanes: Lanes) -> Vec<[usize; 2]> {
    let bytes = lanes.count() as i32;
    let mut order: Vec<usize> = (0..stores.len()).collect();
    let place = |at: usize| (stores[at].address.base, stores[at].small == Small::U8, stores[at].zero);
    order.sort_by_key(|&at| (place(at), stores[at].address.disp, at));
    let (mut pairs, mut rest) = (vec![], order.as_slice());
    while let [low, others @ ..] = rest {
        rest = others;
        let Some(high) = others.first() else { break };
        let (a, b) = (&stores[*low], &stores[*high]);
        let beside = a.address.disp.checked_add(bytes) == Some(b.address.disp);
        if place(*low) == place(*high) && beside && may_wait(block, [a, b], bytes, buffers) {
            rest = &others[1..];
            pairs.push([*low, *high]);
        }
    }
    pairs
}

/// Whether the first of two stores may be done with the second.
fn may_wait(block: &Block, [low, high]: [&Store; 2], bytes: i32, buffers: &Buffers<'_>) -> bool {
    let (first, last) = (low.at.min(high.at), low.at.max(high.at));
    let buffer = buffers.of(block.insts[first].mem);
    let (start, end) = (low.address.disp, i64::from(high.address.disp) + i64::from(bytes));
    let apart = |inst: &Inst| {
        let Some(mem) = inst.mem else { return true };
        let Some(address) = mem.address() else { return true };
        match inst.op {
            Op::Store(lanes) if address.base == low.address.base && address.scaled.is_none() => {
                let from = i64::from(address.disp);
                from + lanes.bytes() as i64 <= start.into() || end <= from
            }
            Op::Store(_) => {
                let other = buffers.of(inst.mem);
                other.is_some_and(|other| Some(other) != buffer)
                    || [low, high].iter().all(|store| buffers.counted(inst.mem, block.insts[store.at].mem))
            }
            Op::StorePart(_) => buffers.of(inst.mem).is_some_and(|other| Some(other) != buffer),
            Op::TileStore(_) | Op::TileLoad(_) => false,
            _ => buffers.only_read(inst.mem),
        }
    };
    buffer.is_some() && last - first <= NEAR && block.insts[first + 1..last].iter().all(apart)
}

fn join(block: &mut Block, func: &mut Func, stores: &[Store], pairs: &[[usize; 2]], lanes: Lanes) {
    let Some(both) = Lanes::stored(2 * lanes.count()) else { return };
    let mut gone: HashSet<usize> = HashSet::new();
    // Where the later one of a pair was.
    let mut joined: HashMap<usize, Vec<Inst>> = HashMap::new();
    // The zero points in all halves, which come before the first pair that adds them.
    let mut zeros: HashMap<i16, Reg> = HashMap::new();
    let mut pairs: Vec<[usize; 2]> = pairs.to_vec();
    pairs.sort_by_key(|pair| pair.map(|at| stores[at].at).into_iter().max());
    for pair in pairs {
        let [low, high] = pair.map(|at| &stores[at]);
        for store in [low, high] {
            gone.extend(store.steps.iter().copied().chain([store.at]));
        }
        let (mut insts, mut uses) = (vec![], vec![low.floats, high.floats]);
        if low.zero != 0 {
            uses.push(*zeros.entry(low.zero).or_insert_with(|| {
                let (dst, half) = (func.regs.push(Class::Vec), u64::from(low.zero as u16));
                let op = Op::Splat(lanes, half << 16 | half);
                insts.push(Inst { op, dst: Some(dst), uses: vec![], mem: None });
                dst
            }));
        }
        let dst = func.regs.push(Class::Vec);
        let op = Op::QuantizePair(low.small, u8::from(low.zero != 0), lanes);
        insts.push(Inst { op, dst: Some(dst), uses, mem: None });
        let mem = Some(Mem::At(low.address));
        insts.push(Inst { op: Op::Store(both), dst: None, uses: vec![dst], mem });
        joined.insert(low.at.max(high.at), insts);
    }
    let mut insts = Vec::with_capacity(block.insts.len());
    for (at, inst) in block.insts.drain(..).enumerate() {
        insts.extend(joined.remove(&at).into_iter().flatten());
        if !gone.contains(&at) {
            insts.push(inst);
        }
    }
    block.insts = insts;
}

#[cfg(test)]
mod tests {
    use crate::vector::memory::Buffers;
    use crate::vector::pairs;
    use crate::vector::tests::after;
    use onnxc_loops::parse::parse as kernel;
    use onnxc_machine::vector::ir::{Func, Lanes};

    const KERNEL: &str = "kernel \"k\" {
  buffer b0 \"x\" : read f32[64]
  buffer b1 \"y\" : write i8[64]
  buffer b2 \"z\" : readwrite f32[64]
}
";

    /// The addresses of the buffers.
    const START: [&str; 3] = ["g4 = load int [g0]", "g5 = load int [g0 + 8]", "g6 = load int [g0 + 16]"];

    fn paired(body: &[String]) -> Vec<String> {
        let (kernel, body) = (kernel(KERNEL).unwrap(), [&START.map(String::from), body].concat());
        let pass = |func: &mut Func| {
            let buffers = Buffers::new(func, &kernel);
            pairs::run(func, &buffers, Lanes::X4);
        };
        after(&body, pass).split_off(START.len())
    }

    /// Floats number `number`, which become bytes at `disp` with a zero point of -3 if there is one.
    fn quantized(number: usize, disp: usize, zero: bool) -> Vec<String> {
        let [x, nearest, sum, bytes] = [0, 1, 2, 3].map(|step| format!("v{}", 10 * number + step));
        let mut lines = vec![format!("{x} = load b32x4 [g4 + {}]", 16 * number)];
        if zero {
            lines.push(format!("{nearest} = nearest f32x4 {x}"));
            lines.push(format!("{sum} = add f32x4 {nearest}, 0xc0400000"));
        }
        lines.push(format!("{bytes} = quantize_i8 f32x4 {}", if zero { sum } else { x }));
        lines.push(format!("store b32 {bytes}, [g5 + {disp}]"));
        lines
    }

    #[test]
    fn neighbours_are_stored_together() {
        for zero in [true, false] {
            let body = [quantized(1, 12, zero), quantized(2, 40, zero), quantized(3, 8, zero)].concat();
            let found = paired(&body);
            let other = quantized(2, 40, zero);
            assert_eq!(found[0], body[0]);
            assert_eq!(found[1..1 + other.len()], other);
            assert_eq!(found[1 + other.len()], "v30 = load b32x4 [g4 + 48]");
            let mut rest = &found[2 + other.len()..];
            let mut wanted = "= quantize_pair_i8 f32x4 0, v30, v10".to_string();
            if zero {
                let (name, constant) = rest[0].split_once(" = ").unwrap();
                assert_eq!(constant, "splat b32x4 0xfffdfffd");
                (wanted, rest) = (format!("= quantize_pair_i8 f32x4 1, v30, v10, {name}"), &rest[1..]);
            }
            assert!(rest[0].ends_with(&wanted), "{found:?}");
            assert!(rest[1].starts_with("store b64 v") && rest[1].ends_with(", [g5 + 8]"), "{found:?}");
            assert_eq!(rest.len(), 2);
        }
    }

    /// Bytes that are not neighbours, other zero points, a store to the same bytes, and a load from memory that is written.
    #[test]
    fn others_stay() {
        let unchanged = |parts: &[Vec<String>]| assert_eq!(paired(&parts.concat()), parts.concat());
        unchanged(&[quantized(1, 8, true), quantized(2, 16, true)]);
        unchanged(&[quantized(1, 8, true), quantized(2, 12, false)]);
        let over = vec!["v50 = load b32x4 [g4]".to_string(), "store b32 v50, [g5 + 10]".to_string()];
        unchanged(&[quantized(1, 8, true), over, quantized(2, 12, true)]);
        let read = vec!["v50 = load b32x4 [g6]".to_string(), "store b32x4 v50, [g6 + 32]".to_string()];
        unchanged(&[quantized(1, 8, true), read.clone(), quantized(2, 12, true)]);
        // Rows at places that are counted, and at one that the data say.
        let row = |place: &str| {
            let other = quantized(2, 40, true).join("\n").replace("g5", "g9");
            [place, "g9 = add int g5, g8"]
                .into_iter()
                .chain(other.lines())
                .map(str::to_string)
                .collect::<Vec<_>>()
        };
        let rows = |place: &str| [quantized(1, 8, true), row(place), quantized(3, 12, true)];
        unchanged(&rows("g8 = load_i32 int [g4 + 128]"));
        assert_ne!(paired(&rows("g8 = mul int 40, g2").concat()), rows("g8 = mul int 40, g2").concat());
        let elsewhere = [quantized(1, 8, true), vec![read[1].replace("v50", "v10")], quantized(2, 12, true)];
        assert_ne!(paired(&elsewhere.concat()), elsewhere.concat());
    }
}
