//! Sequences: what operators do with them, in primitives.

mod parts;

pub use parts::{concat, split};

use super::{Elements, Item, Layout};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::claim::V;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Op, Requirement, Tensor, ValueId};
use onnxc_ir::scalar::{CompareFn, ReduceFn};

/// Elements of a list beyond which a sequence is packed.
pub const MAX_LISTED: usize = 256;

fn unknown_rank<T>() -> Result<T> {
    let message = "the rank of the sequence's elements is unknown, and that of the result is not declared";
    Err(Error::unsupported(Stage::Infer, message))
}

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// A sequence with columns.
struct Packed {
    elements: Elements,
    shapes: ValueId,
    data: ValueId,
}

impl Packed {
    /// `None`: a sequence without elements, whose type is unknown.
    fn of(b: &mut Builder<'_>, item: &Item) -> Result<Option<Packed>> {
        let item = item.packed(b)?;
        match (item.layout(), item.columns()) {
            (Layout::Sequence(elements), &[shapes, data]) => Ok(Some(Packed { elements, shapes, data })),
            (Layout::List(_), _) => Ok(None),
            (layout, _) => malformed(format!("{} where a sequence is due", layout.kind())),
        }
    }

    fn item(self) -> Item {
        Item::new(Layout::Sequence(self.elements), vec![self.shapes, self.data])
    }

    fn count(&self, b: &Builder<'_>) -> Dim {
        b.shape(self.shapes)[0].clone()
    }

    /// Elements of all of the sequence's elements.
    fn total(&self, b: &Builder<'_>) -> Dim {
        b.shape(self.data)[0].clone()
    }

    /// The size that every element has, where it is known.
    fn size(&self) -> Option<Dim> {
        match &self.elements {
            Elements::Ranked(dims) => Some(product(&dims.iter().cloned().collect::<Option<Vec<Dim>>>()?)),
            Elements::Mixed(_) => None,
        }
    }

    /// Where in `data` element number `at` begins.
    fn offset(&self, b: &mut Builder<'_>, at: &Dim) -> Result<Dim> {
        if let Some(size) = self.size() {
            return Ok(at.clone() * size);
        }
        if *at == Dim::ZERO {
            return Ok(Dim::ZERO);
        }
        let total = self.total(b);
        if *at == self.count(b) {
            return Ok(total);
        }
        let before = b.slice_axis(self.shapes, 0, Dim::ZERO, at.clone())?;
        let sizes = row_products(b, before)?;
        let sum = b.reduce(ReduceFn::Sum, sizes, &[0])?;
        Ok(b.sizes(sum, &|_| Some(total.clone()))?.remove(0))
    }

    /// Elements from `from` on: `count` of them, which take `total` elements from `start` on.
    fn range(
        &self,
        b: &mut Builder<'_>,
        [from, count]: [Dim; 2],
        [start, total]: [Dim; 2],
    ) -> Result<Packed> {
        Ok(Packed {
            elements: self.elements.clone(),
            shapes: b.slice_axis(self.shapes, 0, from, count)?,
            data: b.slice_axis(self.data, 0, start, total)?,
        })
    }

    /// One behind the other.
    fn join(b: &mut Builder<'_>, parts: Vec<Packed>) -> Result<Item> {
        let mut elements = parts[0].elements.clone();
        for part in &parts[1..] {
            elements = elements.join(&part.elements);
        }
        let none = b.scalar(DType::I64, -1.0);
        let mut shapes = vec![];
        for part in &parts {
            let more = elements.axes() - part.elements.axes();
            shapes.push(b.pad(part.shapes, none, vec![Dim::ZERO; 2], vec![Dim::ZERO, more])?);
        }
        let data: Vec<ValueId> = parts.iter().map(|part| part.data).collect();
        Ok(Packed { elements, shapes: b.concat(&shapes, 0)?, data: b.concat(&data, 0)? }.item())
    }
}

/// The products of the rows of a matrix of sizes, as a vector; -1 is skipped.
fn row_products(b: &mut Builder<'_>, rows: ValueId) -> Result<ValueId> {
    let count = b.shape(rows)[0].clone();
    let (zero, one) = (b.scalar(DType::I64, 0.0), b.scalar(DType::I64, 1.0));
    let missing = b.compare(CompareFn::Lt, rows, zero)?;
    let sizes = b.select(missing, one, rows)?;
    let products = b.reduce(ReduceFn::Prod, sizes, &[1])?;
    b.reshape(products, vec![count])
}

/// The dims of tensors as a matrix with a row for each; one with fewer axes than others has -1 in place of them.
fn shape_rows(b: &mut Builder<'_>, shapes: &[Vec<Dim>]) -> Result<ValueId> {
    let axes = shapes.iter().map(Vec::len).max().unwrap_or(0);
    if axes == 0 {
        return Ok(b.constant(Tensor::from_slice::<i64>(&[shapes.len(), 0], &[])));
    }
    let padded = |shape: &Vec<Dim>| {
        let mut row = shape.clone();
        row.resize(axes, Dim::from(-1i64));
        row
    };
    let dims = shapes.iter().flat_map(padded).collect();
    let flat = b.emit1(Op::DimValues { dims }, &[])?;
    b.reshape(flat, vec![Dim::from(shapes.len()), Dim::from(axes)])
}

