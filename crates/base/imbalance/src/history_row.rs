use std::{collections::BTreeMap, collections::HashMap, ops::AddAssign, sync::Arc};

use fairmesh_model::{Location, Region};

use crate::{Area, p99, usage_area::difference};

/// A dimension by which a service's containers are sliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// The containers' region.
    Region,
    /// The containers' zone within its region: `eu/eu-a`.
    Zone,
    /// The containers' cluster within its region: `eu/c1`.
    Cluster,
    /// The hardware type of the containers' machines.
    HostType,
}

/// The slice name if a zone, cluster or host type is not given.
pub const NO_NAME: &str = "(none)";
/// Name of the slice that merges all slices beyond `MAX_SLICES`.
pub const OTHERS: &str = "(others)";

/// Maximum number of slices of a service in one dimension. Further slices are merged, which bounds the stored data.
const MAX_SLICES: usize = 200;

/// One slice of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The slice's share of the service's area. `peak` uses the p99 of the whole service, so that slices add up.
    pub area: Area,
    /// Peak by the slice's own p99, in millicore-minutes, as if the slice were a service.
    pub own_peak: u64,
}

/// The causes of a service's waste, in millicore-minutes. The parts add up exactly to the whole waste (Uber,
/// imbalance indicator).
///
/// P is the p99 of the service, P(r) the p99 of its containers in region r, and P(r,h) the p99 of its containers on
/// host type h in region r. There are n containers, with usage u each:
///
/// | * between regions: Σ n(r) × (P − P(r)), which a separate target per region would free;
/// | * between host types: Σ n(r,h) × (P(r) − P(r,h)), which a separate target per host type would free in addition;
/// | * within a host type: Σ (P(r,h) − u), due to drifted machines, uneven calls or noisy neighbours;
/// | * unknown: Σ (P(r) − u) over containers without a host type, where the last two cannot be distinguished.
///
/// Each part is at least zero for a service of fewer than 100 containers, whose p99 is the largest value. The
/// rejected alternative successively removed the means of groups and observed the p99. A hot container in a cold
/// region then makes the regions' part negative, even in the smallest service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Regions are not equally busy.
    pub regions: i64,
    /// Within a region, one type of hardware is busier than another.
    pub host_types: i64,
    /// Within a region and type of hardware, one container is busier than another.
    pub within: i64,
    /// The cause is unknown.
    pub unknown: i64,
}

/// Imbalance of a service over one or more minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of minutes.
    pub minutes: u64,
    /// All containers.
    pub whole: Area,
    /// The causes of the waste.
    pub causes: Causes,
    /// The containers by dimension and slice. The slices of each dimension add up to the whole.
    pub slices: BTreeMap<(Dimension, Arc<str>), Slice>,
}

impl Dimension {
    /// All dimensions.
    pub const ALL: [Self; 4] = [Self::Region, Self::Zone, Self::Cluster, Self::HostType];

    fn name(self, place: &Location) -> String {
        let named = |name: Option<&str>| name.unwrap_or(NO_NAME).to_owned();
        let within = |name: Option<&str>| format!("{}/{}", place.region, name.unwrap_or(NO_NAME));
        match self {
            Self::Region => place.region.to_string(),
            Self::Zone => within(place.zone.as_ref().map(AsRef::as_ref)),
            Self::Cluster => within(place.cluster.as_ref().map(AsRef::as_ref)),
            Self::HostType => named(place.host_type.as_ref().map(AsRef::as_ref)),
        }
    }
}

impl Row {
    /// Builds the row of one minute from each container's location and usage, in thousandths of a core.
    pub fn of_minute<'a>(containers: impl IntoIterator<Item = (&'a Location, u64)>) -> Self {
        let mut places: HashMap<&Location, Vec<u64>> = HashMap::new();
        for (place, used) in containers {
            places.entry(place).or_default().push(used);
        }
        let mut all: Vec<u64> = places.values().flatten().copied().collect();
        let Some(p99) = p99(&mut all) else { return Self::default() };
        let mut slices = BTreeMap::new();
        for dimension in Dimension::ALL {
            for (name, mut used) in sliced(dimension, &places) {
                let slice = Slice { area: area(&used, p99), own_peak: own_peak(&mut used) };
                slices.insert((dimension, Arc::from(name)), slice);
            }
        }
        Self { minutes: 1, whole: area(&all, p99), causes: Causes::of(&places, p99), slices }
    }

    /// Adds other minutes of the same service.
    pub fn add(&mut self, later: &Self) {
        self.minutes += later.minutes;
        self.whole += later.whole;
        self.causes += later.causes;
        for (key, slice) in &later.slices {
            *self.slices.entry(key.clone()).or_default() += *slice;
        }
    }
}

fn sliced(dimension: Dimension, places: &HashMap<&Location, Vec<u64>>) -> BTreeMap<String, Vec<u64>> {
    let mut named: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (place, used) in places {
        named.entry(dimension.name(place)).or_default().extend(used);
    }
    let further = named.keys().nth(MAX_SLICES - 1).cloned();
    if let Some(further) = further.filter(|_| named.len() > MAX_SLICES) {
        let others = named.split_off(&further).into_values().flatten().collect();
        named.insert(OTHERS.into(), others);
    }
    named
}

fn area(used: &[u64], p99: u64) -> Area {
    let containers = used.len() as u64;
    Area { containers, used: used.iter().sum(), peak: containers * p99 }
}

fn own_peak(used: &mut [u64]) -> u64 {
    p99(used).unwrap_or_default() * used.len() as u64
}

impl Causes {
    fn of(places: &HashMap<&Location, Vec<u64>>, whole: u64) -> Self {
        let mut regions: BTreeMap<&Region, BTreeMap<Option<&str>, Vec<u64>>> = BTreeMap::new();
        for (place, used) in places {
            let host_type = place.host_type.as_ref().map(AsRef::as_ref);
            regions.entry(&place.region).or_default().entry(host_type).or_default().extend(used);
        }
        let mut causes = Self::default();
        for types in regions.into_values() {
            let mut all: Vec<u64> = types.values().flatten().copied().collect();
            let own = own_peak(&mut all);
            causes.regions += difference(whole * all.len() as u64, own);
            let region = own / all.len().max(1) as u64;
            for (host_type, used) in types {
                causes.split(host_type, used, region);
            }
        }
        causes
    }

    /// Adds the containers on one host type of a region; `region` is the region's p99.
    fn split(&mut self, host_type: Option<&str>, mut used: Vec<u64>, region: u64) {
        let (peak, sum) = (region * used.len() as u64, used.iter().sum());
        if host_type.is_none() {
            self.unknown += difference(peak, sum);
            return;
        }
        let own = own_peak(&mut used);
        self.host_types += difference(peak, own);
        self.within += difference(own, sum);
    }

    /// The sum of all causes, which is the waste of the service.
    pub fn total(&self) -> i64 {
        self.regions + self.host_types + self.within + self.unknown
    }
}

impl AddAssign for Causes {
    fn add_assign(&mut self, other: Self) {
        self.regions += other.regions;
        self.host_types += other.host_types;
        self.within += other.within;
        self.unknown += other.unknown;
    }
}

impl AddAssign for Slice {
    fn add_assign(&mut self, other: Self) {
        self.area += other.area;
        self.own_peak = self.own_peak.saturating_add(other.own_peak);
    }
}

#[cfg(test)]
mod tests;
