//! `fairmesh history`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_model::spec::Document;
use fairmesh_wire::v1::Change;
use serde_json::json;

use crate::{
    cli::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
    yaml_diff,
};

use super::history_key::{self, HistoryKey, NamedRecord};

/// Arguments of `fairmesh history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    of: HistoryKey,
    /// Show whole differences instead of one line each.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// One value of the record.
struct Version<'a> {
    change: &'a Change,
    /// `None` if the record did not exist.
    document: Option<Document>,
}

/// Lists values, newest first, each with its changes from the one before.
pub(crate) async fn run(args: HistoryArgs) -> Result<ExitCode, Failure> {
    let of = args.of.record()?;
    let connection = connect::connect(&args.target).await?;
    let changes = history_key::changes(&connection, &of).await?;
    let versions = changes.iter().map(|change| {
        let document = change.value.as_deref().map(|value| of.document(value)).transpose()?.flatten();
        Ok(Version { change, document })
    });
    let versions = versions.collect::<Result<Vec<_>, Failure>>()?;
    let format = args.output_args.format();
    if args.full && format == Format::Table {
        output::write(&full_diffs(&of, &versions)?)?;
    } else {
        table(&versions)?.print(format)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(versions: &[Version<'_>]) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&["REVISION", "WRITTEN", "BY", "CHANGE"]);
    for (i, version) in versions.iter().enumerate() {
        let Version { change, document } = version;
        let before = versions.get(i + 1);
        let written = before.and_then(|before| replaced(before.change));
        let by = before.map(|before| before.change.replaced_by.clone()).unwrap_or_default();
        let replaced = replaced(change);
        // The absence of a record has no revision while it lasts.
        let revision = Some(change.revision).filter(|number| *number > 0);
        listing.add(
            vec![
                revision.map_or_else(|| "-".to_owned(), |number| number.to_string()),
                written.clone().unwrap_or_default(),
                by.clone(),
                brief(before, version)?,
            ],
            json!({
                "revision": revision,
                "current": replaced.is_none(),
                "writtenAt": written,
                "writtenBy": by,
                "replacedAt": replaced,
                "replacedBy": change.replaced_by,
                "document": document,
            }),
        );
    }
    Ok(listing)
}

/// The changes of a version, in one line.
fn brief(before: Option<&Version<'_>>, version: &Version<'_>) -> Result<String, Failure> {
    Ok(match (before.map(|before| &before.document), &version.document) {
        (None | Some(None), None) => "did not exist".into(),
        (Some(Some(_)), None) => "deleted".into(),
        (Some(None), Some(new)) => format!("created: {}", history_key::one_line(new)),
        (None, Some(oldest)) => history_key::one_line(oldest),
        (Some(Some(old)), Some(new)) => yaml_diff::brief(&output::yaml(old)?, &output::yaml(new)?),
    })
}

/// Every version with its whole difference from the one before.
fn full_diffs(of: &NamedRecord, versions: &[Version<'_>]) -> Result<String, Failure> {
    let yaml = |version: Option<&Version<'_>>| match version.and_then(|version| version.document.as_ref()) {
        Some(document) => output::yaml(document),
        None => Ok(String::new()),
    };
    let name = |version: &Version<'_>| match version.document {
        Some(_) => format!("{} at revision {}", of.title(), version.change.revision),
        None => "/dev/null".to_owned(),
    };
    let mut text = String::new();
    for (i, version) in versions.iter().enumerate() {
        let before = versions.get(i + 1);
        if let Some(before) = before {
            let when = replaced(before.change).unwrap_or_default();
            text.push_str(&format!("written {when} by {}\n", before.change.replaced_by));
        }
        let names = (before.map_or_else(|| "/dev/null".to_owned(), name), name(version));
        let unified = yaml_diff::unified(&yaml(before)?, &yaml(Some(version))?, (&names.0, &names.1));
        text.push_str(&yaml_diff::coloured(&unified));
        text.push('\n');
    }
    Ok(text)
}

/// When the value was replaced, or `None` while it is in force.
fn replaced(change: &Change) -> Option<String> {
    if change.replaced_at_ms == 0 {
        return None;
    }
    let at =
        i64::try_from(change.replaced_at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    Some(at.map_or_else(|| "at an unknown time".into(), |at| format!("{at:.0}")))
}
