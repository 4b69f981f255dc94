//! Tree ensembles: TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble.

use super::forest::{self, Aggregate, Ballots, Branch, Forest, NodePlace, Test, Vote};
use super::scores::Transform;
use super::{DOMAIN, NUMBERS, class_labels, labels_at};
use onnxc_ir::graph::Op;
use onnxc_ops::Texts;
use onnxc_ops::row::*;

const X: &[&str] = &["X[_, _]"];

const REGRESSOR: OpDef = op("TreeEnsembleRegressor", 1, regressor)
    .domain(DOMAIN)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "tensor(float)")])
    .attributes(&[
        string("aggregate_function", "SUM"),
        optional("base_values", Floats),
        optional("n_targets", Int),
        optional("nodes_falsenodeids", Ints),
        optional("nodes_featureids", Ints),
        optional("nodes_hitrates", Floats),
        optional("nodes_missing_value_tracks_true", Ints),
        optional("nodes_modes", Strs),
        optional("nodes_nodeids", Ints),
        optional("nodes_treeids", Ints),
        optional("nodes_truenodeids", Ints),
        optional("nodes_values", Floats),
        string("post_transform", "NONE"),
        optional("target_ids", Ints),
        optional("target_nodeids", Ints),
        optional("target_treeids", Ints),
        optional("target_weights", Floats),
    ])
    .types(&[("T", NUMBERS)])
    .shapes(X)
    .doc("The votes of decision trees for each target");

const REGRESSOR_3: OpDef = REGRESSOR.since(3).attributes(&[
    string("aggregate_function", "SUM"),
    optional("base_values", Floats),
    optional("base_values_as_tensor", Tensor),
    optional("n_targets", Int),
    optional("nodes_falsenodeids", Ints),
    optional("nodes_featureids", Ints),
    optional("nodes_hitrates", Floats),
    optional("nodes_hitrates_as_tensor", Tensor),
    optional("nodes_missing_value_tracks_true", Ints),
    optional("nodes_modes", Strs),
    optional("nodes_nodeids", Ints),
    optional("nodes_treeids", Ints),
    optional("nodes_truenodeids", Ints),
    optional("nodes_values", Floats),
    optional("nodes_values_as_tensor", Tensor),
    string("post_transform", "NONE"),
    optional("target_ids", Ints),
    optional("target_nodeids", Ints),
    optional("target_treeids", Ints),
    optional("target_weights", Floats),
    optional("target_weights_as_tensor", Tensor),
]);

const CLASSIFIER: OpDef = op("TreeEnsembleClassifier", 1, classifier)
    .domain(DOMAIN)
    .inputs(&[req("X", "T1")])
    .outputs(&[req("Y", "T2"), req("Z", "tensor(float)")])
    .attributes(&[
        optional("base_values", Floats),
        optional("class_ids", Ints),
        optional("class_nodeids", Ints),
        optional("class_treeids", Ints),
        optional("class_weights", Floats),
        optional("classlabels_int64s", Ints),
        optional("classlabels_strings", Strs),
        optional("nodes_falsenodeids", Ints),
        optional("nodes_featureids", Ints),
        optional("nodes_hitrates", Floats),
        optional("nodes_missing_value_tracks_true", Ints),
        optional("nodes_modes", Strs),
        optional("nodes_nodeids", Ints),
        optional("nodes_treeids", Ints),
        optional("nodes_truenodeids", Ints),
        optional("nodes_values", Floats),
        string("post_transform", "NONE"),
    ])
    .types(&[("T1", NUMBERS), ("T2", &[DType::Str, DType::I64])])
    .shapes(X)
    .doc("The class with most votes of decision trees, and the votes");

const CLASSIFIER_3: OpDef = CLASSIFIER.since(3).attributes(&[
    optional("base_values", Floats),
    optional("base_values_as_tensor", Tensor),
    optional("class_ids", Ints),
    optional("class_nodeids", Ints),
    optional("class_treeids", Ints),
    optional("class_weights", Floats),
    optional("class_weights_as_tensor", Tensor),
    optional("classlabels_int64s", Ints),
    optional("classlabels_strings", Strs),
    optional("nodes_falsenodeids", Ints),
    optional("nodes_featureids", Ints),
    optional("nodes_hitrates", Floats),
    optional("nodes_hitrates_as_tensor", Tensor),
    optional("nodes_missing_value_tracks_true", Ints),
    optional("nodes_modes", Strs),
    optional("nodes_nodeids", Ints),
    optional("nodes_treeids", Ints),
    optional("nodes_truenodeids", Ints),
    optional("nodes_values", Floats),
    optional("nodes_values_as_tensor", Tensor),
    string("post_transform", "NONE"),
]);

