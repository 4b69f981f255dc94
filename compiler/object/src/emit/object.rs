//! One object file under construction: symbols, compiled functions and read-only data.
//!
//! All data is read-only, but for one word in objects that hold code for several levels of processors: it keeps what
//! the test of the processor found. The test takes microseconds in a virtual machine, where `cpuid` traps, too long
//! for every run. Threads that meet the word unset all find the same, so it needs no lock.
//!
//! Every function is local to the object; the public entry points are global names added beside the local
//! ones, so that no reference inside the object can be pre-empted and none needs a dynamic relocation.

use crate::emit::copy;
use crate::emit::data::Data;
use crate::emit::func::Code;
use crate::emit::lines::{self, Lines, Listing, Span};
use crate::emit::shared::macho::FRAMES;
use crate::emit::write::clif_type;
use crate::host;
use crate::host::ir::{Extern, MEMCPY};
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, GlobalValueData, Signature, Type, UserFuncName, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module, ModuleDeclarations, ModuleReloc};
use cranelift_object::object::write::{
    MachOBuildVersion, Object, Relocation, SectionId, StandardSegment, Symbol, SymbolId, SymbolSection,
};
use cranelift_object::object::{
    BinaryFormat, RelocationEncoding, RelocationFlags, RelocationKind, SectionFlags, SectionKind,
    SymbolFlags, SymbolKind, SymbolScope, macho, pe,
};
use cranelift_object::{ObjectBuilder, ObjectModule, ObjectProduct};
use onnxc_backend::codegen::isa::entry_isa;
use onnxc_backend::codegen::kernels::MachineCode;
use onnxc_backend::codegen::stack_bytes;
use onnxc_backend::codegen::unwind::of_compiled;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_machine::target::{Dwarf, LevelCode, Records, Target};
use onnxc_machine::unwind;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use target_lexicon::{Architecture, Endianness, OperatingSystem};

/// Most stack of the object's own functions, bytes: `ONNXC_STACK_BYTES` without what the C library's `memcpy`, and finding
/// it for the first time, may take.
const MAX_STACK: u32 = 60 << 10;

/// Instructions of functions that wait to be compiled side by side; as Cranelift has them they take some hundred bytes each.
const MOST_PENDING: usize = 1 << 16;

/// Where data that is larger than this lies beyond the reach of 32-bit offsets from code.
const NEAR_BYTES: u64 = 1 << 30;

/// Section flag of data beyond 2 GiB (x86-64 psABI, section 4.1).
const SHF_X86_64_LARGE: u64 = 0x1000_0000;

/// Bytes of zeros at the start of the text data: the options of a caller that passes none.
pub(super) const NO_OPTIONS_BYTES: usize = 192;

/// Offset in the text data of a word that is not 0, behind them: the flag of runs that are traced.
pub(super) const SET_WORD: i64 = NO_OPTIONS_BYTES as i64;

/// An object under construction.
pub(super) struct Unit {
    pub isa: OwnedTargetIsa,
    /// Byte order of all data.
    pub order: Endianness,
    pub module: ObjectModule,
    /// Model name: the prefix of every symbol.
    pub name: String,
    /// Functions that are not compiled yet, and how many instructions they have.
    pending: Vec<(FuncId, Function)>,
    pending_insts: usize,
    /// The functions that each function calls.
    calls: HashMap<FuncId, Vec<FuncId>>,
    /// Bytes of stack of each function that has its machine code.
    stacks: HashMap<FuncId, u32>,
    /// The form of records for unwinders, on targets that have those, and the record of each function.
    form: Option<Records>,
    records: Vec<(FuncId, Vec<u8>)>,
    /// What a function refers to in ways that the object's writer has no name for, and how in a COFF object.
    references: Vec<(FuncId, ModuleReloc, u16)>,
    /// The source locations of each function's code, in the order of definition.
    spans: Vec<(FuncId, Vec<Span>)>,
    /// Text of messages, behind the zeros of the absent options; each string once.
    text: Vec<u8>,
    text_offsets: HashMap<String, i64>,
    text_data: DataId,
    weights: Option<(DataId, u64)>,
    descriptor: Option<DataId>,
    imports: HashMap<&'static str, FuncId>,
    /// Functions of the user's own.
    externals: HashMap<String, FuncId>,
    level: Option<LevelTest>,
    /// For programs without a C library.
    freestanding: bool,
    extends_integers: bool,
}

