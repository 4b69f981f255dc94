//! Numbers of few bits as floats: where lanes can be taken from a vector by number, the vector is a table of all values.

use super::value::Val;
use super::{Select, Selected};
use cranelift_entity::EntityRef;
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::BinaryFn;
use onnxc_loops::Expr;
use onnxc_machine::vector::ir::{BlockId, Class, Inst, Lanes, Op, Reg};

/// Lanes of a table. The lowest bits of a lane number them.
const TABLE: Lanes = Lanes::X16;

/// `(x & 15) as f32 - bias`, with what is between as it stands: `x` and the bias.
fn code(expr: &Expr) -> Option<(&Expr, f32)> {
    match expr {
        Expr::Binary { op: BinaryFn::Sub, a, b } => {
            let (&Expr::Const { dtype: DType::F32, bits }, (x, bias)) = (&**b, code(a)?) else { return None };
            Some((x, bias + f32::from_bits(bits as u32)))
        }
        Expr::Cast { to: DType::F32, x, .. } => match &**x {
            Expr::Binary { op: BinaryFn::BitAnd, a, b } => {
                let mask = Expr::Const { dtype: DType::I32, bits: TABLE.count() as u64 - 1 };
                (**b == mask).then_some((&**a, 0.0))
            }
            _ => None,
        },
        _ => None,
    }
}

impl Select<'_> {
    /// A code of four bits as a float, where a table serves all lanes.
    pub fn from_table(&mut self, expr: &Expr) -> Selected<Option<Val>> {
        if self.group.as_ref().is_none_or(|group| group.lanes != TABLE.count())
            || !self.isa.has(Op::Permute(TABLE))
        {
            return Ok(None);
        }
        let Some((x, bias)) = code(expr) else { return Ok(None) };
        // Other numbers are not the differences that rounding gives.
        let exact = bias.fract() == 0.0 && (0.0..=256.0).contains(&bias);
        let index = self.eval(x)?;
        let Some(index) = index.register().filter(|_| exact && index.is_vector()) else { return Ok(None) };
        let table = self.ramp(-bias);
        let reg = self.vec(Op::Permute(TABLE), vec![index, table]);
        let mut value = Val::vector(reg, TABLE.width());
        (value.not_nan, value.above, value.below) = (true, true, true);
        Ok(Some(value))
    }

    /// Floats that rise by 1 from lane to lane, for the whole function.
    fn ramp(&mut self, first: f32) -> Reg {
        let bits = u64::from(first.to_bits());
        if let Some(&known) = self.ramps.get(&bits) {
            return known;
        }
        let dst = self.reg(Class::Vec);
        let inst = Inst { op: Op::Ramp(TABLE, bits), dst: Some(dst), uses: vec![], mem: None };
        self.func.blocks[BlockId::new(0)].insts.push(inst);
        self.ramps.insert(bits, dst);
        dst
    }
}
