use super::contract::{
    Blocks, Extents, Facts, Prefetch, ProcessorTile, RegisterTile, TileColumns, TileWork, Walk, Widening,
};
use super::*;
use onnxc_ir::graph::{DType, Dim, Sym};
use onnxc_machine::target::Target;

fn core(cpu: &str) -> Core {
    let target = Target::parse("x86_64-unknown-linux-gnu", Some(cpu)).unwrap();
    target.leaf().unwrap_or(target.core)
}

/// What `choose` takes with these settings, and the numbers as text.
fn with<T>(settings: &str, choose: impl FnOnce(&mut Picker<'_>) -> Result<T>) -> Result<(T, String)> {
    let settings = Settings::parse(settings).unwrap();
    let mut pick = Picker::new("g0", None, &settings);
    let value = choose(&mut pick)?;
    Ok((value, pick.finish()?.to_string()))
}

fn facts(core: &Core, panel: usize) -> Facts<'_> {
    Facts {
        core,
        panel,
        lanes: core.lanes(4),
        sum: DType::F32,
        depth: 1,
        codes: false,
        narrow: false,
        row_distance: Some(400),
        neighbours: true,
        row_axes: 1,
        one_row: false,
        divides: false,
        has_taps: false,
        loops: None,
        last_axis: Some(100),
    }
}

#[test]
fn settings_take_the_place_of_what_is_chosen() {
    let choose = |pick: &mut Picker<'_>| {
        let rows = pick.pick("rows", 6, &Allowed::between(1, 6, "registers"))?;
        let columns = pick.pick("columns", 16, &Allowed::one_of(vec![8, 16], "lanes"))?;
        Ok((rows, columns))
    };
    assert_eq!(with("", choose).unwrap(), ((6, 16), "tuning {rows=6, columns=16}".into()));
    assert_eq!(with("columns=8 rows=1", choose).unwrap().0, (1, 8));
    let refused = |settings| with(settings, choose).unwrap_err();
    for (settings, message) in [
        ("rows=0", "kernel g0: rows=0 cannot be applied; allowed is 1 to 6: registers"),
        ("rows=7", "kernel g0: rows=7 cannot be applied; allowed is 1 to 6: registers"),
        ("columns=12", "kernel g0: columns=12 cannot be applied; allowed is 8, 16: lanes"),
        ("height=4", "kernel g0: reads no `height`, but rows, columns"),
    ] {
        let error = refused(settings);
        assert_eq!((error.kind, error.message.as_str()), (Kind::Usage, message));
    }
    for (text, message) in
        [("rows", "not a setting"), ("rows=x", "not a setting"), ("rows=1 rows=2", "twice")]
    {
        assert!(Settings::parse(text).unwrap_err().message.contains(message), "{text}");
    }
}

#[test]
fn a_choice_that_cannot_be_applied_is_an_error_of_the_compiler() {
    let error = with("", |pick| pick.pick("rows", 0, &Allowed::between(1, 6, "registers"))).unwrap_err();
    assert_eq!(error.kind, Kind::Internal);
}

#[test]
fn register_tiles_fill_the_registers() {
    let rows = |cpu: &str, panel: usize, settings: &str| {
        let core = core(cpu);
        with(settings, |pick| RegisterTile::choose(&facts(&core, panel), pick)).unwrap().0.rows
    };
    // 6 * 2 sums, 2 of the panel, an element; with 512 bits 14 * 2. Of a panel of 4 vectors two at a time.
    assert_eq!((rows("x86-64-v3", 16, ""), rows("x86-64-v3", 24, ""), rows("x86-64-v3", 32, "")), (6, 4, 6));
    assert_eq!((rows("x86-64-v4", 32, ""), rows("x86-64-v4", 64, "")), (14, 6));
    // Of 6 vectors two as well: three take a line and a half.
    assert_eq!(rows("x86-64-v3", 48, ""), 6);
    // Narrow panels need no more rows than hide the latency of sums.
    assert_eq!(rows("x86-64-v3", 8, ""), 10);
    // Half of a panel leaves registers for more rows.
    assert_eq!(rows("x86-64-v3", 32, "columns=16"), 6);
}

