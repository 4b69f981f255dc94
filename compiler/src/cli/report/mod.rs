//! `onnxc report`: a page about a model as it was compiled and measured, in one file that loads nothing else.

mod against;
pub(crate) mod facts;
mod hot;
mod page;
mod picture;

use std::path::PathBuf;

use crate::cli::args::ReportArgs;
use crate::cli::bench;
use crate::cli::check::to_json;
use crate::cli::is_quiet;
use crate::cli::output;
use crate::cli::peak::Peak;
use crate::cli::session::{Problems, Progress, Session, native_options, one, print_warnings, usage};
use onnxc_ir::error::Result;

pub(super) fn run(args: &ReportArgs) -> std::result::Result<(), Problems> {
    bench::check(&args.measure).map_err(one)?;
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
    bench::shapes_of_data(&mut session, &args.measure).map_err(one)?;
    let place = place(args, &session).map_err(one)?;
    let past = args.against.as_deref().map(against::Past::read).transpose().map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    print_warnings(&loaded.warnings, &loaded.notes);
    let inputs = bench::inputs(&session, &loaded, &args.measure).map_err(one)?;
    let mut timing = bench::measure(&loaded, &inputs, &args.measure).map_err(one)?;
    let peak = Peak::measure(timing.threads, options.target.core.l2_bytes);
    let profiled = session.load(&crate::Options { profile: true, ..options.clone() })?;
    timing.nodes = bench::profile(&profiled, &inputs, &args.measure, &peak).map_err(one)?;
    drop(profiled);
    let figures = args.json.then(|| to_json(&timing));
    // What others get, without a processor named.
    let any = session.options(&args.code, "model").map_err(one)?;
    let levels = match any.target.cpu == options.target.cpu {
        true => facts::levels(&loaded.kernels, &options.target),
        false => {
            let compiled = session.compile(&any, &mut Progress::new(false, false, vec![]))?;
            facts::levels(&compiled.kernels, &any.target)
        }
    };
    let facts = facts::Facts::new(&session.stem(), &loaded, &inputs, timing, peak, levels, &options);
    session.check_place(&place).map_err(one)?;
    output::write_bytes(&place, page::page(&facts, past.as_ref()).as_bytes()).map_err(one)?;
    match figures {
        Some(figures) => say!("{figures}"),
        None if is_quiet() => {}
        None => say!("{}", place.display()),
    }
    Ok(())
}

fn place(args: &ReportArgs, session: &Session) -> Result<PathBuf> {
    let place = match &args.output {
        Some(place) => place.clone(),
        None => PathBuf::from(format!("{}.html", session.stem())),
    };
    let extension = place.extension().unwrap_or_default();
    if !["html", "htm"].iter().any(|known| extension.eq_ignore_ascii_case(known)) {
        return Err(usage(format!("{}: the report is a page, whose extension is .html", place.display())));
    }
    session.check_place(&place)?;
    Ok(place)
}
