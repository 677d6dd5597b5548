//! Queues events for the worker, which may be waiting for expressions to compile.
//!
//! Events coalesce as those of a watcher in `rib` do: for records, the last value of each key is queued; for everything
//! else, the last event of each kind and name. A queue of all events was rejected: it grows while the worker waits, and
//! delivers outdated values.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::Prefix;
use fairmesh_rib::{CoalescedUpdates, Update};
use tokio::sync::Notify;

use super::{data_age::AgeChange, shard_maps::MapEvent, worker_event::Event};
use crate::discovery::subscription::Subscription;

/// Queue of events for the resolver's worker.
pub(super) struct EventQueue<T> {
    waiting: Mutex<WaitingEvents<T>>,
    arrived: Notify,
}

struct WaitingEvents<T> {
    ages: Vec<AgeChange>,
    updates: CoalescedUpdates,
    refused: BTreeMap<Prefix, String>,
    maps: VecDeque<MapEvent>,
    tracked: Vec<Arc<Subscription<T>>>,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new() }
    }
}

impl<T> Default for WaitingEvents<T> {
    fn default() -> Self {
        Self {
            ages: Vec::new(),
            updates: CoalescedUpdates::default(),
            refused: BTreeMap::new(),
            maps: VecDeque::new(),
            tracked: Vec::new(),
        }
    }
}

impl<T> EventQueue<T> {
    /// Adds an event and wakes the worker.
    pub(super) fn push(&self, event: Event<T>) {
        self.waiting().push(event);
        self.arrived.notify_one();
    }

    /// Waits for events and takes all of them.
    pub(super) async fn next(&self) -> Vec<Event<T>> {
        loop {
            let events = self.take();
            if !events.is_empty() {
                return events;
            }
            self.arrived.notified().await;
        }
    }

