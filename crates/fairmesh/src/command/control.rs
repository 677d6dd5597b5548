//! `fairmesh control`.

use std::{env, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_control::{ControlConfig, EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
use fairmesh_wire::transport::Address;

use crate::{failure::Failure, logging::Logging, signals};

use super::places;

/// Arguments of `fairmesh control`.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// Where the routing information base is kept [default: /var/lib/fairmesh/control, or below
    /// ~/.local/state/fairmesh when not root].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Where agents and this command line connect: host:port or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    grpc: Vec<Address>,
    /// Where the registry's HTTP API, /metrics, /healthz and /readyz are.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    http: SocketAddr,
    /// A YAML file of 'kind: Endpoints', or a folder of them, to watch; may be repeated.
    #[arg(long = "source", value_name = "PATH")]
    sources: Vec<PathBuf>,
    /// Make the store in etcd one that 'fairmesh rib split' can spread over several clusters, and keep it that way: once,
    /// with no other control plane running on it.
    #[arg(long, requires = "store")]
    partitioned: bool,
    /// Give the store a new id before it is served: once, after a copy of it was put back, so that agents and programs
    /// which saw later revisions start over instead of mixing two histories.
    #[arg(long)]
    new_store_id: bool,
    #[command(flatten)]
    logging: Logging,
}

/// The environment variable with the password, which no list of processes shows.
const PASSWORD: &str = "FAIRMESH_ETCD_PASSWORD";

/// Where the store is, if not in the data directory.
#[derive(Debug, Args)]
struct EtcdArgs {
    /// Keep the routing information base in etcd instead of the data directory: etcd://HOST:2379,HOST2:2379, and /ROOT
    /// behind it for another root of its keys than /fairmesh.
    #[arg(long, value_name = "ADDRESS")]
    store: Option<EtcdAddress>,
    /// Speak TLS to an etcd whose certificate an authority in this PEM file has signed.
    #[arg(long, value_name = "FILE", requires = "store")]
    etcd_ca: Option<PathBuf>,
    /// The certificate to show to etcd, as a PEM file.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The user to log in to etcd as; the password is in the environment, as FAIRMESH_ETCD_PASSWORD.
    #[arg(long, value_name = "NAME", requires = "store")]
    etcd_user: Option<String>,
}

impl EtcdArgs {
    fn config(self) -> Result<Option<EtcdConfig>, Failure> {
        let Some(address) = self.store else { return Ok(None) };
        let login = |user| match env::var(PASSWORD) {
            Ok(password) => Ok(EtcdLogin { user, password }),
            Err(_) => Err(Failure::refused(
                format!("--etcd-user is given and {PASSWORD} is not in the environment"),
                "set it to the password of that user",
            )),
        };
        let tls = self.etcd_ca.map(|ca| EtcdTls { ca, identity: self.etcd_cert.zip(self.etcd_key) });
        Ok(Some(EtcdConfig { address, tls, login: self.etcd_user.map(login).transpose()? }))
    }
}

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run(args: ControlArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let data_dir = args.data_dir.map_or_else(|| places::state("control"), Ok)?;
    let config = ControlConfig {
        data_dir,
        etcd: args.etcd.config()?,
        grpc: args.grpc,
        http: args.http,
        sources: args.sources,
    };
    if args.partitioned {
        fairmesh_control::partition_store(&config).await.map_err(|error| Failure::stopped(&error))?;
    }
    if args.new_store_id {
        let id = fairmesh_control::renew_store_id(&config).await.map_err(|error| Failure::stopped(&error))?;
        tracing::warn!(%id, "the store has a new id; every reader takes a snapshot. Leave --new-store-id out next time");
    }
    fairmesh_control::run(config, signals::shutdown()?).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
