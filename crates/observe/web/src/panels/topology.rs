use fairmesh_model::{DistanceSource, RecordKind, Region};
use fairmesh_views::{View, age_of};
use serde_json::{Value, json};

use crate::{api::millis, command_queries::coarse, event_delta::Shown};

/// Kinds of records that the regions are read from.
pub(crate) const KINDS: &[RecordKind] = &[RecordKind::Endpoint];

/// Shows regions with their endpoints, and the round trips between regions, like `fairmesh get regions` and
/// `roundTrips`. A round trip has the age of its record; a declared one has none.
pub(crate) fn topology(view: &View) -> Shown {
    let names = view.region_names();
    let regions: Vec<Value> = names.iter().map(|name| region(name, view)).collect();
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

fn region(name: &Region, view: &View) -> Value {
    let endpoints = view.services.values().flat_map(|service| &service.endpoints).map(|at| &at.value);
    let here: Vec<_> = endpoints.filter(|endpoint| endpoint.location.region == *name).collect();
    let serving = here.iter().filter(|endpoint| endpoint.state.as_str() == "serving").count();
    let declared = view.regions.value.regions.get(name);
    let neighbours = declared.map(|info| info.neighbours.iter().map(ToString::to_string).collect::<Vec<_>>());
    json!({
        "name": name.to_string(),
        "declared": declared.is_some(),
        "continent": declared.map(|info| &info.continent),
        "neighbours": neighbours.unwrap_or_default(),
        "endpoints": here.len(),
        "serving": serving,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use fairmesh_model::{MeasuredDistance, MeasuredDistances, RoundTrips};

    use super::*;

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
