//! Functions of the runtime that a graph calls: work other than loops over numbers, such as texts and encoded images.
//!
//! Inside a graph a string is a number, its place in the table of the run: equal texts have equal numbers, so that what
//! moves, chooses or compares strings are operations on i64. `borders` brings this about. [`FUNCTIONS`] has all functions; a
//! function is one row there, and one function of `runtime-support`.

use std::ffi::c_void;

#[cfg(any(test, feature = "images"))]
use onnxc_runtime_images as images;
use onnxc_runtime_support::strings::{self, tokenizers};

use crate::error::{Error, Result, Stage};
use crate::graph::{DType, Dim, TensorType};

/// Types of parameters and results of functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    I64,
    I32,
    /// Truth values are 0 and 1; elements of bool are read as they are.
    I8,
    Ptr,
}

impl Type {
    pub const ALL: [(Type, &str); 4] =
        [(Type::I64, "i64"), (Type::I32, "i32"), (Type::I8, "i8"), (Type::Ptr, "ptr")];

    pub fn bytes(self) -> usize {
        match self {
            Type::I64 | Type::Ptr => 8,
            Type::I32 => 4,
            Type::I8 => 1,
        }
    }
}

/// A function outside of the object: from the C library, or from a runtime that is linked where a model calls it. Integer
/// parameters of 64 bits are sizes and checked like sizes.
#[derive(PartialEq, Debug)]
pub struct Extern {
    pub name: &'static str,
    pub params: &'static [Type],
    pub result: Option<Type>,
}

/// A function of the runtime. It takes the table of strings, which is the state of the run, the addresses of its inputs and of its result,
/// then numbers; it gives a status of the C ABI.
#[derive(Debug)]
pub struct Function {
    /// In the text form.
    pub name: &'static str,
    /// Element types of the inputs and of the result; `None` where a call may choose.
    pub inputs: &'static [Option<DType>],
    pub result: Option<DType>,
    /// How many numbers follow the addresses.
    pub numbers: usize,
    pub subject: Subject,
    /// The symbol, and its parameters.
    pub symbol: Extern,
    /// Where it lies in this process; null where that has no decoders.
    pub address: fn() -> *const c_void,
}

/// What a function works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Texts,
    Image,
}

impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        self.name == other.name
    }
}

/// [`Op::Call`](super::Op::Call): a function, the numbers that it is called with, and the type of its result.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    pub function: &'static Function,
    pub numbers: Vec<Dim>,
    pub result: TensorType,
}

impl Call {
    /// Fails where operands, numbers or the result are not those of the function.
    pub fn check(&self, inputs: &[&TensorType]) -> Result<()> {
        let Function { name, inputs: wanted, result, numbers, .. } = self.function;
        let is = |ty: &TensorType, dtype: &Option<DType>| match dtype {
            Some(DType::Str) => matches!(ty.dtype, DType::Str | DType::I64),
            Some(dtype) => *dtype == ty.dtype,
            None => true,
        };
        let fits = inputs.len() == wanted.len()
            && inputs.iter().zip(*wanted).all(|(ty, dtype)| is(ty, dtype))
            && is(&self.result, result)
            && self.numbers.len() == *numbers;
        match fits {
            true => Ok(()),
            false => {
                let (result, count) = (&self.result, self.numbers.len());
                let message = format!("a call of {name} with {inputs:?} and {count} numbers for {result}");
                Err(Error::internal(Stage::Infer, message))
            }
        }
    }
}

const P: Type = Type::Ptr;
const N: Type = Type::I64;
/// Strings, or their numbers already.
const STRING: Option<DType> = Some(DType::Str);
const COUNT: Option<DType> = Some(DType::I64);
const BYTES: Option<DType> = Some(DType::U8);

/// Compilers without decoders know that there are some: the models that they make call those of the runtime library.
#[cfg(not(any(test, feature = "images")))]
#[expect(non_upper_case_globals, reason = "they have the names of the functions")]
mod images {
    use std::ffi::c_void;

    pub(super) const onnxc_images_size: *const c_void = std::ptr::null();
    pub(super) const onnxc_images_decode: *const c_void = std::ptr::null();
}

macro_rules! functions {
    ($($library:ident $subject:ident {
        $($constant:ident $name:literal $function:ident $inputs:tt -> $result:expr, $params:tt;)*
    })*) => {
        $($(pub static $constant: Function = Function {
            name: $name,
            inputs: &$inputs,
            result: $result,
            numbers: numbers(&$params),
            subject: Subject::$subject,
            symbol: Extern { name: stringify!($function), params: &$params, result: Some(Type::I32) },
            address: || $library::$function as *const c_void,
        };)*)*

        /// Every function that a graph may call.
        pub static FUNCTIONS: &[&Function] = &[$($(&$constant),*),*];
    };
}

/// How many of the parameters are numbers.
const fn numbers(params: &[Type]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < params.len() {
        count += matches!(params[at], Type::I64) as usize;
        at += 1;
    }
    count
}

