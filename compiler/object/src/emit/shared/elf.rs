//! Shared libraries with ELF.
//!
//! The object's sections are placed in segments; the addresses that the loader fills are `.got`, the jumps through them `.plt`. The
//! library names no other one that it needs: the C library is there in every program, and the runtime is what the program links or
//! loads first, as with a linker's library.

use std::collections::BTreeMap;
use std::io::Write;

use cranelift_object::object::elf;
use cranelift_object::object::endian::LittleEndian;
use cranelift_object::object::read::elf::{FileHeader, Rela, SectionHeader, SectionTable, Sym, SymbolTable};
use cranelift_object::object::{SectionIndex, SymbolIndex};

use super::machine::{self, Machine, Need};
use super::{Counted, Fields, bad, unwind};
use onnxc_ir::error::Result;

type Header = elf::FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

const NULL_SYMBOL_BYTES: u64 = 24;
const RELA_BYTES: u64 = 24;
const DYNAMIC_BYTES: u64 = 16;
const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const SHF_X86_64_LARGE: u64 = 0x1000_0000;

/// Writes the library of an object.
pub(super) fn write(object: &[u8], name: &str, out: &mut dyn Write) -> Result<()> {
    let input = Input::read(object)?;
    let plan = LibraryPlan::new(&input, name)?;
    plan.write(&input, out)
}

/// The parts of an object.
struct Input<'d> {
    machine: Machine,
    flags: u32,
    sections: SectionTable<'d, Header>,
    symbols: SymbolTable<'d, Header>,
    data: &'d [u8],
}

/// A section of the object that is in the library.
struct Source<'d> {
    name: &'d [u8],
    index: SectionIndex,
    header: &'d elf::SectionHeader64<LittleEndian>,
    relocations: &'d [elf::Rela64<LittleEndian>],
}

impl<'d> Input<'d> {
    fn read(data: &'d [u8]) -> Result<Input<'d>> {
        let header = Header::parse(data).map_err(bad)?;
        let machine =
            Machine::new(header.e_machine(ENDIAN)).ok_or_else(|| bad("the machine is not known"))?;
        let sections = header.sections(ENDIAN, data).map_err(bad)?;
        let symbols = sections.symbols(ENDIAN, data, elf::SHT_SYMTAB).map_err(bad)?;
        Ok(Input { machine, flags: header.e_flags(ENDIAN), sections, symbols, data })
    }

    /// The sections with contents, or with room, for the loader or for debuggers.
    fn sources(&self) -> Result<Vec<Source<'d>>> {
        let mut sources = vec![];
        for (index, header) in self.sections.enumerate() {
            let name = self.sections.section_name(ENDIAN, header).map_err(bad)?;
            let loaded = header.sh_flags(ENDIAN) & u64::from(elf::SHF_ALLOC) != 0;
            let described = header.sh_type(ENDIAN) == elf::SHT_PROGBITS && name.starts_with(b".debug_");
            if !(loaded || described) || header.sh_size(ENDIAN) == 0 {
                continue;
            }
            let mut relocations: &[elf::Rela64<LittleEndian>] = &[];
            for (_, table) in self.sections.enumerate() {
                let Some((rows, _)) = table.rela(ENDIAN, self.data).map_err(bad)? else { continue };
                if table.sh_info(ENDIAN) as usize == index.0 {
                    relocations = rows;
                }
            }
            sources.push(Source { name, index, header, relocations });
        }
        Ok(sources)
    }

    fn symbol(&self, number: u32) -> Result<&'d elf::Sym64<LittleEndian>> {
        self.symbols.symbol(SymbolIndex(number as usize)).map_err(bad)
    }

    fn symbol_name(&self, symbol: &elf::Sym64<LittleEndian>) -> Result<&'d [u8]> {
        self.symbols.symbol_name(ENDIAN, symbol).map_err(bad)
    }
}

/// Protection of a segment, in the order in which segments lie. Large data comes last, so that the rest is within reach of code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Segment {
    Read,
    Execute,
    Write,
    Large,
    /// In the file only.
    None,
}

