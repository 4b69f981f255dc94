//! DLLs for Windows out of one COFF object.
//!
//! The object's sections become one section of the image for each kind. A function outside is called by a jump through its entry of the
//! table of imports; what its address is stored in gets the address of that jump. The image exports its global functions.

use std::collections::BTreeMap;
use std::io::Write;

use cranelift_object::object::read::coff::CoffFile;
use cranelift_object::object::write::pe::{NtHeaders, SectionRange, Writer};
use cranelift_object::object::{
    Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SectionIndex,
    SymbolIndex, pe,
};

use super::bad;
use super::machine::{JUMP_BYTES, Machine, branch, page_immediate};
use onnxc_ir::error::{Error, Kind, Result, Stage};

const IMAGE_BASE: u64 = 0x1_8000_0000;
const PAGE: u32 = 0x1000;
const FILE_ALIGNMENT: u32 = 0x200;

/// The library that a function outside is in: the C library that every Windows has, or the runtime.
fn library_of(function: &str) -> Option<&'static str> {
    match function {
        "memcpy" | "memmove" | "memset" | "memcmp" => Some("msvcrt.dll"),
        "__chkstk" => Some("ntdll.dll"),
        _ if function.starts_with("onnxc_") => Some("onnxc_runtime_images.dll"),
        _ => None,
    }
}

/// Sections of the image, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ImagePart {
    Text,
    Constants,
    Functions,
    Variables,
}

const PARTS: [ImagePart; 4] =
    [ImagePart::Text, ImagePart::Constants, ImagePart::Functions, ImagePart::Variables];

impl ImagePart {
    /// `None` for a section that the image does not need.
    fn of(name: &str, characteristics: u32) -> Option<ImagePart> {
        let has = |flag: u32| characteristics & flag != 0;
        match () {
            () if has(pe::IMAGE_SCN_LNK_REMOVE | pe::IMAGE_SCN_LNK_INFO | pe::IMAGE_SCN_MEM_DISCARDABLE) => {
                None
            }
            () if name == ".pdata" => Some(ImagePart::Functions),
            () if has(pe::IMAGE_SCN_MEM_EXECUTE) => Some(ImagePart::Text),
            () if has(pe::IMAGE_SCN_MEM_WRITE) => Some(ImagePart::Variables),
            () => Some(ImagePart::Constants),
        }
    }
}

/// A section of the object, and where it begins in its part.
struct Source<'d> {
    index: SectionIndex,
    part: ImagePart,
    at: u64,
    size: u64,
    data: &'d [u8],
}

/// The contents of an image under construction.
struct Image<'d> {
    machine: Machine,
    file: CoffFile<'d>,
    sources: Vec<Source<'d>>,
    sizes: BTreeMap<ImagePart, u64>,
    /// Functions outside, with the library of each; the number is that of its jump.
    imports: Vec<(SymbolIndex, String, &'static str)>,
    exports: Vec<(String, SymbolIndex)>,
}

/// Writes the DLL of an object.
pub(super) fn write(object: &[u8], name: &str, out: &mut dyn Write) -> Result<()> {
    let image = Image::read(object)?;
    let bytes = image.build(name)?;
    out.write_all(&bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Error::new(Stage::Emit, Kind::Io, error.to_string()))
}

