//! Lowerings ask for inputs by names that all rows with that lowering have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use onnxc_mutants::imports::modules_of;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, Type};

/// Methods of `NodeCx` that take an input's name first.
const ASKS: &[&str] = &[
    "input",
    "optional",
    "item",
    "optional_item",
    "operand_name",
    "known_input",
    "const_input",
    "sizes_input",
    "integers_input",
    "input_count",
    "with_count",
    "sizes_within",
];

/// Functions that begin a row, whose last argument is its lowering.
const ROWS: &[&str] = &["op", "own", "extension", "blocked", "optimizer"];

/// Functions that take names of inputs behind the context.
const HELPERS: &[&str] = &["both", "size_scalar"];

type Names = BTreeSet<String>;

fn is_row(ty: &Type) -> bool {
    matches!(ty, Type::Path(ty) if ty.path.segments.last().is_some_and(|part| part.ident == "OpDef"))
}

fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// The last part of a path.
fn last(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// Names of parameters in a list, also in the constant of that file that it may be.
struct Params<'f> {
    constants: &'f BTreeMap<String, Expr>,
    found: Names,
}

impl<'a> Visit<'a> for Params<'_> {
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        let is_param = last(&call.func).is_some_and(|name| ["req", "opt", "var", "mixed"].contains(&&*name));
        match call.args.first().and_then(text) {
            Some(name) if is_param => drop(self.found.insert(name)),
            _ => visit::visit_expr_call(self, call),
        }
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let name = path.path.segments.last().map(|part| part.ident.to_string());
        if let Some(value) = name.and_then(|name| self.constants.get(&name)) {
            self.visit_expr(value);
        }
    }
}

/// What one file declares and asks for.
#[derive(Default)]
struct Source {
    constants: BTreeMap<String, Expr>,
    rows: Vec<Expr>,
    /// What each function asks for.
    asked: BTreeMap<String, Names>,
    function: String,
}

impl<'a> Visit<'a> for Source {
    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.constants.insert(item.ident.to_string(), (*item.expr).clone());
        match (&*item.ty, &*item.expr) {
            (ty, row) if is_row(ty) => self.rows.push(row.clone()),
            (Type::Reference(list), Expr::Reference(rows)) => {
                if let (Type::Slice(list), Expr::Array(rows)) = (&*list.elem, &*rows.expr)
                    && is_row(&list.elem)
                {
                    self.rows.extend(rows.elems.iter().cloned());
                }
            }
            _ => {}
        }
        visit::visit_item_const(self, item);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        let around = std::mem::replace(&mut self.function, item.sig.ident.to_string());
        visit::visit_item_fn(self, item);
        self.function = around;
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        let name = last(&call.func).unwrap_or_default();
        if HELPERS.contains(&&*name) {
            let names = call.args.iter().filter_map(text);
            self.asked.entry(self.function.clone()).or_default().extend(names);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if last(&call.receiver).is_some_and(|name| name == "cx")
            && ASKS.iter().any(|name| call.method == name)
            && let Some(name) = call.args.first().and_then(text)
        {
            self.asked.entry(self.function.clone()).or_default().insert(name);
        }
        visit::visit_expr_method_call(self, call);
    }
}

impl Source {
    fn of(text: &str) -> Source {
        let mut source = Source::default();
        source.visit_file(&syn::parse_file(text).unwrap());
        source
    }

    /// The inputs and the lowering of a row, as far as this file says them: those of its last change.
    fn row<'e>(&'e self, row: &'e Expr) -> (Option<&'e Expr>, Option<String>) {
        match row {
            Expr::MethodCall(call) => {
                let (inputs, lower) = self.row(&call.receiver);
                match &*call.method.to_string() {
                    "inputs" => (call.args.first(), lower),
                    "lower" => (inputs, call.args.first().and_then(last)),
                    _ => (inputs, lower),
                }
            }
            Expr::Call(call) if last(&call.func).is_some_and(|name| ROWS.contains(&&*name)) => {
                (None, call.args.last().and_then(last))
            }
            Expr::Path(_) => {
                last(row).and_then(|name| self.constants.get(&name)).map_or((None, None), |row| self.row(row))
            }
            _ => (None, None),
        }
    }

    /// The names of the inputs of each row, and its lowering.
    fn rows(&self) -> Vec<(Names, String)> {
        let rows = self.rows.iter().map(|row| self.row(row));
        rows.filter_map(|(inputs, lower)| Some((self.names(inputs?), lower?))).collect()
    }

    fn names(&self, inputs: &Expr) -> Names {
        let mut params = Params { constants: &self.constants, found: Names::new() };
        params.visit_expr(inputs);
        params.found
    }

    /// Names that a row does not have, each with the function that asks: a lowering of its own rows, any other function of one row of
    /// the file at least, or of `all` where the file has no rows.
    fn unknown(&self, all: &Names) -> Vec<String> {
        let rows = self.rows();
        let mut found = vec![];
        for (function, asked) in &self.asked {
            let of_it = || rows.iter().filter(|(names, lower)| lower == function && !names.is_empty());
            for name in asked {
                let known = match of_it().count() {
                    0 if rows.is_empty() => all.contains(name),
                    0 => rows.iter().any(|(names, _)| names.contains(name)),
                    _ => of_it().all(|(names, _)| names.contains(name)),
                };
                if !known {
                    found.push(format!("{function}: {name}"));
                }
            }
        }
        found
    }
}

fn files() -> Vec<PathBuf> {
    let compiler = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compiler");
    ["ops/src", "contrib/src"].iter().flat_map(|folder| modules_of(&compiler.join(folder))).collect()
}

#[test]
fn rows_have_the_inputs_that_their_lowerings_name() {
    let sources: Vec<(PathBuf, Source)> = files()
        .into_iter()
        .map(|file| (file.clone(), Source::of(&fs::read_to_string(file).unwrap())))
        .collect();
    let of_rows = |(_, source): &(PathBuf, Source)| {
        source.rows().into_iter().flat_map(|(names, _)| names).collect::<Names>()
    };
    let all: Names = sources.iter().flat_map(of_rows).collect();
    let count: usize = sources.iter().flat_map(|(_, source)| source.asked.values()).map(Names::len).sum();
    let mut unknown = vec![];
    for (file, source) in &sources {
        unknown.extend(source.unknown(&all).into_iter().map(|text| format!("{}: {text}", file.display())));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(count > 300, "only {count} inputs are asked for by name");
}

#[test]
fn a_name_that_one_version_lacks_is_found() {
    let text = r#"
        const X: &[Param] = &[req("x", "T")];
        const ROWS: &[OpDef] = &[OLD, OLD.since(7).inputs(&[req("x", "T"), opt("y", "T")])];
        const OLD: OpDef = op("Old", 1, lower).inputs(X).doc("doc");
        fn lower(cx: &NodeCx) { helper(cx, cx.input("x"), cx.optional("y")) }
        fn helper(cx: &NodeCx, x: Id, y: Id) { cx.optional("y"); cx.input("z"); cx.int("axis") }
    "#;
    assert_eq!(Source::of(text).unknown(&Names::new()), ["helper: z", "lower: y"]);
}
