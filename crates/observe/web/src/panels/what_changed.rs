//! What changed and when, by the records that say so: earlier values of configuration, endpoints, verdicts of health
//! checks, placements at gateways, drains of regions, and the planner's shifts of calls.
//!
//! The log of writes knows more, but is for administrators, and logs each reader. A change that no record remembers,
//! such as the end of a drain, is not listed.

use std::cmp::Reverse;

use fairmesh_model::{
    DrainPhase, EndpointState, Placement, RecordKey, RecordKind, Region, RegionDrain, ServiceName,
};
use fairmesh_views::{ServiceView, View, lost_cause};
use fairmesh_wire::v1;
use serde::Serialize;
use serde_json::json;

use super::given;
use crate::event_delta::Shown;

/// Kinds of records of a service that say when they changed.
pub(crate) const KINDS: &[RecordKind] = &[RecordKind::Endpoint, RecordKind::Health, RecordKind::Placement];

/// The record of a service.
type KeyOf = fn(ServiceName) -> RecordKey;

/// Configuration of a service with a history, in words.
pub(crate) const OF_SERVICE: [(KeyOf, &str); 5] = [
    (RecordKey::Service, "declaration"),
    (RecordKey::Policy, "policy"),
    (RecordKey::Authorization, "rules"),
    (RecordKey::Workload, "programs of its identity"),
    (RecordKey::GatewayService, "use of the gateway"),
];

/// Configuration of the mesh with a history, in words. Viewers of a single tenant may not read its history.
pub(crate) static OF_MESH: [(RecordKey, &str); 4] = [
    (RecordKey::Regions, "regions"),
    (RecordKey::RoundTrips, "declared round trips"),
    (RecordKey::Hosts, "host types"),
    (RecordKey::DefaultAuthorization, "default of services without rules"),
];

/// Maximum number of changes that are shown.
const MAX_SHOWN: usize = 100;
/// Times of shifts are known by their age, and rounded to this, so that the list is sent only if it has changed.
const SHIFT_STEP_MS: u64 = 5_000;

/// Changes at which a page looks.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<Change>);

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    /// Milliseconds since 1970.
    at_ms: u64,
    /// What has changed: `configuration`, `endpoint`, `drain`, `health`, `gateway` or `planner`.
    kind: &'static str,
    text: String,
    /// The author, if the record names one.
    by: Option<String>,
    /// The reason that the author gave.
    message: Option<String>,
}

impl Changes {
    /// Adds the history of a record, whose values are newest first. The oldest value that is kept has no time.
    pub(crate) fn add_history(&mut self, what: &str, values: &[v1::Change]) {
        for pair in values.windows(2) {
            let [now, before] = pair else { continue };
            let verb = match (&before.value, &now.value) {
                (None, Some(_)) => "created",
                (Some(_), Some(_)) => "changed",
                (_, None) => "removed",
            };
            self.add(before.replaced_at_ms, "configuration", format!("{what} {verb}"));
            self.note(&before.replaced_by, &before.replaced_message);
        }
    }

    /// Adds what the records of a service say.
    pub(crate) fn add_records(&mut self, one: &ServiceView) {
        for endpoint in one.endpoints.iter().map(|at| &at.value) {
            let name = format!("{} in {}", endpoint.instance, endpoint.location.region);
            if let Some((at_ms, cause)) =
                lost_cause(endpoint).filter(|_| endpoint.state == EndpointState::Lost)
            {
                self.add(at_ms, "endpoint", format!("{name} lost: {cause}"));
            }
            if let Some((at_ms, by)) = endpoint.drained() {
                self.add(at_ms, "drain", format!("drain of {name} begun"));
                self.note(by, "");
            }
        }
        for (region, verdicts) in &one.health.by_region {
            for (instance, verdict) in verdicts {
                let text = match verdict.healthy {
                    true => format!("{instance} in {region}: health checks pass"),
                    false => format!("{instance} in {region}: health checks fail, {}", verdict.cause),
                };
                self.add(verdict.since_ms, "health", text);
            }
        }
        if let Some(placement) = &one.placement {
            self.add_placement(&placement.value);
        }
    }

    fn add_placement(&mut self, placement: &Placement) {
        if let Some(pin) = &placement.pinned {
            let (text, by) = match pin.is_sandbox {
                true => ("moved to the sandbox of the gateway", "controller"),
                false => ("backends of the gateway chosen", "operator"),
            };
            self.add(pin.at_ms, "gateway", text.to_owned());
            self.note(by, &pin.reason);
        }
        if let Some(limit) = &placement.connection_limit {
            let by = if limit.is_automatic { "controller" } else { "operator" };
            let text = format!("new connections limited to {} a second at each replica", limit.per_second);
            self.add(limit.at_ms, "gateway", text);
            self.note(by, &limit.reason);
        }
    }

