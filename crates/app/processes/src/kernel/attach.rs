//! `fairmesh kernel attach` and `detach`.

use std::{net::IpAddr, path::Path, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use fairmesh_console::{arguments::OutputArgs, connect, failure::Failure, output, process_stat::ProcessStat};
use fairmesh_kernel::{
    Attachment, Attachments, Container, DEFAULT_PINS, Detached, Selection, Status, attach as attach_programs,
    detach as detach_programs, left_programs, status,
};
use fairmesh_model::Invalid;
use fairmesh_wire::transport::Address;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    PinArgs,
    container_watch::{Follower, Following},
    failure,
    status::{attachment_state, options},
};
use crate::proxy::uids;

/// Interval at which the command checks whether a proxy has found the maps, and the number of checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLLS: usize = 40;

/// Arguments of `fairmesh kernel attach`. What is not given stays as an earlier 'attach' of the cgroup has it.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Only connections to this port; may be repeated, up to 8 times [default: 80].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Only connections to these addresses of IPv4 or IPv6; may be repeated, up to 8 times [default: every address].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    to: Vec<Network>,
    /// Refuse connections of these programs to anything but services; without a listening proxy, refuse all. By
    /// default, the programs then connect directly. Only --only-services=false removes the restriction.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    only_services: Option<bool>,
    /// The cgroup of servers on this machine, such as /servers. Requests go directly into their sockets, and plain
    /// responses directly to the callers, past the proxy. The cgroup is created if it is missing. May be repeated.
    #[arg(long, value_name = "PATH")]
    servers: Vec<String>,
    /// Send all responses of the proxy over TCP, for programs that splice responses or wait for them with MSG_WAITALL.
    /// Applies to all cgroups: the first 'attach' decides, and --no-short-cut=false ends it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_short_cut: Option<bool>,
    /// Maximum number of kernel-sent requests of the cgroup's programs that wait for a response; the sidecar sends
    /// further ones. 'unlimited', the initial value, removes the limit.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<MaxInFlight>,
    /// The user as whom the proxy runs, by name or number: the maps become theirs, so that the proxy needs no capability.
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// The programs to attach to.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ProgramsArgs {
    /// The cgroup (version 2) of the programs, such as /shop, with those below it; it is created if it is missing. Neither the root
    /// nor that of the proxy or of the agent (FAIRMESH_AGENT).
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// The container of this process, with a cgroup and mostly with a network of its own, in which the proxy then listens.
    /// Runs until the last program of the cgroup ends, and then detaches it, unless it is attached otherwise too.
    #[arg(long, value_name = "PID")]
    container: Option<u32>,
    /// The cgroup of containers, such as /kubepods: like --cgroup, and the proxy also listens in the network of each container
    /// that starts below the cgroup. Runs until 'detach'.
    #[arg(long, value_name = "PATH")]
    all_below: Option<String>,
}

impl ProgramsArgs {
    /// The path of the cgroup, and what to follow.
    fn open(self) -> Result<(String, Option<Following>), Failure> {
        match (self.cgroup, self.container, self.all_below) {
            (_, Some(pid), _) => {
                let container = Container::of(pid).map_err(failure)?;
                Ok((container.cgroup().to_owned(), Some(Following::One(container))))
            }
            (_, _, Some(path)) => Ok((path, Some(Following::AllBelow))),
            (cgroup, None, None) => Ok((cgroup.unwrap_or_default(), None)),
        }
    }
}

/// Arguments of `fairmesh kernel detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// A network: an address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network(IpAddr, u8);

impl Network {
    /// Refuses a host address with a short prefix: 10.1.2.3/8 is most often a mistyped 10.1.2.3/32.
    fn new(address: IpAddr, prefix: u8) -> Result<Self, Invalid> {
        let first = first_address(address, prefix);
        if first == address {
            return Ok(Self(address, prefix));
        }
        let says = format!("'{address}/{prefix}' is the address of a host with the prefix of a network");
        let whole = whole_prefix(address);
        Err(Invalid::new(
            "",
            says,
            format!("write {first}/{prefix} for the network, {address}/{whole} for the host"),
        ))
    }
}

/// Length of a prefix that is the whole address.
fn whole_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of the network.
fn first_address(address: IpAddr, prefix: u8) -> IpAddr {
    let rest = u32::from(whole_prefix(address) - prefix);
    match address {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(rest).unwrap_or(0)).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(rest).unwrap_or(0)).into()),
    }
}

impl FromStr for Network {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let read = address.parse::<IpAddr>().ok().and_then(|address| {
            let whole = whole_prefix(address);
            let prefix = prefix.map_or(Some(whole), |prefix| prefix.parse().ok())?;
            (prefix <= whole).then_some((address, prefix))
        });
        match read {
            Some((address, prefix)) => Self::new(address, prefix),
            None => Err(Invalid::new(
                "",
                format!("'{text}' is no network"),
                "write an address and a prefix, such as 10.0.0.0/8 or fd00::/8",
            )),
        }
    }
}

/// A limit of requests in flight; 0 for none.
#[derive(Clone, Copy, Debug)]
struct MaxInFlight(u32);

impl FromStr for MaxInFlight {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match (text, text.parse()) {
            ("unlimited", _) => Ok(Self(0)),
            (_, Ok(most @ 1..)) => Ok(Self(most)),
            _ => Err(Invalid::new(
                "",
                format!("'{text}' is no number of requests in flight"),
                "write a number from 1, or 'unlimited'",
            )),
        }
    }
}

