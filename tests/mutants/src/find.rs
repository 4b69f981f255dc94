//! The mutation operators: every place of a source file where one applies.
//!
//! They are those of the literature (comparisons, arithmetic, logic, constants, deleted statements and arms, results of
//! functions), and some that are common slips in Rust: `min` for `max`, `any` for `all`, an argument for its neighbour.
//! Operators need no types: what does not compile is left out later.
//!
//! Left alone is what cannot change a result: tests, text (arguments of macros and of functions that make errors,
//! `Display`), and what must be known at compile time (constants, patterns, lengths).

use std::ops::Range;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Lit, ReturnType, Stmt, Token, Type, UnOp};

use crate::rewrite::{Form, Mutant};

/// What a file holds.
pub(crate) struct Found {
    pub mutants: Vec<Mutant>,
    /// Modules in files of their own that only tests have.
    pub test_modules: Vec<String>,
}

pub(crate) fn find(path: &str, text: &str) -> syn::Result<Found> {
    let file = syn::parse_file(text)?;
    let mut finder =
        Finder { path, text, functions: Vec::new(), mutants: Vec::new(), test_modules: Vec::new() };
    finder.visit_file(&file);
    Ok(Found { mutants: finder.mutants, test_modules: finder.test_modules })
}

struct Finder<'t> {
    path: &'t str,
    text: &'t str,
    functions: Vec<String>,
    mutants: Vec<Mutant>,
    test_modules: Vec<String>,
}

/// Functions and methods whose arguments are messages.
const MESSAGES: &[&str] = &[
    "Err",
    "context",
    "expect",
    "internal",
    "invalid",
    "malformed",
    "map_err",
    "message",
    "ok_or",
    "ok_or_else",
    "problem",
    "refuse",
    "refused",
    "report",
    "too_large",
    "unsupported",
    "usage",
    "with_context",
];

/// Functions, and operators among the arguments, whose other two arguments may come in any order.
const COMMUTATIVE: &[&str] = &[
    "add", "Add", "and", "And", "band", "bor", "bxor", "both", "eq", "Eq", "fadd", "fma", "fmul", "iadd",
    "imul", "max", "Max", "min", "Min", "mul", "Mul", "ne", "Ne", "or", "Or", "swap", "xor", "Xor", "Equal",
    "NotEqual", "IntAdd", "IntMul",
];

/// Methods that take a predicate.
const PREDICATES: &[&str] = &[
    "all",
    "any",
    "filter",
    "find",
    "is_none_or",
    "is_some_and",
    "partition",
    "position",
    "retain",
    "rposition",
    "skip_while",
    "take_while",
];

/// Methods of the same signature; each is replaced by its partner.
const PARTNERS: &[(&str, &str)] = &[
    ("all", "any"),
    ("back", "front"),
    ("ceil", "floor"),
    ("checked_add", "checked_sub"),
    ("checked_mul", "checked_add"),
    ("first", "last"),
    ("first_mut", "last_mut"),
    ("insert", "remove"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("leading_zeros", "trailing_zeros"),
    ("max", "min"),
    ("max_by_key", "min_by_key"),
    ("pop_back", "pop_front"),
    ("push_back", "push_front"),
    ("saturating_add", "saturating_sub"),
    ("sin", "cos"),
    ("starts_with", "ends_with"),
    ("take", "skip"),
    ("take_while", "skip_while"),
    ("wrapping_add", "wrapping_sub"),
];

/// Methods whose call is replaced by its receiver.
const IDENTITIES: &[&str] =
    &["abs", "next_multiple_of", "next_power_of_two", "not", "rev", "saturating_sub", "sqrt"];

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let condition =
            || attribute.parse_args::<proc_macro2::TokenStream>().map(|tokens| tokens.to_string());
        path.is_ident("test")
            || (path.is_ident("cfg")
                && condition()
                    .is_ok_and(|text| text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")))
    })
}

