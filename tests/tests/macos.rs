//! Libraries for macOS that the compiler writes without a linker. There is no macOS here: this process maps those for x86-64 as the
//! loader of macOS does, and calls them; LLVM's linker and readers say the same of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, UnwindContext, UnwindSection};
use object::macho;
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, Object as _, ObjectSection, ObjectSymbol, RelocationFlags,
    RelocationTarget, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};
use onnxc_object::emit::shared;
use onnxc_runtime_support::sha256::sha256;
use onnxc_tests::object::{include_dir, must, source};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");
const TARGETS: [(&str, &str); 2] = [("x86_64-apple-darwin", "x86_64"), ("aarch64-apple-darwin", "arm64")];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Compiles an example as a model of the name `m`, with no program of this machine.
fn compiled(folder: &Path, example: &str, target: &str, output: &str) -> Vec<u8> {
    let output = folder.join(output);
    let mut onnxc = Command::new(ONNXC);
    onnxc.arg(examples().join(example)).args(["--target", target, "--name", "m", "-o"]).arg(&output);
    must(onnxc.env("PATH", "").env("CC", "/no/such/compiler"));
    std::fs::read(output).unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

fn text_at(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).unwrap()
}

/// A number, seven bits at a time.
fn number(bytes: &[u8], at: &mut usize) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn signed(bytes: &[u8], at: &mut usize) -> isize {
    let start = *at;
    let value = number(bytes, at);
    let unused = usize::BITS as usize - 7 * (*at - start);
    (value as isize) << unused >> unused
}

/// A segment as its command says.
#[derive(Clone, Debug)]
struct Segment {
    name: String,
    address: usize,
    size: usize,
    offset: usize,
    stored: usize,
    protection: usize,
    read_only: bool,
    /// Name, address, size, offset in the file, flags.
    sections: Vec<(String, usize, usize, usize, usize)>,
}

/// An address of a symbol outside: where it is stored, the number of its library, the name, what is added.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bind {
    at: usize,
    library: i8,
    name: String,
    addend: isize,
}

/// A library as the loader reads it.
struct Dylib<'d> {
    file: &'d [u8],
    segments: Vec<Segment>,
    commands: Vec<(usize, &'d [u8])>,
}

impl<'d> Dylib<'d> {
    fn read(file: &'d [u8]) -> Dylib<'d> {
        assert_eq!((u32_at(file, 0), u32_at(file, 12)), (0xfeed_facf, 6));
        let (mut at, mut commands, mut segments) = (32, vec![], vec![]);
        for _ in 0..u32_at(file, 16) {
            let (kind, bytes) = (u32_at(file, at), u32_at(file, at + 4));
            let command = &file[at..at + bytes];
            assert_eq!(bytes % 8, 0);
            if kind == 0x19 {
                let section = |row: &[u8]| {
                    (text_at(&row[..16]), u64_at(row, 32), u64_at(row, 40), u32_at(row, 48), u32_at(row, 64))
                };
                segments.push(Segment {
                    name: text_at(&command[8..24]),
                    address: u64_at(command, 24),
                    size: u64_at(command, 32),
                    offset: u64_at(command, 40),
                    stored: u64_at(command, 48),
                    protection: u32_at(command, 60),
                    read_only: u32_at(command, 68) & 0x10 != 0,
                    sections: command[72..].chunks(80).map(section).collect(),
                });
            }
            commands.push((kind, command));
            at += bytes;
        }
        assert_eq!(at, 32 + u32_at(file, 20));
        Dylib { file, segments, commands }
    }

    fn command(&self, kind: u32) -> &'d [u8] {
        let mut found = self.commands.iter().filter(|command| command.0 == kind as usize);
        let command = found.next().unwrap_or_else(|| panic!("no command {kind:#x}")).1;
        assert!(found.next().is_none(), "{kind:#x} is there twice");
        command
    }

