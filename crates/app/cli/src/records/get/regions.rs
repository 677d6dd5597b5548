//! Regions and the distances between them.

use std::time::Duration;

use fairmesh_console::{
    cell_text::rough_age,
    output::Listing,
    view_reader::{View, age_of},
};
use fairmesh_model::{
    DistanceSource, Region,
    spec::{Document, Resource},
};
use serde_json::{Value, json};

use fairmesh_traffic::region_drain;

/// The columns of distances.
pub(crate) const DISTANCES: &[&str] =
    &["FROM", "TO", "DISTANCE", "SOURCE", "DECLARED", "MEASURED", "MEASURED AT"];

/// One row per region, declared or in use, and one for each known distance.
pub(super) fn regions(view: &View) -> Listing {
    let mut listing = Listing::new(&["REGION", "CONTINENT", "NEIGHBOURS", "ENDPOINTS", "STATE"]);
    let names = view.region_names();
    let mut rows = Vec::new();
    for region in &names {
        let others = names.iter().filter(|other| *other != region);
        let distances: Vec<_> = others.filter_map(|other| distance(view, region, other)).collect();
        rows.extend(distances.iter().map(|one| one.row(region)));
        add(region, &distances, view, &mut listing);
    }
    listing.further.push((DISTANCES, rows));
    if !view.regions.value.regions.is_empty() {
        let resource = Resource::Topology(view.regions.value.clone(), view.round_trips.clone());
        listing.documents.push(Document::from(&resource));
    }
    listing
}

/// Whether a region is in use, in words.
pub(crate) fn region_state(view: &View, region: &Region) -> String {
    match (view.drains.get(region), view.regions.value.regions.get(region)) {
        (Some(drain), _) => region_drain::words_in(view, drain),
        (None, Some(info)) if info.draining => "draining, as the topology declares".to_owned(),
        (None, Some(_)) => "in use".to_owned(),
        (None, None) => "not declared".to_owned(),
    }
}

fn add(region: &Region, distances: &[DistanceRow], view: &View, listing: &mut Listing) {
    let info = view.regions.value.regions.get(region);
    let neighbours = info.map(|info| info.neighbours.clone()).unwrap_or_default();
    let neighbours: Vec<_> = neighbours.iter().map(ToString::to_string).collect();
    let drain = view.drains.get(region);
    let draining = info.is_some_and(|info| info.draining);
    let endpoints = view.services.values().flat_map(|service| &service.endpoints);
    let endpoints = endpoints.filter(|endpoint| endpoint.value.location.region == *region).count();
    let state = region_state(view, region);
    let continent = info.map(|info| info.continent.clone()).unwrap_or_default();
    listing.add(
        vec![region.to_string(), continent.clone(), neighbours.join(", "), endpoints.to_string(), state],
        json!({
            "name": region.to_string(),
            "declared": info.is_some(),
            "continent": continent,
            "neighbours": neighbours,
            "draining": draining,
            "drain": drain.map(|drain| region_drain::item_in(view, drain)),
            "endpoints": endpoints,
            "distances": distances.iter().map(DistanceRow::json).collect::<Vec<_>>(),
        }),
    );
}

/// The distance from one region to another, and its sources.
#[derive(Debug)]
pub(crate) struct DistanceRow {
    to: Region,
    used: Duration,
    source: DistanceSource,
    declared: Option<Duration>,
    /// Measured by the region itself; second value: age of the record.
    measured: Option<(Duration, Duration)>,
}

/// The distance between two regions; `None` if it is unknown.
pub(crate) fn distance(view: &View, from: &Region, to: &Region) -> Option<DistanceRow> {
    let (used, source) = view.round_trips.distance(from, to)?;
    let measured = view.round_trips.measured(from, to);
    Some(DistanceRow {
        to: to.clone(),
        used,
        source,
        declared: view.round_trips.declared(from, to),
        measured: measured.map(|distance| (distance.round_trip, age_of(distance.measured_at_ms))),
    })
}

impl DistanceRow {
    pub(crate) fn row(&self, from: &Region) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            from.to_string(),
            self.to.to_string(),
            millis(self.used),
            self.source().into(),
            or_dash(self.declared.map(millis)),
            or_dash(self.measured.map(|(round_trip, _)| millis(round_trip))),
            or_dash(self.measured.map(|(_, age)| format!("{} ago", rough_age(age)))),
        ]
    }

    /// The row as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "to": self.to.to_string(),
            "roundTripUs": micros(self.used),
            "source": self.source(),
            "declaredUs": self.declared.map(micros),
            "measuredUs": self.measured.map(|(round_trip, _)| micros(round_trip)),
            "measuredAgeSeconds": self.measured.map(|(_, age)| age.as_secs()),
        })
    }

    fn source(&self) -> &'static str {
        match self.source {
            DistanceSource::Declared => "declared",
            DistanceSource::Measured => "measured",
            DistanceSource::MeasuredReverse => "reverse",
        }
    }
}

fn millis(round_trip: Duration) -> String {
    format!("{:.1} ms", round_trip.as_secs_f64() * 1000.0)
}

fn micros(round_trip: Duration) -> u64 {
    u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_distances_show_source_and_age() {
        let [eu, us] = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let ms = Duration::from_micros;
        let measured = Some((ms(61_240), Duration::from_secs(14 * 60)));
        let of = |used, source, declared, measured| DistanceRow {
            to: us.clone(),
            used,
            source,
            declared,
            measured,
        };
        let rows = [
            (
                of(ms(61_240), DistanceSource::Measured, None, measured),
                "61.2 ms|measured|-|61.2 ms|14 min ago",
            ),
            (
                of(ms(200_000), DistanceSource::Declared, Some(ms(200_000)), measured),
                "200.0 ms|declared|200.0 ms|61.2 ms|14 min ago",
            ),
            (of(ms(61_240), DistanceSource::MeasuredReverse, None, None), "61.2 ms|reverse|-|-|-"),
        ];
        for (distance, expected) in &rows {
            let row = distance.row(&eu);
            assert_eq!(row.len(), DISTANCES.len());
            assert_eq!(row.join("|"), format!("eu|us|{expected}"));
        }
        assert_eq!(
            rows[1].0.json(),
            json!({
                "to": "us", "roundTripUs": 200_000, "source": "declared", "declaredUs": 200_000,
                "measuredUs": 61_240, "measuredAgeSeconds": 840,
            })
        );
    }
}
