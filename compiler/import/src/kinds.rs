//! Declared types of every kind: sequences, optionals, maps and sparse tensors.

use onnxc_proto::tensor_shape_proto::Dimension;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{TypeProto, ValueInfoProto};

use super::tensor::dtype;
use super::types::{
    self, Declared, Types, declared_dim, describe, deviation, is_untyped, of_value, tensor_type, unknown_rank,
};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Graph, Part, Symbol, TensorType};
use onnxc_ir::rules::Rule;
use onnxc_ops::item::{Elements, Item, ItemKind, ItemType, Layout};

/// The columns of a graph input other than a dense tensor.
pub(crate) struct Columns {
    pub layout: Layout,
    pub ports: Vec<(Part, TensorType)>,
    /// The type of a sparse tensor, which is made dense of its columns.
    pub dense: Option<TensorType>,
}

impl Types {
    /// The columns of a graph input other than a dense tensor. Those of a sparse tensor have no layout: see
    /// [`Columns`].
    pub(crate) fn compound_input(&mut self, graph: &mut Graph, info: &ValueInfoProto) -> Result<Columns> {
        let ty = info
            .r#type
            .as_ref()
            .map(value_type)
            .unwrap_or_else(|| Err(Error::malformed(Stage::Import, "the type is missing")));
        let given = self.given_shape(info).map(<[Dimension]>::to_vec);
        let ty = ty.and_then(|ty| match (ty.kind, &given) {
            (ItemKind::Map | ItemKind::Records, Some(_)) => {
                let message = "--input-shape is for tensors and for elements of sequences and optionals";
                Err(Error::new(Stage::Import, onnxc_ir::error::Kind::Usage, message))
            }
            (_, Some(dims)) => Ok(ValueType { dims: Some(dims), ..ty }),
            (_, None) => Ok(ty),
        });
        let columns = ty.and_then(|ty| self.columns(graph, info, &ty));
        let columns = columns.and_then(|columns| {
            columns.ports.iter().try_for_each(|(_, ty)| ty.check_size(Stage::Import))?;
            Ok(columns)
        });
        columns.map_err(|error| of_value("input", info, error))
    }

    fn columns(&mut self, graph: &mut Graph, info: &ValueInfoProto, ty: &ValueType<'_>) -> Result<Columns> {
        let mut symbol =
            |what: &str| Dim::sym(graph.symbols.push(Symbol { name: format!("{}.{what}", info.name()) }));
        let tensor =
            |dtype, shape: &[&Dim]| TensorType::new(dtype, shape.iter().map(|&dim| dim.clone()).collect());
        if ty.sparse {
            let stored = symbol("stored");
            let dims = ty.dims.unwrap_or_default().iter().map(|dim| match declared_dim(dim) {
                Declared::Size(size) => Ok(Dim::from(size)),
                _ => Err(Error::unsupported(Stage::Import, "a sparse tensor of symbolic size")),
            });
            let dense = TensorType::new(ty.dtype, dims.collect::<Result<_>>()?);
            dense.check_size(Stage::Import)?;
            if dense.rank() == 0 {
                return Err(Error::unsupported(
                    Stage::Import,
                    "a sparse tensor of no rank, or of an unknown one",
                ));
            }
            let rank = Dim::from(dense.rank());
            let ports = vec![
                (Part::Values, tensor(ty.dtype, &[&stored])),
                (Part::Indices, tensor(DType::I64, &[&stored, &rank])),
            ];
            return Ok(Columns { layout: Layout::Tensor, ports, dense: Some(dense) });
        }
        let (layout, ports) = match ty.kind {
            ItemKind::Sequence | ItemKind::OptionalSequence => {
                let elements = match ty.dims {
                    Some(dims) => Elements::Ranked(vec![None; dims.len()]),
                    None => Elements::Mixed(symbol("axes")),
                };
                let (count, total) = (symbol("count"), symbol("total"));
                let mut layout = Layout::Sequence(elements.clone());
                let mut ports = vec![
                    (Part::Shapes, tensor(DType::I64, &[&count, &elements.axes()])),
                    (Part::Data, tensor(ty.dtype, &[&total])),
                ];
                if ty.kind == ItemKind::OptionalSequence {
                    layout = Layout::Optional(Box::new(layout));
                    ports.insert(0, (Part::Present, tensor(DType::Bool, &[])));
                }
                (layout, ports)
            }
            ItemKind::Map | ItemKind::Records => {
                let (count, key) = (symbol("count"), ty.key.unwrap_or(DType::I64));
                let keys = (Part::Keys, tensor(key, &[&count]));
                match ty.kind {
                    ItemKind::Map => (Layout::Map, vec![keys, (Part::Values, tensor(ty.dtype, &[&count]))]),
                    _ => {
                        let rows = symbol("rows");
                        (Layout::Records, vec![keys, (Part::Values, tensor(ty.dtype, &[&rows, &count]))])
                    }
                }
            }
            ItemKind::Tensor | ItemKind::Optional => {
                let Some(dims) = ty.dims else {
                    return Err(Error::unsupported(Stage::Import, unknown_rank(info.name())));
                };
                // Where the element is absent it has no sizes that others could share.
                let dim = |(axis, dim)| match self.pinned_dim(info, axis, dim) {
                    Some(size) => Dim::from(size),
                    None => symbol(&format!("size{axis}")),
                };
                let element = TensorType::new(ty.dtype, dims.iter().enumerate().map(dim).collect());
                let ports = vec![(Part::Present, tensor(DType::Bool, &[])), (Part::Element, element)];
                (Layout::Optional(Box::new(Layout::Tensor)), ports)
            }
        };
        Ok(Columns { layout, ports, dense: None })
    }
}

