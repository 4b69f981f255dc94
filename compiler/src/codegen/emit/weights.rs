//! Writing the object as a stream, with each constant evaluated when its turn comes.
//!
//! The object writer needs the weights' section as one slice. It gets an anonymous mapping of the right length
//! that nobody reads or writes, which costs no memory; when the writer hands that slice on, the constants are
//! written in its stead.

use std::io::{self, Write};

use bytes::Bytes;
use memmap2::MmapMut;
use target_lexicon::Endianness;

use crate::codegen::emit::data::Data;
use crate::codegen::emit::object::Finished;
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::borders::stored;
use crate::graph::{Graph, NodeId};
use crate::host::lower::internal;
use crate::host::lower::layout::{Weight, WeightSource};
use crate::interp;

pub(super) fn write(
    finished: Finished,
    graph: &Graph,
    weights: &[Weight],
    out: &mut dyn Write,
) -> Result<()> {
    let Finished { object, order, weights: section, .. } = finished;
    let placeholder = match section {
        Some((_, bytes)) => Some(map(bytes)?),
        None => None,
    };
    let hole: Option<&[u8]> = placeholder.as_deref();
    write_with(object, section, hole, Contents { graph, weights, order }, out)
}

fn write_with<'a>(
    mut object: cranelift_object::object::write::Object<'a>,
    section: Option<(cranelift_object::object::write::SectionId, u64)>,
    hole: Option<&'a [u8]>,
    contents: Contents<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    if let (Some((section, _)), Some(hole)) = (section, hole) {
        object.set_section_data(section, hole, crate::schedule::ALIGN as u64);
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

fn io_error(error: io::Error) -> Error {
    Error::new(Stage::Emit, Kind::Io, error.to_string())
}

/// The contents of the weights, all at once.
pub(super) fn bytes(graph: &Graph, weights: &[Weight], length: u64, order: Endianness) -> Result<Vec<u8>> {
    let mut out = vec![];
    let contents = Contents { graph, weights, order };
    let mut writer = Substitute { out: &mut out, hole: None, contents, error: None };
    writer.constants()?;
    out.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    Ok(out)
}

/// What the section of the weights holds.
struct Contents<'a> {
    graph: &'a Graph,
    weights: &'a [Weight],
    order: Endianness,
}

impl Contents<'_> {
    fn data(&self, weight: &Weight) -> Result<Data> {
        match weight.source {
            WeightSource::Default(input) => {
                let default = self.graph.inputs[input].default.as_ref();
                let tensor = default.ok_or_else(|| internal("a default has gone".into()))?;
                Data::tensor(&stored(tensor))
            }
            WeightSource::Strings => {
                let strings = self.graph.strings.as_ref();
                let strings = strings.ok_or_else(|| internal("the strings have gone".into()))?;
                // The format of the runtime, little-endian on every machine.
                Ok(Data::bytes(Bytes::copy_from_slice(strings.blob())))
            }
            WeightSource::Value(value) => {
                Data::tensor(&interp::constant(body(self.graph, &weight.path)?, value)?)
            }
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
        let mut at = 0;
        for weight in self.contents.weights {
            pad(&mut self.out, weight.offset - at)?;
            let data = self.contents.data(weight)?;
            if data.len() as u64 != weight.bytes {
                let message = format!("a constant of {} bytes has {}", weight.bytes, data.len());
                return Err(Error::internal(Stage::Emit, message));
            }
            data.write(self.contents.order, &mut self.out).map_err(io_error)?;
            at = weight.offset + weight.bytes;
        }
        let end = self.hole.map_or(at, |hole| hole.len() as u64);
        pad(&mut self.out, end - at)
    }
}

/// The graph that a path of bodies leads to.
fn body<'g>(mut graph: &'g Graph, path: &[(NodeId, usize)]) -> Result<&'g Graph> {
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
