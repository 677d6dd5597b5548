//! Output of lists: the formats of every command, plus `wide` and `name`.

use clap::{Args, ValueEnum};
use fairmesh_console::{
    arguments::Format,
    failure::Failure,
    output::{self, Listing},
};
use serde_json::Value;

use super::Kind;

/// Output format of a list.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ListOutputArgs {
    /// Output format: a table for people, or a format for programs.
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORM")]
    output: ListFormat,
    /// Short for --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// An output format of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ListFormat {
    /// For people.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// Names alone, one per line, as other commands take them.
    Name,
    /// One JSON document.
    Json,
    /// YAML, as `apply` reads it where applicable.
    Yaml,
}

impl ListOutputArgs {
    /// The selected format.
    pub(super) fn format(self) -> ListFormat {
        if self.json { ListFormat::Json } else { self.output }
    }
}

/// Prints a list.
pub(super) fn print(mut listing: Listing, kind: Kind, format: ListFormat) -> Result<(), Failure> {
    match format {
        ListFormat::Table => listing.print(Format::Table),
        ListFormat::Json => listing.print(Format::Json),
        ListFormat::Yaml => listing.print(Format::Yaml),
        ListFormat::Wide => {
            widen(&mut listing, kind);
            listing.print(Format::Table)
        }
        ListFormat::Name => {
            let mut names: Vec<_> = listing.items.iter().filter_map(|item| name(kind, item)).collect();
            names.dedup();
            output::write(&names.iter().map(|name| format!("{name}\n")).collect::<String>())
        }
    }
}

/// Adds the columns that only `wide` has.
pub(super) fn widen(listing: &mut Listing, kind: Kind) {
    let columns = wide_columns(kind);
    // The shards of one map are one item.
    if listing.rows.len() != listing.items.len() {
        return;
    }
    listing.head.extend(columns.iter().map(|(title, _)| title));
    for (row, item) in listing.rows.iter_mut().zip(&listing.items) {
        row.extend(columns.iter().map(|(_, field)| cell(&item[*field])));
    }
}

/// Titles of the wide columns, with their JSON fields.
fn wide_columns(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Services => {
            &[("UNHEALTHY", "unhealthy"), ("VIRTUAL ADDRESS", "virtualAddress"), ("REVISION", "revision")]
        }
        Kind::Endpoints => &[
            ("CLUSTER", "cluster"),
            ("HOST TYPE", "hostType"),
            ("MTLS", "mtls"),
            ("LABELS", "labels"),
            ("REVISION", "revision"),
        ],
        Kind::Policies => &[("LOOKASIDE", "lookaside")],
        Kind::Health => &[("STALE", "stale")],
        Kind::Tables => &[("ROUND", "confirmedRound"), ("CONFIRMED S AGO", "confirmedSecondsAgo")],
        Kind::Regions => &[("DECLARED", "declared")],
        Kind::Shards
        | Kind::Hosts
        | Kind::Moves
        | Kind::Watchers
        | Kind::PolicyDefaults
        | Kind::Workloads
        | Kind::Authorization
        | Kind::Roles
        | Kind::GatewayBackends
        | Kind::GatewayQuotas
        | Kind::GatewayServices => &[],
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}={}", cell(value)));
            fields.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// Name of an object in the form that other commands take; `None` for objects without a name.
pub(super) fn name(kind: Kind, item: &Value) -> Option<String> {
    let field = |name: &str| match &item[name] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let within = |name: &str| Some(format!("{}/{}", field("service")?, field(name)?));
    match kind {
        Kind::Services | Kind::Regions | Kind::Hosts | Kind::Roles | Kind::GatewayBackends => field("name"),
        Kind::GatewayQuotas => field("tenant"),
        Kind::Endpoints | Kind::Health => within("instance"),
        Kind::Policies | Kind::Shards | Kind::Workloads | Kind::Authorization | Kind::GatewayServices => {
            field("service")
        }
        Kind::PolicyDefaults => field("tenant"),
        Kind::Moves => within("shard"),
        Kind::Tables => within("from"),
        Kind::Watchers => field("software"),
    }
}
