//! The test that an object makes of the processor it runs on: a function of its own, as Cranelift has no `cpuid`.

use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, Register};

use super::Requirement;
use crate::error::{Error, Result, Stage};

/// Leaf of `cpuid` where extended functions start; it reports the greatest one.
const EXTENDED: u32 = 0x8000_0000;
const OSXSAVE: u32 = 27;

/// Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, state)` asks that a state of the processor be saved for all threads of the process.
/// It is refused where a thread has too small an alternate signal stack for that.
const ARCH_PRCTL: u32 = 158;
const ARCH_REQ_XCOMP_PERM: u32 = 0x1023;

/// Bytes of stack of the function: the register that it gives back, and the address to return to, with room to spare.
pub const STACK: u32 = 64;

/// Made-up address of the function's end, until the block encoder has placed it.
const END: u64 = 1 << 32;

/// `int32_t level(void)`: how many of the requirements, from the first on, are met. The code serves the calling
/// conventions of System V and Windows: it changes registers that both leave to the callee, and gives `rbx` back, which it keeps
/// in one of those, so that unwinders need no record of it; where Linux is asked for a state, that of System V.
pub fn code(requirements: &[Requirement]) -> Result<Vec<u8>> {
    assemble(requirements).map_err(|error| Error::internal(Stage::Codegen, error.to_string()))
}

