//! Which copies of shards to move, to add and to drop so that no server is overloaded. Pure: the same facts make the same
//! plan.
//!
//! It does only what prevents overload and leaves the rest uneven (ServiceRouter §4.3.1), since each move costs loading a shard twice and
//! every caller an update. Overload is meant in comparison: a server above `threshold` percent of its fair share of its
//! region's work, by power. Measuring against an absolute capacity was rejected: of many services the bound is not the
//! CPU, and only their owners know it.
//!
//! Whoever is above the threshold is brought down to midway between it and the fair share, and nobody is filled beyond
//! that, so that what has just moved does not soon move again.

use std::{cmp::Reverse, collections::BTreeSet, fmt};

use fairmesh_model::{InstanceId, Invalid, Region, Role, ShardId, ShardMap, ShardMove};

use super::pool::{Member, Pool, Server, Work, Works};

/// What is known of a service.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Who holds what.
    pub map: &'a ShardMap,
    /// The servers whose load is known.
    pub servers: Vec<Server>,
    /// The work of shards that servers tell apart.
    pub works: Works,
    /// Shards of which something moves already; they stay as they are.
    pub still: BTreeSet<ShardId>,
}

/// What is asked of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Overloaded is whoever has more than this percentage of its fair share; 101 to 1000.
    pub threshold: u32,
    /// The most moves to propose.
    pub max_moves: usize,
    /// Roles of which copies may be added, and extra ones dropped. Of others the number of copies means something to the
    /// service, such as one primary.
    pub replicate: BTreeSet<Role>,
}

impl Terms {
    /// The threshold unless another is asked for, in percent: who plans for a quarter above the average is overloaded by
    /// more.
    pub const THRESHOLD: u32 = 125;
    /// How many moves are proposed unless it is said.
    pub const MOVES: u32 = 10;
    /// The most moves of a plan.
    pub const MOST_MOVES: u32 = 1000;

    /// Reads what was asked; 0 is the usual.
    ///
    /// # Errors
    /// [`Invalid`] for a threshold outside 101 to 1000, or more than 1000 moves.
    pub fn new(threshold: u32, max_moves: u32, replicate: BTreeSet<Role>) -> Result<Self, Invalid> {
        let or = |asked: u32, usual| if asked == 0 { usual } else { asked };
        let (threshold, max_moves) = (or(threshold, Self::THRESHOLD), or(max_moves, Self::MOVES));
        if !(101..=1000).contains(&threshold) {
            let problem = format!("{threshold} percent is out of range");
            return Err(Invalid::new("threshold", problem, "write 101 to 1000; 100 is the fair share"));
        }
        if max_moves > Self::MOST_MOVES {
            let hint = format!("ask for {} at most, and again", Self::MOST_MOVES);
            return Err(Invalid::new("max_moves", format!("{max_moves} are too many"), hint));
        }
        Ok(Self { threshold, max_moves: max_moves as usize, replicate })
    }
}

/// What to do, in order, and what would come of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The moves, the most urgent first. Those of one shard follow one another.
    pub moves: Vec<ShardMove>,
    /// Every server whose load is known, by region and name.
    pub servers: Vec<Forecast>,
    /// What the plan cannot mend.
    pub notes: Vec<Note>,
}

/// The load of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Which one.
    pub instance: InstanceId,
    /// Where it runs.
    pub region: Region,
    /// As it is.
    pub before: Work,
    /// As it would be after all moves.
    pub after: Work,
    /// Its fair share of the region's work.
    pub fair: Work,
}

/// What stays overloaded, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// One copy of this shard is more than any server may have.
    Hot {
        /// The shard.
        shard: ShardId,
        /// In this role.
        role: Role,
        /// Whether copies may be added in this role, and no place was found for enough of them.
        full: bool,
    },
    /// Nothing that this server holds fits elsewhere.
    Stuck {
        /// The server.
        instance: InstanceId,
    },
    /// More moves would help than were asked for.
    More,
    /// The load of some servers is not known, so that they are left alone.
    Silent {
        /// How many.
        servers: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hot { shard, role, full: false } => write!(
                f,
                "shard {shard} ({role}) alone is too much for any server: allow more copies with --replicate {role} if the \
                 service can have them, or split it"
            ),
            Self::Hot { shard, role, full: true } => write!(
                f,
                "shard {shard} ({role}) alone is too much for any server, and more copies find no room: add servers, or \
                 split it"
            ),
            Self::Stuck { instance } => {
                write!(f, "{instance} stays overloaded: nothing that it holds fits elsewhere; add servers")
            }
            Self::More => f.write_str("more moves would help: allow more, or plan again afterwards"),
            Self::Silent { servers } => {
                write!(f, "servers whose load is not known, and that are left alone: {servers}")
            }
        }
    }
}

