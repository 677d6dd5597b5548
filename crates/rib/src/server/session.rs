use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use fairmesh_model::{Cursor, Prefix};
use fairmesh_wire::{
    v1::{self, watch_request::Kind},
    watch::{self, WatchServer},
};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{Backend, Claim, MAX_PREFIXES, deltas::Deltas, frames, refused, too_many_prefixes};
use crate::{About, Watcher};

/// How many bytes of messages are handed to the system at once, about: of many small ones, each would cost a call to it.
const AT_ONCE: usize = 64 * 1024;

type Joining = Pin<Box<dyn Future<Output = (Prefix, Result<(), String>)> + Send>>;

/// One watch.
pub(super) struct Session<B: Backend> {
    backend: B,
    watcher: Watcher,
    watched: WatchServer,
    deltas: Arc<Deltas>,
    subscriptions: BTreeMap<Prefix, Subscription<B>>,
    /// Prefixes that the backend is making ready.
    joining: FuturesUnordered<Joining>,
    /// What is left of the last pull: nothing more is pulled before the caller took it, so that a slow caller finds
    /// later values and not a queue of all.
    outbox: VecDeque<v1::WatchResponse>,
    /// Refusals said since the outbox was last empty: what is refused is no subscription, whose number is bounded.
    refusals: usize,
    /// Whether there may be something to pull.
    due: bool,
    /// Whether the caller announced more subscriptions to be answered together.
    holding: bool,
    ages: Option<WatchStream<u64>>,
    /// Whether, by what the caller was told, nothing that it has ages.
    in_touch: bool,
    /// Whether the caller understands to be told when that changes.
    hears_contact: bool,
    /// Up to which number the caller was asked to acknowledge at once.
    hurried: u64,
}

struct Subscription<B: Backend> {
    _claim: Claim<B>,
    from: Option<Cursor>,
    served: bool,
}

impl<B: Backend> Session<B> {
    pub(super) fn new(backend: B, watcher: Watcher, watched: WatchServer, deltas: Arc<Deltas>) -> Self {
        let ages = backend.ages().map(WatchStream::from_changes);
        Self {
            backend,
            watcher,
            watched,
            deltas,
            subscriptions: BTreeMap::new(),
            joining: FuturesUnordered::new(),
            outbox: VecDeque::new(),
            refusals: 0,
            due: false,
            holding: false,
            ages,
            in_touch: true,
            hears_contact: false,
            hurried: 0,
        }
    }

    /// Answers until either side ends the watch.
    ///
    /// Answers are worked out by whoever writes them to the connection, as it is ready for them. A task of its own and a channel
    /// between were rejected: with ten thousand watchers of one change, waking another task for each costs a fifth of all.
    pub(super) async fn run(mut self, closing: CancellationToken) {
        let why = tokio::select! {
            biased;
            why = poll_fn(|cx| self.poll(cx)) => why,
            () = closing.cancelled() => Status::unavailable("this process is stopping; connect again"),
        };
        // Whoever waits for its acknowledgement need not wait until its last words are out.
        drop(self.watcher);
        self.watched.end(&why).await;
    }

    /// Ready when the watch is over, with why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        while let Poll::Ready(asked) = self.watched.poll_request(cx) {
            if let Err(why) = asked.and_then(|message| self.asked(message)) {
                return Poll::Ready(why);
            }
        }
        while let Poll::Ready(Some((prefix, ready))) = self.joining.poll_next_unpin(cx) {
            self.joined(&prefix, ready);
        }
        while self.watcher.poll_woken(cx).is_ready() || self.poll_ticked(cx).is_ready() {
            self.due = true;
        }
        loop {
            match self.watched.poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Status::cancelled(error.to_string())),
                Poll::Pending => return Poll::Pending,
            }
            if !self.send() {
                return Poll::Pending;
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

    /// Hands on what is next to be sent, if there is something. Called when all before it is out.
    fn send(&mut self) -> bool {
        if self.outbox.is_empty() && self.due && !self.holding && self.pull() {
            return true;
        }
        let mut bytes = 0;
        while bytes < AT_ONCE
            && let Some(message) = self.outbox.pop_front()
        {
            let frame = watch::frame(&message);
            bytes += frame.len();
            self.watched.send(frame);
        }
        if bytes == 0 {
            self.refusals = 0;
        }
        bytes > 0
    }

    /// Looks what the watcher has yet to see. Returns whether it is handed on already; else it is in the outbox.
    fn pull(&mut self) -> bool {
        self.due = false;
        let mut sent = false;
        if let Some(pulled) = self.watcher.pull_held() {
            if Deltas::shares(&pulled) {
                self.watched.send(self.deltas.frame(pulled));
                sent = true;
            } else {
                let (backend, in_touch) = (&self.backend, &mut self.in_touch);
                self.outbox = frames::cut(pulled.update, Vec::new(), |prefix| {
                    let age = backend.age(prefix);
                    *in_touch &= age.is_zero();
                    age
                });
            }
        }
        // After the data, so that nobody is said to be in touch who has yet to see what was missed, and nobody asked for
        // what has yet to come.
        let contact = self.contact();
        self.outbox.extend(contact);
        let hurry = self.hurry();
        self.outbox.extend(hurry);
        sent
    }

    /// What to tell of the age of what the caller has; `None` where it knows.
    fn contact(&mut self) -> Option<v1::WatchResponse> {
        if self.ages.is_none() || !self.hears_contact {
            return None;
        }
        let ages = !self.backend.oldest().is_zero();
        let served = self.subscriptions.iter().filter(|(_, subscription)| ages && subscription.served);
        let oldest = served.map(|(prefix, _)| self.backend.age(prefix)).max().unwrap_or_default();
        let was = std::mem::replace(&mut self.in_touch, oldest.is_zero());
        (was != self.in_touch).then(|| frames::contact(oldest))
    }

    /// Up to where to ask for an acknowledgement; `None` where nobody waits, or the caller was asked.
    fn hurry(&mut self) -> Option<v1::WatchResponse> {
        let wanted = self.watcher.hurried();
        if std::mem::replace(&mut self.hurried, wanted) == wanted || wanted == 0 {
            return None;
        }
        self.backend.node().store().map(|store| frames::hurry(store, wanted))
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
            // A newer caller's message: it agreed on this version, so it can do without an answer. A second greeting is
            // none of ours and harmless.
            Some(Kind::Hello(_)) | None => Ok(()),
        }
    }

    fn subscribe(&mut self, subscribe: v1::Subscribe) -> Result<(), Status> {
        let prefix = Prefix::new(subscribe.prefix).map_err(refused)?;
        let from = subscribe.from.map(Cursor::try_from).transpose().map_err(refused)?;
        self.holding = subscribe.more;
        self.hears_contact |= subscribe.contact;
        if subscribe.patches {
            self.watcher.take_patches();
        }
        if let Some(known) = self.subscriptions.get_mut(&prefix) {
            known.from = from;
            if known.served {
                self.watcher.subscribe(prefix, known.from.clone());
            }
            return Ok(());
        }
        if self.subscriptions.len() >= MAX_PREFIXES
            || self.joining.len() >= MAX_PREFIXES
            || self.refusals >= MAX_PREFIXES
        {
            return Err(too_many_prefixes(MAX_PREFIXES));
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
                self.refusals += 1;
                self.outbox.push_back(frames::refusal(prefix, reason));
            }
        }
    }
}
