//! Dynamic libraries for macOS out of one object.
//!
//! What the loader fills in is written as opcodes (`LC_DYLD_INFO_ONLY`), not as chains of pointers: every macOS reads these, whereas
//! those whose chains hold offsets need macOS 12; and an object of this compiler has a handful of pointers, if any. The library names
//! the system's own, which every program has, for the functions of C; other functions are looked up in all libraries of the process,
//! as with a linker's `-undefined dynamic_lookup`.
//!
//! The library is signed without an identity, as linkers sign: processors of Apple run nothing else.

mod export;
mod sign;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use cranelift_object::object::endian::Endianness;
use cranelift_object::object::macho;
use cranelift_object::object::read::macho::{MachOFile64, Nlist};
use cranelift_object::object::{
    Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SectionIndex,
    SymbolIndex, SymbolScope, elf,
};

use super::machine::{JUMP_BYTES, Machine, Need};
use super::{Counted, Fields, bad};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_machine::leb128;

/// The library of C functions and what lies beneath: `dyld` wants every library to name it.
const SYSTEM: &str = "/usr/lib/libSystem.B.dylib";

/// The system that libraries are for where the object names no version.
const OLDEST_MACOS: u32 = 11 << 16;

/// Room behind the load commands, for tools that change names of libraries.
const ROOM: u64 = 0x400;

/// Number of the library of a function outside, among those that this one names: the system's, or any.
fn library_of(function: &[u8]) -> u8 {
    match function {
        b"_memcpy" | b"_memmove" | b"_memset" | b"_memcmp" => 1,
        _ => macho::DYNAMIC_LOOKUP_ORDINAL,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Segment {
    Text,
    /// Written by the loader, then protected.
    Constants,
    Variables,
}

const SEGMENTS: [Segment; 3] = [Segment::Text, Segment::Constants, Segment::Variables];

impl Segment {
    fn name(self) -> &'static str {
        match self {
            Segment::Text => "__TEXT",
            Segment::Constants => "__DATA_CONST",
            Segment::Variables => "__DATA",
        }
    }

    fn protection(self) -> u32 {
        match self {
            Segment::Text => macho::VM_PROT_READ | macho::VM_PROT_EXECUTE,
            _ => macho::VM_PROT_READ | macho::VM_PROT_WRITE,
        }
    }

    fn flags(self) -> u32 {
        if self == Segment::Constants { macho::SG_READ_ONLY } else { 0 }
    }
}

/// Flags of the section of rules for unwinders: its entries live and die with their functions.
pub(crate) const FRAMES: u32 =
    macho::S_COALESCED | macho::S_ATTR_NO_TOC | macho::S_ATTR_STRIP_STATIC_SYMS | macho::S_ATTR_LIVE_SUPPORT;

/// Sections of the library, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum LibraryPart {
    Code,
    Jumps,
    Text,
    Frames,
    Addresses,
    Constants,
    Variables,
    Zeros,
}

const PARTS: [LibraryPart; 8] = [
    LibraryPart::Code,
    LibraryPart::Jumps,
    LibraryPart::Text,
    LibraryPart::Frames,
    LibraryPart::Addresses,
    LibraryPart::Constants,
    LibraryPart::Variables,
    LibraryPart::Zeros,
];

impl LibraryPart {
    /// The part of a section of the object; `None` for what is for linkers and debuggers.
    fn of(segment: &[u8], name: &[u8], flags: u32) -> Result<Option<LibraryPart>> {
        let code = macho::S_ATTR_PURE_INSTRUCTIONS | macho::S_ATTR_SOME_INSTRUCTIONS;
        let zeros = flags & macho::SECTION_TYPE == macho::S_ZEROFILL;
        Ok(match (segment, name) {
            _ if flags & macho::S_ATTR_DEBUG != 0 => None,
            (b"__DWARF" | b"__LD", _) => None,
            _ if flags & code != 0 => Some(LibraryPart::Code),
            (b"__TEXT", b"__eh_frame") => Some(LibraryPart::Frames),
            (b"__TEXT", _) => Some(LibraryPart::Text),
            (b"__DATA", _) if zeros => Some(LibraryPart::Zeros),
            (b"__DATA", b"__const") => Some(LibraryPart::Constants),
            (b"__DATA", _) => Some(LibraryPart::Variables),
            _ => {
                let [segment, name] = [segment, name].map(String::from_utf8_lossy);
                return Err(bad(format!("section {segment},{name} is not known")));
            }
        })
    }

    fn segment(self) -> Segment {
        match self {
            LibraryPart::Code | LibraryPart::Jumps | LibraryPart::Text | LibraryPart::Frames => Segment::Text,
            LibraryPart::Addresses | LibraryPart::Constants => Segment::Constants,
            LibraryPart::Variables | LibraryPart::Zeros => Segment::Variables,
        }
    }

    fn name(self) -> &'static str {
        match self {
            LibraryPart::Code => "__text",
            LibraryPart::Jumps => "__stubs",
            LibraryPart::Text | LibraryPart::Constants => "__const",
            LibraryPart::Frames => "__eh_frame",
            LibraryPart::Addresses => "__got",
            LibraryPart::Variables => "__data",
            LibraryPart::Zeros => "__bss",
        }
    }

    fn flags(self) -> u32 {
        let code = macho::S_ATTR_PURE_INSTRUCTIONS | macho::S_ATTR_SOME_INSTRUCTIONS;
        match self {
            LibraryPart::Code => code,
            LibraryPart::Jumps => macho::S_SYMBOL_STUBS | code,
            LibraryPart::Frames => FRAMES,
            LibraryPart::Addresses => macho::S_NON_LAZY_SYMBOL_POINTERS,
            LibraryPart::Zeros => macho::S_ZEROFILL,
            LibraryPart::Text | LibraryPart::Constants | LibraryPart::Variables => macho::S_REGULAR,
        }
    }
}

