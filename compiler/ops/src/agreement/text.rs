//! The text of agreements, read. See the module above for what it means.
//!
//! ```text
//! agreement = ["if" guard ("and" guard)* ":"] claim
//! guard     = ["!"] NAME | NAME ("=" | "!=") (NAME | NUMBER)
//! claim     = INPUT shape ("|" shape)*
//!           | "broadcast" "(" operand ("," operand)* ["->" operand] ")"
//!           | expr ("=" | "<=") expr
//! operand   = INPUT | RUN | shape
//! shape     = "[" [term ("," term)*] "]"
//! term      = "_" | [NAME] ".." [expr] | expr ("|" expr)*
//! expr      = product (("+" | "-") product)* ["else" expr]
//! product   = factor (("*" | "/" | "%") factor)*
//! factor    = NUMBER | NAME | ("rank" | "count" | "len" | "prod") "(" NAME ")" | "ceil" "(" expr "/" factor ")"
//!           | "(" expr ")"
//! ```

/// One agreement.
#[derive(Debug)]
pub(super) struct Agreement<'t> {
    pub guards: Vec<Guard<'t>>,
    pub claim: Claim<'t>,
}

/// When a claim holds.
#[derive(Debug)]
pub(super) enum Guard<'t> {
    /// An attribute has a value, or an optional input is given: or neither, where not `wanted`.
    Given { name: &'t str, wanted: bool },
    /// An attribute is `value`, or is not.
    Is { name: &'t str, value: &'t str, wanted: bool },
}

#[derive(Debug)]
pub(super) enum Claim<'t> {
    /// The shape of an input is the first of these that has its rank.
    Shape {
        input: &'t str,
        shapes: Vec<Vec<Term<'t>>>,
    },
    /// Shapes broadcast against each other, or all of them to one.
    Broadcast {
        from: Vec<Operand<'t>>,
        to: Option<Operand<'t>>,
    },
    Relation {
        left: Expr<'t>,
        at_most: bool,
        right: Expr<'t>,
    },
}

