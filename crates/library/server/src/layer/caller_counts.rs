//! Counts the calls of each caller, from the server's view, for views of the mesh.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use fairmesh_headers::{GRPC_STATUS, ORIGIN, is_grpc};
use fairmesh_model::{
    CallCounts, CallFault, CountedBy, CountedPath, CpuUser, Region, ResponseClass, ServiceName,
};
use fairmesh_signals::{CallCounters, Chain, InFlightMeter, InFlightTime, OriginId};
use hazarc::AtomicOptionArc;
use http::{HeaderMap, Request, StatusCode, header::CONTENT_LENGTH};
use http_body::Frame;
use tokio::time::Instant;

use super::refusal::Refusal;
use crate::Caller;

/// Maximum number of callers that one server distinguishes. Further callers count as one unknown caller.
const MAX_CALLERS: usize = 256;
/// Maximum number of pairs of a caller and a different origin that one server distinguishes. A caller's further
/// origins are counted together.
const MAX_ORIGINS: usize = 256;

/// Counters by calling service. Only callers whose identity was verified have counters of their own.
#[derive(Debug)]
pub(crate) struct CallerCounts {
    /// Reference time for times in flight.
    epoch: Instant,
    unknown: Arc<CountedCaller>,
    /// Counters by caller. The map is replaced as a whole when a new caller arrives.
    known: AtomicOptionArc<HashMap<ServiceName, Arc<CountedCaller>>>,
    /// Number of origins of all callers.
    origins: AtomicUsize,
    adding: Mutex<()>,
}

/// Counters of one caller.
#[derive(Debug, Default)]
struct CountedCaller {
    counters: CallCounters,
    /// Counters of call chains that begin with the caller itself.
    own: Arc<CountedOrigin>,
    /// Counters of call chains that begin elsewhere, by origin. The map is replaced as a whole.
    origins: AtomicOptionArc<HashMap<ServiceName, Arc<CountedOrigin>>>,
    /// Counters of call chains from further origins.
    other_origins: Arc<CountedOrigin>,
}

/// Counters of a caller's calls in chains with the same first service.
#[derive(Debug, Default)]
struct CountedOrigin {
    in_flight: InFlightMeter,
    id: Option<OriginId>,
}

/// A call, counted until its response ends.
#[derive(Debug)]
pub(crate) struct CountedCall {
    caller: Arc<CountedCaller>,
    origin: Arc<CountedOrigin>,
    epoch: Instant,
    began: Instant,
    /// Whether the gRPC status is still to come.
    awaits_status: bool,
    /// Declared length of the request body, which is counted when the service responds.
    declared: u64,
}

/// An extension of requests that are forwarded to a program: counts the bytes of the body as they pass.
#[derive(Clone, Debug)]
pub struct RequestBytes(Arc<CountedCaller>);

impl RequestBytes {
    /// Counts a frame of the body.
    pub fn count(&self, frame: &Frame<Bytes>) {
        self.0.counters.record_request_bytes(frame.data_ref().map_or(0, |data| data.len() as u64));
    }
}

impl Default for CallerCounts {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            unknown: Arc::default(),
            known: AtomicOptionArc::default(),
            origins: AtomicUsize::default(),
            adding: Mutex::default(),
        }
    }
}

impl CallerCounts {
    /// Counts a call with these headers. A refused caller gets no counters of its own, so that it takes no room from
    /// accepted callers; denied calls are counted by caller elsewhere. The origin of a chain is only claimed by the caller, so it counts
    /// only for callers with a verified identity.
    pub(crate) fn begin(
        &self,
        caller: Option<&Caller>,
        headers: &HeaderMap,
        is_accepted: bool,
    ) -> CountedCall {
        let service = caller.and_then(Caller::service);
        let caller = if is_accepted { self.of(service) } else { self.of_refused(service) };
        caller.counters.record_attempt(true);
        let origin = service.filter(|_| is_accepted).and_then(|service| stated_origin(headers, service));
        let origin = match origin {
            Some(origin) => self.origin(&caller, origin),
            None => Arc::clone(&caller.own),
        };
        let (epoch, began) = (self.epoch, Instant::now());
        origin.in_flight.begin(micros(epoch, began));
        CountedCall { caller, origin, epoch, began, awaits_status: false, declared: 0 }
    }

