//! The figures that the report shows, computed from all results.

use super::{
    Bench, CONNECTIONS, FLOOR, MANY, SMALL, Turns, USUAL,
    contenders::{Contender, PEERS, YARDSTICKS},
    results::{Cell, Results, Runs, Setting, cpu_us, median, of},
};
use crate::{
    paired_ratio::{Median, Ratio},
    report::Report,
};

impl Bench {
    pub(super) fn report_http1(&self, report: &mut Report, found: &Results) {
        for (peer, goal) in [(Contender::Envoy, 0.33), (Contender::Haproxy, 0.83), (Contender::Nginx, 0.83)] {
            self.ratio(report, (&format!("cpu_vs_{peer}"), Some(goal)), (found, peer), is_small);
        }
        let large = |(connections, body): Setting| connections >= MANY && body > SMALL;
        self.ratio(report, ("cpu_vs_envoy_large", Some(0.5)), (found, Contender::Envoy), large);
        // The goal of 13 µs was set on a machine where a hyper proxy took 17 µs. Microseconds depend on the machine and
        // the hour; the ratio does not.
        self.ratio(report, ("cpu_vs_hyper", Some(0.76)), (found, Contender::HyperProxy), is_small);
        self.ratio(report, ("cpu_vs_relay", None), (found, Contender::Relay), is_small);
        report_microseconds(report, found);
        for connections in CONNECTIONS {
            let name = format!("rps_vs_envoy_c{connections}");
            let cell = found.cells.get(&(connections, USUAL));
            let ratio = |cell| {
                let (ours, theirs): (&Runs, &Runs) =
                    (of(cell, Contender::Fairmesh)?, of(cell, Contender::Envoy)?);
                Median::of(&paired(&ours.rate, &theirs.rate))
            };
            match cell.and_then(ratio) {
                Some(ratio) => {
                    let note =
                        format!("requests a second over Envoy's, bodies of 1 KB: {ratio}; {}", rates(cell));
                    report.figure(name, ratio.value, None, note);
                }
                None => report.unmeasured(name, self.why(Contender::Envoy)),
            }
        }
        let shown = |(who, bytes): &(Contender, u64)| format!("{who} {:.1}", *bytes as f64 / 1e6);
        let all: Vec<_> = found.rss.iter().map(shown).collect();
        if let Some((_, bytes)) = found.rss.iter().find(|(who, _)| *who == Contender::Fairmesh) {
            report.figure(
                "rss_mb",
                *bytes as f64 / 1e6,
                None,
                format!("MB after all that: {}", all.join(", ")),
            );
        }
    }

    /// CPU per request relative to a peer, in the worst of the settings for which `counts` is true.
    pub(super) fn ratio(
        &self,
        report: &mut Report,
        (name, goal): (&str, Option<f64>),
        (found, peer): (&Results, Contender),
        counts: impl Fn(Setting) -> bool,
    ) {
        let cells = found.cells.iter().filter(|(setting, _)| counts(**setting));
        let ratios = cells.filter_map(|(setting, cell)| {
            let (ours, theirs) = (of(cell, Contender::Fairmesh)?, of(cell, peer)?);
            Some((*setting, Median::of(&paired(&ours.cpu, &theirs.cpu))?, cell))
        });
        match ratios.max_by(|a, b| a.1.value.total_cmp(&b.1.value)) {
            Some(((connections, body), ratio, cell)) => {
                let us = |who| cpu_us(cell, who).unwrap_or_default();
                let note = format!(
                    "the worst, {connections} connections and {body} B: {ratio}; {:.1} over {:.1} µs of CPU a request",
                    us(Contender::Fairmesh),
                    us(peer)
                );
                report.figure(name, ratio.value, goal, note);
            }
            None => report.unmeasured(name, self.why(peer)),
        }
    }

    pub(super) fn report_latency(&self, report: &mut Report, (rate, turns): &(u64, Vec<Turns>)) {
        let ratio = |who: Contender| {
            let over = |turns: &Turns| {
                Some(turns.first()?.1 as f64 / turns.iter().skip(1).find(|turn| turn.0 == who)?.1 as f64)
            };
            let ratios: Vec<f64> = turns.iter().filter_map(over).collect();
            (ratios.len() > 1).then(|| Ratio::of(&ratios))
        };
        let peers = PEERS.iter().filter_map(|peer| Some((*peer, ratio(*peer)?)));
        let all: Vec<_> = peers.collect();
        let shown: Vec<_> = all.iter().map(|(peer, ratio)| format!("{peer} {ratio}")).collect();
        let best = all.iter().max_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        match best.filter(|_| self.missing.is_empty()) {
            Some((_, worst)) => {
                let noise = ratio(Contender::Fairmesh).unwrap_or_default();
                let note = format!(
                    "p99 at {rate} requests a second over each peer's: {}; over itself {noise}",
                    shown.join(", ")
                );
                // A difference within the confidence bounds of both is noise.
                report.figure("p99_vs_best", worst.mean, Some(worst.within.max(noise.within)), note);
            }
            None => {
                let missing = self.missing.iter().map(|(peer, why)| format!("{peer}: {why}"));
                report.unmeasured("p99_vs_best", missing.collect::<Vec<_>>().join("; "));
            }
        }
    }

    fn why(&self, peer: Contender) -> String {
        let missing = self.missing.iter().find(|(missing, _)| *missing == peer);
        missing.map_or_else(|| "no setting that counts was measured".into(), |(_, why)| why.clone())
    }
}

/// Our CPU per request, in the setting of the goal and in the most expensive setting.
fn report_microseconds(report: &mut Report, found: &Results) {
    let cells = found.cells.iter().filter(|(setting, _)| is_small(**setting));
    let all: Vec<_> = cells
        .filter_map(|(setting, cell)| Some((*setting, cpu_us(cell, Contender::Fairmesh)?, cell)))
        .collect();
    let shown = |((connections, body), ours, cell): &(Setting, f64, &Cell)| {
        let [hyper, relay] = YARDSTICKS.map(|who| cpu_us(cell, who).unwrap_or(f64::NAN));
        format!(
            "{ours:.1} µs of CPU a request with {connections} connections and {body} B, a hyper proxy {hyper:.1}, a relay {relay:.1}"
        )
    };
    let floor = all.iter().find(|(setting, ..)| *setting == FLOOR);
    let worst = all.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    // `--quick` leaves the first setting out.
    for (name, found) in [("cpu_us_floor", floor), ("cpu_us", worst)] {
        if let Some(found) = found {
            report.figure(name, found.1, Some(13.0), shown(found));
        }
    }
}

/// Whether the goals for small bodies apply to a setting.
fn is_small((connections, body): Setting) -> bool {
    connections >= MANY && body <= SMALL
}

/// Ratios within each round.
fn paired(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

fn rates(cell: Option<&Cell>) -> String {
    let one = |(who, runs): &(Contender, Runs)| format!("{who} {:.0}/s", median(&runs.rate));
    cell.into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}
