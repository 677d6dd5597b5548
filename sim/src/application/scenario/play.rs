//! How the requests of an application are simulated.

use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::Scenario;
use crate::scenario::{Action, RegionFault, RegionReportFault, SimTime, within_range};

/// Simulated time, reports and events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Play {
    /// Random seed; the same seed gives the same result.
    pub seed: u64,
    /// Simulated time, including the warm-up.
    pub duration: SimTime,
    /// Initial time excluded from all figures except those over time.
    pub warmup: SimTime,
    /// Length of the windows of figures over time.
    pub window: SimTime,
    /// Length of a report interval, after which planners plan.
    pub every: SimTime,
    /// From the end of an interval to the arrival of its reports at the planner.
    pub report_delay: SimTime,
    /// Range of delays until callers learn of tables and registry changes.
    pub propagation: [SimTime; 2],
    /// Deadline of each call, including nested calls.
    pub timeout: String,
    /// Events of pools.
    pub events: Vec<PoolEvent>,
    /// Faults of the reports of regions.
    pub faults: Vec<RegionFault>,
}

/// An event of a service's servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolEvent {
    /// Start of the event.
    pub at: SimTime,
    /// The affected service; all by default.
    #[serde(default)]
    pub service: Option<String>,
    /// The affected region; all by default.
    #[serde(default)]
    pub region: Option<String>,
    /// The action, as in scenarios of fleets.
    pub action: Action,
}

impl Default for Play {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: SimTime::seconds(60),
            warmup: SimTime::seconds(20),
            window: SimTime::seconds(5),
            every: SimTime::seconds(1),
            report_delay: SimTime::micros(500_000),
            propagation: [SimTime::micros(400_000), SimTime::micros(1_300_000)],
            timeout: "15s".into(),
            events: Vec::new(),
            faults: Vec::new(),
        }
    }
}

impl Play {
    /// Checks what the fleet simulation does not check.
    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        let seconds = |field: &str, time: SimTime| within_range(field, time.as_seconds(), 1.0, 86_400.0);
        seconds("duration", self.duration)?;
        seconds("window", self.window)?;
        within_range("every", self.every.as_seconds(), 1.0, 20.0)?;
        if self.warmup >= self.duration {
            return Err(Invalid::new("warmup", "leaves nothing to measure", "write less than 'duration'"));
        }
        for (i, event) in self.events.iter().enumerate() {
            event.validate(scenario).map_err(|e| e.within(format!("events[{i}]")))?;
        }
        for (i, fault) in self.faults.iter().enumerate() {
            self.check_fault(fault, scenario).map_err(|e| e.within(format!("faults[{i}]")))?;
        }
        Ok(())
    }

    fn check_fault(&self, fault: &RegionFault, scenario: &Scenario) -> Result<(), Invalid> {
        scenario.check_region("region", &fault.region)?;
        match fault.are {
            RegionReportFault::Nan => {
                Err(Invalid::new("are", "needs a metric that is not CPU", "write another fault"))
            }
            are if fault.by.is_some() != (are == RegionReportFault::Late) => {
                let hint = "write by how much reports that are 'late' arrive later, and of no others";
                Err(Invalid::new("by", "does not fit the fault", hint))
            }
            _ => Ok(()),
        }
    }
}

impl PoolEvent {
    /// Whether the event affects the servers of a service in a region.
    pub(crate) fn is_of(&self, service: &str, region: &str) -> bool {
        let matches = |wanted: &Option<String>, name| wanted.as_ref().is_none_or(|wanted| wanted == name);
        matches(&self.service, service) && matches(&self.region, region)
    }

    fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        if let Some(region) = &self.region {
            scenario.check_region("region", region)?;
        }
        if self.action.is_about_callers() {
            return Err(Invalid::new("action", "is about callers", "write an action of servers"));
        }
        let mut pools = scenario.services.iter().flat_map(|service| {
            let placed = service.cores.iter().filter(|(_, cores)| **cores > 0.0);
            placed.map(|(region, _)| (service.name.as_str(), region.as_str()))
        });
        match pools.any(|(service, region)| self.is_of(service, region)) {
            true => Ok(()),
            false => {
                let hint = "name a service and a region where it has cores";
                Err(Invalid::new("service", "there are no such servers", hint))
            }
        }
    }
}
