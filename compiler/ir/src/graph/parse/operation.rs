//! Operations of the text form: a name, operands, and attributes that the name decides, read and written side by side.

use std::sync::Arc;

use super::{Draft, Parser};
use crate::error::Result;
use crate::graph::external::{External, Role};
use crate::graph::op::Shapes;
use crate::graph::parse::lexer::Token;
use crate::graph::{
    Call, DType, Dim, Exchange, Graph, MapFn, Op, RankGroup, RhsLayout, TensorType, Transfer, Trees, ValueId,
    call,
};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

enum Attr {
    Dim(Dim),
    Word(String),
    Text(String),
    List(Vec<Attr>),
    Graph(Box<Graph>),
}

/// Attributes as they stand in the text; each is taken once, and none may be left over.
struct Attrs {
    op: String,
    entries: Vec<(String, Attr)>,
}

/// Why attributes do not make an operation; the parser adds the place.
type Outcome<T> = std::result::Result<T, String>;

impl Attrs {
    fn find(&mut self, name: &str) -> Option<Attr> {
        let at = self.entries.iter().position(|entry| entry.0 == name)?;
        Some(self.entries.remove(at).1)
    }

    /// An attribute through `convert`, which gives `None` for one of another kind.
    fn take<T>(&mut self, name: &str, kind: &str, convert: impl Fn(Attr) -> Option<T>) -> Outcome<T> {
        let Some(attr) = self.find(name) else {
            return Err(format!("{} needs the attribute {name}: {kind}", self.op));
        };
        convert(attr).ok_or_else(|| format!("expected {kind} as attribute {name} of {}", self.op))
    }

    fn dim(&mut self, name: &str) -> Outcome<Dim> {
        self.take(name, "a dim", |attr| match attr {
            Attr::Dim(dim) => Some(dim),
            _ => None,
        })
    }

    fn dims(&mut self, name: &str) -> Outcome<Vec<Dim>> {
        self.list(name, "a list of dims", |attr| match attr {
            Attr::Dim(dim) => Some(dim),
            _ => None,
        })
    }

    fn index(&mut self, name: &str) -> Outcome<usize> {
        self.take(name, "a number", index)
    }

    fn indices(&mut self, name: &str) -> Outcome<Vec<usize>> {
        self.list(name, "a list of numbers", index)
    }

    fn flag(&mut self, name: &str) -> Outcome<bool> {
        self.take(name, "true or false", flag)
    }

    fn list<T>(&mut self, name: &str, kind: &str, convert: impl Fn(Attr) -> Option<T>) -> Outcome<Vec<T>> {
        self.take(name, kind, |attr| match attr {
            Attr::List(items) => items.into_iter().map(&convert).collect(),
            _ => None,
        })
    }

    /// A name out of a closed set.
    fn word<T>(&mut self, name: &str, kind: &str, lookup: impl Fn(&str) -> Option<T>) -> Outcome<T> {
        self.take(name, kind, |attr| match attr {
            Attr::Word(word) => lookup(&word),
            _ => None,
        })
    }

    fn text(&mut self, name: &str) -> Outcome<String> {
        self.take(name, "a text in quotes", |attr| match attr {
            Attr::Text(text) => Some(text),
            _ => None,
        })
    }

    /// An attribute that may be left out.
    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.0 == name)
    }

    fn optional_index(&mut self, name: &str) -> Outcome<Option<usize>> {
        match self.has(name) {
            true => self.index(name).map(Some),
            false => Ok(None),
        }
    }

    fn combine(&mut self) -> Outcome<Option<BinaryFn>> {
        if !self.entries.iter().any(|entry| entry.0 == "combine") {
            return Ok(None);
        }
        self.word("combine", "a binary function", BinaryFn::from_name).map(Some)
    }
}

/// A count or an axis. The bound keeps sums and products of a few of them within 64 bits.
fn index(attr: Attr) -> Option<usize> {
    match attr {
        Attr::Dim(dim) => {
            dim.as_const().and_then(|value| usize::try_from(value).ok()).filter(|&v| v < 1 << 31)
        }
        _ => None,
    }
}

fn flag(attr: Attr) -> Option<bool> {
    match attr {
        Attr::Word(word) => word.parse().ok(),
        _ => None,
    }
}

