//! Arguments that many commands share: the address to call, and the output format.

use std::{env, fs::File, io::Read as _, path::PathBuf};

use clap::{Args, ValueEnum};
use fairmesh_identity::OneWayTls;
use fairmesh_wire::{
    environment,
    transport::{Address, BearerToken},
};

use crate::failure::Failure;

/// Environment variable of the user's token. There is no option for it, because lists of processes show options.
const TOKEN: &str = "FAIRMESH_TOKEN";
/// Environment variable of the password for etcd. Unlike options, it is not shown in process lists.
pub const ETCD_PASSWORD: &str = "FAIRMESH_ETCD_PASSWORD";
/// Environment variables with secrets of the mesh's processes and commands. Programs that these start do not inherit them, since
/// many write their environment into logs and crash reports.
pub const SECRET_VARIABLES: [&str; 3] = [TOKEN, "FAIRMESH_JOIN_TOKEN", ETCD_PASSWORD];
/// Headers by which a process proves itself to a collector of telemetry. The program of a service may have a use for them.
pub const EXPORTER_HEADERS: [&str; 3] =
    ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"];

/// Address of the control plane.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    /// The control plane: host:port or unix:/path; several are attempted in order [default: its socket on this machine,
    /// else 127.0.0.1:7400].
    #[arg(long, env = "FAIRMESH_CONTROL", value_name = "ADDRESS", value_delimiter = ',')]
    control: Vec<Address>,
    /// A file with the token of the user, as an identity provider issued it [default: FAIRMESH_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the roots of the mesh, ca/bundle.pem of a control plane, by which the control plane is verified over TCP: for
    /// users with a token on machines without an agent.
    #[arg(long, env = "FAIRMESH_TRUST_BUNDLE", value_name = "FILE")]
    trust_bundle: Option<PathBuf>,
    /// Whether the token may come from the environment.
    #[arg(skip = true)]
    takes_environment: bool,
    /// The agent that gives the identity of this command, of a mesh that the command starts itself.
    #[arg(skip)]
    agent: Option<Address>,
}

impl TargetArgs {
    /// A target without a token.
    pub const fn without_token(control: Vec<Address>) -> Self {
        Self { control, token_file: None, trust_bundle: None, takes_environment: false, agent: None }
    }

    /// A target in a mesh that the command starts itself, with the identity of the mesh's own agent. The agent of this
    /// machine may be a member of another mesh.
    pub fn in_own_mesh(control: Vec<Address>, agent: Address) -> Self {
        Self { agent: Some(agent), ..Self::without_token(control) }
    }

    /// The agent that gives the identity of this command, if it is not the agent of this machine.
    pub const fn own_agent(&self) -> Option<&Address> {
        self.agent.as_ref()
    }

    /// Addresses of control planes, at least one. Determined at each call, because a control plane that starts
    /// meanwhile creates its socket.
    pub fn addresses(&self) -> Vec<Address> {
        match &self.control[..] {
            [] => vec![environment::control()],
            given => given.to_vec(),
        }
    }

    /// Verification of the control plane by its roots, on a machine without an agent.
    pub fn one_way_tls(&self) -> Result<Option<OneWayTls>, Failure> {
        let hint = "give ca/bundle.pem of the control plane's data directory";
        let opened = self.trust_bundle.as_deref().map(OneWayTls::open).transpose();
        opened.map_err(|error| Failure::refused(format!("--trust-bundle: {error}"), hint))
    }

    /// The user's token, if there is one.
    pub fn token(&self) -> Result<Option<BearerToken>, Failure> {
        let invalid = |from: &str, problem: String| {
            Failure::refused(
                format!("{from}: {problem}"),
                "give the token alone, as the identity provider issued it",
            )
        };
        if let Some(path) = &self.token_file {
            let from = format!("--token-file {}", path.display());
            let mut text = String::new();
            let bound = 2 * u64::try_from(BearerToken::MAX).unwrap_or(u64::MAX);
            let read = File::open(path).and_then(|file| file.take(bound).read_to_string(&mut text));
            read.map_err(|error| invalid(&from, error.to_string()))?;
            return BearerToken::new(&text).map(Some).map_err(|error| invalid(&from, error.problem));
        }
        let text = env::var(TOKEN).ok().filter(|text| self.takes_environment && !text.is_empty());
        let token = text.map(|text| BearerToken::new(&text)).transpose();
        token.map_err(|error| invalid(TOKEN, error.problem))
    }
}

/// Address of this machine's agent.
#[derive(Clone, Debug, Args)]
pub struct AgentTarget {
    /// The agent of this machine: host:port or unix:/path [default: its default socket].
    #[arg(long, env = "FAIRMESH_AGENT", value_name = "ADDRESS")]
    pub agent: Option<Address>,
}

impl AgentTarget {
    /// Address on which the agent listens.
    pub fn address(&self) -> Address {
        self.agent.clone().unwrap_or_else(environment::agent)
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Output format: a table for people, or a format for programs.
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORM")]
    output: Format,
    /// Short for --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
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
    pub fn is_table(self) -> bool {
        matches!(self.format(), Format::Table)
    }

    /// The selected format.
    pub fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

/// YAML files as arguments.
#[derive(Debug, Args)]
pub struct Files {
    /// A file, a folder (its .yaml and .yml files, by name), or - for standard input; may be repeated.
    #[arg(short = 'f', long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
}
