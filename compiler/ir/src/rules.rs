//! The table of what a model may break, and of what is left aside: each kind with the clause of the specification, how grave
//! it is, and one line about it. `book/src/strictness.md` is this table; a test compares them.
//!
//! How grave a kind is follows the specification and the engines beside: what both onnx.checker and ONNX Runtime refuse, or what
//! has no one meaning, is an error; what another engine runs is a warning.

use std::fmt::Write as _;

/// What a kind of diagnostic does to a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The model is refused.
    Error,
    /// The model is compiled; `--strict` refuses it.
    Warning,
    /// The model is compiled: what the note is about has no influence on the results.
    Note,
    /// Nothing is said: files break the rule without harm.
    Unchecked,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
            Severity::Unchecked => "not checked",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Entry {
    pub rule: Rule,
    /// The name in JSON and in the book.
    pub id: &'static str,
    pub severity: Severity,
    /// Message and field of the specification.
    pub clause: &'static str,
    /// What is broken, and what is done about it.
    pub text: &'static str,
}

macro_rules! rules {
    ($($rule:ident $id:literal $severity:ident $clause:literal $text:literal)*) => {
        /// A kind of diagnostic.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rule {
            $($rule),*
        }

        /// All kinds, in the order of [`Rule`].
        pub const RULES: &[Entry] = &[
            $(Entry { rule: Rule::$rule, id: $id, severity: Severity::$severity, clause: $clause, text: $text }),*
        ];
    };
}

