//! `onnxc shard`: writes a device configuration into a model.

use std::io::Write;
use std::path::Path;

use crate::cli::args::ShardArgs;
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Source, one, usage};
use crate::cli::train_graph::copies;
use crate::files::io_error;
use crate::{ExternalData, Grid, ShardOptions};

pub(super) fn run(args: &ShardArgs) -> Result<(), Problems> {
    if args.output == Path::new("-") {
        return Err(one(usage(
            "-o -: a model is not written to standard output; -o names a file".to_string(),
        )));
    }
    let grid = Grid {
        stages: args.pipeline.into(),
        batches: args.data_parallel.into(),
        tensors: args.tensor_parallel.into(),
    };
    if grid.ranks() < 2 {
        let message = "one rank: --tensor-parallel, --pipeline and --data-parallel ask for more".to_string();
        return Err(one(usage(message)));
    }
    if grid.ranks() > 4096 {
        return Err(one(usage(format!("{} ranks: the most is 4096", grid.ranks()))));
    }
    let source = Source::open(&args.model, args.external_data_root.as_deref()).map_err(one)?;
    output::check_place(&args.output, &source.read_files()).map_err(one)?;
    if args.shard_optimizer && grid.batches < 2 {
        let message = "--shard-optimizer: the parts of a batch share it, and --data-parallel asks for these"
            .to_string();
        return Err(one(usage(message)));
    }
    let options =
        ShardOptions { name: args.configuration.clone(), grid, shard_optimizer: args.shard_optimizer };
    let sharded = crate::shard(source.bytes(), source.external(), &options)?;
    let copies = copies(&args.output, &source, &sharded.locations).map_err(one)?;
    output::check_place(&args.output, &source.read_files()).map_err(one)?;
    let mut outputs = Outputs::beside(&args.output).map_err(one)?;
    let mut write = |place: &Path, bytes: &[u8]| {
        outputs.write(place, &mut |file| file.write_all(bytes).map_err(|error| io_error(place, &error)))
    };
    for (location, place) in &copies {
        let bytes = source.external().read(location, 0, None).map_err(one)?;
        write(place, &bytes).map_err(one)?;
    }
    // Last, as it names the others.
    write(&args.output, &sharded.model).map_err(one)?;
    outputs.commit().map_err(one)?;
    sharded.notes.iter().for_each(|note| say!("{note}"));
    Ok(())
}