impl<'d> Image<'d> {
    fn read(object: &'d [u8]) -> Result<Image<'d>> {
        let file = CoffFile::parse(object).map_err(bad)?;
        let machine = match object.first_chunk().map(|number| u16::from_le_bytes(*number)) {
            Some(pe::IMAGE_FILE_MACHINE_AMD64) => Machine::X86_64,
            Some(pe::IMAGE_FILE_MACHINE_ARM64) => Machine::Aarch64,
            _ => return Err(bad("the machine is not known")),
        };
        let mut sizes: BTreeMap<ImagePart, u64> = BTreeMap::new();
        let mut sources = vec![];
        for section in file.sections() {
            let SectionFlags::Coff { characteristics } = section.flags() else { continue };
            let name = section.name().map_err(bad)?;
            let Some(part) = ImagePart::of(name, characteristics) else { continue };
            let size = sizes.entry(part).or_default();
            let at = size.next_multiple_of(section.align().max(1));
            *size = at + section.size();
            let data = section.data().map_err(bad)?;
            sources.push(Source { index: section.index(), part, at, size: section.size(), data });
        }
        let (mut imports, mut exports) = (vec![], vec![]);
        for symbol in file.symbols() {
            let name = symbol.name().map_err(bad)?;
            if symbol.is_undefined() {
                let library =
                    library_of(name).ok_or_else(|| bad(format!("no library is known that has `{name}`")))?;
                imports.push((symbol.index(), name.to_string(), library));
            } else if symbol.is_global() && symbol.is_definition() {
                exports.push((name.to_string(), symbol.index()));
            }
        }
        // Windows looks names up in their order.
        exports.sort_by(|a: &(String, SymbolIndex), b| a.0.cmp(&b.0));
        imports.sort_by_key(|import| (import.2, import.0.0));
        Ok(Image { machine, file, sources, sizes, imports, exports })
    }

    fn size(&self, part: ImagePart) -> u64 {
        self.sizes.get(&part).copied().unwrap_or(0)
    }

    /// Bytes of the code with the jumps behind it.
    fn jumps_at(&self) -> u64 {
        self.size(ImagePart::Text).next_multiple_of(JUMP_BYTES)
    }

    fn build(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        let mut writer = Writer::new(true, PAGE, FILE_ALIGNMENT, &mut bytes);
        writer.reserve_dos_header_and_stub();
        writer.reserve_nt_headers(pe::IMAGE_NUMBEROF_DIRECTORY_ENTRIES);
        // The section of relocations comes last, if there are any.
        let with_relocations = self.has_absolute()?;
        writer.reserve_section_headers(
            u16::from(with_relocations) + PARTS.iter().filter(|&&part| self.has(part)).count() as u16,
        );
        let mut ranges: BTreeMap<ImagePart, SectionRange> = BTreeMap::new();
        let small = |size: u64| u32::try_from(size).map_err(|_| bad("more than 4 GiB"));
        let text = small(self.jumps_at() + JUMP_BYTES * self.imports.len() as u64)?;
        ranges.insert(ImagePart::Text, writer.reserve_text_section(text));
        // The tables lie behind the object's constants; their size does not depend on where.
        let tables_at = self.size(ImagePart::Constants).next_multiple_of(16);
        let tables = Tables::new(self, name, 0, |_| Ok(0))?;
        let constants = small(tables_at + tables.bytes.len() as u64)?;
        let range = writer.reserve_rdata_section(constants);
        ranges.insert(ImagePart::Constants, range);
        if self.has(ImagePart::Functions) {
            ranges.insert(
                ImagePart::Functions,
                writer.reserve_pdata_section(small(self.size(ImagePart::Functions))?),
            );
        }
        if self.has(ImagePart::Variables) {
            let size = small(self.size(ImagePart::Variables))?;
            ranges.insert(ImagePart::Variables, writer.reserve_data_section(size, size));
        }
        let at = |part: ImagePart| ranges.get(&part).map_or(0, |range| u64::from(range.virtual_address));
        let tables_rva = range.virtual_address + small(tables_at)?;
        let tables = Tables::new(self, name, tables_rva, |symbol| small(self.address(symbol, &at)?))?;
        let (exports, imports, entries) =
            (tables.exports.clone(), tables.imports.clone(), tables.entries.clone());
        let mut contents = self.contents()?;
        for place in self.relocate(&mut contents, &at)? {
            writer.add_reloc(small(place)?, pe::IMAGE_REL_BASED_DIR64);
        }
        if let Some(functions) = contents.get_mut(&ImagePart::Functions) {
            // Unwinders look functions up by their start, which is what a row begins with.
            let bytes = if self.machine == Machine::X86_64 { 12 } else { 8 };
            let mut rows: Vec<&[u8]> = functions.chunks_exact(bytes).collect();
            rows.sort_by_key(|row| row.first_chunk().map(|start| u32::from_le_bytes(*start)));
            *functions = rows.concat();
        }
        let text = contents.entry(ImagePart::Text).or_default();
        text.resize(self.jumps_at() as usize, 0xcc);
        for number in 0..self.imports.len() {
            let place = at(ImagePart::Text) + text.len() as u64;
            let entry = u64::from(entries.start) + tables.entry(number) as u64;
            text.extend(self.machine.jump(place, entry).map_err(bad)?);
        }
        let constants = contents.entry(ImagePart::Constants).or_default();
        constants.resize(tables_at as usize, 0);
        constants.extend(&tables.bytes);
        if writer.has_relocs() {
            writer.reserve_reloc_section();
        }
        let mut directory = |index: usize, range: &std::ops::Range<u32>| {
            if !range.is_empty() {
                writer.set_data_directory(index, range.start, range.end - range.start);
            }
        };
        directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT, &exports);
        directory(pe::IMAGE_DIRECTORY_ENTRY_IMPORT, &imports);
        directory(pe::IMAGE_DIRECTORY_ENTRY_IAT, &entries);
        writer.write_dos_header_and_stub().map_err(bad)?;
        writer.write_nt_headers(NtHeaders {
            machine: match self.machine {
                Machine::X86_64 => pe::IMAGE_FILE_MACHINE_AMD64,
                Machine::Aarch64 => pe::IMAGE_FILE_MACHINE_ARM64,
            },
            time_date_stamp: 0,
            characteristics: pe::IMAGE_FILE_EXECUTABLE_IMAGE
                | pe::IMAGE_FILE_LARGE_ADDRESS_AWARE
                | pe::IMAGE_FILE_DLL,
            major_linker_version: 0,
            minor_linker_version: 0,
            address_of_entry_point: 0,
            image_base: IMAGE_BASE,
            major_operating_system_version: 6,
            minor_operating_system_version: 0,
            major_image_version: 0,
            minor_image_version: 0,
            major_subsystem_version: 6,
            minor_subsystem_version: 0,
            subsystem: pe::IMAGE_SUBSYSTEM_WINDOWS_CUI,
            dll_characteristics: pe::IMAGE_DLLCHARACTERISTICS_HIGH_ENTROPY_VA
                | pe::IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE
                | pe::IMAGE_DLLCHARACTERISTICS_NX_COMPAT,
            size_of_stack_reserve: 0x10_0000,
            size_of_stack_commit: 0x1000,
            size_of_heap_reserve: 0x10_0000,
            size_of_heap_commit: 0x1000,
        });
        writer.write_section_headers();
        for part in PARTS {
            if let (Some(range), Some(data)) = (ranges.get(&part), contents.get(&part)) {
                writer.write_section(range.file_offset, data);
            }
        }
        writer.write_reloc_section();
        Ok(bytes)
    }