/// A section of the object, and where it begins in its part.
struct Source<'d> {
    index: SectionIndex,
    part: LibraryPart,
    at: u64,
    size: u64,
    /// Its address in the object.
    address: u64,
    data: &'d [u8],
}

/// A field of a section that refers to a symbol.
struct Reference {
    source: usize,
    offset: u64,
    symbol: SymbolIndex,
    /// Of a difference: what is subtracted.
    less: Option<SymbolIndex>,
    /// Bytes of a difference.
    bytes: usize,
    addend: i64,
    /// The relocation of ELF that fills such a field.
    kind: u32,
}

/// A symbol of the object that the library has too.
struct Symbol<'d> {
    index: SymbolIndex,
    name: &'d [u8],
    /// `None` for one outside.
    source: Option<usize>,
    /// Distance from the start of its section.
    at: u64,
    exported: bool,
}

/// What an object has for a library.
struct Input<'d> {
    machine: Machine,
    /// Version of the system that it is for.
    system: u32,
    sources: Vec<Source<'d>>,
    sizes: BTreeMap<LibraryPart, u64>,
    alignments: BTreeMap<LibraryPart, u64>,
    references: Vec<Reference>,
    /// Those of this library alone, those for others, and those outside, the latter two by name.
    symbols: Vec<Symbol<'d>>,
    /// Their places among these, by the object's numbers.
    numbers: BTreeMap<usize, usize>,
    /// Number of the entry of a symbol in the table of addresses, and in that of jumps.
    addresses: BTreeMap<usize, usize>,
    jumps: BTreeMap<usize, usize>,
}

/// Writes the library of an object.
pub(super) fn write(object: &[u8], name: &str, out: &mut dyn Write) -> Result<()> {
    let input = Input::read(object)?;
    let layout = Layout::new(&input, name)?;
    let file = layout.file(&input, name)?;
    let mut out = Counted { out, count: 0 };
    for (at, bytes) in &file.pieces {
        out.pad(*at)?;
        out.put(bytes)?;
    }
    out.flush()
}

fn little(bytes: &[u8], at: u64, count: usize) -> Result<i64> {
    let cut = || bad("a relocation lies behind its section");
    let at = usize::try_from(at).map_err(bad)?;
    let field = bytes.get(at..).and_then(|rest| rest.get(..count)).ok_or_else(cut)?;
    let mut word = [0; 8];
    word[..count].copy_from_slice(field);
    let unused = 64 - 8 * count as u32;
    Ok(i64::from_le_bytes(word) << unused >> unused)
}

impl<'d> Input<'d> {
    fn read(object: &'d [u8]) -> Result<Input<'d>> {
        let file: MachOFile64<'d, Endianness> = MachOFile64::parse(object).map_err(bad)?;
        let endian = file.endian();
        let machine = match file.macho_header().cputype.get(endian) {
            macho::CPU_TYPE_X86_64 => Machine::X86_64,
            macho::CPU_TYPE_ARM64 => Machine::Aarch64,
            _ => return Err(bad("the machine is not known")),
        };
        let system = match file.build_version().map_err(bad)? {
            Some(version) if version.platform.get(endian) != macho::PLATFORM_MACOS => {
                return Err(bad("it is for a system other than macOS"));
            }
            Some(version) if version.minos.get(endian) > 0 => version.minos.get(endian),
            _ => OLDEST_MACOS,
        };
        let mut input = Input {
            machine,
            system,
            sources: vec![],
            sizes: BTreeMap::new(),
            alignments: BTreeMap::new(),
            references: vec![],
            symbols: vec![],
            numbers: BTreeMap::new(),
            addresses: BTreeMap::new(),
            jumps: BTreeMap::new(),
        };
        input.read_sections(&file)?;
        input.read_symbols(&file)?;
        input.read_references(&file)?;
        Ok(input)
    }

    fn read_sections(&mut self, file: &MachOFile64<'d, Endianness>) -> Result<()> {
        for section in file.sections() {
            let SectionFlags::MachO { flags } = section.flags() else { continue };
            let segment = section.segment_name_bytes().map_err(bad)?.unwrap_or_default();
            let Some(part) = LibraryPart::of(segment, section.name_bytes().map_err(bad)?, flags)? else {
                continue;
            };
            let align = section.align().max(1);
            let most = self.alignments.entry(part).or_insert(1);
            *most = align.max(*most);
            let size = self.sizes.entry(part).or_default();
            let at = size.next_multiple_of(align);
            *size = at + section.size();
            let data = if part == LibraryPart::Zeros { &[] } else { section.data().map_err(bad)? };
            self.sources.push(Source {
                index: section.index(),
                part,
                at,
                size: section.size(),
                address: section.address(),
                data,
            });
        }
        Ok(())
    }

    fn read_symbols(&mut self, file: &MachOFile64<'d, Endianness>) -> Result<()> {
        let (mut own, mut exported, mut outside) = (vec![], vec![], vec![]);
        for symbol in file.symbols() {
            if symbol.macho_symbol().n_type() & macho::N_STAB != 0 {
                continue;
            }
            let (index, name) = (symbol.index(), symbol.name_bytes().map_err(bad)?);
            if symbol.is_undefined() {
                outside.push(Symbol { index, name, source: None, at: 0, exported: false });
                continue;
            }
            let section = symbol.section_index();
            let Some(number) = self.sources.iter().position(|source| Some(source.index) == section) else {
                continue;
            };
            let at = symbol.address().wrapping_sub(self.sources[number].address);
            let is_exported = symbol.scope() == SymbolScope::Dynamic;
            let row = Symbol { index, name, source: Some(number), at, exported: is_exported };
            if is_exported { exported.push(row) } else { own.push(row) }
        }
        // Tools look names up in their order.
        exported.sort_by(|a, b| a.name.cmp(b.name));
        outside.sort_by(|a, b| a.name.cmp(b.name));
        self.symbols = own.into_iter().chain(exported).chain(outside).collect();
        self.numbers =
            self.symbols.iter().enumerate().map(|(number, symbol)| (symbol.index.0, number)).collect();
        Ok(())
    }

    fn read_references(&mut self, file: &MachOFile64<'d, Endianness>) -> Result<()> {
        for number in 0..self.sources.len() {
            let section = file.section_by_index(self.sources[number].index).map_err(bad)?;
            for (offset, relocation) in section.relocations() {
                let RelocationFlags::MachO { r_type, r_length, .. } = relocation.flags() else { continue };
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    return Err(bad("a relocation has no symbol"));
                };
                let reference = self.reference(number, offset, symbol, &relocation, (r_type, r_length))?;
                self.provide(&reference)?;
                self.references.push(reference);
            }
        }
        Ok(())
    }

