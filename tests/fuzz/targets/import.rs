//! Models up to the graph: an error that says the compiler is wrong is a finding.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::{Corpus, fuzz_target};
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::error::Kind;
use onnxc_ops::Table;
use onnxc_proto::Budget;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(model) = onnxc_proto::decode(Bytes::copy_from_slice(data), &Budget::default()) else {
        return Corpus::Reject;
    };
    let table = Table::new(onnxc_ops::FAMILIES.iter().chain(onnxc_contrib::FAMILIES).copied());
    if let Err(errors) = import(&model, &ImportOptions::default(), &NoExternalData, &table) {
        let internal = errors.iter().find(|error| error.kind == Kind::Internal);
        assert!(internal.is_none(), "{internal:?}");
        assert!(!errors.is_empty(), "refused without an error");
    }
    Corpus::Keep
});
