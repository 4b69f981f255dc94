//! Dims against numbers: drawn expressions, made by the algebra and computed one operation after the other.

use cranelift_entity::EntityRef;
use proptest::prelude::*;

use super::{Dim, Sym};

const SYMBOLS: usize = 3;

/// An expression. What is divided by is above 0: a number, or a symbol and 1.
#[derive(Clone, Debug)]
enum Tree {
    Const(i64),
    Symbol(usize),
    Pair(Pair, Box<(Tree, Tree)>),
    Divided(Division, Box<Tree>, Divisor),
}

#[derive(Clone, Copy, Debug)]
enum Pair {
    Add,
    Sub,
    Mul,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug)]
enum Division {
    Floor,
    Ceil,
    Modulo,
}

#[derive(Clone, Copy, Debug)]
enum Divisor {
    Const(i64),
    Above(usize),
}

fn symbol(number: usize) -> Dim {
    Dim::sym(Sym::new(number))
}

impl Divisor {
    fn dim(self) -> Dim {
        match self {
            Divisor::Const(value) => Dim::from(value),
            Divisor::Above(number) => symbol(number) + Dim::ONE,
        }
    }

    fn value(self, sizes: &[i64]) -> i64 {
        match self {
            Divisor::Const(value) => value,
            Divisor::Above(number) => sizes[number] + 1,
        }
    }
}

impl Tree {
    fn dim(&self) -> Dim {
        match self {
            Tree::Const(value) => Dim::from(*value),
            Tree::Symbol(number) => symbol(*number),
            Tree::Pair(op, operands) => {
                let (a, b) = (operands.0.dim(), operands.1.dim());
                match op {
                    Pair::Add => a + b,
                    Pair::Sub => a - b,
                    Pair::Mul => a * b,
                    Pair::Min => a.min_dim(&b),
                    Pair::Max => a.max_dim(&b),
                }
            }
            Tree::Divided(op, x, by) => {
                let (x, by) = (x.dim(), by.dim());
                let result = match op {
                    Division::Floor => x.floor_div(&by),
                    Division::Ceil => x.ceil_div(&by),
                    Division::Modulo => x.modulo(&by),
                };
                result.expect("the divisor is above 0")
            }
        }
    }

    fn value(&self, sizes: &[i64]) -> i64 {
        match self {
            Tree::Const(value) => *value,
            Tree::Symbol(number) => sizes[*number],
            Tree::Pair(op, operands) => {
                let (a, b) = (operands.0.value(sizes), operands.1.value(sizes));
                match op {
                    Pair::Add => a + b,
                    Pair::Sub => a - b,
                    Pair::Mul => a * b,
                    Pair::Min => a.min(b),
                    Pair::Max => a.max(b),
                }
            }
            Tree::Divided(op, x, by) => {
                let (x, by) = (x.value(sizes), by.value(sizes));
                match op {
                    Division::Floor => x.div_euclid(by),
                    Division::Ceil => -(-x).div_euclid(by),
                    Division::Modulo => x.rem_euclid(by),
                }
            }
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(-3i64..9).prop_map(Tree::Const), (0..SYMBOLS).prop_map(Tree::Symbol)];
    let pair =
        prop_oneof![Just(Pair::Add), Just(Pair::Sub), Just(Pair::Mul), Just(Pair::Min), Just(Pair::Max)];
    let division = prop_oneof![Just(Division::Floor), Just(Division::Ceil), Just(Division::Modulo)];
    let divisor = prop_oneof![(1i64..7).prop_map(Divisor::Const), (0..SYMBOLS).prop_map(Divisor::Above)];
    leaf.prop_recursive(4, 12, 2, move |inner| {
        prop_oneof![
            (pair.clone(), inner.clone(), inner.clone())
                .prop_map(|(op, a, b)| Tree::Pair(op, Box::new((a, b)))),
            (division.clone(), inner, divisor.clone()).prop_map(|(op, x, by)| Tree::Divided(
                op,
                Box::new(x),
                by
            )),
        ]
    })
}

fn sizes() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(0i64..12, SYMBOLS)
}

proptest! {
    #[test]
    fn a_dim_has_the_value_of_its_expression(tree in trees(), sizes in sizes()) {
        let (dim, wanted) = (tree.dim(), tree.value(&sizes));
        prop_assume!(!dim.is_overgrown());
        prop_assert_eq!(dim.eval(&|sym| Some(sizes[sym.index()])), Some(wanted), "{}", dim);
        let known = dim.substitute(&|sym| Dim::from(sizes[sym.index()]));
        prop_assert_eq!(known, Dim::from(wanted), "{}", dim);
    }

    #[test]
    fn bounds_hold_the_value(tree in trees(), sizes in sizes()) {
        let (dim, value) = (tree.dim(), tree.value(&sizes));
        let (low, high) = dim.bounds();
        prop_assert!(low.is_none_or(|low| low <= value), "{} is {}, its bounds {:?}", dim, value, (low, high));
        prop_assert!(high.is_none_or(|high| value <= high), "{} is {}, its bounds {:?}", dim, value, (low, high));
    }

    #[test]
    fn equal_polynomials_have_one_form(a in trees(), b in trees(), c in trees()) {
        let (a, b, c) = (a.dim(), b.dim(), c.dim());
        let both = (a.clone() + b.clone()) * c.clone();
        let each = b.clone() * c.clone() + a.clone() * c.clone();
        prop_assume!(!both.is_overgrown() && !each.is_overgrown());
        prop_assert_eq!(&both, &each);
        prop_assert_eq!(both - each, Dim::ZERO);
    }

    #[test]
    fn an_exact_quotient_times_the_divisor_is_the_whole(a in trees(), b in trees()) {
        let (a, b) = (a.dim(), b.dim());
        let whole = a.clone() * b.clone();
        prop_assume!(!whole.is_overgrown());
        for (x, by) in [(&whole, &b), (&whole, &a), (&a, &b)] {
            if let Some(quotient) = x.exact_div(by) {
                prop_assert_eq!(&(quotient * by.clone()), x);
            }
        }
    }
}