    /// A relocation of the object, whose type and length these are.
    fn reference(
        &self,
        source: usize,
        offset: u64,
        symbol: SymbolIndex,
        relocation: &cranelift_object::object::Relocation,
        (typ, length): (u8, u8),
    ) -> Result<Reference> {
        let data = self.sources[source].data;
        let less = relocation.subtractor();
        let field = |bytes| little(data, offset, bytes);
        let unknown = || bad(format!("relocation {typ} of {} bytes", 1 << length));
        let (mut bytes, mut addend) = (4, relocation.addend());
        let kind = match (self.machine, typ) {
            (Machine::X86_64, macho::X86_64_RELOC_UNSIGNED)
            | (Machine::Aarch64, macho::ARM64_RELOC_UNSIGNED) => {
                bytes = 1 << length;
                if !(bytes == 8 || bytes == 4 && less.is_some()) {
                    return Err(unknown());
                }
                addend = field(bytes)?;
                if self.machine == Machine::X86_64 { elf::R_X86_64_64 } else { elf::R_AARCH64_ABS64 }
            }
            (Machine::X86_64, typ) if length == 2 => {
                // The field holds the distance from its own end; what follows in the instruction is in the field already.
                addend = field(4)? - 4;
                match typ {
                    macho::X86_64_RELOC_SIGNED
                    | macho::X86_64_RELOC_SIGNED_1
                    | macho::X86_64_RELOC_SIGNED_2
                    | macho::X86_64_RELOC_SIGNED_4 => elf::R_X86_64_PC32,
                    macho::X86_64_RELOC_BRANCH => elf::R_X86_64_PLT32,
                    macho::X86_64_RELOC_GOT | macho::X86_64_RELOC_GOT_LOAD => elf::R_X86_64_GOTPCREL,
                    _ => return Err(unknown()),
                }
            }
            (Machine::Aarch64, typ) if length == 2 => {
                let word = field(4)? as u32;
                let (kind, immediate) = match typ {
                    macho::ARM64_RELOC_BRANCH26 => (elf::R_AARCH64_CALL26, 0x3ff_ffff),
                    macho::ARM64_RELOC_PAGE21 => (elf::R_AARCH64_ADR_PREL_PG_HI21, 0x60ff_ffe0),
                    macho::ARM64_RELOC_PAGEOFF12 => (low_of(word), 0x3f_fc00),
                    macho::ARM64_RELOC_GOT_LOAD_PAGE21 => (elf::R_AARCH64_ADR_GOT_PAGE, 0x60ff_ffe0),
                    macho::ARM64_RELOC_GOT_LOAD_PAGEOFF12 => (elf::R_AARCH64_LD64_GOT_LO12_NC, 0x3f_fc00),
                    _ => return Err(unknown()),
                };
                if word & immediate != 0 {
                    return Err(bad("the instruction has an addend"));
                }
                kind
            }
            _ => return Err(unknown()),
        };
        Ok(Reference { source, offset, symbol, less, bytes, addend, kind })
    }

    fn number(&self, symbol: SymbolIndex) -> Result<usize> {
        self.numbers.get(&symbol.0).copied().ok_or_else(|| bad("a symbol is in a section that is left out"))
    }

    fn need(&self, reference: &Reference) -> Result<Need> {
        let kind = reference.kind;
        self.machine.need(kind).ok_or_else(|| bad(format!("relocation {kind}")))
    }

    /// Makes room for the entries that a reference needs.
    fn provide(&mut self, reference: &Reference) -> Result<()> {
        let number = self.number(reference.symbol)?;
        let is_outside = self.symbols[number].source.is_none();
        let need = self.need(reference)?;
        let fixed = self.sources[reference.source].part.segment() == Segment::Text;
        let next = self.addresses.len();
        match need {
            _ if reference.less.is_some() && is_outside => return Err(bad("a distance to a symbol outside")),
            _ if reference.less.is_some() => {}
            Need::Address => {
                self.addresses.entry(number).or_insert(next);
            }
            Need::Jump if is_outside => {
                self.addresses.entry(number).or_insert(next);
                let next = self.jumps.len();
                self.jumps.entry(number).or_insert(next);
            }
            Need::Absolute if fixed => return Err(bad("an address in a segment of code")),
            Need::Absolute => {}
            _ if is_outside => return Err(bad("a distance to a symbol outside")),
            _ => {}
        }
        Ok(())
    }

