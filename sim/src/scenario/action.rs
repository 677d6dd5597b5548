use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::{Scenario, SimTime, within_range};

/// An event of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScenarioEvent {
    /// When it begins.
    pub at: SimTime,
    /// The group, by name: servers, or callers for actions on callers; by default, all.
    #[serde(default)]
    pub to: Option<String>,
    /// How many of the group, from its first; by default, all.
    #[serde(default)]
    pub count: Option<u32>,
    /// The action.
    pub action: Action,
}

/// The action of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// The processes start, as new instances.
    Start,
    /// They are drained and stopped for good.
    Stop {
        /// From the registry change to the end of the process.
        #[serde(default = "default_drain")]
        drain: SimTime,
    },
    /// They are replaced by new instances in batches: drained, stopped, started.
    Rollout {
        /// Batch size.
        batch: u32,
        /// Interval between batches.
        every: SimTime,
        /// From the registry change to the end of the old process.
        #[serde(default = "default_drain")]
        drain: SimTime,
    },
    /// The processes crash: requests in progress are lost, and the registry detects it when the leases expire.
    Crash {
        /// When they start again, as the same instances.
        back: Option<SimTime>,
        /// Number of crashes; each one this long after the previous recovery.
        #[serde(default = "once")]
        times: u32,
        /// Lifetime between crashes.
        #[serde(default = "default_drain")]
        lives: SimTime,
    },
    /// They fail requests without working on them.
    Fail {
        /// The share of requests.
        #[serde(default = "all")]
        share: f64,
        /// The failure response.
        #[serde(default)]
        response: FailureResponse,
        /// How long a response takes.
        takes: SimTime,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The speed of their machines is multiplied: below 1, a neighbour takes the rest.
    Speed {
        /// The factor.
        times: f64,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// Their cores are multiplied, as when the limit of their CPU changes; their reports say so.
    Cores {
        /// The factor.
        times: f64,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// Requests take longer, without using a core: a slow disk, or a slow network in front of the servers.
    Delay {
        /// By how much.
        by: SimTime,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// Their load reports are faulty.
    Reports {
        /// The fault.
        are: ReportFault,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The registry lists them as lost although they serve.
    Lost {
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The callers' clocks jump.
    Clock {
        /// By how much.
        by: SimTime,
        /// Whether backwards.
        #[serde(default)]
        back: bool,
    },
}

/// The response of a failing server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureResponse {
    /// 503: unavailable.
    #[default]
    Busy,
    /// No response: the connection breaks.
    Broken,
    /// A status such as 500, which routers take for the response of the application.
    Error,
}

/// A fault of load reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReportFault {
    /// No reports.
    Missing,
    /// Reports of a billion requests.
    Absurd,
    /// Reports of an idle server.
    Idle,
    /// The first report since the fault began, repeated.
    Stuck,
    /// Reports that are some seconds old.
    Late,
}

fn default_drain() -> SimTime {
    SimTime::seconds(10)
}

fn once() -> u32 {
    1
}

fn all() -> f64 {
    1.0
}

impl Action {
    /// Whether it acts on callers.
    pub(crate) fn is_about_callers(&self) -> bool {
        matches!(self, Self::Clock { .. })
    }

    /// The duration of an action that ends by itself.
    pub(crate) fn duration(&self) -> Option<SimTime> {
        match self {
            Self::Fail { duration, .. }
            | Self::Speed { duration, .. }
            | Self::Cores { duration, .. }
            | Self::Delay { duration, .. }
            | Self::Reports { duration, .. }
            | Self::Lost { duration } => *duration,
            _ => None,
        }
    }
}

impl ScenarioEvent {
    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        let mut groups: Vec<&str> = Vec::new();
        match self.action.is_about_callers() {
            true => groups.extend(scenario.callers.iter().map(|callers| callers.name.as_str())),
            false => groups.extend(scenario.servers.iter().map(|servers| servers.name.as_str())),
        }
        if let Some(to) = self.to.as_deref().filter(|to| !groups.contains(to)) {
            let hint = format!("write one of {}", groups.join(", "));
            return Err(Invalid::new("to", format!("there is no such group '{to}'"), hint));
        }
        if self.at >= scenario.duration {
            let problem = format!("{} is not before the end, {}", self.at, scenario.duration);
            return Err(Invalid::new(
                "at",
                problem,
                "move the event to an earlier time, or extend 'duration'",
            ));
        }
        match &self.action {
            Action::Rollout { batch, .. } => {
                within_range("action.rollout.batch", f64::from(*batch), 1.0, 1e6)
            }
            Action::Fail { share, .. } => within_range("action.fail.share", *share, 0.0, 1.0),
            Action::Speed { times, .. } => within_range("action.speed.times", *times, 0.01, 100.0),
            Action::Cores { times, .. } => within_range("action.cores.times", *times, 0.01, 100.0),
            _ => Ok(()),
        }
    }
}
