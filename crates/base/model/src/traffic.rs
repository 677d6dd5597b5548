//! Shares of calls by region: as requested in policies, and as tables for routers.

mod attributed_cpu;
mod call_counts;
mod load_rings;
mod region_drain;
mod region_table;
mod report;

use std::collections::BTreeMap;

use crate::{Invalid, Label, Region};

pub use attributed_cpu::{CpuBy, CpuPath, CpuUser};
pub use call_counts::{
    CallCounts, CallFault, CountReport, CountedBy, CountedInterval, CountedPath, DeniedPath, LATENCY_BUCKETS,
    MAX_COUNT_INTERVALS, MAX_COUNT_ROWS, MAX_DENIED_CALLER, ResponseClass, latency_bounds_us, latency_bucket,
};
pub use load_rings::{LoadMetric, LoadRing, MAX_PLANNED_CLASSES};
pub use region_drain::{DrainPhase, RegionDrain};
pub use report::{
    CallNode, CallPath, CallRates, MAX_CALL_PATHS, MAX_CALLING_PROCESSES, MAX_INCOMPLETE_SERVICES,
    MAX_INCOMPLETE_TENANTS, MAX_RATE, MAX_REPORT_AGE, MAX_REPORTED_REGIONS, MAX_SERVED_PATHS,
    MAX_SERVER_GROUPS, MetricSum, ServedPath, ServedRates, ServerRates, SummedAge, TrafficReport,
    UTILISATION_BUCKETS, UTILISATION_LEVELS,
};

pub use region_table::{
    Confirmation, MAX_TABLE_CLASSES, MAX_TABLE_REGIONS, MAX_TABLE_ZONES, RegionShares, RegionTable,
    SMALLEST_SHARE, TableForce, TableOrigin, TrafficShares, ZoneShares, subset_for_share,
};

/// Maximum number of a service's traffic classes that reports distinguish. Calls of further classes are reported
/// without a class.
pub const MAX_TRAFFIC_CLASSES: usize = 16;

/// How the calls to a service are divided among regions: by a planner or by fixed shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The planner that computes tables. Excludes `shares`.
    pub planner: Option<TrafficPlanner>,
    /// Whether tables are published.
    pub mode: TrafficMode,
    /// Fixed shares written by hand, by the caller's region.
    pub shares: BTreeMap<Region, TrafficShares>,
    /// Rings, and for each the load up to which the planner uses the ring; empty means the default rings.
    pub rings: Vec<LoadRing>,
    /// Classes that are less important than all other calls, in falling order of importance. The planner moves and
    /// drops calls of the last class first.
    pub classes: Vec<Label>,
    /// The planner's measure of server load; `None` is CPU.
    pub load: Option<LoadMetric>,
}

/// A planner of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPlanner {
    /// Uses rings with load thresholds (ServiceRouter §3.4.1).
    Rings,
    /// Minimizes latency and egress over the call graphs of all services that use the optimizer (SLATE §4.3).
    Optimizer,
}

impl TrafficPlanner {
    /// The planner's name in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rings => "rings",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Whether tables are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficMode {
    /// Routers follow the tables.
    #[default]
    Active,
    /// Tables are computed and shown, but not sent to routers.
    Shadow,
    /// The planner does not change tables, but keeps confirming the tables in force.
    Hold,
}

impl Traffic {
    /// Whether tables of this service may be sent to routers.
    pub fn publishes(&self) -> bool {
        self.mode != TrafficMode::Shadow
    }

    /// Whether a planner plans the service, and therefore needs reports of calls and servers.
    pub fn is_planned(&self) -> bool {
        self.planner.is_some()
    }

    /// Whether the optimizer plans the service, together with all other services that use the optimizer.
    pub fn is_optimized(&self) -> bool {
        self.planner == Some(TrafficPlanner::Optimizer)
    }

    /// The tables for the fixed shares, by the caller's region.
    pub fn tables(&self) -> impl Iterator<Item = (&Region, RegionTable)> {
        let published = self.shares.iter().filter(|_| self.publishes());
        published.map(|(from, shares)| (from, RegionTable::new(shares.clone(), TableOrigin::ByHand)))
    }

    /// Checks that there is only one source of tables, and that the shares are valid.
    pub fn validate(&self) -> Result<(), Invalid> {
        match (self.planner, self.shares.is_empty()) {
            (Some(_), false) => {
                let hint = "let the planner compute the shares, or write all of them and no planner";
                return Err(Invalid::new("", "has a planner and shares", hint));
            }
            (None, true) => {
                let hint = "write 'planner: rings' or 'planner: optimizer', or shares";
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
