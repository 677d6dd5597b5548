//! Drains as operators begin and see them.

use std::time::Duration;

use fairmesh_model::{Invalid, Record, RecordKey, Region, RegionDrain};
use fairmesh_planner::{DrainWait, StoredDrain};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_store::{Store, WriteError};
use fairmesh_wire::{record_encoding, v1};
use tokio::time::{sleep, timeout};

use super::{TrafficPlanning, drain_states::DrainState};
use crate::wall_clock::now_ms;

/// How long the write of a drain may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most attempts to write a drain whose steps a controller writes at the same time, and the pause between two: the facts follow a
/// commit within milliseconds.
const MAX_ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// The most regions that an error names.
const MAX_NAMED: usize = 100;

/// A request to drain a region, or to give its calls back.
#[derive(Clone, Debug)]
pub(super) struct DrainRequest {
    pub(super) region: Region,
    pub(super) returns: bool,
    pub(super) over: Duration,
}

impl TrafficPlanning {
    /// Begins a drain or its way back.
    ///
    /// # Errors
    /// If it would take too long, or another writer was faster.
    pub(super) async fn begin_drain(&self, store: &dyn Store, request: &DrainRequest) -> Result<(), Invalid> {
        for _ in 0..MAX_ATTEMPTS {
            if self.try_begin_drain(store, request).await? {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
        Err(Invalid::new("region", "was changed by another writer meanwhile", "try again"))
    }

    /// Begins a drain as it is known to be recorded; whether no other writer was faster.
    async fn try_begin_drain(
        &self,
        store: &dyn Store,
        DrainRequest { region, returns, over }: &DrainRequest,
    ) -> Result<bool, Invalid> {
        let topology = self.facts.topology();
        let before = topology.drains.get(region);
        if !*returns {
            self.check_region(region)?;
        }
        if *returns && before.is_none() {
            self.check_region(region)?;
            let hint = "see 'fairmesh traffic status' for drains in progress";
            return Err(Invalid::new("region", format!("'{region}' is not drained"), hint));
        }
        let drain = RegionDrain::begin(before.map(|stored| stored.drain), *returns, *over, now_ms());
        drain.validate()?;
        write(store, region, drain, before.map(|stored| stored.revision)).await
    }

    /// Checks that a topology, an endpoint or a caller names a region: of a misspelt one there is nothing to drain.
    pub(super) fn check_region(&self, region: &Region) -> Result<(), Invalid> {
        let mut known = self.facts.lock().regions();
        let plans = self.plans.read();
        known.extend(plans.by_service.values().flat_map(|planner| planner.regions.iter().cloned()));
        if known.contains(region) {
            return Ok(());
        }
        let names: Vec<String> = known.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let hint = match names.is_empty() {
            true => "declare regions with a document of kind Topology".to_owned(),
            false => format!("name one of {}", names.join(", ")),
        };
        Err(Invalid::new("region", format!("'{region}' is not known"), hint))
    }

    /// The drains in progress.
    pub(super) fn drains(&self) -> Vec<v1::RegionDrainStatus> {
        let (topology, states) = (self.facts.topology(), self.drain_states.read());
        let status = |(region, stored): (&Region, &StoredDrain)| {
            let wait = |text: String| DrainState::of(&stored.drain, DrainWait::new(text));
            let known = || states.get(region).filter(|state| state.is_of(&stored.drain)).cloned();
            let state = match self.shadow {
                Some(name) => wait(format!("stands still, since the controller '{name}' is in shadow mode")),
                None => known().unwrap_or_else(|| wait("waits for the next round of the planner".to_owned())),
            };
            v1::RegionDrainStatus {
                region: region.to_string(),
                drain: Some(stored.drain.into()),
                state: state.text,
                is_held: state.is_held,
                staying: state.staying,
                services: state.services,
            }
        };
        topology.drains.iter().map(status).collect()
    }
}

/// Writes a drain, unless another writer was faster; whether it is written.
async fn write(
    store: &dyn Store,
    region: &Region,
    drain: RegionDrain,
    replaces: Option<u64>,
) -> Result<bool, Invalid> {
    let key = RecordKey::RegionDrain(region.clone()).to_string();
    let op = Op::put(key, record_encoding::encode(&Record::RegionDrain(drain)));
    let op = op.expecting(replaces.map_or(Expect::Absent, Expect::Revision));
    let problem = match timeout(WRITE_TIMEOUT, store.write(Batch { ops: vec![op] })).await {
        Ok(Ok(_)) => return Ok(true),
        Ok(Err(WriteError::Conflict(_))) => return Ok(false),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the store took more than {WRITE_TIMEOUT:?}"),
    };
    tracing::warn!(%region, problem, "the drain is not written");
    Err(Invalid::new("region", format!("the drain is not written: {problem}"), "see 'fairmesh check'"))
}
