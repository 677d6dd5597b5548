//! Processes: whether they respond, their releases, and the age of their data.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use fairmesh_console::{
    connect::{Attempt, SOFTWARE, address_hint, agent_hint, first_connected, transport},
    failure::Failure,
    process_stat::ProcessStat,
    view_reader::age_of,
};
use fairmesh_model::{Cursor, Prefix, spec::write_duration};
use fairmesh_wire::{
    handshake::{self, ConnectError, Connection},
    transport::Address,
    v1::WatchersRequest,
};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    CheckArgs,
    page_fetch::{Fetched, Page, fetch},
};
use crate::findings_report::{Level, Report, listed};

/// Clock difference above which certificates and the ages of records become wrong. It allows for the `date` of a
/// page, which has whole seconds.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);
/// Age of an agent's data above which the agent lacks changes that callers need.
const MAX_DATA_AGE: Duration = Duration::from_secs(10);

/// Checks the control plane, and returns the connection to it.
pub(super) async fn control(args: &CheckArgs, report: &mut Report) -> Result<Option<Connection>, Failure> {
    let Attempt { address, connected, .. } = first_connected(&args.target).await?;
    let connection = match connected {
        Ok(connection) => {
            report.ok(
                "control",
                format!("the control plane responds at {address}: {}", connection.hello.software),
            );
            version("control.version", "the control plane", &connection.hello.software, report);
            Some(connection)
        }
        Err(error) => {
            unreachable(("control", "control.foreign"), "the control plane", (&address, &error), report)
                .await;
            None
        }
    };
    if let Some(http) = args.control_admin.0 {
        let what = format!("the HTTP port {http} of the control plane");
        match fetch(http, "/readyz").await {
            Fetched::Page(page) => {
                clock(&page, report);
                ready("control.ready", "the control plane", &page, report);
            }
            Fetched::Foreign => foreign("control.http", &what, "--control-admin", report),
            Fetched::Silent => silent("control.http", &what, "--control-admin", report),
            Fetched::Refused => report.add(
                "control.http",
                Level::Note,
                format!("nothing listens at {what}: readiness, disk and clock were not examined"),
                "give it with --control-admin ADDRESS, or run this command on its machine",
            ),
        }
    }
    Ok(connection)
}

/// Checks whether any reader holds a later revision than the control plane, as after a restore. Such readers get no
/// changes.
pub(super) async fn readers(control: &Connection, report: &mut Report) {
    // A watcher may apply a write between two reads of the control plane. A watcher that is really ahead is still ahead
    // at the second read.
    let Some((_, ahead)) =
        readers_ahead(control, &BTreeMap::new()).await.filter(|(_, ahead)| !ahead.is_empty())
    else {
        return;
    };
    let Some((revision, ahead)) = readers_ahead(control, &ahead).await.filter(|(_, ahead)| !ahead.is_empty())
    else {
        return;
    };
    let held = ahead.values().copied().max().unwrap_or_default();
    let names = listed(&ahead.into_keys().collect());
    report.add(
        "control.behind",
        Level::Error,
        format!("the control plane is at revision {revision} of its store, and readers hold up to revision {held}: {names}"),
        "they get no changes before it is there too: if the store was restored from a copy, start its control plane once with \
         --new-store-id",
    );
}

/// Returns the revision of a control plane, and its watchers with later revisions. If `known` watchers from an
/// earlier read are given, only these count, each with the lower of its two revisions.
async fn readers_ahead(
    control: &Connection,
    known: &BTreeMap<String, u64>,
) -> Option<(u64, BTreeMap<String, u64>)> {
    let request = WatchersRequest { prefix: Prefix::everything().to_string() };
    // A caller who may not read everything gets no list of watchers.
    let answer = control.rib().watchers(request).await.ok()?.into_inner();
    let at = Cursor::try_from(answer.at?).ok()?;
    let ahead = answer.watchers.into_iter().filter_map(|watcher| {
        let applied = Cursor::try_from(watcher.applied?).ok()?.number(0);
        let name = format!("{} ({})", watcher.software, watcher.identity);
        let held = if known.is_empty() { applied } else { applied.min(*known.get(&name)?) };
        (held > at.number(0)).then_some((name, held))
    });
    Some((at.number(0), ahead.collect()))
}

