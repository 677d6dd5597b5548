//! `fairmesh rib import`.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use fairmesh_model::RecordKey;
use fairmesh_rib::Entry;
use fairmesh_wire::{
    handshake::Connection,
    v1::{Condition, Op, WriteRequest, condition},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tonic::Code;

use super::{Difference, NAMED, named, open, read};
use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output,
};

/// The most records in one batch: an etcd with its own bounds takes it.
const MAX_OPS: usize = 100;
/// The most bytes of keys and values in one batch.
const MAX_BYTES: usize = 1_000_000;

/// Arguments of `fairmesh rib import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// A file of 'fairmesh rib export'.
    file: PathBuf,
    /// Add to what is there: records that are there alike are left, others are refused before anything is written. Also
    /// takes up an import that was cut short.
    #[arg(long)]
    merge: bool,
    /// Say what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

pub(crate) async fn run(args: Import) -> Result<ExitCode, Failure> {
    let file = open(&args.file)?;
    let connection = connect::connect(&args.reach).await?;
    let stored = read(&connection).await?;
    if !stored.entries.is_empty() && !args.merge {
        return Err(Failure::refused(
            format!("the store holds {} records", stored.entries.len()),
            "import into an empty one, or add to these with --merge",
        ));
    }
    let difference = Difference::between(&file.entries, &stored.entries);
    if !difference.different.is_empty() {
        let keys = named("not as in the file", &difference.different);
        let hint = format!("decide which is right, and delete the other; at most {NAMED} are named:\n{keys}");
        let problem = format!("{} records are there with other values", difference.different.len());
        return Err(Failure::refused(problem, hint));
    }
    let missing: BTreeSet<_> = difference.missing.iter().map(String::as_str).collect();
    let (there, file) = (file.entries.len() - missing.len(), file.entries);
    let wanted = in_order(file.into_iter().filter(|(key, _)| missing.contains(&**key)).collect());
    let batches = batches(wanted);
    if !args.dry_run {
        write(&connection, missing.len(), &batches).await?;
    }
    let (written, would) = (missing.len(), if args.dry_run { "would be " } else { "" });
    let text = format!(
        "{written} records {would}written in {} batches, {there} were there already\n",
        batches.len()
    );
    let value = json!({
        "records": written, "batches": batches.len(), "there": there, "dryRun": args.dry_run,
    });
    output::print_one(args.seen_as.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Chunks of shard maps before the maps that name them, and everything else by key.
fn in_order(mut entries: Vec<(Arc<str>, Entry)>) -> Vec<(Arc<str>, Entry)> {
    entries.sort_by_cached_key(|(key, _)| {
        (!matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..))), key.clone())
    });
    entries
}

/// Writes of keys that must not be there, in batches within the bounds.
fn batches(entries: Vec<(Arc<str>, Entry)>) -> Vec<Vec<Op>> {
    let (mut batches, mut bytes) = (Vec::<Vec<Op>>::new(), 0);
    for (key, Entry { value, .. }) in entries {
        let size = key.len() + value.len();
        let absent = Condition { kind: Some(condition::Kind::Absent(true)) };
        let op = Op { key: key.to_string(), value: Some(value), condition: Some(absent) };
        match batches.last_mut() {
            Some(batch) if batch.len() < MAX_OPS && bytes + size <= MAX_BYTES => {
                batch.push(op);
                bytes += size;
            }
            _ => {
                batches.push(vec![op]);
                bytes = size;
            }
        }
    }
    batches
}

async fn write(connection: &Connection, records: usize, batches: &[Vec<Op>]) -> Result<(), Failure> {
    let bar = ProgressBar::new(records as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} records, {eta} left");
    // The template is a constant that parses; a default bar would do as well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for batch in batches {
        let written = connection.rib().write(WriteRequest { ops: batch.clone() }).await;
        written.map_err(|status| {
            let problem =
                format!("{} of {records} records are written: {}", bar.position(), status.message());
            match status.code() {
                Code::Aborted => Failure::failed_with(
                    problem,
                    "somebody else writes there; look at what, and go on with --merge",
                ),
                _ => Failure::failed_with(problem, "once that is mended, go on with --merge"),
            }
        })?;
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, bytes: usize) -> (Arc<str>, Entry) {
        (key.into(), Entry { value: vec![7; bytes].into(), revision: 3 })
    }

    #[test]
    fn batches_keep_to_both_bounds_and_hold_everything_once() {
        let small = (0..250).map(|i| entry(&format!("/{i:03}"), 10));
        assert_eq!(batches(small.collect()).iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
        let large = (0..9).map(|i| entry(&format!("/{i}"), 240_000));
        assert_eq!(batches(large.collect()).iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 1]);
        assert!(batches(Vec::new()).is_empty());
        let conditions = batches(vec![entry("/a", 1)]).concat();
        assert_eq!(conditions[0].condition, Some(Condition { kind: Some(condition::Kind::Absent(true)) }));
    }
}
