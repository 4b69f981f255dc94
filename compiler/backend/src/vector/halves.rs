//! Sums of products of small integers, where the machine adds products of halves of lanes: two neighbouring vectors of small
//! integers are loaded as one of halves, and a product with its addition is one instruction, of the lower part or of the
//! upper one.
//!
//! Only within a block, only of elements that nothing but such products reads, and only where nothing is stored between the
//! two, as that may be an element.

use std::collections::{HashMap, HashSet};

use super::fold::readers;
use onnxc_machine::vector::ir::{Address, Binary, Block, Class, Func, Inst, Lanes, Mem, Op, Reg, Small};

/// Lanes of a vector; its elements are halves of lanes.
const LANES: Lanes = Lanes::X4;

pub fn run(func: &mut Func) {
    let readers = readers(func);
    let is_zero = |inst: &Inst| matches!(inst.op, Op::Splat(LANES, 0)).then_some(inst.dst).flatten();
    let zeros: HashSet<Reg> =
        func.blocks.values().flat_map(|block| block.insts.iter().filter_map(is_zero)).collect();
    let mut blocks = std::mem::take(&mut func.blocks);
    for block in blocks.values_mut() {
        let mut pairs = pairs(block);
        let products = products(block, &readers);
        let kept = keep(&mut pairs, &products, &readers);
        if !kept.is_empty() {
            rewrite(block, func, (&pairs, &kept), &zeros);
        }
    }
    func.blocks = blocks;
}

/// A vector of small integers that is loaded, where, and how many stores come before.
struct Load {
    reg: Reg,
    at: usize,
    address: Address,
    small: Small,
    stores: usize,
}

/// Two loads of neighbours.
struct Pair {
    small: Small,
    /// The first of the lower part.
    address: Address,
    /// Of the lower part and of the upper one.
    regs: [Reg; 2],
    /// The places of the loads.
    at: [usize; 2],
}

/// A product that is added to something.
struct Product {
    multiplication: usize,
    addition: usize,
    acc: Reg,
    factors: [Reg; 2],
}

fn pairs(block: &Block) -> Vec<Pair> {
    let (mut loads, mut stores) = (vec![], 0);
    for (at, inst) in block.insts.iter().enumerate() {
        match (inst.op, inst.mem, inst.dst) {
            (
                Op::LoadSmall(small @ (Small::I8 | Small::U8 | Small::I16), LANES),
                Some(Mem::At(address)),
                Some(reg),
            ) if address.scaled.is_none() => loads.push(Load { reg, at, address, small, stores }),
            (Op::Store(_) | Op::StorePart(_) | Op::TileStore(_), ..) => stores += 1,
            _ => {}
        }
    }
    let place = |load: &Load| (load.address.base, load.stores, load.small.bytes(), load.small == Small::I8);
    loads.sort_by_key(|load| (place(load), load.address.disp));
    let mut pairs = vec![];
    let mut rest = loads.as_slice();
    while let [low, others @ ..] = rest {
        rest = others;
        let Some(high) = others.first() else { break };
        let apart = (low.small.bytes() * LANES.count()) as i32;
        let beside = low.address.disp.checked_add(apart) == Some(high.address.disp);
        if place(low) == place(high) && beside {
            rest = &others[1..];
            let (regs, at) = ([low.reg, high.reg], [low.at, high.at]);
            pairs.push(Pair { small: low.small, address: low.address, regs, at });
        }
    }
    pairs
}

