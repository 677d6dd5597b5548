//! `fairmesh audit`: the write logs of a control plane, with verification of their hash chains.

use std::{io::Write as _, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use fairmesh_audit::{AuditChange, AuditEntry, AuditEvent, AuditValue, BrokenChain, ChainReader, Log};
use fairmesh_console::output::timestamp;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_wire::{handshake::Connection, v1::ReadAuditRequest};
use serde_json::{Value, json};

use crate::records::{contents, value_document};

/// Maximum length of a value that is shown in a row.
const MAX_SHOWN: usize = 60;
/// Interval at which a log is read while it is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// A log, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogArg {
    /// Writes of configuration, roles and identities, and tokens that were made.
    Security,
    /// Writes of endpoints and shard maps, refused calls, issued certificates, reads of the logs.
    Activity,
}

impl From<LogArg> for Log {
    fn from(log: LogArg) -> Self {
        match log {
            LogArg::Security => Self::Security,
            LogArg::Activity => Self::Activity,
        }
    }
}

/// Arguments of `fairmesh audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only this log; by default both, one after the other.
    #[arg(long, value_enum)]
    log: Option<LogArg>,
    /// Only entries after the one with this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    /// Print entries as they are logged, as JSON lines with their hashes, until interrupted: to ship the log to another machine.
    #[arg(long)]
    follow: bool,
    /// Only changes of keys that contain this text.
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Prints the entries, oldest first. If a hash chain is broken, fails after printing the entries before the break.
pub async fn run(args: AuditArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let logs = args.log.map_or_else(|| Log::ALL.to_vec(), |log| vec![log.into()]);
    if args.follow {
        return follow(&connection, &logs, &args).await;
    }
    let mut listing = Listing::new(&["NUMBER", "AT", "WHO", "KEY", "BEFORE", "AFTER", "MESSAGE"]);
    listing.why_empty = Some("no write is logged".into());
    listing.cut_columns = &["BEFORE", "AFTER", "MESSAGE", "WHO"];
    let (mut read, mut has_read, mut verdicts) = (Ok(()), false, Vec::new());
    for log in logs {
        let mut chain = ChainReader::default();
        let take = |line: &str, chain: &mut ChainReader| {
            let entry = chain.read(line).map_err(|broken| changed(log, &broken))?;
            add_entry(&mut listing, log, &entry, args.key.as_deref());
            Ok(())
        };
        let complete = read_all(&connection, log, (args.after, &mut chain), take).await;
        let complete =
            complete.and_then(|_| chain.complete_from(args.after).map_err(|gap| changed(log, &gap)));
        has_read |= chain.head().is_some();
        verdicts.extend(complete.as_ref().ok().and_then(|from| Some(verdict(log, (*from)?, chain.head()?))));
        read = read.and(complete.map(drop));
    }
    // If nothing was read, wait for the next entry.
    if read.is_ok() || has_read {
        listing.print(args.output.format())?;
    }
    read?;
    if matches!(args.output.format(), Format::Table) {
        verdicts.iter().for_each(output::say);
    }
    Ok(ExitCode::SUCCESS)
}

fn verdict(log: Log, from: u64, (number, hash): (u64, &str)) -> String {
    let complete = match from {
        1 => "complete from its beginning".to_owned(),
        from => format!("complete from entry {from}"),
    };
    let log = log.as_str();
    format!(
        "{log}: the chain is whole up to entry {number}, {complete}; its hash, to be kept elsewhere, is {hash}"
    )
}

fn changed(log: Log, broken: &BrokenChain) -> Failure {
    let hint = "compare it with a copy that was kept elsewhere; entries after this one prove nothing";
    Failure::failed_with(format!("the log of writes was changed ({}): {broken}", log.as_str()), hint)
}

