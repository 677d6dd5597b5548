//! Operations on running servers: endpoints, drain, shard moves, explain.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Command, Stdio},
};

use fairmesh_test_support::free_port;
use fairmesh_wire::v1::{Endpoint, Location, endpoint::State};
use serde_json::json;

use super::{
    calls::echo,
    identities::Killed,
    support::{Mesh, fairmesh, send, wait_until},
};

fn shop_with_servers() -> Mesh {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-0", "eu", 7000);
    mesh.register("shop/cart", "cart-1", "us", 7001);
    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    mesh
}

#[test]
fn endpoint_list_shows_location_and_state() {
    let mesh = shop_with_servers();
    let endpoints = mesh.run(&["get", "endpoints", "shop/cart", "--json"]).json();
    assert_eq!(endpoints.as_array().unwrap().len(), 2);
    assert_eq!(
        (&endpoints[0]["instance"], &endpoints[0]["region"], &endpoints[0]["state"]),
        (&json!("cart-0"), &json!("eu"), &json!("serving"))
    );
    let one = mesh.run(&["describe", "endpoint", "shop/cart/cart-1", "--json"]).json();
    assert_eq!(one["address"], "127.0.0.1:7001");
    let complaint = mesh.run(&["describe", "endpoint", "shop/cart/cart-9"]).fails(1);
    assert!(complaint.contains("fairmesh get endpoints shop/cart"), "{complaint}");
}

#[test]
fn drained_endpoint_gets_no_calls() {
    let mesh = shop_with_servers();
    mesh.register("shop/catalog", "catalog-1", "us", 7011);
    let answer = mesh.run(&["drain", "shop/catalog", "catalog-0", "--json"]).json();
    assert_eq!(answer["callersMoved"], json!(true));
    for seed in ["0", "1", "2", "3"] {
        let explained =
            mesh.run(&["explain", "shop/catalog", "--region", "us", "--seed", seed, "--json"]).json();
        assert_eq!(explained["goesTo"]["instance"], "catalog-1");
    }
    mesh.run(&["drain", "shop/catalog", "catalog-9"]).fails(1);
}

#[test]
fn explain_shows_each_routing_step_of_keyed_call() {
    let mesh = shop_with_servers();
    let explained = mesh
        .run(&["explain", "shop/cart", "--key", "618", "--role", "primary", "--region", "eu", "--json"])
        .json();
    assert_eq!(
        (&explained["goesTo"]["instance"], &explained["goesTo"]["shard"]),
        (&json!("cart-1"), &json!(1))
    );
    let steps: Vec<_> =
        explained["steps"].as_array().unwrap().iter().map(|step| step["step"].clone()).collect();
    assert!(steps.contains(&json!("route")) && steps.contains(&json!("shard")), "{steps:?}");

    let told = mesh.run(&["explain", "shop/cart", "--key", "618", "--region", "eu"]).ok();
    assert!(told.contains("\nregion   eu is here (0 ms): ring 0, 50.0 % of the capacity; us is "), "{told}");
    assert!(
        told.contains("\ngoes to  shop/cart cart-1 at ")
            && told.contains("\nbased on revision ")
            && told.contains(", balanced by score\n"),
        "{told}"
    );

    let refusals = [
        (&["--key", "5000"][..], "5000 is outside [0, 1000)", "key_outside"),
        (&[], "set the key", "key_missing"),
        (&["--key", "5", "--role", "witness"], "no serving replica of role 'witness'", "no_replica"),
    ];
    for (args, why, label) in refusals {
        let refused = mesh.run(&[&["explain", "shop/cart"], args].concat());
        assert_eq!(refused.code, Some(1));
        assert!(refused.out.contains(why) && refused.out.contains(label), "{refused:?}");
        let refused = mesh.run(&[&["explain", "shop/cart", "--json"], args].concat());
        assert!(refused.out.contains(&format!("\"reason\": \"{label}\"")), "{refused:?}");
    }
    let bare = mesh.run(&["explain", "shop/cart", "--path", "v2"]).fails(2);
    assert!(bare.contains("write '/v2'"), "{bare}");
    let unknown = mesh.run(&["explain", "shop/nothing"]).fails(1);
    assert!(unknown.contains("there is no service shop/nothing"), "{unknown}");
    let keyed = mesh.run(&["explain", "shop/catalog", "--region", "us", "--key", "7"]);
    assert!(keyed.err.contains("key and role are ignored"), "{keyed:?}");
    let single = mesh.run(&["explain", "shop/catalog", "--region", "us"]).ok();
    assert!(single.contains("1 of 1 endpoint of that rank"), "{single}");
}

