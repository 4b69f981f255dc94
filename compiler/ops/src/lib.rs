//! The operator table: one row per operator and version, one file per family.
//!
//! A row says what an operator takes and gives, and lowers a node of it to primitives. Its result types
//! are those of the primitives, inferred as they are emitted. Adding an operator touches one family file.
//! Opset selection is data: the row with the greatest `since` not above the imported version.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use onnxc_ir::build::Builder;
use onnxc_ir::build::unknown_count;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::claim::{Operand, printable};
use onnxc_ir::graph::{DType, Dim, Graph, Requirement, Sym, Tensor, TensorType, ValueId};
use onnxc_ir::rules::Rule;

pub mod activation;
pub mod agreement;
pub mod arithmetic;
pub mod attention;
pub mod circular;
pub mod control;
pub mod conv;
pub mod convert;
pub mod deform_conv;
pub mod depth_space;
pub mod det;
mod dynamic;
pub mod einsum;
pub mod flex_attention;
pub mod fold;
pub mod fourier;
pub mod generate;
pub mod gradient;
pub mod grid;
pub mod image;
pub mod indexing;
pub mod inner;
pub mod item;
pub mod linear_attention;
pub mod logic;
pub mod loss;
pub mod matmul;
pub mod movement;
pub mod nms;
#[cfg(any(test, feature = "testing"))]
pub mod node_case;
pub mod norm;
pub mod optional;
pub mod pool;
pub mod quantize;
pub mod random;
pub mod recurrent;
pub mod reduction;
pub mod resize;
pub mod roi;
pub mod row;
pub mod sample;
pub mod sequence;
mod sets;
pub mod slicing;
pub mod softmax;
pub mod spatial;
pub mod strings;
mod table;
pub mod tfidf;
pub mod topk;
pub mod training;
pub mod unary;
pub mod unique;
pub mod unreleased;

use inner::Inner;
use item::{Item, ItemKind, ItemType, Layout};

pub use table::Table;

/// Families of the domains `ai.onnx` and `ai.onnx.preview.training`, for a [`Table`].
pub const FAMILIES: &[&[OpDef]] = &[
    unary::ROWS,
    activation::ROWS,
    arithmetic::ROWS,
    logic::ROWS,
    convert::ROWS,
    reduction::ROWS,
    movement::ROWS,
    slicing::ROWS,
    indexing::ROWS,
    generate::ROWS,
    random::ROWS,
    conv::ROWS,
    pool::ROWS,
    matmul::ROWS,
    einsum::ROWS,
    norm::ROWS,
    softmax::ROWS,
    recurrent::ROWS,
    resize::ROWS,
    depth_space::ROWS,
    attention::ROWS,
    quantize::ROWS,
    loss::ROWS,
    topk::ROWS,
    grid::ROWS,
    roi::ROWS,
    deform_conv::ROWS,
    fold::ROWS,
    fourier::ROWS,
    det::ROWS,
    linear_attention::ROWS,
    flex_attention::ROWS,
    nms::ROWS,
    unique::ROWS,
    strings::ROWS,
    image::ROWS,
    control::ROWS,
    optional::ROWS,
    sequence::ROWS,
    tfidf::ROWS,
    training::ROWS,
];

/// Lowers one node: reads its inputs and attributes from the context, gives one value per output. Where some of them are not tensors it
/// gives them by [`NodeCx::give`].
pub type LowerFn = fn(&mut NodeCx<'_, '_>) -> Result<Vec<ValueId>>;

/// One operator at one version.
pub struct OpDef {
    /// Empty for `ai.onnx`.
    pub domain: &'static str,
    pub name: &'static str,
    /// First opset version in which this definition holds.
    pub since: u32,
    pub inputs: &'static [Param],
    pub outputs: &'static [Param],
    pub attributes: &'static [AttrDef],
    /// Type variables of the signature and what they range over.
    pub types: &'static [(&'static str, &'static [DType])],
    /// What the shapes of the inputs must have in common; see [`agreement`].
    pub shapes: &'static [&'static str],
    /// Runs after the agreements have been checked; see [`NodeCx::lower`].
    pub lower: LowerFn,
    /// One line, for the generated table.
    pub doc: &'static str,
}

/// A row of `ai.onnx` without parameters, which the methods of [`OpDef`] add. Where the schema names a type instead of a variable, the
/// parameter does too, in ONNX's spelling: `tensor(int64)`.
pub const fn op(name: &'static str, since: u32, lower: LowerFn) -> OpDef {
    OpDef {
        domain: "",
        name,
        since,
        inputs: &[],
        outputs: &[],
        attributes: &[],
        types: &[],
        shapes: agreement::ANY,
        lower,
        doc: "",
    }
}

