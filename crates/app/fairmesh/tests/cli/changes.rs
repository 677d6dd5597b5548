//! Commands that change configuration: apply, get, describe, diff, history, rollback.

use bytes::Bytes;
use fairmesh_model::{RecordKey, ServiceName, ShardPart};
use fairmesh_rib::{Batch, Op};
use fairmesh_store::{RedbStore, Store as _};
use serde_json::json;

use super::support::{Mesh, SHOP, fairmesh};

#[test]
fn applied_records_are_listed_and_described() {
    let mesh = Mesh::with_shop();
    let services = mesh.run(&["get", "services", "--json"]).json();
    let cart = &services.as_array().unwrap()[0];
    assert_eq!(
        (&cart["name"], &cart["type"], &cart["shards"]),
        (&json!("shop/cart"), &json!("sharded"), &json!(2))
    );
    let table = mesh.run(&["get", "services"]).ok();
    assert!(table.lines().next().unwrap().starts_with("SERVICE"), "{table}");
    assert!(
        table.lines().any(|line| line.starts_with("shop/catalog") && line.contains("written")),
        "{table}"
    );

    let described = mesh.run(&["describe", "service", "shop/catalog"]).ok();
    assert!(described.contains("Timeout   5s"), "{described}");
    let regions = mesh.run(&["get", "regions", "--json"]).json();
    assert_eq!(regions[0]["neighbours"], json!(["us"]));
    let shards = mesh.run(&["get", "shards", "shop/cart", "--json"]).json();
    assert_eq!((&shards[0]["version"], &shards[0]["shards"][1]["start"]), (&json!(1), &json!(500)));
}

#[test]
fn apply_is_idempotent_and_accepts_output_of_get() {
    let mesh = Mesh::with_shop();
    let unchanged = |outcomes: serde_json::Value| {
        let outcomes = outcomes.as_array().unwrap().clone();
        assert!(!outcomes.is_empty());
        assert!(outcomes.iter().all(|one| one["outcome"] == "unchanged"), "{outcomes:?}");
    };
    unchanged(fairmesh(&mesh.address(), &["apply", "-f", "-", "--json"], SHOP).json());
    for kind in ["services", "policies", "shards", "regions", "hosts"] {
        let yaml = mesh.run(&["get", kind, "-o", "yaml"]).ok();
        unchanged(fairmesh(&mesh.address(), &["apply", "-f", "-", "--json"], &yaml).json());
    }
}

#[test]
fn dry_run_changes_nothing() {
    let mesh = Mesh::start();
    let file = mesh.file("shop.yaml", SHOP);
    let outcomes = mesh.run(&["apply", "-f", &file, "--dry-run", "--json"]).json();
    assert!(outcomes.as_array().unwrap().iter().all(|one| one["outcome"] == "created"), "{outcomes}");
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
}

#[test]
fn diff_shows_what_apply_would_change_and_exits_3() {
    let mesh = Mesh::with_shop();
    let same = mesh.file("same.yaml", SHOP);
    assert_eq!(mesh.run(&["diff", "-f", &same]).ok(), "");

    let other = mesh.file("other.yaml", &SHOP.replace("timeout: 5s", "timeout: 6s"));
    let run = mesh.run(&["diff", "-f", &other]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.out.contains("-timeout: 5s\n+timeout: 6s\n"), "{}", run.out);
    assert!(run.out.contains("other.yaml:"), "{}", run.out);
    assert!(!run.out.contains("Topology"), "only what differs is shown: {}", run.out);
}