pub(super) async fn attach(args: AttachArgs) -> Result<ExitCode, Failure> {
    let networks = args.to.iter().map(|Network(address, prefix)| (*address, *prefix)).collect();
    let pins = args.pins.bpffs;
    let (callers, following) = args.programs.open()?;
    let to = Attachments {
        callers,
        is_container: matches!(following, Some(Following::One(_))),
        selection: Selection { networks, ports: args.port },
        only_services: args.only_services,
        max_in_flight: args.max_in_flight.map(|MaxInFlight(most)| most),
        servers: args.servers,
        short_cut: args.no_short_cut.map(|without| !without),
        owner: uids(args.owner.as_slice())?.first().copied(),
        agent: agent_process().await,
    };
    let id = attach_programs(&pins, &to).map_err(failure)?;
    let mut now = status(&pins).map_err(failure)?;
    let follower = following.map(|following| match own_attachment(id, &now) {
        Some(own) => Follower::new(&pins, (own.cgroup.clone(), id), following).map_err(failure),
        None => Err(detached_meanwhile(&to.callers)),
    });
    let mut follower = follower.transpose()?;
    for _ in 0..POLLS {
        if now.proxy.is_some() {
            break;
        }
        sleep(POLL_INTERVAL).await;
        now = status(&pins).map_err(failure)?;
    }
    if let Some(follower) = &mut follower {
        follower.open_listeners().await;
        now = status(&pins).map_err(failure)?;
    }
    let (state, words) = describe_attachments(&to, own_attachment(id, &now), &now);
    output::print_one(args.output_args.format(), &state, &words)?;
    if let Some(follower) = follower {
        follower.follow().await.map_err(failure)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The attachment of the cgroup with this id; `None` if another command has detached it meanwhile.
fn own_attachment(id: u64, now: &Status) -> Option<&Attachment> {
    now.attachments.iter().find(|one| one.id == id)
}

fn detached_meanwhile(cgroup: &str) -> Failure {
    Failure::failed_with(format!("another command has detached {cgroup} meanwhile"), "run this again")
}

/// Describes the current attachments as JSON and text. They may include more than this command asked for.
fn describe_attachments(to: &Attachments, own: Option<&Attachment>, now: &Status) -> (Value, String) {
    let options = own.map(|own| format!(" ({})", options(own))).unwrap_or_default();
    let only_services = now.only_services || own.is_some_and(|own| own.only_services);
    let connections = match now.proxy {
        Some(process) => format!("connections go to the proxy, process {process}"),
        None => {
            let are = if only_services { "refused" } else { "direct" };
            let place = match now.pins == Path::new(DEFAULT_PINS) {
                true => String::new(),
                false => format!("+bpffs={}", now.pins.display()),
            };
            format!(
                "no proxy listens, so connections are {are}: run 'fairmesh proxy --listen kernel:127.0.0.1:7416{place}'"
            )
        }
    };
    let left: Vec<_> =
        [&to.callers].into_iter().chain(&to.servers).map(|cgroup| (cgroup, left_programs(cgroup))).collect();
    let lines = left.iter().flat_map(|(cgroup, names)| {
        names
            .iter()
            .map(move |name| format!("{name} runs in {cgroup}: its data passes TCP and the proxy alone\n"))
    });
    let words = format!("attached to {}{options}; {connections}\n{}", to.callers, lines.collect::<String>());
    let mut state = own.map_or_else(|| json!({}), attachment_state);
    // The programs are attached to the callers' cgroup, too; its own state only says whether it has servers.
    state["cgroup"] = json!(to.callers);
    state["servers"] = json!(to.servers);
    state["proxy"] = json!(now.proxy);
    state["namespaces"] = json!(now.namespaces);
    state["byTcp"] = json!(left.iter().flat_map(|(_, names)| names).collect::<Vec<_>>());
    (state, words)
}

/// Returns the process ID of this machine's agent; `None` if it is unknown.
async fn agent_process() -> Option<u32> {
    let Address::Unix(socket) = connect::agent() else { return None };
    ProcessStat::listening_at(&socket).await.map(|process| process.pid)
}

pub(super) fn detach(args: DetachArgs) -> Result<ExitCode, Failure> {
    let Detached { cgroups, left } = detach_programs(&args.pins.bpffs).map_err(failure)?;
    let stay = match &left[..] {
        [] => String::new(),
        left => format!(
            "; programs run in {}, or 'attach' has not created it: it stays, with nothing attached",
            left.join(", ")
        ),
    };
    let words = format!("detached from {}{stay}\n", cgroups.join(", "));
    output::print_one(args.output_args.format(), &json!({ "cgroups": cgroups, "left": left }), &words)
        .map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_refuses_network_with_host_bits() {
        let read = |text: &str| text.parse::<Network>();
        let whole = [
            ("10.0.0.0/8", 8),
            ("10.1.2.3", 32),
            ("0.0.0.0/0", 0),
            ("10.1.2.2/31", 31),
            ("fd00::/8", 8),
            ("::1", 128),
        ];
        for (text, prefix) in whole {
            assert_eq!(read(text).unwrap().1, prefix, "{text}");
        }
        let refused = read("10.1.2.3/8").unwrap_err().to_string();
        assert!(refused.contains("10.0.0.0/8") && refused.contains("10.1.2.3/32"), "{refused}");
        let refused = read("fd00::1/8").unwrap_err().to_string();
        assert!(refused.contains("fd00::/8") && refused.contains("fd00::1/128"), "{refused}");
        for text in
            ["10.0.0.0/33", "10.0.0/8", "10.0.0.1/0", "10.0.0.0/-1", "", "fd00::/129", "::1/", "[::1]"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
