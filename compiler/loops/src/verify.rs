//! The rules of the loop IR, checked. Lowering and the expansion of elementary functions keep them; back ends rely
//! on them.
//!
//! - Every buffer, local and variable that is named is declared; constants fit their type.
//! - A variable is bound once in the whole kernel, and used only after that, in the same block or inside it.
//! - Loop variables and variables in indices are i64. Steps are positive.
//! - Indices are canonical: terms sorted and distinct, no zero coefficients, no division of a constant by a
//!   constant, no divisor below 1.
//! - Operands have the types that `infer` asks of a map; `fma` and the elementary functions are of floats, logic is of
//!   bools. A value has the type of what it is stored to or bound to.
//! - Memory of the frame comes after all other buffers and has a constant length. Tiles fit the machine's, are set before they
//!   are read, and match in products.
//! - Conditions of `if` and `fail` are bools; the code of a failure is not 0.
//! - Buffers are loaded and stored as their access allows.
//! - A local has one index per axis, made of constants, variables of unrolled loops and the lane of the vector loop
//!   around it, and never outside the axis. Its last axis is a multiple of its lanes. It is set before it is read.
//! - A parallel loop is an outermost statement with step 1 and bounds without variables. Its iterations are independent:
//!   what they store, and what they load from buffers that they store to, lies at indices that depend on the
//!   loop's variable, and locals that they read are set in the same iteration.
//! - A vector loop has step 1 and a constant number of lanes. Its body has neither loops nor branches, and what it
//!   writes lies at an index that depends on the lane.
//! - An unrolled loop has constant bounds.
//! - An element that was loaded and then stored is not loaded again in the same straight line of statements: what was
//!   there before is lost, and what is there now has a name.
//!
//! Inside a loop that is known to run no iteration, nothing needs to depend on anything: strides vanish there.

mod tiles;

use std::collections::{HashMap, HashSet};

use crate::expr::{Reads, result_of};
use crate::tiles::Tile;
use crate::{Access, Buf, Expr, Index, Kernel, Local, LoopKind, Stmt, Term, Var, visit};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, MapFn};
use onnxc_ir::scalar::CompareFn;

/// The first rule that a kernel breaks, as an internal error.
pub fn verify(kernel: &Kernel) -> Result<()> {
    let (scope, bound, set, set_tiles) = (HashMap::new(), HashSet::new(), HashSet::new(), HashSet::new());
    let mut verifier = Verifier { kernel, scope, bound, set, set_tiles };
    verifier
        .locals()
        .and_then(|()| verifier.frames())
        .and_then(|()| verifier.tile_decls())
        .and_then(|()| verifier.block(&kernel.body, &Surroundings { top: true, ..Surroundings::default() }))
        .and_then(|()| Line::default().follow(&kernel.body))
        .map_err(|message| Error::internal(Stage::Loops, format!("kernel `{}`: {message}", kernel.name)))
}

/// What broke a rule, in words.
type Checked<T = ()> = std::result::Result<T, String>;

/// A variable in scope.
#[derive(Clone, Default)]
struct Bound {
    /// Smallest and largest value of a variable that code generation makes constant or a lane.
    range: Option<(i64, i64)>,
    /// Whether it differs between the lanes of the vector loop.
    lanes: bool,
    /// Whether it differs between the iterations of the parallel loop.
    threads: bool,
}

/// Where a statement stands.
#[derive(Clone, Default)]
struct Surroundings {
    top: bool,
    vector: bool,
    /// Buffers that the parallel loop around it stores to.
    parallel: Option<HashSet<Buf>>,
    /// The variable of that loop, and whether only one of its iterations comes here.
    iteration: Option<Var>,
    alone: bool,
    /// Inside a loop without iterations.
    dead: bool,
}

impl Surroundings {
    /// Whether a condition holds in one iteration of the parallel loop at most: its variable is a constant.
    fn is_one_iteration(&self, condition: &Expr) -> bool {
        let Expr::Compare { op: CompareFn::Eq, a, b } = condition else { return false };
        let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return false };
        let variable = |index: &Index| self.iteration.is_some_and(|var| *index == Index::var(var));
        let fixed = |index: &Index| index.as_dim().is_some();
        variable(a) && fixed(b) || variable(b) && fixed(a)
    }
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    scope: HashMap<Var, Bound>,
    /// Every variable bound so far, in scope or not.
    bound: HashSet<Var>,
    /// Locals that hold a value.
    set: HashSet<Local>,
    /// Tiles that do.
    set_tiles: HashSet<Tile>,
}

