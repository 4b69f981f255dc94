//! Perfect loop nests and their transforms: fuse, split, reorder, unroll, hoist, vectorize. Lowering builds a nest
//! over a shape with a naive body; these turn it into the loops that run. A transform that would change what the
//! nest computes, bit for bit, gives `None` and changes nothing.

mod squares;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use crate::{Buf, Expr, Index, Kernel, LoopKind, Stmt, Term, Var, math, visit};
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::CompareFn;
use onnxc_machine::target::{Core, Goal};

/// Most turns of an innermost loop without vectors that are written out.
const WRITTEN_OUT: i64 = 4;

/// One loop of a nest: `0..extent`.
#[derive(Clone, Debug)]
pub struct Axis {
    pub var: Var,
    pub extent: Dim,
    pub kind: LoopKind,
}

/// A perfect nest, outermost axis first.
#[derive(Clone, Debug)]
pub struct Nest {
    pub axes: Vec<Axis>,
    pub body: Vec<Stmt>,
}

impl Nest {
    /// Serial loops over axes of a shape; axes of extent 1 have no loop. `index` gives the nest's index of
    /// each axis of the shape.
    pub fn over(kernel: &mut Kernel, shape: &[Dim]) -> (Nest, Vec<Index>) {
        let mut axes = Vec::new();
        let mut index = Vec::with_capacity(shape.len());
        for (at, extent) in shape.iter().enumerate() {
            if *extent == Dim::ONE {
                index.push(Index::zero());
                continue;
            }
            let var = kernel.loop_var(&format!("x{at}"));
            axes.push(Axis { var, extent: extent.clone(), kind: LoopKind::Serial });
            index.push(Index::var(var));
        }
        (Nest { axes, body: vec![] }, index)
    }

    /// The perfect nest that a loop is the outside of: loops from 0 with step 1.
    pub fn of(stmt: Stmt) -> Nest {
        let mut nest = Nest { axes: vec![], body: vec![stmt] };
        while let [Stmt::For { var, lo, hi, step: 1, kind, .. }] = nest.body.as_slice()
            && let (Some(0), Some(extent)) = (lo.as_int(), hi.as_dim())
        {
            nest.axes.push(Axis { var: *var, extent: extent.clone(), kind: *kind });
            let Some(Stmt::For { body, .. }) = nest.body.pop() else { unreachable!("matched above") };
            nest.body = body;
        }
        nest
    }

    /// Splits an axis in two: blocks of `factor`, and the steps of a block. The factor must divide the extent.
    pub fn split(&mut self, kernel: &mut Kernel, at: usize, factor: usize) -> Option<()> {
        let size = Dim::from(factor);
        let axis = self.axes.get_mut(at).filter(|_| factor > 0)?;
        let blocks = axis.extent.exact_div(&size)?;
        let (old, block, step) = (axis.var, kernel.loop_var("block"), kernel.loop_var("step"));
        let inner = Axis { var: step, extent: size.clone(), kind: axis.kind };
        (axis.var, axis.extent) = (block, blocks);
        if axis.kind == LoopKind::Vector {
            // The lanes are the steps of a block.
            axis.kind = LoopKind::Serial;
        }
        self.axes.insert(at + 1, inner);
        let position = Index::var(block).scale(&size).add(&Index::var(step));
        visit::substitute(&mut self.body, old, &position);
        Some(())
    }

    /// Splits the innermost axis where a reshape divides it, as `floordiv(i, 28)` and `mod(i, 28)` do, if the steps of a block run
    /// in vectors then. `extents` are those of all variables around, which the new ones join.
    pub fn split_divisions(&mut self, kernel: &mut Kernel, core: &Core, extents: &mut HashMap<Var, Dim>) {
        if self.division().is_none() {
            return;
        }
        let mut nest = self.clone();
        while let Some(factor) = nest.division()
            && let Some(inner) = nest.axes.len().checked_sub(1)
            && nest.split(kernel, inner, factor).is_some()
        {
            extents.extend(nest.axes[inner..].iter().map(|axis| (axis.var, axis.extent.clone())));
            let known = |var: Var| extents.get(&var).cloned();
            visit::indices_mut(&mut nest.body, &mut |index| {
                if let Some(simpler) = index.rewrite(&mut |var| Some(Index::var(var)), &known) {
                    *index = simpler;
                }
            });
        }
        if let Some(Axis { var, extent, .. }) = nest.axes.last()
            && nest.axes.len() > self.axes.len()
            && fills_vectors(extent, vector_lanes(kernel, core, *var, &nest.body))
        {
            *self = nest;
        }
    }

