use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{CallPath, Label, Location, MAX_TABLE_REGIONS, Region, ServiceName, Zone};

use crate::CallCounters;

/// The counters of calls to one service from one snapshot of its records, by class and destination.
///
/// Bounded by the number of classes and by [`MAX_TABLE_REGIONS`] regions and zones. A new snapshot takes over the
/// previous one's counters.
#[derive(Debug)]
pub struct ReportedPaths {
    service: ServiceName,
    from: Region,
    caller: Option<ServiceName>,
    from_zone: Option<Zone>,
    /// Classes with counters of their own; all other calls share a counter.
    classes: Box<[Label]>,
    /// Destinations, sorted.
    destinations: Box<[Destination]>,
    /// The destination's position by endpoint index; [`Self::NOWHERE`] without a destination.
    destination_of: Box<[u8]>,
    /// Counters by class, then destination; the last column counts calls without a destination.
    counters: Box<[Arc<CallCounters>]>,
}

/// A server's region, and its zone if zones are distinguished.
type Destination = (Region, Option<Zone>);

/// The inputs that determine a service's paths.
#[derive(Debug)]
pub struct Destinations<'a> {
    /// The called service.
    pub service: &'a ServiceName,
    /// The region of the callers.
    pub from: &'a Region,
    /// The calling service, if it is known.
    pub caller: Option<&'a ServiceName>,
    /// The callers' zone, if calls prefer it; zones of their region are then distinguished.
    pub zone: Option<&'a Zone>,
    /// The distinguished classes.
    pub classes: &'a [Label],
}

impl ReportedPaths {
    const NOWHERE: u8 = u8::MAX;

    /// The paths to these endpoints, given by index and location.
    pub fn new<'a>(
        to: &Destinations<'_>,
        endpoints: impl Iterator<Item = (u32, &'a Location)> + Clone,
        before: Option<&Self>,
    ) -> Self {
        let destination = |location: &Location| {
            let zone = location.zone.as_ref().filter(|_| to.zone.is_some() && location.region == *to.from);
            (location.region.clone(), zone.cloned())
        };
        let all: BTreeSet<Destination> =
            endpoints.clone().map(|(_, location)| destination(location)).collect();
        let destinations: Box<[Destination]> = all.into_iter().take(MAX_TABLE_REGIONS).collect();
        let most = endpoints.clone().map(|(index, _)| index as usize + 1).max().unwrap_or_default();
        let mut destination_of = vec![Self::NOWHERE; most];
        for (index, location) in endpoints {
            let position = destinations.binary_search(&destination(location)).ok();
            let position = position.and_then(|at| u8::try_from(at).ok());
            destination_of[index as usize] = position.unwrap_or(Self::NOWHERE);
        }
        let before = before.filter(|before| before.from_zone.as_ref() == to.zone);
        let classes: Box<[Label]> = to.classes.into();
        let counters = std::iter::once(None).chain(classes.iter().map(Some)).flat_map(|class| {
            let destinations = destinations.iter().map(Some).chain([None]);
            destinations.map(move |one| before.and_then(|before| before.find(class, one)))
        });
        Self {
            service: to.service.clone(),
            from: to.from.clone(),
            caller: to.caller.cloned(),
            from_zone: to.zone.cloned(),
            counters: counters.map(Option::unwrap_or_default).collect(),
            classes,
            destinations,
            destination_of: destination_of.into(),
        }
    }

    /// The region of the callers.
    pub fn from(&self) -> &Region {
        &self.from
    }

    /// The counters of calls of a class to an endpoint; `None` if the endpoint has no destination.
    #[inline]
    pub fn to_endpoint(&self, class: Option<&Label>, index: u32) -> Option<&Arc<CallCounters>> {
        let position = self.destination_of.get(index as usize).copied().filter(|at| *at != Self::NOWHERE)?;
        self.counters.get(self.row(class) + usize::from(position))
    }

    /// The counters of a class's calls without a destination.
    pub fn to_nowhere(&self, class: Option<&Label>) -> &Arc<CallCounters> {
        // The last column of each class's row.
        &self.counters[self.row(class) + self.destinations.len()]
    }

    /// All paths with their counters.
    pub fn iter(&self) -> impl Iterator<Item = (CallPath, &CallCounters)> {
        let classes = std::iter::once(None).chain(self.classes.iter().map(Some));
        let paths = classes.flat_map(move |class| {
            self.destinations.iter().map(Some).chain([None]).map(move |to| self.path(class, to))
        });
        paths.zip(self.counters.iter().map(|counters| &**counters))
    }

    #[inline]
    fn row(&self, class: Option<&Label>) -> usize {
        let class = class.and_then(|class| self.classes.iter().position(|known| known == class));
        class.map_or(0, |position| position + 1) * (self.destinations.len() + 1)
    }

