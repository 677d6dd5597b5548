//! Plans which shard copies to move, add and drop so that no server is overloaded. Pure: the same input gives the
//! same plan.
//!
//! A plan only prevents overload and leaves other differences (ServiceRouter §4.3.1), because each move loads a shard
//! twice and updates every caller. Overload is relative: a load above `threshold` percent of the server's fair share of
//! its region's work, by capacity. An absolute capacity was rejected: many services are not bound by CPU, and only
//! their owners know the bound.
//!
//! An overloaded server is relieved to midway between threshold and fair share, and no server is filled beyond that
//! level, so that a moved copy does not soon move again.

use std::{cmp::Reverse, collections::BTreeSet, fmt};

use fairmesh_model::{InstanceId, Invalid, Region, Role, ShardId, ShardMap, ShardMove};

use super::region_pool::{Member, RegionPool, Server, Work, WorkByShard};

/// State of a service, as input of the planner.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// The shard map.
    pub map: &'a ShardMap,
    /// The servers with a known load.
    pub servers: Vec<Server>,
    /// Work of the shards that servers report separately.
    pub works: WorkByShard,
    /// Shards with a move in flight; the plan does not touch them.
    pub moving: BTreeSet<ShardId>,
}

/// The options of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Percentage of its fair share above which a server is overloaded; 101 to 1000.
    pub threshold: u32,
    /// Maximum number of moves to propose.
    pub max_moves: usize,
    /// Roles in which the planner may add copies and drop surplus copies. In other roles, the service depends on the
    /// number of copies, such as a single primary.
    pub replicate: BTreeSet<Role>,
}

impl PlanOptions {
    /// Default threshold, in percent. A service with a planned reserve of a quarter cannot carry more.
    pub const DEFAULT_THRESHOLD: u32 = 125;
    /// Default maximum number of moves.
    pub const DEFAULT_MOVES: u32 = 10;
    /// Maximum number of moves in one plan.
    pub const MAX_MOVES: u32 = 1000;

    /// Validates options; 0 stands for the default.
    ///
    /// # Errors
    /// [`Invalid`] for a threshold outside 101 to 1000, or more than 1000 moves.
    pub fn new(threshold: u32, max_moves: u32, replicate: BTreeSet<Role>) -> Result<Self, Invalid> {
        let or = |value: u32, default| if value == 0 { default } else { value };
        let (threshold, max_moves) =
            (or(threshold, Self::DEFAULT_THRESHOLD), or(max_moves, Self::DEFAULT_MOVES));
        if !(101..=1000).contains(&threshold) {
            let problem = format!("{threshold} percent is out of range");
            return Err(Invalid::new("threshold", problem, "write 101 to 1000; 100 is the fair share"));
        }
        if max_moves > Self::MAX_MOVES {
            let hint = format!("request at most {}, and repeat", Self::MAX_MOVES);
            return Err(Invalid::new("max_moves", format!("{max_moves} are too many"), hint));
        }
        Ok(Self { threshold, max_moves: max_moves as usize, replicate })
    }
}

/// The proposed moves in order, with the resulting loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePlan {
    /// The moves, the most urgent first. Moves of the same shard are adjacent.
    pub moves: Vec<ShardMove>,
    /// Every server with a known load, by region and instance id.
    pub servers: Vec<Forecast>,
    /// Overload that remains after the plan.
    pub notes: Vec<PlanNote>,
}

/// The load of one server before and after the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Instance id of the server.
    pub instance: InstanceId,
    /// Region of the server.
    pub region: Region,
    /// The present load.
    pub before: Work,
    /// The load after all moves.
    pub after: Work,
    /// The server's fair share of the region's work.
    pub fair: Work,
}

/// Overload that remains after the plan, with its cause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanNote {
    /// A single copy of this shard has more work than any server may have.
    Hot {
        /// The shard.
        shard: ShardId,
        /// Role of the copy.
        role: Role,
        /// Whether the role permits more copies. If so, no number of them fits on the servers.
        may_replicate: bool,
    },
    /// No shard copy of this server fits on another server.
    Stuck {
        /// The server.
        instance: InstanceId,
    },
    /// The plan reached the maximum number of moves; further moves would help.
    More,
    /// Servers without load reports; the plan does not touch them.
    Silent {
        /// Number of servers without reports.
        servers: usize,
    },
}

