mod looks;
mod policy_defaults;
mod region_tables;
mod shard_maps;
mod unreadable_records;
mod unused_services;

use std::{
    borrow::Cow,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::SystemTime,
};

use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, Hosts, InstanceId, KeyRange, Label, Location, Match, PathMatch,
    Pattern, Policy, Protocol, Region, Regions, RoundTrips, Route, Service, ServiceKind, Shard, ShardId,
    ShardKey, ShardMap, ShardPart, StoreId, TrustBundle, TrustDomain,
};
use fairmesh_rib::{
    Entry, Snapshot,
    disk_cache::{Cache, SavedCopy},
    follower::{Backoff, Follower, FollowerConfig},
};
use fairmesh_router::{EndpointRef, ShardTable};
use fairmesh_wire::{shard_encoding::encode_map, transport::Address, v1};
use prost::Message;
use tempfile::TempDir;
use tokio::time::{advance, sleep, timeout};

use super::*;
use crate::{
    call::Clock,
    discovery::{
        Subscription,
        resolver::{
            config::DEFAULT_IDLE_TIMEOUT,
            data_age::AgeChange,
            shard_maps::{LARGE, MapName},
            worker_event::EventSink,
        },
        service_state::ServiceState,
    },
};

/// A transport that counts idle checks; all transports share the counter.
#[derive(Clone, Debug)]
struct CountingTransport(Arc<AtomicUsize>);

impl EndpointTransport for CountingTransport {
    type Context = Arc<AtomicUsize>;

    fn open(checks: &Self::Context, _: EndpointRef) -> Self {
        Self(Arc::clone(checks))
    }

    fn retire(&self) {}

