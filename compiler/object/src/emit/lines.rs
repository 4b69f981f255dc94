//! Line tables of an ELF object (DWARF 4): they lead from addresses to lines of its listing. What they refer to lies in the object, by
//! relocations that a linker resolves; no part of them is loaded.

use std::collections::{BTreeMap, HashMap};

use cranelift_module::FuncId;
use cranelift_object::ObjectProduct;
use cranelift_object::object::write::{Relocation, SectionId, SymbolId, SymbolSection};
use cranelift_object::object::{RelocationEncoding, RelocationFlags, RelocationKind, SectionKind};
use target_lexicon::Endianness;

use crate::host::message::printable;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_machine::leb128;

/// Code between two offsets in a function, of a source location.
pub(super) type Span = (u32, u32, u32);

/// Where a listing will be, as debuggers look for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Its name, absolute or from the folder on.
    pub file: String,
    pub folder: String,
}

/// A function of the object that the listing names.
pub(super) struct Function {
    /// As debuggers show it.
    pub name: String,
    pub line: u32,
    /// The lines of its steps, by their locations.
    pub steps: BTreeMap<u32, u32>,
}

/// A listing while it is written, and what it says of functions.
pub(super) struct Lines {
    pub text: String,
    count: u32,
    pub functions: HashMap<FuncId, Function>,
}

impl Lines {
    /// The first line is that of functions which nothing else is known of.
    pub(super) fn new(model: &str, target: &str) -> Lines {
        let mut lines = Lines { text: String::new(), count: 0, functions: HashMap::new() };
        lines.line(&format!("{model}, compiled by onnxc {} for {target}", env!("CARGO_PKG_VERSION")));
        lines
    }

    /// Appends a line; gives its number.
    pub(super) fn line(&mut self, text: &str) -> u32 {
        self.text += printable(text).trim_end();
        self.text.push('\n');
        self.count += 1;
        self.count
    }
}

/// Tags, attributes and forms (DWARF 4, section 7.5).
const COMPILE_UNIT: u8 = 0x11;
const SUBPROGRAM: u8 = 0x2e;
const NAME: u8 = 0x03;
const STMT_LIST: u8 = 0x10;
const LOW_PC: u8 = 0x11;
const HIGH_PC: u8 = 0x12;
const LANGUAGE: u8 = 0x13;
const COMP_DIR: u8 = 0x1b;
const PRODUCER: u8 = 0x25;
const DECL_FILE: u8 = 0x3a;
const DECL_LINE: u8 = 0x3b;
const FORM_ADDR: u8 = 0x01;
const FORM_DATA2: u8 = 0x05;
const FORM_DATA4: u8 = 0x06;
const FORM_DATA8: u8 = 0x07;
const FORM_STRING: u8 = 0x08;
const FORM_DATA1: u8 = 0x0b;
const FORM_SEC_OFFSET: u8 = 0x17;
const C99: u16 = 0x0c;

/// Operations of line programs (section 6.2.5).
const COPY: u8 = 1;
const ADVANCE_PC: u8 = 2;
const ADVANCE_LINE: u8 = 3;
const EXTENDED: u8 = 0;
const END_SEQUENCE: u8 = 1;
const SET_ADDRESS: u8 = 2;
/// The standard operations' numbers of arguments.
const ARGUMENTS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];

const VERSION: u16 = 4;

/// A section while it is written.
struct Section {
    bytes: Vec<u8>,
    /// Fields that lead somewhere: where they are, how wide, to what, and how far behind it.
    fields: Vec<(u64, u8, SymbolId, i64)>,
    order: Endianness,
}

impl Section {
    fn new(order: Endianness) -> Section {
        Section { bytes: vec![], fields: vec![], order }
    }

    fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    fn word<const N: usize>(&mut self, little: [u8; N]) {
        match self.order {
            Endianness::Little => self.bytes.extend(little),
            Endianness::Big => self.bytes.extend(little.iter().rev()),
        }
    }

