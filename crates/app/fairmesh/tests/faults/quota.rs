//! A mesh-wide limit is divided among programs by their real demand, not by the demand they claim.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Body, FaultKind, Mesh};
use fairmesh_model::{Protocol, rate_limit_quota::ALL_PARTS};
use fairmesh_wire::v1::{ClaimRequest, Demand};
use http::Request;
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::harness::{Spec, World, beside_others};

/// Limit of calls per second over all callers.
const QUOTA: u64 = 60;
/// Length of the window in which calls are counted.
const WINDOW: Duration = Duration::from_secs(4);

/// A program that calls at a fixed interval.
struct Caller {
    passed: Arc<AtomicU64>,
    limited: Arc<AtomicU64>,
    calling: JoinHandle<()>,
}

impl Caller {
    fn start(mesh: &Mesh, every: Duration, missed: MissedTickBehavior) -> Self {
        let service = mesh.service("shop/one").unwrap();
        let (passed, limited) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (counted, refused) = (Arc::clone(&passed), Arc::clone(&limited));
        let calling = tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(missed);
            loop {
                ticks.tick().await;
                match service.send(Request::get("/").body(Body::empty()).unwrap()).await {
                    Ok(answer) => {
                        assert_eq!(answer.status().as_u16(), 200);
                        counted.fetch_add(1, Relaxed);
                    }
                    Err(fault) => {
                        assert_eq!(fault.kind(), FaultKind::RateLimited, "{fault}");
                        refused.fetch_add(1, Relaxed);
                    }
                }
            }
        });
        Self { passed, limited, calling }
    }
}

/// Measures the accepted calls per second of each caller, window after window, until the rates are as wanted.
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

/// Claims the whole limit under many false names, as often as any caller, until dropped.
async fn claim_falsely(world: &World) -> JoinHandle<()> {
    let connection = world.connection().await;
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(500));
        for round in 0_u64.. {
            ticks.tick().await;
            let demand = |service: String, demand| Demand {
                service,
                millicalls_per_second: demand,
                held: Some(ALL_PARTS),
                ..Demand::default()
            };
            let invented = (0..500).map(|i| demand(format!("shop/invented-{round}-{i}"), u64::MAX));
            let all = invented.chain([demand("shop/one".into(), u64::MAX)]).collect();
            let none = vec![demand("shop/one".into(), 0)];
            for (caller, demands) in [(7, all), (8, none)] {
                connection.quota().claim(ClaimRequest { caller, demands }).await.unwrap();
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_share_mesh_wide_rate_limit_by_demand() {
    let _machine = beside_others().await;
    let yaml = format!(
        "{{kind: Policy, service: shop/one, limit: {{calls: {QUOTA}, per: 1s, burst: 30, scope: mesh}}}}"
    );
    let world = World::start(&yaml).await;
    let _server = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let (_agent, other) = world.another_agent("other").await;
    let (much, little) = (world.mesh().await, world.mesh_of(other).await);
    let within = |rate: f64, of: f64, by: f64| (rate / of - 1.0).abs() <= by;

    let often = Caller::start(&much, Duration::from_millis(5), MissedTickBehavior::Burst);
    // Missed ticks are skipped, since a burst could exceed the caller's share.
    let seldom = Caller::start(&little, Duration::from_millis(77), MissedTickBehavior::Skip);
    come_to("three to one", &[&often, &seldom], |rates| {
        within(rates[0] + rates[1], QUOTA as f64, 0.1) && within(rates[0] / rates[1], 3.0, 0.25)
    })
    .await;

    // With four callers, an equal share is 14 calls per second; the rest goes to callers with higher demand.
    let hostile = claim_falsely(&world).await;
    come_to("beside false claims", &[&often, &seldom], |rates| {
        rates[0] >= 14.0 && within(rates[1], 13.0, 0.1)
    })
    .await;
    let limited = seldom.limited.load(Relaxed);
    come_to("still so", &[&often, &seldom], |rates| rates[0] >= 14.0 && within(rates[1], 13.0, 0.1)).await;
    assert_eq!(seldom.limited.load(Relaxed), limited, "it never wants more than its part");
    hostile.abort();

    seldom.calling.abort();
    drop(little);
    come_to("all of it", &[&often], |rates| within(rates[0], QUOTA as f64, 0.1)).await;

    // Without a control plane, callers keep the last configuration.
    let mut world = world;
    world.control.kill().await;
    come_to("what it had", &[&often], |rates| within(rates[0], QUOTA as f64, 0.1)).await;
    often.calling.abort();
}
