//! Inputs and outputs as parts of ONNX values.

/// What an input or output of the graph is of an ONNX value: the whole of a tensor, or a column of a value of another kind.
/// The numbers are those of `onnxc_part` in the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Whole,
    Shapes,
    Data,
    Present,
    Element,
    Keys,
    Values,
    Indices,
    /// The block of all states: no value of its own.
    State,
}

impl Part {
    /// All, by the number that the C ABI gives them.
    pub const ALL: [Part; 9] = [
        Part::Whole,
        Part::Shapes,
        Part::Data,
        Part::Present,
        Part::Element,
        Part::Keys,
        Part::Values,
        Part::Indices,
        Part::State,
    ];

    pub fn number(self) -> i32 {
        Part::ALL.iter().position(|&part| part == self).map_or(0, |at| at as i32)
    }

    pub fn name(self) -> &'static str {
        match self {
            Part::Whole => "whole",
            Part::Shapes => "shapes",
            Part::Data => "data",
            Part::Present => "present",
            Part::Element => "element",
            Part::Keys => "keys",
            Part::Values => "values",
            Part::Indices => "indices",
            Part::State => "state",
        }
    }
}
