//! `fairmesh audit`: the log of writes of a control plane, with a verification of its chain.

use std::process::ExitCode;

use clap::Args;
use fairmesh_control::audit::{AuditChange, AuditEntry, AuditValue, ChainReader};
use fairmesh_wire::{handshake::Connection, v1::ReadAuditRequest};
use serde_json::{Value, json};

use crate::{
    cli::{Format, OutputArgs, TargetArgs},
    command::records::{contents, value_document},
    connect,
    failure::Failure,
    output::{self, Listing},
};

/// The longest value in a row.
const MAX_SHOWN: usize = 60;

/// Arguments of `fairmesh audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only entries after the one with this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    /// Only changes of keys that contain this text.
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Prints the entries, oldest first; fails when the chain is broken, after those before.
pub(crate) async fn run(args: AuditArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut listing = Listing::new(&["NUMBER", "AT", "WHO", "KEY", "BEFORE", "AFTER", "MESSAGE"]);
    listing.why_empty = Some("no write is logged".into());
    let mut chain = ChainReader::default();
    let read = read_all(&connection, args.after, |line| {
        let entry = chain.read(line).map_err(|broken| {
            let hint = "compare it with a copy that was kept elsewhere; entries after this one prove nothing";
            Failure::failed_with(format!("the log of writes was changed: {broken}"), hint)
        })?;
        let wanted = |change: &&AuditChange| args.key.as_ref().is_none_or(|text| change.key.contains(text));
        entry.changes.iter().filter(wanted).for_each(|change| add(&mut listing, &entry, change));
        Ok(())
    });
    let read = read.await;
    // Where nothing was read, something may be logged.
    if read.is_ok() || chain.head().is_some() {
        listing.print(args.output.format())?;
    }
    read?;
    if let (Format::Table, Some((number, hash))) = (args.output.format(), chain.head()) {
        output::say(format_args!(
            "the chain is whole up to entry {number}; its hash, to be kept elsewhere, is {hash}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

async fn read_all(
    connection: &Connection,
    mut after: u64,
    mut take: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let response = connection.admin().read_audit(ReadAuditRequest { after }).await;
        let page = response.map_err(|status| Failure::from_status(&status))?.into_inner();
        after += page.entries.len() as u64;
        for line in &page.entries {
            take(line)?;
            // Older entries may have been dropped, so that numbers do not begin at one.
            if let Some(entry) = number_of(line) {
                after = entry;
            }
        }
        if page.last || page.entries.is_empty() {
            return Ok(());
        }
    }
}

fn number_of(line: &str) -> Option<u64> {
    let (_, content) = line.split_once(' ')?;
    serde_json::from_str::<AuditEntry>(content).ok().map(|entry| entry.number)
}

fn add(listing: &mut Listing, entry: &AuditEntry, change: &AuditChange) {
    let at = i64::try_from(entry.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let at = at.map(|at| at.to_string()).unwrap_or_default();
    let [before, after] = [&change.before, &change.after].map(|value| shown(&change.key, value.as_ref()));
    let row = vec![
        entry.number.to_string(),
        at.clone(),
        entry.who.clone(),
        change.key.clone(),
        short(&before),
        short(&after),
        entry.message.clone().unwrap_or_default(),
    ];
    let item = json!({
        "number": entry.number,
        "at": at,
        "who": entry.who,
        "revision": entry.revision,
        "key": change.key,
        "before": before,
        "after": after,
        "message": entry.message,
    });
    listing.add(row, item);
}

/// A value as its document, or as the log has it.
fn shown(key: &str, value: Option<&AuditValue>) -> Value {
    let Some(value) = value else { return Value::Null };
    let document = value.bytes().and_then(|bytes| value_document(key, &bytes));
    document.map_or_else(|| json!(value), |document| json!(document))
}

/// A value in a row, without what its key says.
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
