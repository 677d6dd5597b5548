//! Connects to the control plane.

use std::{env, fs, sync::Arc, time::Duration};

use fairmesh_identity::{CERTIFICATE_REJECTED, IdentityRequest, ProgramIdentity, REPAIR_REVOCATIONS};
use fairmesh_model::SpiffePath;
use fairmesh_wire::{
    environment,
    handshake::{self, CONTROL_PLANE, ConnectError, Connection},
    transport::{Address, Transport},
};

use crate::{
    arguments::TargetArgs,
    failure::Failure,
    output,
    process_stat::ProcessStat,
    socket_table::{pids, unix_listeners},
};

/// Name of this program in handshakes.
pub const SOFTWARE: &str = concat!("fairmesh command line ", env!("CARGO_PKG_VERSION"));

/// Prefix of an agent's name in handshakes.
const AGENT: &str = "agent ";

/// File name of agents' sockets.
const AGENT_SOCKET: &str = "agent.sock";
/// Maximum number of sockets that a hint names.
const MAX_NAMED: usize = 3;

/// Time for which a command waits for its identity.
const IDENTITY_WAIT: Duration = Duration::from_secs(2);

/// Hint on how to give another address than `tried`: the sockets of control planes on this machine, whatever their
/// data directories, if there are any, else the control planes that its agent follows.
pub fn address_hint(tried: &Address) -> String {
    let found = others(environment::CONTROL_SOCKET, tried);
    if !found.is_empty() {
        return format!(
            "give {}, where a control plane of this machine listens",
            options("--control", &found)
        );
    }
    let agent = agent();
    let mut followed = followed_by_agent(&agent);
    followed.retain(|address| address != tried);
    if !followed.is_empty() {
        return format!("give {}, which the agent of this machine follows", options("--control", &followed));
    }
    let mut hint = "give another address with --control ADDRESS or FAIRMESH_CONTROL".to_owned();
    if matches!(&agent, Address::Unix(socket) if socket.exists()) {
        hint += ", such as the control plane that the agent of this machine follows";
    }
    hint
}

/// The control planes of the agent that listens at this address, if its command line says them.
fn followed_by_agent(agent: &Address) -> Vec<Address> {
    let command_lines = pids().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
    let mut followed = command_lines.filter_map(|line| followed(&line, agent));
    followed.next().unwrap_or_default()
}

/// The control planes in the command line of an agent, whose words end in zeros. `None` for another program, or an
/// agent at another address.
fn followed(command_line: &str, agent: &Address) -> Option<Vec<Address>> {
    let words: Vec<_> = command_line.split_terminator('\0').collect();
    let [program, "agent", options @ ..] = &words[..] else { return None };
    let value = |name: &str| {
        options.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(name)? {
            "" => options.get(at + 1).copied(),
            value => value.strip_prefix('='),
        })
    };
    let listens =
        value("--listen").map_or_else(|| Some(environment::agent()), |address| address.parse().ok());
    let addresses = value("--control")?.split(',').filter_map(|address| address.trim().parse().ok());
    (program.ends_with("fairmesh") && listens.as_ref() == Some(agent)).then(|| addresses.collect())
}

/// Hint on how to name another agent than `tried`: the sockets of agents on this machine, if there are any.
pub async fn agent_hint(tried: &Address) -> String {
    let mut found = Vec::new();
    for address in others(AGENT_SOCKET, tried) {
        // Agents of other systems have sockets of this name too.
        if reaches_agent(&address).await {
            found.push(address);
        }
    }
    let is_busy = is_listening(tried).await;
    match &found[..] {
        [] if is_busy => {
            format!(
                "it listens and does not answer, as on a busy machine: try again, or {}",
                log_hint(tried).await
            )
        }
        [] => "start it with 'fairmesh agent', or give its address with --agent ADDRESS or FAIRMESH_AGENT"
            .to_owned(),
        found => format!("give {}, where an agent of this machine listens", options("--agent", found)),
    }
}

/// Whether a process listens at this Unix socket.
async fn is_listening(address: &Address) -> bool {
    match address {
        Address::Unix(path) => ProcessStat::listening_at(path).await.is_some(),
        Address::Tcp(_) => false,
    }
}