    fn size(&self, part: LibraryPart) -> u64 {
        match part {
            LibraryPart::Jumps => JUMP_BYTES * self.jumps.len() as u64,
            LibraryPart::Addresses => 8 * self.addresses.len() as u64,
            _ => self.sizes.get(&part).copied().unwrap_or(0),
        }
    }

    fn align(&self, part: LibraryPart) -> u64 {
        match part {
            LibraryPart::Jumps => JUMP_BYTES,
            LibraryPart::Addresses => 8,
            _ => self.alignments.get(&part).copied().unwrap_or(1),
        }
    }
}

/// The relocation of ELF for the low bits of an address in an instruction, which adds them, or loads or stores.
fn low_of(word: u32) -> u32 {
    let is_access = word & 0x3b00_0000 == 0x3900_0000;
    let is_vector = word & 0x0480_0000 == 0x0480_0000;
    match (is_access, word >> 30) {
        (false, _) => elf::R_AARCH64_ADD_ABS_LO12_NC,
        (true, 0) if is_vector => elf::R_AARCH64_LDST128_ABS_LO12_NC,
        (true, 0) => elf::R_AARCH64_LDST8_ABS_LO12_NC,
        (true, 1) => elf::R_AARCH64_LDST16_ABS_LO12_NC,
        (true, 2) => elf::R_AARCH64_LDST32_ABS_LO12_NC,
        (true, _) => elf::R_AARCH64_LDST64_ABS_LO12_NC,
    }
}

/// Where something lies, in memory and in the file.
#[derive(Clone, Copy, Default, Debug)]
struct Extent {
    address: u64,
    size: u64,
    offset: u64,
    /// Bytes in the file.
    stored: u64,
}

/// Where everything lies.
struct Layout {
    segments: BTreeMap<Segment, Extent>,
    parts: BTreeMap<LibraryPart, Extent>,
    /// The tables for the loader begin here, in memory and in the file.
    tables: Extent,
}

/// An offset in the file, for which the format has 32 bits.
fn small(offset: u64) -> Result<u32> {
    let too_large = || Error::unsupported(Stage::Emit, "a library of more than 4 GiB for macOS");
    u32::try_from(offset).map_err(|_| too_large())
}

impl Layout {
    fn new(input: &Input<'_>, name: &str) -> Result<Layout> {
        let page = page(input.machine);
        let parts = PARTS.into_iter().filter(|&part| input.size(part) > 0);
        let parts: Vec<(LibraryPart, u64, u64)> =
            parts.map(|part| (part, input.size(part), input.align(part))).collect();
        Layout::of(&parts, page, commands_bytes(&parts, name))
    }

    /// Places parts behind load commands. Each comes with its size and alignment.
    fn of(parts: &[(LibraryPart, u64, u64)], page: u64, commands: u64) -> Result<Layout> {
        let mut layout =
            Layout { segments: BTreeMap::new(), parts: BTreeMap::new(), tables: Extent::default() };
        let (mut address, mut offset) = (commands + ROOM, commands + ROOM);
        for segment in SEGMENTS {
            let mut place = Extent { address, offset, ..Extent::default() };
            if segment == Segment::Text {
                (place.address, place.offset) = (0, 0);
            }
            let mut is_there = segment == Segment::Text;
            for &(part, size, align) in parts.iter().filter(|part| part.0.segment() == segment) {
                if align > page {
                    // The loader places libraries at any page.
                    let message = format!(
                        "data aligned to {align} bytes in a library for macOS, whose pages have {page}"
                    );
                    return Err(Error::unsupported(Stage::Emit, message));
                }
                is_there = true;
                let start = address.next_multiple_of(align);
                let stored = if part == LibraryPart::Zeros { 0 } else { size };
                let at = if stored > 0 { place.offset + (start - place.address) } else { 0 };
                small(at + stored)?;
                layout.parts.insert(part, Extent { address: start, size, offset: at, stored });
                address = start + size;
                if stored > 0 {
                    offset = at + stored;
                }
            }
            if !is_there {
                continue;
            }
            place.size = (address - place.address).next_multiple_of(page);
            place.stored = (offset - place.offset).next_multiple_of(page);
            (address, offset) = (place.address + place.size, place.offset + place.stored);
            layout.segments.insert(segment, place);
        }
        layout.tables = Extent { address, offset, ..Extent::default() };
        small(offset)?;
        Ok(layout)
    }

    fn address(&self, part: LibraryPart) -> u64 {
        self.parts.get(&part).map_or(0, |place| place.address)
    }

    fn in_source(&self, input: &Input<'_>, source: usize) -> u64 {
        let source = &input.sources[source];
        self.address(source.part) + source.at
    }

    /// Address of a symbol, of a function outside that of its jump.
    fn symbol(&self, input: &Input<'_>, number: usize) -> Result<u64> {
        let symbol = &input.symbols[number];
        match (symbol.source, input.jumps.get(&number)) {
            (Some(source), _) => Ok(self.in_source(input, source) + symbol.at),
            (None, Some(&jump)) => Ok(self.address(LibraryPart::Jumps) + JUMP_BYTES * jump as u64),
            (None, None) => Err(bad("a symbol outside has no jump")),
        }
    }

    fn entry(&self, entry: usize) -> u64 {
        self.address(LibraryPart::Addresses) + 8 * entry as u64
    }

