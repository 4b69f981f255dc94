//! Runs generated functions on this processor or, where it is another one, by QEMU: a program that reads a function with its
//! buffers, calls it, and writes what the buffers and the registers hold then.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// Where the program puts what it reads: parameters, code, tables, buffers. Room for them is in [`program`].
const BASE: u64 = 0x1000_0000;
const ROOM: u64 = 256 << 20;

/// Where the code begins, after the parameters.
const CODE: usize = 64;

/// Bytes of what the function returned, and of x19 to x29 and d8 to d15 after it.
const REGISTERS: usize = 160;

/// Bytes around buffers that nothing may change.
const GUARD: usize = 64;

/// The program in A64, assembled by GNU as. It puts the numbers of the registers that a function has to restore into them.
///
/// ```text
/// _start: sub sp, sp, #32
/// next:   mov x21, sp              // a length of 8 bytes, then so many bytes at BASE
///         mov x22, #8
///         bl read
///         ldr x22, [sp]
///         mov x21, #BASE
///         bl read
///         mov x9, #BASE
///         ldp x0, x1, [x9]         // buffers, dims
///         ldp x2, x3, [x9, #16]    // lo, hi
///         ldr x10, [x9, #32]       // the function
///         mov x19, #19             // and so on to x29
///         fmov d8, #8.0            // and so on to d15
///         blr x10
///         mov x9, #BASE
///         ldr x11, [x9, #40]       // where the registers go, and buffers follow
///         stp x0, x19, [x11]       // and so on to d15
///         mov x21, x11
///         ldr x22, [x9, #48]       // bytes to write
/// write:  write(1, x21, x22)
///         b.le exit
///         add x21, x21, x0
///         subs x22, x22, x0
///         b.ne write
///         b next
/// read:   cbz x22, done
///         read(0, x21, x22)
///         b.le exit
///         add x21, x21, x0
///         sub x22, x22, x0
///         b read
/// done:   ret
/// exit:   exit(0)
/// ```
const PROGRAM: [u32; 71] = [
    0xd10083ff, 0x910003f5, 0xd2800116, 0x94000035, 0xf94003f6, 0xd2a20015, 0x94000032, 0xd2a20009,
    0xa9400520, 0xa9410d22, 0xf940112a, 0xd2800273, 0xd2800294, 0xd28002b5, 0xd28002d6, 0xd28002f7,
    0xd2800318, 0xd2800339, 0xd280035a, 0xd280037b, 0xd280039c, 0xd28003bd, 0x1e641008, 0x1e645009,
    0x1e64900a, 0x1e64d00b, 0x1e65100c, 0x1e65500d, 0x1e65900e, 0x1e65d00f, 0xd63f0140, 0xd2a20009,
    0xf940152b, 0xa9004d60, 0xa9015574, 0xa9025d76, 0xa9036578, 0xa9046d7a, 0xa905757c, 0x6d062568,
    0x6d072d6a, 0x6d08356c, 0x6d093d6e, 0xaa0b03f5, 0xf9401936, 0xd2800020, 0xaa1503e1, 0xaa1603e2,
    0xd2800808, 0xd4000001, 0xf100001f, 0x5400022d, 0x8b0002b5, 0xeb0002d6, 0x54fffee1, 0x17ffffca,
    0xb4000176, 0xd2800000, 0xaa1503e1, 0xaa1603e2, 0xd28007e8, 0xd4000001, 0xf100001f, 0x540000ad,
    0x8b0002b5, 0xcb0002d6, 0x17fffff6, 0xd65f03c0, 0xd2800000, 0xd2800ba8, 0xd4000001,
];

