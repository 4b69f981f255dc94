//! Shared and static libraries of a model's object. Shared ones with ELF, for macOS or Windows, on x86-64 and aarch64, are written
//! here, unless a linker is named; others are made by the C compiler of the target, static ones by its archiver.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use target_lexicon::{Architecture, BinaryFormat, Environment, OperatingSystem, Triple};
use tempfile::TempDir;

use crate::cli::session::{temporary_error, usage};
use crate::files::io_error;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_object::emit::{Artifact, shared};

/// A GNU tool chain: the start of its programs' names, and what has them on Debian and Ubuntu.
struct Toolchain {
    prefix: &'static str,
    package: &'static str,
}

/// The tool chain that is usual for a target, where there is one.
fn chain(triple: &Triple) -> Option<Toolchain> {
    let row = |prefix, package| Some(Toolchain { prefix, package });
    match (triple.architecture, triple.operating_system, triple.environment) {
        (Architecture::X86_64, OperatingSystem::Linux, Environment::Musl) => {
            row("x86_64-linux-musl", "musl-tools")
        }
        (Architecture::X86_64, OperatingSystem::Linux, _) => row("x86_64-linux-gnu", "gcc-x86-64-linux-gnu"),
        (Architecture::Aarch64(_), OperatingSystem::Linux, _) => {
            row("aarch64-linux-gnu", "gcc-aarch64-linux-gnu")
        }
        (Architecture::S390x, OperatingSystem::Linux, _) => row("s390x-linux-gnu", "gcc-s390x-linux-gnu"),
        (Architecture::Riscv64(_), OperatingSystem::Linux, _) => {
            row("riscv64-linux-gnu", "gcc-riscv64-linux-gnu")
        }
        (Architecture::X86_64, OperatingSystem::Windows, _) => {
            row("x86_64-w64-mingw32", "gcc-mingw-w64-x86-64")
        }
        _ => None,
    }
}

/// Extension of a target's shared libraries; `None` where there are none.
pub(super) fn shared_extension(triple: &Triple) -> Option<&'static str> {
    match (triple.operating_system, triple.binary_format) {
        (OperatingSystem::None_ | OperatingSystem::Uefi, _) => None,
        (_, BinaryFormat::Macho) => Some("dylib"),
        (_, BinaryFormat::Coff) => Some("dll"),
        _ => Some("so"),
    }
}

/// The programs for one target.
pub(super) struct Tools {
    triple: Triple,
    /// A program that the user names.
    linker: Option<OsString>,
    /// Libraries with functions that models call.
    libraries: Vec<PathBuf>,
}

/// A program, and what to do where it is not there.
pub(super) struct Tool {
    program: OsString,
    what: &'static str,
    remedy: String,
}

impl Tools {
    pub(super) fn new(triple: &Triple, linker: Option<&OsStr>) -> Tools {
        Tools { triple: triple.clone(), linker: linker.map(OsString::from), libraries: vec![] }
    }

    /// The same, to link shared libraries against others.
    pub(super) fn against(self, libraries: &[PathBuf]) -> Tools {
        Tools { libraries: libraries.to_vec(), ..self }
    }

    /// Whether programs of this machine make libraries of the target.
    fn is_host(&self) -> bool {
        let (host, target) = (Triple::host(), &self.triple);
        (host.architecture, host.operating_system, host.environment)
            == (target.architecture, target.operating_system, target.environment)
    }

    /// The variable that names a program for the target, such as `CC_aarch64_unknown_linux_gnu`.
    fn variable(&self, name: &str) -> String {
        format!("{name}_{}", self.triple.to_string().replace(['-', '.'], "_"))
    }

    /// Whether shared libraries need no linker.
    fn links_itself(&self) -> bool {
        let named = std::env::var_os(self.variable("CC")).is_some_and(|value| !value.is_empty());
        self.linker.is_none() && self.libraries.is_empty() && !named && shared::is_supported(&self.triple)
    }

    fn named_by_variable(&self, name: &str) -> Option<OsString> {
        let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        value(&self.variable(name)).or_else(|| value(name).filter(|_| self.is_host()))
    }

