//! Topological orders.

use std::collections::{BTreeSet, HashMap};

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, NodeId};

impl Graph {
    /// Sorts the nodes so that each comes after those that compute its operands, and keeps their order where it can. Returns false if
    /// nodes form a circle.
    pub fn sort(&mut self) -> bool {
        let mut position: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        self.order.iter().enumerate().for_each(|(at, &node)| position[node] = Some(at));
        let mut missing = vec![0usize; self.order.len()];
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, &node) in self.order.iter().enumerate() {
            let needs = self.needs(node);
            let operands = self.nodes[node].inputs.iter().chain(&needs);
            let makers: BTreeSet<usize> =
                operands.filter_map(|&value| position[self.producer(value)?]).collect();
            missing[at] = makers.len();
            makers.into_iter().for_each(|maker| readers.entry(maker).or_default().push(at));
        }
        let mut ready: BTreeSet<usize> = (0..missing.len()).filter(|&at| missing[at] == 0).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(at) = ready.pop_first() {
            order.push(self.order[at]);
            for &reader in readers.get(&at).into_iter().flatten() {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.insert(reader);
                }
            }
        }
        let whole = order.len() == self.order.len();
        self.order = order;
        whole
    }
}
