use fairmesh_model::{KeyRange, Replica, ReplicaState, Shard, ShardKey, Zone};
use proptest::prelude::*;

use super::*;

fn role() -> Role {
    "primary".parse().unwrap()
}

fn region() -> Region {
    "eu".parse().unwrap()
}

fn name(server: usize) -> InstanceId {
    format!("s{server}").parse().unwrap()
}

/// Servers of a region with their capacities, and shards with their work and the servers that hold them.
#[derive(Clone, Debug)]
struct Fleet {
    servers: Vec<Server>,
    map: ShardMap,
    works: WorkByShard,
}

impl Fleet {
    fn new(powers: &[u32], shards: &[(Work, &[usize])]) -> Self {
        let server = |(i, power): (usize, &u32)| Server {
            instance: name(i),
            region: region(),
            zone: None,
            power: *power,
            accepts: true,
            rest: 0,
        };
        let shard = |(i, (_, holders)): (u32, &(Work, &[usize]))| Shard {
            id: ShardId(i),
            start: ShardKey(i.into()),
            replicas: holders.iter().map(|holder| copy(*holder)).collect(),
        };
        let works = (0..).zip(shards).map(|(i, (work, _))| ((ShardId(i), role(), region()), *work));
        Self {
            servers: powers.iter().enumerate().map(server).collect(),
            works: works.collect(),
            map: ShardMap {
                version: 1,
                interval: KeyRange::ALL,
                shards: (0..).zip(shards).map(shard).collect(),
            },
        }
    }

    fn plan(&self, options: &PlanOptions) -> MovePlan {
        let input = PlanInput {
            map: &self.map,
            servers: self.servers.clone(),
            works: self.works.clone(),
            moving: BTreeSet::new(),
        };
        plan(&input, options)
    }

    /// Returns the fleet after `moves`. Each move must be possible when its turn comes.
    fn after(&self, moves: &[ShardMove]) -> Self {
        let mut fleet = self.clone();
        for shard_move in moves {
            let shard = fleet.map.shards.iter_mut().find(|shard| shard.id == shard_move.shard).unwrap();
            if let Some(from) = &shard_move.from {
                let before = shard.replicas.len();
                shard.replicas.retain(|copy| copy.instance != *from);
                assert_eq!(shard.replicas.len() + 1, before, "{shard_move}: it is there");
            }
            if let Some(to) = &shard_move.to {
                assert!(
                    shard.replicas.iter().all(|copy| copy.instance != *to),
                    "{shard_move}: it is not there yet"
                );
                shard.replicas.push(Replica { instance: to.clone(), ..copy(0) });
            }
            assert!(!shard.replicas.is_empty(), "{shard_move}: a copy serves");
        }
        fleet
    }
}

fn copy(holder: usize) -> Replica {
    Replica { instance: name(holder), region: region(), role: role(), state: ReplicaState::Serving }
}

fn options() -> PlanOptions {
    PlanOptions::new(0, 0, BTreeSet::new()).unwrap()
}

fn replicating() -> PlanOptions {
    PlanOptions::new(0, 0, BTreeSet::from([role()])).unwrap()
}

fn texts(plan: &MovePlan) -> Vec<String> {
    plan.moves.iter().map(ToString::to_string).collect()
}

/// The load of the fullest server, in thousandths of its fair share.
fn worst(servers: &[Forecast], load: impl Fn(&Forecast) -> Work) -> u64 {
    servers.iter().map(|server| load(server) * 1000 / server.fair.max(1)).max().unwrap_or(0)
}

/// Coefficient of variation of the load of servers with equal power, in thousandths.
fn variation(servers: &[Forecast], load: impl Fn(&Forecast) -> Work) -> u64 {
    let loads: Vec<f64> = servers.iter().map(|server| load(server) as f64).collect();
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64;
    (variance.sqrt() / mean * 1000.0).round() as u64
}

#[test]
fn overloaded_server_gives_its_largest_fitting_shard_away() {
    // The work is 600, so 200 for each server. s0 has 340 and may have 250. The shard with 150 fits on no other
    // server (at most 225); the shard with 100 does.
    let fleet =
        Fleet::new(&[1000, 1000, 1000], &[(150, &[0]), (100, &[0]), (90, &[0]), (140, &[1]), (120, &[2])]);
    let plan = fleet.plan(&options());
    // s2 takes the shard with 100 and then has 220. s0 then has 240, above its goal of 225, but no further shard fits
    // elsewhere.
    assert_eq!(texts(&plan), ["shard 1 (primary) from s0 to s2"]);
    let loads: Vec<_> = plan.servers.iter().map(|s| (s.before, s.after, s.fair)).collect();
    assert_eq!(loads, [(340, 240, 200), (140, 140, 200), (120, 220, 200)]);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}

#[test]
fn shard_load_imbalance_below_threshold_causes_no_moves() {
    let fleet = Fleet::new(&[1000, 1000], &[(60, &[0]), (60, &[0]), (80, &[1])]);
    assert_eq!(fleet.plan(&options()).moves, [], "120 of a fair share of 100");
    let strict = PlanOptions::new(110, 0, BTreeSet::new()).unwrap();
    assert_eq!(fleet.plan(&strict).moves, [], "80 + 60 would be worse");
}

