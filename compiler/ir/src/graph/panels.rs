//! Where the elements of a contraction's right-hand side lie in panels. Inference, the evaluator, passes, lowering and state blocks ask
//! here, and none divides by the width of a panel itself.
//!
//! | tensor | axes |
//! |---|---|
//! | plain | `[batch.., k.., n]`; of a state the axis of the columns is where it grows |
//! | packed | `[batch.., panels, rows.., nr * depth]`: `rows` are the inner axes, the last of them in rows of `depth` steps |
//! | order of the rows of each panel | `[batch.., panels, rows..]` |
//! | scales and zeros of codes | as packed, without the axis of the steps that share them |
//!
//! Element `(k, n)` is in panel `n / nr`, in row `k / depth` of it, at `n % nr * depth + k % depth`: the steps of a column lie side by
//! side. What the last panel has beyond `n` columns is padding, which is zero in what [`Op::Pack`](super::Op::Pack) makes.

use crate::graph::dim::{dims, volume};
use crate::graph::{DOT_DEPTH, Dim, RhsLayout};

/// A right-hand side in panels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PanelLayout {
    /// Axes that products have in common, before that of the panels.
    pub batch: Vec<Dim>,
    /// Inner axes, in single steps.
    pub inner: Vec<Dim>,
    /// Columns in all.
    pub n: Dim,
    /// Columns of a panel.
    pub nr: usize,
    /// Steps that a row of a panel has of each column.
    pub depth: usize,
}

impl RhsLayout {
    /// Steps that a row has of each column; plain rows have one.
    pub fn depth(&self) -> usize {
        match self {
            RhsLayout::Plain => 1,
            RhsLayout::Panels { depth, .. } => *depth,
            RhsLayout::Ordered { .. } => DOT_DEPTH,
        }
    }

    /// Columns of a panel, and of all.
    fn widths(&self) -> Option<(usize, &Dim)> {
        match self {
            RhsLayout::Plain => None,
            RhsLayout::Panels { nr, n, .. } | RhsLayout::Ordered { nr, n, .. } => Some((*nr, n)),
        }
    }

    /// Columns in all, of panels; a plain tensor has them as an axis.
    pub fn columns(&self) -> Option<&Dim> {
        self.widths().map(|(_, n)| n)
    }

    /// The number of axes of a right-hand side with `batch` batch and `k` inner axes.
    pub fn rank(&self, batch: usize, k: usize) -> usize {
        batch + k + if *self == RhsLayout::Plain { 1 } else { 2 }
    }

    /// Of a right-hand side of this shape: how it lies in panels, if it does.
    pub fn of_packed(&self, packed: &[Dim], batch: usize) -> Option<PanelLayout> {
        let (nr, n) = self.widths()?;
        PanelLayout::of_packed(packed, batch, (nr, self.depth()), n.clone())
    }

    /// The inner axes of a right-hand side of this shape, in single steps.
    pub fn inner(&self, shape: &[Dim], batch: usize) -> Vec<Dim> {
        match self.of_packed(shape, batch) {
            Some(panels) => panels.inner,
            None => shape.get(batch..shape.len().saturating_sub(1)).unwrap_or(&[]).to_vec(),
        }
    }
}

impl PanelLayout {
    /// Of a tensor of this shape, the axis `columns` cut into panels of `nr` and all axes behind the batch gone over for each of them.
    /// `None` where the axes are not there.
    pub fn of_plain(shape: &[Dim], batch: usize, columns: usize, nr: usize) -> Option<PanelLayout> {
        let (lead, mut inner) = (shape.get(..batch)?.to_vec(), shape[batch..].to_vec());
        let n = columns.checked_sub(batch).filter(|&at| at < inner.len()).map(|at| inner.remove(at))?;
        Some(PanelLayout { batch: lead, inner, n, nr, depth: 1 })
    }

    /// Of panels of this shape that have `n` columns in all. `None` where it has too few axes.
    pub fn of_packed(
        packed: &[Dim],
        batch: usize,
        (nr, depth): (usize, usize),
        n: Dim,
    ) -> Option<PanelLayout> {
        let mut inner = packed.get(batch + 1..packed.len().checked_sub(1)?)?.to_vec();
        if let Some(last) = inner.last_mut() {
            *last = last.clone() * Dim::from(depth);
        }
        Some(PanelLayout { batch: packed[..batch].to_vec(), inner, n, nr, depth })
    }