/// Checks the agent of this machine.
pub(super) async fn agent(args: &CheckArgs, control: Option<&Connection>, report: &mut Report) {
    let address = args.agent.address();
    let connection = match handshake::connect(&transport(), &address, SOFTWARE).await {
        Ok(connection) => connection,
        Err(error) => {
            return unreachable(("agent", "agent.foreign"), "the agent", (&address, &error), report).await;
        }
    };
    let hello = &connection.hello;
    report.ok("agent", format!("the agent responds at {address}: {}", hello.software));
    version("agent.version", "the agent", &hello.software, report);
    match (hello.store, control.map(|control| control.hello.store)) {
        // An agent learns its store from the first records that a program follows.
        (None, _) => {
            report.add(
                "agent.store",
                Level::Note,
                "the agent holds no records: no program of this machine follows any",
                "",
            );
        }
        (Some(own), Some(Some(other))) if own != other => report.add(
            "agent.store",
            Level::Error,
            format!("the agent follows store {own}, and the control plane at hand has store {other}"),
            "they are of different meshes: give both the same --control, or FAIRMESH_CONTROL",
        ),
        _ => {}
    }
    agent_pages(args, report).await;
}

/// Checks that the agent is connected, and how old its records are.
async fn agent_pages(args: &CheckArgs, report: &mut Report) {
    let Some(metrics) = args.agent_admin.0 else { return };
    let page = match fetch(metrics, "/readyz").await {
        Fetched::Page(page) => page,
        Fetched::Foreign => {
            let what = format!("the HTTP port {metrics} of the agent");
            return foreign("agent.http", &what, "--agent-admin", report);
        }
        Fetched::Silent => {
            let what = format!("the HTTP port {metrics} of the agent");
            return silent("agent.http", &what, "--agent-admin", report);
        }
        Fetched::Refused => {
            let message =
                format!("the agent has no HTTP port at {metrics}: the age of its data was not examined");
            return report.add("agent.http", Level::Note, message, "give it with --agent-admin ADDRESS");
        }
    };
    let remedy =
        "check the log of 'fairmesh agent', and its --control; calls go on by the old records meanwhile";
    match page.body.as_str() {
        "ready" => report.ok("agent.connected", "the agent is connected to its control plane"),
        why => report.add("agent.connected", Level::Error, format!("the agent says: {why}"), remedy),
    }
    let Fetched::Page(page) = fetch(metrics, "/metrics").await else { return };
    let value = page.body.lines().find_map(|line| line.strip_prefix("fairmesh_agent_data_age_seconds "));
    let Some(age) = value.and_then(|value| Duration::try_from_secs_f64(value.parse().ok()?).ok()) else {
        return;
    };
    let shown = format!("the agent's data is {} old", write_duration(whole(age)));
    match age <= MAX_DATA_AGE {
        true => report.ok("agent.age", shown),
        false => report.add("agent.age", Level::Error, shown, remedy),
    }
}