/// Panels of objects for many processors are as wide as the longest vectors want them.
#[test]
fn sums_of_one_row_stay_in_registers() {
    let of = |cpu: &str, panel: usize| {
        let core = core(cpu);
        let lanes = core.lanes(4);
        let facts = Facts { one_row: true, ..facts(&core, panel) };
        let tile = with("", |pick| RegisterTile::choose(&Facts { lanes, ..facts }, pick)).unwrap().0;
        let TileColumns { count, together, is_crowded } = tile.columns(1);
        (count, together, is_crowded)
    };
    // 8 sums of 16 registers leave room for 4 vectors of the panel and an element, not for 8.
    assert_eq!(of("x86-64-v3", 64), (64, 32, true));
    assert_eq!(of("x86-64-v3", 32), (32, 32, false));
    assert_eq!(of("x86-64-v4", 64), (64, 64, false));
    // 16 sums would leave none.
    assert_eq!(of("x86-64", 64), (32, 16, true));
}

/// A tile of one row beside those of several reads a panel whole, where these take parts of it.
#[test]
fn rows_that_are_alone_take_wider_parts() {
    let of = |cpu: &str, panel: usize, settings: &str| {
        let core = core(cpu);
        let choose = |pick: &mut Picker<'_>| RegisterTile::choose(&facts(&core, panel), pick);
        let (tile, text) = with(settings, choose).unwrap();
        ([2, 1].map(|rows| tile.columns(rows).count), text.contains("lone_columns"))
    };
    assert_eq!(of("x86-64-v3", 16, ""), ([16, 16], false));
    assert_eq!(of("x86-64-v3", 32, ""), ([16, 32], true));
    assert_eq!(of("x86-64-v3", 48, ""), ([16, 48], true));
    assert_eq!(of("x86-64-v3", 32, "lone_columns=16"), ([16, 16], true));
    assert_eq!(of("x86-64-v4", 32, ""), ([32, 32], false));
}

#[test]
fn rows_that_meet_in_a_cache_are_fewer_than_its_ways() {
    for (cpu, distance, wanted) in
        [("x86-64-v4", 4096, 7), ("x86-64-v4", 3 * 4096, 7), ("x86-64-v4", 2048, 14), ("x86-64-v4", 0, 14)]
    {
        let core = core(cpu);
        let facts = Facts { row_distance: Some(distance), ..facts(&core, 32) };
        let rows = with("", |pick| RegisterTile::choose(&facts, pick)).unwrap().0.rows;
        assert_eq!(rows, wanted, "{cpu}, {distance} bytes");
    }
}

#[test]
fn rows_that_do_not_follow_each_other_have_loops_where_they_are_long() {
    let core = core("x86-64-v3");
    let loops = |divides, last_axis, has_taps| {
        let facts = Facts { row_axes: 3, divides, last_axis, has_taps, ..facts(&core, 16) };
        with("", |pick| RegisterTile::choose(&facts, pick)).unwrap().0.row_loops
    };
    assert_eq!((loops(false, Some(100), false), loops(true, Some(100), false)), (0, 2));
    assert_eq!(
        (loops(true, Some(7), false), loops(true, Some(7), true), loops(true, None, false)),
        (0, 2, 2)
    );
}

#[test]
fn loops_are_cut_evenly_where_they_can_be() {
    let core = core("x86-64-v3");
    let tile = |settings| with(settings, |pick| RegisterTile::choose(&facts(&core, 16), pick)).unwrap().0;
    let chosen = tile("");
    let unrolls = [64, 9, 14, 20, 36, 30, 12, 5, 17, 11].map(|extent| chosen.unroll_of(Some(extent)));
    assert_eq!(unrolls, [8, 9, 7, 10, 9, 10, 6, 5, 8, 8]);
    // Few steps are written out, those of two short axes together: 3 times 3, 4 times 3, not 5 times 3.
    assert_eq!([1, 3, 4].map(|extent| chosen.unroll_of(Some(extent))), [1, 3, 4]);
    assert_eq!([9, 12, 15].map(|steps| chosen.writes_out(steps)), [true, true, false]);
    assert!(!tile("sum_terms=3").writes_out(9), "a partial sum has three terms at most");
    assert_eq!((chosen.unroll_of(None), tile("unroll=1").unroll_of(Some(7))), (8, 1));
    assert_eq!([256, 512, 300, 577].map(|extent| chosen.part_of(extent)), [None, Some(256), Some(150), None]);
    assert_eq!(tile("sum_terms=2").part_of(9), Some(1));
    assert_eq!(tile("sum_terms=3").part_of(9), Some(3));
    let facts = Facts { sum: DType::I32, ..facts(&core, 16) };
    let (exact, text) = with("", |pick| RegisterTile::choose(&facts, pick)).unwrap();
    assert_eq!(exact.part_of(1 << 40), None, "sums of integers are exact");
    assert!(!text.contains("sum_terms"), "{text}");
}

