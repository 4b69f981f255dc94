//! Products by an element, where the machine has those: elements that a block puts in every lane each, and that lie side by
//! side, are loaded as one vector, and a product names the lane that it takes.
//!
//! Only within a block, only of elements that nothing but products reads, and only where nothing is stored in between, as
//! that may be an element.

use std::collections::HashMap;

use super::fold::readers;
use onnxc_machine::vector::ir::{Address, Block, Class, Func, Inst, Lanes, Mem, Op, Reg};
use onnxc_machine::vector::isa::Isa;

/// Bytes of a vector that a product takes a lane from.
const BYTES: usize = 16;

pub fn run(func: &mut Func, isa: Isa) {
    let readers = readers(func);
    let mut blocks = std::mem::take(&mut func.blocks);
    for block in blocks.values_mut() {
        let elements = elements(block, isa, &readers);
        if !elements.is_empty() {
            by_lane(block, func, &elements);
        }
    }
    func.blocks = blocks;
}

/// Elements by their register, where they are, how wide they are, and how many stores come before.
struct Element {
    reg: Reg,
    at: usize,
    address: Address,
    width: usize,
    stores: usize,
}

/// The product with a lane that stands for one with an element in operand `of`, if there is one.
fn product(op: Op, of: usize) -> Option<fn(Op, u8) -> Op> {
    let of_lane: fn(Op, u8) -> Op = match op {
        Op::Fma(_) => |op, lane| if let Op::Fma(lanes) = op { Op::FmaLane(lane, lanes) } else { op },
        Op::Dot(signs, _) if signs.a == signs.b => |op, lane| match op {
            Op::Dot(signs, lanes) => Op::DotLane(lane, signs, lanes),
            _ => op,
        },
        _ => return None,
    };
    (of > 0).then_some(of_lane)
}

/// The elements of a block that only products read.
fn elements(block: &Block, isa: Isa, readers: &HashMap<Reg, u32>) -> Vec<Element> {
    let (mut found, mut stores): (Vec<Element>, usize) = (vec![], 0);
    let mut products: HashMap<Reg, u32> = HashMap::new();
    for (at, inst) in block.insts.iter().enumerate() {
        match (inst.op, inst.mem, inst.dst) {
            (Op::Broadcast(lanes), Some(Mem::At(address)), Some(reg))
                if !lanes.is_scalar() && address.scaled.is_none() =>
            {
                found.push(Element { reg, at, address, width: lanes.width(), stores });
            }
            (Op::Store(_) | Op::StorePart(_) | Op::TileStore(_), ..) => stores += 1,
            _ => {}
        }
        // Of two elements, one is in every lane all the same.
        let by = (1..inst.uses.len()).rev().find(|&of| {
            let known = found.iter().any(|element| element.reg == inst.uses[of]);
            known && product(inst.op, of).is_some_and(|of| isa.has(of(inst.op, 0)))
        });
        if let Some(of) = by {
            *products.entry(inst.uses[of]).or_default() += 1;
        }
    }
    found.retain(|element| products.get(&element.reg) == readers.get(&element.reg));
    found
}

/// Loads elements as vectors, where the first of each was, and names lanes in products.
fn by_lane(block: &mut Block, func: &mut Func, elements: &[Element]) {
    let mut lanes: HashMap<Reg, (Reg, u8)> = HashMap::new();
    // Where a vector is loaded, and the instruction that does it.
    let mut loads: HashMap<usize, Vec<Inst>> = HashMap::new();
    for VectorElements { elements, start, bytes } in groups(elements) {
        let (Some(first), Some(at)) = (elements.first(), elements.iter().map(|element| element.at).min())
        else {
            continue;
        };
        let dst = func.regs.push(Class::Vec);
        let address = Address { disp: start, ..first.address };
        let lane = Lanes::of(bytes / first.width, first.width).unwrap_or(Lanes::X4);
        let load = Inst { op: Op::Load(lane), dst: Some(dst), uses: vec![], mem: Some(Mem::At(address)) };
        loads.entry(at).or_default().push(load);
        for element in elements {
            let lane = (element.address.disp - start) as usize / element.width;
            lanes.insert(element.reg, (dst, lane as u8));
        }
    }
    let mut insts = Vec::with_capacity(block.insts.len());
    for (at, mut inst) in block.insts.drain(..).enumerate() {
        insts.extend(loads.remove(&at).into_iter().flatten());
        if inst.dst.is_some_and(|dst| lanes.contains_key(&dst)) {
            continue;
        }
        let by = (1..inst.uses.len()).rev().find(|&of| lanes.contains_key(&inst.uses[of]));
        if let Some(of) = by
            && let Some(with) = product(inst.op, of)
        {
            let (vector, lane) = lanes[&inst.uses[of]];
            let last = inst.uses.len() - 1;
            inst.uses.swap(of, last);
            inst.uses[last] = vector;
            inst.op = with(inst.op, lane);
        }
        insts.push(inst);
    }
    block.insts = insts;
}

/// Elements that one vector has, where it begins and how long it is.
struct VectorElements<'e> {
    elements: Vec<&'e Element>,
    start: i32,
    bytes: usize,
}

