//! All records as a file: written, compared, and, in `import`, put into another store.

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
use fairmesh_model::Prefix;
use fairmesh_rib::{Entry, cache::Saved};
use fairmesh_wire::{handshake::Connection, records};
use indicatif::ProgressBar;
use serde_json::json;

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output, rib,
};
use difference::Difference;

/// What there is differs from the file, or cannot be read.
const DIFFERENT: u8 = 3;
/// How many keys a person is told of each kind.
const NAMED: usize = 10;

/// Arguments of `fairmesh rib export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The file, which must not be there yet.
    file: PathBuf,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Arguments of `fairmesh rib verify`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The file to compare with.
    file: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

pub(super) async fn export(args: Export) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        let problem = format!("cannot write {}: {error}", args.file.display());
        Failure::failed_with(problem, "name a new file in a folder that exists, on a disk with room")
    };
    // Before anything is read, so that a wrong name costs no time.
    let mut file = File::create_new(&args.file).map_err(failed)?;
    let write = async {
        let saved = read(&connect::connect(&args.reach).await?).await?;
        let content = saved.encode();
        file.write_all(&content).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok((saved, content.len()))
    };
    let (saved, bytes) = write.await.inspect_err(|_: &Failure| {
        // It was made above, and is of no use to anybody.
        let _ = fs::remove_file(&args.file);
    })?;
    let (entries, revision) = (saved.entries.len(), saved.revision);
    let text = format!("{entries} records of revision {} in {}\n", revision.number, args.file.display());
    let value = json!({
        "file": args.file, "records": entries, "bytes": bytes,
        "store": revision.store.to_string(), "revision": revision.number,
    });
    output::print_one(args.seen_as.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn verify(args: Verify) -> Result<ExitCode, Failure> {
    let file = args.file.as_deref().map(open).transpose()?;
    let stored = read(&connect::connect(&args.reach).await?).await?;
    let unreadable = unreadable(&stored);
    let difference = file.map(|file| Difference::between(&file.entries, &stored.entries)).unwrap_or_default();
    let sound = unreadable.is_empty() && difference.is_none();
    let mut text = format!("{} records at revision {}", stored.entries.len(), stored.revision.number);
    text += match (sound, &args.file) {
        (true, Some(_)) => ": all as in the file\n",
        (true, None) => ": all can be read\n",
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
    output::print_one(args.seen_as.format(), &value, &text)?;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// Some of the keys of a kind, a line each.
fn named(what: &str, keys: &[String]) -> String {
    let mut text: String = keys.iter().take(NAMED).map(|key| format!("{what}: {key}\n")).collect();
    if let Some(more) = keys.len().checked_sub(NAMED + 1) {
        text += &format!("{what}: and {} more\n", more + 1);
    }
    text
}

fn unreadable(saved: &Saved) -> Vec<String> {
    let wrong = saved.entries.iter().filter_map(|(key, entry)| {
        records::check(key, &entry.value).err().map(|problem| format!("{key}: {problem}"))
    });
    wrong.collect()
}

/// Everything that a control plane has.
async fn read(connection: &Connection) -> Result<Saved, Failure> {
    let progress = ProgressBar::new_spinner();
    let (revision, entries) = rib::everything(connection, |entries| {
        progress.set_message(format!("{entries} records read"));
        progress.tick();
    })
    .await?;
    progress.finish_and_clear();
    #[allow(clippy::disallowed_methods, reason = "a file says when it was made")]
    let at = SystemTime::now();
    let entries = entries
        .into_iter()
        .map(|entry| (Arc::from(entry.key), Entry { value: entry.value, revision: entry.revision }));
    Ok(Saved { prefix: Prefix::everything(), revision, at, entries: entries.collect() })
}

/// What a file holds.
fn open(path: &Path) -> Result<Saved, Failure> {
    let content = fs::read(path).map_err(|error| {
        Failure::refused(format!("cannot read {}: {error}", path.display()), "name a file of 'rib export'")
    })?;
    let saved = Saved::decode(content.into()).map_err(|problem| {
        Failure::refused(format!("{}: {problem}", path.display()), "name a whole file of 'rib export'")
    })?;
    match saved.prefix == Prefix::everything() {
        true => Ok(saved),
        false => Err(Failure::refused(
            format!("{} holds only what is below {}", path.display(), saved.prefix),
            "name a file of 'rib export'",
        )),
    }
}
