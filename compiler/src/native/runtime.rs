//! Functions of the runtime for libraries that are loaded into this process, which has them already: such a library gets, in
//! their place, functions that call through a table, and the table is filled when it is loaded.

use std::ffi::c_void;
use std::fmt::Write;

use onnxc_runtime_support::strings::{onnxc_strings_close, onnxc_strings_fault, onnxc_strings_open};

use onnxc_ir::graph::call::{FUNCTIONS, Subject};
use onnxc_object::host::ir::{CLOSE_STRINGS, Extern, FAULT_OF_STRINGS, OPEN_STRINGS, Type};

/// What the name of the function begins with that every object with a table calls.
const PREFIX: &[u8] = b"onnxc_strings_";

/// The function of a library that takes the table.
pub(super) const BIND: &[u8] = b"onnxc_bind_runtime";

/// Its type.
pub(super) type Bind = unsafe extern "C" fn(*const *const c_void);

/// Whether an object may call the runtime.
pub(super) fn is_called_by(object: &[u8]) -> bool {
    memchr::memmem::find(object, PREFIX).is_some()
}

/// Whether an object calls decoders of images.
pub(super) fn decodes_images(object: &[u8]) -> bool {
    let mut images = FUNCTIONS.iter().filter(|function| function.subject == Subject::Image);
    images.any(|function| memchr::memmem::find(object, function.symbol.name.as_bytes()).is_some())
}

/// The functions, each with its address.
fn functions() -> impl Iterator<Item = (&'static Extern, *const c_void)> {
    let own = [
        (&OPEN_STRINGS, onnxc_strings_open as *const c_void),
        (&CLOSE_STRINGS, onnxc_strings_close as *const c_void),
        (&FAULT_OF_STRINGS, onnxc_strings_fault as *const c_void),
    ];
    own.into_iter().chain(FUNCTIONS.iter().map(|function| (&function.symbol, (function.address)())))
}

/// Their addresses.
pub(super) fn table() -> Vec<*const c_void> {
    functions().map(|(_, address)| address).collect()
}

/// The functions that call through the table, in C.
pub(super) fn source() -> String {
    let c_type = |ty: &Type| match ty {
        Type::I64 => "int64_t",
        Type::I32 => "int32_t",
        Type::I8 => "int8_t",
        Type::Ptr => "void *",
    };
    let mut source = "#include <stdint.h>\nstatic void *const *table;\n".to_string();
    let bind = str::from_utf8(BIND).expect("the name is text");
    let _ = writeln!(source, "void {bind}(void *const *functions);");
    let _ = writeln!(source, "void {bind}(void *const *functions) {{ table = functions; }}");
    for (at, (function, _)) in functions().enumerate() {
        let result = function.result.as_ref().map_or("void", c_type);
        let types = function.params.iter().map(c_type).collect::<Vec<_>>().join(", ");
        let params =
            function.params.iter().enumerate().map(|(number, ty)| format!("{} p{number}", c_type(ty)));
        let params = params.collect::<Vec<_>>().join(", ");
        let passed =
            (0..function.params.len()).map(|number| format!("p{number}")).collect::<Vec<_>>().join(", ");
        let back = if function.result.is_some() { "return " } else { "" };
        let _ = writeln!(
            source,
            "__attribute__((visibility(\"hidden\"))) {result} {}({params}) {{ {back}(({result} (*)({types}))table[{at}])({passed}); }}",
            function.name
        );
    }
    source
}
