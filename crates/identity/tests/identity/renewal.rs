//! The life of certificates, by a clock that the test moves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use fairmesh_identity::{
    Clock as _, Trust, Usage, Workload,
    renewal::{Certified, RENEWAL, Source, keep_fresh},
};
use fairmesh_wire::transport::TlsIdentity as _;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// An authority that can be away.
struct Issuer {
    ca: Arc<Ca>,
    clock: Arc<TestClock>,
    away: Arc<AtomicBool>,
    issued: Arc<AtomicU32>,
}

impl Source for Issuer {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        if self.away.load(Ordering::Relaxed) {
            return Err("nobody answers".into());
        }
        self.issued.fetch_add(1, Ordering::Relaxed);
        let issued = self.ca.authority.issue(&request, &id("shop/cart"), self.clock.now());
        let chain = issued.map_err(|error| error.to_string())?.chain;
        Ok(Certified { chain, bundle: self.ca.authority.bundle() })
    }
}

struct Rig {
    ca: Arc<Ca>,
    clock: Arc<TestClock>,
    away: Arc<AtomicBool>,
    issued: Arc<AtomicU32>,
    workload: Arc<Workload>,
    stop: CancellationToken,
}

impl Rig {
    fn start() -> Self {
        let clock = TestClock::at(now());
        let (ca, workload) = (Arc::new(Ca::default()), Arc::new(Workload::new(clock.clone())));
        let (away, issued, stop) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default(), CancellationToken::new());
        let issuer =
            Issuer { ca: ca.clone(), clock: clock.clone(), away: away.clone(), issued: issued.clone() };
        tokio::spawn(keep_fresh(workload.clone(), issuer, stop.clone()));
        Self { ca, clock, away, issued, workload, stop }
    }

    /// Whether a peer accepts the certificate now.
    fn is_accepted(&self) -> bool {
        let Some(own) = self.workload.credentials() else { return false };
        let trust = Trust::new(self.ca.authority.bundle()).unwrap();
        trust.verify(own.chain(), Usage::Client, self.clock.now()).is_ok()
    }

    /// Moves the clock, and checks at every minute.
    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / 60 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(self.is_accepted());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_for_days_through_rotations_and_an_outage() {
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
async fn an_outage_past_expiry_ends_with_the_first_response() {
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
async fn those_that_began_together_come_back_spread_out() {
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
async fn those_that_missed_their_renewals_come_back_spread_out() {
    let rigs: Vec<_> = (0..200).map(|_| Rig::start()).collect();
    for rig in &rigs {
        rig.workload.ready().await;
        rig.away.store(true, Ordering::Relaxed);
    }
    tokio::time::sleep(RENEWAL + 6 * HOUR).await;
    rigs.iter().for_each(|rig| rig.away.store(false, Ordering::Relaxed));
    let renewed = || rigs.iter().filter(|rig| rig.issued.load(Ordering::Relaxed) > 1).count();
    let mut before = renewed();
    // The pause between attempts is at most 300 s and a half.
    for _ in 0..16 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let now = renewed();
        assert!(now - before <= 50, "{} of 200 within 30 s", now - before);
        before = now;
    }
    assert_eq!(before, 200);
}