/// Tensors, one at least, with columns.
fn packed_list(b: &mut Builder<'_>, list: &[ValueId]) -> Result<Packed> {
    let shapes: Vec<Vec<Dim>> = list.iter().map(|&element| b.shape(element)).collect();
    let ranked = |shape: &Vec<Dim>| Elements::Ranked(shape.iter().cloned().map(Some).collect());
    let elements = shapes.iter().skip(1).fold(ranked(&shapes[0]), |all, shape| all.join(&ranked(shape)));
    let mut flat = vec![];
    for &element in list {
        let count = b.ty(element).elements();
        flat.push(b.reshape(element, vec![count])?);
    }
    Ok(Packed { elements, shapes: shape_rows(b, &shapes)?, data: b.concat(&flat, 0)? })
}

/// A list with columns; one without elements stays one.
pub fn pack(b: &mut Builder<'_>, dtype: DType, list: &[ValueId]) -> Result<Item> {
    match list {
        [] => Ok(Item::list(dtype, vec![])),
        _ => Ok(packed_list(b, list)?.item()),
    }
}

/// A sequence of tensors that are parts of one, `[n, ..]`, along its first axis.
pub fn stacked(b: &mut Builder<'_>, tensor: ValueId) -> Result<Item> {
    let shape = b.shape(tensor);
    let (count, dims) = (shape[0].clone(), shape[1..].to_vec());
    let row = shape_rows(b, std::slice::from_ref(&dims))?;
    let shapes = b.expand(row, vec![count, Dim::from(dims.len())])?;
    let total = product(&shape);
    let data = b.reshape(tensor, vec![total])?;
    Ok(Packed { elements: Elements::Ranked(dims.into_iter().map(Some).collect()), shapes, data }.item())
}

/// Number of elements.
pub fn count(b: &mut Builder<'_>, item: &Item) -> Result<Dim> {
    if let Some(list) = item.listed() {
        return Ok(Dim::from(list.len()));
    }
    Ok(Packed::of(b, item)?.map_or(Dim::ZERO, |packed| packed.count(b)))
}

/// A position among `count` elements from the front; negative ones count from the end. A run in which it is not below `end`,
/// or negative all the same, fails.
fn resolve(b: &mut Builder<'_>, position: ValueId, count: &Dim, end: &Dim) -> Result<Dim> {
    let name = b.operand_text(position).unwrap_or_else(|| "position".into());
    let found = b.integers(position)?.remove(0);
    let negative = (-found.clone()).max_dim(&Dim::ZERO).min_dim(&Dim::ONE);
    let at = found.clone() + count.clone() * negative;
    let text = format!("{name} is {V}; it must be between {V} and {V}, of a sequence of {V} elements");
    let (low, high) = (-count.clone(), end.clone() - Dim::ONE);
    for (few, many) in [(Dim::ZERO, at.clone()), (at.clone() + Dim::ONE, end.clone())] {
        let requirement = Requirement::at_most(few, many);
        b.require(requirement.stated(text.clone(), &[&found, &low, &high, count]))?;
    }
    let at = if at.is_const() { at } else { at.max_dim(&Dim::ZERO).min_dim(count) };
    Ok(b.named(&[at], &|_| Some(count.clone()))?.remove(0))
}

/// A run in which a bool scalar is false fails, and says `text` with these values.
pub fn require_true(b: &mut Builder<'_>, condition: ValueId, text: &str, values: &[&Dim]) -> Result<()> {
    let holds = b.cast(condition, DType::I64)?;
    let holds = b.sizes(holds, &|_| Some(Dim::ONE))?.remove(0);
    // Also of what constants say not to hold: the node may be in a branch that no run takes.
    b.assume(Requirement::equal(holds, Dim::ONE).stated(text, values));
    Ok(())
}

/// The number that a position in a list is known to be; `None` where only the run knows it, or whether it is in range.
fn known_place(b: &Builder<'_>, position: Option<ValueId>, end: usize) -> Option<usize> {
    let Some(position) = position else { return Some(end) };
    let known = b.known(position)?.first()?.as_const()?;
    let at = if known < 0 { end as i64 + known } else { known };
    usize::try_from(at).ok()
}

