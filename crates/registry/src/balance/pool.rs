//! The servers of one region and the work of their shards, as the planner shifts it about. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fairmesh_model::{InstanceId, Region, ReplicaState, Role, ShardId, ShardMap, ShardMove, Zone};

/// How much work there is: microseconds that calls are under way, a second, on a host of ordinary speed. A million is
/// one call at a time without a pause.
pub type Work = u64;

/// A server as the planner is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its name.
    pub instance: InstanceId,
    /// Where it runs; work stays in its region.
    pub region: Region,
    /// The failure domain, where one is known.
    pub zone: Option<Zone>,
    /// What it can do beside the others, in thousandths: its weight times the speed of its host; at least 1.
    pub power: u32,
    /// Whether it may be given shards.
    pub takes: bool,
    /// Work of shards that it does not tell apart; it stays where it is.
    pub rest: Work,
}

/// The work of all copies of a shard in one role and region.
pub type Works = BTreeMap<(ShardId, Role, Region), Work>;

/// A server within its region.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    pub(super) before: Work,
    pub(super) load: Work,
    /// Its share of all work, by its power.
    pub(super) fair: Work,
    /// The groups of which it holds a copy, once each.
    groups: BTreeSet<usize>,
}

/// The copies of a shard in one role and region. Callers share their calls among them, so each has the same part.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) shard: ShardId,
    pub(super) role: Role,
    work: Work,
    /// Who serves it, of those whose load is known.
    pub(super) holders: Vec<usize>,
    /// Members that hold the shard in whatever role and state: two copies on one server help nobody.
    taken: BTreeSet<usize>,
    /// Whether it stays as it is: something moves already.
    still: bool,
    /// How many copies half of the shards have at least in this role.
    pub(super) usual: usize,
}

/// One region.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// By name.
    pub(super) members: Vec<Member>,
    pub(super) groups: Vec<Group>,
    /// Who serves in each role already; whoever holds nothing may serve in any.
    in_role: BTreeMap<Role, BTreeSet<usize>>,
}

impl Group {
    /// The part of each of so many copies, rounded up.
    pub(super) fn part_of(&self, copies: usize) -> Work {
        self.work.div_ceil(copies.max(1) as u64)
    }

    /// The part of each copy.
    pub(super) fn part(&self) -> Work {
        self.part_of(self.holders.len())
    }
}

impl Pool {
    /// The pool of `region`, of servers whose load is known. `still` are shards of which something moves.
    pub(super) fn new(
        region: &Region,
        map: &ShardMap,
        servers: &[Server],
        works: &Works,
        still: &BTreeSet<ShardId>,
    ) -> Self {
        let mut own: Vec<_> = servers.iter().filter(|server| server.region == *region).cloned().collect();
        own.sort_by(|a, b| a.instance.cmp(&b.instance));
        let member = |server: Server| {
            let load = server.rest;
            Member { server, before: load, load, fair: 0, groups: BTreeSet::new() }
        };
        let members: Vec<_> = own.into_iter().map(member).collect();
        let mut pool = Self { members, groups: Vec::new(), in_role: BTreeMap::new() };
        pool.add_groups(region, map, works, still);
        pool.add_loads();
        pool
    }

    fn add_groups(&mut self, region: &Region, map: &ShardMap, works: &Works, still: &BTreeSet<ShardId>) {
        let names = self.members.iter().enumerate();
        let place: HashMap<_, _> = names.map(|(i, member)| (member.server.instance.clone(), i)).collect();
        let mut counts: BTreeMap<Role, BTreeMap<usize, usize>> = BTreeMap::new();
        for shard in &map.shards {
            let here = shard.replicas.iter().filter(|copy| copy.region == *region);
            let here: Vec<_> = here.filter_map(|copy| Some((*place.get(&copy.instance)?, copy))).collect();
            let taken: BTreeSet<_> = here.iter().map(|(member, _)| *member).collect();
            let moves = shard.replicas.iter().any(|copy| copy.state != ReplicaState::Serving);
            let roles: BTreeSet<_> = here.iter().map(|(_, copy)| &copy.role).collect();
            for role in roles {
                let serves = |copy: &fairmesh_model::Replica| {
                    copy.role == *role && copy.state == ReplicaState::Serving
                };
                let holders: Vec<_> =
                    here.iter().filter(|(_, copy)| serves(copy)).map(|(member, _)| *member).collect();
                *counts.entry(role.clone()).or_default().entry(holders.len()).or_default() += 1;
                self.in_role.entry(role.clone()).or_default().extend(&holders);
                let work = works.get(&(shard.id, role.clone(), region.clone())).copied().unwrap_or(0);
                // One copy without work is nothing to plan with; most of a million shards are such.
                if holders.is_empty() || (work == 0 && holders.len() == 1) {
                    continue;
                }
                self.groups.push(Group {
                    shard: shard.id,
                    role: role.clone(),
                    work,
                    holders,
                    taken: taken.clone(),
                    still: moves || still.contains(&shard.id),
                    usual: 0,
                });
            }
        }
        for group in &mut self.groups {
            group.usual = counts.get(&group.role).map_or(1, median);
        }
    }

