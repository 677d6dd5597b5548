//! Thousands of watchers with one connection each. Records the time at which each receives an update.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::Revision;
use fairmesh_rib::follower::{AckBatcher, random};
use fairmesh_wire::{
    transport::Address,
    v1::{self, watch_request, watch_response},
    watch::Watch,
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    counting_stream::CountingStream,
    etcd::{self, WatchRequest},
    grpc_stream::Stream,
};

/// Maximum number of concurrent connection attempts.
const CONNECTING: usize = 64;
/// Timeout for a change to reach all watchers.
const PATIENCE: Duration = Duration::from_secs(60);

/// The arrival of a change at a watcher.
struct Arrival {
    revision: u64,
    at: Instant,
}

/// Connected watchers. Dropping the value disconnects them.
pub(super) struct Watchers {
    watchers: JoinSet<Result<(), String>>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    /// Arrivals recorded before `have` asked for their revision.
    early: HashMap<u64, Vec<Instant>>,
    traffic: Arc<AtomicU64>,
}

/// Kind and address of the watched server.
#[derive(Clone, Debug)]
pub(super) enum Server {
    Fairmesh(String),
    Etcd(String),
}

impl Watchers {
    /// Connects watchers, each to one server with some prefixes, and waits until all are watching.
    pub(super) async fn gather(watchers: Vec<(Server, Vec<String>)>) -> Result<Self, String> {
        let (tell, arrivals) = mpsc::unbounded_channel();
        let (ready, mut all_ready) = mpsc::unbounded_channel();
        let traffic = Arc::new(AtomicU64::new(0));
        let connecting = Arc::new(Semaphore::new(CONNECTING));
        let mut crowd = Self { watchers: JoinSet::new(), arrivals, early: HashMap::new(), traffic };
        let count = watchers.len();
        for (server, prefixes) in watchers {
            let (tell, ready) = (tell.clone(), ready.clone());
            let (traffic, connecting) = (Arc::clone(&crowd.traffic), Arc::clone(&connecting));
            crowd.watchers.spawn(async move {
                let permit = connecting.acquire_owned().await.map_err(|e| e.to_string())?;
                let ready = move || {
                    drop(permit);
                    let _ = ready.send(());
                };
                match server {
                    Server::Fairmesh(address) => fairmesh(&address, &prefixes, &traffic, ready, &tell).await,
                    Server::Etcd(address) => etcd(&address, &prefixes, &traffic, ready, &tell).await,
                }
            });
        }
        for _ in 0..count {
            tokio::select! {
                Some(()) = all_ready.recv() => {}
                ended = crowd.watchers.join_next() => return Err(why(ended)),
            }
        }
        Ok(crowd)
    }

    /// Waits until `count` watchers have a revision. Returns the time from `since` to each arrival, in nanoseconds.
    pub(super) async fn have(
        &mut self,
        revision: u64,
        count: usize,
        since: Instant,
    ) -> Result<Vec<u64>, String> {
        let mut came = self.early.remove(&revision).unwrap_or_default();
        let deadline = Instant::now() + PATIENCE;
        while came.len() < count {
            tokio::select! {
                Some(arrival) = self.arrivals.recv() => match arrival.revision {
                    this if this == revision => came.push(arrival.at),
                    other => self.early.entry(other).or_default().push(arrival.at),
                },
                ended = self.watchers.join_next() => return Err(why(ended)),
                () = tokio::time::sleep_until(deadline) => {
                    return Err(format!("revision {revision} came to {} of {count} watchers", came.len()));
                }
            }
        }
        let after = |at: Instant| u64::try_from(at.saturating_duration_since(since).as_nanos());
        Ok(came.into_iter().map(|at| after(at).unwrap_or(u64::MAX)).collect())
    }

    /// Bytes sent and received by all watchers so far.
    pub(super) fn traffic(&self) -> u64 {
        self.traffic.load(Relaxed)
    }
}