    /// A table that a command names by offset and size.
    fn table(&self, kind: u32, at: usize) -> &'d [u8] {
        let command = self.command(kind);
        &self.file[u32_at(command, at)..][..u32_at(command, at + 4)]
    }

    /// Places of addresses that move with the library.
    fn moved(&self) -> Vec<usize> {
        let (bytes, mut at) = (self.table(macho::LC_DYLD_INFO_ONLY, 8), 0);
        let (mut places, mut place) = (vec![], 0);
        while at < bytes.len() {
            let (opcode, value) = (bytes[at] & 0xf0, usize::from(bytes[at] & 0xf));
            at += 1;
            match opcode {
                0x00 => {}
                0x10 => assert_eq!(value, 1),
                0x20 => place = self.segments[value].address + number(bytes, &mut at),
                0x50 => (0..value).for_each(|_| {
                    places.push(place);
                    place += 8;
                }),
                _ => panic!("opcode {opcode:#x}"),
            }
        }
        places
    }

    fn binds(&self) -> Vec<Bind> {
        let (bytes, mut at) = (self.table(macho::LC_DYLD_INFO_ONLY, 16), 0);
        let mut binds = vec![];
        let mut next = Bind { at: 0, library: 0, name: String::new(), addend: 0 };
        while at < bytes.len() {
            let (opcode, value) = (bytes[at] & 0xf0, bytes[at] & 0xf);
            at += 1;
            match opcode {
                0x00 => {}
                0x10 => next.library = value as i8,
                0x30 => next.library = (value | 0xf0) as i8,
                0x40 => {
                    next.name = text_at(&bytes[at..]);
                    at += next.name.len() + 1;
                }
                0x50 => assert_eq!(value, 1),
                0x60 => next.addend = signed(bytes, &mut at),
                0x70 => next.at = self.segments[usize::from(value)].address + number(bytes, &mut at),
                0x90 => {
                    binds.push(next.clone());
                    next.at += 8;
                }
                _ => panic!("opcode {opcode:#x}"),
            }
        }
        binds
    }

    /// The address of a name, as the loader looks it up.
    fn export(&self, name: &str) -> Option<usize> {
        let tree = self.table(macho::LC_DYLD_INFO_ONLY, 40);
        let (mut at, mut rest) = (0, name.as_bytes());
        if tree.is_empty() {
            return None;
        }
        loop {
            let terminal = number(tree, &mut at);
            if rest.is_empty() {
                let is_export = terminal > 0 && number(tree, &mut at) == 0;
                return is_export.then(|| number(tree, &mut at));
            }
            at += terminal + 1;
            let mut to = None;
            for _ in 0..tree[at - 1] {
                let edge = text_at(&tree[at..]);
                at += edge.len() + 1;
                let child = number(tree, &mut at);
                if let Some(after) = rest.strip_prefix(edge.as_bytes()) {
                    to = Some((child, after));
                }
            }
            (at, rest) = to?;
        }
    }

    /// All names with their addresses.
    fn exports(&self) -> BTreeMap<String, usize> {
        let tree = self.table(macho::LC_DYLD_INFO_ONLY, 40);
        let (mut found, mut open) = (BTreeMap::new(), vec![(0, String::new())]);
        while let Some((mut at, name)) = open.pop().filter(|_| !tree.is_empty()) {
            let terminal = number(tree, &mut at);
            let end = at + terminal;
            if terminal > 0 {
                assert_eq!(number(tree, &mut at), 0, "{name}");
                found.insert(name.clone(), number(tree, &mut at));
            }
            at = end + 1;
            for _ in 0..tree[end] {
                let edge = text_at(&tree[at..]);
                at += edge.len() + 1;
                open.push((number(tree, &mut at), format!("{name}{edge}")));
            }
        }
        found
    }

    /// Names of symbols, with type, section and description.
    fn symbols(&self) -> Vec<(String, u8, u8, u16, usize)> {
        let command = self.command(macho::LC_SYMTAB);
        let names = &self.file[u32_at(command, 16)..][..u32_at(command, 20)];
        let rows = self.file[u32_at(command, 8)..].chunks(16).take(u32_at(command, 12));
        rows.map(|row| {
            let description = u16::from_le_bytes([row[6], row[7]]);
            (text_at(&names[u32_at(row, 0)..]), row[4], row[5], description, u64_at(row, 8))
        })
        .collect()
    }

    /// Checks the rules that hold for every library.
    fn check(&self, name: &str, page: usize) {
        let mut end = 0;
        for (number, segment) in self.segments.iter().enumerate() {
            assert_eq!(segment.address % page, 0);
            assert_eq!(segment.offset % page, 0);
            assert!(segment.address >= end && segment.stored <= segment.size, "{segment:?}");
            assert!(segment.offset + segment.stored <= self.file.len());
            end = segment.address + segment.size;
            for (section, address, size, offset, flags) in &segment.sections {
                assert!(*address >= segment.address && address + size <= end, "{section}");
                if flags & 0xff != 1 {
                    assert_eq!(offset - segment.offset, address - segment.address, "{section}");
                }
            }
            assert_eq!(segment.name == "__LINKEDIT", number + 1 == self.segments.len());
        }
        assert_eq!(self.segments[0].name, "__TEXT");
        assert_eq!(
            (self.segments[0].address, self.segments[0].offset, self.segments[0].protection),
            (0, 0, 5)
        );
        let last = self.segments.last().unwrap();
        assert_eq!((last.offset + last.stored, last.protection), (self.file.len(), 1));
        // Tables lie in their segment, in an order that tools for signatures expect.
        let dyld = self.command(macho::LC_DYLD_INFO_ONLY);
        let symtab = self.command(macho::LC_SYMTAB);
        let dysymtab = self.command(macho::LC_DYSYMTAB);
        let signature = self.command(macho::LC_CODE_SIGNATURE);
        let tables = [
            (u32_at(dyld, 8), u32_at(dyld, 12)),
            (u32_at(dyld, 16), u32_at(dyld, 20)),
            (u32_at(dyld, 40), u32_at(dyld, 44)),
            (u32_at(symtab, 8), 16 * u32_at(symtab, 12)),
            (u32_at(dysymtab, 56), 4 * u32_at(dysymtab, 60)),
            (u32_at(symtab, 16), u32_at(symtab, 20)),
            (u32_at(signature, 8), u32_at(signature, 12)),
        ];
        // Each begins where the one before ends; the signature at a multiple of 16.
        let mut end = last.offset;
        for (number, (offset, size)) in tables.into_iter().enumerate().filter(|(_, table)| table.1 > 0) {
            let multiple = if number == 6 { 16 } else { 4 };
            assert_eq!(offset, end.next_multiple_of(multiple), "{tables:?}");
            end = offset + size;
        }
        assert_eq!(end, self.file.len());
        // Symbols: those of the library alone, exports, those outside.
        let symbols = self.symbols();
        let counts = [0, 1, 2].map(|at| (u32_at(dysymtab, 8 + 8 * at), u32_at(dysymtab, 12 + 8 * at)));
        assert_eq!(counts[0].0, 0);
        assert_eq!(counts[1].0, counts[0].1);
        assert_eq!(counts[2].0, counts[1].0 + counts[1].1);
        assert_eq!(symbols.len(), counts[2].0 + counts[2].1);
        let exports: BTreeMap<String, usize> = symbols[counts[1].0..counts[2].0]
            .iter()
            .map(|(name, kind, _, _, address)| {
                assert_eq!(*kind, 0x0f, "{name}");
                (name.clone(), *address)
            })
            .collect();
        assert_eq!(exports, self.exports());
        for (name, address) in &exports {
            assert_eq!(self.export(name), Some(*address));
            assert_eq!(self.export(&name[..name.len() - 1]), exports.get(&name[..name.len() - 1]).copied());
        }
        let sections: Vec<_> = self.segments.iter().flat_map(|segment| &segment.sections).collect();
        for (name, kind, section, _, address) in &symbols[..counts[2].0] {
            assert_eq!(kind & 0x0e, 0x0e, "{name}");
            let (_, start, size, ..) = sections[usize::from(*section) - 1];
            assert!((*start..=start + size).contains(address), "{name}");
        }
        for (name, kind, section, description, address) in &symbols[counts[2].0..] {
            assert_eq!((*kind, *section, *address), (1, 0, 0), "{name}");
            let library = if name == "_memcpy" { 1 } else { 0xfe };
            assert_eq!(description >> 8, library, "{name}");
        }
        let library = |command: &[u8]| text_at(&command[u32_at(command, 8)..]);
        assert_eq!(library(self.command(macho::LC_ID_DYLIB)), format!("@rpath/{name}"));
        assert_eq!(library(self.command(macho::LC_LOAD_DYLIB)), "/usr/lib/libSystem.B.dylib");
        let build = self.command(macho::LC_BUILD_VERSION);
        assert_eq!((u32_at(build, 8), u32_at(build, 12)), (1, 11 << 16));
        self.check_signature(name);
    }

    /// Hashes all pages again.
    fn check_signature(&self, name: &str) {
        let signature = self.table(macho::LC_CODE_SIGNATURE, 8);
        let big =
            |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let signed = u32_at(self.command(macho::LC_CODE_SIGNATURE), 8);
        assert_eq!((big(signature, 0), big(signature, 8), big(signature, 12)), (0xfade_0cc0, 1, 0));
        assert!(big(signature, 4) <= signature.len());
        let directory = &signature[big(signature, 16)..big(signature, 4)];
        assert_eq!((big(directory, 0), big(directory, 4)), (0xfade_0c02, directory.len()));
        // Without an identity, by a linker.
        assert_eq!((big(directory, 8), big(directory, 12)), (0x2_0400, 0x2_0002));
        assert_eq!(text_at(&directory[big(directory, 20)..]), name);
        assert_eq!((big(directory, 24), big(directory, 32)), (0, signed));
        assert_eq!(directory[36..40], [32, 2, 0, 12]);
        let text = u64::from_be_bytes(directory[72..80].try_into().unwrap()) as usize;
        assert_eq!(text, self.segments[0].stored);
        let pages: Vec<&[u8]> = self.file[..signed].chunks(0x1000).collect();
        let hashes: Vec<&[u8]> = directory[big(directory, 16)..].chunks(32).collect();
        assert_eq!((hashes.len(), big(directory, 28)), (pages.len(), pages.len()));
        for (at, (hash, page)) in hashes.iter().zip(pages).enumerate() {
            assert_eq!(**hash, sha256(page), "page {at}");
        }
    }
}