    /// The C compiler, which links.
    fn compiler(&self) -> Result<Tool> {
        let what = "C compiler";
        let names = format!("--linker or {} names a C compiler for the target", self.variable("CC"));
        let named = self.linker.clone().or_else(|| self.named_by_variable("CC"));
        if let Some(program) = named {
            return Ok(Tool { program, what, remedy: names });
        }
        if self.is_host() {
            let remedy = format!("install gcc or clang (Debian and Ubuntu: apt install gcc), or {names}");
            return Ok(Tool { program: "cc".into(), what, remedy });
        }
        match chain(&self.triple) {
            Some(Toolchain { prefix, package }) => Ok(Tool {
                program: format!("{prefix}-gcc").into(),
                what,
                remedy: format!("install it (Debian and Ubuntu: apt install {package}), or {names}"),
            }),
            None => Err(usage(format!(
                "no C compiler is known that links shared libraries for {} on this machine: {names}; an object (.o) needs none",
                self.triple
            ))),
        }
    }

    /// The clang that makes modules of WebAssembly: with a name of its version where there is no other.
    pub(super) fn clang(&self) -> Tool {
        let named = self.linker.clone().or_else(|| self.named_by_variable("CC"));
        let versions = (OLDEST_CLANG..OLDEST_CLANG + 20).rev().map(|version| format!("clang-{version}"));
        let found = || std::iter::once("clang".to_string()).chain(versions).find(|name| is_there(name));
        Tool {
            program: named.unwrap_or_else(|| found().unwrap_or_else(|| "clang".into()).into()),
            what: "compiler of C for WebAssembly",
            remedy: format!(
                "install clang and lld (Debian and Ubuntu: apt install clang lld), or --linker or {} names a clang from {OLDEST_CLANG} on, \
                 with wasm-ld beside it",
                self.variable("CC")
            ),
        }
    }

    /// The archiver. That of this machine takes objects of other targets where the target has none of its own.
    fn archiver(&self) -> Tool {
        let chain = chain(&self.triple).filter(|_| !self.is_host());
        let own = chain.map(|chain| format!("{}-ar", chain.prefix)).filter(|name| is_there(name));
        Tool {
            program: self
                .named_by_variable("AR")
                .unwrap_or_else(|| own.map_or_else(|| "ar".into(), OsString::from)),
            what: "archiver",
            remedy: format!(
                "install it (Debian and Ubuntu: apt install binutils), or {} names one",
                self.variable("AR")
            ),
        }
    }
}

/// The first clang that makes modules.
const OLDEST_CLANG: usize = 14;

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl Tool {
    /// Runs the program. Its messages about `hidden` files name the files that these become.
    pub(super) fn run(&self, arguments: &[OsString], hidden: &[(&Path, &Path)]) -> Result<()> {
        let output = Command::new(&self.program).args(arguments).output();
        let program = self.program.to_string_lossy();
        match output {
            Ok(Output { status, .. }) if status.success() => Ok(()),
            Ok(Output { status, stderr, stdout }) => {
                let text = [stderr, stdout].concat();
                let mut text = String::from_utf8_lossy(&text).trim_end().to_string();
                for (own, shown) in hidden {
                    text = text.replace(&*own.to_string_lossy(), &shown.to_string_lossy());
                }
                let (what, remedy) = (self.what, &self.remedy);
                Err(io(format!(
                    "the {what} `{program}` failed ({status}); if it is not for this target, {remedy}\n{text}"
                )))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (what, remedy) = (self.what, &self.remedy);
                Err(io(format!(
                    "cannot run the {what} `{program}`: there is no program of this name; {remedy}"
                )))
            }
            Err(error) => Err(io(format!("cannot run the {} `{program}`: {error}", self.what))),
        }
    }
}

fn io(message: String) -> Error {
    Error::new(Stage::Io, Kind::Io, message)
}

/// A library in a folder of its own.
pub(super) struct Library {
    file: PathBuf,
    _folder: TempDir,
}