    /// The least divisor of the innermost axis's extent by which an index divides it: the steps of a block.
    fn division(&mut self) -> Option<usize> {
        let Axis { var, extent, .. } = self.axes.last()?.clone();
        let mut found = Vec::new();
        visit::indices_mut(&mut self.body, &mut |index| divisions(index, var, &mut found));
        let splits =
            |steps: &i64| *steps > 1 && extent.exact_div(&Dim::from(*steps)).is_some_and(|n| n != Dim::ONE);
        found.into_iter().filter(splits).min().map(|steps| steps as usize)
    }

    /// Has an axis of constant extent written out when code is generated.
    pub fn unroll(&mut self, at: usize) -> Option<()> {
        let axis = self.axes.get_mut(at)?;
        let fits = axis.kind == LoopKind::Serial && axis.extent.is_const();
        fits.then(|| axis.kind = LoopKind::Unrolled)
    }

    /// The nest as statements, the innermost axis in vectors where its accesses are contiguous and its types have
    /// vectors, else written out where it is short; after what does not depend on it. What is transposed is turned in squares.
    pub fn vectorize(mut self, kernel: &mut Kernel, core: &Core, goal: Goal) -> Vec<Stmt> {
        if let Some(squares) = self.in_squares(kernel, core, goal) {
            return squares;
        }
        let Some(mut inner) = self.axes.pop() else { return self.body };
        let (outer, body) = hoist(kernel, inner.var, std::mem::take(&mut self.body));
        let lanes = vector_lanes(kernel, core, inner.var, &body);
        let extent = inner.extent.clone();
        let loops = if fills_vectors(&extent, lanes) {
            split_vector(kernel, inner.var, &extent, lanes, lanes, &body)
        } else {
            let is_short = extent.as_const().is_some_and(|extent| (2..=WRITTEN_OUT).contains(&extent));
            if is_short && goal == Goal::Speed && inner.kind == LoopKind::Serial {
                inner.kind = LoopKind::Unrolled;
            }
            Nest { axes: vec![inner], body }.into_stmts()
        };
        self.body = with_hoisted(&extent, outer, loops);
        self.into_stmts()
    }

    /// Whether axes `at` and `at + 1` count through every index of the body as one variable does.
    fn can_fuse(&self, at: usize) -> bool {
        let (outer, inner) = (&self.axes[at], &self.axes[at + 1]);
        let mut fits = outer.kind == inner.kind;
        let mut body = self.body.clone();
        visit::indices_mut(&mut body, &mut |index| {
            fits &= match (index.coefficient(outer.var), index.coefficient(inner.var)) {
                (Some(a), Some(b)) => a == b * inner.extent.clone(),
                _ => false,
            };
        });
        fits
    }

    /// Fuses neighbouring axes wherever the body allows, leaving at least `keep` outermost axes alone.
    pub fn fuse_all(&mut self, keep: usize) {
        let mut at = self.axes.len().saturating_sub(1);
        while at > keep {
            at -= 1;
            if self.can_fuse(at) {
                self.fuse(at);
            }
        }
    }

    fn fuse(&mut self, at: usize) {
        let inner = self.axes.remove(at + 1);
        let outer = &mut self.axes[at];
        // outer*inner.extent + inner is the fused variable: the inner one vanishes.
        outer.extent = outer.extent.clone() * inner.extent.clone();
        let (outer, inner_var) = (outer.var, inner.var);
        visit::indices_mut(&mut self.body, &mut |index| {
            if let Some(c) = index.coefficient(inner_var) {
                let mut kept = index.substitute(inner_var, &Index::zero());
                kept = kept.substitute(outer, &Index::zero());
                *index = kept.add(&Index::var(outer).scale(&c));
            }
        });
    }

