use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::SystemTime,
};

use fairmesh_model::{
    Endpoint, InstanceId, KeyRange, Location, Policy, Protocol, Region, Service, ServiceKind, Shard, ShardId,
    ShardKey, ShardMap, ShardPart, StoreId,
};
use fairmesh_rib::{
    Entry,
    cache::SavedCopy,
    follower::{Backoff, Follower, FollowerConfig},
};
use fairmesh_router::{EndpointRef, ShardTable};
use fairmesh_wire::{shards::encode_map, transport::Address, v1};
use prost::Message;
use tempfile::TempDir;
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::core::{
    Subscription, View,
    resolver::{
        EventSink, UNUSED,
        maps::{LARGE, MapName},
    },
};

/// Counts how often it was looked at, with all others.
#[derive(Clone, Debug)]
struct Counting(Arc<AtomicUsize>);

impl Lane for Counting {
    type Shared = Arc<AtomicUsize>;

    fn open(tidied: &Self::Shared, _: EndpointRef) -> Self {
        Self(Arc::clone(tidied))
    }

    fn retire(&self) {}

    fn tidy(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct Rig {
    worker: Worker<Counting>,
    events: mpsc::UnboundedSender<Event<Counting>>,
    received: mpsc::UnboundedReceiver<Event<Counting>>,
    folder: TempDir,
}

/// A worker whose agent nobody has started, and that was told where it is.
fn rig() -> Rig {
    rig_at(Some(here()))
}

fn rig_at(location: Option<Location>) -> Rig {
    let folder = TempDir::new().unwrap();
    let (events, received) = mpsc::unbounded_channel();
    let upstream = FollowerConfig {
        addresses: vec![Address::Unix(folder.path().join("nobody"))],
        software: "test".into(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let around = Surroundings {
        regions: Regions::default(),
        round_trips: RoundTrips::default(),
        hosts: Hosts::default(),
        location: location.clone(),
        client_id: String::new(),
        client: 1,
    };
    let registered = Arc::new(Registered {
        by_name: Default::default(),
        limited: Default::default(),
        events: events.clone(),
        informed: watch::Sender::default(),
    });
    let handle = Follower::spawn(upstream.clone(), EventSink(events.clone()));
    let config = ResolverConfig {
        upstream,
        client_id: "test".into(),
        location: location.clone(),
        otherwise: Some(Location::in_region(Region::new("us").unwrap())),
        cache_dir: Some(folder.path().join("cache")),
        unused: UNUSED,
    };
    let worker = Worker::new(config, handle, registered, around, (watch::Sender::default(), None));
    Rig { worker, events, received, folder }
}

fn here() -> Location {
    Location::in_region(Region::new("eu").unwrap())
}

fn name() -> ServiceName {
    ServiceName::new("shop/one").unwrap()
}

fn revision() -> Revision {
    Revision { store: StoreId(7), partition: Default::default(), number: 1 }
}

fn endpoint(instance: &str) -> Endpoint {
    fairmesh_test_support::endpoint(instance, "eu")
}

fn entry(key: &RecordKey, record: impl Into<Record>) -> (Arc<str>, Entry) {
    (key.to_string().into(), Entry { value: records::encode(&record.into()), revision: 1 })
}

fn update(snapshots: impl IntoIterator<Item = (Prefix, Vec<(Arc<str>, Entry)>)>) -> Update {
    let snapshot = |(prefix, entries)| Snapshot { prefix, entries, age: Duration::ZERO };
    let snapshots = snapshots.into_iter().map(snapshot).collect();
    Update { revision: revision(), resumed: vec![], snapshots, puts: vec![], deletes: vec![] }
}

/// What comes of work that waits for nothing but its turn.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let (mut work, mut context) = (pin!(work), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
    }
}

impl Rig {
    fn tell(&mut self, event: Event<Counting>) {
        self.worker.take(event);
        at_once(self.worker.settle());
    }

    /// Begins to use the service.
    fn follow(&mut self) -> Arc<Subscription<Counting>> {
        let subscription = self.worker.registered.get(&name());
        while let Ok(event) = self.received.try_recv() {
            self.tell(event);
        }
        subscription
    }

    /// Learns of the service and its one endpoint.
    fn learn(&mut self) {
        let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
        let declared =
            Service { kind: ServiceKind::Replicated, protocol: Protocol::Http2, virtual_address: None };
        let endpoint = endpoint("a");
        self.tell(Event::Update(update([
            (Prefix::topology(), vec![]),
            (Prefix::from(&service), vec![entry(&service, declared)]),
            (Prefix::from(&policy), vec![]),
        ])));
        let key = RecordKey::Endpoint(name(), here().region, endpoint.instance.clone());
        let endpoints = (Prefix::endpoints(&name(), None), vec![entry(&key, endpoint)]);
        self.tell(Event::Update(update([endpoints])));
    }

    async fn pass(&mut self, looks: u32) {
        for _ in 0..looks {
            advance(TIDY).await;
            self.worker.look_after().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_looked_at_however_much_changes() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.learn();
    let tidied = Arc::new(AtomicUsize::new(0));
    let view = subscription.view();
    let View::Ready(ready) = &*view else { panic!("{view:?}") };
    let index = ready.upstream.candidates().next().unwrap().index;
    let _lane = ready.lane(index, &tidied);
    let Rig { worker, events, received, folder: _folder } = rig;
    let stop = CancellationToken::new();
    tokio::spawn(worker.run(received, stop.clone()));
    let busy = async {
        while tidied.load(Relaxed) < 3 {
            events.send(Event::Update(update([]))).unwrap();
            sleep(Duration::from_secs(1)).await;
        }
    };
    assert!(timeout(Duration::from_secs(120), busy).await.is_ok(), "{tidied:?}");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_copy_on_disk_never_replaces_what_the_agent_said() {
    let mut rig = rig();
    let regions = |name| {
        let only = Region::new(name).unwrap();
        Regions { regions: BTreeMap::from([(only, Default::default())]) }
    };
    let of = |regions| vec![entry(&RecordKey::Regions, Record::Regions(regions))];
    let saved = of(regions("copy"));
    let cache = Cache::open(rig.folder.path().join("cache")).unwrap();
    let prefix = Prefix::topology();
    cache
        .save(&SavedCopy { prefix, revision: revision(), at: SystemTime::UNIX_EPOCH, entries: saved })
        .unwrap();
    at_once(rig.worker.read_disk());
    assert_eq!(rig.worker.around.regions, regions("copy"), "better than nothing");
    let live = of(regions("live"));
    rig.tell(Event::Update(update([(Prefix::topology(), live)])));
    at_once(rig.worker.read_disk());
    assert_eq!(rig.worker.around.regions, regions("live"));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_snapshot_that_cannot_be_read_leaves_the_one_before_in_use() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.learn();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let mut strict = Policy::default();
    strict.locality.local_only = true;
    let regions = Regions { regions: BTreeMap::from([(here().region, Default::default())]) };
    let endpoints = Prefix::endpoints(&name(), Some(&here().region));
    let instance = |name: &str| InstanceId::new(name).unwrap();
    let key = |name: &str| RecordKey::Endpoint(self::name(), here().region, instance(name));
    rig.tell(Event::Update(update([
        (Prefix::topology(), vec![entry(&RecordKey::Regions, Record::Regions(regions.clone()))]),
        (Prefix::from(&policy), vec![entry(&policy, strict.clone())]),
    ])));
    rig.tell(Event::Update(update([(
        endpoints.clone(),
        vec![entry(&key("a"), endpoint("a")), entry(&key("b"), endpoint("b"))],
    )])));

    let torn = |key: &RecordKey| {
        (Arc::from(key.to_string()), Entry { value: Bytes::from_static(b"\xff"), revision: 2 })
    };
    rig.tell(Event::Update(update([
        (Prefix::topology(), vec![torn(&RecordKey::Regions)]),
        (Prefix::from(&service), vec![torn(&service)]),
        (Prefix::from(&policy), vec![torn(&policy)]),
        (endpoints, vec![torn(&key("a"))]),
    ])));
    assert_eq!(rig.worker.around.regions, regions);
    let facts = &rig.worker.tracked[&name()].facts;
    assert_eq!(facts.policy(), strict, "and not the usual one");
    let left: Vec<_> = facts.endpoints.list().iter().map(|endpoint| endpoint.instance.clone()).collect();
    assert_eq!(left, [instance("a")], "what the snapshot does not hold is gone");
    assert!(matches!(*subscription.view(), View::Ready(_)));
    // One that holds none is another matter.
    rig.tell(Event::Update(update([(Prefix::topology(), vec![]), (Prefix::from(&policy), vec![])])));
    let facts = &rig.worker.tracked[&name()].facts;
    assert_eq!((&facts.policy(), &rig.worker.around.regions), (&Policy::default(), &Regions::default()));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_nobody_uses_any_more_is_given_up() {
    let mut rig = rig();
    let used = rig.follow();
    rig.learn();
    rig.pass(40).await;
    assert!(rig.worker.tracked.contains_key(&name()), "a handle is held");
    drop(used);
    for _ in 0..40 {
        drop(rig.follow());
        rig.pass(1).await;
    }
    assert!(rig.worker.tracked.contains_key(&name()), "a handle is made for every call");
    rig.pass(19).await;
    let again = rig.follow();
    assert!(matches!(*again.view(), View::Ready(_)), "what is known is kept for a while");
    rig.pass(1).await;
    drop(again);
    rig.pass(20).await;
    assert!(rig.worker.tracked.contains_key(&name()), "it counts from the last use");
    rig.pass(1).await;
    assert!(rig.worker.tracked.is_empty() && rig.worker.owners.is_empty());
    let anew = rig.follow();
    rig.learn();
    assert!(matches!(*anew.view(), View::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn a_service_is_kept_while_what_is_known_of_it_ages_and_given_up_where_nothing_is() {
    let mut rig = rig();
    drop(rig.follow());
    rig.learn();
    rig.tell(Event::Disconnected);
    rig.pass(100).await;
    assert!(matches!(*rig.follow().view(), View::Ready(_)), "nobody else may have it");
    rig.tell(Event::Contact(Duration::ZERO));
    rig.pass(20).await;
    assert!(rig.worker.tracked.contains_key(&name()), "it counts from when the agent is back");
    rig.pass(2).await;
    assert!(rig.worker.tracked.is_empty());

    drop(rig.follow());
    rig.tell(Event::Disconnected);
    rig.pass(22).await;
    assert!(rig.worker.tracked.is_empty(), "there is nothing to keep");
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_a_program_is_where_the_agent_was_or_else_where_the_environment_says() {
    let cache = |rig: &Rig| Cache::open(rig.folder.path().join("cache")).unwrap();
    let mut rig = rig_at(None);
    cache(&rig).save_location(&here()).unwrap();
    at_once(rig.worker.read_disk());
    assert_eq!(rig.worker.around.location, Some(here()));

    let mut rig = rig_at(None);
    at_once(rig.worker.read_disk());
    assert_eq!(rig.worker.around.location, rig.worker.config.otherwise, "the agent left no word");

    let told = Location::in_region(Region::new("ap").unwrap());
    let mut rig = rig_at(Some(told.clone()));
    cache(&rig).save_location(&here()).unwrap();
    at_once(rig.worker.read_disk());
    assert_eq!(rig.worker.around.location, Some(told));
}

#[tokio::test(start_paused = true)]
async fn a_first_call_asks_once_for_all_that_most_services_need() {
    let mut rig = rig();
    let subscription = rig.follow();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let (declared, ruled) = (Prefix::from(&service), Prefix::from(&policy));
    let (all, ours) = (Prefix::endpoints(&name(), None), Prefix::endpoints(&name(), Some(&here().region)));
    let asked = |rig: &Rig| rig.worker.owners.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(asked(&rig), BTreeSet::from([declared.clone(), ruled.clone(), all.clone()]));
    let kind = ServiceKind::Replicated;
    let plain = Service { kind, protocol: Protocol::Http2, virtual_address: None };
    let mut strict = Policy::default();
    strict.locality.local_only = true;
    rig.tell(Event::Update(update([
        (Prefix::topology(), vec![]),
        (declared.clone(), vec![entry(&service, plain)]),
        (ruled.clone(), vec![entry(&policy, strict)]),
        (all, vec![]),
    ])));
    assert_eq!(asked(&rig), BTreeSet::from([declared.clone(), ruled.clone(), ours]), "its region is enough");
    rig.tell(Event::Update(update([(declared.clone(), vec![]), (ruled.clone(), vec![])])));
    assert!(matches!(*subscription.view(), View::Unknown));
    assert_eq!(asked(&rig), BTreeSet::from([declared, ruled]), "what is no service has no endpoints");
}

#[tokio::test(start_paused = true)]
async fn names_of_no_service_take_a_bounded_place() {
    let mut rig = rig();
    rig.tell(Event::Update(update([(Prefix::topology(), vec![])])));
    let real = rig.follow();
    rig.learn();
    let made_up = |number: usize| ServiceName::new(format!("shop/made-up-{number}")).unwrap();
    let held = rig.worker.registered.get(&made_up(0));
    for number in 0..MAX_UNKNOWN + 100 {
        drop(rig.worker.registered.get(&made_up(number)));
        rig.follow();
        let declared = Prefix::from(&RecordKey::Service(made_up(number)));
        rig.tell(Event::Update(update([(declared, vec![])])));
    }
    assert_eq!(rig.worker.tracked.len(), MAX_UNKNOWN + 1);
    assert!(rig.worker.owners.len() <= 3 + 2 * MAX_UNKNOWN, "{}", rig.worker.owners.len());
    assert!(rig.worker.tracked.contains_key(held.name()), "a handle is held");
    assert!(matches!(*real.view(), View::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_still_wanted_is_asked_for_again() {
    let mut rig = rig();
    let _subscription = rig.follow();
    rig.learn();
    let refusal = |prefix| Event::Refused(prefix, "no control plane answers it".into());
    let endpoints = Prefix::endpoints(&name(), None);
    rig.tell(refusal(Prefix::topology()));
    rig.tell(refusal(endpoints.clone()));
    rig.tell(refusal(Prefix::endpoints(&name(), Some(&here().region))));
    assert!(rig.worker.refused.keys().eq([&Prefix::topology(), &endpoints]), "{:?}", rig.worker.refused);
    let policy = RecordKey::Policy(name());
    let mut strict = Policy::default();
    strict.locality.local_only = true;
    rig.tell(Event::Update(update([(Prefix::from(&policy), vec![entry(&policy, strict)])])));
    assert!(rig.worker.refused.keys().eq([&Prefix::topology()]), "{:?}", rig.worker.refused);
}

/// A shard map, and what tells its version and that it is large.
fn large(version: u64) -> (Arc<ShardTable>, (Arc<str>, Entry)) {
    let shard = Shard { id: ShardId(1), start: ShardKey(0), replicas: vec![] };
    let map = ShardMap { version, interval: KeyRange::ALL, shards: vec![shard] };
    let key = RecordKey::ShardManifest(name(), ShardPart::Ranges);
    let manifest = v1::ShardManifest::decode(encode_map(&name(), &map).remove(&key).unwrap()).unwrap();
    let value = v1::ShardManifest { shards: LARGE, ..manifest }.encode_to_vec().into();
    (Arc::new(ShardTable::compile(&map)), (key.to_string().into(), Entry { value, revision: version }))
}

impl Rig {
    /// Another version of the large map is told, at a revision ten times its number.
    fn version(&mut self, version: u64) {
        let revision = Revision { number: 10 * version, ..revision() };
        self.tell(Event::Update(Update { puts: vec![large(version).1], ..Update::empty(revision) }));
    }

    fn hand_over(&mut self, version: u64) {
        let name = MapName { service: name(), region: None };
        self.tell(Event::Map(Heard::Map(name, large(version).0)));
    }

    fn applied(&self) -> Option<u64> {
        self.worker.applied().map(|at| at.number)
    }
}

#[tokio::test(start_paused = true)]
async fn versions_that_come_faster_than_tables_hold_nothing_back_but_themselves() {
    let mut rig = rig();
    let (maps, _asked) = mpsc::unbounded_channel();
    rig.worker.maps = Some(maps);
    let _subscription = rig.follow();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let declared = Service { kind: ServiceKind::Sharded, protocol: Protocol::Http2, virtual_address: None };
    rig.tell(Event::Update(update([
        (Prefix::topology(), vec![]),
        (Prefix::from(&service), vec![entry(&service, declared)]),
        (Prefix::from(&policy), vec![]),
        (Prefix::endpoints(&name(), None), vec![]),
    ])));
    rig.version(1);
    rig.hand_over(1);
    assert_eq!(rig.applied(), Some(10));
    // The table is always one version behind, and sometimes several.
    for version in 2..10 {
        rig.version(version);
        assert_eq!(rig.applied(), Some(10 * (version - 1)), "all but the last version is in use");
        rig.version(version + 1);
        assert_eq!(rig.applied(), Some(10 * (version - 1)), "two are not in use");
        rig.hand_over(version);
        assert_eq!(rig.applied(), Some(10 * version));
    }
    // However many are under way, too much is never said.
    (11..200).for_each(|version| rig.version(version));
    assert_eq!(rig.applied(), Some(90));
    rig.hand_over(100);
    assert!(rig.applied().is_some_and(|at| (90..=1000).contains(&at)), "{:?}", rig.applied());
    rig.version(200);
    rig.hand_over(199);
    assert_eq!(rig.applied(), Some(1990));
    rig.hand_over(200);
    assert_eq!(rig.applied(), Some(2000));
}
