//! Messages of every kind, under a small budget. What is decoded is written and decoded again, with the same result.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use onnxc_proto::Budget;

fuzz_target!(|data: &[u8]| {
    let budget = Budget { memory: 64 << 20, ..Budget::default() };
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(model) = onnxc_proto::decode(bytes.clone(), &budget) {
        let again = onnxc_proto::decode(onnxc_proto::encode(&model).into(), &Budget::default());
        // NaN is not itself.
        assert_eq!(format!("{:?}", again.unwrap()), format!("{model:?}"));
    }
    let _ = onnxc_proto::decode_tensor(bytes.clone(), &budget);
    let _ = onnxc_proto::decode_sequence(bytes.clone(), &budget);
    let _ = onnxc_proto::decode_optional(bytes.clone(), &budget);
    let _ = onnxc_proto::decode_map(bytes.clone(), &budget);
    let _ = onnxc_proto::decode_sparse_tensor(bytes, &budget);
});