/// The same row but for one field: a later version of an operator is an earlier one with what has changed.
impl OpDef {
    pub const fn domain(self, domain: &'static str) -> OpDef {
        OpDef { domain, ..self }
    }

    pub const fn name(self, name: &'static str) -> OpDef {
        OpDef { name, ..self }
    }

    pub const fn since(self, since: u32) -> OpDef {
        OpDef { since, ..self }
    }

    pub const fn inputs(self, inputs: &'static [Param]) -> OpDef {
        OpDef { inputs, ..self }
    }

    pub const fn outputs(self, outputs: &'static [Param]) -> OpDef {
        OpDef { outputs, ..self }
    }

    pub const fn attributes(self, attributes: &'static [AttrDef]) -> OpDef {
        OpDef { attributes, ..self }
    }

    pub const fn types(self, types: &'static [(&'static str, &'static [DType])]) -> OpDef {
        OpDef { types, ..self }
    }

    pub const fn shapes(self, shapes: &'static [&'static str]) -> OpDef {
        OpDef { shapes, ..self }
    }

    pub const fn lower(self, lower: LowerFn) -> OpDef {
        OpDef { lower, ..self }
    }

    pub const fn doc(self, doc: &'static str) -> OpDef {
        OpDef { doc, ..self }
    }
}

/// How often a parameter occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    Required,
    Optional,
    /// The last parameter: any number, at least one.
    Variadic,
    /// As [`Arity::Variadic`], each of an element type of its own.
    Mixed,
}

impl Arity {
    pub fn is_variadic(self) -> bool {
        matches!(self, Arity::Variadic | Arity::Mixed)
    }
}

/// An input or output of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    /// A type variable of [`OpDef::types`]: it ranges over the element types.
    pub ty: &'static str,
    pub arity: Arity,
    /// Kinds of values: tensors if nothing else is said.
    pub kinds: &'static [ItemKind],
}

impl Param {
    /// The parameter, of these kinds.
    pub const fn of(self, kinds: &'static [ItemKind]) -> Param {
        Param { kinds, ..self }
    }
}

const fn param(name: &'static str, ty: &'static str, arity: Arity) -> Param {
    Param { name, ty, arity, kinds: &[ItemKind::Tensor] }
}

pub const fn req(name: &'static str, ty: &'static str) -> Param {
    param(name, ty, Arity::Required)
}

pub const fn opt(name: &'static str, ty: &'static str) -> Param {
    param(name, ty, Arity::Optional)
}

pub const fn var(name: &'static str, ty: &'static str) -> Param {
    param(name, ty, Arity::Variadic)
}

pub const fn mixed(name: &'static str, ty: &'static str) -> Param {
    param(name, ty, Arity::Mixed)
}

/// Default, or lack of one, of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum AttrDefault {
    Required(AttrKind),
    /// May be missing, and its absence means something of its own.
    Optional(AttrKind),
    Int(i64),
    Float(f32),
    Str(&'static str),
    Ints(&'static [i64]),
    Strs(&'static [&'static str]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttrKind {
    Int,
    Float,
    Str,
    Tensor,
    Graph,
    SparseTensor,
    Type,
    Ints,
    Floats,
    Strs,
    Tensors,
    Graphs,
}

impl std::fmt::Display for AttrKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AttrKind::Int => "an int",
            AttrKind::Float => "a float",
            AttrKind::Str => "a string",
            AttrKind::Tensor => "a tensor",
            AttrKind::Graph => "a graph",
            AttrKind::SparseTensor => "a sparse tensor",
            AttrKind::Type => "a type",
            AttrKind::Ints => "a list of ints",
            AttrKind::Floats => "a list of floats",
            AttrKind::Strs => "a list of strings",
            AttrKind::Tensors => "a list of tensors",
            AttrKind::Graphs => "a list of graphs",
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct AttrDef {
    pub name: &'static str,
    pub default: AttrDefault,
}

pub const fn attr(name: &'static str, default: AttrDefault) -> AttrDef {
    AttrDef { name, default }
}

impl AttrDefault {
    /// Kind that a value of the attribute must have.
    pub fn kind(self) -> AttrKind {
        match self {
            AttrDefault::Required(kind) | AttrDefault::Optional(kind) => kind,
            AttrDefault::Int(_) => AttrKind::Int,
            AttrDefault::Float(_) => AttrKind::Float,
            AttrDefault::Str(_) => AttrKind::Str,
            AttrDefault::Ints(_) => AttrKind::Ints,
            AttrDefault::Strs(_) => AttrKind::Strs,
        }
    }
}

/// The texts of an attribute, where the message has them: models with millions of texts have copies of none.
#[derive(Clone, Debug)]
pub struct Texts<'m>(Cow<'m, [Bytes]>);

impl<'m> Texts<'m> {
    /// `None` where one is not UTF-8.
    pub fn new(texts: impl Into<Cow<'m, [Bytes]>>) -> Option<Texts<'m>> {
        let texts = texts.into();
        texts.iter().all(|text| std::str::from_utf8(text).is_ok()).then_some(Texts(texts))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, at: usize) -> Option<&str> {
        self.0.get(at).map(|text| Texts::text(text))
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|text| Texts::text(text))
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("texts are checked when they are taken")
    }
}

impl From<Vec<String>> for Texts<'_> {
    fn from(texts: Vec<String>) -> Self {
        Texts(Cow::Owned(texts.into_iter().map(Bytes::from).collect()))
    }
}

