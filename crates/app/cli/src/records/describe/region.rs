//! Details of one region.

use fairmesh_console::{
    arguments::Format,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View, every_kind},
};
use fairmesh_model::Region;
use fairmesh_traffic::region_drain;
use fairmesh_wire::{handshake::Connection, v1};
use serde_json::{Map, Value, json};

use super::service::section;
use crate::records::get::{self, DISTANCES, DistanceRow};

/// Prints a region.
pub(super) async fn describe(
    connection: &Connection,
    region: &Region,
    format: Format,
) -> Result<(), Failure> {
    let mut view = View::read(connection, &Scope::All, &every_kind()).await?;
    view.add_drains(connection).await?;
    if !view.region_names().contains(region) {
        return Err(Failure::failed_with(
            format!("there is no region {region}"),
            "list regions with 'fairmesh get regions', or declare it as 'kind: Topology'",
        ));
    }
    let progress = match view.drains.contains_key(region) {
        true => progress(connection, region).await,
        false => None,
    };
    output::print_one(
        format,
        &value(region, &view, progress.as_ref()),
        &text(region, &view, progress.as_ref()),
    )
}

/// The progress of the region's drain, if the control plane lets this caller read it.
async fn progress(connection: &Connection, region: &Region) -> Option<v1::RegionDrainStatus> {
    let drains = connection.traffic_planner().drains(v1::DrainsRequest {}).await.ok()?.into_inner().drains;
    drains.into_iter().find(|status| status.region == region.as_str())
}

fn value(region: &Region, view: &View, progress: Option<&v1::RegionDrainStatus>) -> Value {
    let info = view.regions.value.regions.get(region).cloned().unwrap_or_default();
    let mut drain = json!(view.drains.get(region).map(|drain| region_drain::item_in(view, drain)));
    if let Some(status) = progress {
        drain["progress"] = json!(status.state);
        drain["held"] = json!(status.is_held);
        drain["staying"] = json!(status.staying);
    }
    let endpoints = endpoints(region, view).map(|(name, count)| (name, json!(count)));
    json!({
        "name": region.to_string(),
        "continent": info.continent,
        "neighbours": info.neighbours,
        "draining": info.draining,
        "drain": drain,
        "distances": distances(region, view).iter().map(DistanceRow::json).collect::<Vec<_>>(),
        "endpoints": endpoints.collect::<Map<_, _>>(),
    })
}

fn text(region: &Region, view: &View, progress: Option<&v1::RegionDrainStatus>) -> String {
    let info = view.regions.value.regions.get(region);
    let continent = info.map(|info| info.continent.clone()).filter(|continent| !continent.is_empty());
    let neighbours = info.map(|info| info.neighbours.iter().map(ToString::to_string).collect::<Vec<_>>());
    let mut lines = vec![
        ("Region", region.to_string()),
        ("State", get::region_state(view, region)),
        ("Continent", continent.unwrap_or_else(|| "none declared".to_owned())),
        (
            "Neighbours",
            neighbours
                .map(|all| all.join(", "))
                .filter(|all| !all.is_empty())
                .unwrap_or_else(|| "none declared".to_owned()),
        ),
    ];
    if let Some(status) = progress {
        lines.push(("Drain", region_drain::progress(status)));
        if !status.staying.is_empty() {
            lines.push(("Staying", status.staying.join("; ")));
        }
    }
    let mut text: String = lines.into_iter().map(|(title, line)| format!("{title:<12}{line}\n")).collect();
    let rows: Vec<_> = distances(region, view).iter().map(|one| one.row(region)).collect();
    section(&mut text, "Distances", &or_none(DISTANCES, &rows));
    let rows: Vec<_> = endpoints(region, view).map(|(name, count)| vec![name, count.to_string()]).collect();
    section(&mut text, "Endpoints", &or_none(&["SERVICE", "ENDPOINTS"], &rows));
    text
}

fn or_none(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { "none\n".to_owned() } else { output::table(head, rows) }
}

fn distances(region: &Region, view: &View) -> Vec<DistanceRow> {
    let others = view.region_names().into_iter().filter(|other| other != region);
    others.filter_map(|other| get::distance(view, region, &other)).collect()
}

/// The services with endpoints in the region, each with their number.
fn endpoints(region: &Region, view: &View) -> impl Iterator<Item = (String, usize)> {
    view.services.iter().filter_map(|(name, one)| {
        let here = one.endpoints.iter().filter(|endpoint| endpoint.value.location.region == *region).count();
        (here > 0).then(|| (name.to_string(), here))
    })
}
