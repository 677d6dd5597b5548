use std::collections::BTreeMap;

use fairmesh_model::{ALL_CALLS, DistanceSource, RecordKind, Region};
use fairmesh_views::{View, age_of, partly_carried, states};
use serde_json::{Value, json};

use crate::{api::millis, command_queries::coarse, event_delta::Shown};

/// Kinds of records that the regions are read from.
pub(crate) const KINDS: &[RecordKind] =
    &[RecordKind::Service, RecordKind::Policy, RecordKind::Endpoint, RecordKind::Health];

/// Maximum number of services that are named per region.
const MAX_NAMED: usize = 50;

/// The endpoints of all services in a region, in the states that callers see.
#[derive(Debug, Default)]
struct RegionEndpoints {
    all: usize,
    serving: usize,
    /// Services that cannot carry all their calls here, with the share that they carry.
    overflowing: Vec<(String, f64)>,
}

/// Shows regions with their endpoints, and the round trips between regions, like `fairmesh get regions` and
/// `roundTrips`. A round trip has the age of its record; a declared one has none.
pub(crate) fn topology(view: &View) -> Shown {
    let (names, endpoints) = (view.region_names(), endpoints(view));
    let none = RegionEndpoints::default();
    let row = |name| region(name, view, endpoints.get(name).unwrap_or(&none));
    let regions: Vec<Value> = names.iter().map(row).collect();
    let pairs = names.iter().flat_map(|from| names.iter().map(move |to| (from, to)));
    let trips = pairs.filter(|(from, to)| from != to).filter_map(|(from, to)| {
        let (time, source) = view.round_trips.distance(from, to)?;
        let measured = match source {
            DistanceSource::Declared => None,
            DistanceSource::Measured => view.round_trips.measured(from, to),
            DistanceSource::MeasuredReverse => view.round_trips.measured(to, from),
        };
        Some(json!([
            from.to_string(),
            to.to_string(),
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            measured.map(|measured| coarse(millis(age_of(measured.measured_at_ms)))),
        ]))
    });
    Shown::head(&json!({ "regions": regions, "roundTrips": trips.collect::<Vec<_>>() }))
}

/// Counts endpoints by region with the states by which `explain` and the list of services show them.
fn endpoints(view: &View) -> BTreeMap<Region, RegionEndpoints> {
    let mut regions = BTreeMap::<Region, RegionEndpoints>::new();
    for (name, one) in &view.services {
        for (at, state) in one.endpoints.iter().zip(states(one, view)) {
            let here = regions.entry(at.value.location.region.clone()).or_default();
            here.all += 1;
            here.serving += usize::from(state.state == "serving");
        }
        for (region, carries) in partly_carried(one, view) {
            let share = f64::from(carries) / f64::from(ALL_CALLS);
            regions.entry(region).or_default().overflowing.push((name.to_string(), share));
        }
    }
    regions
}

fn region(name: &Region, view: &View, here: &RegionEndpoints) -> Value {
    let declared = view.regions.value.regions.get(name);
    let neighbours = declared.map(|info| info.neighbours.iter().map(ToString::to_string).collect::<Vec<_>>());
    json!({
        "name": name.to_string(),
        "declared": declared.is_some(),
        "continent": declared.map(|info| &info.continent),
        "neighbours": neighbours.unwrap_or_default(),
        "endpoints": here.all,
        "serving": here.serving,
        "overflowing": here.overflowing.iter().take(MAX_NAMED).collect::<Vec<_>>(),
        "moreOverflowing": here.overflowing.len().saturating_sub(MAX_NAMED),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use fairmesh_model::{
        Endpoint, EndpointState, InstanceId, MeasuredDistance, MeasuredDistances, RoundTrips, ServiceName,
        Verdict,
    };
    use fairmesh_views::At;

    use super::*;

    fn endpoint((instance, region): (&str, &str), state: EndpointState) -> At<Endpoint> {
        let lost = (Endpoint::LOST.to_owned(), "1 expired".to_owned());
        let labels = (state == EndpointState::Lost).then_some(lost).into_iter().collect();
        let value = Endpoint { state, labels, ..fairmesh_test_support::endpoint(instance, region) };
        At { value, revision: 1 }
    }

    #[test]
    fn region_counts_endpoints_in_states_that_callers_see() {
        let (serving, lost) = (EndpointState::Serving, EndpointState::Lost);
        let name = ServiceName::new("shop/cart").unwrap();
        let mut view = View::default();
        let one = view.services.entry(name.clone()).or_default();
        one.endpoints = [("a", serving), ("b", serving), ("c", lost), ("d", lost)]
            .map(|(instance, state)| endpoint((instance, "eu"), state))
            .into();
        one.endpoints.extend(["e", "f", "g", "h"].map(|instance| endpoint((instance, "us"), serving)));
        let shown = |view: &View| {
            let data: Value = serde_json::from_str(&topology(view).since(None).unwrap()).unwrap();
            let row = &data["head"]["regions"][0];
            (row["serving"].clone(), row["endpoints"].clone(), row["overflowing"].clone())
        };
        assert_eq!(
            shown(&view),
            (json!(2), json!(4), json!([["shop/cart", 0.7]])),
            "half of the region is lost"
        );
        let cause = "status 500".to_owned();
        let verdict = Verdict { healthy: false, since_ms: 1, confidence: 950, cause, stale: false };
        let one = view.services.entry(name).or_default();
        one.health.put(Region::new("eu").unwrap(), InstanceId::new("b").unwrap(), verdict);
        assert_eq!(
            shown(&view),
            (json!(1), json!(4), json!([["shop/cart", 0.35]])),
            "an unhealthy one is not serving"
        );
        let one = &view.services[&ServiceName::new("shop/cart").unwrap()];
        let states: Vec<_> = states(one, &view).iter().map(|state| state.state).collect();
        assert_eq!(states[..4], ["serving", "unhealthy", "lost", "lost"], "as explain shows them");
    }

    #[test]
    fn measured_round_trips_have_an_age_and_declared_ones_none() {
        let [eu, us, asia] = ["eu", "us", "asia"].map(|name| Region::new(name).unwrap());
        let mut view = View::default();
        let mut declared = RoundTrips::default();
        declared.set(eu.clone(), asia, Duration::from_millis(200));
        view.round_trips.set_declared(declared);
        let distance = MeasuredDistance { round_trip: Duration::from_millis(80), measured_at_ms: 1 };
        let to = BTreeMap::from([(us.clone(), distance)]);
        view.round_trips.set_measured(eu, Some(MeasuredDistances { to }));
        let data: Value = serde_json::from_str(&topology(&view).since(None).unwrap()).unwrap();
        let trips = data["head"]["roundTrips"].as_array().unwrap();
        assert_eq!(trips.len(), 2, "regions that are declared and unused are not shown: {data}");
        for trip in trips {
            assert!(trip[2] == 80_000 && trip[3].as_u64().is_some_and(|age| age > 3_600_000), "{data}");
        }
        view.round_trips.set_measured(us, Some(MeasuredDistances::default()));
        let mut declared = RoundTrips::default();
        declared.set(Region::new("eu").unwrap(), Region::new("us").unwrap(), Duration::from_millis(90));
        view.round_trips.set_declared(declared);
        let data: Value = serde_json::from_str(&topology(&view).since(None).unwrap()).unwrap();
        assert_eq!(data["head"]["roundTrips"][0], json!(["eu", "us", 90_000, null]));
    }
}
