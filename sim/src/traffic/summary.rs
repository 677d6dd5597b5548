use serde::Serialize;

/// Calls across regions over the whole simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficReport {
    /// The regions.
    pub regions: Vec<String>,
    /// The traffic classes.
    pub classes: Vec<String>,
    /// The threshold of the first ring.
    pub threshold: f64,
    /// Maximum utilisation of a region in any interval after the warm-up.
    pub greatest_load: f64,
    /// Maximum number of consecutive intervals in which a region was above the first threshold.
    pub longest_above: u32,
    /// Share of calls in the last interval that stayed in their region.
    pub local_at_end: f64,
    /// Maximum dropped share in any interval, by class.
    pub most_dropped: Vec<f64>,
    /// Rounds in which the planner refused its input.
    pub refused: u32,
    /// Rounds in which shares changed.
    pub changed: u32,
    /// The intervals, warm-up included.
    pub rounds: Vec<Round>,
}

/// One interval, and the plan made from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Round {
    /// End of the interval, in seconds.
    pub at: f64,
    /// Utilisation by region; 0 if no server runs.
    pub loads: Vec<f64>,
    /// The share of calls that stayed in their region, by source region.
    pub local: Vec<f64>,
    /// The share of local calls over all regions.
    pub all_local: f64,
    /// The dropped share, by class.
    pub dropped: Vec<f64>,
    /// The share of its calls that a draining region keeps.
    pub keep: Option<f64>,
    /// Reason why the planner kept its tables.
    pub refusal: Option<String>,
    /// Changes of shares, with their reasons.
    pub shifts: Vec<String>,
}

impl TrafficReport {
    pub(crate) fn new(
        regions: Vec<String>,
        classes: Vec<String>,
        threshold: f64,
        rounds: Vec<Round>,
        measured_from: f64,
    ) -> Self {
        let measured = || rounds.iter().filter(|round| round.at > measured_from);
        let count = |is: fn(&Round) -> bool| measured().filter(|round| is(round)).count() as u32;
        let greatest = |of: &dyn Fn(&Round) -> f64| measured().map(of).fold(0.0, f64::max);
        let greatest_load = greatest(&|round| round.loads.iter().copied().fold(0.0, f64::max));
        let above = |region: usize| longest(measured().map(|round| round.loads[region] > threshold));
        Self {
            threshold,
            greatest_load,
            longest_above: (0..regions.len()).map(above).max().unwrap_or_default(),
            local_at_end: rounds.last().map_or(1.0, |round| round.all_local),
            most_dropped: (0..classes.len()).map(|class| greatest(&|round| round.dropped[class])).collect(),
            refused: count(|round| round.refusal.is_some()),
            changed: count(|round| !round.shifts.is_empty()),
            regions,
            classes,
            rounds,
        }
    }
}

/// The longest run of `true`.
fn longest(values: impl Iterator<Item = bool>) -> u32 {
    let (mut longest, mut run) = (0, 0);
    for value in values {
        run = if value { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}