/// Prints new entries of the logs, each as a JSON line with its log and its hash.
async fn follow(connection: &Connection, logs: &[Log], args: &AuditArgs) -> Result<ExitCode, Failure> {
    let mut states: Vec<_> = logs.iter().map(|log| (*log, args.after, ChainReader::default())).collect();
    loop {
        for (log, after, chain) in &mut states {
            let log = *log;
            let take = |line: &str, chain: &mut ChainReader| {
                let entry = chain.read(line).map_err(|broken| changed(log, &broken))?;
                let hash = chain.head().map(|(_, hash)| hash);
                let wanted = args
                    .key
                    .as_deref()
                    .is_none_or(|text| entry.changes.iter().any(|change| change.key.contains(text)));
                let line = json!({
                    "log": log.as_str(),
                    "hash": hash,
                    "entry": entry,
                    "decoded": decoded(log, &entry),
                });
                if wanted && writeln!(std::io::stdout(), "{line}").is_err() {
                    return Err(Failure::failed("nothing reads the entries"));
                }
                Ok(())
            };
            let before = *after;
            *after = read_all(connection, log, (before, chain), take).await?;
            if before == args.after {
                chain.complete_from(args.after).map_err(|gap| changed(log, &gap))?;
            }
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Reads the lines after entry number `after`. Returns the number of the last one.
async fn read_all(
    connection: &Connection,
    log: Log,
    (mut after, chain): (u64, &mut ChainReader),
    mut take: impl FnMut(&str, &mut ChainReader) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let activity = log == Log::Activity;
    loop {
        let response = connection.admin().read_audit(ReadAuditRequest { after, activity }).await;
        let page = response.map_err(|status| Failure::from_status(&status))?.into_inner();
        after += page.entries.len() as u64;
        for line in &page.entries {
            take(line, chain)?;
            // Older entries may have been dropped, so numbers need not begin at one.
            if let Some(entry) = number_of(line) {
                after = entry;
            }
        }
        if page.last || page.entries.is_empty() {
            return Ok(after);
        }
    }
}

fn number_of(line: &str) -> Option<u64> {
    let (_, content) = line.split_once(' ')?;
    serde_json::from_str::<AuditEntry>(content).ok().map(|entry| entry.number)
}

/// Adds the changes of an entry, or its event, if the key contains the given text.
fn add_entry(listing: &mut Listing, log: Log, entry: &AuditEntry, key: Option<&str>) {
    let wanted = |change: &&AuditChange| key.is_none_or(|text| change.key.contains(text));
    entry.changes.iter().filter(wanted).for_each(|change| add(listing, log, entry, change));
    let Some(event) = entry.event.as_ref().filter(|_| key.is_none()) else { return };
    let item = event_item(log, entry, event);
    let details = short(&item["details"]);
    let row = [&entry.number.to_string(), &to_second(entry), &entry.who, event.kind(), "-", &details, ""];
    listing.add(row.map(str::to_owned).to_vec(), item);
}

/// The changes and the event of an entry, as `--json` prints them.
fn decoded(log: Log, entry: &AuditEntry) -> Vec<Value> {
    let changes = entry.changes.iter().map(|change| change_item(log, entry, change));
    changes.chain(entry.event.iter().map(|event| event_item(log, entry, event))).collect()
}

fn event_item(log: Log, entry: &AuditEntry, event: &AuditEvent) -> Value {
    let (kind, event) = (event.kind(), json!(event));
    json!({
        "log": log.as_str(),
        "number": entry.number,
        "at": time(entry),
        "who": entry.who,
        "event": kind,
        "details": event.get(kind).cloned().unwrap_or_default(),
    })
}

fn change_item(log: Log, entry: &AuditEntry, change: &AuditChange) -> Value {
    let [before, after] = [&change.before, &change.after].map(|value| shown(&change.key, value.as_ref()));
    json!({
        "log": log.as_str(),
        "number": entry.number,
        "at": time(entry),
        "who": entry.who,
        "revision": entry.revision,
        "key": change.key,
        "before": before,
        "after": after,
        "message": entry.message,
    })
}

fn time(entry: &AuditEntry) -> String {
    let at = i64::try_from(entry.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

/// The time of an entry in a row.
fn to_second(entry: &AuditEntry) -> String {
    timestamp(entry.at_ms / 1000)
}

fn add(listing: &mut Listing, log: Log, entry: &AuditEntry, change: &AuditChange) {
    let item = change_item(log, entry, change);
    let (before, after) = (&item["before"], &item["after"]);
    let row = vec![
        entry.number.to_string(),
        to_second(entry),
        entry.who.clone(),
        change.key.clone(),
        short(&without_equal_fields(before, after)),
        short(&without_equal_fields(after, before)),
        entry.message.clone().unwrap_or_default(),
    ];
    listing.add(row, item);
}

/// A value as a document, or its hash or size where it is none. `--follow` prints the bytes too.
fn shown(key: &str, value: Option<&AuditValue>) -> Value {
    let Some(value) = value else { return Value::Null };
    match value.bytes() {
        Some(bytes) => value_document(key, &bytes).unwrap_or_else(|| json!({ "bytes": bytes.len() })),
        None => json!(value),
    }
}

/// The fields of a value that another one does not have, or has otherwise. Rows show what a write changed.
fn without_equal_fields(value: &Value, other: &Value) -> Value {
    match (value, other) {
        (Value::Object(fields), Value::Object(others)) => fields
            .iter()
            .filter(|(name, field)| others.get(*name) != Some(*field))
            .map(|(name, field)| (name.clone(), field.clone()))
            .collect(),
        _ => value.clone(),
    }
}

/// Formats a value for a row, without fields that repeat the key.
fn short(value: &Value) -> String {
    if value.is_null() {
        return "-".into();
    }
    let text = contents(value.clone()).to_string();
    let mut cut: String = text.chars().take(MAX_SHOWN).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_changed_fields_and_no_encoded_bytes() {
        let (before, after) =
            (json!({"timeout": "5s", "retries": 1}), json!({"timeout": "6s", "retries": 1}));
        assert_eq!(short(&without_equal_fields(&before, &after)), r#"{"timeout":"5s"}"#);
        assert_eq!(without_equal_fields(&after, &Value::Null), after, "a new record is shown whole");
        let unknown = AuditValue::Base64("AAEC".into());
        assert_eq!(shown("/g/kind-of-a-later-release", Some(&unknown)), json!({"bytes": 3}));
        let hashed = AuditValue::Sha256("ab12".into());
        assert_eq!(shown("/t/shop/policies/cart", Some(&hashed)), json!({"sha256": "ab12"}));
    }
}