functions! {
    strings Texts {
        // Texts of the caller, 16 bytes each, to their numbers: `n`. A size `!k` without an address is constant number `k`.
        INTERN "intern" onnxc_strings_intern [BYTES] -> STRING, [P, P, P, N];
        // Texts of a function of the user's, 16 bytes each, to their numbers: `n`. They are copied; what they lie in is the second operand.
        INTERN_COPY "intern_copy" onnxc_strings_intern_copy [BYTES, BYTES] -> STRING, [P, P, P, P, N];
        // Numbers as they are: `n`. The second operand keeps the memory that their texts were copied from until here.
        KEEP "keep" onnxc_strings_keep [STRING, BYTES] -> STRING, [P, P, P, P, N];
        // Bytes of all texts: `n`.
        TEXT_BYTES "text_bytes" onnxc_strings_text_bytes [STRING] -> COUNT, [P, P, P, N];
        // Texts for the caller: `n`, and the bytes of the result.
        SPELL "spell" onnxc_strings_spell [STRING] -> BYTES, [P, P, P, N, N];
        // Two texts joined: `n`.
        CONCAT "concat" onnxc_strings_concat [STRING, STRING] -> STRING, [P, P, P, P, N];
        // Rows of texts joined, with a text between them: `n`, the length of a row.
        JOIN "join" onnxc_strings_join [STRING, STRING] -> STRING, [P, P, P, P, N, N];
        // In other letters: `n`, 1 for small ones and 2 for capitals.
        CHANGE_CASE "change_case" onnxc_strings_change_case [STRING] -> STRING, [P, P, P, N, N];
        // How many parts a text has between delimiters: `n`, and the most splits.
        SPLIT_COUNTS "split_counts" onnxc_strings_split_counts [STRING, STRING] -> COUNT, [P, P, P, P, N, N];
        // These parts, rows filled up with the empty text: `n`, the most splits, the length of a row.
        SPLIT "split" onnxc_strings_split [STRING, STRING] -> STRING, [P, P, P, P, N, N, N];
        // Whether an automaton of `ops/strings.rs` accepts a text: `n`, bytes of the automaton.
        MATCHES "matches" onnxc_strings_regex [STRING, BYTES] -> Some(DType::Bool), [P, P, P, P, N, N];
        // Texts with matches replaced: `n`, bytes of the automaton, bytes of what they become, and whether that is all of them.
        REPLACE "replace" onnxc_strings_replace [STRING, BYTES, BYTES] -> STRING, [P, P, P, P, P, N, N, N, N];
        // How many tokens a text has, by an automaton: `n`, bytes of the automaton, the fewest characters of one, and whether they lie
        // between what it accepts.
        TOKEN_COUNTS "token_counts" onnxc_strings_token_counts [STRING, BYTES] -> COUNT, [P, P, P, P, N, N, N, N];
        // These tokens, rows filled up with a text: the same, and the length of a row.
        TOKENS "tokens" onnxc_strings_tokens [STRING, BYTES, STRING] -> STRING, [P, P, P, P, P, N, N, N, N, N];
        // The number that a text spells: `n`, and the ONNX number of the type of the result.
        PARSE "parse" onnxc_strings_parse [STRING] -> None, [P, P, P, N, N];
        // A number as text: `n`, and the ONNX number of the operand's type.
        FORMAT "format" onnxc_strings_format [None] -> STRING, [P, P, P, N, N];
        // The rank of each text among all different ones, in the order of their bytes: `n`.
        ORDER "order" onnxc_strings_order [STRING] -> COUNT, [P, P, P, N];
        // Where among keys a text is the last time, or -1: number of keys, `n`.
        FIND "find" onnxc_strings_find [STRING, STRING] -> COUNT, [P, P, P, P, N, N];
    }
    tokenizers Texts {
        // Tokens of a tokenizer of BERT's kind, by its tables: `n`, bytes of the tables, what of `tokenizers::result` the result is,
        // and how many elements that has.
        BERT "bert" onnxc_strings_bert [STRING, BYTES] -> STRING, [P, P, P, P, N, N, N, N];
        // The same of GPT-2's kind.
        BPE "bpe" onnxc_strings_bpe [STRING, BYTES] -> STRING, [P, P, P, P, N, N, N, N];
        // Texts of spans of such tokens: spans, tokens, bytes of the tables.
        BPE_TEXTS "bpe_texts" onnxc_strings_bpe_texts [COUNT, COUNT, BYTES] -> STRING, [P, P, P, P, P, N, N, N];
        // Parts of texts between delimiters, in the same way.
        DELIMITED "delimited" onnxc_strings_delimited [STRING, BYTES] -> STRING, [P, P, P, P, N, N, N, N];
        // The same of a unigram model.
        UNIGRAM "unigram" onnxc_strings_unigram [STRING, BYTES] -> STRING, [P, P, P, P, N, N, N, N];
        // The same of a model of sentencepiece, with the options of a call.
        SENTENCEPIECE "sentencepiece" onnxc_strings_sentencepiece [STRING, BYTES, BYTES] -> STRING, [P, P, P, P, P, N, N, N, N];
        // The text of such tokens: tokens, tables, whether they are fairseq's; `n`, bytes of the tables.
        SENTENCEPIECE_TEXT "sentencepiece_text" onnxc_strings_sentencepiece_text [COUNT, BYTES, BYTES] -> STRING, [P, P, P, P, P, N, N];
        BERT_TEXTS "bert_texts" onnxc_strings_bert_texts [COUNT, COUNT, BYTES] -> STRING, [P, P, P, P, P, N, N, N];
    }
    images Image {
        // The sizes of an image, `[height, width]`: bytes of the stream, and the pixels' format.
        IMAGE_SIZE "image_size" onnxc_images_size [BYTES] -> COUNT, [P, P, P, N, N];
        // Its pixels: the same, height, width.
        DECODE_IMAGE "decode_image" onnxc_images_decode [BYTES] -> BYTES, [P, P, P, N, N, N, N];
    }
}

/// What a run says of an image that is refused.
pub const LARGE_IMAGE: &str =
    "the image needs more memory than there is, or more memory or work than a run may take for one";

/// The function with a name in the text form.
pub fn named(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().copied().find(|function| function.name == name)
}