/// Hint on where the log of the process at this address is: the command that shows it, if this user may see it. A process
/// that a signal or a debugger has stopped is named instead.
pub async fn log_hint(address: &Address) -> String {
    let process = match address {
        Address::Unix(path) => ProcessStat::listening_at(path).await,
        Address::Tcp(_) => None,
    };
    match process {
        Some(process) if process.is_suspended => {
            format!("{process} listens there and is stopped: continue it with 'kill -CONT {}'", process.pid)
        }
        Some(process) => match process.log_command() {
            Some(command) => format!("see the log of {process}: '{command}'"),
            None => format!("see the log of {process}"),
        },
        None => "see the log of that agent".to_owned(),
    }
}

/// Whether an agent responds at this address.
pub async fn reaches_agent(address: &Address) -> bool {
    let connected = handshake::connect(&transport_to(address).await, address, SOFTWARE).await;
    connected.is_ok_and(|agent| agent.hello.software.starts_with(AGENT))
}

/// The sockets of this name on this machine at which a process listens, without the one that was tried.
fn others(file_name: &str, tried: &Address) -> Vec<Address> {
    let found = unix_listeners(file_name).into_iter().map(Address::Unix);
    found.filter(|address| address != tried).take(MAX_NAMED).collect()
}

fn options(option: &str, addresses: &[Address]) -> String {
    addresses.iter().map(|address| format!("{option} {address}")).collect::<Vec<_>>().join(" or ")
}

/// Returns the transport of a program without an identity.
pub fn transport() -> Transport {
    Transport::default()
}

/// Transport of a command to a process of the mesh: over TCP with the identity that this machine's agent gives, if the
/// agent is a member of a trust domain. A Unix socket needs no identity.
pub async fn transport_to(address: &Address) -> Transport {
    transport_with(agent(), address).await
}

/// Like [`transport_to`], with the identity that `agent` gives.
async fn transport_with(agent: Address, address: &Address) -> Transport {
    match address {
        Address::Unix(_) => transport(),
        Address::Tcp(_) => transport_of_agent(agent, None, SOFTWARE).await,
    }
}

/// Transport of a process of this machine, for connecting and accepting, with an identity from its agent or from the
/// Workload API named by the environment. The identity may arrive later.
pub async fn transport_of_agent(
    agent: Address,
    path: Option<SpiffePath>,
    software: impl Into<String>,
) -> Transport {
    transport_within(agent, path, software, IDENTITY_WAIT).await
}

/// Like [`transport_of_agent`], and waits this long for an agent that listens and has not answered.
pub async fn transport_within(
    agent: Address,
    path: Option<SpiffePath>,
    software: impl Into<String>,
    patience: Duration,
) -> Transport {
    // `main` has refused a malformed variable.
    let workload_api = environment::workload_api().ok().flatten();
    let software = software.into();
    let request = IdentityRequest {
        agent,
        workload_api,
        control_planes: Vec::new(),
        token: None,
        path,
        software,
        patience,
    };
    ProgramIdentity::of_caller(request).await.map(ProgramIdentity::transport).unwrap_or_default()
}

/// Makes a process use only its identity, even before it has one.
pub fn require_identity(transport: &Transport) -> Result<(), Failure> {
    if !transport.is_tls() {
        let hint = "give the Unix socket of an agent of this machine with --agent";
        return Err(Failure::refused("no agent can give this process an identity", hint));
    }
    transport.require_identity();
    Ok(())
}

/// The agent of this machine.
pub fn agent() -> Address {
    let given = env::var("FAIRMESH_AGENT").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(environment::agent)
}

/// Transport of a command to a control plane, with the token of its user if there is one.
async fn transport_of_user(target: &TargetArgs, address: &Address) -> Result<Transport, Failure> {
    let transport = match (target.one_way_tls()?, address) {
        (Some(one_way), Address::Tcp(_)) => Transport::tls(Arc::new(one_way)),
        _ => transport_with(target.own_agent().cloned().unwrap_or_else(agent), address).await,
    };
    Ok(match target.token()? {
        Some(token) => transport.with_token(token),
        None => transport,
    })
}

