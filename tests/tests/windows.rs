//! Objects for Windows, whose programs wine runs here.

use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc_tests::machine::Machine;
use onnxc_tests::object::{include_dir, must, source};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn windows() -> Option<&'static Machine> {
    Machine::named("windows").ok().filter(|windows| windows.is_there())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Compiles the digits example for Windows into `<name>.o` and `<name>.h`, with these flags besides.
fn digits(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let object = folder.join(format!("{name}.o"));
    let mut onnxc = Command::new(ONNXC);
    onnxc.arg(examples().join("digits/digits.onnx")).args(["--target", "x86_64-pc-windows-gnu"]);
    must(onnxc.args(flags).args(["--name", name]).arg("-o").arg(&object));
    object
}

/// Links objects with C source into a program.
fn program(windows: &Machine, folder: &Path, source: &Path, objects: &[PathBuf]) -> PathBuf {
    let program = folder.join("program.exe");
    let mut compiler = Command::new(windows.compiler[0]);
    compiler.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror"]);
    for include in [include_dir(), folder.to_path_buf(), examples().join("digits")] {
        compiler.arg("-I").arg(include);
    }
    must(compiler.arg(source).args(objects).arg("-o").arg(&program));
    program
}

/// An object for no processor in particular has code for the same levels as on other systems, and chooses when it runs.
#[test]
fn the_example_predicts_at_every_level() {
    let Some(windows) = windows() else { return };
    let folder = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["--mcpu", "x86-64"], &["--vector-width", "256"], &["-Os"]] {
        let object = digits(folder.path(), "digits", flags);
        let symbols = String::from_utf8(must(Command::new("nm").arg(&object)).stdout).unwrap();
        let levels = ["x86_64_v3", "x86_64_v4"].map(|level| symbols.matches(level).count());
        match flags {
            [] => assert!(levels[0] >= 2 && levels[1] >= 2, "{levels:?}"),
            ["--vector-width", ..] => assert!(levels[0] >= 2 && levels[1] == 0, "{levels:?}"),
            _ => assert_eq!(levels, [0, 0], "{flags:?}"),
        }
        let program = program(windows, folder.path(), &examples().join("c/main.c"), &[object]);
        let output = must(&mut windows.command(&program));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("predicted 9 (probability "), "{flags:?}: {text}");
    }
}

/// A DLL is written without a linker, and computes what the library for this system does, whose bytes are compared.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn dlls_are_loaded_and_run() {
    use std::ffi::c_void;

    use onnxc_runtime_support::abi::Tensor;

    type Run =
        extern "win64" fn(*const Tensor, usize, *mut Tensor, usize, *mut c_void, usize, *const c_void) -> i32;
    let folder = tempfile::tempdir().unwrap();
    let library = |example: &str, target: &str, output: &str| {
        let output = folder.path().join(output);
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(examples().join(example)).args(["--target", target, "--name", "m", "-o"]).arg(&output);
        must(onnxc.env("PATH", "").env("CC", "/no/such/compiler"));
        std::fs::read(output).unwrap()
    };
    let windows = "x86_64-pc-windows-gnu";
    let loaded = dll::load(&library("digits/digits.onnx", windows, "m.dll"));
    assert_eq!(loaded.exports.keys().collect::<Vec<_>>(), ["m_model", "m_run", "m_workspace"]);
    assert!(loaded.imports.is_empty(), "{:?}", loaded.imports);
    // SAFETY: the function of this name has this type.
    let run: Run = unsafe { std::mem::transmute(loaded.exports["m_run"]) };
    let (mut image, mut found) = ([0f32; 64], [0f32; 10]);
    image.iter_mut().enumerate().for_each(|(at, pixel)| *pixel = (at % 5) as f32 / 5.0);
    let (mut in_dims, mut out_dims) = ([1i64, 1, 8, 8], [1i64, 10]);
    let tensor = |data: *mut f32, bytes: usize, dims: &mut [i64]| Tensor {
        data: data.cast(),
        bytes,
        dtype: 1,
        rank: dims.len() as i32,
        dims: dims.as_mut_ptr(),
    };
    let input = tensor(image.as_mut_ptr(), size_of_val(&image), &mut in_dims);
    let mut output = tensor(found.as_mut_ptr(), size_of_val(&found), &mut out_dims);
    #[repr(align(64))]
    struct Workspace([u8; 1 << 16]);
    let mut workspace = Box::new(Workspace([0; 1 << 16]));
    let memory = (&raw mut workspace.0).cast();
    let status = run(&input, 1, &mut output, 1, memory, 1 << 16, std::ptr::null());
    assert_eq!(status, 0);
    let sum: f32 = found.iter().sum();
    assert!((sum - 1.0).abs() < 1e-5 && found.iter().all(|&part| (0.0..1.0).contains(&part)), "{found:?}");
    // The same by the library for this system.
    library("digits/digits.onnx", "x86_64-unknown-linux-gnu", "m.so");
    // SAFETY: as above; the library has no code that runs when it is loaded.
    let status = unsafe {
        type Run =
            extern "C" fn(*const Tensor, usize, *mut Tensor, usize, *mut c_void, usize, *const c_void) -> i32;
        let library = libloading::Library::new(folder.path().join("m.so")).unwrap();
        let mut other = [0f32; 10];
        output.data = other.as_mut_ptr().cast();
        let run = library.get::<Run>(b"m_run").unwrap();
        let status = run(&input, 1, &mut output, 1, memory, 1 << 16, std::ptr::null());
        assert_eq!(other.map(f32::to_bits), found.map(f32::to_bits));
        status
    };
    assert_eq!(status, 0);
    // What calls the runtime takes it from its library.
    let texts = dll::load(&library("text/text.onnx", windows, "t.dll"));
    assert!(texts.imports.len() > 3, "{:?}", texts.imports);
    for (library, function) in &texts.imports {
        assert!(
            library == "onnxc_runtime_images.dll" && function.starts_with("onnxc_strings_"),
            "{library} {function}"
        );
    }
}