/// As [`deviation`], for a value of any kind.
pub(crate) fn item_deviation(info: &ValueInfoProto, item: &Item, b: &Builder<'_>) -> Option<(Rule, String)> {
    if let Some(value) = item.tensor() {
        return deviation(info, b.ty(value));
    }
    let ty = info.r#type.as_ref().filter(|_| !is_untyped(info))?;
    if let (Layout::AnyRank { least, most }, Some(rank)) = (item.layout(), types::rank(info))
        && !(least..=most).contains(&rank)
    {
        let (declared, found) = (describe(ty), item.text(b));
        let message = format!("`{}` is declared as {declared}, and it is {found}, which holds", info.name());
        return Some((Rule::DeclaredShape, message));
    }
    let agrees = value_type(ty).is_ok_and(|ty| ty.kind == item.kind() && ty.dtype == item.dtype(b));
    let message = || {
        let (declared, found) = (describe(ty), item.text(b));
        format!("`{}` is declared as {declared}, and it is {found}, which holds", info.name())
    };
    (!agrees).then(|| (Rule::DeclaredType, message()))
}

/// Fails for an output of a type that no node can give.
pub(crate) fn check_output(info: &ValueInfoProto) -> Result<()> {
    match (&info.r#type, tensor_type(info)) {
        (Some(ty), Err(_)) if !is_tensor(info) => match value_type(ty) {
            Ok(ValueType { sparse: false, .. }) => Ok(()),
            Ok(_) => {
                let error = Error::unsupported(
                    Stage::Import,
                    "a sparse tensor may be an input or a constant, and no output: declare a dense one",
                );
                Err(of_value("output", info, error))
            }
            Err(error) => Err(of_value("output", info, error)),
        },
        (_, Err(error)) if !is_untyped(info) => Err(of_value("output", info, error)),
        _ => Ok(()),
    }
}

/// Whether a value is declared as a dense tensor, or not at all.
pub(crate) fn is_tensor(info: &ValueInfoProto) -> bool {
    matches!(
        info.r#type.as_ref().and_then(|ty| ty.value.as_ref()),
        None | Some(TypeValue::TensorType(_) | TypeValue::OpaqueType(_))
    )
}

/// A declared type of any kind.
struct ValueType<'p> {
    kind: ItemKind,
    /// Of a map, that of its values.
    dtype: DType,
    /// Dims of the tensor, or of the elements; `None`: of unknown rank.
    dims: Option<&'p [Dimension]>,
    /// Type of a map's keys.
    key: Option<DType>,
    sparse: bool,
}

