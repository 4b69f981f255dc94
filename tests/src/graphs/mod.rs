//! Random graphs over the whole operator table, each compiled and run in every way and held against oracles. What is
//! drawn, how results are compared and how a failing graph shrinks: `python/graphs/main.py`.

pub mod driver;
pub mod progress;
mod run;
pub mod worker;
