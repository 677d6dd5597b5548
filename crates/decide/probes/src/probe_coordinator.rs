//! Coordinates probes: collects the reports of agents and assigns the targets of each round.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{Cell, Matrix, Outcomes, Place, plan};

/// Interval at which an agent with targets probes and reports.
pub const ROUND: Duration = Duration::from_secs(3);
/// Maximum number of agents. Further agents neither probe nor are probed.
pub const MAX_AGENTS: usize = 16_384;
/// Interval at which an agent without targets reports.
const IDLE: Duration = Duration::from_secs(15);
/// Time without a report after which an agent is removed. Until then, a zone that is cut off shows as failing.
const GONE: Duration = Duration::from_mins(5);

/// Report of an agent.
#[derive(Clone, Debug)]
pub struct Report {
    /// Address at which the agent answers probes.
    pub address: SocketAddr,
    /// Region and zone of the agent.
    pub place: Place,
    /// Results of the agent's last round, by target.
    pub results: Vec<(SocketAddr, Outcomes)>,
    /// Whether the agent is shutting down and must no longer be probed.
    pub is_leaving: bool,
}

/// Response to a report: what the agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Agents to probe.
    pub targets: Vec<SocketAddr>,
    /// Time until the agent's next report.
    pub interval: Duration,
}

/// Counters of a [`Board`], for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoardCounts {
    /// Number of live agents.
    pub agents: usize,
    /// Number of reports dropped because there were more than [`MAX_AGENTS`] agents.
    pub left_out: u64,
}

/// Known agents, the current probe plan, and results. All times are monotonic milliseconds.
#[derive(Debug)]
pub struct Board {
    seed: u64,
    places: BTreeMap<SocketAddr, Place>,
    seen_ms: BTreeMap<SocketAddr, u64>,
    round: u64,
    planned: BTreeMap<SocketAddr, Vec<SocketAddr>>,
    /// Places of the agents when the current round was planned.
    planned_places: BTreeMap<SocketAddr, Place>,
    /// Targets last assigned to each agent; the agent's next report must be about these.
    assigned: BTreeMap<SocketAddr, Vec<SocketAddr>>,
    matrix: Matrix,
    left_out: u64,
}

