//! The verifier of the tensor IR. It runs after every pass in debug builds and tests.
//!
//! Of a graph and, recursively, of the bodies of its nodes it checks that
//!
//! 1. every id that a live part names (`order`, inputs, outputs, operands) exists;
//! 2. every value is defined once: input `i` names a value defined by input `i`, result `k` of a live node a value defined by that
//!    node and `k`, and `order` names no node twice;
//! 3. `order` is topological: operands are inputs, constants, or results of earlier nodes in it; so are
//!    the graph's outputs;
//! 4. constant dims are not negative, and symbols are declared by the outermost graph (a body by itself or
//!    a graph around it);
//! 5. the types of a node's results are those that `infer` gives for its operands;
//! 6. axes of a reduction are sorted and distinct;
//! 7. the number of known elements is that of the type; a constant's are its data;
//! 8. a constant's data have its type and the length that the type calls for, bools are 0 or 1, and
//!    sub-byte elements fit their width;
//! 9. a deferred constant has a static type, the one `infer` gives; its operands are constants, and it does
//!    not depend on itself;
//! 10. the default of an input fits the input's type;
//! 11. bodies nest at most [`MAX_NESTING`] deep;
//! 12. a data symbol that a live node mentions is an element of an i64 scalar or vector that is there before the
//!     node, and its bound mentions symbols of lower numbers only;
//! 13. the symbol of the seed is declared, no data define it, and no input's dim is it;
//! 14. states are pairs of an input and an output of one type; the output of one that grows is what is appended to the input,
//!     by its size, and nothing else reads that input; there are no other appends.
//!
//! What no live node uses is not checked: dead nodes and values stay in their tables.

use cranelift_entity::{EntityRef, EntitySet};

use crate::error::{Error, Stage};
use crate::graph::{
    AnyRank, Constant, DType, Def, Dim, Graph, MAX_NESTING, NodeId, Op, Sym, Tensor, TensorType, ValueId,
};
use crate::primitives::infer::infer;

/// Checks all rules; gives every violation.
pub fn verify(graph: &Graph) -> std::result::Result<(), Vec<Error>> {
    let errors = verify_nested(graph, 0, 1);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn verify_nested(graph: &Graph, outer_symbols: usize, depth: usize) -> Vec<Error> {
    let mut verifier = Verifier {
        graph,
        symbols: outer_symbols.max(graph.symbols.len()),
        depth,
        errors: Vec::new(),
        defined: EntitySet::new(),
        constants: EntitySet::new(),
    };
    if depth > MAX_NESTING {
        verifier.report(format!("graphs nest deeper than {MAX_NESTING}"));
        return verifier.errors;
    }
    // Types are inferred only of ids that exist.
    verifier.ids();
    if verifier.errors.is_empty() {
        verifier.inputs();
        verifier.seed();
        verifier.nodes();
        verifier.outputs();
        verifier.states();
    }
    verifier.errors
}

struct Verifier<'g> {
    graph: &'g Graph,
    symbols: usize,
    depth: usize,
    errors: Vec<Error>,
    /// Inputs, and results of nodes visited so far.
    defined: EntitySet<ValueId>,
    /// Constants that have been checked.
    constants: EntitySet<ValueId>,
}

