//! Derivatives of drawn networks and of every operator against difference quotients, and those of compiled objects against the
//! reference.

use std::collections::BTreeMap;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_tests::compile::{Code, compile_for};
use onnxc_tests::derivatives::networks::{self, LAYERS, Network};
use onnxc_tests::derivatives::{Skip, Summary, check, check_folder, differentiated, imported, widened};
use onnxc_tests::differential::{Plan, draw, numbers_for};
use onnxc_tests::onnx_env;
use prost::Message;
use rayon::prelude::*;

/// The seed of all networks.
const SEED: u64 = 1;

/// How many networks are drawn; more by the variable of the environment.
fn count() -> usize {
    std::env::var("ONNXC_NETWORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(420)
}

fn subject(number: usize, network: &Network) -> String {
    format!("network {number}, {}", network.layers.join(", "))
}

#[test]
fn drawn_networks_agree_with_difference_quotients() {
    let results = (0..count()).into_par_iter().map(|number| {
        let network = networks::draw(SEED, number);
        let result = differentiated(&network.model).and_then(|(model, ys, xs)| {
            let graph = widened(&imported(&model)?).map_err(Skip::Not)?;
            Ok(check(&graph, &network.inputs, ys, xs))
        });
        (subject(number, &network), result)
    });
    let summary = Summary::new(results.collect());
    let (elements, slopes) = summary.elements();
    println!("{} networks, {elements} derivatives, {slopes} of them not 0", summary.agree.len());
    assert!(summary.differ.is_empty(), "{:#?}", summary.differ);
    assert!(
        summary.refused.is_empty() && summary.skipped.is_empty(),
        "{:#?}",
        (summary.refused, summary.skipped)
    );
    assert!(slopes > 15 * summary.agree.len(), "of {elements} derivatives {slopes} are not 0");
    for (layer, _) in LAYERS {
        let found = summary.agree.keys().filter(|name| name.split(", ").any(|own| own == *layer)).count();
        assert!(found >= 5 * summary.agree.len() / 420, "{layer} is in {found} networks");
    }
}

/// A network for each layer, compiled: machine code finds the derivatives that the reference finds.
#[test]
fn compiled_derivatives_are_those_of_the_reference() {
    (0..LAYERS.len()).into_par_iter().for_each(|number| {
        let network = networks::draw(SEED, number);
        let name = subject(number, &network);
        let (model, ..) = differentiated(&network.model).unwrap_or_else(|skip| panic!("{name}: {skip:?}"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let code = Code { target: Target::host().unwrap(), opt_level: 3 };
        let compiled =
            compile_for(&path, "model", &code).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        let wanted = interp::run(&imported(&model).unwrap(), &network.inputs).unwrap();
        let given: Vec<_> = network.inputs.iter().cloned().map(Some).collect();
        let shapes = native::output_shapes(&loaded.graph, &given).unwrap();
        let found = loaded.model().unwrap().run_with(&given, &shapes, &Call::default()).unwrap();
        for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found.shape, wanted.shape, "{name}, output {at}");
            let [found, wanted] = [found, wanted].map(|tensor| tensor.to_f64s().unwrap());
            let scale = wanted.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
            for (one, other) in found.iter().zip(&wanted) {
                assert!((one - other).abs() <= 1e-3 * scale, "{name}, output {at}: {one}, not {other}");
            }
        }
    });
}

/// The newest version of every operator that takes and gives f32 or f64, drawn from its schema.
#[test]
fn every_operator_agrees_with_difference_quotients() {
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    for row in onnxc::operators().rows().filter(|row| row.domain.is_empty()) {
        let since = newest.entry(row.name).or_default();
        *since = row.since.max(*since);
    }
    let pairs = newest.iter().flat_map(|(name, since)| {
        let variables = ["T", "T1", "T2", "V"].into_iter();
        variables
            .flat_map(move |variable| ["float", "double"].map(|ty| format!("{name}-{since} {variable}={ty}")))
    });
    let pairs: Vec<String> = pairs.collect();
    let mut plan = Plan { seed: 20, first: 0, count: 0, operator: None, python: None, keep: None };
    let numbers = numbers_for(&plan, &pairs, 0, 1).unwrap();
    let own = summary_of(&plan, &onnx_env::ONNX, &numbers);
    plan.operator = Some("com.microsoft".to_string());
    let vendors = summary_of(&plan, &onnx_env::PEERS, &(0..400).collect::<Vec<u64>>());
    for (summary, least) in [(own, 150), (vendors, 90)] {
        let (elements, slopes) = summary.elements();
        println!("{} models, {elements} derivatives, {slopes} of them not 0", summary.agree.len());
        assert!(summary.differ.is_empty(), "{:#?}", summary.differ);
        let ragged =
            |text: &str| text.ends_with("its iterations hand on values of other sizes than they are given");
        let other: Vec<_> = summary.refused.iter().filter(|(_, text)| !ragged(text)).collect();
        assert!(other.is_empty(), "{other:#?}");
        assert!(summary.agree.len() >= least, "{} models of {least} agree", summary.agree.len());
    }
}

fn summary_of(plan: &Plan, environment: &onnx_env::Environment, numbers: &[u64]) -> Summary {
    let python = environment.interpreter().unwrap();
    let results = numbers.par_chunks(100).flat_map(|numbers| {
        let folder = tempfile::tempdir().unwrap();
        let drawn = draw(plan, &python, numbers, folder.path()).unwrap();
        let cases =
            drawn.into_iter().filter_map(|drawn| Some((folder.path().join(drawn.folder.as_ref()?), drawn)));
        let results = cases
            .map(|(path, drawn)| (format!("{} number {}", drawn.subject, drawn.number), check_folder(&path)));
        results.collect::<Vec<_>>()
    });
    Summary::new(results.collect())
}