/// Structure and signature of libraries of models; the same object gives the same bytes, another name another identity.
/// Address and bytes of the rules for unwinders, with distances filled in as linkers do.
fn frames(file: &object::File<'_>) -> Option<(u64, Vec<u8>)> {
    let section = file.section_by_name("__eh_frame")?;
    let mut bytes = section.data().unwrap().to_vec();
    let address = |target: RelocationTarget| {
        let RelocationTarget::Symbol(symbol) = target else { panic!("{target:?}") };
        file.symbol_by_index(symbol).unwrap().address()
    };
    for (offset, relocation) in section.relocations() {
        let field = &mut bytes[offset as usize..offset as usize + 8];
        let added = u64::from_le_bytes((&*field).try_into().unwrap());
        let less = address(RelocationTarget::Symbol(relocation.subtractor().expect("a distance")));
        let distance = address(relocation.target()).wrapping_sub(less).wrapping_add(added);
        field.copy_from_slice(&distance.to_le_bytes());
    }
    Some((section.address(), bytes))
}

#[test]
fn unwinders_find_the_rules_of_every_function() {
    for (target, architecture) in TARGETS {
        let folder = tempfile::tempdir().unwrap();
        for output in ["m.o", "libm.dylib"] {
            let bytes = compiled(folder.path(), "digits/digits.onnx", target, output);
            let file = object::File::parse(&*bytes).unwrap();
            let (address, section) = frames(&file).expect(output);
            let rules = EhFrame::new(&section, LittleEndian);
            let bases = BaseAddresses::default().set_eh_frame(address);
            let code = file.section_by_name("__text").unwrap().index();
            let functions = file.symbols().filter(|symbol| symbol.section_index() == Some(code));
            let starts: BTreeSet<u64> = functions.map(|function| function.address()).collect();
            assert!(starts.len() > 5, "{target} {output}: {starts:?}");
            for &start in &starts {
                let entry = rules.fde_for_address(&bases, start, EhFrame::cie_from_offset);
                let entry = entry.unwrap_or_else(|error| panic!("{target} {output} {start:#x}: {error}"));
                assert_eq!(entry.initial_address(), start, "{target} {output}");
                // The stack pointer, and what a call has pushed.
                let (register, pushed) = if architecture == "arm64" { (31, 0) } else { (7, 8) };
                let mut context = UnwindContext::new();
                let row = entry.unwind_info_for_address(&rules, &bases, &mut context, start).unwrap();
                let caller = CfaRule::RegisterAndOffset { register: Register(register), offset: pushed };
                assert_eq!(row.cfa(), &caller, "{target} {output}");
                let last = start + entry.len() - 1;
                entry.unwind_info_for_address(&rules, &bases, &mut context, last).unwrap();
                assert!(starts.range(start + 1..=last).next().is_none(), "{target} {output}: {start:#x}");
            }
        }
        let output = folder.path().join("bare.o");
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(examples().join("digits/digits.onnx")).args(["--target", target, "--no-unwind", "-o"]);
        must(onnxc.arg(&output));
        let bytes = std::fs::read(output).unwrap();
        assert!(frames(&object::File::parse(&*bytes).unwrap()).is_none(), "{target}");
    }
}

/// Darwin 20 is the kernel of macOS 11.
#[test]
fn objects_state_the_version_of_macos() {
    let folder = tempfile::tempdir().unwrap();
    for (target, major) in [("x86_64-apple-darwin20", 11), ("aarch64-apple-darwin23.1.0", 14)] {
        let bytes = compiled(folder.path(), "digits/digits.onnx", target, "m.o");
        let file = object::read::macho::MachOFile64::<Endianness>::parse(&*bytes).unwrap();
        let version = file.build_version().unwrap().expect("it states one");
        assert_eq!(version.minos.get(Endianness::Little), major << 16, "{target}");
    }
}

#[test]
fn dylibs_are_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    for (target, _) in TARGETS {
        let page = if target.starts_with("x86") { 0x1000 } else { 0x4000 };
        let dense = compiled(folder.path(), "digits/digits.onnx", target, "a.dylib");
        let object = compiled(folder.path(), "text/text.onnx", target, "m.o");
        let texts = library_of(&object, "a.dylib").unwrap();
        assert!(library_of(&object, "a.dylib").unwrap() == texts, "not the same bytes again");
        let identity = |library: &Dylib<'_>| library.command(macho::LC_UUID)[8..].to_vec();
        let other = library_of(&object, "b.dylib").unwrap();
        assert_ne!(identity(&Dylib::read(&texts)), identity(&Dylib::read(&other)));
        for file in [&dense, &texts] {
            let library = Dylib::read(file);
            library.check("a.dylib", page);
            assert_eq!(library.exports().keys().collect::<Vec<_>>(), ["_m_model", "_m_run", "_m_workspace"]);
            assert_eq!(library.binds().is_empty(), *file == dense);
            for bind in library.binds() {
                let is_runtime = bind.name.starts_with("_onnxc_strings_");
                let wanted = if is_runtime { -2 } else { 1 };
                assert!(is_runtime || bind.name == "_memcpy", "{bind:?}");
                assert_eq!((bind.library, bind.addend), (wanted, 0));
            }
        }
    }
}

