//! `<name>.h`: prototypes, sizes as macros and, where all shapes are static, a function whose signature
//! shows the C type of each tensor. C99 and C++.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::emit::descriptor::given_inputs;
use crate::emit::{identifier, run_symbol};
use crate::host::abi::alignment;
use crate::host::lower::layout::{Plan, bound_symbols};
use crate::host::message::printable;
use onnxc_ir::graph::{AnyRank, DType, Graph, TensorType};
use onnxc_schedule::ALIGN;

/// One input or output.
struct Port<'g> {
    kind: &'static str,
    name: &'g str,
    ty: TensorType,
    /// Of an output whose rank the run decides.
    any_rank: Option<&'g AnyRank>,
    has_default: bool,
    /// It is the state block, which a run writes to.
    is_state: bool,
    /// Name in C, distinct among all parameters of the typed function.
    ident: String,
}

/// A program of an object.
pub(super) struct Described<'g> {
    pub graph: &'g Graph,
    pub plan: &'g Plan,
    pub name: &'g str,
    /// It is the model's own, which infers.
    pub is_own: bool,
}

/// The text of a model's header: of the model's own program, which comes first, and of others.
pub(super) fn text<'g>(programs: impl Iterator<Item = Described<'g>>) -> String {
    let (mut text, mut model) = (String::new(), String::new());
    for program in programs {
        let Described { graph, plan, name, is_own } = program;
        let ports = ports(graph, plan);
        let mut out = Out { text, upper: name.to_ascii_uppercase(), is_own };
        if is_own {
            model.clone_from(&out.upper);
        }
        out.prologue(graph, name, &ports);
        out.sizes(plan, &ports);
        out.prototypes(name, plan);
        out.by_symbols(graph, name, "workspace");
        if plan.state.is_some() && is_own {
            out.by_symbols(graph, name, "state_bytes");
            out.reset_for(graph, name);
        }
        // Strings need an allocator, and their length shows in the run.
        let is_static = |port: &Port<'_>| {
            port.ty.dtype != DType::Str && port.any_rank.is_none() && port.ty.static_shape().is_some()
        };
        if ports.iter().all(is_static) && plan.workspace.is_const() {
            out.predict(name, &ports, plan.apart.is_some());
        }
        text = out.text;
    }
    text.push_str("#ifdef __cplusplus\n}\n#endif\n\n");
    let _ = writeln!(text, "#endif /* ONNXC_MODEL_{model}_H */");
    text
}

/// Words that no parameter can be named: of C, of C++, and those that the generated function uses.
const RESERVED: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "nullptr",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "requires",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "workspace",
    "options",
    "NULL",
];

fn distinct(name: &str, taken: &mut HashSet<String>) -> String {
    let base = identifier(name);
    let mut ident = base.clone();
    let mut number = 1;
    while RESERVED.contains(&ident.as_str()) || !taken.insert(ident.to_ascii_uppercase()) {
        number += 1;
        ident = format!("{base}_{number}");
    }
    ident
}

fn ports<'g>(graph: &'g Graph, plan: &Plan) -> Vec<Port<'g>> {
    let mut taken = HashSet::new();
    let inputs = given_inputs(graph, plan).into_iter();
    let inputs = inputs.map(|(name, ty, has_default)| ("INPUT", name, ty, has_default, None));
    let outputs = graph.outputs.iter().enumerate().take(graph.given_outputs());
    let outputs = outputs.map(|(at, (name, _))| {
        ("OUTPUT", name.as_str(), graph.output_ty(at).clone(), false, graph.any_rank.get(&at))
    });
    let state = plan.state.as_ref().map(|_| graph.given_inputs());
    inputs
        .chain(outputs)
        .enumerate()
        .map(|(at, (kind, name, ty, has_default, any_rank))| Port {
            kind,
            name,
            ty,
            any_rank,
            has_default,
            is_state: state == Some(at),
            ident: distinct(name, &mut taken),
        })
        .collect()
}

/// C type of an element, or of the byte that several share, and how many of them make one.
fn c_type(dtype: DType) -> (&'static str, i64) {
    match dtype {
        DType::F32 => ("float", 1),
        DType::F64 => ("double", 1),
        DType::C64 => ("float", 2),
        DType::C128 => ("double", 2),
        DType::F16 | DType::BF16 | DType::U16 => ("uint16_t", 1),
        DType::I8 => ("int8_t", 1),
        DType::I16 => ("int16_t", 1),
        DType::I32 => ("int32_t", 1),
        DType::I64 => ("int64_t", 1),
        DType::U32 => ("uint32_t", 1),
        DType::U64 => ("uint64_t", 1),
        DType::Str => ("onnxc_string", 1),
        _ => ("uint8_t", 1),
    }
}

