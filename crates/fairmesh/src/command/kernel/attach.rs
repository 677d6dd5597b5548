//! `fairmesh kernel attach` and `detach`.

use std::{net::Ipv4Addr, num::NonZeroU32, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use fairmesh_kernel::{Attachments, Selection, attach as attach_programs, detach as detach_programs, status};
use fairmesh_model::Invalid;
use fairmesh_wire::transport::Address;
use serde_json::json;
use tokio::time::sleep;

use super::{PinArgs, failure};
use crate::{
    cli::OutputArgs, command::processes::proxy::uids, connect, failure::Failure, output,
    process_stat::ProcessStat,
};

/// How often, and how many times, the command looks whether a proxy has found the maps.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLLS: usize = 40;

/// Arguments of `fairmesh kernel attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The cgroup (version 2) of the programs, such as /shop, with those below it; it is created if it is missing. Neither the root
    /// nor that of the proxy or of the agent (FAIRMESH_AGENT).
    #[arg(long, value_name = "PATH")]
    cgroup: String,
    /// Only connections to this port; may be repeated, up to 8 times.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "80")]
    port: Vec<u16>,
    /// Only connections to these IPv4 addresses; may be repeated, up to 8 times.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    to: Vec<Network>,
    /// Refuse these connections to anything but services: the proxy while it listens, and all of them while none does, which are
    /// direct otherwise.
    #[arg(long)]
    only_services: bool,
    /// The cgroup of servers on this machine, such as /servers: requests go into their sockets, and plain responses to the callers, past
    /// the proxy. It is created if it is missing; may be repeated.
    #[arg(long, value_name = "PATH")]
    servers: Vec<String>,
    /// Have all responses of the proxy pass TCP, for programs that splice them or wait for them with MSG_WAITALL
    #[arg(long)]
    no_short_cut: bool,
    /// At most so many requests of the cgroup's programs that the kernel sends wait for their responses; the sidecar sends those beyond.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<NonZeroU32>,
    /// The user as whom the proxy runs, by name or number: the maps become theirs, so that the proxy needs no capability.
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Arguments of `fairmesh kernel detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug)]
struct Network(Ipv4Addr, u8);

impl FromStr for Network {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        match (address.parse(), prefix.parse()) {
            (Ok(address), Ok(prefix @ 0..=32)) => Ok(Self(address, prefix)),
            _ => Err(Invalid::new(
                "",
                format!("'{text}' is no IPv4 network"),
                "write an address and a prefix, such as 10.0.0.0/8",
            )),
        }
    }
}

pub(super) async fn attach(args: AttachArgs) -> Result<ExitCode, Failure> {
    let networks = args.to.iter().map(|Network(address, prefix)| (*address, *prefix)).collect();
    let selection = Selection { networks, ports: args.port };
    let pins = args.pins.bpffs;
    let owner = uids(args.owner.as_slice())?.first().copied();
    let to = Attachments {
        callers: args.cgroup,
        selection,
        only_services: args.only_services,
        max_in_flight: args.max_in_flight,
        servers: args.servers,
        short_cut: !args.no_short_cut,
        owner,
        agent: agent_process().await,
    };
    attach_programs(&pins, &to).map_err(failure)?;
    let mut now = status(&pins).map_err(failure)?;
    for _ in 0..POLLS {
        if now.proxy.is_some() {
            break;
        }
        sleep(POLL_INTERVAL).await;
        now = status(&pins).map_err(failure)?;
    }
    let proxy = now.proxy;
    let are = if to.only_services || now.only_services { "refused" } else { "direct" };
    let words = match proxy {
        Some(process) => {
            format!("attached to {}; connections go to the proxy, process {process}\n", to.callers)
        }
        None => format!(
            "attached to {}; no proxy listens, so connections are {are}: run 'fairmesh proxy --listen kernel:127.0.0.1:7416'\n",
            to.callers
        ),
    };
    let state = json!({ "cgroup": to.callers, "servers": to.servers, "proxy": proxy });
    output::print_one(args.output_args.format(), &state, &words).map(|()| ExitCode::SUCCESS)
}

/// The process of the agent of this machine; `None` if it cannot be learned.
async fn agent_process() -> Option<u32> {
    let Address::Unix(socket) = connect::agent() else { return None };
    ProcessStat::listening_at(&socket).await.map(|process| process.pid)
}

pub(super) fn detach(args: DetachArgs) -> Result<ExitCode, Failure> {
    let cgroups = detach_programs(&args.pins.bpffs).map_err(failure)?;
    let words = format!("detached from {}\n", cgroups.join(", "));
    output::print_one(args.output_args.format(), &json!({ "cgroups": cgroups }), &words)
        .map(|()| ExitCode::SUCCESS)
}