    /// Makes one axis of the `count` outermost ones. Where the body does not count through them as one variable does, it divides.
    /// `extents` are those of all variables around, which the new ones join.
    pub fn flatten(&mut self, kernel: &mut Kernel, count: usize, extents: &mut HashMap<Var, Dim>) {
        for at in (1..count).rev().map(|inner| inner - 1) {
            if self.can_fuse(at) {
                self.fuse(at);
                extents.insert(self.axes[at].var, self.axes[at].extent.clone());
                continue;
            }
            let inner = self.axes.remove(at + 1);
            let outer = &mut self.axes[at];
            let row = kernel.loop_var("row");
            let (all, known) = (Index::var(row), |_| None);
            let parts = [all.floor_div(&inner.extent, &known), all.modulo(&inner.extent, &known)];
            for (axis, value) in [&*outer, &inner].into_iter().zip(parts).rev() {
                let var = kernel.let_var("at", DType::I64);
                extents.insert(var, axis.extent.clone());
                visit::substitute(&mut self.body, axis.var, &Index::var(var));
                self.body.insert(0, Stmt::Let { var, value: Expr::Index(value) });
            }
            outer.extent = outer.extent.clone() * inner.extent;
            outer.var = row;
            extents.insert(outer.var, outer.extent.clone());
        }
    }

    /// The nest as statements.
    pub fn into_stmts(self) -> Vec<Stmt> {
        let mut body = self.body;
        for axis in self.axes.into_iter().rev() {
            body = vec![Stmt::For {
                var: axis.var,
                lo: Index::zero(),
                hi: Index::dim(axis.extent),
                step: 1,
                kind: axis.kind,
                body,
            }];
        }
        body
    }
}

/// Lanes of the vectors that a loop runs in, the rest behind the first ones in the others: wide vectors leave long rests.
pub fn widths(lanes: usize) -> Vec<usize> {
    if lanes > 8 { vec![lanes, lanes / 2, lanes / 4] } else { vec![lanes] }
}

/// Whether a loop of `extent` steps that can run in `lanes` lanes fills a vector.
fn fills_vectors(extent: &Dim, lanes: usize) -> bool {
    let least = widths(lanes).last().copied().unwrap_or(lanes) as i64;
    lanes > 1 && extent.as_const().is_none_or(|extent| extent >= least)
}

/// `for var in 0..extent { body }` as a serial loop of vector chunks, then the rest: single vectors or narrower ones,
/// then scalars.
pub fn split_vector(
    kernel: &mut Kernel,
    var: Var,
    extent: &Dim,
    chunk: usize,
    lanes: usize,
    body: &[Stmt],
) -> Vec<Stmt> {
    let mut out = Vec::new();
    let mut start = Dim::ZERO;
    let widths = if chunk > lanes { vec![chunk, lanes] } else { widths(lanes) };
    for width in widths {
        let size = Dim::from(width);
        let rest = extent.clone() - start.clone();
        let count = rest.floor_div(&size).expect("a vector is not empty");
        if count == Dim::ZERO {
            continue;
        }
        let (block, lane) = (kernel.loop_var("vo"), kernel.loop_var("vi"));
        let mut inner = body.to_vec();
        let position = Index::var(block).scale(&size).add(&Index::var(lane)).add_dim(&start);
        let position = if count == Dim::ONE { Index::var(lane).add_dim(&start) } else { position };
        rename_lets(kernel, &mut inner);
        visit::substitute(&mut inner, var, &position);
        let vector = Stmt::For {
            var: lane,
            lo: Index::zero(),
            hi: Index::int(width as i64),
            step: 1,
            kind: LoopKind::Vector,
            body: inner,
        };
        if count == Dim::ONE {
            out.push(vector);
        } else {
            out.push(Stmt::For {
                var: block,
                lo: Index::zero(),
                hi: Index::dim(count.clone()),
                step: 1,
                kind: LoopKind::Serial,
                body: vec![vector],
            });
        }
        start = start + count * size;
    }
    if start != *extent {
        let mut inner = body.to_vec();
        rename_lets(kernel, &mut inner);
        let tail = kernel.loop_var("tail");
        visit::substitute(&mut inner, var, &Index::var(tail));
        out.push(Stmt::For {
            var: tail,
            lo: Index::dim(start),
            hi: Index::dim(extent.clone()),
            step: 1,
            kind: LoopKind::Serial,
            body: inner,
        });
    }
    out
}

/// How many steps of a variable it takes from one quotient to the next, for each division of it.
fn divisions(index: &Index, var: Var, found: &mut Vec<i64>) {
    for (term, _) in &index.terms {
        let (Term::FloorDiv(x, by) | Term::Mod(x, by)) = term else { continue };
        match x.coefficient(var) {
            Some(step) => found.extend(by.exact_div(&step).and_then(|steps| steps.as_const())),
            None => divisions(x, var, found),
        }
    }
}

