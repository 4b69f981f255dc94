//! Functions of the user's own that a graph calls: operators that no row knows, and nodes whose work somebody else does better.
//!
//! A call hands over one record, `onnxc_op` of `onnxc.h`: descriptors of the inputs and results, the attributes, scratch memory. The record
//! is a result of the node, so that its memory is planned like that of any value, and so is the scratch.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result, Stage};
use crate::graph::{DType, Dim, Graph, Op, TensorType};

/// What a call asks of the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The results, whose shapes are known. Results of the node: these, `u8[scratch]`, the record `u8[bytes]`.
    Compute,
    /// The sizes of the results that are open (-1 in `results`), and the bytes of scratch. Results of the node: the sizes of all
    /// results one after the other and then the bytes of scratch, `i64[sizes + 1]`; the record.
    Shapes,
}

impl Role {
    const ALL: [(Role, &str); 2] = [(Role::Compute, "compute"), (Role::Shapes, "shapes")];

    pub fn name(self) -> &'static str {
        Role::ALL.iter().find(|(role, _)| *role == self).map_or("", |(_, name)| name)
    }

    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.iter().find(|(_, own)| *own == name).map(|(role, _)| *role)
    }
}

/// Where a function lies in this process, for evaluation here; not a part of the graph's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub usize);

/// [`Op::External`]. Its inputs: those of the ONNX node that are given, `i64` words and `u8` texts of the attributes
/// (see `import/external.rs`), then the tensors among the attributes.
#[derive(Clone, PartialEq, Debug)]
pub struct External {
    /// The C function: `int32_t symbol(onnxc_op *)`.
    pub symbol: Arc<str>,
    /// Whether the options of a run compute it, which are given this name, and not a function that the linker finds.
    pub late: bool,
    pub role: Role,
    /// The inputs of the ONNX node; `None` is one that is left out. Of a tensor of strings the primitive has the address and the
    /// length of each text, `u8`, and the texts behind them.
    pub operands: Vec<Option<TensorType>>,
    /// What the ONNX node gives. A size of -1 is open. For a tensor of strings the primitive gives the address and the length of each
    /// text, `u8`.
    pub results: Vec<TensorType>,
    /// Bytes of scratch.
    pub scratch: Dim,
    pub address: Option<Address>,
}

/// Sizes and offsets, bytes, of the structs of `onnxc.h` that a record is made of.
pub mod layout {
    /// `onnxc_op`: its fields, and its size rounded up to where the descriptors begin.
    pub const STRUCT_SIZE: i64 = 0;
    pub const INPUTS: i64 = 8;
    pub const INPUT_COUNT: i64 = 16;
    pub const OUTPUTS: i64 = 24;
    pub const OUTPUT_COUNT: i64 = 32;
    pub const SCRATCH: i64 = 40;
    pub const SCRATCH_BYTES: i64 = 48;
    pub const OPTIONS: i64 = 56;
    pub const ATTRIBUTES: i64 = 64;
    pub const TEXTS: i64 = 72;
    pub const OP_BYTES: i64 = 80;
    /// `onnxc_tensor`.
    pub const DATA: i64 = 0;
    pub const BYTES: i64 = 8;
    pub const DTYPE: i64 = 16;
    pub const RANK: i64 = 20;
    pub const DIMS: i64 = 24;
    pub const TENSOR_BYTES: i64 = 32;
    /// Alignment of scratch: `ONNXC_WORKSPACE_ALIGNMENT`.
    pub const ALIGNMENT: usize = 64;
}

/// A tensor that a record describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Described<'t> {
    /// An input of the ONNX node that is left out.
    Absent,
    /// This input of the primitive.
    Input(usize, &'t TensorType),
    /// This result of the ONNX node.
    Result(usize, &'t TensorType),
}

impl<'t> Described<'t> {
    pub fn ty(self) -> Option<&'t TensorType> {
        match self {
            Described::Absent => None,
            Described::Input(_, ty) | Described::Result(_, ty) => Some(ty),
        }
    }

    fn rank(self) -> i64 {
        self.ty().map_or(0, |ty| ty.rank() as i64)
    }
}

/// A record: `onnxc_op`, the descriptors, the sizes of all of them.
#[derive(Debug)]
pub struct Record<'t> {
    /// Inputs of the ONNX node, tensors of its attributes, results.
    pub tensors: Vec<Described<'t>>,
    /// How many of them precede the results.
    pub operands: usize,
}

impl Record<'_> {
    /// Where a descriptor begins.
    pub fn tensor(&self, at: usize) -> i64 {
        layout::OP_BYTES + layout::TENSOR_BYTES * at as i64
    }

    /// Where the sizes of a tensor begin.
    pub fn dims(&self, at: usize) -> i64 {
        self.tensor(self.tensors.len())
            + 8 * self.tensors[..at].iter().map(|tensor| tensor.rank()).sum::<i64>()
    }

    pub fn bytes(&self) -> i64 {
        self.dims(self.tensors.len())
    }
}

