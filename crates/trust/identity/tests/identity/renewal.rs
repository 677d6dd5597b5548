//! Tests of the life cycle of certificates, with a clock that the test advances.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use fairmesh_identity::{
    Clock as _, Credentials, IdentityError, Trust, Usage, Workload,
    renewal::{Certified, RENEWAL, Source, keep_fresh},
};
use fairmesh_wire::transport::TlsIdentity as _;
use tokio_util::sync::CancellationToken;
use tracing::subscriber::DefaultGuard;

use crate::support::*;

/// An authority that can be offline, for a process whose disk can be full.
struct Issuer {
    ca: Arc<Ca>,
    clock: Arc<TestClock>,
    away: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    issued: Arc<AtomicU32>,
    kept: Arc<AtomicU32>,
}

impl Source for Issuer {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        if self.away.load(Ordering::Relaxed) {
            return Err("the control plane is away".into());
        }
        self.issued.fetch_add(1, Ordering::Relaxed);
        let issued = self.ca.authority.issue(&request, &id("shop/cart"), self.clock.now());
        let chain = issued.map_err(|error| error.to_string())?.chain;
        Ok(Certified { chain, bundle: self.ca.authority.bundle() })
    }

    fn save(&self, _: &Credentials) -> Result<(), IdentityError> {
        if self.full.load(Ordering::Relaxed) {
            let path = "/var/lib/fairmesh/agent/identity/identity.key".into();
            return Err(IdentityError::Io { path, source: io::ErrorKind::StorageFull.into() });
        }
        self.kept.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Captures the log of this thread as JSON.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Self, DefaultGuard) {
        let this = Self::default();
        let written = this.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || written.clone()).finish();
        (this, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the fields of log lines with this message.
    fn lines(&self, message: &str) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["fields"]["message"].as_str().unwrap().contains(message)).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Rig {
    ca: Arc<Ca>,
    clock: Arc<TestClock>,
    away: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    issued: Arc<AtomicU32>,
    kept: Arc<AtomicU32>,
    workload: Arc<Workload>,
    stop: CancellationToken,
}

impl Rig {
    fn start() -> Self {
        let clock = TestClock::at(now());
        let (ca, workload) = (Arc::new(Ca::default()), Arc::new(Workload::new(clock.clone())));
        let [away, full] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let [issued, kept] = [(); 2].map(|()| Arc::<AtomicU32>::default());
        let stop = CancellationToken::new();
        let issuer = Issuer {
            ca: ca.clone(),
            clock: clock.clone(),
            away: away.clone(),
            full: full.clone(),
            issued: issued.clone(),
            kept: kept.clone(),
        };
        tokio::spawn(keep_fresh(workload.clone(), issuer, stop.clone()));
        Self { ca, clock, away, full, issued, kept, workload, stop }
    }

    /// Whether a peer accepts the certificate now.
    fn is_accepted(&self) -> bool {
        let Some(own) = self.workload.credentials() else { return false };
        let trust = Trust::new(self.ca.authority.bundle()).unwrap();
        trust.verify(own.chain(), Usage::Client, self.clock.now()).is_ok()
    }

