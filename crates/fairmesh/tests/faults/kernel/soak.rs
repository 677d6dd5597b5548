//! Callers, servers, policies and proxies that come and go while the kernel sends requests and responses: for seconds, or for
//! `SOAK_MINUTES`.

use std::{env, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Attached,
    local::{ABORTS, CALLS, LocalServer},
    requests::CALLER,
};
use crate::{
    harness::{Process, World, beside_others, free_port, skipped, tool, until},
    upgrade::Place,
};

/// Between two changes.
const PAUSE: Duration = Duration::from_millis(300);

/// Requests of connections that the callers keep, each repeated on another connection where a server or proxy went with the first: a
/// response is the right one or none.
const KEPT: &str = r#"
def keep(seed):
    dice, own = random.Random(seed), None
    while time.monotonic() < end:
        path = dice.choice(["plain-7", "plain-300", "plain-60000", "plain-70000", "split-9", "chunked-5", "load-3", "slow-1"])
        # A body is sent apart from its head, which the kernel leaves to the proxy.
        body = "b" * dice.randrange(300) if dice.random() < 0.2 else ""
        try:
            own = own or http.client.HTTPConnection("127.96.0.1", 80, timeout=20)
            own.request("POST" if body else "GET", "/" + path, body or None, {"host": "raw.shop"})
            response = own.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException):
            own = None
            continue
        counts[response.status] = counts.get(response.status, 0) + 1
        if response.status != 200:
            time.sleep(0.05)
        elif text != path + ":" + body + "x" * int(path.split("-")[1]):
            print("%s: %d bytes that begin with %s" % (path, len(text), text[:40]))

import http.client, time
end, counts = time.monotonic() + seconds, {}
def abort_until_the_end(seed):
    while time.monotonic() < end:
        try:
            abort(seed)
        except OSError:
            pass
        seed += 8

threads = [threading.Thread(target=keep, args=(seed,)) for seed in range(16)]
threads += [threading.Thread(target=abort_until_the_end, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
good = counts.pop(200, 0)
print("200 mostly" if good > 2 * sum(counts.values()) else "%d good, of the others %s" % (good, counts))
"#;

fn soak_time() -> Duration {
    match env::var("SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<u64>().ok()) {
        Some(minutes) => Duration::from_secs(60 * minutes),
        None => Duration::from_secs(12),
    }
}

/// Changes something, over and over: the policy, the server, and the last of the proxies.
async fn change(
    world: &World,
    server: &mut LocalServer,
    (place, listen): (&Place, &str),
    proxies: &mut Vec<Process>,
) {
    let began = Instant::now();
    for at in 0_usize.. {
        let policy = ["random", "roundRobin", "leastRequest", "score"][at % 4];
        world
            .apply(&format!("{{kind: Policy, service: shop/raw, balancing: {{policy: {policy}}}}}"))
            .await
            .ok();
        sleep(PAUSE).await;
        if at % 8 == 3 {
            server.restart().await;
        }
        if at % 8 == 7 && began.elapsed() < soak_time() {
            proxies.push(place.proxy(&format!("next-{at}"), listen));
            // The predecessor of the predecessor has drained.
            while proxies.len() > 2 {
                let mut drained = proxies.remove(0);
                until("a predecessor has drained", async || drained.has_ended().is_some()).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_gets_its_own_responses_while_everything_changes() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("callers and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("soak").await else { return };
    let world = World::start("").await;
    let mut server = LocalServer::start(&world, &attached, "4").await;
    let place = Place::new(&world);
    let listen = format!(
        " --access-log off --drain-deadline 5s --listen kernel:127.0.0.1:{}+bpffs={}",
        free_port(),
        attached.pins().display()
    );
    let mut proxies = vec![place.proxy("first", &listen)];
    place.ready().await;
    // Not all of the callers at once.
    attached.attach_with(&["--servers", &server.cgroup, "--max-in-flight", "12"]).await;

    let aborts = ABORTS.split("threads =").next().unwrap_or_default();
    let script = format!("{CALLER}{CALLS}{aborts}\nseconds = {}\n{KEPT}", soak_time().as_secs());
    let (program, at_most) = (["python3", "-c", &script], soak_time() * 2 + Duration::from_secs(60));
    let said = tokio::select! {
        said = attached.run_for(&program, at_most) => said.ok(),
        () = change(&world, &mut server, (&place, &listen), &mut proxies) => unreachable!("it goes on"),
    };
    assert_eq!(said, "200 mostly\n");
    let status = attached.status().await;
    assert!(status["counters"]["answered-directly"].as_u64() > Some(100), "{status}");
    until("no request is in flight, nor counted so for the cgroup", async || {
        let status = attached.status().await;
        let mut attachments = status["attachments"].as_array().unwrap().iter();
        status["inFlight"] == 0 && attachments.all(|one| one["inFlight"] == 0)
    })
    .await;
}
