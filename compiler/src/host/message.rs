//! Messages of failures. A template is text in which the characters [`A`] and [`B`] stand for two signed numbers.

/// Place of the first number in a template.
pub const A: char = '\u{1}';
/// Place of the second.
pub const B: char = '\u{2}';

/// A name of the model as it may stand in a template and in a C comment: control characters replaced.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The message that a template makes with these numbers.
pub fn rendered(template: &str, a: i64, b: i64) -> String {
    template.replace(A, &a.to_string()).replace(B, &b.to_string())
}
