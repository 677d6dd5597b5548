//! `fairmesh get --watch`: the list, then its rows as they change.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_console::{
    failure::Failure,
    output::{self, Columns, Listing},
    rib_reader::FollowedRecords,
    view_reader::{View, warn_of_unreadable},
};
use fairmesh_model::Prefix;
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use super::{
    GetArgs, Kind,
    list_output::{ListFormat, name, widen},
    listing, read_kinds,
};
use fairmesh_traffic::reconnect::Reconnect;

/// One row or item of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    row: Vec<String>,
    item: Value,
}

/// Prints the list and its changes, until the reader of the output has closed it.
pub(super) async fn watch(connection: &Connection, args: &GetArgs) -> Result<(), Failure> {
    if args.kind == Kind::Watchers {
        let hint = "list them with 'fairmesh get watchers', or see 'fairmesh rib status'";
        return Err(Failure::refused("watchers are no records, and have no watch", hint));
    }
    let mut prefixes = match args.kind {
        Kind::Roles => vec![Prefix::roles()],
        Kind::PolicyDefaults => args.scope().policy_defaults(),
        kind => View::prefixes(&args.scope(), &read_kinds(kind)),
    };
    if args.kind == Kind::Policies {
        prefixes.extend(args.scope().policy_defaults());
    }
    if args.kind == Kind::Regions {
        prefixes.push(Prefix::drains());
    }
    let mut connection = connection.clone();
    let mut records = FollowedRecords::start(&connection, &prefixes).await?;
    let format = args.output_args.format();
    let mut shown = BTreeMap::new();
    let mut columns = None;
    loop {
        let view = View::of_readable(records.records());
        warn_of_unreadable(&view, |_| None);
        let listing = match listing_of(&connection, args, &view).await {
            Err(lost) if lost.is_connection_lost() => {
                (connection, records) = resumed(connection, &prefixes, lost).await?;
                continue;
            }
            listing => listing?,
        };
        let columns = columns.get_or_insert_with(|| first_columns(&listing));
        let mut text = match (shown.is_empty(), format) {
            (true, ListFormat::Table | ListFormat::Wide) => columns.header(),
            _ => String::new(),
        };
        let now = rows(listing, args.kind);
        let first = std::mem::take(&mut shown);
        for (event, key, one) in changes(&first, &now) {
            text += &line(format, columns, (event, key, one))?;
        }
        shown = now;
        if !output::write_while_open(text.as_bytes())? {
            return Ok(());
        }
        if let Err(lost) = records.changed().await {
            (connection, records) = resumed(connection, &prefixes, lost).await?;
        }
    }
}

/// Resumes the watch after the connection was lost, once a control plane responds. Changes in between are printed as
/// changes.
async fn resumed(
    lost: Connection,
    prefixes: &[Prefix],
    why: Failure,
) -> Result<(Connection, FollowedRecords), Failure> {
    let mut attempts = Reconnect::new(lost, &why);
    loop {
        let connection = attempts.next().await?;
        match FollowedRecords::start(&connection, prefixes).await {
            Ok(records) => {
                output::note("connected again");
                return Ok((connection, records));
            }
            // The control plane responds, but refuses the watch.
            Err(refused) => attempts.refused(refused)?,
        }
    }
}

/// The list; a service that does not exist yet is an empty one.
async fn listing_of(connection: &Connection, args: &GetArgs, view: &View) -> Result<Listing, Failure> {
    let missing = args.kind == Kind::Shards
        && args
            .service
            .as_ref()
            .is_some_and(|name| view.services.get(name).is_none_or(|one| one.shards.is_none()));
    if missing {
        return Ok(Listing::new(&["SHARD", "KEYS", "REPLICAS"]));
    }
    let mut listing = listing(connection, args, view).await?;
    if args.output_args.format() == ListFormat::Wide {
        widen(&mut listing, args.kind);
    }
    Ok(listing)
}

/// Column widths for the first list. Longer cells in later rows shift the rest of their row.
fn first_columns(listing: &Listing) -> Columns {
    let mut head = vec!["EVENT"];
    head.extend(&listing.head);
    let mut rows: Vec<Vec<String>> = vec![vec!["changed".to_owned()]];
    rows.extend(listing.rows.iter().map(|row| with_event("", row)));
    Columns::new(&head, &rows)
}

fn with_event(event: &str, row: &[String]) -> Vec<String> {
    let mut cells = vec![event.to_owned()];
    cells.extend_from_slice(row);
    cells
}

/// Rows by a key that stays the same as long as the object exists.
fn rows(listing: Listing, kind: Kind) -> BTreeMap<String, Shown> {
    let each = listing.rows.len() == listing.items.len();
    let whole = listing.items.first().cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for (i, row) in listing.rows.into_iter().enumerate() {
        let item = if each { listing.items[i].clone() } else { whole.clone() };
        let named = if each { name(kind, &item) } else { row.first().cloned() };
        let mut key = named.unwrap_or_else(|| "-".to_owned());
        // Several rows may share a name, such as the classes of one region table.
        while found.contains_key(&key) {
            key.push('\'');
        }
        found.insert(key, Shown { row, item });
    }
    found
}

/// Added, changed and deleted rows, by key.
fn changes<'a>(
    before: &'a BTreeMap<String, Shown>,
    now: &'a BTreeMap<String, Shown>,
) -> Vec<(&'static str, &'a str, &'a Shown)> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let change = |key: &'a String| match (before.get(key), now.get(key)) {
        (None, Some(new)) => Some(("added", key.as_str(), new)),
        (Some(old), Some(new)) if old != new => Some(("changed", key.as_str(), new)),
        (Some(old), None) => Some(("deleted", key.as_str(), old)),
        _ => None,
    };
    keys.into_iter().filter_map(change).collect()
}

fn line(
    format: ListFormat,
    columns: &Columns,
    (event, key, one): (&str, &str, &Shown),
) -> Result<String, Failure> {
    let object = || json!({ "event": event, "object": one.item });
    Ok(match format {
        ListFormat::Table | ListFormat::Wide => columns.line(&with_event(event, &one.row)),
        ListFormat::Name => format!("{}\n", key.trim_end_matches('\'')),
        ListFormat::Json => format!("{}\n", object()),
        ListFormat::Yaml => format!("---\n{}", output::yaml(&object())?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_prints_only_changed_rows() {
        let shown = |rows: &[(&str, &str)]| -> BTreeMap<String, Shown> {
            let one = |state: &str| Shown { row: vec![state.to_owned()], item: Value::Null };
            rows.iter().map(|(key, state)| ((*key).to_owned(), one(state))).collect()
        };
        let (before, now) =
            (shown(&[("a", "1"), ("b", "1"), ("c", "1")]), shown(&[("a", "1"), ("b", "2"), ("d", "1")]));
        let found: Vec<_> = changes(&before, &now).into_iter().map(|(event, key, _)| (event, key)).collect();
        assert_eq!(found, [("changed", "b"), ("deleted", "c"), ("added", "d")]);
    }
}
