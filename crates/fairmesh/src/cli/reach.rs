//! Arguments that many commands share: whom to ask, and how to show the answer.

use clap::{Args, ValueEnum};
use fairmesh_client::places;
use fairmesh_wire::transport::Address;

/// Whom to ask.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// The control plane: host:port or unix:/path.
    #[arg(long, env = "FAIRMESH_CONTROL", default_value = "127.0.0.1:7400", value_name = "ADDRESS")]
    pub(crate) control: Address,
}

/// This machine's agent, for what only it knows.
#[derive(Clone, Debug, Args)]
pub(crate) struct Agent {
    /// The agent of this machine: host:port or unix:/path [default: its usual socket].
    #[arg(long, env = "FAIRMESH_AGENT", value_name = "ADDRESS")]
    pub(crate) agent: Option<Address>,
}

impl Agent {
    /// Where it listens.
    pub(crate) fn address(&self) -> Address {
        self.agent.clone().unwrap_or_else(places::agent)
    }
}

/// How to show an answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SeenAs {
    /// How to print: a table for people, or a form for programs.
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORM")]
    output: Format,
    /// Short for --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// A form of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// YAML, in the form that `apply` reads where there is one.
    Yaml,
}

impl SeenAs {
    /// Whether a person reads it.
    pub(crate) fn is_table(self) -> bool {
        matches!(self.format(), Format::Table)
    }

    /// The form that was asked for.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}
