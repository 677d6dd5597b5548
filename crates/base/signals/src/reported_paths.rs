use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, OnceLock},
};

use fairmesh_model::{CallNode, CallPath, Label, Location, MAX_TABLE_REGIONS, Region, ServiceName, Zone};

use crate::{CallCounters, NodeId};

/// Maximum number of parents with their own counters. Calls of further parents count as calls without a parent.
const MAX_PARENTS: usize = 64;
/// Maximum number of paths from earlier snapshots that are still read.
const MAX_FORMER: usize = 64;

/// The counters of calls to one service in one snapshot of its records, by parent, class and destination.
///
/// The number of counters is bounded by 64 parents, the number of classes, and [`MAX_TABLE_REGIONS`] regions and
/// zones. A new snapshot takes over the counters of the previous one. Counters of a parent are created with its first
/// call, without a lock.
#[derive(Debug)]
pub struct ReportedPaths {
    service: ServiceName,
    from: Region,
    caller: Option<ServiceName>,
    from_zone: Option<Zone>,
    /// Classes with their own counters. All other calls share the counters without a class.
    classes: Box<[Label]>,
    /// Destinations, sorted.
    destinations: Box<[Destination]>,
    /// Position of the destination by endpoint index; [`Self::NOWHERE`] for endpoints without a destination.
    destination_of: Box<[u8]>,
    without_parent: Counters,
    /// The counters of each parent, once parents are distinguished. Slots are used in order.
    by_parent: OnceLock<Box<[ParentSlot]>>,
    /// Paths with calls to destinations that this snapshot no longer contains. Their last calls are still unread.
    former: Box<[(CallPath, Arc<CallCounters>)]>,
}

/// The counters of one parent, created with its first call.
type ParentSlot = OnceLock<(NodeId, Counters)>;

/// Counters by class, then by destination. The last column counts calls without a destination.
type Counters = Box<[Arc<CallCounters>]>;

/// Properties of a call that select its counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportedAs<'a> {
    /// The traffic class that the route of the call sets.
    pub class: Option<&'a Label>,
    /// The call during which this call is made; `None` if there is none.
    pub parent: Option<NodeId>,
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
    /// The callers' zone, if calls prefer their own zone. Zones in the callers' region are then distinguished.
    pub zone: Option<&'a Zone>,
    /// The classes with their own counters.
    pub classes: &'a [Label],
    /// Whether calls are distinguished by parent from the beginning.
    pub by_parent: bool,
}

impl ReportedPaths {
    const NOWHERE: u8 = u8::MAX;

