//! Output files: all that a command writes together gets its new contents together, or keeps the old.
//!
//! A place that is a symbolic link stays one: the file that it leads to is replaced. A file that is there gives its mode to the
//! new one; other names of it (hard links) keep the old contents.
//!
//! The files are written and synced in a staging folder beside their places, and renamed at the end. What goes wrong
//! before that, a full disk or a kill, changes nothing, and a rename that fails undoes those before it. Where there are
//! several renames, on Unix a child process does them: a kill of the compiler, or of its process group, does not come
//! between two. A crash of the machine may; then the files renamed first are new. Callers write last what build systems
//! look at, the object after its header, so that the next build makes both again.
//!
//! One process at a time renames in a folder, so that files of one command stay together. A staging folder is locked for
//! as long as its process lives; one that is not locked was left by a killed process, and the next process removes it.
//! The locks are advisory (`flock`). On a file system without them, two compilers of one output may mix their files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cli::session::usage;
use crate::files::external::same_file;
use crate::files::io_error;
use onnxc_ir::error::{Error, Kind, Result, Stage};

/// Start of the names of staging folders.
const STAGING: &str = ".onnxc-staging-";

/// Files that are replaced together.
pub struct Outputs {
    /// Those in which files are: the one that all are meant for, and where links lead.
    folders: Vec<Folder>,
    files: Vec<Staged>,
}

/// A folder with files to replace.
struct Folder {
    path: PathBuf,
    staging: TempDir,
    /// Locked until the staging folder is gone.
    _alive: Option<File>,
}

/// A file that is written, and where it belongs: the place and, behind links, what it leads to.
struct Staged {
    file: PathBuf,
    place: PathBuf,
    target: PathBuf,
    /// Number of its folder.
    folder: usize,
}

impl Folder {
    fn open(path: &Path, place: &Path) -> Result<Folder> {
        let _turn = lock(path);
        remove_leftovers(path);
        let staging = tempfile::Builder::new().prefix(STAGING).tempdir_in(path);
        let staging = staging.map_err(|error| io_error(place, &error))?;
        let _alive = lock(staging.path());
        Ok(Folder { path: path.to_path_buf(), staging, _alive })
    }
}

impl Outputs {
    /// For `place` and other files of its folder.
    pub fn beside(place: &Path) -> Result<Outputs> {
        Ok(Outputs { folders: vec![Folder::open(folder_of(place), place)?], files: vec![] })
    }

    /// Writes the new contents of `place`, which does not change yet.
    pub fn write(&mut self, place: &Path, write: &mut dyn FnMut(&mut File) -> Result<()>) -> Result<()> {
        let fail = |error: io::Error| io_error(place, &error);
        let target = target_of(place).map_err(fail)?;
        let folder = self.folder(folder_of(&target), place)?;
        let file = self.folders[folder].staging.path().join(format!("new-{}", self.files.len()));
        let mut out = File::create_new(&file).map_err(fail)?;
        write(&mut out)?;
        if let Ok(old) = fs::metadata(&target) {
            // Not every file system has modes.
            let _ = out.set_permissions(old.permissions());
        }
        // Some file systems report only now that the disk is full.
        out.sync_all().map_err(fail)?;
        self.files.push(Staged { file, place: place.to_path_buf(), target, folder });
        Ok(())
    }

    /// The number of a folder.
    fn folder(&mut self, path: &Path, place: &Path) -> Result<usize> {
        if let Some(at) = self.folders.iter().position(|folder| folder.path == path) {
            return Ok(at);
        }
        self.folders.push(Folder::open(path, place)?);
        Ok(self.folders.len() - 1)
    }

    /// Moves all files to their places, in the order in which they were written.
    pub fn commit(self) -> Result<()> {
        // All take their turns in the same order, so that none waits for another one that waits for it.
        let mut paths: Vec<PathBuf> = self
            .folders
            .iter()
            .map(|folder| fs::canonicalize(&folder.path).unwrap_or_else(|_| folder.path.clone()))
            .collect();
        paths.sort();
        paths.dedup();
        let _turns: Vec<_> = paths.iter().map(|path| lock(path)).collect();
        self.files.iter().try_for_each(|staged| check_place(&staged.place, &[]))?;
        let count = self.files.len();
        let moves = self.files.iter().enumerate().map(|(at, staged)| {
            // The last one has nothing after it that could fail.
            let undo = if at + 1 < count { self.keep_old(at, staged)? } else { None };
            Ok(Move { from: staged.file.clone(), to: staged.target.clone(), undo })
        });
        put(&moves.collect::<Result<Vec<Move>>>()?).map_err(|error| {
            let places: Vec<String> =
                self.files.iter().map(|staged| staged.place.display().to_string()).collect();
            io_error(Path::new(&places.join(", ")), &error)
        })
    }

