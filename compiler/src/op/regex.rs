//! Regular expressions as automata that the runtime walks.

/// The automaton of a pattern in RE2's syntax, which matches whole texts; what is wrong with another pattern.
pub fn compile(pattern: &str) -> std::result::Result<Vec<u8>, String> {
    onnxc_runtime_support::strings::regex::compile(pattern)
}
