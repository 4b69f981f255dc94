//! One object file under construction: symbols, compiled functions and read-only data.
//!
//! All data is read-only, but for one word in objects that hold code for several levels of processors: it keeps what
//! the test of the processor found. The test takes microseconds in a virtual machine, where `cpuid` traps, too long
//! for every run. Threads that meet the word unset all find the same, so it needs no lock.
//!
//! Every function is local to the object; the public entry points are global names added beside the local
//! ones, so that no reference inside the object can be pre-empted and none needs a dynamic relocation.

use std::collections::HashMap;

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, GlobalValueData, Signature, Type, UserFuncName, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module, ModuleReloc};
use cranelift_object::object::write::{
    Object, Relocation, SectionId, StandardSegment, Symbol, SymbolId, SymbolSection,
};
use cranelift_object::object::{
    BinaryFormat, RelocationEncoding, RelocationFlags, RelocationKind, SectionFlags, SectionKind,
    SymbolFlags, SymbolKind, SymbolScope,
};
use cranelift_object::{ObjectBuilder, ObjectModule, ObjectProduct};
use rayon::prelude::*;
use target_lexicon::Architecture;

use crate::codegen::emit::copy;
use crate::codegen::emit::func::Code;
use crate::codegen::emit::write::clif_type;
use crate::codegen::stack_bytes;
use crate::error::{Error, Kind, Result, Stage};
use crate::host::ir::{Extern, MEMCPY};
use crate::target::Target;

/// Machine code of a kernel. It refers to nothing outside itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineCode {
    pub bytes: Vec<u8>,
    /// Bytes; a power of two.
    pub alignment: u64,
    /// Bytes of stack, with the address to return to.
    pub stack: u32,
}

/// Most stack of the object's own functions, bytes: `ONNXC_STACK_BYTES` without what the C library's `memcpy`, and finding
/// it for the first time, may take.
const MAX_STACK: u32 = 60 << 10;

/// Stack of a test of the processor, which saves a register or two.
const LEVEL_STACK: u32 = 64;

/// Where data that is larger than this lies beyond the reach of 32-bit offsets from code.
const NEAR_BYTES: u64 = 1 << 30;

/// Section flag of data beyond 2 GiB (x86-64 psABI, section 4.1).
const SHF_X86_64_LARGE: u64 = 0x1000_0000;

/// Bytes of zeros at the start of the text data: the options of a caller that passes none.
pub(super) const NO_OPTIONS_BYTES: usize = 128;

/// An object under construction.
pub(super) struct Unit {
    pub isa: OwnedTargetIsa,
    pub module: ObjectModule,
    /// Model name: the prefix of every symbol.
    pub name: String,
    pending: Vec<(FuncId, Function)>,
    /// The functions that each function calls.
    calls: HashMap<FuncId, Vec<FuncId>>,
    /// Bytes of stack of each function that has its machine code.
    stacks: HashMap<FuncId, u32>,
    /// Text of messages, behind the zeros of the absent options; each string once.
    text: Vec<u8>,
    text_offsets: HashMap<String, i64>,
    text_data: DataId,
    weights: Option<(DataId, u64)>,
    descriptor: Option<DataId>,
    imports: HashMap<&'static str, FuncId>,
    level: Option<LevelTest>,
    /// For programs without a C library.
    freestanding: bool,
    extends_integers: bool,
}

/// How the object learns what processor it runs on.
#[derive(Clone, Copy)]
pub(super) struct LevelTest {
    /// `int32_t level(void)`.
    pub function: FuncId,
    /// One more than what the function returned, 0 before its first call: an i32.
    pub known: DataId,
}

/// The finished object, but for the contents of its weights.
pub(super) struct Finished {
    pub object: Object<'static>,
    /// Section of the weights and its length in bytes.
    pub weights: Option<(SectionId, u64)>,
    pub code_bytes: u64,
    /// Stack of a run, without what it calls outside of the object.
    pub stack_bytes: u32,
}

