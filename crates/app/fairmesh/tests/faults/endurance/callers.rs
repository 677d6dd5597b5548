use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use tokio::task::JoinHandle;

use crate::harness::{Answer, Connection, Manner, NUMBER, until};

/// Calls by service, connection use and protocol.
const CALLS: [(&str, Manner, bool); 9] = [
    ("one.shop", Manner::Kept, false),
    ("one.shop", Manner::Kept, false),
    ("one.shop", Manner::Fresh, false),
    ("one.shop", Manner::Http2, false),
    ("two.shop", Manner::Kept, false),
    ("two.shop", Manner::Http2, false),
    ("two.shop", Manner::Fresh, false),
    ("rpc.shop", Manner::Http2, true),
    ("rpc.shop", Manner::Http2, true),
];

/// Closed-loop callers that never retry a call and check each response.
pub(super) struct Callers {
    tally: Arc<Tally>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Tally {
    stop: AtomicBool,
    answered: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// One caller.
struct Caller {
    to: String,
    host: &'static str,
    manner: Manner,
    is_grpc: bool,
}

impl Callers {
    pub(super) fn start(to: &str) -> Self {
        let tally = Arc::<Tally>::default();
        let tasks = (0..).zip(CALLS).map(|(n, (host, manner, is_grpc))| {
            let caller = Caller { to: to.to_owned(), host, manner, is_grpc };
            tokio::spawn(caller.call_on(n << 40, Arc::clone(&tally)))
        });
        Self { tasks: tasks.collect(), tally }
    }

    pub(super) fn answered(&self) -> u64 {
        self.tally.answered.load(Relaxed)
    }

    pub(super) fn failed(&self) -> usize {
        self.tally.failures.lock().unwrap().len()
    }

    /// Waits until `calls` more calls have a response.
    pub(super) async fn go_on(&self, calls: u64) {
        let goal = self.answered() + calls;
        until("calls go on", async || self.answered() >= goal).await;
    }

    /// Stops the callers, asserts that no call failed, and returns the number of calls.
    pub(super) async fn stop_unharmed(self) -> u64 {
        self.tally.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let failures = self.tally.failures.lock().unwrap();
        let (first, answered) =
            (failures.iter().take(5).collect::<Vec<_>>(), self.tally.answered.load(Relaxed));
        assert!(failures.is_empty(), "{} failed, {answered} did not; the first: {first:#?}", failures.len());
        answered
    }
}

impl Caller {
    async fn call_on(self, first: u64, tally: Arc<Tally>) {
        let mut kept = None;
        for number in first.. {
            if tally.stop.load(Relaxed) {
                return;
            }
            let body = Bytes::from(format!("{number:016x}").repeat(1 + number as usize % 64));
            let request = || self.request(number, body.clone());
            let answered = Connection::call(&mut kept, (&self.to, self.manner), request).await;
            match answered.and_then(|answer| self.check(number, &body, answer)) {
                Ok(()) => drop(tally.answered.fetch_add(1, Relaxed)),
                Err(what) => {
                    let what = format!("{} {:?} {number:x}: {what}", self.host, self.manner);
                    eprintln!("{what}");
                    tally.failures.lock().unwrap().push(what);
                }
            }
        }
    }

    fn request(&self, number: u64, body: Bytes) -> Request<Full<Bytes>> {
        let path = if self.is_grpc { "shop.v1.Shop/Add" } else { "add" };
        let mut request = Request::post(format!("http://{}/{path}", self.host)).header(NUMBER, number);
        if !matches!(self.manner, Manner::Http2) {
            request = request.header("host", self.host);
        }
        if self.is_grpc {
            request = request.header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
        }
        request.body(Full::new(body)).unwrap()
    }

    fn check(&self, number: u64, body: &Bytes, (answer, trailers): Answer) -> Result<(), String> {
        let own = answer.headers().get(NUMBER).is_some_and(|own| own == number.to_string().as_str());
        let went_well = match (self.is_grpc, &trailers) {
            (false, _) => true,
            (true, Some(trailers)) => trailers.get("grpc-status").is_some_and(|status| status == "0"),
            (true, None) => false,
        };
        let good = answer.status() == StatusCode::OK && own && went_well && answer.body() == body;
        if good { Ok(()) } else { Err(format!("{:?} {:?} {trailers:?}", answer.status(), answer.headers())) }
    }
}
