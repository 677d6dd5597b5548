//! Routes applied by the kernel, also while policies change.

use std::time::Duration;

use fairmesh_model::Protocol;
use tokio::time::sleep;

use super::Attached;
use crate::harness::{Spec, World, beside_others, skipped, tool, until};

/// Number of requests per command.
const REQUESTS: usize = 20;

/// Instances that responded to the requests of one connection, in order.
async fn instances(attached: &Attached, path: &str, headers: &[&str]) -> Vec<String> {
    let url = format!("http://hello.shop{path}");
    let said =
        attached.curl(&[headers, &vec![url.as_str(); REQUESTS][..]].concat()).await.ok().to_lowercase();
    assert_eq!(said.matches("http/1.1 200").count(), REQUESTS, "{said}");
    let instances = said.lines().filter_map(|line| line.strip_prefix("x-instance: "));
    instances.map(|instance| instance.trim().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_applies_supported_routes_and_leaves_others_to_sidecar() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("routes").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let _canary = Spec::new("shop/canary", "canary-1", Protocol::Http1).here(&world).await;
    world
        .apply(
            "{kind: Policy, service: shop/hello, routes: [\
             {name: slow, match: {path: {prefix: /slow}}, timeout: 9s}, \
             {name: pattern, match: {path: {regex: '/[0-9]+'}, headers: [{name: x-pattern, present: true}]}}, \
             {name: canary, match: {path: {exact: /canary}}, split: [{service: shop/canary, weight: 1}]}, \
             {name: beta, match: {headers: [{name: x-beta, exact: 'yes'}]}, \
             split: [{service: shop/hello, weight: 1}, {service: shop/canary, weight: 1}]}]}",
        )
        .await
        .ok();
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;
    let sent = async || attached.counter("sent-by-kernel").await;

    // Path and headers of the requests, and whether `hello-1` and `canary-1` may respond.
    let cases: [(&str, &[&str], [bool; 2]); 3] = [
        ("/", &[], [true, false]),
        ("/canary", &[], [false, true]),
        ("/", &["-H", "X-Beta: yes"], [true, true]),
    ];
    for (path, headers, expected) in cases {
        until("the kernel sends all but the first request", async || {
            let before = sent().await;
            let instances = instances(&attached, path, headers).await;
            let responds = ["hello-1", "canary-1"].map(|one| instances.iter().any(|each| each == one));
            assert!((0..2).all(|at| expected[at] || !responds[at]), "{path} {headers:?}: {instances:?}");
            sent().await - before + 1 >= REQUESTS as u64 && responds == expected
        })
        .await;
    }
    let left: [(&str, &[&str]); 2] = [("/slow/1", &[]), ("/a", &["-H", "x-pattern: 1"])];
    for (path, headers) in left {
        let before = (sent().await, attached.counter("route").await);
        assert!(instances(&attached, path, headers).await.iter().all(|one| one == "hello-1"));
        let after = (sent().await, attached.counter("route").await);
        assert_eq!(after.0, before.0, "{path}: none is the kernel's to send");
        // The first request of a connection may arrive before the proxy has set up the connection.
        assert!(after.1 + 1 >= before.1 + REQUESTS as u64, "{path}: {before:?} {after:?}");
    }
}

/// Requests both paths on one connection until the time is over; prints the distinct instances per path.
const LOAD: &str = r#"
import http.client, socket, time
connection = http.client.HTTPConnection("127.96.0.1", 80, timeout=20)
end, said, number = time.monotonic() + 6, set(), 0
while time.monotonic() < end:
    for path in ("/plain", "/moving"):
        connection.request("GET", path, headers={"host": "hello.shop"})
        response = connection.getresponse()
        response.read()
        said.add("%s %d %s" % (path, response.status, response.headers["x-instance"]))
        number += 1
print("\n".join(sorted(said)))
print("many" if number > 200 else "few: %d" % number)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_request_follows_exactly_one_policy_during_changes() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("changes").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let _canary = Spec::new("shop/canary", "canary-1", Protocol::Http1).here(&world).await;
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;
    let load = async { attached.run(&["python3", "-c", LOAD]).await.ok() };
    let changes = async {
        for at in 0.. {
            let (name, routes) = [
                (
                    "random",
                    "{name: other, match: {path: {exact: /other}}, split: [{service: shop/canary, weight: 1}]}, ",
                ),
                ("roundRobin", ""),
            ][at % 2];
            let policy = format!(
                "{{kind: Policy, service: shop/hello, balancing: {{policy: {name}}}, routes: [{routes}\
                 {{name: moving, match: {{path: {{exact: /moving}}}}, split: [{{service: shop/{}, weight: 1}}]}}]}}",
                ["canary", "hello"][at % 2]
            );
            world.apply(&policy).await.ok();
            sleep(Duration::from_millis(50)).await;
        }
    };
    let said = tokio::select! {
        said = load => said,
        () = changes => unreachable!("it goes on"),
    };
    let expected = "/moving 200 canary-1\n/moving 200 hello-1\n/plain 200 hello-1\nmany\n";
    assert_eq!(said, expected);
    assert!(attached.counter("sent-by-kernel").await > 100);
}