    /// Of panels of this shape that lack no columns: those that they have room for.
    pub fn of_room(packed: &[usize], batch: usize, nr: usize) -> Option<PanelLayout> {
        let n = packed.get(batch)?.checked_mul(nr)?;
        PanelLayout::of_packed(&dims(packed), batch, (nr, 1), Dim::from(n))
    }

    /// The same with other columns in all.
    pub fn with_columns(self, n: Dim) -> PanelLayout {
        PanelLayout { n, ..self }
    }

    /// The same in rows of `depth` steps; `None` where they do not fill the rows.
    pub fn with_depth(self, depth: usize) -> Option<PanelLayout> {
        let fills = self.inner.last().map_or(depth == 1, |last| fills_rows(last, depth));
        fills.then_some(PanelLayout { depth, ..self })
    }

    fn width(&self) -> Dim {
        Dim::from(self.nr.max(1))
    }

    /// The number of panels.
    pub fn count(&self) -> Dim {
        self.n.ceil_div(&self.width()).unwrap_or(Dim::ZERO)
    }

    /// The number of panels that have all of their columns.
    pub fn whole(&self) -> Dim {
        self.n.floor_div(&self.width()).unwrap_or(Dim::ZERO)
    }

    /// Columns of the last panel, if it lacks some; else zero.
    pub fn rest(&self) -> Dim {
        self.n.clone() - self.whole() * self.width()
    }

    /// The number of panels, if none lacks columns.
    pub fn if_whole(&self) -> Option<Dim> {
        self.n.exact_div(&self.width())
    }

    /// Columns that panels have room for, if their number is known.
    pub fn room(&self) -> Option<usize> {
        let count = usize::try_from(self.count().as_const()?).ok()?;
        count.checked_mul(self.nr)
    }

    /// Columns that the first panel has, as far as it is known: at least one.
    pub fn first_columns(&self) -> usize {
        self.n.as_const().map_or(self.nr, |n| self.nr.min(n.max(1) as usize))
    }

    /// Elements of a row of a panel.
    pub fn row(&self) -> usize {
        self.nr * self.depth
    }

    /// The axis that counts panels; the inner ones follow it.
    pub fn axis(&self) -> usize {
        self.batch.len()
    }

    /// The inner axes in rows; `None` where the last of them does not fill its rows.
    pub fn rows(&self) -> Option<Vec<Dim>> {
        let mut rows = self.inner.clone();
        if let Some(last) = rows.last_mut() {
            *last = last.exact_div(&Dim::from(self.depth))?;
        }
        Some(rows)
    }

    /// The shape without panels, with the columns as axis `columns`.
    pub fn plain(&self, columns: usize) -> Vec<Dim> {
        let mut shape = [&self.batch[..], &self.inner].concat();
        shape.insert(columns.min(shape.len()), self.n.clone());
        shape
    }

    fn packed_by(&self, count: Dim, row: Dim) -> Option<Vec<Dim>> {
        let mut shape = self.batch.clone();
        shape.push(count);
        shape.extend(self.rows()?);
        shape.push(row);
        Some(shape)
    }

    /// The shape of the packed tensor.
    pub fn packed(&self) -> Option<Vec<Dim>> {
        self.packed_by(self.count(), Dim::from(self.row()))
    }

    /// The shape of `columns` columns of `count` panels.
    pub fn part(&self, count: &Dim, columns: &Dim) -> Option<Vec<Dim>> {
        self.packed_by(count.clone(), columns.clone() * Dim::from(self.depth))
    }

    /// The column of all that is number `lane` of a panel.
    pub fn column<C: Column>(&self, panel: &C, lane: &C) -> C {
        panel.scaled(&Dim::from(self.nr)).plus(lane)
    }

    /// The panel of a column, and its number there, by `divide`, which gives a quotient and what is left.
    pub fn cut<C>(&self, column: &C, divide: impl FnOnce(&C, &Dim) -> (C, C)) -> (C, C) {
        divide(column, &self.width())
    }

