//! How many channels a block has in a model that ONNX Runtime saved in its blocked layout, `com.microsoft.nchwc`. It is 8 or
//! 16 by the machine that saved it, and no node says it; sizes of weights may tell.

use std::collections::HashMap;

use onnxc_proto::GraphProto;

const DOMAIN: &str = "com.microsoft.nchwc";

/// The number of channels, where the model tells it.
pub fn of_graph(graph: &GraphProto) -> Option<usize> {
    let dims: HashMap<&str, &[i64]> =
        graph.initializer.iter().map(|tensor| (tensor.name(), tensor.dims.as_slice())).collect();
    let mut results: HashMap<&str, i64> = HashMap::new();
    let mut tells = None;
    for node in graph.node.iter().filter(|node| node.domain() == DOMAIN) {
        let (first, second) = (node.input.first(), node.input.get(1));
        match node.op_type() {
            "Conv" => {
                let Some([filters, channels, ..]) = second.and_then(|name| dims.get(name.as_str())) else {
                    continue;
                };
                if filters % 16 != 0 {
                    return Some(8);
                }
                // So few channels, which are more than 8, are not in blocks.
                if (9..16).contains(channels) {
                    tells = Some(16);
                }
                if let Some(output) = node.output.first() {
                    results.insert(output, *filters);
                }
            }
            "ReorderOutput" => {
                let kept = node.attribute.iter().find(|attribute| attribute.name() == "channels");
                let whole = first.and_then(|name| results.get(name.as_str()));
                // A block that is filled up has one channel of its own at least.
                if let (Some(kept), Some(whole)) = (kept, whole)
                    && whole - kept.i() >= 8
                {
                    tells = Some(16);
                }
            }
            _ => {}
        }
    }
    tells
}
