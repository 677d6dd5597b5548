use serde::{Deserialize, Serialize};

use super::{
    policy::{is_default, non_default},
    value_text::{read_duration_option, read_option, write_duration},
};
use crate::{Balancing, BalancingPolicy, Invalid, LoadSignal, Outliers, Score};

/// How an endpoint is picked among the candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BalancingSpec {
    /// The balancing policy: `score`, `leastRequest`, `peakEwma`, `roundRobin`, `random` or `boundedHash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Number of endpoints of a ring to which a client keeps connections; 0 means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subset: Option<u32>,
    /// The reported load on which scores are based: `auto`, `requests`, `cpu` or `metric:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Constants of the score.
    #[serde(default, skip_serializing_if = "is_default")]
    pub score: ScoreSpec,
    /// Ejection of failing endpoints.
    #[serde(default, skip_serializing_if = "is_default")]
    pub outliers: OutliersSpec,
    /// For `boundedHash`: the maximum load of one endpoint as a percentage of the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_factor: Option<u32>,
}

/// Constants of the score.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreSpec {
    /// Number of reports over which the load from other callers is averaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<u32>,
    /// Age at which a report has half its weight, such as `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_life: Option<String>,
    /// Assumed load of a new endpoint, as a percentage of the mean load of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<u32>,
    /// How fast shares follow reported utilisation, in percent per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<u32>,
    /// The largest factor by which reported utilisation may change an endpoint's capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<u32>,
    /// Time for which a correction lasts without new reports, such as `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Whether servers are polled for their load when no recent report exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<bool>,
    /// Age of a report after which its server is polled, such as `10ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_after: Option<String>,
    /// The maximum round trip to a polled server, as a percentage of its mean service time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_ratio: Option<u32>,
    /// The estimated load that each response subtracts from its endpoint, as a percentage of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<u32>,
}

/// When a failing endpoint is ejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutliersSpec {
    /// Number of consecutive failures that eject an endpoint; 0 disables this check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive: Option<u32>,
    /// Percentage points by which an endpoint's failure rate must exceed that of the others; 0 disables this check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_percent: Option<u32>,
    /// Minimum number of responses before an endpoint's failure rate is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_samples: Option<u32>,
    /// Duration of the first ejection, such as `100ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Maximum duration of an ejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<String>,
    /// Maximum percentage of candidates that are ejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_percent: Option<u32>,
}

impl BalancingSpec {
    pub(super) fn validate(&self) -> Result<Balancing, Invalid> {
        let default = Balancing::default();
        Ok(Balancing {
            policy: read_option("policy", self.policy.as_ref())?.unwrap_or(default.policy),
            subset: self.subset.unwrap_or(default.subset),
            signal: read_option("signal", self.signal.as_ref())?.unwrap_or(default.signal),
            score: self.score.validate().map_err(|e| e.within("score"))?,
            outliers: self.outliers.validate().map_err(|e| e.within("outliers"))?,
            load_factor: self.load_factor.unwrap_or(default.load_factor),
        })
    }

    pub(super) fn of(balancing: &Balancing) -> Self {
        let default = Balancing::default();
        let Balancing { policy, subset, signal, score, outliers, load_factor } = balancing;
        Self {
            policy: non_default(*policy, default.policy)
                .map(|policy: BalancingPolicy| policy.as_str().to_owned()),
            subset: non_default(*subset, default.subset),
            signal: (*signal != LoadSignal::default()).then(|| signal.to_string()),
            score: ScoreSpec::of(score),
            outliers: OutliersSpec::of(outliers),
            load_factor: non_default(*load_factor, default.load_factor),
        }
    }
}

impl ScoreSpec {
    fn validate(&self) -> Result<Score, Invalid> {
        let default = Score::default();
        Ok(Score {
            smoothing: self.smoothing.unwrap_or(default.smoothing),
            half_life: read_duration_option("halfLife", self.half_life.as_ref())?
                .unwrap_or(default.half_life),
            warm_up: self.warm_up.unwrap_or(default.warm_up),
            gain: self.gain.unwrap_or(default.gain),
            correction: self.correction.unwrap_or(default.correction),
            memory: read_duration_option("memory", self.memory.as_ref())?.unwrap_or(default.memory),
            poll: self.poll.unwrap_or(default.poll),
            poll_after: read_duration_option("pollAfter", self.poll_after.as_ref())?.or(default.poll_after),
            poll_ratio: self.poll_ratio.unwrap_or(default.poll_ratio),
            reward: self.reward.unwrap_or(default.reward),
        })
    }

    fn of(score: &Score) -> Self {
        let default = Score::default();
        Self {
            smoothing: non_default(score.smoothing, default.smoothing),
            half_life: non_default(score.half_life, default.half_life).map(write_duration),
            warm_up: non_default(score.warm_up, default.warm_up),
            gain: non_default(score.gain, default.gain),
            correction: non_default(score.correction, default.correction),
            memory: non_default(score.memory, default.memory).map(write_duration),
            poll: non_default(score.poll, default.poll),
            poll_after: score.poll_after.map(write_duration),
            poll_ratio: non_default(score.poll_ratio, default.poll_ratio),
            reward: non_default(score.reward, default.reward),
        }
    }
}

impl OutliersSpec {
    fn validate(&self) -> Result<Outliers, Invalid> {
        let default = Outliers::default();
        Ok(Outliers {
            consecutive: self.consecutive.unwrap_or(default.consecutive),
            failure_percent: self.failure_percent.unwrap_or(default.failure_percent),
            min_samples: self.min_samples.unwrap_or(default.min_samples),
            first: read_duration_option("first", self.first.as_ref())?.unwrap_or(default.first),
            longest: read_duration_option("longest", self.longest.as_ref())?.unwrap_or(default.longest),
            most_percent: self.most_percent.unwrap_or(default.most_percent),
        })
    }

    fn of(outliers: &Outliers) -> Self {
        let default = Outliers::default();
        Self {
            consecutive: non_default(outliers.consecutive, default.consecutive),
            failure_percent: non_default(outliers.failure_percent, default.failure_percent),
            min_samples: non_default(outliers.min_samples, default.min_samples),
            first: non_default(outliers.first, default.first).map(write_duration),
            longest: non_default(outliers.longest, default.longest).map(write_duration),
            most_percent: non_default(outliers.most_percent, default.most_percent),
        }
    }
}
