//! Writing the object as a stream, with each constant evaluated when its turn comes, a few side by side.
//!
//! The object writer needs the weights' section as one slice. It gets an anonymous mapping of the right length
//! that nobody reads or writes, which costs no memory; when the writer hands that slice on, the constants are
//! written in its stead.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use memmap2::MmapMut;
use rayon::prelude::*;
use target_lexicon::Endianness;

use crate::emit::data::Data;
use crate::emit::object::Finished;
use crate::host::lower::internal;
use crate::host::lower::layout::{Weight, WeightSource};
use onnxc_ir::borders::stored_default;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Graph, NodeId};
use onnxc_ir::interp;

/// The constants of one program, or those that lie apart.
pub(super) struct ConstantsPart {
    pub graph: Arc<Graph>,
    pub weights: Vec<Weight>,
}

pub(super) fn write(finished: Finished, parts: &[ConstantsPart], out: &mut dyn Write) -> Result<()> {
    let Finished { object, order, weights: section, .. } = finished;
    let placeholder = match section {
        Some((_, bytes)) => Some(map(bytes)?),
        None => None,
    };
    let hole: Option<&[u8]> = placeholder.as_deref();
    let parts = parts.iter().map(|part| (&*part.graph, &*part.weights)).collect();
    write_with(object, section, hole, Contents { parts, order }, out)
}

fn write_with<'a>(
    mut object: cranelift_object::object::write::Object<'a>,
    section: Option<(cranelift_object::object::write::SectionId, u64)>,
    hole: Option<&'a [u8]>,
    contents: Contents<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    if let (Some((section, _)), Some(hole)) = (section, hole) {
        object.set_section_data(section, hole, onnxc_schedule::ALIGN as u64);
    }
    let mut writer =
        Substitute { out: io::BufWriter::with_capacity(1 << 16, out), hole, contents, error: None };
    let written = object.write_stream(&mut writer);
    if let Some(error) = writer.error {
        return Err(error);
    }
    written.map_err(|error| Error::new(Stage::Emit, Kind::Io, error.to_string()))?;
    writer.out.flush().map_err(io_error)
}

/// Address space of `bytes` bytes.
fn map(bytes: u64) -> Result<MmapMut> {
    let length = usize::try_from(bytes)
        .map_err(|_| Error::unsupported(Stage::Emit, format!("{bytes} bytes of weights on this machine")))?;
    let mut options = memmap2::MmapOptions::new();
    options.len(length).no_reserve_swap().map_anon().map_err(io_error)
}

pub(super) fn io_error(error: io::Error) -> Error {
    Error::new(Stage::Emit, Kind::Io, error.to_string())
}

/// The contents of the weights, all at once.
pub(super) fn bytes(graph: &Graph, weights: &[Weight], length: u64, order: Endianness) -> Result<Vec<u8>> {
    let mut out = vec![];
    let contents = Contents { parts: vec![(graph, weights)], order };
    let mut writer = Substitute { out: &mut out, hole: None, contents, error: None };
    writer.constants()?;
    out.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    Ok(out)
}

/// A constant of the weights, before it is evaluated.
pub struct Constant {
    pub offset: u64,
    pub bytes: u64,
    /// What names it where the model does not.
    pub name: String,
    pub dtype: DType,
    /// Bytes of the numbers that it consists of.
    pub width: usize,
}

/// The constants of all programs, in the order of their offsets.
pub(super) fn constants(parts: &[ConstantsPart]) -> Result<Vec<Constant>> {
    let mut constants = vec![];
    for part in parts {
        for weight in &part.weights {
            let graph = &*part.graph;
            let (name, dtype) = match weight.source {
                WeightSource::Default(input) | WeightSource::Beginning(input) => {
                    (graph.inputs[input].name.clone(), graph.input_ty(input).dtype)
                }
                WeightSource::Strings => ("strings".to_string(), DType::U8),
                WeightSource::Value(value) => (value.to_string(), body(graph, &weight.path)?.ty(value).dtype),
            };
            let width = dtype.part().unwrap_or(dtype).size();
            constants.push(Constant { offset: weight.offset, bytes: weight.bytes, name, dtype, width });
        }
    }
    Ok(constants)
}

/// Evaluates the constants of all programs: their bytes, with numbers little-endian.
pub(super) fn each(parts: &[ConstantsPart], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let parts = parts.iter().map(|part| (&*part.graph, &*part.weights));
    evaluated(parts, &mut |_, data| visit(&data.into_parts().0))
}

/// Evaluates the constants of all programs: their offsets, and their bytes in this order.
pub(super) fn each_in_order(
    parts: &[ConstantsPart],
    order: Endianness,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let parts = parts.iter().map(|part| (&*part.graph, &*part.weights));
    evaluated(parts, &mut |weight, data| visit(weight.offset, &data.in_order(order)))
}

