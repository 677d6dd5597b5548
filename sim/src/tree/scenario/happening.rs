use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::Scenario;
use crate::{
    scenario::{Span, within_range},
    tree::Report,
};

/// Something that happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Happening {
    /// When.
    pub at: Span,
    /// What.
    pub action: Action,
}

/// What happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// The control plane is away for so long, and forgets its log. Nothing is written meanwhile.
    RestartRoot {
        /// How long.
        #[serde(rename = "for")]
        lasts: Span,
    },
    /// Replicas of a layer are away for so long; they start from their disks.
    RestartReplicas {
        /// The layer.
        layer: String,
        /// Of which region; of all, where left out.
        #[serde(default)]
        region: Option<String>,
        /// How long.
        #[serde(rename = "for")]
        lasts: Span,
    },
    /// The root cannot be reached from a region for so long.
    Cut {
        /// The region.
        region: String,
        /// How long.
        #[serde(rename = "for")]
        lasts: Span,
    },
    /// Endpoints change beyond what changes anyway, in batches as large as they may be.
    Burst {
        /// How many.
        records: u32,
        /// Within which time.
        over: Span,
    },
}

/// What must hold at the end; what is left out is not checked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// The greatest median of the time from a commit to a program, before the first event.
    pub p50_below: Option<Span>,
    /// The same at the 99th percentile.
    pub p99_below: Option<Span>,
    /// How soon after each event all who lost their connection must be back and current.
    pub back_within: Option<Span>,
    /// The most snapshots that replicas may need.
    pub replica_snapshots_at_most: Option<u64>,
}

impl Action {
    /// How long it lasts.
    pub(crate) fn lasts(&self) -> Span {
        match self {
            Self::RestartRoot { lasts } | Self::RestartReplicas { lasts, .. } | Self::Cut { lasts, .. } => {
                *lasts
            }
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
    /// What does not hold, in words.
    pub(crate) fn missed(&self, report: &Report) -> Vec<String> {
        let mut missed = Vec::new();
        let mut below = |what: &str, found: Option<f64>, bound: Option<Span>| {
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
                missed.push(format!("replicas needed {found} snapshots and should need at most {most}"));
            }
        }
        if let Some(different) = report.different.filter(|different| *different > 0) {
            missed.push(format!("{different} records differ from the root's in the end"));
        }
        missed
    }
}
