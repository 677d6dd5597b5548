use fairmesh_model::{Region, Regions, Ring, RoundTrips};

use crate::rings_policy::RingsPolicy;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::RegionInfo;

    use super::*;
    use crate::rings_policy::LoadRing;

    fn list() -> Vec<Region> {
        ["eu", "near", "other", "us"].map(|name| Region::new(name).unwrap()).to_vec()
    }

    fn matrix(rings: &[Ring], trips: &RoundTrips) -> RingMatrix {
        let list = list();
        let mut regions = Regions::default();
        let mut declare = |at: usize, continent: &str, neighbours: &[usize]| {
            let neighbours = neighbours.iter().map(|at| list[*at].clone()).collect();
            let info = RegionInfo { continent: continent.into(), neighbours, ..RegionInfo::default() };
            regions.regions.insert(list[at].clone(), info);
        };
        declare(0, "europe", &[1]);
        declare(1, "", &[]);
        declare(2, "europe", &[]);
        declare(3, "", &[]);
        let rings = rings.iter().map(|ring| LoadRing { ring: *ring, load: 0.8 }).collect();
        RingMatrix::new(&RingsPolicy::new(rings, 1), &list, &regions, trips)
    }

    fn rings_from(matrix: &RingMatrix, from: usize) -> Vec<Option<usize>> {
        (0..matrix.regions()).map(|to| matrix.ring(from, to)).collect()
    }

    #[test]
    fn ring_matrix_has_rings_of_neighbours_and_continents() {
        let named = [Ring::Region, Ring::Neighbours, Ring::Continent, Ring::Any];
        let matrix = matrix(&named, &RoundTrips::default());
        assert_eq!(rings_from(&matrix, 0), [Some(0), Some(1), Some(2), Some(3)]);
        // Neighbours are those that a region declares itself, and regions of no continent share none.
        assert_eq!(rings_from(&matrix, 1), [Some(3), Some(0), Some(3), Some(3)]);
        assert_eq!(rings_from(&matrix, 2), [Some(2), Some(3), Some(0), Some(3)]);
    }

    #[test]
    fn region_beyond_all_rings_has_none_and_unknown_distance_is_in_last_ring() {
        let named = matrix(&[Ring::Region, Ring::Continent], &RoundTrips::default());
        assert_eq!(rings_from(&named, 0), [Some(0), None, Some(1), None]);
        let list = list();
        let mut trips = RoundTrips::default();
        trips.set(list[0].clone(), list[1].clone(), Duration::from_millis(20));
        trips.set(list[0].clone(), list[2].clone(), Duration::from_millis(90));
        let bound = matrix(&[Ring::Region, Ring::Within(Duration::from_millis(50))], &trips);
        assert_eq!(rings_from(&bound, 0), [Some(0), Some(1), None, Some(1)]);
    }
}