/// The last attempt to connect to a control plane.
#[derive(Debug)]
pub struct Attempt {
    /// The control plane.
    pub address: Address,
    /// The transport to it.
    transport: Transport,
    /// The outcome.
    pub connected: Result<Connection, ConnectError>,
}

/// Connects to the first of the given control planes that responds, and tells which of them do not. Returns the last
/// attempt.
pub async fn first_connected(target: &TargetArgs) -> Result<Attempt, Failure> {
    let mut addresses = target.addresses().into_iter().peekable();
    loop {
        // There is at least one address.
        let address = addresses.next().unwrap_or_else(environment::control);
        let transport = transport_of_user(target, &address).await?;
        let connected = handshake::connect(&transport, &address, SOFTWARE).await;
        match (&connected, addresses.peek()) {
            (Err(error), Some(next)) => output::note(format!("{}; trying {next}", error.with_causes())),
            _ => return Ok(Attempt { address, transport, connected }),
        }
    }
}

/// Connects to the first of the given control planes that responds.
pub async fn connect(target: &TargetArgs) -> Result<Connection, Failure> {
    let Attempt { address, transport, connected } = first_connected(target).await?;
    let has_token = target.token()?.is_some();
    let log = match &connected {
        Ok(_) => String::new(),
        Err(_) => log_hint(target.own_agent().unwrap_or(&agent())).await,
    };
    let connection = connected.map_err(|error| {
        let is_plaintext = matches!(address, Address::Tcp(_)) && !transport.secures_mesh();
        let no_roots = || error.ended_by_peer().filter(|_| has_token && is_plaintext);
        let unreachable = || match (no_roots(), error.ended_by_peer()) {
            (Some(why), _) => self::no_roots(&address, why),
            (None, Some(_)) if is_plaintext => refused_in_plaintext(&address),
            (None, _) => unreachable(&address, &error),
        };
        no_identity(&address, (&error, &log), &transport).unwrap_or_else(unreachable)
    })?;
    let software = &connection.hello.software;
    if has_token && !software.starts_with(CONTROL_PLANE) {
        return Err(Failure::refused(
            format!("the token is not sent to {address}, which is no control plane but: {software}"),
            "give the address of a control plane with --control, or send no token",
        ));
    }
    Ok(connection)
}

/// Connects for calls reserved to operators. An agent forwards such a call only if the caller has signed it with an
/// operator's identity, which the agent gives to its own user and root.
pub async fn connect_as_operator(target: &TargetArgs) -> Result<Connection, Failure> {
    let connection = connect(target).await?;
    let address = connection.address().clone();
    if !matches!(address, Address::Unix(_)) || !connection.hello.software.starts_with(AGENT) {
        return Ok(connection);
    }
    let request = IdentityRequest {
        agent: address.clone(),
        workload_api: None,
        control_planes: Vec::new(),
        token: None,
        path: None,
        software: SOFTWARE.into(),
        patience: IDENTITY_WAIT,
    };
    let Some(operator) = ProgramIdentity::of_caller(request).await else { return Ok(connection) };
    let transport = operator.stating_calls().transport();
    handshake::connect(&transport, &address, SOFTWARE).await.map_err(|error| unreachable(&address, &error))
}

/// Error for a user with a token who connects over TCP without roots to verify the control plane, after the listener
/// has closed the connection.
fn no_roots(address: &Address, why: &str) -> Failure {
    Failure::failed_with(
        format!("{address} ended the connection in plaintext: {why}"),
        "a mesh with a trust domain takes tokens over TLS alone: give its roots with --trust-bundle FILE (FAIRMESH_TRUST_BUNDLE), \
         which is 'ca/bundle.pem' in the data directory of a control plane; or check that a control plane listens there",
    )
}

/// Error for a program without a certificate whose connection over TCP was closed before a response.
fn refused_in_plaintext(address: &Address) -> Failure {
    Failure::failed_with(
        format!("{address} closed the connection, on which this command proved no identity"),
        format!(
            "over TCP, a mesh with a trust domain accepts only programs of a machine whose agent has joined (its address: --agent or \
             FAIRMESH_AGENT); {}; or check that a control plane listens there",
            address_hint(address)
        ),
    )
}