impl Segment {
    fn of(flags: u64) -> Segment {
        let has = |flag: u64| flags & flag != 0;
        match () {
            () if !has(u64::from(elf::SHF_ALLOC)) => Segment::None,
            () if has(SHF_X86_64_LARGE) => Segment::Large,
            () if has(u64::from(elf::SHF_EXECINSTR)) => Segment::Execute,
            () if has(u64::from(elf::SHF_WRITE)) => Segment::Write,
            () => Segment::Read,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Segment::Execute => elf::PF_R | elf::PF_X,
            Segment::Write => elf::PF_R | elf::PF_W,
            _ => elf::PF_R,
        }
    }
}

/// What a section holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Input(usize),
    Hash,
    Symbols,
    Names,
    Relocations,
    UnwindIndex,
    Jumps,
    Dynamic,
    Addresses,
    AllSymbols,
    AllNames,
    SectionNames,
}

/// A section of the library.
struct Section<'d> {
    name: &'d [u8],
    kind: u32,
    flags: u64,
    segment: Segment,
    content: Content,
    size: u64,
    align: u64,
    entry: u64,
    address: u64,
    offset: u64,
}

/// Names one behind the other, each ending in a zero.
struct Names(Vec<u8>);

impl Names {
    fn new() -> Names {
        Names(vec![0])
    }

    fn add(&mut self, name: &[u8]) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(name);
        self.0.push(0);
        at
    }
}

/// A symbol of the library: the object's, and where its name is.
struct Symbol {
    number: u32,
    name: u32,
}

/// A library that is laid out.
struct LibraryPlan<'d> {
    sources: Vec<Source<'d>>,
    sections: Vec<Section<'d>>,
    names: Names,
    soname: u32,
    /// Symbols for the loader: those that the library defines, and those that it needs.
    dynamic: Vec<(Symbol, Vec<u8>)>,
    all_names: Names,
    /// Local symbols first.
    all: Vec<Symbol>,
    locals: usize,
    /// Number of the entry of a symbol in the table of addresses, and in that of jumps.
    addresses: BTreeMap<u32, usize>,
    jumps: BTreeMap<u32, usize>,
    section_names: Names,
    section_name_at: Vec<u32>,
    headers_at: u64,
    /// Absolute addresses in the data: source, offset, symbol, addend.
    absolute: Vec<(usize, u64, u32, i64)>,
}

