//! `fairmesh gateway upgrade`: replaces replicas one by one, and puts them back if they cause more errors.
//!
//! How a replica is started depends on its machine, for example `systemctl reload` there. The command therefore runs
//! hooks, and judges by the metrics of the replicas. Rejected: starting the successors itself, which would need to know
//! the arguments, the user and the limits that the service manager sets.

mod response_counts;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    process::{ExitCode, ExitStatus},
    str::FromStr,
    time::Duration,
};

use clap::Args;
use fairmesh_console::{
    arguments::OutputArgs,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_model::{Invalid, Label, spec};
use http_body_util::{BodyExt as _, Limited};
use serde_json::json;
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

use self::response_counts::{Counts, Responses, Served, add, worse};
use crate::proxy::admin_page;

/// Interval at which a replica is polled while it is replaced.
const POLL: Duration = Duration::from_millis(200);
/// Timeout of a request for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a page of metrics.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// Arguments of `fairmesh gateway upgrade`.
#[derive(Debug, Args)]
pub(super) struct UpgradeArgs {
    /// A replica and its --admin address, such as gw-1=10.77.0.1:7441; repeatable, upgraded in this order.
    #[arg(long = "replica", value_name = "NAME=IP:PORT", required = true)]
    replicas: Vec<Replica>,
    /// The command that starts the successor of a replica with the same --handover, such as 'ssh $FAIRMESH_REPLICA systemctl reload
    /// fairmesh-gateway'. A shell runs it with FAIRMESH_REPLICA and FAIRMESH_ADMIN.
    #[arg(long, value_name = "COMMAND")]
    run: String,
    /// The command that starts a successor of the program before.
    #[arg(long, value_name = "COMMAND")]
    back: String,
    /// Length of the measurements of responses before the upgrade and after each replica.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "30s")]
    watch: Duration,
    /// Time limit of a replica until its successor is ready.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "60s")]
    ready_within: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

/// A replica of the gateway.
#[derive(Clone, Debug)]
struct Replica {
    name: Label,
    admin: SocketAddr,
}

impl FromStr for Replica {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || Invalid::new("", format!("'{text}' is no replica"), "write NAME=IP:PORT");
        let (name, admin) = text.split_once('=').ok_or_else(wrong)?;
        Ok(Self { name: name.parse()?, admin: admin.parse().map_err(|_| wrong())? })
    }
}

/// Response counts from before the upgrade.
#[derive(Debug, Default)]
struct Baseline {
    /// Responses of all replicas.
    by_tenant: BTreeMap<String, Responses>,
    /// In the order of the replicas.
    replicas: Vec<Served>,
}

/// Upgrades all replicas, or puts the upgraded replicas back.
pub(super) async fn run(args: UpgradeArgs) -> Result<ExitCode, Failure> {
    let before = baseline(&args).await?;
    let mut upgraded = Listing::new(&["REPLICA", "RESPONSES", "ERRORS"]);
    for (position, replica) in args.replicas.iter().enumerate() {
        match upgrade(&args, replica, (&before.by_tenant, before.replicas[position])).await {
            Ok(Responses { all, errors }) => {
                let name = replica.name.as_str();
                output::note(format!("{name} is upgraded"));
                upgraded.add(
                    vec![name.to_owned(), all.to_string(), errors.to_string()],
                    json!({ "replica": name, "responses": all, "errors": errors }),
                );
            }
            Err(problem) => return Err(stop(&args, position, &problem).await),
        }
    }
    upgraded.print(args.output.format())?;
    Ok(ExitCode::SUCCESS)
}

/// Rolls back, starting with the replica at which the upgrade stopped.
async fn stop(args: &UpgradeArgs, position: usize, problem: &str) -> Failure {
    let name = &args.replicas[position].name;
    output::warn(format!("{name}: {problem}; going back"));
    let outcome = match go_back(args, &args.replicas[..=position]).await {
        Ok(()) => "all replicas run the program before".to_owned(),
        Err(problem) => format!("not all replicas run the program before: {problem}"),
    };
    Failure::failed(format!("the upgrade stopped at {name}: {problem}; {outcome}"))
}

/// Counts the responses of all replicas together and of each replica before the upgrade.
async fn baseline(args: &UpgradeArgs) -> Result<Baseline, Failure> {
    let mut first = Vec::with_capacity(args.replicas.len());
    for replica in &args.replicas {
        first.push(replica.counts().await.map_err(|problem| replica.unreachable(&problem))?);
    }
    sleep(args.watch).await;
    let mut before = Baseline::default();
    for (replica, first) in args.replicas.iter().zip(&first) {
        let counts = replica.counts().await.map_err(|problem| replica.unreachable(&problem))?;
        let responses = counts.since(first);
        let refused = counts.refused.saturating_sub(first.refused);
        before.replicas.push(Served::of(&responses, refused));
        add(&mut before.by_tenant, responses);
    }
    Ok(before)
}

/// Replaces one replica, and counts the responses of its successor while it is watched.
///
/// # Errors
/// Why the upgrade stops.
async fn upgrade(
    args: &UpgradeArgs,
    replica: &Replica,
    (before, own): (&BTreeMap<String, Responses>, Served),
) -> Result<Responses, String> {
    let first = replica.replace(&args.run, args.ready_within).await?;
    sleep(args.watch).await;
    let counts = replica.counts().await?;
    if counts.started != first.started {
        return Err("its successor has ended".into());
    }
    let after = counts.since(&Counts { started: first.started, ..Counts::default() });
    if let Some(tenants) = worse(before, &after) {
        return Err(format!("the share of 5xx responses rose for {}", tenants.join(", ")));
    }
    let served = Served::of(&after, counts.refused);
    own.idle(&served).map_or(Ok(served.responses), Err)
}

/// Rolls replicas back, the last one first. If one fails, the others are still rolled back.
async fn go_back(args: &UpgradeArgs, upgraded: &[Replica]) -> Result<(), String> {
    let mut problems = Vec::new();
    for replica in upgraded.iter().rev() {
        if let Err(problem) = replica.replace(&args.back, args.ready_within).await {
            problems.push(format!("{}: {problem}", replica.name));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

impl Replica {
    /// Runs a command, and waits until another process serves the admin pages and is ready. Returns the counters of
    /// that process at that time.
    async fn replace(&self, command: &str, ready_within: Duration) -> Result<Counts, String> {
        // A replica that has ended has no page. Any process that answers then is the successor.
        let before = self.counts().await.unwrap_or_default();
        let replaced = async {
            let ended = self.shell(command).await?;
            if !ended.success() {
                return Err(format!("the command ended with {ended}"));
            }
            loop {
                if let Ok(counts) = self.counts().await
                    && counts.started != before.started
                    && self.page("/readyz").await.is_ok()
                {
                    return Ok(counts);
                }
                sleep(POLL).await;
            }
        };
        let late = || Err(format!("no successor was ready within {ready_within:?}"));
        timeout(ready_within, replaced).await.unwrap_or_else(|_| late())
    }

    async fn shell(&self, command: &str) -> Result<ExitStatus, String> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).env("FAIRMESH_REPLICA", self.name.as_str());
        shell.env("FAIRMESH_ADMIN", self.admin.to_string()).kill_on_drop(true);
        // Standard output is for the list of replicas.
        shell.stdout(io::stderr());
        shell.status().await.map_err(|error| format!("the command cannot be run: {error}"))
    }

    async fn counts(&self) -> Result<Counts, String> {
        self.page("/metrics").await.map(|page| Counts::parse(&page))
    }

    async fn page(&self, path: &str) -> Result<String, String> {
        let read = async {
            let body = admin_page::open(self.admin, path).await.map_err(|failure| failure.message())?;
            let body =
                Limited::new(body, MAX_PAGE_BYTES).collect().await.map_err(|error| error.to_string())?;
            Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
        };
        timeout(PAGE_TIMEOUT, read).await.unwrap_or_else(|_| Err(format!("no page within {PAGE_TIMEOUT:?}")))
    }

    fn unreachable(&self, problem: &str) -> Failure {
        let Self { name, admin } = self;
        Failure::failed_with(
            format!("{name} does not show its metrics at {admin}: {problem}"),
            "check that the replica runs, and its --admin address; nothing was upgraded",
        )
    }
}
