//! Files that attack the decoder.

use super::Case;

pub(super) fn add(cases: &mut Vec<Case>) {
    let mut raw = |name: &str, make: fn() -> Vec<u8>| {
        cases.push(Case { name: format!("wire_{name}"), short: super::COMMANDS, make: Box::new(make) });
    };
    raw("empty_file", Vec::new);
    raw("zeros", || vec![0; 1 << 20]);
    raw("ones", || vec![0xff; 1 << 20]);
    raw("groups", || vec![0x0b; 1 << 20]);
    raw("length_beyond_the_end", || vec![GRAPH, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    raw("length_of_64_bits", || [vec![GRAPH], vec![0xff; 9], vec![0x01]].concat());
    raw("nested_attributes", || in_graph(&nested(10_000, &[0x0a, 0x2a, 0x32])));
    raw("nested_types", || in_graph(&field(0x5a, &field(0x12, &nested(10_000, &[0x22, 0x0a])))));
    raw("empty_nodes", || in_graph(&[0x0a, 0].repeat(2_000_000)));
    raw("empty_initializers", || in_graph(&[0x2a, 0].repeat(2_000_000)));
    raw("empty_inputs", || in_graph(&[0x5a, 0].repeat(2_000_000)));
    raw("empty_value_infos", || in_graph(&[0x6a, 0].repeat(2_000_000)));
    raw("empty_sparse_initializers", || in_graph(&[0x7a, 0].repeat(2_000_000)));
    raw("empty_attributes", || in_graph(&field(0x0a, &[0x2a, 0].repeat(2_000_000))));
    raw("empty_inputs_of_a_node", || in_graph(&field(0x0a, &[0x0a, 0].repeat(2_000_000))));
    raw("empty_functions", || [0xca, 0x01, 0].repeat(1_000_000));
    raw("empty_opset_imports", || [0x42, 0].repeat(2_000_000));
    raw("empty_metadata", || [0x72, 0].repeat(2_000_000));
    raw("empty_training_infos", || [0xa2, 0x01, 0].repeat(1_000_000));
    raw("graphs_merged", || [GRAPH, 0].repeat(2_000_000));
    raw("packed_integers", || in_graph(&field(0x2a, &field(0x3a, &vec![1; 4_000_000]))));
    raw("unpacked_integers", || in_graph(&field(0x2a, &[0x38, 1].repeat(2_000_000))));
    raw("unknown_fields", || [0x98, 0x06, 1].repeat(1_000_000));
    raw("name_of_bad_utf8", || in_graph(&field(0x12, &vec![0xff; 1 << 20])));
}

/// Tag of `ModelProto.graph`.
const GRAPH: u8 = 0x3a;

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[tag], varint(content.len()).as_slice(), content].concat()
}

fn in_graph(content: &[u8]) -> Vec<u8> {
    field(GRAPH, content)
}

/// Messages inside each other, `depth` times the fields `tags`. Lengths are written from the inside, so that
/// making it takes linear time.
fn nested(depth: usize, tags: &[u8]) -> Vec<u8> {
    let mut reversed: Vec<u8> = Vec::new();
    for at in (0..depth).rev() {
        let head = [vec![tags[at % tags.len()]], varint(reversed.len())].concat();
        reversed.extend(head.iter().rev());
    }
    reversed.reverse();
    reversed
}