    fn close_idle(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn close_ended(&self) {}
}

struct Rig {
    worker: Worker<CountingTransport>,
    events: Arc<EventQueue<CountingTransport>>,
    folder: TempDir,
}

/// Returns a worker with a configured location whose agent is not running.
fn rig() -> Rig {
    rig_at(Some(here()))
}

fn rig_at(location: Option<Location>) -> Rig {
    let folder = TempDir::new().unwrap();
    let events = Arc::<EventQueue<_>>::default();
    let upstream = FollowerConfig {
        transport: Default::default(),
        addresses: vec![Address::Unix(folder.path().join("absent"))],
        software: "test".into(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let topology = Topology {
        regions: Regions::default(),
        round_trips: RoundTrips::default(),
        hosts: Hosts::default(),
        location: location.clone(),
        client_id: String::new(),
        client: 1,
        caller: None,
        transport: Default::default(),
        has_trust_domain: false,
        clock: Clock::start(),
        authorizes_callers: false,
    };
    let registry = Arc::new(SubscriptionRegistry::new(events.clone()));
    let handle = Follower::spawn(upstream.clone(), EventSink(events.clone()));
    let config = ResolverConfig {
        upstream,
        client_id: "test".into(),
        caller: None,
        location: location.clone(),
        fallback_location: Some(Location::in_region(Region::new("us").unwrap())),
        cache_dir: Some(folder.path().join("cache")),
        idle_timeout: DEFAULT_IDLE_TIMEOUT,
        authorizes_callers: false,
    };
    let age = watch::Sender::default();
    let worker = Worker::new(WorkerParams { config, handle, registry, topology, age, maps: None });
    Rig { worker, events, folder }
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
    Endpoint {
        mtls: false,
        instance: InstanceId::new(instance).unwrap(),
        address: ([127, 0, 0, 1], 1).into(),
        location: here(),
        state: EndpointState::Serving,
        weight: FULL_WEIGHT,
        lease: None,
        labels: Default::default(),
    }
}

fn entry(key: &RecordKey, record: impl Into<Record>) -> (Arc<str>, Entry) {
    (key.to_string().into(), Entry { value: record_encoding::encode(&record.into()), revision: 1 })
}

fn update(snapshots: impl IntoIterator<Item = (Prefix, Vec<(Arc<str>, Entry)>)>) -> Update {
    let snapshot = |(prefix, entries)| Snapshot { prefix, entries, age: Duration::ZERO };
    let snapshots = snapshots.into_iter().map(snapshot).collect();
    Update { revision: revision(), resumed: vec![], snapshots, puts: vec![], deletes: vec![] }
}

/// Runs a future that only yields.
fn run_ready<T>(work: impl Future<Output = T>) -> T {
    let (mut work, mut context) = (pin!(work), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
    }
}

impl Rig {
    fn handle(&mut self, event: Event<CountingTransport>) {
        self.events.push(event);
        for event in self.events.take() {
            self.worker.handle_event(event);
        }
        run_ready(self.worker.settle());
    }

    /// Starts to use the service.
    fn follow(&mut self) -> Arc<Subscription<CountingTransport>> {
        let subscription = self.worker.registry.get_or_track(&name());
        for event in self.events.take() {
            self.handle(event);
        }
        subscription
    }

    /// Delivers the service with its only endpoint, and without policy defaults.
    fn deliver(&mut self) {
        for scope in [DefaultsScope::Mesh, DefaultsScope::Tenant(name().tenant)] {
            let defaults = Prefix::from(&RecordKey::PolicyDefaults(scope));
            self.handle(Event::Update(update([(defaults, vec![])])));
        }
        self.deliver_without_defaults();
    }

    /// Delivers the service before it is known whether there are policy defaults.
    fn deliver_without_defaults(&mut self) {
        let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
        let declared = Service {
            kind: ServiceKind::Replicated,
            protocol: Protocol::Http2,
            virtual_address: None,
            identity: None,
        };
        let endpoint = endpoint("a");
        self.handle(Event::Update(update([
            (Prefix::topology(), vec![]),
            (Prefix::from(&RecordKey::TrustBundle), vec![]),
            (Prefix::from(&service), vec![entry(&service, declared)]),
            (Prefix::from(&policy), vec![]),
        ])));
        let key = RecordKey::Endpoint(name(), here().region, endpoint.instance.clone());
        let endpoints = (Prefix::endpoints(&name(), None), vec![entry(&key, endpoint)]);
        self.handle(Event::Update(update([endpoints])));
    }

    /// Advances the time by this number of idle checks.
    async fn pass(&mut self, checks: u32) {
        for _ in 0..checks {
            advance(IDLE_CHECK_INTERVAL).await;
            self.worker.check().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_checked_during_steady_record_updates() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    let checks = Arc::new(AtomicUsize::new(0));
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    let index = ready.upstream.candidates().next().unwrap().index;
    let _transport = ready.transport(index, &checks);
    let Rig { worker, events, folder: _folder } = rig;
    let stop = CancellationToken::new();
    tokio::spawn(worker.run(Arc::clone(&events), stop.clone()));
    let busy = async {
        while checks.load(Relaxed) < 3 {
            events.push(Event::Update(update([])));
            sleep(Duration::from_secs(1)).await;
        }
    };
    assert!(timeout(Duration::from_secs(120), busy).await.is_ok(), "{checks:?}");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn disk_copy_never_replaces_data_from_agent() {
    let mut rig = rig();
    let regions = |name| {
        let only = Region::new(name).unwrap();
        Regions { regions: BTreeMap::from([(only, Default::default())]), ..Regions::default() }
    };
    let of = |regions| vec![entry(&RecordKey::Regions, Record::Regions(regions))];
    let saved = of(regions("copy"));
    let cache = Cache::open(rig.folder.path().join("cache")).unwrap();
    let prefix = Prefix::topology();
    cache
        .save(&SavedCopy { prefix, revision: revision(), at: SystemTime::UNIX_EPOCH, entries: saved })
        .unwrap();
    run_ready(rig.worker.read_disk());
    assert_eq!(rig.worker.topology.regions, regions("copy"), "better than nothing");
    let live = of(regions("live"));
    rig.handle(Event::Update(update([(Prefix::topology(), live)])));
    run_ready(rig.worker.read_disk());
    assert_eq!(rig.worker.topology.regions, regions("live"));
}

#[tokio::test(start_paused = true)]
async fn invalid_record_in_snapshot_leaves_previous_record_in_use() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let mut strict = Policy::default();
    strict.locality.local_only = true;
    let regions =
        Regions { regions: BTreeMap::from([(here().region, Default::default())]), ..Regions::default() };
    let endpoints = Prefix::endpoints(&name(), Some(&here().region));
    let instance = |name: &str| InstanceId::new(name).unwrap();
    let key = |name: &str| RecordKey::Endpoint(self::name(), here().region, instance(name));
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![entry(&RecordKey::Regions, Record::Regions(regions.clone()))]),
        (Prefix::from(&policy), vec![entry(&policy, strict.clone())]),
    ])));
    rig.handle(Event::Update(update([(
        endpoints.clone(),
        vec![entry(&key("a"), endpoint("a")), entry(&key("b"), endpoint("b"))],
    )])));

