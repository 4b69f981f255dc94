//! The versions of operator sets that nodes mean.

use std::collections::HashMap;

use onnxc_proto::OperatorSetIdProto;

use super::{newest, normal_domain};

/// The versions of operator sets that nodes mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opsets {
    imported: HashMap<String, u32>,
    /// Whether the newest version is meant of a known domain that is not imported. ONNX Runtime takes it so in the graph of a
    /// model that imports something.
    implied: bool,
}

impl Opsets {
    /// The version of a domain that is imported.
    pub(crate) fn imported(&self, domain: &str) -> Option<u32> {
        self.imported.get(domain).copied()
    }

    /// The version of a domain that is meant.
    pub(crate) fn get(&self, domain: &str) -> Option<u32> {
        let implied = || newest(domain).filter(|_| self.implied && !self.imported.is_empty());
        self.imported(domain).or_else(implied)
    }

    /// Imports a version of a domain; gives the one that was imported before.
    pub(crate) fn insert(&mut self, domain: &str, version: u32) -> Option<u32> {
        self.imported.insert(domain.to_string(), version)
    }

    pub(crate) fn imply_newest(&mut self) {
        self.implied = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.imported.is_empty()
    }

    /// The imported versions, by domain.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u32)> {
        self.imported.iter().map(|(domain, &version)| (domain.as_str(), version))
    }
}

/// Opset imports of a function that is only looked at; a call reports what is wrong with them.
pub(crate) fn plain_opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    let mut opsets = Opsets::default();
    for import in imports {
        if let Ok(version) = u32::try_from(import.version()) {
            opsets.insert(normal_domain(import.domain()), version);
        }
    }
    opsets
}
