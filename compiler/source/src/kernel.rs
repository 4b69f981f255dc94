//! A loop nest as a C function.
//!
//! Loops that are to be written out are, and each register of a local is a variable: compilers keep those in registers. A loop over the
//! lanes of a vector is one statement on vectors for each of its statements; where one has no such form, it is a loop over single lanes.

mod index;
mod value;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use cranelift_entity::EntityRef;

use crate::helpers::numbers::held;
use crate::helpers::{Helpers, vector_name};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Sym};
use onnxc_ir::scalar::BinaryFn;
use onnxc_loops::{Access, Buf, Expr, Index, Kernel, Local, LoopKind, Stmt, Var, visit};
use onnxc_machine::target::Core;

/// Why something has no form; in a vector loop that makes single lanes of it.
pub(crate) type Formed<T> = std::result::Result<T, String>;

/// What a variable of the nest stands for.
#[derive(Clone, Debug)]
pub(crate) enum Bound {
    /// A turn of a loop that is written out.
    Const(i64),
    /// A variable of C.
    Named(Name),
    /// The number of a lane behind this index, in a statement on vectors.
    Lane(Index),
    /// The same where lanes are one by one: the C variable of the lane.
    OneLane(Index, String),
}

#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub text: String,
    pub lanes: usize,
    /// Bytes of an element of a mask, of a vector of truth values.
    pub mask: usize,
    /// A number of an index, of the size of a pointer.
    pub is_index: bool,
    pub facts: Facts,
}

/// What is known of floats: whether they lie above the least i32, or below the greatest, and whether they are numbers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Facts {
    pub above: bool,
    pub below: bool,
    pub not_nan: bool,
}

/// A nest while it is printed.
pub(crate) struct Printer<'k> {
    pub kernel: &'k Kernel,
    pub helpers: &'k mut Helpers,
    pub vector_bytes: usize,
    pub bound: HashMap<Var, Bound>,
    /// Of the vector loop around: its variable and its lanes.
    pub group: Option<(Var, usize)>,
    out: String,
    depth: usize,
    /// Buffers and symbols that are used.
    pub buffers: BTreeSet<Buf>,
    pub symbols: BTreeSet<Sym>,
    /// Registers that are used: by local and number, their type in C.
    registers: BTreeMap<(usize, usize), String>,
    /// Locals that are arrays, as an index into them is not known.
    arrays: BTreeSet<Local>,
    /// Locals that turned out to have to be arrays.
    found_arrays: BTreeSet<Local>,
    /// Names that were made up.
    names: usize,
    /// Whether sizes and indices have 64 bits, though pointers have 32.
    is_wide: bool,
}

/// A C function for a nest, which is called `name`. Where it uses one of the symbols `wide`, its sizes and indices have 64 bits, else
/// those of a pointer.
pub(crate) fn function(
    kernel: &Kernel,
    name: &str,
    (core, wide): (&Core, &BTreeSet<Sym>),
    helpers: &mut Helpers,
) -> Result<String> {
    let (mut arrays, mut is_wide) = (BTreeSet::new(), false);
    loop {
        let mut printer = Printer {
            kernel,
            helpers,
            vector_bytes: core.vector_bytes,
            bound: HashMap::new(),
            group: None,
            out: String::new(),
            depth: 1,
            buffers: BTreeSet::new(),
            symbols: BTreeSet::new(),
            registers: BTreeMap::new(),
            arrays: arrays.clone(),
            found_arrays: BTreeSet::new(),
            names: 0,
            is_wide,
        };
        let printed = printer.outermost();
        if !is_wide && !printer.symbols.is_disjoint(wide) {
            is_wide = true;
            continue;
        }
        if !printer.found_arrays.is_subset(&arrays) {
            arrays.append(&mut printer.found_arrays);
            continue;
        }
        printed.map_err(|why| Error::internal(Stage::Emit, format!("`{}` has no C: {why}", kernel.name)))?;
        return printer.finish(name);
    }
}

