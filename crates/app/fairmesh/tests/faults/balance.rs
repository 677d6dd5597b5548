//! Rebalances shards by load while calls run.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use fairmesh_model::Protocol;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::harness::{Caller, Kind, Load, Spec, World, beside_others, until};

/// Nine shards of a hundred keys each; one of three servers holds seven.
fn yaml() -> String {
    let holder = |shard| if shard < 7 { 0 } else { shard - 6 };
    let shards = (0..9).map(|shard| {
        let holder = holder(shard);
        format!(
            "  - {{id: {shard}, start: {}, replicas: [{{instance: cart-{holder}, region: eu, role: primary}}]}}\n",
            shard * 100
        )
    });
    let head = "{kind: Service, name: shop/cart, type: sharded, protocol: http1}\n---\n\
                kind: ShardMap\nservice: shop/cart\ninterval: {start: 0, end: 900}\nshards:\n";
    head.to_owned() + &shards.collect::<String>()
}

/// Number of shards per server.
async fn holders(world: &World) -> BTreeMap<String, usize> {
    let map = world.cli(&["shards", "get", "shop/cart", "--json"]).await.json();
    let mut holders = BTreeMap::new();
    for shard in map[0]["shards"].as_array().unwrap() {
        let copies = shard["replicas"].as_array().unwrap();
        assert_eq!(copies.len(), 1, "nothing is half: {shard}");
        *holders.entry(copies[0]["instance"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    holders
}

fn moves(report: &Value) -> usize {
    report["moves"].as_array().unwrap().len()
}

/// Load of the fullest server in percent of its fair share, before and after the plan.
fn fullest(report: &Value) -> (u64, u64) {
    let shares = |when: &str| {
        let servers = report["servers"].as_array().unwrap().iter();
        let share = |server: &Value| server[when].as_u64().unwrap() * 100 / server["fair"].as_u64().unwrap();
        servers.map(share).max().unwrap()
    };
    (shares("before"), shares("after"))
}

/// Rebalances at one move per minute, and interrupts the command after the first move.
async fn interrupted(world: &World) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["shards", "balance", "shop/cart", "--rate", "1", "--json", "--control"])
        .arg(world.control_address().to_string())
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let done = async { while !told.next_line().await.unwrap().unwrap().contains(": done in ") {} };
    timeout(Duration::from_secs(20), done).await.expect("the first move is done");
    let id = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(id, Signal::INT).unwrap();
    let ended = timeout(Duration::from_secs(20), child.wait()).await.expect("it does not wait for its turn");
    assert!(ended.unwrap().success());
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_move_off_overloaded_server_and_no_call_fails() {
    let _machine = beside_others().await;
    let world = World::start(&yaml()).await;
    let work = Duration::from_millis(5);
    let spec = |name| Spec { sharded: true, work, ..Spec::new("shop/cart", name, Protocol::Http1) };
    let mut servers = Vec::new();
    for name in ["cart-0", "cart-1", "cart-2"] {
        servers.push(spec(name).here(&world).await);
        world.serves("shop/cart", name).await;
    }
    let early = world.cli(&["shards", "balance", "shop/cart", "--dry-run"]).await;
    let complaint = early.fails();
    assert!(complaint.contains("is known of 0 of 3 servers"), "{complaint}");

    let mesh = world.mesh().await;
    let service = mesh.service("shop/cart").unwrap().role("primary").unwrap();
    let callers = Load::of(&service, &[(Kind::Get, 2), (Kind::Post, 3)]);
    let load = Load::start(callers.into_iter().map(|caller| Caller { keys: Some(900), ..caller }));
    let balance = ["shards", "balance", "shop/cart", "--rate", "600", "--json"];
    let dry = [&balance[..], &["--dry-run"]].concat();
    let mut plan = Value::Null;
    until("the load of all servers is known", async || {
        let run = world.cli(&dry).await;
        if run.code == Some(0) {
            plan = run.json();
        }
        plan["notes"].as_array().is_some_and(Vec::is_empty)
    })
    .await;
    // Seven of nine shards are 233 % of a third. Within 112 %, a server has room for three shards, or for a light
    // fourth.
    let (before, after) = fullest(&plan);
    assert!((200..=260).contains(&before) && after <= 125, "{plan:#}");
    assert!((3..=5).contains(&moves(&plan)), "{plan:#}");
    assert_eq!(holders(&world).await["cart-0"], 7, "a dry run does nothing");

    let first = interrupted(&world).await;
    assert_eq!((first["done"].as_u64(), holders(&world).await["cart-0"]), (Some(1), 6));
    let rest = world.cli(&balance).await.json();
    assert_eq!(rest["done"].as_u64(), Some(moves(&rest) as u64), "{rest:#}");
    let held = holders(&world).await;
    assert!(held.len() == 3 && held.values().all(|shards| (2..=4).contains(shards)), "{held:?}");

    // The servers' responses confirm the new holders.
    let count = || ["cart-0", "cart-1", "cart-2"].map(|name| load.tally().answered_by(name));
    let start = count();
    load.goes_on(900).await;
    let end = count();
    let calls: Vec<_> = start.iter().zip(&end).map(|(start, end)| end - start).collect();
    let (most, all) = (calls.iter().max().unwrap(), calls.iter().sum::<u64>());
    assert!(most * 100 / all < 50, "{calls:?}");
    load.stop_unharmed().await;
}