fn assemble(requirements: &[Requirement]) -> std::result::Result<Vec<u8>, IcedError> {
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
    let (count, leaf1, leaf7, extended) = (R8D, R10D, R11D, R9D);

    let mut code =
        vec![Instruction::with2(Movq_xmm_rm64, XMM0, RBX), Instruction::with2(Xor_r32_rm32, count, count)];
    // A leaf beyond the greatest one gives something else's data.
    code.extend(cpuid(0));
    code.extend([Instruction::with2(Cmp_rm32_imm8, EAX, 7), leave(Jb_rel32_64)]);
    code.extend(cpuid(1));
    code.push(Instruction::with2(Mov_r32_rm32, leaf1, ECX));
    code.extend([Instruction::with2(Bt_rm32_imm8, ECX, OSXSAVE), leave(Jae_rel32_64)]);
    code.extend(cpuid(7));
    code.push(Instruction::with2(Mov_r32_rm32, leaf7, EBX));
    if requirements.iter().any(|wanted| wanted.leaf7_edx != 0) {
        code.push(Instruction::with2(Mov_r32_rm32, ESI, EDX));
    }
    code.extend(cpuid(EXTENDED));
    code.extend([Instruction::with2(Cmp_EAX_imm32, EAX, EXTENDED + 1), leave(Jb_rel32_64)]);
    code.extend(cpuid(EXTENDED + 1));
    code.push(Instruction::with2(Mov_r32_rm32, extended, ECX));
    // Without OSXSAVE this instruction does not exist. It gives the states that the system saves.
    code.extend([Instruction::with2(Xor_r32_rm32, ECX, ECX), Ok(Instruction::with(Xgetbv))]);
    code.push(Instruction::with2(Mov_r32_rm32, EDX, EAX));
    for wanted in requirements {
        let bits = [
            (leaf1, wanted.leaf1_ecx),
            (leaf7, wanted.leaf7_ebx),
            (ESI, wanted.leaf7_edx),
            (extended, wanted.extended_ecx),
            (EDX, wanted.xcr0),
        ];
        for (register, mask) in bits.into_iter().filter(|&(_, mask)| mask != 0) {
            code.extend([
                Instruction::with2(Mov_r32_rm32, EAX, register),
                Instruction::with2(And_EAX_imm32, EAX, mask),
                Instruction::with2(Cmp_EAX_imm32, EAX, mask),
                leave(Jne_rel32_64),
            ]);
        }
        if let Some(state) = wanted.asks_for {
            // The system call changes rcx and r11; what those held has been tested.
            code.extend([
                Instruction::with2(Mov_r32_imm32, EDI, ARCH_REQ_XCOMP_PERM),
                Instruction::with2(Mov_r32_imm32, ESI, state),
                Instruction::with2(Mov_r32_imm32, EAX, ARCH_PRCTL),
                Ok(Instruction::with(Syscall)),
                Instruction::with2(Test_rm32_r32, EAX, EAX),
                leave(Jne_rel32_64),
            ]);
        }
        code.push(Instruction::with1(Inc_rm32, count));
    }
    let mut end = Instruction::with2(Mov_r32_rm32, EAX, count)?;
    end.set_ip(END);
    code.extend([Ok(end), Instruction::with2(Movq_rm64_xmm, RBX, XMM0), Ok(Instruction::with(Retnq))]);
    let code = code.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let block = InstructionBlock::new(&code, 0);
    Ok(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)?.code_buffer)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};

    use super::super::{REQUIRES_AMX, REQUIRES_V3, REQUIRES_V4, UPGRADES};
    use super::*;

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
        let lines = listing(&code(&[REQUIRES_V3]).unwrap());
        let last = format!("{:#x}", code(&[REQUIRES_V3]).unwrap().len() - 9);
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
            "inc %r8d",
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
    fn every_level_requires_what_the_one_before_it_does() {
        for pair in UPGRADES.windows(2) {
            let (low, high) = (pair[0].requires, pair[1].requires);
            assert_eq!(low.leaf1_ecx & high.leaf1_ecx, low.leaf1_ecx);
            assert_eq!(low.leaf7_ebx & high.leaf7_ebx, low.leaf7_ebx);
            assert_eq!(low.extended_ecx & high.extended_ecx, low.extended_ecx);
            assert_eq!(low.xcr0 & high.xcr0, low.xcr0);
        }
    }

    /// The processor's bits alone are not enough: the system must save the masks and all of the vector registers.
    #[test]
    fn the_code_asks_for_the_registers_of_512_bits() {
        let lines = listing(&code(&[REQUIRES_V3, REQUIRES_V4]).unwrap());
        let first = lines.iter().position(|line| line == "inc %r8d").unwrap();
        let wanted = [
            "inc %r8d",
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
            "inc %r8d",
            "mov %r8d,%eax",
        ];
        let found: Vec<&str> = lines[first..].iter().map(|line| line.split(" 0").next().unwrap()).collect();
        assert_eq!(found[..wanted.len()], wanted, "{lines:#?}");
    }

    /// The system is asked for the tiles last, where all else is there; a refusal leaves the level before.
    #[test]
    fn the_code_asks_for_the_tiles() {
        let lines = listing(&code(&[REQUIRES_AMX]).unwrap());
        let call = lines.iter().position(|line| line == "syscall").unwrap();
        let wanted = ["mov $0x1023,%edi", "mov $0x12,%esi", "mov $0x9E,%eax", "syscall", "test %eax,%eax"];
        assert_eq!(lines[call - 3..call + 2], wanted);
        assert!(lines[call + 2].starts_with("jne") && lines[call + 3] == "inc %r8d", "{lines:#?}");
        assert!(lines[..call - 3].contains(&"cmp $0x3000000,%eax".to_string()), "{lines:#?}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_processor_answers_as_it_does_to_the_standard_library() {
        use crate::codegen::testing::run_level;
        use std::arch::is_x86_feature_detected as has;
        let run = |requirements: &[Requirement]| run_level(&code(requirements).unwrap());
        let v3 = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2");
        let v3 = v3 && has!("f16c") && has!("lzcnt") && has!("movbe") && has!("popcnt");
        assert_eq!(run(&[REQUIRES_V3]), i32::from(v3));
        // The standard library asks the system for the registers of 512 bits, too.
        let v4 = v3 && has!("avx512f") && has!("avx512dq") && has!("avx512cd");
        let v4 = v4 && has!("avx512bw") && has!("avx512vl");
        assert_eq!(run(&[REQUIRES_V3, REQUIRES_V4]), i32::from(v3) + i32::from(v4));
        assert_eq!(run(&[]), 0);
        // Bits that no processor sets: reserved, or of a register state that does not exist.
        let nothing = Requirement {
            leaf1_ecx: 0,
            leaf7_ebx: 0,
            leaf7_edx: 0,
            extended_ecx: 0,
            xcr0: 0,
            asks_for: None,
        };
        assert_eq!(run(&[nothing, nothing]), 2);
        assert_eq!(run(&[nothing, Requirement { xcr0: 1 << 31, ..nothing }, nothing]), 1);
        assert_eq!(run(&[Requirement { leaf7_ebx: u32::MAX, ..nothing }]), 0);
    }
}
