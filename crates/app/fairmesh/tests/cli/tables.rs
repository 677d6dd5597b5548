//! Region tables set by an operator: listed, rolled back with their policy, and refused.

use super::support::{Mesh, wait_until};

const POLICY: &str = "
kind: Policy
service: shop/catalog
traffic:
  shares:
    - {from: eu, to: {eu: 70%, us: 30%}}
    - {from: eu, class: bulk, to: {us: 87.5%}, dropped: 12.5%}
";

#[test]
fn manual_region_tables_are_listed_and_change_with_their_policy() {
    let mesh = Mesh::with_shop();
    let listed = |mesh: &Mesh| mesh.run(&["get", "tables", "shop/catalog"]);
    assert!(listed(&mesh).err.contains("rings decide"));
    mesh.apply(POLICY).ok();
    let table = listed(&mesh).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..8], ["shop/catalog", "eu", "-", "eu", "70%,", "us", "30%", "0%"], "{table}");
    assert_eq!(rows[2][..6], ["shop/catalog", "eu", "bulk", "us", "87.5%", "12.5%"], "{table}");
    let again = mesh.run(&["get", "policies", "shop/catalog", "-o", "yaml"]).ok();
    mesh.apply(&again).ok();
    assert_eq!(listed(&mesh).ok(), table, "the policy as it was read");

    let near = POLICY.replace("traffic:", "locality: {rings: [region]}\ntraffic:");
    mesh.apply(&near).ok();
    let told = listed(&mesh).ok();
    assert!(told.contains("in force, but no call goes to us: its locality does not allow that"), "{told}");
    let items = mesh.run(&["get", "tables", "shop/catalog", "--json"]).json();
    assert!(
        items[0]["notAllowed"] == serde_json::json!(["us"]) && items[0]["state"] == "in force",
        "{items}"
    );

    mesh.apply("{kind: Policy, service: shop/catalog, traffic: {planner: rings}}").ok();
    let planned = listed(&mesh);
    assert!(
        planned.err.contains("fairmesh traffic status shop/catalog") && planned.out.is_empty(),
        "{planned:?}"
    );
    mesh.apply(POLICY).ok();
    mesh.run(&["delete", "policy", "shop/catalog"]).ok();
    assert!(listed(&mesh).out.is_empty(), "a table goes with its policy");
}

#[test]
fn invalid_manual_shares_are_refused_with_hint() {
    let mesh = Mesh::with_shop();
    for (traffic, problem, hint) in [
        ("{shares: [{from: eu, to: {eu: 70%, us: 20%}}]}", "the shares are 90% together", "be 100% together"),
        ("{shares: [{from: eu, to: {eu: 99.5%, us: 0.5%}}]}", "0.5% is too small", "leave the region out"),
        ("{shares: [{from: eu, to: {eu: 1}}]}", "", ""),
        ("{planner: rings, shares: [{from: eu, to: {eu: 100%}}]}", "a planner and shares", "no planner"),
        ("{mode: shadow}", "neither a planner nor shares", "planner: rings"),
        ("{planner: best}", "'best' is no planner", "'rings'"),
        (
            "{shares: [{from: eu, to: {eu: 100%}}, {from: eu, to: {us: 100%}}]}",
            "repeats a region and class",
            "once",
        ),
    ] {
        let refused = mesh.apply(&format!("{{kind: Policy, service: shop/catalog, traffic: {traffic}}}"));
        assert!(
            refused.code == Some(2) && refused.err.contains(problem) && refused.err.contains(hint),
            "{traffic}: {refused:?}"
        );
    }
    assert!(mesh.run(&["get", "tables", "shop/catalog"]).out.is_empty());
}

