//! Shapes that the user gives to inputs, where the model declares none or a wrong one.

use std::fmt;
use std::str::FromStr;

use onnxc_proto::tensor_shape_proto::Dimension;
use onnxc_proto::tensor_shape_proto::dimension::Value as DimProto;

use onnxc_ir::error::{Error, Kind, Result, Stage};

/// The shape that the user gives to an input: `INPUT=DIM,DIM,...`. It holds in place of the declared one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputShape {
    pub input: String,
    pub dims: Vec<InputDim>,
}

/// A dim of such a shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputDim {
    Size(i64),
    /// A symbol: the same as that of this name in the model, if it has one.
    Symbol(String),
    /// `?`, a symbol without a name.
    Unknown,
}

impl InputShape {
    /// A shape of `rank` dims, about which nothing else is said.
    pub fn of_rank(input: &str, rank: usize) -> InputShape {
        InputShape { input: input.to_string(), dims: vec![InputDim::Unknown; rank] }
    }

    /// The shape as a model declares it.
    pub(super) fn to_proto(&self) -> Vec<Dimension> {
        let dimension = |dim: &InputDim| Dimension {
            value: match dim {
                InputDim::Size(size) => Some(DimProto::DimValue(*size)),
                InputDim::Symbol(name) => Some(DimProto::DimParam(name.clone())),
                InputDim::Unknown => None,
            },
            ..Dimension::default()
        };
        self.dims.iter().map(dimension).collect()
    }
}

impl FromStr for InputDim {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<InputDim, ()> {
        let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        match text {
            "?" => Ok(InputDim::Unknown),
            _ if is_number => text.parse().ok().filter(|&size: &i64| size >= 0).map(InputDim::Size).ok_or(()),
            _ if text.is_empty() || text.contains(|c: char| c.is_whitespace() || "[]()=?".contains(c)) => {
                Err(())
            }
            _ => Ok(InputDim::Symbol(text.to_string())),
        }
    }
}

impl FromStr for InputShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<InputShape> {
        let parsed = text.rsplit_once('=').and_then(|(input, dims)| {
            let dims = dims.trim();
            let inner = dims.strip_prefix('[').and_then(|dims| dims.strip_suffix(']'));
            let dims = match inner.unwrap_or(dims).trim() {
                "" => vec![],
                dims => dims.split(',').map(|dim| dim.trim().parse().ok()).collect::<Option<_>>()?,
            };
            Some(InputShape { input: input.trim().to_string(), dims })
        });
        parsed.filter(|shape| !shape.input.is_empty()).ok_or_else(|| {
            let message = format!(
                "`{text}` must be INPUT=DIM,DIM,... with a size of zero or more, the name of a symbol or `?` for each dim, \
                 such as x=N,3,224,224; a scalar is x=[]"
            );
            Error::new(Stage::Import, Kind::Usage, message)
        })
    }
}

impl fmt::Display for InputShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |dim: &InputDim| match dim {
            InputDim::Size(size) => size.to_string(),
            InputDim::Symbol(name) => name.clone(),
            InputDim::Unknown => "?".to_string(),
        };
        let dims: Vec<String> = self.dims.iter().map(dim).collect();
        match dims.is_empty() {
            true => write!(f, "{}=[]", self.input),
            false => write!(f, "{}={}", self.input, dims.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_lists_of_sizes_symbols_and_question_marks() {
        let parsed = |text: &str| text.parse::<InputShape>().ok().map(|shape| shape.to_string());
        for (text, wanted) in [
            ("x=1,3,224,224", "x=1,3,224,224"),
            (" x = [ N , 3, H,? ] ", "x=N,3,H,?"),
            ("a=b=0", "a=b=0"),
            ("x=", "x=[]"),
            ("x=[]", "x=[]"),
            ("x:0=batch_size", "x:0=batch_size"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(wanted), "{text}");
        }
        for text in
            ["x", "=1", "x=1,,2", "x=1,", "x=-1", "x=2.5", "x=1 2", "x=[1", "x=1]", "x=9223372036854775808"]
        {
            let error = text.parse::<InputShape>().unwrap_err();
            assert_eq!(error.kind, Kind::Usage, "{text}");
            assert!(error.message.contains(&format!("`{text}`")), "{error}");
        }
    }
}