impl Verifier<'_> {
    fn locals(&self) -> Checked {
        for (local, decl) in self.kernel.locals.iter() {
            let last = decl.extents.last().copied().unwrap_or(1);
            if decl.lanes == 0 || last % decl.lanes != 0 {
                return Err(format!("local {local} of {:?} in vectors of {}", decl.extents, decl.lanes));
            }
        }
        Ok(())
    }

    fn frames(&self) -> Checked {
        let mut frames = false;
        for (buf, buffer) in self.kernel.buffers.iter() {
            if frames && buffer.access != Access::Frame {
                return Err(format!("{buf} comes after memory of the frame"));
            }
            frames |= buffer.access == Access::Frame;
            if frames && !buffer.len.is_const() {
                return Err(format!("{buf}: {} elements of the frame", buffer.len));
            }
        }
        Ok(())
    }

    /// A block; what it binds goes out of scope after it.
    fn block(&mut self, body: &[Stmt], place: &Surroundings) -> Checked {
        let mut bound = Vec::new();
        for stmt in body {
            self.stmt(stmt, place, &mut bound)?;
        }
        for var in bound {
            self.scope.remove(&var);
        }
        Ok(())
    }

    fn bind(&mut self, var: Var, bound: Bound) -> Checked {
        if !self.kernel.vars.is_valid(var) {
            return Err(format!("{var} is not declared"));
        }
        if !self.bound.insert(var) {
            return Err(format!("{var} is bound twice"));
        }
        self.scope.insert(var, bound);
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt, place: &Surroundings, bound: &mut Vec<Var>) -> Checked {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                if self.kernel.vars.get(*var).is_some_and(|decl| decl.dtype != DType::I64) {
                    return Err(format!("loop variable {var} is not an i64"));
                }
                if *step < 1 {
                    return Err(format!("the loop over {var} has step {step}"));
                }
                let range = self.loop_range(*var, lo, hi, *step, *kind, place)?;
                self.loop_stmt(*var, lo, hi, *kind, body, place, range)
            }
            Stmt::Let { var, value } => {
                let dtype = self.expr(value, place)?;
                let state = Bound {
                    range: None,
                    lanes: self.expr_depends(value, &|bound| bound.lanes),
                    threads: self.expr_depends(value, &|bound| bound.threads),
                };
                self.bind(*var, state)?;
                bound.push(*var);
                self.same_type(dtype, self.kernel.vars[*var].dtype, &format!("let {var}"))
            }
            Stmt::Store { buf, index, value } => {
                let dtype = self.expr(value, place)?;
                self.index(index)?;
                let wanted = self.access(*buf, Access::Read)?;
                self.same_type(dtype, wanted, &format!("store to {buf}"))?;
                let what = format!("{buf}[{index}]");
                self.spread(std::slice::from_ref(index), place, &what)?;
                self.apart(*buf, index, place)
            }
            Stmt::Set { local, at, value } => {
                let dtype = self.expr(value, place)?;
                let wanted = self.position(*local, at, place)?;
                self.set.insert(*local);
                self.same_type(dtype, wanted, &format!("set of {local}"))?;
                self.spread(at, place, &local.to_string())
            }
            Stmt::Accumulate { local, at, op, value } => {
                let dtype = self.expr(value, place)?;
                let wanted = self.read(*local, at, place)?;
                let result = result_of(MapFn::Binary(*op), &[wanted, dtype])?;
                self.same_type(result, wanted, &format!("accumulation in {local}"))?;
                self.spread(at, place, &local.to_string())
            }
            Stmt::If { condition, then, otherwise } => {
                if place.vector {
                    return Err(format!("a branch on {condition} in a vector loop"));
                }
                self.condition(condition, place)?;
                let inside = Surroundings { top: false, ..place.clone() };
                let alone = place.alone || place.is_one_iteration(condition);
                self.block(then, &Surroundings { alone, ..inside.clone() })?;
                self.block(otherwise, &inside)
            }
            Stmt::Check { condition, code } => {
                if *code == 0 {
                    return Err(format!("the failure of {condition} has code 0"));
                }
                self.condition(condition, place)
            }
            Stmt::Prefetch { buf, index } => {
                if place.vector {
                    return Err(format!("prefetch of {buf}[{index}] in a vector loop"));
                }
                // A hint may be of what will be read and of what will be written.
                if self.kernel.buffers.get(*buf).is_none() {
                    return Err(format!("{buf} is not declared"));
                }
                self.index(index)
            }
            Stmt::Tile(stmt) => self.tile_stmt(stmt, place),
        }
    }

    /// Iterations of a parallel loop store to places of their own; each call has a frame of its own.
    fn apart(&self, buf: Buf, index: &Index, place: &Surroundings) -> Checked {
        let own = self.kernel.buffers[buf].access == Access::Frame;
        let apart = own || self.index_depends(index, &|bound| bound.threads);
        if place.parallel.is_some() && !place.dead && !place.alone && !apart {
            return Err(format!("all iterations of a parallel loop store to {buf}[{index}]"));
        }
        Ok(())
    }

    /// Bounds of a loop, checked; the values of its variable if these are constants.
    fn loop_range(
        &self,
        var: Var,
        lo: &Index,
        hi: &Index,
        step: i64,
        kind: LoopKind,
        place: &Surroundings,
    ) -> Checked<Option<(i64, i64)>> {
        self.index(lo)?;
        self.index(hi)?;
        if place.vector {
            return Err(format!("the loop over {var} is inside a vector loop"));
        }
        let what = || format!("the {} loop over {var} in {lo}..{hi}", kind.name());
        let fits = match kind {
            LoopKind::Serial => true,
            LoopKind::Parallel => place.top && step == 1 && lo.as_dim().is_some() && hi.as_dim().is_some(),
            LoopKind::Vector => step == 1 && extent(lo, hi).is_some_and(|count| count >= 0),
            LoopKind::Unrolled => self.range(lo).is_some() && self.range(hi).is_some(),
        };
        if !fits {
            return Err(match kind {
                LoopKind::Parallel => format!("{} is inside another, or has a step", what()),
                _ => format!("{} has no constant extent", what()),
            });
        }
        if !matches!(kind, LoopKind::Vector | LoopKind::Unrolled) {
            return Ok(None);
        }
        let (low, high) = (self.range(lo), self.range(hi));
        Ok(low.zip(high).map(|(low, high)| (low.0, high.1.saturating_sub(1))))
    }

    fn loop_stmt(
        &mut self,
        var: Var,
        lo: &Index,
        hi: &Index,
        kind: LoopKind,
        body: &[Stmt],
        place: &Surroundings,
        range: Option<(i64, i64)>,
    ) -> Checked {
        let known = extent(lo, hi);
        let several = known != Some(1);
        let mut inside = Surroundings { top: false, ..place.clone() };
        inside.dead |= known.is_some_and(|count| count <= 0);
        // One lane, or one iteration, is alone: nothing it does needs to depend on it.
        inside.vector |= kind == LoopKind::Vector && several;
        let threads = kind == LoopKind::Parallel && several;
        if threads {
            inside.parallel = Some(visit::stored(body));
            inside.iteration = Some(var);
        }
        let depends =
            |test: &dyn Fn(&Bound) -> bool| self.index_depends(lo, test) || self.index_depends(hi, test);
        let state = Bound {
            range,
            lanes: kind == LoopKind::Vector,
            // A loop inside covers the same elements in each iteration, unless its bounds depend on the iteration.
            threads: threads || depends(&|bound| bound.threads),
        };
        self.bind(var, state)?;
        if threads {
            let before = std::mem::take(&mut self.set);
            self.block(body, &inside)?;
            self.set = before;
        } else {
            self.block(body, &inside)?;
        }
        self.scope.remove(&var);
        Ok(())
    }

    fn condition(&self, condition: &Expr, place: &Surroundings) -> Checked {
        match self.expr(condition, place)? {
            DType::Bool => Ok(()),
            other => Err(format!("the condition {condition} is {other}")),
        }
    }

    /// What a vector loop writes differs from lane to lane.
    fn spread(&self, at: &[Index], place: &Surroundings, what: &str) -> Checked {
        let apart = at.iter().any(|index| self.index_depends(index, &|bound| bound.lanes));
        match place.vector && !place.dead && !apart {
            true => Err(format!("all lanes write to {what}")),
            false => Ok(()),
        }
    }

    fn same_type(&self, found: DType, wanted: DType, what: &str) -> Checked {
        match found == wanted {
            true => Ok(()),
            false => Err(format!("{what}: {found} where {wanted} belongs")),
        }
    }

    /// Element type of a buffer whose access is not `other`.
    fn access(&self, buf: Buf, other: Access) -> Checked<DType> {
        let Some(buffer) = self.kernel.buffers.get(buf) else { return Err(format!("{buf} is not declared")) };
        if buffer.access == other {
            let what = if other == Access::Read { "stored to" } else { "loaded from" };
            return Err(format!("{buf} `{}` is {what}, which its access does not allow", buffer.name));
        }
        Ok(buffer.dtype)
    }

    /// An element of a local.
    fn position(&self, local: Local, at: &[Index], place: &Surroundings) -> Checked<DType> {
        let Some(decl) = self.kernel.locals.get(local) else {
            return Err(format!("{local} is not declared"));
        };
        if at.len() != decl.extents.len() {
            return Err(format!("{local} has {} axes and {} indices", decl.extents.len(), at.len()));
        }
        for (index, &extent) in at.iter().zip(&decl.extents) {
            self.index(index)?;
            let Some((low, high)) = self.range(index) else {
                return Err(format!("{local} is indexed by {index}, which is neither constant nor a lane"));
            };
            if !place.dead && (low < 0 || high >= extent as i64) {
                return Err(format!("{local} of {:?} is indexed by {index} in {low}..={high}", decl.extents));
            }
        }
        Ok(decl.dtype)
    }

    /// An element of a local that holds a value.
    fn read(&self, local: Local, at: &[Index], place: &Surroundings) -> Checked<DType> {
        let dtype = self.position(local, at, place)?;
        match self.set.contains(&local) {
            true => Ok(dtype),
            false => Err(format!("{local} is read before it is set")),
        }
    }

    fn index(&self, index: &Index) -> Checked {
        let sorted = index.terms.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !sorted || index.terms.iter().any(|(_, coefficient)| *coefficient == Dim::ZERO) {
            return Err(format!("the index {index} is not canonical"));
        }
        for (term, _) in &index.terms {
            let (x, by) = match term {
                Term::Var(var) => {
                    self.var(*var, Some(DType::I64))?;
                    continue;
                }
                Term::FloorDiv(x, by) | Term::Mod(x, by) => (x, by),
            };
            let constants = x.as_int().is_some() && by.is_const();
            if constants || by.as_const().is_some_and(|by| by < 1) {
                return Err(format!("the index {index} divides {x} by {by}"));
            }
            self.index(x)?;
        }
        Ok(())
    }

    fn var(&self, var: Var, wanted: Option<DType>) -> Checked<DType> {
        if !self.scope.contains_key(&var) {
            return Err(format!("{var} is used where it is not bound"));
        }
        let dtype = self.kernel.vars[var].dtype;
        match wanted {
            Some(wanted) => self.same_type(dtype, wanted, &var.to_string()).map(|()| dtype),
            None => Ok(dtype),
        }
    }

    /// Bounds of an index, if all its variables have bounds.
    fn range(&self, index: &Index) -> Option<(i64, i64)> {
        let constant = index.constant.as_const()?;
        let mut sum = (constant, constant);
        for (term, coefficient) in &index.terms {
            let by = coefficient.as_const()?;
            let (low, high) = match term {
                Term::Var(var) => self.scope.get(var)?.range?,
                Term::FloorDiv(x, by) => {
                    let (range, by) = (self.range(x)?, by.as_const().filter(|by| *by > 0)?);
                    (range.0.div_euclid(by), range.1.div_euclid(by))
                }
                Term::Mod(x, by) => {
                    let (range, by) = (self.range(x)?, by.as_const().filter(|by| *by > 0)?);
                    if range.0 >= 0 && range.1 < by { range } else { (0, by - 1) }
                }
            };
            let (a, b) = (low.checked_mul(by)?, high.checked_mul(by)?);
            sum = (sum.0.checked_add(a.min(b))?, sum.1.checked_add(a.max(b))?);
        }
        Some(sum)
    }

    /// Element type of an expression, all of it checked.
    fn expr(&self, expr: &Expr, place: &Surroundings) -> Checked<DType> {
        match expr {
            Expr::Const { dtype, bits } => match dtype.size() {
                8 => Ok(*dtype),
                size if size < 8 && bits >> (8 * size) == 0 => Ok(*dtype),
                _ => Err(format!("the constant {expr} does not fit its type")),
            },
            Expr::Index(index) => self.index(index).map(|()| DType::I64),
            Expr::Var(var) => self.var(*var, None),
            Expr::Get { local, at } => self.read(*local, at, place),
            _ => {
                let operands = match expr.reads() {
                    Some(reads) => vec![self.element(expr, &reads, place)?],
                    None => {
                        expr.operands().into_iter().map(|x| self.expr(x, place)).collect::<Checked<_>>()?
                    }
                };
                expr.result(&operands)
            }
        }
    }

    /// Type of the elements that an expression reads.
    fn element(&self, expr: &Expr, reads: &Reads, place: &Surroundings) -> Checked<DType> {
        let Reads { buf, index, .. } = reads;
        self.index(index)?;
        let dtype = self.access(*buf, Access::Write)?;
        let own = self.kernel.buffers[*buf].access == Access::Frame;
        let shared = !own && place.parallel.as_ref().is_some_and(|stored| stored.contains(buf));
        if shared && !place.dead && !self.index_depends(index, &|bound| bound.threads) {
            return Err(format!("{expr} is loaded in all iterations of a parallel loop that stores to it"));
        }
        Ok(dtype)
    }

    fn index_depends(&self, index: &Index, test: &dyn Fn(&Bound) -> bool) -> bool {
        visit::any_term(
            index,
            &|term| matches!(term, Term::Var(var) if self.scope.get(var).is_some_and(test)),
        )
    }

    fn expr_depends(&self, expr: &Expr, test: &dyn Fn(&Bound) -> bool) -> bool {
        match expr {
            Expr::Var(var) => self.scope.get(var).is_some_and(test),
            // The value of a register depends on all that it was computed from.
            Expr::Get { .. } => true,
            _ => {
                expr.indices().into_iter().any(|index| self.index_depends(index, test))
                    || expr.operands().into_iter().any(|operand| self.expr_depends(operand, test))
            }
        }
    }
}