fn value_type(ty: &TypeProto) -> Result<ValueType<'_>> {
    let unsupported = |what: &str, inner: &ValueType<'_>, takes: &str| {
        let kind = if inner.sparse { "a sparse tensor".to_string() } else { inner.kind.to_string() };
        Err(Error::unsupported(Stage::Import, format!("{what} is {kind}; it may be {takes}")))
    };
    let missing = || Error::malformed(Stage::Import, "the type of its elements is missing");
    Ok(match ty.value.as_ref() {
        Some(TypeValue::TensorType(tensor)) => ValueType {
            kind: ItemKind::Tensor,
            dtype: dtype(tensor.elem_type())?,
            dims: tensor.shape.as_ref().map(|shape| shape.dim.as_slice()),
            key: None,
            sparse: false,
        },
        Some(TypeValue::SparseTensorType(tensor)) => ValueType {
            kind: ItemKind::Tensor,
            dtype: dtype(tensor.elem_type())?,
            dims: tensor.shape.as_ref().map(|shape| shape.dim.as_slice()),
            key: None,
            sparse: true,
        },
        Some(TypeValue::SequenceType(sequence)) => {
            let inner = value_type(sequence.elem_type.as_deref().ok_or_else(missing)?)?;
            let kind = match inner.kind {
                ItemKind::Tensor if !inner.sparse => ItemKind::Sequence,
                ItemKind::Map => ItemKind::Records,
                _ => return unsupported("an element of the sequence", &inner, "a tensor or a map"),
            };
            ValueType { kind, ..inner }
        }
        Some(TypeValue::OptionalType(optional)) => {
            let inner = value_type(optional.elem_type.as_deref().ok_or_else(missing)?)?;
            let kind = match inner.kind {
                ItemKind::Tensor if !inner.sparse => ItemKind::Optional,
                ItemKind::Sequence => ItemKind::OptionalSequence,
                _ => {
                    return unsupported(
                        "the element of the optional",
                        &inner,
                        "a tensor or a sequence of tensors",
                    );
                }
            };
            ValueType { kind, ..inner }
        }
        Some(TypeValue::MapType(map)) => {
            let inner = value_type(map.value_type.as_deref().ok_or_else(missing)?)?;
            if inner.kind != ItemKind::Tensor || inner.sparse {
                return unsupported("a value of the map", &inner, "a tensor");
            }
            ValueType { kind: ItemKind::Map, key: Some(dtype(map.key_type())?), ..inner }
        }
        Some(TypeValue::OpaqueType(_)) => {
            return Err(Error::unsupported(
                Stage::Import,
                "the type is opaque, and has no meaning outside of its engine",
            ));
        }
        None => return Err(Error::malformed(Stage::Import, "the type is missing")),
    })
}

/// The type of an optional's element in an attribute: unknown sizes are 0.
pub(crate) fn element_type(ty: &TypeProto) -> Result<ItemType> {
    let declared = value_type(ty)?;
    let size = |dim: &Dimension| match declared_dim(dim) {
        Declared::Size(size) => Dim::from(size),
        _ => Dim::ZERO,
    };
    let dims: Option<Vec<Dim>> = declared.dims.map(|dims| dims.iter().map(size).collect());
    let dtype = declared.dtype;
    Ok(match (declared.kind, dims) {
        (ItemKind::Tensor, _) if declared.sparse => {
            return Err(Error::unsupported(Stage::Import, "an optional sparse tensor"));
        }
        (ItemKind::Tensor, Some(dims)) => TensorType::new(dtype, dims).into(),
        (ItemKind::Tensor, None) => ItemType { layout: Layout::Nothing(dtype), columns: vec![] },
        (ItemKind::Sequence, Some(dims)) => {
            let shapes = TensorType::new(DType::I64, vec![Dim::ZERO, Dim::from(dims.len())]);
            let layout = Layout::Sequence(Elements::Ranked(vec![None; dims.len()]));
            ItemType { layout, columns: vec![shapes, TensorType::new(dtype, vec![Dim::ZERO])] }
        }
        (ItemKind::Sequence, None) => ItemType { layout: Layout::List(dtype), columns: vec![] },
        (kind, _) => {
            return Err(Error::unsupported(Stage::Import, format!("{kind} as an optional's element")));
        }
    })
}
