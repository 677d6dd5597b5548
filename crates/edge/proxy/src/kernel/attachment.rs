//! Attachment of a listener to the eBPF programs: registers the listener while pinned maps exist, and releases the
//! maps when the proxy stops.

use std::{
    fs,
    net::SocketAddr,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
    process,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_calls::forwarding::on_connection;
use fairmesh_edge::forward::forwarder::Forwarder;
use fairmesh_kernel::{Counters, KernelError, listening};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::kernel::{
    attached_maps::{Attached, RedirectTarget},
    caller::KernelCaller,
    completed_calls::record_completed,
    container_listeners::{ContainerListener, Offer},
    metrics::KernelMetrics,
};

/// Interval of checks for changed pins, because `fairmesh kernel attach` and `detach` may run at any time, and for
/// unanswered requests.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit for the registration of a successor. A proxy without a successor waits for so long too, if its listener is still
/// open.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_millis(300);
/// Time limit for passing the listener of a container to a successor that has registered, and interval of the attempts. The
/// connections of the container are refused if the listener is closed before.
const PASS_TIMEOUT: Duration = Duration::from_secs(3);
const SUCCESSOR_INTERVAL: Duration = Duration::from_millis(10);

/// Time limit for recording the kernel's last calls when the proxy stops.
const RECORD_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which original destinations are looked up in maps that are no longer in use. Connections accepted before need theirs
/// when their tasks first run.
const LOOKUP_TIME: Duration = Duration::from_secs(5);

/// Maps shared with the eBPF programs; none while no program is attached.
#[derive(Debug)]
pub(crate) struct Attachment {
    attached: Arc<RwLock<AttachedMaps<Attached>>>,
    metrics: Arc<KernelMetrics>,
    /// Tasks that wait for outstanding calls and then release the maps.
    releases: TaskTracker,
}

/// The maps in use, and those in use before.
#[derive(Debug)]
struct AttachedMaps<T> {
    current: Option<Arc<T>>,
    /// Connections were accepted before the proxy stopped or the pins were replaced, and their tasks run afterwards. The kernel
    /// sends nothing for them.
    earlier: Option<Arc<T>>,
}

impl<T> Default for AttachedMaps<T> {
    fn default() -> Self {
        Self { current: None, earlier: None }
    }
}

impl<T> AttachedMaps<T> {
    /// Returns the maps that were in use until now.
    fn replace(&mut self, attached: Option<T>) -> Option<Arc<T>> {
        let before = self.current.take();
        if let Some(before) = &before {
            self.earlier = Some(Arc::clone(before));
        }
        self.current = attached.map(Arc::new);
        before
    }

    /// The maps that may contain the destination of an accepted connection.
    fn candidates(&self) -> [Option<Arc<T>>; 2] {
        [self.current.clone(), self.earlier.clone()]
    }

    fn forget(&mut self, unused: &Arc<T>) {
        self.earlier.take_if(|earlier| Arc::ptr_eq(earlier, unused));
    }
}

impl Attachment {
    pub(crate) fn new(metrics: Arc<KernelMetrics>) -> Self {
        Self { attached: Arc::default(), metrics, releases: TaskTracker::new() }
    }

    /// Redirects connections to this target whenever programs are attached. Never completes.
    pub(crate) async fn follow(&self, pins: &Path, to: &RedirectTarget<'_>, forwarder: &Arc<Forwarder>) {
        self.follow_connections(forwarder);
        let (mut registered, mut reported) = (None, String::new());
        if !pins.exists() {
            let to_do = "nothing is attached there: run 'fairmesh kernel attach' with the same --bpffs";
            tracing::info!(pins = %pins.display(), "{to_do}");
        }
        loop {
            let found = fs::metadata(pins).ok().map(|folder| (folder.dev(), folder.ino()));
            if found != registered {
                self.set(None);
                self.metrics.set(None);
                registered = None;
                let shared = (forwarder, &self.metrics);
                match found.map(|_| Attached::register(pins, to, shared)) {
                    Some(Ok(attached)) => {
                        tracing::info!(pins = %pins.display(), "connections are redirected here");
                        self.set(Some(attached));
                        // Without counters, the metrics page omits them.
                        self.metrics.set(Counters::open(pins).ok());
                        registered = found;
                    }
                    // This also happens while an `attach` is in progress; the next attempt then succeeds.
                    Some(Err(error)) => report(&error, &mut reported),
                    None => {}
                }
            }
            if let Some(attached) = self.attached() {
                match attached.open_sender(pins) {
                    Ok(true) => drop(attached.recorder.spawn(record_completed(Arc::clone(&attached)))),
                    Ok(false) => {}
                    Err(error) => report(&error, &mut reported),
                }
                attached.wake_overdue();
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Registers the proxy's own connections to servers with the kernel, so that forwarded requests take the
    /// short cut.
    fn follow_connections(&self, forwarder: &Forwarder) {
        let attached = Arc::clone(&self.attached);
        on_connection(&forwarder.services.mesh, move |stream| {
            let attached = attached.read().unwrap_or_else(PoisonError::into_inner).current.clone();
            if let Some(sender) = attached.as_ref().and_then(|attached| attached.sender())
                && let (Ok(own), Ok(server)) = (stream.local_addr(), stream.peer_addr())
            {
                sender.add_connection(own, server, stream.as_fd());
            }
        });
    }

    /// Returns the original destination of a connection from this address, and its caller. `None` if the connection
    /// was not redirected.
    pub(crate) fn original_dst(
        &self,
        stream: &TcpStream,
        caller: SocketAddr,
    ) -> Option<(SocketAddr, KernelCaller)> {
        let (attached, destination) = self
            .maps()
            .into_iter()
            .flatten()
            .find_map(|attached| attached.take(stream, caller).map(|found| (attached, found)))?;
        Some((destination.address, KernelCaller::new(attached, destination, caller, stream)))
    }

    /// Redirects connections of a container to a listener that was passed to this proxy. Returns the listener if it is used.
    pub(crate) async fn add_listener(&self, mut offer: Offer) -> Option<ContainerListener> {
        let added = match self.attached() {
            Some(attached) => attached.add_listener(&mut offer.listener).map_err(|error| error.to_string()),
            None => Err("no programs are attached that redirect connections to this proxy".to_owned()),
        };
        offer.answer(added).await
    }

    /// Passes the listener of a container to this proxy's successor, if there is one. It may not have registered yet.
    pub(crate) async fn pass_on(pins: &Path, container: &ContainerListener) {
        let (began, mut limit) = (Instant::now(), SUCCESSOR_TIMEOUT);
        while began.elapsed() < limit {
            match listening(pins).filter(|listening| listening.proxy != process::id()) {
                Some(successor) => {
                    limit = PASS_TIMEOUT;
                    match container.pass_on(&successor).await {
                        Ok(()) => return,
                        Err(error) => {
                            let successor = successor.proxy;
                            tracing::debug!(%error, successor, "the listener of a container is not passed on yet")
                        }
                    }
                }
                None if listening(pins).is_none() => return,
                None => {}
            }
            sleep(SUCCESSOR_INTERVAL).await;
        }
    }

    /// Stops the kernel from sending further requests when the proxy stops, and releases the maps to a
    /// successor.
    pub(crate) fn stop(&self) {
        self.set(None);
    }

    /// Waits until the calls that the kernel sent before [`stop`](Self::stop) are recorded.
    pub(crate) async fn wait_recorded(&self) {
        self.releases.close();
        let _ = timeout(RECORD_TIMEOUT, self.releases.wait()).await;
    }

    /// The maps in use.
    fn attached(&self) -> Option<Arc<Attached>> {
        self.attached.read().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    /// The maps that may contain the destination of an accepted connection.
    fn maps(&self) -> [Option<Arc<Attached>>; 2] {
        self.attached.read().unwrap_or_else(PoisonError::into_inner).candidates()
    }

    fn set(&self, attached: Option<Attached>) {
        let mut maps = self.attached.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = maps.replace(attached) {
            before.stop();
            self.releases.spawn(Arc::clone(&before).release());
            tokio::spawn(forget(Arc::clone(&self.attached), before));
        }
    }
}

/// Closes maps that are no longer in use once no connection can need them.
async fn forget(maps: Arc<RwLock<AttachedMaps<Attached>>>, unused: Arc<Attached>) {
    sleep(LOOKUP_TIME).await;
    maps.write().unwrap_or_else(PoisonError::into_inner).forget(&unused);
}

/// Logs an error only when it changes.
fn report(error: &KernelError, reported: &mut String) {
    let text = error.to_string();
    if text != *reported && !matches!(error, KernelError::NotAttached(_)) {
        tracing::warn!(error = text, "connections are not redirected here");
        *reported = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_maps_are_searched_until_forgotten() {
        let mut maps = AttachedMaps::default();
        let found = |maps: &AttachedMaps<u8>| maps.candidates().map(|one| one.map(|one| *one));
        assert!(maps.replace(Some(1)).is_none());
        // The proxy stops, and the task of an accepted connection runs afterwards.
        let first = maps.replace(None).unwrap();
        assert_eq!(found(&maps), [None, Some(1)]);
        // It has not been attached again when it stops once more.
        assert!(maps.replace(None).is_none());
        assert_eq!(found(&maps), [None, Some(1)]);
        maps.replace(Some(2));
        assert_eq!(found(&maps), [Some(2), Some(1)]);
        // The time of the first maps ends after they were replaced again.
        maps.replace(Some(3));
        maps.forget(&first);
        assert_eq!(found(&maps), [Some(3), Some(2)]);
    }
}
