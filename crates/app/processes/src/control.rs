//! `fairmesh control`.

mod status;

use std::{env, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use fairmesh_console::{
    arguments::{ETCD_PASSWORD, EXPORTER_HEADERS, SECRET_VARIABLES},
    connect::transport,
    default_paths,
    failure::Failure,
    stop_signals,
};
use fairmesh_control::{
    ControlConfig, EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls, GatewayLauncher, JwksLocation, OidcConfig,
    ShadowController, TraceConfig, TraceLink, TrustDomainChoice,
};
use fairmesh_keyserver::protect_memory;
use fairmesh_model::{
    TrustDomain,
    spec::{Resource, read_duration},
};
use fairmesh_registry::{FileSource, manifest};
use fairmesh_wire::transport::Address;

use crate::{daemon_args::AdminAddress, logging::Logging};

/// Arguments of `fairmesh control`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ControlArgs {
    #[command(subcommand)]
    command: Option<ControlCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Further commands.
#[derive(Debug, Subcommand)]
enum ControlCommand {
    /// Show what the controllers of a running control plane do: their last rounds, what they refuse and why.
    Status(status::StatusArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Directory of the routing information base [default: /var/lib/fairmesh/control, or below ~/.local/state/fairmesh
    /// when not root].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Address for agents and this command line: host:port or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    grpc: Vec<Address>,
    /// Address of the registry's HTTP API, the web page, /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, alias = "http", value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    admin: AdminAddress,
    /// Take spans of proxies and programs at this address, by OTLP over HTTP, and keep the slowest and the failed of the last hour for
    /// 'fairmesh trace'. In a mesh with a trust domain, senders prove over TLS for which services they send.
    #[arg(long, value_name = "ADDRESS")]
    traces: Option<SocketAddr>,
    /// Link each trace to the same one in another tracing system, to which processes export too: an http or https URL with {trace} in
    /// place of the trace id.
    #[arg(long, value_name = "URL", requires = "traces")]
    trace_link: Option<TraceLink>,
    /// The --admin address of a proxy whose last requests, and requests as they complete, the web page shows; may be repeated.
    #[arg(long = "proxy-admin", value_name = "ADDRESS")]
    proxies: Vec<SocketAddr>,
    /// A host name for the certificate of the admin port, which accepts TLS beside plaintext in a mesh with a trust
    /// domain: a name of this host or of a load balancer. May be repeated. The certificate always has localhost, the
    /// host's name and the port's address.
    #[arg(long = "admin-name", alias = "http-name", value_name = "HOST")]
    admin_names: Vec<String>,
    /// The certificate of the admin port in place of one of the mesh, such as one of an authority of the web: a file in
    /// PEM with its chain. It is read when the control plane starts, and every hour.
    #[arg(long, value_name = "FILE", requires = "admin_tls_key")]
    admin_tls_cert: Option<PathBuf>,
    /// The key of --admin-tls-cert, a file in PEM.
    #[arg(long, value_name = "FILE", requires = "admin_tls_cert")]
    admin_tls_key: Option<PathBuf>,
    /// A YAML file of 'kind: Endpoints', or a folder of them, to watch; may be repeated.
    #[arg(long = "source", value_name = "PATH")]
    sources: Vec<PathBuf>,
    /// Issue certificates of this trust domain, so that processes connect and services are called over mutual TLS: once,
    /// the store remembers it. The authority is made in the data directory. 'none' for a new store without one [default:
    /// that of the store; mesh.local for a new store in the data directory].
    #[arg(long, value_name = "NAME|none")]
    trust_domain: Option<String>,
    /// Convert the store in etcd to a partitioned one, for 'fairmesh rib split': once, while no other control plane
    /// runs on it.
    #[arg(long, requires = "store")]
    partitioned: bool,
    /// Give the store a new id before it is served: once, after a backup was restored, so that agents and programs that
    /// saw later revisions take a snapshot instead of mixing two histories.
    #[arg(long)]
    new_store_id: bool,
    /// A controller that decides and changes nothing; 'fairmesh control status' shows what it would change. May be repeated:
    /// distance-targets, drains, federated-bundles, placement, planner, token-issuers, verdicts.
    #[arg(long = "shadow-controller", value_name = "NAME")]
    shadow_controllers: Vec<ShadowController>,
    /// Start a backend of the gateway with this command where calls of a service grow and no backend has room. A shell runs it with
    /// FAIRMESH_BACKEND, FAIRMESH_ZONE and FAIRMESH_SERVICE, and it prints the address of each replica, ip:port; the same for the same
    /// backend.
    #[arg(long, value_name = "COMMAND")]
    gateway_launcher: Option<String>,
    /// Time limit of that command.
    #[arg(long, value_name = "DURATION", value_parser = read_duration, default_value = "5m", requires = "gateway_launcher")]
    gateway_launcher_timeout: Duration,
    #[command(flatten)]
    oidc: OidcArgs,
    #[command(flatten)]
    logging: Logging,
}

/// Identity providers whose tokens authenticate users. The option names are those of kube-apiserver.
#[derive(Debug, Args)]
struct OidcArgs {
    /// Accept user tokens from this OpenID Connect issuer; the URL must equal the tokens' 'iss'.
    #[arg(long, value_name = "URL", requires_all = ["oidc_client_id", "oidc_jwks"])]
    oidc_issuer_url: Option<String>,
    /// Audience ('aud') of the tokens: the client id for which the issuer creates them.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url")]
    oidc_client_id: Option<String>,
    /// Public keys of the issuer, as a JWKS: a file, which is read again when it changes, or an https URL such as the
    /// issuer's jwks_uri, which is fetched every hour and when a token has a new key.
    #[arg(long, value_name = "FILE|URL", requires = "oidc_issuer_url")]
    oidc_jwks: Option<JwksLocation>,
    /// The authorities that vouch for the server of this URL, in PEM [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "oidc_jwks")]
    oidc_ca_file: Option<PathBuf>,
    /// The claim with the name of the user.
    #[arg(long, value_name = "CLAIM", default_value = OidcConfig::USERNAME_CLAIM)]
    oidc_username_claim: String,
    /// The claim with the groups of the user.
    #[arg(long, value_name = "CLAIM", default_value = OidcConfig::GROUPS_CLAIM)]
    oidc_groups_claim: String,
}

impl OidcArgs {
    fn config(self) -> Option<OidcConfig> {
        Some(OidcConfig {
            issuer: self.oidc_issuer_url?,
            client_id: self.oidc_client_id?,
            jwks: self.oidc_jwks?,
            ca_file: self.oidc_ca_file,
            username_claim: self.oidc_username_claim,
            groups_claim: self.oidc_groups_claim,
        })
    }
}

/// Location of the store, if it is not in the data directory.
#[derive(Debug, Args)]
struct EtcdArgs {
    /// Keep the routing information base in etcd instead of the data directory: etcd://HOST:2379,HOST2:2379, followed
    /// by /ROOT for another root of its keys than /fairmesh.
    #[arg(long, value_name = "ADDRESS")]
    store: Option<EtcdAddress>,
    /// Use TLS, and verify etcd's certificate with the authorities in this PEM file.
    #[arg(long, value_name = "FILE", requires = "store")]
    etcd_ca: Option<PathBuf>,
    /// The client certificate for etcd, as a PEM file.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The user of etcd; its password is in the environment variable FAIRMESH_ETCD_PASSWORD.
    #[arg(long, value_name = "NAME", requires = "store")]
    etcd_user: Option<String>,
}

impl EtcdArgs {
    fn config(self) -> Result<Option<EtcdConfig>, Failure> {
        let Some(address) = self.store else { return Ok(None) };
        let login = |user| match env::var(ETCD_PASSWORD) {
            Ok(password) => Ok(EtcdLogin { user, password }),
            Err(_) => Err(Failure::refused(
                format!("--etcd-user is given, but {ETCD_PASSWORD} is not in the environment"),
                "set it to the password of that user",
            )),
        };
        let tls = self.etcd_ca.map(|ca| EtcdTls { ca, identity: self.etcd_cert.zip(self.etcd_key) });
        Ok(Some(EtcdConfig { address, tls, login: self.etcd_user.map(login).transpose()? }))
    }
}

/// Trust domain of a new store if none is given.
const DEFAULT_DOMAIN: &str = "mesh.local";

/// Returns the trust domain to use. A store in etcd has a trust domain only if one is given, because each of its
/// control planes needs the root.
fn trust_domain(given: Option<&str>, is_shared: bool) -> Result<TrustDomainChoice, Failure> {
    let domain = |name: &str| {
        TrustDomain::new(name).map_err(|error| {
            Failure::refused(error, "give --trust-domain a name such as prod.example, or none")
        })
    };
    Ok(match given {
        Some("none") => TrustDomainChoice::Stored,
        Some(name) => TrustDomainChoice::Given(domain(name)?),
        None if is_shared => TrustDomainChoice::Stored,
        None => TrustDomainChoice::OfNewStore(domain(DEFAULT_DOMAIN)?),
    })
}

/// Refuses documents that no source reads: otherwise the whole file would be ignored, with only a log message. Other
/// mistakes are only logged, so that a file saved in the middle of an edit does not keep a control plane from starting.
fn check_sources(sources: &[PathBuf]) -> Result<(), Failure> {
    for source in sources {
        for file in FileSource::files(source).unwrap_or_default() {
            check_source(&file.display().to_string(), &std::fs::read_to_string(&file).unwrap_or_default())?;
        }
    }
    Ok(())
}

fn check_source(name: &str, text: &str) -> Result<(), Failure> {
    let documents = manifest::parse(name, text).unwrap_or_default();
    let (read, others): (Vec<_>, Vec<_>) =
        documents.iter().partition(|one| matches!(one.resource, Resource::Endpoints(..)));
    let Some(other) = others.first() else { return Ok(()) };
    let hint = match read.first() {
        None => format!("write it with 'fairmesh apply -f {name}', and keep it elsewhere"),
        Some(_) => {
            "keep the endpoints in this file, and write the rest with 'fairmesh apply -f' from another".into()
        }
    };
    let (kind, of) = (other.spec.kind(), other.resource.kind_and_name().1);
    let what = format!("{name}:{}: a source has 'kind: Endpoints', and this is {kind} {of}", other.line);
    Err(Failure::refused(what.trim_end(), hint))
}

/// Runs the subcommand if there is one, otherwise the control plane until SIGTERM or SIGINT.
pub async fn run(args: ControlArgs) -> Result<ExitCode, Failure> {
    match args.command {
        Some(ControlCommand::Status(args)) => status::run(args).await.map(|()| ExitCode::SUCCESS),
        None => serve(args.serve).await,
    }
}

async fn serve(args: ServeArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    // The process holds the keys of the authority.
    protect_memory().map_err(|error| Failure::stopped(&error))?;
    check_sources(&args.sources)?;
    let data_dir = args.data_dir.map_or_else(|| default_paths::state("control"), Ok)?;
    let config = ControlConfig {
        transport: transport(),
        data_dir,
        trust_domain: trust_domain(args.trust_domain.as_deref(), args.etcd.store.is_some())?,
        etcd: args.etcd.config()?,
        oidc: args.oidc.config(),
        grpc: args.grpc,
        http: args.admin.0,
        traces: args.traces.map(|address| TraceConfig { address, link: args.trace_link }),
        http_names: args.admin_names,
        http_certificate: args.admin_tls_cert.zip(args.admin_tls_key),
        sources: args.sources,
        proxies: args.proxies,
        shadow_controllers: args.shadow_controllers,
        gateway_launcher: args.gateway_launcher.map(|command| GatewayLauncher {
            command,
            time_limit: args.gateway_launcher_timeout,
            secrets: SECRET_VARIABLES.into_iter().chain(EXPORTER_HEADERS).collect(),
        }),
    };
    if args.partitioned {
        fairmesh_control::partition_store(&config).await.map_err(|error| Failure::stopped(&error))?;
    }
    if args.new_store_id {
        let id = fairmesh_control::renew_store_id(&config).await.map_err(|error| Failure::stopped(&error))?;
        tracing::warn!(%id, "the store has a new id; every reader takes a snapshot. Omit --new-store-id from now on");
    }
    fairmesh_control::run(config, stop_signals::shutdown()?)
        .await
        .map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