/// The description of one program.
pub(super) struct Described {
    pub id: DataId,
    pub data: Data,
    /// Offsets of 32-bit fields that hold the distance from the description's start to a function.
    pub links: Vec<(u32, FuncId)>,
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
    /// Byte order of the data.
    pub order: Endianness,
    /// Section of the weights and its length in bytes.
    pub weights: Option<(SectionId, u64)>,
    pub code_bytes: u64,
    /// Stack of a run, without what it calls outside of the object.
    pub stack_bytes: u32,
}

impl Unit {
    /// An empty object. Without `unwind` it has no records for unwinders where those of its system do without.
    pub(super) fn new(name: &str, target: &Target, unwind: bool) -> Result<Unit> {
        let isa = entry_isa(target).map_err(|error| Error::unsupported(Stage::Emit, error.message))?;
        let order = target.byte_order()?;
        let libcalls = cranelift_module::default_libcall_names();
        let builder =
            ObjectBuilder::new(isa.clone(), format!("{name}.onnx"), libcalls).map_err(emit_error)?;
        let mut module = ObjectModule::new(builder);
        let text_data =
            module.declare_data(&format!("{name}.text"), Linkage::Local, false, false).map_err(emit_error)?;
        Ok(Unit {
            isa,
            order,
            module,
            name: name.to_string(),
            pending: vec![],
            pending_insts: 0,
            calls: HashMap::new(),
            stacks: HashMap::new(),
            form: target.unwind_records().filter(|form| unwind || !matches!(form, Records::Dwarf(_))),
            records: vec![],
            references: vec![],
            spans: vec![],
            text: [vec![0; NO_OPTIONS_BYTES], vec![1; 8]].concat(),
            text_offsets: HashMap::new(),
            text_data,
            weights: None,
            descriptor: None,
            imports: HashMap::new(),
            externals: HashMap::new(),
            level: None,
            freestanding: target.is_freestanding(),
            extends_integers: target.extends_integers,
        })
    }

    /// Names of what follows begin with this name, and the description is another one.
    pub(super) fn begin(&mut self, name: &str) {
        self.name = name.to_string();
        self.descriptor = None;
    }

    /// A signature of the target's C ABI.
    pub(super) fn signature(&self, params: &[Type], result: Option<Type>) -> Signature {
        let param = |ty: Type| match self.extends_integers && ty.bits() < 64 {
            // All integers of the ABI are signed.
            true => AbiParam::new(ty).sext(),
            false => AbiParam::new(ty),
        };
        let mut signature = Signature::new(self.isa.default_call_conv());
        signature.params = params.iter().map(|&ty| param(ty)).collect();
        signature.returns = result.map(param).into_iter().collect();
        signature
    }

    /// Declares a local function `<model>.<name>`.
    pub(super) fn declare(&mut self, name: &str, signature: &Signature) -> Result<FuncId> {
        let name = format!("{}.{name}", self.name);
        self.module.declare_function(&name, Linkage::Local, signature).map_err(emit_error)
    }

