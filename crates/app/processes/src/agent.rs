//! `fairmesh agent`.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use fairmesh_agent::AgentConfig;
use fairmesh_console::{
    connect::transport, default_paths, failure::Failure, socket_table::unix_listeners, stop_signals,
};
use fairmesh_identity::JoinToken;
use fairmesh_keyserver::protect_memory;
use fairmesh_model::{Cluster, HostType, Location, Region, Zone};
use fairmesh_wire::{environment, transport::Address};

use crate::logging::Logging;

use super::daemon_args::{AdminAddress, host_name};

/// Arguments of `fairmesh agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The control plane: host:port or unix:/path; several are attempted in order [default: its socket on this machine,
    /// then 127.0.0.1:7400].
    #[arg(
        long,
        env = "FAIRMESH_CONTROL",
        default_values_t = default_control(),
        hide_default_value = true,
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    control: Vec<Address>,
    /// Address for local programs [default: unix:/run/fairmesh/agent.sock, or when not root in $XDG_RUNTIME_DIR, else
    /// in ~/.local/state/fairmesh/run].
    #[arg(long, env = "FAIRMESH_AGENT", value_name = "ADDRESS")]
    listen: Option<Address>,
    /// Directory of the copy of the routing information [default: /var/lib/fairmesh/agent, or below
    /// ~/.local/state/fairmesh when not root].
    #[arg(long, env = "FAIRMESH_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The region of this machine.
    #[arg(long, env = "FAIRMESH_REGION", default_value = "local")]
    region: Region,
    /// The failure domain within the region.
    #[arg(long)]
    zone: Option<Zone>,
    /// The cluster that owns this machine.
    #[arg(long)]
    cluster: Option<Cluster>,
    /// The hardware type of this machine.
    #[arg(long)]
    host_type: Option<HostType>,
    /// The address from which distances to other regions are measured, if it is elected to do so [default: chosen by
    /// the system].
    #[arg(long, value_name = "IP")]
    local_address: Option<IpAddr>,
    /// Name of this agent, and its identity in a trust domain. Agents with the same name are one agent to the mesh, so
    /// a second agent on a host needs a name of its own [default: the host's name].
    #[arg(long)]
    name: Option<String>,
    /// A file with the token of `fairmesh identity token` [default: FAIRMESH_JOIN_TOKEN]. Not needed again once the agent has
    /// joined, nor with the control plane at a Unix socket.
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, alias = "metrics", value_name = "ADDRESS", default_value = "127.0.0.1:7402")]
    admin: AdminAddress,
    /// Probe other agents in turn with them, and answer their probes at this address, by which they reach this machine.
    #[arg(long, value_name = "IP:PORT")]
    zone_probes: Option<SocketAddr>,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: AgentArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    // The process holds keys of local programs.
    protect_memory().map_err(|error| Failure::stopped(&error))?;
    refuse_redirection()?;
    let join_token = join_token(args.join_token_file.as_deref())?;
    if join_token.is_none() {
        note_local_control(&args.control);
    }
    let AgentArgs { region, zone, cluster, host_type, .. } = args;
    let config = AgentConfig {
        transport: transport(),
        upstreams: args.control,
        listen: args.listen.map_or_else(|| default_paths::agent_socket().map(Address::Unix), Ok)?,
        state_dir: args.state_dir.map_or_else(|| default_paths::state("agent"), Ok)?,
        location: Location { region, zone, cluster, host_type },
        local_address: args.local_address,
        name: args.name.unwrap_or_else(host_name),
        join_token,
        // `main` has refused a malformed variable.
        workload_api: environment::workload_api().ok().flatten(),
        metrics: args.admin.0,
        probes: args.zone_probes,
    };
    fairmesh_agent::run(config, stop_signals::shutdown()?).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Logs the sockets of control planes on this machine, at which the agent could join without a token, if it is given
/// other addresses only.
fn note_local_control(given: &[Address]) {
    let has_socket = given.iter().any(|address| matches!(address, Address::Unix(_)));
    for socket in unix_listeners(environment::CONTROL_SOCKET).into_iter().filter(|_| !has_socket) {
        let address = Address::Unix(socket);
        tracing::info!(%address, "a control plane listens on this machine: with it as --control, an agent joins without a token");
    }
}

/// Refuses to run in a cgroup to which the eBPF programs of the kernel form are attached. Attachments that this user
/// cannot see are not checked.
fn refuse_redirection() -> Result<(), Failure> {
    match fairmesh_kernel::own_attachment(Path::new(fairmesh_kernel::DEFAULT_PINS)) {
        Ok(Some(cgroup)) => Err(Failure::refused(
            format!(
                "this agent is in cgroup {cgroup}, whose connections go to the proxy, which needs the agent"
            ),
            "start it outside, or run 'fairmesh kernel detach'",
        )),
        _ => Ok(()),
    }
}

/// The addresses tried by default for the control plane on this machine.
fn default_control() -> Vec<Address> {
    environment::control_sockets().chain([Address::Tcp(environment::CONTROL_ADDRESS.to_owned())]).collect()
}

fn join_token(file: Option<&Path>) -> Result<Option<JoinToken>, Failure> {
    let text = match file {
        Some(file) => Some(fs::read_to_string(file).map_err(|error| {
            Failure::refused(format!("{}: {error}", file.display()), "give the file with the token")
        })?),
        None => environment::join_token(),
    };
    let invalid = |error| Failure::refused(error, "make one with 'fairmesh identity token NAME'");
    text.map(|text| text.parse()).transpose().map_err(invalid)
}