pub const ROWS: &[OpDef] = &[
    REGRESSOR,
    // Version 5 deprecates it and the classifier, and says the same as version 3.
    REGRESSOR_3,
    REGRESSOR_3.since(5),
    CLASSIFIER,
    CLASSIFIER_3,
    CLASSIFIER_3.since(5),
    op("TreeEnsemble", 5, ensemble)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            int("aggregate_function", 1),
            required("leaf_targetids", Ints),
            required("leaf_weights", Tensor),
            optional("membership_values", Tensor),
            optional("n_targets", Int),
            required("nodes_falseleafs", Ints),
            required("nodes_falsenodeids", Ints),
            required("nodes_featureids", Ints),
            optional("nodes_hitrates", Tensor),
            optional("nodes_missing_value_tracks_true", Ints),
            required("nodes_modes", Tensor),
            required("nodes_splits", Tensor),
            required("nodes_trueleafs", Ints),
            required("nodes_truenodeids", Ints),
            int("post_transform", 0),
            required("tree_roots", Ints),
        ])
        .types(&[("T", &[DType::F32, DType::F64, DType::F16])])
        .shapes(X)
        .doc("The votes of decision trees for each target"),
];

/// Floats where the model has them.
enum Numbers<'a> {
    F32(&'a [f32]),
    F64(Vec<f64>),
}

impl Numbers<'_> {
    fn len(&self) -> usize {
        match self {
            Numbers::F32(list) => list.len(),
            Numbers::F64(list) => list.len(),
        }
    }

    fn get(&self, at: usize) -> f64 {
        match self {
            Numbers::F32(list) => f64::from(list[at]),
            Numbers::F64(list) => list[at],
        }
    }

    fn to_vec(&self) -> Vec<f64> {
        (0..self.len()).map(|at| self.get(at)).collect()
    }
}

/// Numbers of an attribute, or of the one of type tensor that stands for it, and whether those are f64.
fn numbers<'a>(cx: &NodeCx<'a, '_>, name: &str) -> Result<Option<(Numbers<'a>, bool)>> {
    if let Some(floats) = cx.long_floats(name)?.filter(|floats| !floats.is_empty()) {
        return Ok(Some((Numbers::F32(floats), false)));
    }
    let tensor = format!("{name}_as_tensor");
    if !cx.has(&tensor) {
        return Ok(None);
    }
    let of = |(list, wide)| (Numbers::F64(list), wide);
    cx.tensor(&tensor)?.map(|data| floats(&tensor, &data).map(of)).transpose()
}

fn floats(name: &str, data: &onnxc_ir::graph::Tensor) -> Result<(Vec<f64>, bool)> {
    match data.to_f64s() {
        Some(numbers) => Ok((numbers, data.dtype == DType::F64)),
        None => malformed(format!("{name} holds {}, not floats", data.dtype)),
    }
}

/// Fails unless a list has an entry per node (or leaf, or vote).
fn check_entries(name: &str, entries: Option<usize>, count: usize) -> Result<()> {
    match entries {
        Some(_) if count >= forest::MAX_NODES => unsupported(format!("{name} has {count} entries")),
        Some(entries) if entries == count => Ok(()),
        Some(entries) => malformed(format!("{name} has {entries} entries, and there are {count} nodes")),
        None => malformed(format!("{name} is not given")),
    }
}

/// A list with an entry per node (or leaf, or vote).
fn entries<'a, T>(name: &str, list: Option<&'a [T]>, count: usize) -> Result<&'a [T]> {
    check_entries(name, list.map(<[T]>::len), count)?;
    Ok(list.unwrap_or_default())
}

fn feature(id: i64) -> Result<u32> {
    match u32::try_from(id) {
        Ok(feature) if feature < i32::MAX as u32 => Ok(feature),
        _ => malformed(format!("feature {id}: features are counted from 0")),
    }
}

fn test(mode: &str, bound: f64) -> Option<Test> {
    Some(match mode {
        "BRANCH_LEQ" => Test::AtMost(bound),
        "BRANCH_LT" => Test::Below(bound),
        "BRANCH_GTE" => Test::AtLeast(bound),
        "BRANCH_GT" => Test::Above(bound),
        "BRANCH_EQ" => Test::Equal(bound),
        "BRANCH_NEQ" => Test::NotEqual(bound),
        _ => return None,
    })
}

/// Where the nodes of trees are in a model's lists, by their trees and numbers.
struct Nodes<'a> {
    trees: &'a [i64],
    ids: &'a [i64],
    /// Positions in the order of trees and numbers, where that is not the order of the lists.
    sorted: Option<Vec<u32>>,
}