    let invalid = |key: &RecordKey| {
        (Arc::from(key.to_string()), Entry { value: Bytes::from_static(b"\xff"), revision: 2 })
    };
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![invalid(&RecordKey::Regions)]),
        (Prefix::from(&service), vec![invalid(&service)]),
        (Prefix::from(&policy), vec![invalid(&policy)]),
        (endpoints, vec![invalid(&key("a"))]),
    ])));
    assert_eq!(rig.worker.topology.regions, regions);
    let records = &rig.worker.services[&name()].records;
    assert_eq!(*records.policy(), strict, "and not the default one");
    let left: Vec<_> = records.endpoints.list().iter().map(|endpoint| endpoint.instance.clone()).collect();
    assert_eq!(left, [instance("a")], "records that the snapshot does not hold are removed");
    assert!(matches!(*subscription.state(), ServiceState::Ready(_)));
    // A snapshot without the record removes the record.
    rig.handle(Event::Update(update([(Prefix::topology(), vec![]), (Prefix::from(&policy), vec![])])));
    let records = &rig.worker.services[&name()].records;
    assert_eq!((&*records.policy(), &rig.worker.topology.regions), (&Policy::default(), &Regions::default()));
}

#[tokio::test(start_paused = true)]
async fn decoded_policy_is_kept_until_service_snapshot_is_published() {
    let mut rig = rig();
    let _subscription = rig.follow();
    rig.deliver();
    let mut policy = Policy::default();
    let path = PathMatch::Regex(Pattern::new("/published/[0-9]+").unwrap());
    let matches = Match { path: Some(path), ..Match::default() };
    policy.routes = vec![Route { matches, ..Route::new(Label::new("numbers").unwrap()) }];
    let key = RecordKey::Policy(name());
    let event = Event::Update(update([(Prefix::from(&key), vec![entry(&key, policy.clone())])]));
    rig.worker.handle_precompiled(event).await;
    let is_decoded = |rig: &Rig| {
        let records = &rig.worker.services[&name()].records;
        assert_eq!(*records.policy(), policy);
        matches!(records.policy(), Cow::Borrowed(_))
    };
    assert!(is_decoded(&rig), "publishing does not decode and compile it again");
    run_ready(rig.worker.settle());
    assert!(!is_decoded(&rig), "the snapshot alone keeps it in memory");
}

