//! Formats the replica tree for people.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use fairmesh_console::output;

use super::{
    By,
    tree_walk::{Server, Tree, WatcherInfo},
};

/// Text that stands for an unknown value.
const UNKNOWN: &str = "-";

/// Formats the table, with the watchers that are furthest behind first, and a summary below it.
pub(super) fn text(tree: &Tree, by: By, limit: usize) -> String {
    let (head, mut rows): (&[&str], Vec<Vec<String>>) = match by {
        By::Router => (
            &["WATCHER", "KIND", "REGION", "FOLLOWS", "APPLIED", "LAG"],
            tree.watchers.iter().map(watcher).collect(),
        ),
        By::Replica => (
            &["SERVER", "REGION", "FOLLOWS", "REVISION", "LAG", "AGE", "WATCHERS"],
            tree.servers.iter().map(server).collect(),
        ),
        By::Region => (&["REGION", "WATCHERS", "BEHIND", "LAG", "FURTHEST"], regions(tree)),
    };
    let all = rows.len();
    if limit > 0 {
        rows.truncate(limit);
    }
    let mut text = if rows.is_empty() { String::new() } else { output::table(head, &rows) };
    if rows.len() < all {
        text += &format!("… and {} more; '--limit 0' prints all\n", all - rows.len());
    }
    text + &summary(tree)
}

fn watcher(one: &WatcherInfo) -> Vec<String> {
    vec![
        one.name.clone(),
        one.kind.to_owned(),
        known(one.region.as_ref()),
        one.follows.clone(),
        known(one.applied),
        known(one.lag),
    ]
}

fn server(one: &Server) -> Vec<String> {
    // Rounded to seconds, but never to 0, which means in touch.
    let age = match one.age_ms {
        0 => "0".to_owned(),
        age => format!("{} s", Duration::from_millis(age).as_secs().max(1)),
    };
    vec![
        one.name.clone(),
        known(one.region.as_ref()),
        known(one.follows.as_ref()),
        known(one.revision),
        known(one.lag),
        if one.problem.is_some() { UNKNOWN.into() } else { age },
        if one.problem.is_some() { UNKNOWN.into() } else { one.watchers.to_string() },
    ]
}

/// Returns one row per region: the number of its routers, and the router that is furthest behind.
fn regions(tree: &Tree) -> Vec<Vec<String>> {
    let mut regions: BTreeMap<String, Vec<&WatcherInfo>> = BTreeMap::new();
    for one in routers(tree) {
        regions.entry(known(one.region.as_ref())).or_default().push(one);
    }
    // Each is in the order of the tree: furthest behind first.
    let mut regions: Vec<_> = regions.into_iter().collect();
    regions.sort_by_key(|(_, watchers)| std::cmp::Reverse(watchers[0].lag));
    let row = |(region, watchers): (String, Vec<&WatcherInfo>)| {
        let behind = watchers.iter().filter(|one| is_behind(one)).count();
        let furthest = watchers[0];
        let name = if is_behind(furthest) { furthest.name.clone() } else { UNKNOWN.into() };
        vec![region, watchers.len().to_string(), behind.to_string(), known(furthest.lag), name]
    };
    regions.into_iter().map(row).collect()
}

/// Watchers that route calls by their records, or that relay records to programs that do.
fn routers(tree: &Tree) -> impl Iterator<Item = &WatcherInfo> {
    tree.watchers.iter().filter(|one| one.kind != "replica")
}

fn is_behind(one: &WatcherInfo) -> bool {
    one.lag != Some(0)
}

fn summary(tree: &Tree) -> String {
    let behind: Vec<_> = routers(tree).filter(|one| is_behind(one)).collect();
    let mut text = format!(
        "revision {}; replicas: {}; agents and programs behind: {} of {}",
        tree.revision,
        tree.servers.len() - 1,
        behind.len(),
        routers(tree).count()
    );
    // Writing to a String cannot fail.
    if let Some(WatcherInfo { name, follows, lag: Some(lag), .. }) = behind.first() {
        let _ = write!(text, ", the furthest by {lag} revisions: {name}, below {follows}");
    }
    text.push('\n');
    for one in tree.servers.iter().filter(|one| one.age_ms > 0) {
        let _ = writeln!(text, "{} is disconnected from the control plane", one.name);
    }
    for Server { name, problem, .. } in &tree.servers {
        if let Some(problem) = problem {
            let _ = writeln!(text, "{name} and everything below it could not be queried: {problem}");
        }
    }
    text
}

fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, kind: &'static str, region: Option<&str>, lag: Option<u64>) -> WatcherInfo {
        let applied = lag.map(|lag| 100 - lag);
        let (name, identity, follows) = (name.into(), "anonymous".into(), "root".into());
        let region = region.map(Into::into);
        WatcherInfo { name, identity, kind, region, version: None, follows, applied, lag }
    }

    fn server(name: &str, age_ms: u64, problem: Option<&str>) -> Server {
        Server {
            name: name.into(),
            region: None,
            follows: None,
            revision: Some(100),
            lag: Some(0),
            age_ms,
            watchers: 3,
            problem: problem.map(Into::into),
        }
    }

    fn tree() -> Tree {
        Tree {
            store: None,
            revision: 100,
            servers: vec![server("control", 0, None), server("root", 1, None), server("eu", 0, Some("gone"))],
            watchers: vec![
                one("root", "replica", None, Some(7)),
                one("host-1", "agent", Some("eu"), Some(7)),
                one("host-2", "agent", Some("us"), Some(0)),
                one("host-3", "agent", Some("eu"), Some(0)),
                one("old", "program", None, None),
            ],
        }
    }

    #[test]
    fn rib_status_names_lagging_and_unreachable_servers() {
        let text = text(&tree(), By::Router, 2);
        assert!(text.contains("host-1") && !text.contains("host-2"), "{text}");
        assert!(text.contains("and 3 more"), "{text}");
        assert!(text.contains("replicas: 2; agents and programs behind: 2 of 4"), "{text}");
        assert!(text.contains("furthest by 7 revisions: host-1, below root"), "{text}");
        assert!(text.contains("root is disconnected"), "{text}");
        assert!(text.contains("eu and everything below it could not be queried: gone"), "{text}");
    }

    #[test]
    fn rib_status_shows_lag_of_slowest_server_per_region() {
        let rows = regions(&tree());
        assert_eq!(rows[0], ["eu", "2", "1", "7", "host-1"]);
        assert_eq!(rows[1], ["us", "1", "0", "0", "-"]);
        assert_eq!(rows[2], ["-", "1", "1", "-", "old"], "an unknown lag is not 0");
    }
}