/// Evaluates constants, several at a time and never many bytes of them, and gives them in their order.
fn evaluated<'a>(
    parts: impl Iterator<Item = (&'a Graph, &'a [Weight])>,
    visit: &mut dyn FnMut(&Weight, Data) -> Result<()>,
) -> Result<()> {
    let all: Vec<(&Graph, &Weight)> =
        parts.flat_map(|(graph, weights)| weights.iter().map(move |weight| (graph, weight))).collect();
    for batch in interp::side_by_side(&all, |(_, weight)| weight.bytes) {
        let data: Vec<Result<Data>> =
            batch.par_iter().map(|(graph, weight)| Contents::data(graph, weight)).collect();
        for ((_, weight), data) in batch.iter().zip(data) {
            let data = data?;
            if data.len() as u64 != weight.bytes {
                let message = format!("a constant of {} bytes has {}", weight.bytes, data.len());
                return Err(Error::internal(Stage::Emit, message));
            }
            visit(weight, data)?;
        }
    }
    Ok(())
}

/// What the section of the weights holds.
struct Contents<'a> {
    /// Of each program, in the order of their offsets.
    parts: Vec<(&'a Graph, &'a [Weight])>,
    order: Endianness,
}

impl Contents<'_> {
    fn data(graph: &Graph, weight: &Weight) -> Result<Data> {
        match weight.source {
            WeightSource::Default(input) => {
                let default = graph.inputs[input].default.as_ref();
                let tensor = default.ok_or_else(|| internal("a default has gone".into()))?;
                Data::tensor(&stored_default(graph, tensor))
            }
            WeightSource::Beginning(input) => {
                let default = graph.inputs[input].default.as_ref();
                let tensor = default.ok_or_else(|| internal("a default has gone".into()))?;
                Ok(Data::tensor(&stored_default(graph, tensor))?.beginning(weight.bytes))
            }
            WeightSource::Strings => {
                let strings = graph.strings.as_ref();
                let strings = strings.ok_or_else(|| internal("the strings have gone".into()))?;
                // The format of the runtime, little-endian on every machine.
                Ok(Data::bytes(Bytes::copy_from_slice(strings.blob())))
            }
            WeightSource::Value(value) => Data::tensor(&interp::constant(body(graph, &weight.path)?, value)?),
        }
    }
}

/// A writer that writes the constants where it is given the placeholder.
struct Substitute<'a, W: Write> {
    out: W,
    hole: Option<&'a [u8]>,
    contents: Contents<'a>,
    error: Option<Error>,
}

impl<W: Write> Substitute<'_, W> {
    fn constants(&mut self) -> Result<()> {
        let Substitute { out, hole, contents, .. } = self;
        let (mut at, order) = (0, contents.order);
        evaluated(contents.parts.iter().copied(), &mut |weight, data| {
            pad(out, weight.offset - at)?;
            data.write(order, out).map_err(io_error)?;
            at = weight.offset + weight.bytes;
            Ok(())
        })?;
        let end = hole.map_or(at, |hole| hole.len() as u64);
        pad(out, end - at)
    }
}

/// The graph that a path of bodies leads to.
pub(super) fn body<'g>(mut graph: &'g Graph, path: &[(NodeId, usize)]) -> Result<&'g Graph> {
    for &(node, which) in path {
        let body = graph.nodes.get(node).and_then(|node| node.op.bodies().get(which));
        graph = body.ok_or_else(|| internal(format!("{node} has no body {which}")))?;
    }
    Ok(graph)
}

/// Zeros up to the next constant.
fn pad(out: &mut impl Write, mut bytes: u64) -> Result<()> {
    while bytes > 0 {
        let some = bytes.min(64);
        out.write_all(&[0; 64][..some as usize]).map_err(io_error)?;
        bytes -= some;
    }
    Ok(())
}

