//! Mutants in source text: each becomes a choice at run time, so that one build holds all of them.

use std::ops::Range;

/// A change of the program at one place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Mutant {
    /// Path from the root of the workspace.
    pub path: String,
    pub line: usize,
    /// Names of the functions around it, outermost first.
    pub function: String,
    /// The mutation operator.
    pub rule: &'static str,
    /// Bytes of the file that it replaces; none where it inserts.
    pub range: Range<usize>,
    /// What stands there, and what the mutant puts there; one line each.
    pub before: String,
    pub after: String,
    pub form: Form,
}

/// How the choice is written.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Form {
    /// An expression, and the one instead.
    Value(String),
    /// A statement, and the one instead.
    Statement(String),
    /// Text around the condition that the mutant is active.
    Insert(&'static str, String),
}

impl Mutant {
    /// Names it across edits elsewhere in the file.
    pub(crate) fn key(&self) -> String {
        format!("{} {}: `{}` -> `{}`", self.path, self.function, self.before, self.after)
    }
}

/// A mutant's bytes in the text that holds it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub number: usize,
    pub range: Range<usize>,
}

/// The text with the numbered mutants in it, and where each is. Mutated branches hold the original text, so that only one
/// change is ever active.
pub(crate) fn rewrite(text: &str, mutants: &[(usize, &Mutant)]) -> (String, Vec<Place>) {
    let mut sorted: Vec<(usize, &Mutant)> = mutants.to_vec();
    sorted.sort_by_key(|(number, mutant)| (mutant.range.start, std::cmp::Reverse(mutant.range.end), *number));
    let mut writer = Writer { text, mutants: &sorted, next: 0, out: String::new(), places: Vec::new() };
    writer.copy(0..text.len());
    (writer.out, writer.places)
}

struct Writer<'t> {
    text: &'t str,
    mutants: &'t [(usize, &'t Mutant)],
    next: usize,
    out: String,
    places: Vec<Place>,
}

impl Writer<'_> {
    /// Copies a range, with the mutants inside it.
    fn copy(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(&(number, mutant)) = self.mutants.get(self.next)
            && mutant.range.end <= range.end
        {
            assert!(at <= mutant.range.start, "mutants overlap at {}:{}", mutant.path, mutant.line);
            self.next += 1;
            self.out.push_str(&self.text[at..mutant.range.start]);
            let start = self.out.len();
            let on = format!("crate::mutants::on({number})");
            let tail = match &mutant.form {
                Form::Value(new) => {
                    self.out.push_str(&format!("(if {on} {{ {new} }} else {{ "));
                    " })"
                }
                Form::Statement(new) => {
                    self.out.push_str(&format!("if {on} {{ {new} }} else {{ "));
                    " }"
                }
                Form::Insert(head, tail) => {
                    self.out.push_str(&format!("{head}{on}{tail}"));
                    ""
                }
            };
            self.copy(mutant.range.clone());
            self.out.push_str(tail);
            self.places.push(Place { number, range: start..self.out.len() });
            at = mutant.range.end;
        }
        self.out.push_str(&self.text[at..range.end]);
    }
}
