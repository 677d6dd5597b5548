use super::{Axis, Plot};
use crate::TrafficReport;

/// Utilisation of each region over time with the first threshold, and the share of calls that stay in their region.
pub fn regions(name: &str, report: &TrafficReport) -> String {
    let end = report.rounds.last().map_or(1.0, |round| round.at);
    let loads = report.rounds.iter().flat_map(|round| &round.loads);
    let top = loads.copied().fold(1.0, f64::max).min(1.5) * 100.0;
    let title = format!("{name}: load of regions");
    let y = Axis { from: 0.0, to: top, label: "utilisation, in percent" };
    let mut plot = Plot::new(&title, Axis::seconds(end), y);
    let mut legend = Vec::new();
    for (n, region) in report.regions.iter().enumerate() {
        let points = report.rounds.iter().map(|round| (round.at, round.loads[n] * 100.0));
        plot.line(points, Plot::colour(n), 2.0, 0.8);
        legend.push((region.clone(), Plot::colour(n)));
    }
    let threshold = report.threshold * 100.0;
    plot.line([(0.0, threshold), (end, threshold)], "#aa0000", 1.0, 0.8);
    legend.push(("first threshold".to_owned(), "#aa0000"));
    let local = report.rounds.iter().map(|round| (round.at, round.all_local * 100.0));
    plot.line(local, "#000000", 1.0, 0.6);
    legend.push(("calls that stay in their region".to_owned(), "#000000"));
    plot.legend(&legend);
    plot.finish()
}