rules! {
    IrMissing "ir_version_missing" Error "Model.ir_version"
        "The model does not say its IR version."
    IrZero "ir_version_zero" Warning "Model.ir_version"
        "The IR version is 0 or negative; version 1 is assumed."
    OpsetBeforeIr3 "opset_before_ir_3" Warning "Model.opset_import"
        "A model of an IR version before 3, which has no operator sets, imports them; they are used."
    DomainTwice "domain_twice" Warning "Model.opset_import"
        "Two versions of one domain are imported; the highest is taken, as the specification says."
    DomainNotImported "domain_not_imported" Warning "Model.opset_import"
        "Operators of a known domain are used and no version of it is imported; the newest known one is taken, as by ONNX Runtime."
    FutureOpset "future_opset" Note "Model.opset_import"
        "An imported version is newer than the newest known one; operators have their meaning in the newest known one."
    ModelDomain "model_domain" Unchecked "Model.domain"
        "The model names no domain of its own. Hardly any file does, and nothing depends on it."
    MetadataKeys "metadata_keys" Warning "Model, Graph and Node.metadata_props"
        "A key occurs twice; both entries are kept."
    GraphName "graph_name" Warning "Graph.name, Function.name"
        "A graph, a body or a function has no name."
    OutputType "output_type" Warning "Graph.output"
        "An output of the model has no declared type, or no declared shape; the inferred one is used."
    DeclaredType "declared_type" Warning "ValueInfo.type"
        "A declared type differs from the inferred one, which is used."
    DeclaredShape "declared_shape" Warning "ValueInfo.type"
        "A declared shape differs from the inferred one, which is used; if nothing else gives the shape, the run checks it."
    NegativeDim "negative_dim" Warning "Dimension.dim_value"
        "A declared size is negative; it counts as unknown."
    ValueInfoTwice "value_info_twice" Warning "Graph.value_info"
        "Two entries describe one value; the last one is read."
    SymbolNames "symbol_names" Unchecked "Dimension.dim_param, names"
        "A name is not a C identifier, or two make the same one. Nearly all exporters write such names; the header numbers them."
    Ir3Initializer "ir_3_initializer" Warning "Graph.initializer"
        "An initializer is not among the inputs, as IR versions before 4 require; it is a constant anyway."
    InitializerTwice "initializer_twice" Warning "Graph.initializer"
        "Two initializers of one type have one name; the last one counts, sparse ones after dense ones, as in ONNX Runtime."
    ConstantTwice "constant_twice" Warning "Graph.node"
        "Constant nodes define one name twice, or that of an input or an initializer; the last Constant counts, as in ONNX Runtime."
    OutputTwice "output_twice" Warning "Graph.output"
        "An output is listed twice; it is given once."
    DefaultIsConstant "default_is_constant" Note "Graph.initializer"
        "Initializers that are also inputs are constants, as most exporters intend; `--overridable-defaults` keeps them as inputs."
    InputLength "input_length" Note "Graph.input"
        "The length of an input is found: one alone gives the results the declared shapes."
    InputShape "input_shape" Note "Graph.input"
        "An option gives an input another shape than the model declares."
    NodeOrder "node_order" Warning "Graph.node"
        "A node comes before one whose result it reads; the nodes are sorted (a cycle is an error)."
    NodeName "node_name" Warning "Node.name"
        "Two nodes of one graph have one name."
    NodeOutputs "node_outputs" Error "Node.output"
        "A node has no outputs."
    ShadowedByNode "shadowed_by_node" Warning "Graph, names"
        "A node of a body defines a name that the graph around the body has defined before; the body sees its own."
    ShadowedName "shadowed_name" Warning "Graph, names"
        "An input or an initializer of a body has the name of a value of the graph around; the body sees its own."
    BodyOutput "body_output" Warning "Graph.output"
        "An output of a body is a value of the graph around; it is passed on."
    DeprecatedOperator "deprecated_operator" Warning "Operator.status"
        "An operator at a version that deprecates it; it is computed as by the version before."
    Operator "operator" Warning "Operator"
        "An operator that ONNX Runtime has in ai.onnx, but the imported version does not; it is computed as by ONNX Runtime."
    ElementType "element_type" Warning "Operator, type constraints"
        "An element type that the version of the operator does not have, but ONNX Runtime accepts."
    AttributeFields "attribute_fields" Error "Attribute"
        "An attribute has values in two fields."
    AttributeField "attribute_field" Error "Attribute.type"
        "The value of an attribute is in another field than its type says."
    AttributeType "attribute_type" Error "Attribute.type"
        "An attribute has a value and no type, in an IR version that has types of attributes (2 and later)."
    AttributeValue "attribute_value" Warning "Attribute"
        "An attribute of one number or text has no value, which stands for zero or the empty text."
    AttributeUnknown "attribute_unknown" Warning "Node.attribute"
        "No version of the operator has the attribute; it is not read."
    AttributeOfOtherVersion "attribute_of_other_version" Error "Node.attribute"
        "Another version of the operator has the attribute, so ignoring it would change the meaning."
    AttributeMeaning "attribute" Warning "Operator"
        "The operator does not allow the value of an attribute, but ONNX Runtime does; the message says how it is interpreted."
    Rank "rank" Warning "Operator"
        "An input has fewer axes than the operator takes; the missing one is added, as by ONNX Runtime."
    AutoPadWithPads "auto_pad_with_pads" Warning "Operator, attribute auto_pad"
        "`auto_pad` and `pads` are both given; `pads` is not read."
    ReferenceNowhere "reference_nowhere" Warning "Attribute.ref_attr_name"
        "An attribute refers to one that the function does not have; it is left out."
    ReferenceWithValue "reference_with_value" Warning "Attribute.ref_attr_name"
        "An attribute both refers to one of the function and has a value; the reference is used."
    CallAttribute "call_attribute" Warning "Function.attribute"
        "A call gives an attribute that the function does not have; it is not read."
    FunctionAttributeTwice "function_attribute_twice" Warning "Function.attribute, attribute_proto"
        "A function lists an attribute twice."
    FunctionOutputTwice "function_output_twice" Error "Function.output"
        "A function lists an output twice."
    FunctionDomain "function_domain" Error "Function.domain"
        "The domain of a called function is not imported where it is called."
    UnusedFunction "unused_function" Warning "Function.node"
        "A function that nothing calls has a node of an unknown operator, or one that breaks its signature."
    TensorFields "tensor_fields" Warning "Tensor"
        "A tensor has data in two fields; raw data take precedence over the field of the element type."
    ExternalFields "external_fields" Warning "Tensor.external_data"
        "A tensor has data in another file and in the model; those in the file are read."
    Checksum "checksum" Warning "Tensor.external_data"
        "The checksum of external data is not the SHA-1 of their file."
    BoolBytes "bool_bytes" Warning "Tensor.raw_data"
        "A bool is neither 0 nor 1; it counts as true."
    SparseDims "sparse_dims" Warning "SparseTensor.dims"
        "A sparse tensor has a size of 0."
    QuantizationTarget "quantization_target" Warning "Graph.quantization_annotation"
        "An annotation names a value that is not there."
    QuantizationIgnored "quantization_ignored" Note "Graph.quantization_annotation"
        "Annotations of scales and zero points are not read: the operators of the model compute with them."
    TrainingBinding "training_binding" Error "TrainingInfo, bindings"
        "A binding names an initializer or an output that is not there."
    TrainingInfo "training_info" Warning "TrainingInfo"
        "A key is bound twice, or an initialization takes inputs; an error with `--training`."
    TrainingOperator "training_operator" Warning "TrainingInfo.algorithm"
        "A training graph has a node of an unknown operator, or one that breaks its signature; an error with `--training`."
    TrainingIgnored "training_ignored" Note "TrainingInfo"
        "The training information of the model is not compiled, as `--training` is not given."
    DeviceTarget "device_target" Error "NodeDeviceConfiguration, ShardingSpec"
        "A node names a device configuration that the model does not have, or shards a tensor that the node does not have."
    DeviceConfiguration "device_configuration" Warning "DeviceConfiguration, ShardingSpec"
        "A name or a number of devices or shards is missing, contradicts another one, or is out of range."
    DeviceIgnored "device_ignored" Note "DeviceConfiguration"
        "Device configurations are hints; those that `--configuration` does not name are not followed."
    SequenceShapes "sequence_shapes" Unchecked "Type.Sequence"
        "Elements of a sequence input with one declared shape may differ in shape; ONNX Runtime does not check either."
}

