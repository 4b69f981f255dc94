//! The operands of [`Op::Leaves`](super::Op::Leaves).

/// How the tables of [`Op::Leaves`](super::Op::Leaves) are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trees {
    /// `x` has at least this number of columns.
    pub features: usize,
    /// The steps of a row through all trees, of nodes.
    pub steps: usize,
    /// The first of the columns are those of `x`, the last ones numbers of categories, and those between are opposites, `-x`.
    pub plain: usize,
    pub categories: usize,
    /// Whether steps compare the columns, not those of `x`.
    pub copied: bool,
    /// Whether steps have bounds from above, too.
    pub two_sided: bool,
    /// Whether there are tests for many rows at once, and whether these have bounds from above, too.
    pub masks: Option<bool>,
}

/// What each operand is.
///
/// Lists are of i32 but for `lows` and `highs`, which are of the type of `x`. Column `j` of a row is that of number `columns[j]` in `x`, or
/// its opposite, or its category: of the last columns, one for each of the `limits`, the number itself if that is a whole one from 0 to
/// before the limit, the limit for other numbers, and one more for NaN.
#[derive(Clone, Debug)]
pub struct Operands<T> {
    /// Rows, `[n, f]`, f32 or f64.
    pub x: T,
    pub columns: T,
    pub limits: T,
    /// Of each tree its first node and how many steps its longest path has.
    pub roots: T,
    pub levels: T,
    /// Of each node the leaf that it is, if it is one.
    pub leaves: T,
    /// Of each node the column that it compares, and the node on its left, before that on its right. Leaves follow themselves.
    pub places: T,
    pub next: T,
    /// A step goes to the right where the column is at least as large as its low bound, and at most as large as its high bound.
    pub lows: T,
    pub highs: Option<T>,
    /// Where the bounds of each node begin: the first is for columns without categories and for category 0, the others follow; of a column
    /// without categories, 0 is compared. Without it, node `m` has bound `m`.
    pub starts: Option<T>,
    pub masks: Option<Masks<T>>,
}

/// The leaves of a tree, from the left, are the bits of words.
#[derive(Clone, Debug)]
pub struct Masks<T> {
    /// Words of tree `t`: from `trees[t]` to before `trees[t + 1]`, the rightmost one first.
    pub trees: T,
    /// Tests of word `w`: from `words[w]` to before `words[w + 1]`.
    pub words: T,
    /// Bit `b` of word `w` is for leaf `order[bases[w] + b]`.
    pub bases: T,
    pub order: T,
    /// A test clears `bits[k]` of its word where column `places[k]`, of categories their number, is at least `lows[k]`, and at most
    /// `highs[k]`. The first bit of a tree that is left then is for the leaf that is reached.
    pub places: T,
    pub bits: T,
    pub lows: T,
    pub highs: Option<T>,
}

impl Trees {
    /// Trees that are walked at once: that many neighbours, from the first tree on, have the same number of levels in the lists.
    /// A step waits for three loads, one after the other, and has nine instructions, so that eight trees leave the processor idle.
    pub const SIDE_BY_SIDE: usize = 16;

    /// The operands among all inputs; `None` if their number is wrong.
    pub fn operands<T: Copy>(&self, inputs: &[T]) -> Option<Operands<T>> {
        let mut rest = inputs.iter().copied();
        let operands = Operands {
            x: rest.next()?,
            columns: rest.next()?,
            limits: rest.next()?,
            roots: rest.next()?,
            levels: rest.next()?,
            leaves: rest.next()?,
            places: rest.next()?,
            next: rest.next()?,
            lows: rest.next()?,
            highs: if self.two_sided { Some(rest.next()?) } else { None },
            starts: if self.categories > 0 { Some(rest.next()?) } else { None },
            masks: match self.masks {
                Some(intervals) => Some(Masks {
                    trees: rest.next()?,
                    words: rest.next()?,
                    bases: rest.next()?,
                    order: rest.next()?,
                    places: rest.next()?,
                    bits: rest.next()?,
                    lows: rest.next()?,
                    highs: if intervals { Some(rest.next()?) } else { None },
                }),
                None => None,
            },
        };
        rest.next().is_none().then_some(operands)
    }
}

impl<T: Copy> Operands<T> {
    /// All of them, in their order.
    pub fn inputs(&self) -> Vec<T> {
        let mut inputs = vec![
            self.x,
            self.columns,
            self.limits,
            self.roots,
            self.levels,
            self.leaves,
            self.places,
            self.next,
            self.lows,
        ];
        inputs.extend(self.highs.into_iter().chain(self.starts));
        if let Some(masks) = &self.masks {
            let Masks { trees, words, bases, order, places, bits, lows, highs } = *masks;
            inputs.extend([trees, words, bases, order, places, bits, lows]);
            inputs.extend(highs);
        }
        inputs
    }
}