    /// Adds the planner's shifts of the calls to a service, which is named if the page shows several.
    pub(crate) fn add_shifts<'a>(
        &mut self,
        service: Option<&str>,
        shifts: impl IntoIterator<Item = &'a v1::TrafficShift>,
        now_ms: u64,
    ) {
        for shift in shifts {
            let at_ms = now_ms.saturating_sub(shift.ago_ms);
            let at_ms = (at_ms + SHIFT_STEP_MS / 2) / SHIFT_STEP_MS * SHIFT_STEP_MS;
            let to = service.map(|name| format!("{name}, ")).unwrap_or_default();
            let class = given(&shift.class).map(|class| format!(" ({class})")).unwrap_or_default();
            self.add(at_ms, "planner", format!("{to}callers of {}{class}: {}", shift.from, shift.text));
        }
    }

    /// Adds the drains of regions, which concern all tenants.
    pub(crate) fn add_drains(&mut self, view: &View) {
        for (region, drain) in &view.drains {
            self.add(drain.began_at_ms, "drain", drain_words(region, drain));
        }
    }

    /// Shows the newest changes, newest first.
    pub(crate) fn shown(mut self) -> Shown {
        self.0.sort_by_key(|change| Reverse(change.at_ms));
        let left_out = self.0.len().saturating_sub(MAX_SHOWN);
        self.0.truncate(MAX_SHOWN);
        Shown::head(&json!({ "changes": self.0, "leftOut": left_out }))
    }

    fn add(&mut self, at_ms: u64, kind: &'static str, text: String) {
        self.0.push(Change { at_ms, kind, text, by: None, message: None });
    }

    /// Notes the author and the reason of the change that was added last.
    fn note(&mut self, by: &str, message: &str) {
        if let Some(change) = self.0.last_mut() {
            (change.by, change.message) = (given(by).map(Into::into), given(message).map(Into::into));
        }
    }
}

fn drain_words(region: &Region, drain: &RegionDrain) -> String {
    match drain.phase() {
        DrainPhase::Draining => format!("drain of the region {region} begun"),
        DrainPhase::Drained => format!("drain of the region {region} begun, which has ended"),
        DrainPhase::Returning => format!("return of calls to the region {region} begun"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fairmesh_model::{ConnectionLimit, Endpoint, InstanceId, Label, Verdict, Zone};
    use fairmesh_views::At;
    use serde_json::Value;

    use super::*;

    fn texts(changes: Changes) -> Vec<String> {
        let shown: Value = serde_json::from_str(&changes.shown().since(None).unwrap()).unwrap();
        let changes = shown["head"]["changes"].as_array().unwrap().clone();
        let text = |change: &Value| {
            let (at, by) = (&change["atMs"], change["by"].as_str().unwrap_or("-"));
            format!("{at} {} {by}: {}", change["kind"].as_str().unwrap(), change["text"].as_str().unwrap())
        };
        changes.iter().map(text).collect()
    }

    fn endpoint(instance: &str, state: EndpointState, label: (&str, &str)) -> At<Endpoint> {
        let labels = [(label.0.to_owned(), label.1.to_owned())].into();
        let value = Endpoint { state, labels, ..fairmesh_test_support::endpoint(instance, "eu") };
        At { value, revision: 1 }
    }

    #[test]
    fn records_of_service_say_what_changed_newest_first() {
        let endpoints = vec![
            endpoint("a", EndpointState::Lost, (Endpoint::LOST, "10 expired")),
            endpoint("b", EndpointState::Draining, (Endpoint::DRAINED, "20 alice")),
            // Its label is older than its return.
            endpoint("c", EndpointState::Serving, (Endpoint::LOST, "15 expired")),
        ];
        let mut one = ServiceView { endpoints, ..ServiceView::default() };
        let (healthy, cause) = (false, "status 500".to_owned());
        let verdict = Verdict { healthy, since_ms: 30, confidence: 900, cause, stale: false };
        one.health.put(Region::new("eu").unwrap(), InstanceId::new("d").unwrap(), verdict);
        let limit = ConnectionLimit {
            per_second: 5,
            reason: "a flood".to_owned(),
            at_ms: 40,
            is_automatic: true,
            first_per_second: 5,
        };
        let placement = Placement {
            home_zone: Zone::new("eu-a").unwrap(),
            zones: BTreeMap::from([(Zone::new("eu-a").unwrap(), [Label::new("gw").unwrap()].into())]),
            added: 0,
            pinned: None,
            connection_limit: Some(limit),
        };
        one.placement = Some(At { value: placement, revision: 1 });
        let mut changes = Changes::default();
        changes.add_records(&one);
        assert_eq!(
            texts(changes),
            [
                "40 gateway controller: new connections limited to 5 a second at each replica",
                "30 health -: d in eu: health checks fail, status 500",
                "20 drain alice: drain of b in eu begun",
                "10 endpoint -: a in eu lost: its lease was not renewed",
            ]
        );
    }

    #[test]
    fn history_of_record_names_author_and_time_of_each_newer_value() {
        let value = |text: Option<&'static str>, at_ms, by: &str| v1::Change {
            value: text.map(|text| text.as_bytes().into()),
            replaced_at_ms: at_ms,
            replaced_by: by.to_owned(),
            ..v1::Change::default()
        };
        let values = [
            value(None, 0, ""),
            value(Some("b"), 30, "carol"),
            value(Some("a"), 20, "bob"),
            value(None, 10, "alice"),
        ];
        let mut changes = Changes::default();
        changes.add_history("policy", &values);
        assert_eq!(
            texts(changes),
            [
                "30 configuration carol: policy removed",
                "20 configuration bob: policy changed",
                "10 configuration alice: policy created",
            ]
        );
    }

    #[test]
    fn shift_has_same_time_in_each_reading() {
        let shift = |ago_ms| v1::TrafficShift {
            ago_ms,
            from: "eu".to_owned(),
            class: "bulk".to_owned(),
            text: "eu to us, 12.5 % more".to_owned(),
        };
        let read = |now_ms, ago_ms| {
            let mut changes = Changes::default();
            changes.add_shifts(Some("shop/cart"), &[shift(ago_ms)], now_ms);
            texts(changes)
        };
        let first = read(100_000, 10_000);
        assert_eq!(first, ["90000 planner -: shop/cart, callers of eu (bulk): eu to us, 12.5 % more"]);
        assert_eq!(read(104_003, 14_001), first);
    }
}
