//! `fairmesh kernel status` and `probe`.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use fairmesh_console::{arguments::OutputArgs, failure::Failure, output};
use fairmesh_kernel::{Attachment, Counter, Status, probe as probe_kernel, status as read_status};
use serde_json::{Map, Value, json};

use super::{PinArgs, failure};
use crate::proxy::admin_page::{AdminArgs, page};

/// Arguments of `fairmesh kernel status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Arguments of `fairmesh kernel probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pins: PinArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn status(args: StatusArgs) -> Result<ExitCode, Failure> {
    let status = read_status(&args.pins.bpffs).map_err(failure)?;
    let services = sidecar_services(&status, args.admin.address).await;
    let mut state = state(&status);
    if let Some(services) = &services {
        let row = |(service, reason): &(String, String)| json!({ "service": service, "reason": reason });
        state["needSidecar"] = services.iter().map(row).collect();
    }
    let mut text = text(&status);
    match services {
        Some(services) if !services.is_empty() => {
            let rows: Vec<_> = services.into_iter().map(|(service, reason)| vec![service, reason]).collect();
            text += &format!("\n{}", output::table(&["NEEDS THE SIDECAR", "WHY"], &rows));
        }
        None if left_unpublished(&status) => {
            text += "\nThe proxy knows why a service is not published: give its --admin address.\n";
        }
        _ => {}
    }
    output::print_one(args.output_args.format(), &state, &text).map(|()| ExitCode::SUCCESS)
}

/// Whether requests were left to the proxy because their service was not published.
fn left_unpublished(status: &Status) -> bool {
    status.counters.iter().any(|(counter, value)| *counter == Counter::ServiceUnknown && *value > 0)
}

/// The called services that the proxy does not publish, and why. `None` if the attached proxy has no pages at this
/// address.
async fn sidecar_services(status: &Status, admin: SocketAddr) -> Option<Vec<(String, String)>> {
    let attached = status.proxy?;
    let config = page(admin, "/config?json").await.ok()?;
    // Another proxy may have its pages there.
    if config["pid"].as_u64() != Some(attached.into()) {
        return None;
    }
    let reason =
        |row: &Value| Some((row["service"].as_str()?.to_owned(), row["needsSidecar"].as_str()?.to_owned()));
    Some(config["services"].as_array().into_iter().flatten().filter_map(reason).collect())
}

/// State of an attachment as JSON.
pub(super) fn attachment_state(one: &Attachment) -> Value {
    json!({
        "cgroup": one.cgroup,
        "id": one.id,
        "callers": one.has_callers,
        "ports": one.ports,
        "networks": networks(one),
        "onlyServices": one.only_services,
        "shortCut": one.short_cut,
        "servers": one.has_servers,
        "connections": one.connections,
        "inFlight": one.in_flight,
        "maxInFlight": one.max_in_flight,
    })
}

/// Networks whose connections are redirected. Empty means every address.
fn networks(one: &Attachment) -> Vec<String> {
    one.networks.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect()
}

/// Describes the options that apply to the callers in a cgroup.
pub(super) fn options(one: &Attachment) -> String {
    let ports: Vec<_> = one.ports.iter().map(u16::to_string).collect();
    let networks = match &networks(one)[..] {
        [] => "every address".to_owned(),
        networks => networks.join(", "),
    };
    let only_services = if one.only_services { "services only, " } else { "" };
    let short_cut = if one.short_cut { "" } else { ", no short cut" };
    let name = if ports.len() == 1 { "port" } else { "ports" };
    format!("{only_services}{name} {} of {networks}{short_cut}", ports.join(", "))
}

fn state(status: &Status) -> Value {
    let attachments = status.attachments.iter().map(attachment_state);
    let counters: Map<_, _> =
        status.counters.iter().map(|(counter, value)| (counter.name().to_owned(), json!(value))).collect();
    let memory: Map<_, _> = status.memory.iter().map(|(map, bytes)| (map.clone(), json!(bytes))).collect();
    json!({
        "pins": status.pins,
        "attachments": attachments.collect::<Vec<_>>(),
        "proxy": status.proxy,
        "namespaces": status.namespaces,
        "onlyServices": status.only_services,
        "inFlight": status.in_flight,
        "counters": counters,
        "memory": memory,
    })
}

