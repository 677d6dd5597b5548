use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::Scenario;
use crate::{
    replica_tree::Report,
    scenario::{SimTime, within_range},
};

/// An event of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScenarioEvent {
    /// When it begins.
    pub at: SimTime,
    /// The action.
    pub action: Action,
}

/// The action of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// The control plane restarts, without its log. Writes are refused meanwhile.
    RestartRoot {
        /// Downtime.
        #[serde(rename = "for")]
        duration: SimTime,
    },
    /// Replicas of a layer restart, from their disks.
    RestartReplicas {
        /// The layer.
        layer: String,
        /// Only those of this region; all by default.
        #[serde(default)]
        region: Option<String>,
        /// Downtime.
        #[serde(rename = "for")]
        duration: SimTime,
    },
    /// A region is disconnected from the root.
    Cut {
        /// The region.
        region: String,
        /// Duration.
        #[serde(rename = "for")]
        duration: SimTime,
    },
    /// Additional changes of endpoints, in batches of the maximum size.
    Burst {
        /// Number of records.
        records: u32,
        /// Duration.
        over: SimTime,
    },
}

/// Expectations on the result; all are optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Upper bound of the median time from a commit to a program, before the first event.
    pub p50_below: Option<SimTime>,
    /// Upper bound of the 99th percentile of the time from a commit to a program, before the first event.
    pub p99_below: Option<SimTime>,
    /// How soon after each event all processes must be connected and current again.
    pub back_within: Option<SimTime>,
    /// Maximum number of snapshots that replicas may need.
    pub replica_snapshots_at_most: Option<u64>,
}

impl Action {
    /// The duration.
    pub(crate) fn duration(&self) -> SimTime {
        match self {
            Self::RestartRoot { duration }
            | Self::RestartReplicas { duration, .. }
            | Self::Cut { duration, .. } => *duration,
            Self::Burst { over, .. } => *over,
        }
    }

    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        let region = |name: &String| {
            if scenario.regions.iter().any(|region| region.name == *name) {
                return Ok(());
            }
            let names: Vec<&str> = scenario.regions.iter().map(|region| region.name.as_str()).collect();
            let hint = format!("write one of {}", names.join(", "));
            Err(Invalid::new("region", format!("there is no region '{name}'"), hint))
        };
        match self {
            Self::RestartRoot { .. } => Ok(()),
            Self::Cut { region: name, .. } => region(name),
            Self::RestartReplicas { layer, region: name, .. } => {
                if !scenario.replicas.iter().any(|one| one.name == *layer) {
                    let problem = format!("there is no layer '{layer}'");
                    return Err(Invalid::new("layer", problem, "write the name of one under 'replicas'"));
                }
                name.as_ref().map_or(Ok(()), region)
            }
            Self::Burst { records, .. } => within_range("records", f64::from(*records), 1.0, 1e7),
        }
    }
}

impl Expect {
    /// The expectations that were not met, as messages.
    pub(crate) fn missed(&self, report: &Report) -> Vec<String> {
        let mut missed = Vec::new();
        let mut below = |what: &str, found: Option<f64>, bound: Option<SimTime>| {
            let Some(bound) = bound else { return };
            let bound = bound.as_seconds() * 1e3;
            match found {
                Some(found) if found < bound => {}
                Some(found) => missed.push(format!("{what} is {found:.1} ms and should be below {bound} ms")),
                None => missed.push(format!("{what} should be below {bound} ms and nothing was measured")),
            }
        };
        let end = report.layers.last().and_then(|layer| layer.propagation);
        below("the median time to a program", end.map(|p| p.p50_ms), self.p50_below);
        below("the 99th percentile of the time to a program", end.map(|p| p.p99_ms), self.p99_below);
        for recovery in report.recoveries.iter().filter(|recovery| recovery.lost > 0) {
            let took = recovery.seconds.map(|seconds| seconds * 1e3);
            below(&format!("the recovery from '{}'", recovery.event), took, self.back_within);
        }
        if let Some(most) = self.replica_snapshots_at_most {
            let replicas = report.layers.iter().filter(|layer| layer.replica);
            let found: u64 = replicas.map(|layer| layer.snapshots).sum();
            if found > most {
                missed.push(format!("replicas needed {found} snapshots, above the maximum of {most}"));
            }
        }
        if let Some(different) = report.different.filter(|different| *different > 0) {
            missed.push(format!("{different} records differ from the root's at the end"));
        }
        missed
    }
}