impl<W: Write> Write for Substitute<'_, W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let is_hole = self.hole.is_some_and(|hole| std::ptr::eq(hole, data));
        if !is_hole {
            self.out.write_all(data)?;
            return Ok(data.len());
        }
        match self.constants() {
            Ok(()) => Ok(data.len()),
            Err(error) => {
                self.error = Some(error);
                Err(io::Error::other("the weights could not be written"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::{self, Options};
    use onnxc_backend as backend;
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{Dim, Origin, Tensor, TensorType};
    use onnxc_machine::target::Target;
    use onnxc_schedule as schedule;
    use onnxc_schedule::Program;
    use target_lexicon::Triple;

    /// Bytes of the numbers that tensors of a type consist of.
    const WIDTHS: [(DType, usize); 18] = [
        (DType::F32, 4),
        (DType::F64, 8),
        (DType::F16, 2),
        (DType::BF16, 2),
        (DType::F8E4M3FN, 1),
        (DType::F8E8M0, 1),
        (DType::I8, 1),
        (DType::I16, 2),
        (DType::I32, 4),
        (DType::I64, 8),
        (DType::U8, 1),
        (DType::U16, 2),
        (DType::U32, 4),
        (DType::U64, 8),
        (DType::C64, 4),
        (DType::C128, 8),
        // Packed at the borders of the graph, a byte each inside.
        (DType::I4, 1),
        (DType::F6E2M3, 1),
    ];

    fn tensor(dtype: DType) -> Tensor {
        let data: Vec<u8> =
            (0..3 * dtype.size() as u8).map(|at| at * 5 % (1 << dtype.bits().min(5))).collect();
        Tensor::new(dtype, vec![3], data.into())
    }

    /// A graph that gives back constants of every type, defaults of its inputs and a text.
    fn model() -> (Graph, Program) {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, origin);
        let mut outputs = vec![b.constant(Tensor::from_texts(&[1], &["text"]))];
        outputs.extend(WIDTHS.map(|(dtype, _)| b.constant(tensor(dtype))));
        for dtype in [DType::I16, DType::I4] {
            let ty = TensorType::new(dtype, vec![Dim::from(3usize)]);
            outputs.push(b.input(dtype.name(), ty, Some(tensor(dtype))));
        }
        graph.outputs =
            outputs.into_iter().enumerate().map(|(at, value)| (format!("y{at}"), value)).collect();
        onnxc_ir::borders::pack_borders(&mut graph).unwrap();
        let program = schedule::schedule(&graph, schedule::Options::default()).unwrap();
        (graph, program)
    }

    /// A device that refuses one write, and takes those before and after it.
    struct Refuses {
        after: usize,
        writes: usize,
    }

    impl Write for Refuses {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            match self.writes == self.after + 1 {
                true => Err(io::Error::other("it is full")),
                false => Ok(data.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_of_any_write_is_told() {
        use cranelift_object::object::write::Object;
        use cranelift_object::object::{Architecture, BinaryFormat, Endianness as Order, SectionKind};
        let graph = Graph::default();
        let written = |after: usize| {
            let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Order::Little);
            for name in ["a", "b", "c"] {
                let section = object.add_section(vec![], name.as_bytes().to_vec(), SectionKind::Data);
                object.set_section_data(section, vec![7; 100_000], 64);
            }
            let contents = Contents { parts: vec![(&graph, &[])], order: Endianness::Little };
            let mut out = Refuses { after, writes: 0 };
            let result = write_with(object, None, None, contents, &mut out);
            (result.is_ok(), out.writes)
        };
        let (fits, writes) = written(usize::MAX - 1);
        assert!(fits && writes > 3, "{writes} writes");
        for after in 0..writes {
            assert!(!written(after).0, "write {after} of {writes}");
        }
    }

    /// Each kind of constant as targets of either byte order read it; all are in the object.
    #[test]
    fn constants_are_in_the_order_of_the_target() {
        let (graph, program) = model();
        let graph = std::sync::Arc::new(graph);
        for (triple, order) in
            [("x86_64-unknown-linux-gnu", Endianness::Little), ("s390x-unknown-linux-gnu", Endianness::Big)]
        {
            let target = Target::new(triple.parse::<Triple>().unwrap(), None).unwrap();
            let kernels = backend::compile_kernels(&graph, &program, &target, &Default::default()).unwrap();
            let lowered = emit::lower(&graph, &program, &kernels, &Options::default()).unwrap();
            let plan = &lowered.plan;
            let all = bytes(&graph, &plan.weights, plan.weight_bytes, order).unwrap();
            let placed: Vec<&[u8]> = plan
                .weights
                .iter()
                .map(|weight| &all[weight.offset as usize..][..weight.bytes as usize])
                .collect();
            let wanted = |dtype: DType, width: usize| -> Vec<u8> {
                let data = onnxc_ir::borders::stored(&tensor(dtype)).data;
                match order {
                    Endianness::Little => data.to_vec(),
                    Endianness::Big => {
                        data.chunks(width).flat_map(|number| number.iter().rev().copied()).collect()
                    }
                }
            };
            for (dtype, width) in WIDTHS {
                let wanted = wanted(dtype, width);
                assert!(placed.contains(&wanted.as_slice()), "{dtype} in {triple}: {wanted:?} of {placed:?}");
            }
            // The runtime's format of texts is the same everywhere.
            let blob = graph.strings.as_ref().unwrap().blob();
            assert!(placed.contains(&blob), "{triple}");
            let own = emit::Source { suffix: "", graph: &graph, program: &program, kernels: &kernels };
            let artifact = emit::emit(&[own], &target, &Options::default()).unwrap();
            let mut object = vec![];
            artifact.write_object(&mut object).unwrap();
            assert!(object.windows(all.len()).any(|part| part == all), "{triple}");
        }
    }
}