impl<'d> LibraryPlan<'d> {
    fn new(input: &Input<'d>, name: &str) -> Result<LibraryPlan<'d>> {
        let sources = input.sources()?;
        let mut plan = LibraryPlan {
            sources,
            sections: vec![],
            names: Names::new(),
            soname: 0,
            dynamic: vec![],
            all_names: Names::new(),
            all: vec![],
            locals: 0,
            addresses: BTreeMap::new(),
            jumps: BTreeMap::new(),
            section_names: Names::new(),
            section_name_at: vec![],
            headers_at: 0,
            absolute: vec![],
        };
        plan.needs(input)?;
        plan.symbols(input, name)?;
        plan.list(input)?;
        plan.place(input.machine.page());
        Ok(plan)
    }

    /// Which symbols need an entry in the tables.
    fn needs(&mut self, input: &Input<'d>) -> Result<()> {
        for (at, source) in self.sources.iter().enumerate() {
            let segment = Segment::of(source.header.sh_flags(ENDIAN));
            for row in source.relocations {
                let (number, kind) = (row.r_sym(ENDIAN, false), row.r_type(ENDIAN, false));
                let outside = input.symbol(number)?.st_shndx(ENDIAN) == elf::SHN_UNDEF;
                let need = input.machine.need(kind).ok_or_else(|| bad(format!("relocation {kind}")))?;
                match need {
                    Need::Address => {
                        let next = self.addresses.len();
                        self.addresses.entry(number).or_insert(next);
                    }
                    Need::Absolute | Need::Offset if segment == Segment::None && !outside => {}
                    Need::Absolute if segment == Segment::Write => {
                        self.absolute.push((at, row.r_offset(ENDIAN), number, row.r_addend(ENDIAN)));
                    }
                    Need::Jump if outside => {
                        let (next, jump) = (self.addresses.len(), self.jumps.len());
                        self.addresses.entry(number).or_insert(next);
                        self.jumps.entry(number).or_insert(jump);
                    }
                    Need::Jump | Need::Nothing if !outside => {}
                    _ => {
                        return Err(bad(format!(
                            "relocation {kind} of a symbol outside or in a segment of code"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// The tables of symbols: every function and object for debuggers, and what the loader looks up.
    fn symbols(&mut self, input: &Input<'d>, name: &str) -> Result<()> {
        self.soname = self.names.add(name.as_bytes());
        let mut globals = vec![];
        for (index, symbol) in input.symbols.enumerate() {
            let number = index.0 as u32;
            let kind = symbol.st_type();
            let name = input.symbol_name(symbol)?;
            let named = matches!(kind, elf::STT_FUNC | elf::STT_OBJECT | elf::STT_NOTYPE) && !name.is_empty();
            let section = symbol.st_shndx(ENDIAN);
            let here = self.sources.iter().any(|source| source.index.0 == usize::from(section));
            let outside = section == elf::SHN_UNDEF;
            if !named || !(here || outside) {
                continue;
            }
            let is_local = symbol.st_bind() == elf::STB_LOCAL;
            if outside && !self.addresses.contains_key(&number) && !self.refers(number) {
                continue;
            }
            if !is_local && symbol.st_visibility() != elf::STV_HIDDEN {
                let at = self.names.add(name);
                self.dynamic.push((Symbol { number, name: at }, name.to_vec()));
            }
            let row = Symbol { number, name: self.all_names.add(name) };
            if is_local { self.all.push(row) } else { globals.push(row) }
        }
        self.locals = self.all.len();
        self.all.extend(globals);
        Ok(())
    }

    fn refers(&self, number: u32) -> bool {
        self.absolute.iter().any(|row| row.2 == number)
    }

    /// Number of rows of the loader's relocations.
    fn relocation_count(&self) -> u64 {
        (self.addresses.len() + self.absolute.len()) as u64
    }

    /// All sections, in the order of their segments.
    fn list(&mut self, input: &Input<'d>) -> Result<()> {
        let alloc = u64::from(elf::SHF_ALLOC);
        let symbol_count = self.dynamic.len() as u64 + 1;
        let own = |name: &'static [u8], kind, flags, content, size, align, entry| Section {
            name,
            kind,
            flags,
            segment: Segment::of(flags),
            content,
            size,
            align,
            entry,
            address: 0,
            offset: 0,
        };
        let mut sections = vec![
            own(b".hash", elf::SHT_HASH, alloc, Content::Hash, 4 * (2 + 2 * symbol_count), 8, 4),
            own(b".dynsym", elf::SHT_DYNSYM, alloc, Content::Symbols, 24 * symbol_count, 8, 24),
            own(b".dynstr", elf::SHT_STRTAB, alloc, Content::Names, self.names.0.len() as u64, 1, 0),
        ];
        let rows = self.relocation_count();
        if rows > 0 {
            let bytes = RELA_BYTES * rows;
            sections.push(own(
                b".rela.dyn",
                elf::SHT_RELA,
                alloc,
                Content::Relocations,
                bytes,
                8,
                RELA_BYTES,
            ));
        }
        for (at, source) in self.sources.iter().enumerate() {
            let flags = source.header.sh_flags(ENDIAN);
            sections.push(Section {
                name: source.name,
                kind: source.header.sh_type(ENDIAN),
                flags: flags & !u64::from(elf::SHF_GROUP | elf::SHF_LINK_ORDER | elf::SHF_INFO_LINK),
                segment: Segment::of(flags),
                content: Content::Input(at),
                size: source.header.sh_size(ENDIAN),
                align: source.header.sh_addralign(ENDIAN).max(1),
                entry: source.header.sh_entsize(ENDIAN),
                address: 0,
                offset: 0,
            });
            if source.name == b".eh_frame" {
                let data = source.header.data(ENDIAN, input.data).map_err(bad)?;
                if let Some(count) = unwind::count(data) {
                    let bytes = unwind::HEADER_BYTES + unwind::ROW_BYTES * count as u64;
                    let progbits = elf::SHT_PROGBITS;
                    sections.push(own(b".eh_frame_hdr", progbits, alloc, Content::UnwindIndex, bytes, 4, 0));
                }
            }
        }
        if !self.jumps.is_empty() {
            let bytes = machine::JUMP_BYTES * self.jumps.len() as u64;
            let flags = alloc | u64::from(elf::SHF_EXECINSTR);
            sections.push(own(
                b".plt",
                elf::SHT_PROGBITS,
                flags,
                Content::Jumps,
                bytes,
                16,
                machine::JUMP_BYTES,
            ));
        }
        let writable = alloc | u64::from(elf::SHF_WRITE);
        let rows = self.dynamic_rows(&[]).len() as u64;
        let bytes = DYNAMIC_BYTES * rows;
        sections.push(own(
            b".dynamic",
            elf::SHT_DYNAMIC,
            writable,
            Content::Dynamic,
            bytes,
            8,
            DYNAMIC_BYTES,
        ));
        if !self.addresses.is_empty() {
            let bytes = 8 * self.addresses.len() as u64;
            sections.push(own(b".got", elf::SHT_PROGBITS, writable, Content::Addresses, bytes, 8, 8));
        }
        let bytes = NULL_SYMBOL_BYTES * (self.all.len() as u64 + 1);
        sections.push(own(b".symtab", elf::SHT_SYMTAB, 0, Content::AllSymbols, bytes, 8, 24));
        sections.push(own(
            b".strtab",
            elf::SHT_STRTAB,
            0,
            Content::AllNames,
            self.all_names.0.len() as u64,
            1,
            0,
        ));
        sections.push(own(b".shstrtab", elf::SHT_STRTAB, 0, Content::SectionNames, 0, 1, 0));
        // What takes no room in the file lies behind what does; what is not loaded, the names of sections the last of it, at the end.
        sections.sort_by_key(|section| {
            let own_table = matches!(section.content, Content::Dynamic | Content::Addresses);
            let last = section.content == Content::SectionNames;
            (
                section.segment,
                section.kind == elf::SHT_NOBITS,
                !own_table && section.segment == Segment::Write,
                last,
            )
        });
        for section in &sections {
            self.section_name_at.push(self.section_names.add(section.name));
        }
        if let Some(last) = sections.last_mut() {
            last.size = self.section_names.0.len() as u64;
        }
        self.sections = sections;
        Ok(())
    }

    fn segments(&self) -> Vec<Segment> {
        let mut segments = vec![Segment::Read];
        for section in &self.sections {
            if section.segment != Segment::None && !segments.contains(&section.segment) {
                segments.push(section.segment);
            }
        }
        segments
    }

    fn find(&self, content: Content) -> Option<&Section<'d>> {
        self.sections.iter().find(|section| section.content == content)
    }

    fn address(&self, content: Content) -> u64 {
        self.find(content).map_or(0, |section| section.address)
    }

    /// Number of program headers: the segments, the dynamic section, the stack, and the index for unwinders.
    fn program_header_count(&self) -> u64 {
        self.segments().len() as u64 + 2 + u64::from(self.find(Content::UnwindIndex).is_some())
    }

    /// Gives each section its place in the file and in memory. A segment begins in a page of its own: its address is that of the
    /// next page, plus the rest of the file offset, so that the file has no padding.
    fn place(&mut self, page: u64) {
        let mut offset = HEADER_BYTES + PROGRAM_HEADER_BYTES * self.program_header_count();
        let mut address = offset;
        let mut segment = Segment::Read;
        for section in &mut self.sections {
            if section.segment != segment {
                segment = section.segment;
                address = address.next_multiple_of(page) + offset % page;
            }
            let aligned = address.next_multiple_of(section.align);
            match segment {
                Segment::None => offset = offset.next_multiple_of(section.align),
                _ => offset += aligned - address,
            }
            section.offset = offset;
            section.address = if segment == Segment::None { 0 } else { aligned };
            address = aligned + section.size;
            if section.kind == elf::SHT_NOBITS {
                // The next segment's offset may be any: addresses follow it.
                continue;
            }
            offset += section.size;
        }
        self.headers_at = offset.next_multiple_of(8);
    }

    /// The rows of the dynamic section, with addresses once there are sections.
    fn dynamic_rows(&self, sections: &[Section<'d>]) -> Vec<(i64, u64)> {
        let find = |content| sections.iter().find(|section| section.content == content);
        let address = |content| find(content).map_or(0, |section: &Section<'d>| section.address);
        let size = |content| find(content).map_or(0, |section: &Section<'d>| section.size);
        let mut rows = vec![
            (elf::DT_SONAME, u64::from(self.soname)),
            (elf::DT_HASH, address(Content::Hash)),
            (elf::DT_STRTAB, address(Content::Names)),
            (elf::DT_SYMTAB, address(Content::Symbols)),
            (elf::DT_STRSZ, size(Content::Names)),
            (elf::DT_SYMENT, NULL_SYMBOL_BYTES),
        ];
        if self.relocation_count() > 0 {
            rows.push((elf::DT_RELA, address(Content::Relocations)));
            rows.push((elf::DT_RELASZ, size(Content::Relocations)));
            rows.push((elf::DT_RELAENT, RELA_BYTES));
        }
        rows.push((elf::DT_FLAGS, u64::from(elf::DF_BIND_NOW)));
        rows.push((elf::DT_FLAGS_1, u64::from(elf::DF_1_NOW)));
        rows.push((elf::DT_NULL, 0));
        rows
    }

    /// Number of the library's section that a section of the object is in.
    fn number_of(&self, section: u16) -> Option<usize> {
        let is_it = |section_of: &Section<'d>| match section_of.content {
            Content::Input(at) => self.sources[at].index.0 == usize::from(section),
            _ => false,
        };
        self.sections.iter().position(is_it)
    }

    /// Address of a symbol of the object, of a function outside that of its jump.
    fn symbol_address(&self, input: &Input<'d>, number: u32) -> Result<u64> {
        let symbol = input.symbol(number)?;
        if symbol.st_shndx(ENDIAN) == elf::SHN_UNDEF {
            let jump = self.jumps.get(&number).ok_or_else(|| bad("a symbol outside has no jump"))?;
            return Ok(self.address(Content::Jumps) + machine::JUMP_BYTES * *jump as u64);
        }
        let section =
            self.number_of(symbol.st_shndx(ENDIAN)).ok_or_else(|| bad("a symbol has no section"))?;
        Ok(self.sections[section].address + symbol.st_value(ENDIAN))
    }

    /// Address of the entry of a symbol in the table of addresses.
    fn entry_address(&self, number: u32) -> u64 {
        let entry = self.addresses.get(&number).copied().unwrap_or(0);
        self.address(Content::Addresses) + 8 * entry as u64
    }

    fn write(&self, input: &Input<'d>, out: &mut dyn Write) -> Result<()> {
        let mut out = Counted { out, count: 0 };
        self.write_header(input, &mut out)?;
        for section in &self.sections {
            if section.kind == elf::SHT_NOBITS {
                continue;
            }
            out.pad(section.offset)?;
            match section.content {
                Content::Input(at) => self.write_source(input, at, section, &mut out)?,
                content => out.put(&self.own(input, content)?)?,
            }
        }
        out.pad(self.headers_at)?;
        out.put(&self.section_headers())?;
        out.flush()
    }

    fn write_header(&self, input: &Input<'d>, out: &mut Counted<'_>) -> Result<()> {
        let mut header = vec![];
        header.extend(elf::ELFMAG);
        header.extend([elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT, 0]);
        header.extend([0; 8]);
        let mut put = Fields(&mut header);
        put.u16(elf::ET_DYN).u16(input.machine.number()).u32(u32::from(elf::EV_CURRENT));
        put.u64(0).u64(HEADER_BYTES).u64(self.headers_at).u32(input.flags);
        put.u16(HEADER_BYTES as u16).u16(PROGRAM_HEADER_BYTES as u16).u16(self.program_header_count() as u16);
        let count = self.sections.len() as u16 + 1;
        put.u16(64).u16(count).u16(count - 1);
        let page = input.machine.page();
        let mut program = |kind: u32, flags: u32, from: u64, at: u64, bytes: u64, room: u64, align: u64| {
            let mut put = Fields(&mut header);
            put.u32(kind).u32(flags).u64(from).u64(at).u64(at).u64(bytes).u64(room).u64(align);
        };
        for segment in self.segments() {
            let own: Vec<&Section<'d>> =
                self.sections.iter().filter(|section| section.segment == segment).collect();
            let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
            let in_file = own.iter().rfind(|section| section.kind != elf::SHT_NOBITS);
            let (mut offset, mut address) = (first.offset, first.address);
            if segment == Segment::Read {
                (offset, address) = (0, 0);
            }
            let bytes = in_file.map_or(0, |section| section.offset + section.size - offset);
            let room = last.address + last.size - address;
            program(elf::PT_LOAD, segment.flags(), offset, address, bytes, room, page);
        }
        if let Some(dynamic) = self.find(Content::Dynamic) {
            let Section { offset, address, size, .. } = *dynamic;
            program(elf::PT_DYNAMIC, elf::PF_R | elf::PF_W, offset, address, size, size, 8);
        }
        if let Some(index) = self.find(Content::UnwindIndex) {
            let Section { offset, address, size, .. } = *index;
            program(elf::PT_GNU_EH_FRAME, elf::PF_R, offset, address, size, size, 4);
        }
        program(elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, 0, 0, 0, 0, 16);
        out.put(&header)
    }

    /// A section of the object, with its references filled in.
    fn write_source(
        &self,
        input: &Input<'d>,
        at: usize,
        section: &Section<'d>,
        out: &mut Counted<'_>,
    ) -> Result<()> {
        let source = &self.sources[at];
        let data = source.header.data(ENDIAN, input.data).map_err(bad)?;
        if source.relocations.is_empty() {
            return out.put(data);
        }
        out.put(&self.relocated(input, source, section, data)?)
    }

    fn relocated(
        &self,
        input: &Input<'d>,
        source: &Source<'d>,
        section: &Section<'d>,
        data: &[u8],
    ) -> Result<Vec<u8>> {
        let mut data = data.to_vec();
        for row in source.relocations {
            let (number, kind) = (row.r_sym(ENDIAN, false), row.r_type(ENDIAN, false));
            let target = match input.machine.need(kind) {
                Some(Need::Address) => self.entry_address(number),
                // The loader fills it.
                Some(Need::Absolute) if section.segment == Segment::Write => continue,
                _ => self.symbol_address(input, number)?,
            };
            let at = row.r_offset(ENDIAN);
            let place = section.address + at;
            let target = target.wrapping_add_signed(row.r_addend(ENDIAN));
            let start = usize::try_from(at).map_err(bad)?;
            let bytes = data.get_mut(start..).ok_or_else(|| bad("a relocation lies behind its section"))?;
            input.machine.apply(kind, bytes, place, target).map_err(|what| {
                let name = String::from_utf8_lossy(source.name).into_owned();
                bad(format!("relocation {kind} at {at} of {name}: {what}"))
            })?;
        }
        Ok(data)
    }

    /// A section that the library has of its own.
    fn own(&self, input: &Input<'d>, content: Content) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        match content {
            Content::Input(_) => {}
            Content::Hash => {
                let count = self.dynamic.len() as u32 + 1;
                let mut buckets = vec![0u32; count as usize];
                let mut chain = vec![0u32; count as usize];
                for (at, (_, name)) in (1..).zip(&self.dynamic) {
                    let bucket = (elf::hash(name) % count) as usize;
                    chain[at as usize] = std::mem::replace(&mut buckets[bucket], at);
                }
                let mut put = Fields(&mut bytes);
                put.u32(count).u32(count);
                buckets.iter().chain(&chain).for_each(|&word| {
                    put.u32(word);
                });
            }
            Content::Symbols => {
                bytes.extend([0; NULL_SYMBOL_BYTES as usize]);
                self.dynamic.iter().try_for_each(|(symbol, _)| self.symbol(input, symbol, &mut bytes))?;
            }
            Content::AllSymbols => {
                bytes.extend([0; NULL_SYMBOL_BYTES as usize]);
                self.all.iter().try_for_each(|symbol| self.symbol(input, symbol, &mut bytes))?;
            }
            Content::Names => bytes.extend(&self.names.0),
            Content::AllNames => bytes.extend(&self.all_names.0),
            Content::SectionNames => bytes.extend(&self.section_names.0),
            Content::Relocations => self.relocations(input, &mut bytes)?,
            Content::Addresses => bytes.resize(8 * self.addresses.len(), 0),
            Content::Jumps => {
                let mut jumps: Vec<(usize, u32)> =
                    self.jumps.iter().map(|(&number, &at)| (at, number)).collect();
                jumps.sort_unstable();
                for (at, number) in jumps {
                    let place = self.address(Content::Jumps) + machine::JUMP_BYTES * at as u64;
                    bytes.extend(input.machine.jump(place, self.entry_address(number)).map_err(bad)?);
                }
            }
            Content::Dynamic => {
                let mut put = Fields(&mut bytes);
                for (tag, value) in self.dynamic_rows(&self.sections) {
                    put.u64(tag as u64).u64(value);
                }
            }
            Content::UnwindIndex => {
                let frame = self.sections.iter().find(|section| section.name == b".eh_frame");
                let frame = frame.ok_or_else(|| bad("there is an index of no records"))?;
                let Content::Input(at) = frame.content else {
                    return Err(bad("records are not the object's"));
                };
                let source = &self.sources[at];
                let data = source.header.data(ENDIAN, input.data).map_err(bad)?;
                let data = self.relocated(input, source, frame, data)?;
                bytes = unwind::index(&data, frame.address, self.address(content)).map_err(bad)?;
            }
        }
        Ok(bytes)
    }

    fn symbol(&self, input: &Input<'d>, symbol: &Symbol, bytes: &mut Vec<u8>) -> Result<()> {
        let given = input.symbol(symbol.number)?;
        let section = self.number_of(given.st_shndx(ENDIAN));
        let address = match section {
            Some(section) => self.sections[section].address + given.st_value(ENDIAN),
            None => 0,
        };
        let number = section.map_or(elf::SHN_UNDEF, |section| section as u16 + 1);
        let mut put = Fields(bytes);
        put.u32(symbol.name)
            .u8(given.st_info)
            .u8(given.st_other)
            .u16(number)
            .u64(address)
            .u64(given.st_size(ENDIAN));
        Ok(())
    }

    /// What the loader fills in: addresses of the library's own symbols, and of those outside.
    fn relocations(&self, input: &Input<'d>, bytes: &mut Vec<u8>) -> Result<()> {
        let mut rows: Vec<(u64, u32, i64)> =
            self.addresses.keys().map(|&number| (self.entry_address(number), number, 0)).collect();
        for &(source, offset, number, addend) in &self.absolute {
            rows.push((self.address(Content::Input(source)) + offset, number, addend));
        }
        rows.sort_unstable();
        for (place, number, addend) in rows {
            let outside = input.symbol(number)?.st_shndx(ENDIAN) == elf::SHN_UNDEF;
            let (info, addend) = if outside {
                let at = self.dynamic.iter().position(|(symbol, _)| symbol.number == number);
                let at = at.ok_or_else(|| bad("a symbol outside has no name"))? as u64 + 1;
                let kind =
                    if addend == 0 { input.machine.fill_symbol() } else { input.machine.fill_absolute() };
                (at << 32 | u64::from(kind), addend)
            } else {
                let address = self.symbol_address(input, number)?.wrapping_add_signed(addend);
                (u64::from(input.machine.fill_own()), address as i64)
            };
            Fields(bytes).u64(place).u64(info).u64(addend as u64);
        }
        Ok(())
    }

    fn section_headers(&self) -> Vec<u8> {
        let number = |content| {
            self.sections.iter().position(|section| section.content == content).map_or(0, |at| at as u32 + 1)
        };
        let mut bytes = vec![0; 64];
        for (section, &name) in self.sections.iter().zip(&self.section_name_at) {
            let (link, info) = match section.content {
                Content::Hash => (number(Content::Symbols), 0),
                Content::Relocations => (number(Content::Symbols), 0),
                Content::Symbols => (number(Content::Names), 1),
                Content::Dynamic => (number(Content::Names), 0),
                Content::AllSymbols => (number(Content::AllNames), self.locals as u32 + 1),
                _ => (0, 0),
            };
            let mut put = Fields(&mut bytes);
            put.u32(name).u32(section.kind).u64(section.flags).u64(section.address).u64(section.offset);
            put.u64(section.size).u32(link).u32(info).u64(section.align).u64(section.entry);
        }
        bytes
    }
}
