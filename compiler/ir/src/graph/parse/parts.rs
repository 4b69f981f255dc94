//! The parts of the text form that the tensor IR and the loop IR share: numbered names, lists and dims.

use cranelift_entity::EntityRef;

use crate::error::Result;
use crate::graph::Dim;
use crate::graph::dim::Sym;
use crate::graph::parse::lexer::{Lexer, Token};

/// Graphs, and parentheses, that may be open in a text: the parser recurses on the stack of its caller.
const MAX_OPEN: usize = 64;

pub struct Parser<'t> {
    pub lexer: Lexer<'t>,
    /// Symbols that may be used: those of the graph being read or of any around it.
    pub(crate) symbols: usize,
    /// How many graphs, and how many parentheses, are open.
    pub depth: usize,
    /// How many may be.
    pub most: usize,
}

impl<'t> Parser<'t> {
    /// A parser of a text that may use the first `symbols` symbols.
    pub fn new(text: &'t str, symbols: usize) -> Result<Parser<'t>> {
        Ok(Parser { lexer: Lexer::new(text)?, symbols, depth: 0, most: MAX_OPEN })
    }

    pub fn enter(&mut self, what: &str) -> Result<()> {
        self.depth += 1;
        if self.depth > self.most {
            return self.lexer.fail(format!("{what} nest deeper than {}", self.most));
        }
        Ok(())
    }

    /// A word of a letter and a number.
    pub fn numbered(&mut self, letter: char, what: &str) -> Result<usize> {
        if let Token::Word(word) = self.lexer.token()
            && let Some(digits) = word.strip_prefix(letter)
            && let Some(number) = canonical_number(digits)
        {
            // Numbers may have gaps, which cost memory: no more than in proportion to the text.
            if number > self.lexer.text_len().max(1 << 16) {
                return self.lexer.fail(format!("{word} is too large a number"));
            }
            self.lexer.advance()?;
            return Ok(number);
        }
        self.lexer.expected(what)
    }

    /// A number of a size that indexes and counts have.
    pub fn index(&mut self) -> Result<usize> {
        match self.lexer.token() {
            Token::Number(text) => match canonical_number(text) {
                Some(number) => {
                    self.lexer.advance()?;
                    Ok(number)
                }
                None => self.lexer.expected("a number below 2^31"),
            },
            _ => self.lexer.expected("a number"),
        }
    }

    pub(crate) fn dims(&mut self) -> Result<Vec<Dim>> {
        self.list(|parser| parser.dim())
    }

    /// `[item, item]`
    pub fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.lexer.punct("[")?;
        let mut items = Vec::new();
        if self.lexer.eat_punct("]")? {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.lexer.eat_punct(",")? {
                self.lexer.punct("]")?;
                return Ok(items);
            }
        }
    }

    pub fn dim(&mut self) -> Result<Dim> {
        self.enter("dims")?;
        let mut sum = Dim::ZERO;
        let mut negative = self.lexer.eat_punct("-")?;
        loop {
            sum = sum + self.product(negative)?;
            negative = match self.lexer.token() {
                Token::Punct("+") => false,
                Token::Punct("-") => true,
                _ => break,
            };
            self.lexer.advance()?;
        }
        self.depth -= 1;
        Ok(sum)
    }

    pub(crate) fn product(&mut self, negative: bool) -> Result<Dim> {
        let mut coefficient = if negative { -1i128 } else { 1 };
        let mut product = Dim::ONE;
        let at = self.lexer.position();
        loop {
            if let Token::Number(text) = self.lexer.token() {
                let number = text.parse::<u64>().ok().and_then(|value| coefficient.checked_mul(value.into()));
                match number {
                    Some(number) => coefficient = number,
                    None => return self.lexer.expected("an integer below 2^63"),
                }
                self.lexer.advance()?;
            } else {
                product = product * self.factor()?;
            }
            if !self.lexer.eat_punct("*")? {
                break;
            }
        }
        match i64::try_from(coefficient) {
            Ok(coefficient) => Ok(product * Dim::from(coefficient)),
            Err(_) => self.lexer.fail_at(at, format!("{coefficient} exceeds 64 bits")),
        }
    }

    pub fn factor(&mut self) -> Result<Dim> {
        if self.lexer.eat_punct("(")? {
            let dim = self.dim()?;
            self.lexer.punct(")")?;
            return Ok(dim);
        }
        let Token::Word(word) = *self.lexer.token() else {
            return self.lexer.expected("a dim such as 3 or s0");
        };
        let at = self.lexer.position();
        if let Some(number) = word.strip_prefix('s').and_then(canonical_number) {
            if number >= self.symbols {
                return self.lexer.fail(format!("the symbol {word} is not declared"));
            }
            self.lexer.advance()?;
            return Ok(Dim::sym(Sym::new(number)));
        }
        if !["floordiv", "mod", "min", "max", "broadcast"].contains(&word) {
            return self.lexer.expected("a dim such as 3, s0 or min(s0, 3)");
        }
        self.lexer.advance()?;
        self.lexer.punct("(")?;
        let a = self.dim()?;
        self.lexer.punct(",")?;
        let b = self.dim()?;
        self.lexer.punct(")")?;
        let result = match word {
            "floordiv" => a.floor_div(&b),
            "mod" => a.modulo(&b),
            "min" => Some(a.min_dim(&b)),
            "max" => Some(a.max_dim(&b)),
            _ => Some(a.broadcast(&b)),
        };
        match result {
            Some(dim) => Ok(dim),
            None => self.lexer.fail_at(at, format!("{word} by zero")),
        }
    }
}

/// Decimal digits without leading zeros, below 2^31.
pub(crate) fn canonical_number(digits: &str) -> Option<usize> {
    let plain = digits == "0" || !digits.starts_with('0');
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    (plain && number < 1 << 31).then_some(number)
}