impl Board {
    /// A board without agents. `seed` determines where the rotations of targets start.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            places: BTreeMap::new(),
            seen_ms: BTreeMap::new(),
            round: u64::MAX,
            planned: BTreeMap::new(),
            planned_places: BTreeMap::new(),
            assigned: BTreeMap::new(),
            matrix: Matrix::default(),
            left_out: 0,
        }
    }

    /// Handles the report of an agent, and returns its next targets. Ignores results about targets that were not
    /// assigned to the agent, and reports for the address of an agent in another region.
    pub fn exchange(&mut self, report: Report, now_ms: u64) -> Assignment {
        let Report { address, place, results, is_leaving } = report;
        if self.is_of_another_region(address, &place, now_ms) {
            return Assignment { targets: Vec::new(), interval: IDLE };
        }
        if is_leaving {
            self.forget(address);
            return Assignment { targets: Vec::new(), interval: GONE };
        }
        if self.places.len() >= MAX_AGENTS && !self.places.contains_key(&address) {
            self.left_out += 1;
            return Assignment { targets: Vec::new(), interval: GONE };
        }
        self.record(address, &place, results, now_ms);
        let is_new = self.places.insert(address, place.clone()).is_none_or(|before| before != place);
        self.seen_ms.insert(address, now_ms);
        self.plan_round(now_ms);
        // After a move, the targets planned for the old place no longer apply.
        let planned = self.planned.get(&address).filter(|_| self.planned_place(address) == Some(&place));
        let targets = planned.cloned().unwrap_or_default();
        self.assigned.insert(address, targets.clone());
        // A new agent gets targets in the next round, so it should report again soon.
        let interval = if targets.is_empty() && !is_new { IDLE } else { ROUND };
        Assignment { targets, interval }
    }

    /// Whether the address belongs to a live agent of another region. Access rules bind a reporter to its region.
    fn is_of_another_region(&self, address: SocketAddr, place: &Place, now_ms: u64) -> bool {
        let seen_ms = self.seen_ms.get(&address).copied().unwrap_or_default();
        now_ms.saturating_sub(seen_ms) < GONE.as_millis() as u64
            && self.places.get(&address).is_some_and(|known| known.region != place.region)
    }

    /// Records results about assigned targets. Only places in the plan count, so that invented places create no pairs.
    fn record(
        &mut self,
        address: SocketAddr,
        place: &Place,
        results: Vec<(SocketAddr, Outcomes)>,
        now_ms: u64,
    ) {
        if self.planned_place(address) != Some(place) {
            return;
        }
        for (target, outcomes) in results {
            let is_assigned = self.assigned.get(&address).is_some_and(|own| own.contains(&target));
            if let Some(to) = self.planned_place(target).filter(|_| is_assigned && !outcomes.is_empty()) {
                let pair = (place.clone(), to.clone());
                self.matrix.record(pair, address, outcomes, now_ms);
            }
        }
    }

    /// Place of an agent in the current plan, if the agent is still at that place.
    fn planned_place(&self, address: SocketAddr) -> Option<&Place> {
        let planned = self.planned_places.get(&address)?;
        self.places.get(&address).filter(|place| *place == planned)
    }

    fn forget(&mut self, address: SocketAddr) {
        self.places.remove(&address);
        self.seen_ms.remove(&address);
        self.assigned.remove(&address);
    }

    /// Once per round, removes agents that are gone and computes the plan.
    fn plan_round(&mut self, now_ms: u64) {
        let round = now_ms / ROUND.as_millis() as u64;
        if round == self.round {
            return;
        }
        self.round = round;
        let gone_ms = GONE.as_millis() as u64;
        self.seen_ms.retain(|_, seen_ms| now_ms.saturating_sub(*seen_ms) < gone_ms);
        self.places.retain(|address, _| self.seen_ms.contains_key(address));
        self.assigned.retain(|address, _| self.seen_ms.contains_key(address));
        self.matrix.expire(now_ms);
        self.planned = plan(&self.places, round, self.seed);
        self.planned_places.clone_from(&self.places);
    }

    /// All pairs of places with results, ordered by name.
    pub fn cells(&self, now_ms: u64) -> impl Iterator<Item = Cell> {
        self.matrix.cells(now_ms)
    }

    /// Current counters.
    pub fn counts(&self) -> BoardCounts {
        BoardCounts { agents: self.places.len(), left_out: self.left_out }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Region;

    use super::*;
    use crate::{Protocol, Verdict};

    fn place(region: &str) -> Place {
        Place { region: Region::new(region).unwrap(), zone: None }
    }

    fn agent(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    fn report(number: u16, region: &str, results: Vec<(SocketAddr, Outcomes)>) -> Report {
        Report { address: agent(number), place: place(region), results, is_leaving: false }
    }

    /// Lets an agent probe its targets. All are reachable except those in `cut`.
    fn probe(board: &mut Board, of: (u16, &str), cut: &[u16], now_ms: u64) {
        let targets = board.exchange(report(of.0, of.1, Vec::new()), now_ms).targets;
        let outcomes = |target: SocketAddr| {
            let mut outcomes = Outcomes::default();
            match cut.contains(&target.port()) {
                true => outcomes.fail(Protocol::Tcp),
                false => outcomes.pass(Protocol::Tcp, Duration::from_millis(1)),
            }
            (target, outcomes)
        };
        let results = targets.into_iter().map(outcomes).collect();
        board.exchange(report(of.0, of.1, results), now_ms + 10);
    }

    #[test]
    fn zone_probes_show_network_cut_only_between_cut_regions() {
        let agents = [(1, "eu"), (2, "us"), (3, "ap")];
        let mut board = Board::new(5);
        let mut now_ms = 0;
        for round in 0..6 {
            for of in agents {
                let cut: &[u16] = match of.0 {
                    1 if round >= 3 => &[2],
                    2 if round >= 3 => &[1],
                    _ => &[],
                };
                probe(&mut board, of, cut, now_ms);
                now_ms += 1_000;
            }
        }
        let failing: Vec<_> = board
            .cells(now_ms)
            .filter(|cell| cell.verdict != Verdict::Passing)
            .map(|cell| (cell.from.to_string(), cell.to.to_string(), cell.verdict))
            .collect();
        let failed = |from: &str, to: &str| (from.to_owned(), to.to_owned(), Verdict::Failing(Protocol::Tcp));
        assert_eq!(failing, [failed("eu", "us"), failed("us", "eu")]);
        assert_eq!(board.cells(now_ms).count(), 6);
    }

    #[test]
    fn silent_agent_is_no_longer_zone_probe_target() {
        let mut board = Board::new(0);
        for now_ms in [0, 3_000] {
            board.exchange(report(1, "eu", Vec::new()), now_ms);
            board.exchange(report(2, "us", Vec::new()), now_ms);
        }
        assert_eq!(board.exchange(report(1, "eu", Vec::new()), 6_000).targets, [agent(2)]);
        let alone = board.exchange(report(1, "eu", Vec::new()), 303_000);
        assert_eq!(alone, Assignment { targets: Vec::new(), interval: IDLE });
        assert_eq!(board.counts().agents, 1);
        board.exchange(Report { is_leaving: true, ..report(1, "eu", Vec::new()) }, 304_000);
        assert_eq!(board.counts().agents, 0);
    }

    fn failed(number: u16) -> Vec<(SocketAddr, Outcomes)> {
        let mut outcomes = Outcomes::default();
        outcomes.fail(Protocol::Tcp);
        vec![(agent(number), outcomes)]
    }

    /// Agents 1 (in eu) and 2 (in us), which have each other as targets.
    fn two_agents() -> Board {
        let mut board = Board::new(0);
        for now_ms in [0, 0, 3_000] {
            board.exchange(report(1, "eu", Vec::new()), now_ms);
            board.exchange(report(2, "us", Vec::new()), now_ms);
        }
        board
    }

    #[test]
    fn probe_reports_with_invented_zones_create_no_zone_pairs() {
        let mut board = two_agents();
        for number in 0..100 {
            let zone = Some(fairmesh_model::Zone::new(format!("a{number}")).unwrap());
            for (number, region, target) in [(1, "eu", 2), (2, "us", 1)] {
                let place = Place { zone: zone.clone(), ..place(region) };
                let invented = Report { place, ..report(number, region, failed(target)) };
                board.exchange(invented.clone(), 3_000);
                board.exchange(invented, 3_000);
            }
        }
        assert_eq!(board.cells(3_000).count(), 0);
        let mut board = two_agents();
        board.exchange(report(1, "eu", failed(2)), 3_000);
        assert_eq!(board.cells(3_000).count(), 1, "that of a planned place does");
    }

    #[test]
    fn probe_result_about_unassigned_target_creates_no_zone_pair() {
        let mut board = two_agents();
        board.exchange(report(3, "ap", Vec::new()), 3_000);
        board.exchange(report(1, "eu", failed(3)), 3_000);
        board.exchange(report(3, "ap", failed(1)), 3_000);
        assert_eq!(board.cells(3_000).count(), 0);
    }

    #[test]
    fn agent_of_other_region_cannot_take_or_remove_probe_address() {
        let mut board = two_agents();
        let taken = board.exchange(report(2, "eu", Vec::new()), 6_000);
        assert_eq!(taken, Assignment { targets: Vec::new(), interval: IDLE });
        board.exchange(Report { is_leaving: true, ..report(2, "eu", Vec::new()) }, 6_000);
        assert_eq!(board.exchange(report(1, "eu", failed(2)), 6_000).targets, [agent(2)]);
        assert_eq!(board.cells(6_000).map(|cell| cell.to).collect::<Vec<_>>(), [place("us")]);
        board.exchange(report(2, "eu", Vec::new()), 303_000);
        assert_eq!(board.places[&agent(2)], place("eu"), "the agent of us is gone");
    }

    #[test]
    fn leaving_agent_is_removed_from_zone_probe_board() {
        let mut board = Board::new(0);
        for number in 1..100 {
            board.exchange(report(number, "eu", Vec::new()), 0);
            board.exchange(Report { is_leaving: true, ..report(number, "eu", Vec::new()) }, 0);
        }
        assert!(board.places.is_empty() && board.seen_ms.is_empty() && board.assigned.is_empty());
    }

    #[test]
    fn zone_probe_results_about_unknown_agents_are_ignored() {
        let mut board = Board::new(0);
        let mut outcomes = Outcomes::default();
        outcomes.pass(Protocol::Tcp, Duration::ZERO);
        board.exchange(report(1, "eu", vec![(agent(9), outcomes)]), 0);
        assert_eq!(board.cells(0).count(), 0);
    }
}