    /// Of a tensor with `depth` steps of each column side by side in its rows: the shape by which a plain one is read, the order of
    /// its axes, and the shape then.
    pub fn side_by_side(&self) -> Option<Reordered> {
        let rows = self.rows()?;
        let (last, lead) = rows.split_last()?;
        let axis = self.batch.len() + lead.len();
        let mut to: Vec<Dim> = self.batch.iter().chain(lead).cloned().collect();
        let mut from = to.clone();
        from.extend([last.clone(), Dim::from(self.depth), self.n.clone()]);
        to.extend([last.clone(), self.n.clone() * Dim::from(self.depth)]);
        let mut perm: Vec<usize> = (0..axis + 3).collect();
        perm.swap(axis + 1, axis + 2);
        Some(Reordered { from, perm, to })
    }

    /// Of a plain tensor whose columns fill their panels, as the packed one that it is then in another order.
    pub fn in_place(&self) -> Option<Reordered> {
        let (axis, columns) = (self.batch.len(), self.batch.len() + self.inner.len());
        let mut from: Vec<Dim> = self.batch.iter().chain(&self.inner).cloned().collect();
        from.extend([self.if_whole()?, Dim::from(self.nr)]);
        let mut perm: Vec<usize> = (0..columns + 2).collect();
        perm[axis..=columns].rotate_right(1);
        Some(Reordered { from, perm, to: self.packed()? })
    }

    /// Of a packed tensor of depth 1: all columns that there is room for as one axis behind the batch.
    pub fn columns_first(&self) -> Option<Reordered> {
        let (axis, from) = (self.axis(), self.packed()?);
        let mut perm: Vec<usize> = (0..from.len()).collect();
        perm[axis + 1..].rotate_right(1);
        let mut to = self.batch.clone();
        to.push(self.count() * Dim::from(self.nr));
        to.extend_from_slice(&self.inner);
        Some(Reordered { from, perm, to })
    }

    /// Where elements lie, if all sizes are known.
    pub fn places(&self) -> Option<PanelPlaces> {
        let known = |size: i64| usize::try_from(size).ok();
        Some(PanelPlaces {
            rows: known(volume(&self.rows()?)?)?,
            panels: known(self.count().as_const()?)?,
            n: known(self.n.as_const()?)?,
            nr: self.nr.max(1),
            depth: self.depth.max(1),
        })
    }
}

/// The axes of packed panels without the last one: an order of their rows has these.
pub fn rows_of<D>(packed: &[D]) -> &[D] {
    packed.split_last().map_or(packed, |(_, rows)| rows)
}

/// Whether this many steps of a last inner axis fill rows of `depth`, as far as is known.
pub fn fills_rows(steps: &Dim, depth: usize) -> bool {
    steps.exact_div(&Dim::from(depth)).is_some()
}

/// Steps that a last inner axis lacks to fill rows of `depth`.
pub fn missing_steps(last: &Dim, depth: usize) -> Option<Dim> {
    let depth = Dim::from(depth);
    Some(last.ceil_div(&depth)? * depth - last.clone())
}

/// A number of a column: one that is known, or an expression.
pub trait Column {
    fn scaled(&self, by: &Dim) -> Self;
    fn plus(&self, other: &Self) -> Self;
}

impl Column for Dim {
    fn scaled(&self, by: &Dim) -> Dim {
        self.clone() * by.clone()
    }

    fn plus(&self, other: &Dim) -> Dim {
        self.clone() + other.clone()
    }
}

/// A tensor read by another shape, its axes in another order, and that as a shape again.
pub struct Reordered {
    pub from: Vec<Dim>,
    pub perm: Vec<usize>,
    pub to: Vec<Dim>,
}

/// [`PanelLayout`] of known sizes: where in an element of the batch each element is, with the inner axes joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PanelPlaces {
    pub rows: usize,
    pub panels: usize,
    pub n: usize,
    pub nr: usize,
    /// Also the distance of neighbouring columns of a panel.
    pub depth: usize,
}

impl PanelPlaces {
    /// Of a plain `[steps, n]`: one panel of all columns.
    pub fn plain(steps: usize, n: usize) -> PanelPlaces {
        PanelPlaces { rows: steps, panels: 1, n, nr: n.max(1), depth: 1 }
    }