#[tokio::test(start_paused = true)]
async fn trust_domain_in_records_refuses_plaintext_endpoints() {
    let mut rig = rig();
    let subscription = rig.follow();
    let is_refused = || match &*subscription.state() {
        ServiceState::Ready(ready) => !ready.upstream.refused().is_empty(),
        state => panic!("{state:?}"),
    };
    rig.deliver();
    assert!(!is_refused(), "the mesh has none");
    let key = RecordKey::TrustBundle;
    let roots = TrustBundle::new(TrustDomain::new("prod").unwrap(), vec![b"a root".to_vec()]);
    let record = || vec![entry(&key, Record::TrustBundle(roots.clone()))];
    rig.handle(Event::Update(update([(Prefix::from(&key), record())])));
    assert!(is_refused());
    rig.handle(Event::Update(update([(Prefix::from(&key), vec![])])));
    assert!(is_refused(), "a mesh does not lose its trust domain");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_briefly_for_trust_domain_roots() {
    let mut rig = rig();
    let subscription = rig.follow();
    let service = RecordKey::Service(name());
    let declared = Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http2,
        virtual_address: None,
        identity: None,
    };
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![]),
        (Prefix::from(&service), vec![entry(&service, declared)]),
        (Prefix::from(&RecordKey::Policy(name())), vec![]),
    ])));
    rig.handle(Event::Update(update([(Prefix::endpoints(&name(), None), vec![])])));
    assert!(matches!(*subscription.state(), ServiceState::Waiting));
    advance(CONNECT_PATIENCE).await;
    rig.worker.check().await;
    run_ready(rig.worker.settle());
    assert!(matches!(*subscription.state(), ServiceState::Ready(_)), "an agent may not have them");
}

/// Counts log lines.
struct LineCounter(Arc<AtomicUsize>);

impl tracing::Subscriber for LineCounter {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        if *event.metadata().level() <= tracing::Level::INFO {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn burst_of_refused_prefixes_logs_few_lines_only() {
    let mut rig = rig();
    let _subscription = rig.follow();
    let lines = Arc::default();
    let _guard = tracing::subscriber::set_default(LineCounter(Arc::clone(&lines)));
    for number in 0..50 {
        let prefix = Prefix::health(&name(), Some(&Region::new(format!("r{number}")).unwrap()));
        rig.worker.prefix_owners.insert(prefix.clone(), name());
        rig.worker.handle_refusal(prefix, "overloaded");
    }
    assert!(lines.load(Relaxed) <= 10, "{lines:?} lines");
}

#[tokio::test(start_paused = true)]
async fn location_without_agent_is_configured_stored_or_fallback_in_order() {
    let cache = |rig: &Rig| Cache::open(rig.folder.path().join("cache")).unwrap();
    let mut rig = rig_at(None);
    cache(&rig).save_location(&here()).unwrap();
    run_ready(rig.worker.read_disk());
    assert_eq!(rig.worker.topology.location, Some(here()));

    let mut rig = rig_at(None);
    run_ready(rig.worker.read_disk());
    assert_eq!(rig.worker.topology.location, rig.worker.config.fallback_location, "no location is stored");

    let configured = Location::in_region(Region::new("ap").unwrap());
    let mut rig = rig_at(Some(configured.clone()));
    cache(&rig).save_location(&here()).unwrap();
    run_ready(rig.worker.read_disk());
    assert_eq!(rig.worker.topology.location, Some(configured));
}

#[tokio::test(start_paused = true)]
async fn first_call_subscribes_to_usual_prefixes_of_service_in_one_step() {
    let mut rig = rig();
    let subscription = rig.follow();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let (declared, ruled) = (Prefix::from(&service), Prefix::from(&policy));
    let (all, ours) = (Prefix::endpoints(&name(), None), Prefix::endpoints(&name(), Some(&here().region)));
    let subscribed = |rig: &Rig| rig.worker.prefix_owners.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(subscribed(&rig), BTreeSet::from([declared.clone(), ruled.clone(), all.clone()]));
    let kind = ServiceKind::Replicated;
    let plain = Service { kind, protocol: Protocol::Http2, virtual_address: None, identity: None };
    let mut strict = Policy::default();
    strict.locality.local_only = true;
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![]),
        (roots(), vec![]),
        (declared.clone(), vec![entry(&service, plain)]),
        (ruled.clone(), vec![entry(&policy, strict)]),
        (all, vec![]),
    ])));
    assert_eq!(
        subscribed(&rig),
        BTreeSet::from([declared.clone(), ruled.clone(), ours]),
        "its region is enough"
    );
    rig.handle(Event::Update(update([(declared.clone(), vec![]), (ruled.clone(), vec![])])));
    assert!(matches!(*subscription.state(), ServiceState::Unknown));
    assert_eq!(subscribed(&rig), BTreeSet::from([declared, ruled]), "an undeclared service has no endpoints");
}
