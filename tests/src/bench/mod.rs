//! The benchmark against peers: `plan` says what is run on which inputs, `engine` runs one engine in a process of its
//! own, `running` takes the rounds, `table` and `chart` show the figures; `accuracy` holds outputs against an f64
//! reference, `gemm` matrix products against the `peak` of the processor.

pub mod accuracy;
pub mod algorithm;
pub mod chart;
pub mod defaults;
pub mod engine;
pub mod gemm;
pub mod machine;
pub mod peak;
pub mod plan;
pub mod running;
pub mod table;

/// Why something has no figures, in one text.
pub type Result<T> = std::result::Result<T, String>;