    /// The sections' bytes, references filled in, and what the loader has to fill in.
    fn contents<'d>(&self, input: &Input<'d>) -> Result<(File<'d>, Vec<Fixup>)> {
        let (mut pieces, mut fixups) = (vec![], vec![]);
        let mut references = input.references.iter().peekable();
        for (number, source) in input.sources.iter().enumerate() {
            if source.part == LibraryPart::Zeros || source.size == 0 {
                continue;
            }
            let mut data = Cow::Borrowed(source.data);
            while let Some(reference) = references.next_if(|reference| reference.source == number) {
                self.fill(input, reference, data.to_mut(), &mut fixups)?;
            }
            let place = self.parts.get(&source.part).copied().unwrap_or_default();
            pieces.push((place.offset + source.at, data));
        }
        let mut own = |part: LibraryPart, bytes: Vec<u8>| {
            if let Some(place) = self.parts.get(&part) {
                pieces.push((place.offset, Cow::Owned(bytes)));
            }
        };
        let mut entries = vec![0; 8 * input.addresses.len()];
        for (&number, &entry) in &input.addresses {
            let value = match input.symbols[number].source {
                Some(_) => self.symbol(input, number)?,
                None => 0,
            };
            entries[8 * entry..8 * entry + 8].copy_from_slice(&value.to_le_bytes());
            let symbol = input.symbols[number].source.is_none().then_some((number, 0));
            fixups.push(Fixup { address: self.entry(entry), symbol });
        }
        own(LibraryPart::Addresses, entries);
        let mut jumps = vec![0; JUMP_BYTES as usize * input.jumps.len()];
        for (number, &jump) in &input.jumps {
            let entry = input.addresses.get(number).copied().ok_or_else(|| bad("a jump has no entry"))?;
            let at = JUMP_BYTES as usize * jump;
            let place = self.address(LibraryPart::Jumps) + at as u64;
            let code = input.machine.jump(place, self.entry(entry)).map_err(bad)?;
            jumps[at..at + code.len()].copy_from_slice(&code);
        }
        own(LibraryPart::Jumps, jumps);
        pieces.sort_by_key(|piece| piece.0);
        fixups.sort_by_key(|fixup| fixup.address);
        Ok((File { pieces }, fixups))
    }

    fn fill(
        &self,
        input: &Input<'_>,
        reference: &Reference,
        data: &mut [u8],
        fixups: &mut Vec<Fixup>,
    ) -> Result<()> {
        let Reference { source, offset, addend, kind, bytes, .. } = *reference;
        let number = input.number(reference.symbol)?;
        let place = self.in_source(input, source) + offset;
        let start = usize::try_from(offset).map_err(bad)?;
        let field = data.get_mut(start..).ok_or_else(|| bad("a relocation lies behind its section"))?;
        let too_far = || bad(format!("relocation {kind} at {offset}: the distance does not fit"));
        if let Some(less) = reference.less {
            let less = self.symbol(input, input.number(less)?)?;
            let value = self.symbol(input, number)?.wrapping_sub(less).wrapping_add_signed(addend) as i64;
            if bytes == 4 {
                i32::try_from(value).map_err(|_| too_far())?;
            }
            field
                .get_mut(..bytes)
                .ok_or_else(too_far)?
                .copy_from_slice(value.to_le_bytes().get(..bytes).unwrap_or_default());
            return Ok(());
        }
        let target = match input.need(reference)? {
            Need::Address => {
                let entry = input.addresses.get(&number).copied().unwrap_or(0);
                self.entry(entry).wrapping_add_signed(addend)
            }
            Need::Absolute if input.symbols[number].source.is_none() => {
                fixups.push(Fixup { address: place, symbol: Some((number, addend)) });
                0
            }
            Need::Absolute => {
                fixups.push(Fixup { address: place, symbol: None });
                self.symbol(input, number)?.wrapping_add_signed(addend)
            }
            _ => self.symbol(input, number)?.wrapping_add_signed(addend),
        };
        let applied = input.machine.apply(kind, field, place, target);
        applied.map_err(|what| bad(format!("relocation {kind} at {offset}: {what}")))
    }

    /// The segment of an address, as its number among the load commands, and the distance from its start.
    fn in_segment(&self, address: u64) -> Result<(u8, u64)> {
        let mut segments = self.segments.values().enumerate();
        let found =
            segments.find(|(_, place)| (place.address..place.address + place.size).contains(&address));
        let (number, place) = found.ok_or_else(|| bad("an address is in no segment"))?;
        Ok((number as u8, address - place.address))
    }

    /// Opcodes for the addresses of this library that move with it.
    fn moved(&self, fixups: &[Fixup]) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        for fixup in fixups.iter().filter(|fixup| fixup.symbol.is_none()) {
            let (segment, at) = self.in_segment(fixup.address)?;
            if bytes.is_empty() {
                bytes.push(macho::REBASE_OPCODE_SET_TYPE_IMM | macho::REBASE_TYPE_POINTER);
            }
            bytes.push(macho::REBASE_OPCODE_SET_SEGMENT_AND_OFFSET_ULEB | segment);
            bytes.extend(leb128::unsigned(at));
            bytes.push(macho::REBASE_OPCODE_DO_REBASE_IMM_TIMES | 1);
        }
        Ok(ended(bytes))
    }

    /// Opcodes for the addresses of functions outside.
    fn bound(&self, input: &Input<'_>, fixups: &[Fixup]) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        for fixup in fixups {
            let Some((number, addend)) = fixup.symbol else { continue };
            let name = input.symbols[number].name;
            let (segment, at) = self.in_segment(fixup.address)?;
            bytes.push(match library_of(name) {
                macho::DYNAMIC_LOOKUP_ORDINAL => {
                    let any = macho::BIND_SPECIAL_DYLIB_FLAT_LOOKUP as u8 & macho::BIND_IMMEDIATE_MASK;
                    macho::BIND_OPCODE_SET_DYLIB_SPECIAL_IMM | any
                }
                ordinal => macho::BIND_OPCODE_SET_DYLIB_ORDINAL_IMM | ordinal,
            });
            bytes.push(macho::BIND_OPCODE_SET_SYMBOL_TRAILING_FLAGS_IMM);
            bytes.extend(name);
            bytes.extend([0, macho::BIND_OPCODE_SET_TYPE_IMM | macho::BIND_TYPE_POINTER]);
            bytes.push(macho::BIND_OPCODE_SET_ADDEND_SLEB);
            bytes.extend(leb128::signed(addend));
            bytes.push(macho::BIND_OPCODE_SET_SEGMENT_AND_OFFSET_ULEB | segment);
            bytes.extend(leb128::unsigned(at));
            bytes.push(macho::BIND_OPCODE_DO_BIND);
        }
        Ok(ended(bytes))
    }

    /// The whole library.
    fn file<'d>(&self, input: &Input<'d>, name: &str) -> Result<File<'d>> {
        let (mut file, fixups) = self.contents(input)?;
        let exported = input.symbols.iter().enumerate().filter(|(_, symbol)| symbol.exported);
        let exported = exported.map(|(number, symbol)| Ok((symbol.name, self.symbol(input, number)?)));
        let exports = export::trie(&exported.collect::<Result<Vec<_>>>()?);
        let mut tables = Tables { start: self.tables.offset, bytes: vec![] };
        let moved = tables.add(&self.moved(&fixups)?, 8)?;
        let bound = tables.add(&self.bound(input, &fixups)?, 8)?;
        let exports = tables.add(&exports, 8)?;
        let (symbols, names) = self.symbol_table(input)?;
        let symbols = tables.add(&symbols, 8)?;
        let indirect = tables.add(&self.indirect(input), 4)?;
        let names = tables.add(&names, 8)?;
        let signed = tables.end().next_multiple_of(16);
        small(signed)?;
        let signature = sign::Signature::new(name, signed);
        let end = signed + signature.bytes();
        let head = Head { input, layout: self, name, moved, bound, exports, symbols, indirect, names };
        let (head, uuid_at) = head.write(signed, signature.bytes(), end - self.tables.offset)?;
        file.pieces.insert(0, (0, Cow::Owned(head)));
        file.pieces.push((self.tables.offset, Cow::Owned(tables.bytes)));
        let mut hashes = sign::hashes(&file, signed);
        // The same library has the same name for debuggers; its pages are those with zeros in place of the name.
        let uuid = sign::identity(&hashes);
        if let Some((_, head)) = file.pieces.first_mut() {
            head.to_mut()[uuid_at..uuid_at + uuid.len()].copy_from_slice(&uuid);
        }
        sign::rehash(&file, signed, uuid_at as u64..(uuid_at + uuid.len()) as u64, &mut hashes);
        let text = self.segments.get(&Segment::Text).map_or(0, |place| place.stored);
        file.pieces.push((signed, Cow::Owned(signature.write(&hashes, text))));
        Ok(file)
    }

    /// Rows of symbols, and their names.
    fn symbol_table(&self, input: &Input<'_>) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut rows, mut names) = (vec![], vec![b' ', 0]);
        let parts: Vec<LibraryPart> = self.parts.keys().copied().collect();
        for (number, symbol) in input.symbols.iter().enumerate() {
            let name = small(names.len() as u64)?;
            names.extend(symbol.name);
            names.push(0);
            let (mut kind, mut section, mut description, mut address) =
                (macho::N_UNDF | macho::N_EXT, 0, u16::from(library_of(symbol.name)) << 8, 0);
            if let Some(source) = symbol.source {
                let part = input.sources[source].part;
                let at = parts.iter().position(|&one| one == part);
                // A section without bytes is not there.
                (kind, section) = at.map_or((macho::N_ABS, 0), |at| (macho::N_SECT, at as u8 + 1));
                if symbol.exported {
                    kind |= macho::N_EXT;
                }
                (description, address) = (0, self.symbol(input, number)?);
            }
            Fields(&mut rows).u32(name).u8(kind).u8(section).u16(description).u64(address);
        }
        Ok((rows, names))
    }

    /// The symbols of the jumps, then those of the addresses.
    fn indirect(&self, input: &Input<'_>) -> Vec<u8> {
        let mut bytes = vec![];
        for table in [&input.jumps, &input.addresses] {
            let mut numbers: Vec<(usize, usize)> =
                table.iter().map(|(&number, &entry)| (entry, number)).collect();
            numbers.sort_unstable();
            for (_, number) in numbers {
                let is_own = input.symbols[number].source.is_some() && !input.symbols[number].exported;
                let word = if is_own { macho::INDIRECT_SYMBOL_LOCAL } else { number as u32 };
                Fields(&mut bytes).u32(word);
            }
        }
        bytes
    }
}

