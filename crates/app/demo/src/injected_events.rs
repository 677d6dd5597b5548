//! The seven events injected while load runs.

use std::time::Duration;

use fairmesh_model::EndpointState;
use fairmesh_wire::v1;
use tokio::time::Instant;

use super::{
    call_stats::{CallStats, Phase},
    error::DemoError,
    fleet::{Fleet, STOP_TIMEOUT},
    identities, print_step,
    process_waits::Wait,
    region_drain,
};

/// Timeout of a shard move. The move waits up to a minute for callers that do not acknowledge the new map.
const MOVE_TIMEOUT: Duration = Duration::from_secs(70);

/// Durations around events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Duration of load before the first event and between events.
    pub calm: Duration,
    /// Duration of the observation after an event.
    pub settle: Duration,
    /// Duration of a control plane outage.
    pub outage: Duration,
}

/// Runs all events in order, and calls `say` as each begins. Returns a description of each.
pub(super) async fn run(
    fleet: &mut Fleet,
    tally: &CallStats,
    pace: Pace,
    say: &dyn Fn(&str),
) -> Result<Vec<(Phase, String)>, DemoError> {
    let mut story = Vec::new();
    for phase in Phase::EVENTS {
        tokio::time::sleep(pace.calm).await;
        say(phase.name());
        tally.enter(phase);
        let what = match phase {
            Phase::Drain => drain(fleet).await?,
            Phase::Kill => kill(fleet, pace).await?,
            Phase::ShardMove => shard_move(fleet).await?,
            Phase::ControlOutage => control_outage(fleet, pace).await?,
            Phase::AgentRestart => agent_restart(fleet, pace).await?,
            Phase::CaRotation => ca_rotation(fleet).await?,
            Phase::RegionDrain => region_drain::run(fleet, tally).await?,
            Phase::Calm => String::new(),
        };
        tokio::time::sleep(pace.settle).await;
        tally.enter(Phase::Calm);
        story.push((phase, what));
    }
    tokio::time::sleep(pace.calm).await;
    Ok(story)
}

/// Stops a server as planned: it drains in the registry, and exits when its callers have left.
async fn drain(fleet: &mut Fleet) -> Result<String, DemoError> {
    let server = fleet.server("checkout-eu-1")?;
    let start = Instant::now();
    let status = server.stop(STOP_TIMEOUT).await?;
    if !status.success() {
        return Err(DemoError::Fleet(format!("checkout-eu-1 stopped with {status}:\n{}", server.log_tail())));
    }
    let took = start.elapsed();
    server.restart()?;
    serving(fleet, "checkout-eu-1").await?;
    Ok(format!("checkout-eu-1 got SIGTERM, left in {:.1} s, came back", took.as_secs_f64()))
}

/// Crashes a server.
async fn kill(fleet: &mut Fleet, pace: Pace) -> Result<String, DemoError> {
    let server = fleet.server("checkout-eu-0")?;
    server.kill().await?;
    tokio::time::sleep(pace.outage).await;
    fleet.server("checkout-eu-0")?.restart()?;
    serving(fleet, "checkout-eu-0").await?;
    Ok(format!("checkout-eu-0 got SIGKILL, came back {:.1} s later", pace.outage.as_secs_f64()))
}

/// Moves the primary of shard 5 from one server to another.
async fn shard_move(fleet: &mut Fleet) -> Result<String, DemoError> {
    let connection = fleet.control_connection().await?;
    let mut registry = v1::registry_client::RegistryClient::new(connection.channel);
    let wanted =
        v1::ShardMove { shard: 5, role: "primary".into(), from: "cart-ap-1".into(), to: "cart-ap-0".into() };
    let request = v1::MoveShardRequest { service: "shop/cart".into(), r#move: Some(wanted) };
    let start = Instant::now();
    registry.move_shard(request).await.map_err(|e| DemoError::Fleet(e.message().to_owned()))?;
    let mut phase = String::new();
    while start.elapsed() < MOVE_TIMEOUT {
        let request = v1::ListMovesRequest { service: "shop/cart".into() };
        let moves =
            registry.list_moves(request).await.map_err(|e| DemoError::Fleet(e.message().to_owned()))?;
        let moves = moves.into_inner().moves;
        if let Some(status) = moves.iter().find(|status| status.phase.starts_with("undone")) {
            return Err(DemoError::Fleet(format!("the shard move was {}; see control.log", status.phase)));
        }
        if let Some(status) = moves.first() {
            phase.clone_from(&status.phase);
        } else {
            let took = start.elapsed().as_secs_f64();
            return Ok(format!("primary of cart shard 5 went from cart-ap-1 to cart-ap-0 in {took:.1} s"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(DemoError::Fleet(format!("the shard move was still {phase} after {MOVE_TIMEOUT:?}; see control.log")))
}

/// Kills the control plane and restarts it later.
async fn control_outage(fleet: &mut Fleet, pace: Pace) -> Result<String, DemoError> {
    fleet.control.kill().await?;
    tokio::time::sleep(pace.outage).await;
    fleet.control.restart()?;
    fleet.control_up().await?;
    fleet.servers_up().await?;
    Ok(format!("control plane got SIGKILL, came back {:.1} s later", pace.outage.as_secs_f64()))
}

/// Kills an agent. The programs of its region continue with the records in their memory.
async fn agent_restart(fleet: &mut Fleet, pace: Pace) -> Result<String, DemoError> {
    let Some(agent) = fleet.agents.get_mut(1) else {
        return Err(DemoError::Fleet("there is no agent in us".into()));
    };
    agent.kill().await?;
    tokio::time::sleep(pace.outage / 2).await;
    agent.restart()?;
    Ok(format!("agent of us got SIGKILL, came back {:.1} s later", pace.outage.as_secs_f64() / 2.0))
}

/// Replaces the key that signs certificates, and restarts a server. The server gets a certificate from the new key,
/// while its callers still have certificates from the old one.
async fn ca_rotation(fleet: &mut Fleet) -> Result<String, DemoError> {
    identities::rotate(fleet).await?;
    let server = fleet.server("catalog-us-0")?;
    let status = server.stop(STOP_TIMEOUT).await?;
    if !status.success() {
        return Err(DemoError::Fleet(format!("catalog-us-0 stopped with {status}:\n{}", server.log_tail())));
    }
    server.restart()?;
    serving(fleet, "catalog-us-0").await?;
    Ok("the authority has a new intermediate, catalog-us-0 came back with a certificate of it".into())
}

/// Waits until an instance serves again.
async fn serving(fleet: &mut Fleet, instance: &str) -> Result<(), DemoError> {
    let mut wait = Wait::new(instance, &print_step);
    loop {
        let endpoints = fleet.endpoints().await?;
        if endpoints.iter().any(|(name, state)| name == instance && *state == EndpointState::Serving) {
            return Ok(());
        }
        wait.pause(&"it is not serving again").await?;
    }
}