#[test]
fn explain_defaults_to_agents_region_and_refuses_unknown_regions() {
    let mesh = shop_with_servers();
    let assumed = mesh.run(&["explain", "shop/catalog"]);
    assert!(assumed.err.contains("as a caller in region local: no agent responds at "), "{assumed:?}");
    let unknown = mesh.run(&["explain", "shop/catalog", "--region", "uss"]).fails(2);
    assert!(
        unknown.contains("there is no region uss") && unknown.contains("write one of eu, us"),
        "{unknown}"
    );

    let agent = mesh.agent("us");
    let socket = agent.address();
    let told = mesh.run(&["explain", "shop/catalog", "--agent", &socket]);
    assert!(told.err.contains("as a caller in region us, where the agent at "), "{told:?}");
    assert!(told.out.contains("us is here"), "{told:?}");
    let named = mesh.run(&["explain", "shop/catalog", "--agent", &socket, "--region", "eu"]);
    assert!(named.err.is_empty() && named.out.contains("us is 20ms away (declared)"), "{named:?}");
}

#[test]
fn explain_lists_known_zones_for_unknown_zone() {
    let mesh = shop_with_servers();
    let at = |zone: &str| mesh.run(&["explain", "shop/catalog", "--region", "eu", "--zone", zone]);
    let none = at("eu-a");
    assert!(none.err.contains("no endpoint in region eu has a zone"), "{none:?}");
    for (instance, zone) in [("zoned-0", "eu-a"), ("zoned-1", "eu-b")] {
        let location = Location { region: "eu".into(), zone: zone.into(), ..Location::default() };
        let endpoint = Endpoint {
            instance: instance.into(),
            address: "127.0.0.1:7030".into(),
            location: Some(location),
            state: State::Serving.into(),
            ..Endpoint::default()
        };
        mesh.announce("shop/other", endpoint);
    }
    let misspelt = at("eu-x");
    assert!(
        misspelt.err.contains("has the zone eu-x: if it is misspelt, write one of eu-a, eu-b"),
        "{misspelt:?}"
    );
    assert_eq!(misspelt.code, Some(0), "callers may be where nothing serves");
    assert_eq!(at("eu-b").err, "");
}

#[test]
fn endpoint_list_marks_undeclared_services() {
    let mesh = shop_with_servers();
    let complaint = mesh.run(&["get", "endpoints", "shop/crat"]).fails(1);
    assert!(complaint.contains("there is no service shop/crat"), "{complaint}");
    mesh.register("shop/new", "new-0", "eu", 7020);
    mesh.run(&["delete", "service", "shop/new", "--force"]).ok();
    let listed = mesh.run(&["get", "endpoints", "shop/new"]);
    assert!(listed.out.contains("new-0") && listed.err.contains("shop/new is not declared"), "{listed:?}");
}

#[test]
fn shards_command_splits_merges_and_moves_shards() {
    let mesh = shop_with_servers();
    mesh.run(&["shards", "split", "shop/cart", "1", "--at", "618"]).ok();
    let keys = |mesh: &Mesh| -> Vec<String> {
        let table = mesh.run(&["shards", "get", "shop/cart"]).ok();
        table.lines().skip(1).map(|line| line.split_whitespace().skip(1).take(2).collect()).collect()
    };
    assert_eq!(keys(&mesh), ["[0,500)", "[500,618)", "[618,1000)"]);
    mesh.run(&["shards", "merge", "shop/cart", "1"]).ok();
    assert_eq!(keys(&mesh), ["[0,500)", "[500,1000)"]);

    mesh.run(&["shards", "move", "shop/cart", "1", "--from", "cart-1", "--to", "cart-0", "--wait"]).ok();
    assert_eq!(mesh.run(&["shards", "moves", "shop/cart", "--json"]).json(), json!([]));
    let map = mesh.run(&["shards", "get", "shop/cart", "--json"]).json();
    let replicas = &map[0]["shards"][1]["replicas"];
    assert_eq!(replicas.as_array().unwrap().len(), 1);
    assert_eq!(replicas[0]["instance"], "cart-0");

    let complaint =
        mesh.run(&["shards", "move", "shop/cart", "1", "--from", "cart-1", "--to", "cart-0"]).fails(1);
    assert!(complaint.contains("cart-1 has no replica of shard 1"), "{complaint}");
}

