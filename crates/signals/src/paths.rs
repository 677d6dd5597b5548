use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{CallPath, Label, MAX_TABLE_REGIONS, Region, ServiceName, Traffic};

use crate::CallCounters;

/// The counters of one service's calls in one snapshot of its records: one for each class and destination.
///
/// Bounded by the classes of the policy and [`MAX_TABLE_REGIONS`] regions. A snapshot takes over the counters of the one
/// before it.
#[derive(Debug)]
pub struct ReportedPaths {
    service: ServiceName,
    from: Region,
    caller: Option<ServiceName>,
    /// Those with counters of their own; calls of all others are counted together.
    classes: Box<[Label]>,
    /// In the order of names.
    regions: Box<[Region]>,
    /// By index of the endpoint, the position of its region; [`Self::NOWHERE`] if that has none.
    region_of: Box<[u8]>,
    /// By class, then destination; the last destination is none.
    counters: Box<[Arc<CallCounters>]>,
}

/// What the paths of a service depend on.
#[derive(Debug)]
pub struct Destinations<'a> {
    /// The called service.
    pub service: &'a ServiceName,
    /// The region of the callers.
    pub from: &'a Region,
    /// The calling service, if it is known.
    pub caller: Option<&'a ServiceName>,
    /// The part of its policy that asks for reports.
    pub traffic: &'a Traffic,
}

impl ReportedPaths {
    const NOWHERE: u8 = u8::MAX;

    /// The paths to these endpoints, each with its index and region.
    pub fn new<'a>(
        to: &Destinations<'_>,
        endpoints: impl Iterator<Item = (u32, &'a Region)> + Clone,
        before: Option<&Self>,
    ) -> Self {
        let names: BTreeSet<&Region> = endpoints.clone().map(|(_, region)| region).collect();
        let regions: Box<[Region]> = names.into_iter().take(MAX_TABLE_REGIONS).cloned().collect();
        let most = endpoints.clone().map(|(index, _)| index as usize + 1).max().unwrap_or_default();
        let mut region_of = vec![Self::NOWHERE; most];
        for (index, region) in endpoints {
            let position = regions.binary_search(region).ok().and_then(|at| u8::try_from(at).ok());
            region_of[index as usize] = position.unwrap_or(Self::NOWHERE);
        }
        let classes: Box<[Label]> = to.traffic.classes.clone().into();
        let counters = std::iter::once(None).chain(classes.iter().map(Some)).flat_map(|class| {
            let destinations = regions.iter().map(Some).chain([None]);
            destinations.map(move |region| before.and_then(|before| before.find(class, region)))
        });
        Self {
            service: to.service.clone(),
            from: to.from.clone(),
            caller: to.caller.cloned(),
            counters: counters.map(Option::unwrap_or_default).collect(),
            classes,
            regions,
            region_of: region_of.into(),
        }
    }

    /// The region of the callers.
    pub fn from(&self) -> &Region {
        &self.from
    }

    /// The counters of calls of a class to an endpoint; `None` if its region has none.
    #[inline]
    pub fn to_endpoint(&self, class: Option<&Label>, index: u32) -> Option<&Arc<CallCounters>> {
        let region = self.region_of.get(index as usize).copied().filter(|at| *at != Self::NOWHERE)?;
        self.counters.get(self.row(class) + usize::from(region))
    }

    /// The counters of calls of a class that go nowhere.
    pub fn to_nowhere(&self, class: Option<&Label>) -> &Arc<CallCounters> {
        // Every class has one, the last of its row.
        &self.counters[self.row(class) + self.regions.len()]
    }

    /// All paths with their counters.
    pub fn iter(&self) -> impl Iterator<Item = (CallPath, &CallCounters)> {
        let classes = std::iter::once(None).chain(self.classes.iter().map(Some));
        let paths = classes.flat_map(move |class| {
            self.regions.iter().map(Some).chain([None]).map(move |region| self.path(class, region))
        });
        paths.zip(self.counters.iter().map(|counters| &**counters))
    }

    #[inline]
    fn row(&self, class: Option<&Label>) -> usize {
        let class = class.and_then(|class| self.classes.iter().position(|known| known == class));
        class.map_or(0, |position| position + 1) * (self.regions.len() + 1)
    }

    fn find(&self, class: Option<&Label>, region: Option<&Region>) -> Option<Arc<CallCounters>> {
        if class.is_some_and(|class| !self.classes.contains(class)) {
            return None;
        }
        let destination = match region {
            Some(region) => self.regions.binary_search(region).ok()?,
            None => self.regions.len(),
        };
        self.counters.get(self.row(class) + destination).cloned()
    }

    fn path(&self, class: Option<&Label>, to: Option<&Region>) -> CallPath {
        CallPath {
            service: self.service.clone(),
            from: self.from.clone(),
            to: to.cloned(),
            class: class.cloned(),
            caller: self.caller.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    fn paths(endpoints: &[(u32, Region)], classes: &[&str], before: Option<&ReportedPaths>) -> ReportedPaths {
        let classes = classes.iter().map(|class| Label::new(*class).unwrap()).collect();
        let to = Destinations {
            service: &ServiceName::new("shop/cart").unwrap(),
            from: &region("eu"),
            caller: None,
            traffic: &Traffic { classes, ..Traffic::default() },
        };
        ReportedPaths::new(&to, endpoints.iter().map(|(index, region)| (*index, region)), before)
    }

    #[test]
    fn each_class_and_region_has_counters_that_later_snapshots_keep() {
        let [bulk, other] = ["bulk", "other"].map(|class| Label::new(class).unwrap());
        let first = paths(&[(0, region("eu")), (4, region("us"))], &["bulk"], None);
        first.to_endpoint(Some(&bulk), 4).unwrap().record_attempt(true);
        assert!(Arc::ptr_eq(
            first.to_endpoint(Some(&other), 4).unwrap(),
            first.to_endpoint(None, 4).unwrap()
        ));
        assert!(first.to_endpoint(None, 2).is_none(), "no endpoint");
        assert_eq!(first.iter().count(), 6);
        let second =
            paths(&[(0, region("eu")), (1, region("ap")), (4, region("us"))], &["bulk"], Some(&first));
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
    fn regions_are_bounded() {
        let many: Vec<_> = (0..100).map(|i| (i, region(&format!("r{i:03}")))).collect();
        let paths = paths(&many, &[], None);
        assert_eq!(paths.iter().count(), MAX_TABLE_REGIONS + 1);
        assert!(paths.to_endpoint(None, 99).is_none() && paths.to_endpoint(None, 63).is_some());
    }
}
