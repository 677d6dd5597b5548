use fairmesh_model::{Region, Regions, Ring, RoundTrips};

use crate::policy::RingsPolicy;

/// The ring of each region as seen from each other one, by position in the list of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingMatrix {
    regions: usize,
    /// By source, then destination; `None` where no ring includes the destination.
    rings: Vec<Option<u8>>,
}

impl RingMatrix {
    /// The rings of a policy between these regions, by declared and measured distances, as routers sort them.
    pub fn new(policy: &RingsPolicy, list: &[Region], regions: &Regions, trips: &RoundTrips) -> Self {
        let ring = |from: &Region, to: &Region| {
            let found = policy.rings.iter().position(|one| includes(one.ring, (from, to), regions, trips));
            let found = found.or_else(|| holds_unknown(policy, (from, to), trips));
            found.and_then(|position| u8::try_from(position).ok())
        };
        let rings = list.iter().flat_map(|from| list.iter().map(move |to| (from, to)));
        Self { regions: list.len(), rings: rings.map(|(from, to)| ring(from, to)).collect() }
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions
    }

    /// The position of the first ring around `from` that includes `to`. The own region is always in the first.
    pub fn ring(&self, from: usize, to: usize) -> Option<usize> {
        if from == to {
            return Some(0);
        }
        self.rings[from * self.regions + to].map(usize::from)
    }
}

fn includes(ring: Ring, (from, to): (&Region, &Region), regions: &Regions, trips: &RoundTrips) -> bool {
    let info = |region| regions.regions.get(region);
    from == to
        || match ring {
            Ring::Region => false,
            Ring::Within(bound) => trips.get(from, to).is_some_and(|trip| trip <= bound),
            Ring::Neighbours => info(from).is_some_and(|info| info.neighbours.contains(to)),
            Ring::Continent => info(from)
                .zip(info(to))
                .is_some_and(|(a, b)| !a.continent.is_empty() && a.continent == b.continent),
            Ring::Any => true,
        }
}

/// A last ring with a bound includes regions at an unknown distance.
fn holds_unknown(policy: &RingsPolicy, (from, to): (&Region, &Region), trips: &RoundTrips) -> Option<usize> {
    let last = policy.rings.len().checked_sub(1)?;
    let is_bound = matches!(policy.rings[last].ring, Ring::Within(_));
    (is_bound && trips.get(from, to).is_none()).then_some(last)
}