fn whole(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

/// Checks a proxy.
pub(super) async fn proxy(args: &CheckArgs, report: &mut Report) {
    let Some(admin) = args.admin.0 else { return };
    let page = match fetch(admin, "/config?json").await {
        Fetched::Page(page) => page,
        Fetched::Refused => {
            return report.add("proxy", Level::Note, format!("no proxy has its admin port at {admin}"), "");
        }
        Fetched::Foreign => {
            return foreign(
                "proxy.foreign",
                &format!("the admin port {admin} of a proxy"),
                "--admin",
                report,
            );
        }
        Fetched::Silent => {
            return silent("proxy", &format!("the admin port {admin} of a proxy"), "--admin", report);
        }
    };
    let config: Value = serde_json::from_str(&page.body).unwrap_or_default();
    let Some(release) = config["version"].as_str() else {
        return foreign("proxy.foreign", &format!("the admin port {admin} of a proxy"), "--admin", report);
    };
    report.ok("proxy", format!("a proxy responds at {admin}: proxy {release}"));
    version("proxy.version", "the proxy", release, report);
    if config["ready"] != json!(true) {
        let remedy = "it is ready once it has records: check its --agent or --control, and its log";
        report.add("proxy.ready", Level::Error, "the proxy is not ready", remedy);
    }
    if let Some(problem) = config["routing"]["identityProblem"].as_str() {
        let message =
            format!("the proxy has no identity, and its calls to endpoints with mutual TLS fail: {problem}");
        let remedy = "have its agent issue it: see 'fairmesh identity whoami' and the log of the agent";
        report.add("proxy.identity", Level::Warning, message, remedy);
    }
    let services = config["services"].as_array().into_iter().flatten();
    // Several services may share one backend.
    let avoided: BTreeSet<&str> = services
        .filter(|service| service["ejected"].as_u64().is_some_and(|ejected| ejected > 0))
        .flat_map(|service| {
            std::iter::once(&service["service"]).chain(service["backends"].as_array().into_iter().flatten())
        })
        .filter_map(Value::as_str)
        .collect();
    for name in avoided {
        ejections(admin, name, report).await;
    }
}

/// Checks which endpoints of a service a proxy avoids.
async fn ejections(admin: SocketAddr, name: &str, report: &mut Report) {
    let Fetched::Page(page) = fetch(admin, &format!("/services/{name}/endpoints")).await else { return };
    let rows: Value = serde_json::from_str(&page.body).unwrap_or_default();
    let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    let ejected: BTreeSet<String> = rows
        .iter()
        .filter(|row| is_ejected(row))
        .filter_map(|row| row["instance"].as_str().map(str::to_owned))
        .collect();
    if ejected.is_empty() {
        return;
    }
    report.add(
        "proxy.ejected",
        Level::Warning,
        format!(
            "the proxy avoids {} of {} endpoints of {name}, where its calls failed: {}",
            ejected.len(),
            rows.len(),
            listed(&ejected)
        ),
        format!("see 'fairmesh proxy endpoints {name}', and the logs of these servers"),
    );
}

/// Whether the endpoint is ejected for longer than a server that was only briefly busy.
fn is_ejected(row: &Value) -> bool {
    let seconds = |field: &str| row[field].as_f64().unwrap_or_default();
    row["state"] == json!("ejected") && seconds("ejectedSeconds") + seconds("returnsInSeconds") >= 0.1
}

fn ready(check: &'static str, what: &str, page: &Page, report: &mut Report) {
    match (page.status.is_success(), page.body.as_str()) {
        (true, "ready") => report.ok(check, format!("{what} is ready")),
        // The store is damaged, but the process continues from memory.
        (true, why) => {
            let remedy = "save all records now with 'fairmesh rib export', then restore them";
            report.add(check, Level::Warning, format!("{what} says: {why}"), remedy);
        }
        (false, why) => {
            let remedy = "see its log; a full disk needs space, and an etcd store a majority of its members";
            report.add(check, Level::Error, format!("{what} is not ready: {why}"), remedy);
        }
    }
}

/// Compares the clock of another machine with the local clock.
fn clock(page: &Page, report: &mut Report) {
    let parsed = page.date.as_deref().and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    let Some(theirs) = parsed.map(Timestamp::as_millisecond).and_then(|ms| u64::try_from(ms).ok()) else {
        return;
    };
    let ours = u64::try_from(age_of(0).as_millis()).unwrap_or(u64::MAX);
    let difference = Duration::from_millis(ours.abs_diff(theirs));
    match difference <= MAX_CLOCK_DIFFERENCE {
        true => report.ok("clock", "the clocks of this machine and of the control plane agree"),
        false => report.add(
            "clock",
            Level::Error,
            format!(
                "the clocks of this machine and of the control plane differ by {}",
                write_duration(whole(difference))
            ),
            "synchronize both with NTP: certificates and ages of records depend on it",
        ),
    }
}

/// Compares a process's release with that of this command.
fn version(check: &'static str, what: &str, software: &str, report: &mut Report) {
    let own = env!("CARGO_PKG_VERSION");
    let theirs = software.rsplit(' ').next().unwrap_or(software);
    if theirs != own {
        report.add(
            check,
            Level::Warning,
            format!("{what} is of release {theirs}, and this command of {own}"),
            "upgrade to one release: control planes first, then replicas, agents and proxies; a release talks to the one before",
        );
    }
}

async fn unreachable(
    (check, other): (&'static str, &'static str),
    what: &str,
    (address, error): (&Address, &ConnectError),
    report: &mut Report,
) {
    let option = if check == "agent" { "--agent or FAIRMESH_AGENT" } else { "--control or FAIRMESH_CONTROL" };
    let hint = match check {
        "agent" => agent_hint(address).await,
        _ => format!("start it with 'fairmesh control', or {}", address_hint(address)),
    };
    match (error, address) {
        (ConnectError::Unreachable { .. }, Address::Unix(path)) if !path.exists() => report.add(
            check,
            Level::Error,
            format!("{what} does not run: there is no socket {}", path.display()),
            hint,
        ),
        (ConnectError::Unreachable { source, .. }, _) => report.add(
            check,
            Level::Error,
            format!("{what} does not respond at {address}: {source}"),
            format!(
                "{hint}; the socket of an ended process stays as a file, and one of another user may be closed to this one"
            ),
        ),
        (error, Address::Tcp(_)) if error.ended_by_peer().is_some() => report.add(
            other,
            Level::Error,
            format!("what listens at {address} closed the connection before it responded"),
            format!(
                "a mesh with a trust domain accepts over TCP only programs of a machine whose agent has joined: {hint}; or another \
                 program has taken the port (ss -ltnp shows it)"
            ),
        ),
        (ConnectError::NoHello { status, .. }, address)
            if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) =>
        {
            let (message, remedy) = silent_peer(what, address).await;
            report.add(check, Level::Error, message, remedy);
        }
        (ConnectError::NoHello { status, .. }, _) => report.add(
            other,
            Level::Error,
            format!("what listens at {address} is not {what}: {}", status.message()),
            format!("another program has taken the port (ss -ltnp shows it): end it, or give the address with {option}"),
        ),
        (error @ ConnectError::Token { .. }, _) => {
            report.add(check, Level::Error, error.to_string(), "give another token, or none");
        }
        (error @ (ConnectError::Version { .. } | ConnectError::InvalidHello { .. }), _) => {
            report.add(check, Level::Error, error.to_string(), "upgrade the older side");
        }
    }
}