impl<'a> Nodes<'a> {
    fn new(trees: &'a [i64], ids: &'a [i64]) -> Result<Nodes<'a>> {
        let mut nodes = Nodes { trees, ids, sorted: None };
        if (1..trees.len()).any(|at| nodes.key(at - 1) >= nodes.key(at)) {
            let mut sorted: Vec<u32> = (0..trees.len() as u32).collect();
            sorted.sort_unstable_by_key(|&at| (nodes.key(at as usize), at));
            let twice =
                sorted.windows(2).filter(|pair| nodes.key(pair[0] as usize) == nodes.key(pair[1] as usize));
            if let Some(at) = twice.map(|pair| pair[1] as usize).min() {
                return malformed(format!("tree {} has two nodes {}", trees[at], ids[at]));
            }
            nodes.sorted = Some(sorted);
        }
        Ok(nodes)
    }

    fn key(&self, at: usize) -> (i64, i64) {
        (self.trees[at], self.ids[at])
    }

    /// The position of a node. It is looked for first where it is if the nodes from `near` on are numbered one by one.
    fn find(&self, tree: i64, node: i64, near: usize) -> Result<usize> {
        let step = self.ids.get(near).and_then(|&id| isize::try_from(node.checked_sub(id)?).ok());
        let guess = step.and_then(|step| near.checked_add_signed(step)).filter(|&at| at < self.ids.len());
        if let Some(at) = guess.filter(|&at| self.key(at) == (tree, node)) {
            return Ok(at);
        }
        let found = match &self.sorted {
            Some(sorted) => sorted
                .binary_search_by_key(&(tree, node), |&at| self.key(at as usize))
                .map(|place| sorted[place] as usize),
            None => {
                let place = self.trees.partition_point(|&other| other < tree);
                let end = place + self.trees[place..].partition_point(|&other| other == tree);
                self.ids[place..end].binary_search(&node).map(|at| place + at)
            }
        };
        found.or_else(|_| malformed(format!("tree {tree} has no node {node}")))
    }
}

/// The trees of a regressor or classifier, whose votes are in the attributes that begin with `votes`.
fn forest(cx: &mut NodeCx<'_, '_>, votes: &str) -> Result<Forest> {
    let given = |name: &str| cx.long_ints(name);
    let trees = given("nodes_treeids")?.unwrap_or_default();
    let count = trees.len();
    let ids = entries("nodes_nodeids", given("nodes_nodeids")?, count)?;
    let features = entries("nodes_featureids", given("nodes_featureids")?, count)?;
    let pass = entries("nodes_truenodeids", given("nodes_truenodeids")?, count)?;
    let fail = entries("nodes_falsenodeids", given("nodes_falsenodeids")?, count)?;
    let modes = cx.long_strs("nodes_modes")?;
    check_entries("nodes_modes", modes.map(Texts::len), count)?;
    let nan = given("nodes_missing_value_tracks_true")?.unwrap_or_default();
    let (values, wide) = numbers(cx, "nodes_values")?.unwrap_or((Numbers::F32(&[]), false));
    check_entries("nodes_values", Some(values.len()), count)?;
    let nodes = Nodes::new(trees, ids)?;
    let (mut branches, mut leaves) = (0, 0);
    let places: Vec<NodePlace> = modes
        .into_iter()
        .flat_map(Texts::iter)
        .map(|mode| {
            let counter = if mode == "LEAF" { &mut leaves } else { &mut branches };
            *counter += 1;
            if mode == "LEAF" { NodePlace::Leaf(*counter - 1) } else { NodePlace::Branch(*counter - 1) }
        })
        .collect();
    let dtype = if wide || cx.b.dtype(cx.input(0)?) == DType::F64 { DType::F64 } else { DType::F32 };
    let mut forest = Forest {
        dtype,
        branches: Vec::with_capacity(branches as usize),
        leaves: Ballots::default(),
        roots: vec![],
    };
    for (at, mode) in modes.into_iter().flat_map(Texts::iter).enumerate() {
        if at == 0 || trees[at] != trees[at - 1] {
            forest.roots.push(places[at]);
        }
        if mode == "LEAF" {
            continue;
        }
        let Some(test) = test(mode, values.get(at)) else {
            let allowed = "BRANCH_LEQ, BRANCH_LT, BRANCH_GTE, BRANCH_GT, BRANCH_EQ, BRANCH_NEQ, LEAF";
            return not_one_of("nodes_modes", mode, allowed);
        };
        forest.branches.push(Branch {
            feature: feature(features[at])?,
            test,
            nan_passes: nan.get(at) == Some(&1),
            pass: places[nodes.find(trees[at], pass[at], at)?].into(),
            fail: places[nodes.find(trees[at], fail[at], at)?].into(),
        });
    }
    let name = |part: &str| format!("{votes}_{part}");
    let targets = given(&name("ids"))?.unwrap_or_default();
    let of_trees = entries(&name("treeids"), given(&name("treeids"))?, targets.len())?;
    let of_nodes = entries(&name("nodeids"), given(&name("nodeids"))?, targets.len())?;
    let (weights, wide) = numbers(cx, &name("weights"))?.unwrap_or((Numbers::F32(&[]), false));
    check_entries(&name("weights"), Some(weights.len()), targets.len())?;
    if wide {
        forest.dtype = DType::F64;
    }
    let mut near = 0;
    forest.leaves = Ballots::collect(leaves as usize, targets.len(), |at| {
        near = nodes.find(of_trees[at], of_nodes[at], near)?;
        let NodePlace::Leaf(leaf) = places[near] else {
            return malformed(format!(
                "node {} of tree {} votes, but is not a leaf",
                of_nodes[at], of_trees[at]
            ));
        };
        let Ok(target) = u32::try_from(targets[at]) else {
            return malformed(format!("a vote for target {}", targets[at]));
        };
        Ok((leaf, Vote { target, weight: weights.get(at) }))
    })?;
    Ok(forest)
}

