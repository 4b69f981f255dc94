//! For tests of every agreement of every row: its text is sound, and shapes that violate it are refused, by an error where constants
//! conflict, otherwise by an assumption that the run finds broken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::*;
use crate::{Arity, AttrKind, NoBodies, OpDef};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{DType, Graph, Origin, Sym, Symbol, Tensor, TensorType};
use onnxc_ir::interp;
use text::parse;

/// Names that an expression mentions, and what it takes the length, rank or number of elements of.
fn names<'t>(expr: &Expr<'t>, plain: &mut Vec<&'t str>, shapes: &mut Vec<&'t str>) {
    match expr {
        Expr::Number(_) => {}
        Expr::Name(name) | Expr::Len(name) | Expr::Prod(name) => plain.push(*name),
        Expr::Rank(name) | Expr::Count(name) => shapes.push(*name),
        Expr::Binary(_, sides) => sides.iter().for_each(|side| names(side, plain, shapes)),
    }
}

/// Texts name what their rows have.
pub fn assert_named(rows: impl Iterator<Item = &'static OpDef>) {
    for row in rows {
        for text in row.shapes {
            let agreement = parse(text).unwrap_or_else(|error| panic!("{}-{}: {error}", row.name, row.since));
            let fail = |what: &str| panic!("{}-{}: `{text}`: {what}", row.name, row.since);
            let input = |name: &str| row.inputs.iter().any(|param| param.name == name);
            let attribute = |name: &str| row.attributes.iter().any(|attribute| attribute.name == name);
            for guard in &agreement.guards {
                let (Guard::Given { name, .. } | Guard::Is { name, .. }) = guard;
                if !(attribute(name) || matches!(guard, Guard::Given { .. }) && input(name)) {
                    fail(&format!("{name} is neither an attribute nor an input"));
                }
            }
            let (mut plain, mut shapes) = (Vec::new(), Vec::new());
            let mut terms = Vec::new();
            match &agreement.claim {
                Claim::Shape { input, shapes: all } => {
                    shapes.push(*input);
                    terms.extend(all.iter().flatten());
                }
                Claim::Broadcast { from, to } => {
                    for operand in from.iter().chain(to) {
                        match operand {
                            Operand::Shape(all) => terms.extend(all),
                            Operand::Name(name) if !input(name) => plain.push(*name),
                            Operand::Name(_) => {}
                        }
                    }
                }
                Claim::Relation { left, right, .. } => {
                    names(left, &mut plain, &mut shapes);
                    names(right, &mut plain, &mut shapes);
                }
            }
            for term in terms {
                match term {
                    Term::Any => {}
                    Term::Run { name, count } => {
                        plain.extend(name);
                        count.iter().for_each(|count| names(count, &mut plain, &mut shapes));
                    }
                    Term::Dim(sizes) => sizes.iter().for_each(|size| names(size, &mut plain, &mut shapes)),
                }
            }
            for name in plain {
                // Attributes may be in capitals, too: K and N of some products are.
                if name.starts_with(|c: char| c.is_ascii_lowercase()) && !attribute(name) {
                    fail(&format!("{name} is not an attribute"));
                }
            }
            if let Some(name) = shapes.into_iter().find(|name| !input(name)) {
                fail(&format!("{name} is not an input"));
            }
        }
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// The inputs of a node as shapes; `None` for one that is left out.
type Shapes = Vec<Option<Vec<usize>>>;

/// What names of a row's patterns stand for in drawn shapes.
#[derive(Default)]
struct Drawn {
    dims: BTreeMap<&'static str, i64>,
    runs: BTreeMap<&'static str, Vec<usize>>,
}

/// A node of a row, without operands.
struct Node {
    row: &'static OpDef,
    attributes: HashMap<String, Attr<'static>>,
}

impl Node {
    /// Attributes drawn so that agreements have something to say.
    fn drawn(row: &'static OpDef, dice: &mut Dice) -> Node {
        let mut attributes = HashMap::new();
        for attribute in row.attributes {
            let required = matches!(attribute.default, AttrDefault::Required(_));
            let value = match (attribute.name, attribute.default.kind()) {
                ("direction", _) if row.name == "BitShift" => Attr::Str("LEFT".into()),
                ("direction", _) if dice.below(2) == 0 => Attr::Str("bidirectional".into()),
                ("coordinate_transformation_mode", _) if row.name == "Resize" && dice.below(2) == 0 => {
                    Attr::Str("tf_crop_and_resize".into())
                }
                ("update_rule", _) => Attr::Str("linear".into()),
                ("kernel_shape" | "pooled_shape", _) if required || dice.below(2) == 0 => {
                    Attr::Ints(vec![2; 1 + dice.below(2)].into())
                }
                ("perm", _) => Attr::Ints((0..1 + dice.below(3) as i64).rev().collect::<Vec<_>>().into()),
                ("starts" | "ends" | "paddings" | "pads", AttrKind::Ints) if row.inputs.len() == 1 => {
                    Attr::Ints(vec![1; 1 + dice.below(4)].into())
                }
                ("axes", AttrKind::Ints) if dice.below(2) == 0 => {
                    Attr::Ints(vec![0; 1 + dice.below(2)].into())
                }
                ("scales", _) => Attr::Floats(vec![2.0; 1 + dice.below(3)].into()),
                ("equation", _) => Attr::Str("i->i".into()),
                ("hidden_size", _) if dice.below(2) == 0 => Attr::Int(2),
                ("num_heads", _) if matches!(row.name, "GroupQueryAttention" | "SparseAttention") => {
                    Attr::Int(2 + dice.below(2) as i64)
                }
                ("char_embedding_size" | "conv_window_size" | "embedding_size", _) if dice.below(2) == 0 => {
                    Attr::Int(2)
                }
                (
                    "blocksize" | "num_groups" | "groups" | "q_num_heads" | "kv_num_heads" | "group"
                    | "num_heads",
                    _,
                ) => Attr::Int(2),
                ("num_branches" | "n_group", _) if dice.below(2) == 0 => Attr::Int(2),
                ("topk_group", _) => Attr::Int(1 + dice.below(2) as i64),
                ("top_k", _) if row.name == "MoEGroupRouter" => Attr::Int(1 + dice.below(3) as i64),
                ("max_ngram_size", _) => Attr::Int(2 + dice.below(3) as i64),
                ("kv_cache_bit_width", _) if dice.below(2) == 0 => Attr::Int(4),
                ("k_quant_type" | "v_quant_type", _) => {
                    Attr::Str(["NONE", "PER_TENSOR", "PER_CHANNEL"][dice.below(3)].into())
                }
                ("channels", AttrKind::Int) => Attr::Int(1 + dice.below(4) as i64),
                ("offset_group", _) => Attr::Int(1 + dice.below(3) as i64),
                ("block_size", _) if !row.domain.is_empty() => Attr::Int(2),
                ("K" | "N", _) => Attr::Int(4),
                ("block_size", _) => Attr::Int(2 * dice.below(2) as i64),
                ("rotary_embedding_dim", _) => Attr::Int(4 * dice.below(3) as i64),
                ("time_axis", _) => Attr::Int(dice.below(3) as i64),
                (
                    "transA" | "transB" | "broadcast" | "spatial" | "layout" | "axis" | "batch_dims"
                    | "channels_last" | "transBatchA" | "transBatchB",
                    AttrKind::Int,
                ) if dice.below(2) == 0 => Attr::Int(dice.below(2) as i64),
                ("k", AttrKind::Int) if !row.domain.is_empty() => Attr::Int(1 + dice.below(3) as i64),
                ("k" | "height_scale" | "width_scale", AttrKind::Int) => Attr::Int(1),
                ("to" | "output_height" | "num_outputs", AttrKind::Int) => Attr::Int(1),
                (_, AttrKind::Int) if required => Attr::Int(1),
                (_, AttrKind::Float) if required => Attr::Float(2.0),
                _ => continue,
            };
            attributes.insert(attribute.name.to_string(), value);
        }
        Node { row, attributes }
    }

    fn dtype(&self, at: usize) -> DType {
        let param = self.row.inputs.get(at).or(self.row.inputs.last()).expect("the row has inputs");
        let variable = self.row.types.iter().find(|(name, _)| *name == param.ty);
        let preferred = [DType::F32, DType::I64, DType::Bool];
        match variable {
            Some((_, allowed)) => {
                let known = preferred.iter().find(|dtype| allowed.contains(dtype));
                *known.or(allowed.first()).unwrap_or(&DType::F32)
            }
            None if param.ty == "tensor(float)" => DType::F32,
            None if param.ty == "tensor(int32)" => DType::I32,
            None => DType::I64,
        }
    }

    /// Shapes that agree, with luck: names in patterns get sizes, and what no pattern has is drawn.
    fn shapes(&self, dice: &mut Dice) -> Shapes {
        let mut drawn = Drawn::default();
        let mut shapes: Shapes = Vec::new();
        let (optional, rank) = (dice.below(3), 1 + dice.below(3));
        let common: Vec<usize> = (0..rank).map(|_| 2 + dice.below(3)).collect();
        for param in self.row.inputs {
            if param.arity == Arity::Optional && (optional == 0 || optional == 1 && dice.below(2) == 0) {
                shapes.push(None);
                continue;
            }
            let copies = if param.arity.is_variadic() { 2 } else { 1 };
            for _ in 0..copies {
                shapes.push(Some(self.drawn_shape(param.name, dice, &common, &mut drawn)));
            }
        }
        while shapes.last() == Some(&None) {
            shapes.pop();
        }
        shapes
    }

    fn drawn_shape(&self, input: &str, dice: &mut Dice, common: &[usize], drawn: &mut Drawn) -> Vec<usize> {
        // The shapes of the first agreement that has some name the most.
        let (mut chosen, mut first) = (Vec::<Vec<Term<'static>>>::new(), 0);
        for text in self.row.shapes {
            let agreement = parse(text).unwrap();
            let holds = agreement.guards.iter().all(|guard| match guard {
                Guard::Is { name, value, wanted } => (self.setting(name) == *value) == *wanted,
                Guard::Given { name, wanted } => {
                    self.attributes.contains_key(*name) == *wanted || dice.below(2) == 0
                }
            });
            match agreement.claim {
                Claim::Shape { input: own, shapes } if own == input && holds => {
                    first = if chosen.is_empty() { shapes.len() } else { first };
                    chosen.extend(shapes);
                }
                Claim::Relation { left: Expr::Count(own), right: Expr::Number(1), .. } if own == input => {
                    return vec![1; dice.below(2)];
                }
                _ => {}
            }
        }
        if chosen.is_empty() {
            return common[dice.below(2).min(common.len() - 1)..].to_vec();
        }
        let at = if dice.below(4) == 0 { dice.below(chosen.len()) } else { dice.below(first) };
        let terms = &chosen[at];
        let mut shape = Vec::new();
        for term in terms {
            match term {
                Term::Any => shape.push(2 + dice.below(3)),
                Term::Run { name, count } => {
                    let known = name.and_then(|name| drawn.runs.get(name).cloned());
                    let fixed = name.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
                    let length = count.as_ref().and_then(|count| self.number(count, drawn, common.len()));
                    let length =
                        length.and_then(|length| usize::try_from(length).ok()).unwrap_or(dice.below(5));
                    let own = match (known, fixed) {
                        (Some(known), _) => known,
                        (None, Some(_)) => vec![2; length],
                        (None, None) => (0..length.min(5)).map(|_| 2 + dice.below(2)).collect(),
                    };
                    if let (Some(name), None) = (name, fixed) {
                        drawn.runs.insert(name, own.clone());
                    }
                    shape.extend(own);
                }
                Term::Dim(sizes) => {
                    let size = &sizes[dice.below(sizes.len())];
                    shape.push(self.size(size, dice, drawn, common.len()));
                }
            }
        }
        shape
    }

    fn setting(&self, name: &str) -> String {
        let default =
            self.row.attributes.iter().find(|attribute| attribute.name == name).map(|own| own.default);
        match (self.attributes.get(name), default) {
            (Some(Attr::Int(number)), _) => number.to_string(),
            (Some(Attr::Str(text)), _) => text.clone(),
            (None, Some(AttrDefault::Int(number))) => number.to_string(),
            (None, Some(AttrDefault::Str(text))) => text.to_string(),
            _ => String::new(),
        }
    }

    fn size(&self, size: &Expr<'static>, dice: &mut Dice, drawn: &mut Drawn, rank: usize) -> usize {
        let mut plain = Vec::new();
        names(size, &mut plain, &mut Vec::new());
        let variable =
            |name: &&str| name.starts_with(|c: char| c.is_ascii_uppercase()) && self.setting(name).is_empty();
        for name in plain.into_iter().filter(variable) {
            let odd = i64::from(dice.below(6) == 0);
            drawn.dims.entry(name).or_insert(2 * (1 + dice.below(2) as i64) + odd);
        }
        self.number(size, drawn, rank)
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(2 + dice.below(3))
    }

    fn number(&self, expr: &Expr<'_>, drawn: &Drawn, rank: usize) -> Option<i64> {
        let run = |name: &str| match (drawn.runs.get(name), self.attributes.get(name)) {
            (Some(run), _) => Some(run.iter().map(|&size| size as i64).collect::<Vec<_>>()),
            (None, Some(Attr::Ints(list))) => Some(list.to_vec()),
            _ => None,
        };
        Some(match expr {
            Expr::Number(number) => *number,
            Expr::Rank(_) => rank as i64,
            Expr::Count(_) => return None,
            Expr::Len(name) => run(name)?.len() as i64,
            Expr::Prod(name) => run(name)?.iter().product(),
            Expr::Name(name) => match drawn.dims.get(name) {
                Some(size) => *size,
                None => self.setting(name).parse().ok()?,
            },
            Expr::Binary(operator, sides) => {
                let [a, b] = [0, 1].map(|at| self.number(&sides[at], drawn, rank));
                match operator {
                    Operator::Else => a.or(b)?,
                    Operator::Add => a? + b?,
                    Operator::Sub => a? - b?,
                    Operator::Mul => a? * b?,
                    Operator::Div => a? / b?.max(1),
                    Operator::Ceil => (a? + b? - 1) / b?.max(1),
                    Operator::Mod => a? % b?.max(1),
                }
            }
        })
    }

    /// Runs `with` on the node over these shapes, every dim a symbol of its own where `symbolic`.
    fn on<T>(
        &self,
        shapes: &Shapes,
        symbolic: bool,
        with: impl FnOnce(&mut NodeCx<'_, '_>) -> Result<T>,
    ) -> (Graph, Result<T>) {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("test", self.row.name, 0));
        let mut b = Builder::new(&mut graph, origin);
        let mut inputs = Vec::new();
        for (at, shape) in shapes.iter().enumerate() {
            inputs.push(shape.as_ref().map(|shape| {
                let dims = shape.iter().map(|&size| match symbolic {
                    true => Dim::sym(b.graph.symbols.push(Symbol { name: format!("n{at}") })),
                    false => Dim::from(size),
                });
                let ty = TensorType::new(self.dtype(at), dims.collect());
                b.input(&format!("x{at}"), ty, None)
            }));
        }
        let count = self.row.outputs.iter().filter(|output| output.arity == Arity::Required).count().max(1);
        let result = with(&mut NodeCx {
            b: &mut b,
            def: self.row,
            opset: self.row.since,
            inputs,
            compounds: Default::default(),
            given: Vec::new(),
            attributes: &self.attributes,
            outputs: count,
            wanted: &vec![true; count],
            declared: &vec![None; count],
            ranks: &vec![None; count],
            bodies: &mut NoBodies,
            tolerated: Vec::new(),
        });
        (graph, result)
    }
}

/// Number of the first agreement that a node breaks.
fn broken(cx: &mut NodeCx<'_, '_>) -> Option<(usize, Error)> {
    let mut checker = Checker { cx, dims: HashMap::new(), runs: HashMap::new() };
    let texts = checker.cx.def.shapes;
    texts.iter().enumerate().find_map(|(at, text)| {
        let agreement = parse(text).unwrap();
        checker.agreement(&agreement, text).err().map(|error| (at, error))
    })
}

/// All changes of one dim, and of one rank.
fn neighbours(shapes: &Shapes) -> Vec<Shapes> {
    let mut all = Vec::new();
    for (at, shape) in shapes.iter().enumerate() {
        let Some(shape) = shape else { continue };
        let mut put = |changed: Vec<usize>| {
            let mut own = shapes.clone();
            own[at] = Some(changed);
            all.push(own);
        };
        for axis in 0..shape.len() {
            for size in [shape[axis] + 1, shape[axis] + 2, 7, 1] {
                let mut changed = shape.clone();
                changed[axis] = size;
                put(changed);
            }
        }
        put([shape.as_slice(), &[3]].concat());
        put([&[3], shape.as_slice()].concat());
        put([&[1], shape.as_slice(), &[3, 3]].concat());
        put(shape[..shape.len().saturating_sub(1)].to_vec());
        put(vec![]);
    }
    all
}

fn sizes(shapes: &Shapes) -> Vec<i64> {
    shapes.iter().flatten().flatten().map(|&size| size as i64).collect()
}

/// Whether all assumptions of a graph of symbolic inputs hold for sizes; `None` where one of them has no value.
fn holds(graph: &Graph, sizes: &[i64]) -> Option<bool> {
    let value = |sym: Sym| sizes.get(sym.as_u32() as usize).copied();
    let mut all = true;
    for Requirement { left, relation, right } in graph.assumptions.requirements() {
        all &= relation.holds(left.eval(&value)?, right.eval(&value)?);
    }
    Some(all)
}

/// What is wrong with a run of a lowered node over symbolic inputs of shapes that disagree: it must fail, and name the
/// node or its inputs.
fn run_of(node: &Node, graph: &Graph, shapes: &Shapes) -> Option<String> {
    let tensors = shapes.iter().enumerate().filter_map(|(at, shape)| {
        let (shape, dtype) = (shape.clone()?, node.dtype(at));
        if dtype == DType::Str {
            let texts = vec![""; shape.iter().product()];
            return Some(Tensor::from_texts(&shape, &texts));
        }
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Some(Tensor::new(dtype, shape, vec![0; bytes].into()))
    });
    match interp::run(graph, &tensors.collect::<Vec<_>>()) {
        Ok(_) => Some("it runs".to_string()),
        Err(error) => {
            let text = error.to_string();
            let is_vague = !text.contains("test") || names_a_symbol(&text) || text.contains("is not 0");
            is_vague.then(|| format!("its run fails by `{text}`"))
        }
    }
}

/// What the runs of a graph could say without a name or a value: claims of assumptions, sizes that data decide, indices.
fn vague(graph: &Graph) -> Vec<String> {
    let mut problems = vec![];
    let mut look = |text: &str, node: &str| {
        let says = !WITHOUT_VALUES.iter().any(|known| text.contains(known));
        let has_value = text.contains(V) || text.contains(|c: char| c.is_ascii_digit());
        let is_old = ["is not 0", "(check", "a size is"].iter().any(|old| text.contains(old));
        if !node.contains("node `") || is_old || says && !has_value || names_a_symbol(text) {
            problems.push(format!("a run may say `{node}: {text}`"));
        }
    };
    for assumption in graph.assumptions.iter() {
        look(&assumption.claim.text, &assumption.node);
    }
    for symbol in graph.live_data_symbols() {
        // Without a text, it is right by construction.
        if graph.data[&symbol].says.is_some() {
            let text = graph.data[&symbol].sentence("");
            look(&text, &text);
        }
    }
    for &id in graph.order.iter().filter(|&&id| graph.nodes[id].op.takes_indices()) {
        look(&graph.indices_of(id).sentence(&[V.to_string()], [&V, &V, &V]), "node `");
    }
    problems.extend(graph.order.iter().flat_map(|&id| graph.nodes[id].op.bodies()).flat_map(vague));
    problems
}

/// What there is nothing to count of.
const WITHOUT_VALUES: [&str; 7] = [
    "the optional has no element",
    "what follows takes the rank of",
    "ranks are fixed",
    "no element along axis",
    "negative or no number",
    "longer than the signal",
    "not among the categories",
];

/// Whether a text has the name of a symbol that the model does not name.
fn names_a_symbol(text: &str) -> bool {
    text.as_bytes().windows(2).any(|pair| pair[0] == b'?' && pair[1].is_ascii_digit())
}

/// How many drawn nodes of a row are held against its agreements at most, and how many that agree are enough.
const DRAWN: usize = 40_000;
const ENOUGH: usize = 12;

/// Agreements that any shapes keep: they only name sizes for others.
const NAMING: [&str; 2] = ["if up: gate[D..]", "X[] | [C] | [_, C, ..]"];

/// Whether all that an agreement does is to name the axes of an input, for those behind it.
fn only_names(shapes: &[&str], at: usize) -> bool {
    let is_word = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let run = shapes[at]
        .split_once('[')
        .and_then(|(input, run)| is_word(input).then_some(run.strip_suffix("..]")?));
    NAMING.contains(&shapes[at])
        || run.is_some_and(|run| {
            let [first, later] = [format!("[{run}.."), format!(" {run}..")];
            is_word(run)
                && !shapes[..at].iter().any(|before| before.contains(&first) || before.contains(&later))
        })
}

/// What is found about one row.
#[derive(Default)]
struct Findings {
    /// Numbers of the agreements that some shapes break.
    broken: BTreeSet<usize>,
    /// Drawn nodes whose shapes agree, and how many of them are lowered over symbolic shapes.
    valid: usize,
    lowered: usize,
    problems: BTreeSet<String>,
}

impl Findings {
    /// Holds neighbours of shapes that agree against the agreements, which are checked for constants and for symbols.
    fn probe(&mut self, node: &Node, shapes: &Shapes) {
        let row = node.row;
        let (assumed, checked) = node.on(shapes, true, check);
        // A symbol may be what a count needs as a number.
        if checked.is_err() {
            return;
        }
        if holds(&assumed, &sizes(shapes)) != Some(true) {
            self.problems.insert(format!("{shapes:?} agree, and do not where they are symbols"));
        }
        let (graph, lowered) = node.on(shapes, true, |cx| {
            let results = cx.lower()?;
            let values = super::super::item::columns(&results);
            cx.b.graph.outputs = values.into_iter().map(|value| (String::new(), value)).collect();
            Ok(())
        });
        self.lowered += usize::from(lowered.is_ok());
        if lowered.is_ok() {
            self.problems.extend(vague(&graph));
        }
        let ranks = |shapes: &Shapes| -> Vec<Option<usize>> {
            shapes.iter().map(|shape| shape.as_ref().map(Vec::len)).collect()
        };
        for changed in neighbours(shapes) {
            let Some((at, error)) = node.on(&changed, false, |cx| Ok(broken(cx))).1.unwrap() else {
                continue;
            };
            self.broken.insert(at);
            if error.message.is_empty() {
                self.problems.insert(format!("`{}` says nothing", row.shapes[at]));
            }
            if ranks(&changed) != ranks(shapes) {
                continue;
            }
            // The number of axes that indices index is a rank, which symbols cannot express.
            if holds(&assumed, &sizes(&changed)) != Some(false) && row.name != "ScatterND" {
                self.problems.insert(format!("`{}` is not assumed of {changed:?}", row.shapes[at]));
            } else if lowered.is_ok()
                && let Some(problem) = run_of(node, &graph, &changed)
            {
                self.problems.insert(format!("`{}` of {changed:?}: {problem}", row.shapes[at]));
            }
        }
    }
}

/// What is wrong with one row, and whether it was lowered over symbolic shapes.
fn probed(row: &'static OpDef) -> (Vec<String>, bool) {
    let mut dice = Dice(row.since as u64);
    let mut findings = Findings::default();
    for _ in 0..DRAWN {
        let node = Node::drawn(row, &mut dice);
        let shapes = node.shapes(&mut dice);
        if let Some((at, _)) = node.on(&shapes, false, |cx| Ok(broken(cx))).1.unwrap() {
            findings.broken.insert(at);
            continue;
        }
        findings.valid += 1;
        findings.probe(&node, &shapes);
        let all = findings.broken.len() == row.shapes.len();
        if findings.problems.len() > 2 || findings.valid >= ENOUGH && all || findings.valid >= 10 * ENOUGH {
            break;
        }
    }
    let mut problems = Vec::new();
    let mut problem = |text: &str| problems.push(format!("{}-{}: {text}", row.name, row.since));
    if findings.valid == 0 {
        problem("no shapes that agree were drawn");
    }
    let holds_always = |at: usize| only_names(row.shapes, at) || row.shapes[at].ends_with("| [..]");
    let unbroken = (0..row.shapes.len()).filter(|&at| !findings.broken.contains(&at) && !holds_always(at));
    unbroken.for_each(|at| problem(&format!("nothing breaks `{}`", row.shapes[at])));
    findings.problems.iter().for_each(|text| problem(text));
    (problems, findings.lowered > 0)
}

/// Every agreement of every row is enforced; gives the number of rows that were lowered over symbolic shapes.
pub fn assert_enforced(rows: impl Iterator<Item = &'static OpDef>) -> usize {
    let rows: Vec<_> = rows.filter(|row| !row.shapes.is_empty()).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let probed_by =
        |thread| rows.iter().skip(thread).step_by(threads).map(|row| probed(row)).collect::<Vec<_>>();
    let found: Vec<_> = std::thread::scope(|scope| {
        let probed_by = &probed_by;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || probed_by(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("rows are probed")).collect()
    });
    let problems: Vec<_> = found.iter().flat_map(|(problems, _)| problems).map(String::as_str).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    found.iter().filter(|(_, lowered)| *lowered).count()
}

/// Operators that take more than one input and state nothing of their shapes.
pub fn without_agreements(rows: impl Iterator<Item = &'static OpDef>) -> Vec<&'static str> {
    let without = rows.filter(|row| row.shapes.is_empty() && row.inputs.len() > 1);
    without.map(|row| row.name).collect::<BTreeSet<_>>().into_iter().collect()
}