impl Parser<'_> {
    /// `name v0, v1 {attributes}`
    pub(super) fn operation(&mut self, draft: &Draft) -> Result<(Op, Vec<ValueId>)> {
        let at = self.lexer.position();
        let Token::Word(name) = *self.lexer.token() else { return self.lexer.expected("an operation") };
        self.lexer.advance()?;
        let mut inputs = Vec::new();
        if matches!(self.lexer.token(), Token::Word(_)) {
            inputs.push(self.used(draft)?);
            while self.lexer.eat_punct(",")? {
                inputs.push(self.used(draft)?);
            }
        }
        let mut attrs = Attrs { op: name.to_string(), entries: Vec::new() };
        if self.lexer.eat_punct("{")? {
            loop {
                let entry = self.attribute()?;
                if attrs.entries.iter().any(|other| other.0 == entry.0) {
                    return self.lexer.fail_at(at, format!("{name} has the attribute {} twice", entry.0));
                }
                attrs.entries.push(entry);
                if !self.lexer.eat_punct(",")? {
                    break;
                }
            }
            self.lexer.punct("}")?;
        }
        match operation(name, &mut attrs) {
            Ok(_) if !attrs.entries.is_empty() => {
                self.lexer.fail_at(at, format!("{name} has no attribute {}", attrs.entries[0].0))
            }
            Ok(op) => Ok((op, inputs)),
            Err(message) => self.lexer.fail_at(at, message),
        }
    }

    fn attribute(&mut self) -> Result<(String, Attr)> {
        let Token::Word(name) = *self.lexer.token() else { return self.lexer.expected("an attribute") };
        self.lexer.advance()?;
        self.lexer.punct("=")?;
        let value = match self.lexer.token() {
            Token::Punct("[") => Attr::List(self.list(|parser| parser.item())?),
            Token::Word("graph") => Attr::Graph(Box::new(self.graph()?)),
            Token::Str(_) => Attr::Text(self.lexer.string()?),
            _ => self.scalar()?,
        };
        Ok((name.to_string(), value))
    }

    /// An item of a list, itself perhaps a list of dims.
    fn item(&mut self) -> Result<Attr> {
        match self.lexer.token() {
            Token::Punct("[") => Ok(Attr::List(self.list(|parser| parser.scalar())?)),
            _ => self.scalar(),
        }
    }

    /// A dim, or a name that is none.
    fn scalar(&mut self) -> Result<Attr> {
        if let Token::Word(word) = *self.lexer.token()
            && (flag(Attr::Word(word.to_string())).is_some()
                || DType::from_name(word).is_some()
                || call::named(word).is_some()
                || ((BinaryFn::from_name(word).is_some() || ReduceFn::from_name(word).is_some())
                    && !self.lexer.call_follows()))
        {
            self.lexer.advance()?;
            return Ok(Attr::Word(word.to_string()));
        }
        self.dim().map(Attr::Dim)
    }
}

