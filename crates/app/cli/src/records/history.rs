//! `fairmesh history`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_model::spec::Document;
use serde_json::json;

use crate::{
    document_diff,
    yaml_diff::{self, NamedText},
};

use super::history_key::{self, HistoryKey, Version, Written};

/// Arguments of `fairmesh history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
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

/// One version of the record for display.
struct Shown {
    version: Version,
    /// The document; `None` if the record did not exist, or cannot be read.
    document: Option<Document>,
    /// Why the value cannot be read, if it cannot.
    unreadable: Option<String>,
}

/// Lists versions, newest first, each with its changes from the previous one.
pub async fn run(args: HistoryArgs) -> Result<ExitCode, Failure> {
    args.of.validate()?;
    let connection = connect::connect(&args.target).await?;
    let versions = history_key::versions(&connection, &args.of).await?;
    let shown = versions.into_iter().map(|version| match args.of.document(&version) {
        Ok(document) => Shown { version, document, unreadable: None },
        Err(failure) => Shown { version, document: None, unreadable: Some(failure.message()) },
    });
    let shown: Vec<_> = shown.collect();
    let format = args.output_args.format();
    if args.full && format == Format::Table {
        output::write(&full_diffs(&args.of, &shown)?)?;
    } else {
        table(&shown).print(format)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(versions: &[Shown]) -> Listing {
    let mut listing = Listing::new(&["REVISION", "WRITTEN", "BY", "CHANGE", "MESSAGE"]);
    for (i, shown) in versions.iter().enumerate() {
        let Shown { version, document, unreadable } = shown;
        let change = summary(versions.get(i + 1), shown);
        // A record that is currently absent has no revision.
        let revision = Some(version.revision).filter(|number| *number > 0);
        let written = version.written.as_ref();
        let by = written.map(|written| written.by.clone()).unwrap_or_default();
        let message = written.map(|written| written.message.clone()).unwrap_or_default();
        let replaced = i.checked_sub(1).and_then(|newer| versions[newer].version.written.as_ref());
        listing.add(
            vec![
                revision.map_or_else(|| "-".to_owned(), |number| number.to_string()),
                written.map(time).unwrap_or_default(),
                by.clone(),
                change.clone(),
                message.clone(),
            ],
            json!({
                "revision": revision,
                "current": i == 0,
                "writtenAt": written.map(time),
                "writtenBy": by,
                "message": message,
                "change": change,
                "replacedAt": replaced.map(time),
                "replacedBy": replaced.map(|replaced| &replaced.by),
                "document": document,
                "unreadable": unreadable,
            }),
        );
    }
    listing
}

/// The changes of a version on one line.
fn summary(before: Option<&Shown>, shown: &Shown) -> String {
    if let Some(why) = &shown.unreadable {
        return format!("cannot be read: {why}");
    }
    // The changes from an unreadable version are not known.
    let before = before.filter(|before| before.unreadable.is_none()).map(|before| &before.document);
    match (before, &shown.document) {
        (None | Some(None), None) => "did not exist".into(),
        (Some(Some(_)), None) => "deleted".into(),
        (Some(None), Some(new)) => format!("created: {}", history_key::one_line(new)),
        (None, Some(oldest)) => history_key::one_line(oldest),
        (Some(Some(old)), Some(new)) => {
            document_diff::summary(&history_key::contents(old), &history_key::contents(new))
        }
    }
}

/// Every version with its full difference from the previous one.
fn full_diffs(of: &HistoryKey, versions: &[Shown]) -> Result<String, Failure> {
    let yaml = |shown: Option<&Shown>| match shown.and_then(|shown| shown.document.as_ref()) {
        Some(document) => output::yaml(document),
        None => Ok(String::new()),
    };
    let name = |shown: &Shown| match (&shown.document, &shown.unreadable) {
        (None, Some(why)) => format!("a value that cannot be read: {why}"),
        (Some(_), _) => format!("{} at revision {}", of.title(), shown.version.revision),
        (None, None) => "/dev/null".to_owned(),
    };
    let mut text = String::new();
    for (i, shown) in versions.iter().enumerate() {
        if let Some(written) = &shown.version.written {
            text.push_str(&format!("written {} by {}\n", time(written), written.by));
            if !written.message.is_empty() {
                text.push_str(&format!("{}\n", written.message));
            }
        }
        let before = versions.get(i + 1);
        let (old_name, new_name) = (before.map_or_else(|| "/dev/null".to_owned(), name), name(shown));
        let (old, new) = (yaml(before)?, yaml(Some(shown))?);
        let old = NamedText { name: &old_name, text: &old };
        let unified = yaml_diff::unified(old, NamedText { name: &new_name, text: &new });
        text.push_str(&yaml_diff::coloured(&unified));
        text.push('\n');
    }
    Ok(text)
}

fn time(written: &Written) -> String {
    let at = i64::try_from(written.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "at an unknown time".into(), |at| format!("{at:.0}"))
}
