use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::{Scenario, Span, within_range};

/// Something that happens to some servers or callers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Happening {
    /// When.
    pub at: Span,
    /// To which group, by its name: servers, or callers where the action is about those; left out, to all.
    #[serde(default)]
    pub to: Option<String>,
    /// How many of the group, from its first; left out, all.
    #[serde(default)]
    pub count: Option<u32>,
    /// What.
    pub action: Action,
}

/// What happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// The processes start, as new instances.
    Start,
    /// They are drained and stopped for good.
    Stop {
        /// From the registry's word to the end of the process.
        #[serde(default = "drain")]
        drain: Span,
    },
    /// They are replaced by new instances, some at a time: drained, stopped, started.
    Rollout {
        /// How many at a time.
        batch: u32,
        /// From one batch to the next.
        every: Span,
        /// From the registry's word to the end of the old process.
        #[serde(default = "drain")]
        drain: Span,
    },
    /// The processes die: what they were working on is lost, and the registry learns when their leases run out.
    Crash {
        /// When they start again, as the same instances.
        back: Option<Span>,
        /// How often they die; each time this long after they were back.
        #[serde(default = "once")]
        times: u32,
        /// How long they live in between.
        #[serde(default = "drain")]
        lives: Span,
    },
    /// They answer at once and do no work.
    Fail {
        /// The share of requests.
        #[serde(default = "all")]
        share: f64,
        /// What they answer.
        #[serde(default)]
        answer: Answer,
        /// How long an answer takes.
        takes: Span,
        /// How long it goes on; left out, to the end.
        #[serde(default, rename = "for")]
        lasts: Option<Span>,
    },
    /// Their machines become this many times as fast: below 1, a neighbour takes the rest.
    Speed {
        /// The multiple.
        times: f64,
        /// How long it goes on; left out, to the end.
        #[serde(default, rename = "for")]
        lasts: Option<Span>,
    },
    /// Their load reports go wrong.
    Reports {
        /// How.
        are: Reports,
        /// How long it goes on; left out, to the end.
        #[serde(default, rename = "for")]
        lasts: Option<Span>,
    },
    /// The registry takes them for lost although they serve.
    Lost {
        /// How long it goes on; left out, to the end.
        #[serde(default, rename = "for")]
        lasts: Option<Span>,
    },
    /// The callers' clocks jump.
    Clock {
        /// How far.
        by: Span,
        /// Whether backwards.
        #[serde(default)]
        back: bool,
    },
}

/// What a failing server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// 503: it cannot serve now.
    #[default]
    Busy,
    /// Nothing: it breaks the connection off.
    Broken,
    /// A status such as 500, which routers take for the answer that the caller asked for.
    Error,
}

/// How load reports go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reports {
    /// There are none.
    Missing,
    /// They name a billion requests.
    Absurd,
    /// They always say idle.
    Idle,
    /// They repeat the first that was sent since.
    Stuck,
    /// They are as things were some seconds ago.
    Late,
}

fn drain() -> Span {
    Span::seconds(10)
}

fn once() -> u32 {
    1
}

fn all() -> f64 {
    1.0
}

impl Action {
    /// Whether it is about callers.
    pub(crate) fn is_about_callers(&self) -> bool {
        matches!(self, Self::Clock { .. })
    }

    /// How long it goes on, where it ends by itself.
    pub(crate) fn lasts(&self) -> Option<Span> {
        match self {
            Self::Fail { lasts, .. }
            | Self::Speed { lasts, .. }
            | Self::Reports { lasts, .. }
            | Self::Lost { lasts } => *lasts,
            _ => None,
        }
    }
}

impl Happening {
    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        let mut groups: Vec<&str> = Vec::new();
        match self.action.is_about_callers() {
            true => groups.extend(scenario.callers.iter().map(|callers| callers.name.as_str())),
            false => groups.extend(scenario.servers.iter().map(|servers| servers.name.as_str())),
        }
        if let Some(to) = self.to.as_deref().filter(|to| !groups.contains(to)) {
            let hint = format!("write one of {}", groups.join(", "));
            return Err(Invalid::new("to", format!("there is no group '{to}' of that sort"), hint));
        }
        if self.at >= scenario.duration {
            let problem = format!("{} is not before the end, {}", self.at, scenario.duration);
            return Err(Invalid::new("at", problem, "let it happen earlier, or let all last longer"));
        }
        match &self.action {
            Action::Rollout { batch, .. } => {
                within_range("action.rollout.batch", f64::from(*batch), 1.0, 1e6)
            }
            Action::Fail { share, .. } => within_range("action.fail.share", *share, 0.0, 1.0),
            Action::Speed { times, .. } => within_range("action.speed.times", *times, 0.01, 100.0),
            _ => Ok(()),
        }
    }
}
