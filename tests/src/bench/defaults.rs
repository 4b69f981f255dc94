//! Objects for no processor in particular against those for this machine's: their times in turn, and what they take of memory.

use std::path::{Path, PathBuf};

use onnxc_machine::target::Target;
use serde::Serialize;

use super::Result;
use super::engine::{Compiled, Engine};
use super::machine::Machine;
use super::running::{Failure, Measured, Row, Settings, Tasks, geometric_mean, prepare, take_round};
use super::table::{NONE, markdown, mebibytes, milliseconds, ratio};

/// Figures of all models.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub lines: Vec<Line>,
    pub failures: Vec<Failure>,
}

/// A model with a number of threads.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The model's file and its external data.
    pub model_bytes: u64,
    /// Of the default object, and the peers.
    pub default: Row,
    pub native: Row,
}

impl Line {
    fn ours(row: &Row) -> Option<f64> {
        row.engine(Engine::Onnxc)?.min_ms()
    }

    /// The time for this machine divided by that of the default object.
    pub fn of_native(&self) -> Option<f64> {
        Some(Line::ours(&self.native)? / Line::ours(&self.default)?)
    }

    /// Bytes of the default object for each of the model's file.
    pub fn of_file(&self) -> Option<f64> {
        Some(self.default.compiled.as_ref()?.object_bytes as f64 / self.model_bytes as f64)
    }
}

/// Measures every model. The flags of the settings go to both objects.
pub fn run(settings: &Settings, models: &[PathBuf], progress: &dyn Fn(&str)) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let mut report = Report { machine: Machine::this(), lines: vec![], failures: vec![] };
    for (at, model) in models.iter().enumerate() {
        let place = folder.path().join(at.to_string());
        if let Err(message) = measure(settings, model, &place, &mut report, progress) {
            let what = model.display().to_string();
            report.failures.push(Failure { what, engine: None, message });
        }
        let _ = std::fs::remove_dir_all(&place);
    }
    Ok(report)
}

fn measure(
    settings: &Settings,
    model: &Path,
    folder: &Path,
    report: &mut Report,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let starter = settings.starter(folder);
    let triple = Target::host().map_err(|error| error.to_string())?.triple.to_string();
    let with = |flags: [String; 2], peers: &[Engine]| Settings {
        flags: settings.flags.iter().cloned().chain(flags).collect(),
        peers: peers.to_vec(),
        ..settings.clone()
    };
    let kinds = [
        ("default", with(["--target".into(), triple], &settings.peers)),
        ("native", with(["--mcpu".into(), "native".into()], &[])),
    ];
    let mut prepared = vec![];
    for (name, settings) in &kinds {
        let place = folder.join(name);
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        prepared.push(prepare(&starter, settings, model, &place, &mut report.failures, progress)?);
    }
    let (Some(natives), Some(defaults)) = (prepared.pop(), prepared.pop()) else { return Ok(()) };
    for (default, native) in defaults.into_iter().zip(natives) {
        let mut pair: [(Row, Tasks); 2] = [default, native];
        for round in 0..settings.rounds {
            progress(&format!("{}: round {} of {}", pair[0].0.label(), round + 1, settings.rounds));
            for (row, tasks) in &mut pair {
                take_round(&starter, row, tasks, &mut report.failures);
            }
        }
        let [(default, _), (native, _)] = pair;
        report.lines.push(Line { model_bytes: bytes_of(model)?, default, native });
    }
    Ok(())
}

/// Bytes of a model's file, and of the files beside it whose names begin with its own, as exporters call external data.
fn bytes_of(model: &Path) -> Result<u64> {
    let wrong = |error: std::io::Error| format!("{}: {error}", model.display());
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if entry.file_name().to_string_lossy().starts_with(&name) {
            bytes += entry.metadata().map_err(wrong)?.len();
        }
    }
    Ok(bytes)
}

/// A line per model and number of threads, and the least ratios.
pub fn table(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = vec![];
    for line in &report.lines {
        let of = |row: &Row, value: fn(&Compiled) -> u64| row.compiled.as_ref().map(value);
        let kibibytes = |row: &Row| {
            of(row, |compiled| compiled.code_bytes).map_or(NONE.into(), |bytes| (bytes >> 10).to_string())
        };
        let peers = line.default.engines.iter().filter(|measured| measured.engine != Engine::Onnxc);
        let peer = peers.filter_map(Measured::min_ms).min_by(f64::total_cmp);
        rows.push(vec![
            line.default.label(),
            line.default.threads.to_string(),
            milliseconds(Line::ours(&line.default)),
            milliseconds(Line::ours(&line.native)),
            ratio(line.of_native()),
            milliseconds(peer),
            ratio(line.default.ratio()),
            mebibytes(Some(line.model_bytes)),
            mebibytes(of(&line.default, |compiled| compiled.object_bytes)),
            ratio(line.of_file()),
            mebibytes(of(&line.native, |compiled| compiled.object_bytes)),
            kibibytes(&line.default),
            kibibytes(&line.native),
        ]);
    }
    let ratios: Vec<f64> = report.lines.iter().filter_map(Line::of_native).collect();
    let mut last = vec![String::new(); 13];
    (last[0], last[4]) = ("geometric mean".into(), ratio(geometric_mean(&ratios)));
    rows.push(last);
    let head = [
        "model",
        "threads",
        "default ms",
        "native ms",
        "of native",
        "best peer ms",
        "ratio",
        "file MiB",
        "default MiB",
        "of file",
        "native MiB",
        "default code KiB",
        "native code KiB",
    ];
    markdown(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::running::tests::row;

    #[test]
    fn defaults_are_held_against_this_machine_and_the_file() {
        let compiled = |object_bytes, code_bytes| Compiled {
            compile_ms: 1.0,
            link_ms: 1.0,
            object_bytes,
            code_bytes,
            bytes: None,
            output_shapes: vec![],
        };
        let with = |row: Row, object, code| Row { compiled: Some(compiled(object, code)), ..row };
        let line = Line {
            model_bytes: 2 << 20,
            default: with(row("m", 1, [Some(2.0), Some(3.0), None]), 3 << 20, 2048),
            native: with(row("m", 1, [Some(1.0), None, None]), 2 << 20, 1024),
        };
        let machine = Machine { cpu: "a CPU".into(), cores: 2, system: "linux".into() };
        let text = table(&Report { machine, lines: vec![line], failures: vec![] });
        let cells: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        let wanted =
            ["m", "1", "2.000", "1.000", "0.50", "3.000", "1.50", "2.0", "3.0", "1.50", "2.0", "2", "1"];
        assert_eq!(cells[1..14], wanted, "{text}");
        assert!(text.lines().last().unwrap().contains("0.50"), "{text}");
    }

    #[test]
    fn external_data_are_part_of_a_model() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("m.onnx", 3), ("m.onnx.data", 4), ("other.onnx", 100)] {
            std::fs::write(dir.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(bytes_of(&dir.path().join("m.onnx")), Ok(7));
        assert!(bytes_of(&dir.path().join("none").join("m.onnx")).is_err());
    }
}
