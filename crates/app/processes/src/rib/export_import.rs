//! `fairmesh rib export`, `verify` and `import`: all records as a file.

mod difference;
pub(crate) mod import;

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::SystemTime,
};

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output, rib_reader,
};
use fairmesh_model::Prefix;
use fairmesh_rib::{Entry, disk_cache::SavedCopy};
use fairmesh_wire::{handshake::Connection, record_encoding};
use indicatif::ProgressBar;
use serde_json::json;

use difference::Difference;

/// Exit code if records differ or are unreadable.
const EXIT_DIFFERENT: u8 = 3;
/// Maximum number of keys that are printed of each kind.
const MAX_LISTED: usize = 10;

/// Arguments of `fairmesh rib export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The file, which must not exist.
    file: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Arguments of `fairmesh rib verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The file to compare with.
    file: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn export(args: Export) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        let problem = format!("cannot write {}: {error}", args.file.display());
        Failure::failed_with(problem, "give a new file in a folder that exists, on a disk with free space")
    };
    // Create the file before anything is read, so that a wrong path fails at once.
    let mut file = File::create_new(&args.file).map_err(failed)?;
    let write = async {
        let saved = read(&connect::connect(&args.target).await?).await?;
        let content = saved.encode();
        file.write_all(&content).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok((saved, content.len()))
    };
    let (saved, bytes) = write.await.inspect_err(|_: &Failure| {
        // The file was created above and is incomplete.
        let _ = fs::remove_file(&args.file);
    })?;
    let (entries, revision) = (saved.entries.len(), saved.revision);
    let text = format!("{entries} records of revision {} in {}\n", revision.number, args.file.display());
    let value = json!({
        "file": args.file, "records": entries, "bytes": bytes,
        "store": revision.store.to_string(), "revision": revision.number,
    });
    output::print_one(args.output_args.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn verify(args: Verify) -> Result<ExitCode, Failure> {
    let file = args.file.as_deref().map(open).transpose()?;
    let stored = read(&connect::connect(&args.target).await?).await?;
    let unreadable = unreadable(&stored);
    let difference = file.map(|file| Difference::between(&file.entries, &stored.entries)).unwrap_or_default();
    let sound = unreadable.is_empty() && difference.is_none();
    let mut text = format!("{} records at revision {}", stored.entries.len(), stored.revision.number);
    text += match (sound, &args.file) {
        (true, Some(_)) => ": all equal to the file\n",
        (true, None) => ": all readable\n",
        (false, _) => "\n",
    };
    for (what, keys) in difference.kinds().into_iter().chain([("cannot be read", &unreadable)]) {
        text += &named(what, keys);
    }
    let value = json!({
        "records": stored.entries.len(), "store": stored.revision.store.to_string(),
        "revision": stored.revision.number, "sound": sound, "unreadable": unreadable,
        "missing": difference.missing, "different": difference.different, "further": difference.further,
    });
    output::print_one(args.output_args.format(), &value, &text)?;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DIFFERENT) })
}

/// Lists the first keys of a kind, one per line.
fn named(what: &str, keys: &[String]) -> String {
    let mut text: String = keys.iter().take(MAX_LISTED).map(|key| format!("{what}: {key}\n")).collect();
    if let Some(more) = keys.len().checked_sub(MAX_LISTED + 1) {
        text += &format!("{what}: and {} more\n", more + 1);
    }
    text
}

fn unreadable(saved: &SavedCopy) -> Vec<String> {
    let wrong = saved.entries.iter().filter_map(|(key, entry)| {
        record_encoding::check(key, &entry.value).err().map(|problem| format!("{key}: {problem}"))
    });
    wrong.collect()
}

/// Reads all records of a control plane.
async fn read(connection: &Connection) -> Result<SavedCopy, Failure> {
    let progress = ProgressBar::new_spinner();
    let (revision, entries) = rib_reader::read_all(connection, |entries| {
        progress.set_message(format!("{entries} records read"));
        progress.tick();
    })
    .await?;
    progress.finish_and_clear();
    #[allow(clippy::disallowed_methods, reason = "a file has its time of creation")]
    let at = SystemTime::now();
    let entries = entries
        .into_iter()
        .map(|entry| (Arc::from(entry.key), Entry { value: entry.value, revision: entry.revision }));
    Ok(SavedCopy { prefix: Prefix::everything(), revision, at, entries: entries.collect() })
}

/// Reads the contents of a file.
fn open(path: &Path) -> Result<SavedCopy, Failure> {
    let content = fs::read(path).map_err(|error| {
        Failure::refused(format!("cannot read {}: {error}", path.display()), "give a file of 'rib export'")
    })?;
    let saved = SavedCopy::decode(content.into()).map_err(|problem| {
        Failure::refused(format!("{}: {problem}", path.display()), "give a complete file of 'rib export'")
    })?;
    match saved.prefix == Prefix::everything() {
        true => Ok(saved),
        false => Err(Failure::refused(
            format!("{} has only records below {}", path.display(), saved.prefix),
            "give a file of 'rib export'",
        )),
    }
}
