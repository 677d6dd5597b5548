//! Region tables that a person writes: listed, rolled back with their policy, and refused.

use super::support::Mesh;

const POLICY: &str = "
kind: Policy
service: shop/catalog
traffic:
  shares:
    - {from: eu, to: {eu: 70%, us: 30%}}
    - {from: eu, class: bulk, to: {us: 87.5%}, dropped: 12.5%}
";

#[test]
fn tables_are_listed_and_change_with_their_policy() {
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
fn shares_that_cannot_be_are_refused_with_what_to_write() {
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
