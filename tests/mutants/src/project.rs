//! The mutated copy of the workspace: written beneath the target folder and built there, once for all mutants.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::rewrite::{Mutant, Place, rewrite};

pub(crate) struct Project {
    /// The workspace.
    pub root: PathBuf,
    /// Packages whose sources are mutated, each with its folder.
    pub packages: Vec<(String, String)>,
    /// Folder for the copy and for what is built.
    pub work: PathBuf,
}

/// A program that the build made.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub target: String,
    pub is_test: bool,
    pub path: PathBuf,
}

type Failable<T> = Result<T, Box<dyn Error>>;

impl Project {
    pub(crate) fn copy(&self) -> PathBuf {
        self.work.join("source")
    }

    pub(crate) fn build_folder(&self) -> PathBuf {
        self.work.join("build")
    }

    /// Copies the workspace as it is. Files that stay as they are keep their times, so that little is built again.
    pub(crate) fn copy_sources(&self) -> Failable<()> {
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output()?;
        let list = String::from_utf8(list.stdout)?;
        let files: BTreeSet<&str> = list.split('\0').filter(|path| !path.is_empty()).collect();
        let mut known = Vec::new();
        files_beneath(&self.copy(), "", &mut known)?;
        for gone in known.iter().filter(|path| !files.contains(path.as_str()) && !self.is_mutated(path)) {
            fs::remove_file(self.copy().join(gone))?;
        }
        for path in files {
            // One that is deleted and not committed.
            if self.root.join(path).exists() && !self.is_mutated(path) {
                write_if_changed(&self.copy().join(path), &fs::read(self.root.join(path))?)?;
            }
        }
        Ok(())
    }

    /// Whether `write_mutants` writes the file.
    fn is_mutated(&self, path: &str) -> bool {
        let is_of = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with("/src/"));
        self.packages.iter().any(|(_, folder)| is_of(folder))
    }

    /// Takes over the dependencies that the workspace's own build made, if there are any.
    pub(crate) fn take_dependencies(&self, target: &Path) -> Failable<()> {
        let (from, to) = (target.join("debug"), self.build_folder().join("debug"));
        if to.exists() || !from.exists() {
            return Ok(());
        }
        let own: Vec<String> = self.packages.iter().map(|(package, _)| package.replace('-', "_")).collect();
        for part in ["deps", "build", ".fingerprint"] {
            fs::create_dir_all(to.join(part))?;
            let mut names: Vec<PathBuf> = Vec::new();
            for entry in fs::read_dir(from.join(part))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().replace('-', "_");
                let library = part != "deps" || name.starts_with("lib");
                if library && !own.iter().any(|own| name.trim_start_matches("lib").starts_with(own)) {
                    names.push(entry.path());
                }
            }
            for names in names.chunks(256) {
                // With times, by which Cargo knows what is fresh.
                let status =
                    Command::new("cp").args(["-Rp", "--"]).args(names).arg(to.join(part)).status()?;
                if !status.success() {
                    return Err(format!("cp to {}: {status}", to.display()).into());
                }
            }
        }
        Ok(())
    }

    /// Writes the package with these mutants in it; gives where they are, by file.
    fn write_mutants(
        &self,
        mutants: &[Mutant],
        wanted: &BTreeSet<usize>,
    ) -> Failable<BTreeMap<String, Vec<Place>>> {
        let mut files = Vec::new();
        for (_, folder) in &self.packages {
            files_beneath(&self.root, &format!("{folder}/src"), &mut files)?;
        }
        let mut places = BTreeMap::new();
        for path in files.iter().filter(|path| self.is_mutated(path)) {
            let text = fs::read_to_string(self.root.join(path))?;
            let chosen: Vec<(usize, &Mutant)> = wanted
                .iter()
                .map(|&number| (number, &mutants[number]))
                .filter(|(_, mutant)| mutant.path == *path)
                .collect();
            let (mut text, found) = rewrite(&text, &chosen);
            if self.packages.iter().any(|(_, folder)| *path == format!("{folder}/src/lib.rs")) {
                // At the end, so that places stay.
                text.push_str("\npub mod mutants;\n");
            }
            write_if_changed(&self.copy().join(path), text.as_bytes())?;
            places.insert(path.clone(), found);
        }
        let module = format!("const COUNT: usize = {};\n{}", mutants.len(), include_str!("on.rs"));
        let module = module.replacen("//!", "//", usize::MAX);
        for (_, folder) in &self.packages {
            write_if_changed(&self.copy().join(folder).join("src/mutants.rs"), module.as_bytes())?;
        }
        Ok(places)
    }

    /// Writes the package with the first `count` mutants that compile; gives their numbers. The compiler's errors name those that do not;
    /// they are remembered, as long as the mutants and their files stay the same.
    pub(crate) fn write_compiling(&self, mutants: &[Mutant], count: usize) -> Failable<BTreeSet<usize>> {
        let memory = self.work.join("not-compiling.json");
        let texts: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.path.as_str()).collect();
        let mut hasher = DefaultHasher::new();
        for path in texts {
            fs::read_to_string(self.root.join(path))?.hash(&mut hasher);
        }
        let keys: Vec<String> =
            mutants.iter().map(Mutant::key).chain([hasher.finish().to_string()]).collect();
        let known = fs::read(&memory).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let left: BTreeSet<usize> = match known.filter(|known| known["mutants"] == json!(keys)) {
            Some(known) => {
                let broken: BTreeSet<u64> =
                    known["broken"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
                (0..mutants.len()).filter(|&number| !broken.contains(&(number as u64))).collect()
            }
            None => {
                let left = self.find_compiling(mutants)?;
                let broken: Vec<usize> = (0..mutants.len()).filter(|number| !left.contains(number)).collect();
                fs::write(&memory, serde_json::to_vec(&json!({"mutants": keys, "broken": broken}))?)?;
                left
            }
        };
        let left: BTreeSet<usize> = left.into_iter().take(count).collect();
        self.write_mutants(mutants, &left)?;
        Ok(left)
    }

    fn find_compiling(&self, mutants: &[Mutant]) -> Failable<BTreeSet<usize>> {
        let mut left: BTreeSet<usize> = (0..mutants.len()).collect();
        loop {
            let places = self.write_mutants(mutants, &left)?;
            // All of them, so that one round finds what does not compile in each.
            let packages = self.packages.iter().flat_map(|(package, _)| ["--package", package.as_str()]);
            let arguments: Vec<&str> =
                ["check", "--lib", "--keep-going"].into_iter().chain(packages).collect();
            let (messages, success) = self.cargo(&arguments)?;
            if success {
                return Ok(left);
            }
            let mut broken = BTreeSet::new();
            for message in &messages {
                if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
                    broken.extend(blamed(&message["message"], &places));
                }
            }
            if broken.is_empty() {
                return Err(format!("the copy does not compile:\n{}", rendered(&messages)).into());
            }
            eprintln!("{} mutants do not compile", broken.len());
            left.retain(|number| !broken.contains(number));
        }
    }

    /// Builds something of the copy; gives the programs.
    pub(crate) fn build(&self, arguments: &[&str]) -> Failable<Vec<Program>> {
        let (messages, success) = self.cargo(arguments)?;
        if !success {
            return Err(format!("the mutated copy does not build:\n{}", rendered(&messages)).into());
        }
        let mut programs = BTreeMap::new();
        for message in messages.iter().filter(|message| message["reason"] == "compiler-artifact") {
            if let Some(path) = message["executable"].as_str() {
                let target = message["target"]["name"].as_str().unwrap_or_default().to_string();
                let is_test = message["profile"]["test"] == true;
                let program = Program { target: target.clone(), is_test, path: PathBuf::from(path) };
                programs.insert((target, is_test), program);
            }
        }
        Ok(programs.into_values().collect())
    }

    /// Messages of Cargo run on the copy, and whether it succeeded.
    fn cargo(&self, arguments: &[&str]) -> Failable<(Vec<Value>, bool)> {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let output = Command::new(cargo)
            .args(arguments)
            .arg("--message-format=json")
            .arg("--target-dir")
            .arg(self.build_folder())
            .current_dir(self.copy())
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok((messages, output.status.success()))
    }
}