fn operation(name: &str, attrs: &mut Attrs) -> Outcome<Op> {
    if let Some(function) = UnaryFn::from_name(name) {
        return Ok(Op::Map(MapFn::Unary(function)));
    }
    if let Some(function) = BinaryFn::from_name(name) {
        return Ok(Op::Map(MapFn::Binary(function)));
    }
    if let Some(function) = CompareFn::from_name(name) {
        return Ok(Op::Map(MapFn::Compare(function)));
    }
    let dtype = |attrs: &mut Attrs| attrs.word("to", "an element type", DType::from_name);
    let reduction = |attrs: &mut Attrs| attrs.word("op", "a reduction", ReduceFn::from_name);
    Ok(match name {
        "select" => Op::Map(MapFn::Select),
        "mul_add" => Op::Map(MapFn::MulAdd),
        "requantize" => Op::Map(MapFn::Requantize { shift: attrs.index("shift")?.min(u8::MAX.into()) as u8 }),
        "cast" => Op::Map(MapFn::Cast { to: dtype(attrs)?, saturate: attrs.flag("saturate")? }),
        "bitcast" => Op::Map(MapFn::Bitcast { to: dtype(attrs)? }),
        "reduce" => Op::Reduce { op: reduction(attrs)?, axes: attrs.indices("axes")? },
        "argreduce" => {
            Op::ArgReduce { max: attrs.flag("max")?, axis: attrs.index("axis")?, last: attrs.flag("last")? }
        }
        "contract" => {
            let given = |attrs: &Attrs, name: &str| attrs.entries.iter().any(|entry| entry.0 == name);
            let rhs = match given(attrs, "nr") {
                true if given(attrs, "short") => RhsLayout::Ordered {
                    nr: attrs.index("nr")?,
                    n: attrs.dim("n")?,
                    short: attrs.index("short")?,
                    stays: given(attrs, "stays") && attrs.flag("stays")?,
                },
                true => RhsLayout::Panels {
                    nr: attrs.index("nr")?,
                    depth: if given(attrs, "depth") { attrs.index("depth")? } else { 1 },
                    n: attrs.dim("n")?,
                },
                false => RhsLayout::Plain,
            };
            Op::Contract { batch: attrs.index("batch")?, m: attrs.index("m")?, k: attrs.index("k")?, rhs }
        }
        "pack" => Op::Pack { batch: attrs.index("batch")?, k: attrs.index("k")?, nr: attrs.index("nr")? },
        "dequantize" => Op::Dequantize { bits: attrs.index("bits")?, bias: attrs.index("bias")? },
        "reshape" => Op::Reshape { shape: attrs.dims("shape")? },
        "transpose" => Op::Transpose { perm: attrs.indices("perm")? },
        "expand" => Op::Expand { shape: attrs.dims("shape")? },
        "slice" => Op::Slice {
            starts: attrs.dims("starts")?,
            steps: attrs.list("steps", "a list of integers", |attr| match attr {
                Attr::Dim(dim) => dim.as_const(),
                _ => None,
            })?,
            sizes: attrs.dims("sizes")?,
        },
        "implicit_pad" => Op::ImplicitPad { lo: attrs.dims("lo")?, hi: attrs.dims("hi")? },
        "pad" => Op::Pad { lo: attrs.dims("lo")?, hi: attrs.dims("hi")? },
        "concat" => Op::Concat { axis: attrs.index("axis")? },
        "window" => Op::Window {
            first: attrs.index("first")?,
            kernel: attrs.indices("kernel")?,
            strides: attrs.indices("strides")?,
            dilations: attrs.indices("dilations")?,
        },
        "winograd_input" => Op::WinogradInput { tile: attrs.index("tile")? },
        "winograd_filter" => Op::WinogradFilter { tile: attrs.index("tile")? },
        "winograd_output" => Op::WinogradOutput {
            tile: attrs.index("tile")?,
            height: attrs.dim("height")?,
            width: attrs.dim("width")?,
        },
        "gather" => Op::Gather { axis: attrs.index("axis")? },
        "gather_elements" => Op::GatherElements { axis: attrs.index("axis")? },
        "gather_nd" => Op::GatherNd { batch: attrs.index("batch")? },
        "scatter_elements" => Op::ScatterElements { axis: attrs.index("axis")?, combine: attrs.combine()? },
        "scatter_nd" => Op::ScatterNd { combine: attrs.combine()? },
        "iota" => Op::Iota { shape: attrs.dims("shape")?, axis: attrs.index("axis")? },
        "dim_values" => Op::DimValues { dims: attrs.dims("dims")? },
        "cumulate" => Op::Cumulate {
            op: reduction(attrs)?,
            axis: attrs.index("axis")?,
            exclusive: attrs.flag("exclusive")?,
            reverse: attrs.flag("reverse")?,
        },
        "sort" => Op::Sort {
            axis: attrs.index("axis")?,
            descending: attrs.flag("descending")?,
            take: attrs.dim("take")?,
        },
        "append" => Op::Append {
            axis: attrs.index("axis")?,
            at: attrs.dim("at")?,
            panel: attrs.optional_index("panel")?,
        },
        "suppress" => Op::Suppress { take: attrs.dim("take")? },
        "call" => {
            let function = attrs.word("function", "a function of the runtime", call::named)?;
            let dtype = attrs.word("dtype", "an element type", DType::from_name)?;
            let numbers = attrs.dims("numbers")?;
            Op::Call(Call { function, numbers, result: TensorType::new(dtype, attrs.dims("shape")?) })
        }
        "external" => Op::External(Box::new(external(attrs)?)),
        "all_reduce" => exchange(Transfer::AllReduce(reduction(attrs)?), attrs)?,
        "all_gather" => exchange(Transfer::AllGather, attrs)?,
        "reduce_scatter" => exchange(Transfer::ReduceScatter(reduction(attrs)?), attrs)?,
        "broadcast" => exchange(Transfer::Broadcast { root: attrs.index("root")? as i64 }, attrs)?,
        "all_to_all" => exchange(Transfer::AllToAll, attrs)?,
        "send" => exchange(Transfer::Send { to: attrs.index("to")? as i64 }, attrs)?,
        "receive" => exchange(Transfer::Receive { from: attrs.index("from")? as i64 }, attrs)?,
        "leaves" => Op::Leaves(Trees {
            features: attrs.index("features")?,
            steps: attrs.index("steps")?,
            plain: attrs.index("plain")?,
            categories: attrs.index("categories")?,
            copied: attrs.flag("copied")?,
            two_sided: attrs.flag("two_sided")?,
            masks: match attrs.find("intervals") {
                Some(attr) => {
                    Some(flag(attr).ok_or("expected true or false as attribute intervals of leaves")?)
                }
                None => None,
            },
        }),
        "if" => {
            let bodies = [body(attrs, "then")?, body(attrs, "else")?];
            Op::If { bodies: Arc::new(bodies), shapes: shapes(attrs)? }
        }
        "scan" => Op::Scan {
            trip: attrs.dim("trip")?,
            conditional: match attrs.find("conditional") {
                Some(attr) => flag(attr).ok_or("expected true or false as attribute conditional of scan")?,
                None => false,
            },
            states: attrs.index("states")?,
            scans: attrs.index("scans")?,
            reverse: attrs.list("reverse", "a list of true and false", flag)?,
            body: Arc::new(body(attrs, "body")?),
            shapes: shapes(attrs)?,
        },
        _ => return Err(format!("there is no operation {name}")),
    })
}

