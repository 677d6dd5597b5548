use std::{fmt, str::FromStr, time::Duration};

use crate::{Invalid, nearest};

/// How an endpoint is chosen among the candidates. The default is right for a service nobody tuned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// What makes one endpoint better than another.
    pub policy: BalancingPolicy,
    /// How many endpoints one client keeps connections to within a ring; 0 means all (ServiceRouter §3.4.2).
    pub subset: u32,
    /// Which load of those that servers report counts.
    pub signal: LoadSignal,
    /// Constants of the score.
    pub score: Score,
    /// When an endpoint that fails is avoided.
    pub outliers: Outliers,
    /// With [`BalancingPolicy::BoundedHash`], the most load of one endpoint as a percentage of the mean; 101 to 1000.
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

/// What makes one endpoint better than another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BalancingPolicy {
    /// Of two drawn by weight, the lower score: own calls under way and what servers report, smoothed (ServiceRouter §3.4; Uber, assisted balancing).
    #[default]
    Score,
    /// Of two drawn by weight, the one with fewer own calls under way for its weight; reports do not count.
    LeastRequest,
    /// Of two drawn by weight, the one that answers sooner: latency that rises at once and falls slowly, times calls.
    PeakEwma,
    /// In turn, by weight.
    RoundRobin,
    /// By weight and chance.
    Random,
    /// By key: the key's first choice that has not more than its share of the calls under way.
    BoundedHash,
}

impl BalancingPolicy {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Score, Self::LeastRequest, Self::PeakEwma, Self::RoundRobin, Self::Random, Self::BoundedHash];

    /// The policy as users write it.
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
            let hint = nearest::hint(text, &Self::ALL.map(Self::as_str));
            Invalid::new("", format!("'{text}' is not a policy"), hint)
        })
    }
}

/// Which load of those that servers report counts (ServiceRouter §3.4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LoadSignal {
    /// Requests under way, and CPU where it is reported.
    #[default]
    Auto,
    /// Requests under way alone.
    Requests,
    /// The CPU limit's share in use alone.
    Cpu,
    /// A metric of the server's own beside requests under way, by its name in the report; it is to be equal everywhere.
    Metric(String),
}

impl LoadSignal {
    const METRIC: &str = "metric:";
    const LONGEST: usize = 63;

    /// Whether a metric has a name that servers can report it by.
    ///
    /// # Errors
    /// Where it is empty, too long, or holds anything but letters, digits and `_`, `-`, `.`.
    pub fn validate(&self) -> Result<(), Invalid> {
        let Self::Metric(name) = self else { return Ok(()) };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if (1..=Self::LONGEST).contains(&name.len()) && name.chars().all(fits) {
            return Ok(());
        }
        Err(Invalid::new(
            "",
            format!("'{name}' is not the name of a metric"),
            format!("write 1 to {} letters, digits, '_', '-', '.', as the server does", Self::LONGEST),
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

/// Constants of the score; `docs/balancing.md` says what each does and how its default was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// Reports over which the load of others is averaged (Uber, assisted balancing); 1 to 1000.
    pub smoothing: u32,
    /// After how long what a report said counts half (Uber, assisted balancing); 100 ms to 10 min.
    pub half_life: Duration,
    /// What a new endpoint is taken to carry, as a percentage of the others' mean (Uber, assisted balancing); 0 to 1000.
    pub warm_up: u32,
    /// How fast shares follow reported utilisation: the percentage by which a share changes in a second when an endpoint
    /// is wholly busy or idle against the mean; 0 (never) to 100.
    pub gain: u32,
    /// By which factor reported utilisation may raise or lower an endpoint's capacity at most; 1 (not at all) to 8.
    pub correction: u32,
    /// How long a correction holds without reports before it fades; 1 s to 1 h.
    pub memory: Duration,
    /// Whether servers that report are asked for their load where nothing recent is known of it (ServiceRouter §3.4.3).
    pub poll: bool,
    /// How old a report must be for its server to be asked; 1 ms to 1 min. `None`: the longer of 10 ms and twice the mean time
    /// that servers work on a request.
    pub poll_after: Option<Duration>,
    /// The percentage of that time below which a round trip must stay for a server to be asked; 1 to 100.
    pub poll_ratio: u32,
    /// The percentage of a request that each answer takes off what its endpoint seems to carry above the mean (Uber, assisted balancing); 0
    /// (nothing) to 100.
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

/// When an endpoint that fails is avoided, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// Failed answers in a row from which on an endpoint is avoided; 0 means that a row is not looked at.
    pub consecutive: u32,
    /// How many points its share of failures must lie above the others' for an endpoint to be avoided; 0 means that
    /// shares are not compared.
    pub failure_percent: u32,
    /// Answers of an endpoint before its share of failures says anything; 5 to 100,000.
    pub min_samples: u32,
    /// How long an endpoint is avoided at first; doubled with each further time; 1 ms to 1 h.
    pub first: Duration,
    /// How long at most; up to 1 h.
    pub longest: Duration,
    /// Up to which percentage of the candidates is avoided; where it is more, none is (panic); 0 to 100.
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
                "write a longer one; it is what doubling ends at",
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
    // Both bounds are texts that the tests read.
    let bound = |text| crate::spec::read_duration(text).unwrap_or_default();
    if (bound(least)..=bound(most)).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value:?} is out of range"), format!("write {least} to {most}")))
}