#[test]
fn rollback_restores_replaced_value_from_history() {
    let mesh = Mesh::with_shop();
    let timeout = |mesh: &Mesh| mesh.run(&["get", "policies", "--json"]).json()[0]["timeout"].clone();
    mesh.apply(&SHOP.replace("timeout: 5s", "timeout: 6s")).ok();
    mesh.apply(&SHOP.replace("timeout: 5s", "timeout: 7s")).ok();

    let history = mesh.run(&["history", "policy", "shop/catalog", "--json"]).json();
    let timeouts: Vec<_> =
        history.as_array().unwrap().iter().map(|change| change["document"]["timeout"].clone()).collect();
    assert_eq!(timeouts[..3], [json!("7s"), json!("6s"), json!("5s")]);
    assert_eq!(history[0]["current"], json!(true));
    assert!(history[1]["replacedAt"].as_str().unwrap().starts_with("20"), "{history}");

    mesh.run(&["rollback", "policy", "shop/catalog"]).ok();
    assert_eq!(timeout(&mesh), "6s");
    let first = history[2]["revision"].to_string();
    mesh.run(&["rollback", "policy", "shop/catalog", "--to", &first]).ok();
    assert_eq!(timeout(&mesh), "5s");
    let complaint = mesh.run(&["rollback", "policy", "shop/catalog", "--to", "4711"]).fails(1);
    assert!(complaint.contains("4711"), "{complaint}");
}