/// What an object of all kinds of references is made of.
struct Parts {
    object: Object<'static>,
    text: SectionId,
    code: Vec<u8>,
    references: Vec<(usize, SymbolId, i64, u8, bool)>,
}

impl Parts {
    fn add(
        &mut self,
        section: Option<SectionId>,
        name: &str,
        at: u64,
        kind: SymbolKind,
        global: bool,
    ) -> SymbolId {
        self.object.add_symbol(Symbol {
            name: name.into(),
            value: at,
            size: 0,
            kind,
            scope: if global { SymbolScope::Dynamic } else { SymbolScope::Compilation },
            weak: false,
            section: section.map_or(SymbolSection::Undefined, SymbolSection::Section),
            flags: SymbolFlags::None,
        })
    }

    /// Code, then a field that refers to a symbol. The addend is the format's: what the field holds.
    fn refer(&mut self, code: &[u8], symbol: SymbolId, addend: i64, kind: u8) {
        self.code.extend(code);
        self.references.push((self.code.len(), symbol, addend, kind, true));
        self.code.extend([0; 4]);
    }

    /// An instruction whose bits refer to a symbol.
    fn instruct(&mut self, word: u32, symbol: SymbolId, addend: i64, kind: u8, relative: bool) {
        self.references.push((self.code.len(), symbol, addend, kind, relative));
        self.code.extend(word.to_le_bytes());
    }

    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.code.extend(word.to_le_bytes()));
    }
}

/// An object with a function `total` of a number that reads and writes through every kind of reference: to a function outside, to
/// numbers outside by an entry of the table of addresses, by pointers with addends, by distances, to what is zero at first. It adds
/// the number, 5 of the function, the numbers 100 and 2000, constants 3, 40 and 500, and how often it was called.
fn every_reference(architecture: Architecture, align: u64) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::MachO, architecture, Endianness::Little);
    object.set_subsections_via_symbols();
    let text = object.add_section(b"__TEXT".to_vec(), b"__text".to_vec(), SectionKind::Text);
    let constants = object.add_section(b"__DATA".to_vec(), b"__const".to_vec(), SectionKind::ReadOnlyData);
    let fixed = object.add_section(b"__TEXT".to_vec(), b"__const".to_vec(), SectionKind::ReadOnlyData);
    let variables = object.add_section(b"__DATA".to_vec(), b"__data".to_vec(), SectionKind::Data);
    let zeros = object.add_section(b"__DATA".to_vec(), b"__bss".to_vec(), SectionKind::UninitializedData);
    let numbers: Vec<u8> = [3i64, 40, 500].iter().flat_map(|number| number.to_le_bytes()).collect();
    let table_at = object.append_section_data(fixed, &numbers, align);
    // A distance, then two pointers.
    let distance_at = object.append_section_data(constants, &[0; 8], align);
    let pointers_at = object.append_section_data(constants, &[0; 8], 8);
    let outside_at = object.append_section_data(variables, &[0; 8], 8);
    let counter_at = object.append_section_bss(zeros, 16, align.min(16));
    let mut parts = Parts { object, text, code: vec![], references: vec![] };
    let table = parts.add(Some(fixed), "table", table_at, SymbolKind::Data, false);
    let distance = parts.add(Some(constants), "distance", distance_at, SymbolKind::Data, false);
    let pointer = parts.add(Some(constants), "pointer", pointers_at, SymbolKind::Data, false);
    let pointer_outside = parts.add(Some(variables), "pointer_outside", outside_at, SymbolKind::Data, false);
    let counter = parts.add(Some(zeros), "counter", counter_at, SymbolKind::Data, false);
    let outside = parts.add(None, "outside", 0, SymbolKind::Text, true);
    let numbers = parts.add(None, "numbers", 0, SymbolKind::Data, true);
    parts.add(Some(text), "total", 0, SymbolKind::Text, true);
    let pointer_kind = match architecture {
        Architecture::X86_64 => macho::X86_64_RELOC_UNSIGNED,
        _ => macho::ARM64_RELOC_UNSIGNED,
    };
    let mut add = |section, offset, symbol, addend, kind: (u8, bool, u8), less: Option<SymbolId>| {
        let flags = RelocationFlags::MachO { r_type: kind.0, r_pcrel: kind.1, r_length: kind.2 };
        let relocation = Relocation { offset, symbol, addend, flags };
        parts.object.add_relocation_with_subtractor(section, relocation, less).unwrap();
    };
    add(constants, distance_at, table, 8, (pointer_kind, false, 2), Some(distance));
    add(constants, pointers_at, table, 16, (pointer_kind, false, 3), None);
    add(variables, outside_at, numbers, 8, (pointer_kind, false, 3), None);
    if architecture == Architecture::X86_64 {
        // push rbx; mov rbx, rdi; call outside; add rbx, rax
        parts.refer(&[0x53, 0x48, 0x89, 0xfb, 0xe8], outside, -4, macho::X86_64_RELOC_BRANCH);
        parts.code.extend([0x48, 0x01, 0xc3]);
        // mov rax, [entry of numbers]; add rbx, [rax]
        parts.refer(&[0x48, 0x8b, 0x05], numbers, -4, macho::X86_64_RELOC_GOT_LOAD);
        parts.code.extend([0x48, 0x03, 0x18]);
        // mov rax, [pointer]; add rbx, [rax]
        for symbol in [pointer, pointer_outside] {
            parts.refer(&[0x48, 0x8b, 0x05], symbol, -4, macho::X86_64_RELOC_SIGNED);
            parts.code.extend([0x48, 0x03, 0x18]);
        }
        // lea rax, [distance]; movsxd rcx, [rax]; add rbx, [rax+rcx]
        parts.refer(&[0x48, 0x8d, 0x05], distance, -4, macho::X86_64_RELOC_SIGNED);
        parts.code.extend([0x48, 0x63, 0x08, 0x48, 0x03, 0x1c, 0x08]);
        // add rbx, [table]; inc [counter]; add rbx, [counter]
        parts.refer(&[0x48, 0x03, 0x1d], table, -4, macho::X86_64_RELOC_SIGNED);
        parts.refer(&[0x48, 0xff, 0x05], counter, -4, macho::X86_64_RELOC_SIGNED);
        parts.refer(&[0x48, 0x03, 0x1d], counter, -4, macho::X86_64_RELOC_SIGNED);
        // mov byte [counter + 8], 7; mov dword [counter + 12], 9. The fields hold 8 - 1 and 12 - 4, since 1 and 4 bytes follow them in
        // the instructions; the writer of the object adds 5 and 8 to addends of these kinds.
        parts.refer(&[0xc6, 0x05], counter, 2, macho::X86_64_RELOC_SIGNED_1);
        parts.code.push(7);
        parts.refer(&[0xc7, 0x05], counter, 0, macho::X86_64_RELOC_SIGNED_4);
        parts.code.extend([9, 0, 0, 0]);
        // mov rax, rbx; pop rbx; ret
        parts.code.extend([0x48, 0x89, 0xd8, 0x5b, 0xc3]);
    } else {
        let (page, low) = (macho::ARM64_RELOC_PAGE21, macho::ARM64_RELOC_PAGEOFF12);
        // stp x29, x30, [sp, #-32]!; str x19, [sp, #16]; mov x19, x0; bl outside; add x19, x19, x0
        parts.words(&[0xa9be_7bfd, 0xf900_0bf3, 0xaa00_03f3]);
        parts.instruct(0x9400_0000, outside, 0, macho::ARM64_RELOC_BRANCH26, true);
        parts.words(&[0x8b00_0273]);
        // adrp x8, entry; ldr x8, [x8, entry]; ldr x8, [x8]; add x19, x19, x8
        parts.instruct(0x9000_0008, numbers, 0, macho::ARM64_RELOC_GOT_LOAD_PAGE21, true);
        parts.instruct(0xf940_0108, numbers, 0, macho::ARM64_RELOC_GOT_LOAD_PAGEOFF12, false);
        parts.words(&[0xf940_0108, 0x8b08_0273]);
        for symbol in [pointer, pointer_outside] {
            parts.instruct(0x9000_0008, symbol, 0, page, true);
            parts.instruct(0xf940_0108, symbol, 0, low, false);
            parts.words(&[0xf940_0108, 0x8b08_0273]);
        }
        // adrp x8, distance; add x8, x8, distance; ldrsw x9, [x8]; ldr x9, [x8, x9]; add x19, x19, x9
        parts.instruct(0x9000_0008, distance, 0, page, true);
        parts.instruct(0x9100_0108, distance, 0, low, false);
        parts.words(&[0xb980_0109, 0xf869_6909, 0x8b09_0273]);
        // adrp x8, table; ldr x9, [x8, table]; add x19, x19, x9
        parts.instruct(0x9000_0008, table, 0, page, true);
        parts.instruct(0xf940_0109, table, 0, low, false);
        parts.words(&[0x8b09_0273]);
        // The counter, by its place with an addend: ldr x9; add x9, x9, #1; str x9; add x19, x19, x9
        parts.instruct(0x9000_0008, counter, 8, page, true);
        parts.instruct(0xf940_0109, counter, 8, low, false);
        parts.words(&[0x9100_0529]);
        parts.instruct(0xf900_0109, counter, 8, low, false);
        parts.words(&[0x8b09_0273]);
        // mov x0, x19; ldr x19, [sp, #16]; ldp x29, x30, [sp], #32; ret
        parts.words(&[0xaa13_03e0, 0xf940_0bf3, 0xa8c2_7bfd, 0xd65f_03c0]);
    }
    let Parts { mut object, text, code, references } = parts;
    object.append_section_data(text, &code, 16);
    for (offset, symbol, addend, r_type, r_pcrel) in references {
        let flags = RelocationFlags::MachO { r_type, r_pcrel, r_length: 2 };
        object.add_relocation(text, Relocation { offset: offset as u64, symbol, addend, flags }).unwrap();
    }
    object.write().unwrap()
}