    /// Builds the body of a declared function; it is compiled with others, by [`Unit::finish`] at the latest.
    pub(super) fn build(&mut self, id: FuncId, body: impl FnOnce(&mut Code<'_>) -> Result<()>) -> Result<()> {
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
        self.pending_insts += function.dfg.num_insts();
        self.pending.push((id, function));
        self.calls.entry(id).or_default().extend(calls);
        if self.pending_insts > MOST_PENDING { self.compile_pending() } else { Ok(()) }
    }

    /// Notes a call from one function to another that its code does not show.
    pub(super) fn note_call(&mut self, from: FuncId, to: FuncId) {
        self.calls.entry(from).or_default().push(to);
    }

    /// Places machine code made elsewhere.
    pub(super) fn place(&mut self, id: FuncId, code: &MachineCode) -> Result<()> {
        self.define(id, code, &[], vec![])
    }

    fn define(
        &mut self,
        id: FuncId,
        code: &MachineCode,
        relocations: &[ModuleReloc],
        spans: Vec<Span>,
    ) -> Result<()> {
        self.spans.push((id, spans));
        self.stacks.insert(id, code.stack);
        // Without a record, an unwinder of COFF takes a function to leave the stack as it is, and one of ELF gives up.
        if !code.unwind.is_empty() || matches!(self.form, Some(Records::Dwarf(_))) {
            self.records.push((id, code.unwind.clone()));
        }
        let mut known = vec![];
        for relocation in relocations {
            match self.coff_reference(relocation.kind) {
                Some(kind) => self.references.push((id, relocation.clone(), kind)),
                None => known.push(relocation.clone()),
            }
        }
        self.module.define_function_bytes(id, code.alignment, &code.bytes, &known).map_err(emit_error)
    }

    /// The number of a COFF relocation that `cranelift-object` does not make: the page of an address, and the place in it.
    fn coff_reference(&self, kind: Reloc) -> Option<u16> {
        match kind {
            _ if self.isa.triple().binary_format != target_lexicon::BinaryFormat::Coff => None,
            Reloc::Aarch64AdrPrelPgHi21 => Some(pe::IMAGE_REL_ARM64_PAGEBASE_REL21),
            Reloc::Aarch64AddAbsLo12Nc => Some(pe::IMAGE_REL_ARM64_PAGEOFFSET_12A),
            _ => None,
        }
    }

    /// Adds the test of the processor, and the word that keeps its result.
    pub(super) fn define_level(&mut self, target: &Target, used: &BTreeSet<usize>) -> Result<()> {
        let function = self.declare("level", &self.signature(&[], Some(types::I32)))?;
        let LevelCode { bytes, stack } = target.level_code(|level| used.contains(&level))?;
        // It leaves the stack as it is where unwinders ask for records.
        self.place(function, &MachineCode { bytes, alignment: 16, stack, unwind: vec![] })?;
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
    pub(super) fn level(&self) -> Option<LevelTest> {
        self.level
    }

    /// Offset of a message template in the text data.
    pub(super) fn text(&mut self, template: &str) -> i64 {
        if let Some(&offset) = self.text_offsets.get(template) {
            return offset;
        }
        let offset = self.text.len() as i64;
        self.text.extend_from_slice(template.as_bytes());
        self.text.push(0);
        self.text_offsets.insert(template.to_string(), offset);
        offset
    }

    pub(super) fn text_symbol(&self) -> DataId {
        self.text_data
    }

    /// A function outside of the object, for the linker to find; in an object for programs without a C library, its own `memcpy`.
    pub(super) fn import(&mut self, function: &Extern) -> Result<FuncId> {
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

    /// A function of the user's own, for the linker to find.
    pub(super) fn import_external(&mut self, symbol: &str) -> Result<FuncId> {
        if let Some(&id) = self.externals.get(symbol) {
            return Ok(id);
        }
        if symbol == MEMCPY.name || symbol.starts_with("onnxc_") {
            return Err(taken(symbol));
        }
        let (record, status) = (clif_type(host::ir::Type::Ptr), clif_type(host::ir::Type::I32));
        let signature = self.signature(&[record], Some(status));
        let imported = self.module.declare_function(symbol, Linkage::Import, &signature);
        let id = imported.map_err(emit_error)?;
        self.externals.insert(symbol.to_string(), id);
        Ok(id)
    }

    /// Fails where a function of the user's own has the name of one that the object gives.
    pub(super) fn check_externals(&self, globals: &[(String, FuncId)]) -> Result<()> {
        match globals.iter().find(|(name, _)| self.externals.contains_key(name)) {
            Some((name, _)) => Err(taken(name)),
            None => Ok(()),
        }
    }

    /// Reserves the weights' symbol. The contents come when the object is written.
    pub(super) fn declare_weights(&mut self, bytes: u64) -> Result<()> {
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
    pub(super) fn weights_symbol(&self) -> Option<(DataId, bool)> {
        self.weights.map(|(id, bytes)| (id, !self.is_large(bytes)))
    }

    pub(super) fn descriptor_symbol(&mut self) -> Result<DataId> {
        if let Some(id) = self.descriptor {
            return Ok(id);
        }
        let name = format!("{}.descriptor", self.name);
        let id = self.module.declare_data(&name, Linkage::Local, false, false).map_err(emit_error)?;
        self.descriptor = Some(id);
        Ok(id)
    }

    /// Compiles what was built, places all data, exports `globals` (global name, local function), writes the links of the
    /// descriptions and line tables.
    pub(super) fn finish(
        mut self,
        described: &[Described],
        globals: &[(String, FuncId)],
        listing: Option<(&Listing, &Lines)>,
    ) -> Result<Finished> {
        self.compile_pending()?;
        let stack_bytes = self.check_stack()?;
        let text = Data::bytes(std::mem::take(&mut self.text).into());
        self.define_data(self.text_data, &text)?;
        for own in described {
            self.define_data(own.id, &own.data)?;
        }
        let weights = self.weights.map(|(id, bytes)| (id, bytes, self.is_large(bytes)));
        let name = self.name.clone();
        let architecture = self.isa.triple().architecture;
        let (form, records) = (self.form, std::mem::take(&mut self.records));
        let references = std::mem::take(&mut self.references);
        let spans = std::mem::take(&mut self.spans);
        let mut product = self.module.finish();
        // Cranelift takes Darwin's version for that of macOS.
        if let OperatingSystem::Darwin(Some(darwin)) = self.isa.triple().operating_system {
            let mut version = MachOBuildVersion::default();
            version.platform = macho::PLATFORM_MACOS;
            version.minos = macos_of(darwin.major);
            product.object.set_macho_build_version(version);
        }
        match form {
            None => {}
            Some(Records::Dwarf(machine)) => frame_rules(&mut product, &name, machine, records)?,
            Some(form) => unwind_tables(&mut product, form, &records)?,
        }
        if let Some(listing) = listing {
            lines::write(&mut product, self.order, listing, &spans)?;
        }
        references.iter().try_for_each(|reference| refer(&mut product, reference))?;
        for (global, id) in globals {
            export(&mut product, global, *id);
        }
        for own in described {
            own.links.iter().try_for_each(|&(field, id)| link(&mut product, own.id, field, id))?;
        }
        let weights = weights.map(|(id, bytes, large)| {
            let symbol = product.data_symbol(id);
            let x86_large = large && architecture == Architecture::X86_64;
            (place_weights(&mut product.object, symbol, &name, bytes, x86_large), bytes)
        });
        let order = self.order;
        let code_bytes =
            product.functions.values().flatten().map(|&(symbol, _)| product.object.symbol(symbol).size).sum();
        Ok(Finished { object: product.object, order, weights, code_bytes, stack_bytes })
    }

    /// The contents of a symbol's data.
    fn define_data(&mut self, id: DataId, data: &Data) -> Result<()> {
        let mut description = DataDescription::new();
        description.define(data.in_order(self.order).into());
        description.set_align(64);
        self.module.define_data(id, &description).map_err(emit_error)
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
        self.pending_insts = 0;
        let (isa, form) = (&self.isa, self.form);
        let compiled: Vec<(FuncId, Result<Linked>)> =
            pending.into_par_iter().map(|(id, function)| (id, compile(isa, form, id, function))).collect();
        for (id, code) in compiled {
            let (code, relocations, spans) = code?;
            self.define(id, &code, &relocations, spans)?;
        }
        Ok(())
    }
}

fn compile(isa: &OwnedTargetIsa, form: Option<Records>, id: FuncId, function: Function) -> Result<Linked> {
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
        unwind: of_compiled(compiled, &**isa, form).map_err(|text| Error::internal(Stage::Codegen, text))?,
    };
    let spans = compiled.buffer.get_srclocs_sorted().iter();
    let spans = spans.map(|span| (span.start, span.end, span.loc.bits())).collect();
    Ok((code, relocations, spans))
}

/// Machine code with its references to other symbols of the object, and the source locations of its parts.
type Linked = (MachineCode, Vec<ModuleReloc>, Vec<Span>);

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

/// Writes the table of functions (`.pdata`) and their records (`.xdata`), from which Windows unwinds: start, end and record of
/// each function, as distances from the image's start; on aarch64 the record has the end. Equal records are there once.
fn unwind_tables(product: &mut ObjectProduct, form: Records, records: &[(FuncId, Vec<u8>)]) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let mut add = |name: &[u8]| product.object.add_section(vec![], name.to_vec(), SectionKind::ReadOnlyData);
    let (table, texts) = (add(b".pdata"), add(b".xdata"));
    let texts_symbol = product.object.section_symbol(texts);
    let mut known: HashMap<&[u8], u64> = HashMap::new();
    for (id, record) in records {
        let at = match known.get(record.as_slice()) {
            Some(&at) => at,
            None => {
                let at = product.object.append_section_data(texts, record, 4);
                known.insert(record, at);
                at
            }
        };
        let function = product.function_symbol(*id);
        let size = product.object.symbol(function).size;
        let mut entry = vec![(function, 0), (function, size), (texts_symbol, at)];
        if form == Records::Arm64 {
            entry.remove(1);
        }
        let start = product.object.append_section_data(table, &vec![0; 4 * entry.len()], 4);
        for (field, (symbol, addend)) in (start..).step_by(4).zip(entry) {
            let (kind, encoding) = (RelocationKind::ImageOffset, RelocationEncoding::Generic);
            let flags = RelocationFlags::Generic { kind, encoding, size: 32 };
            let relocation = Relocation { offset: field, symbol, addend: addend as i64, flags };
            product
                .object
                .add_relocation(table, relocation)
                .map_err(|error| Error::internal(Stage::Emit, error.to_string()))?;
        }
    }
    Ok(())
}

/// Writes `.eh_frame`, by which unwinders of ELF systems and macOS walk. It holds distances, so that it needs no relocation when a program
/// starts.
fn frame_rules(
    product: &mut ObjectProduct,
    name: &str,
    machine: Dwarf,
    records: Vec<(FuncId, Vec<u8>)>,
) -> Result<()> {
    let internal = |text: String| Error::internal(Stage::Emit, text);
    let (symbols, functions): (Vec<SymbolId>, Vec<(u64, Vec<u8>)>) = records
        .into_iter()
        .map(|(id, rules)| {
            let symbol = product.function_symbol(id);
            (symbol, (product.object.symbol(symbol).size, rules))
        })
        .unzip();
    if product.object.format() == BinaryFormat::MachO {
        return macho_frame_rules(&mut product.object, name, machine, symbols, &functions);
    }
    let (bytes, fields) =
        unwind::eh_frame(machine, unwind::Distances::Bits32, &functions).map_err(internal)?;
    let section = product.object.add_section(vec![], b".eh_frame".to_vec(), SectionKind::ReadOnlyData);
    product.object.set_section_data(section, bytes, 8);
    for (symbol, offset) in symbols.into_iter().zip(fields) {
        let (kind, encoding) = (RelocationKind::Relative, RelocationEncoding::Generic);
        let flags = RelocationFlags::Generic { kind, encoding, size: 32 };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        product.object.add_relocation(section, relocation).map_err(|error| internal(error.to_string()))?;
    }
    Ok(())
}

/// [`frame_rules`] of a Mach-O object: a distance is the function's address less that of the section.
fn macho_frame_rules(
    object: &mut Object<'static>,
    name: &str,
    machine: Dwarf,
    symbols: Vec<SymbolId>,
    functions: &[(u64, Vec<u8>)],
) -> Result<()> {
    let internal = |text: String| Error::internal(Stage::Emit, text);
    let (bytes, fields) =
        unwind::eh_frame(machine, unwind::Distances::Bits64, functions).map_err(internal)?;
    let segment = object.segment_name(StandardSegment::Text).to_vec();
    let section = object.add_section(segment, b"__eh_frame".to_vec(), SectionKind::ReadOnlyData);
    object.set_section_data(section, bytes, 8);
    *object.section_flags_mut(section) = SectionFlags::MachO { flags: FRAMES };
    // A section has no symbol of its own in such a file.
    let start = object.add_symbol(Symbol {
        name: format!("{name}.frames").into_bytes(),
        value: 0,
        size: 0,
        kind: SymbolKind::Data,
        scope: SymbolScope::Compilation,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    });
    let r_type = match machine {
        Dwarf::X64 => macho::X86_64_RELOC_UNSIGNED,
        Dwarf::Arm64 => macho::ARM64_RELOC_UNSIGNED,
    };
    for (symbol, offset) in symbols.into_iter().zip(fields) {
        let flags = RelocationFlags::MachO { r_type, r_pcrel: false, r_length: 3 };
        let relocation = Relocation { offset, symbol, addend: -(offset as i64), flags };
        object
            .add_relocation_with_subtractor(section, relocation, Some(start))
            .map_err(|error| internal(error.to_string()))?;
    }
    Ok(())
}

/// The version of macOS that a version of Darwin is the kernel of, as Mach-O has versions: 16 bits, 8 and 8.
fn macos_of(darwin: u16) -> u32 {
    match u32::from(darwin) {
        darwin @ ..20 => 10 << 16 | darwin.saturating_sub(4).min(255) << 8,
        darwin @ 20..25 => (darwin - 9) << 16,
        // Versions are years from here on.
        darwin => (darwin + 1) << 16,
    }
}

/// Relocates a reference of a function in a COFF object.
fn refer(product: &mut ObjectProduct, (id, reference, typ): &(FuncId, ModuleReloc, u16)) -> Result<()> {
    let symbol = match &reference.name {
        name if ModuleDeclarations::is_function(name) => product.function_symbol(FuncId::from_name(name)),
        name => product.data_symbol(DataId::from_name(name)),
    };
    let function = product.object.symbol(product.function_symbol(*id));
    let SymbolSection::Section(section) = function.section else {
        return Err(Error::internal(Stage::Emit, "a function has no section"));
    };
    let offset = function.value + u64::from(reference.offset);
    let flags = RelocationFlags::Coff { typ: *typ };
    let relocation = Relocation { offset, symbol, addend: reference.addend, flags };
    let added = product.object.add_relocation(section, relocation);
    added.map_err(|error| Error::internal(Stage::Emit, error.to_string()))
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

/// A function of the user's own has a name that means another one.
fn taken(symbol: &str) -> Error {
    let message = format!("the function `{symbol}`, which computes an operator, has the name of another one");
    Error::new(Stage::Emit, Kind::Usage, message)
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
    use cranelift_codegen::ir::ArgumentExtension;

    use super::*;

    #[test]
    fn versions_of_darwin_are_versions_of_macos() {
        let found = [9, 19, 20, 24, 25].map(macos_of);
        assert_eq!(found, [0xa_0500, 0xa_0f00, 0xb_0000, 0xf_0000, 0x1a_0000]);
    }

    /// Type, size and alignment of each section of a 64-bit ELF file.
    fn sections(elf: &[u8]) -> Vec<(u64, u64, u64)> {
        let number = |at: usize, bytes: usize| {
            elf[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let (start, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
        let headers = (0..count).map(|at| (start + at * size) as usize);
        headers.map(|at| (number(at + 4, 4), number(at + 0x20, 8), number(at + 0x30, 8))).collect()
    }

    /// C on s390x expects integers in whole registers, as it takes them from its callers; others do not.
    #[test]
    fn integers_are_extended_where_c_expects_it() {
        for (triple, extended) in [("s390x-unknown-linux-gnu", true), ("x86_64-unknown-linux-gnu", false)] {
            let target = Target::parse(triple, None).unwrap();
            let unit = Unit::new("model", &target, true).unwrap();
            let signature = unit.signature(&[types::I64, types::I32], Some(types::I32));
            let sign = |param: &AbiParam| param.extension == ArgumentExtension::Sext;
            assert!(!sign(&signature.params[0]), "{triple}");
            let found = [sign(&signature.params[1]), sign(&signature.returns[0])];
            assert_eq!(found, [extended; 2], "{triple}");
        }
    }

    /// Weights beyond the reach of code are in a section that x86-64 has for such data; of others, in the usual one.
    #[test]
    fn sections_of_weights() {
        for (triple, bytes, name, large) in [
            ("x86_64-unknown-linux-gnu", NEAR_BYTES, ".rodata.model.weights", false),
            ("x86_64-unknown-linux-gnu", NEAR_BYTES + 1, ".lrodata.model.weights", true),
            ("aarch64-unknown-linux-gnu", NEAR_BYTES + 1, ".rodata.model.weights", false),
            ("aarch64-apple-darwin", NEAR_BYTES, "__const", false),
        ] {
            let mut unit = Unit::new("model", &Target::parse(triple, None).unwrap(), true).unwrap();
            unit.declare_weights(bytes).unwrap();
            let mut finished = unit.finish(&[], &[], None).unwrap();
            let (section, length) = finished.weights.unwrap();
            let found = finished.object.section_mut(section).name().map(str::to_string);
            assert_eq!((found.as_deref(), length), (Some(name), bytes), "{triple}");
            let flags = finished.object.section_flags_mut(section);
            let marked = matches!(flags, SectionFlags::Elf { sh_flags } if *sh_flags & SHF_X86_64_LARGE != 0);
            assert_eq!(marked, large, "{bytes} bytes for {triple}");
        }
        let mut unit =
            Unit::new("model", &Target::parse("x86_64-pc-windows-msvc", None).unwrap(), true).unwrap();
        unit.declare_weights(NEAR_BYTES).unwrap();
        assert!(unit.declare_weights(NEAR_BYTES + 1).is_err());
    }

    /// Threads write the word of the processor's level at the same time: it must not lie across two cache lines.
    #[test]
    fn the_word_of_the_level_is_aligned() {
        const NO_BITS: u64 = 8;
        let target = Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), None).unwrap();
        let mut unit = Unit::new("model", &target, true).unwrap();
        unit.define_level(&target, &BTreeSet::from([1])).unwrap();
        let elf = unit.finish(&[], &[], None).unwrap().object.write().unwrap();
        let zeros: Vec<_> = sections(&elf).into_iter().filter(|&(kind, ..)| kind == NO_BITS).collect();
        assert_eq!(zeros, [(NO_BITS, 4, 4)]);
    }
}
