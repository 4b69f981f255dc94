//! Lays out the right-hand side of every contraction as column panels, the form that kernels read. Constant
//! right-hand sides are packed when the object is written; others at run time, read through their views.

use std::collections::HashMap;

use crate::digits::digits;
use crate::products::{Known, bf16_of};
use crate::rewrite::{bodies, rewrite};
use crate::weights::Weights;
use crate::{Options, Precision, hoist};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, Node, Op, PAIR_DEPTH, RhsLayout, ValueId};
use onnxc_machine::target::Target;

/// What a panel's width is chosen by; `None` for symbolic counts.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub dtype: DType,
    pub rows: Option<i64>,
    pub columns: Option<i64>,
}

/// A row of the panel policy: it holds for products of `dtypes` with at most `max_rows` rows, at least `min_columns`
/// columns, and whose panels have fewer columns in all than those that are `fewer_than` wide. A symbolic count meets no limit.
#[derive(Clone, Copy, Debug)]
pub struct PackRule {
    /// Empty: any.
    pub dtypes: &'static [DType],
    pub max_rows: Option<i64>,
    pub min_columns: Option<i64>,
    pub fewer_than: Option<i64>,
    /// Columns per panel.
    pub nr: usize,
}

const ANY: PackRule =
    PackRule { dtypes: &[DType::F32], max_rows: None, min_columns: None, fewer_than: None, nr: 4 };

/// They compute in f32, with the lanes of f32.
const HALVES: &[DType] = &[DType::F16, DType::BF16];

/// Small integers, whose products are added up in lanes of 32 bits, and what other integers are widened to.
const INTS: &[DType] = &[DType::I8, DType::I16, DType::I32];

/// Codes of weights, whose products are of f32.
const CODES: &[DType] = &[DType::U4, DType::U8];
const BYTES: &[DType] = &[DType::U8];

/// One row: a wide panel keeps several accumulators busy.
const ONE_ROW: PackRule = PackRule { max_rows: Some(1), min_columns: Some(32), nr: 32, ..ANY };

/// Panel widths as data: the first rule that holds decides.
#[derive(Clone, Copy, Debug)]
pub struct PackPolicy {
    pub rules: &'static [PackRule],
    /// Where no rule holds.
    pub nr: usize,
    /// Multiplications of small integers in the time of one of floats.
    pub rates: Rates,
    /// Whether kernels that add up four products of bytes by several instructions need fewer where sums of two fit 16 bits.
    pub short_sums: bool,
    /// The same for some kernels only: rows with sums that fit stay in their places, so that others read them as they would without.
    pub short_sums_in_place: bool,
    /// Whether the left-hand side of a product of bytes is signed, as its right-hand side is.
    pub signed_bytes: bool,
    /// Whether kernels add up products of 16 bits, so that short sums of small integers stay integers rather than become floats.
    pub half_products: bool,
    /// Whether kernels add up products of bytes from four places at once.
    pub joined_bytes: bool,
    /// Whether kernels add up products of pairs of bf16.
    pub bf16_pairs: bool,
    /// Digits of a left-hand side whose products with codes of few bits are sums of bytes; 0 where products of floats are
    /// faster.
    pub digits: usize,
    /// Bytes that transformed weights of convolutions may add, for each byte of the model's weights of f32 and of narrower ones;
    /// without, any number. Where code is few bytes of the model's, they may add what code leaves of [`FOR_CODE`], too.
    pub transformed: Option<[f64; 2]>,
    /// Bytes as f32 above which values of 16 bits that windows read are kept in 16 bits.
    pub kept_above: i64,
}

/// Multiplications of bytes and of pairs of 16 bits, each added up in 32, in the time of one of floats; 0 where they are not
/// faster. And those of floats in the time in which a byte of weights comes from memory.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub bytes: f64,
    pub pairs: f64,
    pub memory_byte: f64,
}

impl Rates {
    pub const NONE: Rates = Rates { bytes: 0.0, pairs: 0.0, memory_byte: 3.5 };

    /// By several instructions of AVX2: those of bytes as short sums allow them.
    pub const AVX2: Rates = Rates { bytes: 1.5, pairs: 1.6, ..Rates::NONE };

    /// By several instructions of 512 bits. Of weights that come between products, Zen 5 reads 17 GB/s in the time of 144e9
    /// multiplications of floats, Emerald Rapids 13 GB/s in that of 106e9.
    pub const AVX512: Rates = Rates { memory_byte: 7.0, ..Rates::AVX2 };

