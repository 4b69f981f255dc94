//! Steps of training on several ranks, each with its part of the batch: the same losses and parameters as one rank with all of it.

use std::path::Path;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc::{Compiled, Grid, Loss, Optimizer, Options, Quiet, ShardOptions, TrainOptions};
use onnxc_import::{ImportOptions, NoExternalData};
use onnxc_ir::graph::{Graph, Tensor};
use onnxc_machine::target::Target;
use onnxc_proto::ModelProto;
use onnxc_runtime_support::Status;
use onnxc_runtime_support::ranks::{Communicator, World};
use onnxc_tests::measure::HANG;

use crate::clauses::text;
use crate::training_info::program::{Program, State, entry, own, values};
use prost::Message;

use super::{exchanges, load, numbers, on_all};

/// What it divides by is not small, so that other last bits of a derivative make no other step.
const ADAM: Optimizer = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2 };

/// Two convolutions, a normalization over the batch, and a layer of five classes.
fn network() -> ModelProto {
    let weight = |name: &str, shape: &[usize], seed| {
        let list = numbers(shape.iter().product(), seed);
        let list: Vec<String> = list.iter().map(|number| format!("{}", 0.4 * number)).collect();
        format!("float{shape:?} {name} = {{{}}}", list.join(", "))
    };
    let weights = [
        weight("w1", &[7, 2, 3, 3], 1),
        weight("b1", &[7], 2),
        weight("w2", &[4, 7, 3, 3], 3),
        weight("w3", &[4, 5], 4),
        weight("b3", &[5], 5),
        weight("scale", &[1, 7, 1, 1], 6),
    ];
    text::model(&format!(
        "(float[n, 2, 8, 6] x) => (float[n, 5] y) <{}> {{ \
           c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) \
           axes = Constant <value_ints = [0, 2, 3]> () \
           mean = ReduceMean(c1, axes) \
           centred = Sub(c1, mean) \
           n1 = Mul(centred, scale) \
           r1 = Relu(n1) \
           p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1) \
           c2 = Conv <pads = [1, 1, 1, 1]> (p1, w2) \
           g = GlobalAveragePool(c2) \
           f = Flatten(g) \
           m = MatMul(f, w3) \
           y = Add(m, b3) }}",
        weights.join(", ")
    ))
}

fn trained(model: &ModelProto, optimizer: Optimizer) -> Vec<u8> {
    let options = TrainOptions::new(Loss::CrossEntropy, optimizer);
    let made = onnxc::train_graph(model.encode_to_vec().into(), &NoExternalData, &options);
    made.unwrap_or_else(|errors| panic!("{errors:?}")).model
}

fn sharded(model: &[u8], ranks: usize, shard_optimizer: bool) -> (Vec<u8>, Vec<String>) {
    let grid = Grid { stages: 1, batches: ranks, tensors: 1 };
    let options = ShardOptions { name: "ranks".into(), grid, shard_optimizer };
    let made = onnxc::shard(model.to_vec().into(), &NoExternalData, &options);
    let made = made.unwrap_or_else(|errors| panic!("{errors:?}"));
    (made.model, made.notes)
}

