use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{MAX_PLACES, Outcomes, Place, Protocol};

/// Age in ms above which a result is stale: four rounds.
const FRESH_MS: u64 = 12_000;
/// Time without a result after which a pair is removed, in ms.
const KEPT_MS: u64 = 15 * 60 * 1_000;
/// Maximum number of probers per pair whose last result is kept; the most recent ones stay.
const MAX_PROBERS: usize = 6;
/// Maximum number of pairs: all places that are probed at once. Names of places could change faster than pairs expire.
const MAX_PAIRS: usize = MAX_PLACES * MAX_PLACES;

/// What the results of a pair of places show about the network between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All probers succeed with all protocols.
    Passing,
    /// Some probers fail, others succeed, which points to machines rather than the network. Holds the first protocol
    /// that fails.
    Degraded(Protocol),
    /// All probers fail. Holds the first protocol that fails.
    Failing(Protocol),
    /// There is no recent result.
    Stale,
}

impl Verdict {
    /// Name in tables, JSON and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Degraded(_) => "degraded",
            Self::Failing(_) => "failing",
            Self::Stale => "stale",
        }
    }

    /// The first protocol that fails, if any.
    pub const fn fault(self) -> Option<Protocol> {
        match self {
            Self::Degraded(protocol) | Self::Failing(protocol) => Some(protocol),
            Self::Passing | Self::Stale => None,
        }
    }
}

/// The last results of each pair of places.
#[derive(Debug, Default)]
pub struct Matrix {
    pairs: BTreeMap<(Place, Place), Vec<Latest>>,
}

/// The last result reported by one prober.
#[derive(Debug)]
struct Latest {
    prober: SocketAddr,
    at_ms: u64,
    outcomes: Outcomes,
}

/// State of a pair of places at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Place of the probers.
    pub from: Place,
    /// Place of the probed agents.
    pub to: Place,
    /// Conclusion from the recent results.
    pub verdict: Verdict,
    /// Time since the last result.
    pub age: Duration,
    /// Recent results by protocol, in the order of [`Protocol::ALL`].
    pub protocols: [ProtocolView; Protocol::ALL.len()],
}

/// Recent results of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolView {
    /// Number of probers whose last probe succeeded.
    pub passed: u32,
    /// Number of probers whose last probe failed.
    pub failed: u32,
    /// Median duration of the successful probes.
    pub took: Option<Duration>,
}

impl Matrix {
    /// Records the result of a prober, replacing its previous one. `at_ms` is a monotonic time, as in all methods. If
    /// there are already [`MAX_PLACES`] squared pairs, new pairs are ignored until others expire.
    pub fn record(&mut self, pair: (Place, Place), prober: SocketAddr, outcomes: Outcomes, at_ms: u64) {
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&pair) {
            return;
        }
        let results = self.pairs.entry(pair).or_default();
        results.retain(|latest| latest.prober != prober);
        results.insert(0, Latest { prober, at_ms, outcomes });
        results.truncate(MAX_PROBERS);
    }

    /// Removes pairs that are no longer probed.
    pub fn expire(&mut self, now_ms: u64) {
        let is_kept = |latest: &Latest| now_ms.saturating_sub(latest.at_ms) < KEPT_MS;
        self.pairs.retain(|_, results| results.first().is_some_and(is_kept));
    }

    /// All pairs as of `now_ms`, ordered by name.
    pub fn cells(&self, now_ms: u64) -> impl Iterator<Item = Cell> {
        self.pairs.iter().filter_map(move |((from, to), results)| {
            let age = Duration::from_millis(now_ms.saturating_sub(results.first()?.at_ms));
            let recent: Vec<_> = results
                .iter()
                .filter(|latest| now_ms.saturating_sub(latest.at_ms) < FRESH_MS)
                .map(|latest| latest.outcomes)
                .collect();
            let protocols = Protocol::ALL.map(|protocol| ProtocolView::of(protocol, &recent));
            Some(Cell { from: from.clone(), to: to.clone(), verdict: verdict(&recent), age, protocols })
        })
    }
}

fn verdict(recent: &[Outcomes]) -> Verdict {
    let faults: Vec<_> = recent.iter().filter_map(Outcomes::fault).collect();
    match faults.iter().min() {
        _ if recent.is_empty() => Verdict::Stale,
        None => Verdict::Passing,
        Some(first) if faults.len() == recent.len() => Verdict::Failing(*first),
        Some(first) => Verdict::Degraded(*first),
    }
}

