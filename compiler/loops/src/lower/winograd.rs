//! The transforms of Winograd's convolutions: a square of vectors, channels side by side, through a small matrix from
//! the left and from the right. The results of the output transform have an epilogue, as those of a contraction.

use std::collections::HashMap;
use std::ops::Range;

use crate::lower::{Lowering, Override, internal};
use crate::nest::Nest;
use crate::{Expr, Index, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Op, TensorType, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_ir::winograd::{KERNEL, Matrix, Quotient, matrices};
use onnxc_tuning as tuning;

impl Lowering<'_> {
    pub(super) fn winograd_input(&mut self, x: ValueId, tile: usize, out: ValueId) -> Result<()> {
        let floats = self.graph.ty(x).dtype.is_float();
        let Some(matrices) = matrices(tile, floats) else { return internal(format!("tiles of {tile}")) };
        let size = tile + KERNEL - 1;
        let TensorType { dtype, shape } = self.graph.ty(out).clone();
        let each = [shape[0].clone(), shape[1].clone()];
        let mut pick = self.picker();
        let passes = tuning::winograd::passes(self.core, size, &mut pick)?;
        self.tuned(pick)?;
        self.for_shared(&each, &mut |cx, outer| {
            let inner = [shape[2].clone(), shape[4].clone()];
            cx.squares(&inner, &mut |cx, inner| {
                let mut load = |cx: &mut Self, row: usize, column: usize| {
                    let y = outer[1].scale(&Dim::from(tile)).add(&Index::int(row as i64));
                    let x_at = inner[0].scale(&Dim::from(tile)).add(&Index::int(column as i64));
                    let value = cx.expr_at(x, &[outer[0].clone(), y, x_at, inner[1].clone()])?;
                    let value = if floats { value } else { Expr::cast(DType::I32, value) };
                    Ok(cx.bind("d", value))
                };
                let mut store = |cx: &mut Self, row: usize, column: usize, value: Expr| {
                    let at = Index::int((row * size + column) as i64);
                    let index = [outer[0].clone(), outer[1].clone(), inner[0].clone(), at, inner[1].clone()];
                    let value = if floats { value } else { Expr::cast(dtype, value) };
                    cx.store(out, &index, value);
                    Ok(())
                };
                cx.both_sides(&matrices.input, passes, &mut load, &mut store)
            })
        })
    }

    /// A row of all squares before the next one. The elements of a whole square are written to places that are often a power of two
    /// apart, which meet in few lines of a cache.
    pub(super) fn winograd_filter(&mut self, weights: ValueId, tile: usize, out: ValueId) -> Result<()> {
        let floats = self.graph.ty(weights).dtype.is_float();
        let Some(matrices) = matrices(tile, floats) else { return internal(format!("tiles of {tile}")) };
        let size = tile + KERNEL - 1;
        let TensorType { dtype, shape } = self.graph.ty(out).clone();
        let kernels = &shape[1..];
        let (each, kernels) = kernels.split_at(kernels.len().min(1));
        self.for_shared(each, &mut |cx, outer| {
            for row in 0..size {
                cx.squares(kernels, &mut |cx, inner| {
                    let at = |place: usize| {
                        let place = [Index::int(place as i64)];
                        place.iter().chain(&outer).chain(inner).cloned().collect::<Vec<_>>()
                    };
                    let mut load = |cx: &mut Self, row: usize, column: usize| {
                        let value = cx.expr_at(weights, &at(row * KERNEL + column))?;
                        Ok(cx.bind("g", value))
                    };
                    let mut store = |cx: &mut Self, row: usize, column: usize, value: Expr| {
                        let value = if floats { value } else { Expr::cast(dtype, value) };
                        cx.store(out, &at(row * size + column), value);
                        Ok(())
                    };
                    cx.rows_of_both_sides(&matrices.filter, row..row + 1, &mut load, &mut store)
                })?;
            }
            Ok(())
        })
    }

    pub(super) fn winograd_output(&mut self) -> Result<()> {
        let node = &self.graph.nodes[self.group.anchor];
        let (Op::WinogradOutput { tile, height, width }, m) = (&node.op, node.inputs[0]) else {
            return internal("an output transform without squares");
        };
        let (tile, height, width) = (*tile, height.clone(), width.clone());
        let shape = self.graph.ty(m).shape.clone();
        let each = [shape[1].clone(), shape[2].clone()];
        let (whole, rests) = cut(&height, tile)?;
        self.share_loads = true;
        self.for_shared(&each, &mut |cx, outer| {
            let rows = |cx: &mut Self, rows: usize| {
                cx.scope(|cx| cx.output_row(m, tile, rows, &width, outer.clone()))
            };
            // The last row of squares, if it is cut.
            let mut last = vec![];
            for (rest, condition) in &rests {
                let own = rows(cx, *rest)?;
                last = match condition {
                    Some(condition) => {
                        vec![Stmt::If { condition: condition.clone(), then: own, otherwise: last }]
                    }
                    None => own,
                };
            }
            if whole == Dim::ZERO {
                last.into_iter().for_each(|stmt| cx.push(stmt));
                return Ok(());
            }
            let then = rows(cx, tile)?;
            if rests.is_empty() {
                then.into_iter().for_each(|stmt| cx.push(stmt));
                return Ok(());
            }
            let condition = Expr::compare(
                CompareFn::Lt,
                Expr::Index(outer[1].clone()),
                Expr::Index(Index::dim(whole.clone())),
            );
            cx.push(Stmt::If { condition, then, otherwise: last });
            Ok(())
        })?;
        self.finish();
        Ok(())
    }

    /// A row of squares; the first `rows` rows of results count.
    fn output_row(
        &mut self,
        m: ValueId,
        tile: usize,
        rows: usize,
        width: &Dim,
        outer: Vec<Index>,
    ) -> Result<()> {
        let (whole, rests) = cut(width, tile)?;
        if whole != Dim::ZERO {
            self.output_squares(m, tile, [rows, tile], [&Dim::ZERO, &whole], &outer)?;
        }
        for (columns, condition) in rests {
            let squares =
                |cx: &mut Self| cx.output_squares(m, tile, [rows, columns], [&whole, &Dim::ONE], &outer);
            match condition {
                Some(condition) => {
                    let then = self.scope(squares)?;
                    self.push(Stmt::If { condition, then, otherwise: vec![] });
                }
                None => squares(self)?,
            }
        }
        Ok(())
    }

    /// `[first, count]` squares of a row; `kept` rows and columns of results count.
    fn output_squares(
        &mut self,
        m: ValueId,
        tile: usize,
        kept: [usize; 2],
        [first, count]: [&Dim; 2],
        outer: &[Index],
    ) -> Result<()> {
        let TensorType { dtype, shape } = self.graph.ty(m).clone();
        let Some(matrices) = matrices(tile, dtype.is_float()) else {
            return internal(format!("tiles of {tile}"));
        };
        let quotient = matrices.quotient();
        let out = self.node_output(self.group.anchor);
        let inner = [count.clone(), shape[4].clone()];
        let size = tile + KERNEL - 1;
        self.squares(&inner, &mut |cx, inner| {
            let square = inner[0].add_dim(first);
            let mut load = |cx: &mut Self, row: usize, column: usize| {
                let at = Index::int((row * size + column) as i64);
                let index = [at, outer[0].clone(), outer[1].clone(), square.clone(), inner[1].clone()];
                let value = cx.expr_at(m, &index)?;
                Ok(cx.bind("m", value))
            };
            let mut store = |cx: &mut Self, row: usize, column: usize, value: Expr| {
                if row >= kept[0] || column >= kept[1] {
                    return Ok(());
                }
                let y = outer[1].scale(&Dim::from(tile)).add(&Index::int(row as i64));
                let x = square.scale(&Dim::from(tile)).add(&Index::int(column as i64));
                let value = if dtype.is_float() { value } else { divided(value, quotient) };
                cx.overrides.insert(out, Override::Expr(value));
                cx.store_outputs(&[outer[0].clone(), y, x, inner[1].clone()])
            };
            cx.both_sides(&matrices.output, 1, &mut load, &mut store)
        })
    }

    /// Loops over `[squares of a row, channels]`, channels in vectors.
    fn squares(
        &mut self,
        shape: &[Dim],
        fill: &mut dyn FnMut(&mut Self, &[Index]) -> Result<()>,
    ) -> Result<()> {
        let (mut nest, index) = Nest::over(&mut self.kernel, shape);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        nest.body = self.scope(|cx| fill(cx, &index))?;
        let stmts = nest.vectorize(&mut self.kernel, self.core, self.group.settings.goal);
        stmts.into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    /// `M x M^T` of a square `x`, whose elements `load` gives by their row and column; `store` gets the results, row by row. The
    /// rows are computed in `passes` parts.
    fn both_sides(
        &mut self,
        matrix: &Matrix,
        passes: usize,
        load: &mut dyn FnMut(&mut Self, usize, usize) -> Result<Expr>,
        store: &mut dyn FnMut(&mut Self, usize, usize, Expr) -> Result<()>,
    ) -> Result<()> {
        let part = matrix.len() / passes;
        for first in (0..matrix.len()).step_by(part) {
            self.rows_of_both_sides(matrix, first..first + part, load, store)?;
        }
        Ok(())
    }

    /// Some rows of `M x M^T`.
    fn rows_of_both_sides(
        &mut self,
        matrix: &Matrix,
        which: Range<usize>,
        load: &mut dyn FnMut(&mut Self, usize, usize) -> Result<Expr>,
        store: &mut dyn FnMut(&mut Self, usize, usize, Expr) -> Result<()>,
    ) -> Result<()> {
        let size = matrix[0].len();
        let own: Matrix = matrix[which.clone()].to_vec();
        let needed = |row: usize| own.iter().any(|factors| factors[row] != 0.0);
        let mut rows = vec![Vec::with_capacity(size); own.len()];
        for column in 0..size {
            let mut values = vec![None; size];
            for (row, value) in values.iter_mut().enumerate().filter(|(row, _)| needed(*row)) {
                *value = Some(load(self, row, column)?);
            }
            // What has no factor is not read.
            let dtype = values.iter().flatten().next().map_or(DType::F32, |value| self.kernel.dtype(value));
            let values: Vec<Expr> =
                values.into_iter().map(|value| value.unwrap_or_else(|| Expr::constant(dtype, 0.0))).collect();
            for (row, value) in rows.iter_mut().zip(self.times(&own, &values)) {
                row.push(value);
            }
        }
        for (row, values) in which.zip(&rows) {
            for (column, value) in self.times(matrix, values).into_iter().enumerate() {
                store(self, row, column, value)?;
            }
        }
        Ok(())
    }

    /// A matrix times a vector. The interpolation points come in pairs `a, -a`: two rows of the input's matrix, or two
    /// columns of the output's, that differ in some signs only, and share their parts.
    fn times(&mut self, matrix: &Matrix, x: &[Expr]) -> Vec<Expr> {
        let mut values = x.to_vec();
        let mut matrix = matrix.clone();
        let mut column = 1;
        while column < x.len() {
            let pair = matrix.iter().all(|row| row[column - 1].abs() == row[column].abs());
            if !pair || matrix.iter().all(|row| row[column - 1] == row[column]) {
                column += 1;
                continue;
            }
            // f*a + f*b is f times the sum, f*a - f*b is f times the difference.
            let (a, b) = (values[column - 1].clone(), values[column].clone());
            values[column - 1] = self.part(Expr::binary(BinaryFn::Add, a.clone(), b.clone()));
            values[column] = self.part(Expr::binary(BinaryFn::Sub, a, b));
            for row in &mut matrix {
                let factor = row[column - 1];
                let same = factor == row[column];
                (row[column - 1], row[column]) = if same { (factor, 0.0) } else { (0.0, factor) };
            }
            column += 2;
        }
        let mut known: HashMap<usize, Expr> = HashMap::new();
        for at in 1..matrix.len() {
            let (upper, lower) = (&matrix[at - 1], &matrix[at]);
            let pair = upper.iter().zip(lower).all(|(a, b)| a.abs() == b.abs());
            if known.contains_key(&(at - 1)) || !pair || upper == lower {
                continue;
            }
            let same: Vec<f64> =
                upper.iter().zip(lower).map(|(a, b)| if a == b { *a } else { 0.0 }).collect();
            let other: Vec<f64> =
                upper.iter().zip(lower).map(|(a, b)| if a == b { 0.0 } else { *a }).collect();
            let (same, other) = (self.dot(&same, &values), self.dot(&other, &values));
            let sum = Expr::binary(BinaryFn::Add, same.clone(), other.clone());
            known.insert(at - 1, self.part(sum));
            known.insert(at, self.part(Expr::binary(BinaryFn::Sub, same, other)));
        }
        (0..matrix.len())
            .map(|at| known.remove(&at).unwrap_or_else(|| self.dot(&matrix[at], &values)))
            .collect()
    }

    fn part(&mut self, value: Expr) -> Expr {
        self.bind("t", value)
    }

    /// The sum of `row[i] * x[i]`, terms without a factor first.
    fn dot(&mut self, row: &[f64], x: &[Expr]) -> Expr {
        let mut terms: Vec<(f64, &Expr)> =
            row.iter().copied().zip(x).filter(|(factor, _)| *factor != 0.0).collect();
        terms.sort_by_key(|(factor, _)| (*factor != 1.0, factor.abs() != 1.0));
        let dtype = x.first().map_or(DType::F32, |x| self.kernel.dtype(x));
        let mut sum: Option<Expr> = None;
        for (factor, x) in terms {
            let by = Expr::constant(dtype, factor);
            let next = match (sum, factor) {
                (None, 1.0) => x.clone(),
                (None, _) => Expr::binary(BinaryFn::Mul, x.clone(), by),
                (Some(sum), 1.0) => Expr::binary(BinaryFn::Add, sum, x.clone()),
                (Some(sum), -1.0) => Expr::binary(BinaryFn::Sub, sum, x.clone()),
                (Some(sum), _) if dtype.is_float() => Expr::fma(x.clone(), by, sum),
                (Some(sum), _) => {
                    Expr::binary(BinaryFn::Add, sum, Expr::binary(BinaryFn::Mul, x.clone(), by))
                }
            };
            sum = Some(next);
        }
        let sum = sum.unwrap_or_else(|| Expr::constant(dtype, 0.0));
        self.part(sum)
    }
}

/// Results in a tile that is cut, and the condition for it where the run decides.
type Rest = (usize, Option<Expr>);

/// How many tiles results along an axis fill, and what may be left of the one behind them. Branches do not go into vectors, so there is
/// code for each rest.
fn cut(results: &Dim, tile: usize) -> Result<(Dim, Vec<Rest>)> {
    let by = Dim::from(tile);
    let (Some(whole), Some(rest)) = (results.floor_div(&by), results.modulo(&by)) else {
        return internal(format!("tiles of {tile}"));
    };
    let rests = match rest.as_const() {
        Some(0) => vec![],
        Some(rest) => vec![(rest as usize, None)],
        None => (1..tile)
            .map(|own| {
                let own_rest = Expr::Index(Index::int(own as i64));
                let condition = Expr::compare(CompareFn::Eq, Expr::Index(Index::dim(rest.clone())), own_rest);
                (own, Some(condition))
            })
            .collect(),
    };
    Ok((whole, rests))
}

/// An i32 divided by the square of the scale.
fn divided(value: Expr, Quotient { inverse, shift }: Quotient) -> Expr {
    let int = |value: f64| Expr::constant(DType::I32, value);
    let odd = match inverse {
        1 => value,
        _ => Expr::binary(BinaryFn::Mul, value, int(inverse.into())),
    };
    Expr::binary(BinaryFn::Shr, odd, int(shift.into()))
}