/// `total` of 7, called the first time.
const TOTAL: i64 = 7 + 5 + 100 + 2000 + 3 + 40 + 500 + 1;

fn library_of(object: &[u8], name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    shared::write(object, name, &mut bytes).map_err(|error| error.message)?;
    Ok(bytes)
}

#[test]
fn every_reference_is_filled_in() {
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        let page = if architecture == Architecture::X86_64 { 0x1000 } else { 0x4000 };
        for align in [8, 4096] {
            let file = library_of(&every_reference(architecture, align), "t.dylib").unwrap();
            let library = Dylib::read(&file);
            library.check("t.dylib", page);
            let symbols = library.symbols();
            let address = |name: &str| symbols.iter().find(|symbol| symbol.0 == name).unwrap().4;
            for name in ["_table", "_distance"] {
                assert_eq!(address(name) % align as usize, 0, "{name}");
            }
            assert_eq!(library.moved(), [address("_pointer")]);
            let binds: Vec<_> =
                library.binds().into_iter().map(|bind| (bind.name, bind.addend, bind.library)).collect();
            let wanted = [("_numbers", 0), ("_numbers", 8), ("_outside", 0)];
            let mut sorted = binds.clone();
            sorted.sort();
            assert_eq!(sorted, wanted.map(|(name, addend)| (name.to_string(), addend, -2)));
            let names: Vec<_> = library.segments.iter().map(|segment| segment.name.as_str()).collect();
            assert_eq!(names, ["__TEXT", "__DATA_CONST", "__DATA", "__LINKEDIT"]);
            let zeros = &library.segments[2].sections[1];
            assert_eq!((zeros.0.as_str(), zeros.2, zeros.3, zeros.4), ("__bss", 16, 0, 1));
        }
        // More than a page: the loader does not place libraries so.
        let refusal = library_of(&every_reference(architecture, 1 << 15), "t.dylib").unwrap_err();
        assert!(refusal.contains("aligned to 32768 bytes"), "{refusal}");
    }
}