/// Moves what does not depend on the loop variable `var` out of a loop body: whole lets and checks, and the largest
/// invariant parts of other expressions. Gives (statements before the loop, body), which [`with_hoisted`] joins.
pub fn hoist(kernel: &mut Kernel, var: Var, body: Vec<Stmt>) -> (Vec<Stmt>, Vec<Stmt>) {
    let mut varying = Varying { vars: HashSet::from([var]), stored: visit::stored(&body) };
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for mut stmt in body {
        match &mut stmt {
            Stmt::Let { var, value } => {
                if !depends(value, &varying) {
                    outer.push(stmt);
                    continue;
                }
                varying.vars.insert(*var);
                hoist_parts(kernel, value, &varying, &mut outer);
            }
            Stmt::Check { condition, .. } => {
                if !depends(condition, &varying) {
                    outer.push(stmt);
                    continue;
                }
            }
            Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } | Stmt::Set { value, .. } => {
                hoist_parts(kernel, value, &varying, &mut outer);
            }
            Stmt::For { .. } | Stmt::If { .. } | Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
        }
        inner.push(stmt);
    }
    (outer, inner)
}

/// A loop over `0..extent` after what [`hoist`] moved out of it. If there is no iteration, an element that all of them
/// load need not exist, and what all of them check need not hold.
pub fn with_hoisted(extent: &Dim, mut outer: Vec<Stmt>, loops: Vec<Stmt>) -> Vec<Stmt> {
    let mut speculates = outer.iter().any(|stmt| matches!(stmt, Stmt::Check { .. }));
    visit::exprs(&outer, &mut |expr| speculates |= expr.reads().is_some());
    outer.extend(loops);
    if speculates { where_any(extent, outer) } else { outer }
}

/// Statements that run only if `0..extent` holds an index.
pub fn where_any(extent: &Dim, stmts: Vec<Stmt>) -> Vec<Stmt> {
    match extent.bounds() {
        (Some(1..), _) => stmts,
        (_, Some(..=0)) => vec![],
        _ => {
            let (zero, extent) = (Expr::Index(Index::zero()), Expr::Index(Index::dim(extent.clone())));
            let condition = Expr::compare(CompareFn::Lt, zero, extent);
            vec![Stmt::If { condition, then: stmts, otherwise: vec![] }]
        }
    }
}

/// What may change from one iteration of a loop to the next.
struct Varying {
    vars: HashSet<Var>,
    /// Buffers that the loop stores to.
    stored: HashSet<Buf>,
}

fn hoist_parts(kernel: &mut Kernel, expr: &mut Expr, varying: &Varying, outer: &mut Vec<Stmt>) {
    if matches!(expr, Expr::Const { .. } | Expr::Var(_) | Expr::Get { .. }) {
        return;
    }
    if depends(expr, varying) {
        for child in expr.operands_mut() {
            hoist_parts(kernel, child, varying, outer);
        }
        return;
    }
    let dtype = kernel.dtype(expr);
    let var = kernel.let_var("h", dtype);
    let value = std::mem::replace(expr, Expr::Var(var));
    outer.push(Stmt::Let { var, value });
}

fn index_depends(index: &Index, varying: &HashSet<Var>) -> bool {
    visit::any_term(index, &|term| matches!(term, Term::Var(var) if varying.contains(var)))
}

/// Whether an expression's value can change from one iteration to the next (registers always can).
fn depends(expr: &Expr, varying: &Varying) -> bool {
    match expr {
        Expr::Var(var) => varying.vars.contains(var),
        Expr::Get { .. } => true,
        _ => {
            expr.reads().is_some_and(|reads| varying.stored.contains(&reads.buf))
                || expr.indices().into_iter().any(|index| index_depends(index, &varying.vars))
                || expr.operands().into_iter().any(|operand| depends(operand, varying))
        }
    }
}