#[test]
fn outdated_shard_map_is_refused_with_both_versions() {
    let mesh = shop_with_servers();
    mesh.run(&["shards", "split", "shop/cart", "1"]).ok();
    let stale = "\
kind: ShardMap
service: shop/cart
version: 1
interval: {start: 0, end: 1000}
shards: [{id: 0, start: 0}]
";
    let complaint = mesh.apply(stale).fails(1);
    assert!(complaint.contains('1') && complaint.contains('2'), "{complaint}");
    assert_eq!(mesh.run(&["shards", "get", "shop/cart", "--json"]).json()[0]["version"], json!(2));
}

#[test]
fn endpoints_follow_watched_file() {
    let mut mesh = Mesh::with_shop();
    mesh.stop_control("TERM");
    let source = "kind: Endpoints\nservice: shop/catalog\nendpoints: [{instance: c-0, address: '127.0.0.1:1', region: eu}]\n";
    let file = mesh.file("catalog.yaml", source);
    let mut control = mesh.control_command().args(["--source", &file]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the endpoint of the file is there", || {
        let run = mesh.run(&["get", "endpoints", "shop/catalog"]);
        run.code == Some(0) && run.out.contains("c-0")
    });
    control.kill().unwrap();
    control.wait().unwrap();
}

#[test]
fn cli_lists_watchers_of_service_endpoints() {
    let mesh = shop_with_servers();
    assert_eq!(mesh.run(&["get", "watchers", "--json"]).json(), json!([]));
    mesh.while_watching("/t/shop/endpoints/catalog/", || {
        let watchers = mesh.run(&["get", "watchers", "--json"]).json();
        assert_eq!((&watchers[0]["software"], &watchers[0]["services"]), (&json!("test"), &json!(1)));
        assert_eq!(mesh.run(&["get", "watchers", "shop/cart", "--json"]).json(), json!([]));
    });
}

#[test]
fn drain_of_last_endpoint_warns_and_undrain_restores_it() {
    let mesh = shop_with_servers();
    let run = mesh.run(&["drain", "shop/catalog", "catalog-0"]);
    assert!(run.err.contains("no other endpoint of shop/catalog is serving"), "{run:?}");
    assert!(!run.out.contains("has moved") && run.out.contains("every caller is informed"), "{run:?}");
    mesh.run(&["undrain", "shop/catalog", "catalog-0"]).ok();
    let endpoints = mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    assert_eq!(endpoints[0]["state"], "serving");
}

