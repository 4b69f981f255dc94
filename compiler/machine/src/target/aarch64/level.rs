//! The test that an object makes of the processor it runs on, on Linux: a function of its own, without a symbol that a
//! linker would have to find, as a static program has `getauxval` only where something else refers to it.
//!
//! The registers that name a processor's features belong to the system. From Linux 4.11 on it answers a program that reads
//! them, with what all of its processors have; before that, the program is ended. So the function asks for the release
//! first (`uname`), and an older one means the baseline.

use onnxc_ir::error::{Error, Result, Stage};

/// A feature register's field of four bits, and the least value with which the feature is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Requirement {
    /// `CRm` and `op2` of the register in its encoding (`S3_0_C0_Cm_op2`).
    register: (u32, u32),
    lowest_bit: u32,
    least: u32,
}

/// FEAT_DotProd: `ID_AA64ISAR0_EL1.DP`.
pub(super) const DOT_PRODUCTS: Requirement = Requirement { register: (6, 0), lowest_bit: 44, least: 1 };

/// FEAT_BF16: `ID_AA64ISAR1_EL1.BF16`.
pub(super) const BF16_CONVERSIONS: Requirement = Requirement { register: (6, 1), lowest_bit: 44, least: 1 };

/// Bytes of stack: those of `struct new_utsname`, 6 texts of 65, which begin with the system's name, the node's and the release.
pub(super) const STACK: u32 = 400;

/// Up to where the release is known to be 4.11 or a later one. It jumps to the end where it is not, by the words of
/// [`TO_END`].
const RELEASE: [u32; 24] = [
    0xd106_43ff, //         sub  sp, sp, #400
    0x9100_03e0, //         mov  x0, sp
    0xd280_1408, //         mov  x8, #160          // uname
    0xd400_0001, //         svc  #0
    0x5280_0009, //         mov  w9, #0            // the requirements that are met
    0x5280_000c, //         mov  w12, #0           // the release, 16 bits for each of two numbers
    0xb500_0000, //         cbnz x0, end
    0x9102_0bea, //         add  x10, sp, #130
    0x5280_004d, //         mov  w13, #2
    0x5280_000b, // number: mov  w11, #0
    0x5280_0150, //         mov  w16, #10
    0x3840_154e, // digit:  ldrb w14, [x10], #1
    0x5100_c1cf, //         sub  w15, w14, #'0'
    0x7100_25ff, //         cmp  w15, #9
    0x5400_0068, //         b.hi next
    0x1b10_3d6b, //         madd w11, w11, w16, w15
    0x17ff_fffb, //         b    digit
    0x0b0c_416c, // next:   add  w12, w11, w12, lsl #16
    0x7100_05ad, //         subs w13, w13, #1
    0x54ff_fec1, //         b.ne number
    0x5280_016b, //         mov  w11, #11
    0x72a0_008b, //         movk w11, #4, lsl #16
    0x6b0b_019f, //         cmp  w12, w11
    0x5400_0003, //         b.lo end
];

/// Words of [`RELEASE`] that jump to the end.
const TO_END: [usize; 2] = [6, 23];

/// `b.lo` and `cbnz` have their distance in words in the 19 bits from bit 5 on.
const DISTANCE: u32 = 5;

const END: [u32; 3] = [
    0x2a09_03e0, // end: mov w0, w9
    0x9106_43ff, //      add sp, sp, #400
    0xd65f_03c0, //      ret
];

/// The words that jump where a field is too small, by the last.
fn test(wanted: Requirement) -> [u32; 4] {
    let Requirement { register: (crm, op2), lowest_bit, least } = wanted;
    [
        0xd538_000a | crm << 8 | op2 << 5,                       // mrs  x10, register
        0xd340_014a | lowest_bit << 16 | (lowest_bit + 3) << 10, // ubfx x10, x10, #lowest_bit, #4
        0xf100_015f | least << 10,                               // cmp  x10, #least
        0x5400_0003,                                             // b.lo next
    ]
}

/// The word that notes that the requirements of a level are met.
fn note(level: usize) -> u32 {
    0x3200_0129 | ((32 - level as u32) % 32) << 16 // orr w9, w9, #(1 << level)
}