/// Text that can stand in a C comment.
fn comment(text: &str) -> String {
    printable(text).replace("*/", "* /").replace("/*", "/ *")
}

struct Out {
    text: String,
    upper: String,
    is_own: bool,
}

impl Out {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn define(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "#define {}_{name} {value}", self.upper);
    }

    fn prologue(&mut self, graph: &Graph, name: &str, ports: &[Port<'_>]) {
        match self.is_own {
            true => self.line(&format!(
                "/* Model `{}`, compiled by onnxc. Link with {name}.o.\n *",
                comment(&graph.name)
            )),
            false => self.line(&format!(
                "/* ---- {name}: another program of the model, on the same state block, with `{}`.\n *",
                comment(&graph.name)
            )),
        }
        for port in ports {
            let dims: Vec<String> = port.ty.shape.iter().map(|dim| graph.dim_text(dim)).collect();
            let default = if port.has_default { ", has a default: data may be NULL" } else { "" };
            let rank = port.any_rank.map_or(String::new(), |own| format!("; {}", own.text(port.ty.rank())));
            self.line(&format!(
                " * {} `{}`: {}[{}]{default}{rank}",
                port.kind.to_ascii_lowercase(),
                comment(port.name),
                port.ty.dtype,
                comment(&dims.join(", "))
            ));
        }
        let pairs = graph.inputs[graph.given_inputs()..].iter().zip(&graph.outputs[graph.given_outputs()..]);
        for (at, ((input, (output, _)), state)) in pairs.zip(&graph.states).enumerate() {
            let dims: Vec<String> = state.ty.shape.iter().map(|dim| graph.dim_text(dim)).collect();
            let how = match &state.growth {
                Some(growth) => {
                    format!("grows along axis {} to {}", growth.axis, graph.dim_text(&growth.next))
                }
                None if graph.is_kept(at) => "is only read".to_string(),
                None => "is replaced".to_string(),
            };
            let and =
                if *output == input.name { String::new() } else { format!(" and `{}`", comment(output)) };
            self.line(&format!(
                " * in the state: `{}`{and}: {}[{}], {}",
                comment(&input.name),
                state.ty.dtype,
                comment(&dims.join(", ")),
                comment(&how)
            ));
        }
        let upper = self.upper.clone();
        self.line(" */");
        if !self.is_own {
            return;
        }
        self.line(&format!("#ifndef ONNXC_MODEL_{upper}_H\n#define ONNXC_MODEL_{upper}_H\n"));
        self.line("#include \"onnxc.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    }

    fn sizes(&mut self, plan: &Plan, ports: &[Port<'_>]) {
        if let Some(bytes) = plan.workspace.as_const() {
            self.line("/* Scratch memory of one run, bytes. */");
            self.define("WORKSPACE_BYTES", bytes);
        }
        self.define("WORKSPACE_ALIGNMENT", ALIGN);
        let mut counts = [("INPUT", 0), ("OUTPUT", 0)];
        for port in ports {
            let count = counts.iter_mut().find(|(kind, _)| *kind == port.kind).map(|(_, count)| count);
            let number = count.map_or(0, |count| std::mem::replace(count, *count + 1));
            let prefix = format!("{}_{}", port.kind, port.ident.to_ascii_uppercase());
            self.line(&format!(
                "\n/* {} {number}: `{}` */",
                port.kind.to_ascii_lowercase(),
                comment(port.name)
            ));
            self.define(&format!("{prefix}_INDEX"), number);
            self.define(&format!("{prefix}_DTYPE"), port.ty.dtype.to_onnx());
            self.define(&format!("{prefix}_RANK"), port.ty.rank());
            if let Some(own) = port.any_rank {
                self.define(&format!("{prefix}_LEAST_RANK"), own.least);
            }
            self.define(
                &format!("{prefix}_ALIGNMENT"),
                if port.is_state { ALIGN } else { alignment(&port.ty) },
            );
            let own_axes = port.any_rank.map_or(port.ty.rank(), |own| own.least);
            for (axis, dim) in port.ty.shape.iter().enumerate().take(own_axes) {
                if let Some(size) = dim.as_const() {
                    self.define(&format!("{prefix}_DIM{axis}"), size);
                }
            }
            if let Some(bytes) = port.ty.stored_bytes().as_const().filter(|_| port.ty.dtype != DType::Str) {
                self.define(&format!("{prefix}_BYTES"), bytes);
            }
        }
        for (kind, count) in counts {
            self.define(&format!("{kind}_COUNT"), count);
        }
        self.line("");
    }

    fn prototypes(&mut self, name: &str, plan: &Plan) {
        let has_state = plan.state.is_some();
        self.line("/* The constant description of the model. Never NULL. */");
        self.line(&format!("const onnxc_model *{name}_model(void);\n"));
        self.line("/* Bytes of workspace for these values of the model's symbols, or minus a status. */");
        self.line(&format!("int64_t {name}_workspace(const int64_t *symbols, size_t count);\n"));
        if has_state && self.is_own {
            self.line(
                "/* Bytes of the state block for these values of the model's symbols, or minus a status. */",
            );
            self.line(&format!("int64_t {name}_state_bytes(const int64_t *symbols, size_t count);\n"));
            self.line("/* Empties a state block of this size; see onnxc_state_reset_fn. */");
            self.line(&format!(
                "int32_t {name}_state_reset(void *state, size_t bytes, const int64_t *symbols, size_t count);\n"
            ));
        }
        if let Some(apart) = plan.apart.as_ref().filter(|_| self.is_own) {
            self.line("/* Bytes that runs need of a file of weights, which the options have. */");
            self.define("WEIGHTS_BYTES", apart.bytes);
            self.line("\n/* Checks a file of weights in memory and has runs with these options use it; see onnxc_weights_bind. */");
            self.line(&format!(
                "static inline int32_t {name}_bind_weights(onnxc_options *options, const void *data, size_t bytes) {{\n    \
                 return onnxc_weights_bind({name}_model(), data, bytes, options);\n}}\n"
            ));
        }
        self.line("/* Runs the model; see onnxc_run_fn. Re-entrant. */");
        let run = run_symbol(name, self.is_own);
        self.line(&format!(
            "int32_t {run}(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs,\n    \
             size_t output_count, void *workspace, size_t workspace_bytes, const onnxc_options *options);\n"
        ));
    }

    /// Assigns the model's symbols, which are parameters, to an array; gives the parameters.
    fn symbols(graph: &Graph) -> (Vec<String>, String) {
        let mut taken = HashSet::new();
        let names = bound_symbols(graph);
        let names = names.iter().map(|&sym| distinct(&graph.symbols[sym].name, &mut taken));
        let names: Vec<String> = names.collect();
        let mut text = format!("    int64_t onnxc_symbols[{}];\n", names.len().max(1));
        for (at, symbol) in names.iter().enumerate() {
            let _ = writeln!(text, "    onnxc_symbols[{at}] = {symbol};");
        }
        if names.is_empty() {
            text.push_str("    onnxc_symbols[0] = 0;\n");
        }
        (names.iter().map(|name| format!("int64_t {name}")).collect(), text)
    }

    /// A number of bytes by named symbols.
    fn by_symbols(&mut self, graph: &Graph, name: &str, what: &str) {
        let (params, text) = Self::symbols(graph);
        let count = params.len();
        if count == 0 && what == "workspace" {
            return;
        }
        let params = if count == 0 { "void".to_string() } else { params.join(", ") };
        self.line(&format!("static inline int64_t {name}_{what}_for({params}) {{"));
        self.text.push_str(&text);
        self.line(&format!("    return {name}_{what}(onnxc_symbols, {count});\n}}\n"));
    }

    /// Empties a state block, by named symbols.
    fn reset_for(&mut self, graph: &Graph, name: &str) {
        let (params, text) = Self::symbols(graph);
        let all = params.iter().map(|param| format!(", {param}")).collect::<String>();
        self.line(&format!(
            "static inline int32_t {name}_state_reset_for(void *onnxc_state, size_t onnxc_bytes{all}) {{"
        ));
        self.text.push_str(&text);
        let count = params.len();
        self.line(&format!(
            "    return {name}_state_reset(onnxc_state, onnxc_bytes, onnxc_symbols, {count});\n}}\n"
        ));
    }

    /// A run with one parameter per tensor.
    fn predict(&mut self, name: &str, ports: &[Port<'_>], needs_options: bool) {
        let params: Vec<String> = ports.iter().map(parameter).collect();
        let upper = self.upper.clone();
        let run = run_symbol(name, self.is_own);
        self.line(&format!("/* {run} on these tensors; `workspace` has {upper}_WORKSPACE_BYTES bytes. */"));
        let params = params.iter().map(|param| format!("{param}, ")).collect::<String>();
        let (own, options) = match needs_options {
            true => (", const onnxc_options *options", "options"),
            false => ("", "NULL"),
        };
        self.line(&format!("static inline int32_t {name}_predict({params}void *workspace{own}) {{"));
        for (kind, array) in [("INPUT", "onnxc_inputs"), ("OUTPUT", "onnxc_outputs")] {
            let ports: Vec<&Port<'_>> = ports.iter().filter(|port| port.kind == kind).collect();
            for (at, port) in ports.iter().enumerate().filter(|(_, port)| port.ty.rank() > 0) {
                let dims: Vec<String> = port.ty.shape.iter().map(ToString::to_string).collect();
                self.line(&format!("    int64_t {array}_dims{at}[] = {{{}}};", dims.join(", ")));
            }
            if ports.is_empty() {
                continue;
            }
            self.line(&format!("    onnxc_tensor {array}[{}];", ports.len()));
            for (at, port) in ports.iter().enumerate() {
                let dims = if port.ty.rank() > 0 { format!("{array}_dims{at}") } else { "NULL".to_string() };
                self.line(&format!(
                    "    {array}[{at}] = onnxc_make_tensor({}, {}, {}, {}, {dims});",
                    port.ident,
                    port.ty.stored_bytes(),
                    port.ty.dtype.to_onnx(),
                    port.ty.rank()
                ));
            }
        }
        let count = |kind: &str| ports.iter().filter(|port| port.kind == kind).count();
        self.line(&format!(
            "    return {run}({}, {}, {}, {}, workspace, {upper}_WORKSPACE_BYTES, {options});\n}}\n",
            if count("INPUT") > 0 { "onnxc_inputs" } else { "NULL" },
            count("INPUT"),
            if count("OUTPUT") > 0 { "onnxc_outputs" } else { "NULL" },
            count("OUTPUT"),
        ));
    }
}

/// `const float x[1 * 3 * 224 * 224]`
fn parameter(port: &Port<'_>) -> String {
    if port.is_state {
        return format!("void *{}", port.ident);
    }
    let (element, per) = c_type(port.ty.dtype);
    let qualifier = if port.kind == "INPUT" { "const " } else { "" };
    let mut extents: Vec<String> = port.ty.shape.iter().map(ToString::to_string).collect();
    if per > 1 {
        extents.push(per.to_string());
    }
    if port.ty.dtype.is_packed() {
        extents = vec![port.ty.stored_bytes().to_string()];
    }
    if extents.is_empty() {
        extents.push("1".to_string());
    }
    // C has no arrays of no elements.
    if port.ty.elements().as_const() == Some(0) || port.has_default {
        return format!("{qualifier}{element} *{}", port.ident);
    }
    format!("{qualifier}{element} {}[{}]", port.ident, extents.join(" * "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::Dim;

    /// Complex numbers are two elements of C, and of types below 8 bits several elements share a byte.
    #[test]
    fn parameters_have_as_many_elements_of_c_as_callers_store() {
        for (dtype, shape, wanted) in [
            (DType::F32, &[2, 3][..], "const float x[2 * 3]"),
            (DType::F64, &[], "const double x[1]"),
            (DType::C64, &[2, 3], "const float x[2 * 3 * 2]"),
            (DType::I4, &[3, 5], "const uint8_t x[8]"),
            (DType::U4, &[6], "const uint8_t x[3]"),
            (DType::I2, &[3, 3], "const uint8_t x[3]"),
            (DType::F4E2M1, &[], "const uint8_t x[1]"),
            (DType::I4, &[3, 0], "const uint8_t *x"),
        ] {
            let ty = TensorType::new(dtype, shape.iter().map(|&size: &usize| Dim::from(size)).collect());
            let ident = "x".to_string();
            let (any_rank, has_default, is_state) = (None, false, false);
            let port = Port { kind: "INPUT", name: "x", ty, any_rank, has_default, is_state, ident };
            assert_eq!(parameter(&port), wanted);
        }
    }
}
