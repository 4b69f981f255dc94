//! Functions of the model: a call is replaced by the function's nodes, with names of their own.

use std::collections::HashMap;
use std::sync::Arc;

use onnxc_proto::{AttributeProto, FunctionProto, NodeProto};

use super::names::named;
use super::problems::Problems;
use super::scope::{Binding, Env, Scope};
use super::{FunctionKey, Given, Importer, kinds};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ops::Attr;

impl<'m> Given<'m> {
    /// The function that a node calls, if it calls one. A function hides an operator of the same name.
    pub(super) fn callee(&self, node: &NodeProto) -> Option<(FunctionKey<'m>, &'m FunctionProto)> {
        let key = (super::normal_domain(node.domain()), node.op_type(), node.overload());
        let functions: &HashMap<FunctionKey<'_>, &'m FunctionProto> = &self.functions;
        functions.get(&key).map(|function| (function_key(function), *function))
    }
}

impl<'m> Importer<'m> {
    /// Inlines one call; gives what the node's outputs stand for.
    pub(super) fn call(
        &mut self,
        b: &mut Builder<'_>,
        (key, function): (FunctionKey<'m>, &'m FunctionProto),
        node: &NodeProto,
        inputs: &[Binding],
        scope: &Scope<'_>,
        label: &str,
    ) -> Result<Vec<Binding>> {
        check_call(function, node)?;
        if self.calls.open.contains(&key) {
            return Err(Error::malformed(Stage::Import, format!("function {} calls itself", key.1)));
        }
        let attributes = self.call_attributes(function, node, scope)?;
        let attributes = attributes.into_iter().map(|(name, value)| (name, value.into_owned())).collect();
        let opsets = self.problems.opsets(&function.opset_import, &format!("function {}", key.1));
        let env = Arc::new(Env { opsets, attributes: Some(attributes) });
        let mut inner = Scope::new(env, format!("{label}/"), &function.node);
        for (at, name) in function.input.iter().enumerate() {
            if !inner.define(name, inputs.get(at).cloned().unwrap_or(Binding::Omitted)) {
                self.problems.malformed(format!("function {} has two inputs `{name}`", key.1));
            }
        }
        for (name, output) in function.output.iter().zip(&node.output) {
            if let Some(&rank) = scope.ranks.get(output) {
                inner.ranks.insert(name.clone(), rank);
            }
        }
        let names: Vec<&str> = function.output.iter().map(String::as_str).collect();
        inner.leave_ranks_open(names.iter().copied(), &self.open_ranks.of_node);
        self.budget.enter()?;
        self.calls.open.push(key);
        self.nodes(b, &function.node, &names, &mut inner);
        self.calls.open.pop();
        self.budget.depth -= 1;
        self.check_values_of(b, function, &inner);
        let outputs = function.output.iter().take(node.output.len());
        outputs
            .map(|name| {
                inner.get(name).ok_or_else(|| {
                    let message = format!("output `{name}` of function {} is not defined", key.1);
                    Error::malformed(Stage::Import, message)
                })
            })
            .collect()
    }

    /// Warns of declared types of values inside a function that are not those of this call.
    fn check_values_of(&mut self, b: &Builder<'_>, function: &FunctionProto, inner: &Scope<'_>) {
        for info in &function.value_info {
            let Some(Binding::Value(item)) = inner.get(info.name()) else { continue };
            if let Some((rule, message)) = kinds::item_deviation(info, &item, b) {
                self.problems.warn(rule, format!("in function {}: {message}", function.name()), None);
            }
        }
    }

    /// Attribute values of a call: those of the node, then the function's defaults.
    fn call_attributes<'p>(
        &mut self,
        function: &'p FunctionProto,
        node: &'p NodeProto,
        scope: &Scope<'_>,
    ) -> Result<HashMap<String, Attr<'p>>> {
        let known = |attribute: &&AttributeProto| {
            let name = attribute.name();
            function.attribute.iter().any(|known| known == name)
                || function.attribute_proto.iter().any(|known| known.name() == name)
        };
        let mut values = self.attributes(node.attribute.iter().filter(known), scope)?;
        for (name, value) in self.attributes(function.attribute_proto.iter(), scope)? {
            values.entry(name).or_insert(value);
        }
        Ok(values)
    }
}

/// The functions of a model, under the names that nodes use.
pub(super) fn by_key<'m>(
    functions: &'m [FunctionProto],
    problems: &mut Problems,
) -> HashMap<FunctionKey<'m>, &'m FunctionProto> {
    let mut found = HashMap::new();
    for function in functions {
        let key = function_key(function);
        if found.insert(key, function).is_some() {
            problems.malformed(format!("function {}.{} `{}` is defined twice", key.0, key.1, key.2));
        }
    }
    found
}

/// What nodes call a function by.
pub(crate) fn function_key(function: &FunctionProto) -> FunctionKey<'_> {
    (super::normal_domain(function.domain()), function.name(), function.overload())
}

/// Checks the numbers of inputs and outputs of a call.
pub(crate) fn check_call(function: &FunctionProto, node: &NodeProto) -> Result<()> {
    let pairs = [
        ("inputs", named(&node.input), function.input.len()),
        ("outputs", named(&node.output), function.output.len()),
    ];
    for (what, given, taken) in pairs {
        if given > taken {
            let message = format!("{given} {what} where function {} has {taken}", function.name());
            return Err(Error::malformed(Stage::Import, message));
        }
    }
    Ok(())
}
