//! The wrapper for programs without the standard library: nothing is allocated, and the workspace is part of the model's
//! value, which may be a `static`.

use std::fmt::Write as _;

use super::port::{Holds, Port};
use super::{Model, line};
use onnxc_ir::error::{Error, Result, Stage};

const PRELUDE: &str = include_str!("../bare.rs.txt");

/// The rest of the module, whose beginning is written.
pub(super) fn text(
    model: &Model<'_>,
    name: &str,
    struct_name: &str,
    workspace: Option<i64>,
) -> Result<String> {
    let refuse =
        |what: String| Err(Error::unsupported(Stage::Emit, format!("{what} in a wrapper without `std`")));
    if model.graph.strings.is_some() {
        return refuse("strings and images".into());
    }
    if model.has_state() {
        return refuse("state".into());
    }
    if let Some(port) = model.ports().find(|port| !matches!(port.holds, Holds::Array(_))) {
        let text = model.type_text(port);
        return refuse(format!("`{}`: {text}, with sizes that are not static,", line(port.name)));
    }
    let Some(workspace) = workspace else {
        return refuse("a workspace whose size is not static".into());
    };
    let mut out = PRELUDE.to_string();
    let has_seed = model.graph.seed.is_some();
    let (seed, no_seed) = match has_seed {
        true => (
            "        /// For random numbers: runs with the same seed draw the same.\n        pub seed: u64,\n",
            ", seed: 0",
        ),
        false => ("", ""),
    };
    let _ = write!(
        out,
        "
    /// The model and the scratch memory of its runs.
    pub struct {struct_name} {{
        workspace: Memory<{{ {struct_name}::WORKSPACE_BYTES }}>,
{seed}    }}

    impl Default for {struct_name} {{
        fn default() -> {struct_name} {{
            {struct_name}::new()
        }}
    }}

    impl {struct_name} {{
        /// Scratch memory of every run, bytes.
        pub const WORKSPACE_BYTES: usize = {workspace};

        pub const fn new() -> {struct_name} {{
            {struct_name} {{ workspace: Memory([MaybeUninit::uninit(); Self::WORKSPACE_BYTES]){no_seed} }}
        }}

"
    );
    out.push_str(
        &model.documentation("Runs the model on outputs of the caller; fails with the message of its C ABI."),
    );
    let mut parameters: Vec<String> = model.inputs.iter().map(Port::input_parameter).collect();
    parameters.extend(model.outputs.iter().map(Port::output_parameter));
    let _ = writeln!(
        out,
        "        pub fn run_into(&mut self, {}) -> Result<(), Error> {{",
        parameters.join(", ")
    );
    out.push_str("            struct Shapes {\n");
    for port in model.ports() {
        let _ = writeln!(out, "                {}: [i64; {}],", port.ident, port.ty.rank());
    }
    out.push_str("            }\n            let mut shapes = Shapes {\n");
    for port in model.ports() {
        let sizes = port.ty.shape.iter().map(|dim| dim.as_const().unwrap_or(0).to_string());
        let _ = writeln!(out, "                {}: [{}],", port.ident, sizes.collect::<Vec<_>>().join(", "));
    }
    out.push_str("            };\n");
    let _ = writeln!(out, "            let inputs: [Tensor; {}] = [", model.inputs.len());
    out.extend(model.inputs.iter().map(Port::input_tensor));
    let _ =
        writeln!(out, "            ];\n            let mut outputs: [Tensor; {}] = [", model.outputs.len());
    out.extend(model.outputs.iter().map(Port::output_tensor));
    let seed = if has_seed { "self.seed" } else { "0" };
    let _ = write!(
        out,
        "            ];
            execute(&inputs, &mut outputs, &mut self.workspace, {seed})
        }}
    }}

    unsafe extern \"C\" {{
        #[link_name = \"{name}_run\"]
        fn model_run(
            inputs: *const Tensor,
            input_count: usize,
            outputs: *mut Tensor,
            output_count: usize,
            workspace: *mut c_void,
            workspace_bytes: usize,
            options: *const Options,
        ) -> i32;
    }}
}}
"
    );
    Ok(out)
}
