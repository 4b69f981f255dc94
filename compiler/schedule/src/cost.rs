//! Work of nodes and groups, for those who want to know: operations and bytes.

use crate::Group;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Graph, MapFn, NodeId, Op, ValueId};

/// Operations of a node without its bodies: two per multiply-add of a contraction, one per element of a reduction's operand and
/// of a float map's result; of other nodes none.
pub fn flops(graph: &Graph, node: NodeId) -> Dim {
    let node = &graph.nodes[node];
    let elements = |value: ValueId| graph.ty(value).elements();
    let (Some(&output), first) = (node.outputs.first(), node.inputs.first()) else { return Dim::ZERO };
    let is_float = graph.ty(output).dtype.is_float();
    match (&node.op, first) {
        (Op::Contract { batch, m, k, .. }, Some(&a)) => {
            let inner = &graph.ty(a).shape[batch + m..batch + m + k];
            elements(output) * product(inner) * Dim::from(2usize)
        }
        (Op::Reduce { .. }, Some(&x)) if is_float => elements(x),
        (Op::Map(MapFn::Unary(_) | MapFn::Binary(_)), _) if is_float => elements(output),
        _ => Dim::ZERO,
    }
}

impl Group {
    /// Operations of its kernel; see [`flops`].
    pub fn flops(&self, graph: &Graph) -> Dim {
        self.nodes.iter().fold(Dim::ZERO, |sum, &node| sum + flops(graph, node))
    }

    /// Bytes that its kernel reads and writes at the least: each of its operands and results once, but of an operand that is only
    /// gathered from or seen through views those that are picked.
    pub fn bytes(&self, graph: &Graph) -> Dim {
        let read = self.inputs.iter().map(|&value| self.bytes_read(graph, value));
        let written = self.outputs.iter().map(|&value| graph.ty(value).bytes());
        read.chain(written).fold(Dim::ZERO, |sum, bytes| sum + bytes)
    }

    /// Bytes of a value that its nodes read at the least.
    fn bytes_read(&self, graph: &Graph, value: ValueId) -> Dim {
        let all = graph.ty(value).bytes();
        let mut picked: Option<Dim> = None;
        for node in
            self.nodes.iter().map(|&node| &graph.nodes[node]).filter(|node| node.inputs.contains(&value))
        {
            let picks = node.op.is_view() || matches!(node.op, Op::Gather { .. });
            if !picks || node.inputs.first() != Some(&value) || node.inputs[1..].contains(&value) {
                return all;
            }
            let part = self.bytes_read(graph, node.outputs[0]);
            picked = Some(picked.map_or(part.clone(), |picked| picked + part));
        }
        // What none of its nodes reads is a result.
        picked.map_or(all.clone(), |picked| all.min_dim(&picked))
    }

    /// The ONNX operators that it computes, in their order, without those that follow one of the same.
    pub fn operators(&self, graph: &Graph) -> Vec<String> {
        let mut seen = vec![];
        let mut operators = vec![];
        for &node in &self.nodes {
            let origin = graph.nodes[node].origin;
            if !seen.contains(&origin) {
                seen.push(origin);
                operators.push(graph.origins[origin].op_type.clone());
            }
        }
        operators.dedup();
        operators
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, schedule};
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{DType, Dim, Graph, Op, Origin, OriginId, TensorType, ValueId};
    use onnxc_ir::scalar::UnaryFn;

    /// Bytes of the only group of what is made of a table of 1,000 rows of 8 elements.
    fn bytes_of(part: &dyn Fn(&mut Builder<'_>, ValueId) -> ValueId) -> i64 {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let shape = [1000i64, 8].map(Dim::from).to_vec();
        let table = b.input("table", TensorType::new(DType::F32, shape), None);
        let part = part(&mut b, table);
        let result = b.unary(UnaryFn::Exp, part).unwrap();
        graph.outputs = vec![("y".into(), result)];
        let program = schedule(&graph, Options::default()).unwrap();
        assert_eq!(program.groups.len(), 1);
        program.groups.values().next().unwrap().bytes(&graph).as_const().unwrap()
    }

    /// A row has 32 bytes; indices of 3 rows have 24.
    #[test]
    fn of_a_table_what_is_picked_counts() {
        let indices =
            |b: &mut Builder<'_>| b.input("at", TensorType::new(DType::I64, vec![Dim::from(3i64)]), None);
        let rows = |b: &mut Builder<'_>, table: ValueId, count: i64| {
            let (starts, steps) = (vec![Dim::ZERO; 2], vec![1; 2]);
            let sizes = [count, 8].map(Dim::from).to_vec();
            b.emit1(Op::Slice { starts, steps, sizes }, &[table]).unwrap()
        };
        assert_eq!(bytes_of(&|_, table| table), 2 * 32_000);
        assert_eq!(bytes_of(&|b, table| rows(b, table, 4)), 2 * 4 * 32);
        let gathered = bytes_of(&|b, table| {
            let at = indices(b);
            b.emit1(Op::Gather { axis: 0 }, &[table, at]).unwrap()
        });
        assert_eq!(gathered, 2 * 96 + 24);
        let through_a_view = bytes_of(&|b, table| {
            let (table, at) = (rows(b, table, 500), indices(b));
            b.emit1(Op::Gather { axis: 0 }, &[table, at]).unwrap()
        });
        assert_eq!(through_a_view, 2 * 96 + 24);
        // Two parts, and more than there is.
        let twice = bytes_of(&|b, table| {
            let (a, c) = (rows(b, table, 4), rows(b, table, 4));
            b.binary(onnxc_ir::scalar::BinaryFn::Add, a, c).unwrap()
        });
        assert_eq!(twice, 2 * 128 + 128);
    }
}
