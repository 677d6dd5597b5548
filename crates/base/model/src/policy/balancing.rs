use std::{fmt, str::FromStr, time::Duration};

use crate::{Invalid, suggestion};

/// How an endpoint is picked among the candidates. The default suits a service without tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// The balancing policy.
    pub policy: BalancingPolicy,
    /// Number of endpoints of a ring to which a client keeps connections; 0 means all (ServiceRouter §3.4.2).
    pub subset: u32,
    /// The reported load on which scores are based.
    pub signal: LoadSignal,
    /// Constants of the score.
    pub score: Score,
    /// Ejection of failing endpoints.
    pub outliers: Outliers,
    /// With [`BalancingPolicy::BoundedHash`], the maximum load of one endpoint as a percentage of the mean; 101 to
    /// 1000.
    pub load_factor: u32,
}

impl Default for Balancing {
    fn default() -> Self {
        Self {
            policy: BalancingPolicy::default(),
            subset: 20,
            signal: LoadSignal::default(),
            score: Score::default(),
            outliers: Outliers::default(),
            load_factor: 125,
        }
    }
}

/// How an endpoint is picked among the candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BalancingPolicy {
    /// Draws two endpoints by weight and picks the one with the lower score, which combines own calls in flight and
    /// smoothed server reports (ServiceRouter §3.4; Uber, assisted balancing).
    #[default]
    Score,
    /// Draws two endpoints by weight and picks the one with fewer own calls in flight per weight. Reports are not
    /// used.
    LeastRequest,
    /// Draws two endpoints by weight and picks the one with the lower expected latency: peak-sensitive latency (rises
    /// at once, decays slowly) times calls in flight.
    PeakEwma,
    /// Weighted round robin.
    RoundRobin,
    /// Weighted random.
    Random,
    /// Consistent hashing by key with bounded loads: picks the first endpoint in the key's order whose calls in
    /// flight are within the bound.
    BoundedHash,
}

impl BalancingPolicy {
    /// All policies.
    pub const ALL: [Self; 6] =
        [Self::Score, Self::LeastRequest, Self::PeakEwma, Self::RoundRobin, Self::Random, Self::BoundedHash];

    /// The policy as written in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::LeastRequest => "leastRequest",
            Self::PeakEwma => "peakEwma",
            Self::RoundRobin => "roundRobin",
            Self::Random => "random",
            Self::BoundedHash => "boundedHash",
        }
    }
}

impl FromStr for BalancingPolicy {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == text).ok_or_else(|| {
            let hint = suggestion::hint(text, &Self::ALL.map(Self::as_str));
            Invalid::new("", format!("'{text}' is not a policy"), hint)
        })
    }
}

/// The reported load on which scores are based (ServiceRouter §3.4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LoadSignal {
    /// Requests in flight, and CPU if it is reported.
    #[default]
    Auto,
    /// Only requests in flight.
    Requests,
    /// Only the used share of the CPU limit.
    Cpu,
    /// A custom metric that the server reports under this name, besides requests in flight. The balancer equalizes
    /// the metric over endpoints.
    Metric(String),
}

impl LoadSignal {
    const METRIC: &str = "metric:";
    const MAX_METRIC_NAME: usize = 63;

    /// Checks that a metric's name is one that servers can report.
    ///
    /// # Errors
    /// If the name is empty, too long, or contains anything but letters, digits and `_`, `-`, `.`.
    pub fn validate(&self) -> Result<(), Invalid> {
        let Self::Metric(name) = self else { return Ok(()) };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if (1..=Self::MAX_METRIC_NAME).contains(&name.len()) && name.chars().all(fits) {
            return Ok(());
        }
        Err(Invalid::new(
            "",
            format!("'{name}' is not a metric name"),
            format!(
                "write 1 to {} letters, digits, '_', '-', '.', as the server does",
                Self::MAX_METRIC_NAME
            ),
        ))
    }
}

impl fmt::Display for LoadSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Requests => f.write_str("requests"),
            Self::Cpu => f.write_str("cpu"),
            Self::Metric(name) => write!(f, "{}{name}", Self::METRIC),
        }
    }
}

impl FromStr for LoadSignal {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match (text, text.strip_prefix(Self::METRIC)) {
            ("auto", _) => Ok(Self::Auto),
            ("requests", _) => Ok(Self::Requests),
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(name)) => Ok(Self::Metric(name.to_owned())),
            _ => Err(Invalid::new(
                "",
                format!("'{text}' is not a load signal"),
                "write auto, requests, cpu or metric:NAME",
            )),
        }
    }
}

