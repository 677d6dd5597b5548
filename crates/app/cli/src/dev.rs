//! `fairmesh dev`: control plane, agent and proxy in one process, to develop with.
//!
//! They are the same as in production and talk over the same sockets, so that every other command finds them at its default
//! addresses. Embedding them without sockets was rejected: programs could not register or call.

mod config_folder;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use fairmesh_agent::AgentConfig;
use fairmesh_calls::{Mesh, forwarding::with_event_loops};
use fairmesh_console::{
    arguments::{AgentTarget, TargetArgs},
    connect::{connect, transport},
    default_paths,
    failure::Failure,
    output, stop_signals,
};
use fairmesh_control::{Control, ControlConfig, TrustDomainChoice};
use fairmesh_model::{Location, Region};
use fairmesh_processes::{
    daemon_args::{AdminAddress, host_name},
    logging::Logging,
    proxy,
};
use fairmesh_proxy::{AccessLogConfig, AccessLogFormat, Limits, ListenerConfig, ProxyConfig};
use fairmesh_wire::transport::Address;
use futures_util::{FutureExt as _, TryFutureExt as _};
use tempfile::TempDir;
use tokio::{sync::oneshot, time::Instant};

use crate::wait::{attempt, reach_agent};
use config_folder::ConfigFolder;

/// Timeout for all parts to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for requests in flight when stopping.
const DRAIN: Duration = Duration::from_secs(2);
/// Number of event loops of the proxy: more than one, so that problems with several loops show up.
const CORES: usize = 2;

/// Arguments of `fairmesh dev`.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// A folder of YAML files, or one file, to apply at the start and after each change. What is no longer in it stays until
    /// 'fairmesh delete'.
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// Keep the data in this folder [default: a temporary one, deleted at the end].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The region of this machine.
    #[arg(long, env = "FAIRMESH_REGION", default_value = "local")]
    region: Region,
    /// Address of the control plane, host:port or unix:/path.
    #[arg(long, env = "FAIRMESH_CONTROL", default_value = "127.0.0.1:7400", value_name = "ADDRESS")]
    control: Address,
    /// Address of the control plane's HTTP API, /metrics, /healthz and /readyz.
    #[arg(long, alias = "http", value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    control_admin: SocketAddr,
    #[command(flatten)]
    agent: AgentTarget,
    /// Address of the agent's /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, alias = "metrics", value_name = "ADDRESS", default_value = "127.0.0.1:7402")]
    agent_admin: AdminAddress,
    /// Address of the proxy for programs.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7410")]
    proxy: ListenerConfig,
    /// Address of the proxy's admin pages.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    admin: SocketAddr,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT, or until a part fails.
pub async fn run(mut args: DevArgs) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    args.logging.start_quiet()?;
    // The default address of `fairmesh agent`, which need not be where a program looks first.
    if args.agent.agent.is_none() {
        args.agent.agent = Some(Address::Unix(default_paths::agent_socket()?));
    }
    let stop = stop_signals::shutdown()?.shared();
    // Report mistakes in the folder before anything is started.
    let mut config = args.config.clone().map(ConfigFolder::new);
    if let Some(config) = &config {
        config.check()?;
    }
    let data = DataFolder::open(args.data_dir.clone())?;
    let control =
        Control::start(control_config(&args, &data)).await.map_err(|error| Failure::stopped(&error))?;
    let serving = async {
        // Each part stops after the part that follows it, which would otherwise warn about a lost connection.
        let (proxy_ended, after_proxy) = oneshot::channel::<()>();
        let (agent_ended, after_agent) = oneshot::channel::<()>();
        let proxy = serve_proxy(&args, stop.clone()).inspect(|_| drop(proxy_ended));
        let agent = fairmesh_agent::run(agent_config(&args, &data), after_proxy.map(drop));
        let agent = agent.inspect(|_| drop(agent_ended)).map_err(|error| Failure::stopped(&error));
        let control = control.run(after_agent.map(drop)).map_err(|error| Failure::stopped(&error));
        tokio::try_join!(control, agent, proxy).map(drop)
    };
    let ready = async {
        let deadline = started + START_TIMEOUT;
        let target = TargetArgs::in_own_mesh(vec![args.control.clone()], args.agent.address());
        if let Some(config) = &mut config {
            config.apply(&attempt(deadline, || connect(&target)).await?).await?;
        }
        attempt(deadline, || reach_agent(&args.agent)).await?;
        attempt(deadline, || proxy::ready(args.admin)).await?;
        output::write(&announcement(&args, &data, started.elapsed()))?;
        match config {
            Some(config) => config.follow(&target).await,
            None => pending::<Result<Infallible, Failure>>().await,
        }
    };
    tokio::select! {
        ended = serving => ended.map(|()| ExitCode::SUCCESS),
        failed = ready => failed.map(|never| match never {}),
    }
}