/// Elements in vectors of 16 bytes, 8, or of one each. What a vector has beside its elements lies between others that are
/// read from the same register on: it is memory of the same buffer.
fn groups(elements: &[Element]) -> Vec<VectorElements<'_>> {
    let place = |element: &Element| (element.address.base, element.stores, element.width);
    let mut sorted: Vec<&Element> = elements.iter().collect();
    sorted.sort_by_key(|element| (place(element), element.address.disp));
    let mut groups = vec![];
    for alike in sorted.chunk_by(|a, b| place(a) == place(b)) {
        let (lowest, width) = (alike[0].address.disp, alike[0].width as i32);
        let end = alike[alike.len() - 1].address.disp + width;
        let mut rest = alike;
        while let Some(first) = rest.first() {
            let group = [BYTES, BYTES / 2].into_iter().find_map(|bytes| {
                let start = first.address.disp.min(end - bytes as i32);
                let within = |element: &&&Element| element.address.disp + width <= start + bytes as i32;
                let count = rest.iter().take_while(within).count();
                let whole = rest[..count].iter().all(|element| (element.address.disp - start) % width == 0);
                let distinct = rest[..count].iter().any(|element| element.address.disp != first.address.disp);
                let fits = start >= lowest && whole && distinct;
                fits.then(|| VectorElements { elements: rest[..count].to_vec(), start, bytes })
            });
            let alone = || {
                let same = |element: &&&Element| element.address.disp == first.address.disp;
                let elements = rest.iter().take_while(same).copied().collect();
                VectorElements { elements, start: first.address.disp, bytes: first.width }
            };
            let group = group.unwrap_or_else(alone);
            rest = &rest[group.elements.len()..];
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use crate::vector::element;
    use crate::vector::tests::after;
    use onnxc_machine::vector::isa::Isa;

    fn by_lane(body: &[&str]) -> Vec<String> {
        after(body, |func| element::run(func, Isa::NEON))
    }

    #[test]
    fn neighbours_are_one_vector() {
        let mut body = vec!["v4 = load b32x4 [g1]".to_string()];
        let mut wanted = body.clone();
        wanted.push("v100 = load b32x4 [g0 + 8]".into());
        for at in 0..4 {
            body.push(format!("v{} = broadcast b32x4 [g0 + {}]", 10 + at, 8 + 4 * at));
            let sum = if at == 0 { 4 } else { 19 + at };
            body.push(format!("v{} = fma f32x4 v{sum}, v{}, v4", 20 + at, 10 + at));
            wanted.push(format!("v{} = fma_lane f32x4 {at}, v{sum}, v4, v100", 20 + at));
        }
        body.push("store b32x4 v23, [g2]".into());
        wanted.push("store b32x4 v23, [g2]".into());
        let found = by_lane(&body.iter().map(String::as_str).collect::<Vec<_>>());
        // The new register has the next number there is.
        let vector = found[1].split(' ').next().unwrap().to_string();
        let wanted: Vec<String> = wanted.iter().map(|line| line.replace("v100", &vector)).collect();
        assert_eq!(found, wanted);
    }

    /// Elements at a distance are lanes of a vector that has nothing before the first or behind the last of them.
    #[test]
    fn elements_at_a_distance() {
        let mut body = vec!["v4 = load b32x4 [g1]".to_string()];
        for at in 0..6 {
            body.push(format!("v{} = broadcast b32x4 [g0 + {}]", 10 + at, 64 + 8 * at));
            let sum = if at == 0 { 4 } else { 19 + at };
            body.push(format!("v{} = fma f32x4 v{sum}, v{}, v4", 20 + at, 10 + at));
        }
        body.push("store b32x4 v25, [g2]".into());
        let found = by_lane(&body.iter().map(String::as_str).collect::<Vec<_>>());
        let loads: Vec<&str> =
            found.iter().filter_map(|line| line.split_once("= load ")).map(|l| l.1).collect();
        assert_eq!(loads, ["b32x4 [g1]", "b32x4 [g0 + 64]", "b32x4 [g0 + 80]", "b32x4 [g0 + 92]"]);
        let lanes: Vec<&str> =
            found.iter().filter_map(|line| line.split_once("fma_lane f32x4 ")).map(|l| &l.1[..1]).collect();
        assert_eq!(lanes, ["0", "2", "0", "2", "1", "3"]);
    }

    /// Other readers of an element keep it in every lane, and a store between two keeps them apart.
    #[test]
    fn others_stay() {
        let body = [
            "v4 = load b32x4 [g1]",
            "v5 = broadcast b32x4 [g0]",
            "v6 = fma f32x4 v5, v4, v5",
            "v7 = broadcast b32x4 [g0 + 4]",
            "v8 = fma f32x4 v6, v4, v7",
            "store b32x4 v8, [g2]",
            "v9 = broadcast b32x4 [g0 + 8]",
            "v10 = fma f32x4 v8, v4, v9",
            "store b32x4 v10, [g2]",
        ];
        let found = by_lane(&body);
        assert_eq!(found[1..3], body[1..3]);
        assert!(found[3].ends_with("= load b32 [g0 + 4]"), "{found:?}");
        assert!(found[4].starts_with("v8 = fma_lane f32x4 0, v6, v4, v"), "{found:?}");
        assert!(found[6].ends_with("= load b32 [g0 + 8]"), "{found:?}");
    }
}
