//! The constant description of a model that `<name>_model` returns: one block of read-only data in which
//! everything is found by its distance from the start, so that it needs no relocation when it is loaded. The
//! layout is that of `struct onnxc_model` and of the records in `onnxc.h`.

use std::collections::BTreeMap;

use target_lexicon::Endianness;

use crate::emit::data::{Data, Record};
use crate::host::abi::ABI_VERSION;
use crate::host::lower::layout::{Plan, bound_symbols};
use crate::host::lower::state;
use onnxc_ir::graph::{AnyRank, DType, Graph, Part, Sym, TensorType};
use onnxc_runtime_support::weights;
use onnxc_schedule::ALIGN;

/// Offsets of the fields in `struct onnxc_model` that the linker fills.
pub(super) const RUN: u32 = 40;
pub(super) const WORKSPACE: u32 = 44;
pub(super) const STATE_BYTES: u32 = 84;
pub(super) const STATE_RESET: u32 = 88;
pub(super) const NEXT: u32 = 92;

/// Offsets of the other fields.
pub mod field {
    pub const ABI_VERSION: usize = 0;
    pub const NAME: usize = 4;
    pub const INPUT_COUNT: usize = 8;
    pub const OUTPUT_COUNT: usize = 12;
    pub const SYMBOL_COUNT: usize = 16;
    pub const METADATA_COUNT: usize = 20;
    pub const INPUTS: usize = 24;
    pub const OUTPUTS: usize = 28;
    pub const SYMBOLS: usize = 32;
    pub const METADATA: usize = 36;
    pub const WORKSPACE_BYTES: usize = 48;
    pub const WORKSPACE_ALIGN: usize = 56;
    pub const INPUT_PARTS: usize = 64;
    pub const OUTPUT_PARTS: usize = 68;
    pub const STATE_COUNT: usize = 72;
    pub const STATES: usize = 76;
    pub const STATE_RECORDS: usize = 80;
}
pub(super) const MODEL_BYTES: usize = 96;

/// What stands for the number of a symbol where a dim is none: it is static or only data decide it, or it is a formula of
/// symbols.
const NO_SYMBOL: i32 = -1;
const FORMULA: i32 = -2;
/// The same for an axis that is not there in every run: what it is only data decide.
const OPTIONAL: i32 = -3;

/// The types of the inputs that callers give, and which of them have defaults: the state block is the last one.
pub(super) fn given_inputs<'g>(graph: &'g Graph, plan: &Plan) -> Vec<(&'g str, TensorType, bool)> {
    let tensors = graph.inputs.iter().enumerate().take(graph.given_inputs());
    let tensors =
        tensors.map(|(at, input)| (input.name.as_str(), graph.input_ty(at).clone(), input.default.is_some()));
    let block = plan
        .state
        .as_ref()
        .map(|layout| (state::PORT, TensorType::new(DType::U8, vec![layout.bytes.clone()]), false));
    tensors.chain(block).collect()
}

/// The block, for a target of this byte order, with this room behind the struct. Its fields of functions are for the linker.
pub(super) fn build(graph: &Graph, plan: &Plan, name: &str, (order, room): (Endianness, usize)) -> Data {
    let mut block = Record::new(order, MODEL_BYTES + room);
    let symbols = bound_symbols(graph);
    let inputs = given_inputs(graph, plan);
    let outputs = graph.outputs.iter().enumerate().take(graph.given_outputs());
    let outputs: Vec<(&str, TensorType, bool)> =
        outputs.map(|(at, (name, _))| (name.as_str(), graph.output_ty(at).clone(), false)).collect();

    let name = block.string(name);
    let inputs_at = block.values(graph, &inputs, &BTreeMap::new());
    let outputs_at = block.values(graph, &outputs, &graph.any_rank);
    let input_names: Vec<&str> = inputs.iter().map(|input| input.0).collect();
    let output_names: Vec<&str> = outputs.iter().map(|output| output.0).collect();
    let mut parts = graph.input_parts.clone();
    if !graph.states.is_empty() {
        parts.insert(graph.given_inputs(), (state::PORT.to_string(), Part::State));
    }
    let input_parts = block.parts(&input_names, &parts);
    let output_parts = block.parts(&output_names, &graph.output_parts);
    block.set(field::INPUT_PARTS, input_parts);
    block.set(field::OUTPUT_PARTS, output_parts);
    block.states(graph, &symbols);
    let names: Vec<i32> = symbols.iter().map(|&sym| block.string(&graph.symbols[sym].name)).collect();
    let symbols_at = block.ints(&names);
    let mut metadata = vec![];
    let own = plan.apart.iter().flat_map(|apart| {
        let layout = weights::hex(weights::words(&apart.layout));
        [(weights::LAYOUT_KEY, layout), (weights::BYTES_KEY, apart.bytes.to_string())]
    });
    let entries = graph.metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).chain(own);
    for (key, value) in entries {
        metadata.push(block.string(key));
        metadata.push(block.string(&value));
    }
    let metadata_at = block.ints(&metadata);

    let fields = [
        (field::ABI_VERSION, ABI_VERSION as i32),
        (field::NAME, name),
        (field::INPUT_COUNT, inputs.len() as i32),
        (field::OUTPUT_COUNT, outputs.len() as i32),
        (field::SYMBOL_COUNT, names.len() as i32),
        (field::METADATA_COUNT, metadata.len() as i32 / 2),
        (field::INPUTS, inputs_at),
        (field::OUTPUTS, outputs_at),
        (field::SYMBOLS, symbols_at),
        (field::METADATA, metadata_at),
    ];
    for (at, value) in fields {
        block.set(at, value);
    }
    let workspace_bytes = plan.workspace.as_const().unwrap_or(-1);
    block.set_long(field::WORKSPACE_BYTES, workspace_bytes);
    block.set_long(field::WORKSPACE_ALIGN, ALIGN);
    block.finish()
}

