//! Indices against numbers: drawn expressions over variables of known extents, made by the algebra and computed one operation after
//! the other, for each value of the variables.

use cranelift_entity::EntityRef;
use proptest::prelude::*;

use crate::{Index, Term, Var};
use onnxc_ir::graph::Dim;

const EXTENTS: [i64; 3] = [3, 4, 6];

/// An expression that is never negative.
#[derive(Clone, Debug)]
enum Tree {
    Const(i64),
    Var(usize),
    Add(Box<(Tree, Tree)>),
    Scale(Box<Tree>, i64),
    Div(Box<Tree>, i64),
    Mod(Box<Tree>, i64),
}

fn extent(var: Var) -> Option<Dim> {
    EXTENTS.get(var.index()).map(|&extent| Dim::from(extent))
}

impl Tree {
    fn index(&self) -> Index {
        match self {
            Tree::Const(value) => Index::int(*value),
            Tree::Var(number) => Index::var(Var::new(*number)),
            Tree::Add(operands) => operands.0.index().add(&operands.1.index()),
            Tree::Scale(x, by) => x.index().scale(&Dim::from(*by)),
            Tree::Div(x, by) => x.index().floor_div(&Dim::from(*by), &extent),
            Tree::Mod(x, by) => x.index().modulo(&Dim::from(*by), &extent),
        }
    }

    fn value(&self, at: &[i64]) -> i64 {
        match self {
            Tree::Const(value) => *value,
            Tree::Var(number) => at[*number],
            Tree::Add(operands) => operands.0.value(at) + operands.1.value(at),
            Tree::Scale(x, by) => x.value(at) * by,
            Tree::Div(x, by) => x.value(at) / by,
            Tree::Mod(x, by) => x.value(at) % by,
        }
    }
}

/// The value of an index whose dims are numbers. What is divided must not be negative.
fn value(index: &Index, at: &[i64]) -> i64 {
    let number = |dim: &Dim| dim.as_const().expect("no symbols");
    let dividend = |x: &Index| {
        let value = value(x, at);
        assert!(value >= 0, "{x} is {value}");
        value
    };
    let term = |term: &Term| match term {
        Term::Var(var) => at[var.index()],
        Term::FloorDiv(x, by) => dividend(x) / number(by),
        Term::Mod(x, by) => dividend(x) % number(by),
    };
    index.terms.iter().map(|(own, by)| term(own) * number(by)).sum::<i64>() + number(&index.constant)
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(0i64..9).prop_map(Tree::Const), (0..EXTENTS.len()).prop_map(Tree::Var)];
    leaf.prop_recursive(5, 12, 2, |inner| {
        let by = 1i64..13;
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::Add(Box::new((a, b)))),
            (inner.clone(), by.clone()).prop_map(|(x, by)| Tree::Scale(Box::new(x), by)),
            (inner.clone(), by.clone()).prop_map(|(x, by)| Tree::Div(Box::new(x), by)),
            (inner, by).prop_map(|(x, by)| Tree::Mod(Box::new(x), by)),
        ]
    })
}

/// All values of the variables.
fn places() -> impl Iterator<Item = [i64; 3]> {
    let [a, b, c] = EXTENTS;
    (0..a * b * c).map(move |at| [at / (b * c), at / c % b, at % c])
}

proptest! {
    #[test]
    fn an_index_has_the_value_of_its_expression(tree in trees()) {
        let index = tree.index();
        for at in places() {
            prop_assert_eq!(value(&index, &at), tree.value(&at), "{} at {:?}", index, at);
        }
    }

    #[test]
    fn what_is_below_a_bound_is(tree in trees(), bound in 1i64..40) {
        let index = tree.index();
        if index.below(&Dim::from(bound), &extent) {
            for at in places() {
                prop_assert!((0..bound).contains(&value(&index, &at)), "{} at {:?}", index, at);
            }
        }
    }

    #[test]
    fn an_index_replaces_a_variable(tree in trees(), by in trees(), number in 0..EXTENTS.len()) {
        let (index, with) = (tree.index(), by.index());
        // The variable must stay below its extent, as divisions were made simpler by it.
        let with = with.modulo(&Dim::from(EXTENTS[number]), &extent);
        let replaced = index.substitute(Var::new(number), &with);
        let mut replace = |var: Var| Some(if var.index() == number { with.clone() } else { Index::var(var) });
        let rewritten = index.rewrite(&mut replace, &extent).expect("each variable has an index");
        for at in places() {
            let mut moved = at;
            moved[number] = value(&with, &at);
            let wanted = tree.value(&moved);
            prop_assert_eq!(value(&replaced, &at), wanted, "{} at {:?}", replaced, at);
            prop_assert_eq!(value(&rewritten, &at), wanted, "{} at {:?}", rewritten, at);
        }
    }
}
