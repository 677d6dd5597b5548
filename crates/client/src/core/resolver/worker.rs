use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    Hosts, Location, Prefix, Record, RecordKey, Regions, Revision, RoundTrips, ServiceName,
};
use fairmesh_rib::{Snapshot, Update, cache::Cache, follower::FollowerHandle};
use fairmesh_wire::records;
use tokio::{
    sync::{mpsc, watch},
    task::{spawn_blocking, yield_now},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Registered, ResolverConfig,
    age::Age,
    maps::{Ask, Asks, Heard},
    tracked::{Surroundings, Tracked},
};
use crate::core::Lane;

/// How long a first contact may take before the copy on disk is read, or calls are told that there is nothing.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look again while somebody waits or was refused.
const SOON: Duration = Duration::from_millis(100);
/// How often a refused prefix is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often idle connections are looked at.
const TIDY: Duration = Duration::from_secs(30);
/// How many names that are no services are remembered as such, so that names that are made up take a bounded place here and
/// with the agent.
const MAX_UNKNOWN: usize = 1024;

/// The policies in an update that have expressions, with their keys.
fn costly(update: &Update) -> Vec<(RecordKey, Bytes)> {
    let snapshots = update.snapshots.iter().flat_map(|snapshot| &snapshot.entries);
    let all = snapshots.chain(&update.puts).filter(|(key, _)| records::is_costly(key));
    let policies = all.filter_map(|(key, entry)| Some((RecordKey::parse(key).ok()?, entry.value.clone())));
    policies.filter(|(_, value)| records::has_expressions(value)).collect()
}

/// A policy that is not valid is told where it is taken.
fn compile(policies: &[(RecordKey, Bytes)]) -> Vec<Record> {
    policies.iter().filter_map(|(key, value)| records::decode(key, value).ok()).collect()
}

/// The one writer of every snapshot.
pub(super) struct Worker<L> {
    config: ResolverConfig,
    handle: FollowerHandle,
    registered: Arc<Registered<L>>,
    around: Surroundings,
    age: watch::Sender<Age>,
    /// Where large shard maps are asked for, if anywhere.
    maps: Option<Asks>,
    /// Boxed, since a table has room for up to twice as many as are in it.
    tracked: HashMap<ServiceName, Box<Tracked<L>>>,
    /// Those of them of which something is to be asked or published.
    stale: HashSet<ServiceName>,
    /// Those of them that calls may wait for.
    waiting: BTreeSet<ServiceName>,
    /// Those of them that have shard maps.
    sharded: HashSet<ServiceName>,
    /// Those of them that are no services, in the order in which that was found out.
    unknown: VecDeque<ServiceName>,
    /// Whose prefix a subscription is.
    owners: HashMap<Prefix, ServiceName>,
    /// Whether regions, round trips and hosts have arrived, or never will.
    topology: bool,
    revision: Option<Revision>,
    /// Whether the copy on disk was looked for, so that nobody waits for it who only wants to know anything.
    sought: bool,
    /// Refused prefixes, with when.
    refused: BTreeMap<Prefix, Instant>,
    tidied: Instant,
}

impl<L: Lane> Worker<L> {
    pub(super) fn new(
        config: ResolverConfig,
        handle: FollowerHandle,
        registered: Arc<Registered<L>>,
        around: Surroundings,
        (age, maps): (watch::Sender<Age>, Option<Asks>),
    ) -> Self {
        handle.subscribe(Prefix::topology());
        Self {
            config,
            handle,
            registered,
            around,
            age,
            maps,
            tracked: HashMap::new(),
            stale: HashSet::new(),
            waiting: BTreeSet::new(),
            sharded: HashSet::new(),
            unknown: VecDeque::new(),
            owners: HashMap::new(),
            topology: false,
            revision: None,
            sought: false,
            refused: BTreeMap::new(),
            tidied: Instant::now(),
        }
    }