    /// Takes the queued events.
    pub(super) fn take(&self) -> Vec<Event<T>> {
        std::mem::take(&mut *self.waiting()).into_events()
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingEvents<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> WaitingEvents<T> {
    fn push(&mut self, event: Event<T>) {
        match event {
            Event::Age(change) => change.coalesce(&mut self.ages),
            Event::Update(update) => self.push_update(update),
            Event::Refused(prefix, reason) => drop(self.refused.insert(prefix, reason)),
            Event::Map(event) => {
                self.maps.retain(|earlier| !event.replaces(earlier));
                self.maps.push_back(event);
            }
            Event::Track(subscription) => self.tracked.push(subscription),
        }
    }

    fn push_update(&mut self, update: Update) {
        // A prefix that arrives is no longer refused.
        let snapshots = update.snapshots.iter().map(|snapshot| &snapshot.prefix);
        for arrived in snapshots.chain(update.resumed.iter().map(|resumed| &resumed.prefix)) {
            self.refused.remove(arrived);
        }
        // Ages are queued separately: the age of a queued snapshot says nothing about a later report.
        let ages = update.snapshots.iter().map(|snapshot| snapshot.age);
        if let Some(age) = ages.chain(update.resumed.iter().map(|resumed| resumed.age)).max() {
            AgeChange::Arrived(age).coalesce(&mut self.ages);
        }
        self.updates.add(update);
    }

    /// Returns events that together have the effect of all queued events. Newly tracked services come last: no queued
    /// event concerns them, since the worker has not subscribed to their prefixes yet.
    fn into_events(mut self) -> Vec<Event<T>> {
        let mut events: Vec<_> = self.ages.into_iter().map(Event::Age).collect();
        events.extend(self.updates.take().map(Event::Update));
        events.extend(self.refused.into_iter().map(|(prefix, reason)| Event::Refused(prefix, reason)));
        events.extend(self.maps.into_iter().map(Event::Map));
        events.extend(self.tracked.into_iter().map(Event::Track));
        events
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{KeyRange, Revision, ServiceName, Shard, ShardId, ShardKey, ShardMap, StoreId};
    use fairmesh_rib::{Entry, Resumed};
    use fairmesh_router::ShardTable;

    use super::*;
    use crate::discovery::resolver::shard_maps::MapName;

    /// A queue for services without transports.
    type Queue = EventQueue<()>;

    fn update(number: u64) -> Update {
        Update::empty(Revision { store: StoreId(1), partition: Default::default(), number })
    }

    fn resumed(number: u64, prefix: &Prefix) -> Event<()> {
        arrived(number, prefix, 0)
    }

    /// Returns the event for a prefix whose copy is `seconds` old.
    fn arrived(number: u64, prefix: &Prefix, seconds: u64) -> Event<()> {
        let resumed = vec![Resumed { prefix: prefix.clone(), age: Duration::from_secs(seconds) }];
        Event::Update(Update { resumed, ..update(number) })
    }

    fn shown(events: &[Event<()>]) -> Vec<String> {
        let shown = |event: &Event<()>| match event {
            Event::Track(subscription) => format!("track {}", subscription.name()),
            Event::Update(update) => format!("update {}", update.revision.number),
            Event::Refused(prefix, reason) => format!("refused {prefix}: {reason}"),
            Event::Age(AgeChange::Arrived(age)) => format!("arrived {age:?}"),
            Event::Age(AgeChange::Reported(age)) => format!("age {age:?}"),
            Event::Age(AgeChange::Disconnected) => "disconnected".to_owned(),
            Event::Map(MapEvent::Map(name, table)) => format!("map {} {}", name.service, table.version()),
            Event::Map(MapEvent::Failed(name, version, _)) => format!("failed {} {version}", name.service),
            Event::Map(MapEvent::Unavailable) => "no maps".to_owned(),
        };
        events.iter().map(shown).collect()
    }

    #[tokio::test]
    async fn record_updates_arriving_while_resolver_waits_are_merged() {
        let queue = Queue::default();
        for number in 1..=1_000 {
            let key: Arc<str> = format!("/t/shop/services/s{}", number % 7).into();
            let entry = Entry { value: Default::default(), revision: number };
            queue.push(Event::Update(Update { puts: vec![(key, entry)], ..update(number) }));
            queue.push(Event::Age(AgeChange::Disconnected));
            queue.push(Event::Age(AgeChange::Reported(Duration::from_secs(number))));
        }
        let events = queue.next().await;
        assert_eq!(shown(&events), ["age 1000s", "update 1000"]);
        let Event::Update(update) = &events[1] else { unreachable!() };
        assert_eq!(update.puts.len(), 7);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn data_age_event_keeps_its_order_when_later_updates_are_merged() {
        let (queue, prefix) = (Queue::default(), Prefix::topology());
        queue.push(arrived(1, &prefix, 10));
        queue.push(Event::Age(AgeChange::Reported(Duration::ZERO)));
        queue.push(Event::Update(update(2)));
        assert_eq!(shown(&queue.take()), ["age 0ns", "update 2"]);
        queue.push(arrived(3, &prefix, 60));
        queue.push(Event::Age(AgeChange::Disconnected));
        queue.push(arrived(4, &prefix, 0));
        assert_eq!(shown(&queue.take()), ["disconnected", "arrived 0ns", "update 4"]);
    }

    #[test]
    fn prefix_refusal_stays_queued_until_data_of_its_prefix_arrives() {
        let queue = Queue::default();
        let [arrives, stays] =
            ["/t/shop/services/a", "/t/shop/services/b"].map(|text| Prefix::new(text).unwrap());
        for prefix in [&arrives, &stays, &stays] {
            queue.push(Event::Refused(prefix.clone(), "away".into()));
        }
        queue.push(resumed(1, &arrives));
        assert_eq!(shown(&queue.take()), ["arrived 0ns", "update 1", "refused /t/shop/services/b: away"]);
        queue.push(resumed(2, &arrives));
        queue.push(Event::Refused(arrives, "gone".into()));
        assert_eq!(shown(&queue.take()), ["arrived 0ns", "update 2", "refused /t/shop/services/a: gone"]);
    }

    #[test]
    fn queued_shard_map_is_replaced_by_newer_one_of_its_service() {
        let queue = Queue::default();
        let name = |service: &str| MapName { service: ServiceName::new(service).unwrap(), region: None };
        let shard = Shard { id: ShardId(1), start: ShardKey(0), replicas: vec![] };
        let map = |service: &str, version| {
            let map = ShardMap { version, interval: KeyRange::ALL, shards: vec![shard.clone()] };
            Event::Map(MapEvent::Map(name(service), Arc::new(ShardTable::compile(&map))))
        };
        let failed = |version| Event::Map(MapEvent::Failed(name("shop/a"), version, String::new()));
        queue.push(map("shop/b", 1));
        for version in 1..100 {
            queue.push(map("shop/a", version));
            queue.push(Event::Map(MapEvent::Unavailable));
        }
        queue.push(failed(100));
        queue.push(failed(101));
        assert_eq!(shown(&queue.take()), ["map shop/b 1", "map shop/a 99", "no maps", "failed shop/a 101"]);
        queue.push(failed(102));
        queue.push(failed(0));
        assert_eq!(shown(&queue.take()), ["failed shop/a 102", "failed shop/a 0"]);
        queue.push(failed(102));
        queue.push(map("shop/a", 103));
        assert_eq!(shown(&queue.take()), ["map shop/a 103"]);
    }
}