/// A name of the nest as part of one in C.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// Type of an element in memory.
pub(crate) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "ox_f32",
        DType::F64 => "ox_f64",
        DType::C64 => "ox_c64",
        DType::C128 => "ox_c128",
        DType::I8 | DType::I4 | DType::I2 => "ox_i8",
        DType::I16 => "ox_i16",
        DType::I32 => "ox_i32",
        DType::I64 | DType::Str => "ox_i64",
        DType::U64 => "ox_u64",
        DType::U32 => "ox_u32",
        DType::U16 | DType::F16 | DType::BF16 => "ox_u16",
        _ => "ox_u8",
    }
}

impl Printer<'_> {
    pub(crate) fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// A number that no name has yet.
    pub(crate) fn fresh(&mut self) -> usize {
        self.names += 1;
        self.names
    }

    fn outermost(&mut self) -> Formed<()> {
        let kernel = self.kernel;
        if kernel.parallel_range().is_some()
            && let [Stmt::For { var, body, .. }] = kernel.body.as_slice()
        {
            let name = self.loop_name(*var);
            self.line(&format!(
                "for ({ty} {name} = ({ty})begin; {name} < ({ty})end; {name}++) {{",
                ty = self.index_type()
            ));
            self.nested(|printer| printer.block(body))?;
            self.line("}");
            return Ok(());
        }
        self.block(&kernel.body)
    }

    fn nested(&mut self, fill: impl FnOnce(&mut Self) -> Formed<()>) -> Formed<()> {
        self.depth += 1;
        let result = fill(self);
        self.depth -= 1;
        result
    }

    fn finish(self, name: &str) -> Result<String> {
        let mut text = format!(
            "static OX_NOINLINE int32_t {name}(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end) {{\n"
        );
        let kernel = self.kernel;
        let (mut at, mut uses_buffers) = (0, false);
        for (buf, decl) in &kernel.buffers {
            let ty = memory_type(decl.dtype);
            if matches!(decl.dtype, DType::C64 | DType::C128) {
                self.helpers.complex(&ty[3..]);
            }
            let own = buffer_name(buf, &decl.name);
            if decl.access == Access::Frame {
                let len = decl.len.as_const().ok_or_else(|| {
                    Error::internal(Stage::Emit, format!("`{name}` has memory of an unknown size"))
                })?;
                if self.buffers.contains(&buf) {
                    let _ = writeln!(text, "    OX_ALIGNED(64) {ty} {own}[{}];", len.max(1));
                }
                continue;
            }
            if self.buffers.contains(&buf) {
                let read = if decl.access == Access::Read { "const " } else { "" };
                let _ = writeln!(text, "    {read}{ty} *const {own} = ({read}{ty} *)buffers[{at}];");
                uses_buffers = true;
            }
            at += 1;
        }
        for &sym in &self.symbols {
            let at = sym.as_u32();
            let ty = self.index_type();
            let _ = writeln!(text, "    const {ty} s{at} = ({ty})sizes[{at}];");
        }
        for (&(local, number), ty) in &self.registers {
            let local = Local::new(local);
            let decl = &kernel.locals[local];
            let own = register_name(local, &decl.name);
            match self.arrays.contains(&local) {
                true => {
                    let count: usize = decl.extents.iter().product::<usize>() / decl.lanes.max(1);
                    let _ = writeln!(text, "    {ty} {own}[{}];", count.max(1));
                }
                false => {
                    let _ = writeln!(text, "    {ty} {own}_{number};");
                }
            }
        }
        if !uses_buffers {
            text.push_str("    (void)buffers;\n");
        }
        if self.symbols.is_empty() {
            text.push_str("    (void)sizes;\n");
        }
        if kernel.parallel_range().is_none() {
            text.push_str("    (void)begin;\n    (void)end;\n");
        }
        text.push_str(&self.out);
        text.push_str("    return 0;\n}\n");
        Ok(text)
    }

    fn loop_name(&mut self, var: Var) -> String {
        let text = format!("{}_{}", plain(&self.kernel.vars[var].name), var.as_u32());
        let name = Name { text: text.clone(), lanes: 1, mask: 0, is_index: true, facts: Facts::default() };
        self.bound.insert(var, Bound::Named(name));
        text
    }

    pub(crate) fn buffer(&mut self, buf: Buf) -> String {
        self.buffers.insert(buf);
        buffer_name(buf, &self.kernel.buffers[buf].name)
    }

    fn block(&mut self, body: &[Stmt]) -> Formed<()> {
        body.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Formed<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => self.repeat(*var, (lo, hi, *step), *kind, body),
            Stmt::Let { var, value } => self.bind(*var, value),
            Stmt::Store { buf, index, value } => {
                let value = self.value(value)?;
                self.store(*buf, index, value)
            }
            Stmt::Set { local, at, value } => {
                self.whole_register(*local)?;
                let value = self.value(value)?;
                let value = self.as_register(*local, value)?;
                let place = self.register(*local, at)?.0;
                self.line(&format!("{place} = {};", value.text));
                Ok(())
            }
            Stmt::Accumulate { local, at, op, value } => self.accumulate(*local, at, *op, value),
            Stmt::If { condition, then, otherwise } => {
                let condition = self.value(condition)?;
                if condition.lanes > 1 {
                    return Err("a choice for each lane".into());
                }
                self.line(&format!("if ({}) {{", condition.text));
                self.nested(|printer| printer.block(then))?;
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.nested(|printer| printer.block(otherwise))?;
                }
                self.line("}");
                Ok(())
            }
            Stmt::Check { condition, code } => {
                let condition = self.value(condition)?;
                if condition.lanes > 1 {
                    return Err("a check of each lane".into());
                }
                self.line(&format!("if (!({})) {{", condition.text));
                self.nested(|printer| {
                    printer.line(&format!("return {code};"));
                    Ok(())
                })?;
                self.line("}");
                Ok(())
            }
            Stmt::Prefetch { buf, index } => {
                let Some(index) = self.uniform(index) else { return Ok(()) };
                let (own, at) = (self.buffer(*buf), self.index(&index)?);
                let size = self.kernel.buffers[*buf].dtype.size();
                self.line(&format!("OX_PREFETCH((uintptr_t){own} + {size} * (uintptr_t)({}));", at.text));
                Ok(())
            }
            Stmt::Tile(_) => Err("tiles".into()),
        }
    }

    fn repeat(
        &mut self,
        var: Var,
        (lo, hi, step): (&Index, &Index, i64),
        kind: LoopKind,
        body: &[Stmt],
    ) -> Formed<()> {
        let turns = self.constant(lo).zip(self.constant(hi));
        match (kind, turns) {
            (LoopKind::Unrolled, Some((from, to))) => {
                let binds = body.iter().any(|stmt| matches!(stmt, Stmt::Let { .. }));
                let mut at = from;
                while at < to {
                    self.bound.insert(var, Bound::Const(at));
                    if binds {
                        self.line("{");
                        self.nested(|printer| printer.block(body))?;
                        self.line("}");
                    } else {
                        self.block(body)?;
                    }
                    at += step;
                }
                Ok(())
            }
            (LoopKind::Vector, Some((from, to))) if step == 1 && to > from => {
                self.lanes(var, (lo, to - from), body)
            }
            _ => {
                let (lo, hi) = (self.index(lo)?, self.index(hi)?);
                let name = self.loop_name(var);
                let step = if step == 1 { format!("{name}++") } else { format!("{name} += {step}") };
                let ty = self.index_type();
                self.line(&format!("for ({ty} {name} = {}; {name} < {}; {step}) {{", lo.text, hi.text));
                self.nested(|printer| printer.block(body))?;
                self.line("}");
                Ok(())
            }
        }
    }

    /// A loop over the lanes of vectors.
    fn lanes(&mut self, var: Var, (lo, extent): (&Index, i64), body: &[Stmt]) -> Formed<()> {
        let lanes = self.lanes_of(var, extent, body);
        if lanes > 1 && self.group.is_none() {
            let mark = (self.out.len(), self.bound.clone(), self.depth);
            match self.in_vectors(var, (lo, extent), lanes, body) {
                Ok(()) => return Ok(()),
                Err(_) => {
                    self.out.truncate(mark.0);
                    (self.bound, self.depth, self.group) = (mark.1, mark.2, None);
                }
            }
        }
        // Lanes of registers are known when they are written out.
        if self.has_registers(var, body) {
            for lane in 0..extent {
                let at = self.constant(&lo.add(&Index::int(lane))).ok_or("lanes that are not known")?;
                self.bound.insert(var, Bound::Const(at));
                self.line("{");
                self.nested(|printer| printer.block(body))?;
                self.line("}");
            }
            return Ok(());
        }
        let lanes = lanes.max(1) as i64;
        let name = format!("lane_{}", var.as_u32());
        for part in 0..extent / lanes {
            self.line(&format!("for (ptrdiff_t {name} = 0; {name} < {lanes}; {name}++) {{"));
            self.bound.insert(var, Bound::OneLane(lo.add(&Index::int(part * lanes)), name.clone()));
            self.nested(|printer| printer.block(body))?;
            self.line("}");
        }
        Ok(())
    }

    fn in_vectors(
        &mut self,
        var: Var,
        (lo, extent): (&Index, i64),
        lanes: usize,
        body: &[Stmt],
    ) -> Formed<()> {
        let binds = body.iter().any(|stmt| matches!(stmt, Stmt::Let { .. }));
        for part in 0..extent / lanes as i64 {
            self.group = Some((var, lanes));
            self.bound.insert(var, Bound::Lane(lo.add(&Index::int(part * lanes as i64))));
            if binds {
                self.line("{");
                self.nested(|printer| printer.block(body))?;
                self.line("}");
            } else {
                self.block(body)?;
            }
        }
        self.group = None;
        Ok(())
    }

    /// Whether a loop reaches registers by its variable.
    fn has_registers(&self, var: Var, body: &[Stmt]) -> bool {
        let by_lane = |at: &[Index]| at.last().is_some_and(|index| index.mentions(var));
        let mut found = false;
        visit::stmts(body, &mut |stmt| {
            if let Stmt::Set { at, .. } | Stmt::Accumulate { at, .. } = stmt {
                found |= by_lane(at);
            }
        });
        visit::exprs(body, &mut |expr| {
            if let Expr::Get { at, .. } = expr {
                found |= by_lane(at);
            }
        });
        found
    }

    /// Lanes of the vectors that a loop runs in: those of the registers that it works on, or what the widest of its values has.
    fn lanes_of(&self, var: Var, extent: i64, body: &[Stmt]) -> usize {
        let (mut registers, mut widest) = (None, 1);
        let mut note = |local: Local, at: &[Index]| {
            let decl = &self.kernel.locals[local];
            if decl.lanes > 1 && at.last().is_some_and(|index| index.mentions(var)) {
                registers = Some(decl.lanes);
            }
        };
        visit::stmts(body, &mut |stmt| {
            if let Stmt::Set { local, at, .. } | Stmt::Accumulate { local, at, .. } = stmt {
                note(*local, at);
            }
        });
        visit::exprs(body, &mut |expr| {
            if let Expr::Get { local, at } = expr {
                note(*local, at);
            }
            let dtype = self.kernel.dtype(expr);
            if dtype != DType::Bool && !matches!(expr, Expr::Index(_)) {
                widest = widest.max(if dtype.size() < 4 { 4 } else { dtype.size() });
            }
        });
        let extent = extent as usize;
        let lanes = registers.unwrap_or((self.vector_bytes / widest).max(1));
        let mut lanes = lanes.min(extent);
        while lanes > 1 && (!extent.is_multiple_of(lanes) || !lanes.is_power_of_two()) {
            lanes -= 1;
        }
        lanes
    }

    /// A name for a value.
    fn bind(&mut self, var: Var, value: &Expr) -> Formed<()> {
        let decl = &self.kernel.vars[var];
        let text = format!("{}_{}", plain(&decl.name), var.as_u32());
        if let Expr::Index(index) = value
            && let Some(index) = self.uniform(index)
        {
            let at = self.index(&index)?;
            self.line(&format!("const {} {text} = {};", self.index_type(), at.text));
            let name = Name { text, lanes: 1, mask: 0, is_index: true, facts: Facts::default() };
            self.bound.insert(var, Bound::Named(name));
            return Ok(());
        }
        let value = self.value(value)?;
        let ty = self.type_of(&value);
        self.line(&format!("const {ty} {text} = {};", value.text));
        let name = Name { text, lanes: value.lanes, mask: value.mask, is_index: false, facts: value.facts };
        self.bound.insert(var, Bound::Named(name));
        Ok(())
    }

    /// The register of a local at an index, and the lane in it where that is one.
    pub(crate) fn register(&mut self, local: Local, at: &[Index]) -> Formed<(String, bool)> {
        let decl = &self.kernel.locals[local];
        let element = held(decl.dtype);
        let vector = decl.lanes > 1;
        let ty = match (decl.dtype, vector) {
            (DType::C64, _) => "ox_c64".to_string(),
            (DType::C128, _) => "ox_c128".to_string(),
            (DType::Bool, false) => "int".to_string(),
            (DType::Bool, true) => self.helpers.mask(MASK_BYTES, decl.lanes),
            (_, true) => self.helpers.vector(element, decl.lanes),
            (_, false) => crate::helpers::c_name(element),
        };
        let own = register_name(local, &decl.name);
        let (last, outer) = match at.split_last() {
            Some((last, outer)) => (Some(last), outer),
            None => (None, at),
        };
        // The last index: a number, the lanes of a vector, or one lane.
        let (base, lane) = match last {
            None => (Index::zero(), None),
            Some(last) => self.last_index(last)?,
        };
        let mut flat = Index::zero();
        for (index, &extent) in outer.iter().zip(&decl.extents) {
            flat = flat.scale(&Dim::from(extent)).add(index);
        }
        let columns = decl.extents.last().copied().unwrap_or(1) / decl.lanes.max(1);
        let number = self.constant(&base);
        let text = match (vector, number) {
            (true, Some(number)) => {
                let (vector_at, sub) = (number as usize / decl.lanes, number as usize % decl.lanes);
                let flat = flat.scale(&Dim::from(columns)).add(&Index::int(vector_at as i64));
                let place = self.place_of((local, &own), ty, &flat)?;
                match lane {
                    Some(Lane::All(lanes)) if sub == 0 && lanes == decl.lanes => return Ok((place, true)),
                    Some(Lane::All(lanes)) if sub + lanes <= decl.lanes => {
                        let element = if decl.dtype == DType::Bool { "i32" } else { element };
                        let part = self.helpers.vector(element, lanes);
                        let all: Vec<String> =
                            (sub..sub + lanes).map(|at| format!("{place}[{at}]")).collect();
                        return Ok((format!("({part}){{{}}}", all.join(", ")), true));
                    }
                    Some(Lane::All(_)) => return Err("lanes across registers".into()),
                    Some(Lane::One(name)) if sub == 0 => format!("{place}[{name}]"),
                    Some(Lane::One(_)) => return Err("a lane across registers".into()),
                    None => format!("{place}[{sub}]"),
                }
            }
            (true, None) => return Err("a register that is not known".into()),
            (false, _) => {
                let flat = flat.scale(&Dim::from(columns)).add(&base);
                match lane {
                    Some(Lane::All(_)) => return Err("lanes of single registers".into()),
                    Some(Lane::One(name)) => {
                        self.found_arrays.insert(local);
                        let at = self.index(&flat)?;
                        self.registers.insert((local.index(), 0), ty);
                        return Ok((format!("{own}[{} + {name}]", at.text), false));
                    }
                    None => self.place_of((local, &own), ty, &flat)?,
                }
            }
        };
        Ok((text, false))
    }

    fn place_of(&mut self, (local, own): (Local, &str), ty: String, flat: &Index) -> Formed<String> {
        let number = self.constant(flat);
        if self.arrays.contains(&local) {
            self.registers.insert((local.index(), 0), ty);
            let at = self.index(flat)?;
            return Ok(format!("{own}[{}]", at.text));
        }
        match number {
            Some(number) => {
                self.registers.insert((local.index(), number as usize), ty);
                Ok(format!("{own}_{number}"))
            }
            None => {
                self.found_arrays.insert(local);
                Ok(format!("{own}_0"))
            }
        }
    }

    fn accumulate(&mut self, local: Local, at: &[Index], op: BinaryFn, value: &Expr) -> Formed<()> {
        self.whole_register(local)?;
        let dtype = self.kernel.locals[local].dtype;
        let (place, vector) = self.register(local, at)?;
        // A sum of products is one operation where the processor has it.
        if op == BinaryFn::Add && matches!(dtype, DType::F32 | DType::F64) {
            if let Expr::Binary { op: BinaryFn::Mul, a, b } = value {
                let (a, b) = (self.value(a)?, self.value(b)?);
                let (a, b) = match vector {
                    true => self.pair(a, b),
                    false => (a, b),
                };
                let (a, b) = match vector {
                    // One of the two may be a number for all lanes.
                    true => (self.spread(a), self.spread(b)),
                    false => (a, b),
                };
                let float = held(dtype);
                let text = match vector {
                    true => format!("{place} += {} * {};", a.factor(), b.factor()),
                    false => {
                        self.helpers.fma(float);
                        format!("{place} = ox_fma_{float}({}, {}, {place});", a.text, b.text)
                    }
                };
                self.line(&text);
                return Ok(());
            }
            let value = self.value(value)?;
            let value = self.as_register(local, value)?;
            self.line(&format!("{place} += {};", value.text));
            return Ok(());
        }
        let value = self.value(value)?;
        let lanes = if vector { self.kernel.locals[local].lanes } else { 1 };
        let mask = if lanes > 1 && dtype == DType::Bool { MASK_BYTES } else { 0 };
        let old = value::Val { mask, ..value::Val::new(place.clone(), dtype, lanes) };
        let new = self.binary(op, dtype, old, value)?;
        let new = self.as_register(local, new)?;
        self.line(&format!("{place} = {};", new.text));
        Ok(())
    }

    /// Fails in a vector loop whose lanes are not all of a register that it writes.
    fn whole_register(&self, local: Local) -> Formed<()> {
        let own = self.kernel.locals[local].lanes;
        match self.group {
            Some((_, lanes)) if own > 1 && own != lanes => Err("a part of a register".into()),
            _ => Ok(()),
        }
    }

    /// A value as registers of a local hold it.
    fn as_register(&mut self, local: Local, value: value::Val) -> Formed<value::Val> {
        let vector = self.kernel.locals[local].lanes > 1 && self.group.is_some();
        let value = if vector { self.spread(value) } else { value };
        Ok(if vector && value.dtype == DType::Bool { self.fit(value, MASK_BYTES) } else { value })
    }

    /// Type of a value in C.
    pub(crate) fn type_of(&mut self, value: &value::Val) -> String {
        match (value.dtype, value.lanes) {
            (DType::C64, _) => {
                self.helpers.complex("c64");
                "ox_c64".into()
            }
            (DType::C128, _) => {
                self.helpers.complex("c128");
                "ox_c128".into()
            }
            (DType::Bool, 1) => "int".into(),
            (DType::Bool, lanes) => self.helpers.mask(value.mask, lanes),
            (dtype, 1) => crate::helpers::c_name(held(dtype)),
            (dtype, lanes) => self.helpers.vector(held(dtype), lanes),
        }
    }

    /// The name of the vectors that hold a type.
    pub(crate) fn vector_of(&mut self, dtype: DType, lanes: usize) -> String {
        self.helpers.vector(held(dtype), lanes);
        vector_name(held(dtype), lanes)
    }
}

/// Bytes of an element of the masks in registers.
pub(crate) const MASK_BYTES: usize = 4;

/// Which lanes an index means.
pub(crate) enum Lane {
    All(usize),
    One(String),
}

fn buffer_name(buf: Buf, name: &str) -> String {
    format!("b{}_{}", buf.as_u32(), plain(name))
}

fn register_name(local: Local, name: &str) -> String {
    format!("{}{}", plain(name), local.as_u32())
}