/// An executable file with the program, and room for what it reads.
fn program() -> Vec<u8> {
    const AT: u64 = 0x40_0000;
    let code: Vec<u8> = PROGRAM.iter().flat_map(|word| word.to_le_bytes()).collect();
    let header = 64 + 2 * 56;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // Executable, AArch64, version 1; entry, program headers, no sections.
    for half in [2u16, 183] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [AT + header as u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let size = (header + code.len()) as u64;
    for (address, in_file, in_memory) in [(AT, size, size), (BASE, 0, ROOM)] {
        // To be loaded; readable, writable, executable.
        file.extend(1u32.to_le_bytes());
        file.extend(7u32.to_le_bytes());
        for word in [0, address, address, in_file, in_memory, 4096] {
            file.extend(word.to_le_bytes());
        }
    }
    file.extend(code);
    file
}

/// A running program.
pub struct Runner {
    child: Child,
}

impl Runner {
    /// On a processor that QEMU names; see [`Runner::start`].
    pub fn new(cpu: &str) -> Option<Runner> {
        Runner::start(&["-cpu", cpu])
    }

    /// With these options of QEMU, if it is there. Without it tests are left out, where `ONNXC_REQUIRE_QEMU=1` does not ask for
    /// them.
    pub fn start(options: &[&str]) -> Option<Runner> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runner");
        fs::write(&path, program()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let spawn = |mut command: Command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(|child| Runner { child })
        };
        for qemu in ["qemu-aarch64-static", "qemu-aarch64"] {
            let mut command = Command::new(qemu);
            command.args(options).arg(&path);
            if let Ok(mut runner) = spawn(command) {
                // It has read the file once it answers.
                let ret = 0xd65f_03c0u32.to_le_bytes();
                runner.call(&ret, &mut [], &[], (0, 0));
                return Some(runner);
            }
        }
        let required = std::env::var_os("ONNXC_REQUIRE_QEMU").is_some_and(|value| value == "1");
        assert!(!required, "qemu-aarch64 is required here (Debian: qemu-user-static), and not installed");
        println!("skipped: qemu-aarch64 (Debian: qemu-user-static) is not installed");
        None
    }

    /// Calls a function on buffers, which it changes, and gives its code.
    pub fn call(&mut self, code: &[u8], buffers: &mut [Vec<u8>], dims: &[i64], range: (i64, i64)) -> i32 {
        let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(64), 0xd5);
        let mut image = vec![0; CODE];
        image.extend(code);
        align(&mut image);
        let out = image.len();
        image.resize(out + REGISTERS, 0);
        align(&mut image);
        let mut places = vec![];
        for buffer in buffers.iter() {
            image.resize(image.len() + GUARD, 0xd5);
            places.push(image.len());
            image.extend(buffer);
            image.resize(image.len() + GUARD, 0xd5);
            align(&mut image);
        }
        let end = image.len();
        places.iter().for_each(|&at| image.extend((BASE + at as u64).to_le_bytes()));
        let table = (end as u64, image.len() as u64);
        dims.iter().for_each(|dim| image.extend(dim.to_le_bytes()));
        let (count, returned) = (end - out, BASE + out as u64);
        let parameters = [
            BASE + table.0,
            BASE + table.1,
            range.0 as u64,
            range.1 as u64,
            BASE + CODE as u64,
            returned,
            count as u64,
        ];
        for (at, parameter) in parameters.into_iter().enumerate() {
            image[8 * at..8 * at + 8].copy_from_slice(&parameter.to_le_bytes());
        }
        assert!((image.len() as u64) < ROOM, "{} bytes of buffers", image.len());
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(&(image.len() as u64).to_le_bytes()).unwrap();
        input.write_all(&image).unwrap();
        input.flush().unwrap();
        let mut found = vec![0; count];
        let read = self.child.stdout.as_mut().unwrap().read_exact(&mut found);
        read.unwrap_or_else(|error| panic!("the function ended the program: {error}"));
        let register = |at: usize| u64::from_le_bytes(found[8 * at..8 * at + 8].try_into().unwrap());
        (0..11).for_each(|at| assert_eq!(register(1 + at), 19 + at as u64, "x{} is changed", 19 + at));
        (0..8).for_each(|at| {
            assert_eq!(f64::from_bits(register(12 + at)), 8.0 + at as f64, "d{} is changed", 8 + at);
        });
        for (buffer, &at) in buffers.iter_mut().zip(&places) {
            let at = at - out;
            let around = [at - GUARD..at, at + buffer.len()..at + buffer.len() + GUARD];
            for guard in around {
                assert!(found[guard].iter().all(|&byte| byte == 0xd5), "a buffer is left");
            }
            let len = buffer.len();
            buffer.copy_from_slice(&found[at..at + len]);
        }
        register(0) as i32
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