/// A library that exports nothing, and one with no data.
#[test]
fn small_objects() {
    for (architecture, page) in [(Architecture::X86_64, 0x1000), (Architecture::Aarch64, 0x4000)] {
        for global in [false, true] {
            let mut object = Object::new(BinaryFormat::MachO, architecture, Endianness::Little);
            let text = object.add_section(b"__TEXT".to_vec(), b"__text".to_vec(), SectionKind::Text);
            object.append_section_data(text, &[0; 4], 4);
            let mut parts = Parts { object, text, code: vec![], references: vec![] };
            parts.add(Some(text), "function", 0, SymbolKind::Text, global);
            let file = library_of(&parts.object.write().unwrap(), "t.dylib").unwrap();
            let library = Dylib::read(&file);
            library.check("t.dylib", page);
            assert_eq!(library.exports().len(), usize::from(global));
            assert_eq!(library.export("_function").is_some(), global);
            assert_eq!((library.moved().len(), library.binds().len(), library.segments.len()), (0, 0, 2));
        }
    }
}

/// Objects that become no library, and why.
#[test]
fn refusals() {
    let object = |change: &dyn Fn(&mut Parts)| {
        let mut object = Object::new(BinaryFormat::MachO, Architecture::X86_64, Endianness::Little);
        let text = object.add_section(b"__TEXT".to_vec(), b"__text".to_vec(), SectionKind::Text);
        object.append_section_data(text, &[0; 16], 4);
        let mut parts = Parts { object, text, code: vec![], references: vec![] };
        change(&mut parts);
        library_of(&parts.object.write().unwrap(), "t.dylib").unwrap_err()
    };
    let refer = |parts: &mut Parts, kind, relative, length| {
        let symbol = parts.add(None, "outside", 0, SymbolKind::Text, true);
        let flags = RelocationFlags::MachO { r_type: kind, r_pcrel: relative, r_length: length };
        parts.object.add_relocation(parts.text, Relocation { offset: 8, symbol, addend: 0, flags }).unwrap();
    };
    let text = object(&|parts| refer(parts, macho::X86_64_RELOC_UNSIGNED, false, 3));
    assert!(text.contains("an address in a segment of code"), "{text}");
    let text = object(&|parts| refer(parts, macho::X86_64_RELOC_TLV, true, 2));
    assert!(text.contains("relocation 9 of 4 bytes"), "{text}");
    let text = object(&|parts| refer(parts, macho::X86_64_RELOC_UNSIGNED, false, 2));
    assert!(text.contains("relocation 0 of 4 bytes"), "{text}");
    let text = object(&|parts| {
        parts.object.add_section(b"__OTHER".to_vec(), b"__data".to_vec(), SectionKind::Data);
    });
    assert!(text.contains("section __OTHER,__data is not known"), "{text}");
    let text = object(&|parts| {
        let mut version = object::write::MachOBuildVersion::default();
        version.platform = macho::PLATFORM_IOS;
        parts.object.set_macho_build_version(version);
    });
    assert!(text.contains("a system other than macOS"), "{text}");
    let text = library_of(&[0; 64], "t.dylib").unwrap_err();
    assert!(text.contains("no shared library of this object"), "{text}");
}

/// The linker of LLVM makes libraries of the same objects with the same exports, the same functions from the same libraries, sections of
/// the same size and signatures of the same form; its readers find nothing wrong in ours.
#[test]
fn linkers_agree() {
    let Some(linker) = tool("ld64.lld") else { return };
    let (Some(objdump), Some(readobj)) = (tool("llvm-objdump"), tool("llvm-readobj")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [system, input, linked, own] =
        ["libSystem.tbd", "m.o", "linked.dylib", "own.dylib"].map(|name| folder.path().join(name));
    std::fs::write(&system, SYSTEM).unwrap();
    let mut objects = vec![
        ("x86_64", every_reference(Architecture::X86_64, 8)),
        ("arm64", every_reference(Architecture::Aarch64, 8)),
    ];
    for (target, arch) in TARGETS {
        for example in ["digits/digits.onnx", "text/text.onnx"] {
            objects.push((arch, compiled(folder.path(), example, target, "m.o")));
        }
    }
    for (arch, object) in objects {
        let mine = library_of(&object, "own.dylib").unwrap();
        std::fs::write(&input, &object).unwrap();
        std::fs::write(&own, &mine).unwrap();
        let mut link = Command::new(&linker);
        link.args(["-arch", arch, "-platform_version", "macos", "11.0", "11.0", "-dylib", "-adhoc_codesign"]);
        link.args(["-undefined", "dynamic_lookup", "-install_name", "@rpath/own.dylib", "-o"]);
        must(link.arg(&linked).arg(&input).arg(&system));
        let other = std::fs::read(&linked).unwrap();
        let (other, mine) = (Dylib::read(&other), Dylib::read(&mine));
        assert_eq!(other.exports().keys().collect::<Vec<_>>(), mine.exports().keys().collect::<Vec<_>>());
        // Pointers to functions outside for stubs are bound late there, and at once here.
        let read = |flag: &str, file: &Path| {
            let output = must(Command::new(&objdump).args(["-m", flag]).arg(file));
            assert!(output.stderr.is_empty(), "{flag}: {}", String::from_utf8_lossy(&output.stderr));
            rows(&String::from_utf8(output.stdout).unwrap())
        };
        let bound = read("--bind", &own);
        let places: Vec<(usize, String)> = bound.iter().map(|row| (hex(&row[2]), row[6].clone())).collect();
        assert_eq!(places, mine.binds().into_iter().map(|bind| (bind.at, bind.name)).collect::<Vec<_>>());
        // Addend, library and symbol.
        let distinct = |tables: &[&[Vec<String>]]| {
            let rows = tables.iter().flat_map(|rows| rows.iter());
            let words = rows.map(|row| match row.len() {
                7 => row[4..].to_vec(),
                _ => [&["0".to_string()], &row[3..]].concat(),
            });
            words.filter(|row| row[2] != "dyld_stub_binder").collect::<BTreeSet<Vec<String>>>()
        };
        let wanted = distinct(&[&read("--bind", &linked), &read("--lazy-bind", &linked)]);
        assert_eq!(distinct(&[&bound]), wanted);
        let moved: Vec<usize> = read("--rebase", &own).iter().map(|row| hex(&row[2])).collect();
        assert_eq!(moved, mine.moved());
        // On arm64 the linker makes loads of the library's own addresses sums; stubs are of another kind there.
        let is_alike = arch == "x86_64" && mine.export("_m_run").is_some();
        if is_alike {
            assert_eq!(moved.len(), read("--rebase", &linked).len());
        }
        let sizes = |library: &Dylib<'_>| {
            let mut sizes = BTreeMap::new();
            for segment in &library.segments {
                for (name, _, size, _, flags) in &segment.sections {
                    if is_alike || matches!(name.as_str(), "__text" | "__const" | "__bss") {
                        sizes.insert((segment.name.clone(), name.clone()), (*size, *flags));
                    }
                }
            }
            sizes
        };
        assert_eq!(sizes(&mine), sizes(&other));
        let protections = |library: &Dylib<'_>| {
            let segments = library.segments.iter();
            segments.map(|one| (one.name.clone(), one.protection)).collect::<Vec<_>>()
        };
        assert_eq!(protections(&mine), protections(&other));
        assert_eq!(u32_at(mine.file, 24), u32_at(other.file, 24), "flags");
        other.check_signature("linked.dylib");
        let text = must(Command::new(&readobj).args(["--file-headers", "--sections", "--symbols"]).arg(&own));
        assert!(text.stderr.is_empty(), "{}", String::from_utf8_lossy(&text.stderr));
        let headers = must(Command::new(&objdump).args(["-m", "--private-headers"]).arg(&own)).stdout;
        let headers = String::from_utf8(headers).unwrap();
        assert_eq!(headers.matches(" cmd LC_").count(), mine.commands.len(), "{headers}");
        // Another reader of the format.
        let nm = object::File::parse(mine.file).unwrap();
        let outside = nm.symbols().filter(|symbol| symbol.is_undefined());
        let outside: BTreeSet<String> = outside.map(|symbol| symbol.name().unwrap().to_string()).collect();
        assert_eq!(outside, mine.binds().into_iter().map(|bind| bind.name).collect());
        assert_eq!(nm.kind(), object::ObjectKind::Dynamic);
        assert_eq!(nm.exports().unwrap().len(), mine.exports().len());
    }
}

