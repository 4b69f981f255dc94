//! Control flow by its rows.