    /// Advances the clock, and checks the certificate every minute.
    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / 60 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(self.is_accepted());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn certificate_renewal_survives_rotations_and_outage() {
    let rig = Rig::start();
    assert!(!rig.workload.is_ready());
    rig.workload.ready().await;
    rig.pass(24 * HOUR).await;
    let issued = rig.issued.load(Ordering::Relaxed);
    assert!((4..=5).contains(&issued), "each 8 h or a little earlier: {issued}");
    rig.ca.authority.rotate_issuer(rig.clock.now()).unwrap();
    rig.pass(10 * HOUR).await;
    rig.away.store(true, Ordering::Relaxed);
    rig.pass(15 * HOUR).await;
    rig.away.store(false, Ordering::Relaxed);
    rig.ca.authority.begin_root(rig.clock.now()).unwrap();
    rig.pass(10 * HOUR).await;
    rig.ca.authority.rotate_issuer(rig.clock.now()).unwrap();
    rig.pass(13 * HOUR).await;
    rig.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn first_renewal_after_expiry_restores_identity() {
    let rig = Rig::start();
    rig.workload.ready().await;
    rig.away.store(true, Ordering::Relaxed);
    tokio::time::sleep(30 * HOUR).await;
    assert!(!rig.is_accepted());
    rig.away.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(rig.is_accepted());
}

#[tokio::test(start_paused = true)]
async fn failed_certificate_renewals_log_errors_twelve_hours_before_expiry() {
    const ALARM: &str = "the certificate cannot be renewed, and expires soon";
    let (log, _guard) = Log::begin();
    let rig = Rig::start();
    rig.workload.ready().await;
    rig.away.store(true, Ordering::Relaxed);
    rig.pass(RENEWAL + HOUR).await;
    let warned = log.lines("the certificate cannot be renewed; trying again");
    assert!(!warned.is_empty() && warned.iter().all(|line| line["level"] == "WARN"));
    assert_eq!(warned[0]["fields"]["error"], "the control plane is away");
    assert!(log.lines(ALARM).is_empty());
    rig.pass(4 * HOUR).await;
    let alarms = log.lines(ALARM);
    assert!(alarms.iter().all(|line| line["level"] == "ERROR"));
    let left = alarms[0]["fields"]["left_s"].as_u64().unwrap();
    let twelve_hours = 12 * HOUR.as_secs();
    // Attempts are 300 s apart, plus up to half of that.
    assert!((twelve_hours - 450..twelve_hours).contains(&left), "{left} s are left at the first");
    assert!(alarms.len() <= 2 * 3600 / 300, "{} lines in less than two hours", alarms.len());
    rig.away.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let ended = log.lines(ALARM).len();
    rig.pass(RENEWAL).await;
    assert_eq!(log.lines(ALARM).len(), ended, "it is renewed");
}

#[tokio::test(start_paused = true)]
async fn missing_first_certificate_is_warning_only_after_five_seconds() {
    let (log, _guard) = Log::begin();
    let rig = Rig::start();
    rig.away.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let lines = log.lines("there is no certificate yet");
    let levels: Vec<_> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels.first(), Some(&"INFO"), "{levels:?}");
    assert_eq!(levels.last(), Some(&"WARN"), "{levels:?}");
}

#[tokio::test(start_paused = true)]
async fn full_disk_prevents_only_saving_of_renewed_certificate() {
    let (log, _guard) = Log::begin();
    let rig = Rig::start();
    rig.workload.ready().await;
    rig.full.store(true, Ordering::Relaxed);
    // Longer than the lifetime of a certificate. Peers accept the process's certificate in every minute.
    rig.pass(26 * HOUR).await;
    let counts = || (rig.issued.load(Ordering::Relaxed), rig.kept.load(Ordering::Relaxed));
    let (issued, kept) = counts();
    assert!(issued >= 4 && kept == 1, "{issued} were issued, {kept} kept");
    let logged = log.lines("the new certificate cannot be kept on disk");
    assert_eq!(logged.len() as u32, issued - 1, "one line for each");
    let error = logged[0]["fields"]["error"].as_str().unwrap();
    assert!(logged[0]["level"] == "ERROR" && error.contains("identity.key: no storage space"), "{error}");
    rig.full.store(false, Ordering::Relaxed);
    rig.pass(RENEWAL).await;
    assert!(counts().1 >= 2, "the next one is kept again");
}

#[tokio::test(start_paused = true)]
async fn certificate_renewals_of_processes_started_together_are_spread() {
    let rigs: Vec<_> = (0..200).map(|_| Rig::start()).collect();
    for rig in &rigs {
        rig.workload.ready().await;
    }
    let early = || rigs.iter().filter(|rig| rig.issued.load(Ordering::Relaxed) > 1).count();
    tokio::time::sleep(RENEWAL * 9 / 10 - Duration::from_secs(120)).await;
    assert_eq!(early(), 0);
    tokio::time::sleep(RENEWAL / 20 + Duration::from_secs(120)).await;
    assert!((50..=150).contains(&early()), "{}", early());
    tokio::time::sleep(RENEWAL / 20 + Duration::from_secs(120)).await;
    assert_eq!(early(), 200);
}

#[tokio::test(start_paused = true)]
async fn certificate_renewals_after_outage_are_spread_over_time() {
    let rigs: Vec<_> = (0..200).map(|_| Rig::start()).collect();
    for rig in &rigs {
        rig.workload.ready().await;
        rig.away.store(true, Ordering::Relaxed);
    }
    tokio::time::sleep(RENEWAL + 6 * HOUR).await;
    rigs.iter().for_each(|rig| rig.away.store(false, Ordering::Relaxed));
    let renewed = || rigs.iter().filter(|rig| rig.issued.load(Ordering::Relaxed) > 1).count();
    let mut before = renewed();
    // The pause between attempts is at most 450 s.
    for _ in 0..16 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let now = renewed();
        assert!(now - before <= 50, "{} of 200 within 30 s", now - before);
        before = now;
    }
    assert_eq!(before, 200);
}