fn page(machine: Machine) -> u64 {
    match machine {
        Machine::X86_64 => 0x1000,
        Machine::Aarch64 => 0x4000,
    }
}

/// Ends opcodes, where there are any.
fn ended(mut bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.is_empty() {
        bytes.push(0);
    }
    bytes
}

/// An address that the loader fills in: one of this library, or a symbol with an addend.
struct Fixup {
    address: u64,
    symbol: Option<(usize, i64)>,
}

/// The tables for the loader under construction.
struct Tables {
    start: u64,
    bytes: Vec<u8>,
}

impl Tables {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Adds a table of a multiple of some bytes, zeros at its end included: tools want each right behind the one before. Gives offset and
    /// size; one without bytes is nowhere.
    fn add(&mut self, bytes: &[u8], multiple: usize) -> Result<[u32; 2]> {
        if bytes.is_empty() {
            return Ok([0, 0]);
        }
        let at = self.bytes.len();
        self.bytes.extend(bytes);
        self.bytes.resize((at + bytes.len()).next_multiple_of(multiple), 0);
        Ok([small(self.start + at as u64)?, small((self.bytes.len() - at) as u64)?])
    }
}

/// The library's bytes: what lies between two pieces is zeros.
struct File<'d> {
    pieces: Vec<(u64, Cow<'d, [u8]>)>,
}

