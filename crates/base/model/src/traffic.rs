//! Shares of calls by region: as a policy asks for them, and as tables that routers follow.

mod load_rings;
mod region_drain;
mod region_table;
mod report;

use std::collections::BTreeMap;

use crate::{Invalid, Label, Region};

pub use load_rings::{LoadMetric, LoadRing, MAX_PLANNED_CLASSES};
pub use region_drain::{DrainPhase, RegionDrain};
pub use report::{
    CallPath, CallRates, MAX_CALL_PATHS, MAX_INCOMPLETE_SERVICES, MAX_RATE, MAX_REPORT_AGE,
    MAX_REPORTED_REGIONS, MAX_SERVER_GROUPS, MetricSum, ServerRates, SummedAge, TrafficReport,
};

pub use region_table::{
    Confirmation, MAX_TABLE_CLASSES, MAX_TABLE_REGIONS, MAX_TABLE_ZONES, RegionShares, RegionTable,
    SMALLEST_SHARE, TableForce, TableOrigin, TrafficShares, ZoneShares,
};

/// Who divides the calls to a service among regions: a planner, or shares written by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The planner that computes tables; not together with `shares`.
    pub planner: Option<TrafficPlanner>,
    /// Whether tables are published.
    pub mode: TrafficMode,
    /// Shares written by hand, by the region of the caller.
    pub shares: BTreeMap<Region, TrafficShares>,
    /// Rings with the load up to which the planner uses each; empty means the default rings.
    pub rings: Vec<LoadRing>,
    /// Classes that are less important than all other calls: the planner moves and drops them before these, the last first.
    pub classes: Vec<Label>,
    /// What the planner takes for the load of servers; `None` is CPU.
    pub load: Option<LoadMetric>,
}

/// A planner of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPlanner {
    /// From rings with load thresholds (ServiceRouter §3.4.1).
    Rings,
}

/// Whether tables are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficMode {
    /// Routers follow them.
    #[default]
    Active,
    /// They are computed and shown, and no router gets them.
    Shadow,
    /// The planner changes none of them, and keeps confirming those in force.
    Hold,
}

impl Traffic {
    /// Whether the service may have tables that routers follow.
    pub fn publishes(&self) -> bool {
        self.mode != TrafficMode::Shadow
    }

    /// Whether a planner needs reports of calls and servers.
    pub fn is_planned(&self) -> bool {
        self.planner.is_some()
    }

    /// The tables to publish of shares written by hand, by the region of the caller.
    pub fn tables(&self) -> impl Iterator<Item = (&Region, RegionTable)> {
        let published = self.shares.iter().filter(|_| self.publishes());
        published.map(|(from, shares)| {
            (
                from,
                RegionTable { shares: shares.clone(), zones: BTreeMap::new(), origin: TableOrigin::ByHand },
            )
        })
    }

    /// Checks that there is one source of tables, and the shares.
    pub fn validate(&self) -> Result<(), Invalid> {
        match (self.planner, self.shares.is_empty()) {
            (Some(_), false) => {
                let hint = "let the planner compute the shares, or write all of them and no planner";
                return Err(Invalid::new("", "has a planner and shares", hint));
            }
            (None, true) => {
                let hint = "write 'planner: rings', or shares";
                return Err(Invalid::new("", "has neither a planner nor shares", hint));
            }
            _ => {}
        }
        self.validate_planning()?;
        if self.shares.len() > MAX_TABLE_REGIONS {
            let hint = format!("write at most {MAX_TABLE_REGIONS}");
            return Err(Invalid::new("shares", "have too many regions", hint));
        }
        self.shares
            .iter()
            .try_for_each(|(from, shares)| shares.validate().map_err(|e| e.within(format!("shares.{from}"))))
    }
}