#[derive(Debug)]
pub(super) enum Operand<'t> {
    Name(&'t str),
    Shape(Vec<Term<'t>>),
}

#[derive(Debug)]
pub(super) enum Term<'t> {
    Any,
    Run {
        name: Option<&'t str>,
        count: Option<Expr<'t>>,
    },
    /// One of these sizes.
    Dim(Vec<Expr<'t>>),
}

#[derive(Debug)]
pub(super) enum Expr<'t> {
    Number(i64),
    Name(&'t str),
    Rank(&'t str),
    Count(&'t str),
    Len(&'t str),
    Prod(&'t str),
    Binary(Operator, Box<[Expr<'t>; 2]>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    /// Exact: the right side divides the left one.
    Div,
    Mod,
    Ceil,
    /// The left side, or the right one where the left one mentions what is not given.
    Else,
}

/// Reads an agreement; the error says where the text ends to be one. Texts are those of the operator table.
pub(super) fn parse(text: &str) -> Result<Agreement<'_>, String> {
    let mut reader = Reader { text, at: 0 };
    let agreement = reader.agreement()?;
    match reader.peek() {
        "" => Ok(agreement),
        _ => reader.expected("the end"),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    /// The next token; empty at the end.
    fn peek(&self) -> &'t str {
        let rest = self.text[self.at..].trim_start();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let pair = ["..", "->", "<=", "!="].iter().any(|pair| rest.starts_with(pair));
        match word {
            0 if pair => &rest[..2],
            0 => &rest[..rest.chars().next().map_or(0, char::len_utf8)],
            _ => &rest[..word],
        }
    }

    fn next(&mut self) -> &'t str {
        let token = self.peek();
        self.at = self.text.len() - self.text[self.at..].trim_start().len() + token.len();
        token
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        if found {
            self.next();
        }
        found
    }

    fn want(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { self.expected(token) }
    }

    fn expected<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("`{}`: {what} is expected at `{}`", self.text, &self.text[self.at..]))
    }

    fn name(&mut self) -> Result<&'t str, String> {
        match self.peek() {
            token if token.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') => Ok(self.next()),
            _ => self.expected("a name"),
        }
    }

    fn agreement(&mut self) -> Result<Agreement<'t>, String> {
        let mut guards = Vec::new();
        if self.eat("if") {
            guards.push(self.guard()?);
            while self.eat("and") {
                guards.push(self.guard()?);
            }
            self.want(":")?;
        }
        Ok(Agreement { guards, claim: self.claim()? })
    }

    fn guard(&mut self) -> Result<Guard<'t>, String> {
        if self.eat("!") {
            return Ok(Guard::Given { name: self.name()?, wanted: false });
        }
        let name = self.name()?;
        let wanted = match self.peek() {
            "=" => true,
            "!=" => false,
            _ => return Ok(Guard::Given { name, wanted: true }),
        };
        self.next();
        Ok(Guard::Is { name, value: self.name()?, wanted })
    }

    fn claim(&mut self) -> Result<Claim<'t>, String> {
        let start = self.at;
        let name = self.peek();
        if name == "broadcast" {
            self.next();
            return self.broadcast();
        }
        if self.name().is_ok() && self.peek() == "[" {
            let mut shapes = vec![self.shape()?];
            while self.eat("|") {
                shapes.push(self.shape()?);
            }
            return Ok(Claim::Shape { input: name, shapes });
        }
        self.at = start;
        let left = self.expr()?;
        let at_most = match self.next() {
            "=" => false,
            "<=" => true,
            _ => return self.expected("`=` or `<=`"),
        };
        Ok(Claim::Relation { left, at_most, right: self.expr()? })
    }

    fn broadcast(&mut self) -> Result<Claim<'t>, String> {
        self.want("(")?;
        let mut from = vec![self.operand()?];
        while self.eat(",") {
            from.push(self.operand()?);
        }
        let to = if self.eat("->") { Some(self.operand()?) } else { None };
        self.want(")")?;
        Ok(Claim::Broadcast { from, to })
    }

    fn operand(&mut self) -> Result<Operand<'t>, String> {
        match self.peek() {
            "[" => Ok(Operand::Shape(self.shape()?)),
            _ => Ok(Operand::Name(self.name()?)),
        }
    }

    fn shape(&mut self) -> Result<Vec<Term<'t>>, String> {
        self.want("[")?;
        let mut terms = Vec::new();
        while !self.eat("]") {
            if !terms.is_empty() {
                self.want(",")?;
            }
            terms.push(self.term()?);
        }
        Ok(terms)
    }

    fn term(&mut self) -> Result<Term<'t>, String> {
        if self.eat("_") {
            return Ok(Term::Any);
        }
        let start = self.at;
        let name = if self.peek() == ".." { None } else { self.name().ok() };
        if self.eat("..") {
            let count = if matches!(self.peek(), "," | "]") { None } else { Some(self.expr()?) };
            return Ok(Term::Run { name, count });
        }
        self.at = start;
        let mut sizes = vec![self.expr()?];
        while self.eat("|") {
            sizes.push(self.expr()?);
        }
        Ok(Term::Dim(sizes))
    }

    fn expr(&mut self) -> Result<Expr<'t>, String> {
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                "+" => Operator::Add,
                "-" => Operator::Sub,
                "else" => Operator::Else,
                _ => return Ok(left),
            };
            self.next();
            left = Expr::Binary(operator, Box::new([left, self.product()?]));
        }
    }

    fn product(&mut self) -> Result<Expr<'t>, String> {
        let mut left = self.factor()?;
        loop {
            let operator = match self.peek() {
                "*" => Operator::Mul,
                "/" => Operator::Div,
                "%" => Operator::Mod,
                _ => return Ok(left),
            };
            self.next();
            left = Expr::Binary(operator, Box::new([left, self.factor()?]));
        }
    }

    fn factor(&mut self) -> Result<Expr<'t>, String> {
        if self.eat("(") {
            let inner = self.expr()?;
            self.want(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if let Ok(number) = name.parse() {
            return Ok(Expr::Number(number));
        }
        let of: fn(&'t str) -> Expr<'t> = match name {
            "rank" => Expr::Rank,
            "count" => Expr::Count,
            "len" => Expr::Len,
            "prod" => Expr::Prod,
            "ceil" => {
                self.want("(")?;
                let inner = self.product()?;
                self.want(")")?;
                return match inner {
                    Expr::Binary(Operator::Div, sides) => Ok(Expr::Binary(Operator::Ceil, sides)),
                    _ => self.expected("a quotient in ceil"),
                };
            }
            _ => return Ok(Expr::Name(name)),
        };
        self.want("(")?;
        let argument = self.name()?;
        self.want(")")?;
        Ok(of(argument))
    }
}

/// As messages write it.
impl std::fmt::Display for Expr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Expr::Number(number) => write!(f, "{number}"),
            Expr::Name(name) => f.write_str(name),
            Expr::Rank(name) => write!(f, "the rank of {name}"),
            Expr::Count(name) => write!(f, "the number of elements of {name}"),
            Expr::Len(name) => write!(f, "the number of dims of {name}"),
            Expr::Prod(name) => write!(f, "the product of {name}"),
            Expr::Binary(operator, sides) => {
                let [left, right] = &**sides;
                match operator {
                    Operator::Add => write!(f, "{left} + {right}"),
                    Operator::Sub => write!(f, "{left} - {right}"),
                    Operator::Mul => write!(f, "{left} * {right}"),
                    Operator::Div => write!(f, "{left} / {right}"),
                    Operator::Mod => write!(f, "{left} mod {right}"),
                    Operator::Ceil => write!(f, "ceil({left} / {right})"),
                    Operator::Else => write!(f, "{left}"),
                }
            }
        }
    }
}