    fn add_loads(&mut self) {
        for (index, group) in self.groups.iter().enumerate() {
            for &holder in &group.holders {
                self.members[holder].load += group.part();
                self.members[holder].groups.insert(index);
            }
        }
        let total: u128 = self.members.iter().map(|member| u128::from(member.load)).sum();
        let power: u128 = self.members.iter().map(|member| u128::from(member.server.power)).sum();
        for member in &mut self.members {
            let fair = total * u128::from(member.server.power) / power.max(1);
            member.fair = u64::try_from(fair).unwrap_or(u64::MAX);
            member.before = member.load;
        }
    }

    /// The groups of which a copy may leave this member, the one with most work first.
    pub(super) fn movable(&self, member: usize) -> Vec<usize> {
        let own = self.members[member].groups.iter().copied();
        let mut own: Vec<_> = own.filter(|group| !self.groups[*group].still).collect();
        own.sort_by_key(|group| (std::cmp::Reverse(self.groups[*group].part()), *group));
        own
    }

    /// Whether something of the shard moves already.
    pub(super) fn is_still(&self, group: usize) -> bool {
        self.groups[group].still
    }

    /// Says of members whether they may take a copy of a group that comes from `from`, or is new: they serve in its role or hold nothing,
    /// hold no other copy of the shard, and are in a zone with no more of its copies than the one it leaves.
    pub(super) fn may_take(&self, group: usize, from: Option<usize>) -> impl Fn(&usize) -> bool {
        let Group { role, taken, .. } = &self.groups[group];
        let serving = self.in_role.get(role);
        let holds_nothing = |member: &usize| !self.in_role.values().any(|members| members.contains(member));
        let beside = |zone: &Zone, leaving: Option<usize>| {
            let others = taken.iter().filter(|other| Some(**other) != leaving);
            others.filter(|other| self.members[**other].server.zone.as_ref() == Some(zone)).count()
        };
        let least = || {
            let zones = self.members.iter().filter(|m| m.server.takes).map(|m| m.server.zone.as_ref());
            zones.map(|zone| zone.map_or(0, |zone| beside(zone, None))).min().unwrap_or(0)
        };
        let allowed = match from.map(|from| (from, &self.members[from].server.zone)) {
            Some((from, Some(zone))) => beside(zone, Some(from)),
            // Where the zone is not known, nothing is lost by another one.
            Some((_, None)) => usize::MAX,
            None => least(),
        };
        move |member| {
            let Server { takes, zone, .. } = &self.members[*member].server;
            *takes
                && !taken.contains(member)
                && (serving.is_some_and(|serving| serving.contains(member)) || holds_nothing(member))
                && zone.as_ref().is_none_or(|zone| beside(zone, from) <= allowed)
        }
    }

    /// How full a member is, to order members by.
    pub(super) fn fullness(&self, member: usize) -> u128 {
        let Member { load, server, .. } = &self.members[member];
        u128::from(*load) * 1_000_000 / u128::from(server.power.max(1))
    }

    /// Gives the copies of a group to `holders`, and says by which moves.
    pub(super) fn reassign(&mut self, group: usize, holders: Vec<usize>) -> Vec<ShardMove> {
        let before = std::mem::replace(&mut self.groups[group].holders, holders.clone());
        let part = self.groups[group].part_of(before.len());
        for &holder in &before {
            self.members[holder].load -= part;
            self.members[holder].groups.remove(&group);
        }
        let Group { shard, role, .. } = self.groups[group].clone();
        let part = self.groups[group].part();
        for &holder in &holders {
            self.members[holder].load += part;
            self.members[holder].groups.insert(group);
        }
        self.in_role.entry(role.clone()).or_default().extend(&holders);
        let left: Vec<_> = before.iter().filter(|holder| !holders.contains(holder)).copied().collect();
        let came: Vec<_> = holders.iter().filter(|holder| !before.contains(holder)).copied().collect();
        // The groups of a shard stand side by side.
        let first =
            self.groups[..group].iter().rposition(|other| other.shard != shard).map_or(0, |at| at + 1);
        for other in self.groups[first..].iter_mut().take_while(|other| other.shard == shard) {
            other.taken.retain(|member| !left.contains(member));
            other.taken.extend(&came);
        }
        let name = |member: Option<&usize>| member.map(|m| self.members[*m].server.instance.clone());
        let moves = (0..left.len().max(came.len())).map(|i| ShardMove {
            shard,
            role: role.clone(),
            from: name(left.get(i)),
            to: name(came.get(i)),
        });
        moves.collect()
    }
}

/// The middle of the numbers of copies, the greater of two. A plan never makes it less, since copies are dropped down to it
/// and not beyond; the most frequent number may become another by the plan itself, which would let the next drop more.
fn median(shards_by_copies: &BTreeMap<usize, usize>) -> usize {
    let all: usize = shards_by_copies.values().sum();
    let mut passed = 0;
    let mut upwards = shards_by_copies.iter();
    let middle = upwards.find(|(_, shards)| {
        passed += **shards;
        passed > all / 2
    });
    middle.map_or(1, |(copies, _)| *copies)
}
