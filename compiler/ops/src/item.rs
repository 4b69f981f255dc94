//! Values of every kind. The graph has tensors only: a value of another kind is a compound of tensors, its columns, which
//! exists in the importer and in the rows of operators.
//!
//! | kind | columns |
//! |---|---|
//! | sequence | `shapes`, i64 `[n, axes]`: the dims of each element; `data`, `[total]`: the elements one behind the other |
//! | tensor of several ranks | `rank`, i64 `[]`; the tensor, with axes of size 1 up to the highest rank: see `item/rank.rs` |
//! | optional | `present`, bool `[]`; the columns of its element, with unknown sizes 0 where it is absent |
//! | map | `keys` `[n]`, `values` `[n]` |
//! | records: a sequence of maps with equal keys | `keys` `[c]`, `values` `[n, c]` |
//!
//! A sequence whose number of elements is known when compiled is also a list: each element is a column, as it is. What is
//! taken from it costs nothing. It is packed into `shapes` and `data` where the number, or the element that is taken, is
//! known only in the run.

mod join;
mod rank;
pub mod sequence;

use std::fmt;
use std::sync::Arc;

use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
pub use onnxc_ir::graph::Part;
use onnxc_ir::graph::{DType, Dim, Tensor, TensorType, ValueId};

/// What a name of the model stands for.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    Tensor(ValueId),
    Compound(Arc<Compound>),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Compound {
    pub layout: Layout,
    pub columns: Vec<ValueId>,
}

/// What the columns of a value are.
#[derive(Clone, PartialEq, Debug)]
pub enum Layout {
    /// One column, the tensor itself.
    Tensor,
    /// A tensor whose rank only the run decides: that rank, and the tensor as one of the highest rank.
    AnyRank { least: usize, most: usize },
    /// Each element of a sequence of this type.
    List(DType),
    /// `shapes` and `data`.
    Sequence(Elements),
    /// `present`, then those of the element.
    Optional(Box<Layout>),
    /// The element of an optional that is absent, of a rank that is not known: no columns.
    Nothing(DType),
    /// `keys` and `values`.
    Map,
    /// `keys` and `values`.
    Records,
}

/// What is known of the shapes of a sequence's elements.
#[derive(Clone, PartialEq, Debug)]
pub enum Elements {
    /// One entry per axis: a size that all elements have.
    Ranked(Vec<Option<Dim>>),
    /// Elements of several ranks, or of one known at run time, of at most this number of axes: -1 in `shapes` stands for an axis
    /// that an element does not have. These are the last ones.
    Mixed(Dim),
}

/// The kinds of values that operators distinguish.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ItemKind {
    Tensor,
    Sequence,
    /// An optional tensor.
    Optional,
    OptionalSequence,
    Map,
    /// A sequence of maps.
    Records,
}

/// Tensors and sequences.
pub const SEQUENCES: &[ItemKind] = &[ItemKind::Tensor, ItemKind::Sequence];

/// All but maps.
pub const ALL_KINDS: &[ItemKind] =
    &[ItemKind::Tensor, ItemKind::Sequence, ItemKind::Optional, ItemKind::OptionalSequence];

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ItemKind::Tensor => "a tensor",
            ItemKind::Sequence => "a sequence",
            ItemKind::Optional => "an optional tensor",
            ItemKind::OptionalSequence => "an optional sequence",
            ItemKind::Map => "a map",
            ItemKind::Records => "a sequence of maps",
        })
    }
}

impl Layout {
    /// The parts that the columns are; of a list there are none, nor of a tensor of any rank, which is one output.
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Layout::Tensor => vec![Part::Whole],
            Layout::List(_) | Layout::Nothing(_) | Layout::AnyRank { .. } => vec![],
            Layout::Sequence(_) => vec![Part::Shapes, Part::Data],
            Layout::Optional(element) if **element == Layout::Tensor => vec![Part::Present, Part::Element],
            Layout::Optional(element) => [vec![Part::Present], element.parts()].concat(),
            Layout::Map | Layout::Records => vec![Part::Keys, Part::Values],
        }
    }

    pub fn kind(&self) -> ItemKind {
        match self {
            Layout::Tensor | Layout::Nothing(_) | Layout::AnyRank { .. } => ItemKind::Tensor,
            Layout::List(_) | Layout::Sequence(_) => ItemKind::Sequence,
            Layout::Optional(element) => match element.kind() {
                ItemKind::Sequence => ItemKind::OptionalSequence,
                _ => ItemKind::Optional,
            },
            Layout::Map => ItemKind::Map,
            Layout::Records => ItemKind::Records,
        }
    }

    /// Number of columns; `None` for a list, which does not store it.
    fn width(&self) -> Option<usize> {
        match self {
            Layout::List(_) => None,
            Layout::AnyRank { .. } => Some(2),
            // The list of an optional has no elements.
            Layout::Optional(element) => Some(1 + element.width().unwrap_or(0)),
            _ => Some(self.parts().len()),
        }
    }
}

impl Item {
    pub fn new(layout: Layout, columns: Vec<ValueId>) -> Item {
        debug_assert!(layout.width().is_none_or(|width| width == columns.len()), "{layout:?}");
        match (&layout, columns.as_slice()) {
            (Layout::Tensor, &[value]) => Item::Tensor(value),
            _ => Item::Compound(Arc::new(Compound { layout, columns })),
        }
    }

    /// A sequence of these elements.
    pub fn list(dtype: DType, elements: Vec<ValueId>) -> Item {
        Item::new(Layout::List(dtype), elements)
    }