/// Makes a plan, region by region, the one with the fullest server first.
pub fn plan(facts: &Facts<'_>, terms: &Terms) -> Plan {
    let regions: BTreeSet<_> = facts.servers.iter().map(|server| &server.region).collect();
    let pool = |region| Pool::new(region, facts.map, &facts.servers, &facts.works, &facts.still);
    let mut pools: Vec<_> = regions.into_iter().map(|region| Planner::new(pool(region), terms)).collect();
    let mut order: Vec<_> = (0..pools.len()).collect();
    order.sort_by_key(|at| Reverse(pools[*at].excess()));
    let (mut moves, mut notes) = (Vec::new(), BTreeSet::new());
    for at in order {
        moves.extend(pools[at].run(terms.max_moves - moves.len()));
        notes.append(&mut pools[at].notes);
    }
    let members = pools.into_iter().flat_map(|planner| planner.pool.members);
    Plan { moves, servers: members.map(Forecast::of).collect(), notes: notes.into_iter().collect() }
}

impl Forecast {
    fn of(member: Member) -> Self {
        let Member { server, before, load, fair, .. } = member;
        Self { instance: server.instance, region: server.region, before, after: load, fair }
    }
}

struct Planner<'a> {
    pool: Pool,
    terms: &'a Terms,
    /// The most that any server may have.
    highest: Work,
    notes: BTreeSet<Note>,
}

impl<'a> Planner<'a> {
    fn new(pool: Pool, terms: &'a Terms) -> Self {
        let mut planner = Self { pool, terms, highest: 0, notes: BTreeSet::new() };
        let takes = (0..planner.pool.members.len()).filter(|at| planner.pool.members[*at].server.takes);
        planner.highest = takes.map(|at| planner.limit(at)).max().unwrap_or(0);
        planner
    }

    /// Above this a member is overloaded.
    fn limit(&self, member: usize) -> Work {
        percent(self.pool.members[member].fair, self.terms.threshold.into())
    }

    /// What an overloaded member is brought down to, and what nobody is filled beyond.
    fn goal(&self, member: usize) -> Work {
        percent(self.pool.members[member].fair, (100 + u64::from(self.terms.threshold)) / 2)
    }

    /// By how much the fullest member is overloaded, in percent of its fair share.
    fn excess(&self) -> u64 {
        let members = self.pool.members.iter();
        members.map(|member| member.load.saturating_mul(100) / member.fair.max(1)).max().unwrap_or(0)
    }

    fn run(&mut self, budget: usize) -> Vec<ShardMove> {
        let overloaded = (0..self.pool.members.len()).filter(|at| self.is_above(*at, Self::limit));
        let overloaded: Vec<_> = overloaded.collect();
        let mut moves = Vec::new();
        // What is dropped may make room for what was stuck.
        loop {
            while let Some(found) = self.relieve(&overloaded, budget - moves.len()) {
                moves.extend(found);
            }
            let Some(found) = self.shrink(budget - moves.len()) else { break };
            moves.extend(found);
        }
        if moves.len() == budget && overloaded.iter().any(|at| self.is_above(*at, Self::limit)) {
            self.notes = BTreeSet::from([Note::More]);
        }
        moves
    }

    fn is_above(&self, member: usize, bound: impl Fn(&Self, usize) -> Work) -> bool {
        self.pool.members[member].load > bound(self, member)
    }