    /// Follows until told to stop.
    pub(super) async fn run(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event<L>>,
        stop: CancellationToken,
    ) {
        let mut state = self.handle.state();
        let mut looked = Instant::now();
        loop {
            // Counted from the last look, and not from the last event: where events never cease, it is due all the same.
            let look = looked + if self.unsettled() { SOON } else { self.tidies() };
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = events.recv() => {
                    self.take_compiled(event).await;
                    // What has piled up is published as one.
                    while let Ok(event) = events.try_recv() {
                        self.take_compiled(event).await;
                    }
                }
                Ok(()) = state.changed() => self.locate(),
                () = sleep_until(look) => {
                    looked = Instant::now();
                    self.look_after().await;
                }
            }
            self.settle().await;
        }
    }

    /// Takes an event once the expressions of its policies are compiled, away from the program's own tasks.
    async fn take_compiled(&mut self, event: Event<L>) {
        let policies = match &event {
            Event::Update(update) => costly(update),
            _ => Vec::new(),
        };
        let compiled = match policies.is_empty() {
            true => None,
            false => spawn_blocking(move || compile(&policies)).await.ok(),
        };
        self.take(event);
        // Held up to here, so that they are found in use.
        drop(compiled);
    }

    fn take(&mut self, event: Event<L>) {
        match event {
            Event::Track(subscription) => {
                let name = subscription.name().clone();
                self.stale.insert(name.clone());
                self.waiting.insert(name.clone());
                let tracked = Tracked::new(subscription, self.maps.is_some());
                self.tracked.insert(name, Box::new(tracked));
            }
            Event::Update(update) => self.update(update),
            Event::Refused(prefix, reason) => self.refuse(prefix, &reason),
            Event::Contact(age) => self.age.send_modify(|known| known.told(age, Instant::now())),
            Event::Map(heard) => self.heard(heard),
            Event::Disconnected => self.age.send_modify(|known| known.disconnected(Instant::now())),
        }
    }

    /// Takes what the agent said of large shard maps. One that is not wanted any more is let go.
    fn heard(&mut self, heard: Heard) {
        let (Heard::Map(name, _) | Heard::Failed(name, ..)) = &heard else {
            for (name, tracked) in self.tracked.iter_mut().filter(|(_, tracked)| tracked.map.is_some()) {
                if tracked.facts.shards.read_here() {
                    self.stale.insert(name.clone());
                }
            }
            return;
        };
        let Some(tracked) = self.tracked.get_mut(&name.service).filter(|t| t.map.as_ref() == Some(name))
        else {
            return;
        };
        self.stale.insert(name.service.clone());
        match heard {
            Heard::Map(_, shards) => tracked.facts.shards.share(shards),
            Heard::Failed(name, version, problem) => {
                tracing::warn!(service = %name.service, version, problem, "a shard map cannot be used");
                tracked.facts.shards.failed(version);
            }
            Heard::Unavailable => {}
        }
    }

    fn update(&mut self, update: Update) {
        let before = self.revision.replace(update.revision);
        let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
        if let Some(age) = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max() {
            self.age.send_modify(|known| known.arrived(age, Instant::now()));
        }
        for resumed in &update.resumed {
            self.arrived(&resumed.prefix);
            self.informed_by(&resumed.prefix);
        }
        for snapshot in update.snapshots {
            self.snapshot(snapshot);
        }
        for (key, entry) in &update.puts {
            self.put(key, &entry.value);
        }
        for key in &update.deletes {
            self.delete(key);
        }
        for name in &self.sharded {
            if let Some(tracked) = self.tracked.get_mut(name) {
                tracked.facts.shards.came_after(before);
            }
        }
    }

    fn snapshot(&mut self, snapshot: Snapshot) {
        if snapshot.prefix == Prefix::topology() {
            for key in [RecordKey::Regions, RecordKey::RoundTrips, RecordKey::Hosts] {
                if !snapshot.holds(&key.to_string()) {
                    self.delete_topology(&key);
                }
            }
        } else if let Some(tracked) = self.owners.get(&snapshot.prefix).and_then(|o| self.tracked.get_mut(o))
        {
            tracked.facts.retain(&snapshot.prefix, |key| snapshot.holds(key));
        }
        for (key, entry) in &snapshot.entries {
            self.put(key, &entry.value);
        }
        self.arrived(&snapshot.prefix);
        self.informed_by(&snapshot.prefix);
    }

    /// Says so where this is the first that is known at all.
    fn informed_by(&self, prefix: &Prefix) {
        if *prefix == Prefix::topology() {
            self.registered.informed.send_if_modified(|informed| !std::mem::replace(informed, true));
        }
    }

    fn arrived(&mut self, prefix: &Prefix) {
        self.refused.remove(prefix);
        if *prefix == Prefix::topology() {
            self.topology = true;
            self.all_stale();
        } else if let Some((name, tracked)) =
            self.owners.get(prefix).and_then(|name| Some((name, self.tracked.get_mut(name)?)))
        {
            tracked.facts.arrived(prefix);
            self.stale.insert(name.clone());
        }
    }

    fn put(&mut self, text: &Arc<str>, value: &Bytes) {
        let Ok(key) = RecordKey::parse(text) else {
            return tracing::debug!(key = %text, "a key of a newer version is skipped");
        };
        let taken = match key.service() {
            None => self.put_topology(&key, value),
            Some(name) => match self.tracked.get_mut(name) {
                Some(tracked) => {
                    self.stale.insert(name.clone());
                    if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
                        self.sharded.insert(name.clone());
                    }
                    tracked.facts.put(text, &key, value)
                }
                None => Ok(()),
            },
        };
        if let Err(problem) = taken {
            tracing::warn!(key = %text, %problem, "record is not valid; the one before stays in use");
        }
    }

    fn put_topology(&mut self, key: &RecordKey, value: &Bytes) -> Result<(), fairmesh_model::Invalid> {
        match records::decode(key, value)? {
            Record::Regions(regions) => self.around.regions = regions,
            Record::RoundTrips(round_trips) => self.around.round_trips = round_trips,
            Record::Hosts(hosts) => self.around.hosts = hosts,
            _ => {}
        }
        self.all_stale();
        Ok(())
    }

    fn delete(&mut self, text: &str) {
        let Ok(key) = RecordKey::parse(text) else { return };
        if let Some((name, tracked)) =
            key.service().and_then(|name| Some((name, self.tracked.get_mut(name)?)))
        {
            self.stale.insert(name.clone());
            return tracked.facts.delete(text, &key);
        }
        self.delete_topology(&key);
    }

    fn delete_topology(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Regions => self.around.regions = Regions::default(),
            RecordKey::RoundTrips => self.around.round_trips = RoundTrips::default(),
            RecordKey::Hosts => self.around.hosts = Hosts::default(),
            _ => return,
        }
        self.all_stale();
    }

    fn all_stale(&mut self) {
        self.stale.extend(self.tracked.keys().cloned());
    }

    fn refuse(&mut self, prefix: Prefix, reason: &str) {
        match self.owners.get(&prefix).and_then(|owner| self.tracked.get(owner)) {
            Some(tracked) => tracked.despair(&format!("the agent cannot serve it now: {reason}")),
            // Without distances every region is equally far: worse, and no reason to fail a call.
            None if prefix == Prefix::topology() && !self.topology => self.arrived(&prefix),
            None if prefix == Prefix::topology() => {}
            // Given up meanwhile.
            None => return,
        }
        if self.refused.insert(prefix.clone(), Instant::now()).is_none() {
            tracing::warn!(%prefix, reason, "the agent cannot serve this now; it is asked again");
        }
    }

    /// Takes the agent's word for where this is, unless the program was told.
    fn locate(&mut self) {
        let state = self.handle.state().borrow().clone();
        match state.location {
            Some(told) => self.located(told),
            // A control plane, which cannot say.
            None if state.connected => self.guess(),
            None => {}
        }
    }

    /// Finds out where this is from what the agent left, or from what the program may have been given for that case.
    fn guess(&mut self) {
        if self.around.location.is_some() {
            return;
        }
        let left = self.config.cache_dir.as_deref().map(|folder| Cache::read_only(folder).location());
        let left = left.transpose().unwrap_or_else(|problem| {
            tracing::warn!(%problem, "where the agent runs cannot be read");
            None
        });
        if let Some(location) = left.flatten().or_else(|| self.config.otherwise.clone()) {
            self.located(location);
        }
    }

    fn located(&mut self, location: Location) {
        if self.config.location.is_none() && self.around.location.as_ref() != Some(&location) {
            self.around.location = Some(location);
            self.all_stale();
        }
    }

    /// Asks for what is missing, publishes what is whole, and only then says that it is applied: decisions made from
    /// now on rest on it. Between two services, whatever else runs on this thread has its turn.
    async fn settle(&mut self) {
        for name in std::mem::take(&mut self.stale) {
            self.ask(&name);
            if !self.topology {
                self.stale.insert(name);
                continue;
            }
            if let Some(tracked) = self.tracked.get_mut(&name) {
                let was_unknown = tracked.is_unknown();
                tracked.publish(&self.around, &self.registered, self.revision.map_or(0, |at| at.number));
                self.registered.published(&tracked.subscription);
                if tracked.is_unknown() && !was_unknown {
                    self.unknown.push_back(name);
                }
                yield_now().await;
            }
        }
        self.forget_unknown();
        if let Some(revision) = self.applied() {
            self.handle.ack(revision);
        }
    }

    /// Asks for what a service needs, and gives up what it no longer does.
    fn ask(&mut self, name: &ServiceName) {
        let Some(tracked) = self.tracked.get_mut(name) else { return };
        let (new, old) = tracked.facts.ask(tracked.facts.needed(self.around.location.as_ref()));
        for prefix in old {
            self.handle.unsubscribe(&prefix);
            self.owners.remove(&prefix);
            self.refused.remove(&prefix);
        }
        if !new.is_empty() {
            self.owners.extend(new.iter().map(|prefix| (prefix.clone(), name.clone())));
            self.handle.subscribe_all(new);
        }
        if let Some(maps) = &self.maps {
            tracked.ask_for_map(maps, self.around.location.as_ref());
        }
    }

    /// Lets go of names that are no services, beyond as many as are remembered, the oldest first.
    fn forget_unknown(&mut self) {
        for _ in MAX_UNKNOWN..self.unknown.len() {
            let Some(name) = self.unknown.pop_front() else { return };
            if !self.tracked.get(&name).is_some_and(|tracked| tracked.is_unknown()) {
                continue;
            }
            if self.registered.forget_now(&name) {
                self.give_up(&name);
            } else {
                // Somebody holds a handle to it.
                self.unknown.push_back(name);
            }
        }
    }

    /// Up to where decisions rest on what arrived; `None` where that is not known.
    fn applied(&self) -> Option<Revision> {
        let latest = self.revision?;
        let here = |at: &Revision| (at.store, at.partition) == (latest.store, latest.partition);
        let sharded = self.sharded.iter().filter_map(|name| self.tracked.get(name));
        let shards = sharded.map(|tracked| &tracked.facts.shards);
        let lagging = shards.filter(|shards| shards.lags()).map(|shards| shards.known_before().filter(here));
        lagging.chain([Some(latest)]).min_by_key(|at| at.map(|at| at.number)).flatten()
    }

    fn unsettled(&mut self) -> bool {
        let waits = |name: &ServiceName| self.tracked.get(name).is_some_and(|tracked| tracked.waits());
        while self.waiting.first().is_some_and(|name| !waits(name)) {
            self.waiting.pop_first();
        }
        let knows_nothing = !self.sought && !*self.registered.informed.borrow();
        knows_nothing || !self.refused.is_empty() || !self.waiting.is_empty()
    }

    /// How often to look after what is idle.
    fn tidies(&self) -> Duration {
        TIDY.min(self.config.unused / 4).max(SOON)
    }

    async fn look_after(&mut self) {
        let now = Instant::now();
        if now - self.tidied >= self.tidies() {
            self.tidied = now;
            self.tracked.values().for_each(|tracked| tracked.tidy());
            self.give_up_unused(now);
        }
        let again = |asked: &Instant| now - *asked >= ASK_AGAIN;
        for (prefix, asked) in self.refused.iter_mut().filter(|(_, asked)| again(asked)) {
            *asked = now;
            self.handle.unsubscribe(prefix);
            self.handle.subscribe(prefix.clone());
        }
        let state = self.handle.state().borrow().clone();
        if !state.connected && now.saturating_duration_since(state.since) >= PATIENCE {
            self.read_disk().await;
        }
    }

    /// Stops to follow what nobody has used for long, handles and routes of other services included.
    fn give_up_unused(&mut self, now: Instant) {
        let ages = self.age.borrow().at(now).is_some();
        let (registered, unused) = (&self.registered, self.config.unused);
        let due = |tracked: &mut Tracked<L>| tracked.unused_for(registered, ages, now) >= unused;
        let names = self.tracked.iter_mut().filter_map(|(name, tracked)| due(tracked).then(|| name.clone()));
        for name in names.collect::<Vec<_>>() {
            // Nobody can begin to use it meanwhile: whoever asks for it from now on gets a new subscription.
            if self.registered.forget(&name) {
                self.give_up(&name);
            }
        }
    }

    /// Stops to follow a service.
    fn give_up(&mut self, name: &ServiceName) {
        let Some(mut tracked) = self.tracked.remove(name) else { return };
        self.sharded.remove(name);
        self.registered.limited().remove(name);
        let (_, old) = tracked.facts.ask(BTreeSet::new());
        for prefix in old {
            self.handle.unsubscribe(&prefix);
            self.owners.remove(&prefix);
            self.refused.remove(&prefix);
        }
        if let Some((maps, map)) = self.maps.as_ref().zip(tracked.map.take()) {
            let _ = maps.send(Ask::Unfollow(map));
        }
        tracked.retire();
    }

    /// The agent is away: whoever waits gets the copy on disk, or is told.
    async fn read_disk(&mut self) {
        self.sought = true;
        self.guess();
        let cache = self.config.cache_dir.as_deref().map(Cache::read_only);
        // What the agent last said is newer than any copy.
        if let Some(cache) = cache.as_ref().filter(|_| !self.topology) {
            self.read_prefix(cache, Prefix::topology());
        }
        let waiting: Vec<_> =
            self.tracked.iter().filter(|(_, t)| t.waits()).map(|(name, _)| name.clone()).collect();
        for name in waiting {
            // The service and its policy tell which further prefixes are needed, hence several rounds.
            for _ in 0..4 {
                let missing =
                    self.tracked.get(&name).map(|tracked| tracked.facts.missing()).unwrap_or_default();
                for prefix in missing {
                    if let Some(cache) = &cache {
                        self.read_prefix(cache, prefix);
                    }
                }
                if self.tracked.get_mut(&name).is_some_and(|tracked| tracked.facts.shards.read_here()) {
                    self.stale.insert(name.clone());
                }
                self.settle().await;
            }
            if let Some(tracked) = self.tracked.get(&name).filter(|tracked| tracked.waits()) {
                tracked.despair(&self.unreachable());
            }
        }
    }

    fn read_prefix(&mut self, cache: &Cache, prefix: Prefix) {
        match cache.load(&prefix) {
            Ok(Some(saved)) => {
                // A clock that was set back makes a copy look new; its age is for people only.
                let age = saved.at.elapsed().unwrap_or_default();
                self.age.send_modify(|known| known.read(age, Instant::now()));
                self.snapshot(Snapshot { prefix, entries: saved.entries, age });
            }
            Ok(None) => {}
            Err(problem) => tracing::warn!(%prefix, %problem, "the copy on disk cannot be read"),
        }
    }

    fn unreachable(&self) -> String {
        let addresses: Vec<_> = self.config.upstream.addresses.iter().map(ToString::to_string).collect();
        let error = self.handle.state().borrow().error.clone().unwrap_or_default();
        format!(
            "nobody answers at {} and there is no copy on disk; start `fairmesh agent` there, or say where one listens \
             (FAIRMESH_AGENT, --agent), or where a control plane does (--control) ({error})",
            addresses.join(", ")
        )
    }
}

#[cfg(test)]
mod tests;