/// The element at a position. `rank` is the one that the model declares, for a sequence that does not have it.
pub fn at(b: &mut Builder<'_>, item: &Item, position: ValueId, rank: Option<usize>) -> Result<ValueId> {
    if let Some(list) = item.listed()
        && let Some(&element) = known_place(b, Some(position), list.len()).and_then(|at| list.get(at))
    {
        return Ok(element);
    }
    let Some(packed) = Packed::of(b, item)? else {
        return malformed("an element of a sequence that has none");
    };
    let count = packed.count(b);
    let place = resolve(b, position, &count, &count)?;
    let row = b.slice_axis(packed.shapes, 0, place.clone(), Dim::ONE)?;
    let dims = match &packed.elements {
        Elements::Ranked(dims) => {
            let row = b.reshape(row, vec![Dim::from(dims.len())])?;
            let total = packed.total(b);
            let mut sizes = vec![];
            for (axis, dim) in dims.iter().enumerate() {
                sizes.push(match dim {
                    Some(dim) => dim.clone(),
                    None => {
                        let size = b.slice_axis(row, 0, Dim::from(axis), Dim::ONE)?;
                        b.sizes(size, &|_| Some(total.clone()).filter(|_| dims.len() == 1))?.remove(0)
                    }
                });
            }
            sizes
        }
        Elements::Mixed(axes) => ranked_dims(b, row, axes, rank)?,
    };
    let size = product(&dims);
    let start = packed.offset(b, &place)?;
    let total = packed.total(b);
    let requirement = Requirement::at_most(size.clone(), total);
    b.assume(requirement.says("the number of elements of a tensor", "that of the sequence's data"));
    let element = b.slice_axis(packed.data, 0, start, size)?;
    b.reshape(element, dims)
}

/// The dims in a row of `axes` columns, of an element that must have a rank.
fn ranked_dims(b: &mut Builder<'_>, row: ValueId, axes: &Dim, rank: Option<usize>) -> Result<Vec<Dim>> {
    let Some(rank) = rank else { return unknown_rank() };
    let rank_dim = Dim::from(rank);
    let (zero, none) = (b.scalar(DType::I64, 0.0), b.scalar(DType::I64, -1.0));
    let there = b.compare(CompareFn::Ge, row, zero)?;
    let there = b.cast(there, DType::I64)?;
    let found = b.reduce(ReduceFn::Sum, there, &[1])?;
    let found = b.sizes(found, &|_| Some(axes.clone()))?.remove(0);
    b.assume(Requirement::equal(found, rank_dim.clone()).says("the rank of the element", "the declared one"));
    let more = axes.max_dim(&rank_dim) - axes.clone();
    let row = b.pad(row, none, vec![Dim::ZERO; 2], vec![Dim::ZERO, more])?;
    let row = b.slice_axis(row, 1, Dim::ZERO, rank_dim.clone())?;
    let row = b.reshape(row, vec![rank_dim])?;
    b.sizes(row, &|_| None)
}

/// The sequence with `tensor` before the element at a position, or at its end.
pub fn insert(b: &mut Builder<'_>, item: &Item, tensor: ValueId, position: Option<ValueId>) -> Result<Item> {
    let dtype = b.dtype(tensor);
    if item.dtype(b) != dtype {
        return malformed(format!("a tensor of {dtype} for a sequence of {}", item.dtype(b)));
    }
    if let Some(list) = item.listed()
        && list.len() < MAX_LISTED
        && let Some(at) = known_place(b, position, list.len()).filter(|&at| at <= list.len())
    {
        let mut list = list.to_vec();
        list.insert(at, tensor);
        return Ok(Item::list(dtype, list));
    }
    let Some(packed) = Packed::of(b, item)? else {
        if let Some(position) = position {
            resolve(b, position, &Dim::ZERO, &Dim::ONE)?;
        }
        return Ok(Item::list(dtype, vec![tensor]));
    };
    let new = packed_list(b, &[tensor])?;
    let Some(position) = position else { return Packed::join(b, vec![packed, new]) };
    let (count, total) = (packed.count(b), packed.total(b));
    let place = resolve(b, position, &count, &(count.clone() + Dim::ONE))?;
    let start = packed.offset(b, &place)?;
    let front = packed.range(b, [Dim::ZERO, place.clone()], [Dim::ZERO, start.clone()])?;
    let back = packed.range(b, [place.clone(), count - place], [start.clone(), total - start])?;
    Packed::join(b, vec![front, new, back])
}

/// The sequence without the element at a position, or without its last one.
pub fn erase(b: &mut Builder<'_>, item: &Item, position: Option<ValueId>) -> Result<Item> {
    if let Some(list) = item.listed() {
        let at = match position {
            Some(position) => known_place(b, Some(position), list.len()),
            None => list.len().checked_sub(1),
        };
        if let Some(at) = at.filter(|&at| at < list.len()) {
            let mut left = list.to_vec();
            left.remove(at);
            return Ok(Item::list(item.dtype(b), left));
        }
    }
    let Some(packed) = Packed::of(b, item)? else {
        return malformed("an element is taken out of a sequence that has none");
    };
    let (count, total) = (packed.count(b), packed.total(b));
    let place = match position {
        Some(position) => resolve(b, position, &count, &count)?,
        None => {
            let requirement = Requirement::at_most(Dim::ONE, count.clone());
            b.require(requirement.says_at_least("the number of elements of the sequence", 1))?;
            count.clone() - Dim::ONE
        }
    };
    let next = place.clone() + Dim::ONE;
    let (start, end) = (packed.offset(b, &place)?, packed.offset(b, &next)?);
    let front = packed.range(b, [Dim::ZERO, place], [Dim::ZERO, start])?;
    if position.is_none() {
        return Ok(front.item());
    }
    let back = packed.range(b, [next.clone(), count - next], [end.clone(), total - end])?;
    Packed::join(b, vec![front, back])
}
