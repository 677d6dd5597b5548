use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::{Scenario, SimTime, within_range};

/// An event of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScenarioEvent {
    /// When it begins.
    pub at: SimTime,
    /// Name of the affected group of servers, or of callers for actions on callers; all by default.
    #[serde(default)]
    pub to: Option<String>,
    /// Number of affected members of the group, counted from its first; all by default.
    #[serde(default)]
    pub count: Option<u32>,
    /// The action.
    pub action: Action,
}

/// The action of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// The processes start as new instances.
    Start,
    /// The processes are drained and stopped for good.
    Stop {
        /// Time from the registry change to the end of the process.
        #[serde(default = "default_drain")]
        drain: SimTime,
    },
    /// The processes are replaced by new instances in batches: drained, stopped, started.
    Rollout {
        /// Batch size.
        batch: u32,
        /// Interval between batches.
        every: SimTime,
        /// Time from the registry change to the end of the old process.
        #[serde(default = "default_drain")]
        drain: SimTime,
    },
    /// The processes crash: requests in progress are lost, and the registry detects the crash when the leases expire.
    Crash {
        /// Time after which they start again as the same instances.
        back: Option<SimTime>,
        /// Number of crashes, each following the previous recovery by `lives`.
        #[serde(default = "once")]
        times: u32,
        /// Lifetime between crashes.
        #[serde(default = "default_drain")]
        lives: SimTime,
    },
    /// The servers fail requests without working on them.
    Fail {
        /// Share of failed requests.
        #[serde(default = "all")]
        share: f64,
        /// The failure response.
        #[serde(default)]
        response: FailureResponse,
        /// Time until the failure response.
        takes: SimTime,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The speed of the machines is multiplied by a factor. Below 1, a neighbour takes the rest.
    Speed {
        /// The factor.
        times: f64,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The cores are multiplied by a factor, as when a CPU limit changes; reports include the change.
    Cores {
        /// The factor.
        times: f64,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// Requests take longer without using a core, as with a slow disk or a slow network in front of the servers.
    Delay {
        /// Additional time.
        by: SimTime,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The servers' load reports are faulty.
    Reports {
        /// The fault.
        are: ReportFault,
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The registry lists the servers as lost although they serve.
    Lost {
        /// Duration; by default, to the end.
        #[serde(default, rename = "for")]
        duration: Option<SimTime>,
    },
    /// The callers' clocks jump.
    Clock {
        /// Size of the jump.
        by: SimTime,
        /// Whether the jump is backwards.
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
    /// A status such as 500, which routers treat as the application's response.
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
    /// Whether the action affects callers.
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