    /// The next moves that help the fullest member that can be helped.
    fn relieve(&mut self, overloaded: &[usize], budget: usize) -> Option<Vec<ShardMove>> {
        if budget == 0 {
            return None;
        }
        self.notes.clear();
        let above = overloaded.iter().copied().filter(|at| self.is_above(*at, Self::goal));
        let mut above: Vec<_> = above.collect();
        above.sort_by_key(|at| (Reverse(self.pool.fullness(*at)), *at));
        let room = (0..self.pool.members.len()).filter(|at| self.pool.members[*at].server.takes);
        let room = room.map(|at| self.goal(at).saturating_sub(self.pool.members[at].load)).max().unwrap_or(0);
        above.into_iter().find_map(|member| self.help(member, room, budget))
    }

    /// The biggest copy that fits elsewhere goes there; one that fits nowhere is shared among more.
    fn help(&mut self, member: usize, room: Work, budget: usize) -> Option<Vec<ShardMove>> {
        let mut hot = false;
        for group in self.pool.movable(member) {
            let part = self.pool.groups[group].part();
            if part == 0 {
                break;
            }
            if part > self.highest {
                hot = true;
                if let Some(moves) = self.spread(group, budget) {
                    return Some(moves);
                }
            } else if part <= room
                && let Some(to) = self.emptiest(group, Some(member), part)
            {
                let holders = self.pool.groups[group].holders.iter();
                let holders = holders.map(|holder| if *holder == member { to } else { *holder }).collect();
                return Some(self.pool.reassign(group, holders));
            }
        }
        if !hot && self.is_above(member, Self::limit) {
            let instance = self.pool.members[member].server.instance.clone();
            self.notes.insert(Note::Stuck { instance });
        }
        None
    }

    /// The least full of those that may take a copy with so much work and are not filled beyond the goal by it.
    fn emptiest(&self, group: usize, from: Option<usize>, part: Work) -> Option<usize> {
        let fitting = (0..self.pool.members.len()).filter(|at| self.fits(*at, part));
        let eligible = fitting.filter(self.pool.may_take(group, from));
        eligible.min_by_key(|at| (self.pool.fullness(*at), *at))
    }

    fn fits(&self, member: usize, part: Work) -> bool {
        self.pool.members[member].load.saturating_add(part) <= self.goal(member)
    }

    /// Adds the fewest copies with which each is one that a server can bear, all of them or none: too few would only
    /// overload one more server.
    fn spread(&mut self, group: usize, budget: usize) -> Option<Vec<ShardMove>> {
        let (shard, role) = (self.pool.groups[group].shard, self.pool.groups[group].role.clone());
        let full = self.terms.replicate.contains(&role);
        if full {
            let takers = (0..self.pool.members.len()).filter(self.pool.may_take(group, None));
            let mut takers: Vec<_> = takers.collect();
            takers.sort_by_key(|at| (self.pool.fullness(*at), *at));
            let holders = self.pool.groups[group].holders.clone();
            for more in 1..=takers.len().min(budget) {
                let part = self.pool.groups[group].part_of(holders.len() + more);
                let fitting: Vec<_> =
                    takers.iter().copied().filter(|at| self.fits(*at, part)).take(more).collect();
                if part <= self.highest && fitting.len() == more {
                    return Some(self.pool.reassign(group, [holders, fitting].concat()));
                }
            }
        }
        self.notes.insert(Note::Hot { shard, role, full });
        None
    }

    /// Drops one copy beyond the usual number that is needed no more: without it each of the others has at most half of
    /// what a server may have, so that it is not soon added again.
    fn shrink(&mut self, budget: usize) -> Option<Vec<ShardMove>> {
        if budget == 0 {
            return None;
        }
        for at in 0..self.pool.groups.len() {
            let group = &self.pool.groups[at];
            let extra = group.holders.len() > group.usual.max(1);
            if !extra || self.pool.is_still(at) || !self.terms.replicate.contains(&group.role) {
                continue;
            }
            let (part, after) = (group.part(), group.part_of(group.holders.len() - 1));
            let fullest = group.holders.iter().copied().max_by_key(|at| (self.pool.fullness(*at), *at))?;
            let others: Vec<_> = group.holders.iter().copied().filter(|at| *at != fullest).collect();
            if after <= self.highest / 2 && others.iter().all(|other| self.fits(*other, after - part)) {
                return Some(self.pool.reassign(at, others));
            }
        }
        None
    }
}

fn percent(work: Work, percent: u64) -> Work {
    u64::try_from(u128::from(work) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
