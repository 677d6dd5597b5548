//! `fairmesh apply`.

mod changes;
pub(crate) mod warnings;

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Files, Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_model::{ServiceName, ShardMap, spec::Resource};
use fairmesh_wire::{
    handshake::Connection,
    v1::{ApplyRequest, GetShardsRequest, PutShardsRequest, outcome},
};
use serde_json::json;
use tonic::Code;

use crate::manifests::{self, ManifestDocument};

pub(crate) use changes::same_map;

/// Hint for a change of a declaration that has running servers.
const HINT: &str = "write a shard map along with 'type: sharded', and the protocol that its servers speak (see \
    'fairmesh get endpoints'); or say --force where they are ready for it";

/// Moves named in one warning.
const MAX_MOVES_NAMED: usize = 5;

/// Arguments of `fairmesh apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    files: Files,
    /// Why, for the history; shard maps have none.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Only report the changes.
    #[arg(long)]
    dry_run: bool,
    /// Change a declaration even though the service has endpoints, and calls to them would fail.
    #[arg(long)]
    force: bool,
    /// Leave the copies of stored shards where they are: only new shards are placed as the shard map of the file says.
    #[arg(long)]
    keep_moves: bool,
    /// Print nothing on success.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Result of one document.
struct DocumentResult {
    kind: &'static str,
    name: String,
    outcome: &'static str,
}

/// Writes the documents: services, policies, topology and hosts in one transaction, then shard maps one by one.
pub async fn run(args: ApplyArgs) -> Result<ExitCode, Failure> {
    let wanted = manifests::load(&args.files)?;
    let connection = connect::connect(&args.target).await?;
    let message = args.message.as_deref().unwrap_or_default();
    let ApplyArgs { force, dry_run, keep_moves, .. } = args;
    let done = apply(&connection, wanted, Mode { force, dry_run, keep_moves, message }).await?;
    report(&done, &args)?;
    Ok(ExitCode::SUCCESS)
}

/// Applies documents and prints one line for each that changed something.
pub(crate) async fn apply_and_print(
    connection: &Connection,
    wanted: Vec<ManifestDocument>,
) -> Result<(), Failure> {
    let done =
        apply(connection, wanted, Mode { force: false, dry_run: false, keep_moves: false, message: "" })
            .await?;
    let changed = done.iter().filter(|one| one.outcome != word(outcome::Kind::Unchanged));
    let lines = changed.map(|one| format!("{} {} {}\n", one.kind, one.name, one.outcome));
    output::write(&lines.collect::<String>())
}

/// How documents are applied.
#[derive(Clone, Copy)]
struct Mode<'a> {
    force: bool,
    dry_run: bool,
    keep_moves: bool,
    message: &'a str,
}

async fn apply(
    connection: &Connection,
    wanted: Vec<ManifestDocument>,
    mode: Mode<'_>,
) -> Result<Vec<DocumentResult>, Failure> {
    let breaking_changes =
        warnings::print_warnings(connection, &wanted.iter().map(|one| &one.resource).collect::<Vec<_>>())
            .await?;
    if !mode.force && !breaking_changes.is_empty() {
        return Err(Failure::failed_with(breaking_changes.join("; "), HINT));
    }
    let (maps, records): (Vec<_>, Vec<_>) = wanted
        .into_iter()
        .map(|one| one.resource)
        .partition(|resource| matches!(resource, Resource::ShardMap(..)));
    let mut done = apply_records(connection, &records, mode).await?;
    for resource in &maps {
        if let Resource::ShardMap(name, map) = resource {
            let outcome = apply_map(connection, name, map, mode).await?;
            done.push(DocumentResult { kind: "ShardMap", name: name.to_string(), outcome });
        }
    }
    Ok(done)
}

async fn apply_records(
    connection: &Connection,
    resources: &[Resource],
    mode: Mode<'_>,
) -> Result<Vec<DocumentResult>, Failure> {
    if resources.is_empty() {
        return Ok(Vec::new());
    }
    let changes = changes::of(resources);
    let ops = changes::ops(&changes);
    let request = ApplyRequest { ops, dry_run: mode.dry_run, message: mode.message.to_owned() };
    let answer = connection.admin().apply(request).await?.into_inner();
    let done = answer.outcomes.into_iter().filter_map(|outcome| {
        let outcome_kind = outcome.kind();
        let change = changes.iter().find(|change| change.key == outcome.key)?;
        Some(DocumentResult { kind: change.kind, name: change.name.clone(), outcome: word(outcome_kind) })
    });
    Ok(done.collect())
}