    /// A second name for what is in a file's place now.
    fn keep_old(&self, at: usize, staged: &Staged) -> Result<Option<PathBuf>> {
        if fs::symlink_metadata(&staged.target).is_err() {
            return Ok(None);
        }
        let old = self.folders[staged.folder].staging.path().join(format!("old-{at}"));
        // Not every file system has links.
        fs::hard_link(&staged.target, &old)
            .or_else(|_| fs::copy(&staged.target, &old).map(drop))
            .map_err(|error| io_error(&staged.place, &error))?;
        Ok(Some(old))
    }
}

/// The longest chain of links, the limit of common systems.
const MAX_LINKS: usize = 40;

/// What a place leads to: itself, or where the link leads that it is, whether a file is there or not.
fn target_of(place: &Path) -> io::Result<PathBuf> {
    let mut target = place.to_path_buf();
    for _ in 0..MAX_LINKS {
        if !fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink()) {
            return Ok(target);
        }
        // From the folder of the link.
        target = folder_of(&target).join(fs::read_link(&target)?);
    }
    Err(io::Error::other("links lead to each other without an end"))
}

/// A file that would grow beyond the user's limit (`ulimit -f`) fails as on a full disk, and its staging folder goes. Else the
/// signal ends the process, and the folder stays until the next one removes it.
pub fn fail_at_the_file_size_limit() {
    #[cfg(unix)]
    // SAFETY: ignoring a signal runs no code of ours, and nothing else in the process handles this one.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Writes one file that is complete or does not appear.
pub fn write_file(place: &Path, write: &mut dyn FnMut(&mut File) -> Result<()>) -> Result<()> {
    let mut outputs = Outputs::beside(place)?;
    outputs.write(place, write)?;
    outputs.commit()
}

/// [`write_file`] of bytes at hand.
pub fn write_bytes(place: &Path, bytes: &[u8]) -> Result<()> {
    write_file(place, &mut |file| file.write_all(bytes).map_err(|error| io_error(place, &error)))
}

/// Fails where no output may be put: over a folder, a device, a pipe or a socket, or over one of the files that were read.
pub fn check_place(place: &Path, read: &[PathBuf]) -> Result<()> {
    let found = match fs::metadata(place) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_folder(place),
        Err(error) => return Err(io_error(place, &error)),
    };
    if found.is_dir() {
        return Err(io_error(place, &io::Error::from(io::ErrorKind::IsADirectory)));
    }
    let shown = place.display();
    if !found.is_file() {
        return Err(usage(format!(
            "{shown}: a device, a pipe or a socket is not replaced by an output; `-o -` writes text to standard output"
        )));
    }
    match read.iter().find(|path| fs::metadata(path).is_ok_and(|input| same_file(&input, &found))) {
        Some(input) => Err(usage(format!(
            "{shown}: the output would replace the input {}; -o names another file",
            input.display()
        ))),
        None => Ok(()),
    }
}

/// Fails where a new file has no folder to be in.
fn check_folder(place: &Path) -> Result<()> {
    // Behind a link without a file, the folder is that of the file.
    let target = target_of(place).map_err(|error| io_error(place, &error))?;
    let folder = folder_of(&target);
    match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("{}: the folder `{}` does not exist", place.display(), folder.display());
            Err(Error::new(Stage::Io, Kind::Io, message))
        }
        _ => Ok(()),
    }
}