impl Rule {
    pub fn entry(self) -> &'static Entry {
        &RULES[self as usize]
    }

    pub fn id(self) -> &'static str {
        self.entry().id
    }
}

/// The kind with this id.
pub fn by_id(id: &str) -> Option<&'static Entry> {
    RULES.iter().find(|entry| entry.id == id)
}

#[cfg(feature = "serde")]
impl serde::Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// The table as the book shows it.
pub fn markdown() -> String {
    let mut text =
        "| kind | severity | clause | what is broken, and what is done |\n|---|---|---|---|\n".to_string();
    for entry in RULES {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            entry.id,
            entry.severity.name(),
            entry.clause,
            entry.text.replace('|', "\\|")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn kinds_have_ids_of_their_own() {
        for (at, entry) in RULES.iter().enumerate() {
            assert_eq!(entry.rule as usize, at);
            assert!(by_id(entry.id).is_some_and(|found| found.rule == entry.rule), "{}", entry.id);
            assert!(entry.text.ends_with('.'), "{}", entry.id);
        }
        assert_eq!(RULES.iter().map(|entry| entry.id).collect::<HashSet<_>>().len(), RULES.len());
    }

    /// With ONNXC_BLESS set, the page gets the table.
    #[test]
    fn the_book_has_the_table() {
        const MARKS: [&str; 2] =
            ["<!-- The table of compiler/ir/src/rules.rs -->\n", "<!-- End of the table -->"];
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book/src/strictness.md");
        // The published crate has no book beside it.
        let Ok(text) = std::fs::read_to_string(&page) else { return };
        let (before, rest) = text.split_once(MARKS[0]).expect("the page marks the table's place");
        let (table, after) = rest.split_once(MARKS[1]).expect("the page marks the table's end");
        if std::env::var_os("ONNXC_BLESS").is_some() {
            std::fs::write(&page, format!("{before}{}{}{}{after}", MARKS[0], markdown(), MARKS[1])).unwrap();
            return;
        }
        assert_eq!(table, markdown(), "ONNXC_BLESS=1 cargo test -p onnxc --lib the_book_has_the_table");
    }
}