/// Error that explains why this command has no certificate, if it failed for lack of one.
fn no_identity(
    address: &Address,
    (error, log): (&ConnectError, &str),
    transport: &Transport,
) -> Option<Failure> {
    let problem = format!("cannot reach the control plane at {address} without an identity");
    if environment::workload_api().ok().flatten().is_some() {
        let lacks = transport.lacks_certificate()?;
        let hint = "check FAIRMESH_IDENTITY, and that this program is registered there";
        return Some(Failure::failed_with(format!("{problem}: {lacks}"), hint));
    }
    let lacks = transport.lacks_identity().filter(|_| matches!(error, ConnectError::Unreachable { .. }))?;
    let hint = format!(
        "{log}, or name another agent with FAIRMESH_AGENT; or {}; the Unix socket of a control plane needs no identity",
        address_hint(address)
    );
    Some(Failure::failed_with(format!("{problem}: {lacks}"), hint))
}

/// Error for a process that rejects the certificate of this command. Only its log says why.
fn rejected(address: &Address, error: &ConnectError) -> Failure {
    Failure::failed_with(
        format!("{address} accepts no connection of this command: {}", error.with_causes()),
        format!(
            "see the log there, and 'fairmesh identity list' for what is revoked; if the log says that the record of revocations \
             cannot be read, replace the record {REPAIR_REVOCATIONS}"
        ),
    )
}

/// Error for an unreachable control plane, with the remedy.
pub fn unreachable(address: &Address, error: &ConnectError) -> Failure {
    match error {
        _ if error.with_causes().contains(CERTIFICATE_REJECTED) => rejected(address, error),
        _ if error.is_unknown_host() => Failure::failed_with(
            format!("no host is known by the name in {address}"),
            format!("check the name, and the DNS of this machine; or {}", address_hint(address)),
        ),
        ConnectError::Unreachable { source, .. } if error.is_plaintext_peer() => Failure::failed_with(
            format!("cannot reach the control plane at {address}: {source}"),
            "for a mesh without a trust domain whose machine has no agent of its own, set FAIRMESH_AGENT=unix:/none; or give the \
             Unix socket of the control plane",
        ),
        ConnectError::Unreachable { source, .. } => Failure::failed_with(
            format!("cannot reach the control plane at {address}: {source}"),
            format!(
                "start it with 'fairmesh control', or {}; over TCP, a mesh with a trust domain accepts only programs of a machine \
                 whose agent has joined: else give the Unix socket of the control plane",
                address_hint(address)
            ),
        ),
        ConnectError::NoHello { .. } => Failure::failed_with(
            error,
            format!("check the log of 'fairmesh control' there, or {}", address_hint(address)),
        ),
        ConnectError::Version { .. } | ConnectError::InvalidHello { .. } | ConnectError::Token { .. } => {
            Failure::failed(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_planes_of_agent_are_read_from_its_command_line() {
        let agent: Address = "unix:/run/a.sock".parse().unwrap();
        let of = |line: &str| {
            let followed = followed(&line.replace(' ', "\0"), &agent)?;
            Some(followed.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let addresses = Some(vec!["10.0.0.1:7400".to_owned(), "unix:/c.sock".to_owned()]);
        assert_eq!(
            of("/bin/fairmesh agent --listen unix:/run/a.sock --control 10.0.0.1:7400,unix:/c.sock "),
            addresses
        );
        assert_eq!(
            of("fairmesh agent --control=10.0.0.1:7400,unix:/c.sock --listen=unix:/run/a.sock "),
            addresses
        );
        assert_eq!(of("fairmesh agent --listen unix:/run/a.sock "), None, "it uses the default");
        assert_eq!(of("fairmesh agent --listen unix:/b.sock --control 10.0.0.1:7400 "), None);
        assert_eq!(of("fairmesh proxy --listen unix:/run/a.sock --control 10.0.0.1:7400 "), None);
    }
}
