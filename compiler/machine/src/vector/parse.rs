//! The text form of functions, read. `vector::print` writes it.
//!
//! ```text
//! function = "function" "{" ["frame" NUMBER] tile* block+ "}"     bytes of the frame
//! tile     = "tile" NUMBER NUMBER NUMBER                     its number, from 0 on; rows, bytes of a row
//! block    = BLOCK ["(" REG ("," REG)* ")"] ":" inst* end
//! inst     = [REG "="] NAME type [operand ("," operand)*]
//! type     = "int"                                           a general register: 64 bits
//!          | ("f" | "i" | "b" | "m") BITS ["x" COUNT]        lanes of floats, integers, bits, or a mask of such lanes
//! operand  = ["-"] NUMBER | REG
//!          | ["each"] "[" REG [("+" | "-") NUMBER] "]"       in memory; each: one element for every lane
//!          | "0x" HEX                                        bits of every lane
//! end      = "jump" BLOCK ["(" REG ("," REG)* ")"]
//!          | "branch" COND REG "," (REG | ["-"] NUMBER) "then" BLOCK "else" BLOCK
//!          | "return" ["-"] NUMBER
//! ```
//!
//! `BLOCK` is `block` and digits, in order from 0; `REG` is `g` (general), `v` (vector) or `m` (mask) and digits, each number
//! once. The names of operations are the table of `vector::op`; a number of an operation is its first operand.
//! Numbers of registers are kept; those that the text skips become registers that nothing uses. What the text says is
//! checked by `vector::verify`, not here.

use cranelift_entity::EntityRef;

use crate::vector::ir::{
    Address, Block, BlockId, Class, Cond, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, TileShape,
};
use crate::vector::op::{LaneKind, SPELLINGS};
use crate::vector::print::{class_letter, cond_name, type_name};
use onnxc_ir::error::Result;
use onnxc_ir::graph::parse::lexer::{Lexer, Token};

/// Most registers of a function that is read: their numbers need not follow each other.
const MAX_REGS: usize = 1 << 20;

/// Reads a function; an error gives line, column and what was expected.
pub fn parse(text: &str) -> Result<Func> {
    let mut parser = FuncParser { lexer: Lexer::new(text)?, func: Func::default(), regs: vec![] };
    parser.function()?;
    if *parser.lexer.token() != Token::End {
        return parser.lexer.expected("the end of the text");
    }
    let mut func = parser.func;
    for class in parser.regs {
        func.regs.push(class.unwrap_or(Class::Int));
    }
    Ok(func)
}

struct FuncParser<'t> {
    lexer: Lexer<'t>,
    func: Func,
    /// Classes of registers by number, as far as the text has named them.
    regs: Vec<Option<Class>>,
}

