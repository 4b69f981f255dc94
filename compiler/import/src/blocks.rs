//! How many channels a block has in a model that ONNX Runtime saved in its blocked layout, `com.microsoft.nchwc`. It is 8 or
//! 16 by the machine that saved it, and no node says it; it may follow from sizes of weights.

use std::collections::HashMap;

use onnxc_proto::GraphProto;

const DOMAIN: &str = "com.microsoft.nchwc";

/// The number of channels, where the model determines it.
pub(crate) fn of_graph(graph: &GraphProto) -> Option<usize> {
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
                    && whole.saturating_sub(kept.i()) >= 8
                {
                    tells = Some(16);
                }
            }
            _ => {}
        }
    }
    tells
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_proto::build;

    /// The block of a model with one convolution of these filters and input channels that keeps `kept` channels of the result.
    fn told(filters: i64, channels: i64, kept: i64) -> Option<usize> {
        let own = |mut node: onnxc_proto::NodeProto| {
            node.domain = Some(DOMAIN.into());
            node
        };
        let conv = own(build::node("Conv", &["x", "w"], &["y"]));
        let last = own(build::node("ReorderOutput", &["y"], &["z"]).with(build::int("channels", kept)));
        let mut graph = build::graph(vec![], vec![conv, last], vec![]);
        let dims = vec![filters, channels, 1, 1];
        graph.initializer.push(onnxc_proto::TensorProto {
            name: Some("w".into()),
            dims,
            ..Default::default()
        });
        of_graph(&graph)
    }

    #[test]
    fn sizes_of_weights_tell_the_block() {
        assert_eq!(told(24, 3, 24), Some(8));
        assert_eq!(told(32, 12, 32), Some(16));
        assert_eq!(told(32, 16, 20), Some(16));
        assert_eq!(told(32, 16, 32), None);
        assert_eq!(told(32, 16, i64::MAX), None);
        assert_eq!(told(32, 16, i64::MIN), Some(16));
    }
}