/// An attribute's value on a node, decoded. Lists are those of the message `'m`, or their own.
#[derive(Clone, Debug)]
pub enum Attr<'m> {
    Int(i64),
    Float(f32),
    Str(String),
    /// A string that is not UTF-8.
    Bytes(Bytes),
    /// Also a sparse tensor, made dense.
    Tensor(Tensor),
    /// A body of control flow, with what it sees of the graphs around it.
    Graph(Arc<Subgraph>),
    Ints(Cow<'m, [i64]>),
    Floats(Cow<'m, [f32]>),
    Strs(Texts<'m>),
    /// The type of an optional's element.
    Type(ItemType),
    /// A kind that no row reads as a value.
    Other(AttrKind),
}

impl Attr<'_> {
    /// The value with lists of its own.
    pub fn into_owned(self) -> Attr<'static> {
        match self {
            Attr::Int(value) => Attr::Int(value),
            Attr::Float(value) => Attr::Float(value),
            Attr::Str(text) => Attr::Str(text),
            Attr::Bytes(bytes) => Attr::Bytes(bytes),
            Attr::Tensor(tensor) => Attr::Tensor(tensor),
            Attr::Graph(body) => Attr::Graph(body),
            Attr::Ints(values) => Attr::Ints(Cow::Owned(values.into_owned())),
            Attr::Floats(values) => Attr::Floats(Cow::Owned(values.into_owned())),
            Attr::Strs(Texts(texts)) => Attr::Strs(Texts(Cow::Owned(texts.into_owned()))),
            Attr::Type(ty) => Attr::Type(ty),
            Attr::Other(kind) => Attr::Other(kind),
        }
    }

    pub fn kind(&self) -> AttrKind {
        match self {
            Attr::Int(_) => AttrKind::Int,
            Attr::Float(_) => AttrKind::Float,
            Attr::Str(_) | Attr::Bytes(_) => AttrKind::Str,
            Attr::Tensor(_) => AttrKind::Tensor,
            Attr::Graph(_) => AttrKind::Graph,
            Attr::Ints(_) => AttrKind::Ints,
            Attr::Floats(_) => AttrKind::Floats,
            Attr::Strs(_) => AttrKind::Strs,
            Attr::Type(_) => AttrKind::Type,
            Attr::Other(kind) => *kind,
        }
    }
}

/// A body of control flow as a graph of its own.
#[derive(Debug)]
pub struct Body {
    /// Its inputs are the columns of the declared ones, then one per capture. It shares the symbols of the graph around it.
    pub graph: Graph,
    /// What its outputs are the columns of. Lists have no elements.
    pub results: Vec<Layout>,
    /// Values of the graph around it that the last inputs stand for.
    pub captures: Vec<ValueId>,
    /// The number of the iteration, where the body of a loop draws random numbers. Whoever writes the loop defines it.
    pub iteration: Option<Sym>,
}

/// Where the random numbers of a node come from.
#[derive(Debug)]
pub struct Stream {
    /// No other node has it.
    pub number: u32,
    /// The numbers of the iterations of the loops around the node, the innermost one last.
    pub iterations: Vec<Sym>,
}

/// What distinguishes the copies of a node that is imported more than once, with everything after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The bodies of the node.
    Bodies,
    /// Whether a dim is 1.
    Unit(Dim),
}

