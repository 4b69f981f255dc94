//! Models as text, in ONNX's own notation (`onnx.parser`) as far as the clauses need it:
//!
//! ```text
//! (float[2, N] x) => (float[2, N] y) <float[2] w = {1, 2}> { [name] y = Softmax<axis = 1>(x) }
//! loc.F<alpha, beta = 2.0>(a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }
//! ```
//!
//! A model is a graph and the functions behind it. `float[*]` has no rank, a name without a type no type; names that are not words are
//! quoted, and `""` is not a name. Bodies are values of attributes: `then_branch = () => (float[2] t) { ... }`.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::type_proto::{Map, Opaque, Optional, Sequence, SparseTensor, Tensor, Value};
use onnxc_proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, build,
};

/// A model of IR version 10 with opset 22.
pub(crate) fn model(text: &str) -> ModelProto {
    let mut parser = Parser { rest: text };
    let mut model = build::model(22, parser.graph("g"));
    model.ir_version = Some(10);
    while !parser.at_end() {
        let function = parser.function();
        if !model.opset_import.iter().any(|import| import.domain() == function.domain()) {
            model.opset_import.push(build::opset(function.domain(), 1));
        }
        model.functions.push(function);
    }
    model
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn fail(&self, wanted: &str) -> ! {
        panic!("{wanted} is wanted at: {}", self.rest)
    }

    fn at_end(&mut self) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.is_empty()
    }

    fn sees(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.starts_with(token)
    }

    fn takes(&mut self, token: &str) -> bool {
        let sees = self.sees(token);
        if sees {
            self.rest = &self.rest[token.len()..];
        }
        sees
    }

    fn expect(&mut self, token: &str) {
        if !self.takes(token) {
            self.fail(token);
        }
    }

    /// Letters, digits, dots and underscores; empty where there is none.
    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end =
            self.rest.find(|c: char| !c.is_alphanumeric() && !"_.".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn name(&mut self) -> String {
        if !self.takes("\"") {
            return self.word().to_string();
        }
        let end = self.rest.find('"').unwrap_or_else(|| self.fail("a quote"));
        let name = self.rest[..end].to_string();
        self.rest = &self.rest[end + 1..];
        name
    }

    /// Things between commas up to `end`, which is taken, too.
    fn list<T>(&mut self, end: &str, mut one: impl FnMut(&mut Parser<'t>) -> T) -> Vec<T> {
        let mut all = vec![];
        while !self.takes(end) {
            all.push(one(self));
            if !self.takes(",") && !self.sees(end) {
                self.fail(end);
            }
        }
        all
    }

    fn graph(&mut self, name: &str) -> GraphProto {
        self.expect("(");
        let inputs = self.list(")", Parser::value_info);
        self.expect("=>");
        self.expect("(");
        let outputs = self.list(")", Parser::value_info);
        let initializer = if self.takes("<") { self.list(">", Parser::initializer) } else { vec![] };
        self.expect("{");
        let node = self.nodes();
        GraphProto { name: Some(name.to_string()), initializer, ..build::graph(inputs, node, outputs) }
    }

    fn nodes(&mut self) -> Vec<NodeProto> {
        let mut nodes = vec![];
        while !self.takes("}") {
            nodes.push(self.node());
        }
        nodes
    }

    fn node(&mut self) -> NodeProto {
        let name = self.takes("[").then(|| {
            let name = self.name();
            self.expect("]");
            name
        });
        let output = self.list("=", Parser::name);
        let operator = self.word();
        let (domain, op_type) = operator.rsplit_once('.').unwrap_or(("", operator));
        let overload = self.takes(":").then(|| self.word().to_string());
        let attribute = if self.takes("<") { self.list(">", Parser::attribute) } else { vec![] };
        self.expect("(");
        let input = self.list(")", Parser::name);
        NodeProto {
            name,
            output,
            domain: (!domain.is_empty()).then(|| domain.to_string()),
            op_type: Some(op_type.to_string()),
            overload,
            attribute,
            input,
            ..Default::default()
        }
    }

    fn function(&mut self) -> FunctionProto {
        let full = self.word();
        let (domain, name) = full.rsplit_once('.').unwrap_or(("", full));
        let overload = self.takes(":").then(|| self.word().to_string());
        let mut function = FunctionProto {
            name: Some(name.to_string()),
            domain: Some(domain.to_string()),
            overload,
            opset_import: vec![build::opset("", 22)],
            ..Default::default()
        };
        if self.takes("<") {
            while !self.takes(">") {
                let before = self.rest;
                let name = self.name();
                if self.sees("=") || self.sees(":") {
                    self.rest = before;
                    function.attribute_proto.push(self.attribute());
                } else {
                    function.attribute.push(name);
                }
                self.takes(",");
            }
        }
        self.expect("(");
        function.input = self.list(")", Parser::name);
        self.expect("=>");
        self.expect("(");
        function.output = self.list(")", Parser::name);
        self.expect("{");
        function.node = self.nodes();
        function
    }

    fn value_info(&mut self) -> ValueInfoProto {
        let before = self.rest;
        let ty = if self.sees("\"") { None } else { self.ty() };
        if self.sees(",") || self.sees(")") {
            self.rest = before;
            return build::untyped(&self.name());
        }
        let name = self.name();
        ValueInfoProto { r#type: ty, ..build::untyped(&name) }
    }

    fn ty(&mut self) -> Option<TypeProto> {
        let word = self.word();
        let boxed = |parser: &mut Parser<'t>| {
            let ty = parser.ty().map(Box::new);
            parser.expect(")");
            ty
        };
        let value = match word {
            "seq" if self.takes("(") => Value::SequenceType(Box::new(Sequence { elem_type: boxed(self) })),
            "optional" if self.takes("(") => {
                Value::OptionalType(Box::new(Optional { elem_type: boxed(self) }))
            }
            "map" if self.takes("(") => {
                let key = element(self.word())?;
                self.expect(",");
                Value::MapType(Box::new(Map { key_type: Some(key), value_type: boxed(self) }))
            }
            "sparse" if self.takes("(") => {
                let word = self.word();
                let (elem_type, shape) = (element(word), self.shape());
                self.expect(")");
                Value::SparseTensorType(SparseTensor { elem_type, shape })
            }
            "opaque" => Value::OpaqueType(Opaque { domain: Some("d".into()), name: Some("n".into()) }),
            _ => Value::TensorType(Tensor { elem_type: Some(element(word)?), shape: self.shape() }),
        };
        Some(TypeProto { value: Some(value), denotation: None })
    }

    fn shape(&mut self) -> Option<TensorShapeProto> {
        if self.takes("[*]") {
            return None;
        }
        let mut dims = vec![];
        if self.takes("[") {
            dims = self.list("]", |parser| match parser.takes("?") {
                true => "?".to_string(),
                false if parser.takes("-") => format!("-{}", parser.word()),
                false => parser.name(),
            });
        }
        let info = build::f32_value("", &dims);
        match info.r#type?.value? {
            Value::TensorType(tensor) => tensor.shape,
            _ => None,
        }
    }

    fn initializer(&mut self) -> TensorProto {
        let ty = self.ty();
        let name = self.name();
        self.expect("=");
        self.tensor(ty, &name)
    }

    /// `{values}` of a tensor type.
    fn tensor(&mut self, ty: Option<TypeProto>, name: &str) -> TensorProto {
        let Some(Value::TensorType(ty)) = ty.and_then(|ty| ty.value) else { self.fail("a tensor type") };
        let dims = ty.shape.unwrap_or_default().dim;
        let dims = dims.iter().map(|dim| match &dim.value {
            Some(onnxc_proto::tensor_shape_proto::dimension::Value::DimValue(size)) => *size,
            _ => panic!("a size of a tensor is not a number"),
        });
        self.expect("{");
        let texts = self.list("}", |parser| match parser.sees("\"") {
            true => parser.name(),
            false => parser.number().to_string(),
        });
        let number = |text: &String| text.parse::<f64>().unwrap();
        let mut tensor = TensorProto {
            name: (!name.is_empty()).then(|| name.to_string()),
            dims: dims.collect(),
            data_type: ty.elem_type,
            ..Default::default()
        };
        match DataType::try_from(ty.elem_type.unwrap()).unwrap() {
            DataType::Float => tensor.float_data = texts.iter().map(|text| number(text) as f32).collect(),
            DataType::Double => tensor.double_data = texts.iter().map(number).collect(),
            DataType::Int64 => tensor.int64_data = texts.iter().map(|text| number(text) as i64).collect(),
            DataType::String => {
                tensor.string_data = texts.into_iter().map(|text| text.into_bytes().into()).collect();
            }
            _ => tensor.int32_data = texts.iter().map(|text| number(text) as i32).collect(),
        }
        tensor
    }

    fn number(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-+.".contains(c));
        let (number, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        number
    }

    fn attribute(&mut self) -> AttributeProto {
        let name = self.name();
        let stated = self.takes(":").then(|| kind(self.word()));
        self.expect("=");
        if self.takes("@") {
            let of = self.name();
            return AttributeProto {
                ref_attr_name: Some(of),
                ..build::attribute(&name, stated.unwrap_or(AttributeType::Int))
            };
        }
        if self.sees("\"") {
            let text = self.name();
            let text = Some(text.into_bytes().into());
            return AttributeProto { s: text, ..build::attribute(&name, AttributeType::String) };
        }
        if self.sees("(") {
            return build::subgraph(&name, self.graph(&name));
        }
        if self.takes("[") {
            if self.sees("\"") {
                let strings = self.list("]", |parser| parser.name().into_bytes().into());
                return AttributeProto { strings, ..build::attribute(&name, AttributeType::Strings) };
            }
            let texts = self.list("]", |parser| parser.number().to_string());
            let is_float =
                stated == Some(AttributeType::Floats) || texts.iter().any(|text| text.contains('.'));
            if is_float {
                let floats = texts.iter().map(|text| text.parse().unwrap()).collect();
                return AttributeProto { floats, ..build::attribute(&name, AttributeType::Floats) };
            }
            let ints: Vec<i64> = texts.iter().map(|text| text.parse().unwrap()).collect();
            return build::ints(&name, &ints);
        }
        if self.rest.trim_start().starts_with(char::is_alphabetic) {
            let ty = self.ty();
            if self.sees("{") {
                let tensor = Box::new(self.tensor(ty, ""));
                return AttributeProto { t: Some(tensor), ..build::attribute(&name, AttributeType::Tensor) };
            }
            return AttributeProto {
                tp: ty.map(Box::new),
                ..build::attribute(&name, AttributeType::TypeProto)
            };
        }
        let number = self.number();
        match number.parse::<i64>() {
            Ok(value) if stated != Some(AttributeType::Float) => build::int(&name, value),
            _ => AttributeProto {
                f: Some(number.parse().unwrap_or_else(|_| self.fail("a number"))),
                ..build::attribute(&name, AttributeType::Float)
            },
        }
    }
}

fn kind(word: &str) -> AttributeType {
    match word {
        "int" => AttributeType::Int,
        "float" => AttributeType::Float,
        "string" => AttributeType::String,
        "ints" => AttributeType::Ints,
        "floats" => AttributeType::Floats,
        "tensor" => AttributeType::Tensor,
        other => panic!("attributes of type {other}"),
    }
}

/// ONNX's names of element types.
pub(crate) fn element(word: &str) -> Option<i32> {
    let names = [
        ("float", DataType::Float),
        ("double", DataType::Double),
        ("float16", DataType::Float16),
        ("bfloat16", DataType::Bfloat16),
        ("bool", DataType::Bool),
        ("string", DataType::String),
        ("int8", DataType::Int8),
        ("int16", DataType::Int16),
        ("int32", DataType::Int32),
        ("int64", DataType::Int64),
        ("uint8", DataType::Uint8),
        ("uint16", DataType::Uint16),
        ("uint32", DataType::Uint32),
        ("uint64", DataType::Uint64),
        ("complex64", DataType::Complex64),
        ("complex128", DataType::Complex128),
        ("int4", DataType::Int4),
        ("uint4", DataType::Uint4),
    ];
    names.iter().find(|(name, _)| *name == word).map(|(_, ty)| *ty as i32)
}