    /// By an instruction each.
    pub const VNNI: Rates = Rates { bytes: 4.0, pairs: 2.0, ..Rates::NONE };

    /// By an instruction for bytes only: SDOT, and the processor's tiles.
    pub const DOT: Rates = Rates { bytes: 4.0, ..Rates::NONE };
}

/// Terms of the last inner axis from which on filling it up to a multiple of [`DOT_DEPTH`] is worth it.
const LEAST_STEPS: i64 = 3;

/// Digits of a left-hand side: with three, its elements have an error of 2^-23 of the largest one that shares their unit, about
/// that of f32.
const DIGITS: usize = 3;

/// Where vectors are converted by an instruction. Half of a second-level cache of 2 MiB: of Emerald Rapids, mobilenet_v2_f16 takes
/// 0.92 of the time with values above this in 16 bits, 0.95 with those above 512 or 200 KiB.
const KEPT_ABOVE: i64 = 1 << 20;

/// In objects for several processors: with their code, these stay within 1.25 and 1.15 times the model's bytes.
const TRANSFORMED: [f64; 2] = [0.2, 0.1];

/// Bytes of code that such objects have room for besides, for each byte of the model's weights.
pub(crate) const FOR_CODE: f64 = 0.05;

impl PackPolicy {
    /// For vectors of 128 bits: one vector per row, and one row per register.
    pub const NARROW: PackPolicy = PackPolicy {
        rules: &[PackRule { dtypes: CODES, nr: 8, ..ANY }, ONE_ROW, ANY],
        nr: 4,
        rates: Rates::NONE,
        short_sums: false,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: 0,
        transformed: None,
        kept_above: i64::MAX,
    };