impl fmt::Display for PlanNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hot { shard, role, may_replicate: false } => write!(
                f,
                "shard {shard} ({role}) alone overloads any server: allow more copies with --replicate {role} if the \
                 service can have them, or split it"
            ),
            Self::Hot { shard, role, may_replicate: true } => write!(
                f,
                "shard {shard} ({role}) alone overloads any server, and there is no room for more copies: add \
                 servers, or split it"
            ),
            Self::Stuck { instance } => {
                write!(
                    f,
                    "{instance} stays overloaded: none of its copies fits on another server; add servers"
                )
            }
            Self::More => f.write_str("more moves would help: allow more, or plan again afterwards"),
            Self::Silent { servers } => {
                write!(f, "servers without load reports, which the plan leaves unchanged: {servers}")
            }
        }
    }
}

/// Plans region by region, beginning with the region of the most overloaded server.
pub fn plan(input: &PlanInput<'_>, options: &PlanOptions) -> MovePlan {
    let regions: BTreeSet<_> = input.servers.iter().map(|server| &server.region).collect();
    let pool = |region| RegionPool::new(region, input.map, &input.servers, &input.works, &input.moving);
    let mut pools: Vec<_> = regions.into_iter().map(|region| Planner::new(pool(region), options)).collect();
    let mut order: Vec<_> = (0..pools.len()).collect();
    order.sort_by_key(|at| Reverse(pools[*at].excess()));
    let (mut moves, mut notes) = (Vec::new(), BTreeSet::new());
    for at in order {
        moves.extend(pools[at].run(options.max_moves - moves.len()));
        notes.append(&mut pools[at].notes);
    }
    let members = pools.into_iter().flat_map(|planner| planner.pool.members);
    MovePlan { moves, servers: members.map(Forecast::of).collect(), notes: notes.into_iter().collect() }
}

impl Forecast {
    fn of(member: Member) -> Self {
        let Member { server, before, load, fair, .. } = member;
        Self { instance: server.instance, region: server.region, before, after: load, fair }
    }
}

struct Planner<'a> {
    pool: RegionPool,
    options: &'a PlanOptions,
    /// The highest load that any server may have.
    highest: Work,
    notes: BTreeSet<PlanNote>,
}

impl<'a> Planner<'a> {
    fn new(pool: RegionPool, options: &'a PlanOptions) -> Self {
        let mut planner = Self { pool, options, highest: 0, notes: BTreeSet::new() };
        let accepts = (0..planner.pool.members.len()).filter(|at| planner.pool.members[*at].server.accepts);
        planner.highest = accepts.map(|at| planner.limit(at)).max().unwrap_or(0);
        planner
    }

    /// The load above which a member is overloaded.
    fn limit(&self, member: usize) -> Work {
        percent(self.pool.members[member].fair, self.options.threshold.into())
    }

    /// Target load: an overloaded member is relieved down to it, and other members are filled up to it.
    fn goal(&self, member: usize) -> Work {
        percent(self.pool.members[member].fair, (100 + u64::from(self.options.threshold)) / 2)
    }

    /// Returns the highest load of any member, in percent of its fair share.
    fn excess(&self) -> u64 {
        let members = self.pool.members.iter();
        members.map(|member| member.load.saturating_mul(100) / member.fair.max(1)).max().unwrap_or(0)
    }

    fn run(&mut self, budget: usize) -> Vec<ShardMove> {
        let overloaded = (0..self.pool.members.len()).filter(|at| self.is_above(*at, Self::limit));
        let overloaded: Vec<_> = overloaded.collect();
        let mut moves = Vec::new();
        // A dropped copy may make room for more moves.
        loop {
            while let Some(found) = self.relieve(&overloaded, budget - moves.len()) {
                moves.extend(found);
            }
            let Some(found) = self.shrink(budget - moves.len()) else { break };
            moves.extend(found);
        }
        if moves.len() == budget && overloaded.iter().any(|at| self.is_above(*at, Self::limit)) {
            self.notes = BTreeSet::from([PlanNote::More]);
        }
        moves
    }