impl External {
    /// Inputs of the primitive that are inputs of the ONNX node.
    pub fn given(&self) -> usize {
        self.operands.iter().flatten().count()
    }

    /// The record of a call with inputs of these types.
    pub fn record<'t>(&'t self, inputs: &[&'t TensorType]) -> Record<'t> {
        let mut next = 0..;
        let operand = |operand: &'t Option<TensorType>| match operand {
            Some(ty) => Described::Input(next.next().unwrap_or_default(), ty),
            None => Described::Absent,
        };
        let mut tensors: Vec<Described<'t>> = self.operands.iter().map(operand).collect();
        let first = self.given() + 2;
        tensors.extend(inputs.iter().enumerate().skip(first).map(|(at, ty)| Described::Input(at, ty)));
        let operands = tensors.len();
        tensors.extend(self.results.iter().enumerate().map(|(at, ty)| Described::Result(at, ty)));
        Record { tensors, operands }
    }

    /// Sizes of all results.
    pub fn sizes(&self) -> usize {
        self.results.iter().map(TensorType::rank).sum()
    }

    /// The types of the node's results. Fails where the inputs do not fit the call.
    pub fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let at = self.given();
        let is_vector =
            |ty: Option<&&TensorType>, dtype| ty.is_some_and(|ty| ty.dtype == dtype && ty.rank() == 1);
        let is_operand = |(operand, input): (&TensorType, &&TensorType)| match operand.dtype {
            DType::Str => is_vector(Some(input), DType::U8),
            _ => operand == *input,
        };
        let open = |ty: &TensorType| ty.shape.iter().any(|dim| dim.as_const() == Some(-1));
        let fits = is_vector(inputs.get(at), DType::I64)
            && is_vector(inputs.get(at + 1), DType::U8)
            && self.operands.iter().flatten().zip(inputs).all(is_operand)
            && (self.role == Role::Shapes || !self.results.iter().any(open));
        if !fits {
            let (operands, results) = (&self.operands, &self.results);
            let message =
                format!("a call of {} with {inputs:?} as {operands:?} for {results:?}", self.symbol);
            return Err(Error::internal(Stage::Infer, message));
        }
        let bytes = |bytes: Dim| TensorType::new(DType::U8, vec![bytes]);
        let record = bytes(Dim::from(self.record(inputs).bytes()));
        let value = |ty: &TensorType| match ty.dtype {
            DType::Str => bytes(ty.stored_bytes()),
            _ => ty.clone(),
        };
        Ok(match self.role {
            Role::Compute => {
                self.results.iter().map(value).chain([bytes(self.scratch.clone()), record]).collect()
            }
            Role::Shapes => {
                vec![TensorType::new(DType::I64, vec![Dim::from(self.sizes() + 1)]), record]
            }
        })
    }

    /// Operands and results.
    fn described(&self) -> impl Iterator<Item = &TensorType> {
        self.operands.iter().flatten().chain(&self.results)
    }

    /// Sizes among the attributes.
    pub fn dims(&self) -> impl Iterator<Item = &Dim> {
        self.described().flat_map(|ty| &ty.shape).chain([&self.scratch])
    }
}

/// A function that graphs call.
#[derive(Clone, Debug)]
pub struct Function {
    pub role: Role,
    /// See [`External::late`].
    pub late: bool,
    /// The names of the nodes that it is called for.
    pub nodes: Vec<String>,
}

/// The functions that graphs call, and the graphs inside them.
pub fn functions<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> BTreeMap<Arc<str>, Function> {
    let mut functions: BTreeMap<Arc<str>, Function> = BTreeMap::new();
    let mut open: Vec<&Graph> = graphs.into_iter().collect();
    while let Some(graph) = open.pop() {
        for &id in &graph.order {
            let node = &graph.nodes[id];
            if let Op::External(external) = &node.op {
                let new = Function { role: external.role, late: external.late, nodes: vec![] };
                let function = functions.entry(external.symbol.clone()).or_insert(new);
                let name = graph.node_ref(id).name;
                if !function.nodes.contains(&name) {
                    function.nodes.push(name);
                }
            }
            open.extend(node.op.bodies());
        }
    }
    functions
}

impl fmt::Display for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtypes: Vec<String> = self.described().map(|ty| ty.dtype.to_string()).collect();
        let shapes: Vec<&Vec<Dim>> = self.described().map(|ty| &ty.shape).collect();
        let given: Vec<bool> = self.operands.iter().map(Option::is_some).collect();
        write!(
            f,
            "symbol=\"{}\", role=\"{}\", given={given:?}, dtypes=[{}], shapes={shapes:?}, scratch={}",
            self.symbol,
            self.role.name(),
            dtypes.join(", "),
            self.scratch
        )?;
        match self.late {
            true => f.write_str(", late=true"),
            false => Ok(()),
        }
    }
}