/// A body of control flow that is not imported yet, with the values around it that its names stand for: what an importer has of it.
#[derive(Debug)]
pub struct Subgraph(pub Box<dyn BodySource>);

impl std::ops::Deref for Subgraph {
    type Target = dyn BodySource;

    fn deref(&self) -> &(dyn BodySource + 'static) {
        &*self.0
    }
}

/// See [`Subgraph`].
pub trait BodySource: std::fmt::Debug + Send + Sync {
    /// For the importer that made it.
    fn as_any(&self) -> &dyn std::any::Any;

    /// Whether it holds, beside a body, what follows the body's node.
    fn continues(&self) -> bool;

    /// Whether that is so because a dim may be 1.
    fn knows_unit(&self) -> bool;

    /// Number of inputs it declares.
    fn inputs(&self) -> usize;

    /// Number of outputs it gives.
    fn outputs(&self) -> usize;

    /// Rank that it declares an input to have.
    fn input_rank(&self, at: usize) -> Option<usize>;

    /// Element type and sizes that it declares an input to have, as far as it does.
    fn input_type(&self, at: usize) -> Option<(DType, Vec<Option<Dim>>)>;

    fn input_names(&self) -> Vec<&str>;

    fn output_names(&self) -> Vec<&str>;

    /// Whether it uses a value that could not be imported.
    fn is_poisoned(&self) -> bool;

    /// The declared element types of the results. An error where one is not declared.
    fn element_types(&self) -> Result<Vec<DType>>;

    /// A body that takes sequences where `sequences` says so, runs this one for each of their positions and gives the sequences of its
    /// results.
    fn over_elements(&self, sequences: &[bool]) -> Result<Subgraph>;
}

/// What the importer does for the rows of control flow. Names that a body takes from the graphs around it
/// are resolved already. A row may try again with other types when one import of a body fails.
pub trait BodyImporter {
    /// What a row asks for before it fails: that the node is imported again with all that follows it, as part of bodies that the run
    /// selects from.
    fn fork(&mut self, by: Fork);

    /// Whether a symbolic dim is 1 in the body that is imported now, where it follows from the choice of the body.
    fn is_unit(&self, dim: &Dim) -> Option<bool>;

