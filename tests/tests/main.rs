//! The tests of whole programs: models from their bytes to results, objects, tools, packages and documents.
//!
//! One program, since each one links the compiler: fifty of them took 3 GB and minutes of linking. `cargo test --test suite zoo::` runs a
//! module. Programs of their own are `memory.rs`, which meters the heap of its process, and `scaling.rs`, which compares times.

mod abi;
mod agreements;
mod artifacts;
mod bench;
mod book;
mod c_abi;
mod clauses;
mod cliffs;
mod conformance;
mod custom;
mod derivatives;
mod differential;
mod dims;
mod examples;
mod faults;
mod filetests;
mod formats;
mod fuzz;
mod generated;
mod generation;
mod graphs;
mod host;
mod hostile;
mod images;
mod levels;
mod machines;
mod macos;
mod packages;
mod processors;
mod profiling;
mod proof;
mod prose;
mod publish;
mod random;
mod ranks;
mod replanted;
mod runtime;
mod schemas;
mod source;
mod state;
mod threads;
mod tokenizers;
mod train_graph;
mod training;
mod training_info;
mod values;
mod web;
mod weights;
mod windows;
mod zoo;