    /// For leaf kernels of 256 bits: two vectors per row, three where that wastes fewer columns.
    pub const WIDE: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: HALVES, nr: 16, ..ANY },
            PackRule { dtypes: CODES, nr: 16, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 8, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 16, ..ANY },
            ONE_ROW,
            PackRule { fewer_than: Some(16), nr: 24, ..ANY },
            PackRule { nr: 16, ..ANY },
        ],
        nr: 4,
        rates: Rates::AVX2,
        short_sums: true,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: DIGITS,
        transformed: None,
        kept_above: KEPT_ABOVE,
    };

    /// For leaf kernels of 512 bits: the same with vectors of twice the length.
    pub const WIDEST: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: HALVES, nr: 32, ..ANY },
            PackRule { dtypes: BYTES, min_columns: Some(64), nr: 64, ..ANY },
            PackRule { dtypes: CODES, nr: 32, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 16, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 32, ..ANY },
            PackRule { min_columns: Some(64), nr: 64, ..ONE_ROW },
            ONE_ROW,
            PackRule { fewer_than: Some(32), nr: 48, ..ANY },
            PackRule { nr: 32, ..ANY },
        ],
        nr: 4,
        rates: Rates::AVX512,
        short_sums: true,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: DIGITS,
        transformed: None,
        kept_above: KEPT_ABOVE,
    };

    /// For leaf kernels of 128 bits with 32 registers.
    pub const NEON: PackPolicy = PackPolicy {
        digits: 0,
        rates: Rates::NONE,
        short_sums: false,
        half_products: true,
        ..PackPolicy::WIDE
    };

    /// For leaf kernels of 128 bits with 16 registers: the same as with 256 bits, with vectors of half the length. With 32
    /// registers, tiles of panels for 256 bits are high enough.
    pub const SHORT: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: INTS, nr: 16, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 8, ..ANY },
            PackRule { nr: 16, ..ONE_ROW },
            PackRule { fewer_than: Some(8), nr: 12, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 4, ..ANY },
            PackRule { dtypes: &[], nr: 8, ..ANY },
        ],
        ..PackPolicy::WIDE
    };

    /// Without vectors: a tile of four columns leaves registers for several rows, and one row has sums enough in sixteen.
    pub const SCALAR: PackPolicy = PackPolicy {
        rules: &[PackRule { dtypes: CODES, nr: 8, ..ANY }, PackRule { nr: 16, ..ONE_ROW }, ANY],
        ..PackPolicy::NARROW
    };

    /// The same in C for microcontrollers: their integers are as fast as floats or much faster, and their memory is small.
    pub const SOURCE: PackPolicy =
        PackPolicy { rates: Rates { bytes: 1.0, ..Rates::NONE }, ..PackPolicy::SCALAR };

    /// For leaf kernels of 512 bits and of 256, from the same panels: what is widened is in panels that are taken whole.
    pub const MIXED: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: &[DType::F16], nr: 32, ..ANY },
            PackRule { dtypes: &[DType::BF16], nr: 16, ..ANY },
            PackRule { dtypes: CODES, nr: 16, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 16, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 32, ..ANY },
            PackRule { min_columns: Some(64), nr: 64, ..ONE_ROW },
            ONE_ROW,
            PackRule { fewer_than: Some(32), nr: 48, ..ANY },
            PackRule { nr: 32, ..ANY },
        ],
        ..PackPolicy::WIDEST
    };

    /// For the leaf kernels of a target, of its upgrades where those alone have them, or else for all of its kernels.
    pub fn for_target(target: &Target) -> PackPolicy {
        let policy = match target.panel_isa() {
            None if target.narrow.has_vectors() => return PackPolicy::NARROW,
            None if target.is_source => return PackPolicy::SOURCE,
            None => return PackPolicy::SCALAR,
            Some(isa) if isa.has_half_products => PackPolicy::NEON,
            Some(isa) => match (isa.vector_bytes, isa.vector_registers) {
                (64.., _) if target.whole_panel_isa() != target.panel_isa() => PackPolicy::MIXED,
                (64.., _) => PackPolicy::WIDEST,
                (..32, ..32) => PackPolicy::SHORT,
                _ => PackPolicy::WIDE,
            },
        };
        let dot = target.dot();
        let by_instructions = match dot {
            None => policy.rates,
            Some(_) if target.multiplies_pairs() => Rates::VNNI,
            Some(_) => Rates::DOT,
        };
        // How many multiplications take the time of a byte depends on the length of vectors.
        let rates = Rates { memory_byte: policy.rates.memory_byte, ..by_instructions };
        let short_sums = policy.short_sums && dot.is_none();
        let short_sums_in_place = policy.short_sums && target.is_for_many();
        let joined_bytes = target.joins_bytes_everywhere();
        PackPolicy {
            rates,
            short_sums,
            short_sums_in_place,
            joined_bytes,
            bf16_pairs: target.multiplies_bf16(),
            signed_bytes: dot.is_some_and(|signs| signs.a),
            transformed: if target.is_for_many() { Some(TRANSFORMED) } else { None },
            ..policy
        }
    }

    /// Whether a product with these inner axes is one of bytes, if its operands are. Axes of one element have no say: words are
    /// made along the last of the others.
    pub fn in_bytes(&self, inner: &[Dim]) -> bool {
        let last = inner.iter().rev().find(|dim| **dim != Dim::ONE);
        let long = last.and_then(Dim::as_const).is_some_and(|steps| steps >= LEAST_STEPS);
        self.rates.bytes > 0.0 && long && inner.iter().all(Dim::is_const)
    }

    /// Columns per panel. Never more than twice the columns there are, so that padding stays below the size of the
    /// data.
    pub fn nr(&self, wanted: Product) -> usize {
        let Product { dtype, rows, columns } = wanted;
        let holds = |rule: &&PackRule| {
            (rule.dtypes.is_empty() || rule.dtypes.contains(&dtype))
                && rule.max_rows.is_none_or(|limit| rows.is_some_and(|rows| rows <= limit))
                && rule.min_columns.is_none_or(|limit| columns.is_some_and(|columns| columns >= limit))
                && rule.fewer_than.is_none_or(|other| {
                    let in_all = |nr: i64| columns.map(|columns| (columns + nr - 1) / nr * nr);
                    in_all(rule.nr as i64) < in_all(other)
                })
        };
        let nr = self.rules.iter().find(holds).map_or(self.nr, |rule| rule.nr).max(1);
        match columns.and_then(|columns| usize::try_from(columns).ok()) {
            Some(columns) => nr.min(columns.max(1).checked_next_power_of_two().unwrap_or(nr)),
            None => nr,
        }
    }
}

/// Panels of a right-hand side with this number of batch and of inner axes, by their width and depth, and whether they are those of all of
/// its batch or of what is repeated along it.
type Packed = HashMap<(ValueId, usize, usize, [usize; 2], Extent), ValueId>;

