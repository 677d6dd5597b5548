//! What the sender of spans may state.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::TracedSpan;

/// Maximum number of different pairs of names in a request. Spans with further names are rejected, since each pair is
/// judged by records.
const MAX_NAMES: usize = 256;

/// Decides which names spans may have.
pub trait SpanRights: Send + Sync {
    /// Whether the sender is, or vouches for, the process with this `service.name`.
    fn may_be(&self, process: &str) -> bool;

    /// Whether the sender may know the called service.
    fn may_know(&self, service: &str) -> bool;
}

/// The sender of a request, as authenticated by its connection. The owner of the [router](crate::Traces::router) adds it
/// to the extensions of each request.
#[derive(Clone)]
pub struct SpanSender(Option<KnownSender>);

#[derive(Clone)]
struct KnownSender {
    name: Arc<str>,
    rights: Arc<dyn SpanRights>,
}

impl fmt::Debug for SpanSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpanSender").field(&self.0.as_ref().map(|known| &known.name)).finish()
    }
}

impl SpanSender {
    /// A sender with an identity.
    pub fn new(name: impl Into<Arc<str>>, rights: Arc<dyn SpanRights>) -> Self {
        Self(Some(KnownSender { name: name.into(), rights }))
    }

    /// Any sender, in a mesh without a trust domain, where nobody has an identity.
    pub const fn anyone() -> Self {
        Self(None)
    }

    /// The name of the sender; empty for anyone.
    pub(crate) fn name(&self) -> Arc<str> {
        self.0.as_ref().map_or_else(|| "".into(), |known| Arc::clone(&known.name))
    }

    /// Returns the spans that the sender may state, and the number of the others.
    pub(crate) fn permitted(&self, spans: Vec<TracedSpan>) -> (Vec<TracedSpan>, u64) {
        let Some(KnownSender { rights, .. }) = &self.0 else { return (spans, 0) };
        let (mut judged, all) = (BTreeMap::<(String, String), bool>::new(), spans.len());
        let mut is_permitted = |span: &TracedSpan| {
            let names = (span.process.clone(), span.service.clone());
            if judged.len() >= MAX_NAMES && !judged.contains_key(&names) {
                return false;
            }
            *judged.entry(names).or_insert_with(|| {
                rights.may_be(&span.process)
                    && (span.service == span.process || rights.may_know(&span.service))
            })
        };
        let permitted: Vec<_> = spans.into_iter().filter(|span| is_permitted(span)).collect();
        let others = all - permitted.len();
        (permitted, others as u64)
    }
}

/// Senders whose request is being received. Each sender has one at a time, so that none takes the turns of others.
#[derive(Clone, Debug, Default)]
pub(crate) struct BusySenders(Arc<Mutex<HashSet<Arc<str>>>>);

/// The request of a sender. Dropping it ends the request.
pub(crate) struct SenderTurn {
    busy: BusySenders,
    name: Option<Arc<str>>,
}

impl BusySenders {
    /// Begins a request; `None` while another one of the same sender is being received.
    pub(crate) fn begin(&self, SpanSender(sender): &SpanSender) -> Option<SenderTurn> {
        let name = sender.as_ref().map(|known| Arc::clone(&known.name));
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = name.as_ref().is_none_or(|name| busy.insert(Arc::clone(name)));
        is_free.then(|| SenderTurn { busy: self.clone(), name })
    }
}

impl Drop for SenderTurn {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            self.busy.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
    }
}
