//! The test that an object makes of the processor it runs on: a function of its own, as Cranelift has no `cpuid`.

use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, Register};

use super::Requirement;
use onnxc_ir::error::{Error, Result, Stage};

/// Leaf of `cpuid` where extended functions start; it reports the greatest one.
const EXTENDED: u32 = 0x8000_0000;
const OSXSAVE: u32 = 27;

/// Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, state)` asks that a state of the processor be saved for all threads of the process.
/// It is refused where a thread has too small an alternate signal stack for that.
const ARCH_PRCTL: u32 = 158;
const ARCH_REQ_XCOMP_PERM: u32 = 0x1023;

/// Bytes of stack of the function: the register that it gives back, and the address to return to, with room to spare.
pub(super) const STACK: u32 = 64;

/// Made-up address of the function's end, until the block encoder has placed it; below it those of the requirements' tests.
const END: u64 = 1 << 32;

/// `int32_t level(void)`: which of the requirements are met, each with the number of its bit. A state that the system must be asked for is
/// asked for where all else of its requirement is there. The code serves the calling
/// conventions of System V and Windows: it changes registers that both leave to the callee, and gives `rbx` back, which it keeps
/// in one of those, so that unwinders need no record of it; where Linux is asked for a state, that of System V.
pub(super) fn code(requirements: &[(usize, Requirement)]) -> Result<Vec<u8>> {
    assemble(requirements).map_err(|error| Error::internal(Stage::Codegen, error.to_string()))
}