#[test]
fn history_command_shows_changed_fields_of_each_version() {
    let mesh = Mesh::with_shop();
    mesh.apply(&SHOP.replace("timeout: 5s", "timeout: 6s")).ok();
    let table = mesh.run(&["history", "policy", "shop/catalog"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[1].ends_with("timeout: 5s -> 6s") && lines[1].contains("fairmesh command line"), "{table}");
    assert!(lines[2].contains("created: {\"timeout\":\"5s\""), "{table}");
    assert!(lines[3].ends_with("did not exist"), "{table}");
    let full = mesh.run(&["history", "policy", "shop/catalog", "--full"]).ok();
    assert!(full.contains("-timeout: 5s\n+timeout: 6s\n"), "{full}");
    assert!(full.contains("--- /dev/null\n+++ the policy of shop/catalog at revision "), "{full}");
}

#[test]
fn history_shows_write_reasons_and_rollback_names_both_revisions() {
    let mesh = Mesh::with_shop();
    let slower = mesh.file("slower.yaml", &SHOP.replace("timeout: 5s", "timeout: 6s"));
    mesh.run(&["apply", "-f", &slower, "--message", "the catalog is slow today"]).ok();
    let history = mesh.run(&["history", "policy", "shop/catalog", "--json"]).json();
    assert_eq!(history[0]["message"], "the catalog is slow today");
    let (old, now) = (history[1]["revision"].as_u64().unwrap(), history[0]["revision"].as_u64().unwrap());
    let said = mesh.run(&["rollback", "policy", "shop/catalog", "-m", "it is fast again"]).ok();
    assert!(
        said.contains(&format!("has the value of revision {old} again, as revision {}", now + 1)),
        "{said}"
    );
    let table = mesh.run(&["history", "policy", "shop/catalog"]).ok();
    let newest = table.lines().nth(1).unwrap();
    assert!(newest.contains("timeout: 6s -> 5s ") && newest.ends_with("it is fast again"), "{table}");
    let long = "x".repeat(1025);
    assert!(mesh.run(&["delete", "policy", "shop/catalog", "-m", &long]).fails(2).contains("1025 bytes"));
}

#[test]
fn history_command_covers_mesh_wide_records() {
    let mesh = Mesh::with_shop();
    mesh.apply(&SHOP.replace("rtt: 20ms", "rtt: 30ms").replace("speed: 1250", "speed: 1300")).ok();
    mesh.apply(&SHOP.replace("{name: us}", "{name: us}, {name: ap}").replace("rtt: 20ms", "rtt: 30ms")).ok();
    let history = mesh.run(&["history", "topology", "--json"]).json();
    let changes: Vec<_> =
        history.as_array().unwrap().iter().map(|one| one["change"].as_str().unwrap()).collect();
    assert_eq!(changes[0], "regions: added ap", "{history}");
    assert!(changes[1].starts_with("roundTrips") && changes[1].contains("20ms"), "{history}");
    assert_eq!(history[1]["document"]["roundTrips"][0]["rtt"], "30ms");
    // Both records in one revision.
    let first = history[2]["revision"].to_string();
    mesh.run(&["rollback", "topology", "--to", &first]).ok();
    let yaml = mesh.run(&["get", "regions", "-o", "yaml"]).ok();
    assert!(yaml.contains("20ms") && !yaml.contains("ap"), "{yaml}");
    assert!(mesh.run(&["history", "hosts"]).ok().contains("types[milan-64].speed: 1250 -> 1300"));
    mesh.run(&["delete", "hosts", "-m", "measured anew"]).ok();
    mesh.run(&["rollback", "hosts"]).ok();
    assert!(mesh.run(&["get", "hosts"]).ok().contains("1250"));
    let applied = mesh.apply("kind: Authorization\ndefault: deny\n");
    assert!(applied.code == Some(0) && applied.err.contains("access narrows to all services"), "{applied:?}");
    assert!(mesh.run(&["history", "authorization"]).ok().contains("created: {\"default\":\"deny\"}"));
    assert!(mesh.run(&["history", "policy"]).fails(2).contains("the service of the policy is missing"));
    assert!(mesh.run(&["history", "hosts", "shop/web"]).fails(2).contains("belongs to no service"));
}

#[test]
fn history_marks_service_declared_by_registration() {
    let mesh = Mesh::start();
    mesh.register("shop/new", "new-0", "eu", 7000);
    let created = |line: Option<&str>| {
        line.is_some_and(|line| line.contains(" its first registration ") && line.contains(" created: {"))
    };
    let table = mesh.run(&["history", "service", "shop/new"]).ok();
    assert!(created(table.lines().nth(1)), "{table}");
    mesh.apply("kind: Service\nname: shop/new\ntype: consistent-hash\n").ok();
    let table = mesh.run(&["history", "service", "shop/new"]).ok();
    // Heading, both versions, and the line that says that no version existed before.
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(created(table.lines().nth(2)) && !created(table.lines().nth(1)), "{table}");
}

#[test]
fn deleted_record_is_restored_from_history() {
    let mesh = Mesh::with_shop();
    let policies = |mesh: &Mesh| mesh.run(&["get", "policies", "--json"]).json().as_array().unwrap().len();
    let dry = mesh.run(&["delete", "policy", "shop/catalog", "--dry-run", "--json"]).json();
    assert_eq!((&dry["deleted"], policies(&mesh)), (&json!(false), 1));
    mesh.run(&["delete", "policy", "shop/catalog"]).ok();
    assert_eq!(policies(&mesh), 0);
    let again = mesh.run(&["delete", "policy", "shop/catalog"]).fails(1);
    assert!(again.contains("deleted already"), "{again}");
    let history = mesh.run(&["history", "policy", "shop/catalog"]).ok();
    let deleted = history.lines().nth(1).unwrap();
    assert!(deleted.starts_with("- ") && deleted.ends_with("deleted"), "{history}");
    let json = mesh.run(&["history", "policy", "shop/catalog", "--json"]).json();
    assert_eq!(json[0]["revision"], json!(null), "{json}");
    mesh.run(&["rollback", "policy", "shop/catalog"]).ok();
    assert_eq!(policies(&mesh), 1);

    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    let complaint = mesh.run(&["delete", "service", "shop/catalog"]).fails(1);
    assert!(complaint.contains("has 1 endpoint:") && complaint.contains("--force"), "{complaint}");
    mesh.run(&["delete", "service", "shop/catalog", "--force"]).ok();
    let unknown = mesh.run(&["delete", "service", "shop/nothing"]).fails(1);
    assert!(unknown.contains("never existed"), "{unknown}");
}

#[test]
fn apply_reads_every_file_of_folder() {
    let mesh = Mesh::start();
    std::fs::create_dir(mesh.path("shop")).unwrap();
    mesh.file("shop/a.yaml", "kind: Service\nname: shop/a\n");
    mesh.file("shop/b.yml", "kind: Service\nname: shop/b\n");
    mesh.file("shop/notes.txt", "not YAML: [");
    let folder = mesh.path("shop");
    mesh.run(&["apply", "-f", folder.to_str().unwrap(), "--quiet"]).ok();
    assert_eq!(
        mesh.run(&["get", "services", "--tenant", "shop", "--json"]).json().as_array().unwrap().len(),
        2
    );
}

#[test]
fn rollback_deletes_service_with_endpoints_only_with_force() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    let complaint = mesh.run(&["rollback", "service", "shop/catalog"]).fails(1);
    assert!(complaint.contains("has 1 endpoint:") && complaint.contains("--force"), "{complaint}");
    mesh.run(&["rollback", "service", "shop/catalog", "--force", "--dry-run"]).ok();
    assert_eq!(mesh.run(&["get", "services", "--json"]).json().as_array().unwrap().len(), 2);
    mesh.run(&["rollback", "service", "shop/catalog", "--force"]).ok();
}

