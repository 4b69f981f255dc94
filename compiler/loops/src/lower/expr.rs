//! Values as expressions of the index at which they are read.

use crate::lower::{Lowering, Override, clamped, internal};
use crate::{Expr, Index, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::axes::Source;
use onnxc_ir::graph::dim::row_major_strides;
use onnxc_ir::graph::{DType, Dim, MapFn, Node, TensorType, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};

/// Run-time checks of a kernel: the code that a failed [`Stmt::Check`] returns.
pub(super) const INDEX_OUT_OF_RANGE: u32 = 1;

impl Lowering<'_> {
    /// The element of `value` at `index` (one entry per axis).
    pub(super) fn expr_at(&mut self, value: ValueId, index: &[Index]) -> Result<Expr> {
        if let Some(known) = self.overrides.get(&value).cloned() {
            return Ok(match known {
                Override::Expr(expr) => expr,
                Override::Buffer(buf) => self.load(value, buf, index)?,
            });
        }
        if let Some(literal) = self.literal(value) {
            return Ok(literal);
        }
        let stored = self.inputs.contains(&value);
        if stored && !self.share_loads {
            return self.load(value, self.buffers[&value], index);
        }
        let key = (value, index.to_vec());
        if let Some(found) = self.memo.iter().rev().find_map(|scope| scope.get(&key)) {
            return Ok(found.clone());
        }
        let expr = match stored {
            true => self.load(value, self.buffers[&value], index)?,
            false => self.compute(value, index)?,
        };
        let shared = self.uses.get(&value).is_some_and(|&uses| uses > 1);
        if !stored && (!shared || matches!(expr, Expr::Load { .. } | Expr::Index(_))) {
            return Ok(expr);
        }
        let expr = self.bind("t", expr);
        self.memo.last_mut().expect("a scope is open").insert(key, expr.clone());
        Ok(expr)
    }

    /// A constant of one element.
    fn literal(&self, value: ValueId) -> Option<Expr> {
        let tensor = self.graph.constant_data(value)?;
        if tensor.len() != 1 || tensor.dtype.size() > 8 {
            return None;
        }
        let mut bits = [0u8; 8];
        bits[..tensor.data.len()].copy_from_slice(&tensor.data);
        Some(Expr::Const { dtype: tensor.dtype, bits: u64::from_le_bytes(bits) })
    }

    /// The index into an operand for the element of the result at `index`; `picks` are those that another operand gives, in order. Where
    /// only the run shows whether an axis has size 1 and is read at 0, its index is scaled by `min(size - 1, 1)`.
    pub(super) fn index_into(
        &self,
        node: &Node,
        operand: usize,
        index: &[Index],
        picks: Vec<Index>,
    ) -> Result<Vec<Index>> {
        let inputs: Vec<&TensorType> = node.inputs.iter().map(|&input| self.graph.ty(input)).collect();
        let shape = &inputs[operand].shape;
        let mut picks = picks.into_iter();
        let mut at = Vec::with_capacity(shape.len());
        for (size, source) in
            shape.iter().zip(node.op.sources(operand, &inputs, self.graph.ty(node.outputs[0])))
        {
            at.push(match source {
                Source::Along { offset, terms } => {
                    let mut terms = terms.iter().map(|&(axis, by)| index[axis].scale(&Dim::from(by)));
                    let first = terms.next().unwrap_or_else(Index::zero);
                    terms.fold(first, |sum, term| sum.add(&term)).add_dim(&offset)
                }
                Source::Repeated(axis) => index[axis].scale(&(size.clone() - Dim::ONE).min_dim(&Dim::ONE)),
                Source::Picked => match picks.next() {
                    Some(pick) => pick,
                    None => return internal(format!("{} picks too little", node.op.name())),
                },
                Source::All => return internal(format!("{} reads whole axes", node.op.name())),
            });
        }
        Ok(at)
    }

    /// The index in shape `from` of the element at `index` in shape `to`, both row-major. Runs of axes with equal
    /// products are treated on their own, which keeps most reshapes free of divisions.
    pub(super) fn reshape_index(&self, from: &[Dim], to: &[Dim], index: &[Index]) -> Vec<Index> {
        if from.contains(&Dim::ZERO) {
            // There is no element to find.
            return vec![Index::zero(); from.len()];
        }
        let extents = self.extent_fn();
        let mut out = Vec::with_capacity(from.len());
        let (mut a, mut b) = (0, 0);
        while a < from.len() {
            let (a0, b0) = (a, b);
            let mut left = from[a].clone();
            a += 1;
            let mut right = Dim::ONE;
            if b < to.len() {
                right = to[b].clone();
                b += 1;
            }
            while left != right {
                // Grow the side that is behind; symbolic dims that do not compare grow both to the end.
                let behind = (right.clone() - left.clone()).bounds();
                if behind.0.is_some_and(|low| low > 0) && a < from.len() {
                    left = left * from[a].clone();
                    a += 1;
                } else if b < to.len() {
                    right = right * to[b].clone();
                    b += 1;
                } else if a < from.len() {
                    left = left * from[a].clone();
                    a += 1;
                } else {
                    break;
                }
            }
            let mut flat = Index::row_major(&index[b0..b], &to[b0..b]);
            let strides = row_major_strides(&from[a0..a]);
            for (at, (dim, stride)) in from[a0..a].iter().zip(&strides).enumerate() {
                if *dim == Dim::ONE {
                    out.push(Index::zero());
                } else if at + 1 == a - a0 {
                    out.push(flat.clone());
                } else {
                    out.push(flat.floor_div(stride, &extents));
                    flat = flat.modulo(stride, &extents);
                }
            }
        }
        out
    }

    /// A data-dependent index: negative counts from the end, out of range ends the kernel.
    pub(super) fn checked_index(&mut self, pick: Expr, extent: &Dim) -> Index {
        let is_byte = self.kernel.dtype(&pick) == DType::U8;
        let pick = if self.kernel.dtype(&pick) == DType::I64 { pick } else { Expr::cast(DType::I64, pick) };
        if is_byte && extent.as_const().is_some_and(|extent| extent > u8::MAX.into()) {
            return self.as_index(pick);
        }
        if let Expr::Index(index) = &pick
            && index.below(extent, &self.extent_fn())
        {
            return index.clone();
        }
        let pick = self.bind("pick", pick);
        let size = Expr::Index(Index::dim(extent.clone()));
        let zero = Expr::constant(DType::I64, 0.0);
        let negative = Expr::compare(CompareFn::Lt, pick.clone(), zero.clone());
        let wrapped = Expr::select(negative, Expr::binary(BinaryFn::Add, pick.clone(), size.clone()), pick);
        let wrapped = self.bind("at", wrapped);
        let inside = Expr::binary(
            BinaryFn::And,
            Expr::compare(CompareFn::Ge, wrapped.clone(), zero),
            Expr::compare(CompareFn::Lt, wrapped.clone(), size),
        );
        self.push(Stmt::Check { condition: inside, code: INDEX_OUT_OF_RANGE });
        self.as_index(wrapped)
    }

    /// `condition ? index : 0`, for a read that must stay inside the buffer for any condition.
    fn guarded(&mut self, condition: &Expr, index: &Index) -> Index {
        let zero = Expr::constant(DType::I64, 0.0);
        let expr = Expr::select(condition.clone(), Expr::Index(index.clone()), zero);
        self.as_index(expr)
    }

    /// Whether `0 <= index < extent`, leaving out what is always true; `None` where all is.
    fn inside(&self, index: &Index, extent: &Dim, check_low: bool, check_high: bool) -> Option<Expr> {
        let value = || Expr::Index(index.clone());
        let low = check_low.then(|| Expr::compare(CompareFn::Ge, value(), Expr::constant(DType::I64, 0.0)));
        let high = check_high
            .then(|| Expr::compare(CompareFn::Lt, value(), Expr::Index(Index::dim(extent.clone()))));
        match (low, high) {
            (Some(low), Some(high)) => Some(Expr::binary(BinaryFn::And, low, high)),
            (low, high) => low.or(high),
        }
    }

    /// The element of `x` at `shifted`, or the fill where that is outside. The first element of `x` along the axis is read as well then:
    /// there must be one.
    pub(super) fn padded(
        &mut self,
        [x, fill]: [ValueId; 2],
        [lo, hi]: [&[Dim]; 2],
        shifted: &[Index],
    ) -> Result<Expr> {
        let shape = self.graph.ty(x).shape.clone();
        let mut condition: Option<Expr> = None;
        let is_inside = |cx: &Self, axis: usize| {
            lo[axis] == Dim::ZERO && hi[axis] == Dim::ZERO
                || shifted[axis].below(&shape[axis], &cx.extent_fn())
        };
        for (axis, at) in shifted.iter().enumerate() {
            if is_inside(self, axis) {
                continue;
            }
            self.must_have_elements(x, axis)?;
            let test = self.inside(at, &shape[axis], lo[axis] != Dim::ZERO, true);
            condition = match (condition, test) {
                (Some(a), Some(b)) => Some(Expr::binary(BinaryFn::And, a, b)),
                (a, b) => a.or(b),
            };
        }
        let Some(condition) = condition else { return self.expr_at(x, shifted) };
        let condition = self.bind("inside", condition);
        let mut safe = Vec::with_capacity(shifted.len());
        for (axis, at) in shifted.iter().enumerate() {
            safe.push(if is_inside(self, axis) { at.clone() } else { self.guarded(&condition, at) });
        }
        let inner = self.expr_at(x, &safe)?;
        let outer = self.expr_at(fill, &[])?;
        Ok(Expr::select(condition, inner, outer))
    }

    /// What reads a value also where its element is not taken is a kernel of its own if there may be none.
    fn must_have_elements(&self, value: ValueId, axis: usize) -> Result<()> {
        match self.graph.ty(value).shape[axis].bounds() {
            (Some(1..), _) => Ok(()),
            _ => internal(format!("{value} may have no element along axis {axis} where one is read")),
        }
    }

    pub(super) fn concatenated(&mut self, inputs: &[ValueId], axis: usize, index: &[Index]) -> Result<Expr> {
        let mut start = Dim::ZERO;
        let mut result: Option<Expr> = None;
        for &input in inputs {
            let size = self.graph.ty(input).shape[axis].clone();
            self.must_have_elements(input, axis)?;
            let mut at = index.to_vec();
            at[axis] = at[axis].add_dim(&-start.clone());
            let condition = self.inside(&at[axis], &size, true, true).expect("both bounds are tested");
            let condition = self.bind("here", condition);
            at[axis] = self.guarded(&condition, &at[axis].clone());
            let element = self.expr_at(input, &at)?;
            result = Some(match result {
                None => element,
                Some(rest) => Expr::select(condition, element, rest),
            });
            start = start + size;
        }
        result.map_or_else(|| internal("a concatenation of nothing"), Ok)
    }
}

/// `values[index]` for a small list.
pub(super) fn pick(values: &[Dim], index: &Index) -> Expr {
    let values: Vec<Index> = values.iter().map(|dim| Index::dim(dim.clone())).collect();
    pick_index(&values, index)
}

/// The same of values that differ from one iteration to the next.
pub(super) fn pick_index(values: &[Index], index: &Index) -> Expr {
    let at = |value: &Index| Expr::Index(value.clone());
    if let Some(known) = index.as_int().and_then(|i| values.get(usize::try_from(i).ok()?)) {
        return at(known);
    }
    let last = values.last().map_or_else(|| Expr::constant(DType::I64, 0.0), at);
    values.iter().enumerate().rev().skip(1).fold(last, |rest, (position, value)| {
        let here = Expr::compare(
            CompareFn::Eq,
            Expr::Index(index.clone()),
            Expr::constant(DType::I64, position as f64),
        );
        Expr::select(here, at(value), rest)
    })
}

/// One element of a map from its arguments.
pub(super) fn apply(function: MapFn, arguments: Vec<Expr>) -> Expr {
    if let Some(expr) = clamped::apply(function, &arguments) {
        return expr;
    }
    Expr::apply(function, arguments)
}
