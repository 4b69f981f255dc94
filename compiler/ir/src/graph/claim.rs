//! What messages say of sizes and elements: text with the values that a run finds.

use std::fmt::Display;
use std::sync::Arc;

use crate::graph::{Dim, Relation, Requirement};

/// Where a value stands in the text of a [`Claim`], and a number in a template of the host program.
pub const V: char = '\u{1}';

/// What a requirement says in terms of the operands of an ONNX node: text in which each [`V`] stands for the next value.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    pub text: Arc<str>,
    pub values: Arc<[Dim]>,
}

impl Claim {
    /// `text` with a [`V`] for each of `values`.
    pub fn new(text: impl Into<Arc<str>>, values: impl Into<Arc<[Dim]>>) -> Claim {
        let (text, values): (Arc<str>, Arc<[Dim]>) = (text.into(), values.into());
        debug_assert_eq!(text.matches(V).count(), values.len(), "{text:?}");
        Claim { text, values }
    }

    /// That the operand `name` of a requirement has the wrong size: `rule` names the other side.
    pub fn of(requirement: &Requirement, name: impl Display, rule: impl Display) -> Claim {
        let Requirement { left, relation, right } = requirement;
        let must = match relation {
            Relation::Equal => "must be",
            Relation::AtMost => "must be at most",
            Relation::Broadcasts => "must be 1 or",
        };
        let rule = rule.to_string();
        match right.as_const() {
            Some(number) if number.to_string() == rule => {
                Claim::new(format!("{name} is {V}; it {must} {rule}"), vec![left.clone()])
            }
            _ => Claim::new(
                format!("{name} is {V}; it {must} {rule}, which is {V}"),
                vec![left.clone(), right.clone()],
            ),
        }
    }

    /// The same of a lower limit, which is the left side.
    pub fn at_least(requirement: &Requirement, name: impl Display, rule: impl Display) -> Claim {
        let Requirement { left, right, .. } = requirement;
        let rule = rule.to_string();
        match left.as_const() {
            Some(number) if number.to_string() == rule => {
                Claim::new(format!("{name} is {V}; it must be {rule} or more"), vec![right.clone()])
            }
            _ => Claim::new(
                format!("{name} is {V}; it must be at least {rule}, which is {V}"),
                vec![right.clone(), left.clone()],
            ),
        }
    }

    /// The text with its values, as `value` writes them.
    pub fn sentence(&self, value: &dyn Fn(&Dim) -> String) -> String {
        let mut values = self.values.iter();
        let mut text = String::with_capacity(self.text.len());
        for c in self.text.chars() {
            match c {
                V => text.extend(values.next().map(value)),
                c => text.push(c),
            }
        }
        text
    }
}

/// A requirement with what is said where it does not hold.
pub struct Stated {
    pub requirement: Requirement,
    pub claim: Claim,
}

impl Requirement {
    /// See [`Claim::of`].
    pub fn says(self, name: impl Display, rule: impl Display) -> Stated {
        Stated { claim: Claim::of(&self, name, rule), requirement: self }
    }

    /// See [`Claim::at_least`].
    pub fn says_at_least(self, name: impl Display, rule: impl Display) -> Stated {
        Stated { claim: Claim::at_least(&self, name, rule), requirement: self }
    }

    /// With a text in which a [`V`] stands for each of the values.
    pub fn stated(self, text: impl Into<Arc<str>>, values: &[&Dim]) -> Stated {
        let values: Vec<Dim> = values.iter().map(|&value| value.clone()).collect();
        Stated { requirement: self, claim: Claim::new(text, values) }
    }
}

/// What messages call an operand of an ONNX node, or what has its elements: ``indices `x` ``.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operand {
    pub name: Arc<str>,
    /// Of indices that are only made to be out of range where an element is wrong.
    pub fault: Option<Fault>,
    /// The shape by which elements have their places, where it is known and not that of the indices.
    pub shape: Option<Arc<[usize]>>,
}

/// See [`Operand::fault`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What such an index is above the element, if it says which number that is.
    pub above: Option<i64>,
    /// What is wrong with the element.
    pub text: Arc<str>,
}

impl Operand {
    pub fn new(name: impl Into<Arc<str>>) -> Operand {
        Operand { name: name.into(), fault: None, shape: None }
    }

    /// That an index is out of range: where it is, itself and its bounds, each a number or a [`V`].
    pub fn sentence(&self, place: &[String], numbers: [&dyn Display; 3]) -> String {
        let element = match place {
            [] => self.name.to_string(),
            place => format!("element [{}] of {}", place.join(", "), self.name),
        };
        let [found, low, high] = numbers;
        match &self.fault {
            None => format!("{element} is {found}; it must be between {low} and {high}"),
            Some(Fault { above: None, text }) => format!("{element} {text}"),
            Some(Fault { above: Some(_), text }) => format!("{element} is {found}; {text}"),
        }
    }
}

/// A name of the model without control characters, because one of them stands for a value.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A text with numbers in place of its [`V`]s.
pub fn rendered(text: &str, numbers: &[i64]) -> String {
    let mut numbers = numbers.iter();
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            V => result.extend(numbers.next().map(i64::to_string)),
            c => result.push(c),
        }
    }
    result
}

/// A list of values: `[V, V]`.
pub fn list(count: usize) -> String {
    format!("[{}]", vec![V.to_string(); count].join(", "))
}