fn assemble(requirements: &[(usize, Requirement)]) -> std::result::Result<Vec<u8>, IcedError> {
    use Code::*;
    use Register::*;
    let cpuid = |leaf: u32| {
        [
            Instruction::with2(Mov_r32_imm32, EAX, leaf),
            Instruction::with2(Xor_r32_rm32, ECX, ECX),
            Ok(Instruction::with(Cpuid)),
        ]
    };
    let leave = |code| Instruction::with_branch(code, END);
    let (met, leaf1, leaf7, extended) = (R8D, R10D, R11D, R9D);
    let any = |word: fn(&Requirement) -> u32| requirements.iter().any(|(_, wanted)| word(wanted) != 0);

    let mut code =
        vec![Instruction::with2(Movq_xmm_rm64, XMM0, RBX), Instruction::with2(Xor_r32_rm32, met, met)];
    // A leaf beyond the greatest one gives something else's data.
    code.extend(cpuid(0));
    code.extend([Instruction::with2(Cmp_rm32_imm8, EAX, 7), leave(Jb_rel32_64)]);
    code.extend(cpuid(1));
    code.push(Instruction::with2(Mov_r32_rm32, leaf1, ECX));
    code.extend([Instruction::with2(Bt_rm32_imm8, ECX, OSXSAVE), leave(Jae_rel32_64)]);
    code.extend(cpuid(7));
    code.push(Instruction::with2(Mov_r32_rm32, leaf7, EBX));
    // What more there is stays in registers that neither convention gives back, nor the system changes.
    if any(|wanted| wanted.leaf7_ecx) {
        code.push(Instruction::with2(Movd_xmm_rm32, XMM1, ECX));
    }
    if any(|wanted| wanted.leaf7_edx) {
        code.push(Instruction::with2(Movd_xmm_rm32, XMM2, EDX));
    }
    if any(|wanted| wanted.leaf7_1_eax) {
        // All zeros where there is no such part of the leaf.
        code.extend([
            Instruction::with2(Mov_r32_imm32, EAX, 7),
            Instruction::with2(Mov_r32_imm32, ECX, 1),
            Ok(Instruction::with(Cpuid)),
            Instruction::with2(Movd_xmm_rm32, XMM3, EAX),
        ]);
    }
    code.extend(cpuid(EXTENDED));
    code.extend([Instruction::with2(Cmp_EAX_imm32, EAX, EXTENDED + 1), leave(Jb_rel32_64)]);
    code.extend(cpuid(EXTENDED + 1));
    code.push(Instruction::with2(Mov_r32_rm32, extended, ECX));
    // Without OSXSAVE this instruction does not exist. It gives the states that the system saves.
    code.extend([Instruction::with2(Xor_r32_rm32, ECX, ECX), Ok(Instruction::with(Xgetbv))]);
    code.push(Instruction::with2(Mov_r32_rm32, EDX, EAX));
    for (number, (bit, wanted)) in requirements.iter().enumerate() {
        let first = code.len();
        let next = match number + 1 == requirements.len() {
            true => END,
            false => test_address(number + 1),
        };
        let bits = [
            (leaf1, wanted.leaf1_ecx),
            (leaf7, wanted.leaf7_ebx),
            (XMM1, wanted.leaf7_ecx),
            (XMM2, wanted.leaf7_edx),
            (XMM3, wanted.leaf7_1_eax),
            (extended, wanted.extended_ecx),
            (EDX, wanted.xcr0),
        ];
        for (register, mask) in bits.into_iter().filter(|&(_, mask)| mask != 0) {
            code.extend([
                match register.is_xmm() {
                    true => Instruction::with2(Movd_rm32_xmm, EAX, register),
                    false => Instruction::with2(Mov_r32_rm32, EAX, register),
                },
                Instruction::with2(And_EAX_imm32, EAX, mask),
                Instruction::with2(Cmp_EAX_imm32, EAX, mask),
                Instruction::with_branch(Jne_rel32_64, next),
            ]);
        }
        if let Some(state) = wanted.asks_for {
            // The system call changes rcx and r11.
            code.extend([
                Instruction::with2(Movq_xmm_rm64, XMM4, R11),
                Instruction::with2(Mov_r32_imm32, EDI, ARCH_REQ_XCOMP_PERM),
                Instruction::with2(Mov_r32_imm32, ESI, state),
                Instruction::with2(Mov_r32_imm32, EAX, ARCH_PRCTL),
                Ok(Instruction::with(Syscall)),
                Instruction::with2(Movq_rm64_xmm, R11, XMM4),
                Instruction::with2(Test_rm32_r32, EAX, EAX),
                Instruction::with_branch(Jne_rel32_64, next),
            ]);
        }
        code.push(Instruction::with2(Bts_rm32_imm8, met, *bit as u32));
        if let Some(Ok(first)) = code.get_mut(first) {
            first.set_ip(test_address(number));
        }
    }
    let mut end = Instruction::with2(Mov_r32_rm32, EAX, met)?;
    end.set_ip(END);
    code.extend([Ok(end), Instruction::with2(Movq_rm64_xmm, RBX, XMM0), Ok(Instruction::with(Retnq))]);
    let code = code.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let block = InstructionBlock::new(&code, 0);
    Ok(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)?.code_buffer)
}

