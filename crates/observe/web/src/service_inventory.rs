//! Lists services with the states of their endpoints, and regions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::{RecordKind, Region, ServiceName, Zone};
use fairmesh_views::{ServiceView, StoredRecord, View, states};
use serde_json::json;
use tokio::time::Instant;

use crate::event_delta::{Shown, text};

/// Kinds of records that the list of services is made from.
pub(crate) const KINDS: &[RecordKind] =
    &[RecordKind::Service, RecordKind::Policy, RecordKind::Endpoint, RecordKind::Health];

/// Time for which the services of a scope stay cached after a page last showed them.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Cache of services by scope. Only services whose records have changed are decoded again.
#[derive(Debug, Default)]
pub(crate) struct Inventories(Mutex<HashMap<String, Inventory>>);

/// Identifies a version of a set of records by their number and newest revision. A write changes the revision, a
/// deletion changes the number.
type Mark = (usize, u64);

/// The services of one scope.
#[derive(Debug)]
struct Inventory {
    used: Instant,
    /// Version of the records that concern all services.
    mark: Mark,
    /// Regions that are declared or have measured round trips.
    regions: BTreeSet<Region>,
    services: BTreeMap<ServiceName, Listed>,
}

#[derive(Debug)]
struct Listed {
    mark: Mark,
    row: Arc<str>,
    /// Regions and zones of the service's endpoints.
    places: BTreeSet<(Region, Option<Zone>)>,
}

impl Inventories {
    /// Lists the services of `stored`, which must be the records of `scope`.
    pub(crate) fn list(&self, scope: &str, stored: Vec<StoredRecord>) -> Shown {
        let mut inventories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inventories.retain(|_, inventory| inventory.used.elapsed() < REMEMBERED);
        let inventory = inventories.entry(scope.to_owned()).or_insert_with(Inventory::new);
        inventory.update(stored);
        inventory.shown()
    }
}

impl Inventory {
    fn new() -> Self {
        let (regions, services) = Default::default();
        Self { used: Instant::now(), mark: (0, 0), regions, services }
    }

    fn update(&mut self, stored: Vec<StoredRecord>) {
        self.used = Instant::now();
        let mut common = Vec::new();
        let mut by_service = BTreeMap::<ServiceName, Vec<StoredRecord>>::new();
        for one in stored {
            match one.key.service() {
                Some(name) => by_service.entry(name.clone()).or_default().push(one),
                None => common.push(one),
            }
        }
        if self.mark != mark(&common) {
            self.mark = mark(&common);
            self.services.clear();
        }
        self.services.retain(|name, _| by_service.contains_key(name));
        let is_changed = |(name, records): &(ServiceName, Vec<StoredRecord>)| {
            self.services.get(name).is_none_or(|listed| listed.mark != mark(records))
        };
        let changed: Vec<_> = by_service.into_iter().filter(is_changed).collect();
        if changed.is_empty() && !self.services.is_empty() {
            return;
        }
        let marks: Vec<_> = changed.iter().map(|(name, records)| (name.clone(), mark(records))).collect();
        let changed = changed.into_iter().flat_map(|(_, records)| records);
        let view = View::of_readable(common.into_iter().chain(changed).collect());
        self.regions = view.regions.value.regions.keys().cloned().collect();
        self.regions.extend(view.round_trips.measured_regions().cloned());
        let empty = ServiceView::default();
        for (name, mark) in marks {
            // For a service with records that this release cannot read, only the name is known.
            let listed = Listed::of(view.services.get(&name).unwrap_or(&empty), &view, mark);
            self.services.insert(name, listed);
        }
    }

    fn shown(&self) -> Shown {
        let places = || self.services.values().flat_map(|one| &one.places);
        let used = places().map(|(region, _)| region);
        let regions: BTreeSet<_> = self.regions.iter().chain(used).map(ToString::to_string).collect();
        let zones: BTreeSet<_> =
            places().filter_map(|(_, zone)| zone.as_ref()).map(ToString::to_string).collect();
        let rows = self.services.iter().map(|(name, one)| (name.to_string(), Arc::clone(&one.row)));
        Shown::with_rows(&json!({ "regions": regions, "zones": zones }), rows)
    }
}

impl Listed {
    fn of(one: &ServiceView, view: &View, mark: Mark) -> Self {
        let declared = one.service.as_ref().map(|at| &at.value);
        let mut endpoints = BTreeMap::<_, usize>::new();
        for state in states(one, view) {
            *endpoints.entry(state.state).or_default() += 1;
        }
        let row = json!({
            "kind": declared.map(|service| service.kind),
            "protocol": declared.map(|service| service.protocol),
            "endpoints": endpoints,
        });
        let places = one.endpoints.iter().map(|at| &at.value.location);
        let places = places.map(|at| (at.region.clone(), at.zone.clone())).collect();
        Self { mark, row: text(&row).into(), places }
    }
}

fn mark(records: &[StoredRecord]) -> Mark {
    (records.len(), records.iter().map(|one| one.revision).max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Protocol, Record, RecordKey, Service, ServiceKind};
    use fairmesh_wire::record_encoding;
    use serde_json::Value;

    use super::*;

    fn service(name: &str, protocol: Protocol, revision: u64) -> StoredRecord {
        let (kind, virtual_address, identity) = (ServiceKind::Replicated, None, None);
        let record = Record::Service(Service { kind, protocol, virtual_address, identity });
        let key = RecordKey::Service(ServiceName::new(name).unwrap());
        StoredRecord { key, value: record_encoding::encode(&record), revision }
    }

    fn rows(shown: &Shown) -> Value {
        serde_json::from_str::<Value>(&shown.since(None).unwrap()).unwrap()["rows"].clone()
    }

    #[tokio::test]
    async fn only_changed_services_are_decoded_again() {
        let (all, cart) = (Inventories::default(), ServiceName::new("shop/cart").unwrap());
        let list = |cart, web| {
            let stored = [cart, web].into_iter().flatten().collect();
            all.list("", stored)
        };
        let first = list(
            Some(service("shop/cart", Protocol::Http1, 1)),
            Some(service("shop/web", Protocol::Http1, 2)),
        );
        let kept = |all: &Inventories| Arc::clone(&all.0.lock().unwrap()[""].services[&cart].row);
        let before = kept(&all);
        let second = list(
            Some(service("shop/cart", Protocol::Http1, 1)),
            Some(service("shop/web", Protocol::Grpc, 3)),
        );
        assert!(Arc::ptr_eq(&before, &kept(&all)), "its records are as they were");
        assert_ne!(rows(&first)["shop/web"], rows(&second)["shop/web"]);
        let third = list(None, Some(service("shop/web", Protocol::Grpc, 3)));
        assert_eq!(rows(&third).as_object().unwrap().len(), 1, "a deleted one is gone");
    }

    #[tokio::test]
    async fn unreadable_record_hides_no_other_service() {
        let mut newer = service("shop/new", Protocol::Http1, 2);
        newer.value = (&b"\xff\xff\xff"[..]).into();
        let shown = Inventories::default().list("", vec![service("shop/cart", Protocol::Http1, 1), newer]);
        assert_eq!(rows(&shown)["shop/cart"]["kind"], "replicated");
        assert_eq!(rows(&shown)["shop/new"]["kind"], Value::Null);
    }
}
