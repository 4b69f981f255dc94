//! What values of two bodies, or of two iterations, have in common: the type that can hold both.

use super::{Elements, Item, ItemType, Layout};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, TensorType, ValueId};

impl ItemType {
    /// The type of values of either type. `stays` is true for dims that mean the same in both places; other sizes are dropped from the
    /// type.
    pub fn join(&self, other: &ItemType, stays: &dyn Fn(&Dim) -> bool) -> Result<ItemType> {
        use Layout::*;
        let take = |from: &ItemType, layout| ItemType { layout, columns: from.columns.clone() };
        let refuse = || {
            let message = format!("{} where {} is due", other.layout.kind(), self.layout.kind());
            Err(Error::malformed(Stage::Infer, message))
        };
        Ok(match (&self.layout, &other.layout) {
            (List(_), Sequence(elements)) => take(other, Sequence(elements.kept(stays)?)),
            (Sequence(elements), List(_)) => take(self, Sequence(elements.kept(stays)?)),
            (Sequence(a), Sequence(b)) => take(self, Sequence(a.kept(stays)?.join(&b.kept(stays)?))),
            (Optional(a), Optional(b)) => {
                let inner = |of: &ItemType, layout: &Layout| ItemType {
                    layout: layout.clone(),
                    columns: of.columns[1..].to_vec(),
                };
                inner(self, a).join(&inner(other, b), stays)?.optional(&self.columns[0])
            }
            (Nothing(_), Tensor) => take(other, Tensor),
            (Tensor, Nothing(_)) => take(self, Tensor),
            // What takes an optional takes its element, too.
            (Optional(a), b) if !matches!(b, Optional(_)) => {
                let inner = ItemType { layout: (**a).clone(), columns: self.columns[1..].to_vec() };
                inner.join(other, stays)?.optional(&self.columns[0])
            }
            (a, b) if a == b => self.clone(),
            _ => return refuse(),
        })
    }

    fn optional(self, present: &TensorType) -> ItemType {
        let columns = std::iter::once(present).chain(&self.columns).cloned().collect();
        ItemType { layout: Layout::Optional(Box::new(self.layout)), columns }
    }
}

impl Elements {
    /// Number of columns of `shapes`.
    pub fn axes(&self) -> Dim {
        match self {
            Elements::Ranked(dims) => Dim::from(dims.len()),
            Elements::Mixed(axes) => axes.clone(),
        }
    }

    /// What holds of elements of both.
    pub fn join(&self, other: &Elements) -> Elements {
        match (self, other) {
            (Elements::Ranked(a), Elements::Ranked(b)) if a.len() == b.len() => {
                let same = |(a, b): (&Option<Dim>, &Option<Dim>)| a.clone().filter(|_| a == b);
                Elements::Ranked(a.iter().zip(b).map(same).collect())
            }
            _ => Elements::Mixed(self.axes().max_dim(&other.axes())),
        }
    }

    /// What is left where only some dims keep their meaning.
    fn kept(&self, stays: &dyn Fn(&Dim) -> bool) -> Result<Elements> {
        match self {
            Elements::Ranked(dims) => {
                let keep = |dim: &Option<Dim>| dim.clone().filter(stays);
                Ok(Elements::Ranked(dims.iter().map(keep).collect()))
            }
            Elements::Mixed(axes) if !stays(axes) => {
                let message = "a sequence whose elements may have any rank";
                Err(Error::unsupported(Stage::Infer, message))
            }
            mixed => Ok(mixed.clone()),
        }
    }
}

impl Item {
    /// The value under a type that can hold it; see [`ItemType::join`].
    pub fn convert(&self, b: &mut Builder<'_>, to: &ItemType) -> Result<Item> {
        use Layout::*;
        let item = self.packed(b)?;
        let columns = match (&item.layout(), &to.layout) {
            (from, to) if from == to => return Ok(item),
            (List(dtype), Sequence(elements)) => {
                let zero = b.scalar(DType::I64, 0.0);
                let shapes = b.expand(zero, vec![Dim::ZERO, elements.axes()])?;
                vec![shapes, zeros(b, *dtype, vec![Dim::ZERO])?]
            }
            (Sequence(from), Sequence(Elements::Mixed(axes))) => {
                let &[shapes, data] = item.columns() else { return Ok(item) };
                let none = b.scalar(DType::I64, -1.0);
                let more = axes.clone() - from.axes();
                vec![b.pad(shapes, none, vec![Dim::ZERO; 2], vec![Dim::ZERO, more])?, data]
            }
            (Sequence(_), Sequence(_)) => item.columns().to_vec(),
            (Nothing(dtype), Tensor) => {
                // What is not there takes no room where nothing else is said.
                let size = |dim: &Dim| if dim.is_const() { dim.clone() } else { Dim::ZERO };
                let shape = to.columns.last().map(|ty| ty.shape.iter().map(size).collect());
                vec![zeros(b, *dtype, shape.unwrap_or_default())?]
            }
            (Tensor | AnyRank { .. }, AnyRank { most, .. }) => item.with_rank(b, *most)?,
            (Optional(_), Optional(inner)) => {
                let element = item.element().unwrap_or_else(|| item.clone());
                let to = ItemType { layout: (**inner).clone(), columns: to.columns.clone() };
                let element = element.convert(b, &to)?;
                [&item.columns()[..1], element.columns()].concat()
            }
            (_, Optional(inner)) => {
                let to = ItemType { layout: (**inner).clone(), columns: to.columns.clone() };
                let element = item.convert(b, &to)?;
                return Item::some(b, &element);
            }
            (from, to) => {
                let message = format!("{} where {} is due", from.kind(), to.kind());
                return Err(Error::malformed(Stage::Infer, message));
            }
        };
        Ok(Item::new(to.layout.clone(), columns))
    }
}

/// A tensor of zeros, or of empty strings.
fn zeros(b: &mut Builder<'_>, dtype: DType, shape: Vec<Dim>) -> Result<ValueId> {
    TensorType::new(dtype, shape.clone()).check_size(Stage::Infer)?;
    let zero = b.scalar(dtype, 0.0);
    b.expand(zero, shape)
}
