use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Invalid, Revision};
use fairmesh_wire::{
    handshake::{ConnectError, Connection},
    shard_encoding,
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
    Desired, FollowerConfig, FollowerState, Sink,
    ack_batcher::AckBatcher,
    assembler::{Assembler, Event},
    failover::Failover,
    random,
    refusal_retry::RefusalRetry,
    subscriptions::{StaleUpstream, Subscriptions},
};
use crate::{Entry, Update, followed_prefixes::MAX_PREFIXES};

/// Time for which an upstream may be older than the copy before this counts as an error. An upstream that merely lags
/// has caught up by then.
const MAX_BEHIND: Duration = Duration::from_secs(5);

/// Time without a connection before this is a warning, since the processes of a machine start in any order.
const UNREACHABLE_WARNING: Duration = Duration::from_secs(5);

/// Follows one upstream after another.
pub(super) struct FollowerTask<S> {
    config: FollowerConfig,
    sink: S,
    desired: Arc<Desired>,
    subscriptions: Subscriptions,
    acks: AckBatcher,
    failover: Failover,
    refusals: RefusalRetry,
    /// Revision whose acknowledgement the upstream requests, for `relay_acks`.
    ack_requested: watch::Sender<Option<Revision>>,
    /// Number of consecutive failed attempts. A connection that is refused before its first update counts as failed.
    failures: u32,
    /// Whether the log has a warning of this disconnection.
    is_warned: bool,
    /// Revision of an upstream that is behind the copy, and when to warn about it.
    behind: Option<(u64, Instant)>,
    /// Cancelled to unsubscribe from everything and end.
    closing: CancellationToken,
    /// Notified when the next attempt should not wait for the backoff.
    retry: watch::Receiver<()>,
}

