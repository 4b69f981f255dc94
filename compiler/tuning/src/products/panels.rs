//! Columns per panel of a right-hand side. Panels are a layout of constants that all levels of a target read.

use onnxc_ir::graph::DType;

/// What a panel's width is chosen by; `None` for symbolic counts.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub dtype: DType,
    pub rows: Option<i64>,
    pub columns: Option<i64>,
}

/// A row of the panel policy: it holds for products of `dtypes` with at most `max_rows` rows, at least `min_columns`
/// columns, and whose panels have fewer columns in all than those that are `fewer_than` wide. A symbolic count meets no limit.
#[derive(Clone, Copy, Debug)]
pub struct PackRule {
    /// Empty: any.
    pub dtypes: &'static [DType],
    pub max_rows: Option<i64>,
    pub min_columns: Option<i64>,
    pub fewer_than: Option<i64>,
    /// Columns per panel.
    pub nr: usize,
}

pub(super) const ANY: PackRule =
    PackRule { dtypes: &[DType::F32], max_rows: None, min_columns: None, fewer_than: None, nr: 4 };

/// They compute in f32, with the lanes of f32.
pub(super) const HALVES: &[DType] = &[DType::F16, DType::BF16];

/// Small integers, whose products are added up in lanes of 32 bits, and what other integers are widened to.
pub(super) const INTS: &[DType] = &[DType::I8, DType::I16, DType::I32];

/// Codes of weights, whose products are of f32.
pub(super) const CODES: &[DType] = &[DType::U4, DType::U8];
pub(super) const BYTES: &[DType] = &[DType::U8];

/// One row: a wide panel keeps several accumulators busy.
pub(super) const ONE_ROW: PackRule = PackRule { max_rows: Some(1), min_columns: Some(32), nr: 32, ..ANY };

/// Columns per panel by the first of the rules that holds, `otherwise` where none does. Never more than twice the columns there are, so
/// that padding stays below the size of the data.
pub(super) fn width(rules: &[PackRule], otherwise: usize, wanted: Product) -> usize {
    let Product { dtype, rows, columns } = wanted;
    let holds = |rule: &&PackRule| {
        (rule.dtypes.is_empty() || rule.dtypes.contains(&dtype))
            && rule.max_rows.is_none_or(|limit| rows.is_some_and(|rows| rows <= limit))
            && rule.min_columns.is_none_or(|limit| columns.is_some_and(|columns| columns >= limit))
            && rule.fewer_than.is_none_or(|other| {
                let in_all = |nr: i64| columns.map(|columns| (columns + nr - 1) / nr * nr);
                in_all(rule.nr as i64) < in_all(other)
            })
    };
    let nr = rules.iter().find(holds).map_or(otherwise, |rule| rule.nr).max(1);
    match columns.and_then(|columns| usize::try_from(columns).ok()) {
        Some(columns) => nr.min(columns.max(1).checked_next_power_of_two().unwrap_or(nr)),
        None => nr,
    }
}
