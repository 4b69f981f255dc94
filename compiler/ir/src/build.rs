//! The graph builder: every primitive enters a graph here, typed, with its known elements, and folded when
//! its operands are constants.

mod sizes;

pub use sizes::unknown_count;

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Result, Stage};
use crate::graph::call::Function;
use crate::graph::claim::{Operand, Stated, V, printable};
use crate::graph::data::Says;
use crate::graph::dim::product;
use crate::graph::{
    Assumption, Call, Constant, Def, Dim, Graph, MapFn, Node, Op, Origin, OriginId, Requirement, RhsLayout,
    Sym, Symbol, Tensor, TensorType, Value, ValueId, Weight,
};
use crate::graph::{DType, Input};
use crate::primitives::eval;
use crate::primitives::infer::{Inferred, infer, infer_known};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Results of at most this many elements are computed while building; larger ones are deferred constants.
const FOLD_NOW: i64 = 4096;

/// Bytes of a deferred constant that any model may have.
const FOLD_ANYWAY: i64 = 32 << 20;

/// Most work for a result that is computed while building; see [`eval::work`].
const FOLD_NOW_WORK: u64 = 1 << 22;

/// Values that one concatenation joins.
pub const MAX_JOINED: usize = 128;

/// Values behind indices among which operands are looked for.
const MOST_BEHIND: usize = 64;

/// Appends nodes to a graph, all of one origin.
pub struct Builder<'g> {
    pub graph: &'g mut Graph,
    pub origin: OriginId,
    /// Operands of the ONNX node, and what has their elements, with what messages call them.
    pub operands: Vec<(ValueId, Operand)>,
    /// See [`Builder::saying`].
    pub(super) says: Option<Says>,
}