/// Left-hand sides as digits, by the steps that share a unit.
type Split = HashMap<(ValueId, i64), Vec<ValueId>>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Extent {
    Whole,
    Once,
}

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let (mut packed, mut split, mut narrow) = (Packed::new(), Split::new(), Known::new());
    rewrite(graph, |b, id| {
        let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
        else {
            return Ok(None);
        };
        let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
        // Of both: that two sizes are equal may show when the model runs.
        let steps = [b.shape(lhs).pop(), k.checked_sub(1).map(|last| b.shape(rhs)[batch + last].clone())];
        let in_words = |depth: usize| {
            let whole = |steps: &Dim| steps.exact_div(&Dim::from(depth)).is_some();
            steps.iter().all(|steps| steps.as_ref().is_some_and(whole))
        };
        // Instructions that multiply pairs take subnormals for zeros.
        let may_flush = !options.exact || options.precision == Precision::Bf16;
        let pairs = options.pack.bf16_pairs && may_flush && k > 0;
        let pairs = pairs && b.dtype(rhs) == DType::BF16 && in_words(PAIR_DEPTH);
        let own = if pairs { bf16_of(b, lhs, &mut narrow)? } else { None };
        let (lhs, has_pairs) = (own.unwrap_or(lhs), own.is_some());
        if batch == 0
            && k == 1
            && options.level > 0
            && b.dtype(lhs) == DType::F32
            && let Some(weights) = Weights::of(b.graph, rhs, options.exact)
        {
            return dequantizing(b, &weights, (m, lhs, rhs), options, (&mut packed, &mut split)).map(Some);
        }
        if m == 1
            && !has_pairs
            && b.dtype(lhs) == b.dtype(rhs)
            && b.ty(lhs).shape[..batch] == b.ty(rhs).shape[..batch]
            && let Some(shared) = repeated(b, rhs, batch).filter(|shared| shared.axis + 1 == batch)
        {
            return shared.by_rows(b, (batch, k), (lhs, rhs), options, &mut packed).map(Some);
        }
        let n = b.ty(rhs).shape[batch + k].clone();
        let rows = product(&b.ty(lhs).shape[batch..batch + m]);
        let depth = match (b.dtype(lhs), b.dtype(rhs)) {
            (DType::U8 | DType::I8, DType::I8) if k > 0 => DOT_DEPTH,
            (DType::I16, DType::I16) if k > 0 => PAIR_DEPTH,
            _ if has_pairs => PAIR_DEPTH,
            _ => 1,
        };
        let depth = if in_words(depth) { depth } else { 1 };
        // Narrow floats are widened to those on the left.
        let dtype = if b.dtype(lhs).is_float() { b.dtype(lhs) } else { b.dtype(rhs) };
        let nr = options.pack.nr(Product { dtype, rows: rows.as_const(), columns: n.as_const() });
        let panels = match packed.get(&(rhs, batch, k, [nr, depth], Extent::Whole)) {
            Some(&panels) => panels,
            None if depth == 1 => match repeated(b, rhs, batch) {
                Some(repeated) => repeated.pack(b, batch, k, nr)?,
                None => pack(b, rhs, batch, k, nr)?,
            },
            None => {
                let steps = side_by_side(b, rhs, batch + k - 1, depth)?;
                b.emit1(Op::Pack { batch, k, nr: nr * depth }, &[steps])?
            }
        };
        packed.insert((rhs, batch, k, [nr, depth], Extent::Whole), panels);
        let rhs = RhsLayout::Panels { nr, depth, n };
        b.emit1(Op::Contract { batch, m, k, rhs }, &[lhs, panels]).map(Some)
    })?;
    bodies(graph, options, run)?;
    // Weights that a scan captures are packed once, not in every iteration.
    hoist::last(graph, options)
}

/// A right-hand side with the batch of another value, each element of one axis repeated: keys that several heads
/// share. The batch axis `axis` is that of `value` times `times`.
struct Repeated {
    value: ValueId,
    axis: usize,
    times: Dim,
    /// Of the right-hand side's axes, behind the repetition.
    perms: Vec<Vec<usize>>,
}

/// Whether a right-hand side is `Transpose(Reshape(Expand(Reshape(value))))` that repeats along a batch axis; the
/// transposition is one of the other axes.
fn repeated(b: &Builder, rhs: ValueId, batch: usize) -> Option<Repeated> {
    let graph = &*b.graph;
    let view = |value: ValueId| graph.producer(value).map(|node| &graph.nodes[node]);
    let (mut value, mut perms) = (rhs, vec![]);
    while let Node { op: Op::Transpose { perm }, inputs, .. } = view(value)? {
        if perm[..batch].iter().enumerate().any(|(to, &from)| to != from) {
            return None;
        }
        perms.push(perm.clone());
        value = inputs[0];
    }
    let (Op::Reshape { shape: joined }, [wide]) = (&view(value)?.op, &view(value)?.inputs[..]) else {
        return None;
    };
    let (Op::Expand { shape: wide }, [narrow]) = (&view(*wide)?.op, &view(*wide)?.inputs[..]) else {
        return None;
    };
    let own = &graph.ty(*narrow).shape;
    let at = (1..wide.len()).find(|&at| own.get(at) == Some(&Dim::ONE) && wide[at] != Dim::ONE)?;
    let rest_is_alike = own.len() == wide.len()
        && joined.len() + 1 == wide.len()
        && (0..wide.len()).all(|axis| axis == at || own[axis] == wide[axis])
        && joined[..at - 1] == wide[..at - 1]
        && joined[at..] == wide[at + 1..]
        && joined[at - 1] == wide[at - 1].clone() * wide[at].clone();
    (rest_is_alike && at <= batch).then(|| Repeated {
        value: *narrow,
        axis: at - 1,
        times: wide[at].clone(),
        perms,
    })
}

