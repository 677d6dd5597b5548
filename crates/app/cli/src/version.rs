//! `fairmesh version`: versions of this binary, and of the processes it reaches.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{AgentTarget, OutputArgs, TargetArgs},
    connect::{SOFTWARE, transport, transport_to},
    failure::Failure,
    output,
};
use fairmesh_processes::{proxy::admin_page, rib};
use fairmesh_wire::{
    environment,
    handshake::{self, PROTOCOL},
    transport::Address,
};
use serde_json::json;
use tokio::time::timeout;

/// Timeout for one process, and for all replicas together.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Arguments of `fairmesh version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Only of this binary.
    #[arg(long)]
    client: bool,
    /// The admin port of a proxy; may be repeated.
    #[arg(long = "admin", value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    proxies: Vec<SocketAddr>,
    #[command(flatten)]
    agent: AgentTarget,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Version of one process.
struct ProcessVersion {
    kind: &'static str,
    name: String,
    /// The version; `None` if the process did not respond or does not report one.
    version: Option<String>,
}

/// Prints the versions. A process that does not respond is no error.
pub async fn run(args: VersionArgs) -> Result<ExitCode, Failure> {
    let (version, oldest, newest) = (env!("CARGO_PKG_VERSION"), PROTOCOL.start(), PROTOCOL.end());
    let mut value = json!({ "version": version, "protocol": { "oldest": oldest, "newest": newest } });
    let mut text = format!("fairmesh {version}, protocol {oldest} to {newest}\n");
    if !args.client {
        let found = processes(&args).await;
        let row = |one: &ProcessVersion| {
            vec![one.kind.to_owned(), one.name.clone(), one.version.clone().unwrap_or_else(|| "-".into())]
        };
        text += &format!(
            "\n{}",
            output::table(&["PROCESS", "NAME", "VERSION"], &found.iter().map(row).collect::<Vec<_>>())
        );
        let item =
            |one: &ProcessVersion| json!({ "kind": one.kind, "name": one.name, "version": one.version });
        value["processes"] = found.iter().map(item).collect();
    }
    output::print_one(args.output_args.format(), &value, &text)?;
    Ok(ExitCode::SUCCESS)
}

async fn processes(args: &VersionArgs) -> Vec<ProcessVersion> {
    let mut found = Vec::new();
    let mut addresses = args.target.addresses().into_iter();
    // There is at least one address.
    let mut control = addresses.next().unwrap_or_else(environment::control);
    let mut reached = reach(&control, transport_to(&control).await).await;
    for next in addresses {
        if reached.is_none() {
            reached = reach(&next, transport_to(&next).await).await;
            control = next;
        }
    }
    match reached {
        Some(connection) => {
            found.push(named("control plane", control.to_string(), &connection.hello.software));
            let followers = timeout(TIMEOUT, rib::followers(connection)).await;
            let followers = followers.ok().and_then(Result::ok).unwrap_or_default();
            found.extend(followers.into_iter().map(|(kind, name, version)| ProcessVersion {
                kind,
                name,
                version,
            }));
        }
        None => found.push(silent("control plane", control.to_string())),
    }
    let agent = args.agent.address();
    found.push(match reach(&agent, transport()).await {
        Some(connection) => named("agent of this machine", agent.to_string(), &connection.hello.software),
        None => silent("agent of this machine", agent.to_string()),
    });
    for proxy in &args.proxies {
        let page = timeout(TIMEOUT, admin_page::page(*proxy, "/config?json")).await.ok().and_then(Result::ok);
        let version = page.as_ref().and_then(|page| page["version"].as_str().map(str::to_owned));
        found.push(ProcessVersion { kind: "proxy", name: proxy.to_string(), version });
    }
    found
}

async fn reach(
    address: &Address,
    transport: fairmesh_wire::transport::Transport,
) -> Option<handshake::Connection> {
    timeout(TIMEOUT, handshake::connect(&transport, address, SOFTWARE)).await.ok()?.ok()
}

/// Describes a process whose name ends with its version.
fn named(kind: &'static str, name: String, software: &str) -> ProcessVersion {
    ProcessVersion { kind, name, version: software.rsplit(' ').next().map(str::to_owned) }
}

fn silent(kind: &'static str, name: String) -> ProcessVersion {
    ProcessVersion { kind, name, version: None }
}