    fn find(&self, class: Option<&Label>, to: Option<&Destination>) -> Option<Arc<CallCounters>> {
        if class.is_some_and(|class| !self.classes.contains(class)) {
            return None;
        }
        let destination = match to {
            Some(to) => self.destinations.binary_search(to).ok()?,
            None => self.destinations.len(),
        };
        self.counters.get(self.row(class) + destination).cloned()
    }

    fn path(&self, class: Option<&Label>, to: Option<&Destination>) -> CallPath {
        CallPath {
            service: self.service.clone(),
            from: self.from.clone(),
            to: to.map(|(region, _)| region.clone()),
            class: class.cloned(),
            caller: self.caller.clone(),
            from_zone: self.from_zone.clone(),
            to_zone: to.and_then(|(_, zone)| zone.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    fn at(name: &str) -> Location {
        Location::in_region(region(name))
    }

    fn paths(
        endpoints: &[(u32, Location)],
        classes: &[&str],
        before: Option<&ReportedPaths>,
    ) -> ReportedPaths {
        let classes: Vec<Label> = classes.iter().map(|class| Label::new(*class).unwrap()).collect();
        let to = Destinations {
            service: &ServiceName::new("shop/cart").unwrap(),
            from: &region("eu"),
            caller: None,
            zone: None,
            classes: &classes,
        };
        ReportedPaths::new(&to, endpoints.iter().map(|(index, location)| (*index, location)), before)
    }

    #[test]
    fn each_class_and_region_has_counters_that_later_snapshots_keep() {
        let [bulk, other] = ["bulk", "other"].map(|class| Label::new(class).unwrap());
        let first = paths(&[(0, at("eu")), (4, at("us"))], &["bulk"], None);
        first.to_endpoint(Some(&bulk), 4).unwrap().record_attempt(true);
        assert!(Arc::ptr_eq(
            first.to_endpoint(Some(&other), 4).unwrap(),
            first.to_endpoint(None, 4).unwrap()
        ));
        assert!(first.to_endpoint(None, 2).is_none(), "no endpoint");
        assert_eq!(first.iter().count(), 6);
        let second = paths(&[(0, at("eu")), (1, at("ap")), (4, at("us"))], &["bulk"], Some(&first));
        for class in [None, Some(&bulk)] {
            assert!(Arc::ptr_eq(first.to_nowhere(class), second.to_nowhere(class)));
            for index in [0, 4] {
                let of = |paths: &ReportedPaths| Arc::clone(paths.to_endpoint(class, index).unwrap());
                assert!(Arc::ptr_eq(&of(&first), &of(&second)));
            }
        }
        let names = second.iter().map(|(path, _)| (path.class, path.to));
        assert_eq!(names.collect::<BTreeSet<_>>().len(), 8);
    }

    #[test]
    fn zones_of_the_callers_region_are_told_apart_where_calls_prefer_them() {
        let zoned =
            |region: &str, zone: &str| Location { zone: Some(Zone::new(zone).unwrap()), ..at(region) };
        let endpoints =
            [(0, zoned("eu", "a")), (1, zoned("eu", "b")), (2, zoned("us", "c")), (3, zoned("us", "d"))];
        let names = |zone: Option<&Zone>| {
            let to = Destinations {
                service: &ServiceName::new("shop/cart").unwrap(),
                from: &region("eu"),
                caller: None,
                zone,
                classes: &[],
            };
            let paths = ReportedPaths::new(&to, endpoints.iter().map(|(index, at)| (*index, at)), None);
            let text = |path: CallPath| {
                (path.from_zone.map(String::from), path.to.map(String::from), path.to_zone.map(String::from))
            };
            paths.iter().map(|(path, _)| text(path)).collect::<Vec<_>>()
        };
        assert_eq!(names(None).len(), 3, "two regions, and nowhere");
        let own = || Some("b".to_owned());
        let to = |region: &str, zone: Option<&str>| (own(), Some(region.to_owned()), zone.map(str::to_owned));
        let expected = [to("eu", Some("a")), to("eu", Some("b")), to("us", None), (own(), None, None)];
        assert_eq!(names(Some(&Zone::new("b").unwrap())), expected);
    }

    #[test]
    fn regions_are_bounded() {
        let many: Vec<_> = (0..100).map(|i| (i, at(&format!("r{i:03}")))).collect();
        let paths = paths(&many, &[], None);
        assert_eq!(paths.iter().count(), MAX_TABLE_REGIONS + 1);
        assert!(paths.to_endpoint(None, 99).is_none() && paths.to_endpoint(None, 63).is_some());
    }
}
