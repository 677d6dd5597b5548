//! Decides when services that peak together are taken apart (Canal Mesh, section 6.3).
//!
//! One service moves at a time, and open connections stay where they are. Loads of a day are in memory: a control plane that has started
//! moves nothing for this reason before it has seen a whole day.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{Label, ServiceName};
use fairmesh_placement::{Backend, DayLoads, PlacedService, scatter};
use tokio::time::Instant;

use crate::loads::{BackendLevels, GatewayLoads};

/// Pause between two moves, so that the loads of half an hour follow each.
const PAUSE: Duration = Duration::from_mins(30);

/// Remembers when services were taken apart.
#[derive(Clone, Debug)]
pub(super) struct ScatterRounds {
    loads: GatewayLoads,
    /// When a move was looked for.
    last: Option<Instant>,
    /// The loads of a day by service, if a move is to be looked for in this round.
    day: Option<BTreeMap<ServiceName, Vec<f64>>>,
}

impl ScatterRounds {
    pub(super) const fn new(loads: GatewayLoads) -> Self {
        Self { loads, last: None, day: None }
    }

    /// Whether a move is to be looked for: not while a backend has an alert, which is relieved in other ways.
    pub(super) fn look(&mut self, levels: &BackendLevels, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        self.day = if is_due && levels.alerted.is_empty() { self.loads.day() } else { None };
        self.day.is_some()
    }

    /// The service to move, with its backends from now on.
    pub(super) fn round(
        &mut self,
        backends: &[Backend],
        services: &[PlacedService],
        now: Instant,
    ) -> Option<(ServiceName, BTreeSet<Label>)> {
        let day = self.day.take()?;
        self.last = Some(now);
        let moved = scatter(DayLoads { backends, services, loads: &day })?;
        let service = services.iter().find(|service| service.name == moved.service)?;
        let kept = service.present.iter().filter(|name| **name != moved.from).cloned();
        Some((moved.service, kept.chain([moved.to]).collect()))
    }
}