fn count_of_targets(cx: &NodeCx<'_, '_>) -> Result<usize> {
    match cx.optional_int("n_targets")? {
        None => Ok(1),
        Some(count) if (1..=1 << 20).contains(&count) => Ok(count as usize),
        Some(count) => malformed(format!("n_targets is {count}")),
    }
}

/// Scores and the numbers that the sums begin with.
fn with_base(cx: &mut NodeCx<'_, '_>, dtype: DType, scores: ValueId, targets: usize) -> Result<ValueId> {
    match numbers(cx, "base_values")? {
        Some((base, _)) if base.len() == targets => {
            let base = forest::constant(cx, dtype, &[targets], base.to_vec());
            cx.b.binary(BinaryFn::Add, scores, base)
        }
        Some((base, _)) if base.len() > 0 => {
            malformed(format!("{} base_values for {targets} targets", base.len()))
        }
        _ => Ok(scores),
    }
}

fn regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = Transform::of(cx)?;
    let aggregate = match cx.str("aggregate_function")?.as_str() {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return not_one_of("aggregate_function", other, "AVERAGE, SUM, MIN, MAX"),
    };
    let targets = count_of_targets(cx)?;
    let forest = forest(cx, "target")?;
    let dtype = forest.dtype;
    let scores = forest.scores(cx, targets, aggregate)?;
    let scores = with_base(cx, dtype, scores, targets)?;
    let scores = cx.b.cast(scores, DType::F32)?;
    Ok(vec![if targets == 1 { transform.apply_to_one(cx, scores)? } else { transform.apply(cx, scores)? }])
}

/// With two classes, and votes for one of them only, there is one score; see `tests/conformance/ml.md`.
fn classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = Transform::of(cx)?;
    let labels = class_labels(cx, "classlabels_int64s")?;
    let forest = forest(cx, "class")?;
    let classes = labels.len();
    let votes = forest.leaves.votes();
    let positive = votes.iter().all(|vote| vote.weight >= 0.0);
    let only = (0..classes)
        .filter(|_| classes == 2)
        .find(|&class| votes.iter().all(|vote| vote.target as usize == class));
    let dtype = forest.dtype;
    let sums = forest.scores(cx, classes, Aggregate::Sum)?;
    let base = numbers(cx, "base_values")?.map_or(vec![], |(base, _)| base.to_vec());
    let first = |cx: &mut NodeCx<'_, '_>, base: &[f64]| -> Result<ValueId> {
        let scores = cx.b.slice_axis(sums, 1, Dim::ZERO, Dim::ONE)?;
        let Some(&base) = base.first() else { return Ok(scores) };
        cx.b.binary_scalar(BinaryFn::Add, scores, base)
    };
    let above = |cx: &mut NodeCx<'_, '_>, score: ValueId, bound: f64| -> Result<ValueId> {
        let bound = cx.b.scalar(dtype, bound);
        let is_above = cx.b.compare(CompareFn::Gt, score, bound)?;
        let is_above = cx.b.cast(is_above, DType::I64)?;
        cx.b.squeeze(is_above, &[1])
    };
    let bound = if positive { 0.5 } else { 0.0 };
    if classes == 1 && base.len() < 2 {
        // The label is that of a class that has no name, or of the one that has not been chosen.
        let score = first(cx, &base)?;
        let label = above(cx, score, 0.0)?;
        let score = cx.b.cast(score, DType::F32)?;
        return Ok(vec![label, transform.apply_to_one(cx, score)?]);
    }
    // One number for two classes is the first one's, if that has votes.
    let shares = classes == 2 && base.len() == 1;
    if only == Some(0) && base.len() < 2 {
        let score = first(cx, &base)?;
        let second = above(cx, score, bound)?;
        let score = cx.b.cast(score, DType::F32)?;
        let scores = transform.apply_to_two(cx, score, !positive)?;
        return Ok(vec![labels_at(cx, &labels, second)?, scores]);
    }
    let scores = match (shares, only) {
        (true, None) => {
            let base = forest::constant(cx, dtype, &[2], vec![base[0], 0.0]);
            cx.b.binary(BinaryFn::Add, sums, base)?
        }
        (true, Some(_)) => sums,
        (false, _) => with_base(cx, dtype, sums, classes)?,
    };
    let best = match only {
        Some(class) => {
            let score = cx.b.slice_axis(scores, 1, Dim::from(class), Dim::ONE)?;
            above(cx, score, bound)?
        }
        None => {
            let best = cx.b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[scores])?;
            cx.b.squeeze(best, &[1])?
        }
    };
    let scores = cx.b.cast(scores, DType::F32)?;
    Ok(vec![labels_at(cx, &labels, best)?, transform.apply(cx, scores)?])
}