impl Verifier<'_> {
    fn report(&mut self, message: String) {
        let place = if self.depth > 1 { format!("body {:?}: ", self.graph.name) } else { String::new() };
        self.errors.push(Error::internal(Stage::Pass, format!("{place}{message}")));
    }

    fn ids(&mut self) {
        let graph = self.graph;
        let exists = |value: ValueId| graph.values.is_valid(value);
        let mut seen = EntitySet::new();
        for (at, input) in graph.inputs.iter().enumerate() {
            if !exists(input.value) {
                self.report(format!("input {at} names {}, which does not exist", input.value));
            }
        }
        for (name, value) in &graph.outputs {
            if !exists(*value) {
                self.report(format!("output {name:?} names {value}, which does not exist"));
            }
        }
        for &id in &graph.order {
            let Some(node) = graph.nodes.get(id) else {
                self.report(format!("the order names {id}, which does not exist"));
                continue;
            };
            if !seen.insert(id) {
                self.report(format!("the order names {id} twice"));
            }
            for &value in node.inputs.iter().chain(&node.outputs) {
                if !exists(value) {
                    self.report(format!("{id} ({}) names {value}, which does not exist", node.op.name()));
                }
            }
        }
    }

    fn inputs(&mut self) {
        for (at, input) in self.graph.inputs.iter().enumerate() {
            self.define(input.value, Def::Input(at));
            self.value(input.value);
            let Some(default) = &input.default else { continue };
            self.data(&format!("the default of input {:?}", input.name), default);
            let ty = self.graph.input_ty(at);
            let fits = default.dtype == ty.dtype
                && default.shape.len() == ty.rank()
                && default.shape.iter().zip(&ty.shape).all(|(&size, dim)| {
                    dim.as_const().is_none_or(|wanted| usize::try_from(wanted) == Ok(size))
                });
            if !fits {
                let found = format!("{}{:?}", default.dtype, default.shape);
                self.report(format!("the default of input {:?} is {found}, not {ty}", input.name));
            }
        }
    }

    fn define(&mut self, value: ValueId, wanted: Def) {
        if !self.defined.insert(value) {
            self.report(format!("{value} is defined twice"));
        }
        let found = &self.graph.values[value].def;
        if *found != wanted {
            let found = match found {
                Def::Const(_) => "a constant".to_string(),
                other => format!("{other:?}"),
            };
            self.report(format!("{value} is {wanted:?}, and says that it is {found}"));
        }
    }

    fn nodes(&mut self) {
        for &id in &self.graph.order {
            let node = &self.graph.nodes[id];
            let before = self.errors.len();
            for &input in &node.inputs {
                self.operand(input, || format!("{id} ({})", node.op.name()));
            }
            for sym in self.graph.data_symbols(id) {
                self.data_symbol(sym, id);
            }
            for (at, &output) in node.outputs.iter().enumerate() {
                self.define(output, Def::Node(id, at));
                self.value(output);
            }
            self.operation(&node.op, &format!("{id} ({})", node.op.name()));
            // With broken operands inference would only repeat the problem.
            if self.errors.len() == before {
                self.results(id);
            }
        }
    }

    fn seed(&mut self) {
        let Some(seed) = self.graph.seed else { return };
        if seed.index() >= self.symbols {
            self.report(format!("the seed is {seed}, which is not declared"));
        }
        if self.graph.data.contains_key(&seed) {
            self.report(format!("the seed {seed} is defined by data"));
        }
        let is_seed = |dim: &Dim| dim.as_sym() == Some(seed);
        for input in &self.graph.inputs {
            if self.graph.ty(input.value).shape.iter().any(is_seed) {
                self.report(format!("the seed {seed} is a dim of input {}", input.name));
            }
        }
    }

    /// The definition of a symbol that `user` mentions.
    fn data_symbol(&mut self, sym: Sym, user: NodeId) {
        let symbol = &self.graph.data[&sym];
        let Some(value) = self.graph.values.get(symbol.value) else {
            return self.report(format!("{sym} is defined by {}, which does not exist", symbol.value));
        };
        let elements = match &value.ty.shape[..] {
            [] => Some(1),
            [only] => only.as_const(),
            _ => None,
        };
        if value.ty.dtype != DType::I64 || elements.is_none_or(|elements| symbol.element as i64 >= elements) {
            let (element, ty) = (symbol.element, &value.ty);
            self.report(format!("{sym} is element {element} of {}: {ty}", symbol.value));
        }
        self.operand(symbol.value, || format!("{user}, which mentions {sym},"));
        let mut late = None;
        if let Some(bound) = &symbol.bound {
            bound.visit_symbols(&mut |other| {
                if other >= sym {
                    late = Some(other);
                }
            });
        }
        if let Some(other) = late {
            self.report(format!("the bound of {sym} mentions {other}"));
        }
    }

    fn results(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let types: Vec<&TensorType> = node.inputs.iter().map(|&value| self.graph.ty(value)).collect();
        let found: Vec<&TensorType> = node.outputs.iter().map(|&value| self.graph.ty(value)).collect();
        match infer(&node.op, &types).map(|inferred| inferred.results) {
            Ok(wanted) if wanted.iter().eq(found.iter().copied()) => {}
            Ok(wanted) => {
                let list = |types: Vec<String>| types.join(", ");
                let (found, wanted) = (
                    list(found.iter().map(|ty| ty.to_string()).collect()),
                    list(wanted.iter().map(|ty| ty.to_string()).collect()),
                );
                self.report(format!("{id} ({}) has results {found}, not {wanted}", node.op.name()));
            }
            Err(error) => self.report(format!("{id} ({}): {}", node.op.name(), error.message)),
        }
    }

    /// What holds of an operation with any operands.
    fn operation(&mut self, op: &Op, place: &str) {
        match op {
            Op::Reduce { axes, .. } if axes.windows(2).any(|pair| pair[0] >= pair[1]) => {
                self.report(format!("{place}: axes {axes:?} are not sorted and distinct"));
            }
            _ => {}
        }
        for body in op.bodies() {
            self.errors.extend(verify_nested(body, self.symbols, self.depth + 1));
        }
        for dim in op.dims() {
            self.dim_symbols(dim, place);
        }
    }

    /// A value that is read: defined before, or a constant.
    fn operand(&mut self, value: ValueId, place: impl Fn() -> String) {
        if self.graph.is_constant(value) {
            self.constant(value);
        } else if !self.defined.contains(value) {
            self.report(format!("{} uses {value} before it is defined", place()));
        }
    }

    fn outputs(&mut self) {
        for (name, value) in &self.graph.outputs {
            self.operand(*value, || format!("output {name:?}"));
        }
        for (&at, AnyRank { rank, least }) in &self.graph.any_rank {
            let given = self.graph.given_outputs();
            if at >= given || self.graph.output_parts.contains_key(&at) {
                self.report(format!("output {at} cannot have any rank: it is not a tensor of its own"));
            } else if *least > self.graph.output_ty(at).rank() {
                let ty = self.graph.output_ty(at);
                self.report(format!("output {at} of type {ty} would have rank {least} at least"));
            }
            self.dim_symbols(rank, &format!("the rank of output {at}"));
        }
    }

    fn states(&mut self) {
        let graph = self.graph;
        if graph.states.len() > graph.inputs.len().min(graph.outputs.len()) {
            return self.report(format!("{} states of fewer inputs or outputs", graph.states.len()));
        }
        let mut appends = EntitySet::new();
        for (at, state) in graph.states.iter().enumerate() {
            let input = graph.inputs[graph.given_inputs() + at].value;
            let output = graph.outputs[graph.given_outputs() + at].1;
            let (from, to) = (graph.ty(input), graph.ty(output));
            if from.dtype != to.dtype || from.rank() != to.rank() {
                self.report(format!("state {at} is {from} before a run and {to} after it"));
            }
            if *from != state.stored() {
                self.report(format!("state {at} is {from}, not {}", state.stored()));
            }
            let panels = state.panels.as_ref();
            if let Some(panels) = panels
                && (state.ty.shape.get(panels.axis) != Some(&panels.size)
                    || state.axis() != Some(panels.axis)
                    || state.growth.is_none() && !graph.is_kept(at))
            {
                self.report(format!("state {at} of {} cannot lie in {panels:?}", state.ty));
            }
            let Some(growth) = &state.growth else { continue };
            let panel = panels.map(|panels| panels.width);
            let op = Op::Append { axis: growth.axis, at: Dim::sym(growth.size), panel };
            let node = graph.producer(output).filter(|&node| {
                let node = &graph.nodes[node];
                node.op == op && node.inputs[0] == input
            });
            let fits = state.ty.shape.get(growth.axis) == Some(&growth.capacity);
            let Some(node) = node.filter(|_| fits) else {
                self.report(format!(
                    "state {at} is not what is appended to {input} along axis {}",
                    growth.axis
                ));
                continue;
            };
            appends.insert(node);
            let readers = graph.order.iter().filter(|&&reader| graph.nodes[reader].inputs.contains(&input));
            let is_output = graph.outputs.iter().any(|(_, value)| *value == input);
            if readers.count() != 1 || is_output || graph.nodes[node].inputs[1] == input {
                self.report(format!("{input}, a state that grows, has other readers"));
            }
        }
        for &id in graph.order.iter().filter(|&&id| !appends.contains(id)) {
            if matches!(graph.nodes[id].op, Op::Append { .. }) {
                self.report(format!("{id} appends to a value other than a state"));
            }
        }
    }

    /// Dims and known elements of a value.
    fn value(&mut self, id: ValueId) {
        let value = &self.graph.values[id];
        for dim in &value.ty.shape {
            if dim.as_const().is_some_and(|size| size < 0) {
                self.report(format!("{id} has the negative dim {dim} in its type {}", value.ty));
            }
            self.dim_symbols(dim, &id.to_string());
        }
        let Some(known) = &value.known else { return };
        let count = value.ty.elements().as_const().and_then(|count| usize::try_from(count).ok());
        if count != Some(known.len()) {
            self.report(format!("{id} of type {} has {} known elements", value.ty, known.len()));
        }
        for dim in known.iter() {
            self.dim_symbols(dim, &id.to_string());
        }
    }

    fn dim_symbols(&mut self, dim: &Dim, place: &str) {
        let mut unknown = None;
        dim.visit_symbols(&mut |sym| {
            if sym.index() >= self.symbols {
                unknown = Some(sym);
            }
        });
        if let Some(sym) = unknown {
            self.report(format!("{place} uses the symbol {sym}, which is not declared"));
        }
    }

    /// A constant and all that it is computed from, each checked once.
    fn constant(&mut self, value: ValueId) {
        let mut open = EntitySet::new();
        // (value, whether its operands have been checked)
        let mut stack = vec![(value, false)];
        while let Some((id, ready)) = stack.pop() {
            if ready {
                self.deferred_type(id);
                self.constants.insert(id);
                continue;
            }
            if self.constants.contains(id) {
                continue;
            }
            match &self.graph.values[id].def {
                Def::Const(Constant::Data(tensor)) => {
                    self.constants.insert(id);
                    self.value(id);
                    self.constant_data(id, tensor);
                }
                Def::Const(Constant::Apart(weight)) => {
                    self.constants.insert(id);
                    self.value(id);
                    self.constant_data(id, &weight.tensor);
                }
                Def::Const(Constant::Deferred { op, inputs }) => {
                    if !open.insert(id) {
                        self.report(format!("the constant {id} depends on itself"));
                        self.constants.insert(id);
                        continue;
                    }
                    self.value(id);
                    self.operation(op, &id.to_string());
                    stack.push((id, true));
                    for &input in inputs {
                        match self.graph.values.get(input) {
                            Some(input_value) if matches!(input_value.def, Def::Const(_)) => {
                                stack.push((input, false));
                            }
                            _ => self.report(format!("the constant {id} reads {input}, which is none")),
                        }
                    }
                }
                // Only constants are pushed.
                _ => {}
            }
        }
    }

    fn deferred_type(&mut self, id: ValueId) {
        let Def::Const(Constant::Deferred { op, inputs }) = &self.graph.values[id].def else { return };
        let ty = self.graph.ty(id);
        if ty.static_shape().is_none() {
            self.report(format!("the constant {id} has the symbolic type {ty}"));
        }
        let types: Option<Vec<&TensorType>> =
            inputs.iter().map(|&input| self.graph.values.get(input).map(|value| &value.ty)).collect();
        let Some(types) = types.filter(|_| self.errors.is_empty()) else { return };
        match infer(op, &types).map(|inferred| inferred.results) {
            Ok(wanted) if wanted == [ty.clone()] => {}
            Ok(wanted) => {
                let wanted: Vec<String> = wanted.iter().map(|ty| ty.to_string()).collect();
                self.report(format!("the constant {id} is of type {ty}, not {}", wanted.join(", ")));
            }
            Err(error) => self.report(format!("the constant {id}: {}", error.message)),
        }
    }

    fn constant_data(&mut self, id: ValueId, tensor: &Tensor) {
        let value = &self.graph.values[id];
        let fits = tensor.dtype == value.ty.dtype
            && value.ty.static_shape().is_some_and(|shape| shape == tensor.shape);
        if !fits {
            let found = format!("{}{:?}", tensor.dtype, tensor.shape);
            self.report(format!("the data of {id} are {found}, its type is {}", value.ty));
        }
        let before = self.errors.len();
        self.data(&format!("the constant {id}"), tensor);
        // Data of the wrong length have no elements to compare with.
        if self.errors.len() == before
            && let Some(known) = &value.known
            && tensor.known_elements().is_none_or(|elements| elements != *known)
        {
            self.report(format!("{id} has known elements {known:?} that are not its data"));
        }
    }

    /// Length and encoding of a tensor's data.
    fn data(&mut self, what: &str, tensor: &Tensor) {
        let bytes = tensor.shape.iter().try_fold(tensor.dtype.size(), |bytes, &size| bytes.checked_mul(size));
        let is_whole = match tensor.dtype {
            DType::Str => tensor.has_whole_texts(),
            _ => bytes == Some(tensor.data.len()),
        };
        if !is_whole {
            let (dtype, shape, found) = (tensor.dtype, &tensor.shape, tensor.data.len());
            self.report(format!("{what} has {found} bytes of data for {dtype}{shape:?}"));
        }
        let valid: fn(u8) -> bool = match tensor.dtype {
            DType::Bool => |byte| byte <= 1,
            DType::F6E2M3 | DType::F6E3M2 => |byte| byte < 64,
            DType::U4 | DType::F4E2M1 => |byte| byte < 16,
            DType::U2 => |byte| byte < 4,
            DType::I4 => |byte| (-8..8).contains(&(byte as i8)),
            DType::I2 => |byte| (-2..2).contains(&(byte as i8)),
            _ => return,
        };
        if let Some(byte) = tensor.data.iter().find(|&&byte| !valid(byte)) {
            self.report(format!("{what} has the byte {byte:#04x}, which is not a {}", tensor.dtype));
        }
    }
}