#[test]
fn lost_endpoint_is_deletable_but_neither_drained_nor_undrained() {
    let mesh = shop_with_servers();
    let endpoint = |instance: &str, lease_ms| Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:7012".into(),
        location: Some(Location { region: "eu".into(), ..Location::default() }),
        state: State::Serving.into(),
        lease_ms,
        ..Endpoint::default()
    };
    mesh.announce("shop/gone", endpoint("g-1", 1000));
    let row = || mesh.run(&["get", "endpoints", "shop/gone", "--json"]).json()[0].clone();
    wait_until("it is lost", || row()["state"] == "lost");
    assert!(row()["why"].as_str().unwrap().contains("its lease was not renewed"), "{}", row());
    for command in ["drain", "undrain"] {
        let complaint = mesh.run(&[command, "shop/gone", "g-1"]).fails(1);
        assert!(complaint.contains("g-1 is lost since 20"), "{complaint}");
        assert!(complaint.contains("fairmesh delete endpoint shop/gone g-1"), "{complaint}");
    }
    assert_eq!(row()["state"], "lost");
    // An endpoint beside the lost one can be drained, as when a machine is emptied.
    mesh.register("shop/gone", "g-2", "eu", 7013);
    let drained = mesh.run(&["drain", "shop/gone", "g-1", "g-2"]);
    assert!(drained.err.contains("g-1 is lost since 20") && drained.code == Some(0), "{drained:?}");
    let listed = mesh.run(&["get", "endpoints", "shop/gone", "--json"]).json();
    assert_eq!((&listed[0]["state"], &listed[1]["state"]), (&json!("lost"), &json!("draining")));
    mesh.run(&["delete", "endpoint", "shop/gone", "g-2", "--force"]).ok();

    // No endpoint is left, so the declaration may be deleted.
    assert!(mesh.run(&["delete", "service", "shop/gone", "--dry-run"]).ok().contains("would be deleted"));
    mesh.run(&["delete", "endpoint", "shop/gone", "g-1", "--dry-run"]).ok();
    mesh.run(&["delete", "endpoint", "shop/gone", "g-1"]).ok();
    assert_eq!(mesh.run(&["get", "endpoints", "shop/gone", "--json"]).json(), json!([]));
    assert!(mesh.run(&["delete", "endpoint", "shop/gone", "g-1"]).fails(1).contains("has no endpoint g-1"));
    assert!(mesh.run(&["delete", "endpoint", "shop/gone"]).fails(2).contains("is not named"));
    assert!(mesh.run(&["delete", "service", "shop/gone", "g-1"]).fails(2).contains("one argument too many"));
    let alive = mesh.run(&["delete", "endpoint", "shop/cart", "cart-0"]).fails(1);
    assert!(alive.contains("would register it again"), "{alive}");
    assert!(mesh.run(&["delete", "service", "shop/cart"]).fails(1).contains("2 endpoints"));
}

#[test]
fn operator_drain_survives_registration_and_names_its_author() {
    let mesh = shop_with_servers();
    mesh.register("shop/catalog", "catalog-1", "us", 7011);
    mesh.run(&["drain", "shop/catalog", "catalog-0"]).ok();
    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    let row = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json()[0].clone();
    assert_eq!(row()["state"], "draining");
    let why = row()["why"].as_str().unwrap().to_owned();
    assert!(why.starts_with("drained by ") && why.contains("since 20") && why.contains("undrain"), "{why}");
    mesh.run(&["undrain", "shop/catalog", "catalog-0"]).ok();
    assert_eq!((&row()["state"], &row()["why"]), (&json!("serving"), &json!(null)));
}

#[test]
fn drain_at_deadline_names_callers_that_have_not_moved() {
    let mesh = shop_with_servers();
    // A caller that never acknowledges an update.
    mesh.while_watching("/t/shop/endpoints/catalog/", || {
        let run = mesh.run(&["drain", "shop/catalog", "catalog-0", "--deadline", "5s"]);
        assert!(run.err.contains("waiting for test ("), "{run:?}");
        assert_eq!(run.code, Some(4));
    });
}

#[test]
fn register_starts_no_program_when_its_address_is_in_use() {
    let mesh = Mesh::start();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let started = mesh.path("started");
    let command = ["touch", started.to_str().unwrap()];
    let to = mesh.address();
    let register = ["register", "shop/x", "--address", &address, "--control", &to, "--region", "eu", "--"];
    let complaint = mesh.run(&[&register[..], &command].concat()).fails(1);
    assert!(complaint.contains(&format!("another program listens on {address}")), "{complaint}");
    assert!(complaint.contains(&format!(", process {} (", std::process::id())), "{complaint}");
    assert!(!started.exists(), "the program was not started");
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
}

#[test]
fn second_program_with_same_default_instance_id_is_refused() {
    let mesh = Mesh::start();
    let port = echo();
    // The same port of another address of this machine.
    let _second = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let to = mesh.address();
    let register = |ip: &str, further: &[&str]| {
        let address = format!("{ip}:{port}");
        let args = ["register", "shop/x", "--address", &address, "--control", &to, "--region", "eu"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).args(further).env_clear().stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let _first = Killed(register("127.0.0.1", &[]));
    wait_until("the first is registered", || {
        mesh.run(&["get", "endpoints", "shop/x"]).out.contains("serving")
    });
    let refused = register("127.0.0.2", &[]).wait_with_output().unwrap();
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains(&format!("at 127.0.0.1:{port}")) && complaint.contains("--instance"),
        "{complaint}"
    );
    let _other = Killed(register("127.0.0.2", &["--instance", "other"]));
    wait_until("both are registered", || {
        mesh.run(&["get", "endpoints", "shop/x"]).out.matches("serving").count() == 2
    });
}