/// What an operator becomes.
fn replaced(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["+"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitXor(_) => &["&"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["+="],
        BinOp::DivAssign(_) => &["*="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

fn is_assignment(op: &BinOp) -> bool {
    replaced(op).iter().any(|text| text.ends_with('=') && !["!=", "==", "<=", ">="].contains(text))
}

/// Whether an expression binds names: it cannot stand anywhere but in a condition.
fn binds(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => {
            matches!(binary.op, BinOp::And(_)) && (binds(&binary.left) || binds(&binary.right))
        }
        _ => false,
    }
}

/// Values that a function of this type may return at once.
fn results(output: &ReturnType) -> Vec<String> {
    let ReturnType::Type(_, ty) = output else { return vec![String::new()] };
    let values = values_of(ty);
    values.into_iter().map(|value| format!(" {value}")).collect()
}

fn values_of(ty: &Type) -> Vec<String> {
    let text = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => text(&["()"]),
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return Vec::new() };
            match last.ident.to_string().as_str() {
                "bool" => text(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => {
                    text(&["0", "1"])
                }
                "f32" | "f64" => text(&["0.0"]),
                "Option" => text(&["None"]),
                "Vec" => text(&["Vec::new()"]),
                "Result" => match &last.arguments {
                    syn::PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
                        Some(syn::GenericArgument::Type(inner)) => {
                            values_of(inner).iter().map(|value| format!("Ok({value})")).collect()
                        }
                        _ => Vec::new(),
                    },
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// Text on one line.
fn line_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'t> Finder<'t> {
    fn source(&self, node: &impl Spanned) -> &'t str {
        &self.text[range(node)]
    }

    fn add(&mut self, rule: &'static str, range: Range<usize>, before: &str, after: &str, form: Form) {
        let mutant = Mutant {
            path: self.path.to_string(),
            line: 1 + self.text[..range.start].matches('\n').count(),
            function: self.functions.join("::"),
            rule,
            range,
            before: line_of(before),
            after: line_of(after),
            form,
        };
        self.mutants.push(mutant);
    }

    fn value(&mut self, rule: &'static str, node: &impl Spanned, new: String) {
        let before = self.source(node);
        self.add(rule, range(node), before, &new, Form::Value(new.clone()));
    }

    fn statement(&mut self, rule: &'static str, node: &impl Spanned) {
        let before = self.source(node);
        self.add(rule, range(node), before, "", Form::Statement(String::new()));
    }

    fn function(&mut self, attributes: &[Attribute], signature: &syn::Signature, block: &Block) {
        // Text for people has no results in it.
        if is_test(attributes) || signature.constness.is_some() || signature.ident == "fmt" {
            return;
        }
        self.functions.push(signature.ident.to_string());
        if !block.stmts.is_empty() {
            let start = block.brace_token.span.open().byte_range().end;
            for value in results(&signature.output) {
                let tail = format!(" {{ return{value}; }} ");
                let after = format!("return{value};");
                self.add("result of a function", start..start, "", &after, Form::Insert(" if ", tail));
            }
        }
        self.visit_block(block);
        self.functions.pop();
    }

    /// A condition of `if`, a guard or a predicate; `decided` values are tried for it.
    fn condition(&mut self, expr: &Expr, decided: &[&str]) {
        match expr {
            Expr::Let(binding) => return self.visit_expr(&binding.expr),
            Expr::Binary(binary) if binds(expr) => {
                self.condition(&binary.left, &[]);
                return self.condition(&binary.right, &["true"]);
            }
            Expr::Binary(_) | Expr::Unary(_) | Expr::Lit(_) => {}
            _ => self.value("negated condition", expr, format!("!({})", self.source(expr))),
        }
        for value in decided {
            self.value("decided condition", expr, value.to_string());
        }
        self.visit_expr(expr);
    }

    fn binary(&mut self, expr: &syn::ExprBinary) {
        let (left, right) = (self.source(&expr.left), self.source(&expr.right));
        for op in replaced(&expr.op) {
            let new = match is_assignment(&expr.op) {
                true => format!("{left} {op} {right}"),
                false => format!("({left}) {op} ({right})"),
            };
            self.value("operator", expr, new);
        }
        if let BinOp::And(_) | BinOp::Or(_) = expr.op {
            self.value("dropped operand", expr, left.to_string());
            self.value("dropped operand", expr, right.to_string());
        }
    }

    fn literal(&mut self, expr: &syn::ExprLit) {
        match &expr.lit {
            Lit::Int(int) => {
                let Ok(value) = int.base10_parse::<u128>() else { return };
                let near = [value.checked_add(1), value.checked_sub(1)];
                for value in near.into_iter().flatten() {
                    self.value("constant", expr, format!("{value}{}", int.suffix()));
                }
            }
            Lit::Float(float) => {
                let Ok(value) = float.base10_parse::<f64>() else { return };
                let near = if value == 0.0 { 1.0 } else { value * 2.0 };
                self.value("constant", expr, format!("{near:?}{}", float.suffix()));
                if value != 0.0 {
                    self.value("constant", expr, format!("0.0{}", float.suffix()));
                }
            }
            Lit::Bool(bool) => self.value("constant", expr, (!bool.value).to_string()),
            _ => {}
        }
    }

    /// Two neighbouring arguments in the other order, where that is not the same.
    fn arguments(&mut self, name: &str, node: &impl Spanned, arguments: &Punctuated<Expr, Token![,]>) {
        let whole = range(node);
        let last = |expr: &Expr| match expr {
            Expr::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let operators = arguments.iter().filter_map(last).chain([name.to_string()]);
        if operators.into_iter().any(|name| COMMUTATIVE.contains(&name.as_str())) {
            return;
        }
        for (first, second) in arguments.iter().zip(arguments.iter().skip(1)) {
            let (a, b) = (range(first), range(second));
            if self.text[a.clone()] == self.text[b.clone()] {
                continue;
            }
            let new = [
                &self.text[whole.start..a.start],
                &self.text[b.clone()],
                &self.text[a.end..b.start],
                &self.text[a],
                &self.text[b.end..whole.end],
            ];
            self.value("swapped arguments", node, new.concat());
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let name = call.method.to_string();
        self.visit_expr(&call.receiver);
        if MESSAGES.contains(&name.as_str()) {
            return;
        }
        let (whole, at) = (range(call), range(&call.method));
        for (one, other) in PARTNERS {
            let partner = if name == *one {
                other
            } else if name == *other {
                one
            } else {
                continue;
            };
            let new = [&self.text[whole.start..at.start], partner, &self.text[at.end..whole.end]].concat();
            self.value("method", call, new);
        }
        if IDENTITIES.contains(&name.as_str()) {
            self.value("method", call, self.source(&call.receiver).to_string());
        }
        self.arguments(&name, call, &call.args);
        for argument in &call.args {
            match argument {
                Expr::Closure(closure) if PREDICATES.contains(&name.as_str()) => {
                    self.condition(&closure.body, &[])
                }
                _ => self.visit_expr(argument),
            }
        }
    }

    fn call(&mut self, call: &syn::ExprCall) {
        if let Expr::Path(path) = &*call.func {
            let names: Vec<String> =
                path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let last = names.last().map_or("", String::as_str);
            if MESSAGES.contains(&last) || names.iter().any(|name| name == "Error") {
                return;
            }
            match last {
                "Some" => self.value("no value", call, "None".to_string()),
                "max" => self.value("method", call, self.source(call).replacen("max", "min", 1)),
                "min" => self.value("method", call, self.source(call).replacen("min", "max", 1)),
                _ => {}
            }
            self.arguments(last, call, &call.args);
        } else {
            self.visit_expr(&call.func);
        }
        call.args.iter().for_each(|argument| self.visit_expr(argument));
    }

    fn arms(&mut self, expr: &syn::ExprMatch) {
        self.visit_expr(&expr.expr);
        let rest =
            expr.arms.iter().position(|arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none());
        for (at, arm) in expr.arms.iter().enumerate() {
            if let Some((_, guard)) = &arm.guard {
                let decided: &[&str] = if binds(guard) { &[] } else { &["true", "false"] };
                self.condition(guard, decided);
            } else if rest.is_some_and(|rest| at < rest) {
                let end = range(&arm.pat).end;
                let before = self.source(&arm.pat);
                self.add("deleted arm", end..end, before, "", Form::Insert(" if !", String::new()));
            }
            self.visit_expr(&arm.body);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        match (is_test(&item.attrs), &item.content) {
            (true, None) => self.test_modules.push(item.ident.to_string()),
            (true, Some(_)) => {}
            (false, _) => visit::visit_item_mod(self, item),
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            item.items.iter().for_each(|item| self.visit_impl_item(item));
        }
    }

    // Known at compile time, or no code.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}

    /// Arguments of macros are text but for those of `vec`.
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        if item.path.is_ident("vec")
            && let Ok(elements) = item.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated)
        {
            elements.iter().for_each(|element| self.visit_expr(element));
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = statement {
            let deletable = match expr {
                Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) | Expr::Try(_) => true,
                Expr::Binary(binary) => is_assignment(&binary.op),
                Expr::Continue(_) | Expr::Break(_) | Expr::Return(_) => true,
                _ => false,
            };
            if deletable {
                self.statement("deleted statement", statement);
            }
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Binary(binary) => {
                self.binary(binary);
                visit::visit_expr(self, expr);
            }
            Expr::Unary(unary) => {
                if let UnOp::Not(_) | UnOp::Neg(_) = unary.op {
                    self.value("operator", expr, self.source(&unary.expr).to_string());
                }
                visit::visit_expr(self, expr);
            }
            Expr::Lit(literal) => self.literal(literal),
            Expr::If(branch) => {
                self.condition(&branch.cond, &[]);
                self.visit_block(&branch.then_branch);
                branch.else_branch.iter().for_each(|(_, other)| self.visit_expr(other));
            }
            Expr::While(repeat) => {
                // A condition that stays true is a hang, which every test that gets there notices.
                match binds(&repeat.cond) {
                    true => self.condition(&repeat.cond, &[]),
                    false => self.visit_expr(&repeat.cond),
                }
                self.visit_block(&repeat.body);
            }
            Expr::Match(choice) => self.arms(choice),
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) => self.call(call),
            Expr::Repeat(repeat) => self.visit_expr(&repeat.expr),
            Expr::Range(bounds) => {
                if let Some(end) = bounds.end.as_deref().filter(|end| !matches!(end, Expr::Lit(_))) {
                    self.value("bound", end, format!("({}) - 1", self.source(end)));
                }
                if let Some(start) = bounds.start.as_deref().filter(|start| !matches!(start, Expr::Lit(_))) {
                    self.value("bound", start, format!("({}) + 1", self.source(start)));
                }
                visit::visit_expr(self, expr);
            }
            _ => visit::visit_expr(self, expr),
        }
    }
}