/// Numbers of the modes of TreeEnsemble.
const MODES: [&str; 6] = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"];
const MEMBER: i64 = 6;

fn ensemble(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = match cx.int("post_transform")? {
        0 => Transform::None,
        1 => Transform::Softmax,
        2 => Transform::Logistic,
        3 => Transform::SoftmaxZero,
        4 => Transform::Probit,
        other => return not_one_of("post_transform", other, "0, 1, 2, 3, 4"),
    };
    let aggregate = match cx.int("aggregate_function")? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return not_one_of("aggregate_function", other, "0, 1, 2, 3"),
    };
    let targets = count_of_targets(cx)?;
    let tensor = |name: &str| match cx.tensor(name)? {
        Some(data) => Ok(data),
        None => malformed(format!("{name} is not given")),
    };
    let splits = floats("nodes_splits", &tensor("nodes_splits")?)?.0;
    let count = splits.len();
    let Some(modes) = tensor("nodes_modes")?.to_i64s() else { return malformed("nodes_modes is not of u8") };
    let modes = entries("nodes_modes", Some(modes.as_slice()), count)?;
    let given = |name: &str| entries(name, cx.long_ints(name)?, count);
    let features = given("nodes_featureids")?;
    let (pass, fail) = (given("nodes_truenodeids")?, given("nodes_falsenodeids")?);
    let (pass_leaves, fail_leaves) = (given("nodes_trueleafs")?, given("nodes_falseleafs")?);
    let nan = cx.long_ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
    let sets = match cx.tensor("membership_values")? {
        Some(data) => floats("membership_values", &data)?.0,
        None => vec![],
    };
    let mut sets = sets.into_iter();
    let weights = floats("leaf_weights", &tensor("leaf_weights")?)?.0;
    let leaf_targets = entries("leaf_targetids", cx.long_ints("leaf_targetids")?, weights.len())?;
    let place = |at: i64, is_leaf: bool| {
        let limit = if is_leaf { weights.len() } else { count };
        match usize::try_from(at) {
            Ok(at) if at < limit && is_leaf => Ok(NodePlace::Leaf(at as u32)),
            Ok(at) if at < limit => Ok(NodePlace::Branch(at as u32)),
            _ => {
                let what = if is_leaf { "leaves" } else { "nodes" };
                malformed(format!("a node is followed by number {at} of {limit} {what}"))
            }
        }
    };
    let x = cx.input("X")?;
    let dtype = if cx.b.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    let mut forest =
        Forest { dtype, branches: Vec::with_capacity(count), leaves: Ballots::default(), roots: vec![] };
    for at in 0..count {
        let test = match modes[at] {
            MEMBER => Test::Member(Box::new(sets.by_ref().take_while(|member| !member.is_nan()).collect())),
            mode => {
                let name = usize::try_from(mode).ok().and_then(|mode| MODES.get(mode));
                match name.and_then(|name| test(name, splits[at])) {
                    Some(test) => test,
                    None => return not_one_of("nodes_modes", mode, "0 to 6"),
                }
            }
        };
        forest.branches.push(Branch {
            feature: feature(features[at])?,
            test,
            nan_passes: nan.get(at) == Some(&1),
            pass: place(pass[at], pass_leaves[at] != 0)?.into(),
            fail: place(fail[at], fail_leaves[at] != 0)?.into(),
        });
    }
    for (&target, &weight) in leaf_targets.iter().zip(&weights) {
        let Ok(target) = u32::try_from(target) else {
            return malformed(format!("a leaf votes for target {target}"));
        };
        forest.leaves.push(&[Vote { target, weight }]);
    }
    for root in cx.ints("tree_roots")?.unwrap_or_default() {
        forest.roots.push(place(root, false)?);
    }
    let given = cx.b.dtype(x);
    let scores = forest.scores(cx, targets, aggregate)?;
    let scores =
        if targets == 1 { transform.apply_to_one(cx, scores)? } else { transform.apply(cx, scores)? };
    Ok(vec![cx.b.cast(scores, given)?])
}