#[test]
fn server_with_more_capacity_may_hold_more_shard_load() {
    // The work is 400; s0 has twice the capacity of s1, so its fair share is 267.
    let shards: &[(Work, &[usize])] = &[(110, &[0]), (150, &[0]), (140, &[1])];
    let fleet = Fleet::new(&[2000, 1000], shards);
    assert_eq!(fleet.plan(&options()).moves, []);
    let weak = Fleet::new(&[1000, 2000], shards);
    assert_eq!(texts(&weak.plan(&options())), ["shard 1 (primary) from s0 to s1"]);
}

#[test]
fn hot_shard_gets_more_copies_only_in_replicable_roles() {
    // The work is 480, so 96 for each server. No server may have more than 120 or be filled beyond 107.
    let shards: &[(Work, &[usize])] = &[(400, &[0]), (20, &[1]), (20, &[2]), (20, &[3]), (20, &[4])];
    let fleet = Fleet::new(&[1000; 5], shards);
    let plan = fleet.plan(&options());
    assert_eq!(plan.moves, []);
    assert_eq!(plan.notes, [PlanNote::Hot { shard: ShardId(0), role: role(), may_replicate: false }]);
    assert!(plan.notes[0].to_string().contains("--replicate primary"));

    // Four copies with 100 do not fit beside 20; five copies with 80 do.
    let plan = fleet.plan(&replicating());
    let to = |server: usize| format!("another copy of shard 0 (primary) to s{server}");
    assert_eq!(texts(&plan), [1, 2, 3, 4].map(to));
    assert!(plan.servers.iter().all(|server| server.after <= 100), "{:?}", plan.servers);

    let plan = fleet.plan(&PlanOptions { max_moves: 3, ..replicating() });
    assert_eq!(plan.moves, [], "too few copies would overload one more server");
    assert_eq!(plan.notes, [PlanNote::More], "the maximum number of moves is the cause");

    // No number of copies fits beside these shards.
    let full = Fleet::new(&[1000; 2], &[(400, &[0]), (200, &[1])]);
    let plan = full.plan(&replicating());
    assert_eq!(plan.notes, [PlanNote::Hot { shard: ShardId(0), role: role(), may_replicate: true }]);
}

#[test]
fn unneeded_extra_shard_copies_are_dropped() {
    let shards: &[(Work, &[usize])] = &[(60, &[0, 1, 2]), (100, &[0]), (100, &[1]), (100, &[2])];
    let fleet = Fleet::new(&[1000; 3], shards);
    assert_eq!(fleet.plan(&options()).moves, [], "how many copies there are is the service's own affair");
    let plan = fleet.plan(&replicating());
    assert_eq!(
        texts(&plan),
        ["a copy of shard 0 (primary) away from s2"],
        "one of the others would have more than half of what is too much"
    );
    // Only copies above the median number are dropped.
    let cold = Fleet::new(&[1000; 3], &[(3, &[0, 1]), (100, &[1, 2]), (100, &[2, 0])]);
    assert_eq!(cold.plan(&replicating()).moves, []);
}

#[test]
fn moved_shard_copies_respect_servers_roles_and_zones() {
    let shards: &[(Work, &[usize])] =
        &[(40, &[0, 1]), (20, &[0]), (20, &[0]), (20, &[0]), (20, &[0]), (0, &[1])];
    let mut fleet = Fleet::new(&[1000; 3], shards);
    for (server, zone) in [(0, "a"), (1, "b"), (2, "b")] {
        fleet.servers[server].zone = Some(Zone::new(zone).unwrap());
    }
    // Shard 0 may move neither to s1, which holds it, nor to s2, which is in zone b as well.
    let moves = fleet.plan(&options()).moves;
    assert!(!moves.is_empty() && moves.iter().all(|shard_move| shard_move.shard != ShardId(0)), "{moves:?}");
    // A server that serves only in another role does not receive the copy.
    fleet.map.shards[5].replicas = vec![Replica { role: "log".parse().unwrap(), ..copy(2) }];
    let to = |plan: MovePlan| {
        plan.moves.into_iter().filter_map(|shard_move| shard_move.to).collect::<BTreeSet<_>>()
    };
    assert_eq!(to(fleet.plan(&options())), BTreeSet::from([name(1)]));
    // A draining server receives nothing either.
    fleet.servers[1].accepts = false;
    let plan = fleet.plan(&options());
    assert_eq!((plan.moves, plan.notes), (vec![], vec![PlanNote::Stuck { instance: name(0) }]));
}

#[test]
fn shard_moves_in_progress_are_unchanged_and_counted() {
    let fleet = Fleet::new(&[1000; 2], &[(100, &[0]), (90, &[0]), (10, &[1])]);
    let moving = BTreeSet::from([ShardId(0)]);
    let input =
        PlanInput { map: &fleet.map, servers: fleet.servers.clone(), works: fleet.works.clone(), moving };
    assert_eq!(texts(&plan(&input, &options())), ["shard 1 (primary) from s0 to s1"]);
}