    fn is_above(&self, member: usize, bound: impl Fn(&Self, usize) -> Work) -> bool {
        self.pool.members[member].load > bound(self, member)
    }

    /// Returns the next moves that relieve the fullest overloaded member for which any move helps.
    fn relieve(&mut self, overloaded: &[usize], budget: usize) -> Option<Vec<ShardMove>> {
        if budget == 0 {
            return None;
        }
        self.notes.clear();
        let above = overloaded.iter().copied().filter(|at| self.is_above(*at, Self::goal));
        let mut above: Vec<_> = above.collect();
        above.sort_by_key(|at| (Reverse(self.pool.fullness(*at)), *at));
        let room = (0..self.pool.members.len()).filter(|at| self.pool.members[*at].server.accepts);
        let room = room.map(|at| self.goal(at).saturating_sub(self.pool.members[at].load)).max().unwrap_or(0);
        above.into_iter().find_map(|member| self.help(member, room, budget))
    }

    /// Moves the largest copy that fits on another member. If no copy fits, spreads the shard over more servers.
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
            self.notes.insert(PlanNote::Stuck { instance });
        }
        None
    }

    /// Returns the least full member that may take a copy with this work and stays below its goal.
    fn emptiest(&self, group: usize, from: Option<usize>, part: Work) -> Option<usize> {
        let fitting = (0..self.pool.members.len()).filter(|at| self.matches(*at, part));
        let eligible = fitting.filter(self.pool.may_take(group, from));
        eligible.min_by_key(|at| (self.pool.fullness(*at), *at))
    }

    fn matches(&self, member: usize, part: Work) -> bool {
        self.pool.members[member].load.saturating_add(part) <= self.goal(member)
    }

    /// Adds the smallest number of copies with which each server can bear its copy. Adds none if that is impossible:
    /// too few copies would only overload one more server.
    fn spread(&mut self, group: usize, budget: usize) -> Option<Vec<ShardMove>> {
        let (shard, role) = (self.pool.groups[group].shard, self.pool.groups[group].role.clone());
        let may_replicate = self.options.replicate.contains(&role);
        let added = if may_replicate { self.fitting_copies(group) } else { None };
        let note = match added {
            Some(added) if added.len() <= budget => {
                let holders = self.pool.groups[group].holders.clone();
                return Some(self.pool.reassign(group, [holders, added].concat()));
            }
            Some(_) => PlanNote::More,
            None => PlanNote::Hot { shard, role, may_replicate },
        };
        self.notes.insert(note);
        None
    }

    /// The fewest members that can take further copies so that no copy has more work than its member may have; `None`
    /// if no number of copies fits.
    fn fitting_copies(&self, group: usize) -> Option<Vec<usize>> {
        let takers = (0..self.pool.members.len()).filter(self.pool.may_take(group, None));
        let mut takers: Vec<_> = takers.collect();
        takers.sort_by_key(|at| (self.pool.fullness(*at), *at));
        let copies = self.pool.groups[group].holders.len();
        (1..=takers.len()).find_map(|more| {
            let part = self.pool.groups[group].part_of(copies + more);
            let fitting: Vec<_> =
                takers.iter().copied().filter(|at| self.matches(*at, part)).take(more).collect();
            (part <= self.highest && fitting.len() == more).then_some(fitting)
        })
    }

    /// Drops one unneeded copy of a shard with more copies than the median. Each remaining copy must take at most
    /// half of a server's highest load, so that the copy is not soon added again.
    fn shrink(&mut self, budget: usize) -> Option<Vec<ShardMove>> {
        if budget == 0 {
            return None;
        }
        for at in 0..self.pool.groups.len() {
            let group = &self.pool.groups[at];
            let extra = group.holders.len() > group.median_copies.max(1);
            if !extra || self.pool.is_moving(at) || !self.options.replicate.contains(&group.role) {
                continue;
            }
            let (part, after) = (group.part(), group.part_of(group.holders.len() - 1));
            let fullest = group.holders.iter().copied().max_by_key(|at| (self.pool.fullness(*at), *at))?;
            let others: Vec<_> = group.holders.iter().copied().filter(|at| *at != fullest).collect();
            if after <= self.highest / 2 && others.iter().all(|other| self.matches(*other, after - part)) {
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
