//! Splitting an axis into runs of equal pieces; one piece of straight-line code computes each.

use crate::Index;
use onnxc_ir::graph::Dim;

/// `count` pieces of `size` elements each, from element `from` on.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Run {
    pub from: Dim,
    pub count: Dim,
    pub size: usize,
}

impl Run {
    /// Where element `at` of a piece is.
    pub(super) fn at(&self, piece: &Index, at: usize) -> Index {
        piece.scale(&Dim::from(self.size)).add_dim(&(self.from.clone() + Dim::from(at)))
    }
}

/// Pieces of `sizes` in turn, the maximum number of each. The last size must be 1 where the extent is not a multiple of
/// the others.
pub(super) fn greedy(extent: &Dim, sizes: &[usize]) -> Vec<Run> {
    let mut runs = Runs::of(extent);
    sizes.iter().for_each(|&size| runs.take_all(size));
    runs.runs
}

/// As few pieces of at most `most` elements as cover the extent, which differ by one element at most where that can be.
/// An extent that is not known has them of `most` and `most - 1` elements, and smaller ones where it is small.
pub(super) fn balanced(extent: &Dim, most: usize) -> Vec<Run> {
    let mut runs = Runs::of(extent);
    let size = Dim::from(most);
    let pieces = extent.ceil_div(&size).expect("pieces are not empty");
    match (extent.as_const(), pieces.as_const()) {
        (Some(extent), Some(pieces)) if pieces > 0 => {
            let (small, tall) = (extent / pieces, extent % pieces);
            runs.take(small as usize + 1, Dim::from(tall));
            runs.take(small as usize, Dim::from(pieces - tall));
        }
        _ => {
            // Each piece of one element less makes up for one that is missing.
            let missing = pieces.clone() * size - extent.clone();
            runs.take(most, (pieces - missing).max_dim(&Dim::ZERO));
            if most > 2 {
                runs.take_all(most - 1);
            }
            let halves = std::iter::successors(Some(most / 2), |size| Some(size / 2));
            halves.take_while(|size| *size > 1).for_each(|size| runs.take_all(size));
            runs.take_all(1);
        }
    }
    runs.runs
}

/// What is split, and what is left of it.
struct Runs {
    runs: Vec<Run>,
    from: Dim,
    rest: Dim,
}

impl Runs {
    fn of(extent: &Dim) -> Runs {
        Runs { runs: vec![], from: Dim::ZERO, rest: extent.clone() }
    }

    fn take(&mut self, size: usize, count: Dim) {
        if count != Dim::ZERO && size > 0 {
            let taken = count.clone() * Dim::from(size);
            self.runs.push(Run { from: self.from.clone(), count, size });
            self.from = self.from.clone() + taken.clone();
            self.rest = self.rest.clone() - taken;
        }
    }

    fn take_all(&mut self, size: usize) {
        let count = self.rest.floor_div(&Dim::from(size)).expect("pieces are not empty");
        self.take(size, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::Sym;

    fn values(runs: &[Run], symbol: i64) -> Vec<(i64, i64, usize)> {
        let value = |dim: &Dim| dim.eval(&|_| Some(symbol)).unwrap();
        runs.iter()
            .map(|run| (value(&run.from), value(&run.count), run.size))
            .filter(|run| run.1 > 0)
            .collect()
    }

    #[test]
    fn known_extents_are_balanced() {
        let split = |extent: i64| values(&balanced(&Dim::from(extent), 6), 0);
        assert_eq!(split(49), [(0, 4, 6), (24, 5, 5)]);
        assert_eq!(split(12), [(0, 2, 6)]);
        assert_eq!(split(1), [(0, 1, 1)]);
        assert_eq!(split(0), []);
    }

    #[test]
    fn unknown_extents_are_covered_by_few_pieces() {
        let extent = Dim::sym(Sym::from_u32(0));
        for most in [1, 2, 6, 14] {
            let runs = balanced(&extent, most);
            for size in 0..400 {
                let (mut next, mut pieces) = (0, 0);
                for (from, count, size) in values(&runs, size) {
                    assert_eq!(from, next);
                    next += count * size as i64;
                    pieces += count;
                }
                assert_eq!(next, size);
                let least = (size as usize).div_ceil(most) as i64;
                assert!(pieces <= least + 3, "{pieces} pieces of {size} elements, at most {most} each");
                assert!(pieces == least || size < (most * most) as i64);
            }
        }
    }

    #[test]
    fn sizes_are_taken_in_turn() {
        assert_eq!(
            values(&greedy(&Dim::from(45usize), &[32, 8, 1]), 0),
            [(0, 1, 32), (32, 1, 8), (40, 5, 1)]
        );
        assert_eq!(values(&greedy(&Dim::sym(Sym::from_u32(0)), &[4, 1]), 11), [(0, 2, 4), (8, 3, 1)]);
    }
}
