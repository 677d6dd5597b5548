//! `fairmesh lint`, and errors and warnings that `apply` reports together.

use serde_json::json;

use super::support::{Mesh, fairmesh};

/// A route that hides another, and names that no file declares.
const DUBIOUS: &str = "\
kind: Service
name: shop/web
---
kind: Policy
service: shop/web
routes:
  - {name: all, match: {path: {prefix: /}}}
  - {name: api, match: {path: {prefix: /api}}, split: [{service: shop/gone, weight: 1}, {service: shop/later, weight: 0}]}
  - {name: copied, match: {headers: [{name: x-a, present: true}]}, mirror: {service: shop/shadow, share: 100%}}
";

/// Four errors in two documents.
const WRONG: &str = "\
kind: Service
naem: shop/web
protocoll: http1
---
kind: Policy
service: shop/web
timeout: 5
routes:
  - name: canary
    match: {path: /a}
    split: [{service: shop/web, weight: 90%}, {service: shop/next, weight: 10}]
";

#[test]
fn lint_needs_no_control_plane_and_exits_3_with_warnings() {
    let mesh = Mesh::empty();
    std::fs::create_dir(mesh.path("conf")).unwrap();
    mesh.file("conf/web.yaml", DUBIOUS);
    let folder = mesh.path("conf").to_str().unwrap().to_owned();
    let run = fairmesh("unix:/nowhere.sock", &["lint", "-f", &folder], "");
    assert_eq!(run.code, Some(3), "{run:?}");
    let says =
        |words: &str| assert!(run.out.lines().any(|line| line.contains(words)), "no {words} in {}", run.out);
    says(
        "no call reaches route 'api' of the policy of shop/web: route 'all' before it matches the same calls",
    );
    says("no call reaches route 'copied'");
    says(
        "route 'api' of the policy of shop/web names shop/gone, which is not declared in these files: calls to it fail",
    );
    says("names shop/later, which is not declared in these files: it has weight 0");
    says("the mirror of route 'copied' of the policy of shop/web names shop/shadow");
    let mirror = run.out.lines().find(|line| line.contains("shop/shadow")).unwrap();
    assert!(mirror.contains("copies of calls are lost") && !mirror.contains("fail"), "{mirror}");

    let told = fairmesh("", &["lint", "-f", &folder, "--json"], "");
    let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&told["documents"], told["warnings"].as_array().unwrap().len()), (&json!(2), 5), "{told}");
    let sound = fairmesh("", &["lint", "-f", "-"], "kind: Service\nname: shop/web\n").ok();
    assert_eq!(sound, "1 document, 0 warnings\n");
}

#[test]
fn lint_warns_of_sound_files_beside_one_with_errors() {
    let mesh = Mesh::empty();
    std::fs::create_dir(mesh.path("conf")).unwrap();
    mesh.file("conf/web.yaml", DUBIOUS);
    let shards = "kind: ShardMap\nservice: shop/later\nshards:\n- {id: 0, begin: 0}\n- {id: 1, begin: 5}\n- {id: 2, begin: 9}\n";
    mesh.file("conf/shards.yaml", shards);
    let folder = mesh.path("conf").to_str().unwrap().to_owned();
    let run = fairmesh("", &["lint", "-f", &folder], "");
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.out.contains("no call reaches route 'api'"), "{run:?}");
    assert!(!run.out.contains("not declared"), "the other file may declare it: {run:?}");
    // A mistake that each entry repeats is shown once.
    assert_eq!(run.err.matches("there is no field 'begin'").count(), 1, "{run:?}");
    assert!(run.err.contains("also in lines 5, 6") && !run.err.contains("empty"), "{run:?}");
    let items = fairmesh("", &["lint", "-f", &folder, "--json"], "").err;
    assert_eq!(items.matches("\"problem\":").count(), 3, "{items}");
}