fn word(kind: outcome::Kind) -> &'static str {
    match kind {
        outcome::Kind::Unchanged => "unchanged",
        outcome::Kind::Created => "created",
        outcome::Kind::Changed => "changed",
        outcome::Kind::Deleted => "deleted",
    }
}

/// Writes one shard map, based on the stored version unless the file names one.
async fn apply_map(
    connection: &Connection,
    name: &ServiceName,
    map: &ShardMap,
    mode: Mode<'_>,
) -> Result<&'static str, Failure> {
    let (stored, is_unreadable) = match readable_map(connection, name).await? {
        Ok(stored) => (stored, false),
        Err(unreadable) if mode.keep_moves => return Err(unreadable),
        // The warnings say that the written map replaces it.
        Err(_) => (None, true),
    };
    let stored_version = stored.as_ref().map_or(0, |stored| stored.version);
    let asked = if map.version == 0 { stored_version } else { map.version };
    let mut wanted = ShardMap { version: asked, ..map.clone() };
    if let Some(stored) = &stored {
        let (moved, missing) =
            (changes::moved_back(stored, &wanted), changes::missing_shards(stored, &wanted));
        match (mode.keep_moves, &*missing) {
            (true, []) => wanted = changes::with_stored_copies(stored, &wanted),
            (true, _) => return Err(shards_missing(name, &missing)),
            (false, []) => {}
            (false, _) => output::warn(shards_removed(name, &missing)),
        }
        if !mode.keep_moves && !moved.is_empty() {
            output::warn(moves_undone(name, &moved));
        }
    }
    if stored.as_ref().is_some_and(|stored| changes::same_map(stored, &wanted)) {
        return Ok("unchanged");
    }
    if !mode.dry_run {
        let request = PutShardsRequest { service: name.to_string(), map: Some(wanted.into()) };
        connection.registry().put_shards(request).await?;
    }
    Ok(if stored.is_some() || is_unreadable { "changed" } else { "created" })
}

/// The refusal of `--keep-moves` where a shard of the stored map would go: it cannot be told whether the file is older than a
/// split, or merges shards.
fn shards_missing(name: &ServiceName, missing: &[String]) -> Failure {
    Failure::refused(
        format!("the shard map of {name} lacks {}, so --keep-moves cannot keep its copies", named(missing)),
        format!(
            "add it to the file (see 'fairmesh get shards {name}'), or leave --keep-moves out to remove it"
        ),
    )
}

fn shards_removed(name: &ServiceName, missing: &[String]) -> String {
    format!(
        "the shard map of {name} lacks {}: the shard is removed, and another one gets its keys",
        named(missing)
    )
}

/// The first few, and how many more there are.
fn named(all: &[String]) -> String {
    let more = match all.len().saturating_sub(MAX_MOVES_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{}{more}", all[..all.len().min(MAX_MOVES_NAMED)].join("; "))
}

fn moves_undone(name: &ServiceName, moved: &[String]) -> String {
    format!(
        "the shard map of {name} places copies elsewhere than they are now, which undoes moves since it was written: {}; \
         --keep-moves leaves them where they are",
        named(moved)
    )
}

/// The stored shard map of a service, or `None`.
pub(crate) async fn stored_map(
    connection: &Connection,
    name: &ServiceName,
) -> Result<Option<ShardMap>, Failure> {
    readable_map(connection, name).await?
}

/// The stored shard map of a service, or `None`. The inner error is that of a stored map which the control plane cannot
/// read.
async fn readable_map(
    connection: &Connection,
    name: &ServiceName,
) -> Result<Result<Option<ShardMap>, Failure>, Failure> {
    let request = GetShardsRequest { service: name.to_string() };
    match connection.registry().get_shards(request).await {
        Ok(answer) => Ok(Ok(answer.into_inner().map.map(ShardMap::try_from).transpose()?)),
        Err(status) if status.code() == Code::NotFound => Ok(Ok(None)),
        // The name is valid, so that the stored map is not.
        Err(status) if status.code() == Code::InvalidArgument => Ok(Err(status.into())),
        Err(status) => Err(status.into()),
    }
}

fn report(done: &[DocumentResult], args: &ApplyArgs) -> Result<(), Failure> {
    let format = args.output_args.format();
    if args.quiet && format == Format::Table {
        return Ok(());
    }
    let mut listing =
        Listing::new(if args.dry_run { &["KIND", "NAME", "WOULD BE"] } else { &["KIND", "NAME", "OUTCOME"] });
    for DocumentResult { kind, name, outcome } in done {
        listing.add(
            vec![(*kind).into(), name.clone(), (*outcome).into()],
            json!({ "kind": kind, "name": name, "outcome": outcome, "dryRun": args.dry_run }),
        );
    }
    listing.print(format)
}
