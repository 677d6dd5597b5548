//! Full load over HTTP/1.1, HTTP/2 and gRPC while policies change every second, servers are replaced one by one, and
//! the proxy is replaced three times. No request may fail and no proxy may grow. Runs for seconds, or for
//! `SOAK_MINUTES`.

mod backends;
mod callers;

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::{Instant, interval, sleep};

use self::{backends::Backends, callers::Callers};
use crate::{
    attacks::memory,
    harness::{Process, World, alone},
    upgrade::Place,
};

/// Number of successive proxies.
const REIGNS: u32 = 4;
/// Number of memory samples per proxy.
const LOOKS: u32 = 100;
/// Least number of calls between two proxy replacements.
const SOME: u64 = 100;

/// Allowed relative change of a warm proxy's memory.
const TOLERANCE: f64 = 0.05;

/// Duration of the test, and whether that is long enough for a proxy to warm up.
fn terms() -> (Duration, bool) {
    match env::var("SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<u64>().ok()) {
        Some(minutes) => (Duration::from_secs(60 * minutes), true),
        None => (Duration::from_secs(12), false),
    }
}

/// Alternates between two policies of every service, so that proxies must compile policies again.
async fn change_policies(world: &World, over: &AtomicBool) -> u64 {
    let mut seconds = interval(Duration::from_secs(1));
    for n in 0.. {
        seconds.tick().await;
        if over.load(Relaxed) {
            return n;
        }
        let policy = ["score", "leastRequest", "roundRobin", "peakEwma"][n as usize % 4];
        let documents = ["one", "two", "rpc"].map(|service| {
            format!(
                "kind: Policy\nservice: shop/{service}\ntimeout: {}s\nbalancing: {{policy: {policy}, subset: {}}}\n\
                 routes:\n  - name: r{}\n    match: {{path: {{prefix: /}}}}\n",
                20 + n % 7,
                n % 3,
                n % 5
            )
        });
        world.apply(&documents.join("---\n")).await.ok();
    }
    unreachable!("it goes on until it is over")
}

async fn replace_servers(world: &World, mut backends: Backends, over: &AtomicBool) -> usize {
    while !over.load(Relaxed) {
        backends.roll_one(world).await;
    }
    backends.replaced()
}

/// Memory of a proxy that runs for `reign`: when warm, and at the end.
async fn watch(proxy: &Process, reign: Duration) -> [u64; 2] {
    let begun = Instant::now();
    let mut samples = Vec::new();
    while begun.elapsed() < reign {
        samples.push(memory(proxy));
        sleep(reign / LOOKS).await;
    }
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let fifth = samples.len() / 5;
    [median(&samples[2 * fifth..3 * fifth]), median(&samples[4 * fifth..])]
}

/// Runs proxies one after the other; returns the last one and the memory of each.
async fn replace_proxies(
    place: &Place,
    callers: &Callers,
    (time, mut running): (Duration, Process),
) -> (Process, Vec<[u64; 2]>) {
    let mut all = Vec::new();
    for reign in 1..=REIGNS {
        let memory = watch(&running, time / REIGNS).await;
        println!(
            "proxy {reign}: {:?} KB, {} calls, {} failed",
            memory.map(|bytes| bytes >> 10),
            callers.answered(),
            callers.failed()
        );
        all.push(memory);
        if reign < REIGNS {
            // One proxy has a single thread.
            let next = place.proxy(&format!("proxy-{reign}"), &format!(" --cores {}", 1 + reign % 2));
            let ended = running.end().await;
            assert!(ended.success(), "{ended}: {}", running.log());
            callers.go_on(SOME).await;
            running = next;
        }
    }
    assert!(running.has_ended().is_none(), "{}", running.log());
    (running, all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_under_full_load_while_everything_is_replaced() {
    let _machine = alone().await;
    let (time, becomes_warm) = terms();
    let world = World::start("").await;
    let backends = Backends::start(&world).await;
    let place = Place::new(&world);
    let running = place.proxy("proxy-0", "");
    place.ready().await;
    let (callers, over) = (Callers::start(&place.by_host), AtomicBool::new(false));
    callers.go_on(SOME).await;
    let (changed, replaced, (_last, memory)) =
        tokio::join!(change_policies(&world, &over), replace_servers(&world, backends, &over), async {
            let reigned = replace_proxies(&place, &callers, (time, running)).await;
            over.store(true, Relaxed);
            reigned
        });
    let answered = callers.stop_unharmed().await;
    println!("{answered} calls, {changed} changes of policies, {replaced} servers replaced, 0 failed");
    assert!(changed >= time.as_secs() / 2, "policies were changed {changed} times");
    assert!(replaced >= 2, "{replaced} servers were replaced");
    if !becomes_warm {
        println!("memory of the proxies is not judged: they served for {} s", time.as_secs());
        return;
    }
    for [warm, last] in memory {
        let change = (last as f64 - warm as f64).abs() / warm as f64;
        assert!(change <= TOLERANCE, "{warm} bytes when it was warm, {last} in the end");
    }
}
