//! A limit that holds for the whole mesh, divided among programs by what they are asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Body, FaultKind, Mesh};
use fairmesh_model::Protocol;
use http::Request;
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::harness::{Spec, World, beside_others};

/// Calls that all may make in a second.
const QUOTA: u64 = 60;
/// For how long calls are counted at a time.
const WINDOW: Duration = Duration::from_secs(4);

/// A program that calls again and again.
struct Caller {
    passed: Arc<AtomicU64>,
    calling: JoinHandle<()>,
}

impl Caller {
    fn start(mesh: &Mesh, every: Duration) -> Self {
        let service = mesh.service("shop/one").unwrap();
        let passed = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&passed);
        let calling = tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                ticks.tick().await;
                match service.send(Request::get("/").body(Body::empty()).unwrap()).await {
                    Ok(answer) => {
                        assert_eq!(answer.status().as_u16(), 200);
                        counted.fetch_add(1, Relaxed);
                    }
                    Err(fault) => assert_eq!(fault.kind(), FaultKind::RateLimited, "{fault}"),
                }
            }
        });
        Self { passed, calling }
    }
}

/// How many calls a second of each passed, over one window after the other, until that is as wanted.
async fn come_to(what: &str, callers: &[&Caller], wanted: impl Fn(&[f64]) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..15 {
        let before: Vec<_> = callers.iter().map(|caller| caller.passed.load(Relaxed)).collect();
        let began = Instant::now();
        sleep(WINDOW).await;
        let seconds = began.elapsed().as_secs_f64();
        let passed = callers.iter().zip(before).map(|(caller, before)| caller.passed.load(Relaxed) - before);
        let rates: Vec<_> = passed.map(|passed| passed as f64 / seconds).collect();
        assert!(callers.iter().all(|caller| !caller.calling.is_finished()), "a call failed");
        if wanted(&rates) {
            return;
        }
        seen.push(rates);
    }
    panic!("{what}: {seen:.1?} calls a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_share_a_limit_by_what_they_are_asked_for() {
    let _machine = beside_others().await;
    let yaml = format!(
        "{{kind: Policy, service: shop/one, limit: {{calls: {QUOTA}, per: 1s, burst: 6, scope: mesh}}}}"
    );
    let world = World::start(&yaml).await;
    let _server = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let (_agent, other) = world.another_agent("other").await;
    let (much, little) = (world.mesh().await, world.mesh_of(other).await);
    let within = |rate: f64, of: f64, by: f64| (rate / of - 1.0).abs() <= by;

    let often = Caller::start(&much, Duration::from_millis(5));
    let seldom = Caller::start(&little, Duration::from_millis(15));
    come_to("three to one", &[&often, &seldom], |rates| {
        within(rates[0] + rates[1], QUOTA as f64, 0.1) && within(rates[0] / rates[1], 3.0, 0.25)
    })
    .await;

    seldom.calling.abort();
    drop(little);
    come_to("all of it", &[&often], |rates| within(rates[0], QUOTA as f64, 0.1)).await;

    // Without a control plane it goes on by what it was told last.
    let mut world = world;
    world.control.kill().await;
    come_to("what it had", &[&often], |rates| within(rates[0], QUOTA as f64, 0.1)).await;
    often.calling.abort();
}
