//! Planner tables of any age: the agent's saved copies are modified while no control plane runs.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_model::{
    Confirmation, Prefix, Record, RecordKey, Region, RegionShares, RegionTable, ServiceName, Share,
    TableOrigin, TrafficShares, Zone,
};
use fairmesh_rib::{
    Entry,
    disk_cache::{Cache, SavedCopy},
};
use fairmesh_wire::record_encoding;
use serde_json::Value;
use tokio::net::TcpListener;

use super::{cases, decide, fleet_of, leased};
use crate::{
    harness::{Proxy, World, beside_others, until},
    lookaside::Lookaside,
    vectors::{answer, documents, pick, register},
};

const PLANNED: TableOrigin = TableOrigin::Planned(Confirmation { round: 1, at_ms: 0 });

fn table_key() -> RecordKey {
    RecordKey::RegionTable(ServiceName::new("shop/cart").unwrap(), Region::new("eu").unwrap())
}

/// Age of the table when a process is asked. A table of 59 s would be older before the first response.
fn age_of(fleet: &Value) -> Duration {
    let seconds = match fleet["confirmedSecondsAgo"].as_u64() {
        Some(59) => 15,
        other => other.unwrap_or_default(),
    };
    Duration::from_secs(seconds)
}

fn share(text: &Value) -> Share {
    text.as_str().unwrap().parse().unwrap()
}

/// Planner table of a fleet, with the shares of zones; `None` if its policy has manual shares.
fn planned(fleet: &Value) -> Option<RegionTable> {
    let planned = fleet["planned"].as_object()?;
    let to = planned["to"].as_object().unwrap().iter();
    let to = to.map(|(region, part)| (Region::new(region).unwrap(), share(part))).collect();
    let zones = planned["zones"].as_object().unwrap().iter();
    let zones: BTreeMap<Zone, Share> =
        zones.map(|(zone, part)| (Zone::new(zone).unwrap(), share(part))).collect();
    let from = Zone::new(fleet["caller"]["zone"].as_str().unwrap()).unwrap();
    let shares = RegionShares { to, dropped: Share::NONE };
    let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
    Some(RegionTable { zones: [(from, zones)].into(), ..RegionTable::new(shares, PLANNED) })
}

/// Sets the age of all records saved by an agent, and replaces the table by a planner table.
#[allow(clippy::disallowed_methods, reason = "file ages are relative to the wall clock")]
fn age(state: &Path, fleet: &Value) {
    let at = SystemTime::now() - age_of(fleet);
    let cache = Cache::open(state).unwrap();
    let mut copies = cache.load_all().unwrap();
    let table = copies.iter_mut().find(|copy| copy.prefix == Prefix::from(&table_key())).unwrap();
    let by_hand = |(_, entry): &(_, Entry)| {
        let Record::RegionTable(table) = record_encoding::decode(&table_key(), &entry.value).unwrap() else {
            panic!("no table")
        };
        RegionTable { origin: PLANNED, ..table }
    };
    let record = planned(fleet).unwrap_or_else(|| by_hand(&table.entries[0]));
    record.validate().unwrap();
    let value = Bytes::from(record_encoding::encode(&Record::RegionTable(record)).to_vec());
    let entry = Entry { value, revision: table.revision.number };
    table.entries = vec![(table_key().to_string().into(), entry)];
    let aged: Vec<SavedCopy> = copies.into_iter().map(|copy| SavedCopy { at, ..copy }).collect();
    cache.save_all(&aged).unwrap();
    // The checkpoint states that all copies together were current at a later time.
    fs::remove_file(state.join("checkpoint")).ok();
}

/// Whether the agent has saved the fleet's endpoints in their expected states.
fn is_saved(world: &World, fleet: &Value) -> bool {
    let copies = Cache::read_only(world.path("agent-state")).load_all().unwrap();
    let has_table = copies.iter().any(|copy| copy.prefix == Prefix::from(&table_key()));
    let records = copies.iter().flat_map(|copy| &copy.entries).filter_map(|(key, entry)| {
        let key = RecordKey::parse(key).ok()?;
        record_encoding::decode(&key, &entry.value).ok()
    });
    let mut states = BTreeMap::new();
    for record in records {
        if let Record::Endpoint(endpoint) = record {
            states.insert(endpoint.instance.to_string(), endpoint.state.as_str());
        }
    }
    let endpoints = fleet["endpoints"]["endpoints"].as_array().unwrap();
    has_table
        && endpoints.iter().all(|endpoint| {
            states.get(endpoint["instance"].as_str().unwrap()).copied() == endpoint["state"].as_str()
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_and_lookaside_match_vectors_of_planned_region_tables() {
    let _machine = beside_others().await;
    for case in cases(false) {
        let fleet = fleet_of(&case);
        let mut world = World::start(&documents(&fleet)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(answer(listener));
        let _servers = register(&world, &fleet, address).await;
        let zone = fleet["caller"]["zone"].as_str();
        {
            let proxy = Proxy::start(&world).await;
            let lookaside = Lookaside::start(&world, "").await;
            until("the agent has what they follow", async || {
                pick(&proxy, &case["calls"][0]).await;
                leased(&lookaside, &case["calls"][0]).await;
                is_saved(&world, &fleet)
            })
            .await;
        }
        world.goes_dark(zone, |state| age(state, &fleet)).await;
        let proxy = Proxy::start(&world).await;
        // A lookaside does not know the zones of its callers.
        let lookaside = if zone.is_none() { Some(Lookaside::start(&world, "").await) } else { None };
        decide(&case, &proxy, lookaside.as_ref()).await;
        serving.abort();
    }
}