/// Number of values from `lo` to `hi`, where it is known.
fn extent(lo: &Index, hi: &Index) -> Option<i64> {
    hi.add(&lo.scale(&Dim::from(-1i64))).as_int()
}

/// The elements that a straight line of statements has reached.
#[derive(Clone, Default)]
struct Line<'k> {
    loaded: HashSet<(Buf, &'k Index)>,
    /// Those that it stored after that.
    replaced: HashSet<(Buf, &'k Index)>,
}

impl<'k> Line<'k> {
    /// Goes on with statements; loops and branches are lines of their own, which begin where they stand.
    fn follow(mut self, body: &'k [Stmt]) -> Checked {
        for stmt in body {
            if let Some(expr) = visit::own_expr(stmt) {
                self.loads(expr)?;
            }
            match stmt {
                Stmt::Store { buf, index, .. } if self.loaded.contains(&(*buf, index)) => {
                    self.replaced.insert((*buf, index));
                }
                Stmt::For { body, .. } => self.clone().follow(body)?,
                Stmt::If { then, otherwise, .. } => {
                    self.clone().follow(then)?;
                    self.clone().follow(otherwise)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn loads(&mut self, expr: &'k Expr) -> Checked {
        if let Some(Reads { buf, index, is_word }) = expr.reads() {
            if !is_word && self.replaced.contains(&(buf, index)) {
                return Err(format!("{expr} is loaded, overwritten and loaded again"));
            }
            // Where several elements are one, which of them were stored is not followed.
            if is_word && self.replaced.iter().any(|(stored, _)| *stored == buf) {
                return Err(format!("{expr} is loaded after elements of it were overwritten"));
            }
            if !is_word {
                self.loaded.insert((buf, index));
            }
        }
        expr.operands().into_iter().try_for_each(|operand| self.loads(operand))
    }
}
