//! Weights that lie apart from the code, in a file that can be exchanged for that of another training of the same model.
//!
//! [`set_apart`] hides the data of a model's weights from everything that makes code: [`Graph::constant_data`] has none of them, and so no
//! pass, schedule or kernel depends on a weight's value, but for facts that are noted when they are asked for ([`Weight::facts`]). What
//! follows from weights is computed when they are written (`interp::constant`), into the same places for any values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::graph::{Constant, DType, Def, Graph, Tensor, ValueId};

/// A weight whose data code does not depend on.
#[derive(Clone, PartialEq, Debug)]
pub struct Weight {
    /// The same for copies of one weight, and for no other.
    pub number: u32,
    pub tensor: Tensor,
    /// What code may depend on, because training seldom changes it: see [`Weight::facts`].
    is_finite: bool,
    has_minus_zero: bool,
    asked: Asked,
}

/// Which facts of a weight, or of a copy of it, something has asked for. Weights are equal regardless.
#[derive(Clone, Default, Debug)]
struct Asked(Arc<[AtomicBool; 2]>);

impl PartialEq for Asked {
    fn eq(&self, _: &Asked) -> bool {
        true
    }
}

/// Weights with at most this many elements are searched for -0.
const MAX_ELEMENTS: usize = 1 << 16;

impl Weight {
    pub fn new(number: u32, tensor: Tensor) -> Weight {
        let is_float = tensor.dtype.is_float();
        let minus = |value: &f64| *value == 0.0 && value.is_sign_negative();
        let elements = if is_float && tensor.len() <= MAX_ELEMENTS { tensor.to_f64s() } else { None };
        let has_minus_zero = is_float && elements.is_none_or(|elements| elements.iter().any(minus));
        // In parts, lest numbers of 64 bits be made of the whole.
        let bytes = MAX_ELEMENTS * tensor.dtype.size();
        let part = |at: usize| {
            let data = tensor.data.slice(at..tensor.data.len().min(at + bytes));
            Tensor::new(tensor.dtype, vec![data.len() / tensor.dtype.size()], data)
        };
        let is_finite = (0..tensor.data.len()).step_by(bytes.max(1)).all(|at| part(at).is_finite());
        Weight { number, is_finite, has_minus_zero, tensor, asked: Asked::default() }
    }

    /// No element is infinite or NaN.
    pub fn is_finite(&self) -> bool {
        self.asked.0[0].store(true, Ordering::Relaxed);
        self.is_finite
    }

    /// An element may be -0.
    pub fn has_minus_zero(&self) -> bool {
        self.asked.0[1].store(true, Ordering::Relaxed);
        self.has_minus_zero
    }

    /// The facts that something asked for, and so code may depend on. They are part of what a file of weights must agree on.
    pub fn facts(&self) -> String {
        let facts =
            [(" finite", " not finite", self.is_finite), (" with -0", " without -0", self.has_minus_zero)];
        let asked = facts.iter().zip(&*self.asked.0).filter(|(_, asked)| asked.load(Ordering::Relaxed));
        asked.map(|((yes, no, holds), _)| if *holds { *yes } else { *no }).collect()
    }
}

/// Hides the data of all constants of at least `least` bytes, but for texts, truth values and 64-bit integers, which are sizes and
/// indices, and integers that are all 0, which are zero points. Scalars stay.
pub fn set_apart(graph: &mut Graph, least: usize) {
    hide(graph, least, &mut HashMap::new());
}

/// `known`: the number of each weight, by where its data are.
fn hide(graph: &mut Graph, least: usize, known: &mut HashMap<(usize, usize), u32>) {
    for value in graph.values.values_mut() {
        let Def::Const(Constant::Data(tensor)) = &value.def else { continue };
        if !is_weight(tensor, least) {
            continue;
        }
        let count = known.len() as u32;
        let place = (tensor.data.as_ptr().addr(), tensor.data.len());
        let number = *known.entry(place).or_insert(count);
        value.def = Def::Const(Constant::Apart(Weight::new(number, tensor.clone())));
        value.known = None;
    }
    for node in graph.nodes.values_mut() {
        node.op.bodies_mut().iter_mut().for_each(|body| hide(body, least, known));
    }
}

fn is_weight(tensor: &Tensor, least: usize) -> bool {
    let fits = !matches!(tensor.dtype, DType::Str | DType::Bool | DType::I64 | DType::U64);
    let zeros = || tensor.dtype.is_int() && tensor.data.iter().all(|&byte| byte == 0);
    fits && tensor.len() > 1 && tensor.data.len() >= least && !zeros()
}

impl Graph {
    /// Whether a value is a constant that lies apart, or is computed from one.
    pub fn is_apart(&self, value: ValueId) -> bool {
        let (mut open, mut seen) = (vec![value], HashSet::from([value]));
        while let Some(value) = open.pop() {
            match &self.values[value].def {
                Def::Const(Constant::Apart(_)) => return true,
                Def::Const(Constant::Deferred { inputs, .. }) => {
                    open.extend(inputs.iter().copied().filter(|&input| seen.insert(input)));
                }
                _ => {}
            }
        }
        false
    }

    /// Whether any weight lies apart.
    pub fn has_weights_apart(&self) -> bool {
        let own = self.values.values().any(|value| matches!(value.def, Def::Const(Constant::Apart(_))));
        let mut bodies = self.nodes.values().flat_map(|node| node.op.bodies());
        own || bodies.any(Graph::has_weights_apart)
    }
}
