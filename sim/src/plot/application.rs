use super::{Axis, Plot};
use crate::application::Measured;

/// Mean latency of client calls over time, one line per planner.
pub fn latency_over_time(name: &str, measured: &[Measured]) -> String {
    let windows = measured.iter().flat_map(|one| &one.windows);
    let end = windows.clone().map(|window| window.at).fold(1.0, f64::max);
    // The start of an overload can take seconds, which would make the rest look flat.
    let mut means: Vec<f64> = windows.map(|window| window.mean_ms).collect();
    means.sort_by(f64::total_cmp);
    let usual = means.get(means.len() * 9 / 10).copied().unwrap_or(1.0);
    let x = Axis { from: 0.0, to: end, label: "seconds" };
    let mut plot = Plot::new(&format!("{name}: latency over time"), x, mean_axis(1.5 * usual));
    let mut legend = Vec::new();
    for (n, one) in measured.iter().enumerate() {
        let line = one.windows.iter().map(|window| match window.calls {
            0 => (window.at, f64::NAN),
            _ => (window.at, window.mean_ms),
        });
        plot.line(line, Plot::colour(n), 2.0, 0.8);
        legend.push((one.planner.clone(), Plot::colour(n)));
    }
    plot.legend(&legend);
    plot.finish()
}

/// Mean latency over load, one line per planner: name, and loads with milliseconds.
pub fn latency_over_load(title: &str, load: &str, lines: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (from, to) = points().fold((f64::MAX, f64::MIN), |(a, b), (x, _)| (a.min(*x), b.max(*x)));
    let mut means: Vec<f64> = points().map(|(_, ms)| *ms).collect();
    means.sort_by(f64::total_cmp);
    let usual = means.get(means.len() * 3 / 4).copied().unwrap_or(1.0);
    let mut plot = Plot::new(title, Axis { from, to, label: load }, mean_axis(2.0 * usual));
    let mut legend = Vec::new();
    for (n, (name, points)) in lines.iter().enumerate() {
        plot.line(points.iter().copied(), Plot::colour(n), 2.0, 0.8);
        legend.push((name.clone(), Plot::colour(n)));
    }
    plot.legend(&legend);
    plot.finish()
}

/// The axis of latencies, up to `to` milliseconds.
fn mean_axis(to: f64) -> Axis<'static> {
    Axis { from: 0.0, to: to.max(1.0), label: "mean milliseconds of a client's call" }
}