impl Unit {
    pub fn new(name: &str, target: &Target) -> Result<Unit> {
        let isa = entry_isa(target)?;
        let libcalls = cranelift_module::default_libcall_names();
        let builder =
            ObjectBuilder::new(isa.clone(), format!("{name}.onnx"), libcalls).map_err(emit_error)?;
        let mut module = ObjectModule::new(builder);
        let text_data =
            module.declare_data(&format!("{name}.text"), Linkage::Local, false, false).map_err(emit_error)?;
        Ok(Unit {
            isa,
            module,
            name: name.to_string(),
            pending: vec![],
            calls: HashMap::new(),
            stacks: HashMap::new(),
            text: vec![0; NO_OPTIONS_BYTES],
            text_offsets: HashMap::new(),
            text_data,
            weights: None,
            descriptor: None,
            imports: HashMap::new(),
            level: None,
            freestanding: target.is_freestanding(),
            extends_integers: target.extends_integers,
        })
    }

    /// A signature of the target's C ABI.
    pub fn signature(&self, params: &[Type], result: Option<Type>) -> Signature {
        let mut signature = Signature::new(self.isa.default_call_conv());
        let param = |ty: Type| match self.extends_integers && ty.bits() < 64 {
            // All integers of the ABI are signed.
            true => AbiParam::new(ty).sext(),
            false => AbiParam::new(ty),
        };
        signature.params = params.iter().map(|&ty| param(ty)).collect();
        signature.returns = result.map(param).into_iter().collect();
        signature
    }

    /// Declares a local function `<model>.<name>`.
    pub fn declare(&mut self, name: &str, signature: &Signature) -> Result<FuncId> {
        let name = format!("{}.{name}", self.name);
        self.module.declare_function(&name, Linkage::Local, signature).map_err(emit_error)
    }