#[test]
fn drained_region_is_marked_in_every_region_listing() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 19_001);
    let region = |name: &str| {
        let regions = mesh.run(&["get", "regions", "--json"]).json();
        regions.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone()
    };
    assert!(region("eu")["drain"].is_null());

    // No service is planned, so no calls move and the drain has nothing to wait for.
    let drained = mesh.run(&["drain", "--region", "eu", "--over", "0s", "--yes"]);
    assert!(drained.out.contains("is drained, but no call has left it: no planner plans"), "{drained:?}");
    assert_eq!(drained.code, Some(4), "a script must not stop the servers then");
    assert!(
        drained.err.contains("region eu is drained, but its calls stay: no service is planned"),
        "{drained:?}"
    );
    assert!(!drained.err.contains("keeps 0 %"), "{drained:?}");
    let (eu, us) = (region("eu"), region("us"));
    assert!(eu["drain"]["state"] == "drained" && eu["drain"]["movesCalls"] == false, "{eu}");
    assert!(us["drain"].is_null(), "{us}");
    let listed = mesh.run(&["get", "regions"]).ok();
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(
        row("eu").contains("drained, but its calls stay: no service is planned for")
            && row("us").trim_end().ends_with("in use"),
        "{listed}"
    );
    let described = mesh.run(&["describe", "region", "eu", "--json"]).json();
    assert!(described["drain"]["stepsMade"] == 10 && described["drain"]["held"] == false, "{described}");
    assert_eq!(described["drain"]["movesCalls"], false, "{described}");
    let described = mesh.run(&["describe", "region", "eu"]).ok();
    for part in
        ["Region      eu", "State       drained, but its calls stay", "\nDistances\n", "\nEndpoints\n"]
    {
        assert!(described.contains(part), "{part}: {described}");
    }
    let explained = mesh.run(&["explain", "shop/catalog", "--region", "us"]).ok();
    let told =
        "drain    region eu is drained; it moves no more calls of this service: no planner plans for it";
    assert!(explained.contains(told), "{explained}");

    let misspelt = mesh.run(&["undrain", "--region", "mars", "--over", "0s"]).fails(1);
    assert!(misspelt.contains("'mars' is not known") && misspelt.contains("name one of"), "{misspelt}");
    mesh.run(&["undrain", "--region", "eu", "--over", "0s"]).ok();
    assert!(region("eu")["drain"].is_null(), "the calls are back");
}

#[test]
fn region_drain_forecast_names_services_that_cannot_move_and_why() {
    let mesh = Mesh::with_shop();
    let policies = [
        ("held", ", traffic: {planner: rings, mode: hold}"),
        ("shadow", ", traffic: {planner: rings, mode: shadow}"),
        ("local", ", locality: {localOnly: true}"),
        ("shared", ", traffic: {shares: [{from: eu, to: {eu: 100%}}]}"),
        ("plain", ""),
    ];
    for (at, (name, policy)) in policies.iter().enumerate() {
        let service = format!("shop/{name}");
        let documents = format!(
            "{{kind: Service, name: {service}}}\n---\n{{kind: Policy, service: {service}{policy}}}\n"
        );
        mesh.apply(&documents).ok();
        mesh.register(&service, "one", "eu", 19_100 + at as u16);
    }
    let forecast = || mesh.run(&["drain", "--region", "eu", "--dry-run"]).ok();
    wait_until("the planner has seen the region", || forecast().contains("shop/held will hold the drain"));
    let text = forecast();
    for words in [
        "shop/held will hold the drain: its policy holds the tables (mode: hold)",
        "not moved: shop/shadow: its tables are in shadow mode",
        "not moved: shop/local: its policy keeps calls in their region (localOnly)",
        "not moved: shop/shared: its shares are written by hand",
        "not moved: shop/plain: no planner plans for it",
    ] {
        assert!(text.lines().any(|line| line == words), "no {words} in {text}");
    }
    let forecast = mesh.run(&["drain", "--region", "eu", "--dry-run", "--json"]).json()["forecast"].clone();
    assert_eq!(forecast["unmovedBecause"]["shop/plain"], "no planner plans for it", "{forecast}");
    assert!(forecast["services"][0]["hold"].as_str().unwrap().contains("mode: hold"), "{forecast}");
}

#[test]
fn planner_settings_with_misspelt_region_or_service_are_refused() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 19_300);
    let unplanned = mesh.run(&["traffic", "status", "shop/catalog"]).fails(1);
    assert!(unplanned.contains("no planner plans for shop/catalog"), "{unplanned}");
    for command in ["status", "explain"] {
        let unknown = mesh.run(&["traffic", command, "shop/none"]).fails(1);
        assert!(unknown.contains("there is no service shop/none"), "{unknown}");
    }
    mesh.apply("{kind: Policy, service: shop/catalog, traffic: {planner: rings}}").ok();
    wait_until("the planner has seen the region", || {
        mesh.run(&["traffic", "explain", "shop/catalog", "--region", "eu"]).code == Some(0)
    });
    let unknown = mesh.run(&["traffic", "explain", "shop/catalog", "--region", "mars"]).fails(1);
    assert!(unknown.contains("neither endpoints nor callers in a region mars"), "{unknown}");
    assert!(unknown.contains("name one of eu"), "{unknown}");
}
