//! Arguments that many commands share: the address to call, and the output format.

use clap::{Args, ValueEnum};
use fairmesh_wire::environment;
use fairmesh_wire::transport::Address;

/// Address of the control plane.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// The control plane: host:port or unix:/path [default: its socket on this machine, else 127.0.0.1:7400].
    #[arg(long, env = "FAIRMESH_CONTROL", value_name = "ADDRESS")]
    pub(crate) control: Option<Address>,
}

impl TargetArgs {
    /// Its address. Looked for at each call: a control plane that starts meanwhile makes its socket.
    pub(crate) fn address(&self) -> Address {
        self.control.clone().unwrap_or_else(environment::control)
    }
}

/// Address of this machine's agent.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentTarget {
    /// The agent of this machine: host:port or unix:/path [default: its default socket].
    #[arg(long, env = "FAIRMESH_AGENT", value_name = "ADDRESS")]
    pub(crate) agent: Option<Address>,
}

impl AgentTarget {
    /// Address on which the agent listens.
    pub(crate) fn address(&self) -> Address {
        self.agent.clone().unwrap_or_else(environment::agent)
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Output format: a table for people, or a format for programs.
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORM")]
    output: Format,
    /// Short for --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// YAML, as `apply` reads it where applicable.
    Yaml,
}

impl OutputArgs {
    /// Whether the output is for people.
    pub(crate) fn is_table(self) -> bool {
        matches!(self.format(), Format::Table)
    }

    /// The selected format.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}