impl File<'_> {
    /// The bytes from one offset to another.
    fn bytes(&self, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = vec![0; (to - from) as usize];
        let first = self.pieces.partition_point(|(at, piece)| at + piece.len() as u64 <= from);
        for (at, piece) in self.pieces[first..].iter().take_while(|piece| piece.0 < to) {
            let (start, end) = (from.max(*at), to.min(at + piece.len() as u64));
            if start < end {
                let own = &piece[(start - at) as usize..(end - at) as usize];
                bytes[(start - from) as usize..(end - from) as usize].copy_from_slice(own);
            }
        }
        bytes
    }
}

const HEADER_BYTES: u64 = 32;
const SEGMENT_BYTES: u64 = 72;
const SECTION_BYTES: u64 = 80;
const DYLIB_BYTES: u64 = 24;
/// Those of the opcodes, of the two tables of symbols, of the identity, the system and the signature.
const OTHER_BYTES: u64 = 48 + 24 + 80 + 24 + 24 + 16;

/// The name by which programs look for the library.
fn install_name(name: &str) -> String {
    format!("@rpath/{name}")
}

/// Bytes of a command that names a library.
fn dylib_bytes(name: &str) -> u64 {
    DYLIB_BYTES + (name.len() as u64 + 1).next_multiple_of(8)
}

/// Bytes of the header and the load commands.
fn commands_bytes(parts: &[(LibraryPart, u64, u64)], name: &str) -> u64 {
    let has = |segment| segment == Segment::Text || parts.iter().any(|part| part.0.segment() == segment);
    let segments = 1 + SEGMENTS.into_iter().filter(|&segment| has(segment)).count() as u64;
    let names = dylib_bytes(&install_name(name)) + dylib_bytes(SYSTEM);
    HEADER_BYTES + SEGMENT_BYTES * segments + SECTION_BYTES * parts.len() as u64 + OTHER_BYTES + names
}

/// What the load commands say: of each table its offset and size.
struct Head<'a, 'd> {
    input: &'a Input<'d>,
    layout: &'a Layout,
    name: &'a str,
    moved: [u32; 2],
    bound: [u32; 2],
    exports: [u32; 2],
    symbols: [u32; 2],
    indirect: [u32; 2],
    names: [u32; 2],
}

impl Head<'_, '_> {
    /// Header and load commands, and where the library's identity is in them.
    fn write(&self, signed: u64, signature: u64, tables: u64) -> Result<(Vec<u8>, usize)> {
        let (input, layout) = (self.input, self.layout);
        let mut commands = vec![];
        let mut count = 0;
        for (&segment, place) in &layout.segments {
            let parts: Vec<(LibraryPart, Extent)> =
                layout.parts.iter().map(|(&part, &place)| (part, place)).collect();
            let parts: Vec<_> = parts.into_iter().filter(|part| part.0.segment() == segment).collect();
            let protection = segment.protection();
            let numbers = [protection, protection, parts.len() as u32, segment.flags()];
            segment_command(&mut commands, segment.name(), *place, numbers);
            for (part, place) in parts {
                let (first, bytes) = match part {
                    LibraryPart::Jumps => (0, JUMP_BYTES as u32),
                    LibraryPart::Addresses => (input.jumps.len() as u32, 0),
                    _ => (0, 0),
                };
                padded(&mut commands, part.name());
                padded(&mut commands, segment.name());
                let mut put = Fields(&mut commands);
                put.u64(place.address).u64(place.size).u32(small(place.offset)?);
                put.u32(input.align(part).trailing_zeros()).u32(0).u32(0);
                put.u32(part.flags()).u32(first).u32(bytes).u32(0);
            }
            count += 1;
        }
        let Extent { address, offset, .. } = layout.tables;
        let size = tables.next_multiple_of(page(input.machine));
        let place = Extent { address, size, offset, stored: tables };
        segment_command(&mut commands, "__LINKEDIT", place, [macho::VM_PROT_READ, macho::VM_PROT_READ, 0, 0]);
        dylib_command(&mut commands, macho::LC_ID_DYLIB, 1, &install_name(self.name), [0, 0]);
        let [locals, exported, outside] = self.counts();
        let mut put = Fields(&mut commands);
        put.u32(macho::LC_DYLD_INFO_ONLY).u32(48);
        for [at, size] in [self.moved, self.bound, [0, 0], [0, 0], self.exports] {
            put.u32(at).u32(size);
        }
        let rows = (locals + exported + outside) as u32;
        put.u32(macho::LC_SYMTAB).u32(24).u32(self.symbols[0]).u32(rows);
        put.u32(self.names[0]).u32(self.names[1]);
        put.u32(macho::LC_DYSYMTAB).u32(80);
        for number in [0, locals, locals, exported, locals + exported, outside] {
            put.u32(number as u32);
        }
        // There is no table of contents, and none of modules and of references.
        (0..6).for_each(|_| {
            put.u32(0);
        });
        put.u32(self.indirect[0]).u32(self.indirect[1] / 4);
        (0..4).for_each(|_| {
            put.u32(0);
        });
        put.u32(macho::LC_UUID).u32(24);
        let uuid_at = HEADER_BYTES as usize + put.0.len();
        put.u64(0).u64(0);
        put.u32(macho::LC_BUILD_VERSION).u32(24).u32(macho::PLATFORM_MACOS);
        put.u32(input.system).u32(input.system).u32(0);
        dylib_command(&mut commands, macho::LC_LOAD_DYLIB, 2, SYSTEM, [1 << 16, 1 << 16]);
        let mut put = Fields(&mut commands);
        put.u32(macho::LC_CODE_SIGNATURE).u32(16).u32(small(signed)?).u32(small(signature)?);
        count += 9;
        let (cpu, kind) = match input.machine {
            Machine::X86_64 => (macho::CPU_TYPE_X86_64, macho::CPU_SUBTYPE_X86_64_ALL),
            Machine::Aarch64 => (macho::CPU_TYPE_ARM64, macho::CPU_SUBTYPE_ARM64_ALL),
        };
        let flags =
            macho::MH_NOUNDEFS | macho::MH_DYLDLINK | macho::MH_TWOLEVEL | macho::MH_NO_REEXPORTED_DYLIBS;
        let mut head = vec![];
        let mut put = Fields(&mut head);
        put.u32(macho::MH_MAGIC_64).u32(cpu).u32(kind).u32(macho::MH_DYLIB);
        put.u32(count).u32(commands.len() as u32).u32(flags).u32(0);
        head.extend(commands);
        Ok((head, uuid_at))
    }

