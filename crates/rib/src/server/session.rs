use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    pin::Pin,
};

use fairmesh_model::{Cursor, Prefix};
use fairmesh_wire::v1::{self, watch_request::Kind};
use futures_util::{
    FutureExt, Stream, StreamExt,
    stream::{self, FuturesUnordered},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{Backend, Claim, MAX_PREFIXES, frames, refused, too_many_prefixes};
use crate::{About, Watcher};

type Answer = Result<v1::WatchResponse, Status>;
type Joining = Pin<Box<dyn Future<Output = (Prefix, Result<(), String>)> + Send>>;

/// One watch.
pub(super) struct Session<B: Backend> {
    backend: B,
    watcher: Watcher,
    subscriptions: BTreeMap<Prefix, Subscription<B>>,
    /// Prefixes that the backend is making ready.
    joining: FuturesUnordered<Joining>,
    /// What is left of the last pull: nothing more is pulled before the caller took it, so that a slow caller finds
    /// later values and not a queue of all.
    outbox: VecDeque<v1::WatchResponse>,
    /// Whether there may be something to pull.
    due: bool,
    /// Whether the caller announced more subscriptions to be answered together.
    holding: bool,
    ages: Option<watch::Receiver<u64>>,
    /// Whether, by what the caller was told, nothing that it has ages.
    in_touch: bool,
    /// Whether the caller understands to be told when that changes.
    hears_contact: bool,
}

struct Subscription<B: Backend> {
    _claim: Claim<B>,
    from: Option<Cursor>,
    served: bool,
}

impl<B: Backend> Session<B> {
    pub(super) fn new(backend: B, watcher: Watcher) -> Self {
        let ages = backend.ages();
        Self {
            backend,
            watcher,
            subscriptions: BTreeMap::new(),
            joining: FuturesUnordered::new(),
            outbox: VecDeque::new(),
            due: false,
            holding: false,
            ages,
            in_touch: true,
            hears_contact: false,
        }
    }

    /// The answers until either side ends the watch; `permit` is held as long.
    ///
    /// They are worked out by whoever writes them to the connection, as it is ready for them. A task of its own and a channel
    /// between were rejected: with ten thousand watchers of one change, waking another task for each costs a fifth of all.
    pub(super) fn answers<P: Send>(
        self,
        asked: Streaming<v1::WatchRequest>,
        closing: CancellationToken,
        permit: P,
    ) -> impl Stream<Item = Answer> + Send {
        stream::unfold(Some((self, asked, closing, permit)), async |under_way| {
            let (mut session, mut asked, closing, permit) = under_way?;
            let answer = session.answer(&mut asked, &closing).await?;
            // After a refusal nothing follows.
            let rest = answer.is_ok().then_some((session, asked, closing, permit));
            Some((answer, rest))
        })
    }

    /// The next answer; `None` where nobody is left to tell.
    async fn answer(
        &mut self,
        asked: &mut Streaming<v1::WatchRequest>,
        closing: &CancellationToken,
    ) -> Option<Answer> {
        loop {
            let sending = !self.outbox.is_empty() || (self.due && !self.holding);
            if sending && let Some(message) = self.next_message() {
                return Some(Ok(message));
            }
            tokio::select! {
                message = asked.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(status) = self.asked(message) {
                            return Some(Err(status));
                        }
                    }
                    // The caller hung up or its connection broke.
                    Ok(None) | Err(_) => return None,
                },
                Some((prefix, ready)) = self.joining.next(), if !self.joining.is_empty() => {
                    self.joined(&prefix, ready);
                }
                () = self.watcher.woken() => self.due = true,
                () = ticked(&mut self.ages) => self.due = true,
                () = closing.cancelled() => {
                    return Some(Err(Status::unavailable("this process is stopping; connect again")));
                }
            }
        }
    }

    fn next_message(&mut self) -> Option<v1::WatchResponse> {
        if self.outbox.is_empty() {
            self.due = false;
            if let Some(update) = self.watcher.pull() {
                let (backend, in_touch) = (&self.backend, &mut self.in_touch);
                self.outbox = frames::cut(update, |prefix| {
                    let age = backend.age(prefix);
                    *in_touch &= age.is_zero();
                    age
                });
            }
            // After the data, so that nobody is said to be in touch who has yet to see what was missed.
            let contact = self.contact();
            self.outbox.extend(contact);
        }
        self.outbox.pop_front()
    }

    /// What to tell of the age of what the caller has; `None` where it knows.
    fn contact(&mut self) -> Option<v1::WatchResponse> {
        if self.ages.is_none() || !self.hears_contact {
            return None;
        }
        let served = self.subscriptions.iter().filter(|(_, subscription)| subscription.served);
        let oldest = served.map(|(prefix, _)| self.backend.age(prefix)).max().unwrap_or_default();
        let was = std::mem::replace(&mut self.in_touch, oldest.is_zero());
        (was != self.in_touch).then(|| frames::contact(oldest))
    }

    fn asked(&mut self, message: v1::WatchRequest) -> Result<(), Status> {
        match message.kind {
            Some(Kind::Subscribe(subscribe)) => self.subscribe(subscribe),
            Some(Kind::Unsubscribe(text)) => {
                let prefix = Prefix::new(text).map_err(refused)?;
                self.watcher.unsubscribe(&prefix);
                self.subscriptions.remove(&prefix);
                Ok(())
            }
            Some(Kind::Applied(cursor)) => {
                self.watcher.acked(&Cursor::try_from(cursor).map_err(refused)?);
                Ok(())
            }
            Some(Kind::About(about)) => {
                // What a newer caller says of itself, and is not understood here, is no reason to serve it less.
                if let Ok(about) = About::try_from(about) {
                    self.watcher.introduce(about);
                }
                Ok(())
            }
            // A newer caller's message: it agreed on this version, so it can do without an answer.
            None => Ok(()),
        }
    }

    fn subscribe(&mut self, subscribe: v1::Subscribe) -> Result<(), Status> {
        let prefix = Prefix::new(subscribe.prefix).map_err(refused)?;
        let from = subscribe.from.map(Cursor::try_from).transpose().map_err(refused)?;
        self.holding = subscribe.more;
        self.hears_contact |= subscribe.contact;
        if let Some(known) = self.subscriptions.get_mut(&prefix) {
            known.from = from;
            if known.served {
                self.watcher.subscribe(prefix, known.from.clone());
            }
            return Ok(());
        }
        if self.subscriptions.len() >= MAX_PREFIXES || self.joining.len() >= MAX_PREFIXES {
            return Err(too_many_prefixes());
        }
        let claim = Claim::new(&self.backend, &prefix);
        self.subscriptions.insert(prefix.clone(), Subscription { _claim: claim, from, served: false });
        let (backend, asked) = (self.backend.clone(), prefix.clone());
        let mut joining: Joining = Box::pin(async move {
            let ready = backend.ready(&asked).await;
            (asked, ready)
        });
        // What is ready at once is followed at once, so that subscriptions asked for together are answered together.
        match (&mut joining).now_or_never() {
            Some((prefix, ready)) => self.joined(&prefix, ready),
            None => self.joining.push(joining),
        }
        Ok(())
    }

    fn joined(&mut self, prefix: &Prefix, ready: Result<(), String>) {
        let Some(subscription) = self.subscriptions.get_mut(prefix).filter(|known| !known.served) else {
            return;
        };
        match ready {
            Ok(()) => {
                subscription.served = true;
                self.watcher.subscribe(prefix.clone(), subscription.from.clone());
            }
            Err(reason) => {
                // Given up, so that whoever asks again is answered again.
                self.subscriptions.remove(prefix);
                self.outbox.push_back(frames::refusal(prefix, reason));
            }
        }
    }
}

/// Waits until ages may have changed; for ever, where they never do.
async fn ticked(ages: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = ages
        && receiver.changed().await.is_err()
    {
        *ages = None;
    }
    if ages.is_none() {
        pending().await
    }
}