fn folder_of(place: &Path) -> &Path {
    match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Holds a folder until the file is dropped; `None` where folders cannot be locked.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Removes staging folders whose process is gone. The folder is locked, so none is between its making and its lock.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_staging = entry.file_name().to_string_lossy().starts_with(STAGING);
        if is_staging && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // What cannot be removed harms nobody.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A rename, and where the old contents of its target are, if there were any.
struct Move {
    from: PathBuf,
    to: PathBuf,
    undo: Option<PathBuf>,
}

/// Does all moves, or none.
#[cfg(unix)]
fn put(moves: &[Move]) -> io::Result<()> {
    unix::put(moves)
}

/// Does all moves, or none.
#[cfg(not(unix))]
fn put(moves: &[Move]) -> io::Result<()> {
    for (at, step) in moves.iter().enumerate() {
        if let Err(error) = fs::rename(&step.from, &step.to) {
            for done in moves[..at].iter().rev() {
                let _ = match &done.undo {
                    Some(old) => fs::rename(old, &done.to),
                    None => fs::remove_file(&done.to),
                };
            }
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(unix)]
mod unix {
    use std::ffi::CString;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// [`super::Move`] as the system takes it: nothing is allocated between the renames.
    struct Move {
        from: CString,
        to: CString,
        undo: Option<CString>,
    }

    pub(super) fn put(moves: &[super::Move]) -> io::Result<()> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
        let moves = moves.iter().map(|step| {
            let undo = step.undo.as_deref().map(text).transpose()?;
            Ok(Move { from: text(&step.from)?, to: text(&step.to)?, undo })
        });
        let moves = moves.collect::<io::Result<Vec<Move>>>()?;
        let failure = if moves.len() > 1 { rename_in_child(&moves) } else { rename_all(&moves) };
        match failure {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// The number of the error, 0 for none.
    fn rename_all(moves: &[Move]) -> i32 {
        for (at, step) in moves.iter().enumerate() {
            // SAFETY: both are strings that end in NUL; likewise below.
            if unsafe { libc::rename(step.from.as_ptr(), step.to.as_ptr()) } == 0 {
                continue;
            }
            let failure = errno();
            for done in moves[..at].iter().rev() {
                match &done.undo {
                    // SAFETY: as above.
                    Some(old) => unsafe { libc::rename(old.as_ptr(), done.to.as_ptr()) },
                    // SAFETY: as above.
                    None => unsafe { libc::unlink(done.to.as_ptr()) },
                };
            }
            return failure;
        }
        0
    }

    fn errno() -> i32 {
        // An unknown error is one all the same.
        io::Error::last_os_error().raw_os_error().filter(|&number| number != 0).unwrap_or(libc::EIO)
    }

    /// [`rename_all`] in a process of its own session, which signals to this process or its group do not reach. It
    /// inherits the lock of the folder. Where there is no process to be had, this one does it.
    fn rename_in_child(moves: &[Move]) -> i32 {
        // SAFETY: the child calls setsid, rename, unlink and _exit, which POSIX allows after a fork of a process
        // with threads; it neither allocates nor unwinds nor runs destructors.
        match unsafe { libc::fork() } {
            -1 => rename_all(moves),
            0 => {
                // SAFETY: as above. Numbers of errors fit the eight bits of an exit code.
                unsafe {
                    libc::setsid();
                    libc::_exit(rename_all(moves));
                }
            }
            child => exit_code(child).unwrap_or_else(|| {
                // A process that ignores the end of children does not get their exit code.
                // SAFETY: a string that ends in NUL.
                let left = |step: &Move| unsafe { libc::access(step.from.as_ptr(), libc::F_OK) } == 0;
                if moves.iter().any(left) { libc::EIO } else { 0 }
            }),
        }
    }

    /// Waits for a child to end; `None` if it did not end by itself, or nobody knows.
    fn exit_code(child: libc::pid_t) -> Option<i32> {
        let mut status = 0;
        // SAFETY: the status is written to a variable.
        while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
            if errno() != libc::EINTR {
                return None;
            }
        }
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn bytes(text: &'static [u8]) -> impl FnMut(&mut File) -> Result<()> {
        move |file| file.write_all(text).map_err(|error| io_error(Path::new("test"), &error))
    }

    #[test]
    fn failed_writes_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.bin");
        let failure = Error::internal(Stage::Emit, "half-way");
        let result = write_file(&path, &mut |file| {
            file.write_all(b"half").unwrap();
            Err(failure.clone())
        });
        assert_eq!(result, Err(failure));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        write_bytes(&path, b"whole").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(folder.path()), ["out.bin"]);
    }

    /// With a file and with nothing in the first one's place.
    #[test]
    fn a_failed_rename_undoes_those_before_it() {
        for old in [Some("old"), None] {
            let folder = tempfile::tempdir().unwrap();
            let place = |name: &str| folder.path().join(name);
            if let Some(old) = old {
                fs::write(place("a.h"), old).unwrap();
            }
            let mut outputs = Outputs::beside(&place("a.o")).unwrap();
            outputs.write(&place("a.h"), &mut bytes(b"new")).unwrap();
            outputs.write(&place("a.o"), &mut bytes(b"new")).unwrap();
            let moves = [
                Move {
                    from: outputs.files[0].file.clone(),
                    to: place("a.h"),
                    undo: outputs.keep_old(0, &outputs.files[0]).unwrap(),
                },
                Move { from: outputs.files[1].file.clone(), to: folder.path().join("no/folder"), undo: None },
            ];
            assert_eq!(put(&moves).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(fs::read_to_string(place("a.h")).ok().as_deref(), old);
            drop(outputs);
            assert_eq!(names(folder.path()), old.map_or(vec![], |_| vec!["a.h"]));
        }
    }

    #[test]
    fn what_killed_processes_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{STAGING}left"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("new-0"), "half").unwrap();
        let alive = Outputs::beside(&folder.path().join("a.o")).unwrap();
        assert!(!left.exists());
        let other = Outputs::beside(&folder.path().join("b.o")).unwrap();
        assert!([&alive, &other].iter().all(|outputs| outputs.folders[0].staging.path().exists()));
    }

    #[test]
    fn places_of_other_things_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("m.onnx");
        fs::write(&input, "model").unwrap();
        let refused = |place: &Path| check_place(place, std::slice::from_ref(&input)).unwrap_err();
        assert!(refused(&input).message.contains("would replace the input"));
        assert_eq!(refused(folder.path()).kind, Kind::Io);
        #[cfg(unix)]
        {
            let link = folder.path().join("link.o");
            std::os::unix::fs::symlink(&input, &link).unwrap();
            assert!(refused(&link).message.contains("would replace the input"));
            assert!(refused(Path::new("/dev/null")).message.contains("device"));
        }
        assert!(check_place(&folder.path().join("new.o"), &[input]).is_ok());
    }
}