#[test]
fn apply_warns_about_records_that_make_calls_fail() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-0", "us", 7000);
    let run = mesh.apply(SHOP);
    assert!(run.err.contains("cart-0 in eu, registered in us"), "{run:?}");
    assert!(run.err.contains("not registered: cart-1"), "{run:?}");
    run.ok();
    let split = "kind: Policy\nservice: shop/catalog\nroutes: [{name: canary, split: [{service: shop/gone, weight: 1}]}]\n";
    let file = mesh.file("split.yaml", split);
    let run = mesh.run(&["apply", "-f", &file, "--dry-run"]);
    assert!(run.err.contains("route 'canary' of the policy of shop/catalog names shop/gone"), "{run:?}");
}

#[test]
fn apply_changes_service_with_endpoints_only_with_confirmation() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "us", 7010);
    let declare = |rest: &str| format!("kind: Service\nname: shop/catalog\n{rest}\n");
    let apply = |rest: &str, options: &[&str]| {
        let args = [&["apply", "-f", "-"], options].concat();
        fairmesh(&mesh.address(), &args, &declare(rest))
    };
    let kind = || mesh.run(&["get", "services", "--json"]).json()[1]["type"].clone();

    for options in [&[][..], &["--dry-run"]] {
        let complaint = apply("type: sharded", options).fails(1);
        assert!(complaint.contains("1 endpoint and no shard map: calls to it would fail"), "{complaint}");
        assert!(complaint.contains("--force"), "{complaint}");
        let complaint = apply("protocol: grpc", options).fails(1);
        assert!(complaint.contains("callers speak grpc to shop/catalog"), "{complaint}");
        assert!(complaint.contains("declared to speak http1"), "{complaint}");
    }
    assert_eq!(kind(), "replicated", "nothing was written");
    let file = mesh.file("sharded.yaml", &declare("type: sharded"));
    assert!(mesh.run(&["diff", "-f", &file]).err.contains("'apply' requires --force"));
    // Harmless changes need no confirmation, nor do changes applied together with what they require.
    apply("type: consistent-hash", &[]).ok();
    let map = "type: sharded\n---\nkind: ShardMap\nservice: shop/catalog\nshards: [{id: 0, start: 0, replicas: [{instance: catalog-0, region: us, role: primary}]}]";
    apply(map, &[]).ok();
    let complaint = apply("type: replicated", &[]).fails(1);
    assert!(complaint.contains("whichever shards it holds"), "{complaint}");
    let complaint = mesh.run(&["rollback", "service", "shop/catalog"]).fails(1);
    assert!(complaint.contains("would make shop/catalog consistent-hash"), "{complaint}");
    apply("type: replicated", &["--force"]).ok();
    assert_eq!(kind(), "replicated");
}

#[test]
fn bounded_hash_policy_of_unhashed_service_draws_warning() {
    let mesh = Mesh::with_shop();
    let policy = "kind: Policy\nservice: shop/catalog\nbalancing: {policy: boundedHash}\n";
    let run = mesh.apply(policy);
    assert!(run.err.contains("boundedHash") && run.err.contains("'score' is used instead"), "{run:?}");
    run.ok();
    let shown = mesh.run(&["describe", "service", "shop/catalog"]).ok();
    assert!(shown.contains("score, since boundedHash is for consistent-hash services"), "{shown}");
    let run = mesh.apply("kind: Service\nname: shop/catalog\ntype: consistent-hash\n");
    assert!(run.err.is_empty(), "{run:?}");
    run.ok();
    let shown = mesh.run(&["describe", "service", "shop/catalog"]).ok();
    assert!(shown.contains("boundedHash, up to 125 % of the mean"), "{shown}");
    // The reverse: the declaration removes the hash that an existing policy needs.
    let run = mesh.apply("kind: Service\nname: shop/catalog\n");
    assert!(run.err.contains("'score' is used instead"), "{run:?}");
}