    /// Creates the paths to `endpoints`, given as endpoint index and location. Takes over counters from the snapshot
    /// `before`.
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
        let mut paths = Self {
            service: to.service.clone(),
            from: to.from.clone(),
            caller: to.caller.cloned(),
            from_zone: to.zone.cloned(),
            without_parent: Box::default(),
            by_parent: OnceLock::new(),
            former: Box::default(),
            classes,
            destinations,
            destination_of: destination_of.into(),
        };
        paths.without_parent =
            paths.counters(|class, to| before.and_then(|b| b.find((None, &b.without_parent), class, to)));
        if to.by_parent {
            paths.by_parent = OnceLock::from(paths.parents_of(before));
        }
        if let Some(before) = before {
            paths.former = paths.missing_of(before);
        }
        paths
    }

    /// Distinguishes calls by parent from now on.
    pub fn follow_parents(&self) {
        self.by_parent.get_or_init(|| self.parents_of(None));
    }

    /// Returns the slots of parents, including the slots that the snapshot `before` still uses.
    fn parents_of(&self, before: Option<&Self>) -> Box<[ParentSlot]> {
        let known = before.into_iter().flat_map(|before| before.parents().map(move |known| (before, known)));
        // A parent without calls frees its slot. A parent with calls only to former destinations keeps its slot until
        // those paths are forgotten. Otherwise a returning destination would get a second set of counters for the
        // same path.
        let known = known.filter_map(|(before, (parent, counters))| {
            let node = self.reportable(*parent)?;
            let was_used = counters.iter().any(|counters| !counters.is_zero())
                || before.former.iter().any(|(path, _)| path.parent.as_ref() == Some(&node));
            let counters = self.counters(|class, to| before.find((Some(&node), counters), class, to));
            let is_used = was_used || counters.iter().any(|counters| !counters.is_zero());
            is_used.then(|| OnceLock::from((*parent, counters)))
        });
        let known: Vec<_> = known.collect();
        let unused = std::iter::repeat_with(OnceLock::new);
        known.into_iter().chain(unused).take(MAX_PARENTS).collect()
    }

    /// Paths of the snapshot `before` that have calls and whose counters were not taken over.
    fn missing_of(&self, before: &Self) -> Box<[(CallPath, Arc<CallCounters>)]> {
        let of_each_parent = self.parents().flat_map(|(_, counters)| counters);
        let kept: HashSet<_> = self.without_parent.iter().chain(of_each_parent).map(Arc::as_ptr).collect();
        let is_kept = |counters: &Arc<CallCounters>| kept.contains(&Arc::as_ptr(counters));
        let of_parents =
            before.parents().filter_map(|(parent, counters)| {
                let parent = self.reportable(*parent)?;
                Some(before.paths_of(counters).map(move |(path, counters)| {
                    (CallPath { parent: Some(parent.clone()), ..path }, counters)
                }))
            });
        let all = before.paths_of(&before.without_parent).chain(of_parents.flatten());
        let new = all.filter(|(_, counters)| !counters.is_zero() && !is_kept(counters));
        let new = new.map(|(path, counters)| (path, Arc::clone(counters)));
        let former = before.former.iter().filter(|(_, counters)| !is_kept(counters));
        new.chain(former.cloned()).take(MAX_FORMER).collect()
    }

    /// The parents that have counters.
    fn parents(&self) -> impl Iterator<Item = &(NodeId, Counters)> {
        self.by_parent.get().into_iter().flat_map(|slots| slots.iter().filter_map(OnceLock::get))
    }

    /// The region of the callers.
    pub fn from(&self) -> &Region {
        &self.from
    }

    /// The counters of calls to the endpoint at `index`; `None` if the endpoint has no destination.
    #[inline]
    pub fn to_endpoint(&self, call: ReportedAs<'_>, index: u32) -> Option<&Arc<CallCounters>> {
        let position = self.destination_of.get(index as usize).copied().filter(|at| *at != Self::NOWHERE)?;
        self.of_parent(call.parent).get(self.row(call.class) + usize::from(position))
    }

    /// The counters of calls without a destination.
    pub fn to_nowhere(&self, call: ReportedAs<'_>) -> &Arc<CallCounters> {
        // The last column of each class's row.
        &self.of_parent(call.parent)[self.row(call.class) + self.destinations.len()]
    }

    /// All paths with their counters. Paths with a parent are included only if they have calls. A path that an
    /// earlier snapshot lacked may be listed twice, with different counters.
    pub fn iter(&self) -> impl Iterator<Item = (CallPath, &CallCounters)> {
        let parents = self.parents();
        let parents = parents.filter_map(|(parent, counters)| Some((self.reportable(*parent)?, counters)));
        let with_parent = parents.flat_map(|(parent, counters)| {
            let paths = self.paths_of(counters).filter(|(_, counters)| !counters.is_zero());
            paths
                .map(move |(path, counters)| (CallPath { parent: Some(parent.clone()), ..path }, &**counters))
        });
        let without = self.paths_of(&self.without_parent).map(|(path, counters)| (path, &**counters));
        let former = self.former.iter().map(|(path, counters)| (path.clone(), &**counters));
        without.chain(with_parent).chain(former)
    }

    /// The counters of calls with this parent, created with the parent's first call.
    #[inline]
    fn of_parent(&self, parent: Option<NodeId>) -> &Counters {
        let (Some(parent), Some(slots)) = (parent, self.by_parent.get()) else { return &self.without_parent };
        for row in slots {
            // The first unused slot is taken for this parent, unless the parent may not be reported.
            if row.get().is_none() && self.reportable(parent).is_none() {
                break;
            }
            let (known, counters) = row.get_or_init(|| (parent, self.counters(|_, _| None)));
            if *known == parent {
                return counters;
            }
        }
        &self.without_parent
    }

    /// The node of a parent that this caller may report; `None` if the caller has the identity of another service.
    /// Only the service that processed the parent call may report calls made for it; otherwise the whole report would
    /// be refused.
    fn reportable(&self, parent: NodeId) -> Option<CallNode> {
        parent.node().filter(|node| self.caller.as_ref().is_none_or(|caller| *caller == node.service))
    }

    /// Creates counters for every class and destination, reusing those that `known` returns.
    fn counters(
        &self,
        known: impl Fn(Option<&Label>, Option<&Destination>) -> Option<Arc<CallCounters>>,
    ) -> Counters {
        self.rows().map(|(class, to)| known(class, to).unwrap_or_default()).collect()
    }

    fn paths_of<'a>(
        &'a self,
        counters: &'a Counters,
    ) -> impl Iterator<Item = (CallPath, &'a Arc<CallCounters>)> + use<'a> {
        self.rows().map(|(class, to)| self.path(class, to)).zip(counters)
    }

    /// Class and destination of each entry in [`Counters`].
    fn rows(&self) -> impl Iterator<Item = (Option<&Label>, Option<&Destination>)> {
        let classes = std::iter::once(None).chain(self.classes.iter().map(Some));
        classes.flat_map(|class| self.destinations.iter().map(Some).chain([None]).map(move |to| (class, to)))
    }

    #[inline]
    fn row(&self, class: Option<&Label>) -> usize {
        let class = class.and_then(|class| self.classes.iter().position(|known| known == class));
        class.map_or(0, |position| position + 1) * (self.destinations.len() + 1)
    }

    /// The counters of a path in this snapshot, otherwise of a former path. `parent` is given together with its
    /// counters.
    fn find(
        &self,
        (parent, counters): (Option<&CallNode>, &Counters),
        class: Option<&Label>,
        to: Option<&Destination>,
    ) -> Option<Arc<CallCounters>> {
        let current = self.find_current(counters, class, to);
        current.or_else(|| {
            if self.former.is_empty() {
                return None;
            }
            let path = CallPath { parent: parent.cloned(), ..self.path(class, to) };
            self.former.iter().find(|(known, _)| *known == path).map(|(_, counters)| Arc::clone(counters))
        })
    }

    fn find_current(
        &self,
        counters: &Counters,
        class: Option<&Label>,
        to: Option<&Destination>,
    ) -> Option<Arc<CallCounters>> {
        if class.is_some_and(|class| !self.classes.contains(class)) {
            return None;
        }
        let destination = match to {
            Some(to) => self.destinations.binary_search(to).ok()?,
            None => self.destinations.len(),
        };
        counters.get(self.row(class) + destination).cloned()
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
            parent: None,
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
            by_parent: true,
        };
        ReportedPaths::new(&to, endpoints.iter().map(|(index, location)| (*index, location)), before)
    }

    #[test]
    fn new_service_snapshots_keep_counters_of_each_class_and_region() {
        let [bulk, other] = ["bulk", "other"].map(|class| Label::new(class).unwrap());
        let of = |class| ReportedAs { class, parent: None };
        let [bulk, other] = [&bulk, &other].map(|class| of(Some(class)));
        let first = paths(&[(0, at("eu")), (4, at("us"))], &["bulk"], None);
        first.to_endpoint(bulk, 4).unwrap().record_attempt(true);
        assert!(Arc::ptr_eq(first.to_endpoint(other, 4).unwrap(), first.to_endpoint(of(None), 4).unwrap()));
        assert!(first.to_endpoint(of(None), 2).is_none(), "no endpoint");
        assert_eq!(first.iter().count(), 6);
        let second = paths(&[(0, at("eu")), (1, at("ap")), (4, at("us"))], &["bulk"], Some(&first));
        for class in [of(None), bulk] {
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
    fn call_path_that_returns_reuses_its_counters() {
        let parent = CallNode { service: ServiceName::new("flaps/web").unwrap(), class: None };
        let calls = [ReportedAs::default(), ReportedAs { class: None, parent: NodeId::of(&parent) }];
        let (both, one) = ([(0, at("eu")), (1, at("us"))], [(0, at("eu"))]);
        let mut current = paths(&both, &[], None);
        for flap in 1..=100 {
            calls.iter().for_each(|call| current.to_endpoint(*call, 1).unwrap().record_attempt(true));
            let sum: u64 = current.iter().map(|(_, counters)| counters.counts().calls()).sum();
            assert_eq!((sum, current.former.len()), (2 * flap, 0));
            for endpoints in [&one[..], &one, &both] {
                current = paths(endpoints, &[], Some(&current));
            }
        }
    }

    #[test]
    fn calls_of_zone_preferring_services_are_counted_by_zone() {
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
                by_parent: false,
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
    fn new_service_snapshots_keep_counters_of_each_parent() {
        let node = |number: usize| CallNode {
            service: ServiceName::new(format!("parents/s{number}")).unwrap(),
            class: None,
        };
        let parent = |number| ReportedAs { class: None, parent: NodeId::of(&node(number)) };
        let first = paths(&[(0, at("eu"))], &["bulk"], None);
        for number in 0..MAX_PARENTS + 3 {
            first.to_endpoint(parent(number), 0).unwrap().record_attempt(true);
        }
        let second = paths(&[(0, at("eu")), (1, at("us"))], &["bulk"], Some(&first));
        second.to_endpoint(parent(5), 1).unwrap().record_attempt(true);
        assert!(Arc::ptr_eq(
            first.to_endpoint(parent(0), 0).unwrap(),
            second.to_endpoint(parent(0), 0).unwrap()
        ));
        let listed: Vec<_> = second.iter().filter(|(path, _)| path.parent.is_some()).collect();
        assert_eq!(listed.len(), MAX_PARENTS + 1, "paths without calls are not listed");
        let of_five = listed.iter().filter(|(path, _)| path.parent == Some(node(5)));
        assert_eq!(of_five.count(), 2);
        let mut meter = crate::CallMeter::default();
        meter.read([], 0);
        let unknown = second.iter().filter(|(path, _)| path.parent.is_none());
        let rates = meter.read(unknown, 1_000).unwrap();
        assert_eq!(
            rates.values().map(|rates| rates.offered).sum::<u64>(),
            3_000,
            "of those beyond the bound"
        );

        // A caller with a service identity reports no other service as a parent.
        let to = Destinations {
            service: &ServiceName::new("shop/cart").unwrap(),
            from: &region("eu"),
            caller: Some(&node(1).service),
            zone: None,
            classes: &[],
            by_parent: false,
        };
        let of_one = ReportedPaths::new(&to, [(0, &at("eu"))].into_iter(), None);
        of_one.to_endpoint(parent(1), 0).unwrap().record_attempt(true);
        assert!(of_one.iter().all(|(path, _)| path.parent.is_none()), "parents are not followed yet");
        of_one.follow_parents();
        (0..3).for_each(|number| of_one.to_endpoint(parent(number), 0).unwrap().record_attempt(true));
        let parents: Vec<_> = of_one.iter().filter_map(|(path, _)| path.parent).collect();
        assert_eq!(parents, [node(1)]);
    }

    #[test]
    fn parent_without_calls_frees_its_counter_slot_in_next_snapshot() {
        let node = |number: usize| CallNode {
            service: ServiceName::new(format!("slots/s{number}")).unwrap(),
            class: None,
        };
        let parent = |number| ReportedAs { class: None, parent: NodeId::of(&node(number)) };
        let first = paths(&[(0, at("eu"))], &[], None);
        (0..MAX_PARENTS).for_each(|number| drop(first.to_endpoint(parent(number), 0).cloned()));
        first.to_endpoint(parent(3), 0).unwrap().record_attempt(true);
        let second = paths(&[(0, at("eu"))], &[], Some(&first));
        second.to_endpoint(parent(MAX_PARENTS), 0).unwrap().record_attempt(true);
        let parents: BTreeSet<_> = second.iter().filter_map(|(path, _)| path.parent).collect();
        assert_eq!(parents, [node(3), node(MAX_PARENTS)].into());
    }

    #[test]
    fn regions_of_counted_call_paths_are_bounded() {
        let many: Vec<_> = (0..100).map(|i| (i, at(&format!("r{i:03}")))).collect();
        let paths = paths(&many, &[], None);
        assert_eq!(paths.iter().count(), MAX_TABLE_REGIONS + 1);
        let call = ReportedAs::default();
        assert!(paths.to_endpoint(call, 99).is_none() && paths.to_endpoint(call, 63).is_some());
    }
}
