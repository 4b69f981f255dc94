//! Constants of the model file: every storage form of a tensor to the one of [`Tensor`].

use bytes::Bytes;
use onnxc_proto::tensor_proto::DataLocation;
use onnxc_proto::{SparseTensorProto, TensorProto};

use super::ExternalData;
use onnxc_ir::borders::{pack_bits, unpack_bits};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::rules::Rule;

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Import, message))
}

fn unsupported<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::unsupported(Stage::Import, message))
}

/// Element type of a `TensorProto.DataType` number.
pub(crate) fn dtype(number: i32) -> Result<DType> {
    match DType::from_onnx(number) {
        Some(dtype) => Ok(dtype),
        None if number == 0 => malformed("the element type is missing"),
        None => malformed(format!("element type number {number} is not known")),
    }
}

/// Reads tensors of the model file and of the files beside it.
pub(crate) struct Constants<'m> {
    external: &'m dyn ExternalData,
    /// Bytes that tensors may still take beyond what the files hold.
    left: u64,
    limit: u64,
    /// What breaks rules and was read all the same, since somebody has asked.
    pub oddities: Vec<(Rule, String)>,
    /// Bytes that sparse tensors may still take beyond [`SPARSE_RATIO`] of what the file has of them.
    sparse_left: u64,
}

/// Bytes of a dense form for each byte that a file has of a sparse tensor, and bytes that all may take beyond: a file of some
/// hundred bytes can name any size.
const SPARSE_RATIO: u64 = 64;
const SPARSE_BEYOND: u64 = 64 << 20;