    /// Total time during which calls of each chain were in flight.
    pub(crate) fn in_flight(&self) -> Vec<(Chain, InFlightTime)> {
        let now_us = micros(self.epoch, Instant::now());
        let known = self.known.load();
        let known = known.as_ref().into_iter().flat_map(|known| known.iter());
        let known = known.map(|(name, caller)| (CpuUser::Service(name.clone()), caller));
        let callers = known.chain([(CpuUser::Unknown, &self.unknown)]);
        callers.flat_map(|(name, caller)| caller.in_flight(&name, now_us)).collect()
    }

    /// Returns the counts so far, as rows for a server in this region.
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
        let known = known.map(|(name, caller)| row(Some(name), &caller.counters));
        known.chain([row(None, &self.unknown.counters)]).collect()
    }

    fn of(&self, caller: Option<&ServiceName>) -> Arc<CountedCaller> {
        let Some(caller) = caller else { return Arc::clone(&self.unknown) };
        self.find(caller).unwrap_or_else(|| self.add(caller))
    }

    /// Returns the counters for a refused caller: its own counters, if earlier calls were accepted.
    fn of_refused(&self, caller: Option<&ServiceName>) -> Arc<CountedCaller> {
        caller.and_then(|caller| self.find(caller)).unwrap_or_else(|| Arc::clone(&self.unknown))
    }

    fn find(&self, caller: &ServiceName) -> Option<Arc<CountedCaller>> {
        self.known.load().as_ref().and_then(|known| known.get(caller)).cloned()
    }

    #[cold]
    fn add(&self, caller: &ServiceName) -> Arc<CountedCaller> {
        let _alone = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.known.load().as_ref().map(|known| HashMap::clone(known)).unwrap_or_default();
        if known.len() >= MAX_CALLERS && !known.contains_key(caller) {
            return Arc::clone(&self.unknown);
        }
        let counted = known.entry(caller.clone()).or_insert_with(|| Arc::new(CountedCaller::of(caller)));
        let counted = Arc::clone(counted);
        self.known.store(Some(Arc::new(known)));
        counted
    }

    /// Returns the counters of a caller's chains with this origin.
    fn origin(&self, caller: &CountedCaller, name: ServiceName) -> Arc<CountedOrigin> {
        let known = caller.origins.load().as_ref().and_then(|known| known.get(&name)).cloned();
        known.unwrap_or_else(|| self.add_origin(caller, name))
    }

    #[cold]
    fn add_origin(&self, caller: &CountedCaller, name: ServiceName) -> Arc<CountedOrigin> {
        let _alone = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = caller.origins.load().as_ref().map(|known| HashMap::clone(known)).unwrap_or_default();
        if let Some(known) = known.get(&name) {
            return Arc::clone(known);
        }
        if self.origins.load(Relaxed) >= MAX_ORIGINS {
            return Arc::clone(&caller.other_origins);
        }
        self.origins.fetch_add(1, Relaxed);
        let origin = Arc::new(CountedOrigin::of(&name));
        known.insert(name, Arc::clone(&origin));
        caller.origins.store(Some(Arc::new(known)));
        origin
    }
}

/// Origin of a chain as stated by its caller; `None` if it is the caller itself.
fn stated_origin(headers: &HeaderMap, caller: &ServiceName) -> Option<ServiceName> {
    let name = ServiceName::new(headers.get(ORIGIN)?.to_str().ok()?).ok()?;
    (name != *caller).then_some(name)
}

impl CountedCaller {
    fn of(name: &ServiceName) -> Self {
        Self { own: Arc::new(CountedOrigin::of(name)), ..Self::default() }
    }