    /// Emits the nodes of `body` into the builder's graph; gives the values of its outputs.
    fn inline(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>>;

    /// As [`BodyImporter::inline`] for copies of nodes of the graph around, which draw the same random numbers.
    fn recompute(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>>;

    /// Takes primitives from the budget for what functions, bodies and derivatives bring in.
    fn charge(&mut self, primitives: u64) -> Result<()>;

    /// Imports `body` as a graph of its own, with inputs of these types.
    fn graph(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[ItemType]) -> Result<Body>;

    /// Whether a result of the node may be handed on with a rank that only the run decides: nothing reads it, and it is a result
    /// of the model.
    fn may_have_any_rank(&self, _output: usize) -> bool {
        false
    }

    /// As [`BodyImporter::graph`] for a branch; its results become the node's results.
    fn branch(&mut self, b: &mut Builder<'_>, body: &Subgraph) -> Result<Body> {
        self.graph(b, body, &[])
    }

    /// As [`BodyImporter::inline`] for a branch.
    fn inline_branch(&mut self, b: &mut Builder<'_>, body: &Subgraph) -> Result<Vec<Item>> {
        self.inline(b, body, &[])
    }

    /// Emits the nodes of `body`, one of `outer`, into the body of a loop in that graph; gives the values of its outputs.
    /// `iteration` has another value in each iteration.
    fn repeat(
        &mut self,
        outer: &Graph,
        inner: &mut Inner,
        body: &Subgraph,
        inputs: &[Item],
        iteration: Sym,
    ) -> Result<Vec<Item>>;

    /// Channels per block of the layout of `com.microsoft.nchwc`, where the model or the caller gives them.
    fn block(&self) -> Option<usize>;

    /// For the random numbers of one node.
    fn stream(&mut self, b: &mut Builder<'_>) -> Stream;
}

/// For nodes outside any model: there are no bodies.
pub struct NoBodies;

impl BodyImporter for NoBodies {
    fn fork(&mut self, _: Fork) {}

    fn is_unit(&self, _: &Dim) -> Option<bool> {
        None
    }

    fn inline(&mut self, _: &mut Builder<'_>, _: &Subgraph, _: &[Item]) -> Result<Vec<Item>> {
        Err(Error::internal(Stage::Import, "a body outside a model"))
    }

    fn recompute(&mut self, _: &mut Builder<'_>, _: &Subgraph, _: &[Item]) -> Result<Vec<Item>> {
        Err(Error::internal(Stage::Import, "a body outside a model"))
    }

    fn charge(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn graph(&mut self, _: &mut Builder<'_>, _: &Subgraph, _: &[ItemType]) -> Result<Body> {
        Err(Error::internal(Stage::Import, "a body outside a model"))
    }

    fn repeat(&mut self, _: &Graph, _: &mut Inner, _: &Subgraph, _: &[Item], _: Sym) -> Result<Vec<Item>> {
        Err(Error::internal(Stage::Import, "a body outside a model"))
    }

    fn block(&self) -> Option<usize> {
        Some(16)
    }

    fn stream(&mut self, _: &mut Builder<'_>) -> Stream {
        Stream { number: 0, iterations: vec![] }
    }
}

/// Everything a row's lowering sees of one node.
pub struct NodeCx<'a, 'g> {
    pub b: &'a mut Builder<'g>,
    pub def: &'static OpDef,
    /// Opset version of the operator's domain that the model (or function) imports.
    pub opset: u32,
    /// One entry per given input; `None` for an omitted optional one, and for one that is not a tensor.
    pub inputs: Vec<Option<ValueId>>,
    /// The inputs that are not tensors, by number.
    pub compounds: BTreeMap<usize, Item>,
    /// See [`NodeCx::give`].
    pub given: Vec<Item>,
    pub attributes: &'a HashMap<String, Attr<'a>>,
    /// Number of outputs the node lists. An empty name is an output that nothing uses, and counts; trailing optional outputs may
    /// be missing.
    pub outputs: usize,
    /// Which of them are named, up to the last one that is; see [`NodeCx::wants`].
    pub wanted: &'a [bool],
    /// Types that the model declares for the outputs, where it does: the last resort for a shape that
    /// only run-time data decides.
    pub declared: &'a [Option<TensorType>],
    /// Ranks of the outputs, where the model declares them or those of values of the same shape.
    pub ranks: &'a [Option<usize>],
    /// Imports the bodies of control flow.
    pub bodies: &'a mut dyn BodyImporter,
    /// What the node breaks of the specification and is lowered all the same: one warning each.
    pub tolerated: Vec<(Rule, String)>,
}

/// What a lowering asks for an input by: its name in the row, or its number, where the input is variadic or where rows of one
/// lowering have other names for it.
pub trait InputKey: Copy {
    fn position(self, row: &OpDef) -> usize;
}

impl InputKey for usize {
    fn position(self, _: &OpDef) -> usize {
        self
    }
}

impl InputKey for &str {
    /// # Panics
    ///
    /// Where the row has no such input: a test holds all lowerings to the names of their rows.
    fn position(self, row: &OpDef) -> usize {
        let found = row.inputs.iter().position(|input| input.name == self);
        found.unwrap_or_else(|| panic!("{}-{} has no input {self}", row.name, row.since))
    }
}

impl<'a, 'g> NodeCx<'a, 'g> {
    /// Checks the shapes of the inputs, then lowers the node: one value per output.
    pub fn lower(&mut self) -> Result<Vec<Item>> {
        self.name_operands();
        let tensors = agreement::check(self).and_then(|()| (self.def.lower)(self));
        self.b.operands.clear();
        let tensors = tensors?;
        match self.given.is_empty() {
            true => Ok(tensors.into_iter().map(Item::Tensor).collect()),
            false => Ok(std::mem::take(&mut self.given)),
        }
    }

    /// Lets messages name the operands.
    fn name_operands(&mut self) {
        let operands = self.inputs.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
        let named = operands.map(|(at, value)| (value, Operand::new(self.operand_name(at)))).collect();
        self.b.operands = named;
    }

    /// What messages call an input: ``indices `x` ``.
    pub fn operand_name(&self, at: impl InputKey) -> String {
        let at = self.position(at);
        let last = self.def.inputs.len().saturating_sub(1);
        let param = self.def.inputs.get(at.min(last)).map_or("input", |param| param.name);
        let name = self.optional(at).map_or("", |value| self.b.graph.values[value].name.as_str());
        match name {
            "" => param.to_string(),
            name => format!("{param} `{}`", printable(name)),
        }
    }

    /// The number of an input.
    fn position(&self, at: impl InputKey) -> usize {
        at.position(self.def)
    }

    /// The results of a row that has results other than tensors, in place of those it returns.
    pub fn give(&mut self, results: Vec<Item>) -> Result<Vec<ValueId>> {
        self.given = results;
        Ok(vec![])
    }

    /// An input of any kind that the row requires.
    pub fn item(&self, at: impl InputKey) -> Result<Item> {
        let at = self.position(at);
        match self.optional_item(at) {
            Some(item) => Ok(item),
            None => self.input(at).map(Item::Tensor),
        }
    }

    pub fn optional_item(&self, at: impl InputKey) -> Option<Item> {
        let at = self.position(at);
        self.compounds.get(&at).cloned().or_else(|| self.optional(at).map(Item::Tensor))
    }

    /// An input that the row requires (arity is checked before lowering).
    pub fn input(&self, at: impl InputKey) -> Result<ValueId> {
        let at = self.position(at);
        self.optional(at).ok_or_else(|| {
            let name = self.def.inputs.get(at).map_or("?", |param| param.name);
            Error::malformed(Stage::Import, format!("input {at} ({name}) is missing"))
        })
    }

    pub fn optional(&self, at: impl InputKey) -> Option<ValueId> {
        self.inputs.get(self.position(at)).copied().flatten()
    }

    /// Whether the node names output `at`.
    pub fn wants(&self, at: usize) -> bool {
        self.wanted.get(at).copied().unwrap_or(false)
    }

    /// Whether this version of the operator has the attribute.
    pub fn has(&self, name: &str) -> bool {
        self.def.attributes.iter().any(|attribute| attribute.name == name)
    }

    /// All inputs of a variadic operator.
    pub fn all_inputs(&self) -> Result<Vec<ValueId>> {
        (0..self.inputs.len()).map(|at| self.input(at)).collect()
    }

    fn default(&self, name: &str) -> AttrDefault {
        let row = self.def.attributes.iter().find(|attribute| attribute.name == name);
        row.unwrap_or_else(|| panic!("{}-{} has no attribute {name}", self.def.name, self.def.since)).default
    }

    fn missing<T>(&self, name: &str) -> Result<T> {
        Err(Error::malformed(Stage::Import, format!("attribute {name} is missing or of the wrong kind")))
    }

    /// An int attribute, or its default.
    pub fn int(&self, name: &str) -> Result<i64> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Int(value)), _) => Ok(*value),
            (None, AttrDefault::Int(value)) => Ok(value),
            _ => self.missing(name),
        }
    }

