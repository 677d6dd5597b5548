use fairmesh_model::{DistanceSource, RecordKind, Region};
use fairmesh_views::View;
use serde_json::{Value, json};

use crate::event_delta::Shown;

/// Kinds of records that the regions are read from.
pub(crate) const KINDS: &[RecordKind] = &[RecordKind::Endpoint];

/// Shows regions with their endpoints, and the round trips between regions, like `fairmesh get regions` and
/// `roundTrips`.
pub(crate) fn topology(view: &View) -> Shown {
    let names = view.region_names();
    let regions: Vec<Value> = names.iter().map(|name| region(name, view)).collect();
    let pairs = names.iter().flat_map(|from| names.iter().map(move |to| (from, to)));
    let trips = pairs.filter(|(from, to)| from != to).filter_map(|(from, to)| {
        let (time, source) = view.round_trips.distance(from, to)?;
        let source = match source {
            DistanceSource::Declared => "declared",
            DistanceSource::Measured | DistanceSource::MeasuredReverse => "measured",
        };
        Some(json!([
            from.to_string(),
            to.to_string(),
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            source
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