/// Constants of the score; `docs/balancing.md` describes the effect of each and how its default was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// Number of reports over which the load from other callers is averaged (Uber, assisted balancing); 1 to 1000.
    pub smoothing: u32,
    /// Age at which a report has half its weight (Uber, assisted balancing); 100 ms to 10 min.
    pub half_life: Duration,
    /// Assumed load of a new endpoint, as a percentage of the mean load of the others (Uber, assisted balancing); 0
    /// to 1000.
    pub warm_up: u32,
    /// How fast shares follow reported utilisation: the percentage by which an endpoint's share changes per second if
    /// the endpoint is fully busy, or idle, relative to the mean; 0 (never) to 100.
    pub gain: u32,
    /// The largest factor by which reported utilisation may raise or lower an endpoint's capacity; 1 (no correction)
    /// to 8.
    pub correction: u32,
    /// Time for which a correction lasts without new reports before it fades; 1 s to 1 h.
    pub memory: Duration,
    /// Whether servers that report load are polled when no recent report exists (ServiceRouter §3.4.3).
    pub poll: bool,
    /// Age of a report after which its server is polled; 1 ms to 1 min. `None` means the longer of 10 ms and twice
    /// the mean service time.
    pub poll_after: Option<Duration>,
    /// A server is polled only if the round trip is below this percentage of the mean service time; 1 to 100.
    pub poll_ratio: u32,
    /// Percentage of a request that each response subtracts from the endpoint's estimated load above the mean (Uber,
    /// assisted balancing); 0 (nothing) to 100.
    pub reward: u32,
}

impl Default for Score {
    fn default() -> Self {
        Self {
            smoothing: 25,
            half_life: Duration::from_secs(10),
            warm_up: 150,
            gain: 5,
            correction: 4,
            memory: Duration::from_secs(60),
            poll: true,
            poll_after: None,
            poll_ratio: 50,
            reward: 0,
        }
    }
}

/// When a failing endpoint is ejected, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// Consecutive failures that eject an endpoint; 0 disables this check.
    pub consecutive: u32,
    /// Percentage points by which an endpoint's failure rate must exceed that of the others for ejection; 0 disables
    /// this check.
    pub failure_percent: u32,
    /// Minimum number of responses before an endpoint's failure rate is used; 5 to 100,000.
    pub min_samples: u32,
    /// Duration of the first ejection, doubled with each further ejection; 1 ms to 1 h.
    pub first: Duration,
    /// Maximum duration of an ejection; up to 1 h.
    pub longest: Duration,
    /// Maximum percentage of candidates that are ejected. If more would be, no candidate is ejected (panic mode); 0
    /// to 100.
    pub most_percent: u32,
}

impl Default for Outliers {
    fn default() -> Self {
        Self {
            consecutive: 3,
            failure_percent: 30,
            min_samples: 30,
            first: Duration::from_millis(100),
            longest: Duration::from_millis(12_800),
            most_percent: 50,
        }
    }
}

impl Balancing {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        self.signal.validate().map_err(|e| e.within("signal"))?;
        number("loadFactor", self.load_factor, 101, 1000)?;
        self.score.validate().map_err(|e| e.within("score"))?;
        self.outliers.validate().map_err(|e| e.within("outliers"))
    }
}

impl Score {
    fn validate(&self) -> Result<(), Invalid> {
        number("smoothing", self.smoothing, 1, 1000)?;
        duration("halfLife", self.half_life, "100ms", "10m")?;
        number("warmUp", self.warm_up, 0, 1000)?;
        number("gain", self.gain, 0, 100)?;
        number("correction", self.correction, 1, 8)?;
        duration("memory", self.memory, "1s", "1h")?;
        if let Some(after) = self.poll_after {
            duration("pollAfter", after, "1ms", "1m")?;
        }
        number("pollRatio", self.poll_ratio, 1, 100)?;
        number("reward", self.reward, 0, 100)
    }
}

impl Outliers {
    fn validate(&self) -> Result<(), Invalid> {
        number("consecutive", self.consecutive, 0, 1000)?;
        number("failurePercent", self.failure_percent, 0, 100)?;
        number("minSamples", self.min_samples, 5, 100_000)?;
        duration("first", self.first, "1ms", "1h")?;
        duration("longest", self.longest, "1ms", "1h")?;
        if self.longest < self.first {
            return Err(Invalid::new(
                "longest",
                format!("{:?} is shorter than the first time, {:?}", self.longest, self.first),
                "write a longer one; doubling stops at it",
            ));
        }
        number("mostPercent", self.most_percent, 0, 100)
    }
}

fn number(field: &str, value: u32, least: u32, most: u32) -> Result<(), Invalid> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value} is out of range"), format!("write {least} to {most}")))
}

fn duration(field: &str, value: Duration, least: &str, most: &str) -> Result<(), Invalid> {
    // Both bounds are constants, which tests parse.
    let bound = |text| crate::duration::read_duration(text).unwrap_or_default();
    if (bound(least)..=bound(most)).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value:?} is out of range"), format!("write {least} to {most}")))
}
