//! The region of a caller that a command imagines.

use fairmesh_model::{Invalid, Region};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
};

use crate::{
    cli::Agent,
    connect::SOFTWARE,
    failure::Failure,
    view::{Scope, View},
};

/// What an agent is in unless it is told.
const ASSUMED: &str = "local";

/// The region that was named, else that of this machine's agent, else the one that agents assume; said on standard error
/// where it was not named.
///
/// # Errors
/// When a region was named that nobody declared and nothing runs in: most likely it is misspelt.
pub(crate) async fn of_caller(
    connection: &Connection,
    named: Option<&Region>,
    agent: &Agent,
) -> Result<Region, Failure> {
    let Some(named) = named else { return Ok(assumed(agent).await?) };
    let declared = View::topology(connection).await?.region_names();
    if declared.contains(named) {
        return Ok(named.clone());
    }
    let known = View::read(connection, &Scope::All, &[]).await?.region_names();
    if known.contains(named) || here(&agent.address()).await.as_ref() == Some(named) {
        return Ok(named.clone());
    }
    Err(unknown(named, &known))
}

async fn assumed(agent: &Agent) -> Result<Region, Invalid> {
    let address = agent.address();
    if let Some(region) = here(&address).await {
        eprintln!("as a caller in region {region}, where the agent at {address} is");
        return Ok(region);
    }
    eprintln!("as a caller in region {ASSUMED}: no agent answers at {address}; name another with --region");
    Region::new(ASSUMED)
}

/// Where the agent at `address` is; `None` where none answers.
async fn here(address: &Address) -> Option<Region> {
    let connection = handshake::connect(address, SOFTWARE).await.ok()?;
    connection.hello.location.map(|location| location.region)
}

fn unknown(named: &Region, known: &[Region]) -> Failure {
    let list = known.iter().map(Region::as_str).collect::<Vec<_>>().join(", ");
    let hint = match known {
        [] => "no region is declared and no endpoint is registered; leave --region out".to_owned(),
        _ => format!("write one of {list}, or declare it as 'kind: Topology'"),
    };
    Failure::refused(format!("there is no region {named}"), hint)
}