    /// An int attribute that may be absent.
    pub fn optional_int(&self, name: &str) -> Result<Option<i64>> {
        match self.attributes.contains_key(name) {
            true => self.int(name).map(Some),
            false => Ok(None),
        }
    }

    pub fn float(&self, name: &str) -> Result<f32> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Float(value)), _) => Ok(*value),
            (None, AttrDefault::Float(value)) => Ok(value),
            _ => self.missing(name),
        }
    }

    pub fn optional_float(&self, name: &str) -> Result<Option<f32>> {
        match self.attributes.contains_key(name) {
            true => self.float(name).map(Some),
            false => Ok(None),
        }
    }

    pub fn str(&self, name: &str) -> Result<String> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Str(value)), _) => Ok(value.clone()),
            (Some(Attr::Bytes(_)), _) => {
                Err(Error::malformed(Stage::Infer, format!("attribute {name} is not UTF-8")))
            }
            (None, AttrDefault::Str(value)) => Ok(value.to_string()),
            _ => self.missing(name),
        }
    }

    /// A string attribute, or its default, as bytes of any kind.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        match self.attributes.get(name) {
            Some(Attr::Bytes(value)) => Ok(value.to_vec()),
            _ => self.str(name).map(String::into_bytes),
        }
    }

    /// An ints attribute, its default, or `None` where it is optional and absent.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Ints(values)), _) => Ok(Some(values.to_vec())),
            (None, AttrDefault::Ints(values)) => Ok(Some(values.to_vec())),
            (None, AttrDefault::Optional(AttrKind::Ints)) => Ok(None),
            _ => self.missing(name),
        }
    }

    /// [`NodeCx::ints`] where the model has them, for lists that may be long.
    pub fn long_ints(&self, name: &str) -> Result<Option<&'a [i64]>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Ints(values)), _) => Ok(Some(values)),
            (None, AttrDefault::Ints(values)) => Ok(Some(values)),
            (None, AttrDefault::Optional(AttrKind::Ints)) => Ok(None),
            _ => self.missing(name),
        }
    }

    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.long_floats(name)?.map(<[f32]>::to_vec))
    }

    /// [`NodeCx::floats`] where the model has them, for lists that may be long.
    pub fn long_floats(&self, name: &str) -> Result<Option<&'a [f32]>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Floats(values)), _) => Ok(Some(values)),
            (None, AttrDefault::Optional(AttrKind::Floats)) => Ok(None),
            _ => self.missing(name),
        }
    }

    pub fn strs(&self, name: &str) -> Result<Option<Vec<String>>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Strs(texts)), _) => Ok(Some(texts.iter().map(str::to_string).collect())),
            (None, AttrDefault::Strs(values)) => {
                Ok(Some(values.iter().map(|&text| text.to_string()).collect()))
            }
            (None, AttrDefault::Optional(AttrKind::Strs)) => Ok(None),
            _ => self.missing(name),
        }
    }

    /// [`NodeCx::strs`] where the model has them, for lists that may be long; those of the model alone, no defaults.
    pub fn long_strs(&self, name: &str) -> Result<Option<&'a Texts<'a>>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Strs(texts)), _) => Ok(Some(texts)),
            (None, AttrDefault::Optional(AttrKind::Strs)) => Ok(None),
            _ => self.missing(name),
        }
    }

    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        match (self.attributes.get(name), self.default(name)) {
            (Some(Attr::Tensor(value)), _) => Ok(Some(value.clone())),
            (None, AttrDefault::Optional(AttrKind::Tensor | AttrKind::SparseTensor)) => Ok(None),
            _ => self.missing(name),
        }
    }

    /// A body; see [`NodeCx::inline`] and [`NodeCx::body`].
    pub fn graph(&self, name: &str) -> Result<Arc<Subgraph>> {
        match self.attributes.get(name) {
            Some(Attr::Graph(body)) => Ok(body.clone()),
            _ => self.missing(name),
        }
    }

    /// Emits the nodes of a body here, with these values as its inputs; gives the values of its outputs.
    pub fn inline(&mut self, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>> {
        self.bodies.inline(self.b, body, inputs)
    }

    /// As [`NodeCx::inline`] for copies of nodes of the graph around, which draw the same random numbers.
    pub fn recompute(&mut self, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>> {
        self.bodies.recompute(self.b, body, inputs)
    }

    /// Imports a body as a graph of its own, with inputs of these types.
    pub fn body(&mut self, body: &Subgraph, inputs: &[ItemType]) -> Result<Body> {
        self.bodies.graph(self.b, body, inputs)
    }

    /// Takes an input that is a vector of unknown length to have `count` elements, if given: a run in which it
    /// has another number fails.
    pub fn with_count(&mut self, at: impl InputKey, count: Option<usize>) -> Result<()> {
        let at = self.position(at);
        let (Some(value), Some(count)) = (self.optional(at), count) else { return Ok(()) };
        if let [length] = self.b.shape(value).as_slice()
            && !length.is_const()
        {
            let name = format!("the number of elements of {}", self.operand_name(at));
            self.b.require(Requirement::equal(length.clone(), Dim::from(count)).says(name, count))?;
            let counted = self.b.reshape(value, vec![Dim::from(count)])?;
            self.b.operands.push((counted, Operand::new(self.operand_name(at))));
            self.inputs[at] = Some(counted);
        }
        Ok(())
    }

    /// The rank that the model declares an output to have.
    pub fn declared_rank(&self, at: usize) -> Option<usize> {
        self.ranks.get(at).copied().flatten()
    }

    /// Elements of an integer input that must be known at compile time (axes, shapes, pads...).
    pub fn known_input(&self, at: impl InputKey) -> Result<Vec<Dim>> {
        let at = self.position(at);
        let value = self.input(at)?;
        match self.b.known(value) {
            Some(elements) => Ok(elements.to_vec()),
            None if self.b.ty(value).elements() == Dim::ZERO => Ok(vec![]),
            None => {
                let name = self.def.inputs.get(at).map_or("?", |param| param.name);
                Err(Error::unsupported(
                    Stage::Infer,
                    format!(
                        "input {at} ({name}) decides the result's shape, and its value is known only at run time"
                    ),
                ))
            }
        }
    }

    /// Elements of an integer input as sizes: known, or else decided by data. A run in which one is negative, or more
    /// than `bound` of its number, fails.
    pub fn sizes_within(
        &mut self,
        at: impl InputKey,
        bound: &dyn Fn(usize) -> Option<Dim>,
    ) -> Result<Vec<Dim>> {
        let at = self.position(at);
        let value = self.input(at)?;
        match self.b.known(value) {
            Some(elements) => Ok(elements.to_vec()),
            None => self.b.sizes(value, bound).map_err(|error| self.of_input(at, error)),
        }
    }

    /// [`NodeCx::sizes_within`] without bounds.
    pub fn sizes_input(&mut self, at: impl InputKey) -> Result<Vec<Dim>> {
        self.sizes_within(at, &|_| None)
    }

    /// Elements of an integer input, of either sign: known, or else decided by data.
    pub fn integers_input(&mut self, at: impl InputKey) -> Result<Vec<Dim>> {
        let at = self.position(at);
        let value = self.input(at)?;
        match self.b.known(value) {
            Some(elements) => Ok(elements.to_vec()),
            None => self.b.integers(value).map_err(|error| self.of_input(at, error)),
        }
    }

    fn of_input(&self, at: usize, error: Error) -> Error {
        let name = self.def.inputs.get(at).map_or("?", |param| param.name);
        error.reworded(|message| format!("input {at} ({name}): {message}"))
    }

    /// Number of elements of an input, which decides the rank of the result.
    pub fn input_count(&self, at: impl InputKey) -> Result<usize> {
        let at = self.position(at);
        let ty = self.b.ty(self.input(at)?);
        let count = ty.elements().as_const().and_then(|count| usize::try_from(count).ok());
        match count.filter(|&count| count <= onnxc_ir::graph::MAX_KNOWN) {
            Some(count) => Ok(count),
            None => Err(self.of_input(at, unknown_count(ty))),
        }
    }

    /// As [`NodeCx::known_input`], each element a constant.
    pub fn const_input(&self, at: impl InputKey) -> Result<Vec<i64>> {
        let at = self.position(at);
        self.known_input(at)?
            .iter()
            .map(|dim| {
                dim.as_const().ok_or_else(|| {
                    Error::unsupported(Stage::Infer, format!("input {at} depends on the symbolic dim {dim}"))
                })
            })
            .collect()
    }
}

/// The error of an attribute whose value is not one of the `allowed` ones, which are named as text.
pub fn not_one_of<T>(attribute: &str, value: impl std::fmt::Display, allowed: &str) -> Result<T> {
    let message = format!("{attribute} is `{value}`; it may be one of {allowed}");
    Err(Error::malformed(Stage::Infer, message))
}

/// `axis` counted from the end when negative; an error names the rank.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize> {
    let wrapped = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(wrapped) {
        Ok(axis) if axis < rank => Ok(axis),
        _ if rank == 0 => {
            Err(Error::malformed(Stage::Infer, format!("axis {axis} of a scalar, which has none")))
        }
        _ => {
            let last = rank - 1;
            let message =
                format!("axis {axis} of a tensor with {rank} axes: it may be from -{rank} to {last}");
            Err(Error::malformed(Stage::Infer, message))
        }
    }
}

