//! How a process takes over a store over several clusters.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::StoreId;
use tokio::{task::AbortHandle, time::Instant};

use super::{
    super::{
        EtcdConfig,
        client::{Again, Client},
        draw,
        failure::Failure,
        follow::read_state,
        hold::Hold,
        layout::{self, Layout, Mark},
        proto::{KeyValue, TxnRequest, compare},
        shared::Shared,
    },
    change::{self, Change},
    cluster::{Cluster, Fence, Patience, Verdict},
    core::{Core, GAP, Routes},
    intent,
    map::{HOME, Part, PartitionMap},
};
use crate::{Place, StoreError};

/// Where the map of parts stands.
pub(super) const MAP: &str = "map";
/// Whose turn it is to write a part that is not the home.
pub(super) const TURN: &str = "turn";
/// How long it may take to carry out one thing that was left undone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A key of `meta` with what is there, by its name.
pub(super) type Meta = HashMap<String, KeyValue>;

/// Gives up after a while: what was left undone stays so, and the next process tries again.
pub(super) struct Until(pub(super) Instant);

impl Patience for Until {
    fn unsure(&mut self, _problem: &str) -> bool {
        Instant::now() > self.0
    }
}

pub(super) fn refused(place: &Place, problem: &str) -> StoreError {
    StoreError::Refused { place: place.clone(), problem: problem.into() }
}

/// The home, which is created where there is none.
pub(super) async fn home(config: &EtcdConfig) -> Result<Arc<Shared>, StoreError> {
    let (client, layout) = reach(config)?;
    let reading = |failure: Failure| failure.reading(&config.address.place());
    let mut state = read_state(&client, &layout).await.map_err(reading)?;
    if state.mark.is_none() {
        let mark = layout::mark(Mark::Part { id: draw(&client)?, token: 0 });
        let creation = TxnRequest {
            compare: vec![change::absent(layout.store())],
            success: vec![
                change::put(layout.store(), mark),
                change::put(layout.last(), Bytes::new()),
                change::put(layout.meta(MAP), PartitionMap::home().encode().into()),
            ],
            failure: Vec::new(),
        };
        // Twice does no harm: the second finds what the first, or somebody else's, created.
        client.txn(Again::Always, creation).await.map_err(reading)?;
        state = read_state(&client, &layout).await.map_err(reading)?;
    }
    let mark = state.mark.unwrap_or_default();
    match layout::read_mark(&mark, &client.place)? {
        Mark::Part { id, token: 0 } => {
            let mut shared = Shared::new(client, layout, id, mark, 0);
            shared.traces_holds = true;
            Ok(Arc::new(shared))
        }
        Mark::Part { .. } => Err(refused(
            &client.place,
            "the keys below this root are one part of a store over several clusters; name the home of that store",
        )),
        Mark::Whole(_) => Err(refused(
            &client.place,
            "this store is in one cluster; start the control plane once with --partitioned",
        )),
    }
}

fn reach(config: &EtcdConfig) -> Result<(Client, Layout), StoreError> {
    Ok((Client::new(config)?, Layout::of_part(config.address.root())))
}

/// Waits for the store and holds it; answers the lease and what renews it.
pub(super) async fn hold(
    home: &Arc<Shared>,
    who: &str,
    term: Duration,
) -> Result<(Arc<AtomicI64>, AbortHandle), StoreError> {
    let hold = Hold::take(home, who, term).await.map_err(|failure| failure.reading(&home.client.place))?;
    let lease = Arc::new(AtomicI64::new(hold.lease()));
    let keeper = tokio::spawn(hold.keep(home.clone(), lease.clone())).abort_handle();
    Ok((lease, keeper))
}

/// Takes over every part, and finishes what was left undone. The home is held.
pub(super) async fn open(home: Arc<Shared>, config: EtcdConfig) -> Result<Core, StoreError> {
    let place = &home.client.place;
    let (client, layout) = reach(&config)?;
    let meta = meta(&client, &layout).await.map_err(|failure| failure.reading(place))?;
    let map = meta.get(MAP).and_then(|kv| std::str::from_utf8(&kv.value).ok()).and_then(PartitionMap::decode);
    let map = map.ok_or_else(|| {
        refused(
            place,
            "the map of its parts cannot be read; put an older copy back, or start a later release",
        )
    })?;
    let fence = Fence::Holder(home.clone());
    let mut gaps = Vec::new();
    let mut clusters = vec![Arc::new(Cluster::new((client, layout), home.mark.clone(), fence, &meta))];
    gaps.extend(meta.contains_key(GAP).then_some(HOME));
    for (part, Part { token, address }) in map.parts.iter().enumerate() {
        let Some(address) = address.clone() else { continue };
        let config = EtcdConfig { address, ..config.clone() };
        let mark = layout::mark(Mark::Part { id: home.id, token: *token });
        let (cluster, gap) = take(&config, mark, home.held()).await?;
        clusters.push(Arc::new(cluster));
        gaps.extend(gap.then_some(part));
    }
    let routes = Routes { map, clusters };
    let mut newest = routes.clusters.iter().map(|cluster| cluster.newest()).max().unwrap_or(0);
    for (name, kv) in meta {
        if let Some(number) = name.strip_prefix("intent/").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            newest += 1;
            carry_out(&routes, (number, newest), kv.value).await?;
        }
    }
    if !gaps.is_empty() {
        newest += 1;
        cross_out(&routes, &gaps, newest).await?;
    }
    home.history.skip_to(newest);
    Ok(Core::new(home, config, routes, newest))
}