#[test]
fn program_ends_when_register_is_killed() {
    let mesh = Mesh::start();
    let (to, address) = (mesh.address(), format!("127.0.0.1:{}", free_port()));
    let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
        .args(["register", "shop/x", "--address", &address, "--control", &to, "--region", "eu"])
        .args(["--", "sleep", "600"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(register.stderr.take().unwrap()).lines();
    let started =
        lines.find_map(|line| line.unwrap().split_once("as process ").map(|(_, pid)| pid.to_owned()));
    let stat = format!("/proc/{}/stat", started.unwrap());
    // A zombie process has ended too.
    let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(runs());
    register.kill().unwrap();
    register.wait().unwrap();
    wait_until("the program ends", || !runs());
}

#[test]
fn processes_survive_when_reader_of_their_output_closes() {
    let mesh = Mesh::empty();
    // As `| head` does once it has its lines.
    let unread = |command: &mut Command| {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        Killed(child)
    };
    let mut control = unread(mesh.control_command().args(["--log", "debug"]));
    wait_until("the control plane responds", || mesh.run(&["get", "services"]).code == Some(0));
    let (to, address) = (mesh.address(), format!("127.0.0.1:{}", echo()));
    let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    register.args(["register", "shop/x", "--address", &address, "--control", &to, "--region", "eu"]);
    let mut register = unread(register.env_clear());
    wait_until("the program is registered", || {
        mesh.run(&["get", "endpoints", "shop/x"]).out.contains("serving")
    });
    for process in [&mut register, &mut control] {
        send(&process.0, "TERM");
        assert_eq!(process.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn register_announces_declaration_of_service_once_its_program_responds() {
    let mesh = Mesh::with_shop();
    let agent = mesh.agent("eu");
    let via = agent.address();
    fairmesh(&via, &["get", "services"], "").ok();
    let said = |service: &str, address: &str, until: &str| {
        let (path, log) =
            (mesh.path("register.log"), std::fs::File::create(mesh.path("register.log")).unwrap());
        let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        register.args(["register", service, "--address", address, "--agent", &via]);
        let mut register = Killed(register.env_clear().stderr(log).spawn().unwrap());
        wait_until(until, || std::fs::read_to_string(&path).unwrap().contains(until));
        send(&register.0, "TERM");
        register.0.wait().unwrap();
        std::fs::read_to_string(&path).unwrap()
    };
    let declares = "shop/new is not declared: registering declares it as replicated, http1";
    let silent = said("shop/new", &format!("127.0.0.1:{}", free_port()), "still waiting for the program");
    assert!(!silent.contains("is not declared") && !silent.contains("removed"), "{silent}");
    let echo = format!("127.0.0.1:{}", echo());
    let answers = said("shop/new", &echo, "is registered and serving");
    assert!(answers.contains(declares) && answers.contains("the endpoint is removed"), "{answers}");
    assert!(!said("shop/catalog", &echo, "is registered and serving").contains("is not declared"));
}

#[test]
fn register_says_nothing_of_removal_for_endpoint_that_was_never_registered() {
    let mesh = Mesh::empty();
    let (path, log) = (mesh.path("register.log"), std::fs::File::create(mesh.path("register.log")).unwrap());
    let (nowhere, address) =
        (format!("unix:{}", mesh.path("none.sock").display()), format!("127.0.0.1:{}", echo()));
    let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    register.args(["register", "shop/x", "--region", "eu", "--address", &address, "--control", &nowhere]);
    register.args(["--plaintext", "--drain-deadline", "1s", "--grace", "0s"]);
    let mut register = Killed(register.env_clear().stderr(log).spawn().unwrap());
    wait_until("it fails", || std::fs::read_to_string(&path).unwrap().contains("could not be registered"));
    send(&register.0, "TERM");
    register.0.wait().unwrap();
    let said = std::fs::read_to_string(&path).unwrap();
    assert!(said.contains("the endpoint was not registered"), "{said}");
    for wrong in ["could not be removed", "callers have moved", "is removed"] {
        assert!(!said.contains(wrong), "{wrong}: {said}");
    }
}
