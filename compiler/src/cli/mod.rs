//! The command line: the only code that touches the file system.

pub mod external;