    /// Builds the body of a declared function; it is compiled by [`Unit::finish`].
    pub fn build(&mut self, id: FuncId, body: impl FnOnce(&mut Code<'_>) -> Result<()>) -> Result<()> {
        let signature = self.module.declarations().get_function_decl(id).signature.clone();
        let mut function = Function::with_name_signature(UserFuncName::user(0, id.as_u32()), signature);
        let mut context = FunctionBuilderContext::new();
        let mut builder = FunctionBuilder::new(&mut function, &mut context);
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        let mut code = Code::new(builder, self);
        body(&mut code)?;
        let calls = code.finish();
        self.pending.push((id, function));
        self.calls.entry(id).or_default().extend(calls);
        Ok(())
    }

    /// Notes that a function calls another in a way that its code does not tell.
    pub fn note_call(&mut self, from: FuncId, to: FuncId) {
        self.calls.entry(from).or_default().push(to);
    }

    /// Places machine code made elsewhere.
    pub fn place(&mut self, id: FuncId, code: &MachineCode) -> Result<()> {
        self.stacks.insert(id, code.stack);
        self.module.define_function_bytes(id, code.alignment, &code.bytes, &[]).map_err(emit_error)
    }

    /// Adds the test of the processor, and the word that keeps its result.
    pub fn define_level(&mut self, target: &Target) -> Result<()> {
        let function = self.declare("level", &self.signature(&[], Some(types::I32)))?;
        self.place(
            function,
            &MachineCode { bytes: target.level_code()?, alignment: 16, stack: LEVEL_STACK },
        )?;
        let name = format!("{}.known_level", self.name);
        let known = self.module.declare_data(&name, Linkage::Local, true, false).map_err(emit_error)?;
        let mut data = DataDescription::new();
        data.define_zeroinit(4);
        data.set_align(4);
        self.module.define_data(known, &data).map_err(emit_error)?;
        self.level = Some(LevelTest { function, known });
        Ok(())
    }

    /// The test of the processor, in an object that needs one.
    pub fn level(&self) -> Option<LevelTest> {
        self.level
    }

    /// Offset of a message template in the text data.
    pub fn text(&mut self, template: &str) -> i64 {
        if let Some(&offset) = self.text_offsets.get(template) {
            return offset;
        }
        let offset = self.text.len() as i64;
        self.text.extend_from_slice(template.as_bytes());
        self.text.push(0);
        self.text_offsets.insert(template.to_string(), offset);
        offset
    }

    pub fn text_symbol(&self) -> DataId {
        self.text_data
    }

    /// A function outside of the object, for the linker to find; in an object for programs without a C library, its own `memcpy`.
    pub fn import(&mut self, function: &Extern) -> Result<FuncId> {
        if let Some(&id) = self.imports.get(function.name) {
            return Ok(id);
        }
        let params: Vec<Type> = function.params.iter().map(|&ty| clif_type(ty)).collect();
        let signature = self.signature(&params, function.result.map(clif_type));
        if self.freestanding && *function == MEMCPY {
            let id = self.declare(function.name, &signature)?;
            self.imports.insert(function.name, id);
            self.build(id, |code| {
                copy::body(code);
                Ok(())
            })?;
            return Ok(id);
        }
        let imported = self.module.declare_function(function.name, Linkage::Import, &signature);
        let id = imported.map_err(emit_error)?;
        self.imports.insert(function.name, id);
        Ok(id)
    }

    /// Reserves the weights' symbol. The contents come when the object is written.
    pub fn declare_weights(&mut self, bytes: u64) -> Result<()> {
        if bytes > 0 {
            let large = self.is_large(bytes);
            if large && self.isa.triple().binary_format != target_lexicon::BinaryFormat::Elf {
                return Err(Error::unsupported(
                    Stage::Emit,
                    format!("{bytes} bytes of weights in an object that is not ELF"),
                ));
            }
            let name = format!("{}.weights", self.name);
            // Declared as an import, which needs no definition; `finish` gives the symbol its section.
            let id = self.module.declare_data(&name, Linkage::Import, false, false).map_err(emit_error)?;
            self.weights = Some((id, bytes));
        }
        Ok(())
    }

    fn is_large(&self, bytes: u64) -> bool {
        bytes > NEAR_BYTES
    }

    /// The data behind the weights' symbol, and whether code reaches it directly.
    pub fn weights_symbol(&self) -> Option<(DataId, bool)> {
        self.weights.map(|(id, bytes)| (id, !self.is_large(bytes)))
    }

    pub fn descriptor_symbol(&mut self) -> Result<DataId> {
        if let Some(id) = self.descriptor {
            return Ok(id);
        }
        let name = format!("{}.descriptor", self.name);
        let id = self.module.declare_data(&name, Linkage::Local, false, false).map_err(emit_error)?;
        self.descriptor = Some(id);
        Ok(id)
    }

    /// Compiles what was built, places all data, exports `globals` (global name, local function) and writes
    /// the descriptor's `links` (offset of a 32-bit field, function): the distance from the descriptor's start.
    pub fn finish(
        mut self,
        descriptor: &[u8],
        links: &[(u32, FuncId)],
        globals: &[(String, FuncId)],
    ) -> Result<Finished> {
        self.compile_pending()?;
        let stack_bytes = self.check_stack()?;
        let descriptor_id = self.descriptor_symbol()?;
        let text = std::mem::take(&mut self.text);
        for (id, bytes) in [(self.text_data, text.as_slice()), (descriptor_id, descriptor)] {
            let mut data = DataDescription::new();
            data.define(bytes.into());
            data.set_align(64);
            self.module.define_data(id, &data).map_err(emit_error)?;
        }
        let weights = self.weights.map(|(id, bytes)| (id, bytes, self.is_large(bytes)));
        let name = self.name.clone();
        let architecture = self.isa.triple().architecture;
        let mut product = self.module.finish();
        for (global, id) in globals {
            export(&mut product, global, *id);
        }
        for &(field, id) in links {
            link(&mut product, descriptor_id, field, id)?;
        }
        let weights = weights.map(|(id, bytes, large)| {
            let symbol = product.data_symbol(id);
            let x86_large = large && architecture == Architecture::X86_64;
            (place_weights(&mut product.object, symbol, &name, bytes, x86_large), bytes)
        });
        let code_bytes =
            product.functions.values().flatten().map(|&(symbol, _)| product.object.symbol(symbol).size).sum();
        Ok(Finished { object: product.object, weights, code_bytes, stack_bytes })
    }

    /// Bytes of stack of the function that needs most with all that it calls. An error if that is more than the ABI allows.
    fn check_stack(&self) -> Result<u32> {
        let mut deepest = HashMap::new();
        let functions = self.stacks.keys().map(|&id| (self.stack(id, &mut deepest), id));
        let (bytes, id) = functions.max().unwrap_or((0, FuncId::from_u32(0)));
        if bytes <= MAX_STACK {
            return Ok(bytes);
        }
        let linkage = self.module.declarations().get_function_decl(id).linkage_name(id);
        Err(Error::unsupported(
            Stage::Emit,
            format!(
                "`{linkage}` needs {bytes} bytes of stack, more than {MAX_STACK}: the model has too many inputs, outputs \
                 or symbolic sizes in one graph, or bodies nested too deep"
            ),
        ))
    }

    /// Bytes of stack of a function and what it calls. Calls are as deep as bodies are nested.
    fn stack(&self, id: FuncId, deepest: &mut HashMap<FuncId, u32>) -> u32 {
        if let Some(&bytes) = deepest.get(&id) {
            return bytes;
        }
        let calls = self.calls.get(&id).map_or(&[][..], Vec::as_slice);
        let inner = calls.iter().map(|&callee| self.stack(callee, deepest)).max();
        let bytes = self.stacks.get(&id).copied().unwrap_or(0).saturating_add(inner.unwrap_or(0));
        deepest.insert(id, bytes);
        bytes
    }

    fn compile_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let isa = &self.isa;
        let compiled: Vec<(FuncId, Result<Linked>)> =
            pending.into_par_iter().map(|(id, function)| (id, compile(isa, id, function))).collect();
        for (id, code) in compiled {
            let (code, relocations) = code?;
            self.stacks.insert(id, code.stack);
            self.module
                .define_function_bytes(id, code.alignment, &code.bytes, &relocations)
                .map_err(emit_error)?;
        }
        Ok(())
    }
}