    /// An optional that has this element.
    pub fn some(b: &mut Builder<'_>, element: &Item) -> Result<Item> {
        let present = b.constant(Tensor::scalar(true));
        let element = element.packed(b)?;
        let columns = [&[present], element.columns()].concat();
        Ok(Item::new(Layout::Optional(Box::new(element.layout())), columns))
    }

    pub fn tensor(&self) -> Option<ValueId> {
        match self {
            Item::Tensor(value) => Some(*value),
            Item::Compound(_) => None,
        }
    }

    pub fn layout(&self) -> Layout {
        match self {
            Item::Tensor(_) => Layout::Tensor,
            Item::Compound(compound) => compound.layout.clone(),
        }
    }

    pub fn kind(&self) -> ItemKind {
        match self {
            Item::Tensor(_) => ItemKind::Tensor,
            Item::Compound(compound) => compound.layout.kind(),
        }
    }

    pub fn columns(&self) -> &[ValueId] {
        match self {
            Item::Tensor(value) => std::slice::from_ref(value),
            Item::Compound(compound) => &compound.columns,
        }
    }

    /// The same value in another graph, where its columns are others.
    pub fn map(&self, column: impl FnMut(ValueId) -> ValueId) -> Item {
        Item::new(self.layout(), self.columns().iter().copied().map(column).collect())
    }

    /// Element type: of a map that of its values.
    pub fn dtype(&self, b: &Builder<'_>) -> DType {
        match self {
            Item::Tensor(value) => b.dtype(*value),
            Item::Compound(compound) => match &compound.layout {
                Layout::List(dtype) | Layout::Nothing(dtype) => *dtype,
                Layout::Optional(_) => self.element().map_or(DType::F32, |element| element.dtype(b)),
                _ => compound.columns.last().map_or(DType::F32, |&data| b.dtype(data)),
            },
        }
    }

    /// What an optional may hold.
    pub fn element(&self) -> Option<Item> {
        match self {
            Item::Compound(compound) => match &compound.layout {
                Layout::Optional(element) => {
                    Some(Item::new((**element).clone(), compound.columns.get(1..)?.to_vec()))
                }
                _ => None,
            },
            Item::Tensor(_) => None,
        }
    }

    /// The elements of a list.
    pub fn listed(&self) -> Option<&[ValueId]> {
        match self {
            Item::Compound(compound) if matches!(compound.layout, Layout::List(_)) => Some(&compound.columns),
            _ => None,
        }
    }

    /// The value without lists, except for one without elements: its columns are unknown.
    pub fn packed(&self, b: &mut Builder<'_>) -> Result<Item> {
        match self.listed() {
            Some([]) | None => Ok(self.clone()),
            Some(elements) => sequence::pack(b, self.dtype(b), elements),
        }
    }

    /// The value as a caller gets it, with all its columns.
    pub fn closed(&self, b: &mut Builder<'_>) -> Result<Item> {
        let item = self.packed(b)?;
        let layout = match item.layout() {
            Layout::List(_) => Layout::Sequence(Elements::Mixed(Dim::ZERO)),
            Layout::Nothing(_) => Layout::Tensor,
            Layout::Optional(element) if matches!(*element, Layout::List(_)) => {
                Layout::Optional(Box::new(Layout::Sequence(Elements::Mixed(Dim::ZERO))))
            }
            Layout::Optional(element) if matches!(*element, Layout::Nothing(_)) => {
                Layout::Optional(Box::new(Layout::Tensor))
            }
            _ => return Ok(item),
        };
        // No element is there, so any type will do.
        let dtype = item.dtype(b);
        let scalar = TensorType::new(dtype, vec![]);
        item.convert(b, &ItemType { layout, columns: vec![scalar] })
    }

    /// Type for messages: `a sequence of f32`.
    pub fn text(&self, b: &Builder<'_>) -> String {
        match self {
            Item::Tensor(value) => b.ty(*value).to_string(),
            Item::Compound(compound) => match compound.layout {
                Layout::AnyRank { least, most } => format!("{} of rank {least} to {most}", self.dtype(b)),
                _ => format!("{} of {}", self.kind(), self.dtype(b)),
            },
        }
    }
}

/// Type of a value, which a body is imported with.
#[derive(Clone, PartialEq, Debug)]
pub struct ItemType {
    pub layout: Layout,
    pub columns: Vec<TensorType>,
}

impl From<TensorType> for ItemType {
    fn from(ty: TensorType) -> ItemType {
        ItemType { layout: Layout::Tensor, columns: vec![ty] }
    }
}

impl ItemType {
    pub fn of(b: &Builder<'_>, item: &Item) -> ItemType {
        let columns = item.columns().iter().map(|&column| b.ty(column).clone()).collect();
        ItemType { layout: item.layout(), columns }
    }
}

/// The columns of several values.
pub fn columns(items: &[Item]) -> Vec<ValueId> {
    items.iter().flat_map(|item| item.columns()).copied().collect()
}

/// Values of these layouts, whose columns follow each other.
pub fn from_columns(layouts: &[Layout], columns: &[ValueId]) -> Vec<Item> {
    let mut rest = columns;
    let mut items = Vec::with_capacity(layouts.len());
    for layout in layouts {
        // Only a list without elements is handed on, whose columns are none.
        let (own, left) = rest.split_at(layout.width().unwrap_or(0).min(rest.len()));
        items.push(Item::new(layout.clone(), own.to_vec()));
        rest = left;
    }
    items
}