/// Temporary data folders, for [`delete_temporary_data`]. If a part failed to start, tasks of the others still write
/// into them when [`run`] returns.
static TEMPORARY: Mutex<Vec<TempDir>> = Mutex::new(Vec::new());

/// Deletes the temporary data folders. Call only after all tasks of this process have ended.
pub fn delete_temporary_data() {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Location of the data, which may be temporary.
struct DataFolder {
    path: PathBuf,
    is_temporary: bool,
}

impl DataFolder {
    fn open(given: Option<PathBuf>) -> Result<Self, Failure> {
        if let Some(path) = given {
            return Ok(Self { path, is_temporary: false });
        }
        let folder = tempfile::Builder::new().prefix("fairmesh-dev-").tempdir().map_err(|error| {
            Failure::failed_with(
                format!("cannot make a temporary folder: {error}"),
                "give a folder with --data-dir, or another TMPDIR",
            )
        })?;
        let path = folder.path().to_owned();
        TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
        Ok(Self { path, is_temporary: true })
    }
}

fn control_config(args: &DevArgs, data: &DataFolder) -> ControlConfig {
    ControlConfig {
        transport: transport(),
        data_dir: data.path.join("control"),
        etcd: None,
        oidc: None,
        // All parts are one process of one user, on loopback.
        trust_domain: TrustDomainChoice::Stored,
        grpc: vec![args.control.clone()],
        http: Some(args.control_admin),
        traces: None,
        http_names: Vec::new(),
        http_certificate: None,
        sources: Vec::new(),
        proxies: vec![args.admin],
        shadow_controllers: Vec::new(),
        gateway_launcher: None,
    }
}

fn agent_config(args: &DevArgs, data: &DataFolder) -> AgentConfig {
    AgentConfig {
        transport: transport(),
        upstreams: vec![args.control.clone()],
        listen: args.agent.address(),
        state_dir: data.path.join("agent"),
        location: Location::in_region(args.region.clone()),
        local_address: None,
        name: host_name(),
        join_token: None,
        workload_api: None,
        metrics: args.agent_admin.0,
        probes: None,
    }
}

async fn serve_proxy(
    args: &DevArgs,
    stop: impl Future<Output = ()> + Clone + Send + 'static,
) -> Result<(), Failure> {
    let reached = attempt(Instant::now() + START_TIMEOUT, || reach_agent(&args.agent));
    tokio::select! {
        reached = reached => reached?,
        () = stop.clone() => return Ok(()),
    }
    let mesh =
        with_event_loops(Mesh::builder(), CORES).identity(proxy::own_identity()).agent(args.agent.address());
    let mesh = mesh.connect().await.map_err(|error| Failure::refused(error.problem, error.hint))?;
    let config = ProxyConfig {
        service: None,
        listen: vec![args.proxy.clone()],
        tls: None,
        key_servers: None,
        admin: Some(args.admin),
        handover: None,
        cores: CORES,
        limits: Limits { drain: DRAIN, ..Limits::default() },
        access_log: AccessLogConfig { form: AccessLogFormat::Off, one_in: 1 },
        traces: None,
        endpoints: None,
        zone: None,
        options: BTreeMap::new(),
        inbound: None,
    };
    fairmesh_proxy::run(config, mesh, stop).await.map_err(|error| Failure::stopped(&error))
}

fn announcement(args: &DevArgs, data: &DataFolder, after: Duration) -> String {
    let kept = if data.is_temporary { "deleted at the end" } else { "kept" };
    format!(
        "fairmesh dev is ready after {:.1} s; Ctrl-C ends it\n  \
         control plane  {}, http://{}\n  agent          {}\n  proxy          {}, http://{}\n  data           {}, {kept}\n",
        after.as_secs_f64(),
        args.control,
        args.control_admin,
        args.agent.address(),
        args.proxy,
        args.admin,
        data.path.display(),
    )
}