/// [`normalize_axis`] of each, sorted; a repeated axis is an error.
pub fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut normal = axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<_>>>()?;
    normal.sort_unstable();
    if normal.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::malformed(Stage::Infer, format!("axes {axes:?} repeat an axis")));
    }
    Ok(normal)
}

/// Whether an operator's first output always has the shape of its first input.
pub fn keeps_shape(domain: &str, name: &str) -> bool {
    let single = |row: &&OpDef| row.inputs.iter().filter(|input| input.arity == Arity::Required).count() == 1;
    let elementwise = || unary::ROWS.iter().chain(activation::ROWS).filter(single);
    domain.is_empty()
        && (matches!(name, "Identity" | "Cast" | "CastLike") || elementwise().any(|row| row.name == name))
}

/// Sets of element types that signatures share.
pub mod types {
    use onnxc_ir::graph::DType::{self, *};

    pub const FLOATS_F16: &[DType] = &[F16, F32, F64];
    pub const FLOATS: &[DType] = &[BF16, F16, F32, F64];
    pub const NUMERIC_NO_BF16: &[DType] = &[U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64];
    pub const NUMERIC: &[DType] = &[U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64, BF16];
    pub const BOOL: &[DType] = &[Bool];
    pub const ALL: &[DType] = &[U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64, Str, Bool, C64, C128];
    pub const ALL_BF16: &[DType] =
        &[U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64, BF16, Str, Bool, C64, C128];
    pub const I64S: &[DType] = &[I64];
    pub const INDICES: &[DType] = &[I32, I64];
}
