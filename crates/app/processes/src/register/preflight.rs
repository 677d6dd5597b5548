//! Checks before a program is started and registered.

use std::{net::SocketAddr, time::Duration};

use fairmesh_console::{
    cell_text::type_and_protocol,
    connect::{SOFTWARE, transport_to},
    failure::Failure,
    rib_reader::{self, StoredRecord},
    socket_table::{self, Listener},
};
use fairmesh_model::{EndpointState, Prefix, Record, RecordKey};
use fairmesh_server::{Registration, ServerTransport};
use fairmesh_wire::{handshake, record_encoding};
use tokio::{net::TcpStream, time::timeout};

use super::arguments::ValidArguments;

/// Timeout of the connection attempt to the address. A listener on this machine would accept at once.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for checking whether the service is declared. Callers may be waiting for the program meanwhile.
const DECLARATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Refuses to start a program whose address is in use: calls would go to the other listener, which would also pass
/// the program's probes.
pub(super) async fn refuse_address_in_use(plan: &ValidArguments) -> Result<(), Failure> {
    let address = plan.program_address();
    let connects = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    if plan.command.is_empty() || !matches!(connects, Ok(Ok(_))) {
        return Ok(());
    }
    let owner = socket_table::listener_at(address).and_then(Listener::owner);
    let who = owner.as_ref().map(|owner| format!(", {owner},")).unwrap_or_default();
    let stop = match owner {
        // Whether the listener is a leftover of an earlier run cannot be determined: programs of a service manager are
        // children of init, too.
        Some(owner) => format!(
            "stop it or choose another port; the program of a 'fairmesh register' that was killed is ended with 'kill {}'",
            owner.pid
        ),
        None => "stop it or choose another port".to_owned(),
    };
    Err(Failure::failed_with(
        format!(
            "another program listens on {address}{who} before the program is started: it would get its calls"
        ),
        format!("{stop}; or omit COMMAND to register the program that listens there"),
    ))
}

/// Refuses a default instance id that belongs to a program at another IP address, which would be replaced: the default
/// names host and port only. A program that no longer accepts connections is replaced, since it may be an earlier run. If this
/// cannot be checked, the decision is left to the control plane.
pub(super) async fn refuse_taken_instance(plan: &ValidArguments) -> Result<(), Failure> {
    let registered = match plan.has_default_instance {
        true => timeout(DECLARATION_TIMEOUT, addresses_of_instance(plan)).await.unwrap_or_default(),
        false => Vec::new(),
    };
    let own = plan.registration.address.ip();
    for address in registered.into_iter().filter(|address| address.ip() != own) {
        if !matches!(timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await, Ok(Ok(_))) {
            continue;
        }
        let Registration { service, instance, .. } = &plan.registration;
        return Err(Failure::failed_with(
            format!(
                "{service} has an instance {instance} already, at {address}: it has the same host name and port, by which instances are \
                 named by default"
            ),
            "give this one an id of its own with --instance ID, the same after each start",
        ));
    }
    Ok(())
}

/// The addresses at which the instance is registered and not lost. Empty if they cannot be read.
async fn addresses_of_instance(plan: &ValidArguments) -> Vec<SocketAddr> {
    let Registration { service, instance, .. } = &plan.registration;
    let found = read(plan, &[Prefix::endpoints(service, None)]).await.unwrap_or_default();
    let endpoint = |stored: StoredRecord| match record_encoding::decode(&stored.key, &stored.value) {
        Ok(Record::Endpoint(endpoint)) => Some(endpoint),
        _ => None,
    };
    let endpoints = found.into_iter().filter_map(endpoint);
    let endpoints = endpoints.filter(|one| one.instance == *instance && one.state != EndpointState::Lost);
    endpoints.map(|endpoint| endpoint.address).collect()
}

/// Refuses to register a program in plaintext if no caller would use it. If this cannot be checked, the decision is
/// left to the control plane.
pub(super) async fn refuse_plaintext(plan: &ValidArguments, opened: &ServerTransport) -> Result<(), Failure> {
    if !plan.plaintext || !opened.transport.is_tls() {
        return Ok(());
    }
    let service = &plan.registration.service;
    match timeout(DECLARATION_TIMEOUT, permits_plaintext(plan)).await {
        Ok(Some(false)) => Err(Failure::refused(
            format!("{service} would have a plaintext endpoint in a strict mesh, which no caller uses"),
            format!(
                "omit --plaintext, so that this command speaks mutual TLS for the program, or write 'mtls: permissive' into the policy of \
                 {service}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Whether the policy permits plaintext. `None` if this cannot be checked.
async fn permits_plaintext(plan: &ValidArguments) -> Option<bool> {
    let key = RecordKey::Policy(plan.registration.service.clone());
    let found = read(plan, &[Prefix::from(&key)]).await?;
    let policy = found.iter().find(|stored| stored.key == key);
    Some(policy.is_some_and(|stored| record_encoding::permits_plaintext(&stored.value)))
}

/// What the registration of the program declares, if the service has no declaration yet. `None` also if this cannot be
/// checked, since the registration will report the error.
pub(super) async fn declaration_note(plan: &ValidArguments) -> Option<String> {
    let declaration = plan.registration.declaration.as_ref()?;
    let declared = timeout(DECLARATION_TIMEOUT, is_declared(plan)).await;
    (declared == Ok(Some(false))).then(|| {
        let (kind, protocol) = type_and_protocol(declaration);
        let service = &plan.registration.service;
        format!("{service} is not declared: registering declares it as {kind}, {protocol}")
    })
}

/// Whether the service is declared. `None` if this cannot be checked.
async fn is_declared(plan: &ValidArguments) -> Option<bool> {
    let key = RecordKey::Service(plan.registration.service.clone());
    let found = read(plan, &[Prefix::from(&key)]).await?;
    Some(found.iter().any(|stored| stored.key == key))
}

/// Reads records from the first address that responds.
async fn read(plan: &ValidArguments, prefixes: &[Prefix]) -> Option<Vec<StoredRecord>> {
    for address in &plan.addresses {
        if let Ok(connection) = handshake::connect(&transport_to(address).await, address, SOFTWARE).await {
            return rib_reader::read(&connection, prefixes).await.ok();
        }
    }
    None
}