impl Record {
    /// Which ONNX value each input or output belongs to, and which part of it it is.
    fn parts(&mut self, names: &[&str], parts: &BTreeMap<usize, (String, Part)>) -> i32 {
        let mut records = vec![];
        for (at, name) in names.iter().enumerate() {
            let (value, part) = match parts.get(&at) {
                Some((value, part)) => (value.as_str(), *part),
                None => (*name, Part::Whole),
            };
            records.extend([self.string(value), part.number()]);
        }
        self.ints(&records)
    }

    /// The tensors of the state block, and how they grow.
    fn states(&mut self, graph: &Graph, symbols: &[Sym]) {
        let inputs = graph.inputs.iter().enumerate().skip(graph.given_inputs());
        let values: Vec<(&str, TensorType, bool)> =
            inputs.map(|(at, input)| (input.name.as_str(), graph.input_ty(at).clone(), false)).collect();
        let states_at = self.values(graph, &values, &BTreeMap::new());
        let mut records = vec![];
        for (state, (output, _)) in graph.states.iter().zip(&graph.outputs[graph.given_outputs()..]) {
            let growth = state.growth.as_ref();
            let size = growth.and_then(|growth| symbols.iter().position(|&sym| sym == growth.size));
            records.push(self.string(output));
            records.push(state.axis().map_or(-1, |axis| axis as i32));
            records.push(size.map_or(NO_SYMBOL, |at| at as i32));
            records.push(state.panels.as_ref().map_or(0, |panels| panels.width as i32));
        }
        let records_at = self.ints(&records);
        self.set(field::STATE_COUNT, values.len() as i32);
        self.set(field::STATES, states_at);
        self.set(field::STATE_RECORDS, records_at);
    }

    /// Records of inputs or outputs: name, type, whether there is a default. `any_rank` are those whose rank the run decides.
    fn values(
        &mut self,
        graph: &Graph,
        values: &[(&str, TensorType, bool)],
        any_rank: &BTreeMap<usize, AnyRank>,
    ) -> i32 {
        let symbols = bound_symbols(graph);
        let mut records = vec![];
        for (at, (name, ty, has_default)) in values.iter().enumerate() {
            let own_axes = any_rank.get(&at).map_or(ty.rank(), |own| own.least);
            let mut dims = vec![];
            let mut texts = vec![];
            let mut numbers = vec![];
            for (axis, dim) in ty.shape.iter().enumerate() {
                if axis >= own_axes {
                    dims.push(-1);
                    texts.push(self.string(&graph.dim_text(dim)));
                    numbers.push(OPTIONAL);
                    continue;
                }
                dims.push(dim.as_const().unwrap_or(-1));
                texts.push(if dim.is_const() { 0 } else { self.string(&graph.dim_text(dim)) });
                let number = dim.as_sym().and_then(|sym| symbols.iter().position(|&own| own == sym));
                numbers.push(match number {
                    Some(number) => number as i32,
                    None if dim.is_const() || graph.is_data_dim(dim) => NO_SYMBOL,
                    None => FORMULA,
                });
            }
            records.extend([
                self.string(name),
                ty.dtype.to_onnx(),
                ty.rank() as i32,
                self.longs(&dims),
                self.ints(&texts),
                self.ints(&numbers),
                i32::from(*has_default),
                ty.dtype.size() as i32,
            ]);
        }
        self.ints(&records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::parse::parse;

    #[test]
    fn states_are_described_in_the_order_of_the_block() {
        let text = r#"graph "states" {
  symbol s0 "past"
  symbol s1 "past.capacity"
  input v0 "x" : f32[1]
  input v1 "past" : f32[s1]
  input v2 "kept" : f32[3]
  state 0, 0 axis 0 from s0 to s0 + 1 of s1
  state 1, 1
  v3 = append v1, v0 {axis=0, at=s0} : f32[s1] @o0(0 "Concat" "")
  return v3 "present", v2 "given_back"
}
"#;
        let graph = parse(text).unwrap();
        let symbols: Vec<Sym> = graph.symbols.keys().collect();
        let mut record = Record::new(Endianness::Little, MODEL_BYTES);
        record.states(&graph, &symbols);
        let bytes = record.finish().in_order(Endianness::Little);
        let number = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let text = |at: i32| {
            let text = &bytes[at as usize..];
            String::from_utf8(text[..text.iter().position(|&byte| byte == 0).unwrap()].to_vec()).unwrap()
        };
        assert_eq!(number(field::STATE_COUNT), 2);
        let (values, records) = (number(field::STATES) as usize, number(field::STATE_RECORDS) as usize);
        // The first field of an `onnxc_value_record`, of 32 bytes, is its name; `onnxc_state_record` has four fields.
        assert_eq!([0, 1].map(|at| text(number(values + 32 * at))), ["past", "kept"]);
        assert_eq!([0, 1].map(|at| text(number(records + 16 * at))), ["present", "given_back"]);
        let fields = |at: usize| [4, 8, 12].map(|field| number(records + 16 * at + field));
        assert_eq!([fields(0), fields(1)], [[0, 0, 0], [-1, NO_SYMBOL, 0]]);
    }
}