#[test]
fn lint_warns_of_unknown_names_in_manual_shares() {
    let shares = "{kind: Policy, service: shop/web, traffic: {shares: [{from: eu, to: {eu: 70%, mars: 30%}}, \
        {from: eu, class: bulk, to: {eu: 100%}}]}}\n";
    let topology = "---\n{kind: Topology, regions: [{name: eu}, {name: us}]}\n";
    let (regions, classes) = (
        "the policy of shop/web has shares of regions that no topology declares and that have no endpoint: mars",
        "the policy of shop/web has shares of traffic classes that no route sets ('class'), so that no call has them: bulk",
    );
    let lint = |yaml: &str| fairmesh("", &["lint", "-f", "-"], yaml).out;
    let told = lint(&format!("{shares}{topology}"));
    assert!(told.contains(regions) && told.contains(classes), "{told}");
    assert!(
        !told.contains("not declared in these files"),
        "a policy alone is of a service declared elsewhere: {told}"
    );
    let told = lint(&format!("{shares}---\n{{kind: Service, name: shop/other}}\n"));
    assert!(told.contains("names shop/web, which is not declared in these files"), "{told}");
    assert!(!told.contains("mars"), "no region is known: {told}");
    let routed = "---\nkind: Policy\nservice: shop/edge\nroutes: [{name: all, class: bulk, split: [{service: shop/web, \
        weight: 1}]}]\n";
    assert!(!lint(&format!("{shares}{routed}")).contains("bulk"), "a route to the service sets it");

    let mesh = Mesh::start();
    mesh.apply(&format!("{{kind: Service, name: shop/web}}\n{topology}")).ok();
    let applied = mesh.apply(shares);
    assert!(applied.err.contains(regions) && applied.err.contains(classes), "{applied:?}");
    let agent = format!("unix:{}", mesh.path("none.sock").display());
    let pages = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", &agent];
    let found = mesh.run(&[&["check", "--json"], &pages[..]].concat()).out;
    assert!(found.contains("policy.unknownRegion") && found.contains("policy.unknownClass"), "{found}");
    mesh.register("shop/web", "far", "mars", 19_200);
    mesh.apply(routed.trim_start_matches("---\n")).ok();
    let again = mesh.apply(shares);
    assert!(!again.err.contains("mars") && !again.err.contains("bulk"), "{again:?}");
    applied.ok();
}

#[test]
fn lint_warns_of_shares_and_rings_that_serve_no_call() {
    let policy = |traffic: &str, locality: &str| {
        let yaml = format!("{{kind: Policy, service: shop/web, traffic: {traffic}{locality}}}\n");
        fairmesh("", &["lint", "-f", "-"], &yaml).out
    };
    let far = "{shares: [{from: eu, to: {us: 100%}}]}";
    let told = policy(far, ", locality: {rings: [region]}");
    let outside = "has shares of regions that its locality does not allow (rings, localOnly), so that no call goes there: eu to us";
    assert!(told.contains(outside), "{told}");
    for locality in ["", ", locality: {rings: [region, any]}", ", locality: {rings: [35ms]}"] {
        assert!(!policy(far, locality).contains("does not allow"), "{locality}");
    }
    let told = policy("{shares: [{from: eu, to: {}, dropped: 100%}]}", "");
    assert!(told.contains("the policy of shop/web drops all calls: from eu"), "{told}");
    let told = policy("{planner: rings, rings: [{within: region, load: 10%}]}", "");
    assert!(told.contains("calls above its load are dropped, even while other regions have room"), "{told}");
    let told = policy("{planner: rings, classes: [bulk]}", "");
    assert!(told.contains("lists (traffic.classes) traffic classes that no route sets"), "{told}");
}

#[test]
fn all_errors_of_all_files_are_reported_together() {
    let mesh = Mesh::start();
    let (wrong, other) =
        (mesh.file("wrong.yaml", WRONG), mesh.file("other.yaml", "kind: Servcie\nname: shop/b\n"));
    for command in ["lint", "apply", "diff"] {
        let complaint = mesh.run(&[command, "-f", &wrong, "-f", &other]).fails(2);
        for (place, words) in [
            ("wrong.yaml:2:", "there is no field 'naem'"),
            ("wrong.yaml:3:", "there is no field 'protocoll'"),
            ("wrong.yaml:7:", "timeout"),
            ("wrong.yaml:10:", "'/a' is no condition on a path"),
            ("wrong.yaml:11:", "'90%' is not a weight"),
            ("other.yaml:1:", "there is no kind 'Servcie'"),
        ] {
            let line = complaint.lines().find(|line| line.contains(place));
            assert!(line.is_some_and(|line| line.contains(words)), "{place} {words} in {complaint}");
        }
        assert!(complaint.contains("6 errors; nothing was changed"), "{complaint}");
    }
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
    let told = mesh.run(&["lint", "-f", &wrong, "-f", &other, "--json"]);
    let error: serde_json::Value = serde_json::from_str(told.err.lines().next().unwrap()).unwrap();
    let items = error["error"]["items"].as_array().unwrap();
    assert_eq!(items.len(), 6, "{error}");
    let (place, says) = (&items[0], |what: &str| items[0][what].as_str().unwrap());
    assert!(says("file").ends_with("wrong.yaml") && says("problem").contains("no field 'naem'"), "{place}");
    assert_eq!((&place["line"], &place["column"]), (&json!(2), &json!(1)), "{place}");
    assert!(says("hint").contains("name"), "{place}");
}