/// The compiler's messages as text.
fn rendered(messages: &[Value]) -> String {
    let texts = messages.iter().filter_map(|message| message["message"]["rendered"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// Mutants that an error is about: the innermost around any of its spans, or else the nearest in the file.
fn blamed(message: &Value, places: &BTreeMap<String, Vec<Place>>) -> BTreeSet<usize> {
    let none = Vec::new();
    let mut found = BTreeSet::new();
    let mut nearest: Option<(usize, usize)> = None;
    for span in message["spans"].as_array().unwrap_or(&none) {
        let file = span["file_name"].as_str().unwrap_or_default();
        let at = |key: &str| span[key].as_u64().unwrap_or_default() as usize;
        let (start, end) = (at("byte_start"), at("byte_end"));
        let Some((_, places)) = places.iter().find(|(path, _)| Path::new(path).ends_with(file)) else {
            continue;
        };
        let around = places.iter().filter(|place| place.range.start <= start && end <= place.range.end);
        found.extend(around.min_by_key(|place| place.range.len()).map(|place| place.number));
        let closest = places.iter().map(|place| (distance(&place.range, start), place.number)).min();
        nearest = nearest.into_iter().chain(closest).min();
    }
    if found.is_empty() {
        found.extend(nearest.map(|(_, number)| number));
    }
    found
}

fn distance(range: &Range<usize>, at: usize) -> usize {
    range.start.saturating_sub(at) + at.saturating_sub(range.end)
}

/// Paths of the files beneath a folder of `root`, from `root`.
fn files_beneath(root: &Path, folder: &str, files: &mut Vec<String>) -> Failable<()> {
    if !root.join(folder).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        match entry.file_type()?.is_dir() {
            true => files_beneath(root, &path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> Failable<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, bytes)?)
}