#[cfg(test)]
mod tests {
    use onnxc_ir::graph::Tensor;
    use onnxc_ops::Attr;
    use onnxc_ops::node_case::{Case, close, elements};

    /// `x[feature] <= 0 ? (1, target 0) : (2, target 1)`.
    fn stump(name: &'static str, votes: &str) -> Case {
        let of = |part: &str| format!("{votes}_{part}");
        crate::tests::case("ai.onnx.ml", name, 3)
            .ints("nodes_treeids", &[4, 4, 4])
            .ints("nodes_nodeids", &[0, 1, 2])
            .ints("nodes_featureids", &[1, 0, 0])
            .floats("nodes_values", &[0.0, 0.0, 0.0])
            .strs("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"])
            .ints("nodes_truenodeids", &[1, 0, 0])
            .ints("nodes_falsenodeids", &[2, 0, 0])
            .ints(&of("treeids"), &[4, 4])
            .ints(&of("nodeids"), &[1, 2])
            .ints(&of("ids"), &[0, 1])
            .floats(&of("weights"), &[1.0, 2.0])
    }

    fn regressor() -> Case {
        stump("TreeEnsembleRegressor", "target").int("n_targets", 2)
    }

    fn classifier() -> Case {
        stump("TreeEnsembleClassifier", "class").ints("classlabels_int64s", &[7, 9]).outputs(2)
    }

    const X: [f32; 4] = [9.0, -1.0, 9.0, 1.0];

    #[test]
    fn votes_for_each_target() {
        regressor().input(&[2, 2], &X).gives(0, &[2, 2], &[1., 0., 0., 2.]);
        regressor().symbolic(&["n", "f"], &[2, 2], &X).gives(0, &[2, 2], &[1., 0., 0., 2.]);
        regressor().floats("base_values", &[0.5, 3.0]).input(&[2, 2], &X).gives(
            0,
            &[2, 2],
            &[1.5, 3., 0.5, 5.],
        );
        regressor().input(&[0, 2], &[0f32; 0]).gives(0, &[0, 2], &[]);
        regressor().input(&[2, 2], &[5i32, 0, 5, 1]).gives(0, &[2, 2], &[1., 0., 0., 2.]);
    }

    /// ONNX Runtime leaves one score as it is, and transforms those of several targets.
    #[test]
    fn transforms_of_one_target_and_of_several() {
        let case = |targets: i64| {
            let case = stump("TreeEnsembleRegressor", "target").str("post_transform", "SOFTMAX");
            case.ints("target_ids", &[0, targets - 1]).int("n_targets", targets).input(&[2, 2], &X)
        };
        case(1).gives(0, &[2, 1], &[1., 2.]);
        case(2).gives(0, &[2, 2], &[0.731059, 0.268941, 0.119203, 0.880797]);
    }

    /// A threshold of f64 between two neighbours of f32 separates them.
    #[test]
    fn thresholds_of_f64_are_not_rounded() {
        let values = Tensor::from_slice(&[3], &[0.1f64, 0.0, 0.0]);
        let case = stump("TreeEnsembleRegressor", "target").int("n_targets", 2);
        let case = case.without("nodes_values").attr("nodes_values_as_tensor", Attr::Tensor(values));
        // 0.1 as f32 is larger.
        case.input(&[2, 2], &[9.0f32, 0.1, 9.0, 0.09]).gives(0, &[2, 2], &[0., 2., 1., 0.]);
    }

    /// `x == 0 ? 0 : x == 1 ? 1 : .. : count`, of few leaves and of more than a mask has bits.
    #[test]
    fn chains_of_equalities_count() {
        for count in [3i64, 100] {
            let nodes = 2 * count + 1;
            let is_leaf = |node: i64| node % 2 == 1 || node == nodes - 1;
            let of = |value: &dyn Fn(i64) -> i64| (0..nodes).map(value).collect::<Vec<_>>();
            let modes: Vec<&str> =
                (0..nodes).map(|node| if is_leaf(node) { "LEAF" } else { "BRANCH_EQ" }).collect();
            let leaves: Vec<i64> = (0..nodes).filter(|&node| is_leaf(node)).collect();
            let numbers = |values: &[i64]| values.iter().map(|&value| value as f32).collect::<Vec<_>>();
            let next = |step: i64| move |node: i64| if is_leaf(node) { 0 } else { node + step };
            let case = crate::tests::case("ai.onnx.ml", "TreeEnsembleRegressor", 3)
                .ints("nodes_treeids", &of(&|_| 0))
                .ints("nodes_nodeids", &of(&|node| node))
                .ints("nodes_featureids", &of(&|_| 0))
                .floats("nodes_values", &numbers(&of(&|node| node / 2)))
                .strs("nodes_modes", &modes)
                .ints("nodes_truenodeids", &of(&next(1)))
                .ints("nodes_falsenodeids", &of(&next(2)))
                .ints("target_treeids", &vec![0; leaves.len()])
                .ints("target_nodeids", &leaves)
                .ints("target_ids", &vec![0; leaves.len()])
                .floats("target_weights", &numbers(&(0..=count).collect::<Vec<_>>()))
                .int("n_targets", 1);
            let x = [0.0, 1.0, 1.5, 2.0, -1.0, f32::NAN, f32::INFINITY, 99.0, 1e9];
            let other = count as f64;
            let wanted = [0.0, 1.0, other, 2.0, other, other, other, other.min(99.0), other];
            case.symbolic(&["n", "f"], &[9, 1], &x).gives(0, &[9, 1], &wanted);
        }
    }

    #[test]
    fn the_class_of_the_greater_score() {
        let case = classifier().input(&[2, 2], &X);
        case.gives(0, &[2], &[7., 9.]);
        case.gives(1, &[2, 2], &[1., 0., 0., 2.]);
    }

    /// TreeEnsembleRegressor and TreeEnsembleClassifier are deprecated in version 5, and mean what they did.
    #[test]
    fn every_version_votes_alike() {
        for version in [1, 3, 5] {
            regressor().at(version).input(&[2, 2], &X).gives(0, &[2, 2], &[1., 0., 0., 2.]);
            let case = classifier().at(version).input(&[2, 2], &X);
            case.gives(0, &[2], &[7., 9.]);
            case.gives(1, &[2, 2], &[1., 0., 0., 2.]);
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let message = |case: Case| case.input(&[2, 2], &X).run().unwrap_err().message;
        let told = [
            (regressor().ints("nodes_falsenodeids", &[5, 0, 0]), "tree 4 has no node 5"),
            (regressor().ints("nodes_falsenodeids", &[0, 0, 0]), "follows itself"),
            (regressor().ints("nodes_nodeids", &[0, 1, 1]), "tree 4 has two nodes 1"),
            (regressor().ints("nodes_featureids", &[-1, 0, 0]), "feature -1"),
            (
                regressor().ints("nodes_featureids", &[0, 0]),
                "nodes_featureids has 2 entries, and there are 3 nodes",
            ),
            (regressor().ints("nodes_featureids", &[2, 0, 0]), "leaves"),
            (
                regressor().strs("nodes_modes", &["BRANCH", "LEAF", "LEAF"]),
                "nodes_modes is `BRANCH`; it may be one of BRANCH_LEQ",
            ),
            (regressor().int("n_targets", 1), "a leaf votes for target 1 of 1"),
            (regressor().int("n_targets", 0), "n_targets is 0"),
            (regressor().ints("target_nodeids", &[0, 2]), "node 0 of tree 4 votes, but is not a leaf"),
            (regressor().floats("base_values", &[1.0, 2.0, 3.0]), "3 base_values for 2 targets"),
            (regressor().str("aggregate_function", "MEAN"), "it may be one of AVERAGE, SUM, MIN, MAX"),
            (regressor().ints("nodes_treeids", &[]), "nodes_nodeids has 3 entries, and there are 0 nodes"),
        ];
        for (case, part) in told {
            let text = message(case);
            assert!(text.contains(part), "{text}, not {part}");
        }
    }

    /// Sums begin with +0: of no votes, and of a vote of -0.
    #[test]
    fn targets_without_votes_are_plus_zero() {
        for aggregate in ["SUM", "AVERAGE", "MIN", "MAX"] {
            for weight in [2.0, -0.0] {
                for targets in [1, 2] {
                    let case = stump("TreeEnsembleRegressor", "target").str("aggregate_function", aggregate);
                    let case = case.ints("target_treeids", &[4]).ints("target_nodeids", &[2]);
                    let case = case.ints("target_ids", &[0]).floats("target_weights", &[weight]);
                    let case = case.int("n_targets", targets);
                    let scores = elements(&case.input(&[2, 2], &X).run().unwrap()[0]);
                    // That of the leaf with the vote may be -0, as the least and the greatest number.
                    let without = [&scores[..targets as usize], &scores[targets as usize + 1..]].concat();
                    assert!(
                        without.iter().all(|score| score.to_bits() == 0),
                        "{aggregate} {weight}: {scores:?}"
                    );
                    let sums = matches!(aggregate, "SUM" | "AVERAGE");
                    assert!(!sums || scores.iter().all(|score| score.is_sign_positive()), "{scores:?}");
                }
            }
        }
    }

    /// "if a value is missing (NaN), use the 'true' or 'false' branch based on the value in this array", in every mode.
    #[test]
    fn missing_values_go_where_the_attribute_says() {
        let x = [f32::NAN, 1.5, 2.0, -1.0];
        let modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"];
        let passes = [
            [true, false, true],
            [false, false, true],
            [true, true, false],
            [false, true, false],
            [true, false, false],
            [false, true, true],
        ];
        for (at, (mode, passes)) in modes.into_iter().zip(passes).enumerate() {
            // Bounds that are a category, and that are none.
            for bound in [1.5f32, 300.25, 2.0] {
                for tracks in [None, Some(0), Some(1)] {
                    let x = x.map(|x| if x == 1.5 { bound } else { x * bound / 1.5 });
                    let wanted = [tracks == Some(1)].into_iter().chain(passes);
                    let wanted: Vec<f64> = wanted.map(|pass| if pass { 10.0 } else { 20.0 }).collect();
                    let mut old = crate::tests::case("ai.onnx.ml", "TreeEnsembleRegressor", 3)
                        .ints("nodes_treeids", &[0, 0, 0])
                        .ints("nodes_nodeids", &[0, 1, 2])
                        .ints("nodes_featureids", &[0, 0, 0])
                        .floats("nodes_values", &[bound, 0.0, 0.0])
                        .strs("nodes_modes", &[mode, "LEAF", "LEAF"])
                        .ints("nodes_truenodeids", &[1, 0, 0])
                        .ints("nodes_falsenodeids", &[2, 0, 0])
                        .ints("target_treeids", &[0, 0])
                        .ints("target_nodeids", &[1, 2])
                        .ints("target_ids", &[0, 0])
                        .floats("target_weights", &[10.0, 20.0]);
                    let mut new = stump_of_5(at as u8, bound, [0, 0], [10.0, 20.0]).int("n_targets", 1);
                    if let Some(tracks) = tracks {
                        old = old.ints("nodes_missing_value_tracks_true", &[tracks, 0, 0]);
                        new = new.ints("nodes_missing_value_tracks_true", &[tracks]);
                    }
                    old.input(&[4, 1], &x).gives(0, &[4, 1], &wanted);
                    new.input(&[4, 1], &x).gives(0, &[4, 1], &wanted);
                }
            }
        }
    }

    /// A tree of one node of TreeEnsemble 5, on feature 0, and its leaf for true and for false.
    fn stump_of_5(mode: u8, split: f32, targets: [i64; 2], weights: [f32; 2]) -> Case {
        crate::tests::case("ai.onnx.ml", "TreeEnsemble", 5)
            .attr("nodes_modes", Attr::Tensor(Tensor::from_slice(&[1], &[mode])))
            .attr("nodes_splits", Attr::Tensor(Tensor::from_slice(&[1], &[split])))
            .ints("nodes_featureids", &[0])
            .ints("nodes_truenodeids", &[0])
            .ints("nodes_trueleafs", &[1])
            .ints("nodes_falsenodeids", &[1])
            .ints("nodes_falseleafs", &[1])
            .ints("tree_roots", &[0])
            .ints("leaf_targetids", &targets)
            .attr("leaf_weights", Attr::Tensor(Tensor::from_slice(&[2], &weights)))
    }

    /// As in ONNX Runtime: the base value is class 0's, if that has votes.
    #[test]
    fn one_base_value_for_two_classes() {
        let case = |ids: &[i64]| {
            let case = stump("TreeEnsembleClassifier", "class").ints("class_ids", ids).outputs(2);
            case.ints("classlabels_int64s", &[7, 9]).floats("base_values", &[0.25]).input(&[2, 2], &X)
        };
        case(&[1, 1]).gives(1, &[2, 2], &[0., 1., 0., 2.]);
        case(&[1, 1]).gives(0, &[2], &[9., 9.]);
        case(&[0, 1]).gives(1, &[2, 2], &[1.25, 0., 0.25, 2.]);
        case(&[0, 0]).gives(1, &[2, 2], &[-0.25, 1.25, -1.25, 2.25]);
        let logistic = case(&[1, 1]).str("post_transform", "LOGISTIC");
        logistic.gives(1, &[2, 2], &[0.5, 0.7310586, 0.5, 0.8807970]);
    }

    #[test]
    fn transforms_by_number() {
        let of = |transform: i64| {
            let case = stump_of_5(0, 0.0, [0, 1], [1.0, 2.0]).int("n_targets", 2);
            let case = case.int("post_transform", transform);
            elements(&case.input(&[1, 1], &[1f32]).run().unwrap()[0])
        };
        let near = |found: Vec<f64>, wanted: [f64; 2]| {
            assert!(found.iter().zip(wanted).all(|(&a, b)| close(a, b, 1e-6)), "{found:?}, not {wanted:?}");
        };
        let e2 = 2f64.exp();
        near(of(0), [0.0, 2.0]);
        near(of(1), [1.0 / (1.0 + e2), e2 / (1.0 + e2)]);
        near(of(2), [0.5, e2 / (1.0 + e2)]);
    }
}
