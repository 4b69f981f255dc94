//! The benchmark against peers: `plan` says what is run on which inputs, `engine` runs one engine in a process of its
//! own, `running` takes the rounds, `table` and `chart` show the figures; `accuracy` holds outputs against an f64
//! reference.

pub mod accuracy;
pub mod chart;
pub mod engine;
pub mod machine;
pub mod plan;
pub mod running;
pub mod table;

/// Why something has no figures, in one text.
pub type Result<T> = std::result::Result<T, String>;