    fn u16(&mut self, value: u16) {
        self.word(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.word(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.word(value.to_le_bytes());
    }

    /// Text with a zero behind it; one inside would end it.
    fn text(&mut self, text: &str) {
        self.bytes.extend(text.bytes().filter(|&byte| byte != 0));
        self.bytes.push(0);
    }

    fn unsigned(&mut self, value: u64) {
        self.bytes.extend(leb128::unsigned(value));
    }

    fn signed(&mut self, value: i64) {
        self.bytes.extend(leb128::signed(value));
    }

    /// A field of `bytes` bytes that leads to a symbol.
    fn lead(&mut self, bytes: u8, symbol: SymbolId, behind: u64) {
        self.fields.push((self.bytes.len() as u64, bytes, symbol, behind as i64));
        self.bytes.resize(self.bytes.len() + usize::from(bytes), 0);
    }

    /// A length of all that follows it, which [`Section::close`] fills in.
    fn open(&mut self) -> usize {
        self.u32(0);
        self.bytes.len()
    }

    fn close(&mut self, start: usize) -> Result<()> {
        let length = u32::try_from(self.bytes.len() - start).map_err(|_| internal("line tables of 4 GiB"))?;
        let bytes = match self.order {
            Endianness::Little => length.to_le_bytes(),
            Endianness::Big => length.to_be_bytes(),
        };
        self.bytes[start - 4..start].copy_from_slice(&bytes);
        Ok(())
    }
}

fn internal(text: &str) -> Error {
    Error::internal(Stage::Emit, text.to_string())
}

/// A function as it lies in its section.
struct Placed<'l> {
    name: &'l str,
    line: u32,
    at: u64,
    bytes: u64,
}

/// Writes the sections. `spans` gives what is known of the code of functions, in the order of offsets.
pub(super) fn write(
    product: &mut ObjectProduct,
    order: Endianness,
    (listing, lines): (&Listing, &Lines),
    spans: &[(FuncId, Vec<Span>)],
) -> Result<()> {
    let mut functions = vec![];
    let mut rows: Vec<(u64, u32)> = vec![];
    let mut code = None;
    for (id, own) in spans {
        let symbol = product.object.symbol(product.function_symbol(*id));
        let SymbolSection::Section(section) = symbol.section else {
            return Err(internal("a function has no section"));
        };
        if *code.get_or_insert(section) != section {
            return Err(internal("functions are in several sections"));
        }
        let (at, bytes) = (symbol.value, symbol.size);
        let known = lines.functions.get(id);
        let line = known.map_or(1, |known| known.line);
        rows.push((at, line));
        // What lies between steps, such as moves of the register allocator, counts to the one before.
        for &(start, _, location) in own {
            if let Some(&step) = known.and_then(|known| known.steps.get(&location)) {
                rows.push((at + u64::from(start), step));
            }
        }
        if let Some(known) = known {
            functions.push(Placed { name: &known.name, line, at, bytes });
        }
    }
    let Some(code) = code else { return Ok(()) };
    functions.sort_by_key(|function| function.at);
    let end = spans.iter().map(|(id, _)| product.object.symbol(product.function_symbol(*id)));
    let end = end.map(|symbol| symbol.value + symbol.size).max().unwrap_or(0);
    let code = product.object.section_symbol(code);
    let add = |product: &mut ObjectProduct, name: &[u8]| {
        product.object.add_section(vec![], name.to_vec(), SectionKind::Debug)
    };
    let [abbreviations, info, line, ranges] =
        [&b".debug_abbrev"[..], b".debug_info", b".debug_line", b".debug_aranges"]
            .map(|name| add(product, name));
    let [to_abbreviations, to_info, to_line] =
        [abbreviations, info, line].map(|section| product.object.section_symbol(section));
    let leads = [to_abbreviations, to_line, code];
    place(product, abbreviations, abbreviation_table(order))?;
    place(product, info, unit(order, listing, leads, (&functions, end))?)?;
    place(product, line, program(order, listing, code, (rows, end))?)?;
    place(product, ranges, address_ranges(order, to_info, code, end)?)
}

fn place(product: &mut ObjectProduct, id: SectionId, section: Section) -> Result<()> {
    product.object.set_section_data(id, section.bytes, 1);
    for (offset, bytes, symbol, addend) in section.fields {
        let (kind, encoding) = (RelocationKind::Absolute, RelocationEncoding::Generic);
        let flags = RelocationFlags::Generic { kind, encoding, size: 8 * bytes };
        let relocation = Relocation { offset, symbol, addend, flags };
        let added = product.object.add_relocation(id, relocation);
        added.map_err(|error| Error::internal(Stage::Emit, error.to_string()))?;
    }
    Ok(())
}

/// What entries of each kind have: of the unit, of a function.
fn abbreviation_table(order: Endianness) -> Section {
    let mut section = Section::new(order);
    let unit = [
        (PRODUCER, FORM_STRING),
        (LANGUAGE, FORM_DATA2),
        (NAME, FORM_STRING),
        (COMP_DIR, FORM_STRING),
        (STMT_LIST, FORM_SEC_OFFSET),
        (LOW_PC, FORM_ADDR),
        (HIGH_PC, FORM_DATA8),
    ];
    let function = [
        (NAME, FORM_STRING),
        (DECL_FILE, FORM_DATA1),
        (DECL_LINE, FORM_DATA4),
        (LOW_PC, FORM_ADDR),
        (HIGH_PC, FORM_DATA8),
    ];
    for (number, tag, has_children, attributes) in
        [(1, COMPILE_UNIT, 1, &unit[..]), (2, SUBPROGRAM, 0, &function[..])]
    {
        section.bytes.extend([number, tag, has_children]);
        section.bytes.extend(attributes.iter().flat_map(|&(name, form)| [name, form]));
        section.bytes.extend([0, 0]);
    }
    section.byte(0);
    section
}

fn unit(
    order: Endianness,
    listing: &Listing,
    [abbreviations, lines, code]: [SymbolId; 3],
    (functions, end): (&[Placed<'_>], u64),
) -> Result<Section> {
    let mut section = Section::new(order);
    let start = section.open();
    section.u16(VERSION);
    section.lead(4, abbreviations, 0);
    section.byte(8);
    section.byte(1);
    section.text(concat!("onnxc ", env!("CARGO_PKG_VERSION")));
    section.u16(C99);
    section.text(&listing.file);
    section.text(&listing.folder);
    section.lead(4, lines, 0);
    section.lead(8, code, 0);
    section.u64(end);
    for function in functions {
        section.byte(2);
        section.text(function.name);
        section.byte(1);
        section.u32(function.line);
        section.lead(8, code, function.at);
        section.u64(function.bytes);
    }
    section.byte(0);
    section.close(start)?;
    Ok(section)
}

/// The line program: one sequence over all code.
fn program(
    order: Endianness,
    listing: &Listing,
    code: SymbolId,
    (mut rows, end): (Vec<(u64, u32)>, u64),
) -> Result<Section> {
    let mut section = Section::new(order);
    let start = section.open();
    section.u16(VERSION);
    let header = section.open();
    // Units of code, operations of an instruction, rows are statements; special operations, which are not used.
    section.bytes.extend([1, 1, 1, -5i8 as u8, 14, ARGUMENTS.len() as u8 + 1]);
    section.bytes.extend(ARGUMENTS);
    // No folders; one file, in that of the unit.
    section.byte(0);
    section.text(&listing.file);
    section.bytes.extend([0, 0, 0, 0]);
    section.close(header)?;
    section.bytes.extend([EXTENDED, 9, SET_ADDRESS]);
    section.lead(8, code, 0);
    // A step may begin with its function; of the rows of a step the first is enough.
    rows.reverse();
    rows.sort_by_key(|row| row.0);
    rows.dedup_by_key(|row| row.0);
    rows.dedup_by_key(|row| row.1);
    let (mut at, mut line) = (0, 1);
    for (address, next) in rows {
        if address > at {
            section.byte(ADVANCE_PC);
            section.unsigned(address - at);
        }
        if next != line {
            section.byte(ADVANCE_LINE);
            section.signed(i64::from(next) - i64::from(line));
        }
        section.byte(COPY);
        (at, line) = (address, next);
    }
    section.byte(ADVANCE_PC);
    section.unsigned(end - at);
    section.bytes.extend([EXTENDED, 1, END_SEQUENCE]);
    section.close(start)?;
    Ok(section)
}

/// The addresses of the unit, by which tools find it.
fn address_ranges(order: Endianness, info: SymbolId, code: SymbolId, end: u64) -> Result<Section> {
    let mut section = Section::new(order);
    let start = section.open();
    section.u16(2);
    section.lead(4, info, 0);
    // Bytes of an address, and of a segment's number; filled up to a multiple of two addresses.
    section.bytes.extend([8, 0, 0, 0, 0, 0]);
    section.lead(8, code, 0);
    section.u64(end);
    section.u64(0);
    section.u64(0);
    section.close(start)?;
    Ok(section)
}
