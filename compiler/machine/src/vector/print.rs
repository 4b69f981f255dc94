//! The text form of functions, written. `vector::parse` documents the grammar and reads it.

use std::fmt::{self, Display, Formatter, Write};

use cranelift_entity::EntityRef;

use crate::vector::ir::{Address, Class, Cond, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, TileShape};
use crate::vector::op::LaneKind;

/// Such as `f32x8`; one lane is `f32`.
pub(super) fn type_name(kind: LaneKind, lanes: Lanes) -> String {
    let letter = match kind {
        LaneKind::Float => 'f',
        LaneKind::Int => 'i',
        LaneKind::Bits => 'b',
        LaneKind::Mask => 'm',
        LaneKind::General => return "int".to_string(),
    };
    match lanes.count() {
        1 => format!("{letter}{}", 8 * lanes.width()),
        count => format!("{letter}{}x{count}", 8 * lanes.width()),
    }
}

pub(super) fn class_letter(class: Class) -> char {
    match class {
        Class::Int => 'g',
        Class::Vec => 'v',
        Class::Mask => 'm',
    }
}

pub(super) fn cond_name(cond: Cond) -> &'static str {
    match cond {
        Cond::Lt => "lt",
        Cond::Ge => "ge",
        Cond::Eq => "eq",
        Cond::Ne => "ne",
    }
}

impl Display for Func {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "function {{")?;
        if self.frame > 0 {
            writeln!(f, "frame {}", self.frame)?;
        }
        for (number, TileShape { rows, bytes }) in self.tiles.iter().enumerate() {
            writeln!(f, "tile {number} {rows} {bytes}")?;
        }
        for (id, block) in &self.blocks {
            write!(f, "{id}")?;
            if !block.params.is_empty() {
                write!(f, "({})", self.names(&block.params))?;
            }
            writeln!(f, ":")?;
            for inst in &block.insts {
                writeln!(f, "  {}", self.inst(inst))?;
            }
            writeln!(f, "  {}", self.end(&block.end))?;
        }
        writeln!(f, "}}")
    }
}

impl Func {
    /// A register with the letter of its class.
    fn name(&self, reg: Reg) -> String {
        let letter = self.regs.get(reg).map_or('?', |&class| class_letter(class));
        format!("{letter}{}", reg.index())
    }

    fn names(&self, regs: &[Reg]) -> String {
        regs.iter().map(|&reg| self.name(reg)).collect::<Vec<_>>().join(", ")
    }

    fn inst(&self, inst: &Inst) -> String {
        let mut text = String::new();
        if let Some(dst) = inst.dst {
            let _ = write!(text, "{} = ", self.name(dst));
        }
        match inst.op.spelling() {
            Some(one) => {
                let _ = write!(text, "{} {}", one.name, type_name(one.kind, inst.op.written_lanes()));
            }
            None => text.push_str(&format!("{:?}", inst.op)),
        }
        let number = inst.op.number().map(|number| match inst.op {
            Op::Splat(..) | Op::Ramp(..) => format!("0x{number:x}"),
            _ => (number as i64).to_string(),
        });
        let uses = inst.uses.iter().map(|&reg| self.name(reg));
        let mem = inst.mem.map(|mem| match mem {
            Mem::At(address) => self.address(address),
            Mem::Each(address) => format!("each {}", self.address(address)),
            Mem::Constant(bits) => format!("0x{bits:x}"),
        });
        let operands: Vec<String> = number.into_iter().chain(uses).chain(mem).collect();
        if !operands.is_empty() {
            let _ = write!(text, " {}", operands.join(", "));
        }
        text
    }

    fn address(&self, Address { base, scaled, disp }: Address) -> String {
        let base = self.name(base);
        let scaled =
            scaled.map_or(String::new(), |(reg, log)| format!(" + {} * {}", self.name(reg), 1u32 << log));
        match disp {
            0 => format!("[{base}{scaled}]"),
            1.. => format!("[{base}{scaled} + {disp}]"),
            _ => format!("[{base}{scaled} - {}]", disp.unsigned_abs()),
        }
    }

    fn end(&self, end: &End) -> String {
        match end {
            End::Jump(to, args) if args.is_empty() => format!("jump {to}"),
            End::Jump(to, args) => format!("jump {to}({})", self.names(args)),
            End::Branch { cond, a, b, then, otherwise } => {
                let b = match b {
                    Operand::Reg(b) => self.name(*b),
                    Operand::Imm(b) => b.to_string(),
                };
                format!("branch {} {}, {b} then {then} else {otherwise}", cond_name(*cond), self.name(*a))
            }
            End::Return(code) => format!("return {code}"),
        }
    }
}