#[test]
fn policy_without_rules_keeps_stored_rules_and_wider_access_draws_warning() {
    let mesh = Mesh::start();
    let rules = "authorization:\n  rules:\n    - {name: web, from: [shop/web]}\n";
    mesh.apply(&format!(
        "kind: Service\nname: shop/cart\n---\nkind: Policy\nservice: shop/cart\ntimeout: 5s\n{rules}"
    ))
    .ok();
    let older = mesh.file("cart.yaml", "kind: Policy\nservice: shop/cart\ntimeout: 6s\n");
    let diff = mesh.run(&["diff", "-f", &older]);
    assert!(!diff.out.contains("authorization"), "{}", diff.out);
    let applied = mesh.run(&["apply", "-f", &older]);
    assert_eq!((applied.code, applied.err.as_str()), (Some(0), ""), "nothing widens");
    let listed = || mesh.run(&["get", "authorization", "shop/cart"]).ok();
    assert!(listed().contains("web"), "{}", listed());

    let yaml = mesh.run(&["get", "authorization", "shop/cart", "-o", "yaml"]).ok();
    assert!(yaml.contains("kind: Authorization\nservice: shop/cart\n"), "{yaml}");
    let wider = mesh.file("wider.yaml", &yaml.replace("shop/web", "'*'"));
    let diff = mesh.run(&["diff", "-f", &wider]);
    assert!(diff.err.starts_with("warning: access to shop/cart widens: rule 'web' allows *"), "{}", diff.err);
    let applied = mesh.run(&["apply", "-f", &wider]);
    assert!(applied.err.contains("access to shop/cart widens"), "{applied:?}");
    let narrower = fairmesh(&mesh.address(), &["apply", "-f", "-"], &yaml);
    assert_eq!((narrower.code, narrower.err.contains("widens")), (Some(0), false), "{narrower:?}");
    let history = mesh.run(&["history", "authorization", "shop/cart", "--json"]).json();
    assert!(history.as_array().unwrap().len() >= 3, "{history}");
    mesh.run(&["rollback", "authorization", "shop/cart"]).ok();
    let back = mesh.run(&["get", "authorization", "shop/cart", "-o", "yaml"]).ok();
    assert!(back.contains('*') && !back.contains("shop/web"), "{back}");
    mesh.run(&["delete", "authorization", "shop/cart"]).ok();
    assert!(!listed().contains("web"), "{}", listed());
}

#[test]
fn rollback_of_policy_keeps_rules_narrowed_since() {
    let mesh = Mesh::start();
    let rules = |callers: &str| {
        mesh.apply(&format!(
            "kind: Authorization\nservice: shop/cart\nrules:\n  - {{name: web, from: [{callers}]}}\n"
        ))
        .ok()
    };
    let timeout = |seconds: u8| {
        mesh.apply(&format!("kind: Policy\nservice: shop/cart\ntimeout: {seconds}s\n")).ok();
    };
    let timeouts = || -> Vec<String> {
        let history = mesh.run(&["history", "policy", "shop/cart", "--json"]).json();
        assert!(!history.to_string().contains("authorization"), "{history}");
        let history = history.as_array().unwrap();
        history.iter().map(|one| one["document"]["timeout"].as_str().unwrap_or("none").to_owned()).collect()
    };
    let assert_narrow = || {
        let listed = mesh.run(&["get", "authorization", "shop/cart", "-o", "yaml"]).ok();
        assert!(listed.contains("shop/web") && !listed.contains("shop/batch"), "{listed}");
    };
    mesh.apply("kind: Service\nname: shop/cart\n").ok();
    rules("shop/web, shop/batch");
    timeout(5);
    rules("shop/web");
    assert_eq!(timeouts()[0], "5s", "the narrowing changed no policy");
    assert_ne!(timeouts()[1], "5s", "the narrowing changed no policy");
    timeout(1);
    let history = mesh.run(&["history", "policy", "shop/cart", "--json"]).json();
    let good = history[1]["revision"].to_string();
    let dry = mesh.run(&["rollback", "policy", "shop/cart", "--to", &good, "--dry-run"]).ok();
    assert!(dry.contains("5s") && !dry.contains("shop/batch"), "{dry}");
    mesh.run(&["rollback", "policy", "shop/cart", "--to", &good]).ok();
    assert_narrow();
    assert_eq!(timeouts()[..2], ["5s", "1s"]);

    // Restoring a deleted policy does not widen access either.
    rules("shop/web, shop/batch");
    mesh.run(&["delete", "policy", "shop/cart"]).ok();
    rules("shop/web");
    mesh.run(&["rollback", "policy", "shop/cart"]).ok();
    assert_eq!(timeouts()[0], "5s");
    assert_narrow();
}

