//! Strings as numbers.
//!
//! Where a model is imported, a string tensor is one as ONNX has it. Before any pass all strings of a graph become i64:
//! places in the table of a run, which begins with the constants of the model. What lies at the borders is converted by
//! calls of the runtime, see [`borders`](crate::borders).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use onnxc_runtime_support::strings::{Table, constants};

use crate::graph::{Constant, DType, Def, Graph, NodeId, Op, Tensor};

/// The constant strings of a model, by their numbers.
#[derive(Clone)]
pub struct Strings(Arc<Inner>);

struct Inner {
    texts: Vec<Bytes>,
    blob: OnceLock<Vec<u8>>,
    /// For evaluation: these texts, and those that were met since.
    table: Mutex<Table>,
}

impl Strings {
    /// Strings by these texts, which differ.
    pub fn new(texts: Vec<Bytes>) -> Strings {
        let table = Table::new(&slices(&texts));
        Strings(Arc::new(Inner { texts, blob: OnceLock::new(), table: Mutex::new(table) }))
    }

    pub fn texts(&self) -> &[Bytes] {
        &self.0.texts
    }

    /// The texts as the runtime reads them.
    pub fn blob(&self) -> &[u8] {
        self.0.blob.get_or_init(|| constants(&slices(&self.0.texts)))
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        // A table whose user has panicked is as good as before: it only grows.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slices(texts: &[Bytes]) -> Vec<&[u8]> {
    texts.iter().map(|text| &text[..]).collect()
}

impl PartialEq for Strings {
    fn eq(&self, other: &Strings) -> bool {
        self.0.texts == other.0.texts
    }
}

impl std::fmt::Debug for Strings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.0.texts).finish()
    }
}

/// Whether a graph, or one inside it, has strings that are not yet numbers, or calls that have no table yet.
pub fn has_strings(graph: &Graph) -> bool {
    let mut open = vec![graph];
    while let Some(graph) = open.pop() {
        if graph.values.values().any(|value| value.ty.dtype == DType::Str) {
            return true;
        }
        let calls = |&node: &NodeId| matches!(graph.nodes[node].op, Op::Call(_));
        if graph.strings.is_none() && graph.order.iter().any(calls) {
            return true;
        }
        open.extend(graph.order.iter().flat_map(|&node| graph.nodes[node].op.bodies()));
    }
    false
}

/// Makes all strings numbers but those at the borders of the outermost graph. The texts of its inputs' defaults are constants, too.
pub fn number(graph: &mut Graph) {
    let mut numbers = Numbers::default();
    numbers.graph(graph);
    let defaults = graph.inputs.iter().filter_map(|input| input.default.as_ref());
    for default in defaults.filter(|default| default.dtype == DType::Str) {
        numbers.tensor(default);
    }
    share(graph, &Strings::new(numbers.texts));
}

/// Gives the graphs inside a graph its strings.
pub(super) fn share(graph: &mut Graph, strings: &Strings) {
    graph.strings = Some(strings.clone());
    for node in graph.nodes.values_mut() {
        node.op.bodies_mut().iter_mut().for_each(|body| share(body, strings));
    }
}

#[derive(Default)]
struct Numbers {
    texts: Vec<Bytes>,
    numbers: HashMap<Bytes, i64>,
}

impl Numbers {
    fn graph(&mut self, graph: &mut Graph) {
        for value in graph.values.values_mut().filter(|value| value.ty.dtype == DType::Str) {
            value.ty.dtype = DType::I64;
            if let Def::Const(Constant::Data(tensor)) = &mut value.def {
                *tensor = self.tensor(tensor);
            }
        }
        for node in graph.nodes.values_mut() {
            if let Op::Call(call) = &mut node.op
                && call.result.dtype == DType::Str
            {
                call.result.dtype = DType::I64;
            }
            node.op.bodies_mut().iter_mut().for_each(|body| self.graph(body));
        }
    }

    fn tensor(&mut self, tensor: &Tensor) -> Tensor {
        let numbers: Vec<i64> = tensor.texts().iter().map(|text| self.number(text)).collect();
        Tensor::from_slice(&tensor.shape, &numbers)
    }

    fn number(&mut self, text: &Bytes) -> i64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.clone());
        self.numbers.insert(text.clone(), number);
        number
    }
}