impl Library {
    /// A library that will be `output`: shared, or static with the object as its one member.
    pub(super) fn build(
        artifact: Artifact,
        tools: &Tools,
        is_shared: bool,
        output: &Path,
    ) -> Result<Library> {
        let in_temporary = |error: std::io::Error| temporary_error(&error);
        let folder = tempfile::tempdir().map_err(in_temporary)?;
        let member = output.with_extension("o");
        let member = member.file_name().unwrap_or(OsStr::new("model.o"));
        let object = folder.path().join(member);
        let mut out = File::create(&object).map_err(in_temporary)?;
        artifact.write_object(&mut out)?;
        drop(out);
        let file = folder.path().join("library");
        if is_shared && tools.links_itself() {
            let name = output.file_name().unwrap_or_default().to_string_lossy();
            let object = File::open(&object).map_err(in_temporary)?;
            // SAFETY: the mapping is private and read-only, and the file is one of this process alone.
            let object = unsafe { memmap2::Mmap::map(&object) }.map_err(in_temporary)?;
            let out = File::create(&file).map_err(in_temporary)?;
            shared::write(&object, &name, &mut BufWriter::new(out))?;
            return Ok(Library { file, _folder: folder });
        }
        let hidden = [(object.as_path(), Path::new(member)), (file.as_path(), output)];
        let (object, library) = (object.as_os_str().to_owned(), file.as_os_str().to_owned());
        if is_shared {
            let name = output.file_name().unwrap_or_default();
            let mut arguments = shared_flags(&tools.triple, name);
            arguments.extend(["-o".into(), library, object]);
            arguments.extend(tools.libraries.iter().map(|library| library.as_os_str().to_owned()));
            tools.compiler()?.run(&arguments, &hidden)?;
        } else {
            tools.archiver().run(&["rcs".into(), library, object], &hidden)?;
        }
        Ok(Library { file, _folder: folder })
    }

    pub(super) fn copy_to(&self, out: &mut File, output: &Path) -> Result<()> {
        let mut source = File::open(&self.file).map_err(|error| io_error(output, &error))?;
        std::io::copy(&mut source, out).map_err(|error| io_error(output, &error))?;
        Ok(())
    }
}

/// What makes a shared library that programs find by `name`.
fn shared_flags(triple: &Triple, name: &OsStr) -> Vec<OsString> {
    let with = |start: &str| {
        let mut flag = OsString::from(start);
        flag.push(name);
        flag
    };
    match triple.binary_format {
        // ELF linkers leave what a library does not define to whoever loads it; this one has an option for it.
        BinaryFormat::Macho => vec![
            "-dynamiclib".into(),
            with("-Wl,-install_name,@rpath/"),
            "-Wl,-undefined,dynamic_lookup".into(),
        ],
        BinaryFormat::Coff => vec!["-shared".into()],
        _ => vec!["-shared".into(), with("-Wl,-soname,")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(triple: &str) -> Tools {
        Tools::new(&triple.parse().unwrap(), None)
    }

    #[test]
    fn programs_follow_the_target() {
        assert!(tools(&Triple::host().to_string()).is_host());
        let foreign = match cfg!(target_arch = "aarch64") {
            true => ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
            false => ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        };
        let tool = tools(foreign.0).compiler().unwrap();
        assert_eq!(tool.program, foreign.1);
        assert!(tool.remedy.contains(foreign.2) && tool.remedy.contains("CC_"), "{}", tool.remedy);
        let tool = tools("s390x-unknown-linux-gnu").compiler().unwrap();
        let own = if cfg!(target_arch = "s390x") { "cc" } else { "s390x-linux-gnu-gcc" };
        assert!(tool.program == own && tool.remedy.contains("CC_"), "{}", tool.remedy);
        let named = Tools::new(&foreign.0.parse().unwrap(), Some(OsStr::new("my-cc")));
        assert_eq!(named.compiler().unwrap().program, "my-cc");
        assert!(tools("x86_64-unknown-freebsd").compiler().is_err() || cfg!(target_os = "freebsd"));
        // Whether a linker is needed.
        assert!(
            tools("x86_64-unknown-freebsd").links_itself() && tools("aarch64-apple-darwin").links_itself()
        );
        assert!(
            tools("x86_64-apple-macosx12.0").links_itself() && !tools("aarch64-apple-ios").links_itself()
        );
        assert!(!named.links_itself());
    }

    #[test]
    fn libraries_have_the_names_that_programs_look_for() {
        let flags = |triple: &str, name: &str| shared_flags(&triple.parse().unwrap(), OsStr::new(name));
        assert_eq!(flags("x86_64-unknown-linux-gnu", "libm.so")[1], "-Wl,-soname,libm.so");
        assert_eq!(flags("aarch64-apple-darwin", "libm.dylib")[1], "-Wl,-install_name,@rpath/libm.dylib");
        for (triple, extension) in [
            ("x86_64-unknown-linux-gnu", Some("so")),
            ("aarch64-apple-darwin", Some("dylib")),
            ("x86_64-pc-windows-gnu", Some("dll")),
            ("x86_64-unknown-none", None),
            ("x86_64-unknown-uefi", None),
        ] {
            assert_eq!(shared_extension(&triple.parse().unwrap()), extension, "{triple}");
        }
    }
}