impl FuncParser<'_> {
    fn function(&mut self) -> Result<()> {
        self.lexer.keyword("function")?;
        self.lexer.punct("{")?;
        if self.lexer.eat_keyword("frame")? {
            self.func.frame = self.size()?;
        }
        while self.lexer.eat_keyword("tile")? {
            let (at, next) = (self.lexer.position(), self.func.tiles.len());
            if self.size::<usize>()? != next {
                return self.lexer.fail_at(at, format!("tile {next} comes next"));
            }
            let shape = TileShape { rows: self.size()?, bytes: self.size()? };
            self.func.tiles.push(shape);
        }
        while !self.lexer.eat_punct("}")? {
            self.block()?;
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        let at = self.lexer.position();
        let next = self.func.blocks.len();
        if self.block_name()?.index() != next {
            return self.lexer.fail_at(at, format!("block{next} comes next"));
        }
        let params = self.regs_in_parentheses()?;
        self.lexer.punct(":")?;
        let mut insts = vec![];
        let end = loop {
            if let Some(end) = self.end()? {
                break end;
            }
            insts.push(self.inst()?);
        };
        self.func.blocks.push(Block { params, insts, end });
        Ok(())
    }

    fn block_name(&mut self) -> Result<BlockId> {
        let number = match *self.lexer.token() {
            Token::Word(word) => word.strip_prefix("block").and_then(|digits| digits.parse::<u32>().ok()),
            _ => None,
        };
        let Some(number) = number else { return self.lexer.expected("a block such as block0") };
        self.lexer.advance()?;
        Ok(BlockId::from_u32(number))
    }

    fn regs_in_parentheses(&mut self) -> Result<Vec<Reg>> {
        let mut regs = vec![];
        if self.lexer.eat_punct("(")? {
            while !self.lexer.eat_punct(")")? {
                if !regs.is_empty() {
                    self.lexer.punct(",")?;
                }
                regs.push(self.reg()?);
            }
        }
        Ok(regs)
    }

    /// The register that the token names, if it names one.
    fn named(&self) -> Option<(Class, usize)> {
        let Token::Word(word) = *self.lexer.token() else { return None };
        let classes = [Class::Int, Class::Vec, Class::Mask];
        let class = classes.into_iter().find(|&class| word.starts_with(class_letter(class)))?;
        Some((class, word[1..].parse().ok().filter(|&number| number < MAX_REGS)?))
    }

    fn reg(&mut self) -> Result<Reg> {
        let Some((class, number)) = self.named() else {
            return self.lexer.expected("a register such as g0, v1 or m2");
        };
        if self.regs.len() <= number {
            self.regs.resize(number + 1, None);
        }
        match self.regs[number].replace(class) {
            Some(other) if other != class => {
                let message = format!("register {number} is {}{number} elsewhere", class_letter(other));
                self.lexer.fail(message)
            }
            _ => {
                self.lexer.advance()?;
                Ok(Reg::new(number))
            }
        }
    }

    fn inst(&mut self) -> Result<Inst> {
        let dst = match self.named() {
            Some(_) => {
                let dst = self.reg()?;
                self.lexer.punct("=")?;
                Some(dst)
            }
            None => None,
        };
        let at = self.lexer.position();
        let Token::Word(name) = *self.lexer.token() else { return self.lexer.expected("an operation") };
        self.lexer.advance()?;
        let (kind, lanes) = self.ty()?;
        let number = match *self.lexer.token() {
            Token::Number(_) | Token::Punct("-") => Some(self.lexer.integer()? as u64),
            Token::Hex(_) => Some(self.hex()?),
            _ => None,
        };
        let spelled =
            SPELLINGS.iter().find(|one| (one.name, one.kind, one.number) == (name, kind, number.is_some()));
        let Some(spelled) = spelled else {
            let numbered = if number.is_some() { " with a number" } else { "" };
            return self
                .lexer
                .fail_at(at, format!("there is no `{name} {}`{numbered}", type_name(kind, lanes)));
        };
        let op: Op = (spelled.op)(lanes, number.unwrap_or_default());
        let (mut uses, mut mem) = (vec![], None);
        let mut more = match number {
            Some(_) => self.lexer.eat_punct(",")?,
            None => self.operand_follows(),
        };
        while more {
            match self.mem()? {
                Some(place) => {
                    mem = Some(place);
                    break;
                }
                None => uses.push(self.reg()?),
            }
            more = self.lexer.eat_punct(",")?;
        }
        Ok(Inst { op, dst, uses, mem })
    }

    /// Whether an operand is next, rather than an instruction: a register that nothing is given to.
    fn operand_follows(&self) -> bool {
        match self.lexer.token() {
            Token::Punct("[") => true,
            Token::Word("each") => true,
            Token::Word(_) => self.named().is_some() && !self.lexer.punct_follows("="),
            _ => false,
        }
    }

    fn ty(&mut self) -> Result<(LaneKind, Lanes)> {
        let Token::Word(word) = *self.lexer.token() else {
            return self.lexer.expected("a type such as f32x8");
        };
        let kinds = [LaneKind::Float, LaneKind::Int, LaneKind::Bits, LaneKind::Mask];
        let found = match word {
            "int" => Some((LaneKind::General, Lanes::X1)),
            _ => kinds.into_iter().find_map(|kind| {
                let lanes = Lanes::ALL.into_iter().find(|&lanes| type_name(kind, lanes) == word)?;
                Some((kind, lanes))
            }),
        };
        let Some(found) = found else { return self.lexer.expected("a type such as f32x8 or int") };
        self.lexer.advance()?;
        Ok(found)
    }

    fn size<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let at = self.lexer.position();
        match T::try_from(self.lexer.integer()?) {
            Ok(value) => Ok(value),
            Err(_) => self.lexer.fail_at(at, "a size is expected".to_string()),
        }
    }

    fn int32(&mut self) -> Result<i32> {
        let at = self.lexer.position();
        match i32::try_from(self.lexer.integer()?) {
            Ok(value) => Ok(value),
            Err(_) => self.lexer.fail_at(at, "more than 32 bits".to_string()),
        }
    }

    fn hex(&mut self) -> Result<u64> {
        let Token::Hex(digits) = *self.lexer.token() else { return self.lexer.expected("bits such as 0x3f") };
        let Ok(bits) = u64::from_str_radix(digits, 16) else { return self.lexer.expected("at most 64 bits") };
        self.lexer.advance()?;
        Ok(bits)
    }

    /// An operand in memory, or a constant that is there.
    fn mem(&mut self) -> Result<Option<Mem>> {
        if matches!(self.lexer.token(), Token::Hex(_)) {
            return Ok(Some(Mem::Constant(self.hex()?)));
        }
        let each = self.lexer.eat_keyword("each")?;
        if !each && !self.lexer.is_punct("[") {
            return Ok(None);
        }
        self.lexer.punct("[")?;
        let mut address = Address { base: self.reg()?, scaled: None, disp: 0 };
        loop {
            match *self.lexer.token() {
                Token::Punct("+") => self.lexer.advance()?,
                Token::Punct("-") => {}
                _ => break,
            }
            match self.named() {
                Some(_) => address.scaled = Some(self.scaled()?),
                None => {
                    address.disp = self.int32()?;
                    break;
                }
            }
        }
        self.lexer.punct("]")?;
        Ok(Some(if each { Mem::Each(address) } else { Mem::At(address) }))
    }

    /// A register times a power of two, as its logarithm.
    fn scaled(&mut self) -> Result<(Reg, u8)> {
        let reg = self.reg()?;
        self.lexer.punct("*")?;
        let at = self.lexer.position();
        match self.lexer.integer()? {
            scale @ (1 | 2 | 4 | 8) => Ok((reg, scale.trailing_zeros() as u8)),
            scale => self.lexer.fail_at(at, format!("{scale} is not 1, 2, 4 or 8")),
        }
    }

    /// The end of a block, if it is next.
    fn end(&mut self) -> Result<Option<End>> {
        Ok(Some(if self.lexer.eat_keyword("jump")? {
            let to = self.block_name()?;
            End::Jump(to, self.regs_in_parentheses()?)
        } else if self.lexer.eat_keyword("return")? {
            End::Return(self.int32()?)
        } else if self.lexer.eat_keyword("branch")? {
            let conds = [Cond::Lt, Cond::Ge, Cond::Eq, Cond::Ne];
            let cond = conds.into_iter().find(|&cond| *self.lexer.token() == Token::Word(cond_name(cond)));
            let Some(cond) = cond else { return self.lexer.expected("`lt`, `ge`, `eq` or `ne`") };
            self.lexer.advance()?;
            let a = self.reg()?;
            self.lexer.punct(",")?;
            let b = match self.named() {
                Some(_) => Operand::Reg(self.reg()?),
                None => Operand::Imm(self.int32()?),
            };
            self.lexer.keyword("then")?;
            let then = self.block_name()?;
            self.lexer.keyword("else")?;
            End::Branch { cond, a, b, then, otherwise: self.block_name()? }
        } else {
            return Ok(None);
        }))
    }
}
