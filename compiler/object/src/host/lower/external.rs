//! Calls of functions of the user's own: the record, the call, its status.

use crate::host::abi::{options, status};
use crate::host::ir::{Address, Callee, Compare, Op, Operand, OptionsField, Place, Type, Value};
use crate::host::lower::builder::Builder;
use crate::host::lower::internal;
use crate::host::lower::steps::StepWriter;
use crate::host::lower::text::node_text;
use crate::host::message::{V, printable};
use onnxc_ir::error::Result;
use onnxc_ir::graph::external::{Described, Record, Role, layout};
use onnxc_ir::graph::{External, NodeId, TensorType, ValueId};

/// Leaves unless the caller's options compute functions, which the model needs for this one.
pub(super) fn check_function(b: &mut Builder, symbol: &str) {
    let none = format!("the model needs the function `{}`, and the options have none", printable(symbol));
    let size = b.load(Place::Options(OptionsField::StructSize));
    let short = b.compare(Compare::LtUnsigned, size, options::SIZE);
    b.fail_if(short, status::NEEDS_FUNCTION, &none, &[]);
    let given = b.load(Place::Options(OptionsField::Function));
    let null = b.compare(Compare::Eq, given, 0);
    b.fail_if(null, status::NEEDS_FUNCTION, &none, &[]);
}

/// A record in memory, whose fields are stored.
struct Fields<'r> {
    record: Record<'r>,
    base: Value,
}

impl StepWriter<'_, '_> {
    /// Calls a function of the user's own.
    pub(super) fn external(&mut self, node: NodeId, external: &External) -> Result<()> {
        let graph = self.scope.graph;
        let data = &graph.nodes[node];
        let types: Vec<&TensorType> = data.inputs.iter().map(|&input| graph.ty(input)).collect();
        let Some((&record, results)) = data.outputs.split_last() else {
            return Err(internal(format!("{node} has no record")));
        };
        let base = self.address(record)?;
        let fields = Fields { record: external.record(&types), base };
        let is_shapes = external.role == Role::Shapes;
        let scratch = results.last().copied().filter(|_| !is_shapes);
        self.header(&fields, external, &data.inputs, scratch)?;
        let mut sizes = None;
        if is_shapes {
            let &[own] = results else { return Err(internal(format!("{node} does not give sizes alone"))) };
            sizes = Some(self.address(own)?);
        }
        let mut open = 0;
        for (at, tensor) in fields.record.tensors.iter().enumerate() {
            let data = match *tensor {
                Described::Input(at, _) => Some(data.inputs[at]),
                Described::Result(at, _) if !is_shapes => Some(results[at]),
                _ => None,
            };
            let dims = match (tensor, sizes) {
                (Described::Result(..), Some(sizes)) => Some((sizes, 8 * open)),
                _ => None,
            };
            self.describe(&fields, at, *tensor, data, dims)?;
            if let Described::Result(_, ty) = tensor {
                open += ty.rank() as i64;
            }
        }
        let callee = Callee { symbol: external.symbol.clone(), late: external.late };
        let status = self.b.value(Type::I32, Op::External(callee, base));
        let status = self.b.extend(status);
        let failed = self.b.compare(Compare::Ne, status, i64::from(status::OK));
        let place = node_text(graph, node);
        let template = format!("{place}: the function `{}` failed and gave {V}", printable(&external.symbol));
        self.b.fail_if(failed, status::FUNCTION_FAILED, &template, &[status.into()]);
        if let Some(sizes) = sizes {
            let scratch = self.b.load_at(Type::I64, base, layout::SCRATCH_BYTES);
            self.set(sizes, 8 * external.sizes() as i64, Type::I64, scratch);
        }
        Ok(())
    }

    fn set(&mut self, base: Value, offset: i64, ty: Type, value: impl Into<Operand>) {
        self.b.store(Place::At { ty, base, offset }, value);
    }

    /// Stores an address in a field, or a null pointer for `None`.
    fn set_address(&mut self, base: Value, offset: i64, address: Option<Value>) {
        match address {
            Some(address) => self.set(base, offset, Type::Ptr, address),
            None => self.set(base, offset, Type::I64, 0),
        }
    }

    fn header(
        &mut self,
        fields: &Fields<'_>,
        external: &External,
        inputs: &[ValueId],
        scratch: Option<ValueId>,
    ) -> Result<()> {
        let Fields { record, base } = fields;
        let (base, given) = (*base, external.given());
        let &[attributes, texts] = &inputs[given..given + 2] else {
            return Err(internal(format!("a call of {} has no attributes", external.symbol)));
        };
        let count = |count: usize| Operand::Int(count as i64);
        self.set(base, layout::STRUCT_SIZE, Type::I64, layout::OP_BYTES);
        self.set(base, layout::INPUT_COUNT, Type::I64, count(external.operands.len()));
        self.set(base, layout::OUTPUT_COUNT, Type::I64, count(external.results.len()));
        for (offset, tensor) in [(layout::INPUTS, 0), (layout::OUTPUTS, record.operands)] {
            let tensor = self.b.offset(base, record.tensor(tensor));
            self.set(base, offset, Type::Ptr, tensor);
        }
        // A function for shapes finds here what it may change.
        let bytes = self.size(&external.scratch)?;
        self.set(base, layout::SCRATCH_BYTES, Type::I64, bytes);
        let scratch = scratch.map(|scratch| self.address(scratch)).transpose()?;
        self.set_address(base, layout::SCRATCH, scratch);
        let options = self.b.address(Address::Options);
        self.set(base, layout::OPTIONS, Type::Ptr, options);
        for (offset, value) in [(layout::ATTRIBUTES, attributes), (layout::TEXTS, texts)] {
            let address = self.address(value)?;
            self.set(base, offset, Type::Ptr, address);
        }
        Ok(())
    }

    /// Writes a descriptor. Sizes that the function fills in lie at `open`.
    fn describe(
        &mut self,
        fields: &Fields<'_>,
        at: usize,
        tensor: Described<'_>,
        data: Option<ValueId>,
        open: Option<(Value, i64)>,
    ) -> Result<()> {
        let (record, base) = (&fields.record, fields.base);
        let own = record.tensor(at);
        let Some(ty) = tensor.ty() else {
            for offset in [layout::DATA, layout::BYTES, layout::DIMS] {
                self.set(base, own + offset, Type::I64, 0);
            }
            for offset in [layout::DTYPE, layout::RANK] {
                self.set(base, own + offset, Type::I32, 0);
            }
            return Ok(());
        };
        let bytes = match data {
            Some(_) => self.size(&ty.stored_bytes())?,
            None => Operand::Int(0),
        };
        let address = data.map(|value| self.address(value)).transpose()?;
        self.set_address(base, own + layout::DATA, address);
        self.set(base, own + layout::BYTES, Type::I64, bytes);
        self.set(base, own + layout::DTYPE, Type::I32, i64::from(ty.dtype.to_onnx()));
        self.set(base, own + layout::RANK, Type::I32, ty.rank() as i64);
        let (sizes, first) = open.unwrap_or((base, record.dims(at)));
        let address = self.b.offset(sizes, first);
        self.set(base, own + layout::DIMS, Type::Ptr, address);
        for (axis, dim) in ty.shape.iter().enumerate() {
            let size = self.size(dim)?;
            self.set(sizes, first + 8 * axis as i64, Type::I64, size);
        }
        Ok(())
    }
}
