use std::{
    collections::BTreeMap,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use fairmesh_model::{Cursor, Identity, Prefix};
use fairmesh_wire::{
    v1::{self, watch_request::Kind},
    watch::{self, WatchServer},
};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::{Sleep, sleep_until};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    FollowedPrefix, MAX_FOLLOWED_BYTES, MAX_PREFIXES, PrefixGuard, ServedRib, WatchPrefixes,
    delta_cache::DeltaCache,
    messages::{self, Messages},
    outbox::Outbox,
    refused, too_many_prefixes,
};
use crate::{PeerInfo, Update, Watcher, access::Caller};

/// Approximate size of one write to the socket, in bytes. A separate write for each of many small messages would be
/// costly.
const WRITE_BATCH_BYTES: usize = 64 * 1024;

type Preparation = Pin<Box<dyn Future<Output = (Prefix, Result<(), String>)> + Send>>;

/// One watch on the server side.
pub(super) struct Session<B: ServedRib> {
    backend: B,
    watcher: Watcher,
    caller: Caller,
    /// Completes when the caller's token expires.
    expiry: Option<Pin<Box<Sleep>>>,
    watched: WatchServer,
    delta_cache: Arc<DeltaCache>,
    subscriptions: BTreeMap<Prefix, Subscription<B>>,
    followed: WatchPrefixes,
    /// Prefixes that the backend is preparing.
    preparing: FuturesUnordered<Preparation>,
    /// Unsent messages of the last pull. Nothing more is pulled until they are sent, so that a slow caller gets later
    /// values instead of a queue.
    outbox: Outbox,
    /// Whether changes may be pending.
    pull_due: bool,
    /// Whether the caller announced further subscriptions to be served together.
    more_follows: bool,
    ages: Option<WatchStream<u64>>,
    permissions: Option<WatchStream<u64>>,
    /// Whether the permissions of subscriptions must be checked again.
    check_due: bool,
    /// Whether the caller was notified that all its data is current.
    reported_current: bool,
    /// Whether the caller accepts age updates.
    takes_age_updates: bool,
    /// Whether the caller may hold copies from after the node's revision.
    may_be_ahead: bool,
    /// Whether the caller was notified that its copies are from after the node's revision.
    reported_ahead: bool,
    /// Revision up to which the caller was asked to acknowledge.
    ack_requested: u64,
}

struct Subscription<B: ServedRib> {
    _guard: PrefixGuard<B>,
    _followed: FollowedPrefix,
    from: Option<Cursor>,
    served: bool,
}

/// Returns the refusal of a prefix for which no memory is left.
fn too_many_followed() -> String {
    format!(
        "RESOURCE_EXHAUSTED: the prefixes that all watches here follow use nearly {} MB, or those of this peer a quarter of it, and a \
         watch that follows as many as this gets no more; watch at another replica, or follow less",
        MAX_FOLLOWED_BYTES >> 20
    )
}

impl<B: ServedRib> Session<B> {
    pub(super) fn new(
        backend: B,
        (watcher, caller): (Watcher, Caller),
        watched: WatchServer,
        delta_cache: Arc<DeltaCache>,
    ) -> Self {
        let expiry = caller.user.as_ref().map(|user| Box::pin(sleep_until(user.ends)));
        let is_known = caller.identity != Identity::Anonymous || caller.user.is_some();
        let followed = backend.node().followed().watch(is_known.then(|| caller.to_string()));
        let ages = backend.age_changes().map(WatchStream::from_changes);
        let permissions = backend.permission_changes().map(WatchStream::from_changes);
        Self {
            backend,
            watcher,
            caller,
            expiry,
            watched,
            delta_cache,
            subscriptions: BTreeMap::new(),
            followed,
            preparing: FuturesUnordered::new(),
            outbox: Outbox::default(),
            pull_due: false,
            more_follows: false,
            ages,
            permissions,
            check_due: false,
            reported_current: true,
            takes_age_updates: false,
            may_be_ahead: false,
            reported_ahead: false,
            ack_requested: 0,
        }
    }

    /// Serves until either side ends the watch, and returns the final status.
    ///
    /// The task that writes to the connection also builds the updates, when the connection is ready. A second task
    /// and a channel were rejected: with ten thousand watchers of a change, waking another task per watcher costs a
    /// fifth of the total.
    pub(super) async fn run(mut self, closing: CancellationToken) -> Status {
        let status = tokio::select! {
            biased;
            status = poll_fn(|cx| self.poll(cx)) => status,
            () = closing.cancelled() => Status::unavailable("this process is stopping; connect again"),
        };
        // Dropped now, so that a wait for this watcher's acknowledgement does not last until the final message is
        // written.
        drop(self.watcher);
        self.watched.end(&status).await;
        status
    }

