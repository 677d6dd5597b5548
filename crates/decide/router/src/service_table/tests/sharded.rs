//! Calls of sharded services by key.

use super::*;

/// Returns a role by number.
pub(super) fn role(i: usize) -> Role {
    Role::new(["primary", "secondary", "unheard"][i]).unwrap()
}

/// Returns a map over `[0, 1000)` with ten shards whose copies are at random endpoints.
pub(super) fn any_map(endpoints: &[Endpoint], random: &mut Generator) -> ShardMap {
    let mut shards = Vec::new();
    for i in 0..10 {
        let mut replicas: Vec<Replica> = Vec::new();
        for _ in 0..random.below(60).min(random.below(60)) {
            let pick = random.below(endpoints.len() as u64 + 1) as usize;
            let state = [
                ReplicaState::Starting,
                ReplicaState::Serving,
                ReplicaState::Serving,
                ReplicaState::Stopping,
            ];
            let instance = match endpoints.get(pick) {
                Some(endpoint) => endpoint.instance.clone(),
                None => InstanceId::new("unregistered").unwrap(),
            };
            let role = role(random.below(2) as usize);
            if !replicas.iter().any(|replica| replica.instance == instance && replica.role == role) {
                let state = state[random.below(4) as usize];
                replicas.push(Replica { instance, region: region("eu"), role, state });
            }
        }
        shards.push(Shard { id: ShardId(100 + i), start: ShardKey(u128::from(i) * 100), replicas });
    }
    let interval = KeyRange::new(ShardKey(0), Some(ShardKey(1000))).unwrap();
    ShardMap { version: 4, interval, shards }
}

/// The map of the paper, in which shard 5 holds [500, 900). Copies are `(shard, instance, role, state)`.
fn fleet(endpoints: &[(&str, &str)], copies: &[(u32, &str, &str, ReplicaState)]) -> Fleet {
    let mut fleet = Fleet::replicated(endpoints);
    fleet.service.kind = ServiceKind::Sharded;
    let shards = [0, 100, 200, 300, 400, 500].into_iter().zip(0..).map(|(start, i)| Shard {
        id: ShardId(i),
        start: ShardKey(start),
        replicas: copies
            .iter()
            .filter(|copy| copy.0 == i)
            .map(|(_, instance, role, state)| Replica {
                instance: InstanceId::new(instance).unwrap(),
                region: region("eu"),
                role: Role::new(role).unwrap(),
                state: *state,
            })
            .collect(),
    });
    let interval = KeyRange::new(ShardKey(0), Some(ShardKey(900))).unwrap();
    fleet.shards =
        Some(Arc::new(ShardTable::compile(&ShardMap { version: 7, interval, shards: shards.collect() })));
    fleet
}

fn holders(table: &ServiceTable, key: u128, role: Option<&str>) -> Result<BTreeSet<String>, Box<PickError>> {
    let role = role.map(|role| Role::new(role).unwrap());
    let params = PickParams { key: Some(ShardKey(key)), role: role.as_ref(), ..PickParams::default() };
    (0..100).map(|seed| table.pick(&params, 0, seed).map(|picked| id(table, &picked))).collect()
}

use ReplicaState::{Serving, Starting, Stopping};

#[test]
fn keyed_call_goes_to_shard_copy_with_requested_role() {
    let copies =
        [(5, "a", "primary", Serving), (5, "b", "secondary", Serving), (5, "c", "secondary", Serving)];
    let table = fleet(&[("a", "eu"), ("b", "eu"), ("c", "eu")], &copies).compile(None);
    assert_eq!(holders(&table, 618, Some("primary")), Ok(names(&["a"])));
    assert_eq!(holders(&table, 618, Some("secondary")), Ok(names(&["b", "c"])));
    assert_eq!(holders(&table, 618, None), Ok(names(&["a", "b", "c"])));
    let picked = table.pick(&PickParams { key: Some(ShardKey(618)), ..PickParams::default() }, 0, 1).unwrap();
    assert_eq!((picked.shard, picked.map_version), (Some(ShardId(5)), 7));
}

