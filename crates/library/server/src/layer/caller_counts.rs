//! Calls of each caller, as the server sees them, for views of the mesh.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_headers::{GRPC_STATUS, is_grpc};
use fairmesh_model::{
    CallCounts, CallFault, CountedBy, CountedPath, DeniedPath, Label, MAX_DENIED_CALLER, Region,
    ResponseClass, ServiceName,
};
use fairmesh_signals::CallCounters;
use hazarc::AtomicOptionArc;
use http::{HeaderMap, Request, StatusCode, header::CONTENT_LENGTH};
use tokio::time::Instant;

use super::refusal::Refusal;
use crate::Caller;

/// The most callers that one server tells apart; calls of others count as those of an unknown caller.
const MAX_CALLERS: usize = 256;
/// The most callers and rules of denied calls between two reports.
const MAX_DENIED: usize = 256;
/// The caller of denied calls beyond.
const OTHER: &str = "(other)";

/// Counters by calling service. Only callers whose identity was verified have their own.
#[derive(Debug, Default)]
pub(crate) struct CallerCounts {
    unknown: Arc<CallCounters>,
    /// Replaced as a whole when a caller comes for the first time.
    known: AtomicOptionArc<HashMap<ServiceName, Arc<CallCounters>>>,
    adding: Mutex<()>,
}

/// A call until its response ends.
#[derive(Debug)]
pub(crate) struct CountedCall {
    counters: Arc<CallCounters>,
    began: Instant,
    /// Whether the gRPC status is yet to come.
    awaits_status: bool,
}

impl CallerCounts {
    /// Counts a call, whose caller is in its extensions. A refused caller gets no counters of its own, so that none takes the room of
    /// accepted ones: [`DeniedCounts`] names it.
    pub(crate) fn begin<B>(&self, request: &Request<B>, is_accepted: bool) -> CountedCall {
        let caller = request.extensions().get::<Caller>().and_then(Caller::service);
        let counters = if is_accepted { self.of(caller) } else { self.of_refused(caller) };
        counters.record_attempt(true);
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        counters.record_request_bytes(length.unwrap_or_default());
        CountedCall { counters, began: Instant::now(), awaits_status: false }
    }

    /// What was counted so far, of servers in this region.
    pub(crate) fn read(&self, service: &ServiceName, region: &Region) -> Vec<(CountedPath, CallCounts)> {
        let row = |caller: Option<&ServiceName>, counters: &CallCounters| {
            let path = CountedPath {
                service: service.clone(),
                caller: caller.cloned(),
                by: CountedBy::Server,
                class: None,
                from: None,
                to: Some(region.clone()),
                from_zone: None,
                to_zone: None,
            };
            (path, counters.counts())
        };
        let known = self.known.load();
        let known = known.as_ref().into_iter().flat_map(|known| known.iter());
        let known = known.map(|(caller, counters)| row(Some(caller), counters));
        known.chain([row(None, &self.unknown)]).collect()
    }

    fn of(&self, caller: Option<&ServiceName>) -> Arc<CallCounters> {
        let Some(caller) = caller else { return Arc::clone(&self.unknown) };
        self.find(caller).unwrap_or_else(|| self.add(caller))
    }

    /// The counters of a caller that was refused: its own, if earlier calls were accepted.
    fn of_refused(&self, caller: Option<&ServiceName>) -> Arc<CallCounters> {
        caller.and_then(|caller| self.find(caller)).unwrap_or_else(|| Arc::clone(&self.unknown))
    }

    fn find(&self, caller: &ServiceName) -> Option<Arc<CallCounters>> {
        self.known.load().as_ref().and_then(|known| known.get(caller)).cloned()
    }

    #[cold]
    fn add(&self, caller: &ServiceName) -> Arc<CallCounters> {
        let _alone = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.known.load().as_ref().map(|known| HashMap::clone(known)).unwrap_or_default();
        if known.len() >= MAX_CALLERS && !known.contains_key(caller) {
            return Arc::clone(&self.unknown);
        }
        let counters = Arc::clone(known.entry(caller.clone()).or_default());
        self.known.store(Some(Arc::new(known)));
        counters
    }
}

