//! The kernel balances requests over several endpoints.

use std::collections::BTreeMap;

use fairmesh_model::Protocol;

use super::Attached;
use crate::harness::{Spec, World, beside_others, until};

/// Number of requests per connection.
const REQUESTS: usize = 40;

/// Number of responses from each instance on one connection.
async fn shares(attached: &Attached) -> BTreeMap<String, usize> {
    let urls = ["http://hello.shop/"; REQUESTS];
    let said = attached.curl(&urls).await.ok().to_lowercase();
    assert_eq!(said.matches("http/1.1 200").count(), REQUESTS, "{said}");
    let mut shares = BTreeMap::new();
    for instance in said.lines().filter_map(|line| line.strip_prefix("x-instance: ")) {
        *shares.entry(instance.trim().to_owned()).or_default() += 1;
    }
    shares
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_balances_over_current_endpoints_by_each_policy() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("balance").await else { return };
    let world = World::start("").await;
    let server = async |name| Spec::new("shop/hello", name, Protocol::Http1).here(&world).await;
    let _kept = [server("hello-1").await, server("hello-2").await];
    let third = server("hello-3").await;
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;

    for policy in ["score", "leastRequest", "roundRobin", "random"] {
        let records = format!("{{kind: Policy, service: shop/hello, balancing: {{policy: {policy}}}}}");
        world.apply(&records).await.ok();
        until("all endpoints are connected to, and the kernel sends to each", async || {
            let before = attached.counter("sent-by-kernel").await;
            let shares = shares(&attached).await;
            let sent = attached.counter("sent-by-kernel").await - before;
            sent + 1 >= REQUESTS as u64 && shares.len() == 3 && shares.values().all(|count| *count >= 3)
        })
        .await;
        let turns = shares(&attached).await;
        assert!(policy != "roundRobin" || turns.values().all(|count| (13..=14).contains(count)), "{turns:?}");
    }

    third.stop().await;
    until("the endpoint that left gets no request", async || {
        let before = attached.counter("sent-by-kernel").await;
        let shares = shares(&attached).await;
        shares.len() == 2 && attached.counter("sent-by-kernel").await - before >= REQUESTS as u64 - 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_requests_again_after_detach_and_attach() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("again").await else { return };
    let world = World::start("").await;
    let _server = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let _proxy = attached.proxy(&world).await;
    for _ in 0..3 {
        attached.attach().await;
        until("the kernel sends requests", async || {
            attached.curl(&["http://hello.shop/", "http://hello.shop/"]).await;
            attached.counter("sent-by-kernel").await > 0
        })
        .await;
        attached.kernel(&["detach"]).await.ok();
    }
}
