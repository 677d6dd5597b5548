use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Identity, Location, Prefix, Revision, StoreId};
use fairmesh_rib::{
    Batch, Commit, Entry, Node, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, FollowerState, Sink},
    server::{RibServer, ServedRib, WriteError},
};
use fairmesh_wire::transport::{Address, Transport, serve};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// Time limit of every step of a test.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// An in-memory store.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) node: Node,
}

impl Memory {
    pub(crate) fn new(store: u128) -> Self {
        Self { node: Node::new(StoreId(store)) }
    }

    pub(crate) fn put(&self, pairs: &[(&str, &str)]) -> u64 {
        self.commit(pairs.iter().map(|(key, value)| (*key, Some(Bytes::copy_from_slice(value.as_bytes())))))
    }

    pub(crate) fn delete(&self, key: &str) -> u64 {
        self.commit([(key, None)])
    }

    pub(crate) fn commit<'a>(&self, changes: impl IntoIterator<Item = (&'a str, Option<Bytes>)>) -> u64 {
        let revision = self.node.revision().number + 1;
        let changes = changes.into_iter().map(|(key, value)| (Arc::from(key), value)).collect();
        assert!(self.node.apply(Commit { revision, changes }));
        revision
    }
}

impl ServedRib for Memory {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        "memory".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, batch: Batch, _: Identity) -> Result<Revision, WriteError> {
        self.node.check(&batch)?;
        let revision = self.node.revision().number + 1;
        self.node.apply(batch.into_commit(revision));
        Ok(self.node.revision())
    }
}

/// A server that runs until it is stopped.
pub(crate) struct Server {
    pub(crate) address: Address,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(backend: impl ServedRib, address: &str) -> Self {
        Self::start_with(backend, address, Routes::default()).await
    }

    /// Starts a server with further services besides the RIB.
    pub(crate) async fn start_with(backend: impl ServedRib, address: &str, services: Routes) -> Self {
        let listener = Transport::default().bind(&address.parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap();
        let stop = CancellationToken::new();
        let services = RibServer::new(backend, stop.clone()).with_services(services);
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move { serve(services, listener, stopped, BOUND).await.unwrap() });
        Self { address, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.expect("watches end when the server stops").unwrap();
    }
}

/// A call of a [`Sink`] method.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SinkCall {
    Update(Update),
    Refused(Prefix, String),
}

struct Channels(mpsc::UnboundedSender<SinkCall>, mpsc::UnboundedSender<Duration>);

impl Sink for Channels {
    fn update(&mut self, update: Update) {
        let _ = self.0.send(SinkCall::Update(update));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        let _ = self.0.send(SinkCall::Refused(prefix.clone(), reason.into()));
    }

    fn age_update(&mut self, age: Duration) {
        let _ = self.1.send(age);
    }
}

/// A follower with its copy of the data.
pub(crate) struct Reader {
    pub(crate) handle: FollowerHandle,
    pub(crate) copy: BTreeMap<String, String>,
    got: mpsc::UnboundedReceiver<SinkCall>,
    age_updates: mpsc::UnboundedReceiver<Duration>,
}

impl Reader {
    pub(crate) fn start(addresses: &[&Address], refuse_lagging: bool) -> Self {
        let backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
        Self::start_with(addresses, refuse_lagging, backoff)
    }

    pub(crate) fn start_with(addresses: &[&Address], refuse_lagging: bool, backoff: Backoff) -> Self {
        let ((calls, got), (ages, age_updates)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let config = FollowerConfig {
            transport: Default::default(),
            addresses: addresses.iter().map(|address| (*address).clone()).collect(),
            software: "reader".into(),
            backoff,
            refuse_lagging,
        };
        Self {
            handle: Follower::spawn(config, Channels(calls, ages)),
            copy: BTreeMap::new(),
            got,
            age_updates,
        }
    }

    /// Starts a reader that follows prefixes, and takes the first snapshot of each prefix.
    pub(crate) async fn following(addresses: &[&Address], prefixes: &[&str]) -> Self {
        let mut reader = Self::start(addresses, true);
        prefixes.iter().for_each(|text| reader.handle.subscribe(prefix(text)));
        let mut missing = prefixes.len();
        while missing > 0 {
            missing -= reader.update().await.snapshots.len();
        }
        reader
    }

    /// Waits for the next update, and applies it without acknowledging it.
    pub(crate) async fn update(&mut self) -> Update {
        match self.got().await {
            SinkCall::Update(update) => update,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn got(&mut self) -> SinkCall {
        let got = timeout(BOUND, self.got.recv()).await.expect("something arrives").unwrap();
        if let SinkCall::Update(update) = &got {
            self.apply(update);
        }
        got
    }

    /// Waits for the next age update from the upstream.
    pub(crate) async fn age_update(&mut self) -> Duration {
        timeout(BOUND, self.age_updates.recv()).await.expect("the upstream sends it").unwrap()
    }

    /// Whether all age updates were taken with [`Reader::age_update`].
    pub(crate) fn no_more_age_updates(&mut self) -> bool {
        self.age_updates.is_empty()
    }

    /// Waits for a state of the follower that satisfies `wanted`.
    pub(crate) async fn until(&self, wanted: impl Fn(&FollowerState) -> bool) -> FollowerState {
        let mut state = self.handle.state();
        timeout(BOUND, state.wait_for(wanted)).await.expect("the state is reached").unwrap().clone()
    }

    fn apply(&mut self, update: &Update) {
        for snapshot in &update.snapshots {
            self.copy.retain(|key, _| !snapshot.prefix.covers(key));
            self.put(&snapshot.entries);
        }
        self.put(&update.puts);
        for key in &update.deletes {
            self.copy.remove(&**key);
        }
    }

    fn put(&mut self, entries: &[(Arc<str>, Entry)]) {
        let text = |entry: &Entry| String::from_utf8_lossy(&entry.value).into_owned();
        self.copy.extend(entries.iter().map(|(key, entry)| (key.to_string(), text(entry))));
    }
}

pub(crate) fn prefix(text: &str) -> Prefix {
    Prefix::new(text).unwrap()
}

pub(crate) fn copy(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