#[test]
fn skewed_service_is_balanced_within_threshold_by_few_moves() {
    // 20 servers and 400 shards. The work falls with the shard's rank, and shards are assigned in blocks, so that the
    // hottest shards share servers.
    let shards: Vec<(Work, [usize; 1])> =
        (0..400).map(|i| (1_000_000 / (i + 10), [i as usize / 20])).collect();
    let shards: Vec<(Work, &[usize])> = shards.iter().map(|(work, holder)| (*work, &holder[..])).collect();
    let fleet = Fleet::new(&[1000; 20], &shards);
    let many = PlanOptions { max_moves: 1000, ..options() };
    let plan = fleet.plan(&many);
    assert!(worst(&plan.servers, |s| s.after) <= 1250, "{:?}", plan.notes);
    let (before, after) = (variation(&plan.servers, |s| s.before), variation(&plan.servers, |s| s.after));
    // The sharded services of the paper are at 440 in the median and 610 at the 95th percentile (ServiceRouter
    // §4.3.1).
    assert!(before > 1000 && after < 440, "{before} → {after}");
    assert!(plan.moves.len() < 60, "{} moves of 400 shards; {before} → {after}", plan.moves.len());
    println!("{} moves, CV {before} → {after}", plan.moves.len());
}

fn fleets() -> impl Strategy<Value = Fleet> {
    let powers = prop::collection::vec(prop_oneof![Just(1000u32), 500u32..3000], 1..8);
    powers
        .prop_flat_map(|powers| {
            let servers = powers.len();
            let holders = prop::collection::btree_set(0..servers, 1..=servers.min(3));
            let work = prop_oneof![0u64..100, 0u64..10_000, Just(0)];
            let shards = prop::collection::vec((work, holders), 1..40);
            (Just(powers), shards, prop::collection::vec(any::<bool>(), servers))
        })
        .prop_map(|(powers, shards, zoned)| {
            let shards: Vec<(Work, Vec<usize>)> =
                shards.into_iter().map(|(work, holders)| (work, holders.into_iter().collect())).collect();
            let shards: Vec<(Work, &[usize])> =
                shards.iter().map(|(work, holders)| (*work, &holders[..])).collect();
            let mut fleet = Fleet::new(&powers, &shards);
            for (server, zoned) in fleet.servers.iter_mut().zip(zoned) {
                server.zone = zoned.then(|| Zone::new("a").unwrap());
            }
            fleet
        })
}

fn any_terms() -> impl Strategy<Value = PlanOptions> {
    (101u32..300, 1u32..40, any::<bool>()).prop_map(|(threshold, moves, replicates)| {
        let replicate = if replicates { BTreeSet::from([role()]) } else { BTreeSet::new() };
        PlanOptions::new(threshold, moves, replicate).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn shard_balance_plan_is_executable_and_matches_its_forecast(fleet in fleets(), options in any_terms()) {
        let made = fleet.plan(&options);
        prop_assert!(made.moves.len() <= options.max_moves);
        // Every move is possible and leads to the forecast loads.
        let again = fleet.after(&made.moves).plan(&options);
        for (foreseen, found) in made.servers.iter().zip(&again.servers) {
            prop_assert_eq!(foreseen.after, found.before);
        }
        if options.replicate.is_empty() {
            prop_assert!(made.moves.iter().all(|shard_move| shard_move.from.is_some() && shard_move.to.is_some()));
        }
    }

    #[test]
    fn shard_balance_plan_overloads_no_server(
        fleet in fleets(),
        options in any_terms(),
    ) {
        let made = fleet.plan(&options);
        for server in &made.servers {
            let limit = percent(server.fair, options.threshold.into());
            prop_assert!(server.after <= limit.max(server.before), "{server:?}");
        }
        // Dropping a copy may fill another server, but never beyond the goal.
        let goal = 10 * (100 + u64::from(options.threshold)) / 2;
        prop_assert!(worst(&made.servers, |s| s.after) <= worst(&made.servers, |s| s.before).max(goal));
    }

    #[test]
    fn shard_balance_plan_of_balanced_fleet_is_empty(fleet in fleets(), options in any_terms()) {
        let made = fleet.plan(&options);
        let again = fleet.after(&made.moves).plan(&options);
        if made.moves.len() < options.max_moves {
            prop_assert_eq!(texts(&again), Vec::<String>::new());
        }
    }

    #[test]
    fn no_shard_moves_are_planned_without_overload(fleet in fleets(), threshold in 101u32..300) {
        let options = PlanOptions::new(threshold, 0, BTreeSet::new()).unwrap();
        let made = fleet.plan(&options);
        let is_overloaded = |s: &Forecast| s.before > percent(s.fair, threshold.into());
        prop_assert!(made.moves.is_empty() || made.servers.iter().any(is_overloaded));
    }
}