impl Repeated {
    /// The contraction with what is repeated along the last batch axis, as one of more rows: those of the heads that share a
    /// right-hand side, one after the other. A panel is then read once for all of them. The batch of `lhs` is that of `wide`.
    fn by_rows(
        &self,
        b: &mut Builder,
        (batch, k): (usize, usize),
        (lhs, wide): (ValueId, ValueId),
        options: &Options,
        packed: &mut Packed,
    ) -> Result<ValueId> {
        let rhs = self.narrow(b)?;
        let (shape, own) = (b.shape(lhs), b.shape(rhs));
        let mut grouped = shape.clone();
        grouped[self.axis] = own[self.axis].clone();
        grouped[batch] = self.times.clone() * shape[batch].clone();
        let (rows, n) = (product(&grouped[batch..=batch]), own[batch + k].clone());
        let product = Product { dtype: b.dtype(lhs), rows: rows.as_const(), columns: n.as_const() };
        let nr = options.pack.nr(product);
        let panels = match packed.get(&(wide, batch, k, [nr, 1], Extent::Once)) {
            Some(&panels) => panels,
            None => pack(b, rhs, batch, k, nr)?,
        };
        packed.insert((wide, batch, k, [nr, 1], Extent::Once), panels);
        let lhs = b.reshape(lhs, grouped.clone())?;
        let layout = RhsLayout::Panels { nr, depth: 1, n: n.clone() };
        let result = b.emit1(Op::Contract { batch, m: 1, k, rhs: layout }, &[lhs, panels])?;
        let mut to = shape[..=batch].to_vec();
        to.push(n);
        b.reshape(result, to)
    }

    /// What is repeated, as a right-hand side.
    fn narrow(&self, b: &mut Builder) -> Result<ValueId> {
        let mut shape = b.shape(self.value);
        shape.remove(self.axis + 1);
        let mut value = b.reshape(self.value, shape)?;
        for perm in self.perms.iter().rev() {
            value = b.transpose(value, perm)?;
        }
        Ok(value)
    }

    /// Panels of what is repeated, then repeated: a view.
    fn pack(&self, b: &mut Builder, batch: usize, k: usize, nr: usize) -> Result<ValueId> {
        let value = self.narrow(b)?;
        let panels = pack(b, value, batch, k, nr)?;
        let mut shape = b.shape(panels);
        shape.insert(self.axis + 1, Dim::ONE);
        let wide = b.reshape(panels, shape.clone())?;
        shape[self.axis + 1] = self.times.clone();
        let wide = b.expand(wide, shape.clone())?;
        let times = shape.remove(self.axis + 1);
        shape[self.axis] = shape[self.axis].clone() * times;
        b.reshape(wide, shape)
    }
}

/// The contraction of `m` row axes of `lhs` with weights of few bits.
fn dequantizing(
    b: &mut Builder,
    weights: &Weights,
    (m, lhs, rhs): (usize, ValueId, ValueId),
    options: &Options,
    (packed, split): (&mut Packed, &mut Split),
) -> Result<ValueId> {
    let n = b.ty(rhs).shape[1].clone();
    let count = if options.exact || !weights.as_bytes(b.graph) { 0 } else { options.pack.digits };
    let mut shape = b.shape(lhs);
    let rows = product(&shape[..m]).as_const();
    let nr = options.pack.nr(Product { dtype: weights.dtype(), rows, columns: n.as_const() });
    // Two inner axes, where plain panels of the same value have one.
    let panels = match packed.get(&(rhs, 0, 2, [nr, 1], Extent::Whole)) {
        Some(&panels) => panels,
        None => weights.pack(b, nr, count > 0)?,
    };
    packed.insert((rhs, 0, 2, [nr, 1], Extent::Whole), panels);
    shape.truncate(m);
    shape.extend([Dim::from(weights.parts), Dim::from(weights.steps)]);
    let parts = b.reshape(lhs, shape)?;
    let mut operands = vec![parts, panels];
    if count > 0 {
        let known = match split.get(&(lhs, weights.steps)) {
            Some(known) => known.clone(),
            None => digits(b, parts, count)?,
        };
        operands.extend(&known);
        split.insert((lhs, weights.steps), known);
    }
    b.emit1(Op::Contract { batch: 0, m, k: 2, rhs: RhsLayout::Panels { nr, depth: 1, n } }, &operands)
}