    fn in_flight(&self, name: &CpuUser, now_us: u64) -> Vec<(Chain, InFlightTime)> {
        let chain = |origin: CpuUser, counted: &CountedOrigin| {
            (Chain { caller: name.clone(), origin }, counted.in_flight.read(now_us))
        };
        let origins = self.origins.load();
        let origins = origins.as_ref().into_iter().flat_map(|origins| origins.iter());
        let origins = origins.map(|(origin, counted)| chain(CpuUser::Service(origin.clone()), counted));
        let others = chain(CpuUser::Other, &self.other_origins);
        origins.chain([chain(name.clone(), &self.own), others]).collect()
    }
}

impl CountedOrigin {
    fn of(name: &ServiceName) -> Self {
        Self { id: OriginId::of(name), ..Self::default() }
    }
}

/// Microseconds from the epoch to `at`.
fn micros(epoch: Instant, at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(epoch).as_micros()).unwrap_or(u64::MAX)
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.origin.in_flight.end(micros(self.epoch, Instant::now()));
    }
}

impl CountedCall {
    /// The first service in the call's chain, if known.
    pub(crate) fn origin(&self) -> Option<OriginId> {
        self.origin.id
    }

    /// Counts that the layer refused the call.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.caller.counters.record_fault(match refusal {
            Refusal::WrongShard(_) => CallFault::WrongShard,
            Refusal::Overloaded => CallFault::Overloaded,
            Refusal::Late => CallFault::Deadline,
            Refusal::Unauthorized | Refusal::BadToken => CallFault::Unauthorized,
            Refusal::Unready => CallFault::Unavailable,
        });
    }

    /// Counts that the service failed: its caller sees a broken connection or stream.
    pub(crate) fn fail(&self) {
        self.caller.counters.record_fault(CallFault::Reset);
    }

    /// Counts the body of an accepted request. If it is forwarded to a program, its bytes are counted as they pass.
    /// Otherwise its declared length is counted once the service responds, since the layer does not see what the
    /// service reads.
    pub(crate) fn count_body<B>(&mut self, request: &mut Request<B>, is_forwarded: bool) {
        if is_forwarded {
            request.extensions_mut().insert(RequestBytes(Arc::clone(&self.caller)));
            return;
        }
        let declared = request.headers().get(CONTENT_LENGTH);
        self.declared = declared.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or_default();
    }

    /// Counts the response by its head, or records that its gRPC status is still to come.
    pub(crate) fn respond(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.caller.counters.record_request_bytes(std::mem::take(&mut self.declared));
        self.caller
            .counters
            .record_answer(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX));
        match headers.get(GRPC_STATUS) {
            Some(grpc) => self.caller.counters.record_response(ResponseClass::of_grpc(grpc == "0")),
            None if status.is_success() && is_grpc(headers) => self.awaits_status = true,
            None => self.caller.counters.record_response(ResponseClass::of_status(status.as_u16())),
        }
    }

    /// Counts the gRPC status in the trailers, or its absence; only once.
    pub(crate) fn end(&mut self, trailers: Option<&HeaderMap>) {
        if std::mem::take(&mut self.awaits_status) {
            let is_ok =
                trailers.and_then(|trailers| trailers.get(GRPC_STATUS)).is_some_and(|status| status == "0");
            self.caller.counters.record_response(ResponseClass::of_grpc(is_ok));
        }
    }

    /// Counts bytes of the response's body.
    #[inline]
    pub(crate) fn record_bytes(&self, bytes: usize) {
        self.caller.counters.record_bytes(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_counted_callers_is_bounded() {
        let counts = CallerCounts::default();
        let service = ServiceName::new("shop/cart").unwrap();
        for n in 0..MAX_CALLERS + 3 {
            let caller = ServiceName::new(format!("shop/c{n}")).unwrap();
            counts.of(Some(&caller)).counters.record_attempt(true);
        }
        let rows = counts.read(&service, &Region::new("eu").unwrap());
        let unknown = rows.iter().find(|(path, _)| path.caller.is_none()).map(|(_, counts)| counts.calls());
        assert_eq!((rows.len(), unknown), (MAX_CALLERS + 1, Some(3)));
    }

    #[test]
    fn declared_request_length_counts_only_if_call_gets_response() {
        let counts = CallerCounts::default();
        let request = || Request::post("/").header(CONTENT_LENGTH, u64::MAX / 2).body(()).unwrap();
        counts.begin(None, &HeaderMap::new(), false).refuse(Refusal::Unauthorized);
        let mut forwarded = counts.begin(None, &HeaderMap::new(), true);
        let mut request_of_program = request();
        forwarded.count_body(&mut request_of_program, true);
        let passing = request_of_program.extensions().get::<RequestBytes>().unwrap();
        passing.count(&Frame::data(Bytes::from_static(b"tea")));
        forwarded.respond(StatusCode::OK, &HeaderMap::new());
        assert_eq!(counts.unknown.counters.counts().request_bytes(), 3);
        let mut served = counts.begin(None, &HeaderMap::new(), true);
        served.count_body(&mut request(), false);
        assert_eq!(counts.unknown.counters.counts().request_bytes(), 3);
        served.respond(StatusCode::OK, &HeaderMap::new());
        assert_eq!(counts.unknown.counters.counts().request_bytes(), 3 + u64::MAX / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn call_time_in_flight_is_counted_by_caller_and_origin() {
        let counts = CallerCounts::default();
        let identity = fairmesh_model::Identity::Spiffe("spiffe://mesh/shop/cart".parse().unwrap());
        let cart = Caller::of(&identity).unwrap();
        let from = |origin: &'static str| {
            [(ORIGIN, http::HeaderValue::from_static(origin))].into_iter().collect::<HeaderMap>()
        };
        let calls = [
            (Some(&cart), from("shop/web"), true),
            (Some(&cart), from("shop/cart"), true),
            (Some(&cart), from("no name"), true),
            (Some(&cart), from("shop/liar"), false),
            (None, from("shop/liar"), true),
        ];
        let begun = calls.map(|(caller, headers, is_accepted)| counts.begin(caller, &headers, is_accepted));
        assert_eq!(begun[0].origin().and_then(OriginId::name), Some("shop/web"));
        assert_eq!(begun[4].origin(), None);
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
        drop(begun);
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
        let mut seen: Vec<_> = counts
            .in_flight()
            .into_iter()
            .map(|(Chain { caller, origin }, time)| {
                (caller.to_string(), origin.to_string(), time.since(InFlightTime::default()))
            })
            .filter(|(_, _, time_us)| *time_us > 0)
            .collect();
        seen.sort();
        let row = |caller: &str, origin: &str, time_us| (caller.to_owned(), origin.to_owned(), time_us);
        let expected = [
            row("(unknown)", "(unknown)", 5_000),
            row("shop/cart", "shop/cart", 15_000),
            row("shop/cart", "shop/web", 5_000),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn refused_callers_get_no_call_counters_of_their_own() {
        let (counts, service) = (CallerCounts::default(), ServiceName::new("shop/cart").unwrap());
        let [web, stranger] = ["spiffe://mesh/shop/web", "spiffe://mesh/shop/stranger"].map(|id| {
            let mut request = Request::new(());
            let identity = fairmesh_model::Identity::Spiffe(id.parse().unwrap());
            request.extensions_mut().insert(Caller::of(&identity).unwrap());
            request
        });
        for (request, is_accepted) in [(&web, true), (&stranger, false), (&web, false)] {
            counts.begin(request.extensions().get(), request.headers(), is_accepted);
        }
        let rows = counts.read(&service, &Region::new("eu").unwrap());
        let calls = |caller: Option<&str>| {
            let of = |path: &CountedPath| path.caller.as_ref().map(ToString::to_string).as_deref() == caller;
            rows.iter().find(|(path, _)| of(path)).map(|(_, counts)| counts.calls())
        };
        assert_eq!((rows.len(), calls(Some("shop/web")), calls(None)), (2, Some(2), Some(1)));
    }
}
