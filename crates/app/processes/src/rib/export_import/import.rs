//! `fairmesh rib import`.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_model::{RecordKey, counted};
use fairmesh_rib::Entry;
use fairmesh_wire::{
    handshake::Connection,
    v1::{Condition, Op, WriteRequest, condition},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tonic::Code;

use super::{Difference, MAX_LISTED, named, open, read};

/// Maximum number of records per batch, within the default limit of etcd.
const MAX_OPS: usize = 100;
/// Maximum total size of keys and values per batch, in bytes.
const MAX_BYTES: usize = 1_000_000;

/// Arguments of `fairmesh rib import`.
#[derive(Debug, Args)]
pub struct Import {
    /// A file of 'fairmesh rib export'.
    file: PathBuf,
    /// Add to the stored records: equal records are kept, and if one differs nothing is written. Also resumes an
    /// interrupted import.
    #[arg(long)]
    merge: bool,
    /// Only report what would be written.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(crate) async fn run(args: Import) -> Result<ExitCode, Failure> {
    let file = open(&args.file)?;
    let connection = connect::connect(&args.target).await?;
    let stored = read(&connection).await?;
    if !stored.entries.is_empty() && !args.merge {
        return Err(Failure::refused(
            format!("the store has records already: {}", stored.entries.len()),
            "import into an empty one, which a control plane with a trust domain of its own has not (begin with --trust-domain \
             none), or add to these with --merge",
        ));
    }
    let difference = Difference::between(&file.entries, &stored.entries);
    if !difference.different.is_empty() {
        let keys = named("different from the file", &difference.different);
        let hint =
            format!("decide which is right, and delete the other; at most {MAX_LISTED} are listed:\n{keys}");
        let problem = format!("{} records exist with other values", difference.different.len());
        return Err(Failure::refused(problem, hint));
    }
    let missing: BTreeSet<_> = difference.missing.iter().map(String::as_str).collect();
    let (there, file) = (file.entries.len() - missing.len(), file.entries);
    let wanted = in_order(file.into_iter().filter(|(key, _)| missing.contains(&**key)).collect());
    let batches = batches(without_implied(wanted));
    if !args.dry_run {
        write(&connection, missing.len(), &batches).await?;
    }
    let (written, would) = (missing.len(), if args.dry_run { "would be " } else { "" });
    let (records, in_batches) = (counted(written, "record"), counted_batches(batches.len()));
    let text = format!("{records} {would}written in {in_batches}, {there} existed already\n");
    let value = json!({
        "records": written, "batches": batches.len(), "there": there, "dryRun": args.dry_run,
    });
    output::print_one(args.output_args.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// The plural of 'batch' is not its singular and an 's'.
fn counted_batches(count: usize) -> String {
    format!("{count} batch{}", if count == 1 { "" } else { "es" })
}

/// Orders entries: chunks of shard maps come before the manifests that refer to them, everything else by key.
fn in_order(mut entries: Vec<(Arc<str>, Entry)>) -> Vec<(Arc<str>, Entry)> {
    entries.sort_by_cached_key(|(key, _)| {
        (!matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..))), key.clone())
    });
    entries
}

/// Removes the rules of services whose policies are also written: a policy contains its rules, and the control plane
/// derives their record from it.
fn without_implied(entries: Vec<(Arc<str>, Entry)>) -> Vec<(Arc<str>, Entry)> {
    let keys: BTreeSet<Arc<str>> = entries.iter().map(|(key, _)| Arc::clone(key)).collect();
    let is_implied = |key: &str| match RecordKey::parse(key) {
        Ok(RecordKey::Authorization(service)) => {
            keys.contains(RecordKey::Policy(service).to_string().as_str())
        }
        _ => false,
    };
    entries.into_iter().filter(|(key, _)| !is_implied(key)).collect()
}

/// Groups entries into batches of writes that expect their keys to be absent.
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
    // The template is a valid constant; the default bar would do as well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for batch in batches {
        let written = connection.rib().write(WriteRequest { ops: batch.clone() }).await;
        written.map_err(|status| {
            let problem =
                format!("{} of {records} records are written: {}", bar.position(), status.message());
            match status.code() {
                Code::Aborted => Failure::failed_with(
                    problem,
                    "another client writes to this store; stop it, and resume with --merge",
                ),
                _ => Failure::failed_with(problem, "fix that, and resume with --merge"),
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
    fn rib_import_batches_respect_bounds_and_contain_every_record_once() {
        let small = (0..250).map(|i| entry(&format!("/{i:03}"), 10));
        assert_eq!(batches(small.collect()).iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
        let large = (0..9).map(|i| entry(&format!("/{i}"), 240_000));
        assert_eq!(batches(large.collect()).iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 1]);
        assert!(batches(Vec::new()).is_empty());
        let conditions = batches(vec![entry("/a", 1)]).concat();
        assert_eq!(conditions[0].condition, Some(Condition { kind: Some(condition::Kind::Absent(true)) }));
    }
}