impl CountedCall {
    /// Counts that the layer refuses the call.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.counters.record_fault(match refusal {
            Refusal::WrongShard(_) => CallFault::WrongShard,
            Refusal::Overloaded => CallFault::Overloaded,
            Refusal::Late => CallFault::Deadline,
            Refusal::Unauthorized => CallFault::Unauthorized,
            Refusal::Unready => CallFault::Unavailable,
        });
    }

    /// Counts that the service failed: its caller sees a broken connection or stream.
    pub(crate) fn fail(&self) {
        self.counters.record_fault(CallFault::Reset);
    }

    /// Counts the response by its head, or notes that its gRPC status follows.
    pub(crate) fn respond(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.counters.record_answer(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX));
        match headers.get(GRPC_STATUS) {
            Some(grpc) => self.counters.record_response(ResponseClass::of_grpc(grpc == "0")),
            None if status.is_success() && is_grpc(headers) => self.awaits_status = true,
            None => self.counters.record_response(ResponseClass::of_status(status.as_u16())),
        }
    }

    /// Counts the gRPC status in trailers, or that there is none, once.
    pub(crate) fn end(&mut self, trailers: Option<&HeaderMap>) {
        if std::mem::take(&mut self.awaits_status) {
            let is_ok =
                trailers.and_then(|trailers| trailers.get(GRPC_STATUS)).is_some_and(|status| status == "0");
            self.counters.record_response(ResponseClass::of_grpc(is_ok));
        }
    }

    /// Counts bytes of the response's body.
    #[inline]
    pub(crate) fn record_bytes(&self, bytes: usize) {
        self.counters.record_bytes(bytes as u64);
    }
}

/// Calls that rules do not allow, since the last report: by caller, rule, and whether they were let through. The lock is taken
/// for such calls alone.
#[derive(Debug, Default)]
pub(crate) struct DeniedCounts(Mutex<BTreeMap<Denied, u64>>);

type Denied = (Option<String>, Option<Label>, bool);

impl DeniedCounts {
    pub(crate) fn count(&self, caller: Option<&str>, rule: Option<&Label>, is_audit: bool) {
        let mut denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = caller.filter(|caller| caller.len() <= MAX_DENIED_CALLER);
        let mut key = (caller.map(str::to_owned), rule.cloned(), is_audit);
        if denied.len() >= MAX_DENIED && !denied.contains_key(&key) {
            key = (Some(OTHER.to_owned()), None, is_audit);
        }
        *denied.entry(key).or_default() += 1;
    }

    /// Takes out what was counted.
    pub(crate) fn take(&self, service: &ServiceName) -> BTreeMap<DeniedPath, u64> {
        let denied = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let path = |(caller, rule, is_audit)| DeniedPath { service: service.clone(), caller, rule, is_audit };
        denied.into_iter().map(|(key, count)| (path(key), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_and_denials_are_bounded() {
        let (counts, denied) = (CallerCounts::default(), DeniedCounts::default());
        let service = ServiceName::new("shop/cart").unwrap();
        for n in 0..MAX_CALLERS + 3 {
            let caller = ServiceName::new(format!("shop/c{n}")).unwrap();
            counts.of(Some(&caller)).record_attempt(true);
            denied.count(Some(&format!("spiffe://mesh/shop/c{n}")), None, true);
        }
        let rows = counts.read(&service, &Region::new("eu").unwrap());
        let unknown = rows.iter().find(|(path, _)| path.caller.is_none()).map(|(_, counts)| counts.calls());
        assert_eq!((rows.len(), unknown), (MAX_CALLERS + 1, Some(3)));
        let taken = denied.take(&service);
        let others = taken.iter().find(|(path, _)| path.caller.as_deref() == Some(OTHER));
        assert_eq!((taken.len(), others.map(|(_, count)| *count)), (MAX_DENIED + 1, Some(3)));
        assert!(denied.take(&service).is_empty());
    }

    #[test]
    fn refused_callers_take_no_counters_of_their_own() {
        let (counts, service) = (CallerCounts::default(), ServiceName::new("shop/cart").unwrap());
        let [web, stranger] = ["spiffe://mesh/shop/web", "spiffe://mesh/shop/stranger"].map(|id| {
            let mut request = Request::new(());
            let identity = fairmesh_model::Identity::Spiffe(id.parse().unwrap());
            request.extensions_mut().insert(Caller::of(&identity).unwrap());
            request
        });
        for (request, is_accepted) in [(&web, true), (&stranger, false), (&web, false)] {
            counts.begin(request, is_accepted);
        }
        let rows = counts.read(&service, &Region::new("eu").unwrap());
        let calls = |caller: Option<&str>| {
            let of = |path: &CountedPath| path.caller.as_ref().map(ToString::to_string).as_deref() == caller;
            rows.iter().find(|(path, _)| of(path)).map(|(_, counts)| counts.calls())
        };
        assert_eq!((rows.len(), calls(Some("shop/web")), calls(None)), (2, Some(2), Some(1)));
    }
}