fn compiled(model: &[u8], rank: Option<usize>) -> Compiled {
    let target = Target::parse(&Target::host().unwrap().triple.to_string(), Some("native")).unwrap();
    let configuration = rank.map(|_| "ranks".to_string());
    let import = ImportOptions { training: true, configuration, ..Default::default() };
    let options = Options { import, rank, ..Options::new("model", target) };
    let made = onnxc::compile(model.to_vec().into(), &NoExternalData, &options, &mut Quiet);
    made.unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// A call of a rank's program on its block.
fn call(
    program: &Program<'_>,
    inputs: &[Tensor],
    state: &mut State,
    communicator: &Communicator,
) -> Vec<Tensor> {
    let mut given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    given.extend(vec![None; program.graph.states.len()]);
    let shapes = native::output_shapes(program.graph, &given).unwrap();
    let mut prepared = program.model.prepare(&given, &shapes).unwrap();
    let mut arguments = prepared.arguments(&Call { communicator: Some(communicator), ..Call::default() });
    let mut dims = [0];
    arguments.use_state(&mut state.0, &mut dims);
    // SAFETY: the arguments are those of a prepared call, but for the block, which is alive and has its bytes.
    let status = unsafe { arguments.run(&program.model) };
    assert_eq!(status, Status::OK);
    prepared.check_guards().unwrap();
    prepared.outputs().unwrap().into_iter().take(program.graph.given_outputs()).collect()
}

/// The batch, and the rate that a step may take as well.
fn given(graph: &Graph, batch: &[Tensor; 2]) -> Vec<Tensor> {
    let rate = Tensor::from_slice::<f32>(&[], &[0.01]);
    let of = |at: usize| batch.get(at).cloned().unwrap_or_else(|| rate.clone());
    (0..graph.given_inputs()).map(of).collect()
}

/// Losses of steps on these batches, then the state, and what the model infers of the first batch: one for each rank.
struct Learnt {
    losses: Vec<f64>,
    state: Vec<(String, Vec<usize>, Vec<f64>)>,
    inferred: Vec<f64>,
}

fn left(graph: &Graph, state: &State) -> Vec<(String, Vec<usize>, Vec<f64>)> {
    let names = graph.inputs[graph.given_inputs()..].iter().map(|input| &input.name);
    let of = |name: &String| (name.clone(), state.get(graph, name).shape, state.values(graph, name));
    names.map(of).collect()
}

fn learn_alone(model: &[u8], batches: &[[Tensor; 2]]) -> Learnt {
    let loaded = load(compiled(model, None));
    let (own, step) = (own(&loaded), entry(&loaded, "train_step"));
    let mut state = State::new(&own);
    let losses = batches.iter().map(|batch| {
        let (status, outputs) = step.call_with(&given(step.graph, batch), &mut state, Default::default());
        assert_eq!(status, Status::OK);
        *values(outputs.last().unwrap()).first().unwrap()
    });
    let losses = losses.collect();
    let inferred = values(&own.call(&batches[0][..1], &mut state)[0]);
    Learnt { losses, state: left(step.graph, &state), inferred }
}

fn learn(model: &[u8], ranks: usize, batches: &[[Tensor; 2]]) -> (Vec<Learnt>, Vec<Vec<&'static str>>) {
    let all: Vec<Loaded> = (0..ranks).map(|rank| load(compiled(model, Some(rank)))).collect();
    let found = all.iter().map(|loaded| exchanges(entry(loaded, "train_step").graph)).collect();
    let world = World::new(ranks, HANG);
    let learnt = on_all(&world, ranks, |rank, communicator| {
        let loaded = &all[rank];
        let (own, step) = (own(loaded), entry(loaded, "train_step"));
        let mut state = State::new(&own);
        let losses = batches.iter().map(|batch| {
            *values(call(&step, &given(step.graph, batch), &mut state, communicator).last().unwrap())
                .first()
                .unwrap()
        });
        let losses = losses.collect();
        let inferred = values(&call(&own, &batches[0][..1], &mut state, communicator)[0]);
        Learnt { losses, state: left(step.graph, &state), inferred }
    });
    (learnt, found)
}

fn near(found: f64, wanted: f64, about: &str) {
    assert!((found - wanted).abs() <= 2e-4 * (1.0 + wanted.abs()), "{about}: {found}, must be {wanted}");
}

/// Whether the ranks learnt what one rank did; of a tensor that they have parts of, the parts together.
fn compare(learnt: &[Learnt], alone: &Learnt, about: &str) {
    for (rank, own) in learnt.iter().enumerate() {
        for (found, wanted) in
            own.losses.iter().zip(&alone.losses).chain(own.inferred.iter().zip(&alone.inferred))
        {
            near(*found, *wanted, &format!("{about}, rank {rank}"));
        }
        // Every rank has the same bits of what it computes whole.
        assert_eq!(own.losses, learnt[0].losses, "{about}");
    }
    for (at, (name, shape, wanted)) in alone.state.iter().enumerate() {
        let parts: Vec<&(String, Vec<usize>, Vec<f64>)> = learnt.iter().map(|own| &own.state[at]).collect();
        assert!(parts.iter().all(|part| part.0 == *name), "{about}");
        let found: Vec<f64> = match parts.iter().all(|part| part.1 == *shape) {
            true => {
                assert!(parts.iter().all(|part| part.2 == parts[0].2), "{about}: ranks differ in `{name}`");
                parts[0].2.clone()
            }
            false => parts.iter().flat_map(|part| part.2.iter().copied()).collect(),
        };
        assert_eq!(found.len(), wanted.len(), "{about}: `{name}`");
        found
            .iter()
            .zip(wanted)
            .for_each(|(found, wanted)| near(*found, *wanted, &format!("{about}: `{name}`")));
    }
}

fn batches(sizes: &[usize], shape: &[usize], classes: i64) -> Vec<[Tensor; 2]> {
    let of = |(seed, &size): (usize, &usize)| {
        let shape: Vec<usize> = [size].iter().chain(shape).copied().collect();
        let labels: Vec<i64> = (0..size as i64).map(|at| (at * 3 + seed as i64) % classes).collect();
        [
            Tensor::from_slice(&shape, &numbers(shape.iter().product(), 70 + seed as u64)),
            Tensor::from_slice(&[size], &labels),
        ]
    };
    sizes.iter().enumerate().map(of).collect()
}

/// Bytes of the state of a rank.
fn bytes(learnt: &Learnt) -> usize {
    learnt.state.iter().map(|(_, shape, _)| 4 * shape.iter().product::<usize>()).sum()
}

#[test]
fn steps_on_parts_of_a_batch_learn_what_one_rank_does() {
    // Eight images, then a number that no number of ranks divides, then fewer than ranks.
    let batches = batches(&[8, 7, 3, 8, 1], &[2, 8, 6], 5);
    for (optimizer, name) in [(Optimizer::Sgd, "sgd"), (ADAM, "adam")] {
        let model = trained(&network(), optimizer);
        let alone = learn_alone(&model, &batches);
        for ranks in [2, 4] {
            for shard_optimizer in [false, true] {
                let about = format!("{name} on {ranks} ranks, optimizer sharded: {shard_optimizer}");
                let (sharded, notes) = sharded(&model, ranks, shard_optimizer);
                assert!(notes.iter().any(|note| note.starts_with("train_step: rank 1")), "{notes:?}");
                let (learnt, found) = learn(&sharded, ranks, &batches);
                compare(&learnt, &alone, &about);
                for own in &found {
                    let count = |kind: &str| own.iter().filter(|own| **own == kind).count();
                    // Seven parameters' derivatives, the mean over the batch and its derivative, and the loss.
                    let sums = count("all_reduce") + count("reduce_scatter");
                    assert!(sums >= 8, "{about}: {own:?}");
                    if !shard_optimizer || optimizer == Optimizer::Sgd {
                        assert_eq!(count("reduce_scatter"), 0, "{about}: {own:?}");
                    } else {
                        assert!(count("reduce_scatter") > 0, "{about}: {own:?}");
                    }
                }
                if shard_optimizer && optimizer != Optimizer::Sgd {
                    let (own, all) = (bytes(&learnt[0]), bytes(&alone));
                    // Parameters, and a share of twice as much; a little more where a size is not divided.
                    assert!(own * 3 * ranks <= all * (ranks + 2) + all / 3, "{about}: {own} of {all} bytes");
                }
            }
        }
    }
}

#[test]
fn the_digits_example_learns_on_ranks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train/digits.onnx");
    let model = std::fs::read(path).unwrap();
    let batches = batches(&[32, 32, 9], &[1, 8, 8], 10);
    let alone = learn_alone(&model, &batches);
    for ranks in [2, 4] {
        let (sharded, _) = sharded(&model, ranks, true);
        let (learnt, _) = learn(&sharded, ranks, &batches);
        compare(&learnt, &alone, &format!("digits on {ranks} ranks"));
    }
}

#[test]
fn stages_are_not_for_training() {
    let model = trained(&network(), Optimizer::Sgd);
    let mut proto = ModelProto::decode(model.as_slice()).unwrap();
    super::stage_all(&mut proto);
    let import = ImportOptions { training: true, configuration: Some("c".into()), ..Default::default() };
    let options = Options { import, rank: Some(0), ..Options::new("model", Target::host().unwrap()) };
    let errors =
        onnxc::compile(proto.encode_to_vec().into(), &NoExternalData, &options, &mut Quiet).err().unwrap();
    assert!(errors[0].message.contains("what trains a model is in one stage"), "{errors:?}");
}
