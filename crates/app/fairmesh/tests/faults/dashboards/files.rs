//! The files in `deploy` for Prometheus and Grafana.

use std::{fs, path::PathBuf};

use serde_json::Value;

/// A panel of a dashboard.
#[derive(Debug)]
pub(super) struct Panel {
    /// The dashboard's file and the panel's title, such as `fleet: Calls`.
    pub(super) name: String,
    pub(super) queries: Vec<String>,
}

/// A recording rule or an alert.
#[derive(Debug)]
pub(super) struct Rule {
    /// Name of the recorded series or of the alert.
    pub(super) name: String,
    pub(super) expression: String,
    /// URL of the alert's runbook.
    pub(super) runbook: Option<String>,
}

/// Path of a file or folder in the repository.
pub(super) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..").join(name)
}

pub(super) fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All dashboards, by file name.
pub(super) fn dashboards() -> Vec<(String, Value)> {
    let entries = fs::read_dir(path("deploy/grafana")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries
        .map(|file| {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap())
        })
        .collect();
    all.sort_by(|(a, _), (b, _): &(String, Value)| a.cmp(b));
    all
}

/// Panels of all dashboards. Queries have Grafana's variables set to all tenants and services.
pub(super) fn panels() -> Vec<Panel> {
    let panels = |(name, dashboard): &(String, Value)| {
        let panels = dashboard["panels"].as_array().unwrap().clone();
        let panels = panels.into_iter().filter(|panel| panel["type"] != "row");
        let name = name.clone();
        panels.map(move |panel| Panel {
            name: format!("{name}: {}", panel["title"].as_str().unwrap()),
            queries: panel["targets"].as_array().unwrap().iter().map(sent).collect(),
        })
    };
    dashboards().iter().flat_map(panels).collect()
}

fn sent(target: &Value) -> String {
    let mut query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
    for variable in ["$tenant", "$service", "$region"] {
        query = query.replace(variable, ".*");
    }
    assert!(!query.contains('$'), "an unknown variable in {query}");
    query
}

/// Rules of a file in `deploy/prometheus`.
pub(super) fn rules(file: &str) -> Vec<Rule> {
    let text = read(&format!("deploy/prometheus/{file}"));
    let file: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let groups = file["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    rules
        .map(|rule| Rule {
            name: text(&rule["record"]).or_else(|| text(&rule["alert"])).unwrap(),
            expression: text(&rule["expr"]).unwrap(),
            runbook: text(&rule["annotations"]["runbook_url"]),
        })
        .collect()
}
