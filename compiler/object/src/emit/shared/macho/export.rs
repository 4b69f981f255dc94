//! The names that the loader looks up, as a tree of their common beginnings.

use std::ops::Range;

use onnxc_machine::leb128;

fn number_bytes(value: u64) -> u64 {
    leb128::unsigned(value).len() as u64
}

/// A node: the names that begin as it does.
struct Node<'n> {
    /// What it exports, if its name is one.
    address: Option<u64>,
    /// The rest of a child's name, and its number.
    children: Vec<(&'n [u8], usize)>,
}

impl Node<'_> {
    /// What is written of an export: that it is a usual one, and its address.
    fn terminal(&self) -> Vec<u8> {
        let mut bytes = vec![];
        if let Some(address) = self.address {
            bytes.extend(leb128::unsigned(0));
            bytes.extend(leb128::unsigned(address));
        }
        bytes
    }

    fn bytes(&self, offsets: &[u64]) -> u64 {
        let terminal = self.terminal().len() as u64;
        let edge = |&(name, child): &(&[u8], usize)| name.len() as u64 + 1 + number_bytes(offsets[child]);
        number_bytes(terminal) + terminal + 1 + self.children.iter().map(edge).sum::<u64>()
    }
}

/// The tree of names, which are sorted; nothing where there are none.
pub(super) fn trie(names: &[(&[u8], u64)]) -> Vec<u8> {
    if names.is_empty() {
        return vec![];
    }
    let nodes = nodes(names);
    // A large offset takes more bytes than a small one, and moves the nodes behind it: until no offset grows any more.
    let mut offsets = vec![0; nodes.len()];
    loop {
        let mut at = 0;
        let next: Vec<u64> = nodes
            .iter()
            .map(|node| {
                let offset = at;
                at += node.bytes(&offsets);
                offset
            })
            .collect();
        if next == offsets {
            break;
        }
        offsets = next;
    }
    let mut bytes = vec![];
    for node in &nodes {
        let terminal = node.terminal();
        bytes.extend(leb128::unsigned(terminal.len() as u64));
        bytes.extend(terminal);
        bytes.push(node.children.len() as u8);
        for &(name, child) in &node.children {
            bytes.extend(name);
            bytes.push(0);
            bytes.extend(leb128::unsigned(offsets[child]));
        }
    }
    bytes
}

/// The nodes, parents first.
fn nodes<'n>(names: &[(&'n [u8], u64)]) -> Vec<Node<'n>> {
    let mut nodes = vec![Node { address: None, children: vec![] }];
    // Nodes whose children are not made yet: how long their own names are, and which names begin so.
    let mut open: Vec<(usize, usize, Range<usize>)> = vec![(0, 0, 0..names.len())];
    while let Some((number, depth, mut range)) = open.pop() {
        if let Some((_, address)) = names[range.clone()].first().filter(|(name, _)| name.len() == depth) {
            nodes[number].address = Some(*address);
            range.start += 1;
        }
        while !range.is_empty() {
            let first = names[range.start].0;
            let same =
                names[range.clone()].iter().take_while(|(name, _)| name[depth] == first[depth]).count();
            let last = names[range.start + same - 1].0;
            // Sorted names have in common what the first and the last of them do.
            let rest = first[depth..].iter().zip(&last[depth..]).take_while(|(a, b)| a == b).count();
            let child = nodes.len();
            nodes.push(Node { address: None, children: vec![] });
            nodes[number].children.push((&first[depth..depth + rest], child));
            open.push((child, depth + rest, range.start..range.start + same));
            range.start += same;
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8], at: &mut usize) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    /// The exports in a tree.
    fn read(bytes: &[u8]) -> Vec<(String, u64)> {
        let (mut found, mut open) = (vec![], vec![(0, String::new())]);
        while let Some((mut at, name)) = open.pop() {
            let terminal = number(bytes, &mut at) as usize;
            let mut children = at + terminal;
            if terminal > 0 {
                assert_eq!(number(bytes, &mut at), 0);
                found.push((name.clone(), number(bytes, &mut at)));
                assert_eq!(at, children);
            }
            let count = bytes[children];
            children += 1;
            for _ in 0..count {
                let end = children + bytes[children..].iter().position(|&byte| byte == 0).unwrap();
                let edge = str::from_utf8(&bytes[children..end]).unwrap();
                children = end + 1;
                open.push((number(bytes, &mut children) as usize, format!("{name}{edge}")));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn names_are_found_again() {
        assert!(trie(&[]).is_empty());
        for names in [
            &["_a"][..],
            &["_m_model", "_m_run", "_m_workspace"],
            // One is the beginning of others.
            &["", "_", "_a", "_a_run", "_ab", "b"],
        ] {
            let rows: Vec<(&[u8], u64)> = names
                .iter()
                .zip([0x400, 0x7f, 0x80, 0x1_0000_0000, 1, 0])
                .map(|(name, at)| (name.as_bytes(), at))
                .collect();
            let wanted: Vec<(String, u64)> =
                names.iter().zip(&rows).map(|(name, row)| (name.to_string(), row.1)).collect();
            assert_eq!(read(&trie(&rows)), wanted);
        }
    }

    /// Offsets of nodes take one byte at first, then two, then three.
    #[test]
    fn offsets_grow() {
        for count in [1, 10, 100, 3000] {
            let names: Vec<String> = (0..count).map(|number| format!("_model{number:05}_run")).collect();
            let rows: Vec<(&[u8], u64)> =
                names.iter().enumerate().map(|(at, name)| (name.as_bytes(), 4 * at as u64)).collect();
            let wanted: Vec<(String, u64)> =
                names.iter().zip(&rows).map(|(name, row)| (name.clone(), row.1)).collect();
            assert_eq!(read(&trie(&rows)), wanted);
        }
    }
}
