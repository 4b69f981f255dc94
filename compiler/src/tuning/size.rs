//! Numbers for small code: in place of those that are fast, where a lowering can apply them.

/// What code is tuned for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    #[default]
    Speed,
    /// Few bytes: loops that are not written out, tiles of few rows, no prefetches.
    Size,
}

/// Numbers for small code by name, each at most. What is not here decides no bytes.
const SMALL: &[(&str, i64)] = &[
    ("rows", 4),
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

impl Goal {
    /// The number to take where `fast` is what speed takes.
    pub(super) fn chosen(self, name: &str, fast: i64) -> i64 {
        match self {
            Goal::Speed => fast,
            Goal::Size => SMALL.iter().find(|row| row.0 == name).map_or(fast, |row| row.1.min(fast)),
        }
    }
}