    /// Ready with the final status when the watch has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.expiry.as_mut().is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Status::unauthenticated(
                "the token of this watch has expired (exp); watch again with a new one",
            ));
        }
        loop {
            if let Err(status) = self.receive(cx) {
                return Poll::Ready(status);
            }
            let paused = self.outbox.is_full();
            match self.poll_send(cx) {
                // Requests are waiting, and there is now room for their refusals.
                Poll::Ready(Ok(())) if paused => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(status)) => return Poll::Ready(status),
            }
        }
    }

    /// Handles requests, prepared prefixes and wake-ups while there is room for refusals.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        while !self.outbox.is_full()
            && let Poll::Ready(request) = self.watched.poll_request(cx)
        {
            self.handle_request(request?)?;
        }
        while !self.outbox.is_full()
            && let Poll::Ready(Some((prefix, ready))) = self.preparing.poll_next_unpin(cx)
        {
            self.prepared(&prefix, ready);
        }
        while let Some(permissions) = &mut self.permissions
            && let Poll::Ready(Some(_)) = permissions.poll_next_unpin(cx)
        {
            self.check_due = true;
        }
        if self.check_due {
            self.end_forbidden();
        }
        while self.watcher.poll_woken(cx).is_ready() || self.poll_ticked(cx).is_ready() {
            self.pull_due = true;
        }
        Ok(())
    }

    /// Ends subscriptions that the caller is no longer permitted to have, while there is room for refusals.
    fn end_forbidden(&mut self) {
        let refused =
            |prefix: &Prefix| Some((prefix.clone(), self.backend.permits(&self.caller, prefix).err()?));
        let forbidden: Vec<_> = self.subscriptions.keys().filter_map(refused).collect();
        self.check_due = false;
        for (prefix, reason) in forbidden {
            if self.outbox.is_full() {
                self.check_due = true;
                return;
            }
            self.watcher.unsubscribe(&prefix);
            self.subscriptions.remove(&prefix);
            self.outbox.refuse(&prefix, reason);
        }
    }

    /// Ready when all messages are sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            ready!(self.watched.poll_flush(cx))?;
            if !self.send_next() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ready when ages may have changed.
    fn poll_ticked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(ages) = &mut self.ages else { return Poll::Pending };
        match ages.poll_next_unpin(cx) {
            Poll::Ready(Some(_)) => Poll::Ready(()),
            Poll::Ready(None) => {
                self.ages = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Passes the next messages to the socket, if any. Called when all earlier messages are written.
    fn send_next(&mut self) -> bool {
        if self.outbox.is_empty() && self.pull_due && !self.more_follows && self.pull() {
            return true;
        }
        let mut bytes = 0;
        while bytes < WRITE_BATCH_BYTES
            && let Some(message) = self.outbox.pop()
        {
            let frame = watch::frame(&message);
            bytes += frame.len();
            self.watched.send(frame);
        }
        bytes > 0
    }

    /// Pulls the pending changes. Returns true if they were passed to the socket, false if they are in the outbox.
    fn pull(&mut self) -> bool {
        self.pull_due = false;
        let mut sent = false;
        if let Some(pending) = self.watcher.pull_with_bases() {
            if DeltaCache::is_shareable(&pending) {
                self.watched.send(self.delta_cache.frame(pending));
                sent = true;
            } else {
                let update = self.with_ages(pending.update);
                self.outbox.set_update(Messages::new(update, Vec::new()));
            }
        }
        // Sent after the data: the caller is current only once it has the changes that it missed, and can acknowledge
        // only data that it was sent.
        if let Some(update) = self.age_update() {
            self.outbox.notify(update);
        }
        if let Some(update) = self.ahead_update() {
            self.outbox.notify(update);
        }
        if let Some(request) = self.ack_request() {
            self.outbox.notify(request);
        }
        sent
    }

    /// Fills in the ages of the copies in an update.
    fn with_ages(&mut self, mut update: Update) -> Update {
        let resumed = update.resumed.iter_mut().map(|resumed| (&resumed.prefix, &mut resumed.age));
        let snapshots = update.snapshots.iter_mut().map(|snapshot| (&snapshot.prefix, &mut snapshot.age));
        for (prefix, age) in resumed.chain(snapshots) {
            *age = self.backend.age(prefix);
            self.reported_current &= age.is_zero();
        }
        update
    }

    /// Returns the age update to send; `None` if the caller already has it.
    fn age_update(&mut self) -> Option<v1::WatchResponse> {
        if self.ages.is_none() || !self.takes_age_updates {
            return None;
        }
        let oldest = self.oldest_age();
        let was = std::mem::replace(&mut self.reported_current, oldest.is_zero());
        (was != self.reported_current).then(|| messages::age_update(oldest, None))
    }

    fn oldest_age(&self) -> Duration {
        let ages = !self.backend.max_age().is_zero();
        let served = self.subscriptions.iter().filter(|(_, subscription)| ages && subscription.served);
        served.map(|(prefix, _)| self.backend.age(prefix)).max().unwrap_or_default()
    }

    /// Returns the message on whether the caller's copies are from after the node's revision; `None` if the caller
    /// already has it.
    fn ahead_update(&mut self) -> Option<v1::WatchResponse> {
        if !self.may_be_ahead || !self.takes_age_updates {
            return None;
        }
        self.may_be_ahead = self.watcher.is_ahead();
        if std::mem::replace(&mut self.reported_ahead, self.may_be_ahead) == self.may_be_ahead {
            return None;
        }
        let behind = self.may_be_ahead.then(|| self.backend.node().revision());
        Some(messages::age_update(self.oldest_age(), behind))
    }

    /// Returns the acknowledgement request to send; `None` if there is none or it was sent before.
    fn ack_request(&mut self) -> Option<v1::WatchResponse> {
        let wanted = self.watcher.ack_requested();
        if std::mem::replace(&mut self.ack_requested, wanted) == wanted || wanted == 0 {
            return None;
        }
        self.backend.node().store().map(|store| messages::ack_request(store, wanted))
    }

    fn handle_request(&mut self, message: v1::WatchRequest) -> Result<(), Status> {
        match message.kind {
            Some(Kind::Subscribe(subscribe)) => self.subscribe(subscribe),
            Some(Kind::Unsubscribe(text)) => {
                let prefix = Prefix::new(text).map_err(refused)?;
                self.watcher.unsubscribe(&prefix);
                self.subscriptions.remove(&prefix);
                Ok(())
            }
            Some(Kind::Applied(cursor)) => {
                self.watcher.ack(&Cursor::try_from(cursor).map_err(refused)?);
                Ok(())
            }
            Some(Kind::PeerInfo(info)) => {
                // A description that cannot be read, from a newer caller, is no reason to refuse service.
                if let Ok(info) = PeerInfo::try_from(info)
                    && info.may_be_of(&self.caller.identity)
                {
                    self.watcher.set_peer_info(info);
                }
                Ok(())
            }
            // A message from a newer caller. The caller agreed on this version, so it does not depend on a response.
            // A second hello is harmless.
            Some(Kind::Hello(_)) | None => Ok(()),
        }
    }

    fn subscribe(&mut self, subscribe: v1::Subscribe) -> Result<(), Status> {
        let prefix = Prefix::new(subscribe.prefix).map_err(refused)?;
        let from = subscribe.from.map(Cursor::try_from).transpose().map_err(refused)?;
        self.more_follows = subscribe.more;
        self.takes_age_updates |= subscribe.age_updates;
        self.may_be_ahead |= from.is_some();
        if subscribe.patches {
            self.watcher.enable_patches();
        }
        if let Some(existing) = self.subscriptions.get_mut(&prefix) {
            existing.from = from;
            if existing.served {
                self.watcher.subscribe(prefix, existing.from.clone());
            }
            return Ok(());
        }
        if let Err(reason) = self.backend.permits(&self.caller, &prefix) {
            self.outbox.refuse(&prefix, reason);
            return Ok(());
        }
        if self.subscriptions.len() >= MAX_PREFIXES || self.preparing.len() >= MAX_PREFIXES {
            return Err(too_many_prefixes(MAX_PREFIXES));
        }
        let Some(followed) = self.followed.admit(&prefix) else {
            self.outbox.refuse(&prefix, too_many_followed());
            return Ok(());
        };
        let wanted = (&prefix, self.subscriptions.len());
        let guard = match PrefixGuard::new(&self.backend, &self.caller, wanted) {
            Ok(guard) => guard,
            Err(reason) => {
                self.followed.count_refusal();
                self.outbox.refuse(&prefix, reason);
                return Ok(());
            }
        };
        let subscription = Subscription { _guard: guard, _followed: followed, from, served: false };
        self.subscriptions.insert(prefix.clone(), subscription);
        let (backend, requested) = (self.backend.clone(), prefix.clone());
        let mut preparing: Preparation = Box::pin(async move {
            let ready = backend.ready(&requested).await;
            (requested, ready)
        });
        // A prefix that is ready at once is served at once, so that subscriptions requested together are served
        // together.
        match (&mut preparing).now_or_never() {
            Some((prefix, ready)) => self.prepared(&prefix, ready),
            None => self.preparing.push(preparing),
        }
        Ok(())
    }

    fn prepared(&mut self, prefix: &Prefix, ready: Result<(), String>) {
        let Some(subscription) = self.subscriptions.get_mut(prefix).filter(|existing| !existing.served)
        else {
            return;
        };
        match ready {
            Ok(()) => {
                subscription.served = true;
                self.watcher.subscribe(prefix.clone(), subscription.from.clone());
            }
            Err(reason) => {
                // Removed, so that a repeated request is served again.
                self.subscriptions.remove(prefix);
                self.outbox.refuse(prefix, reason);
            }
        }
    }
}