impl<'g> Builder<'g> {
    pub fn new(graph: &'g mut Graph, origin: OriginId) -> Builder<'g> {
        Builder { graph, origin, operands: vec![], says: None }
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    pub fn shape(&self, value: ValueId) -> Vec<Dim> {
        self.ty(value).shape.clone()
    }

    pub fn dtype(&self, value: ValueId) -> DType {
        self.ty(value).dtype
    }

    pub fn rank(&self, value: ValueId) -> usize {
        self.ty(value).rank()
    }

    /// Elements of a small integer value as dims, where they are known at compile time.
    pub fn known(&self, value: ValueId) -> Option<Arc<[Dim]>> {
        self.graph.values[value].known.clone()
    }

    /// A fresh symbol, for a dim that nothing names.
    pub fn fresh_symbol(&mut self) -> Sym {
        let name = format!("?{}", self.graph.symbols.len());
        self.graph.symbols.push(Symbol { name })
    }

    /// The symbol that stands for the seed of the run.
    pub fn seed(&mut self) -> Sym {
        let graph = &mut *self.graph;
        *graph.seed.get_or_insert_with(|| graph.symbols.push(Symbol { name: "seed".to_string() }))
    }

    /// What the nodes of this builder come from.
    pub fn source(&self) -> Origin {
        let unnamed = || Origin::default();
        self.graph.origins.get(self.origin).cloned().unwrap_or_else(unnamed)
    }

    /// The start of a body of a node: a graph with the same symbols, and the origin of its nodes, which is that of this
    /// builder.
    pub fn body(&self) -> (Graph, OriginId) {
        let symbols = self.graph.symbols.clone();
        let strings = self.graph.strings.clone();
        let mut graph = Graph { symbols, seed: self.graph.seed, strings, ..Graph::default() };
        let origin = graph.origins.push(self.source());
        (graph, origin)
    }

    /// Declares the next graph input.
    pub fn input(&mut self, name: &str, ty: TensorType, default: Option<Tensor>) -> ValueId {
        let def = Def::Input(self.graph.inputs.len());
        let value = self.graph.values.push(Value { name: name.to_string(), ty, def, known: None });
        self.graph.inputs.push(Input { name: name.to_string(), value, default });
        value
    }

    /// A constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let ty = TensorType::new(tensor.dtype, crate::graph::dim::dims(&tensor.shape));
        let known = tensor.known_elements();
        self.graph.values.push(Value {
            name: String::new(),
            ty,
            def: Def::Const(Constant::Data(tensor)),
            known,
        })
    }

    /// A scalar constant, real where the dtype is complex; `value` is rounded to it. Among strings all are the empty one.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        let tensor = match dtype {
            DType::Str => Tensor::zeros(dtype, &[]),
            dtype => eval::cast(&Tensor::scalar(value), dtype, true),
        };
        self.constant(tensor)
    }

    /// An i64 vector constant.
    pub fn i64s(&mut self, values: &[i64]) -> ValueId {
        self.constant(Tensor::from_slice(&[values.len()], values))
    }

    /// Adds `op` over `inputs`; gives its results.
    pub fn emit(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        if op.takes_indices() {
            self.note_indices(inputs[1]);
        }
        let types: Vec<&TensorType> = inputs.iter().map(|&value| self.graph.ty(value)).collect();
        let Inferred { results, requirements } = infer(&op, &types)?;
        for stated in requirements {
            self.assume(stated);
        }
        if let Op::Scan { body, .. } = &op
            && !op.may_skip_bodies()
        {
            // What only data inside the body decide is checked there, and gone with the loop if nothing reads its results.
            let inside = |own: &&Assumption| {
                let mut found = false;
                own.visit_dims(&mut |dim| {
                    dim.visit_symbols(&mut |sym| found |= body.data.contains_key(&sym))
                });
                found
            };
            let outside = body.assumptions.iter().filter(|own| !inside(own));
            outside.for_each(|own| self.graph.assumptions.insert(own.clone()));
        }
        if results.len() == 1
            && let Some(folded) = self.fold(&op, inputs, &results[0])?
        {
            return Ok(vec![folded]);
        }
        if let Some(folded) = self.fold_sort(&op, inputs)? {
            return Ok(folded);
        }
        let types: Vec<&TensorType> = inputs.iter().map(|&value| self.graph.ty(value)).collect();
        let known: Vec<_> = inputs.iter().map(|&value| self.known(value)).collect();
        let known = if results.len() == 1 { infer_known(&op, &types, &known, &results[0]) } else { None };
        // What takes too long to write down is computed in the run, as other data.
        let known = known.filter(|elements| !elements.iter().any(Dim::is_overgrown));
        if let Some(elements) = &known
            && let Some(values) = elements.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()
        {
            let shape = results[0].static_shape().expect("known values have a static shape");
            let tensor = eval::cast(&Tensor::from_slice(&shape, &values), results[0].dtype, true);
            return Ok(vec![self.constant(tensor)]);
        }
        // What is folded may be anything that the evaluator knows; what is left has to be compiled.
        // Complex numbers are moved, compared with nothing and computed with never, but for what takes them apart and
        // puts them together.
        let parts = |function: &MapFn| match function {
            MapFn::Cast { to, .. } => {
                let from = types[0].dtype;
                from.part() == Some(*to) || to.part() == Some(from)
            }
            MapFn::Unary(UnaryFn::Swap) | MapFn::Binary(BinaryFn::BitOr) => types[0].dtype.part().is_some(),
            _ => false,
        };
        let computes = op.computes() && !matches!(&op, Op::Map(function) if parts(function));
        let uncompiled = |ty: &&TensorType| match ty.dtype {
            DType::Str => !op.takes_strings(),
            DType::C64 | DType::C128 => computes,
            _ => false,
        };
        if let Some(ty) = types.iter().copied().chain(&results).find(uncompiled) {
            let message = match ty.dtype {
                DType::Str => format!("{} of strings", op.name()),
                _ => format!("{} of {} elements outside of constants", op.name(), ty.dtype),
            };
            return Err(Error::unsupported(Stage::Infer, message));
        }
        Ok(self.node(op, inputs, results, known))
    }

    /// An operation that stays one where it is of constants: what a run reads or computes, the object has as those constants.
    pub fn unfolded(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        let types: Vec<&TensorType> = inputs.iter().map(|&input| self.graph.ty(input)).collect();
        let Inferred { results, .. } = infer(&op, &types)?;
        Ok(self.node(op, inputs, results, None)[0])
    }

    fn node(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        results: Vec<TensorType>,
        known: Option<Arc<[Dim]>>,
    ) -> Vec<ValueId> {
        let node = self.graph.nodes.next_key();
        let mut outputs = Vec::with_capacity(results.len());
        for (at, ty) in results.into_iter().enumerate() {
            let known = if at == 0 { known.clone() } else { None };
            outputs.push(self.graph.values.push(Value {
                name: String::new(),
                ty,
                def: Def::Node(node, at),
                known,
            }));
        }
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            origin: self.origin,
        });
        self.graph.order.push(node);
        outputs
    }

    /// Takes a requirement to hold; a run in which it does not fails, and says so.
    pub fn assume(&mut self, Stated { requirement, claim }: Stated) {
        if requirement.verdict() == Some(true) || self.graph.assumptions.contains(&requirement) {
            return;
        }
        let node = self.node_text().into();
        self.graph.assumptions.insert(Assumption { requirement, node, claim });
    }

    /// Lets messages name the operands that indices are or follow from.
    fn note_indices(&mut self, picks: ValueId) {
        if self.operands.is_empty() {
            return;
        }
        let operand = self.operand(picks).cloned().or_else(|| {
            let sources = self.integer_operands_behind(picks);
            let text = || format!("the indices that follow from {}", sources.join(" and "));
            (!sources.is_empty()).then(|| Operand::new(text()))
        });
        if let (Some(operand), Some(origin)) = (operand, self.graph.origins.get_mut(self.origin))
            && !origin.indices.contains(&operand)
        {
            origin.indices.push(operand);
        }
    }

    /// Operands of the ONNX node, of integers and no constants, that a value is computed from.
    fn integer_operands_behind(&self, value: ValueId) -> Vec<Arc<str>> {
        let (mut open, mut seen, mut found) = (vec![value], HashSet::new(), vec![]);
        while let Some(value) = open.pop() {
            if seen.len() > MOST_BEHIND || !seen.insert(value) || self.graph.is_constant(value) {
                continue;
            }
            match self.operands.iter().find(|(operand, _)| *operand == value) {
                Some((_, operand)) if self.dtype(value).is_int() => found.push(operand.name.clone()),
                Some(_) => {}
                None => {
                    let node = self.graph.producer(value).map(|node| &self.graph.nodes[node]);
                    open.extend(node.iter().flat_map(|node| &node.inputs));
                }
            }
        }
        found
    }

    /// ``node `name` (Op)``; empty without one.
    pub(super) fn node_text(&self) -> String {
        match self.graph.origins.get(self.origin) {
            Some(origin) => format!("node `{}` ({})", printable(&origin.name), printable(&origin.op_type)),
            None => String::new(),
        }
    }

    /// As [`Builder::assume`]; an error where constants show that it does not hold.
    pub fn require(&mut self, stated: Stated) -> Result<()> {
        if stated.requirement.verdict() == Some(false) {
            let message = stated.claim.sentence(&|dim| self.graph.dim_words(dim));
            return Err(Error::malformed(Stage::Infer, message));
        }
        self.assume(stated);
        Ok(())
    }

    /// `whole / parts`, without a remainder: a remainder of constants is an error, and the run checks symbols, also for tensors without
    /// elements, where a reshape into the parts would not find it. `claim` says what is divided.
    pub fn divided(&mut self, whole: &Dim, parts: impl Into<Dim>, claim: &str) -> Result<Dim> {
        let parts = parts.into();
        let (Some(quotient), Some(rest)) = (whole.floor_div(&parts), whole.modulo(&parts)) else {
            return Err(Error::malformed(Stage::Infer, format!("{claim}: {whole} in parts of 0")));
        };
        let text = format!("{claim}: {V} is not a multiple of {V}");
        self.require(Requirement::equal(rest, Dim::ZERO).stated(text, &[whole, &parts]))?;
        Ok(quotient)
    }

    /// [`Builder::emit`] for an operation with one result.
    pub fn emit1(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        Ok(self.emit(op, inputs)?[0])
    }

    /// What messages call the indices of an operation that takes some.
    fn indices_name(&self, op: &Op, inputs: &[ValueId]) -> Operand {
        let operand = inputs.get(1).filter(|_| op.takes_indices()).and_then(|&picks| self.operand(picks));
        operand.cloned().unwrap_or_else(|| Operand::new("the indices"))
    }

    fn fold(&mut self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Result<Option<ValueId>> {
        let is_string = |&value: &ValueId| self.graph.ty(value).dtype == DType::Str;
        let kept = inputs.is_empty()
            || matches!(op, Op::Dequantize { .. } | Op::Call(_) | Op::External(_) | Op::Exchange(_))
            // They are numbers soon, and fold then.
            || inputs.iter().any(is_string);
        if kept || !inputs.iter().all(|&value| self.graph.is_constant(value)) {
            return Ok(None);
        }
        // Where a part of a constant begins may be left to the run, however large it is.
        if op.is_control() || ty.static_shape().is_none() || !op.dims().into_iter().all(Dim::is_const) {
            return Ok(None);
        }
        let Some(elements) = ty.elements().as_const() else { return Ok(None) };
        // A constant that grows (a broadcast, a window) is cheaper to read through its view. Parts that are joined do
        // not grow, and sums have no view. What a whole expression of constants comes to, a pass decides.
        let largest =
            inputs.iter().filter_map(|&value| self.graph.ty(value).elements().as_const()).max().unwrap_or(0);
        let limit = match op {
            Op::Concat { .. } => i64::MAX,
            Op::Contract { .. } | Op::WinogradFilter { .. } => largest.saturating_mul(4),
            _ => largest.saturating_mul(2),
        };
        let deferred =
            elements <= limit && !self.outgrows_file(elements.saturating_mul(ty.dtype.size() as i64));
        match deferred || self.folds_now(op, inputs, ty) {
            true => self.folded(op, inputs, ty).map(Some),
            false => Ok(None),
        }
    }

    /// Whether a result of `op` on constants is computed while building.
    fn folds_now(&self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> bool {
        // Left for a pass, which takes the integers for what they are; then it settles.
        !self.dequantizes(op, inputs, ty) && self.is_small(op, inputs, ty)
    }

    /// Whether bytes are converted to floats.
    fn dequantizes(&self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> bool {
        let (Op::Map(MapFn::Cast { .. }), [source]) = (op, inputs) else { return false };
        let bytes = matches!(self.graph.ty(*source).dtype, DType::I8 | DType::U8);
        bytes && ty.dtype.is_float() && ty.elements() != Dim::ONE
    }

    /// Computes the small constants that were left to wait for the pass over dequantized values, and what waits for them.
    pub fn settle(&mut self) -> Result<()> {
        let mut settled: HashSet<ValueId> = HashSet::new();
        for value in self.graph.values.keys().collect::<Vec<_>>() {
            let Value { def: Def::Const(Constant::Deferred { op, inputs }), ty, .. } =
                &self.graph.values[value]
            else {
                continue;
            };
            let waits =
                self.dequantizes(op, inputs, ty) || inputs.iter().any(|input| settled.contains(input));
            if waits && self.is_small(op, inputs, ty) {
                let data: Vec<&Tensor> =
                    inputs.iter().filter_map(|&value| self.graph.constant_data(value)).collect();
                let tensor = eval::eval_named(op, &data, &self.indices_name(op, inputs))?.remove(0);
                self.graph.values[value].def = Def::Const(Constant::Data(tensor));
                settled.insert(value);
            }
        }
        Ok(())
    }

    fn is_small(&self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> bool {
        let at_most =
            |ty: &TensorType, limit: i64| ty.elements().as_const().is_some_and(|count| count <= limit);
        let types: Vec<&TensorType> = inputs.iter().map(|&value| self.graph.ty(value)).collect();
        inputs.iter().all(|&value| self.graph.constant_data(value).is_some())
            && at_most(ty, FOLD_NOW)
            && types.iter().all(|ty| at_most(ty, 16 * FOLD_NOW))
            && eval::work(op, &types, &[ty]).is_some_and(|work| work <= FOLD_NOW_WORK)
    }

    /// The one result of `op` on constants, of the static type `ty`, as a constant.
    pub fn folded(&mut self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Result<ValueId> {
        if self.folds_now(op, inputs, ty) {
            let data: Vec<&Tensor> =
                inputs.iter().filter_map(|&value| self.graph.constant_data(value)).collect();
            let tensor = eval::eval_named(op, &data, &self.indices_name(op, inputs))?.remove(0);
            return Ok(self.constant(tensor));
        }
        let def = Def::Const(Constant::Deferred { op: Arc::new(op.clone()), inputs: inputs.to_vec() });
        Ok(self.graph.values.push(Value { name: String::new(), ty: ty.clone(), def, known: None }))
    }

    /// Whether a deferred constant of this size is out of proportion to the data of the model: chains of
    /// operations that each grow a little would make objects of any size out of small files.
    fn outgrows_file(&self, bytes: i64) -> bool {
        let data = |value: &Value| match &value.def {
            Def::Const(Constant::Data(tensor) | Constant::Apart(Weight { tensor, .. })) => {
                tensor.data.len() as i64
            }
            _ => 0,
        };
        bytes > FOLD_ANYWAY && bytes / 4 > self.graph.values.values().map(data).fold(0, i64::saturating_add)
    }

    /// Both results of the sort of a constant that is small enough to be sorted now.
    fn fold_sort(&mut self, op: &Op, inputs: &[ValueId]) -> Result<Option<Vec<ValueId>>> {
        let (Op::Sort { take, .. }, [x]) = (op, inputs) else { return Ok(None) };
        let Some(data) = self.graph.constant_data(*x) else { return Ok(None) };
        if !take.is_const() || data.len() > FOLD_NOW as usize {
            return Ok(None);
        }
        let results = eval::eval(op, &[data])?;
        Ok(Some(results.into_iter().map(|tensor| self.constant(tensor)).collect()))
    }

    // Shorthands. Each checks nothing itself: `emit` infers and refuses.

    pub fn unary(&mut self, function: UnaryFn, x: ValueId) -> Result<ValueId> {
        self.emit1(Op::Map(MapFn::Unary(function)), &[x])
    }

    pub fn binary(&mut self, function: BinaryFn, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.emit1(Op::Map(MapFn::Binary(function)), &[a, b])
    }

    pub fn compare(&mut self, function: CompareFn, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.emit1(Op::Map(MapFn::Compare(function)), &[a, b])
    }

    pub fn select(&mut self, condition: ValueId, then: ValueId, otherwise: ValueId) -> Result<ValueId> {
        self.emit1(Op::Map(MapFn::Select), &[condition, then, otherwise])
    }

    /// Conversion to `to`; the value itself when it has that type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.emit1(Op::Map(MapFn::Cast { to, saturate: true }), &[x])
    }

    /// The real and the imaginary part of complex numbers; `None` for other elements.
    pub fn parts(&mut self, x: ValueId) -> Result<Option<(ValueId, ValueId)>> {
        let Some(part) = self.dtype(x).part() else { return Ok(None) };
        let swapped = self.unary(UnaryFn::Swap, x)?;
        Ok(Some((self.cast(x, part)?, self.cast(swapped, part)?)))
    }

    /// The complex numbers, of type `dtype`, with these parts.
    pub fn complex(&mut self, dtype: DType, real: ValueId, imaginary: ValueId) -> Result<ValueId> {
        let (real, imaginary) = (self.cast(real, dtype)?, self.cast(imaginary, dtype)?);
        let imaginary = self.unary(UnaryFn::Swap, imaginary)?;
        self.binary(BinaryFn::BitOr, real, imaginary)
    }

    /// `function(x, value)` with a scalar constant of `x`'s dtype.
    pub fn binary_scalar(&mut self, function: BinaryFn, x: ValueId, value: f64) -> Result<ValueId> {
        let scalar = self.scalar(self.dtype(x), value);
        self.binary(function, x, scalar)
    }

    /// Reduction over `axes`, which stay with size 1. Sums and products of f16 and bf16 are rounded once, at their end:
    /// a sum of ones would not get past 2048 in f16.
    pub fn reduce(&mut self, op: ReduceFn, x: ValueId, axes: &[usize]) -> Result<ValueId> {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        axes.dedup();
        if axes.is_empty() {
            return Ok(x);
        }
        let dtype = self.dtype(x);
        let x = match op {
            ReduceFn::Sum | ReduceFn::Prod => self.widened(x)?,
            _ => x,
        };
        let result = self.emit1(Op::Reduce { op, axes }, &[x])?;
        self.cast(result, dtype)
    }

    /// The value itself, f16 and bf16 as f32, for steps whose results are not rounded one by one.
    pub fn widened(&mut self, x: ValueId) -> Result<ValueId> {
        match self.dtype(x) {
            DType::F16 | DType::BF16 => self.cast(x, DType::F32),
            _ => Ok(x),
        }
    }

    /// Mean over `axes`, which stay with size 1: the sum divided by the count, rounded once where it is f16 or bf16,
    /// whose sum may be out of range.
    pub fn mean(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId> {
        let count = product(&axes.iter().map(|&axis| self.ty(x).shape[axis].clone()).collect::<Vec<_>>());
        let dtype = self.dtype(x);
        let x = self.widened(x)?;
        let sum = self.reduce(ReduceFn::Sum, x, axes)?;
        let mean = match count.as_const() {
            Some(count) => self.binary_scalar(BinaryFn::Div, sum, count as f64)?,
            None => {
                let count = self.dim_scalar(&count)?;
                let count = self.cast(count, self.dtype(x))?;
                self.binary(BinaryFn::Div, sum, count)?
            }
        };
        self.cast(mean, dtype)
    }

    /// A dim's value as an i64 scalar.
    pub fn dim_scalar(&mut self, dim: &Dim) -> Result<ValueId> {
        let vector = self.emit1(Op::DimValues { dims: vec![dim.clone()] }, &[])?;
        self.reshape(vector, vec![])
    }

    pub fn reshape(&mut self, x: ValueId, shape: Vec<Dim>) -> Result<ValueId> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit1(Op::Reshape { shape }, &[x])
    }

    /// Removes axes of size 1; the run checks those whose size is not known, also of tensors without elements, where the reshape does not
    /// check it.
    pub fn squeeze(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId> {
        let shape = self.shape(x);
        for &axis in axes {
            let size = shape.get(axis).ok_or_else(|| {
                Error::malformed(
                    Stage::Infer,
                    format!("there is no axis {axis} of shape {shape:?} to remove"),
                )
            })?;
            let text = format!("axis {axis}, which is removed, has size {V}; it must have size 1");
            self.require(Requirement::equal(size.clone(), Dim::ONE).stated(text, &[size]))?;
        }
        let kept = (0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis].clone());
        self.reshape(x, kept.collect())
    }

    /// Inserts an axis of size 1 before each of `axes`, which are positions in the result, sorted.
    pub fn unsqueeze(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId> {
        let mut shape = self.shape(x);
        for &axis in axes {
            if axis > shape.len() {
                return Err(Error::malformed(
                    Stage::Infer,
                    format!("unsqueeze at axis {axis} of shape {shape:?}"),
                ));
            }
            shape.insert(axis, Dim::ONE);
        }
        self.reshape(x, shape)
    }

    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId> {
        if perm.iter().enumerate().all(|(at, &axis)| at == axis) {
            return Ok(x);
        }
        self.emit1(Op::Transpose { perm: perm.to_vec() }, &[x])
    }

    pub fn expand(&mut self, x: ValueId, shape: Vec<Dim>) -> Result<ValueId> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit1(Op::Expand { shape }, &[x])
    }

    /// `size` elements from `start` along one axis, with step 1.
    pub fn slice_axis(&mut self, x: ValueId, axis: usize, start: Dim, size: Dim) -> Result<ValueId> {
        let mut sizes = self.shape(x);
        if start == Dim::ZERO && sizes.get(axis) == Some(&size) {
            return Ok(x);
        }
        let mut starts = vec![Dim::ZERO; sizes.len()];
        let steps = vec![1; sizes.len()];
        match sizes.get_mut(axis) {
            Some(slot) => (*slot, starts[axis]) = (size, start),
            None => {
                return Err(Error::malformed(
                    Stage::Infer,
                    format!("slice of axis {axis} of {}", self.ty(x)),
                ));
            }
        }
        self.emit1(Op::Slice { starts, steps, sizes }, &[x])
    }

    pub fn pad(&mut self, x: ValueId, fill: ValueId, lo: Vec<Dim>, hi: Vec<Dim>) -> Result<ValueId> {
        if lo.iter().chain(&hi).all(|pad| *pad == Dim::ZERO) {
            return Ok(x);
        }
        self.emit1(Op::Pad { lo, hi }, &[x, fill])
    }

    /// Concatenation; of many values in two steps or more, as a kernel's code grows faster than the number of its buffers.
    pub fn concat(&mut self, values: &[ValueId], axis: usize) -> Result<ValueId> {
        match values {
            [only] => Ok(*only),
            _ if values.len() > MAX_JOINED => {
                let parts = values.chunks(MAX_JOINED).map(|part| self.concat(part, axis));
                let parts = parts.collect::<Result<Vec<_>>>()?;
                self.concat(&parts, axis)
            }
            _ => self.emit1(Op::Concat { axis }, values),
        }
    }

    /// Product of `[batch.., m, k]` and `[batch.., k, n]` with equal ranks; batch axes broadcast.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        let batch = self.rank(a).saturating_sub(2);
        self.emit1(Op::Contract { batch, m: 1, k: 1, rhs: RhsLayout::Plain }, &[a, b])
    }

    /// The first `take` elements along an axis in order, and their indices; see [`Op::Sort`].
    pub fn sort(
        &mut self,
        x: ValueId,
        axis: usize,
        descending: bool,
        take: Dim,
    ) -> Result<(ValueId, ValueId)> {
        let results = self.emit(Op::Sort { axis, descending, take }, &[x])?;
        Ok((results[0], results[1]))
    }

    /// Calls a function of the runtime.
    pub fn call(
        &mut self,
        function: &'static Function,
        inputs: &[ValueId],
        numbers: Vec<Dim>,
        result: TensorType,
    ) -> Result<ValueId> {
        self.emit1(Op::Call(Call { function, numbers, result }), inputs)
    }

    pub fn iota(&mut self, shape: Vec<Dim>, axis: usize) -> Result<ValueId> {
        self.emit1(Op::Iota { shape, axis }, &[])
    }
}
