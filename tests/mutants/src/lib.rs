//! What reads the compiler's source: its imports, and the drawing of them. Mutation testing is the command of this package.

pub mod drawing;
pub mod imports;
