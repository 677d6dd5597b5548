use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Invalid, Revision};
use fairmesh_wire::{
    handshake::{ConnectError, Connection},
    shards,
    transport::Address,
    watch::Watch,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    Shared, Sink, State, UpstreamConfig,
    collect::{Collector, Event},
    gather::Gather,
    patience::Patience,
    random,
    subscriptions::{Lag, Subscriptions},
};
use crate::{Entry, Update, server::MAX_PREFIXES};

/// Follows one upstream after another.
pub(super) struct Follower<S> {
    config: UpstreamConfig,
    sink: S,
    shared: Arc<Shared>,
    subscriptions: Subscriptions,
    acks: Gather,
    patience: Patience,
    /// The revision whose acknowledgement somebody waits for, for whoever acknowledges for others.
    hurried: watch::Sender<Option<Revision>>,
    /// Attempts in a row that brought nothing: one that connects and is then refused is no better than one that does not.
    fruitless: u32,
}

/// Why a connection ended, or none came about.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{}", .0.message())]
    Status(Box<Status>),
    #[error("it sent what cannot be read: {0}")]
    Unreadable(#[from] Invalid),
    #[error("what is held is not what it sent, and is asked for anew: {0}")]
    Unfit(Invalid),
    #[error(transparent)]
    Lag(#[from] Lag),
    #[error("it is out of touch with its own source; looking for one that is not")]
    OutOfTouch,
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl<S: Sink> Follower<S> {
    pub(super) fn new(
        config: UpstreamConfig,
        sink: S,
        shared: Arc<Shared>,
        hurried: watch::Sender<Option<Revision>>,
    ) -> Self {
        let (subscriptions, acks, patience) = Default::default();
        Self { config, sink, shared, subscriptions, acks, patience, hurried, fruitless: 0 }
    }

    /// Follows until `stop`.
    pub(super) async fn run(
        mut self,
        state: watch::Sender<State>,
        connection: watch::Sender<Option<Connection>>,
        stop: CancellationToken,
    ) {
        let addresses = self.config.addresses.clone();
        for address in addresses.iter().cycle() {
            let ended = tokio::select! {
                ended = self.follow(address, &state, &connection) => ended,
                () = stop.cancelled() => return,
            };
            self.shared.lock().changed = None;
            if connection.send_replace(None).is_some() {
                self.sink.disconnected();
            }
            let delay = self.ended(address, &ended, &state);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Takes note that nobody is followed; returns how long to wait.
    fn ended(&mut self, address: &Address, ended: &Ended, state: &watch::Sender<State>) -> Duration {
        let was = state.borrow().clone();
        self.fruitless = self.fruitless.saturating_add(1);
        let failures = self.fruitless;
        // Said once when it begins; the rest is for whoever looks closely.
        match (was.connected, was.failures) {
            (true, _) => tracing::warn!(%address, reason = %ended, "lost the upstream; keeping what is held"),
            (false, 0) => tracing::warn!(%address, reason = %ended, "no upstream answers; trying on"),
            (false, _) => tracing::debug!(%address, reason = %ended, failures, "no upstream answers"),
        }
        let since = if was.connected { Instant::now() } else { was.since };
        let error = Some(ended.to_string());
        state.send_replace(State {
            connected: false,
            since,
            failures,
            error,
            address: Some(address.clone()),
            ..was
        });
        // Every address once before the wait grows.
        let rounds = failures.div_ceil(u32::try_from(self.config.addresses.len()).unwrap_or(u32::MAX).max(1));
        self.config.backoff.delay(rounds, random())
    }

    async fn follow(
        &mut self,
        address: &Address,
        state: &watch::Sender<State>,
        connection: &watch::Sender<Option<Connection>>,
    ) -> Ended {
        let opened = Watch::open(address, &self.config.software).await;
        let beside = |watch: Watch| {
            let connection = Connection::lazy(watch.hello().clone(), address, &self.config.software)?;
            Ok::<_, ConnectError>((watch, connection))
        };
        let (watch, beside) = match opened.and_then(beside) {
            Ok(opened) => opened,
            Err(error) => return error.into(),
        };
        let hello = &beside.hello;
        tracing::info!(%address, upstream = hello.software, "following");
        state.send_replace(State {
            connected: true,
            since: Instant::now(),
            failures: self.fruitless,
            location: hello.location.clone(),
            store: hello.store,
            address: Some(address.clone()),
            error: None,
        });
        connection.send_replace(Some(beside));
        match self.exchange(watch).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn exchange(&mut self, mut watch: Watch) -> Result<std::convert::Infallible, Ended> {
        let mut collector = Collector::default();
        self.subscriptions.disconnected();
        self.acks = Gather::default();
        self.patience.connected();
        let alone = self.config.addresses.len() < 2;
        loop {
            self.ask(&mut watch);
            let due = self.acks.due();
            let leave = self.patience.due().filter(|_| !alone);
            tokio::select! {
                message = watch.next() => {
                    if let Some(event) = collector.take(message?)? {
                        self.take(event)?;
                    }
                }
                () = self.shared.changed.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = sleep_until(leave.unwrap_or_else(Instant::now)), if leave.is_some() => {
                    self.patience.leave();
                    return Err(Ended::OutOfTouch);
                }
            }
        }
    }

    /// Sends what is to be asked and acknowledged by now.
    fn ask(&mut self, watch: &mut Watch) {
        let mut outbox = VecDeque::new();
        let mut wanted = self.shared.lock();
        let (left_out, applied) =
            (self.subscriptions.reconcile(&mut wanted, S::HOLDS, &mut outbox), wanted.ack);
        drop(wanted);
        outbox.extend(applied.and_then(|ack| self.acks.take(ack, Instant::now(), random())));
        outbox.iter().for_each(|request| watch.send(request));
        for prefix in left_out {
            self.sink.refused(
                &prefix,
                &format!("one watch holds {MAX_PREFIXES} prefixes, all in use; follow folders further up"),
            );
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Ended> {
        match event {
            Event::Update { mut update, patches } => {
                self.patch(&mut update, &patches)?;
                self.subscriptions.note(&mut update, self.config.refuse_lagging)?;
                self.acks.noted();
                let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
                let entered = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max();
                if let Some(age) = entered {
                    self.patience.entered(age, Instant::now(), random());
                }
                self.fruitless = 0;
                self.sink.update(update);
            }
            Event::Refused { prefix, reason } => self.sink.refused(&prefix, &reason),
            Event::Contact { age } => {
                self.patience.contact(age, Instant::now(), random());
                self.sink.contact(age);
            }
            Event::Hurry { revision } => {
                self.acks.hurry(revision);
                self.hurried.send_replace(Some(revision));
            }
        }
        Ok(())
    }

    /// Adds what patches tell of what is held.
    ///
    /// # Errors
    /// Where what is held is not what the upstream says. The update must not be taken then, and the whole is asked for anew.
    fn patch(&mut self, update: &mut Update, patches: &[Bytes]) -> Result<(), Ended> {
        for patch in patches {
            let patch = shards::Patch::read(patch)?;
            let manifest = patch.manifest();
            if !self.subscriptions.is_live(&manifest) {
                // It was given up, or is asked for anew, while this was under way.
                continue;
            }
            let told = patch.apply(update.revision.number, |key| self.sink.held(key)).map_err(|unfit| {
                self.subscriptions.distrust(&manifest);
                Ended::Unfit(unfit)
            })?;
            for (key, value) in told {
                match value {
                    Some((value, revision)) => update.puts.push((key.into(), Entry { value, revision })),
                    None => update.deletes.push(key.into()),
                }
            }
        }
        if !patches.is_empty() {
            update.puts.sort_by(|(a, _), (b, _)| a.cmp(b));
            update.deletes.sort();
        }
        Ok(())
    }
}
