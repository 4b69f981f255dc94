//! The command line: the only code that touches the file system.

pub mod args;
pub mod compare;
pub mod external;
pub mod files;
