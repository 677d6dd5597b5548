use crate::observation_check::{GONE_AGE_MS, MAX_AGE_MS};

/// What the control plane knows of one service at one time.
///
/// Regions are positions in one list, which [`crate::RingMatrix`] and [`crate::Tables`] use too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The present, in milliseconds of a clock that only advances.
    pub now_ms: u64,
    /// By region.
    pub regions: Vec<RegionObservation>,
}

/// What is known of one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionObservation {
    /// Power of its serving endpoints: weight times speed of the host, summed. From the routing information base, not
    /// from reports; 0 without serving endpoints.
    pub power: f64,
    /// The share of its calls that the region may keep: 1, and less while it is drained.
    pub keep: f64,
    /// The report of its servers; `None` if there has been none.
    pub servers: Option<ServerReport>,
    /// The report of its callers; `None` if there has been none.
    pub callers: Option<CallerReport>,
}

/// The least difference between what servers got and callers sent that is not of intervals that end at different times.
const MIN_UNREPORTED: f64 = 5.0;
/// The same as a share of what servers got.
const UNREPORTED_SHARE: f64 = 0.1;

impl Observation {
    /// The report of a region's callers, unless it is so old that they are gone.
    pub(crate) fn present_callers<'a>(&self, region: &'a RegionObservation) -> Option<&'a CallerReport> {
        let max_age = if region.power > 0.0 { MAX_AGE_MS } else { GONE_AGE_MS };
        region.callers.as_ref().filter(|callers| self.now_ms.saturating_sub(callers.at_ms) <= max_age)
    }

    /// Attempts per second that callers of all regions say they send to one. Those that say nothing any more, since their
    /// region is gone, may send nothing either.
    pub(crate) fn sent_to(&self, region: usize) -> f64 {
        let callers = self.regions.iter().filter_map(|from| self.present_callers(from));
        callers.filter_map(|callers| callers.sent.get(region)).sum()
    }

    /// Calls per second that arrive at a region and that no caller reports: of callers of an old release, or outside of
    /// the mesh.
    pub(crate) fn unreported(&self, region: usize) -> f64 {
        let received = self.regions[region].servers.map_or(0.0, |servers| servers.received);
        let more = received - self.sent_to(region);
        if more > received * UNREPORTED_SHARE + MIN_UNREPORTED { more } else { 0.0 }
    }
}

/// The sum of the reports of a region's servers over one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerReport {
    /// End of the interval.
    pub at_ms: u64,
    /// Mean utilisation, weighted by power; 1 is full.
    pub load: f64,
    /// Calls that arrived per second, with those that were shed.
    pub received: f64,
    /// Calls that ended per second, answered or shed; 0 if callers do not say.
    pub answered: f64,
    /// The share of its calls that servers shed or that got no response; less than 0 while more end than begin.
    pub failing: f64,
    /// How unevenly its servers are loaded; `None` if they do not say, or callers reach all of them.
    pub spread: Option<Spread>,
    /// Mean time of calls of the region itself until responses begin, in seconds; 0 if callers do not say.
    pub response_time: f64,
}

/// CPU utilisation of the single servers of a region; 1 is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The utilisation that a tenth of the servers exceed.
    pub p90: f64,
}

/// The sum of the reports of a region's callers over one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallerReport {
    /// End of the interval.
    pub at_ms: u64,
    /// Calls offered per second by class, with those that were dropped.
    pub offered: Vec<f64>,
    /// Attempts sent per second by destination region.
    pub sent: Vec<f64>,
    /// The share of each class that must stay in its region: `localOnly`, shards without a copy elsewhere.
    pub pinned: f64,
}