    /// Elements of one element of the batch, with padding.
    pub fn len(&self) -> usize {
        self.panels * self.rows * self.nr * self.depth
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Columns that a panel has.
    pub fn columns_of(&self, panel: usize) -> usize {
        self.n.saturating_sub(panel * self.nr).min(self.nr)
    }

    /// Where a column of a step is.
    pub fn at(&self, step: usize, column: usize) -> usize {
        let (panel, lane) = (column / self.nr, column % self.nr);
        ((panel * self.rows + step / self.depth) * self.nr + lane) * self.depth + step % self.depth
    }

    /// The step and the column that are there; `None` of padding.
    pub fn element(&self, at: usize) -> Option<(usize, usize)> {
        let (lane, within) = (at / self.depth % self.nr, at % self.depth);
        let row = at / (self.depth * self.nr);
        let column = row / self.rows.max(1) * self.nr + lane;
        (at < self.len() && column < self.n).then_some((row % self.rows.max(1) * self.depth + within, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::PAIR_DEPTH;
    use crate::graph::dim::sizes;

    /// Layouts of these columns, in panels of `nr`.
    fn layouts(nr: usize, n: usize) -> Vec<RhsLayout> {
        let n = Dim::from(n);
        let deep = [1, PAIR_DEPTH, DOT_DEPTH].map(|depth| RhsLayout::Panels { nr, depth, n: n.clone() });
        let ordered = [false, true].map(|stays| RhsLayout::Ordered { nr, n: n.clone(), short: 1, stays });
        deep.into_iter().chain(ordered).collect()
    }

    /// Every element has a place of its own and comes back from it; all others are padding, and the number of places is that of the
    /// packed shape.
    #[test]
    fn elements_and_padding_fill_the_panels() {
        for (nr, n, rows) in
            (1..=5).flat_map(|nr| (0..=11).flat_map(move |n| [1, 3].map(|rows| (nr, n, rows))))
        {
            for rhs in layouts(nr, n) {
                let depth = rhs.depth();
                let plain = dims(&[2, 5, rows * depth, n]);
                let layout = PanelLayout::of_plain(&plain, 1, 3, nr).unwrap().with_depth(depth).unwrap();
                let packed = layout.packed().unwrap();
                assert_eq!(packed, dims(&[2, n.div_ceil(nr), 5, rows, nr * depth]), "{rhs:?}");
                assert_eq!(packed.len(), rhs.rank(1, 2));
                assert_eq!(rhs.of_packed(&packed, 1), Some(layout.clone()));
                assert_eq!(layout.plain(3), plain);
                assert_eq!(rhs.inner(&packed, 1), dims(&[5, rows * depth]));
                assert_eq!(rows_of(&packed), &packed[..4]);
                let (places, steps) = (layout.places().unwrap(), 5 * rows * depth);
                assert_eq!(volume(&packed), Some(2 * places.len() as i64));
                let mut taken = vec![false; places.len()];
                for (step, column) in (0..steps).flat_map(|step| (0..n).map(move |column| (step, column))) {
                    let at = places.at(step, column);
                    assert!(!std::mem::replace(&mut taken[at], true), "{rhs:?}: ({step}, {column}) at {at}");
                    assert_eq!(places.element(at), Some((step, column)), "{rhs:?} at {at}");
                }
                for (at, taken) in taken.iter().enumerate() {
                    assert_eq!(places.element(at).is_some(), *taken, "{rhs:?} at {at}");
                }
                assert_eq!(places.element(places.len()), None);
                let columns: usize = (0..places.panels).map(|panel| places.columns_of(panel)).sum();
                assert_eq!((columns, layout.room()), (n, Some(n.div_ceil(nr) * nr)));
            }
        }
    }

    /// Counts of panels agree with each other, whether the columns are known or not.
    #[test]
    fn panels_are_whole_but_for_the_last() {
        let sym = Dim::sym(crate::graph::Sym::from_u32(0));
        let open = PanelLayout::of_plain(&[Dim::from(6i64), sym], 0, 1, 4).unwrap();
        for n in 0..=13 {
            let value = |dim: Dim| dim.eval(&|_| Some(n)).unwrap();
            let known = open.clone().with_columns(Dim::from(n));
            for layout in [&known, &open] {
                let (count, whole, rest) =
                    (value(layout.count()), value(layout.whole()), value(layout.rest()));
                assert_eq!((whole * 4 + rest, count - whole), (n, i64::from(rest > 0)));
                assert!((0..4).contains(&rest));
            }
            assert_eq!(known.if_whole().is_some(), n % 4 == 0);
            assert_eq!(known.first_columns() as i64, n.clamp(1, 4));
            for column in 0..n {
                let divide = |column: &i64, by: &Dim| {
                    let by = by.as_const().unwrap();
                    (column / by, column % by)
                };
                let (panel, lane) = known.cut(&column, divide);
                assert_eq!(known.column(&Dim::from(panel), &Dim::from(lane)), Dim::from(column));
            }
        }
        assert_eq!(open.first_columns(), 4);
        assert_eq!(open.room(), None);
    }

    /// The strides of a view's axes over what it reads, and the axes behind its order.
    fn walk(view: &Reordered) -> (Vec<usize>, Vec<usize>) {
        let from = sizes(&view.from).unwrap();
        let strides: Vec<usize> = (0..from.len()).map(|axis| from[axis + 1..].iter().product()).collect();
        assert_eq!(volume(&view.from), volume(&view.to));
        (
            view.perm.iter().map(|&axis| from[axis]).collect(),
            view.perm.iter().map(|&axis| strides[axis]).collect(),
        )
    }

    /// Which element of what it reads is each element of a view, in row-major order.
    fn read(view: &Reordered) -> Vec<usize> {
        let (sizes, strides) = walk(view);
        let count: usize = sizes.iter().product();
        let element = |at: usize| {
            let (mut rest, mut from) = (at, 0);
            for (size, stride) in sizes.iter().zip(&strides).rev() {
                from += rest % size * stride;
                rest /= size;
            }
            from
        };
        (0..count).map(element).collect()
    }

    /// Views of plain and of packed tensors give each element the place that the layout says.
    #[test]
    fn views_agree_with_places() {
        let layout =
            |sizes: &[usize], nr: usize| PanelLayout::of_plain(&dims(sizes), 1, sizes.len() - 1, nr).unwrap();
        // To `Op::Pack` each step of a row is a column.
        for depth in [1, 2, 4] {
            let deep = layout(&[1, 3, 8, 5], 2).with_depth(depth).unwrap();
            let view = deep.side_by_side().unwrap();
            let flat = PanelLayout::of_plain(&view.to, 1, 3, deep.row()).unwrap();
            assert_eq!(flat.packed(), deep.packed());
            let (places, flat) = (deep.places().unwrap(), flat.places().unwrap());
            for (at, from) in read(&view).into_iter().enumerate() {
                let place = flat.at(at / (5 * depth), at % (5 * depth));
                assert_eq!(places.at(from / 5, from % 5), place, "{depth}");
            }
        }
        for inner in [&[6][..], &[3, 2]] {
            let whole = layout(&[&[1], inner, &[8]].concat(), 4);
            let (view, places) = (whole.in_place().unwrap(), whole.places().unwrap());
            let elements = read(&view).into_iter().map(|from| Some((from / 8, from % 8)));
            assert!(elements.eq((0..places.len()).map(|at| places.element(at))));
            assert!(layout(&[&[1], inner, &[7]].concat(), 4).in_place().is_none());
        }
        let rest = layout(&[1, 3, 2, 7], 4);
        let (view, places) = (rest.columns_first().unwrap(), rest.places().unwrap());
        for (at, from) in read(&view).into_iter().enumerate() {
            let (column, step) = (at / 6, at % 6);
            assert_eq!(places.element(from), (column < 7).then_some((step, column)));
        }
    }

    /// The axis of a state that grows is any; what is behind it is gone over for each panel.
    #[test]
    fn states_have_their_columns_inside() {
        let layout = PanelLayout::of_plain(&dims(&[2, 3, 10, 4]), 2, 2, 8).unwrap();
        assert_eq!(layout.packed(), Some(dims(&[2, 3, 2, 4, 8])));
        assert_eq!(layout.plain(2), dims(&[2, 3, 10, 4]));
        assert_eq!(layout.columns_first().unwrap().to, dims(&[2, 3, 16, 4]));
        assert_eq!(PanelLayout::of_plain(&dims(&[2, 3]), 2, 2, 8), None);
        assert_eq!(PanelLayout::of_packed(&dims(&[2]), 1, (4, 1), Dim::ONE), None);
    }

    #[test]
    fn steps_fill_rows() {
        for last in 0..=9i64 {
            let missing = missing_steps(&Dim::from(last), 4).unwrap().as_const().unwrap();
            assert!((0..4).contains(&missing) && (last + missing) % 4 == 0, "{last}");
            let plain = dims(&[last as usize, 3]);
            let deep = PanelLayout::of_plain(&plain, 0, 1, 2).unwrap().with_depth(4);
            assert_eq!(deep.is_some(), missing == 0);
        }
    }
}