fn products(block: &Block, readers: &HashMap<Reg, u32>) -> Vec<Product> {
    let (mut multiplications, mut products) = (HashMap::new(), vec![]);
    for (at, inst) in block.insts.iter().enumerate() {
        match (inst.op, inst.uses.as_slice(), inst.mem, inst.dst) {
            (Op::Binary(Binary::IntMul, LANES), &[a, b], None, Some(reg)) if readers[&reg] == 1 => {
                multiplications.insert(reg, (at, [a, b]));
            }
            (Op::Binary(Binary::IntAdd, LANES), &[a, b], None, _) => {
                for (acc, product) in [(a, b), (b, a)] {
                    if let Some(&(multiplication, factors)) = multiplications.get(&product) {
                        products.push(Product { multiplication, addition: at, acc, factors });
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    products
}

/// Leaves the pairs that nothing else reads than products of equal parts of two of them, and gives those products with
/// their parts.
fn keep<'p>(
    pairs: &mut Vec<Pair>,
    products: &'p [Product],
    readers: &HashMap<Reg, u32>,
) -> Vec<(&'p Product, u8)> {
    loop {
        let parts: HashMap<Reg, u8> =
            pairs.iter().flat_map(|pair| [(pair.regs[0], 0), (pair.regs[1], 1)]).collect();
        let of_pairs = products.iter().filter_map(|product| {
            let [a, b] = product.factors.map(|factor| parts.get(&factor));
            a.filter(|_| a == b).map(|&part| (product, part))
        });
        let kept: Vec<(&Product, u8)> = of_pairs.collect();
        let mut reads: HashMap<Reg, u32> = HashMap::new();
        for (product, _) in &kept {
            product.factors.iter().for_each(|factor| *reads.entry(*factor).or_default() += 1);
        }
        let before = pairs.len();
        pairs.retain(|pair| pair.regs.iter().all(|reg| reads.get(reg) == readers.get(reg)));
        if pairs.len() == before {
            return kept;
        }
    }
}

fn rewrite(
    block: &mut Block,
    func: &mut Func,
    (pairs, products): (&[Pair], &[(&Product, u8)]),
    zeros: &HashSet<Reg>,
) {
    // By both registers of a pair, the one that takes their place.
    let mut whole: HashMap<Reg, Reg> = HashMap::new();
    let mut gone: HashSet<usize> = products.iter().map(|(product, _)| product.multiplication).collect();
    // Where a pair is loaded: at the first of its two loads.
    let mut loads: HashMap<usize, Inst> = HashMap::new();
    for pair in pairs {
        let dst = func.regs.push(Class::Vec);
        whole.extend(pair.regs.map(|reg| (reg, dst)));
        gone.extend(pair.at);
        let op = match pair.small {
            Small::I16 => Op::Load(LANES),
            small => Op::LoadHalves(small, LANES),
        };
        let load = Inst { op, dst: Some(dst), uses: vec![], mem: Some(Mem::At(pair.address)) };
        loads.insert(pair.at[0].min(pair.at[1]), load);
    }
    let additions: HashMap<usize, &(&Product, u8)> =
        products.iter().map(|product| (product.0.addition, product)).collect();
    let mut insts = Vec::with_capacity(block.insts.len());
    for (at, mut inst) in block.insts.drain(..).enumerate() {
        insts.extend(loads.remove(&at));
        if gone.contains(&at) {
            continue;
        }
        if let Some((product, part)) = additions.get(&at) {
            let [a, b] = product.factors.map(|factor| whole[&factor]);
            (inst.op, inst.uses) = match zeros.contains(&product.acc) {
                true => (Op::MulHalves(*part, LANES), vec![a, b]),
                false => (Op::MulAddHalves(*part, LANES), vec![product.acc, a, b]),
            };
        }
        insts.push(inst);
    }
    block.insts = insts;
}

#[cfg(test)]
mod tests {
    use crate::vector::halves;
    use crate::vector::tests::after;

    fn in_halves(body: &[&str]) -> Vec<String> {
        after(body, halves::run)
    }

    const SUMS: [&str; 12] = [
        "v4 = load b32x4 [g2]",
        "v5 = load_u8 i32x4 [g0 + 16]",
        "v6 = load_i8 i32x4 [g1]",
        "v7 = mul i32x4 v5, v6",
        "v8 = add i32x4 v4, v7",
        "v9 = load_u8 i32x4 [g0 + 20]",
        "v10 = load_i8 i32x4 [g1 + 4]",
        "v11 = mul i32x4 v10, v9",
        "v12 = add i32x4 v11, v4",
        "store b32x4 v8, [g2]",
        "store b32x4 v12, [g2 + 16]",
        "store b32x4 v4, [g2 + 32]",
    ];

    #[test]
    fn neighbours_are_one_vector() {
        let found = in_halves(&SUMS);
        assert!(found[1].ends_with("= load_halves_u8 i32x4 [g0 + 16]"), "{found:?}");
        assert!(found[2].ends_with("= load_halves_i8 i32x4 [g1]"), "{found:?}");
        let [x, w] = [1, 2].map(|at: usize| found[at].split(' ').next().unwrap().to_string());
        assert_eq!(found[3], format!("v8 = mul_add_halves i32x4 0, v4, {x}, {w}"));
        assert_eq!(found[4], format!("v12 = mul_add_halves i32x4 1, v4, {w}, {x}"));
        assert_eq!(found[5..], SUMS[9..]);
    }

    #[test]
    fn products_with_nothing_before() {
        let found =
            in_halves(&SUMS.map(|line| if line.starts_with("v4 =") { "v4 = splat b32x4 0x0" } else { line }));
        assert!(found[3].starts_with("v8 = mul_halves i32x4 0, v"), "{found:?}");
        assert!(found[4].starts_with("v12 = mul_halves i32x4 1, v"), "{found:?}");
    }

    /// Elements of 16 bits are halves as they are.
    #[test]
    fn halves_in_memory() {
        let body = SUMS.map(|line| line.replace("load_i8", "load_i16").replace("[g1 + 4]", "[g1 + 8]"));
        let found = in_halves(&body.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(found[2].ends_with("= load b32x4 [g1]"), "{found:?}");
        assert!(found[3].starts_with("v8 = mul_add_halves"), "{found:?}");
    }

    /// What something else reads, what is not a neighbour, an upper part by a lower one, and a store between: all stays.
    #[test]
    fn others_stay() {
        let unchanged = |change: &dyn Fn(usize, &str) -> String| {
            let body: Vec<String> = SUMS.iter().enumerate().map(|(at, line)| change(at, line)).collect();
            let body: Vec<&str> = body.iter().flat_map(|lines| lines.split('\n')).collect();
            assert_eq!(in_halves(&body), body);
        };
        unchanged(&|at, line| if at == 11 { line.replace("v4", "v9") } else { line.into() });
        unchanged(&|_, line| line.replace("[g0 + 20]", "[g0 + 24]"));
        unchanged(&|_, line| line.replace("[g1 + 4]", "[g1 - 4]"));
        unchanged(&|_, line| line.replace("load_i8 i32x4 [g1 + 4]", "load_u8 i32x4 [g1 + 4]"));
        unchanged(&|at, line| if at == 5 { format!("store b32x4 v4, [g3]\n{line}") } else { line.into() });
    }
}
