use std::time::Duration;

use fairmesh_model::{Balancing, BalancingPolicy, Invalid, Outliers, Score};

use super::micros;
use crate::{
    convert::read_enum,
    v1::{self, balancing::Policy as Number},
};

/// Returns `None` if all fields are default, so that such a policy takes no space.
pub(super) fn write(balancing: &Balancing) -> Option<v1::Balancing> {
    let default = Balancing { subset: balancing.subset, ..Balancing::default() };
    (*balancing != default).then(|| v1::Balancing {
        policy: number(balancing.policy).into(),
        signal: balancing.signal.to_string(),
        score: Some(balancing.score.into()),
        outliers: Some(balancing.outliers.into()),
        load_factor: balancing.load_factor,
    })
}

/// Reads `subset` and the message. Ranges are checked when the policy is validated.
pub(super) fn read(subset: u32, message: Option<v1::Balancing>) -> Result<Balancing, Invalid> {
    let default = Balancing { subset, ..Balancing::default() };
    let Some(message) = message else { return Ok(default) };
    Ok(Balancing {
        policy: policy(read_enum("policy", message.policy)?),
        subset,
        signal: match message.signal.as_str() {
            "" => default.signal,
            text => text.parse().map_err(|e: Invalid| e.within("signal"))?,
        },
        score: message.score.map_or(default.score, Into::into),
        outliers: message.outliers.map_or(default.outliers, Into::into),
        load_factor: message.load_factor,
    })
}

fn number(policy: BalancingPolicy) -> Number {
    match policy {
        BalancingPolicy::Score => Number::Score,
        BalancingPolicy::LeastRequest => Number::LeastRequest,
        BalancingPolicy::PeakEwma => Number::PeakEwma,
        BalancingPolicy::RoundRobin => Number::RoundRobin,
        BalancingPolicy::Random => Number::Random,
        BalancingPolicy::BoundedHash => Number::BoundedHash,
    }
}

fn policy(number: Number) -> BalancingPolicy {
    match number {
        Number::Unspecified | Number::Score => BalancingPolicy::Score,
        Number::LeastRequest => BalancingPolicy::LeastRequest,
        Number::PeakEwma => BalancingPolicy::PeakEwma,
        Number::RoundRobin => BalancingPolicy::RoundRobin,
        Number::Random => BalancingPolicy::Random,
        Number::BoundedHash => BalancingPolicy::BoundedHash,
    }
}

impl From<Score> for v1::Score {
    fn from(score: Score) -> Self {
        Self {
            smoothing: score.smoothing,
            half_life_us: micros(score.half_life),
            warm_up: score.warm_up,
            gain: score.gain,
            correction: score.correction,
            memory_us: micros(score.memory),
            polling_disabled: !score.poll,
            reward: score.reward,
            poll_after_us: score.poll_after.map_or(0, micros),
            poll_ratio: score.poll_ratio,
        }
    }
}

impl From<v1::Score> for Score {
    fn from(message: v1::Score) -> Self {
        Self {
            smoothing: message.smoothing,
            half_life: Duration::from_micros(message.half_life_us),
            warm_up: message.warm_up,
            gain: message.gain,
            correction: message.correction,
            memory: Duration::from_micros(message.memory_us),
            poll: !message.polling_disabled,
            poll_after: Some(message.poll_after_us).filter(|after| *after > 0).map(Duration::from_micros),
            // Absent in records of releases without this field.
            poll_ratio: match message.poll_ratio {
                0 => Self::default().poll_ratio,
                ratio => ratio,
            },
            reward: message.reward,
        }
    }
}

impl From<Outliers> for v1::Outliers {
    fn from(outliers: Outliers) -> Self {
        Self {
            consecutive: outliers.consecutive,
            failure_percent: outliers.failure_percent,
            min_samples: outliers.min_samples,
            first_us: micros(outliers.first),
            longest_us: micros(outliers.longest),
            most_percent: outliers.most_percent,
        }
    }
}

impl From<v1::Outliers> for Outliers {
    fn from(message: v1::Outliers) -> Self {
        Self {
            consecutive: message.consecutive,
            failure_percent: message.failure_percent,
            min_samples: message.min_samples,
            first: Duration::from_micros(message.first_us),
            longest: Duration::from_micros(message.longest_us),
            most_percent: message.most_percent,
        }
    }
}