/// Describes a process that accepts connections but does not respond, and the remedy. For a Unix socket, the message
/// names the listening process; at a TCP address, it may be another program.
async fn silent_peer(what: &str, address: &Address) -> (String, String) {
    let process = match address {
        Address::Unix(path) => ProcessStat::listening_at(path).await,
        Address::Tcp(_) => None,
    };
    let message = format!("{what} accepts connections at {address} and does not respond");
    let doubt =
        "it is suspended or overloaded, or another program has taken its address (ss -lntxp shows it)";
    match process {
        Some(process) if process.is_suspended => (
            format!("{message}: {process} is suspended"),
            format!("continue it with 'kill -CONT {}', or end it and start it again", process.pid),
        ),
        Some(process) => (
            format!("{message}: {process} is overloaded, or not what is expected there"),
            "see its log and its CPU; else end it, and start what belongs there".to_owned(),
        ),
        None => (message, format!("{doubt}: see its log and its CPU, and whether its state in 'ps' is T")),
    }
}

/// Reports an HTTP port that accepts connections and does not respond.
fn silent(check: &'static str, what: &str, option: &str, report: &mut Report) {
    report.add(
        check,
        Level::Warning,
        format!("{what} accepts connections and does not respond: its process is suspended or overloaded, or is another one"),
        format!("see its state in 'ps' (T is suspended) and its log; ss -ltnp shows whose it is, and {option} takes another address"),
    );
}

fn foreign(check: &'static str, what: &str, option: &str, report: &mut Report) {
    report.add(
        check,
        Level::Warning,
        format!("another program listens at {what}"),
        format!("end it (ss -ltnp shows it), or give the right address with {option}"),
    );
}