/// Made-up address of a requirement's test.
fn test_address(number: usize) -> u64 {
    END - 1 - number as u64
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};

    use super::super::{
        REQUIRES_AMX, REQUIRES_AVX_VNNI, REQUIRES_V3, REQUIRES_V4, REQUIRES_VBMI, REQUIRES_VNNI, TILES,
        UPGRADES,
    };
    use super::*;

    /// The code for requirements whose bits follow each other.
    fn code_of(requirements: &[Requirement]) -> Vec<u8> {
        code(&requirements.iter().copied().enumerate().collect::<Vec<_>>()).unwrap()
    }

    fn listing(bytes: &[u8]) -> Vec<String> {
        let mut formatter = GasFormatter::new();
        let text = |instruction: Instruction| {
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            text
        };
        Decoder::new(64, bytes, DecoderOptions::NONE).into_iter().map(text).collect()
    }

    #[test]
    fn the_code_asks_in_an_order_that_every_processor_survives() {
        let lines = listing(&code_of(&[REQUIRES_V3]));
        let last = format!("{:#x}", code_of(&[REQUIRES_V3]).len() - 9);
        let end = last.trim_start_matches("0x");
        let wanted = [
            "movq %rbx,%xmm0",
            "xor %r8d,%r8d",
            "mov $0,%eax",
            "xor %ecx,%ecx",
            "cpuid",
            "cmp $7,%eax",
            "jb",
            "mov $1,%eax",
            "xor %ecx,%ecx",
            "cpuid",
            "mov %ecx,%r10d",
            "bt $0x1B,%ecx",
            "jae",
            "mov $7,%eax",
            "xor %ecx,%ecx",
            "cpuid",
            "mov %ebx,%r11d",
            "mov $0x80000000,%eax",
            "xor %ecx,%ecx",
            "cpuid",
            "cmp $0x80000001,%eax",
            "jb",
            "mov $0x80000001,%eax",
            "xor %ecx,%ecx",
            "cpuid",
            "mov %ecx,%r9d",
            "xor %ecx,%ecx",
            "xgetbv",
            "mov %eax,%edx",
            "mov %r10d,%eax",
            "and $0x38D83201,%eax",
            "cmp $0x38D83201,%eax",
            "jne",
            "mov %r11d,%eax",
            "and $0x128,%eax",
            "cmp $0x128,%eax",
            "jne",
            "mov %r9d,%eax",
            "and $0x21,%eax",
            "cmp $0x21,%eax",
            "jne",
            "mov %edx,%eax",
            "and $6,%eax",
            "cmp $6,%eax",
            "jne",
            "bts $0,%r8d",
            "mov %r8d,%eax",
            "movq %xmm0,%rbx",
            "ret",
        ];
        assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            if wanted.starts_with('j') {
                let target = line.split_whitespace().last().unwrap_or_default().trim_start_matches("0x");
                assert!(line.starts_with(wanted), "{line}");
                assert_eq!(target.trim_start_matches('0').to_lowercase(), end, "{line}");
            } else {
                assert_eq!(line, wanted);
            }
        }
    }

    #[test]
    fn levels_include_what_they_require() {
        let rows: Vec<_> = UPGRADES.iter().chain([&TILES]).collect();
        let target = crate::target::Target::parse("x86_64-unknown-linux-gnu", None).unwrap();
        assert_eq!(target.upgrades.len(), rows.len());
        for (at, (own, level)) in rows.iter().zip(&target.upgrades).enumerate() {
            assert_eq!(own.cpu, level.cpu);
            assert!(level.includes(&target) && !target.includes(level));
            for (other_at, (other, other_level)) in rows.iter().zip(&target.upgrades).enumerate() {
                let required = own.requires.and(other.requires) == own.requires;
                assert_eq!(level.includes(other_level), required, "{} {}", own.cpu, other.cpu);
                assert!(!required || other_at <= at, "the last level that a processor has is the best one");
            }
        }
    }

    /// The processor's bits alone are not enough: the system must save the masks and all of the vector registers.
    #[test]
    fn the_code_asks_for_the_registers_of_512_bits() {
        let lines = listing(&code_of(&[REQUIRES_V3, REQUIRES_V4]));
        let first = lines.iter().position(|line| line == "bts $0,%r8d").unwrap();
        let wanted = [
            "bts $0,%r8d",
            "mov %r10d,%eax",
            "and $0x38D83201,%eax",
            "cmp $0x38D83201,%eax",
            "jne",
            "mov %r11d,%eax",
            "and $0xD0030128,%eax",
            "cmp $0xD0030128,%eax",
            "jne",
            "mov %r9d,%eax",
            "and $0x21,%eax",
            "cmp $0x21,%eax",
            "jne",
            "mov %edx,%eax",
            "and $0xE6,%eax",
            "cmp $0xE6,%eax",
            "jne",
            "bts $1,%r8d",
            "mov %r8d,%eax",
        ];
        let found: Vec<&str> = lines[first..].iter().map(|line| line.split(" 0").next().unwrap()).collect();
        assert_eq!(found[..wanted.len()], wanted, "{lines:#?}");
    }

    /// The system is asked for the tiles last, where all else is there; a refusal leaves the level before.
    #[test]
    fn the_code_asks_for_the_tiles() {
        let lines = listing(&code_of(&[REQUIRES_AMX]));
        let call = lines.iter().position(|line| line == "syscall").unwrap();
        let wanted = ["mov $0x1023,%edi", "mov $0x12,%esi", "mov $0x9E,%eax", "syscall", "test %eax,%eax"];
        let around: Vec<&String> =
            lines[call - 3..call].iter().chain([&lines[call], &lines[call + 2]]).collect();
        assert_eq!(around, wanted);
        assert_eq!([&lines[call - 4], &lines[call + 1]], ["movq %r11,%xmm4", "movq %xmm4,%r11"]);
        assert!(lines[call + 3].starts_with("jne") && lines[call + 4] == "bts $0,%r8d", "{lines:#?}");
        assert!(lines[..call - 3].contains(&"cmp $0x3400000,%eax".to_string()), "{lines:#?}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_processor_answers_as_it_does_to_the_standard_library() {
        use crate::testing::run_level;
        use std::arch::is_x86_feature_detected as has;
        let run = |requirements: &[Requirement]| run_level(&code_of(requirements));
        let v3 = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2");
        let v3 = v3 && has!("f16c") && has!("lzcnt") && has!("movbe") && has!("popcnt");
        assert_eq!(run(&[REQUIRES_V3]), i32::from(v3));
        // The standard library asks the system for the registers of 512 bits, too.
        let v4 = v3 && has!("avx512f") && has!("avx512dq") && has!("avx512cd");
        let v4 = v4 && has!("avx512bw") && has!("avx512vl");
        assert_eq!(run(&[REQUIRES_V3, REQUIRES_V4]), i32::from(v3) | i32::from(v4) << 1);
        let avx_vnni = v3 && has!("avxvnni");
        let vnni = v4 && has!("avx512vnni");
        let vbmi = vnni && has!("avx512vbmi");
        let wanted =
            [avx_vnni, v4, vnni, vbmi, v3].iter().rev().fold(0, |bits, &has| bits << 1 | i32::from(has));
        assert_eq!(
            run(&[REQUIRES_AVX_VNNI, REQUIRES_V4, REQUIRES_VNNI, REQUIRES_VBMI, REQUIRES_V3]),
            wanted,
            "each is tested"
        );
        assert_eq!(run(&[]), 0);
        let some = [(5, REQUIRES_V3), (2, Requirement::NOTHING)];
        assert_eq!(run_level(&code(&some).unwrap()), i32::from(v3) << 5 | 1 << 2);
        // Bits that no processor sets: reserved, or of a register state that does not exist.
        let nothing = Requirement::NOTHING;
        assert_eq!(run(&[nothing, nothing]), 0b11);
        assert_eq!(run(&[nothing, Requirement { xcr0: 1 << 31, ..nothing }, nothing]), 0b101);
        assert_eq!(run(&[Requirement { leaf7_ebx: u32::MAX, ..nothing }]), 0);
        let all = [
            Requirement { leaf1_ecx: u32::MAX, ..nothing },
            Requirement { leaf7_ecx: u32::MAX, ..nothing },
            Requirement { leaf7_edx: u32::MAX, ..nothing },
            Requirement { leaf7_1_eax: u32::MAX, ..nothing },
            Requirement { extended_ecx: u32::MAX, ..nothing },
            nothing,
        ];
        assert_eq!(run(&all), 1 << 5);
        // What the system gives back does not change what is tested after it.
        if super::super::host_has_amx() && run(&[REQUIRES_AMX]) == 1 {
            assert_eq!(run(&[REQUIRES_AMX, REQUIRES_V4, REQUIRES_VBMI]), 0b111);
        }
    }
}
