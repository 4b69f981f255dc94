//! What a crate of the compiler has for others is used by one of them: the compiler of Rust warns of private items alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use onnxc_mutants::imports::{is_for_tests, modules_of};
use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItemFn, Item, Macro, Visibility};

/// What tests of other crates ask for, and nothing else does: text of the book, all processors, the interpreter of ranks, text of graphs.
const FOR_TESTS: &[&str] = &["left_out_by_exact", "processors", "run_ranks", "to_text"];

/// What files say and declare outside of tests.
#[derive(Default)]
struct Code {
    /// Names, with how often they are said.
    said: BTreeMap<String, usize>,
    /// Names of items that are visible outside of their module, with how many have it.
    declared: BTreeMap<String, usize>,
}

impl Code {
    fn read(folder: &Path) -> Code {
        let mut code = Code::default();
        for file in modules_of(folder) {
            code.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
        }
        code
    }

    fn declare(&mut self, visibility: &Visibility, name: &Ident) {
        if !matches!(visibility, Visibility::Inherited) {
            *self.declared.entry(name.to_string()).or_default() += 1;
        }
    }

    fn say(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) => self.visit_ident(&name),
                TokenTree::Group(group) => self.say(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'c> Visit<'c> for Code {
    fn visit_ident(&mut self, name: &'c Ident) {
        *self.said.entry(name.to_string()).or_default() += 1;
    }

    fn visit_macro(&mut self, called: &'c Macro) {
        self.say(called.tokens.clone());
    }

    fn visit_item(&mut self, item: &'c Item) {
        let (attributes, declared) = match item {
            Item::Const(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Enum(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Fn(item) => (&item.attrs, Some((&item.vis, &item.sig.ident))),
            Item::Static(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Struct(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Trait(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Type(item) => (&item.attrs, Some((&item.vis, &item.ident))),
            Item::Impl(item) => (&item.attrs, None),
            Item::Mod(item) => (&item.attrs, None),
            // To export is not to use.
            Item::Use(_) => return,
            item => return visit::visit_item(self, item),
        };
        if is_for_tests(attributes) {
            return;
        }
        if let Some((visibility, name)) = declared {
            self.declare(visibility, name);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'c ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.declare(&item.vis, &item.sig.ident);
            visit::visit_impl_item_fn(self, item);
        }
    }
}

#[test]
fn visible_items_are_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut code = Code::read(&root.join("compiler"));
    // What the package `onnxc` declares is for its users.
    let promised = Code::read(&root.join("compiler/src"));
    // The tests' own library is a user, as other programs are.
    for (name, count) in Code::read(&root.join("tests/src")).said {
        *code.said.entry(name).or_default() += count;
    }
    let is_unused = |(name, count): &(&String, &usize)| {
        code.said[*name] <= **count
            && !promised.declared.contains_key(*name)
            && !FOR_TESTS.contains(&name.as_str())
    };
    let unused: Vec<&String> = code.declared.iter().filter(is_unused).map(|(name, _)| name).collect();
    assert!(unused.is_empty(), "nothing but tests uses {unused:?}");
}
