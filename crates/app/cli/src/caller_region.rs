//! The region of a simulated caller.

use std::collections::BTreeSet;

use fairmesh_console::{
    arguments::AgentTarget,
    connect::{SOFTWARE, transport_to},
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{Invalid, Location, RecordKind, Region, ServiceName, Zone};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
};

/// Default region of an agent.
const DEFAULT_REGION: &str = "local";

/// The given region, else that of this machine's agent, else the default of agents; a default is printed to standard
/// error.
///
/// # Errors
/// When the given region is not declared and has no endpoints: most likely it is misspelt.
pub(crate) async fn resolve(
    connection: &Connection,
    named: Option<&Region>,
    agent: &AgentTarget,
) -> Result<Region, Failure> {
    let Some(named) = named else { return Ok(assumed(agent).await?) };
    let declared = View::topology(connection).await?.region_names();
    if declared.contains(named) {
        return Ok(named.clone());
    }
    if agent_region(&agent.address()).await.as_ref() == Some(named) {
        return Ok(named.clone());
    }
    let Some(all) = readable(connection).await? else {
        output::note(format!(
            "the topology does not declare region {named}, and your roles do not show whether it has endpoints of other tenants"
        ));
        return Ok(named.clone());
    };
    let known = all.region_names();
    match known.contains(named) {
        true => Ok(named.clone()),
        false => Err(unknown_region(named, &known)),
    }
}

/// The records of all tenants; `None` if the caller may not read them.
async fn readable(connection: &Connection) -> Result<Option<View>, Failure> {
    match View::read(connection, &Scope::All, &[]).await {
        Ok(view) => Ok(Some(view)),
        Err(failure) if failure.is_refusal() => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn assumed(agent: &AgentTarget) -> Result<Region, Invalid> {
    let address = agent.address();
    if let Some(region) = agent_region(&address).await {
        output::note(format!("as a caller in region {region}, where the agent at {address} is"));
        return Ok(region);
    }
    output::note(format!(
        "as a caller in region {DEFAULT_REGION}: no agent responds at {address}; give another with --region"
    ));
    Region::new(DEFAULT_REGION)
}

/// The zone of this machine's agent, if the agent is in this region.
pub(crate) async fn zone_of_agent(agent: &AgentTarget, region: &Region) -> Option<Zone> {
    let location = agent_location(&agent.address()).await?;
    location.zone.filter(|_| location.region == *region)
}

/// Prints a note with the known zones if the given zone is unknown: no endpoint of the region has it, no table, and
/// not this machine's agent. It is then most likely misspelt. This is not an error, since callers may be in zones
/// without endpoints.
pub(crate) async fn note_unknown_zone(
    connection: &Connection,
    service: &ServiceName,
    (region, zone): (&Region, &Zone),
    agent: &AgentTarget,
) -> Result<(), Failure> {
    let of_service = View::read(
        connection,
        &Scope::Service(service.clone()),
        &[RecordKind::Endpoint, RecordKind::RegionTable],
    )
    .await?;
    if of_service.zones_in(region).contains(zone) || zone_of_agent(agent, region).await.as_ref() == Some(zone)
    {
        return Ok(());
    }
    let known = readable(connection).await?.map(|all| all.zones_in(region));
    if let Some(known) = known.filter(|known| !known.contains(zone)) {
        output::note(unknown_zone(region, zone, &known));
    }
    Ok(())
}

fn unknown_zone(region: &Region, zone: &Zone, known: &BTreeSet<Zone>) -> String {
    let list = known.iter().map(Zone::as_str).collect::<Vec<_>>().join(", ");
    match known.is_empty() {
        true => format!("no endpoint in region {region} has a zone, so that {zone} makes no difference"),
        false => format!(
            "no endpoint in region {region} has the zone {zone}: if it is misspelt, write one of {list}"
        ),
    }
}

/// Region of the agent at `address`; `None` if it does not respond.
async fn agent_region(address: &Address) -> Option<Region> {
    agent_location(address).await.map(|location| location.region)
}

async fn agent_location(address: &Address) -> Option<Location> {
    let connection = handshake::connect(&transport_to(address).await, address, SOFTWARE).await.ok()?;
    connection.hello.location
}

fn unknown_region(named: &Region, known: &[Region]) -> Failure {
    let list = known.iter().map(Region::as_str).collect::<Vec<_>>().join(", ");
    let hint = match known {
        [] => "no region is declared and no endpoint is registered; leave --region out".to_owned(),
        _ => format!("write one of {list}, or declare it as 'kind: Topology'"),
    };
    Failure::refused(format!("there is no region {named}"), hint)
}
