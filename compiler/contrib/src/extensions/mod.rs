//! Domain `ai.onnx.contrib`: tokenizers and other operators of onnxruntime-extensions. Each tokenizer is a function of the runtime, whose
//! tables are a constant of the graph.

pub mod audio;
mod base64;
pub mod bert;
pub mod bpe;
pub mod json;
pub mod patterns;
pub mod sentencepiece;
pub mod strings;

use onnxc_ir::graph::call::Function;
use onnxc_ir::graph::{Tensor as Data, TensorType};
use onnxc_ops::row::*;
use onnxc_runtime_support::strings::tokenizers::result;

pub const DOMAIN: &str = "ai.onnx.contrib";

const STRING: &str = "tensor(string)";
const I64: &str = "tensor(int64)";

/// A row of this domain.
const fn extension(name: &'static str, lower: onnxc_ops::LowerFn) -> OpDef {
    op(name, 1, lower).domain(DOMAIN)
}

/// An attribute that is set where it is 1.
fn flag(cx: &NodeCx<'_, '_>, name: &str) -> Result<bool> {
    Ok(cx.int(name)? == 1)
}

/// The constant that a function of the runtime reads, and its bytes.
fn tables(cx: &mut NodeCx<'_, '_>, tables: std::result::Result<Vec<u8>, usize>) -> Result<(ValueId, Dim)> {
    match tables {
        Ok(tables) => {
            let bytes = tables.len();
            Ok((cx.b.constant(Data::from_slice(&[bytes], &tables)), Dim::from(bytes)))
        }
        Err(bytes) => {
            unsupported(format!("a vocabulary whose tables take {bytes} bytes; they may have 4 GiB"))
        }
    }
}

/// The entries of a vocabulary in JSON: an object with a number for each text.
fn json_vocabulary(attribute: &str, text: &str) -> Result<Vec<(String, u32)>> {
    let wrong = |what: String| Error::malformed(Stage::Infer, format!("attribute {attribute}: {what}"));
    let tree: serde_json::Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let serde_json::Value::Object(entries) = tree else {
        return Err(wrong("it is not a JSON object of texts and their numbers".to_string()));
    };
    let entries = vocabulary_of(attribute, &entries)?;
    Ok(entries.into_iter().map(|(text, number)| (text.to_owned(), number)).collect())
}

/// The entries of such an object.
fn vocabulary_of<'v>(
    attribute: &str,
    entries: &'v serde_json::Map<String, serde_json::Value>,
) -> Result<Vec<(&'v str, u32)>> {
    let number = |(text, number): (&'v String, &serde_json::Value)| {
        let number = number.as_i64().and_then(|number| i32::try_from(number).ok());
        match number.and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Ok((text.as_str(), number)),
            None => {
                let most = i32::MAX;
                malformed(format!(
                    "attribute {attribute}: the number of `{text}` is not one from 0 to {most}"
                ))
            }
        }
    };
    entries.iter().map(number).collect()
}

/// Requires that the number of texts lies in this range.
fn number_of_texts(
    cx: &mut NodeCx<'_, '_>,
    texts: ValueId,
    counts: std::ops::RangeInclusive<i64>,
) -> Result<()> {
    let count = cx.b.ty(texts).elements();
    let (least, most) = counts.into_inner();
    let wanted = if least == most { least.to_string() } else { format!("{least} or {most}") };
    let text = format!("{} has {V} texts, not {wanted}", cx.operand_name(0));
    for (few, many) in [(Dim::from(least), count.clone()), (count.clone(), Dim::from(most))] {
        cx.b.require(Requirement::at_most(few, many).stated(text.clone(), &[&count]))?;
    }
    Ok(())
}

/// What a tokenizer finds in texts.
struct Tokens {
    function: &'static Function,
    texts: ValueId,
    tables: (ValueId, Dim),
    /// What a call asks for beside them, if the function takes that.
    options: Option<ValueId>,
    /// How many texts there are.
    count: Dim,
    /// How many tokens each has.
    counts: ValueId,
}

impl Tokens {
    fn of(
        cx: &mut NodeCx<'_, '_>,
        function: &'static Function,
        texts: ValueId,
        tables: (ValueId, Dim),
    ) -> Result<Tokens> {
        Tokens::with(cx, function, texts, tables, None)
    }

    fn with(
        cx: &mut NodeCx<'_, '_>,
        function: &'static Function,
        texts: ValueId,
        tables: (ValueId, Dim),
        options: Option<ValueId>,
    ) -> Result<Tokens> {
        let count = cx.b.ty(texts).elements();
        let texts = cx.b.reshape(texts, vec![count.clone()])?;
        let mut tokens = Tokens { function, texts, tables, options, count: count.clone(), counts: texts };
        tokens.counts = tokens.result(cx, result::COUNTS, vec![count], DType::I64)?;
        Ok(tokens)
    }

    fn result(&self, cx: &mut NodeCx<'_, '_>, what: i64, shape: Vec<Dim>, dtype: DType) -> Result<ValueId> {
        let (tables, bytes) = self.tables.clone();
        let ty = TensorType::new(dtype, shape);
        let numbers = vec![self.count.clone(), bytes, Dim::from(what), ty.elements()];
        let operands: Vec<ValueId> = [self.texts, tables].into_iter().chain(self.options).collect();
        cx.b.call(self.function, &operands, numbers, ty)
    }

    /// How many tokens all texts have.
    fn total(&self, cx: &mut NodeCx<'_, '_>) -> Result<Dim> {
        let total = cx.b.reduce(ReduceFn::Sum, self.counts, &[0])?;
        Ok(cx.b.sizes(total, &|_| None)?.remove(0))
    }
}
