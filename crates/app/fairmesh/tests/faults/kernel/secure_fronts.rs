//! Both fronts of programs permit the same calls by the kernel: `register` and `proxy --inbound`.

use rustix::process::Signal;
use serde_json::Value;

use super::secure::{BOUND, EVIL_CALLS, Front, Place, Secure};
use crate::harness::{beside_others, read_to_end, say, until};

const BY_MTLS: &str = "200 spiffe://prod/shop/web|";

/// What becomes of the calls of an identity under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The kernel sends them, and so does the sidecar.
    Kernel,
    /// They are allowed by mutual TLS alone.
    Mtls,
    Refused,
}

/// Applies the policies one after another, each with its outcomes for the calls of `shop/web` and of `shop/batch`.
async fn agrees(front: Front, cases: &[(&str, [Outcome; 2])]) {
    for (at, identity) in ["shop/web", "shop/batch"].into_iter().enumerate() {
        let name = format!("matrix{at}{front:?}").to_lowercase();
        let Some(mesh) = Secure::start_as(&name, identity, (front, Place::Together)).await else { return };
        let caller = format!("200 spiffe://prod/{identity}|");
        for (rules, outcomes) in cases {
            let document = format!("{{kind: Authorization, service: shop/raw, {rules}}}");
            match outcomes[at] {
                Outcome::Kernel => {
                    mesh.world.apply(&document).await.ok();
                    mesh.calls_by_kernel().await;
                    let (said, _) = mesh.call(4).await;
                    let is_allowed = said.iter().all(|line| line.starts_with(&caller));
                    assert!(is_allowed, "{identity}, {rules}: {said:?}");
                }
                Outcome::Mtls => {
                    mesh.world.apply(&document).await.ok();
                    // A front refuses at once, and needs longer to allow more.
                    let is_allowed = |line: &String| line.starts_with(&caller);
                    until("the calls are allowed", async || mesh.call(4).await.0.iter().all(is_allowed))
                        .await;
                    mesh.no_calls_by_kernel_after(BOUND, &caller).await;
                }
                Outcome::Refused => mesh.ends_within_second(&document, "403").await,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_and_register_agree_for_each_identity_and_policy() {
    use Outcome::{Kernel, Mtls, Refused};
    let _machine = beside_others().await;
    // Refusals come last: after them the proxy asks less and less often, and a refused caller connects again after 5 s.
    let cases = [
        ("rules: [{name: all}]", [Kernel, Kernel]),
        ("mode: audit, rules: [{name: web, from: [shop/web]}]", [Kernel, Mtls]),
        ("rules: [{name: web, from: [shop/web]}]", [Kernel, Refused]),
        ("rules: [{name: all}, {name: no, action: deny, from: [shop/batch]}]", [Kernel, Refused]),
        // `register` judges connections, which have no method.
        ("rules: [{name: reads, from: [shop/web], methods: [GET]}]", [Refused, Refused]),
    ];
    agrees(Front::Register, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_and_inbound_proxy_agree_for_each_identity_and_policy() {
    use Outcome::{Kernel, Mtls, Refused};
    let _machine = beside_others().await;
    let cases = [
        ("rules: [{name: all}]", [Kernel, Kernel]),
        ("mode: audit, rules: [{name: web, from: [shop/web]}]", [Kernel, Mtls]),
        ("rules: [{name: web, from: [shop/web]}]", [Kernel, Refused]),
        ("rules: [{name: all}, {name: no, action: deny, from: [shop/batch]}]", [Kernel, Refused]),
        // The proxy judges requests. The kernel does not send requests that the proxy has to see.
        ("rules: [{name: reads, from: [shop/web], methods: [GET]}]", [Mtls, Refused]),
        ("rules: [{name: all}, {name: no, action: deny, methods: [DELETE]}]", [Mtls, Mtls]),
    ];
    agrees(Front::Inbound, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_permits_proved_caller_until_it_is_revoked() {
    let _machine = beside_others().await;
    let placed = (Front::Inbound, Place::Together);
    let Some(mesh) = Secure::start_as("inbound", "shop/web", placed).await else { return };
    let (by_mtls, sent) = mesh.call(1).await;
    assert_eq!(sent, 0, "the first call of a service is the sidecar's");
    let server = format!("{BY_MTLS}By=spiffe://prod/shop/raw;Hash=");
    let is_proved =
        |line: &String| line.starts_with(&server) && line.ends_with(";URI=spiffe://prod/shop/web");
    assert!(is_proved(&by_mtls[0]), "{by_mtls:?}");
    mesh.calls_by_kernel().await;

    let (said, sent) = mesh.call(100).await;
    assert!(sent >= 95, "{sent} of 100");
    assert!(said.len() == 100 && said.iter().all(|line| *line == by_mtls[0]), "{said:?}");
    mesh.world.cli(&["identity", "revoke", "shop/web"]).await.ok();
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_inbound_proxy_ends_local_calls_by_kernel_within_a_second() {
    let _machine = beside_others().await;
    let placed = (Front::Inbound, Place::Together);
    let Some(mut mesh) = Secure::start_as("inboundend", "shop/web", placed).await else { return };
    mesh.calls_by_kernel().await;
    mesh.front.kill().await;
    mesh.no_calls_by_kernel_after(BOUND, "50").await;
}

/// The proxy in front forwards these calls over TCP, which anyone on the machine may do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_permits_no_calls_to_program_of_another_service() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("inboundevil").await else { return };
    mesh.calls_by_kernel().await;
    let rules = "{kind: Authorization, service: shop/raw, rules: [{name: other, from: [shop/other]}]}";
    mesh.ends_within_second(rules, "403").await;
    let cgroup = format!("{}-evil", mesh.attached.cgroup);
    let _evil = Front::Inbound.start(&mesh.world, &cgroup, "shop/evil", &format!("127.0.0.1:{}", mesh.port));
    mesh.world.serves("shop/evil", "shop-evil").await;
    let before = mesh.attached.counter("in-place-of-mtls").await;
    // The second time, the proxy has asked.
    for _ in 0..2 {
        let said = mesh.run(EVIL_CALLS).await;
        let is_forwarded = |line: &str| line.starts_with(&format!("{BY_MTLS}By=spiffe://prod/shop/evil;"));
        assert!(said.lines().count() == 20 && said.lines().all(is_forwarded), "{said}");
    }
    assert_eq!(mesh.attached.counter("in-place-of-mtls").await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_of_another_user_permits_no_calls_by_kernel() {
    let _machine = beside_others().await;
    let placed = (Front::Inbound, Place::OtherUser);
    let Some(mesh) = Secure::start_as("inbounduser", "shop/web", placed).await else { return };
    for _ in 0..2 {
        mesh.no_calls_by_kernel_after(BOUND, BY_MTLS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_endpoint_gets_no_calls_by_kernel_within_a_second() {
    let _machine = beside_others().await;
    for front in [Front::Register, Front::Inbound] {
        let name = format!("drained{front:?}").to_lowercase();
        let Some(mesh) = Secure::start_as(&name, "shop/web", (front, Place::Together)).await else { return };
        mesh.calls_by_kernel().await;
        // The only endpoint gets calls as a last resort, by the sidecar.
        mesh.world.cli(&["drain", "shop/raw", "shop-raw"]).await.ok();
        mesh.no_calls_by_kernel_after(BOUND, BY_MTLS).await;
        mesh.world.cli(&["undrain", "shop/raw", "shop-raw"]).await.ok();
        mesh.calls_by_kernel().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_that_drains_permits_no_calls_by_kernel() {
    let _machine = beside_others().await;
    let placed = (Front::Inbound, Place::Together);
    let Some(mut mesh) = Secure::start_as("inboundterm", "shop/web", placed).await else { return };
    mesh.calls_by_kernel().await;
    mesh.front.signal(Signal::TERM);
    mesh.no_calls_by_kernel_after(BOUND, "").await;
    assert!(mesh.front.end().await.success());
}

/// Responses on a page of metrics: the sum of the series of one name, of successes and of failures.
fn responses(page: &str, name: &str) -> [f64; 2] {
    let series = |class: &str| {
        let label = format!("class=\"{class}\"");
        let lines =
            page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(&label));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    };
    ["2xx", "5xx"].map(series)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_side_counts_of_both_forms_equal_client_side_counts() {
    let _machine = beside_others().await;
    for (front, name) in [(Front::Register, "register"), (Front::Inbound, "proxy_inbound")] {
        let test = format!("counts{front:?}").to_lowercase();
        let Some(mesh) = Secure::start_as(&test, "shop/web", (front, Place::Together)).await else { return };
        mesh.calls_by_kernel().await;
        // The sidecar reads the last two responses.
        let calls = "\nfor at in range(50):\n    call(b'1')\ncall(b'fail')\ncall(b'slow')\n";
        assert_eq!(mesh.run(calls).await.lines().count(), 52);
        until(&format!("all calls behind {name} are counted on both sides"), async || {
            let own = mesh.proxy.page("/metrics").await;
            let mut stream = say(&mesh.front_admin, "GET /metrics HTTP/1.0\r\nhost: mesh\r\n\r\n").await;
            let of_front = String::from_utf8(read_to_end(&mut stream).await).unwrap();
            let client = responses(&own, "fairmesh_proxy_responses_total");
            let by_kernel = responses(&own, "fairmesh_proxy_in_place_of_mtls_responses_total");
            let seen = responses(&of_front, &format!("fairmesh_{name}_responses_total"));
            let is_equal = (0..2).all(|at| by_kernel[at] + seen[at] == client[at]);
            is_equal && by_kernel[0] >= 50.0 && by_kernel[1] == 1.0
        })
        .await;
    }
}

/// The front sees none of these calls, and the sidecar reads the responses of the last two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_contains_both_sides_of_calls_in_place_of_mtls() {
    let _machine = beside_others().await;
    let options = "--access-log json --service shop/web";
    let Some(mesh) = Secure::start_with("logs", options, (Front::Register, Place::Together)).await else {
        return;
    };
    mesh.calls_by_kernel().await;
    let calls = "\nfor at in range(50):\n    call(b'call-%d' % at)\ncall(b'fail')\ncall(b'slow')\n";
    assert_eq!(mesh.run(calls).await.lines().count(), 52);
    let sent = mesh.attached.counter("in-place-of-mtls").await as usize;
    let mut sides = [Vec::new(), Vec::new()];
    until("the server's side of each call is logged", async || {
        let log = mesh.proxy.process.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.filter(|line| line["service"] == "shop/raw");
        sides = lines.partition::<Vec<_>, _>(|line| line["in_place_of_mtls"] == true).into();
        sides[0].len() >= sent
    })
    .await;
    let [served, client] = sides;
    assert_eq!(served.len(), sent, "{served:?}");
    for line in &served {
        assert_eq!(
            (&line["direction"], &line["caller_id"]),
            (&"inbound".into(), &"spiffe://prod/shop/web".into())
        );
        let is_same = |other: &&Value| {
            ["path", "method", "status", "caller"].iter().all(|name| other[name] == line[name])
                && (line.get("bytes_out").is_none() || other["bytes_out"] == line["bytes_out"])
        };
        assert!(client.iter().any(|other| is_same(&other)), "{line} in {client:?}");
    }
    let of =
        |path: &str| served.iter().find(|line| line["path"] == path).unwrap_or_else(|| panic!("{served:?}"));
    assert!(of("/call-49")["bytes_out"].as_u64().unwrap() > 0);
    assert_eq!(of("/fail")["status"], 500);
    let slow = of("/slow");
    assert!(slow["ms"].as_f64().unwrap() >= 300.0 && slow.get("bytes_out").is_none(), "{slow}");
}
