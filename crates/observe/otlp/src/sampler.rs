use std::fmt;

/// Decides which traces are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Whether the parent's `sampled` flag decides for spans with a parent.
    pub follows_parent: bool,
    /// Sampler for all other spans.
    pub roots: RootSampler,
}

/// Decides which traces are exported if no parent decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootSampler {
    /// Exports one in N traces; 0 exports none.
    OneIn(u64),
    /// Exports traces whose id is below a bound, so that all processes with the same share choose the same traces.
    Share {
        /// Upper bound for the low 63 bits of the trace id.
        below: u64,
    },
}

impl RootSampler {
    /// Creates OpenTelemetry's `traceidratio` sampler for a share from 0 to 1.
    pub fn share(share: f64) -> Self {
        Self::Share { below: (share.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64 }
    }

    /// Whether a trace is exported. `number` returns the number of the trace in this process.
    #[inline]
    pub fn takes(self, trace: u128, number: impl FnOnce() -> u64) -> bool {
        match self {
            Self::OneIn(0) => false,
            Self::OneIn(n) => number().is_multiple_of(n),
            Self::Share { below } => (trace as u64) >> 1 < below,
        }
    }
}

impl fmt::Display for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.roots {
            RootSampler::OneIn(n) => write!(f, "one in {n}")?,
            RootSampler::Share { below } => write!(f, "{} by trace id", below as f64 / (1_u64 << 63) as f64)?,
        }
        f.write_str(if self.follows_parent { ", or as the parent" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_decides_by_trace_id() {
        let taken = |share| {
            let ids = (0..1_000_u128).map(|n| n * (u128::from(u64::MAX) / 1_000));
            ids.filter(|id| RootSampler::share(share).takes(*id, || 0)).count()
        };
        assert_eq!((taken(0.0), taken(1.0)), (0, 1_000));
        assert!((249..=251).contains(&taken(0.25)));
        assert!(!RootSampler::OneIn(0).takes(0, || 0) && RootSampler::OneIn(2).takes(0, || 4));
    }
}