#[test]
fn blocks_of_steps_are_alike() {
    let of = |inner: &[i64], most, per_word| {
        Blocks::of(inner, most, per_word).map(|Blocks { axis, chunk, steps }| (axis, chunk, steps))
    };
    assert_eq!(of(&[512], 256, None), Some((0, 256, 256)));
    assert_eq!(of(&[80], 40, None), Some((0, 40, 40)));
    assert_eq!(of(&[3, 100], 256, None), Some((0, 1, 100)));
    assert_eq!(of(&[4, 100], 256, None), Some((0, 2, 200)));
    assert_eq!(of(&[2, 64], 256, None), Some((0, 2, 128)));
    assert_eq!(of(&[4, 96], 64, Some(8)), Some((1, 48, 48)));
    assert_eq!(of(&[4, 97], 64, Some(8)), None);
}

#[test]
fn panels_are_widened_whole_or_in_long_blocks() {
    let core = core("x86-64-v3");
    let steps = |inner: &[i64]| {
        let tile = with("", |pick| RegisterTile::choose(&facts(&core, 16), pick)).unwrap().0;
        with("", |pick| Widening::choose(&core, &tile, 64, inner, None, false, pick)).unwrap().0.steps
    };
    assert_eq!([16, 512, 1024].map(|inner| steps(&[inner])), [16, 512, 256]);
    assert_eq!(steps(&[1021]), 0, "blocks of one step");
}

#[test]
fn the_tiles_of_a_processor_are_for_enough_work() {
    let core = core("x86-64-v4");
    let choose = |rows, dots, bytes, tiles, lhs_bytes| {
        let work = TileWork { rows, dots, bytes, tiles, lhs_bytes, halves: 2, bf16: false };
        let tile = with("", |pick| ProcessorTile::choose(&core, &work, pick)).unwrap().0;
        (tile.rows, tile.side)
    };
    assert_eq!(choose(16, 8, 512, None, None), (16, 2));
    assert_eq!(choose(1, 8, 512, Some(7), Some(1 << 12)), (0, 0));
    // A panel that does not stay in the first-level cache is loaded less often beside four tiles, unless the rows do not either.
    assert_eq!(choose(7, 72, 4608, Some(7), Some(1 << 15)), (16, 4));
    assert_eq!(choose(16, 72, 4608, Some(64), Some(1 << 22)), (16, 2));
    assert_eq!(choose(7, 4, 256, Some(7), Some(1 << 15)), (16, 2));
    assert_eq!(
        [Some(16), Some(17), Some(49), None].map(|rows| ProcessorTile::height(16, rows)),
        [16, 9, 13, 16]
    );
}

