//! Training information, whether it is compiled or not: each binding must lead somewhere.

use std::collections::HashSet;
use std::sync::Arc;

use onnxc_proto::{GraphProto, StringStringEntryProto, TrainingInfoProto, ValueInfoProto};

use super::{Names, NodeScope, Role, Validator, malformed};
use crate::opsets::Opsets;
use onnxc_ir::rules::Rule;

impl<'m> Validator<'m> {
    pub(super) fn training(&mut self, graph: &'m GraphProto, opsets: &Opsets) {
        let count = self.model.training_info.len();
        if count == 0 {
            return;
        }
        if !self.trains {
            let entries = if count == 1 { "entry" } else { "entries" };
            self.log.note(Rule::TrainingIgnored, || {
                format!("training_info is ignored ({count} {entries}); --training compiles it")
            });
        }
        for (index, info) in self.model.training_info.iter().enumerate() {
            self.training_graphs(graph, index, info, opsets);
            let state: HashSet<&str> =
                initializers(graph).chain(info.algorithm.iter().flat_map(initializers)).collect();
            let outputs = |graph: &'m GraphProto| graph.output.iter().map(ValueInfoProto::name);
            let initial: HashSet<&str> = info.initialization.iter().flat_map(outputs).collect();
            let updated: HashSet<&str> =
                info.algorithm.iter().flat_map(outputs).chain(outputs(graph)).collect();
            let places = ["outputs of the initialization", "outputs of the algorithm or of the graph"];
            self.bindings(
                index,
                "initialization_binding",
                &info.initialization_binding,
                &state,
                (&initial, places[0]),
            );
            self.bindings(index, "update_binding", &info.update_binding, &state, (&updated, places[1]));
        }
    }

    /// The nodes of both graphs; those of the algorithm see the values of the graph that is trained.
    fn training_graphs(
        &mut self,
        graph: &'m GraphProto,
        index: usize,
        info: &'m TrainingInfoProto,
        opsets: &Opsets,
    ) {
        let place = |what: &str| NodeScope {
            opsets: Arc::new(opsets.clone()),
            function: None,
            prefix: format!("training_info[{index}].{what}/"),
            role: Role::Training,
        };
        if let Some(initialization) = &info.initialization {
            if let Some(input) = initialization.input.first() {
                self.warn(Rule::TrainingInfo, || {
                    format!(
                        "training_info[{index}]: the initialization takes `{}`; it may take nothing",
                        input.name()
                    )
                });
            }
            self.graph(initialization, &place("initialization"), &mut Names::default());
        }
        if let Some(algorithm) = &info.algorithm {
            let mut names = Names::default();
            for name in super::defined_values(graph) {
                names.define(name);
            }
            self.graph(algorithm, &place("algorithm"), &mut names);
        }
    }

    fn bindings(
        &mut self,
        index: usize,
        list: &str,
        bindings: &'m [StringStringEntryProto],
        state: &HashSet<&str>,
        (outputs, place): (&HashSet<&str>, &str),
    ) {
        let mut keys = HashSet::new();
        for binding in bindings {
            let (key, value) = (binding.key(), binding.value());
            let about = format!("{list} of training_info[{index}]");
            if !keys.insert(key) {
                self.warn(Rule::TrainingInfo, || format!("{about} binds `{key}` twice"));
            }
            if !state.contains(key) {
                self.error(Rule::TrainingBinding, || {
                    malformed(format!(
                        "{about} binds `{key}`, which is not an initializer of the graph or the algorithm"
                    ))
                });
            }
            if !outputs.contains(value) {
                self.error(Rule::TrainingBinding, || {
                    let mut names: Vec<&str> = outputs.iter().copied().take(8).collect();
                    names.sort_unstable();
                    malformed(format!(
                        "{about} gives `{key}` the value `{value}`, which is not among the {place} ({})",
                        names.join(", ")
                    ))
                });
            }
        }
    }
}

fn initializers(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
    graph.initializer.iter().chain(sparse).map(|tensor| tensor.name())
}