fn text(status: &Status) -> String {
    let role = |one: &Attachment| match (one.has_callers, one.has_servers) {
        (true, true) => "cgroup of callers and servers",
        (false, true) => "cgroup of servers",
        _ => "cgroup of callers",
    };
    let cgroups = status.attachments.iter().map(|one| vec![role(one).to_owned(), shown(one)]);
    let proxy = status.proxy.map_or_else(|| without_proxy(status), |process| format!("process {process}"));
    let counters =
        status.counters.iter().filter(|(counter, value)| *value > 0 || *counter == Counter::SentByKernel);
    let counters = counters.map(|(counter, value)| vec![words(*counter).to_owned(), value.to_string()]);
    let bytes: u64 = status.memory.iter().map(|(_, bytes)| bytes).sum();
    let memory = vec!["memory of maps".to_owned(), format!("{} KiB", bytes / 1024)];
    let in_flight = vec!["requests by the kernel in flight".to_owned(), status.in_flight.to_string()];
    let namespaces = (status.namespaces > 0)
        .then(|| vec!["networks of containers".to_owned(), status.namespaces.to_string()]);
    let rows: Vec<_> = cgroups
        .chain([vec!["proxy".to_owned(), proxy]])
        .chain(namespaces)
        .chain(counters)
        .chain([in_flight, memory])
        .collect();
    output::table(&["", ""], &rows).trim_start().to_owned()
}

fn without_proxy(status: &Status) -> String {
    match status.only_services {
        true => "none listens; connections are refused, as the last one was told".to_owned(),
        false => "none listens".to_owned(),
    }
}

fn shown(attachment: &Attachment) -> String {
    let Attachment { cgroup, in_flight, .. } = attachment;
    if !attachment.has_callers {
        return cgroup.clone();
    }
    let options = options(attachment);
    match attachment.max_in_flight {
        Some(most) => format!("{cgroup}, {options}, {in_flight} of {most} requests in flight"),
        None => format!("{cgroup}, {options}"),
    }
}

fn words(counter: Counter) -> &'static str {
    match counter {
        Counter::Redirected => "connections to the proxy",
        Counter::NoProxy => "connections made directly, no proxy listened",
        Counter::Refused => "connections refused, not redirected",
        Counter::Ipv6Left => "connections made directly, over IPv6 alone",
        Counter::SentByKernel => "requests by the kernel",
        Counter::NotRegistered => "by the sidecar: connection not served yet",
        Counter::InFlight => "by the sidecar: an earlier request in flight",
        Counter::NotPlain => "by the sidecar: not a plain HTTP/1.1 request in one send",
        Counter::TooLarge => "by the sidecar: too large",
        Counter::ServiceUnknown => "by the sidecar: no published service",
        Counter::NoIdleConnection => "by the sidecar: no idle connection",
        Counter::EndpointEjected => "by the sidecar: the endpoint is ejected",
        Counter::PolicyChanged => "by the sidecar: the service changed meanwhile",
        Counter::RouteLeft => "by the sidecar: a route that needs it",
        Counter::AnsweredDirectly => "responses past the sidecar",
        Counter::ResponseLeft => "responses of servers here by the sidecar",
        Counter::ShortCut => "responses of the sidecar by the short cut",
        Counter::ForwardedRequest => "requests of the sidecar by the short cut",
        Counter::ForwardedResponse => "responses to the sidecar by the short cut",
        Counter::MovedToProxy => "requests to the sidecar by the short cut",
        Counter::Blocking => "connections by TCP alone: the socket blocks",
        Counter::ByLength => "connections by TCP alone: the program asks for lengths",
        Counter::TooManyConnections => "connections by TCP alone: too many of the cgroup",
        Counter::BlocksLater => "sockets that block since they are connected",
        Counter::Permitted => "requests by the kernel in place of mutual TLS",
        Counter::NotPermitted => "by the sidecar: not permitted by the server for now",
        Counter::GroupFull => "by the sidecar: too many of the cgroup in flight",
        Counter::RedirectFailed => "by the sidecar: the connection took no request of the kernel",
    }
}

/// What is missing, with the kernel's own reason.
fn problem(check: &fairmesh_kernel::Check) -> Option<String> {
    let problem = check.problem.clone()?;
    Some(match &check.refusal {
        Some(refusal) => format!("{problem} ({refusal})"),
        None => problem,
    })
}

/// Succeeds if the kernel supports everything that is needed.
pub(super) fn probe(args: ProbeArgs) -> Result<ExitCode, Failure> {
    let checks = probe_kernel(&args.pins.bpffs);
    let is_complete = checks.iter().all(|check| check.problem.is_none());
    let list: Vec<_> =
        checks.iter().map(|check| json!({ "what": check.what, "problem": problem(check) })).collect();
    let row = |check: &fairmesh_kernel::Check| {
        vec![check.what.clone(), problem(check).unwrap_or_else(|| "yes".to_owned())]
    };
    let rows: Vec<_> = checks.iter().map(row).collect();
    let state = json!({ "supported": is_complete, "checks": list });
    output::print_one(args.output_args.format(), &state, &output::table(&["needed", "offered"], &rows))?;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
