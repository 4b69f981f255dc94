//! Locals: arrays of registers, which are SSA values here. A loop passes those that it changes on as parameters of its header.

use std::collections::HashSet;

use super::lanes::written;
use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::Dim;
use onnxc_ir::scalar::BinaryFn;
use onnxc_loops::{Expr, Index, Local, Stmt};
use onnxc_machine::vector::ir::{Lanes, Op, Reg};

/// Where the elements of a local are that an index means.
enum Elements {
    /// All lanes of the vector loop are those of this register.
    Whole(usize),
    /// They are so of a part of a register's lanes, from this one on.
    Part(usize, usize),
    /// A register and a lane in it.
    One(usize, usize),
    /// One for each lane of the vector loop.
    Lanes(Vec<(usize, usize)>),
}

impl Select<'_> {
    /// Registers with a value that the statements give another one.
    pub fn carried(&self, bodies: &[&[Stmt]]) -> Vec<(Local, usize)> {
        let mut places = Vec::new();
        for local in assigned(bodies) {
            let registers = self.registers.get(&local).map_or(&[][..], Vec::as_slice);
            places.extend((0..registers.len()).filter(|&at| registers[at].is_some()).map(|at| (local, at)));
        }
        places
    }

    /// After statements that may not have run, the locals that they set have no value.
    pub fn forget(&mut self, bodies: &[&[Stmt]]) {
        for local in assigned(bodies) {
            self.registers.remove(&local);
        }
    }

    fn current(&self, &(local, at): &(Local, usize)) -> Option<Reg> {
        *self.registers.get(&local)?.get(at)?
    }

    pub fn values(&self, places: &[(Local, usize)]) -> Selected<Vec<Reg>> {
        let value = |place| self.current(place).map_or_else(|| refuse("a local that loses its value"), Ok);
        places.iter().map(value).collect()
    }

    pub fn take(&mut self, places: &[(Local, usize)], regs: &[Reg]) {
        for (&(local, at), &reg) in places.iter().zip(regs) {
            self.put(local, at, reg);
        }
    }

    fn put(&mut self, local: Local, at: usize, reg: Reg) {
        let registers = self.registers.entry(local).or_default();
        if registers.len() <= at {
            registers.resize(at + 1, None);
        }
        registers[at] = Some(reg);
    }

    fn elements(&self, local: Local, at: &[Index]) -> Selected<Elements> {
        let decl = &self.kernel.locals[local];
        let mut flat = Index::zero();
        for (index, &extent) in at.iter().zip(&decl.extents) {
            flat = flat.scale(&Dim::from(extent)).add(&self.resolve(index)?);
        }
        let lanes = self.register_lanes[local];
        let element = |index: &Index| match index.as_int().and_then(|element| usize::try_from(element).ok()) {
            Some(element) => Ok((element / lanes, element % lanes)),
            None => refuse("a local at an index that varies"),
        };
        let Some(group) = self.group.clone().filter(|group| flat.mentions(group.lane)) else {
            let (register, lane) = element(&flat)?;
            return Ok(Elements::One(register, lane));
        };
        let place =
            |lane: usize| element(&flat.substitute(group.lane, &group.base.add_dim(&Dim::from(lane))));
        if flat.coefficient(group.lane) == Some(Dim::ONE)
            && lanes == group.lanes
            && let (register, 0) = place(0)?
        {
            return Ok(Elements::Whole(register));
        }
        if flat.coefficient(group.lane) == Some(Dim::ONE)
            && lanes.is_multiple_of(group.lanes)
            && let (register, first) = place(0)?
            && first.is_multiple_of(group.lanes)
        {
            return Ok(Elements::Part(register, first));
        }
        (0..group.lanes).map(place).collect::<Selected<_>>().map(Elements::Lanes)
    }

    /// A register of a local, which bools fill with their masks.
    fn register(&mut self, local: Local, register: usize) -> Selected<Reg> {
        self.current(&(local, register)).map_or_else(|| refuse("a local without a value"), Ok)
    }

    pub fn get(&mut self, local: Local, at: &[Index]) -> Selected<Val> {
        let form = Form::of(self.kernel.locals[local].dtype)?;
        let value = match self.elements(local, at)? {
            Elements::Whole(register) => Val::vector(self.register(local, register)?, form.width()),
            Elements::Part(register, first) => {
                let whole = self.register(local, register)?;
                Val::vector(self.part(whole, self.register_lanes[local], first, form.width())?, form.width())
            }
            Elements::One(register, lane) => {
                Val::scalar(self.element(local, form, register, lane)?, form.width())
            }
            Elements::Lanes(places) => {
                let scalars =
                    places.into_iter().map(|(register, lane)| self.element(local, form, register, lane));
                let scalars = scalars.collect::<Selected<Vec<_>>>()?;
                self.join(&scalars, form.width())?
            }
        };
        match form {
            Form::Mask => self.apply(Op::MaskOf, &[value]),
            _ => Ok(value),
        }
    }

    /// The loop's lanes from a register of `size` lanes, from lane `first` on: the halves that they are in, in turn.
    fn part(&mut self, register: Reg, mut size: usize, mut first: usize, width: usize) -> Selected<Reg> {
        let count = self.group.as_ref().map_or(1, |group| group.lanes);
        let mut part = register;
        while size > count {
            size /= 2;
            // Lanes of the lower half are where they are in the whole.
            if first >= size {
                let Some(lanes) = self.isa.lanes_of(size, width) else {
                    return refuse(format!("{size} lanes of {width} bytes"));
                };
                part = self.vec(Op::UpperHalf(lanes), vec![part]);
                first -= size;
            }
        }
        Ok(part)
    }

    fn element(&mut self, local: Local, form: Form, register: usize, lane: usize) -> Selected<Reg> {
        let reg = self.register(local, register)?;
        if self.register_lanes[local] == 1 {
            return Ok(reg);
        }
        Ok(self.vec(Op::Extract(lane as u8, form.one()), vec![reg]))
    }

    pub fn set(&mut self, local: Local, at: &[Index], value: Val) -> Selected<()> {
        let form = Form::of(self.kernel.locals[local].dtype)?;
        let value = match form {
            Form::Mask => self.mask_as_bits(value)?,
            _ => value,
        };
        match self.elements(local, at)? {
            Elements::Whole(register) => {
                let lanes = self.lanes(form.width())?;
                let reg = self.spread(value, lanes);
                self.put(local, register, reg);
            }
            Elements::Part(..) => return refuse("a part of a register is set"),
            Elements::One(register, lane) => {
                let reg = self.scalar(value)?;
                self.set_element(local, form, (register, lane), reg)?;
            }
            Elements::Lanes(places) => {
                for (at, place) in places.into_iter().enumerate() {
                    let reg = self.lane_of(value, at)?;
                    self.set_element(local, form, place, reg)?;
                }
            }
        }
        Ok(())
    }

    fn set_element(
        &mut self,
        local: Local,
        form: Form,
        (register, lane): (usize, usize),
        reg: Reg,
    ) -> Selected<()> {
        let count = self.register_lanes[local];
        let reg = match count {
            1 => reg,
            _ => {
                let Some(lanes) = self.isa.lanes_of(count, form.width()) else {
                    return refuse(format!("registers of {count} elements"));
                };
                match self.current(&(local, register)) {
                    Some(old) => self.insert(lane, lanes, old, reg)?,
                    // The other lanes have no value yet.
                    None => self.vec(Op::SplatLane(lanes), vec![reg]),
                }
            }
        };
        self.put(local, register, reg);
        Ok(())
    }

    /// A sum of a product is one instruction.
    pub fn accumulate(&mut self, local: Local, at: &[Index], op: BinaryFn, value: &Expr) -> Selected<()> {
        let dtype = self.kernel.locals[local].dtype;
        let float = Form::of(dtype)?.is_float();
        let result = match (op, value) {
            (BinaryFn::Add, Expr::Binary { op: dot, a, b }) if dot.is_dot() => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let sum = self.get(local, at)?;
                self.dot(*dot, sum, a, b)?
            }
            (BinaryFn::Add, Expr::Binary { op: BinaryFn::Mul, a, b }) if float => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let sum = self.get(local, at)?;
                let value = self.fma(a, b, sum)?;
                self.round(value, dtype)?
            }
            _ => {
                let value = self.eval(value)?;
                let sum = self.get(local, at)?;
                self.binary(op, dtype, sum, value)?
            }
        };
        self.set(local, at, result)
    }

    /// The vector of one scalar for each lane.
    pub fn join(&mut self, scalars: &[Reg], width: usize) -> Selected<Val> {
        let lanes = self.lanes(width)?;
        if lanes.is_scalar() {
            return Ok(Val::scalar(scalars[0], width));
        }
        // The first is where it belongs, below lanes that are set next.
        let mut vector = scalars[0];
        for (lane, &scalar) in scalars.iter().enumerate().skip(1) {
            vector = self.insert(lane, lanes, vector, scalar)?;
        }
        Ok(Val::vector(vector, width))
    }

    fn insert(&mut self, lane: usize, lanes: Lanes, vector: Reg, scalar: Reg) -> Selected<Reg> {
        let op = Op::Insert(lane as u8, lanes);
        match self.isa.has(op) {
            true => Ok(self.vec(op, vec![vector, scalar])),
            false => refuse("lanes from different places"),
        }
    }

    /// One lane of a value.
    pub fn lane_of(&mut self, value: Val, lane: usize) -> Selected<Reg> {
        match value.register() {
            Some(reg) if value.is_vector() => {
                let one = if value.width == 8 { Lanes::D1 } else { Lanes::X1 };
                Ok(self.vec(Op::Extract(lane as u8, one), vec![reg]))
            }
            _ => self.scalar(value),
        }
    }

    /// A bool as lanes of 32 bits, all or none set.
    pub fn mask_as_bits(&mut self, value: Val) -> Selected<Val> {
        if let Some(bit) = value.as_bits() {
            return Ok(Val::int(if bit == 0 { 0 } else { -1 }));
        }
        let lanes = if value.is_vector() { self.lanes(4)? } else { Lanes::X1 };
        let mask = Val::of(self.spread(value, lanes), lanes);
        self.apply(Op::MaskBits, &[mask])
    }
}

fn assigned(bodies: &[&[Stmt]]) -> Vec<Local> {
    let locals: HashSet<Local> = bodies.iter().flat_map(|body| written(body)).collect();
    let mut locals: Vec<Local> = locals.into_iter().collect();
    // In one order: the same kernel gives the same code.
    locals.sort();
    locals
}