    /// Symbols of this library alone, those for others, and those outside.
    fn counts(&self) -> [usize; 3] {
        let symbols = &self.input.symbols;
        let outside = symbols.iter().filter(|symbol| symbol.source.is_none()).count();
        let exported = symbols.iter().filter(|symbol| symbol.exported).count();
        [symbols.len() - outside - exported, exported, outside]
    }
}

/// A name of 16 bytes.
fn padded(bytes: &mut Vec<u8>, name: &str) {
    bytes.extend(name.bytes());
    bytes.resize(bytes.len() + 16 - name.len(), 0);
}

/// `numbers`: both protections, the number of sections, flags.
fn segment_command(bytes: &mut Vec<u8>, name: &str, place: Extent, numbers: [u32; 4]) {
    let size = SEGMENT_BYTES + SECTION_BYTES * u64::from(numbers[2]);
    Fields(bytes).u32(macho::LC_SEGMENT_64).u32(size as u32);
    padded(bytes, name);
    let mut put = Fields(bytes);
    put.u64(place.address).u64(place.size).u64(place.offset).u64(place.stored);
    numbers.into_iter().for_each(|number| {
        put.u32(number);
    });
}

fn dylib_command(bytes: &mut Vec<u8>, command: u32, time: u32, name: &str, versions: [u32; 2]) {
    let end = bytes.len() + dylib_bytes(name) as usize;
    let mut put = Fields(bytes);
    put.u32(command).u32(dylib_bytes(name) as u32).u32(DYLIB_BYTES as u32).u32(time);
    put.u32(versions[0]).u32(versions[1]);
    bytes.extend(name.bytes());
    bytes.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets in the file have 32 bits; addresses may be more.
    #[test]
    fn files_beyond_four_gib_are_refused() {
        let most = (4 << 30) - 0x4000;
        for (part, size, fits) in [
            (LibraryPart::Constants, most - 0x4000, true),
            (LibraryPart::Constants, most, false),
            (LibraryPart::Zeros, 1 << 40, true),
        ] {
            let layout = Layout::of(&[(LibraryPart::Code, 16, 16), (part, size, 64)], 0x4000, 0x300);
            let Err(error) = layout else {
                assert!(fits, "{part:?} {size}");
                continue;
            };
            assert!(!fits && error.message.contains("more than 4 GiB"), "{error:?}");
        }
    }

    #[test]
    fn sections_lie_in_pages_of_their_segment() {
        let parts = [
            (LibraryPart::Code, 0x123, 16),
            (LibraryPart::Text, 8, 0x1000),
            (LibraryPart::Constants, 0x5000, 64),
            (LibraryPart::Variables, 8, 8),
            (LibraryPart::Zeros, 0x9000, 0x40),
        ];
        let layout = Layout::of(&parts, 0x4000, 0x300).unwrap();
        let at = |part: LibraryPart| (layout.parts[&part].address, layout.parts[&part].offset);
        assert_eq!(at(LibraryPart::Code), (0x700, 0x700));
        assert_eq!(at(LibraryPart::Text), (0x1000, 0x1000));
        assert_eq!(at(LibraryPart::Constants), (0x4000, 0x4000));
        assert_eq!(at(LibraryPart::Variables), (0xc000, 0xc000));
        assert_eq!(at(LibraryPart::Zeros), (0xc040, 0));
        let Extent { address, size, offset, stored } = layout.segments[&Segment::Variables];
        assert_eq!((address, size, offset, stored), (0xc000, 0xc000, 0xc000, 0x4000));
        // Memory goes on behind the zeros, the file behind what is stored.
        assert_eq!((layout.tables.address, layout.tables.offset), (0x1_8000, 0x1_0000));
    }
}