/// `[.., steps, n]` as `[.., steps / depth, n * depth]`: `depth` steps of each column side by side. `axis` is the axis of the steps.
fn side_by_side(b: &mut Builder, rhs: ValueId, axis: usize, depth: usize) -> Result<ValueId> {
    let mut shape = b.shape(rhs);
    let (steps, n) = (shape[axis].clone(), shape[axis + 1].clone());
    let Some(groups) = steps.exact_div(&Dim::from(depth)) else {
        return Err(Error::internal(
            Stage::Pass,
            format!("{steps} steps of small integers are not a multiple of {depth}"),
        ));
    };
    shape.truncate(axis);
    let mut parts = shape.clone();
    parts.extend([groups.clone(), Dim::from(depth), n.clone()]);
    let parts = b.reshape(rhs, parts)?;
    let mut perm: Vec<usize> = (0..axis + 3).collect();
    perm.swap(axis + 1, axis + 2);
    let parts = b.emit1(Op::Transpose { perm }, &[parts])?;
    shape.extend([groups, n * Dim::from(depth)]);
    b.reshape(parts, shape)
}

fn pack(b: &mut Builder, rhs: ValueId, batch: usize, k: usize, nr: usize) -> Result<ValueId> {
    let n: Dim = b.ty(rhs).shape[batch + k].clone();
    if nr == 1 && n == Dim::ONE {
        // One panel of one column is the column itself: no copy.
        let mut shape = b.shape(rhs);
        shape.pop();
        shape.insert(batch, Dim::ONE);
        shape.push(Dim::ONE);
        return b.reshape(rhs, shape);
    }
    if k == 1
        && let Some(panels) = panels_in_place(b.graph, rhs, nr)
    {
        // A view: what a step reads lies side by side as it is.
        let mut shape = b.shape(rhs);
        shape.truncate(batch + k);
        shape.extend([panels, Dim::from(nr)]);
        let cut = b.reshape(rhs, shape)?;
        let mut perm: Vec<usize> = (0..batch + k + 2).collect();
        perm.swap(batch, batch + k);
        return b.transpose(cut, &perm);
    }
    b.emit1(Op::Pack { batch, k, nr }, &[rhs])
}

/// Bytes of a row of a right-hand side up to which its panels are read where they are: the rows of a panel are then near
/// enough to each other that they do not meet in the same few lines of a cache.
const NEAR_ROWS: i64 = 512;

