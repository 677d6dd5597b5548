//! What is looked at before a program is registered.

use std::time::Duration;

use fairmesh_model::{Prefix, RecordKey};
use fairmesh_wire::handshake;
use tokio::{net::TcpStream, time::timeout};

use super::{plan::Plan, say};
use crate::{command::service_words, connect::SOFTWARE, failure::Failure, rib};

/// How long somebody else at the address may take to answer; who listens on this machine does so at once.
const SOMEBODY_ELSE: Duration = Duration::from_millis(500);
/// How long a program that was started is left alone with its callers waiting, to say that its service is new.
const DECLARATION: Duration = Duration::from_secs(1);

/// Refuses to start a program whose address is another's: its calls would go there, and that it answers would say
/// nothing of the program.
pub(super) async fn refuse_taken(plan: &Plan) -> Result<(), Failure> {
    let address = plan.registration.address;
    let connects = timeout(SOMEBODY_ELSE, TcpStream::connect(address)).await;
    if plan.command.is_empty() || !matches!(connects, Ok(Ok(_))) {
        return Ok(());
    }
    Err(Failure::failed_with(
        format!(
            "something listens on {address} already, before the program is started: it would get its calls"
        ),
        "stop it or choose another port; or leave COMMAND out to register what listens there",
    ))
}

/// Says that registering declares the service, where nobody has. Where that cannot be seen, nothing is said: what stands
/// in the way of registering is told soon enough.
pub(super) async fn tell_of_declaration(plan: &Plan) {
    let service = &plan.registration.service;
    if let Ok(Some(false)) = timeout(DECLARATION, is_declared(plan)).await
        && let Some(declaration) = &plan.registration.declaration
    {
        let (kind, protocol) = service_words(declaration);
        say(format_args!("nobody has declared {service}: registering declares it as {kind}, {protocol}"));
    }
}

/// `None` where nobody can be asked.
async fn is_declared(plan: &Plan) -> Option<bool> {
    let key = RecordKey::Service(plan.registration.service.clone());
    for address in &plan.addresses {
        if let Ok(connection) = handshake::connect(address, SOFTWARE).await {
            let found = rib::read(&connection, &[Prefix::from(&key)]).await.ok()?;
            return Some(found.iter().any(|stored| stored.key == key));
        }
    }
    None
}