/// From every instruction of a run there is a way back to the caller, with the registers that it left: what an exception in a
/// run, a debugger and a profiler need. All functions have a record.
#[test]
fn the_stack_unwinds_from_every_instruction() {
    let Some(windows) = windows() else { return };
    let folder = tempfile::tempdir().unwrap();
    let objects: Vec<PathBuf> = [("least", "x86-64"), ("avx2", "x86-64-v3"), ("avx512", "x86-64-v4")]
        .map(|(name, cpu)| digits(folder.path(), name, &["--mcpu", cpu]))
        .into();
    let program = program(windows, folder.path(), &source("unwind.c"), &objects);
    let run = windows.command(&program).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{} {text} {}", run.status, String::from_utf8_lossy(&run.stderr));
    let mut versions = vec![];
    for line in text.lines() {
        let [name, tried, without_record] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert!(tried.parse::<usize>().unwrap() > 500, "{line}");
        assert_eq!(without_record, "0", "{line}");
        versions.push(name);
    }
    assert_eq!(versions[0], "least");
    println!("{text}");
}

/// DLLs that the compiler writes, in this process: mapped as Windows' loader does, and called by Windows' convention.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod dll {
    use std::collections::BTreeMap;
    use std::ffi::{CStr, c_void};

    /// A library in memory at an address of the system's choice.
    pub(crate) struct Dll {
        memory: *mut u8,
        size: usize,
        pub exports: BTreeMap<String, *const c_void>,
        /// Functions that it takes from others, with the libraries.
        pub imports: Vec<(String, String)>,
    }

    impl Drop for Dll {
        fn drop(&mut self) {
            // SAFETY: `load` mapped it.
            unsafe { libc::munmap(self.memory.cast(), self.size) };
        }
    }

    extern "win64" fn copy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        // SAFETY: as the caller of `memcpy` says.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
        to
    }

    extern "win64" fn missing() -> i64 {
        std::process::abort()
    }

    fn word(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    fn half(bytes: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
    }

    fn text(bytes: &[u8], at: usize) -> String {
        CStr::from_bytes_until_nul(&bytes[at..]).unwrap().to_str().unwrap().to_string()
    }

    pub(crate) fn load(file: &[u8]) -> Dll {
        let header = word(file, 0x3c);
        assert_eq!(&file[header..header + 4], b"PE\0\0");
        let (sections, optional) = (half(file, header + 6), header + 24);
        assert_eq!(half(file, optional), 0x20b);
        let base = u64::from_le_bytes(file[optional + 24..optional + 32].try_into().unwrap());
        let size = word(file, optional + 56);
        let directory = |index: usize| {
            let at = optional + 112 + 8 * index;
            (word(file, at), word(file, at + 4))
        };
        // SAFETY: a new mapping, which nothing else refers to.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let memory: *mut u8 = memory.cast();
        // SAFETY: the mapping has this size, and is only written before the library is called.
        let image = unsafe { std::slice::from_raw_parts_mut(memory, size) };
        for number in 0..sections {
            let row = optional + half(file, header + 20) + 40 * number;
            let (room, at) = (word(file, row + 8), word(file, row + 12));
            let (bytes, from) = (word(file, row + 16).min(room), word(file, row + 20));
            image[at..at + bytes].copy_from_slice(&file[from..from + bytes]);
        }
        let (mut at, bytes) = directory(5);
        let end = at + bytes;
        while at < end {
            let (page, block) = (word(image, at), word(image, at + 4));
            for entry in (at + 8..at + block).step_by(2) {
                let entry = half(image, entry);
                if entry >> 12 == 10 {
                    let place = page + (entry & 0xfff);
                    let old = u64::from_le_bytes(image[place..place + 8].try_into().unwrap());
                    let new = old.wrapping_sub(base).wrapping_add(memory as u64);
                    image[place..place + 8].copy_from_slice(&new.to_le_bytes());
                }
            }
            at += block;
        }
        let mut imports = vec![];
        let (mut row, bytes) = directory(1);
        while bytes > 0 && word(image, row + 12) > 0 {
            let library = text(image, word(image, row + 12));
            let (names, entries) = (word(image, row), word(image, row + 16));
            let mut at = 0;
            while word(image, names + at) > 0 {
                let function = text(image, word(image, names + at) + 2);
                let address = if function == "memcpy" { copy as *const () } else { missing as *const () };
                image[entries + at..entries + at + 8].copy_from_slice(&(address as u64).to_le_bytes());
                imports.push((library.clone(), function));
                at += 8;
            }
            row += 20;
        }
        let (table, _) = directory(0);
        let (count, addresses) = (word(image, table + 24), word(image, table + 28));
        let (names, ordinals) = (word(image, table + 32), word(image, table + 36));
        let exports = (0..count).map(|number| {
            let address = word(image, addresses + 4 * half(image, ordinals + 2 * number));
            (text(image, word(image, names + 4 * number)), memory.wrapping_add(address) as *const c_void)
        });
        let exports: Vec<(String, *const c_void)> = exports.collect();
        assert!(exports.is_sorted(), "names are looked up in their order");
        let (functions, bytes) = directory(3);
        let starts: Vec<usize> =
            (functions..functions + bytes).step_by(12).map(|row| word(image, row)).collect();
        assert!(starts.is_sorted() && !starts.is_empty(), "functions are looked up by their start");
        Dll { memory, size, exports: exports.into_iter().collect(), imports }
    }
}