/// Panels of `nr` columns that a right-hand side consists of as it is: the run computes it, its rows lie one after the other
/// in a buffer, near to each other, and no panel has to be filled up.
fn panels_in_place(graph: &Graph, mut rhs: ValueId, nr: usize) -> Option<Dim> {
    let ty = graph.ty(rhs);
    let columns = ty.shape.last()?;
    let bytes = columns.as_const()?.checked_mul(ty.dtype.size() as i64)?;
    if !(1..=NEAR_ROWS).contains(&bytes) {
        return None;
    }
    let panels = columns.exact_div(&Dim::from(nr))?;
    // Where rows are taken whole, those that stay are as near to each other as before.
    let takes_rows = |starts: &[Dim], steps: &[i64], sizes: &[Dim], from: &[Dim]| {
        starts.last() == Some(&Dim::ZERO)
            && sizes.last() == from.last()
            && steps.iter().all(|&step| step == 1)
    };
    while let Some(node) = graph.producer(rhs) {
        match &graph.nodes[node] {
            Node { op: Op::Reshape { .. }, inputs, .. } => rhs = inputs[0],
            Node { op: Op::Slice { starts, steps, sizes }, inputs, .. }
                if takes_rows(starts, steps, sizes, &graph.ty(inputs[0]).shape) =>
            {
                rhs = inputs[0];
            }
            _ => break,
        }
    }
    let computed =
        graph.producer(rhs).map_or(!graph.is_constant(rhs), |node| !graph.nodes[node].op.is_view());
    computed.then_some(panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::{Origin, Symbol, Tensor, TensorType};

    /// Keys that three heads share are packed once, or are read where they lie; the rows of these heads are those of one
    /// product, and the results are the same.
    #[test]
    fn repeated_values_are_packed_once() {
        for transposed in [false, true] {
            let mut graph = Graph::default();
            let origin = graph.origins.push(onnxc_ir::graph::Origin::new("scores", "MatMul", 0));
            let mut b = Builder::new(&mut graph, origin);
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let mut input = |name: &str, sizes: &[usize]| {
                b.input(name, onnxc_ir::graph::TensorType::new(DType::F32, dims(sizes)), None)
            };
            let (q, k) = (input("q", &[2, 6, 5, 8]), input("k", &[2, 2, 8, 8]));
            let wide = b.reshape(k, dims(&[2, 2, 1, 8, 8])).unwrap();
            let wide = b.expand(wide, dims(&[2, 2, 3, 8, 8])).unwrap();
            let mut rhs = b.reshape(wide, dims(&[2, 6, 8, 8])).unwrap();
            if transposed {
                rhs = b.transpose(rhs, &[0, 1, 3, 2]).unwrap();
            }
            let product = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            let mut after = graph.clone();
            run(&mut after, &Options::default()).unwrap();
            let packs = |id: &&onnxc_ir::graph::NodeId| matches!(after.nodes[**id].op, Op::Pack { .. });
            let packed: Vec<_> = after.order.iter().filter(packs).collect();
            assert_eq!(packed.len(), usize::from(transposed), "{after}");
            let product = after.order.iter().find(|id| matches!(after.nodes[**id].op, Op::Contract { .. }));
            let [rows, panels] = after.nodes[*product.unwrap()].inputs[..] else { panic!("{after}") };
            assert_eq!(after.ty(rows).shape, dims(&[2, 2, 15, 8]), "{after}");
            assert_eq!(after.ty(panels).shape, dims(&[2, 2, 2, 8, 4]), "{after}");
            let numbers = |count: usize, by: usize| -> Vec<f32> {
                (0..count).map(|at| (at * by % 31) as f32 - 15.0).collect()
            };
            let inputs = [
                onnxc_ir::graph::Tensor::from_slice(&[2, 6, 5, 8], &numbers(480, 7)),
                onnxc_ir::graph::Tensor::from_slice(&[2, 2, 8, 8], &numbers(256, 11)),
            ];
            let result = |graph: &Graph| onnxc_ir::interp::run(graph, &inputs).unwrap().remove(0);
            assert_eq!(result(&graph).data, result(&after).data);
        }
    }

    /// The pass leaves the first result of a graph, of inputs of such shapes, as it is.
    fn assert_results_stay(graph: &Graph, shapes: &[&[usize]], what: &str) {
        let mut after = graph.clone();
        run(&mut after, &Options::default()).unwrap();
        let inputs: Vec<Tensor> = (shapes.iter())
            .map(|sizes| {
                let numbers: Vec<f32> =
                    (0..sizes.iter().product()).map(|at| (at * 7 % 31) as f32 - 15.0).collect();
                Tensor::from_slice(sizes, &numbers)
            })
            .collect();
        let result = |graph: &Graph| onnxc_ir::interp::run(graph, &inputs).unwrap().remove(0);
        let (wanted, result) = (result(graph), result(&after));
        assert_eq!((result.shape, result.data), (wanted.shape, wanted.data), "{what}");
    }

    /// Heads that share keys and have the same rows: those are broadcast, and cannot become more rows.
    #[test]
    fn repeated_values_against_a_broadcast_batch() {
        for batch in [[1, 1], [2, 1], [1, 6]] {
            let mut graph = Graph::default();
            let origin = Origin::new("scores", "MatMul", 0);
            let origin = graph.origins.push(origin);
            let mut b = Builder::new(&mut graph, origin);
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let rows = [batch[0], batch[1], 3, 4];
            let shapes: [&[usize]; 2] = [&rows, &[2, 2, 1, 4, 5]];
            let [q, k] = shapes.map(|sizes| b.input("", TensorType::new(DType::F32, dims(sizes)), None));
            let wide = b.expand(k, dims(&[2, 2, 3, 4, 5])).unwrap();
            let rhs = b.reshape(wide, dims(&[2, 6, 4, 5])).unwrap();
            let product = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            assert_results_stay(&graph, &shapes, &format!("{batch:?}"));
        }
    }

    /// A value repeated along a batch axis that a transposition moves does not become a right-hand side of more rows.
    #[test]
    fn repeated_values_of_a_transposed_batch() {
        for size in [2, 3] {
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let mut graph = Graph::default();
            let origin = Origin::new("scores", "MatMul", 0);
            let origin = graph.origins.push(origin);
            let mut b = Builder::new(&mut graph, origin);
            let shapes: [&[usize]; 2] = [&[2 * size, size, 3, 4], &[size, size, 1, 4, 5]];
            let [q, k] = shapes.map(|sizes| b.input("", TensorType::new(DType::F32, dims(sizes)), None));
            let wide = b.expand(k, dims(&[size, size, 2, 4, 5])).unwrap();
            let rhs = b.reshape(wide, dims(&[size, 2 * size, 4, 5])).unwrap();
            let rhs = b.transpose(rhs, &[1, 0, 2, 3]).unwrap();
            let y = b.emit1(Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain }, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            assert_results_stay(&graph, &shapes, &format!("{size}"));
        }
    }

    /// Steps of bytes with a number known from one operand only: the run checks it against the other.
    #[test]
    fn bytes_of_a_symbolic_number_of_steps() {
        let (one, other) =
            (Tensor::from_slice(&[2, 4], &[1i8, -2, 3, 4, 5, -6, 7, -8]), [9i8, 8, -7, 6, 5, 4, 3, -2]);
        let other = Tensor::from_slice(&[4, 2], &other);
        for symbolic in [0, 1] {
            let mut graph = Graph::default();
            let origin = Origin::new("product", "Einsum", 0);
            let origin = graph.origins.push(origin);
            let steps = Dim::sym(graph.symbols.push(Symbol { name: "n".into() }));
            let mut b = Builder::new(&mut graph, origin);
            let steps = |side: usize| if side == symbolic { steps.clone() } else { Dim::from(4usize) };
            let shapes = [vec![Dim::from(2usize), steps(0)], vec![steps(1), Dim::from(2usize)]];
            let inputs = shapes.map(|shape| b.input("", TensorType::new(DType::I8, shape), None));
            let product = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &inputs).unwrap();
            graph.outputs.push(("y".into(), y));
            run(&mut graph, &Options::default()).unwrap();
            let result = onnxc_ir::interp::run(&graph, &[one.clone(), other.clone()]).unwrap().remove(0);
            // [[1, -2, 3, 4], [5, -6, 7, -8]] times [[9, 8], [-7, 6], [5, 4], [3, -2]]
            assert_eq!(onnxc_ops::node_case::elements(&result), [50.0, 0.0, 98.0, 48.0]);
        }
    }

    #[test]
    fn panels_are_no_wider_than_the_columns() {
        let product = |dtype, rows, columns| Product { dtype, rows, columns };
        let narrow = |dtype, rows, columns| PackPolicy::NARROW.nr(product(dtype, rows, columns));
        assert_eq!(narrow(DType::F32, Some(64), Some(100)), 4);
        assert_eq!(narrow(DType::F32, Some(1), Some(100)), 32);
        assert_eq!(narrow(DType::F32, None, Some(100)), 4);
        assert_eq!(narrow(DType::F32, Some(64), Some(3)), 4);
        assert_eq!(narrow(DType::F32, Some(64), Some(1)), 1);
        assert_eq!(narrow(DType::I32, Some(64), None), 4);
        let wide = |columns| PackPolicy::WIDE.nr(product(DType::F32, Some(64), Some(columns)));
        assert_eq!([1, 5, 16, 24, 48, 72, 100].map(wide), [1, 8, 16, 24, 16, 24, 16]);
        let ints = |rows| PackPolicy::WIDE.nr(product(DType::I32, Some(rows), Some(100)));
        assert_eq!([1, 64].map(ints), [32, 16]);
        let widest = |rows, columns| PackPolicy::WIDEST.nr(product(DType::F32, Some(rows), Some(columns)));
        assert_eq!([1, 5, 16, 24, 48, 96, 144, 100].map(|n| widest(64, n)), [1, 8, 16, 32, 48, 32, 48, 32]);
        assert_eq!([20, 40, 1000].map(|n| widest(1, n)), [32, 32, 64]);
        // Panels of three vectors where they have fewer columns in all: 24 for 20, not twice 24 for 40, which three of 16 are.
        assert_eq!([17, 20, 40, 68].map(wide), [24, 24, 16, 24]);
        // 48 for 40, not three of 48 for 112.
        assert_eq!([33, 40, 80, 112, 136].map(|n| widest(64, n)), [48, 48, 32, 32, 48]);
    }
}
