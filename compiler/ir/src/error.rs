//! The one error type: where in the pipeline, at which node, what is wrong with which values.

use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// Stage of the pipeline that found the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Stage {
    Decode,
    Import,
    Infer,
    Pass,
    Schedule,
    Loops,
    Codegen,
    Emit,
    Run,
    Io,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Decode => "decode",
            Stage::Import => "import",
            Stage::Infer => "infer",
            Stage::Pass => "pass",
            Stage::Schedule => "schedule",
            Stage::Loops => "loops",
            Stage::Codegen => "codegen",
            Stage::Emit => "emit",
            Stage::Run => "run",
            Stage::Io => "io",
        }
    }
}

/// What sort of problem it is; decides what a user can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Kind {
    /// The model breaks the ONNX specification.
    Malformed,
    /// The model is right, and onnxc does not reach that part of ONNX yet.
    Unsupported,
    /// A flag, an input file or a size given by the user does not fit the model.
    Usage,
    /// An untrusted size exceeds the budget.
    Budget,
    /// The operating system refused.
    Io,
    /// A bug in onnxc: a verifier found what should not be.
    Internal,
}

/// The ONNX node a problem belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NodeRef {
    pub name: String,
    pub domain: String,
    pub op_type: String,
    /// Version of the operator: the greatest `since_version` not above the model's opset, where known.
    pub version: Option<u32>,
    /// Position in the node list of its graph or function.
    pub index: usize,
    /// Types of the inputs, such as `x: f32[1, 3, s0]`.
    pub inputs: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Error {
    /// Where in the pipeline it was found.
    pub stage: Stage,
    /// Who can mend it.
    pub kind: Kind,
    /// The id of its kind in the table of rules ([`crate::rules`]), for what is a kind of its own.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rule: Option<&'static str>,
    /// The node it belongs to, if it belongs to one.
    pub node: Option<Box<NodeRef>>,
    /// What is wrong, with names and values, and what to do.
    pub message: String,
}

/// Why a build without a feature of the package cannot do something, and how to get one that can.
pub fn without(what: &str, feature: &str) -> String {
    format!(
        "this onnxc was built without the {what} (feature `{feature}`); `cargo install --path compiler --features {feature}` in its \
         repository builds one with it, and `make install` one with everything"
    )
}

impl Error {
    pub fn new(stage: Stage, kind: Kind, message: impl Into<String>) -> Error {
        Error { stage, kind, rule: None, node: None, message: message.into() }
    }

    pub fn malformed(stage: Stage, message: impl Into<String>) -> Error {
        Error::new(stage, Kind::Malformed, message)
    }

    pub fn unsupported(stage: Stage, message: impl Into<String>) -> Error {
        Error::new(stage, Kind::Unsupported, message)
    }

    pub fn internal(stage: Stage, message: impl Into<String>) -> Error {
        Error::new(stage, Kind::Internal, message)
    }

    /// The same problem, with the message that `reword` makes of its own.
    pub fn reworded(mut self, reword: impl FnOnce(&str) -> String) -> Error {
        self.message = reword(&self.message);
        self
    }

    /// What stands for further errors of the same kind, each of a node of its own.
    pub fn further(mut self, count: u64, kind: &str) -> Error {
        self.message = format!("and {count} more of this kind: {kind}");
        self.node = None;
        self
    }

    /// The error, as one of a kind of the table of rules.
    pub fn of_kind(mut self, rule: &'static str) -> Error {
        self.rule = Some(rule);
        self
    }

    /// What it has in common with others of its kind: its message without the names and the numbers of one model.
    pub fn reason(&self) -> String {
        let prefix = if self.kind == Kind::Unsupported { "not supported yet: " } else { "" };
        let mut text = prefix.to_string();
        let mut rest = self.message.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '`' => {
                    text += "`_`";
                    while rest.next_if(|&c| c != '`').is_some() {}
                    rest.next();
                }
                '[' => {
                    text += "[_]";
                    let mut depth = 1;
                    while depth > 0 {
                        match rest.next() {
                            Some('[') => depth += 1,
                            Some(']') => depth -= 1,
                            Some(_) => {}
                            None => depth = 0,
                        }
                    }
                }
                // A digit inside of a word, as of `f32`, is part of it.
                '0'..='9' if !text.ends_with(char::is_alphanumeric) => {
                    text.push('N');
                    while rest.next_if(char::is_ascii_digit).is_some() {}
                }
                c => text.push(c),
            }
        }
        text
    }

    /// The error, said of `node` unless it names one already.
    pub fn at(mut self, node: NodeRef) -> Error {
        self.node.get_or_insert_with(|| Box::new(node));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = &self.node {
            let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
            write!(f, "node {} `{}` ({domain}.{}", node.index, node.name, node.op_type)?;
            if let Some(version) = node.version {
                write!(f, " since {version}")?;
            }
            write!(f, ")")?;
            if !node.inputs.is_empty() {
                write!(f, " with {}", node.inputs.join(", "))?;
            }
            write!(f, ": ")?;
        }
        match self.kind {
            Kind::Unsupported => write!(f, "not supported yet: ")?,
            Kind::Internal => write!(f, "internal error in {}: ", self.stage.name())?,
            _ => {}
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_without_names_and_numbers() {
        let error = Error::unsupported(Stage::Import, "input 0 (X) is f32[2, [3]]; `a` [b] takes 17 of i64");
        assert_eq!(error.reason(), "not supported yet: input N (X) is f32[_]; `_` [_] takes N of i64");
        assert_eq!(Error::malformed(Stage::Import, "`open").reason(), "`_`");
        assert_eq!(Error::malformed(Stage::Import, "[open").reason(), "[_]");
    }
}