    /// Whether the image has a section.
    fn has(&self, part: ImagePart) -> bool {
        matches!(part, ImagePart::Text | ImagePart::Constants) || self.size(part) > 0
    }

    fn has_absolute(&self) -> Result<bool> {
        for source in &self.sources {
            let section = self.file.section_by_index(source.index).map_err(bad)?;
            let is_moved = |flags: RelocationFlags| matches!(flags, RelocationFlags::Coff { typ } if is_absolute(self.machine, typ));
            if section.relocations().any(|(_, relocation)| is_moved(relocation.flags())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The bytes of each part, before references are filled in.
    fn contents(&self) -> Result<BTreeMap<ImagePart, Vec<u8>>> {
        let mut contents: BTreeMap<ImagePart, Vec<u8>> = BTreeMap::new();
        for source in &self.sources {
            let bytes = contents.entry(source.part).or_default();
            let fill = if source.part == ImagePart::Text { 0xcc } else { 0 };
            bytes.resize(usize::try_from(source.at).map_err(bad)?, fill);
            bytes.extend(source.data);
            // What has no contents is zeros.
            bytes.resize(usize::try_from(source.at + source.size).map_err(bad)?, 0);
        }
        Ok(contents)
    }

    /// Distance of a symbol from the start of the image, of a function outside that of its jump.
    fn address(&self, symbol: SymbolIndex, at: &dyn Fn(ImagePart) -> u64) -> Result<u64> {
        if let Some(number) = self.imports.iter().position(|import| import.0 == symbol) {
            return Ok(at(ImagePart::Text) + self.jumps_at() + JUMP_BYTES * number as u64);
        }
        let symbol = self.file.symbol_by_index(symbol).map_err(bad)?;
        let section = symbol.section_index().ok_or_else(|| bad("a symbol has no section"))?;
        let source = self.sources.iter().find(|source| source.index == section);
        let source = source.ok_or_else(|| bad("a symbol is in a section that is left out"))?;
        Ok(at(source.part) + source.at + symbol.address())
    }

    /// Fills references in; gives the places of absolute addresses.
    fn relocate(
        &self,
        contents: &mut BTreeMap<ImagePart, Vec<u8>>,
        at: &dyn Fn(ImagePart) -> u64,
    ) -> Result<Vec<u64>> {
        let mut absolute = vec![];
        for source in &self.sources {
            let section = self.file.section_by_index(source.index).map_err(bad)?;
            let bytes = contents.entry(source.part).or_default();
            for (offset, relocation) in section.relocations() {
                let RelocationFlags::Coff { typ } = relocation.flags() else { continue };
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    return Err(bad("a relocation has no symbol"));
                };
                let place = at(source.part) + source.at + offset;
                let target = self.address(symbol, at)?;
                let start = usize::try_from(source.at + offset).map_err(bad)?;
                let field =
                    bytes.get_mut(start..).ok_or_else(|| bad("a relocation lies behind its section"))?;
                fill(self.machine, typ, field, place, target)
                    .map_err(|what| bad(format!("relocation {typ}: {what}")))?;
                if is_absolute(self.machine, typ) {
                    absolute.push(place);
                }
            }
        }
        absolute.sort_unstable();
        Ok(absolute)
    }
}

/// Whether a reference is an address that moves with the image.
fn is_absolute(machine: Machine, typ: u16) -> bool {
    match machine {
        Machine::X86_64 => typ == pe::IMAGE_REL_AMD64_ADDR64,
        Machine::Aarch64 => typ == pe::IMAGE_REL_ARM64_ADDR64,
    }
}

/// Fills one reference in; what is in the field counts as the addend.
fn fill(
    machine: Machine,
    typ: u16,
    field: &mut [u8],
    place: u64,
    target: u64,
) -> std::result::Result<(), String> {
    let outside = "it lies behind the section";
    if is_absolute(machine, typ) {
        let field = field.first_chunk_mut::<8>().ok_or(outside)?;
        *field = (IMAGE_BASE + target).wrapping_add(u64::from_le_bytes(*field)).to_le_bytes();
        return Ok(());
    }
    let field = field.first_chunk_mut::<4>().ok_or(outside)?;
    let addend = i64::from(i32::from_le_bytes(*field));
    let too_far = || "the distance does not fit".to_string();
    let from = |behind: u64| target.wrapping_add_signed(addend).wrapping_sub(place + behind) as i64;
    let mut instruction = |bits: u32, immediate: u32| match addend as u32 & bits {
        0 => {
            *field = (addend as u32 | immediate).to_le_bytes();
            Ok(())
        }
        _ => Err("the instruction has an addend".to_string()),
    };
    let value = match (machine, typ) {
        (Machine::X86_64, pe::IMAGE_REL_AMD64_ADDR32NB)
        | (Machine::Aarch64, pe::IMAGE_REL_ARM64_ADDR32NB) => target.wrapping_add_signed(addend) as i64,
        // From the end of the field, or a few bytes behind that, by the kind.
        (Machine::X86_64, pe::IMAGE_REL_AMD64_REL32..=pe::IMAGE_REL_AMD64_REL32_5) => {
            from(u64::from(typ - pe::IMAGE_REL_AMD64_REL32) + 4)
        }
        (Machine::Aarch64, pe::IMAGE_REL_ARM64_REL32) => from(4),
        (Machine::Aarch64, pe::IMAGE_REL_ARM64_BRANCH26) => {
            let distance = target.wrapping_sub(place) as i64;
            return instruction(0x3ff_ffff, branch(distance).ok_or_else(too_far)?);
        }
        (Machine::Aarch64, pe::IMAGE_REL_ARM64_PAGEBASE_REL21) => {
            let pages = ((target & !0xfff).wrapping_sub(place & !0xfff) as i64) >> 12;
            return instruction(0x60ff_ffe0, page_immediate(pages).ok_or_else(too_far)?);
        }
        (Machine::Aarch64, pe::IMAGE_REL_ARM64_PAGEOFFSET_12A) => {
            return instruction(0x3f_fc00, (target as u32 & 0xfff) << 10);
        }
        _ => return Err("it is not known".into()),
    };
    let value = i32::try_from(value).map_err(|_| too_far())?;
    *field = value.to_le_bytes();
    Ok(())
}

/// Exports and imports.
struct Tables {
    bytes: Vec<u8>,
    /// Where each of them lies, as distances from the start of the image.
    exports: std::ops::Range<u32>,
    imports: std::ops::Range<u32>,
    entries: std::ops::Range<u32>,
    /// Offset of each function's entry in the table of addresses.
    entry_at: Vec<usize>,
}

impl Tables {
    /// `start` is where the tables lie; `address` gives the distance of a symbol from the start of the image.
    fn new(
        image: &Image<'_>,
        name: &str,
        start: u32,
        address: impl Fn(SymbolIndex) -> Result<u32>,
    ) -> Result<Tables> {
        let mut bytes = vec![];
        let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
        let put =
            |bytes: &mut [u8], at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let rva = |at: usize| start + at as u32;
        // The addresses of functions outside: for each library its functions, then a zero; the loader fills the first table.
        let libraries: Vec<&str> = {
            let mut names: Vec<&str> = image.imports.iter().map(|import| import.2).collect();
            names.dedup();
            names
        };
        let mut entry_at = vec![];
        let mut tables = vec![];
        for library in &libraries {
            let first = bytes.len();
            for _ in image.imports.iter().filter(|import| import.2 == *library) {
                entry_at.push(bytes.len());
                bytes.extend([0; 8]);
            }
            bytes.extend([0; 8]);
            tables.push(first..bytes.len());
        }
        let entries = rva(0)..rva(bytes.len());
        // The same tables with names, which stay.
        let names_at = bytes.len();
        bytes.resize(2 * names_at, 0);
        let directory = bytes.len();
        if !libraries.is_empty() {
            bytes.resize(directory + 20 * (libraries.len() + 1), 0);
        }
        let imports = rva(directory)..rva(bytes.len());
        for (&at, (_, function, _)) in entry_at.iter().zip(&image.imports) {
            let hint = rva(bytes.len());
            put(&mut bytes, at, hint);
            put(&mut bytes, names_at + at, hint);
            bytes.extend([0, 0]);
            bytes.extend(function.as_bytes());
            bytes.extend(if bytes.len() % 2 == 0 { &[0, 0][..] } else { &[0] });
        }
        for (number, (library, table)) in libraries.iter().zip(&tables).enumerate() {
            let row = directory + 20 * number;
            put(&mut bytes, row, rva(names_at + table.start));
            let text = rva(bytes.len());
            put(&mut bytes, row + 12, text);
            put(&mut bytes, row + 16, rva(table.start));
            bytes.extend(library.as_bytes());
            bytes.push(0);
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let first = bytes.len();
        let count = image.exports.len();
        let (addresses, names) = (first + 40, first + 40 + 4 * count);
        let (ordinals, texts) = (names + 4 * count, names + 6 * count);
        for value in
            [0, 0, 0, rva(texts), 1, count as u32, count as u32, rva(addresses), rva(names), rva(ordinals)]
        {
            word(&mut bytes, value);
        }
        for (_, symbol) in &image.exports {
            word(&mut bytes, address(*symbol)?);
        }
        let mut at = texts + name.len() + 1;
        for (text, _) in &image.exports {
            word(&mut bytes, rva(at));
            at += text.len() + 1;
        }
        (0..count as u16).for_each(|number| bytes.extend(number.to_le_bytes()));
        for text in std::iter::once(name).chain(image.exports.iter().map(|export| export.0.as_str())) {
            bytes.extend(text.as_bytes());
            bytes.push(0);
        }
        let exports = rva(first)..rva(bytes.len());
        Ok(Tables { bytes, exports, imports, entries, entry_at })
    }

    fn entry(&self, number: usize) -> usize {
        self.entry_at[number]
    }
}
