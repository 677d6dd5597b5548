use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{Invalid, arith::mix64};
use fairmesh_wire::{
    handshake::{self, ConnectError, Connection},
    transport::Address,
    v1,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{
    Shared, Sink, State, UpstreamConfig,
    collect::{Collector, Event},
    subscriptions::{Lag, Subscriptions},
};
use crate::server::MAX_PREFIXES;

/// How long a connected upstream may take to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows one upstream after another.
pub(super) struct Follower<S> {
    config: UpstreamConfig,
    sink: S,
    shared: Arc<Shared>,
    subscriptions: Subscriptions,
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
    #[error("it ended the watch")]
    Closed,
    #[error("it did not begin to answer within {ANSWER_TIMEOUT:?}")]
    NoAnswer,
    #[error("it sent what cannot be read: {0}")]
    Unreadable(#[from] Invalid),
    #[error(transparent)]
    Lag(#[from] Lag),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl<S: Sink> Follower<S> {
    pub(super) fn new(config: UpstreamConfig, sink: S, shared: Arc<Shared>) -> Self {
        Self { config, sink, shared, subscriptions: Subscriptions::default(), fruitless: 0 }
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
        self.config.backoff.delay(rounds, mix64(RandomState::new().build_hasher().finish()))
    }

    async fn follow(
        &mut self,
        address: &Address,
        state: &watch::Sender<State>,
        connection: &watch::Sender<Option<Connection>>,
    ) -> Ended {
        let opened = match handshake::connect(address, &self.config.software).await {
            Ok(opened) => opened,
            Err(error) => return error.into(),
        };
        let (asks, requests) = mpsc::channel(1);
        let mut rib = opened.rib();
        let answers =
            match tokio::time::timeout(ANSWER_TIMEOUT, rib.watch(ReceiverStream::new(requests))).await {
                Ok(Ok(answers)) => answers.into_inner(),
                Ok(Err(status)) => return status.into(),
                Err(_) => return Ended::NoAnswer,
            };
        let hello = &opened.hello;
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
        connection.send_replace(Some(opened));
        match self.exchange(asks, answers).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn exchange(
        &mut self,
        asks: mpsc::Sender<v1::WatchRequest>,
        mut answers: Streaming<v1::WatchResponse>,
    ) -> Result<std::convert::Infallible, Ended> {
        let (mut outbox, mut collector) = (VecDeque::new(), Collector::default());
        self.subscriptions.disconnected();
        self.reconcile(&mut outbox);
        loop {
            tokio::select! {
                permit = asks.reserve(), if !outbox.is_empty() => match (permit, outbox.pop_front()) {
                    (Ok(permit), Some(ask)) => permit.send(ask),
                    _ => return Err(Ended::Closed),
                },
                message = answers.message() => {
                    let message = message?.ok_or(Ended::Closed)?;
                    if let Some(event) = collector.take(message)? {
                        self.take(event)?;
                    }
                }
                () = self.shared.changed.notified() => self.reconcile(&mut outbox),
            }
        }
    }

    fn reconcile(&mut self, outbox: &mut VecDeque<v1::WatchRequest>) {
        let left_out = self.subscriptions.reconcile(&self.shared.lock(), outbox);
        for prefix in left_out {
            self.sink.refused(
                &prefix,
                &format!("one watch holds {MAX_PREFIXES} prefixes; follow folders further up"),
            );
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Ended> {
        match event {
            Event::Update(mut update) => {
                self.subscriptions.note(&mut update, self.config.refuse_lagging)?;
                self.fruitless = 0;
                self.sink.update(update);
            }
            Event::Refused { prefix, reason } => self.sink.refused(&prefix, &reason),
            Event::Contact { age } => self.sink.contact(age),
        }
        Ok(())
    }
}
