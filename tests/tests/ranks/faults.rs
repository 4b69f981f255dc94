//! What happens to the other ranks when one is killed, stops, loses a message or runs another model: processes over sockets, and over MPI.
//!
//! `ONNXC_RANK_FAULTS` is how many rounds there are of each.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use onnxc::{Grid, Options, Quiet, ShardOptions};
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_machine::target::Target;
use onnxc_proto::build::{self, f32_value, node};
use onnxc_runtime_support::Status;
use onnxc_tests::measure::HANG;
use onnxc_tests::object::{include_dir, must, runtime, source, write};
use prost::Message;

use super::{Mpi, numbers};

/// Two tensors' shares of two stages.
const RANKS: usize = 4;

/// Milliseconds for which ranks wait for one that does not answer.
const TIMEOUT: u64 = 400;

/// Rounds where the environment does not say how many.
const ROUNDS: usize = 5;

fn rounds() -> usize {
    std::env::var("ONNXC_RANK_FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(ROUNDS)
}

/// Four layers.
fn model(seed: u64) -> Vec<u8> {
    let nodes = vec![
        node("MatMul", &["x", "w1"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("MatMul", &["b", "w2"], &["c"]),
        node("MatMul", &["c", "w3"], &["d"]),
        node("Tanh", &["d"], &["e"]),
        node("MatMul", &["e", "w4"], &["y"]),
    ];
    let mut graph =
        build::graph(vec![f32_value("x", &["n", "16"])], nodes, vec![f32_value("y", &["n", "16"])]);
    let shapes: [(&str, [i64; 2]); 4] =
        [("w1", [16, 32]), ("w2", [32, 16]), ("w3", [16, 32]), ("w4", [32, 16])];
    let weight = |(at, (name, shape)): (usize, &(&str, [i64; 2]))| {
        build::f32_tensor(name, shape, numbers(512, seed + at as u64))
    };
    graph.initializer = shapes.iter().enumerate().map(weight).collect();
    let grid = Grid { stages: 2, batches: 1, tensors: 2 };
    let options = ShardOptions { name: "ranks".into(), grid, shard_optimizer: false };
    let bytes = build::model(17, graph).encode_to_vec();
    onnxc::shard(bytes.into(), &NoExternalData, &options).unwrap().model
}

/// Objects of all ranks of two models of one shape, and `models.h` that declares them.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let (mut objects, mut text) = (vec![], String::new());
    for (list, seed) in [("models", 1), ("others", 9)] {
        let bytes = model(seed);
        for rank in 0..RANKS {
            let import = ImportOptions { configuration: Some("ranks".into()), ..Default::default() };
            let name = format!("{list}_rank{rank}");
            let options =
                Options { import, rank: Some(rank), ..Options::new(&name, Target::host().unwrap()) };
            let compiled =
                onnxc::compile(bytes.clone().into(), &NoExternalData, &options, &mut Quiet).unwrap();
            let own = dir.join(&name);
            std::fs::create_dir(&own).unwrap();
            objects.push(write(compiled.artifact().unwrap(), &own));
            writeln!(text, "const onnxc_model *{name}_model(void);").unwrap();
        }
        let all: Vec<String> = (0..RANKS).map(|rank| format!("{list}_rank{rank}_model")).collect();
        writeln!(text, "static const onnxc_model_fn {list}[] = {{{}}};", all.join(", ")).unwrap();
    }
    std::fs::write(dir.join("models.h"), text).unwrap();
    objects
}

fn program(dir: &Path, compiler: &str, name: &str, more: &[PathBuf]) -> PathBuf {
    let program = dir.join("program");
    let mut cc = Command::new(compiler);
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-O1", "-I"]).arg(include_dir());
    cc.arg("-I").arg(dir).arg(source(name)).args(more).args(objects(dir)).arg(runtime());
    must(cc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program));
    program
}

#[test]
fn faults_of_a_rank_are_a_status_on_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "cc", "ranks_faults.c", &[]);
    let failed = Status::RANK_FAILED.0;
    let timeout = Status::TIMEOUT.0;
    let hang = HANG.as_millis() as u64;
    // What the others end with; how long they would wait for one that is silent. Those that need not wait would do so for very long.
    let cases = [
        ("kill", hang, vec![failed]),
        ("stop", TIMEOUT, vec![timeout, failed]),
        ("lose", TIMEOUT, vec![timeout, failed, Status::OTHER_MODEL.0]),
        ("other", hang, vec![Status::OTHER_MODEL.0]),
    ];
    for (fault, patience, wanted) in cases {
        let seed = 7u64;
        let mut run = Command::new(&program);
        run.args([fault, &rounds().to_string(), &seed.to_string(), &patience.to_string()]);
        let text = String::from_utf8(must(&mut run).stdout).unwrap();
        let (mut victims, mut seen, mut longest) = (BTreeSet::new(), BTreeSet::new(), 0);
        for line in text.lines() {
            let numbers: Vec<i32> = line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
            let (victim, statuses, time) =
                (numbers[0], &numbers[1..numbers.len() - 1], numbers[numbers.len() - 1]);
            let others = if fault == "kill" || fault == "stop" { RANKS - 1 } else { RANKS };
            assert_eq!(statuses.len(), others, "{line}");
            assert!(statuses.iter().all(|status| wanted.contains(status)), "{line}: one of {wanted:?}");
            victims.insert(victim);
            seen.extend(statuses.iter().copied());
            longest = longest.max(time);
        }
        assert_eq!(text.lines().count(), rounds(), "{text}");
        assert!(rounds() < 50 || victims.len() == RANKS, "{victims:?}");
        assert!(fault != "stop" || seen.contains(&timeout), "{seen:?}");
        println!(
            "{fault}: {} rounds, statuses {seen:?}, the last rank at most {longest} ms after, timeout {patience} ms",
            rounds()
        );
    }
}

#[test]
fn jobs_of_mpi_end_when_a_rank_is_killed() {
    Mpi::all().iter().for_each(killed);
}

fn killed(mpi: &Mpi) {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/mpi");
    let include = PathBuf::from(format!("-I{}", source.display()));
    let more = [include, source.join("onnxc_mpi.c")];
    let program = program(dir.path(), &mpi.cc, "ranks_mpi_run.c", &more);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut longest = 0;
    for round in 0..rounds() {
        let mut job = mpi.run(RANKS);
        job.arg(&program).arg(HANG.as_millis().to_string());
        let mut job = job.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
        let mut pids = vec![];
        while pids.len() < RANKS {
            let line = lines.next().expect("all ranks run").unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[0], "runs", "{line}");
            pids.push(words[2].to_string());
        }
        std::thread::sleep(std::time::Duration::from_micros(rng.u64(0..20000)));
        let start = Instant::now();
        must(Command::new("kill").args(["-KILL", &pids[rng.usize(0..RANKS)]]));
        // The launcher ends what is left; a rank that finds out before gives a status.
        for line in lines {
            let line = line.unwrap();
            if let Some(ended) = line.strip_prefix("ended ") {
                let status: i32 = ended.rsplit(' ').next().unwrap().parse().unwrap();
                assert_eq!(status, Status::RANK_FAILED.0, "round {round}: {line}");
            }
        }
        assert!(!job.wait().unwrap().success(), "round {round}");
        longest = longest.max(start.elapsed().as_millis());
    }
    println!("{}: {} rounds, the job ended at most {longest} ms after a rank was killed", mpi.run, rounds());
}
