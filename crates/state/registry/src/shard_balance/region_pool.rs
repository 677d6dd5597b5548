//! The servers of one region and their shards' work, while the planner moves copies. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fairmesh_model::{InstanceId, Region, ReplicaState, Role, ShardId, ShardMap, ShardMove, Zone};

/// Work: microseconds of calls in flight per second, on a host of ordinary speed. 1,000,000 means one call in flight
/// at all times.
pub type Work = u64;

/// A server, as input of the planner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Instance id of the server.
    pub instance: InstanceId,
    /// Region of the server; work never leaves its region.
    pub region: Region,
    /// Failure domain, if known.
    pub zone: Option<Zone>,
    /// Relative capacity, in thousandths: the weight times the speed of the host; at least 1.
    pub power: u32,
    /// Whether the server may receive shards.
    pub accepts: bool,
    /// Work of the shards that are not reported separately and therefore cannot move.
    pub rest: Work,
}

/// The work of all copies of a shard in one role and region.
pub type WorkByShard = BTreeMap<(ShardId, Role, Region), Work>;

/// A server within its region.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    pub(super) before: Work,
    pub(super) load: Work,
    /// The member's fair share of the region's work, proportional to its capacity.
    pub(super) fair: Work,
    /// Indexes of the groups with a copy at the member.
    groups: BTreeSet<usize>,
}

/// The copies of one shard in one role and region. Callers distribute their calls evenly over the copies.
#[derive(Clone, Debug)]
pub(super) struct CopyGroup {
    pub(super) shard: ShardId,
    pub(super) role: Role,
    work: Work,
    /// Serving members with a known load that hold a copy.
    pub(super) holders: Vec<usize>,
    /// Members that hold the shard in any role and state. A second copy on the same server would be useless.
    holding: BTreeSet<usize>,
    /// Whether a move of the shard is in flight.
    moving: bool,
    /// Median number of copies over all shards in this role.
    pub(super) median_copies: usize,
}

/// The servers of one region, and the copies that they hold.
#[derive(Clone, Debug)]
pub(super) struct RegionPool {
    /// Members, ordered by instance id.
    pub(super) members: Vec<Member>,
    pub(super) groups: Vec<CopyGroup>,
    /// The members that serve in each role. A member without copies may serve in any role.
    in_role: BTreeMap<Role, BTreeSet<usize>>,
}

impl CopyGroup {
    /// Returns the work of each copy if there are `copies`, rounded up.
    pub(super) fn part_of(&self, copies: usize) -> Work {
        self.work.div_ceil(copies.max(1) as u64)
    }

    /// Returns the work of each present copy.
    pub(super) fn part(&self) -> Work {
        self.part_of(self.holders.len())
    }
}

impl RegionPool {
    /// The pool of `region` from servers with a known load. `moving` are the shards with a move in flight.
    pub(super) fn new(
        region: &Region,
        map: &ShardMap,
        servers: &[Server],
        works: &WorkByShard,
        moving: &BTreeSet<ShardId>,
    ) -> Self {
        let mut own: Vec<_> = servers.iter().filter(|server| server.region == *region).cloned().collect();
        own.sort_by(|a, b| a.instance.cmp(&b.instance));
        let member = |server: Server| {
            let load = server.rest;
            Member { server, before: load, load, fair: 0, groups: BTreeSet::new() }
        };
        let members: Vec<_> = own.into_iter().map(member).collect();
        let mut pool = Self { members, groups: Vec::new(), in_role: BTreeMap::new() };
        pool.add_groups(region, map, works, moving);
        pool.add_loads();
        pool
    }