fn why(ended: Option<Result<Result<(), String>, tokio::task::JoinError>>) -> String {
    match ended {
        Some(Ok(Err(why))) => format!("a watcher ended: {why}"),
        Some(Err(panicked)) => format!("a watcher ended: {panicked}"),
        Some(Ok(Ok(()))) | None => "a watcher ended".into(),
    }
}

/// Watches as an agent does, including acknowledgements.
async fn fairmesh(
    address: &str,
    prefixes: &[String],
    traffic: &Arc<AtomicU64>,
    ready: impl FnOnce(),
    tell: &mpsc::UnboundedSender<Arrival>,
) -> Result<(), String> {
    let mut watch = watching(address, prefixes, traffic).await?;
    let (mut missing, mut ready) = (prefixes.len(), Some(ready));
    let (mut acks, mut applied) = (AckBatcher::default(), None);
    loop {
        if let Some(revision) = applied
            && let Some(request) = acks.take(revision, Instant::now(), random())
        {
            watch.send(&request);
        }
        let message = match acks.due() {
            Some(due) => timeout_at(due, watch.next()).await,
            None => Ok(watch.next().await),
        };
        // A delayed acknowledgement is due.
        let Ok(message) = message else { continue };
        let (message, at) = (message.map_err(|status| status.to_string())?, Instant::now());
        let revision = match message.kind {
            Some(watch_response::Kind::Snapshot(snapshot)) => {
                missing -= usize::from(snapshot.last);
                snapshot.revision
            }
            Some(watch_response::Kind::Delta(delta)) => {
                for put in delta.puts {
                    let _ = tell.send(Arrival { revision: put.revision, at });
                }
                delta.revision
            }
            Some(watch_response::Kind::AckRequest(request)) => {
                let revision = request.revision.unwrap_or_default();
                acks.request_ack(Revision::try_from(revision).map_err(|e| e.to_string())?);
                None
            }
            Some(watch_response::Kind::Refused(refused)) => return Err(refused.reason),
            _ => None,
        };
        if missing == 0
            && let Some(ready) = ready.take()
        {
            ready();
        }
        if let Some(revision) = revision.filter(|_| !message.more) {
            acks.update_received();
            applied = Some(Revision::try_from(revision).map_err(|e| e.to_string())?);
        }
    }
}

/// Connects and subscribes.
async fn watching(
    address: &str,
    prefixes: &[String],
    traffic: &Arc<AtomicU64>,
) -> Result<Watch<CountingStream>, String> {
    let socket = CountingStream::connect(address, traffic).await.map_err(|e| format!("{address}: {e}"))?;
    let at = Address::Tcp(address.to_owned());
    let mut watch = Watch::handshake(socket, &at, "bench").await.map_err(|e| e.to_string())?;
    for (i, prefix) in prefixes.iter().enumerate() {
        let more = i + 1 < prefixes.len();
        let subscribe = v1::Subscribe { prefix: prefix.clone(), more, ..v1::Subscribe::default() };
        watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    }
    Ok(watch)
}

async fn etcd(
    address: &str,
    prefixes: &[String],
    traffic: &Arc<AtomicU64>,
    ready: impl FnOnce(),
    tell: &mpsc::UnboundedSender<Arrival>,
) -> Result<(), String> {
    let first: Vec<WatchRequest> = prefixes.iter().map(|prefix| etcd::watch(prefix)).collect();
    let mut stream = Stream::open(address, "/etcdserverpb.Watch/Watch", &first, traffic).await?;
    let (mut missing, mut ready) = (prefixes.len(), Some(ready));
    loop {
        let message: etcd::WatchResponse = stream.next().await?;
        let at = Instant::now();
        missing -= usize::from(message.created);
        if missing == 0
            && let Some(ready) = ready.take()
        {
            ready();
        }
        for kv in message.events.into_iter().filter_map(|event| event.kv) {
            let _ = tell.send(Arrival { revision: kv.mod_revision.unsigned_abs(), at });
        }
    }
}
