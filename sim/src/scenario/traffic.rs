use fairmesh_model::{
    Invalid, Region, Ring,
    spec::{LocalitySpec, PolicySpec},
};
use fairmesh_te::{LoadRing, RingsPolicy};
use serde::{Deserialize, Serialize};

use super::{Scenario, SimTime, within_range};

/// How calls are divided among regions, and what is reported to the planner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Traffic {
    /// The planner.
    pub planner: PlannerKind,
    /// Rings with thresholds; the first ring is `region`. With `planner: none`, the first threshold is only used for
    /// measurements.
    pub rings: Vec<ThresholdRing>,
    /// Traffic classes, the most important first.
    #[serde(default = "one_class")]
    pub classes: Vec<TrafficClass>,
    /// Length of the report interval of regions: one planning round.
    #[serde(default = "interval")]
    pub every: SimTime,
    /// Time from the end of an interval to the arrival of its reports at the planner; may exceed the length of an
    /// interval.
    #[serde(default = "report_delay")]
    pub report_delay: SimTime,
    /// Faults in the reports of regions.
    #[serde(default)]
    pub faults: Vec<RegionFault>,
    /// A region to drain.
    #[serde(default)]
    pub drain: Option<RegionDrain>,
}

/// The planner of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlannerKind {
    /// No planner: only the rings of the router.
    None,
    /// The rings planner.
    Rings,
    /// The zone planner: the regions of the scenario stand for the zones of one region.
    Zones,
}

/// A ring with its threshold.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ThresholdRing {
    /// Reach of the ring as in a policy: `region`, a round trip, or `any`.
    pub within: String,
    /// Utilisation from 0 to 1.
    pub load: f64,
}

/// A traffic class.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficClass {
    /// Its name.
    pub name: String,
    /// Its share of all calls, relative to the other classes.
    pub share: f64,
}

/// A fault in all reports of one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionFault {
    /// When it begins.
    pub at: SimTime,
    /// The region.
    pub region: String,
    /// The fault.
    pub are: RegionReportFault,
    /// Additional delay of the reports, if they are `late`.
    #[serde(default)]
    pub by: Option<SimTime>,
    /// Duration of the fault.
    #[serde(rename = "for")]
    pub duration: SimTime,
}

impl RegionFault {
    /// Whether the fault currently affects this region's reports.
    pub(crate) fn is_of(&self, region: &str, now: u64) -> bool {
        let from = self.at.nanos();
        self.region == region && (from..from + self.duration.nanos()).contains(&now)
    }
}

/// Kind of a fault in a region's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RegionReportFault {
    /// Reports do not arrive.
    Missing,
    /// Reports arrive late.
    Late,
    /// The reported load is ten times the true one.
    Tenfold,
    /// The reported load is a tenth of the true one.
    Tenth,
    /// The reported load is half of the true one.
    Half,
    /// The reported load is 0.
    Zero,
    /// The reported load is not a number.
    Nan,
    /// Servers report ten times the calls that callers sent.
    Disagreeing,
}

/// A gradual drain of a region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionDrain {
    /// When it begins.
    pub at: SimTime,
    /// The region.
    pub region: String,
    /// Intended duration.
    pub over: SimTime,
}

fn one_class() -> Vec<TrafficClass> {
    vec![TrafficClass { name: "default".into(), share: 1.0 }]
}

fn interval() -> SimTime {
    SimTime::seconds(5)
}

fn report_delay() -> SimTime {
    SimTime::seconds(1)
}

impl Traffic {
    /// The rings and thresholds in the planner's form.
    pub fn policy(&self) -> Result<RingsPolicy, Invalid> {
        rings_policy(&self.rings, self.classes.len())
    }

    /// The rings, validated as in production.
    pub(crate) fn router_rings(&self) -> Result<Vec<Ring>, Invalid> {
        router_rings(&self.rings)
    }

    /// Whether the load in reports is a metric that servers declare: reports of CPU are always numbers.
    pub(crate) fn has_load_metric(&self) -> bool {
        self.faults.iter().any(|fault| fault.are == RegionReportFault::Nan)
    }

    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        let policy = self.policy()?;
        if policy.rings[0].ring != Ring::Region {
            let hint = "write 'region' first: a table gives each region its own share";
            return Err(Invalid::new("rings[0]", "includes several regions", hint));
        }
        for (i, class) in self.classes.iter().enumerate() {
            within_range(&format!("classes[{i}].share"), class.share, 1e-6, 1e6)?;
        }
        if self.every < SimTime::seconds(1) {
            return Err(Invalid::new("every", "is too short", "write 1s or more"));
        }
        for (i, fault) in self.faults.iter().enumerate() {
            if fault.by.is_some() != (fault.are == RegionReportFault::Late) {
                let hint = "write by how much reports that are 'late' arrive later, and of no others";
                return Err(Invalid::new(format!("faults[{i}].by"), "does not fit the fault", hint));
            }
        }
        let regions = || scenario.servers.iter().map(|servers| &servers.region);
        let named = self.faults.iter().map(|fault| &fault.region).chain(self.drain.iter().map(|d| &d.region));
        for name in named {
            name.parse::<Region>().map_err(|e| e.within("region"))?;
            if !regions().any(|region| region == name) {
                let hint = "name a region that has servers";
                return Err(Invalid::new("region", format!("there are no servers in '{name}'"), hint));
            }
        }
        Ok(())
    }
}

/// Converts rings and thresholds to the planner's form.
pub(crate) fn rings_policy(rings: &[ThresholdRing], classes: usize) -> Result<RingsPolicy, Invalid> {
    let loads = rings.iter().map(|ring| ring.load);
    let rings = router_rings(rings)?.into_iter().zip(loads).map(|(ring, load)| LoadRing { ring, load });
    let policy = RingsPolicy::new(rings.collect(), classes);
    policy.validate()?;
    Ok(policy)
}

/// Validates rings as in production.
pub(crate) fn router_rings(rings: &[ThresholdRing]) -> Result<Vec<Ring>, Invalid> {
    let spec = PolicySpec {
        service: crate::SERVICE.into(),
        locality: LocalitySpec {
            rings: rings.iter().map(|ring| ring.within.clone()).collect(),
            ..LocalitySpec::default()
        },
        ..PolicySpec::default()
    };
    Ok(spec.validate()?.1.locality.rings)
}
