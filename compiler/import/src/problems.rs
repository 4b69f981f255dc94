//! What is wrong with a model, as it is found: errors, each listed once, and warnings.

use onnxc_proto::{OperatorSetIdProto, ValueInfoProto};

use super::diagnostics::{Log, same_problem};
use super::opsets::Opsets;
use super::{domain_name, kinds, normal_domain, types};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, NodeRef, Stage};
use onnxc_ir::graph::{Tensor, TensorType};
use onnxc_ir::rules::Rule;
use onnxc_ops::item::Item;

/// Problems listed before the walk gives up.
const MAX_ERRORS: usize = 1000;

#[derive(Default)]
pub(super) struct Problems {
    pub errors: Vec<Error>,
    /// Problems seen, repeated ones too.
    pub reports: u64,
    /// The walk has ended early; nothing more is reported.
    pub stopped: bool,
    /// What ended it, other than a problem of a node: reports may be taken back for another way to import a node.
    exhausted: Option<Error>,
    pub log: Log,
}

impl Problems {
    /// Lists a problem, once.
    pub(super) fn report(&mut self, error: Error) {
        self.reports += 1;
        // Where the budget was exceeded.
        if let Some(ended) = self.exhausted.as_mut().filter(|ended| ended.node.is_none())
            && ended.message == error.message
        {
            *ended = error;
            return;
        }
        if self.stopped || self.errors.iter().any(|other| same_problem(other, &error)) {
            return;
        }
        self.errors.push(error);
        self.stopped = self.errors.len() >= MAX_ERRORS;
    }

    pub(super) fn malformed(&mut self, message: String) {
        self.report(Error::malformed(Stage::Import, message));
    }

    /// Ends the walk; gives the error that ended it first.
    pub(super) fn end(&mut self, error: Error) -> Error {
        self.stopped = true;
        self.exhausted.get_or_insert(error).clone()
    }

    /// All errors, with the one that ended the walk, and the other findings.
    pub(super) fn finish(mut self) -> (Vec<Error>, Log) {
        self.errors.extend(self.exhausted.take());
        if self.stopped && self.errors.is_empty() {
            let message = format!("the walk ended after {MAX_ERRORS} problems that each hide another one");
            self.errors.push(Error::new(Stage::Import, Kind::Budget, message));
        }
        (self.errors, self.log)
    }

    /// Lists what a model breaks and is compiled all the same, once.
    pub(super) fn warn(&mut self, rule: Rule, message: String, site: Option<NodeRef>) {
        let mut problem = Error::malformed(Stage::Import, message);
        if let Some(site) = site {
            problem = problem.at(site);
        }
        self.log.add(rule, problem);
    }

    /// Warns of the declared type of a value that no node gives, where it contradicts the one that was found.
    pub(super) fn check_declared(&mut self, info: &ValueInfoProto, found: &TensorType) {
        if let Some((rule, message)) = types::deviation(info, found) {
            self.warn(rule, message, None);
        }
    }

    /// As [`Problems::check_declared`], for a value of any kind.
    pub(super) fn check_declared_item(&mut self, info: &ValueInfoProto, found: &Item, b: &Builder<'_>) {
        if let Some((rule, message)) = kinds::item_deviation(info, found, b) {
            self.warn(rule, message, None);
        }
    }

    /// Puts a later initializer in the place of an earlier one of its name.
    pub(super) fn redefine(&mut self, name: &str, first: &mut Option<Tensor>, last: Option<Tensor>) {
        if let (Some(first), Some(last)) = (&*first, &last) {
            let text = |tensor: &Tensor| format!("{}{:?}", tensor.dtype, tensor.shape);
            if (first.dtype, &first.shape) != (last.dtype, &last.shape) {
                let (first, last) = (text(first), text(last));
                return self
                    .malformed(format!("initializer `{name}` is defined twice, as {first} and as {last}"));
            }
            let message = format!("initializer `{name}` is defined twice; the last one counts");
            self.warn(Rule::InitializerTwice, message, None);
        }
        *first = last;
    }

    /// Warns of what a Constant node defines again.
    pub(super) fn superseded(&mut self, what: &str, name: &str) {
        let message = format!("{what} `{name}` is defined by a Constant, too, which counts");
        self.warn(Rule::ConstantTwice, message, None);
    }

    /// Imported opset version by domain.
    pub(super) fn opsets(&mut self, imports: &[OperatorSetIdProto], owner: &str) -> Opsets {
        let mut opsets = Opsets::default();
        for import in imports {
            let domain = normal_domain(import.domain());
            let Ok(version) = u32::try_from(import.version()) else {
                self.malformed(format!("{owner} imports version {} of `{domain}`", import.version()));
                continue;
            };
            let Some(other) = opsets.insert(domain, version) else { continue };
            if other != version {
                let highest = other.max(version);
                opsets.insert(domain, highest);
                let domain = domain_name(domain);
                let message = format!(
                    "{owner} imports versions {other} and {version} of `{domain}`: {highest} is taken, as the specification says (ONNX Runtime takes the last one)"
                );
                self.warn(Rule::DomainTwice, message, None);
            }
        }
        opsets
    }
}