/// Reason why a connection ended or could not be established.
#[derive(Debug, thiserror::Error)]
enum DisconnectReason {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{}", .0.message())]
    Status(Box<Status>),
    #[error("it sent an unreadable message: {0}")]
    Unreadable(#[from] Invalid),
    #[error("the local copy differs from what it sent, and is fetched again: {0}")]
    PatchMismatch(Invalid),
    #[error(transparent)]
    StaleUpstream(#[from] StaleUpstream),
    #[error("it is disconnected from its own upstream; trying another address")]
    Stale,
    #[error("this process closed it")]
    Closed,
}

impl From<Status> for DisconnectReason {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl<S: Sink> FollowerTask<S> {
    pub(super) fn new(
        config: FollowerConfig,
        sink: S,
        desired: Arc<Desired>,
        ack_requested: watch::Sender<Option<Revision>>,
        (closing, retry): (CancellationToken, watch::Receiver<()>),
    ) -> Self {
        let (subscriptions, acks, failover) = Default::default();
        // Only processes that serve others refuse lagging upstreams.
        let refusals = RefusalRetry::new(config.refuse_lagging);
        Self {
            config,
            sink,
            desired,
            subscriptions,
            acks,
            failover,
            refusals,
            ack_requested,
            failures: 0,
            is_warned: false,
            behind: None,
            closing,
            retry,
        }
    }

    /// Follows upstreams until `stop`.
    pub(super) async fn run(
        mut self,
        state: watch::Sender<FollowerState>,
        connection: watch::Sender<Option<Connection>>,
        stop: CancellationToken,
    ) {
        let addresses = self.config.addresses.clone();
        for address in addresses.iter().cycle() {
            let ended = tokio::select! {
                ended = self.follow(address, &state, &connection) => ended,
                () = stop.cancelled() => return,
            };
            if self.closing.is_cancelled() {
                return;
            }
            self.desired.lock().changed = None;
            if connection.send_replace(None).is_some() {
                self.sink.disconnected();
                // Retry requests from before or during this connection no longer count. Otherwise a fleet whose
                // upstream restarts would reconnect at the same moment.
                self.retry.mark_unchanged();
            }
            let delay = self.record_disconnect(address, &ended, &state);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // Every address is tried again before the backoff grows.
                Ok(()) = self.retry.changed() => self.failures = 0,
                () = stop.cancelled() => return,
                () = self.closing.cancelled() => return,
            }
        }
    }

    /// Records the end of a connection and returns the backoff.
    fn record_disconnect(
        &mut self,
        address: &Address,
        reason: &DisconnectReason,
        state: &watch::Sender<FollowerState>,
    ) -> Duration {
        let was = state.borrow().clone();
        self.failures = self.failures.saturating_add(1);
        let failures = self.failures;
        // Logs once when every address has failed, and warns once if that lasts; other failures are logged at debug level.
        let all = u32::try_from(self.config.addresses.len()).unwrap_or(u32::MAX).max(1);
        match was.connected {
            true => {
                self.is_warned = false;
                tracing::warn!(%address, %reason, "lost the connection to the upstream; keeping the copy");
            }
            false if failures == all => {
                tracing::info!(%address, %reason, "no upstream responds yet; retrying, it may be starting");
            }
            false if failures > all && !self.is_warned && was.since.elapsed() >= UNREACHABLE_WARNING => {
                self.is_warned = true;
                tracing::warn!(%address, %reason, "no upstream is reachable; retrying: check that one runs there");
            }
            false => tracing::debug!(%address, %reason, failures, "no upstream is reachable"),
        }
        let since = if was.connected { Instant::now() } else { was.since };
        let error = Some(reason.to_string());
        state.send_replace(FollowerState {
            connected: false,
            since,
            failures,
            error,
            address: Some(address.clone()),
            ..was
        });
        // Every address is tried once before the backoff grows.
        let rounds = failures.div_ceil(all);
        self.config.backoff.delay(rounds, random())
    }

    async fn follow(
        &mut self,
        address: &Address,
        state: &watch::Sender<FollowerState>,
        connection: &watch::Sender<Option<Connection>>,
    ) -> DisconnectReason {
        let FollowerConfig { transport, software, .. } = &self.config;
        let opened = Watch::open(transport, address, software).await;
        let watch = match opened {
            Ok(watch) => watch,
            Err(error) => return error.into(),
        };
        let beside = Connection::lazy(watch.hello().clone(), transport, address, software);
        let hello = &beside.hello;
        tracing::info!(%address, upstream = hello.software, "following");
        state.send_replace(FollowerState {
            connected: true,
            since: Instant::now(),
            failures: self.failures,
            location: hello.location.clone(),
            store: hello.store,
            address: Some(address.clone()),
            error: None,
        });
        connection.send_replace(Some(beside));
        match self.run_watch(watch, state).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn run_watch(
        &mut self,
        mut watch: Watch,
        state: &watch::Sender<FollowerState>,
    ) -> Result<std::convert::Infallible, DisconnectReason> {
        self.behind = None;
        let mut assembler = Assembler::default();
        self.subscriptions.disconnected();
        self.acks = AckBatcher::default();
        self.failover.connected();
        self.refusals.end();
        let alone = self.config.addresses.len() < 2;
        loop {
            self.send_requests(&mut watch);
            let due = self.acks.due();
            let leave = self.failover.due().filter(|_| !alone);
            let warn = self.behind.map(|(_, warn)| warn);
            let retry = self.refusals.due();
            tokio::select! {
                message = watch.next() => {
                    if let Some(event) = assembler.push(message?)? {
                        self.handle_event(event, state)?;
                    }
                }
                () = self.desired.changed.notified() => {}
                () = self.closing.cancelled() => {
                    self.subscriptions.unsubscribe_all().for_each(|request| watch.send(&request));
                    // The connection may be lost already. The upstream then waits for this follower as for any other.
                    let _ = watch.close().await;
                    return Err(DisconnectReason::Closed);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = sleep_until(warn.unwrap_or_else(Instant::now)), if warn.is_some() => self.warn_behind(state),
                () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => self.retry_refused(&mut watch),
                () = sleep_until(leave.unwrap_or_else(Instant::now)), if leave.is_some() => {
                    self.failover.left();
                    return Err(DisconnectReason::Stale);
                }
            }
        }
    }

    /// Sends due requests and acknowledgements.
    fn send_requests(&mut self, watch: &mut Watch) {
        let mut outbox = VecDeque::new();
        let mut wanted = self.desired.lock();
        let (over_limit, applied) =
            (self.subscriptions.reconcile(&mut wanted, S::TAKES_PATCHES, &mut outbox), wanted.ack);
        drop(wanted);
        outbox.extend(applied.and_then(|ack| self.acks.take(ack, Instant::now(), random())));
        outbox.iter().for_each(|request| watch.send(request));
        for prefix in over_limit {
            self.sink.refused(
                &prefix,
                &format!("one watch holds {MAX_PREFIXES} prefixes, all in use; follow shorter prefixes"),
            );
        }
    }

    /// Subscribes again to the refused prefixes. Warns once if the refusal lasts.
    fn retry_refused(&mut self, watch: &mut Watch) {
        let refused = self.subscriptions.all_refused();
        let Some((prefix, reason)) = refused.first_key_value() else {
            // They were unsubscribed meanwhile.
            return self.refusals.end();
        };
        self.subscriptions.retry_refused(S::TAKES_PATCHES).for_each(|request| watch.send(&request));
        if let Some(since) = self.refusals.retried(Instant::now()) {
            let (since_s, others) = (since.as_secs(), refused.len() - 1);
            tracing::warn!(%prefix, reason, since_s, others, "the upstream does not serve a prefix; it is subscribed to again");
        }
    }

    /// Warns that the upstream has not caught up with the copy. After a restore of the store from a backup, it never
    /// will.
    fn warn_behind(&mut self, state: &watch::Sender<FollowerState>) {
        let Some((offered, _)) = self.behind.take() else { return };
        let held = self.subscriptions.latest_copy().unwrap_or_default();
        let reason = StaleUpstream::Waiting { held, offered }.to_string();
        tracing::warn!(reason, "the upstream is behind the local copy, which gets no changes");
        state.send_modify(|state| state.error = Some(reason));
    }

    fn handle_event(
        &mut self,
        event: Event,
        state: &watch::Sender<FollowerState>,
    ) -> Result<(), DisconnectReason> {
        match event {
            Event::Update { mut update, patches } => {
                self.apply_patches(&mut update, &patches)?;
                self.subscriptions.record(&mut update, self.config.refuse_lagging)?;
                self.acks.update_received();
                let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
                let age = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max();
                if let Some(age) = age {
                    self.failover.subscription_age(age, Instant::now(), random());
                }
                self.failures = 0;
                if self.subscriptions.all_refused().is_empty() {
                    self.refusals.end();
                }
                let revision = update.revision;
                self.sink.update(update);
                if S::APPLIES_AT_ONCE {
                    self.desired.ack(revision);
                }
            }
            Event::Refused { prefix, reason } => {
                self.refusals.refused(Instant::now(), random());
                if self.subscriptions.refused(&prefix, &reason) {
                    self.sink.refused(&prefix, &reason);
                }
            }
            Event::AgeUpdate { age, behind } => {
                self.behind = behind.map(|upstream| (upstream.number, Instant::now() + MAX_BEHIND));
                state.send_if_modified(|state| behind.is_none() && state.error.take().is_some());
                if behind.is_none() {
                    self.failover.age_update(age, Instant::now(), random());
                    self.sink.age_update(age);
                }
            }
            Event::AckRequest { revision } => {
                self.acks.request_ack(revision);
                self.ack_requested.send_replace(Some(revision));
            }
        }
        Ok(())
    }

    /// Applies patches and adds the results to an update.
    ///
    /// # Errors
    /// When the copy is not the base of a patch. The update must then not be applied, and the whole value is
    /// requested again.
    fn apply_patches(&mut self, update: &mut Update, patches: &[Bytes]) -> Result<(), DisconnectReason> {
        for patch in patches {
            let patch = shard_encoding::Patch::read(patch)?;
            let manifest = patch.manifest();
            if !self.subscriptions.is_live(&manifest) {
                // The prefix was unsubscribed or requested again while the patch was in flight.
                continue;
            }
            let changes =
                patch.apply(update.revision.number, |key| self.sink.patch_base(key)).map_err(|mismatch| {
                    self.subscriptions.invalidate(&manifest);
                    DisconnectReason::PatchMismatch(mismatch)
                })?;
            for (key, value) in changes {
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