impl<'m> Constants<'m> {
    pub(crate) fn new(external: &'m dyn ExternalData, expanded_bytes: u64) -> Constants<'m> {
        let sparse_left = SPARSE_BEYOND;
        Constants { external, left: expanded_bytes, limit: expanded_bytes, oddities: Vec::new(), sparse_left }
    }

    /// A dense tensor; raw data of whole-byte types is shared, not copied.
    pub(crate) fn dense(&mut self, proto: &TensorProto) -> Result<Tensor> {
        self.read_dense(proto).map_err(|error| named("tensor", proto.name(), error))
    }

    /// A sparse tensor, made dense within the budget.
    pub(crate) fn sparse(&mut self, proto: &SparseTensorProto) -> Result<Tensor> {
        let name = proto.values.as_ref().map_or("", |values| values.name());
        self.read_sparse(proto).map_err(|error| named("sparse tensor", name, error))
    }

    /// The elements of a sparse tensor and their indices `[n, rank]`.
    pub(crate) fn sparse_parts(&mut self, proto: &SparseTensorProto) -> Result<(Tensor, Tensor)> {
        let (Some(values), Some(indices)) = (&proto.values, &proto.indices) else {
            return malformed("values or indices are missing");
        };
        let shape = shape(&proto.dims)?;
        let (values, indices) = (self.dense(values)?, self.dense(indices)?);
        let entries = values.len();
        let mut coordinates: Vec<i64> = Vec::new();
        for mut position in positions(&indices, entries, &shape)? {
            let first = coordinates.len();
            coordinates.resize(first + shape.len(), 0);
            for (axis, &size) in shape.iter().enumerate().rev() {
                coordinates[first + axis] = (position % size.max(1)) as i64;
                position /= size.max(1);
            }
        }
        Ok((values, Tensor::from_slice(&[entries, shape.len()], &coordinates)))
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Error::new(
                Stage::Import,
                Kind::Budget,
                format!("{bytes} more bytes exceed the budget of {} for unpacked constants", self.limit),
            )),
        }
    }

    /// Counts the dense form of a sparse tensor that takes `stored` bytes in the file.
    fn charge_sparse(&mut self, dense: u64, stored: u64) -> Result<()> {
        let beyond = dense.saturating_sub(stored.saturating_mul(SPARSE_RATIO));
        self.sparse_left = self.sparse_left.checked_sub(beyond).ok_or_else(|| {
            let message = format!(
                "{stored} bytes of a sparse tensor become {dense}: such tensors may become {SPARSE_RATIO} times as large, and \
                 {SPARSE_BEYOND} bytes beyond that in all; store this one as a dense tensor"
            );
            Error::new(Stage::Import, Kind::Budget, message)
        })?;
        self.charge(dense)
    }

    fn read_dense(&mut self, proto: &TensorProto) -> Result<Tensor> {
        if proto.segment.is_some() {
            return unsupported("a tensor stored in segments");
        }
        let dtype = dtype(proto.data_type())?;
        let shape = shape(&proto.dims)?;
        self.check_fields(proto);
        if dtype == DType::Str {
            return strings(proto, &shape);
        }
        let (count, stored) = sizes(dtype, &shape)?;
        let data = if proto.data_location() == DataLocation::External {
            self.read_external(proto, stored)?
        } else {
            match &proto.raw_data {
                Some(raw) if !raw.is_empty() || stored == 0 => raw.clone(),
                _ => Bytes::from(typed_data(proto, dtype)?),
            }
        };
        if data.len() as u64 != stored {
            return malformed(format!(
                "{} bytes of data for {dtype}{shape:?}, which takes {stored}",
                data.len()
            ));
        }
        let data = match dtype {
            _ if dtype.is_packed() => {
                self.charge(count as u64)?;
                unpack_bits(dtype, &data, count)
            }
            DType::Bool if data.iter().any(|&byte| byte > 1) => {
                let byte = data.iter().find(|&&byte| byte > 1).copied().unwrap_or_default();
                let message = format!("tensor `{}`: a bool is {byte}; it is taken for true", proto.name());
                self.oddities.push((Rule::BoolBytes, message));
                data.iter().map(|&byte| u8::from(byte != 0)).collect()
            }
            _ => data,
        };
        Ok(Tensor::new(dtype, shape, data))
    }

    /// Notes data in more than one field.
    fn check_fields(&mut self, proto: &TensorProto) {
        let fields = [
            (proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty()), "raw_data"),
            (!proto.float_data.is_empty(), "float_data"),
            (!proto.double_data.is_empty(), "double_data"),
            (!proto.int32_data.is_empty(), "int32_data"),
            (!proto.int64_data.is_empty(), "int64_data"),
            (!proto.uint64_data.is_empty(), "uint64_data"),
            (!proto.string_data.is_empty(), "string_data"),
        ];
        let set: Vec<&str> = fields.iter().filter(|field| field.0).map(|field| field.1).collect();
        let name = proto.name();
        match (proto.data_location() == DataLocation::External, set.as_slice()) {
            (true, [_, ..]) => {
                let message = format!(
                    "tensor `{name}` has data in another file and in {}; the file's are read",
                    set.join(" and ")
                );
                self.oddities.push((Rule::ExternalFields, message));
            }
            (false, [_, _, ..]) => {
                let message = format!("tensor `{name}` has data in {}; it must be in one", set.join(" and "));
                self.oddities.push((Rule::TensorFields, message));
            }
            _ => {}
        }
    }

    /// Compares the checksum of external data, if there is one: the SHA-1 of the whole file, as 40 digits of base 16.
    fn check_sum(&mut self, proto: &TensorProto, location: &str, stated: &str) -> Result<()> {
        let found: String = self.external.sha1(location)?.iter().map(|byte| format!("{byte:02x}")).collect();
        if !found.eq_ignore_ascii_case(stated) {
            let name = proto.name();
            let message = format!(
                "tensor `{name}`: the SHA-1 of `{location}` is {found}, and the checksum in the model {stated}"
            );
            self.oddities.push((Rule::Checksum, message));
        }
        Ok(())
    }

    fn read_external(&mut self, proto: &TensorProto, stored: u64) -> Result<Bytes> {
        let entry = |key: &str| {
            proto.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value())
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(value) => Ok(Some(value)),
                Err(_) => malformed(format!("external data with {key} `{text}`")),
            },
        };
        let Some(location) = entry("location") else { return malformed("external data without a location") };
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?
            && length != stored
        {
            return malformed(format!("external data of {length} bytes where {stored} are needed"));
        }
        if stored == 0 {
            return Ok(Bytes::new());
        }
        if let Some(stated) = entry("checksum").filter(|stated| !stated.is_empty()) {
            self.check_sum(proto, location, stated)?;
        }
        self.external.read(location, offset, Some(stored))
    }

    fn read_sparse(&mut self, proto: &SparseTensorProto) -> Result<Tensor> {
        let (Some(values), Some(indices)) = (&proto.values, &proto.indices) else {
            return malformed("values or indices are missing");
        };
        let shape = shape(&proto.dims)?;
        if shape.contains(&0) {
            let message =
                format!("sparse tensor `{}` of shape {shape:?}: each size must be 1 or more", values.name());
            self.oddities.push((Rule::SparseDims, message));
        }
        let values = self.dense(values)?;
        let (count, _) = sizes(values.dtype, &shape)?;
        let indices = self.dense(indices)?;
        let entries = values.len();
        if values.shape != [entries] || indices.dtype != DType::I64 {
            return malformed(format!(
                "values are {}{:?} and indices {}{:?}",
                values.dtype, values.shape, indices.dtype, indices.shape
            ));
        }
        let positions = positions(&indices, entries, &shape)?;
        let mut next = 0;
        for (entry, &position) in positions.iter().enumerate() {
            if position < next || position >= count {
                return malformed(format!(
                    "index {position} of entry {entry} is out of order or outside {shape:?}"
                ));
            }
            next = position + 1;
        }
        let size = values.dtype.size();
        let each = if values.dtype == DType::Str { size_of::<Bytes>() } else { size };
        let stored = entries * each + indices.data.len();
        self.charge_sparse((count as u64).saturating_mul(each as u64), stored as u64)?;
        if values.dtype == DType::Str {
            // What has no entry is the empty text.
            let mut texts = vec![Bytes::new(); count];
            positions.into_iter().zip(values.texts()).for_each(|(position, text)| texts[position] = text);
            return Ok(Tensor::from_texts(&shape, &texts));
        }
        let mut data = vec![0; count * size];
        for (entry, position) in positions.into_iter().enumerate() {
            data[position * size..][..size].copy_from_slice(&values.data[entry * size..][..size]);
        }
        Ok(Tensor::new(values.dtype, shape, Bytes::from(data)))
    }
}