fn body(attrs: &mut Attrs, name: &str) -> Outcome<Graph> {
    attrs.take(name, "a graph", |attr| match attr {
        Attr::Graph(graph) => Some(*graph),
        _ => None,
    })
}

fn exchange(transfer: Transfer, attrs: &mut Attrs) -> Outcome<Op> {
    let [first, stride, count] =
        [attrs.index("first")?, attrs.index("stride")?, attrs.index("count")?].map(|number| number as i64);
    let dtype = attrs.word("dtype", "an element type", DType::from_name)?;
    let ty = TensorType::new(dtype, attrs.dims("shape")?);
    Ok(Op::Exchange(Box::new(Exchange { transfer, group: RankGroup { first, stride, count }, ty })))
}

fn external(attrs: &mut Attrs) -> Outcome<External> {
    let role = attrs.text("role")?;
    let Some(role) = Role::from_name(&role) else { return Err(format!("no call has the role \"{role}\"")) };
    let dtypes = attrs.list("dtypes", "a list of element types", |attr| match attr {
        Attr::Word(word) => DType::from_name(&word),
        _ => None,
    })?;
    let shapes: Vec<Vec<Dim>> = attrs.list("shapes", "a list of shapes", dims)?;
    if dtypes.len() != shapes.len() {
        return Err(format!("{} element types and {} shapes of external", dtypes.len(), shapes.len()));
    }
    let mut types = dtypes.into_iter().zip(shapes).map(|(dtype, shape)| TensorType::new(dtype, shape));
    let given = attrs.list("given", "a list of true and false", flag)?;
    let operands: Option<Vec<_>> =
        given.into_iter().map(|given| if given { types.next().map(Some) } else { Some(None) }).collect();
    let Some(operands) = operands else {
        return Err("more operands are given than external has types".to_string());
    };
    let late = attrs.has("late") && attrs.flag("late")?;
    Ok(External {
        symbol: attrs.text("symbol")?.into(),
        late,
        role,
        operands,
        results: types.collect(),
        scratch: attrs.dim("scratch")?,
        address: None,
    })
}

fn dims(attr: Attr) -> Option<Vec<Dim>> {
    let dim = |attr: Attr| match attr {
        Attr::Dim(dim) => Some(dim),
        _ => None,
    };
    match attr {
        Attr::List(dims) => dims.into_iter().map(dim).collect(),
        _ => None,
    }
}

/// The shapes of some results, which are numbered in a list beside them; without the lists there are none.
fn shapes(attrs: &mut Attrs) -> Outcome<Shapes> {
    if !attrs.entries.iter().any(|entry| entry.0 == "shapes") {
        return Ok(Shapes::new());
    }
    let numbers = attrs.indices("at")?;
    let shapes: Vec<Vec<Dim>> = attrs.list("shapes", "a list of shapes", dims)?;
    match numbers.len() == shapes.len() {
        true => Ok(numbers.into_iter().zip(shapes).collect()),
        false => Err(format!("{} shapes of {} results of {}", shapes.len(), numbers.len(), attrs.op)),
    }
}