#[test]
fn apply_replaces_unreadable_shard_map_with_warning() {
    let mut mesh = Mesh::with_shop();
    mesh.stop_control("TERM");
    let key = RecordKey::ShardManifest(ServiceName::new("shop/cart").unwrap(), ShardPart::Ranges);
    let damage = async {
        let store = RedbStore::open(mesh.path("data/rib.redb")).unwrap();
        let ops = vec![Op::put(key.to_string(), Bytes::from_static(&[0xff]))];
        store.write(Batch { ops }).await.unwrap();
        store.close().await;
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(damage);
    mesh.start_control();

    let file = mesh.file("shop.yaml", SHOP);
    let kept = mesh.run(&["apply", "--keep-moves", "-f", &file]);
    assert_ne!(kept.code, Some(0), "{kept:?}");
    assert!(kept.err.contains("the stored shard map of shop/cart cannot be read"), "{kept:?}");
    let applied = mesh.run(&["apply", "-f", &file]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    for part in ["shards of shop/cart", "cannot be read", "the written record replaces it"] {
        assert!(applied.err.contains(part), "{part}: {applied:?}");
    }
    let changed = |line: &str| line.starts_with("ShardMap") && line.ends_with("changed");
    assert!(applied.out.lines().any(changed), "{applied:?}");
    let shards = mesh.run(&["get", "shards", "shop/cart", "--json"]).json();
    assert_eq!(shards[0]["shards"][1]["start"], json!(500), "{shards}");
    let again = mesh.run(&["apply", "-f", &file]);
    assert!(!again.err.contains("cannot be read") && !again.out.contains(" changed"), "{again:?}");
}

#[test]
fn delete_shardmap_needs_force_while_sharded_service_has_endpoints() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/cart", "cart-0", "eu", 7010);
    let refused = mesh.run(&["delete", "shardmap", "shop/cart"]).fails(1);
    assert!(
        refused.contains("has 1 endpoint: calls to it would fail") && refused.contains("--force"),
        "{refused}"
    );
    let dry = mesh.run(&["delete", "shardmap", "shop/cart", "--force", "--dry-run", "--json"]).json();
    assert_eq!((&dry["deleted"], &dry["dryRun"]), (&json!(false), &json!(true)));
    mesh.run(&["get", "shards", "shop/cart"]).ok();
    mesh.run(&["delete", "shardmap", "shop/cart", "--force"]).ok();
    let gone = mesh.run(&["get", "shards", "shop/cart"]).fails(1);
    assert!(gone.contains("has no shard map"), "{gone}");
    let again = mesh.run(&["delete", "shardmap", "shop/cart"]).fails(1);
    assert!(again.contains("shop/cart has no shard map"), "{again}");
    let created = mesh.apply(SHOP).ok();
    let map = created.lines().find(|line| line.starts_with("ShardMap"));
    assert!(map.is_some_and(|line| line.ends_with("created")), "{created}");
}

#[test]
fn deleted_service_leaves_shard_map_with_a_note() {
    let mesh = Mesh::with_shop();
    let deleted = mesh.run(&["delete", "service", "shop/cart"]);
    assert!(deleted.err.contains("fairmesh delete shardmap shop/cart"), "{deleted:?}");
    mesh.run(&["delete", "shardmap", "shop/cart"]).ok();
    assert_eq!(mesh.run(&["get", "shards", "--json"]).json(), json!([]));
    let plain = mesh.run(&["delete", "service", "shop/catalog"]);
    assert!(!plain.err.contains("shard map"), "{plain:?}");
}