/// Takes a part over: whoever held the home before can write nothing there any more.
pub(super) async fn take(config: &EtcdConfig, mark: Bytes, turn: u64) -> Result<(Cluster, bool), StoreError> {
    let (client, layout) = reach(config)?;
    let place = client.place.clone();
    let reading = |failure: Failure| failure.reading(&place);
    let text = turn.to_be_bytes().to_vec();
    let stamp = TxnRequest {
        compare: vec![
            change::value(layout.store(), compare::Result::Equal, mark.to_vec()),
            change::value(layout.meta(TURN), compare::Result::Less, text.clone()),
        ],
        success: vec![change::put(layout.meta(TURN), text.clone().into())],
        failure: Vec::new(),
    };
    client.txn(Again::Always, stamp).await.map_err(reading)?;
    let meta = meta(&client, &layout).await.map_err(reading)?;
    if meta.get("store").is_none_or(|kv| kv.value != mark) {
        return Err(refused(
            &place,
            "this part of the store is not there, or was replaced; put a copy of it back",
        ));
    }
    if meta.get(TURN).is_none_or(|kv| kv.value[..] != text[..]) {
        let problem = "another process took over meanwhile, or the home went back to an older copy: then start once \
                       with --new-store-id";
        return Err(refused(&place, problem));
    }
    let gap = meta.contains_key(GAP);
    Ok((Cluster::new((client, layout), mark, Fence::Turn(turn), &meta), gap))
}

/// Everything of a part but its records.
pub(super) async fn meta(client: &Client, layout: &Layout) -> Result<Meta, Failure> {
    let start = layout.meta("").len();
    let answer = client.range(layout.ask_state()).await?;
    let named = answer
        .kvs
        .into_iter()
        .map(|kv| (String::from_utf8_lossy(&kv.key[start.min(kv.key.len())..]).into_owned(), kv));
    Ok(named.collect())
}

/// Carries out what a process committed and left undone. Under a number of its own: of the former one readers may have
/// heard, and those that did not have to be told.
async fn carry_out(routes: &Routes, (number, anew): (u64, u64), text: Bytes) -> Result<(), StoreError> {
    let home = &routes.clusters[HOME];
    let unreadable =
        || refused(&home.client.place, "what was left undone cannot be read; start a later release");
    let mut parts = BTreeMap::<usize, Vec<_>>::new();
    for (part, op) in intent::decode(text).ok_or_else(unreadable)? {
        parts.entry(part).or_default().push(op);
    }
    tracing::info!(
        number,
        parts = parts.len(),
        "a batch that was committed and not carried out everywhere is now"
    );
    for (part, ops) in parts {
        let cluster = routes.clusters.get(part).ok_or_else(unreadable)?;
        settle(cluster, anew, Change::of(&cluster.layout, &ops, anew)).await?;
    }
    settle(home, anew, Change::raw(vec![(intent::key(&home.layout, number), None)])).await
}

/// Numbers were passed over, and what they became was not told: readers that have the newest one may lack it, so that this
/// process begins one number later, and they take a snapshot.
async fn cross_out(routes: &Routes, parts: &[usize], number: u64) -> Result<(), StoreError> {
    for part in parts {
        let cluster = &routes.clusters[*part];
        settle(cluster, number, Change::raw(vec![(cluster.layout.meta(GAP), None)])).await?;
    }
    Ok(())
}

async fn settle(cluster: &Arc<Cluster>, number: u64, change: Change) -> Result<(), StoreError> {
    let mut turn = cluster.turn().await;
    let verdict = turn.commit(number, &change, &mut Until(Instant::now() + PATIENCE)).await;
    let place = &cluster.client.place;
    match verdict.map_err(|failure| failure.reading(place))? {
        Verdict::Written => Ok(()),
        _ => Err(refused(place, "another process took over meanwhile; start again")),
    }
}

/// Gives every part another id, the home last: cut short, it can be done again.
pub(super) async fn renew_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
    let before = home(config).await?;
    let reading = |failure: Failure| failure.reading(&before.client.place);
    let (client, layout) = reach(config)?;
    let meta = meta(&client, &layout).await.map_err(reading)?;
    let map = meta.get(MAP).and_then(|kv| std::str::from_utf8(&kv.value).ok()).and_then(PartitionMap::decode);
    let map = map.ok_or_else(|| refused(&client.place, "the map of its parts cannot be read"))?;
    let id = draw(&client)?;
    for Part { token, address } in map.parts.iter().rev() {
        let config = match address.clone() {
            Some(address) => EtcdConfig { address, ..config.clone() },
            None => config.clone(),
        };
        remark(&config, *token, id).await?;
    }
    Ok(id)
}

async fn remark(config: &EtcdConfig, token: u64, id: StoreId) -> Result<(), StoreError> {
    let (client, layout) = reach(config)?;
    let reading = |failure: Failure| failure.reading(&client.place);
    let found = read_state(&client, &layout).await.map_err(reading)?.mark.unwrap_or_default();
    match layout::read_mark(&found, &client.place)? {
        Mark::Part { token: there, .. } if there == token => {}
        _ => {
            return Err(refused(&client.place, "this part of the store was replaced; put a copy of it back"));
        }
    }
    let renewal = TxnRequest {
        compare: vec![change::value(layout.store(), compare::Result::Equal, found.to_vec())],
        success: vec![
            change::put(layout.store(), layout::mark(Mark::Part { id, token })),
            // The home may count from an earlier time now.
            change::put(layout.meta(TURN), 0_u64.to_be_bytes().to_vec().into()),
        ],
        failure: Vec::new(),
    };
    match client.txn(Again::Unsent, renewal).await.map_err(reading)?.succeeded {
        true => Ok(()),
        false => Err(refused(&client.place, "somebody else gave it a new id at the same time; try again")),
    }
}
