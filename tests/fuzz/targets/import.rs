//! Models up to the graph: an error that says the compiler is wrong is a finding.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::{Corpus, fuzz_target};
use onnxc::error::Kind;
use onnxc::import::{ImportOptions, NoExternalData, import};
use onnxc_proto::Budget;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(model) = onnxc_proto::decode(Bytes::copy_from_slice(data), &Budget::default()) else {
        return Corpus::Reject;
    };
    if let Err(errors) = import(&model, &ImportOptions::default(), &NoExternalData) {
        let internal = errors.iter().find(|error| error.kind == Kind::Internal);
        assert!(internal.is_none(), "{internal:?}");
        assert!(!errors.is_empty(), "refused without an error");
    }
    Corpus::Keep
});