/// Lanes in which a loop over `var` can run: its statements are straight-line, every access moves by one element
/// or none with `var`, and all values that change with it have types that the target has vectors of. 1 where it cannot.
///
/// For leaf kernels types may be mixed; the widest one determines the lanes, so that no value takes more than one register. Others have
/// vectors of one type at a time.
pub fn vector_lanes(kernel: &Kernel, core: &Core, var: Var, body: &[Stmt]) -> usize {
    let mut varying = Varying { vars: HashSet::from([var]), stored: HashSet::new() };
    let mut types = Types::new(core);
    let mut fits = true;
    let stores: Vec<(Buf, &Index)> = body
        .iter()
        .filter_map(|stmt| match stmt {
            Stmt::Store { buf, index, .. } => Some((*buf, index)),
            _ => None,
        })
        .collect();
    let step = |index: &Index| match index.coefficient(var) {
        Some(c) => c == Dim::ZERO || c == Dim::ONE,
        None => false,
    };
    for stmt in body {
        match stmt {
            Stmt::Let { var, value } if depends(value, &varying) => {
                varying.vars.insert(*var);
            }
            Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Accumulate { .. } | Stmt::Prefetch { .. } => {}
            Stmt::Store { buf, index, .. } => {
                types.add(kernel.buffers[*buf].dtype);
                fits &= index.coefficient(var) == Some(Dim::ONE);
            }
            Stmt::For { .. } | Stmt::If { .. } | Stmt::Check { .. } | Stmt::Tile(_) => fits = false,
        }
    }
    visit::exprs(body, &mut |expr| {
        if !depends(expr, &varying) {
            return;
        }
        match expr {
            Expr::Index(_) => fits = false,
            Expr::Load { buf, index } => {
                fits &= step(index) && (core.is_leaf() || kernel.buffers[*buf].dtype != DType::Bool);
                // What another lane stores would be seen by a scalar loop only.
                fits &= stores.iter().all(|(stored, at)| stored != buf || *at == index);
                fits &= !visit::any_term(
                    index,
                    &|term| matches!(term, Term::Var(v) if *v != var && varying.vars.contains(v)),
                );
            }
            // Neighbouring elements of one lane are not those of the next.
            _ => fits &= expr.reads().is_none(),
        }
        let own = kernel.dtype(expr);
        if own != DType::Bool {
            types.add(own);
        }
        if core.is_leaf() && math::needs_f64(expr, own) {
            types.add(DType::F64);
        }
    });
    if fits { types.lanes() } else { 1 }
}

/// The types of the values in a vector loop.
struct Types<'t> {
    core: &'t Core,
    first: Option<DType>,
    /// Of the type that has fewest.
    lanes: usize,
    mixed: bool,
}

impl Types<'_> {
    fn new(core: &Core) -> Types<'_> {
        Types { core, first: None, lanes: usize::MAX, mixed: false }
    }

    fn add(&mut self, dtype: DType) {
        // Bools are masks of any lanes, or bytes.
        let lanes = match dtype {
            DType::Bool if self.core.is_leaf() => self.core.lanes(4),
            _ => self.core.lanes_of(dtype),
        };
        // Floats of 16 bits are held as f32.
        let held = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        self.lanes = self.lanes.min(lanes);
        self.mixed |= *self.first.get_or_insert(held) != held;
    }

    fn lanes(&self) -> usize {
        match self.first {
            Some(_) if self.core.is_leaf() || !self.mixed => self.lanes,
            _ => 1,
        }
    }
}

/// Gives every let and loop variable bound in `body` a fresh name, so that a copy of a body is its own.
pub fn rename_lets(kernel: &mut Kernel, body: &mut [Stmt]) {
    let mut bound = Vec::new();
    collect_bound(body, &mut bound);
    for var in bound {
        let fresh = kernel.vars[var].clone();
        let fresh = kernel.vars.push(fresh);
        rename(body, var, fresh);
    }
}

fn collect_bound(body: &[Stmt], bound: &mut Vec<Var>) {
    for stmt in body {
        match stmt {
            Stmt::For { var, body, .. } => {
                bound.push(*var);
                collect_bound(body, bound);
            }
            Stmt::Let { var, .. } => bound.push(*var),
            Stmt::If { then, otherwise, .. } => {
                collect_bound(then, bound);
                collect_bound(otherwise, bound);
            }
            _ => {}
        }
    }
}

fn rename(body: &mut [Stmt], from: Var, to: Var) {
    visit::substitute(body, from, &Index::var(to));
    visit::exprs_mut(body, &mut |expr| {
        if let crate::Expr::Var(var) = expr
            && *var == from
        {
            *var = to;
        }
    });
    fn binders(body: &mut [Stmt], from: Var, to: Var) {
        for stmt in body {
            match stmt {
                Stmt::For { var, body, .. } => {
                    if *var == from {
                        *var = to;
                    }
                    binders(body, from, to);
                }
                Stmt::Let { var, .. } if *var == from => *var = to,
                Stmt::If { then, otherwise, .. } => {
                    binders(then, from, to);
                    binders(otherwise, from, to);
                }
                _ => {}
            }
        }
    }
    binders(body, from, to);
}
