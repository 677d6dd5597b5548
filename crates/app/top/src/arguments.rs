use std::time::Duration;

use clap::{Args, ValueEnum};
use fairmesh_console::arguments::{OutputArgs, TargetArgs};
use fairmesh_model::{ServiceName, Tenant, spec::read_duration};

/// Arguments of `fairmesh top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only calls from and to this service, as tenant/service [default: all].
    pub(crate) service: Option<ServiceName>,
    /// Only calls from and to services of this tenant.
    #[arg(long, conflicts_with = "service")]
    pub(crate) tenant: Option<Tenant>,
    /// What a row is.
    #[arg(long, value_enum, default_value_t, value_name = "GROUP")]
    pub(crate) by: GroupBy,
    /// The column that rows are sorted by.
    #[arg(long, value_enum, default_value_t, value_name = "COLUMN")]
    pub(crate) sort: SortBy,
    /// Only rows whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// The time over which calls are added up, from 10s to 1h.
    #[arg(long, value_name = "DURATION", value_parser = window, default_value = "1m")]
    pub(crate) window: Duration,
    /// Print one table, and end. The default where standard output is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn window(text: &str) -> Result<Duration, String> {
    let window = read_duration(text).map_err(|problem| problem.to_string())?;
    match (Duration::from_secs(10)..=Duration::from_secs(3_600)).contains(&window) {
        true => Ok(window),
        false => Err("write a duration from 10s to 1h".to_owned()),
    }
}

/// What a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupBy {
    /// A called service.
    #[default]
    Services,
    /// A calling and a called service.
    Pairs,
    /// The region of the callers and that of the servers.
    Regions,
    /// A called service and the class that routes set.
    Routes,
    /// Calls that the rules of a service do not allow.
    Denied,
}

impl GroupBy {
    pub(crate) const ALL: [Self; 5] =
        [Self::Services, Self::Pairs, Self::Regions, Self::Routes, Self::Denied];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Pairs => "pairs",
            Self::Regions => "regions",
            Self::Routes => "routes",
            Self::Denied => "denied",
        }
    }

    /// The headings of the columns that name a row.
    pub(crate) const fn headings(self) -> &'static [&'static str] {
        match self {
            Self::Services => &["SERVICE"],
            Self::Pairs => &["CALLER", "SERVICE"],
            Self::Regions => &["FROM", "TO"],
            Self::Routes => &["SERVICE", "CLASS"],
            Self::Denied => &["SERVICE", "CALLER", "RULE", "MODE", "METHOD", "PATH"],
        }
    }
}

/// The column that rows are sorted by, the greatest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Calls per second.
    #[default]
    Rate,
    /// Failures per second.
    Failures,
    /// The latency that 99 % of responses do not exceed.
    P99,
    /// Cores wasted by uneven load.
    Wasted,
    /// Bytes per second between regions.
    Egress,
    /// The name, from A to Z.
    Name,
}

impl SortBy {
    pub(crate) const ALL: [Self; 6] =
        [Self::Rate, Self::Failures, Self::P99, Self::Wasted, Self::Egress, Self::Name];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Failures => "failures",
            Self::P99 => "p99",
            Self::Wasted => "wasted cores",
            Self::Egress => "egress",
            Self::Name => "name",
        }
    }
}