#[test]
fn rows_of_windows_stay_in_a_cache() {
    use super::reduce::{ChannelBlock, Facts, SharedRows, Terms};
    let core = core("x86-64-v3");
    let blocks = |size: usize, columns: Option<usize>, rows: Dim, channels| {
        let facts = Facts {
            core: &core,
            lanes: core.lanes(size),
            reduced: vec![Some(3), Some(3)],
            terms: Terms::Floats(9),
            windows: true,
            positions: columns.map(|columns| columns as i64 - 2),
            halves: false,
            alone: false,
            shared: Some(SharedRows { size, bytes: columns.map(|columns| 3 * columns * size) }),
            rows: Some(rows).filter(|rows| *rows != Dim::ONE),
            channels,
        };
        let ChannelBlock { channels, parts, .. } =
            with("", |pick| ChannelBlock::choose(&facts, pick)).unwrap().0;
        (channels, parts)
    };
    // Half of 32 KiB: 85 channels of three rows of 16 columns, 24 of 56 columns.
    let (few, many, open) = (Dim::from(14i64), Dim::from(30i64), Dim::sym(Sym::from_u32(0)));
    assert_eq!(blocks(4, Some(16), few.clone(), Some(384)), (64, 2));
    assert_eq!(blocks(4, Some(56), many, Some(144)), (24, 4));
    assert_eq!(blocks(4, None, open, Some(144)), (16, 4));
    // All of them fit; less than a line of the cache fits; one row; channels of no known number.
    assert_eq!(blocks(4, Some(16), few.clone(), Some(64)), (0, 1));
    assert_eq!(blocks(4, Some(100), few.clone(), Some(144)), (0, 1));
    assert_eq!(blocks(4, Some(16), Dim::ONE, Some(384)), (0, 1));
    assert_eq!(blocks(4, Some(16), few, None), (0, 1));
}

#[test]
fn what_stays_in_a_cache_is_not_prefetched() {
    let core = core("x86-64-v3");
    let (prefetch, text) = with("", |pick| Prefetch::choose(&core, true, false, false, pick)).unwrap();
    assert_eq!((prefetch.above, prefetch.lines), (64 << 10, 4));
    assert_eq!(text, "tuning {prefetch=4, prefetch_above=65536, prefetch_stream=8192}");
    assert!(with("prefetch=1", |pick| Prefetch::choose(&core, false, false, false, pick)).is_err());
}

#[test]
fn rows_are_in_parts_and_blocks_where_there_is_work() {
    let core = core("x86-64-v3");
    let order = |rows: i64, columns: i64, inner: i64| {
        let (columns, inner, tiled) = (Dim::from(columns), [Dim::from(inner)], [Dim::from(rows)]);
        let bytes = |elements: Dim| elements.as_const().map(|elements| 4 * elements);
        let facts = Extents {
            core: &core,
            batch: Dim::ONE,
            panels: columns.ceil_div(&Dim::from(16i64)).unwrap(),
            columns: &columns,
            panel: 16,
            looped: &[],
            tiled: &tiled,
            block_rows: 6,
            part_rows: 18,
            inner: &inner,
            step_bytes: 4,
            operands: [bytes(tiled[0].clone() * inner[0].clone()), bytes(columns.clone() * inner[0].clone())],
        };
        let Walk { parts, block } = with("", |pick| Walk::choose(&facts, pick)).unwrap().0;
        (parts, block)
    };
    // Four panels are three parts each, rounded up to four; a small product is one; many panels need none.
    assert_eq!(order(1000, 64, 64).0, 4);
    assert_eq!(order(10, 64, 64).0, 1);
    assert_eq!(order(100, 4096, 4096), (1, 0));
    // 128 KiB less all panels, in rows of 256 bytes.
    assert_eq!(order(1000, 64, 64).1, (128 - 16) * 4);
}

#[test]
fn small_code_takes_what_can_be_applied() {
    let settings = Settings { goal: Goal::Size, ..Settings::default() };
    let mut pick = Picker::new("g0", None, &settings);
    let between = |least, most| Allowed::between(least, most, "");
    assert_eq!(pick.pick("rows", 6, &between(1, 12)).unwrap(), 2);
    assert_eq!(pick.pick("unroll", 8, &between(4, 64)).unwrap(), 4);
    assert_eq!(pick.pick("columns", 32, &Allowed::one_of(vec![32, 16], "")).unwrap(), 16);
    assert_eq!(pick.pick("block", 128, &between(1, 512)).unwrap(), 128);
    // What is faster and smaller stays, as does what speed alone decides.
    assert_eq!(pick.pick("positions", 1, &between(1, 4)).unwrap(), 1);
    assert_eq!(pick.pick("sum_terms", 256, &between(1, 1 << 20)).unwrap(), 256);
    let settings = Settings { goal: Goal::Size, ..Settings::parse("rows=5").unwrap() };
    assert_eq!(Picker::new("g0", None, &settings).pick("rows", 6, &between(1, 12)).unwrap(), 5);
}