/// `int32_t level(void)`: for each level whether all that it requires is there, at the bit of its number.
pub(super) fn code(levels: &[(usize, &[Requirement])]) -> Result<Vec<u8>> {
    let mut words = RELEASE.to_vec();
    for &(level, requirements) in levels {
        let mut jumps = vec![];
        for &wanted in requirements {
            if wanted.lowest_bit > 60 || wanted.least > 15 || level > 30 {
                return Err(Error::internal(Stage::Codegen, format!("no field of four bits: {wanted:?}")));
            }
            jumps.push(words.len() + 3);
            words.extend(test(wanted));
        }
        words.push(note(level));
        let next = words.len();
        jumps.into_iter().for_each(|at| words[at] |= ((next - at) as u32) << DISTANCE);
    }
    let end = words.len();
    TO_END.into_iter().for_each(|at| words[at] |= ((end - at) as u32) << DISTANCE);
    words.extend(END);
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use capstone::prelude::*;

    /// A field that every processor has greater than 0: how wide its physical addresses are may be 0, but not that it runs
    /// 64-bit code at EL0 (`ID_AA64PFR0_EL1.EL0`).
    const ALWAYS: Requirement = Requirement { register: (4, 0), lowest_bit: 0, least: 1 };
    const NEVER: Requirement = Requirement { least: 15, ..ALWAYS };

    fn listing(code: &[u8]) -> Vec<String> {
        let capstone = Capstone::new().arm64().mode(arch::arm64::ArchMode::Arm).build().unwrap();
        let text = |inst: &_| {
            let text = format!("{inst}");
            text.split_once(": ").map_or(text.clone(), |(_, text)| text.trim().to_string())
        };
        capstone.disasm_all(code, 0).unwrap().iter().map(text).collect()
    }

    /// An independent disassembler reads what the comments say.
    #[test]
    fn words_are_the_instructions_beside_them() {
        let both = [DOT_PRODUCTS, BF16_CONVERSIONS];
        let lines = listing(&code(&[(0, &[DOT_PRODUCTS]), (1, &both)]).unwrap());
        let wanted = [
            "sub sp, sp, #0x190",
            "mov x0, sp",
            "mov x8, #0xa0",
            "svc #0",
            "mov w9, #0",
            "mov w12, #0",
            "cbnz x0, #0x98",
            "add x10, sp, #0x82",
            "mov w13, #2",
            "mov w11, #0",
            "mov w16, #0xa",
            "ldrb w14, [x10], #1",
            "sub w15, w14, #0x30",
            "cmp w15, #9",
            "b.hi #0x44",
            "madd w11, w11, w16, w15",
            "b #0x2c",
            "add w12, w11, w12, lsl #16",
            "subs w13, w13, #1",
            "b.ne #0x24",
            "mov w11, #0xb",
            "movk w11, #4, lsl #16",
            "cmp w12, w11",
            "b.lo #0x98",
            "mrs x10, id_aa64isar0_el1",
            "ubfx x10, x10, #0x2c, #4",
            "cmp x10, #1",
            "b.lo #0x74",
            "orr w9, w9, #1",
            "mrs x10, id_aa64isar0_el1",
            "ubfx x10, x10, #0x2c, #4",
            "cmp x10, #1",
            "b.lo #0x98",
            "mrs x10, id_aa64isar1_el1",
            "ubfx x10, x10, #0x2c, #4",
            "cmp x10, #1",
            "b.lo #0x98",
            "orr w9, w9, #2",
            "mov w0, w9",
            "add sp, sp, #0x190",
            "ret",
        ];
        assert_eq!(lines, wanted);
        assert!(code(&[(0, &[Requirement { lowest_bit: 61, ..ALWAYS }])]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processors_and_systems_answer() {
        use crate::testing::runner::Runner;
        let level = |options: &[&str], levels: &[&[Requirement]]| {
            let mut runner = Runner::start(options)?;
            let levels: Vec<_> = levels.iter().copied().enumerate().collect();
            Some(runner.call(&code(&levels).unwrap(), &mut [], &[], (0, 0)))
        };
        let of = |cpu: &str, levels: &[&[Requirement]]| level(&["-cpu", cpu], levels);
        let dot = &[DOT_PRODUCTS][..];
        let Some(none) = of("cortex-a53", &[dot]) else { return };
        assert_eq!(none, 0);
        for (cpu, wanted) in [("cortex-a72", 0), ("cortex-a76", 1), ("neoverse-n1", 1), ("max", 1)] {
            assert_eq!(of(cpu, &[dot]), Some(wanted), "{cpu}");
        }
        for (cpu, wanted) in [("cortex-a72", 0), ("cortex-a76", 1), ("max", 3)] {
            assert_eq!(of(cpu, &[dot, &[DOT_PRODUCTS, BF16_CONVERSIONS]]), Some(wanted), "{cpu}");
        }
        assert_eq!(of("cortex-a53", &[]), Some(0));
        // Levels do not form a chain: each is tested for itself.
        let (always, never) = (&[ALWAYS][..], &[NEVER][..]);
        assert_eq!(of("cortex-a53", &[always, always]), Some(0b11));
        assert_eq!(of("cortex-a53", &[always, dot, always, &[]]), Some(0b1101));
        assert_eq!(of("max", &[never, always, &[ALWAYS, NEVER], &[NEVER, ALWAYS]]), Some(0b10));
        // Releases in which the registers can be read, and those in which reading them ends the program.
        for (release, wanted) in [
            ("4.11.0", 1),
            ("4.19.325-cip", 1),
            ("5.4.0-1030-raspi", 1),
            ("6.18", 1),
            ("10.0.1", 1),
            ("4.9.337-tegra", 0),
            ("4.4.0", 0),
            ("3.99.0", 0),
            ("unknown", 0),
        ] {
            assert_eq!(level(&["-cpu", "max", "-r", release], &[dot]), Some(wanted), "{release}");
        }
    }
}
