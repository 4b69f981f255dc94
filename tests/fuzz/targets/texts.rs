//! The text forms of graphs, loops, vector code and host programs. What is read prints, and reads again as the same.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

/// Prints what a parser reads, and reads that.
fn turns<T: ToString>(text: &str, parse: impl Fn(&str) -> onnxc_ir::error::Result<T>) {
    if let Ok(read) = parse(text) {
        let printed = read.to_string();
        let again = parse(&printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
        assert_eq!(again.to_string(), printed);
    }
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(data) else { return Corpus::Reject };
    turns(text, onnxc_ir::graph::parse::parse);
    turns(text, onnxc_loops::parse::parse);
    turns(text, onnxc_machine::vector::parse::parse);
    turns(text, onnxc_object::host::parse::parse);
    Corpus::Keep
});
