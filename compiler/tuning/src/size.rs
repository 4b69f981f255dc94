//! Numbers for small code: in place of those that are fast, where a lowering can apply them.

use super::Allowed;
use onnxc_machine::target::Goal;

/// Numbers for small code by name, each at most: 0 for none, where a lowering can do without, else the least from there on that it
/// can apply. What is not here decides few bytes.
const SMALL: &[(&str, i64)] = &[
    ("rows", 2),
    ("columns", 8),
    ("lone_columns", 8),
    ("parts", 1),
    ("block", 0),
    ("unroll", 1),
    ("digit_rows", 1),
    ("digit_unroll", 1),
    ("stage_steps", 0),
    ("stage_prefetch", 0),
    ("prefetch", 0),
    ("partials", 1),
    ("positions", 1),
    ("vectors", 1),
];

/// The number to take for a goal where `fast` is what speed takes, which the lowering can apply.
pub(super) fn chosen(goal: Goal, name: &str, fast: i64, allowed: &Allowed) -> i64 {
    match (goal, SMALL.iter().find(|row| row.0 == name)) {
        (Goal::Size, Some((_, 0))) if !allowed.has(0) => fast,
        (Goal::Size, Some(&(_, small))) => allowed.least_from(small).map_or(fast, |small| small.min(fast)),
        _ => fast,
    }
}
