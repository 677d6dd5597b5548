use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Body, Fault, FaultKind, ServiceHandle};
use http::{Request, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use tokio::{task::JoinHandle, time::Instant};

use super::until;

/// Pause of a caller between two calls, so that a few callers are a steady load and leave CPU to the mesh.
const PAUSE: Duration = Duration::from_millis(3);

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request that may be retried.
    Get,
    /// A request that may not be retried.
    Post,
    /// A gRPC call, which may not be retried either.
    Grpc,
}

/// A caller that starts each call after the end of the last one.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) service: ServiceHandle,
    pub(crate) kind: Kind,
    /// Exclusive upper bound of the calls' keys; `None` for calls without a key.
    pub(crate) keys: Option<u64>,
}

/// Callers that run until they are stopped.
pub(crate) struct Load {
    tally: Arc<Tally>,
    callers: Vec<JoinHandle<()>>,
}

/// Results of all callers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    stop: AtomicBool,
    calls: AtomicU64,
    pub(crate) failures: Mutex<Vec<Failure>>,
    /// Number of responses and time of the last response, by instance.
    pub(crate) answers: Mutex<BTreeMap<String, (u64, Instant)>>,
    pub(crate) took: Mutex<Vec<Duration>>,
}

/// One failed call.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) caller: usize,
    pub(crate) call: Kind,
    /// `None` if the failure is a response.
    pub(crate) kind: Option<FaultKind>,
    #[allow(dead_code, reason = "shown by assertions that fail")]
    pub(crate) what: String,
}

impl Caller {
    pub(crate) fn new(service: &ServiceHandle, kind: Kind) -> Self {
        Self { service: service.clone(), kind, keys: None }
    }

    /// Makes call number `number`; returns the instance that responded.
    pub(crate) async fn call(&self, number: u64) -> Result<String, (Option<FaultKind>, String)> {
        let request = match self.kind {
            Kind::Get => Request::get("/").body(Body::empty()),
            Kind::Post => Request::post("/").body(Body::from("one more")),
            Kind::Grpc => {
                let head = Request::post("/shop.v1.Shop/Add").header(CONTENT_TYPE, "application/grpc");
                head.body(Body::from("\0\0\0\0\0"))
            }
        };
        let service = match self.keys {
            // Spreads consecutive numbers over different shards.
            Some(keys) => self.service.clone().key(number.wrapping_mul(7919) % keys),
            None => self.service.clone(),
        };
        answered(&service, request.unwrap()).await
    }
}

async fn answered(
    service: &ServiceHandle,
    request: Request<Body>,
) -> Result<String, (Option<FaultKind>, String)> {
    let fault = |fault: Fault| (Some(fault.kind()), fault.to_string());
    let answer = service.send(request).await.map_err(fault)?;
    let (head, body) = answer.into_parts();
    body.collect().await.map_err(fault)?;
    let good = head.status == 200 && head.headers.get("grpc-status").is_none_or(|status| status == "0");
    match head.headers.get("x-instance") {
        Some(instance) if good => Ok(instance.to_str().unwrap().to_owned()),
        _ => Err((None, format!("{head:?}"))),
    }
}

impl Load {
    pub(crate) fn start(callers: impl IntoIterator<Item = Caller>) -> Self {
        let tally = Arc::new(Tally::default());
        let run = |(index, caller)| tokio::spawn(run(index, caller, Arc::clone(&tally)));
        let callers = callers.into_iter().enumerate().map(run).collect();
        Self { tally, callers }
    }

    /// Callers of a service: the given number of each kind.
    pub(crate) fn of(service: &ServiceHandle, kinds: &[(Kind, usize)]) -> Vec<Caller> {
        let callers = kinds.iter().flat_map(|(kind, count)| vec![Caller::new(service, *kind); *count]);
        callers.collect()
    }

    /// Waits until `calls` more calls have ended.
    pub(crate) async fn goes_on(&self, calls: u64) {
        let goal = self.tally.calls.load(Relaxed) + calls;
        until("calls go on", async || self.tally.calls.load(Relaxed) >= goal).await;
    }

    /// Waits for another response of an instance.
    pub(crate) async fn reaches(&self, instance: &str) {
        let before = self.tally.answered_by(instance);
        until(&format!("{instance} answers"), async || self.tally.answered_by(instance) > before).await;
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Stops the callers; returns once no call is in flight.
    pub(crate) async fn stop(self) -> Arc<Tally> {
        self.tally.stop.store(true, Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        self.tally
    }

    /// Stops the callers and asserts that no call failed.
    pub(crate) async fn stop_unharmed(self) {
        let tally = self.stop().await;
        let failures = tally.failures.lock().unwrap();
        let calls = tally.calls.load(Relaxed);
        let first: Vec<_> = failures.iter().take(5).collect();
        assert!(failures.is_empty(), "{} of {calls} calls failed; the first: {first:#?}", failures.len());
    }
}

async fn run(index: usize, caller: Caller, tally: Arc<Tally>) {
    // Callers start at different keys.
    let first = 1000 * index as u64;
    for number in first.. {
        if tally.stop.load(Relaxed) {
            return;
        }
        let start = Instant::now();
        let ended = caller.call(number).await;
        tally.note(index, caller.kind, start, ended);
        tokio::time::sleep(PAUSE).await;
    }
}

impl Tally {
    fn note(
        &self,
        caller: usize,
        call: Kind,
        start: Instant,
        ended: Result<String, (Option<FaultKind>, String)>,
    ) {
        let now = Instant::now();
        match ended {
            Ok(instance) => {
                let mut answers = self.answers.lock().unwrap();
                let answers = answers.entry(instance).or_insert((0, now));
                *answers = (answers.0 + 1, now);
            }
            Err((kind, what)) => {
                self.failures.lock().unwrap().push(Failure { caller, call, kind, what });
            }
        }
        self.took.lock().unwrap().push(now - start);
        self.calls.fetch_add(1, Relaxed);
    }

    /// Number of responses of an instance.
    pub(crate) fn answered_by(&self, instance: &str) -> u64 {
        self.answers.lock().unwrap().get(instance).map_or(0, |(count, _)| *count)
    }

    /// Time of an instance's last response.
    pub(crate) fn last_answer(&self, instance: &str) -> Option<Instant> {
        self.answers.lock().unwrap().get(instance).map(|(_, last)| *last)
    }
}