fn compile(isa: &OwnedTargetIsa, id: FuncId, function: Function) -> Result<Linked> {
    let mut context = cranelift_codegen::Context::for_function(function);
    context
        .compile(&**isa, &mut ControlPlane::default())
        .map_err(|error| Error::internal(Stage::Codegen, format!("{:?}", error.inner)))?;
    let compiled = context.compiled_code().ok_or_else(|| Error::internal(Stage::Codegen, "no code"))?;
    let relocations = compiled
        .buffer
        .relocs()
        .iter()
        .map(|reloc| ModuleReloc::from_mach_reloc(reloc, &context.func, id))
        .collect();
    let code = MachineCode {
        bytes: compiled.code_buffer().to_vec(),
        alignment: u64::from(compiled.buffer.alignment),
        stack: stack_bytes(compiled),
    };
    Ok((code, relocations))
}

/// Machine code with its references to other symbols of the object.
type Linked = (MachineCode, Vec<ModuleReloc>);

/// Cranelift for entry points: scalar code at the architecture's baseline, position independent.
fn entry_isa(target: &Target) -> Result<OwnedTargetIsa> {
    let triple = &target.triple;
    let mut flags = settings::builder();
    for (name, value) in [
        ("is_pic", "true"),
        ("opt_level", "speed"),
        ("enable_probestack", "false"),
        ("unwind_info", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
    ] {
        flags.set(name, value).map_err(|error| Error::internal(Stage::Emit, error.to_string()))?;
    }
    let unsupported =
        |error: &dyn std::fmt::Display| Error::unsupported(Stage::Emit, format!("target {triple}: {error}"));
    let mut builder =
        cranelift_codegen::isa::lookup(target.code_triple()).map_err(|error| unsupported(&error))?;
    for feature in target.baseline {
        builder.enable(feature).map_err(|error| unsupported(&error))?;
    }
    builder.finish(settings::Flags::new(flags)).map_err(|error| unsupported(&error))
}

/// A global name for a local function.
fn export(product: &mut ObjectProduct, name: &str, id: FuncId) {
    let local = product.object.symbol(product.function_symbol(id));
    let symbol = Symbol {
        name: name.as_bytes().to_vec(),
        value: local.value,
        size: local.size,
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: local.section,
        flags: SymbolFlags::None,
    };
    product.object.add_symbol(symbol);
}

/// Stores the distance from the start of the descriptor to a function into the descriptor's field at `field`.
fn link(product: &mut ObjectProduct, descriptor: DataId, field: u32, id: FuncId) -> Result<()> {
    let symbol = product.function_symbol(id);
    let base = product.data_symbol(descriptor);
    let (SymbolSection::Section(section), start) =
        (product.object.symbol(base).section, product.object.symbol(base).value)
    else {
        return Err(Error::internal(Stage::Emit, "the descriptor has no section"));
    };
    let offset = start + u64::from(field);
    let mach_o = product.object.format() == BinaryFormat::MachO;
    let kind = if mach_o { RelocationKind::Absolute } else { RelocationKind::Relative };
    let flags = RelocationFlags::Generic { kind, encoding: RelocationEncoding::Generic, size: 32 };
    // A relative relocation counts from the field, the field's meaning from the descriptor's start.
    let addend = if mach_o { 0 } else { i64::from(field) };
    let relocation = Relocation { offset, symbol, addend, flags };
    let subtractor = mach_o.then_some(base);
    product
        .object
        .add_relocation_with_subtractor(section, relocation, subtractor)
        .map_err(|error| Error::internal(Stage::Emit, error.to_string()))
}

/// Makes the section of the weights, and the symbol that was an import a local one at its start.
fn place_weights(
    object: &mut Object<'static>,
    symbol: SymbolId,
    name: &str,
    bytes: u64,
    large: bool,
) -> SectionId {
    let section = match object.format() {
        BinaryFormat::Elf => {
            let prefix = if large { ".lrodata" } else { ".rodata" };
            object.add_section(
                vec![],
                format!("{prefix}.{name}.weights").into_bytes(),
                SectionKind::ReadOnlyData,
            )
        }
        BinaryFormat::MachO => {
            let segment = object.segment_name(StandardSegment::Data).to_vec();
            object.add_section(segment, b"__const".to_vec(), SectionKind::ReadOnlyData)
        }
        _ => object.add_section(vec![], b".rdata".to_vec(), SectionKind::ReadOnlyData),
    };
    if large && let SectionFlags::Elf { sh_flags } = object.section_flags_mut(section) {
        *sh_flags |= SHF_X86_64_LARGE;
    }
    let symbol = object.symbol_mut(symbol);
    symbol.section = SymbolSection::Section(section);
    symbol.scope = SymbolScope::Compilation;
    symbol.kind = SymbolKind::Data;
    (symbol.value, symbol.size) = (0, bytes);
    section
}

pub(super) fn emit_error(error: cranelift_module::ModuleError) -> Error {
    Error::new(Stage::Emit, Kind::Internal, error.to_string())
}

/// A reference to data for use in a function; `near` data is reached by an offset from the code, other data
/// through the linker's global offset table.
pub(super) fn data_value(
    builder: &mut FunctionBuilder<'_>,
    data: DataId,
    near: bool,
) -> cranelift_codegen::ir::GlobalValue {
    let name = cranelift_codegen::ir::UserExternalName { namespace: 1, index: data.as_u32() };
    let name = builder.func.declare_imported_user_function(name);
    builder.func.create_global_value(GlobalValueData::Symbol {
        name: cranelift_codegen::ir::ExternalName::user(name),
        offset: 0.into(),
        colocated: near,
        tls: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, size and alignment of each section of a 64-bit ELF file.
    fn sections(elf: &[u8]) -> Vec<(u64, u64, u64)> {
        let number = |at: usize, bytes: usize| {
            elf[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let (start, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
        let headers = (0..count).map(|at| (start + at * size) as usize);
        headers.map(|at| (number(at + 4, 4), number(at + 0x20, 8), number(at + 0x30, 8))).collect()
    }

    /// Threads write the word of the processor's level at the same time: it must not lie across two cache lines.
    #[test]
    fn the_word_of_the_level_is_aligned() {
        const NO_BITS: u64 = 8;
        let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), None).unwrap();
        let mut unit = Unit::new("model", &target).unwrap();
        unit.define_level(&target).unwrap();
        let elf = unit.finish(&[0; 64], &[], &[]).unwrap().object.write().unwrap();
        let zeros: Vec<_> = sections(&elf).into_iter().filter(|&(kind, ..)| kind == NO_BITS).collect();
        assert_eq!(zeros, [(NO_BITS, 4, 4)]);
    }
}