impl ProtocolView {
    fn of(protocol: Protocol, recent: &[Outcomes]) -> Self {
        let mut took: Vec<_> = recent.iter().filter_map(|outcomes| outcomes.took(protocol)).collect();
        took.sort_unstable();
        let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            passed: count(took.len()),
            failed: count(recent.iter().filter(|outcomes| outcomes.has_failed(protocol)).count()),
            took: took.get(took.len() / 2).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Region;

    use super::*;

    fn pair() -> (Place, Place) {
        let place = |region| Place { region: Region::new(region).unwrap(), zone: None };
        (place("eu"), place("us"))
    }

    fn prober(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    /// Outcomes in which all protocols succeed except `failed`.
    fn outcomes(failed: &[Protocol]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for protocol in Protocol::ALL {
            match failed.contains(&protocol) {
                true => outcomes.fail(protocol),
                false => outcomes.pass(protocol, Duration::from_millis(3)),
            }
        }
        outcomes
    }

    fn only_cell(matrix: &Matrix, now_ms: u64) -> Cell {
        let cells: Vec<_> = matrix.cells(now_ms).collect();
        assert_eq!(cells.len(), 1);
        cells.into_iter().next().unwrap()
    }

    #[test]
    fn zone_pair_verdict_names_first_failing_protocol() {
        let mut matrix = Matrix::default();
        matrix.record(pair(), prober(1), outcomes(&[]), 1_000);
        matrix.record(pair(), prober(2), outcomes(&[]), 2_000);
        assert_eq!(only_cell(&matrix, 3_000).verdict, Verdict::Passing);
        matrix.record(pair(), prober(1), outcomes(&[Protocol::WebSocket, Protocol::Http2]), 4_000);
        assert_eq!(only_cell(&matrix, 5_000).verdict, Verdict::Degraded(Protocol::Http2));
        let mut no_connection = Outcomes::default();
        no_connection.fail(Protocol::Tcp);
        matrix.record(pair(), prober(2), no_connection, 5_000);
        let cell = only_cell(&matrix, 6_500);
        assert_eq!((cell.verdict, cell.age), (Verdict::Failing(Protocol::Tcp), Duration::from_millis(1_500)));
        let grpc = cell.protocols[Protocol::Grpc as usize];
        assert_eq!(grpc, ProtocolView { passed: 1, failed: 0, took: Some(Duration::from_millis(3)) });
    }

    #[test]
    fn zone_probe_result_without_update_becomes_stale() {
        let mut matrix = Matrix::default();
        matrix.record(pair(), prober(1), outcomes(&[]), 1_000);
        let cell = only_cell(&matrix, 1_000 + FRESH_MS);
        assert_eq!((cell.verdict, cell.age), (Verdict::Stale, Duration::from_millis(FRESH_MS)));
        assert_eq!(cell.protocols, [ProtocolView::default(); 5]);
        matrix.expire(1_000 + KEPT_MS - 1);
        assert_eq!(matrix.cells(KEPT_MS).count(), 1);
        matrix.expire(1_000 + KEPT_MS);
        assert_eq!(matrix.cells(KEPT_MS).count(), 0);
    }

    #[test]
    fn zone_pairs_beyond_maximum_are_ignored() {
        let mut matrix = Matrix::default();
        let (from, to) = pair();
        for number in 0..MAX_PAIRS + 10 {
            let zone = Some(fairmesh_model::Zone::new(format!("z{number}")).unwrap());
            matrix.record((Place { zone, ..from.clone() }, to.clone()), prober(1), outcomes(&[]), 0);
        }
        assert_eq!(matrix.cells(0).count(), MAX_PAIRS);
        let zone = Some(fairmesh_model::Zone::new("z0").unwrap());
        matrix.record((Place { zone, ..from }, to), prober(1), outcomes(&[Protocol::Tcp]), 0);
        let failing = |cell: &Cell| cell.verdict == Verdict::Failing(Protocol::Tcp);
        assert_eq!(matrix.cells(0).filter(failing).count(), 1, "those that are kept are updated");
    }

    #[test]
    fn zone_pair_keeps_bounded_number_of_probers() {
        let mut matrix = Matrix::default();
        for number in 0..100 {
            matrix.record(pair(), prober(number), outcomes(&[]), u64::from(number));
        }
        assert_eq!(only_cell(&matrix, 100).protocols[0].passed, MAX_PROBERS as u32);
    }
}