#[test]
fn documents_written_twice_are_reported_with_all_other_errors() {
    let mesh = Mesh::start();
    let (first, second) = (
        mesh.file("first.yaml", "kind: Service\nname: shop/a\n"),
        mesh.file("second.yaml", "# again\nkind: Service\nname: shop/a\n"),
    );
    let wrong = mesh.file("wrong.yaml", "kind: Servcie\nname: shop/b\n");
    let twice = "Service shop/a is written twice: first at";
    for command in ["lint", "apply", "diff"] {
        let complaint = mesh.run(&[command, "-f", &first, "-f", &second, "-f", &wrong]).fails(2);
        for (place, words) in [("second.yaml:2:", twice), ("wrong.yaml:1:", "there is no kind 'Servcie'")] {
            let line = complaint.lines().find(|line| line.contains(place));
            assert!(line.is_some_and(|line| line.contains(words)), "{place} {words} in {complaint}");
        }
        let complaint = mesh.run(&[command, "-f", &first, "-f", &second]).fails(2);
        assert!(complaint.contains(twice) && complaint.contains("keep one of the two"), "{complaint}");
    }
    assert_eq!(mesh.run(&["get", "services", "--json"]).json(), json!([]));
}

#[test]
fn apply_warns_like_lint_and_check_finds_remaining_faults() {
    let mesh = Mesh::start();
    let applied = mesh.apply(DUBIOUS);
    assert!(
        applied.err.contains("warning: no call reaches route 'api' of the policy of shop/web"),
        "{applied:?}"
    );
    assert!(
        applied.err.contains("copies of calls are lost until it is, and the calls themselves succeed"),
        "{applied:?}"
    );
    assert!(!applied.err.contains("in these files"), "{applied:?}");
    let agent = format!("unix:{}", mesh.path("none.sock").display());
    let pages = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", &agent];
    let found = mesh.run(&[&["check", "--json"], &pages[..]].concat()).out;
    assert!(found.contains("policy.unreachableRoute"), "{found}");
    applied.ok();
}

#[test]
fn role_that_no_copy_has_draws_warning_of_lint_apply_and_check() {
    const FILE: &str = "kind: Service\nname: shop/kv\ntype: sharded\n---\nkind: Policy\nservice: shop/kv\nrole: primry\n\
        routes:\n  - {name: reads, match: {path: {prefix: /r}}, role: secondary}\n  - {name: writes, match: {path: {prefix: /w}}, role: \
        primary}\n---\nkind: ShardMap\nservice: shop/kv\ninterval: {start: 0, end: 1000}\nshards:\n  - {id: 0, start: 0, \
        replicas: [{instance: kv-0, region: eu, role: primary}]}\n---\nkind: Service\nname: shop/web\n---\nkind: Policy\n\
        service: shop/web\nrole: primary\n";
    const WARNINGS: [&str; 3] = [
        "the policy of shop/kv sends calls without a role to copies of role 'primry'",
        "route 'reads' of the policy of shop/kv sends calls without a role to copies of role 'secondary'",
        "the policy of shop/web names role 'primary', which has no effect: shop/web is not sharded",
    ];
    let mesh = Mesh::start();
    let file = mesh.file("roles.yaml", FILE);
    let agent = format!("unix:{}", mesh.path("none.sock").display());
    let pages = ["--control-admin", "none", "--admin", "none", "--agent-admin", "none", "--agent", &agent];
    let linted = mesh.run(&["lint", "-f", &file]);
    let applied = mesh.run(&["apply", "-f", &file]);
    let checked = mesh.run(&[&["check", "--json"], &pages[..]].concat());
    for output in [&linted.out, &applied.err, &checked.out] {
        for warning in WARNINGS {
            assert!(output.contains(warning), "{warning}: {output}");
        }
        assert!(!output.contains("route 'writes'"), "{output}");
    }
    assert!(applied.err.contains("they fail with no_replica; its roles are primary"), "{}", applied.err);
    assert!(checked.out.contains("policy.unknownRole"), "{}", checked.out);

    // The stored policy is compared with a new map too.
    let map = FILE.split("---\n").nth(2).unwrap().replace("role: primary", "role: primry");
    let renamed = mesh.apply(&map);
    assert!(!renamed.err.contains(WARNINGS[0]) && renamed.err.contains("route 'writes'"), "{}", renamed.err);
}
