//! ONNX models as text, in the syntax of ONNX's own parser (`onnx.parser`), as far as the file tests use it:
//!
//! ```text
//! <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
//! mlp (float[n, 4] x) => (float[n, 2] y) <float[4, 2] w = {..}, float[2] b = {1, 2}> {
//!   p = MatMul (x, w)
//!   y = local.Shift:small <by: float = 2> (p, b)
//! }
//! <domain: "local", opset_import: ["" : 20], overload: "small">
//! Shift <by> (p, b) => (y) { s = Constant <value_float: float = @by> () y = Add (p, s) }
//! ```
//!
//! Of our own is `{..}`, values drawn by the name of the tensor.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, attribute, typed, untyped, value};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto, type_proto,
};

type Result<T> = std::result::Result<T, String>;

const TYPES: [(&str, DataType); 12] = [
    ("float", DataType::Float),
    ("double", DataType::Double),
    ("float16", DataType::Float16),
    ("bfloat16", DataType::Bfloat16),
    ("int8", DataType::Int8),
    ("uint8", DataType::Uint8),
    ("int16", DataType::Int16),
    ("uint16", DataType::Uint16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("bool", DataType::Bool),
    ("string", DataType::String),
];

/// Reads a model.
pub fn parse(text: &str) -> Result<ModelProto> {
    let mut reader = Reader { tokens: tokens(text)?, at: 0 };
    let mut model = ModelProto::default();
    reader.fields(&mut |reader, key| {
        match key {
            "ir_version" => model.ir_version = Some(reader.integer()?),
            "opset_import" => model.opset_import = reader.opsets()?,
            _ => return Err(format!("a model has no `{key}`")),
        }
        Ok(())
    })?;
    model.graph = Some(reader.graph()?);
    while reader.at < reader.tokens.len() {
        let function = reader.function()?;
        model.functions.push(function);
    }
    Ok(model)
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    /// A name, with the dots in it.
    Word(String),
    Number(String),
    Text(String),
    Sign(String),
}

fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut found = vec![];
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let is_number = first.is_ascii_digit() || (first == '-' && rest.len() > 1);
        let length = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' => 2 + rest[1..].find('"').ok_or("a string without an end")?,
            _ if rest.starts_with("..") || rest.starts_with("=>") => 2,
            _ if is_number => rest[1..].find(|c| !is_word(c) && c != '-').map_or(rest.len(), |at| at + 1),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let word = &rest[..length];
        match first {
            '#' => {}
            '"' => found.push(Token::Text(word[1..length - 1].into())),
            _ if is_number => found.push(Token::Number(word.into())),
            _ if is_word(first) && word != ".." => found.push(Token::Word(word.into())),
            _ => found.push(Token::Sign(word.into())),
        }
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn wrong<T>(&self, wanted: &str) -> Result<T> {
        let before = self.tokens[self.at.saturating_sub(6)..self.at].iter();
        let text = before.map(|token| format!("{token:?}")).collect::<Vec<_>>().join(" ");
        Err(format!("{wanted} is expected in place of {:?}, behind {text}", self.peek()))
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(own)) if own == sign);
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: &str) -> Result<()> {
        if self.eat(sign) { Ok(()) } else { self.wrong(&format!("`{sign}`")) }
    }

    fn word(&mut self) -> Result<String> {
        match self.peek().cloned() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.wrong("a name"),
        }
    }

    fn text(&mut self) -> Result<String> {
        match self.peek().cloned() {
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(text)
            }
            _ => self.wrong("a string"),
        }
    }

    /// A name, or a string for one that is empty or no word.
    fn name(&mut self) -> Result<String> {
        if matches!(self.peek(), Some(Token::Text(_))) { self.text() } else { self.word() }
    }

    fn integer(&mut self) -> Result<i64> {
        match self.peek().cloned() {
            Some(Token::Number(number)) => {
                self.at += 1;
                number.parse().map_err(|_| format!("`{number}` is not an integer"))
            }
            _ => self.wrong("an integer"),
        }
    }

    /// What `item` reads, separated by commas, up to a sign, which is taken as well.
    fn list<T>(&mut self, end: &str, item: &mut dyn FnMut(&mut Reader) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![];
        while !self.eat(end) {
            if !items.is_empty() {
                self.sign(",")?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// `<key: value, ...>`.
    fn fields(&mut self, field: &mut dyn FnMut(&mut Reader, &str) -> Result<()>) -> Result<()> {
        self.sign("<")?;
        self.list(">", &mut |reader| {
            let key = reader.word()?;
            reader.sign(":")?;
            field(reader, &key)
        })
        .map(drop)
    }

    fn opsets(&mut self) -> Result<Vec<OperatorSetIdProto>> {
        self.sign("[")?;
        self.list("]", &mut |reader| {
            let domain = reader.text()?;
            reader.sign(":")?;
            Ok(build::opset(&domain, reader.integer()?))
        })
    }

    fn names(&mut self) -> Result<Vec<String>> {
        self.sign("(")?;
        self.list(")", &mut Reader::name)
    }

    fn function(&mut self) -> Result<FunctionProto> {
        let mut function = FunctionProto::default();
        self.fields(&mut |reader, key| {
            match key {
                "domain" => function.domain = Some(reader.text()?),
                "overload" => function.overload = Some(reader.text()?),
                "opset_import" => function.opset_import = reader.opsets()?,
                _ => return Err(format!("a function has no `{key}`")),
            }
            Ok(())
        })?;
        function.name = Some(self.word()?);
        if self.eat("<") {
            function.attribute = self.list(">", &mut Reader::word)?;
        }
        function.input = self.names()?;
        self.sign("=>")?;
        function.output = self.names()?;
        function.node = self.nodes()?;
        Ok(function)
    }

    fn graph(&mut self) -> Result<GraphProto> {
        let mut graph = GraphProto { name: Some(self.name()?), ..GraphProto::default() };
        self.sign("(")?;
        graph.input = self.list(")", &mut Reader::typed_value)?;
        self.sign("=>")?;
        self.sign("(")?;
        graph.output = self.list(")", &mut Reader::typed_value)?;
        if self.eat("<") {
            graph.initializer = self.list(">", &mut |reader| {
                let (ty, dims) = reader.tensor_type()?;
                let name = reader.name()?;
                reader.sign("=")?;
                reader.tensor(&name, ty, &dims.ok_or(format!("`{name}` has no dims"))?)
            })?;
        }
        graph.node = self.nodes()?;
        Ok(graph)
    }

    /// `float[n, 4]`, `float[]`, or `float` for one of any rank.
    fn tensor_type(&mut self) -> Result<(DataType, Option<Vec<String>>)> {
        let name = self.word()?;
        let ty = TYPES.iter().find(|row| row.0 == name).ok_or(format!("`{name}` is not a type"))?.1;
        if !self.eat("[") {
            return Ok((ty, None));
        }
        let dim = &mut |reader: &mut Reader| match reader.peek().cloned() {
            Some(Token::Number(text) | Token::Word(text)) => {
                reader.at += 1;
                Ok(text)
            }
            Some(Token::Sign(sign)) if sign == "?" => {
                reader.at += 1;
                Ok(sign)
            }
            _ => reader.wrong("a dim"),
        };
        Ok((ty, Some(self.list("]", dim)?)))
    }

    /// A value with its type, or of a type that is left to inference.
    fn typed_value(&mut self) -> Result<ValueInfoProto> {
        let follows = self.tokens.get(self.at + 1);
        if matches!(follows, Some(Token::Sign(sign)) if sign == "," || sign == ")") {
            return Ok(untyped(&self.name()?));
        }
        let (ty, dims) = self.tensor_type()?;
        let name = self.name()?;
        Ok(match dims {
            Some(dims) => value(&name, ty as i32, &dims),
            None => {
                let tensor = type_proto::Tensor { elem_type: Some(ty as i32), shape: None };
                typed(&name, type_proto::Value::TensorType(tensor))
            }
        })
    }

    fn tensor(&mut self, name: &str, ty: DataType, dims: &[String]) -> Result<TensorProto> {
        let dims: Option<Vec<i64>> = dims.iter().map(|dim| dim.parse().ok()).collect();
        let dims = dims.ok_or_else(|| format!("`{name}` has a dim that is not a number"))?;
        let count = dims.iter().product::<i64>();
        self.sign("{")?;
        let values = match self.eat("..") {
            true => {
                self.sign("}")?;
                drawn(name, ty, count)
            }
            false => self.list("}", &mut |reader| match reader.peek().cloned() {
                Some(Token::Number(text) | Token::Text(text) | Token::Word(text)) => {
                    reader.at += 1;
                    Ok(text)
                }
                _ => reader.wrong("an element"),
            })?,
        };
        if values.len() as i64 != count {
            return Err(format!("`{name}` has {} elements, must have {count}", values.len()));
        }
        let mut tensor = TensorProto {
            name: Some(name.into()),
            data_type: Some(ty as i32),
            dims,
            ..TensorProto::default()
        };
        for value in &values {
            let number = || value.parse::<f64>().map_err(|_| format!("`{value}` is not a number"));
            match ty {
                DataType::Float => tensor.float_data.push(number()? as f32),
                DataType::Double => tensor.double_data.push(number()?),
                DataType::Int64 => tensor.int64_data.push(number()? as i64),
                DataType::String => tensor.string_data.push(value.clone().into_bytes().into()),
                DataType::Float16 | DataType::Bfloat16 => {
                    return Err(format!("elements of `{name}` cannot be written"));
                }
                _ => tensor.int32_data.push(number()? as i32),
            }
        }
        Ok(tensor)
    }

    fn nodes(&mut self) -> Result<Vec<NodeProto>> {
        self.sign("{")?;
        let mut nodes = vec![];
        while !self.eat("}") {
            nodes.push(self.node()?);
        }
        Ok(nodes)
    }

    fn node(&mut self) -> Result<NodeProto> {
        let output = self.list("=", &mut Reader::name)?;
        let name = self.word()?;
        let (domain, op_type) = name.rsplit_once('.').unwrap_or(("", name.as_str()));
        let mut node = NodeProto {
            output,
            op_type: Some(op_type.into()),
            domain: (!domain.is_empty()).then(|| domain.into()),
            ..NodeProto::default()
        };
        if self.eat(":") {
            node.overload = Some(self.word()?);
        }
        if self.eat("<") {
            node.attribute = self.list(">", &mut Reader::attribute)?;
        }
        node.input = self.names()?;
        Ok(node)
    }

    fn attribute(&mut self) -> Result<AttributeProto> {
        let name = self.word()?;
        let declared = match self.eat(":") {
            true => Some(self.word()?),
            false => None,
        };
        let is_float = matches!(declared.as_deref(), Some("float" | "floats"));
        self.sign("=")?;
        if self.eat("@") {
            let kind = match declared.as_deref() {
                Some("float") => AttributeType::Float,
                Some("int") => AttributeType::Int,
                Some("ints") => AttributeType::Ints,
                _ => return Err(format!("the attribute `{name}` needs a type")),
            };
            let of = self.word()?;
            return Ok(AttributeProto { ref_attr_name: Some(of), ..attribute(&name, kind) });
        }
        let float = |text: &str| text.parse::<f32>().map_err(|_| format!("`{text}` is not a number"));
        Ok(match self.peek().cloned() {
            Some(Token::Text(text)) => {
                self.at += 1;
                let s = Some(text.into_bytes().into());
                AttributeProto { s, ..attribute(&name, AttributeType::String) }
            }
            Some(Token::Number(text)) if is_float || text.contains(['.', 'e']) => {
                self.at += 1;
                AttributeProto { f: Some(float(&text)?), ..attribute(&name, AttributeType::Float) }
            }
            Some(Token::Number(_)) => build::int(&name, self.integer()?),
            Some(Token::Sign(sign)) if sign == "[" => {
                self.at += 1;
                self.attribute_list(&name, is_float)?
            }
            Some(Token::Word(word)) if TYPES.iter().any(|row| row.0 == word) => {
                let (ty, dims) = self.tensor_type()?;
                let tensor = self.tensor(&name, ty, &dims.unwrap_or_default())?;
                AttributeProto { t: Some(Box::new(tensor)), ..attribute(&name, AttributeType::Tensor) }
            }
            Some(Token::Word(_)) => build::subgraph(&name, self.graph()?),
            _ => return self.wrong("the value of an attribute"),
        })
    }

    fn attribute_list(&mut self, name: &str, is_float: bool) -> Result<AttributeProto> {
        let items = self.list("]", &mut |reader| match reader.peek().cloned() {
            Some(token @ (Token::Number(_) | Token::Text(_))) => {
                reader.at += 1;
                Ok(token)
            }
            _ => reader.wrong("an element of an attribute"),
        })?;
        let is_float = is_float
            || items.iter().any(|item| matches!(item, Token::Number(text) if text.contains(['.', 'e'])));
        let is_text = matches!(items.first(), Some(Token::Text(_)));
        let kind = match (is_text, is_float) {
            (true, _) => AttributeType::Strings,
            (_, true) => AttributeType::Floats,
            _ => AttributeType::Ints,
        };
        let mut list = attribute(name, kind);
        for item in items {
            let (Token::Number(text) | Token::Text(text)) = item else { continue };
            let wrong = |_| format!("`{text}` is not a number");
            match kind {
                AttributeType::Strings => list.strings.push(text.into_bytes().into()),
                AttributeType::Floats => {
                    list.floats.push(text.parse().map_err(|_| format!("`{text}` is not a number"))?)
                }
                _ => list.ints.push(text.parse().map_err(wrong)?),
            }
        }
        Ok(list)
    }
}

/// Reproducible elements: floats in -0.5..0.5, integers in -8..8 or 0..16.
fn drawn(name: &str, ty: DataType, count: i64) -> Vec<String> {
    let mut state =
        name.bytes().fold(1u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 40
    };
    let element = |_| match ty {
        DataType::Float | DataType::Double => format!("{}", next() as f64 / (1u64 << 24) as f64 - 0.5),
        DataType::Uint8 | DataType::Uint16 => (next() % 16).to_string(),
        DataType::Bool => (next() % 2).to_string(),
        _ => (next() as i64 % 16 - 8).to_string(),
    };
    (0..count).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read() {
        let text = "<ir_version: 10, opset_import: [\"\" : 20, \"local\" : 1]>
            m (float[n, 4] x, int64 k) => (y, \"\") <float[2] b = {1, -2.5}, int8[3] w = {..}> {
              # A comment.
              p, q = local.Twice:small <by: float = 2, axes = [0, -1], mode = \"linear\", s = [1, 2.5]> (x, \"\")
              y = If <then_branch = t () => (float[] z) { z = Constant <value = float[1] {3}> () }> (p)
            }
            <domain: \"local\", opset_import: [\"\" : 20], overload: \"small\">
            Twice <by> (x) => (y, z) { y = LeakyRelu <alpha: float = @by> (x) z = Neg (y) }";
        let model = parse(text).unwrap();
        let graph = model.graph.as_ref().unwrap();
        assert_eq!(graph.input.len(), 2);
        assert_eq!(graph.initializer[0].float_data, [1.0, -2.5]);
        assert_eq!(graph.initializer[1].int32_data.len(), 3);
        let node = &graph.node[0];
        assert_eq!((node.domain(), node.op_type(), node.overload()), ("local", "Twice", "small"));
        assert_eq!((node.attribute[0].f(), &node.attribute[1].ints[..]), (2.0, &[0, -1][..]));
        assert_eq!(node.attribute[3].floats, [1.0, 2.5]);
        assert_eq!(node.input, ["x", ""]);
        assert_eq!(graph.node[1].attribute[0].g.as_ref().unwrap().node[0].op_type(), "Constant");
        assert_eq!(model.functions[0].node[0].attribute[0].ref_attr_name(), "by");
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let refused = |body: &str, reason: &str| {
            let message = parse(&format!("<ir_version: 10> {body}")).unwrap_err();
            assert!(message.contains(reason), "{body:?} gave {message:?}");
        };
        refused("m () => () { y = ", "a name is expected");
        refused("m () => () <float[2] w = {1}> {}", "1 elements, must have 2");
        refused("m () => () <float[n] w = {1}> {}", "a dim that is not a number");
        refused("m (quaternion[2] x) => () {}", "`quaternion` is not a type");
        refused("m () => () { y = Add <axis = @by> () }", "needs a type");
        refused("m () => () { y = Add <mode = \"x> () }", "a string without an end");
    }
}
