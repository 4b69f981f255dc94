//! Relocations of the processors: which references there are, and how an instruction holds one.

use cranelift_object::object::elf;

/// Bytes of a jump through the table of addresses.
pub(super) const JUMP_BYTES: u64 = 16;

/// A family of processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

/// What a reference needs of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// The distance to the symbol.
    Nothing,
    /// The same, of a call: a jump where the function is outside.
    Jump,
    /// An entry in the table of addresses.
    Address,
    /// The address itself, which the loader fills in.
    Absolute,
    /// The place in a section that is not loaded, in 32 bits.
    Offset,
}

const TOO_FAR: &str = "the distance does not fit";

impl Machine {
    pub(super) fn new(number: u16) -> Option<Machine> {
        match number {
            elf::EM_X86_64 => Some(Machine::X86_64),
            elf::EM_AARCH64 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    pub(super) fn number(self) -> u16 {
        match self {
            Machine::X86_64 => elf::EM_X86_64,
            Machine::Aarch64 => elf::EM_AARCH64,
        }
    }

    /// The largest page that a system may have.
    pub(super) fn page(self) -> u64 {
        match self {
            Machine::X86_64 => 0x1000,
            Machine::Aarch64 => 0x1_0000,
        }
    }

    /// The loader's relocation for an address in the library.
    pub(super) fn fill_own(self) -> u32 {
        match self {
            Machine::X86_64 => elf::R_X86_64_RELATIVE,
            Machine::Aarch64 => elf::R_AARCH64_RELATIVE,
        }
    }

    /// The one for an entry in the table of addresses.
    pub(super) fn fill_symbol(self) -> u32 {
        match self {
            Machine::X86_64 => elf::R_X86_64_GLOB_DAT,
            Machine::Aarch64 => elf::R_AARCH64_GLOB_DAT,
        }
    }

    /// The one for the address of a symbol with an addend.
    pub(super) fn fill_absolute(self) -> u32 {
        match self {
            Machine::X86_64 => elf::R_X86_64_64,
            Machine::Aarch64 => elf::R_AARCH64_ABS64,
        }
    }

    /// `None` for a relocation that is not known.
    pub(super) fn need(self, kind: u32) -> Option<Need> {
        Some(match self {
            Machine::X86_64 => match kind {
                elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => Need::Jump,
                elf::R_X86_64_PC64 => Need::Nothing,
                elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => {
                    Need::Address
                }
                elf::R_X86_64_64 => Need::Absolute,
                elf::R_X86_64_32 => Need::Offset,
                _ => return None,
            },
            Machine::Aarch64 => match kind {
                elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => Need::Jump,
                elf::R_AARCH64_PREL32
                | elf::R_AARCH64_PREL64
                | elf::R_AARCH64_ADR_PREL_PG_HI21
                | elf::R_AARCH64_ADD_ABS_LO12_NC
                | elf::R_AARCH64_LDST8_ABS_LO12_NC
                | elf::R_AARCH64_LDST16_ABS_LO12_NC
                | elf::R_AARCH64_LDST32_ABS_LO12_NC
                | elf::R_AARCH64_LDST64_ABS_LO12_NC
                | elf::R_AARCH64_LDST128_ABS_LO12_NC => Need::Nothing,
                elf::R_AARCH64_ADR_GOT_PAGE | elf::R_AARCH64_LD64_GOT_LO12_NC => Need::Address,
                elf::R_AARCH64_ABS64 => Need::Absolute,
                elf::R_AARCH64_ABS32 => Need::Offset,
                _ => return None,
            },
        })
    }

    /// Fills a reference at address `place`, whose bytes these are, in; `target` is what it refers to, with the addend.
    pub(super) fn apply(self, kind: u32, bytes: &mut [u8], place: u64, target: u64) -> Result<(), String> {
        let distance = target.wrapping_sub(place) as i64;
        let pages = ((target & !0xfff).wrapping_sub(place & !0xfff) as i64) >> 12;
        let low = (target & 0xfff) as u32;
        let shifted = |shift: u32| match low.is_multiple_of(1 << shift) {
            true => Ok((low >> shift) << 10),
            false => Err("the address is not aligned".to_string()),
        };
        let immediate = |value: Result<u32, String>, bytes: &mut [u8]| {
            let word = bytes.first_chunk_mut::<4>().ok_or("it lies behind the section")?;
            *word = (u32::from_le_bytes(*word) | value?).to_le_bytes();
            Ok(())
        };
        let whole64 = |value: u64, bytes: &mut [u8]| {
            *bytes.first_chunk_mut::<8>().ok_or("it lies behind the section")? = value.to_le_bytes();
            Ok(())
        };
        let whole32 = |bytes: &mut [u8]| {
            let value = i32::try_from(distance).map_err(|_| TOO_FAR)?;
            *bytes.first_chunk_mut::<4>().ok_or("it lies behind the section")? = value.to_le_bytes();
            Ok(())
        };
        match (self, kind) {
            (Machine::X86_64, elf::R_X86_64_64) | (Machine::Aarch64, elf::R_AARCH64_ABS64) => {
                whole64(target, bytes)
            }
            (Machine::X86_64, elf::R_X86_64_32) | (Machine::Aarch64, elf::R_AARCH64_ABS32) => {
                let value = u32::try_from(target).map_err(|_| TOO_FAR)?;
                *bytes.first_chunk_mut::<4>().ok_or("it lies behind the section")? = value.to_le_bytes();
                Ok(())
            }
            (Machine::X86_64, elf::R_X86_64_PC64) | (Machine::Aarch64, elf::R_AARCH64_PREL64) => {
                whole64(distance as u64, bytes)
            }
            (Machine::X86_64, _) | (Machine::Aarch64, elf::R_AARCH64_PREL32) => whole32(bytes),
            (Machine::Aarch64, elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26) => {
                immediate(branch(distance).ok_or_else(|| TOO_FAR.to_string()), bytes)
            }
            (Machine::Aarch64, elf::R_AARCH64_ADR_PREL_PG_HI21 | elf::R_AARCH64_ADR_GOT_PAGE) => {
                immediate(page_immediate(pages).ok_or_else(|| TOO_FAR.to_string()), bytes)
            }
            (Machine::Aarch64, elf::R_AARCH64_LDST16_ABS_LO12_NC) => immediate(shifted(1), bytes),
            (Machine::Aarch64, elf::R_AARCH64_LDST32_ABS_LO12_NC) => immediate(shifted(2), bytes),
            (Machine::Aarch64, elf::R_AARCH64_LDST64_ABS_LO12_NC | elf::R_AARCH64_LD64_GOT_LO12_NC) => {
                immediate(shifted(3), bytes)
            }
            (Machine::Aarch64, elf::R_AARCH64_LDST128_ABS_LO12_NC) => immediate(shifted(4), bytes),
            (Machine::Aarch64, _) => immediate(shifted(0), bytes),
        }
    }

    /// The jump at address `place` through the entry at `entry`.
    pub(super) fn jump(self, place: u64, entry: u64) -> Result<[u8; JUMP_BYTES as usize], &'static str> {
        let mut code = [0; JUMP_BYTES as usize];
        match self {
            Machine::X86_64 => {
                // jmp [rip + distance], then int3.
                let distance = entry.wrapping_sub(place + 6) as i64;
                let distance = i32::try_from(distance).map_err(|_| TOO_FAR)?;
                code.fill(0xcc);
                code[..2].copy_from_slice(&[0xff, 0x25]);
                code[2..6].copy_from_slice(&distance.to_le_bytes());
            }
            Machine::Aarch64 => {
                let pages = ((entry & !0xfff).wrapping_sub(place & !0xfff) as i64) >> 12;
                let words = [
                    // adrp x16, page; ldr x17, [x16, low]; br x17; nop
                    0x9000_0010 | page_immediate(pages).ok_or(TOO_FAR)?,
                    0xf940_0211 | ((entry & 0xfff) as u32 >> 3) << 10,
                    0xd61f_0220,
                    0xd503_201f,
                ];
                for (bytes, word) in code.chunks_exact_mut(4).zip(words) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        Ok(code)
    }
}

/// The field of `adrp` for a distance in pages.
pub(super) fn page_immediate(pages: i64) -> Option<u32> {
    let fits = (-(1 << 20)..1 << 20).contains(&pages);
    fits.then_some((pages as u32 & 3) << 29 | ((pages >> 2) as u32 & 0x7_ffff) << 5)
}

/// The field of `b` and `bl`.
pub(super) fn branch(distance: i64) -> Option<u32> {
    let fits = (-(1 << 27)..1 << 27).contains(&distance) && distance % 4 == 0;
    fits.then_some((distance >> 2) as u32 & 0x3ff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields against what an assembler writes.
    #[test]
    fn instructions_hold_distances() {
        let filled = |machine: Machine, kind, word: u32, place, target| {
            let mut bytes = word.to_le_bytes();
            machine.apply(kind, &mut bytes, place, target).map(|()| u32::from_le_bytes(bytes))
        };
        let arm = |kind, word, place, target| filled(Machine::Aarch64, kind, word, place, target);
        // bl .-8; b .+0x7fffffc
        assert_eq!(arm(elf::R_AARCH64_CALL26, 0x9400_0000, 0x100, 0xf8), Ok(0x97ff_fffe));
        assert_eq!(arm(elf::R_AARCH64_JUMP26, 0x1400_0000, 0, 0x7ff_fffc), Ok(0x15ff_ffff));
        assert!(arm(elf::R_AARCH64_CALL26, 0x9400_0000, 0, 0x800_0000).is_err());
        // adrp x3, one page on, and one back; add x3, x3, #0x123; ldr x1, [x2, #0x128]; ldr q1, [x2, #0x120]
        assert_eq!(arm(elf::R_AARCH64_ADR_PREL_PG_HI21, 0x9000_0003, 0xffc, 0x1008), Ok(0xb000_0003));
        assert_eq!(arm(elf::R_AARCH64_ADR_GOT_PAGE, 0x9000_0003, 0x1008, 0xffc), Ok(0xf0ff_ffe3));
        assert!(arm(elf::R_AARCH64_ADR_PREL_PG_HI21, 0x9000_0003, 0, 1 << 32).is_err());
        assert_eq!(arm(elf::R_AARCH64_ADD_ABS_LO12_NC, 0x9100_0063, 0, 0x5123), Ok(0x9104_8c63));
        assert_eq!(arm(elf::R_AARCH64_LD64_GOT_LO12_NC, 0xf940_0041, 0, 0x5128), Ok(0xf940_9441));
        assert_eq!(arm(elf::R_AARCH64_LDST128_ABS_LO12_NC, 0x3dc0_0041, 0, 0x120), Ok(0x3dc0_4841));
        assert!(arm(elf::R_AARCH64_LDST64_ABS_LO12_NC, 0xf940_0041, 0, 0x124).is_err());
        let intel = |kind, place, target| filled(Machine::X86_64, kind, 0, place, target);
        assert_eq!(intel(elf::R_X86_64_PLT32, 0x2000, 0x1000), Ok(0xffff_f000));
        assert_eq!(intel(elf::R_X86_64_PC32, 0, 0x7fff_ffff), Ok(0x7fff_ffff));
        assert!(intel(elf::R_X86_64_PC32, 0, 0x8000_0000).is_err());
    }

    #[test]
    fn jumps_go_through_their_entries() {
        let intel = Machine::X86_64.jump(0x1000, 0x3008).unwrap();
        assert_eq!(intel[..8], [0xff, 0x25, 0x02, 0x20, 0, 0, 0xcc, 0xcc]);
        let arm = Machine::Aarch64.jump(0x1000, 0x3008).unwrap();
        // adrp x16, .+0x2000; ldr x17, [x16, #8]; br x17
        assert_eq!(arm[..4], 0xd000_0010u32.to_le_bytes());
        assert_eq!(arm[4..8], 0xf940_0611u32.to_le_bytes());
        assert!(Machine::X86_64.jump(0, 1 << 32).is_err());
    }

    #[test]
    fn other_relocations_are_refused() {
        assert_eq!(Machine::X86_64.need(elf::R_X86_64_32S), None);
        assert_eq!(Machine::Aarch64.need(elf::R_AARCH64_MOVW_UABS_G0), None);
        assert_eq!(Machine::new(elf::EM_S390), None);
    }
}