    fn add_groups(
        &mut self,
        region: &Region,
        map: &ShardMap,
        works: &WorkByShard,
        moving: &BTreeSet<ShardId>,
    ) {
        let names = self.members.iter().enumerate();
        let place: HashMap<_, _> = names.map(|(i, member)| (member.server.instance.clone(), i)).collect();
        let mut counts: BTreeMap<Role, BTreeMap<usize, usize>> = BTreeMap::new();
        for shard in &map.shards {
            let here = shard.replicas.iter().filter(|copy| copy.region == *region);
            let here: Vec<_> = here.filter_map(|copy| Some((*place.get(&copy.instance)?, copy))).collect();
            let holding: BTreeSet<_> = here.iter().map(|(member, _)| *member).collect();
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
                // A single copy without work cannot improve a plan, and most of a million shards have none.
                if holders.is_empty() || (work == 0 && holders.len() == 1) {
                    continue;
                }
                self.groups.push(CopyGroup {
                    shard: shard.id,
                    role: role.clone(),
                    work,
                    holders,
                    holding: holding.clone(),
                    moving: moves || moving.contains(&shard.id),
                    median_copies: 0,
                });
            }
        }
        for group in &mut self.groups {
            group.median_copies = counts.get(&group.role).map_or(1, median);
        }
    }

    fn add_loads(&mut self) {
        for (index, group) in self.groups.iter().enumerate() {
            for &holder in &group.holders {
                self.members[holder].load += group.part();
                self.members[holder].groups.insert(index);
            }
        }
        // Sums the work of whole shards. Sums of copies, which are rounded up, would raise every fair share with each
        // added copy.
        let shards = self.groups.iter().map(|group| u128::from(group.work));
        let total: u128 =
            shards.chain(self.members.iter().map(|member| u128::from(member.server.rest))).sum();
        let power: u128 = self.members.iter().map(|member| u128::from(member.server.power)).sum();
        for member in &mut self.members {
            let fair = total * u128::from(member.server.power) / power.max(1);
            member.fair = u64::try_from(fair).unwrap_or(u64::MAX);
            member.before = member.load;
        }
    }

    /// Returns the groups with a copy that may leave this member, in descending order of work.
    pub(super) fn movable(&self, member: usize) -> Vec<usize> {
        let own = self.members[member].groups.iter().copied();
        let mut own: Vec<_> = own.filter(|group| !self.groups[*group].moving).collect();
        own.sort_by_key(|group| (std::cmp::Reverse(self.groups[*group].part()), *group));
        own
    }

    /// Whether a move of the shard is in flight.
    pub(super) fn is_moving(&self, group: usize) -> bool {
        self.groups[group].moving
    }

    /// Whether a member may take a copy of the group, either a new copy or one that leaves `from`. All of these must
    /// hold:
    /// - The member serves in the role or holds nothing.
    /// - The member holds no other copy of the shard.
    /// - The member's zone has no more copies of the shard than the zone of `from`.
    pub(super) fn may_take(&self, group: usize, from: Option<usize>) -> impl Fn(&usize) -> bool {
        let CopyGroup { role, holding, .. } = &self.groups[group];
        let serving = self.in_role.get(role);
        let holds_nothing = |member: &usize| !self.in_role.values().any(|members| members.contains(member));
        let beside = |zone: &Zone, leaving: Option<usize>| {
            let others = holding.iter().filter(|other| Some(**other) != leaving);
            others.filter(|other| self.members[**other].server.zone.as_ref() == Some(zone)).count()
        };
        let least = || {
            let zones = self.members.iter().filter(|m| m.server.accepts).map(|m| m.server.zone.as_ref());
            zones.map(|zone| zone.map_or(0, |zone| beside(zone, None))).min().unwrap_or(0)
        };
        let allowed = match from.map(|from| (from, &self.members[from].server.zone)) {
            Some((from, Some(zone))) => beside(zone, Some(from)),
            // A copy from an unknown zone may go to any zone.
            Some((_, None)) => usize::MAX,
            None => least(),
        };
        move |member| {
            let Server { accepts, zone, .. } = &self.members[*member].server;
            *accepts
                && !holding.contains(member)
                && (serving.is_some_and(|serving| serving.contains(member)) || holds_nothing(member))
                && zone.as_ref().is_none_or(|zone| beside(zone, from) <= allowed)
        }
    }

    /// Load relative to capacity. Members are ordered by it.
    pub(super) fn fullness(&self, member: usize) -> u128 {
        let Member { load, server, .. } = &self.members[member];
        u128::from(*load) * 1_000_000 / u128::from(server.power.max(1))
    }

    /// Assigns the copies of a group to `holders`, and returns the necessary moves.
    pub(super) fn reassign(&mut self, group: usize, holders: Vec<usize>) -> Vec<ShardMove> {
        let before = std::mem::replace(&mut self.groups[group].holders, holders.clone());
        let part = self.groups[group].part_of(before.len());
        for &holder in &before {
            self.members[holder].load -= part;
            self.members[holder].groups.remove(&group);
        }
        let CopyGroup { shard, role, .. } = self.groups[group].clone();
        let part = self.groups[group].part();
        for &holder in &holders {
            self.members[holder].load += part;
            self.members[holder].groups.insert(group);
        }
        self.in_role.entry(role.clone()).or_default().extend(&holders);
        let left: Vec<_> = before.iter().filter(|holder| !holders.contains(holder)).copied().collect();
        let came: Vec<_> = holders.iter().filter(|holder| !before.contains(holder)).copied().collect();
        // The groups of a shard are adjacent.
        let first =
            self.groups[..group].iter().rposition(|other| other.shard != shard).map_or(0, |at| at + 1);
        for other in self.groups[first..].iter_mut().take_while(|other| other.shard == shard) {
            other.holding.retain(|member| !left.contains(member));
            other.holding.extend(&came);
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

/// Returns the median number of copies; for an even count, the greater of the two middle values. Copies are dropped
/// only down to the median, so a plan never lowers it. The most frequent number was rejected: it could change with
/// each plan, so that the next plan would drop more copies.
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
