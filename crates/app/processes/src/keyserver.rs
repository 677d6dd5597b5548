//! `fairmesh keyserver`.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use fairmesh_console::{connect, failure::Failure, stop_signals};
use fairmesh_keyserver::{AllowedCaller, KeyFile, KeyServerConfig, KeyStore, protect_memory};
use fairmesh_model::{Label, MeshRole, SpiffePath};
use fairmesh_wire::transport::Address;

use super::daemon_args::AdminAddress;
use crate::logging::Logging;

/// Arguments of `fairmesh keyserver`.
#[derive(Debug, Args)]
pub struct KeyserverArgs {
    /// Address for proxies, over mutual TLS.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7430")]
    listen: SocketAddr,
    /// A private key: the name by which proxies ask for it, and its file (PEM, without a password), which is read once and may
    /// be removed then. May be repeated.
    #[arg(long = "key", value_name = "NAME=FILE", required = true)]
    keys: Vec<KeyFile>,
    /// A caller that may have a key sign, by its identity. May be repeated.
    #[arg(long = "allow", value_name = "NAME=SPIFFE_ID", required = true)]
    allowed: Vec<AllowedCaller>,
    /// Maximum number of requests at a time; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_requests: usize,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7431")]
    admin: AdminAddress,
    /// The agent that gives this process its identity [default: FAIRMESH_AGENT, else the agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    #[command(flatten)]
    logging: Logging,
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: KeyserverArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    protect_memory().map_err(|error| Failure::stopped(&error))?;
    let shutdown = stop_signals::shutdown()?;
    let keys = KeyStore::load(&args.keys, &args.allowed).map_err(|error| Failure::stopped(&error))?;
    let name = Label::new("keyserver").map_err(|error| Failure::refused(error, "report this"))?;
    let path = SpiffePath::Mesh(MeshRole::KeyServer, name);
    let agent = args.agent.unwrap_or_else(connect::agent);
    let transport = connect::transport_of_agent(agent, Some(path), "keyserver").await;
    // Callers are identified only by mutual TLS.
    connect::require_identity(&transport)?;
    let config = KeyServerConfig {
        transport,
        listen: args.listen,
        admin: args.admin.0,
        keys,
        max_requests: args.max_requests,
    };
    fairmesh_keyserver::run(config, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