/// The system's library as linkers know it.
const SYSTEM: &str = "--- !tapi-tbd
tbd-version: 4
targets: [ x86_64-macos, arm64-macos ]
install-name: '/usr/lib/libSystem.B.dylib'
exports:
  - targets: [ x86_64-macos, arm64-macos ]
    symbols: [ _memcpy, dyld_stub_binder ]
...
";

/// The words of the rows of a table that `llvm-objdump` prints.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with("__"));
    lines.map(|line| line.split_whitespace().map(str::to_string).collect()).collect()
}

fn hex(text: &str) -> usize {
    usize::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

/// A tool of LLVM, perhaps with its version behind its name. Without it, what needs it is left out.
fn tool(name: &str) -> Option<String> {
    let names =
        std::iter::once(name.to_string()).chain((14..30).rev().map(|version| format!("{name}-{version}")));
    let found = names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    if found.is_none() {
        println!("skipped: {name} (Debian: llvm, lld) is not installed");
    }
    found
}

/// The libraries for aarch64 run under emulation, by a program that loads them.
#[test]
fn dylibs_for_aarch64_run() {
    let (compiler, emulator) = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static");
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !runs(compiler) || !runs(emulator) {
        println!("not run: {compiler} and {emulator} are not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("macho");
    let mut build = Command::new(compiler);
    build.args(["-static", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include_dir());
    must(build.arg("-I").arg(examples().join("digits")).arg(source("macho.c")).arg("-o").arg(&program));
    let run = |library: &Path, function: &str| {
        let output = must(Command::new(emulator).arg(&program).arg(library).arg(function));
        String::from_utf8(output.stdout).unwrap()
    };
    compiled(folder.path(), "digits/digits.onnx", "aarch64-apple-darwin", "m.dylib");
    let text = run(&folder.path().join("m.dylib"), "m_model");
    assert!(text.starts_with("predicted 9 (probability "), "{text}");
    let library = folder.path().join("t.dylib");
    std::fs::write(&library, library_of(&every_reference(Architecture::Aarch64, 4096), "t.dylib").unwrap())
        .unwrap();
    assert_eq!(run(&library, "total"), format!("{TOTAL} {}\n", TOTAL + 1));
}

/// Libraries for x86-64, in this process: mapped and filled in as the loader of macOS does.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod loaded {
    use std::ffi::c_void;

    use onnxc_ir::graph::call::FUNCTIONS;
    use onnxc_runtime_support::strings::{onnxc_strings_close, onnxc_strings_fault, onnxc_strings_open};
    use onnxc_runtime_support::{AlignedBytes, Model, Options, Status, StringView, Tensor, abi, alloc};

    use super::*;

    const X86_64: &str = TARGETS[0].0;

    struct Loaded<'d> {
        library: Dylib<'d>,
        memory: *mut u8,
        size: usize,
    }

    impl Drop for Loaded<'_> {
        fn drop(&mut self) {
            // SAFETY: `load` mapped it.
            unsafe { libc::munmap(self.memory.cast(), self.size) };
        }
    }

    fn load<'d>(file: &'d [u8], outside: &dyn Fn(&str) -> *const c_void) -> Loaded<'d> {
        let library = Dylib::read(file);
        let size = library.segments.iter().map(|segment| segment.address + segment.size).max().unwrap();
        // SAFETY: a new mapping, which nothing else refers to.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let memory: *mut u8 = memory.cast();
        // SAFETY: the mapping has this size, and is only written before the library is called.
        let image = unsafe { std::slice::from_raw_parts_mut(memory, size) };
        for segment in &library.segments {
            let bytes = &file[segment.offset..segment.offset + segment.stored];
            image[segment.address..segment.address + segment.stored].copy_from_slice(bytes);
        }
        for at in library.moved() {
            let address = u64_at(image, at) + memory as usize;
            image[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        for bind in library.binds() {
            let address = (outside(&bind.name) as usize).wrapping_add_signed(bind.addend);
            image[bind.at..bind.at + 8].copy_from_slice(&address.to_le_bytes());
        }
        for segment in &library.segments {
            let has = |bit: usize, protection| if segment.protection & bit != 0 { protection } else { 0 };
            let write = if segment.read_only { 0 } else { has(2, libc::PROT_WRITE) };
            let protection = has(1, libc::PROT_READ) | write | has(4, libc::PROT_EXEC);
            // SAFETY: pages of the mapping.
            let status =
                unsafe { libc::mprotect(memory.add(segment.address).cast(), segment.size, protection) };
            assert_eq!(status, 0);
        }
        Loaded { library, memory, size }
    }

    impl Loaded<'_> {
        fn function(&self, name: &str) -> *const c_void {
            let at = self.library.export(name).unwrap();
            self.memory.wrapping_add(at) as *const c_void
        }

        fn model(&self) -> &Model {
            // SAFETY: the function of this name has this type, and gives a constant of the library.
            unsafe {
                (std::mem::transmute::<*const c_void, abi::ModelFn>(self.function("_m_model")))().as_ref()
            }
            .unwrap()
        }
    }

    /// Functions of this process.
    fn of_process(name: &str) -> *const c_void {
        let own = [
            ("_onnxc_strings_open", onnxc_strings_open as *const c_void),
            ("_onnxc_strings_close", onnxc_strings_close as *const c_void),
            ("_onnxc_strings_fault", onnxc_strings_fault as *const c_void),
            ("_memcpy", libc::memcpy as *const c_void),
            ("_outside", outside as *const c_void),
            ("_numbers", (&raw const NUMBERS).cast()),
        ];
        let runtime = FUNCTIONS.iter().find(|function| name[1..] == *function.symbol.name);
        let own = own.into_iter().find(|row| row.0 == name).map(|row| row.1);
        own.or_else(|| runtime.map(|function| (function.address)())).unwrap_or_else(|| panic!("{name}"))
    }

    extern "C" fn outside() -> i64 {
        5
    }

    static NUMBERS: [i64; 2] = [100, 2000];

    fn tensor<T>(data: &mut [T], dtype: i32, dims: &mut [i64]) -> Tensor {
        Tensor {
            data: data.as_mut_ptr().cast(),
            bytes: size_of_val(data),
            dtype,
            rank: dims.len() as i32,
            dims: dims.as_mut_ptr(),
        }
    }

    fn run(model: &Model, inputs: &[Tensor], outputs: &mut [Tensor], options: &Options) -> Status {
        let mut workspace = AlignedBytes::new(1 << 20).unwrap();
        let memory = workspace.as_mut_ptr().cast();
        // SAFETY: the model is a compiled one, and the buffers are as it says.
        unsafe {
            model.run()(
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                memory,
                1 << 20,
                options,
            )
        }
    }

    /// A model computes what the library for this system does, whose bytes are compared.
    #[test]
    fn dylibs_predict() {
        let folder = tempfile::tempdir().unwrap();
        let file = compiled(folder.path(), "digits/digits.onnx", X86_64, "m.dylib");
        let loaded = load(&file, &of_process);
        let image: Vec<f32> = (0..64).map(|at| (at % 5) as f32 / 5.0).collect();
        let predict = |model: &Model| {
            let (mut image, mut found) = (image.clone(), [0f32; 10]);
            // Tensors point to their dims.
            let (mut image_dims, mut dims) = ([1, 1, 8, 8], [1, 10]);
            let input = [tensor(&mut image, 1, &mut image_dims)];
            let mut output = [tensor(&mut found, 1, &mut dims)];
            assert_eq!(run(model, &input, &mut output, &Options::default()), Status::OK);
            found
        };
        let found = predict(loaded.model());
        let sum: f32 = found.iter().sum();
        assert!(
            (sum - 1.0).abs() < 1e-5 && found.iter().all(|&part| (0.0..1.0).contains(&part)),
            "{found:?}"
        );
        compiled(folder.path(), "digits/digits.onnx", "x86_64-unknown-linux-gnu", "m.so");
        // SAFETY: the library has no code that runs when it is loaded, and its function has this type.
        let other = unsafe {
            let library = libloading::Library::new(folder.path().join("m.so")).unwrap();
            let model = library.get::<abi::ModelFn>(b"m_model").unwrap();
            predict(model().as_ref().unwrap())
        };
        assert_eq!(other.map(f32::to_bits), found.map(f32::to_bits));
    }

    /// A model that calls the runtime, by names that the loader finds.
    #[test]
    fn dylibs_call_the_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let file = compiled(folder.path(), "text/text.onnx", X86_64, "m.dylib");
        let loaded = load(&file, &of_process);
        let line = "petals and sepals of iris plants";
        let mut lines = [StringView { data: line.as_ptr(), size: line.len() }];
        // SAFETY: the model is a compiled one.
        let classes = unsafe { loaded.model().outputs() }[1].dims[1].unwrap();
        let mut probabilities = vec![0f32; classes as usize];
        let (mut line_dims, mut label_dims, mut dims) = ([1, 1], [1], [1, classes]);
        let label =
            Tensor { data: std::ptr::null_mut(), bytes: 0, dtype: 8, rank: 1, dims: label_dims.as_mut_ptr() };
        let inputs = [tensor(&mut lines, 8, &mut line_dims)];
        let mut outputs = [label, tensor(&mut probabilities, 1, &mut dims)];
        let options = Options {
            allocate: Some(alloc::onnxc_allocate),
            release: Some(alloc::onnxc_release),
            ..Options::default()
        };
        assert_eq!(run(loaded.model(), &inputs, &mut outputs, &options), Status::OK);
        // SAFETY: the run allocated one string with its bytes, which are given back.
        let label = unsafe {
            let text = &*outputs[0].data.cast::<StringView>();
            let label = String::from_utf8(std::slice::from_raw_parts(text.data, text.size).to_vec()).unwrap();
            alloc::onnxc_release(std::ptr::null_mut(), outputs[0].data, outputs[0].bytes, 64);
            label
        };
        assert_eq!(label, "iris");
        assert!(probabilities.iter().any(|&part| part > 0.5), "{probabilities:?}");
    }

    /// Every kind of reference leads to what it names; a write to constants would end the process.
    #[test]
    fn references_lead_to_what_they_name() {
        for align in [8, 4096] {
            let file = library_of(&every_reference(Architecture::X86_64, align), "t.dylib").unwrap();
            let loaded = load(&file, &of_process);
            // SAFETY: the function has this type.
            let total: extern "C" fn(i64) -> i64 = unsafe { std::mem::transmute(loaded.function("_total")) };
            assert_eq!([total(7), total(7)], [TOTAL, TOTAL + 1]);
            let symbols = loaded.library.symbols();
            let counter = symbols.iter().find(|symbol| symbol.0 == "_counter").unwrap().4;
            // SAFETY: the variable is there, of 16 bytes.
            let bytes = unsafe { std::slice::from_raw_parts(loaded.memory.add(counter), 16) };
            assert_eq!(bytes[8..], [7, 0, 0, 0, 9, 0, 0, 0]);
        }
    }
}