#[test]
fn nearest_shard_copy_with_requested_role_is_used() {
    let copies =
        [(5, "a", "secondary", Serving), (5, "b", "secondary", Serving), (5, "c", "primary", Serving)];
    let table = fleet(&[("a", "eu"), ("b", "us"), ("c", "asia")], &copies).compile(None);
    assert_eq!(holders(&table, 618, Some("secondary")), Ok(names(&["a"])));
    assert_eq!(holders(&table, 618, Some("primary")), Ok(names(&["c"])));
}

#[test]
fn picks_follow_states_of_shard_copies_during_move() {
    let endpoints = [("x", "eu"), ("y", "eu")];
    let at = |x: Option<ReplicaState>, y: Option<ReplicaState>| {
        let copies: Vec<_> = [("x", x), ("y", y)]
            .into_iter()
            .filter_map(|(name, state)| state.map(|state| (5, name, "primary", state)))
            .collect();
        holders(&fleet(&endpoints, &copies).compile(None), 618, Some("primary"))
    };
    assert_eq!(at(Some(Serving), Some(Starting)), Ok(names(&["x"])));
    assert_eq!(at(Some(Stopping), Some(Serving)), Ok(names(&["y"])));
    assert_eq!(at(Some(Stopping), Some(Starting)), Ok(names(&["x"])), "rather than fail");
    assert!(at(None, Some(Starting)).is_err());
}

#[test]
fn shard_pick_errors_name_their_cause() {
    let table =
        fleet(&[("a", "eu")], &[(5, "a", "primary", Serving), (4, "gone", "primary", Serving)]).compile(None);
    let interval = KeyRange::new(ShardKey(0), Some(ShardKey(900))).unwrap();
    let outside = PickError::KeyOutside { key: ShardKey(900), interval };
    assert_eq!(holders(&table, 900, None), Err(outside.into()));
    let secondary = Some(Role::new("secondary").unwrap());
    assert_eq!(
        holders(&table, 618, Some("secondary")),
        Err(PickError::NoReplica { shard: ShardId(5), role: secondary }.into())
    );
    assert_eq!(
        holders(&table, 450, None),
        Err(PickError::NoReplica { shard: ShardId(4), role: None }.into())
    );
    assert_eq!(table.pick(&PickParams::default(), 0, 1), Err(PickError::KeyMissing.into()));
    let mut unmapped = Fleet::many(ServiceKind::Sharded, 3);
    unmapped.shards = None;
    assert_eq!(holders(&unmapped.compile(None), 1, None), Err(PickError::NoShardMap.into()));
}

#[test]
fn endpoint_changes_reuse_compiled_shard_map() {
    let copies = [(5, "a", "primary", Serving), (5, "b", "primary", Serving)];
    let mut fleet = fleet(&[("a", "eu")], &copies);
    let first = fleet.compile(None);
    assert_eq!(holders(&first, 618, None), Ok(names(&["a"])));
    fleet.endpoints.push(endpoint("b", "eu"));
    let second = fleet.compile(Some(&first));
    assert_eq!(holders(&second, 618, None), Ok(names(&["a", "b"])));
    assert!(Arc::ptr_eq(first.shards().unwrap(), second.shards().unwrap()));
}

#[test]
fn client_uses_subset_of_copies_if_shard_has_very_many() {
    let names: Vec<String> = (0..200).map(|i| format!("i{i}")).collect();
    let endpoints: Vec<_> = names.iter().map(|name| (name.as_str(), "eu")).collect();
    let copies: Vec<_> = names.iter().map(|name| (5, name.as_str(), "cache", Serving)).collect();
    let mut fleet = fleet(&endpoints, &copies);
    let mine = holders(&fleet.compile(None), 618, None).unwrap();
    assert!(mine.len() <= fairmesh_balancer::InlineCandidates::CAPACITY);
    assert_eq!(holders(&fleet.compile(None), 618, None), Ok(mine.clone()));
    fleet.client = 1;
    assert_ne!(holders(&fleet.compile(None), 618, None), Ok(mine));
}