/// A tensor of strings, which the specification has in one form only.
fn strings(proto: &TensorProto, shape: &[usize]) -> Result<Tensor> {
    let (count, _) = sizes(DType::Str, shape)?;
    if proto.data_location() == DataLocation::External
        || proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty())
    {
        return malformed("strings as raw or external data");
    }
    let texts = &proto.string_data;
    if texts.len() != count {
        return malformed(format!("{} strings for a tensor of shape {shape:?}", texts.len()));
    }
    match texts.iter().find(|text| std::str::from_utf8(text).is_err()) {
        Some(text) => malformed(format!("the string {:?} is not UTF-8", String::from_utf8_lossy(text))),
        None => Ok(Tensor::from_texts(shape, texts)),
    }
}

fn named(what: &str, name: &str, error: Error) -> Error {
    error.reworded(|message| format!("{what} `{name}`: {message}"))
}

fn shape(dims: &[i64]) -> Result<Vec<usize>> {
    match dims.iter().map(|&dim| usize::try_from(dim).ok()).collect() {
        Some(shape) => Ok(shape),
        None => malformed(format!("shape {dims:?} has a negative dim")),
    }
}

/// Elements of a tensor, and bytes they take in the file. The product of the dims other than zero
/// stays in range too, so that strides do.
fn sizes(dtype: DType, shape: &[usize]) -> Result<(usize, u64)> {
    let too_large =
        || Error::new(Stage::Import, Kind::Budget, format!("a tensor of {dtype}{shape:?} is too large"));
    let extent = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim.max(1)));
    let extent = extent.filter(|&extent| extent <= isize::MAX as usize / 16).ok_or_else(too_large)?;
    let count = if shape.contains(&0) { 0 } else { extent };
    let bits = (count as u64).checked_mul(u64::from(dtype.bits())).ok_or_else(too_large)?;
    Ok((count, bits.div_ceil(8)))
}

/// The bytes that raw data would have, from the typed list of the element type.
fn typed_data(proto: &TensorProto, dtype: DType) -> Result<Vec<u8>> {
    Ok(match dtype {
        DType::F32 | DType::C64 => proto.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F64 | DType::C128 => proto.double_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::I64 => proto.int64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U64 => proto.uint64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U32 => {
            let mut data = Vec::with_capacity(proto.uint64_data.len() * 4);
            for &value in &proto.uint64_data {
                match u32::try_from(value) {
                    Ok(value) => data.extend_from_slice(&value.to_le_bytes()),
                    Err(_) => return malformed(format!("{value} is not a u32")),
                }
            }
            data
        }
        DType::Bool => proto.int32_data.iter().map(|&value| u8::from(value != 0)).collect(),
        DType::I32 => proto.int32_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F6E2M3 | DType::F6E3M2 => {
            // One entry per element, which are packed in raw data only.
            let code = |&value: &i32| u8::try_from(value).ok().filter(|&code| code < 64).ok_or(value);
            match proto.int32_data.iter().map(code).collect::<std::result::Result<Vec<u8>, i32>>() {
                Ok(codes) => pack_bits(dtype, &codes),
                Err(value) => return malformed(format!("{value} is not a code of {dtype}")),
            }
        }
        _ => {
            // One entry per element, or per byte of packed elements; either sign convention.
            let width = dtype.size();
            let bits = 8 * width as u32;
            let mut data = Vec::with_capacity(proto.int32_data.len() * width);
            for &value in &proto.int32_data {
                if i64::from(value) >= 1 << bits || i64::from(value) < -(1 << (bits - 1)) {
                    return malformed(format!("{value} does not fit {dtype}"));
                }
                data.extend_from_slice(&value.to_le_bytes()[..width]);
            }
            data
        }
    })
}

/// Row-major positions of a sparse tensor's entries.
fn positions(indices: &Tensor, entries: usize, shape: &[usize]) -> Result<Vec<usize>> {
    let values: Vec<i64> = indices.values();
    let outside = |value: i64| {
        Error::malformed(Stage::Import, format!("index {value} is outside a tensor of shape {shape:?}"))
    };
    if indices.shape == [entries] {
        return values.iter().map(|&value| usize::try_from(value).map_err(|_| outside(value))).collect();
    }
    if indices.shape != [entries, shape.len()] {
        return malformed(format!("indices of shape {:?} for {entries} values", indices.shape));
    }
    let position = |row: &[i64]| {
        row.iter().zip(shape).try_fold(0usize, |position, (&value, &dim)| match usize::try_from(value) {
            Ok(index) if index < dim => Ok(position * dim + index),
            _ => Err(outside(value)),
        })
    };
    match shape.len() {
        0 => Ok(vec![0; entries]),
        rank => values.chunks_exact(rank).map(position).collect(),
    }
}