/// The attributes of an operation other than a body, such as `perm=[1, 0]`; empty where it has none.
pub(in crate::graph) fn attributes(op: &Op) -> String {
    let combine = |function: &Option<BinaryFn>| match function {
        Some(function) => format!("combine={function}"),
        None => String::new(),
    };
    match op {
        Op::Map(MapFn::Cast { to, saturate }) => format!("to={to}, saturate={saturate}"),
        Op::Map(MapFn::Requantize { shift }) => format!("shift={shift}"),
        Op::Map(MapFn::Bitcast { to }) => format!("to={to}"),
        Op::Map(_) => String::new(),
        Op::Reduce { op, axes } => format!("op={op}, axes={axes:?}"),
        Op::ArgReduce { max, axis, last } => format!("max={max}, axis={axis}, last={last}"),
        Op::Contract { batch, m, k, rhs } => match rhs {
            RhsLayout::Plain => format!("batch={batch}, m={m}, k={k}"),
            RhsLayout::Panels { nr, depth: 1, n } => format!("batch={batch}, m={m}, k={k}, nr={nr}, n={n}"),
            RhsLayout::Panels { nr, depth, n } => {
                format!("batch={batch}, m={m}, k={k}, nr={nr}, depth={depth}, n={n}")
            }
            RhsLayout::Ordered { nr, n, short, stays } => {
                let stays = if *stays { ", stays=true" } else { "" };
                format!("batch={batch}, m={m}, k={k}, nr={nr}, short={short}, n={n}{stays}")
            }
        },
        Op::Pack { batch, k, nr } => format!("batch={batch}, k={k}, nr={nr}"),
        Op::Dequantize { bits, bias } => format!("bits={bits}, bias={bias}"),
        Op::Reshape { shape } | Op::Expand { shape } => format!("shape={shape:?}"),
        Op::Transpose { perm } => format!("perm={perm:?}"),
        Op::Slice { starts, steps, sizes } => {
            format!("starts={starts:?}, steps={steps:?}, sizes={sizes:?}")
        }
        Op::Pad { lo, hi } | Op::ImplicitPad { lo, hi } => format!("lo={lo:?}, hi={hi:?}"),
        Op::Concat { axis } | Op::Gather { axis } | Op::GatherElements { axis } => format!("axis={axis}"),
        Op::Window { first, kernel, strides, dilations } => {
            format!("first={first}, kernel={kernel:?}, strides={strides:?}, dilations={dilations:?}")
        }
        Op::WinogradInput { tile } | Op::WinogradFilter { tile } => format!("tile={tile}"),
        Op::WinogradOutput { tile, height, width } => format!("tile={tile}, height={height}, width={width}"),
        Op::GatherNd { batch } => format!("batch={batch}"),
        Op::ScatterElements { axis, combine: None } => format!("axis={axis}"),
        Op::ScatterElements { axis, combine: function } => format!("axis={axis}, {}", combine(function)),
        Op::ScatterNd { combine: function } => combine(function),
        Op::Iota { shape, axis } => format!("shape={shape:?}, axis={axis}"),
        Op::DimValues { dims } => format!("dims={dims:?}"),
        Op::Cumulate { op, axis, exclusive, reverse } => {
            format!("op={op}, axis={axis}, exclusive={exclusive}, reverse={reverse}")
        }
        Op::Sort { axis, descending, take } => format!("axis={axis}, descending={descending}, take={take}"),
        Op::Suppress { take } => format!("take={take}"),
        Op::Append { axis, at, panel } => {
            let panel = panel.map_or(String::new(), |panel| format!(", panel={panel}"));
            format!("axis={axis}, at={at}{panel}")
        }
        Op::Leaves(trees) => {
            let Trees { features, steps, plain, categories, copied, two_sided, masks } = trees;
            let masks = masks.map_or(String::new(), |intervals| format!(", intervals={intervals}"));
            format!(
                "features={features}, steps={steps}, plain={plain}, categories={categories}, copied={copied}, \
                 two_sided={two_sided}{masks}"
            )
        }
        Op::Scan { trip, conditional, states, scans, reverse, shapes, .. } => {
            let end = if *conditional { ", conditional=true" } else { "" };
            let shapes = if shapes.is_empty() { String::new() } else { format!(", {}", shapes_text(shapes)) };
            format!("trip={trip}{end}, states={states}, scans={scans}, reverse={reverse:?}{shapes}")
        }
        Op::Call(call) => format!(
            "function={}, numbers={:?}, dtype={}, shape={:?}",
            call.function.name, call.numbers, call.result.dtype, call.result.shape
        ),
        Op::External(external) => external.to_string(),
        Op::Exchange(exchange) => exchange.to_string(),
        Op::If { shapes, .. } => {
            if shapes.is_empty() {
                String::new()
            } else {
                shapes_text(shapes)
            }
        }
    }
}

/// `at=[1, 2], shapes=[[s0], [2, s1]]`: the numbers of results and their shapes.
fn shapes_text(shapes: &Shapes) -> String {
    format!("at={:?}, shapes={:?}", shapes.keys().collect::<Vec<_>>(), shapes.values().collect::<Vec<_>>())
}
